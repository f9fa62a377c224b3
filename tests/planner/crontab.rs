//! Schedules against cron itself. What Debian's crontab (3.0pl1-162) answered to each line stands
//! in the table; when a line's command runs, a reading of cron's own rules says that shares nothing
//! with the product: its entry.c character by character, and the test that cron makes each minute.

use std::iter::Peekable;
use std::str::Chars;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use onedrop::schedule::Schedule;

use crate::chance::Chance;
use crate::world::{shown, utc};

/// What crontab said to `LINE command`: nothing, or which field is bad.
const ANSWERS: [(&str, Option<&str>); 82] = [
    ("* * * * *", None),
    ("17 3 * * *", None),
    ("*\t* *  * *", None),
    ("*/15 * * * *", None),
    ("*/59 * * * *", None),
    ("*/60 * * * *", None),
    ("*/61 * * * *", None),
    ("*/90 * * * *", None),
    ("0-30/40 * * * *", None),
    ("0-59/60 * * * *", None),
    ("* */23 * * *", None),
    ("* */24 * * *", None),
    ("0 0 */31 * *", None),
    ("0 0 */32 * *", None),
    ("0 0 1 */13 *", None),
    ("0 0 * * */7", None),
    ("0 0 * * */8", None),
    ("*/01 * * * *", None),
    ("007 * * * *", None),
    ("0000000000000005 * * * *", None),
    ("5-5 * * * *", None),
    ("*,5 * * * *", None),
    ("5,* * * * *", None),
    ("1-3/1,* * * * *", None),
    ("*/5,7-9/2,22 0 * * *", None),
    ("5,10-20,*/25 */7 * * *", None),
    ("0-59/59 0 * * *", None),
    // Either day counts, unless one begins with `*`.
    ("0 12 13 * FRI", None),
    ("0 12 1-31 * MON", None),
    ("0 6 * * MON", None),
    ("0 6 */1 * MON", None),
    ("0 12 */10 * SUN", None),
    ("0 12 */2 * THU", None),
    ("0 12 1-7 * */4", None),
    ("0 12 1-7 * THU", None),
    ("0 12 *,13 * FRI", None),
    ("0 12 13,* * FRI", None),
    ("0 12 13 * FRI,*", None),
    ("0 12 13 * *,FRI", None),
    ("0 12 5,*/9 * FRI", None),
    ("0 12 */9,5 * FRI", None),
    ("0 0 * * MON-FRI", None),
    ("0 0 * * mon,Wed", None),
    ("0 0 * * SUN,MON,SUN", None),
    ("0 0 * * SUN-SAT", None),
    ("0 0 * * SUN-7", None),
    ("0 0 * * 5-7", None),
    ("0 0 * * 7-7", None),
    ("0 0 * * 0-7", None),
    ("0 0 * * MON-FRI/2", None),
    ("0 0 1 JAN-MAR *", None),
    ("0 0 * jan,FEB-apr/2 sun", None),
    ("0 0 29 2 *", None),
    ("60 * * * *", Some("minute")),
    ("0-60 * * * *", Some("minute")),
    ("59-60 * * * *", Some("minute")),
    ("5/15 * * * *", Some("minute")),
    ("5, * * * *", Some("minute")),
    (",5 * * * *", Some("minute")),
    ("5,,6 * * * *", Some("minute")),
    ("5x * * * *", Some("minute")),
    ("+5 * * * *", Some("minute")),
    ("-5 * * * *", Some("minute")),
    ("5- * * * *", Some("minute")),
    ("*/0 * * * *", Some("minute")),
    ("*/ * * * *", Some("minute")),
    ("*/* * * * *", Some("minute")),
    ("*/-1 * * * *", Some("minute")),
    ("1-5/x * * * *", Some("minute")),
    ("MON * * * *", Some("minute")),
    ("* 24 * * *", Some("hour")),
    ("* JAN * * *", Some("hour")),
    ("30 6 MON-FRI * *", Some("day of the month")),
    ("* * 0 * *", Some("day of the month")),
    ("* * 32 * *", Some("day of the month")),
    ("* * * 0 *", Some("month")),
    ("* * * January *", Some("month")),
    ("* * * MON *", Some("month")),
    ("* * * * 8", Some("day of the week")),
    ("* * * * Monday", Some("day of the week")),
    ("* * * * 1MON", Some("day of the week")),
    ("* * * * MON/2", Some("day of the week")),
];

