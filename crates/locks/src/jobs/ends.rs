//! Ends of runs, as files of this host: each is here before it goes to the ledger, and until the
//! ledger has it. Ticks, and the next run of the job, put on record what is left.
//!
//! Promise: an end that was kept survives the process and the machine (fsync), and goes to its own
//! run alone: by due time, try, epoch, host and process. Root, which may run a job too, follows no
//! link that the folder's owner has put there. Reliance: one folder for a host; it may serve
//! several ledgers, so what a ledger does not know stays.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};

use super::plan::{self, RunEnd};
use super::rfc_3339;
use crate::jobs::JobSettings;
use onedrop_core::ledger::{
    JobChange, JobOutcome, JobRun, JobTrigger, Jobs, JobsOnRecord, LedgerError, RandomValue,
    of_millis, time_millis,
};

/// What the names of these files end with, and until they are whole.
const SUFFIX: &str = ".end";
const NEW: &str = ".new";
/// How many runs are looked through.
const NEWEST: u32 = 1000;
/// How often a row is read again because another has changed it meanwhile.
const READS: usize = 20;

/// The folder of these files.
#[derive(Debug, Clone)]
pub struct KeptEnds(PathBuf);

/// What the ledger said of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    OnRecord,
    /// It is on record; the run had been called crashed before.
    Late,
    /// It has no such run.
    Unknown,
}

/// An end as a file has it. Times are milliseconds since 1970, by the ledger's clock.
#[derive(Debug, Serialize, Deserialize)]
struct EndFile {
    job: String,
    due: i64,
    r#try: u32,
    epoch: i64,
    host: String,
    pid: u32,
    ended_at: i64,
    outcome: String,
    exit: Option<i32>,
    signal: Option<i32>,
    output: String,
    reason: String,
}

impl KeptEnds {
    pub fn new(folder: &Path) -> KeptEnds {
        KeptEnds(folder.to_owned())
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Keeps how `run` ended, durably.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn keep(&self, run: &JobRun) -> io::Result<()> {
        let folder = self.open()?;
        let (name, new) = (file_name(run, SUFFIX), file_name(run, NEW));
        // A run that was killed in this moment has left it.
        match unlinkat(&folder, &*new, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&folder, &*new, flags, Mode::from_bits_truncate(0o600))?);
        give(&file, &folder.metadata()?)?;
        file.write_all(&serde_json::to_vec(&EndFile::of(run))?)?;
        file.sync_all()?;
        renameat(&folder, &*new, &folder, &*name)?;
        folder.sync_all()
    }

    /// Opens the folder; makes it if need be.
    fn open(&self) -> io::Result<File> {
        let is_new = match DirBuilder::new().mode(0o700).create(&self.0) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let folder = open(&self.0, libc::O_DIRECTORY)?;
        if let Some(parent) = self.0.parent().filter(|_| is_new) {
            give(&folder, &fs::metadata(parent)?)?;
        }
        Ok(folder)
    }

    /// The ledger has it.
    pub fn forget(&self, run: &JobRun) {
        // Another may have been quicker, or it was not kept at all.
        let _ = fs::remove_file(self.path(run));
    }

    /// Puts on record all ends that are left, of `only` this job if one is named. Those of runs
    /// that the ledger does not have stay.
    ///
    /// # Errors
    /// The ledger's; the rest is left for the next time.
    pub fn tell<L: Jobs + ?Sized>(
        &self,
        ledger: &L,
        jobs: &[JobSettings],
        only: Option<&str>,
        until: Instant,
    ) -> Result<(), LedgerError> {
        let Ok(entries) = fs::read_dir(&self.0) else { return Ok(()) };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let is_end = path.to_string_lossy().ends_with(SUFFIX);
            let Some(run) = Some(&path).filter(|_| is_end).and_then(|path| read(path)) else {
                continue;
            };
            let is_wanted = only.is_none_or(|only| only == run.job);
            let Some(job) = jobs.iter().find(|job| is_wanted && job.name == run.job) else {
                continue;
            };
            let told = tell(ledger, job, &run, until)?;
            let (name, due) = (&run.job, rfc_3339(run.due));
            match told {
                // Perhaps by its run, which is about to end.
                Told::OnRecord => tracing::debug!("job {name}: its end for {due} is on record"),
                Told::Late => tracing::warn!(
                    "job {name}: how it ended for {due} is on record, after it was taken"
                ),
                Told::Unknown => continue,
            }
            let _ = fs::remove_file(&path);
        }
        Ok(())
    }

    /// Of what no ledger has wanted to know for that long.
    pub fn forget_old(&self, age: Duration) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        let is_old = |path: &PathBuf| {
            let changed = fs::metadata(path).and_then(|file| file.modified());
            changed.is_ok_and(|at| at.elapsed().is_ok_and(|passed| passed > age))
        };
        for path in entries.flatten().map(|entry| entry.path()).filter(is_old) {
            tracing::warn!("{}: no ledger has this run: it is forgotten", path.display());
            let _ = fs::remove_file(&path);
        }
    }

    fn path(&self, run: &JobRun) -> PathBuf {
        self.0.join(file_name(run, SUFFIX))
    }
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags | libc::O_NOFOLLOW).open(path)
}

