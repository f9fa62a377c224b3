//! The contract with Postfix as a table of cases, each run through the real binary: what goes in,
//! the exit status and the first bytes of the output. Only 0, 67 and 69 may come beside 75.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

mod peer;

use crate::support::disk::SmallDisk;
use crate::support::site::{Files, Site};
use crate::support::trial::{End, Run, SECRET};
use crate::support::{onedrop, onedrop_path, set_mode, wait_until};
use peer::Peer;

const MESSAGE: &[u8] = include_bytes!("../../fixtures/mail/welcome.eml");
const SCUBA: &str = "scuba@mail.axial.net";

/// A site and a configuration.
struct Table {
    site: Site<Files>,
    config: PathBuf,
}

impl Table {
    fn new() -> Table {
        Table::with("")
    }

    /// `more` over the site's own; `$PASSWORD` is a file with a password.
    fn with(more: &str) -> Table {
        let site = Site::embedded();
        let password = site.root.write("password", SECRET);
        set_mode(&password, 0o600);
        let more = more.replace("$PASSWORD", &password.display().to_string());
        let config = site.config("etc", &more);
        Table { site, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.root.join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = onedrop();
        command.args(args).env("ONEDROP_CONFIG", &self.config).stdin(Stdio::null());
        for name in ["RECIPIENT", "SENDER"] {
            command.env_remove(name);
        }
        command
    }

    fn deliver(&self, args: &[&str], message: &[u8]) -> End {
        let args: Vec<&str> = ["deliver"].iter().chain(args).copied().collect();
        feed(self.command(&args), message)
    }

    /// The attempts of a queue id: to whom, how they ended, and whether the process ended
    /// otherwise.
    fn attempts(&self, queue_id: &str) -> Vec<(String, String, bool)> {
        let output = self.command(&["trace", "--json", queue_id]).output().expect("binary");
        let traces: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let attempts = traces[0]["attempts"].as_array().expect("attempts");
        let text = |attempt: &serde_json::Value, name: &str| {
            attempt[name].as_str().expect("a text").to_owned()
        };
        let told = |attempt| {
            let end = format!("{} {}", text(attempt, "outcome"), text(attempt, "status"));
            (text(attempt, "recipient"), end, text(attempt, "text").contains("; ended in "))
        };
        attempts.iter().map(told).collect()
    }

    /// Messages in all mailboxes.
    fn mails(&self) -> usize {
        fn count(path: &Path) -> usize {
            let Ok(entries) = fs::read_dir(path) else { return 0 };
            entries
                .flatten()
                .map(|entry| {
                    let is_mail =
                        matches!(path.file_name().and_then(|n| n.to_str()), Some("new" | "cur"));
                    if entry.path().is_dir() { count(&entry.path()) } else { usize::from(is_mail) }
                })
                .sum()
        }
        count(&self.path("mail"))
    }
}

/// Runs `command` with `message` on a pipe.
fn feed(command: Command, message: &[u8]) -> End {
    let mut run = Run::start(command);
    run.feed(message.to_vec());
    run.end()
}

#[test]
fn delivered_is_0_and_says_where() {
    let table = Table::new();
    table
        .deliver(&["-d", SCUBA, "-f", "lisa@gmail.com"], MESSAGE)
        .is(0, "stored account=scuba mailbox=INBOX ");
    table.deliver(&["-d", SCUBA], MESSAGE).is(0, "already there account=scuba mailbox=INBOX ");
    table
        .deliver(&["-d", "doug@mail.axial.net"], MESSAGE)
        .is(0, "stored account=doug ")
        .says("already there account=lisa");
    assert_eq!(table.mails(), 3);
}

#[test]
fn the_recipient_comes_from_the_argument_the_environment_or_the_topmost_delivered_to() {
    let with_fields = [
        b"Return-Path: <lisa@gmail.com>\nDelivered-To: doug@mail.axial.net\nDelivered-To: \
           forged@x\n",
        MESSAGE,
    ]
    .concat();
    let table = Table::new();
    table.deliver(&[], &with_fields).is(0, "stored account=doug ");
    let mut command = table.command(&["deliver"]);
    command.env("RECIPIENT", "Otto+x@mail.axial.net");
    feed(command, &with_fields).is(0, "stored account=otto ");
    let mut command = table.command(&["deliver", "-d", SCUBA]);
    command.env("RECIPIENT", "otto@mail.axial.net");
    feed(command, &with_fields).is(0, "stored account=scuba ");
    table.deliver(&[], MESSAGE).is(75, "4.3.5 no recipient");
    table.deliver(&["-d", ""], MESSAGE).is(75, "4.3.5 no recipient");
    // local(8) turns odd characters of the environment into "_"; the field it writes has them.
    let odd = [b"Delivered-To: o'brien@mail.axial.net\n", MESSAGE].concat();
    for (recipient, account) in
        [("o_brien@mail.axial.net", "o'brien"), ("other@mail.axial.net", "other")]
    {
        let mut command = table.command(&["deliver"]);
        command.env("RECIPIENT", recipient);
        feed(command, &odd).is(0, &format!("stored account={account} "));
    }
}

/// What stands below the first Received, or in a message without one, its sender may have written.
#[test]
fn a_recipient_that_the_sender_wrote_is_none() {
    let table = Table::new();
    let forged = "Return-Path: <boss@mail.axial.net>\nDelivered-To: doug@mail.axial.net\n";
    let body = "Subject: forged\n\nbody\n";
    for head in [
        format!("Received: from far\n{forged}"),
        forged.to_owned(),
        format!("Delivered-To:\nReceived: from far\n{forged}"),
        format!("Subject: none\n\n{forged}Received: from far\n"),
    ] {
        let message = format!("{head}{body}");
        table.deliver(&[], message.as_bytes()).is(75, "4.3.5 no recipient");
    }
    // Nor is what the environment cannot say taken from there.
    let message = format!("Received: from far\nDelivered-To: o'brien@mail.axial.net\n{body}");
    let mut command = table.command(&["deliver"]);
    command.env("RECIPIENT", "o_brien@mail.axial.net");
    feed(command, message.as_bytes()).is(0, "stored account=o_brien ");
    // Nor the sender.
    let message = format!("Received: from far\nReturn-Path: <boss@mail.axial.net>\n{body}");
    table.deliver(&["-d", SCUBA], message.as_bytes()).is(0, "stored account=scuba ");
    let senders = "SELECT DISTINCT coalesce(a.sender, m.sender) FROM onedrop_attempt_text a JOIN \
                   onedrop_message m ON m.id = a.message_id";
    assert_eq!(table.site.ledger(senders), [""]);
}

#[test]
fn unknown_recipients_are_67() {
    let table = Table::new();
    for unknown in ["nobody@elsewhere.example", "a/b@mail.axial.net", "..@mail.axial.net"] {
        table.deliver(&["-d", unknown], MESSAGE).is(67, "5.1.1 unknown recipient");
    }
    assert_eq!(table.mails(), 0);
}

/// With a recipient limit other than 1 Postfix hands over several, and what it hears counts for all
/// of them.
#[test]
fn several_recipients_are_told_of_one_by_one() {
    let table = Table::new();
    let to = ["-d", SCUBA, "-d", "nobody@elsewhere.example", "-d", SCUBA, "--queue-id", "4First"];
    let end = table.deliver(&to, b"Subject: both\n\nbody\n");
    end.is(
        67,
        "5.1.1 <nobody@elsewhere.example>: unknown recipient nobody@elsewhere.example; \
         <scuba@mail.axial.net>: stored ",
    );
    assert_eq!(table.mails(), 1);
    assert_eq!(
        table.attempts("4First"),
        [
            ("nobody@elsewhere.example".to_owned(), "permfail 5.1.1".to_owned(), false),
            (SCUBA.to_owned(), "delivered 2.0.0".to_owned(), true)
        ]
    );

    // One that can be tried again wins; the others have their mail, once.
    fs::write(table.path("mail/ghost"), b"a file where a folder should be").expect("file");
    let to = [
        "-d",
        "nobody@elsewhere.example",
        "-d",
        SCUBA,
        "-d",
        "ghost@mail.axial.net",
        "--queue-id",
        "4Second",
    ];
    let message = b"Subject: three\n\nbody\n";
    let end = table.deliver(&to, message);
    end.is(75, "4.3.0 <ghost@mail.axial.net>: store: ")
        .says("; <scuba@mail.axial.net>: stored account=scuba ");
    end.says("; <nobody@elsewhere.example>: 5.1.1 unknown recipient");
    let (own, others) =
        ("tempfail 4.3.0".to_owned(), ["permfail 5.1.1".to_owned(), "delivered 2.0.0".to_owned()]);
    let [nobody, scuba] = others;
    let expected = [
        ("nobody@elsewhere.example".to_owned(), nobody, true),
        (SCUBA.to_owned(), scuba, true),
        ("ghost@mail.axial.net".to_owned(), own, false),
    ];
    let mut attempts = table.attempts("4Second");
    attempts.sort_by_key(|(recipient, _, _)| {
        expected.iter().position(|(other, _, _)| other == recipient)
    });
    assert_eq!(attempts, expected);
    fs::remove_file(table.path("mail/ghost")).expect("file");
    let end = table.deliver(&to, message);
    end.is(67, "5.1.1 <nobody@elsewhere.example>: ")
        .says("already there account=scuba")
        .says("stored account=ghost");
    assert_eq!(table.mails(), 3);
    // All the same: said once, as for one.
    let end = table.deliver(&["-d", "a@elsewhere.example", "-d", "b@elsewhere.example"], message);
    end.is(
        67,
        "5.1.1 <a@elsewhere.example>: unknown recipient a@elsewhere.example; \
                <b@elsewhere.example>: unknown ",
    );
}

#[test]
fn a_message_over_the_configured_limit_is_69() {
    let table = Table::with("[limits]\nmessage_bytes = 500");
    table.deliver(&["-d", SCUBA], MESSAGE).is(69, "5.3.4 ");
    table.deliver(&["-d", SCUBA], b"Subject: short\n\nbody\n").is(0, "stored");
}

#[test]
fn what_is_not_understood_on_the_command_line_is_75() {
    let table = Table::new();
    let cases: [(&[&str], &str); 9] = [
        (&["--bogus"], ""),
        (
            &["delivr"],
            "unrecognized subcommand 'delivr'; tip: a similar subcommand exists: 'deliver'; see \
             onedrop --help\n",
        ),
        (&["deliver", "--bogus"], ""),
        (
            &["deliver", "-d"],
            "a value is required for '-d <RECIPIENT>' but none was supplied; see onedrop --help\n",
        ),
        (&["deliver", "-d", SCUBA, "--size", "many"], ""),
        // As pipe(8) writes -d ${recipient} for two.
        (
            &["deliver", "-d", SCUBA, "doug@mail.axial.net"],
            "unexpected argument 'doug@mail.axial.net' found",
        ),
        (&["deliver", "--config"], ""),
        (&["trace"], ""),
        (
            &["trace", "--jsno", "x"],
            "unexpected argument '--jsno' found; tip: a similar argument exists: '--json'; see \
             onedrop --help\n",
        ),
    ];
    for (args, problem) in cases {
        let expected = format!("4.3.5 usage: {problem}");
        feed(by_postfix(table.command(args)), MESSAGE).is(75, &expected);
    }
    // Whoever calls `deliver`.
    feed(table.command(&["deliver", "--queue-di", "4X"]), MESSAGE)
        .is(75, "4.3.5 usage: ")
        .says("'--queue-id'");
    assert_eq!(table.mails(), 0);
}

/// With MAIL_CONFIG, which pipe(8) and local(8) set.
fn by_postfix(mut command: Command) -> Command {
    command.env("MAIL_CONFIG", "/etc/postfix");
    command
}

#[test]
fn a_command_that_delivers_nothing_does_not_eat_a_message_of_postfix() {
    let table = Table::new();
    let listen = format!("unix:{}", table.path("socket").display());
    let commands: [&[&str]; 12] = [
        &[],
        &["--help"],
        &["--version"],
        &["deliver", "--help"],
        &["help"],
        &["help", "deliver"],
        &["migrate"],
        &["check"],
        &["trace", SCUBA],
        &["trace", "--json", SCUBA],
        &["verify", "--repair"],
        &["lmtp", "--listen", &listen],
    ];
    for args in commands {
        let end = feed(by_postfix(table.command(args)), MESSAGE);
        end.is(75, "4.3.5 this command delivers nothing").says("onedrop deliver");
        // Also where the message is still to come, and where a socket stands in for the pipe.
        let (ours, stdin) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut command = by_postfix(table.command(args));
        let output = command.stdin(std::os::fd::OwnedFd::from(stdin)).output().expect("binary");
        assert_eq!(output.status.code(), Some(75), "{args:?}: {output:?}");
        drop(ours);
    }
    assert!(!table.path("ledger.db").exists(), "nothing was done");
}

#[test]
fn a_broken_configuration_is_75_and_names_file_and_line() {
    let table = Table::with("[limits]\ndeadline_sec = 5\n");
    table
        .deliver(&["-d", SCUBA], MESSAGE)
        .is(75, "4.3.5 configuration: ")
        .says("onedrop.toml:")
        .says("deadline_secs");
    let table = Table::new();
    table
        .deliver(&["-d", SCUBA, "--config", "/nowhere/onedrop.toml"], MESSAGE)
        .is(75, "4.3.5 ")
        .says("/nowhere/onedrop.toml");
    let mut command = table.command(&["deliver", "-d", SCUBA]);
    command.env("ONEDROP__LOCK__WAIT_SECS", "soon");
    feed(command, MESSAGE).is(75, "4.3.5 ").says("ONEDROP__LOCK__WAIT_SECS");
    let table = Table::new();
    fs::write(&table.config, "").expect("configuration");
    table.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.5 the directory knows nobody");
}

#[test]
fn a_message_that_was_cut_is_75() {
    let table = Table::new();
    let whole = MESSAGE.len() + MESSAGE.iter().filter(|byte| **byte == b'\n').count();
    table.deliver(&["-d", SCUBA, "--size", &whole.to_string()], MESSAGE).is(0, "stored");
    let table = Table::new();
    // Postfix ends a message with a line end; one without, and shorter than stated, was cut.
    let half = MESSAGE.trim_ascii_end();
    table.deliver(&["-d", SCUBA, "--size", "10000"], half).is(75, "4.3.0 message was cut short");
    table
        .deliver(&["-d", SCUBA, "--size", "200000"], MESSAGE)
        .is(75, "4.3.0 message was cut short");
    table.deliver(&["-d", SCUBA], b"").is(75, "4.3.0 message was cut short");
    assert_eq!(table.mails(), 0);
    // The records that a real Postfix writes, line by line, and what may be missing of them.
    let long = [&b"A: b\n\n"[..], &[b'x'; 127], b"\n", &[b'x'; 128], b"\n", &[b'x'; 4096]];
    for (message, size) in
        [(&long.concat()[..], 6 + 2 + 129 + 131 + 2 * 2051 + 2), (&b"no line end"[..], 13)]
    {
        for (missing, status) in [(2048, 0), (2049, 75)] {
            let size = (size + missing).to_string();
            let end = table.deliver(&["-d", "doug@mail.axial.net", "--size", &size], message);
            end.is(status, if status == 0 { "" } else { "4.3.0 message was cut short" });
        }
    }
    // A milter took out a long field.
    table.deliver(&["-d", SCUBA, "--size", "10000"], MESSAGE).is(0, "stored");
}

#[test]
fn what_is_not_utf_8_in_an_envelope_keeps_no_mail_waiting() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let table = Table::new();
    let mut command = table.command(&["deliver", "-d", SCUBA, "-f"]);
    command.arg(OsStr::from_bytes(b"l\xefsa@gmail.com"));
    feed(command, MESSAGE).is(0, "stored account=scuba ");
}

