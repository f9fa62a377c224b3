//! The schema and its migrations. Each migration and its row in `onedrop_schema` are one
//! transaction under a lock, so two programs that migrate at once apply it once, and a crash leaves
//! the version before or after it. If an applied migration differs from this program's, that is an
//! error. By hand, because refinery takes no lock.

use postgres::Row;
use postgres::types::Type;
use sha2::{Digest, Sha256};

use super::connection::{Connection, Statement};
use crate::ledger::rows::SqlRow;
use crate::ledger::{BASE_VERSION, LedgerError, SCHEMA_VERSION};
use crate::lock_key::{advisory_key, name_hash};

/// Version, name and SQL, in order of their versions.
const MIGRATIONS: [(i64, &str, &str); 1] =
    [(BASE_VERSION, "0010_base", include_str!("../migrations/postgres/0010_base.sql"))];

/// SQLSTATE undefined_table.
const NO_TABLE: &str = "42P01";

const VERSION: &str = "SELECT version::bigint FROM onedrop_ledger";

/// Of a ledger from before [`BASE_VERSION`].
const OLD_VERSION: &str = "SELECT max(version)::bigint FROM onedrop_schema";

/// Not a migration: it records them.
const CREATE_SCHEMA_TABLE: &str = "
CREATE TABLE onedrop_schema (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    sha256     bytea NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE onedrop_schema
IS 'migrations applied';";

/// [`Ledger::schema_version`](crate::ledger::Ledger::schema_version).
pub(super) fn version(connection: &mut Connection) -> Result<i64, LedgerError> {
    for sql in [VERSION, OLD_VERSION] {
        match connection.query(Statement::new(sql)) {
            Ok(rows) => {
                let version = rows.first().map(|row| row.cell::<Option<i64>>(0)).transpose()?;
                return Ok(version.flatten().unwrap_or(0));
            }
            // No such table.
            Err(LedgerError::Version { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(0)
}

/// Runs statements by `run` ([`Connection::read`] or [`Connection::write`]) on tables of this
/// program's schema version; each one's rows.
///
/// # Errors
/// [`LedgerError::Version`] where the ledger has another version. A statement that writes must not
/// do so there by itself.
pub(super) fn checked<'a>(
    connection: &mut Connection,
    run: impl FnOnce(&mut Connection, &[Statement<'a>]) -> Result<Vec<Vec<Row>>, LedgerError>,
    statements: impl IntoIterator<Item = Statement<'a>>,
) -> Result<Vec<Vec<Row>>, LedgerError> {
    let all: Vec<_> = [Statement::new(VERSION)].into_iter().chain(statements).collect();
    let mut answers = match run(connection, &all) {
        Err(LedgerError::Version { .. }) => {
            return Err(LedgerError::Version { found: version(connection)? });
        }
        // An older schema has no such table.
        Err(LedgerError::Refused(why)) if why.starts_with(NO_TABLE) => {
            return Err(match version(connection)? {
                SCHEMA_VERSION => LedgerError::Refused(why),
                found => LedgerError::Version { found },
            });
        }
        answers => answers?.into_iter(),
    };
    let missing = || LedgerError::Broken("a statement without an answer".to_owned());
    let versions = answers.next().ok_or_else(missing)?;
    match versions.first().map_or(Ok(None), |row| row.cell::<Option<i64>>(0))?.unwrap_or(0) {
        SCHEMA_VERSION => Ok(answers.collect()),
        found => Err(LedgerError::Version { found }),
    }
}

/// [`Ledger::migrate`](crate::ledger::Ledger::migrate).
pub(super) fn migrate(connection: &mut Connection) -> Result<Vec<String>, LedgerError> {
    let mut applied = Vec::new();
    let before = version(connection)?;
    if before > SCHEMA_VERSION || (1..BASE_VERSION).contains(&before) {
        return Err(LedgerError::Version { found: before });
    }
    for (number, name, sql) in MIGRATIONS {
        match apply(connection, number, name, sql) {
            Ok(true) => applied.push(name.to_owned()),
            Ok(false) => {}
            Err(error) => {
                connection.rollback_or_lose();
                return Err(error);
            }
        }
    }
    match version(connection)? {
        SCHEMA_VERSION => Ok(applied),
        found => Err(LedgerError::Version { found }),
    }
}

/// Applies a migration unless it is on record; returns whether it did.
fn apply(
    connection: &mut Connection,
    number: i64,
    name: &str,
    migration: &str,
) -> Result<bool, LedgerError> {
    let lock = advisory_key(&name_hash("onedrop migrate"));
    connection.begin(&Statement::new("SELECT pg_advisory_xact_lock($1)").with(lock, Type::INT8))?;
    // Statements after the lock: they must see what its last holder committed. This one scans the
    // catalogue, because to_regclass() may answer from this session's cache.
    let sql = "SELECT current_setting('server_encoding'), EXISTS (SELECT FROM pg_class
               WHERE relname = 'onedrop_schema' AND pg_table_is_visible(oid))";
    let rows = connection.go_on(&Statement::new(sql))?;
    let row = rows.first().ok_or_else(|| LedgerError::Broken("no catalogue".to_owned()))?;
    let (encoding, has_table): (String, bool) = (row.cell(0)?, row.cell(1)?);
    if encoding != "UTF8" {
        return Err(LedgerError::Refused(format!(
            "the database's encoding is {encoding}; create it with UTF8"
        )));
    }
    let sha256 = Sha256::digest(migration.as_bytes()).to_vec();
    if has_table {
        let sql = "SELECT sha256 FROM onedrop_schema WHERE version = $1";
        let stored = connection.go_on(&Statement::new(sql).with(number, Type::INT8))?;
        if let Some(row) = stored.first() {
            connection.rollback()?;
            return match row.cell::<Vec<u8>>(0)? == sha256 {
                true => Ok(false),
                false => Err(LedgerError::Broken(format!(
                    "migration {name} on record is not the one in this program"
                ))),
            };
        }
    }
    let table = if has_table { "" } else { CREATE_SCHEMA_TABLE };
    connection.batch(&format!("{table} {migration}"))?;
    let insert = "INSERT INTO onedrop_schema (version, name, sha256) VALUES ($1, $2, $3)";
    connection.commit(&[Statement::new(insert)
        .with(number, Type::INT8)
        .with(name, Type::TEXT)
        .with(sha256, Type::BYTEA)])?;
    Ok(true)
}
