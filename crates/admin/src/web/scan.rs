//! Scans rows that no index has by what is asked for: a span of numbers at a time, until a page is
//! full, all is seen, or enough was scanned; the next page goes on from there.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::PagesState;
use onedrop_core::ledger::LedgerError;

/// Numbers of rows that one question scans.
pub const SPAN: i64 = 20_000;

/// Rows of a page.
pub const PAGE: u32 = 50;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned<T> {
    pub rows: Vec<T>,
    /// Below this number (going back), or from it on, there may be more.
    pub next: Option<i64>,
    /// This number alone fills the page, and may have more rows, which no page has.
    pub cut: Option<i64>,
}

impl<T> Scanned<T> {
    pub fn nothing() -> Scanned<T> {
        Scanned { rows: Vec::new(), next: None, cut: None }
    }
}

/// How much is scanned.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub rows: u32,
    pub spans: u32,
    pub time: Duration,
}

/// Of a page that does nothing else.
pub const WHOLE_PAGE: Bounds = Bounds { rows: PAGE, spans: 50, time: Duration::from_millis(1000) };

impl PagesState {
    /// While others wait for their turn, one span is enough.
    pub(super) fn bounded(&self, bounds: Bounds) -> Bounds {
        if self.is_asked_much() { Bounds { spans: 1, ..bounds } } else { bounds }
    }
}

impl Bounds {
    fn is_over(&self, spans: u32, began: Instant) -> bool {
        spans >= self.spans || began.elapsed() >= self.time
    }
}

/// From below `before` down to `first`, the newest rows first. `read` gets a span and how many rows
/// are wanted; `number` is a row's.
pub fn back<T>(
    (first, before): (i64, i64),
    bounds: Bounds,
    mut read: impl FnMut(&Range<i64>, u32) -> Result<Vec<T>, LedgerError>,
    number: impl Fn(&T) -> i64,
) -> Result<Scanned<T>, LedgerError> {
    let (began, mut rows, mut end, mut spans) = (Instant::now(), Vec::new(), before, 0);
    while end > first {
        let left = bounds.rows - rows.len() as u32;
        if left == 0 || bounds.is_over(spans, began) {
            return Ok(Scanned { rows, next: Some(end), cut: None });
        }
        let span = (end - SPAN).max(first)..end;
        let found = read(&span, left)?;
        end = match found.last() {
            Some(last) if found.len() as u32 == left => number(last),
            _ => span.start,
        };
        rows.extend(found);
        spans += 1;
    }
    Ok(Scanned { rows, next: None, cut: None })
}

/// From `from` up to before `end`, the oldest rows first; several rows may share a number, and
/// those of one number come together.
pub fn forth<T>(
    (from, end): (i64, i64),
    bounds: Bounds,
    mut read: impl FnMut(&Range<i64>, u32) -> Result<Vec<T>, LedgerError>,
    number: impl Fn(&T) -> i64,
) -> Result<Scanned<T>, LedgerError> {
    let (began, mut rows, mut start, mut spans) = (Instant::now(), Vec::new(), from, 0);
    while start < end {
        let left = bounds.rows.saturating_sub(rows.len() as u32);
        if left == 0 || bounds.is_over(spans, began) {
            return Ok(Scanned { rows, next: Some(start), cut: None });
        }
        let span = start..(start + SPAN).min(end);
        let mut found = read(&span, left)?;
        start = span.end;
        if found.len() as u32 == left
            && let Some(last) = found.last().map(&number)
        {
            // There may be more of the last number: the next page has all of them, or as many as
            // it has room for.
            let whole = found.iter().position(|row| number(row) == last).unwrap_or(0);
            let is_full = whole == 0 && rows.is_empty();
            if !is_full {
                found.truncate(whole);
            }
            rows.extend(found);
            let (next, cut) = if is_full { (last + 1, Some(last)) } else { (last, None) };
            return Ok(Scanned { rows, next: Some(next), cut });
        }
        rows.extend(found);
        spans += 1;
    }
    Ok(Scanned { rows, next: None, cut: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPLE: Bounds = Bounds { rows: 3, spans: 50, time: Duration::from_secs(60) };

    #[test]
    fn going_back_page_by_page_shows_every_row_once() {
        let all: Vec<i64> = vec![1, 2, 3, 50_000, 50_001, 70_000, 99_999];
        let read = |span: &Range<i64>, limit: u32| {
            let rows = all.iter().rev().filter(|row| span.contains(row));
            Ok(rows.take(limit as usize).copied().collect::<Vec<i64>>())
        };
        let (mut seen, mut before) = (Vec::new(), 100_000);
        for _ in 0..10 {
            let scanned = back((0, before), AMPLE, read, |row| *row).expect("rows");
            assert!(scanned.rows.len() <= 3);
            seen.extend(scanned.rows);
            let Some(next) = scanned.next else { break };
            before = next;
        }
        assert_eq!(seen, all.into_iter().rev().collect::<Vec<_>>());
    }

    #[test]
    fn what_was_not_scanned_is_left_for_the_next_page() {
        let bounds = Bounds { spans: 2, ..AMPLE };
        let scanned = back((0, 100_000), bounds, |_, _| Ok(Vec::<i64>::new()), |row| *row);
        assert_eq!(scanned.expect("none"), Scanned { rows: vec![], next: Some(60_000), cut: None });
        let scanned = forth((0, 100_000), bounds, |_, _| Ok(Vec::<i64>::new()), |row| *row);
        assert_eq!(scanned.expect("none"), Scanned { rows: vec![], next: Some(40_000), cut: None });
    }

    #[test]
    fn rows_of_one_number_are_not_torn_apart() {
        // The last two are in another span.
        let all: Vec<(i64, i64)> =
            vec![(1, 1), (2, 2), (2, 3), (5, 4), (5, 5), (5, 6), (5, 7), (9, 8), (30_000, 9)];
        let read = |span: &Range<i64>, limit: u32| {
            let rows = all.iter().filter(|row| span.contains(&row.0));
            Ok(rows.take(limit as usize).copied().collect::<Vec<_>>())
        };
        let (mut pages, mut from) = (Vec::new(), 0);
        for _ in 0..10 {
            let scanned = forth((from, 50_000), AMPLE, read, |row| row.0).expect("rows");
            pages.push((scanned.rows, scanned.cut));
            let Some(next) = scanned.next else { break };
            from = next;
        }
        // Of a number with more rows than a page has, a page's worth is shown, and the rest is
        // mentioned.
        let page = |rows: Range<usize>, cut| (all[rows].to_vec(), cut);
        let expected = [page(0..1, None), page(1..3, None), page(3..6, Some(5)), page(7..9, None)];
        assert_eq!(pages, expected);
    }
}
