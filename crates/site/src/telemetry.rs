//! Logs go to the systemd journal, never to standard output or error: Postfix reads those as the
//! delivery's result. Without a journal (a container, a trial) nothing is logged, but by a server;
//! the ledger and Postfix's own log still have the facts. A journal, or a reader of a server's
//! standard error, that does not take a record at once loses it: no mail waits for a log. After a
//! restart of journald records go on. By hand: tracing-journald waits for a full journal.
//!
//! Priorities are syslog(3)'s. tracing has no NOTICE, so an event may name its priority in a field
//! of that name ([`Priority`]), which then counts in place of its level.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use jiff::Zoned;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::{Registry, registry};

use onedrop_core::outcome::{Outcome, Status};
use onedrop_core::text;

/// How urgent a record is, as syslog(3) numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Ours to mend: configuration, schema, a login of ours.
    Error = 3,
    /// An administrator should look: mail was refused for good.
    Warning = 4,
    /// Normal, but worth seeing: mail waits for another try.
    Notice = 5,
    Info = 6,
}

impl Priority {
    /// How urgent it is to know that a delivery ended so.
    pub fn of(outcome: &Outcome) -> Priority {
        match outcome {
            Outcome::Delivered(_) => Priority::Info,
            Outcome::TempFail(Status::OUR_SETUP, _) => Priority::Error,
            Outcome::TempFail(..) => Priority::Notice,
            Outcome::PermFail(..) => Priority::Warning,
        }
    }

    fn numbered(number: u64) -> Option<Priority> {
        let all = [Priority::Error, Priority::Warning, Priority::Notice, Priority::Info];
        all.into_iter().find(|priority| *priority as u64 == number)
    }

    fn name(self) -> &'static str {
        match self {
            Priority::Error => "ERROR",
            Priority::Warning => "WARN",
            Priority::Notice => "NOTICE",
            Priority::Info => "INFO",
        }
    }
}

/// Where journald takes datagrams of `FIELD=value` lines ("native protocol" in
/// systemd.journal-fields(7)).
const SOCKET: &str = "/run/systemd/journal/socket";
/// Whose records they are.
const IDENTIFIER: &str = "SYSLOG_IDENTIFIER=onedrop";

/// Sends this process' log records to the journal, if there is one.
pub fn start() {
    if let Ok(journal) = journal(SOCKET.into()) {
        log_to(journal);
    }
}

/// Does what [`start`] does; without a journal a line per record goes to standard error, which here
/// is no delivery's result. What it does not take is lost as well, and counted.
pub fn start_for_a_server() -> Log {
    if let Ok(journal) = journal(SOCKET.into()) {
        log_to(journal);
        return Log(None);
    }
    // Without a thread there is no log, but there may be mail.
    let Some((lines, log)) = lines(std::io::stderr()) else { return Log(None) };
    log_to(lines);
    log
}

fn log_to(layer: impl Layer<Registry> + Send + Sync) {
    // A second subscriber in one process is a bug of ours that costs log lines and no mail.
    let _ = tracing::subscriber::set_global_default(registry().with(layer));
}

/// The log of a server, to be dropped at its end: the last lines get a moment to be written.
pub struct Log(Option<WorkerGuard>);

impl Drop for Log {
    fn drop(&mut self) {
        let Some(guard) = self.0.take() else { return };
        // The guard waits for the last lines and complains on standard output, which may be as full
        // as what they go to.
        let (done, ended) = channel();
        let flush = move || {
            drop(guard);
            let _ = done.send(());
        };
        if thread::Builder::new().name("last lines".to_owned()).spawn(flush).is_ok() {
            let _ = ended.recv_timeout(LAST_LINES);
        }
    }
}

/// Lines that may wait to be written.
pub const WAITING_LINES: usize = 1000;
/// How long the last ones may take.
pub const LAST_LINES: Duration = Duration::from_secs(1);

