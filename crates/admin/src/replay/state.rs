//! The file of `onedrop replay --state`: which messages are delivered. A line of JSON is appended
//! for each once its delivery is confirmed, and the file is synced every second and at the end: a
//! run that was killed goes on after its last line; after a power failure the last second is done
//! again, and found there. One run at a time has it. A last line that is torn is cut off.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use onedrop_core::os::durable::sync_folder;
use onedrop_site::command_line::MboxQuoting;

/// Between two syncs.
const PAUSE: Duration = Duration::from_secs(1);

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DoneMark {
    Mbox {
        mbox: String,
        #[serde(flatten)]
        version: FileVersion,
        from: u64,
        to: u64,
    },
    File {
        file: String,
        #[serde(flatten)]
        version: FileVersion,
    },
}

/// What a file was when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    size: u64,
    /// Nanoseconds since 1970; 0 for a file that is older.
    modified: u64,
    /// Two messages of a Maildir may have one name, in `new` and in `cur`.
    inode: u64,
}

impl FileVersion {
    pub fn of(facts: &Metadata) -> FileVersion {
        let since = facts.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = since.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0);
        FileVersion { size: facts.len(), modified, inode: facts.ino() }
    }
}

impl DoneMark {
    pub fn of_file(key: &Path, version: FileVersion) -> DoneMark {
        DoneMark::File { file: text(key), version }
    }

    /// What the file was when it was read.
    pub fn version(&self) -> FileVersion {
        match self {
            DoneMark::Mbox { version, .. } | DoneMark::File { version, .. } => *version,
        }
    }

    /// Of the message in these bytes of an mbox.
    pub fn of_mbox(key: &Path, version: FileVersion, from: u64, to: u64) -> DoneMark {
        DoneMark::Mbox { mbox: text(key), version, from, to }
    }
}

/// A path as text that no other path has.
fn text(path: &Path) -> String {
    path.as_os_str().as_bytes().escape_ascii().to_string()
}

/// What is known of a path takes little memory, however long the path is.
fn key(path: &str) -> [u8; 16] {
    let mut key = [0; 16];
    key.copy_from_slice(&Sha256::digest(path.as_bytes())[..16]);
    key
}

/// Runs of messages in an mbox: where each begins, where it ends, how many messages it has.
pub type DoneRuns = BTreeMap<u64, (u64, u64)>;

/// What earlier runs have delivered.
#[derive(Debug, Default)]
pub struct DoneBefore {
    files: HashMap<[u8; 16], FileVersion>,
    mboxes: HashMap<[u8; 16], (FileVersion, DoneRuns)>,
}

/// What the state file says of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum IsDone {
    No,
    Yes,
    /// It was another file then.
    Changed,
}

impl DoneBefore {
    pub fn of_file(&self, path: &Path, version: FileVersion) -> IsDone {
        match self.files.get(&key(&text(path))) {
            None => IsDone::No,
            Some(then) if *then == version => IsDone::Yes,
            Some(_) => IsDone::Changed,
        }
    }

    /// What is done of an mbox.
    pub fn of_mbox(&self, path: &Path, version: FileVersion) -> (IsDone, DoneRuns) {
        match self.mboxes.get(&key(&text(path))) {
            None => (IsDone::No, DoneRuns::new()),
            Some((then, runs)) if *then == version => (IsDone::Yes, runs.clone()),
            Some(_) => (IsDone::Changed, DoneRuns::new()),
        }
    }

    fn add(&mut self, mark: DoneMark) {
        match mark {
            DoneMark::File { file, version } => {
                self.files.insert(key(&file), version);
            }
            DoneMark::Mbox { mbox, version, from, to } => {
                let known = self.mboxes.entry(key(&mbox));
                let (then, runs) = known.or_insert_with(|| (version, DoneRuns::new()));
                if *then != version {
                    (*then, *runs) = (version, DoneRuns::new());
                }
                add_run(runs, from, to);
            }
        }
    }
}

/// Joins what touches.
fn add_run(runs: &mut DoneRuns, from: u64, to: u64) {
    let (mut from, mut to, mut count) = (from, to, 1);
    if let Some((before, (end, messages))) = runs.range(..=from).next_back() {
        if from < *end {
            return;
        }
        if *end == from {
            (from, count) = (*before, count + messages);
        }
    }
    if let Some((end, messages)) = runs.remove(&to) {
        (to, count) = (end, count + messages);
    }
    runs.insert(from, (to, count));
}

