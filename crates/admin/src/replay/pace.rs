//! A limit on messages a second, spread evenly.

use std::str::FromStr;
use std::time::{Duration, Instant};

/// `50/s`, `600/m`, `1000/h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageRate {
    /// Between two messages.
    pause: Duration,
}

impl FromStr for MessageRate {
    type Err = String;

    fn from_str(text: &str) -> Result<MessageRate, String> {
        let wrong = || "expected a number of messages a time, such as 50/s, 600/m or 1000/h";
        let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
        let count: u32 = count.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)?;
        let secs = match unit {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            _ => return Err(wrong().to_owned()),
        };
        Ok(MessageRate { pause: Duration::from_secs(secs) / count })
    }
}

/// When the next message may be delivered.
#[derive(Debug)]
pub struct Pacer {
    rate: Option<MessageRate>,
    next: Option<Instant>,
}

impl Pacer {
    pub fn new(rate: Option<MessageRate>) -> Pacer {
        Pacer { rate, next: None }
    }

    /// The least time for `count` messages.
    pub fn time_for(&self, count: usize) -> Duration {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.rate.map_or(Duration::ZERO, |rate| rate.pause.saturating_mul(count))
    }

    /// How long to wait before the next message, which is delivered then. Time that passed unused
    /// is not made up for.
    pub fn pause(&mut self, now: Instant) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let due = self.next.map_or(now, |next| next.max(now));
        self.next = Some(due + rate.pause);
        due - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_a_time() {
        let pause = |text: &str| text.parse::<MessageRate>().map(|rate| rate.pause.as_millis());
        assert_eq!(pause("50/s"), Ok(20));
        assert_eq!(pause("600/m"), Ok(100));
        assert_eq!(pause("600/min"), Ok(100));
        assert_eq!(pause("3600/h"), Ok(1000));
        for text in ["50", "0/s", "-1/s", "x/s", "50/d", "/s", ""] {
            assert!(pause(text).is_err(), "{text}");
        }
    }

    #[test]
    fn messages_come_evenly_and_lost_time_is_lost() {
        let mut pacer = Pacer::new("10/s".parse().ok());
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let pauses: Vec<_> =
            [0, 0, 100, 1000, 1050].map(|now| pacer.pause(at(now)).as_millis()).into();
        assert_eq!(pauses, [0, 100, 100, 0, 50]);
        assert_eq!(pacer.time_for(30), Duration::from_secs(3));
        assert_eq!(Pacer::new(None).pause(begin), Duration::ZERO);
        assert_eq!(Pacer::new(None).time_for(30), Duration::ZERO);
    }
}
