//! `onedrop purge`: forgets what retention says, and prints how much that was.

use std::time::Duration;

use super::terminal::{Paint, Screen};
use super::{CommandOutcome, counted};
use onedrop_core::clock::SystemClock;
use onedrop_core::duration;
use onedrop_core::ledger::of_the_ledger;
use onedrop_core::retention::{self, Ages, Purged};
use onedrop_site::command_line::PurgeArgs;
use onedrop_site::service::Site;

const DAY: Duration = Duration::from_secs(86_400);
/// A hundred years, as `retention.days` may be at most: a calendar has an end.
const LONGEST: Duration = Duration::from_secs(36_500 * 86_400);

pub(super) fn run(args: &PurgeArgs, site: &Site, screen: Screen) -> Result<CommandOutcome, String> {
    let days = |days: u64| Duration::from_secs(days.saturating_mul(DAY.as_secs()));
    let settings = &site.loaded.config.retention;
    let messages = match &args.older_than {
        Some(text) => older_than(text)?,
        None => days(settings.days),
    };
    let ages = Ages {
        messages,
        facts: days(settings.facts_days).min(messages),
        raw: days(settings.raw_days).min(messages),
        kept: days(settings.raw_days),
    };
    let ledger = site.ledger().map_err(of_the_ledger)?;
    let purged = retention::purge(ages, args.dry_run, &*ledger, &SystemClock);
    let purged = purged.map_err(of_the_ledger)?;
    Ok(CommandOutcome::done(match args.json {
        true => serde_json::to_string(&purged).unwrap_or_default(),
        false => screen.fitted(&text(&purged, args.dry_run, screen), 2),
    }))
}

/// # Errors
/// It is no time, or too short or too long a one.
fn older_than(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text).map_err(|why| format!("--older-than {text}: {why}"))?;
    if time < DAY {
        // What Postfix tries again today must find its record.
        return Err(format!("--older-than {text}: at least 1d"));
    }
    if time > LONGEST {
        return Err(format!("--older-than {text}: at most 36500d"));
    }
    Ok(time)
}

fn text(purged: &Purged, dry_run: bool, screen: Screen) -> String {
    let Purged { messages, passed_by, facts, raw, kept, attempts, hosts } = *purged;
    let done = if dry_run { "would be forgotten" } else { "forgotten" };
    let first = format!("{} {done}", counted(messages, "message"));
    let mut text = screen.painted(&first, Paint::Good);
    let counts = [
        (facts, "facts of", "message"),
        (raw, "bytes of", "message"),
        (kept, "bytes kept for the Sent of", "message"),
        (attempts, "", "attempt"),
        (hosts, "", "host"),
    ];
    for (count, what, unit) in counts.into_iter().filter(|(count, ..)| *count > 0) {
        let counted = counted(count, unit);
        text.push_str(&format!(", {}", format!("{what} {counted}").trim_start()));
    }
    if passed_by > 0 {
        let first = format!("{} passed by", counted(passed_by, "message"));
        let first = screen.painted(&first, Paint::Doubtful);
        text.push_str(&format!("; {first}: leased not long ago, or kept for a Sent"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_day_to_a_hundred_years() {
        for (text, expected) in [
            ("1d", Ok(DAY)),
            ("36500d", Ok(LONGEST)),
            ("23h", Err("--older-than 23h: at least 1d")),
            ("36501d", Err("--older-than 36501d: at most 36500d")),
        ] {
            assert_eq!(older_than(text), expected.map_err(str::to_owned));
        }
    }
}
