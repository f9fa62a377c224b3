//! Where deliveries go: a ledger in a file, on a Postgres or a MariaDB, Maildirs or a Dovecot; and
//! what must be there afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use postgres::{Client, NoTls, SimpleQueryMessage};

use crate::support::dovecot::Dovecot;
use crate::support::filters::{Filters, Guard};
use crate::support::imap::over_imap;
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::site::{Files, Site, deliver, run};
use crate::support::{fixture_text, maildir_copies, set_mode, wait_until};

/// The lease outlives the deadline by more than Dovecot needs for an append. One copy after the
/// other: calls of threads side by side look alike, and cannot be killed one by one.
const TIMES: &str = "[lock]\nwait_secs = 1\nlease_secs = 6\n[limits]\ndeadline_secs = 5\n\
                     answer_secs = 2\n\
                     [lmtp]\nside_by_side = 1\n";
/// For what comes before the kill, on a busy machine.
const PATIENT: &str = "[lock]\nwait_secs = 1\nlease_secs = 50\n[limits]\ndeadline_secs = 40\n\
                       answer_secs = 20\n[lmtp]\nside_by_side = 1\n";
/// Where a filtering Dovecot forwards all mail to.
const FAR: &str = "far@elsewhere.example";
const HERE: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n[sent]\ntrust = \
                    \"authenticated\"\n\
                    authserv_id = \"mail.axial.net\"\n";

/// What is delivered, and what was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Small,
    /// More than goes without the server's `+`, and more than one write.
    Large,
    /// With a byte that IMAP has no place for.
    Nul,
    /// In one call.
    ThreeRecipients,
    /// An earlier delivery died before it wrote anything, and its lease has run out.
    InDoubt,
    /// It died before it could say that it had written all copies.
    InDoubtWithCopies,
}

impl Kind {
    pub fn is_in_doubt(self) -> bool {
        matches!(self, Kind::InDoubt | Kind::InDoubtWithCopies)
    }

    pub fn message(self, id: &str) -> Vec<u8> {
        let mut text = fixture_text("fixtures/kills/message.eml").replace("@ID@", id);
        match self {
            Kind::Large => {
                while text.len() < 1_200_000 {
                    text.push_str(
                        "It takes more than one breath to say this, and a crash may come \
                                   in between.\n",
                    );
                }
            }
            Kind::Nul => text.push_str("Nothing: \0, and again: \0\0.\n"),
            _ => {}
        }
        text.into_bytes()
    }

    pub fn recipients(self, id: &str) -> Vec<String> {
        let names: &[&str] =
            if self == Kind::ThreeRecipients { &["to", "second", "third"] } else { &["to"] };
        names.iter().map(|name| format!("{name}-{id}@mail.axial.net")).collect()
    }

    /// Account and mailbox of each copy.
    pub fn copies(self, id: &str) -> Vec<(String, &'static str)> {
        let account = |address: String| address.split('@').next().unwrap_or_default().to_owned();
        let own = self.recipients(id).into_iter().map(|recipient| (account(recipient), "INBOX"));
        own.chain([(format!("from-{id}"), "Sent")]).collect()
    }

    /// For `deliver`.
    pub fn arguments(self, id: &str) -> Vec<String> {
        self.recipients(id).into_iter().flat_map(|recipient| ["-d".to_owned(), recipient]).collect()
    }
}

/// How the copies of a delivery stand on record.
#[derive(Debug, Default, Clone, Copy)]
pub struct Standing {
    pub placed: usize,
    pub in_doubt: usize,
    pub found_by_look: usize,
    /// For Sent, whose bytes wait on record for one who places it.
    pub kept: usize,
}

