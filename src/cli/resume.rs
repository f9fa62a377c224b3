//! The file of `onedrop verify --resume`: the window of a run, and the account up to which all is
//! printed. It is written anew, under another name and then renamed, about once a second, and
//! removed when the run comes to its end. A run that was killed leaves it, and the next one goes on
//! there.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use onedrop_core::ledger::Window;

/// Between two writings.
const PAUSE: Duration = Duration::from_secs(1);

/// The file of a run and what it holds.
pub(super) struct Resume {
    path: PathBuf,
    stood: Stood,
    /// When it was written last.
    written: Instant,
    /// The first error since it was opened.
    error: Option<io::Error>,
}

/// What the file holds, as JSON.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stood {
    since: SystemTime,
    #[serde(flatten)]
    asked: ResumedPlan,
    /// `None`: at the beginning.
    account: Option<String>,
}

/// What a run was asked for, but for its window: a run that was asked for something else has not
/// done it up to that account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResumedPlan {
    pub all: bool,
    #[serde(default)]
    pub repair: bool,
}

impl Resume {
    /// Goes on with the run that the file at `path` is of, if it is there and was asked for the
    /// same, or begins one.
    ///
    /// # Errors
    /// The file cannot be read or written, or is none of ours.
    pub fn open(path: &Path, since: SystemTime, asked: ResumedPlan) -> Result<Resume, String> {
        let told = |error: &dyn std::fmt::Display| format!("--resume {}: {error}", path.display());
        let anew = Stood { since, asked, account: None };
        let stood = match fs::read(path) {
            Ok(bytes) => {
                let stood: Stood = serde_json::from_slice(&bytes).map_err(|error| told(&error))?;
                if stood.asked == anew.asked { stood } else { anew }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => anew,
            Err(error) => return Err(told(&error)),
        };
        let path = path.to_owned();
        let resume = Resume { path, stood, written: Instant::now(), error: None };
        // That it cannot be written is said before the work begins.
        resume.write().map_err(|error| told(&error))?;
        Ok(resume)
    }

    /// The window of the run that it goes on with.
    pub fn window(&self) -> Window {
        Window { since: self.stood.since, all: self.stood.asked.all }
    }

    /// The account after which the run begins.
    pub fn account(&self) -> Option<&str> {
        self.stood.account.as_deref()
    }

    /// All up to `account` is printed.
    pub fn passed(&mut self, account: String) {
        self.stood.account = Some(account);
        if self.written.elapsed() >= PAUSE {
            let written = self.write();
            self.error = self.error.take().or(written.err());
            self.written = Instant::now();
        }
    }

    /// The run is over, or has failed: then the next one goes on.
    ///
    /// # Errors
    /// The file could not be written or removed.
    pub fn end(self, is_over: bool) -> Result<(), String> {
        let last = match is_over {
            // A run beside this one may have come to its end before.
            true => fs::remove_file(&self.path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            false => self.write(),
        };
        let path = self.path.display();
        let ended = self.error.map_or(last, Err);
        ended.map_err(|error| format!("--resume {path}: {error}"))
    }

    fn write(&self) -> io::Result<()> {
        let mut beside = self.path.clone().into_os_string();
        // Of its own: a run beside this one would rename what this one has only begun to write.
        beside.push(format!(".{}.new", std::process::id()));
        // Durable before it has the name: a loss of power would leave an empty one.
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec(&self.stood)?)?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at(secs: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(secs)
    }

    fn asked(all: bool) -> ResumedPlan {
        ResumedPlan { all, repair: false }
    }

    fn since(resume: &Resume) -> SystemTime {
        resume.window().since
    }

    #[test]
    fn a_run_that_was_ended_goes_on_with_its_window_where_it_stood() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("verify");
        let mut first = Resume::open(&path, at(1000), asked(false)).expect("begun");
        assert_eq!((since(&first), first.account()), (at(1000), None));
        first.written = Instant::now() - PAUSE;
        first.passed("doug\n\"".to_owned());
        first.passed("lisa".to_owned());
        // Killed: what was passed within the last second is done again.
        drop(first);
        let second = Resume::open(&path, at(2000), asked(false)).expect("goes on");
        assert_eq!(since(&second), at(1000));
        assert_eq!(second.account(), Some("doug\n\""));
        second.end(false).expect("written");
        let third = Resume::open(&path, at(2000), asked(true)).expect("others are asked for");
        assert_eq!((since(&third), third.account()), (at(2000), None));
        third.end(true).expect("removed");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn two_runs_at_once_both_come_to_their_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("verify");
        let begin = || Resume::open(&path, at(1000), asked(false)).expect("begun");
        for resume in [begin(), begin()] {
            resume.end(true).expect("over");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn what_another_run_was_asked_for_is_not_taken_for_done() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("verify");
        let others = [asked(true), ResumedPlan { repair: true, ..asked(false) }];
        for other in others {
            let mut first = Resume::open(&path, at(1000), other.clone()).expect("begun");
            first.passed("zoe".to_owned());
            first.end(false).expect("written");
            let same = Resume::open(&path, at(2000), other.clone()).expect("goes on");
            assert_eq!((since(&same), same.account()), (at(1000), Some("zoe")), "{other:?}");
            let second = Resume::open(&path, at(2000), asked(false)).expect("begins anew");
            assert_eq!((since(&second), second.account()), (at(2000), None), "{other:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("verify");
        fs::write(&path, "x").expect("a file");
        let missing = folder.path().join("no/verify");
        for path in [&path, &missing, &folder.path().to_owned()] {
            let error = Resume::open(path, at(1), asked(true)).err().expect("an error");
            assert!(error.contains(&format!("--resume {}: ", path.display())), "{error}");
        }
        assert_eq!(fs::read(&path).expect("a file"), b"x", "what is another's stays");
    }
}
