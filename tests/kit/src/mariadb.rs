//! MariaDB for a test: a migrated database and a user of its own in the run's server, or, for a
//! test that stops, pauses or configures the server, one of its own: a data folder (copied from a
//! cached template), a socket and a port.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder, Row, Value};
use nix::sys::signal::Signal;
use onedrop::ledger::mariadb::{MariadbLedger, MariadbSettings, MysqlUrl};
use onedrop::ledger::{Program, Schema as _};
use onedrop::net::pool::Limits;

use super::server::{Server, guarded, tail, template};
use super::shared::{self, Shared, Starting};
use super::{TempRoot, free_port, run};

const USER: &str = "mysql";
const PASSWORD: &str = "ledger-secret";
/// Part of the template's name: change it whenever [`build_template`] or [`SIZES`] changes.
const TEMPLATE: &str = "template-1";

/// The table of `onedrop_slot` in the server's data folder, and what is known of it.
const SLOT_FILES: [&str; 2] = ["onedrop_slot.ibd", "onedrop_slot.cfg"];

/// What must be the same when the data folder is made and when it is used.
const SIZES: [&str; 4] = [
    "--innodb-log-file-size=4M",
    "--innodb-data-file-path=ibdata1:5M:autoextend",
    "--innodb-autoextend-increment=1",
    "--skip-name-resolve",
];

/// A running MariaDB with a database that belongs to the user of the same name, who needs a
/// password: `onedrop` in a server of its own. The superuser is `root`, without one, over the
/// socket. A commit is as durable as by default.
pub struct Mariadb {
    // Declared first: dropped before its folder is deleted.
    server: Option<Server>,
    /// The server's, or that of the password's file.
    root: TempRoot,
    folder: PathBuf,
    port: u16,
    settings: Vec<String>,
    database: String,
}

impl Mariadb {
    /// A migrated database in the run's server, for which no message is too old
    /// ([`Mariadb::remember_for_ever`]). Other tests' sessions are in the server's views.
    pub fn shared() -> Self {
        let mariadb = Self::shared_and_empty();
        // A migration's time is this table, which has 65,536 rows, and is never changed.
        let slots = shared::file("mariadb-slots", |folder| {
            let first = Self::shared_and_empty();
            first.migrate();
            fs::create_dir(folder).expect("a folder");
            let table = first.sql("SHOW CREATE TABLE onedrop_slot");
            let (_, table) = table.split_once('\t').expect("a table");
            fs::write(folder.join("table.sql"), table).expect("SQL");
            let _locked = first.begin("FLUSH TABLES onedrop_slot FOR EXPORT");
            for file in SLOT_FILES {
                copy(&first.data_folder().join(file), folder);
            }
        });
        let table = fs::read_to_string(slots.join("table.sql")).expect("SQL");
        mariadb.sql(&format!("{table}; ALTER TABLE onedrop_slot DISCARD TABLESPACE"));
        for file in SLOT_FILES {
            copy(&slots.join(file), &mariadb.data_folder());
        }
        mariadb.sql("ALTER TABLE onedrop_slot IMPORT TABLESPACE");
        mariadb.migrate();
        mariadb.remember_for_ever();
        mariadb
    }

    /// A database in the run's server, without tables.
    pub fn shared_and_empty() -> Self {
        let Shared { folder, port } = shared::server("mariadb", Self::start_shared);
        let (root, database) = (TempRoot::new(), shared::unique_name());
        super::set_mode(&root.write("password", PASSWORD), 0o600);
        let mariadb = Self { server: None, root, folder, port, settings: Vec::new(), database };
        let name = &mariadb.database;
        mariadb.sql_in("mysql", &format!("CREATE USER {name}@'%' IDENTIFIED BY '{PASSWORD}'"));
        mariadb.create_database(name);
        mariadb
    }

    /// One more of the test's user, without tables.
    pub fn create_database(&self, name: &str) {
        let user = &self.database;
        self.sql_in(
            "mysql",
            &format!(
                "CREATE DATABASE {name} CHARACTER SET utf8mb4; GRANT ALL ON {name}.* TO {user}@'%'"
            ),
        );
    }

