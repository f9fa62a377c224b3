//! How fast a client's data must come: soon, and at a rate that gets it done.

use std::time::{Duration, Instant};

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
