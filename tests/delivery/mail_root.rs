//! Hosts whose disks are not what they were: a file system that is not mounted leaves an empty
//! folder, an older one or none. No delivery makes a ledger's file, the root of Maildirs or an
//! account's folder; mail waits, and arrives when the disk is back.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::letters::{ANN, from_ann};
use crate::support::lmtp_client::LmtpClient;
use crate::support::site::{Files, Site, deliver, run};

/// An administrator's settings: a delivery makes no account.
const REAL: &str = "deliver.trial = false\n[directory]\ndomains = [\"mail.axial.net\"]\n";
const SCUBA: &str = "scuba@mail.axial.net";

/// A host whose `migrate` has run, and that has an account.
struct Host {
    site: Site<Files>,
    config: PathBuf,
}

impl Host {
    fn new(more: &str) -> Host {
        let site = Site::embedded();
        let config = site.config("etc", &format!("{REAL}{more}"));
        let host = Host { site, config };
        assert!(host.run(&["migrate"]).0 == Some(0));
        fs::create_dir_all(host.path("mail/scuba")).expect("an account's folder");
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.root.join(name)
    }

    /// How a command ends, and what it says.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = run(&self.config, args);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    }

    #[track_caller]
    fn ends(&self, args: &[&str], status: i32, says: &str) {
        let (ended, said) = self.run(args);
        assert!(ended == Some(status) && said.contains(says), "{args:?}: {ended:?} {said}");
    }

    /// What the metrics say of the mail store.
    #[track_caller]
    fn store_up(&self, is_up: bool) {
        let file = self.path("onedrop.prom").display().to_string();
        self.ends(&["status", "--prometheus", &file], 0, "");
        let text = fs::read_to_string(&file).expect("metrics");
        let line = format!("\nonedrop_store_up {}\n", u8::from(is_up));
        assert!(text.contains(&line), "{line}{text}");
    }

    #[track_caller]
    fn delivers(&self, to: &str, name: &str, status: i32, says: &str) {
        let output = deliver(&self.config, &["-d", to], from_ann(name).as_bytes());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let ended = output.status.code();
        assert!(ended == Some(status) && said.contains(says), "{to}: {ended:?} {said}");
    }

    /// What is below a folder of the site, but a ledger's locks.
    fn below(&self, name: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.path(name)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                found.push(path);
            }
        }
        found
    }
}

/// The commands that use ledger and mailboxes, one each.
const COMMANDS: [&[&str]; 7] = [
    &["verify"],
    &["verify", "--repair"],
    &["settle"],
    &["purge"],
    &["status"],
    &["check", "--account", "scuba"],
    &["replay", "--to", SCUBA, "fixtures/mail/welcome.eml"],
];

#[test]
fn a_ledger_that_is_gone_is_made_by_migrate_alone() {
    let host = Host::new("");
    host.delivers(SCUBA, "first", 0, "stored");
    let is_gone = "ledger.db is not there: if its file system is not mounted, mount it";
    let gone: Vec<_> = ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-locks"]
        .into_iter()
        .map(|name| (host.path(name), host.path(&format!("aside-{name}"))))
        .collect();
    for (path, aside) in &gone {
        fs::rename(path, aside).expect("a file");
    }
    host.delivers(SCUBA, "second", 75, is_gone);
    for command in COMMANDS {
        let (ended, said) = host.run(command);
        assert!(ended == Some(75) && said.contains("is not mounted"), "{command:?}: {said}");
    }
    assert!(gone.iter().all(|(path, _)| !path.exists()));
    for (path, aside) in &gone {
        fs::rename(aside, path).expect("a file");
    }
    host.delivers(SCUBA, "second", 0, "stored");
    host.site.inbox_has("scuba", ["first", "second"].map(from_ann));
}

#[test]
fn a_root_that_is_not_mounted_is_not_written() {
    let host = Host::new("");
    host.delivers(SCUBA, "first", 0, "stored");
    fs::rename(host.path("mail"), host.path("aside")).expect("a folder");
    let commands = || COMMANDS.into_iter().filter(|command| command[0] != "purge");
    let wait = |name: &str, says: &str| {
        host.delivers(SCUBA, name, 75, says);
        host.delivers("nosuch@mail.axial.net", name, 75, says);
        for command in commands() {
            let (ended, said) = host.run(command);
            let expected = if matches!(command[0], "status" | "replay") { 1 } else { 75 };
            assert!(ended == Some(expected) && said.contains("mail"), "{command:?}: {said}");
        }
        host.ends(&["migrate"], 75, says);
    };
    wait("second", "mail is not there");
    host.ends(&["migrate"], 75, "a new one is made by \"onedrop migrate --accept-config\"");
    assert!(!host.path("mail").exists());
    // An empty mount point.
    fs::create_dir(host.path("mail")).expect("a folder");
    wait("second", "lacks the mark");
    // An account's folder below it.
    fs::create_dir(host.path("mail/scuba")).expect("a folder");
    wait("second", "lacks the mark");
    assert_eq!(host.below("mail"), [host.path("mail/scuba")]);
    fs::remove_dir_all(host.path("mail")).expect("a folder");
    fs::rename(host.path("aside"), host.path("mail")).expect("a folder");
    host.delivers(SCUBA, "second", 0, "stored");
    host.site.inbox_has("scuba", ["first", "second"].map(from_ann));
    host.ends(&["check", "--account", "scuba"], 0, "");
    host.ends(&["migrate"], 0, "schema version");
}

