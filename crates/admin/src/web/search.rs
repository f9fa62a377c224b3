//! Search: by a name that an index has, or by a part of a sender or subject, which is looked for in
//! one span of messages after another.

use std::time::Duration;

use askama::Template;

use super::failures::{self, FailureRow};
use super::page::{Head, Html, NotShown, StateMark, When};
use super::scan::{self, Bounds, PAGE, Scanned, WHOLE_PAGE};
use super::{AskedPage, PagesState};
use onedrop_core::ledger::{FailureFilter, MessageLine, MessagePart, Numbered};

/// Where attempts are looked for that recorded no message.
const UNRECORDED: Bounds = Bounds { rows: 20, spans: 2, time: Duration::from_millis(500) };

/// A message in the list.
struct FoundRow {
    at: When,
    mark: StateMark,
    line: MessageLine,
}

#[derive(Template)]
#[template(path = "search.html")]
struct SearchPage {
    head: Head,
    rows: Vec<FoundRow>,
    next: Option<i64>,
    /// Nothing may be left out.
    is_whole: bool,
    unrecorded: Vec<FailureRow>,
    more_unrecorded: bool,
}

pub fn head(site: &PagesState, asked: &AskedPage) -> Head {
    Head { q: asked.q.trim().to_owned(), by: asked.by.clone(), ..site.head("Search", "/search") }
}

/// What is looked for in one span of messages after another.
pub fn part<'a>(site: &PagesState, asked: &'a AskedPage) -> Option<MessagePart<'a>> {
    let wanted = asked.q.trim();
    match asked.by.as_str() {
        "sender" => Some(MessagePart::Sender(wanted)),
        "subject" if site.shows_subjects => Some(MessagePart::Subject(wanted)),
        _ => None,
    }
}

pub fn page(site: &PagesState, asked: &AskedPage) -> Result<Html, NotShown> {
    let (wanted, part) = (asked.q.trim(), part(site, asked));
    let found = match part {
        _ if wanted.is_empty() => Scanned::nothing(),
        Some(part) => with_part(site, part, asked.before)?,
        None => named(site, wanted, asked.before)?,
    };
    let is_first = asked.before.is_none();
    let unrecorded = match part {
        None if is_first && !wanted.is_empty() => {
            let filter =
                FailureFilter { name: Some(wanted), unrecorded: true, ..FailureFilter::default() };
            Some(failures::newest(site, &filter, None, UNRECORDED)?)
        }
        _ => None,
    };
    let others = unrecorded.as_ref().map_or(0, |looked| looked.rows.len());
    if let ([one], None, true, 0) = (&found.rows[..], found.next, is_first, others) {
        return Err(NotShown::see(format!("/m/{}", one.number)));
    }
    let rows = found.rows.into_iter().map(|mut line| {
        if !site.shows_subjects {
            line.subject = None;
        }
        let mark = if line.is_open {
            StateMark::waits("not all placed")
        } else {
            StateMark::good("placed")
        };
        FoundRow { at: When::on_record(&line.recorded_at), mark, line }
    });
    let more_unrecorded = unrecorded.as_ref().is_some_and(|looked| looked.next.is_some());
    let unrecorded = unrecorded.map(|looked| looked.rows).unwrap_or_default();
    Html::of(&SearchPage {
        head: head(site, asked),
        rows: rows.collect(),
        next: found.next,
        is_whole: part.is_none(),
        unrecorded: unrecorded.into_iter().map(FailureRow::of).collect(),
        more_unrecorded,
    })
}

fn named(
    site: &PagesState,
    name: &str,
    before: Option<i64>,
) -> Result<Scanned<MessageLine>, NotShown> {
    let before = before.unwrap_or(i64::MAX);
    let mut rows = site.ledger.messages_named(name, before, PAGE + 1, site.until())?;
    let is_more = rows.len() > PAGE as usize;
    rows.truncate(PAGE as usize);
    let next = rows.last().map(|row| row.number).filter(|_| is_more);
    Ok(Scanned { rows, next, cut: None })
}

fn with_part(
    site: &PagesState,
    part: MessagePart<'_>,
    before: Option<i64>,
) -> Result<Scanned<MessageLine>, NotShown> {
    let (ledger, until) = (&*site.ledger, site.until());
    let Some((last, _)) = ledger.last_row(Numbered::Message, until)? else {
        return Ok(Scanned::nothing());
    };
    let first = ledger.row_from(Numbered::Message, 0, until)?.map_or(last, |(first, _)| first);
    let before = before.unwrap_or(last + 1).min(last + 1);
    let read = |span: &_, limit| ledger.messages_with(part, span, limit, until);
    Ok(scan::back((first, before), site.bounded(WHOLE_PAGE), read, |line| line.number)?)
}
