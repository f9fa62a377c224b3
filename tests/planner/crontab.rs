//! Schedules against Debian's cron. What is taken says its own program, `crontab -n`. At which
//! minutes a line's command runs, which no daemon can show for two years, says a reading of cron's
//! own rules that shares nothing with the product: its entry.c character by character, and the test
//! that cron makes each minute. Where clocks are put forward or back, the rule is that of its
//! main loop, but that a command that was left out several times is started once (docs/jobs.md).

use std::iter::Peekable;
use std::ops::Range;
use std::process::Command;
use std::str::Chars;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use onedrop::schedule::Schedule;
use onedrop_kit::TempRoot;

use crate::chance::Chance;
use crate::world::{shown, utc};

/// Lines that crontab takes, and we.
#[rustfmt::skip]
const TAKEN: [&str; 173] = [
    "* * * * *", "*/1 3 * * *", "*/2 */8 * * *", "1-59/2 2 * * *", "*/5 */2 * * *", "*/7 * * * *",
    "*/10 * * * *", "*/15 * * * *", "*/30 * * * *", "*/59 * * * *", "*/60 * * * *", "*/61 * * * *",
    "*/90 * * * *", "*/01 * * * *", "0-30/40 * * * *", "0-59/60 * * * *", "0-59/59 0 * * *",
    "0-59 3 * * *", "0 * * * *", "17 * * * *", "0,30 * * * *", "5,35 * * * *", "007 * * * *",
    "0000000000000005 * * * *", "5-5 * * * *", "*,5 2 * * *", "5,* 2 * * *", "1-3/1,* 1 * * *",
    "*/5,7-9/2,22 0 * * *", "5,10-20,*/25 */7 * * *", "20-40/7,3 4 * * *", "59 23 * * *",
    "0 0 * * *", "1 0 * * *", "30 0 * * *", "59 0 * * *", "0 1 * * *", "15 1 * * *", "30 1 * * *",
    "45 1 * * *", "59 1 * * *", "0 2 * * *", "5 2 * * *", "30 2 * * *", "59 2 * * *", "0 3 * * *",
    "17 3 * * *", "30 3 * * *", "*/15 0 * * *", "*/15 1 * * *", "*/15 2 * * *", "*/20 3 * * *",
    "0,30 1,2 * * *", "30 1-3 * * *", "30 0-5 * * *", "30 2,14 * * *", "0 2-4/2 * * *",
    "0 0-23 * * *", "0 0-23/2 * * *", "0 1-23/2 * * *", "30 0,12 * * *", "0 */1 * * *",
    "0 */2 * * *", "30 */2 * * *", "0 */3 * * *", "15 */4 * * *", "0 */5 * * *", "0 */6 * * *",
    "0 */8 * * *", "0 */12 * * *", "0 */23 * * *", "0 */24 * * *", "0 */99 * * *", "30 *,2 * * *",
    "30 2,* * * *", "0 2,*/6 * * *", "0 */6,2 * * *", "* 2 * * *", "* 1-2 * * *", "* */12 * * *",
    "* */23 * * *", "0 9-17 * * MON-FRI", "*/30 9-17 * * 1-5", "0 8,12,18 * * 1-6", "30 6 * * *",
    "30 6 * * MON-FRI", "30 6 * * 6,0", "0 6 * * MON", "0 6 * * mon,Wed", "0 6 * * SUN,MON,SUN",
    "0 6 * * SUN-SAT", "0 6 * * SUN-7", "0 6 * * sun-TUE", "0 0 * * 0", "0 0 * * 7", "0 0 * * 0,7",
    "0 0 * * 5-7", "0 0 * * 7-7", "0 0 * * 0-7", "0 0 * * 1-7/2", "0 0 * * */2", "0 0 * * */3",
    "0 0 * * */7", "0 0 * * */8", "0 0 * * MON-FRI/2", "0 0 * * FRI-7", "2 2 * * SAT",
    "30 1 * * SUN", "30 2 * * SUN", "15 0 * * sat", "0 0 1 * *", "0 0 2 * *", "0 0 15 * *",
    "0 0 28 * *", "0 0 29 * *", "0 0 30 * *", "0 0 31 * *", "0 0 1,15 * *", "0 0 1-7 * *",
    "0 0 8-14 * *", "0 0 */2 * *", "0 0 1-31/2 * *", "0 0 */10 * *", "0 0 */30 * *",
    "0 0 */31 * *", "0 0 */32 * *", "0 0 10-20/5,25 * *", "0 12 13 * FRI", "0 12 1-31 * MON",
    "0 12 1 * MON", "0 12 1,15 * 5", "0 12 13 6 FRI", "0 12 29 2 MON", "0 6 */1 * MON",
    "0 12 */10 * SUN", "0 12 */2 * THU", "0 12 1-7 * */4", "0 12 1-7 * THU", "0 12 *,13 * FRI",
    "0 12 13,* * FRI", "0 12 13 * FRI,*", "0 12 13 * *,FRI", "0 12 5,*/9 * FRI",
    "0 12 */9,5 * FRI", "0 12 */9 * */2", "0 12 1-31/9 * */2", "0 12 */9 * 0-7/2", "30 2 29 3 *",
    "30 1 25 10 SUN", "30 1 */2 10 SUN", "0 2 8-14 3 SUN", "0 0 1 1 *", "0 0 1 7 *", "0 0 29 2 *",
    "0 0 1 JAN-MAR *", "0 0 1 jan,JUL *", "0 0 1 */3 *", "0 0 1 */5 *", "0 0 1 */13 *",
    "0 0 1 2-12/2 *", "0 0 * 2 *", "0 0 * jan,FEB-apr/2 sun", "0 0 31 1,3,5 *", "0 0 30 4-9 *",
    "*/20 1 * 3,10 0", "@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly",
    "@annually", "*\t5 1 *  *",
];

