//! When a job is due: a cron expression in a time zone, or every so often, at a time of the day or
//! not. Values only: what time it is, the caller knows.
//!
//! Promise: the times of a schedule are whole seconds, in order, and each is there once. Where a
//! clock is put forward or back, an expression whose minute or hour begins with `*` goes by the
//! time that passes: what falls into the hour that is left out is left out, and the hour that comes
//! twice counts twice. Any other names times of a day, and each comes once on each of its days: at
//! the end of what is left out, and the first time of what comes twice. Debian's cron does so too,
//! but starts a command at that end as often as it was left out; we start it once.
//!
//! What an expression says is read in [`field`], and which minutes that are on a calendar is in
//! [`calendar`]; here are the steps between these and the time that passes.
//!
//! By hand, since croner reads expressions otherwise than Debian's crontab: our own reading had to
//! come before it anyway. What else it did, these three files do in fewer lines, without the eleven
//! crates that it brings along.

use std::fmt;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

use calendar::Calendar;
use field::CronFields;
use onedrop_core::duration;

mod calendar;
mod field;
mod words;

/// What a schedule may be instead of five fields.
const NICKNAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// The last time of any schedule, a second before the year 4900: far from the last year that
/// calendars and ledgers know.
const LAST_SECOND: i64 = 92_461_910_399;

/// When a job is due. Shown as it is on record: `17 3 * * * Europe/London`, `every 15m`, or `every
/// 3d at 04:00 UTC`; two that say the same (`17 03 * * *`) are shown alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    text: String,
    times: Times,
}

#[derive(Debug, Clone, PartialEq)]
enum Times {
    Cron {
        calendar: Calendar,
        zone: TimeZone,
        by_time: bool,
    },
    Every(Duration),
    /// This number of days after the last start, at the time of `daily`.
    EveryAt {
        days: u64,
        daily: Box<Schedule>,
    },
}

/// A time zone by its name in the tz database.
///
/// # Errors
/// There is none of that name on this host.
pub fn zone(name: &str) -> Result<TimeZone, String> {
    if name.eq_ignore_ascii_case("UTC") {
        return Ok(TimeZone::UTC);
    }
    if name.eq_ignore_ascii_case("localtime") {
        return Err("the local time of each host is not a time zone: name it".to_owned());
    }
    TimeZone::get(name).map_err(|_| "this host knows no such time zone".to_owned())
}

/// The names of the time zones that this host knows (tzdata, in /usr/share/zoneinfo).
pub fn zone_names() -> Vec<String> {
    jiff::tz::db().available().map(|name| name.to_string()).collect()
}

impl Schedule {
    /// A cron expression, five fields or a nickname, in a time zone.
    ///
    /// # Errors
    /// A sentence that says what is wrong and does not quote it.
    pub fn cron(text: &str, zone_name: &str) -> Result<Schedule, String> {
        let zone = zone(zone_name)?;
        let mut fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let written = fields.join(" ");
        if text.trim_start().starts_with('@') {
            let names = || NICKNAMES.map(|(name, _)| name).join(", ");
            let found = NICKNAMES.iter().find(|(name, _)| *name == written);
            let (_, stands_for) =
                found.ok_or_else(|| format!("expected five fields or one of {}", names()))?;
            fields = stands_for.split(' ').collect();
        }
        let CronFields { normalised, by_time, calendar } = field::read(&fields)?;
        calendar
            .from(DateTime::constant(2000, 1, 1, 0, 0, 0, 0))
            .ok_or("this date never comes (day of the month, and month)")?;
        let zone_name = zone.iana_name().unwrap_or("UTC");
        let text = format!("{normalised} {zone_name}");
        Ok(Schedule { text, times: Times::Cron { calendar, zone, by_time } })
    }

    /// Starts again `text` after the last start: a duration, or `3d at 04:00`, whole days and a
    /// time of the clocks of this zone.
    ///
    /// # Errors
    /// It is neither, or less than a second.
    pub fn every(text: &str, zone_name: &str) -> Result<Schedule, String> {
        if let Some((days, time)) = text.split_once(" at ") {
            return Schedule::every_at(days, time, zone_name);
        }
        let time = duration::parse(text)?;
        if time < Duration::from_secs(1) {
            return Err("must be a second at least".to_owned());
        }
        Ok(Schedule { text: format!("every {}", duration::shown(time)), times: Times::Every(time) })
    }

