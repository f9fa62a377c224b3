//! A copy that is in its mailbox, and how a delivery says so.

use crate::directory::Destination;
use crate::store::Receipt;

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
    /// As texts and logs say it.
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

impl std::fmt::Display for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.receipt, self.how) {
            // Its owner's filters decide in which mailbox it lies.
            (Receipt::Handed(_), How::Stored) => {
                write!(f, "handed over account={} {}", self.destination.account, self.receipt)
            }
            (Receipt::Handed(_), how) => {
                write!(f, "{} account={} {}", how.name(), self.destination.account, self.receipt)
            }
            (receipt, how) => write!(f, "{} {} {receipt}", how.name(), self.destination),
        }?;
        match &self.instead_of {
            Some(mailbox) => write!(f, " instead_of={mailbox}"),
            None => Ok(()),
        }
    }
}
