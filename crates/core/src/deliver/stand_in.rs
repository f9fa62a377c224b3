//! A recipient's copy whose mailbox is not there, or not open to us, goes to the account's INBOX.
//! Its own row says so for good, by the receipt [`Receipt::elsewhere`], before INBOX is claimed:
//! the first receipt wins, so no delivery that comes later, or was late, leaves a copy in the
//! mailbox that was meant. In INBOX the row is that of all who mean INBOX: one copy, by the rules
//! of any other. Changes here need the same change in `tests/model/elsewhere.rs`.

use super::request::Means;
use crate::directory::Destination;
use crate::ledger::{
    Claim, Confirmed, CopyFacts, CopyState, LedgerError, OpenTurn, ToConfirm, Turn,
};
use crate::lock_key::Hash;
use crate::store::Receipt;

/// Puts on record that the claimed copy, whose key this is, goes to `other`; returns what its row
/// says then. That is done in its turn, while the epoch is ours: a delivery that was frozen
/// meanwhile must not send it to INBOX beside one that has found the mailbox by now.
///
/// # Errors
/// It is not on record; or that is not known.
pub(super) fn send_to<'a>(
    other: &Destination,
    means: Means<'a>,
    (claim, key): (&Claim, &Hash),
    mut turn: Option<Box<dyn OpenTurn + 'a>>,
) -> Result<CopyState, LedgerError> {
    let instead = Receipt::elsewhere(&other.mailbox);
    let facts = CopyFacts::default();
    let one = ToConfirm { claim: *claim, receipt: &instead, facts, end: None, may_be_lost: false };
    let decided = means.insisting(|until| {
        let open = match turn.take() {
            Some(open) => open,
            None => match means.ledger.take_turn(claim, key, until) {
                Ok(Turn::Ours { turn, .. }) => turn,
                Ok(Turn::Placed(receipt)) => return Ok(CopyState::Placed(receipt)),
                Ok(Turn::EpochGone) => return Ok(CopyState::Busy),
                // Another delivery's turn: that is waited for as everywhere.
                Err(LedgerError::Contended) => return Ok(CopyState::Claimed(*claim)),
                Err(error) => return Err(error),
            },
        };
        Ok(CopyState::Placed(match open.confirm(&one, until)? {
            Confirmed::Recorded => instead.clone(),
            Confirmed::Superseded { by } => by,
        }))
    });
    match decided {
        Err(LedgerError::Contended) => Ok(CopyState::Claimed(*claim)),
        decided => decided,
    }
}
