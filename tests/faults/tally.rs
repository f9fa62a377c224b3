//! Locks on four hosts: network, boot clock and wall clock are each one's own, an hour apart, and
//! all they share is a Postgres with a synchronous standby. Workers on all of them run commands
//! under one lock; wrappers, guardians and commands are killed and stopped past the lease, the
//! ledger freezes or is down for as long, a host's cable is pulled, wall clocks step, the
//! standby is promoted. At no time do more commands run than the lock has slots, and none of those
//! that were frozen with both of their watchers writes what is fenced.
//!
//! `ONEDROP_SEED` repeats a run's choices (not the scheduling); each run prints its seed.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onedrop_core::testing::chance::Chance;

use crate::host::{Host, free_net, on_all_cables};
use crate::hosts::seed;
use crate::sample::sample;
use crate::support::lock_journal::{fence_held, judged};
use crate::support::place::children;
use crate::support::postgres::{Postgres, bin};
use crate::support::server::pid_of;
use crate::support::site::{Files, Site};
use crate::support::{TempRoot, onedrop_path, set_mode, wait_until};
use crate::wall_clock::WallClock;

const HOSTS: usize = 4;
/// The shortest there is.
const TTL: Duration = Duration::from_secs(6);
/// Past the lease: what is stopped, frozen, down or cut off.
const STOPPED_FOR: Duration = Duration::from_secs(8);
/// No shorter than the troubles take.
const WORKED_FOR: Duration = Duration::from_secs(50);
/// Between two troubles.
const CALM: Duration = Duration::from_secs(4);
/// A bound for what a worker waits for.
const SOON: Duration = Duration::from_secs(90);
const HOUR: Duration = Duration::from_secs(3600);

/// What befalls one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    None,
    Kill(&'static [Part]),
    /// And let go on after its lease.
    Stop(&'static [Part]),
}

/// The processes of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Wrapper,
    Guardian,
    Command,
}

use Part::{Command as Work, Guardian, Wrapper};

const KILLS: [&[Part]; 6] = [
    &[Wrapper],
    &[Guardian],
    &[Work],
    &[Wrapper, Work],
    &[Wrapper, Guardian],
    &[Wrapper, Guardian, Work],
];
const STOPS: [&[Part]; 5] =
    [&[Wrapper], &[Guardian], &[Work], &[Wrapper, Guardian], &[Wrapper, Guardian, Work]];

impl Fate {
    /// Each once, and as many runs that nothing befalls.
    fn all() -> Vec<Fate> {
        let (kills, stops) = (KILLS.map(Fate::Kill), STOPS.map(Fate::Stop));
        let mut all = [&kills[..], &stops[..]].concat();
        all.resize(2 * all.len(), Fate::None);
        all
    }

    /// Neither the wrapper nor the guardian can end the command in time.
    fn is_outside_the_promise(self) -> bool {
        matches!(self, Fate::Stop(parts) if parts.starts_with(&[Wrapper, Guardian]))
    }

    /// What the command does, see `command.py`, and for how long, in milliseconds.
    fn command(self, chance: &mut Chance) -> (&'static str, u64) {
        match self {
            _ if self.is_outside_the_promise() => ("fenced", 0),
            // The kernel kills the command, and not what it has started.
            Fate::Kill([Wrapper, Guardian, ..]) => ("plain", 1000),
            Fate::Kill(_) => ("deep", 1000),
            Fate::Stop(_) => ("deep", 10_000),
            Fate::None => ("deep", 20 + chance.between(0, 300)),
        }
    }

    /// How `with-lock` ends, if nothing else goes wrong; `None`: by SIGKILL.
    fn endings(self) -> &'static [Option<i32>] {
        match self {
            Fate::None | Fate::Stop([Work]) => &[Some(0)],
            Fate::Kill([Wrapper, ..]) => &[None],
            Fate::Kill(_) => &[Some(137)],
            // It goes on with what it knew of its lease.
            Fate::Stop([Guardian]) => &[Some(0), Some(201)],
            // No other run has claimed the slot meanwhile: the fence has refused it all the same.
            _ if self.is_outside_the_promise() => &[Some(201), Some(3)],
            Fate::Stop(_) => &[Some(201)],
        }
    }
}

