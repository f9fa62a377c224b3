//! One run of a job, under its lock: put on record before the command starts, and with how it
//! ended before the lock is given back.
//!
//! Reliance: the lock lets one process do this at a time; the row's revision and the run's epoch
//! stop one that has lost it unnoticed. A crash leaves the run open on record: whoever has the lock
//! next settles it as crashed. What a command of an administrator changes in the row meanwhile
//! stays. The end is on this host's disk before it goes to the ledger, and until the ledger has it.

use std::ffi::{CString, OsString};
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::stat::Mode;
use nix::unistd::{User, geteuid, getgrouplist};

use super::ends::{self, KeptEnds, Told};
use super::plan::{self, EndsRead, JobStep, LockSight, RunEnd};
use super::{lock_name, refused, rfc_3339};
use crate::jobs::JobSettings;
use crate::lock::{
    self, Begun, CommandEnd, CommandPlace, CommandSpec, CommandUser, Company, EndRecord, LockTerms,
    LockWish, RunRecord, Variables, Wrapping,
};
use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::exit::{self, LockEnding};
use onedrop_core::ledger::{
    JobChange, JobLedger, JobOutcome, JobRow, JobRun, JobsOnRecord, LedgerError, LockClaim,
    LockHolder, Locks, RandomValue, kept_time,
};

/// How often a row is read again because another has changed it meanwhile.
const READS: usize = 20;

/// A run that is wanted.
pub struct JobRequest {
    pub job: JobSettings,
    /// Every job of the configuration.
    pub all: Vec<JobSettings>,
    pub why: RunWhy,
    /// For the command, after its own.
    pub args: Vec<OsString>,
    /// For its environment.
    pub variables: Variables,
    pub umask: Mode,
    /// Each line of the command's output begins with the job's name.
    pub has_label: bool,
    /// This host's name.
    pub host: String,
    pub ends: KeptEnds,
    /// How long the end of another host's run is waited for; of this host's less.
    pub settle: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunWhy {
    /// If it is due and what it depends on has succeeded.
    IfDue,
    /// An administrator wants it, for this due time if he has named one.
    Forced(Option<SystemTime>),
}

/// Runs the job's command, if it is to run; returns how that ended. This process must have one
/// thread.
///
/// # Errors
/// What keeps it from being tried.
pub fn run(request: JobRequest, ledger: Arc<dyn JobLedger>) -> Result<LockEnding, String> {
    let job = &request.job;
    let terms = LockTerms::new(job.ttl, job.grace)?;
    let (user, mut variables) = user_of(job)?;
    variables.extend(job.env.iter().map(|(name, value)| (name.into(), value.into())));
    variables.extend(request.variables.iter().cloned());
    let name = lock_name(&request.job.name)?;
    let mut words = request.job.command.iter().map(OsString::from);
    let program = words.next().unwrap_or_default();
    let holder = LockHolder {
        host: request.host.clone(),
        pid: std::process::id(),
        command: program.to_string_lossy().into_owned(),
        note: String::new(),
        slots: 1,
    };
    let owner = RandomValue::default();
    let spec = CommandSpec {
        program: own_path_of(program),
        args: words.chain(request.args.iter().cloned()).collect(),
        variables,
        company: Company::Alone,
        umask: job.umask.map_or(request.umask, Mode::from_bits_truncate),
        place: CommandPlace { cwd: job.cwd.clone(), user, nice: job.nice },
        is_hold: false,
        name: name.clone(),
        slots: 1,
        owner,
        terms,
    };
    let wish = LockWish { name, slots: 1, terms, wait: Duration::ZERO, owner, holder, line: None };
    let (timeout, is_for_mail) = (request.job.timeout, false);
    let label = request.has_label.then(|| request.job.name.clone());
    let wrapping = Wrapping { wish, spec, timeout, is_for_mail, label, say: exit::tell };
    let locks: Arc<dyn Locks> = Arc::clone(&ledger) as Arc<dyn Locks>;
    let read = EndsRead::NotAll;
    let record = JobRecord { request, ledger, read, pending: None, begun: None };
    Ok(lock::run(&wrapping, locks, Box::new(record)))
}

/// The user that the job runs as, where that is another one than this process has, and what the
/// environment of the one that the job names says.
fn user_of(job: &JobSettings) -> Result<(Option<CommandUser>, Variables), String> {
    let Some(name) = &job.user else { return Ok((None, Variables::new())) };
    let failed = |why: &dyn Display| format!("{}: user {name}: {why}", job.name);
    let user = User::from_name(name).map_err(|error| failed(&error))?;
    let user = user.ok_or_else(|| failed(&"there is none on this host"))?;
    let variables = [
        ("HOME", user.dir.into_os_string()),
        ("SHELL", user.shell.into_os_string()),
        ("USER", name.into()),
        ("LOGNAME", name.into()),
    ];
    let variables = variables.map(|(name, value)| (name.into(), value)).to_vec();
    if user.uid == geteuid() {
        return Ok((None, variables));
    }
    if !geteuid().is_root() {
        return Err(failed(&"only root can run a job as another user"));
    }
    let c_name = CString::new(name.as_str()).map_err(|error| failed(&error))?;
    let groups = getgrouplist(&c_name, user.gid).map_err(|error| failed(&error))?;
    Ok((Some(CommandUser { uid: user.uid, gid: user.gid, groups }), variables))
}

/// A job's `onedrop` is this program, wherever it lies.
fn own_path_of(program: OsString) -> OsString {
    match std::env::current_exe() {
        Ok(path) if program == "onedrop" && path.exists() => path.into(),
        _ => program,
    }
}

/// The ledger's clock, as it goes on after it was read.
#[derive(Debug, Clone, Copy)]
struct LedgerClock {
    read: SystemTime,
    since_boot: Option<Duration>,
}

impl LedgerClock {
    fn new(read: SystemTime) -> LedgerClock {
        LedgerClock { read, since_boot: SystemClock.since_boot() }
    }