/// Without a Postgres or a Dovecot each delivery has a ledger or a store of its own: making them is
/// among the steps.
pub struct Combination {
    pub site: Site<Files>,
    pub postgres: Option<Postgres>,
    pub mariadb: Option<Mariadb>,
    pub dovecot: Option<Dovecot>,
    /// What the Dovecot runs for recipients' own copies, which are handed over to it by LMTP.
    pub filters: Option<Filters>,
    /// A session with the ledger of all.
    session: Option<Mutex<Client>>,
}

/// One `_` (SQL's LIKE) for each character that a variant's name has after its mailbox: in a
/// Maildir, what has NULs is one.
const VARIANT: &str = "_________________";

impl Combination {
    pub fn embedded() -> Combination {
        Combination {
            site: Site::embedded(),
            postgres: None,
            mariadb: None,
            dovecot: None,
            filters: None,
            session: None,
        }
    }

    /// Each with a ledger of its own.
    pub fn sqlite_and_imap() -> Combination {
        Combination::with_sqlite(Dovecot::shared(), None)
    }

    /// Like `handing_over`, each with a ledger of its own.
    pub fn sqlite_and_lmtp() -> Combination {
        let (dovecot, filters) = forwarding();
        Combination::with_sqlite(dovecot, Some(filters))
    }

    fn with_sqlite(dovecot: Dovecot, filters: Option<Filters>) -> Combination {
        let site = Site::embedded();
        set_mode(&site.root.write("password", dovecot.password()), 0o600);
        let dovecot = Some(dovecot);
        Combination { site, postgres: None, mariadb: None, dovecot, filters, session: None }
    }

    pub fn postgres_and_maildir() -> Combination {
        Combination::with_postgres(None, None)
    }

    pub fn servers() -> Combination {
        Combination::with_postgres(Some(Dovecot::shared()), None)
    }

    /// Like `servers`, with a Dovecot that forwards a copy of each message it is handed by LMTP,
    /// under the guard alone: Pigeonhole's own memory of what it has forwarded is off.
    pub fn handing_over() -> Combination {
        let (dovecot, filters) = forwarding();
        Combination::with_postgres(Some(dovecot), Some(filters))
    }

    /// Like `handing_over`, with the ledger on a MariaDB.
    pub fn mariadb_and_lmtp() -> Combination {
        let (dovecot, filters) = forwarding();
        Combination::with_mariadb(Some(dovecot), Some(filters))
    }

    fn with_postgres(dovecot: Option<Dovecot>, filters: Option<Filters>) -> Combination {
        let (site, postgres) = (Site::embedded(), Postgres::shared_and_empty());
        if let Some(dovecot) = &dovecot {
            set_mode(&site.root.write("password", dovecot.password()), 0o600);
        }
        let session = format!(
            "host={} port={} user=postgres dbname={}",
            postgres.socket_dir().display(),
            postgres.port(),
            postgres.database()
        );
        let session = Client::connect(&session, NoTls).expect("a session");
        let session = Some(Mutex::new(session));
        let postgres = Some(postgres);
        let all = Combination { site, postgres, mariadb: None, dovecot, filters, session };
        let output = run(&all.patient_config("migrate"), &["migrate"]);
        assert!(output.status.success(), "{output:?}");
        all
    }

    pub fn mariadb_and_maildir() -> Combination {
        Combination::with_mariadb(None, None)
    }

    pub fn mariadb_and_imap() -> Combination {
        Combination::with_mariadb(Some(Dovecot::shared()), None)
    }

    fn with_mariadb(dovecot: Option<Dovecot>, filters: Option<Filters>) -> Combination {
        let (site, mariadb) = (Site::embedded(), Mariadb::shared_and_empty());
        set_mode(&site.root.write("ledger.password", mariadb.password()), 0o600);
        if let Some(dovecot) = &dovecot {
            set_mode(&site.root.write("password", dovecot.password()), 0o600);
        }
        let mariadb = Some(mariadb);
        let all = Combination { site, postgres: None, mariadb, dovecot, filters, session: None };
        let output = run(&all.patient_config("migrate"), &["migrate"]);
        assert!(output.status.success(), "{output:?}");
        all
    }