/// A Sent that its own account cannot take is no reason to keep or to return a recipient's mail.
#[test]
fn an_authors_mailbox_decides_nothing_for_the_recipient() {
    for (peer, why) in
        [(Peer::NoAccount("bGlzYQ"), "AUTHENTICATIONFAILED"), (Peer::FullFor("Sent"), "OVERQUOTA")]
    {
        let table = imap(peer, BOUNCING);
        let end = table.deliver(&["-d", SCUBA], MESSAGE);
        end.is(0, "stored account=scuba mailbox=INBOX ")
            .says("no copy yet in account=lisa mailbox=Sent, kept for later")
            .says(why);
    }
}

/// local(8) limits the size of files: that is an error like any other, not a death without a word.
#[test]
fn a_limit_on_the_size_of_files_is_75() {
    let table = Table::new();
    let limited = format!("ulimit -f 100; exec {} deliver -d {SCUBA}", onedrop_path().display());
    let mut command = Command::new("sh");
    command.args(["-c", &limited]).env("ONEDROP_CONFIG", &table.config);
    let big = [MESSAGE, &vec![b'x'; 200_000]].concat();
    feed(command, &big).is(75, "4.");
    table.deliver(&["-d", SCUBA], &big).is(0, "stored account=scuba");
}

/// A stand-in for pipe(8): writes half a message and dies, while the delivery goes on and sees a
/// clean end of file.
#[test]
fn when_the_writer_is_killed_half_a_message_is_not_delivered() {
    for shell_between in [false, true] {
        let table = Table::new();
        let out = table.path("out");
        let half = table.path("half");
        fs::write(&half, &MESSAGE[..MESSAGE.len() / 2]).expect("half");
        let deliver = format!(
            "{} deliver -d {SCUBA} >{} 2>&1; echo \"status $?\" >>{}",
            onedrop_path().display(),
            out.display(),
            out.display()
        );
        // The parent writes half of the message, waits until that is read, and is killed without a
        // word.
        let deliver = if shell_between {
            format!("sh -c '{deliver}; true'")
        } else {
            format!("exec sh -c '{deliver}'")
        };
        let script = format!(
            "import fcntl, os, signal, subprocess, termios, time\nr, w = os.pipe()\n\
             p = subprocess.Popen(['sh', '-c', {deliver:?}], stdin=r, start_new_session=True)\n\
             os.close(r)\nos.write(w, open({half:?}, 'rb').read())\n\
             while fcntl.ioctl(w, termios.FIONREAD, bytes(4)) != bytes(4): time.sleep(0.01)\n\
             os.kill(os.getpid(), signal.SIGKILL)\n"
        );
        let status = Command::new("python3")
            .args(["-c", &script])
            .env("ONEDROP_CONFIG", &table.config)
            .stdin(Stdio::null())
            .status()
            .expect("python3");
        assert_eq!(status.signal(), Some(9));
        let ended = || fs::read_to_string(&out).is_ok_and(|text| text.contains("status "));
        assert!(wait_until(Duration::from_secs(20), ended), "the delivery does not end");
        let said = fs::read_to_string(&out).expect("output");
        assert!(said.starts_with("4.3.0 message was cut short"), "{said:?}");
        assert!(said.ends_with("status 75\n"), "{said:?}");
        assert_eq!(table.mails(), 0);
    }
}

