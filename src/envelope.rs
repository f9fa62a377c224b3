//! What Postfix says about a message besides its bytes: envelope sender and recipients, queue id,
//! authenticated user. Not From and To, which are header fields that anyone can write.

/// The envelope of one delivery.
#[derive(Debug, Clone, Default)]
pub struct Envelope {
    /// Empty for the null sender.
    pub sender: String,
    pub recipients: Vec<String>,
    /// Empty when unknown; Postfix re-uses short queue ids, so it names nothing by itself.
    pub queue_id: String,
    /// The SASL login name of the client that submitted the message; empty when there was none.
    pub sasl_username: String,
}
