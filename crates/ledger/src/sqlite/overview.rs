//! The queries of `onedrop status`, and the rows of hosts: by row numbers, and by the index of the
//! times when messages were recorded.

use std::time::{Duration, Instant};

use rusqlite::params;

use super::Classified;
use super::copies::copys_lease_end;
use super::{SqliteLedger, read};
use crate::doubts;
use crate::overview::{self, Dialect, only};
use crate::rows::{self, SqlRow};
use onedrop_core::ledger::{
    HostRow, LedgerError, OpenCopies, Overview, RecentAttempts, SCHEMA_VERSION,
};
use onedrop_core::ledger::{MOST_HOSTS, MOST_OPEN};

/// ?1: seconds, ?2: now.
const DIALECT: Dialect =
    Dialect { middle: "((low + high) / 2)", then: "?2 - ?1", ago: "(?2 - {})", now: "?2" };

const HOSTS_OF: &str =
    "SELECT host, count(*) FROM onedrop_attempt WHERE id >= ?1 GROUP BY host ORDER BY host";

/// ?2: now, ?3 and ?4: the boot's clock.
const OPEN: &str = "
SELECT leased_until IS NULL, ?2 - m.recorded_at FROM (
    SELECT * FROM (SELECT c.message_id, c.leased_until FROM onedrop_copy c
                   WHERE c.id >= ?1 AND {open} LIMIT {most})
    UNION ALL
    SELECT * FROM (SELECT c.message_id, c.leased_until
                   FROM onedrop_unsettled u CROSS JOIN onedrop_copy c ON c.id = u.copy_id
                   WHERE u.copy_id < ?1 AND {open} LIMIT {most})
) o CROSS JOIN onedrop_message m ON m.id = o.message_id";

const IS_OPEN: &str = "c.placed_at IS NULL AND {in_doubt} AND c.due_at IS NULL
    AND (c.leased_until IS NULL OR {lease_end} <= ?3)";

const KEPT: &str = "
SELECT count(*) FROM (SELECT 1 FROM onedrop_kept k
    WHERE k.kept_at <= ?2 - ?1
      AND EXISTS (SELECT 1 FROM onedrop_copy c
                  WHERE c.message_id = k.message_id AND c.shared AND c.placed_at IS NULL
                    AND (c.due_at IS NULL OR c.due_at <= ?2 - ?1))
    LIMIT {most})";

const HOSTS: &str = "
SELECT host, program_version, schema_version, ?2 - seen_at, clock_offset_ms
FROM onedrop_host WHERE seen_at >= ?2 - ?1 ORDER BY host LIMIT {most}";

const NOTE: &str = "
INSERT INTO onedrop_host (host, program_version, schema_version, seen_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET program_version = excluded.program_version,
    schema_version = excluded.schema_version, seen_at = excluded.seen_at";

/// As `onedrop status` asks.
pub(super) fn open_copies() -> String {
    let is_open = IS_OPEN
        .replace("{in_doubt}", doubts::IN_DOUBT)
        .replace("{lease_end}", &copys_lease_end("c.", "?3", "?4"));
    OPEN.replace("{open}", &is_open).replace("{most}", &MOST_OPEN.to_string())
}

/// The others.
pub(super) fn others() -> [String; 6] {
    let most = |sql: &str| sql.replace("{most}", &MOST_OPEN.to_string());
    [
        DIALECT.first_attempt(),
        overview::COUNTS.replace("{attempt}", "?1").replace("{message}", "?2"),
        HOSTS_OF.to_owned(),
        DIALECT.first_copy(),
        most(KEPT),
        overview::first_message(DIALECT.then),
    ]
}

impl Overview for SqliteLedger {
    fn recent_attempts(
        &self,
        back: Duration,
        until: Instant,
    ) -> Result<RecentAttempts, LedgerError> {
        let [first_attempt, counts_sql, _, _, _, first_message] = others();
        self.call(until, |session| {
            let (secs, ledger) = (rows::secs(session.clocks.wall()), &session.connection);
            let wanted = params![back.as_secs_f64(), secs];
            let first = read(ledger, &first_attempt, wanted, |row| overview::first_attempt(row))?;
            let (now, first, reach) = *only(&first)?;
            let reach = reach.unwrap_or(back);
            let (mut counts, mut hosts) = (Vec::new(), Vec::new());
            if let Some(first) = first {
                let wanted = params![reach.as_secs_f64(), secs];
                let message = read(ledger, &first_message, wanted, |row| row.cell(0))?;
                let message = only::<Option<i64>>(&message)?.unwrap_or(i64::MAX);
                let wanted = params![first, message];
                counts = read(ledger, &counts_sql, wanted, |row| overview::attempt_count(row))?;
                counts = overview::counted(counts);
                hosts = read(ledger, HOSTS_OF, [first], |row| overview::host_count(row))?;
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
        let [_, _, _, first_copy, kept, _] = others();
        self.call(until, |session| {
            let (now, ledger) = (rows::secs(session.clocks.wall()), &session.connection);
            let wanted = params![back.as_secs_f64(), now];
            let first = read(ledger, &first_copy, wanted, |row| overview::first_copy(row))?;
            let (first, reach) = *only(&first)?;
            let wanted = params![kept_for.as_secs_f64(), now];
            let kept = read(ledger, &kept, wanted, |row| row.cell::<i64>(0))?;
            let kept = only(&kept)?.max(&0).unsigned_abs();
            let reach = reach.unwrap_or(back);
            let mut open = OpenCopies { reach, kept, ..OpenCopies::default() };
            let boot = session.clocks.boot()?;
            let wanted = params![first, now, boot.secs, boot.id];
            read(ledger, &open_copies(), wanted, |row| overview::add_open_copy(&mut open, row))?;
            Ok(open)
        })
    }

    fn hosts(&self, back: Duration, until: Instant) -> Result<Vec<HostRow>, LedgerError> {
        let sql = HOSTS.replace("{most}", &MOST_HOSTS.to_string());
        self.call(until, |session| {
            let now = rows::secs(session.clocks.wall());
            let wanted = params![back.as_secs_f64(), now];
            read(&session.connection, &sql, wanted, |row| overview::host_row(row))
        })
    }

    fn note_host(&self, host: &str, version: &str, until: Instant) -> Result<(), LedgerError> {
        let note = |tx: &rusqlite::Connection, now| {
            tx.execute(NOTE, params![host, version, SCHEMA_VERSION, now]).classified()?;
            Ok(())
        };
        // Said again in a minute.
        self.call(until, |session| session.write_unsynced(note))
    }
}
