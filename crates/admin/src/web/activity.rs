//! How attempts of the last day ended, minute by minute. What has passed is counted once and kept;
//! the last quarter of an hour, in which attempts may still end, is counted again. Kept in this
//! process alone: after a restart the day is counted anew, an hour at a time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use onedrop_core::ledger::{ActivityRow, LedgerError, PagesLedger, SLOWER_MS, first_since};

/// Minutes in which an attempt that has begun may still end, and more: a delivery gives up before.
const OPEN: i64 = 15;
const HOUR: i64 = 60;
/// Minutes of a bar.
pub const BAR: i64 = 15;
/// Hours that are shown, and bars.
pub const HOURS: usize = 24;
pub const BARS: usize = HOURS * 4;
/// A count that is younger than this is shown as it is.
const FRESH: Duration = Duration::from_secs(3);
/// What counting may take.
const TIME: Duration = Duration::from_secs(3);

/// The counts of the last day.
#[derive(Default)]
pub struct Activity {
    /// Locked for moments, never while the ledger is asked.
    counted: Mutex<Counted>,
    /// Held by the one that catches up.
    catching_up: Mutex<()>,
}

#[derive(Default)]
struct Counted {
    /// By minute, of those from `from` to before `to`.
    passed: BTreeMap<i64, Vec<ActivityRow>>,
    /// From `to` on.
    open: Vec<ActivityRow>,
    from: i64,
    /// 0: nothing was counted yet.
    to: i64,
    at: Option<Instant>,
}

/// How the attempts ended that began in some minutes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MinuteSlot {
    /// Its first minute, since 1970.
    pub minute: i64,
    pub delivered: u64,
    pub deferred: u64,
    pub refused: u64,
    /// No end is on record: they run, or were killed.
    pub open: u64,
    slowness: [u64; SLOWER_MS.len() + 1],
}

/// A reason of failures, with how often it was one in each hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasonOfDay {
    pub reason: String,
    pub hours: [u64; HOURS],
}

/// The last day.
#[derive(Debug, Default)]
pub struct Day {
    pub bars: Vec<MinuteSlot>,
    pub hours: Vec<MinuteSlot>,
    /// The most frequent first.
    pub reasons: Vec<ReasonOfDay>,
    /// Minutes of the last bar that have passed.
    pub last_bar: i64,
    /// Before this nothing is counted yet.
    pub counted_from: Option<SystemTime>,
}

impl Activity {
    /// The last day, with what came in the meantime; while another counts that, as it was.
    pub fn day(&self, ledger: &dyn PagesLedger) -> Result<Day, LedgerError> {
        let now = minute_of(ledger.time());
        let is_old = self.counted().at.is_none_or(|at| at.elapsed() >= FRESH);
        let turn = is_old.then(|| self.catching_up.try_lock());
        match turn {
            None | Some(Err(TryLockError::WouldBlock)) => {}
            Some(Ok(_) | Err(TryLockError::Poisoned(_))) => self.catch_up(ledger, now)?,
        }
        Ok(self.counted().day(now))
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what came; only by the one that holds `catching_up`.
    fn catch_up(&self, ledger: &dyn PagesLedger, now: i64) -> Result<(), LedgerError> {
        let known = self.counted().to;
        // Of a day that was not looked at the hours are counted by `fill`.
        let is_new = known == 0 || known > now + OPEN || known < now - HOUR;
        let from = if is_new { now - OPEN } else { known };
        let rows = counted_between(ledger, from, None)?;
        let mut counted = self.counted();
        if is_new {
            *counted = Counted { from, to: from, ..Counted::default() };
        }
        counted.take(rows, now);
        Ok(())
    }

    /// Counts what is missing of the last day, an hour at a time, the newest first.
    pub fn fill(&self, ledger: &dyn PagesLedger) -> Result<(), LedgerError> {
        loop {
            let now = minute_of(ledger.time());
            let turn = self.catching_up.lock().unwrap_or_else(PoisonError::into_inner);
            self.catch_up(ledger, now)?;
            drop(turn);
            let (to, first) = (self.counted().from, first_minute(now));
            if to <= first {
                return Ok(());
            }
            let from = (to - HOUR).max(first);
            let rows = counted_between(ledger, from, Some(to))?;
            let mut counted = self.counted();
            if counted.from == to {
                counted.keep(rows);
                counted.from = from;
            }
        }
    }
}

impl Counted {
    /// Of all that began since `to`.
    fn take(&mut self, rows: Vec<ActivityRow>, now: i64) {
        let to = self.to.max(now - OPEN);
        let (passed, open) = rows.into_iter().partition(|row| row.minute < to);
        self.keep(passed);
        self.passed = self.passed.split_off(&first_minute(now));
        self.from = self.from.max(first_minute(now));
        (self.open, self.to, self.at) = (open, to, Some(Instant::now()));
    }

