//! One message's story: what happened to it in one line of time, its copies, attempts and hosts.
//! Of very many copies those that are not placed come first, and a bounded number is shown.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use askama::Template;

use super::PagesState;
use super::doubts::verify_command;
use super::page::{Head, Html, NotShown, StateMark, When, took};
use onedrop_core::directory::place_and_variant;
use onedrop_core::ledger::{HANDED_OVER, Trace, TraceAttempt, TraceCopy};
use onedrop_core::text::shell::operand;

/// Copies that are shown.
const COPIES: usize = 200;
/// Most accounts to which a proposed `onedrop verify` is limited; for more it looks at all.
const ACCOUNTS: usize = 3;

/// A step of the story.
struct StoryEvent {
    at: When,
    mark: StateMark,
    text: String,
    details: Vec<String>,
}

/// A copy as it stands.
struct CopyPart {
    copy: TraceCopy,
    mailbox: String,
    variant: String,
    mark: StateMark,
    placed: Option<When>,
    until: Option<When>,
    remarks: Vec<&'static str>,
    /// Its mailbox is not known.
    is_handed_over: bool,
    /// What happens next, where it is not placed.
    next: &'static str,
}

/// How many are not shown, and what shows them.
struct MoreCopies {
    count: usize,
    command: Option<String>,
}

#[derive(Template)]
#[template(path = "story.html")]
struct StoryPage {
    head: Head,
    trace: Trace,
    recorded: When,
    date: Option<When>,
    subject: Option<String>,
    events: Vec<StoryEvent>,
    copies: Vec<CopyPart>,
    more_copies: Option<MoreCopies>,
    hosts: Vec<String>,
    /// To be pasted.
    commands: Vec<String>,
}

pub fn page(site: &PagesState, number: &str) -> Result<Html, NotShown> {
    let number: i64 = number.parse().map_err(|_| NotShown::nowhere())?;
    let mut trace = site.ledger.story(number, site.until())?.ok_or_else(NotShown::nowhere)?;
    let commands = commands(&trace, age(site, &trace));
    // In their order but for that.
    trace.copies.sort_by_key(|copy| !is_open(copy));
    let more = trace.copies.len().saturating_sub(COPIES);
    trace.copies.truncate(COPIES);
    let mut hosts: Vec<String> = trace.attempts.iter().map(|one| one.host.clone()).collect();
    hosts.sort();
    hosts.dedup();
    let title = trace.message_id.clone().unwrap_or_else(|| "(no Message-ID)".to_owned());
    Html::of(&StoryPage {
        head: site.head(&title, ""),
        recorded: When::on_record(&trace.recorded_at),
        date: trace.date.as_deref().map(When::on_record),
        subject: trace.subject.clone().filter(|_| site.shows_subjects),
        events: events(&trace),
        copies: trace.copies.iter().map(copy).collect(),
        more_copies: (more > 0).then(|| MoreCopies { count: more, command: trace_command(&trace) }),
        hosts,
        commands,
        trace,
    })
}

/// In the order in which they were, whatever a clock showed meanwhile.
fn events(trace: &Trace) -> Vec<StoryEvent> {
    let mut events = vec![(
        When::on_record(&trace.recorded_at),
        StoryEvent {
            at: When::on_record(&trace.recorded_at),
            mark: StateMark::good("recorded"),
            text: "the message is on record".to_owned(),
            details: Vec::new(),
        },
    )];
    for attempt in &trace.attempts {
        let event = of_attempt(attempt);
        events.push((event.at.clone(), event));
    }
    for copy in &trace.copies {
        if let Some(event) = of_copy(copy) {
            events.push((event.at.clone(), event));
        }
    }
    events.sort_by_key(|(at, _)| at.time);
    events.into_iter().map(|(_, event)| event).collect()
}

fn of_attempt(attempt: &TraceAttempt) -> StoryEvent {
    let mark = StateMark::of_outcome(attempt.outcome.as_deref());
    let mut text = format!("attempt by {} pid {}", attempt.host, attempt.pid);
    if !attempt.recipient.is_empty() {
        text += &format!(" for {}", attempt.recipient);
    }
    if attempt.duration_ms.is_some() {
        text += &format!(", {}", took(attempt.duration_ms));
    }
    let sender = if attempt.sender.is_empty() { "<>" } else { &attempt.sender };
    let mut from = format!("from {sender}");
    if !attempt.queue_id.is_empty() {
        from += &format!(", queue id {}", attempt.queue_id);
    }
    let mut details = vec![from];
    let said =
        attempt.text.iter().flat_map(|text| text.split("; ")).filter(|text| !text.is_empty());
    details.extend(said.map(|text| match &attempt.status {
        Some(status) => format!("{status} {text}"),
        None => text.to_owned(),
    }));
    let reason =
        attempt.reason.as_deref().filter(|_| attempt.outcome.as_deref() != Some("delivered"));
    details.extend(reason.map(|reason| format!("reason: {reason}")));
    StoryEvent { at: When::on_record(&attempt.started_at), mark, text, details }
}

