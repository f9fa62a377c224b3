//! `onedrop verify`: what the comparison of ledger and mailboxes found, a line per finding as it is
//! found, and how it ended: 0 with nothing left to mend, 1 with something left, 75 where not
//! everything could be compared.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{CommandOutcome, counted, since};
use crate::clock::{Clock, SystemClock};
use crate::command_line::VerifyArgs;
use crate::config::Loaded;
use crate::deliver::Failure;
use crate::exit::Verdict;
use crate::ledger::{AnyLedger, Attempt, LedgerError, Window};
use crate::service::{Adapters, ONE, host_name};
use crate::store::AnyStore;
use crate::text::one_line;
use crate::verify::{self, Difference, LEDGER_TIME, News, Plan, Tally, Topic};
use crate::way::WayProof;

/// Between two progress lines.
const PROGRESS_PAUSE: Duration = Duration::from_millis(200);

pub(super) fn run(
    args: &VerifyArgs,
    loaded: &Loaded,
    adapters: Adapters,
) -> Result<CommandOutcome, String> {
    let since = since(&args.since)?;
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
    let of_the_ledger = |error: LedgerError| format!("ledger: {error}");
    let ledger = (adapters.ledger)(loaded, ONE).map_err(of_the_ledger)?;
    let store = (adapters.store)(loaded, ONE).map_err(|error| error.to_string())?;
    if args.repair {
        pass_the_gate(&*ledger, &*store).map_err(|failure| failure.to_string())?;
    }
    let mut printer = VerifyPrinter::new(args.json);
    let tally = verify::verify(&plan, &*ledger, &*store, &mut |news| printer.print(news));
    let written = printer.end();
    let outcome = ended(&tally.map_err(of_the_ledger)?);
    match written {
        Ok(()) => Ok(outcome),
        Err(error) => Err(format!("{}, standard output: {error}", outcome.err)),
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
    let mut err = format!("{} {copies} compared", tally.copies);
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
            err.push_str(&format!(", {failed} not compared"));
            Verdict::Failed
        }
    };
    CommandOutcome { out: String::new(), err, verdict }
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
