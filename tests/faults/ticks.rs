//! A day of jobs in minutes: eight hosts tick over one ledger, by a wall clock that runs many times
//! as fast as it should, while ticks, wrappers, guardians and commands are killed. In the end each
//! time of each schedule has succeeded once, or the record says why not.
//!
//! There the ledger is a file: its locks count by the boot clock, which is the real one, and the
//! jobs' times by the wall clock. Hosts are names (uts_namespaces(7)). `ONEDROP_SEED` repeats a
//! run's choices (not the scheduling); each run prints its seed.
//!
//! In a MariaDB locks and times both count by the server's clock, which is the real one: there jobs
//! are due every other second, and no run begins beside another one or twice.

mod judge;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onedrop_core::testing::chance::Chance;

use crate::hosts::seed;
use crate::support::mariadb::Mariadb;
use crate::support::place::children;
use crate::support::server::pid_of;
use crate::support::site::{Files, Site};
use crate::support::{is_full, onedrop, onedrop_path, remove_variables, wait_until};
use crate::wall_clock::WallClock;
use judge::{DayTally, RunRow, Times, judged_journal, judged_rows};

const HOSTS: usize = 8;
/// 10 March 2026, a day without a change of any clock, in seconds since 1970.
const MIDNIGHT: u64 = 1_773_100_800;
/// A job's lock outlives a killed wrapper by that.
const TTL: &str = "24s";
/// Once nothing more is killed: a lock's TTL, and room for a busy machine.
const SETTLED_WITHIN: Duration = Duration::from_secs(150);
const BACKFILLS: [&str; 3] = ["all", "latest", "none"];

/// How long a day is and how much goes on in it.
struct Day {
    jobs: usize,
    hours: u64,
    /// Of the wall clock to the real one.
    rate: u32,
    /// Milliseconds between two ticks of a host, at least; at most four times as long. All hosts
    /// start what is due, and one gets its lock: too many would be busy with nothing else.
    pause: u64,
}

const SAMPLE: Day = Day { jobs: 20, hours: 2, rate: 240, pause: 500 };
const WHOLE: Day = Day { jobs: 50, hours: 24, rate: 72, pause: 1500 };

struct JobPlan {
    name: String,
    /// `None`: every 40 minutes.
    times: Option<Times>,
    backfill: &'static str,
    /// Each of its times succeeds in the end.
    catches_up: bool,
    toml: String,
}

fn times(n: usize) -> Times {
    let minute = (n as i64 * 7) % 60;
    let whole_day: Vec<i64> = (0..24).collect();
    let (text, minutes, hours) = match n % 5 {
        0 if n.is_multiple_of(2) => ("*/15 * * * *".to_owned(), vec![0, 15, 30, 45], whole_day),
        0 => ("5-50/15 * * * *".to_owned(), vec![5, 20, 35, 50], whole_day),
        1 => (format!("{minute} * * * *"), vec![minute], whole_day),
        2 => (format!("{minute} */2 * * *"), vec![minute], (0..24).step_by(2).collect()),
        3 => (format!("{minute} 1,{} * * *", n % 24), vec![minute], vec![1, n as i64 % 24]),
        _ => ("40 0-3,8-18/2 * * *".to_owned(), vec![40], vec![0, 1, 2, 3, 8, 10, 12, 14, 16, 18]),
    };
    Times { text, minutes, hours }
}

fn job(n: usize, journal: &Path) -> JobPlan {
    let name = format!("job{n:02}");
    // Some stand for elapsed time.
    let times = (n % 12 != 11).then(|| times(n));
    let backfill = BACKFILLS[n % 3];
    // Some fail now and then.
    let fails = if n.is_multiple_of(4) { "[ $(($$ % 6)) = 0 ]" } else { "false" };
    let journal = journal.display();
    let script = format!(
        "due=$(date -d \"$ONEDROP_JOB_DUE\" +%s); \
         say() {{ echo \"$ONEDROP_JOB_NAME $due $ONEDROP_JOB_TRY $1\" >>{journal}; }}; \
         say began; sleep 0.$(($$ % 3))5; if {fails}; then say failed; exit 1; fi; say done"
    );
    let when = match &times {
        Some(times) => format!("schedule = \"{}\"", times.text),
        None => "every = \"40m\"".to_owned(),
    };
    let mut toml = format!(
        "[jobs.{name}]\n{when}\ncommand = [\"sh\", \"-c\", '''{script}''']\n\
         backfill = \"{backfill}\"\nretry = \"2m\"\nretry_most = \"10m\"\nttl = \"{TTL}\"\n"
    );
    if n % 10 == 6 {
        writeln!(toml, "depends_on = [\"job{:02}\"]", n - 5).expect("a text");
    }
    let is_limited = n % 10 == 5;
    if is_limited {
        toml.push_str("late = \"2h\"\n");
    }
    let catches_up = backfill == "all" && !is_limited;
    JobPlan { name, times, backfill, catches_up, toml }
}

