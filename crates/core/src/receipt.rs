//! Where a copy is in its mailbox, as the store named it when it took the copy.

use crate::directory::place_and_variant;

/// Identifies one stored copy among all in its mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receipt {
    /// An IMAP server's UIDVALIDITY and UID (RFC 3501 section 2.3.1.1).
    Uid { validity: u32, uid: u32 },
    /// Maildir: the file's unique name, without the `:2,` flags that others may change. Should two
    /// files have it, a store names the one that is to stay like this and the others with
    /// their folder and flags (`new/NAME`, `cur/NAME:2,S`).
    Name(String),
    /// It was handed over to the mail server's own delivery, whose filters decide where it lies:
    /// what the server called the transaction, or where the copy was found later. It names no
    /// message.
    Handed(String),
    /// The store took the copy and gave nothing to name it by.
    Unnamed,
    /// Nothing stands here, for this mailbox was not there: the copy belongs into the account's
    /// mailbox of this name, which has a row of its own.
    Elsewhere(String),
}

impl Receipt {
    /// Whether it names its copy for good: a file named with folder and flags has another name as
    /// soon as it is read.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Receipt::Name(name) if name.contains('/'))
    }
}

impl std::fmt::Display for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Receipt::Uid { uid, .. } => write!(f, "uid={uid}"),
            Receipt::Name(name) => write!(f, "name={name}"),
            Receipt::Handed(id) => write!(f, "lmtp={id}"),
            Receipt::Unnamed => f.write_str("uid=?"),
            Receipt::Elsewhere(mailbox) => write!(f, "instead={}", place_and_variant(mailbox).0),
        }
    }
}
