//! `onedrop purge` and `onedrop forget` killed: each point in a ledger of its own, a clone of one
//! that deliveries have filled, beside a clone of its Maildirs.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use super::settings::Setting;
use super::sites::{Combination, Standing};
use crate::support::site::{deliver, run as run_onedrop};
use crate::support::{onedrop_path, run};

/// What the ledger forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// By age: bytes, facts, messages, attempts.
    Purge,
    /// All that was placed since a time.
    Since,
    /// An account.
    Account,
}

/// The site is [filled](fill).
pub struct Forgetting<'a> {
    pub site: &'a Combination,
    pub what: What,
}

/// Messages by their names, and how many days ago they came. Facts are remembered for 20 days, the
/// rest for 35.
const LETTERS: [(&str, u32); 5] =
    [("old", 40), ("older", 41), ("refused", 42), ("middle", 25), ("new", 0)];
const BASE: &str = "base";
const ACCOUNT: &str = "scuba";

/// What a purge says that finds nothing.
const NOTHING: &str =
    r#"{"messages":0,"passed_by":0,"facts":0,"raw":0,"kept":0,"attempts":0,"hosts":0}"#;

/// What no kill may leave: a line for each sort that there is.
const BROKEN: &str = "
SELECT 'a copy without its message' FROM onedrop_copy
WHERE message_id NOT IN (SELECT id FROM onedrop_message)
UNION
SELECT 'an attempt without its message' FROM onedrop_attempt
WHERE message_id IS NOT NULL AND message_id NOT IN (SELECT id FROM onedrop_message)
UNION
SELECT 'bytes without their message' FROM onedrop_raw
WHERE message_id NOT IN (SELECT id FROM onedrop_message)
UNION
SELECT 'kept bytes without their message' FROM onedrop_kept
WHERE message_id NOT IN (SELECT id FROM onedrop_message)
UNION
SELECT 'a look at no copy' FROM onedrop_unsettled
WHERE copy_id NOT IN (SELECT id FROM onedrop_copy)
UNION
SELECT 'a key without all its copies' FROM onedrop_message m
WHERE (SELECT count(*) FROM onedrop_copy c WHERE c.message_id = m.id)
      < CASE WHEN m.message_id IS NULL THEN 1 ELSE 2 END
UNION
SELECT 'a copy half forgotten' FROM onedrop_copy
WHERE receipt IS NULL AND placed_at IS NOT NULL
   OR receipt IS NOT NULL AND (placed_at IS NULL OR in_doubt)";

/// And before anything is delivered again: facts go with the attempts, and with an account's copies
/// all that is known of their messages but hashes.
const HALF_ERASED: &str = "
SELECT 'facts half erased' FROM onedrop_message m
WHERE m.subject IS NULL
  AND (m.addresses IS NOT NULL
       OR EXISTS (SELECT 1 FROM onedrop_attempt a WHERE a.message_id = m.id)
       OR EXISTS (SELECT 1 FROM onedrop_copy c
                  WHERE c.message_id = m.id AND c.recipient IS NOT NULL))
UNION
SELECT 'an account half erased' FROM onedrop_message m
WHERE (SELECT count(*) FROM onedrop_copy c WHERE c.message_id = m.id)
      + CASE WHEN m.message_id IS NULL THEN 1 ELSE 0 END <> 2
   OR m.message_id IS NULL AND (m.subject IS NOT NULL OR NOT m.looks_back)";

fn letter(name: &str) -> Vec<u8> {
    format!(
        "From: {}@mail.axial.net\nDate: Fri, 14 Aug 2020 12:00:00 +0000\nSubject: {name}\n\
         Message-ID: <{name}-letter@x>\n\nA letter, {name}.\n",
        from(name)
    )
    .into_bytes()
}

/// The account whose Sent refuses all copies has one letter.
fn from(name: &str) -> &'static str {
    if name == "refused" { "blocked" } else { "lisa" }
}

