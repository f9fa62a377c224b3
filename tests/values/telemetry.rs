//! Log records (`crates/site/src/telemetry.rs`): what the journal gets, what standard error, and
//! what is lost.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use onedrop::outcome::{Outcome, Status};
use onedrop::telemetry::{self, LAST_LINES, Priority, WAITING_LINES};
use onedrop_kit::TempRoot;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{Registry, registry};

/// Takes nothing before a word comes by `until`, like a pipe that is not read.
struct Blocked {
    until: Receiver<()>,
    taken: Arc<Mutex<Vec<u8>>>,
}

impl Write for Blocked {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // After the first word it goes on for good: the sender is gone.
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
        telemetry::lines(Blocked { until, taken: Arc::clone(&taken) }).expect("a thread");
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
    let told = text
        .lines()
        .filter_map(|line| line.split_once(" WARN MESSAGE=")?.1.split_once(" lines of this log"));
    let lost: usize = told.map(|(count, _)| count.parse::<usize>().expect("a number")).sum();
    let written = text.lines().filter(|line| line.contains(" INFO ")).count();
    assert_eq!(written + lost, LINES);
    assert!(written <= WAITING_LINES + 1, "{written} lines");
}

#[test]
fn an_end_does_not_wait_for_a_reader_that_has_gone_to_sleep() {
    let (_blocked, until) = channel();
    let (lines, log) =
        telemetry::lines(Blocked { until, taken: Arc::default() }).expect("a thread");
    with(lines, || (0..2 * WAITING_LINES).for_each(|_| tracing::info!("a line")));
    let began = Instant::now();
    drop(log);
    assert!(began.elapsed() < 5 * LAST_LINES, "{:?}", began.elapsed());
}

#[test]
fn a_record_is_a_line_per_field_and_a_full_journal_does_not_hold_anybody_up() {
    let folder = TempRoot::new();
    let path = folder.join("socket");
    let journal = UnixDatagram::bind(&path).expect("a socket");
    with(telemetry::journal(path).expect("it is there"), || {
        for _ in 0..10_000 {
            tracing::warn!(
                queue_id = "4X\nFAKE=1\u{202e}\u{1b}",
                milliseconds = 7u64,
                error = "gone",
                "not {}",
                "delivered"
            );
        }
    });
    let expected = "SYSLOG_IDENTIFIER=onedrop\nPRIORITY=4\nMESSAGE=not delivered: gone\n\
                    ONEDROP_QUEUE_ID=4X FAKE=1\\u202e\\u001b\nONEDROP_MILLISECONDS=7\n";
    assert_eq!(received(&journal), expected);
}

#[test]
fn records_go_on_after_the_journal_has_started_again() {
    let folder = TempRoot::new();
    let path = folder.join("socket");
    let bind = || UnixDatagram::bind(&path).expect("a socket");
    let first = bind();
    with(telemetry::journal(path.clone()).expect("it is there"), || {
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
        (Outcome::delivered("stored"), "6", "INFO"),
        (failed(Status::TEMPORARY), "5", "NOTICE"),
        (failed(Status::MAILBOX_FULL), "5", "NOTICE"),
        (failed(Status::OUR_SETUP), "3", "ERROR"),
        (Outcome::PermFail(Status::UNKNOWN_MAILBOX, "nobody".to_owned()), "4", "WARN"),
    ];
    let folder = TempRoot::new();
    let path = folder.join("socket");
    let journal = UnixDatagram::bind(&path).expect("a socket");
    let (unblock, until) = channel();
    drop(unblock);
    let taken: Arc<Mutex<Vec<u8>>> = Arc::default();
    let (lines, log) =
        telemetry::lines(Blocked { until, taken: Arc::clone(&taken) }).expect("a thread");
    with(lines.and_then(telemetry::journal(path).expect("it is there")), || {
        for (outcome, _, _) in &cases {
            tracing::info!(priority = Priority::of(outcome) as u64, "an end");
        }
    });
    drop(log);
    let text = String::from_utf8(taken.lock().expect("lines").clone()).expect("text");
    let mut lines = text.lines();
    for (outcome, number, name) in cases {
        let expected = format!("SYSLOG_IDENTIFIER=onedrop\nPRIORITY={number}\nMESSAGE=an end\n");
        assert_eq!(received(&journal), expected, "{outcome:?}");
        let (time, rest) = lines.next().expect("a line").split_once(' ').expect("a time");
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
        assert_eq!(rest, format!("{name} MESSAGE=an end"), "{outcome:?}");
    }
    assert_eq!(lines.next(), None);
}

/// Where there is no journal a record is one line, and whatever its values hold, it reads as one
/// text and these fields.
#[test]
fn no_value_in_a_line_reads_as_another_field() {
    let (unblock, until) = channel();
    drop(unblock);
    let taken: Arc<Mutex<Vec<u8>>> = Arc::default();
    let (lines, log) =
        telemetry::lines(Blocked { until, taken: Arc::clone(&taken) }).expect("a thread");
    with(lines, || {
        tracing::info!(recipient = "a b@x OUTCOME=delivered", outcome = "permfail", "an end");
        tracing::info!(sender = "\u{202e}\"x\n", "to=<a> STATUS=2.0.0 was refused");
        tracing::info!("a = b and c=d");
    });
    drop(log);
    let text = String::from_utf8(taken.lock().expect("lines").clone()).expect("text");
    let lines: Vec<_> =
        text.lines().map(|line| line.split_once(" INFO ").expect("a line").1).collect();
    assert_eq!(
        lines,
        [
            "MESSAGE=an end RECIPIENT=\"a b@x OUTCOME=delivered\" OUTCOME=permfail",
            "MESSAGE=\"to=<a> STATUS=2.0.0 was refused\" SENDER=\"\\\\u202e\\\"x \"",
            "MESSAGE=a = b and c=d",
        ]
    );
}
