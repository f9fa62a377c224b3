//! `/metrics` over HTTP/1.1, one request a connection, one connection at a time: who scrapes comes
//! every few seconds.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// What a client gets to say what it wants.
const PATIENCE: Duration = Duration::from_secs(2);
const LONGEST_REQUEST: usize = 8192;

/// Serves in a thread of its own, for the life of the process.
///
/// # Errors
/// The address cannot be listened on.
pub fn serve(address: SocketAddr, text: impl Fn() -> String + Send + 'static) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        loop {
            match listener.accept() {
                // A client that is gone needs no answer.
                Ok((client, _)) => drop(answer(client, &text)),
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    })?;
    Ok(())
}

fn answer(mut client: TcpStream, text: &dyn Fn() -> String) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > LONGEST_REQUEST {
            return Ok(());
        }
        client.set_read_timeout(Some(left))?;
        let mut block = [0; 1024];
        let read = client.read(&mut block)?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(&block[..read]);
    }
    let is_ours = request.starts_with(b"GET /metrics ") || request.starts_with(b"GET /metrics?");
    let (status, body) =
        if is_ours { ("200 OK", text()) } else { ("404 Not Found", "see /metrics\n".to_owned()) };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())
}
