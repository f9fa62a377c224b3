//! What is read of a message: its identity, its copies, its fields and its facts.

use onedrop_core::message::{DedupBy, Identity, Message};

mod copies;
mod date;
mod facts;
mod fields;
mod head;
mod identity;
mod received;

fn message(bytes: &[u8]) -> Message {
    Message::new(bytes.to_vec(), DedupBy::Content)
}

fn identity(text: impl AsRef<[u8]>) -> Identity {
    Identity::of(text.as_ref(), DedupBy::Content)
}