/// The first line: what the messages were delivered for. For something else none of them is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePurpose {
    /// The version of this form.
    pub onedrop_replay: u32,
    pub to: Vec<String>,
    /// How mboxes are quoted: another quoting makes other messages.
    #[serde(default)]
    pub mbox: Option<MboxQuoting>,
    /// Names ledger and store.
    pub site: String,
}

/// The file, open for what is done from now on.
pub struct ReplayState {
    path: PathBuf,
    file: Flock<File>,
    synced: Instant,
}

impl ReplayState {
    /// Reads the file, or makes it.
    ///
    /// # Errors
    /// It is another's, of another replay, or in use; or cannot be read or written.
    pub fn open(path: &Path, purpose: &StatePurpose) -> Result<(ReplayState, DoneBefore), String> {
        let told = |error: &dyn std::fmt::Display| format!("--state {}: {error}", path.display());
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.map_err(|error| told(&error))?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, _)| told(&"another replay uses it"))?;
        let (done, end) = load(&file, purpose).map_err(|error| told(&error))?;
        let mut state = ReplayState { path: path.to_owned(), file, synced: Instant::now() };
        state.begin(end, purpose).map_err(|error| told(&error))?;
        Ok((state, done))
    }

    /// What is done, for a run that writes nothing.
    ///
    /// # Errors
    /// Those of [`open`](ReplayState::open).
    pub fn read(path: &Path, purpose: &StatePurpose) -> Result<DoneBefore, String> {
        let told = |error: &dyn std::fmt::Display| format!("--state {}: {error}", path.display());
        match File::open(path) {
            Ok(file) => Ok(load(&file, purpose).map_err(|error| told(&error))?.0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DoneBefore::default()),
            Err(error) => Err(told(&error)),
        }
    }

    /// Cuts off what is torn.
    fn begin(&mut self, end: u64, purpose: &StatePurpose) -> io::Result<()> {
        self.file.set_len(end)?;
        if end == 0 {
            self.append(&serde_json::to_vec(purpose).unwrap_or_default())?;
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            sync_folder(folder.unwrap_or(Path::new(".")))?;
        }
        self.file.sync_data()
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let line = [line, b"\n"].concat();
        (&*self.file).write_all(&line)
    }

    /// A message's delivery is confirmed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, mark: &DoneMark) -> Result<(), String> {
        let line = serde_json::to_vec(mark).unwrap_or_default();
        let mut written = self.append(&line);
        if written.is_ok() && self.synced.elapsed() >= PAUSE {
            self.synced = Instant::now();
            written = self.file.sync_data();
        }
        written.map_err(|error| self.told(&error))
    }

    /// # Errors
    /// What was written may not be on the disk.
    pub fn end(self) -> Result<(), String> {
        self.file.sync_data().map_err(|error| self.told(&error))
    }

    fn told(&self, error: &io::Error) -> String {
        format!("--state {}: {error}", self.path.display())
    }
}

/// What is done by the lines of a state file, and where the last whole one ends.
fn load(file: &File, purpose: &StatePurpose) -> Result<(DoneBefore, u64), String> {
    let (mut done, mut end) = (DoneBefore::default(), 0);
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = lines.read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        let is_whole = line.ends_with(b"\n");
        if end == 0 && count > 0 {
            let is_begun = serde_json::to_vec(purpose).is_ok_and(|own| own.starts_with(&line));
            match serde_json::from_slice::<StatePurpose>(&line) {
                Ok(then) if is_whole && then == *purpose => {}
                Ok(_) if is_whole => return Err(OTHER.to_owned()),
                // Killed in the midst of its first line.
                _ if is_begun => return Ok((done, 0)),
                _ => return Err("no state file of onedrop replay".to_owned()),
            }
        } else {
            match serde_json::from_slice(&line) {
                Ok(mark) if is_whole => done.add(mark),
                // The end; or torn: what follows was not written in order, if there is anything.
                _ => return Ok((done, end)),
            }
        }
        end += count as u64;
    }
}

