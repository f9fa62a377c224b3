//! A client's socket: TCP or Unix.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockaddrLike, SockaddrStorage, getsockname, getsockopt,
    recv, send, shutdown, sockopt::PeerCredentials,
};
use nix::unistd::Uid;

/// See the module.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// The user who connected by a Unix socket (SO_PEERCRED in unix(7)); `None` by TCP, where
    /// nobody can tell.
    pub fn peer(&self) -> Option<Uid> {
        match self {
            Stream::Tcp(_) => None,
            Stream::Unix(stream) => getsockopt(stream, PeerCredentials)
                .ok()
                .map(|credentials| Uid::from_raw(credentials.uid())),
        }
    }

    /// Reads what is there; waits for it until `until`. 0: the peer has said all.
    ///
    /// # Errors
    /// The connection is gone, or nothing came in time.
    pub fn read(&self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        loop {
            match recv(self.as_fd().as_raw_fd(), into, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.ready(PollFlags::POLLIN, until)?,
                read => return Ok(read?),
            }
        }
    }

    /// Writes all of `bytes`; waits for the peer to read until `until`.
    ///
    /// # Errors
    /// The connection is gone, or the peer did not read in time.
    pub fn write_all(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_now(bytes) {
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.ready(PollFlags::POLLOUT, until)?,
                written => bytes = &bytes[written?..],
            }
        }
        Ok(())
    }

    /// Writes what can be written at once, and no more.
    pub fn try_say(&self, text: &[u8]) {
        let _ = self.write_now(text);
    }

    /// Nobody says or hears anything here any more.
    pub fn shut(&self) {
        let _ = shutdown(self.as_fd().as_raw_fd(), Shutdown::Both);
    }

    fn write_now(&self, bytes: &[u8]) -> nix::Result<usize> {
        send(self.as_fd().as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)
    }

    fn ready(&self, what: PollFlags, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match poll(&mut [PollFd::new(self.as_fd(), what)], millis(left)) {
            // What a signal interrupted is tried again.
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
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

    /// As [`wait`](Stream::wait), and until there is an end of `other`; false when that came and
    /// nothing here.
    ///
    /// # Errors
    /// Nothing came in time.
    pub fn wait_beside(&self, other: &impl AsFd, timeout: Duration) -> io::Result<bool> {
        let mut fds = [
            PollFd::new(self.as_fd(), PollFlags::POLLIN),
            PollFd::new(other.as_fd(), PollFlags::POLLIN),
        ];
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

/// Where clients come in.
pub enum Listener {
    Tcp(TcpListener),
    /// With the path that is to go with it, if it was made here.
    Unix(UnixListener, Option<Made>),
}

/// A socket's file that goes when this is dropped, unless another server has put its own there
/// meanwhile.
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
        let address: SockaddrStorage = getsockname(fd.as_raw_fd())?;
        let listener = match address.family() {
            Some(AddressFamily::Unix) => Listener::Unix(UnixListener::from(fd), None),
            Some(AddressFamily::Inet | AddressFamily::Inet6) => {
                Listener::Tcp(TcpListener::from(fd))
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "a socket of another family",
                ));
            }
        };
        listener.prepared()
    }

    /// Whether it is a Unix socket with a file that was made here.
    pub fn is_made_here(&self) -> bool {
        matches!(self, Listener::Unix(_, Some(_)))
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
