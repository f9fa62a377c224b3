//! `onedrop check` as an administrator runs it. Each Postfix is a folder `fixtures/postfix/NAME/`;
//! a new one needs no Rust:
//!
//! - `main.cf` and `master.cf`, read by the installed postconf;
//! - `expected`: every finding about Postfix, a line each.
//!
//! `$DIR` in any of them is the temporary folder the case runs in, with a good `onedrop.toml` and
//! the LMTP server's socket `lmtp.sock` in it; `$BIN` is the program.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use serde_json::Value;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/postfix");
const DOVECOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/dovecot");
const SNIPPETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/postfix");
/// The fixtures' `user=nobody`, and its group.
const USER: u32 = 65534;
const ONEDROP: &str = env!("CARGO_BIN_EXE_onedrop");

#[test]
fn every_postfix_gets_exactly_the_findings_expected() {
    let mut wrong = String::new();
    let mut count = 0;
    for entry in fs::read_dir(FIXTURES).expect("fixtures/postfix") {
        let folder = entry.expect("an entry").path();
        let expected = fs::read_to_string(folder.join("expected")).unwrap_or_default();
        let actual = Site::of_fixture(&folder).postfix_findings();
        if actual != expected {
            wrong +=
                &format!("=== {}\n--- expected\n{expected}--- actual\n{actual}", folder.display());
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 60, "only {count} cases found");
}

#[test]
fn the_snippets_we_ship_have_no_errors_and_no_warnings() {
    let (main, master) = (
        Path::new(SNIPPETS).join("main.cf.onedrop"),
        Path::new(SNIPPETS).join("master.cf.onedrop"),
    );
    let read = |path| fs::read_to_string(path).expect("the snippet");
    let (main, master) = (read(main), read(master));
    let lines: Vec<_> =
        main.lines().filter(|line| line.starts_with("#virtual_transport")).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        let site = Site::new();
        // The program, its user and its socket are not on every host that runs tests.
        let main = main.replace(&format!("\n{line}\n"), &format!("\n{}\n", &line[1..]));
        let master = master
            .replace("argv=/usr/bin/onedrop", &format!("argv={ONEDROP}"))
            .replace("user=onedrop", "user=nobody");
        site.write("postfix/main.cf", main.as_bytes());
        site.write("postfix/master.cf", master.as_bytes());
        let findings = site.postfix_findings();
        let is_of_this_host = |told: &str| {
            told.contains(": deliveries read /etc/onedrop/onedrop.toml, ")
                || told.contains("nobody listens at /run/onedrop/")
        };
        assert!(
            findings.lines().all(|told| told.starts_with("ok ") || is_of_this_host(told)),
            "{findings}"
        );
        assert!(findings.contains(&format!("gets mail by {}", &line[1..])), "{findings}");
    }
}

#[test]
fn a_good_set_up_ends_with_0_and_a_line_per_end() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    site.deliver_once();
    let output = site.check(&[]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let told = site.told(&output.stdout);
    for line in [
        "ok      configuration: $DIR/onedrop.toml",
        "ok      ledger: sqlite://$DIR/ledger.db, schema version 5",
        "ok      lock: two sessions exclude each other",
        "ok      postfix: transport onedrop: gets mail by virtual_transport = onedrop",
    ] {
        assert!(told.lines().any(|told| told == line), "{line}\nis not in\n{told}");
    }
    assert!(
        told.lines()
            .any(|told| told.starts_with("ok      store: maildir://$DIR/mail, account lisa: ")),
        "{told}"
    );
}

