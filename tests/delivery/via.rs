//! Deliveries by way of the LMTP server on the same host (`deliver.via`): the real binary against
//! the real server, and against listeners that misbehave on purpose.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Deref;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::lmtp::Lmtp;
use crate::support::site::{Files, Site};
use crate::support::trial::{End, Run};
use crate::support::{onedrop, wait_until};

const MESSAGE: &[u8] = include_bytes!("../../fixtures/mail/welcome.eml");
const SCUBA: &str = "scuba@mail.axial.net";
const DOUG: &str = "doug@mail.axial.net";
const NOBODY: &str = "nobody@elsewhere.example";

/// How a delivery that cannot do anything by itself ends when it tries.
const BY_ITSELF: &str = "4.3.0 ledger: ";

/// A site whose deliveries go by way of its server.
struct Via(Site<Files>);

impl Deref for Via {
    type Target = Site<Files>;

    fn deref(&self) -> &Site<Files> {
        &self.0
    }
}

impl Via {
    fn new() -> Via {
        Via(Site::embedded())
    }

    fn delivery(&self, name: &str, more: &str) -> Delivery {
        let via = format!("[deliver]\nvia = \"{}\"\n", self.socket().display());
        Delivery { config: self.config(name, &format!("{more}\n{via}")), input: MESSAGE.to_vec() }
    }

    /// A delivery that could do it by itself.
    fn able(&self, more: &str) -> Delivery {
        self.delivery("able", more)
    }

    /// A delivery whose ledger and store are nowhere: it can hand the message over, and nothing
    /// else.
    fn helpless(&self, more: &str) -> Delivery {
        let nowhere = "ledger.url = \"sqlite:///proc/nowhere/ledger.db\"\nstore.url = \
                       \"maildir:///proc/nowhere/mail\"\n";
        self.delivery("helpless", &format!("{nowhere}{more}"))
    }

    /// An able delivery that has been started and has read nothing yet.
    fn begin(&self, args: &[&str]) -> Run {
        Run::start(self.able("").command(args))
    }

    /// A delivery that knows of no server.
    fn alone(&self) -> Delivery {
        Delivery { config: self.config("alone", ""), input: MESSAGE.to_vec() }
    }
}

struct Delivery {
    config: PathBuf,
    input: Vec<u8>,
}

