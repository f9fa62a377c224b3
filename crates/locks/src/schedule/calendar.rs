//! The minutes that an expression names, on a calendar without a time zone. All of them are
//! between the years 1 and 9999.

use jiff::ToSpan;
use jiff::civil::{Date, DateTime, Time, Weekday};

/// After this many days the calendar begins again: 400 years.
const DAYS_OF_ALL_CALENDARS: usize = 146_097;

/// What an expression says. Sets have a bit for each value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Calendar {
    pub minutes: u64,
    pub hours: u64,
    pub months: u64,
    pub of_month: DaySet,
    /// Sunday is 0.
    pub of_week: DaySet,
    /// A day must be in both sets; otherwise either will do.
    pub both: bool,
    /// The minutes of a day, in order.
    times: Vec<Time>,
}

/// Days by their number, and those that depend on the month.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct DaySet {
    pub values: u64,
    pub by_month: Vec<MonthDay>,
}

/// A day that is another date in each month. Days of the week are from 0, Sunday.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MonthDay {
    /// `15W`: of Monday to Friday the one that is nearest to this date, in the same month.
    Nearest(u32),
    /// `L`
    Last,
    /// `LW`: the last of Monday to Friday.
    LastWeekday,
    /// `FRI#2`
    Which(u32, u32),
    /// `5L`
    LastOf(u32),
}

impl Calendar {
    pub fn new(
        [minutes, hours, months]: [u64; 3],
        [of_month, of_week]: [DaySet; 2],
        both: bool,
    ) -> Calendar {
        let has = |set: u64, value: &i8| set & 1 << value != 0;
        let hours_named = (0..24).filter(|hour| has(hours, hour));
        let minutes_named = || (0..60).filter(|minute| has(minutes, minute));
        let each = hours_named.flat_map(|hour| minutes_named().map(move |minute| (hour, minute)));
        let times = each.map(|(hour, minute)| Time::constant(hour, minute, 0, 0)).collect();
        Calendar { minutes, hours, months, of_month, of_week, both, times }
    }

    /// The first minute from this time on.
    pub fn from(&self, time: DateTime) -> Option<DateTime> {
        let days = std::iter::successors(Some(time.date()), |day| day.tomorrow().ok());
        let mut days = days.take(DAYS_OF_ALL_CALENDARS).filter(|day| self.has_day(*day));
        days.find_map(|day| {
            let passed = self.times.partition_point(|at| day.to_datetime(*at) < time);
            self.times.get(passed).map(|at| day.to_datetime(*at))
        })
    }

    /// The last minute up to and with this time.
    pub fn until(&self, time: DateTime) -> Option<DateTime> {
        let days = std::iter::successors(Some(time.date()), |day| day.yesterday().ok());
        let mut days = days.take(DAYS_OF_ALL_CALENDARS).filter(|day| self.has_day(*day));
        days.find_map(|day| {
            let come = self.times.partition_point(|at| day.to_datetime(*at) <= time);
            self.times.get(come.checked_sub(1)?).map(|at| day.to_datetime(*at))
        })
    }

    fn has_day(&self, day: Date) -> bool {
        if self.months & 1 << day.month() == 0 {
            return false;
        }
        let of_month = self.of_month.has(day, day.day().unsigned_abs().into());
        let of_week = self.of_week.has(day, sunday_zero(day));
        if self.both { of_month && of_week } else { of_month || of_week }
    }
}

impl DaySet {
    fn has(&self, day: Date, number: u32) -> bool {
        self.values & 1 << number != 0 || self.by_month.iter().any(|named| named.is(day))
    }
}

impl MonthDay {
    fn is(self, day: Date) -> bool {
        let of_month = i64::from(day.day());
        let is_last_week = of_month > i64::from(day.days_in_month()) - 7;
        match self {
            MonthDay::Last => day == day.last_of_month(),
            MonthDay::LastWeekday => nearest_weekday(day.last_of_month()) == day,
            MonthDay::Nearest(date) => {
                let named = i8::try_from(date).ok();
                let named = named.and_then(|of_month| day.with().day(of_month).build().ok());
                named.is_some_and(|named| nearest_weekday(named) == day)
            }
            MonthDay::Which(weekday, which) => {
                sunday_zero(day) == weekday && (of_month + 6) / 7 == i64::from(which)
            }
            MonthDay::LastOf(weekday) => sunday_zero(day) == weekday && is_last_week,
        }
    }
}

fn sunday_zero(day: Date) -> u32 {
    day.weekday().to_sunday_zero_offset().unsigned_abs().into()
}

/// Of Monday to Friday in the month of `day` the one that is nearest.
fn nearest_weekday(day: Date) -> Date {
    let (first, last) = (day == day.first_of_month(), day == day.last_of_month());
    let days = match day.weekday() {
        Weekday::Saturday if first => 2,
        Weekday::Saturday => -1,
        Weekday::Sunday if last => -2,
        Weekday::Sunday => 1,
        _ => 0,
    };
    day.saturating_add(days.days())
}
