//! The contract with Postfix as a table of cases, each run through the real binary: what goes in,
//! the exit status and the first bytes of the output. Only 0, 67 and 69 may come beside 75.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

mod peer;

use peer::Peer;

const MESSAGE: &[u8] = include_bytes!("../../fixtures/mail/welcome.eml");
const SCUBA: &str = "scuba@mail.axial.net";

/// A folder with a configuration: SQLite and Maildir unless a section is replaced.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        World::with("", "", "")
    }

    /// `ledger` and `store` replace those sections' content; `more` is appended.
    fn with(ledger: &str, store: &str, more: &str) -> World {
        let dir = tempfile::tempdir().expect("folder");
        let at = dir.path().display().to_string();
        let ledger = if ledger.is_empty() {
            format!("url = \"sqlite://{at}/ledger.db\"")
        } else {
            ledger.to_owned()
        };
        let store = if store.is_empty() {
            format!("url = \"maildir://{at}/mail\"")
        } else {
            store.to_owned()
        };
        let password = dir.path().join("password");
        fs::write(&password, "geheim-geheim\n").expect("password");
        fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).expect("mode");
        let store = store.replace("$PASSWORD", &password.display().to_string());
        let ledger = ledger.replace("$PASSWORD", &password.display().to_string());
        let text = format!(
            "[ledger]\n{ledger}\n[store]\n{store}\n[directory]\ndomains = [\"mail.axial.net\"]\naccounts = {{ \"lisa@gmail.com\" = \"lisa\" }}\n[sent]\ntrust = \"authenticated\"\nauthserv_id = \"mail.axial.net\"\n{more}\n"
        );
        fs::write(dir.path().join("onedrop.toml"), text).expect("configuration");
        World { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onedrop"));
        command.args(args).env("ONEDROP_CONFIG", self.path("onedrop.toml")).stdin(Stdio::null());
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

/// How a run ended.
struct End {
    status: ExitStatus,
    out: String,
    took: Duration,
}

impl End {
    #[track_caller]
    fn is(&self, status: i32, out: &str) -> &End {
        assert_eq!(
            self.status.code(),
            Some(status),
            "signal {:?}, output {:?}",
            self.status.signal(),
            self.out
        );
        assert!(self.out.starts_with(out), "{:?} does not start with {out:?}", self.out);
        assert!(!self.out.contains("geheim"), "a password shows: {:?}", self.out);
        assert!(self.out.lines().count() <= 1 || status == 0, "more than one line: {:?}", self.out);
        self
    }

    #[track_caller]
    fn says(&self, text: &str) -> &End {
        assert!(self.out.contains(text), "{:?} does not say {text:?}", self.out);
        self
    }
}

/// Runs `command` with `message` on a pipe; stdout and stderr are one pipe, as Postfix has it.
fn feed(mut command: Command, message: &[u8]) -> End {
    let (mut reader, writer) = std::io::pipe().expect("pipe");
    command.stdin(Stdio::piped()).stdout(writer.try_clone().expect("pipe")).stderr(writer);
    let started = Instant::now();
    let mut child = command.spawn().expect("binary");
    drop(command);
    let mut stdin = child.stdin.take().expect("stdin");
    let message = message.to_vec();
    // As Postfix: a command that does not read everything is none of the writer's business.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&message)));
    let mut out = Vec::new();
    reader.read_to_end(&mut out).expect("output");
    let status = child.wait().expect("status");
    feeder.join().expect("feeder");
    End { status, out: String::from_utf8_lossy(&out).into_owned(), took: started.elapsed() }
}

#[test]
fn delivered_is_0_and_says_where() {
    let world = World::new();
    world
        .deliver(&["-d", SCUBA, "-f", "lisa@gmail.com"], MESSAGE)
        .is(0, "stored account=scuba mailbox=INBOX ");
    world.deliver(&["-d", SCUBA], MESSAGE).is(0, "already there account=scuba mailbox=INBOX ");
    world
        .deliver(&["-d", "doug@mail.axial.net"], MESSAGE)
        .is(0, "stored account=doug ")
        .says("already there account=lisa");
    assert_eq!(world.mails(), 3);
}

#[test]
fn the_recipient_comes_from_the_argument_the_environment_or_the_topmost_delivered_to() {
    let with_fields =
        [b"Return-Path: <lisa@gmail.com>\nDelivered-To: doug@mail.axial.net\nDelivered-To: forged@x\n", MESSAGE]
            .concat();
    let world = World::new();
    world.deliver(&[], &with_fields).is(0, "stored account=doug ");
    let mut command = world.command(&["deliver"]);
    command.env("RECIPIENT", "Otto+x@mail.axial.net");
    feed(command, &with_fields).is(0, "stored account=otto ");
    let mut command = world.command(&["deliver", "-d", SCUBA]);
    command.env("RECIPIENT", "otto@mail.axial.net");
    feed(command, &with_fields).is(0, "stored account=scuba ");
    world.deliver(&[], MESSAGE).is(75, "4.3.5 no recipient");
    world.deliver(&["-d", ""], MESSAGE).is(75, "4.3.5 no recipient");
    // local(8) turns odd characters of the environment into "_"; the field it writes has them.
    let odd = [b"Delivered-To: o'brien@mail.axial.net\n", MESSAGE].concat();
    for (recipient, account) in
        [("o_brien@mail.axial.net", "o'brien"), ("other@mail.axial.net", "other")]
    {
        let mut command = world.command(&["deliver"]);
        command.env("RECIPIENT", recipient);
        feed(command, &odd).is(0, &format!("stored account={account} "));
    }
}

#[test]
fn unknown_recipients_are_67() {
    let world = World::new();
    for unknown in ["nobody@elsewhere.example", "a/b@mail.axial.net", "..@mail.axial.net"] {
        world.deliver(&["-d", unknown], MESSAGE).is(67, "5.1.1 unknown recipient");
    }
    assert_eq!(world.mails(), 0);
}

/// With a recipient limit other than 1 Postfix hands over several, and what it hears counts for all
/// of them.
#[test]
fn several_recipients_are_told_of_one_by_one() {
    let world = World::new();
    let to = ["-d", SCUBA, "-d", "nobody@elsewhere.example", "-d", SCUBA, "--queue-id", "4First"];
    let end = world.deliver(&to, b"Subject: both\n\nbody\n");
    end.is(
        67,
        "5.1.1 <nobody@elsewhere.example>: unknown recipient nobody@elsewhere.example; <scuba@mail.axial.net>: stored ",
    );
    assert_eq!(world.mails(), 1);
    assert_eq!(
        world.attempts("4First"),
        [
            (SCUBA.to_owned(), "delivered 2.0.0".to_owned(), true),
            ("nobody@elsewhere.example".to_owned(), "permfail 5.1.1".to_owned(), false)
        ]
    );

    // One that can be tried again wins; the others have their mail, once.
    fs::write(world.path("mail/ghost"), b"a file where a folder should be").expect("file");
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
    let end = world.deliver(&to, message);
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
    let mut attempts = world.attempts("4Second");
    attempts.sort_by_key(|(recipient, _, _)| {
        expected.iter().position(|(other, _, _)| other == recipient)
    });
    assert_eq!(attempts, expected);
    fs::remove_file(world.path("mail/ghost")).expect("file");
    let end = world.deliver(&to, message);
    end.is(67, "5.1.1 <nobody@elsewhere.example>: ")
        .says("already there account=scuba")
        .says("stored account=ghost");
    assert_eq!(world.mails(), 3);
    // All the same: said once, as for one.
    let end = world.deliver(&["-d", "a@elsewhere.example", "-d", "b@elsewhere.example"], message);
    end.is(67, "5.1.1 <a@elsewhere.example>: unknown recipient a@elsewhere.example; <b@elsewhere.example>: unknown ");
}

#[test]
fn a_message_over_the_configured_limit_is_69() {
    let world = World::with("", "", "[limits]\nmessage_bytes = 500");
    world.deliver(&["-d", SCUBA], MESSAGE).is(69, "5.3.4 ");
    world.deliver(&["-d", SCUBA], b"Subject: short\n\nbody\n").is(0, "stored");
}

#[test]
fn what_is_not_understood_on_the_command_line_is_75() {
    let world = World::new();
    let cases: [&[&str]; 8] = [
        &["--bogus"],
        &["delivr"],
        &["deliver", "--bogus"],
        &["deliver", "-d"],
        &["deliver", "-d", SCUBA, "--size", "many"],
        &["deliver", "-d", SCUBA, "extra"],
        &["deliver", "--config"],
        &["trace"],
    ];
    for args in cases {
        feed(by_postfix(world.command(args)), MESSAGE).is(75, "4.3.5 usage: ");
    }
    // Whoever calls `deliver`.
    feed(world.command(&["deliver", "--queue-di", "4X"]), MESSAGE)
        .is(75, "4.3.5 usage: ")
        .says("'--queue-id'");
    assert_eq!(world.mails(), 0);
}

/// As pipe(8) and local(8) start a command.
fn by_postfix(mut command: Command) -> Command {
    command.env("MAIL_CONFIG", "/etc/postfix");
    command
}

#[test]
fn a_command_that_delivers_nothing_does_not_eat_a_message_of_postfix() {
    let world = World::new();
    let listen = format!("unix:{}", world.path("socket").display());
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
        let end = feed(by_postfix(world.command(args)), MESSAGE);
        end.is(75, "4.3.5 this command delivers nothing").says("onedrop deliver");
        // Also where the message is still to come, and where a socket stands in for the pipe.
        let (ours, stdin) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut command = by_postfix(world.command(args));
        let output = command.stdin(std::os::fd::OwnedFd::from(stdin)).output().expect("binary");
        assert_eq!(output.status.code(), Some(75), "{args:?}: {output:?}");
        drop(ours);
    }
    assert!(!world.path("ledger.db").exists(), "nothing was done");
}

