//! `onedrop replay`: delivers again, from files (.eml, folders, Maildirs, mboxes) or from what the
//! ledger keeps whole. All of it goes through a delivery's own code, so the same message twice, a
//! run that is killed and run again, and runs side by side leave one copy each.

pub mod content_length;
pub mod envelope;
pub mod failures;
pub mod files;
pub mod from_ledger;
pub mod from_line;
pub mod mbox;
pub mod mbox_lock;
pub mod no_message;
pub mod pace;
pub mod place;
pub mod report;
pub mod state;
pub mod walk;