    fn migrate(&self) {
        let settings = MariadbSettings {
            url: MysqlUrl::parse(&self.url_socket()).expect("a URL"),
            password: Some(PASSWORD.into()),
            ca_file: None,
        };
        let limits = Limits { used: 1, per_key: 1, kept: 0, idle: Duration::ZERO };
        let ledger = MariadbLedger::of(settings, Program::default(), limits).expect("a ledger");
        ledger.migrate(Instant::now() + Duration::from_secs(60)).expect("migrate");
    }

    /// Where the server keeps the database.
    fn data_folder(&self) -> PathBuf {
        self.folder.join("data").join(&self.database)
    }

    fn start_shared(starting: &Starting) -> u16 {
        let root = &starting.root;
        let port = Self::prepare(root);
        let more = ["--innodb-buffer-pool-size=128M", "--max-connections=1000"];
        let settings = more.map(str::to_owned).to_vec();
        Self::launch(root, port, &settings, |command| {
            *command = starting.guarded(command, Signal::SIGKILL);
        })
        .leave();
        port
    }

    /// The server, for what no test may do to one that it shares.
    #[track_caller]
    fn own(&mut self) -> &mut Server {
        self.server.as_mut().expect("a server of its own: Mariadb::start")
    }

    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// `settings`: further options of mariadbd.
    pub fn start_with(settings: &[&str]) -> Self {
        Self::set_up(settings, |_| ())
    }

    /// A server whose command is changed before it is run.
    pub fn start_by(change: impl FnOnce(&mut Command)) -> Self {
        Self::set_up(&[], change)
    }

    fn set_up(settings: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let root = TempRoot::for_database();
        super::set_mode(&root.write("password", PASSWORD), 0o600);
        let port = Self::prepare(&root);
        let settings: Vec<_> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let server = Some(Self::launch(&root, port, &settings, change));
        let (folder, database) = (root.to_path_buf(), "onedrop".to_owned());
        Self { server, root, folder, port, settings, database }
    }

    fn prepare(root: &TempRoot) -> u16 {
        root.dir_for("s", USER, 0o755);
        let port = free_port();
        run(Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(data_template())
            .arg(root.join("data")));
        port
    }

    fn launch(
        root: &Path,
        port: u16,
        settings: &[String],
        change: impl FnOnce(&mut Command),
    ) -> Server {
        let log_path = root.join("mariadb.log");
        let log = OpenOptions::new().create(true).append(true).open(&log_path).expect("log");
        let mut command = guarded("/usr/sbin/mariadbd", Some(USER), Signal::SIGKILL);
        command.args(options(&root.join("data"), &root.join("s")));
        command.arg(format!("--port={port}")).args(["--bind-address=127.0.0.1"]).args(settings);
        command.current_dir("/").stdin(Stdio::null());
        change(&mut command);
        command.stdout(log.try_clone().expect("log")).stderr(log);
        // SIGKILL: what a crash leaves is what the next start recovers from.
        let mut server = Server::start("mariadbd", command, Signal::SIGKILL, &log_path);
        let socket = root.join("s/s");
        server.wait_ready(|| std::os::unix::net::UnixStream::connect(&socket).is_ok());
        server
    }

    /// For `onedrop` over the Unix socket; without its password.
    pub fn url_socket(&self) -> String {
        format!("mysql://{0}@/{0}?socket={1}", self.database, self.socket().display())
    }

    /// For `onedrop` over TCP, without its password.
    pub fn url_tcp(&self) -> String {
        format!("mysql://{0}@127.0.0.1:{1}/{0}", self.database, self.port)
    }

    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// `[ledger]` of a configuration whose program runs as our own user.
    pub fn toml(&self) -> String {
        self.toml_at(&self.url_socket())
    }

    /// The same, by another way.
    pub fn toml_at(&self, url: &str) -> String {
        let password = self.root.join("password");
        format!("[ledger]\nurl = \"{url}\"\npassword_file = \"{}\"\n", password.display())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("s/s")
    }

