//! `onedrop lmtp` that hands over to a Dovecot's LMTP server (`store.lmtp`), beside such a server
//! alone: users' Sieve filters run at both, with the same mailboxes, format and syncs, and both
//! servers are tuned alike. The one that Onedrop hands over to has the shipped files, with the
//! guard. Two are alone: both deliver to one account as often at a time as is asked of them, and
//! one of them drops duplicates by their Message-ID, as the guard does by our value. The load and
//! the way of measuring are those of the benchmark `lmtp`.
//!
//! `cargo bench --bench handoff` runs every case, `cargo bench --bench handoff -- look` one; with
//! `ONEDROP_BENCH=short` they take a third of the time. It needs what `tests/run` installs and
//! root; all servers are the test rig's own, in temporary folders.

mod look;
mod servers;
mod speed;

use onedrop_kit::{
    self as support,
    bench::{cases, load, table, world},
};

const CASES: [cases::Case; 3] = [
    ("one-mailbox", speed::one_mailbox),
    ("many-mailboxes", speed::many_mailboxes),
    ("look", look::run),
];

fn main() {
    cases::run(&CASES, cases::words());
}
