//! What Postfix states about a message besides its bytes: envelope sender and recipients, queue id
//! and authenticated user. The header fields From and To are something else: anyone can write them.

/// The envelope of one delivery.
#[derive(Debug, Clone, Default)]
pub struct Envelope {
    /// Empty for the null sender.
    pub sender: String,
    pub recipients: Vec<String>,
    /// Empty if unknown. Not a key: Postfix reuses short queue ids.
    pub queue_id: String,
    /// The SASL login name of the submitting client; empty if it did not log in.
    pub sasl_username: String,
}
