//! The queries of `onedrop status`, and the rows of hosts: by primary keys, and by the index of the
//! times when messages were recorded.

use std::time::{Duration, Instant, SystemTime};

use postgres::types::Type;

use super::PostgresLedger;
use super::columns::INDEXED;
use super::connection::Statement;
use crate::doubts;
use crate::overview::{self, Dialect, only};
use crate::rows::{self, SqlRow};
use onedrop_core::ledger::{
    HostRow, LedgerError, OpenCopies, Overview, RecentAttempts, SCHEMA_VERSION,
};
use onedrop_core::ledger::{MOST_HOSTS, MOST_OPEN};
use onedrop_core::text;

const DIALECT: Dialect = Dialect {
    middle: "((low + high) / 2)",
    // Not clock_timestamp(), by which no index can be read.
    then: "now() - $1 * interval '1 second'",
    ago: "extract(epoch FROM clock_timestamp() - {})::float8",
    now: "extract(epoch FROM clock_timestamp())::float8",
};

/// Compiling what is planned for so many rows would take ten times as long as to run it.
const PLANS: &str = "SELECT set_config('jit', 'off', true)";

const HOSTS_OF: &str =
    "SELECT host, count(*) FROM onedrop_attempt WHERE id >= $1 GROUP BY host ORDER BY host";

/// [`overview::add_open_copy`]
const OPEN: &str = "
WITH open AS (
    (SELECT c.message_id, c.leased_until FROM onedrop_copy c
     WHERE c.id >= $1 AND {open} LIMIT {most})
    UNION ALL
    (SELECT c.message_id, c.leased_until FROM onedrop_unsettled u
          CROSS JOIN LATERAL (SELECT * FROM onedrop_copy WHERE id = u.copy_id OFFSET 0) c
     WHERE u.copy_id < $1 AND {open} LIMIT {most})
)
SELECT o.leased_until IS NULL, extract(epoch FROM clock_timestamp() - m.recorded_at)::float8
FROM open o JOIN onedrop_message m ON m.id = o.message_id";

const IS_OPEN: &str = "c.placed_at IS NULL AND {in_doubt} AND c.due_at IS NULL
    AND (c.leased_until IS NULL OR c.leased_until <= clock_timestamp())";

const KEPT: &str = "
SELECT count(*) FROM (SELECT 1 FROM onedrop_kept k
    WHERE k.kept_at <= clock_timestamp() - $1 * interval '1 second'
      AND EXISTS (SELECT FROM onedrop_copy c
                  WHERE c.message_id = k.message_id AND c.shared AND c.placed_at IS NULL
                    AND (c.due_at IS NULL
                         OR c.due_at <= clock_timestamp() - $1 * interval '1 second'))
    LIMIT {most}) kept";

const HOSTS: &str = "
SELECT host, program_version, schema_version::bigint,
       extract(epoch FROM clock_timestamp() - seen_at)::float8, clock_offset_ms
FROM onedrop_host WHERE seen_at >= clock_timestamp() - $1 * interval '1 second'
ORDER BY host LIMIT {most}";

const NOTE: &str = "
INSERT INTO onedrop_host (host, program_version, schema_version, clock_offset_ms)
VALUES ($1, $2, $3, 1000 * ($4 - extract(epoch FROM clock_timestamp())::float8))
ON CONFLICT (host) DO UPDATE SET program_version = excluded.program_version,
    schema_version = excluded.schema_version, seen_at = clock_timestamp(),
    clock_offset_ms = excluded.clock_offset_ms";

fn counts() -> String {
    let counts = overview::COUNTS.replace("{attempt}", "$1").replace("{message}", "$2");
    counts.replace("ms, COUNT", "ms::bigint, COUNT")
}

fn with_most(sql: &str) -> String {
    sql.replace("{open}", IS_OPEN)
        .replace("{in_doubt}", doubts::IN_DOUBT)
        .replace("{most}", &MOST_OPEN.to_string())
}

