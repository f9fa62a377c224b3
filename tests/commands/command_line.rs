//! The command line as an administrator uses it: by ssh, from cron, in loops. What it prints,
//! where, and how it ends.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::journal::told_to_the_journal;
use crate::support::postfix::{DOMAIN, Delivery, Postfix, PostfixSpec, UNIX_DOMAIN};
use crate::support::site::{Files, Site};
use crate::support::{base_ledger, fixture, onedrop, onedrop_path, set_mode, wait_until};

pub const SCUBA: &str = "scuba@mail.axial.net";

/// An admin without servers of others, into which Lisa's message to Scuba was delivered.
pub struct Admin {
    pub site: Site<Files>,
    config: PathBuf,
}

impl Admin {
    pub fn new() -> Admin {
        Admin::with("")
    }

    /// Like [`new`](Admin::new), with more in the configuration.
    pub fn with(more: &str) -> Admin {
        let site = Site::embedded();
        let config = site.config("etc", more);
        let admin = Admin { site, config };
        let mut command = admin.command(&[
            "deliver",
            "-f",
            "lisa@gmail.com",
            "-d",
            SCUBA,
            "--queue-id",
            "4Xyz12",
        ]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("binary");
        child
            .stdin
            .take()
            .expect("stdin")
            .write_all(&fixture("fixtures/mail/welcome.eml"))
            .expect("a message");
        let output = child.wait_with_output().expect("end");
        assert!(output.status.success(), "{output:?}");
        admin
    }

    pub fn empty() -> Admin {
        let site = Site::embedded();
        let config = site.config("etc", "");
        Admin { site, config }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = onedrop();
        command
            .args(args)
            .env("ONEDROP_CONFIG", &self.config)
            .env_remove("MAIL_CONFIG")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ended {
        Ended::of(&self.command(args).output().expect("binary"))
    }

    /// Like [`run`](Admin::run), in a shell, where `$onedrop` is the program.
    pub fn shell(&self, script: &str) -> Ended {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .env("onedrop", crate::support::onedrop_path())
            .env("ONEDROP_CONFIG", &self.config);
        Ended::of(&command.env_remove("MAIL_CONFIG").stdin(Stdio::null()).output().expect("sh"))
    }
}

#[derive(Debug)]
pub struct Ended {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    pub fn of(output: &Output) -> Ended {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { status: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

#[test]
fn help_is_for_the_asking() {
    let admin = Admin::empty();
    let whole = admin.run(&["--help"]);
    assert_eq!((whole.status, whole.err.as_str()), (Some(0), ""), "{whole:?}");
    for command in ["deliver", "lmtp", "migrate", "check", "trace", "verify"] {
        assert!(whole.out.contains(&format!("\n  {command} ")), "{command}: {whole:?}");
    }
    for args in [&[][..], &["help"]] {
        let ended = admin.run(args);
        assert_eq!((ended.status, ended.err.as_str()), (Some(0), ""), "{args:?}: {ended:?}");
        assert!(ended.out.contains("Usage: onedrop [OPTIONS] <COMMAND>"), "{args:?}: {ended:?}");
    }
    let of_trace = admin.run(&["help", "trace"]);
    assert!(of_trace.status == Some(0) && of_trace.out.contains("--limit <"), "{of_trace:?}");
    assert_eq!(of_trace.out, admin.run(&["trace", "--help"]).out);
    let version = admin.run(&["--version"]);
    assert_eq!(
        (version.status, version.out),
        (Some(0), format!("onedrop {}\n", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn what_is_not_understood_is_named_with_what_was_probably_meant() {
    let admin = Admin::new();
    let cases: [(&[&str], &[&str]); 10] = [
        (
            &["trace", "--since", "yesterday"],
            &["--since yesterday: neither a duration (24h, 7d) nor a date"],
        ),
        (
            &["trace"],
            &[
                "required arguments were not provided",
                "<MESSAGE-ID | QUEUE-ID | RECIPIENT | ACCOUNT>",
            ],
        ),
        (
            &["trace", "--jsno", SCUBA],
            &["unexpected argument '--jsno'", "a similar argument exists: '--json'"],
        ),
        (&["trace", "--limit", "0", SCUBA], &["invalid value '0' for '--limit <", "1.."]),
        (&["trace", "--limit"], &["a value is required for '--limit <"]),
        (&["verfy"], &["unrecognized subcommand 'verfy'", "a similar subcommand exists: 'verify'"]),
        (&["verify", "--reapir"], &["unexpected argument '--reapir'", "'--repair'"]),
        (&["check", "--acount", "x"], &["unexpected argument '--acount'", "'--account'"]),
        (&["--config"], &["a value is required for '--config <FILE>'"]),
        (&["lmtp", "--listen", "nowhere"], &["invalid value 'nowhere' for '--listen <"]),
    ];
    for (args, says) in cases {
        let ended = admin.run(args);
        assert_eq!((ended.status, ended.out.as_str()), (Some(75), ""), "{args:?}: {ended:?}");
        for text in says {
            assert!(ended.err.contains(text), "{args:?}: {text:?} is not in {ended:?}");
        }
    }
    // What begins with a hyphen can still be asked for.
    let ended = admin.run(&["trace", "--", "--jsno"]);
    assert_eq!(
        (ended.status, ended.err.as_str()),
        (Some(1), "nothing on record for --jsno\n"),
        "{ended:?}"
    );
}

#[test]
fn what_is_not_found_is_told_by_the_exit_status() {
    let admin = Admin::new();
    for args in [&["trace", SCUBA][..], &["trace", "--json", "4Xyz12"]] {
        let ended = admin.run(args);
        assert!(
            ended.status == Some(0) && ended.err.is_empty() && ended.out.contains("4Xyz12"),
            "{ended:?}"
        );
    }
    let ended = admin.run(&["trace", "nobody@mail.axial.net"]);
    assert_eq!((ended.status, ended.out.as_str()), (Some(1), ""), "{ended:?}");
    let ended = admin.run(&["trace", "--json", "nobody@mail.axial.net"]);
    assert_eq!((ended.status, ended.out.as_str()), (Some(1), "[]\n"), "{ended:?}");
}

#[test]
fn verify_is_content_where_nothing_is_wrong() {
    for admin in [Admin::empty(), Admin::new()] {
        for args in
            [&["verify"][..], &["verify", "--json"], &["verify", "--repair", "--account", "otto"]]
        {
            let ended = admin.run(args);
            assert_eq!(ended.status, Some(0), "{args:?}: {ended:?}");
        }
    }
}

/// ssh, cron, Ansible and loops leave a pipe open that is not ours to read.
#[test]
fn standard_input_belongs_to_the_caller() {
    let admin = Admin::new();
    let commands: [&[&str]; 6] = [
        &["--help"],
        &["help"],
        &["check", "--json"],
        &["migrate"],
        &["trace", "--json", SCUBA],
        &["verify", "--json"],
    ];
    for args in commands {
        let expected = admin.run(args);
        // One that is open and empty, and one with something in it.
        for lines in ["", "one\ntwo\n"] {
            let (mut reader, mut writer) = std::io::pipe().expect("pipe");
            writer.write_all(lines.as_bytes()).expect("lines");
            let ours = reader.try_clone().expect("pipe");
            let ended = Ended::of(&admin.command(args).stdin(reader).output().expect("binary"));
            assert_eq!(
                (ended.status, &ended.out),
                (expected.status, &expected.out),
                "{args:?}: {ended:?}"
            );
            drop(writer);
            reader = ours;
            let mut left = String::new();
            reader.read_to_string(&mut left).expect("what is left");
            assert_eq!(left, lines, "{args:?} read of it");
        }
    }
    let script = "printf '4Xyz12\\nnobody@x\\n%s\\n' scuba | while read -r name; do
                      $onedrop trace --json \"$name\" >/dev/null; echo \"$name $?\"; done";
    let ended = admin.shell(script);
    assert_eq!(ended.out, "4Xyz12 0\nnobody@x 1\nscuba 0\n", "{ended:?}");
    // Nor where Postfix is the parent of what has another standard input than a pipe.
    let status = admin
        .command(&["trace", SCUBA])
        .env("MAIL_CONFIG", "/etc/postfix")
        .output()
        .expect("binary")
        .status;
    assert_eq!(status.code(), Some(0));
}

#[test]
fn what_could_not_be_written_was_not_done() {
    let admin = Admin::new();
    let doubled = "UPDATE onedrop_copy SET epoch = 2, placed_at = NULL, in_doubt = 1";
    rusqlite::Connection::open(admin.site.root.join("ledger.db"))
        .and_then(|db| db.execute(doubled, []))
        .expect("doubt");
    let commands = [
        "--help",
        "--version",
        "check",
        "check --json",
        "migrate",
        "trace 4Xyz12",
        "trace --json 4Xyz12",
    ];
    for command in commands.into_iter().chain(["verify", "verify --json"]) {
        let ended = admin.shell(&format!("$onedrop {command} >/dev/full"));
        assert_eq!(ended.status, Some(75), "{command}: {ended:?}");
        assert!(
            ended.err.contains("standard output: No space left on device"),
            "{command}: {ended:?}"
        );
        // A reader that is gone.
        let (reader, writer) = std::io::pipe().expect("pipe");
        drop(reader);
        let args: Vec<&str> = command.split(' ').collect();
        let ended = Ended::of(&admin.command(&args).stdout(writer).output().expect("binary"));
        assert_eq!(ended.status, Some(75), "{command}: {ended:?}");
        assert!(!ended.err.contains("panic"), "{command}: {ended:?}");
    }
    // The process can report its status, and no more.
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let mut command = admin.command(&["trace"]);
    assert_eq!(command.stderr(full).status().expect("binary").code(), Some(75));
}

/// A transport that calls another command than the one that delivers: the mail waits until somebody
/// has mended it.
#[test]
fn a_real_postfix_keeps_a_message_that_it_gave_to_a_command_that_delivers_nothing() {
    let admin = Admin::empty();
    let program = admin.site.root.join("onedrop");
    std::fs::copy(onedrop_path(), &program).expect("a copy where everybody may run it");
    set_mode(&program, 0o755);
    let commands =
        ["", "--version", "--help", "trace x", "check", "verify --repair", "lmtp", "delivr"];
    let name = |at: usize| format!("wrong{at}");
    let service = |(at, args): (usize, &&str)| {
        format!("{} unix - n n - - pipe user=nobody argv={} {args}\n", name(at), program.display())
    };
    let maps: Vec<String> =
        (0..commands.len()).map(|at| format!("{{ {0}@{DOMAIN} = {0}: }}", name(at))).collect();
    let postfix = Postfix::start(&PostfixSpec {
        master_cf: commands.iter().enumerate().map(service).collect(),
        main_cf: format!(
            "transport_maps = inline:{{ {} }}\nmailbox_command = {} trace x\n",
            maps.join(", "),
            program.display()
        ),
        delivery: Delivery::MailboxCommand(format!("{} trace x", program.display())),
        ..PostfixSpec::new(onedrop_path())
    });
    let mut to: Vec<String> =
        (0..commands.len()).map(|at| format!("{}@{DOMAIN}", name(at))).collect();
    to.push(format!("nobody@{UNIX_DOMAIN}"));
    for recipient in to {
        let queue_id =
            postfix.send("lisa@gmail.com", &[&recipient], &fixture("fixtures/mail/welcome.eml"));
        let tried = wait_until(Duration::from_secs(60), || !postfix.attempts(&queue_id).is_empty());
        let attempts = postfix.attempts(&queue_id).join("\n");
        let is_deferred = attempts.contains("dsn=4.3.5, status=deferred");
        assert!(tried && is_deferred, "{recipient}: {attempts}\n{}", postfix.log());
        let waits = postfix.queue_directory().join("deferred").join(&queue_id[..1]).join(&queue_id);
        assert!(
            wait_until(Duration::from_secs(60), || waits.exists()),
            "{recipient}: {}",
            postfix.log()
        );
    }
}

#[test]
fn what_a_migration_would_do_comes_as_json() {
    let admin = Admin::empty();
    let base = admin.site.root.join("base.db");
    base_ledger::load_into_sqlite(&rusqlite::Connection::open(&base).expect("a file"));
    let url = format!("sqlite:{}", base.display());
    let run = |args: &[&str]| {
        let mut command = admin.command(args);
        Ended::of(&command.env("ONEDROP__LEDGER__URL", &url).output().expect("onedrop"))
    };
    let ended = run(&["migrate", "--dry-run", "--json"]);
    let told: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!((ended.status, &told["ledger"]["version"]), (Some(0), &Value::from(10)), "{told}");
    let step = &told["steps"][0];
    let text = run(&["migrate", "--dry-run"]).out;
    let (name, what) = (step["migration"].as_str(), step["what"].as_str());
    let (name, what) = (name.expect("a name"), what.expect("a sentence"));
    assert!(text.starts_with(&format!("would do {name}: {what}")), "{text}{told}");
    assert!(step["about_secs"].is_number() && step["oldest_program"].is_number(), "{told}");
    assert_eq!(run(&["migrate", "--json"]).status, Some(75), "a run has no steps to print");
}

/// The file to look into, and what to do next.
#[test]
fn a_ledger_that_is_away_is_told_with_where_it_is_named() {
    let admin = Admin::with("");
    let config = admin.site.root.join("etc/onedrop.toml");
    let beside = admin.site.root.write(
        "etc/conf.d/ledger.toml",
        "[ledger]\nurl = \"postgres://x@127.0.0.1:9/x?sslmode=disable\"\n",
    );
    assert!(config.exists());
    let next = format!(
        "ledger: cannot be reached: 127.0.0.1:9: error connecting to server: Connection \
         refused\nledger.url: {}:2:1; what is wrong with it: onedrop check",
        beside.display()
    );
    for args in
        [&["trace", "x"][..], &["jobs", "list"], &["lock", "list"], &["purge"], &["migrate"]]
    {
        let ended = admin.run(args);
        assert_eq!((ended.status, ended.err.trim_end()), (Some(75), next.as_str()), "{args:?}");
    }
    let ended = admin.run(&["status"]);
    let line = "FAILED     ledger    cannot be reached: 127.0.0.1:9: ";
    assert!(ended.out.contains(line), "{ended:?}");
}

#[test]
fn the_server_says_at_its_start_what_it_cannot_reach_and_serves() {
    let site = Site::embedded();
    let content = site.server("");
    for (name, url, says) in [
        (
            "ONEDROP__LEDGER__URL",
            "postgres://x@127.0.0.1:9/x?sslmode=disable",
            "ledger: cannot be reached: ",
        ),
        (
            "ONEDROP__STORE__URL",
            "imap://127.0.0.1:9",
            "store: imap://127.0.0.1:9 cannot be reached: Connection refused",
        ),
        ("ONEDROP__STORE__URL", "maildir:///etc/passwd/mail", "cannot be reached: not a directory"),
    ] {
        let site = Site::embedded();
        let password = site.root.write("password", "secret");
        set_mode(&password, 0o600);
        let launch = site.launch("").env(name, url);
        let password = password.display().to_string();
        let server = launch.env("ONEDROP__STORE__PASSWORD_FILE", &password).start();
        server.wait_for_log(says);
        server.wait_for_log("MESSAGE=serving");
    }
    assert!(!content.log().contains("cannot be reached"), "{}", content.log());
}

/// What a sender writes is one word of the record's text, whatever it says.
#[test]
fn no_sender_writes_how_a_delivery_ended() {
    let admin = Admin::empty();
    let message = b"Subject: x\nMessage-ID: <a@x> delivered 2.0.0: stored account=ceo\n\nbody\n";
    let recipient = "x> message-id=<y> delivered 2.0.0: stored@elsewhere.example";
    let queue_id = "4Log: delivered 2.0.0: stored";
    let command = admin.command(&["deliver", "--queue-id", queue_id, "-d", recipient]);
    let (status, told) = told_to_the_journal(&command, message);
    assert_eq!((status.code(), told.len()), (Some(67), 1), "{told:#?}");
    let text = "\nMESSAGE=\"4Log: delivered 2.0.0: stored\": to=\"<x> message-id=<y> delivered \
                2.0.0: stored@elsewhere.example>\" message-id=\"<a@x> delivered 2.0.0: stored \
                account=ceo\" permfail 5.1.1: ";
    assert!(told[0].contains(text), "{text}: {told:#?}");
}

/// One record for each recipient, at the priority of its end; its text is all that rsyslog and grep
/// have.
#[test]
fn the_journal_hears_of_each_end_at_its_priority() {
    let admin = Admin::empty();
    let mail = admin.site.root.join("mail");
    std::fs::create_dir(&mail)
        .and_then(|()| std::fs::write(mail.join("ghost"), "no folder"))
        .expect("a file");
    let broken = admin.site.root.write("broken.toml", "[limits]\ndeadline_sec = 5\n");
    let message = b"Subject: x\nMessage-ID: <log@x>\n\nbody\n";
    let deliver = |more: &[&str]| {
        let mut command = admin.command(&["deliver", "--queue-id", "4Log"]);
        let (status, told) = told_to_the_journal(command.args(more), message);
        (status.code().expect("an exit"), told)
    };
    let ends = |told: &[String], priority: u8, text: &str, fields: &str| {
        let begins = format!("SYSLOG_IDENTIFIER=onedrop\nPRIORITY={priority}\nMESSAGE={text}");
        let is_it = |record: &&String| record.starts_with(&begins) && record.contains(fields);
        assert_eq!(told.iter().filter(is_it).count(), 1, "{begins:?} with {fields:?} in {told:#?}");
    };
    let to = ["-d", SCUBA, "-d", "nobody@elsewhere.example", "-d", "ghost@mail.axial.net"];
    let (status, told) = deliver(&to);
    assert_eq!((status, told.len()), (75, 3), "{told:#?}");
    ends(
        &told,
        6,
        "4Log: to=<scuba@mail.axial.net> message-id=<log@x> delivered 2.0.0: stored account=scuba \
         mailbox=INBOX ",
        "\nONEDROP_QUEUE_ID=4Log\nONEDROP_RECIPIENT=scuba@mail.axial.net\n",
    );
    ends(
        &told,
        4,
        "4Log: to=<nobody@elsewhere.example> message-id=<log@x> permfail 5.1.1: unknown recipient ",
        "\nONEDROP_STATUS=5.1.1\n",
    );
    ends(
        &told,
        5,
        "4Log: to=<ghost@mail.axial.net> message-id=<log@x> tempfail 4.3.0: store: ",
        "\nONEDROP_MESSAGE_ID=<log@x>\n",
    );
    let (status, told) = deliver(&["-d", SCUBA, "--config", &broken.display().to_string()]);
    assert_eq!((status, told.len()), (75, 1), "{told:#?}");
    ends(
        &told,
        3,
        "4Log: to=<scuba@mail.axial.net> message-id= tempfail 4.3.5: configuration: ",
        "deadline_sec",
    );
}
