//! A copy as it is on record, to be compared with its mailbox (`verify.rs`). Values only.

use std::time::{Duration, SystemTime};

use super::{MessageKey, RandomValue};
use crate::directory::Destination;
use crate::message::Identity;
use crate::receipt::Receipt;

/// For how long after it wrote a copy `onedrop settle` looks whether the sender's mail program has
/// saved its own beside it.
pub const WATCH: Duration = Duration::from_secs(48 * 3600);

/// Which copies to compare.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Copies of messages that were recorded at or after this; copies not placed whose last lease
    /// ended at or after it; and, however old, placed copies that still need their second look, and
    /// shared ones whose bytes are [kept](super::Ledger::keep).
    pub since: SystemTime,
    /// Also those that one lease placed, without a doubt before it: there can be no second one.
    pub all: bool,
}

/// How much earlier than [`Window::since`] the message of a copy that was leased since then may
/// have been recorded, where this is the copy's first lease.
pub const CLAIMED_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// How old a message may be of which `onedrop settle` looks for a copy in doubt. An older doubt is
/// for `onedrop verify`.
pub const SETTLED_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// A copy's row, with what of its message's row is needed to find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyOnRecord {
    /// The copy's row.
    pub copy: i64,
    /// Its random value, as in [`Claim`](super::Claim).
    pub value: RandomValue,
    /// The message's row.
    pub message: i64,
    pub identity: Identity,
    /// The size as received.
    pub size_bytes: u64,
    pub recorded_at: SystemTime,
    pub destination: Destination,
    /// How often the copy was leased.
    pub epoch: i64,
    /// `host:pid` of the last lease; empty once it is placed.
    pub owner: String,
    pub standing: Standing,
    /// A second look was taken after the last lease, and found one copy at most.
    pub settled: bool,
    /// More than one delivery may have written it: it was leased more than once, or a live lease
    /// was joined.
    pub may_be_double: bool,
    /// How long the last lease is or was: until it has passed, its holder may still write.
    pub lease: Duration,
    /// Why it could not be placed, of a shared copy whose bytes are [kept](super::Ledger::keep).
    pub kept: Option<String>,
    /// From when on it is or was due, if it was left to `onedrop settle`.
    pub due: Option<DueTime>,
    /// The receipt is that of the copy which the sender's own mail program saved.
    pub by_sender: bool,
    /// See [`CopyFacts`](super::CopyFacts).
    pub found_by_look: bool,
    /// See [`Claim`](super::Claim).
    pub looks_back: bool,
}

impl CopyOnRecord {
    /// What names its message.
    pub fn message_key(&self) -> MessageKey {
        MessageKey::new(self.message, &self.identity)
    }
}

/// When a copy is due, by the ledger's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueTime {
    /// In whole seconds.
    pub at: SystemTime,
    /// That time has come.
    pub has_come: bool,
}

impl CopyOnRecord {
    /// Whether `onedrop settle` alone does anything about it: it is due at some time, or was and is
    /// watched, or the sender's own mail program saved it.
    pub fn is_left_to_settle(&self) -> bool {
        let is_watched = match self.standing {
            Standing::Placed { ago, .. } => ago < WATCH,
            Standing::Leased | Standing::InDoubt { .. } | Standing::Free => true,
        };
        self.by_sender || self.due.is_some() && is_watched
    }
}

/// Where a copy stands, by the ledger's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    Placed {
        receipt: Receipt,
        /// How long ago.
        ago: Duration,
    },
    /// By a live lease.
    Leased,
    /// It may stand in its mailbox.
    InDoubt {
        /// A lease ran out without an end; else the doubt is that of a lease before one that was
        /// given back.
        lease_left_over: bool,
    },
    /// Certainly not in its mailbox.
    Free,
}
