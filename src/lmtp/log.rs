//! What the log says of a delivery.

use std::time::Duration;

use super::delivery::{Ending, Parcel};
use super::protocol::Transaction;
use crate::outcome::Outcome;

/// That a recipient was refused before there was a delivery.
pub fn refused(transaction: &Transaction, recipient: &str, outcome: &Outcome) {
    let (queue_id, sender) = (transaction.queue_id.as_str(), transaction.sender.as_str());
    tracing::warn!(
        queue_id,
        recipient,
        sender,
        outcome = outcome.name(),
        status = %outcome.status(),
        "{}",
        outcome.text()
    );
}

/// How it ended for one recipient. The text names account, mailbox and uid of each copy, the fields those of the
/// recipient's own.
pub fn ended(parcel: &Parcel, recipient: usize, ending: &Ending) {
    let envelope = parcel.envelope();
    let message_id = parcel.message().identity().message_id.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    // To the microsecond.
    let millis = |took: Duration| (took.as_secs_f64() * 1e6).round() / 1e3;
    let (phases, outcome, own) = (&ending.phases, &ending.outcome, ending.own.as_ref());
    let (_, uid, file) = own.map(|own| own.receipt.columns()).unwrap_or_default();
    tracing::info!(
        message_id = %message_id.escape_debug(),
        queue_id = envelope.queue_id,
        recipient = envelope.recipients[recipient],
        sender = envelope.sender,
        account = parcel.account(recipient),
        mailbox = own.map(|own| own.destination.mailbox.as_str()),
        uid,
        file,
        how = own.map(|own| own.how.name()),
        outcome = outcome.name(),
        status = %outcome.status(),
        collision = ending.collision,
        milliseconds = parcel.took().as_millis() as u64,
        lock_ms = millis(phases.lock),
        record_ms = millis(phases.record),
        append_ms = millis(phases.append),
        commit_ms = millis(phases.commit),
        "{}",
        outcome.text()
    );
}
