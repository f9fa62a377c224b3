//! Identity, hashes, parsers, addresses, configured texts and tools, without servers; and the form
//! of the sources.

mod clock;
mod config;
mod directory;
mod filing;
mod fuzz;
mod golden;
mod group_commit;
mod keys;
mod layering;
mod lmtp_wire;
mod login;
mod message;
mod net;
mod outcome;
mod sender;
mod style;
mod telemetry;
mod text;
mod time;