#[test]
fn a_message_that_never_ends_is_75_at_the_deadline() {
    let table = Table::with("[limits]\ndeadline_secs = 2\nanswer_secs = 1\n[lock]\nwait_secs = 0");
    let mut command = table.command(&["deliver", "-d", SCUBA]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("binary");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(MESSAGE).expect("message");
    let output = child.wait_with_output().expect("end");
    assert_eq!(output.status.code(), Some(75));
    assert!(output.stdout.starts_with(b"4.3.0 deadline of 2 s passed"), "{output:?}");
    drop(stdin);
    assert_eq!(table.mails(), 0);
}

#[test]
fn a_full_or_closed_output_changes_nothing() {
    let table = Table::new();
    // A full, non-blocking pipe, as pipe(8)'s may be.
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("fcntl");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    let status = run_with_output(&table, writer.into());
    assert_eq!(status.code(), Some(0));
    drop(reader);
    // A full, blocking pipe whose reader does not read.
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("fcntl");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).expect("fcntl");
    assert_eq!(run_with_output(&table, writer.into()).code(), Some(0));
    drop(reader);
    // A pipe whose reader is gone, and no output at all.
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    assert_eq!(run_with_output(&table, writer.into()).code(), Some(0));
    let closed = format!("exec {} deliver -d {SCUBA} >&- 2>&-", onedrop_path().display());
    let mut command = Command::new("sh");
    command.args(["-c", &closed]).env("ONEDROP_CONFIG", &table.config);
    command.stdin(File::open(message_file(&table)).expect("message"));
    assert_eq!(command.status().expect("sh").code(), Some(0));
    assert_eq!(table.mails(), 2);
}