    fn now(&self) -> SystemTime {
        let passed = SystemClock.since_boot().zip(self.since_boot);
        self.read + passed.map_or(Duration::ZERO, |(now, then)| now.saturating_sub(then))
    }
}

/// A run that has begun.
struct BegunRun {
    /// The row that this process wrote last.
    row: JobRow,
    run: JobRun,
    clock: LedgerClock,
    /// It has ended then; its end is kept, if the disk takes it.
    ended_at: Option<SystemTime>,
}

/// A change, which the ledger may have made already although its answer was lost.
struct PendingChange {
    seen: Option<i64>,
    value: RandomValue,
    row: JobRow,
    added: Vec<JobRun>,
    ended: Option<JobRun>,
    then: Then,
}

/// What follows from a change that was made.
enum Then {
    Run(LedgerClock),
    NothingToDo(String),
    Ended,
}

/// What a reading of the record leads to.
enum Decision {
    Change(Box<PendingChange>),
    NoChange(Begun),
}

/// The record of one run.
struct JobRecord {
    request: JobRequest,
    ledger: Arc<dyn JobLedger>,
    /// Of the ends that this host keeps, when the record was last read.
    read: EndsRead,
    /// It is made again unchanged, until the ledger has answered whether it was made.
    pending: Option<Box<PendingChange>>,
    begun: Option<BegunRun>,
}

impl RunRecord for JobRecord {
    fn begin(&mut self, claim: &LockClaim, until: Instant) -> Result<Begun, LedgerError> {
        let JobRequest { ends, all, job, .. } = &self.request;
        self.read = ends.tell(&*self.ledger, all, Some(&job.name), until)?;
        // The revision that the ledger has not let us change.
        let mut refused_at = None;
        for _ in 0..READS {
            let change = match self.pending.take() {
                Some(change) => change,
                None => match self.decide(claim, refused_at, until)? {
                    Decision::Change(change) => change,
                    Decision::NoChange(begun) => return Ok(begun),
                },
            };
            match self.make(change, until)? {
                (change, true) => return Ok(self.follow(*change)),
                (change, false) => refused_at = Some(change.seen),
            }
        }
        Err(LedgerError::Contended)
    }

