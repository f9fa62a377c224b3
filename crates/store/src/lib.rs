//! Where mailboxes live: `imap`, `maildir`, and `lmtp`, which hands copies over to a mail server's
//! own delivery. All run the store's contract suite.
//!
//! A store knows its port (`onedrop_core::store`) and the network; no ledger.

pub mod imap;
pub mod lmtp;
pub mod maildir;
mod utf7;
