//! Migrations beside deliveries. One session at a time migrates: another one, the keeper, holds the
//! lock for it in a transaction without a snapshot, because building an index concurrently waits
//! for every snapshot that is older. No session waits for that lock in the server for the same
//! reason.
//!
//! A statement that needs a table for itself gives up after [`LOCK_MS`] and is tried again, so that
//! what queues after it goes on. A crash leaves the steps that are done on record
//! (`onedrop_schema.steps`), which each transaction compares before it does the next; an index that
//! was left half built is dropped and built again.

use std::thread;
use std::time::{Duration, Instant};

use postgres::types::Type;

use super::connection::{Connection, Statement};
use super::errors::is_late;
use super::schema::version;
use crate::rows::SqlRow;
use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::ledger::ANOTHER_MIGRATION;
use onedrop_core::ledger::{BASE_VERSION, LedgerError, Migration, MigrationStep, PlannedStep};
use onedrop_core::lock_key::{advisory_key, name_hash};

/// Those of this program, in order of their versions. The first one makes the schema.
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: BASE_VERSION,
        oldest_program: BASE_VERSION,
        name: "0010_base",
        steps: &[MigrationStep::Transaction(include_str!("../migrations/postgres/0010_base.sql"))],
    },
    // A page of the attempts for a recipient, newest first, reads no more of them than it shows.
    // Those that wait for a lock hear when it is given back.
    Migration {
        version: 11,
        oldest_program: 10,
        name: "0011_by_recipient",
        steps: &[
            MigrationStep::Index {
                name: "onedrop_attempt_by_recipient",
                table: "onedrop_attempt",
                on: r#"(lower(recipient) COLLATE "C", message_id) WHERE message_id IS NOT NULL"#,
            },
            MigrationStep::DropIndex {
                name: "onedrop_attempt_recipient",
                table: "onedrop_attempt",
            },
            MigrationStep::Transaction(include_str!("../migrations/postgres/0011_lock_free.sql")),
        ],
    },
];

/// Not a migration: it records them.
const CREATE_SCHEMA_TABLE: &str = "
CREATE TABLE onedrop_schema (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    sha256     bytea NOT NULL,
    steps      integer NOT NULL,
    applied_at timestamptz
);
COMMENT ON TABLE onedrop_schema IS 'migrations, applied or begun';
COMMENT ON COLUMN onedrop_schema.steps IS 'how many of its steps are done';
COMMENT ON COLUMN onedrop_schema.applied_at IS 'null: not all of them';";

/// Milliseconds for which a statement waits for a lock; deliveries queue after it meanwhile.
const LOCK_MS: u32 = 300;

/// Milliseconds that a statement may take which needs a table for itself.
const STATEMENT_MS: u32 = 600;

/// Milliseconds for which such a transaction waits for us: a host may freeze or vanish in it.
const IDLE_MS: u32 = 5000;

/// How long it waits for another migration before it says so.
const QUIET: Duration = Duration::from_secs(2);

/// Between two tries for a lock: at least, and how much more by chance.
const PAUSE: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];

/// How often a statement may take longer than [`STATEMENT_MS`] before that is its fault.
const MOST_LATE: u32 = 20;

/// [`Ledger::migrate`](onedrop_core::ledger::Schema::migrate).
pub(super) fn migrate(connection: &mut Connection) -> Result<Vec<String>, LedgerError> {
    version(connection)?.check_migration()?;
    let mut keeper = connection.another()?;
    let mut is_new = true;
    take_the_lock(&mut keeper, || {
        if std::mem::take(&mut is_new) {
            connection.program().say_that_it_waits(ANOTHER_MIGRATION);
        }
    })?;
    let migrated = migrate_alone(connection);
    if migrated.is_err() {
        connection.rollback_or_lose();
    }
    keeper.rollback_or_lose();
    migrated
}

