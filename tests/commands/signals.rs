//! Signals to `onedrop deliver`: whenever SIGTERM, SIGINT or SIGHUP comes, it ends at once in 75,
//! so that Postfix tries again, and the next try leaves one copy. What a signal meets is found by
//! strace(1), or by waiting for the moment.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::postfix::{Postfix, PostfixSpec};
use crate::support::server::pid_of;
use crate::support::site::{Files, Site};
use crate::support::{fixture, onedrop, onedrop_path, set_mode, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onedrop::directory::Destination;
use onedrop::ledger::sqlite::SqliteLedger;
use onedrop::ledger::{Attempt, CopyState, Entry, LeaseTerms, Ledger, Schema, Turn};
use onedrop::message::{DedupBy, Message};
use onedrop::service::ONE;

const SCUBA: &str = "scuba@mail.axial.net";
const SIGNALS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
/// No end of ours takes longer, also on a busy machine; the deadline is 60 s.
const AT_ONCE: Duration = Duration::from_secs(20);

/// A ledger in a file and Maildirs, with patience for whoever holds a lock.
struct Patient {
    site: Site<Files>,
    config: PathBuf,
}

impl Patient {
    fn new() -> Patient {
        let site = Site::embedded();
        let config = site.config("etc", "[lock]\nwait_secs = 30\n");
        Patient { site, config }
    }

    fn arguments(&self) -> Vec<String> {
        let config = self.config.display().to_string();
        ["deliver", "-d", SCUBA, "--config", &config].map(str::to_owned).to_vec()
    }

    fn deliver(&self, message: &[u8]) -> (Option<i32>, String) {
        let mut command = onedrop();
        let child =
            command.args(self.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        end(child.expect("binary"), message)
    }

    /// The next try leaves one copy, byte for byte.
    #[track_caller]
    fn delivers_once(&self, message: &[u8], context: &str) {
        let (status, said) = self.deliver(message);
        assert_eq!(status, Some(0), "{context}: {said}");
        assert_eq!(self.site.inbox("scuba"), [message], "{context}: {said}");
        assert_eq!(self.site.copies("lisa", ".Sent"), [message], "{context}");
        let placed =
            self.site.ledger("SELECT count(placed_at) || ' of ' || count(*) FROM onedrop_copy");
        assert_eq!(placed, ["2 of 2"], "{context}");
    }
}

/// Feeds a delivery and waits for its end.
fn end(mut child: Child, message: &[u8]) -> (Option<i32>, String) {
    if let Some(mut stdin) = child.stdin.take() {
        // A delivery that ended early is judged by its status.
        let _ = stdin.write_all(message);
    }
    let mut said = String::new();
    child.stdout.take().expect("stdout").read_to_string(&mut said).expect("output");
    (child.wait().expect("end").code(), said)
}

/// Sends the signal, and the delivery ends by it.
#[track_caller]
fn ends_by(child: Child, signal: Signal, context: &str) {
    let sent = Instant::now();
    kill(pid_of(&child), signal).expect("our child");
    let (status, said) = end(child, b"");
    assert_eq!((status, said), (Some(75), format!("4.3.0 ended by {signal}\n")), "{context}");
    assert!(sent.elapsed() < AT_ONCE, "{context}: {:?}", sent.elapsed());
}

/// At each lock, write, sync and link of a delivery into a Maildir, with the ledger in a file.
#[test]
fn at_every_step_it_ends_in_75_and_the_next_try_leaves_one_copy() {
    let message = fixture("fixtures/mail/welcome.eml");
    let mut met = Vec::new();
    for (at, call) in ["fcntl", "pwrite64", "fsync", "linkat"].into_iter().enumerate() {
        // Later ones of a call that comes often are of the same kinds.
        for n in 1..=12 {
            let patient = Patient::new();
            let signal = SIGNALS[(at + n) % SIGNALS.len()];
            let mut command = Command::new("strace");
            command.args(["-f", "-qqq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
            command
                .args(["-e", &format!("inject={call}:signal={signal}:when={n}")])
                .arg(onedrop_path());
            command.args(patient.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped());
            let (status, said) = end(command.spawn().expect("strace"), &message);
            let context = format!("{signal} at {call} {n}");
            if status == Some(0) {
                break;
            }
            assert_eq!(
                (status, said),
                (Some(75), format!("4.3.0 ended by {signal}\n")),
                "{context}"
            );
            met.push(format!("{call} {n}"));
            patient.delivers_once(&message, &context);
        }
    }
    for call in ["fcntl", "pwrite64", "fsync", "linkat"] {
        assert!(met.iter().any(|point| point.starts_with(call)), "no signal at {call}: {met:?}");
    }
}

#[test]
fn while_the_message_is_read() {
    let message = fixture("fixtures/mail/welcome.eml");
    for signal in SIGNALS {
        let patient = Patient::new();
        let mut command = onedrop();
        command.args(patient.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("binary");
        let mut stdin = child.stdin.take().expect("stdin");
        stdin.write_all(&message[..message.len() / 2]).expect("half of it");
        // Blocked in read(2), system call 0, of descriptor 0 (proc(5)).
        let at = format!("/proc/{}/syscall", child.id());
        let reads = || fs::read_to_string(&at).is_ok_and(|call| call.starts_with("0 0x0 "));
        assert!(wait_until(AT_ONCE, reads), "{:?}", fs::read_to_string(&at));
        ends_by(child, signal, "reading");
        drop(stdin);
        assert!(patient.site.inbox("scuba").is_empty());
        patient.delivers_once(&message, "after it was read in part");
    }
}

#[test]
fn while_another_holds_the_lock() {
    let bytes = fixture("fixtures/mail/welcome.eml");
    for signal in SIGNALS {
        let patient = Patient::new();
        let until = Instant::now() + Duration::from_secs(120);
        let other = SqliteLedger::new(patient.site.root.join("ledger.db"), ONE);
        let message = Message::new(bytes.clone(), DedupBy::Content);
        let (facts, inbox) = (message.facts(), Destination::inbox("scuba"));
        let entry = Entry {
            identity: message.identity(),
            facts: &facts,
            size_bytes: bytes.len() as u64,
            raw: None,
            nul_runs: None,
            at: None,
            oldest: None,
            fields: None,
        };
        let terms = LeaseTerms { lease: Duration::from_secs(90), join: true, due: false };
        let recorded = other
            .record(&entry, &Attempt::default(), std::slice::from_ref(&inbox), terms, until)
            .expect("record");
        let CopyState::Claimed(claim) = &recorded.copies[0] else { panic!("{recorded:?}") };
        let key = message.identity().copy_key("scuba", "INBOX");
        let turn = other.take_turn(claim, &key, until).expect("a turn");
        assert!(matches!(turn, Turn::Ours { .. }));
        let mut command = onedrop();
        command.args(patient.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("binary");
        child.stdin.take().expect("stdin").write_all(&bytes).expect("a message");
        let attempts =
            || patient.site.ledger("SELECT CAST(count(*) AS TEXT) FROM onedrop_attempt_text");
        assert!(wait_until(AT_ONCE, || attempts() == ["2"]), "{:?}", attempts());
        ends_by(child, signal, "waiting for the copy's lock");
        assert!(patient.site.inbox("scuba").is_empty());
        drop(turn);
        patient.delivers_once(&bytes, "after the wait for a lock");
    }
}

/// An IMAP server that takes the connection and says nothing: the message is on record, its copy is
/// leased.
#[test]
fn while_the_store_does_not_answer() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("imap://{}", server.local_addr().expect("an address"));
    for signal in SIGNALS {
        let patient = Patient::new();
        let password = patient.site.root.write("password", "secret");
        set_mode(&password, 0o600);
        // That it heeds for whom we log in is on record: it would be found out before anything is
        // recorded.
        SqliteLedger::new(patient.site.root.join("ledger.db"), ONE)
            .schema_version(Instant::now() + AT_ONCE)
            .expect("ledger");
        patient.site.ledger(&format!(
            "INSERT INTO onedrop_proof VALUES ('{}', 'mda', 'sasl', 'test', 1) RETURNING server",
            server.local_addr().expect("an address")
        ));
        let mut command = onedrop();
        command
            .args(patient.arguments())
            .env("ONEDROP__STORE__URL", &url)
            .env("ONEDROP__STORE__PASSWORD_FILE", password);
        command
            .env("ONEDROP__STORE__STARTTLS", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("binary");
        child
            .stdin
            .take()
            .expect("stdin")
            .write_all(&fixture("fixtures/mail/welcome.eml"))
            .expect("a message");
        let leased = || {
            let path = patient.site.root.join("ledger.db");
            let count = |ledger: rusqlite::Connection| {
                ledger.query_row("SELECT count(leased_until) FROM onedrop_copy", [], |row| {
                    row.get::<_, i64>(0)
                })
            };
            rusqlite::Connection::open(path).and_then(count).is_ok_and(|count| count > 0)
        };
        assert!(wait_until(AT_ONCE, leased), "no copy is leased");
        ends_by(child, signal, "waiting for the store");
    }
}

/// An administrator may send it (`kill`), or a host that goes down: a real Postfix keeps the
/// message, and in the end there is one copy.
#[test]
fn postfix_defers_what_a_signal_has_ended() {
    let mut site = Site::with_own_dovecot();
    let short = "[limits]\ndeadline_secs = 10\nanswer_secs = 3\n[lock]\nlease_secs = 15\n";
    let config = Some(site.config("etc", short));
    let postfix = Postfix::start(&PostfixSpec {
        config,
        retry_secs: Some(1),
        ..PostfixSpec::new(onedrop_path())
    });
    site.dovecot.pause();
    let queue_id = postfix.send("lisa@gmail.com", &[SCUBA], &fixture("fixtures/mail/welcome.eml"));
    let leased = || site.postgres.psql("SELECT count(leased_until) FROM onedrop_copy") != "0";
    assert!(wait_until(AT_ONCE, leased), "{}", postfix.log());
    for pid in postfix.deliveries() {
        // It may just have ended by its deadline.
        let _ = kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), Signal::SIGTERM);
    }
    let line = postfix.wait_for_log("ended by SIGTERM", Duration::from_secs(60));
    assert!(line.contains("dsn=4.3.0, status=deferred"), "{line}");
    site.dovecot.resume();
    let is_sent = || postfix.attempts(&queue_id).iter().any(|line| line.contains("status=sent"));
    assert!(wait_until(Duration::from_secs(240), is_sent), "{}", postfix.log());
    let copies = site.dovecot.messages("scuba", "INBOX");
    assert_eq!(copies.len(), 1, "{}", postfix.log());
    assert_eq!(site.dovecot.count("scuba", "INBOX"), 1);
}
