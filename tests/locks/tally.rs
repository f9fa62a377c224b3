//! All ways to a lock mixed on one name: `with-lock`, programs by SQL in Python and PHP, and by the
//! pipe, from four hosts. A share of them is killed at any moment, stopped past the lease or goes
//! on after it, sessions are ended, and now and then the server is away for longer than the lease.
//! A journal and a lock on a file for each slot are the witnesses: at no time do more work than the
//! lock has slots, epochs only grow, and the fence refuses what comes late.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onedrop_core::testing::chance::Chance;

use crate::place::{Place, children};
use crate::programs::{Server, programs_of, statements_into, within};
use crate::support::lock_journal::{Tally, fence_held, judged};
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::server::pid_of;
use crate::support::{PROJECT, TempRoot, is_full, wait_until};

const HOSTS: usize = 4;
/// Longer than the lease of any.
const STOPPED_FOR: Duration = Duration::from_secs(8);
/// Of this many faults of the ledger the first is an outage, the others end a session.
const OUTAGE_EVERY: usize = 30;
/// A bound for one turn.
const LONG: Duration = Duration::from_secs(240);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    WithLock,
    Python,
    Php,
    Pipe,
    /// Those of the page for SQLite.
    Statements,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    None,
    /// The process that was started, or the first below it, and so on.
    Kill(usize),
    Stop(usize),
    /// It does not renew, and goes on.
    Late,
}

impl Way {
    /// How many processes one turn has: the wrapper, its guardian, the command or the program.
    fn depth(self) -> usize {
        match self {
            Way::WithLock | Way::Pipe => 3,
            Way::Python | Way::Php | Way::Statements => 1,
        }
    }
}

fn fate(way: Way, chance: &mut Chance) -> Fate {
    match chance.pick(24) {
        0..3 => Fate::Kill(chance.pick(way.depth())),
        3 if way.depth() == 1 => Fate::Late,
        3 => Fate::Stop(chance.pick(way.depth())),
        _ => Fate::None,
    }
}

/// A process that has turns, and what it says.
struct Program {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = kill(pid_of(&self.child), Signal::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(mut command: Command) -> Program {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare");
        let (tell, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
        });
        Program { orders: child.stdin.take(), child, lines }
    }

    /// The process at this depth below the one that was started.
    fn process(&self, depth: usize) -> Option<Pid> {
        (0..depth).try_fold(pid_of(&self.child), |pid, _| children(pid).first().copied())
    }

    /// `None`: it has ended.
    fn says(&self) -> Option<String> {
        match self.lines.recv_timeout(LONG) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("a turn without an end"),
        }
    }
}

/// What befalls the ledger.
struct LedgerFaults<'a> {
    /// At most this many, any.
    ends_sessions: &'a (dyn Fn(u32) + Sync),
    way: &'a WayIn,
}

impl LedgerFaults<'_> {
    fn befall(&self, nth: usize) {
        if !nth.is_multiple_of(OUTAGE_EVERY) {
            (self.ends_sessions)(1);
            return;
        }
        self.way.close();
        (self.ends_sessions)(u32::MAX);
        thread::sleep(STOPPED_FOR);
        self.way.open();
    }
}

/// The only way to a server that the hosts know: a link to where its socket is.
struct WayIn {
    folder: TempRoot,
    to: PathBuf,
}

impl WayIn {
    fn to(target: &Path) -> WayIn {
        let way = WayIn { folder: TempRoot::new(), to: target.to_owned() };
        way.open();
        way
    }

    fn path(&self) -> PathBuf {
        self.folder.join("way")
    }

    fn open(&self) {
        symlink(&self.to, self.path()).expect("a link");
    }

    fn close(&self) {
        fs::remove_file(self.path()).expect("a link");
    }
}

struct Mix<'a> {
    place: &'a Place,
    server: Option<&'a Server>,
    slots: u32,
    wanted: usize,
    has_faults: bool,
    begun: AtomicUsize,
    ways: Mutex<BTreeMap<Way, usize>>,
    killed: AtomicUsize,
    stopped: AtomicUsize,
    endings: Mutex<BTreeMap<String, usize>>,
}

