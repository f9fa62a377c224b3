//! `onedrop check` as an administrator runs it; about Postfix in `postfix.rs`, about Dovecot in
//! `dovecot.rs`, about the pages in `web.rs`, against ends that misbehave in `ends.rs`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::SystemTime;

use serde_json::Value;

use crate::support::site::{Files, Site, delivered};
use crate::support::{
    self, chown_recursive, fixture, fixture_text, onedrop, onedrop_path, set_mode,
};

mod dovecot;
mod ends;
mod postfix;
mod retention;
mod running;
mod web;

/// The fixtures' `user=`.
const USER: &str = "nobody";

#[test]
fn a_good_set_up_ends_with_0_and_a_line_per_end() {
    let site = CheckSite::good();
    site.deliver_once();
    let output = site.command().output().expect("onedrop");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let told = site.told(&output.stdout);
    for line in [
        "ok      configuration: $DIR/onedrop.toml\n",
        "warning configuration: deliver.trial = true: deliveries make the ledger's file, ",
        "ok      ledger: sqlite://$DIR/ledger.db, schema version 11\n",
        "ok      lock: two sessions exclude each other\n",
        "ok      postfix: transport onedrop: gets mail by virtual_transport = onedrop\n",
        "ok      store: maildir://$DIR/mail, account lisa: ",
    ] {
        assert!(told.split_inclusive('\n').any(|told| told.starts_with(line)), "{line}\n{told}");
    }
    // What the disk below the test keeps is not ours to say.
    assert!(told.contains(" durability: "), "{told}");
}

#[test]
fn root_is_told_to_check_as_the_delivery_user() {
    let output = CheckSite::good().command().output().expect("onedrop");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let warning = "warning configuration: root may read what the delivery user may not: check as \
                   that user (runuser -u onedrop -- onedrop check)";
    assert_eq!(told.lines().next(), Some(warning), "{told}");
}

#[test]
fn nothing_is_changed() {
    let site = CheckSite::good();
    let unchanged = |expected: &str| {
        let before = site.files();
        let (code, told) = site.check(&[]);
        assert_eq!(site.files(), before);
        assert!(told.contains(expected), "{expected}\nis not in\n{told}");
        assert_eq!(code, Some(0), "{told}");
    };
    let place = "ok      ledger: sqlite://$DIR/ledger.db";
    unchanged(&format!("{place}: not there yet, the first delivery makes it"));
    site.deliver_once();
    unchanged(&format!("{place}, schema version 11"));
    fs::remove_file(site.path("ledger.db-locks")).expect("a lock file");
    unchanged("ledger.db-locks will be made by the next delivery");
    // Another mail program's Maildir has none.
    fs::remove_file(site.path("mail/lisa/Maildir/onedrop.lock")).expect("the locks' file");
    unchanged("onedrop.lock will be made by the next delivery");
}

#[test]
fn mailboxes_that_are_named_and_not_there_are_told() {
    let site = CheckSite::good();
    let path = site.path("onedrop.toml");
    let rules = "\n[[file]]\nheader = \"X-Spam-Flag\"\nis = \"YES\"\nmailbox = \"Junk\"\n\
                 [[file]]\nheader = \"List-Id\"\nis = \"x\"\nmailbox = \"lists\"\n";
    let before = fs::read_to_string(&path).expect("a configuration");
    fs::write(&path, before + rules).expect("a configuration");
    fs::create_dir_all(site.path("mail/lisa/Maildir/.lists/new")).expect("a mailbox");
    let (_, told) = site.check(&[]);
    let expected = "warning store: account=lisa mailbox=Junk is not there: its mail goes to INBOX";
    assert!(told.contains(expected) && !told.contains("mailbox=lists"), "{told}");
}

