//! What a delivery is: the values, the ports to ledger and store, and the flow between them.
//! Nothing here knows a database driver, TLS or IMAP.
//!
//! | layer  | modules                                                                            |
//! |--------|------------------------------------------------------------------------------------|
//! | values | `message`, `directory`, `envelope`, `sender`, `outcome`, `receipt`, `login`, `text` |
//! |        | `lock_key`, `lock_name`, `duration`                                                |
//! | tools  | `clock`, `deadline`, `os`, `connections`, `exit`, `hook` (tests)                   |
//! | ports  | `ledger`, `store`; the adapters in memory below them, which tests use              |
//! | flow   | `deliver`: record, place, finish; its header has the map of its files              |
//! | proof  | `login_proof`: a login leads to the account named; `mail_root`: the ledger's root   |
//! | repair | `verify`: every copy looked for again; `retention`: what is forgotten, and when    |
//!
//! A layer uses the ones above it in this table; the ports do not use each other.

pub mod clock;
pub mod connections;
pub mod deadline;
pub mod deliver;
pub mod directory;
pub mod duration;
pub mod envelope;
pub mod exit;
pub mod hook;
pub mod ledger;
pub mod lock_key;
pub mod lock_name;
pub mod login;
pub mod login_proof;
pub mod mail_root;
pub mod message;
pub mod os;
pub mod outcome;
pub mod receipt;
pub mod retention;
pub mod sender;
pub mod store;
#[cfg(feature = "memory")]
pub mod testing;
pub mod text;
pub mod verify;
