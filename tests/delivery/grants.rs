//! What a role of the ledger must be granted for each command that opens it: as docs/rights.md has
//! it, on Postgres and MariaDB. It is enough, and without any one of the grants a command says so,
//! with the table and the role, and ends in 75 ([`NOT_MISSED`] has what is not so). A full run
//! takes each away, any other a sample. The pages' own role: tests/web/engines.rs.

use std::cell::{Cell, OnceCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use crate::sample::sample;
use crate::support::dovecot::Dovecot;
use crate::support::lmtp::Launch;
use crate::support::lmtp_client::Reply;
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::site::{deliver, run};
use crate::support::{
    TempRoot, fixture_text, onedrop as onedrop_command, onedrop_path, set_mode, wait_until,
};

/// A grant on a table.
type Grant = (&'static str, String);

const TO: [&str; 4] = ["-f", "lisa@gmail.com", "-d", "scuba@mail.axial.net"];

trait Engine {
    fn name(&self) -> &'static str;
    fn owner(&self) -> &'static str {
        "onedrop"
    }
    fn sql(&self, sql: &str) -> String;
    fn toml(&self, role: &str) -> String;
    fn make_role(&self, role: &str);
    fn has(&self, table: &str) -> bool;
    /// `change`: GRANT or REVOKE.
    fn change(&self, change: &str, grant: &Grant, role: &str);
    /// What the server says where a grant on the table is missing.
    fn denies(&self, told: &str, table: &str) -> bool;
    /// How it names the role there.
    fn names(&self, told: &str, role: &str) -> bool;
}

impl Engine for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn sql(&self, sql: &str) -> String {
        self.psql(sql)
    }

    fn toml(&self, role: &str) -> String {
        let url = self.url_socket().replace("onedrop@", &format!("{role}@"));
        format!("[ledger]\nurl = \"{url}\"\n")
    }

    fn make_role(&self, role: &str) {
        self.psql(&format!("CREATE ROLE {role} LOGIN"));
    }

    fn has(&self, table: &str) -> bool {
        !self.psql(&format!("SELECT to_regclass('{table}')")).is_empty()
    }

    fn change(&self, change: &str, (privilege, table): &Grant, role: &str) {
        let to = if change == "GRANT" { "TO" } else { "FROM" };
        self.psql(&format!("{change} {privilege} ON {table} {to} {role}"));
    }

    fn denies(&self, told: &str, table: &str) -> bool {
        told.contains(&format!("permission denied for table {table}"))
            || told.contains(&format!("permission denied for view {table}"))
    }

    fn names(&self, told: &str, role: &str) -> bool {
        told.contains(&format!(", role {role} "))
    }
}

impl Engine for Mariadb {
    fn name(&self) -> &'static str {
        "mariadb"
    }

    fn sql(&self, sql: &str) -> String {
        Mariadb::sql(self, sql)
    }

    fn toml(&self, role: &str) -> String {
        self.toml_at(&self.url_tcp().replace("onedrop@", &format!("{role}@")))
    }

    fn make_role(&self, role: &str) {
        let password = self.password();
        Mariadb::sql(self, &format!("CREATE USER {role}@'%' IDENTIFIED BY '{password}'"));
    }

    fn has(&self, table: &str) -> bool {
        !Mariadb::sql(self, &format!("SHOW TABLES LIKE '{table}'")).is_empty()
    }

    fn change(&self, change: &str, (privilege, table): &Grant, role: &str) {
        let to = if change == "GRANT" { "TO" } else { "FROM" };
        Mariadb::sql(self, &format!("{change} {privilege} ON onedrop.{table} {to} {role}@'%'"));
    }

    fn denies(&self, told: &str, table: &str) -> bool {
        let names = [format!("`{table}`"), format!("in table '{table}'")];
        told.contains("command denied") && names.iter().any(|name| told.contains(name))
    }

    fn names(&self, told: &str, role: &str) -> bool {
        told.contains(&format!("to user '{role}'@"))
    }
}