struct World {
    site: Site<Files>,
    /// Where the ledger is, if not in the site's file.
    mariadb: Option<Mariadb>,
    config: PathBuf,
    clock: WallClock,
    /// Each host's tick.
    ticks: Mutex<BTreeMap<usize, Pid>>,
    killed: Mutex<BTreeMap<&'static str, usize>>,
    is_over: AtomicBool,
}

impl World {
    /// Ticks again and again, as one host's timer would.
    fn tick(&self, host: usize, pause: u64, mut chance: Chance) {
        while !self.is_over.load(Ordering::SeqCst) {
            let mut command = Command::new("unshare");
            let script = format!("echo mx{host} >/proc/sys/kernel/hostname; exec \"$0\" \"$@\"");
            command.args(["--uts", "sh", "-c", &script]).arg(onedrop_path());
            command.arg("--config").arg(&self.config).args(["jobs", "tick"]);
            remove_variables(&mut command);
            let ends = self.site.root.join(format!("ends{host}"));
            command.env("ONEDROP__JOBS__STATE_DIR", ends);
            self.clock.shown_to(&mut command);
            let mut log = fs::OpenOptions::new();
            log.create(true).append(true);
            let log = log.open(self.site.root.join(format!("log{host}"))).expect("a log");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            let mut child = command.spawn().expect("unshare");
            self.ticks.lock().expect("ticks").insert(host, pid_of(&child));
            let status = child.wait().expect("our child");
            self.ticks.lock().expect("ticks").remove(&host);
            // 1: a job has failed.
            let is_over = self.is_over.load(Ordering::SeqCst);
            assert!(
                matches!(status.code(), Some(0 | 1) | None) || is_over,
                "host {host}: {status}"
            );
            thread::sleep(Duration::from_millis(pause + chance.between(0, 3 * pause)));
        }
    }

    /// Kills something, as soon as it is seen to run.
    fn kill_one(&self, chance: &mut Chance) {
        // A wrapper that is gone keeps its job waiting for the lock's whole time.
        let what = match chance.pick(8) {
            0..3 => "ticks",
            3 => "wrappers",
            4 => "guardians",
            _ => "commands",
        };
        let is_killed = wait_until(Duration::from_secs(1), || {
            let ticks = self.ticks.lock().expect("ticks").values().copied().collect();
            let below = |pids: Vec<Pid>| pids.into_iter().flat_map(children).collect();
            let pids: Vec<Pid> = match what {
                "ticks" => ticks,
                "wrappers" => below(ticks),
                "guardians" => below(below(ticks)),
                _ => below(below(below(ticks))),
            };
            !pids.is_empty() && {
                let one = pids[chance.pick(pids.len())];
                kill(one, Signal::SIGKILL).is_ok()
            }
        });
        if is_killed {
            *self.killed.lock().expect("counts").entry(what).or_default() += 1;
        }
    }

    /// Seconds since 1970, as the hosts see it.
    fn now(&self, began: Instant, rate: u32) -> i64 {
        (MIDNIGHT + (began.elapsed() * rate).as_secs()) as i64
    }

