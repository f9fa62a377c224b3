//! Where a message gathers while it comes in: in memory, or past a size in an unnamed file, so that
//! memory does not grow with clients times size. Past the limit for messages the rest is read and
//! thrown away.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::deliver::Failure;
use crate::message::Bytes;

/// See the module.
pub struct Spool {
    folder: PathBuf,
    memory_bytes: u64,
    /// 0: none.
    limit: u64,
    memory: Vec<u8>,
    file: Option<File>,
    length: u64,
    trouble: Option<io::Error>,
}

impl Spool {
    pub fn new(folder: &Path, memory_bytes: u64, limit: u64) -> Spool {
        Spool {
            folder: folder.to_owned(),
            memory_bytes,
            limit,
            memory: Vec::new(),
            file: None,
            length: 0,
            trouble: None,
        }
    }

    /// Where the next bytes go; to be followed by [`settle`](Spool::settle) before there are many.
    pub fn memory(&mut self) -> &mut Vec<u8> {
        &mut self.memory
    }

    /// Moves what is in memory to the file if there is one or should be one. Trouble shows at the
    /// end: the data has to be read in any case.
    pub fn settle(&mut self) {
        if self.file.is_none() && self.memory.len() as u64 <= self.memory_bytes {
            return;
        }
        self.length += self.memory.len() as u64;
        let too_large = self.limit != 0 && self.length > self.limit;
        if self.trouble.is_none() && !too_large {
            self.trouble = self.write_out().err();
        }
        self.memory.clear();
    }

    fn write_out(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(unnamed_file(&self.folder)?),
        };
        file.write_all(&self.memory)
    }

    /// The message.
    ///
    /// # Errors
    /// It is too large, or the file could not be written.
    pub fn finish(mut self) -> Result<Bytes, Failure> {
        let (limit, in_memory) = (self.limit, self.memory.len() as u64);
        if limit != 0 && self.length + in_memory > limit {
            return Err(Failure::TooLarge { limit });
        }
        if self.file.is_some() && !self.memory.is_empty() && self.trouble.is_none() {
            self.trouble = self.write_out().err();
        }
        match (self.trouble, self.file) {
            (Some(trouble), _) => Err(no_message(trouble)),
            (None, Some(file)) => Bytes::unnamed(file).map_err(no_message),
            (None, None) => Ok(Bytes::Memory(self.memory)),
        }
    }
}

fn no_message(trouble: io::Error) -> Failure {
    Failure::Input(format!("spool: {trouble}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(memory_bytes: u64, limit: u64, pieces: &[&[u8]]) -> Result<Bytes, Failure> {
        let mut spool = Spool::new(&std::env::temp_dir(), memory_bytes, limit);
        for piece in pieces {
            spool.memory().extend_from_slice(piece);
            spool.settle();
        }
        spool.finish()
    }

    #[test]
    fn a_message_is_the_same_in_memory_and_in_a_file() {
        let pieces: [&[u8]; 3] = [b"one ", b"two ", b"three"];
        for memory_bytes in [0, 3, 4, 8, 12, 13, 100] {
            let bytes = gather(memory_bytes, 13, &pieces).unwrap();
            assert_eq!(&*bytes, b"one two three");
            assert_eq!(matches!(bytes, Bytes::File(_)), memory_bytes < 13);
            assert!(matches!(
                gather(memory_bytes, 12, &pieces),
                Err(Failure::TooLarge { limit: 12 })
            ));
        }
        assert!(gather(0, 0, &[]).unwrap().is_empty());
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let mut spool = Spool::new(Path::new("/nonexistent/spool"), 1, 0);
        spool.memory().extend_from_slice(b"two");
        spool.settle();
        let Err(Failure::Input(error)) = spool.finish() else { panic!("a spool in no folder") };
        assert!(error.starts_with("spool: /nonexistent/spool: "), "{error}");
    }
}
