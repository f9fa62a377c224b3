//! Limits the bytes that a server may send for one call. tokio-postgres buffers a message until it
//! is complete, and the server states its length: up to 2 GiB, even before the login. Bytes are
//! counted as tokio-postgres reads them; TLS below buffers one record. One byte above the limit
//! ends the connection.
//!
//! tokio-postgres opens its sockets itself and passes them on in one place only, to add TLS. So a
//! TCP connection without TLS passes here too, as "direct" TLS that adds nothing. Unix sockets,
//! whose server runs on this host, and the fallback of `sslmode=prefer` are not counted.

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

/// Bytes that the server may send for one call; answers to this program's statements have fewer.
const ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Bytes that the server may still send.
#[derive(Clone, Default)]
pub(super) struct Budget(Arc<AtomicUsize>);

impl Budget {
    /// Must be called before each call.
    pub fn renew(&self) {
        self.0.store(ANSWER_BYTES, Ordering::Relaxed);
    }

    fn spend(&self, bytes: usize) -> io::Result<()> {
        let spent =
            self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        let too_much =
            |_| io::Error::new(io::ErrorKind::InvalidData, "the server sends more than it should");
        spent.map(drop).map_err(too_much)
    }
}

/// `config` changed so that its sockets pass a [`MeteredTls`]; `None` for Unix sockets.
pub(super) fn with_meter(config: &Config) -> Option<Config> {
    if matches!(config.get_hosts().first(), Some(Host::Unix(_))) {
        return None;
    }
    let mut config = config.clone();
    if config.get_ssl_mode() == SslMode::Disable {
        config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        // tokio-postgres needs a name for TLS, even for this one.
        if let (true, Some(address)) =
            (config.get_hosts().is_empty(), config.get_hostaddrs().first().copied())
        {
            config.host(address.to_string());
        }
    }
    Some(config)
}

/// Makes a [`MeteredStream`] of every socket, with TLS if there is any.
pub(super) struct MeteredTls {
    pub tls: Option<MakeRustlsConnect>,
    pub budget: Budget,
}

type Rustls = MakeRustlsConnect;
type RustlsConnect = <Rustls as MakeTlsConnect<Socket>>::TlsConnect;
type RustlsStream = <Rustls as MakeTlsConnect<Socket>>::Stream;

pub(super) struct MeteredConnector {
    tls: Option<RustlsConnect>,
    budget: Budget,
}

/// A connection that counts what is read from it.
pub(super) struct MeteredStream {
    below: Below,
    budget: Budget,
}

enum Below {
    Plain(Socket),
    Tls(Box<RustlsStream>),
}

impl MakeTlsConnect<Socket> for MeteredTls {
    type Stream = MeteredStream;
    type TlsConnect = MeteredConnector;
    type Error = Infallible;

    fn make_tls_connect(&mut self, name: &str) -> Result<MeteredConnector, Infallible> {
        let tls = self
            .tls
            .as_mut()
            .map(|tls| MakeTlsConnect::<Socket>::make_tls_connect(tls, name))
            .transpose()?;
        Ok(MeteredConnector { tls, budget: self.budget.clone() })
    }
}

impl TlsConnect<Socket> for MeteredConnector {
    type Stream = MeteredStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<MeteredStream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let below = match self.tls {
                Some(tls) => Below::Tls(Box::new(tls.connect(socket).await?)),
                None => Below::Plain(socket),
            };
            Ok(MeteredStream { below, budget: self.budget })
        })
    }
}

impl TlsStream for MeteredStream {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.below {
            Below::Plain(_) => ChannelBinding::none(),
            Below::Tls(tls) => tls.channel_binding(),
        }
    }
}

/// What reads and writes.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl MeteredStream {
    fn below(&mut self) -> Pin<&mut dyn Duplex> {
        match &mut self.below {
            Below::Plain(plain) => Pin::new(plain),
            Below::Tls(tls) => Pin::new(tls.as_mut()),
        }
    }
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let had = into.filled().len();
        ready!(self.below().poll_read(cx, into))?;
        Poll::Ready(self.budget.spend(into.filled().len() - had))
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.below().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.below().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.below().poll_shutdown(cx)
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
    fn every_tcp_connection_is_metered_and_tls_is_unchanged() {
        let plain = with_meter(&config("postgres://127.0.0.1/x?sslmode=disable")).unwrap();
        assert_eq!(
            (plain.get_ssl_mode(), plain.get_ssl_negotiation()),
            (SslMode::Require, SslNegotiation::Direct)
        );
        let address =
            with_meter(&config("postgres:///x?hostaddr=127.0.0.1&sslmode=disable")).unwrap();
        assert_eq!(address.get_hosts(), [Host::Tcp("127.0.0.1".to_owned())]);
        let tls = with_meter(&config("postgres://h/x?sslmode=require")).unwrap();
        assert_eq!(
            (tls.get_ssl_mode(), tls.get_ssl_negotiation()),
            (SslMode::Require, SslNegotiation::Postgres)
        );
        assert!(with_meter(&config("postgres:///x?host=/run/postgresql")).is_none());
    }
}
