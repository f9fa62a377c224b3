//! What is on record of a day of jobs, and what their commands wrote, held against the times that
//! their schedules stand for, which are found here by looking at every minute.

use std::collections::{BTreeMap, BTreeSet};

/// A schedule: as crontab(5) has it, and as sets of minutes and hours.
#[derive(Debug, Clone)]
pub struct Times {
    pub text: String,
    pub minutes: Vec<i64>,
    pub hours: Vec<i64>,
}

impl Times {
    /// All in `from..=to`, seconds since 1970 (UTC).
    pub fn between(&self, from: i64, to: i64) -> BTreeSet<i64> {
        let whole_minutes = (from.div_euclid(60)..=to.div_euclid(60)).map(|minute| minute * 60);
        let is_one = |time: &i64| {
            (from..=to).contains(time)
                && self.minutes.contains(&time.div_euclid(60).rem_euclid(60))
                && self.hours.contains(&time.div_euclid(3600).rem_euclid(24))
        };
        whole_minutes.filter(is_one).collect()
    }
}

/// A row of `onedrop_job_run`; times in seconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    pub job: String,
    pub due: i64,
    pub try_no: i64,
    /// `None`: it has not ended.
    pub outcome: Option<String>,
    pub last_due: i64,
    pub occurrences: i64,
}

impl RunRow {
    fn is(&self, outcome: &str) -> bool {
        self.outcome.as_deref() == Some(outcome)
    }

    fn is_skip(&self) -> bool {
        self.outcome.as_deref().is_some_and(|outcome| outcome.starts_with("skipped_"))
    }
}

/// How a day went.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DayTally {
    /// Times of all schedules, of which each...
    pub times: usize,
    /// ... has succeeded once,
    pub ok: usize,
    /// was skipped with a reason,
    pub skipped: usize,
    /// or has failed and was given up for a newer one.
    pub given_up: usize,
    pub tries: usize,
}

/// Judges the rows of one job, in the order of the record. `times` are all that there are between
/// its first sight and the moment when the record was read; the rows must have each up to `until`.
///
/// # Errors
/// What does not agree.
pub fn judged_rows(
    rows: &[&RunRow],
    times: &BTreeSet<i64>,
    until: i64,
    catches_up: bool,
) -> Result<DayTally, String> {
    let (mut tally, mut told) = (DayTally::default(), BTreeMap::<i64, Vec<&RunRow>>::new());
    for row in rows {
        let stands_for: Vec<i64> = times.range(row.due..=row.last_due).copied().collect();
        let is_one =
            stands_for.first() == Some(&row.due) && stands_for.last() == Some(&row.last_due);
        if !is_one || stands_for.len() as i64 != row.occurrences {
            return Err(format!("{row:?} stands for {stands_for:?}"));
        }
        for time in stands_for {
            told.entry(time).or_default().push(row);
        }
    }
    for time in times.range(..=until) {
        let rows = told.get(time).map_or(&[][..], Vec::as_slice);
        let count = |wanted: fn(&RunRow) -> bool| rows.iter().filter(|row| wanted(row)).count();
        let (ok, skips) = (count(|row| row.is("ok")), count(RunRow::is_skip));
        let tries: Vec<i64> =
            rows.iter().filter(|row| !row.is_skip()).map(|row| row.try_no).collect();
        let in_order = tries.iter().copied().eq(1..=tries.len() as i64);
        // What comes after a success, or after a skip, is one too many.
        let ends_well = ok == 0 || rows.last().is_some_and(|row| row.is("ok"));
        match (ok, skips, rows.len()) {
            _ if !in_order || !ends_well => return Err(format!("{time}: {rows:?}")),
            (1, 0, _) => tally.ok += 1,
            (0, 1, _) => tally.skipped += 1,
            (0, 0, 1..) if !catches_up => tally.given_up += 1,
            _ => return Err(format!("{time} has {rows:?}")),
        }
        tally.times += 1;
        tally.tries += tries.len();
    }
    Ok(tally)
}

