//! How long a delivery takes, beside the programs that do the same work: whole processes, from their start to their end,
//! each with a new message of 4 KB on standard input, in turn with the peer so that a busy machine slows down both.
//! Results are ratios of medians. Nothing is asserted: a target that is missed is printed as missed.
//!
//! `cargo bench --bench deliver` runs every case, `cargo bench --bench deliver -- maildir imap` those two. It needs what
//! `tests/run` installs and root; all servers are the test rig's own, in temporary folders.

#[path = "../../tests/support/mod.rs"]
mod support;

mod growth;
mod large;
mod phases;
mod process;
mod speed;
mod table;
mod world;

use std::time::Instant;

/// A case's name and what it does.
type Case = (&'static str, fn());

const CASES: [Case; 5] = [
    ("maildir", speed::maildir),
    ("imap", speed::imap),
    ("growth", growth::run),
    ("large", large::run),
    ("phases", phases::run),
];

fn main() {
    let mut wanted: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [mode, out, program @ ..] = wanted.as_slice()
        && mode == process::WATCH
    {
        return process::watch(out, program);
    }
    if let Some(unknown) = wanted.iter().find(|word| CASES.iter().all(|(name, _)| name != word)) {
        let names: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
        eprintln!("no case {unknown}; there are: {}", names.join(" "));
        std::process::exit(2);
    }
    if !support::is_root() {
        eprintln!("the servers that are measured run as several users: run this as root");
        std::process::exit(2);
    }
    if wanted.is_empty() {
        wanted.extend(CASES.iter().map(|(name, _)| (*name).to_owned()));
    }
    let began = Instant::now();
    println!("{}", machine());
    for (name, run) in CASES.iter().filter(|(name, _)| wanted.iter().any(|word| word == name)) {
        println!("\n## {name} (load average {})", load());
        run();
    }
    println!("\n{} s in all, load average {}", began.elapsed().as_secs(), load());
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let folder = std::env::temp_dir();
    let mut df = std::process::Command::new("df");
    let kind = support::run(df.args(["--output=fstype"]).arg(&folder));
    format!("{cores} cores, {} on {}", folder.display(), kind.lines().last().unwrap_or("?").trim())
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}
