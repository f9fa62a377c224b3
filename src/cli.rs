//! The command line: parses argv, runs the command and ends the process. A usage error exits 75,
//! because Postfix returns the mail for most other statuses. A command that delivers nothing must
//! not lose a message that a transport pipes into it by mistake: if Postfix started it (pipe(8) and
//! local(8) set MAIL_CONFIG) and standard input is a pipe, it does nothing and exits 75. Otherwise
//! it never reads standard input.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use nix::sys::stat::{SFlag, fstat};

use crate::config::{Config, ConfigErrors, Listen, Loaded};
use crate::deliver::Failure;
use crate::exit::{self, Verdict};
use crate::outcome::{Outcome, OverQuota};
use crate::service::Adapters;

mod check;
mod deliver;
mod input;
mod lmtp;
mod migrate;
mod trace;
mod verify;

pub use check::understand;
/// Mail delivery agent for Postfix: leaves exactly one copy of a message in each mailbox it belongs
/// to.
#[derive(Debug, Parser)]
#[command(name = "onedrop", version, arg_required_else_help = true)]
struct Cli {
    /// Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Deliver the message on standard input
    Deliver(DeliverArgs),
    /// Serve LMTP until SIGTERM; SIGHUP reads the configuration again
    Lmtp(LmtpArgs),
    /// Bring the ledger's schema to this program's version
    Migrate,
    /// Test the configuration, the ledger, the store and the local Postfix set-up, a line per
    /// finding
    Check(CheckArgs),
    /// Show what is on record: messages, their copies, every attempt; exits 1 if nothing is found
    Trace(TraceArgs),
    /// Compare ledger and mailboxes, a line per finding; exits 0 (nothing left to repair), 1
    /// (something is) or 75 (failed)
    Verify(VerifyArgs),
}

/// What Postfix says about the message.
#[derive(Debug, Args)]
struct DeliverArgs {
    /// Envelope recipient; may be repeated [default: $RECIPIENT, else the top-most Delivered-To
    /// field]
    #[arg(short = 'd', value_name = "RECIPIENT", allow_hyphen_values = true)]
    recipients: Vec<OsString>,
    /// Envelope sender, empty for the null sender [default: $SENDER, else the top-most Return-Path
    /// field]
    #[arg(short = 'f', value_name = "SENDER", allow_hyphen_values = true)]
    sender: Option<OsString>,
    /// Size of the message as Postfix states it (${size}); a much shorter message is refused as cut
    #[arg(long, value_name = "BYTES")]
    size: Option<u64>,
    /// Postfix queue id (${queue_id}), for the record
    #[arg(long, value_name = "ID", allow_hyphen_values = true, default_value = "")]
    queue_id: OsString,
    /// Login of the client that submitted the message (${sasl_username}), empty for none
    #[arg(long, value_name = "LOGIN", allow_hyphen_values = true, default_value = "")]
    sasl_username: OsString,
}

#[derive(Debug, Clone, Args)]
struct LmtpArgs {
    /// Where to listen: ADDRESS:PORT or unix:/path; may be repeated [default: systemd's sockets,
    /// else lmtp.listen]
    #[arg(long, value_name = "PLACE")]
    listen: Vec<Listen>,
    /// Serve Prometheus text at /metrics on this address [default: lmtp.metrics]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<std::net::SocketAddr>,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Print findings as JSON
    #[arg(long)]
    json: bool,
    /// Account to log in for [default: one of the directory's, else of the latest copy on record]
    #[arg(long)]
    account: Option<String>,
    /// Dovecot configuration file, for doveconf [default: the system's, if the mailboxes are on
    /// this host]
    #[arg(long, value_name = "FILE")]
    dovecot: Option<PathBuf>,
    /// Postfix configuration directory [default: the system's]
    #[arg(long, value_name = "DIR")]
    postfix: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct TraceArgs {
    /// Message-ID, queue id, recipient or account; optional if another condition is given
    #[arg(
        value_name = "MESSAGE-ID | QUEUE-ID | RECIPIENT | ACCOUNT",
        required_unless_present_any = ["since", "sender", "subject", "failed"]
    )]
    wanted: Option<String>,
    /// Recorded since: a duration back (24h, 7d) or a date (2026-11-01) [default: 7d if no name is
    /// given]
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Part of the envelope sender or of an address in From
    #[arg(long, value_name = "TEXT")]
    sender: Option<String>,
    /// Part of the subject
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    /// Messages with a copy that is not placed, or a recipient whose last attempt failed
    #[arg(long)]
    failed: bool,
    /// Show at most this many messages, the newest first
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print times in UTC instead of this host's time zone
    #[arg(long)]
    utc: bool,
    /// Print as JSON, with times in UTC
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// Messages recorded since: a duration back (24h, 7d) or a date (2026-11-01)
    #[arg(long, value_name = "TIME", default_value = "24h")]
    since: String,
    /// This account's mailboxes only
    #[arg(long)]
    account: Option<String>,
    /// Record what is found for copies in doubt, place Sent copies that were kept for later, and
    /// remove surplus copies that Onedrop wrote
    #[arg(long)]
    repair: bool,
    /// Print findings as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command in `argv` and ends the process.
