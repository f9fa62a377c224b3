//! `onedrop check`: everything that would keep mail from being delivered, a line per finding.

use std::path::Path;

use clap::Parser as _;

use super::{CheckArgs, Cli, Command, CommandOutcome, counted, usage_problem};
use crate::check::{self, Arguments, Finding, Options, Severity, Understood};
use crate::exit::Verdict;
use crate::service::Adapters;

/// Ends as failed with errors, as no where something was not tested.
pub(super) fn run(args: CheckArgs, config: Option<&Path>, adapters: Adapters) -> CommandOutcome {
    let CheckArgs { json, account, dovecot, postfix } = args;
    let findings = check::run(&Options { account, dovecot, postfix, understand }, config, adapters);
    said(&findings, json)
}

/// What this program makes of a command line of its own.
pub fn understand(words: &[String]) -> Understood {
    match Cli::try_parse_from(words) {
        Ok(Cli { config, command: Command::Deliver(args) }) => Understood::Deliver(Arguments {
            config,
            recipients: args.recipients.iter().map(|to| to.to_string_lossy().into()).collect(),
            has_sender: args.sender.is_some(),
            has_size: args.size.is_some(),
            has_queue_id: !args.queue_id.is_empty(),
        }),
        Ok(_) => Understood::Other,
        Err(error) => Understood::Refused(usage_problem(&error)),
    }
}

fn said(findings: &[Finding], json: bool) -> CommandOutcome {
    let lines = || findings.iter().map(Finding::line).collect::<Vec<_>>().join("\n");
    let out = match json {
        true => serde_json::to_string_pretty(findings).unwrap_or_else(|_| lines()),
        false => lines(),
    };
    let count = |level| findings.iter().filter(|finding| finding.severity == level).count();
    let (errors, warnings, gaps) =
        (count(Severity::Error), count(Severity::Warning), count(Severity::Untested));
    let counts = [(errors, "error"), (gaps, "gap"), (warnings, "warning")];
    let counts: Vec<_> =
        counts.iter().filter(|(one, _)| *one > 0).map(|(one, what)| counted(*one, what)).collect();
    match (errors, gaps) {
        (0, 0) => CommandOutcome::done(out),
        (0, _) => CommandOutcome { out, err: counts.join(", "), verdict: Verdict::No },
        _ => CommandOutcome { out, err: counts.join(", "), verdict: Verdict::Failed },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_counts() {
        let of = |levels: &[Severity]| {
            let findings: Vec<_> =
                levels.iter().map(|level| Finding::new(*level, "store", "x")).collect();
            let said = said(&findings, false);
            (said.err, said.verdict)
        };
        assert_eq!(of(&[Severity::Ok, Severity::Warning]), (String::new(), Verdict::Done));
        assert_eq!(
            of(&[Severity::Untested, Severity::Warning]),
            ("1 gap, 1 warning".to_owned(), Verdict::No)
        );
        assert_eq!(
            of(&[Severity::Error, Severity::Untested]),
            ("1 error, 1 gap".to_owned(), Verdict::Failed)
        );
        let three = of(&[Severity::Error, Severity::Warning, Severity::Error]);
        assert_eq!(three, ("2 errors, 1 warning".to_owned(), Verdict::Failed));
    }
}
