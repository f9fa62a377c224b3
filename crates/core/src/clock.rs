//! Time, chance and threads as a delivery sees them: the system's, or those of a simulation that
//! runs the very same code in virtual time (`tests/simulation`). Values pass a clock on and own
//! none.

use std::collections::hash_map::RandomState;
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// A time in UTC, in whole seconds (RFC 3339).
pub fn utc(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Time, chance and threads.
pub trait Clock: Send + Sync + Debug {
    /// The time of [`Instant::now`]: it stands still while the machine is suspended.
    fn now(&self) -> Instant;

    /// Time since the machine was started, suspended or not (clock_gettime(2), CLOCK_BOOTTIME);
    /// `None` where it cannot be read.
    fn since_boot(&self) -> Option<Duration>;

    fn sleep(&self, time: Duration);

    /// Any number, for jitter.
    fn random(&self) -> u64;

    /// Runs `work` on this number of threads side by side, the caller's being one, and on fewer
    /// where the system gives no more. Returns when all have ended.
    fn side_by_side(&self, threads: usize, work: &(dyn Fn() + Sync));
}

/// The system's.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn since_boot(&self) -> Option<Duration> {
        clock_gettime(ClockId::CLOCK_BOOTTIME).ok().map(Duration::from)
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    fn random(&self) -> u64 {
        RandomState::new().build_hasher().finish()
    }

    fn side_by_side(&self, threads: usize, work: &(dyn Fn() + Sync)) {
        thread::scope(|scope| {
            for _ in 1..threads {
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
    }
}
