//! A copy as it is on record, to be compared with its mailbox (`verify.rs`). Values only.

use std::time::{Duration, SystemTime};

use super::RandomValue;
use crate::directory::Destination;
use crate::message::Identity;
use crate::receipt::Receipt;

/// Which copies to compare.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    /// Copies of messages that were recorded at or after this; copies not placed whose last lease
    /// ended at or after it; and, however old, placed copies that still need their second look.
    pub since: SystemTime,
    /// Of this account only.
    pub account: Option<&'a str>,
}

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
    /// As received.
    pub size_bytes: u64,
    pub recorded_at: SystemTime,
    pub destination: Destination,
    /// How often the copy was leased.
    pub epoch: i64,
    /// `host:pid` of the last lease.
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
