//! The door for Postfix's lmtp(8): RFC 2033. Read `protocol` (what is said), then `data` (what a message's bytes are).

mod command;
pub mod data;
pub mod protocol;
mod reply;
mod xforward;