/// Waits in this process, not in the server. `waits` is called when it has waited for a while.
fn take_the_lock(keeper: &mut Connection, mut waits: impl FnMut()) -> Result<(), LedgerError> {
    let began = Instant::now();
    let key = advisory_key(&name_hash("onedrop migrate"));
    loop {
        let statement =
            Statement::new("SELECT pg_try_advisory_xact_lock($1)").with(key, Type::INT8);
        let is_ours = keeper.begin(&statement)?.first().map(|row| row.cell(0)).transpose()?;
        if is_ours == Some(true) {
            // A simple query ends the portal of that statement, which has a snapshot.
            return keeper.batch(&set_transaction_timeout("'0'", true));
        }
        keeper.rollback()?;
        if began.elapsed() > QUIET {
            waits();
        }
        pause(keeper.until(), || LedgerError::Busy("another `onedrop migrate` runs".to_owned()))?;
    }
}

fn migrate_alone(connection: &mut Connection) -> Result<Vec<String>, LedgerError> {
    // What the last holder of the lock has done counts.
    let found = version(connection)?;
    found.check_migration()?;
    let mut applied = Vec::new();
    if found.found == 0 {
        make(connection, &MIGRATIONS[0])?;
        applied.push(MIGRATIONS[0].name.to_owned());
    }
    let migrations: Vec<_> = connection.program().migrations(MIGRATIONS).collect();
    for migration in migrations {
        let left = migration.steps_left(on_record(connection, migration.version)?)?;
        if migration.version <= found.found || migration.version == BASE_VERSION {
            continue;
        }
        begin(connection, migration)?;
        for done in migration.steps.len() - left..migration.steps.len() {
            step(connection, migration, done)?;
        }
        end(connection, migration)?;
        applied.push(migration.name.to_owned());
    }
    version(connection)?.check()?;
    Ok(applied)
}

/// [`Schema::planned_migration`](onedrop_core::ledger::Schema::planned_migration).
pub(super) fn planned(connection: &mut Connection) -> Result<Vec<PlannedStep>, LedgerError> {
    let found = version(connection)?;
    found.check_migration()?;
    let mut planned = Vec::new();
    let migrations: Vec<_> = connection.program().migrations(MIGRATIONS).collect();
    for migration in migrations.into_iter().filter(|one| one.version > found.found) {
        let left = match found.found {
            0 => migration.steps.len(),
            _ => migration.steps_left(on_record(connection, migration.version)?)?,
        };
        for step in &migration.steps[migration.steps.len() - left..] {
            let rows = match step.table() {
                Some(table) if found.found > 0 => rows_of(connection, table)?,
                _ => None,
            };
            planned.push(step.planned(migration, rows));
        }
    }
    Ok(planned)
}

/// What the server's planner expects: by its statistics and the table's size.
fn rows_of(connection: &mut Connection, table: &str) -> Result<Option<u64>, LedgerError> {
    let sql = format!("EXPLAIN SELECT FROM {table}");
    let plan = connection.query(Statement::new(&sql))?;
    let line: String = plan.first().map(|row| row.cell(0)).transpose()?.unwrap_or_default();
    let rows = line.split("rows=").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(rows.and_then(|rows| rows.parse().ok()))
}

/// What `onedrop_schema` says of a version: the hash of its text, and how many steps are done.
fn on_record(
    connection: &mut Connection,
    version: i64,
) -> Result<Option<(Vec<u8>, i64)>, LedgerError> {
    let sql = "SELECT sha256, steps::bigint FROM onedrop_schema WHERE version = $1";
    let rows = connection.query(Statement::new(sql).with(version, Type::INT8))?;
    rows.first().map(|row| Ok((row.cell(0)?, row.cell(1)?))).transpose()
}

