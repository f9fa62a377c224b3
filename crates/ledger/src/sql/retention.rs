//! The queries of `onedrop purge`, `onedrop forget` and `onedrop replay`. A delivery holds its
//! message from before it claims a copy until it commits: so a purge first locks messages, past
//! those that are held, and reads their copies in a second statement, which sees all claims that
//! were committed.

use std::time::{Duration, Instant, SystemTime};

use super::claims::ReadCopy;
use super::{Kept, Sql, SqlSession, Value, attempts, claims, first, rows_at, sql, values};
use crate::PooledLedger;
use crate::rows::{self, HAS_RAW, NEEDED_BY_SENT, SqlRow};
use onedrop_core::ledger::{
    BatchTerms, ForgetBatch, ForgetWhat, LATE, LedgerError, PurgeBatch, PurgeCursor, PurgeWhat,
    RandomValue, RawMessage, Remembered, Retention, wanted_hashes,
};
use onedrop_core::lock_key::Hash;
use onedrop_core::receipt;

/// Before any message: a time that every engine knows.
const LONG_AGO: f64 = -62_000_000_000.0;

/// The messages whose facts are erased come before this one. It is asked by itself: MariaDB reads
/// no index up to what a subquery finds.
const FIRST_WITH_FACTS: &str = "
SELECT m.id FROM onedrop_message m
WHERE m.recorded_at >= (SELECT l.facts_since FROM onedrop_ledger l)
ORDER BY m.recorded_at, m.id LIMIT 1";

/// What is old enough, after a row: its time in seconds since 1970 and its number. ?1: before
/// when; ?2, ?3: after which; ?4: at most. Of attempts also ?5: see [`FIRST_WITH_FACTS`].
pub(crate) fn old(what: PurgeWhat) -> &'static str {
    match what {
        PurgeWhat::Messages => {
            "SELECT {whole(m.recorded_at)}, m.id FROM onedrop_message m
             WHERE m.recorded_at < {at(?1)} AND m.recorded_at >= {at(?2)}
               AND (m.recorded_at > {at(?2)} OR m.id > ?3)
             ORDER BY m.recorded_at, m.id LIMIT ?4"
        }
        PurgeWhat::Facts => {
            "SELECT {whole(m.recorded_at)}, m.id FROM onedrop_message m
             WHERE m.recorded_at >= (SELECT l.facts_since FROM onedrop_ledger l)
               AND m.recorded_at < {at(?1)} AND m.recorded_at >= {at(?2)}
               AND (m.recorded_at > {at(?2)} OR m.id > ?3)
             ORDER BY m.recorded_at, m.id LIMIT ?4"
        }
        // Of messages whose facts are erased few have any left. Without the sums, SQLite would read
        // all attempts that come after the last one by their numbers.
        PurgeWhat::Attempts => {
            "SELECT {int(0)}, a.id
             FROM (SELECT n.id + 0 AS id FROM onedrop_attempt n
                   WHERE n.message_id IS NULL AND n.started_at < {at(?1)}
                   UNION ALL
                   SELECT e.id + 0 FROM onedrop_attempt e
                   WHERE e.message_id < ?5
                     AND (SELECT o.recorded_at FROM onedrop_message o WHERE o.id = e.message_id)
                         < (SELECT l.facts_since FROM onedrop_ledger l)) w
                  {attempt_of(w.id)}
             WHERE a.started_at < {at(?1)} AND a.id > ?3
             ORDER BY a.id LIMIT ?4"
        }
        PurgeWhat::Raw => "{old_raw(?1, ?3)} LIMIT ?4",
        PurgeWhat::Kept => {
            "SELECT {int(0)}, k.message_id FROM onedrop_kept k
             WHERE k.kept_at < {at(?1)} AND k.message_id > ?3
             ORDER BY k.message_id LIMIT ?4"
        }
    }
}

/// How these rows stay locked until they go.
fn lock(what: PurgeWhat) -> &'static str {
    match what {
        PurgeWhat::Messages => "{locked_or_left(m)}",
        PurgeWhat::Facts | PurgeWhat::Raw => "{locked_but_key(m)}",
        PurgeWhat::Attempts => "{locked(a)}",
        PurgeWhat::Kept => "{locked(k)}",
    }
}