    fn every_at(days: &str, time: &str, zone_name: &str) -> Result<Schedule, String> {
        const FORM: &str = "expected whole days and a time, as in \"3d at 04:00\"";
        let zone = zone(zone_name)?;
        let zone = zone.iana_name().unwrap_or("UTC");
        let secs = duration::parse(days).map_err(|_| FORM)?.as_secs();
        let (hour, minute) = time.split_once(':').ok_or(FORM)?;
        let is_a_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_a_time = is_a_number(hour) && is_a_number(minute) && minute.len() == 2;
        if secs == 0 || secs % DAY != 0 || !is_a_time {
            return Err(FORM.to_owned());
        }
        let daily = Schedule::cron(&format!("{minute} {hour} * * *"), zone).map_err(|_| FORM)?;
        let days = secs / DAY;
        let text = format!("every {days}d at {hour:0>2}:{minute} {zone}");
        Ok(Schedule { text, times: Times::EveryAt { days, daily: Box::new(daily) } })
    }

    /// The one that is shown like this; `None`: this host cannot know it.
    pub fn on_record(text: &str) -> Option<Schedule> {
        let (fields, zone) = text.rsplit_once(' ')?;
        match text.strip_prefix("every ") {
            None => Schedule::cron(fields, zone).ok(),
            Some(time) if !time.contains(" at ") => Schedule::every(time, "UTC").ok(),
            Some(_) => Schedule::every(fields.strip_prefix("every ")?, zone).ok(),
        }
    }

    /// Whether the next time counts from the last start (`every`), and not by the clock alone.
    pub fn goes_by_starts(&self) -> bool {
        !matches!(self.times, Times::Cron { .. })
    }

    /// The zone by whose clocks it goes.
    pub fn zone(&self) -> Option<&TimeZone> {
        match &self.times {
            Times::Cron { zone, .. } => Some(zone),
            Times::Every(_) => None,
            Times::EveryAt { daily, .. } => daily.zone(),
        }
    }

    /// When a job is due first that is seen at this time.
    pub fn first_due(&self, seen: SystemTime) -> SystemTime {
        match &self.times {
            Times::Cron { .. } => self.next_after(seen),
            Times::Every(_) => seen,
            Times::EveryAt { daily, .. } => daily.next_after(seen),
        }
    }

    /// The first time after this one; of `every`, the next after a start at this time. In the year
    /// 4900 there is none, and it stays there.
    pub fn next_after(&self, time: SystemTime) -> SystemTime {
        let from = timestamp(time);
        let found = match &self.times {
            Times::Every(interval) => return time + *interval,
            Times::EveryAt { days, daily } => {
                // Not the date of the start and that many days: it may come after midnight.
                return (0..*days).fold(time, |at, _| daily.next_after(at));
            }
            Times::Cron { calendar, zone, by_time: true } => next_by_time(calendar, zone, from),
            Times::Cron { calendar, zone, .. } => next_by_day(calendar, zone, from),
        };
        found.map_or(last(), SystemTime::from).min(last())
    }

    /// The newest time up to and with this one; `None`: none since 1970, or it goes by starts.
    pub fn newest_until(&self, time: SystemTime) -> Option<SystemTime> {
        let until = timestamp(time);
        let found = match &self.times {
            Times::Every(_) | Times::EveryAt { .. } => None,
            Times::Cron { calendar, zone, by_time: true } => newest_by_time(calendar, zone, until),
            Times::Cron { calendar, zone, .. } => newest_by_day(calendar, zone, until),
        };
        let found = found.map(SystemTime::from)?;
        (SystemTime::UNIX_EPOCH..=time).contains(&found).then_some(found)
    }

    /// The time that an administrator names: with an offset (`2026-11-01T03:17:00Z`), or by the
    /// clocks of the schedule's zone (`2026-11-01 03:17`), those of UTC without a zone.
    ///
    /// # Errors
    /// A sentence that does not quote it: it is not a time.
    pub fn named_time(&self, text: &str) -> Result<SystemTime, String> {
        const FORMS: &str = "expected a time such as 2026-11-01T03:17:00Z or \"2026-11-01 03:17\"";
        let text = text.trim();
        let by_the_clock = || {
            let civil = text.parse::<DateTime>().ok().filter(|_| text.contains(':'))?;
            instant(self.zone().unwrap_or(&TimeZone::UTC), civil)
        };
        let time = text.parse::<Timestamp>().ok().or_else(by_the_clock).ok_or(FORMS)?;
        let last = Timestamp::from_second(LAST_SECOND).unwrap_or(Timestamp::MAX);
        match (Timestamp::UNIX_EPOCH..=last).contains(&time) {
            true => Ok(time.into()),
            false => Err("expected a time of the years 1970 to 4899".to_owned()),
        }
    }

