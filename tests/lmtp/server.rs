//! `onedrop lmtp` by itself, with a ledger in a file and Maildirs: what it says to clients, to the
//! log and to what watches it.

use std::fs::{self, File};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::journal::{Journal, journalctl, told_to_the_journal};
use crate::support::letters::{ANN, from_ann};
use crate::support::lmtp::Lmtp;
use crate::support::lmtp_client::{LmtpClient, Reply};
use crate::support::server::{Server, guarded};
use crate::support::site::{Files, Site};
use crate::support::{fixture, free_port, onedrop, run, wait_until};

/// The limit counts a line's end as one byte, the wire as two, and Postfix something in between in
/// what it says with MAIL.
#[test]
fn a_message_is_too_large_by_its_own_bytes_and_nothing_that_is_said_of_them() {
    let site = Site::embedded();
    let message = [from_ann("size").into_bytes(), b"\n".repeat(500)].concat();
    let _server = site.server(&format!("[limits]\nmessage_bytes = {}\n", message.len()));
    let mut client = LmtpClient::welcome(&site.socket());
    let longer = [&message[..], b"\n"].concat();
    for (bytes, expected) in [(&message, "250 2.0.0 "), (&longer, "552 5.3.4 ")] {
        let wire = crate::support::lmtp_client::dot_stuffed(bytes);
        let half = wire.len() / 2 + 1;
        let data = [b"DATA\r\n", &wire[..], b".\r\n"].concat();
        let chunks = [
            format!("BDAT {half}\r\n").as_bytes(),
            &wire[..half],
            format!("BDAT {} LAST\r\n", wire.len() - half).as_bytes(),
            &wire[half..],
        ]
        .concat();
        for (how, body) in [("354", data), ("250", chunks)] {
            let envelope = format!(
                "MAIL FROM:<{ANN}> SIZE={}\r\nRCPT TO:<scuba@mail.axial.net>\r\n",
                2 * wire.len()
            );
            client.send(&[envelope.as_bytes(), &body[..]].concat()).expect("a server");
            let replies: Vec<String> =
                (0..4).map(|_| client.reply().expect("a reply").to_string()).collect();
            assert!(replies[..2].iter().all(|reply| reply.starts_with("250 ")), "{replies:?}");
            assert!(replies[2].starts_with(how) && replies[3].starts_with(expected), "{replies:?}");
        }
    }
    site.inbox_has("scuba", [&message]);
}

/// A pipe that is full, and its other end.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a pipe");
    while writer.write(&[b'.'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).expect("a pipe");
    (reader, writer)
}

#[test]
fn a_log_that_nobody_reads_holds_no_delivery_up_nor_the_servers_end() {
    let site = Site::embedded();
    let (_unread, full) = full_pipe();
    let mut server = site.launch("").log_to(full).start();
    let mut client = LmtpClient::welcome(&site.socket());
    client.set_patience(Duration::from_secs(20));
    for number in 0..3 {
        let letter = from_ann(&format!("unread{number}"));
        let replies =
            client.deliver(ANN, &["scuba@mail.axial.net"], &letter).expect("replies in time");
        assert!(replies.iter().all(Reply::is_ok), "{replies:?}");
    }
    drop(client);
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
}

/// A server that hangs in some calls for longer than the test takes, and what it reports to
/// systemd.
struct Hanging {
    site: Site<Files>,
    /// What it reported to systemd.
    told: Arc<Mutex<String>>,
    metrics: SocketAddr,
    // Dropped in this order: what hangs can be ended once nothing holds it.
    _strace: Server,
    server: Lmtp,
}

impl Hanging {
    /// Its deliveries hang in fsync(2).
    fn in_deliveries(connections: usize) -> Hanging {
        let settings = format!("[lmtp]\nconnections = {connections}\n");
        Hanging::start(Site::embedded(), &settings, &["-e", "trace=fsync"], "fsync")
    }

