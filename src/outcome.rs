//! How a delivery ends: delivered, tempfail or permfail, with an RFC 3463 status. This is the one place that decides
//! between temporary and permanent, by an exhaustive match. What we do not understand is temporary: Postfix can try
//! again, but nobody can take back a bounce. Permanent are an unknown recipient and what the configuration asks for.

use std::fmt;

use crate::ledger::LedgerError;
use crate::store::StoreError;

/// An enhanced mail system status code (RFC 3463): class, subject, detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    class: u8,
    subject: u16,
    detail: u16,
}

impl Status {
    pub const OK: Status = Status::new(2, 0, 0);
    pub const TEMPORARY: Status = Status::new(4, 3, 0);
    pub const OUR_SETUP: Status = Status::new(4, 3, 5);
    pub const MAILBOX_FULL: Status = Status::new(4, 2, 2);
    pub const MAILBOX_REFUSES_SIZE: Status = Status::new(4, 2, 3);
    pub const UNKNOWN_MAILBOX: Status = Status::new(5, 1, 1);
    pub const TOO_BIG: Status = Status::new(5, 3, 4);

    /// Reads a status (RFC 3463 section 2): a class of 2, 4 or 5, and two numbers of one to three digits.
    pub fn parse(text: &str) -> Option<Status> {
        let mut parts = text.split('.').map(|part| {
            let is_number = (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse().ok().filter(|_| is_number)
        });
        let (class, subject, detail) = (parts.next()??, parts.next()??, parts.next()??);
        let class = u8::try_from(class).ok().filter(|class| [2, 4, 5].contains(class))?;
        parts.next().is_none().then(|| Status::new(class, subject, detail))
    }

    /// Whether it says something about how the peers speak with each other, not about the mail (X.5.z).
    pub fn is_about_the_protocol(self) -> bool {
        self.subject == 5
    }

    const fn new(class: u8, subject: u16, detail: u16) -> Status {
        Status { class, subject, detail }
    }

    /// The same subject and detail as a permanent failure; only this module may harden a status.
    const fn permanent(self) -> Status {
        Status::new(5, self.subject, self.detail)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.class, self.subject, self.detail)
    }
}

/// What to do when a mailbox is over its quota (`store.over_quota`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverQuota {
    #[default]
    Defer,
    Bounce,
}

/// Why a recipient's mail could not be delivered in this run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("unknown recipient {0}")]
    UnknownRecipient(String),
    #[error("message is larger than limits.message_bytes = {limit}")]
    TooLarge { limit: u64 },
    #[error("no recipient: give -d, or RECIPIENT in the environment, or a Delivered-To field")]
    NoRecipient,
    #[error("message was cut short: {0}")]
    Cut(String),
    #[error("cannot read the message: {0}")]
    Input(String),
    #[error("another delivery of this message holds {0}; try again")]
    Contended(String),
    #[error("deadline of {secs} s passed while {doing}")]
    Deadline { secs: u64, doing: String },
    #[error("{0}")]
    Store(#[source] StoreError),
    #[error("ledger: {0}")]
    Ledger(#[source] LedgerError),
    /// The server that was to deliver did not tell what became of the message.
    #[error("{0}")]
    Server(String),
    #[error("{0}")]
    Setup(String),
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Failure::Ledger(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Store(error)
    }
}

/// The end of a delivery for one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Delivered(String),
    TempFail(Status, String),
    PermFail(Status, String),
}

impl Outcome {
    /// Decides whether `failure` is temporary or permanent.
    pub fn of(failure: &Failure, over_quota: OverQuota) -> Outcome {
        let text = failure.to_string();
        match failure {
            Failure::UnknownRecipient(_) => Outcome::PermFail(Status::UNKNOWN_MAILBOX, text),
            Failure::TooLarge { .. } => Outcome::PermFail(Status::TOO_BIG, text),
            Failure::Store(StoreError::OverQuota(_)) => match over_quota {
                OverQuota::Defer => Outcome::TempFail(Status::MAILBOX_FULL, text),
                OverQuota::Bounce => Outcome::PermFail(Status::MAILBOX_FULL.permanent(), text),
            },
            Failure::Store(StoreError::TooBig(_)) => Outcome::TempFail(Status::MAILBOX_REFUSES_SIZE, text),
            Failure::Store(
                StoreError::NotStored(_) | StoreError::Refused(_) | StoreError::NoAccount(_) | StoreError::InDoubt(_),
            ) => Outcome::TempFail(Status::TEMPORARY, text),
            Failure::Store(StoreError::Setup(_))
            | Failure::Setup(_)
            | Failure::NoRecipient
            | Failure::Ledger(LedgerError::Version { .. }) => Outcome::TempFail(Status::OUR_SETUP, text),
            Failure::Ledger(
                LedgerError::Contended
                | LedgerError::Unavailable(_)
                | LedgerError::Busy(_)
                | LedgerError::TookTooLong(_)
                | LedgerError::Refused(_)
                | LedgerError::Broken(_),
            )
            | Failure::Cut(_)
            | Failure::Input(_)
            | Failure::Contended(_)
            | Failure::Deadline { .. }
            | Failure::Server(_)
            | Failure::Internal(_) => Outcome::TempFail(Status::TEMPORARY, text),
        }
    }

