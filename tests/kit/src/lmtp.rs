//! `onedrop lmtp` as a child process: as the user that owns its configuration's folder, on a Unix
//! socket in that folder and a TCP port of its own, with its metrics on another port.
//!
//! Like a service manager, the rig may hold the listening sockets itself and pass them on
//! (sd_listen_fds(3)): then a client that connects between two lives of the server waits instead of
//! being refused. The server logs to `server.log` in the folder, also where there is a journal.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};

use super::journal::without_journal;
use super::lmtp_client::LmtpClient;
use super::server::Server;
use super::{free_port, onedrop_path, remove_variables, set_mode, wait_until};

/// No drain may take longer than the longest delivery (the deadline and its answer) on a busy
/// machine.
const LONGEST_DRAIN: Duration = Duration::from_secs(90);
const LONGEST_PROBE: Duration = Duration::from_millis(500);

/// How the server ended, and how long that took.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub took: Duration,
}

/// Resident memory in kB (proc(5)): what the process allocated, and the files it has mapped, its
/// program first of all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    pub anon_kb: u64,
    pub file_kb: u64,
}

/// How the server is started.
pub struct Launch {
    config: PathBuf,
    /// A copy: other users may not enter the folder where it was built.
    program: PathBuf,
    before: Vec<OsString>,
    user: Vec<String>,
    listens: bool,
    args: Vec<String>,
    env: Vec<(String, String)>,
    log: Option<OwnedFd>,
    /// TCP and metrics on 127.0.0.1.
    ports: Option<(u16, u16)>,
    held: Option<(UnixListener, TcpListener)>,
}

impl Launch {
    pub fn of(config: &Path) -> Launch {
        let config = config.to_path_buf();
        let folder = config.parent().expect("folder");
        let owner = Uid::from_raw(fs::metadata(folder).expect("folder").uid());
        let (mut program, mut user) = (onedrop_path().to_path_buf(), Vec::new());
        if owner != Uid::effective() {
            program = folder.join("onedrop");
            if !program.exists() && fs::hard_link(onedrop_path(), &program).is_err() {
                fs::copy(onedrop_path(), &program).expect("a copy of the program");
            }
            set_mode(&program, 0o755);
            user = vec!["--reuid".to_owned(), owner.to_string()];
            match User::from_uid(owner).expect("passwd") {
                Some(known) => user.extend([
                    "--regid".to_owned(),
                    known.gid.to_string(),
                    "--init-groups".to_owned(),
                ]),
                None => user.push("--clear-groups".to_owned()),
            }
        }
        let ports = Some((free_port(), free_port()));
        let (before, args, env) = (Vec::new(), Vec::new(), Vec::new());
        Launch {
            config,
            program,
            before,
            user,
            listens: true,
            args,
            env,
            log: None,
            ports,
            held: None,
        }
    }

    /// With its Unix socket alone, in the mode that its configuration says; no metrics.
    pub fn bare(mut self) -> Launch {
        self.ports = None;
        self
    }

    /// Listens only where its configuration says.
    pub fn where_configured(mut self) -> Launch {
        self.listens = false;
        self.bare()
    }

    /// The rig binds the addresses, once, and the server inherits them.
    pub fn with_sockets_of_the_rig(mut self) -> Launch {
        let (port, _) = self.ports.expect("a port");
        let unix = UnixListener::bind(self.socket()).expect("socket");
        set_mode(&self.socket(), 0o666);
        self.held = Some((unix, TcpListener::bind(("127.0.0.1", port)).expect("port")));
        self
    }

