//! Rows of the web pages.

use std::time::SystemTime;

use onedrop_core::ledger::{ActivityRow, AttemptLine, LedgerError, MessageLine, SLOWER_MS};
use onedrop_core::text;

use crate::rows::{self, SqlRow};

/// Bytes of a Message-ID that are shown in a line.
const ID_BYTES: usize = 200;

/// SQL for [`ActivityRow::slowness`] of a column with milliseconds.
fn slowness_sql(column: &str) -> String {
    let cases: String = SLOWER_MS
        .iter()
        .enumerate()
        .map(|(at, bound)| format!(" WHEN {column} < {bound} THEN {at}"))
        .collect();
    format!("CASE WHEN {column} IS NULL THEN NULL{cases} ELSE {} END", SLOWER_MS.len())
}

/// What an engine fills into its statements: `{slowness}` of the column.
pub fn with_slowness(sql: &str, column: &str) -> String {
    sql.replace("{slowness}", &slowness_sql(column))
}

/// Number, Message-ID, time, sender, subject, size, whether a copy is not placed.
pub fn message_line(row: &impl SqlRow) -> Result<MessageLine, LedgerError> {
    Ok(MessageLine {
        number: row.cell(0)?,
        message_id: row.cell::<Option<Vec<u8>>>(1)?.map(|id| text::of_bytes(&id, ID_BYTES)),
        recorded_at: row.cell(2)?,
        sender: row.cell(3)?,
        subject: row.cell(4)?,
        size_bytes: row.cell(5)?,
        is_open: row.cell(6)?,
    })
}

/// Number, message, begin, recipient, queue id, host, process id, duration, outcome, status, text,
/// reason.
pub fn attempt_line(row: &impl SqlRow) -> Result<AttemptLine, LedgerError> {
    Ok(AttemptLine {
        number: row.cell(0)?,
        message: row.cell(1)?,
        started_at: row.cell(2)?,
        recipient: row.cell(3)?,
        queue_id: row.cell(4)?,
        host: row.cell(5)?,
        pid: row.cell(6)?,
        duration_ms: row.cell(7)?,
        outcome: row.cell(8)?,
        status: row.cell(9)?,
        text: row.cell(10)?,
        reason: row.cell(11)?,
    })
}

/// Minute, outcome, reason, slowness, how many.
pub fn activity_row(row: &impl SqlRow) -> Result<ActivityRow, LedgerError> {
    let slowness: Option<i64> = row.cell(3)?;
    Ok(ActivityRow {
        minute: row.cell(0)?,
        outcome: row.cell(1)?,
        reason: row.cell(2)?,
        slowness: slowness
            .and_then(|at| usize::try_from(at).ok())
            .map(|at| at.min(SLOWER_MS.len())),
        attempts: u64::try_from(row.cell::<i64>(4)?).unwrap_or(0),
    })
}

/// Number, seconds since 1970.
pub fn numbered_row(row: &impl SqlRow) -> Result<(i64, SystemTime), LedgerError> {
    Ok((row.cell(0)?, rows::time(row.cell(1)?)))
}