impl Delivery {
    fn of(mut self, message: &[u8]) -> Delivery {
        self.input = message.to_vec();
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = onedrop();
        command.arg("deliver").arg("--config").arg(&self.config).args(args);
        for name in ["RECIPIENT", "SENDER"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, args: &[&str]) -> End {
        self.feed(self.command(args))
    }

    fn feed(&self, command: Command) -> End {
        let mut run = Run::start(command);
        run.feed(self.input.clone());
        run.end()
    }
}

fn count(message: &[u8], field: &str) -> usize {
    message.split(|byte| *byte == b'\n').filter(|line| line.starts_with(field.as_bytes())).count()
}

#[test]
fn the_server_delivers_and_the_process_opens_neither_ledger_nor_store() {
    let site = Via::new();
    let server = site.server("");
    // As pipe(8) with flags=DORX hands it over.
    let piped = [
        &b"Return-Path: <lisa@gmail.com>\nX-Original-To: Scuba@mail.axial.net\n\
                    Delivered-To: scuba@mail.axial.net\n"[..],
        MESSAGE,
    ]
    .concat();
    let args = ["-d", SCUBA, "-f", "lisa@gmail.com", "--queue-id", "4Wx7Yz1Q2kz9"];
    site.helpless("")
        .of(&piped)
        .run(&args)
        .is(0, "stored account=scuba mailbox=INBOX ")
        .says("account=lisa mailbox=Sent");
    let pids = site.ledger(
        "SELECT pid || ' ' || queue_id || ' ' || coalesce(a.sender, m.sender) || ' ' || recipient
         FROM onedrop_attempt_text a JOIN onedrop_message m ON m.id = a.message_id",
    );
    assert_eq!(
        pids,
        [format!("{} 4Wx7Yz1Q2kz9 lisa@gmail.com scuba@mail.axial.net", server.pid())]
    );
    let copies = site.inbox("scuba");
    assert_eq!(copies.len(), 1);
    for field in [
        "Return-Path: <lisa@gmail.com>",
        "Delivered-To: scuba@mail.axial.net",
        "X-Original-To: Scuba@mail.axial.net",
    ] {
        assert_eq!(count(&copies[0], field), 1, "{field}: {}", copies[0].escape_ascii());
    }
    assert_eq!((count(&copies[0], "Return-Path:"), count(&copies[0], "Delivered-To:")), (1, 1));
    assert!(copies[0].ends_with(MESSAGE));
    assert_eq!(site.copies("lisa", ".Sent"), [MESSAGE]);
    // The same message, whichever way it comes.
    site.alone()
        .of(&piped)
        .run(&args)
        .is(0, "already there account=scuba ")
        .says("already there account=lisa");
    site.helpless("")
        .of(&piped)
        .run(&args)
        .is(0, "already there account=scuba ")
        .says("already there account=lisa");
    site.inbox_has("scuba", [MESSAGE]);
    assert_eq!(site.copies("lisa", ".Sent"), [MESSAGE]);
}

#[test]
fn a_message_arrives_byte_for_byte() {
    let site = Via::new();
    let _server = site.server("");
    let messages: [&[u8]; 5] = [
        b"Subject: dots\n\n.\n..\n.x\nend\n",
        b"Subject: bytes\n\na\rb\0\x80\xff\n\n\n",
        b"From lisa@gmail.com Sat Nov 21 10:00:00 2026\nSubject: mbox\n\nbody\n",
        &[b"Subject: big\n\n", &b"a line that is not short at all\n".repeat(40_000)[..]].concat(),
        b"\nno header\n",
    ];
    for (number, message) in messages.into_iter().enumerate() {
        let to = format!("user{number}@mail.axial.net");
        site.helpless("").of(message).run(&["-d", &to, "-f", ""]).is(0, "stored");
        let copies = site.inbox(&format!("user{number}"));
        let expected = message
            .strip_prefix(b"From lisa@gmail.com Sat Nov 21 10:00:00 2026\n")
            .unwrap_or(message);
        assert!(copies[0].ends_with(expected), "{number}");
        assert!(copies[0].starts_with(b"Return-Path: <>\nDelivered-To: "), "{number}");
        site.alone().of(message).run(&["-d", &to, "-f", ""]).is(0, "already there");
    }
    // The server takes CRLF for the line's end.
    site.helpless("").of(b"Subject: a\r\n\r\nbody\r\n").run(&["-d", SCUBA]).is(0, "stored");
    assert!(site.inbox("scuba")[0].ends_with(b"\nSubject: a\n\nbody\n"));
    site.alone().of(b"Subject: a\r\n\r\nbody\r\n").run(&["-d", SCUBA]).is(0, "already there");
    // It would end the last line, and take a first one for a part of its own fields.
    for odd in [&b"Subject: no end\n\nbody"[..], b" A: 1\n\nbody\n"] {
        site.helpless("").of(odd).run(&["-d", SCUBA]).is(75, BY_ITSELF);
    }
}

#[test]
fn the_envelope_is_what_the_process_was_told() {
    let site = Via::new();
    let _server = site.server("");
    // Not from the domain that dmarc=pass vouches for: the login does.
    let own = b"From: doug@mail.axial.net\nSubject: own\n\nbody\n";
    site.helpless("")
        .of(own)
        .run(&["-d", SCUBA, "-f", DOUG, "--sasl-username", "doug+x@mail.axial.net"])
        .is(0, "stored account=scuba ")
        .says("account=doug mailbox=Sent");
    // From the fields that pipe(8) prepended; the environment; odd addresses.
    let piped =
        b"Return-Path: <lisa@gmail.com>\nDelivered-To: o'brien@mail.axial.net\nReceived: from \
                  far\nSubject: fields\n\nbody\n";
    let mut command = site.helpless("").command(&[]);
    command.env("RECIPIENT", "o_brien@mail.axial.net");
    site.helpless("").of(piped).feed(command).is(0, "stored account=o'brien ");
    assert_eq!(count(&site.inbox("o'brien")[0], "Return-Path: <lisa@gmail.com>"), 1);
    // local(8) exports a sender in the same way; another one's Return-Path is not taken for it.
    let exported = "o_brien@far";
    for (account, path, sender) in
        [("exact", "o'brien@far", "o'brien@far"), ("other", "o'briens@far", exported)]
    {
        let letter = format!(
            "Return-Path: <{path}>\nDelivered-To: {account}@mail.axial.net\nReceived: from \
             far\nSubject: {account}\n\nbody\n"
        );
        let delivery = site.helpless("").of(letter.as_bytes());
        let mut command = delivery.command(&[]);
        command.env("RECIPIENT", format!("{account}@mail.axial.net")).env("SENDER", exported);
        delivery.feed(command).is(0, &format!("stored account={account} "));
        let copy = &site.inbox(account)[0];
        assert_eq!(count(copy, &format!("Return-Path: <{sender}>")), 1, "{}", copy.escape_ascii());
    }
    site.helpless("")
        .run(&["-d", "a b@mail.axial.net", "-f", "l\u{e9}a@gmail.com"])
        .is(0, "stored account=a b ");
    site.helpless("").run(&["-d", SCUBA, "-f", "MAILER-DAEMON"]).is(0, "stored account=scuba ");
    let last = "SELECT coalesce(a.sender, m.sender) FROM onedrop_attempt_text a
                JOIN onedrop_message m ON m.id = a.message_id ORDER BY a.started_at DESC LIMIT 1";
    assert_eq!(site.ledger(last), [""]);
    // What LMTP cannot say the process delivers by itself.
    site.helpless("").run(&["-d", "scuba"]).is(75, BY_ITSELF);
    site.able("").run(&["-d", "otto"]).is(0, "stored account=otto");
    site.able("").run(&["-d", SCUBA, "-f", "root\r\nRSET@b"]).is(0, "already there account=scuba");
    site.able("").run(&[]).is(75, "4.3.5 no recipient");
}

#[test]
fn each_recipient_has_its_reply_and_the_worst_counts() {
    let site = Via::new();
    let _server = site.server("");
    let both = ["-d", SCUBA, "-d", DOUG, "-d", SCUBA];
    let end = site.helpless("").run(&both);
    end.is(0, "stored account=scuba mailbox=INBOX ").says("stored account=doug mailbox=INBOX ");
    site.inbox_has("scuba", [MESSAGE]);
    site.inbox_has("doug", [MESSAGE]);
    let message = b"Subject: one\n\nbody\n";
    let one = site.helpless("").of(message);
    one.run(&["-d", SCUBA, "-d", NOBODY, "-d", "a/b@mail.axial.net"])
        .is(75, "4.3.0 ledger: cannot be reached");
    site.inbox_has("scuba", [MESSAGE]);
    // The server's configuration may be older than the process's, which therefore decides, and
    // records it.
    let one = site.able("").of(message);
    one.run(&["-d", SCUBA, "-d", NOBODY, "-d", "a/b@mail.axial.net"])
        .is(
            67,
            "5.1.1 <nobody@elsewhere.example>: unknown recipient nobody@elsewhere.example; \
                 <a/b@mail.axial.net>: ",
        )
        .says("; <scuba@mail.axial.net>: stored account=scuba mailbox=INBOX ");
    site.inbox_has("scuba", [MESSAGE, &message[..]]);
    one.run(&["-d", NOBODY]).is(67, "5.1.1 unknown recipient nobody@elsewhere.example\n");
}

/// pipe(8) starts a process for each recipient.
#[test]
fn recipients_whose_processes_come_at_once_have_one_copy_each() {
    let site = Via::new();
    let _server = site.server("[lock]\nwait_secs = 30");
    let accounts: Vec<String> = (1..=20).map(|n| format!("r{n}")).collect();
    let delivery = site.helpless("");
    let start = |account: &String| {
        let to = format!("{account}@mail.axial.net");
        Run::start(delivery.command(&["-d", &to, "-f", "lisa@gmail.com"]))
    };
    let mut runs: Vec<Run> = accounts.iter().map(start).collect();
    runs.iter_mut().for_each(|run| run.feed(MESSAGE.to_vec()));
    for (account, run) in accounts.iter().zip(runs) {
        run.end().is(0, &format!("stored account={account} "));
        site.inbox_has(account, [MESSAGE]);
    }
    assert_eq!(site.copies("lisa", ".Sent"), [MESSAGE]);
}

/// Otherwise the ones beyond would be put off for ever.
#[test]
fn more_recipients_than_the_server_takes_are_delivered_by_the_process() {
    let site = Via::new();
    let _server = site.server("[lmtp]\nrecipients = 1");
    site.helpless("").run(&["-d", SCUBA, "-d", DOUG]).is(75, BY_ITSELF);
    assert!(site.inbox("scuba").is_empty());
    site.able("")
        .run(&["-d", SCUBA, "-d", DOUG])
        .is(0, "stored account=scuba ")
        .says("stored account=doug ");
}

#[test]
fn a_server_without_a_place_for_large_messages_says_so() {
    let site = Via::new();
    let server = site.server("[lmtp]\nspool_bytes = 100\nspool_dir = \"/nonexistent\"");
    let why = "lmtp.spool_dir: /nonexistent: No such file or directory";
    server.wait_for_log(why);
    site.helpless("").run(&["-d", SCUBA]).is(75, &format!("4.3.5 {why}"));
    assert!(site.inbox("scuba").is_empty());
}

#[test]
fn where_nobody_listens_the_process_delivers_by_itself() {
    let site = Via::new();
    site.helpless("").run(&["-d", SCUBA]).is(75, BY_ITSELF);
    site.able("").run(&["-d", SCUBA]).is(0, "stored account=scuba ");
    // A server that was killed has left it.
    drop(UnixListener::bind(site.socket()).expect("socket"));
    site.able("").run(&["-d", DOUG]).is(0, "stored account=doug ");
    fs::remove_file(site.socket()).expect("socket");
    fs::write(site.socket(), "no socket").expect("file");
    site.able("").run(&["-d", "otto@mail.axial.net"]).is(0, "stored account=otto ");
    let by_server =
        site.ledger("SELECT CAST(count(*) AS TEXT) FROM onedrop_copy WHERE placed_at IS NOT NULL");
    assert_eq!(by_server, ["4"]);
}

#[test]
fn guards_hold_before_anything_is_handed_over() {
    let site = Via::new();
    let fake = Fake::start(&site.socket(), Script::default());
    site.able("").run(&["-d", SCUBA, "--size", "200000"]).is(75, "4.3.0 message was cut short");
    site.able("").of(b"").run(&["-d", SCUBA]).is(75, "4.3.0 message was cut short");
    site.able("[limits]\nmessage_bytes = 500").run(&["-d", SCUBA]).is(69, "5.3.4 ");
    let said = fake.said();
    assert!(!said.contains("MAIL") && !said.contains("DATA"), "{said}");
    site.helpless("")
        .run(&["-d", SCUBA, "-f", "lisa@gmail.com", "--queue-id", "4Q"])
        .is(0, "stored by a fake\n");
    let said = fake.said();
    let sent = "XFORWARD IDENT=4Q\r\nMAIL FROM:<lisa@gmail.com> SIZE=";
    assert!(
        said.contains(sent) && said.contains("\r\nRCPT TO:<scuba@mail.axial.net>\r\nDATA\r\n"),
        "{said}"
    );
}

/// The same limit as without the server, though lines are longer on the wire.
#[test]
fn a_message_at_the_limit_passes() {
    let site = Via::new();
    let limit = format!("[limits]\nmessage_bytes = {}", MESSAGE.len());
    let _server = site.server(&limit);
    site.helpless(&limit).run(&["-d", SCUBA]).is(0, "stored account=scuba ");
    let smaller = Via::new();
    let _server = smaller.server("[limits]\nmessage_bytes = 500");
    smaller.helpless("").run(&["-d", SCUBA]).is(75, BY_ITSELF);
    smaller.able("").run(&["-d", SCUBA]).is(0, "stored account=scuba ");
}

/// Nothing was handed over, and the process knows.
#[test]
fn a_server_that_cannot_take_it_leaves_it_to_the_process() {
    let scripts = [
        Script { greeting: "421 4.3.2 Too many connections, try again\r\n", ..Script::default() },
        Script { greeting: "", ..Script::default() },
        Script { offer: "250 a.server.of.another.make\r\n", ..Script::default() },
        Script {
            offer: "250-some\r\n250-PIPELINING\r\n250-ENHANCEDSTATUSCODES\r\n250-8BITMIME\r\n250 \
                    SMTPUTF8\r\n",
            ..Script::default()
        },
        Script { mail: "421 4.3.2 Shutting down, try again\r\n", ..Script::default() },
        Script { mail: "553 5.1.7 Bad sender address\r\n", ..Script::default() },
        Script { rcpt: "452 4.5.3 Too many recipients\r\n", ..Script::default() },
        Script { rcpt: "553 5.1.3 Bad recipient address\r\n", ..Script::default() },
        Script { data: "421 4.3.2 Shutting down\r\n", ..Script::default() },
        Script { data: "", ..Script::default() },
        Script { mail: "552 5.3.4 too large\r\n", ..Script::default() },
        Script { rcpt: "550 5.1.1 who\r\n", data: "503 5.5.1 none\r\n", ..Script::default() },
        // As a socket that systemd keeps for a server that cannot start.
        Script { greeting: SILENT, ..Script::default() },
        Script { offer: SILENT, ..Script::default() },
    ];
    for script in scripts {
        let site = Via::new();
        let fake = Fake::start(&site.socket(), script);
        site.able("").run(&["-d", SCUBA]).is(0, "stored account=scuba ");
        site.inbox_has("scuba", [MESSAGE]);
        assert!(!fake.said().contains("\r\n.\r\n"), "{script:?}");
    }
}

#[test]
fn what_the_server_says_of_the_mail_is_the_end() {
    let cases = [
        (Script { after: Some("250 2.0.0 stored x\r\n"), ..Script::default() }, 0, "stored x\n"),
        (
            Script { after: Some("552 5.2.2 store: over quota\r\n"), ..Script::default() },
            69,
            "5.2.2 store: over quota\n",
        ),
        (Script { after: Some("550 5.1.1 gone\r\n"), ..Script::default() }, 67, "5.1.1 gone\n"),
        (Script { after: Some("451 4.3.0 later\r\n"), ..Script::default() }, 75, "4.3.0 later\n"),
        (
            Script { after: Some("250-2.0.0 two\r\n250 2.0.0 lines\r\n"), ..Script::default() },
            0,
            "two",
        ),
        (
            Script {
                rcpt: "451 4.3.0 not now\r\n",
                data: "503 5.5.1 none\r\n",
                ..Script::default()
            },
            75,
            "4.3.0 not now\n",
        ),
    ];
    for (script, status, says) in cases {
        let site = Via::new();
        let _fake = Fake::start(&site.socket(), script);
        site.able("").run(&["-d", SCUBA]).is(status, says);
        assert!(site.inbox("scuba").is_empty(), "{script:?}");
    }
}

#[test]
fn an_answer_that_is_lost_or_not_understood_is_75_and_nothing_is_delivered_beside_the_server() {
    let cases = [
        (Script { greeting: "hello\r\n", ..Script::default() }, "is not understood"),
        (Script { greeting: "250 2.0.0 stored\r\n", ..Script::default() }, "is not understood"),
        (Script { mail: "2500 2.1.0 what\r\n", ..Script::default() }, "is not understood"),
        (Script { rcpt: "354 go\r\n", ..Script::default() }, "is not understood"),
        (Script { data: "250 2.0.0 stored\r\n", ..Script::default() }, "is not understood"),
        (Script { after: Some(""), ..Script::default() }, "did not answer"),
        (Script { after: Some("250 2.0.0 sto"), ..Script::default() }, "did not answer"),
        (Script { after: Some("250-2.0.0 stored\r\n"), ..Script::default() }, "did not answer"),
        (Script { after: Some("stored\r\n"), ..Script::default() }, "is not understood"),
        (
            Script { after: Some("250-2.0.0 stored\r\n451 4.3.0 not\r\n"), ..Script::default() },
            "is not understood",
        ),
        (Script { after: Some("250 stored\r\n"), ..Script::default() }, "reply not understood"),
        (
            Script { after: Some("250 4.3.0 stored\r\n"), ..Script::default() },
            "reply not understood",
        ),
        (
            Script { after: Some("503 5.5.1 bad sequence\r\n"), ..Script::default() },
            "reply not understood",
        ),
        (Script { after: Some("550 no\r\n"), ..Script::default() }, "reply not understood"),
        (
            Script { after: Some("421 4.3.2 shutting down\r\n"), ..Script::default() },
            "shutting down",
        ),
    ];
    for (script, says) in cases {
        let site = Via::new();
        let _fake = Fake::start(&site.socket(), script);
        let end = site.able("").run(&["-d", SCUBA]);
        end.is(75, "4.3.").says(says);
        assert!(site.inbox("scuba").is_empty(), "{script:?}: {}", end.out);
    }
    let site = Via::new();
    // One of two replies.
    let _fake = Fake::start(
        &site.socket(),
        Script { after: Some("250 2.0.0 stored\r\n"), ..Script::default() },
    );
    site.able("").run(&["-d", SCUBA, "-d", DOUG]).is(75, "4.3.0 ").says("did not answer");
    assert!(site.inbox("doug").is_empty());
}

#[test]
fn a_server_that_hangs_is_75_by_the_deadline() {
    let limits = "[limits]\ndeadline_secs = 2\nanswer_secs = 1\n[lock]\nwait_secs = 0";
    let waits = [
        Script { rcpt: SILENT, ..Script::default() },
        Script { data: SILENT, ..Script::default() },
        Script { after: Some(SILENT), ..Script::default() },
        Script { after: Some("250-2.0.0 drop by drop"), is_slow: true, ..Script::default() },
    ];
    for script in waits {
        let site = Via::new();
        let _fake = Fake::start(&site.socket(), script);
        let end = site.able(limits).run(&["-d", SCUBA]);
        end.is(75, "4.3.0 deadline of 2 s passed while waiting for ");
        assert!(end.took < Duration::from_secs(15), "{script:?}: {:?}", end.took);
        assert!(site.inbox("scuba").is_empty(), "{script:?}");
    }
}

/// No server accepts, and the queue is full.
#[test]
fn where_the_queue_is_full_the_process_delivers_by_itself() {
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
    };
    use std::os::fd::AsRawFd;
    let site = Via::new();
    let listener =
        socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).expect("socket");
    bind(listener.as_raw_fd(), &UnixAddr::new(&site.socket()).expect("address")).expect("bind");
    listen(&listener, Backlog::new(0).expect("none")).expect("listen");
    let _first = UnixStream::connect(site.socket()).expect("the only place");
    site.able("").run(&["-d", SCUBA]).is(0, "stored account=scuba ");
}

