//! How a delivery ends, as a value: delivered, tempfail or permfail, with an RFC 3463 status and a
//! text; and its [`Reason`]. Which of them a failure is, `deliver/verdict.rs` decides. A peer's
//! reply is permanent only where its code and its status both say so.

use std::borrow::Cow;
use std::fmt;

mod reason;

pub use reason::Reason;

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
    /// What [`OverQuota::Bounce`] makes of [`Status::MAILBOX_FULL`].
    pub const MAILBOX_FULL_FOR_GOOD: Status = Status::new(5, 2, 2);
    pub const MAILBOX_REFUSES_SIZE: Status = Status::new(4, 2, 3);
    pub const UNKNOWN_MAILBOX: Status = Status::new(5, 1, 1);
    /// A filter of the mailbox's owner rejects the message (RFC 5429 section 2.1).
    pub const REJECTED_BY_OWNER: Status = Status::new(5, 7, 1);
    pub const TOO_BIG: Status = Status::new(5, 3, 4);

    /// Reads a status (RFC 3463 section 2): a class of 2, 4 or 5, and two numbers of one to three
    /// digits.
    pub fn parse(text: &str) -> Option<Status> {
        let mut parts = text.split('.').map(|part| {
            let is_number =
                (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse().ok().filter(|_| is_number)
        });
        let (class, subject, detail) = (parts.next()??, parts.next()??, parts.next()??);
        let class = u8::try_from(class).ok().filter(|class| [2, 4, 5].contains(class))?;
        parts.next().is_none().then(|| Status::new(class, subject, detail))
    }

    /// Whether it says something about how the peers speak with each other, not about the mail
    /// (X.5.z).
    pub fn is_about_the_protocol(self) -> bool {
        self.subject == 5
    }

    const fn new(class: u8, subject: u16, detail: u16) -> Status {
        Status { class, subject, detail }
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

/// What the mail server's "no such account" means (`directory.unknown_account`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownAccount {
    #[default]
    Defer,
    Reject,
}

/// The end of a delivery for one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// How each copy ended, in its order; at least one text.
    Delivered(Vec<String>),
    TempFail(Status, String),
    PermFail(Status, String),
}

/// Stands between the texts of several copies, or recipients.
const BETWEEN: &str = "; ";

impl Outcome {
    /// With one text.
    pub fn delivered(text: impl Into<String>) -> Outcome {
        Outcome::Delivered(vec![text.into()])
    }

    /// How a server of ours says that a delivery ended: its reply's code and the text after it,
    /// which begins with the status (RFC 2034). Permanent is only what is so by code and status,
    /// and concerns the mail.
    pub fn of_reply(code: u16, reply: &str) -> Outcome {
        let (first, rest) = reply.split_once(' ').unwrap_or((reply, ""));
        match (code / 100, Status::parse(first)) {
            (2, Some(status)) if status.class == 2 => {
                Outcome::Delivered(rest.split(BETWEEN).map(str::to_owned).collect())
            }
            (4, Some(status)) if status.class == 4 => Outcome::TempFail(status, rest.to_owned()),
            (5, Some(status)) if status.class == 5 && !status.is_about_the_protocol() => {
                Outcome::PermFail(status, rest.to_owned())
            }
            _ => Outcome::TempFail(
                Status::TEMPORARY,
                format!("reply not understood: {code} {reply}"),
            ),
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

    /// What happened; of several copies in one text.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Outcome::Delivered(copies) => Cow::Owned(copies.join(BETWEEN)),
            Outcome::TempFail(_, text) | Outcome::PermFail(_, text) => Cow::Borrowed(text),
        }
    }

    /// The one ending of a process that has several recipients, given in their order with how it
    /// ended for each: one that can be tried again wins (what is delivered is seen to be there at
    /// the next try), then one that cannot. Where they ended differently, the text says how for
    /// each of them, those first that ended as the process does.
    pub fn of_all(ends: &[(&str, Outcome)]) -> Outcome {
        let worst = Outcome::worst(ends.iter().map(|(_, outcome)| outcome.clone()));
        let decides = |outcome: &Outcome| {
            outcome.name() == worst.name() && outcome.status() == worst.status()
        };
        let (first, others): (Vec<_>, Vec<_>) =
            ends.iter().partition(|(_, outcome)| decides(outcome));
        let told = |(recipient, outcome): &&(&str, Outcome)| match outcome {
            Outcome::TempFail(status, text) | Outcome::PermFail(status, text)
                if !decides(outcome) =>
            {
                format!("<{recipient}>: {status} {text}")
            }
            outcome => format!("<{recipient}>: {}", outcome.text()),
        };
        let text = || first.iter().chain(&others).map(told).collect::<Vec<_>>().join(BETWEEN);
        match &worst {
            // A copy that several recipients share is named once.
            Outcome::Delivered(all) => {
                let mut copies: Vec<String> = Vec::new();
                for copy in all {
                    if !copies.contains(copy) {
                        copies.push(copy.clone());
                    }
                }
                Outcome::Delivered(copies)
            }
            _ if ends.iter().all(|(_, outcome)| *outcome == worst) => worst,
            Outcome::TempFail(status, _) => Outcome::TempFail(*status, text()),
            Outcome::PermFail(status, _) => Outcome::PermFail(*status, text()),
        }
    }

    /// One ending for several copies: one that can be tried again wins, then one that cannot.
    pub fn worst(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
        let worst = outcomes.into_iter().reduce(|one, other| match (one, other) {
            (one @ Outcome::TempFail(..), _) => one,
            (_, other @ Outcome::TempFail(..)) => other,
            (one @ Outcome::PermFail(..), _) => one,
            (_, other @ Outcome::PermFail(..)) => other,
            (Outcome::Delivered(one), Outcome::Delivered(other)) => {
                Outcome::Delivered(one.into_iter().chain(other).collect())
            }
        });
        worst.unwrap_or_else(|| Outcome::delivered("nothing to do"))
    }
}