/// Lines that crontab refuses, and we.
#[rustfmt::skip]
const REFUSED: [&str; 61] = [
    "60 * * * *", "0-60 * * * *", "59-60 * * * *", "59-60/2 * * * *", "70-5 * * * *",
    "5/15 * * * *", "5, * * * *", ",5 * * * *", "5,,6 * * * *", "*, * * * *", ",* * * * *",
    "5x * * * *", "x5 * * * *", "0x5 * * * *", "+5 * * * *", "-5 * * * *", "5- * * * *",
    "*/0 * * * *", "*/ * * * *", "*/* * * * *", "*/-1 * * * *", "*/5x * * * *", "1-5/x * * * *",
    "MON * * * *", "H * * * *", "~ * * * *", "? * * * *", "L * * * *", "* 24 * * *",
    "* 23-25/3 * * *", "* JAN * * *", "* 1, * * *", "30 6 MON-FRI * *", "* * 0 * *", "* * 32 * *",
    "* * 0-5 * *", "* * JAN * *", "* * 1,,2 * *", "* * * 0 *", "* * * 13 *", "* * * 12-13 *",
    "* * * January *", "* * * JANFEB *", "* * * JA *", "* * * MON *", "* * * 1JAN *",
    "* * * JAN/2 *", "* * * * 8", "* * * * 6-8", "* * * * Monday", "* * * * MO", "* * * * 1MON",
    "* * * * MON1", "* * * * JAN", "* * * * MON/2", "* * * * MON,", "* * * * -1", "* * * *",
    "@Daily", "@every", "@secondly",
];

/// Lines that crontab takes and we do not: it passes over what is no part of a list, and the others
/// never run.
const REFUSED_BY_US: [&str; 13] = [
    "5; * * * *",
    "** * * * *",
    "5* * * * *",
    "1-5-7 * * * *",
    "*/2/3 * * * *",
    "0~5 * * * *",
    "1.5 * * * *",
    "5-1 * * * *",
    "* * * * FRI-MON",
    "* * * * FRI-SUN",
    "* * 31 2 *",
    "* * 31 4,6,9,11 *",
    "@reboot",
];

/// Nine zones, with changes of an hour, of half an hour, of two, at midnight, at odd dates, and
/// four a year.
const ZONES: [&str; 9] = [
    "Europe/Berlin",
    "America/New_York",
    "America/Havana",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Africa/Cairo",
    "Asia/Gaza",
    "Africa/Casablanca",
    // Its standard time is that of summer.
    "Europe/Dublin",
];

#[test]
fn what_crontab_refuses_is_refused_and_what_it_takes_is_taken() {
    for line in TAKEN {
        assert_eq!(crontab(line), Ok(()), "{line}");
        assert!(Schedule::cron(line, "UTC").is_ok(), "{line}");
    }
    for line in REFUSED {
        let field = crontab(line).expect_err(line);
        let why = Schedule::cron(line, "UTC").expect_err(line);
        let says = |words: &str| assert!(why.contains(words), "{line}: {field}: {why}");
        match field.as_str() {
            "time specifier" => says("expected five fields or one of @hourly"),
            _ if line.split_ascii_whitespace().count() < 5 => says("expected five fields, found"),
            field => says(&format!("the {field} is wrong")),
        }
    }
    for line in REFUSED_BY_US {
        assert_eq!(crontab(line), Ok(()), "{line}");
        assert!(Schedule::cron(line, "UTC").is_err(), "{line}");
    }
}

