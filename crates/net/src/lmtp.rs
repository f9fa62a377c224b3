//! The LMTP protocol as bytes (RFC 2033, RFC 5321), for both ends: commands and paths, replies,
//! a message as what follows DATA, XFORWARD's attributes; and where a server is. No clock, and of
//! sockets nothing but what can be read.

pub mod command;
pub mod data;
pub mod path;
mod place;
pub mod read;
pub mod reply;
pub mod server_reply;
pub mod write;
pub mod xforward;

pub use place::LmtpPlace;
pub use reply::reply;
pub use server_reply::ServerReply;

/// Bytes of a command line with its line end, at most: longer ones are refused. What Postfix reads
/// as an address has 2048 bytes at most (line_length_limit in postconf(5)), twice as many where
/// each is quoted; our own AUTH may be three times as long as what it says.
pub const LONGEST_LINE: usize = 16 * 1024;
