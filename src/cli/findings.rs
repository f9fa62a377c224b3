//! What `verify` and `settle` have in common: a line per finding as it is found on standard output,
//! failures and progress on standard error; and how they end: 0 with nothing left to do, 1 with
//! something left, 75 where not everything could be looked at.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{CommandOutcome, counted};
use crate::clock::{Clock, SystemClock};
use crate::config::Loaded;
use crate::exit::Verdict;
use crate::ledger::{AnyLedger, Attempt, LedgerError, SCHEMA_VERSION, Window};
use crate::service::{Adapters, ONE, host_name};
use crate::store::AnyStore;
use crate::text::one_line;
use crate::verify::{Difference, LEDGER_TIME, News, Plan, Tally, Topic};
use crate::way::WayProof;

/// Between two progress lines.
const PROGRESS_PAUSE: Duration = Duration::from_millis(200);

/// A command that compares ledger and mailboxes.
pub(super) struct Comparison<'a> {
    pub window: Window<'a>,
    /// It writes.
    pub repair: bool,
    pub json: bool,
    /// What it does with a copy.
    pub done: &'static str,
    /// An account that it may write for; `None`: it will write nothing.
    pub account: fn(&dyn AnyLedger, Instant) -> Result<Option<String>, LedgerError>,
    pub work: Compare,
}

type Compare = for<'a> fn(
    &Plan<'a>,
    &dyn AnyLedger,
    &dyn AnyStore,
    &mut dyn FnMut(News<'_>),
) -> Result<Tally, LedgerError>;

impl Comparison<'_> {
    pub(super) fn run(&self, loaded: &Loaded, by: Adapters) -> Result<CommandOutcome, String> {
        let attempt = Attempt { host: host_name(), pid: std::process::id(), ..Attempt::default() };
        let limits = &loaded.config.limits;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let secs = Duration::from_secs;
        let plan = Plan {
            clock: &clock,
            window: self.window,
            repair: self.repair,
            lease: secs(loaded.config.lock.lease_secs),
            time: (secs(limits.deadline_secs), secs(limits.answer_secs)),
            by: &attempt,
        };
        let of_the_ledger = |error: LedgerError| format!("ledger: {error}");
        let ledger = (by.ledger)(loaded, ONE).map_err(of_the_ledger)?;
        let store = (by.store)(loaded, ONE).map_err(|error| error.to_string())?;
        if self.repair {
            self.pass_the_gate(&*ledger, &*store)?;
        }
        let mut printer = FindingsPrinter::new(self.json);
        let tally = (self.work)(&plan, &*ledger, &*store, &mut |news| printer.print(news));
        let written = printer.end();
        let outcome = self.ended(&tally.map_err(of_the_ledger)?);
        match written {
            Ok(()) => Ok(outcome),
            Err(error) => Err(format!("{}, standard output: {error}", outcome.err)),
        }
    }

    /// Nothing is written and nothing taken out where the store may show another's mailboxes than
    /// those that we name.
    fn pass_the_gate(&self, ledger: &dyn AnyLedger, store: &dyn AnyStore) -> Result<(), String> {
        let of_the_ledger = |error| format!("ledger: {error}");
        let until = Instant::now() + LEDGER_TIME;
        let found = ledger.schema_version(until).map_err(of_the_ledger)?;
        if found != SCHEMA_VERSION {
            return Err(of_the_ledger(LedgerError::Version { found }));
        }
        let account = (self.account)(ledger, until).map_err(of_the_ledger)?;
        let Some(account) = account else { return Ok(()) };
        let gate = Arc::<WayProof>::default();
        let passed = gate.pass(&[&account], &host_name(), ledger, store, until);
        passed.map_err(|failure| failure.to_string())
    }

    /// How it ended, in the order of weight.
    fn ended(&self, tally: &Tally) -> CommandOutcome {
        let copies = if tally.copies == 1 { "copy" } else { "copies" };
        let mut err = format!("{} {copies} {}", tally.copies, self.done);
        let counts =
            [(tally.settled, "settled"), (tally.infos, "to know"), (tally.repaired, "repaired")];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            err.push_str(&format!(", {count} {what}"));
        }
        if tally.errors > 0 {
            err.push_str(&format!(", {}", counted(tally.errors, "error")));
        }
        let verdict = match (tally.failed, tally.errors) {
            (0, 0) => Verdict::Done,
            (0, _) => Verdict::No,
            (failed, _) => {
                err.push_str(&format!(", {failed} not {}", self.done));
                Verdict::Failed
            }
        };
        CommandOutcome { out: String::new(), err, verdict }
    }
}

/// Prints what is found.
struct FindingsPrinter {
    json: bool,
    findings: u64,
    progress: Option<Instant>,
    is_line_open: bool,
    /// The first error of standard output. It does not change what is done, but how it ends.
    written: io::Result<()>,
}

impl FindingsPrinter {
    fn new(json: bool) -> FindingsPrinter {
        let progress = io::stderr().is_terminal().then(Instant::now);
        FindingsPrinter { json, findings: 0, progress, is_line_open: false, written: Ok(()) }
    }

    fn print(&mut self, news: News<'_>) {
        match news {
            // Of no use to people, who cannot do anything about it but wait.
            News::Found(finding) if finding.topic == Topic::Busy && !self.json => {}
            News::Found(finding) => self.found(&finding),
            News::Failed { destination, why } => {
                self.clear_line();
                let line = format!("account={}: {why}", destination.account);
                let _ = writeln!(io::stderr(), "failed   {}", one_line(&line));
            }
            News::Next { copy, tally } => self.progress(&copy.destination.account, tally),
        }
    }

    fn found(&mut self, finding: &Difference) {
        self.clear_line();
        let text = if self.json {
            let opening = if self.findings == 0 { "[\n" } else { ",\n" };
            format!("{opening}{}", serde_json::to_string(finding).unwrap_or_default())
        } else {
            let id = finding.message_id.as_deref().unwrap_or("(no Message-ID)");
            let line = format!(
                "{}: account={} mailbox={} {id}: {}",
                finding.topic, finding.account, finding.mailbox, finding.text
            );
            format!("{:<9}{}\n", finding.level, one_line(&line))
        };
        self.write(&text);
        self.findings += 1;
    }

    fn write(&mut self, text: &str) {
        let written = io::stdout().write_all(text.as_bytes());
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
            let account = one_line(account);
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
            self.write(if self.findings == 0 { "[]\n" } else { "\n]\n" });
        }
        self.written.and(io::stdout().flush())
    }
}
