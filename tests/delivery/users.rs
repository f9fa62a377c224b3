//! Deliveries by the users of the host themselves (`deliver --via`, `lmtp.users`): the server
//! decides by the process' user, which the kernel names, for whom it may deliver.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::journal::Journal;
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::site::{Files, Site};
use crate::support::trial::{End, Run};
use crate::support::{onedrop_path, set_mode, wait_until};

const MESSAGE: &[u8] = include_bytes!("../../fixtures/mail/welcome.eml");

/// Users that every Debian has, as accounts; and one who is an account and no user.
const DIRECTORY: &str = "
[directory]
domains = [\"mail.axial.net\"]
recipient_delimiter = \"+-\"
detail = \"mailbox\"
accounts = { \"games@mail.axial.net\" = \"games\", \"daemon@mail.axial.net\" = \"daemon\",
             \"www@mail.axial.net\" = \"www\", \"doug@mail.axial.net\" = \"doug\",
             \"lisa@gmail.com\" = \"lisa\", \"sales@mail.axial.net\" = \"games\" }
[sent]
trust = \"authenticated\"
authserv_id = \"mail.axial.net\"
";

struct Users {
    site: Site<Files>,
    program: PathBuf,
    server: Lmtp,
}

impl Users {
    fn new(more: &str) -> Users {
        Users::started(more, |launch| launch)
    }

    fn started(more: &str, by: impl FnOnce(Launch) -> Launch) -> Users {
        let site = Site::embedded();
        let users = format!("[lmtp]\nusers = \"$DIR/users.sock\"\n{more}");
        let server = by(site.launch(&format!("{DIRECTORY}{users}"))).start();
        let program = site.root.join("onedrop");
        fs::copy(onedrop_path(), &program).expect("a copy");
        set_mode(&program, 0o755);
        Users { site, program, server }
    }

    fn socket(&self) -> PathBuf {
        self.site.root.join("server/users.sock")
    }

    /// A command of this user, who can read nothing of ours.
    fn command(&self, user: &str, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]).arg(&self.program);
        command.arg("deliver").arg("--via").arg(self.socket()).args(args);
        command.env_remove("RECIPIENT").env_remove("SENDER");
        command
    }

    /// What the server answers to this, up to the end of the connection.
    fn answers(&self, user: &str, said: &str) -> String {
        let program = "use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0); \
                       connect(S, sockaddr_un($ARGV[0])) or die $!; \
                       syswrite(S, $ARGV[1]); print <S>;";
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        command.args(["/usr/bin/perl", "-e", program]).arg(self.socket()).arg(said);
        let output = command.output().expect("perl");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn deliver(&self, user: &str, args: &[&str], message: &[u8]) -> End {
        let mut run = Run::start(self.command(user, args));
        run.feed(message.to_vec());
        run.end()
    }
}

#[test]
fn a_user_delivers_to_its_own_account_alone() {
    let users = Users::new("");
    assert_eq!(fs::metadata(users.socket()).expect("a socket").permissions().mode() & 0o777, 0o666);
    users
        .deliver("games", &["-d", "games@mail.axial.net", "-f", "lisa@gmail.com"], MESSAGE)
        .is(0, "stored account=games mailbox=INBOX ");
    let copies = users.site.inbox("games");
    assert!(copies[0].starts_with(b"Return-Path: <lisa@gmail.com>\nDelivered-To: games@"));
    assert!(copies.len() == 1 && copies[0].ends_with(MESSAGE));
    // An alias that the directory gives the same account; its name in a domain of mydestination
    // that the directory does not know, with a detail and in capitals.
    for (to, text) in [
        ("sales@mail.axial.net", "already there account=games mailbox=INBOX "),
        ("games+x@mx.unix.example", "already there account=games mailbox=INBOX "),
        ("Games@localhost", "already there account=games mailbox=INBOX "),
    ] {
        users.deliver("games", &["-d", to], MESSAGE).is(0, text);
    }
    for (user, to, why) in [
        ("games", "daemon@mail.axial.net", "user games may deliver to its own account alone"),
        ("games", "doug@mail.axial.net", "user games may deliver to its own account alone"),
        ("daemon", "games@mail.axial.net", "user daemon may deliver to its own account alone"),
        ("daemon", "sales@mail.axial.net", "user daemon may deliver to its own account alone"),
        // An address without an account, which must not send mail back.
        ("games", "nobody@elsewhere.example", "unknown recipient nobody@elsewhere.example"),
        // The directory takes the end of this user's name for a detail of www's.
        ("www-data", "www@mail.axial.net", "user www-data: the name has a detail"),
        ("www-data", "www-data@mail.axial.net", "user www-data: the name has a detail"),
    ] {
        users.deliver(user, &["-d", to], MESSAGE).is(75, "4.3.5 ").says(why);
    }
    let both = ["-d", "games@mail.axial.net", "-d", "doug@mail.axial.net"];
    users.deliver("games", &both, MESSAGE).is(75, "4.3.5 ");
    for account in ["daemon", "doug", "www", "lisa"] {
        assert!(!users.site.root.join("mail").join(account).exists(), "{account}");
    }
    // Root may deliver for all.
    users.deliver("root", &["-d", "doug@mail.axial.net"], MESSAGE).is(0, "stored account=doug ");
}

/// The message says dmarc=pass for lisa, and Postfix may have written that, or its user.
#[test]
fn a_user_fakes_no_sender() {
    let users = Users::new("");
    let login = ["--sasl-username", "doug@mail.axial.net"];
    let of_doug = b"From: doug@mail.axial.net\nSubject: forged\n\nbody\n";
    for message in [MESSAGE, of_doug] {
        let args = [&["-d", "games@mail.axial.net"], &login[..]].concat();
        let end = users.deliver("games", &args, message);
        end.is(0, "stored account=games mailbox=INBOX ");
        assert!(!end.out.contains("Sent"), "{}", end.out);
    }
    for account in ["doug", "lisa"] {
        assert!(!users.site.root.join("mail").join(account).exists(), "{account}");
    }
    // Its real delivery to somebody else still gives the copy.
    users
        .deliver("root", &["-d", "doug@mail.axial.net"], MESSAGE)
        .is(0, "stored account=doug ")
        .says("stored account=lisa mailbox=Sent");
}

/// Whoever may not read the configuration learns nothing of it from digests.
#[test]
fn a_user_is_not_told_what_the_server_has_read() {
    let users = Users::new("");
    let help = |user: &str| users.answers(user, "HELP\r\nQUIT\r\n");
    assert!(help("root").contains("214-2.0.0 configuration lock.wait_secs "));
    let told = help("games");
    assert!(told.contains("214 2.0.0 RFC 2033") && !told.contains("configuration"), "{told}");
}

/// The log has what a user tried, without the mark by which `status` looks for what to mend, and
/// the connection ends.
#[test]
fn a_users_refused_recipients_come_to_an_end_and_want_no_attention() {
    let journal = Journal::new();
    let users = Users::started("", |launch| launch.by(&journal.command()));
    let why = "user games may deliver to its own account alone";
    let refused = "RCPT TO:<doug@mail.axial.net>\r\n".repeat(25);
    let told = users.answers("games", &format!("LHLO mx\r\nMAIL FROM:<>\r\n{refused}"));
    assert_eq!(told.matches(&format!("451 4.3.5 {why}")).count(), 20, "{told}");
    assert!(told.ends_with("421 4.7.0 Too many errors\r\n"), "{told}");
    // The first ones: a socket that is not read holds no more.
    let log = journal.records().concat();
    assert!(log.contains(&format!("4.3.5: {why}")) && log.contains("ONEDROP_REASON="), "{log}");
    assert!(!log.contains("ONEDROP_UNRECORDED"), "{log}");
}

/// local(8) puts them there.
#[test]
fn recipient_and_sender_come_in_the_environment() {
    let users = Users::new("");
    let of_local = "From lisa@gmail.com  Thu Nov 26 20:00:00 2026\n\
                    Return-Path: <lisa@gmail.com>\n\
                    X-Original-To: games+lists@mail.axial.net\n\
                    Delivered-To: games+lists@mail.axial.net\n";
    let message = [of_local.as_bytes(), MESSAGE].concat();
    let mut command = users.command("games", &[]);
    command.env("RECIPIENT", "games+lists@mail.axial.net").env("SENDER", "lisa@gmail.com");
    let mut run = Run::start(command);
    run.feed(message);
    run.end().is(0, "stored account=games mailbox=INBOX ");
    let copies = users.site.inbox("games");
    assert!(copies[0].starts_with(b"Return-Path: <lisa@gmail.com>\nDelivered-To: games+lists@"));
    assert!(copies[0].ends_with(MESSAGE));
}

#[test]
fn without_a_server_or_its_word_the_mail_waits() {
    let mut users = Users::new("[limits]\nmessage_bytes = 500\n");
    let to = ["-d", "games@mail.axial.net"];
    // What the configuration says of the mail is said.
    users.deliver("games", &to, MESSAGE).is(69, "5.3.4 message is larger than ");
    let small = b"Subject: small\n\nbody\n";
    users.deliver("games", &[], small).is(75, "4.3.0 the server took no message: no recipient");
    users.deliver("games", &to, b"").is(75, "4.3.0 message was cut short");
    assert!(users.server.stop().status.success());
    users.deliver("games", &to, small).is(75, "4.3.0 the server cannot be reached: ");
    assert!(users.site.inbox("games").is_empty());
    users.server.start_again();
    users.deliver("games", &to, small).is(0, "stored account=games ");
}

/// One user with all the connections that it can get keeps no other user from delivering.
#[test]
fn a_user_takes_no_places_of_others() {
    let users = Users::new("connections = 20\n");
    // They have said hello, and wait for their message.
    let held: Vec<Run> = (0..5).map(|_| Run::start(users.command("games", &[]))).collect();
    let connected = || users.server.metric("onedrop_connections") == Some(5.0);
    assert!(wait_until(Duration::from_secs(30), connected), "{}", users.server.metrics());
    let to = |name: &str| format!("{name}@mail.axial.net");
    users
        .deliver("games", &["-d", &to("games")], MESSAGE)
        .is(75, "4.3.0 the server took no message: ")
        .says("421 4.3.2 Too many connections");
    users.deliver("daemon", &["-d", &to("daemon")], MESSAGE).is(0, "stored account=daemon ");
    users.deliver("root", &["-d", &to("doug")], MESSAGE).is(0, "stored account=doug ");
    drop(held);
    assert!(wait_until(Duration::from_secs(30), || !connected()), "{}", users.server.metrics());
    users.deliver("games", &["-d", &to("games")], MESSAGE).is(0, "stored account=games ");
}
