//! Migrations of the SQLite ledger. Each step is one transaction that holds the write lock from its
//! start, batches one for each, and all transactions compare what is done before they do the next:
//! two processes that migrate at once do each step once, and a crash leaves the steps before.
//! Nothing here can be built beside deliveries: while an index is built they wait, each for as long
//! as its deadline.

use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, params};

use super::Classified;
use super::{SqliteSession, first, read, schema};
use crate::rows::SqlRow;
use onedrop_core::ledger::row_count;
use onedrop_core::ledger::{BASE_VERSION, LedgerError, Migration, MigrationStep, PlannedStep};

/// Those of this program, in order of their versions. The first one makes the schema.
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: BASE_VERSION,
        oldest_program: BASE_VERSION,
        name: "0010_base",
        steps: &[MigrationStep::Transaction(include_str!("../migrations/sqlite/0010_base.sql"))],
    },
    // A page of the attempts for a recipient, newest first, reads no more of them than it shows.
    Migration {
        version: 11,
        oldest_program: 10,
        name: "0011_by_recipient",
        steps: &[
            MigrationStep::Index {
                name: "onedrop_attempt_by_recipient",
                table: "onedrop_attempt",
                on: "(recipient, message_id) WHERE message_id IS NOT NULL",
            },
            MigrationStep::DropIndex {
                name: "onedrop_attempt_recipient",
                table: "onedrop_attempt",
            },
        ],
    },
];

const ANOTHER_WRITER: &str =
    "another process writes to this ledger, perhaps another `onedrop migrate`";

/// How long it waits for another process before it says so.
const QUIET: Duration = Duration::from_millis(500);

/// Applies the missing migrations; returns their names.
pub(super) fn migrate(session: &mut SqliteSession) -> Result<Vec<String>, LedgerError> {
    let program = session.program.clone();
    let mut applied = Vec::new();
    let mut is_told = false;
    for migration in program.migrations(MIGRATIONS) {
        loop {
            is_told = is_told || tells_that_it_waits(session)?;
            let began = Instant::now();
            match next_step(session, migration)? {
                Progress::Over => break,
                Progress::Step => {}
                // Of those that did its steps in turn, the one that ended it names it.
                Progress::Whole => {
                    applied.push(migration.name.to_owned());
                    break;
                }
                // Half of the time is for deliveries.
                Progress::Batch => thread::sleep(began.elapsed()),
            }
        }
    }
    schema::version(&session.connection, &program)?.check()?;
    Ok(applied)
}

/// Does the first step that is not done, if any is left.
fn next_step(session: &mut SqliteSession, migration: &Migration) -> Result<Progress, LedgerError> {
    let program = session.program.clone();
    session.write(|tx, now| {
        let found = schema::version(tx, &program)?;
        found.check_migration()?;
        let known = on_record(tx, found.found, migration)?;
        let left = migration.steps_left(known.clone())?;
        if migration.version <= found.found {
            return Ok(Progress::Over);
        }
        step(tx, now, migration, migration.steps.len() - left, known.is_none())
    })
}

/// Says so if another process has been writing for a while.
fn tells_that_it_waits(session: &SqliteSession) -> Result<bool, LedgerError> {
    session.connection.busy_timeout(QUIET).classified()?;
    match session.connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK") {
        Ok(()) => Ok(false),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
            session.program.say_that_it_waits(ANOTHER_WRITER);
            Ok(true)
        }
        Err(error) => Err(super::classify(error)),
    }
}

/// What a transaction did.
#[derive(Debug, PartialEq)]
enum Progress {
    /// Nothing: the migration is applied.
    Over,
    Batch,
    Step,
    /// The last step.
    Whole,
}