    fn keep(&mut self, rows: Vec<ActivityRow>) {
        for row in rows {
            self.passed.entry(row.minute).or_default().push(row);
        }
    }

    fn day(&self, now: i64) -> Day {
        let (first_hour, first_bar) = (first_hour(now), first_bar(now));
        let slots = |first: i64, length: i64, count: usize| -> Vec<MinuteSlot> {
            let slot =
                |at| MinuteSlot { minute: first + at as i64 * length, ..MinuteSlot::default() };
            (0..count).map(slot).collect()
        };
        let mut bars = slots(first_bar, BAR, BARS);
        let mut hours = slots(first_hour, HOUR, HOURS);
        let mut reasons: Vec<ReasonOfDay> = Vec::new();
        for row in self.passed.values().flatten().chain(&self.open) {
            let at = |first: i64, length: i64| {
                usize::try_from((row.minute - first).div_euclid(length)).ok()
            };
            if let Some(bar) = at(first_bar, BAR).and_then(|at| bars.get_mut(at)) {
                bar.add(row);
            }
            let Some(hour) = at(first_hour, HOUR).filter(|at| *at < HOURS) else { continue };
            hours[hour].add(row);
            let Some(reason) = &row.reason else { continue };
            let known = reasons.iter().position(|one| one.reason == *reason);
            let of = known.unwrap_or_else(|| {
                reasons.push(ReasonOfDay { reason: reason.clone(), hours: [0; HOURS] });
                reasons.len() - 1
            });
            reasons[of].hours[hour] += row.attempts;
        }
        reasons.sort_by(|a, b| b.total().cmp(&a.total()).then(a.reason.cmp(&b.reason)));
        let from = if self.to == 0 { now } else { self.from };
        let is_complete = from <= first_minute(now);
        let counted_from = (!is_complete).then(|| time_of(from));
        Day { bars, hours, reasons, last_bar: now.rem_euclid(BAR) + 1, counted_from }
    }
}

impl ReasonOfDay {
    pub fn total(&self) -> u64 {
        self.hours.iter().sum()
    }
}

impl MinuteSlot {
    pub fn add(&mut self, row: &ActivityRow) {
        let of = match row.outcome.as_deref() {
            Some("delivered") => &mut self.delivered,
            Some("permfail") => &mut self.refused,
            Some(_) => &mut self.deferred,
            None => &mut self.open,
        };
        *of += row.attempts;
        if let Some(slowness) = row.slowness {
            self.slowness[slowness] += row.attempts;
        }
    }

    pub fn failed(&self) -> u64 {
        self.deferred + self.refused
    }

    /// The bound in milliseconds within which `percent` of the attempts had ended; `None`: none
    /// has. Slower ones count to the longest bound.
    pub fn ended_within_ms(&self, percent: u64) -> Option<u64> {
        let all: u64 = self.slowness.iter().sum();
        let wanted = (all * percent).div_ceil(100).max(1);
        let mut ended = 0;
        let at = self.slowness.iter().position(|attempts| {
            ended += attempts;
            ended >= wanted
        })?;
        Some(SLOWER_MS[at.min(SLOWER_MS.len() - 1)])
    }
}

/// Where the first hour that is shown begins.
fn first_hour(now: i64) -> i64 {
    now - now.rem_euclid(HOUR) - HOUR * (HOURS as i64 - 1)
}

/// Where the first bar does: up to three bars earlier.
fn first_bar(now: i64) -> i64 {
    now - now.rem_euclid(BAR) - BAR * (BARS as i64 - 1)
}

/// From then on minutes are counted and kept.
fn first_minute(now: i64) -> i64 {
    first_hour(now).min(first_bar(now))
}

fn counted_between(
    ledger: &dyn PagesLedger,
    from: i64,
    to: Option<i64>,
) -> Result<Vec<ActivityRow>, LedgerError> {
    let until = Instant::now() + TIME;
    let pages: &dyn PagesLedger = ledger;
    let first = first_since(pages, time_of(from), until)?;
    // Rows with higher numbers may be a little older than those before them.
    let end = match to {
        Some(to) => first_since(pages, time_of(to + 2 * OPEN), until)?,
        None => i64::MAX,
    };
    let last = time_of(to.unwrap_or(i64::from(u32::MAX)));
    ledger.activity(&(first..end), &(time_of(from)..last), until)
}

pub fn time_of(minute: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(minute.max(0).unsigned_abs() * 60)
}

fn minute_of(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs() / 60).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;
    use onedrop_core::hook::{Call, Hook};
    use onedrop_core::ledger::memory::MemoryLedger;