fn of_copy(copy: &TraceCopy) -> Option<StoryEvent> {
    let (mailbox, variant) = place_and_variant(&copy.mailbox);
    let whose = format!("{}{variant}", copy.account);
    let place = format!("in {mailbox} of {whose}");
    let receipt = copy.receipt.as_deref().unwrap_or_default();
    let time = copy.placed_at.as_ref().or(copy.leased_until.as_ref()).or(copy.due_at.as_ref())?;
    let (mark, text) = match copy.state.as_str() {
        "placed" if copy.found_by_look => {
            (StateMark::good("found"), format!("{place} as {receipt}, by the look after a doubt"))
        }
        "placed" if copy.by_sender => (
            StateMark::good("found"),
            format!("{place}: the sender's mail program had saved its own"),
        ),
        "placed" => (StateMark::good("placed"), format!("{place} as {receipt}")),
        HANDED_OVER if copy.found_by_look => (
            StateMark::good("found"),
            format!("for {whose} as {receipt}, by the look after a doubt"),
        ),
        HANDED_OVER => (
            StateMark::good(HANDED_OVER),
            format!("for {whose} as {receipt}; the mail server's filters decide where"),
        ),
        "elsewhere" => (StateMark::good("elsewhere"), format!("not {place}: {receipt}")),
        "leased" => (StateMark::waits("leased"), format!("{place} to {} until then", copy.owner)),
        "in doubt" => {
            let whose = if copy.owner.is_empty() { "another" } else { &copy.owner };
            (
                StateMark::doubt("in doubt"),
                format!("{place}: the lease of {whose} ended without an end"),
            )
        }
        "due" => (StateMark::waits("due"), format!("{place}, by onedrop settle")),
        _ => return None,
    };
    let epoch = match copy.epoch {
        0 | 1 => Vec::new(),
        epoch => vec![format!("leased {epoch} times")],
    };
    Some(StoryEvent { at: When::on_record(time), mark, text, details: epoch })
}

fn copy(copy: &TraceCopy) -> CopyPart {
    let (mark, next) = match copy.state.as_str() {
        "placed" => (StateMark::good("placed"), ""),
        HANDED_OVER => (StateMark::good(HANDED_OVER), ""),
        "elsewhere" => (StateMark::good("elsewhere"), "its mailbox was not there: INBOX has it"),
        "leased" => {
            (StateMark::waits("leased"), "a delivery is at work, or died: then it is in doubt")
        }
        "in doubt" => {
            (StateMark::doubt("in doubt"), "the next attempt, or verify, looks before it writes")
        }
        "due" => (StateMark::waits("due"), "onedrop settle writes it when its time has come"),
        _ => (StateMark::bad("not delivered"), "the next attempt of Postfix writes it"),
    };
    let filters = copy.state == HANDED_OVER && !copy.found_by_look;
    let remarks = [
        (filters, "the mail server has it: its filters decide in which mailbox it lies"),
        (copy.found_by_look, "found in the mailbox after a doubt"),
        (copy.by_sender, "saved by the sender's own mail program"),
        (copy.nul_replaced, "NUL bytes stored as 0x80"),
        (copy.wrapped, "attached to a message of ours, because its header is damaged"),
        (copy.kept.is_some(), "its bytes are kept until it is placed"),
    ];
    let (mailbox, variant) = place_and_variant(&copy.mailbox);
    CopyPart {
        mailbox: mailbox.to_owned(),
        variant,
        mark,
        next,
        placed: copy.placed_at.as_deref().map(When::on_record),
        until: copy.leased_until.as_deref().map(When::on_record),
        remarks: remarks.into_iter().filter(|(is, _)| *is).map(|(_, text)| text).collect(),
        is_handed_over: copy.state == HANDED_OVER,
        copy: copy.clone(),
    }
}

fn is_open(copy: &TraceCopy) -> bool {
    !["placed", HANDED_OVER, "elsewhere"].contains(&copy.state.as_str())
}

/// How long ago the message was recorded, by the ledger's clock.
fn age(site: &PagesState, trace: &Trace) -> Duration {
    let recorded = When::on_record(&trace.recorded_at).time.map(SystemTime::from);
    recorded.and_then(|at| site.ledger.time().duration_since(at).ok()).unwrap_or_default()
}

/// By its Message-ID, or the queue id of an attempt.
fn trace_command(trace: &Trace) -> Option<String> {
    let mut queue_ids = trace.attempts.iter().map(|one| &one.queue_id);
    let name = trace.message_id.as_ref().or_else(|| queue_ids.find(|id| !id.is_empty()))?;
    Some(format!("onedrop trace {}", operand(name)))
}

/// What is due is for `onedrop settle` alone; what is kept because a Sent did not take it, it
/// writes as soon as that does.
fn is_left_to_settle(copy: &TraceCopy) -> bool {
    copy.by_sender || copy.due_at.is_some() || copy.kept.is_some()
}

fn commands(trace: &Trace, age: Duration) -> Vec<String> {
    let mut commands = Vec::new();
    commands.extend(trace.message_id.as_ref().and_then(|_| trace_command(trace)));
    let (left, open): (Vec<_>, Vec<_>) =
        trace.copies.iter().filter(|copy| is_open(copy)).partition(|copy| is_left_to_settle(copy));
    let accounts: BTreeSet<&str> = open.iter().map(|copy| &*copy.account).collect();
    match accounts.len() {
        0 => {}
        1..=ACCOUNTS => {
            commands.extend(accounts.into_iter().map(|one| verify_command(age, Some(one))));
        }
        _ => commands.push(verify_command(age, None)),
    }
    if !left.is_empty() {
        commands.push("onedrop settle".to_owned());
    }
    commands
}
