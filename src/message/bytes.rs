//! Where a message's bytes are: in memory, or, for a large one, in an unnamed file that is mapped.

use std::fs::File;
use std::ops::Deref;

use memmap2::Mmap;

/// The bytes of a message.
#[derive(Debug)]
pub enum Bytes {
    Memory(Vec<u8>),
    File(Mmap),
}

impl Bytes {
    /// The content of `file`, which nobody else can reach: it has no name.
    ///
    /// # Errors
    /// The system's.
    pub fn unnamed(file: File) -> std::io::Result<Bytes> {
        // An empty map is an error on some kernels.
        if file.metadata()?.len() == 0 {
            return Ok(Bytes::Memory(Vec::new()));
        }
        // SAFETY: a map is sound as long as nobody changes or shortens the file. The caller's file
        // has no name (O_TMPFILE), so no other process can open it but by this one's descriptors,
        // and its only descriptor is consumed and closed here.
        Ok(Bytes::File(unsafe { Mmap::map(&file)? }))
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::Memory(bytes)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Memory(bytes) => bytes,
            Bytes::File(map) => map,
        }
    }
}
