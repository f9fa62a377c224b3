//! Where a window begins, in the words of who asks.

use std::time::{Duration, SystemTime};

use jiff::{Span, SpanRelativeTo, Timestamp, civil::Date, tz::TimeZone};

/// The point in time that `text` names: a duration back from `now` (`24h`, `7d`), a day or an
/// instant.
pub fn since(text: &str, now: SystemTime) -> Option<SystemTime> {
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Some(instant.into());
    }
    if let Ok(day) = text.parse::<Date>() {
        return Some(day.to_zoned(TimeZone::system()).ok()?.timestamp().into());
    }
    let back = text.parse::<Span>().ok()?.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    now.checked_sub(Duration::try_from(back).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_begins_a_duration_ago_or_at_a_date() {
        // 2026-11-21T00:00:00Z
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_219_200);
        let secs_back =
            |text: &str| since(text, now).map(|at| now.duration_since(at).unwrap().as_secs());
        assert_eq!(secs_back("24h"), Some(86_400));
        assert_eq!(secs_back("7d"), Some(7 * 86_400));
        assert_eq!(secs_back("2w"), Some(14 * 86_400));
        assert_eq!(secs_back("90m"), Some(5_400));
        assert_eq!(secs_back("1d 12h"), Some(129_600));
        assert_eq!(secs_back("2026-11-20T12:00:00Z"), Some(43_200));
        let day = secs_back("2026-11-01").unwrap();
        assert!(day.abs_diff(20 * 86_400) <= 14 * 3600, "midnight, here");
        for nonsense in ["", "yesterday", "-24h", "24", "2026-13-01", "1e9y", "24h ago"] {
            assert_eq!(since(nonsense, now), None, "{nonsense}");
        }
    }
}
