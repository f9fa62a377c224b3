//! `onedrop migrate` of a ledger of the base version to this program's, killed, while deliveries go
//! on and a reader has a transaction open from the beginning to the end.

use std::any::Any;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;

use super::settings::Setting;
use super::sites::{Combination, Standing};
use crate::support::site::{deliver, run};
use crate::support::{base_ledger, letters, maildir_copies, onedrop_path};

/// What a base ledger has.
const MESSAGES_BEFORE: usize = 10;
const READ: [&str; 3] = ["onedrop_attempt", "onedrop_ledger", "onedrop_schema"];

const SQLITE_INDEX: &str = "CREATE INDEX onedrop_attempt_by_recipient ON onedrop_attempt \
                            (recipient, message_id) WHERE message_id IS NOT NULL";
/// The migration leaves it: it has both columns from the beginning.
const MARIADB_INDEX: &str =
    "onedrop_attempt_recipient recipient 128, onedrop_attempt_recipient message_id";

pub struct ByRecipient<'a> {
    site: &'a Combination,
    beside: Mutex<HashMap<String, Beside>>,
}

/// What goes on beside a migration.
struct Beside {
    _reader: Box<dyn Any + Send>,
    delivered: usize,
    attempts_before: usize,
}

impl ByRecipient<'_> {
    pub fn of(site: &Combination) -> ByRecipient<'_> {
        ByRecipient { site, beside: Mutex::default() }
    }

    fn config(&self, id: &str) -> PathBuf {
        let config = self.site.patient_config(id);
        let text = fs::read_to_string(&config).expect("configuration");
        let text = self.site.in_database(id, &text);
        // One of two deliveries of a letter waits for the other.
        let text = text.replace("wait_secs = 1\n", "wait_secs = 50\n");
        let text = text.replace("lease_secs = 50\n", "lease_secs = 180\n");
        let text = text.replace("deadline_secs = 40\n", "deadline_secs = 100\n");
        fs::write(&config, text).expect("configuration");
        config
    }

    /// One value of the ledger as text.
    fn value(&self, id: &str, sql: &str) -> String {
        match &self.site.mariadb {
            Some(mariadb) => mariadb.sql_in(&self.site.database(id), sql),
            None => self
                .site
                .sqlite(id)
                .query_row(&format!("SELECT CAST(({sql}) AS TEXT)"), [], |row| row.get(0))
                .unwrap_or_else(|error| panic!("{sql}: {error}")),
        }
    }

    fn count(&self, id: &str, from: &str) -> usize {
        self.value(id, &format!("SELECT count(*) FROM {from}")).parse().expect("a number")
    }

    /// Two processes deliver the same letter at the same moment, one letter after the other, until
    /// `work` has ended.
    fn deliver_beside<T: Send>(
        &self,
        id: &str,
        work: impl FnOnce() -> T + Send,
    ) -> (T, Result<(), String>) {
        let config = self.config(id);
        let first = self.beside.lock().expect("beside")[id].delivered;
        let to = format!("{id}@mail.axial.net");
        thread::scope(|scope| {
            let work = scope.spawn(work);
            let mut ended = Ok(());
            for n in first.. {
                let outputs = thread::scope(|scope| {
                    let both = [(); 2].map(|()| {
                        scope.spawn(|| deliver(&config, &["-d", to.as_str()], &letter(id, n)))
                    });
                    both.map(|one| one.join().expect("a delivery"))
                });
                if let Some(output) = outputs.iter().find(|output| !output.status.success()) {
                    ended = Err(format!("letter {n} beside the migration: {output:?}"));
                    break;
                }
                self.beside.lock().expect("beside").get_mut(id).expect("ours").delivered = n + 1;
                if work.is_finished() {
                    break;
                }
            }
            (work.join().expect("no panic"), ended)
        })
    }
}

fn letter(id: &str, n: usize) -> Vec<u8> {
    format!("From: lisa@gmail.com\nMessage-ID: <{n}@{id}>\nSubject: {n}\n\nBody {n}\n").into()
}

