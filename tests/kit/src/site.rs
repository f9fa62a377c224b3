//! A site: a ledger, a store, a folder, and configurations of Onedrop that share nothing but these.
//!
//! With servers: one Postgres and one Dovecot, set up as `conf/` recommends. Embedded: a ledger in
//! a file and Maildirs, no server of others. All configurations of tests are written here.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use onedrop::lock_key::advisory_key;
use onedrop::message::{Bytes, DedupBy, Message};
use toml::{Table, Value};

use super::dovecot::{Dovecot, MAIL_USER};
use super::lmtp::{Launch, Lmtp};
use super::postgres::Postgres;
use super::{TempRoot, letters, maildir_copies, onedrop, set_mode, unix_user, wait_until};

/// What a configuration says of accounts and Sent unless it has a `[directory]` of its own: the
/// story of Lisa, Scuba and Doug.
pub const STORY: &str = r#"
[directory]
domains = ["mail.axial.net"]
accounts = { "lisa@gmail.com" = "lisa" }
[sent]
trust = "authenticated"
authserv_id = "mail.axial.net"
"#;

/// Ledger and store are `P`: [`Servers`] or [`Files`].
pub struct Site<P: Places = Servers> {
    // Declared first: dropped before the folder is deleted.
    places: P,
    pub root: TempRoot,
}

pub struct Servers {
    pub postgres: Postgres,
    pub dovecot: Dovecot,
}

/// `ledger.db` and `mail/` below the site's folder.
pub struct Files;

/// Where a site's ledger and store are.
pub trait Places {
    /// Their lines in the configuration.
    fn toml(&self, root: &Path) -> String;

    /// Prepares a configuration's folder, and the ledger for a store at this URL.
    fn prepare(&self, folder: &Path, store: &str);

    /// The user that owns the folders of configurations.
    fn owner(&self, root: &Path) -> u32;
}

impl<P: Places> Deref for Site<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.places
    }
}

impl<P: Places> DerefMut for Site<P> {
    fn deref_mut(&mut self) -> &mut P {
        &mut self.places
    }
}

impl<P: Places> Site<P> {
    /// Writes a configuration in a folder of its own, `NAME/onedrop.toml`: where ledger and store
    /// are, [`STORY`] unless `more` has a `[directory]`, and key by key over that what `more` says.
    /// `$DIR` is the folder; with servers `$DIR/ledger.password` holds the ledger's password.
    pub fn config(&self, name: &str, more: &str) -> PathBuf {
        let folder = self.root.join(name);
        fs::create_dir_all(&folder).expect("folder");
        let parsed = |text: &str| -> Table {
            let text = text.replace("$DIR", &folder.display().to_string());
            text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
        };
        let (mut table, more) = (parsed(&self.places.toml(&self.root)), parsed(more));
        // What a test needs is made by its first delivery; `tests/delivery/mail_root.rs` is about
        // hosts where it is not.
        lay_over(&mut table, parsed("deliver.trial = true"));
        if !more.contains_key("directory") {
            lay_over(&mut table, parsed(STORY));
        }
        lay_over(&mut table, more);
        if let Some(Value::Table(store)) = table.get_mut("store") {
            let url = store.get("url").and_then(Value::as_str).unwrap_or_default().to_owned();
            if url.starts_with("imap://") {
                store.entry("starttls").or_insert(Value::Boolean(false));
            }
            self.places.prepare(&folder, &url);
        }
        let path = folder.join("onedrop.toml");
        fs::write(&path, table.to_string()).expect("configuration");
        let owner = self.places.owner(&self.root);
        for entry in fs::read_dir(&folder).expect("folder") {
            chown(&entry.expect("entry").path(), owner);
        }
        chown(&folder, owner);
        path
    }

    /// `onedrop lmtp` with the configuration `server`, serving; see [`Launch`].
    pub fn server(&self, more: &str) -> Lmtp {
        self.launch(more).start()
    }

    /// [`Site::server`], to be started.
    pub fn launch(&self, more: &str) -> Launch {
        Launch::of(&self.config("server", more))
    }

    /// Where [`Site::server`] listens.
    pub fn socket(&self) -> PathBuf {
        fs::create_dir_all(self.root.join("server")).expect("folder");
        self.root.join("server/lmtp.sock")
    }
}

