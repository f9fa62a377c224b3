//! SIGKILL at every step: the real binary runs under strace(1), which kills it at the n-th call of a system call that
//! has an effect (before the call is executed) or that hears an answer. Then the message is delivered again, as Postfix
//! would, until 0. Afterwards each mailbox holds one copy, ledger and mailbox agree, and no file is left under `tmp/`.
//!
//! A recording run finds the points. `when=` counts per thread, so the first thread's points are run with that thread
//! traced alone, the others' with all threads traced: whichever thread gets there first is killed. `ONEDROP_FULL=1` runs
//! all points, otherwise an even sample. Leases are short and run out by themselves. Copies that are in doubt before the
//! killed delivery begins take another way (a turn, a look), which is killed at every step as well.

#[path = "kills/sites.rs"]
mod sites;
mod support;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sites::{Embedded, Servers, Site};
use support::world::deliver;
use support::{TempRoot, fixture_text, onedrop_path, wait_until};

/// Every call that changes something outside of the process, and those that hear a server's answer.
const CALLS: [&str; 23] = [
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "recvfrom",
    "fsync",
    "fdatasync",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "rename",
    "mkdir",
    "openat",
    "connect",
    "ftruncate",
    "fcntl",
    "utimensat",
    "shutdown",
    "exit_group",
];
/// The lease outlives the deadline by more than Dovecot needs for an append.
const TIMES: &str = "[lock]\nwait_secs = 1\nlease_secs = 6\n[limits]\ndeadline_secs = 5\nanswer_secs = 2\n";
const AT_ONCE: usize = 12;
/// Points of a sample, for each set-up.
const SAMPLE: usize = 90;
/// Postfix would try for days; here a lease and a few tries must do.
const RETRY_LIMIT: Duration = Duration::from_secs(20);

/// What is delivered, and what was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Small,
    /// More than goes without the server's `+`, and more than one write.
    Large,
    /// An earlier delivery died before it wrote anything, and its lease has run out.
    InDoubt,
    /// It died before it could say that it had written all copies.
    InDoubtWithCopies,
}

impl Kind {
    fn is_in_doubt(self) -> bool {
        matches!(self, Kind::InDoubt | Kind::InDoubtWithCopies)
    }
}

#[derive(Debug, Clone)]
struct Point {
    kind: Kind,
    /// Only the first thread is traced.
    first_thread: bool,
    call: String,
    n: usize,
}

/// What a run under strace came to, and what delivering again found.
#[derive(Default)]
struct Tally {
    killed: BTreeMap<String, usize>,
    /// Runs that ended by themselves: a point that came and went with the scheduling.
    not_reached: usize,
    placed_before: usize,
    found: usize,
    appended: usize,
    tries: usize,
}

fn message(id: &str, kind: Kind) -> Vec<u8> {
    let mut text = fixture_text("fixtures/kills/message.eml").replace("@ID@", id);
    if kind == Kind::Large {
        while text.len() < 1_200_000 {
            text.push_str("It takes more than one breath to say all of this, and a crash may come in between.\n");
        }
    }
    text.into_bytes()
}

fn strace(point: Option<&Point>, log: &Path, config: &Path, recipient: &str, message: &Path) -> Output {
    let mut command = Command::new("strace");
    // Whatever the test runner's environment says about Onedrop is not for this one.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ONEDROP_")) {
        command.env_remove(name);
    }
    command.args(["-s", "200", "-e", "signal=none", "-o"]).arg(log);
    command.args(["-e", &format!("trace={}", CALLS.join(","))]);
    if point.is_none_or(|point| !point.first_thread) {
        command.arg("-f");
    }
    if let Some(Point { call, n, .. }) = point {
        command.args(["-e", &format!("inject={call}:signal=SIGKILL:when={n}")]);
    }
    command.arg(onedrop_path()).args(["deliver", "--config"]).arg(config).args(["-d", recipient]);
    command.stdin(File::open(message).expect("message"));
    command.current_dir(config.parent().expect("folder")).output().expect("strace")
}

/// Whether a recorded call is worth a kill: locks and new files, not every look at a descriptor or a file.
fn matters(call: &str, line: &str) -> bool {
    match call {
        "fcntl" => line.contains("SETLK"),
        "openat" => line.contains("O_CREAT") || line.contains("O_TMPFILE"),
        _ => true,
    }
}

