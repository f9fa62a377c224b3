//! The command line: argv to a command, and its end. A word that is not understood ends in 75,
//! because Postfix returns the mail for most other statuses. A command that delivers nothing must
//! not eat a message that a transport pipes into it by mistake: where Postfix started it (pipe(8)
//! and local(8) set MAIL_CONFIG) and standard input is a pipe, it does nothing and ends in 75.
//! Everywhere else standard input is none of its business: it is not read, whatever it is.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use nix::sys::stat::{SFlag, fstat};

use crate::config::{Config, ConfigErrors, Listen, Loaded};
use crate::deliver::Failure;
use crate::exit::{self, Verdict};
use crate::ledger::{Ledger, LedgerError};
use crate::outcome::{Outcome, OverQuota};
use crate::store::{Store, StoreError};

mod check;
mod deliver;
mod input;
mod lmtp;
mod migrate;
mod trace;
mod verify;

pub use check::understand;
pub(crate) use deliver::host_name;

/// A session with the ledger, or why there is none.
pub type OpenedLedger = Result<Box<dyn Ledger>, LedgerError>;

/// Opens a session whose calls end by the instant.
pub type OpenLedger = fn(&Loaded, Instant) -> OpenedLedger;

/// Makes stores that share what can be shared; each is for one delivery at a time and connects to
/// nothing yet.
pub type StoreMaker = Box<dyn Fn() -> Box<dyn Store> + Send + Sync>;

/// Prepares the making of stores.
pub type OpenStore = fn(&Loaded) -> Result<StoreMaker, StoreError>;

/// What `main` chose: how to open a ledger and a store.
#[derive(Clone, Copy)]
pub struct Adapters {
    pub open_ledger: OpenLedger,
    pub open_store: OpenStore,
}

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
    /// Show what is on record: the message, its copies, every attempt; ends in 1 when nothing is
    /// found
    Trace(TraceArgs),
    /// Compare ledger and mailboxes, a line per finding; ends in 0 (nothing left to mend), 1
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
    /// Size of the message as Postfix states it (${size}); a much shorter one was cut on its way
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
    /// Message-ID, queue id, recipient or account; may be left out where another condition is given
    #[arg(
        value_name = "MESSAGE-ID | QUEUE-ID | RECIPIENT | ACCOUNT",
        required_unless_present_any = ["since", "sender", "subject", "failed"]
    )]
    wanted: Option<String>,
    /// Recorded since then: a duration back (24h, 7d) or a date (2026-11-01) [default: without a
    /// name, 7d]
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// This is part of the envelope sender or of an address in From
    #[arg(long, value_name = "TEXT")]
    sender: Option<String>,
    /// This is part of the subject
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    /// Not all is done: a copy is not placed, or a recipient's last attempt failed
    #[arg(long)]
    failed: bool,
    /// Show at most this many messages, the newest first
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Tell times in UTC, not in this host's time zone
    #[arg(long)]
    utc: bool,
    /// Print as JSON, with times in UTC
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// Messages recorded since then: a duration back (24h, 7d) or a date (2026-11-01)
    #[arg(long, value_name = "TIME", default_value = "24h")]
    since: String,
    /// This account's mailboxes only
    #[arg(long)]
    account: Option<String>,
    /// Put on record what a look finds for copies in doubt, place Sent copies that are kept for
    /// later, and take out copies of ours that are too many
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
    // Before anything is done: it may take long, and its ending may be one that returns a mail to
    // its sender.
    if is_fed_by_postfix() {
        exit::end(&setup_failure(DELIVERS_NOTHING.to_owned()));
    }
    let said = match cli.command {
        Command::Deliver(_) => unreachable!("it has ended"),
        Command::Lmtp(args) => {
            lmtp::run(&args, config, adapters).map(|()| Said::done(String::new()))
        }
        Command::Migrate => {
            load(config).and_then(|loaded| migrate::run(&loaded, adapters)).map(Said::done)
        }
        Command::Check(args) => Ok(check::run(args, config, adapters)),
        Command::Trace(args) => {
            load(config).and_then(|loaded| trace::run(&args, &loaded, adapters))
        }
        Command::Verify(args) => load(config).map(|loaded| verify::run(&args, &loaded, adapters)),
    };
    let Said { out, err, verdict } = said.unwrap_or_else(Said::failed);
    exit::end_command(&out, &err, verdict)
}

/// What a command that delivers nothing has to say at its end.
struct Said {
    /// For standard output.
    out: String,
    /// For standard error.
    err: String,
    verdict: Verdict,
}

impl Said {
    fn done(out: String) -> Said {
        Said { out, err: String::new(), verdict: Verdict::Done }
    }

    fn failed(err: String) -> Said {
        Said { out: String::new(), err, verdict: Verdict::Failed }
    }
}

/// `3 errors`, `1 error`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn load(config: Option<&std::path::Path>) -> Result<Loaded, String> {
    Config::load(config).map_err(|errors: ConfigErrors| errors.to_string())
}

/// What a transport hears that calls another command than the one that delivers.
const DELIVERS_NOTHING: &str = "this command delivers nothing, and Postfix gave it a message: MAIL_CONFIG is set and \
                                standard input is a pipe; transports call `onedrop deliver` (a script: use </dev/null)";

/// Ends the process where the command line asks for help, or makes no sense. `deliver`, and
/// whatever Postfix started, says in one line what is wrong, behind the status; an administrator
/// gets all of it, with the usage, on standard error.
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

/// clap's error with its tips in one line, without the usage behind it.
fn usage_problem(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.split("\n\nFor more information").next().unwrap_or_default();
    let parts = what.trim_start_matches("error: ").split("\n\n");
    let parts: Vec<String> =
        parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    format!("{}; see onedrop --help", parts.join("; "))
}

/// Whether Postfix started this process and standard input is a pipe, which holds a message then.
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
    fn a_word_that_is_not_understood_is_told_in_one_line_with_what_was_probably_meant() {
        let told = |argv: &[&str]| usage_problem(&Cli::try_parse_from(argv).expect_err("an error"));
        assert_eq!(
            told(&["onedrop", "trace", "--jsno", "x"]),
            "unexpected argument '--jsno' found; tip: a similar argument exists: '--json'; see onedrop --help"
        );
        assert_eq!(
            told(&["onedrop", "delivr"]),
            "unrecognized subcommand 'delivr'; tip: a similar subcommand exists: 'deliver'; see onedrop --help"
        );
        assert_eq!(
            told(&["onedrop", "deliver", "-d"]),
            "a value is required for '-d <RECIPIENT>' but none was supplied; see onedrop --help"
        );
    }
}