/// What `over` says of a key counts; tables are joined.
fn lay_over(table: &mut Table, over: Table) {
    for (key, value) in over {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => lay_over(below, above),
            (_, value) => drop(table.insert(key, value)),
        }
    }
}

fn chown(path: &Path, user: u32) {
    std::os::unix::fs::chown(path, Some(user), None)
        .unwrap_or_else(|error| panic!("chown {}: {error}", path.display()));
}

impl Places for Servers {
    fn toml(&self, _root: &Path) -> String {
        format!(
            "{}[store]\nurl = \"imap://127.0.0.1:{}\"\nuser = \"{}\"\n\
             password_file = \"$DIR/password\"\n",
            self.postgres.toml(),
            self.dovecot.imap_port(),
            self.dovecot.master_user()
        )
    }

    fn prepare(&self, folder: &Path, store: &str) {
        for (name, password) in
            [("password", self.dovecot.password()), ("ledger.password", self.postgres.password())]
        {
            fs::write(folder.join(name), password).expect("password");
            set_mode(&folder.join(name), 0o600);
        }
        self.note_the_proof(store);
    }

    fn owner(&self, _root: &Path) -> u32 {
        unix_user(MAIL_USER).uid.as_raw()
    }
}

impl Site {
    /// Databases and accounts of its own in the run's servers.
    pub fn with_servers() -> Site {
        Site::with(Dovecot::shared())
    }

    /// A Dovecot of its own, for a test that stops it, or asks it for more than IMAP.
    pub fn with_own_dovecot() -> Site {
        Site::with(Dovecot::start_high_performance())
    }

    /// A Postgres of its own, for a test that stops it, makes roles or looks at all sessions.
    pub fn with_own_postgres() -> Site {
        Site::of(Postgres::start(), Dovecot::shared(), TempRoot::new())
    }

    /// A ledger in the run's Postgres beside this store.
    pub fn with(dovecot: Dovecot) -> Site {
        Site { places: Servers { postgres: Postgres::shared(), dovecot }, root: TempRoot::new() }
    }

    /// These two, with the ledger migrated.
    pub fn of(postgres: Postgres, dovecot: Dovecot, root: TempRoot) -> Site {
        let site = Site { places: Servers { postgres, dovecot }, root };
        let migrated = run(&site.config("migrate", ""), &["migrate"]);
        assert!(migrated.status.success(), "migrate: {migrated:?}");
        site.places.postgres.remember_for_ever();
        // The configuration that a test delivers with is the first one on record.
        site.places.postgres.psql("UPDATE onedrop_ledger SET config = NULL");
        site
    }

    /// Lisa has written to Scuba and Doug: one copy each, as it should be, and one in her Sent that
    /// names no recipient.
    pub fn story_is_told(&self, message_id: &str) {
        for account in ["scuba", "doug"] {
            let mails = self.dovecot.messages(account, "INBOX");
            assert_eq!(mails.len(), 1, "{account}");
            let text = String::from_utf8_lossy(&mails[0]);
            assert!(text.starts_with("Return-Path: <lisa@gmail.com>\r\n"), "{text}");
            assert!(text.contains(&format!("Delivered-To: {account}")), "{text}");
            assert_eq!(self.dovecot.flags(account, "INBOX"), [Vec::<String>::new()]);
        }
        let sent = self.dovecot.messages("lisa", "Sent");
        assert_eq!(sent.len(), 1);
        let text = String::from_utf8_lossy(&sent[0]);
        assert!(
            !text.contains("Delivered-To:") && !text.contains("Return-Path:"),
            "a shared copy names a recipient: {text}"
        );
        assert_eq!(self.dovecot.flags("lisa", "Sent"), [["\\Seen"]]);
        assert_eq!(self.ledger_copies(message_id), "3 of 3");
    }
}

impl Servers {
    /// Puts the proof on record that this mail server heeds the authorization identity: deliveries
    /// through a proxy that counts their commands must not prove it again. See
    /// `tests/peers/imap_proof.rs`.
    fn note_the_proof(&self, store: &str) {
        if let Some((_, server)) = store.split_once("://").filter(|(way, _)| way.contains("imap")) {
            let user = self.dovecot.master_user();
            self.postgres.psql(&format!(
                "DO $$ BEGIN IF to_regclass('onedrop_proof') IS NOT NULL THEN INSERT INTO \
                 onedrop_proof (server, login_user, way, host) VALUES ('{server}', '{user}', \
                 'sasl', 'test') ON CONFLICT DO NOTHING; END IF; END $$"
            ));
        }
    }

