//! What comes from a client: read in blocks, used in pieces, and at a pace that gets it done.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stream::Stream;

/// Read from the socket at once.
const BLOCK: usize = 16 * 1024;
/// Data beyond the idle time must come at this rate, in bytes a second.
pub const SLOWEST: u64 = 10_000;

/// How fast data must come.
pub struct Pace {
    began: Instant,
    idle: Duration,
}

impl Pace {
    pub fn new(idle: Duration) -> Pace {
        Pace { began: Instant::now(), idle }
    }

    /// Until when more must have come, after `read` bytes: soon, and at the slowest rate on the whole.
    pub fn until(&self, read: u64) -> Instant {
        let whole = self.began + self.idle + Duration::from_secs(read / SLOWEST);
        whole.min(Instant::now() + self.idle)
    }
}

/// A client's socket, with what was read from it ahead.
pub struct Input {
    pub stream: Arc<Stream>,
    block: Vec<u8>,
    from: usize,
}

impl Input {
    pub fn new(stream: Stream) -> Input {
        Input { stream: Arc::new(stream), block: Vec::new(), from: 0 }
    }

    /// What was read and not used yet.
    pub fn rest(&self) -> &[u8] {
        &self.block[self.from..]
    }

    /// The first `bytes` of the rest are used.
    pub fn take(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Waits for more; 0 when the client has said all.
    pub fn fill(&mut self, until: Instant) -> io::Result<usize> {
        self.block.drain(..self.from);
        self.from = 0;
        let kept = self.block.len();
        // A client that is idle costs no block.
        self.stream.wait(until.saturating_duration_since(Instant::now()))?;
        self.block.resize(kept + BLOCK, 0);
        let read = self.stream.read(&mut self.block[kept..], until);
        self.block.truncate(kept + *read.as_ref().unwrap_or(&0));
        read
    }
}
