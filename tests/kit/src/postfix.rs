//! A Postfix per test, in front of the program under test, with the transport of
//! `conf/postfix/*.onedrop`.
//!
//! master(8) runs in the foreground as our child with its own configuration, queue and data
//! folders. Nothing leaves the machine: what is not for a local domain (bounces to outside senders,
//! too) goes to discard(8), which logs it.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;

use super::lmtp_client::dot_stuffed;
use super::server::{Server, guarded, tail};
use super::{
    TempRoot, chown_recursive, fixture_text, free_port, is_root, run, set_mode, wait_until,
};

/// The virtual mailbox domain; every address in it is accepted.
pub const DOMAIN: &str = "mail.axial.net";
/// The domain of `mydestination`, whose local parts are Unix users.
pub const UNIX_DOMAIN: &str = "unix.axial.net";

/// What hands the message to the program.
pub enum Delivery {
    /// `virtual_transport = onedrop`: pipe(8) with the shipped flags and arguments.
    Pipe,
    /// `mailbox_command` with this text, for Unix users at [`UNIX_DOMAIN`].
    MailboxCommand(String),
    /// `virtual_transport = onedrop-lmtp:NEXTHOP`: Postfix's LMTP client, to `unix:/path` or
    /// `inet:127.0.0.1:port`.
    Lmtp(String),
}

/// master.cf of a Postfix that is not set up for us, as far as we look at it.
pub const STOCK_MASTER_CF: &str = "local unix - n n - - local\nlmtp unix - - n - - lmtp\n";

/// A folder for PATH whose `postqueue` and `postconf` are those of a Postfix that has this
/// configuration and does not run.
pub fn stopped(root: &Path, main_cf: &str, master_cf: &str) -> PathBuf {
    let (bin, etc) = (root.join("stopped/bin"), root.join("stopped/etc"));
    for folder in [&bin, &etc] {
        fs::create_dir_all(folder).expect("a folder");
    }
    fs::write(etc.join("main.cf"), main_cf).expect("a file");
    fs::write(etc.join("master.cf"), master_cf).expect("a file");
    // As it answers root (Postfix' postqueue/postqueue.c): with status 0.
    let postqueue =
        "echo 'postqueue: warning: Mail system is down -- accessing queue directly' >&2";
    let postconf = format!("exec /usr/sbin/postconf -c {} \"$@\"", etc.display());
    for (name, does) in [("postqueue", postqueue), ("postconf", &postconf)] {
        fs::write(bin.join(name), format!("#!/bin/sh\n{does}\n")).expect("a program");
        set_mode(&bin.join(name), 0o755);
    }
    bin
}

pub struct PostfixSpec {
    /// Stands in for /usr/bin/onedrop; linked or copied to where every user may run it.
    pub program: PathBuf,
    /// Inserted as `--config FILE`; must be readable by `user`.
    pub config: Option<PathBuf>,
    /// The `user=` of the transport.
    pub user: String,
    pub delivery: Delivery,
    /// `Some(n)`: both back-off times and the queue's run delay are n seconds. `None`: Postfix's
    /// defaults (300 s).
    pub retry_secs: Option<u32>,
    /// Adds `-o soft_bounce=yes` to the transport.
    pub soft_bounce: bool,
    /// Further lines for main.cf; they win over the rig's.
    pub main_cf: String,
    /// Further lines for master.cf; a service of the same name wins over the rig's.
    pub master_cf: String,
}

impl PostfixSpec {
    /// pipe(8) as `nobody`, default retries.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            config: None,
            user: "nobody".to_owned(),
            delivery: Delivery::Pipe,
            retry_secs: None,
            soft_bounce: false,
            main_cf: String::new(),
            master_cf: String::new(),
        }
    }
}

pub struct Postfix {
    // Declared first: dropped before its folder is deleted.
    server: Server,
    guard: Option<Guard>,
    root: TempRoot,
    port: u16,
    retry: Option<Duration>,
}

