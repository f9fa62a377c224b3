//! What `verify` and `settle` have in common: a line per finding as it is found on standard output,
//! failures and progress on standard error; and how they end: 0 with nothing left to do, 1 with
//! something left, 75 where not everything could be looked at.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::lines::Lines;
use super::resume::Resume;
use super::terminal::{Paint, Screen};
use super::{CommandOutcome, counted};
use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::directory::place_and_variant;
use onedrop_core::exit::Verdict;
use onedrop_core::ledger::{Attempt, LedgerError, VerifyLedger, Window, of_the_ledger};
use onedrop_core::login_proof::WayProof;
use onedrop_core::os::host_name;
use onedrop_core::store::AnyStore;
use onedrop_core::text::shown;
use onedrop_core::verify::{Difference, LEDGER_TIME, Level, News, Tally, Topic, VerifyTask};
use onedrop_net::pool::Limits;
use onedrop_site::service::{ONE, Site};

/// A command that compares ledger and mailboxes.
pub(super) struct Comparison<'a> {
    pub window: Window,
    /// This account only.
    pub only: Option<&'a str>,
    /// Accounts at a time.
    pub parallel: usize,
    /// It writes.
    pub repair: bool,
    pub json: bool,
    /// What it does with a copy.
    pub done: &'static str,
    /// An account that it may write for; `None`: it will write nothing.
    pub account: fn(&dyn VerifyLedger, Instant) -> Result<Option<String>, LedgerError>,
    pub work: Compare,
    /// Where it notes how far it has come.
    pub resume: Option<Resume>,
}

type Compare = fn(
    &VerifyTask<'_>,
    &dyn VerifyLedger,
    &dyn AnyStore,
    &mut (dyn FnMut(News) + Send),
) -> Result<Tally, LedgerError>;

impl Comparison<'_> {
    pub(super) fn run(mut self, site: &Site, screen: Screen) -> Result<CommandOutcome, String> {
        let attempt = Attempt { host: host_name(), pid: std::process::id(), ..Attempt::default() };
        let limits = &site.loaded.config.limits;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let secs = Duration::from_secs;
        let mut resume = self.resume.take();
        let behind = resume.as_ref().and_then(Resume::account).map(str::to_owned);
        // A session with each mailbox's owner: they are not kept for those that are over.
        let sessions = Limits { kept: self.parallel, ..ONE };
        let ledger = site.ledger_within(sessions).map_err(of_the_ledger)?;
        let store = site.store_within(sessions).map_err(|error| error.to_string())?;
        let gate = Arc::<WayProof>::default();
        self.pass_the_gate(&gate, &*ledger, &*store)?;
        let task = VerifyTask {
            clock: &clock,
            window: self.window,
            account: self.only,
            behind: behind.as_deref(),
            parallel: self.parallel,
            repair: self.repair,
            lease: secs(site.loaded.config.lock.lease_secs),
            time: (secs(limits.deadline_secs), secs(limits.answer_secs)),
            by: &attempt,
            may_write: &|until| gate.pass_root(&*ledger, &*store, until),
        };
        let mut printer = FindingsPrinter::new(self.json, screen);
        let tally = (self.work)(&task, &*ledger, &*store, &mut |news| match (news, &mut resume) {
            (News::Passed { account }, Some(resume)) => resume.passed(account),
            (news, _) => printer.print(news),
        });
        let written = printer.lines.end();
        let noted = resume.map_or(Ok(()), |resume| resume.end(tally.is_ok() && written.is_ok()));
        let outcome = self.ended(&tally.map_err(of_the_ledger)?);
        match written {
            Ok(()) => noted.map(|()| outcome),
            Err(error) => Err(format!("{}, standard output: {error}", outcome.err)),
        }
    }

    /// Nothing is looked at that is not mounted, nor written or taken out where the store may show
    /// another's mailboxes than those that we name.
    fn pass_the_gate(
        &self,
        gate: &Arc<WayProof>,
        ledger: &dyn VerifyLedger,
        store: &dyn AnyStore,
    ) -> Result<(), String> {
        let until = Instant::now() + LEDGER_TIME;
        gate.pass_root(ledger, store, until).map_err(|failure| failure.to_string())?;
        if !self.repair {
            return Ok(());
        }
        ledger.check_program(until).map_err(of_the_ledger)?;
        let account = (self.account)(ledger, until).map_err(of_the_ledger)?;
        let Some(account) = account else { return Ok(()) };
        let passed = gate.pass(&[&account], &host_name(), ledger, store, until);
        passed.map_err(|failure| failure.to_string())
    }

    /// How it ended, in the order of weight.
    fn ended(&self, tally: &Tally) -> CommandOutcome {
        let copies = if tally.copies == 1 { "copy" } else { "copies" };
        let mut err = format!("{} {copies} {}", tally.copies, self.done);
        let counts = [
            (tally.settled, "settled"),
            (tally.infos - tally.busy, "noted"),
            (tally.repaired, "repaired"),
            (tally.busy, "held by a delivery and passed over"),
        ];
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
    screen: Screen,
    lines: Lines,
}

impl FindingsPrinter {
    fn new(json: bool, screen: Screen) -> FindingsPrinter {
        // The default target is standard error, and hidden where that is no terminal.
        let lines = Lines::new(json, ProgressBar::new_spinner());
        FindingsPrinter { json, screen, lines }
    }

    fn print(&mut self, news: News) {
        match news {
            // Of no use to people, who cannot do anything about it but wait.
            News::Found(finding) if finding.topic == Topic::Busy && !self.json => {}
            News::Found(finding) => {
                self.lines.print(&finding, || line(&finding, self.screen));
            }
            News::Failed { destination, why } => {
                let line = format!("account={}: {why}", destination.account);
                self.lines.bar.suspend(|| {
                    let _ = writeln!(io::stderr(), "failed   {}", shown(&line));
                });
            }
            News::Progress { account, tally } => {
                let found = tally.errors + tally.repaired;
                let account = shown(&account);
                let copies = tally.copies;
                let text = format!("{copies} compared, {found} found, at {account:.40}");
                self.lines.bar.set_message(text);
            }
            News::Passed { .. } => {}
        }
    }
}

fn line(finding: &Difference, screen: Screen) -> String {
    let id = finding.message_id.as_deref().unwrap_or("(no Message-ID)");
    let (place, variant) = place_and_variant(&finding.mailbox);
    let line = format!(
        "{}: account={} mailbox={place}{variant} {id}: {}",
        finding.topic, finding.account, finding.text
    );
    let paint = match finding.level {
        Level::Info | Level::Repaired | Level::Settled => Paint::Good,
        Level::Error => Paint::Bad,
    };
    let first = format!("{:<9}", finding.level);
    screen.line(&first, paint, &shown(&line), first.len())
}
