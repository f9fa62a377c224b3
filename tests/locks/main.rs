//! `onedrop with-lock` and `onedrop lock`, with real processes: what passes through, how each ends,
//! and that a command is gone before another can have its lock, whatever is killed, stopped or out
//! of reach.

mod asking;
mod endings;
mod hold;
mod ledger_gone;
mod moving;
mod namespaces;
mod passing;
mod postfix;
mod programs;
mod seeds;
mod tally;
mod terminal;
mod waiting;
mod watchdog;

use onedrop_kit::{self as support, place};
