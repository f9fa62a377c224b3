//! The schema and its migrations. MariaDB commits each statement of a migration by itself, so they
//! run under a lock of the session and can be run again: after a crash in the middle the next call
//! makes the rest and puts it on record. GET_LOCK serves here, where no table need be there yet; it
//! is one server's alone, and so are our ledgers. If an applied migration differs from this
//! program's, that is an error.

use std::thread;
use std::time::{Duration, Instant};

use super::connection::{Answers, MariadbSession, first, rows_at};
use super::errors::{NO_TABLE, is_refused_with};
use super::statement::{SqlBatch, values};
use crate::rows::SqlRow;
use onedrop_core::ledger::{ANOTHER_MIGRATION, row_count};
use onedrop_core::ledger::{
    BASE_VERSION, LedgerError, Migration, MigrationStep, PlannedStep, SchemaVersion,
};
use onedrop_core::lock_key::{hex, name_hash};

/// Those of this program, in order of their versions. The first one makes the schema. Steps that
/// are transactions elsewhere are statements here that can be repeated (IF NOT EXISTS).
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: BASE_VERSION,
        oldest_program: BASE_VERSION,
        name: "0010_base",
        steps: &[MigrationStep::Transaction(include_str!("../migrations/mariadb/0010_base.sql"))],
    },
    // An index that the other engines lack at first, and this one has.
    Migration {
        version: 11,
        oldest_program: 10,
        name: "0011_by_recipient",
        steps: &[MigrationStep::Transaction("DO 0")],
    },
];

/// Which program may use the ledger.
const VERSION: &str = "SELECT version, oldest_program FROM onedrop_ledger";

