//! One pass over all jobs after the other, as long as one of them runs (`onedrop jobs tick`): each
//! that is due is started as a process of its own, `onedrop jobs run`, which takes the job's lock
//! and decides again by what is on record then. So any number of hosts may tick at a time.
//!
//! A crash leaves the runs alone: they end by themselves, and put that on record.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use super::hooks::{self, HookProcess};
use super::own_program::OwnProgram;
use super::plan::{self, JobPlan, JobStep, LockSight};
use super::{KeptEnds, held_job, refused};
use crate::jobs::{JobSettings, JobsSettings};
use crate::lock::may_pass;
use onedrop_core::exit::RunStatus;
use onedrop_core::ledger::{
    JobChange, JobLedger, JobRow, JobsOnRecord, LedgerError, RandomValue, of_the_ledger,
};
use onedrop_core::lock_key::hex;
use onedrop_core::os::host_name;

/// Between two passes, at most.
const MINUTE: Duration = Duration::from_secs(60);
/// Between two passes, at least.
const SECOND: Duration = Duration::from_secs(1);
/// What one pass may take of the ledger's time.
const CALLS: Duration = Duration::from_secs(20);
/// One call that is made again if it has no answer, at most.
const CALL: Duration = Duration::from_secs(5);
/// Before that.
const AGAIN: Duration = Duration::from_millis(200);
/// By how much a host's clock may differ from the ledger's.
const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(2);
const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3600);
/// How many old runs are taken off the record at a time, and how often at most.
const PRUNED: u32 = 1000;
const PRUNINGS: u32 = 100;

/// Reads the configuration.
pub type ReadJobs<'a> = &'a dyn Fn() -> Result<JobsSettings, String>;

/// How the ticking ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TickEnd {
    Well,
    /// A run has failed.
    Failed,
}

/// Passes until nothing runs and nothing is due.
///
/// # Errors
/// What keeps it from knowing which jobs are due.
pub fn tick(
    settings: JobsSettings,
    read: ReadJobs<'_>,
    ledger: &dyn JobLedger,
    program: OwnProgram,
) -> Result<TickEnd, String> {
    let signals = Signals::catch().map_err(|error| format!("cannot start: {error}"))?;
    let mut tick = Tick::new(settings, ledger, program);
    let mut next = Instant::now();
    let mut trouble = None;
    let mut is_first = true;
    loop {
        let stops = signals.stop.load(Ordering::SeqCst);
        if stops {
            tick.end_runs();
        } else if Instant::now() >= next {
            if !std::mem::take(&mut is_first) {
                match read() {
                    Ok(settings) => tick.settings = settings,
                    Err(why) => tracing::warn!("the configuration stays as it was: {why}"),
                }
            }
            let wait;
            (wait, trouble) = match tick.pass() {
                Ok(wait) => {
                    tick.say_that_this_host_is_there();
                    (wait, None)
                }
                Err(error) => {
                    tracing::warn!(%error, "jobs that are due cannot be seen");
                    (MINUTE, Some(error))
                }
            };
            tick.prune();
            next = Instant::now() + wait;
        }
        tick.hooks.retain_mut(|hook| !hook.has_ended());
        if tick.runs.is_empty() && tick.hooks.is_empty() {
            break;
        }
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        let hooks = tick.hooks.iter().map(|hook| left(hook.ends_at()));
        let wait = hooks.min().unwrap_or(MINUTE).min(MINUTE);
        signals.wait(if stops { wait } else { wait.min(left(next)) });
        // What waited for it may be due.
        if tick.reap() {
            next = Instant::now();
        }
    }
    match (trouble, tick.has_failed) {
        (Some(error), _) => Err(of_the_ledger(error)),
        (None, true) => Ok(TickEnd::Failed),
        (None, false) => Ok(TickEnd::Well),
    }
}

/// SIGTERM, SIGINT and SIGHUP stop, SIGCHLD wakes.
struct Signals {
    stop: Arc<AtomicBool>,
    wakes: UnixStream,
}

impl Signals {
    fn catch() -> io::Result<Signals> {
        let (waker, wakes) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGCHLD] {
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
        }
        Ok(Signals { stop, wakes })
    }

    /// Waits for a signal, at most for `time`.
    fn wait(&self, time: Duration) {
        let timeout = PollTimeout::try_from(time + Duration::from_millis(1));
        let mut fds = [PollFd::new(self.wakes.as_fd(), PollFlags::POLLIN)];
        // Woken too early, it looks once more.
        let _ = poll(&mut fds, timeout.unwrap_or(PollTimeout::MAX));
        while matches!((&self.wakes).read(&mut [0; 64]), Ok(count) if count > 0) {}
    }
}