/// Of `rows` those that may go, as a table and a condition. ?1: before when; ?2: seconds after a
/// lease.
fn going(what: PurgeWhat, rows: &str) -> String {
    match what {
        PurgeWhat::Messages => format!(
            "onedrop_message WHERE id IN ({rows})
             AND NOT EXISTS (SELECT 1 FROM onedrop_kept k WHERE k.message_id = onedrop_message.id)
             AND NOT EXISTS (
                 SELECT 1 FROM onedrop_copy c WHERE c.message_id = onedrop_message.id
                 AND c.placed_at IS NULL AND {{lease_left(c.)}} > -?2)"
        ),
        PurgeWhat::Kept => format!(
            "onedrop_kept WHERE message_id IN ({rows})
             AND NOT EXISTS (
                 SELECT 1 FROM onedrop_copy c WHERE c.message_id = onedrop_kept.message_id
                 AND c.shared AND c.placed_at IS NULL
                 AND ({{lease_left(c.)}} > -?2 OR c.epoch = 0 OR c.due_at > {{at(?1)}}))"
        ),
        PurgeWhat::Attempts => format!("onedrop_attempt WHERE id IN ({rows})"),
        PurgeWhat::Raw => format!("onedrop_raw WHERE message_id IN ({rows})"),
        PurgeWhat::Facts => format!("onedrop_message WHERE id IN ({rows})"),
    }
}

const NO_FACTS: &str = "sender = '', subject = NULL, date = NULL, in_reply_to = NULL,
    reference_ids = NULL, addresses = NULL, parts = NULL";

impl<S: SqlSession + 'static> Retention for PooledLedger<S> {
    fn purge(
        &self,
        what: PurgeWhat,
        older_than: Duration,
        after: Option<PurgeCursor>,
        how: BatchTerms,
        until: Instant,
    ) -> Result<PurgeBatch, LedgerError> {
        self.call(until, |session| purge(session, what, older_than, after, how))
    }

    fn note_purge(&self, until: Instant) -> Result<(), LedgerError> {
        let note = sql!("UPDATE onedrop_ledger SET purged_at = {now}");
        self.call(until, |session| session.change(&note).map(drop))
    }

    fn forget_hosts(
        &self,
        not_seen_for: Duration,
        dry_run: bool,
        until: Instant,
    ) -> Result<u64, LedgerError> {
        let statement = |what: &str| {
            let gone = format!("{what} FROM onedrop_host WHERE seen_at < {{before(?1)}}");
            sql!(gone, not_seen_for.as_secs_f64())
        };
        self.call(until, |session| match dry_run {
            true => Ok(session.rows(&statement("SELECT 1"))?.len() as u64),
            false => session.change(&statement("DELETE")),
        })
    }

    fn remembered(&self, until: Instant) -> Result<Remembered, LedgerError> {
        let query = sql!(
            "SELECT {secs(remembers_since)}, {secs({now})}, {ago(purged_at)},
                 (SELECT {secs(min(s.applied_at))} FROM onedrop_schema s)
             FROM onedrop_ledger"
        );
        self.call(until, |session| {
            rows::remembered(session.rows(&query)?.first().ok_or_else(rows::no_ledger)?)
        })
    }

    fn be_first(&self, until: Instant) -> Result<bool, LedgerError> {
        let since_ever = sql!(
            "UPDATE onedrop_ledger SET remembers_since = {at(?1)}
             WHERE remembers_since > {at(?1)} AND purged_at IS NULL
               AND NOT EXISTS (SELECT 1 FROM onedrop_message)",
            0.0,
        );
        let is_new = sql!(
            "SELECT purged_at IS NULL AND NOT EXISTS (SELECT 1 FROM onedrop_message)
             FROM onedrop_ledger"
        );
        self.call(until, |session| {
            // It may have been said before.
            let is_first = session.change(&since_ever)? > 0;
            Ok(is_first || session.value::<bool>(&is_new)? == Some(true))
        })
    }

    fn forget(
        &self,
        what: ForgetWhat<'_>,
        after: i64,
        how: BatchTerms,
        until: Instant,
    ) -> Result<ForgetBatch, LedgerError> {
        self.call_once(until, |session| forget(session, what, after, how))
    }

    fn next_raw(
        &self,
        since: SystemTime,
        after: i64,
        until: Instant,
    ) -> Result<Option<RawMessage>, LedgerError> {
        self.call(until, |session| next_raw(session, since, after))
    }
}