/// Of a cell of the page's table what counts for an engine: in `(...)` for Postgres alone, in
/// `[...]` for MariaDB.
fn letters_for(engine: &dyn Engine, cell: &str) -> String {
    let (open, close) = if engine.name() == "postgres" { ('[', ']') } else { ('(', ')') };
    match (cell.find(open), cell.find(close)) {
        (Some(from), Some(to)) => format!("{}{}", &cell[..from], &cell[to..]),
        _ => cell.to_owned(),
    }
}

/// The columns of the page's table, each with its grants.
fn grants(engine: &dyn Engine) -> Vec<(String, Vec<Grant>)> {
    let page = fixture_text("docs/rights.md");
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let rows = rows.skip_while(|line| !line.starts_with("| table or view |"));
    let mut rows = rows.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let head = rows.next().expect("a table");
    let names = &head[2..head.len() - 1];
    let mut roles: Vec<(String, Vec<Grant>)> =
        names.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
    for row in rows.skip(1) {
        for table in row[1].split(", ").map(|name| name.trim_matches('`')) {
            if !engine.has(table) {
                continue;
            }
            for ((_, grants), cell) in roles.iter_mut().zip(&row[2..]) {
                let letters = letters_for(engine, cell);
                for (letter, privilege) in
                    [('S', "SELECT"), ('I', "INSERT"), ('U', "UPDATE"), ('D', "DELETE")]
                {
                    if letters.contains(letter) {
                        grants.push((privilege, table.to_owned()));
                    }
                }
            }
        }
    }
    roles
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

const LACKS: &str = "lacks a grant for our role: ";

/// What else is to be seen of a warning that is in the journal alone.
const HOST_STAYS: &str = "a host that is gone stays on record";

/// What a command's end was, where it was not the one that was wanted; none for a warning.
type Ended = Result<(), (Option<i32>, String)>;

fn ends(output: &Output, code: i32) -> Ended {
    match output.status.code() {
        Some(ended) if ended == code && told(output).contains(LACKS) => Err((None, told(output))),
        Some(ended) if ended == code => Ok(()),
        ended => Err((ended, told(output))),
    }
}

struct Rig<'a> {
    engine: &'a dyn Engine,
    root: TempRoot,
    messages: Cell<u32>,
    dovecot: OnceCell<Dovecot>,
}

impl Rig<'_> {
    fn config(&self, role: &str) -> PathBuf {
        let folder = self.root.join(role);
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("onedrop.toml");
        let text = format!(
            "{}keep_raw = true\n[store]\nurl = \"maildir://{}\"\n[directory]\n\
             domains = [\"mail.axial.net\"]\naccounts = {{ \"lisa@gmail.com\" = \"lisa\" }}\n\
             [sent]\ntrust = \"header\"\n[deliver]\ntrial = true\n\
             [jobs.mine]\nevery = \"1h\"\ncommand = [\"true\"]\n\
             [jobs.hourly]\nschedule = \"0 * * * *\"\ncommand = [\"true\"]\n",
            self.engine.toml(role),
            self.root.join("mail").display()
        );
        fs::write(&path, text).expect("a file");
        path
    }

    fn message(&self) -> Vec<u8> {
        self.messages.set(self.messages.get() + 1);
        let number = self.messages.get();
        format!(
            "From: lisa@gmail.com\nTo: scuba@mail.axial.net\nSubject: {number}\n\
             Date: Sun, 22 Nov 2026 12:00:00 +0000\nMessage-ID: <{number}@x>\n\nbody\n"
        )
        .into_bytes()
    }

    /// A message that the owner of the ledger has delivered, with a copy for Sent.
    fn delivered(&self) {
        let full = self.config(self.engine.owner());
        let output = deliver(&full, &TO, &self.message());
        assert!(output.status.success(), "{}", told(&output));
    }

    /// The commands of a column of the page.
    fn commands(&self, role: &str, config: &Path) -> Ended {
        match role {
            "deliver" => {
                let message = self.message();
                ends(&deliver(config, &TO, &message), 0)?;
                ends(&deliver(config, &TO, &message), 0)?;
                ends(&deliver(config, &["-f", "", "-d", "no@where.example"], &message), 67)?;
                ends(&run(config, &["trace", "scuba@mail.axial.net"]), 0)?;
                let output = run(config, &["status"]);
                // Something may want attention.
                if output.status.code() != Some(1) {
                    ends(&output, 0)?;
                }
                ends(&run(config, &["verify", "--repair"]), 0)?;
                ends(&run(config, &["settle"]), 0)?;
                self.delivered();
                let full = self.config(self.engine.owner());
                run(&full, &["forget", "--since", "1h"]);
                ends(&run(config, &["replay", "--from-ledger"]), 0)
            }
            "keep" => {
                self.delivered();
                ends(&run(config, &["forget", "--account", "scuba"]), 0)?;
                self.delivered();
                self.age("onedrop_message", "recorded_at");
                ends(&run(config, &["purge"]), 0)
            }
            "lock" => {
                let mut command = onedrop_command();
                command.arg("with-lock").arg("--config").arg(config).args(["n", "--", "true"]);
                let output = command.output().expect("onedrop");
                // Its own number for what failed before the command ran.
                match output.status.code() {
                    Some(125) => return Err((Some(75), told(&output))),
                    _ => ends(&output, 0)?,
                }
                ends(&run(config, &["lock", "list"]), 0)?;
                ends(&run(config, &["lock", "holder", "n"]), 1)
            }
            "jobs" => {
                self.engine.sql("DELETE FROM onedrop_job");
                let output = run(config, &["jobs", "tick"]);
                // The run of a job that could take no lock is a job that has failed.
                match output.status.code() {
                    Some(1) => return Err((Some(75), told(&output))),
                    _ => ends(&output, 0)?,
                }
                ends(&run(config, &["jobs", "list"]), 0)?;
                ends(&run(config, &["jobs", "pause", "mine"]), 0)
            }
            other => panic!("no commands for {other}"),
        }
    }
}