/// Makes the schema, in one transaction.
fn make(connection: &mut Connection, base: &Migration) -> Result<(), LedgerError> {
    let rows = connection.begin(&Statement::new("SELECT current_setting('server_encoding')"))?;
    let encoding: Option<String> = rows.first().map(|row| row.cell(0)).transpose()?;
    if encoding.as_deref() != Some("UTF8") {
        let encoding = encoding.unwrap_or_default();
        return Err(LedgerError::Refused(format!(
            "the database's encoding is {encoding}; create it with UTF8"
        )));
    }
    connection.batch(CREATE_SCHEMA_TABLE)?;
    for step in base.steps {
        if let MigrationStep::Transaction(sql) = step {
            connection.batch(sql)?;
        }
    }
    let sql = "INSERT INTO onedrop_schema (version, name, sha256, steps, applied_at)
               VALUES ($1, $2, $3, $4, clock_timestamp())";
    let insert = of(sql, base)
        .with(base.name, Type::TEXT)
        .with(base.sha256(), Type::BYTEA)
        .with(base.steps.len() as i64, Type::INT8);
    connection.commit(&[insert]).map(drop)
}

fn of<'a>(sql: &'a str, migration: &Migration) -> Statement<'a> {
    Statement::new(sql).with(migration.version, Type::INT8)
}

fn begin(connection: &mut Connection, migration: &Migration) -> Result<(), LedgerError> {
    let sql = "INSERT INTO onedrop_schema (version, name, sha256, steps)
               VALUES ($1, $2, $3, 0) ON CONFLICT DO NOTHING";
    let insert =
        of(sql, migration).with(migration.name, Type::TEXT).with(migration.sha256(), Type::BYTEA);
    connection.write(&[insert]).map(drop)
}

/// From here on the ledger has the migration's version, unless it has a later one: the keeper was
/// lost, and another program went on.
fn end(connection: &mut Connection, migration: &Migration) -> Result<(), LedgerError> {
    let set = "UPDATE onedrop_ledger SET version = $1, oldest_program = $2 WHERE version < $1";
    let note = "UPDATE onedrop_schema SET applied_at = clock_timestamp() WHERE version = $1";
    let set = of(set, migration).with(migration.oldest_program, Type::INT8);
    connection.write(&[set, of(note, migration)]).map(drop)
}

/// Does the step after `done` others.
fn step(
    connection: &mut Connection,
    migration: &Migration,
    done: usize,
) -> Result<(), LedgerError> {
    match migration.steps[done] {
        MigrationStep::Transaction(sql) => patiently(connection, MOST_LATE, |connection| {
            connection.begin(&is_next(migration, done)).and_then(is_there)?;
            let limits = format!(
                "SET LOCAL lock_timeout = {LOCK_MS}; SET LOCAL statement_timeout = {STATEMENT_MS};
                 SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS}"
            );
            connection.batch(&limits)?;
            connection.batch(sql)?;
            connection.commit(&[done_with(migration, done)]).map(drop)
        }),
        // The session of a `migrate` that was killed may build still, and it waits for what waits
        // for its table: the server ends one of the two (40P01).
        MigrationStep::Index { name, table, on } => {
            patiently(connection, 0, |connection| build_index(connection, name, table, on))?;
            connection.write(&[done_with(migration, done)]).map(drop)
        }
        MigrationStep::DropIndex { name, .. } => {
            // It waits for what reads the table, and no delivery waits for it.
            patiently(connection, 0, |connection| drop_index(connection, name))?;
            connection.write(&[done_with(migration, done)]).map(drop)
        }
        MigrationStep::Batches { sql, .. } => {
            let sql = format!("WITH changed AS ({sql} RETURNING 1) SELECT count(*) FROM changed");
            loop {
                let began = Instant::now();
                let mut changed = 0i64;
                patiently(connection, MOST_LATE, |connection| {
                    connection.begin(&is_next(migration, done)).and_then(is_there)?;
                    connection.batch(&format!("SET LOCAL lock_timeout = {LOCK_MS}"))?;
                    let rows = connection.commit(&[Statement::new(&sql)])?;
                    changed = rows.iter().flatten().next().map_or(Ok(0), |row| row.cell(0))?;
                    Ok(())
                })?;
                if changed == 0 {
                    return connection.write(&[done_with(migration, done)]).map(drop);
                }
                // Half of the time is for deliveries.
                thread::sleep(began.elapsed().min(PAUSE[1]));
            }
        }
    }
}