    fn stop_wanted(&self, claim: &LockClaim, until: Instant) -> Option<String> {
        let rows = self.ledger.jobs(until).ok()?.jobs;
        let row = rows.into_iter().find(|row| row.name == self.request.job.name)?;
        (row.is_to_stop(claim.epoch) && row.open.is_some()).then_some(row.stop_by)
    }

    fn end(
        &mut self,
        claim: &LockClaim,
        end: &CommandEnd,
        until: Instant,
    ) -> Result<EndRecord, LedgerError> {
        let how = run_end(end, &self.request.host);
        let Some(ended) = self.keep(&how) else { return Ok(EndRecord::NoRecord) };
        let recorded = self.put_on_record(claim, &end.ending, &how, &ended, until)?;
        self.request.ends.forget(&ended);
        Ok(recorded)
    }
}

impl JobRecord {
    /// Keeps how the run ended, the first time; returns the run with its end.
    fn keep(&mut self, how: &RunEnd) -> Option<JobRun> {
        let begun = self.begun.as_mut()?;
        let is_first = begun.ended_at.is_none();
        let ended_at = *begun.ended_at.get_or_insert_with(|| kept_time(begun.clock.now()));
        let ended = plan::with_end(&begun.run, how, ended_at);
        if is_first && let Err(error) = self.request.ends.keep(&ended) {
            let (job, folder) = (&ended.job, self.request.ends.folder().display());
            tracing::warn!(%error, "how job {job} ended is kept nowhere but here: {folder}");
        }
        Some(ended)
    }

    fn put_on_record(
        &mut self,
        claim: &LockClaim,
        ending: &LockEnding,
        how: &RunEnd,
        ended: &JobRun,
        until: Instant,
    ) -> Result<EndRecord, LedgerError> {
        // The row that this process wrote last: mostly it is unchanged since.
        let mut row = self.begun.as_ref().map(|begun| begun.row.clone());
        for _ in 0..READS {
            let change = match self.pending.take() {
                Some(change) => change,
                None => {
                    let row = match row.take() {
                        Some(row) => row,
                        None => match self.own_row(claim, ended, until)? {
                            Some(row) => row,
                            None => return self.put_late_on_record(ended, ending, until),
                        },
                    };
                    let (job, ended_at) =
                        (&self.request.job, ended.ended_at.unwrap_or(ended.started_at));
                    let (row, run) = plan::end(job, &row, ended, how, ended_at);
                    let (seen, value, added) =
                        (Some(row.revision), RandomValue::default(), Vec::new());
                    let (ended, then) = (Some(run), Then::Ended);
                    Box::new(PendingChange { seen, value, row, added, ended, then })
                }
            };
            if let (change, true) = self.make(change, until)? {
                let due = change.ended.as_ref().map(|run| run.due);
                tell_of(&change.row, due, ending);
                return Ok(EndRecord::Done);
            }
        }
        Err(LedgerError::Contended)
    }

    fn put_late_on_record(
        &self,
        ended: &JobRun,
        ending: &LockEnding,
        until: Instant,
    ) -> Result<EndRecord, LedgerError> {
        let job = &self.request.job;
        match ends::tell(&*self.ledger, job, ended, until)? {
            // A tick of this host was quicker, by the end that is kept; it prints none.
            Told::OnRecord => {
                let rows = self.ledger.jobs(until)?.jobs;
                if let Some(row) = rows.iter().find(|row| row.name == job.name) {
                    tell_of(row, Some(ended.due), ending);
                }
                Ok(EndRecord::Done)
            }
            Told::Late => Ok(EndRecord::Late),
            Told::Unknown => Ok(EndRecord::Refused),
        }
    }

