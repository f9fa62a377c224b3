//! What `onedrop settle` asks of a ledger: shared copies (Sent) that are due, those whose bytes are
//! kept because they could not be placed, and those that it watches; recipients' own that a lease
//! has left in doubt. A shared copy's row moves like this
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

/// What `onedrop settle` asks of a ledger.
pub trait Settling: Send + Sync {
    /// The next copies to settle, at most `limit`, ordered by account and then by row, those after
    /// `after`: not placed and due by now, or not placed, with their bytes
    /// [kept](super::Ledger::keep). Or, `watched`: those that were due, and are placed, whose next
    /// look has come; at first that is when they were due. One that the sender's own copy stands
    /// for is among them only if one of ours may come to stand: an attempt ended in doubt.
    fn copies_to_settle(
        &self,
        watched: bool,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError>;

    /// The next copies in doubt, at most `limit`, ordered by account and then by row, those after
    /// `after`: recipients' own, of messages recorded within
    /// [`SETTLED_WITHIN`](super::SETTLED_WITHIN), whose lease has run out without a receipt on
    /// record. One may have been there, and lost ([`may_be_lost`](super::claim::may_be_lost)).
    fn doubts_to_settle(
        &self,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError>;

    /// Puts on record, durably, that the next look at a watched copy comes `after` now; `None`: it
    /// is watched no longer. Its second look ([`Audit::settle`](super::Audit::settle)) is still to
    /// come then, if it was; where the sender's own stands for it none is.
    fn look_again(
        &self,
        copy: &CopyOnRecord,
        after: Option<Duration>,
        until: Instant,
    ) -> Result<(), LedgerError>;

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

    /// Whether another message with the same Message-ID has a copy on record that may stand in the
    /// same mailbox of the account: any but one in INBOX, as a mailbox has several names (`\\Sent`,
    /// a server's prefix), and a sender may choose one (`directory.detail`).
    fn has_namesake(&self, copy: &CopyOnRecord, until: Instant) -> Result<bool, LedgerError>;
}
