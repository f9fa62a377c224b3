//! Where clients come in: a listening socket, TCP or Unix, that gives out [`Socket`]s.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname};

use super::socket::Socket;

/// A listening socket, TCP or Unix.
pub enum Listener {
    Tcp(TcpListener),
    /// With its file, if it was made here.
    Unix(UnixListener, Option<SocketFile>),
}

/// A socket's file, deleted when this is dropped, unless another server has put its own there
/// meanwhile.
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    /// The socket that was just made at `path`.
    pub fn at(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), inode: path.symlink_metadata()?.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|file| file.ino() == self.inode) {
            // Its folder may be gone as well.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// A listening socket, TCP or Unix, that systemd made; any other is an error.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Listener> {
        let address: SockaddrStorage = getsockname(fd.as_raw_fd())?;
        let listener = match address.family() {
            Some(AddressFamily::Unix) => Listener::Unix(UnixListener::from(fd), None),
            Some(AddressFamily::Inet | AddressFamily::Inet6) => {
                Listener::Tcp(TcpListener::from(fd))
            }
            _ => return Err(io::Error::other("a socket of another family")),
        };
        listener.prepared()
    }

    /// Whether it is a Unix socket with a file that was made here.
    pub fn is_made_here(&self) -> bool {
        matches!(self, Listener::Unix(_, Some(_)))
    }

    /// Where it listens, if that is no Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }

    /// Accepting never waits: a client may be gone again before it is looked at.
    pub fn prepared(self) -> io::Result<Listener> {
        match &self {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener, _) => listener.set_nonblocking(true)?,
        }
        Ok(self)
    }

    /// The next client; without one the error is `WouldBlock`.
    pub fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(stream.into())
            }
            Listener::Unix(listener, _) => Ok(listener.accept()?.0.into()),
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