    pub fn name(&self) -> String {
        let ledger = match (&self.postgres, &self.mariadb) {
            (Some(_), _) => "Postgres",
            (_, Some(_)) => "MariaDB",
            _ => "SQLite",
        };
        let store = match (&self.dovecot, &self.filters) {
            (Some(_), Some(_)) => "LMTP",
            (Some(_), None) => "IMAP",
            _ => "Maildir",
        };
        format!("{ledger} + {store}")
    }

    fn at(&self, id: &str) -> PathBuf {
        self.site.root.join(id)
    }

    fn own_database(&self) -> &str {
        match (&self.postgres, &self.mariadb) {
            (Some(postgres), _) => postgres.database(),
            (None, Some(mariadb)) => mariadb.database(),
            (None, None) => "",
        }
    }

    /// The name of a database on the same server for `id` alone.
    pub fn database(&self, id: &str) -> String {
        format!("{}_{id}", self.own_database())
    }

    /// A configuration's text, with that database in place of the one for all.
    pub fn in_database(&self, id: &str, text: &str) -> String {
        text.replace(&format!("/{}?", self.own_database()), &format!("/{}?", self.database(id)))
    }

    /// One for all deliveries where one ledger serves them: it knows one store.
    pub fn mail_root(&self, id: &str) -> PathBuf {
        match &self.dovecot {
            Some(dovecot) => dovecot.mail_root(),
            None if self.is_a_server() => self.site.root.join("mail"),
            None => self.at(id).join("mail"),
        }
    }

    /// Delivery `id`'s configuration.
    pub fn config(&self, id: &str) -> PathBuf {
        self.config_with(id, id, &self.store(id), TIMES)
    }

    /// The same, for deliveries that are to succeed however long it takes.
    pub fn patient_config(&self, id: &str) -> PathBuf {
        self.config_with(&format!("{id}/patient"), id, &self.store(id), PATIENT)
    }

    fn store(&self, id: &str) -> String {
        match &self.dovecot {
            Some(dovecot) => self.imap(dovecot, dovecot.imap_port()),
            None => format!("url = \"maildir://{}\"", self.mail_root(id).display()),
        }
    }

    fn imap(&self, dovecot: &Dovecot, port: u16) -> String {
        let password = self.site.root.join("password");
        let user = dovecot.master_user();
        // That the server heeds for whom we log in is on record: the first delivery of all finds it
        // out, which is not what is looked at here.
        if self.mariadb.is_some() && self.has_proofs() {
            self.execute(
                "",
                &format!(
                    "INSERT INTO onedrop_proof (server, login_user, way, host, proven_at)
                     VALUES ('127.0.0.1:{port}', '{user}', 'sasl', 'test', UTC_TIMESTAMP(6))
                     ON DUPLICATE KEY UPDATE host = 'test'"
                ),
            );
        }
        if self.postgres.is_some() {
            self.execute(
                "",
                &format!(
                    "DO $$ BEGIN IF to_regclass('onedrop_proof') IS NOT NULL THEN
                         INSERT INTO onedrop_proof (server, login_user, way, host)
                         VALUES ('127.0.0.1:{port}', '{user}', 'sasl', 'test')
                         ON CONFLICT DO NOTHING;
                     END IF; END $$"
                ),
            );
        }
        let lmtp = match (&self.filters, port) {
            (None, _) => String::new(),
            (Some(_), 1) => "\nlmtp = \"lmtp://127.0.0.1:1\"".to_owned(),
            (Some(_), _) => format!("\nlmtp = \"unix:{}\"", dovecot.lmtp_socket().display()),
        };
        format!(
            "url = \"imap://127.0.0.1:{port}\"\nuser = \"{user}\"\npassword_file = \"{}\"{lmtp}",
            password.display()
        )
    }

