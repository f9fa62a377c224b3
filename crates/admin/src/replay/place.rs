//! Where the messages of a source are. What an administrator names is opened whatever it is; below
//! that no symbolic link is followed, and nothing but a regular file is read: the folder may be its
//! user's, who could have anybody's file delivered to himself.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::mbox::MboxReader;
use super::state::FileVersion;
use onedrop_core::deliver::Failure;
use onedrop_site::command_line::MboxQuoting;

/// A folder that is open.
#[derive(Debug)]
pub struct OpenFolder {
    file: File,
    /// The path as it was named.
    pub path: PathBuf,
    /// The same wherever it is named from.
    pub absolute: PathBuf,
}

impl OpenFolder {
    /// One that an administrator names.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<OpenFolder> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        Ok(OpenFolder { file, path: path.to_owned(), absolute: fs::canonicalize(path)? })
    }

    /// A folder in it, if that is one.
    ///
    /// # Errors
    /// It is none, or cannot be opened.
    pub fn folder(&self, name: &OsStr) -> io::Result<OpenFolder> {
        let file = self.open_at(name, OFlag::O_DIRECTORY)?;
        let (path, absolute) = (self.path.join(name), self.absolute.join(name));
        Ok(OpenFolder { file, path, absolute })
    }

    /// What is in it, in the order of the names. Hidden names are left out.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn entries(&self) -> io::Result<Vec<(OsString, FileType)>> {
        let mut entries = self.all_entries()?;
        entries.retain(|(name, _)| !name.as_bytes().starts_with(b"."));
        Ok(entries)
    }

    /// The entries as [`entries`](OpenFolder::entries) lists them, with hidden names.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn all_entries(&self) -> io::Result<Vec<(OsString, FileType)>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.at())? {
            let entry = entry?;
            match entry.file_type() {
                Ok(kind) => entries.push((entry.file_name(), kind)),
                // It is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(entries)
    }

    /// Whether the name leads to a folder, or to what cannot be seen; also by a symbolic link.
    pub fn leads_to_a_folder(&self, name: &OsStr) -> bool {
        match fs::metadata(self.at().join(name)) {
            Ok(facts) => facts.is_dir(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// The folder that is open, even if another one has its name by now.
    fn at(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// A folder beside it.
    ///
    /// # Errors
    /// Those of [`folder`](OpenFolder::folder).
    fn beside(&self, name: &OsStr) -> io::Result<OpenFolder> {
        let parent = self.open_at("..".as_ref(), OFlag::O_DIRECTORY)?;
        let (path, absolute) = (self.path.with_file_name(name), self.absolute.with_file_name(name));
        let parent = OpenFolder { file: parent, path: PathBuf::new(), absolute: PathBuf::new() };
        let file = parent.open_at(name, OFlag::O_DIRECTORY)?;
        Ok(OpenFolder { file, path, absolute })
    }

    fn open_at(&self, name: &OsStr, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = openat(&self.file, name, flags | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(File::from(file))
    }
}

/// Which file it is, under whatever name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub fn of(facts: &Metadata) -> FileId {
        FileId { device: facts.dev(), inode: facts.ino() }
    }
}

pub const LINK: &str = "a symbolic link, which is not followed";

/// Why nothing but a regular file is read; `None` for one.
pub fn what_it_is(kind: FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_symlink() => Some(LINK),
        kind if kind.is_dir() => Some("a folder"),
        kind if kind.is_fifo() => Some("a FIFO"),
        kind if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

/// A file of a source.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// `None`: the administrator named the file.
    pub folder: Option<Arc<OpenFolder>>,
    pub name: OsString,
    /// It is in a Maildir: a mail program may change its name after the colon.
    pub in_maildir: bool,
}

impl SourceFile {
    /// The path as it was named.
    pub fn path(&self) -> PathBuf {
        match &self.folder {
            None => PathBuf::from(&self.name),
            Some(folder) => folder.path.join(&self.name),
        }
    }

    /// What names it in a state file. In a Maildir it stays the same in `new` and in `cur`.
    pub fn key(&self) -> PathBuf {
        match &self.folder {
            None => fs::canonicalize(&self.name).unwrap_or_else(|_| PathBuf::from(&self.name)),
            Some(folder) if self.in_maildir => {
                let maildir = folder.absolute.parent().unwrap_or(&folder.absolute);
                maildir.join(OsStr::from_bytes(unique(&self.name)))
            }
            Some(folder) => folder.absolute.join(&self.name),
        }
    }

    /// # Errors
    /// A sentence: it is no regular file or cannot be opened.
    pub fn open(&self) -> Result<(File, Metadata), String> {
        let (file, facts, _) = self.open_wherever()?;
        Ok((file, facts))
    }

    /// The file as [`open`](SourceFile::open) opens it; and whether it lies in `cur` by now, where
    /// it was in `new`.
    ///
    /// # Errors
    /// Those of [`open`](SourceFile::open).
    pub fn open_wherever(&self) -> Result<(File, Metadata, bool), String> {
        let opened = match self.opened() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.in_maildir => {
                self.renamed().map_or(Err(error), |(renamed, is_moved)| {
                    renamed.opened().map(|file| (file, is_moved))
                })
            }
            opened => opened.map(|file| (file, false)),
        };
        let (file, is_moved) =
            opened.map_err(|error| match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                Errno::ELOOP => LINK.to_owned(),
                _ => error.to_string(),
            })?;
        let facts = file.metadata().map_err(|error| error.to_string())?;
        match what_it_is(facts.file_type()) {
            None => Ok((file, facts, is_moved)),
            Some(what) => Err(what.to_owned()),
        }
    }

    fn opened(&self) -> io::Result<File> {
        match &self.folder {
            Some(folder) => folder.open_at(&self.name, OFlag::empty()),
            // A FIFO without a writer must not block.
            None => OpenOptions::new()
                .read(true)
                .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
                .open(&self.name),
        }
    }

    /// The same file under the name that it has now; and whether its owner has seen it meanwhile,
    /// so that it went from `new` to `cur`.
    fn renamed(&self) -> Option<(SourceFile, bool)> {
        let folder = self.folder.as_ref()?;
        let is_new = folder.absolute.file_name() == Some(OsStr::new("new"));
        let cur = || folder.beside("cur".as_ref()).ok().map(Arc::new).filter(|_| is_new);
        let is_it = |(name, _): &(OsString, FileType)| unique(name) == unique(&self.name);
        let within = |folder: Arc<OpenFolder>| {
            let (name, _) = folder.entries().ok()?.into_iter().find(is_it)?;
            Some(SourceFile { folder: Some(folder), name, ..self.clone() })
        };
        let renamed = within(Arc::clone(folder)).map(|renamed| (renamed, false));
        renamed.or_else(|| Some((within(cur()?)?, true)))
    }
}

