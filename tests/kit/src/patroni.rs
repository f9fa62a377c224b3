//! Three Postgres servers that Patroni looks after, with etcd, all on 127.0.0.1. Each node's ways
//! to etcd and to the other nodes lead through relays that can be cut, while its clients still
//! reach it. Needs the Debian packages patroni, python3-etcd and etcd-server.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::postgres::{bin, run_as};
use super::server::{Server, guarded, tail};
use super::{TempRoot, free_port, run, wait_until};

const NODES: usize = 3;
/// How long a cluster may take to have a leader and its standbys.
const LONG: Duration = Duration::from_secs(120);

pub struct Cluster {
    // Declared first: dropped before the folder is deleted.
    nodes: Vec<Node>,
    _etcd: Server,
    root: TempRoot,
}

struct Node {
    name: String,
    patroni: Server,
    /// The server's own port, for clients.
    port: u16,
    api: u16,
    /// To etcd; from others to the API and to Postgres.
    relays: [Relay; 3],
    data: std::path::PathBuf,
}

impl Cluster {
    /// With a role and a database `onedrop`, once all three follow each other.
    pub fn start() -> Cluster {
        let root = TempRoot::new();
        let (clients, peers) = (free_port(), free_port());
        let etcd = start_etcd(&root, clients, peers);
        let nodes: Vec<Node> = (0..NODES).map(|n| Node::start(&root, n, clients)).collect();
        let cluster = Cluster { nodes, _etcd: etcd, root };
        cluster.wait_until_whole();
        let leader = cluster.leader();
        cluster.psql(leader, "postgres", "CREATE ROLE onedrop LOGIN");
        cluster.psql(leader, "postgres", "CREATE DATABASE onedrop OWNER onedrop");
        cluster
    }

    /// All nodes, of which a client wants the one that takes writes.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let hosts = hosts.join(",");
        format!(
            "postgres://onedrop@{hosts}/onedrop?target_session_attrs=read-write&sslmode=disable"
        )
    }

    /// Which node leads, by what a majority's API says of itself.
    pub fn leader(&self) -> usize {
        let mut found = None;
        let is_there = wait_until(LONG, || {
            let leads = |node: &Node| node.ask("GET", "/leader", "").starts_with("HTTP/1.0 200");
            found = self.nodes.iter().position(leads);
            found.is_some()
        });
        assert!(is_there, "no leader:\n{}", self.logs());
        found.unwrap_or_default()
    }

    pub fn psql(&self, node: usize, database: &str, sql: &str) -> String {
        let mut command = Command::new(bin("psql"));
        command.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database]);
        command.args(["-h", "127.0.0.1", "-p", &self.nodes[node].port.to_string(), "-c", sql]);
        run(command.env_remove("PGOPTIONS")).trim_end_matches('\n').to_owned()
    }

    /// Waits until one leads, and both others follow, one of them synchronously.
    pub fn wait_until_whole(&self) {
        let roles = || {
            let mut roles: Vec<String> = Vec::new();
            for node in &self.nodes {
                let answer = node.ask("GET", "/cluster", "");
                let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
                let cluster: Value = serde_json::from_str(body).unwrap_or_default();
                let members = cluster["members"].as_array().cloned().unwrap_or_default();
                let is_up =
                    |one: &&Value| matches!(one["state"].as_str(), Some("running" | "streaming"));
                let role = |one: &Value| one["role"].as_str().unwrap_or_default().to_owned();
                roles = members.iter().filter(is_up).map(role).collect();
                roles.sort();
                if roles != ["leader", "replica", "sync_standby"] {
                    return roles;
                }
            }
            roles
        };
        let is_whole = wait_until(LONG, || {
            thread::sleep(Duration::from_millis(200));
            roles() == ["leader", "replica", "sync_standby"]
        });
        assert!(is_whole, "{:?}\n{}", roles(), self.logs());
    }

    /// Has another one lead, in order.
    pub fn switch_over(&self) {
        let leader = self.leader();
        let body = format!("{{\"leader\": \"{}\"}}", self.nodes[leader].name);
        let answer = self.nodes[leader].ask("POST", "/switchover", &body);
        assert!(answer.contains("Successfully switched over"), "{answer}\n{}", self.logs());
    }

    /// Kills a node: Patroni and all of Postgres.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Starts a killed node again.
    pub fn start_again(&mut self, node: usize) {
        self.nodes[node].patroni = launch(&self.root, &self.nodes[node].name);
    }

    /// Cuts a node from etcd and from the others, not from its clients; or mends that.
    pub fn cut(&self, node: usize, is_cut: bool) {
        for relay in &self.nodes[node].relays {
            relay.cut(is_cut);
        }
    }

    fn logs(&self) -> String {
        let log = |node: &Node| tail(&self.root.join(format!("{}.log", node.name)));
        self.nodes.iter().map(log).collect()
    }
}

