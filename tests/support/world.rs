//! A site: one Postgres, one Dovecot, and configurations of Onedrop that share nothing but these
//! two.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::dovecot::{Dovecot, MAIL_USER};
use super::postgres::Postgres;
use super::{TempRoot, chown_recursive, onedrop, set_mode};

/// What `directory` and `sent` say unless a test says otherwise: the story of Lisa, Scuba and Doug.
pub const STORY: &str = r#"
[directory]
domains = ["mail.axial.net"]
accounts = { "lisa@gmail.com" = "lisa" }
[sent]
trust = "authenticated"
authserv_id = "mail.axial.net"
"#;

pub struct World {
    pub postgres: Postgres,
    pub dovecot: Dovecot,
    pub root: TempRoot,
}

impl World {
    /// A migrated ledger and an empty store, both set up as `conf/` recommends.
    pub fn start() -> World {
        World::with(Dovecot::start_high_performance())
    }

    /// A migrated ledger beside this store.
    pub fn with(dovecot: Dovecot) -> World {
        World::of(Postgres::start(), dovecot)
    }

    /// These two, with the ledger migrated.
    pub fn of(postgres: Postgres, dovecot: Dovecot) -> World {
        let world = World { postgres, dovecot, root: TempRoot::new() };
        let config = world.config("migrate", STORY);
        let output = onedrop()
            .arg("migrate")
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .output()
            .expect("binary");
        assert!(output.status.success(), "migrate: {output:?}");
        world
    }

    /// Writes a configuration of its own, in a folder of its own, that the mail user can read.
    pub fn config(&self, name: &str, more: &str) -> PathBuf {
        self.config_with(name, &format!("url = \"{}\"", self.postgres.url_socket()), more)
    }

    /// As [`World::config`], with another way to the ledger.
    pub fn config_with(&self, name: &str, ledger: &str, more: &str) -> PathBuf {
        let store =
            format!("url = \"imap://127.0.0.1:{}\"\nstarttls = false", self.dovecot.imap_port());
        self.config_by(name, ledger, &store, more)
    }

    /// As [`World::config_with`], with another way to the store as well.
    pub fn config_by(&self, name: &str, ledger: &str, store: &str, more: &str) -> PathBuf {
        self.note_the_proof(store);
        let dir = self.root.dir_for(name, MAIL_USER, 0o755);
        fs::write(dir.join("password"), self.dovecot.password()).expect("password");
        fs::write(dir.join("ledger.password"), self.postgres.password()).expect("password");
        for password in ["password", "ledger.password"] {
            set_mode(&dir.join(password), 0o600);
        }
        let at = dir.display();
        let ledger = ledger.replace("$PASSWORD", &format!("{at}/ledger.password"));
        let text = format!(
            "[ledger]\n{ledger}\n[store]\n{store}\nuser = \"{}\"\npassword_file = \"{at}/password\"\n{more}",
            self.dovecot.master_user(),
        );
        fs::write(dir.join("onedrop.toml"), text).expect("configuration");
        chown_recursive(&dir, MAIL_USER);
        dir.join("onedrop.toml")
    }

    /// Puts on record that the mail server heeds for whom we log in, as it does: deliveries by way
    /// of a proxy that counts what they do are not to find that out. `tests/peers/imap_proof.rs` is about
    /// it.
    fn note_the_proof(&self, store: &str) {
        let place = store
            .split_once("imap://")
            .or_else(|| store.split_once("imaps://"))
            .map(|(_, place)| place);
        if let Some((server, _)) = place.and_then(|place| place.split_once('"')) {
            let user = self.dovecot.master_user();
            self.postgres.psql(&format!(
                "DO $$ BEGIN IF to_regclass('onedrop_proof') IS NOT NULL THEN INSERT INTO onedrop_proof (server, login_user, way, host) \
                 VALUES ('{server}', '{user}', 'sasl', 'test') ON CONFLICT DO NOTHING; END IF; END $$"
            ));
        }
    }

    /// What the ledger says of the only message with this text in its Message-ID: copies placed,
    /// copies in all.
    pub fn ledger_copies(&self, message_id: &str) -> String {
        self.postgres.psql(&format!(
            "SELECT count(c.placed_at) || ' of ' || count(*) FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id \
             WHERE m.message_id_text LIKE '%{message_id}%'"
        ))
    }

    /// Lisa has written to Scuba and Doug: one copy each, as it should be, and one in her Sent that
    /// names no recipient.
    pub fn story_is_told(&self, message_id: &str) {
        for account in ["scuba", "doug"] {
            let mails = self.dovecot.messages(account, "INBOX");
            assert_eq!(mails.len(), 1, "{account}");
            let text = String::from_utf8_lossy(&mails[0]);
            assert!(text.starts_with("Return-Path: <lisa@gmail.com>\r\n"), "{text}");
            assert!(text.contains(&format!("Delivered-To: {account}")), "{text}");
            assert_eq!(self.dovecot.flags(account, "INBOX"), [Vec::<String>::new()]);
        }
        let sent = self.dovecot.messages("lisa", "Sent");
        assert_eq!(sent.len(), 1);
        let text = String::from_utf8_lossy(&sent[0]);
        assert!(
            !text.contains("Delivered-To:") && !text.contains("Return-Path:"),
            "a shared copy names a recipient: {text}"
        );
        assert_eq!(self.dovecot.flags("lisa", "Sent"), [["\\Seen"]]);
        assert_eq!(self.ledger_copies(message_id), "3 of 3");
    }

    /// Makes the copies (an SQL condition) as they are after a crash between the append and its
    /// record, with the lease run out.
    pub fn forget_receipts(&self, which: &str) {
        self.postgres.psql(&format!(
            "UPDATE onedrop_copy SET placed_at = NULL, uid = NULL, uid_validity = NULL, in_doubt = true, \
             leased_until = clock_timestamp() - interval '1 second' WHERE {which}; DELETE FROM onedrop_kept"
        ));
    }
}

/// Starts a delivery in the folder of its configuration.
pub fn start_delivery(config: &Path, args: &[&str]) -> Child {
    let mut command = onedrop();
    command.arg("deliver").arg("--config").arg(config).args(args);
    command.current_dir(config.parent().expect("folder"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("binary")
}

/// Feeds a started delivery and waits for its end.
pub fn finish_delivery(mut child: Child, message: &[u8]) -> Output {
    let mut stdin = child.stdin.take().expect("stdin");
    // A delivery that ended early is judged by its status.
    drop(stdin.write_all(message));
    drop(stdin);
    child.wait_with_output().expect("end")
}

/// One delivery, from start to end.
pub fn deliver(config: &Path, args: &[&str], message: &[u8]) -> Output {
    finish_delivery(start_delivery(config, args), message)
}

/// One delivery that must succeed; returns what it said.
#[track_caller]
pub fn delivered(config: &Path, args: &[&str], message: &[u8]) -> String {
    let output = deliver(config, args, message);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}: {said}", output.status);
    said
}

/// Runs another command of ours against `config`.
pub fn run(config: &Path, args: &[&str]) -> Output {
    let mut command: Command = onedrop();
    command.args(args).arg("--config").arg(config).stdin(Stdio::null()).output().expect("binary")
}
