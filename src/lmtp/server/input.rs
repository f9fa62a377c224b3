//! What comes from a client: read in blocks, used in pieces, and at a pace that gets it done.

use std::io;
use std::time::{Duration, Instant};

use super::connection::Peer;

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
    pub fn new(now: Instant, idle: Duration) -> Pace {
        Pace { began: now, idle }
    }

    /// Until when more must have come, after `read` bytes: soon, and at the slowest rate on the
    /// whole.
    pub fn until(&self, read: u64, now: Instant) -> Instant {
        let whole = self.began + self.idle + Duration::from_secs(read / SLOWEST);
        whole.min(now + self.idle)
    }
}

/// A client, with what was read from it ahead.
pub struct Input<P> {
    pub peer: P,
    block: Vec<u8>,
    /// Where in the block that begins what was read and not used yet, and where it ends.
    from: usize,
    end: usize,
}

impl<P: Peer> Input<P> {
    pub fn new(peer: P) -> Input<P> {
        Input { peer, block: Vec::new(), from: 0, end: 0 }
    }

    /// What was read and not used yet.
    pub fn rest(&self) -> &[u8] {
        &self.block[self.from..self.end]
    }

    /// The first `bytes` of the rest are used.
    pub fn take(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Waits for more; 0 when the client has said all.
    pub fn fill(&mut self, until: Instant) -> io::Result<usize> {
        // A client that has said nothing yet costs no block.
        self.peer.wait(until)?;
        self.block.copy_within(self.from..self.end, 0);
        (self.from, self.end) = (0, self.end - self.from);
        if self.block.len() < self.end + BLOCK {
            self.block.resize(self.end + BLOCK, 0);
        }
        let read = self.peer.read(&mut self.block[self.end..], until)?;
        self.end += read;
        Ok(read)
    }
}