#[test]
fn nothing_is_changed() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    let before = site.files();
    let output = site.check(&[]);
    assert_eq!(site.files(), before);
    let told = site.told(&output.stdout);
    assert!(
        told.contains(
            "ok      ledger: sqlite://$DIR/ledger.db: not there yet, the first delivery makes it"
        ),
        "{told}"
    );
    assert!(output.status.success(), "{output:?}");

    site.deliver_once();
    let before = site.files();
    assert!(site.check(&[]).status.success());
    assert_eq!(site.files(), before);

    fs::remove_file(site.folder().join("ledger.db-locks")).expect("a lock file");
    let before = site.files();
    assert!(
        site.told(&site.check(&[]).stdout)
            .contains("ledger.db-locks will be made by the next delivery")
    );
    assert_eq!(site.files(), before);

    // Another mail program's Maildir has none.
    fs::remove_file(site.folder().join("mail/lisa/Maildir/onedrop.lock")).expect("the locks' file");
    let before = site.files();
    assert!(
        site.told(&site.check(&[]).stdout)
            .contains("onedrop.lock will be made by the next delivery")
    );
    assert_eq!(site.files(), before);
}

#[test]
fn another_programs_database_is_left_alone() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    let other = rusqlite::Connection::open(site.folder().join("ledger.db")).expect("a database");
    other.execute_batch("CREATE TABLE theirs (a)").expect("a table");
    drop(other);
    let before = site.files();
    let told = site.told(&site.check(&[]).stdout);
    assert!(
        told.contains(
            "warning ledger: sqlite://$DIR/ledger.db: an SQLite file that is not a ledger in use"
        ),
        "{told}"
    );
    assert_eq!(site.files(), before);
}

#[test]
fn another_schema_version_is_an_error_and_stays() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    site.deliver_once();
    let ledger = rusqlite::Connection::open(site.folder().join("ledger.db")).expect("a database");
    ledger
        .execute(
            "INSERT INTO onedrop_schema (version, name, sha256, applied_at) VALUES (99, \
                  'new', x'00', 0)",
            [],
        )
        .expect("a row");
    drop(ledger);
    let output = site.check(&[]);
    assert_eq!(output.status.code(), Some(75));
    assert!(
        site.told(&output.stdout)
            .contains("error   schema: sqlite://$DIR/ledger.db has schema version 99")
    );
}

#[test]
fn a_broken_configuration_is_told_whole_and_postfix_is_still_checked() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("flag-d-several-recipients"));
    site.write(
        "onedrop.toml",
        b"[ledgre]\nurl = 1\n[store]\nurl = \"imap://u:hunter2@host\"\n[limits]\ndeadline_secs = \
          5000\n",
    );
    let output = site.check(&["--json"]);
    assert_eq!(output.status.code(), Some(75));
    let findings = json(&output.stdout);
    let of = |topic: &'static str| {
        findings
            .iter()
            .filter(move |finding| finding["topic"] == topic && finding["level"] == "error")
    };
    let lines: Vec<_> = of("configuration").map(|finding| finding["line"].as_u64()).collect();
    assert!(
        lines.contains(&Some(1)) && lines.contains(&Some(4)) && lines.contains(&Some(6)),
        "{findings:?}"
    );
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
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    let odd = site.folder().join(OsStr::from_bytes(b"od\xff\"d\n\x1b.toml"));
    fs::copy(site.folder().join("onedrop.toml"), &odd).expect("a copy");
    let output = Command::new(ONEDROP)
        .arg("check")
        .arg("--json")
        .arg("--config")
        .arg(&odd)
        .stdin(Stdio::null())
        .output();
    let findings = json(&output.expect("onedrop").stdout);
    let text = findings
        .iter()
        .find(|finding| finding["topic"] == "configuration" && finding["level"] == "ok");
    assert!(
        text.is_some_and(|finding| finding["text"]
            .as_str()
            .is_some_and(|text| text.contains("\"d"))),
        "{findings:?}"
    );
    let missing = OsStr::from_bytes(b"no\xfe\n\"such");
    let mut command = Command::new(ONEDROP);
    command.arg("check").arg("--json").arg("--config").arg(missing).arg("--postfix").arg(missing);
    let output = command.stdin(Stdio::null()).output().expect("onedrop");
    assert_eq!(output.status.code(), Some(75));
    assert!(
        json(&output.stdout)
            .iter()
            .any(|finding| finding["topic"] == "postfix" && finding["level"] == "error")
    );
}

#[test]
fn a_postfix_that_cannot_be_read_is_an_error() {
    let site = Site::new();
    fs::remove_dir_all(site.folder().join("postfix")).expect("a folder");
    let findings = site.postfix_findings();
    assert!(
        findings.starts_with("error ") && findings.contains("cannot read the configuration"),
        "{findings}"
    );
}