    /// The test's database, and the user that it belongs to.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Runs SQL as the superuser in the test's database; returns rows with tabs, without
    /// headings.
    pub fn sql(&self, sql: &str) -> String {
        self.sql_in(&self.database, sql)
    }

    /// Like [`Mariadb::sql`], in another database.
    pub fn sql_in(&self, database: &str, sql: &str) -> String {
        self.sql_by(OptsBuilder::default().user(Some("root")), database, sql)
    }

    /// The same as the test's user, whose views and procedures then have its rights.
    pub fn sql_of_user(&self, database: &str, sql: &str) -> String {
        let user = OptsBuilder::default().user(Some(self.database()));
        self.sql_by(user.pass(Some(PASSWORD)), database, sql)
    }

    fn sql_by(&self, user: OptsBuilder, database: &str, sql: &str) -> String {
        let socket = self.socket().display().to_string();
        let way = user.db_name(Some(database)).socket(Some(socket));
        // In this process: a client of its own for each question took as long as its answer.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let told = runtime.expect("a runtime").block_on(answers(way, sql));
        told.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// What [`Mariadb::load`] makes the same database of.
    pub fn dump(&self, database: &str) -> String {
        let mut command = Command::new("/usr/bin/mariadb-dump");
        command.args(["--no-defaults", "-uroot", "--hex-blob", "--routines"]);
        run(command.arg("-S").arg(self.socket()).arg(database))
    }

    /// Makes what a [`dump`](Mariadb::dump) of this server has.
    pub fn load(&self, database: &str, dump: &Path) {
        let mut command = Command::new("/usr/bin/mariadb");
        command.args(["--no-defaults", "-uroot", "--default-character-set=utf8mb4"]);
        command.arg("-S").arg(self.socket()).arg(database);
        run(command.stdin(File::open(dump).expect("a dump")));
    }

    /// See [`Postgres::remember_for_ever`](super::postgres::Postgres::remember_for_ever).
    pub fn remember_for_ever(&self) {
        self.sql("UPDATE onedrop_ledger SET remembers_since = '1000-01-01'");
    }

    /// Runs `sql` as the superuser in a transaction that stays open.
    pub fn begin(&self, sql: &str) -> OpenTransaction {
        let mut command = Command::new("/usr/bin/mariadb");
        command.args(["--no-defaults", "-uroot", "-NBrn", "--default-character-set=utf8mb4"]);
        command.arg("-S").arg(self.socket()).arg(&self.database);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = command.spawn().expect("mariadb");
        let input = client.stdin.as_mut().expect("stdin");
        writeln!(input, "START TRANSACTION; {sql}; SELECT 'open';").expect("SQL");
        let mut line = String::new();
        let mut output = BufReader::new(client.stdout.take().expect("stdout"));
        while line.trim_end() != "open" {
            line.clear();
            assert!(output.read_line(&mut line).expect("an answer") > 0, "{sql} failed");
        }
        OpenTransaction(client)
    }

    /// See [`Server::cpu`].
    pub fn cpu(&self) -> Duration {
        self.server.as_ref().expect("a server of its own").cpu()
    }

    /// All of a file that the server writes in its data folder.
    pub fn data_file(&self, name: &str) -> String {
        let bytes = fs::read(self.folder.join("data").join(name)).expect("the server's file");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn log(&self) -> String {
        tail(&self.folder.join("mariadb.log"))
    }

    /// Crashes the server: sessions are cut, nothing is flushed that commit had not flushed.
    pub fn stop_immediate(&mut self) {
        self.own().stop(Signal::SIGKILL);
    }

    /// Starts it again on the same port and socket, after a crash if it still runs.
    pub fn restart(&mut self) {
        self.stop_immediate();
        self.server = Some(Self::launch(&self.folder, self.port, &self.settings, |_| ()));
    }

    /// Freezes the server and all its sessions: connections stay open and nothing answers.
    pub fn pause(&mut self) {
        self.own().pause();
    }

    pub fn resume(&mut self) {
        self.own().resume();
    }
}

impl Drop for Mariadb {
    fn drop(&mut self) {
        if self.server.is_none() {
            // And those that the test has made beside it.
            let own = format!(
                "SELECT schema_name FROM information_schema.schemata
                 WHERE schema_name = '{0}' OR LEFT(schema_name, {1}) = '{0}_'",
                self.database,
                self.database.len() + 1
            );
            for name in self.sql_in("mysql", &own).lines() {
                self.sql_in("mysql", &format!("DROP DATABASE {name}"));
            }
            self.sql_in("mysql", &format!("DROP USER {}", self.database));
        }
    }
}

/// Copies a file of the server's, with its owner, into a folder.
fn copy(file: &Path, folder: &Path) {
    run(Command::new("cp").arg("-p").arg(file).arg(folder));
}

/// What the statements return: a line for each row, with tabs between its values.
async fn answers(way: OptsBuilder, sql: &str) -> Result<String, mysql_async::Error> {
    let mut session = Conn::new(way).await?;
    let mut lines = Vec::new();
    let mut answer = session.query_iter(sql).await?;
    while !answer.is_empty() {
        for row in answer.collect::<Row>().await? {
            let values = row.unwrap().into_iter().map(|value| match value {
                Value::Bytes(bytes) => String::from_utf8(bytes).expect("UTF-8"),
                _ => "NULL".to_owned(),
            });
            lines.push(values.collect::<Vec<_>>().join("\t"));
        }
    }
    drop(answer);
    session.disconnect().await?;
    Ok(lines.join("\n"))
}

/// A client whose transaction is open; dropped, it is rolled back.
pub struct OpenTransaction(Child);

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        // The end of its input ends it, and with it the transaction.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn options(data: &Path, sockets: &Path) -> Vec<String> {
    let mut options = vec!["--no-defaults".to_owned()];
    options.extend(SIZES.map(str::to_owned));
    options.extend([
        format!("--datadir={}", data.display()),
        format!("--socket={}", sockets.join("s").display()),
        format!("--pid-file={}", sockets.join("pid").display()),
        // A server that starts deletes the temporary tables that it finds there.
        format!("--tmpdir={}", sockets.display()),
    ]);
    options.extend(
        [
            "--innodb-buffer-pool-size=32M",
            "--innodb-buffer-pool-load-at-startup=0",
            "--innodb-buffer-pool-dump-at-shutdown=0",
            "--innodb-fast-shutdown=2",
            "--performance-schema=0",
            "--aria-pagecache-buffer-size=1M",
            "--key-buffer-size=1M",
            "--max-connections=200",
        ]
        .map(str::to_owned),
    );
    options
}

/// An initialised data folder, made once and copied by every test.
fn data_template() -> PathBuf {
    let version = run(Command::new("/usr/sbin/mariadbd").arg("--version"));
    let version = version.split_whitespace().nth(2).unwrap_or_default().to_owned();
    template(&format!("mariadb-{version}-{TEMPLATE}"), build_template)
}

fn build_template(home: &Path, data: &Path) {
    let mut install = Command::new("/usr/bin/mariadb-install-db");
    install.args(["--no-defaults", "--skip-test-db"]).args(SIZES);
    install.arg(format!("--datadir={}", data.display()));
    install.arg("--auth-root-authentication-method=normal");
    if super::is_root() {
        install.arg(format!("--user={USER}"));
        // The server's folder for temporary files as well.
        super::chown_recursive(home, USER);
    }
    run(install.current_dir("/").stderr(Stdio::null()));
    let input = home.join("input.sql");
    let sql = format!(
        "FLUSH PRIVILEGES;\n\
         CREATE DATABASE onedrop CHARACTER SET utf8mb4;\n\
         CREATE USER onedrop@'%' IDENTIFIED BY '{PASSWORD}';\n\
         GRANT ALL ON onedrop.* TO onedrop@'%';\n"
    );
    fs::write(&input, sql).expect("template SQL");
    let mut bootstrap = guarded("/usr/sbin/mariadbd", Some(USER), Signal::SIGKILL);
    bootstrap.args(options(data, home)).arg("--bootstrap").current_dir("/");
    run(bootstrap.stdin(File::open(&input).expect("template SQL")).stderr(Stdio::null()));
}