#[test]
fn a_broken_configuration_is_75_and_names_file_and_line() {
    let world = World::with("", "", "[limits]\ndeadline_sec = 5\n");
    world
        .deliver(&["-d", SCUBA], MESSAGE)
        .is(75, "4.3.5 configuration: ")
        .says("onedrop.toml:")
        .says("deadline_secs");
    let world = World::new();
    world
        .deliver(&["-d", SCUBA, "--config", "/nowhere/onedrop.toml"], MESSAGE)
        .is(75, "4.3.5 ")
        .says("/nowhere/onedrop.toml");
    let mut command = world.command(&["deliver", "-d", SCUBA]);
    command.env("ONEDROP__LOCK__WAIT_SECS", "soon");
    feed(command, MESSAGE).is(75, "4.3.5 ").says("ONEDROP__LOCK__WAIT_SECS");
    let world = World::with("", "", "");
    fs::write(world.path("onedrop.toml"), "").expect("configuration");
    world.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.5 the directory knows nobody");
}

#[test]
fn a_message_that_was_cut_is_75() {
    let world = World::new();
    let whole = MESSAGE.len() + MESSAGE.iter().filter(|byte| **byte == b'\n').count();
    world.deliver(&["-d", SCUBA, "--size", &whole.to_string()], MESSAGE).is(0, "stored");
    let world = World::new();
    // Postfix ends a message with a line end; one without, and shorter than stated, was cut.
    let half = MESSAGE.trim_ascii_end();
    world.deliver(&["-d", SCUBA, "--size", "10000"], half).is(75, "4.3.0 message was cut short");
    world
        .deliver(&["-d", SCUBA, "--size", "200000"], MESSAGE)
        .is(75, "4.3.0 message was cut short");
    world.deliver(&["-d", SCUBA], b"").is(75, "4.3.0 message was cut short");
    assert_eq!(world.mails(), 0);
    // A milter took out a long field.
    world.deliver(&["-d", SCUBA, "--size", "10000"], MESSAGE).is(0, "stored");
}

