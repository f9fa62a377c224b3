//! Logs go to the systemd journal, never to standard output or error: Postfix reads those as the delivery's result.
//! Without a journal (a container, a trial) nothing is logged; the ledger and Postfix's own log still tell. A journal that
//! does not take a record at once loses it: no mail waits for a log.

use std::fmt::{self, Write as _};
use std::os::unix::net::UnixDatagram;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// systemd.journal-fields(7), "native protocol": a datagram of `FIELD=value` lines.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Sends this process' log records to the journal, if there is one.
pub fn start() {
    let Ok(socket) = UnixDatagram::unbound() else { return };
    if socket.set_nonblocking(true).is_err() || socket.connect(SOCKET).is_err() {
        return;
    }
    // A second subscriber in one process is a bug of ours that costs log lines and no mail.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Journal { socket }));
}

/// As [`start`]; without a journal a line per record goes to standard error, which is nobody's answer here.
pub fn start_for_a_server() {
    let socket = UnixDatagram::unbound().and_then(|socket| socket.connect(SOCKET).map(|()| socket));
    match socket {
        Ok(_) => start(),
        Err(_) => drop(tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Lines))),
    }
}

struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let level = event.metadata().level();
        if *level <= Level::INFO {
            let record = record(level, event);
            let fields = record.lines().filter(|line| line.starts_with("ONEDROP_") || line.starts_with("MESSAGE="));
            let words: Vec<String> = fields.map(|line| line.trim_start_matches("ONEDROP_").to_owned()).collect();
            // Nobody is left to tell of an error.
            let _ =
                std::io::Write::write_all(&mut std::io::stderr(), format!("{level} {}\n", words.join(" ")).as_bytes());
        }
    }
}

struct Journal {
    socket: UnixDatagram,
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let level = event.metadata().level();
        if *level <= Level::INFO {
            // Full, gone or too small for it: see the module.
            let _ = self.socket.send(record(level, event).as_bytes());
        }
    }
}

fn record(level: &Level, event: &Event<'_>) -> String {
    let priority = match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        _ => 6,
    };
    let mut fields = Fields(format!("SYSLOG_IDENTIFIER=onedrop\nPRIORITY={priority}\n"));
    event.record(&mut fields);
    fields.0
}

struct Fields(String);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let name = match field.name() {
            "message" => "MESSAGE".to_owned(),
            name => format!("ONEDROP_{}", name.to_ascii_uppercase()),
        };
        let value: String = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(self.0, "{name}={value}"); // writing to a String cannot fail
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line_per_field_and_a_full_journal_does_not_hold_anybody_up() {
        let (ours, journal) = UnixDatagram::pair().expect("a pair");
        ours.set_nonblocking(true).expect("an option");
        let subscriber = tracing_subscriber::registry().with(Journal { socket: ours });
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..10_000 {
                tracing::warn!(queue_id = "4X\nFAKE=1", milliseconds = 7u64, "not {}", "delivered");
            }
        });
        let mut bytes = [0; 4096];
        let length = journal.recv(&mut bytes).expect("a record");
        let expected = "SYSLOG_IDENTIFIER=onedrop\nPRIORITY=4\nMESSAGE=not delivered\nONEDROP_QUEUE_ID=4X FAKE=1\nONEDROP_MILLISECONDS=7\n";
        assert_eq!(String::from_utf8_lossy(&bytes[..length]), expected);
    }
}