/// Makes the ledger and the Maildirs that points are clones of.
pub fn fill(site: &Combination) {
    let base = Forgetting { site, what: What::Purge };
    base.make_database(BASE, None);
    let config = base.config(BASE);
    let migrated = run_onedrop(&config, &["migrate"]);
    assert!(migrated.status.success(), "{migrated:?}");
    let birth = match (&site.postgres, &site.mariadb) {
        (Some(_), _) => "'-infinity'",
        (_, Some(_)) => "'1000-01-01'",
        _ => "-1e15",
    };
    base.sql(BASE, &format!("UPDATE onedrop_ledger SET remembers_since = {birth}"));
    let blocked = site.mail_root(BASE).join("blocked/Maildir");
    fs::create_dir_all(&blocked).and_then(|()| fs::write(blocked.join(".Sent"), "")).expect("file");
    for (name, days) in LETTERS {
        base.deliver(BASE, name).expect("delivered");
        base.age(BASE, name, days);
    }
    // An attempt that records no message.
    let unknown = deliver(&config, &["-d", "nobody@elsewhere.example"], &letter("unknown"));
    assert_eq!(unknown.status.code(), Some(67), "{unknown:?}");
    base.age_attempts(BASE, "message_id IS NULL", 40);
    base.sql(
        BASE,
        "INSERT INTO onedrop_unsettled (copy_id, look_at)
         SELECT id, placed_at FROM onedrop_copy
         WHERE placed_at IS NOT NULL AND id NOT IN (SELECT copy_id FROM onedrop_unsettled)",
    );
    // Each clone has Maildirs of its own.
    base.sql(BASE, "UPDATE onedrop_ledger SET config = NULL");
    base.is_whole(BASE, true).expect("whole");
    if let Some(mariadb) = &site.mariadb {
        site.site.root.write("base.sql", mariadb.dump(&site.database(BASE)));
    }
}

impl Forgetting<'_> {
    fn at(&self, id: &str) -> PathBuf {
        self.site.site.root.join(id)
    }

    fn config(&self, id: &str) -> PathBuf {
        let config = self.site.patient_config(id);
        let text = fs::read_to_string(&config).expect("configuration");
        let text = self.site.in_database(id, &text);
        let text = text.replace("[ledger]\n", "[ledger]\nkeep_raw = true\n");
        fs::write(&config, text + "\n[retention]\nfacts_days = 20\n").expect("configuration");
        config
    }

    fn sql(&self, id: &str, sql: &str) -> String {
        if let Some(postgres) = &self.site.postgres {
            return postgres.psql_in(&self.site.database(id), sql);
        }
        if let Some(mariadb) = &self.site.mariadb {
            return mariadb.sql_in(&self.site.database(id), sql);
        }
        let ledger = self.site.sqlite(id);
        let mut query = ledger.prepare(sql).expect("SQL");
        let mut rows = query.query([]).expect("SQL");
        let mut text = String::new();
        while let Some(row) = rows.next().expect("SQL") {
            text.push_str(&row.get::<_, String>(0).expect("text"));
        }
        text
    }

    /// An empty one, or what another is.
    fn make_database(&self, id: &str, like: Option<&str>) {
        let name = self.site.database(id);
        if let Some(postgres) = &self.site.postgres {
            let template = like.map(|like| format!("TEMPLATE {}", self.site.database(like)));
            let template = template.unwrap_or_default();
            postgres.psql(&format!("CREATE DATABASE {name} OWNER onedrop {template}"));
        } else if let Some(mariadb) = &self.site.mariadb {
            mariadb.create_database(&name);
            if like.is_some() {
                mariadb.load(&name, &self.at("base.sql"));
            }
        } else if let Some(like) = like {
            let (from, to) = (self.at(like).join("ledger"), self.at(id));
            fs::create_dir_all(&to).expect("folder");
            run(Command::new("cp").arg("-a").args([from, to]));
        }
    }

    fn drop_database(&self, id: &str) {
        let drop = format!("DROP DATABASE {}", self.site.database(id));
        self.site.postgres.iter().for_each(|postgres| _ = postgres.psql(&drop));
        self.site.mariadb.iter().for_each(|mariadb| _ = mariadb.sql(&drop));
    }

    fn ago(&self, days: u32) -> String {
        match (&self.site.postgres, &self.site.mariadb) {
            (Some(_), _) => format!("interval '{days} days'"),
            (_, Some(_)) => format!("INTERVAL {days} DAY"),
            _ => format!("{days} * 86400"),
        }
    }

    fn age_attempts(&self, id: &str, which: &str, days: u32) {
        let ago = self.ago(days);
        let set = "UPDATE onedrop_attempt SET started_at = started_at";
        self.sql(id, &format!("{set} - {ago} WHERE {which}"));
    }

    fn age(&self, id: &str, name: &str, days: u32) {
        let message = format!("SELECT id FROM onedrop_message WHERE subject = '{name}'");
        let its = format!("message_id IN ({message})");
        let ago = self.ago(days);
        self.age_attempts(id, &its, days);
        for (table, column) in [("copy", "placed_at"), ("raw", "kept_at"), ("kept", "kept_at")] {
            let set = format!("UPDATE onedrop_{table} SET {column} = {column}");
            self.sql(id, &format!("{set} - {ago} WHERE {its}"));
        }
        let set = "UPDATE onedrop_message SET recorded_at = recorded_at";
        self.sql(id, &format!("{set} - {ago} WHERE subject = '{name}'"));
    }

    fn deliver(&self, id: &str, name: &str) -> Result<String, String> {
        let to = format!("{ACCOUNT}@mail.axial.net");
        let output =
            deliver(&self.config(id), &["-d", &to, "--sasl-username", from(name)], &letter(name));
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("{name} is not delivered: {output:?}")),
        }
    }

    /// It stands in its mailbox, and is not written there once more.
    fn deliver_again(&self, id: &str, name: &str) -> Result<(), String> {
        let said = self.deliver(id, name)?;
        match said.starts_with("found ") || said.starts_with("already there ") {
            true => Ok(()),
            false => Err(format!("{name}, again: {said}")),
        }
    }

    fn is_whole(&self, id: &str, is_before_deliveries: bool) -> Result<(), String> {
        let more =
            if is_before_deliveries { format!("UNION {HALF_ERASED}") } else { String::new() };
        let broken = self.sql(id, &format!("{BROKEN}\n{more}"));
        if broken.is_empty() { Ok(()) } else { Err(broken) }
    }

    fn arguments(&self) -> &'static [&'static str] {
        match self.what {
            What::Purge => &["purge"],
            What::Since => &["forget", "--since", "60d"],
            What::Account => &["forget", "--account", ACCOUNT],
        }
    }

    fn run_whole(&self, id: &str, more: &[&str]) -> Result<String, String> {
        let output = run_onedrop(&self.config(id), &[self.arguments(), more].concat());
        // 1: nothing was left to forget.
        match output.status.code() {
            Some(0 | 1) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            _ => Err(format!("{:?} {more:?}: {output:?}", self.what)),
        }
    }

    fn count(&self, id: &str, of: &str) -> u32 {
        let text = self.sql(id, &format!("SELECT CAST(count(*) AS CHAR(9)) FROM {of}"));
        text.trim().parse().expect("a number")
    }
}

