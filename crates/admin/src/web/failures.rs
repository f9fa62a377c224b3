//! Attempts that failed: by reason and hour, and the newest of them.

use askama::Template;

use super::activity::{HOURS, time_of};
use super::chart::Chart;
use super::page::{Head, Html, NotShown, StateMark, When, took};
use super::scan::{self, Bounds, Scanned, WHOLE_PAGE};
use super::{AskedPage, PagesState};
use onedrop_core::ledger::{AttemptLine, FailureFilter, Numbered};

/// Reasons that the table by hour has.
const REASONS: usize = 6;

/// A line of a list.
pub struct FailureRow {
    pub at: When,
    pub mark: StateMark,
    pub line: AttemptLine,
    pub took: String,
}

impl FailureRow {
    pub fn of(line: AttemptLine) -> FailureRow {
        FailureRow {
            at: When::on_record(&line.started_at),
            mark: StateMark::of_outcome(Some(&line.outcome)),
            took: took(line.duration_ms),
            line,
        }
    }
}

/// How often a reason was one.
struct ReasonRow {
    reason: String,
    total: u64,
    last_hour: u64,
    chart: Chart,
}

#[derive(Template)]
#[template(path = "failures.html")]
struct FailuresPage {
    head: Head,
    reason: Option<String>,
    name: Option<String>,
    rows: Vec<FailureRow>,
    next: Option<i64>,
    is_first: bool,
    reasons: Vec<ReasonRow>,
    named: Vec<String>,
    /// Reasons that the table by hour leaves out.
    unnamed: usize,
    hours: Vec<(When, Vec<u64>)>,
    counted_from: Option<When>,
}

pub fn head(site: &PagesState, asked: &AskedPage) -> Head {
    Head { q: asked.q.trim().to_owned(), ..site.head("Failures", "/failures") }
}

pub fn page(site: &PagesState, asked: &AskedPage) -> Result<Html, NotShown> {
    let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    let (reason, name) = (given(&asked.reason), given(&asked.q));
    let filter =
        FailureFilter { reason: reason.as_deref(), name: name.as_deref(), unrecorded: false };
    let found = newest(site, &filter, asked.before, WHOLE_PAGE)?;
    let day = site.activity.day(&*site.ledger)?;
    let reasons = day.reasons.iter().map(|one| {
        let top = one.hours.iter().copied().max().unwrap_or(0).max(1) as f64;
        let columns: Vec<_> =
            one.hours.iter().map(|count| vec![(*count as f64 / top, "failed")]).collect();
        ReasonRow {
            reason: one.reason.clone(),
            total: one.total(),
            last_hour: one.hours[HOURS - 1],
            chart: Chart::of("", String::new(), &columns),
        }
    });
    let most: Vec<_> = day.reasons.iter().take(REASONS).collect();
    let hours = day.hours.iter().enumerate().rev().map(|(at, slot)| {
        (When::hour(time_of(slot.minute)), most.iter().map(|one| one.hours[at]).collect())
    });
    Html::of(&FailuresPage {
        head: head(site, asked),
        reasons: reasons.collect(),
        unnamed: day.reasons.len() - most.len(),
        named: most.iter().map(|one| one.reason.clone()).collect(),
        hours: hours.collect(),
        counted_from: day.counted_from.map(When::of),
        reason,
        name,
        rows: found.rows.into_iter().map(FailureRow::of).collect(),
        next: found.next,
        is_first: asked.before.is_none(),
    })
}

/// The newest failures below a number.
pub fn newest(
    site: &PagesState,
    filter: &FailureFilter<'_>,
    before: Option<i64>,
    bounds: Bounds,
) -> Result<Scanned<AttemptLine>, NotShown> {
    let (ledger, until) = (&*site.ledger, site.until());
    let Some((last, _)) = ledger.last_row(Numbered::Attempt, until)? else {
        return Ok(Scanned::nothing());
    };
    let first = ledger.row_from(Numbered::Attempt, 0, until)?.map_or(last, |(first, _)| first);
    let before = before.unwrap_or(last + 1).min(last + 1);
    let read = |span: &_, limit| ledger.failures(filter, span, limit, until);
    Ok(scan::back((first, before), site.bounded(bounds), read, |line| line.number)?)
}
