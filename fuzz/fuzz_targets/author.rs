//! Whose Sent a message belongs in.

#![no_main]
#![allow(dead_code, reason = "the harness of the tests is not used here")]

#[path = "../../tests/values/fuzz"]
mod fuzz {
    pub mod author;
    pub mod harness;
    pub mod message;
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::author::check(input));
