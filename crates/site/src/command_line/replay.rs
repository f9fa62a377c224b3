//! The arguments of `onedrop replay`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::text;

/// How lines that begin with `From ` were quoted when an mbox was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MboxQuoting {
    /// mboxrd: `From `, and `>From ` at any depth
    Rd,
    /// mboxo: `From ` alone
    O,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A file with a message, a folder of such files, a Maildir, or with --mbox an mbox; Sent gets
    /// no copies of what files hold
    #[arg(value_name = "SOURCE", required_unless_present = "from_ledger")]
    pub sources: Vec<PathBuf>,
    /// Deliver each message to this address; may be repeated [default: its top-most Delivered-To,
    /// else X-Original-To, above the first Received field]
    #[arg(long, value_name = "RECIPIENT", value_parser = text())]
    pub to: Vec<String>,
    /// Files are mboxes; QUOTING says which lines of messages got a `>` when they were written. rd:
    /// those that begin with `From `, or with `>From ` at any depth; o: with `From ` alone
    #[arg(long, value_name = "QUOTING")]
    pub mbox: Option<MboxQuoting>,
    /// Read the folders below as well: those of a Maildir (.Sent, Archive/2020), or any
    #[arg(long)]
    pub subfolders: bool,
    /// Deliver at most this number of messages a time: 50/s, 600/m, 1000/h
    #[arg(long, value_name = "N/s")]
    pub rate: Option<String>,
    /// Messages at a time; with more than one they do not come in the order of the source
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=64))]
    pub parallel: u8,
    /// Note in this file what is delivered; a run that was ended goes on there
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// From the bytes in the ledger (ledger.keep_raw): each copy that is on record and not placed
    #[arg(long, conflicts_with_all = ["sources", "to", "mbox", "subfolders", "rate", "parallel",
        "state"])]
    pub from_ledger: bool,
    /// With --from-ledger: messages recorded since: a duration back (24h, 7d) or a date
    /// (2026-11-01) [default: all]
    #[arg(long, value_name = "TIME", requires = "from_ledger")]
    pub since: Option<String>,
    /// Say what would be delivered, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}