    /// How a server of ours says that a delivery ended: its reply's code and the text after it, which begins with the
    /// status (RFC 2034). Permanent is only what is so by code and status, and concerns the mail.
    pub fn of_reply(code: u16, reply: &str) -> Outcome {
        let (first, rest) = reply.split_once(' ').unwrap_or((reply, ""));
        match (code / 100, Status::parse(first)) {
            (2, Some(status)) if status.class == 2 => Outcome::Delivered(rest.to_owned()),
            (4, Some(status)) if status.class == 4 => Outcome::TempFail(status, rest.to_owned()),
            (5, Some(status)) if status.class == 5 && !status.is_about_the_protocol() => {
                Outcome::PermFail(status, rest.to_owned())
            }
            _ => Outcome::TempFail(Status::TEMPORARY, format!("reply not understood: {code} {reply}")),
        }
    }

    /// `delivered`, `tempfail` or `permfail`, as the ledger and the logs say it.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Delivered(_) => "delivered",
            Outcome::TempFail(..) => "tempfail",
            Outcome::PermFail(..) => "permfail",
        }
    }

    /// The RFC 3463 status.
    pub fn status(&self) -> Status {
        match self {
            Outcome::Delivered(_) => Status::OK,
            Outcome::TempFail(status, _) | Outcome::PermFail(status, _) => *status,
        }
    }

    /// What happened, in words.
    pub fn text(&self) -> &str {
        match self {
            Outcome::Delivered(text) | Outcome::TempFail(_, text) | Outcome::PermFail(_, text) => text,
        }
    }

    /// One ending for several recipients: one that can be tried again wins, then one that cannot.
    pub fn worst(self, other: Outcome) -> Outcome {
        match (&self, &other) {
            (Outcome::TempFail(..), _) => self,
            (_, Outcome::TempFail(..)) => other,
            (Outcome::PermFail(..), _) => self,
            (_, Outcome::PermFail(..)) => other,
            (Outcome::Delivered(a), Outcome::Delivered(b)) => Outcome::Delivered(format!("{a}; {b}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_strictly() {
        let cases = [
            (250, "2.0.0 stored account=a", Outcome::Delivered("stored account=a".into())),
            (451, "4.3.0 later", Outcome::TempFail(Status::TEMPORARY, "later".into())),
            (452, "4.2.2 full", Outcome::TempFail(Status::MAILBOX_FULL, "full".into())),
            (550, "5.1.1 nobody", Outcome::PermFail(Status::UNKNOWN_MAILBOX, "nobody".into())),
            (552, "5.3.4 too big", Outcome::PermFail(Status::TOO_BIG, "too big".into())),
        ];
        for (code, text, outcome) in cases {
            assert_eq!(Outcome::of_reply(code, text), outcome);
        }
        let not_understood = [
            (250, "stored"),
            (250, "4.3.0 later"),
            (450, "5.1.1 nobody"),
            (550, "4.1.1 nobody"),
            (550, "nobody"),
            (550, "5.1 nobody"),
            (550, "5.1.1.1 nobody"),
            (550, "5.+1.1 nobody"),
            (550, "5.1.1111 nobody"),
            (550, ""),
            (503, "5.5.1 bad sequence"),
            (354, "2.0.0 go ahead"),
        ];
        for (code, text) in not_understood {
            let outcome = Outcome::of_reply(code, text);
            assert!(matches!(outcome, Outcome::TempFail(Status::TEMPORARY, _)), "{code} {text}: {outcome:?}");
        }
    }
}
