//! `onedrop lmtp`: what it says to its clients, to systemd and to Prometheus, and what it delivers.

mod addresses;
mod dialogs;
mod end_to_end;
mod exposition;
mod frozen;
mod hanging;
mod hostile;
mod idle;
mod metrics;
mod notify;
mod parts;
mod pools;
mod prepared;
mod reload;
mod server;
mod socket;
mod unknown;

use onedrop_kit::{self as support, dialog, escapes, script};
