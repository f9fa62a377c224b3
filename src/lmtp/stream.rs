//! A client's socket: TCP or Unix.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname};

/// See the module.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// # Errors
    /// The system's.
    pub fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    /// # Errors
    /// The system's.
    pub fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            Stream::Unix(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }

    /// Writes what can be written at once, and no more.
    pub fn try_say(&mut self, text: &[u8]) {
        let _ = match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true).and_then(|()| stream.write(text)),
            Stream::Unix(stream) => stream.set_nonblocking(true).and_then(|()| stream.write(text)),
        };
    }

    /// Waits until there is something to read, or the end.
    ///
    /// # Errors
    /// Nothing came in time.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        // What a signal interrupted is read, and its own time-out counts.
        match poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], millis(timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// As [`wait`](Stream::wait), and until there is an end of `other`; false when that came and nothing here.
    ///
    /// # Errors
    /// Nothing came in time.
    pub fn wait_beside(&self, other: &impl AsFd, timeout: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN), PollFd::new(other.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, millis(timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => Ok(fds[0].any().unwrap_or(true)),
            Err(_) => Ok(true),
        }
    }
}

fn millis(timeout: Duration) -> PollTimeout {
    PollTimeout::try_from(timeout.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX)
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where clients come in.
pub enum Listener {
    Tcp(TcpListener),
    /// With the path that is to go with it, if it was made here.
    Unix(UnixListener, Option<Made>),
}

/// A socket's file that goes when this is dropped, unless another server has put its own there meanwhile.
pub struct Made {
    path: PathBuf,
    inode: u64,
}

impl Made {
    /// The socket that was just made at `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn at(path: &Path) -> io::Result<Made> {
        Ok(Made { path: path.to_owned(), inode: path.symlink_metadata()?.ino() })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|file| file.ino() == self.inode) {
            // Its folder may be gone as well.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// A listening socket that somebody else (systemd) made.
    ///
    /// # Errors
    /// It is neither TCP nor Unix, or none at all.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Listener> {
        let address: SockaddrStorage = getsockname(std::os::fd::AsRawFd::as_raw_fd(&fd))?;
        let listener = match address.family() {
            Some(AddressFamily::Unix) => Listener::Unix(UnixListener::from(fd), None),
            Some(AddressFamily::Inet | AddressFamily::Inet6) => Listener::Tcp(TcpListener::from(fd)),
            _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "a socket of another family")),
        };
        listener.prepared()
    }

    /// Accepting never waits: a client may be gone again before it is looked at.
    ///
    /// # Errors
    /// The system's.
    pub fn prepared(self) -> io::Result<Listener> {
        match &self {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener, _) => listener.set_nonblocking(true)?,
        }
        Ok(self)
    }

    /// # Errors
    /// Nobody is there, or the system's.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Stream::Unix(stream))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}