/// The points of one delivery in the order of time, and how many of other threads cannot be told from the first's.
fn record(site: &dyn Site, root: &TempRoot, kind: Kind) -> (Vec<Point>, usize) {
    let id = format!("{kind:?}").to_lowercase();
    let (config, recipient) = site.place(&id);
    site.prepare(&id, kind);
    let log = root.join(format!("{id}.trace"));
    let output = strace(None, &log, &config, &recipient, &root.write(&id, message(&id, kind)));
    assert!(output.status.success(), "recording: {output:?}");
    let text = fs::read_to_string(&log).expect("trace");
    // SQLite and Maildir always take a turn, and without a word that could be seen.
    assert_eq!(text.contains("onedrop_turn("), kind.is_in_doubt(), "{text}");
    let (mut points, mut hidden) = (Vec::new(), 0);
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    let first = text.split(' ').next().expect("a thread");
    for line in text.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((call, _)) = rest.trim_start().split_once('(') else { continue };
        if !CALLS.contains(&call) {
            continue;
        }
        let n = counts.entry((thread, call)).or_default();
        *n += 1;
        let n = *n;
        if !matters(call, line) {
            continue;
        }
        let first_thread = thread == first;
        if !first_thread && counts.iter().any(|((other, name), count)| *other != thread && *name == call && *count >= n)
        {
            hidden += 1;
            continue;
        }
        points.push(Point { kind, first_thread, call: call.to_owned(), n });
    }
    (points, hidden)
}

/// Every `len / wanted`-th.
fn sample(points: Vec<Point>, wanted: usize) -> Vec<Point> {
    let all = points.len();
    if std::env::var_os("ONEDROP_FULL").is_some() || all <= wanted {
        return points;
    }
    (0..wanted).map(|n| points[n * all / wanted].clone()).collect()
}

/// Kills one delivery, delivers again until 0, and judges.
fn kill_and_deliver_again(
    site: &dyn Site,
    root: &TempRoot,
    id: &str,
    point: &Point,
    tally: &Mutex<Tally>,
) -> Result<(), String> {
    let (config, recipient) = site.place(id);
    let message = message(id, point.kind);
    site.prepare(id, point.kind);
    let log = root.join(format!("{id}.trace"));
    let output = strace(Some(point), &log, &config, &recipient, &root.write(id, &message));
    let killed = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
    // 75: on a busy machine the deadline may come before the point.
    if !killed && !matches!(output.status.code(), Some(0 | 75)) {
        return Err(format!("neither killed nor delivered: {output:?}"));
    }
    let (mut tries, mut said) = (0, String::new());
    let done = wait_until(RETRY_LIMIT, || {
        tries += 1;
        let output = deliver(&config, &["-d", &recipient], &message);
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code() == Some(75) {
            // The wait for locks and leases inside paces the tries.
            return false;
        }
        assert!(output.status.success(), "{point:?}: {output:?}");
        true
    });
    if !done {
        return Err(format!("not delivered again after {tries} tries: {said}"));
    }
    // A delivery of what is delivered changes nothing.
    let again = deliver(&config, &["-d", &recipient], &message);
    if again.status.code() != Some(0) || !again.stdout.starts_with(b"already there ") {
        return Err(format!("delivered once more: {again:?}"));
    }
    site.judge(id, point.kind)?;
    let mut tally = tally.lock().expect("tally");
    if killed {
        *tally.killed.entry(point.call.clone()).or_default() += 1;
    } else {
        tally.not_reached += 1;
    }
    tally.tries += tries;
    tally.placed_before += said.matches("already there account").count();
    tally.found += said.matches("found account").count();
    tally.appended += said.matches("stored account").count();
    fs::remove_file(log).expect("trace");
    Ok(())
}

