//! What `onedrop check` reads of Dovecot.

#![no_main]
#![allow(dead_code, reason = "the harness of the tests is not used here")]

#[path = "../../tests/values/fuzz"]
mod fuzz {
    pub mod dovecot;
    pub mod harness;
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::dovecot::check(input));