/// A Maildir's name of a message without its flags.
fn unique(name: &OsStr) -> &[u8] {
    name.as_bytes().split(|byte| *byte == b':').next().unwrap_or_default()
}

/// Where a message is.
#[derive(Debug, Clone)]
pub struct SourcePlace {
    pub file: SourceFile,
    /// In an mbox: how it is quoted, and where the message begins.
    pub in_mbox: Option<(MboxQuoting, u64)>,
}

impl SourcePlace {
    /// The message's bytes, of the file that was found: in another one another message may stand
    /// there.
    ///
    /// # Errors
    /// A sentence that says why not.
    pub fn read(&self, limit: u64, found: FileVersion) -> Result<Vec<u8>, String> {
        let (mut file, facts) = self.file.open()?;
        if FileVersion::of(&facts) != found {
            return Err(CHANGED.to_owned());
        }
        let Some((quoting, offset)) = self.in_mbox else {
            if facts.len() > limit {
                return Err(too_large(limit));
            }
            return whole(file, &facts).map_err(|error| error.to_string());
        };
        file.seek(SeekFrom::Start(offset)).map_err(|error| error.to_string())?;
        // Not what comes in meanwhile.
        let input = BufReader::new((&file).take(facts.len().saturating_sub(offset)));
        let next = MboxReader::new(input, offset, quoting, limit).next_message();
        // What was read just now may be of both.
        if !file.metadata().is_ok_and(|now| is_unchanged(&now, &facts)) {
            return Err(CHANGED.to_owned());
        }
        match next.map_err(|error| error.to_string())? {
            Some(message) => message.bytes.ok_or_else(|| too_large(limit)),
            None => Err(CHANGED.to_owned()),
        }
    }
}