impl Overview for PostgresLedger {
    fn recent_attempts(
        &self,
        back: Duration,
        until: Instant,
    ) -> Result<RecentAttempts, LedgerError> {
        self.call(until, |connection| {
            let first =
                Statement::new(DIALECT.first_attempt()).with(back.as_secs_f64(), Type::FLOAT8);
            let rows = connection.query(first)?;
            let (now, first, reach) = overview::first_attempt(only(&rows)?)?;
            let reach = reach.unwrap_or(back);
            let Some(first) = first else {
                return Ok(RecentAttempts { now, reach, counts: Vec::new(), hosts: Vec::new() });
            };
            // As a value, not within the statement: the server plans for what it is.
            let message = Statement::new(overview::first_message(DIALECT.then))
                .with(reach.as_secs_f64(), Type::FLOAT8);
            let rows = connection.query(message)?;
            let message = only(&rows)?.cell::<Option<i64>>(0)?.unwrap_or(i64::MAX);
            let counts = Statement::new(counts()).with(first, Type::INT8).with(message, Type::INT8);
            let hosts = Statement::new(HOSTS_OF).with(first, Type::INT8);
            let answers = connection.read(&[Statement::new(PLANS), counts, hosts])?;
            let [_, counts, hosts] = answers.as_slice() else {
                return Err(LedgerError::Broken("statements without answers".to_owned()));
            };
            let counts = counts.iter().map(overview::attempt_count).collect::<Result<_, _>>()?;
            let counts = overview::counted(counts);
            Ok(RecentAttempts {
                now,
                reach,
                counts,
                hosts: hosts.iter().map(overview::host_count).collect::<Result<_, _>>()?,
            })
        })
    }

    fn open_copies(
        &self,
        back: Duration,
        kept_for: Duration,
        until: Instant,
    ) -> Result<OpenCopies, LedgerError> {
        self.call(until, |connection| {
            let first = Statement::new(DIALECT.first_copy()).with(back.as_secs_f64(), Type::FLOAT8);
            let kept = Statement::new(with_most(KEPT)).with(kept_for.as_secs_f64(), Type::FLOAT8);
            let answers = connection.read(&[Statement::new(PLANS), first, kept])?;
            let [_, first, kept] = answers.as_slice() else {
                return Err(LedgerError::Broken("statements without answers".to_owned()));
            };
            let (first, reach) = overview::first_copy(only(first)?)?;
            let kept: i64 = only(kept)?.cell(0)?;
            let mut open = OpenCopies {
                reach: reach.unwrap_or(back),
                kept: kept.max(0).unsigned_abs(),
                ..OpenCopies::default()
            };
            let copies = Statement::new(with_most(OPEN)).with(first, Type::INT8);
            let answers = connection.read(&[Statement::new(PLANS), copies])?;
            answers
                .iter()
                .skip(1)
                .flatten()
                .try_for_each(|row| overview::add_open_copy(&mut open, row))?;
            Ok(open)
        })
    }

    fn hosts(&self, back: Duration, until: Instant) -> Result<Vec<HostRow>, LedgerError> {
        let sql = HOSTS.replace("{most}", &MOST_HOSTS.to_string());
        self.call(until, |connection| {
            let statement = Statement::new(&sql).with(back.as_secs_f64(), Type::FLOAT8);
            connection.query(statement)?.iter().map(overview::host_row).collect()
        })
    }

    fn note_host(&self, host: &str, version: &str, until: Instant) -> Result<(), LedgerError> {
        self.call(until, |connection| {
            let statement = Statement::new(NOTE)
                .with(text::within(host, INDEXED), Type::TEXT)
                .with(version, Type::TEXT)
                .with(SCHEMA_VERSION as i32, Type::INT4)
                .with(rows::secs(SystemTime::now()), Type::FLOAT8);
            connection.write(&[statement]).map(drop)
        })
    }
}
