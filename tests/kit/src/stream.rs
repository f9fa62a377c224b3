//! A connection by TCP or by a Unix socket, for clients and proxies of the tests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub fn another(&self) -> Stream {
        match self {
            Stream::Tcp(tcp) => Stream::Tcp(tcp.try_clone().expect("socket")),
            Stream::Unix(unix) => Stream::Unix(unix.try_clone().expect("socket")),
        }
    }

    pub fn shut(&self) {
        // It may be closed already.
        let _ = self.shut_part(Shutdown::Both);
    }

    /// One direction, or both.
    pub fn shut_part(&self, part: Shutdown) -> std::io::Result<()> {
        match self {
            Stream::Tcp(tcp) => tcp.shutdown(part),
            Stream::Unix(unix) => unix.shutdown(part),
        }
    }

    /// What any single read or write may take.
    pub fn limit(&self, limit: Duration) -> std::io::Result<()> {
        match self {
            Stream::Tcp(tcp) => {
                tcp.set_read_timeout(Some(limit)).and_then(|()| tcp.set_write_timeout(Some(limit)))
            }
            Stream::Unix(unix) => unix
                .set_read_timeout(Some(limit))
                .and_then(|()| unix.set_write_timeout(Some(limit))),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(tcp) => tcp.read(into),
            Stream::Unix(unix) => unix.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(tcp) => tcp.write(bytes),
            Stream::Unix(unix) => unix.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
