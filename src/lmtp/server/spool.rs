//! Where a message gathers while it comes in: in memory, or past a size in an unnamed file, so that
//! memory does not grow with clients times size. Past the limit for messages the rest is read and
//! thrown away.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::libc;

use onedrop_core::deliver::Failure;
use onedrop_core::message::Bytes;
use onedrop_core::os::unnamed_file;

/// A message as it comes in: in memory, or past `memory_bytes` in an unnamed file.
pub struct Spool {
    folder: PathBuf,
    memory_bytes: u64,
    /// 0: none.
    limit: u64,
    memory: Vec<u8>,
    file: Option<Result<File, Failure>>,
    /// Bytes that are not in memory any more.
    length: u64,
}

impl Spool {
    pub fn new(folder: &Path, memory_bytes: u64, limit: u64) -> Spool {
        let folder = folder.to_owned();
        Spool { folder, memory_bytes, limit, memory: Vec::new(), file: None, length: 0 }
    }

    /// Where the next bytes go; to be followed by [`settle`](Spool::settle) before there are many.
    pub fn memory(&mut self) -> &mut Vec<u8> {
        &mut self.memory
    }

    /// Moves what is in memory to the file if there is one or should be one. An error shows at the
    /// end: the data has to be read in any case.
    pub fn settle(&mut self) {
        if self.file.is_some() || self.memory.len() as u64 > self.memory_bytes {
            self.length += self.memory.len() as u64;
            if self.limit == 0 || self.length <= self.limit {
                self.write_out();
            }
            self.memory.clear();
        }
    }

    fn write_out(&mut self) {
        let file = self.file.get_or_insert_with(|| open(&self.folder));
        if let Ok(opened) = file
            && let Err(error) = opened.write_all(&self.memory)
        {
            *file = Err(Failure::Input(in_folder(&self.folder, &error)));
        }
    }

    /// The message, unless it is too large or the file could not be written.
    pub fn finish(mut self) -> Result<Bytes, Failure> {
        let limit = self.limit;
        if limit != 0 && self.length + self.memory.len() as u64 > limit {
            return Err(Failure::TooLarge { limit });
        }
        if self.file.is_some() && !self.memory.is_empty() {
            self.write_out();
        }
        match self.file {
            Some(file) => Bytes::unnamed(file?)
                .map_err(|error| Failure::Input(in_folder(&self.folder, &error))),
            None => Ok(Bytes::Memory(self.memory)),
        }
    }
}

/// Opens a file for a message in `folder`.
///
/// # Errors
/// A lack of space or of files may pass; all else an administrator has to mend.
pub fn open(folder: &Path) -> Result<File, Failure> {
    unnamed_file(folder).map_err(|error| {
        let text = in_folder(folder, &error);
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                Failure::Input(text)
            }
            _ => Failure::Setup(text),
        }
    })
}

fn in_folder(folder: &Path, error: &io::Error) -> String {
    format!("lmtp.spool_dir: {}: {error}", folder.display())
}