pub fn run(argv: impl IntoIterator<Item = OsString>, adapters: Adapters) -> ! {
    let argv: Vec<OsString> = argv.into_iter().collect();
    let cli =
        Cli::try_parse_from(&argv).unwrap_or_else(|error| end_without_a_command(&error, &argv));
    let config = cli.config.as_deref();
    if let Command::Deliver(args) = cli.command {
        exit::end(&deliver::run(args, config, adapters));
    }
    // Before the command runs: it may take long, and its exit status could return the mail.
    if is_fed_by_postfix() {
        exit::end(&setup_failure(DELIVERS_NOTHING.to_owned()));
    }
    let said = match cli.command {
        Command::Deliver(_) => unreachable!("it has ended"),
        Command::Lmtp(args) => {
            lmtp::run(&args, config, adapters).map(|()| CommandOutcome::done(String::new()))
        }
        Command::Migrate => load(config)
            .and_then(|loaded| migrate::run(&loaded, adapters))
            .map(CommandOutcome::done),
        Command::Check(args) => Ok(check::run(args, config, adapters)),
        Command::Trace(args) => {
            load(config).and_then(|loaded| trace::run(&args, &loaded, adapters))
        }
        Command::Verify(args) => load(config).map(|loaded| verify::run(&args, &loaded, adapters)),
    };
    let CommandOutcome { out, err, verdict } = said.unwrap_or_else(CommandOutcome::failed);
    exit::end_command(&out, &err, verdict)
}

/// What a command that delivers nothing has to say at its end.
struct CommandOutcome {
    /// For standard output.
    out: String,
    /// For standard error.
    err: String,
    verdict: Verdict,
}

impl CommandOutcome {
    fn done(out: String) -> CommandOutcome {
        CommandOutcome { out, err: String::new(), verdict: Verdict::Done }
    }

    fn failed(err: String) -> CommandOutcome {
        CommandOutcome { out: String::new(), err, verdict: Verdict::Failed }
    }
}

/// `3 errors`, `1 error`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn load(config: Option<&std::path::Path>) -> Result<Loaded, String> {
    Config::load(config).map_err(|errors: ConfigErrors| errors.to_string())
}

/// For a transport that calls another command than `deliver`.
const DELIVERS_NOTHING: &str = "this command delivers nothing, and Postfix gave it a message: \
    MAIL_CONFIG is set and standard input is a pipe; transports call `onedrop deliver` \
    (a script: use </dev/null)";

/// Ends the process if the command line asks for help or is wrong. Postfix, and every caller of
/// `deliver`, gets one line with the status and the error; an administrator gets clap's whole text
/// on standard error.
fn end_without_a_command(error: &clap::Error, argv: &[OsString]) -> ! {
    let asks = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let text = error.to_string();
    match (asks, is_fed_by_postfix()) {
        (true, true) => exit::end(&setup_failure(DELIVERS_NOTHING.to_owned())),
        (true, false) => exit::end_command(&text, "", Verdict::Done),
        (false, by_postfix) if by_postfix || argv.iter().any(|word| word == "deliver") => {
            exit::end(&setup_failure(format!("usage: {}", usage_problem(error))))
        }
        (false, _) => exit::end_command("", &text, Verdict::Failed),
    }
}

fn setup_failure(text: String) -> Outcome {
    Failure::Setup(text).outcome(OverQuota::Defer)
}

/// clap's error and tips in one line, without the usage.
fn usage_problem(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.split("\n\nFor more information").next().unwrap_or_default();
    let parts = what.trim_start_matches("error: ").split("\n\n");
    let parts: Vec<String> =
        parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    format!("{}; see onedrop --help", parts.join("; "))
}

/// Whether Postfix started this process and standard input is a pipe: then the pipe holds a
/// message.
fn is_fed_by_postfix() -> bool {
    let kind =
        fstat(std::io::stdin()).map(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT);
    std::env::var_os("MAIL_CONFIG").is_some()
        && matches!(kind, Ok(SFlag::S_IFIFO | SFlag::S_IFSOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_is_one_line_with_a_suggestion() {
        for (argv, expected) in [
            (
                &["onedrop", "trace", "--jsno", "x"][..],
                "unexpected argument '--jsno' found; tip: a similar argument exists: '--json'",
            ),
            (
                &["onedrop", "delivr"],
                "unrecognized subcommand 'delivr'; tip: a similar subcommand exists: 'deliver'",
            ),
            (
                &["onedrop", "deliver", "-d"],
                "a value is required for '-d <RECIPIENT>' but none was supplied",
            ),
        ] {
            let error = Cli::try_parse_from(argv).expect_err("an error");
            assert_eq!(usage_problem(&error), format!("{expected}; see onedrop --help"));
        }
    }
}
