//! Identity, hashes and parsers: pure functions, without servers.

mod fuzz;
mod golden;
mod layering;
