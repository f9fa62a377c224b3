//! The schema and its migrations. Each migration and its row in `onedrop_schema` are one
//! transaction under a lock, so two programs that migrate at once apply it once, and a crash leaves
//! the version before or after it. If an applied migration differs from this program's, that is an
//! error. By hand, because refinery takes no lock.

use postgres::types::Type;
use sha2::{Digest, Sha256};

use super::columns::cell;
use super::connection::{Connection, Statement};
use crate::ledger::{LedgerError, SCHEMA_VERSION};
use crate::lock_key::{advisory_key, hex, name_hash};

struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

/// In order; the last one creates [`SCHEMA_VERSION`].
const MIGRATIONS: [Migration; 5] = [
    Migration {
        version: 1,
        name: "0001_ledger",
        sql: include_str!("../migrations/postgres/0001_ledger.sql"),
    },
    Migration {
        version: 2,
        name: "0002_settled",
        sql: include_str!("../migrations/postgres/0002_settled.sql"),
    },
    Migration {
        version: 3,
        name: "0003_functions",
        sql: include_str!("../migrations/postgres/0003_functions.sql"),
    },
    Migration {
        version: 4,
        name: "0004_lighter",
        sql: include_str!("../migrations/postgres/0004_lighter.sql"),
    },
    Migration {
        version: 5,
        name: "0005_mended",
        sql: include_str!("../migrations/postgres/0005_mended.sql"),
    },
];

/// Not a migration: it records them.
const CREATE_SCHEMA_TABLE: &str = "
CREATE TABLE onedrop_schema (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    sha256     bytea NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE onedrop_schema
IS 'migrations applied; the highest version is the one of the schema';";

/// [`Ledger::schema_version`](crate::ledger::Ledger::schema_version).
pub(super) fn version(connection: &mut Connection) -> Result<i64, LedgerError> {
    match connection.read(&[Statement::new("SELECT max(version)::bigint FROM onedrop_schema")]) {
        Ok(rows) => match rows.first().and_then(|rows| rows.first()) {
            Some(row) => Ok(cell::<Option<i64>>(row, 0)?.unwrap_or(0)),
            None => Ok(0),
        },
        Err(LedgerError::Version { found }) => Ok(found),
        Err(other) => Err(other),
    }
}

/// [`Ledger::migrate`](crate::ledger::Ledger::migrate).
pub(super) fn migrate(connection: &mut Connection) -> Result<Vec<String>, LedgerError> {
    let mut applied = Vec::new();
    let before = version(connection)?;
    if before > SCHEMA_VERSION {
        return Err(LedgerError::Version { found: before });
    }
    for migration in &MIGRATIONS {
        match apply(connection, migration) {
            Ok(true) => applied.push(migration.name.to_owned()),
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

/// Applies `migration` unless it is on record; returns whether it did.
fn apply(connection: &mut Connection, migration: &Migration) -> Result<bool, LedgerError> {
    // Separate statements: those after the lock must see what its last holder committed. They scan
    // the catalogue, because to_regclass() may answer from this session's cache.
    let sets = connection.begin(
        &format!(
            "SELECT pg_advisory_xact_lock({}); SELECT EXISTS (SELECT FROM pg_class
             WHERE relname = 'onedrop_schema' \
             AND pg_table_is_visible(oid)); SELECT current_setting('server_encoding');",
            advisory_key(&name_hash("onedrop migrate"))
        ),
        3,
    )?;
    let first = |set: usize| sets.get(set)?.first()?.get(0);
    let encoding = first(2).unwrap_or_default();
    if encoding != "UTF8" {
        return Err(LedgerError::Refused(format!(
            "the database's encoding is {encoding}; create it with UTF8"
        )));
    }
    let has_table = first(1) == Some("t");
    if has_table && is_on_record(connection, migration)? {
        connection.rollback()?;
        return Ok(false);
    }
    let table = if has_table { "" } else { CREATE_SCHEMA_TABLE };
    connection.batch(&format!("{table} {}", migration.sql))?;
    let sha256 = Sha256::digest(migration.sql.as_bytes()).to_vec();
    let insert = "INSERT INTO onedrop_schema (version, name, sha256) VALUES ($1, $2, $3)";
    connection.commit(&[Statement::new(insert)
        .with(&migration.version, Type::INT8)
        .with(&migration.name, Type::TEXT)
        .with(&sha256, Type::BYTEA)])?;
    Ok(true)
}

fn is_on_record(connection: &mut Connection, migration: &Migration) -> Result<bool, LedgerError> {
    let sql = format!(
        "SELECT encode(sha256, 'hex') FROM onedrop_schema WHERE version = {};",
        migration.version
    );
    let sets = connection.batch(&sql)?;
    let Some(stored) = sets.first().and_then(|rows| rows.first()) else { return Ok(false) };
    if stored.get(0) == Some(hex(&Sha256::digest(migration.sql.as_bytes())).as_str()) {
        return Ok(true);
    }
    Err(LedgerError::Broken(format!(
        "migration {} on record is not the one in this program",
        migration.name
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_up_to_the_version_of_this_program() {
        for (at, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version, at as i64 + 1);
            assert!(migration.name.starts_with(&format!("{:04}_", migration.version)));
        }
        assert_eq!(MIGRATIONS.len() as i64, SCHEMA_VERSION);
    }
}