    /// In English words.
    pub fn describe(&self) -> String {
        match &self.times {
            Times::Every(time) => format!("{} after the last start", duration::shown(*time)),
            Times::EveryAt { days, daily } => {
                format!("{}, {days}d after the last start", daily.describe())
            }
            Times::Cron { calendar, zone, .. } => {
                let zone = zone.iana_name().unwrap_or("UTC");
                format!("{} ({zone})", words::of(calendar))
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Times since 1970 and before the year 4900.
fn timestamp(time: SystemTime) -> Timestamp {
    let last = Timestamp::from_second(LAST_SECOND).unwrap_or(Timestamp::MAX);
    let past_the_end = if time < SystemTime::UNIX_EPOCH { Timestamp::UNIX_EPOCH } else { last };
    Timestamp::try_from(time).unwrap_or(past_the_end).clamp(Timestamp::UNIX_EPOCH, last)
}

fn last() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(LAST_SECOND.unsigned_abs())
}

/// Of times of a day.
fn next_by_day(calendar: &Calendar, zone: &TimeZone, from: Timestamp) -> Option<Timestamp> {
    let mut civil = zone.to_datetime(from);
    loop {
        civil = calendar.from(civil.checked_add(NANO).ok()?)?;
        // In the second of two equal hours the times of the first have gone by; several times may
        // come down to the end of a gap.
        let found = instant(zone, civil)?;
        if found > from {
            return Some(found);
        }
    }
}

/// The newest time at or before `until`; goes day by day, as [`next_by_day`] does.
fn newest_by_day(calendar: &Calendar, zone: &TimeZone, until: Timestamp) -> Option<Timestamp> {
    let mut civil = zone.to_datetime(until);
    if let AmbiguousOffset::Fold { after, .. } = zone.to_ambiguous_timestamp(civil).offset()
        && zone.to_offset(until) == after
    {
        // The second of two equal hours: all times of the first count.
        let back = zone.preceding(until + NANO).next()?.timestamp();
        civil = zone.to_offset(back - NANO).to_datetime(back - NANO);
    }
    instant(zone, calendar.until(civil)?)
}

/// Of times by the hour that passes: between two changes of the offset, civil time is exact.
fn next_by_time(calendar: &Calendar, zone: &TimeZone, from: Timestamp) -> Option<Timestamp> {
    let mut at = from.checked_add(NANO).ok()?;
    loop {
        let offset = zone.to_offset(at);
        let civil = calendar.from(offset.to_datetime(at))?;
        let found = offset.to_timestamp(civil).ok()?;
        match zone.following(at).next() {
            Some(change) if found >= change.timestamp() => at = change.timestamp(),
            _ => return Some(found),
        }
    }
}

/// The newest time at or before `until`; goes time by time, as [`next_by_time`] does.
fn newest_by_time(calendar: &Calendar, zone: &TimeZone, until: Timestamp) -> Option<Timestamp> {
    let mut at = until;
    loop {
        let offset = zone.to_offset(at);
        let civil = calendar.until(offset.to_datetime(at))?;
        let found = offset.to_timestamp(civil).ok()?;
        match zone.preceding(at + NANO).next() {
            Some(change) if found < change.timestamp() => at = change.timestamp() - NANO,
            _ => return Some(found),
        }
    }
}

const NANO: Duration = Duration::from_nanos(1);
/// In seconds.
const DAY: u64 = 86_400;

/// When a clock shows this first, or passes over it.
fn instant(zone: &TimeZone, civil: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(civil).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(civil).ok(),
        AmbiguousOffset::Gap { after, .. } => {
            let earlier = after.to_timestamp(civil).ok()?;
            Some(zone.following(earlier).next()?.timestamp())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_administrator_names_a_time_with_an_offset_or_by_the_zones_clocks() {
        let london = Schedule::cron("17 3 * * *", "Europe/London").unwrap();
        let every = Schedule::every("15m", "UTC").unwrap();
        let named = |schedule: &Schedule, text| {
            schedule.named_time(text).map(|time| Timestamp::try_from(time).unwrap().to_string())
        };
        for (text, time) in [
            ("2026-11-01T03:17:00Z", "2026-11-01T03:17:00Z"),
            (" 2026-07-01T03:17:00+02:00 ", "2026-07-01T01:17:00Z"),
            ("2026-07-01 03:17", "2026-07-01T02:17:00Z"),
            ("2026-07-01T03:17:05.25", "2026-07-01T02:17:05.25Z"),
            // What is left out ends at 1:00 UTC; what comes twice is meant the first time.
            ("2026-03-29 01:30", "2026-03-29T01:00:00Z"),
            ("2026-10-25 01:30", "2026-10-25T00:30:00Z"),
        ] {
            assert_eq!(named(&london, text).as_deref(), Ok(time), "{text}");
        }
        assert_eq!(named(&every, "2026-07-01 03:17").as_deref(), Ok("2026-07-01T03:17:00Z"));
        let wrong = [
            "",
            "now",
            "03:17",
            "2026-07-01",
            "2026-13-01 03:17",
            "1969-12-31 23:59",
            "4900-02-01T00:00Z",
        ];
        for text in wrong {
            assert!(named(&london, text).is_err(), "{text}");
        }
    }
}
