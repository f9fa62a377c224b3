//! The queries of `onedrop status`, and the rows of hosts: by primary keys, and by the index of the
//! times when messages were recorded.

use std::time::{Duration, Instant, SystemTime};

use super::MariadbLedger;
use super::attempts::INDEXED;
use super::connection::{MariadbSession, first, rows_at};
use super::statement::{SqlBatch, values};
use crate::doubts;
use crate::overview::{self, Dialect, only};
use crate::rows::SqlRow;
use onedrop_core::ledger::{
    HostRow, LedgerError, OpenCopies, Overview, RecentAttempts, SCHEMA_VERSION,
};
use onedrop_core::ledger::{MOST_ATTEMPTS, MOST_COPIES, MOST_HOSTS, MOST_OPEN};
use onedrop_core::text;

/// ?1: seconds.
const DIALECT: Dialect = Dialect {
    middle: "((low + high) DIV 2)",
    then: "TIMESTAMPADD(SECOND, -?1, UTC_TIMESTAMP(6))",
    ago: "TIMESTAMPDIFF(MICROSECOND, {}, UTC_TIMESTAMP(6)) / 1000000",
    now: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000",
};

const COUNTS: &str = "
SELECT outcome, COALESCE(reason, IF(copy_id IS NULL, NULL, 'delivered')) AS reason,
       COALESCE(status, IF(copy_id IS NULL, NULL, '2.0.0')) AS status, duration_ms, COUNT(*)
FROM onedrop_attempt WHERE id >= ?1 GROUP BY 1, 2, 3, 4";

const HOSTS_OF: &str =
    "SELECT host, COUNT(*) FROM onedrop_attempt WHERE id >= ?1 GROUP BY host ORDER BY host";

/// Small tables come first, whatever the server knows of their sizes.
const OPEN: &str = "
SELECT leased_until IS NULL, {ago} FROM (
    (SELECT c.message_id, c.leased_until FROM onedrop_copy c
     WHERE c.id >= ?1 AND {open} LIMIT {most})
    UNION ALL
    (SELECT c.message_id, c.leased_until
     FROM onedrop_unsettled u STRAIGHT_JOIN onedrop_copy c ON c.id = u.copy_id
     WHERE u.copy_id < ?1 AND {open} LIMIT {most})
) o STRAIGHT_JOIN onedrop_message m ON m.id = o.message_id";

const IS_OPEN: &str = "c.placed_at IS NULL AND {in_doubt} AND c.due_at IS NULL
    AND (c.leased_until IS NULL OR c.leased_until <= UTC_TIMESTAMP(6))";

const KEPT: &str = "
SELECT COUNT(*) FROM (SELECT k.message_id FROM onedrop_kept k
    WHERE k.kept_at <= TIMESTAMPADD(SECOND, -?1, UTC_TIMESTAMP(6))
      AND (SELECT COUNT(*) FROM onedrop_copy c
           WHERE c.message_id = k.message_id AND c.shared AND c.placed_at IS NULL
             AND (c.due_at IS NULL
                  OR c.due_at <= TIMESTAMPADD(SECOND, -?1, UTC_TIMESTAMP(6)))) > 0
    LIMIT {most}) kept";

const HOSTS: &str = "
SELECT host, program_version, schema_version, {ago}, clock_offset_ms
FROM onedrop_host WHERE seen_at >= {then} ORDER BY host LIMIT {most}";

const NOTE: &str = "
INSERT INTO onedrop_host (host, program_version, schema_version, seen_at, clock_offset_ms)
VALUES (?1, ?2, ?3, UTC_TIMESTAMP(6), TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), ?4) DIV 1000)
ON DUPLICATE KEY UPDATE program_version = VALUES(program_version),
    schema_version = VALUES(schema_version), seen_at = VALUES(seen_at),
    clock_offset_ms = VALUES(clock_offset_ms)";

fn with_most(sql: &str) -> String {
    let sql = sql
        .replace("{open}", IS_OPEN)
        .replace("{in_doubt}", doubts::IN_DOUBT)
        .replace("{most}", &MOST_OPEN.to_string());
    sql.replace("{ago}", &DIALECT.ago.replace("{}", "m.recorded_at"))
}

/// [`overview::first_attempt`], a step a statement: within one, the server would go by the whole
/// index to the middle.
fn first_attempt(
    connection: &mut MariadbSession,
    back: Duration,
) -> Result<(SystemTime, Option<i64>, Option<Duration>), LedgerError> {
    let bounds = format!("SELECT MIN(id), MAX(id), {} FROM onedrop_attempt", DIALECT.now);
    let rows = connection.query(&bounds, &[])?;
    let (row, back) = (only(&rows)?, whole_secs(back));
    let now = SystemTime::UNIX_EPOCH + overview::seconds(row.cell(2)?);
    let (Some(low), Some(top)) = (row.cell::<Option<i64>>(0)?, row.cell::<Option<i64>>(1)?) else {
        return Ok((now, None, None));
    };
    let ago = DIALECT.ago.replace("{}", "started_at");
    let at_middle = format!(
        "SELECT id, started_at < {}, {ago} FROM onedrop_attempt WHERE id >= ?2
         ORDER BY id LIMIT 1",
        DIALECT.then
    );
    let (mut low, mut high) = (low, top + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let rows = connection.query(&at_middle, values![back, middle])?;
        match rows.first() {
            Some(row) if row.cell(1)? => low = row.cell::<i64>(0)? + 1,
            // What lies between has no rows.
            Some(_) | None => high = middle,
        }
    }
    let first_of_most = top - i64::from(MOST_ATTEMPTS) + 1;
    if low >= first_of_most {
        return Ok((now, Some(low), None));
    }
    let rows = connection.query(&at_middle, values![back, first_of_most])?;
    let reach = rows.first().map(|row| row.cell::<f64>(2)).transpose()?;
    Ok((now, Some(first_of_most), reach.map(overview::seconds)))
}