/// A run that goes on.
struct JobProcess {
    job: String,
    process: Child,
    /// SIGTERM was sent.
    is_ended: bool,
    /// It was said that it takes long.
    is_long: bool,
}

struct Tick<'a> {
    settings: JobsSettings,
    ends: KeptEnds,
    /// This host's name.
    host: String,
    ledger: &'a dyn JobLedger,
    program: OwnProgram,
    runs: Vec<JobProcess>,
    hooks: Vec<HookProcess>,
    /// The revision of each job as it was last started here, and when: it is not started again for
    /// what has not changed.
    tried: BTreeMap<String, (Option<i64>, Instant)>,
    has_failed: bool,
    has_added: bool,
    /// When old runs were last taken off the record.
    pruned: Option<Instant>,
    /// When it was last put on record that this host is there.
    said: Option<Instant>,
    has_told_of_clocks: bool,
}

impl<'a> Tick<'a> {
    fn new(settings: JobsSettings, ledger: &'a dyn JobLedger, program: OwnProgram) -> Tick<'a> {
        Tick {
            ends: KeptEnds::new(&settings.state_dir),
            host: host_name(),
            settings,
            ledger,
            program,
            runs: Vec::new(),
            hooks: Vec::new(),
            tried: BTreeMap::new(),
            has_failed: false,
            has_added: false,
            pruned: None,
            said: None,
            has_told_of_clocks: false,
        }
    }
}

impl Tick<'_> {
    /// Starts what is due, and returns when to look again.
    fn pass(&mut self) -> Result<Duration, LedgerError> {
        let until = Instant::now() + CALLS;
        if self.settings.jobs.is_empty() {
            return Ok(MINUTE);
        }
        // Before anything is taken for crashed.
        let read = self.ends.tell(self.ledger, &self.settings.jobs, None, until)?;
        let JobsOnRecord { now, jobs: mut rows } = self.ledger.jobs(until)?;
        self.compare_clocks(now);
        let locked = self.locked(&rows, until)?;
        let all = self.settings.jobs.clone();
        let mut wait = MINUTE;
        for job in &all {
            self.call_hooks(job, &mut rows, until)?;
            let row = rows.iter().find(|row| row.name == job.name);
            if let Some(run) = self.runs.iter_mut().find(|run| run.job == job.name) {
                if let Some(row) = row.filter(|row| row.open.is_some() && !run.is_long) {
                    run.is_long = warn_of_a_long_run(job, row, now);
                }
                continue;
            }
            let revision = row.map(|row| row.revision);
            let plan = plan::plan(job, &rows, &all, now, LockSight::NotOurs);
            match plan.step {
                JobStep::Open if locked.contains_key(&job.name) => {
                    // That the run was found without its lock is over, if it is the one that has
                    // it: another may settle a crash under it.
                    let has_it = locked.get(&job.name) == Some(&plan.row.epoch);
                    let unheld_at = plan.row.unheld_at.filter(|_| !has_it);
                    let row = JobRow { unheld_at, ..plan.row.clone() };
                    let changed = row != plan.row;
                    let plan = JobPlan { row, changed, ..plan };
                    self.note(job, plan, revision, &mut rows, until)?;
                }
                // Its process is gone; whoever has the lock settles that.
                JobStep::Open => {
                    let settle = Duration::from_secs(self.settings.settle_secs);
                    let crashed_at = plan::crashed_at(&plan.row, &self.host, read, settle, now);
                    match crashed_at.duration_since(now) {
                        Ok(left) if !left.is_zero() => {
                            wait = wait.min(left);
                            let row = plan::unheld(&plan.row, now);
                            let plan = JobPlan { row, changed: true, ..plan };
                            self.note(job, plan, revision, &mut rows, until)?;
                        }
                        _ => self.start(&job.name, revision),
                    }
                }
                JobStep::Run { .. } => self.start(&job.name, revision),
                JobStep::NotBefore(time) => {
                    wait = wait.min(time.duration_since(now).unwrap_or_default());
                    self.note(job, plan, revision, &mut rows, until)?;
                }
                JobStep::WaitsFor(_) | JobStep::Paused => {
                    self.note(job, plan, revision, &mut rows, until)?;
                }
            }
        }
        Ok(wait.max(SECOND))
    }

