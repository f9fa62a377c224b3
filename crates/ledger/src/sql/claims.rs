//! Copies, on the general path of every engine: a copy's row is read and locked, `claim.rs`
//! decides, and what it says is written where value and epoch are still those that were read. The
//! transaction, and the message's or the copy's lock, are the caller's.
//!
//! A crash before the commit leaves nothing. One after it leaves a lease, which runs out.

use std::time::Duration;

use super::attempts::OfMessage;
use super::{
    Answer, Sql, SqlSession, Value, attempts, contended_if_duplicate, has_changed, rows_at, sql,
    values,
};
use crate::rows::{self, INDEXED, SqlRow};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::claim::{self, Change, Lease, Row, TurnState, Wanted};
use onedrop_core::ledger::{
    Attempt, Claim, Confirmed, CopyFacts, CopyState, LeaseTerms, LedgerError, MessageKey,
    RandomValue, ToConfirm,
};
use onedrop_core::text;

/// Reads a [`ReadCopy`]: `lease` and `where` are SQL.
macro_rules! select {
    ($lease:literal, $where:literal) => {
        concat!(
            "SELECT {int(c.id)}, {int(c.message_id)}, c.account, c.mailbox, c.shared, c.value,
                 {int(c.epoch)}, ",
            $lease,
            ", {int(c.lease_ms)}, c.lease_value, c.in_doubt, c.prior_doubt, c.looks_back,
                 c.placed_at IS NOT NULL, c.receipt_kind, c.receipt,
                 {int(COALESCE(c.placed_epoch, 0))}, c.settled_at IS NOT NULL,
                 {ago(c.due_at)},
                 EXISTS (SELECT 1 FROM onedrop_kept k WHERE k.message_id = c.message_id)
             FROM onedrop_copy c ",
            $where
        )
    };
}

const OF_MESSAGE: &str = select!(
    "{lease_left(c.)}",
    "{copy_key} WHERE c.message_id = {message} AND c.account = ?1 AND c.mailbox = ?2 {locked(c)}"
);

/// How much of a lease is left is not asked: a host that does not know still records a receipt.
const OF_CLAIM: &str = select!("c.leased_until IS NOT NULL", "WHERE c.id = ?1");

const OF_CLAIM_LOCKED: &str = select!("c.leased_until IS NOT NULL", "WHERE c.id = ?1 {locked(c)}");

/// In the order in which claims lock rows: by bytes, as the columns are compared on every engine.
const IN_ORDER: &str = select!(
    "c.leased_until IS NOT NULL",
    "WHERE {which} ORDER BY c.account, c.mailbox {locked(c)}"
);

/// A copy's row, and what names it.
#[derive(Debug, Clone)]
pub(crate) struct ReadCopy {
    pub number: i64,
    pub message: i64,
    pub destination: Destination,
    pub row: Row,
}

/// What is written of the claims of one call, and what they come to.
pub(crate) struct Claims<'a> {
    pub statements: Vec<Sql<'a>>,
    outcomes: Vec<ClaimOutcome>,
}

/// Of one claim.
struct ClaimOutcome {
    /// In which a new copy has no number yet.
    state: CopyState,
    /// Which statement says whether it was written, and which number a new copy has.
    written_by: Option<usize>,
    is_new: bool,
}

/// How copies are claimed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claiming {
    pub terms: LeaseTerms,
    /// New copies look back.
    pub looks_back: bool,
    /// The only copy is recorded with its message, and the attempt lives in its row.
    pub records: bool,
}

/// A copy in the course of a call.
struct OpenCopy<'d> {
    destination: &'d Destination,
    /// The state that was read; `None`: it is not on record.
    read: Option<ReadCopy>,
    row: Row,
    look_after: Option<Duration>,
    is_changed: bool,
}

/// Reads and locks the copies of a message at these destinations, as far as they are on record: a
/// statement for each, in one order, so that two sessions cannot lock rows crosswise.
pub(crate) fn read_copies<'a>(
    message: OfMessage<'_>,
    destinations: &'a [Destination],
) -> Vec<Sql<'a>> {
    let mut order: Vec<&Destination> = destinations.iter().collect();
    order.sort_by_key(|one| (&one.account, &one.mailbox));
    order.dedup_by_key(|one| (&one.account, &one.mailbox));
    let read = |one: &'a Destination| {
        let mut values = values![&one.account, &one.mailbox];
        let message = message.with(&mut values);
        Sql { text: OF_MESSAGE.replace("{message}", &message).into(), values }
    };
    order.into_iter().map(read).collect()
}

