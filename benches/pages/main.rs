//! What a million messages on record cost those who look at them: `onedrop status` as a whole
//! process, the first byte of every page of `onedrop web`, and what a hundred clients of these
//! pages take from the deliveries of `onedrop lmtp` beside them. Everything runs on this host.
//!
//! `cargo bench --bench pages` runs every engine, `-- sqlite` one; `ONEDROP_BENCH=short` takes
//! fewer rounds and `ONEDROP_MESSAGES=20000` fewer messages. It needs what `tests/run` installs,
//! root, and 5 GB of disk; all servers are the test rig's own, as durable as by default.

mod beside;
mod engine;
mod fill;
mod look;
mod rows;

use onedrop_kit::{
    self as support,
    bench::{cases, table},
    soak::mail,
};

use engine::Site;
use rows::Engine;

const CASES: [cases::Case; 3] = [
    ("postgres", || run(Engine::Postgres)),
    ("mariadb", || run(Engine::Mariadb)),
    ("sqlite", || run(Engine::Sqlite)),
];

fn main() {
    cases::run(&CASES, cases::words());
}

fn run(engine: Engine) {
    let site = Site::filled(engine, cases::messages(1_000_000));
    look::status(&site);
    look::pages(&site);
    beside::run(&site);
}

/// Fewer rounds.
fn is_short() -> bool {
    std::env::var_os("ONEDROP_BENCH").is_some_and(|value| value == "short")
}
