//! Claims on copies, and the turn. What is decided is decided here, on rows that a locking read
//! holds until the transaction ends. A copy that was leased before, or begins in doubt, goes to
//! `onedrop_unsettled`: it has to be looked at again once its lease is over, however old it is.

use std::collections::HashMap;
use std::time::Duration;

use mysql_async::Row;

use super::attempts::INDEXED;
use super::connection::{MariadbSession, first, rows_at};
use super::errors::is_duplicate;
use super::statement::{SqlBatch, Value, list, values};
use crate::rows::{self, SqlRow};
use crate::session::SessionTurn;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{Attempt, Claim, CopyState, LeaseTerms, LedgerError, RandomValue};
use onedrop_core::receipt::Receipt;
use onedrop_core::text;

/// What decides about a claim.
const COPY: &str = "
c.id, c.value, c.epoch, c.prior_doubt, c.in_doubt, c.placed_at IS NOT NULL, c.uid_validity, c.uid,
c.file_name, c.lease_value, COALESCE(c.leased_until > UTC_TIMESTAMP(6), 0),
c.due_at IS NOT NULL AND EXISTS (SELECT 1 FROM onedrop_kept k WHERE k.message_id = c.message_id),
c.account, c.mailbox, c.placed_epoch, c.message_id, c.shared, c.looks_back";

/// A copy's row, locked.
#[derive(Clone)]
pub(super) struct LockedCopy {
    pub id: i64,
    pub value: RandomValue,
    pub epoch: i64,
    pub prior_doubt: bool,
    pub in_doubt: bool,
    pub receipt: Option<Receipt>,
    pub lease_value: Option<Vec<u8>>,
    pub is_live: bool,
    /// Due, and its bytes are kept.
    pub is_due: bool,
    pub place: (Vec<u8>, Vec<u8>),
    pub placed_epoch: i64,
    pub message: i64,
    pub shared: bool,
    pub looks_back: bool,
}

impl LockedCopy {
    pub fn read(row: &Row) -> Result<LockedCopy, LedgerError> {
        Ok(LockedCopy {
            id: row.cell(0)?,
            value: rows::random_value(row, 1)?,
            epoch: row.cell(2)?,
            prior_doubt: row.cell(3)?,
            in_doubt: row.cell(4)?,
            receipt: if row.cell(5)? { Some(rows::receipt(row, 6)?) } else { None },
            lease_value: row.cell(9)?,
            is_live: row.cell(10)?,
            is_due: row.cell(11)?,
            place: (row.cell(12)?, row.cell(13)?),
            placed_epoch: row.cell(14)?,
            message: row.cell(15)?,
            shared: row.cell(16)?,
            looks_back: row.cell(17)?,
        })
    }
}

/// Reads and locks the copies of a message (`message` is SQL) at `destinations`, as far as they are
/// on record.
pub(super) fn lock(batch: &mut SqlBatch, message: &str, destinations: &[Destination]) {
    // One by one, in one order, so that two sessions cannot lock rows crosswise; the unique key
    // finds each.
    let mut order: Vec<&Destination> = destinations.iter().collect();
    order.sort_by_key(|one| (&one.account, &one.mailbox));
    order.dedup_by_key(|one| (&one.account, &one.mailbox));
    let places: Vec<String> = order
        .into_iter()
        .map(|one| {
            let place =
                SqlBatch::of("(?1, ?2)", values![one.account.as_bytes(), one.mailbox.as_bytes()]);
            place.into_sql()
        })
        .collect();
    let places = if places.is_empty() { "(NULL, NULL)".to_owned() } else { places.join(", ") };
    batch.add(
        &format!(
            "SELECT {COPY} FROM onedrop_copy c FORCE INDEX (onedrop_copy_key)
             WHERE c.message_id = {message} AND (c.account, c.mailbox) IN ({places}) FOR UPDATE"
        ),
        &[],
    );
}

/// What is written of claims, and what they come to.
pub(super) struct Claims {
    pub statements: SqlBatch,
    states: Vec<ClaimState>,
    /// New rows do.
    looks_back: bool,
}

enum ClaimState {
    Known(CopyState),
    /// A new row: its value, and whether it is in doubt.
    New(RandomValue, bool),
}