#[test]
fn what_is_not_utf_8_in_an_envelope_keeps_no_mail_waiting() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let mut command = world.command(&["deliver", "-d", SCUBA, "-f"]);
    command.arg(OsStr::from_bytes(b"l\xefsa@gmail.com"));
    feed(command, MESSAGE).is(0, "stored account=scuba ");
}

/// A Sent that its own account cannot take is no reason to keep or to return a recipient's mail.
#[test]
fn an_authors_mailbox_decides_nothing_for_the_recipient() {
    for (peer, why) in
        [(Peer::NoAccount("bGlzYQ"), "AUTHENTICATIONFAILED"), (Peer::FullFor("Sent"), "OVERQUOTA")]
    {
        let world = imap(peer, SHORT);
        let path = world.path("onedrop.toml");
        let text = fs::read_to_string(&path).expect("configuration");
        fs::write(&path, text.replace("[store]", "[store]\nover_quota = \"bounce\""))
            .expect("configuration");
        let end = world.deliver(&["-d", SCUBA], MESSAGE);
        end.is(0, "stored account=scuba mailbox=INBOX ")
            .says("no copy yet in account=lisa mailbox=Sent, kept for later")
            .says(why);
    }
}

/// local(8) limits the size of files: that is an error like any other, not a death without a word.
#[test]
fn a_limit_on_the_size_of_files_is_75() {
    let world = World::new();
    let limited =
        format!("ulimit -f 100; exec {} deliver -d {SCUBA}", env!("CARGO_BIN_EXE_onedrop"));
    let mut command = Command::new("sh");
    command.args(["-c", &limited]).env("ONEDROP_CONFIG", world.path("onedrop.toml"));
    let big = [MESSAGE, &vec![b'x'; 200_000]].concat();
    feed(command, &big).is(75, "4.");
    world.deliver(&["-d", SCUBA], &big).is(0, "stored account=scuba");
}