    /// It hangs in these `calls` of those that strace is to see.
    fn start(site: Site<Files>, settings: &str, seen: &[&str], calls: &str) -> Hanging {
        let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let told = Arc::new(Mutex::new(String::new()));
        let (systemd, hearing) =
            (UnixDatagram::bind(site.root.join("notify")).expect("socket"), Arc::clone(&told));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = systemd.recv(&mut bytes) {
                hearing.lock().expect("words").push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        let settings = format!(
            "{settings}metrics = \"{metrics}\"\n[limits]\ndeadline_secs = 2\nanswer_secs = 1\n\
             [lock]\nwait_secs = 0\n"
        );
        let notify = site.root.join("notify").display().to_string();
        let server = site.launch(&settings).bare().env("NOTIFY_SOCKET", &notify).start();
        let log = site.root.join("strace.log");
        let mut command = guarded("strace", None, Signal::SIGKILL);
        let inject = format!("inject={calls}:delay_enter=600000000");
        command.args(["-f", "-qq", "-e", &inject, "-o", "/dev/null"]).args(seen);
        command
            .args(["-p", &server.pid().to_string()])
            .stdin(Stdio::null())
            .stderr(File::create(&log).expect("log"));
        let mut strace = Server::start("strace", command, Signal::SIGKILL, &log);
        let status = format!("/proc/{}/status", server.pid());
        strace.wait_ready(|| {
            !fs::read_to_string(&status).expect("status").contains("TracerPid:\t0\n")
        });
        Hanging { site, told, metrics, _strace: strace, server }
    }

    fn overdue(&self) -> bool {
        let mut stream = TcpStream::connect(self.metrics).expect("metrics");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a question");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        assert!(text.contains("\nonedrop_deliveries_overdue "), "{text}");
        text.contains("\nonedrop_deliveries_overdue 1\n")
    }

    /// Whether it reports to systemd in the next ticks that all is well.
    fn tells_that_all_is_well(&self) -> bool {
        self.told.lock().expect("words").clear();
        let said = || self.told.lock().expect("words").clone();
        assert!(
            wait_until(Duration::from_secs(60), || said().matches(" 1 overdue").count() >= 4),
            "{}",
            said()
        );
        said().contains("WATCHDOG=1")
    }
}

#[test]
fn deliveries_that_hang_end_the_server_only_when_they_are_many() {
    let sites = [Hanging::in_deliveries(2), Hanging::in_deliveries(3)];
    for site in &sites {
        let mut client = LmtpClient::welcome(&site.site.socket());
        let replies =
            client.deliver(ANN, &["scuba@mail.axial.net"], from_ann("hanging")).expect("replies");
        assert!(replies[0].to_string().starts_with("451 4.3.0 deadline of 2 s"), "{replies:?}");
    }
    for site in &sites {
        assert!(wait_until(Duration::from_secs(60), || site.overdue()), "{}", site.server.log());
    }
    assert!(!sites[0].tells_that_all_is_well(), "one of two hangs");
    assert!(sites[1].tells_that_all_is_well(), "one of three hangs");
    for site in &sites {
        site.server.wait_for_log("a delivery hangs");
        let log = site.server.log();
        let told: Vec<_> = log.lines().filter(|line| line.contains("a delivery hangs")).collect();
        assert!(
            told.len() == 1
                && told[0].contains(" ERROR MESSAGE=")
                && told[0].contains("RECIPIENTS=scuba@"),
            "{log}"
        );
    }
}

/// The account's folder may be on a file server that is gone.
#[test]
fn a_look_up_that_hangs_is_overdue_as_a_delivery_is() {
    let site = Site::embedded();
    let mail = site.root.join("mail");
    fs::create_dir(&mail).expect("a folder");
    let store = format!("[store]\nurl = \"maildir://{}/{{account}}\"\n", mail.display());
    let settings = format!("{store}[deliver]\ntrial = false\n[lmtp]\n");
    run(onedrop().args(["migrate", "--config"]).arg(site.config("migrate", &settings)));
    let seen = ["-P", &mail.join("scuba").display().to_string(), "-e", "trace=%file"];
    let hanging = Hanging::start(site, &settings, &seen, "%file");
    let mut client = LmtpClient::welcome(&hanging.site.socket());
    client.send(b"MAIL FROM:<>\r\n").expect("a server");
    assert!(client.reply().expect("a reply").is_ok());
    client.send(b"RCPT TO:<scuba@mail.axial.net>\r\n").expect("a server");
    let log = || hanging.server.log();
    assert!(wait_until(Duration::from_secs(90), || hanging.overdue()), "{}", log());
    hanging.server.wait_for_log("RECIPIENTS=scuba@mail.axial.net");
    assert_eq!(log().matches("a look-up before it").count(), 1, "{}", log());
}

/// The limit of processes (RLIMIT_NPROC) counts a user's threads: the server gets a user
/// without any other process.
#[test]
fn a_client_for_which_there_is_no_thread_is_put_off() {
    let site = Site::embedded();
    let user = 1_000_000 + std::process::id();
    site.give_to(user);
    let server = site.launch("").bare().start();
    let client = LmtpClient::welcome(&site.socket());
    // Main, log, the look at both ends, the ticks of jobs and this client; the rig's own look at
    // the socket was one, too.
    let threads = || fs::read_dir(format!("/proc/{}/task", server.pid())).expect("threads").count();
    assert!(wait_until(Duration::from_secs(20), || threads() == 5), "{} threads", threads());
    let limit = |processes: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            "--clear-groups",
            "--reuid",
            &user.to_string(),
            "--",
            "prlimit",
            processes,
            "--pid",
        ]);
        run(command.arg(server.pid().to_string()))
    };
    limit("--nproc=5:");
    let refused = LmtpClient::unix(&site.socket(), Duration::from_secs(20)).expect("an answer");
    assert!(refused.greeting.to_string().starts_with("421 4.3.2 "), "{}", refused.greeting);
    server.wait_for_log("no thread for a client");
    limit("--nproc=100:");
    let mut again = LmtpClient::welcome(&site.socket());
    let replies =
        again.deliver(ANN, &["scuba@mail.axial.net"], from_ann("again")).expect("replies");
    assert!(replies.iter().all(Reply::is_ok), "{replies:?}");
    client.quit();
}

