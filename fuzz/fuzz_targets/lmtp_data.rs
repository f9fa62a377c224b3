//! What may follow DATA, or stand in the chunks of BDAT.

#![no_main]
#![allow(dead_code, reason = "the harness of the tests is not used here")]

#[path = "../../tests/values/fuzz"]
mod fuzz {
    pub mod harness;
    pub mod lmtp_data;
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::lmtp_data::check(input));
