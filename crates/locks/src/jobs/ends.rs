//! Ends of runs, as files of this host: each is here before it goes to the ledger, and until the
//! ledger has it. Ticks, and the next run of the job, put on record what is left.
//!
//! Promise: an end that was kept survives the process and the machine (fsync), and goes to its own
//! run alone: by due time, try, epoch, host and process. Root, which may run a job too, follows no
//! link that the folder's owner has put there or in the folder's place, and removes nothing but
//! such files. Reliance: one folder for a host; it may serve several ledgers, so what a ledger does
//! not know stays.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};

use super::plan::{self, EndsRead, RunEnd};
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
        // Without a slash at its end, by which a link would be followed.
        KeptEnds(folder.components().collect())
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
        let folder = open_folder(&self.0)?;
        if let Some(parent) = self.0.parent().filter(|_| is_new) {
            give(&folder, &fs::metadata(parent)?)?;
        }
        Ok(folder)
    }

    /// The ledger has it.
    pub fn forget(&self, run: &JobRun) {
        let Ok(folder) = open_folder(&self.0) else { return };
        // Another may have been quicker, or it was not kept at all.
        let _ = unlinkat(&folder, &*file_name(run, SUFFIX), UnlinkatFlags::NoRemoveDir);
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
    ) -> Result<EndsRead, LedgerError> {
        let opened = match open_folder(&self.0) {
            // No run of this host has kept its end yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(EndsRead::All),
            opened => opened.and_then(|folder| Ok((files_in(&folder, &[SUFFIX])?, folder))),
        };
        let (files, folder) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                warn_of_unread(&self.0, &error);
                return Ok(EndsRead::NotAll);
            }
        };
        let mut which = EndsRead::All;
        for (name, _) in &files {
            let run = match read(&folder, name) {
                Ok(Some(run)) => run,
                Ok(None) => continue,
                Err(error) => {
                    warn_of_unread(&self.0.join(name), &error);
                    which = EndsRead::NotAll;
                    continue;
                }
            };
            let is_wanted = only.is_none_or(|only| only == run.job);
            let Some(job) = jobs.iter().find(|job| is_wanted && job.name == run.job) else {
                continue;
            };
            let told = tell(ledger, job, &run, until)?;
            let (job, due) = (&run.job, rfc_3339(run.due));
            match told {
                // Perhaps by its run, which is about to end.
                Told::OnRecord => tracing::debug!("job {job}: its end for {due} is on record"),
                Told::Late => tracing::warn!(
                    "job {job}: how it ended for {due} is on record, after it was taken"
                ),
                Told::Unknown => continue,
            }
            let _ = unlinkat(&folder, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
        Ok(which)
    }

    /// Of what no ledger has wanted to know for that long.
    pub fn forget_old(&self, age: Duration) {
        let Ok(folder) = open_folder(&self.0) else { return };
        let is_old = |file: &Metadata| {
            file.modified().is_ok_and(|at| at.elapsed().is_ok_and(|passed| passed > age))
        };
        // Of one that cannot be read, `tell` warns.
        let files = files_in(&folder, &[SUFFIX, NEW]).unwrap_or_default();
        for (name, _) in files.iter().filter(|(_, file)| is_old(file)) {
            let path = self.0.join(name);
            tracing::warn!("{}: no ledger has this run: it is forgotten", path.display());
            let _ = unlinkat(&folder, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// No link is followed to it.
fn open_folder(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// The regular files of the folder whose names end so, by name.
fn files_in(folder: &File, suffixes: &[&str]) -> io::Result<Vec<(OsString, Metadata)>> {
    let mut files = Vec::new();
    // Of the folder that is open, whatever its owner puts in its place meanwhile.
    for entry in fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
        let entry = entry?;
        let name = entry.file_name();
        if !suffixes.iter().any(|suffix| name.as_bytes().ends_with(suffix.as_bytes())) {
            continue;
        }
        // Of a link itself.
        match entry.metadata() {
            Ok(file) if file.is_file() => files.push((name, file)),
            Ok(_) => {}
            // Another has put it on record meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(files)
}

fn warn_of_unread(path: &Path, error: &io::Error) {
    let path = path.display();
    tracing::warn!("{path} cannot be read ({error}): a run's end may be in it, and is waited for");
}

fn file_name(run: &JobRun, suffix: &str) -> String {
    // Two ledgers may have the same epoch; one host has one process of that number.
    let JobRun { job, due, try_no, epoch, pid, .. } = run;
    format!("{job}.{}.{try_no}.{epoch}.{pid}{suffix}", time_millis(*due))
}

/// What root makes in another user's folder is that user's: its ticks read it, too.
fn give(file: &File, to: &Metadata) -> io::Result<()> {
    match file.metadata()?.uid() == to.uid() {
        true => Ok(()),
        false => fchown(file, Some(to.uid()), Some(to.gid())),
    }
}

/// `None`: another has put it on record meanwhile.
fn read(folder: &File, name: &OsStr) -> io::Result<Option<JobRun>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = match openat(folder, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::ENOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end: EndFile = serde_json::from_reader(BufReader::new(file))?;
    end.run().map(Some).ok_or_else(|| io::Error::other("unknown outcome"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_two_ledgers_have_ends_of_their_own() {
        let parent = std::env::temp_dir().join(format!("onedrop-ends-{}", std::process::id()));
        let _ = fs::remove_dir_all(&parent);
        fs::create_dir(&parent).unwrap();
        let folder = parent.join("ends");
        let ends = KeptEnds::new(&folder);
        let (due, outcome) = (SystemTime::UNIX_EPOCH, Some(JobOutcome::Ok));
        let run = JobRun::new("j", due, JobTrigger::Schedule, due);
        let [one, other] =
            [1, 2].map(|pid| JobRun { pid, epoch: 7, ended_at: Some(due), outcome, ..run.clone() });
        ends.keep(&one).unwrap();
        ends.keep(&other).unwrap();
        let kept = || {
            let folder = open_folder(&folder).unwrap();
            let files = files_in(&folder, &[SUFFIX]).unwrap();
            let pid = |(name, _): &(OsString, Metadata)| read(&folder, name).unwrap().unwrap().pid;
            files.iter().map(pid).collect::<Vec<_>>()
        };
        assert_eq!(kept(), [1, 2]);
        ends.forget(&one);
        assert_eq!(kept(), [2]);
        fs::remove_dir_all(&parent).unwrap();
    }
}
