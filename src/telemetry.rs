//! Logs go to the systemd journal, never to standard output or error: Postfix reads those as the
//! delivery's result. Without a journal (a container, a trial) nothing is logged, but by a server;
//! the ledger and Postfix's own log still tell. A journal, or a reader of a server's standard
//! error, that does not take a record at once loses it: no mail waits for a log. After a restart of
//! journald records go on. By hand: tracing-journald waits for a full journal.
//!
//! Priorities are syslog(3)'s. tracing has no NOTICE, so an event may name its priority in a field
//! of that name ([`Priority`]), which then counts in place of its level.

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
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::{Registry, registry};

use crate::outcome::{Outcome, Status};
use crate::text;

/// How urgent a record is, as syslog(3) numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Ours to mend: configuration, schema, a login of ours.
    Error = 3,
    /// Somebody should look: mail was refused for good.
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

    fn of_level(level: Level) -> Priority {
        match level {
            Level::ERROR => Priority::Error,
            Level::WARN => Priority::Warning,
            _ => Priority::Info,
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

/// Sends this process' log records to the journal, if there is one.
pub fn start() {
    if let Ok(journal) = Journal::at(SOCKET.into()) {
        log_to(journal);
    }
}

/// As [`start`]; without a journal a line per record goes to standard error, which is nobody's
/// answer here. What it does not take is lost as well, and counted.
pub fn start_for_a_server() -> Log {
    if let Ok(journal) = Journal::at(SOCKET.into()) {
        log_to(journal);
        return Log(None);
    }
    // Without a thread there is no log, but there may be mail.
    let Some((lines, log)) = Lines::to(std::io::stderr()) else { return Log(None) };
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
const WAITING_LINES: usize = 1000;
/// How long the last ones may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A line per record, written by tracing-appender's thread: nobody else waits where nobody reads.
struct Lines(NonBlocking);

impl Lines {
    /// `None` where no thread is to be had.
    fn to(out: impl Write + Send + 'static) -> Option<(Lines, Log)> {
        let counter = Arc::new(OnceLock::new());
        let out = Counted { out, counter: Arc::clone(&counter), known: 0 };
        let queue =
            NonBlockingBuilder::default().thread_name("log").buffered_lines_limit(WAITING_LINES);
        // It panics without a thread.
        let (queue, guard) = catch_unwind(AssertUnwindSafe(|| queue.finish(out))).ok()?;
        let _ = counter.set(queue.error_counter());
        Some((Lines(queue), Log(Some(guard))))
    }
}

/// Says between the lines how many did not find room.
struct Counted<W> {
    out: W,
    counter: Arc<OnceLock<ErrorCounter>>,
    known: usize,
}

impl<W: Write> Counted<W> {
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

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.out.write(bytes)
    }

    fn write_all(&mut self, line: &[u8]) -> std::io::Result<()> {
        // Nobody is left to tell of an error.
        let _ = self.tell_losses();
        self.out.write_all(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.tell_losses()?;
        self.out.flush()
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let level = event.metadata().level();
        if *level <= Level::INFO {
            let record = Record::of(event);
            let fields: Vec<&str> = record
                .fields
                .lines()
                .map(|line| line.strip_prefix("ONEDROP_").unwrap_or(line))
                .collect();
            let text = format!("{} {}", record.message(), fields.join(" "));
            // What finds no room is counted there.
            let _ = self.0.clone().write_all(line(record.priority, text.trim_end()).as_bytes());
        }
    }
}

/// journald, wherever its socket leads at the moment: after a restart that may be another one.
struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// # Errors
    /// Nobody takes datagrams there.
    fn at(path: PathBuf) -> std::io::Result<Journal> {
        UnixDatagram::unbound()?.connect(&path)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Journal { socket, path })
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let level = event.metadata().level();
        if *level <= Level::INFO {
            // Full, gone or too small for it: see the module.
            let record = Record::of(event).for_the_journal();
            let _ = self.socket.send_to(record.as_bytes(), &self.path);
        }
    }
}

/// A line of a log that has nobody to put the time before it.
fn line(priority: Priority, text: &str) -> String {
    format!("{} {} {text}\n", Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.3f%:z"), priority.name())
}

struct Record {
    priority: Priority,
    text: String,
    /// What went wrong, if that is a field: it belongs into the text, which is all that some keep.
    why: String,
    /// A line per other field, as the journal takes them.
    fields: String,
}

impl Record {
    fn of(event: &Event<'_>) -> Record {
        let priority = Priority::of_level(*event.metadata().level());
        let mut record =
            Record { priority, text: String::new(), why: String::new(), fields: String::new() };
        event.record(&mut record);
        record
    }

    fn message(&self) -> String {
        let colon = if self.why.is_empty() { "" } else { ": " };
        format!("MESSAGE={}{colon}{}", self.text, self.why)
    }

    fn for_the_journal(&self) -> String {
        format!(
            "SYSLOG_IDENTIFIER=onedrop\nPRIORITY={}\n{}\n{}",
            self.priority as u8,
            self.message(),
            self.fields
        )
    }
}

impl Visit for Record {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match Priority::numbered(value).filter(|_| field.name() == "priority") {
            Some(priority) => self.priority = priority,
            None => self.record_debug(field, &value),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let value = text::one_line(value);
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::Receiver;
    use std::time::Instant;

    use super::*;

    /// Takes nothing until it is told to, as a pipe that nobody reads.
    struct Blocked {
        until: Receiver<()>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Told once, it goes on for good: the sender is gone.
            let _ = self.until.recv();
            self.taken.lock().expect("lines").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn with<T>(layer: impl Layer<Registry> + Send + Sync, log: impl FnOnce() -> T) -> T {
        tracing::subscriber::with_default(registry().with(layer), log)
    }

    fn received(journal: &UnixDatagram) -> String {
        let mut bytes = [0; 4096];
        journal.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
        let length = journal.recv(&mut bytes).expect("a record");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn lines_that_nobody_takes_are_lost_and_counted_and_hold_nobody_up() {
        const LINES: usize = 3 * WAITING_LINES;
        let (unblock, until) = channel();
        let taken: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (lines, log) =
            Lines::to(Blocked { until, taken: Arc::clone(&taken) }).expect("a thread");
        let (done, ended) = channel();
        thread::spawn(move || {
            with(lines, || (0..LINES).for_each(|number| tracing::info!(number, "a line")));
            let _ = done.send(());
        });
        ended.recv_timeout(Duration::from_secs(30)).expect("whoever logs goes on");
        drop(unblock);
        drop(log);
        let until = Instant::now() + Duration::from_secs(30);
        while Arc::strong_count(&taken) > 1 {
            assert!(Instant::now() < until, "the writer ends with the log");
            thread::sleep(Duration::from_millis(5));
        }
        let text = String::from_utf8(taken.lock().expect("lines").clone()).expect("text");
        assert!(text.contains(" INFO MESSAGE=a line NUMBER=0\n"), "{text}");
        let told = text.lines().filter_map(|line| {
            line.split_once(" WARN MESSAGE=")?.1.split_once(" lines of this log")
        });
        let lost: usize = told.map(|(count, _)| count.parse::<usize>().expect("a number")).sum();
        let written = text.lines().filter(|line| line.contains(" INFO ")).count();
        assert_eq!(written + lost, LINES);
        assert!(written <= WAITING_LINES + 1, "{written} lines");
    }

    #[test]
    fn an_end_does_not_wait_for_a_reader_that_has_gone_to_sleep() {
        let (_blocked, until) = channel();
        let (lines, log) = Lines::to(Blocked { until, taken: Arc::default() }).expect("a thread");
        with(lines, || (0..2 * WAITING_LINES).for_each(|_| tracing::info!("a line")));
        let began = Instant::now();
        drop(log);
        assert!(began.elapsed() < 5 * LAST_LINES, "{:?}", began.elapsed());
    }

    #[test]
    fn a_record_is_a_line_per_field_and_a_full_journal_does_not_hold_anybody_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).expect("a socket");
        with(Journal::at(path).expect("it is there"), || {
            for _ in 0..10_000 {
                tracing::warn!(
                    queue_id = "4X\nFAKE=1",
                    milliseconds = 7u64,
                    error = "gone",
                    "not {}",
                    "delivered"
                );
            }
        });
        let expected = "SYSLOG_IDENTIFIER=onedrop\nPRIORITY=4\nMESSAGE=not delivered: gone\n\
                        ONEDROP_QUEUE_ID=4X FAKE=1\nONEDROP_MILLISECONDS=7\n";
        assert_eq!(received(&journal), expected);
    }

    #[test]
    fn records_go_on_after_the_journal_has_started_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let bind = || UnixDatagram::bind(&path).expect("a socket");
        let first = bind();
        with(Journal::at(path.clone()).expect("it is there"), || {
            tracing::info!("before");
            assert!(received(&first).contains("MESSAGE=before\n"));
            drop(first);
            tracing::info!("nobody listens");
            std::fs::remove_file(&path).expect("the old socket");
            tracing::info!("nothing is there");
            let second = bind();
            tracing::info!("after");
            assert!(received(&second).contains("MESSAGE=after\n"));
        });
    }

    /// What a record at each priority looks like on standard error: the time, with its zone, and
    /// the priority's name.
    #[test]
    fn a_record_names_its_priority_and_a_line_has_a_time() {
        let failed = |status| Outcome::TempFail(status, "why".to_owned());
        let cases = [
            (Outcome::Delivered("stored".to_owned()), "6", "INFO"),
            (failed(Status::TEMPORARY), "5", "NOTICE"),
            (failed(Status::MAILBOX_FULL), "5", "NOTICE"),
            (failed(Status::OUR_SETUP), "3", "ERROR"),
            (Outcome::PermFail(Status::UNKNOWN_MAILBOX, "nobody".to_owned()), "4", "WARN"),
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).expect("a socket");
        let (unblock, until) = channel();
        drop(unblock);
        let taken: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (lines, log) =
            Lines::to(Blocked { until, taken: Arc::clone(&taken) }).expect("a thread");
        with(lines.and_then(Journal::at(path).expect("it is there")), || {
            for (outcome, _, _) in &cases {
                tracing::info!(priority = Priority::of(outcome) as u64, "an end");
            }
        });
        drop(log);
        let text = String::from_utf8(taken.lock().expect("lines").clone()).expect("text");
        let mut lines = text.lines();
        for (outcome, number, name) in cases {
            let expected =
                format!("SYSLOG_IDENTIFIER=onedrop\nPRIORITY={number}\nMESSAGE=an end\n");
            assert_eq!(received(&journal), expected, "{outcome:?}");
            let (time, rest) = lines.next().expect("a line").split_once(' ').expect("a time");
            assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
            assert_eq!(rest, format!("{name} MESSAGE=an end"), "{outcome:?}");
        }
        assert_eq!(lines.next(), None);
    }
}
