//! Postgres for a test: a migrated database of its own in the run's server, or, for a test that
//! stops, pauses, fills or configures the server, one of its own: a data folder (copied from a
//! cached template), a socket and a port.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use onedrop::ledger::Schema as _;
use onedrop::ledger::postgres::{PostgresLedger, PostgresSettings, PostgresUrl, Prepare};
use onedrop::net::pool::Limits;
use postgres::{SimpleQueryMessage, SimpleQueryRow};

use super::disk::SmallDisk;
use super::server::{Server, guarded, tail, template};
use super::shared::{self, Shared, Starting};
use super::{TempRoot, free_port, is_root, run, set_mode, wait_until};

const USER: &str = "postgres";
const PASSWORD: &str = "ledger-secret";
/// Part of the template's name: change it whenever [`build_template`] changes.
const TEMPLATE: &str = "template-1";

/// A running Postgres with a database that belongs to the role `onedrop`, and in a server of its
/// own has the same name.
///
/// Over the socket every role is trusted (the superuser is `postgres`), over TCP `onedrop` needs
/// its password (SCRAM). Data is as durable as by default: fsync and `synchronous_commit` are on.
pub struct Postgres {
    // Declared first: dropped before its folder is deleted.
    server: Option<Server>,
    _root: Option<TempRoot>,
    folder: PathBuf,
    port: u16,
    database: String,
}

/// What its server's log has in each line.
const LOG_PREFIX: &str = "%m [%p] %q%u@%d %a ";

impl Postgres {
    /// A migrated database in the run's server, for which no message is too old
    /// ([`Postgres::remember_for_ever`]). Other tests' sessions are in the server's views, and
    /// roles are theirs as well.
    pub fn shared() -> Self {
        Self::shared_like("onedrop")
    }

    /// A database in the run's server, without tables.
    pub fn shared_and_empty() -> Self {
        Self::shared_like("template0")
    }

    fn shared_like(template: &str) -> Self {
        let shared = shared::server("postgres", Self::start_shared);
        let database = shared::unique_name();
        let Shared { folder, port } = shared;
        let postgres = Self { server: None, _root: None, folder, port, database };
        // The other strategy writes all of it into the log.
        let name = &postgres.database;
        let strategy = "STRATEGY file_copy";
        let sql = format!("CREATE DATABASE {name} OWNER onedrop TEMPLATE {template} {strategy}");
        postgres.psql_in("postgres", &sql);
        postgres
    }

    fn start_shared(starting: &Starting) -> u16 {
        let port = Self::prepare(&starting.root, "shared_buffers = 128MB\nmax_connections = 600");
        Self::launch_by(&starting.root, &starting.root.join("data"), |command| {
            *command = starting.guarded(command, Signal::SIGQUIT);
        })
        .leave();
        // It stays.
        let template = ManuallyDrop::new(Self {
            server: None,
            _root: None,
            folder: starting.root.to_path_buf(),
            port,
            database: "onedrop".to_owned(),
        });
        let limits = Limits { used: 1, per_key: 1, kept: 0, idle: Duration::ZERO };
        let ledger = template.ledger(limits);
        ledger.migrate(Instant::now() + Duration::from_secs(60)).expect("migrate");
        drop(ledger);
        template.remember_for_ever();
        // No session may be in a database that others are made of.
        template.psql_in("postgres", "ALTER DATABASE onedrop CONNECTION LIMIT 0");
        template.psql_in(
            "postgres",
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
             WHERE datname = 'onedrop'",
        );
        port
    }

    /// The server, for what no test may do to one that it shares.
    #[track_caller]
    fn own(&mut self) -> &mut Server {
        self.server.as_mut().expect("a server of its own: Postgres::start")
    }

    pub fn start() -> Self {
        Self::start_with("")
    }

    /// `settings`: further lines for postgresql.conf.
    pub fn start_with(settings: &str) -> Self {
        Self::begin(settings, |_| ())
    }

