//! Versioned migrations of the SQLite ledger, in one transaction that holds the write lock from its
//! start: if two processes migrate at once, one applies them and the other has nothing to do. A
//! crash leaves the version before.

use rusqlite::{Connection, params};
use sha2::{Digest, Sha256};

use super::{first, schema_version};
use crate::ledger::{BASE_VERSION, LedgerError, SCHEMA_VERSION};

/// Version, name and SQL, in order of their versions.
const MIGRATIONS: [(i64, &str, &str); 1] =
    [(BASE_VERSION, "0010_base", include_str!("../migrations/sqlite/0010_base.sql"))];

/// Applies the missing migrations; returns their names.
pub(super) fn migrate(tx: &Connection, now: f64) -> Result<Vec<String>, LedgerError> {
    let version = schema_version(tx)?;
    if version > SCHEMA_VERSION || (1..BASE_VERSION).contains(&version) {
        return Err(LedgerError::Version { found: version });
    }
    let mut applied = Vec::new();
    for (number, name, sql) in MIGRATIONS {
        let sha256: [u8; 32] = Sha256::digest(sql.as_bytes()).into();
        if number <= version {
            let sql = "SELECT sha256 FROM onedrop_schema WHERE version = ?1";
            let stored: Option<Vec<u8>> = first(tx, sql, [number])?;
            if stored.as_deref() != Some(&sha256) {
                return Err(LedgerError::Broken(format!(
                    "migration {name} was applied from another text than this program's"
                )));
            }
            continue;
        }
        tx.execute_batch(sql)?;
        if number == BASE_VERSION {
            tx.execute(
                "INSERT INTO onedrop_ledger (version, oldest_program, remembers_since)
                 VALUES (?1, ?1, ?2)",
                params![number, now],
            )?;
        }
        tx.execute(
            "INSERT INTO onedrop_schema (version, name, sha256, applied_at)
             VALUES (?1, ?2, ?3, ?4)",
            params![number, name, sha256, now],
        )?;
        applied.push(name.to_owned());
    }
    Ok(applied)
}
