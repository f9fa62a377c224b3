//! Times and lengths as ledgers keep them.

use std::time::{Duration, SystemTime};

/// A receipt that was there before a message must have been there for this time: servers' clocks
/// differ.
pub const THERE_BEFORE: Duration = Duration::from_secs(60);

/// Seconds since 1970; 0 for a time before.
pub fn secs(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Like [`secs`], whole.
pub fn whole_secs(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(0)
}

/// The time of a column with whole seconds since 1970.
pub fn time(secs: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(secs.max(0).unsigned_abs())
}

/// The form in which columns hold a lease's length and an attempt's duration.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
