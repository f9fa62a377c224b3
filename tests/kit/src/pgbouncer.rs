//! PgBouncer in front of a test's Postgres, in transaction pooling: the hardest case for session
//! state.

use std::fs::OpenOptions;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::signal::Signal;

use super::postgres::{self, Postgres};
use super::server::{Server, guarded, tail};
use super::{TempRoot, free_port, set_mode};

pub struct PgBouncer {
    server: Server,
    root: TempRoot,
    port: u16,
    password: &'static str,
}

impl PgBouncer {
    /// Five server connections per database and role, shared per transaction by up to 300 clients.
    pub fn start(postgres: &Postgres) -> Self {
        let root = TempRoot::new();
        let sockets = root.dir_for("s", "postgres", 0o755);
        let port = free_port();
        let at = root.display();
        root.write("users.txt", format!("\"onedrop\" \"{}\"\n", postgres.password()));
        root.write("hba.conf", "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
        root.write(
            "pgbouncer.ini",
            format!(
                "[databases]\n\
                 onedrop = host={} port={} dbname=onedrop\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir = {}\n\
                 auth_type = hba\nauth_hba_file = {at}/hba.conf\nauth_file = {at}/users.txt\n\
                 admin_users = onedrop\n\
                 pool_mode = transaction\ndefault_pool_size = 5\nmax_client_conn = 300\n\
                 server_login_retry = 1\n",
                postgres.socket_dir().display(),
                postgres.port(),
                sockets.display(),
            ),
        );
        let server = Self::launch(&root, port);
        Self { server, root, port, password: postgres.password() }
    }

    fn launch(root: &TempRoot, port: u16) -> Server {
        let log_path = root.join("pgbouncer.log");
        let log = OpenOptions::new().create(true).append(true).open(&log_path).expect("log");
        set_mode(&log_path, 0o644);
        let mut command = guarded("/usr/sbin/pgbouncer", postgres::run_as(), Signal::SIGTERM);
        command.arg(root.join("pgbouncer.ini")).current_dir("/").stdin(Stdio::null());
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let mut server = Server::start("pgbouncer", command, Signal::SIGTERM, &log_path);
        let socket = root.join("s").join(format!(".s.PGSQL.{port}"));
        server.wait_ready(|| {
            UnixStream::connect(&socket).is_ok() && TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        server
    }

    /// As `onedrop` over the Unix socket; needs no password.
    pub fn url(&self) -> String {
        format!(
            "postgres://onedrop@/onedrop?host={}&port={}",
            self.socket_dir().display(),
            self.port
        )
    }

    /// As `onedrop` over TCP, without its password.
    pub fn url_tcp(&self) -> String {
        format!("postgres://onedrop@127.0.0.1:{}/onedrop", self.port)
    }

    pub fn password(&self) -> &'static str {
        self.password
    }

    pub fn socket_dir(&self) -> PathBuf {
        self.root.join("s")
    }

    pub fn log(&self) -> String {
        tail(&self.root.join("pgbouncer.log"))
    }

    pub fn has_ended(&mut self) -> bool {
        self.server.ended()
    }

    pub fn stop(&mut self) {
        self.server.stop(Signal::SIGTERM);
    }

    /// Cuts every client off, then listens again on the same port and socket.
    pub fn restart(&mut self) {
        self.stop();
        self.server = Self::launch(&self.root, self.port);
    }

    pub fn pause(&mut self) {
        self.server.pause();
    }

    pub fn resume(&mut self) {
        self.server.resume();
    }
}
