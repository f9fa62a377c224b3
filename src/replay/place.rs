//! Where the messages of a source are. What an administrator names is opened whatever it is; below
//! that no symbolic link is followed, and nothing but a regular file is read: the folder may be its
//! user's, who could have anybody's file delivered to himself.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::mbox::MboxReader;
use crate::command_line::MboxQuoting;
use crate::deliver::Failure;

/// A folder that is open.
#[derive(Debug)]
pub struct OpenFolder {
    file: File,
    /// As it was named.
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

    /// As [`entries`](OpenFolder::entries), with hidden names.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn all_entries(&self) -> io::Result<Vec<(OsString, FileType)>> {
        let mut entries = Vec::new();
        // The folder that is open, even if another one has its name by now.
        for entry in fs::read_dir(format!("/proc/self/fd/{}", self.file.as_raw_fd()))? {
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

    fn open_at(&self, name: &OsStr, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = openat(&self.file, name, flags | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(File::from(file))
    }
}

/// Why nothing but a regular file is read; `None` for one.
pub fn what_it_is(kind: FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_symlink() => Some("a symbolic link, which is not followed"),
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
    /// It is in a Maildir: a mail program may give it another name behind the colon.
    pub in_maildir: bool,
}

impl SourceFile {
    /// As it was named.
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
    /// It is no regular file or cannot be opened, in words.
    pub fn open(&self) -> Result<(File, Metadata), String> {
        let opened = match self.opened() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.in_maildir => {
                self.renamed().map_or(Err(error), |renamed| renamed.opened())
            }
            opened => opened,
        };
        let file =
            opened.map_err(|error| match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                Errno::ELOOP => "a symbolic link, which is not followed".to_owned(),
                _ => error.to_string(),
            })?;
        let facts = file.metadata().map_err(|error| error.to_string())?;
        match what_it_is(facts.file_type()) {
            None => Ok((file, facts)),
            Some(what) => Err(what.to_owned()),
        }
    }

    fn opened(&self) -> io::Result<File> {
        match &self.folder {
            Some(folder) => folder.open_at(&self.name, OFlag::empty()),
            // A FIFO that nobody writes to must not block.
            None => OpenOptions::new()
                .read(true)
                .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
                .open(&self.name),
        }
    }

    /// The same file under the name that it has now.
    fn renamed(&self) -> Option<SourceFile> {
        let entries = self.folder.as_ref()?.entries().ok()?;
        let is_it = |(name, _): &(OsString, FileType)| unique(name) == unique(&self.name);
        let (name, _) = entries.into_iter().find(is_it)?;
        Some(SourceFile { name, ..self.clone() })
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
    /// The message's bytes.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn read(&self, limit: u64) -> Result<Vec<u8>, String> {
        let too_large = || Failure::TooLarge { limit }.to_string();
        let (mut file, facts) = self.file.open()?;
        let Some((quoting, offset)) = self.in_mbox else {
            if limit > 0 && facts.len() > limit {
                return Err(too_large());
            }
            return whole(file, &facts).map_err(|error| error.to_string());
        };
        file.seek(SeekFrom::Start(offset)).map_err(|error| error.to_string())?;
        let mut reader = MboxReader::new(BufReader::new(file), offset, quoting, limit);
        match reader.next_message().map_err(|error| error.to_string())? {
            Some(message) => message.bytes.ok_or_else(too_large),
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

/// All of a file that nobody changes meanwhile.
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
