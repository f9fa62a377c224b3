//! Sieve filters for a [`Dovecot`](super::dovecot::Dovecot): what its LMTP runs comes from
//! `conf/dovecot/onedrop-lmtp.conf`, the file that is shipped, with the guard or without it.
//!
//! What filters send (redirect, vacation, reject) is caught: each message is a file in a folder.
//! Accounts' own scripts, and those that run before and after them, may change at any time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::dovecot::MAIL_USER;
use super::{TempRoot, fixture_text, set_mode, wait_until};

/// Which scripts run before and after an account's own; see [`Filters::conf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    On,
    Off,
}

pub struct Filters {
    root: TempRoot,
}

/// What a filter sent: the arguments of sendmail(1), and the message with LF line ends.
#[derive(Debug)]
pub struct Sent {
    pub to: String,
    pub message: String,
}

impl Filters {
    /// No script is there yet.
    pub fn new() -> Filters {
        let root = TempRoot::new();
        for folder in ["sieve", "outbox", "incoming"] {
            root.dir_for(folder, MAIL_USER, 0o777);
        }
        let at = root.display().to_string();
        let sendmail = root.write("sendmail", SENDMAIL.replace("@ROOT@", &at));
        set_mode(&sendmail, 0o755);
        let filters = Filters { root };
        filters.write("guard", &fixture_text("conf/dovecot/onedrop-guard.sieve"));
        filters.before("");
        filters.after("");
        filters
    }

    /// The end of a dovecot.conf whose LMTP filters.
    pub fn conf(&self, guard: Guard) -> String {
        let shipped = fixture_text("conf/dovecot/onedrop-lmtp.conf");
        let path = "/etc/dovecot/onedrop-guard.sieve";
        let before = format!("  sieve_before = {path}\n");
        // The group of Onedrop's user, which no test machine has.
        let group = "    mode = 0660\n    group = onedrop\n";
        for part in [&before, group] {
            assert!(shipped.contains(part), "conf/dovecot/onedrop-lmtp.conf has no {part}");
        }
        // Dovecot runs sieve_before2 only after a sieve_before.
        let ours = |name| format!("  {name} = {}\n", self.path("before").display());
        let before_users = match guard {
            Guard::On => {
                let guard = before.replace(path, &self.path("guard").display().to_string());
                format!("{guard}{}", ours("sieve_before2"))
            }
            Guard::Off => ours("sieve_before"),
        };
        let shipped = shipped.replace(&before, &before_users).replace(group, "    mode = 0666\n");
        let at = self.root.display();
        format!(
            "{shipped}sendmail_path = {at}/sendmail\n\
             plugin {{\n  sieve = file:{at}/sieve/user-%u.sieve\n  \
             sieve_after = {at}/sieve/after.sieve\n}}\n"
        )
    }

    /// [`Filters::conf`] for a Dovecot 2.4.
    pub fn conf_24(&self, guard: Guard) -> String {
        let shipped = fixture_text("conf/dovecot/onedrop-lmtp-2.4.conf");
        let path = "/etc/dovecot/onedrop-guard.sieve";
        let section = format!(
            "sieve_script onedrop {{\n  type = before\n  driver = file\n  path = {path}\n  \
             precedence = 1\n}}\n"
        );
        let group = "    mode = 0660\n    group = onedrop\n";
        for part in [&section, group] {
            assert!(shipped.contains(part), "conf/dovecot/onedrop-lmtp-2.4.conf has no {part}");
        }
        let guarded = match guard {
            Guard::On => section.replace(path, &self.path("guard").display().to_string()),
            Guard::Off => String::new(),
        };
        let shipped = shipped.replace(&section, &guarded).replace(group, "    mode = 0666\n");
        let script = |name: &str, kind: &str, path: &Path| {
            format!(
                "sieve_script {name} {{\n  type = {kind}\n  driver = file\n  path = {}\n  \
                 precedence = 2\n}}\n",
                path.display()
            )
        };
        let own = self.root.join("sieve/user-%{user}.sieve");
        let scripts = [
            script("first", "before", &self.path("before")),
            script("own", "personal", &own),
            script("last", "after", &self.path("after")),
        ];
        let sendmail = self.root.join("sendmail");
        format!("{shipped}sendmail_path = {}\n{}", sendmail.display(), scripts.concat())
    }

    /// The account's own active script from now on.
    pub fn script(&self, account: &str, text: &str) {
        self.write(&format!("user-{account}"), text);
    }

    /// In place of the guard that is shipped.
    pub fn guard(&self, text: &str) {
        self.write("guard", text);
    }

    /// Runs before every account's own script, and after the guard.
    pub fn before(&self, text: &str) {
        self.write("before", text);
    }

    /// Runs after every account's own script that keeps the message.
    pub fn after(&self, text: &str) {
        self.write("after", text);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(format!("sieve/{name}.sieve"))
    }

    fn write(&self, name: &str, text: &str) {
        // What was compiled is older by less than a file's time can say.
        let _ = fs::remove_file(self.path(name).with_extension("svbin"));
        self.root.write(&format!("sieve/{name}.sieve"), text);
    }

    /// What Dovecot's own log of an account's script says, such as why it does not compile.
    pub fn script_log(&self, account: &str) -> String {
        let path = self.root.join(format!("sieve/user-{account}.sieve.log"));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// All that was sent to this address (its beginning is enough), the oldest first.
    pub fn sent_to(&self, address: &str) -> Vec<Sent> {
        let mut all: Vec<PathBuf> = fs::read_dir(self.root.join("outbox"))
            .expect("outbox")
            .map(|entry| entry.expect("entry").path())
            .collect();
        all.sort();
        let all = all.iter().map(|path| read_sent(path));
        all.filter(|sent| sent.to.starts_with(address)).collect()
    }

    /// From now on what is sent is caught, and then its sender waits for [`Filters::let_go`]: the
    /// window between sending and noting it.
    pub fn hold_senders(&self) {
        self.root.write("hold", "");
    }

    /// Waits until a sender is held; says which process sends.
    #[track_caller]
    pub fn wait_held(&self) -> i32 {
        let path = self.root.join("incoming/held");
        assert!(wait_until(Duration::from_secs(20), || path.exists()), "nobody sends");
        let pid = fs::read_to_string(&path).expect("a sender").trim().parse().expect("a pid");
        fs::remove_file(path).expect("the sender's mark");
        pid
    }

    /// Senders are held no longer.
    pub fn let_go(&self) {
        let _ = fs::remove_file(self.root.join("hold"));
    }
}

impl Default for Filters {
    fn default() -> Self {
        Self::new()
    }
}

fn read_sent(path: &Path) -> Sent {
    let text = String::from_utf8_lossy(&fs::read(path).expect("what was sent")).into_owned();
    let (arguments, message) = text.split_once('\n').expect("arguments");
    let to = arguments.rsplit(' ').next().unwrap_or_default();
    Sent { to: to.to_owned(), message: message.to_owned() }
}

/// `sendmail [options] -- recipient...`: the message becomes a file when it is whole.
const SENDMAIL: &str = r#"#!/bin/sh
name=$(date +%s%N)-$$
{ echo "$*" && cat; } >"@ROOT@/incoming/$name" || exit 75
mv "@ROOT@/incoming/$name" "@ROOT@/outbox/$name" || exit 75
if [ -e "@ROOT@/hold" ]; then
    echo $PPID >"@ROOT@/incoming/held-$$" && mv "@ROOT@/incoming/held-$$" "@ROOT@/incoming/held"
    for _ in $(seq 600); do
        [ -e "@ROOT@/hold" ] || exit 0
        sleep 0.05
    done
fi
"#;
