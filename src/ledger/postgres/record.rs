//! The record of a delivery, in one round trip: the function `onedrop_record` does everything from
//! the message's lock to the claims (`together` calls it). A crash before its commit leaves
//! nothing, a crash after it a message row and leases that run out. If the lock is lost, for
//! example in a fail-over, unique keys still prevent a second row of a message or copy.

use std::time::{Duration, SystemTime};

use postgres::Row;
use postgres::types::Type;

use super::columns::INDEXED;
use super::columns::{AttemptColumns, EndColumns, MessageColumns, cell, receipt, value};
use super::connection::{Connection, Statement};
use crate::directory::Destination;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, CopyState, LeaseTerms, LedgerError, Recorded, SCHEMA_VERSION,
    ToRecord,
};
use crate::lock_key::advisory_key;
use crate::message::Identity;
use crate::text;

/// The parameters of `onedrop_record`: [`Connection::patience_ms`], the version, the lock; the
/// message (its two hashes and 19); the attempt (5); the claims (7).
pub(super) const PARAMETERS: usize = 36;

const CLAIMS: &str = "SELECT * FROM onedrop_claims($1, $2, $3, $4, $5, $6, $7, $8, $9)";

const VERSION: i32 = SCHEMA_VERSION as i32;

const FINISH: &str = "
UPDATE onedrop_attempt SET duration_ms = $2, outcome = $3, status = $4, detail = $5 WHERE id = $1
RETURNING id";

const INSERT_ENDED_ATTEMPT: &str = "
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid,
                             started_at, duration_ms,
                             outcome, status, detail)
VALUES ((SELECT id FROM onedrop_message WHERE id_hash = $1 AND digest = $2), $1, $3, $4, $5, $6, $7,
        clock_timestamp() - $8 * interval '1 millisecond', $8, $9, $10, $11)";

/// The result of `onedrop_record` for one message.
pub(super) enum RecordResult {
    Recorded(Recorded),
    WantsRaw,
}

