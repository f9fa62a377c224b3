//! The LMTP protocol as bytes (RFC 2033, RFC 5321), for both ends: commands and paths, replies,
//! a message as what follows DATA, XFORWARD's attributes. No sockets and no clock.

pub(super) mod command;
pub mod data;
mod path;
pub(super) mod reply;
pub(super) mod write;
pub(super) mod xforward;

pub use reply::reply;
pub use xforward::Client;

/// Bytes of a command line with its line end, at most: longer ones are refused.
pub const LONGEST_LINE: usize = 4096;
