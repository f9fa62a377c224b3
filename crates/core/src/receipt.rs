//! Where a copy is in its mailbox, as the store named it when it took the copy: a kind and a text,
//! which the ledger keeps as they are. Only the store that gave a receipt, and what stands in for
//! it, asks for what its text says. Everybody else may compare two of them, show one, and ask what
//! a delivery must know: whether it names a message, was handed over, or stands elsewhere.

use std::borrow::Cow;

use crate::directory::place_and_variant;

/// Identifies one stored copy among all in its mailbox, or says why nothing does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    kind: Cow<'static, str>,
    text: String,
}

/// An IMAP server's UIDVALIDITY and UID (RFC 3501 section 2.3.1.1), as `1700000000/42`.
pub const UID: &str = "uid";

/// Maildir: the file's unique name, without the `:2,` flags that others may change. Should two
/// files have it, a store names the one that is to stay like this and the others with their folder
/// and flags (`new/NAME`, `cur/NAME:2,S`).
pub const NAME: &str = "name";

/// It was handed over to the mail server's own delivery, whose filters decide where it lies: what
/// the server called the transaction, or where the copy was found later. It names no message.
const HANDED: &str = "lmtp";

/// Nothing stands here, for this mailbox was not there: the copy belongs into the account's mailbox
/// of this name, which has a row of its own.
pub const ELSEWHERE: &str = "instead";

const UNNAMED: &str = "unnamed";

impl Receipt {
    /// The store took the copy and gave nothing to name it by. Two of these may be two copies.
    pub const UNNAMED: Receipt = Receipt { kind: Cow::Borrowed(UNNAMED), text: String::new() };

    /// By a store that has a kind of its own: reports show it as `KIND=TEXT`.
    pub fn new(kind: impl Into<Cow<'static, str>>, text: impl Into<String>) -> Receipt {
        Receipt { kind: kind.into(), text: text.into() }
    }

    /// See [`UID`].
    pub fn uid(validity: u32, uid: u32) -> Receipt {
        Receipt::new(UID, format!("{validity}/{uid}"))
    }

    /// See [`NAME`].
    pub fn name(name: impl Into<String>) -> Receipt {
        Receipt::new(NAME, name)
    }

    /// Of a copy that was handed over, and is called `id` there.
    pub fn handed(id: impl Into<String>) -> Receipt {
        Receipt::new(HANDED, id)
    }

    /// Of a copy that belongs into another mailbox of its account.
    pub fn elsewhere(mailbox: &str) -> Receipt {
        Receipt::new(ELSEWHERE, mailbox)
    }

    /// What it is on record by, with its [text](Receipt::text).
    pub fn kind(&self) -> &str {
        &self.kind
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// UIDVALIDITY and UID.
    pub fn as_uid(&self) -> Option<(u32, u32)> {
        let (validity, uid) = self.of_kind(UID)?.split_once('/')?;
        Some((validity.parse().ok()?, uid.parse().ok()?))
    }

    /// The name of a file in a Maildir.
    pub fn as_name(&self) -> Option<&str> {
        self.of_kind(NAME)
    }

    /// Whether the mail server's own delivery has the copy.
    pub fn is_handed(&self) -> bool {
        self.kind == HANDED
    }

    /// Whether nothing stands here, for another mailbox has the copy.
    pub fn is_elsewhere(&self) -> bool {
        self.kind == ELSEWHERE
    }

    /// The mailbox that has the copy instead.
    pub fn mailbox_instead(&self) -> Option<&str> {
        self.of_kind(ELSEWHERE)
    }

    /// Its text, without what only its store needs.
    pub fn shown(&self) -> &str {
        match &*self.kind {
            UID => self.text.rsplit('/').next().unwrap_or_default(),
            ELSEWHERE => place_and_variant(&self.text).0,
            _ => &self.text,
        }
    }

    fn of_kind(&self, kind: &str) -> Option<&str> {
        (self.kind == kind).then_some(self.text.as_str())
    }
}

impl std::fmt::Display for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.kind {
            UNNAMED => f.write_str("uid=?"),
            kind => write!(f, "{kind}={}", self.shown()),
        }
    }
}
