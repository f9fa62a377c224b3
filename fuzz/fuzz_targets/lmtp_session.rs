//! What a client may say, from its first byte on.

#![no_main]

#[path = "../../tests/lmtp/oracles.rs"]
mod oracles;
#[path = "../../tests/lmtp/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    oracles::session(input);
});
