//! `onedrop check`: everything that would keep mail from being delivered, a line per finding.

use std::path::Path;
use std::time::Duration;

use super::terminal::{Paint, Screen};
use super::{CommandOutcome, counted};
use onedrop_admin::check::{self, Finding, Severity};
use onedrop_core::exit::Verdict;
use onedrop_site::command_line::CheckArgs;
use onedrop_site::service::Adapters;

/// How long a step may take.
const TIME: Duration = Duration::from_secs(15);

/// Ends as failed with errors, as no where something was not tested.
pub(super) fn run(
    args: &CheckArgs,
    config: Option<&Path>,
    adapters: Adapters,
    screen: Screen,
) -> CommandOutcome {
    let findings = check::run(args, config, adapters, TIME);
    let lines = || findings.iter().map(|finding| line(finding, screen)).collect::<String>();
    let out = match args.json {
        true => serde_json::to_string_pretty(&findings).unwrap_or_else(|_| lines()),
        false => lines(),
    };
    let count = |level| findings.iter().filter(|finding| finding.severity == level).count() as u64;
    let (errors, gaps) = (count(Severity::Error), count(Severity::Untested));
    let counts = [(errors, "error"), (gaps, "gap"), (count(Severity::Warning), "warning")];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts.map(|(count, what)| counted(*count, what)).collect();
    let (err, verdict) = match (errors, gaps) {
        (0, 0) => (String::new(), Verdict::Done),
        (0, _) => (counts.join(", "), Verdict::No),
        _ => (counts.join(", "), Verdict::Failed),
    };
    CommandOutcome { out, err, verdict }
}

/// The finding as a line for an administrator.
fn line(finding: &Finding, screen: Screen) -> String {
    let paint = match finding.severity {
        Severity::Ok => Paint::Good,
        Severity::Warning | Severity::Untested => Paint::Doubtful,
        Severity::Error => Paint::Bad,
    };
    let line = finding.line();
    let level = format!("{:<7} ", finding.severity);
    screen.line(&level, paint, line.strip_prefix(&level).unwrap_or_default(), level.len())
}
