//! Mail and SQL servers that break, hang, lie or vanish, and what must be true of a server before
//! Onedrop writes through it.

mod broken;
mod courier;
mod courier_mail;
mod cyrus;
mod cyrus_lmtp;
mod cyrus_mail;
mod cyrus_rights;
mod dovecot_24;
mod hostile;
mod imap_busy;
mod imap_dialogs;
mod imap_everywhere;
mod imap_login;
mod imap_names;
mod imap_owner;
mod imap_proof;
mod imap_script;
mod imap_sessions;
mod imap_together;
mod ipv6;
mod lagging;
mod lmtp_hostile;
mod lmtp_store;
mod mariadb;
mod old_dates;
mod quotas;
mod userdb;

use onedrop_kit::{self as support, escapes};

/// Where `tests/run` unpacks packages that cannot be installed beside others.
const UNPACKED: &str = "/var/cache/onedrop-tests";