impl Rig<'_> {
    /// The other commands of a column.
    fn further(&self, role: &str, config: &Path) -> Ended {
        let onedrop = |args: &[&str], code: i32| ends(&run(config, args), code);
        match role {
            "deliver" => {
                // Postfix is not set up here: that alone is an error.
                let checked = run(config, &["check", "--json"]);
                let findings: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
                let is_of_ledger = |one: &&Value| {
                    ["configuration", "ledger", "lock", "clock", "directory", "store"]
                        .contains(&one["topic"].as_str().unwrap_or_default())
                };
                let all: Vec<_> =
                    findings.as_array().into_iter().flatten().filter(is_of_ledger).collect();
                assert!(all.len() > 3, "{findings:#}");
                let errors: Vec<_> = all.iter().filter(|one| one["severity"] == "error").collect();
                if !errors.is_empty() {
                    return Err((Some(75), format!("{errors:#?}")));
                }
                let message = self.message();
                let mut server = Launch::of(config).start();
                let said = server.client().deliver(TO[1], &[TO[3]], &message).expect("replies");
                if !said.iter().all(Reply::is_ok) {
                    return Err((Some(75), format!("{said:?}")));
                }
                // Of itself, the server puts on record that it is there.
                let hosts = || self.engine.sql("SELECT count(*) FROM onedrop_host").trim() != "0";
                let lacks = || server.log().contains(LACKS);
                let is_told = || hosts() || lacks();
                assert!(wait_until(Duration::from_secs(60), is_told), "{}", server.log());
                let is_there = hosts();
                server.stop();
                if !is_there {
                    return Err((None, server.log()));
                }
                let file = self.root.write("replayed.eml", self.message());
                let file = file.display().to_string();
                onedrop(&["replay", "--to", TO[3], &file], 0)?;
                onedrop(&["replay", "--to", TO[3], "--dry-run", &file], 0)?;
                onedrop(&["settle", "--dry-run"], 0)?;
                onedrop(&["trace", "--since", "1h", "--failed"], 0)
            }
            "keep" => {
                self.delivered();
                let last = format!("<{}@x>", self.messages.get());
                onedrop(&["forget", &last], 0)?;
                self.delivered();
                onedrop(&["forget", "--since", "1h"], 0)?;
                onedrop(&["purge", "--dry-run"], 0)
            }
            "lock" => {
                let config = config.display().to_string();
                let within = |code: i32, command: &[&str]| {
                    let mut wrapper = onedrop_command();
                    wrapper.args(["with-lock", "--config", &config, "m", "--"]);
                    wrapper.arg(onedrop_path()).args(command).args(["--config", &config]);
                    ends(&wrapper.output().expect("onedrop"), code)
                };
                within(0, &["lock", "assert", "--min", "1s"])?;
                within(75, &["with-lock", "--codes", "mail", "--wait", "1s", "m", "--", "true"])?;
                within(201, &["lock", "steal", "m", "--slot", "1", "--force"])?;
                let epoch = "SELECT max(epoch) FROM onedrop_lock_lease";
                let epoch: i64 = self.engine.sql(epoch).trim().parse().expect("an epoch");
                let next = (epoch + 1).to_string();
                within(0, &["lock", "release", "m", "--slot", "1", "--epoch", &next])
            }
            "jobs" => {
                onedrop(&["jobs", "show", "mine"], 0)?;
                onedrop(&["jobs", "resume", "mine"], 0)?;
                onedrop(&["jobs", "run", "mine", "--force"], 0)?;
                onedrop(&["jobs", "check"], 0)?;
                let hour = jiff::Timestamp::now().as_second() / 3600 + 2;
                let soon = jiff::Timestamp::from_second(hour * 3600).expect("a time").to_string();
                onedrop(&["jobs", "mark-done", "hourly", "--due", &soon], 0)?;
                onedrop(&["jobs", "reset", "mine"], 0)?;
                // It finds that one of them has never run.
                onedrop(&["jobs", "audit"], 1)?;
                let text = fs::read_to_string(config).expect("a file");
                let other = config.with_file_name("without.toml");
                fs::write(&other, text.replace("[jobs.mine]", "[jobs.other]")).expect("a file");
                ends(&run(&other, &["jobs", "audit", "--remove-ghosts"]), 1)?;
                let left = "SELECT count(*) FROM onedrop_job_run WHERE job = 'mine'";
                assert_eq!(self.engine.sql(left).trim(), "0");
                Ok(())
            }
            other => panic!("no commands for {other}"),
        }
    }

    /// Without the right to write, the server and the check say so as well.
    fn told_by_server_and_check(&self, role: &str, config: &Path) {
        let copy = ("INSERT", "onedrop_copy".to_owned());
        self.engine.change("REVOKE", &copy, role);
        let mut server = Launch::of(config).start();
        let said = server.client().deliver(TO[1], &[TO[3]], self.message()).expect("replies");
        let text = format!("{said:?}");
        assert!(said.len() == 1 && !said[0].is_ok(), "{text}");
        assert!(text.contains("4.3.5 ledger: lacks a grant for our role: "), "{text}");
        assert!(self.engine.denies(&text, &copy.1), "{text}");
        server.stop();
        self.engine.change("GRANT", &copy, role);
        let copy = ("SELECT", copy.1);
        self.engine.change("REVOKE", &copy, role);
        let text = told(&run(config, &["check"]));
        assert!(text.contains("lacks a grant for our role: "), "{text}");
        assert!(self.engine.denies(&text, &copy.1), "{text}");
        self.engine.change("GRANT", &copy, role);
    }
}