/// Two years, each line in one of the zones; and around each change of the clocks, in all.
#[test]
fn what_crontab_takes_runs_at_the_same_minutes() {
    let years = utc("2026-01-01 00:00")..utc("2028-01-01 00:00");
    let whole = ZONES.map(|zone| spans(zone, &years));
    let around = |zone: usize| {
        let changes = whole[zone][1..].iter().map(|span| time(span.from));
        changes.map(move |change| {
            let days = change - DAY..change + DAY;
            (spans(ZONES[zone], &days), days)
        })
    };
    let changes: Vec<_> = (0..ZONES.len()).map(|zone| around(zone).collect::<Vec<_>>()).collect();
    for (at, line) in TAKEN.iter().enumerate() {
        let entry = Entry::read(line).expect("taken");
        for (zone, name) in ZONES.iter().enumerate() {
            let ours = Schedule::cron(line, name).expect("taken");
            let recorded = Schedule::on_record(&ours.to_string());
            assert_eq!(recorded, Some(ours.clone()), "{line} as it is on record");
            if zone == at % ZONES.len() {
                is_as(&ours, entry.minutes(&whole[zone]), &years);
            }
            for (spans, days) in &changes[zone] {
                is_as(&ours, entry.minutes(spans), days);
            }
        }
    }
}

/// Expressions made by chance of crontab(5)'s own syntax, right and wrong ones.
#[test]
fn expressions_made_by_chance_are_read_as_cron_reads_them() {
    let mut chance = Chance::Seeded(20_261_126);
    let years = utc("2026-01-01 00:00")..utc("2030-01-01 00:00");
    let (mut taken, spans) = (0, spans("UTC", &years));
    for _ in 0..600 {
        let fields =
            [(0, 59, &[][..]), (0, 23, &[]), (1, 31, &[]), (1, 12, &MONTHS), (0, 7, &DAYS)];
        let line = fields.map(|(low, high, names)| field(&mut chance, low, high, names)).join(" ");
        let reading = Entry::read(&line);
        let read = reading.as_ref().map(drop).map_err(|field| (*field).to_owned());
        assert_eq!(crontab(&line), read, "{line}");
        match (reading, Schedule::cron(&line, "UTC")) {
            // A date that never comes, which cron takes and never runs.
            (Ok(_), Err(why)) if why.contains("never comes") => {}
            (Ok(entry), Ok(ours)) => {
                taken += 1;
                let first: Vec<_> = entry.minutes(&spans).take(60).collect();
                let end = first.get(59).map_or(years.end, |last| time(*last));
                is_as(&ours, first.into_iter(), &(years.start..end));
            }
            (Err(field), Err(why)) => assert!(why.contains(field), "{line}: {why}"),
            (cron, ours) => panic!("{line}: {ours:?}, cron: {:?}", cron.err()),
        }
    }
    assert!((100..500).contains(&taken), "{taken} of 600 were taken");
}

/// Which field of a line is bad, says crontab.
fn crontab(line: &str) -> Result<(), String> {
    let folder = TempRoot::new();
    let file = folder.join("crontab");
    std::fs::write(&file, format!("{line} true\n")).expect("a file");
    let said = Command::new("crontab").arg("-n").arg(&file).output().expect("crontab of cron");
    let text = String::from_utf8_lossy(&said.stderr);
    if said.status.success() {
        return Ok(());
    }
    let field = text.lines().next().and_then(|line| line.split_once(": bad "));
    let (_, field) = field.unwrap_or_else(|| panic!("{line}: {text}"));
    Err(field.replace("day-of-month", "day of the month").replace("day-of-week", "day of the week"))
}

/// Every minute of these in the range is a time of the schedule, and there are no others.
fn is_as(ours: &Schedule, minutes: impl Iterator<Item = i64>, range: &Range<SystemTime>) {
    let mut at = range.start - Duration::from_secs(1);
    for minute in minutes.map(time).take_while(|minute| *minute < range.end) {
        let next = ours.next_after(at);
        assert_eq!(next, minute, "{ours} after {}: {}", shown(at), shown(next));
        at = next;
    }
    let next = ours.next_after(at);
    assert!(next >= range.end, "{ours} after {}: {}", shown(at), shown(next));
}

const DAY: Duration = Duration::from_secs(86_400);

