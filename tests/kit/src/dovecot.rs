//! Dovecot as IMAP and LMTP store: any user name is an account, and a master user acts for it.
//! Accounts of a test's own in the run's server, or a server of its own for a test that stops,
//! pauses or configures it, or speaks LMTP with it.
//!
//! What concerns Onedrop comes from `conf/dovecot/onedrop.conf`, the file that is shipped.

use std::fs::{self, OpenOptions};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use onedrop::userdb::Userdb;

use super::imap::Imap;
use super::server::{Server, guarded, tail};
use super::shared::{self, Shared, Starting};
use super::{TempRoot, chown_recursive, fixture_text, free_port, run, set_mode, wait_until};

/// The one Unix user that all mail belongs to.
pub const MAIL_USER: &str = "nobody";
const MASTER: &str = "mda";
const PASSWORD: &str = "store-secret";
/// What any account's own user logs in with (without the master user).
const USER_PASSWORD: &str = "user-secret";

/// Undoes the shipped file's process settings: Dovecot's defaults, a fresh process per connection
/// and per session.
const DEFAULT_PROCESSES: &str = "\
     service imap-login {\n  service_count = 1\n  process_min_avail = 0\n}\n\
     service imap {\n  service_count = 1\n  process_min_avail = 0\n}\n";

/// See [`Dovecot::lock_mailbox`].
pub struct MailboxLock(PathBuf);

impl Drop for MailboxLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The accounts of a test: in a server of its own all accounts, in the run's those that its master
/// user acts for, whose mail is in a folder of that name.
pub struct Dovecot {
    // Declared first: dropped before its folder is deleted.
    server: Option<Server>,
    _root: Option<TempRoot>,
    folder: PathBuf,
    master: String,
    mail_root: PathBuf,
    /// IMAP, IMAP over TLS, LMTP.
    ports: [u16; 3],
}

impl Dovecot {
    /// Accounts in the run's server, which has the shipped file: any name, by IMAP and by this
    /// test's master user alone. Other tests' sessions are in its log.
    pub fn shared() -> Self {
        Self::shared_with("dovecot", "")
    }

    /// The same in another server of the run, which stores the line ends that it is sent: what a
    /// Maildir with LF cannot hold, Dovecot changes.
    pub fn shared_that_keeps_line_ends() -> Self {
        Self::shared_with("dovecot-crlf", "mail_save_crlf = yes\n")
    }

    fn shared_with(name: &str, extra_conf: &str) -> Self {
        let start = |starting: &Starting| Self::start_shared(starting, extra_conf);
        let Shared { folder, .. } = shared::server(name, start);
        let ports = fs::read_to_string(folder.join("ports")).expect("ports");
        let ports: Vec<u16> = ports.split(' ').map(|port| port.parse().expect("a port")).collect();
        let master = shared::unique_name();
        let mail_root = folder.join("mail").join(&master);
        fs::create_dir(&mail_root).expect("a folder");
        chown_recursive(&mail_root, MAIL_USER);
        let ports = ports.try_into().expect("three ports");
        Self { server: None, _root: None, folder, master, mail_root, ports }
    }

    fn start_shared(starting: &Starting, extra_conf: &str) -> u16 {
        // Each test has an account of the same name. After a name that is longer than Dovecot's own
        // protocol has room for, an imap process logs no other in.
        let shared = "mail_location = maildir:~/Maildir\nmail_max_userip_connections = 1000\n\
                      service imap {\n  service_count = 1\n}\n";
        let of_its_own = EVERYBODY.replace("/mail/%u", "/mail/%{auth_user}/%u");
        let users = format!("{ANY_MASTER}{of_its_own}");
        let ports = Self::prepare(&starting.root, &users, &format!("{shared}{extra_conf}"));
        let guard = |command: &mut Command| *command = starting.guarded(command, Signal::SIGTERM);
        Self::launch(&starting.root, ports, guard).leave();
        starting.root.write("ports", ports.map(|port| port.to_string()).join(" "));
        ports[0]
    }