fn message_file(table: &Table) -> PathBuf {
    let path = table.path("message");
    fs::write(&path, MESSAGE).expect("message");
    path
}

fn run_with_output(table: &Table, out: Stdio) -> ExitStatus {
    let mut command = table.command(&["deliver", "-d", SCUBA]);
    command
        .stdin(File::open(message_file(table)).expect("message"))
        .stdout(out)
        .stderr(Stdio::null());
    command.status().expect("binary")
}

#[test]
fn a_ledger_that_cannot_be_used_is_75() {
    let table = Table::new();
    fs::write(
        table.path("ledger.db"),
        b"this is no database, and longer than a header of one hundred bytes would be, by far",
    )
    .expect("file");
    table.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 ledger: ");
    let table = Table::with("ledger.url = \"sqlite:///proc/nowhere/ledger.db\"\n");
    table.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 ledger: ").says("/proc/nowhere");
}

#[test]
fn a_ledger_of_another_version_is_75_and_says_so() {
    let table = Table::new();
    table.deliver(&["-d", SCUBA], MESSAGE).is(0, "stored");
    let database = rusqlite::Connection::open(table.path("ledger.db")).expect("ledger");
    database.execute("UPDATE onedrop_ledger SET version = 99", []).expect("row");
    table
        .deliver(&["-d", "doug@mail.axial.net"], MESSAGE)
        .is(75, "4.3.5 ledger: has schema version 99");
    assert_eq!(table.mails(), 2);
}

