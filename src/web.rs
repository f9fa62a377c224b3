//! HTTP, by axum: one private runtime in one thread serves a router. Metrics are one part of it; a
//! page joins by merging its own router.
//!
//! Promise: a client that is silent, slow or endless costs a place among [`CONNECTIONS`] for
//! [`PATIENCE`] at most, and no delivery ever waits for one. Relies on handlers that answer from
//! memory. Nothing outside this module is async.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// What a client gets to ask and to take its answer; one request a connection.
const PATIENCE: Duration = Duration::from_secs(2);
/// Clients at a time; more wait in the system's queue.
const CONNECTIONS: usize = 8;
/// Bytes of a request's head, at most.
const LONGEST_REQUEST: usize = 8192;
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
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("web".to_owned()).spawn(move || {
        let ended = runtime.block_on(accept(listener, router));
        if let Err(error) = ended {
            tracing::error!(%error, "no metrics are served any more");
        }
    })?;
    Ok(())
}

async fn accept(listener: TcpListener, router: Router) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        let Ok((client, _)) = listener.accept().await else {
            // No more descriptors, most likely: they come back when clients leave.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).keep_alive(false).title_case_headers(true);
            http.max_buf_size(LONGEST_REQUEST);
            // A client that is gone, or too slow, needs no answer.
            let _ = timeout(PATIENCE, http.serve_connection(TokioIo::new(client), service)).await;
            drop(place);
        });
    }
}