#[test]
fn what_crontab_refuses_is_refused_and_what_it_takes_runs_at_the_same_minutes() {
    for (line, refused) in ANSWERS {
        let ours = Schedule::cron(line, "UTC");
        assert_eq!(Entry::read(line).err(), refused, "the reading of {line}");
        match (ours, refused) {
            (Ok(ours), None) => runs_as_cron_runs(line, &ours),
            (Err(why), Some(field)) => {
                assert!(why.contains(&format!("the {field} is wrong")), "{line}: {why}");
            }
            (ours, refused) => panic!("{line}: {ours:?}, crontab: bad {refused:?}"),
        }
    }
}

/// Expressions made by chance of crontab(5)'s own syntax, right and wrong ones.
#[test]
fn expressions_made_by_chance_are_read_as_cron_reads_them() {
    let mut chance = Chance::Seeded(20_261_126);
    let mut taken = 0;
    for _ in 0..600 {
        let fields =
            [(0, 59, &[][..]), (0, 23, &[]), (1, 31, &[]), (1, 12, &MONTHS), (0, 7, &DAYS)];
        let line = fields.map(|(low, high, names)| field(&mut chance, low, high, names)).join(" ");
        match (Entry::read(&line), Schedule::cron(&line, "UTC")) {
            // A date that never comes, which cron takes and never runs.
            (Ok(_), Err(why)) if why.contains("never comes") => {}
            (Ok(_), Ok(ours)) => {
                taken += 1;
                runs_as_cron_runs(&line, &ours);
            }
            (Err(field), Err(why)) => assert!(why.contains(field), "{line}: {why}"),
            (cron, ours) => panic!("{line}: {ours:?}, cron: {:?}", cron.err()),
        }
    }
    assert!((100..500).contains(&taken), "{taken} of 600 were taken");
}

/// The first times from 2026 on, to 2030 at the latest; and what is on record says the same.
fn runs_as_cron_runs(line: &str, ours: &Schedule) {
    let recorded = Schedule::on_record(&ours.to_string()).expect("as it is on record");
    assert_eq!(recorded, *ours, "{line}");
    let entry = Entry::read(line).expect("taken");
    let (mut at, end) = (utc("2025-12-31 23:59"), utc("2030-01-01 00:00"));
    let theirs: Vec<String> = entry.times().take(60).collect();
    for theirs in &theirs {
        at = ours.next_after(at);
        assert_eq!(shown(at), *theirs, "{line}");
    }
    if theirs.len() < 60 {
        assert!(ours.next_after(at) >= end - Duration::from_secs(60), "{line}");
    }
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A line of a crontab as `struct _entry` holds it.
struct Entry {
    minutes: [bool; 60],
    hours: [bool; 60],
    days: [bool; 60],
    months: [bool; 60],
    weekdays: [bool; 60],
    day_star: bool,
    weekday_star: bool,
}

impl Entry {
    /// load_entry(): the field that is bad, if there is one.
    fn read(line: &str) -> Result<Entry, &'static str> {
        let mut text = line.chars().peekable();
        let text = &mut text;
        let minutes = list(text, 0, 59, &[]).ok_or("minute")?;
        let hours = list(text, 0, 23, &[]).ok_or("hour")?;
        let day_star = text.peek() == Some(&'*');
        let days = list(text, 1, 31, &[]).ok_or("day of the month")?;
        let months = list(text, 1, 12, &MONTHS).ok_or("month")?;
        let weekday_star = text.peek() == Some(&'*');
        let mut weekdays = list(text, 0, 7, &DAYS).ok_or("day of the week")?;
        // Sunday is 0 and 7.
        weekdays[0] |= weekdays[7];
        Ok(Entry { minutes, hours, days, months, weekdays, day_star, weekday_star })
    }

    /// The minutes at which find_jobs() starts it, from 2026 to the end of 2029.
    fn times(&self) -> impl Iterator<Item = String> + '_ {
        let first = "2026-01-01T00:00Z".parse::<Timestamp>().expect("a time");
        let days = (0..4 * 365 + 1).map(move |day| first + Duration::from_secs(day * 86_400));
        days.filter(|day| {
            let date = day.to_zoned(TimeZone::UTC);
            let number = |value: i8| usize::try_from(value).expect("a number");
            let of_month = self.days[number(date.day())];
            let of_week = self.weekdays[number(date.weekday().to_sunday_zero_offset())];
            let day = match self.day_star || self.weekday_star {
                true => of_month && of_week,
                false => of_month || of_week,
            };
            self.months[number(date.month())] && day
        })
        .flat_map(|day| (0..1440_u64).map(move |minute| (day, minute)))
        .filter(|(_, minute)| {
            let (hour, minute) = (minute / 60, minute % 60);
            let place = |value: u64| usize::try_from(value).expect("a number");
            self.hours[place(hour)] && self.minutes[place(minute)]
        })
        .map(|(day, minute)| shown((day + Duration::from_secs(minute * 60)).into()))
    }
}

