//! The record of a delivery, in two round trips: the message's lock with what is known, then everything else up to
//! COMMIT. A crash before it leaves nothing, one after it a message row and leases that run out. Without the lock (a
//! fail-over lost it, say) the unique keys still hold: a second message row or copy row cannot come to be.

use std::time::{Duration, SystemTime};

use postgres::Row;
use postgres::types::Type;

use super::columns::{AttemptColumns, EndColumns, MessageColumns, cell, receipt};
use super::session::{Session, Statement};
use super::text::{INDEXED, clean};
use crate::directory::Destination;
use crate::ledger::{Attempt, AttemptEnd, Claim, CopyState, Entry, LeaseTerms, LedgerError, Recorded, SCHEMA_VERSION};
use crate::lock_key::{advisory_key, hex};
use crate::message::Identity;

/// The message, its addresses and parts, and its announcement; no row if it is on record. The columns are those of
/// [`READ_MESSAGE`].
const INSERT_MESSAGE: &str = "
WITH message AS (
    INSERT INTO onedrop_message (id_hash, digest, message_id, message_id_text, sender, subject, date, in_reply_to,
                                 reference_ids, size_bytes, raw)
    VALUES ($1, $2, $3, $4, $5, $6, to_timestamp($7), $8, $9, $10, $11)
    ON CONFLICT (id_hash, digest) DO NOTHING
    RETURNING id, recorded_at, collision
), addresses AS (
    INSERT INTO onedrop_address (message_id, position, role, name, address)
    SELECT id, position, role, name, address
    FROM message, unnest($12::text[], $13::text[], $14::text[]) WITH ORDINALITY AS a (role, name, address, position)
), parts AS (
    INSERT INTO onedrop_part (message_id, path, content_type, name, size_bytes)
    SELECT id, path, content_type, name, size
    FROM message, unnest($15::text[], $16::text[], $17::text[], $18::bigint[]) AS p (path, content_type, name, size)
    ON CONFLICT DO NOTHING
)
SELECT id, extract(epoch FROM recorded_at)::bigint, collision, pg_notify('onedrop_message', id::text) FROM message";

const MARK_COLLISIONS: &str = "
UPDATE onedrop_message SET collision = true
WHERE id_hash = $1 AND NOT collision AND EXISTS (SELECT FROM onedrop_message WHERE id_hash = $1 AND digest <> $2)";

const READ_MESSAGE: &str = "
SELECT id, extract(epoch FROM recorded_at)::bigint, collision FROM onedrop_message WHERE id_hash = $1 AND digest = $2";

const INSERT_ATTEMPT: &str = "
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid)
SELECT id, id_hash, $3, $4, $5, $6, $7 FROM onedrop_message WHERE id_hash = $1 AND digest = $2
RETURNING id";

/// Leases one copy of the message that `{message}` names, if it is free (or, $7, joins a live lease, whose epoch stays);
/// no row if it is placed or busy. `prior_doubt` keeps what the lease found, for who looks and for who gives it back.
const CLAIM: &str = "
INSERT INTO onedrop_copy AS c (message_id, account, mailbox, shared, epoch, owner, leased_until, in_doubt, prior_doubt)
SELECT m.id, $3, $4, $5, 1, $6, clock_timestamp() + $8 * interval '1 millisecond', true, false
FROM onedrop_message m WHERE {message}
ON CONFLICT (message_id, account, mailbox) DO UPDATE SET
    epoch = c.epoch + CASE WHEN $7 AND c.leased_until > clock_timestamp() THEN 0 ELSE 1 END,
    owner = excluded.owner,
    leased_until = greatest(c.leased_until, excluded.leased_until),
    prior_doubt = c.in_doubt,
    in_doubt = true
WHERE c.placed_at IS NULL AND ($7 OR c.leased_until IS NULL OR c.leased_until <= clock_timestamp())
RETURNING id, epoch, prior_doubt";

/// What stands in the way of claims that gave no row: asked for when there are any, after COMMIT.
const READ_COPIES: &str = "
SELECT c.account, c.mailbox, c.placed_at IS NOT NULL, c.uid_validity, c.uid, c.file_name
FROM onedrop_copy c JOIN unnest($2::text[], $3::text[]) AS wanted (account, mailbox) USING (account, mailbox)
WHERE c.message_id = $1";

const BY_IDENTITY: &str = "m.id_hash = $1 AND m.digest = $2";
/// $2 keeps the numbers of the other parameters where they are.
const BY_ROW: &str = "m.id = $1 AND $2::boolean";

const FINISH: &str = "
UPDATE onedrop_attempt SET duration_ms = $2, outcome = $3, status = $4, detail = $5 WHERE id = $1 RETURNING id";

const INSERT_ENDED_ATTEMPT: &str = "
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid, started_at, duration_ms,
                             outcome, status, detail)
VALUES ((SELECT id FROM onedrop_message WHERE id_hash = $1 AND digest = $2), $1, $3, $4, $5, $6, $7,
        clock_timestamp() - $8 * interval '1 millisecond', $8, $9, $10, $11)";

