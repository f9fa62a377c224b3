//! The programs under measurement, each with what it needs: Onedrop with its configurations,
//! dovecot-lda, maildrop. They all run as the mail's user and keep their mail on one file system,
//! below the rig's Dovecot.

use std::cell::Cell;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::process::{deliver, program};
use crate::dovecot::{Dovecot, MAIL_USER};
use crate::mariadb::Mariadb;
use crate::postgres::{Postgres, bin};
use crate::{TempRoot, onedrop_path, set_mode, unix_user};

/// What a message is made of, as pipe(8) hands it over.
pub const MESSAGE_BYTES: usize = 4096;

/// A user of ours who gets a copy into Sent when a message is from her.
pub const LISA: &str = "lisa@mail.axial.net";
/// Somebody else's address.
pub const STRANGER: &str = "ann@elsewhere.example";

/// By which our Postfix's Received and what it says of a message agree.
const QUEUE_ID: &str = "4Q";

/// A message with a Message-ID of its own.
pub fn message(from: &str, size: usize) -> Vec<u8> {
    thread_local!(static COUNT: Cell<u64> = const { Cell::new(0) });
    let count = COUNT.replace(COUNT.get() + 1);
    let unique = format!("{}.{count}", std::process::id());
    let now = chrono::DateTime::<chrono::Utc>::from(SystemTime::now());
    let now = now.format("%a, %d %b %Y %H:%M:%S +0000");
    let mut text = format!(
        "Return-Path: <{from}>\nX-Original-To: scuba@mail.axial.net\nDelivered-To: \
         scuba@mail.axial.net\n\
         Received: from client.example (client.example [192.0.2.7])\n\tby mail.axial.net (Postfix) \
         with ESMTPS id {QUEUE_ID}\n\
         \tfor <scuba@mail.axial.net>; {now} (UTC)\n\
         Date: {now}\nFrom: Somebody <{from}>\nTo: Scuba \
         <scuba@mail.axial.net>\n\
         Subject: Measured {count}\nMessage-ID: <{unique}@bench.example>\nMIME-Version: 1.0\n\
         Content-Type: text/plain; charset=utf-8\n\n"
    );
    while text.len() + 72 <= size {
        text.push_str("The quick brown fox jumps over the lazy dog, and over it once again ...\n");
    }
    text.extend(std::iter::repeat_n('.', size.saturating_sub(text.len() + 1)));
    text.push('\n');
    text.into_bytes()
}

/// `ONEDROP_BENCH_BUILDS`, as in `now=target/release/onedrop,before=/tmp/before/onedrop`: builds by
/// name, each with a folder of its own.
pub fn builds() -> Vec<(String, Bench)> {
    let builds = std::env::var("ONEDROP_BENCH_BUILDS").unwrap_or_default();
    let build = |build: &str| {
        let (name, path) = build.split_once('=').expect("ONEDROP_BENCH_BUILDS: NAME=PATH,...");
        let bench = Bench::new();
        fs::copy(path, &bench.onedrop).unwrap_or_else(|error| panic!("{path}: {error}"));
        (name.to_owned(), bench)
    };
    builds.split(',').filter(|build| !build.is_empty()).map(build).collect()
}

/// A folder of the mail's user beside the mail, with a copy of the program: where it was built,
/// others may not go.
pub struct Bench {
    pub root: TempRoot,
    pub home: PathBuf,
    pub onedrop: PathBuf,
}

impl Bench {
    pub fn new() -> Bench {
        let root = TempRoot::new();
        let home = root.dir_for("home", MAIL_USER, 0o755);
        let onedrop = root.join("onedrop");
        fs::copy(onedrop_path(), &onedrop).expect("a copy of the program");
        set_mode(&onedrop, 0o755);
        Bench { root, home, onedrop }
    }

    /// A file that only the mail's user may read, as password and filter files must be.
    pub fn private(&self, name: &str, content: &str) -> PathBuf {
        let path = self.home.join(name);
        fs::write(&path, content).expect("a file");
        set_mode(&path, 0o600);
        crate::chown_recursive(&path, MAIL_USER);
        path
    }

    /// A configuration; what it says of the ledger and the store comes from the caller.
    pub fn config(&self, name: &str, ledger: &str, store: &str) -> PathBuf {
        let folder = self.root.dir_for(name, MAIL_USER, 0o755);
        let rest = "[directory]\ndomains = [\"mail.axial.net\"]\n[sent]\ntrust = \"header\"\n";
        // With `via` the server makes what is missing.
        let trial = if store.contains("[deliver]") { "" } else { "[deliver]\ntrial = true\n" };
        let path = folder.join("onedrop.toml");
        fs::write(&path, format!("[ledger]\n{ledger}\n[store]\n{store}\n{rest}{trial}"))
            .expect("a configuration");
        path
    }

    /// A server as durable as Postgres is by default, and with as much room in its log.
    pub fn mariadb(&self) -> Mariadb {
        Mariadb::start_with(&[
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-flush-method=fsync",
            "--innodb-log-file-size=256M",
            "--skip-log-bin",
        ])
    }

    /// `[ledger]` in it, by its Unix socket.
    pub fn mariadb_ledger(&self, mariadb: &Mariadb) -> String {
        let password = self.private("mariadb.password", mariadb.password());
        let password = password.display();
        format!("url = \"{}\"\npassword_file = \"{password}\"", mariadb.url_socket())
    }

