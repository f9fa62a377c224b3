//! What a named lock costs: `with-lock` beside flock(1), both with nothing to do, as whole
//! processes in turn; claims and releases in one session with Postgres; how soon a waiter's command
//! starts after a release; what a hundred waiters cost Postgres, and how long they wait. Beside
//! them stand what a sync of the same disk and a bare query took in the same run. Nothing is
//! asserted: a target that is missed is printed as missed.
//!
//! `cargo bench --bench locks` runs every case, `cargo bench --bench locks -- processes` that one.
//! It needs what `tests/run` installs and root; all servers are the test rig's own, in temporary
//! folders.

mod place;
mod processes;
mod session;
mod waiters;

use onedrop_kit::{
    self as support,
    bench::{cases, process, table},
};

const CASES: [cases::Case; 5] = [
    ("processes", processes::run),
    ("session", session::run),
    ("release", waiters::release),
    ("waiters", waiters::many),
    ("turns", waiters::turns),
];

fn main() {
    cases::run(&CASES, cases::words());
}
