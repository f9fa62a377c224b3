//! The rules of a copy: who may lease it, whose turn it is, which receipt wins. They are pure
//! functions of the copy's row and of what is asked; the time is in the row, which says how much of
//! a lease is left. A ledger locks the row, reads it, asks here, and writes the [`Change`] where
//! value and epoch are still those that it read. Where it decides in a statement of its own, that
//! statement must do what is written here: a table test compares the two for every state of a row
//! and every ask.
//!
//! The states of a row, by its columns. Every lease sets `in_doubt`, so that a holder that dies
//! leaves the doubt; `prior_doubt` keeps what the lease found.
//!
//! | state | receipt | lease | `in_doubt` |
//! |---|---|---|---|
//! | free | no | none | no |
//! | free, in doubt | no | none, or it has run out | yes |
//! | leased | no | lives | yes; `prior_doubt`: the holder looks before it writes |
//! | placed | yes | none | no |
//!
//! A copy that is not placed may also be *due* with its bytes kept: then `onedrop settle` alone
//! leases it. The moves:
//!
//! | from | ask | to | epoch |
//! |---|---|---|---|
//! | no row | [`claim`] | leased; in doubt if its message looks back | 1 |
//! | no row | [`keep_until_due`] | free, due; in doubt if its message looks back | 0 |
//! | free | [`claim`] | leased, as much in doubt as it was | + 1 |
//! | leased by the same attempt | [`claim`] | as it was, for longer | stays |
//! | leased by another | [`claim`] that joins | leased, in doubt | stays |
//! | leased by another, or due | any other [`claim`] | as it was: busy | stays |
//! | leased | its time runs out | free, in doubt | stays |
//! | leased in this epoch | [`release`] | free, as much in doubt as before | stays |
//! | not placed | [`confirm`], in whatever epoch | placed | stays |
//! | not placed | [`keep_until_due`] | as it was, and due | stays |
//! | placed | [`confirm`] of another receipt | placed, and a second copy may stand | + 1 |
//! | any, by its former value | [`confirm`] | as it was, and a second copy may stand | + 1 |
//! | any that no delivery may write | [`forget`] | free, in doubt, with another value | stays |
//! | placed | the ledger's server crashes, [`may_be_lost`] | leased, as it was before | stays |
//!
//! [`turn`] changes nothing. Two more write a row, where it is as they have read it:
//! [`Audit::settle`](super::Audit::settle) a placed one, and
//! [`Settling::leave_to_sender`](super::Settling::leave_to_sender) one that is placed, or leased to
//! who asks, which it places.

use std::time::Duration;

use super::{Claim, Confirmed, CopyState, LeaseTerms, LedgerError, RandomValue};
use crate::receipt::Receipt;

#[cfg(test)]
mod tests;

/// What the rules ask of a copy's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Claims name the row by it. It changes when the copy is forgotten.
    pub value: RandomValue,
    /// How often the right to write this copy was given out; also raised where a second copy may
    /// stand, so that what was read before settles nothing.
    pub epoch: i64,
    /// Several recipients have this copy (Sent).
    pub shared: bool,
    /// None was ever taken, or the last one was given back or ended with a receipt.
    pub lease: Option<Lease>,
    /// The copy may be in its mailbox without a receipt on record.
    pub in_doubt: bool,
    /// `in_doubt` as the lease found it.
    pub prior_doubt: bool,
    /// It may be older than its row.
    pub looks_back: bool,
    pub receipt: Option<Receipt>,
    /// The epoch of the claim that confirmed. While the copy is not placed: the last epoch up to
    /// which every lease was given back.
    pub placed_epoch: i64,
    /// A look found one copy at most, and nothing has been written since.
    pub settled: bool,
    /// In what time `onedrop settle` has the copy; zero: it has it already. Stays when it is
    /// placed.
    pub due_in: Option<Duration>,
    /// The bytes of the message's shared copies are kept.
    pub kept: bool,
}

/// The right to write a copy for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The attempt's; `None`: not on record.
    pub by: Option<RandomValue>,
    /// From its beginning to its end.
    pub length: Duration,
    /// By the clock that leases count by; zero: it has run out.
    pub left: Duration,
}

/// What is to be written of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The row from now on.
    pub row: Row,
    /// The copy has to be looked at again after this time, or before where that is on record.
    pub look_after: Option<Duration>,
    /// The bytes that are kept of the message go, unless another shared copy of it is not placed.
    pub frees_kept: bool,
}

