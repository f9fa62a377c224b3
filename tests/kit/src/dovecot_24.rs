//! A Dovecot 2.4 with what is shipped for it: `conf/dovecot/onedrop-2.4.conf`, and for LMTP
//! `conf/dovecot/onedrop-lmtp-2.4.conf`. It is of another release than the system, so it runs in a
//! folder of its own (chroot), which `tests/run` makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::dovecot::MAIL_USER;
use super::imap::Imap;
use super::server::{Server, guarded};
use super::{TempRoot, fixture_text, free_port, run, set_mode};

const PASSWORD: &str = "store-secret";
/// Where `tests/run` unpacks it.
const UNPACKED: &str = "/var/cache/onedrop-tests/dovecot-2.4";

pub struct Dovecot24 {
    // Declared first: dropped before its folder goes.
    _server: Server,
    root: TempRoot,
    /// IMAP, LMTP.
    ports: [u16; 2],
}

impl Dovecot24 {
    /// With these accounts, each of which has a home folder, and with `more` at the end of its
    /// configuration.
    pub fn start(accounts: &[&str], more: &str) -> Dovecot24 {
        let (root, ports) = (TempRoot::new(), [free_port(), free_port()]);
        let lmtp = Path::new(UNPACKED).join("usr/lib/dovecot/lmtp");
        assert!(lmtp.exists(), "{} is missing: tests/run unpacks it", lmtp.display());
        let at = root.display().to_string();
        fs::create_dir(root.join("run")).expect("folder");
        root.dir_for("mail", MAIL_USER, 0o755);
        for account in accounts {
            root.dir_for(&format!("mail/{account}"), MAIL_USER, 0o700);
        }
        root.write("master-users", format!("mda:{{PLAIN}}{PASSWORD}\n"));
        let users = accounts.iter().map(|account| format!("{account}:{{PLAIN}}x::::::\n"));
        root.write("users", users.collect::<String>());
        let shipped = fixture_text("conf/dovecot/onedrop-2.4.conf");
        let masters = "/etc/dovecot/onedrop.master-users";
        assert!(shipped.contains(masters));
        root.write("onedrop.conf", shipped.replace(masters, &format!("{at}/master-users")));
        let conf = CONF.replace("@ROOT@", &at).replace("@USER@", MAIL_USER);
        let conf = conf.replace("@IMAP@", &ports[0].to_string());
        let conf = conf.replace("@LMTP@", &ports[1].to_string());
        root.write("dovecot.conf", conf + more);
        root.write("inside", INSIDE.replace("@DOVECOT@", UNPACKED));
        // In a PATH before the system's own.
        let doveconf =
            "#!/bin/sh\nexec unshare --mount bash @ROOT@/inside /usr/bin/doveconf \"$@\"\n";
        fs::create_dir(root.join("bin")).expect("folder");
        set_mode(&root.write("bin/doveconf", doveconf.replace("@ROOT@", &at)), 0o755);
        let log_path = root.join("log");
        let log = fs::File::create(&log_path).expect("log");
        set_mode(&log_path, 0o666);
        let mut command = guarded("/usr/bin/unshare", None, Signal::SIGKILL);
        command.args(["--mount", "bash"]).arg(root.join("inside")).stdin(Stdio::null());
        command.args(["/usr/sbin/dovecot", "-F", "-c"]).arg(root.join("dovecot.conf"));
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let mut server = Server::start("dovecot-2.4", command, Signal::SIGKILL, &log_path);
        server.wait_ready(|| Imap::login_as(ports[0], accounts[0], "mda", PASSWORD).is_ok());
        Dovecot24 { _server: server, root, ports }
    }

    pub fn imap_port(&self) -> u16 {
        self.ports[0]
    }

    pub fn lmtp_port(&self) -> u16 {
        self.ports[1]
    }

    pub fn lmtp_socket(&self) -> PathBuf {
        self.root.join("run/lmtp")
    }

    /// Where its user database can be asked.
    pub fn userdb_socket(&self) -> PathBuf {
        self.root.join("run/auth-userdb")
    }

    /// Of the master user `mda`.
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    pub fn config_file(&self) -> PathBuf {
        self.root.join("dovecot.conf")
    }

    /// A folder with its own doveconf, for PATH.
    pub fn programs(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// What it has understood of its settings.
    pub fn settings(&self) -> String {
        let mut doveconf = Command::new(self.programs().join("doveconf"));
        run(doveconf.args(["-n", "-c"]).arg(self.config_file()))
    }

    /// Every message of a mailbox in order of UID, as the server gives it.
    pub fn messages(&self, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
        let imap = Imap::login_as(self.ports[0], account, "mda", PASSWORD);
        let mut imap = imap.unwrap_or_else(|error| panic!("login as {account}: {error}"));
        let fetched = imap.fetch_all(mailbox, "UID BODY.PEEK[]");
        fetched.into_iter().map(|line| line.literals.concat()).collect()
    }
}

const CONF: &str = "\
dovecot_config_version = 2.4.0
dovecot_storage_version = 2.4.0
base_dir = @ROOT@/run
state_dir = @ROOT@/run
log_path = /dev/stderr
protocols = imap lmtp
listen = 127.0.0.1
ssl = no
auth_allow_cleartext = yes
auth_failure_delay = 0
default_internal_user = dovecot
default_login_user = dovenull
first_valid_uid = 1
mail_uid = @USER@
mail_gid = nogroup
mail_driver = maildir
mail_path = @ROOT@/mail/%{user}/Maildir
mail_home = @ROOT@/mail/%{user}
namespace inbox {
  inbox = yes
  separator = /
}
service imap-login {
  inet_listener imap {
    port = @IMAP@
  }
  inet_listener imaps {
    port = 0
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
!include @ROOT@/onedrop.conf
passdb users {
  driver = passwd-file
  passwd_file_path = @ROOT@/users
}
userdb users {
  driver = passwd-file
  passwd_file_path = @ROOT@/users
}
";

const INSIDE: &str = r#"
set -e
mount --make-rprivate /
for at in dev proc tmp; do mount --rbind /$at @DOVECOT@/$at; done
for at in passwd group; do mount --bind /etc/$at @DOVECOT@/etc/$at; done
exec chroot @DOVECOT@ "$@"
"#;
