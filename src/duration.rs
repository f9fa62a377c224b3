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