/// get_list()
fn list(text: &mut Peekable<Chars>, low: usize, high: usize, names: &[&str]) -> Option<[bool; 60]> {
    let mut bits = [false; 60];
    loop {
        range(text, &mut bits, low, high, names)?;
        if text.next_if_eq(&',').is_none() {
            break;
        }
    }
    while text.next_if(|c| !c.is_ascii_whitespace()).is_some() {}
    while text.next_if(char::is_ascii_whitespace).is_some() {}
    Some(bits)
}

/// get_range()
fn range(
    text: &mut Peekable<Chars>,
    bits: &mut [bool; 60],
    low: usize,
    high: usize,
    names: &[&str],
) -> Option<()> {
    let (first, last) = match text.next_if_eq(&'*') {
        Some(_) => (low, high),
        None => {
            let first = number(text, low, names)?;
            if text.peek() == Some(&'/') {
                return None;
            }
            match text.next_if_eq(&'-') {
                Some(_) => (first, number(text, low, names)?),
                None => (first, first),
            }
        }
    };
    let step = match text.next_if_eq(&'/') {
        Some(_) => number(text, 0, &[]).filter(|step| *step > 0)?,
        None => 1,
    };
    for value in (first..=last).step_by(step) {
        // set_element()
        if !(low..=high).contains(&value) {
            return None;
        }
        bits[value] = true;
    }
    Some(())
}

/// get_number()
fn number(text: &mut Peekable<Chars>, low: usize, names: &[&str]) -> Option<usize> {
    let mut word = String::new();
    while let Some(c) = text.next_if(char::is_ascii_alphanumeric) {
        word.push(c);
    }
    let named = || names.iter().position(|name| name.eq_ignore_ascii_case(&word));
    word.parse().ok().or_else(|| Some(low + named()?))
}

fn field(chance: &mut Chance, low: usize, high: usize, names: &[&str]) -> String {
    let parts = [1, 1, 1, 2, 2, 3][chance.pick(6)];
    (0..parts).map(|_| part(chance, low, high, names)).collect::<Vec<_>>().join(",")
}

fn part(chance: &mut Chance, low: usize, high: usize, names: &[&str]) -> String {
    let step = chance.pick(high + 4);
    let first = low + chance.pick(high - low + 1);
    // One too many, now and then. A range that holds nothing is refused by us alone.
    let last = first + chance.pick(high + 2 - first);
    match chance.pick(40) {
        0..12 => "*".to_owned(),
        12..16 => format!("*/{step}"),
        16 => String::new(),
        17 => MONTHS[chance.pick(12)].to_owned(),
        18 => format!("{first}/{step}"),
        19..24 => format!("{first}-{last}"),
        24..28 => format!("{first}-{last}/{step}"),
        28..32 if !names.is_empty() => names[chance.pick(names.len())].to_uppercase(),
        _ => first.to_string(),
    }
}