    fn rows(&self) -> Vec<RunRow> {
        if let Some(mariadb) = &self.mariadb {
            let rows = mariadb.sql(
                "SELECT job, TIMESTAMPDIFF(SECOND, '1970-01-01', due_at), try,
                     COALESCE(outcome, ''), TIMESTAMPDIFF(SECOND, '1970-01-01', last_due_at),
                     occurrences
                 FROM onedrop_job_run ORDER BY id",
            );
            return rows.lines().map(row_of_text).collect();
        }
        let ledger = self.site.sqlite();
        let sql = "SELECT job, due_at, try, outcome, last_due_at, occurrences \
                   FROM onedrop_job_run ORDER BY id";
        let mut query = ledger.prepare(sql).expect("query");
        // Times are whole milliseconds; a command gets the whole seconds of its due time.
        let secs = |time: f64| ((time * 1000.0).round() as i64).div_euclid(1000);
        let rows = query.query_map([], |row| {
            Ok(RunRow {
                job: row.get(0)?,
                due: secs(row.get(1)?),
                try_no: row.get(2)?,
                outcome: row.get(3)?,
                last_due: secs(row.get(4)?),
                occurrences: row.get(5)?,
            })
        });
        rows.expect("rows").map(|row| row.expect("row")).collect()
    }

    /// Whether nothing up to that time is still to be done.
    fn is_settled(&self, until: i64) -> bool {
        let open = format!(
            "SELECT name FROM onedrop_job \
             WHERE open_due <= {until} OR (next_due <= {until} AND schedule NOT LIKE 'every%')"
        );
        self.site.ledger(&open).is_empty()
    }

    fn first_sights(&self) -> BTreeMap<String, i64> {
        let rows = self.site.ledger("SELECT name || ' ' || first_seen FROM onedrop_job");
        let pair = |row: &String| {
            let (name, time) = row.split_once(' ').expect("two words");
            (name.to_owned(), time.parse::<f64>().expect("a time").floor() as i64)
        };
        rows.iter().map(pair).collect()
    }
}

/// Job, due time, try, outcome, last due time, occurrences; as the client prints them.
fn row_of_text(line: &str) -> RunRow {
    let cells: Vec<&str> = line.split('\t').collect();
    let number = |at: usize| cells[at].parse::<i64>().expect("a number");
    RunRow {
        job: cells[0].to_owned(),
        due: number(1),
        try_no: number(2),
        outcome: Some(cells[3].to_owned()).filter(|outcome| !outcome.is_empty()),
        last_due: number(4),
        occurrences: number(5),
    }
}

#[test]
fn eight_hosts_that_tick_over_a_mariadb_begin_no_run_twice_or_beside_another() {
    const JOBS: usize = 10;
    let seed = seed();
    let is_full = is_full();
    let lasts = Duration::from_secs(if is_full { 300 } else { 5 });
    let (site, mariadb) = (Site::embedded(), Mariadb::shared());
    let journal = site.root.write("journal", "");
    let jobs: String = (0..JOBS)
        .map(|n| {
            let job = job(n, &journal).toml;
            let schedule = job.lines().nth(1).expect("when");
            let job = job.replace(schedule, "every = \"2s\"").replace("2m", "1s");
            job.lines()
                .filter(|line| !line.starts_with("depends_on"))
                .fold(String::new(), |all, line| all + line + "\n")
        })
        .collect();
    let config = site.config("etc", &format!("{}{jobs}", mariadb.toml()));
    let clock = WallClock::start(&site.root, "clock");
    let world = World {
        site,
        mariadb: Some(mariadb),
        config,
        clock,
        ticks: Mutex::default(),
        killed: Mutex::default(),
        is_over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for host in 0..HOSTS {
            let chance = Chance::Seeded(seed ^ Chance::Seeded(host as u64).number());
            let world = &world;
            scope.spawn(move || world.tick(host, 200, chance));
        }
        let (mut chance, began) = (Chance::Seeded(seed), Instant::now());
        while began.elapsed() < lasts {
            thread::sleep(Duration::from_millis(300 + chance.between(0, 600)));
            world.kill_one(&mut chance);
        }
        world.is_over.store(true, Ordering::SeqCst);
        for pid in world.ticks.lock().expect("ticks").values() {
            let _ = kill(*pid, Signal::SIGTERM);
        }
    });
    let rows = world.rows();
    let began = judged_journal(&fs::read_to_string(&journal).expect("the journal"), &rows);
    let killed = world.killed.lock().expect("counts");
    let ok = rows.iter().filter(|row| row.outcome.as_deref() == Some("ok")).count();
    writeln!(std::io::stderr(), "seed {seed}; {began:?} began, {ok} succeeded; killed: {killed:?}")
        .expect("stderr");
    let mut once: Vec<_> = rows.iter().filter(|row| row.outcome.as_deref() == Some("ok")).collect();
    once.sort_by_key(|row| (&row.job, row.due));
    assert!(!once.windows(2).any(|two| (&two[0].job, two[0].due) == (&two[1].job, two[1].due)));
    assert!(began.as_ref().is_ok_and(|began| *began >= JOBS) && ok >= JOBS / 2, "{began:?}, {ok}");
    assert!(killed.len() > 1, "{killed:?}");
}

