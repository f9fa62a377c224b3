//! What `onedrop verify` costs over IMAP: 200 mailboxes of 20,000 messages, of which 100,000 in all
//! are on record as of the last two days; 20 of these stand twice and 20 are in doubt. First as the
//! nightly job runs it, then again, which settles what was taken out, then with `--all`.
//!
//! `cargo bench --bench verify`; `ONEDROP_BENCH=short` takes a tenth of each mailbox. It needs what
//! `tests/run` installs, root, and 5 GB of disk; all servers are the test rig's own.

use onedrop_kit::bench::cases::load;
use onedrop_kit::bench::scale;

use scale::{Prepared, Scale};

fn main() {
    let part = if std::env::var("ONEDROP_BENCH").is_ok_and(|how| how == "short") { 10 } else { 1 };
    let scale = Scale {
        mailboxes: 200,
        messages: 20_000 / part,
        on_record: 500 / part,
        doubles: 20,
        doubts: 20,
    };
    let prepared = Prepared::new(scale);
    println!("{scale:?}, load average {}", load());
    println!("| run | seconds | MB | found |");
    println!("|---|---:|---:|---|");
    for (name, args) in [
        ("verify --repair", &["--repair"][..]),
        ("again", &["--repair"]),
        ("verify --repair --all", &["--repair", "--all"]),
        ("the same, one account at a time", &["--repair", "--all", "--parallel", "1"]),
    ] {
        let run = prepared.verify(args);
        let said = run.said.lines().last().unwrap_or_default();
        let (secs, megabytes) = (run.took.as_secs_f64(), run.kilobytes as f64 / 1024.0);
        let lines = run.findings.len();
        println!("| {name} | {secs:.1} | {megabytes:.0} | {lines} findings; {said} |");
        assert_eq!(run.code, Some(0), "{}", run.said);
    }
    println!("load average {}", load());
}
