//! `onedrop jobs run` and `onedrop jobs tick`, with real processes: what a job gets and what stays
//! of it, that each due time is run once whoever ticks, and that a crash is settled, whatever is
//! killed, stopped or out of reach.

mod crashes;
mod ledger_gone;
mod output;
#[allow(dead_code)]
#[path = "../locks/place.rs"]
mod place;
mod running;
mod server;
mod site;
#[path = "../support/mod.rs"]
mod support;
mod ticking;
mod wrong;
