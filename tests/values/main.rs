//! Identity, hashes, parsers, addresses and configured texts: pure functions, without servers; and
//! the form of the sources.

mod config;
mod directory;
mod fuzz;
mod golden;
mod layering;
mod message;
mod sender;
mod style;
