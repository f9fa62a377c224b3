//! The network, one of each: the socket with a deadline and the listener that makes it, the buffer
//! that reads lines, TLS as a client, xtext, Postgres' URL, and what counts as this machine.
//! Adapters and servers share them; what is said over them is theirs.

pub mod input;
pub mod listener;
mod loopback;
pub mod postgres_url;
pub mod socket;
pub mod tls;
pub mod xtext;

pub use loopback::{is_loopback, is_loopback_address};
