//! The command line: argv to a command, and its end. A word that is not understood ends in 75, because Postfix returns
//! the mail for most other statuses; and a command that delivers nothing must not eat a message that was piped into it by
//! mistake, so where standard input is a pipe that is not at its end it ends in 75 as well.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Instant;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::stat::{SFlag, fstat};

use crate::config::{Config, ConfigErrors, Listen, Loaded};
use crate::exit;
use crate::ledger::{Ledger, LedgerError};
use crate::outcome::{Failure, Outcome, OverQuota};
use crate::store::{Store, StoreError};

mod check;
mod deliver;
mod input;
mod lmtp;
mod migrate;
mod postfix;
mod trace;
mod verify;

use verify::Verdict;

/// How long to wait for the first byte, or the end, of a pipe that a non-delivering command was given.
const PIPE_WAIT_MILLIS: u16 = 1000;

/// A session with the ledger, or why there is none.
pub type OpenedLedger = Result<Box<dyn Ledger>, LedgerError>;

/// Opens a session whose calls end by the instant.
pub type OpenLedger = fn(&Loaded, Instant) -> OpenedLedger;

/// Makes stores that share what can be shared; each is for one delivery at a time and connects to nothing yet.
pub type StoreMaker = Box<dyn Fn() -> Box<dyn Store> + Send + Sync>;

/// Prepares the making of stores.
pub type OpenStore = fn(&Loaded) -> Result<StoreMaker, StoreError>;

/// What `main` chose: how to open a ledger and a store.
#[derive(Clone, Copy)]
pub struct Adapters {
    pub open_ledger: OpenLedger,
    pub open_store: OpenStore,
}

/// Mail delivery agent for Postfix: leaves exactly one copy of a message in each mailbox it belongs to.
#[derive(Debug, Parser)]
#[command(name = "onedrop", version, disable_help_subcommand = true)]
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
    /// Test the configuration, the ledger, the store and the local Postfix set-up, a line per finding
    Check(CheckArgs),
    /// Show what is on record: the message, its copies, every attempt
    Trace(TraceArgs),
    /// Compare ledger and mailboxes, a line per finding; ends in 0 (nothing left to mend), 1 (something is) or 75 (failed)
    Verify(VerifyArgs),
}

/// What Postfix says about the message.
#[derive(Debug, Args)]
struct DeliverArgs {
    /// Envelope recipient; may be repeated [default: $RECIPIENT, else the top-most Delivered-To field]
    #[arg(short = 'd', value_name = "RECIPIENT", allow_hyphen_values = true)]
    recipients: Vec<OsString>,
    /// Envelope sender, empty for the null sender [default: $SENDER, else the top-most Return-Path field]
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
    /// Where to listen: ADDRESS:PORT or unix:/path; may be repeated [default: systemd's sockets, else lmtp.listen]
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
    /// Account to log in for [default: one of the directory's]
    #[arg(long)]
    account: Option<String>,
    /// Postfix configuration directory [default: the system's]
    #[arg(long, value_name = "DIR")]
    postfix: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct TraceArgs {
    /// Message-ID, queue id, recipient or account
    #[arg(value_name = "MESSAGE-ID | QUEUE-ID | RECIPIENT", allow_hyphen_values = true)]
    wanted: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Show at most this many messages, the newest first
    #[arg(long, default_value_t = 20)]
    limit: u32,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// Messages recorded since then: a duration back (24h, 7d) or a date (2026-11-01)
    #[arg(long, value_name = "TIME", default_value = "24h")]
    since: String,
    /// This account's mailboxes only
    #[arg(long)]
    account: Option<String>,
    /// Put on record what a look finds for copies in doubt, and take out copies of ours that are too many
    #[arg(long)]
    repair: bool,
    /// Print findings as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command in `argv` and ends the process.
pub fn run(argv: impl IntoIterator<Item = OsString>, adapters: Adapters) -> ! {
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            end_without_delivery(Ok(error.to_string()))
        }
        Err(error) => exit::end(&setup_failure(format!("usage: {}", usage_problem(&error)))),
    };
    let config = cli.config.as_deref();
    match cli.command {
        Command::Deliver(args) => exit::end(&deliver::run(args, config, adapters)),
        Command::Lmtp(args) => {
            // Before it serves for months: a message that was meant for deliver would wait as long.
            refuse_a_piped_message("lmtp");
            exit::end_command(lmtp::run(&args, config, adapters))
        }
        Command::Migrate => {
            let result = load(config).and_then(|loaded| migrate::run(&loaded, adapters));
            end_without_delivery(result)
        }
        Command::Check(args) => {
            let report = check::run(&args, config, adapters);
            refuse_a_piped_message(report.verdict.as_deref().unwrap_or("nothing is wrong"));
            exit::end_report(&report.text, report.verdict.as_deref())
        }
        Command::Trace(args) => {
            let result = load(config).and_then(|loaded| trace::run(&args, &loaded, adapters));
            end_without_delivery(result)
        }
        Command::Verify(args) => {
            // Before anything is done: it may take long, and 1 would return a mail to its sender.
            refuse_a_piped_message("verify");
            match load(config).map(|loaded| verify::run(&args, &loaded, adapters)) {
                Ok(Verdict::Clean(text)) => exit::end_verified(&text, true),
                Ok(Verdict::Findings(text)) => exit::end_verified(&text, false),
                Ok(Verdict::Failed(text)) | Err(text) => exit::end_command(Err(text)),
            }
        }
    }
}

/// What a command that delivers nothing has to say; `Err` for one that failed or found something.
type Said = Result<String, String>;

fn load(config: Option<&std::path::Path>) -> Result<Loaded, String> {
    Config::load(config).map_err(|errors: ConfigErrors| errors.to_string())
}

fn end_without_delivery(said: Said) -> ! {
    let (Ok(text) | Err(text)) = &said;
    refuse_a_piped_message(text);
    exit::end_command(said)
}

/// Ends the process as a failed delivery if it may have been one; the first line of `said` comes with it.
fn refuse_a_piped_message(said: &str) {
    if is_fed_through_a_pipe() {
        let first = said.lines().next().unwrap_or_default();
        exit::end(&setup_failure(format!(
            "this command delivers nothing, and standard input is a pipe that may hold a message (else use </dev/null): {first}"
        )));
    }
}

fn setup_failure(text: String) -> Outcome {
    Outcome::of(&Failure::Setup(text), OverQuota::Defer)
}

/// The first line of clap's error, without its `error: `.
fn usage_problem(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or("not understood");
    format!("{}; see onedrop --help", line.trim_start_matches("error: "))
}

/// Whether standard input is a pipe or socket that holds something or may still get something.
fn is_fed_through_a_pipe() -> bool {
    let stdin = std::io::stdin();
    let kind = fstat(&stdin).map(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT);
    if !matches!(kind, Ok(SFlag::S_IFIFO | SFlag::S_IFSOCK)) {
        return false;
    }
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let polled = poll(&mut fds, PIPE_WAIT_MILLIS);
    let hung_up_and_empty = fds[0]
        .revents()
        .is_some_and(|events| events.contains(PollFlags::POLLHUP) && !events.contains(PollFlags::POLLIN));
    !(matches!(polled, Ok(n) if n > 0) && hung_up_and_empty)
}
