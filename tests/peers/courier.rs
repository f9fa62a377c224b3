//! A Courier per test: an IMAP server that takes SASL's authorization identity and ignores it. Its
//! paths are compiled in, so it runs in a mount namespace of its own. Users: `mda` and the test's
//! accounts.
//!
//! Its package cannot stand beside Dovecot's; `tests/run` unpacks what is only in there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::UNPACKED;
use crate::support::imap::{Imap, base64};
use crate::support::server::{Server, guarded};
use crate::support::{TempRoot, chown_recursive, free_port, run};

const PASSWORD: &str = "store-secret";
const USER_PASSWORD: &str = "user-secret";

pub struct Courier {
    // Declared first: dropped before its folder goes.
    _server: Server,
    root: TempRoot,
    port: u16,
}

impl Courier {
    pub fn start(accounts: &[&str]) -> Courier {
        let (root, port) = (TempRoot::new(), free_port());
        let unpacked = Path::new(UNPACKED).join("courier-imap");
        assert!(unpacked.exists(), "{} is missing: tests/run unpacks it", unpacked.display());
        fs::create_dir_all(root.join("run/courier/authdaemon")).expect("folder");
        let mut users = String::new();
        for user in accounts.iter().chain(&["mda"]) {
            let (home, maildir) =
                (root.join("mail").join(user), root.join("mail").join(user).join("Maildir"));
            for folder in ["new", "cur", "tmp"] {
                fs::create_dir_all(maildir.join(folder)).expect("Maildir");
            }
            let password = if *user == "mda" { PASSWORD } else { USER_PASSWORD };
            let hash = run(Command::new("openssl").args(["passwd", "-6", password]));
            let (home, maildir, hash) = (home.display(), maildir.display(), hash.trim());
            users += &format!(
                "{user}\tuid=65534|gid=65534|home={home}|mail={maildir}|systempw={hash}|\
                 imappw={hash}\n"
            );
        }
        chown_recursive(&root.join("mail"), "nobody");
        fs::create_dir(root.join("etc")).expect("folder");
        fs::write(root.join("etc/userdb"), users).expect("users");
        crate::support::set_mode(&root.join("etc/userdb"), 0o600);
        root.write("etc/authdaemonrc", AUTHDAEMONRC);
        root.write("etc/imapd", fs::read(unpacked.join("etc/courier/imapd")).expect("imapd"));
        let at = root.display().to_string();
        let script =
            SCRIPT.replace("@ROOT@", &at).replace("@COURIER@", &unpacked.display().to_string());
        root.write("start", script.replace("@PORT@", &port.to_string()));
        let log_path = root.join("log");
        let log = fs::File::create(&log_path).expect("log");
        let mut command = guarded("/usr/bin/unshare", None, Signal::SIGKILL);
        command.args(["--mount", "bash"]).arg(root.join("start")).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let mut server = Server::start("courier", command, Signal::SIGKILL, &log_path);
        server.wait_ready(|| session(port, "mda", PASSWORD).is_ok());
        Courier { _server: server, root, port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of all Maildirs: `ACCOUNT/Maildir`.
    pub fn mail_root(&self) -> PathBuf {
        self.root.join("mail")
    }

    /// A session of the account's own user.
    pub fn session(&self, account: &str) -> Imap {
        // What root has written.
        chown_recursive(&self.mail_root(), "nobody");
        session(self.port, account, USER_PASSWORD).expect("a login")
    }

    /// The account's messages, byte for byte as they lie there.
    pub fn messages(&self, account: &str) -> Vec<Vec<u8>> {
        let files = |folder: &str| -> Vec<PathBuf> {
            let folder = self.root.join("mail").join(account).join("Maildir").join(folder);
            fs::read_dir(folder)
                .expect("Maildir")
                .map(|entry| entry.expect("entry").path())
                .collect()
        };
        let mut files: Vec<_> = files("new").into_iter().chain(files("cur")).collect();
        files.sort();
        files.into_iter().map(|file| fs::read(file).expect("a message")).collect()
    }

    /// The names of the account's mailboxes but INBOX, as Maildir++ has them.
    pub fn folders(&self, account: &str) -> Vec<String> {
        let maildir = self.root.join("mail").join(account).join("Maildir");
        let names =
            fs::read_dir(maildir).expect("Maildir").map(|entry| entry.expect("entry").file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.starts_with('.'))
            .collect()
    }
}

/// Logs in as `user`; it waits for the server's `+`.
fn session(port: u16, user: &str, password: &str) -> std::io::Result<Imap> {
    let mut imap = Imap::connect(port)?;
    let token = base64(format!("{user}\0{user}\0{password}").as_bytes());
    let answer = imap.command(&format!("AUTHENTICATE PLAIN\r\n{token}"))?;
    if answer.is_ok() { Ok(imap) } else { Err(std::io::Error::other(answer.tagged)) }
}

const AUTHDAEMONRC: &str = "authmodulelist=\"authuserdb\"\nauthmodulelistorig=\"authuserdb\"\n\
                            daemons=2\n\
                            authdaemonvar=/run/courier/authdaemon\nDEBUG_LOGIN=0\n\
                            DEFAULTOPTIONS=\"\"\nLOGGEROPTS=\"\"\n";

const SCRIPT: &str = r#"
set -e
mount --make-rprivate /
mount --bind @ROOT@/etc /etc/courier
mount --bind @ROOT@/run /run
makeuserdb
/usr/lib/courier/courier-authlib/authdaemond &
until [ -S /run/courier/authdaemon/socket ]; do sleep 0.05; done
set -a
. /etc/courier/imapd
IMAP_CAPABILITY="IMAP4rev1 UIDPLUS CHILDREN NAMESPACE AUTH=PLAIN"
IMAP_CAPABILITY_ORIG=$IMAP_CAPABILITY
TLS_PROTOCOL=
exec /usr/sbin/couriertcpd -address=127.0.0.1 -nodnslookup -noidentlookup \
    -maxprocs=40 -maxperip=40 @PORT@ \
    @COURIER@/usr/lib/courier/courier/imaplogin @COURIER@/usr/bin/imapd Maildir
"#;
