//! Mail and SQL servers that break, hang, lie or vanish, and what must be true of a server before
//! Onedrop writes through it.

mod broken;
#[path = "../lmtp/escapes.rs"]
mod escapes;
mod hostile;
mod imap_dialogs;
mod imap_login;
mod imap_proof;
mod ipv6;
#[path = "../support/mod.rs"]
mod support;
mod vanished;