    /// The server, for what no test may do to one that it shares.
    #[track_caller]
    fn own(&mut self) -> &mut Server {
        self.server.as_mut().expect("a server of its own: Dovecot::start")
    }

    /// What is not of one test's accounts.
    #[track_caller]
    fn is_own(&self) {
        assert!(self.server.is_some(), "a server of its own: Dovecot::start");
    }

    /// With Dovecot's default processes, which are the fastest for a test that does not log in.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Like `start`, with `extra_conf` at the end of dovecot.conf (may override anything).
    pub fn start_with(extra_conf: &str) -> Self {
        Self::configure(&format!("{DEFAULT_PROCESSES}{extra_conf}"))
    }

    /// With the shipped file exactly as it is: reused login and imap processes.
    pub fn start_high_performance() -> Self {
        Self::configure("")
    }

    /// Like `start_high_performance`, with `extra_conf` at the end of dovecot.conf.
    pub fn start_high_performance_with(extra_conf: &str) -> Self {
        Self::configure(extra_conf)
    }

    /// Like `start_high_performance`, with another time to wait for a mailbox's lock; 0: Dovecot's
    /// own two minutes and more.
    pub fn start_that_waits_for_locks(secs: u32) -> Self {
        Self::configure(&format!("protocol imap {{\n  mail_max_lock_timeout = {secs} s\n}}\n"))
    }

    /// Like `start_high_performance`, on these addresses as well as on 127.0.0.1.
    pub fn start_high_performance_on(addresses: &[&str]) -> Self {
        Self::configure(&format!("listen = 127.0.0.1, {}\n", addresses.join(", ")))
    }

    /// Like `start`, with `users` in place of the passdb and userdb for which any name is an
    /// account. `@ROOT@` in it is the server's folder, `@USER@` the Unix user of all mail. The
    /// account `rig-probe` must exist.
    pub fn start_with_users(users: &str) -> Self {
        Self::configure_with(users, DEFAULT_PROCESSES)
    }

    fn configure(extra_conf: &str) -> Self {
        Self::configure_with(EVERYBODY, extra_conf)
    }

    fn configure_with(users: &str, extra_conf: &str) -> Self {
        assert!(super::is_root(), "Dovecot's rig needs root: it runs as several users");
        let root = TempRoot::new();
        let ports = Self::prepare(&root, users, extra_conf);
        let server = Self::launch(&root, ports, |_| ());
        let (folder, mail_root) = (root.to_path_buf(), root.join("mail"));
        let master = MASTER.to_owned();
        Self { server: Some(server), _root: Some(root), folder, master, mail_root, ports }
    }

    /// Writes its configuration.
    fn prepare(root: &TempRoot, users: &str, extra_conf: &str) -> [u16; 3] {
        let ports @ [imap_port, tls_port, lmtp_port] = [free_port(), free_port(), free_port()];
        root.dir_for("mail", MAIL_USER, 0o755);
        certificate(root);
        root.write("master-users", format!("{MASTER}:{{PLAIN}}{PASSWORD}\n"));
        let shipped = fixture_text("conf/dovecot/onedrop.conf");
        let path = "/etc/dovecot/onedrop.master-users";
        assert!(
            shipped.contains(&format!("args = {path}")),
            "conf/dovecot/onedrop.conf names {path}"
        );
        let at = root.display().to_string();
        root.write("onedrop.conf", shipped.replace(path, &format!("{at}/master-users")));
        let conf = CONF
            .replace("@USERS@", users)
            .replace("@ROOT@", &at)
            .replace("@USER@", MAIL_USER)
            .replace("@USER_PASSWORD@", USER_PASSWORD)
            .replace("@PASSWORD@", PASSWORD);
        let conf = conf
            .replace("@IMAP@", &imap_port.to_string())
            .replace("@IMAPS@", &tls_port.to_string());
        let conf = conf.replace("@LMTP@", &lmtp_port.to_string());
        root.write("dovecot.conf", format!("{conf}{extra_conf}\n"));
        ports
    }

