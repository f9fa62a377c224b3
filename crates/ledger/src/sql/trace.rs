//! What is on record about messages, as `onedrop trace` and the page of one message show it: two
//! round trips, each in a transaction that sees one state.

use std::collections::HashMap;
use std::time::{Instant, UNIX_EPOCH};

use super::{Sql, SqlSession, sql, values};
use crate::PooledLedger;
use crate::facts;
use crate::rows::{self, INDEXED, SqlRow};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    ATTEMPTS, LedgerError, OVERDUE, PLAIN_STATUS, Records, Trace, TraceAddress, TraceAttempt,
    TraceCopy, TraceFilter, TracePart, open_state, receipt_state, stored_text, wanted_hashes,
};
use onedrop_core::lock_key;
use onedrop_core::outcome::Reason;
use onedrop_core::text;

/// Bytes of a Message-ID that are shown.
const ID_BYTES: usize = 1000;

/// With further conditions, this many of the newest messages of a recipient or account are read.
const LOOKED_AT: u32 = 10_000;

/// Messages by queue id, recipient or account (?1, in lower case ?2), at most ?3 of each, or by the
/// hash of a Message-ID (?9 or ?10).
const NAMED: &str = "
WITH wanted (id) AS (
    SELECT id FROM onedrop_message
    WHERE {hashed(id_hash, ?9)} OR {hashed(id_hash, ?10)}
    UNION
    SELECT * FROM (SELECT message_id FROM onedrop_attempt
                   WHERE queue_id = ?1 AND queue_id <> '' AND message_id IS NOT NULL
                   GROUP BY message_id ORDER BY message_id DESC LIMIT ?3) queued
    UNION
    SELECT * FROM (SELECT message_id FROM onedrop_copy
                   WHERE queue_id = ?1 AND queue_id <> ''
                   ORDER BY message_id DESC LIMIT ?3) queued_once
    UNION
    SELECT * FROM (SELECT message_id FROM onedrop_attempt
                   WHERE {folded(recipient)} = {fold(?1, ?2)} AND message_id IS NOT NULL
                   GROUP BY message_id ORDER BY message_id DESC LIMIT ?3) received
    UNION
    SELECT * FROM (SELECT message_id FROM onedrop_copy
                   WHERE {folded(recipient)} = {fold(?1, ?2)}
                   ORDER BY message_id DESC LIMIT ?3) received_once
    UNION
    SELECT * FROM (SELECT message_id FROM onedrop_copy
                   WHERE account IN (?1, {fold(?1, ?2)})
                   GROUP BY message_id ORDER BY message_id DESC LIMIT ?3) placed
)";

/// The newest ?4 of those {wanted}, since ?5, that match sender (?6), subject (?7) and "not
/// everything is delivered" (?8). Without a name the index on `recorded_at` bounds the scan. Of an
/// attempt in the row of a copy that was found, a crash of the ledger may have lost the end.
const MESSAGES: &str = "
SELECT m.id, m.id_hash, m.message_id, m.digest, {iso(m.recorded_at)}, m.subject, {iso(m.date)},
       m.size_bytes, m.in_reply_to, m.reference_ids,
       m.message_id IS NOT NULL AND EXISTS (
           SELECT 1 FROM onedrop_message o
           WHERE {hashed(o.id_hash, m.id_hash)} AND o.digest <> m.digest),
       EXISTS (SELECT 1 FROM onedrop_raw r WHERE r.message_id = m.id), m.addresses, m.parts,
       m.sender