#[test]
fn another_programs_database_is_left_alone() {
    let site = CheckSite::good();
    let other = rusqlite::Connection::open(site.path("ledger.db")).expect("a database");
    other.execute_batch("CREATE TABLE theirs (a)").expect("a table");
    drop(other);
    let before = site.files();
    let (_, told) = site.check(&[]);
    let expected =
        "warning ledger: sqlite://$DIR/ledger.db: an SQLite file that is not a ledger in use";
    assert!(told.contains(expected), "{told}");
    assert_eq!(site.files(), before);
}

#[test]
fn another_schema_version_is_an_error_and_stays() {
    let site = CheckSite::good();
    site.deliver_once();
    let ledger = rusqlite::Connection::open(site.path("ledger.db")).expect("a database");
    ledger.execute("UPDATE onedrop_ledger SET version = 99", []).expect("a row");
    drop(ledger);
    let (code, told) = site.check(&[]);
    assert_eq!(code, Some(75));
    assert!(
        told.contains("error   schema: sqlite://$DIR/ledger.db has schema version 99"),
        "{told}"
    );
}

#[test]
fn a_broken_configuration_is_told_whole_and_postfix_is_still_checked() {
    let site = CheckSite::of_fixture("flag-d-several-recipients");
    site.write(
        "onedrop.toml",
        b"[ledgre]\nurl = 1\n[store]\nurl = \"imap://u:hunter2@host\"\n[limits]\ndeadline_secs = \
          5000\n",
    );
    let output = site.command().arg("--json").output().expect("onedrop");
    assert_eq!(output.status.code(), Some(75));
    let findings = json(&output);
    let of = |topic: &'static str| {
        let is_it = move |one: &&Value| one["topic"] == topic && one["level"] == "error";
        findings.iter().filter(is_it)
    };
    let lines: Vec<_> = of("configuration").map(|finding| finding["line"].as_u64()).collect();
    assert!([1, 4, 6].iter().all(|line| lines.contains(&Some(*line))), "{findings:?}");
    assert!(
        of("configuration").all(|finding| finding["file"] == site.path("onedrop.toml")),
        "{findings:?}"
    );
    assert_eq!(of("postfix").count(), 1, "{findings:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("hunter2"));
    let verdict = String::from_utf8(output.stderr).expect("text");
    assert_eq!(verdict.lines().count(), 1);
    assert!(verdict.starts_with(&format!("{} errors, ", lines.len() + 1)), "{verdict}");
}

#[test]
fn json_is_json_whatever_the_paths_hold() {
    let site = CheckSite::good();
    let run = |arguments: &[&OsStr]| {
        let mut command = onedrop();
        command.args(["check", "--json"]).args(arguments).stdin(Stdio::null());
        command.output().expect("onedrop")
    };
    let odd = site.folder.join(OsStr::from_bytes(b"od\xff\"d\n\x1b.toml"));
    fs::copy(site.path("onedrop.toml"), &odd).expect("a copy");
    let findings = json(&run(&["--config".as_ref(), odd.as_os_str()]));
    let is_read = |one: &&Value| one["topic"] == "configuration" && one["level"] == "ok";
    let text = findings.iter().find(is_read).and_then(|one| one["text"].as_str());
    assert!(text.is_some_and(|text| text.contains("\"d")), "{findings:?}");
    let missing = OsStr::from_bytes(b"no\xfe\n\"such");
    let output = run(&["--config".as_ref(), missing, "--postfix".as_ref(), missing]);
    assert_eq!(output.status.code(), Some(75));
    let is_unread = |one: &Value| one["topic"] == "postfix" && one["level"] == "error";
    assert!(json(&output).iter().any(is_unread));
}

#[test]
fn a_server_that_deliver_cannot_reach_is_told() {
    let site = CheckSite::good();
    for (socket, expected) in [
        ("$DIR/lmtp.sock", "ok      lmtp: deliver.via: somebody listens at $DIR/lmtp.sock"),
        (
            "$DIR/none.sock",
            "warning lmtp: deliver.via: nobody can be reached at $DIR/none.sock (No such file or \
             directory): ",
        ),
    ] {
        let (code, told) = site.check(&[("DELIVER__VIA", socket)]);
        assert!(told.lines().any(|line| line.starts_with(expected)), "{expected}\n{told}");
        assert_eq!(code, Some(0), "{told}");
    }
    assert!(!site.check(&[]).1.contains(" lmtp: "), "without the key there is nothing to say");
}

