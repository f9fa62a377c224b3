//! Clients of `onedrop lmtp` that are slow, silent, endless, many or mad: the server neither ends
//! nor grows, and others are served meanwhile.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::letters;
use crate::support::lmtp::Lmtp;
use crate::support::lmtp_client::{LmtpClient, Reply};
use crate::support::site::Site;
use crate::support::trial::LETTERS;
use crate::support::wait_until;

const ANN: &str = "ann@elsewhere.example";
const SCUBA: &str = "scuba@mail.axial.net";
/// What the server may hold for all hostile clients of a test together.
const MOST_KB: u64 = 64 * 1024;
/// What a good client may have to wait for its one reply, on a busy machine.
const LONGEST_SERVICE: Duration = Duration::from_secs(20);

struct Target {
    site: Site,
    lmtp: Lmtp,
}

impl Target {
    fn start() -> Target {
        let site = Site::with_servers();
        let lmtp = site.server(LETTERS);
        Target { site, lmtp }
    }

    /// Runs `attack` while a good client delivers one message after the other; then looks at what
    /// is left of the server.
    fn withstands(&mut self, attack: impl FnOnce(&Lmtp) + Send) {
        let lmtp = &self.lmtp;
        let over = AtomicBool::new(false);
        let served = thread::scope(|scope| {
            let good = scope.spawn(|| {
                let (mut client, mut served) = (lmtp.client(), 0);
                while !over.load(Ordering::SeqCst) || served == 0 {
                    let began = Instant::now();
                    let replies =
                        client.deliver(ANN, &["good@mail.axial.net"], letter(served).as_bytes());
                    let replies = replies.unwrap_or_else(|error| panic!("{error}\n{}", lmtp.log()));
                    assert!(replies[0].is_ok(), "{replies:?}");
                    assert!(
                        began.elapsed() < LONGEST_SERVICE,
                        "{:?} for one message",
                        began.elapsed()
                    );
                    served += 1;
                }
                served
            });
            let attacked = scope.spawn(|| lmtp.resident_during(|| attack(lmtp))).join();
            over.store(true, Ordering::SeqCst);
            let ((), most) = attacked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            assert!(most.anon_kb < MOST_KB, "too much memory: {most:?}");
            good.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        letters::stand_in(&self.site.dovecot, "good", "INBOX", (0..served).map(letter));
        self.is_well();
    }

    fn is_well(&mut self) {
        assert!(!self.lmtp.has_ended(), "{}", self.lmtp.log());
        let log = self.lmtp.log();
        assert!(!log.contains("panicked"), "{log}");
        let replies =
            self.lmtp.client().deliver(ANN, &["last@mail.axial.net"], letter(0).as_bytes());
        assert!(replies.as_ref().is_ok_and(|replies| replies[0].is_ok()), "{replies:?}");
        letters::stand_in(&self.site.dovecot, "last", "INBOX", [letter(0)]);
    }

    /// Scuba's mailbox holds these messages.
    #[track_caller]
    fn scuba_has(&self, messages: &[String]) {
        letters::stand_in(&self.site.dovecot, "scuba", "INBOX", messages);
    }
}

fn letter(number: usize) -> String {
    format!("From: {ANN}\nSubject: {number}\nMessage-ID: <good.{number}@x>\n\nthis is {number}\n")
}

/// A whole conversation in one piece, up to the end of [`told`].
fn pipelined(id: &str) -> String {
    let message = told(id).replace('\n', "\r\n");
    format!("LHLO test.example\r\nMAIL FROM:<{ANN}>\r\nRCPT TO:<{SCUBA}>\r\nDATA\r\n{message}.\r\n")
}

fn told(id: &str) -> String {
    format!("From: {ANN}\nMessage-ID: <{id}@x>\n\nthis is {id}\n")
}

fn raw(lmtp: &Lmtp) -> UnixStream {
    let stream = UnixStream::connect(lmtp.socket()).expect("a server");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("socket");
    stream.set_write_timeout(Some(Duration::from_secs(30))).expect("socket");
    stream
}

/// All that the server says until it closes; panics if it does not within the time-out above.
fn all_of(stream: UnixStream) -> String {
    let mut bytes = Vec::new();
    match BufReader::new(stream).read_to_end(&mut bytes) {
        Ok(_) => {}
        // Closed with bytes of ours unread.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes until all is written, the server has had enough, or we have.
fn pour(stream: &mut UnixStream, piece: &[u8], times: usize) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    (0..times).all(|_| Instant::now() < end && stream.write_all(piece).is_ok())
}

#[test]
fn the_silent_and_the_slow_hold_nobody_up() {
    let mut target = Target::start();
    target.withstands(|lmtp| {
        let _silent: Vec<UnixStream> = (0..40).map(|_| raw(lmtp)).collect();
        // Silent in every place of a conversation.
        let places = [
            "LHLO x\r\n",
            "LHLO x\r\nMAIL FROM:<a@b>\r\n",
            "LHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<scuba@mail.axial.net>\r\nDATA\r\nSub",
        ];
        let mut halting = Vec::new();
        for place in places.iter().cycle().take(30) {
            let mut stream = raw(lmtp);
            stream.write_all(place.as_bytes()).expect("a few bytes");
            halting.push(stream);
        }
        // A whole conversation byte by byte: slow, and in order.
        let slow = pipelined("slow");
        let mut stream = raw(lmtp);
        for byte in slow.bytes() {
            stream.write_all(&[byte]).expect("a byte");
            thread::sleep(Duration::from_millis(10));
        }
        stream.write_all(b"QUIT\r\n").expect("a word");
        let said = all_of(stream);
        assert!(said.contains("\r\n250 2.0.0 "), "{said}");
    });
    target.scuba_has(&[told("slow")]);
}

#[test]
fn lines_without_end_are_refused_or_delivered_in_bounded_memory() {
    let mut target = Target::start();
    target.withstands(|lmtp| {
        // A command that does not end: 200 MB of it, or until the server hangs up.
        let mut stream = raw(lmtp);
        let all_taken = pour(&mut stream, &[b'x'; 65536], 3000);
        let _ = stream.write_all(b"\r\nQUIT\r\n");
        let said = all_of(stream);
        assert!(
            !all_taken || said.contains("\r\n451 4.5.2 Line too long") || said.contains("\r\n421 "),
            "{said}"
        );
        // A parameter of 10 MB.
        let mut stream = raw(lmtp);
        let _ = stream.write_all(b"LHLO x\r\nMAIL FROM:<");
        let _ = pour(&mut stream, &[b'y'; 10_000], 1000);
        let _ = stream.write_all(b"@x>\r\nQUIT\r\n");
        let said = all_of(stream);
        assert!(!said.contains("\r\n250 2.1.0 "), "{said}");
    });
    // One line of 5 MB in a message is a message (RFC 5321 allows 1000 bytes, people send more).
    let mut client = target.lmtp.client();
    let long = format!("From: {ANN}\nMessage-ID: <long@x>\n\n{}\n", "z".repeat(5_000_000));
    let replies = client.deliver(ANN, &[SCUBA], long.as_bytes()).expect("replies");
    assert!(replies[0].is_ok(), "{replies:?}");
    target.scuba_has(&[long]);
}

#[test]
fn a_hundred_thousand_recipients_are_too_many() {
    let mut target = Target::start();
    target.withstands(|lmtp| {
        let mut client = lmtp.client();
        assert!(client.command(&format!("MAIL FROM:<{ANN}>")).expect("an answer").is_ok());
        let (mut accepted, mut refused) = (0, 0);
        for piece in 0..100 {
            let lines: String = (0..1000)
                .map(|n| format!("RCPT TO:<r{}@mail.axial.net>\r\n", piece * 1000 + n))
                .collect();
            if client.send(lines.as_bytes()).is_err() {
                break;
            }
            for _ in 0..1000 {
                let Ok(reply) = client.reply() else { return };
                match reply.code {
                    250 => accepted += 1,
                    // 452 4.5.3: come again with the rest (RFC 5321 section 4.5.3.1.10).
                    452 => refused += 1,
                    421 => return,
                    _ => panic!("{reply:?}"),
                }
            }
        }
        assert!(accepted >= 100, "at least 100 are taken (RFC 5321 section 4.5.3.1.8): {accepted}");
        assert!(refused > 0, "{accepted} accepted");
    });
}

#[test]
fn the_same_recipient_a_hundred_times_is_one_copy_and_a_reply_each() {
    let mut target = Target::start();
    let mut client = target.lmtp.client();
    let replies = client.deliver(ANN, &vec![SCUBA; 100], letter(1).as_bytes()).expect("replies");
    assert_eq!(replies.len(), 100);
    assert!(replies.iter().all(Reply::is_ok), "{replies:?}");
    target.scuba_has(&[letter(1)]);
    target.is_well();
}

#[test]
fn ten_thousand_connections_end_nobody_elses() {
    let mut target = Target::start();
    let port = target.lmtp.port();
    // The good client's connection is older than the crowd; a full server may refuse clients
    // that come later.
    target.withstands(|_| {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut crowd = Vec::new();
        for _ in 0..10_000 {
            // A full queue lets clients wait: enough is enough.
            match TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
                Ok(stream) => crowd.push(stream),
                Err(_) => break,
            }
        }
        assert!(crowd.len() >= 100, "{} connections", crowd.len());
        println!("{} connections at once", crowd.len());
    });
    // All are gone, and the server knows.
    let (mut client, socket) = (None, target.lmtp.socket());
    let again = wait_until(Duration::from_secs(20), || {
        client = LmtpClient::unix(&socket, Duration::from_secs(5)).ok();
        client.as_ref().is_some_and(|client| client.greeting.code == 220)
    });
    assert!(again, "{}", target.lmtp.log());
}

/// A client that has closed its sending half has said all, and gets its answers.
#[test]
fn the_half_closed_get_their_answers_and_a_cut_message_is_not_delivered() {
    let mut target = Target::start();
    let mut stream = raw(&target.lmtp);
    stream.write_all(pipelined("half").as_bytes()).expect("a conversation");
    stream.shutdown(Shutdown::Write).expect("socket");
    let said = all_of(stream);
    assert!(said.contains("\r\n250 2.0.0 "), "{said}");
    target.scuba_has(&[told("half")]);
    // Without its last dot it is not a message, wherever it is cut.
    let whole = pipelined("cut");
    for missing in [1, 2, 3, 4, 8, 30] {
        for how in [Shutdown::Write, Shutdown::Both] {
            let mut stream = raw(&target.lmtp);
            stream.write_all(&whole.as_bytes()[..whole.len() - missing]).expect("a part");
            stream.shutdown(how).expect("socket");
            let said = if how == Shutdown::Write { all_of(stream) } else { String::new() };
            assert!(!said.contains("\r\n250 2.0.0 "), "{missing} missing: {said}");
        }
    }
    target.is_well();
    target.scuba_has(&[told("half")]);
    assert_eq!(
        target
            .site
            .postgres
            .psql("SELECT count(*) FROM onedrop_message WHERE message_id LIKE '%cut%'"),
        "0"
    );
}

#[test]
fn garbage_is_answered_or_hung_up_on() {
    let mut target = Target::start();
    target.withstands(|lmtp| {
        let mut seed: u32 = 2_463_534_242;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            seed.to_be_bytes()[1]
        };
        let mut pieces: Vec<Vec<u8>> =
            (0..50).map(|_| (0..20_000).map(|_| random()).collect()).collect();
        pieces.push(vec![0; 100_000]);
        pieces.push(b"\r\n".repeat(50_000));
        pieces.push(b"\n\n\r\r\n\r".repeat(10_000));
        pieces.push(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec());
        pieces.push(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec());
        pieces.push(
            "MAIL FROM:<\u{202e}\u{0}@\r\nRCPT TO:<<<>>>\r\nDATA\r\nBDAT \
                     99999999999999999999 LAST\r\n"
                .into(),
        );
        pieces.push(
            b"LHLO \xff\xfe\r\nMAIL FROM:<a@b> SIZE=-1\r\nMAIL FROM:<a@b> SIZE=1e99 BODY=\r\nRCPT \
              TO:\r\nDATA\r\n"
                .to_vec(),
        );
        for piece in pieces {
            let stream = raw(lmtp);
            let mut writer = stream.try_clone().expect("socket");
            // The server may not read from a client that does not read the answers: both at once.
            let writing = thread::spawn(move || {
                let _ =
                    writer.write_all(&piece).and_then(|()| writer.write_all(b"\r\n.\r\nQUIT\r\n"));
                let _ = writer.shutdown(Shutdown::Write);
            });
            let said = all_of(stream);
            assert!(said.is_empty() || said.starts_with("220 "), "{said}");
            writing.join().expect("the writer ends with its reader");
        }
    });
}

#[test]
fn nothing_after_quit_counts() {
    let mut target = Target::start();
    let mut stream = raw(&target.lmtp);
    let after = format!("LHLO x\r\nQUIT\r\n{}\u{0}\u{1}rubbish\r\n", pipelined("after"));
    stream.write_all(after.as_bytes()).expect("a conversation");
    let said = all_of(stream);
    let last = said.trim_end().lines().last().unwrap_or_default();
    assert!(last.starts_with("221 "), "{said}");
    target.is_well();
    target.scuba_has(&[]);
}

/// Replies that the client does not read fill a buffer of the server's and then wait, for a bounded
/// time and in bounded memory.
#[test]
fn a_client_that_never_reads_is_not_waited_for_by_others() {
    let mut target = Target::start();
    target.withstands(|lmtp| {
        let mut deaf: Vec<UnixStream> = (0..20).map(|_| raw(lmtp)).collect();
        for stream in &mut deaf {
            stream.set_write_timeout(Some(Duration::from_millis(300))).expect("socket");
            // No command may be repeated without end, but this one may for ten minutes.
            let _ = pour(stream, &b"RCPT TO:<a@b>\r\n".repeat(4000), 100);
        }
    });
}
