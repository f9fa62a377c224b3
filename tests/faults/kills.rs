//! SIGKILL at every step: strace(1) kills the real binary at the n-th system call that has an
//! effect (before it is executed) or hears an answer. Then it is run again, as Postfix or an
//! administrator would, until all is done: each mailbox holds one copy, byte for byte, ledger and
//! mailbox agree, and no file is left under `tmp/`.
//!
//! A recording run finds the points. `when=` counts per thread: the first thread's points are run
//! with that thread traced alone, the others' with all threads traced, and whichever gets there
//! first is killed. Of links, syncs, commits, the last bytes of an append, and answers to these
//! most are killed; of the others, of purge and forget, and of a ledger and a store that are each
//! swept so with another one, a sample that moves on with every commit (`ONEDROP_FULL=1`: all). So
//! does which of two kinds of deliveries, or of two sites, where both have much the same steps.
//! Leases are short and run out by themselves. Copies in doubt before the killed delivery begins
//! take a turn and a look, which are killed at every step too.

mod by_recipient;
mod forgetting;
mod replaying;
mod settings;
pub mod sites;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::sample::{part, sample};
use crate::strace::{self, Call};
use crate::support::site::Site;
use crate::support::{TempRoot, is_full, remove_variables};
use by_recipient::ByRecipient;
use forgetting::{Forgetting, What};
use replaying::Replaying;
use settings::{Delivery, LmtpServer, Migration, Repair, Setting, Settle};
use sites::{Combination, Kind};

/// Every call that changes something outside of the process, and those that hear a server's answer.
const CALLS: [&str; 24] = [
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
    "accept4",
    "ftruncate",
    "fcntl",
    "utimensat",
    "shutdown",
    "exit_group",
];
/// What commits something in a Postgres, or begins what commits it.
const STATEMENTS: [&str; 6] = [
    "COMMIT",
    "DELETE FROM onedrop_",
    "onedrop_record(",
    "pg_try_advisory_xact_lock(",
    "onedrop_confirm(",
    "UPDATE onedrop_",
];

const DOUBTS: [Kind; 2] = [Kind::InDoubt, Kind::InDoubtWithCopies];

/// Of two that have much the same points: the one that falls to this commit.
fn in_turn() -> usize {
    part(2) as usize
}

/// A ledger and a store of each kind; a sample is of those whose turn it is, which is another's in
/// the `number`th test.
fn sites(number: usize) -> Vec<Combination> {
    let sites = [Combination::embedded, Combination::servers];
    match is_full() {
        true => sites.map(|site| site()).into(),
        false => vec![sites[(in_turn() + number) % 2]()],
    }
}

/// Most of their time they wait for a lease's end. With twice as many a delivery waits too long.
const AT_ONCE: usize = 16;
/// Of what waits for no lease: these keep the processors busy.
const BUSY_AT_ONCE: usize = 4;
/// Points of a sample, for each setting, beside those that are always killed.
const SAMPLE: usize = 8;
/// Runs that are recorded before one is killed, and how many are begun for them at most: on a busy
/// machine a deadline may end one, which is no recording.
const RECORDINGS: usize = 3;
const RECORDINGS_BEGUN: usize = 20;
/// How often a point is tried that was not reached.
const TRIES_OF_A_POINT: usize = 4;

#[derive(Debug, Clone)]
struct Point {
    setting: usize,
    /// Only the first thread is traced.
    first_thread: bool,
    call: String,
    n: usize,
    /// The outcome hangs on it.
    is_named: bool,
}

/// What the kills met.
#[derive(Default)]
struct Tally {
    killed: BTreeMap<String, usize>,
    /// Of these the ones that are always killed.
    named: usize,
    /// Runs that ended by themselves: a point that came and went with the scheduling.
    not_reached: usize,
    /// Kills that left a copy in doubt.
    left_in_doubt: usize,
    placed_before: usize,
    found: usize,
    /// Copies for Sent that were kept for settle.
    settled: usize,
    tries: usize,
}

