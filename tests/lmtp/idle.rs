//! `lmtp.idle_secs`: the server replies 421 4.4.2 to a client that says nothing for this time, and
//! closes. It also closes on a client that stops amid a message, and delivers nothing of that. A
//! client that sends a byte now and then gets no more time; one that sends steadily gets enough.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::lmtp::Lmtp;
use crate::support::site::{Files, Site};
use crate::support::wait_until;

const IDLE: Duration = Duration::from_secs(3);
/// The longest that anything here may last beyond its bound, on a busy machine.
const SLACK: Duration = Duration::from_secs(10);
const ENVELOPE: &str =
    "LHLO x\r\nMAIL FROM:<ann@elsewhere.example>\r\nRCPT TO:<scuba@mail.axial.net>\r\n";

struct Served {
    site: Site<Files>,
    lmtp: Lmtp,
}

impl Served {
    fn start() -> Served {
        let site = Site::embedded();
        let lmtp = site.server(&format!("[lmtp]\nidle_secs = {}\n", IDLE.as_secs()));
        Served { site, lmtp }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.lmtp.socket()).expect("a server");
        stream.set_read_timeout(Some(IDLE + SLACK)).expect("socket");
        stream.set_write_timeout(Some(IDLE + SLACK)).expect("socket");
        stream
    }

    /// All places are free again, and the server serves on.
    fn is_well(&mut self, messages: &[&str]) {
        let gone = wait_until(SLACK, || self.lmtp.metric("onedrop_connections") == Some(0.0));
        assert!(gone, "{}", self.lmtp.metrics());
        assert!(
            !self.lmtp.has_ended() && !self.lmtp.log().contains("panicked"),
            "{}",
            self.lmtp.log()
        );
        self.site.inbox_has("scuba", messages);
        let mut client = self.lmtp.client();
        let replies = client.deliver(
            "ann@elsewhere.example",
            &["well@mail.axial.net"],
            b"Subject: well\n\nbody\n",
        );
        assert!(replies.expect("a reply")[0].is_ok(), "{}", self.lmtp.log());
    }
}

#[track_caller]
fn is_closed_in_time(place: &str, took: Duration) {
    // poll(2) counts whole milliseconds.
    assert!(took + Duration::from_millis(10) >= IDLE && took < IDLE + SLACK, "{place:?}: {took:?}");
}

/// Reads until the server closes; panics if it does not. What was said, and when it was over.
fn all_of(mut stream: UnixStream) -> (String, Instant) {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        // Closed with bytes of ours unread.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&said)),
    }
    (String::from_utf8_lossy(&said).into_owned(), Instant::now())
}

#[test]
fn a_client_that_falls_silent_hears_so_and_is_closed_wherever_it_stopped() {
    let mut served = Served::start();
    let places = [
        "",
        "LHLO x\r\n",
        "LHLO x\r\nNO",
        "LHLO x\r\nMAIL FROM:<ann@elsewhere.example>\r\n",
        ENVELOPE,
        &format!("{ENVELOPE}BDAT 3\r\nabc"),
        &format!("{ENVELOPE}DATA\r\nSubject: whole\r\n\r\nbody\r\n.\r\n"),
        &format!("{ENVELOPE}DATA\r\nSubject: whole\r\n\r\nbody\r\n.\r\nRSET\r\n"),
    ];
    thread::scope(|scope| {
        for place in places {
            let began = Instant::now();
            let mut stream = served.connect();
            scope.spawn(move || {
                stream.write_all(place.as_bytes()).expect("a few words");
                let (said, over) = all_of(stream);
                assert!(said.ends_with("\r\n421 4.4.2 Idle for too long\r\n"), "{place:?}: {said}");
                is_closed_in_time(place, over - began);
            });
        }
    });
    // The two whole messages are one.
    served.is_well(&["Subject: whole\n\nbody\n"]);
}

/// The server gives no positive reply to a message that was cut, and does not deliver it.
#[test]
fn a_client_that_stops_amid_a_message_is_closed_and_nothing_is_delivered() {
    let mut served = Served::start();
    let places = [
        "DATA\r\n",
        "DATA\r\nSubject: cut\r\n\r\nbody",
        "DATA\r\nSubject: cut\r\n\r\nbody\r\n.",
        "BDAT 9 LAST\r\nbody\r\n",
    ];
    thread::scope(|scope| {
        for place in places {
            let began = Instant::now();
            let mut stream = served.connect();
            scope.spawn(move || {
                stream.write_all(format!("{ENVELOPE}{place}").as_bytes()).expect("a part");
                let (said, over) = all_of(stream);
                assert!(!said.contains("250 2.0.0 "), "{place:?}: {said}");
                is_closed_in_time(place, over - began);
            });
        }
    });
    served.is_well(&[]);
}

/// Each byte comes well within the idle time; all of them would take minutes.
#[test]
fn a_client_that_trickles_is_bounded() {
    let mut served = Served::start();
    let trickles: [(&str, &[u8]); 3] = [
        ("LHLO x\r\n", b"N"),
        (&format!("{ENVELOPE}DATA\r\n"), b"x"),
        (&format!("{ENVELOPE}BDAT 9000 LAST\r\n"), b"x"),
    ];
    thread::scope(|scope| {
        for (before, piece) in trickles {
            let mut stream = served.connect();
            scope.spawn(move || {
                let began = Instant::now();
                stream.write_all(before.as_bytes()).expect("a few words");
                while stream.write_all(piece).is_ok() {
                    assert!(
                        began.elapsed() < IDLE + SLACK,
                        "{before:?}: still taken after {:?}",
                        began.elapsed()
                    );
                    thread::sleep(Duration::from_millis(200));
                }
                let (said, _) = all_of(stream);
                assert!(!said.contains("250 2.0.0 "), "{before:?}: {said}");
            });
        }
    });
    served.is_well(&[]);
}

/// Data may take longer than the idle time, as long as it comes.
#[test]
fn a_client_that_sends_steadily_is_served_however_long_it_takes() {
    let mut served = Served::start();
    let mut stream = served.connect();
    let began = Instant::now();
    let mut message = "Subject: steady\r\n\r\n".to_owned();
    stream.write_all(format!("{ENVELOPE}DATA\r\n{message}").as_bytes()).expect("a beginning");
    let piece =
        "a line of seventy-two characters and a line end, again and again.......\r\n".repeat(500);
    while began.elapsed() < 3 * IDLE {
        stream.write_all(piece.as_bytes()).expect("a piece");
        message.push_str(&piece);
        thread::sleep(Duration::from_millis(100));
    }
    stream.write_all(b".\r\nQUIT\r\n").expect("an end");
    let (said, _) = all_of(stream);
    assert!(said.contains("\r\n250 2.0.0 ") && said.ends_with("\r\n221 2.0.0 Bye\r\n"), "{said}");
    served.is_well(&[&message.replace('\r', "")]);
}