/// Judges what the commands wrote, `JOB DUE TRY WHAT`, in the order of time: one at a time of a
/// job, each try once, each that is on record as a success to its end, none that is not on record.
pub fn judged_journal(journal: &str, rows: &[RunRow]) -> Result<usize, String> {
    type Run<'a> = (&'a str, i64, i64);
    let (mut running, mut began) = (BTreeMap::<&str, Run<'_>>::new(), BTreeSet::new());
    let mut done = BTreeSet::new();
    for (at, line) in journal.lines().enumerate() {
        let wrong = |why: &str| format!("line {}: {line}: {why}", at + 1);
        let words: Vec<&str> = line.split(' ').collect();
        let [job, due, try_no, what] = words[..] else { return Err(wrong("is cut")) };
        let number = |text: &str| text.parse::<i64>().map_err(|_| wrong("is no number"));
        let run = (job, number(due)?, number(try_no)?);
        match what {
            "began" if !began.insert(run) => return Err(wrong("began before")),
            "began" => drop(running.insert(job, run)),
            _ if running.get(job) != Some(&run) => return Err(wrong("another one runs")),
            "done" => drop(done.insert(run)),
            "failed" => {}
            _ => return Err(wrong("says nothing")),
        }
    }
    let on_record: BTreeSet<Run<'_>> =
        rows.iter().map(|row| (&*row.job, row.due, row.try_no)).collect();
    if let Some(run) = began.iter().find(|run| !on_record.contains(run)) {
        return Err(format!("{run:?} is not on record"));
    }
    let succeeded = rows.iter().filter(|row| row.is("ok"));
    match { succeeded }.find(|row| !done.contains(&(&*row.job, row.due, row.try_no))) {
        Some(row) => Err(format!("{row:?} did not come to its end")),
        None => Ok(began.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(due: i64, try_no: i64, outcome: &str, last_due: i64, occurrences: i64) -> RunRow {
        let outcome = Some(outcome.to_owned()).filter(|text| !text.is_empty());
        RunRow { job: "j".to_owned(), due, try_no, outcome, last_due, occurrences }
    }

    #[test]
    fn the_minutes_of_a_schedule_are_found() {
        let times = Times { text: String::new(), minutes: vec![5, 30], hours: vec![1, 2] };
        let found: Vec<i64> = times.between(86_400, 86_400 + 7230).into_iter().collect();
        assert_eq!(found, [86_400 + 3900, 86_400 + 5400]);
    }

    #[test]
    fn what_is_missing_or_too_much_in_a_record_is_seen() {
        let times: BTreeSet<i64> = [60, 120, 180, 240].into();
        let good = [
            row(60, 1, "crashed", 60, 1),
            row(60, 2, "ok", 60, 1),
            row(120, 1, "skipped_missed", 180, 2),
            row(240, 1, "ok", 240, 1),
        ];
        let judge = |rows: &[RunRow], catches_up| {
            judged_rows(&rows.iter().collect::<Vec<_>>(), &times, 240, catches_up)
        };
        let tally = DayTally { times: 4, ok: 2, skipped: 2, given_up: 0, tries: 3 };
        assert_eq!(judge(&good, true), Ok(tally));
        assert!(judge(&good[..3], true).is_err(), "a time without a row");
        assert!(judge(&good[1..], true).is_err(), "a second try without a first");
        let with = |more: RunRow| [&good[..], &[more]].concat();
        for more in [
            row(60, 3, "ok", 60, 1),
            row(60, 3, "failed", 60, 1),
            row(240, 2, "skipped_missed", 240, 1),
            row(180, 1, "ok", 180, 1),
            row(200, 1, "ok", 200, 1),
        ] {
            assert!(judge(&with(more.clone()), true).is_err(), "{more:?}");
        }
        let given_up = [&good[..3], &[row(240, 1, "failed", 240, 1)]].concat();
        assert!(judge(&given_up, false).is_ok() && judge(&given_up, true).is_err());
    }

    #[test]
    fn commands_that_run_twice_or_unknown_are_seen() {
        let rows = [row(60, 1, "crashed", 60, 1), row(60, 2, "ok", 60, 1)];
        let good = "j 60 1 began\nj 60 2 began\nj 60 2 done\n";
        assert_eq!(judged_journal(good, &rows), Ok(2));
        for more in ["j 60 1 done\n", "j 60 2 began\n", "j 60 3 began\n", "j 60 3"] {
            assert!(judged_journal(&format!("{good}{more}"), &rows).is_err(), "{more}");
        }
        assert!(judged_journal("j 60 1 began\nj 60 2 began\n", &rows).is_err(), "no end");
    }
}
