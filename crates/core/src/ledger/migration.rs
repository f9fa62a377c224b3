//! Migrations: the steps from one schema version to the next, and which of them are missing.
//!
//! A migration adds first; what is not used any more goes one version later (an index, which no
//! program needs to work, when another is there), so that a program of the version before works
//! throughout. It is a list of steps, each of which is done once or may be repeated, and the ledger
//! keeps how many are done (`onedrop_schema.steps`): after a crash the next `onedrop migrate` goes
//! on from there. The last transaction sets `onedrop_ledger.version`; until then the ledger counts
//! as of the version before. By hand, because refinery takes no lock and knows no step outside of a
//! transaction.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::LedgerError;
use super::schema_version::{SCHEMA_VERSION, SchemaVersion};
use crate::ledger::shared_config::SharedConfig;

/// The step to one schema version.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    pub version: i64,
    /// The lowest version of a program that may use the ledger after it: its own, or the one
    /// before, where it only adds.
    pub oldest_program: i64,
    pub name: &'static str,
    pub steps: &'static [MigrationStep],
}

/// A part of a migration.
#[derive(Debug, Clone, Copy)]
pub enum MigrationStep {
    /// Statements in one transaction. On a table that deliveries use they must only change the
    /// catalogue, one table a step: a delivery waits as long as they take.
    Transaction(&'static str),
    /// An index, built beside deliveries where the engine can: name, table, and what stands after
    /// the table's name.
    Index { name: &'static str, table: &'static str, on: &'static str },
    /// An index goes, beside deliveries where the engine can.
    DropIndex { name: &'static str, table: &'static str },
    /// A statement that changes some of the table's rows, repeated until it finds none, each time
    /// in a transaction of its own. On MariaDB: those with an `id` above `?1` and not above `?2`,
    /// repeated for one range after the other until the table's end.
    Batches { table: &'static str, sql: &'static str },
}

/// A step that `onedrop migrate` would do, and about how long it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    pub migration: &'static str,
    /// The lowest version of a program that may use the ledger after that migration.
    pub oldest_program: i64,
    pub what: String,
    /// About how many rows it goes through, by the engine's statistics.
    pub rows: Option<u64>,
    pub about: Duration,
}

/// For whom a migration waits.
pub const ANOTHER_MIGRATION: &str = "another `onedrop migrate` runs on this ledger";

/// What a program is, to a ledger.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// What its configuration shares with all hosts; `None`: it is not compared.
    pub config: Option<SharedConfig>,
    /// The migrations after those of this source. Only tests have any: they stand for a program of
    /// a later version.
    pub next: &'static [Migration],
    /// Called once by a migration that has to wait, with the one for whom.
    pub waits: Option<fn(&str)>,
    /// A ledger in a file is made where there is none: by `migrate`, and in a trial. For all others
    /// one that is gone is on a disk that is not mounted.
    pub makes: bool,
    /// It only asks: every transaction is read only, and no statement takes longer than
    /// [`QUESTION`](super::QUESTION).
    pub reads: bool,
}

impl Program {
    pub fn version(&self) -> i64 {
        self.next.last().map_or(SCHEMA_VERSION, |migration| migration.version)
    }

    /// Says that this program waits for another one.
    pub fn say_that_it_waits(&self, whom: &str) {
        if let Some(say) = self.waits {
            say(whom);
        }
    }

    /// A ledger's schema, as this program sees it.
    pub fn sees(&self, found: i64, oldest_program: i64) -> SchemaVersion {
        SchemaVersion { found, oldest_program, program: self.version() }
    }

    /// Does what [`sees`](Program::sees) does, for a ledger that does not say who may use it.
    pub fn sees_bare(&self, found: i64) -> SchemaVersion {
        SchemaVersion::bare(found, self.version())
    }

    /// All migrations, `own` before the [next](Program::next) ones.
    pub fn migrations(
        &self,
        own: &'static [Migration],
    ) -> impl Iterator<Item = &'static Migration> {
        own.iter().chain(self.next)
    }
}

impl Migration {
    /// Of all its text: what is on record as applied must be this.
    pub fn sha256(&self) -> Vec<u8> {
        let mut all = Sha256::new();
        for step in self.steps {
            match step {
                MigrationStep::Transaction(sql) => all.update(sql),
                MigrationStep::Index { name, table, on } => {
                    all.update(format!("{name} {table} {on}\n"))
                }
                MigrationStep::DropIndex { name, table } => {
                    all.update(format!("without {name} {table}\n"))
                }
                MigrationStep::Batches { table, sql } => all.update(format!("{table} {sql}\n")),
            }
        }
        all.finalize().to_vec()
    }

    /// How many of the steps are still to be done, after a look at what is on record: the hash, and
    /// how many are done.
    ///
    /// # Errors
    /// Another migration of this version was applied.
    pub fn steps_left(&self, on_record: Option<(Vec<u8>, i64)>) -> Result<usize, LedgerError> {
        let Some((sha256, done)) = on_record else { return Ok(self.steps.len()) };
        if sha256 != self.sha256() {
            return Err(LedgerError::Broken(format!(
                "migration {} on record is not the one in this program",
                self.name
            )));
        }
        Ok(self.steps.len().saturating_sub(usize::try_from(done).unwrap_or(0)))
    }
}

impl MigrationStep {
    /// The table whose rows it goes through.
    pub fn table(&self) -> Option<&'static str> {
        match self {
            MigrationStep::Transaction(_) | MigrationStep::DropIndex { .. } => None,
            MigrationStep::Index { table, .. } | MigrationStep::Batches { table, .. } => {
                Some(table)
            }
        }
    }

    /// The step of `migration` that this is; `rows`: about how many the table has.
    pub fn planned(&self, migration: &Migration, rows: Option<u64>) -> PlannedStep {
        // Rows a second, as measured on Postgres with a million messages: on two cores, beside
        // four deliveries at a time.
        let (what, a_second) = match self {
            MigrationStep::Transaction(_) => ("one transaction".to_owned(), 1),
            MigrationStep::Index { name, table, .. } => {
                (format!("index {name} on {table}"), 100_000)
            }
            MigrationStep::DropIndex { name, table } => {
                (format!("no index {name} on {table} any more"), 1)
            }
            MigrationStep::Batches { table, .. } => (format!("rows of {table}, in batches"), 5_000),
        };
        let about = Duration::from_secs(rows.unwrap_or(0) / a_second).max(Duration::from_secs(1));
        let Migration { name, oldest_program, .. } = *migration;
        PlannedStep { migration: name, oldest_program, what, rows, about }
    }
}

/// A number of rows as statistics give it; a table that was never counted has a negative one.
pub fn row_count(rows: i64) -> Option<u64> {
    u64::try_from(rows).ok()
}