/// Claims the copies in order, given the rows that are on record and locked; a mailbox that is
/// named twice is leased once. `message` is SQL; new rows look back if the message does.
pub(super) fn claim(
    locked: &[Row],
    message: &str,
    destinations: &[Destination],
    owner: &Attempt,
    (terms, looks_back): (LeaseTerms, bool),
) -> Result<Claims, LedgerError> {
    let locked: Vec<LockedCopy> = locked.iter().map(LockedCopy::read).collect::<Result<_, _>>()?;
    let mut on_record: HashMap<_, _> =
        locked.into_iter().map(|copy| (copy.place.clone(), copy)).collect();
    let mut claims = Claims { statements: SqlBatch::default(), states: Vec::new(), looks_back };
    let mut new: Vec<(&Destination, RandomValue)> = Vec::new();
    for (at, destination) in destinations.iter().enumerate() {
        let place = (destination.account.clone().into(), destination.mailbox.clone().into());
        let again = destinations[..at].iter().any(|other| other.is_same_mailbox(destination));
        if let Some(copy) = on_record.get_mut(&place) {
            let state = claim_known(&mut claims.statements, copy, destination, again, owner, terms);
            claims.states.push(ClaimState::Known(state));
        } else if let Some((_, value)) = new.iter().find(|one| one.0.is_same_mailbox(destination)) {
            // Leased by this very call.
            claims.states.push(match terms.join {
                true => ClaimState::New(*value, true),
                false => ClaimState::Known(CopyState::Busy),
            });
            if terms.join {
                let sql = "UPDATE onedrop_copy SET prior_doubt = TRUE
                           WHERE message_id = @onedrop_message AND value = ?1";
                claims.statements.add(sql, values![value.bytes()]);
                look_again_at_new(&mut claims.statements, *value, terms);
            }
        } else {
            let value = RandomValue::default();
            let terms = (terms, looks_back);
            insert(&mut claims.statements, message, destination, owner, terms, value);
            if looks_back {
                look_again_at_new(&mut claims.statements, value, terms.0);
            }
            new.push((destination, value));
            claims.states.push(ClaimState::New(value, looks_back));
        }
    }
    Ok(claims)
}

impl Claims {
    /// Adds the question for the numbers of new rows; without new rows there is none.
    pub fn ask_for_numbers(&mut self) -> bool {
        let new = self.states.iter().filter_map(|state| match state {
            ClaimState::New(value, _) => Some(value.bytes().to_vec()),
            ClaimState::Known(_) => None,
        });
        let new: Vec<Vec<u8>> = new.collect();
        if new.is_empty() {
            return false;
        }
        let values = list(new.iter().map(|value| Value::from(value.as_slice())));
        // Found by the key of the message, which the statements before have set.
        self.statements.add(
            &format!(
                "SELECT value, id FROM onedrop_copy
                 WHERE message_id = @onedrop_message AND value IN {values}"
            ),
            &[],
        );
        true
    }

    /// What they came to; `numbers` answers the question.
    pub fn states(self, numbers: &[Row]) -> Result<Vec<CopyState>, LedgerError> {
        let mut ids: HashMap<Vec<u8>, i64> = HashMap::new();
        for row in numbers {
            ids.insert(row.cell(0)?, row.cell(1)?);
        }
        let state = |state| match state {
            ClaimState::Known(state) => Ok(state),
            ClaimState::New(value, in_doubt) => {
                let missing = || LedgerError::Broken("no copy that was recorded".to_owned());
                let copy = *ids.get(value.bytes()).ok_or_else(missing)?;
                let looks_back = self.looks_back;
                Ok(CopyState::Claimed(Claim { copy, value, epoch: 1, in_doubt, looks_back }))
            }
        };
        self.states.into_iter().map(state).collect()
    }
}