#[test]
fn a_client_beyond_the_limit_waits_for_its_turn_where_that_is_configured() {
    let site = Site::embedded();
    let _server = site.server("[lmtp]\nconnections = 1\nwhen_full = \"wait\"\n");
    let first = LmtpClient::welcome(&site.socket());
    let second = UnixStream::connect(site.socket()).expect("the server listens");
    second.set_read_timeout(Some(Duration::from_secs(2))).expect("a time limit");
    let silent = (&second).read(&mut [0]);
    assert!(silent.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it is not its turn");
    first.quit();
    second.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    let mut greeting = [0; 4];
    (&second).read_exact(&mut greeting).expect("its turn");
    assert_eq!(greeting, *b"220 ");
}

#[test]
fn the_log_names_mailbox_and_file_of_the_recipients_own_copy() {
    let site = Site::embedded();
    let server = site.server("");
    let message = fixture("fixtures/mail/welcome.eml");
    let mut client = LmtpClient::welcome(&site.socket());
    let mut deliver = |how: &str| {
        let replies =
            client.deliver("lisa@gmail.com", &["scuba@mail.axial.net"], &message).expect("replies");
        assert!(
            replies[0].is_ok() && replies[0].text.contains("account=lisa mailbox=Sent"),
            "{replies:?}"
        );
        let files = fs::read_dir(site.root.join("mail/scuba/Maildir/new")).expect("folder");
        let file =
            files.map(|file| file.expect("file").file_name().into_string().expect("text")).next();
        let file = file.expect("a copy");
        server.wait_for_log(&format!(" MAILBOX=INBOX FILE={file} HOW={how} "));
        file
    };
    deliver("stored");
    let file = deliver("\"already there\"");
    let mut command = onedrop();
    command
        .arg("deliver")
        .arg("--config")
        .arg(site.config("deliver", ""))
        .args(["-d", "scuba@mail.axial.net"]);
    let (_, told) = told_to_the_journal(&command, &message);
    let told = told.concat();
    let fields =
        format!("\nONEDROP_MAILBOX=INBOX\nONEDROP_FILE={file}\nONEDROP_HOW=already there\n");
    assert!(told.contains(&fields), "{fields:?} in {told}");
}

#[test]
fn the_log_goes_on_when_journald_has_started_again() {
    let site = Site::embedded();
    let mut journal = Journal::new();
    let _server = site.launch("").by(&journal.command()).start();
    let mut client = LmtpClient::welcome(&site.socket());
    for name in ["before", "after"] {
        let replies =
            client.deliver(ANN, &["scuba@mail.axial.net"], from_ann(name)).expect("replies");
        assert!(replies.iter().all(Reply::is_ok), "{replies:?}");
        let mut told = String::new();
        let has_come = || {
            told.push_str(&journal.records().concat());
            told.contains(&format!("message-id=<{name}@x> delivered "))
        };
        assert!(wait_until(Duration::from_secs(20), has_come), "{name}: {told}");
        journal.restart();
    }
}

/// At RCPT, where a query asks the ledger, and at the end of the message. The metrics count what
/// the journal has of it.
#[test]
fn what_is_put_off_before_it_is_on_record_can_be_found_in_the_log() {
    for directory in ["", "[directory]\nquery = \"SELECT $1\"\n"] {
        let site = Site::embedded();
        let record = json!({
            "__REALTIME_TIMESTAMP": "1795700000000000", "MESSAGE": "x", "ONEDROP_STATUS": "4.3.0",
        });
        let path = journalctl(&site.root, &[record.clone(), record]);
        let server = site
            .launch(directory)
            .env("ONEDROP__LEDGER__URL", "postgres://x@127.0.0.1:9/x?sslmode=disable")
            .env("PATH", &path)
            .start();
        let to = ["scuba@mail.axial.net"];
        let replies = server.client().deliver(ANN, &to, from_ann("early")).expect("replies");
        assert!(replies[0].to_string().starts_with("451 4.3.0 ledger: "), "{replies:?}");
        let config = site.root.join("server/onedrop.toml").display().to_string();
        server.wait_for_log(&format!(" STATUS=4.3.0 COLLISION=false UNRECORDED={config}"));
        let counted = || server.metric("onedrop_unrecorded_deliveries") == Some(2.0);
        assert!(wait_until(Duration::from_secs(20), counted), "{}", server.metrics());
    }
}

#[test]
fn what_a_reload_cannot_change_is_named_in_the_log() {
    let site = Site::embedded();
    let settings = |port: u16, more: &str| {
        let listen = format!("\"unix:{}\"{more}", site.socket().display());
        format!("[lmtp]\nlisten = [{listen}]\nmetrics = \"127.0.0.1:{port}\"\n")
    };
    let (first, second) = (free_port(), free_port());
    let before = settings(first, "");
    for is_told_by_argument in [false, true] {
        let launch = site.launch(&before);
        let launch = if is_told_by_argument { launch.bare() } else { launch.where_configured() };
        let mut server = launch.start();
        let mut reload = |settings: &str, times: usize| {
            site.config("server", settings);
            server.reload();
            let read = || server.log().matches("MESSAGE=the configuration was read again").count();
            assert!(wait_until(Duration::from_secs(20), || read() == times), "{}", server.log());
        };
        reload(&settings(second, ", \"127.0.0.1:9\""), 1);
        // As it was, nothing waits for the next start.
        reload(&before, 2);
        let log = server.log();
        let told = |key: &str| {
            log.matches(&format!("WARN MESSAGE={key} has changed: that counts from the next start"))
                .count()
        };
        assert_eq!(
            (told("lmtp.listen"), told("lmtp.metrics")),
            (usize::from(!is_told_by_argument), 1),
            "{log}"
        );
    }
}
