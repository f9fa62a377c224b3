//! `onedrop lmtp` as a child: as the mail's user, on a Unix socket and a TCP port of its own, with
//! its metrics on another.
//!
//! Like a service manager, the rig may hold the listening sockets itself and pass them on
//! (sd_listen_fds(3)): then a client that connects between two lives of the server waits instead of
//! being refused.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::dovecot::MAIL_USER;
use super::lmtp_client::LmtpClient;
use super::server::{Server, guarded_without_journal};
use super::{TempRoot, free_port, onedrop_path, run, set_mode, wait_until};

/// No drain may take longer than the longest delivery (the deadline and its answer), with what a
/// busy machine adds.
const LONGEST_DRAIN: Duration = Duration::from_secs(90);
const LONGEST_PROBE: Duration = Duration::from_millis(500);

/// Who binds the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// The server, by `--listen`: between two lives of it clients are refused.
    Own,
    /// The rig, once; the server inherits them.
    Held,
}

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

pub struct Lmtp {
    // Declared first: dropped before its folder goes.
    server: Server,
    root: TempRoot,
    config: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    port: u16,
    metrics_port: u16,
    held: Option<(UnixListener, TcpListener)>,
}

impl Lmtp {
    /// With addresses of its own; `config` must be readable by the mail's user.
    pub fn start(config: &Path) -> Self {
        Self::start_with(config, Sockets::Own, &[])
    }

    /// `args`: further arguments.
    pub fn start_with(config: &Path, sockets: Sockets, args: &[&str]) -> Self {
        let mut lmtp = Self::begin(config, sockets, args, &[]);
        lmtp.wait_ready();
        lmtp
    }

    /// As [`Lmtp::start_with`], with these variables; does not wait until it answers.
    pub fn begin(config: &Path, sockets: Sockets, args: &[&str], env: &[(&str, &str)]) -> Self {
        let root = TempRoot::new();
        root.dir_for("run", MAIL_USER, 0o755);
        let program = root.join("onedrop");
        // Where it was built others may not go.
        if fs::hard_link(onedrop_path(), &program).is_err() {
            fs::copy(onedrop_path(), &program).expect("a copy of the program");
        }
        set_mode(&program, 0o755);
        let (port, metrics_port) = (free_port(), free_port());
        let held = (sockets == Sockets::Held).then(|| {
            let unix = UnixListener::bind(root.join("run/lmtp")).expect("socket");
            set_mode(&root.join("run/lmtp"), 0o666);
            (unix, TcpListener::bind(("127.0.0.1", port)).expect("port"))
        });
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let env: Vec<_> =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let config = config.to_path_buf();
        let server = Self::launch(&root, &config, &args, &env, (port, metrics_port), held.as_ref());
        Self { server, root, config, args, env, port, metrics_port, held }
    }

    fn launch(
        root: &TempRoot,
        config: &Path,
        args: &[String],
        env: &[(String, String)],
        (port, metrics_port): (u16, u16),
        held: Option<&(UnixListener, TcpListener)>,
    ) -> Server {
        let log_path = root.join("lmtp.log");
        let log = OpenOptions::new().create(true).append(true).open(&log_path).expect("log");
        let mut command = guarded_without_journal("/bin/sh", Some(MAIL_USER), Signal::SIGKILL);
        // The shell becomes the server.
        let script = match held {
            None => "exec \"$@\"",
            Some(_) => "exec 3<&0 4<&1 0</dev/null 1>&2; LISTEN_FDS=2 LISTEN_PID=$$ exec \"$@\"",
        };
        command
            .args(["-c", script, "sh"])
            .arg(root.join("onedrop"))
            .arg("lmtp")
            .arg("--config")
            .arg(config);
        command.args(["--metrics", &format!("127.0.0.1:{metrics_port}")]).args(args);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"ONEDROP_") {
                command.env_remove(name);
            }
        }
        // Postfix's client, another user, must be able to write to the socket.
        command.env("ONEDROP__LMTP__SOCKET_MODE", "0666");
        command.envs(env.iter().map(|(name, value)| (name, value)));
        match held {
            None => {
                command.args(["--listen", &format!("unix:{}", root.join("run/lmtp").display())]);
                command.args(["--listen", &format!("127.0.0.1:{port}")]);
                command.stdin(Stdio::null()).stdout(log.try_clone().expect("log"));
            }
            Some((unix, tcp)) => {
                let (unix, tcp) =
                    (unix.try_clone().expect("socket"), tcp.try_clone().expect("socket"));
                command.stdin(OwnedFd::from(unix)).stdout(OwnedFd::from(tcp));
            }
        }
        command.stderr(log).current_dir("/");
        Server::start("onedrop lmtp", command, Signal::SIGKILL, &log_path)
    }

    pub fn wait_ready(&mut self) {
        let (socket, port) = (self.socket(), self.port);
        self.server.wait_ready(|| {
            let answers =
                |client: std::io::Result<LmtpClient>| client.map(LmtpClient::quit).is_ok();
            answers(LmtpClient::unix(&socket, LONGEST_PROBE))
                && answers(LmtpClient::tcp(port, LONGEST_PROBE))
        });
    }

    pub fn socket(&self) -> PathBuf {
        self.root.join("run/lmtp")
    }

    /// On 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// On 127.0.0.1.
    pub fn metrics_port(&self) -> u16 {
        self.metrics_port
    }

    /// See [`Server::cpu`].
    pub fn cpu(&self) -> Duration {
        self.server.cpu()
    }

    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// What it wrote to its standard output and error.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.root.join("lmtp.log")).unwrap_or_default())
            .into_owned()
    }

    /// Its log records: where there is a journal they go there, else to its standard error.
    pub fn records(&self) -> String {
        let mut records = self.log();
        if Path::new("/run/systemd/journal/socket").exists() {
            let of_it = format!("_PID={}", self.pid());
            records.push_str(&run(Command::new("journalctl").args([
                "--no-pager",
                "-o",
                "export",
                &of_it,
            ])));
        }
        records
    }

    /// Waits for a log record with this text.
    #[track_caller]
    pub fn wait_for_record(&self, text: &str) {
        let said = wait_until(Duration::from_secs(20), || self.records().contains(text));
        assert!(said, "no {text:?} in\n{}", self.records());
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

    /// SIGTERM alone; [`Lmtp::stop`] then waits.
    pub fn begin_to_stop(&mut self) {
        self.server.signal(Signal::SIGTERM);
    }

    /// As a crash.
    pub fn kill(&mut self) {
        self.server.kill_all();
    }

    pub fn reload(&mut self) {
        self.server.signal(Signal::SIGHUP);
    }

    /// Starts it again on the same addresses, after `stop` or `kill`; returns when it answers.
    pub fn start_again(&mut self) {
        assert!(self.server.ended(), "it still runs");
        let ports = (self.port, self.metrics_port);
        self.server = Self::launch(
            &self.root,
            &self.config,
            &self.args,
            &self.env,
            ports,
            self.held.as_ref(),
        );
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
            TcpStream::connect(("127.0.0.1", self.metrics_port)).expect("a metrics address");
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