    /// Says that a count has begun, and has it wait for a word.
    struct CountWaits(Mutex<(Sender<()>, Receiver<()>)>);

    impl Hook<LedgerError> for CountWaits {
        fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
            if call.name == "activity" {
                let ends = self.0.lock().expect("the channel's ends");
                ends.0.send(()).expect("a test");
                // Fails when the test has ended.
                let _ = ends.1.recv();
            }
            Ok(())
        }
    }

    #[test]
    fn a_page_does_not_wait_for_what_another_counts() {
        let (begun, begins) = channel();
        let (go_on, goes_on) = channel();
        let hook = Arc::new(CountWaits(Mutex::new((begun, goes_on))));
        let ledger = MemoryLedger::default().with_hook(hook);
        let activity = Activity::default();
        thread::scope(|scope| {
            let first = scope.spawn(|| activity.day(&ledger));
            begins.recv().expect("a count");
            let meanwhile = activity.day(&ledger).expect("a day");
            assert!(meanwhile.counted_from.is_some(), "nothing is counted yet, and it says so");
            go_on.send(()).expect("a count");
            drop(go_on);
            assert!(first.join().expect("a page").is_ok());
        });
        assert!(activity.day(&ledger).is_ok(), "what is fresh is shown as it is");
    }

    #[test]
    fn a_part_of_the_attempts_has_ended_within_a_bound() {
        let mut slot = MinuteSlot::default();
        assert_eq!(slot.ended_within_ms(50), None);
        let row = |slowness, attempts| ActivityRow {
            outcome: Some("delivered".to_owned()),
            slowness: Some(slowness),
            attempts,
            ..ActivityRow::default()
        };
        slot.add(&row(1, 98));
        slot.add(&row(9, 2));
        assert_eq!((slot.ended_within_ms(50), slot.ended_within_ms(98)), (Some(2), Some(2)));
        assert_eq!(slot.ended_within_ms(99), Some(1000));
        slot.add(&row(SLOWER_MS.len(), 1000));
        assert_eq!(slot.ended_within_ms(99), Some(60_000));
        assert_eq!(slot.delivered, 1100);
    }

    #[test]
    fn the_first_bar_is_counted_and_kept() {
        let ledger = MemoryLedger::default();
        let activity = Activity::default();
        activity.fill(&ledger).expect("a day");
        let day = activity.day(&ledger).expect("a day");
        assert!(activity.counted().from <= day.bars[0].minute, "not counted so far back");
        assert_eq!(day.counted_from, None);
        let now = 28_333_333; // 13 minutes past an hour: the bars begin before the hours
        let mut counted = Counted { from: 0, to: now - 15, ..Counted::default() };
        let row = ActivityRow { minute: first_bar(now), attempts: 3, ..ActivityRow::default() };
        assert!(row.minute < first_hour(now));
        counted.keep(vec![row]);
        counted.take(Vec::new(), now);
        assert_eq!(counted.day(now).bars[0].open, 3, "not kept");
    }

    #[test]
    fn minutes_fall_into_bars_hours_and_reasons() {
        let now = 28_333_333; // 13 minutes past an hour
        let row = |minute, outcome: Option<&str>, attempts| ActivityRow {
            minute,
            outcome: outcome.map(str::to_owned),
            reason: outcome.filter(|one| *one != "delivered").map(|_| "contended".to_owned()),
            slowness: None,
            attempts,
        };
        let mut counted = Counted { from: 0, to: now - 15, ..Counted::default() };
        counted.keep(vec![row(now - 20, Some("delivered"), 7), row(now - 3000, None, 5)]);
        counted.open = vec![row(now, Some("tempfail"), 2), row(now - 1, None, 1)];
        let day = counted.day(now);
        assert_eq!((day.bars.len(), day.hours.len(), day.last_bar), (BARS, HOURS, 14));
        let last = day.bars.last().expect("a bar");
        assert_eq!((last.deferred, last.open, last.delivered), (2, 1, 0));
        assert_eq!(day.bars[BARS - 2].delivered, 7);
        assert_eq!(day.hours[HOURS - 2].delivered, 7);
        assert_eq!(day.hours.iter().map(|hour| hour.open).sum::<u64>(), 1);
        assert_eq!(day.reasons[0].hours[HOURS - 1], 2);
        assert_eq!(day.counted_from, None);
    }
}
