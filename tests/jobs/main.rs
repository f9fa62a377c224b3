//! `onedrop jobs run` and `onedrop jobs tick`, with real processes: what a job gets and what stays
//! of it, that each due time is run once whoever ticks, and that a crash is settled, whatever is
//! killed, stopped or out of reach.

mod crashes;
mod hooks;
mod ledger_gone;
mod output;
mod running;
mod server;
mod site;
mod ticking;
mod wrong;

use onedrop_kit::{self as support, place};