    fn config_with(&self, name: &str, id: &str, store: &str, times: &str) -> PathBuf {
        let (ledger, more) = match (&self.postgres, &self.mariadb) {
            (Some(postgres), _) => (postgres.url_socket(), String::new()),
            (None, Some(mariadb)) => {
                let password = self.site.root.join("ledger.password");
                (mariadb.url_socket(), format!("password_file = \"{}\"\n", password.display()))
            }
            _ => {
                let folder = self.at(id);
                (format!("sqlite://{}/ledger/ledger.db", folder.display()), String::new())
            }
        };
        let text = format!("[ledger]\nurl = \"{ledger}\"\n{more}[store]\n{store}\n{HERE}{times}");
        self.site.config(name, &text)
    }

    /// Where a Dovecot that filters remembers what it has filtered.
    pub fn make_home(&self, account: &str) {
        if let (Some(dovecot), Some(_)) = (&self.dovecot, &self.filters) {
            dovecot.make_home(account);
        }
    }

    /// Makes it so that delivery `id` finds what its kind says.
    pub fn prepare(&self, id: &str, kind: Kind) {
        kind.copies(id).iter().for_each(|(account, _)| self.make_home(account));
        if !kind.is_in_doubt() {
            return;
        }
        // At a port without a server, or in a Maildir that is emptied: the copy is not there.
        let (config, status) = match (&self.dovecot, kind) {
            (Some(dovecot), Kind::InDoubt) => {
                let store = self.imap(dovecot, 1);
                (self.config_with(&format!("{id}/nobody"), id, &store, TIMES), 75)
            }
            _ => (self.patient_config(id), 0),
        };
        let arguments = kind.arguments(id);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = deliver(&config, &arguments, &kind.message(id));
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        if self.dovecot.is_none() && kind == Kind::InDoubt {
            kind.copies(id).iter().for_each(|(account, _)| self.empty(id, account));
        }
        self.forget_receipts(id, &format!("account IN ({})", accounts(&kind.copies(id))));
    }

    /// Makes the copies (an SQL condition) as they are after a crash before the receipt, with the
    /// lease run out.
    pub fn forget_receipts(&self, id: &str, which: &str) {
        let (past, truth) = match (&self.postgres, &self.mariadb) {
            (Some(_), _) => ("clock_timestamp() - interval '1 second'", "true"),
            (_, Some(_)) => ("UTC_TIMESTAMP(6) - INTERVAL 1 SECOND", "true"),
            _ => ("1", "1"),
        };
        self.execute(
            id,
            &format!(
                "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL, \
                 in_doubt = {truth}, leased_until = {past} WHERE {which}"
            ),
        );
        // A crash leaves nothing of a Sent that was refused.
        self.execute(id, "DELETE FROM onedrop_kept");
    }

    pub fn execute(&self, id: &str, sql: &str) {
        if let Some(mariadb) = &self.mariadb {
            mariadb.sql(sql);
            return;
        }
        match &self.session {
            Some(session) => session.lock().expect("session").batch_execute(sql).expect("SQL"),
            None => drop(self.sqlite(id).execute(sql, []).expect("SQL")),
        }
    }

    pub fn sqlite(&self, id: &str) -> rusqlite::Connection {
        rusqlite::Connection::open(self.at(id).join("ledger/ledger.db")).expect("ledger")
    }

    /// One value from the ledger as text; `None` where there is none, or no ledger yet.
    pub fn value(&self, id: &str, sql: &str) -> Option<String> {
        if let Some(mariadb) = &self.mariadb {
            let sql = sql.replace(" AS text)", " AS CHAR)");
            return Some(mariadb.sql(&sql)).filter(|value| !value.is_empty());
        }
        let Some(session) = &self.session else {
            let is_there = self.at(id).join("ledger/ledger.db").exists();
            return if is_there {
                self.sqlite(id).query_row(sql, [], |row| row.get(0)).ok()
            } else {
                None
            };
        };
        let answer = session.lock().expect("session").simple_query(sql).expect("SQL");
        answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    }