    /// Makes a change; true: it is made. Where that is not known the change is pending.
    fn make(
        &mut self,
        change: Box<PendingChange>,
        until: Instant,
    ) -> Result<(Box<PendingChange>, bool), LedgerError> {
        let PendingChange { seen, value, row, added, ended, .. } = &*change;
        let (seen, value, ended) = (*seen, *value, ended.as_ref());
        let made = self.ledger.change_job(&JobChange { seen, value, row, added, ended }, until);
        match made {
            Ok(is_made) => Ok((change, is_made)),
            Err(error) => {
                self.pending = Some(change);
                Err(error)
            }
        }
    }

    /// What is to be done about the job by what is on record now.
    fn decide(
        &self,
        claim: &LockClaim,
        refused_at: Option<Option<i64>>,
        until: Instant,
    ) -> Result<Decision, LedgerError> {
        let JobRequest { job, all, host, why, .. } = &self.request;
        let JobsOnRecord { now, jobs: rows } = self.ledger.jobs(until)?;
        let clock = LedgerClock::new(now);
        let row = rows.iter().find(|row| row.name == job.name);
        let seen = row.map(|row| row.revision);
        if let Some(row) = row.filter(|row| row.open.is_some() && *why == RunWhy::IfDue)
            && let Some(decision) = self.wait_for_the_end(row, now)
        {
            return Ok(decision);
        }
        let planned = match why {
            RunWhy::IfDue => Ok(plan::plan(job, &rows, all, now, LockSight::Ours)),
            RunWhy::Forced(due) => {
                let due = match due {
                    Some(due) => Some((*due, self.tries(*due, until)?)),
                    None => None,
                };
                plan::force(job, &rows, due, now, LockSight::Ours)
            }
        };
        let mut plan = match planned {
            Ok(plan) => plan,
            Err(why) => {
                let why = format!("{}: {why}", job.name);
                return Ok(Decision::NoChange(Begun::Refused(why)));
            }
        };
        if refused_at == Some(seen) {
            plan = refused::passed_over(job, &plan, &*self.ledger, until)?;
        }
        refused::tell_of_a_change(&plan);
        let value = RandomValue::default();
        let (step, is_changed) = (plan.step.clone(), plan.changed);
        let (row, added, ended) = plan::begin(plan, claim.epoch, host, std::process::id(), now);
        let then = match &step {
            JobStep::Run { .. } => Then::Run(clock),
            other => Then::NothingToDo(format!("{}: {}", job.name, why_not(job, other))),
        };
        Ok(match then {
            Then::NothingToDo(why) if !is_changed => Decision::NoChange(Begun::NothingToDo(why)),
            then => {
                let change = PendingChange { seen, value, row, added, ended, then };
                Decision::Change(Box::new(change))
            }
        })
    }

    /// Of a run whose lock is ours now: its end may still come, from another host, from where this
    /// one cannot read it, or from a process here that a call of the ledger held up.
    fn wait_for_the_end(&self, row: &JobRow, now: SystemTime) -> Option<Decision> {
        let JobRequest { host, settle, .. } = &self.request;
        let crashed_at = plan::crashed_at(row, host, self.read, *settle, now);
        if crashed_at <= now {
            return None;
        }
        let (where_to, at) = (&row.open_host, rfc_3339(crashed_at));
        let why = format!("{}: its end is waited for, from {where_to}, until {at}", row.name);
        Some(Decision::Change(Box::new(PendingChange {
            seen: Some(row.revision),
            value: RandomValue::default(),
            row: plan::unheld(row, now),
            added: Vec::new(),
            ended: None,
            then: Then::NothingToDo(why),
        })))
    }

    /// How many tries for a due time are on record.
    fn tries(&self, due: SystemTime, until: Instant) -> Result<u32, LedgerError> {
        self.ledger.last_try(&self.request.job.name, due, until)
    }

    fn follow(&mut self, change: PendingChange) -> Begun {
        let PendingChange { seen, row, mut added, then, .. } = change;
        match (then, added.pop()) {
            (Then::Run(clock), Some(run)) => {
                let (job, due, try_no) = (&run.job, rfc_3339(run.due), run.try_no);
                tracing::info!("job {job} begins: due {due}, try {try_no}, {}", run.trigger);
                let variables = variables(&run, &row);
                let row = JobRow { revision: seen.unwrap_or(0) + 1, ..row };
                self.begun = Some(BegunRun { row, run, clock, ended_at: None });
                Begun::Run(variables)
            }
            (Then::NothingToDo(why), _) => Begun::NothingToDo(why),
            (Then::Run(_) | Then::Ended, _) => Begun::NothingToDo("nothing was planned".to_owned()),
        }
    }

