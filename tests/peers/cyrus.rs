//! A Cyrus per test, as IMAP store: `mda` may act for every account (`proxyservers`), and has no
//! mailbox of its own.
//!
//! Its package cannot stand beside Dovecot's; `tests/run` unpacks the one program that is only in
//! there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::UNPACKED;
use crate::support::imap::Imap;
use crate::support::server::{Server, guarded};
use crate::support::{TempRoot, chown_recursive, free_port, run};

const PASSWORD: &str = "store-secret";
const ADMIN: &str = "cyrusadm";
/// The Unix user that Debian's package makes.
const CYRUS_USER: &str = "cyrus";

pub struct Cyrus {
    // Declared first: dropped before its folder goes.
    _server: Server,
    root: TempRoot,
    port: u16,
}

impl Cyrus {
    /// With these accounts.
    pub fn start(accounts: &[&str]) -> Cyrus {
        Cyrus::start_with(accounts, "munge8bit: no\n")
    }

    /// With further lines of imapd.conf.
    pub fn start_with(accounts: &[&str], conf: &str) -> Cyrus {
        let (root, port) = (TempRoot::new(), free_port());
        let imapd = Path::new(UNPACKED).join("cyrus-imapd/usr/lib/cyrus/bin/imapd");
        assert!(imapd.exists(), "{} is missing: tests/run unpacks it", imapd.display());
        for folder in ["db", "proc", "log", "msg", "socket"] {
            fs::create_dir_all(root.join("conf").join(folder)).expect("folder");
        }
        fs::create_dir(root.join("part")).expect("folder");
        let at = root.display().to_string();
        root.write("imapd.conf", IMAPD_CONF.replace("@ROOT@", &at) + conf);
        let conf =
            CYRUS_CONF.replace("@ROOT@", &at).replace("@IMAPD@", &imapd.display().to_string());
        root.write("cyrus.conf", conf.replace("@PORT@", &port.to_string()));
        root.write("password", PASSWORD);
        for user in ["mda", ADMIN] {
            let mut add = Command::new("/usr/sbin/saslpasswd2");
            add.args(["-p", "-c", "-u", "localhost", "-f"]).arg(root.join("sasldb2")).arg(user);
            run(add.stdin(fs::File::open(root.join("password")).expect("password")));
        }
        chown_recursive(&root, CYRUS_USER);
        let log_path = root.join("log");
        let log = fs::File::create(&log_path).expect("log");
        let mut command = guarded("/usr/lib/cyrus/bin/master", None, Signal::SIGKILL);
        command
            .arg("-D")
            .arg("-C")
            .arg(root.join("imapd.conf"))
            .arg("-M")
            .arg(root.join("cyrus.conf"));
        command.arg("-p").arg(root.join("pid")).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let mut server = Server::start("cyrus", command, Signal::SIGKILL, &log_path);
        let mut admin = None;
        server.wait_ready(|| {
            admin = Imap::login_as(port, ADMIN, ADMIN, PASSWORD).ok();
            admin.is_some()
        });
        let mut admin = admin.expect("a session");
        for account in accounts {
            let made = admin.command(&format!("CREATE user/{account}")).expect("CREATE");
            assert!(made.is_ok(), "{}", made.tagged);
        }
        Cyrus { _server: server, root, port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where an lmtpd of its own listens, which suppresses no duplicates.
    pub fn lmtp_socket(&self) -> PathBuf {
        self.root.join("conf/socket/lmtp")
    }

    /// A session as `account`, logged in by `mda`.
    pub fn session(&self, account: &str) -> Imap {
        Imap::login_as(self.port, account, "mda", PASSWORD).expect("a login")
    }

    /// A session of the administrator's own.
    pub fn admin(&self) -> Imap {
        Imap::login_as(self.port, ADMIN, ADMIN, PASSWORD).expect("a login")
    }

    /// The messages in a mailbox of the account, in their order.
    pub fn messages(&self, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
        let mut session = self.session(account);
        let opened = session.command(&format!("EXAMINE {mailbox}")).expect("EXAMINE");
        if opened.untagged.iter().any(|line| line.text == "* 0 EXISTS") {
            return Vec::new();
        }
        let fetched = session.command("FETCH 1:* BODY.PEEK[]").expect("FETCH");
        fetched.untagged.into_iter().flat_map(|line| line.literals).collect()
    }
}

const IMAPD_CONF: &str = "
configdirectory: @ROOT@/conf
partition-default: @ROOT@/part
cyrus_user: cyrus
admins: cyrusadm
proxyservers: mda
allowplaintext: yes
sasl_mech_list: PLAIN
sasl_pwcheck_method: auxprop
sasl_auxprop_plugin: sasldb
sasl_sasldb_path: @ROOT@/sasldb2
servername: localhost
defaultdomain: localhost
lmtpsocket: @ROOT@/conf/socket/lmtp
duplicatesuppression: no
idlesocket: @ROOT@/conf/socket/idle
notifysocket: @ROOT@/conf/socket/notify
";

const CYRUS_CONF: &str = "
START {
  recover cmd=\"/usr/lib/cyrus/bin/ctl_cyrusdb -C @ROOT@/imapd.conf -r\"
}
SERVICES {
  imap cmd=\"@IMAPD@ -C @ROOT@/imapd.conf\" listen=\"127.0.0.1:@PORT@\"
  lmtp cmd=\"/usr/lib/cyrus/bin/lmtpd -a -C @ROOT@/imapd.conf\" listen=\"@ROOT@/conf/socket/lmtp\"
}
EVENTS {
  checkpoint cmd=\"/usr/lib/cyrus/bin/ctl_cyrusdb -C @ROOT@/imapd.conf -c\" period=30
}
";