    /// With its ledger.
    pub fn maildir_config(&self, dovecot: &Dovecot) -> PathBuf {
        let ledger = format!("url = \"sqlite://{}\"", self.home.join("ledger.db").display());
        let config = self.config("sqlite-maildir", &ledger, &self.maildir_store(dovecot));
        self.migrate(&config);
        config
    }

    /// The mailboxes that Dovecot serves, as files.
    pub fn maildir_store(&self, dovecot: &Dovecot) -> String {
        format!("url = \"maildir://{}\"", dovecot.mail_root().display())
    }

    /// Postgres by its Unix socket and IMAP on loopback without TLS.
    pub fn imap_config(&self, name: &str, postgres: &Postgres, dovecot: &Dovecot) -> PathBuf {
        self.config(
            name,
            &format!("url = \"{}\"", postgres.url_socket()),
            &self.imap_store(dovecot),
        )
    }

    pub fn imap_store(&self, dovecot: &Dovecot) -> String {
        let password = self.private("store.password", dovecot.password());
        format!(
            "url = \"imap://127.0.0.1:{}\"\nstarttls = false\nuser = \"{}\"\npassword_file = \
             \"{}\"",
            dovecot.imap_port(),
            dovecot.master_user(),
            password.display()
        )
    }

    fn migrate_new(&self, config: &Path) {
        let config_file = config.display().to_string();
        let args = ["migrate", "--accept-config", "--config", &config_file];
        let mut command = program(&self.onedrop, &args);
        // A ledger in a file is its user's.
        let user = unix_user(MAIL_USER);
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        crate::run(command.stdin(std::process::Stdio::null()));
    }

    /// Makes the ledger, which remembers for ever and serves any store: no delivery looks for a
    /// message that is older than the ledger, as all are here.
    pub fn migrate(&self, config: &Path) {
        self.migrate_since(config, "-1e15", "'-infinity'");
    }

    /// Makes the ledger, as if that had been done `secs` seconds from now.
    pub fn migrate_at(&self, config: &Path, secs: i32) {
        let postgres = format!("remembers_since + {secs} * interval '1 second'");
        self.migrate_since(config, &format!("remembers_since + {secs}"), &postgres);
    }

    fn migrate_since(&self, config: &Path, sqlite: &str, postgres: &str) {
        self.migrate_new(config);
        let text = fs::read_to_string(config).expect("a configuration");
        let url = text.split('"').nth(1).expect("ledger.url comes first");
        let set = |since: &str| {
            format!("UPDATE onedrop_ledger SET config = NULL, remembers_since = {since}")
        };
        if let Some(path) = url.strip_prefix("sqlite://") {
            let ledger = rusqlite::Connection::open(path).expect("the ledger");
            ledger.execute(&set(sqlite), ()).expect("its row");
        } else if url.starts_with("postgres://") {
            let args = ["-XqAt", "-d", url, "-c", &set(postgres)];
            crate::run(Command::new(bin("psql")).args(args));
        }
    }

    pub fn deliver_command(&self, config: &Path, account: &str) -> Command {
        let (config, recipient) =
            (config.display().to_string(), format!("{account}@mail.axial.net"));
        program(
            &self.onedrop,
            &[
                "deliver",
                "--config",
                &config,
                "-d",
                &recipient,
                "-f",
                STRANGER,
                "--queue-id",
                QUEUE_ID,
            ],
        )
    }

    /// One delivery of ours of a message by `from`.
    pub fn onedrop<'a>(
        &'a self,
        config: &'a Path,
        account: &'a str,
        from: &'a str,
    ) -> impl FnMut() -> Duration + 'a {
        move || deliver(&mut self.deliver_command(config, account), &message(from, MESSAGE_BYTES))
    }
}

/// What makes dovecot-lda's start cheaper than in the usual set-up: it may ask the running Dovecot
/// for its settings, in place of running doveconf, and nothing is done in vain.
pub const CONFIG_BY_SOCKET: &str =
    "service config {\n  unix_listener config {\n    mode = 0666\n  }\n}\n";

/// dovecot-lda as pipe(8) runs it: `-d` asks the running Dovecot's auth for the user. `settings` is
/// a configuration file (read by doveconf, which it runs) or the socket of [`CONFIG_BY_SOCKET`].
pub fn lda_command(settings: &Path, account: &str) -> Command {
    let settings = settings.display().to_string();
    program("/usr/lib/dovecot/dovecot-lda", &["-c", &settings, "-d", account, "-f", STRANGER, "-e"])
}

pub fn lda<'a>(settings: PathBuf, account: &'a str) -> impl FnMut() -> Duration + 'a {
    move || deliver(&mut lda_command(&settings, account), &message(STRANGER, MESSAGE_BYTES))
}

pub fn config_socket(dovecot: &Dovecot) -> PathBuf {
    dovecot.config_file().with_file_name("run").join("config")
}

/// Courier maildrop with a filter of one line, into a Maildir.
pub fn maildrop(bench: &Bench, dovecot: &Dovecot) -> impl FnMut() -> Duration + use<> {
    let folder = dovecot.maildir("maildrop");
    for sub in ["cur", "new", "tmp"] {
        fs::create_dir_all(folder.join(sub)).expect("a Maildir");
    }
    crate::chown_recursive(&dovecot.mail_root().join("maildrop"), MAIL_USER);
    let filter = bench.private("maildrop.filter", &format!("to \"{}\"\n", folder.display()));
    let filter = filter.display().to_string();
    move || {
        deliver(&mut program("/usr/bin/maildrop", &[&filter]), &message(STRANGER, MESSAGE_BYTES))
    }
}