    /// The job's row, while our run is its open one.
    fn own_row(
        &self,
        claim: &LockClaim,
        run: &JobRun,
        until: Instant,
    ) -> Result<Option<JobRow>, LedgerError> {
        let rows = self.ledger.jobs(until)?.jobs;
        Ok(rows.into_iter().find(|row| {
            row.name == run.job
                && row.epoch == claim.epoch
                && row.open == Some((run.due, run.try_no))
        }))
    }
}

/// What the command learns of its run.
fn variables(run: &JobRun, row: &JobRow) -> Variables {
    let values = [
        ("NAME", run.job.clone()),
        ("DUE", rfc_3339(run.due)),
        ("TRY", run.try_no.to_string()),
        ("TRIGGER", run.trigger.to_string()),
        ("LAST_SUCCESS", row.last_success.map(rfc_3339).unwrap_or_default()),
    ];
    values.map(|(name, value)| (format!("ONEDROP_JOB_{name}").into(), value.into())).to_vec()
}

fn why_not(job: &JobSettings, step: &JobStep) -> String {
    match step {
        JobStep::NotBefore(time) => format!("nothing is due before {}", rfc_3339(*time)),
        JobStep::WaitsFor(others) => format!("due, and waits for {}", others.join(", ")),
        JobStep::Paused if !job.enabled => "disabled in the configuration".to_owned(),
        JobStep::Paused => "paused".to_owned(),
        JobStep::Run { .. } | JobStep::Open => "a run is on record as open".to_owned(),
    }
}

fn run_end(end: &CommandEnd, host: &str) -> RunEnd {
    let (outcome, exit, signal) = match &end.ending {
        LockEnding::Exited(0) => (JobOutcome::Ok, Some(0), None),
        LockEnding::Exited(status) => (JobOutcome::Failed, Some(*status), None),
        LockEnding::Killed(signal) => (JobOutcome::Failed, None, Some(*signal)),
        LockEnding::TimedOut(_) => (JobOutcome::Timeout, None, None),
        LockEnding::NotExecutable(_) => (JobOutcome::Failed, Some(exit::NOT_EXECUTABLE), None),
        LockEnding::NotFound(_) => (JobOutcome::Failed, Some(exit::NOT_FOUND), None),
        LockEnding::Stopped(_) => (JobOutcome::Stopped, None, None),
        LockEnding::Lost(_) => (JobOutcome::Lost, None, None),
        LockEnding::Failed(_) | LockEnding::Busy(_) | LockEnding::NothingToDo(_) => {
            (JobOutcome::Failed, None, None)
        }
    };
    let reason = match &end.ending {
        LockEnding::Exited(0) => String::new(),
        LockEnding::NotExecutable(why) | LockEnding::NotFound(why) => format!("{why} on {host}"),
        ending => ending.to_string(),
    };
    RunEnd { outcome, exit, signal, output: end.output.clone(), reason }
}

/// Logs the end of a run and what follows. An ending with a text of its own is printed when the
/// process ends.
fn tell_of(row: &JobRow, due: Option<SystemTime>, ending: &LockEnding) {
    let name = &row.name;
    tracing::info!("job {name} has ended: {ending}");
    // Of an extra run nothing comes: the retry on record is another time's.
    let next = match row.retry_at.filter(|_| row.next_due == due) {
        Some(at) => format!("; it is tried again at {}", rfc_3339(at)),
        None => String::new(),
    };
    match ending {
        LockEnding::Exited(0) => {}
        LockEnding::Exited(_) | LockEnding::Killed(_) => {
            exit::tell(&format!("{name} failed: {ending}{next}"));
        }
        _ => {}
    }
}
