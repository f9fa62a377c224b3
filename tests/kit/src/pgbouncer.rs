//! PgBouncer in front of a test's Postgres, in transaction pooling, the hardest case for session
//! state, if a test does not want another. The run's, or, for a test that stops or pauses it, one
//! of its own.

use std::fs::OpenOptions;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::postgres::{self, Postgres};
use super::server::{Server, guarded, tail};
use super::shared::{self, Shared};
use super::{TempRoot, free_port, set_mode};

const TRANSACTION: &str = "transaction";

pub struct PgBouncer {
    server: Option<Server>,
    _root: Option<TempRoot>,
    folder: PathBuf,
    port: u16,
    password: &'static str,
    database: String,
}

impl PgBouncer {
    /// The run's, before a database of the run's Postgres.
    pub fn shared(postgres: &Postgres) -> Self {
        let Shared { folder, port } = shared::server("pgbouncer", |starting| {
            let port = Self::prepare(&starting.root, postgres, (TRANSACTION, 2000));
            let change = |command: &mut Command| {
                *command = starting.guarded(command, Signal::SIGTERM);
            };
            Self::launch_by(&starting.root, port, change).leave();
            port
        });
        let (password, database) = (postgres.password(), postgres.database().to_owned());
        Self { server: None, _root: None, folder, port, password, database }
    }

    /// Five server connections per database and role, shared per transaction by up to 300 clients.
    pub fn start(postgres: &Postgres) -> Self {
        Self::start_in(postgres, TRANSACTION)
    }

    /// The same in another pooling mode.
    pub fn start_in(postgres: &Postgres, mode: &str) -> Self {
        let root = TempRoot::new();
        let port = Self::prepare(&root, postgres, (mode, 300));
        let server = Some(Self::launch(&root, port));
        let (folder, database) = (root.to_path_buf(), postgres.database().to_owned());
        Self { server, _root: Some(root), folder, port, password: postgres.password(), database }
    }

    fn prepare(root: &TempRoot, postgres: &Postgres, (mode, clients): (&str, u32)) -> u16 {
        let sockets = root.dir_for("s", "postgres", 0o755);
        let port = free_port();
        let at = root.display();
        root.write("users.txt", format!("\"onedrop\" \"{}\"\n", postgres.password()));
        root.write("hba.conf", "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
        root.write(
            "pgbouncer.ini",
            format!(
                "[databases]\n\
                 * = host={} port={}\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir = {}\n\
                 auth_type = hba\nauth_hba_file = {at}/hba.conf\nauth_file = {at}/users.txt\n\
                 admin_users = onedrop\n\
                 pool_mode = {mode}\ndefault_pool_size = 5\nmax_client_conn = {clients}\n\
                 server_login_retry = 1\n",
                postgres.socket_dir().display(),
                postgres.port(),
                sockets.display(),
            ),
        );
        port
    }

    fn launch(root: &Path, port: u16) -> Server {
        Self::launch_by(root, port, |_| ())
    }

    fn launch_by(root: &Path, port: u16, change: impl FnOnce(&mut Command)) -> Server {
        let log_path = root.join("pgbouncer.log");
        let log = OpenOptions::new().create(true).append(true).open(&log_path).expect("log");
        set_mode(&log_path, 0o644);
        let mut command = guarded("/usr/sbin/pgbouncer", postgres::run_as(), Signal::SIGTERM);
        command.arg(root.join("pgbouncer.ini")).current_dir("/").stdin(Stdio::null());
        change(&mut command);
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let mut server = Server::start("pgbouncer", command, Signal::SIGTERM, &log_path);
        let socket = root.join("s").join(format!(".s.PGSQL.{port}"));
        server.wait_ready(|| {
            UnixStream::connect(&socket).is_ok() && TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        server
    }

    /// The pooler, for what no test may do to one that it shares.
    #[track_caller]
    fn own(&mut self) -> &mut Server {
        self.server.as_mut().expect("a pooler of its own: PgBouncer::start")
    }

    /// For `onedrop` over the Unix socket; needs no password.
    pub fn url(&self) -> String {
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

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn password(&self) -> &'static str {
        self.password
    }

    pub fn socket_dir(&self) -> PathBuf {
        self.folder.join("s")
    }

    pub fn log(&self) -> String {
        tail(&self.folder.join("pgbouncer.log"))
    }

    pub fn has_ended(&mut self) -> bool {
        self.own().ended()
    }

    pub fn stop(&mut self) {
        self.own().stop(Signal::SIGTERM);
    }

    /// Cuts every client off, then listens again on the same port and socket.
    pub fn restart(&mut self) {
        self.stop();
        self.server = Some(Self::launch(&self.folder, self.port));
    }

    pub fn pause(&mut self) {
        self.own().pause();
    }

    pub fn resume(&mut self) {
        self.own().resume();
    }
}