impl Mix<'_> {
    /// `args`, on this host.
    fn on_host(&self, host: usize, args: &[&str]) -> Command {
        let enters = format!("echo mx{host} >/proc/sys/kernel/hostname; exec \"$@\"");
        let mut command = within(self.place, "unshare");
        command.args(["--uts", "sh", "-c", &enters, "sh"]).args(args);
        let log = fs::OpenOptions::new().create(true).append(true).open(self.place.path("log"));
        command.stderr(log.expect("a log"));
        command
    }

    /// With an order, where it takes one.
    fn start(&self, way: Way, host: usize, kind: &str, millis: usize) -> Program {
        let program = |name: &str| format!("{PROJECT}/tests/locks/tally/{name}");
        let (slots, ticks) = (self.slots.to_string(), (millis / 10).to_string());
        let ttl = if self.has_faults { "5" } else { "60" };
        let python = |how| vec!["/usr/bin/python3".to_owned(), program("program.py"), how];
        let words = match way {
            Way::WithLock => {
                let take = ["onedrop", "with-lock", "mixed", "--wait", "300s", "--ttl", "6s"];
                let args = ["--grace", "0", "--slots", &slots, "--", "sh"];
                let mut words: Vec<String> =
                    [&take[..], &args].concat().iter().map(|&word| word.into()).collect();
                words.extend([program("command.sh"), kind.to_owned(), ticks]);
                words
            }
            Way::Php => {
                let Server { pdo, user, .. } = self.server.expect("a server");
                let words = [&program("program.php"), &*slots, ttl, pdo, user];
                ["php", "-d", "display_errors=stderr"]
                    .into_iter()
                    .chain(words)
                    .map(str::to_owned)
                    .collect()
            }
            Way::Python => python("sql".to_owned()),
            Way::Pipe => python("pipe".to_owned()),
            Way::Statements => python("statements".to_owned()),
        };
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        if words[0].ends_with("python3") {
            words.extend([&*slots, ttl]);
        }
        Program::start(self.on_host(host, &words))
    }

    fn works(&self, worker: usize, way: Way) {
        // The same in each run.
        let (mut chance, mut program) = (Chance::Seeded(worker as u64), None);
        while self.begun.load(Ordering::SeqCst) < self.wanted {
            let fate = if self.has_faults { fate(way, &mut chance) } else { Fate::None };
            let kind = match (way, fate) {
                (_, Fate::Late) => "late",
                // The kernel kills the command with its guardian, and not what it has started.
                (Way::WithLock, Fate::Kill(0 | 2)) => "deep",
                _ => "work",
            };
            let millis = chance.pick(if fate == Fate::None { 20 } else { 400 });
            let mut one = match program.take() {
                Some(program) => program,
                None => self.start(way, worker % HOSTS, kind, millis),
            };
            let order = format!("{kind} {millis}\n");
            if way != Way::WithLock
                && one.orders.as_mut().is_none_or(|to| to.write_all(order.as_bytes()).is_err())
            {
                continue;
            }
            let said = self.turn(way, fate, &one, &mut chance);
            *self.endings.lock().expect("counts").entry(format!("{said:?}")).or_default() += 1;
            match said.as_deref() {
                Some("ok") if fate != Fate::Late => {}
                Some("refused") if fate == Fate::Late => {}
                Some("lost" | "gone") | None if self.has_faults => {}
                _ => panic!("{way:?}, {fate:?}: {said:?}\n{}", self.place.text("log")),
            }
            match way {
                // It gives the lock back yet.
                Way::WithLock if fate == Fate::None => drop(one.child.wait()),
                Way::WithLock => {}
                _ if said.is_some() => program = Some(one),
                // While the server is away it ends at once.
                _ => thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// How the turn ended; `None`: the process has ended before it was over.
    fn turn(&self, way: Way, fate: Fate, program: &Program, chance: &mut Chance) -> Option<String> {
        let befalls = || {
            let (depth, signal) = match fate {
                Fate::None | Fate::Late => return,
                Fate::Kill(depth) => (depth, Signal::SIGKILL),
                Fate::Stop(depth) => (depth, Signal::SIGSTOP),
            };
            let Some(pid) = program.process(depth) else { return };
            if kill(pid, signal).is_err() {
                return;
            }
            if signal == Signal::SIGKILL {
                self.killed.fetch_add(1, Ordering::SeqCst);
                return;
            }
            self.stopped.fetch_add(1, Ordering::SeqCst);
            thread::sleep(STOPPED_FOR);
            let _ = kill(pid, Signal::SIGCONT);
        };
        let is_early = chance.pick(3) == 0;
        if is_early {
            thread::sleep(Duration::from_millis(chance.between(0, 150)));
            befalls();
        }
        loop {
            let said = program.says()?;
            if said != "began" {
                return Some(said);
            }
            self.begun.fetch_add(1, Ordering::SeqCst);
            *self.ways.lock().expect("counts").entry(way).or_default() += 1;
            if !is_early {
                befalls();
            }
        }
    }
}

/// At least this many turns, and what befalls them.
fn mixed(
    place: &Place,
    server: Option<&Server>,
    slots: u32,
    (wanted, has_faults): (usize, bool),
    faults: Option<&LedgerFaults<'_>>,
    writes: &dyn Fn() -> String,
) {
    for file in fs::read_dir(&*place.site.root).expect("a folder").map_while(Result::ok) {
        if file.file_name().to_string_lossy().starts_with("slot.") {
            fs::remove_file(file.path()).expect("a file");
        }
    }
    fs::write(place.path("journal"), "").expect("a file");
    let (before, began) = (writes(), Instant::now());
    let mix = Mix {
        place,
        server,
        slots,
        wanted,
        has_faults,
        begun: AtomicUsize::new(0),
        ways: Mutex::default(),
        killed: AtomicUsize::new(0),
        stopped: AtomicUsize::new(0),
        endings: Mutex::default(),
    };
    let ways = match server {
        Some(_) => [Way::WithLock, Way::Python, Way::Php, Way::Pipe],
        None => [Way::WithLock, Way::Statements, Way::WithLock, Way::Pipe],
    };
    let (is_over, faults_seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2 * HOSTS)
            .map(|worker| {
                // Each way comes from several hosts.
                let way = ways[(worker + worker / HOSTS) % ways.len()];
                let mix = &mix;
                scope.spawn(move || mix.works(worker, way))
            })
            .collect();
        if let Some(faults) = faults.filter(|_| has_faults) {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(500));
                    faults.befall(faults_seen.fetch_add(1, Ordering::SeqCst));
                }
            });
        }
        let ends: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::SeqCst);
        assert!(ends.iter().all(Result::is_ok));
    });
    let tally = judged(&place.text("journal"), slots);
    let writes = writes();
    let fenced = fence_held(writes[before.len()..].trim_start());
    println!(
        "{slots} slots, {:?}: {tally:?}, {:?}; {:?} killed, {:?} stopped, {faults_seen:?} faults \
         of the ledger; {fenced:?} fenced writes; {:?}",
        began.elapsed(),
        mix.ways.lock().expect("counts"),
        mix.killed,
        mix.stopped,
        mix.endings.lock().expect("counts"),
    );
    let Tally { commands, .. } = tally.expect("one in a slot");
    assert!(commands >= wanted, "{commands}");
    fenced.expect("the fence");
    // What a fault has left is over when its lease is.
    let is_over = || place.lock(&["list"]).out.lines().all(|row| row.contains(", run out"));
    assert!(wait_until(LONG, is_over), "held for ever: {}", place.lock(&["list"]).out);
}

