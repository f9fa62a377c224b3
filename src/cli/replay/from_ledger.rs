//! `onedrop replay --from-ledger`: delivers again, and prints a line for each copy.

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use indicatif::ProgressBar;
use serde::Serialize;

use crate::cli::lines::Lines;
use crate::cli::terminal::{Paint, Screen};
use crate::cli::{CommandOutcome, since};
use onedrop_admin::replay::failures::LEFT;
use onedrop_admin::replay::from_ledger::{self, ReplayTask, Replayed, ReplayedEnd};
use onedrop_admin::replay::report::FileState;
use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::deliver::{CopyEnd, Policy};
use onedrop_core::directory::place_and_variant;
use onedrop_core::exit::Verdict;
use onedrop_core::ledger::{Attempt, of_the_ledger};
use onedrop_core::login_proof::WayProof;
use onedrop_core::os::host_name;
use onedrop_core::text::shown;
use onedrop_site::command_line::ReplayArgs;
use onedrop_site::service::Site;

/// The state of a copy that the run leaves to `onedrop settle`.
const DUE: &str = "due";

#[derive(Serialize)]
struct ReplayedLine {
    message_id: Option<String>,
    account: String,
    mailbox: String,
    /// In a word: would be delivered, stored, found, already there, due, failed.
    state: &'static str,
    text: String,
}

/// Ends with a negative result where a copy could not be placed, and with a failure where it ended
/// before all were tried.
pub(super) fn run(
    args: &ReplayArgs,
    site: &Site,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let limits = &site.loaded.config.limits;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let by = Attempt { host: host_name(), pid: std::process::id(), ..Attempt::default() };
    let policy = Policy {
        wait: Duration::ZERO,
        keep_raw: false,
        begins_early: false,
        side_by_side: 1,
        ..site.loaded.config.policy()
    };
    let secs = Duration::from_secs;
    let ledger = site.ledger().map_err(of_the_ledger)?;
    let store = site.store().map_err(|error| error.to_string())?;
    let gate = Arc::<WayProof>::default();
    let task = ReplayTask {
        since: args.since.as_deref().map_or(Ok(UNIX_EPOCH), since)?,
        dry_run: args.dry_run,
        policy: &policy,
        time: (secs(limits.deadline_secs), secs(limits.answer_secs)),
        clock: &clock,
        by: &by,
        may_write: &|until| gate.pass_root(&*ledger, &*store, until),
    };
    if !args.dry_run {
        // As before any delivery: nothing is written by a way that is not proven.
        let until = Instant::now() + task.time.0;
        ledger.check_program(until).map_err(of_the_ledger)?;
        let first = ledger.next_raw(task.since, 0, until).map_err(of_the_ledger)?;
        let account = first.and_then(|one| one.copies.into_iter().next());
        if let Some((destination, _)) = account {
            let passed = gate.pass(&[&destination.account], &by.host, &*ledger, &*store, until);
            passed.map_err(|failure| failure.to_string())?;
        }
    }
    let mut lines = Lines::new(args.json, ProgressBar::hidden());
    let (mut failed, mut due) = (0, 0);
    let ended = from_ledger::from_ledger(&task, &*ledger, &*store, &mut |one| {
        let line = line(one);
        failed += u64::from(line.state == FileState::Failed.name());
        due += u64::from(line.state == DUE);
        lines.print(&line, || text(&line, screen));
    });
    let done = if args.dry_run { "would be delivered" } else { "delivered" };
    let copies = lines.count - failed - due;
    let written = lines.end();
    let unit = if copies == 1 { "copy" } else { "copies" };
    let errors = screen.of_stderr();
    let mut err = errors.painted(&format!("{copies} {unit} {done}"), Paint::Good);
    if failed > 0 {
        err.push_str(", ");
        err.push_str(&errors.painted(&format!("{failed} failed"), Paint::Bad));
    }
    if due > 0 {
        err.push_str(&format!(", {due} left to onedrop settle"));
    }
    let verdict = match ended {
        Ok(None) if failed == 0 => Verdict::Done,
        Ok(None) => Verdict::No,
        Ok(Some(why)) => {
            let why = format!("stopped: {why}");
            err.push_str(&format!("\n{}", errors.painted(&shown(&why), Paint::Bad)));
            Verdict::Failed
        }
        Err(error) => {
            let why = format!("stopped: {}", of_the_ledger(error));
            err.push_str(&format!("\n{}", errors.painted(&shown(&why), Paint::Bad)));
            Verdict::Failed
        }
    };
    if matches!(verdict, Verdict::Failed) {
        err.push_str("\nthe rest is left: run it again when that is mended");
    }
    match written {
        Ok(()) => Ok(CommandOutcome { out: String::new(), err, verdict }),
        Err(error) => Err(format!("{err}\nstandard output: {error}")),
    }
}

fn line(one: &Replayed<'_>) -> ReplayedLine {
    let id = one.message.identity.message_id.as_deref();
    let failed = FileState::Failed.name();
    let (state, text) = match &one.end {
        ReplayedEnd::WouldBeDelivered => (FileState::WouldBeDelivered.name(), String::new()),
        ReplayedEnd::Tried(CopyEnd::Placed(placed)) => {
            (placed.how.name(), placed.receipt.to_string())
        }
        ReplayedEnd::Tried(CopyEnd::Left(left)) => (failed, left.to_string()),
        ReplayedEnd::Tried(CopyEnd::Failed(failure)) => (failed, failure.to_string()),
        ReplayedEnd::Left => (failed, LEFT.to_owned()),
        ReplayedEnd::Due => (DUE, "onedrop settle writes it".to_owned()),
    };
    ReplayedLine {
        message_id: id.map(|id| String::from_utf8_lossy(id).into_owned()),
        account: one.destination.account.clone(),
        mailbox: one.destination.mailbox.clone(),
        state,
        text,
    }
}

fn text(line: &ReplayedLine, screen: Screen) -> String {
    let ReplayedLine { message_id, account, mailbox, state, text } = line;
    let id = message_id.as_deref().unwrap_or("(no Message-ID)");
    let (place, variant) = place_and_variant(mailbox);
    let place = format!("account={account} mailbox={place}{variant} {id}");
    let paint = if *state == FileState::Failed.name() { Paint::Bad } else { Paint::Good };
    let line = format!("{}: {} {}", shown(&place), screen.painted(state, paint), shown(text));
    screen.fitted(line.trim_end(), 2) + "\n"
}
