//! `onedrop forget`: what of the record is forgotten, a line for each copy.

use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::terminal::{Paint, Screen};
use super::{CommandOutcome, counted, since_by};
use onedrop_core::clock::SystemClock;
use onedrop_core::directory::place_and_variant;
use onedrop_core::exit::Verdict;
use onedrop_core::ledger::{ForgetWhat, ForgottenCopy, PassedBy, of_the_ledger};
use onedrop_core::retention;
use onedrop_core::text::shown;
use onedrop_site::command_line::ForgetArgs;
use onedrop_site::service::Site;

/// For the ledger to say what time it is.
const TIME: Duration = Duration::from_secs(30);
const LEASED: &str = "leased not long ago";
const NEEDED: &str = "another account's Sent still needs its Message-ID";

#[derive(Serialize)]
struct ForgottenLine {
    message_id: Option<String>,
    account: String,
    mailbox: String,
    /// It is not forgotten yet: a delivery may still write it, or another's Sent needs it.
    passed_by: bool,
    why: Option<&'static str>,
    /// `replay --from-ledger` can deliver it.
    raw_kept: bool,
}

/// Ends as no where nothing was found.
pub(super) fn run(
    args: &ForgetArgs,
    site: &Site,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let ledger = site.ledger().map_err(of_the_ledger)?;
    let what = match (&args.message_id, &args.since, &args.account) {
        (Some(id), ..) => ForgetWhat::Message(id),
        (_, Some(text), _) => {
            // Copies were placed by the ledger's clock.
            let now = ledger.clock(Instant::now() + TIME).map_err(of_the_ledger)?;
            ForgetWhat::Since(since_by(text, now.unwrap_or_else(SystemTime::now))?)
        }
        (.., Some(account)) => ForgetWhat::Account(account),
        (None, None, None) => return Err("nothing to forget is named".to_owned()),
    };
    let mut lines = Vec::new();
    let ended = retention::forget(what, args.dry_run, &*ledger, &SystemClock, &mut |copy| {
        lines.push(line(copy));
    });
    let passed_by = lines.iter().filter(|one| one.passed_by).count() as u64;
    let done = if args.dry_run { "would be forgotten" } else { "forgotten" };
    let copies = lines.len() as u64 - passed_by;
    let unit = if copies == 1 { "copy" } else { "copies" };
    let mut err = format!("{copies} {unit} {done}");
    let gone = lines.iter().filter(|one| !one.passed_by && !one.raw_kept).count();
    if gone > 0 && args.account.is_none() {
        err.push_str(&format!(
            "; of {gone} the ledger has no bytes (ledger.keep_raw, retention.raw_days): `onedrop \
             replay --from-ledger` cannot deliver them"
        ));
    }
    for (word, why) in [
        (LEASED, "a delivery may still write: try again in an hour"),
        (NEEDED, "another account's Sent still needs: try again when `onedrop settle` is done"),
    ] {
        let count = lines.iter().filter(|one| one.why == Some(word)).count() as u64;
        if count > 0 {
            err.push_str(&format!("; passed by {}, which {why}", counted(count, "other")));
        }
    }
    let out = match args.json {
        true => serde_json::to_string_pretty(&lines).unwrap_or_default(),
        false => lines.iter().map(|one| text(one, done, screen)).collect(),
    };
    // What was forgotten by then is named nowhere else.
    let (err, verdict) = match ended {
        Err(error) => (format!("{}; before that {err}", of_the_ledger(error)), Verdict::Failed),
        Ok(()) if lines.is_empty() || passed_by > 0 => (err, Verdict::No),
        Ok(()) => (err, Verdict::Done),
    };
    Ok(CommandOutcome { out, err, verdict })
}

fn line(copy: &ForgottenCopy) -> ForgottenLine {
    let id = copy.message_id.as_deref();
    ForgottenLine {
        message_id: id.map(|id| String::from_utf8_lossy(id).into_owned()),
        account: copy.destination.account.clone(),
        mailbox: copy.destination.mailbox.clone(),
        passed_by: copy.passed_by.is_some(),
        why: copy.passed_by.map(|why| match why {
            PassedBy::Lease => LEASED,
            PassedBy::Sent => NEEDED,
        }),
        raw_kept: copy.has_raw,
    }
}

fn text(line: &ForgottenLine, done: &str, screen: Screen) -> String {
    let ForgottenLine { message_id, account, mailbox, why, .. } = line;
    let id = message_id.as_deref().unwrap_or("(no Message-ID)");
    let (place, variant) = place_and_variant(mailbox);
    let done = match why {
        Some(why) => screen.painted(&format!("passed by: {why}"), Paint::Doubtful),
        None => screen.painted(done, Paint::Good),
    };
    let copy = format!("account={account} mailbox={place}{variant} {id}");
    screen.fitted(&format!("{}: {done}\n", shown(&copy)), 2)
}