#[test]
fn variables_that_deliveries_do_not_get_are_told() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    let output = site.command().env("ONEDROP__LOCK__WAIT_SECS", "3").output().expect("onedrop");
    let told = site.told(&output.stdout);
    assert!(
        told.contains("transport onedrop: ONEDROP__LOCK__WAIT_SECS is set for this check"),
        "{told}"
    );
}

#[test]
fn a_server_that_deliver_cannot_reach_is_told() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    for (socket, expected) in [
        ("lmtp.sock", "ok      lmtp: deliver.via: somebody listens at $DIR/lmtp.sock"),
        (
            "none.sock",
            "warning lmtp: deliver.via: nobody can be reached at $DIR/none.sock (No such file or \
             directory): ",
        ),
    ] {
        let via = site.path(socket);
        let output = site.command().env("ONEDROP__DELIVER__VIA", via).output().expect("onedrop");
        let told = site.told(&output.stdout);
        assert!(
            told.lines().any(|line| line.starts_with(expected)),
            "{expected}\nis not in\n{told}"
        );
        assert!(output.status.success(), "{output:?}");
    }
    assert!(
        !site.told(&site.check(&[]).stdout).contains(" lmtp: "),
        "without the key there is nothing to say"
    );
}

#[test]
fn domains_that_share_accounts_are_an_error() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    let checked = |account: &str| {
        let mut command = site.command();
        command.env("ONEDROP__DIRECTORY__DOMAINS", "a.example,b.example");
        let output = command.env("ONEDROP__DIRECTORY__ACCOUNT", account).output().expect("onedrop");
        site.told(&output.stdout)
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
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    site.deliver_once();
    site.write("password", b"secret\n");
    fs::set_permissions(site.path("password"), fs::Permissions::from_mode(0o600)).expect("a mode");
    let expected = "warning ledger: the copy account=lisa mailbox=INBOX was written into a \
                    Maildir, and store.url writes by IMAP: ";
    let told = |store: &str| {
        let mut command = site.command();
        command
            .env("ONEDROP__STORE__URL", store)
            .env("ONEDROP__STORE__PASSWORD_FILE", site.path("password"));
        let output = command.output().expect("onedrop");
        site.told(&output.stdout)
    };
    let by_imap = told("imap://127.0.0.1:1");
    assert!(by_imap.lines().any(|line| line.starts_with(expected)), "{by_imap}");
    assert!(!told(&format!("maildir://{}", site.path("mail"))).contains("was written"));
}