/// Reads and locks the shared copies of a message ([`all_claimed`]).
pub(crate) fn read_shared(message: i64) -> Sql<'static> {
    sql!(IN_ORDER.replace("{which}", "c.message_id = ?1 AND c.shared"), message)
}

/// Reads and locks the copies with these numbers ([`all_claimed`]).
pub(crate) fn read_numbers(numbers: impl IntoIterator<Item = i64>) -> Sql<'static> {
    let mut values = Vec::new();
    let which = format!("c.id IN ({})", Sql::list(&mut values, numbers));
    Sql { text: IN_ORDER.replace("{which}", &which).into(), values }
}

/// Reads the row that a claim names; `lock`: and locks it.
pub(crate) fn read_claimed(claim: &Claim, lock: bool) -> Sql<'static> {
    sql!(if lock { OF_CLAIM_LOCKED } else { OF_CLAIM }, claim.copy)
}

/// Claims copies in their order, given those that are on record and locked. A mailbox that is named
/// twice is leased once.
pub(crate) fn claim<'a>(
    on_record: Vec<ReadCopy>,
    message: OfMessage<'_>,
    destinations: &'a [Destination],
    owner: &'a Attempt,
    Claiming { terms, looks_back, records }: Claiming,
) -> Claims<'a> {
    let mut copies: Vec<OpenCopy<'a>> = Vec::new();
    let mut found = Vec::new();
    for destination in destinations {
        let is_it = |copy: &OpenCopy<'_>| copy.destination.is_same_mailbox(destination);
        let known = copies.iter().position(is_it);
        let at = known.unwrap_or_else(|| {
            let mut on_record = on_record.iter();
            let read = on_record.find(|copy| copy.destination.is_same_mailbox(destination));
            let row = read.map_or_else(|| Row::new(looks_back), |read| read.row.clone());
            let read = read.cloned();
            copies.push(OpenCopy { destination, read, row, look_after: None, is_changed: false });
            copies.len() - 1
        });
        let Some(copy) = copies.get_mut(at) else { continue };
        let (by, again, shared) = (owner.value, known.is_some(), destination.shared);
        let (claimed, change) = claim::claim(&copy.row, &Wanted { by, again, shared, terms });
        if let Some(change) = change {
            copy.row = change.row;
            copy.look_after = copy.look_after.into_iter().chain(change.look_after).min();
            copy.is_changed = true;
        }
        let number = copy.read.as_ref().map_or(0, |read| read.number);
        found.push((at, claimed.state(copy.row.claim(number))));
    }
    let name = owner_name(owner);
    let mut statements = Vec::new();
    let mut written_by = vec![None; copies.len()];
    for (copy, written_by) in copies.iter().zip(&mut written_by).filter(|(one, _)| one.is_changed) {
        *written_by = Some(statements.len());
        let look = match &copy.read {
            Some(read) => {
                statements.push(lease(read, &copy.row, name.clone()));
                copy.look_after.map(|after| look_again(read.number, after))
            }
            None => {
                let by = (name.clone(), records.then_some(owner));
                statements.push(insert(message, copy.destination, &copy.row, by));
                copy.look_after.map(|after| look_again_at_new(message, &copy.row, after))
            }
        };
        statements.extend(look);
    }
    let outcomes = found.into_iter().map(|(at, state)| ClaimOutcome {
        state,
        written_by: written_by.get(at).copied().flatten(),
        is_new: copies.get(at).is_some_and(|copy| copy.read.is_none()),
    });
    Claims { statements, outcomes: outcomes.collect() }
}

/// What a copy's row calls the one who leases it.
pub(crate) fn owner_name(owner: &Attempt) -> String {
    text::within(&format!("{}:{}", owner.host, owner.pid), INDEXED).into_owned()
}

/// Whether a mailbox is named twice: it is leased once, which fast ways leave to [`claim`].
pub(crate) fn name_one_twice(destinations: &[Destination]) -> bool {
    let is_again = |(at, one): (usize, &Destination)| {
        destinations[..at].iter().any(|other| other.is_same_mailbox(one))
    };
    destinations.iter().enumerate().any(is_again)
}