    /// The jobs whose locks are held, with their epochs, if any run is on record as open: else the
    /// answer is not needed.
    fn locked(
        &self,
        rows: &[JobRow],
        until: Instant,
    ) -> Result<BTreeMap<String, i64>, LedgerError> {
        if rows.iter().all(|row| row.open.is_none()) {
            return Ok(BTreeMap::new());
        }
        let locks = self.ledger.lock_rows(None, until)?;
        let of_job = |lock| Some((held_job(lock)?.to_owned(), lock.epoch));
        Ok(locks.iter().filter_map(of_job).collect())
    }

    /// Puts on record what needs no run: that the job was seen, and times that are skipped. Where
    /// another host has been quicker, it has done the same.
    fn note(
        &mut self,
        job: &JobSettings,
        plan: JobPlan,
        seen: Option<i64>,
        rows: &mut [JobRow],
        until: Instant,
    ) -> Result<(), LedgerError> {
        if !plan.changed {
            return Ok(());
        }
        let write = |plan: &JobPlan| {
            let (row, added) = (&plan.row, &*plan.skipped);
            let value = RandomValue::default();
            let change = JobChange { seen, value, row, added, ended: None };
            self.ledger.change_job(&change, until)
        };
        let mut plan = plan;
        let mut is_made = write(&plan)?;
        // Or some of the skipped times are on record already.
        if !is_made && !plan.skipped.is_empty() {
            plan = match refused::passed_over(job, &plan, self.ledger, until) {
                Err(LedgerError::Contended) => return Ok(()),
                passed => passed?,
            };
            is_made = write(&plan)?;
        }
        if is_made {
            refused::tell_of_a_change(&plan);
        }
        self.has_added |= is_made && !plan.skipped.is_empty();
        let row = &plan.row;
        for skip in plan.skipped.iter().filter(|_| is_made) {
            let (job, count) = (&skip.job, skip.occurrences);
            tracing::warn!("job {job}: {count} of its times skipped: {}", skip.reason);
        }
        // What depends on it looks at the row.
        if let Some(known) = rows.iter_mut().find(|known| known.name == row.name) {
            *known = JobRow { revision: known.revision, ..plan.row };
        }
        Ok(())
    }