impl Postfix {
    pub fn start(spec: &PostfixSpec) -> Self {
        assert!(is_root(), "Postfix's rig needs root");
        let root = TempRoot::new();
        let port = free_port();
        queue_folders(&root);
        root.dir_for("data", "postfix", 0o755);
        let program = root.join("onedrop");
        if fs::hard_link(&spec.program, &program).is_err() {
            fs::copy(&spec.program, &program)
                .unwrap_or_else(|error| panic!("{}: {error}", spec.program.display()));
            set_mode(&program, 0o755);
        }
        root.write("etc/main.cf", main_cf(&root, spec));
        root.write("etc/master.cf", format!("{}{}", master_cf(port), transport(&program, spec)));
        for line in spec.master_cf.lines().filter(|line| !line.trim().is_empty()) {
            run(postconf(&root).args(["-M", "-e"]).arg(service_assignment(line)));
        }
        // Postfix re-reads a configuration file every 300 ms until it is two seconds old: make it
        // look older.
        for name in ["etc/main.cf", "etc/master.cf"] {
            let file =
                fs::OpenOptions::new().append(true).open(root.join(name)).expect("configuration");
            file.set_modified(SystemTime::now() - Duration::from_mins(1)).expect("touch");
        }
        let server = Self::launch(&root, port);
        let guard = Some(Guard::over(server.pid()));
        let retry = spec.retry_secs.map(|secs| Duration::from_secs(secs.into()));
        Self { server, guard, root, port, retry }
    }

