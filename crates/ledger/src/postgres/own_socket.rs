//! A Unix socket to the server, opened here or by another process that has logged in there and
//! handed its session on. To start a process of the server and to fill its caches takes ten times
//! as long as a claim in a warm one. tokio-postgres begins each connection with a login: where one
//! is done, it gets here the answers that it waits for, and the server hears nothing of it.

use std::io::{self, Cursor};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use crate::handed::{CancelKey, FileId, HandedSession, id_of};

pub(super) struct OwnSocket {
    stream: UnixStream,
    server: FileId,
    /// The answers to a login; `None`: the server answers.
    answers: Option<Cursor<Vec<u8>>>,
    /// The login was said.
    has_begun: bool,
}

impl OwnSocket {
    pub async fn to(path: &Path) -> io::Result<OwnSocket> {
        let stream = UnixStream::connect(path).await?;
        Ok(OwnSocket { stream, server: id_of(path)?, answers: None, has_begun: false })
    }

    /// A session that is with the server at `path`.
    pub fn of(session: HandedSession, path: &Path) -> io::Result<OwnSocket> {
        if id_of(path)? != session.server {
            return Err(io::Error::other("it is another server's"));
        }
        let stream = UnixStream::from_std(session.socket.into())?;
        let answers = Some(Cursor::new(answers_to_a_login(session.key)));
        Ok(OwnSocket { stream, server: session.server, answers, has_begun: false })
    }

    /// Whether another process has opened it: the server itself is at the other end.
    pub fn was_handed(&self) -> bool {
        self.answers.is_some()
    }

    /// Its descriptor, and the server's socket.
    pub fn ids(&self) -> (RawFd, FileId) {
        (self.stream.as_raw_fd(), self.server)
    }
}

/// AuthenticationOk, BackendKeyData, and ReadyForQuery outside of a transaction (protocol 3.0).
fn answers_to_a_login(key: CancelKey) -> Vec<u8> {
    let (welcome, key_follows, ready) =
        (*b"R\0\0\0\x08\0\0\0\0", *b"K\0\0\0\x0c", *b"Z\0\0\0\x05I");
    [&welcome[..], &key_follows, &key, &ready].concat()
}

impl AsyncRead for OwnSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.answers {
            Some(answers) if answers.position() < answers.get_ref().len() as u64 => {
                Pin::new(answers).poll_read(cx, into)
            }
            _ => Pin::new(&mut self.stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for OwnSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // The first that it writes is its login, as a whole.
        if self.answers.is_some() && !self.has_begun {
            self.has_begun = true;
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