    pub fn arg(mut self, arg: &str) -> Launch {
        self.args.push(arg.to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Launch {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs as a member of this group, and of no other.
    pub fn member_of(mut self, group: u32) -> Launch {
        self.user.truncate(2);
        self.user.extend(["--groups".to_owned(), group.to_string()]);
        self
    }

    /// Started by this command.
    pub fn by(mut self, before: &Command) -> Launch {
        let words = std::iter::once(before.get_program()).chain(before.get_args());
        self.before = words.map(OsStr::to_owned).collect();
        self
    }

    /// Its standard error, in place of `server.log`.
    pub fn log_to(mut self, log: impl Into<OwnedFd>) -> Launch {
        self.log = Some(log.into());
        self
    }

    fn folder(&self) -> &Path {
        self.config.parent().expect("folder")
    }

    fn socket(&self) -> PathBuf {
        self.folder().join("lmtp.sock")
    }

    fn log_path(&self) -> PathBuf {
        self.folder().join("server.log")
    }

    pub fn command(&self) -> Command {
        let mut command = without_journal("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(&self.user).arg("--").args(&self.before);
        // The shell becomes the server.
        if self.held.is_some() {
            let script = "exec 3<&0 4<&1 0</dev/null 1>&2; LISTEN_FDS=2 LISTEN_PID=$$ exec \"$@\"";
            command.args(["/bin/sh", "-c", script, "sh"]);
        }
        command.arg(&self.program).arg("lmtp").arg("--config").arg(&self.config);
        remove_variables(&mut command);
        if let Some((port, metrics)) = self.ports {
            command.args(["--metrics", &format!("127.0.0.1:{metrics}")]);
            // Postfix's client, another user, must be able to write to the socket.
            command.env("ONEDROP__LMTP__SOCKET_MODE", "0666");
            if self.held.is_none() {
                command.args(["--listen", &format!("127.0.0.1:{port}")]);
            }
        }
        if self.listens && self.held.is_none() {
            command.args([OsStr::new("--listen"), &self.address()]);
        }
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        match &self.held {
            None => command.stdin(Stdio::null()).stdout(Stdio::null()),
            Some((unix, tcp)) => {
                let (unix, tcp) =
                    (unix.try_clone().expect("socket"), tcp.try_clone().expect("socket"));
                command.stdin(OwnedFd::from(unix)).stdout(OwnedFd::from(tcp))
            }
        };
        command.current_dir("/");
        command
    }

    fn address(&self) -> OsString {
        format!("unix:{}", self.socket().display()).into()
    }

    fn launch(&self) -> Server {
        let log = self.log_path();
        let mut command = self.command();
        command.stderr(match &self.log {
            Some(other) => Stdio::from(other.try_clone().expect("log")),
            None => OpenOptions::new().create(true).append(true).open(&log).expect("log").into(),
        });
        Server::start("onedrop lmtp", command, Signal::SIGKILL, &log)
    }

    /// Returns when it answers.
    pub fn start(self) -> Lmtp {
        let mut lmtp = self.begin();
        lmtp.wait_ready();
        lmtp
    }

    /// Returns when `ready` is true.
    pub fn start_when(self, ready: impl FnMut() -> bool) -> Lmtp {
        let mut lmtp = self.begin();
        lmtp.server.wait_ready(ready);
        lmtp
    }

    /// Does not wait until it answers.
    pub fn begin(self) -> Lmtp {
        let _ = fs::remove_file(self.log_path());
        Lmtp { server: self.launch(), launch: self }
    }
}

pub struct Lmtp {
    server: Server,
    launch: Launch,
}

impl Lmtp {
    pub fn wait_ready(&mut self) {
        let (socket, ports) = (self.socket(), self.launch.ports);
        self.server.wait_ready(|| {
            let answers =
                |client: std::io::Result<LmtpClient>| client.map(LmtpClient::quit).is_ok();
            answers(LmtpClient::unix(&socket, LONGEST_PROBE))
                && ports.is_none_or(|(port, _)| answers(LmtpClient::tcp(port, LONGEST_PROBE)))
        });
    }

    pub fn socket(&self) -> PathBuf {
        self.launch.socket()
    }

    /// On 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.launch.ports.expect("a port").0
    }

    /// On 127.0.0.1.
    pub fn metrics_port(&self) -> u16 {
        self.launch.ports.expect("a port").1
    }

    /// See [`Server::cpu`].
    pub fn cpu(&self) -> Duration {
        self.server.cpu()
    }

    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    pub fn log(&self) -> String {
        let log = fs::read(self.launch.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Waits until this text is in its log.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        let said = wait_until(Duration::from_secs(20), || self.log().contains(text));
        assert!(said, "no {text:?} in\n{}", self.log());
    }

    /// A client with its LHLO said, by the Unix socket.
    pub fn client(&self) -> LmtpClient {
        LmtpClient::welcome(&self.socket())
    }

    pub fn has_ended(&mut self) -> bool {
        self.server.ended()
    }

    /// SIGTERM, and waits for the end of the drain.
    pub fn stop(&mut self) -> Ended {
        let began = Instant::now();
        self.server.signal(Signal::SIGTERM);
        let ended = wait_until(LONGEST_DRAIN, || self.server.ended());
        assert!(ended, "it does not end:\n{}", self.log());
        Ended { status: self.server.status().expect("it has ended"), took: began.elapsed() }
    }

    /// [`Lmtp::stop`] for a server under strace(1), which ends with what it traces, and not by a
    /// signal.
    pub fn stop_traced(&mut self) -> ExitStatus {
        for pid in self.server.descendants().into_keys() {
            // Its threads may have been killed on purpose.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
        }
        assert!(wait_until(LONGEST_DRAIN, || self.server.ended()), "it does not end");
        self.server.status().expect("it has ended")
    }

    /// SIGTERM alone; [`Lmtp::stop`] then waits.
    pub fn begin_to_stop(&mut self) {
        self.server.signal(Signal::SIGTERM);
    }

    /// Crashes it: every process is killed.
    pub fn kill(&mut self) {
        self.server.kill_all();
    }

    pub fn reload(&mut self) {
        self.server.signal(Signal::SIGHUP);
    }

    /// Starts it again on the same addresses, after `stop` or `kill`; returns when it answers.
    pub fn start_again(&mut self) {
        assert!(self.server.ended(), "it still runs");
        self.server = self.launch.launch();
        self.wait_ready();
    }

    pub fn pause(&mut self) {
        self.server.pause();
    }

    pub fn resume(&mut self) {
        self.server.resume();
    }

    /// What the metrics address says, without the HTTP header.
    pub fn metrics(&self) -> String {
        let mut stream =
            TcpStream::connect(("127.0.0.1", self.metrics_port())).expect("a metrics address");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("socket");
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("a question");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text.split_once("\r\n\r\n").map_or(text.clone(), |(_, body)| body.to_owned())
    }

    /// The value of the metric with exactly this name and these labels, e.g.
    /// `a_seconds_sum{phase="lock"}`.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics().lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    pub fn resident(&self) -> Resident {
        let mut text = String::new();
        let status = File::open(format!("/proc/{}/status", self.pid()));
        let _ = status.and_then(|mut file| file.read_to_string(&mut text));
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
        };
        Resident { anon_kb: value("RssAnon:"), file_kb: value("RssFile:") }
    }

    /// The most memory it had resident while `work` ran, looked at every few milliseconds.
    pub fn resident_during<T: Send>(&self, work: impl FnOnce() -> T + Send) -> (T, Resident) {
        std::thread::scope(|scope| {
            let working = scope.spawn(work);
            let mut most = Resident::default();
            while !working.is_finished() {
                let now = self.resident();
                if now.anon_kb > most.anon_kb {
                    most = now;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            (working.join().expect("work that ends well"), most)
        })
    }
}
