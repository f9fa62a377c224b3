//! A Dovecot 2.4 with `conf/dovecot/onedrop-2.4.conf`, the file that is shipped. It is of another
//! release than the system, so it runs in a folder of its own (chroot), which `tests/run` makes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::pool::Limits;
use onedrop::store::imap::{ImapSettings, ImapStore};
use onedrop::store::{Access, MailboxOwner, Need, Store, StoreError};

use crate::support::imap::Imap;
use crate::support::server::{Server, guarded};
use crate::support::{TempRoot, chown_recursive, free_port, run};
use crate::{UNPACKED, imap_script};

const PASSWORD: &str = "store-secret";

struct Dovecot24 {
    // Declared first: dropped before its folder goes.
    _server: Server,
    root: TempRoot,
    port: u16,
}

impl Dovecot24 {
    /// With these accounts.
    fn start(accounts: &[&str]) -> Dovecot24 {
        let (root, port) = (TempRoot::new(), free_port());
        let unpacked = Path::new(UNPACKED).join("dovecot-2.4");
        assert!(unpacked.exists(), "{} is missing: tests/run makes it", unpacked.display());
        fs::create_dir(root.join("run")).expect("folder");
        fs::create_dir(root.join("mail")).expect("folder");
        let at = root.display().to_string();
        root.write("master-users", format!("mda:{{PLAIN}}{PASSWORD}\n"));
        let users = accounts.iter().map(|account| format!("{account}:{{PLAIN}}x\n"));
        root.write("users", users.collect::<String>());
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/dovecot/onedrop-2.4.conf");
        let shipped = fs::read_to_string(shipped).expect("the shipped file");
        let masters = "/etc/dovecot/onedrop.master-users";
        assert!(shipped.contains(masters));
        root.write("onedrop.conf", shipped.replace(masters, &format!("{at}/master-users")));
        let conf = DOVECOT_CONF.replace("@ROOT@", &at).replace("@PORT@", &port.to_string());
        root.write("dovecot.conf", conf);
        chown_recursive(&root.join("mail"), "nobody");
        let script = SCRIPT.replace("@DOVECOT@", &unpacked.display().to_string());
        root.write("inside", script);
        let log_path = root.join("log");
        let log = fs::File::create(&log_path).expect("log");
        let mut command = guarded("/usr/bin/unshare", None, Signal::SIGKILL);
        command.args(["--mount", "bash"]).arg(root.join("inside")).stdin(Stdio::null());
        command.args(["/usr/sbin/dovecot", "-F", "-c"]).arg(root.join("dovecot.conf"));
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let mut server = Server::start("dovecot-2.4", command, Signal::SIGKILL, &log_path);
        server.wait_ready(|| Imap::login_as(port, accounts[0], "mda", PASSWORD).is_ok());
        Dovecot24 { _server: server, root, port }
    }

    /// What it has understood of its settings.
    fn settings(&self) -> String {
        let mut command = Command::new("/usr/bin/unshare");
        command.args(["--mount", "bash"]).arg(self.root.join("inside"));
        run(command.args(["/usr/bin/doveconf", "-n", "-c"]).arg(self.root.join("dovecot.conf")))
    }

    fn store(&self) -> ImapStore {
        let settings =
            ImapSettings { port: self.port, password: PASSWORD.into(), ..imap_script::settings(0) };
        let idle = Duration::from_secs(60);
        ImapStore::new(settings, Limits { used: 8, per_key: 4, kept: 8, idle })
    }
}

const DOVECOT_CONF: &str = "\
dovecot_config_version = 2.4.0
dovecot_storage_version = 2.4.0
base_dir = @ROOT@/run
state_dir = @ROOT@/run
log_path = /dev/stderr
protocols = imap
listen = 127.0.0.1
ssl = no
auth_allow_cleartext = yes
default_internal_user = dovecot
default_login_user = dovenull
first_valid_uid = 1
mail_uid = nobody
mail_gid = nogroup
mail_driver = maildir
mail_path = @ROOT@/mail/%{user}/Maildir
mail_home = @ROOT@/mail/%{user}
service imap-login {
  inet_listener imap {
    port = @PORT@
  }
  inet_listener imaps {
    port = 0
  }
}
!include @ROOT@/onedrop.conf
passdb users {
  driver = passwd-file
  passwd_file_path = @ROOT@/users
}
userdb static {
}
";

const SCRIPT: &str = r#"
set -e
mount --make-rprivate /
for at in dev proc tmp; do mount --rbind /$at @DOVECOT@/$at; done
for at in passwd group; do mount --bind /etc/$at @DOVECOT@/etc/$at; done
exec chroot @DOVECOT@ "$@"
"#;

fn until() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn the_shipped_file_serves_deliveries() {
    let dovecot = Dovecot24::start(&["lisa", "doug"]);
    let store = dovecot.store();
    let told = store.check("lisa", until()).expect("a check");
    assert!(told.iter().any(|line| line.contains("the server is Dovecot")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("UIDPLUS: yes")), "{told:?}");
    let owner = store.whose_mailboxes("lisa", until()).expect("it can be told");
    assert!(matches!(owner, MailboxOwner::Accounts(_)), "{owner:?}");
    let letter = imap_script::letter(imap_script::LETTER);
    let copy = imap_script::copy_of(&letter);
    let deadline = Deadline::new(Duration::from_secs(30), Duration::from_secs(10));
    for destination in [Destination::inbox("lisa"), Destination::sent("lisa", "Sent")] {
        let slot = |need| store.reserve(&destination, copy, need, &deadline);
        let receipt = slot(Need::Write).expect("a slot").expect("a slot").append();
        let receipt = receipt.expect("an append");
        let found = slot(Need::Look).expect("a slot").expect("a slot").look(until());
        assert_eq!(found.expect("a look"), Some(receipt.clone()));
        store.remove(&destination, &receipt, until()).expect("it can be taken out");
        let found = slot(Need::Look).expect("a slot").expect("a slot").look(until());
        assert_eq!(found.expect("a look"), None);
    }
    // An account that is not there gets no mailbox.
    let nobody = Destination::inbox("ghost");
    let ghost = store.reserve(&nobody, copy, Need::Look, &deadline);
    assert!(matches!(ghost, Err(StoreError::NoAccount(_) | StoreError::NotStored(_))));
    let shown = dovecot.settings();
    for line in [
        "auth_cache_negative_ttl = 1 min",
        "mail_max_lock_timeout = 5 secs",
        "mail_max_userip_connections = 100",
        "restart_request_count = unlimited",
        "result_success = continue",
        "nodelay = yes",
    ] {
        assert!(shown.lines().any(|shown| shown.trim() == line), "{line}\n{shown}");
    }
}