#[test]
fn a_root_and_a_ledger_know_each_other() {
    let (host, other) = (Host::new(""), Host::new(""));
    fs::rename(host.path("mail"), host.path("aside")).expect("a folder");
    fs::rename(other.path("mail"), host.path("mail")).expect("a folder");
    host.delivers(SCUBA, "first", 75, "mail belongs to another ledger");
    host.ends(&["status"], 1, "mail belongs to another ledger");
    host.store_up(false);
    host.ends(&["check", "--account", "scuba"], 75, "mail belongs to another ledger");
    host.ends(&["migrate"], 75, "mail belongs to another ledger");
    // The administrator says that it is the right one: a new ledger, or one of a backup.
    host.ends(&["migrate", "--accept-config"], 0, "mail belongs to this ledger now");
    host.store_up(true);
    host.delivers(SCUBA, "first", 0, "stored");
    // Both are this ledger's by now.
    fs::rename(host.path("mail"), host.path("others")).expect("a folder");
    fs::rename(host.path("aside"), host.path("mail")).expect("a folder");
    host.delivers(SCUBA, "second", 0, "stored");
    // Restored from a backup that lacks the mark.
    fs::remove_file(host.path("mail/.onedrop")).expect("a mark");
    host.delivers(SCUBA, "third", 75, "lacks the mark");
    host.store_up(false);
    host.ends(&["migrate", "--accept-config"], 0, "mail is marked as this ledger's");
    host.delivers(SCUBA, "third", 0, "stored");
    fs::write(host.path("mail/.onedrop"), "").expect("a file");
    host.delivers(SCUBA, "fourth", 75, "is not a mark");
    host.ends(&["migrate", "--accept-config"], 75, "is not a mark");
}

#[test]
fn a_dry_run_names_the_root_that_migrate_would_make_or_mark() {
    let site = Site::embedded();
    let config = site.config("etc", REAL);
    let host = Host { site, config };
    let other = Host::new("");
    host.ends(&["migrate"], 0, "mail is marked as this ledger's");
    let forget = "DELETE FROM onedrop_proof WHERE login_user = ''";
    host.site.sqlite().execute_batch(forget).expect("SQL");
    let would = |args: &[&str], status: i32, says: &str| {
        let before = host.below("mail");
        host.ends(&[&["migrate", "--dry-run"], args].concat(), status, says);
        assert_eq!(host.below("mail"), before, "{says}");
    };
    fs::remove_dir_all(host.path("mail")).expect("a folder");
    would(&[], 0, "/mail and mark it as this ledger's\n");
    assert!(!host.path("mail").exists());
    would(&["--json"], 0, "\"mail_root\": \"would make /");
    fs::create_dir(host.path("mail")).expect("a folder");
    would(&[], 0, "/mail as this ledger's\n");
    host.ends(&["migrate"], 0, "mail is marked as this ledger's");
    would(&["--json"], 0, "\"mail_root\": null");
    // As a real run would end.
    fs::rename(host.path("mail"), host.path("aside")).expect("a folder");
    would(&[], 75, "mail is not there");
    fs::rename(other.path("mail"), host.path("mail")).expect("a folder");
    would(&[], 75, "mail belongs to another ledger");
}

#[test]
fn a_migrate_that_died_between_root_and_ledger_goes_on() {
    let host = Host::new("");
    let demands = "login_user = '' AND server = 'mail roots'";
    for undone in [
        // The mark was not written yet.
        format!("DELETE FROM onedrop_proof WHERE {demands}; SELECT 'x'"),
        // It was.
        format!("DELETE FROM onedrop_proof WHERE {demands}"),
    ] {
        host.site.sqlite().execute_batch(&undone).expect("SQL");
        if undone.ends_with("'x'") {
            fs::remove_file(host.path("mail/.onedrop")).expect("a mark");
        }
        host.delivers(SCUBA, &format!("m{}", undone.len()), 0, "stored");
        host.ends(&["migrate"], 0, "schema version");
        fs::rename(host.path("mail/.onedrop"), host.path("mark")).expect("a mark");
        host.delivers(SCUBA, "unmarked", 75, "lacks the mark");
        fs::rename(host.path("mark"), host.path("mail/.onedrop")).expect("a mark");
    }
}

