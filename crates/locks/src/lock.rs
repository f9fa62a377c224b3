//! A command that runs while it holds a named lock (`onedrop with-lock`).
//!
//! Two processes watch the command, by the boot clock, which goes on while the machine sleeps: the
//! [`wrapper`], which talks with the ledger and the caller, and the [`guardian`], which starts the
//! command and ends it. Both know the trust instant: the lease's end, counted from before the claim
//! was sent. At the latest a second before it the command is killed, whether the ledger answers or
//! not. So the command and all that it started have ended before another can have the slot, while
//! one of the two runs; both stopped, or a machine paused from outside, is what epochs are for.
//!
//! A crash of the wrapper ends the command through the guardian, one of the guardian by the
//! kernel (PR_SET_PDEATHSIG); the lease then runs out.

use std::time::Duration;

use onedrop_core::clock::{Clock, SystemClock};

mod boot_timer;
mod descendants;
mod frames;
mod guardian;
mod keeper;
mod line;
mod output;
mod record;
mod wrapper;

pub use guardian::{CommandPlace, CommandSpec, CommandUser, Company};
pub use keeper::{ASKED_FOR_THE_END, END_KEPT_WITHIN, LockWish, described, may_pass};
pub use line::Line;
pub use record::{Begun, CommandEnd, EndRecord, NoRecord, RunRecord, Variables};
pub use wrapper::{Wrapping, run};

/// What is left of the lease when nothing of the command is alive any more.
const MARGIN: Duration = Duration::from_secs(1);

/// What a process that gets SIGKILL has to end, unless its lease ends before.
const LAST: Duration = Duration::from_secs(10);

/// Longest time between two renewals, however long a lease. A machine that is paused from outside,
/// whose clock stands still meanwhile, runs beside the next holder until it renews.
const MOST_UNRENEWED: Duration = Duration::from_secs(30);

/// Of a lease: a holder that is gone without a guardian keeps the lock for it.
pub const LONGEST_TTL: Duration = Duration::from_secs(7 * 86_400);

/// How long is waited for what gets SIGKILL from `now` on.
fn survives_until(now: Duration, trust: Duration) -> Duration {
    (now + LAST).min(trust + MARGIN)
}

/// How long a lock is held without a renewal, and how long a command gets to end after SIGTERM.
#[derive(Debug, Clone, Copy)]
pub struct LockTerms {
    pub ttl: Duration,
    pub grace: Duration,
}

impl LockTerms {
    /// # Errors
    /// Renewals, up to a third of the time apart, would leave no time to end the command; or it is
    /// more than [`LONGEST_TTL`].
    pub fn new(ttl: Duration, grace: Duration) -> Result<LockTerms, String> {
        if ttl > LONGEST_TTL {
            return Err(format!("--ttl {} s is more than 7 days", ttl.as_secs_f64()));
        }
        if grace.checked_add(2 * MARGIN).is_none_or(|least| least > ttl / 3) {
            return Err(format!(
                "--ttl {} s is too short for --grace {} s: a third of it must be {} s at least",
                ttl.as_secs_f64(),
                grace.as_secs_f64(),
                (grace.saturating_add(2 * MARGIN)).as_secs_f64()
            ));
        }
        Ok(LockTerms { ttl, grace })
    }

    /// When the lease is to be renewed.
    fn renewed_at(&self, trust: Duration) -> Duration {
        trust.saturating_sub(self.ttl - (self.ttl / 3).min(MOST_UNRENEWED))
    }

    /// When the command gets SIGTERM, without another renewal.
    fn ends_at(&self, trust: Duration) -> Duration {
        trust.saturating_sub(self.grace + MARGIN)
    }

    /// When what is left of it gets SIGKILL.
    fn killed_at(trust: Duration) -> Duration {
        trust.saturating_sub(MARGIN)
    }
}

/// Time since the machine was started, asleep or not.
///
/// # Errors
/// The kernel has no such clock.
fn since_boot() -> std::io::Result<Duration> {
    SystemClock.since_boot().ok_or_else(|| std::io::Error::other("CLOCK_BOOTTIME cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_ends_before_the_lease() {
        let secs = Duration::from_secs;
        let terms = LockTerms::new(secs(60), secs(5)).unwrap();
        assert_eq!(terms.ends_at(secs(1000)), secs(994));
        assert_eq!(LockTerms::killed_at(secs(1000)), secs(999));
        for (ttl, after) in [(6, 2), (60, 20), (90, 30), (3600, 30), (604_800, 30)] {
            let terms = LockTerms::new(secs(ttl), secs(0)).unwrap();
            assert_eq!(terms.renewed_at(secs(1000 + ttl)), secs(1000 + after));
        }
        assert!(LockTerms::new(secs(6), secs(0)).is_ok());
        for (ttl, grace) in [(5, 0), (20, 5), (60, 19), (60, u64::MAX)] {
            let why = LockTerms::new(secs(ttl), secs(grace)).unwrap_err();
            assert!(why.contains("too short"), "{why}");
        }
    }
}