/// [`Ledger::record`](crate::ledger::Ledger::record).
pub(super) fn record(
    session: &mut Session,
    entry: &Entry<'_>,
    attempt: &Attempt,
    destinations: &[Destination],
    terms: LeaseTerms,
) -> Result<Recorded, LedgerError> {
    let identity = entry.identity;
    let Known { ours: known, others } = lock_message(session, identity)?;
    let (id_hash, digest) = (&identity.id_hash.as_slice(), &identity.digest.as_slice());
    let by_identity = |sql| Statement::new(sql).with(id_hash, Type::BYTEA).with(digest, Type::BYTEA);
    let message = MessageColumns::of(entry, attempt);
    let who = AttemptColumns::of(attempt);
    let claims = Claims::new(destinations, attempt, terms);
    let claim_sql = CLAIM.replace("{message}", BY_IDENTITY);

    // A server process that has just started plans for longer than it works: no statement that is not needed.
    let mut statements = Vec::with_capacity(destinations.len() + 4);
    // The bytes of a message that is on record already need not travel again.
    if !known {
        statements.push(message.bind(by_identity(INSERT_MESSAGE)));
    }
    if others && identity.message_id.is_some() {
        statements.push(by_identity(MARK_COLLISIONS));
    }
    if known || others {
        statements.push(by_identity(READ_MESSAGE));
    }
    let own = statements.len();
    statements.push(who.bind(by_identity(INSERT_ATTEMPT)));
    claims.bind(&mut statements, || by_identity(&claim_sql));
    let rows = session.commit(&statements)?;

    let is_new = !known && rows.first().is_some_and(|rows| !rows.is_empty());
    // Not inserted by us although it was not there: the lock was lost, and another has.
    let late = match is_new || known || others {
        true => Vec::new(),
        false => session.read(&[by_identity(READ_MESSAGE)])?.pop().unwrap_or_default(),
    };
    let message = if late.is_empty() { rows.get(own - 1).and_then(|rows| rows.first()) } else { late.first() };
    let (Some(message), Some(attempt)) = (message, rows.get(own).and_then(|rows| rows.first())) else {
        // Taken out between two statements of ours; nothing of this transaction refers to it.
        return Err(LedgerError::Contended);
    };
    let row: i64 = cell(message, 0)?;
    let epoch_secs: i64 = cell(message, 1)?;
    Ok(Recorded {
        message: row,
        recorded_at: SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(epoch_secs).unwrap_or(0)),
        is_new,
        collision: cell(message, 2)?,
        attempt: cell(attempt, 0)?,
        copies: claims.states(session, row, rows.get(own + 1..).unwrap_or_default())?,
    })
}

/// [`Ledger::claim`](crate::ledger::Ledger::claim).
pub(super) fn claim(
    session: &mut Session,
    message: i64,
    destinations: &[Destination],
    owner: &Attempt,
    terms: LeaseTerms,
) -> Result<Vec<CopyState>, LedgerError> {
    let claims = Claims::new(destinations, owner, terms);
    let claim_sql = CLAIM.replace("{message}", BY_ROW);
    let mut statements = Vec::with_capacity(destinations.len());
    claims.bind(&mut statements, || Statement::new(&claim_sql).with(&message, Type::INT8).with(&true, Type::BOOL));
    session.rollback()?;
    let rows = session.commit(&statements)?;
    claims.states(session, message, &rows)
}

/// [`Ledger::finish`](crate::ledger::Ledger::finish).
pub(super) fn finish(session: &mut Session, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
    let ended = EndColumns::of(end);
    session.rollback()?;
    let rows = session.commit(&[ended.bind(Statement::new(FINISH).with(&attempt, Type::INT8))])?;
    match rows.first().is_some_and(|rows| !rows.is_empty()) {
        true => Ok(()),
        false => Err(LedgerError::Broken(format!("no attempt {attempt}"))),
    }
}

/// [`Ledger::note_attempts`](crate::ledger::Ledger::note_attempts).
pub(super) fn note_attempts(
    session: &mut Session,
    identity: &Identity,
    ended: &[(Attempt, AttemptEnd)],
) -> Result<(), LedgerError> {
    let (id_hash, digest) = (&identity.id_hash.as_slice(), &identity.digest.as_slice());
    let columns: Vec<_> =
        ended.iter().map(|(attempt, end)| (AttemptColumns::of(attempt), EndColumns::of(end))).collect();
    let statements: Vec<_> = columns
        .iter()
        .map(|(who, ended)| {
            let statement = Statement::new(INSERT_ENDED_ATTEMPT).with(id_hash, Type::BYTEA).with(digest, Type::BYTEA);
            ended.bind(who.bind(statement))
        })
        .collect();
    session.rollback()?;
    session.commit(&statements).map(drop)
}