#[test]
fn a_store_that_cannot_be_written_is_75_and_later_0() {
    let table = Table::new();
    fs::write(table.path("mail"), b"a file where a folder should be").expect("file");
    table.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 store: ");
    fs::remove_file(table.path("mail")).expect("file");
    table.deliver(&["-d", SCUBA], MESSAGE).is(0, "stored account=scuba");
    let table =
        Table::with("[store]\nurl = \"maildir:///proc/nowhere\"\ncreate_mailboxes = false\n");
    table.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 store: ").says("create_mailboxes");
}

/// A small tmpfs, full: under the store, then under the ledger.
#[test]
fn a_full_disk_is_75_and_later_0() {
    for under_ledger in [false, true] {
        let table = Table::new();
        let folder = table.path("disk");
        let disk = SmallDisk::mount(&folder, "2m", "root");
        let at = folder.display();
        let table = if under_ledger {
            Table::with(&format!("ledger.url = \"sqlite://{at}/ledger.db\"\n"))
        } else {
            Table::with(&format!("store.url = \"maildir://{at}/mail\"\n"))
        };
        table.deliver(&["-d", "warmup@mail.axial.net"], b"Subject: warm-up\n\n").is(0, "stored");
        disk.fill();
        let big = [MESSAGE, &vec![b'x'; 200_000]].concat();
        table.deliver(&["-d", SCUBA], &big).is(75, "4.3.0 ").says(if under_ledger {
            "full"
        } else {
            "No space left"
        });
        disk.make_room();
        table.deliver(&["-d", SCUBA], &big).is(0, "stored account=scuba");
    }
}

