//! Versioned migrations of the SQLite ledger, in one transaction that holds the write lock from its
//! start: if two processes migrate at once, one applies them and the other has nothing to do. A
//! crash leaves the version before.

use rusqlite::{Connection, params};
use sha2::{Digest, Sha256};

use super::{first, schema_version};
use crate::ledger::{LedgerError, SCHEMA_VERSION};

/// Name and SQL, in order of their versions, from 1.
const MIGRATIONS: [(&str, &str); SCHEMA_VERSION as usize] = [
    ("0001_ledger", include_str!("../migrations/sqlite/0001_ledger.sql")),
    ("0002_settled", include_str!("../migrations/sqlite/0002_settled.sql")),
    ("0003_functions", include_str!("../migrations/sqlite/0003_functions.sql")),
    ("0004_lighter", include_str!("../migrations/sqlite/0004_lighter.sql")),
    ("0005_mended", include_str!("../migrations/sqlite/0005_mended.sql")),
    ("0006_locks", include_str!("../migrations/sqlite/0006_locks.sql")),
    ("0007_jobs", include_str!("../migrations/sqlite/0007_jobs.sql")),
    ("0008_settle", include_str!("../migrations/sqlite/0008_settle.sql")),
];

/// Applies the missing migrations; returns their names.
pub(super) fn migrate(tx: &Connection, now: f64) -> Result<Vec<String>, LedgerError> {
    let version = schema_version(tx)?;
    let known = MIGRATIONS.len() as i64;
    if version > known {
        return Err(LedgerError::Version { found: version });
    }
    let mut applied = Vec::new();
    for (number, (name, sql)) in (1i64..).zip(MIGRATIONS) {
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
        tx.execute(
            "INSERT INTO onedrop_schema (version, name, sha256, applied_at)
             VALUES (?1, ?2, ?3, ?4)",
            params![number, name, sha256, now],
        )?;
        applied.push(name.to_owned());
    }
    Ok(applied)
}
