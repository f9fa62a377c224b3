//! A bound on what a server may send for one call. tokio-postgres collects a message until it is
//! whole, and how long it is the server says: up to 2 GiB, also before anybody has logged in. Bytes
//! are counted below TLS; one too many ends the connection.
//!
//! tokio-postgres opens its sockets itself and hands them out at one place only, where TLS is made
//! of them. So a TCP connection without TLS comes by here too, as "direct" TLS that adds nothing.
//! Not counted are Unix sockets, whose server is this machine's own, and what `sslmode=prefer`
//! falls back to.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use postgres::config::{Host, SslMode, SslNegotiation};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Config, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// What the server may send for one call: more than any answer of ours has.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// How much may still come in.
#[derive(Clone, Default)]
pub(super) struct Budget(Arc<AtomicUsize>);

impl Budget {
    /// To be called before each call.
    pub fn renew(&self) {
        self.0.store(ANSWER_BYTES, Ordering::Relaxed);
    }

    fn spend(&self, bytes: usize) -> io::Result<()> {
        let spent = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        let too_much =
            |_| io::Error::new(io::ErrorKind::InvalidData, "the server sends more than it should");
        spent.map(drop).map_err(too_much)
    }
}

/// `config`, such that its sockets come by a [`Gate`]; `None` where they cannot.
pub(super) fn by_gate(config: &Config) -> Option<Config> {
    if matches!(config.get_hosts().first(), Some(Host::Unix(_))) {
        return None;
    }
    let mut config = config.clone();
    if config.get_ssl_mode() == SslMode::Disable {
        config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        // There is no TLS without a name, not even this one.
        if let (true, Some(address)) =
            (config.get_hosts().is_empty(), config.get_hostaddrs().first().copied())
        {
            config.host(address.to_string());
        }
    }
    Some(config)
}

/// What every socket passes: it is counted, and becomes TLS if it should.
pub(super) struct Gate {
    pub tls: Option<MakeRustlsConnect>,
    pub budget: Budget,
}

type Rustls = MakeRustlsConnect;
type RustlsConnect = <Rustls as MakeTlsConnect<Metered>>::TlsConnect;
type RustlsStream = <Rustls as MakeTlsConnect<Metered>>::Stream;

pub(super) struct Connector {
    tls: Option<RustlsConnect>,
    budget: Budget,
}

pub(super) enum Passed {
    Plain(Metered),
    Tls(Box<RustlsStream>),
}

/// A socket that counts what it reads.
pub(super) struct Metered {
    socket: Socket,
    budget: Budget,
}

impl MakeTlsConnect<Socket> for Gate {
    type Stream = Passed;
    type TlsConnect = Connector;
    type Error = Infallible;

    fn make_tls_connect(&mut self, name: &str) -> Result<Connector, Infallible> {
        let tls = self
            .tls
            .as_mut()
            .map(|tls| MakeTlsConnect::<Metered>::make_tls_connect(tls, name))
            .transpose()?;
        Ok(Connector { tls, budget: self.budget.clone() })
    }
}

impl TlsConnect<Socket> for Connector {
    type Stream = Passed;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Passed>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let metered = Metered { socket, budget: self.budget };
        Box::pin(async move {
            match self.tls {
                Some(tls) => Ok(Passed::Tls(Box::new(tls.connect(metered).await?))),
                None => Ok(Passed::Plain(metered)),
            }
        })
    }
}

impl TlsStream for Passed {
    fn channel_binding(&self) -> ChannelBinding {
        match self {
            Passed::Plain(_) => ChannelBinding::none(),
            Passed::Tls(tls) => tls.channel_binding(),
        }
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let had = into.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, into))?;
        Poll::Ready(self.budget.spend(into.filled().len() - had))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl AsyncRead for Passed {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Passed::Plain(plain) => Pin::new(plain).poll_read(cx, into),
            Passed::Tls(tls) => Pin::new(tls.as_mut()).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Passed {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Passed::Plain(plain) => Pin::new(plain).poll_write(cx, bytes),
            Passed::Tls(tls) => Pin::new(tls.as_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Passed::Plain(plain) => Pin::new(plain).poll_flush(cx),
            Passed::Tls(tls) => Pin::new(tls.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Passed::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
            Passed::Tls(tls) => Pin::new(tls.as_mut()).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        url.parse().unwrap()
    }

    #[test]
    fn one_byte_too_many_is_refused() {
        let budget = Budget::default();
        assert!(budget.spend(1).is_err());
        budget.renew();
        assert!(budget.spend(ANSWER_BYTES).is_ok() && budget.spend(1).is_err());
    }

    #[test]
    fn every_tcp_connection_comes_by_and_tls_stays_as_it_was() {
        let plain = by_gate(&config("postgres://127.0.0.1/x?sslmode=disable")).unwrap();
        assert_eq!(
            (plain.get_ssl_mode(), plain.get_ssl_negotiation()),
            (SslMode::Require, SslNegotiation::Direct)
        );
        let address = by_gate(&config("postgres:///x?hostaddr=127.0.0.1&sslmode=disable")).unwrap();
        assert_eq!(address.get_hosts(), [Host::Tcp("127.0.0.1".to_owned())]);
        let tls = by_gate(&config("postgres://h/x?sslmode=require")).unwrap();
        assert_eq!(
            (tls.get_ssl_mode(), tls.get_ssl_negotiation()),
            (SslMode::Require, SslNegotiation::Postgres)
        );
        assert!(by_gate(&config("postgres:///x?host=/run/postgresql")).is_none());
    }
}