/// An IMAP server at this port.
fn store_at(port: u16) -> String {
    format!("[store]\nurl = \"imap://127.0.0.1:{port}\"\npassword_file = \"$PASSWORD\"\n")
}

/// A Postgres at this port.
fn ledger_at(port: u16, query: &str) -> String {
    format!("ledger.url = \"postgres://onedrop@127.0.0.1:{port}/onedrop{query}\"\n")
}

fn imap(peer: Peer, more: &str) -> Table {
    let table = Table::with(&format!("{}{more}", store_at(peer::start(peer))));
    // No delivery of these looks.
    table.site.remember_for_ever();
    table
}

const SHORT: &str = "[limits]\ndeadline_secs = 4\nanswer_secs = 2\n[lock]\nwait_secs = 0";
/// To be added to a store.
const BOUNCING: &str =
    "over_quota = \"bounce\"\n[limits]\ndeadline_secs = 4\nanswer_secs = 2\n[lock]\nwait_secs = 0";

#[test]
fn an_imap_server_that_fails_is_75() {
    let ok = "OK [APPENDUID 1 7] done";
    imap(Peer::Append(ok), SHORT)
        .deliver(&["-d", SCUBA], MESSAGE)
        .is(0, "stored account=scuba mailbox=INBOX uid=7");
    let cases = [
        (Peer::Closes, "4.3.0 store: "),
        (Peer::Endless, "4.3.0 store: "),
        (Peer::WrongPassword, "4.3.0 store: "),
        (Peer::ClosesInLiteral, "4.3.0 store: "),
        (Peer::Append("NO some reason"), "4.3.0 store: "),
        (Peer::Append("NO [OVERQUOTA] full"), "4.2.2 store: over quota"),
        (Peer::Append("NO [TOOBIG] too big"), "4.2.3 store: message too big"),
        (Peer::Append("BAD what"), "4.3.0 store: "),
    ];
    for (peer, says) in cases {
        imap(peer, SHORT).deliver(&["-d", SCUBA], MESSAGE).is(75, says);
    }
    let nobody_listens = Table::with(&format!("{}{SHORT}", store_at(9)));
    nobody_listens.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 store: ");
}