impl Setting for ByRecipient<'_> {
    fn name(&self) -> String {
        format!("{} migrate from the base version", self.site.name())
    }

    fn prepare(&self, id: &str) {
        // Its store was elsewhere.
        let moved = "UPDATE onedrop_ledger SET config = NULL";
        let reader: Box<dyn Any + Send> = if let Some(mariadb) = &self.site.mariadb {
            let name = self.site.database(id);
            mariadb.create_database(&name);
            base_ledger::load_into_mariadb(mariadb, &name);
            mariadb.sql_in(&name, moved);
            let read = READ.map(|table| format!("SELECT COUNT(*) FROM {name}.{table}"));
            Box::new(mariadb.begin(&read.join("; ")))
        } else {
            let folder = self.site.site.root.join(id).join("ledger");
            fs::create_dir_all(folder).expect("a folder");
            let reader = self.site.sqlite(id);
            base_ledger::load_into_sqlite(&reader);
            let begin = format!("PRAGMA journal_mode = WAL; {moved}; BEGIN");
            reader.execute_batch(&begin).expect("a transaction");
            for table in READ {
                let sql = format!("SELECT count(*) FROM {table}");
                reader.query_row(&sql, [], |row| row.get::<_, i64>(0)).expect("rows");
            }
            Box::new(reader)
        };
        let attempts_before = self.count(id, "onedrop_attempt_text");
        let beside = Beside { _reader: reader, delivered: 0, attempts_before };
        self.beside.lock().expect("beside").insert(id.to_owned(), beside);
    }

    fn run(&self, id: &str, mut strace: Command) -> Output {
        strace.arg(onedrop_path()).args(["migrate", "--config"]).arg(self.config(id));
        strace.stdin(Stdio::null());
        let (output, beside) = self.deliver_beside(id, || strace.output().expect("strace"));
        beside.expect("deliveries");
        output
    }

    fn standing(&self, _id: &str) -> Standing {
        Standing::default()
    }

    fn bring_to_an_end(&self, id: &str) -> Result<usize, String> {
        let config = self.config(id);
        let (migrated, beside) = self.deliver_beside(id, || run(&config, &["migrate"]));
        beside?;
        match migrated.status.success() {
            true => Ok(1),
            false => Err(format!("{migrated:?}")),
        }
    }

    fn judge(&self, id: &str) -> Result<(), String> {
        let beside = self.beside.lock().expect("beside").remove(id).expect("ours");
        let (steps, index) = match &self.site.mariadb {
            Some(_) => (
                1,
                "SELECT GROUP_CONCAT(CONCAT_WS(' ', index_name, column_name, sub_part)
                                     ORDER BY index_name, seq_in_index SEPARATOR ', ')
                 FROM information_schema.statistics
                 WHERE table_schema = DATABASE() AND index_name LIKE 'onedrop_attempt%recipient'",
            ),
            None => (
                2,
                "SELECT group_concat(sql, ', ') FROM sqlite_schema
                 WHERE name LIKE 'onedrop_attempt%recipient'",
            ),
        };
        let wanted_index = self.site.mariadb.as_ref().map_or(SQLITE_INDEX, |_| MARIADB_INDEX);
        let mut is = vec![
            ("SELECT version FROM onedrop_ledger", "11".to_owned()),
            ("SELECT oldest_program FROM onedrop_ledger", "10".to_owned()),
            ("SELECT steps FROM onedrop_schema WHERE version = 11", steps.to_string()),
            ("SELECT count(*) FROM onedrop_schema WHERE applied_at IS NULL", "0".to_owned()),
            ("SELECT count(*) FROM onedrop_schema", "2".to_owned()),
            (index, wanted_index.to_owned()),
        ];
        if self.site.mariadb.is_none() {
            is.push(("SELECT integrity_check FROM pragma_integrity_check", "ok".to_owned()));
        }
        for (sql, wanted) in is {
            let found = self.value(id, sql);
            if found != wanted {
                return Err(format!("{sql}: {found}, not {wanted}"));
            }
        }
        let delivered = beside.delivered;
        let recorded = [
            self.count(id, "onedrop_message") - MESSAGES_BEFORE,
            self.count(
                id,
                &format!("onedrop_copy WHERE account = '{id}' AND placed_at IS NOT NULL"),
            ),
            (self.count(id, "onedrop_attempt_text") - beside.attempts_before) / 2,
        ];
        if recorded != [delivered; 3] {
            return Err(format!("{delivered} delivered, on record {recorded:?}"));
        }
        let copies = maildir_copies(&self.site.mail_root(id), id, "");
        letters::are_these(id, &copies, (0..delivered).map(|n| letter(id, n)));
        Ok(())
    }
}
