//! Logs go to the systemd journal, never to standard output or error: Postfix reads those as the
//! delivery's result. Without a journal (a container, a trial) nothing is logged, but by a server;
//! the ledger and Postfix's own log still tell. A journal, or a reader of a server's standard
//! error, that does not take a record at once loses it: no mail waits for a log.
//!
//! Priorities are syslog(3)'s. tracing has no NOTICE, so an event may name its priority in a field
//! of that name ([`Priority`]), which then counts in place of its level.

use std::fmt::{self, Write as _};
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Zoned;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

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

/// systemd.journal-fields(7), "native protocol": a datagram of `FIELD=value` lines.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Sends this process' log records to the journal, if there is one.
pub fn start() {
    let Ok(socket) = UnixDatagram::unbound() else { return };
    if socket.set_nonblocking(true).is_err() || socket.connect(SOCKET).is_err() {
        return;
    }
    // A second subscriber in one process is a bug of ours that costs log lines and no mail.
    let _ = tracing::subscriber::set_global_default(
        tracing_subscriber::registry().with(Journal { socket }),
    );
}

/// As [`start`]; without a journal a line per record goes to standard error, which is nobody's
/// answer here. What it does not take is lost as well, and counted.
pub fn start_for_a_server() -> Log {
    let socket = UnixDatagram::unbound().and_then(|socket| socket.connect(SOCKET).map(|()| socket));
    if socket.is_ok() {
        start();
        return Log(None);
    }
    // Without a thread there is no log, but there may be mail.
    let Ok(lines) = Lines::to(std::io::stderr()) else { return Log(None) };
    let log = Log(Some(lines.queue.clone()));
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines));
    log
}

/// The log of a server, to be dropped at its end: the last lines get a moment to be written.
pub struct Log(Option<SyncSender<Said>>);

impl Drop for Log {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        let until = Instant::now() + LAST_LINES;
        let (told, written) = channel();
        while queue.try_send(Said::Enough(told.clone())).is_err() {
            if Instant::now() >= until {
                return;
            }
            thread::sleep(LAST_LINES / 100);
        }
        // In time or not: this is the end.
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Lines that may wait to be written.
const WAITING_LINES: usize = 1000;
/// How long the last ones may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// For the thread that writes.
enum Said {
    Line(String),
    /// All before this is written.
    Enough(Sender<()>),
}

/// A line per record, written by a thread of its own: nobody else waits where nobody reads.
struct Lines {
    queue: SyncSender<Said>,
    lost: Arc<AtomicU64>,
}

impl Lines {
    fn to(out: impl Write + Send + 'static) -> std::io::Result<Lines> {
        let (queue, said) = sync_channel(WAITING_LINES);
        let lines = Lines { queue, lost: Arc::default() };
        let lost = Arc::clone(&lines.lost);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_lines(&said, &lost, out))?;
        Ok(lines)
    }
}

fn write_lines(said: &Receiver<Said>, lost: &AtomicU64, mut out: impl Write) {
    for said in said {
        let lost = lost.swap(0, Ordering::Relaxed);
        // Nobody is left to tell of an error.
        if lost > 0 {
            let told = format!("MESSAGE={lost} lines of this log are lost");
            let _ = out.write_all(line(Priority::Warning, &told).as_bytes());
        }
        let _ = match said {
            Said::Line(line) => out.write_all(line.as_bytes()),
            Said::Enough(told) => {
                let _ = told.send(());
                Ok(())
            }
        };
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
            if self.queue.try_send(Said::Line(line(record.priority, text.trim_end()))).is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
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
            let _ = self.socket.send(Record::of(event).for_the_journal().as_bytes());
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

    #[test]
    fn lines_that_nobody_takes_are_lost_and_counted_and_hold_nobody_up() {
        const LINES: usize = 3 * WAITING_LINES;
        let (unblock, until) = channel();
        let taken: Arc<Mutex<Vec<u8>>> = Arc::default();
        let lines = Lines::to(Blocked { until, taken: Arc::clone(&taken) }).expect("a thread");
        let log = Log(Some(lines.queue.clone()));
        let (done, ended) = channel();
        thread::spawn(move || {
            tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
                (0..LINES).for_each(|number| tracing::info!(number, "a line"));
            });
            let _ = done.send(());
        });
        ended.recv_timeout(Duration::from_secs(30)).expect("whoever logs goes on");
        drop(unblock);
        drop(log);
        let until = Instant::now() + Duration::from_secs(30);
        while Arc::strong_count(&taken) > 1 {
            assert!(Instant::now() < until, "the writer ends with the last who logs");
            thread::sleep(Duration::from_millis(5));
        }
        let taken = taken.lock().expect("lines").clone();
        let text = String::from_utf8(taken).expect("text");
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
    fn a_record_is_a_line_per_field_and_a_full_journal_does_not_hold_anybody_up() {
        let (ours, journal) = UnixDatagram::pair().expect("a pair");
        ours.set_nonblocking(true).expect("an option");
        let subscriber = tracing_subscriber::registry().with(Journal { socket: ours });
        tracing::subscriber::with_default(subscriber, || {
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
        let mut bytes = [0; 4096];
        let length = journal.recv(&mut bytes).expect("a record");
        let expected = "SYSLOG_IDENTIFIER=onedrop\nPRIORITY=4\nMESSAGE=not delivered: gone\nONEDROP_QUEUE_ID=4X FAKE=1\nONEDROP_MILLISECONDS=7\n";
        assert_eq!(String::from_utf8_lossy(&bytes[..length]), expected);
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
        let (ours, journal) = UnixDatagram::pair().expect("a pair");
        let (sender, receiver) = sync_channel(cases.len());
        let lines = Lines { queue: sender, lost: Arc::default() };
        let subscriber = tracing_subscriber::registry().with(Journal { socket: ours }).with(lines);
        tracing::subscriber::with_default(subscriber, || {
            for (outcome, _, _) in &cases {
                tracing::info!(priority = Priority::of(outcome) as u64, "an end");
            }
        });
        for (outcome, number, name) in cases {
            let mut bytes = [0; 4096];
            let length = journal.recv(&mut bytes).expect("a record");
            let expected =
                format!("SYSLOG_IDENTIFIER=onedrop\nPRIORITY={number}\nMESSAGE=an end\n");
            assert_eq!(String::from_utf8_lossy(&bytes[..length]), expected, "{outcome:?}");
            let Ok(Said::Line(line)) = receiver.recv() else { panic!("no line") };
            let (time, rest) = line.split_once(' ').expect("a time");
            assert!(time.parse::<jiff::Timestamp>().is_ok(), "{line}");
            assert_eq!(rest, format!("{name} MESSAGE=an end\n"), "{outcome:?}");
        }
    }
}