impl Claims<'_> {
    /// What they came to; `answers` are those of [`statements`](Claims::statements).
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: another session has changed a row all the same.
    pub fn states<R: SqlRow>(self, answers: &[Answer<R>]) -> Result<Vec<CopyState>, LedgerError> {
        let state = |ClaimOutcome { state, written_by, is_new }: ClaimOutcome| {
            let CopyState::Claimed(claim) = state else { return Ok(state) };
            let answer = written_by.and_then(|at| answers.get(at)).ok_or(LedgerError::Contended)?;
            if !is_new {
                return if answer.count == 0 { Err(LedgerError::Contended) } else { Ok(state) };
            }
            let missing = || LedgerError::Broken("no copy that was recorded".to_owned());
            let copy = answer.rows.first().ok_or_else(missing)?.cell(0)?;
            Ok(CopyState::Claimed(Claim { copy, ..claim }))
        };
        self.outcomes.into_iter().map(state).collect()
    }
}

/// Reads of the message that the key names, `m` in `select`; nothing where the number is
/// another's.
pub(crate) fn named(select: &str, message: &MessageKey, lock: &str) -> Sql<'static> {
    let MessageKey { number, id_hash, digest } = message;
    let which = "m.id = ?1 AND m.id_hash = ?2 AND m.digest = ?3";
    sql!(format!("{select} WHERE {which} {lock}"), *number, id_hash.to_vec(), digest.to_vec())
}

/// [`Ledger::claim`](onedrop_core::ledger::Ledger::claim): copies of a recorded message.
pub(crate) fn claim_again<S: SqlSession>(
    session: &mut S,
    message: &MessageKey,
    destinations: &[Destination],
    owner: &Attempt,
    terms: LeaseTerms,
) -> Result<Vec<CopyState>, LedgerError> {
    let of_message = OfMessage::Number(message.number);
    let mut statements = vec![named("SELECT looks_back FROM onedrop_message m", message, "{stay}")];
    statements.extend(read_copies(of_message, destinations));
    let answers = SqlSession::begin(session, &statements)?;
    let Some((found, copies)) = answers.split_first().filter(|(found, _)| !found.rows.is_empty())
    else {
        SqlSession::rollback(session)?;
        return Err(LedgerError::Forgotten);
    };
    let looks_back = found.rows.first().map_or(Ok(false), |row| row.cell(0))?;
    let claiming = Claiming { terms, looks_back, records: false };
    let claims = claim(on_record(copies)?, of_message, destinations, owner, claiming);
    let answers = SqlSession::commit(session, &claims.statements);
    claims.states(&answers.map_err(contended_if_duplicate::<S>)?)
}

/// What [`read_copies`] has read.
pub(crate) fn on_record<R: SqlRow>(answers: &[Answer<R>]) -> Result<Vec<ReadCopy>, LedgerError> {
    answers.iter().flat_map(|answer| &answer.rows).map(ReadCopy::of_message).collect()
}

/// What [`read_claimed`] has read.
fn claimed<R: SqlRow>(rows: &[R]) -> Result<Option<ReadCopy>, LedgerError> {
    rows.first().map(ReadCopy::of_claim).transpose()
}

/// What [`read_shared`] or [`read_numbers`] has read.
pub(crate) fn all_claimed<R: SqlRow>(answers: &[Answer<R>]) -> Result<Vec<ReadCopy>, LedgerError> {
    answers.iter().flat_map(|answer| &answer.rows).map(ReadCopy::of_claim).collect()
}

/// What the row says that [`read_claimed`] has read, once the copy's lock is held.
pub(crate) fn turn<R: SqlRow>(claim: &Claim, rows: &[R]) -> Result<TurnState, LedgerError> {
    claim::turn(claimed(rows)?.map(|copy| copy.row).as_ref(), claim)
}