/// The server is killed with the message in its hands; the next try finds what is on record.
#[test]
fn a_server_that_is_killed_with_the_message_costs_a_retry() {
    let site = Via::new();
    let mut server = site.server("");
    site.helpless("").run(&["-d", DOUG]).is(0, "stored");
    // The server can record nothing now: it waits.
    let ledger = site.sqlite();
    ledger.execute_batch("BEGIN IMMEDIATE").expect("lock");
    let mut run = site.begin(&["-d", SCUBA]);
    run.feed(MESSAGE.to_vec());
    assert!(
        wait_until(Duration::from_secs(20), || is_locked(&site.root.join("ledger.db-locks"))),
        "nothing was handed over"
    );
    server.kill();
    run.end().is(75, "4.3.0 ").says("did not answer");
    ledger.execute_batch("ROLLBACK").expect("unlock");
    assert!(site.inbox("scuba").is_empty());
    site.able("").run(&["-d", SCUBA]).is(0, "stored account=scuba ");
    site.inbox_has("scuba", [MESSAGE]);
}

/// The call is made while the message is being read; a server that stops then has nothing in its
/// hands.
#[test]
fn a_server_that_stops_before_the_message_is_read_leaves_it_to_the_process() {
    for in_order in [true, false] {
        let site = Via::new();
        let mut server = site.server("");
        // The rig's own look at the server is over.
        let is_called = || has_thread(&server, "client");
        assert!(wait_until(Duration::from_secs(20), || !is_called()), "a client stays");
        let mut run = site.begin(&["-d", SCUBA]);
        assert!(wait_until(Duration::from_secs(20), is_called), "nobody called");
        if in_order {
            server.stop();
        } else {
            server.kill();
        }
        run.feed(MESSAGE.to_vec());
        run.end().is(0, "stored account=scuba ");
        site.inbox_has("scuba", [MESSAGE]);
    }
}

