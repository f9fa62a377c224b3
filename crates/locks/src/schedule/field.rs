//! The five fields of a cron expression: numbers, names, lists, ranges and steps as Debian's
//! crontab takes them, and beyond it days that depend on the month (`L`, `LW`, `15W`, `5L`,
//! `MON#2`), `?` for `*`, and `+` before the day of the week, which asks for both days.
//!
//! Promise: what crontab refuses is refused. So are three things that it takes: what follows a
//! part and is none (`5;`, which it skips), a range that holds nothing (`5-1`, which never runs),
//! and a number so large that it is another to it.

use super::calendar::{Calendar, DaySet, MonthDay};

/// A field's name, what it takes, and the names of its values.
struct FieldRule {
    name: &'static str,
    takes: &'static str,
    low: u32,
    high: u32,
    names: &'static [&'static str],
    /// The number of the first name.
    first_name: u32,
}

const fn numbers(name: &'static str, takes: &'static str, low: u32, high: u32) -> FieldRule {
    FieldRule { name, takes, low, high, names: &[], first_name: low }
}

const KINDS: [FieldRule; 5] = [
    numbers("minute", "0 to 59", 0, 59),
    numbers("hour", "0 to 23", 0, 23),
    numbers("day of the month", "1 to 31", 1, 31),
    FieldRule {
        names: &[
            "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
        ],
        ..numbers("month", "1 to 12, or JAN to DEC", 1, 12)
    },
    FieldRule {
        names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
        ..numbers("day of the week", "0 to 7, or SUN to SAT", 0, 7)
    },
];

const DAY: usize = 2;
const WEEKDAY: usize = 4;

/// An expression whose fields are right.
pub(super) struct CronFields {
    /// The form on record: texts that say the same are equal.
    pub normalised: String,
    /// The minute or the hour begins with `*` (MIN_STAR and HR_STAR of cron's entry.c).
    pub by_time: bool,
    pub calendar: Calendar,
}

/// # Errors
/// A sentence that says what is wrong and does not quote it.
pub(super) fn read(fields: &[&str]) -> Result<CronFields, String> {
    let names = || KINDS.map(|kind| kind.name).join(", ");
    let upper: Vec<String> = fields.iter().map(|field| field.to_ascii_uppercase()).collect();
    let Ok([minute, hour, day, month, weekday]) = <[String; 5]>::try_from(upper) else {
        let hint = if fields.len() == 6 { " (without seconds)" } else { "" };
        return Err(format!("expected five fields{hint}, found {}: {}", fields.len(), names()));
    };
    let (day, weekday) = (day.replace('?', "*"), weekday.replace('?', "*"));
    let both_asked = weekday.strip_prefix('+');
    let texts = [&minute, &hour, &day, &month, both_asked.unwrap_or(&weekday)];
    let mut sets: [DaySet; KINDS.len()] = Default::default();
    for (at, text) in texts.into_iter().enumerate() {
        let kind = &KINDS[at];
        sets[at] = list(at, text).map_err(|why| {
            format!("the {} is wrong (it takes {}, also * , - and /): {why}", kind.name, kind.takes)
        })?;
    }
    // Either day counts, but where one begins with `*`: then both must match (crontab(5)).
    let both = both_asked.is_some() || day.starts_with('*') || weekday.starts_with('*');
    let [minutes, hours, of_month, months, of_week] = sets;
    let times = [minutes.values, hours.values, months.values];
    let normalised = [&minute, &hour, &day, &month, &weekday].into_iter().enumerate();
    Ok(CronFields {
        normalised: normalised
            .map(|(at, text)| normal_form(at, text))
            .collect::<Vec<_>>()
            .join(" "),
        by_time: minute.starts_with('*') || hour.starts_with('*'),
        calendar: Calendar::new(times, [of_month, of_week], both),
    })
}

/// The values of a field; only of days there are others than numbers.
fn list(at: usize, text: &str) -> Result<DaySet, &'static str> {
    let mut set = DaySet::default();
    for part in text.split(',') {
        match (by_month(at, part)?, at) {
            (Some(days), _) => set.by_month.extend(days),
            // Sunday is 0 and 7.
            (None, WEEKDAY) => set.values |= sunday_zero(values(at, part)?),
            (None, _) => set.values |= values(at, part)?,
        }
    }
    set.by_month.sort_unstable();
    set.by_month.dedup();
    Ok(set)
}

