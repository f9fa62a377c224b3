//! `onedrop trace`: prints what is on record about messages, as text or as JSON. On a terminal,
//! lines are wrapped at 100 columns; for other readers no line is wrapped, so that they find whole
//! values.

use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime};

use jiff::{Timestamp, tz::TimeZone};

use super::{CommandOutcome, TraceArgs};
use crate::config::Loaded;
use crate::directory::Known;
use crate::exit::Verdict;
use crate::ledger::{LedgerError, Trace, TraceAttempt, TraceCopy, TraceFilter};
use crate::routing::Routing;
use crate::service::{Adapters, ONE};
use crate::text::one_line;
use crate::verify::since;

const TIME: Duration = Duration::from_secs(60);
/// The default of `--since` if no name is given.
const SINCE: &str = "7d";
/// Columns on a terminal.
const WIDTH: usize = 100;
/// Columns of the name at the start of a line.
const NAME: usize = 12;

pub(super) fn run(
    args: &TraceArgs,
    loaded: &Loaded,
    adapters: Adapters,
) -> Result<CommandOutcome, String> {
    let back = args.since.as_deref().or(args.wanted.is_none().then_some(SINCE));
    let from = back.map(|text| {
        let from = since(text, SystemTime::now());
        from.ok_or_else(|| {
            format!(
                "--since {}: neither a duration (24h, 7d) nor a date (2026-11-01)",
                one_line(text)
            )
        })
    });
    let filter = TraceFilter {
        name: args.wanted.as_deref(),
        since: from.transpose()?,
        sender: args.sender.as_deref(),
        subject: args.subject.as_deref(),
        failed: args.failed,
    };
    let failed = |error: LedgerError| format!("ledger: {error}");
    let ledger = (adapters.ledger)(loaded, ONE).map_err(failed)?;
    let until = Instant::now() + TIME;
    let find = |filter: &TraceFilter<'_>| ledger.trace(filter, args.limit, until).map_err(failed);
    let mut traces = find(&filter)?;
    // The recipient may be on record in another form; then its account has the copies.
    if traces.is_empty()
        && let Some(name) = filter.name
        && let Known::Account(account) = Routing::new(&loaded.config).known(name)
    {
        traces = find(&TraceFilter { name: Some(&account), ..filter })?;
    }
    let out = match args.json {
        true => serde_json::to_string_pretty(&traces).map_err(|error| error.to_string())?,
        false => {
            let zone = if args.utc { TimeZone::UTC } else { TimeZone::system() };
            let width = if std::io::stdout().is_terminal() { WIDTH } else { usize::MAX };
            traces
                .iter()
                .map(|trace| TraceText::of(trace, &zone, width))
                .collect::<Vec<_>>()
                .join("\n")
        }
    };
    match traces.is_empty() {
        true => Ok(CommandOutcome {
            out,
            err: format!("nothing on record{}", asked(args, back)),
            verdict: Verdict::No,
        }),
        false => Ok(CommandOutcome::done(out)),
    }
}

/// The conditions, in words.
fn asked(args: &TraceArgs, since: Option<&str>) -> String {
    let mut asked = String::new();
    let words = [
        (" for", args.wanted.as_deref()),
        (" since", since),
        (" by", args.sender.as_deref()),
        (" about", args.subject.as_deref()),
        (" that failed", args.failed.then_some("")),
    ];
    for (word, value) in words {
        if let Some(value) = value {
            let space = if value.is_empty() { "" } else { " " };
            asked.push_str(&format!("{word}{space}{}", one_line(value)));
        }
    }
    asked
}

/// A message as text: a name and a value on each line.
struct TraceText<'a> {
    zone: &'a TimeZone,
    width: usize,
    out: String,
}