/// Whether anybody holds a lock in the file (proc_locks(5)): the message's, while it is recorded.
fn is_locked(file: &Path) -> bool {
    let inode = fs::metadata(file).map_or(0, |file| std::os::unix::fs::MetadataExt::ino(&file));
    fs::read_to_string("/proc/locks").expect("/proc").contains(&format!(":{inode} "))
}

/// Whether a thread of the server has this name now.
fn has_thread(server: &Lmtp, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("/proc");
    let mut names =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.any(|found| found.trim_end() == name)
}

/// What a listener's part says where it is to say nothing and keep the connection.
const SILENT: &str = "\0";

/// What a listener says; an empty text ends the connection there.
#[derive(Debug, Clone, Copy)]
struct Script {
    greeting: &'static str,
    offer: &'static str,
    mail: &'static str,
    rcpt: &'static str,
    data: &'static str,
    /// Said after the final dot, once, before the connection ends; `None`: a reply for each
    /// recipient.
    after: Option<&'static str>,
    /// After that a byte now and then.
    is_slow: bool,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            greeting: "220 fake LMTP\r\n",
            offer: "250-fake\r\n250-PIPELINING\r\n250-ENHANCEDSTATUSCODES\r\n250-SIZE\r\n\
                    250-8BITMIME\r\n250-SMTPUTF8\r\n250 XFORWARD IDENT\r\n",
            mail: "250 2.1.0 yes\r\n",
            rcpt: "250 2.1.5 yes\r\n",
            data: "354 go\r\n",
            after: None,
            is_slow: false,
        }
    }
}

