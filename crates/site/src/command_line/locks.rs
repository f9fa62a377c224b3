//! The arguments of `with-lock` and `lock`.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::RangedI64ValueParser;
use clap::{Args, Subcommand, ValueEnum};
use onedrop_core::duration;
use onedrop_core::lock_name::LockName;

#[derive(Debug, Args)]
pub struct WithLockArgs {
    /// Any name; the lock need not be set up
    pub name: LockName,
    /// How many may hold the lock at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = slots())]
    pub slots: u32,
    /// How long to wait for the lock: 0, 10s, 5m, forever
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = wait)]
    pub wait: Duration,
    /// How long the lock outlives a host that is gone; it is renewed in time, every 30 s at least
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    pub ttl: Duration,
    /// What the command gets to end after SIGTERM, before SIGKILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    pub grace: Duration,
    /// End the command after this time, with exit status 124; 0: never
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub timeout: Option<Duration>,
    /// What to do when the lock is held: fail says so and exits 200, quiet says nothing and exits 0
    #[arg(long, value_name = "HOW", default_value = "fail")]
    pub on_busy: OnBusy,
    /// Exit status when the lock is held
    #[arg(long, value_name = "STATUS")]
    pub busy_exit: Option<u8>,
    /// wrapper: 124 to 127, 200 and 201; mail: 75 for all of these; auto: mail where Postfix gives
    /// it a message
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub codes: Codes,
    /// Keep the command in the caller's process group, as on a terminal
    #[arg(long)]
    pub foreground: bool,
    /// Why the lock is held, for `onedrop lock list`
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub note: String,
    /// In place of a command: hold the lock until standard input ends, write "held TOKEN OWNER" to
    /// standard output when it is ours, and "lost" when it is to end before
    #[arg(long)]
    pub hold: bool,
    /// The command and its arguments
    #[arg(
        last = true,
        required_unless_present = "hold",
        conflicts_with = "hold",
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnBusy {
    Fail,
    Quiet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Codes {
    Auto,
    Wrapper,
    Mail,
}

#[derive(Debug, Args)]
pub struct LockArgs {
    #[command(subcommand)]
    pub command: LockCommand,
}

#[derive(Debug, Subcommand)]
pub enum LockCommand {
    /// Show the locks that are held, and leases that have run out
    List {
        /// Only leases that have run out: their holders are gone or hang
        #[arg(long)]
        stale: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show who holds a lock
    Holder {
        name: LockName,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print whether the lock is still held under which this command runs, and for how many
    /// seconds
    Assert {
        /// The lock's name, or a token (NAME#SLOT:EPOCH) [default: $ONEDROP_LOCK_TOKEN]
        #[arg(value_name = "NAME | TOKEN")]
        name: Option<String>,
        /// How long it must last at least
        #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration::parse)]
        min: Duration,
    },
    /// Make a slot free whose holder is known to be gone
    Release {
        name: LockName,
        #[arg(long)]
        slot: u32,
        /// The epoch that `onedrop lock list` shows
        #[arg(long)]
        epoch: i64,
    },
    /// Make a slot free whose lease has run out, and let its holder know that it has lost it
    Steal {
        name: LockName,
        /// [default: every slot whose lease has run out]
        #[arg(long)]
        slot: Option<u32>,
        /// Also a lease that lasts: its holder may still be running
        #[arg(long)]
        force: bool,
        /// Why, for the record
        #[arg(long, value_name = "WHY", default_value = "")]
        note: String,
    },
}

fn slots() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1000)
}

/// `forever`, or a time.
fn wait(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(Duration::MAX),
        time => duration::parse(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_people_write_it() {
        for (text, secs) in [("0", 0.0), ("10s", 10.0), ("1h 30m", 5400.0), ("250ms", 0.25)] {
            assert_eq!(duration::parse(text), Ok(Duration::from_secs_f64(secs)), "{text}");
        }
        for wrong in ["", "10", "-1s", "soon", "1e9y"] {
            assert!(duration::parse(wrong).is_err(), "{wrong}");
        }
    }
}
