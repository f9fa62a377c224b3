//! The arguments of every command, as clap reads them. `check` reads with them what Postfix's
//! configuration gives to onedrop.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use crate::config::Listen;

mod jobs;
mod locks;
mod manual;
mod replay;

pub use jobs::{JobsArgs, JobsCommand, JobsRunArgs};
pub use locks::{Codes, LockArgs, LockCommand, OnBusy, WithLockArgs};
pub use manual::{described, manual};
pub use replay::{MboxQuoting, ReplayArgs};

/// Mail delivery agent for Postfix: leaves exactly one copy of a message in each mailbox it belongs
/// to.
#[derive(Debug, Parser)]
#[command(name = "onedrop", version, arg_required_else_help = true)]
pub struct Cli {
    /// Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Colours: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true
    )]
    pub color: ColorWhen,
    #[command(subcommand)]
    pub command: CliCommand,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Deliver the message on standard input
    Deliver(DeliverArgs),
    /// Serve LMTP until SIGTERM; SIGHUP reads the configuration again
    Lmtp(LmtpArgs),
    /// Serve pages for administrators, read only, until SIGTERM
    Web(WebArgs),
    /// Bring the ledger's schema to this program's version, while mail goes on
    Migrate(MigrateArgs),
    /// Test the configuration, the ledger, the store and the local Postfix set-up, a line per
    /// finding
    Check(CheckArgs),
    /// Show what is on record: messages, their copies, every attempt
    Trace(TraceArgs),
    /// Show on one screen whether all is well, and if not, which command comes next
    Status(StatusArgs),
    /// Compare ledger and mailboxes, a line per finding
    Verify(VerifyArgs),
    /// Write Sent copies that were left for later, unless the sender's mail program has saved its
    /// own, and record copies that stand without a receipt
    Settle(SettleArgs),
    /// Forget what is older than retention says, in small steps beside deliveries
    Purge(PurgeArgs),
    /// Let messages in again, after a mail store was restored; or erase an account
    Forget(ForgetArgs),
    /// Deliver again, from files or from the ledger, and write nothing twice
    Replay(ReplayArgs),
    /// Run a command while no other host or process holds the same lock
    WithLock(WithLockArgs),
    /// Show who holds locks, assert one, make one free
    Lock(LockArgs),
    /// Show jobs and their runs; pause, resume or reset one; report them to a monitoring system
    Jobs(JobsArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Show the manual page of a command
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// bash, zsh or fish
    pub shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Its name, such as verify or jobs list; onedrop.toml: the configuration [default: the page of
    /// onedrop itself]
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// What Postfix says about the message.
#[derive(Debug, Args)]
pub struct DeliverArgs {
    /// Envelope recipient; may be repeated [default: $RECIPIENT, else the top-most Delivered-To
    /// field above the first Received field]
    #[arg(short = 'd', value_name = "RECIPIENT", allow_hyphen_values = true, value_parser = text())]
    pub recipients: Vec<String>,
    /// Envelope sender, empty for the null sender [default: $SENDER, else the top-most Return-Path
    /// field there]
    #[arg(short = 'f', value_name = "SENDER", allow_hyphen_values = true, value_parser = text())]
    pub sender: Option<String>,
    /// Size of the message as Postfix states it (${size}); a much shorter message is refused as cut
    #[arg(long, value_name = "BYTES")]
    pub size: Option<u64>,
    /// Postfix queue id (${queue_id}), for the record
    #[arg(long, value_name = "ID", allow_hyphen_values = true, value_parser = text())]
    pub queue_id: Option<String>,
    /// Login of the client that submitted the message (${sasl_username}), empty for none
    #[arg(long, value_name = "LOGIN", allow_hyphen_values = true, value_parser = text())]
    pub sasl_username: Option<String>,
    /// Hand the message to the server that listens at this socket (/run/onedrop/users.sock), and
    /// read no configuration: so every user of this host may run it, for its own account
    #[arg(long, value_name = "SOCKET")]
    pub via: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct LmtpArgs {
    /// Where to listen: ADDRESS:PORT or unix:/path; may be repeated [default: systemd's sockets,
    /// else lmtp.listen]
    #[arg(long, value_name = "PLACE")]
    pub listen: Vec<Listen>,
    /// Serve Prometheus text at /metrics on this address [default: lmtp.metrics]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<std::net::SocketAddr>,
    /// Serve nothing: read the configuration as the server would, and say what is wrong in it
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Clone, Args)]
pub struct WebArgs {
    /// Where to listen: ADDRESS:PORT or unix:/path [default: systemd's sockets, else web.listen]
    #[arg(long, value_name = "PLACE")]
    pub listen: Option<Listen>,
}

#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Say what would be done, and about how long it takes
    #[arg(long)]
    pub dry_run: bool,
    /// Print what would be done as JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// Take this host's dedup.by, dedup.filter_fields, directory.account, directory.detail,
    /// [[file]], sent.mailbox, store.lmtp and store.url for all hosts; let Postfix's queues run
    /// empty first, but for a change of dedup.filter_fields alone
    #[arg(long, conflicts_with = "dry_run")]
    pub accept_config: bool,
    /// This ledger is the first of its site: mail that Postfix took before it was made is not
    /// looked for; never after a ledger was lost
    #[arg(long, conflicts_with_all = ["dry_run", "accept_config"])]
    pub first: bool,
}

#[derive(Debug, Default, Args)]
pub struct CheckArgs {
    /// Print findings as JSON
    #[arg(long)]
    pub json: bool,
    /// Account to log in for [default: one of the directory's, else of the latest copy on record]
    #[arg(long)]
    pub account: Option<String>,
    /// Dovecot configuration file, for doveconf [default: the system's, if the mailboxes are on
    /// this host]
    #[arg(long, value_name = "FILE")]
    pub dovecot: Option<PathBuf>,
    /// Postfix configuration directory [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub postfix: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Message-ID, queue id, recipient or account; optional if another condition is given
    #[arg(
        value_name = "MESSAGE-ID | QUEUE-ID | RECIPIENT | ACCOUNT",
        required_unless_present_any = ["since", "sender", "subject", "failed"]
    )]
    pub wanted: Option<String>,
    /// Recorded since: a duration back (24h, 7d) or a date (2026-11-01) [default: 7d if no name is
    /// given]
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Part of the envelope sender or of an address in From
    #[arg(long, value_name = "TEXT")]
    pub sender: Option<String>,
    /// Part of the subject
    #[arg(long, value_name = "TEXT")]
    pub subject: Option<String>,
    /// Messages with a copy that is not placed, or a recipient whose last attempt failed
    #[arg(long)]
    pub failed: bool,
    /// Show at most this many messages, the newest first
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Print times in UTC instead of this host's time zone
    #[arg(long)]
    pub utc: bool,
    /// Print as JSON, with times in UTC
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Default, Args)]
pub struct StatusArgs {
    /// Print findings and figures as JSON
    #[arg(long)]
    pub json: bool,
    /// Write figures as metrics into this file (node_exporter's textfile collector), print nothing
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub prometheus: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Messages recorded since: a duration back (24h, 7d) or a date (2026-11-01)
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub since: String,
    /// This account's mailboxes only
    #[arg(long)]
    pub account: Option<String>,
    /// Compare also the copies that cannot be double or missing: those that one delivery wrote and
    /// put on record
    #[arg(long)]
    pub all: bool,
    /// Record what is found for copies in doubt, place Sent copies that were kept for later, and
    /// remove surplus copies that Onedrop wrote
    #[arg(long)]
    pub repair: bool,
    /// Accounts at a time, each with a connection to the mail server [default: 4, or pool.store if
    /// that is less]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub parallel: Option<u8>,
    /// Note in this file how far the run has come; one that was ended goes on there when it is
    /// started again
    #[arg(long, value_name = "FILE", conflicts_with = "account")]
    pub resume: Option<PathBuf>,
    /// Print findings as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SettleArgs {
    /// Say what would be done, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print findings as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PurgeArgs {
    /// Say what would go, and take out nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Messages that are older: 35d, at least 1d [default: retention.days]
    #[arg(long, value_name = "TIME")]
    pub older_than: Option<String>,
    /// Print the numbers as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true)))]
pub struct ForgetArgs {
    /// The copies of this message: looked for, and written where they are not found, when it
    /// comes again
    #[arg(value_name = "MESSAGE-ID", group = "which")]
    pub message_id: Option<String>,
    /// All copies that were placed since: a duration back (24h, 7d) or a date (2026-11-01)
    #[arg(long, value_name = "TIME", group = "which")]
    pub since: Option<String>,
    /// Erase what is on record about this account and its messages, but for hashes and times
    #[arg(long, group = "which")]
    pub account: Option<String>,
    /// Say what would be forgotten, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the copies as JSON
    #[arg(long)]
    pub json: bool,
}

/// An envelope may hold any bytes: what is not UTF-8 is no reason to let mail wait.
fn text() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|value| value.to_string_lossy().into_owned())
}

/// clap's error and tips in one line, without the usage.
pub fn usage_problem(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.split("\n\nFor more information").next().unwrap_or_default();
    let parts = what.trim_start_matches("error: ").split("\n\n");
    let parts: Vec<String> =
        parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    format!("{}; see onedrop --help", parts.join("; "))
}