/// The days of a part that depend on the month; `None`: it names others.
fn by_month(at: usize, part: &str) -> Result<Option<Vec<MonthDay>>, &'static str> {
    match at {
        DAY => Ok(match part.strip_suffix('W') {
            _ if part == "L" => Some(vec![MonthDay::Last]),
            _ if part == "LW" => Some(vec![MonthDay::LastWeekday]),
            Some(day) => {
                values(DAY, day)?;
                Some(vec![MonthDay::Nearest(value(DAY, day)?)])
            }
            None => None,
        }),
        WEEKDAY if part == "L" => Err("L needs a day before it: 5L is the last Friday"),
        WEEKDAY => {
            const WHICH: &str = "after # it takes 1 to 5: MON#2 is the second Monday";
            let (days, which) = match (part.split_once('#'), part.strip_suffix('L')) {
                (Some((days, "L")), _) | (None, Some(days)) => (days, None),
                (Some((days, which)), _) => {
                    let which = number(which).filter(|which| (1..=5).contains(which));
                    (days, Some(which.ok_or(WHICH)?))
                }
                (None, None) => return Ok(None),
            };
            let days = sunday_zero(values(WEEKDAY, days)?);
            let each = (0..7).filter(|day| days & 1 << day != 0);
            Ok(Some(match which {
                Some(which) => each.map(|day| MonthDay::Which(day, which)).collect(),
                None => each.map(MonthDay::LastOf).collect(),
            }))
        }
        _ => Ok(None),
    }
}

fn sunday_zero(days: u64) -> u64 {
    days & !(1 << 7) | days >> 7
}

/// `*`, a value or a range, the first two of them with a step: a bit for each value.
fn values(at: usize, part: &str) -> Result<u64, &'static str> {
    let FieldRule { low, high, .. } = KINDS[at];
    let (range, step) = match part.split_once('/') {
        None => (part, None),
        Some((range, step)) => (range, Some(step)),
    };
    let (first, last) = match range.split_once('-') {
        _ if range == "*" => (low, high),
        Some((first, last)) => (value(at, first)?, value(at, last)?),
        None if step.is_some() && !range.is_empty() => {
            return Err("before / it takes * or a range, as in 10-59/15");
        }
        None => (value(at, range)?, value(at, range)?),
    };
    if at == WEEKDAY && first > 0 && last == 0 {
        return Err("a range that ends with Sunday ends with 7, as in FRI-7");
    }
    if first > last {
        return Err("a range goes from the lower to the higher value");
    }
    if first < low || last > high {
        return Err(NO_VALUE);
    }
    let step = step.map_or(Some(1), number).filter(|step| *step > 0);
    let step = usize::try_from(step.ok_or("after / it takes a number from 1")?);
    let each = (first..=last).step_by(step.unwrap_or(usize::MAX));
    Ok(each.fold(0, |values, value| values | 1 << value))
}

const NO_VALUE: &str = "it has a part that is none of these";

/// A number, whatever the field takes, or a name.
fn value(at: usize, word: &str) -> Result<u32, &'static str> {
    let kind = &KINDS[at];
    if word.is_empty() {
        return Err("it has an empty part");
    }
    if let Some(place) = kind.names.iter().position(|name| *name == word) {
        return Ok(kind.first_name + u32::try_from(place).unwrap_or_default());
    }
    if KINDS.iter().any(|other| other.names.contains(&word)) {
        return Err("it has a name of another field");
    }
    number(word).ok_or(NO_VALUE)
}

/// Digits alone, without a sign.
fn number(word: &str) -> Option<u32> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    word.parse().ok().filter(|_| digits)
}

/// Numbers without a 0 before them, names as numbers, and the parts of a list in order; but a part
/// that begins with `*` stays first or does not become it, since that decides which days count.
fn normal_form(at: usize, field: &str) -> String {
    let mut parts: Vec<String> = field.split(',').map(|part| normal_part(at, part)).collect();
    let star_first = field.starts_with('*');
    parts.sort_by_cached_key(|part| (part.starts_with('*') != star_first, part.clone()));
    parts.dedup();
    parts.join(",")
}

fn normal_part(at: usize, part: &str) -> String {
    let mut text = String::new();
    for piece in part.split_inclusive(['-', '/', '#']) {
        let word = piece.trim_end_matches(['-', '/', '#']);
        match value(at, word).ok().or_else(|| number(word)) {
            Some(number) => text += &number.to_string(),
            None => text += word,
        }
        text += &piece[word.len()..];
    }
    match (text.as_str(), at) {
        ("*/1", _) => "*".to_owned(),
        ("7", WEEKDAY) => "0".to_owned(),
        _ => text,
    }
}
