//! `onedrop trace`: prints what is on record about messages, as text or as JSON. On a terminal,
//! lines are wrapped at 100 columns; for other readers no line is wrapped, so that they find whole
//! values.

use std::time::{Duration, Instant};

use jiff::{Timestamp, tz::TimeZone};

use super::terminal::{Paint, Screen};
use super::{CommandOutcome, since};
use onedrop_admin::status::unrecorded_trace;
use onedrop_core::directory::{Known, place_and_variant};
use onedrop_core::exit::Verdict;
use onedrop_core::ledger::{
    HANDED_OVER, LedgerError, SchemaVersion, Trace, TraceAttempt, TraceCopy, TraceFilter,
    of_the_ledger,
};
use onedrop_core::text::shown;
use onedrop_site::command_line::TraceArgs;
use onedrop_site::service::Site;

const TIME: Duration = Duration::from_secs(60);
/// What this host's log may take.
const LOG_TIME: Duration = Duration::from_secs(10);
/// The default of `--since` if no name is given.
const SINCE: &str = "7d";
/// Columns of the name at the start of a line.
const NAME: usize = 12;

pub(super) fn run(args: &TraceArgs, site: &Site, screen: Screen) -> Result<CommandOutcome, String> {
    let back = args.since.as_deref().or(args.wanted.is_none().then_some(SINCE));
    let filter = TraceFilter {
        message: None,
        name: args.wanted.as_deref(),
        since: back.map(since).transpose()?,
        sender: args.sender.as_deref(),
        subject: args.subject.as_deref(),
        failed: args.failed,
    };
    let ledger = site.ledger().map_err(of_the_ledger)?;
    let until = Instant::now() + TIME;
    let find = |filter: &TraceFilter<'_>| {
        let found = ledger.trace(filter, args.limit, until);
        if matches!(found, Err(LedgerError::Unavailable(_))) {
            return found.map_err(of_the_ledger);
        }
        // What a schema that does not fit shows, or refuses, says nothing.
        match ledger.schema_version(until).and_then(SchemaVersion::check) {
            Err(error @ LedgerError::Version(_)) => Err(of_the_ledger(error)),
            _ => found.map_err(of_the_ledger),
        }
    };
    let found = find(&filter).and_then(|traces| match filter.name {
        // The recipient may be on record in another form; then its account has the copies.
        Some(name) if traces.is_empty() => match site.loaded.config.directory.known(name) {
            Known::Home(home) => find(&TraceFilter { name: Some(&home.account), ..filter }),
            Known::Nobody | Known::Ask(_) => Ok(traces),
        },
        _ => Ok(traces),
    });
    let (mut traces, away) = match found {
        Ok(traces) => (traces, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    // The log has no subjects.
    if filter.name.is_some() && filter.subject.is_none() {
        let (file, until) = (site.loaded.shown_file(), Instant::now() + LOG_TIME);
        let of_log = unrecorded_trace(&file, &filter, &traces, until);
        traces.extend(of_log);
    }
    // It may be why these are not on record.
    if let Some(why) = away.as_ref().filter(|_| traces.is_empty()) {
        return Err(why.clone());
    }
    let out = match args.json {
        true => serde_json::to_string_pretty(&traces).map_err(|error| error.to_string())?,
        false => {
            let zone = if args.utc { TimeZone::UTC } else { TimeZone::system() };
            let texts: Vec<_> =
                traces.iter().map(|trace| TraceText::of(trace, &zone, screen)).collect();
            texts.join("\n")
        }
    };
    let (err, verdict) = match (away, traces.is_empty()) {
        (Some(why), _) => (why, Verdict::Failed),
        (None, true) => (format!("nothing on record{}", asked(args, back)), Verdict::No),
        (None, false) => (String::new(), Verdict::Done),
    };
    Ok(CommandOutcome { out, err, verdict })
}

/// The conditions as a phrase.
fn asked(args: &TraceArgs, since: Option<&str>) -> String {
    let words = [
        ("for", args.wanted.as_deref()),
        ("since", since),
        ("by", args.sender.as_deref()),
        ("about", args.subject.as_deref()),
    ];
    let asked = words.into_iter().filter_map(|(word, value)| Some(format!(" {word} {}", value?)));
    shown(&(asked.collect::<String>() + if args.failed { " that failed" } else { "" })).into_owned()
}

/// A message as text: a name and a value on each line.
struct TraceText<'a> {
    zone: &'a TimeZone,
    screen: Screen,
    out: String,
}