    fn launch(root: &Path, ports: [u16; 3], change: impl FnOnce(&mut Command)) -> Server {
        let log_path = root.join("dovecot.log");
        let log = OpenOptions::new().create(true).append(true).open(&log_path).expect("log");
        // dovecot-lda and imap processes write it as the mail user.
        set_mode(&log_path, 0o666);
        let mut command = guarded("/usr/sbin/dovecot", None, Signal::SIGTERM);
        command
            .arg("-F")
            .arg("-c")
            .arg(root.join("dovecot.conf"))
            .current_dir("/")
            .stdin(Stdio::null());
        change(&mut command);
        command.stdout(log.try_clone().expect("log")).stderr(log);
        // A clean stop takes Dovecot a second, which no test needs on Drop.
        let mut server = Server::start("dovecot", command, Signal::SIGKILL, &log_path);
        server.wait_ready(|| {
            ports.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok())
                && Imap::login_as(ports[0], "rig-probe", MASTER, PASSWORD)
                    .and_then(|mut imap| imap.command("LOGOUT"))
                    .is_ok()
        });
        let _ = fs::remove_dir_all(root.join("mail/rig-probe"));
        server
    }

    /// Plain IMAP on 127.0.0.1, with STARTTLS on offer.
    pub fn imap_port(&self) -> u16 {
        self.ports[0]
    }

    /// IMAP over TLS; the certificate is for `localhost` and 127.0.0.1.
    pub fn imaps_port(&self) -> u16 {
        self.ports[1]
    }

    /// LMTP on 127.0.0.1, as on [`Dovecot::lmtp_socket`].
    #[track_caller]
    pub fn lmtp_port(&self) -> u16 {
        self.is_own();
        self.ports[2]
    }

    #[track_caller]
    pub fn lmtp_socket(&self) -> PathBuf {
        self.is_own();
        self.folder.join("run/lmtp")
    }

    /// Waits until its user database, and a passdb in the same file, have read that `user` is gone.
    pub fn wait_until_unknown(&self, user: &str) {
        let userdb = Userdb::new(self.userdb_socket());
        let soon = || Instant::now() + Duration::from_secs(10);
        let is_gone = || matches!(userdb.user(user, soon()), Ok(None));
        assert!(wait_until(Duration::from_secs(60), is_gone), "{user}: {}", self.log());
    }

    /// Where its user database can be asked: by root about all users, by others about those of
    /// their own Unix user.
    #[track_caller]
    pub fn userdb_socket(&self) -> PathBuf {
        self.is_own();
        self.folder.join("run/auth-userdb")
    }

    /// The certificate, which is its own authority, as PEM.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.join("cert.pem")
    }

    /// The master user, to authenticate as.
    pub fn master_user(&self) -> &str {
        &self.master
    }

    /// The master user's password.
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// Another password for the master user, in force when this returns. Dovecot reads the file
    /// again by itself; a reload would refuse some logins for a moment (`[UNAVAILABLE]`), as
    /// those whom an old login process serves are unknown to the new auth process.
    pub fn change_password(&self, password: &str) {
        let file = self.config_file().with_file_name("master-users");
        let new = file.with_extension("new");
        fs::write(&new, format!("{MASTER}:{{PLAIN}}{password}\n")).expect("the master user's file");
        fs::rename(&new, &file).expect("the master user's file");
        let holds = || Imap::login_as(self.imap_port(), "rig-probe", MASTER, password).is_ok();
        assert!(wait_until(Duration::from_secs(20), holds), "the new password");
    }

    /// For `doveadm -c` and `dovecot-lda -c`, readable by all users.
    #[track_caller]
    pub fn config_file(&self) -> PathBuf {
        self.is_own();
        self.folder.join("dovecot.conf")
    }

    /// Locks the account's INBOX as a mail program would, until the guard is dropped: Dovecot waits
    /// for the lock, because its holder lives. The mailbox must exist.
    pub fn lock_mailbox(&self, account: &str) -> MailboxLock {
        let lock = lock_of_inbox(&self.maildir(account));
        let host = nix::unistd::gethostname().expect("our name");
        fs::write(&lock, format!("{}:{}", std::process::id(), host.to_string_lossy()))
            .expect("a lock");
        MailboxLock(lock)
    }

    /// Of the account's INBOX the message with this text becomes one that no index knows, and the
    /// mailbox is locked until the guard is dropped: what a Dovecot leaves that was killed as it
    /// stored a message.
    pub fn hide(&self, account: &str, text: &str) -> MailboxLock {
        let maildir = self.maildir(account);
        let files = ["new", "cur"].map(|part| fs::read_dir(maildir.join(part)).expect("a folder"));
        let holds = |path: &PathBuf| {
            String::from_utf8_lossy(&fs::read(path).expect("a file")).contains(text)
        };
        let mut files = files.into_iter().flatten().map(|file| file.expect("a file").path());
        let file = files.find(holds).expect("the message");
        let aside = maildir.join("aside");
        fs::rename(&file, &aside).expect("the same disk");
        let count = self.messages(account, "INBOX").len();
        assert_eq!(count, self.files(account), "its index has the others");
        let lock = self.lock_mailbox(account);
        let file = maildir.join("new").join(file.file_name().expect("a name"));
        fs::rename(&aside, &file).expect("the same disk");
        lock
    }

    /// Where the account's Maildir is, or will be after its first use.
    pub fn maildir(&self, account: &str) -> PathBuf {
        self.mail_root().join(account).join("Maildir")
    }

    /// Makes the account's home folder, as a site does with a new account. Dovecot makes one only
    /// with a mailbox, which is too late for what the `duplicate` test of the first delivery locks.
    pub fn make_home(&self, account: &str) {
        let home = self.mail_root().join(account);
        fs::create_dir_all(&home).expect("folder");
        set_mode(&home, 0o700);
        chown_recursive(&home, MAIL_USER);
    }

    /// The folder of all accounts: Onedrop's `maildir://` root.
    pub fn mail_root(&self) -> PathBuf {
        self.mail_root.clone()
    }

    /// The end of the server's log.
    pub fn log(&self) -> String {
        tail(&self.folder.join("dovecot.log"))
    }

    pub fn doveadm(&self, args: &[&str]) -> String {
        run(Command::new("/usr/bin/doveadm")
            .arg("-c")
            .arg(self.config_file())
            .args(args)
            .current_dir("/"))
    }

    /// A session as `account`, logged in by the master user.
    pub fn session(&self, account: &str) -> Imap {
        Imap::login_as(self.ports[0], account, &self.master, PASSWORD)
            .unwrap_or_else(|error| panic!("login as {account}: {error}\n{}", self.log()))
    }

    /// Every message of a mailbox in order of UID, byte for byte as the server gives it (line ends
    /// are CRLF).
    ///
    /// `mailbox` is a name as IMAP sends it: modified UTF-7. A mailbox that does not exist
    /// has no messages.
    pub fn messages(&self, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
        let fetched = self.fetch(account, mailbox, "UID BODY.PEEK[]");
        fetched
            .into_iter()
            .map(|line| line.literals.into_iter().next().unwrap_or_default())
            .collect()
    }

    /// Flags and keywords of every message in order of UID, without `\Recent`, sorted.
    pub fn flags(&self, account: &str, mailbox: &str) -> Vec<Vec<String>> {
        let fetched = self.fetch(account, mailbox, "UID FLAGS");
        let flags = fetched.iter().map(|line| {
            let (_, rest) =
                line.text.split_once("FLAGS (").unwrap_or_else(|| panic!("{}", line.text));
            let (inside, _) = rest.split_once(')').unwrap_or_else(|| panic!("{}", line.text));
            let mut flags: Vec<String> =
                inside.split_ascii_whitespace().map(str::to_owned).collect();
            flags.retain(|flag| flag != "\\Recent");
            flags.sort();
            flags
        });
        flags.collect()
    }

    /// UIDs in order.
    pub fn uids(&self, account: &str, mailbox: &str) -> Vec<u32> {
        let fetched = self.fetch(account, mailbox, "UID");
        let uid = |text: &str| {
            text.split_once("UID ")?.1.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        fetched
            .iter()
            .map(|line| uid(&line.text).unwrap_or_else(|| panic!("{}", line.text)))
            .collect()
    }

    /// How many messages there are; 0 if the mailbox does not exist.
    pub fn count(&self, account: &str, mailbox: &str) -> usize {
        self.uids(account, mailbox).len()
    }

    /// Takes all messages out of the account's INBOX.
    pub fn empty(&self, account: &str) {
        let mut session = self.session(account);
        for command in ["SELECT INBOX", "UID STORE 1:* +FLAGS.SILENT (\\Deleted)", "CLOSE"] {
            let answer = session.command(command).expect("an answer");
            assert!(answer.is_ok(), "{account}: {command}: {}", answer.tagged);
        }
    }

    fn fetch(&self, account: &str, mailbox: &str, items: &str) -> Vec<super::imap::Line> {
        self.session(account).fetch_all(mailbox, items)
    }

    /// How many messages there are by the files of a mailbox' Maildir, without asking the server.
    pub fn files(&self, account: &str) -> usize {
        let folder = self.maildir(account);
        let count = |sub: &str| fs::read_dir(folder.join(sub)).map_or(0, Iterator::count);
        count("new") + count("cur")
    }

    /// Like [`files`](Dovecot::files), of all mailboxes of the account.
    pub fn all_files(&self, account: &str) -> usize {
        let folders = fs::read_dir(self.maildir(account)).into_iter().flatten().flatten();
        let folders = folders.filter(|entry| entry.file_name().as_encoded_bytes()[0] == b'.');
        let messages = |folder: PathBuf| {
            let parts = ["new", "cur"].map(|sub| fs::read_dir(folder.join(sub)));
            parts.into_iter().flatten().map(Iterator::count).sum::<usize>()
        };
        self.files(account) + folders.map(|entry| messages(entry.path())).sum::<usize>()
    }

    /// See [`Server::cpu`].
    pub fn cpu(&self) -> Duration {
        self.server.as_ref().expect("a server of its own").cpu()
    }

    pub fn stop(&mut self) {
        self.own().stop(Signal::SIGTERM);
    }

    /// Crashes it: every process is killed.
    pub fn kill(&mut self) {
        self.own().kill_all();
        self.remove_locks_without_a_holder();
    }

    /// Dovecot makes a lock and then writes who holds it. One that is killed in between leaves an
    /// empty file, which the next Dovecot believes for two minutes.
    fn remove_locks_without_a_holder(&self) {
        let Ok(accounts) = fs::read_dir(self.mail_root()) else { return };
        for account in accounts {
            let name = account.expect("an account").file_name();
            let lock = lock_of_inbox(&self.maildir(&name.to_string_lossy()));
            if fs::metadata(&lock).is_ok_and(|lock| lock.len() == 0) {
                fs::remove_file(&lock).expect("a lock");
            }
        }
    }

    /// Starts again on the same ports with the same mail, after `stop` or `kill`.
    pub fn start_again(&mut self) {
        self.stop();
        self.server = Some(Self::launch(&self.folder, self.ports, |_| ()));
    }

    /// Freezes every process: the kernel still accepts connections, nothing answers.
    pub fn pause(&mut self) {
        self.own().pause();
    }

    pub fn resume(&mut self) {
        self.own().resume();
    }
}

