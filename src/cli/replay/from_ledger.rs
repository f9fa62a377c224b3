//! `onedrop replay --from-ledger`: delivers again, and tells each copy.

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;

use crate::cli::{CommandOutcome, since};
use crate::clock::{Clock, SystemClock};
use crate::command_line::ReplayArgs;
use crate::config::Loaded;
use crate::deliver::Policy;
use crate::exit::Verdict;
use crate::ledger::Attempt;
use crate::replay::from_ledger::{self, ReplayPlan, Replayed};
use crate::service::{Adapters, ONE, host_name};
use crate::text::one_line;
use crate::way::WayProof;

#[derive(Serialize)]
struct ReplayedLine {
    message_id: Option<String>,
    account: String,
    mailbox: String,
    /// In a word: would be delivered, stored, found, already there, failed.
    state: &'static str,
    text: String,
}

/// Ends with a negative result where a copy could not be placed.
pub(super) fn run(
    args: &ReplayArgs,
    loaded: &Loaded,
    adapters: Adapters,
) -> Result<CommandOutcome, String> {
    let limits = &loaded.config.limits;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let by = Attempt { host: host_name(), pid: std::process::id(), ..Attempt::default() };
    let policy = Policy {
        wait: Duration::ZERO,
        keep_raw: false,
        sent_after: Duration::ZERO,
        begins_early: false,
        side_by_side: 1,
        ..Policy::of(&loaded.config)
    };
    let secs = Duration::from_secs;
    let plan = ReplayPlan {
        since: args.since.as_deref().map_or(Ok(UNIX_EPOCH), since)?,
        dry_run: args.dry_run,
        policy: &policy,
        time: (secs(limits.deadline_secs), secs(limits.answer_secs)),
        clock: &clock,
        by: &by,
    };
    let of_the_ledger = |error| format!("ledger: {error}");
    let ledger = (adapters.ledger)(loaded, ONE).map_err(of_the_ledger)?;
    let store = (adapters.store)(loaded, ONE).map_err(|error| error.to_string())?;
    if !args.dry_run {
        // As before any delivery: nothing is written by a way that is not proven.
        let until = Instant::now() + plan.time.0;
        ledger.check_program(until).map_err(of_the_ledger)?;
        let first = ledger.next_raw(plan.since, 0, until).map_err(of_the_ledger)?;
        let account = first.and_then(|one| one.copies.into_iter().next());
        if let Some((destination, _)) = account {
            let gate = Arc::<WayProof>::default();
            let passed = gate.pass(&[&destination.account], &by.host, &*ledger, &*store, until);
            passed.map_err(|failure| failure.to_string())?;
        }
    }
    let mut lines = Vec::new();
    from_ledger::from_ledger(&plan, &*ledger, &*store, &mut |one| lines.push(line(one)))
        .map_err(of_the_ledger)?;
    let failed = lines.iter().filter(|one| one.state == "failed").count();
    let done = if args.dry_run { "would be delivered" } else { "delivered" };
    let copies = lines.len() - failed;
    let unit = if copies == 1 { "copy" } else { "copies" };
    let mut err = format!("{copies} {unit} {done}");
    if failed > 0 {
        err.push_str(&format!(", {failed} failed"));
    }
    let out = match args.json {
        true => serde_json::to_string_pretty(&lines).unwrap_or_default(),
        false => lines.iter().map(text).collect(),
    };
    let verdict = if failed > 0 { Verdict::No } else { Verdict::Done };
    Ok(CommandOutcome { out, err, verdict })
}

fn line(one: &Replayed<'_>) -> ReplayedLine {
    let id = one.message.identity.message_id.as_deref();
    let (state, text) = match &one.result {
        None => ("would be delivered", String::new()),
        Some(Ok(placed)) => (placed.how.name(), placed.receipt.to_string()),
        Some(Err(failure)) => ("failed", failure.to_string()),
    };
    ReplayedLine {
        message_id: id.map(|id| String::from_utf8_lossy(id).into_owned()),
        account: one.destination.account.clone(),
        mailbox: one.destination.mailbox.clone(),
        state,
        text,
    }
}

fn text(line: &ReplayedLine) -> String {
    let ReplayedLine { message_id, account, mailbox, state, text } = line;
    let id = message_id.as_deref().unwrap_or("(no Message-ID)");
    let line = format!("account={account} mailbox={mailbox} {id}: {state} {text}");
    one_line(line.trim_end()).into_owned() + "\n"
}
