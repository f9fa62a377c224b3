//! What a verification reports while it goes on, and its result. Values only.

use std::fmt::{self, Display, Formatter};
use std::ops::AddAssign;

use serde::Serialize;

use crate::directory::Destination;
use crate::store::StoreError;

/// What a difference means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Worth knowing, nothing to mend.
    Info,
    /// Was wrong, and is no longer.
    Repaired,
    /// Was left for later, and is done.
    Settled,
    /// Still to be mended, by `--repair` or by the next attempt to deliver.
    Error,
}

/// What a difference is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// Placed, and no longer where it was placed.
    Moved,
    /// More than one of ours.
    Double,
    /// An equal message that is not ours to remove.
    Other,
    /// Perhaps placed.
    Doubt,
    /// In doubt by a lease that ran out without an end.
    Lease,
    /// Certainly not placed.
    Missing,
    /// A shared copy that could not be placed, and whose bytes the ledger keeps.
    Kept,
    /// A shared copy that was left to the sender's own mail program, and is due at a time.
    Due,
    /// Another delivery has it.
    Busy,
}

impl Display for Level {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Display for Topic {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One thing found about one copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub level: Level,
    pub topic: Topic,
    pub text: String,
    pub account: String,
    pub mailbox: String,
    pub message_id: Option<String>,
    /// The message's row.
    pub message: i64,
    /// Of the copy that the difference is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<String>,
}

/// The counts of a whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Copies compared.
    pub copies: u64,
    pub infos: u64,
    /// Those of them that another delivery has.
    pub busy: u64,
    pub repaired: u64,
    pub errors: u64,
    /// Placed copies whose second look was taken; by `settle`, what was left for later.
    pub settled: u64,
    /// Copies that could not be compared.
    pub failed: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.copies += more.copies;
        self.infos += more.infos;
        self.busy += more.busy;
        self.repaired += more.repaired;
        self.errors += more.errors;
        self.settled += more.settled;
        self.failed += more.failed;
    }
}

/// What is reported while it goes on.
#[derive(Debug)]
pub enum News {
    Found(Difference),
    /// The mailboxes of an account cannot be used; its other copies are passed over.
    Failed {
        destination: Destination,
        why: StoreError,
    },
    /// How far it has come, and with which account. Not in the accounts' order.
    Progress {
        account: String,
        tally: Tally,
    },
    /// All that was found of this account, and of those before it, has been reported.
    Passed {
        account: String,
    },
}