impl Drop for Dovecot {
    fn drop(&mut self) {
        if self.server.is_none() {
            let _ = fs::remove_dir_all(&self.mail_root);
        }
    }
}

fn lock_of_inbox(maildir: &Path) -> PathBuf {
    maildir.join("dovecot-uidlist.lock")
}

/// Writes a passwd-file with these accounts, which Dovecot looks at once a second, and reads again
/// by its time in seconds alone: see [`Dovecot::wait_until_unknown`].
pub fn write_users(file: &Path, accounts: &[&str]) {
    static WRITTEN: AtomicU64 = AtomicU64::new(1_000_000_000);
    let lines = accounts.iter().map(|account| format!("{account}:{{PLAIN}}user-secret::::::\n"));
    fs::write(file, lines.collect::<String>()).expect("users");
    let at = Duration::from_secs(WRITTEN.fetch_add(1, Ordering::Relaxed));
    let file = OpenOptions::new().write(true).open(file).expect("users");
    file.set_modified(SystemTime::UNIX_EPOCH + at).expect("a time");
}

/// For [`Dovecot::start_with_users`]: those in the file that [`write_users`] writes.
pub fn users_in(file: &Path) -> String {
    let file = file.display();
    format!(
        "passdb {{\n  driver = passwd-file\n  args = {file}\n}}\n\
         userdb {{\n  driver = passwd-file\n  args = {file}\n\
           default_fields = uid=@USER@ gid=nogroup home=@ROOT@/mail/%n\n}}\n"
    )
}