/// A stand-in for pipe(8): writes half a message and dies, while the delivery goes on and sees a
/// clean end of file.
#[test]
fn when_the_writer_is_killed_half_a_message_is_not_delivered() {
    for shell_between in [false, true] {
        let world = World::new();
        let out = world.path("out");
        let half = world.path("half");
        fs::write(&half, &MESSAGE[..MESSAGE.len() / 2]).expect("half");
        let deliver = format!(
            "{} deliver -d {SCUBA} >{} 2>&1; echo \"status $?\" >>{}",
            env!("CARGO_BIN_EXE_onedrop"),
            out.display(),
            out.display()
        );
        let fifo = world.path("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("fifo");
        // The parent starts the delivery with the fifo as its input, writes half, and is killed
        // without a word.
        let deliver = if shell_between {
            format!("sh -c '{deliver}; true'")
        } else {
            format!("exec sh -c '{deliver}'")
        };
        let script = format!(
            "import os, signal, subprocess, sys, time\nr, w = os.pipe()\np = subprocess.Popen(['sh', '-c', {deliver:?}], stdin=r, start_new_session=True)\nos.close(r)\nos.write(w, open({half:?}, 'rb').read())\ntime.sleep(1)\nos.kill(os.getpid(), signal.SIGKILL)\n"
        );
        let status = Command::new("python3")
            .args(["-c", &script])
            .env("ONEDROP_CONFIG", world.path("onedrop.toml"))
            .stdin(Stdio::null())
            .status()
            .expect("python3");
        assert_eq!(status.signal(), Some(9));
        let ended = || fs::read_to_string(&out).is_ok_and(|text| text.contains("status "));
        let limit = Instant::now() + Duration::from_secs(20);
        while !ended() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = fs::read_to_string(&out).expect("output");
        assert!(said.starts_with("4.3.0 message was cut short"), "{said:?}");
        assert!(said.ends_with("status 75\n"), "{said:?}");
        assert_eq!(world.mails(), 0);
    }
}

#[test]
fn a_message_that_never_ends_is_75_at_the_deadline() {
    let world =
        World::with("", "", "[limits]\ndeadline_secs = 2\nanswer_secs = 1\n[lock]\nwait_secs = 0");
    let mut command = world.command(&["deliver", "-d", SCUBA]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("binary");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(MESSAGE).expect("message");
    let output = child.wait_with_output().expect("end");
    assert_eq!(output.status.code(), Some(75));
    assert!(output.stdout.starts_with(b"4.3.0 deadline of 2 s passed"), "{output:?}");
    drop(stdin);
    assert_eq!(world.mails(), 0);
}

#[test]
fn a_full_or_closed_output_changes_nothing() {
    let world = World::new();
    // A full, non-blocking pipe, as pipe(8)'s may be.
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("fcntl");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    let status = run_with_output(&world, writer.into());
    assert_eq!(status.code(), Some(0));
    drop(reader);
    // A full, blocking pipe that nobody reads.
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("fcntl");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).expect("fcntl");
    assert_eq!(run_with_output(&world, writer.into()).code(), Some(0));
    drop(reader);
    // A pipe whose reader is gone, and no output at all.
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    assert_eq!(run_with_output(&world, writer.into()).code(), Some(0));
    let closed = format!("exec {} deliver -d {SCUBA} >&- 2>&-", env!("CARGO_BIN_EXE_onedrop"));
    let mut command = Command::new("sh");
    command.args(["-c", &closed]).env("ONEDROP_CONFIG", world.path("onedrop.toml"));
    command.stdin(File::open(message_file(&world)).expect("message"));
    assert_eq!(command.status().expect("sh").code(), Some(0));
    assert_eq!(world.mails(), 2);
}

fn message_file(world: &World) -> PathBuf {
    let path = world.path("message");
    fs::write(&path, MESSAGE).expect("message");
    path
}

fn run_with_output(world: &World, out: Stdio) -> ExitStatus {
    let mut command = world.command(&["deliver", "-d", SCUBA]);
    command
        .stdin(File::open(message_file(world)).expect("message"))
        .stdout(out)
        .stderr(Stdio::null());
    command.status().expect("binary")
}

#[test]
fn a_ledger_that_cannot_be_used_is_75() {
    let world = World::new();
    fs::write(
        world.path("ledger.db"),
        b"this is no database, and longer than a header of one hundred bytes would be, by far",
    )
    .expect("file");
    world.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 ledger: ");
    let world = World::with("url = \"sqlite:///proc/nowhere/ledger.db\"", "", "");
    world.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 ledger: ").says("/proc/nowhere");
}

#[test]
fn a_ledger_of_another_version_is_75_and_says_so() {
    let world = World::new();
    world.deliver(&["-d", SCUBA], MESSAGE).is(0, "stored");
    let database = rusqlite::Connection::open(world.path("ledger.db")).expect("ledger");
    database.execute("INSERT INTO onedrop_schema VALUES (99, 'later', x'00', 0)", []).expect("row");
    world
        .deliver(&["-d", "doug@mail.axial.net"], MESSAGE)
        .is(75, "4.3.5 ledger: has schema version 99");
    assert_eq!(world.mails(), 2);
}

#[test]
fn a_store_that_cannot_be_written_is_75_and_later_0() {
    let world = World::new();
    fs::write(world.path("mail"), b"a file where a folder should be").expect("file");
    world.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 store: ");
    fs::remove_file(world.path("mail")).expect("file");
    world.deliver(&["-d", SCUBA], MESSAGE).is(0, "stored account=scuba");
    let world = World::with("", "url = \"maildir:///proc/nowhere\"\ncreate_mailboxes = false", "");
    world.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 store: ").says("create_mailboxes");
}

/// A small tmpfs, full: under the store, then under the ledger.
#[test]
fn a_full_disk_is_75_and_later_0() {
    for under_ledger in [false, true] {
        let world = World::new();
        let disk = Disk::mount(&world.path("disk"));
        let at = disk.0.display();
        let world = if under_ledger {
            World::with(&format!("url = \"sqlite://{at}/ledger.db\""), "", "")
        } else {
            World::with("", &format!("url = \"maildir://{at}/mail\""), "")
        };
        world.deliver(&["-d", "warmup@mail.axial.net"], b"Subject: warm-up\n\n").is(0, "stored");
        let filler = disk.0.join("filler");
        let mut file = File::create(&filler).expect("filler");
        while file.write(&[0; 512]).is_ok_and(|n| n > 0) {}
        let big = [MESSAGE, &vec![b'x'; 200_000]].concat();
        world.deliver(&["-d", SCUBA], &big).is(75, "4.3.0 ").says(if under_ledger {
            "full"
        } else {
            "No space left"
        });
        drop(file);
        fs::remove_file(&filler).expect("filler");
        world.deliver(&["-d", SCUBA], &big).is(0, "stored account=scuba");
    }
}

struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path) -> Disk {
        fs::create_dir(at).expect("folder");
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(at).status();
        assert!(status.is_ok_and(|status| status.success()), "mounting a tmpfs needs root");
        Disk(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn imap(peer: Peer, more: &str) -> World {
    let port = peer::start(peer);
    let store = format!(
        "url = \"imap://127.0.0.1:{port}\"\nstarttls = false\npassword_file = \"$PASSWORD\""
    );
    World::with("", &store, more)
}

const SHORT: &str = "[limits]\ndeadline_secs = 4\nanswer_secs = 2\n[lock]\nwait_secs = 0";

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
    let nobody_listens = World::with(
        "",
        "url = \"imap://127.0.0.1:9\"\nstarttls = false\npassword_file = \"$PASSWORD\"",
        SHORT,
    );
    nobody_listens.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 store: ");
}

/// Both ends are called while the message is still being read.
#[test]
fn connections_are_opened_before_the_message_has_ended() {
    let ends = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("port"));
    let [ledger, store] = [0, 1].map(|n: usize| ends[n].local_addr().expect("address").port());
    let ledger = format!("url = \"postgres://onedrop@127.0.0.1:{ledger}/onedrop?sslmode=disable\"");
    let store = format!(
        "url = \"imap://127.0.0.1:{store}\"\nstarttls = false\npassword_file = \"$PASSWORD\""
    );
    let world = World::with(&ledger, &store, SHORT);
    let mut child = world
        .command(&["deliver", "-d", SCUBA])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("binary");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(&MESSAGE[..10]).expect("a beginning");
    for end in &ends {
        end.set_nonblocking(true).expect("an option");
        let limit = Instant::now() + Duration::from_secs(20);
        while end.accept().is_err() {
            assert!(Instant::now() < limit, "nobody connects while the message is being read");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    drop(stdin);
    assert_eq!(child.wait().expect("end").code(), Some(75));
}

#[test]
fn over_quota_bounces_only_by_configuration() {
    let world = imap(Peer::Append("NO [OVERQUOTA] full"), SHORT);
    let path = world.path("onedrop.toml");
    let text = fs::read_to_string(&path).expect("configuration");
    fs::write(&path, text.replace("[store]", "[store]\nover_quota = \"bounce\""))
        .expect("configuration");
    world.deliver(&["-d", SCUBA], MESSAGE).is(69, "5.2.2 store: over quota");
}

#[test]
fn a_server_that_hangs_is_75_before_the_deadline_is_over() {
    let silent = peer::start(Peer::Silent);
    let postgres =
        format!("url = \"postgres://onedrop@127.0.0.1:{silent}/onedrop?sslmode=disable\"");
    let worlds = [
        imap(Peer::Silent, SHORT),
        imap(Peer::Append(""), SHORT),
        World::with(&postgres, "", SHORT),
    ];
    for world in worlds {
        let end = world.deliver(&["-d", SCUBA], MESSAGE);
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
        let world = World::with(
            &format!("url = \"postgres://onedrop@127.0.0.1:9/onedrop{query}\""),
            "",
            SHORT,
        );
        world.deliver(&["-d", SCUBA], MESSAGE).is(75, "4.3.0 ledger: cannot be reached");
    }
}