/// Of each engine a third of 10,000 turns, a third of them with faults.
fn all(
    place: &Place,
    server: Option<&Server>,
    faults: Option<&LedgerFaults<'_>>,
    writes: &dyn Fn() -> String,
) {
    let cells: &[(u32, usize, bool)] = match is_full() {
        true => &[
            (1, 760, false),
            (1, 380, true),
            (3, 760, false),
            (3, 380, true),
            (16, 760, false),
            (16, 380, true),
        ],
        false => &[(1, 6, false), (3, 8, true)],
    };
    for (slots, wanted, has_faults) in cells {
        mixed(place, server, *slots, (*wanted, *has_faults), faults, writes);
    }
}

#[test]
fn of_all_ways_to_a_lock_on_postgres_no_more_hold_it_than_it_has_slots() {
    let postgres = Postgres::shared();
    let way = WayIn::to(&postgres.socket_dir());
    let server = Server::postgres_in(&way.path(), &postgres);
    postgres.psql("CREATE TABLE work (id bigserial PRIMARY KEY, slot int, epoch bigint)");
    postgres.psql("ALTER TABLE work OWNER TO onedrop");
    let ends_sessions = |most: u32| {
        postgres.psql(&format!(
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()
             ORDER BY random() LIMIT {most}) one",
        ));
    };
    let writes = || postgres.psql("SELECT slot || ' ' || epoch FROM work ORDER BY id");
    let faults = LedgerFaults { ends_sessions: &ends_sessions, way: &way };
    all(&server.place, Some(&server), Some(&faults), &writes);
}

