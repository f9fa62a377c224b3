//! `onedrop trace`: what is on record about a message, for people and as JSON.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::{Adapters, Said, TraceArgs};
use crate::config::Loaded;
use crate::directory::Known;
use crate::exit::Verdict;
use crate::ledger::{Trace, TraceAttempt, TraceCopy, TraceFilter};
use crate::routing::Routing;

const TIME: Duration = Duration::from_secs(60);

pub(super) fn run(args: &TraceArgs, loaded: &Loaded, adapters: Adapters) -> Result<Said, String> {
    let mut ledger =
        (adapters.open_ledger)(loaded, Instant::now() + TIME).map_err(|error| format!("ledger: {error}"))?;
    let mut find =
        |wanted: &str| ledger.trace(&TraceFilter::of(wanted), args.limit).map_err(|error| format!("ledger: {error}"));
    let mut traces = find(&args.wanted)?;
    // An address that was delivered to under another form: its account has the copies.
    if traces.is_empty()
        && let Known::Account(account) = Routing::new(&loaded.config).known(&args.wanted)
    {
        traces = find(&account)?;
    }
    let out = match args.json {
        true => serde_json::to_string_pretty(&traces).map_err(|error| error.to_string())?,
        false => traces.iter().map(told).collect::<Vec<_>>().join("\n"),
    };
    if traces.is_empty() {
        return Ok(Said { out, err: format!("nothing on record for {}", safe(&args.wanted)), verdict: Verdict::No });
    }
    Ok(Said::done(out))
}

/// Nothing from a message may move a terminal's cursor.
fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{FFFD}' } else { c }).collect()
}

fn told(trace: &Trace) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(out, "{name:<11} {}", safe(value)); // writing to a String cannot fail
    };
    if trace.message == 0 {
        line("message", "not recorded");
    } else {
        line("message", trace.message_id.as_deref().unwrap_or("(no Message-ID)"));
        line("digest", &trace.digest);
        line("recorded", &format!("{} as {}, {} bytes", trace.recorded_at, trace.message, trace.size_bytes));
        if trace.collision {
            line("collision", "another message has the same Message-ID and other content; both are delivered");
        }
        for (name, value) in [
            ("subject", &trace.subject),
            ("date", &trace.date),
            ("in-reply-to", &trace.in_reply_to),
            ("references", &trace.references),
        ] {
            if let Some(value) = value {
                line(name, value);
            }
        }
        for address in &trace.addresses {
            let name = address.name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
            line(&address.role, &format!("{name}<{}>", address.address.as_deref().unwrap_or_default()));
        }
        for part in &trace.parts {
            let name = part.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
            line("part", &format!("{} {}{name} {} bytes", part.path, part.content_type, part.size_bytes));
        }
        if trace.raw_kept {
            line("raw", "the bytes as received are in the ledger");
        }
    }
    for copy in &trace.copies {
        line("copy", &told_copy(copy));
    }
    for attempt in &trace.attempts {
        line("attempt", &told_attempt(attempt));
    }
    out
}

fn told_copy(copy: &TraceCopy) -> String {
    let mut told = format!("account={} mailbox={} {}", copy.account, copy.mailbox, copy.state);
    let mut add = |text: String| {
        told.push(' ');
        told.push_str(&text);
    };
    if let Some(receipt) = &copy.receipt {
        add(receipt.clone());
    }
    if let Some(at) = &copy.placed_at {
        add(format!("at {at}"));
    }
    if let Some(until) = &copy.leased_until {
        add(format!("by {} until {until}", copy.owner));
    }
    if copy.epoch > 1 {
        add(format!("(leased {} times)", copy.epoch));
    }
    if copy.found_by_look {
        add("(found in the mailbox after a doubt)".to_owned());
    }
    if copy.nul_replaced {
        add("(NUL bytes stored as 0x80)".to_owned());
    }
    told
}

fn told_attempt(attempt: &TraceAttempt) -> String {
    let mut told = format!("{} {} pid {}", attempt.started_at, attempt.host, attempt.pid);
    for (name, value) in [("to", &attempt.recipient), ("from", &attempt.sender), ("queue-id", &attempt.queue_id)] {
        if !value.is_empty() {
            told.push_str(&format!(" {name} {value}"));
        }
    }
    match (&attempt.outcome, attempt.duration_ms) {
        (Some(outcome), Some(duration_ms)) => {
            let status = attempt.status.as_deref().unwrap_or_default();
            let text = attempt.text.as_deref().unwrap_or_default();
            told.push_str(&format!(": {outcome} {status} in {duration_ms} ms: {text}"));
        }
        _ => told.push_str(": no end on record: at work, or killed"),
    }
    told
}
