//! One connection with its private runtime, which runs only while a call waits.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use postgres::{Error, Row};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout_at;
use tokio_postgres::{AsyncMessage, Client, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::cancel::{cancel, cancel_key, pid_at_login};
use super::errors::{refuses_login, text_of};
use super::metered::{Budget, MeteredTls, with_meter};
use super::own_socket::OwnSocket;
use super::target::{HostTarget, Target};
use crate::given_up::no_answer_text;
use crate::handed::{self, FileId, HandedSession};
use crate::runtime::PrivateRuntime;
use onedrop_core::ledger::LedgerError;

/// What a connection hears beside its answers.
pub(super) enum Listens {
    Nothing,
    /// The word on this channel.
    To(String),
    /// There is none: a pooler is in between, or the schema announces nothing.
    ToNobody,
}

/// A connection and its runtime.
pub(super) struct Link {
    pub client: Client,
    /// Bytes that the server may still send.
    pub budget: Budget,
    /// By their text, those that every delivery runs and that were run here; with the statement
    /// where it is prepared.
    pub kept: HashMap<String, Option<tokio_postgres::Statement>>,
    /// Whether the server itself is at the other end: one process of it answers as long as the
    /// connection lasts, and keeps what is prepared. `None`: it was not asked.
    pub keeps_prepared: Option<bool>,
    pub listens: Listens,
    /// The descriptor, and the server's socket, of a session that may be handed on, if the server
    /// itself is at the other end.
    socket: Option<(RawFd, FileId)>,
    /// It is: the session was handed on before.
    pub is_servers: bool,
    connection: JoinHandle<Result<(), Error>>,
    heard: Arc<Heard>,
    /// Which of the target's hosts this is.
    host: usize,
    /// When the server answered last.
    pub answered_at: Instant,
    pub runtime: PrivateRuntime,
}

impl Link {
    /// Connects to the first host that answers; each gets its share of the time.
    /// `handed` was with the only host.
    pub fn to(
        target: &Target,
        mut handed: Option<HandedSession>,
        until: Instant,
    ) -> Result<Link, LedgerError> {
        let runtime = PrivateRuntime::new().map_err(cannot_wait)?;
        let (mut failures, mut refusals) = (Vec::new(), 0);
        for (at, host) in target.hosts.iter().enumerate() {
            let began = Instant::now();
            let hosts_left = u32::try_from(target.hosts.len() - at).unwrap_or(u32::MAX);
            let share = began + until.saturating_duration_since(began) / hosts_left;
            let tls = target.tls_for(host);
            let budget = Budget::default();
            budget.renew();
            let heard = Arc::default();
            let connecting = connect(host, tls, budget.clone(), &heard, handed.take());
            match runtime.block_on(async { timeout_at(share.into(), connecting).await }) {
                Ok(Ok(Connected { client, connection, socket, is_servers })) => {
                    return Ok(Link {
                        client,
                        budget,
                        kept: HashMap::new(),
                        keeps_prepared: target.keeps_prepared(),
                        listens: Listens::Nothing,
                        socket,
                        is_servers,
                        connection,
                        heard,
                        host: at,
                        answered_at: Instant::now(),
                        runtime,
                    });
                }
                Ok(Err(error)) => {
                    refusals += usize::from(refuses_login(&error));
                    failures.push(format!("{}: {}", host.name, text_of(&error)));
                }
                Err(_) => {
                    failures.push(format!("{}: {}", host.name, no_answer_text(began.elapsed())))
                }
            }
        }
        let all = failures.join("; ");
        // A host that does not answer might accept the login.
        Err(if refusals == failures.len() {
            LedgerError::Login(all)
        } else {
            LedgerError::Unavailable(all)
        })
    }

    /// Asks the server to cancel what it still does here, and returns once it has heard that, at
    /// the latest at `until`. The connection must not be used again.
    pub fn cancel(&self, target: &Target, until: Instant) {
        if let Some(host) = target.hosts.get(self.host) {
            let cancel = cancel(&self.client, host, target.tls_for(host));
            // Without an answer to this either, nothing more can be done.
            drop(self.runtime.block_on(async { timeout_at(until.into(), cancel).await }));
        }
    }

    /// Whether the server has committed without its synchronous standby, because somebody
    /// cancelled the wait. Such a commit looks like any other, and a fail-over may lose it.
    pub fn has_stopped_waiting(&self) -> bool {
        self.heard.no_standby.load(Ordering::Relaxed)
    }

    /// The server's process that answers has said its number. At the login a server gives the same
    /// number. A pooler gives one of its own, by which it finds the session that a request to
    /// cancel is for: PgBouncer draws it by lot, in session pooling too (`welcome_client`).
    pub fn is_answered_by(&mut self, rows: &[Row]) {
        self.keeps_prepared = Some(self.is_of(rows));
    }

    /// Whether the session could be handed on.
    pub fn has_own_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// Hands the session on: whether it went out. The server hears no goodbye, as nothing turns the
    /// runtime any more.
    pub fn hand_on(self, to: &UnixDatagram) -> bool {
        let (Some((socket, server)), Some(key)) = (self.socket, cancel_key(&self.client)) else {
            return false;
        };
        // Else it has closed its socket, and the number may be another file's by now.
        !self.connection.is_finished() && handed::send(to, socket, &key, &server)
    }

    /// Whether that number is the one of the login.
    pub fn is_of(&self, rows: &[Row]) -> bool {
        let answers: Option<i32> = rows.first().and_then(|row| row.try_get(0).ok());
        answers.is_some() && answers == pid_at_login(&self.client)
    }

    /// Waits for a notification that was not waited for yet, for the connection's end, or until one
    /// of `others` can be read.
    pub fn wait_for_word(&self, others: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.budget.renew();
        self.runtime.block_on(async {
            // SAFETY: each descriptor is borrowed, and so open and the same, for this call; what is
            // made of it here ends with the call.
            let read = |fd: &BorrowedFd<'_>| unsafe {
                AsyncFd::register_with_interest(fd.as_raw_fd(), Interest::READABLE)
            };
            let others = others.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            let mut word = pin!(self.heard.word.notified());
            poll_fn(|context| {
                let is_read = |fd: &AsyncFd<_>| fd.poll_read_ready(context).is_ready();
                match others.iter().any(is_read) || word.as_mut().poll(context).is_ready() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            Ok(())
        })
    }

    /// Why the connection ended by itself.
    pub fn end_cause(&mut self) -> Option<Error> {
        let soon = Instant::now() + Duration::from_millis(50);
        let ended =
            self.runtime.block_on(async { timeout_at(soon.into(), &mut self.connection).await });
        ended.ok()?.ok()?.err()
    }

    /// Whether the connection is open, as far as this end knows, after reading pending input.
    pub fn is_alive(&self) -> bool {
        // Two turns: the first reads the socket, the second handles the message.
        self.runtime.block_on(async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        });
        !self.client.is_closed() && !self.connection.is_finished()
    }

    pub fn say_goodbye(self) {
        let Link { client, connection, runtime, .. } = self;
        drop(client);
        runtime.block_on(async {
            for _ in 0..4 {
                if connection.is_finished() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        });
    }
}

/// What [`connect`] has made.
struct Connected {
    client: Client,
    connection: JoinHandle<Result<(), Error>>,
    socket: Option<(RawFd, FileId)>,
    is_servers: bool,
}

async fn connect(
    host: &HostTarget,
    tls: Option<MakeRustlsConnect>,
    budget: Budget,
    heard: &Arc<Heard>,
    handed: Option<HandedSession>,
) -> Result<Connected, Error> {
    let heard = Arc::clone(heard);
    if let Some(config) = with_meter(&host.config) {
        let (client, connection) = config.connect(MeteredTls { tls, budget }).await?;
        let connection = tokio::spawn(attend(connection, heard));
        return Ok(Connected { client, connection, socket: None, is_servers: false });
    }
    let own = match host.plain_socket() {
        Some(path) => match handed.map(|handed| OwnSocket::of(handed, &path)) {
            Some(Ok(own)) => Some(own),
            _ => OwnSocket::to(&path).await.ok(),
        },
        None => None,
    };
    if let Some(own) = own {
        let (socket, is_servers) = (Some(own.ids()), own.was_handed());
        let (client, connection) = host.config.connect_raw(own, NoTls).await?;
        let connection = tokio::spawn(attend(connection, heard));
        return Ok(Connected { client, connection, socket, is_servers });
    }
    // It says why there is none, or heeds what only tokio-postgres knows how to.
    let (client, connection) = host.config.connect(NoTls).await?;
    let connection = tokio::spawn(attend(connection, heard));
    Ok(Connected { client, connection, socket: None, is_servers: false })
}

pub(super) fn cannot_wait(error: io::Error) -> LedgerError {
    LedgerError::Unavailable(format!("cannot wait for a socket: {error}"))
}

/// What the server says beside its answers.
#[derive(Default)]
struct Heard {
    /// It has stopped to wait for its synchronous standby: somebody cancelled that.
    no_standby: AtomicBool,
    /// A notification has come, or the end.
    word: Notify,
}

/// Where the server says, with a warning and no error, that it commits without its standby.
const WAIT_FOR_STANDBY: &str = "SyncRepWaitForLSN";

/// Runs the connection to its end.
async fn attend<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    heard: Arc<Heard>,
) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let ended = poll_fn(|context| {
        while let Some(message) = ready!(connection.poll_message(context)?) {
            match message {
                AsyncMessage::Notification(_) => heard.word.notify_one(),
                AsyncMessage::Notice(notice) if notice.routine() == Some(WAIT_FOR_STANDBY) => {
                    heard.no_standby.store(true, Ordering::Relaxed);
                }
                _ => {}
            }
        }
        Poll::Ready(Ok(()))
    })
    .await;
    heard.word.notify_one();
    ended
}
