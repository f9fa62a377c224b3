//! HTTP, by axum and hyper: one private runtime in one thread serves a router, over TCP or a Unix
//! socket. Metrics are served by it, and the web pages.
//!
//! Promise: a client that is slow or endless costs a place among [`HttpLimits::places`] for
//! [`HttpLimits::whole`] at most, and one that is silent only while no other wants it; a panic ends
//! one request, and no delivery ever waits for either.
//! Relies on handlers that do not block. Nothing outside this module and `web` is async.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use onedrop_net::listener::Listener;

/// What clients may take.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Clients at a time. For one more, a client that has sent no request gives its place up; if
    /// all have, it waits.
    pub places: usize,
    /// For a request's head.
    pub head: Duration,
    /// For the request and its answer, a quarter of it for reading a body, which no handler uses;
    /// one request a connection.
    pub whole: Duration,
}

/// Those of `/metrics`.
const OF_METRICS: HttpLimits =
    HttpLimits { places: 8, head: Duration::from_secs(2), whole: Duration::from_secs(2) };
/// Bytes of a request's head, at most.
const LONGEST_REQUEST: usize = 8192;
/// What requests under way get when the server stops.
const LAST_REQUESTS: Duration = Duration::from_secs(5);
/// Prometheus' text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `/metrics`, with what `text` says at the moment.
pub fn metrics(text: impl Fn() -> String + Clone + Send + Sync + 'static) -> Router {
    let answer = || async move { ([(CONTENT_TYPE, TEXT_FORMAT)], text()) };
    Router::new()
        .route("/metrics", get(answer))
        .fallback(|| async { (StatusCode::NOT_FOUND, "see /metrics\n") })
}

/// Serves in a thread of its own, for the life of the process.
pub fn serve(address: SocketAddr, router: Router) -> io::Result<()> {
    let listener = Listener::Tcp(TcpListener::bind(address)?).prepared()?;
    let runtime = runtime(1)?;
    thread::Builder::new().name("http".to_owned()).spawn(move || {
        let places = Arc::new(Semaphore::new(OF_METRICS.places));
        let ended = runtime.block_on(accept(listener, router, OF_METRICS, places, Arc::default()));
        if let Err(error) = ended {
            tracing::error!(%error, "no metrics are served any more");
        }
    })?;
    Ok(())
}

/// Serves until something comes from `stop`, or its other end is closed; requests under way are
/// answered. Handlers may run as many blocking calls at a time as `blocking`.
pub fn run(
    listeners: Vec<Listener>,
    router: Router,
    limits: HttpLimits,
    blocking: usize,
    stop: UnixStream,
) -> io::Result<()> {
    stop.set_nonblocking(true)?;
    let runtime = runtime(blocking)?;
    let served = runtime.block_on(async {
        let stop = tokio::net::UnixStream::from_std(stop)?;
        let open = Arc::new(Semaphore::new(limits.places));
        let silent = Arc::<SilentClients>::default();
        let accepting = listeners.into_iter().map(|listener| {
            let (open, silent) = (Arc::clone(&open), Arc::clone(&silent));
            tokio::spawn(accept(listener, router.clone(), limits, open, silent))
        });
        let accepting: Vec<_> = accepting.collect();
        stop.readable().await?;
        for one in accepting {
            one.abort();
        }
        let places = u32::try_from(limits.places).unwrap_or(u32::MAX);
        // A client that is slower than that sees its connection end.
        let _ = timeout(LAST_REQUESTS, open.acquire_many(places)).await;
        Ok(())
    });
    runtime.shutdown_timeout(LAST_REQUESTS);
    served
}

fn runtime(blocking: usize) -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking)
        .build()
}

/// A listener of the runtime.
enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// Clients whose request has not come yet, oldest first.
#[derive(Default)]
struct SilentClients(Mutex<BTreeMap<u64, (Option<IpAddr>, AbortHandle)>>);

impl SilentClients {
    /// Ends the oldest one of the address that has the most.
    fn end_one(&self) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = |address| clients.values().filter(|(from, _)| *from == address).count();
        let oldest_of_most = clients
            .iter()
            .map(|(number, (from, _))| (of_address(*from), Reverse(*number)))
            .max()
            .map(|(_, Reverse(number))| number);
        if let Some((_, task)) = oldest_of_most.and_then(|number| clients.remove(&number)) {
            task.abort();
        }
    }

    fn add(&self, number: u64, from: Option<IpAddr>, task: AbortHandle) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.insert(number, (from, task));
    }

    fn remove(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

async fn accept(
    listener: Listener,
    router: Router,
    limits: HttpLimits,
    places: Arc<Semaphore>,
    silent: Arc<SilentClients>,
) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // The file of a Unix socket goes with the last of this.
    let (accepting, _file) = match listener {
        Listener::Tcp(one) => (Accepting::Tcp(tokio::net::TcpListener::from_std(one)?), None),
        Listener::Unix(one, file) => {
            (Accepting::Unix(tokio::net::UnixListener::from_std(one)?), file)
        }
    };
    loop {
        let accepted = match &accepting {
            Accepting::Tcp(one) => {
                one.accept().await.map(|(client, from)| (Client::Tcp(client), Some(from.ip())))
            }
            Accepting::Unix(one) => {
                one.accept().await.map(|(client, _)| (Client::Unix(client), None))
            }
        };
        let Ok((client, from)) = accepted else {
            // No more descriptors, most likely: they come back when clients leave.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        if places.available_permits() == 0 {
            silent.end_one();
        }
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (served, router) = (Arc::clone(&silent), router.clone());
        // Its thread is this one: it begins after it was added.
        let task = match client {
            Client::Tcp(client) => spawn(client, router, limits, place, (number, served)),
            Client::Unix(client) => spawn(client, router, limits, place, (number, served)),
        };
        silent.add(number, from, task);
        // What it has sent already is read before the next client can take its place.
        tokio::task::yield_now().await;
    }
}

enum Client {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

fn spawn(
    client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    limits: HttpLimits,
    place: OwnedSemaphorePermit,
    (number, silent): (u64, Arc<SilentClients>),
) -> AbortHandle {
    let serve = async move {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).keep_alive(false).title_case_headers(true);
        http.max_buf_size(LONGEST_REQUEST).header_read_timeout(limits.head);
        let router = TowerToHyperService::new(router);
        let answer = service_fn(|request: Request<Incoming>| {
            silent.remove(number);
            let router = router.clone();
            async move {
                let (head, mut body) = request.into_parts();
                // No handler uses a body. Closing the connection with one unread would reset it
                // while the client still sends: a proxy then reports the reset in place of our
                // answer.
                let read = async {
                    while let Some(Ok(_)) =
                        poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
                    {
                    }
                };
                let _ = timeout(limits.whole / 4, read).await;
                router.call(Request::from_parts(head, Body::empty())).await
            }
        });
        // A client that is gone, or too slow, needs no answer.
        let _ = timeout(limits.whole, http.serve_connection(TokioIo::new(client), answer)).await;
        silent.remove(number);
        drop(place);
    };
    tokio::spawn(serve).abort_handle()
}