#[test]
fn what_the_transports_user_may_not_is_an_error_that_names_it() {
    let mode = |path: &str, mode: u32| {
        let path = path.to_owned();
        move |site: &Site| {
            let path = site.path(&path);
            std::os::unix::fs::chown(&path, Some(0), Some(0)).expect("chown");
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        }
    };
    type Break = Box<dyn Fn(&Site)>;
    let cases: [(Break, &str); 9] = [
        (
            Box::new(mode("onedrop.toml", 0o600)),
            "cannot read the configuration $DIR/onedrop.toml; ",
        ),
        (Box::new(mode("conf.d", 0o700)), "cannot read the configuration's folder $DIR/conf.d; "),
        (
            Box::new(mode("conf.d/a.toml", 0o600)),
            "cannot read the configuration $DIR/conf.d/a.toml; ",
        ),
        (Box::new(mode("password", 0o600)), "cannot read ledger.password_file $DIR/password; "),
        (Box::new(mode("ledger.db", 0o644)), "cannot write to the ledger $DIR/ledger.db; "),
        (Box::new(mode("mail", 0o755)), "cannot write to the Maildirs' folder $DIR/mail; "),
        (
            Box::new(mode("lmtp.sock", 0o660)),
            "cannot write to the LMTP server's socket $DIR/lmtp.sock; ",
        ),
        (
            Box::new(mode("", 0o700)),
            "cannot read the configuration $DIR/onedrop.toml: $DIR is closed; ",
        ),
        (
            Box::new(move |site: &Site| {
                mode("onedrop.toml", 0o640)(site);
                // As pipe(8) does: a user's other groups do not count.
                let postfix =
                    nix::unistd::Group::from_name("postfix").expect("groups").expect("a group");
                std::os::unix::fs::chown(
                    site.path("onedrop.toml"),
                    None,
                    Some(postfix.gid.as_raw()),
                )
                .expect("chown");
            }),
            "cannot read the configuration $DIR/onedrop.toml (its group may: \
             user=nobody:postfix); ",
        ),
    ];
    for (breaks, expected) in cases {
        let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
        site.deliver_once();
        fs::create_dir(site.path("conf.d")).expect("a folder");
        let more =
            "[ledger]\npassword_file = \"$DIR/password\"\n[deliver]\nvia = \"$DIR/lmtp.sock\"\n";
        site.write("conf.d/a.toml", site.filled(more).as_bytes());
        site.write("password", b"secret\n");
        fs::set_permissions(site.path("password"), fs::Permissions::from_mode(0o600))
            .expect("a mode");
        site.give_to(USER);
        let before = site.postfix_findings();
        assert!(!before.contains("cannot "), "{before}");
        breaks(&site);
        let findings = site.postfix_findings();
        let expected = format!(
            "error   transport onedrop: user=nobody {expected}every message waits until it can"
        );
        assert!(findings.lines().any(|line| line == expected), "{expected}\nis not in\n{findings}");
    }
}

#[test]
fn a_socket_that_postfix_may_not_use_is_an_error() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("lmtp-good"));
    fs::set_permissions(site.path("lmtp.sock"), fs::Permissions::from_mode(0o660)).expect("a mode");
    let findings = site.postfix_findings();
    let expected = "postfix cannot write to the LMTP server's socket $DIR/lmtp.sock, and every \
                    message waits; ";
    assert!(findings.contains(expected), "{findings}");
}

#[test]
fn a_message_piped_in_by_mistake_is_not_eaten() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    let ends = |by_postfix: bool| {
        let mut command = site.command();
        if by_postfix {
            command.env("MAIL_CONFIG", "/etc/postfix");
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("onedrop");
        let stdin = child.stdin.take();
        let status = child.wait().expect("an end");
        drop(stdin);
        status.code()
    };
    assert_eq!((ends(true), ends(false)), (Some(75), Some(0)));
}