/// strace, to be given a program: with all threads recorded to `log`, or killed at a point.
fn traced(point: Option<&Point>, log: &Path) -> Command {
    let mut command = Command::new("strace");
    remove_variables(&mut command);
    command.args(["-e", "signal=none", "-o"]).arg(log);
    match point {
        None => {
            command.args(["-f", "-y", "-s", "4000", "-e", &format!("trace={}", CALLS.join(","))])
        }
        Some(Point { call, n, first_thread, .. }) => {
            if !first_thread {
                command.arg("-f");
            }
            let inject = format!("inject={call}:signal=SIGKILL:when={n}");
            command.args(["-e", &format!("trace={call}"), "-e", &inject])
        }
    };
    command
}

/// Whether a recorded call is worth a kill: locks and new files, not every look at a descriptor or
/// a file.
fn matters(call: &Call) -> bool {
    match &*call.name {
        "fcntl" => call.args.contains("SETLK"),
        "openat" => call.args.contains("O_CREAT") || call.args.contains("O_TMPFILE"),
        name => CALLS.contains(&name),
    }
}

/// Whether the outcome hangs on the call at `at`: a link, a sync, what commits and its answer, the
/// last bytes of an append or the dot of a hand-off, and its answer.
fn is_named(calls: &[Call], at: usize) -> bool {
    let call = &calls[at];
    let commits = |call: &Call| {
        call.name == "sendto" && STATEMENTS.iter().any(|what| call.args.contains(what))
    };
    let is_last_bytes = |call: &Call| {
        let is_dot = call.args.contains(", \".\\r\\n\", 3,");
        call.name == "sendto" && (is_dot || call.args.contains(", \"\\r\\n\", 2,"))
    };
    match &*call.name {
        "link" | "linkat" | "unlink" => true,
        "fsync" | "fdatasync" => call.on().contains("/od-"),
        "sendto" => commits(call) || is_last_bytes(call),
        "recvfrom" => {
            let asked = calls[..at]
                .iter()
                .rev()
                .find(|other| other.name == "sendto" && other.on() == call.on());
            call.args.contains("APPENDUID")
                || asked.is_some_and(|asked| commits(asked) || is_last_bytes(asked))
        }
        _ => false,
    }
}

/// The points of one setting in the order of time, and how many are left out: calls of other
/// threads that look alike.
fn record(setting: &dyn Setting, number: usize, root: &TempRoot) -> (Vec<Point>, usize) {
    // On a busy machine a run asks more often for what has not come yet: the shortest of several
    // has the calls that all have. One that kept the copy for Sent lacks some.
    let runs = (0..RECORDINGS_BEGUN)
        .filter_map(|run| record_once(setting, number, &format!("r{number}x{run}"), root))
        .take(RECORDINGS);
    runs.min_by_key(|(points, _)| points.len()).expect("a recording of a run that placed all")
}

fn record_once(
    setting: &dyn Setting,
    number: usize,
    id: &str,
    root: &TempRoot,
) -> Option<(Vec<Point>, usize)> {
    setting.prepare(id);
    let log = root.join(format!("{id}.trace"));
    let output = setting.run(id, traced(None, &log));
    let ended = output.status.code();
    let is_over = ended == Some(setting.status());
    assert!(is_over || ended == Some(75), "recording {}: {output:?}", setting.name());
    let calls = strace::calls(&String::from_utf8_lossy(&fs::read(&log).expect("trace")));
    let is_whole = is_over && setting.standing(id).kept == 0;
    let done = setting.bring_to_an_end(id).and_then(|_| setting.settle(id));
    done.and_then(|_| setting.judge(id)).expect("a run that is not killed");
    let (mut points, mut hidden): (Vec<Point>, usize) = (Vec::new(), 0);
    let mut counts: HashMap<(u32, &str), usize> = HashMap::new();
    let first = calls.first().expect("a call").thread;
    for (at, call) in calls.iter().enumerate() {
        let n = counts.entry((call.thread, &call.name)).or_default();
        *n += 1;
        let n = *n;
        if !matters(call) {
            continue;
        }
        let first_thread = call.thread == first;
        let others =
            counts.iter().filter(|((other, name), _)| *other != call.thread && *name == call.name);
        if !first_thread && others.map(|(_, count)| *count).any(|count| count >= n) {
            hidden += 1;
            continue;
        }
        let is_named = is_named(&calls, at);
        points.push(Point { setting: number, first_thread, call: call.name.clone(), n, is_named });
    }
    is_whole.then_some((points, hidden))
}

