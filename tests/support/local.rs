//! A site without servers of others: a ledger in a file, Maildirs, and a place for our own server's
//! socket.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::server::{Server, guarded_without_journal};
use super::{TempRoot, onedrop_path, set_mode, wait_until};

/// A folder with a ledger, a store and a place for a socket.
pub struct Local {
    pub root: TempRoot,
}

impl Local {
    pub fn new() -> Local {
        Local { root: TempRoot::new() }
    }

    pub fn socket(&self) -> PathBuf {
        self.root.join("lmtp.sock")
    }

    pub fn config(&self, name: &str, ledger: &Path, store: &Path, more: &str) -> PathBuf {
        let text = format!(
            "[ledger]\nurl = \"sqlite://{}\"\n[store]\nurl = \"maildir://{}\"\n[directory]\ndomains = [\"mail.axial.net\"]\n\
             accounts = {{ \"lisa@gmail.com\" = \"lisa\" }}\n[sent]\ntrust = \"authenticated\"\nauthserv_id = \"mail.axial.net\"\n{more}\n",
            ledger.display(),
            store.display()
        );
        self.root.write(name, text)
    }

    pub fn server_config(&self, more: &str) -> PathBuf {
        self.config("server.toml", &self.root.join("ledger.db"), &self.root.join("mail"), more)
    }

    /// The server's command line, to be started by [`launch`](Local::launch). It logs to standard
    /// error, also where there is a journal.
    pub fn server(&self, more: &str) -> Command {
        self.server_by(&[], onedrop_path(), more)
    }

    /// As [`server`](Local::server), as a user whom nobody else has, and who gets everything here.
    pub fn server_as(&self, user: u32, more: &str) -> Command {
        self.server_as_with(user, &["--clear-groups"], more)
    }

    /// As [`server_as`](Local::server_as), as a member of `group` as well.
    pub fn server_as_member(&self, user: u32, group: u32, more: &str) -> Command {
        self.server_as_with(user, &["--groups", &group.to_string()], more)
    }

    fn server_as_with(&self, user: u32, groups: &[&str], more: &str) -> Command {
        let program = self.root.join("onedrop");
        // Where it was built others may not go.
        if fs::hard_link(onedrop_path(), &program).is_err() {
            fs::copy(onedrop_path(), &program).expect("a copy of the program");
        }
        set_mode(&program, 0o755);
        std::os::unix::fs::chown(&*self.root, Some(user), None).expect("chown");
        // The wish to die with us does not outlive a change of user.
        let user = user.to_string();
        let by = [&["setpriv", "--pdeathsig", "KILL", "--reuid", &user], groups, &["--"]].concat();
        self.server_by(&by, &program, more)
    }

    /// As [`server`](Local::server), started by the command `before`.
    pub fn server_by(&self, before: &[&str], program: &Path, more: &str) -> Command {
        let mut words = before.iter().map(OsStr::new).chain([program.as_os_str()]);
        let mut command =
            guarded_without_journal(words.next().expect("a program"), None, Signal::SIGKILL);
        command.args(words);
        command.arg("lmtp").arg("--config").arg(self.server_config(more));
        command.arg("--listen").arg(format!("unix:{}", self.socket().display()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Starts the server; what it logs is in [`log`](Local::log).
    pub fn start_server(&self, more: &str) -> Server {
        self.launch_logged(self.server(more))
    }

    /// Starts `command`, and waits until the server takes clients; what it logs is in
    /// [`log`](Local::log).
    pub fn launch_logged(&self, mut command: Command) -> Server {
        command.stderr(fs::File::create(self.root.join("server.log")).expect("log"));
        self.launch(command)
    }

    /// Starts `command`, and waits until the server takes clients.
    pub fn launch(&self, command: Command) -> Server {
        let mut server =
            Server::start("onedrop lmtp", command, Signal::SIGTERM, &self.root.join("server.log"));
        server.wait_ready(|| UnixStream::connect(self.socket()).is_ok());
        server
    }

    /// Whether `text` is in the log, or soon will be.
    #[must_use]
    pub fn tells(&self, text: &str) -> bool {
        wait_until(Duration::from_secs(20), || self.log().contains(text))
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.root.join("server.log")).expect("log")).into_owned()
    }

    /// The copies in an account's mailbox, and their bytes.
    pub fn copies(&self, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
        super::maildir_copies(&self.root.join("mail"), account, mailbox)
    }

    pub fn inbox(&self, account: &str) -> Vec<Vec<u8>> {
        self.copies(account, "")
    }

    pub fn ledger(&self, sql: &str) -> Vec<String> {
        let ledger = rusqlite::Connection::open(self.root.join("ledger.db")).expect("ledger");
        let mut query = ledger.prepare(sql).expect("query");
        let rows = query.query_map([], |row| row.get::<_, String>(0)).expect("rows");
        rows.map(|row| row.expect("row")).collect()
    }
}