impl Setting for Forgetting<'_> {
    fn name(&self) -> String {
        format!("{} {}", self.site.name(), self.arguments()[..].join(" "))
    }

    fn prepare(&self, id: &str) {
        self.make_database(id, Some(BASE));
        fs::create_dir_all(self.at(id)).expect("folder");
        run(Command::new("cp").arg("-a").args([self.site.mail_root(BASE), self.at(id)]));
        self.config(id);
    }

    fn run(&self, id: &str, mut strace: Command) -> Output {
        strace.arg(onedrop_path()).args(self.arguments()).arg("--config").arg(self.config(id));
        strace.stdin(Stdio::null()).output().expect("strace")
    }

    fn status(&self) -> i32 {
        // A message that another account's Sent still needs is passed by.
        i32::from(self.what == What::Account)
    }

    fn standing(&self, _id: &str) -> Standing {
        Standing::default()
    }

    fn bring_to_an_end(&self, id: &str) -> Result<usize, String> {
        self.is_whole(id, true)?;
        // One comes before the next run.
        self.deliver_again(id, "old")?;
        self.run_whole(id, &[])?;
        self.is_whole(id, false)?;
        let left = match self.what {
            What::Purge => {
                let dry = self.run_whole(id, &["--dry-run", "--json"])?;
                match dry.trim() {
                    NOTHING => 0,
                    _ => return Err(format!("not purged: {dry}")),
                }
            }
            What::Since => self.count(id, "onedrop_copy WHERE placed_at IS NOT NULL"),
            What::Account => self.count(
                id,
                &format!(
                    "onedrop_copy WHERE account = '{ACCOUNT}' AND message_id NOT IN
                     (SELECT id FROM onedrop_message WHERE subject = 'refused')"
                ),
            ),
        };
        if left > 0 {
            return Err(format!("{left} are not forgotten"));
        }
        for (name, _) in LETTERS {
            self.deliver_again(id, name)?;
        }
        Ok(2)
    }

    fn judge(&self, id: &str) -> Result<(), String> {
        self.is_whole(id, false)?;
        for (account, mailbox) in [(ACCOUNT, "INBOX"), ("lisa", "Sent"), ("blocked", "INBOX")] {
            let copies = |id: &str| {
                let mut copies = self.site.mailbox(id, account, mailbox);
                copies.sort();
                copies
            };
            if copies(id) != copies(BASE) {
                return Err(format!("{account}/{mailbox}: {} copies", copies(id).len()));
            }
        }
        let messages = self.count(id, "onedrop_message");
        if messages != LETTERS.len() as u32 {
            return Err(format!("{messages} messages on record"));
        }
        self.drop_database(id);
        Ok(())
    }
}
