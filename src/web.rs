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
///
/// # Errors
/// The address cannot be listened on, or there is no thread.
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn start() -> SocketAddr {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let page = Router::new().route("/page", get(|| async { "a page" }));
        serve(address, metrics(|| "a 1\n".to_owned()).merge(page)).expect("it listens");
        address
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("an option");
        stream
    }

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = connect(address);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("a question");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("an answer, and the end");
        said
    }

    #[test]
    fn a_page_joins_the_metrics() {
        let address = start();
        let said = ask(address, "/metrics");
        let (head, body) = said.split_once("\r\n\r\n").expect("a head");
        assert_eq!(body, "a 1\n");
        assert!(head.contains(&format!("Content-Type: {TEXT_FORMAT}\r\n")), "{head}");
        assert!(ask(address, "/page").ends_with("\r\n\r\na page"));
        assert!(ask(address, "/other").starts_with("HTTP/1.1 404 Not Found\r\n"));
    }

    #[test]
    fn silent_clients_leave_their_places_to_others() {
        let address = start();
        let began = Instant::now();
        let silent: Vec<TcpStream> = (0..3 * CONNECTIONS).map(|_| connect(address)).collect();
        assert!(ask(address, "/metrics").starts_with("HTTP/1.1 200 OK\r\n"));
        let took = began.elapsed();
        assert!(took >= 3 * PATIENCE && took < LONG, "{took:?}");
        for mut one in silent {
            assert_eq!(one.read(&mut [0; 8]).expect("the end"), 0, "it was turned away");
        }
    }
}