impl TraceText<'_> {
    fn of(trace: &Trace, zone: &TimeZone, width: usize) -> String {
        let mut text = TraceText { zone, width, out: String::new() };
        if trace.message == 0 {
            text.line("message", "not recorded");
        } else {
            text.message(trace);
        }
        for copy in &trace.copies {
            text.line("copy", &text.copy(copy));
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
        for address in &trace.addresses {
            let name = address.name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
            self.line(
                &address.role,
                &format!("{name}<{}>", address.address.as_deref().unwrap_or_default()),
            );
        }
        self.line("recorded", &self.time(&trace.recorded_at));
        self.line("size", &format!("{} bytes", trace.size_bytes));
        self.line("digest", &trace.digest);
        for part in &trace.parts {
            let name = part.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
            self.line(
                "part",
                &format!("{} {}{name} {} bytes", part.path, part.content_type, part.size_bytes),
            );
        }
        if trace.raw_kept {
            self.line("raw", "the bytes as received are in the ledger");
        }
    }

    fn copy(&self, copy: &TraceCopy) -> String {
        let mut text = format!("account={} mailbox={}: ", copy.account, copy.mailbox);
        let time =
            |time: &Option<String>| time.as_deref().map(|time| self.time(time)).unwrap_or_default();
        match (copy.state.as_str(), &copy.kept) {
            ("placed", _) => {
                let receipt = copy.receipt.as_deref().unwrap_or_default();
                text.push_str(&format!("placed {}, {receipt}", time(&copy.placed_at)));
            }
            ("leased", _) => {
                text.push_str(&format!(
                    "{} is delivering it until {}",
                    copy.owner,
                    time(&copy.leased_until)
                ));
            }
            (_, Some(why)) => text.push_str(&format!("sent copy kept for later: {why}")),
            ("in doubt", None) => {
                text.push_str(&format!(
                    "in doubt, {} may have written it; the next try looks first",
                    copy.owner
                ));
            }
            (_, None) => text.push_str("not delivered"),
        }
        if copy.epoch > 1 {
            text.push_str(&format!(", tried {} times", copy.epoch));
        }
        if copy.found_by_look {
            text.push_str(", found in the mailbox after a doubt");
        }
        if copy.nul_replaced {
            text.push_str(", NUL bytes stored as 0x80");
        }
        text
    }

    /// The outcome, sender, host and process of an attempt, and a line for each copy.
    fn attempt(&mut self, attempt: &TraceAttempt) {
        let to = if attempt.recipient.is_empty() {
            String::new()
        } else {
            format!(" to {}", attempt.recipient)
        };
        let end = match (&attempt.outcome, attempt.duration_ms) {
            (Some(outcome), Some(took)) => {
                format!("{outcome} {} in {took} ms", attempt.status.as_deref().unwrap_or_default())
            }
            _ => "no end on record: still running, or killed".to_owned(),
        };
        self.line("attempt", &format!("{}{to}: {end}", self.time(&attempt.started_at)));
        let sender = if attempt.sender.is_empty() { "<>" } else { &attempt.sender };
        let mut by = format!("from {sender}, {} pid {}", attempt.host, attempt.pid);
        if !attempt.queue_id.is_empty() {
            by.push_str(&format!(", queue id {}", attempt.queue_id));
        }
        self.line("", &by);
        for text in
            attempt.text.iter().flat_map(|text| text.split("; ")).filter(|text| !text.is_empty())
        {
            self.line("", text);
        }
    }

    /// A recorded time (RFC 3339, in UTC) in the output's time zone.
    fn time(&self, text: &str) -> String {
        let Ok(at) = text.parse::<Timestamp>() else { return text.to_owned() };
        let zone = if *self.zone == TimeZone::UTC { "UTC" } else { "%:z" };
        at.to_zoned(self.zone.clone()).strftime(&format!("%Y-%m-%d %H:%M:%S {zone}")).to_string()
    }

    /// Writes a line, wrapped at blanks, or within a word that is too wide for a line.
    fn line(&mut self, name: &str, value: &str) {
        let (room, indent) = (self.width.saturating_sub(NAME), NAME);
        let mut line = format!("{name:<width$} ", width = NAME - 1);
        let mut used = 0;
        for word in one_line(value).split(' ') {
            let mut word: Vec<char> = word.chars().collect();
            if used > 0 && used + 1 + word.len() <= room {
                line.push(' ');
                used += 1;
            } else if used > 0 {
                line.push_str(&format!("\n{:indent$}", ""));
                used = 0;
            }
            while word.len() > room - used {
                let rest = word.split_off(room - used);
                line.extend(word);
                line.push_str(&format!("\n{:indent$}", ""));
                (word, used) = (rest, 0);
            }
            used += word.len();
            line.extend(word);
        }
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let copy = |mailbox: &str, state: &str| TraceCopy {
            account: "scuba".to_owned(),
            mailbox: mailbox.to_owned(),
            state: state.to_owned(),
            epoch: 1,
            owner: "mx1:42".to_owned(),
            ..TraceCopy::default()
        };
        let name = "x".repeat(120);
        Trace {
            message: 7,
            message_id: Some(format!("<{name}@x>")),
            digest: "ab".repeat(32),
            recorded_at: "2026-07-01T10:00:00Z".to_owned(),
            subject: Some("a word ".repeat(30) + "\u{1b}[2J"),
            size_bytes: 12,
            copies: vec![
                TraceCopy {
                    receipt: Some("uid=42".to_owned()),
                    placed_at: Some("2026-12-31T23:30:00.250Z".to_owned()),
                    ..copy("INBOX", "placed")
                },
                TraceCopy { epoch: 2, ..copy("a", "free") },
                TraceCopy { epoch: 3, ..copy("b", "in doubt") },
                TraceCopy {
                    leased_until: Some("2026-07-01T10:01:30Z".to_owned()),
                    ..copy("c", "leased")
                },
                TraceCopy { kept: Some("over quota".to_owned()), ..copy("Sent", "free") },
            ],
            attempts: vec![TraceAttempt {
                started_at: "2026-07-01T10:00:00.123Z".to_owned(),
                recipient: "scuba@mail.axial.net".to_owned(),
                queue_id: "4X".to_owned(),
                host: "mx1".to_owned(),
                pid: 42,
                duration_ms: Some(5),
                outcome: Some("delivered".to_owned()),
                status: Some("2.0.0".to_owned()),
                text: Some("stored account=scuba mailbox=INBOX; stored account=lisa".to_owned()),
                ..TraceAttempt::default()
            }],
            ..Trace::default()
        }
    }

    #[test]
    fn the_text_names_each_copys_state_and_local_times() {
        let zone = TimeZone::get("Europe/Berlin").expect("a zone");
        let text = TraceText::of(&trace(), &zone, usize::MAX);
        for line in [
            "recorded    2026-07-01 12:00:00 +02:00",
            "size        12 bytes",
            "copy        account=scuba mailbox=INBOX: placed 2027-01-01 00:30:00 +01:00, uid=42",
            "copy        account=scuba mailbox=a: not delivered, tried 2 times",
            "copy        account=scuba mailbox=b: in doubt, mx1:42 may have written it; the next \
             try looks first, tried 3 times",
            "copy        account=scuba mailbox=c: mx1:42 is delivering it until \
             2026-07-01 12:01:30 +02:00",
            "copy        account=scuba mailbox=Sent: sent copy kept for later: over quota",
            "attempt     2026-07-01 12:00:00 +02:00 to scuba@mail.axial.net: \
             delivered 2.0.0 in 5 ms",
            "            from <>, mx1 pid 42, queue id 4X",
            "            stored account=scuba mailbox=INBOX",
            "            stored account=lisa",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let utc = TraceText::of(&trace(), &TimeZone::UTC, usize::MAX);
        assert!(utc.contains("recorded    2026-07-01 10:00:00 UTC\n"), "{utc}");
    }

    #[test]
    fn lines_for_a_terminal_fit_and_lose_nothing() {
        let whole = TraceText::of(&trace(), &TimeZone::UTC, usize::MAX);
        let wrapped = TraceText::of(&trace(), &TimeZone::UTC, WIDTH);
        assert!(whole.lines().any(|line| line.chars().count() > WIDTH), "nothing to wrap");
        assert!(wrapped.lines().all(|line| line.chars().count() <= WIDTH), "{wrapped}");
        let black = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        assert_eq!(black(&wrapped), black(&whole));
    }
}