impl TraceText<'_> {
    fn of(trace: &Trace, zone: &TimeZone, screen: Screen) -> String {
        let mut text = TraceText { zone, screen, out: String::new() };
        if trace.message == 0 {
            text.line("message", "not recorded");
        } else {
            text.message(trace);
        }
        for copy in &trace.copies {
            text.line("copy", &text.copy(copy));
        }
        if trace.attempts_left > 0 {
            let left = format!("{} older attempts are on record", trace.attempts_left);
            text.line("attempts", &left);
        }
        for attempt in &trace.attempts {
            text.attempt(attempt);
        }
        text.out
    }

    fn message(&mut self, trace: &Trace) {
        self.line("message", trace.message_id.as_deref().unwrap_or("(no Message-ID)"));
        if trace.collision {
            self.line(
                "collision",
                "another message has the same Message-ID and other content; both are delivered",
            );
        }
        let date = trace.date.as_deref().map(|date| self.time(date));
        for (name, value) in [
            ("subject", &trace.subject),
            ("date", &date),
            ("in-reply-to", &trace.in_reply_to),
            ("references", &trace.references),
        ] {
            if let Some(value) = value {
                self.line(name, value);
            }
        }
        for one in &trace.addresses {
            let name = one.name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
            let address = one.address.as_deref().unwrap_or_default();
            self.line(&one.role, &format!("{name}<{address}>"));
        }
        self.line("recorded", &self.time(&trace.recorded_at));
        self.line("size", &format!("{} bytes", trace.size_bytes));
        self.line("digest", &trace.digest);
        for part in &trace.parts {
            let name = part.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
            let (path, kind, size) = (&part.path, &part.content_type, part.size_bytes);
            self.line("part", &format!("{path} {kind}{name} {size} bytes"));
        }
        if trace.raw_kept {
            self.line("raw", "the bytes as received are in the ledger");
        }
    }

    fn copy(&self, copy: &TraceCopy) -> String {
        let time =
            |time: &Option<String>| time.as_deref().map(|time| self.time(time)).unwrap_or_default();
        let owner = &copy.owner;
        let state = match (copy.state.as_str(), &copy.kept) {
            ("placed", _) => {
                let receipt = copy.receipt.as_deref().unwrap_or_default();
                let by = match copy.by_sender {
                    true => "left to the mail program's own copy",
                    false => "placed",
                };
                format!("{by} {}, {receipt}", time(&copy.placed_at))
            }
            (HANDED_OVER, _) => {
                let receipt = copy.receipt.as_deref().unwrap_or_default();
                // A look said where it was then.
                match copy.found_by_look {
                    true => format!("handed over, {receipt} {}", time(&copy.placed_at)),
                    false => format!(
                        "handed over to the mail server {}, {receipt}; its filters decide where it \
                         lies",
                        time(&copy.placed_at)
                    ),
                }
            }
            ("elsewhere", _) => {
                let receipt = copy.receipt.as_deref().unwrap_or_default();
                format!("not there or not open to us {}, {receipt}", time(&copy.placed_at))
            }
            ("leased", _) => format!("{owner} is delivering it until {}", time(&copy.leased_until)),
            ("due", why) => {
                let why = why.as_deref().unwrap_or("its bytes are not kept");
                format!("due at {}: {why}", time(&copy.due_at))
            }
            (_, Some(why)) => format!("sent copy kept for later: {why}"),
            ("in doubt", None) if owner.is_empty() => {
                "in doubt: it may be there; the next try looks first".to_owned()
            }
            ("in doubt", None) => {
                format!("in doubt, {owner} may have written it; the next try looks first")
            }
            (_, None) => "not delivered".to_owned(),
        };
        let (place, variant) = place_and_variant(&copy.mailbox);
        let mut text = match copy.state.as_str() {
            HANDED_OVER => format!("account={}{variant}: {state}", copy.account),
            _ => format!("account={} mailbox={place}{variant}: {state}", copy.account),
        };
        if copy.epoch > 1 {
            text += &format!(", tried {} times", copy.epoch);
        }
        if copy.found_by_look {
            text += ", found in the mailbox after a doubt";
        }
        if copy.nul_replaced {
            text += ", NUL bytes stored as 0x80";
        }
        if copy.wrapped {
            text += ", attached to a message of ours, because its header is damaged";
        }
        text
    }

    /// The outcome, sender, host and process of an attempt, and a line for each copy.
    fn attempt(&mut self, attempt: &TraceAttempt) {
        let mut text = self.time(&attempt.started_at);
        if !attempt.recipient.is_empty() {
            text += &format!(" to {}", attempt.recipient);
        }
        text += &match (&attempt.outcome, attempt.duration_ms) {
            (Some(outcome), Some(took)) => {
                let status = attempt.status.as_deref().unwrap_or_default();
                // Of one that delivered it says nothing more, but for a copy that is kept.
                let reason = attempt.reason.as_deref().filter(|reason| reason != outcome);
                let reason = reason.map(|reason| format!(" {reason}")).unwrap_or_default();
                format!(": {outcome} {status}{reason} in {took} ms")
            }
            _ => ": no end on record: it runs, was killed, or a crash of the ledger lost its end"
                .to_owned(),
        };
        self.line("attempt", &text);
        let sender = if attempt.sender.is_empty() { "<>" } else { &attempt.sender };
        let mut by = format!("from {sender}, {} pid {}", attempt.host, attempt.pid);
        if !attempt.queue_id.is_empty() {
            by += &format!(", queue id {}", attempt.queue_id);
        }
        self.line("", &by);
        let texts = attempt.text.iter().flat_map(|text| text.split("; "));
        for text in texts.filter(|text| !text.is_empty()) {
            self.line("", text);
        }
    }

    /// A recorded time (RFC 3339, in UTC) in the output's time zone.
    fn time(&self, text: &str) -> String {
        let Ok(at) = text.parse::<Timestamp>() else { return text.to_owned() };
        let zone = if *self.zone == TimeZone::UTC { "UTC" } else { "%:z" };
        at.to_zoned(self.zone.clone()).strftime(&format!("%Y-%m-%d %H:%M:%S {zone}")).to_string()
    }

    /// Writes a line: what it is about, and that.
    fn line(&mut self, name: &str, value: &str) {
        let first = format!("{name:<width$} ", width = NAME - 1);
        let line = self.screen.line(&first, Paint::Name, &shown(value), NAME);
        self.out += line.trim_end();
        self.out.push('\n');
    }
}