FROM {wanted}
WHERE m.recorded_at >= ?5
  AND (?6 IS NULL OR {has(m.sender, ?6)} OR {from_has(m, ?6)})
  AND (?7 IS NULL OR {has(m.subject, ?7)})
  AND (NOT ?8
       OR EXISTS (SELECT 1 FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL
                    AND (c.due_at IS NULL OR c.due_at <= {before({overdue})}))
       OR EXISTS (SELECT 1 FROM onedrop_copy a
                  WHERE a.message_id = m.id AND a.recipient IS NOT NULL AND a.attempt_ms IS NULL
                    AND NOT a.found_by_look AND NOT EXISTS (SELECT 1 FROM onedrop_attempt later
                                    WHERE later.message_id = m.id
                                      AND {folded(later.recipient)} = {folded(a.recipient)}
                                      AND later.outcome = 'delivered'))
       OR EXISTS (SELECT 1 FROM onedrop_attempt a
                  WHERE a.message_id = m.id AND coalesce(a.outcome, '') <> 'delivered'
                    AND NOT EXISTS (SELECT 1 FROM onedrop_attempt later
                                    WHERE later.message_id = m.id
                                      AND {folded(later.recipient)} = {folded(a.recipient)}
                                      AND (later.started_at > a.started_at
                                           OR later.started_at = a.started_at AND later.id > a.id)
                                      AND later.outcome = 'delivered')))
ORDER BY m.recorded_at DESC, m.id DESC LIMIT ?4";

const COPIES: &str = "
SELECT message_id, account, mailbox, placed_at IS NOT NULL,
       coalesce({lease_left(c.)} > 0, FALSE), {in_doubt}, receipt_kind, receipt,
       {iso_ms(placed_at)}, {int(epoch)}, coalesce(owner, ''), {iso_ms({lease_time})},
       nul_replaced, found_by_look,
       (SELECT why FROM onedrop_kept k
        WHERE k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL),
       {iso(due_at)}, by_sender, wrapped, recipient, {iso_ms(began_at)}, queue_id, host,
       {int(pid)}, {int(attempt_ms)}
FROM onedrop_copy c WHERE message_id IN ({ids}) ORDER BY shared, id";

/// The newest {attempts} attempts of each message, and those that recorded none, with a limit of
/// their own: for messages with the same Message-IDs and, unless one message alone is asked for,
/// {others}.
const ATTEMPTS_OF: &str = "
WITH counted AS (
    SELECT id, row_number() OVER (PARTITION BY message_id ORDER BY id DESC) AS place,
           count(*) OVER (PARTITION BY message_id) AS on_record
    FROM onedrop_attempt WHERE message_id IN ({ids})
), unrecorded AS (
    SELECT a.id, count(*) OVER (PARTITION BY a.id_hash) AS on_record
    FROM onedrop_attempt a {by}
    WHERE a.message_id IS NULL AND (a.id_hash IN ({hashes}) {others})
    ORDER BY a.id DESC LIMIT {attempts}
), shown AS (
    SELECT id, on_record FROM counted WHERE place <= {attempts}
    UNION ALL SELECT id, on_record FROM unrecorded
)
SELECT a.message_id, a.id_hash, {iso_ms(a.started_at)}, a.recipient,
       coalesce(a.sender, m.sender, ''), a.queue_id, a.host, {int(a.pid)}, {int(a.duration_ms)},
       a.outcome, a.status, a.detail, shown.on_record, a.reason
FROM shown {attempt_of(shown.id)} LEFT JOIN onedrop_message m ON m.id = a.message_id
ORDER BY a.started_at, a.id";

/// Those that match the filter, as far as attempts have what it asks for.
const OTHERS: &str = "OR {named} AND a.started_at >= ?5 AND ?7 IS NULL
    AND (NOT ?8 OR {unrecorded}) AND (?6 IS NULL OR {has(a.sender, ?6)})";

const OF_NAME: &str = "({hashed(a.id_hash, ?9)} OR {hashed(a.id_hash, ?10)}
    OR a.queue_id = ?1 OR {folded(a.recipient)} = {fold(?1, ?2)})";

/// No message has their Message-ID.
const UNRECORDED: &str =
    "NOT EXISTS (SELECT 1 FROM onedrop_message o WHERE {hashed(o.id_hash, a.id_hash)})";

impl<S: SqlSession + 'static> Records for PooledLedger<S> {
    fn trace(
        &self,
        filter: &TraceFilter<'_>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<Trace>, LedgerError> {
        self.call(until, |session| trace(session, filter, limit))
    }
}

