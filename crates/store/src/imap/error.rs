//! Why something that an IMAP server was asked for has not happened, and what that means for the
//! copy.

use onedrop_core::store::StoreError;

/// What an error means for the copy: one of the variants of [`StoreError`].
pub type Meaning = fn(String) -> StoreError;

/// What Cyrus (imap/imap_err.et) and Courier (imap/imapd.c) say of a mailbox that is over its
/// quota: neither has a code for it. Whole texts, as mail may go back for them.
const FULL: [&str; 2] = ["NO Over quota", "NO [ALERT] You exceeded your mail quota."];

/// Why a command to an IMAP server failed.
#[derive(Debug)]
pub enum ImapError {
    /// The server answered NO or BAD; the session goes on.
    Refused(Rejection),
    /// The session is closed, for this reason, and nothing was stored: another one may be tried.
    Lost(String),
    /// It is known already what it means.
    Final(Meaning, String),
}

/// A tagged NO or BAD.
#[derive(Debug)]
pub struct Rejection {
    /// Name of the response code in upper case, empty without one.
    pub code: String,
    /// `NO` or `BAD` and the server's text with its code, cleaned.
    pub text: String,
}

impl ImapError {
    /// A refusal of our own, in the place of the server's.
    pub fn refused(text: impl Into<String>) -> ImapError {
        ImapError::Refused(Rejection { code: String::new(), text: text.into() })
    }

    /// Certainly nothing was written, for this reason.
    pub fn not_stored(why: impl Into<String>) -> ImapError {
        ImapError::Final(StoreError::NotStored, why.into())
    }

    pub fn text(self) -> String {
        match self {
            ImapError::Refused(no) => no.text,
            ImapError::Lost(why) | ImapError::Final(_, why) => why,
        }
    }

    /// The same with another text, made of its own.
    pub fn map(self, say: impl FnOnce(String) -> String) -> ImapError {
        match self {
            ImapError::Refused(no) => {
                ImapError::Refused(Rejection { code: no.code, text: say(no.text) })
            }
            ImapError::Lost(why) => ImapError::Lost(say(why)),
            ImapError::Final(meaning, why) => ImapError::Final(meaning, say(why)),
        }
    }

    /// What happened while `doing` what stores nothing. A failed login speaks for itself.
    pub fn while_doing(self, doing: &str) -> StoreError {
        match self {
            ImapError::Final(..) => self.into(),
            other => other.map(|why| format!("{doing}: {why}")).into(),
        }
    }

    /// What happened to an append, while `doing` it.
    pub fn while_appending(self, doing: &str) -> StoreError {
        let meaning: Meaning = match &self {
            ImapError::Refused(no) => no.meaning(),
            ImapError::Lost(_) => StoreError::NotStored,
            ImapError::Final(meaning, _) => *meaning,
        };
        meaning(format!("{doing}: {}", self.text()))
    }
}

impl From<ImapError> for StoreError {
    fn from(error: ImapError) -> StoreError {
        match error {
            ImapError::Final(meaning, why) => meaning(why),
            other => StoreError::NotStored(other.text()),
        }
    }
}

impl Rejection {
    /// What a NO or BAD to APPEND, or to the CREATE before it, means by its response code (RFC 3501
    /// section 7.1, RFC 5530, RFC 7889, RFC 9208). Without a code it is not known whom it concerns,
    /// unless it is one of [`FULL`].
    fn meaning(&self) -> Meaning {
        match self.code.as_str() {
            "OVERQUOTA" => StoreError::OverQuota,
            _ if FULL.contains(&self.text.as_str()) => StoreError::OverQuota,
            "TOOBIG" | "LIMIT" => StoreError::TooBig,
            _ if self.is_of_the_mailbox() || self.is_missing_mailbox() => StoreError::Refused,
            _ => StoreError::NotStored,
        }
    }

    /// Whether a NO to an APPEND may be about the message itself: it names nothing else.
    pub fn may_concern_the_message(&self) -> bool {
        self.code.is_empty() && self.text.starts_with("NO")
    }

    /// Whether a NO to a login says that the server has no place for one more session of the
    /// account (RFC 5530; Dovecot's mail_max_userip_connections is a LIMIT). Others may say so
    /// without a code, or with that of a part that is away.
    pub fn has_no_place(&self) -> bool {
        let says = |words: &str| self.text.to_ascii_lowercase().contains(words);
        match self.code.as_str() {
            "LIMIT" | "INUSE" => true,
            "" | "UNAVAILABLE" => {
                says("maximum number of connections") || says("too many open connections")
            }
            _ => false,
        }
    }

    /// Whether the mailbox takes nothing from us, or is not shown: no right, or a name that cannot
    /// be. Cyrus says the first without a code, in the whole text.
    pub fn is_of_the_mailbox(&self) -> bool {
        ["NOPERM", "CANNOT"].contains(&self.code.as_str()) || self.text == "NO Permission denied"
    }

    /// Whether the mailbox is not there.
    pub fn is_missing_mailbox(&self) -> bool {
        ["TRYCREATE", "NONEXISTENT"].contains(&self.code.as_str())
    }
}
