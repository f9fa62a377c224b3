//! Onedrop takes one inbound message and leaves it in every mailbox it belongs to, once, however
//! often it is asked.
//!
//! Read `outcome`, `message`, `lock_key`, `ledger`, `store`, `deliver`, `verify`, then the doors:
//! `cli`, `lmtp`.
//!
//! Dependency rule: values (`outcome`, `message`, `lock_key`, `directory`, `envelope`, `sender`,
//! `text`, `net`, `clock`, `hook`) <- ports (`ledger`, `store`) <- `deliver`, `verify` <- doors
//! (`cli`, `lmtp`; `routing` and `pool` serve them) <- `main`. An adapter knows its port and the
//! values, nothing else. SQL lives under `ledger/`, IMAP bytes in `store/imap.rs`, exit numbers in
//! `exit.rs`, temporary or permanent in `outcome.rs`.
//!
//! Invariants: nothing is placed before it is on record; nothing is written without a live lease,
//! nor, in doubt, without the copy's lock and a look, nor into a Maildir without its lock of the
//! copy; "delivered" is said only when every copy has a receipt on record.

mod byte_lock;
pub mod check;
pub mod cli;
pub mod clock;
pub mod config;
pub mod deadline;
pub mod deliver;
mod delivery_log;
pub mod directory;
mod durable;
pub mod envelope;
pub mod exit;
mod group_commit;
pub mod hook;
pub mod ledger;
pub mod lmtp;
pub mod lock_key;
pub mod login;
pub mod message;
mod net;
pub mod outcome;
pub mod pool;
pub mod receipt;
pub mod routing;
pub mod sender;
pub mod service;
pub mod store;
pub mod telemetry;
pub mod text;
pub mod verify;
pub mod way;
mod web;
