//! A step of `onedrop check` that may hang: on a thread of its own, and within a time.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Connecting takes no time unless the queue of the listener is full.
use crate::text;

const TIME: Duration = Duration::from_secs(2);

/// What `f` returns, if it returns within `time`. A thread that hangs is left behind and ends with
/// the process.
///
/// # Errors
/// `f` took too long or panicked, in words for an administrator.
pub(super) fn bounded<T: Send + 'static>(
    time: Duration,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let step = thread::Builder::new()
        .name("check".to_owned())
        .spawn(move || drop(sender.send(f()))) // fails after the time-out
        .map_err(|error| format!("no thread to test it on: {error}"))?;
    match receiver.recv_timeout(time) {
        Ok(value) => Ok(value),
        Err(RecvTimeoutError::Timeout) => {
            Err(format!("no answer within {} s", time.as_secs_f64().ceil()))
        }
        Err(RecvTimeoutError::Disconnected) => {
            let text = step.join().err().map(text::of_panic).unwrap_or_default();
            Err(format!("internal error: {text}"))
        }
    }
}

/// An error of the system in words, without its number.
pub(super) fn shown(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

/// Whether a server listens at a Unix socket.
///
/// # Errors
/// Why not, as connect(2) says it; [`io::ErrorKind::TimedOut`] where the listener takes no more
/// clients.
pub(super) fn reach(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    let connected = bounded(TIME, move || UnixStream::connect(path).map(drop));
    connected.unwrap_or_else(|why| Err(io::Error::new(io::ErrorKind::TimedOut, why)))
}