    fn number(&self, id: &str, what: &str, of: &str) -> usize {
        let value =
            self.value(id, &format!("SELECT CAST({what} AS text) FROM onedrop_copy WHERE {of}"));
        value.map_or(0, |value| value.parse().expect("a number"))
    }

    /// A copy's receipt, where it is placed and nothing is left of its lease.
    fn receipt(&self, id: &str, account: &str, mailbox: &str) -> Option<String> {
        let sql = format!(
            "SELECT receipt FROM onedrop_copy WHERE account = '{account}' AND \
             (mailbox = '{mailbox}' OR mailbox LIKE '{mailbox}{VARIANT}') AND placed_at IS NOT \
             NULL AND NOT in_doubt AND leased_until IS NULL"
        );
        self.value(id, &sql)
    }

    pub fn standing(&self, id: &str, copies: &[(String, &'static str)]) -> Standing {
        let accounts = accounts(copies);
        let count = |what: &str| {
            self.number(id, "count(*)", &format!("account IN ({accounts}) AND {what}"))
        };
        Standing {
            placed: count("placed_at IS NOT NULL"),
            in_doubt: count("placed_at IS NULL AND in_doubt"),
            found_by_look: count("found_by_look"),
            kept: count(
                "placed_at IS NULL AND message_id IN (SELECT message_id FROM onedrop_kept)",
            ),
        }
    }

    /// A message as the store holds it.
    pub fn stored(&self, message: &[u8]) -> Vec<u8> {
        match self.dovecot {
            Some(_) => over_imap(message),
            None => message.to_owned(),
        }
    }

    pub fn mailbox(&self, id: &str, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
        match &self.dovecot {
            Some(dovecot) => dovecot.messages(account, mailbox),
            None if mailbox == "INBOX" => maildir_copies(&self.mail_root(id), account, ""),
            None => maildir_copies(&self.mail_root(id), account, &format!(".{mailbox}")),
        }
    }

    /// Takes all messages out of the account's INBOX.
    pub fn empty(&self, id: &str, account: &str) {
        match &self.dovecot {
            Some(dovecot) => dovecot.empty(account),
            None => fs::remove_dir_all(self.mail_root(id).join(account)).expect("a Maildir"),
        }
    }

    /// Nothing but one copy of `message` in each of `copies`, as the ledger says.
    pub fn judge(
        &self,
        id: &str,
        copies: &[(String, &'static str)],
        message: &[u8],
    ) -> Result<(), String> {
        let wanted = self.stored(message);
        for (account, mailbox) in copies {
            let there = self.mailbox(id, account, mailbox);
            if there.len() != 1 {
                return Err(format!("{account}/{mailbox}: {} copies", there.len()));
            }
            let was_handed = self.filters.is_some() && *mailbox == "INBOX";
            if !self.is_copy(mailbox, &there[0], message) {
                return Err(format!("{account}/{mailbox}: not the message's bytes"));
            }
            let receipt = self
                .receipt(id, account, mailbox)
                .ok_or(format!("{account}/{mailbox}: not on record"))?;
            if was_handed {
                self.was_forwarded_once(account, &wanted)?;
                continue;
            }
            let name = match &self.dovecot {
                Some(dovecot) => dovecot.uids(account, mailbox)[0].to_string(),
                None => self.file_name(id, account, mailbox),
            };
            if receipt.rsplit('/').next() != Some(&*name) {
                return Err(format!(
                    "{account}/{mailbox}: the ledger names {receipt}, there is {name}"
                ));
            }
            // Dovecot clears away what a cut connection left when it notices.
            let tmp = || litter(&self.mail_root(id).join(account));
            if !wait_until(Duration::from_secs(5), || tmp().is_empty()) {
                return Err(format!("litter: {:?}", tmp()));
            }
        }
        let of = format!("account IN ({})", accounts(copies));
        let (rows, messages) =
            (self.number(id, "count(*)", &of), self.number(id, "count(DISTINCT message_id)", &of));
        if (rows, messages) != (copies.len(), 1) {
            return Err(format!("{rows} copies of {messages} messages on record"));
        }
        let mut beside =
            if self.is_a_server() { Vec::new() } else { files(&self.at(id).join("ledger")) };
        beside.retain(|file| {
            !["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-locks"].contains(&&**file)
        });
        if beside.is_empty() { Ok(()) } else { Err(format!("beside the ledger: {beside:?}")) }
    }

    /// Whether this stands in the mailbox for the message.
    pub fn is_copy(&self, mailbox: &str, copy: &[u8], message: &[u8]) -> bool {
        let wanted = self.stored(message);
        match self.filters.is_some() && mailbox == "INBOX" {
            true => is_handed(copy, &wanted),
            false => copy == wanted,
        }
    }

    /// The account's filter has sent the message on once.
    fn was_forwarded_once(&self, account: &str, message: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(message);
        let field = text.lines().find(|line| line.starts_with("Message-ID:")).unwrap_or_default();
        let to = format!("Delivered-To: {account}@");
        let sent = self.filters.iter().flat_map(|filters| filters.sent_to(FAR));
        match sent.filter(|sent| sent.message.contains(field) && sent.message.contains(&to)).count()
        {
            1 => Ok(()),
            times => Err(format!("{account}: forwarded {times} times")),
        }
    }

    fn has_proofs(&self) -> bool {
        let tables = "SELECT CAST(table_name AS text) FROM information_schema.tables
                      WHERE table_name = 'onedrop_proof' AND table_schema = DATABASE()";
        self.value("", tables).is_some()
    }

    /// Whether one ledger serves all deliveries.
    fn is_a_server(&self) -> bool {
        self.postgres.is_some() || self.mariadb.is_some()
    }

    /// What the only file in a Maildir is called, without a reader's flags.
    fn file_name(&self, id: &str, account: &str, mailbox: &str) -> String {
        let maildir = self.mail_root(id).join(account).join("Maildir");
        let folder = if mailbox == "INBOX" { maildir } else { maildir.join(format!(".{mailbox}")) };
        let names: Vec<String> =
            ["new", "cur"].iter().flat_map(|sub| files(&folder.join(sub))).collect();
        names.concat().split(':').next().unwrap_or_default().to_owned()
    }
}

/// A Dovecot that forwards a copy of each message that it is handed by LMTP, under the guard alone.
fn forwarding() -> (Dovecot, Filters) {
    let filters = Filters::new();
    filters.before(&format!("require \"copy\";\nredirect :copy \"{FAR}\";\n"));
    let conf = filters.conf(Guard::On);
    let forgetful = "plugin {\n  sieve_redirect_duplicate_period = 0\n}\n";
    (Dovecot::start_high_performance_with(&format!("{conf}{forgetful}")), filters)
}

/// Whether this is the message after what Dovecot's LMTP and we put before it.
fn is_handed(copy: &[u8], message: &[u8]) -> bool {
    let fields = copy.strip_suffix(message).map(String::from_utf8_lossy);
    fields.is_some_and(|fields| fields.matches("X-Onedrop-Copy: ").count() == 1)
}

/// For an SQL list.
fn accounts(copies: &[(String, &'static str)]) -> String {
    let quoted: Vec<String> = copies.iter().map(|(account, _)| format!("'{account}'")).collect();
    quoted.join(", ")
}

pub fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What is left under any `tmp/` below.
pub fn litter(folder: &Path) -> Vec<PathBuf> {
    let mut left = Vec::new();
    for name in files(folder) {
        let path = folder.join(&name);
        if name == "tmp" {
            left.extend(files(&path).into_iter().map(|file| path.join(file)));
        } else if path.is_dir() {
            left.extend(litter(&path));
        }
    }
    left
}
