//! What the tests of several crates share and no server is needed for.

pub mod chance;
pub mod ports;