    /// A server whose command is changed before it is run.
    pub fn start_by(change: impl FnOnce(&mut Command)) -> Self {
        Self::begin("", change)
    }

    fn begin(settings: &str, change: impl FnOnce(&mut Command)) -> Self {
        let root = TempRoot::for_database();
        let more = format!("shared_buffers = 32MB\nmax_connections = 200\n{settings}");
        let port = Self::prepare(&root, &more);
        let server = Self::launch_by(&root, &root.join("data"), change);
        Self::with(server, root, port)
    }

    fn with(server: Server, root: TempRoot, port: u16) -> Self {
        let folder = root.to_path_buf();
        let database = "onedrop".to_owned();
        Self { server: Some(server), _root: Some(root), folder, port, database }
    }

    fn prepare(root: &TempRoot, settings: &str) -> u16 {
        let sockets = root.dir_for("s", USER, 0o755);
        let port = free_port();
        let data = root.join("data");
        run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(data_template()).arg(&data));
        let mut conf = OpenOptions::new()
            .append(true)
            .open(data.join("postgresql.conf"))
            .expect("postgresql.conf");
        write!(
            conf,
            "\nlisten_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n\
             fsync = on\nsynchronous_commit = on\nlog_line_prefix = '{LOG_PREFIX}'\n{settings}\n",
            sockets.display()
        )
        .expect("postgresql.conf");
        port
    }

    fn launch(root: &Path, data: &Path) -> Server {
        Self::launch_by(root, data, |_| ())
    }

    fn launch_by(root: &Path, data: &Path, change: impl FnOnce(&mut Command)) -> Server {
        let log_path = root.join("postgres.log");
        let log = OpenOptions::new().create(true).append(true).open(&log_path).expect("log");
        let mut command = guarded(bin("postgres"), Some(USER), Signal::SIGQUIT);
        command.arg("-D").arg(data).current_dir("/").stdin(Stdio::null());
        change(&mut command);
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let status = || fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        let of_the_last_one = status();
        // SIGQUIT is Postgres' immediate shutdown: what a crash leaves is what the next start
        // recovers from.
        let mut server = Server::start("postgres", command, Signal::SIGQUIT, &log_path);
        server.wait_ready(|| {
            let now = status();
            let is_ready = |line: &str| matches!(line.trim(), "ready" | "standby");
            now != of_the_last_one && now.lines().nth(7).is_some_and(is_ready)
        });
        server
    }

    /// For `onedrop` over the Unix socket; needs no password.
    pub fn url_socket(&self) -> String {
        format!(
            "postgres://onedrop@/{}?host={}&port={}",
            self.database,
            self.socket_dir().display(),
            self.port
        )
    }

    /// For `onedrop` over TCP, without its password.
    pub fn url_tcp(&self) -> String {
        format!("postgres://onedrop@127.0.0.1:{}/{}", self.port, self.database)
    }

    /// `[ledger]` of a configuration, by the Unix socket.
    pub fn toml(&self) -> String {
        format!("[ledger]\nurl = \"{}\"\n", self.url_socket())
    }

    /// What a ledger at this URL is opened with, without a password.
    pub fn settings(url: &str) -> PostgresSettings {
        let (url, prepare) = (PostgresUrl::parse(url).expect("a URL"), Prepare::Auto);
        PostgresSettings { url, password: None, ca_file: None, prepare, notify: false }
    }

    /// By the Unix socket.
    pub fn ledger(&self, limits: Limits) -> PostgresLedger {
        PostgresLedger::new(Self::settings(&self.url_socket()), limits).expect("a ledger")
    }

    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn socket_dir(&self) -> PathBuf {
        self.folder.join("s")
    }

    pub fn database(&self) -> &str {
        &self.database
    }

    /// Runs SQL as the superuser in the test's database; returns rows as `psql -At` writes them:
    /// columns between bars, NULL as nothing.
    pub fn psql(&self, sql: &str) -> String {
        self.psql_in(&self.database, sql)
    }

    /// The ledger has no past: no message is older than what it remembers, whatever its Date.
    pub fn remember_for_ever(&self) {
        self.psql("UPDATE onedrop_ledger SET remembers_since = '-infinity'");
    }

    /// Like [`Postgres::psql`], in another database.
    #[track_caller]
    pub fn psql_in(&self, database: &str, sql: &str) -> String {
        // No psql: to start one costs more than most that it would ask.
        let mut config = postgres::Config::new();
        config.user(USER).dbname(database).host_path(self.socket_dir()).port(self.port);
        let answers =
            config.connect(postgres::NoTls).and_then(|mut client| client.simple_query(sql));
        let answers = answers.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let line = |row: &SimpleQueryRow| {
            (0..row.len()).map(|at| row.get(at).unwrap_or_default()).collect::<Vec<_>>().join("|")
        };
        let rows = answers.iter().filter_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(line(row)),
            _ => None,
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    /// See [`Server::cpu`].
    pub fn cpu(&self) -> Duration {
        self.server.as_ref().expect("a server of its own").cpu()
    }

    /// The end of the server's log; of a shared one's, what it says of this database.
    pub fn log(&self) -> String {
        if self.server.is_some() {
            return tail(&self.folder.join("postgres.log"));
        }
        let ours = format!("@{} ", self.database);
        let log = self.whole_log();
        log.lines().filter(|line| line.contains(&ours)).collect::<Vec<_>>().join("\n")
    }

    pub fn whole_log(&self) -> String {
        fs::read_to_string(self.folder.join("postgres.log")).unwrap_or_default()
    }

    /// Crashes the server: sessions are cut, nothing is flushed that commit had not flushed.
    pub fn stop_immediate(&mut self) {
        self.own().stop(Signal::SIGQUIT);
    }

    /// Kills all of its processes at once: what no commit has waited for is lost.
    pub fn kill(&mut self) {
        self.own().kill_all();
    }

    /// Starts it again on the same port and socket, after a fast shutdown if it still runs.
    pub fn restart(&mut self) {
        self.own().stop(Signal::SIGINT);
        self.server = Some(Self::launch(&self.folder, &self.folder.join("data")));
    }

    /// A synchronous streaming standby on a port of its own: from here on every commit here waits
    /// until it is there too.
    pub fn standby(&self) -> Postgres {
        let access = self.folder.join("data/pg_hba.conf");
        let mut file = OpenOptions::new().append(true).open(access).expect("pg_hba.conf");
        writeln!(file, "local replication {USER} trust").expect("pg_hba.conf");
        self.psql("SELECT pg_reload_conf()");
        let root = TempRoot::for_database();
        let sockets = root.dir_for("s", USER, 0o755);
        let (port, data) = (free_port(), root.dir_for("data", USER, 0o700));
        let mut copy = guarded(bin("pg_basebackup"), Some(USER), Signal::SIGKILL);
        copy.args([
            "--no-sync",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--write-recovery-conf",
            "-U",
            USER,
        ]);
        copy.arg("-p")
            .arg(self.port.to_string())
            .arg("-h")
            .arg(self.socket_dir())
            .arg("-D")
            .arg(&data);
        // Sessions that begin after the reload read the configuration above.
        let mut copied = false;
        let copied = wait_until(Duration::from_secs(10), || {
            copied = copied || copy.current_dir("/").status().is_ok_and(|status| status.success());
            copied
        });
        assert!(copied, "no base backup");
        let mut conf = OpenOptions::new()
            .append(true)
            .open(data.join("postgresql.conf"))
            .expect("postgresql.conf");
        writeln!(conf, "port = {port}\nunix_socket_directories = '{}'", sockets.display())
            .expect("postgresql.conf");
        let server = Self::launch(&root, &data);
        let standby = Self::with(server, root, port);
        self.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.psql("SELECT pg_reload_conf()");
        let sync = || {
            self.psql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"
        };
        assert!(
            wait_until(Duration::from_secs(10), sync),
            "the standby does not follow:\n{}",
            standby.log()
        );
        standby
    }

    /// Makes a standby the primary; returns when it takes writes.
    pub fn promote(&self) {
        assert_eq!(self.psql("SELECT pg_promote(true, 20)"), "t", "{}", self.log());
    }

    /// Puts the write-ahead log on a small disk of its own. The server must be down.
    pub fn move_wal_to_small_disk(&self, size: &str) -> SmallDisk {
        let (log, at) = (self.folder.join("data/pg_wal"), self.folder.join("wal"));
        let disk = SmallDisk::mount(&at, size, USER);
        run(Command::new("cp").arg("-a").arg(log.join(".")).arg(&at));
        fs::remove_dir_all(&log).expect("write-ahead log");
        std::os::unix::fs::symlink(&at, &log).expect("link");
        disk
    }

    /// Freezes the server and all its sessions: connections stay open and nothing answers.
    pub fn pause(&mut self) {
        self.own().pause();
    }

    pub fn resume(&mut self) {
        self.own().resume();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.server.is_some() {
            return;
        }
        if std::thread::panicking() {
            eprintln!("--- postgres, {} ---\n{}", self.database, self.log());
        }
        // And those that the test has made beside it.
        let own = format!(
            "SELECT datname FROM pg_database WHERE datname = '{0}' OR starts_with(datname, '{0}_')",
            self.database
        );
        for name in self.psql_in("postgres", &own).lines() {
            self.psql_in("postgres", &format!("DROP DATABASE {name} WITH (FORCE)"));
        }
    }
}