/// Does the step after `done` others, and with the last one sets the version.
fn step(
    tx: &Connection,
    now: f64,
    migration: &Migration,
    done: usize,
    is_first: bool,
) -> Result<Progress, LedgerError> {
    match migration.steps.get(done) {
        Some(MigrationStep::Transaction(sql)) => tx.execute_batch(sql).classified()?,
        Some(MigrationStep::Index { name, table, on }) => {
            tx.execute_batch(&format!("CREATE INDEX IF NOT EXISTS {name} ON {table} {on}"))
                .classified()?;
        }
        Some(MigrationStep::DropIndex { name, .. }) => {
            tx.execute_batch(&format!("DROP INDEX IF EXISTS {name}")).classified()?;
        }
        Some(MigrationStep::Batches { sql, .. }) if tx.execute(sql, []).classified()? > 0 => {
            return Ok(Progress::Batch);
        }
        Some(MigrationStep::Batches { .. }) | None => {}
    }
    let (version, all) = (migration.version, migration.steps.len());
    let done = (done + 1).min(all);
    if is_first {
        tx.execute(
            "INSERT INTO onedrop_schema (version, name, sha256, steps) VALUES (?1, ?2, ?3, 0)",
            params![version, migration.name, migration.sha256()],
        )
        .classified()?;
    }
    tx.execute(
        "UPDATE onedrop_schema SET steps = ?2 WHERE version = ?1",
        params![version, done as i64],
    )
    .classified()?;
    if done == all {
        tx.execute(
            "UPDATE onedrop_schema SET applied_at = ?2 WHERE version = ?1",
            params![version, now],
        )
        .classified()?;
        tx.execute(
            "UPDATE onedrop_ledger SET version = ?1, oldest_program = ?2",
            params![version, migration.oldest_program],
        )
        .classified()?;
        return Ok(Progress::Whole);
    }
    Ok(Progress::Step)
}

/// The hash of its text, and how many steps are done; `None`: it has not begun.
fn on_record(
    tx: &Connection,
    found: i64,
    migration: &Migration,
) -> Result<Option<(Vec<u8>, i64)>, LedgerError> {
    if found == 0 {
        return Ok(None);
    }
    let sql = "SELECT sha256, steps FROM onedrop_schema WHERE version = ?1";
    let rows = read(tx, sql, [migration.version], |row| Ok((row.cell(0)?, row.cell(1)?)))?;
    Ok(rows.into_iter().next())
}

/// [`Schema::planned_migration`](onedrop_core::ledger::Schema::planned_migration).
pub(super) fn planned(session: &mut SqliteSession) -> Result<Vec<PlannedStep>, LedgerError> {
    let (connection, program) = (&session.connection, &session.program);
    let found = schema::version(connection, program)?;
    found.check_migration()?;
    let mut planned = Vec::new();
    for migration in program.migrations(MIGRATIONS) {
        if migration.version <= found.found {
            continue;
        }
        let left = migration.steps_left(on_record(connection, found.found, migration)?)?;
        for step in &migration.steps[migration.steps.len() - left..] {
            // Rows are numbered from 1; those that were taken out count as well.
            let rows = match step.table() {
                Some(table) => first(connection, &format!("SELECT max(rowid) FROM {table}"), [])?,
                None => None,
            };
            planned.push(step.planned(migration, rows.flatten().and_then(row_count)));
        }
    }
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::HostClocks;
    use super::*;
    use onedrop_core::ledger::Program;

    #[test]
    fn of_two_that_do_its_steps_in_turn_the_one_that_ends_a_migration_names_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ledger.db");
        let open = || {
            let until = Instant::now() + Duration::from_secs(10);
            let makes = Program { makes: true, ..Program::default() };
            SqliteSession::open_by(&path, until, Arc::new(HostClocks::default()), makes.into())
                .expect("open")
        };
        let (mut one, mut other) = (open(), open());
        let last = MIGRATIONS.last().expect("a migration");
        let before = last.version - 1;
        let undone = format!(
            "DELETE FROM onedrop_schema WHERE version = {};
             UPDATE onedrop_ledger SET version = {before}, oldest_program = {before}",
            last.version
        );
        one.connection.execute_batch(&undone).expect("SQL");
        let mut did = Vec::new();
        for _ in last.steps {
            did.push(next_step(&mut one, last).expect("a step"));
            did.push(next_step(&mut other, last).expect("a step"));
        }
        let ended = did.iter().filter(|did| **did == Progress::Whole).count();
        assert!(ended == 1 && did.contains(&Progress::Over), "{did:?}");
        assert!(migrate(&mut one).expect("migrate").is_empty());
    }
}
