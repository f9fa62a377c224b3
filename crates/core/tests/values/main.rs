//! Identity, hashes, addresses, clocks and tools.

mod clock;
mod directory;
mod keys;
mod login;
mod message;
mod outcome;
mod sender;
mod text;
mod time;