/// What [`claim`] is asked.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The attempt's value: a call that is made again finds its own lease by it.
    pub by: RandomValue,
    /// The same call has named this mailbox before. It is leased once.
    pub again: bool,
    pub shared: bool,
    pub terms: LeaseTerms,
}

/// What [`claim`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    Placed(Receipt),
    /// Leased to who asked: [`Row::claim`] of the changed row.
    Leased,
    /// Leased by a live other, or due.
    Busy,
}

/// Like [`Turn`](super::Turn), without the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnState {
    Ours { in_doubt: bool },
    Placed(Receipt),
    EpochGone,
}

/// What [`keep_until_due`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DueIn {
    Placed(Receipt),
    /// `onedrop settle` has it after this time.
    After(Duration),
}

/// Leases a copy, joins a live lease if the terms allow it, or finds the attempt's own one.
pub fn claim(row: &Row, wanted: &Wanted) -> (Claimed, Option<Change>) {
    let Wanted { by, again, shared, terms } = *wanted;
    if let Some(receipt) = &row.receipt {
        return (Claimed::Placed(receipt.clone()), None);
    }
    // Due without its bytes is nothing that `settle` could write.
    if row.due_in.is_some() && row.kept && !terms.due {
        return (Claimed::Busy, None);
    }
    let mut next = row.clone();
    let mut lease = Lease { by: Some(by), length: terms.lease, left: terms.lease };
    match row.live_lease() {
        Some(live) => {
            let is_own = live.by == Some(by) && !again;
            if !is_own && !terms.join {
                return (Claimed::Busy, None);
            }
            // Whoever has it may have written.
            next.prior_doubt |= !is_own;
            lease.length = live.length.max(lease.length);
            lease.left = live.left.max(lease.left);
        }
        None => {
            next.epoch += 1;
            next.prior_doubt = row.in_doubt;
        }
    }
    next.lease = Some(lease);
    next.in_doubt = true;
    next.shared |= shared;
    let may_be_second = next.epoch > 1 || next.prior_doubt;
    let look_after = may_be_second.then_some(terms.lease);
    (Claimed::Leased, Some(Change { row: next, look_after, frees_kept: false }))
}

/// What the row says once the copy's lock is held. Whether the lease has run out is not asked: its
/// holder watches its own clock.
///
/// # Errors
/// [`LedgerError::Forgotten`].
pub fn turn(row: Option<&Row>, claim: &Claim) -> Result<TurnState, LedgerError> {
    let row = row.filter(|row| row.value == claim.value).ok_or(LedgerError::Forgotten)?;
    Ok(match &row.receipt {
        Some(receipt) => TurnState::Placed(receipt.clone()),
        None if row.epoch != claim.epoch => TurnState::EpochGone,
        // The claim's doubt, or that of another who has joined the lease since.
        None => TurnState::Ours { in_doubt: row.prior_doubt },
    })
}

/// The first receipt wins, whatever its epoch.
///
/// # Errors
/// [`LedgerError::Forgotten`], also with a change.
pub fn confirm(
    row: Option<&Row>,
    claim: &Claim,
    receipt: &Receipt,
) -> (Result<Confirmed, LedgerError>, Option<Change>) {
    let Some(row) = row else { return (Err(LedgerError::Forgotten), None) };
    if row.value != claim.value {
        // Forgotten since: what was written under the former value may be a second copy.
        return (Err(LedgerError::Forgotten), Some(row.with_second_copy()));
    }
    match &row.receipt {
        None => {
            let placed = Row {
                receipt: Some(receipt.clone()),
                placed_epoch: claim.epoch,
                lease: None,
                in_doubt: false,
                ..row.clone()
            };
            let change = Change { row: placed, look_after: None, frees_kept: row.shared };
            (Ok(Confirmed::Recorded), Some(change))
        }
        Some(by) if !row.is_receipt_of(claim, by, receipt) => {
            (Ok(Confirmed::Superseded { by: by.clone() }), Some(row.with_second_copy()))
        }
        Some(_) => (Ok(Confirmed::Recorded), None),
    }
}

