//! Finds the messages of sources, in order, and reads them one at a time. A folder with `cur` or
//! `new` is a Maildir: `new` first, so that a message that its owner sees meanwhile is met in
//! `cur`; what is in `tmp` is not there yet. All other folders hold files; but below a Maildir, or
//! in one with a hidden name, files are a server's own, and only Maildirs are looked for.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::FileType;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::content_length;
use super::mbox::{DoubtfulLine, MboxReader};
use super::mbox_lock::{self, LOCK_TIME};
use super::no_message;
use super::place::{
    FileId, LINK, OpenFolder, SourceFile, SourcePlace, is_unchanged, too_large, what_it_is,
};
use super::state::{DoneBefore, DoneMark, FileVersion, IsDone};
use onedrop_site::command_line::MboxQuoting;

/// What a walk comes to.
#[derive(Debug)]
pub enum WalkStep {
    /// A folder or an mbox; `units` are its files or bytes.
    Begins {
        path: PathBuf,
        units: u64,
    },
    /// How many of them are passed.
    At {
        units: u64,
    },
    Message {
        place: SourcePlace,
        mark: DoneMark,
        bytes: Vec<u8>,
    },
    /// There is no message to deliver; where, and why.
    Unreadable {
        place: String,
        why: String,
    },
    /// Messages that earlier runs have delivered.
    Done {
        count: u64,
    },
    /// What the state file says of it does not count.
    Changed {
        path: PathBuf,
    },
    /// A sentence; nothing has failed.
    Note(String),
}

/// Hears of each step, and says whether to go on.
type Visit<'a> = dyn FnMut(WalkStep) -> ControlFlow<()> + 'a;

/// What a Maildir's own folders are called.
const OWN: [&str; 3] = ["new", "cur", "tmp"];
/// No mailbox is that deep; each level takes a descriptor, and some of the stack.
const MOST_LEVELS: usize = 256;

/// How to walk.
pub struct Walk<'a> {
    /// Files are mboxes, quoted so; else each is a message.
    pub mbox: Option<MboxQuoting>,
    pub subfolders: bool,
    /// Largest message in bytes.
    pub limit: u64,
    /// The state file: what it says is no message, wherever it is.
    pub state: Option<FileId>,
    pub done: &'a DoneBefore,
    /// What went from `new` to `cur` while it was read, and is met there once more.
    pub moved: HashSet<FileId>,
    pub visit: &'a mut Visit<'a>,
}