/// Kills one run, brings it to its end, and judges.
fn kill_and_run_again(
    setting: &dyn Setting,
    root: &TempRoot,
    id: &str,
    point: &Point,
) -> Result<Tally, String> {
    setting.prepare(id);
    let log = root.join(format!("{id}.trace"));
    let output = setting.run(id, traced(Some(point), &log));
    let killed = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
    // 75: on a busy machine the deadline may come before the point.
    let ended = output.status.code();
    if !killed && ended != Some(setting.status()) && ended != Some(75) {
        return Err(format!("neither killed nor done: {output:?}"));
    }
    let after = setting.standing(id);
    let tries = setting.bring_to_an_end(id)?;
    let settled = setting.settle(id)?;
    setting.judge(id)?;
    fs::remove_file(log).expect("trace");
    Ok(Tally {
        killed: if killed { [(point.call.clone(), 1)].into() } else { BTreeMap::new() },
        named: usize::from(killed && point.is_named),
        not_reached: usize::from(!killed),
        left_in_doubt: usize::from(killed && after.in_doubt > 0),
        placed_before: after.placed,
        found: setting.standing(id).found_by_look,
        settled,
        tries,
    })
}

impl Tally {
    fn add(&mut self, other: Tally) {
        for (call, count) in other.killed {
            *self.killed.entry(call).or_default() += count;
        }
        self.named += other.named;
        self.not_reached += other.not_reached;
        self.left_in_doubt += other.left_in_doubt;
        self.placed_before += other.placed_before;
        self.found += other.found;
        self.settled += other.settled;
        self.tries += other.tries;
    }
}

/// What kills in a setting must have met at least once, or the sweep has not seen what it is for.
#[derive(Clone, Copy)]
struct Must {
    leave_in_doubt: bool,
    be_found_by_a_look: bool,
    /// Points of a sample; beside those by name, or of all.
    sample: usize,
    most_by_name: bool,
    at_once: usize,
}

const MUST_MEET_BOTH: Must = Must {
    leave_in_doubt: true,
    be_found_by_a_look: true,
    sample: SAMPLE,
    most_by_name: true,
    at_once: AT_ONCE,
};
const NEED_NOT_MEET: Must =
    Must { leave_in_doubt: false, be_found_by_a_look: false, ..MUST_MEET_BOTH };