/// The hosts, the ledger and what is counted.
struct World {
    hosts: Vec<Host>,
    clocks: Vec<WallClock>,
    /// Each host's, for psql.
    ledgers: Vec<String>,
    folder: PathBuf,
    slots: u32,
    seed: u64,
    /// Odd while something is wrong with the ledger or the net.
    troubles: AtomicUsize,
    /// What is to befall the next runs.
    deck: Mutex<Vec<Fate>>,
    fates: Mutex<BTreeMap<Fate, usize>>,
    endings: Mutex<BTreeMap<Option<i32>, usize>>,
}

fn child_of(pid: Pid) -> Option<Pid> {
    children(pid).first().copied()
}

impl World {
    fn start(&self, host: usize, run: &str, kind: &str, millis: u64) -> Child {
        let place = &self.hosts[host];
        let mut command = place.command(onedrop_path());
        command.args(["with-lock", "n", "--wait", "5s", "--ttl", "6s", "--grace", "0"]);
        command.arg("--config").arg(place.folder.join("onedrop.toml"));
        command.args(["--slots", &self.slots.to_string(), "--", "/usr/bin/python3"]);
        command.arg(self.folder.join("command.py")).arg(&self.folder).args([
            run,
            kind,
            &millis.to_string(),
        ]);
        command.env("PSQL", bin("psql")).env("LEDGER", &self.ledgers[host]);
        command.env("TMPDIR", place.folder.join("tmp")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(self.log(host));
        self.clocks[host].shown_to(&mut command);
        command.spawn().expect("nsenter")
    }

    fn log(&self, host: usize) -> fs::File {
        let mut options = fs::OpenOptions::new();
        options.create(true).append(true);
        options.open(self.folder.join(format!("log{host}"))).expect("a log")
    }

    fn noted(&self, run: &str, what: &str) -> bool {
        self.folder.join(format!("runs/{run}.{what}")).exists()
    }

    /// Starts commands until the end.
    fn work(&self, host: usize, worker: usize, end: Instant) {
        let mut chance =
            Chance::Seeded(self.seed ^ Chance::Seeded((host * 1000 + worker) as u64).number());
        for round in 0.. {
            if Instant::now() > end {
                return;
            }
            self.run(host, &format!("{host}-{worker}-{round}"), &mut chance);
        }
    }

    fn draw(&self, chance: &mut Chance) -> Fate {
        let mut deck = self.deck.lock().expect("deck");
        if deck.is_empty() {
            *deck = Fate::all();
        }
        let at = chance.pick(deck.len());
        deck.swap_remove(at)
    }

    fn run(&self, host: usize, run: &str, chance: &mut Chance) {
        let fate = self.draw(chance);
        let (kind, millis) = fate.command(chance);
        let calm = self.troubles.load(Ordering::SeqCst);
        let mut child = self.start(host, run, kind, millis);
        let began = |child: &mut Child| {
            let has_ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
            wait_until(SOON, || self.noted(run, "began") || has_ended(child))
        };
        // At any moment of its life, or once the command runs.
        let is_early = matches!(fate, Fate::Kill(_)) && chance.pick(2) == 0;
        match is_early {
            true => thread::sleep(Duration::from_millis(chance.between(0, 250))),
            false => assert!(began(&mut child), "{run} neither begins nor ends"),
        }
        let has_befallen = self.befall(fate, &child, run);
        let mut status = None;
        let ended = wait_until(SOON, || {
            status = child.try_wait().expect("our child");
            status.is_some()
        });
        assert!(ended, "{run}: {fate:?}: it goes on");
        let code = status.and_then(|status| status.code());
        *self.endings.lock().expect("counts").entry(code).or_default() += 1;
        let has_run = self.noted(run, "began");
        match has_befallen && (has_run || fate != Fate::None) {
            true => *self.fates.lock().expect("counts").entry(fate).or_default() += 1,
            false => self.deck.lock().expect("deck").push(fate),
        }
        let is_calm = calm.is_multiple_of(2) && self.troubles.load(Ordering::SeqCst) == calm;
        if fate.is_outside_the_promise() && has_befallen {
            assert!(self.noted(run, "refused"), "{run}: {fate:?}: {code:?}: nothing was refused");
        }
        match code {
            // Another's slot, or a command that ran until it gave up.
            Some(9 | 4) => panic!("{run}: {fate:?}: {code:?}"),
            Some(200) => assert!(!has_run, "{run}: it was busy and has run"),
            // The ledger cannot be reached, or the guardian was killed before it had an order.
            Some(125) => assert!(!is_calm || is_early, "{run}: {fate:?}: 125"),
            _ if is_calm && has_befallen && !is_early => {
                let wanted = fate.endings();
                assert!(wanted.contains(&code), "{run}: {fate:?}: {code:?}, not {wanted:?}");
            }
            Some(0 | 3 | 137 | 201) | None => {}
            Some(_) => panic!("{run}: {fate:?}: {code:?}"),
        }
    }

    /// Returns whether there was a process that it could befall.
    fn befall(&self, fate: Fate, child: &Child, run: &str) -> bool {
        let (parts, signal) = match fate {
            Fate::None => return true,
            Fate::Kill(parts) => (parts, Signal::SIGKILL),
            Fate::Stop(parts) => (parts, Signal::SIGSTOP),
        };
        let wrapper = pid_of(child);
        let guardian = child_of(wrapper);
        let command = guardian.and_then(child_of);
        let pid_of = |part: &Part| match part {
            Wrapper => Some(wrapper),
            Guardian => guardian,
            Work => command,
        };
        let pids: Option<Vec<Pid>> = parts.iter().map(pid_of).collect();
        let Some(pids) = pids else { return false };
        let is_there = fs::read_to_string(format!("/proc/{wrapper}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "));
        // From below: none hears of another's end before its own turn comes.
        for pid in pids.iter().rev() {
            let _ = kill(*pid, signal);
        }
        if signal == Signal::SIGSTOP {
            thread::sleep(STOPPED_FOR);
            // The command first: it tries to write before the guardian can end it.
            let _ = command.map(|pid| kill(pid, Signal::SIGCONT));
            if fate.is_outside_the_promise() && is_there {
                let _ = wait_until(SOON, || self.noted(run, "refused"));
            }
            for pid in pids {
                let _ = kill(pid, Signal::SIGCONT);
            }
        }
        is_there
    }

    /// Something is wrong for all while `work` runs.
    fn trouble(&self, work: impl FnOnce()) {
        self.troubles.fetch_add(1, Ordering::SeqCst);
        work();
        self.troubles.fetch_add(1, Ordering::SeqCst);
    }
}

/// What befalls the ledger and the net, one after the other; returns the server that leads then.
fn troubles(world: &World, mut primary: Postgres, standby: Postgres) -> Postgres {
    let mut chance = Chance::Seeded(world.seed);
    thread::sleep(CALM);
    match chance.pick(2) {
        0 => world.trouble(|| {
            primary.pause();
            thread::sleep(STOPPED_FOR);
            primary.resume();
        }),
        _ => world.trouble(|| {
            primary.stop_immediate();
            thread::sleep(STOPPED_FOR);
            primary.restart();
        }),
    }
    // Forth and back: none is an hour off for good.
    for (n, clock) in world.clocks.iter().enumerate() {
        let off = HOUR * u32::try_from(HOSTS - n).expect("few");
        clock.set(SystemTime::now() + off);
    }
    thread::sleep(CALM);
    let cut = &world.hosts[chance.pick(HOSTS)];
    world.trouble(|| {
        cut.plug(false);
        thread::sleep(STOPPED_FOR);
        cut.plug(true);
    });
    for (n, clock) in world.clocks.iter().enumerate() {
        clock.set(SystemTime::now() - HOUR * u32::try_from(n).expect("few"));
    }
    thread::sleep(CALM);
    world.trouble(|| {
        primary.stop_immediate();
        standby.promote();
        thread::sleep(TTL);
    });
    thread::sleep(2 * CALM);
    drop(primary);
    standby
}

/// One Postgres on all cables, its standby, and the hosts' configurations; the ledger's URL
/// as each host's psql knows it.
fn ledger(site: &Site<Files>, hosts: &[Host], net: u8) -> (Postgres, Postgres, Vec<String>) {
    let primary = Postgres::start_with(&on_all_cables(hosts, &site.root, net));
    let mut migrate = crate::support::onedrop();
    migrate.arg("--config").arg(site.config("migrate", &primary.toml())).arg("migrate");
    crate::support::run(&mut migrate);
    primary.psql("CREATE TABLE work (id bigserial PRIMARY KEY, slot int, epoch bigint)");
    primary.psql("ALTER TABLE work OWNER TO onedrop");
    let standby = primary.standby();
    let mut urls = Vec::new();
    for (n, host) in hosts.iter().enumerate() {
        let at = |with: &str| {
            format!(
                "postgres://onedrop{with}@{0}:{1},{0}:{2}/onedrop\
                 ?target_session_attrs=read-write&sslmode=disable",
                host.server,
                primary.port(),
                standby.port()
            )
        };
        let password = site.root.write(&format!("password{n}"), primary.password());
        set_mode(&password, 0o600);
        let text =
            format!("[ledger]\nurl = \"{}\"\npassword_file = \"{}\"\n", at(""), password.display());
        let config = site.config(&format!("config{n}"), &text);
        fs::copy(config, host.folder.join("onedrop.toml")).expect("configuration");
        urls.push(at(&format!(":{}", primary.password())) + "&connect_timeout=3");
    }
    (primary, standby, urls)
}

/// `workers` on each host, all for `slots` slots of one lock.
fn tally(workers: usize, slots: u32) {
    let (began, seed) = (Instant::now(), seed());
    let (site, net) = (Site::embedded(), free_net());
    let root: &TempRoot = &site.root;
    let hosts: Vec<Host> = (0..HOSTS).map(|n| Host::start(root, n, net)).collect();
    let (primary, standby, ledgers) = ledger(&site, &hosts, net);
    let clocks: Vec<WallClock> =
        (0..HOSTS).map(|n| WallClock::start(root, &format!("clock{n}"))).collect();
    for (n, clock) in clocks.iter().enumerate() {
        clock.set(SystemTime::now() + HOUR * u32::try_from(n).expect("few"));
    }
    fs::create_dir(root.join("runs")).expect("a folder");
    root.write("journal", "");
    root.write("command.py", include_str!("tally/command.py"));
    let world = World {
        hosts,
        clocks,
        ledgers,
        folder: root.to_path_buf(),
        slots,
        seed,
        troubles: AtomicUsize::new(0),
        deck: Mutex::default(),
        fates: Mutex::default(),
        endings: Mutex::default(),
    };
    let end = Instant::now() + WORKED_FOR;
    let leader = thread::scope(|scope| {
        for host in 0..HOSTS {
            for worker in 0..workers {
                let world = &world;
                scope.spawn(move || world.work(host, worker, end));
            }
        }
        troubles(&world, primary, standby)
    });
    let text = fs::read_to_string(world.folder.join("journal")).expect("the journal");
    let logs = |n| fs::read_to_string(world.folder.join(format!("log{n}"))).unwrap_or_default();
    let verdict = judged(&text, slots);
    let writes = fence_held(&leader.psql("SELECT slot || ' ' || epoch FROM work ORDER BY id"));
    let (fates, endings) = (world.fates.lock().expect("counts"), world.endings.lock());
    writeln!(
        std::io::stderr(),
        "{workers} workers on each of {HOSTS} hosts, {slots} slots: seed {seed}; {verdict:?}, \
         {writes:?} fenced writes; {fates:?}; endings {:?}; {:.0} s",
        endings.expect("counts"),
        began.elapsed().as_secs_f32()
    )
    .expect("stderr");
    let tally = match verdict {
        Ok(tally) => tally,
        Err(why) => panic!("{why}\n{}", (0..HOSTS).map(logs).collect::<String>()),
    };
    assert!(writes.expect("the fence") > 5);
    assert!(tally.commands > 4, "{tally:?}");
    assert!(fates.len() > 3, "{fates:?}");
}

#[test]
fn at_no_time_do_more_commands_run_on_four_hosts_than_a_lock_has_slots() {
    let all = [(1, 1), (1, 2), (1, 5), (3, 1), (3, 2), (3, 5), (8, 1), (8, 2), (8, 5)];
    for (workers, slots) in sample(all.to_vec(), 0, |cell| *cell == (3, 2)) {
        tally(workers, slots);
    }
}
