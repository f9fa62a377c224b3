//! How a delivery ends, as a value: delivered, tempfail or permfail, with an RFC 3463 status and a
//! text. Which of them a failure is, `deliver/verdict.rs` decides. A peer's reply is permanent only
//! where its code and its status both say so.

use std::fmt;

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

/// The end of a delivery for one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Delivered(String),
    TempFail(Status, String),
    PermFail(Status, String),
}

impl Outcome {
    /// How a server of ours says that a delivery ended: its reply's code and the text after it,
    /// which begins with the status (RFC 2034). Permanent is only what is so by code and status,
    /// and concerns the mail.
    pub fn of_reply(code: u16, reply: &str) -> Outcome {
        let (first, rest) = reply.split_once(' ').unwrap_or((reply, ""));
        match (code / 100, Status::parse(first)) {
            (2, Some(status)) if status.class == 2 => Outcome::Delivered(rest.to_owned()),
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

    /// What happened, in words.
    pub fn text(&self) -> &str {
        match self {
            Outcome::Delivered(text) | Outcome::TempFail(_, text) | Outcome::PermFail(_, text) => {
                text
            }
        }
    }

    /// The one ending of a process that has several recipients, given in their order with how it
    /// ended for each: one that can be tried again wins (what is delivered is seen to be there at
    /// the next try), then one that cannot. Where they ended differently, the text says how for
    /// each of them, those first that ended as the process does.
    pub fn of_all(ends: &[(&str, Outcome)]) -> Outcome {
        let mut different: Vec<&Outcome> = Vec::new();
        for (_, outcome) in ends {
            if !different.contains(&outcome) {
                different.push(outcome);
            }
        }
        let worst = different.iter().map(|outcome| (*outcome).clone()).reduce(Outcome::worst);
        let worst = worst.unwrap_or_else(|| Outcome::Delivered("nothing to do".to_owned()));
        let decides = |outcome: &Outcome| {
            outcome.name() == worst.name() && outcome.status() == worst.status()
        };
        let (first, others): (Vec<_>, Vec<_>) =
            ends.iter().partition(|(_, outcome)| decides(outcome));
        let told = |(recipient, outcome): &&(&str, Outcome)| match outcome {
            Outcome::Delivered(text) => format!("<{recipient}>: {text}"),
            Outcome::TempFail(_, text) | Outcome::PermFail(_, text) if decides(outcome) => {
                format!("<{recipient}>: {text}")
            }
            Outcome::TempFail(status, text) | Outcome::PermFail(status, text) => {
                format!("<{recipient}>: {status} {text}")
            }
        };
        let text = || first.iter().chain(&others).map(told).collect::<Vec<_>>().join("; ");
        match &worst {
            // A copy that several recipients share is named once.
            Outcome::Delivered(text) => {
                let mut copies: Vec<&str> = Vec::new();
                for copy in text.split("; ") {
                    if !copies.contains(&copy) {
                        copies.push(copy);
                    }
                }
                Outcome::Delivered(copies.join("; "))
            }
            _ if different.len() == 1 => worst,
            Outcome::TempFail(status, _) => Outcome::TempFail(*status, text()),
            Outcome::PermFail(status, _) => Outcome::PermFail(*status, text()),
        }
    }

    /// One ending for several copies: one that can be tried again wins, then one that cannot.
    pub fn worst(self, other: Outcome) -> Outcome {
        match (&self, &other) {
            (Outcome::TempFail(..), _) => self,
            (_, Outcome::TempFail(..)) => other,
            (Outcome::PermFail(..), _) => self,
            (_, Outcome::PermFail(..)) => other,
            (Outcome::Delivered(a), Outcome::Delivered(b)) => {
                Outcome::Delivered(format!("{a}; {b}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_recipients_says_how_it_ended_for_each() {
        let stored = |account: &str| {
            Outcome::Delivered(format!(
                "stored account={account}; stored account=lisa mailbox=Sent"
            ))
        };
        let unknown = || Outcome::PermFail(Status::UNKNOWN_MAILBOX, "unknown".to_owned());
        let full = || Outcome::TempFail(Status::MAILBOX_FULL, "full".to_owned());
        let busy = || Outcome::TempFail(Status::TEMPORARY, "busy".to_owned());
        let temporary = |text: &str| Outcome::TempFail(Status::TEMPORARY, text.to_owned());
        for (ends, expected) in [
            (vec![("a", stored("a"))], stored("a")),
            (vec![("a", unknown())], unknown()),
            (vec![("a", busy()), ("b", busy())], busy()),
            (
                vec![("a", stored("a")), ("b", stored("b"))],
                Outcome::Delivered(
                    "stored account=a; stored account=lisa mailbox=Sent; stored account=b"
                        .to_owned(),
                ),
            ),
            (
                vec![("a", Outcome::Delivered("stored account=a".to_owned())), ("n", unknown())],
                Outcome::PermFail(
                    Status::UNKNOWN_MAILBOX,
                    "<n>: unknown; <a>: stored account=a".to_owned(),
                ),
            ),
            (vec![("n", unknown()), ("b", busy())], temporary("<b>: busy; <n>: 5.1.1 unknown")),
            (vec![("b", busy()), ("f", full())], temporary("<b>: busy; <f>: 4.2.2 full")),
            (vec![("a", busy()), ("b", temporary("held"))], temporary("<a>: busy; <b>: held")),
        ] {
            assert_eq!(Outcome::of_all(&ends), expected, "{ends:?}");
        }
    }

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
            assert!(
                matches!(outcome, Outcome::TempFail(Status::TEMPORARY, _)),
                "{code} {text}: {outcome:?}"
            );
        }
    }
}
