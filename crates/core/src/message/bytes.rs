//! Storage of a message's bytes: in memory, or for a large message in a mapped, unnamed file.

use std::fs::File;
use std::ops::Deref;

use memmap2::Mmap;

#[derive(Debug)]
pub enum Bytes {
    Memory(Vec<u8>),
    File(Mmap),
}

impl Bytes {
    /// Maps the content of `file`, which must have no name.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn unnamed(file: File) -> std::io::Result<Bytes> {
        // An empty map is an error on some kernels.
        if file.metadata()?.len() == 0 {
            return Ok(Bytes::Memory(Vec::new()));
        }
        // SAFETY: a map is sound as long as the file is neither changed nor shortened. The file has
        // no name (O_TMPFILE), so other processes can open it only by this process's descriptors,
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