/// Of a minute since 1970.
fn time(minute: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(minute.unsigned_abs() * 60)
}

/// Minutes of UTC between two changes of a zone's clocks, which are that much ahead of it.
struct Span {
    from: i64,
    until: i64,
    ahead: i64,
}

fn spans(zone: &str, years: &Range<SystemTime>) -> Vec<Span> {
    let zone = TimeZone::get(zone).expect("a zone");
    let [from, until] = [years.start, years.end].map(|at| Timestamp::try_from(at).expect("a time"));
    let changes = zone.following(from).map(|change| change.timestamp());
    let changes = changes.take_while(|change| *change < until);
    let edges: Vec<_> = [from].into_iter().chain(changes).chain([until]).collect();
    let minutes = |time: &Timestamp| time.as_second() / 60;
    let each = edges.windows(2).map(|edges| Span {
        from: minutes(&edges[0]),
        until: minutes(&edges[1]),
        ahead: i64::from(zone.to_offset(edges[0]).seconds()) / 60,
    });
    each.collect()
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
    by_time: bool,
    day_star: bool,
    weekday_star: bool,
}

impl Entry {
    /// load_entry(): the field that is bad, if there is one.
    fn read(line: &str) -> Result<Entry, &'static str> {
        let line = match line {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            line => line,
        };
        let text = &mut line.trim_start().chars().peekable();
        let minute_star = text.peek() == Some(&'*');
        let minutes = list(text, 0, 59, &[]).ok_or("minute")?;
        // MIN_STAR and HR_STAR: find_jobs() treats them alike.
        let by_time = minute_star || text.peek() == Some(&'*');
        let hours = list(text, 0, 23, &[]).ok_or("hour")?;
        let day_star = text.peek() == Some(&'*');
        let days = list(text, 1, 31, &[]).ok_or("day of the month")?;
        let months = list(text, 1, 12, &MONTHS).ok_or("month")?;
        let weekday_star = text.peek() == Some(&'*');
        let mut weekdays = list(text, 0, 7, &DAYS).ok_or("day of the week")?;
        // Sunday is 0 and 7.
        weekdays[0] |= weekdays[7];
        Ok(Entry { minutes, hours, days, months, weekdays, by_time, day_star, weekday_star })
    }

    /// The minutes of UTC at which it is started. A minute or an hour with a star goes by the clock
    /// as it is. Any other: each minute of the clock counts when the clock shows it first, and what
    /// it left out at the end of that.
    fn minutes<'a>(&'a self, spans: &'a [Span]) -> impl Iterator<Item = i64> + 'a {
        let mut shown_up_to = spans[0].from + spans[0].ahead;
        spans.iter().flat_map(move |span| {
            let (from, until) = (span.from + span.ahead, span.until + span.ahead);
            let left_out = self.on_clock(shown_up_to, from).next().filter(|_| !self.by_time);
            let at_its_end = left_out.map(|_| from);
            let first = if self.by_time { from } else { from.max(shown_up_to) };
            shown_up_to = shown_up_to.max(until);
            let named = self.on_clock(first, until).filter(move |at| Some(*at) != at_its_end);
            at_its_end.into_iter().chain(named).map(|clock| clock - span.ahead)
        })
    }

    /// find_jobs() at each minute of a clock, which is counted as if it were of UTC.
    fn on_clock(&self, from: i64, until: i64) -> impl Iterator<Item = i64> + '_ {
        let days = from.div_euclid(1440)..=until.div_euclid(1440);
        let minutes = days.filter(|day| self.has_day(*day)).flat_map(|day| {
            let hours = (0..24).filter(|hour| self.hours[*hour]);
            let named = hours.flat_map(|hour| {
                (0..60).filter(|minute| self.minutes[*minute]).map(move |minute| hour * 60 + minute)
            });
            named.map(move |at| day * 1440 + i64::try_from(at).expect("a minute"))
        });
        minutes.filter(move |minute| (from..until).contains(minute))
    }

    /// Of days since 1970.
    fn has_day(&self, day: i64) -> bool {
        let date = Timestamp::from_second(day * 86_400).expect("a day").to_zoned(TimeZone::UTC);
        let number = |value: i8| usize::try_from(value).expect("a number");
        let of_month = self.days[number(date.day())];
        let of_week = self.weekdays[number(date.weekday().to_sunday_zero_offset())];
        let day = match self.day_star || self.weekday_star {
            true => of_month && of_week,
            false => of_month || of_week,
        };
        self.months[number(date.month())] && day
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
    if first < low || last > high {
        return None;
    }
    for value in (first..=last).step_by(step) {
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
