//! The deadline of a delivery, and the words for a window of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::deadline::Deadline;
use onedrop_core::verify;

/// A machine that is suspended for an hour once somebody sleeps.
#[derive(Debug, Default)]
struct Suspended(AtomicBool);

impl Clock for Suspended {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn since_boot(&self) -> Option<Duration> {
        Some(Duration::from_secs(if self.0.load(Ordering::SeqCst) { 4000 } else { 400 }))
    }

    fn sleep(&self, _: Duration) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn random(&self) -> u64 {
        0
    }

    fn side_by_side(&self, threads: usize, work: &(dyn Fn() + Sync)) {
        SystemClock.side_by_side(threads, work);
    }
}

#[test]
fn no_last_bytes_in_the_time_kept_for_the_answer() {
    let deadline = Deadline::new(Duration::from_secs(10), Duration::from_secs(11));
    assert!(deadline.pass_point_of_no_return().is_err());
    assert!(!deadline.is_answering());
    let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(20));
    assert!(deadline.pass_point_of_no_return().is_ok());
    assert!(deadline.is_answering());
    assert_eq!(deadline.end() - deadline.last_bytes(), Duration::from_secs(20));
}

#[test]
fn no_last_bytes_after_the_machine_was_suspended_past_the_deadline() {
    let (total, answer) = (Duration::from_secs(60), Duration::from_secs(20));
    let deadline = Deadline::by(Arc::<Suspended>::default(), total, answer);
    assert!(deadline.pass_point_of_no_return().is_ok());
    deadline.clock().sleep(Duration::ZERO);
    assert!(deadline.pass_point_of_no_return().is_err());
}

#[test]
fn a_window_begins_a_duration_ago_or_at_a_date() {
    // 2026-11-21T00:00:00Z
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_219_200);
    let secs_back = |text: &str| {
        verify::since(text, now).map(|at| now.duration_since(at).expect("before now").as_secs())
    };
    assert_eq!(secs_back("24h"), Some(86_400));
    assert_eq!(secs_back("7d"), Some(7 * 86_400));
    assert_eq!(secs_back("2w"), Some(14 * 86_400));
    assert_eq!(secs_back("90m"), Some(5_400));
    assert_eq!(secs_back("1d 12h"), Some(129_600));
    assert_eq!(secs_back("2026-11-20T12:00:00Z"), Some(43_200));
    let day = secs_back("2026-11-01").expect("a time");
    assert!(day.abs_diff(20 * 86_400) <= 14 * 3600, "midnight, here");
    for time in ["2026-11-01 12:30", "2026-11-01T12:30:00"] {
        assert_eq!(secs_back(time), Some(day - 45_000), "{time}: of the same clocks");
    }
    for nonsense in ["", "yesterday", "-24h", "24", "2026-13-01", "1e9y", "24h ago"] {
        assert_eq!(verify::since(nonsense, now), None, "{nonsense}");
    }
}
