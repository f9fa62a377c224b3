//! Rows of locks.

use std::time::{Duration, SystemTime};

use onedrop_core::ledger::{LedgerError, LockHolder, LockRow};

use crate::rows::{self, SqlRow};

/// 12 columns: see the queries.
pub fn lock_row(row: &impl SqlRow) -> Result<LockRow, LedgerError> {
    let name: String = row.cell(0)?;
    let number = |at| -> Result<u32, LedgerError> {
        let number = row.cell::<i64>(at)?;
        u32::try_from(number).map_err(|_| LedgerError::Broken(format!("column {at}: {number}")))
    };
    let secs = |at| -> Result<Duration, LedgerError> {
        Ok(Duration::try_from_secs_f64(row.cell(at)?).unwrap_or_default())
    };
    Ok(LockRow {
        name: name.parse().map_err(LedgerError::Broken)?,
        slot: number(1)?,
        epoch: row.cell(2)?,
        holder: LockHolder {
            host: row.cell(3)?,
            pid: number(4)?,
            command: row.cell(5)?,
            note: row.cell(6)?,
            slots: number(7)?,
        },
        acquired_at: SystemTime::UNIX_EPOCH + secs(8)?,
        owner: rows::random_value(row, 9)?,
        lease: Duration::from_millis(row.cell::<i64>(10)?.max(0).unsigned_abs()),
        left: Some(secs(11)?).filter(|left| !left.is_zero()),
    })
}