/// `cert.pem`, for `localhost` and 127.0.0.1, and `key.pem`.
pub fn certificate(root: &Path) {
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]);
    openssl.args([
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
    ]);
    // No authority, or rustls would not take it as a server's certificate.
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-keyout").arg(root.join("key.pem")).arg("-out").arg(root.join("cert.pem"));
    run(&mut openssl);
    // dovecot-lda reads the whole configuration as the mail user; the key is worth nothing outside
    // of this test.
    set_mode(&root.join("key.pem"), 0o644);
}

/// Any name is an account.
const EVERYBODY: &str = "passdb {\n  driver = static\n  args = password=@USER_PASSWORD@\n}\n\
     userdb {\n  driver = static\n  args = uid=@USER@ gid=nogroup home=@ROOT@/mail/%u \
     allow_all_users=yes\n}\n";

/// Any name is a master user, too.
const ANY_MASTER: &str =
    "passdb {\n  driver = static\n  master = yes\n  args = password=@PASSWORD@\n}\n";

const CONF: &str = r"
base_dir = @ROOT@/run
state_dir = @ROOT@/state
log_path = @ROOT@/dovecot.log
protocols = imap lmtp
listen = 127.0.0.1
mail_location = maildir:@ROOT@/mail/%u/Maildir
# On loopback without TLS (the default refuses it only to other hosts).
disable_plaintext_auth = no
auth_failure_delay = 0
!include @ROOT@/onedrop.conf
@USERS@
namespace inbox {
  inbox = yes
  separator = /
}
ssl = yes
ssl_cert = <@ROOT@/cert.pem
ssl_key = <@ROOT@/key.pem
service imap-login {
  inet_listener imap {
    port = @IMAP@
  }
  inet_listener imaps {
    port = @IMAPS@
    ssl = yes
  }
}
service lmtp {
  unix_listener lmtp {
    mode = 0666
  }
  inet_listener lmtp {
    port = @LMTP@
  }
}
protocol lda {
  postmaster_address = postmaster@mail.axial.net
}
# No waiting after failed logins.
service anvil {
  unix_listener anvil-auth-penalty {
    mode = 0
  }
}
# dovecot-lda as an unprivileged user.
service auth {
  unix_listener auth-userdb {
    mode = 0666
  }
}
service stats {
  unix_listener stats-writer {
    mode = 0666
  }
}
";