fn kill_at_every_step(settings: &[&dyn Setting], must: Must) {
    let began = Instant::now();
    let root = TempRoot::new();
    let (mut points, mut all, mut hidden) = (Vec::new(), 0, 0);
    for (number, setting) in settings.iter().enumerate() {
        let (found, indistinct) = record(*setting, number, &root);
        all += found.len();
        hidden += indistinct;
        // As many of those as let neighbours (a commit and its answer) both have their turn.
        let (named, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|point| must.most_by_name && point.is_named);
        let most = named.len() * 3 / 5;
        points.extend(sample(named, most, |_| false));
        points.extend(sample(others, must.sample, |_| false));
    }
    let next = AtomicUsize::new(0);
    let tallies: Mutex<Vec<Tally>> =
        Mutex::new(settings.iter().map(|_| Tally::default()).collect());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..must.at_once {
            scope.spawn(|| {
                while let n = next.fetch_add(1, Ordering::SeqCst)
                    && let Some(point) = points.get(n)
                {
                    let id = format!("k{n}");
                    let kill =
                        |id: &str| kill_and_run_again(settings[point.setting], &root, id, point);
                    // An answer comes in one piece or in several, the more so on a busy machine, so
                    // a call may not come at all.
                    let mut ended = kill(&id);
                    for again in 1..TRIES_OF_A_POINT {
                        if ended.as_ref().is_ok_and(|tally| tally.not_reached > 0) {
                            ended = kill(&format!("{id}x{again}"));
                        }
                    }
                    match ended {
                        Ok(tally) => tallies.lock().expect("tallies")[point.setting].add(tally),
                        Err(why) => {
                            let trace =
                                fs::read(root.join(format!("{id}.trace"))).unwrap_or_default();
                            let trace = String::from_utf8_lossy(&trace).into_owned();
                            let from = trace.lines().count().saturating_sub(30);
                            let tail: Vec<&str> = trace.lines().skip(from).collect();
                            failures
                                .lock()
                                .expect("failures")
                                .push(format!("{point:?}: {why}\n{}", tail.join("\n")));
                        }
                    }
                }
            });
        }
    });
    let (tallies, failures) =
        (tallies.into_inner().expect("tallies"), failures.into_inner().expect("failures"));
    let mut report = format!(
        "{} of {all} kill points ({hidden} more in parallel threads not told apart)",
        points.len()
    );
    for (setting, tally) in settings.iter().zip(&tallies) {
        let mut by_call = String::new();
        for (call, count) in &tally.killed {
            write!(by_call, " {call} {count}").expect("text");
        }
        write!(
            report,
            "\n  {}: killed{by_call}, {} of them by name, {} not reached; {} left a copy in doubt, \
             {} copies were placed, {} found by a look, {} settled, {} tries",
            setting.name(),
            tally.named,
            tally.not_reached,
            tally.left_in_doubt,
            tally.placed_before,
            tally.found,
            tally.settled,
            tally.tries,
        )
        .expect("text");
    }
    // Past the test harness' capture: the figures are the result.
    writeln!(std::io::stderr(), "{report}\n  {:.0} s", began.elapsed().as_secs_f32())
        .expect("stderr");
    assert!(
        failures.is_empty(),
        "{} of {} points:\n{}",
        failures.len(),
        points.len(),
        failures.join("\n\n")
    );
    for (setting, tally) in settings.iter().zip(&tallies) {
        let (name, killed) = (setting.name(), tally.killed.values().sum::<usize>());
        let is_whole = must.most_by_name || is_full();
        let enough = if is_whole { (killed + tally.not_reached) * 3 } else { 1 };
        assert!(killed * 4 >= enough, "{name}: only {killed} were killed");
        assert!(tally.settled * 2 <= killed, "{name}: {} for Sent were kept", tally.settled);
        // A sample may pass it by.
        if !is_whole {
            continue;
        }
        assert!(tally.named > 0, "{name}: nothing was killed at what it hangs on");
        assert!(
            !must.leave_in_doubt || tally.left_in_doubt > 0,
            "{name}: no kill left a copy in doubt"
        );
        // It is the one call between an append and its record.
        assert!(
            !must.be_found_by_a_look || !is_full() || tally.found > 0,
            "{name}: no copy was found by a look"
        );
        assert!(
            !must.leave_in_doubt || tally.placed_before > 0,
            "{name}: no kill came after a copy was placed"
        );
    }
}

/// Of a ledger and a store of which each one's steps are killed always with another one.
const SOME_OF_ALL: Must = Must { sample: 2 * SAMPLE, most_by_name: false, ..MUST_MEET_BOTH };

/// Deliveries of these kinds.
fn kill_deliveries(site: &Combination, kinds: &[Kind], must: Must) {
    let deliveries: Vec<Delivery<'_>> =
        kinds.iter().map(|kind| Delivery { site, kind: *kind }).collect();
    let settings: Vec<&dyn Setting> =
        deliveries.iter().map(|delivery| -> &dyn Setting { delivery }).collect();
    kill_at_every_step(&settings, must);
}

#[test]
fn a_delivery_to_sqlite_and_maildir_killed_at_any_step_leaves_one_copy() {
    kill_deliveries(
        &Combination::embedded(),
        &[Kind::Small, Kind::ThreeRecipients, Kind::Nul, Kind::InDoubtWithCopies],
        MUST_MEET_BOTH,
    );
}

#[test]
fn a_delivery_to_postgres_and_maildir_killed_at_any_step_leaves_one_copy() {
    kill_deliveries(
        &Combination::postgres_and_maildir(),
        &[Kind::Small, Kind::ThreeRecipients, Kind::InDoubtWithCopies],
        SOME_OF_ALL,
    );
}

