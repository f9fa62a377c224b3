//! What others write and we read, spoilt at random: nothing panics, nothing hangs, and what each
//! target asserts holds. Every run tries other inputs, for two seconds a target, or 30 in all where
//! CI=true; with `ONEDROP_FUZZ_SECS=600` the targets share ten minutes, `ONEDROP_FUZZ_SEED=7`
//! gives the same inputs in the same order. A failing input is made small and kept as
//! `fixtures/fuzz/TARGET/found-...`. All that is kept there runs first.
//!
//! A new target is a file `tests/values/fuzz/NAME.rs` with a `pub const TARGET: Target` (see
//! `fuzz/harness.rs`), and its name in the two lists below. With a fuzzer that sees what the code
//! does with its input (cargo-fuzz, which needs a nightly compiler) the same checks run by a file
//! in `fuzz/fuzz_targets`: `cargo +nightly fuzz run identity fuzz/corpus/identity fixtures/mail`.

pub mod author;
pub mod dovecot;
pub mod facts;
pub mod harness;
pub mod identity;
pub mod imap;
pub mod lmtp_data;
pub mod lmtp_reply;
pub mod lmtp_session;
pub mod message;
pub mod postfix;
pub mod xforward;

/// A test for each target, and an equal share of the time.
macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        const TARGETS: usize = [$(stringify!($name)),*].len();
        $(
            #[test]
            fn $name() {
                harness::run(stringify!($name), &$name::TARGET, TARGETS);
            }
        )*
    };
}

targets![
    author,
    dovecot,
    facts,
    identity,
    imap,
    lmtp_data,
    lmtp_reply,
    lmtp_session,
    postfix,
    xforward
];