/// What takes longest to open is opened while the message is still being read.
#[test]
fn the_stores_session_is_opened_before_the_message_has_ended() {
    let end = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
    let port = end.local_addr().expect("address").port();
    let table = Table::with(&format!("{}{SHORT}", store_at(port)));
    let mut child = table
        .command(&["deliver", "-d", SCUBA])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("binary");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(&MESSAGE[..10]).expect("a beginning");
    end.set_nonblocking(true).expect("an option");
    let is_called = wait_until(Duration::from_secs(20), || end.accept().is_ok());
    assert!(is_called, "no connection while the message is being read");
    drop(stdin);
    assert_eq!(child.wait().expect("end").code(), Some(75));
}

#[test]
fn over_quota_bounces_only_by_configuration() {
    let table = imap(Peer::Append("NO [OVERQUOTA] full"), BOUNCING);
    table.deliver(&["-d", SCUBA], MESSAGE).is(69, "5.2.2 store: over quota");
}

#[test]
fn a_server_that_hangs_is_75_before_the_deadline_is_over() {
    let silent = peer::start(Peer::Silent);
    let postgres = ledger_at(silent, "?sslmode=disable");
    let worlds = [
        imap(Peer::Silent, SHORT),
        imap(Peer::Append(""), SHORT),
        Table::with(&format!("{postgres}{SHORT}")),
    ];
    for table in worlds {
        let end = table.deliver(&["-d", SCUBA], MESSAGE);
        end.is(75, "4.3.0 ");
        assert!(
            end.took < Duration::from_secs(20),
            "the deadline of 4 s did not hold: {:?}",
            end.took
        );
    }
}

#[test]
fn a_postgres_that_is_not_there_is_75() {
    for query in ["", "?target_session_attrs=read-write"] {
        let table = Table::with(&format!("{}{SHORT}", ledger_at(9, query)));
        table.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 ledger: cannot be reached");
    }
}