#[test]
fn a_delivery_to_postgres_and_imap_killed_at_any_step_leaves_one_copy() {
    // What NULs change is the record, as with the other ledgers.
    let kinds: &[Kind] = match is_full() {
        true => &[Kind::Small, Kind::Large, Kind::Nul, Kind::ThreeRecipients],
        false => &[Kind::Small, [Kind::Large, Kind::ThreeRecipients][in_turn()]],
    };
    kill_deliveries(&Combination::servers(), kinds, MUST_MEET_BOTH);
}

#[test]
fn a_delivery_in_doubt_to_postgres_and_imap_killed_at_any_step_leaves_one_copy() {
    let kinds: &[Kind] = match is_full() {
        true => &DOUBTS,
        false => &[DOUBTS[in_turn()]],
    };
    kill_deliveries(&Combination::servers(), kinds, MUST_MEET_BOTH);
}

/// The filter forwards, so that a hand-off that is carried out twice shows.
#[test]
fn a_delivery_handed_over_by_lmtp_killed_at_any_step_is_filtered_once() {
    // A hand-off to one has the steps of each of several; one in doubt has those after it, too.
    let several = [Kind::ThreeRecipients, Kind::InDoubt, Kind::InDoubtWithCopies];
    let kinds: &[Kind] = match is_full() {
        true => &[Kind::Small, Kind::ThreeRecipients, Kind::InDoubt, Kind::InDoubtWithCopies],
        false => &[several[part(3) as usize]],
    };
    kill_deliveries(&Combination::handing_over(), kinds, MUST_MEET_BOTH);
}

#[test]
fn a_delivery_to_mariadb_and_lmtp_killed_at_any_step_is_filtered_once() {
    // The hand-off's steps are those of the other ledger.
    let kinds: &[Kind] = match is_full() {
        true => &[Kind::Small, Kind::InDoubt, Kind::InDoubtWithCopies],
        false => &[Kind::InDoubtWithCopies],
    };
    kill_deliveries(&Combination::mariadb_and_lmtp(), kinds, SOME_OF_ALL);
}

/// Of copies that were handed over: a later try's is taken out, and one in doubt is found.
#[test]
fn a_repair_of_handed_copies_killed_at_any_step_leaves_one_copy() {
    kill_at_every_step(&[&Repair(&Combination::handing_over())], MUST_MEET_BOTH);
}

/// The copy for Sent, beside recipients' own ones that were handed over.
#[test]
fn settle_beside_handed_copies_killed_at_any_step_leaves_one_copy() {
    kill_at_every_step(&[&Settle(&Combination::sqlite_and_lmtp())], MUST_MEET_BOTH);
}

#[test]
fn a_delivery_to_mariadb_and_maildir_killed_at_any_step_leaves_one_copy() {
    kill_deliveries(
        &Combination::mariadb_and_maildir(),
        &[Kind::Small, Kind::InDoubtWithCopies],
        MUST_MEET_BOTH,
    );
}

#[test]
fn a_delivery_to_mariadb_and_imap_killed_at_any_step_leaves_one_copy() {
    // The store's steps are those of the other ledgers.
    let kinds: &[Kind] = match is_full() {
        true => &[Kind::Small, Kind::ThreeRecipients, Kind::InDoubt],
        false => &[Kind::Small],
    };
    kill_deliveries(&Combination::mariadb_and_imap(), kinds, SOME_OF_ALL);
}

#[test]
fn a_repair_killed_at_any_step_leaves_one_copy() {
    for site in sites(0) {
        kill_at_every_step(&[&Repair(&site)], MUST_MEET_BOTH);
    }
}

#[test]
fn settle_killed_at_any_step_leaves_one_copy() {
    kill_at_every_step(&[&Settle(&Combination::embedded())], MUST_MEET_BOTH);
    kill_at_every_step(&[&Settle(&Combination::sqlite_and_imap())], MUST_MEET_BOTH);
}