#[test]
fn of_all_ways_to_a_lock_on_mariadb_no_more_hold_it_than_it_has_slots() {
    let mariadb = Mariadb::shared();
    let way = WayIn::to(&mariadb.socket());
    let server = Server::mariadb_at(&way.path(), &mariadb);
    mariadb.sql("CREATE TABLE work (id bigint AUTO_INCREMENT PRIMARY KEY, slot int, epoch bigint)");
    let ends_sessions = |most: u32| {
        let sessions = mariadb.sql(&format!(
            "SELECT id FROM information_schema.processlist
             WHERE db = DATABASE() AND id <> CONNECTION_ID() ORDER BY RAND() LIMIT {most}",
        ));
        for one in sessions.lines().filter(|one| !one.trim().is_empty()) {
            mariadb.sql(&format!(
                "BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR 1094 BEGIN END; KILL {one}; END"
            ));
        }
    };
    let writes = || mariadb.sql("SELECT CONCAT(slot, ' ', epoch) FROM work ORDER BY id");
    let faults = LedgerFaults { ends_sessions: &ends_sessions, way: &way };
    all(&server.place, Some(&server), Some(&faults), &writes);
}

#[test]
fn of_all_ways_to_a_lock_in_a_file_no_more_hold_it_than_it_has_slots() {
    let place = Place::new();
    programs_of("docs/locks-programs.md", &place);
    statements_into(&place);
    let table = "CREATE TABLE work (id INTEGER PRIMARY KEY, slot int, epoch bigint)";
    place.site.sqlite().execute(table, []).expect("SQL");
    let writes = || {
        let lines = place.site.ledger("SELECT slot || ' ' || epoch FROM work ORDER BY id");
        lines.iter().map(|line| format!("{line}\n")).collect()
    };
    all(&place, None, None, &writes);
}

#[test]
fn two_in_a_slot_are_seen() {
    let good = "1 1 began\n2 1 fenced\n1 1 work\n1 1 deep\n2 2 began\n1 3 began\n2 2 work\n";
    let tally = Tally { commands: 4, fenced: 1, lines: 7 };
    assert_eq!(judged(good, 2), Ok(tally));
    for (more, why) in [
        ("2 3 twice\n", "it is not free"),
        ("1 1 deep\n", "what an earlier one had started goes on"),
        ("1 3 began\n", "an epoch is given out twice"),
        ("1 2 began\n", "an epoch falls"),
        ("2 1 work\n", "a fenced one works without the fence"),
        ("3 1 began\n", "a slot that is not there"),
        ("1 4", "a line is cut"),
    ] {
        assert!(judged(&format!("{good}{more}"), 2).is_err(), "{why}");
    }
    assert_eq!(fence_held("1 1\n2 5\n1 1\n1 2\n"), Ok(4));
    assert!(fence_held("1 2\n2 5\n1 1\n").is_err());
}
