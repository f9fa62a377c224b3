//! What an expression says, in English: `at 06:30, on Monday to Friday, in January`.

use super::calendar::{Calendar, MonthDay};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const WHICH: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];
/// Up to this many times of a day are named one by one.
const MOST_TIMES: usize = 6;

/// Without the time zone.
pub(super) fn of(calendar: &Calendar) -> String {
    let months = values(calendar.months, 1, 12);
    let in_months = (months.len() < MONTHS.len()).then(|| {
        let names = ranges(&months, |month| named(&MONTHS, month - 1));
        format!("in {}", joined(names))
    });
    let parts = [Some(times(calendar)), days(calendar), in_months];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn times(calendar: &Calendar) -> String {
    let (minutes, hours) = (values(calendar.minutes, 0, 59), values(calendar.hours, 0, 23));
    if minutes.len() * hours.len() <= MOST_TIMES {
        let each = hours
            .iter()
            .flat_map(|hour| minutes.iter().map(move |minute| format!("{hour:02}:{minute:02}")));
        return format!("at {}", joined(each.collect()));
    }
    let step = 60 / u32::try_from(minutes.len()).unwrap_or(60).max(1);
    let is_even =
        step > 1 && minutes.len() > 1 && (0..60).step_by(step as usize).eq(minutes.clone());
    let of_all_hours = hours.len() == 24;
    let (minutes, in_hours) = match minutes.len() {
        60 => ("every minute".to_owned(), ""),
        _ if is_even => (format!("every {step} minutes"), ""),
        _ => {
            let listed = joined(ranges(&minutes, |minute| minute.to_string()));
            (format!("at minute {listed}"), " of every hour")
        }
    };
    match of_all_hours {
        true => minutes + in_hours,
        false => {
            let hours = joined(ranges(&hours, |hour| hour.to_string()));
            format!("{minutes} of hour {hours}")
        }
    }
}

/// `None`: every day.
fn days(calendar: &Calendar) -> Option<String> {
    let (of_month, of_week) = (&calendar.of_month, &calendar.of_week);
    let dates = values(of_month.values, 1, 31);
    // From Monday on.
    let weekdays = values(of_week.values | (of_week.values & 1) << 7, 1, 7);
    let by_date = (dates.len() < 31).then(|| {
        let dates = joined(ranges(&dates, |date| date.to_string()));
        let dates = (!dates.is_empty()).then(|| format!("day {dates} of the month"));
        joined(dates.into_iter().chain(of_month.by_month.iter().map(month_day)).collect())
    });
    let by_weekday = (weekdays.len() < 7).then(|| {
        let mut names = ranges(&weekdays, |day| named(&WEEKDAYS, day - 1));
        names.extend(of_week.by_month.iter().map(month_day));
        joined(names)
    });
    match (by_date, by_weekday, calendar.both) {
        (Some(date), Some(weekday), true) => Some(format!("on {date} if that is {weekday}")),
        (Some(date), Some(weekday), false) => Some(format!("on {date}, and on {weekday}")),
        (Some(days), None, true) | (None, Some(days), true) => Some(format!("on {days}")),
        (_, None, _) | (None, _, _) => None,
    }
}

fn month_day(day: &MonthDay) -> String {
    let weekday = |day: u32| named(&WEEKDAYS, (day + 6) % 7);
    match *day {
        MonthDay::Nearest(date) => format!("the weekday (Monday to Friday) nearest to day {date}"),
        MonthDay::Last => "the last day of the month".to_owned(),
        MonthDay::LastWeekday => "the last weekday (Monday to Friday) of the month".to_owned(),
        MonthDay::Which(day, which) => {
            format!("the {} {} of the month", named(&WHICH, which - 1), weekday(day))
        }
        MonthDay::LastOf(day) => format!("the last {} of the month", weekday(day)),
    }
}

fn named(names: &[&str], at: u32) -> String {
    let name = usize::try_from(at).ok().and_then(|at| names.get(at));
    name.map_or_else(String::new, |name| (*name).to_owned())
}

fn values(set: u64, low: u32, high: u32) -> Vec<u32> {
    (low..=high).filter(|value| set & 1 << value != 0).collect()
}

/// Three in a row and more are `1 to 3`.
fn ranges(values: &[u32], name: impl Fn(u32) -> String) -> Vec<String> {
    let rows = values.chunk_by(|one, next| one + 1 == *next);
    rows.flat_map(|row| match row {
        [first, _, .., last] => vec![format!("{} to {}", name(*first), name(*last))],
        few => few.iter().map(|value| name(*value)).collect(),
    })
    .collect()
}

/// `1, 2 and 3`
fn joined(mut items: Vec<String>) -> String {
    let last = items.pop().unwrap_or_default();
    match items.is_empty() {
        true => last,
        false => format!("{} and {last}", items.join(", ")),
    }
}