fn purge<S: SqlSession>(
    session: &mut S,
    what: PurgeWhat,
    older_than: Duration,
    after: Option<PurgeCursor>,
    BatchTerms { limit, dry_run }: BatchTerms,
) -> Result<PurgeBatch, LedgerError> {
    // One reading of the clock: what is moved on says of the same messages.
    let now = session.value::<f64>(&sql!("SELECT {secs({now})}"))?.unwrap_or_default();
    let before = (now - older_than.as_secs_f64()).max(LONG_AGO);
    let after = after.unwrap_or(PurgeCursor { secs: -1, row: 0 });
    let lock = if dry_run { "" } else { lock(what) };
    let text = format!("{} {lock}", old(what));
    let mut find = sql!(text, before, after.secs as f64, after.row, limit);
    if what == PurgeWhat::Attempts {
        let first = session.value::<i64>(&sql!(FIRST_WITH_FACTS))?;
        find.values.push(first.unwrap_or(i64::MAX).into());
    }
    let answers = session.begin(&[find])?;
    let cursor = |row: &S::Row| Ok(PurgeCursor { secs: row.cell(0)?, row: row.cell(1)? });
    let old = rows_at(&answers, 0).iter().map(cursor);
    let old = old.collect::<Result<Vec<PurgeCursor>, LedgerError>>()?;
    let next = old.last().copied().filter(|_| old.len() == limit as usize);
    let of_them = |text: &dyn Fn(&str) -> String| {
        let mut values = values![before, LATE.as_secs_f64()];
        let rows = Sql::list(&mut values, old.iter().map(|one| one.row));
        Sql { text: text(&rows).into(), values }
    };
    let count = || {
        // A message's bytes may stand in several rows.
        let counted = if what == PurgeWhat::Raw { "DISTINCT message_id" } else { "*" };
        of_them(&|rows| format!("SELECT count({counted}) FROM {}", going(what, rows)))
    };
    let delete = || of_them(&|rows| format!("DELETE FROM {}", going(what, rows)));
    let mut statements = match what {
        _ if dry_run => vec![count()],
        PurgeWhat::Messages | PurgeWhat::Attempts | PurgeWhat::Kept => vec![delete()],
        PurgeWhat::Raw => vec![count(), delete()],
        PurgeWhat::Facts => vec![
            of_them(&|rows| format!("UPDATE onedrop_message SET {NO_FACTS} WHERE id IN ({rows})")),
            of_them(&attempts::erased),
            of_them(&|rows| {
                format!(
                    "DELETE FROM onedrop_attempt
                     WHERE message_id IN ({rows}) AND started_at < {{at(?1)}}"
                )
            }),
        ],
    };
    let to = match (what, next) {
        (PurgeWhat::Facts, Some(next)) => next.secs as f64,
        _ => before,
    };
    let moves_on = match what {
        PurgeWhat::Messages => Some("remembers_since"),
        PurgeWhat::Facts => Some("facts_since"),
        PurgeWhat::Attempts | PurgeWhat::Raw | PurgeWhat::Kept => None,
    };
    statements.extend(moves_on.filter(|_| !dry_run).map(|column| {
        let sql = "UPDATE onedrop_ledger SET {column} = {at(?1)} WHERE {column} < {at(?1)}";
        sql!(sql.replace("{column}", column), to)
    }));
    let answers = SqlSession::commit(session, &statements)?;
    let counted = first::<i64, _>(&answers, 0)?.map(|count| count.max(0).unsigned_abs());
    let gone = counted.or_else(|| answers.first().map(|answer| answer.count)).unwrap_or(0);
    Ok(PurgeBatch { gone, passed_by: (old.len() as u64).saturating_sub(gone), next })
}

/// The copies that are wanted, after the copy ?1, at most ?2. ?3: seconds after a lease; ?4,
/// ?5: what is wanted.
pub(crate) fn to_forget(what: ForgetWhat<'_>) -> String {
    // That a copy stands elsewhere is decided once for a message: the row of that place is
    // forgotten, and with this one as well there would be two copies.
    let is_here = format!("coalesce(c.receipt_kind, '') <> '{}'", receipt::ELSEWHERE);
    let (wanted, needed) = match what {
        ForgetWhat::Message(_) => (
            format!("({{hashed(m.id_hash, ?4)}} OR {{hashed(m.id_hash, ?5)}}) AND {is_here}"),
            "FALSE",
        ),
        ForgetWhat::Since(_) => (format!("c.placed_at >= ?4 AND {is_here}"), "FALSE"),
        ForgetWhat::Account(_) => ("c.account = ?4".to_owned(), NEEDED_BY_SENT),
    };
    format!(
        "SELECT c.id, c.message_id, m.message_id, c.account, c.mailbox, c.shared,
             c.placed_at IS NULL AND coalesce({{lease_left(c.)}} > -?3, FALSE), {needed}, {HAS_RAW}
         FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
         WHERE c.id > ?1 AND {wanted} ORDER BY c.id LIMIT ?2"
    )
}