/// Each is a file of what doveconf prints (`NAME.conf`) and the findings about it, by IMAP
/// (`NAME.imap`) and into Maildirs (`NAME.maildir`).
#[test]
fn every_dovecot_gets_exactly_the_findings_expected() {
    let (mut wrong, mut count) = (String::new(), 0);
    for entry in fs::read_dir(DOVECOTS).expect("fixtures/dovecot") {
        let path = entry.expect("an entry").path();
        if path.extension() != Some(OsStr::new("conf")) {
            continue;
        }
        let doveconf = format!("#!/bin/sh\n[ \"$*\" = \"-c $0 -n\" ] && cat {}\n", path.display());
        for (kind, store) in [("imap", "imap://127.0.0.1:1"), ("maildir", "maildir:///nonexistent")]
        {
            let actual = dovecot_findings(doveconf.as_bytes(), store, true);
            let expected = fs::read_to_string(path.with_extension(kind)).unwrap_or_default();
            if actual != expected {
                wrong += &format!(
                    "=== {} {kind}\n--- expected\n{expected}--- actual\n{actual}",
                    path.display()
                );
            }
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 5, "only {count} cases found");
}

/// What a check finds about Dovecot where doveconf is this script.
fn dovecot_findings(doveconf: &[u8], store: &str, is_named: bool) -> String {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    site.write("doveconf", doveconf);
    fs::set_permissions(site.path("doveconf"), fs::Permissions::from_mode(0o755)).expect("a mode");
    site.write("password", b"secret\n");
    fs::set_permissions(site.path("password"), fs::Permissions::from_mode(0o600)).expect("a mode");
    let mut command = site.command();
    if is_named {
        command.arg("--dovecot").arg(site.path("doveconf"));
    }
    let path = format!("{}:{}", site.folder().display(), std::env::var("PATH").unwrap_or_default());
    command
        .env("PATH", path)
        .env("ONEDROP__STORE__URL", store)
        .env("ONEDROP__STORE__STARTTLS", "false");
    command.env("ONEDROP__STORE__PASSWORD_FILE", site.path("password"));
    let output = command.output().expect("onedrop");
    let told = site.told(&output.stdout);
    let lines = told.lines().filter_map(|line| {
        let (level, rest) = line.split_at_checked(8)?;
        Some(format!("{level}{}\n", rest.strip_prefix("dovecot: ")?))
    });
    lines.collect()
}

#[test]
fn a_doveconf_that_fails_or_babbles_is_survived() {
    let imap = "imap://127.0.0.1:1";
    let failing = b"#!/bin/sh\necho 'doveconf: Fatal: Permission denied' >&2; exit 89\n";
    let told = dovecot_findings(failing, imap, false);
    assert!(
        told.starts_with("ok      nothing about Dovecot was tested: ")
            && told.contains("Permission denied"),
        "{told}"
    );
    assert!(dovecot_findings(failing, imap, true).starts_with("error   "));
    let endless = b"#!/bin/sh\nexec yes 'a = b {'\n";
    assert!(dovecot_findings(endless, imap, false).contains("nothing about Dovecot was tested"));
    let noise = b"#!/bin/sh\nhead -c 1000000 /dev/urandom\n";
    assert!(dovecot_findings(noise, imap, false).contains("mail_max_lock_timeout is not set"));
    // The settings of this host's Dovecot mean nothing for mailboxes on another.
    assert_eq!(dovecot_findings(failing, "imap://192.0.2.1:143", false), "");
}

#[test]
fn the_dovecot_settings_we_ship_fit() {
    let folder = tempfile::tempdir().expect("a folder");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/dovecot/onedrop.conf");
    let conf = folder.path().join("dovecot.conf");
    let more = "protocols = imap lmtp\nprotocol lmtp {\n  mail_plugins = $mail_plugins sieve\n}\n";
    fs::write(&conf, format!("!include {}\n{more}", shipped.display())).expect("a configuration");
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    site.write("password", b"secret\n");
    fs::set_permissions(site.path("password"), fs::Permissions::from_mode(0o600)).expect("a mode");
    let mut command = site.command();
    command.arg("--dovecot").arg(&conf).env("ONEDROP__STORE__URL", "imap://127.0.0.1:1");
    command.env("ONEDROP__STORE__PASSWORD_FILE", site.path("password"));
    let told = site.told(&command.output().expect("onedrop").stdout);
    let about: Vec<_> = told.lines().filter(|line| line.contains(" dovecot: ")).collect();
    assert_eq!(about.len(), 1, "{about:?}");
    assert!(
        about[0]
            .starts_with("warning dovecot: the plugin sieve is in mail_plugins of protocol lmtp"),
        "{about:?}"
    );
}

#[test]
fn the_store_is_tested_by_an_account_on_record_or_the_check_says_that_nothing_was() {
    let site = Site::of_fixture(&Path::new(FIXTURES).join("good"));
    let checked = || {
        let text = "[ledger]\nurl = \"sqlite://$DIR/ledger.db\"\n[store]\nurl = \
                    \"maildir://$DIR/mail\"\n\
                    [directory]\ndomains = [\"gmail.com\"]\n";
        site.write("onedrop.toml", site.filled(text).as_bytes());
        let output = site.check(&[]);
        (output.status.code(), site.told(&output.stdout))
    };
    let (code, told) = checked();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("\nuntested store: maildir://$DIR/mail: nothing was tested: "), "{told}");
    site.deliver_once();
    let (code, told) = checked();
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains(
            "\nok      store: maildir://$DIR/mail, account lisa: $DIR/mail/lisa/Maildir exists"
        ),
        "{told}"
    );
}

/// A folder with a configuration and a Postfix, in a temporary place.
struct Site {
    folder: tempfile::TempDir,
    /// Stands in for the LMTP server.
    _listener: UnixListener,
}