#[test]
fn what_goes_while_the_server_runs_is_not_made_anew() {
    let host = Host::new("");
    let server = host.site.server(REAL);
    let replies = |name: &str| {
        let mut client = LmtpClient::welcome(&host.site.socket());
        let message = from_ann(name);
        let replies = client.deliver("ann@example.com", &[SCUBA], message.as_bytes());
        format!("{:?}", replies.expect("replies"))
    };
    assert!(replies("first").contains("2.0.0") || host.site.inbox("scuba").len() == 1);
    let swap = |from: &str, to: &str| {
        fs::rename(host.path(from), host.path(to)).expect("a rename");
    };
    swap("mail", "aside");
    assert!(replies("second").contains("mail is not there"));
    fs::create_dir_all(host.path("mail/scuba")).expect("a mount point");
    assert!(replies("second").contains("lacks the mark"));
    assert_eq!(host.below("mail"), [host.path("mail/scuba")]);
    fs::remove_dir_all(host.path("mail")).expect("a folder");
    swap("aside", "mail");
    // Its kept sessions have the file open, and no other process would find what they commit to it.
    swap("ledger.db", "ledger.aside");
    assert!(replies("second").contains("ledger.db is not there"));
    assert!(!host.path("ledger.db").exists());
    swap("ledger.aside", "ledger.db");
    replies("second");
    host.site.inbox_has("scuba", ["first", "second"].map(from_ann));
    drop(server);
}

#[test]
fn a_mistyped_address_makes_no_account() {
    let host = Host::new("accounts = { \"team@mail.axial.net\" = \"team\" }\n");
    let nosuch = "nosuch@mail.axial.net";
    host.delivers(nosuch, "first", 75, "no account=nosuch: nothing but its domain names it");
    host.ends(&["replay", "--to", nosuch, "fixtures/mail/welcome.eml"], 1, "no account=nosuch");
    host.ends(&["check", "--account", "nosuch"], 75, "mail/nosuch is not there");
    host.ends(&["check", "--account", "scuba"], 0, "accounts are those with a folder in");
    assert!(!host.path("mail/nosuch").exists());
    // It keeps no mail from others.
    let output = deliver(&host.config, &["-d", nosuch, "-d", SCUBA], from_ann("both").as_bytes());
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    host.site.inbox_has("scuba", [from_ann("both")]);
    // What is listed is made, also by the name of the account alone.
    host.delivers("team@mail.axial.net", "listed", 0, "stored account=team");
    // Made by its administrator.
    fs::create_dir(host.path("mail/nosuch")).expect("a folder");
    host.delivers(nosuch, "first", 0, "stored account=nosuch");
    // Gone again, with mail on record: a fault, whatever the configuration makes of others.
    fs::remove_dir_all(host.path("mail/nosuch")).expect("a folder");
    let rejects = format!("{REAL}unknown_account = \"reject\"\n");
    let host = Host { config: host.site.config("rejects", &rejects), ..host };
    host.delivers(nosuch, "second", 75, "account=nosuch has mail on record and is unknown now");
    host.delivers("other@mail.axial.net", "second", 67, "5.1.1 unknown recipient other@");
    assert!(!host.path("mail/other").exists() && !host.path("mail/nosuch").exists());
    // A link is an account, whose disk may be away.
    std::os::unix::fs::symlink("/nowhere/linked", host.path("mail/linked")).expect("a link");
    host.delivers("linked@mail.axial.net", "second", 75, "4.");
    // Nothing is returned while the disk may be away.
    fs::rename(host.path("mail"), host.path("aside")).expect("a folder");
    host.delivers("other@mail.axial.net", "third", 75, "mail is not there");
    fs::create_dir(host.path("mail")).expect("a folder");
    host.delivers("other@mail.axial.net", "third", 75, "lacks the mark");
}

#[test]
fn an_author_who_has_no_account_gets_no_sent() {
    let host = Host::new("[sent]\ntrust = \"header\"\n");
    let from = |name: &str| from_ann("sent").replace(ANN, &format!("{name}@mail.axial.net"));
    let letter = from("nosuch");
    let output = deliver(&host.config, &["-d", SCUBA], letter.as_bytes());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !said.contains("Sent"), "{said}");
    assert!(!host.path("mail/nosuch").exists());
    fs::create_dir(host.path("mail/lisa")).expect("a folder");
    let output = deliver(&host.config, &["-d", SCUBA], from("lisa").as_bytes());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("account=lisa mailbox=Sent"), "{said}");
}

#[test]
fn a_ledger_of_before_goes_on_until_migrate_marks_its_root() {
    let host = Host::new("");
    fs::remove_file(host.path("mail/.onedrop")).expect("a mark");
    host.site.sqlite().execute("DELETE FROM onedrop_proof", []).expect("SQL");
    host.delivers(SCUBA, "first", 0, "stored");
    host.ends(&["migrate"], 0, "mail is marked as this ledger's");
    host.delivers(SCUBA, "second", 0, "stored");
    assert!(Path::new(&host.path("mail/.onedrop")).exists());
}
