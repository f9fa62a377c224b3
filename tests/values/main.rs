//! Identity, hashes and parsers: pure functions, without servers; and the form of the sources.

mod fuzz;
mod golden;
mod layering;
mod style;