/// The result of a receipt, given the row that its claim names, locked; and what is to be written
/// in any case. The first statement, if there is one, must change a row ([`is_written`]).
fn confirm<'a>(
    read: Option<&ReadCopy>,
    one: &ToConfirm<'a>,
) -> (Result<Confirmed, LedgerError>, Vec<Sql<'a>>) {
    let (confirmed, change) = claim::confirm(read.map(|read| &read.row), &one.claim, one.receipt);
    let mut statements = Vec::new();
    if let (Some(read), Some(Change { row, look_after, frees_kept })) = (read, change) {
        statements.push(match confirmed {
            Ok(Confirmed::Recorded) => place(read, &row, one),
            Ok(Confirmed::Superseded { .. }) | Err(_) => raise_epoch(read, &row),
        });
        statements.extend(look_after.map(|after| look_again(read.number, after)));
        if frees_kept {
            statements.extend(forget_kept("?1", read.message));
        }
    }
    (confirmed, statements)
}

/// The general path of a receipt, in a transaction of its own.
pub(crate) fn confirm_alone<S: SqlSession>(
    session: &mut S,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    let read = begin_with(session, &one.claim)?;
    confirm_read(session, one, read)
}

/// Begins a transaction with the row that a claim names, locked, or goes on with that of a turn.
pub(crate) fn begin_with<S: SqlSession>(
    session: &mut S,
    claim: &Claim,
) -> Result<Option<ReadCopy>, LedgerError> {
    claimed(rows_at(&session.begin_or_go_on(&[read_claimed(claim, true)])?, 0))
}

/// Ends it with the receipt, and with the end of its attempt.
pub(crate) fn confirm_read<S: SqlSession>(
    session: &mut S,
    one: &ToConfirm<'_>,
    read: Option<ReadCopy>,
) -> Result<Confirmed, LedgerError> {
    let (confirmed, mut statements) = confirm(read.as_ref(), one);
    let has_change = !statements.is_empty();
    if let (Ok(Confirmed::Recorded), Some(read)) = (&confirmed, &read) {
        statements.extend(attempts::ending(one, read.message));
    }
    let answers = SqlSession::commit(session, &statements)?;
    is_written(has_change, &answers)?;
    confirmed
}

/// Whether the first of the statements that [`confirm`] gave, if there is one, has changed its row.
///
/// # Errors
/// [`LedgerError::Contended`]: another session has changed it all the same.
fn is_written<R>(has_change: bool, answers: &[Answer<R>]) -> Result<(), LedgerError> {
    match has_change && !has_changed(answers, 0) {
        true => Err(LedgerError::Contended),
        false => Ok(()),
    }
}

/// [`Ledger::release`](onedrop_core::ledger::Ledger::release): gives back leases, in the order in
/// which claims lock rows.
pub(crate) fn give_back<S: SqlSession>(
    session: &mut S,
    claims: &[Claim],
) -> Result<(), LedgerError> {
    if claims.is_empty() {
        return Ok(());
    }
    let found = SqlSession::begin(session, &[read_numbers(claims.iter().map(|one| one.copy))])?;
    let mut statements = Vec::new();
    for read in all_claimed(&found)? {
        let mut ours = claims.iter().filter(|claim| claim.copy == read.number);
        let change = ours.find_map(|claim| claim::release(Some(&read.row), claim));
        statements.extend(change.map(|change| free(&read, &change.row)));
    }
    SqlSession::commit(session, &statements).map(drop)
}

/// What is kept of a message goes once its last shared copy is placed. Its row is locked first: the
/// next statement then sees copies that were placed or made due at the same moment. `message` is
/// SQL for the message's number, in which `?1` stands for `value`.
pub(crate) fn forget_kept(message: &str, value: i64) -> [Sql<'static>; 2] {
    let lock = format!("SELECT 1 FROM onedrop_kept k WHERE message_id = {message} {{locked(k)}}");
    let delete = format!(
        "DELETE FROM onedrop_kept WHERE message_id = {message}
         AND NOT EXISTS (SELECT 1 FROM onedrop_copy c
                         WHERE c.message_id = {message} AND c.shared AND c.placed_at IS NULL)"
    );
    [sql!(lock, value), sql!(delete, value)]
}

impl ReadCopy {
    fn of_message(row: &impl SqlRow) -> Result<ReadCopy, LedgerError> {
        ReadCopy::read(row, row.cell::<Option<f64>>(7)?.map(rows::length))
    }

