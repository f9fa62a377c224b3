//! The part of `onedrop check` about "onedrop lmtp": whether somebody listens where `deliver.via`
//! sends messages.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::{Finding, Level, bounded};
use crate::config::Loaded;

/// Connecting takes no time unless the queue of the listener is full.
const TIME: Duration = Duration::from_secs(2);

pub(super) fn findings(loaded: &Loaded) -> Option<Finding> {
    let via = loaded.config.deliver.via.as_deref()?;
    let shown = via.display();
    Some(match reach(via) {
        Ok(()) => {
            Finding::new(Level::Ok, "lmtp", format!("deliver.via: somebody listens at {shown}"))
        }
        Err(error) => {
            let text = format!(
                "deliver.via: nobody can be reached at {shown} ({}): each delivery opens connections of its own; start \
                 onedrop-lmtp.socket, or leave the key out",
                super::shown(&error)
            );
            Finding::new(Level::Warning, "lmtp", text)
        }
    })
}

/// Whether somebody listens at a Unix socket.
///
/// # Errors
/// Why not, as connect(2) says it; [`io::ErrorKind::TimedOut`] where the listener takes no more
/// clients.
pub(in crate::cli) fn reach(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    let connected = bounded(TIME, move || UnixStream::connect(path).map(drop));
    connected.unwrap_or_else(|why| Err(io::Error::new(io::ErrorKind::TimedOut, why)))
}
