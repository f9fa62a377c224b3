//! A sender's own copy (Sent) keeps no mail from a recipient. What cannot be placed now, and what
//! is left to the sender's own mail program for a while, is left for later: its bytes go on record,
//! and `onedrop settle` or `onedrop verify --repair` places it. Only where the ledger does not take
//! them do the recipients' deliveries wait for the copy.

use super::request::{Delivery, Means, note};
use super::{CopyEnd, How, Left, Placed};
use crate::directory::Destination;
use crate::ledger::Due;
use crate::store::StoreError;

/// Why a shared copy is kept that is left to `onedrop settle`.
const FOR_THE_SENDER: &str = "the sender's mail program may save its own";

/// Puts the bytes of a shared copy on record that the store did not take. `None`: another delivery
/// has placed it by now. Step `keep` of the model.
pub(super) fn keep(
    delivery: &Delivery<'_>,
    destination: &Destination,
    error: &StoreError,
) -> Option<CopyEnd> {
    let Means { ledger, .. } = delivery.means;
    let (message, bytes) = (&delivery.recorded.message, delivery.job.message.shared_copy());
    let why = error.to_string();
    match delivery.means.insisting(|until| ledger.keep(message, bytes, &why, until)) {
        Ok(true) => Some(CopyEnd::Left(Left::Kept { destination: destination.clone(), why })),
        Ok(false) => None,
        Err(error) => Some(error.into()),
    }
}

/// Leaves a shared copy to `onedrop settle`: its bytes and its time go on record. Step
/// `keep_until_due` of the model.
pub(super) fn leave_until_due(delivery: &Delivery<'_>, destination: &Destination) -> CopyEnd {
    let Means { ledger, policy, .. } = delivery.means;
    let (message, after) = (&delivery.recorded.message, policy.sent_after);
    let kept = (delivery.job.message.shared_copy(), FOR_THE_SENDER);
    let left = delivery
        .means
        .insisting(|until| ledger.keep_until_due(message, destination, kept, after, until));
    let destination = destination.clone();
    match left {
        Ok(Due::At(at)) => CopyEnd::Left(Left::Due { destination, at }),
        Ok(Due::Placed(receipt)) => {
            let how = How::AlreadyThere;
            CopyEnd::Placed(Placed { destination, receipt, how, instead_of: None })
        }
        Err(error) => error.into(),
    }
}

/// A shared copy that another delivery has, and whose bytes are on record, need not be waited for:
/// that one failed, and its lease is left over.
pub(super) fn is_kept(delivery: &Delivery<'_>, destination: &Destination) -> Option<Left> {
    if !destination.shared {
        return None;
    }
    let Means { ledger, deadline, .. } = delivery.means;
    let kept = ledger.kept(&delivery.recorded.message, deadline.end()).unwrap_or_else(|error| {
        note(Err(error));
        None
    });
    kept.map(|why| Left::Kept { destination: destination.clone(), why })
}
