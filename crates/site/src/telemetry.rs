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
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::Zoned;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
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
pub struct Log(Option<(Arc<LineQueue>, Receiver<()>)>);

impl Drop for Log {
    fn drop(&mut self) {
        let Some((queue, written)) = self.0.take() else { return };
        queue.end();
        // What they go to may be full.
        let _ = written.recv_timeout(LAST_LINES);
    }
}

/// Lines that may wait to be written.
pub const WAITING_LINES: usize = 1000;
/// How long the last ones may take.
pub const LAST_LINES: Duration = Duration::from_secs(1);

/// A line per record, written to `out` by a thread: no other thread waits for a reader that is
/// slow. `None` if no thread can be started.
pub fn lines(
    out: impl Write + Send + 'static,
) -> Option<(impl Layer<Registry> + Send + Sync, Log)> {
    let queue = Arc::<LineQueue>::default();
    let (ours, (done, written)) = (Arc::clone(&queue), channel());
    let write = move || {
        ours.write_to(out);
        let _ = done.send(());
    };
    thread::Builder::new().name("log".to_owned()).spawn(write).ok()?;
    let log = Log(Some((Arc::clone(&queue), written)));
    let write = move |record: &LogRecord| {
        let mut text = format!("MESSAGE={}", unmistakable(&record.message()));
        for (name, value) in record.fields.lines().filter_map(|field| field.split_once('=')) {
            let name = name.strip_prefix("ONEDROP_").unwrap_or(name);
            text += &format!(" {name}={}", text::quoted(value));
        }
        queue.add(&line(record.priority, &text));
    };
    Some((LogLayer(write), log))
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

/// Lines on their way to the thread that writes them. By hand: the queue of tracing-appender
/// yields the processor four times for each line, and wakes its thread for each.
#[derive(Default)]
struct LineQueue {
    state: Mutex<WaitingLines>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingLines {
    text: String,
    /// Lines in `text`, and those that are being written.
    count: usize,
    /// Lines that found no room since the last that did.
    lost: usize,
    /// The thread sleeps, and is to be woken.
    sleeps: bool,
    has_ended: bool,
}

impl LineQueue {
    /// Adds a line, if there is room.
    fn add(&self, line: &str) {
        let mut state = self.state();
        if state.count < WAITING_LINES {
            state.count += 1;
            state.text += line;
        } else {
            state.lost += 1;
        }
        self.wake(state);
    }

    fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        self.wake(state);
    }

    fn wake(&self, mut state: MutexGuard<'_, WaitingLines>) {
        if std::mem::take(&mut state.sleeps) {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Writes what comes, and after it how many lines found no room, until the end.
    fn write_to(&self, mut out: impl Write) {
        loop {
            let mut state = self.state();
            while state.text.is_empty() && state.lost == 0 {
                if state.has_ended {
                    return;
                }
                state.sleeps = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let (mut text, count) = (std::mem::take(&mut state.text), state.count);
            let lost = std::mem::take(&mut state.lost);
            drop(state);
            if lost > 0 {
                let told = format!("MESSAGE={lost} lines of this log are lost");
                text += &line(Priority::Warning, &told);
            }
            // An error cannot be reported any more.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            self.state().count -= count;
        }
    }

    fn state(&self) -> MutexGuard<'_, WaitingLines> {
        // Nothing that can panic is done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