    fn launch(root: &TempRoot, port: u16) -> Server {
        let log = root.join("maillog");
        let mut command = guarded("/usr/lib/postfix/sbin/master", None, Signal::SIGTERM);
        // -s keeps it in the foreground; a session of its own makes "kill the process group" ours
        // alone.
        command.arg("-c").arg(root.join("etc")).arg("-s").env("MAIL_CONFIG", root.join("etc"));
        command
            .current_dir(root.join("queue"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut server = Server::start("postfix", command, Signal::SIGKILL, &log);
        server.wait_ready(|| Smtp::connect(port).is_ok());
        server
    }

    pub fn queue_directory(&self) -> PathBuf {
        self.root.join("queue")
    }

    pub fn config_directory(&self) -> PathBuf {
        self.root.join("etc")
    }

    /// Hands one message to Postfix and returns its queue id. Panics if any recipient is refused.
    ///
    /// Line ends may be LF or CRLF; an empty `from` is the null sender.
    pub fn send(&self, from: &str, recipients: &[&str], message: &[u8]) -> String {
        self.try_send(None, from, recipients, message)
            .unwrap_or_else(|reply| panic!("{reply}\n{}", self.log()))
    }

    /// Like `send`, from a session that authenticated as `user` (said by XCLIENT).
    pub fn send_authenticated(
        &self,
        user: &str,
        from: &str,
        recipients: &[&str],
        message: &[u8],
    ) -> String {
        self.try_send(Some(user), from, recipients, message)
            .unwrap_or_else(|reply| panic!("{reply}\n{}", self.log()))
    }

    /// The queue id, or the first reply that was not positive.
    ///
    /// # Errors
    /// The SMTP reply, or the I/O error as text.
    pub fn try_send(
        &self,
        user: Option<&str>,
        from: &str,
        recipients: &[&str],
        message: &[u8],
    ) -> Result<String, String> {
        let mut smtp = Smtp::connect(self.port)?;
        if let Some(user) = user {
            smtp.command(&format!("XCLIENT LOGIN={user}"), '2')?;
            smtp.command("EHLO test.example", '2')?;
        }
        let utf8 = if recipients.iter().chain([&from]).all(|address| address.is_ascii()) {
            ""
        } else {
            " SMTPUTF8"
        };
        smtp.command(&format!("MAIL FROM:<{from}>{utf8}"), '2')?;
        for recipient in recipients {
            smtp.command(&format!("RCPT TO:<{recipient}>"), '2')?;
        }
        smtp.command("DATA", '3')?;
        smtp.write(&dot_stuffed(message))?;
        let reply = smtp.command(".", '2')?;
        let queue_id = reply.rsplit(' ').next().unwrap_or_default().trim().to_owned();
        let _ = smtp.command("QUIT", '2');
        Ok(queue_id)
    }

    /// Submits a message on Postfix's own host, by sendmail(1).
    pub fn submit(&self, from: &str, recipient: &str, message: &[u8]) {
        let mut command = Command::new("/usr/sbin/sendmail");
        command.args(["-i", "-f", from, recipient]).env("MAIL_CONFIG", self.config_directory());
        let mut child = command.stdin(Stdio::piped()).spawn().expect("sendmail");
        child.stdin.take().expect("stdin").write_all(message).expect("a message");
        assert!(child.wait().expect("end").success(), "{}", self.log());
    }

    /// The whole log.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.root.join("maillog")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The log lines of pipe(8) or local(8) about the recipients of one message, each attempt one
    /// line.
    pub fn attempts(&self, queue_id: &str) -> Vec<String> {
        let of_message = format!(" {queue_id}: to=<");
        self.log().lines().filter(|line| line.contains(&of_message)).map(str::to_owned).collect()
    }

    /// How many recipients were delivered to, by the log.
    pub fn sent(&self) -> usize {
        self.log().matches(" status=sent ").count()
    }

    /// Waits for a log line that contains `text` and returns it; panics with the log after
    /// `timeout`.
    pub fn wait_for_log(&self, text: &str, timeout: Duration) -> String {
        let mut found = None;
        let seen = wait_until(timeout, || {
            found = self.log().lines().find(|line| line.contains(text)).map(str::to_owned);
            found.is_some()
        });
        assert!(
            seen,
            "no {text:?} in Postfix's log within {timeout:?}:\n{}",
            tail(&self.root.join("maillog"))
        );
        found.unwrap_or_default()
    }

    /// postqueue -f: tries every deferred message now.
    pub fn flush(&self) {
        run(Command::new("/usr/sbin/postqueue").arg("-c").arg(self.config_directory()).arg("-f"));
    }

    /// True when no message waits or is being delivered.
    pub fn queue_is_empty(&self) -> bool {
        // Twice: between two folders a moving message could hide from one look.
        (0..2).all(|_| {
            ["maildrop", "incoming", "active", "deferred"]
                .iter()
                .all(|queue| no_file(&self.root.join("queue").join(queue)))
        })
    }

    /// What qmgr(8) hides for a minute (see `master_cf`) it sees again by a flush: where it is to
    /// try again each second, a flush comes as often.
    #[must_use]
    pub fn wait_until_queue_empty(&self, timeout: Duration) -> bool {
        let mut flushed = Instant::now();
        let is_empty = wait_until(timeout, || {
            if self.retry.is_some_and(|retry| flushed.elapsed() > retry) {
                self.flush();
                flushed = Instant::now();
            }
            self.queue_is_empty()
        });
        // postlogd(8) writes later what the others have said; of one that was killed, never.
        let _ = is_empty && wait_until(Duration::from_secs(5), || self.log_tells_of_each_end());
        is_empty
    }

    /// Whether each message that cleanup(8) has named was removed by qmgr(8), as the log says.
    fn log_tells_of_each_end(&self) -> bool {
        let log = self.log();
        let named = log.lines().filter(|line| line.contains(": message-id=")).count();
        log.lines().filter(|line| line.ends_with(": removed")).count() >= named
    }

    /// Pids of the programs that are delivering right now (children of pipe(8) or local(8)).
    pub fn deliveries(&self) -> Vec<u32> {
        let runs = |pid: &u32| {
            let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let program = self.root.join("onedrop");
            bytes
                .split(|byte| *byte == 0)
                .any(|argument| argument == program.as_os_str().as_encoded_bytes())
        };
        self.server.descendants().into_keys().filter(runs).collect()
    }

    /// `postfix COMMAND`, as an administrator says it.
    pub fn postfix(&self, command: &str) {
        run(Command::new("/usr/sbin/postfix").arg("-c").arg(self.config_directory()).arg(command));
    }

    /// Pids of all processes below master(8).
    pub fn daemons(&self) -> Vec<u32> {
        self.server.descendants().into_keys().collect()
    }

    /// "postfix abort": SIGTERM to master(8), which passes it on to its daemons. Programs that
    /// deliver run on.
    pub fn stop(&mut self) {
        self.server.stop_main(Signal::SIGTERM);
        self.guard = None;
    }

    /// Starts again on the same port with the same queue, after `stop`.
    pub fn start_again(&mut self) {
        self.stop();
        self.server = Self::launch(&self.root, self.port);
        self.guard = Some(Guard::over(self.server.pid()));
    }
}

/// Ends master(8) when this test process dies. The parent-death signal alone does not: the kernel
/// forgets it when a process changes its effective user, as master does. The shell waits for the
/// end of a pipe that only we hold.
struct Guard(Child);

impl Guard {
    fn over(pid: u32) -> Self {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "read -r _; kill -TERM \"$1\"", "guard", &pid.to_string()]);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(shell.spawn().expect("sh"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Killed before its pipe closes: by then the pid may belong to someone else.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn postconf(root: &TempRoot) -> Command {
    let mut command = Command::new("/usr/sbin/postconf");
    command.arg("-c").arg(root.join("etc"));
    command
}

/// "name type ..." as postconf -M -e wants it: "name/type=name type ...".
fn service_assignment(line: &str) -> String {
    let mut fields = line.split_ascii_whitespace();
    let (name, kind) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    format!("{name}/{kind}={line}")
}

/// Makes what "postfix check" makes, which takes two seconds because it logs before there is a
/// postlogd.
fn queue_folders(root: &TempRoot) {
    let queue = root.join("queue");
    fs::create_dir(&queue).expect("queue");
    set_mode(&queue, 0o755);
    let private = [
        "active", "bounce", "corrupt", "defer", "deferred", "flush", "hold", "incoming", "private",
        "saved",
    ];
    for name in private.into_iter().chain(["trace"]) {
        root.dir_for(&format!("queue/{name}"), "postfix", 0o700);
    }
    let postdrop =
        nix::unistd::Group::from_name("postdrop").expect("group").expect("group postdrop").gid;
    for (name, mode) in [("maildrop", 0o730), ("public", 0o710)] {
        let path = root.dir_for(&format!("queue/{name}"), "postfix", mode);
        std::os::unix::fs::chown(&path, None, Some(postdrop.as_raw())).expect("chgrp postdrop");
        set_mode(&path, mode);
    }
    root.dir_for("queue/pid", "root", 0o755);
    let etc = root.join("etc");
    fs::create_dir(&etc).expect("etc");
    set_mode(&etc, 0o755);
    chown_recursive(&etc, "root");
}

fn main_cf(root: &TempRoot, spec: &PostfixSpec) -> String {
    let at = root.display();
    let temp = std::env::temp_dir();
    let mut text = format!(
        "compatibility_level = 3.6\n\
         queue_directory = {at}/queue\ndata_directory = {at}/data\n\
         command_directory = /usr/sbin\ndaemon_directory = /usr/lib/postfix/sbin\n\
         mail_owner = postfix\nsetgid_group = postdrop\n\
         maillog_file = {at}/maillog\nmaillog_file_prefixes = {}\n\
         inet_interfaces = 127.0.0.1\ninet_protocols = ipv4\nmynetworks = 127.0.0.0/8\n\
         myhostname = mx.axial.net\nmydomain = axial.net\nmyorigin = mx.axial.net\n\
         mydestination = {UNIX_DOMAIN}\nalias_maps =\nalias_database =\nlocal_recipient_maps =\n\
         virtual_mailbox_domains = {DOMAIN}\nvirtual_mailbox_maps = static:all\n\
         default_transport = discard\nrelay_transport = discard\n\
         disable_dns_lookups = yes\nsmtpd_peername_lookup = no\nsmtpd_error_sleep_time = 0\n\
         smtpd_recipient_restrictions = permit_mynetworks, reject\n\
         smtpd_tls_security_level = none\nsmtpd_sasl_auth_enable = no\n\
         smtpd_authorized_xclient_hosts = 127.0.0.1\n\
         message_size_limit = 0\nmailbox_size_limit = 0\nin_flow_delay = 0\nbiff = no\n\
         service_throttle_time = 1s\n",
        temp.display()
    );
    for line in active_lines("conf/postfix/main.cf.onedrop") {
        text.push_str(&line);
        text.push('\n');
    }
    match &spec.delivery {
        Delivery::Pipe => text.push_str("virtual_transport = onedrop\n"),
        Delivery::Lmtp(nexthop) => {
            writeln!(text, "virtual_transport = onedrop-lmtp:{nexthop}").expect("text")
        }
        Delivery::MailboxCommand(command) => {
            writeln!(text, "mailbox_command = {command}").expect("text")
        }
    }
    if let Some(secs) = spec.retry_secs {
        writeln!(
            text,
            "minimal_backoff_time = {secs}s\nmaximal_backoff_time = {secs}s\n\
             queue_run_delay = {secs}s"
        )
        .expect("text");
    }
    text.push_str(&spec.main_cf);
    text.push('\n');
    text
}

/// The shipped table of what is tried again instead of returned.
pub const STATUS_FILTER: &str = "regexp:/usr/share/onedrop/postfix/onedrop-status";

/// The shipped transport, with the program, the configuration and the user replaced.
fn transport(program: &Path, spec: &PostfixSpec) -> String {
    let mut text = active_lines("conf/postfix/master.cf.onedrop").join("\n");
    let mut replace = |from: &str, to: &str| {
        assert_eq!(
            text.matches(from).count(),
            1,
            "conf/postfix/master.cf.onedrop has {from:?} once"
        );
        text = text.replace(from, to);
    };
    let config = spec
        .config
        .as_ref()
        .map_or_else(String::new, |path| format!(" --config {}", path.display()));
    replace(
        "argv=/usr/bin/onedrop deliver",
        &format!("argv={} deliver{config}", program.display()),
    );
    let shipped = program.with_file_name("onedrop-status");
    fs::write(&shipped, fixture_text("conf/postfix/onedrop-status")).expect("a table");
    replace(STATUS_FILTER, &format!("regexp:{}", shipped.display()));
    replace("user=onedrop", &format!("user={}", spec.user));
    if spec.soft_bounce {
        replace(" pipe\n", " pipe\n  -o soft_bounce=yes\n");
    }
    if matches!(spec.delivery, Delivery::Lmtp(_)) && !text.contains("\nonedrop-lmtp ") {
        text.push_str(LMTP_SERVICE);
    }
    text.push('\n');
    text
}

/// Postfix's client with what Onedrop needs of it: lines of any length as they are, and the queue
/// id.
const LMTP_SERVICE: &str = "\nonedrop-lmtp unix - - n - - lmtp\n  -o lmtp_line_length_limit=0\n  \
                            -o lmtp_send_xforward_command=yes";

fn active_lines(path: &str) -> Vec<String> {
    let text = fixture_text(path);
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(str::to_owned)
        .collect()
}

/// A message that qmgr(8) would retry in the moment between the last recipient's status and
/// pipe(8)'s closing of the queue file is "skipped, still being delivered": qmgr moves it back to
/// incoming, hides it for a minute, and sees it again at its next wake-up, by default after 300 s.
/// Tests that retry each second meet that moment: so qmgr wakes up sooner. And master(8) starts a
/// program again at once that a test has killed at its first message, not after a minute.
fn master_cf(port: u16) -> String {
    format!(
        "127.0.0.1:{port} inet n - n - - smtpd\n\
         pickup unix n - n 60 1 pickup\ncleanup unix n - n - 0 cleanup\nqmgr unix n - n 5 1 qmgr\n\
         rewrite unix - - n - - trivial-rewrite\nbounce unix - - n - 0 bounce\n\
         defer unix - - n - 0 bounce\n\
         trace unix - - n - 0 bounce\nverify unix - - n - 1 verify\n\
         flush unix n - n 1000? 0 flush\n\
         proxymap unix - - n - - proxymap\nshowq unix n - n - - showq\nerror unix - - n - - error\n\
         retry unix - - n - - error\ndiscard unix - - n - - discard\nlocal unix - n n - - local\n\
         virtual unix - n n - - virtual\nlmtp unix - - n - - lmtp\nanvil unix - - n - 1 anvil\n\
         scache unix - - n - 1 scache\npostlog unix-dgram n - n - 1 postlogd\n"
    )
}

fn no_file(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries
        .into_iter()
        .all(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && no_file(&entry.path()))
}

struct Smtp(BufReader<TcpStream>);

impl Smtp {
    fn connect(port: u16) -> Result<Self, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        let limit = Some(Duration::from_secs(20));
        stream
            .set_read_timeout(limit)
            .and_then(|()| stream.set_write_timeout(limit))
            .map_err(|error| error.to_string())?;
        let mut smtp = Self(BufReader::new(stream));
        smtp.reply('2')?;
        smtp.command("EHLO test.example", '2')?;
        Ok(smtp)
    }

    fn command(&mut self, command: &str, expected: char) -> Result<String, String> {
        self.write(format!("{command}\r\n").as_bytes())?;
        self.reply(expected).map_err(|reply| format!("{command}: {reply}"))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.0.get_mut().write_all(bytes).map_err(|error| error.to_string())
    }

    fn reply(&mut self, expected: char) -> Result<String, String> {
        let mut reply = String::new();
        loop {
            let start = reply.len();
            if self.0.read_line(&mut reply).map_err(|error| error.to_string())? == 0 {
                return Err(format!("{reply}connection closed"));
            }
            if reply.as_bytes().get(start + 3) != Some(&b'-') {
                break;
            }
        }
        if reply.starts_with(expected) { Ok(reply) } else { Err(reply) }
    }
}
