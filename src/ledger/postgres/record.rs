//! The record of a delivery, in one round trip: the function `onedrop_record` does it all, from the message's lock to the
//! claims. A crash before its commit leaves nothing, one after it a message row and leases that run out. Without the lock
//! (a fail-over lost it, say) the unique keys still hold: a second message row or copy row cannot come to be.

use std::time::{Duration, SystemTime};

use postgres::Row;
use postgres::types::{FromSql, Type};

use super::columns::{AttemptColumns, EndColumns, MessageColumns, cell, receipt};
use super::schema;
use super::session::{Session, Statement};
use super::text::{INDEXED, clean};
use crate::directory::Destination;
use crate::ledger::{Attempt, AttemptEnd, Claim, CopyState, Entry, LeaseTerms, LedgerError, Recorded, SCHEMA_VERSION};
use crate::lock_key::advisory_key;
use crate::message::Identity;

/// The parameters in their order: [`Session::patience_ms`], the version, the lock; the message (its two hashes
/// and 18); the attempt (5); the claims (6).
const RECORD: &str = "
SELECT * FROM onedrop_record($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
                             $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34)";

const CLAIMS: &str = "SELECT * FROM onedrop_claims($1, $2, $3, $4, $5, $6, $7, $8)";

/// SQLSTATE undefined_function.
const NO_FUNCTION: &str = "42883";

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
    let columns = RecordColumns {
        identity: entry.identity,
        message: MessageColumns::of(entry, attempt),
        who: AttemptColumns::of(attempt),
        claims: Claims::new(destinations, attempt, terms),
    };
    // The bytes of a message that is on record already need not travel again.
    let mut rows = match columns.call(session, entry.raw.is_some(), None) {
        Err(LedgerError::Refused(why)) if why.starts_with(NO_FUNCTION) => {
            // An older schema has no functions.
            let found = schema::version(session)?;
            return Err(if found == SCHEMA_VERSION {
                LedgerError::Refused(why)
            } else {
                LedgerError::Version { found }
            });
        }
        rows => rows?,
    };
    if first(&rows, 2)? == Some(true) {
        rows = columns.call(session, true, entry.raw)?;
    }
    let found = first::<i32>(&rows, 0)?.map_or(0, i64::from);
    if found != SCHEMA_VERSION {
        return Err(LedgerError::Version { found });
    }
    if first(&rows, 1)? != Some(true) {
        return Err(LedgerError::Contended);
    }
    let row = rows.first().ok_or_else(no_row)?;
    let epoch_secs: i64 = cell(row, 4)?;
    Ok(Recorded {
        message: cell(row, 3)?,
        recorded_at: SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(epoch_secs).unwrap_or(0)),
        is_new: cell(row, 5)?,
        collision: cell(row, 6)?,
        attempt: cell(row, 7)?,
        copies: match destinations.is_empty() {
            true => Vec::new(),
            false => columns.claims.states(&rows, 8)?,
        },
    })
}

fn no_row() -> LedgerError {
    LedgerError::Broken("a function without an answer".to_owned())
}

/// A column of the first row, where it has a value.
fn first<'r, T: FromSql<'r>>(rows: &'r [Row], at: usize) -> Result<Option<T>, LedgerError> {
    cell(rows.first().ok_or_else(no_row)?, at)
}

struct RecordColumns<'a> {
    identity: &'a Identity,
    message: MessageColumns<'a>,
    who: AttemptColumns,
    claims: Claims<'a>,
}

impl RecordColumns<'_> {
    fn call(&self, session: &mut Session, keeps_raw: bool, raw: Option<&[u8]>) -> Result<Vec<Row>, LedgerError> {
        let (id_hash, digest) = (&self.identity.id_hash.as_slice(), &self.identity.digest.as_slice());
        let (patience, lock) = (session.patience_ms(), advisory_key(&self.identity.id_hash));
        let version = i32::try_from(SCHEMA_VERSION).unwrap_or(i32::MAX);
        let statement = Statement::kept(RECORD)
            .with(&patience, Type::INT8)
            .with(&version, Type::INT4)
            .with(&lock, Type::INT8)
            .with(id_hash, Type::BYTEA)
            .with(digest, Type::BYTEA);
        let statement = self.message.bind(statement, &keeps_raw, &raw);
        session.call(&self.claims.bind(self.who.bind(statement)))
    }
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
    let patience = session.patience_ms();
    let statement = Statement::kept(CLAIMS).with(&patience, Type::INT8).with(&message, Type::INT8);
    let rows = session.call(&claims.bind(statement))?;
    claims.states(&rows, 0)
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

/// The claims of one call: six columns.
struct Claims<'a> {
    /// For each row its destination's place. Always in the same order, so that two sessions cannot lock rows crosswise.
    order: Vec<usize>,
    accounts: Vec<&'a str>,
    mailboxes: Vec<&'a str>,
    shared: Vec<bool>,
    owner: String,
    join: bool,
    lease_ms: i64,
}

impl<'a> Claims<'a> {
    fn new(destinations: &'a [Destination], owner: &Attempt, terms: LeaseTerms) -> Claims<'a> {
        let mut order: Vec<usize> = (0..destinations.len()).collect();
        order.sort_by_key(|at| (&destinations[*at].account, &destinations[*at].mailbox));
        let ordered = || order.iter().map(|at| &destinations[*at]);
        Claims {
            accounts: ordered().map(|one| one.account.as_str()).collect(),
            mailboxes: ordered().map(|one| one.mailbox.as_str()).collect(),
            shared: ordered().map(|one| one.shared).collect(),
            owner: clean(&format!("{}:{}", owner.host, owner.pid), INDEXED).into_owned(),
            join: terms.join,
            lease_ms: i64::try_from(terms.lease.as_millis()).unwrap_or(i64::MAX),
            order,
        }
    }

    fn bind<'s>(&'s self, statement: Statement<'s>) -> Statement<'s> {
        statement
            .with(&self.accounts, Type::TEXT_ARRAY)
            .with(&self.mailboxes, Type::TEXT_ARRAY)
            .with(&self.shared, Type::BOOL_ARRAY)
            .with(&self.owner, Type::TEXT)
            .with(&self.join, Type::BOOL)
            .with(&self.lease_ms, Type::INT8)
    }

    /// Reads the answers, whose columns begin at `at`: the copy, whether it is claimed, epoch, doubt; whether it is placed,
    /// the receipt.
    fn states(&self, rows: &[Row], at: usize) -> Result<Vec<CopyState>, LedgerError> {
        if rows.len() != self.order.len() {
            return Err(LedgerError::Broken(format!("{} claims, {} answers", self.order.len(), rows.len())));
        }
        let mut states = vec![None; rows.len()];
        for (place, row) in self.order.iter().zip(rows) {
            states[*place] = Some(match (cell(row, at + 1)?, cell(row, at + 4)?) {
                (true, _) => CopyState::Claimed(Claim {
                    copy: cell(row, at)?,
                    epoch: cell(row, at + 2)?,
                    in_doubt: cell(row, at + 3)?,
                }),
                (false, Some(true)) => CopyState::Placed(receipt(row, at + 5)?),
                (false, Some(false)) => CopyState::Busy,
                // Taken out in this very moment.
                (false, None) => return Err(LedgerError::Contended),
            });
        }
        Ok(states.into_iter().flatten().collect())
    }
}