impl Display for SourcePlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let path = self.file.path();
        match self.in_mbox {
            None => write!(f, "{}", path.display()),
            Some((_, offset)) => write!(f, "{} at byte {offset}", path.display()),
        }
    }
}

pub const CHANGED: &str = "changed while it was read: replay it again";

/// The most that is read of a message where `limits.message_bytes` says nothing: a file that is no
/// message must not take all memory. What comes by Postfix, its own message_size_limit has bounded.
pub const MOST_BYTES: u64 = 256 * 1024 * 1024;

/// Why a message is not read.
pub fn too_large(limit: u64) -> String {
    match limit {
        MOST_BYTES => format!(
            "larger than {MOST_BYTES} bytes: no message, or limits.message_bytes must say that \
             messages may be so large"
        ),
        limit => Failure::TooLarge { limit }.to_string(),
    }
}

/// All of a file that does not change meanwhile.
fn whole(mut file: File, facts: &Metadata) -> io::Result<Vec<u8>> {
    let size = facts.len();
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0).min(1 << 26));
    (&mut file).take(size + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == size && is_unchanged(&file.metadata()?, facts) {
        true => Ok(bytes),
        false => Err(io::Error::other(CHANGED)),
    }
}

/// Size and time of the last change are the same.
pub fn is_unchanged(now: &Metadata, then: &Metadata) -> bool {
    now.len() == then.len() && now.modified().ok() == then.modified().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> (tempfile::TempDir, Arc<OpenFolder>) {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("cur")).expect("a folder");
        let folder = OpenFolder::open(root.path()).expect("a folder");
        (root, Arc::new(folder.folder("cur".as_ref()).expect("a folder")))
    }

    fn place(folder: &Arc<OpenFolder>, name: &str) -> SourcePlace {
        let folder = Some(Arc::clone(folder));
        let file = SourceFile { folder, name: name.into(), in_maildir: true };
        SourcePlace { file, in_mbox: None }
    }

    /// Reads the file as it is now.
    fn read(folder: &Arc<OpenFolder>, name: &str, limit: u64) -> Result<Vec<u8>, String> {
        let place = place(folder, name);
        let (_, facts) = place.file.open()?;
        place.read(limit, FileVersion::of(&facts))
    }

    #[test]
    fn a_message_that_its_owner_has_seen_meanwhile_is_read_under_its_new_name() {
        let (root, folder) = folder();
        fs::write(root.path().join("cur/1.M:2,S"), "seen").expect("a file");
        fs::write(root.path().join("cur/1.MM:2,S"), "another").expect("a file");
        assert_eq!(read(&folder, "1.M:2,", MOST_BYTES), Ok(b"seen".to_vec()));
        assert!(read(&folder, "2.M:2,", MOST_BYTES).is_err());
        let keys = ["1.M", "1.M:2,", "1.M:2,S"].map(|name| place(&folder, name).file.key());
        assert!(keys.iter().all(|key| key.ends_with("1.M") && *key == keys[0]), "{keys:?}");
    }

    #[test]
    fn a_message_that_went_from_new_to_cur_meanwhile_is_read_there() {
        let (root, cur) = folder();
        fs::create_dir(root.path().join("new")).expect("a folder");
        let root_folder = OpenFolder::open(root.path()).expect("a folder");
        let new = Arc::new(root_folder.folder("new".as_ref()).expect("a folder"));
        fs::write(root.path().join("cur/1.M:2,S"), "seen").expect("a file");
        let version = |text: &str| {
            let path = root.path().join(text);
            FileVersion::of(&fs::metadata(path).expect("facts"))
        };
        let seen = place(&new, "1.M");
        assert_eq!(seen.read(MOST_BYTES, version("cur/1.M:2,S")), Ok(b"seen".to_vec()));
        assert!(seen.file.open_wherever().expect("a file").2, "it is moved");
        assert!(!place(&cur, "1.M").file.open_wherever().expect("a file").2, "it is renamed");
        assert!(read(&new, "2.M", MOST_BYTES).is_err());
        // Nothing goes the other way, and no link is followed.
        fs::write(root.path().join("new/3.M"), "new").expect("a file");
        assert!(read(&cur, "3.M", MOST_BYTES).is_err());
        fs::rename(root.path().join("cur"), root.path().join("old")).expect("renamed");
        symlink(root.path().join("old"), root.path().join("cur")).expect("a link");
        assert!(read(&new, "1.M", MOST_BYTES).is_err());
    }

    #[test]
    fn what_comes_in_the_way_meanwhile_is_not_followed() {
        let (root, folder) = folder();
        fs::write(root.path().join("secret"), "secret").expect("a file");
        symlink(root.path().join("secret"), root.path().join("cur/1.M")).expect("a link");
        let why = "a symbolic link, which is not followed";
        assert_eq!(read(&folder, "1.M", MOST_BYTES), Err(why.to_owned()));
        // The folder that is open stays the one that is read.
        fs::write(root.path().join("cur/2.M"), "own").expect("a file");
        fs::rename(root.path().join("cur"), root.path().join("old")).expect("renamed");
        fs::create_dir(root.path().join("other")).expect("a folder");
        fs::write(root.path().join("other/2.M"), "another's").expect("a file");
        symlink(root.path().join("other"), root.path().join("cur")).expect("a link");
        assert_eq!(read(&folder, "2.M", MOST_BYTES), Ok(b"own".to_vec()));
        let names: Vec<_> = folder.entries().expect("entries");
        assert_eq!(names.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["1.M", "2.M"]);
        let parent = OpenFolder::open(root.path()).expect("a folder");
        assert!(parent.folder("cur".as_ref()).is_err());
    }

    #[test]
    fn a_message_is_read_whole_and_no_larger_than_may_be() {
        let (root, folder) = folder();
        fs::write(root.path().join("cur/1.M"), "12345").expect("a file");
        assert_eq!(read(&folder, "1.M", 5), Ok(b"12345".to_vec()));
        let too_large = "message is larger than limits.message_bytes = 4";
        assert_eq!(read(&folder, "1.M", 4), Err(too_large.to_owned()));
    }

    /// What another delivery held is read a second time.
    #[test]
    fn a_file_that_changed_since_it_was_found_is_not_delivered() {
        let (root, folder) = folder();
        let mbox = "From ann@x Mon Jan  5 10:00:00 2015\nSubject: one\n\none\n\n";
        let path = root.path().join("cur/mbox");
        fs::write(&path, mbox.repeat(2)).expect("a file");
        let in_mbox = Some((MboxQuoting::Rd, mbox.len() as u64));
        for in_mbox in [None, in_mbox] {
            let place = SourcePlace { in_mbox, ..place(&folder, "mbox") };
            let found = FileVersion::of(&fs::metadata(&path).expect("facts"));
            assert!(place.read(MOST_BYTES, found).is_ok());
            let longer = fs::read_to_string(&path).expect("the mbox") + mbox;
            fs::write(&path, longer).expect("a file");
            assert_eq!(place.read(MOST_BYTES, found), Err(CHANGED.to_owned()));
        }
    }
}