const OTHER: &str = "it is of another replay: for other recipients (--to), mboxes that are quoted \
                     otherwise (--mbox), another ledger or another store";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn purpose(to: &str) -> StatePurpose {
        let (to, site) = (vec![to.to_owned()], "here".to_owned());
        StatePurpose { onedrop_replay: 1, to, mbox: Some(MboxQuoting::Rd), site }
    }

    fn version(size: u64) -> FileVersion {
        FileVersion { size, modified: 5, inode: 7 }
    }

    #[test]
    fn what_is_done_is_known_to_the_next_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let (mut state, done) = ReplayState::open(&path, &purpose("zoe")).expect("a state");
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"/x/\xff\n\"y"));
        assert_eq!(done.of_file(odd, version(1)), IsDone::No);
        state.add(&DoneMark::of_file(odd, version(1))).expect("written");
        for (from, to) in [(0, 10), (20, 30), (10, 20), (40, 50)] {
            let mark = DoneMark::of_mbox(Path::new("/m"), version(99), from, to);
            state.add(&mark).expect("written");
        }
        let in_use = ReplayState::open(&path, &purpose("zoe")).err();
        assert!(in_use.is_some_and(|why| why.contains("another replay uses it")));
        drop(state);
        let (state, done) = ReplayState::open(&path, &purpose("zoe")).expect("a state");
        assert_eq!(done.of_file(odd, version(1)), IsDone::Yes);
        assert_eq!(done.of_file(odd, version(2)), IsDone::Changed);
        // Not another one, however alike they look.
        for other in [&b"/x/\xfe\n\"y"[..], b"/x/\\xff\\n\\\"y", "/x/\u{fffd}\n\"y".as_bytes()] {
            let other = Path::new(std::ffi::OsStr::from_bytes(other));
            assert_eq!(done.of_file(other, version(1)), IsDone::No, "{other:?}");
        }
        let text = std::fs::read(&path).expect("a state");
        assert!(text.is_ascii() && text.iter().filter(|byte| **byte == b'\n').count() == 6);
        let (is, runs) = done.of_mbox(Path::new("/m"), version(99));
        assert_eq!((is, runs), (IsDone::Yes, [(0, (30, 3)), (40, (50, 1))].into()));
        let changed = done.of_mbox(Path::new("/m"), version(98));
        assert_eq!(changed, (IsDone::Changed, DoneRuns::new()));
        state.end().expect("synced");
    }

    #[test]
    fn a_file_that_is_torn_anywhere_is_read_up_to_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let (mut state, _) = ReplayState::open(&path, &purpose("zoe")).expect("a state");
        let names = ["/a", "/b", "/c"];
        for name in names {
            state.add(&DoneMark::of_file(Path::new(name), version(1))).expect("written");
        }
        state.end().expect("synced");
        let whole = fs::read(&path).expect("a file");
        for end in 0..=whole.len() {
            fs::write(&path, &whole[..end]).expect("a file");
            let (mut state, done) = ReplayState::open(&path, &purpose("zoe")).expect("a state");
            let is = |name: &str| done.of_file(Path::new(name), version(1)) == IsDone::Yes;
            let lines = whole[..end].iter().filter(|byte| **byte == b'\n').count();
            let count = names.into_iter().filter(|name| is(name)).count();
            assert_eq!(count, lines.saturating_sub(1), "{end} bytes");
            // What is appended then is read by the next run.
            state.add(&DoneMark::of_file(Path::new("/d"), version(1))).expect("written");
            drop(state);
            let (_, done) = ReplayState::open(&path, &purpose("zoe")).expect("a state");
            assert_eq!(done.of_file(Path::new("/d"), version(1)), IsDone::Yes, "{end} bytes");
        }
    }

    #[test]
    fn another_file_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        for text in ["From a Mon Jan  5 10:00:00 2015\n", "{}\n", "x"] {
            fs::write(&path, text).expect("a file");
            let why = ReplayState::open(&path, &purpose("zoe")).err().expect("an error");
            assert!(why.ends_with("no state file of onedrop replay"), "{why}");
            assert_eq!(fs::read_to_string(&path).expect("a file"), text);
        }
        fs::remove_file(&path).expect("a file");
        drop(ReplayState::open(&path, &purpose("zoe")).expect("a state"));
        let why = ReplayState::open(&path, &purpose("max")).err().expect("an error");
        assert!(why.contains("of another replay"), "{why}");
        let why = ReplayState::read(&path, &purpose("max")).expect_err("an error");
        assert!(why.contains("of another replay"), "{why}");
        for mbox in [Some(MboxQuoting::O), None] {
            let other = StatePurpose { mbox, ..purpose("zoe") };
            let why = ReplayState::open(&path, &other).err().expect("an error");
            assert!(why.contains("quoted otherwise (--mbox)"), "{why}");
        }
        let nowhere = folder.path().join("no/state");
        assert!(ReplayState::read(&nowhere, &purpose("zoe")).is_ok());
        assert!(ReplayState::open(&nowhere, &purpose("zoe")).is_err());
    }
}