/// Whether a crash of the ledger's server may undo the receipt that a copy is given now. The
/// record and the copy are on their disks by then, so the row is in doubt again, and a look finds
/// the copy.
///
/// Something may be taken out of a mailbox because of a receipt where a second delivery had the
/// right to write the copy, and what is kept of a message goes with the receipt of its last shared
/// copy: such a receipt must last.
pub fn may_be_lost(row: &Row) -> bool {
    let Row { epoch, prior_doubt, shared, due_in, receipt, .. } = row;
    receipt.is_none() && *epoch == 1 && !prior_doubt && !shared && due_in.is_none()
}

/// Gives back a lease under which nothing was written.
pub fn release(row: Option<&Row>, claim: &Claim) -> Option<Change> {
    let is_ours =
        |row: &&Row| row.value == claim.value && row.epoch == claim.epoch && row.receipt.is_none();
    let row = row.filter(is_ours)?;
    let were_all_given_back = row.placed_epoch == row.epoch - 1;
    let free = Row {
        lease: None,
        in_doubt: row.prior_doubt,
        placed_epoch: if were_all_given_back { row.epoch } else { row.placed_epoch },
        ..row.clone()
    };
    Some(Change { row: free, look_after: None, frees_kept: false })
}

/// Makes a copy due `after` now, if it is not due already, and its message's bytes kept. A lease
/// and a doubt stay.
pub fn keep_until_due(row: &Row, after: Duration) -> (DueIn, Option<Change>) {
    if let Some(receipt) = &row.receipt {
        return (DueIn::Placed(receipt.clone()), None);
    }
    if let Some(due_in) = row.due_in.filter(|_| row.kept) {
        return (DueIn::After(due_in), None);
    }
    let due_in = row.due_in.unwrap_or(after);
    let due = Row { shared: true, due_in: Some(due_in), kept: true, ..row.clone() };
    (DueIn::After(due_in), Some(Change { row: due, look_after: Some(due_in), frees_kept: false }))
}

/// Free, in doubt, and no claim of before names it.
pub fn forget(row: &Row, value: RandomValue) -> Change {
    let row = Row {
        value,
        lease: None,
        in_doubt: true,
        prior_doubt: true,
        looks_back: true,
        receipt: None,
        placed_epoch: 0,
        settled: false,
        // What `settle` has not written yet stays due.
        due_in: row.due_in.filter(|_| row.receipt.is_none()),
        ..row.clone()
    };
    Change { row, look_after: None, frees_kept: false }
}

impl Row {
    /// A copy that was never leased, and is not on record yet; `looks_back` as its message.
    pub fn new(looks_back: bool) -> Row {
        Row {
            value: RandomValue::default(),
            epoch: 0,
            shared: false,
            lease: None,
            in_doubt: looks_back,
            prior_doubt: looks_back,
            looks_back,
            receipt: None,
            placed_epoch: 0,
            settled: false,
            due_in: None,
            kept: false,
        }
    }

    /// What its holder has of a row that is leased; `copy` is the row's number.
    pub fn claim(&self, copy: i64) -> Claim {
        let Row { value, epoch, prior_doubt: in_doubt, looks_back, .. } = *self;
        Claim { copy, value, epoch, in_doubt, looks_back }
    }

    /// Whether the bytes of its message may be kept for it.
    pub fn wants_bytes(&self) -> bool {
        self.shared && self.receipt.is_none()
    }

    fn live_lease(&self) -> Option<Lease> {
        self.lease.filter(|lease| !lease.left.is_zero())
    }

    /// Copies without a name are one only where no other claim can have placed one.
    fn is_receipt_of(&self, claim: &Claim, on_record: &Receipt, receipt: &Receipt) -> bool {
        on_record == receipt && (*receipt != Receipt::UNNAMED || self.placed_epoch == claim.epoch)
    }

    /// A look has to settle that, and one that has read the row before this settles nothing.
    fn with_second_copy(&self) -> Change {
        let row = Row { epoch: self.epoch + 1, settled: false, ..self.clone() };
        Change { row, look_after: Some(Duration::ZERO), frees_kept: false }
    }
}

impl Claimed {
    /// What the port says of it; `claim` is that of the changed row.
    pub fn state(self, claim: Claim) -> CopyState {
        match self {
            Claimed::Placed(receipt) => CopyState::Placed(receipt),
            Claimed::Leased => CopyState::Claimed(claim),
            Claimed::Busy => CopyState::Busy,
        }
    }
}