/// A listener that plays a script to each client and keeps what they say.
struct Fake {
    said: Arc<Mutex<Vec<u8>>>,
}

impl Fake {
    fn start(socket: &Path, script: Script) -> Fake {
        let listener = UnixListener::bind(socket).expect("socket");
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let heard = Arc::clone(&said);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let heard = Arc::clone(&heard);
                // A client that goes away in mid-sentence is part of the game.
                thread::spawn(move || play(&stream, script, &heard));
            }
        });
        Fake { said }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().expect("no panic")).into_owned()
    }
}

/// Says it; false where the connection is to end.
fn say(mut stream: &UnixStream, text: &str) -> bool {
    if text == SILENT {
        // Until the client goes.
        let _ = stream.read_to_end(&mut Vec::new());
        return false;
    }
    !text.is_empty() && stream.write_all(text.as_bytes()).is_ok()
}

fn play(mut stream: &UnixStream, script: Script, heard: &Mutex<Vec<u8>>) -> Option<()> {
    let go_on = |text: &str| say(stream, text).then_some(());
    go_on(script.greeting)?;
    let mut input = BufReader::new(stream);
    let (mut recipients, mut in_data) = (0, false);
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        heard.lock().expect("no panic").extend_from_slice(&line);
        let text = String::from_utf8_lossy(&line);
        if in_data {
            if line == b".\r\n" {
                in_data = false;
                match script.after {
                    None => go_on(&"250 2.0.0 stored by a fake\r\n".repeat(recipients))?,
                    Some(after) => {
                        go_on(after)?;
                        if !script.is_slow {
                            return None;
                        }
                        loop {
                            thread::sleep(Duration::from_millis(100));
                            stream.write_all(b".").ok()?;
                        }
                    }
                }
            }
            continue;
        }
        let verb = text.get(..4).unwrap_or_default();
        go_on(match verb {
            "LHLO" => script.offer,
            "MAIL" => script.mail,
            "RCPT" => script.rcpt,
            "DATA" => script.data,
            "QUIT" => "221 2.0.0 bye\r\n",
            _ => "250 2.0.0 yes\r\n",
        })?;
        recipients += usize::from(verb == "RCPT");
        in_data = verb == "DATA" && script.data.starts_with("354");
    }
}