/// Inserts the copies of a message that is new itself, leased and without doubt: the statement
/// answers with the value and the number of each. Returns the values, in order. No destination is
/// named twice, and there is one at least.
pub(super) fn insert_first(
    batch: &mut SqlBatch,
    message: &str,
    destinations: &[Destination],
    owner: &Attempt,
    terms: LeaseTerms,
) -> Vec<RandomValue> {
    let new: Vec<RandomValue> = destinations.iter().map(|_| RandomValue::default()).collect();
    let rows = destinations.iter().zip(&new);
    let rows: Vec<String> = rows
        .map(|(one, value)| row(message, one, owner, (terms, false), *value).into_sql())
        .collect();
    let sql = format!(
        "INSERT INTO onedrop_copy {COLUMNS} VALUES {} RETURNING value, id",
        rows.join(", ")
    );
    batch.add(&sql, &[]);
    new
}

/// What these claims came to; each row is a value and a number.
pub(super) fn first_claims(
    new: &[RandomValue],
    rows: &[Row],
) -> Result<Vec<CopyState>, LedgerError> {
    let state = |value: &RandomValue| ClaimState::New(*value, false);
    let states = new.iter().map(state).collect();
    Claims { statements: SqlBatch::default(), states, looks_back: false }.states(rows)
}

fn insert(
    batch: &mut SqlBatch,
    message: &str,
    destination: &Destination,
    owner: &Attempt,
    terms: (LeaseTerms, bool),
    value: RandomValue,
) {
    let row = row(message, destination, owner, terms, value).into_sql();
    batch.add(&format!("INSERT INTO onedrop_copy {COLUMNS} VALUES {row}"), &[]);
}

const COLUMNS: &str = "(message_id, account, mailbox, shared, epoch, owner, lease_value, lease_ms,
    leased_until, in_doubt, prior_doubt, looks_back, value)";

/// The values of [`COLUMNS`] of a new copy; `message` is SQL.
fn row(
    message: &str,
    destination: &Destination,
    owner: &Attempt,
    (terms, looks_back): (LeaseTerms, bool),
    value: RandomValue,
) -> SqlBatch {
    SqlBatch::of(
        &format!("({message}, ?1, ?2, ?3, 1, ?4, ?5, ?6, {LEASE_END}, TRUE, ?8, ?8, ?7)"),
        values![
            destination.account.as_bytes(),
            destination.mailbox.as_bytes(),
            destination.shared,
            name_of(owner),
            owner.value.bytes(),
            rows::millis(terms.lease),
            value.bytes(),
            looks_back,
        ],
    )
}

/// ?6 is the length of the lease in milliseconds.
const LEASE_END: &str = "TIMESTAMPADD(MICROSECOND, 1000 * ?6, UTC_TIMESTAMP(6))";

/// Leases a copy to `owner` if it is free, joins a live lease if the terms allow it, or finds the
/// attempt's own lease (of a call whose answer was lost); otherwise returns the copy's state.
fn claim_known(
    batch: &mut SqlBatch,
    copy: &mut LockedCopy,
    destination: &Destination,
    again: bool,
    owner: &Attempt,
    terms: LeaseTerms,
) -> CopyState {
    if let Some(receipt) = &copy.receipt {
        return CopyState::Placed(receipt.clone());
    }
    let is_own = !again && copy.lease_value.as_deref() == Some(owner.value.bytes());
    if copy.is_due && !terms.due || copy.is_live && !terms.join && !is_own {
        return CopyState::Busy;
    }
    let was_live = copy.is_live;
    if !was_live {
        copy.epoch += 1;
    }
    if !(is_own && was_live) {
        copy.prior_doubt = copy.in_doubt;
    }
    copy.in_doubt = true;
    copy.is_live = true;
    if !again {
        copy.lease_value = Some(owner.value.bytes().to_vec());
    }
    let lease_ms = rows::millis(terms.lease);
    // The lease's length first: assignments see those before them.
    batch.add(
        &format!(
            "UPDATE onedrop_copy SET epoch = ?1, prior_doubt = ?2, in_doubt = TRUE,
                 owner = ?3, lease_value = ?4, shared = shared OR ?5,
                 lease_ms = IF(?7, GREATEST(lease_ms, ?6), ?6),
                 leased_until = IF(?7, GREATEST(leased_until, {LEASE_END}), {LEASE_END})
             WHERE id = ?8"
        ),
        values![
            copy.epoch,
            copy.prior_doubt,
            name_of(owner),
            copy.lease_value.as_deref(),
            destination.shared,
            lease_ms,
            was_live,
            copy.id,
        ],
    );
    if copy.epoch > 1 || copy.prior_doubt {
        look_again(batch, "id = ?1", values![copy.id], terms.lease);
    }
    CopyState::Claimed(Claim {
        copy: copy.id,
        value: copy.value,
        epoch: copy.epoch,
        in_doubt: copy.prior_doubt,
        looks_back: copy.looks_back,
    })
}