impl Rig<'_> {
    /// What a column is for beyond its commands' plain ways: a Sent that refuses its copy or is
    /// left to the mail program first, doubts, and rows that are old.
    fn situations(&self, role: &str, config: &Path) -> Ended {
        let onedrop = |args: &[&str], code: i32| ends(&run(config, args), code);
        match role {
            "deliver" => {
                let message = self.message();
                self.with_a_refusing_sent(|| {
                    ends(&deliver(config, &TO, &message), 0)?;
                    ends(&deliver(config, &TO, &message), 0)
                })?;
                onedrop(&["settle"], 0)?;
                let text = fs::read_to_string(config).expect("a file");
                let later = config.with_file_name("later.toml");
                let text = text.replace("[sent]\n", "[sent]\nafter = \"10m\"\n");
                fs::write(&later, text).expect("a file");
                let message = self.message();
                ends(&deliver(&later, &TO, &message), 0)?;
                ends(&deliver(&later, &TO, &message), 0)?;
                self.age("onedrop_copy", "due_at");
                // Placed by the first, watched by the second, and no longer by the third.
                for number in 0..3 {
                    if number == 2 {
                        self.age("onedrop_copy", "placed_at");
                    }
                    self.age("onedrop_unsettled", "look_at");
                    ends(&run(&later, &["settle"]), 0)?;
                }
                let message = self.message();
                ends(&deliver(config, &TO, &message), 0)?;
                self.engine.sql(&format!(
                    "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                         in_doubt = true, leased_until = {} WHERE due_at IS NULL",
                    self.long_ago()
                ));
                ends(&deliver(config, &TO, &message), 0)?;
                onedrop(&["verify", "--repair"], 0)?;
                onedrop(&["trace", "--since", "1h", "--sender", "lisa"], 0)?;
                self.by_imap(config)
            }
            "keep" => {
                let owner = self.config(self.engine.owner());
                self.with_a_refusing_sent(|| ends(&deliver(&owner, &TO, &self.message()), 0))?;
                onedrop(&["forget", "--account", "lisa"], 0)?;
                self.with_a_refusing_sent(|| ends(&deliver(&owner, &TO, &self.message()), 0))?;
                ends(&deliver(&owner, &["-d", "no@where.example"], &self.message()), 67)?;
                self.age("onedrop_kept", "kept_at");
                self.age("onedrop_attempt", "started_at");
                self.age("onedrop_message", "recorded_at");
                self.engine.sql(
                    "INSERT INTO onedrop_host (host, program_version, schema_version, seen_at)
                     VALUES ('gone', '0.1.0', 10, '2026-01-01')",
                );
                onedrop(&["purge"], 0)?;
                match self.engine.sql("SELECT count(*) FROM onedrop_host").trim() {
                    "0" => Ok(()),
                    _ => Err((None, HOST_STAYS.to_owned())),
                }
            }
            "jobs" => {
                onedrop(&["jobs", "run", "hourly", "--force"], 0)?;
                self.age("onedrop_job_run", "ended_at");
                // Where new runs have come, old ones go.
                self.engine.sql("DELETE FROM onedrop_job WHERE name = 'mine'");
                onedrop(&["jobs", "tick"], 0)
            }
            _ => Ok(()),
        }
    }

    fn all(&self, role: &str, config: &Path) -> Ended {
        // What was before is nothing to it.
        for table in ["onedrop_message", "onedrop_lock_lease", "onedrop_lock", "onedrop_host"] {
            self.engine.sql(&format!("DELETE FROM {table}"));
        }
        self.commands(role, config)?;
        self.further(role, config)?;
        self.situations(role, config)
    }

    /// A delivery by a way into the store that is not proven yet.
    fn by_imap(&self, config: &Path) -> Ended {
        let dovecot = self.dovecot.get_or_init(Dovecot::shared);
        let password = self.root.write("store.password", dovecot.password());
        set_mode(&password, 0o600);
        let store = format!(
            "url = \"imap://127.0.0.1:{}\"\nstarttls = false\nuser = \"{}\"\n\
             password_file = \"{}\"\n[directory]",
            dovecot.imap_port(),
            dovecot.master_user(),
            password.display()
        );
        let by_imap = |config: &Path| {
            let text = fs::read_to_string(config).expect("a file");
            let (before, rest) = text.split_once("[store]\n").expect("a store");
            let (_, after) = rest.split_once("[directory]").expect("a directory");
            let path = config.with_file_name("imap.toml");
            fs::write(&path, format!("{before}[store]\n{store}{after}")).expect("a file");
            path
        };
        let owner = self.config(self.engine.owner());
        // Another store: that all hosts have it is for the owner to say.
        let moves_to = |config: &Path| {
            self.engine.sql("UPDATE onedrop_ledger SET config = NULL");
            ends(&deliver(config, &TO, &self.message()), 0)
        };
        moves_to(&by_imap(&owner))?;
        self.engine.sql("DELETE FROM onedrop_proof");
        let ended = ends(&deliver(&by_imap(config), &TO, &self.message()), 0);
        moves_to(&owner)?;
        ended
    }

    fn long_ago(&self) -> &'static str {
        match self.engine.sql("SELECT version()").contains("Postgre") {
            true => "now() - interval '100 days'",
            false => "now(6) - interval 100 day",
        }
    }

    /// All rows are as old as that.
    fn age(&self, table: &str, column: &str) {
        let sql = format!("UPDATE {table} SET {column} = {}", self.long_ago());
        self.engine.sql(&format!("{sql} WHERE {column} IS NOT NULL"));
    }

    /// Lisa's Sent is no folder meanwhile.
    fn with_a_refusing_sent(&self, work: impl FnOnce() -> Ended) -> Ended {
        let sent = self.root.join("mail/lisa/Maildir/.Sent");
        let aside = self.root.join("mail/lisa/aside");
        fs::rename(&sent, &aside).expect("a Sent");
        fs::write(&sent, "").expect("a file");
        let ended = work();
        fs::remove_file(&sent).and_then(|()| fs::rename(&aside, &sent)).expect("as before");
        ended
    }
}

