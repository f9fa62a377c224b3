//! `onedrop lmtp` beside Dovecot's own LMTP server, both with the same Dovecot's mailboxes: the
//! same settings, the same format, the same syncs, Dovecot's server tuned as its imap is. The load
//! is Postfix's smtp-source(1), which speaks LMTP, over connections that it keeps or over one for
//! each message, and gives every message a Message-ID of its own (process, connection, number), so
//! that no two are one message for us. Results are ratios of medians; what was sent must have
//! arrived or nothing is printed.
//!
//! `cargo bench --bench lmtp` runs every case, `cargo bench --bench lmtp -- maildirs via` those
//! two; with `ONEDROP_BENCH=short` the first two take a third of their time. It needs what
//! `tests/run` installs and root; all servers are the test rig's own, in temporary folders.

mod builds;
mod memory;
mod pace;
mod phases;
mod speed;
mod via;

use onedrop_kit::{
    self as support,
    bench::{cases, load, table, world},
};

const CASES: [cases::Case; 10] = [
    ("maildirs", speed::maildirs),
    ("imap", speed::imap),
    ("mariadb", speed::mariadb),
    ("mariadb-imap", speed::mariadb_imap),
    ("pace", pace::run),
    ("phases", phases::run),
    ("memory", memory::run),
    ("via", via::run),
    ("builds-maildirs", builds::maildirs),
    ("builds-imap", builds::imap),
];

fn main() {
    cases::run(&CASES, cases::words());
}
