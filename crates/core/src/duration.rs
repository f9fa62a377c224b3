//! Lengths of time as people write and read them: 0, 90s, 5m, 1h 30m, 2d.

use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo};

/// Reads one; a day has 24 hours.
///
/// # Errors
/// What was expected.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a time such as 0, 10s, 5m or 1h".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let span = text.parse::<Span>().map_err(|_| wrong())?;
    let time = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    Duration::try_from(time).map_err(|_| wrong())
}

/// `1h 30m`
pub fn shown(time: Duration) -> String {
    format!("{:#}", SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX))
}

/// The same for people: at most two units, `26d 3h`, `4m 2s`, `0s`.
pub fn brief(time: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let secs = time.as_secs();
    let first = UNITS.iter().position(|(unit, _)| secs >= *unit).unwrap_or(UNITS.len() - 1);
    let mut text = format!("{}{}", secs / UNITS[first].0, UNITS[first].1);
    if let Some((unit, name)) = UNITS.get(first + 1)
        && secs % UNITS[first].0 >= *unit
    {
        text.push_str(&format!(" {}{name}", secs % UNITS[first].0 / unit));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brief_time_is_whole_and_has_two_units_at_most() {
        for (secs, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (61, "1m 1s"),
            (3_600, "1h"),
            (3_659, "1h"),
            (93_600, "1d 2h"),
            (86_400, "1d"),
            (26 * 86_400 + 3 * 3_600 + 59, "26d 3h"),
            (4_000 * 86_400, "4000d"),
        ] {
            assert_eq!(brief(Duration::from_secs(secs)), text);
        }
        assert_eq!(brief(Duration::from_millis(1_999)), "1s");
    }
}