    /// Puts on record that the guard has been in force at this LMTP server, which is on this host,
    /// for long, as `onedrop check` does.
    pub fn note_the_guard(&self, server: &str) {
        let host = nix::unistd::gethostname().expect("a name").into_string().expect("text");
        self.postgres.psql(&format!(
            "INSERT INTO onedrop_proof (server, login_user, way, host) VALUES ('{server} at \
             {host}', '', 'guard, 518400 s since 0', 'test') ON CONFLICT DO NOTHING"
        ));
    }

    /// Leases have run out.
    pub fn end_leases(&self) {
        self.postgres.psql(
            "UPDATE onedrop_copy SET leased_until = clock_timestamp() - interval '1 second' WHERE \
             leased_until IS NOT NULL",
        );
    }

    /// What the ledger says of the only message with this text in its Message-ID: copies placed,
    /// copies in all.
    pub fn ledger_copies(&self, message_id: &str) -> String {
        self.postgres.psql(&format!(
            "SELECT count(c.placed_at) || ' of ' || count(*) FROM onedrop_message m JOIN \
             onedrop_copy c ON c.message_id = m.id WHERE m.message_id LIKE '%{message_id}%'"
        ))
    }

    /// Makes the copies (an SQL condition) as they are after a crash between the append and its
    /// record, with the lease run out.
    pub fn forget_receipts(&self, which: &str) {
        self.postgres.psql(&format!(
            "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL, \
             in_doubt = \
             true, leased_until = clock_timestamp() - interval '1 second' WHERE {which}; DELETE \
             FROM onedrop_kept"
        ));
    }
}

impl Places for Files {
    fn toml(&self, root: &Path) -> String {
        let at = root.display();
        format!(
            "[ledger]\nurl = \"sqlite://{at}/ledger.db\"\n[store]\nurl = \"maildir://{at}/mail\"\n"
        )
    }

    fn prepare(&self, _folder: &Path, _store: &str) {}

    fn owner(&self, root: &Path) -> u32 {
        fs::metadata(root).expect("folder").uid()
    }
}

/// Another delivery's lock on a message, until dropped.
pub struct Held {
    _locks: File,
}

impl Site<Files> {
    pub fn embedded() -> Site<Files> {
        Site { places: Files, root: TempRoot::new() }
    }

    /// Makes the ledger, then does what [`Postgres::remember_for_ever`] does.
    pub fn remember_for_ever(&self) {
        let migrated = run(&self.config("migrate", ""), &["migrate"]);
        assert!(migrated.status.success(), "migrate: {migrated:?}");
        let sql = "UPDATE onedrop_ledger SET remembers_since = -1e15, config = NULL";
        self.sqlite().execute(sql, []).expect("the ledger's row");
    }

    /// What comes belongs to this user, and [`Site::server`] runs as this user.
    pub fn give_to(&self, user: u32) {
        chown(&self.root, user);
    }

    /// The copies in an account's mailbox (its name in Maildir++: empty, or `.Sent`).
    pub fn copies(&self, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
        maildir_copies(&self.root.join("mail"), account, mailbox)
    }

    pub fn inbox(&self, account: &str) -> Vec<Vec<u8>> {
        self.copies(account, "")
    }

    /// The account has these messages, each as often as it is named, and no other.
    #[track_caller]
    pub fn inbox_has<E: AsRef<[u8]>>(&self, account: &str, messages: impl IntoIterator<Item = E>) {
        letters::are_these(account, &self.inbox(account), messages);
    }

    /// Another session with the ledger; there must have been one before.
    pub fn sqlite(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.root.join("ledger.db")).expect("ledger")
    }

    /// The first column of what this query answers.
    pub fn ledger(&self, sql: &str) -> Vec<String> {
        let ledger = self.sqlite();
        let mut query = ledger.prepare(sql).expect("query");
        let rows = query.query_map([], |row| row.get::<_, String>(0)).expect("rows");
        rows.map(|row| row.expect("row")).collect()
    }

    /// Puts a file where the account's Maildir should be: nothing can be stored for it.
    pub fn block(&self, account: &str) {
        self.root.write(&format!("mail/{account}/Maildir"), "no folder");
    }

    /// Takes a message's lock, as another delivery of it would (`ledger/sqlite.rs`); there must
    /// have been a delivery.
    pub fn hold(&self, message: &[u8]) -> Held {
        let locks =
            OpenOptions::new().write(true).open(self.root.join("ledger.db-locks")).expect("locks");
        let message = Message::new(Bytes::Memory(message.to_vec()), DedupBy::Content);
        let key = advisory_key(&message.identity().id_hash);
        lock_byte(&locks, key);
        Held { _locks: locks }
    }
}

