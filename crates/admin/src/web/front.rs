//! The front page: search, how the last day went, the last failures.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;

use super::PagesState;
use super::activity::{BAR, Day, MinuteSlot, time_of};
use super::chart::Chart;
use super::failures::{self, FailureRow};
use super::findings;
use super::page::{Head, Html, NotShown, StateMark, When, took};
use super::scan::Bounds;
use crate::status::{StatusFinding, StatusLevel};
use onedrop_core::ledger::{FailureFilter, SLOWER_MS};

/// Failures that are shown, of the newest attempts.
const FAILURES: Bounds = Bounds { rows: 20, spans: 3, time: Duration::from_millis(300) };

#[derive(Template)]
#[template(path = "front.html")]
struct FrontPage {
    head: Head,
    findings: Vec<FindingRow>,
    found_at: When,
    deliveries: Chart,
    times: Chart,
    from: When,
    hours: Vec<HourRow>,
    counted_from: Option<When>,
    failures: Vec<FailureRow>,
}

/// What is so, and the command that comes next.
struct FindingRow {
    mark: StateMark,
    finding: StatusFinding,
}

impl FindingRow {
    fn of(finding: StatusFinding) -> FindingRow {
        let mark = match finding.level {
            StatusLevel::Ok => StateMark::good("ok"),
            StatusLevel::Attention => StateMark { shape: "!", ..StateMark::bad("attention") },
            StatusLevel::Failed => StateMark::bad("failed"),
        };
        FindingRow { mark, finding }
    }
}

/// A line of the table below the charts.
struct HourRow {
    hour: When,
    delivered: u64,
    deferred: u64,
    refused: u64,
    open: u64,
    half: String,
    most: String,
}

pub fn page(site: &Arc<PagesState>) -> Result<Html, NotShown> {
    let day = site.activity.day(&*site.ledger)?;
    let kept = findings::of(site);
    let found = failures::newest(site, &FailureFilter::default(), None, FAILURES)?;
    let hours = day.hours.iter().rev().map(|slot| HourRow {
        hour: When::hour(time_of(slot.minute)),
        delivered: slot.delivered,
        deferred: slot.deferred,
        refused: slot.refused,
        open: slot.open,
        half: within(slot, 50),
        most: within(slot, 99),
    });
    let hours = hours.collect();
    Html::of(&FrontPage {
        head: site.head("Now", "/"),
        findings: kept.findings.into_iter().map(FindingRow::of).collect(),
        found_at: When::of(kept.at),
        deliveries: deliveries(&day),
        times: times(&day),
        from: When::of(time_of(day.bars.first().map_or(0, |bar| bar.minute))),
        hours,
        counted_from: day.counted_from.map(When::of),
        failures: found.rows.into_iter().map(FailureRow::of).collect(),
    })
}

/// `50 ms`, or what is more than the last bound.
fn within(slot: &MinuteSlot, percent: u64) -> String {
    let most = SLOWER_MS[SLOWER_MS.len() - 1];
    match slot.ended_within_ms(percent) {
        None => "\u{2013}".to_owned(),
        Some(bound) if bound == most => format!("more than {}", took(Some(20_000))),
        Some(bound) => took(i64::try_from(bound).ok()),
    }
}

/// The same within a sentence: `50 ms or less`.
fn within_told(slot: &MinuteSlot, percent: u64) -> String {
    let is_bounded = slot.ended_within_ms(percent) != SLOWER_MS.last().copied();
    within(slot, percent) + if is_bounded { " or less" } else { "" }
}

fn deliveries(day: &Day) -> Chart {
    let last = day.bars.len().saturating_sub(1);
    let minutes = |at| if at == last { day.last_bar } else { BAR } as f64;
    let rate = |at: usize, attempts: u64| attempts as f64 / minutes(at);
    let all = |(at, bar): (usize, &MinuteSlot)| rate(at, bar.delivered + bar.failed() + bar.open);
    let top = day.bars.iter().enumerate().map(all).fold(0.0, f64::max);
    let columns: Vec<_> = day
        .bars
        .iter()
        .enumerate()
        .map(|(at, bar)| {
            let part = |attempts| if top > 0.0 { rate(at, attempts) / top } else { 0.0 };
            vec![
                (part(bar.delivered), "delivered"),
                (part(bar.failed()), "failed"),
                (part(bar.open), "open"),
            ]
        })
        .collect();
    let now = day.bars.last().map_or(0.0, |bar| rate(last, bar.delivered));
    let title = format!(
        "Attempts a minute, at most {top:.1}; {now:.1} delivered a minute in the last quarter of \
         an hour."
    );
    Chart::of("deliveries", title, &columns)
}

/// Each bound is a step: times range over five powers of ten.
fn times(day: &Day) -> Chart {
    let height = |slot: &MinuteSlot, percent| {
        let bound = slot.ended_within_ms(percent)?;
        let at = SLOWER_MS.iter().position(|one| *one == bound)?;
        Some((at + 1) as f64 / SLOWER_MS.len() as f64)
    };
    let columns: Vec<_> = day
        .bars
        .iter()
        .map(|bar| {
            let half = height(bar, 50).unwrap_or(0.0);
            let most = height(bar, 99).unwrap_or(0.0);
            vec![(half, "half"), (most - half, "most")]
        })
        .collect();
    let now = day.bars.iter().rev().find(|bar| bar.ended_within_ms(50).is_some());
    let title = match now {
        None => "Time that attempts took: none ended in the last day.".to_owned(),
        Some(bar) => format!(
            "Time that attempts took. Lately half of them: {}; 99\u{a0}%: {}.",
            within_told(bar, 50),
            within_told(bar, 99)
        ),
    };
    Chart::of("times", title, &columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onedrop_core::ledger::ActivityRow;

    #[test]
    fn a_time_without_a_bound_is_told_as_more() {
        let last = SLOWER_MS.len() - 1;
        for (slowness, says) in [
            (1, "half of them: 2 ms or less; 99\u{a0}%: 2 ms or less."),
            (last, "half of them: more than 20.0 s; 99\u{a0}%: more than 20.0 s."),
            (last + 1, "half of them: more than 20.0 s; 99\u{a0}%: more than 20.0 s."),
        ] {
            let mut slot = MinuteSlot::default();
            slot.add(&ActivityRow {
                slowness: Some(slowness),
                attempts: 1,
                ..ActivityRow::default()
            });
            let title = times(&Day { bars: vec![slot], ..Day::default() }).title;
            assert!(title.ends_with(says), "{title}");
        }
    }
}
