//! The clock of a ledger in memory, which tests move.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::clock::Clock;

/// The ledger's clock: it stands still until a test moves it, or goes by another one; either way a
/// test can make it step.
#[derive(Default)]
pub struct Time {
    /// Another clock, and what it said at the beginning.
    pub by: Option<(Arc<dyn Clock>, Instant)>,
    pub ahead: Duration,
    pub behind: Duration,
    /// Leases count by the clock of a host's boot, which no step moves.
    pub has_boot_clock: bool,
}

impl Time {
    pub fn now(&self) -> Duration {
        (self.gone() + self.ahead).saturating_sub(self.behind)
    }

    /// What leases count by.
    pub fn of_leases(&self) -> Duration {
        if self.has_boot_clock { self.gone() } else { self.now() }
    }

    fn gone(&self) -> Duration {
        self.by.as_ref().map_or(Duration::ZERO, |(clock, began)| clock.now() - *began)
    }

    pub fn set_back(&mut self, by: Duration) {
        self.behind += by.min(self.now());
    }

    /// What that clock says when a lease ends.
    pub fn wall_clock_at(&self, end: Duration) -> SystemTime {
        wall_clock((self.now() + end).saturating_sub(self.of_leases()))
    }

    /// What the ledger's clock stands for.
    pub fn wall_clock(&self) -> SystemTime {
        wall_clock(self.now())
    }
}

pub fn wall_clock(now: Duration) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + now
}