/// A row if the step after `done` others is the next one; locked, so that of two sessions whose
/// keeper was lost one does it.
fn is_next(migration: &Migration, done: usize) -> Statement<'static> {
    of("SELECT FROM onedrop_schema WHERE version = $1 AND steps = $2 FOR UPDATE", migration)
        .with(done as i64, Type::INT8)
}

fn is_there(rows: Vec<postgres::Row>) -> Result<(), LedgerError> {
    match rows.is_empty() {
        true => Err(LedgerError::Busy("another `onedrop migrate` runs".to_owned())),
        false => Ok(()),
    }
}

fn done_with(migration: &Migration, done: usize) -> Statement<'static> {
    of("UPDATE onedrop_schema SET steps = $2 + 1 WHERE version = $1 AND steps = $2", migration)
        .with(done as i64, Type::INT8)
}

/// Outside of a transaction, beside all that deliveries do.
fn build_index(
    connection: &mut Connection,
    name: &str,
    table: &str,
    on: &str,
) -> Result<(), LedgerError> {
    let sql = "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
               WHERE c.relname = $1 AND pg_table_is_visible(c.oid)";
    let rows = connection.query(Statement::new(sql).with(name, Type::TEXT))?;
    let is_valid: Option<bool> = rows.first().map(|row| row.cell(0)).transpose()?;
    if is_valid == Some(true) {
        return Ok(());
    }
    if is_valid == Some(false) {
        // What a crash has left.
        drop_index(connection, name)?;
    }
    without_limits(connection, &format!("CREATE INDEX CONCURRENTLY {name} ON {table} {on}"))
}

fn drop_index(connection: &mut Connection, name: &str) -> Result<(), LedgerError> {
    without_limits(connection, &format!("DROP INDEX CONCURRENTLY IF EXISTS {name}"))
}

/// Limits that the role has would cut the statement off, each time again.
fn without_limits(connection: &mut Connection, sql: &str) -> Result<(), LedgerError> {
    let lift = set_transaction_timeout("'0'", false);
    connection.batch(&format!("SET statement_timeout = 0; SET lock_timeout = 0; {lift}"))?;
    connection.batch(sql)?;
    let reset = set_transaction_timeout("NULL", false);
    connection.batch(&format!("RESET statement_timeout; RESET lock_timeout; {reset}"))
}

/// Where the server has it, from Postgres 17 on. `value` is SQL: NULL resets it.
fn set_transaction_timeout(value: &str, is_local: bool) -> String {
    format!(
        "SELECT set_config('transaction_timeout', {value}, {is_local})
         WHERE current_setting('transaction_timeout', true) IS NOT NULL"
    )
}

/// Tries again, with pauses, as long as others hold locks; and `most_late` times where it took too
/// long.
fn patiently(
    connection: &mut Connection,
    most_late: u32,
    mut work: impl FnMut(&mut Connection) -> Result<(), LedgerError>,
) -> Result<(), LedgerError> {
    let mut late = 0;
    loop {
        let error = match work(connection) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        late += u32::from(is_late(&error));
        if !matches!(error, LedgerError::Contended) && !is_late(&error) || late > most_late {
            return Err(error);
        }
        connection.rollback()?;
        pause(connection.until(), || error)?;
    }
}

/// # Errors
/// `or`: there is no time left.
fn pause(until: Instant, or: impl FnOnce() -> LedgerError) -> Result<(), LedgerError> {
    let [least, more] = PAUSE;
    let chance = Duration::from_micros(SystemClock.random() % more.as_micros() as u64);
    if Instant::now() + least + chance >= until {
        return Err(or());
    }
    thread::sleep(least + chance);
    Ok(())
}
