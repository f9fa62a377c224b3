//! Copies that are not placed, and those that want another look, each with what `onedrop verify`
//! will do about it.

use std::time::{Duration, Instant, SystemTime};

use askama::Template;

use super::page::{Head, Html, NotShown, StateMark, When};
use super::scan::{self, PAGE, Scanned, WHOLE_PAGE};
use super::{AskedPage, PagesState};
use crate::status::verify_since;
use onedrop_core::directory::place_and_variant;
use onedrop_core::ledger::{CopyOnRecord, Numbered, Standing, first_since};
use onedrop_core::text;
use onedrop_core::text::shell::word;

/// Copies of messages since then are looked through; older ones are found where they want a look.
const BACK: Duration = Duration::from_secs(48 * 3600);
/// Longest time between the load of a page and the paste of a command: its window is longer by
/// that.
const PASTED_WITHIN: Duration = Duration::from_secs(12 * 3600);
/// Bytes of a Message-ID in a line.
const ID_BYTES: usize = 200;

struct DoubtRow {
    message: i64,
    message_id: String,
    recorded: When,
    account: String,
    mailbox: String,
    variant: String,
    mark: StateMark,
    owner: String,
    epoch: i64,
    will: String,
}

/// A message that alone has more copies than a page: how many are not on it.
struct CutMessage {
    message: i64,
    more: usize,
}

#[derive(Template)]
#[template(path = "doubts.html")]
struct DoubtsPage {
    head: Head,
    unsettled: Vec<DoubtRow>,
    more_unsettled: Option<i64>,
    recent: Vec<DoubtRow>,
    more_recent: Option<i64>,
    cut: Option<CutMessage>,
    is_first: bool,
    /// To be pasted.
    commands: Vec<String>,
}

pub fn head(site: &PagesState) -> Head {
    site.head("Doubts", "/doubts")
}

pub fn page(site: &PagesState, asked: &AskedPage) -> Result<Html, NotShown> {
    let (ledger, until) = (&*site.ledger, site.until());
    // One of the two lists goes on; the other is on the first page alone.
    let is_of_recent = asked.after.is_some();
    let mut unsettled = match is_of_recent {
        true => Vec::new(),
        false => ledger.unsettled_copies(asked.before.unwrap_or(0), PAGE + 1, until)?,
    };
    let is_more = unsettled.len() > PAGE as usize;
    unsettled.truncate(PAGE as usize);
    let more_unsettled = unsettled.last().map(|copy| copy.copy).filter(|_| is_more);
    let recent = match asked.before {
        Some(_) => Scanned::nothing(),
        None => {
            let since = ledger.time().checked_sub(BACK).unwrap_or(SystemTime::UNIX_EPOCH);
            let first = match asked.after {
                Some(after) => after,
                None => first_since(ledger, since, until)?,
            };
            let end = ledger.last_row(Numbered::Message, until)?.map_or(0, |(last, _)| last + 1);
            let read = |span: &_, limit| ledger.unplaced_copies(span, limit, until);
            scan::forth((first, end), site.bounded(WHOLE_PAGE), read, |copy: &CopyOnRecord| {
                copy.message
            })?
        }
    };
    let cut = match recent.cut {
        Some(message) => cut(site, message, recent.rows.len(), until)?,
        None => None,
    };
    let all: Vec<_> = unsettled.iter().chain(&recent.rows).collect();
    let commands = commands(&all, ledger.time());
    let shown = |copy: &CopyOnRecord| unsettled.iter().any(|one| one.copy == copy.copy);
    let recent_rows = recent.rows.iter().filter(|copy| !shown(copy)).map(row).collect();
    Html::of(&DoubtsPage {
        head: head(site),
        recent: recent_rows,
        more_recent: recent.next,
        cut,
        unsettled: unsettled.iter().map(row).collect(),
        more_unsettled,
        is_first: asked.before.is_none() && asked.after.is_none(),
        commands,
    })
}

/// What looks at these copies, the oldest among them, and what writes those that are left to it.
fn commands(copies: &[&CopyOnRecord], now: SystemTime) -> Vec<String> {
    let is_left = |copy: &&&CopyOnRecord| copy.is_left_to_settle() || copy.kept.is_some();
    let verified = copies.iter().filter(|copy| !is_left(copy)).map(|copy| copy.recorded_at);
    let oldest = verified.min().and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
    let mut commands = vec![verify_command(oldest, None)];
    if copies.iter().any(|copy| is_left(&copy)) {
        commands.push("onedrop settle".to_owned());
    }
    commands
}

/// Looks at copies of messages that were recorded up to `ago` ago, of one account or of all.
pub fn verify_command(ago: Duration, account: Option<&str>) -> String {
    let since = verify_since(ago.saturating_add(PASTED_WITHIN));
    let mut command = format!("onedrop verify --since {since} --repair");
    if let Some(account) = account {
        command += &format!(" --account={}", word(account));
    }
    command
}

/// How many copies of the message are not placed, beside those that are shown.
fn cut(
    site: &PagesState,
    message: i64,
    shown: usize,
    until: Instant,
) -> Result<Option<CutMessage>, NotShown> {
    let Some(trace) = site.ledger.story(message, until)? else { return Ok(None) };
    let open = trace.copies.iter().filter(|copy| copy.placed_at.is_none()).count();
    let more = open.saturating_sub(shown);
    Ok((more > 0).then_some(CutMessage { message, more }))
}

fn row(copy: &CopyOnRecord) -> DoubtRow {
    let id = copy.identity.message_id.as_deref().unwrap_or(b"(no Message-ID)");
    let (place, variant) = place_and_variant(&copy.destination.mailbox);
    DoubtRow {
        message: copy.message,
        message_id: text::of_bytes(id, ID_BYTES),
        recorded: When::of(copy.recorded_at),
        account: copy.destination.account.clone(),
        mailbox: place.to_owned(),
        variant,
        mark: mark(copy),
        owner: copy.owner.clone(),
        epoch: copy.epoch,
        will: will(copy),
    }
}

fn mark(copy: &CopyOnRecord) -> StateMark {
    match copy.standing {
        Standing::Placed { .. } if copy.may_be_double => StateMark::doubt("placed, maybe twice"),
        Standing::Placed { .. } => StateMark::good("placed"),
        Standing::Leased => StateMark::waits("leased"),
        Standing::InDoubt { .. } => StateMark::doubt("in doubt"),
        Standing::Free if copy.due.is_some() => StateMark::waits("due"),
        Standing::Free => StateMark::bad("not delivered"),
    }
}

/// A sentence: what `onedrop verify --repair` does.
fn will(copy: &CopyOnRecord) -> String {
    let text = match (&copy.standing, &copy.kept) {
        _ if copy.is_left_to_settle() => {
            "leaves it to onedrop settle, which writes it unless the sender's mail program has"
        }
        (Standing::Placed { .. }, _) => {
            "looks a second time, and takes out what is too many of our own"
        }
        (Standing::Leased, _) => "waits until the lease has ended",
        (Standing::InDoubt { .. } | Standing::Free, Some(_)) => {
            "looks in the mailbox, and writes it from the bytes that are kept if it is not there"
        }
        (Standing::InDoubt { .. }, None) => {
            "looks in the mailbox and records what is there; if nothing is, the next attempt of \
             Postfix writes it"
        }
        (Standing::Free, None) => "tells of it; the next attempt of Postfix writes it",
    };
    text.to_owned()
}
