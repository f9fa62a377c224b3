//! `onedrop forget`: what of the record is forgotten, a line for each copy.

use serde::Serialize;

use super::{CommandOutcome, counted, since};
use crate::clock::SystemClock;
use crate::command_line::ForgetArgs;
use crate::config::Loaded;
use crate::exit::Verdict;
use crate::ledger::{ForgetWhat, ForgottenCopy};
use crate::retention;
use crate::service::{Adapters, ONE};
use crate::text::one_line;

#[derive(Serialize)]
struct ForgottenLine {
    message_id: Option<String>,
    account: String,
    mailbox: String,
    /// A delivery may still write it.
    passed_by: bool,
}

/// Ends as no where nothing was found.
pub(super) fn run(
    args: &ForgetArgs,
    loaded: &Loaded,
    adapters: Adapters,
) -> Result<CommandOutcome, String> {
    let what = match (&args.message_id, &args.since, &args.account) {
        (Some(id), ..) => ForgetWhat::Message(id),
        (_, Some(text), _) => ForgetWhat::Since(since(text)?),
        (.., Some(account)) => ForgetWhat::Account(account),
        (None, None, None) => return Err("nothing to forget is named".to_owned()),
    };
    let of_the_ledger = |error| format!("ledger: {error}");
    let ledger = (adapters.ledger)(loaded, ONE).map_err(of_the_ledger)?;
    let mut lines = Vec::new();
    retention::forget(what, args.dry_run, &*ledger, &SystemClock, &mut |copy| {
        lines.push(line(copy));
    })
    .map_err(of_the_ledger)?;
    let passed_by = lines.iter().filter(|one| one.passed_by).count() as u64;
    let done = if args.dry_run { "would be forgotten" } else { "forgotten" };
    let copies = lines.len() as u64 - passed_by;
    let unit = if copies == 1 { "copy" } else { "copies" };
    let mut err = format!("{copies} {unit} {done}");
    if passed_by > 0 {
        let why = "a delivery may still write: try again in an hour";
        err.push_str(&format!("; passed by {}, which {why}", counted(passed_by, "other")));
    }
    let out = match args.json {
        true => serde_json::to_string_pretty(&lines).unwrap_or_default(),
        false => lines.iter().map(|one| text(one, done)).collect(),
    };
    let verdict = if lines.is_empty() || passed_by > 0 { Verdict::No } else { Verdict::Done };
    Ok(CommandOutcome { out, err, verdict })
}

fn line(copy: &ForgottenCopy) -> ForgottenLine {
    let id = copy.message_id.as_deref();
    ForgottenLine {
        message_id: id.map(|id| String::from_utf8_lossy(id).into_owned()),
        account: copy.destination.account.clone(),
        mailbox: copy.destination.mailbox.clone(),
        passed_by: copy.passed_by,
    }
}

fn text(line: &ForgottenLine, done: &str) -> String {
    let ForgottenLine { message_id, account, mailbox, passed_by } = line;
    let id = message_id.as_deref().unwrap_or("(no Message-ID)");
    let done = if *passed_by { "passed by: leased not long ago" } else { done };
    one_line(&format!("account={account} mailbox={mailbox} {id}: {done}")).into_owned() + "\n"
}