/// [`Pages::story`](onedrop_core::ledger::Pages::story).
pub fn story<S: SqlSession>(session: &mut S, message: i64) -> Result<Option<Trace>, LedgerError> {
    let filter = TraceFilter { message: Some(message), ..TraceFilter::default() };
    Ok(trace(session, &filter, 1)?.pop())
}

fn trace<S: SqlSession>(
    session: &mut S,
    filter: &TraceFilter<'_>,
    limit: u32,
) -> Result<Vec<Trace>, LedgerError> {
    let within = |part: Option<&str>| part.map(|part| text::within(part, INDEXED).into_owned());
    let name = within(filter.name.map(str::trim));
    if filter.message.is_none() && name.as_deref() == Some("") {
        return Ok(Vec::new());
    }
    let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
    let hash = |one: Option<&[u8; 32]>| one.map(|hash| hash.to_vec());
    let TraceFilter { since, sender, subject, failed, .. } = *filter;
    let is_plain = since.is_none() && sender.is_none() && subject.is_none() && !failed;
    let since = rows::time(rows::whole_secs(since.unwrap_or(UNIX_EPOCH)));
    let values = values![
        name.clone(),
        name.as_deref().map(str::to_lowercase),
        if is_plain { limit } else { LOOKED_AT },
        limit,
        since,
        within(sender),
        within(subject),
        failed,
        hash(hashes.first()),
        hash(hashes.last()),
    ];
    let messages = MESSAGES.replace("{overdue}", &OVERDUE.as_secs().to_string());
    let messages = match (filter.message, &name) {
        (Some(message), _) => {
            let one = format!("(SELECT * FROM onedrop_message WHERE id = {message}) m");
            messages.replace("{wanted}", &one)
        }
        (None, Some(_)) => {
            format!("{NAMED}{messages}").replace("{wanted}", "wanted {message_of(wanted.id)}")
        }
        (None, None) => messages.replace("{wanted}", "onedrop_message m"),
    };
    let mut found = TraceBuilder::default();
    let messages = Sql { text: messages.into(), values: values.clone() };
    session.rows(&messages)?.iter().try_for_each(|row| found.message(row))?;
    let copies = sql!(COPIES.replace("{ids}", &found.messages()));
    let (by, others) = match (filter.message, &name) {
        // By itself SQLite takes all that recorded no message for few.
        (Some(_), _) => ("{by_hash}", String::new()),
        (None, Some(_)) => ("", OTHERS.replace("{named}", OF_NAME)),
        (None, None) => ("", OTHERS.replace("{named}", UNRECORDED)),
    };
    let attempts = ATTEMPTS_OF
        .replace("{by}", by)
        .replace("{others}", &others)
        .replace("{unrecorded}", UNRECORDED)
        .replace("{attempts}", &ATTEMPTS.to_string())
        .replace("{ids}", &found.messages())
        .replace("{hashes}", &found.hashes());
    let attempts = Sql { text: attempts.into(), values };
    let answers = SqlSession::read(session, &[copies, attempts])?;
    type Add<R> = fn(&mut TraceBuilder, &R) -> Result<(), LedgerError>;
    let adds: [Add<S::Row>; 2] = [TraceBuilder::copy, TraceBuilder::attempt];
    for (answer, add) in answers.iter().zip(adds) {
        answer.rows.iter().try_for_each(|row| add(&mut found, row))?;
    }
    Ok(found.newest_first(limit))
}

fn address(facts::Address(role, address, name): facts::Address) -> TraceAddress {
    TraceAddress { role, name, address }
}

fn part(facts::Part(path, content_type, size_bytes, name): facts::Part) -> TracePart {
    TracePart { path, content_type, name, size_bytes }
}