    /// For a change of the job's state, if no other tick has been quicker. Where the answer of the
    /// ledger is lost, the change is made again: if it holds, no other tick will call.
    fn call_hooks(
        &mut self,
        job: &JobSettings,
        rows: &mut [JobRow],
        until: Instant,
    ) -> Result<(), LedgerError> {
        let Some(row) = rows.iter_mut().find(|row| row.name == job.name) else { return Ok(()) };
        let Some(changed) = hooks::change(job, row) else { return Ok(()) };
        let (seen, value) = (Some(row.revision), RandomValue::default());
        let hooks_state = format!("{} {}", changed.state, hex(value.bytes()));
        let new = JobRow { hooks_state, ..row.clone() };
        let change = JobChange { seen, value, row: &new, added: &[], ended: None };
        let mut is_told = false;
        let is_made = loop {
            let call_ends = until.min(Instant::now() + CALL);
            match self.ledger.change_job(&change, call_ends) {
                Err(error) if may_pass(&error) && Instant::now() + AGAIN < until => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(%error, "job {}: its hooks are not called yet", job.name);
                    }
                    thread::sleep(AGAIN);
                }
                made => break made?,
            }
        };
        let made = match is_made {
            true => Some(JobRow { revision: row.revision + 1, ..new }),
            // The answer may have been lost, and the job changed since.
            false => {
                let is_ours =
                    |one: &JobRow| (&one.name, &one.hooks_state) == (&new.name, &new.hooks_state);
                self.ledger.jobs(until)?.jobs.into_iter().find(is_ours)
            }
        };
        if let Some(made) = made {
            *row = made;
            let umask = self.program.umask;
            let start = |(key, words)| HookProcess::start(row, key, words, umask);
            self.hooks.extend(changed.hooks.into_iter().filter_map(start));
        }
        Ok(())
    }

    fn start(&mut self, job: &str, revision: Option<i64>) {
        let is_same = |(seen, at): &(Option<i64>, Instant)| {
            *seen == revision && at.elapsed() < MINUTE - SECOND
        };
        if self.runs.len() >= self.settings.concurrency || self.tried.get(job).is_some_and(is_same)
        {
            return;
        }
        self.tried.insert(job.to_owned(), (revision, Instant::now()));
        match self.program.start(&["jobs", "run", "--by-tick", job]) {
            Ok(process) => {
                self.has_added = true;
                self.runs.push(JobProcess {
                    job: job.to_owned(),
                    process,
                    is_ended: false,
                    is_long: false,
                });
            }
            Err(error) => {
                self.has_failed = true;
                tracing::error!("job {job}: no process for it: {error}");
            }
        }
    }

    /// Whether a run has ended.
    fn reap(&mut self) -> bool {
        let count = self.runs.len();
        for mut run in std::mem::take(&mut self.runs) {
            match run.process.try_wait() {
                Ok(None) => self.runs.push(run),
                Ok(Some(status)) => match RunStatus::of(status.code()) {
                    RunStatus::Well | RunStatus::Busy => {}
                    RunStatus::Failed => self.has_failed = true,
                },
                Err(error) => {
                    self.has_failed = true;
                    tracing::error!("job {}: its process is lost: {error}", run.job);
                }
            }
        }
        self.runs.len() < count
    }

    /// Ends the jobs that this process has started; they put that on record.
    fn end_runs(&mut self) {
        for run in self.runs.iter_mut().filter(|run| !run.is_ended) {
            run.is_ended = true;
            // It is not reaped yet, so the number is its own.
            if let Ok(pid) = i32::try_from(run.process.id()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
    }

    /// For `onedrop status`, once a minute.
    fn say_that_this_host_is_there(&mut self) {
        let has_said = self.said.is_some_and(|at| at.elapsed() < MINUTE - SECOND);
        if has_said || self.settings.jobs.is_empty() {
            return;
        }
        self.said = Some(Instant::now());
        let until = Instant::now() + CALLS;
        if let Err(error) = self.ledger.note_host(&self.host, env!("CARGO_PKG_VERSION"), until) {
            tracing::warn!(%error, "that this host is there could not be put on record");
        }
    }

    /// Takes old runs off the record, where new ones have come, and not again within an hour.
    fn prune(&mut self) {
        if !self.has_added || self.pruned.is_some_and(|at| at.elapsed() < HOUR) {
            return;
        }
        self.pruned = Some(Instant::now());
        let kept =
            DAY.saturating_mul(u32::try_from(self.settings.keep_runs_days).unwrap_or(u32::MAX));
        self.ends.forget_old(kept);
        let until = Instant::now() + CALLS;
        let prune = |step: &dyn Fn() -> Result<u64, LedgerError>| {
            for _ in 0..PRUNINGS {
                if step()? < u64::from(PRUNED) {
                    break;
                }
            }
            Ok(())
        };
        let mut pruned = prune(&|| self.ledger.prune_job_runs(kept, PRUNED, until));
        for job in self.settings.jobs.iter().filter(|job| job.keep > 0) {
            let surplus = || self.ledger.prune_runs_of(&job.name, job.keep, PRUNED, until);
            pruned = pruned.and_then(|()| prune(&surplus));
        }
        if let Err(error) = pruned {
            let error: LedgerError = error;
            tracing::warn!(%error, "old runs stay on record");
        }
    }

    fn compare_clocks(&mut self, ledgers: SystemTime) {
        let own = SystemTime::now();
        let differ = own.duration_since(ledgers).unwrap_or_else(|error| error.duration());
        if differ > CLOCKS_DIFFER_BY && !std::mem::replace(&mut self.has_told_of_clocks, true) {
            let secs = differ.as_secs_f64();
            tracing::warn!(
                "this host's clock differs from the ledger's, which counts, by {secs:.1} s"
            );
        }
    }
}

/// Whether there was a reason to.
fn warn_of_a_long_run(job: &JobSettings, row: &JobRow, now: SystemTime) -> bool {
    let Some(start) = row.last_start else { return false };
    let (name, taken) = (&job.name, now.duration_since(start).unwrap_or_default());
    if job.timeout.is_some_and(|timeout| taken > timeout + MINUTE) {
        tracing::warn!("job {name} has run for {} s, longer than its timeout", taken.as_secs());
    } else if job.schedule.next_after(start) <= now {
        tracing::warn!("job {name} has run for {} s, past its next time", taken.as_secs());
    } else {
        return false;
    }
    true
}

#[cfg(test)]
mod tests;
