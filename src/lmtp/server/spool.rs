//! Where a message gathers while it comes in: in memory, or past a size in an unnamed file, so that
//! memory does not grow with clients times size. Past the limit for messages the rest is read and
//! thrown away.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use onedrop_core::deliver::Failure;
use onedrop_core::message::Bytes;

/// A message as it comes in: in memory, or past `memory_bytes` in an unnamed file.
pub struct Spool {
    folder: PathBuf,
    memory_bytes: u64,
    /// 0: none.
    limit: u64,
    memory: Vec<u8>,
    file: Option<io::Result<File>>,
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
        let file = self.file.get_or_insert_with(|| unnamed_file(&self.folder));
        if let Ok(open) = file
            && let Err(error) = open.write_all(&self.memory)
        {
            *file = Err(error);
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
            Some(file) => file
                .and_then(Bytes::unnamed)
                .map_err(|error| Failure::Input(format!("spool: {error}"))),
            None => Ok(Bytes::Memory(self.memory)),
        }
    }
}

fn unnamed_file(folder: &Path) -> io::Result<File> {
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(folder);
    open.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))
}
