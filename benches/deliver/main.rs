//! How long a delivery takes, beside the programs that do the same work: whole processes, from
//! their start to their end, each with a new message of 4 KB on standard input, in turn with the
//! peer so that a busy machine slows down both. Results are ratios of medians. Nothing is asserted:
//! a target that is missed is printed as missed.
//!
//! `cargo bench --bench deliver` runs every case, `cargo bench --bench deliver -- maildir imap`
//! those two. It needs what `tests/run` installs and root; all servers are the test rig's own, in
//! temporary folders.

mod growth;
mod large;
mod phases;
mod speed;

use onedrop_kit::{
    self as support,
    bench::{cases, process, table, world},
};

const CASES: [cases::Case; 8] = [
    ("maildir", speed::maildir),
    ("imap", speed::imap),
    ("mariadb", speed::mariadb),
    ("growth", growth::run),
    ("first", growth::first_hour),
    ("large", large::run),
    ("phases", phases::run),
    ("builds", speed::builds),
];

fn main() {
    let wanted = cases::words();
    match wanted.as_slice() {
        [mode, out, program @ ..] if mode == process::WATCH => process::watch(out, program),
        _ => cases::run(&CASES, wanted),
    }
}