#[test]
fn a_day_of_jobs_on_eight_hosts_succeeds_or_says_why_not() {
    let seed = seed();
    let day = if is_full() { WHOLE } else { SAMPLE };
    let site = Site::embedded();
    let journal = site.root.write("journal", "");
    let jobs: Vec<JobPlan> = (0..day.jobs).map(|n| job(n, &journal)).collect();
    let config = site.config("etc", &jobs.iter().map(|job| &*job.toml).collect::<String>());
    let clock = WallClock::start(&site.root, "clock");
    clock.run_at(UNIX_EPOCH + Duration::from_secs(MIDNIGHT), day.rate);
    let began = Instant::now();
    let mut migrate = onedrop();
    migrate.arg("--config").arg(&config).arg("migrate");
    clock.shown_to(&mut migrate);
    crate::support::run(&mut migrate);
    let world = World {
        site,
        mariadb: None,
        config,
        clock,
        ticks: Mutex::default(),
        killed: Mutex::default(),
        is_over: AtomicBool::new(false),
    };
    let until = (MIDNIGHT + day.hours * 3600) as i64;
    let is_settled = thread::scope(|scope| {
        for host in 0..HOSTS {
            let chance = Chance::Seeded(seed ^ Chance::Seeded(host as u64).number());
            let (world, pause) = (&world, day.pause);
            scope.spawn(move || world.tick(host, pause, chance));
        }
        let mut chance = Chance::Seeded(seed);
        while world.now(began, day.rate) < until {
            thread::sleep(Duration::from_millis(100 + chance.between(0, 500)));
            world.kill_one(&mut chance);
        }
        let is_settled = wait_until(SETTLED_WITHIN, || {
            thread::sleep(Duration::from_millis(500));
            world.is_settled(until)
        });
        world.is_over.store(true, Ordering::SeqCst);
        // One ends by itself when nothing is due, which may never be.
        for pid in world.ticks.lock().expect("ticks").values() {
            let _ = kill(*pid, Signal::SIGTERM);
        }
        is_settled
    });
    let logs = || {
        let log = |n| fs::read_to_string(world.site.root.join(format!("log{n}")));
        (0..HOSTS).filter_map(|n| log(n).ok()).collect::<String>()
    };
    let (rows, sights) = (world.rows(), world.first_sights());
    let now = world.now(began, day.rate);
    let mut all = DayTally::default();
    let mut wrong = Vec::new();
    for job in &jobs {
        let Some(times) = &job.times else { continue };
        let Some(seen) = sights.get(&job.name) else {
            wrong.push(format!("{} was never seen", job.name));
            continue;
        };
        let times = times.between(seen + 1, now);
        let of_job: Vec<&RunRow> = rows.iter().filter(|row| row.job == job.name).collect();
        match judged_rows(&of_job, &times, until, job.catches_up) {
            Ok(tally) => {
                all.times += tally.times;
                all.ok += tally.ok;
                all.skipped += tally.skipped;
                all.given_up += tally.given_up;
                all.tries += tally.tries;
            }
            Err(why) => wrong.push(format!("{} ({}): {why}", job.name, job.backfill)),
        }
    }
    let written = judged_journal(&fs::read_to_string(&journal).expect("the journal"), &rows);
    let killed = world.killed.lock().expect("counts");
    writeln!(
        std::io::stderr(),
        "{} jobs, {} hours on {HOSTS} hosts: seed {seed}; {all:?}; commands that began: \
         {written:?}; killed: {killed:?}; {:.0} s",
        day.jobs,
        day.hours,
        began.elapsed().as_secs_f32()
    )
    .expect("stderr");
    assert!(wrong.is_empty() && written.is_ok(), "{}\n{}", wrong.join("\n"), logs());
    assert!(is_settled, "not everything is told\n{}", logs());
    assert!(all.ok > 20 && killed.len() == 4, "{all:?}, {killed:?}");
}