/// A line per record, written to `out` by tracing-appender's thread: no other thread waits for a
/// reader that is slow. `None` if no thread can be started.
pub fn lines(
    out: impl Write + Send + 'static,
) -> Option<(impl Layer<Registry> + Send + Sync, Log)> {
    let counter = Arc::new(OnceLock::new());
    let out = CountedLines { out, counter: Arc::clone(&counter), known: 0 };
    let queue =
        NonBlockingBuilder::default().thread_name("log").buffered_lines_limit(WAITING_LINES);
    // It panics without a thread.
    let (queue, guard) = catch_unwind(AssertUnwindSafe(|| queue.finish(out))).ok()?;
    let _ = counter.set(queue.error_counter());
    let write = move |record: &LogRecord| {
        let mut text = format!("MESSAGE={}", unmistakable(&record.message()));
        for (name, value) in record.fields.lines().filter_map(|field| field.split_once('=')) {
            let name = name.strip_prefix("ONEDROP_").unwrap_or(name);
            text += &format!(" {name}={}", text::quoted(value));
        }
        // What finds no room is counted there.
        let _ = queue.clone().write_all(line(record.priority, &text).as_bytes());
    };
    Some((LogLayer(write), Log(Some(guard))))
}

/// journald, wherever the socket at `path` leads at the moment: after a restart that may be another
/// one. A record for which it has no room is lost.
///
/// # Errors
/// No socket takes datagrams there.
pub fn journal(path: PathBuf) -> std::io::Result<impl Layer<Registry> + Send + Sync> {
    UnixDatagram::unbound()?.connect(&path)?;
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(LogLayer(move |record: &LogRecord| {
        let (priority, message) = (record.priority as u8, record.message());
        let text =
            format!("{IDENTIFIER}\nPRIORITY={priority}\nMESSAGE={message}\n{}", record.fields);
        let _ = socket.send_to(text.as_bytes(), &path);
    }))
}

/// Gives each record to a function.
struct LogLayer<F>(F);

impl<F: Fn(&LogRecord) + 'static> Layer<Registry> for LogLayer<F> {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, Registry>) {
        let priority = match *event.metadata().level() {
            Level::ERROR => Priority::Error,
            Level::WARN => Priority::Warning,
            Level::INFO => Priority::Info,
            _ => return,
        };
        let mut record =
            LogRecord { priority, text: String::new(), why: String::new(), fields: String::new() };
        event.record(&mut record);
        (self.0)(&record);
    }
}

/// Says between the lines how many did not find room.
struct CountedLines<W> {
    out: W,
    counter: Arc<OnceLock<ErrorCounter>>,
    known: usize,
}

impl<W: Write> CountedLines<W> {
    fn tell_losses(&mut self) -> std::io::Result<()> {
        let lost = self.counter.get().map_or(0, ErrorCounter::dropped_lines);
        if lost == self.known {
            return Ok(());
        }
        let text = format!("MESSAGE={} lines of this log are lost", lost - self.known);
        self.known = lost;
        self.out.write_all(line(Priority::Warning, &text).as_bytes())
    }
}

impl<W: Write> Write for CountedLines<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.out.write(bytes)
    }

    fn write_all(&mut self, line: &[u8]) -> std::io::Result<()> {
        // An error cannot be reported any more.
        let _ = self.tell_losses();
        self.out.write_all(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.tell_losses()?;
        self.out.flush()
    }
}

/// A line of a log in which nothing else puts the time before it.
fn line(priority: Priority, text: &str) -> String {
    format!("{} {} {text}\n", Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.3f%:z"), priority.name())
}

struct LogRecord {
    priority: Priority,
    text: String,
    /// What went wrong, if that is a field: it belongs into the text, which is all that some keep.
    why: String,
    /// A line per other field, as the journal takes them.
    fields: String,
}

impl LogRecord {
    fn message(&self) -> String {
        let colon = if self.why.is_empty() { "" } else { ": " };
        format!("{}{colon}{}", self.text, self.why)
    }
}

/// The text of a line: in quotation marks where a part of it reads as a field.
fn unmistakable(text: &str) -> Cow<'_, str> {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let is_field =
        |word: &str| word.split_once('=').is_some_and(|(name, _)| name.contains(is_name));
    match text.starts_with('"') || text.split_whitespace().any(is_field) {
        true => text::quoted(text),
        false => text.into(),
    }
}

impl Visit for LogRecord {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match Priority::numbered(value).filter(|_| field.name() == "priority") {
            Some(priority) => self.priority = priority,
            None => self.record_debug(field, &value),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let value = text::shown(value);
        match field.name() {
            "message" => self.text = value.into_owned(),
            "error" | "failure" | "why" => self.why = value.into_owned(),
            name => {
                // Writing to a String cannot fail.
                let _ = writeln!(self.fields, "ONEDROP_{}={value}", name.to_ascii_uppercase());
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
