//! Waiting for whoever holds a lock or a lease.

use std::time::Duration;

use crate::deadline::Deadline;

/// Waiting for others, with jitter, bounded in all.
#[derive(Debug, Clone)]
pub struct Patience<'a> {
    left: Duration,
    pause: Duration,
    waits: u32,
    deadline: &'a Deadline,
}

impl Patience<'_> {
    const FIRST_PAUSE: Duration = Duration::from_millis(4);
    const LONGEST_PAUSE: Duration = Duration::from_millis(100);

    /// Patience of `total`, which ends with the deadline at the latest.
    pub fn new(total: Duration, deadline: &Deadline) -> Patience<'_> {
        Patience { left: total, pause: Self::FIRST_PAUSE, waits: 0, deadline }
    }

    /// How often it waited.
    pub fn waits(&self) -> u32 {
        self.waits
    }

    /// Sleeps a little; false when there is no patience left.
    pub(super) fn wait(&mut self) -> bool {
        let left = self.left.min(self.deadline.left());
        if left.is_zero() {
            return false;
        }
        let random = self.deadline.clock().random();
        let half = self.pause / 2;
        let pause = (half + half.mul_f64((random % 1024) as f64 / 512.0)).min(left);
        self.deadline.sleep(pause);
        self.waits += 1;
        self.left = self.left.saturating_sub(pause);
        self.pause = (self.pause * 3 / 2).min(Self::LONGEST_PAUSE);
        true
    }
}
