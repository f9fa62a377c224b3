//! Whether the mail store is there: no login, no mailbox.

use std::io;
use std::time::Instant;

use nix::unistd::{AccessFlags, access};

use crate::config::StoreUrl;
use crate::net::socket::Socket;

/// Whether somebody listens there, or the folder may be written.
///
/// # Errors
/// Neither.
pub fn answers(store: &StoreUrl, until: Instant) -> io::Result<()> {
    match store {
        StoreUrl::Maildir { root } => {
            let there = root.ancestors().find(|folder| folder.exists()).unwrap_or(root);
            if !there.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            Ok(access(there, AccessFlags::W_OK | AccessFlags::X_OK)?)
        }
        StoreUrl::Imap { host, port, .. } => Socket::connect_tcp(host, *port, until).map(drop),
    }
}
