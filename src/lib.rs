//! Onedrop takes one inbound message and leaves it in every mailbox it belongs to, once, however
//! often it is asked.
//!
//! Read `outcome`, `message`, `lock_key`, `ledger`, `store`, `deliver`, `service`, then the doors:
//! `cli`, `lmtp`. `docs/flow.md` follows one message through the files. From the bottom up:
//!
//! | layer         | modules                                                                   |
//! |---------------|---------------------------------------------------------------------------|
//! | values        | `message`, `directory`, `envelope`, `sender`, `outcome`, `receipt`, ...   |
//! | tools         | `net`, `pool`, `group_commit`, `http`, `exit`, `hook` (tests), ...        |
//! | ports         | `ledger`, `store`; each with its adapters below it                        |
//! | configuration | `config`, `command_line` (what clap reads)                                |
//! | flow          | `deliver`: record, place, finish; `deliver/verdict.rs`: temporary or not  |
//! | work          | `service`, `routing`, `check`, `verify`, `retention`, `replay`, `web` ... |
//! | doors         | `lmtp` (server and client), `cli` (a file a command), `main`              |
//!
//! A layer uses the ones above it in this table; the ports do not use each other nor `config`, and
//! an adapter knows its port, values and tools alone. SQL lives under `ledger/`, IMAP under
//! `store/imap/`, exit numbers in `exit.rs`; no circle among modules side by side.
//! `tests/values/layering.rs` holds this against the sources.
//!
//! Invariants: nothing is placed before it is on record; nothing is written without a live lease,
//! nor, in doubt, without the copy's lock and a look, nor into a Maildir without its lock of the
//! copy; "delivered" is said only when every copy has a receipt on record.

mod byte_lock;
pub mod check;
pub mod cli;
pub mod clock;
pub mod command_line;
pub mod config;
pub mod deadline;
pub mod deliver;
mod delivery_log;
pub mod directory;
mod durable;
pub mod duration;
pub mod envelope;
pub mod exit;
pub mod filing;
pub mod group_commit;
pub mod hook;
pub mod http;
pub mod jobs;
pub mod ledger;
pub mod lmtp;
pub mod lock;
pub mod lock_key;
pub mod lock_name;
pub mod login;
pub mod mail_root;
pub mod message;
pub mod net;
pub mod outcome;
mod owner;
pub mod pool;
pub mod receipt;
pub mod replay;
pub mod retention;
pub mod routing;
pub mod schedule;
pub mod sender;
pub mod service;
pub mod shared_config;
pub mod site_names;
pub mod status;
pub mod store;
pub mod telemetry;
pub mod text;
pub mod trust_search;
pub mod userdb;
pub mod verify;
pub mod way;
pub mod web;
