//! What `onedrop settle` asks of a ledger: shared copies (Sent) that are due, those whose bytes are
//! kept because they could not be placed, and those that it watches. A copy's row moves like this
//! (beside what `port` says): none or free --[`Ledger::keep_until_due`]--> due --claim with
//! [`LeaseTerms::due`]--> leased --confirm--> placed, and watched for a time; leased, or placed and
//! watched --[`Settling::leave_to_sender`]--> placed by the sender's own mail program.
//!
//! [`Ledger::keep_until_due`]: super::Ledger::keep_until_due
//! [`LeaseTerms::due`]: super::LeaseTerms::due

use std::time::{Duration, Instant, SystemTime};

use super::{Claim, CopyOnRecord, LedgerError};
use crate::receipt::Receipt;

/// Where a copy stands that a delivery leaves to `onedrop settle`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// Its bytes are kept, and from then on, by the ledger's clock in whole seconds, it is due.
    At(SystemTime),
    Placed(Receipt),
}

/// See the module.
pub trait Settling: Send + Sync {
    /// The next copies to settle, at most `limit`, ordered by account and then by row, from behind
    /// `after`: not placed and due by now; not placed, with their bytes
    /// [kept](super::Ledger::keep); and those that were due and were placed less than `watch` ago,
    /// where a copy of ours stands, or may come to stand: an attempt ended in doubt.
    fn copies_to_settle(
        &self,
        watch: Duration,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError>;

    /// Puts on record, durably, that the sender's own copy, `receipt`, stands for ours: the copy is
    /// placed, needs no second look, and what was kept goes as [`confirm`](super::Ledger::confirm)
    /// says. False, and nothing changed, where the row's epoch is not the claim's any more, or its
    /// receipt not `was` (`None`: it is not placed). Made again after a lost answer: true.
    fn leave_to_sender(
        &self,
        claim: &Claim,
        was: Option<&Receipt>,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<bool, LedgerError>;

    /// Whether another message with the same Message-ID has a copy on record in the same mailbox.
    fn has_namesake(&self, copy: &CopyOnRecord, until: Instant) -> Result<bool, LedgerError>;
}