/// One record's parameters, except the first.
pub(super) struct RecordColumns<'a> {
    identity: [&'a [u8]; 2],
    lock: i64,
    message: MessageColumns<'a>,
    raw: [Option<&'a [u8]>; 2],
    keeps_raw: bool,
    who: AttemptColumns,
    claims: Claims<'a>,
}

impl<'a> RecordColumns<'a> {
    pub fn of(one: &ToRecord<'a>) -> RecordColumns<'a> {
        let identity = one.entry.identity;
        RecordColumns {
            identity: [&identity.id_hash, &identity.digest],
            lock: advisory_key(&identity.id_hash),
            message: MessageColumns::of(&one.entry, one.attempt),
            raw: [None, one.entry.raw],
            keeps_raw: one.entry.raw.is_some(),
            who: AttemptColumns::of(one.attempt),
            claims: Claims::new(one.destinations, one.attempt, one.terms),
        }
    }

    /// `with_raw`: sends the bytes, if they are to be kept.
    pub fn bind<'s>(&'s self, statement: Statement<'s>, with_raw: bool) -> Statement<'s> {
        let statement = statement.with(&VERSION, Type::INT4);
        let [id_hash, digest] = &self.identity;
        let statement = statement
            .with(&self.lock, Type::INT8)
            .with(id_hash, Type::BYTEA)
            .with(digest, Type::BYTEA);
        let statement =
            self.message.bind(statement, &self.keeps_raw, &self.raw[usize::from(with_raw)]);
        self.claims.bind(self.who.bind(statement))
    }

    pub fn answer(&self, rows: &[Row]) -> Result<RecordResult, LedgerError> {
        let row = rows
            .first()
            .ok_or_else(|| LedgerError::Broken("a record without an answer".to_owned()))?;
        let found = cell::<Option<i32>>(row, 1)?.map_or(0, i64::from);
        if found != SCHEMA_VERSION {
            return Err(LedgerError::Version { found });
        }
        if cell::<Option<bool>>(row, 2)? != Some(true) {
            return Err(LedgerError::Contended);
        }
        if cell::<Option<bool>>(row, 3)? == Some(true) {
            return Ok(RecordResult::WantsRaw);
        }
        let epoch_secs: i64 = cell(row, 5)?;
        Ok(RecordResult::Recorded(Recorded {
            message: cell(row, 4)?,
            recorded_at: SystemTime::UNIX_EPOCH
                + Duration::from_secs(u64::try_from(epoch_secs).unwrap_or(0)),
            is_new: cell(row, 6)?,
            collision: cell(row, 7)?,
            attempt: cell(row, 8)?,
            copies: match self.claims.order.is_empty() {
                true => Vec::new(),
                false => self.claims.states(rows, 9)?,
            },
        }))
    }
}

/// [`Ledger::claim`](crate::ledger::Ledger::claim).
pub(super) fn claim(
    connection: &mut Connection,
    message: i64,
    destinations: &[Destination],
    owner: &Attempt,
    terms: LeaseTerms,
) -> Result<Vec<CopyState>, LedgerError> {
    let claims = Claims::new(destinations, owner, terms);
    let patience = connection.patience_ms();
    let statement = Statement::kept(CLAIMS).with(&patience, Type::INT8).with(&message, Type::INT8);
    let rows = connection.call(&claims.bind(statement))?;
    claims.states(&rows, 0)
}

/// [`Ledger::finish`](crate::ledger::Ledger::finish).
pub(super) fn finish(
    connection: &mut Connection,
    attempt: i64,
    end: &AttemptEnd,
) -> Result<(), LedgerError> {
    let ended = EndColumns::of(end);
    connection.rollback()?;
    let rows =
        connection.commit(&[ended.bind(Statement::new(FINISH).with(&attempt, Type::INT8))])?;
    match rows.first().is_some_and(|rows| !rows.is_empty()) {
        true => Ok(()),
        false => Err(LedgerError::Broken(format!("no attempt {attempt}"))),
    }
}

/// [`Ledger::note_attempts`](crate::ledger::Ledger::note_attempts).
pub(super) fn note_attempts(
    connection: &mut Connection,
    identity: &Identity,
    ended: &[(Attempt, AttemptEnd)],
) -> Result<(), LedgerError> {
    let (id_hash, digest) = (&identity.id_hash.as_slice(), &identity.digest.as_slice());
    let columns: Vec<_> = ended
        .iter()
        .map(|(attempt, end)| (AttemptColumns::of(attempt), EndColumns::of(end)))
        .collect();
    let statements: Vec<_> = columns
        .iter()
        .map(|(who, ended)| {
            let statement = Statement::new(INSERT_ENDED_ATTEMPT)
                .with(id_hash, Type::BYTEA)
                .with(digest, Type::BYTEA);
            ended.bind(who.bind(statement))
        })
        .collect();
    connection.rollback()?;
    connection.commit(&statements).map(drop)
}

/// The claims of one call: seven columns.
struct Claims<'a> {
    /// The destination's index for each row, sorted so that all sessions lock rows in the same
    /// order.
    order: Vec<usize>,
    accounts: Vec<&'a str>,
    mailboxes: Vec<&'a str>,
    shared: Vec<bool>,
    owner: String,
    value: &'a [u8],
    join: bool,
    lease_ms: i64,
}

impl<'a> Claims<'a> {
    fn new(destinations: &'a [Destination], owner: &'a Attempt, terms: LeaseTerms) -> Claims<'a> {
        let mut order: Vec<usize> = (0..destinations.len()).collect();
        order.sort_by_key(|at| (&destinations[*at].account, &destinations[*at].mailbox));
        let ordered = || order.iter().map(|at| &destinations[*at]);
        Claims {
            accounts: ordered().map(|one| one.account.as_str()).collect(),
            mailboxes: ordered().map(|one| one.mailbox.as_str()).collect(),
            shared: ordered().map(|one| one.shared).collect(),
            owner: text::within(&format!("{}:{}", owner.host, owner.pid), INDEXED).into_owned(),
            value: owner.value.bytes(),
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
            .with(&self.value, Type::BYTEA)
            .with(&self.join, Type::BOOL)
            .with(&self.lease_ms, Type::INT8)
    }

    /// Reads the rows, whose columns from `at` on are: copy, claimed, epoch, doubt, placed,
    /// receipt, random value.
    fn states(&self, rows: &[Row], at: usize) -> Result<Vec<CopyState>, LedgerError> {
        if rows.len() != self.order.len() {
            return Err(LedgerError::Broken(format!(
                "{} claims, {} answers",
                self.order.len(),
                rows.len()
            )));
        }
        let mut states = vec![None; rows.len()];
        for (place, row) in self.order.iter().zip(rows) {
            states[*place] = Some(match (cell(row, at + 1)?, cell(row, at + 4)?) {
                (true, _) => CopyState::Claimed(Claim {
                    copy: cell(row, at)?,
                    value: value(row, at + 8)?,
                    epoch: cell(row, at + 2)?,
                    in_doubt: cell(row, at + 3)?,
                }),
                (false, Some(true)) => CopyState::Placed(receipt(row, at + 5)?),
                (false, Some(false)) => CopyState::Busy,
                // The row was deleted at this moment.
                (false, None) => return Err(LedgerError::Contended),
            });
        }
        Ok(states.into_iter().flatten().collect())
    }
}