/// Not a migration: it records them.
const CREATE_SCHEMA_TABLE: &str = "
CREATE TABLE IF NOT EXISTS onedrop_schema (
    version    INT NOT NULL PRIMARY KEY,
    name       VARCHAR(100) NOT NULL,
    sha256     BINARY(32) NOT NULL,
    steps      INT NOT NULL COMMENT 'how many of its steps are done',
    applied_at DATETIME(6) COMMENT 'null: not all of them'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'migrations, applied or begun'";

/// Seconds for which a statement waits for a table; deliveries queue after it meanwhile.
const LOCK_SECS: u32 = 1;

/// Seconds for which it waits for another migration before it says so.
const QUIET_SECS: i64 = 2;

/// Rows that a statement goes through at once.
const BATCH_ROWS: u32 = 500;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(700);

/// Another engine keeps no transaction.
const OTHER_ENGINE: &str = "
SELECT CONCAT(table_name, ' (', engine, ')') FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name LIKE 'onedrop\\\\_%' AND engine <> 'InnoDB'
ORDER BY table_name LIMIT 1";

/// [`Session::schema_version`](crate::session::Session::schema_version).
pub(super) fn version(connection: &mut MariadbSession) -> Result<SchemaVersion, LedgerError> {
    // A replica may be read by whoever only asks.
    if !connection.program().reads {
        keeps_a_ledger(connection)?;
    }
    match connection.read(SqlBatch::of(VERSION, &[])) {
        Err(error) if is_refused_with(&error, NO_TABLE) => {
            // A ledger of before the base version, or none.
            let sql = "SELECT MAX(version) FROM onedrop_schema";
            let found = match connection.read(SqlBatch::of(sql, &[])) {
                Err(error) if is_refused_with(&error, NO_TABLE) => None,
                answers => first::<Option<i64>>(rows_at(&answers?, 0))?.flatten(),
            };
            Ok(connection.program().sees_bare(found.unwrap_or(0)))
        }
        answers => seen(connection, &answers?),
    }
}

/// Whether what is written there is kept, and as it was given.
fn keeps_a_ledger(connection: &mut MariadbSession) -> Result<(), LedgerError> {
    let mut batch = SqlBatch::of(OTHER_ENGINE, &[]);
    // A number, and from 12.0 on a word (OFF, ON, NO_LOCK, NO_LOCK_NO_ADMIN).
    batch.add("SELECT CAST(@@read_only AS CHAR) NOT IN ('0', 'OFF')", &[]);
    // Views read JSON in it, whatever the tables have.
    batch.add("SELECT NULLIF(@@character_set_database, 'utf8mb4'), DATABASE()", &[]);
    let answers = connection.read(batch)?;
    if let Some(table) = first::<String>(rows_at(&answers, 0))? {
        return Err(LedgerError::Refused(format!("the table {table} must be InnoDB")));
    }
    if first::<bool>(rows_at(&answers, 1))? == Some(true) {
        return Err(LedgerError::Unavailable("the server is read only".to_owned()));
    }
    if let Some(row) = rows_at(&answers, 2).first()
        && let Some(set) = row.cell::<Option<String>>(0)?
    {
        let name: String = row.cell(1)?;
        return Err(LedgerError::Refused(format!(
            "the database's character set is {set}: ALTER DATABASE `{name}` CHARACTER SET utf8mb4"
        )));
    }
    Ok(())
}

/// The first answer is that to [`VERSION`].
fn seen(connection: &MariadbSession, answers: &Answers) -> Result<SchemaVersion, LedgerError> {
    match rows_at(answers, 0).first() {
        Some(row) => Ok(connection.program().sees(row.cell(0)?, row.cell(1)?)),
        // Its migration was cut short.
        None => Ok(connection.program().sees_bare(0)),
    }
}

/// [`Session::migrate`](crate::session::Session::migrate).
pub(super) fn migrate(connection: &mut MariadbSession) -> Result<Vec<String>, LedgerError> {
    version(connection)?.check_migration()?;
    let lock = "CONCAT('onedrop ', LEFT(SHA2(CONCAT(DATABASE(), ?1), 256), 40))";
    let name = hex(&name_hash("onedrop migrate"));
    let take = |connection: &mut MariadbSession, secs: i64| {
        let take = SqlBatch::of(&format!("SELECT GET_LOCK({lock}, ?2)"), values![&*name, secs]);
        let taken = connection.batch(&take.into_sql())?;
        Ok::<_, LedgerError>(first::<Option<bool>>(rows_at(&taken, 0))?.flatten() == Some(true))
    };
    let all_secs = |connection: &MariadbSession| connection.left().as_secs_f64().floor() as i64;
    let soon = all_secs(connection).min(QUIET_SECS);
    if !take(connection, soon)? {
        connection.program().say_that_it_waits(ANOTHER_MIGRATION);
        let secs = all_secs(connection);
        if !take(connection, secs)? {
            return Err(LedgerError::Contended);
        }
    }
    let applied = apply_all(connection);
    let give = SqlBatch::of(&format!("SELECT RELEASE_LOCK({lock})"), values![&*name]);
    // A session that was lost has both fail: the first says why.
    let given = connection.batch(&give.into_sql());
    let applied = applied?;
    given?;
    Ok(applied)
}

fn apply_all(connection: &mut MariadbSession) -> Result<Vec<String>, LedgerError> {
    let found = version(connection)?;
    found.check_migration()?;
    connection.batch(CREATE_SCHEMA_TABLE)?;
    let mut applied = Vec::new();
    let migrations: Vec<_> = connection.program().migrations(MIGRATIONS).collect();
    for migration in migrations {
        let (all, version) = (migration.steps.len(), migration.version);
        let left = migration.steps_left(on_record(connection, version)?)?;
        if version <= found.found {
            continue;
        }
        connection.write(SqlBatch::of(
            "INSERT INTO onedrop_schema (version, name, sha256, steps) VALUES (?1, ?2, ?3, 0)
             ON DUPLICATE KEY UPDATE steps = steps",
            values![version, migration.name, &*migration.sha256()],
        ))?;
        for done in all - left..all {
            step(connection, &migration.steps[done])?;
            connection.write(SqlBatch::of(
                "UPDATE onedrop_schema SET steps = ?2 WHERE version = ?1",
                values![version, done as i64 + 1],
            ))?;
        }
        let mut end = SqlBatch::of(
            "UPDATE onedrop_ledger SET version = ?1, oldest_program = ?2",
            values![version, migration.oldest_program],
        );
        end.add(
            "UPDATE onedrop_schema SET applied_at = UTC_TIMESTAMP(6) WHERE version = ?1",
            values![version],
        );
        connection.write(end)?;
        applied.push(migration.name.to_owned());
    }
    version(connection)?.check()?;
    Ok(applied)
}

/// What `onedrop_schema` says of a version: the hash of its text, and how many steps are done.
fn on_record(
    connection: &mut MariadbSession,
    version: i64,
) -> Result<Option<(Vec<u8>, i64)>, LedgerError> {
    let sql = "SELECT sha256, steps FROM onedrop_schema WHERE version = ?1";
    let rows = connection.query(sql, values![version])?;
    rows.first().map(|row| Ok((row.cell(0)?, row.cell(1)?))).transpose()
}

fn step(connection: &mut MariadbSession, step: &MigrationStep) -> Result<(), LedgerError> {
    match step {
        MigrationStep::Transaction(sql) => patiently(connection, sql).map(drop),
        MigrationStep::Index { name, table, on } => patiently(
            connection,
            &format!(
                "CREATE INDEX IF NOT EXISTS {name} ON {table} {on} ALGORITHM = INPLACE LOCK = NONE"
            ),
        )
        .map(drop),
        MigrationStep::DropIndex { name, table } => {
            patiently(connection, &format!("DROP INDEX IF EXISTS {name} ON {table}")).map(drop)
        }
        MigrationStep::Batches { table, sql } => walk(connection, table, sql),
    }
}

/// Goes through a table by its key, a batch after the other. A batch waits for no row: while it
/// did, deliveries would wait for those that it has locked.
fn walk(connection: &mut MariadbSession, table: &str, sql: &str) -> Result<(), LedgerError> {
    let last_of_batch = format!(
        "SELECT MAX(id)
         FROM (SELECT id FROM {table} WHERE id > ?1 ORDER BY id LIMIT {BATCH_ROWS}) batch"
    );
    let mut walked = 0;
    loop {
        let began = Instant::now();
        let rows = connection.query(&last_of_batch, values![walked])?;
        let Some(last) = first::<Option<i64>>(&rows)?.flatten() else { return Ok(()) };
        let batch = SqlBatch::of(sql, values![walked, last]).into_sql();
        patiently(connection, &format!("SET innodb_lock_wait_timeout = 0; {batch}"))?;
        walked = last;
        // Half of the time is for deliveries.
        thread::sleep(began.elapsed().min(PAUSE));
    }
}

/// Tries again, with pauses, as long as others hold locks.
fn patiently(connection: &mut MariadbSession, sql: &str) -> Result<Answers, LedgerError> {
    let sql = sql.trim_end().trim_end_matches(';');
    loop {
        match connection.batch(&format!("SET lock_wait_timeout = {LOCK_SECS}; {sql}")) {
            Err(LedgerError::Contended) if connection.left() > PAUSE => thread::sleep(PAUSE),
            answers => return answers,
        }
    }
}

/// [`Session::planned_migration`](crate::session::Session::planned_migration).
pub(super) fn planned(connection: &mut MariadbSession) -> Result<Vec<PlannedStep>, LedgerError> {
    let found = version(connection)?;
    found.check_migration()?;
    let mut planned = Vec::new();
    let migrations: Vec<_> = connection.program().migrations(MIGRATIONS).collect();
    for migration in migrations.into_iter().filter(|one| one.version > found.found) {
        let known = match found.found {
            0 => None,
            _ => on_record(connection, migration.version)?,
        };
        let left = migration.steps_left(known)?;
        for step in &migration.steps[migration.steps.len() - left..] {
            let sql = "SELECT CAST(table_rows AS SIGNED) FROM information_schema.tables
                       WHERE table_schema = DATABASE() AND table_name = ?1";
            let rows = match step.table() {
                Some(table) => first::<Option<i64>>(&connection.query(sql, values![table])?)?,
                None => None,
            };
            planned.push(step.planned(migration, rows.flatten().and_then(row_count)));
        }
    }
    Ok(planned)
}