/// Else one user's message fills the disk for all.
#[test]
fn a_socket_for_users_without_a_limit_of_bytes_is_told() {
    let site = CheckSite::good();
    let users = ("LMTP__USERS", "$DIR/users.sock");
    let expected = "warning lmtp: limits.message_bytes is 0, and every user of this host may \
                    connect to $DIR/users.sock: ";
    for (bytes, is_told) in [("0", true), ("51200000", false)] {
        let (code, told) = site.check(&[users, ("LIMITS__MESSAGE_BYTES", bytes)]);
        assert_eq!((code, told.contains(expected)), (Some(0), is_told), "{told}");
    }
}

/// Else large messages alone wait, until they are returned.
#[test]
fn a_folder_where_large_messages_find_no_place_is_an_error() {
    let site = CheckSite::good();
    let folder = ("LMTP__SPOOL_DIR", "$DIR/none");
    let expected = "lmtp: lmtp.spool_dir: $DIR/none: No such file or directory: mail above \
                    lmtp.spool_bytes (1048576) waits";
    let (code, told) = site.check(&[folder]);
    assert!(told.contains(&format!("error   {expected}")), "{told}");
    assert_eq!(code, Some(75), "{told}");
    // Where no server is set up, none of its messages waits.
    let (code, told) = site.check(&[folder, ("LMTP__LISTEN", "")]);
    assert!(told.contains(&format!("warning {expected}")), "{told}");
    assert_eq!(code, Some(0), "{told}");
}

#[test]
fn domains_that_share_accounts_are_an_error() {
    let site = CheckSite::good();
    let checked = |account| {
        let domains = ("DIRECTORY__DOMAINS", "a.example,b.example");
        site.check(&[domains, ("DIRECTORY__ACCOUNT", account)]).1
    };
    let expected = "error   configuration: ONEDROP__DIRECTORY__DOMAINS: directory.account: \
                    \"{local}\" may give one account to people in a.example and in b.example; set \
                    directory.account = \"{address}\"";
    let told = checked("{local}");
    assert!(told.contains(expected), "{told}");
    assert!(!checked("{address}").contains("directory.account"));
}

#[test]
fn a_ledger_whose_copies_were_written_another_way_is_told() {
    let site = CheckSite::good();
    site.deliver_once();
    let told = |store| {
        let password = site.password();
        site.check(&[("STORE__URL", store), ("STORE__PASSWORD_FILE", &password)]).1
    };
    let expected = "warning ledger: the copy account=lisa mailbox=INBOX was written into a \
                    Maildir, and store.url writes by IMAP: ";
    let by_imap = told("imap://127.0.0.1:1");
    assert!(by_imap.lines().any(|line| line.starts_with(expected)), "{by_imap}");
    assert!(!told("maildir://$DIR/mail").contains("was written"));
}

#[test]
fn a_message_piped_in_by_mistake_is_not_eaten() {
    let site = CheckSite::good();
    for (by_postfix, expected) in [(true, 75), (false, 0)] {
        let mut command = site.command();
        if by_postfix {
            command.env("MAIL_CONFIG", "/etc/postfix");
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("onedrop");
        let stdin = child.stdin.take();
        assert_eq!(child.wait().expect("an end").code(), Some(expected));
        drop(stdin);
    }
}

#[test]
fn the_store_is_tested_by_an_account_on_record_or_the_check_says_that_nothing_was() {
    let site = CheckSite::with(&CONFIGURATION.replace("accounts", "domains = [\"gmail.com\"] #"));
    site.use_fixture("good");
    let checked = || {
        let output = site.command().output().expect("onedrop");
        (output.status.code(), site.told(&output.stdout), site.told(&output.stderr))
    };
    let (code, told, verdict) = checked();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("\nuntested store: maildir://$DIR/mail: nothing was tested: "), "{told}");
    assert!(verdict.starts_with("1 gap, "), "{verdict}");
    site.deliver_once();
    let (code, told, _) = checked();
    assert_eq!(code, Some(0), "{told}");
    let expected =
        "\nok      store: maildir://$DIR/mail, account lisa: $DIR/mail/lisa/Maildir exists";
    assert!(told.contains(expected), "{told}");
}