    fn of_claim(row: &impl SqlRow) -> Result<ReadCopy, LedgerError> {
        ReadCopy::read(row, row.cell::<bool>(7)?.then_some(Duration::ZERO))
    }

    fn read(row: &impl SqlRow, lease_left: Option<Duration>) -> Result<ReadCopy, LedgerError> {
        let due_ago: Option<f64> = row.cell(18)?;
        let lease_ms: i64 = row.cell(8)?;
        let by: Option<Vec<u8>> = row.cell(9)?;
        let by = by.and_then(|by| Some(<[u8; 16]>::try_from(by).ok()?.into()));
        let length = Duration::from_millis(lease_ms.max(0).unsigned_abs());
        let destination = rows::destination(row, 2)?;
        Ok(ReadCopy {
            number: row.cell(0)?,
            message: row.cell(1)?,
            row: Row {
                value: rows::random_value(row, 5)?,
                epoch: row.cell(6)?,
                shared: destination.shared,
                lease: lease_left.map(|left| Lease { by, length, left }),
                in_doubt: row.cell(10)?,
                prior_doubt: row.cell(11)?,
                looks_back: row.cell(12)?,
                receipt: if row.cell(13)? { Some(rows::receipt(row, 14)?) } else { None },
                placed_epoch: row.cell(16)?,
                settled: row.cell(17)?,
                due_in: due_ago.map(|secs| rows::length(-secs)),
                kept: row.cell(19)?,
            },
            destination,
        })
    }

    /// Changes the row, if it is still as it was read. `set` has the values before.
    fn update<'a>(&self, set: &str, mut values: Vec<Value<'a>>) -> Sql<'a> {
        let at = values.len();
        let value = self.row.value.bytes().to_vec();
        values.extend(values![self.number, value, self.row.epoch]);
        let (id, value, epoch) = (at + 1, at + 2, at + 3);
        let text = format!(
            "UPDATE onedrop_copy SET {set}
             WHERE id = ?{id} AND value = ?{value} AND epoch = ?{epoch}"
        );
        Sql { text: text.into(), values }
    }
}

/// Microseconds of a lease, its length in milliseconds, and whose it is.
fn of_lease(row: &Row) -> (Option<i64>, i64, Option<Vec<u8>>) {
    let micros = |left: Duration| i64::try_from(left.as_micros()).unwrap_or(i64::MAX / 2);
    let by = row.lease.and_then(|lease| lease.by).map(|by| by.bytes().to_vec());
    let length = row.lease.map_or(0, |lease| rows::millis(lease.length));
    (row.lease.map(|lease| micros(lease.left)), length, by)
}

fn lease(read: &ReadCopy, row: &Row, owner: String) -> Sql<'static> {
    let (left, length, by) = of_lease(row);
    read.update(
        "epoch = ?1, shared = ?2, {set_lease(?3)}, lease_ms = ?4, lease_value = ?5, in_doubt = ?6,
         prior_doubt = ?7, owner = ?8",
        values![row.epoch, row.shared, left, length, by, row.in_doubt, row.prior_doubt, owner],
    )
}

fn insert<'a>(
    message: OfMessage<'_>,
    destination: &'a Destination,
    row: &Row,
    (owner, first): (String, Option<&'a Attempt>),
) -> Sql<'a> {
    let (left, length, by) = of_lease(row);
    let mut values = values![
        &destination.account,
        &destination.mailbox,
        row.shared,
        row.epoch,
        owner,
        by,
        length,
        left,
        row.in_doubt,
        row.prior_doubt,
        row.looks_back,
        row.value.bytes().to_vec(),
    ];
    let [columns, theirs] = first.map_or_else(Default::default, |first| {
        attempts::in_copy(first, &mut values).map(|part| format!(", {part}"))
    });
    let message = message.with(&mut values);
    let text = format!(
        "INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, owner,
             lease_value, lease_ms, {{lease_columns}}, in_doubt, prior_doubt, looks_back,
             value{columns})
         VALUES ({message}, ?1, ?2, ?3, ?4, ?5, ?6, ?7, {{lease_values(?8)}}, ?9, ?10, ?11,
                 ?12{theirs})
         RETURNING {{int(id)}}, {{int(message_id)}}"
    );
    Sql { text: text.into(), values }
}

