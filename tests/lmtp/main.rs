//! `onedrop lmtp`: what it says to its clients, to systemd and to Prometheus, and what it delivers.

mod addresses;
mod dialog;
mod dialogs;
mod end_to_end;
mod escapes;
mod exposition;
mod frozen;
mod hanging;
mod hostile;
mod idle;
mod metrics;
mod notify;
mod parts;
mod pools;
mod reload;
mod script;
mod server;
mod socket;
#[path = "../support/mod.rs"]
mod support;
mod unknown;
