//! What the ledger records of a message.

#![no_main]
#![allow(dead_code, reason = "the harness of the tests is not used here")]

#[path = "../../tests/values/fuzz"]
mod fuzz {
    pub mod facts;
    pub mod harness;
    pub mod message;
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::facts::check(input));
