//! What may follow DATA, or stand in the chunks of BDAT.

#![no_main]

#[path = "../../tests/lmtp/oracles.rs"]
mod oracles;
#[path = "../../tests/lmtp/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|input: &[u8]| oracles::data(input));