/// What is on record under a Message-ID.
struct Known {
    /// The message itself.
    ours: bool,
    /// Others with the same Message-ID.
    others: bool,
}

/// Opens the transaction and takes the message's lock, alone in its statement, so that the next one sees what its last
/// holder committed.
fn lock_message(session: &mut Session, identity: &Identity) -> Result<Known, LedgerError> {
    let sql = format!(
        "SELECT version FROM onedrop_schema; SELECT pg_try_advisory_xact_lock({}); \
         SELECT digest = '\\x{digest}' FROM onedrop_message WHERE id_hash = '\\x{}' \
         ORDER BY digest = '\\x{digest}' DESC LIMIT 2;",
        advisory_key(&identity.id_hash),
        hex(&identity.id_hash),
        digest = hex(&identity.digest),
    );
    let sets = session.begin(&sql, 3)?;
    let texts = |set: usize| sets.get(set).into_iter().flatten().filter_map(|row| row.get(0));
    // The highest one is picked here: the server would plan that for longer than it takes to send them all.
    let version = texts(0).filter_map(|version| version.parse().ok()).max().unwrap_or(0);
    let refused = match (version == SCHEMA_VERSION, texts(1).next()) {
        (false, _) => LedgerError::Version { found: version },
        (true, Some("t")) => {
            return Ok(Known { ours: texts(2).any(|same| same == "t"), others: texts(2).any(|same| same == "f") });
        }
        (true, _) => LedgerError::Contended,
    };
    session.rollback_or_lose();
    Err(refused)
}

/// The claims of one call, bound as a statement each.
struct Claims<'a> {
    destinations: &'a [Destination],
    /// Always in the same order, so that two sessions cannot lock rows crosswise.
    order: Vec<usize>,
    accounts: Vec<&'a str>,
    mailboxes: Vec<&'a str>,
    owner: String,
    join: bool,
    lease_ms: i64,
}

impl<'a> Claims<'a> {
    fn new(destinations: &'a [Destination], owner: &Attempt, terms: LeaseTerms) -> Claims<'a> {
        let mut order: Vec<usize> = (0..destinations.len()).collect();
        order.sort_by_key(|at| (&destinations[*at].account, &destinations[*at].mailbox));
        Claims {
            destinations,
            order,
            accounts: destinations.iter().map(|one| one.account.as_str()).collect(),
            mailboxes: destinations.iter().map(|one| one.mailbox.as_str()).collect(),
            owner: clean(&format!("{}:{}", owner.host, owner.pid), INDEXED).into_owned(),
            join: terms.join,
            lease_ms: i64::try_from(terms.lease.as_millis()).unwrap_or(i64::MAX),
        }
    }

    fn bind<'s>(&'s self, statements: &mut Vec<Statement<'s>>, claim: impl Fn() -> Statement<'s>) {
        for at in &self.order {
            statements.push(
                claim()
                    .with(&self.accounts[*at], Type::TEXT)
                    .with(&self.mailboxes[*at], Type::TEXT)
                    .with(&self.destinations[*at].shared, Type::BOOL)
                    .with(&self.owner, Type::TEXT)
                    .with(&self.join, Type::BOOL)
                    .with(&self.lease_ms, Type::INT8),
            );
        }
    }

    /// Reads the answers to what [`bind`](Claims::bind) made, about the message in the row `message`.
    fn states(&self, session: &mut Session, message: i64, claimed: &[Vec<Row>]) -> Result<Vec<CopyState>, LedgerError> {
        if claimed.len() != self.order.len() {
            return Err(LedgerError::Broken("a claim without an answer".to_owned()));
        }
        let copies = match claimed.iter().all(|rows| !rows.is_empty()) {
            true => Vec::new(),
            false => {
                let statement = Statement::new(READ_COPIES)
                    .with(&message, Type::INT8)
                    .with(&self.accounts, Type::TEXT_ARRAY)
                    .with(&self.mailboxes, Type::TEXT_ARRAY);
                session.read(&[statement])?.pop().unwrap_or_default()
            }
        };
        let mut states = vec![None; self.destinations.len()];
        for (at, rows) in self.order.iter().zip(claimed) {
            states[*at] = Some(match rows.first() {
                Some(row) => {
                    CopyState::Claimed(Claim { copy: cell(row, 0)?, epoch: cell(row, 1)?, in_doubt: cell(row, 2)? })
                }
                None => not_claimed(&copies, &self.destinations[*at])?,
            });
        }
        Ok(states.into_iter().flatten().collect())
    }
}

fn not_claimed(copies: &[Row], wanted: &Destination) -> Result<CopyState, LedgerError> {
    for row in copies {
        let (account, mailbox): (&str, &str) = (cell(row, 0)?, cell(row, 1)?);
        if account == wanted.account && mailbox == wanted.mailbox {
            return Ok(if cell(row, 2)? { CopyState::Placed(receipt(row, 3)?) } else { CopyState::Busy });
        }
    }
    Err(LedgerError::Broken(format!("no row for the copy {wanted}")))
}
