//! `onedrop verify`: what the comparison of ledger and mailboxes found, a line per finding as it is
//! found, and how it ended: 0 with nothing left to mend, 1 with something left, 75 where not
//! everything could be compared.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::{CommandOutcome, VerifyArgs, counted};
use crate::clock::{Clock, SystemClock};
use crate::config::Loaded;
use crate::deliver::Failure;
use crate::exit::Verdict;
use crate::ledger::{AnyLedger, Attempt, Window};
use crate::service::{Adapters, ONE, host_name};
use crate::store::AnyStore;
use crate::text;
use crate::verify::{self, Difference, LEDGER_TIME, Level, News, Plan, Tally, Topic};
use crate::way::WayProof;

/// Between two progress lines.
const PROGRESS_PAUSE: Duration = Duration::from_millis(200);

pub(super) fn run(args: &VerifyArgs, loaded: &Loaded, adapters: Adapters) -> CommandOutcome {
    let Some(since) = verify::since(&args.since, SystemTime::now()) else {
        let text = format!(
            "--since {}: neither a duration (24h, 7d) nor a date (2026-11-01)",
            text::one_line(&args.since)
        );
        return CommandOutcome::failed(text);
    };
    let by = Attempt { host: host_name(), pid: std::process::id(), ..Attempt::default() };
    let limits = &loaded.config.limits;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let plan = Plan {
        clock: &clock,
        window: Window { since, account: args.account.as_deref() },
        repair: args.repair,
        lease: Duration::from_secs(loaded.config.lock.lease_secs),
        time: (Duration::from_secs(limits.deadline_secs), Duration::from_secs(limits.answer_secs)),
        by: &by,
    };
    let (ledger, store) = match (adapters.ledger)(loaded, ONE) {
        Ok(ledger) => (ledger, (adapters.store)(loaded, ONE)),
        Err(error) => return CommandOutcome::failed(format!("ledger: {error}")),
    };
    let store = match store {
        Ok(store) => store,
        Err(error) => return CommandOutcome::failed(error.to_string()),
    };
    if args.repair
        && let Err(failure) = pass_the_gate(&*ledger, &*store)
    {
        return CommandOutcome::failed(failure.to_string());
    }
    let mut telling = VerifyPrinter::new(args.json);
    let outcome = verify::verify(&plan, &*ledger, &*store, &mut |news| {
        telling.tell(news);
    });
    let written = telling.end();
    match (outcome, written) {
        (Ok(tally), Ok(())) => ended(&tally),
        (Ok(tally), Err(error)) => {
            CommandOutcome::failed(format!("{}, standard output: {error}", ended(&tally).err))
        }
        (Err(error), _) => CommandOutcome::failed(format!("ledger: {error}")),
    }
}

/// Nothing is written and nothing taken out where the store may show another's mailboxes than those
/// that we name.
fn pass_the_gate(ledger: &dyn AnyLedger, store: &dyn AnyStore) -> Result<(), Failure> {
    let until = Instant::now() + LEDGER_TIME;
    // Without a copy on record there is no account to ask with, and nothing to repair.
    if ledger.latest_copies(1, until)?.is_empty() {
        return Ok(());
    }
    Arc::<WayProof>::default().pass(&[], &host_name(), ledger, store, until)
}

/// How it ended, in the order of weight.
fn ended(tally: &Tally) -> CommandOutcome {
    let copies = if tally.copies == 1 { "copy" } else { "copies" };
    let mut text = format!("{} {copies} compared", tally.copies);
    let counts =
        [(tally.settled, "settled"), (tally.infos, "to know"), (tally.repaired, "repaired")];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!(", {count} {what}"));
    }
    if tally.errors > 0 {
        text.push_str(&format!(
            ", {}",
            counted(usize::try_from(tally.errors).unwrap_or(usize::MAX), "error")
        ));
    }
    if tally.failed > 0 {
        return CommandOutcome::failed(format!("{text}, {} not compared", tally.failed));
    }
    let verdict = if tally.errors > 0 { Verdict::No } else { Verdict::Done };
    CommandOutcome { out: String::new(), err: text, verdict }
}

/// Findings on standard output, failures and progress on standard error.
struct VerifyPrinter {
    json: bool,
    findings: u64,
    progress: Option<Instant>,
    is_line_open: bool,
    /// The first error of standard output. It does not change what is done, but how it ends.
    written: io::Result<()>,
}

impl VerifyPrinter {
    fn new(json: bool) -> VerifyPrinter {
        let progress = io::stderr().is_terminal().then(Instant::now);
        VerifyPrinter { json, findings: 0, progress, is_line_open: false, written: Ok(()) }
    }

    fn tell(&mut self, news: News<'_>) {
        match news {
            // Of no use to people, who cannot do anything about it but wait.
            News::Found(finding) if finding.topic == Topic::Busy && !self.json => {}
            News::Found(finding) => self.found(&finding),
            News::Failed { destination, why } => {
                self.clear_line();
                let text = text::one_line(&why.to_string()).into_owned();
                let _ = writeln!(
                    io::stderr(),
                    "failed   account={}: {text}",
                    text::one_line(&destination.account)
                );
            }
            News::Next { copy, tally } => self.progress(&copy.destination.account, tally),
        }
    }

    fn found(&mut self, finding: &Difference) {
        self.clear_line();
        let mut out = io::stdout();
        let written = if self.json {
            let opening = if self.findings == 0 { "[\n" } else { ",\n" };
            let text = serde_json::to_string(finding).unwrap_or_default();
            write!(out, "{opening}{text}")
        } else {
            writeln!(out, "{}", told(finding))
        };
        self.note(written);
        self.findings += 1;
    }

    fn note(&mut self, written: io::Result<()>) {
        if self.written.is_ok() {
            self.written = written;
        }
    }

    fn progress(&mut self, account: &str, tally: &Tally) {
        let now = Instant::now();
        if self.progress.take_if(|due| *due <= now).is_some() {
            self.progress = Some(now + PROGRESS_PAUSE);
            self.is_line_open = true;
            let found = tally.errors + tally.repaired;
            let account = text::one_line(account);
            let _ = write!(
                io::stderr(),
                "\r\x1b[K{} compared, {found} found, at {account:.40}",
                tally.copies
            );
        }
    }

    fn clear_line(&mut self) {
        if std::mem::take(&mut self.is_line_open) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// # Errors
    /// Not all that was found could be written.
    fn end(mut self) -> io::Result<()> {
        self.clear_line();
        if self.json {
            let written =
                writeln!(io::stdout(), "{}", if self.findings == 0 { "[]" } else { "\n]" });
            self.note(written);
        }
        let flushed = io::stdout().flush();
        self.note(flushed);
        self.written
    }
}

fn told(finding: &Difference) -> String {
    let level = match finding.level {
        Level::Info => "info",
        Level::Repaired => "repaired",
        Level::Error => "error",
    };
    let topic = match finding.topic {
        Topic::Moved => "moved",
        Topic::Double => "double",
        Topic::Other => "other",
        Topic::Doubt => "doubt",
        Topic::Lease => "lease",
        Topic::Missing => "missing",
        Topic::Kept => "kept",
        Topic::Busy => "busy",
    };
    let id = finding.message_id.as_deref().unwrap_or("(no Message-ID)");
    let line = format!(
        "{topic}: account={} mailbox={} {id}: {}",
        finding.account, finding.mailbox, finding.text
    );
    format!("{level:<9}{}", text::one_line(&line))
}
