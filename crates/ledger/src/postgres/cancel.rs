//! Cancels what the server still does for a session that was given up. A COMMIT that waits for a
//! synchronous standby ends by nothing else: not by `statement_timeout`, nor by the end of its
//! connection (also with `client_connection_check_interval`), and it keeps its place among
//! `max_connections`.
//!
//! The request goes to the session's own address, with TLS or by Unix socket as the session has it.
//! It is over when the peer closes it: by then a server has sent the signal. A pooler finds the
//! server connection by the session, which must be open until then, and PgBouncer 1.18 ends with a
//! fatal error if the request's own connection goes before. The session is closed after that, and
//! never used again: a request that arrives late meets no other statement.

use std::future::{Ready, ready as at_once};
use std::io::{self, Cursor};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Client, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::metered::{Budget, MeteredConnector, MeteredStream, MeteredTls};
use super::target::HostTarget;
use crate::handed::CancelKey;

/// Asks the server at `host` to cancel what `client`'s session waits for, and waits until it has
/// heard that. Only that session hears its end from the server.
pub(super) async fn cancel(client: &Client, host: &HostTarget, tls: Option<MakeRustlsConnect>) {
    let token = client.cancel_token();
    // A server that cannot be reached has nothing to cancel, or we cannot help it.
    if let Some(path) = host.socket() {
        if let Ok(stream) = UnixStream::connect(path).await {
            drop(token.cancel_query_raw(UntilClosed(stream), NoTls).await);
        }
    } else {
        let budget = Budget::default();
        budget.renew();
        drop(token.cancel_query(CancelTls(MeteredTls { tls, budget })).await);
    }
}

/// The number of the server's process that the session was given at its login, or what a pooler
/// gave in its place.
pub(super) fn pid_at_login(client: &Client) -> Option<i32> {
    let key = cancel_key(client)?;
    Some(i32::from_be_bytes(*key.first_chunk()?))
}

/// That number, and the secret that was given with it. tokio-postgres shows them in a request to
/// cancel alone: one is written into memory, and goes nowhere.
pub(super) fn cancel_key(client: &Client) -> Option<CancelKey> {
    // Whatever is asked before, for TLS, is answered with "S": yes.
    let mut memory = vec![b'S'; 16];
    let stream = UntilClosed(Cursor::new(&mut memory));
    client.cancel_token().cancel_query_raw(stream, InMemory).now_or_never()?.ok()?;
    // Its length, its code, the process id, and a secret (protocol 3.0).
    match memory.last_chunk::<16>()? {
        [0, 0, 0, 16, 4, 210, 22, 46, key @ ..] => Some(*key),
        _ => None,
    }
}

/// A stream whose end is awaited: tokio-postgres shuts it down after the request, and a pooler
/// takes that for a client that is gone.
pub(super) struct UntilClosed<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for UntilClosed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for UntilClosed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is said in answer: any byte ends this as well.
        let mut byte = [0; 1];
        let read = ready!(Pin::new(&mut self.0).poll_read(cx, &mut ReadBuf::new(&mut byte)));
        Poll::Ready(read)
    }
}

impl TlsStream for UntilClosed<MeteredStream> {
    fn channel_binding(&self) -> ChannelBinding {
        self.0.channel_binding()
    }
}

impl TlsStream for UntilClosed<Cursor<&mut Vec<u8>>> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// In place of TLS, where nothing leaves this process.
struct InMemory;

impl<S: TlsStream + Unpin> TlsConnect<S> for InMemory {
    type Stream = S;
    type Error = io::Error;
    type Future = Ready<io::Result<S>>;

    fn connect(self, stream: S) -> Self::Future {
        at_once(Ok(stream))
    }
}

struct CancelTls(MeteredTls);

struct CancelConnector(MeteredConnector);

impl MakeTlsConnect<Socket> for CancelTls {
    type Stream = UntilClosed<MeteredStream>;
    type TlsConnect = CancelConnector;
    type Error = std::convert::Infallible;

    fn make_tls_connect(&mut self, name: &str) -> Result<CancelConnector, Self::Error> {
        self.0.make_tls_connect(name).map(CancelConnector)
    }
}

impl TlsConnect<Socket> for CancelConnector {
    type Stream = UntilClosed<MeteredStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { self.0.connect(socket).await.map(UntilClosed) })
    }
}