#[test]
fn a_file_system_without_links_is_an_error() {
    let site = CheckSite::good();
    site.deliver_once();
    site.write("no_links.c", include_bytes!("check/no_links.c"));
    let library = site.path("no_links.so");
    let source = site.path("no_links.c");
    support::run(Command::new("gcc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]));
    let before = site.files();
    let output = site.command().env("LD_PRELOAD", &library).output().expect("onedrop");
    let told = site.told(&output.stdout);
    let expected = "error   store: maildir://$DIR/mail, account lisa: \
                    $DIR/mail/lisa/Maildir/tmp: a file cannot be linked there (Operation not \
                    permitted";
    assert!(told.contains(expected), "{told}");
    assert_eq!(output.status.code(), Some(75), "{told}");
    assert_eq!(site.files(), before, "what it tried with is gone");
}

/// A good one. `$DIR` is the folder of the case.
const CONFIGURATION: &str = "[ledger]\nurl = \"sqlite://$DIR/ledger.db\"\n\
    [store]\nurl = \"maildir://$DIR/mail\"\n\
    [directory]\naccounts = { \"lisa@gmail.com\" = \"lisa\" }\n\
    [deliver]\ntrial = true\n\
    [lmtp]\nlisten = [\"unix:$DIR/lmtp.sock\"]\n";

/// Hides what a host may have of ours (configuration, sockets, users), and becomes the program.
const ON_NO_MAIL_HOST: &str = "set -e
    for folder in /etc/onedrop /run/onedrop; do
        [ ! -d $folder ] || /bin/mount -t tmpfs tmpfs $folder
    done
    /bin/sed /^onedrop/d /etc/passwd >$0
    /bin/mount --bind $0 /etc/passwd
    exec \"$@\"";

/// A folder with a configuration, a Postfix and the LMTP server's socket.
struct CheckSite {
    site: Site<Files>,
    folder: PathBuf,
}

impl CheckSite {
    fn new() -> CheckSite {
        CheckSite::with(CONFIGURATION)
    }

    fn with(configuration: &str) -> CheckSite {
        let site = Site::embedded();
        let config = site.config("etc", configuration);
        let folder = config.parent().expect("its folder").to_owned();
        let socket = folder.join("lmtp.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        // It stands in for the LMTP server, and hangs up: `check` waits for what it does not say.
        thread::spawn(move || listener.incoming().for_each(drop));
        // All of it is for the transport's user, and lmtp(8) connects as Postfix's own.
        set_mode(&socket, 0o666);
        set_mode(&folder, 0o755);
        fs::create_dir(folder.join("postfix")).expect("a folder");
        chown_recursive(&folder, USER);
        CheckSite { site, folder }
    }

    fn of_fixture(name: &str) -> CheckSite {
        let site = CheckSite::new();
        site.use_fixture(name);
        site
    }

    fn good() -> CheckSite {
        CheckSite::of_fixture("good")
    }

    /// The Postfix in `fixtures/postfix/NAME/`.
    fn use_fixture(&self, name: &str) {
        for file in ["main.cf", "master.cf"] {
            let text = fixture_text(format!("fixtures/postfix/{name}/{file}"));
            self.write_postfix(file, &text);
        }
    }

    fn write_postfix(&self, file: &str, text: &str) {
        self.write(&format!("postfix/{file}"), self.filled(text).as_bytes());
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    fn filled(&self, text: &str) -> String {
        let program = onedrop_path().to_string_lossy();
        text.replace("$DIR", &self.folder.to_string_lossy()).replace("$BIN", &program)
    }

    fn told(&self, output: &[u8]) -> String {
        let text = String::from_utf8(output.to_vec()).expect("text");
        let program = onedrop_path().to_string_lossy();
        text.replace(&*self.folder.to_string_lossy(), "$DIR").replace(&*program, "$BIN")
    }

    /// Postfix reads a file again until it is a second old, so a new one is written in the past.
    fn write(&self, name: &str, bytes: &[u8]) {
        let mut file = fs::File::create(self.folder.join(name)).expect("a file");
        file.write_all(bytes)
            .and_then(|()| file.set_modified(SystemTime::UNIX_EPOCH))
            .expect("a file");
    }

    /// A file with a password.
    fn password(&self) -> String {
        self.write("password", b"secret\n");
        set_mode(&self.folder.join("password"), 0o600);
        self.path("password")
    }

    /// On this host as it is, which another user than root gets alone.
    fn plain_command(&self) -> Command {
        let mut command = onedrop();
        command.arg("check").arg("--config").arg(self.path("onedrop.toml"));
        command.arg("--postfix").arg(self.path("postfix")).stdin(Stdio::null());
        command
    }

    fn command(&self) -> Command {
        self.command_by(&[])
    }

    /// By another program that becomes it, such as setpriv(1).
    fn command_by(&self, program: &[&str]) -> Command {
        let plain = self.plain_command();
        if !support::is_root() {
            return plain;
        }
        let mut command = Command::new("/usr/bin/unshare");
        command.args(["--mount", "/bin/sh", "-c", ON_NO_MAIL_HOST]);
        command.arg(self.site.root.join("passwd")).args(program).arg(plain.get_program());
        command.args(plain.get_args()).stdin(Stdio::null());
        for (name, _) in plain.get_envs() {
            command.env_remove(name);
        }
        command
    }

    fn command_with(&self, settings: &[(&str, &str)]) -> Command {
        let mut command = self.command();
        self.set(&mut command, settings);
        command
    }

    fn set(&self, command: &mut Command, settings: &[(&str, &str)]) {
        for (name, value) in settings {
            command.env(format!("ONEDROP__{name}"), self.filled(value));
        }
    }

    /// Exit status and findings, with these settings (`SECTION__KEY`) in the environment.
    fn check(&self, settings: &[(&str, &str)]) -> (Option<i32>, String) {
        let output = self.command_with(settings).output().expect("onedrop");
        (output.status.code(), self.told(&output.stdout))
    }

    /// The findings about `topic`, each after its level.
    fn about(&self, topic: &str, command: &mut Command) -> String {
        let topic = format!("{topic}: ");
        let line = |line: &str| {
            let (level, rest) = line.split_at_checked(8)?;
            Some(format!("{level}{}\n", rest.strip_prefix(&topic)?))
        };
        let told = self.told(&command.output().expect("onedrop").stdout);
        told.lines().filter_map(line).collect()
    }

    fn deliver_once(&self) {
        let config = self.folder.join("onedrop.toml");
        let message = fixture("fixtures/mail/welcome.eml");
        // Root delivers into no folder of another's.
        chown_recursive(&self.folder, "root");
        delivered(&config, &["-d", "lisa@gmail.com", "-f", ""], &message);
        chown_recursive(&self.folder, USER);
    }

    /// Every file with what it holds, but for the socket and the bookkeeping that readers share in
    /// memory (`-shm`).
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let is_held = path.is_dir() || path.as_os_str().as_bytes().ends_with(b"-shm");
                if path.is_dir() {
                    folders.push(path.clone());
                }
                if !path.ends_with("lmtp.sock") {
                    let bytes = if is_held { Vec::new() } else { fs::read(&path).expect("a file") };
                    files.insert(path, bytes);
                }
            }
        }
        files
    }
}

fn json(output: &Output) -> Vec<Value> {
    serde_json::from_slice(&output.stdout).expect("an array in JSON")
}