fn file_name(run: &JobRun, suffix: &str) -> String {
    let JobRun { job, due, try_no, epoch, .. } = run;
    format!("{job}.{}.{try_no}.{epoch}{suffix}", time_millis(*due))
}

/// What root makes in another user's folder is that user's: its ticks read it, too.
fn give(file: &File, to: &Metadata) -> io::Result<()> {
    match file.metadata()?.uid() == to.uid() {
        true => Ok(()),
        false => fchown(file, Some(to.uid()), Some(to.gid())),
    }
}

/// `None`, and a word in the log: it cannot be read.
fn read(path: &Path) -> Option<JobRun> {
    let read = open(path, libc::O_NONBLOCK)
        .and_then(|file| Ok(serde_json::from_reader::<_, EndFile>(BufReader::new(file))?));
    match read.map(|file| file.run()) {
        Ok(Some(run)) => Some(run),
        Ok(None) => {
            tracing::warn!("{}: unknown outcome", path.display());
            None
        }
        // Another has put it on record meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!("{}: {error}", path.display());
            None
        }
    }
}

impl EndFile {
    fn of(run: &JobRun) -> EndFile {
        let run = run.kept();
        EndFile {
            job: run.job,
            due: time_millis(run.due),
            r#try: run.try_no,
            epoch: run.epoch,
            host: run.host,
            pid: run.pid,
            ended_at: time_millis(run.ended_at.unwrap_or(run.started_at)),
            outcome: run.outcome.map_or("", JobOutcome::as_str).to_owned(),
            exit: run.exit,
            signal: run.signal,
            output: run.output,
            reason: run.reason,
        }
    }

    fn run(self) -> Option<JobRun> {
        let ended_at = of_millis(self.ended_at);
        let begun = JobRun::new(&self.job, of_millis(self.due), JobTrigger::Schedule, ended_at);
        let outcome = JobOutcome::ALL.into_iter().find(|one| one.as_str() == self.outcome)?;
        Some(JobRun {
            try_no: self.r#try,
            epoch: self.epoch,
            host: self.host,
            pid: self.pid,
            ended_at: Some(ended_at),
            outcome: Some(outcome),
            exit: self.exit,
            signal: self.signal,
            output: self.output,
            reason: self.reason,
            ..begun
        })
    }
}

/// Puts the end of `ended` on record, unless it is there.
///
/// # Errors
/// The ledger's.
pub fn tell<L: Jobs + ?Sized>(
    ledger: &L,
    job: &JobSettings,
    ended: &JobRun,
    until: Instant,
) -> Result<Told, LedgerError> {
    let how = RunEnd {
        outcome: ended.outcome.unwrap_or(JobOutcome::Failed),
        exit: ended.exit,
        signal: ended.signal,
        output: ended.output.clone(),
        reason: ended.reason.clone(),
    };
    let ended_at = ended.ended_at.unwrap_or(SystemTime::UNIX_EPOCH);
    let key = |run: &JobRun| (run.due, run.try_no, run.epoch, run.host.clone(), run.pid);
    for _ in 0..READS {
        let JobsOnRecord { jobs: rows, .. } = ledger.jobs(until)?;
        let Some(row) = rows.iter().find(|row| row.name == job.name) else {
            return Ok(Told::Unknown);
        };
        let runs = ledger.job_runs(&job.name, NEWEST, until)?;
        let Some(run) = runs.iter().find(|run| key(run) == key(ended)) else {
            return Ok(Told::Unknown);
        };
        let is_open = row.open == Some((run.due, run.try_no)) && row.epoch == run.epoch;
        let ((row, run), told) = match run.outcome {
            None if is_open => (plan::end(job, row, run, &how, ended_at), Told::OnRecord),
            None | Some(JobOutcome::Crashed) => {
                (plan::end_of_a_crashed(job, row, run, &how, ended_at), Told::Late)
            }
            Some(_) => return Ok(Told::OnRecord),
        };
        let (seen, value) = (Some(row.revision), RandomValue::default());
        let change = JobChange { seen, value, row: &row, added: &[], ended: Some(&run) };
        if ledger.change_job(&change, until)? {
            return Ok(told);
        }
    }
    Err(LedgerError::Contended)
}
