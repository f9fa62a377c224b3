//! Where the time of a message goes, by the server's own metrics: milliseconds by phase, commits,
//! system calls.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use crate::load::Target;
use crate::load::{self, Clients, LOCAL_PARTS, MAILBOXES, NO_PLUGINS, Peer, TEN, TUNED_LMTP};
use crate::support::dovecot::Dovecot;
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::postgres::Postgres;
use crate::support::server::pid_of;
use crate::support::wait_until;
use crate::world::Bench;

/// The labels of the histogram `onedrop_phase_seconds`, in order of time.
const PHASES: [&str; 4] = ["lock", "record", "append", "commit"];
const MESSAGES: usize = 1000;
/// Under strace everything takes its time.
const TRACED: usize = 200;

pub fn run() {
    let bench = Bench::new();
    let settings = format!("{LOCAL_PARTS}{TUNED_LMTP}{NO_PLUGINS}");
    let dovecot = Dovecot::start_high_performance_with(&settings);
    let postgres = Postgres::start();
    let direct = format!("url = \"{}\"", postgres.url_socket());
    let imap = bench.config("imap", &direct, &bench.imap_store(&dovecot));
    let maildir = bench.config("maildir", &direct, &bench.maildir_store(&dovecot));
    for (store, config) in [("IMAP", &imap), ("Maildir", &maildir)] {
        bench.migrate(config);
        let lmtp = Launch::of(config).start();
        let peer = Peer { name: "onedrop lmtp", socket: lmtp.socket(), tag: store };
        phases(store, &peer, &lmtp, &postgres, &dovecot);
    }
    dovecots_own(&dovecot);
}

fn phases(store: &str, peer: &Peer<'_>, lmtp: &Lmtp, postgres: &Postgres, dovecot: &Dovecot) {
    let many = Target::Many(peer.tag.to_lowercase());
    println!(
        "\n| {store}, connections | mailboxes | messages/s | {} | commits a message | processor \
         ms: ours | Postgres | Dovecot | idle |",
        PHASES.map(|name| format!("{name} ms")).join(" | ")
    );
    println!("|---:|---:|---:|{}---:|---:|---:|---:|---:|", "---:|".repeat(PHASES.len()));
    let cpu = || [lmtp.cpu(), postgres.cpu(), dovecot.cpu(), idle()];
    for (sessions, target) in loads(peer) {
        load::send(peer, dovecot, &target, kept(sessions), MAILBOXES);
        let (before, committed) = (PHASES.map(|phase| seconds(lmtp, phase)), commits(postgres));
        let used = cpu();
        let took = load::send(peer, dovecot, &target, kept(sessions), MESSAGES);
        let used = cpu()
            .into_iter()
            .zip(used)
            .map(|(now, before)| now.saturating_sub(before).as_secs_f64());
        let used: Vec<String> =
            used.map(|spent| format!("{:.2}", spent * 1000.0 / MESSAGES as f64)).collect();
        let cells: Vec<String> = PHASES
            .iter()
            .zip(before)
            .map(|(phase, before)| {
                let spent = seconds(lmtp, phase).zip(before).map(|(now, before)| now - before);
                spent.map_or("-".to_owned(), |spent| {
                    format!("{:.2}", spent * 1000.0 / MESSAGES as f64)
                })
            })
            .collect();
        let commits = (commits(postgres) - committed) as f64 / MESSAGES as f64;
        let rate = MESSAGES as f64 / took.as_secs_f64();
        println!(
            "| {sessions} | {} | {rate:.0} | {} | {commits:.2} | {} |",
            mailboxes(&target),
            cells.join(" | "),
            used.join(" | ")
        );
    }
    println!(
        "\n| {store}, {TRACED} messages over 4 connections: system calls | a message |\n|---|---:|"
    );
    for (name, calls) in system_calls(lmtp, || load::send(peer, dovecot, &many, kept(4), TRACED)) {
        println!("| {name} | {:.1} |", calls as f64 / TRACED as f64);
    }
}