/// An initialised data folder per Postgres version, made once and copied by every test.
fn data_template() -> PathBuf {
    let version = fs::canonicalize(bin("postgres")).expect("postgres");
    let version = version.iter().rev().nth(2).map(|name| name.to_string_lossy().into_owned());
    let name = format!("postgres-{}-{TEMPLATE}", version.unwrap_or_default());
    template(&name, build_template)
}

fn build_template(home: &Path, data: &Path) {
    fs::create_dir(data).expect("template data");
    set_mode(data, 0o700);
    super::chown_recursive(data, USER);
    let mut initdb = guarded(bin("initdb"), Some(USER), Signal::SIGKILL);
    initdb.args(["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=trust", "--username", USER]);
    run(initdb.arg("-D").arg(data).current_dir("/"));
    for sql in [
        format!("CREATE ROLE onedrop LOGIN PASSWORD '{PASSWORD}'"),
        "CREATE DATABASE onedrop OWNER onedrop".to_owned(),
    ] {
        let mut single = guarded(bin("postgres"), Some(USER), Signal::SIGQUIT);
        single
            .args(["--single", "-j", "-c", "fsync=off", "-D"])
            .arg(data)
            .arg("postgres")
            .current_dir("/");
        let input = home.join("input.sql");
        fs::write(&input, format!("{sql};\n\n")).expect("template SQL");
        run(single.stdin(File::open(&input).expect("template SQL")));
    }
    let access = "local all all trust\nhost all onedrop 127.0.0.1/32 scram-sha-256\n";
    fs::write(data.join("pg_hba.conf"), access).expect("pg_hba.conf");
    // The copies are synced by their own servers' checkpoints only; the template itself is
    // worth nothing.
}

/// A program of the newest installed Postgres; Debian's wrappers in /usr/bin are slower and pick a
/// cluster of their own.
pub fn bin(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
    let newest = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())))
        .filter(|(_, path)| path.join("bin/postgres").exists())
        .max();
    newest.map_or_else(|| PathBuf::from(name), |(_, path)| path.join("bin").join(name))
}

/// The user that servers of the database run as; `None`: this process' own.
pub fn run_as() -> Option<&'static str> {
    is_root().then_some(USER)
}