impl Site {
    fn new() -> Site {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("lmtp.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        // All of it is for the transport's user, and lmtp(8) connects as Postfix's own.
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("a mode");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        let site = Site { folder, _listener: listener };
        fs::create_dir(site.folder().join("postfix")).expect("a folder");
        let text = "[ledger]\nurl = \"sqlite://$DIR/ledger.db\"\n[store]\nurl = \
                    \"maildir://$DIR/mail\"\n\
                    [directory]\naccounts = { \"lisa@gmail.com\" = \"lisa\" }\n\
                    [lmtp]\nlisten = [\"unix:$DIR/lmtp.sock\"]\n";
        site.write("onedrop.toml", site.filled(text).as_bytes());
        site.give_to(USER);
        site
    }

    fn of_fixture(fixture: &Path) -> Site {
        let site = Site::new();
        for name in ["main.cf", "master.cf"] {
            let text = fs::read_to_string(fixture.join(name)).expect("a fixture");
            site.write(&format!("postfix/{name}"), site.filled(&text).as_bytes());
        }
        site
    }

    /// Gives all of the folder to a user.
    fn give_to(&self, user: u32) {
        for path in self.files().into_keys().chain([self.folder().to_owned()]) {
            std::os::unix::fs::chown(path, Some(user), Some(user))
                .expect("chown, which needs root");
        }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> String {
        self.folder().join(name).to_string_lossy().into_owned()
    }

    fn filled(&self, text: &str) -> String {
        text.replace("$DIR", &self.folder().to_string_lossy()).replace("$BIN", ONEDROP)
    }

    fn told(&self, output: &[u8]) -> String {
        let text = String::from_utf8(output.to_vec()).expect("text");
        text.replace(&*self.folder().to_string_lossy(), "$DIR").replace(ONEDROP, "$BIN")
    }

    /// Postfix reads a file again until it is a second old, so a new one is written in the past.
    fn write(&self, name: &str, bytes: &[u8]) {
        let mut file = fs::File::create(self.folder().join(name)).expect("a file");
        file.write_all(bytes)
            .and_then(|()| file.set_modified(SystemTime::UNIX_EPOCH))
            .expect("a file");
    }

    fn command(&self) -> Command {
        let mut command = Command::new(ONEDROP);
        command.arg("check").arg("--config").arg(self.folder().join("onedrop.toml"));
        command.arg("--postfix").arg(self.folder().join("postfix")).stdin(Stdio::null());
        command
    }

    fn check(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().expect("onedrop")
    }

    fn postfix_findings(&self) -> String {
        let findings = json(&self.check(&["--json"]).stdout);
        let lines =
            findings.iter().filter(|finding| finding["topic"] == "postfix").map(|finding| {
                let text = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
                format!("{:<7} {}\n", text("level"), text("text"))
            });
        self.told(lines.collect::<String>().as_bytes())
    }

    fn deliver_once(&self) {
        let mut command = Command::new(ONEDROP);
        command
            .args(["deliver", "-d", "lisa@gmail.com", "-f", "", "--config"])
            .arg(self.folder().join("onedrop.toml"));
        let message =
            fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/mail/welcome.eml"))
                .expect("a message");
        let output = command.stdin(message).output().expect("onedrop");
        assert!(output.status.success(), "{output:?}");
        self.give_to(USER);
    }

    /// Every file with what it holds, but for the bookkeeping that readers share in memory
    /// (`-shm`).
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.folder().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path.clone());
                    files.insert(path, Vec::new());
                } else {
                    if path.ends_with("lmtp.sock") {
                        continue;
                    }
                    let is_shared_memory = path.as_os_str().as_bytes().ends_with(b"-shm");
                    let bytes = if is_shared_memory {
                        Vec::new()
                    } else {
                        fs::read(&path).expect("a file")
                    };
                    files.insert(path, bytes);
                }
            }
        }
        files
    }
}

fn json(output: &[u8]) -> Vec<Value> {
    serde_json::from_slice(output).expect("an array in JSON")
}
