//! Deliveries by the real binary with real servers, and what becomes of each kind of message.

mod archive;
mod corpus;
mod directory;
mod disasters;
mod domains;
mod end_to_end;
mod filing;
mod grants;
mod handoff;
mod identity;
mod mail_root;
mod mariadb;
mod replay;
mod replay_corpus;
mod replay_runs;
mod retention;
mod rights;
mod sent;
mod settle;
mod unable;
mod unknown;
mod users;
mod via;
mod via_postfix;

use onedrop_kit::{self as support, sample};
