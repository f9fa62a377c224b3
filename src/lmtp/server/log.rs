//! What the log says of a delivery.

use super::delivery::MessageDelivery;
use super::protocol::Transaction;
use crate::deliver::Ending;
use crate::delivery_log::DeliveryLogRecord;
use crate::outcome::Outcome;

/// That a recipient was refused before there was a delivery.
pub fn refused(transaction: &Transaction, recipient: &str, outcome: &Outcome) {
    let (queue_id, sender) = (transaction.queue_id.as_str(), transaction.sender.as_str());
    DeliveryLogRecord { queue_id, sender, recipient, ..DeliveryLogRecord::default() }.log(outcome);
}

/// How it ended for one recipient. The text names account, mailbox and uid of each copy, the fields
/// those of the recipient's own.
pub fn ended(delivery: &MessageDelivery, recipient: usize, ending: &Ending) {
    let envelope = &delivery.envelope;
    let ended = DeliveryLogRecord {
        queue_id: &envelope.queue_id,
        sender: &envelope.sender,
        recipient: &envelope.recipients[recipient],
        message_id: delivery.message.identity().message_id.as_deref(),
        account: delivery.accounts[recipient].as_deref(),
        own: ending.own.as_ref(),
        collision: ending.collision,
        took: Some(delivery.took()),
        phases: Some(&ending.phases),
        by: "",
    };
    ended.log(&ending.outcome);
}