/// Collects traces from rows: first the messages, then what belongs to them.
#[derive(Default)]
struct TraceBuilder {
    traces: Vec<Trace>,
    /// Of the messages, by the index in `traces`.
    senders: Vec<String>,
    /// Indexes in `traces`.
    of_message: HashMap<i64, usize>,
    /// By the hash of a Message-ID, the newest message, or the attempts that recorded none.
    of_hash: HashMap<Vec<u8>, usize>,
    /// Attempts that live in copies' rows, by the index in `traces`: each is its message's first.
    first: HashMap<usize, TraceAttempt>,
    /// How many others are on record, with a message or without, by the index in `traces`.
    on_record: HashMap<(usize, bool), u64>,
}

impl TraceBuilder {
    /// The messages' row numbers, for the brackets of `IN (...)`: written out, as an engine takes
    /// a limited number of values.
    fn messages(&self) -> String {
        self.traces.iter().fold("NULL".to_owned(), |list, one| format!("{list}, {}", one.message))
    }

    /// The hashes of their Message-IDs, likewise.
    fn hashes(&self) -> String {
        self.of_hash.keys().fold("NULL".to_owned(), |list, hash| {
            format!("{list}, {{bytes({})}}", lock_key::hex(hash))
        })
    }

    /// Adds a message: id, hash of the Message-ID, Message-ID, digest, time of recording, subject,
    /// date, size, In-Reply-To, References, collision, whether its bytes are kept, addresses,
    /// parts, sender.
    fn message(&mut self, row: &impl SqlRow) -> Result<(), LedgerError> {
        self.of_message.insert(row.cell(0)?, self.traces.len());
        self.of_hash.entry(row.cell(1)?).or_insert(self.traces.len());
        let references: Option<String> = row.cell(9)?;
        self.senders.push(row.cell(14)?);
        self.traces.push(Trace {
            message: row.cell(0)?,
            message_id: row.cell::<Option<Vec<u8>>>(2)?.map(|id| text::of_bytes(&id, ID_BYTES)),
            digest: lock_key::hex(&row.cell::<Vec<u8>>(3)?),
            recorded_at: row.cell(4)?,
            subject: row.cell(5)?,
            date: row.cell(6)?,
            size_bytes: row.cell(7)?,
            in_reply_to: facts::read_in_reply_to(row.cell(8)?, references.as_deref()),
            references,
            collision: row.cell(10)?,
            raw_kept: row.cell(11)?,
            addresses: facts::read_addresses(row.cell(12)?)?.into_iter().map(address).collect(),
            parts: facts::read_parts(row.cell(13)?)?.into_iter().map(part).collect(),
            ..Trace::default()
        });
        Ok(())
    }

    /// The index of the message whose id is the row's first column.
    fn of(&self, row: &impl SqlRow) -> Result<usize, LedgerError> {
        let id: i64 = row.cell(0)?;
        self.of_message.get(&id).copied().ok_or_else(|| {
            LedgerError::Broken(format!("a row of message {id}, which was not asked for"))
        })
    }

