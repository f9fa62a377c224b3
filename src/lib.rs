//! Onedrop takes one inbound message and leaves it in every mailbox it belongs to, once, however
//! often it is asked.
//!
//! This package is the program: the doors `cli` (a file a command) and `lmtp` (server and client),
//! and `main`, which chooses the adapters. What they open are the crates below it, in the order in
//! which to read them; `docs/flow.md` follows one message through the files.
//!
//! | crate           | holds                                                                     |
//! |-----------------|---------------------------------------------------------------------------|
//! | `crates/core`   | values, the ports `ledger` and `store`, the flow (`deliver`), `verify`    |
//! | `crates/net`    | sockets with deadlines, TLS, LMTP's form, pools, group commit             |
//! | `crates/ledger` | the ledger in Postgres, MariaDB, SQLite                                   |
//! | `crates/store`  | IMAP, Maildirs, the hand-over by LMTP                                     |
//! | `crates/locks`  | locks and jobs                                                            |
//! | `crates/site`   | configuration, command line, routing, the service                         |
//! | `crates/admin`  | check, status, replay, the web pages, HTTP                                |
//!
//! A crate uses those above it in this table, but neither `net` nor an adapter is used by `core` or
//! `locks`, and no adapter by `site` or `admin`: their Cargo.toml say so. SQL lives in
//! `crates/ledger`, IMAP in `crates/store/src/imap`, exit numbers in `exit`; the doors name no
//! adapter, and no engine of the ledger another: `tests/values/layering.rs` holds that.
//!
//! Invariants: nothing is placed before it is on record; nothing is written without a live lease,
//! nor, in doubt, without the copy's lock and a look, nor into a Maildir without its lock of the
//! copy; "delivered" is said only when every copy has a receipt on record.

pub mod cli;
pub mod lmtp;

pub use onedrop_admin::{check, http, status, web};
pub use onedrop_core::{
    clock, connections, deadline, deliver, directory, envelope, exit, hook, lock_key, lock_name,
    login, message, os, outcome, receipt, retention, sender, text, verify,
};
pub use onedrop_locks::{jobs, schedule};
pub use onedrop_net as net;
pub use onedrop_site::{command_line, config, filing, service, telemetry, userdb};

/// The port and its adapters.
pub mod ledger {
    pub use onedrop_core::ledger::*;
    #[cfg(feature = "mariadb")]
    pub use onedrop_ledger::mariadb;
    pub use onedrop_ledger::{postgres, sqlite};
}

/// The port and its adapters.
pub mod store {
    pub use onedrop_core::store::*;
    pub use onedrop_store::{imap, lmtp, maildir};
}