fn forget<S: SqlSession>(
    session: &mut S,
    what: ForgetWhat<'_>,
    after: i64,
    BatchTerms { limit, dry_run }: BatchTerms,
) -> Result<ForgetBatch, LedgerError> {
    let lock = match what {
        _ if dry_run => "",
        ForgetWhat::Message(_) | ForgetWhat::Since(_) => "{locked(c)}",
        // No delivery claims a new copy of these messages before it is known that they look back.
        ForgetWhat::Account(_) => "{locked(m, c)}",
    };
    let mut find = sql!(format!("{} {lock}", to_forget(what)), after, limit, LATE.as_secs_f64());
    match what {
        ForgetWhat::Message(name) => {
            let hashes = wanted_hashes(name);
            let of = |hash: Option<&Hash>| Value::from(hash.map(|hash| hash.to_vec()));
            find.values.extend([of(hashes.first()), of(hashes.last())]);
        }
        ForgetWhat::Since(since) => find.values.push(since.into()),
        ForgetWhat::Account(account) => find.values.push(account.into()),
    }
    let answers = session.begin(&[find])?;
    let found = rows_at(&answers, 0);
    let (mut copies, mut numbers, mut messages) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for row in found {
        let one = rows::forgotten(row, 2)?;
        last = Some(row.cell::<i64>(0)?);
        if one.passed_by.is_none() {
            numbers.push(row.cell::<i64>(0)?);
            messages.push(row.cell::<i64>(1)?);
        }
        copies.push(one);
    }
    let next = last.filter(|_| found.len() == limit as usize);
    let statements = match what {
        _ if dry_run || numbers.is_empty() => Vec::new(),
        ForgetWhat::Account(_) => erase(&messages, &numbers),
        ForgetWhat::Message(_) | ForgetWhat::Since(_) => {
            let read = session.go_on(&[claims::read_numbers(numbers.iter().copied())])?;
            let read = claims::all_claimed(&read)?;
            let forget = |copy| claims::forget(copy, RandomValue::default());
            let end = |copy: &ReadCopy| {
                let receipt = copy.row.receipt.as_ref()?;
                Some(attempts::kept_end(copy.number, &copy.destination, receipt))
            };
            let ends = read.iter().filter_map(end).flatten();
            ends.chain(read.iter().map(forget)).collect()
        }
    };
    SqlSession::commit(session, &statements)?;
    Ok(ForgetBatch { copies, next })
}

/// Nothing stays of the messages but their hashes and their times.
fn erase(messages: &[i64], copies: &[i64]) -> Vec<Sql<'static>> {
    vec![
        of_rows("DELETE FROM onedrop_copy WHERE id IN ({rows})", copies),
        of_rows(
            "DELETE FROM onedrop_kept WHERE message_id IN ({rows})
             AND NOT EXISTS (SELECT 1 FROM onedrop_copy c
                 WHERE c.message_id = onedrop_kept.message_id AND c.shared
                   AND c.placed_at IS NULL)",
            messages,
        ),
        // One that gets a row of its own meanwhile has its copy locked.
        of_rows(&attempts::erased("{rows}"), messages),
        of_rows("DELETE FROM onedrop_attempt WHERE message_id IN ({rows})", messages),
        of_rows("DELETE FROM onedrop_raw WHERE message_id IN ({rows})", messages),
        of_rows(
            &format!(
                "UPDATE onedrop_message SET message_id = NULL, looks_back = TRUE, {NO_FACTS}
                 WHERE id IN ({{rows}})"
            ),
            messages,
        ),
    ]
}

/// A statement with the numbers of rows in the place of `{rows}`.
fn of_rows(text: &str, rows: &[i64]) -> Sql<'static> {
    let mut values = Vec::new();
    let places = Sql::list(&mut values, rows.iter().copied());
    Sql { text: text.replace("{rows}", &places).into(), values }
}

/// The next message with its bytes; one that a purge takes out meanwhile is passed by.
fn next_raw<S: SqlSession>(
    session: &mut S,
    since: SystemTime,
    mut after: i64,
) -> Result<Option<RawMessage>, LedgerError> {
    // Messages are recorded at whole seconds.
    let since = rows::time(rows::whole_secs(since));
    loop {
        let next = sql!(
            "SELECT m.id, m.message_id, m.id_hash, m.digest, {whole(m.recorded_at)}, m.sender
             FROM onedrop_raw r JOIN onedrop_message m ON m.id = r.message_id
             WHERE r.message_id > ?1 AND m.recorded_at >= ?2
             ORDER BY r.message_id LIMIT 1",
            after,
            since,
        );
        let rows = session.rows(&next)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let message = rows::raw_message(row)?;
        after = message.message;
        let Some(bytes) = session.bytes_of(after, Kept::Raw)? else { continue };
        let copies = sql!(
            "SELECT account, mailbox, shared, placed_at IS NOT NULL, receipt_kind, receipt
             FROM onedrop_copy WHERE message_id = ?1 ORDER BY id",
            after,
        );
        let copies = session.rows(&copies)?;
        let copies = copies.iter().map(rows::raw_copy).collect::<Result<_, _>>()?;
        return Ok(Some(RawMessage { bytes, copies, ..message }));
    }
}