    /// Message, account, mailbox, whether it is placed, leased, in doubt, its receipt (2), when it
    /// was placed, epoch, owner, end of the lease, the facts (2), why its bytes are kept, when
    /// it is due, whether the sender's mail program saved it, whether it is wrapped. Then of the
    /// attempt in its row: recipient (or NULL), begin, queue id, host, process id, duration (or
    /// NULL).
    fn copy(&mut self, row: &impl SqlRow) -> Result<(), LedgerError> {
        let placed = row.cell(3)?;
        // A receipt that cannot be read must not hide the copy.
        let receipt = rows::receipt(row, 6).ok();
        let due_at: Option<String> = row.cell(15)?;
        let state = match placed {
            true => receipt_state(receipt.as_ref()),
            false => open_state(row.cell(4)?, row.cell(5)?, due_at.is_some()),
        };
        let at = self.of(row)?;
        let (account, mailbox) = (row.cell(1)?, row.cell(2)?);
        let destination = Destination { account, mailbox, shared: false };
        let text = receipt.as_ref().map(|receipt| stored_text(&destination, receipt));
        let receipt =
            receipt.map_or_else(|| "not understood".to_owned(), |receipt| receipt.to_string());
        let copy = TraceCopy {
            account: destination.account,
            mailbox: destination.mailbox,
            state: state.to_owned(),
            receipt: placed.then_some(receipt),
            placed_at: row.cell(8)?,
            epoch: row.cell(9)?,
            owner: if placed { String::new() } else { row.cell(10)? },
            leased_until: row.cell(11)?,
            nul_replaced: row.cell(12)?,
            found_by_look: row.cell(13)?,
            kept: row.cell(14)?,
            due_at,
            by_sender: row.cell(16)?,
            wrapped: row.cell(17)?,
        };
        self.traces[at].copies.push(copy);
        if let Some(recipient) = row.cell(18)? {
            let duration_ms: Option<i64> = row.cell(23)?;
            let ended = |text: &str| duration_ms.map(|_| text.to_owned());
            let first = TraceAttempt {
                started_at: row.cell(19)?,
                recipient,
                sender: self.senders[at].clone(),
                queue_id: row.cell(20)?,
                host: row.cell(21)?,
                pid: row.cell(22)?,
                duration_ms,
                outcome: ended("delivered"),
                reason: ended(Reason::Delivered.word()),
                status: ended(PLAIN_STATUS),
                text: text.filter(|_| duration_ms.is_some()),
            };
            self.first.insert(at, first);
        }
        Ok(())
    }

    /// Message (or NULL), hash of its Message-ID where there is none, begin, recipient, sender,
    /// queue id, host, process id, duration, outcome, status, text; how many there are of its
    /// message, or of those without one that have its hash; reason. One without a message belongs
    /// to the newest with this Message-ID, or is shown with the others that recorded none.
    fn attempt(&mut self, row: &impl SqlRow) -> Result<(), LedgerError> {
        let attempt = TraceAttempt {
            started_at: row.cell(2)?,
            recipient: row.cell(3)?,
            sender: row.cell(4)?,
            queue_id: row.cell(5)?,
            host: row.cell(6)?,
            pid: row.cell(7)?,
            duration_ms: row.cell(8)?,
            outcome: row.cell(9)?,
            reason: row.cell(13)?,
            status: row.cell(10)?,
            text: row.cell(11)?,
        };
        let is_recorded = row.cell::<Option<i64>>(0)?.is_some();
        let at = match is_recorded {
            true => self.of(row)?,
            false => *self.of_hash.entry(row.cell(1)?).or_insert(self.traces.len()),
        };
        let on_record = u64::try_from(row.cell::<i64>(12)?).unwrap_or(0);
        self.on_record.insert((at, is_recorded), on_record);
        if at == self.traces.len() {
            let recorded_at = attempt.started_at.clone();
            self.traces.push(Trace { recorded_at, ..Trace::default() });
        }
        self.traces[at].attempts.push(attempt);
        Ok(())
    }

    /// The traces, at most `limit`. Times sort as text.
    fn newest_first(self, limit: u32) -> Vec<Trace> {
        let mut traces = self.traces;
        for (at, first) in self.first {
            traces[at].attempts_left += 1;
            if self.on_record.get(&(at, true)).is_none_or(|others| *others < ATTEMPTS as u64) {
                traces[at].attempts.insert(0, first);
            }
        }
        for ((at, _), on_record) in self.on_record {
            traces[at].attempts_left += on_record;
        }
        for trace in &mut traces {
            trace.attempts_left = trace.attempts_left.saturating_sub(trace.attempts.len() as u64);
            trace.attempts.sort_by(|a, b| a.started_at.cmp(&b.started_at));
            trace.parts.sort_by_key(|part| {
                part.path.split('.').map(|n| n.parse().unwrap_or(0)).collect::<Vec<u32>>()
            });
        }
        traces.sort_by(|a, b| b.recorded_at.cmp(&a.recorded_at).then(b.message.cmp(&a.message)));
        traces.truncate(limit as usize);
        traces
    }
}
