//! How the placing of one copy ended, and how a delivery says so.

use std::fmt;
use std::time::SystemTime;

use super::Failure;
use crate::clock;
use crate::directory::Destination;
use crate::ledger::stored_text;
use crate::outcome::{Outcome, Reason};
use crate::store::Receipt;
use crate::text::quoted;

/// How a copy came to be in its mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// This delivery wrote it.
    Stored,
    /// An earlier or parallel delivery placed it.
    AlreadyThere,
    /// An earlier delivery wrote it and could not record so.
    Found,
}

impl How {
    /// Its name in texts and logs.
    pub fn name(self) -> &'static str {
        match self {
            How::Stored => "stored",
            How::AlreadyThere => "already there",
            How::Found => "found",
        }
    }
}

/// A copy that is in its mailbox, with its receipt on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub destination: Destination,
    pub receipt: Receipt,
    pub how: How,
    /// The mailbox that was meant and is not there, or not open to us.
    pub instead_of: Option<String>,
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Placed { destination, receipt, how, .. } = self;
        match (receipt.is_handed(), how) {
            (_, How::Stored) => f.write_str(&stored_text(destination, receipt)),
            (true, how) => {
                write!(f, "{} account={} {receipt}", how.name(), destination.account)
            }
            (false, how) => write!(f, "{} {destination} {receipt}", how.name()),
        }?;
        match &self.instead_of {
            Some(mailbox) => write!(f, " instead_of={}", quoted(mailbox)),
            None => Ok(()),
        }
    }
}

/// A sender's own copy (Sent) whose bytes are on record until it is placed: no recipient's mail
/// waits for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// It cannot be placed now; `onedrop verify --repair` places it.
    Kept { destination: Destination, why: String },
    /// `onedrop settle` writes it at that time, unless the sender's mail program has.
    Due { destination: Destination, at: SystemTime },
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::Kept { destination, why } => {
                write!(f, "no copy yet in {destination}, kept for later: {why}")
            }
            Left::Due { destination, at } => write!(f, "due {destination} at={}", clock::utc(*at)),
        }
    }
}

/// How the placing of one copy ended.
#[derive(Debug)]
pub enum CopyEnd {
    Placed(Placed),
    Left(Left),
    Failed(Failure),
}

impl CopyEnd {
    /// What it means for a recipient whom the copy concerns.
    pub fn outcome(&self) -> Outcome {
        match self {
            CopyEnd::Placed(placed) => Outcome::delivered(placed.to_string()),
            CopyEnd::Left(left) => Outcome::delivered(left.to_string()),
            CopyEnd::Failed(failure) => failure.outcome(),
        }
    }

    pub fn reason(&self) -> Reason {
        match self {
            CopyEnd::Placed(_) => Reason::Delivered,
            CopyEnd::Left(Left::Kept { .. }) => Reason::Kept,
            CopyEnd::Left(Left::Due { .. }) => Reason::Due,
            CopyEnd::Failed(failure) => failure.reason(),
        }
    }

    /// The copy, if it is in its mailbox.
    pub fn placed(&self) -> Option<&Placed> {
        match self {
            CopyEnd::Placed(placed) => Some(placed),
            CopyEnd::Left(_) | CopyEnd::Failed(_) => None,
        }
    }
}

impl<E: Into<Failure>> From<E> for CopyEnd {
    fn from(error: E) -> CopyEnd {
        CopyEnd::Failed(error.into())
    }
}