fn place<'a>(read: &ReadCopy, row: &Row, one: &ToConfirm<'a>) -> Sql<'a> {
    let CopyFacts { nul_replaced, found_by_look, wrapped } = one.facts;
    read.update(
        "placed_at = {now}, receipt_kind = ?1, receipt = ?2, nul_replaced = ?3,
         found_by_look = ?4, wrapped = ?5, placed_epoch = ?6, in_doubt = ?7, {no_lease},
         lease_value = NULL, owner = {nobody}",
        values![
            one.receipt.kind(),
            one.receipt.text(),
            nul_replaced,
            found_by_look,
            wrapped,
            row.placed_epoch,
            row.in_doubt
        ],
    )
}

fn free(read: &ReadCopy, row: &Row) -> Sql<'static> {
    read.update(
        "{no_lease}, in_doubt = ?1, placed_epoch = ?2",
        values![row.in_doubt, row.placed_epoch],
    )
}

/// Makes a copy due; `read`: its row, if there is one.
pub(crate) fn make_due<'a>(
    read: Option<&ReadCopy>,
    message: i64,
    destination: &'a Destination,
    change: &Change,
) -> Vec<Sql<'a>> {
    let of_message = OfMessage::Number(message);
    let row = &change.row;
    let due_in = row.due_in.map(|due_in| due_in.as_secs_f64());
    let look_after = change.look_after;
    match read {
        // What was due stays so.
        Some(read) => [read.update(
            "shared = ?1, due_at = COALESCE(due_at, {later(?2)})",
            values![row.shared, due_in],
        )]
        .into_iter()
        .chain(look_after.map(|after| look_again(read.number, after)))
        .collect(),
        None => {
            let inserted = insert(of_message, destination, row, (String::new(), None));
            let due = sql!(
                "UPDATE onedrop_copy SET due_at = {later(?1)} WHERE message_id = ?2 AND value = ?3",
                due_in,
                message,
                row.value.bytes().to_vec(),
            );
            let look = look_after.map(|after| look_again_at_new(of_message, row, after));
            [inserted, due].into_iter().chain(look).collect()
        }
    }
}

/// Sets a copy back: free, in doubt, and no claim of before names it.
pub(crate) fn forget(read: &ReadCopy, value: RandomValue) -> Sql<'static> {
    let Change { row, .. } = claim::forget(&read.row, value);
    read.update(
        "value = ?1, due_at = CASE WHEN ?2 THEN due_at END, placed_at = NULL, placed_epoch = ?3,
         receipt_kind = NULL, receipt = NULL, nul_replaced = FALSE,
         wrapped = FALSE, found_by_look = FALSE, by_sender = FALSE, settled_at = NULL,
         {no_lease}, in_doubt = ?4, prior_doubt = ?5, looks_back = ?6",
        values![
            row.value.bytes().to_vec(),
            row.due_in.is_some(),
            row.placed_epoch,
            row.in_doubt,
            row.prior_doubt,
            row.looks_back
        ],
    )
}

fn raise_epoch(read: &ReadCopy, row: &Row) -> Sql<'static> {
    read.update("epoch = ?1, settled_at = NULL", values![row.epoch])
}

/// Notes that a copy has to be looked at again after that time, or before where that is on record.
/// Its row is locked, and is there.
fn look_again(copy: i64, after: Duration) -> Sql<'static> {
    let look = LOOK_AGAIN.replace("{which}", "id = ?2");
    Sql { text: look.into(), values: values![after.as_secs_f64(), copy] }
}

/// The same of a copy that has no number yet.
fn look_again_at_new(message: OfMessage<'_>, row: &Row, after: Duration) -> Sql<'static> {
    let mut values = values![after.as_secs_f64(), row.value.bytes().to_vec()];
    let which = format!("message_id = {} AND value = ?2", message.with(&mut values));
    Sql { text: LOOK_AGAIN.replace("{which}", &which).into(), values }
}

const LOOK_AGAIN: &str = "INSERT INTO onedrop_unsettled (copy_id, look_at)
     SELECT id, {later(?1)} FROM onedrop_copy WHERE {which}
     {upsert(copy_id)} look_at = CASE WHEN {new(look_at)} < onedrop_unsettled.look_at
         THEN {new(look_at)} ELSE onedrop_unsettled.look_at END";
