//! The schema and its migrations. MariaDB commits each statement of a migration by itself, so they
//! run under a lock of the session and can be run again: after a crash in the middle the next call
//! makes the rest and puts it on record. GET_LOCK serves here, where no table need be there yet; it
//! is one server's alone, and so are our ledgers. If an applied migration differs from this
//! program's, that is an error.

use sha2::{Digest, Sha256};

use super::connection::{Answers, MariadbSession, first, rows_at};
use super::errors::{NO_TABLE, is_refused_with};
use super::statement::{SqlBatch, values};
use crate::ledger::{BASE_VERSION, LedgerError, SCHEMA_VERSION};
use crate::lock_key::{hex, name_hash};

/// Version, name and SQL.
const MIGRATIONS: [(i64, &str, &str); 1] =
    [(BASE_VERSION, "0010_base", include_str!("../migrations/mariadb/0010_base.sql"))];

pub(super) const VERSION: &str = "SELECT version FROM onedrop_ledger";

/// Of a ledger from before [`BASE_VERSION`].
const OLD_VERSION: &str = "SELECT MAX(version) FROM onedrop_schema";

/// Not a migration: it records them.
const CREATE_SCHEMA_TABLE: &str = "
CREATE TABLE IF NOT EXISTS onedrop_schema (
    version    INT NOT NULL PRIMARY KEY,
    name       VARCHAR(100) NOT NULL,
    sha256     BINARY(32) NOT NULL,
    applied_at DATETIME(6) NOT NULL
) ENGINE = InnoDB COMMENT = 'migrations applied'";

/// Another engine keeps no transaction.
const OTHER_ENGINE: &str = "
SELECT CONCAT(table_name, ' (', engine, ')') FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name LIKE 'onedrop\\\\_%' AND engine <> 'InnoDB'
ORDER BY table_name LIMIT 1";

/// [`Session::schema_version`](crate::ledger::session::Session::schema_version).
pub(super) fn version(connection: &mut MariadbSession) -> Result<i64, LedgerError> {
    match version_by(connection, VERSION) {
        Err(LedgerError::Version { .. }) => match version_by(connection, OLD_VERSION) {
            Err(LedgerError::Version { found }) => Ok(found),
            version => version,
        },
        version => version,
    }
}

fn version_by(connection: &mut MariadbSession, sql: &str) -> Result<i64, LedgerError> {
    let mut batch = SqlBatch::of(OTHER_ENGINE, &[]);
    batch.add("SELECT @@read_only", &[]);
    batch.add(sql, &[]);
    let answers = connection.read(batch)?;
    if let Some(table) = first::<String>(rows_at(&answers, 0))? {
        return Err(LedgerError::Refused(format!("the table {table} must be InnoDB")));
    }
    if first::<bool>(rows_at(&answers, 1))? == Some(true) {
        return Err(LedgerError::Unavailable("the server is read only".to_owned()));
    }
    found(&answers, 2)
}

/// The answer to [`VERSION`].
pub(super) fn found(answers: &Answers, at: usize) -> Result<i64, LedgerError> {
    Ok(first::<Option<i64>>(rows_at(answers, at))?.flatten().unwrap_or(0))
}

/// Runs statements by `run` (`MariadbSession::read` or `begin`) on tables of this program's schema
/// version.
///
/// # Errors
/// [`LedgerError::Version`] where the ledger has another version. A statement that writes must not
/// do so there by itself.
pub(super) fn checked(
    connection: &mut MariadbSession,
    run: impl FnOnce(&mut MariadbSession, SqlBatch) -> Result<Answers, LedgerError>,
    statements: SqlBatch,
) -> Result<Answers, LedgerError> {
    let mut all = SqlBatch::of(VERSION, &[]);
    all.append(statements);
    let answers = match run(connection, all) {
        Err(LedgerError::Version { .. }) => {
            return Err(LedgerError::Version { found: version(connection)? });
        }
        // Another schema has no such table.
        Err(error) if is_refused_with(&error, NO_TABLE) => {
            return Err(match version(connection)? {
                SCHEMA_VERSION => error,
                found => LedgerError::Version { found },
            });
        }
        answers => answers?,
    };
    match found(&answers, 0)? {
        SCHEMA_VERSION => Ok(answers.into_iter().skip(1).collect()),
        found => {
            connection.rollback()?;
            Err(LedgerError::Version { found })
        }
    }
}

/// [`Session::migrate`](crate::ledger::session::Session::migrate).
pub(super) fn migrate(connection: &mut MariadbSession) -> Result<Vec<String>, LedgerError> {
    let before = version(connection)?;
    if before > SCHEMA_VERSION || (1..BASE_VERSION).contains(&before) {
        return Err(LedgerError::Version { found: before });
    }
    let lock = "CONCAT('onedrop ', LEFT(SHA2(CONCAT(DATABASE(), ?1), 256), 40))";
    let name = hex(&name_hash("onedrop migrate"));
    let secs = connection.left().as_secs_f64().floor() as i64;
    let take = SqlBatch::of(&format!("SELECT GET_LOCK({lock}, ?2)"), values![&*name, secs]);
    let taken = connection.batch(&take.into_sql())?;
    if first::<Option<bool>>(rows_at(&taken, 0))?.flatten() != Some(true) {
        return Err(LedgerError::Contended);
    }
    let applied = apply_all(connection);
    let give = SqlBatch::of(&format!("SELECT RELEASE_LOCK({lock})"), values![&*name]);
    connection.batch(&give.into_sql())?;
    applied
}

fn apply_all(connection: &mut MariadbSession) -> Result<Vec<String>, LedgerError> {
    connection.batch(CREATE_SCHEMA_TABLE)?;
    let mut applied = Vec::new();
    for (number, name, sql) in MIGRATIONS {
        let sha256: [u8; 32] = Sha256::digest(sql.as_bytes()).into();
        let on_record = connection
            .query("SELECT sha256 FROM onedrop_schema WHERE version = ?1", values![number])?;
        match first::<Vec<u8>>(&on_record)? {
            Some(stored) if stored == sha256 => continue,
            Some(_) => {
                return Err(LedgerError::Broken(format!(
                    "migration {name} on record is not the one in this program"
                )));
            }
            None => {}
        }
        connection.batch(sql.trim_end().trim_end_matches(';'))?;
        connection.write(SqlBatch::of(
            "INSERT INTO onedrop_schema (version, name, sha256, applied_at)
             VALUES (?1, ?2, ?3, UTC_TIMESTAMP(6))",
            values![number, name, &sha256],
        ))?;
        applied.push(name.to_owned());
    }
    match version(connection)? {
        SCHEMA_VERSION => Ok(applied),
        found => Err(LedgerError::Version { found }),
    }
}