impl Node {
    fn start(root: &TempRoot, number: usize, etcd: u16) -> Node {
        let user = run_as().unwrap_or_default();
        let name = format!("node{number}");
        let (port, api) = (free_port(), free_port());
        let relays = [etcd, api, port].map(Relay::to);
        let [to_etcd, to_api, to_port] = relays.each_ref().map(|relay| relay.port);
        let folder = root.dir_for(&name, user, 0o700);
        let (at, programs) = (folder.display(), bin("postgres"));
        let programs = programs.parent().unwrap_or(Path::new("/usr/bin")).display();
        // The shortest times that Patroni takes. It must not ask etcd where else etcd is.
        root.write(
            &format!("{name}.yml"),
            format!(
                "scope: onedrop\nname: {name}\n\
                 restapi:\n  listen: 127.0.0.1:{api}\n  connect_address: 127.0.0.1:{to_api}\n\
                 etcd3:\n  host: 127.0.0.1:{to_etcd}\n  use_proxies: true\n\
                 bootstrap:\n  dcs:\n    ttl: 20\n    loop_wait: 2\n    retry_timeout: 3\n    \
                 synchronous_mode: true\n    synchronous_mode_strict: true\n    postgresql:\n      \
                 use_pg_rewind: true\n      parameters:\n        wal_log_hints: 'on'\n        \
                 max_connections: 60\n  initdb:\n  - encoding: UTF8\n  - locale: C\n  - no-sync\n  \
                 pg_hba:\n  - host all all 127.0.0.1/32 trust\n  \
                 - host replication all 127.0.0.1/32 trust\n  - local all all trust\n\
                 postgresql:\n  listen: 127.0.0.1:{port}\n  \
                 connect_address: 127.0.0.1:{to_port}\n  \
                 data_dir: {at}/data\n  bin_dir: {programs}\n  pgpass: {at}/pgpass\n  \
                 authentication:\n    superuser: {{username: postgres, password: x}}\n    \
                 replication: {{username: follower, password: x}}\n  parameters:\n    \
                 unix_socket_directories: {at}\n    shared_buffers: 16MB\n"
            ),
        );
        let patroni = launch(root, &name);
        Node { data: folder.join("data"), name, patroni, port, api, relays }
    }

    /// A request to the API, and its answer; nothing where there is none.
    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let asked = || -> io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.api))?;
            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
            let length = body.len();
            let request =
                format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        asked().unwrap_or_default()
    }

    fn kill(&mut self) {
        self.patroni.stop(Signal::SIGKILL);
        // Patroni leaves Postgres to itself.
        let pid = fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
        let Some(pid) = pid.lines().next().and_then(|pid| pid.trim().parse().ok()) else { return };
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        // Its children end when they see that.
        let port = self.port;
        let _ = wait_until(Duration::from_secs(10), || {
            TcpStream::connect(("127.0.0.1", port)).is_err()
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launch(root: &TempRoot, name: &str) -> Server {
    let log_path = root.join(format!("{name}.log"));
    let log = OpenOptions::new().create(true).append(true).open(&log_path).expect("log");
    let mut command = guarded("/usr/bin/patroni", run_as(), Signal::SIGTERM);
    command.arg(root.join(format!("{name}.yml"))).current_dir("/").stdin(Stdio::null());
    command.stdout(log.try_clone().expect("log")).stderr(log);
    Server::start("patroni", command, Signal::SIGTERM, &log_path)
}

fn start_etcd(root: &TempRoot, clients: u16, peers: u16) -> Server {
    let log_path = root.join("etcd.log");
    let log = OpenOptions::new().create(true).append(true).open(&log_path).expect("log");
    let (ours, theirs) =
        (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
    let mut command = guarded("/usr/bin/etcd", None, Signal::SIGKILL);
    command.args(["--name", "one", "--unsafe-no-fsync", "--data-dir"]).arg(root.join("etcd"));
    command.args(["--listen-client-urls", &ours, "--advertise-client-urls", &ours]);
    command.args(["--listen-peer-urls", &theirs, "--initial-advertise-peer-urls", &theirs]);
    command.args(["--initial-cluster", &format!("one={theirs}")]).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("log")).stderr(log);
    let mut etcd = Server::start("etcd", command, Signal::SIGKILL, &log_path);
    etcd.wait_ready(|| TcpStream::connect(("127.0.0.1", clients)).is_ok());
    etcd
}

/// Passes connections on to a port, until it is cut.
struct Relay {
    port: u16,
    is_cut: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(port: u16) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a relay");
        let relay = Relay {
            port: listener.local_addr().expect("its address").port(),
            is_cut: Arc::default(),
            streams: Arc::default(),
        };
        let (is_cut, streams) = (Arc::clone(&relay.is_cut), Arc::clone(&relay.streams));
        thread::spawn(move || {
            for near in listener.incoming().filter_map(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let both = [(&near, &far), (&far, &near)]
                    .map(|(from, to)| (from.try_clone().expect("a socket"), to.try_clone()));
                streams.lock().expect("streams").extend([near, far]);
                // After the streams are known: one of the two sees the other's.
                if is_cut.load(Ordering::SeqCst) {
                    close(&streams);
                    continue;
                }
                for (mut from, to) in both {
                    let mut to = to.expect("a socket");
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                        let _ = from.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        relay
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
        if is_cut {
            close(&self.streams);
        }
    }
}

fn close(streams: &Mutex<Vec<TcpStream>>) {
    for stream in streams.lock().expect("streams").drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}
