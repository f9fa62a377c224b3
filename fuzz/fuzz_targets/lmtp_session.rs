//! What a client of the LMTP server says.

#![no_main]
#![allow(dead_code, reason = "the harness of the tests is not used here")]

#[path = "../../tests/values/fuzz"]
mod fuzz {
    pub mod harness;
    pub mod lmtp_data;
    pub mod lmtp_session;
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::lmtp_session::check(input));