fn kill_at_every_step(site: &dyn Site, kinds: &[Kind]) {
    let began = Instant::now();
    let root = TempRoot::new();
    let (mut points, mut hidden) = (Vec::new(), 0);
    for kind in kinds {
        let (found, indistinct) = record(site, &root, *kind);
        points.extend(found);
        hidden += indistinct;
    }
    let all = points.len();
    let points = sample(points, SAMPLE);
    let (next, tally, failures) = (AtomicUsize::new(0), Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let n = next.fetch_add(1, Ordering::SeqCst)
                    && let Some(point) = points.get(n)
                {
                    let id = format!("k{n}");
                    if let Err(why) = kill_and_deliver_again(site, &root, &id, point, &tally) {
                        let trace = fs::read_to_string(root.join(format!("{id}.trace"))).unwrap_or_default();
                        let from = trace.lines().count().saturating_sub(30);
                        let tail: Vec<&str> = trace.lines().skip(from).collect();
                        failures.lock().expect("failures").push(format!("{point:?}: {why}\n{}", tail.join("\n")));
                    }
                }
            });
        }
    });
    let (tally, failures) = (tally.into_inner().expect("tally"), failures.into_inner().expect("failures"));
    let killed: usize = tally.killed.values().sum();
    let mut by_call = String::new();
    for (call, count) in &tally.killed {
        write!(by_call, " {call} {count}").expect("text");
    }
    // Past the test harness' capture: the figures are the result.
    writeln!(
        std::io::stderr(),
        "{}, {kinds:?}: {} of {all} kill points ({hidden} more in parallel threads not told apart), {killed} killed ({}), {} not \
         reached; then of {} copies {} already placed, {} found by the look, {} appended; {} tries, {} failures, {:.0} s",
        site.name(),
        points.len(),
        by_call.trim_start(),
        tally.not_reached,
        tally.placed_before + tally.found + tally.appended,
        tally.placed_before,
        tally.found,
        tally.appended,
        tally.tries,
        failures.len(),
        began.elapsed().as_secs_f32(),
    )
    .expect("stderr");
    assert!(failures.is_empty(), "{} of {} points:\n{}", failures.len(), points.len(), failures.join("\n\n"));
    assert!(points.len() >= 75 && killed * 10 >= points.len() * 9, "{killed} kills at {} points", points.len());
    // Each of the crash table's rows was met.
    assert!(tally.placed_before > 0 && tally.found > 0 && tally.appended > 0);
}

#[test]
fn a_delivery_to_sqlite_and_maildir_killed_at_any_step_leaves_one_copy() {
    kill_at_every_step(&Embedded(TempRoot::new()), &[Kind::Small]);
}

#[test]
fn a_delivery_to_postgres_and_imap_killed_at_any_step_leaves_one_copy() {
    kill_at_every_step(&Servers::start(), &[Kind::Small, Kind::Large]);
}

#[test]
fn a_delivery_in_doubt_to_postgres_and_imap_killed_at_any_step_leaves_one_copy() {
    kill_at_every_step(&Servers::start(), &[Kind::InDoubt, Kind::InDoubtWithCopies]);
}

/// Whoever linked it may have been killed before the folder's sync, and the ledger may be on another disk.
#[test]
fn a_copy_found_in_a_maildir_is_on_disk_before_it_is_on_record() {
    let root = TempRoot::new();
    let config = root.write(
        "onedrop.toml",
        format!(
            "[ledger]\nurl = \"sqlite://{0}/ledger.db\"\n[store]\nurl = \"maildir://{0}/mail\"\n[directory]\n\
             domains = [\"mail.axial.net\"]\n",
            root.display()
        ),
    );
    let message = root.write("message", "From: ann@elsewhere.example\nMessage-ID: <found@x>\n\nbody\n");
    let log = root.join("strace");
    let run = || {
        let output = strace(None, &log, &config, "scuba@mail.axial.net", &message);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run();
    let ledger = rusqlite::Connection::open(root.join("ledger.db")).expect("ledger");
    let in_doubt = "UPDATE onedrop_copy SET placed_at = NULL, file_name = NULL, leased_until = NULL, in_doubt = 1";
    assert_eq!(ledger.execute(in_doubt, []).expect("update"), 1);
    drop(ledger);
    let said = run();
    assert!(said.starts_with("found "), "{said}");
    let calls = fs::read_to_string(&log).expect("what strace saw");
    // The system calls between the last opening of the folder and the receipt's sync.
    let number = |line: &str| Some(line.rsplit_once("= ")?.1.trim().to_owned());
    let lines: Vec<&str> = calls.lines().collect();
    let synced = lines.iter().enumerate().find_map(|(at, line)| {
        let opened = line.contains("openat") && line.contains("Maildir/new\"");
        let sync = format!("fsync({})", number(line)?);
        lines.get(at + 1).filter(|next| opened && next.contains(&sync)).map(|_| at + 1)
    });
    let synced = synced.unwrap_or_else(|| panic!("the folder is not synced:\n{calls}"));
    let recorded = lines.iter().rposition(|line| line.contains("sync(")).expect("a sync");
    assert!(synced < recorded, "the receipt comes after it:\n{calls}");
}