/// [`overview::first_copy`], for the same reason in steps.
fn first_copy(
    connection: &mut MariadbSession,
    back: Duration,
) -> Result<(i64, Option<Duration>), LedgerError> {
    let message = overview::first_message(DIALECT.then);
    let rows = connection.query(&message, values![whole_secs(back)])?;
    let message = first::<Option<i64>>(&rows)?.flatten();
    let sql = "SELECT MIN(c.id), (SELECT MAX(id) FROM onedrop_copy) FROM onedrop_copy c
               WHERE c.message_id = (SELECT f.message_id FROM onedrop_copy f
                   WHERE f.message_id >= ?1 ORDER BY f.message_id LIMIT 1)";
    let rows = connection.query(sql, values![message.unwrap_or(i64::MAX)])?;
    let row = only(&rows)?;
    let (copy, top) = (row.cell::<Option<i64>>(0)?, row.cell::<Option<i64>>(1)?.unwrap_or(0));
    let first_of_most = top - i64::from(MOST_COPIES) + 1;
    match copy {
        None => return Ok((top + 1, None)),
        Some(copy) if copy >= first_of_most => return Ok((copy, None)),
        Some(_) => {}
    }
    let ago = DIALECT.ago.replace("{}", "m.recorded_at");
    let sql = format!(
        "SELECT {ago} FROM onedrop_copy c STRAIGHT_JOIN onedrop_message m ON m.id = c.message_id
         WHERE c.id >= ?1 ORDER BY c.id LIMIT 1"
    );
    let rows = connection.query(&sql, values![first_of_most])?;
    Ok((first_of_most, first::<f64>(&rows)?.map(overview::seconds)))
}

/// As a parameter.
fn whole_secs(back: Duration) -> i64 {
    i64::try_from(back.as_secs()).unwrap_or(i64::MAX).min(1_000_000_000)
}

impl Overview for MariadbLedger {
    fn recent_attempts(
        &self,
        back: Duration,
        until: Instant,
    ) -> Result<RecentAttempts, LedgerError> {
        self.call(until, |connection| {
            let (now, first, reach) = first_attempt(connection, back)?;
            let reach = reach.unwrap_or(back);
            let (mut counts, mut hosts) = (Vec::new(), Vec::new());
            if let Some(first) = first {
                let mut batch = SqlBatch::of(COUNTS, values![first]);
                batch.add(HOSTS_OF, values![first]);
                let answers = connection.read(batch)?;
                let of = |at| rows_at(&answers, at).iter();
                counts = of(0).map(overview::attempt_count).collect::<Result<_, _>>()?;
                hosts = of(1).map(overview::host_count).collect::<Result<_, _>>()?;
            }
            Ok(RecentAttempts { now, reach, counts, hosts })
        })
    }

    fn open_copies(
        &self,
        back: Duration,
        kept_for: Duration,
        until: Instant,
    ) -> Result<OpenCopies, LedgerError> {
        self.call(until, |connection| {
            let (copy, reach) = first_copy(connection, back)?;
            let rows = connection.query(&with_most(KEPT), values![whole_secs(kept_for)])?;
            let kept = first::<i64>(&rows)?.unwrap_or(0).max(0).unsigned_abs();
            let reach = reach.unwrap_or(back);
            let mut open = OpenCopies { reach, kept, ..OpenCopies::default() };
            let rows = connection.query(&with_most(OPEN), values![copy])?;
            rows.iter().try_for_each(|row| overview::add_open_copy(&mut open, row))?;
            Ok(open)
        })
    }

    fn hosts(&self, back: Duration, until: Instant) -> Result<Vec<HostRow>, LedgerError> {
        let sql = HOSTS.replace("{ago}", &DIALECT.ago.replace("{}", "seen_at"));
        let sql = sql.replace("{then}", DIALECT.then).replace("{most}", &MOST_HOSTS.to_string());
        self.call(until, |connection| {
            let rows = connection.query(&sql, values![whole_secs(back)])?;
            rows.iter().map(overview::host_row).collect()
        })
    }

    fn note_host(&self, host: &str, version: &str, until: Instant) -> Result<(), LedgerError> {
        self.call(until, |connection| {
            let host = text::within(host, INDEXED);
            let values = values![host.as_bytes(), version, SCHEMA_VERSION, SystemTime::now()];
            connection.write(SqlBatch::of(NOTE, values)).map(drop)
        })
    }
}
