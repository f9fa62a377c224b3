//! What the benchmarks share, and those tests that measure the same.

pub mod cases;
pub mod fill;
pub mod load;
pub mod measured;
pub mod process;
pub mod scale;
pub mod table;
pub mod world;