/// Notes that a copy, which `which` (SQL) finds by `values`, has to be looked at again after that
/// time, or before where that is on record. Its row is locked.
pub(super) fn look_again(batch: &mut SqlBatch, which: &str, values: &[Value<'_>], after: Duration) {
    let micros = rows::millis(after).saturating_mul(1000);
    batch.add(
        &format!(
            "INSERT INTO onedrop_unsettled (copy_id, look_at)
             SELECT id, TIMESTAMPADD(MICROSECOND, {micros}, UTC_TIMESTAMP(6)) FROM onedrop_copy
             WHERE {which}
             ON DUPLICATE KEY UPDATE
                 look_at = LEAST(onedrop_unsettled.look_at, VALUES(look_at))"
        ),
        values,
    );
}

fn look_again_at_new(batch: &mut SqlBatch, value: RandomValue, terms: LeaseTerms) {
    let which = "message_id = @onedrop_message AND value = ?1";
    look_again(batch, which, values![value.bytes()], terms.lease);
}

fn name_of(owner: &Attempt) -> String {
    text::within(&format!("{}:{}", owner.host, owner.pid), INDEXED).into_owned()
}

/// [`Session::claim`](crate::session::Session::claim): copies of a recorded message.
pub(super) fn claim_again(
    connection: &mut MariadbSession,
    message: i64,
    destinations: &[Destination],
    owner: &Attempt,
    terms: LeaseTerms,
) -> Result<Vec<CopyState>, LedgerError> {
    // Whoever takes the message out waits, or has done it.
    let mut batch = SqlBatch::of(
        "SELECT looks_back FROM onedrop_message WHERE id = ?1 LOCK IN SHARE MODE",
        values![message],
    );
    batch.add("SET @onedrop_message = ?1", values![message]);
    lock(&mut batch, &message.to_string(), destinations);
    let locked = connection.begin(batch)?;
    let Some(looks_back) = first(rows_at(&locked, 0))? else {
        connection.rollback()?;
        return Err(LedgerError::Forgotten);
    };
    let (sql, terms) = (message.to_string(), (terms, looks_back));
    let mut claims = claim(rows_at(&locked, 2), &sql, destinations, owner, terms)?;
    let before = claims.statements.count();
    let asks = claims.ask_for_numbers();
    let statements = std::mem::take(&mut claims.statements);
    let answers = connection.commit(statements).map_err(contended_if_duplicate)?;
    claims.states(if asks { rows_at(&answers, before) } else { &[] })
}

/// Another session has inserted the row in this moment.
pub(super) fn contended_if_duplicate(error: LedgerError) -> LedgerError {
    if is_duplicate(&error) { LedgerError::Contended } else { error }
}

/// What the row says once the copy's lock is held; reads the row as it is on record by now.
pub(super) fn turn(claim: &Claim, found: &[Row]) -> Result<SessionTurn, LedgerError> {
    let row = found.first().ok_or(LedgerError::Forgotten)?;
    let copy = LockedCopy::read(row)?;
    Ok(match copy {
        LockedCopy { receipt: Some(receipt), .. } => SessionTurn::Placed(receipt),
        LockedCopy { epoch, .. } if epoch != claim.epoch => SessionTurn::EpochGone,
        LockedCopy { prior_doubt, .. } => SessionTurn::Ours { in_doubt: prior_doubt },
    })
}

/// The row that a claim names; `lock`: and locks it.
pub(super) fn of_claim(batch: &mut SqlBatch, claim: &Claim, lock: bool) {
    let lock = if lock { "FOR UPDATE" } else { "" };
    batch.add(
        &format!("SELECT {COPY} FROM onedrop_copy c WHERE c.id = ?1 AND c.value = ?2 {lock}"),
        values![claim.copy, claim.value.bytes()],
    );
}
