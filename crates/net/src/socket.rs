//! A stream socket, TCP or Unix, that waits no longer than it should: every read and write has an
//! absolute deadline, so neither silence nor a drip of single bytes outlasts it. Connecting and
//! looking up a name are bounded in the same way; a resolver that hangs stays in a thread of its
//! own. Every call fails when the connection is gone, and one with a time when nothing came or went
//! by then (`TimedOut`). Dropping a socket sends nothing.
//!
//! [`Timed`] is the same as a [`Read`] and [`Write`], for what sits on top of it (TLS). By hand:
//! the standard library's time-outs are relative and count anew for each byte.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt, recv,
    send, setsockopt, shutdown, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Uid;

use onedrop_core::deadline::{KEEPALIVE, UNACKNOWLEDGED};

/// A connected TCP or Unix socket whose calls end by a time.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    is_unix: bool,
    /// A read that blocks ends after [`NAP`].
    naps: bool,
}

/// A read that has more time than this waits for this time in recv(2) itself, in one system call;
/// else in poll(2), between two calls of recv.
const NAP: Duration = Duration::from_secs(1);

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Socket {
        Socket::of(stream.into(), false)
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket::of(stream.into(), true)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    fn of(fd: OwnedFd, is_unix: bool) -> Socket {
        let nap = TimeVal::seconds(NAP.as_secs() as i64);
        let naps = setsockopt(&fd, sockopt::ReceiveTimeout, &nap).is_ok();
        Socket { fd, is_unix, naps }
    }

    /// Connects by TCP to the first address of `host` (a name, or an address with or without
    /// brackets) that answers. A peer that is gone is noticed from then on.
    pub fn connect_tcp(host: &str, port: u16, until: Instant) -> io::Result<Socket> {
        let addresses = resolve(host, port, until)?;
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for (at, address) in addresses.iter().enumerate() {
            // An address that swallows packets leaves time for the next.
            let share = left(until)? / (addresses.len() - at) as u32;
            match TcpStream::connect_timeout(address, share.max(Duration::from_nanos(1))) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    notice_a_lost_peer(&stream)?;
                    return Ok(stream.into());
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Connects to the Unix socket at `path`. connect(2) waits while the server's queue is full, as
    /// long as a send would (unix_stream_connect in Linux' net/unix/af_unix.c): `time`, then
    /// `WouldBlock`.
    pub fn connect_unix(path: &Path, time: Duration) -> io::Result<Socket> {
        let address = UnixAddr::new(path)?;
        let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX).max(1);
        setsockopt(&fd, sockopt::SendTimeout, &TimeVal::microseconds(micros))?;
        connect(fd.as_raw_fd(), &address)?;
        Ok(Socket::of(fd, true))
    }

    /// The user at the other end of a Unix socket (SO_PEERCRED in unix(7)); `None` by TCP, which
    /// has no such credentials.
    pub fn peer_user(&self) -> Option<Uid> {
        let credentials = || getsockopt(&self.fd, sockopt::PeerCredentials).ok();
        self.is_unix.then(credentials)?.map(|peer| Uid::from_raw(peer.uid()))
    }

    /// Reads what is there, also when `until` has passed; waits for it until then. 0: the peer has
    /// said all.
    pub fn read(&self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        if self.naps && until.saturating_duration_since(Instant::now()) > NAP {
            match again(|| recv(self.fd.as_raw_fd(), into, MsgFlags::empty())) {
                // After the nap, or at once from a socket that never blocks.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        self.when_ready(PollFlags::POLLIN, until, || self.read_now(into))
    }

    /// Reads what is there and does not wait (`WouldBlock`).
    pub fn read_now(&self, into: &mut [u8]) -> io::Result<usize> {
        again(|| recv(self.fd.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT))
    }

    /// What [`read_now`](Socket::read_now) would say, and leaves it to be read.
    pub fn peek_now(&self) -> io::Result<usize> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        again(|| recv(self.fd.as_raw_fd(), &mut [0], flags))
    }

    /// Writes what the peer takes of `bytes`, at least one of them; waits for it until `until`, and
    /// writes nothing after that.
    pub fn write(&self, bytes: &[u8], until: Instant) -> io::Result<usize> {
        self.when_ready(PollFlags::POLLOUT, until, || {
            left(until)?;
            self.write_now(bytes)
        })
    }

    /// Writes all of `bytes`, as [`write`](Socket::write) does; before an error some of it.
    pub fn write_all(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[self.write(bytes, until)?..];
        }
        Ok(())
    }

    /// Writes what the peer takes at once (nothing: `WouldBlock`).
    pub fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        again(|| send(self.fd.as_raw_fd(), bytes, flags))
    }

    /// Waits until there is something to read, or the end; also until `other` has something to read
    /// or comes to its end: false when only that has come. Looks once, however late it is.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>, until: Instant) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        fds.extend(other.map(|other| PollFd::new(other, PollFlags::POLLIN)));
        match poll(&mut fds, timeout(until)) {
            Ok(0) => Err(timed_out()),
            Ok(_) => Ok(fds[0].any().unwrap_or(true)),
            // What a signal interrupted is read, and that has its own deadline.
            Err(_) => Ok(true),
        }
    }

    /// Ends the connection in both directions, as far as it is still there.
    pub fn shut(&self) {
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
    }

    /// Does `call` again, when the socket is ready, as long as it would block.
    fn when_ready(
        &self,
        what: PollFlags,
        until: Instant,
        mut call: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => left(until)?,
                done => return done,
            };
            match poll(&mut [PollFd::new(self.as_fd(), what)], timeout(until)) {
                // What a signal interrupted is tried again.
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A socket as a stream whose reads and writes end by a deadline that can be moved. Neither happens
/// once it has passed.
#[derive(Debug)]
pub struct Timed {
    pub socket: Socket,
    pub until: Instant,
    /// A peer that neither sends nor takes a byte for this time is given up before the deadline.
    pub silence: Option<Duration>,
    /// Whether reads wait for the deadline, or not at all.
    pub waits: bool,
}

impl Timed {
    pub fn new(socket: Socket, until: Instant) -> Timed {
        Timed { socket, until, silence: None, waits: true }
    }

    fn soon(&self) -> Instant {
        self.silence.map_or(self.until, |silence| self.until.min(Instant::now() + silence))
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.waits {
            true => left(self.until).and_then(|_| self.socket.read(into, self.soon())),
            false => self.socket.read_now(into),
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes, self.soon())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Does `call` again as long as a signal interrupts it.
fn again(mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return Ok(done?),
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(timed_out()) } else { Ok(left) }
}

/// What is left until then, in whole milliseconds, at least one: a poll of none would spin.
fn timeout(until: Instant) -> PollTimeout {
    let left = until.saturating_duration_since(Instant::now());
    PollTimeout::try_from(left.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX)
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

/// A host that is gone says nothing: the kernel finds out.
fn notice_a_lost_peer(stream: &TcpStream) -> Result<(), Errno> {
    let keepalive_secs = KEEPALIVE.as_secs() as u32;
    setsockopt(stream, sockopt::TcpUserTimeout, &(UNACKNOWLEDGED.as_millis() as u32))?;
    setsockopt(stream, sockopt::TcpKeepIdle, &keepalive_secs)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &keepalive_secs)?;
    setsockopt(stream, sockopt::KeepAlive, &true)
}

/// The addresses of `host`. A resolver that hangs is left in its thread.
fn resolve(host: &str, port: u16, until: Instant) -> io::Result<Vec<SocketAddr>> {
    let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = literal.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (found, finding) = mpsc::channel();
    let name = host.to_owned();
    thread::Builder::new().name("resolve".to_owned()).spawn(move || {
        let _ = found.send((name.as_str(), port).to_socket_addrs().map(Iterator::collect));
    })?;
    finding
        .recv_timeout(until.saturating_duration_since(Instant::now()))
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "name look-up hangs")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_silent_is_given_up_before_the_deadline() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let far = Instant::now() + Duration::from_secs(3600);
        let mut timed = Timed::new(ours.into(), far);
        timed.silence = Some(Duration::from_millis(10));
        let error = timed.read(&mut [0]).expect_err("nothing comes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