/// Grants without which all of the above goes on, and why they are on the page.
const NOT_MISSED: [NotMissed; 4] = [
    // By these a program says that `onedrop migrate` has to be run, and names an older trial's
    // schema.
    (None, "keep", "SELECT", "onedrop_schema"),
    (None, "lock", "SELECT", "onedrop_schema"),
    (None, "jobs", "SELECT", "onedrop_schema"),
    // A server that is seen to ignore for whom we log in: tests/peers/imap_proof.rs has those.
    (None, "deliver", "DELETE", "onedrop_proof"),
];

/// Engine (none: each), column, privilege, table.
type NotMissed = (Option<&'static str>, &'static str, &'static str, &'static str);

/// Takes grants of the page away, one at a time.
fn are_enough_and_needed(engine: &dyn Engine) {
    let (root, messages, dovecot) = (TempRoot::new(), Cell::new(0), OnceCell::new());
    let rig = Rig { engine, root, messages, dovecot };
    let migrated = run(&rig.config(engine.owner()), &["migrate"]);
    assert!(migrated.status.success(), "{}", told(&migrated));
    let mut wrong = Vec::new();
    for (name, grants) in grants(engine) {
        let role = format!("r_{name}");
        engine.make_role(&role);
        let config = rig.config(&role);
        for grant in &grants {
            engine.change("GRANT", grant, &role);
        }
        if let Err((code, told)) = rig.all(&name, &config) {
            panic!("the grants for {name} are not enough: {code:?} {told}");
        }
        if name == "deliver" {
            rig.told_by_server_and_check(&role, &config);
        }
        if name == "jobs" {
            assert_eq!(engine.sql("SELECT count(*) FROM onedrop_host").trim(), "1", "a tick's");
        }
        let is_missed = |(privilege, table): &Grant| {
            !NOT_MISSED.iter().any(|(of, column, spared, of_table)| {
                of.is_none_or(|of| of == engine.name())
                    && (*column, *spared, *of_table) == (&*name, *privilege, &**table)
            })
        };
        for grant in sample(grants, 3, |_| false) {
            engine.change("REVOKE", &grant, &role);
            let ended = rig.all(&name, &config);
            engine.change("GRANT", &grant, &role);
            if ended.is_err() != is_missed(&grant) {
                wrong.push(format!("{name} without {grant:?}: {ended:?}"));
                continue;
            }
            let Err((code, told)) = ended else { continue };
            if told == HOST_STAYS && grant.1 == "onedrop_host" {
                continue;
            }
            let says = told.contains(LACKS) && told.contains("(see docs/rights.md)");
            let is_named = engine.denies(&told, &grant.1) && engine.names(&told, &role);
            if ![None, Some(75)].contains(&code) || !says || !is_named {
                wrong.push(format!("{name}: {grant:?} is not named: {code:?} {told}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_grant_of_the_page_is_needed_on_postgres_and_they_are_enough() {
    are_enough_and_needed(&Postgres::start());
}

#[test]
fn each_grant_of_the_page_is_needed_on_mariadb_and_they_are_enough() {
    are_enough_and_needed(&Mariadb::start());
}
