//! TCP, or TLS over it, with an absolute deadline that no peer can stretch: it bounds every read
//! and write of the socket itself, below TLS, so neither silence nor a drip of single bytes
//! outlasts it. Connecting and looking up the name are bounded by the same deadline; a resolver
//! that hangs stays behind in a thread of its own. Dropping a connection sends nothing.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::deadline::{KEEPALIVE, UNACKNOWLEDGED};

/// A TCP socket with an absolute deadline.
pub struct Socket {
    tcp: TcpStream,
    until: Instant,
    waits: bool,
}

impl Socket {
    /// Connects to the first address of `host` that answers.
    ///
    /// # Errors
    /// No address, none that answers, or no time left.
    pub fn connect(host: &str, port: u16, until: Instant) -> io::Result<Socket> {
        let addresses = resolve(host, port, until)?;
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for (at, address) in addresses.iter().enumerate() {
            // An address that swallows packets leaves time for the next.
            let share =
                until.saturating_duration_since(Instant::now()) / (addresses.len() - at) as u32;
            if share.is_zero() {
                return Err(timed_out());
            }
            match TcpStream::connect_timeout(address, share) {
                Ok(tcp) => {
                    tcp.set_nodelay(true)?;
                    notice_a_lost_peer(&tcp)?;
                    return Ok(Socket { tcp, until, waits: true });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Moves the deadline.
    pub fn wait_until(&mut self, until: Instant) {
        self.until = until;
    }

    /// Ends the connection in both directions, as far as it is still there.
    pub fn shut(&self) {
        let _ = self.tcp.shutdown(Shutdown::Both);
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(timed_out()) } else { Ok(left) }
    }

    /// Whether reads wait for the deadline, or not at all.
    pub fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Waits until `what` can be done.
    fn ready(&self, what: PollFlags) -> io::Result<()> {
        let left = PollTimeout::try_from(self.left()?.max(Duration::from_millis(1)))
            .unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.tcp.as_fd(), what)], left) {
            Ok(0) => Err(timed_out()),
            // What a signal interrupted is tried again.
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.waits {
                self.ready(PollFlags::POLLIN)?;
            }
            match recv(self.tcp.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if self.waits => {}
                read => return Ok(read?),
            }
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.ready(PollFlags::POLLOUT)?;
            match send(self.tcp.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)
            {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket, or TLS over it.
pub enum Transport {
    Tcp(Socket),
    Tls(Box<StreamOwned<ClientConnection, Socket>>),
    Closed,
}

impl Transport {
    /// Goes over to TLS and verifies that the peer is `name`.
    ///
    /// # Errors
    /// Handshake or verification failed, or this is no plain connection.
    pub fn start_tls(
        self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Transport> {
        let Transport::Tcp(mut socket) = self else { return Err(lost()) };
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(Transport::Tls(Box::new(StreamOwned::new(tls, socket))))
    }

    /// The socket below.
    ///
    /// # Errors
    /// The connection was closed.
    pub fn socket(&mut self) -> io::Result<&mut Socket> {
        match self {
            Transport::Tcp(socket) => Ok(socket),
            Transport::Tls(stream) => Ok(&mut stream.sock),
            Transport::Closed => Err(lost()),
        }
    }
}

impl Read for Transport {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Tcp(socket) => socket.read(into),
            Transport::Tls(stream) => stream.read(into),
            Transport::Closed => Err(lost()),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Tcp(socket) => socket.write(bytes),
            Transport::Tls(stream) => stream.write(bytes),
            Transport::Closed => Err(lost()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Tcp(socket) => socket.flush(),
            Transport::Tls(stream) => stream.flush(),
            Transport::Closed => Err(lost()),
        }
    }
}

/// A host that is gone says nothing: the kernel is to find out.
fn notice_a_lost_peer(tcp: &TcpStream) -> Result<(), Errno> {
    let keepalive_secs = KEEPALIVE.as_secs() as u32;
    setsockopt(tcp, sockopt::TcpUserTimeout, &(UNACKNOWLEDGED.as_millis() as u32))?;
    setsockopt(tcp, sockopt::TcpKeepIdle, &keepalive_secs)?;
    setsockopt(tcp, sockopt::TcpKeepInterval, &keepalive_secs)?;
    setsockopt(tcp, sockopt::KeepAlive, &true)
}

/// The addresses of `host`. A resolver that hangs is left behind in its thread.
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
    let left = until.saturating_duration_since(Instant::now());
    finding
        .recv_timeout(left)
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "name look-up hangs")))
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

/// The connection is gone.
pub fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nix::sys::socket::getsockopt;

    use super::*;

    #[test]
    fn a_host_that_is_gone_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let Socket { tcp, .. } =
            Socket::connect("127.0.0.1", port, Instant::now() + Duration::from_secs(10)).unwrap();
        assert_eq!(getsockopt(&tcp, sockopt::TcpUserTimeout), Ok(10_000));
        assert_eq!(getsockopt(&tcp, sockopt::KeepAlive), Ok(true));
        assert_eq!(getsockopt(&tcp, sockopt::TcpKeepIdle), Ok(10));
        assert_eq!(getsockopt(&tcp, sockopt::TcpKeepInterval), Ok(10));
    }
}