/// The same load on Dovecot's own server.
fn dovecots_own(dovecot: &Dovecot) {
    println!(
        "\n| Dovecot's lmtp, tuned: connections | mailboxes | messages/s | processor ms: Dovecot \
         |\n|---:|---:|---:|---:|"
    );
    let peer = Peer { name: "Dovecot's lmtp", socket: dovecot.lmtp_socket(), tag: "peer" };
    for (sessions, target) in loads(&peer) {
        load::send(&peer, dovecot, &target, kept(sessions), MAILBOXES);
        let used = dovecot.cpu();
        let took = load::send(&peer, dovecot, &target, kept(sessions), MESSAGES);
        let spent = dovecot.cpu().saturating_sub(used).as_secs_f64() * 1000.0 / MESSAGES as f64;
        let rate = MESSAGES as f64 / took.as_secs_f64();
        println!("| {sessions} | {} | {rate:.0} | {spent:.2} |", mailboxes(&target));
    }
}

/// Connections, and where their messages go.
fn loads(peer: &Peer<'_>) -> Vec<(usize, Target)> {
    let name = peer.tag.to_lowercase();
    let to = |sessions| {
        [Target::One(format!("{name}-{sessions}")), Target::Many(name.clone())]
            .map(|target| (sessions, target))
    };
    [1, 4, 10].into_iter().flat_map(to).collect()
}

fn mailboxes(target: &Target) -> usize {
    match target {
        Target::One(_) => 1,
        Target::Ten(_) => TEN,
        Target::Many(_) => MAILBOXES,
    }
}

fn kept(sessions: usize) -> Clients {
    Clients { sessions, kept: true }
}

/// Seconds that all messages together have spent in a phase.
fn seconds(lmtp: &Lmtp, phase: &str) -> Option<f64> {
    lmtp.metric(&format!("onedrop_phase_seconds_sum{{phase=\"{phase}\"}}"))
}

/// How long the processors together had nothing to do (proc_stat(5): `idle`, `iowait`, in ticks of
/// 10 ms).
fn idle() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let fields = text.lines().next().expect("a line").split_ascii_whitespace().skip(4).take(2);
    Duration::from_millis(fields.map(|field| field.parse::<u64>().expect("ticks") * 10).sum())
}

/// Transactions in which something was written, until now: each has taken the next number. The
/// server's own statistics of commits are late by up to ten seconds.
fn commits(postgres: &Postgres) -> u64 {
    postgres.psql("SELECT pg_snapshot_xmax(pg_current_snapshot())").parse().expect("a number")
}

/// The system calls of the server while `work` runs, all of them and then the most frequent.
fn system_calls<T>(lmtp: &Lmtp, work: impl FnOnce() -> T) -> Vec<(String, u64)> {
    let out = tempfile::NamedTempFile::new().expect("a file");
    let mut strace = Command::new("/usr/bin/strace");
    strace.args(["-c", "-f", "-q", "-o"]).arg(out.path()).args(["-p", &lmtp.pid().to_string()]);
    let mut strace = strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("strace");
    let status = format!("/proc/{}/status", lmtp.pid());
    let traced =
        || std::fs::read_to_string(&status).is_ok_and(|text| !text.contains("TracerPid:\t0\n"));
    assert!(wait_until(Duration::from_secs(10), traced), "strace does not attach");
    work();
    kill(pid_of(&strace), Signal::SIGINT).expect("strace runs");
    strace.wait().expect("our child");
    let text = std::fs::read_to_string(out.path()).expect("what strace saw");
    // "% time, seconds, usecs/call, calls, errors (may be empty), name"
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        Some((fields.last()?.to_string(), fields.get(3)?.parse::<u64>().ok()?))
    };
    let mut rows: Vec<(String, u64)> = text.lines().filter_map(row).collect();
    assert!(!rows.is_empty(), "strace saw nothing: {text}");
    rows.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
    rows.truncate(16);
    rows
}