impl Walk<'_> {
    /// Walks through what an administrator named.
    pub fn source(&mut self, path: &Path) -> ControlFlow<()> {
        match OpenFolder::open(path) {
            Ok(folder) => self.folder(&Arc::new(folder), true),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let name = path.as_os_str().to_owned();
                self.file(&SourceFile { folder: None, name, in_maildir: false })
            }
            Err(error) => self.unreadable(path.display().to_string(), error.to_string()),
        }
    }

    fn unreadable(&mut self, place: String, why: String) -> ControlFlow<()> {
        (self.visit)(WalkStep::Unreadable { place, why })
    }

    /// A folder whose files are messages, or one that may have Maildirs in it and no more.
    fn folder(&mut self, folder: &Arc<OpenFolder>, has_files: bool) -> ControlFlow<()> {
        if folder.absolute.components().count() > MOST_LEVELS {
            let why = "too many folders, one in the other".to_owned();
            return self.unreadable(folder.path.display().to_string(), why);
        }
        let parts = [OWN[0], OWN[1]].map(|name| (name, part(folder, name)));
        let is_whole = parts.iter().all(|(_, part)| matches!(part, Ok(Some(_))));
        let is_none = parts.iter().all(|(_, part)| matches!(part, Ok(None)));
        let is_part = has_files && is_in_a_maildir(&folder.absolute);
        if is_none && is_tmp_of_a_maildir(&folder.absolute) {
            let why = "what is in a Maildir's tmp may not be whole".to_owned();
            return self.unreadable(folder.path.display().to_string(), why);
        }
        match is_none || (is_part && !is_whole) {
            true if has_files => return self.files(folder, is_part),
            true => return self.below(folder, &[]),
            false => {}
        }
        for (name, part) in parts {
            match part {
                Ok(None) => {}
                Ok(Some(part)) => self.files(&Arc::new(part), true)?,
                Err(why) => {
                    self.unreadable(folder.path.join(name).display().to_string(), why)?;
                }
            }
        }
        match self.subfolders {
            true => self.below(folder, &OWN),
            false => self.tell_left(folder),
        }
    }

    /// Reports how many Maildirs right below this one are not read.
    fn tell_left(&mut self, maildir: &OpenFolder) -> ControlFlow<()> {
        let is_maildir = |(name, kind): &(OsString, FileType)| {
            let is_own = OWN.iter().any(|own| name == *own);
            let sub = (kind.is_dir() && !is_own).then(|| maildir.folder(name).ok()).flatten();
            sub.is_some_and(|sub| {
                ["cur", "new"].iter().any(|part| sub.folder(part.as_ref()).is_ok())
            })
        };
        // One that cannot be read has been reported.
        let entries = maildir.all_entries().unwrap_or_default();
        match entries.iter().filter(|entry| is_maildir(entry)).count() {
            0 => ControlFlow::Continue(()),
            count => {
                let path = maildir.path.display();
                let note =
                    format!("{path}: --subfolders reads what is left: Maildirs in it ({count})");
                (self.visit)(WalkStep::Note(note))
            }
        }
    }

    /// The Maildirs below a folder, but for those of these names.
    fn below(&mut self, folder: &OpenFolder, but: &[&str]) -> ControlFlow<()> {
        match folder.all_entries() {
            Ok(entries) => entries
                .into_iter()
                .filter(|(name, _)| but.iter().all(|own| name != *own))
                .try_for_each(|(name, kind)| self.subfolder(folder, &name, kind, false)),
            Err(error) => self.unreadable(folder.path.display().to_string(), error.to_string()),
        }
    }

    /// Visits what is below, if it is a folder. One that cannot be read is reported: else its
    /// absence would go unnoticed.
    fn subfolder(
        &mut self,
        folder: &OpenFolder,
        name: &OsStr,
        kind: FileType,
        has_files: bool,
    ) -> ControlFlow<()> {
        let why = match kind.is_dir() {
            true => match folder.folder(name) {
                Ok(sub) => return self.folder(&Arc::new(sub), has_files),
                // It is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => Some(error.to_string()),
            },
            false => (kind.is_symlink() && folder.leads_to_a_folder(name)).then(|| LINK.to_owned()),
        };
        match why {
            Some(why) => self.unreadable(folder.path.join(name).display().to_string(), why),
            None => ControlFlow::Continue(()),
        }
    }

    /// Every file of a folder.
    fn files(&mut self, folder: &Arc<OpenFolder>, in_maildir: bool) -> ControlFlow<()> {
        let has_hidden = self.subfolders && !in_maildir;
        let entries = match has_hidden {
            true => folder.all_entries(),
            false => folder.entries(),
        };
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                return self.unreadable(folder.path.display().to_string(), error.to_string());
            }
        };
        let is_of_mboxes = self.mbox.is_some() && !in_maildir;
        if is_of_mboxes {
            without_locks(&mut entries);
        }
        if !is_of_mboxes {
            let (path, units) = (folder.path.clone(), entries.len() as u64);
            (self.visit)(WalkStep::Begins { path, units })?;
        }
        for (at, (name, kind)) in entries.into_iter().enumerate() {
            self.entry(folder, &name, kind, in_maildir)?;
            if !is_of_mboxes {
                (self.visit)(WalkStep::At { units: at as u64 + 1 })?;
            }
        }
        ControlFlow::Continue(())
    }

    fn entry(
        &mut self,
        folder: &Arc<OpenFolder>,
        name: &OsStr,
        kind: FileType,
        in_maildir: bool,
    ) -> ControlFlow<()> {
        let is_hidden = name.as_bytes().starts_with(b".");
        if self.subfolders && !in_maildir && (kind.is_dir() || is_hidden) {
            return self.subfolder(folder, name, kind, !is_hidden);
        }
        let file =
            SourceFile { folder: Some(Arc::clone(folder)), name: name.to_owned(), in_maildir };
        match what_it_is(kind) {
            Some(what) => self.unreadable(file.path().display().to_string(), what.to_owned()),
            None => self.file(&file),
        }
    }

    fn file(&mut self, file: &SourceFile) -> ControlFlow<()> {
        let read = match self.mbox {
            Some(quoting) if !file.in_maildir => self.mbox(file, quoting),
            _ => self.message(file),
        };
        match read {
            Ok(flow) => flow,
            Err(why) => self.unreadable(file.path().display().to_string(), why),
        }
    }

    /// A file with one message.
    fn message(&mut self, file: &SourceFile) -> Result<ControlFlow<()>, String> {
        let (opened, facts, is_moved) = file.open_wherever()?;
        let (key, version) = (file.key(), FileVersion::of(&facts));
        let id = FileId::of(&facts);
        if self.state == Some(id) || (!is_moved && self.moved.contains(&id)) {
            return Ok(ControlFlow::Continue(()));
        }
        if is_moved {
            self.moved.insert(id);
        }
        match self.done.of_file(&key, version) {
            IsDone::Yes => return Ok((self.visit)(WalkStep::Done { count: 1 })),
            IsDone::Changed => {
                let changed = (self.visit)(WalkStep::Changed { path: file.path() });
                if changed.is_break() {
                    return Ok(changed);
                }
            }
            IsDone::No => {}
        }
        // A single message may begin with a From_ line as well.
        let is_one = file.in_maildir || file.name.as_bytes().ends_with(b".eml");
        if !is_one {
            let why = no_message::why_not_one(BufReader::new(opened))
                .map_err(|error| error.to_string())?;
            if let Some(why) = why {
                return Err(why.to_owned());
            }
        }
        let place = SourcePlace { file: file.clone(), in_mbox: None };
        let bytes = place.read(self.limit, version)?;
        if let Some(what) = no_message::what_it_is(&bytes) {
            return Err(what.to_owned());
        }
        let mark = DoneMark::of_file(&key, version);
        Ok((self.visit)(WalkStep::Message { place, mark, bytes }))
    }

    fn mbox(&mut self, file: &SourceFile, quoting: MboxQuoting) -> Result<ControlFlow<()>, String> {
        let told = |error: io::Error| error.to_string();
        let (opened, facts) = file.open()?;
        if self.state == Some(FileId::of(&facts)) {
            return Ok(ControlFlow::Continue(()));
        }
        let mut steps = Steps { visit: self.visit, ended: false };
        // Its end is now where no program is in the midst of a message.
        let path = file.path();
        let facts = mbox_lock::wait(&opened, &path, LOCK_TIME, &mut |by| {
            steps.tell(WalkStep::Note(format!("{}: waiting: {by}", path.display())));
        })?;
        let (key, version) = (file.key(), FileVersion::of(&facts));
        let (size, mut doubtful) = (facts.len(), DoubtfulLines::default());
        steps.tell(WalkStep::Begins { path: file.path(), units: size });
        let (is_done, runs) = self.done.of_mbox(&key, version);
        if is_done == IsDone::Changed {
            steps.tell(WalkStep::Changed { path: file.path() });
        }
        let (mut offset, mut unquoted_until) = (0, 0);
        while offset < size && !steps.ended {
            if let Some((end, count)) = runs.get(&offset) {
                offset = *end;
                steps.tell(WalkStep::Done { count: *count });
                steps.tell(WalkStep::At { units: offset });
                continue;
            }
            (&opened).seek(SeekFrom::Start(offset)).map_err(told)?;
            // Not what comes in meanwhile.
            let input = BufReader::with_capacity(1 << 18, (&opened).take(size - offset));
            let mut reader = MboxReader::new(input, offset, quoting, self.limit);
            while !steps.ended && !runs.contains_key(&offset) {
                let next = reader.next_message().map_err(|error| error.to_string())?;
                // What was read just now may be of both.
                if !opened.metadata().is_ok_and(|now| is_unchanged(&now, &facts)) {
                    return Err(MBOX_CHANGED.to_owned());
                }
                let Some(message) = next else {
                    offset = size;
                    break;
                };
                doubtful.tell(&path, std::mem::take(&mut reader.doubtful), &mut steps);
                let place = SourcePlace { file: file.clone(), in_mbox: Some((quoting, offset)) };
                let unquoted = content_length::end_of_unquoted(
                    &opened,
                    message.end,
                    message.claimed_end,
                    size,
                )
                .map_err(told)?;
                if let Some(end) = unquoted {
                    unquoted_until = unquoted_until.max(end);
                }
                match message.bytes {
                    _ if offset < unquoted_until => {
                        let (place, why) = (place.to_string(), UNQUOTED.to_owned());
                        steps.tell(WalkStep::Unreadable { place, why });
                    }
                    Some(bytes) if offset == 0 && is_internal(&bytes) => {
                        let note = format!("{place}: a mail server's own data, left out");
                        steps.tell(WalkStep::Note(note));
                    }
                    Some(bytes) => {
                        let mark = DoneMark::of_mbox(&key, version, offset, message.end);
                        steps.tell(WalkStep::Message { place, mark, bytes });
                    }
                    None => {
                        let (place, why) = (place.to_string(), too_large(self.limit));
                        steps.tell(WalkStep::Unreadable { place, why });
                    }
                }
                offset = message.end;
                steps.tell(WalkStep::At { units: offset });
            }
        }
        doubtful.end(&path, &mut steps);
        Ok(if steps.ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

/// Passes steps to `visit` until it says stop.
struct Steps<'a, 'b> {
    visit: &'a mut Visit<'b>,
    ended: bool,
}

impl Steps<'_, '_> {
    fn tell(&mut self, step: WalkStep) {
        self.ended = self.ended || (self.visit)(step).is_break();
    }
}

const UNQUOTED: &str = "may be a part of a message: by a Content-Length a message goes on beyond a \
                        line that looks like the begin of another; replay a copy that is quoted";
const MBOX_CHANGED: &str = "changed while it was read: what follows is left, replay it again";
const BEHIND_TEXT: &str =
    "looks like the begin of a message, but no empty line stands before it, so it is text";
/// Doubtful lines of an mbox that are reported one by one.
const MOST_TOLD: u64 = 20;

/// Counts the lines that may begin messages, and count as text.
#[derive(Default)]
struct DoubtfulLines {
    told: u64,
    more: u64,
}

impl DoubtfulLines {
    fn tell(
        &mut self,
        path: &Path,
        (lines, more): (Vec<DoubtfulLine>, u64),
        steps: &mut Steps<'_, '_>,
    ) {
        self.more += more;
        for DoubtfulLine { at, is_behind_text, text } in lines {
            if self.told == MOST_TOLD {
                self.more += 1;
                continue;
            }
            self.told += 1;
            let path = path.display();
            let why = match is_behind_text {
                true => BEHIND_TEXT,
                false => "no date that can be read, so it is text",
            };
            steps.tell(WalkStep::Note(format!("{path} at byte {at}: {why}: {text}")));
        }
    }

    fn end(&self, path: &Path, steps: &mut Steps<'_, '_>) {
        if self.more > 0 {
            let (path, more) = (path.display(), self.more);
            steps.tell(WalkStep::Note(format!("{path}: and {more} more of such lines")));
        }
    }
}

/// Takes out the files by which programs lock those beside them.
fn without_locks(entries: &mut Vec<(OsString, FileType)>) {
    let names: HashSet<OsString> = entries.iter().map(|(name, _)| name.clone()).collect();
    let is_lock = |name: &OsStr| {
        let of = name.as_bytes().strip_suffix(b".lock");
        of.is_some_and(|of| names.contains(OsStr::from_bytes(of)))
    };
    entries.retain(|(name, kind)| kind.is_dir() || !is_lock(name));
}

/// Whether the first message of an mbox is none: UW-IMAP keeps its own figures there.
fn is_internal(message: &[u8]) -> bool {
    const SUBJECT: &[u8] = b"Subject: DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA";
    let head = || message.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let has = |is: fn(&[u8]) -> bool| head().take_while(|line| !line.is_empty()).any(is);
    has(|line| line == SUBJECT) && has(|line| line.starts_with(b"X-IMAP: "))
}

/// A Maildir's `cur` or `new`, if it is there; or why it cannot be read.
fn part(folder: &OpenFolder, name: &str) -> Result<Option<OpenFolder>, String> {
    match folder.folder(name.as_ref()) {
        Ok(part) => Ok(Some(part)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::NotADirectory if folder.leads_to_a_folder(name.as_ref()) => {
                Err(LINK.to_owned())
            }
            io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(error.to_string()),
        },
    }
}

/// Whether the folder is a Maildir's `cur` or `new`.
fn is_in_a_maildir(folder: &Path) -> bool {
    [("cur", "new"), ("new", "cur")].iter().any(|(own, other)| {
        folder.file_name() == Some(OsStr::new(own)) && folder.with_file_name(other).is_dir()
    })
}

fn is_tmp_of_a_maildir(folder: &Path) -> bool {
    let is_there = |other: &str| folder.with_file_name(other).is_dir();
    folder.file_name() == Some(OsStr::new("tmp")) && is_there("cur") && is_there("new")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_beside_its_mbox_is_none() {
        let root = tempfile::tempdir().expect("a folder");
        for name in ["a", "a.lock", "b.lock", "c.lock.lock"] {
            std::fs::write(root.path().join(name), "").expect("a file");
        }
        for name in ["d", "d.lock"] {
            std::fs::create_dir(root.path().join(name)).expect("a folder");
        }
        let folder = OpenFolder::open(root.path()).expect("a folder");
        let mut entries = folder.entries().expect("entries");
        without_locks(&mut entries);
        let names: Vec<OsString> = entries.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b.lock", "c.lock.lock", "d", "d.lock"]);
    }
}