/// What is forgotten by then is forgotten whole: key and copies together. The next run does the
/// rest, and what is delivered again is found in its mailbox.
fn kill_what_forgets(site: &Combination) {
    forgetting::fill(site);
    let settings = [What::Purge, What::Since, What::Account].map(|what| Forgetting { site, what });
    let settings: Vec<&dyn Setting> =
        settings.iter().map(|setting| -> &dyn Setting { setting }).collect();
    let must = Must { sample: 2, most_by_name: false, at_once: BUSY_AT_ONCE, ..NEED_NOT_MEET };
    kill_at_every_step(&settings, must);
}

#[test]
fn a_purge_of_sqlite_killed_at_any_step_leaves_nothing_half() {
    kill_what_forgets(&Combination::embedded());
}

#[test]
fn a_purge_of_postgres_killed_at_any_step_leaves_nothing_half() {
    kill_what_forgets(&Combination::postgres_and_maildir());
}

#[test]
fn a_purge_of_mariadb_killed_at_any_step_leaves_nothing_half() {
    kill_what_forgets(&Combination::mariadb_and_maildir());
}

#[test]
fn a_migration_killed_at_any_step_is_done_by_the_next() {
    for site in sites(1) {
        kill_at_every_step(&[&Migration(&site)], NEED_NOT_MEET);
    }
}

#[test]
fn an_upgrade_of_sqlite_beside_a_reader_and_deliveries_killed_at_any_step_is_done_by_the_next() {
    let must = Must { sample: 20, ..NEED_NOT_MEET };
    kill_at_every_step(&[&ByRecipient::of(&Combination::embedded())], must);
}

#[test]
fn an_upgrade_of_mariadb_beside_a_reader_and_deliveries_killed_at_any_step_is_done_by_the_next() {
    // Each of its statements commits by itself: all are of one kind.
    let must = Must { sample: 12, most_by_name: false, ..NEED_NOT_MEET };
    kill_at_every_step(&[&ByRecipient::of(&Combination::mariadb_and_maildir())], must);
}

#[test]
fn a_replay_killed_at_any_step_leaves_one_copy_of_each_message() {
    for site in sites(2) {
        kill_at_every_step(
            &[&Replaying(&site)],
            Must { be_found_by_a_look: false, ..MUST_MEET_BOTH },
        );
    }
}

/// With several recipients, whose replies come one by one.
#[test]
fn an_lmtp_server_killed_at_any_step_leaves_one_copy() {
    for site in sites(3) {
        kill_at_every_step(
            &[&LmtpServer(&site)],
            Must { be_found_by_a_look: false, ..MUST_MEET_BOTH },
        );
    }
}

/// Whoever linked it may have been killed before the folder's sync, and the ledger may be on
/// another disk.
#[test]
fn a_copy_found_in_a_maildir_is_on_disk_before_it_is_on_record() {
    let site = Site::embedded();
    let config = site.config("etc", "[directory]\ndomains = [\"mail.axial.net\"]\n");
    let root = &site.root;
    let message =
        root.write("message", "From: ann@elsewhere.example\nMessage-ID: <found@x>\n\nbody\n");
    let log = root.join("strace");
    let run = || {
        let mut command = traced(None, &log);
        command.arg(crate::support::onedrop_path()).args(["deliver", "--config"]).arg(&config);
        command
            .args(["-d", "scuba@mail.axial.net"])
            .stdin(fs::File::open(&message).expect("message"));
        let output = command.output().expect("strace");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run();
    let ledger = site.sqlite();
    let in_doubt = "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL, \
                    leased_until = NULL, in_doubt = 1";
    assert_eq!(ledger.execute(in_doubt, []).expect("update"), 1);
    drop(ledger);
    let said = run();
    assert!(said.starts_with("found "), "{said}");
    let calls = strace::calls(&fs::read_to_string(&log).expect("what strace saw"));
    let synced = calls
        .iter()
        .find(|call| call.name == "fsync" && call.worked() && call.on().ends_with("Maildir/new"));
    let synced = synced.expect("the folder is synced");
    let recorded = calls
        .iter()
        .rfind(|call| call.name == "pwrite64" && call.on().ends_with("-wal"))
        .expect("a receipt");
    assert!(synced.ended < recorded.began, "the receipt comes after it: {synced:?}, {recorded:?}");
}