/// Takes the lock of this key in a file of locks, as every version of Onedrop does.
pub fn lock_byte(file: &File, key: i64) {
    let range = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: key & i64::MAX,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&range)).expect("nobody has it");
}

/// Starts a delivery in the folder of its configuration.
pub fn start_delivery(config: &Path, args: &[&str]) -> Child {
    let mut command = onedrop();
    command.arg("deliver").arg("--config").arg(config).args(args);
    command.current_dir(config.parent().expect("folder"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("binary")
}

/// Feeds a started delivery and waits for its end.
pub fn finish_delivery(mut child: Child, message: &[u8]) -> Output {
    let mut stdin = child.stdin.take().expect("stdin");
    // A delivery that ended early is judged by its status.
    drop(stdin.write_all(message));
    drop(stdin);
    child.wait_with_output().expect("end")
}

/// One delivery, from start to end.
pub fn deliver(config: &Path, args: &[&str], message: &[u8]) -> Output {
    finish_delivery(start_delivery(config, args), message)
}

/// One delivery that must succeed; returns what it said.
#[track_caller]
pub fn delivered(config: &Path, args: &[&str], message: &[u8]) -> String {
    let output = deliver(config, args, message);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}: {said}", output.status);
    said
}

/// Runs another command of ours against `config`, on a host whose Postfix is not set up: what the
/// host has is no part of the test.
pub fn run(config: &Path, args: &[&str]) -> Output {
    let mut command: Command = onedrop();
    command
        .env("MAIL_CONFIG", "/nonexistent")
        .args(args)
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .output()
        .expect("binary")
}

/// A mail server that gives no answer in time to a copy for Sent keeps no mail from recipients:
/// such copies (of all messages, or of the account's) are kept, and settled here as by the job.
/// `value` asks the ledger; nothing, where there is none yet. Returns how many there were.
pub fn settle_kept(
    config: &Path,
    account: Option<&str>,
    value: impl Fn(&str) -> Option<String>,
) -> Result<usize, String> {
    let mut sql = "SELECT CAST(count(*) AS text) FROM onedrop_kept".to_owned();
    if let Some(account) = account {
        sql += " WHERE message_id IN (SELECT message_id FROM onedrop_copy WHERE account = '";
        sql += &format!("{account}')");
    }
    let kept = || value(&sql).map_or(0, |count| count.parse().expect("a number of rows"));
    let count: usize = kept();
    let mut said = None;
    let is_settled = wait_until(Duration::from_secs(60), || {
        kept() == 0 || {
            let output = run(config, &["settle"]);
            assert!(matches!(output.status.code(), Some(0 | 75)), "{output:?}");
            said = Some(output);
            thread::sleep(Duration::from_millis(200));
            false
        }
    });
    if is_settled {
        Ok(count)
    } else {
        Err(format!("{} of {count} are still kept: {said:?}", kept()))
    }
}

/// A ledger's server that crashes, or that another one takes over from, may have lost the receipts
/// of recipients' copies: once their leases are over they are put on record here, as by the job.
/// `value` asks the ledger. Returns how many there were.
pub fn settle_lost(config: &Path, value: impl Fn(&str) -> String) -> usize {
    let sql =
        "SELECT CAST(count(*) AS text) FROM onedrop_copy WHERE placed_at IS NULL AND NOT shared";
    let lost = || value(sql).parse::<usize>().expect("a number of rows");
    let count = lost();
    let mut said = None;
    let is_settled = wait_until(Duration::from_secs(60), || {
        lost() == 0 || {
            said = Some(run(config, &["settle"]));
            thread::sleep(Duration::from_millis(200));
            false
        }
    });
    assert!(is_settled, "{} of {count} are still lost: {said:?}", lost());
    count
}
