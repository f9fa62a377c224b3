//! Configured texts, parsers and what is said over the network, without servers; and the form of
//! the sources.

mod config;
mod filing;
mod fuzz;
mod golden;
mod group_commit;
mod layering;
mod leftovers;
mod lmtp_wire;
mod net;
mod nul;
mod style;
mod telemetry;
