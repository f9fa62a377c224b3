//! Messages, on the general path: whatever is on record. One round trip takes the message's lock,
//! reads what is on record and locks the copies; another writes everything and commits. What is new
//! comes this way where the fast one ([`super::fast`]) left it.

use std::time::UNIX_EPOCH;

use super::columns::{self, INDEXED, LONGEST};
use super::connection::Connection;
use crate::ToRecord;
use crate::facts as json;
use crate::rows::{self, SqlRow};
use crate::sql::claims::{self, OfMessage};
use crate::sql::{self, SqlSession, attempts, contended_if_duplicate, first, rows_at, shared, sql};
use onedrop_core::ledger::{
    Confirmed, LedgerError, MessageKey, Recorded, ToConfirm, recorded_secs,
};
use onedrop_core::lock_key::advisory_key;
use onedrop_core::text;

/// Waits for a purge that takes the message out; from here on none does.
const FIND: &str = "
SELECT {int(id)}, {whole(recorded_at)}, looks_back FROM onedrop_message
WHERE id_hash = ?1 AND digest = ?2 {stay}";

const COLLIDES: &str = "
SELECT ?3 AND EXISTS (SELECT 1 FROM onedrop_message WHERE id_hash = ?1 AND digest <> ?2)";

/// After the message was looked for: a purge that took it out has moved the time on with it.
const MEMORY: &str = "
SELECT {secs({now})}, coalesce(?1, 0) < {secs(remembers_since)} + 3600, config
FROM onedrop_ledger";

const INSERT: &str = "
INSERT INTO onedrop_message (id_hash, digest, message_id, sender, subject, date, in_reply_to,
                             reference_ids, size_bytes, nul_runs, addresses, parts, looks_back,
                             collision, recorded_at)
VALUES (?1, ?2, ?3, ?4, ?5, {at(?6)}, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, {at(?15)})
RETURNING {int(id)}";

const INSERT_ATTEMPT: &str = "
INSERT INTO onedrop_attempt (message_id, recipient, sender, queue_id, host, pid)
SELECT id, ?3, nullif(?4, sender), ?5, ?6, ?7 FROM onedrop_message
WHERE id_hash = ?1 AND digest = ?2
RETURNING {int(message_id)}, {int(id)}";

const KEEP_RAW: &str = "
INSERT INTO onedrop_raw (message_id, bytes)
SELECT id, ?3 FROM onedrop_message WHERE id_hash = ?1 AND digest = ?2";

const NOTIFY: &str = "
SELECT pg_notify('onedrop_message', id::text) FROM onedrop_message
WHERE id_hash = ?1 AND digest = ?2";

/// [`Ledger::record`](onedrop_core::ledger::Ledger::record), whatever is on record.
pub(super) fn record(
    connection: &mut Connection,
    one: &ToRecord<'_>,
) -> Result<Recorded, LedgerError> {
    let recorded = in_two_steps(connection, one);
    if recorded.is_err() {
        connection.rollback_or_lose();
    }
    recorded.map_err(contended_if_duplicate::<Connection>)
}

fn in_two_steps(connection: &mut Connection, one: &ToRecord<'_>) -> Result<Recorded, LedgerError> {
    let ToRecord { entry, attempt, destinations, terms } = *one;
    let (identity, facts) = (entry.identity, entry.facts);
    let (id_hash, digest) = (&identity.id_hash, &identity.digest);
    let of_message = OfMessage::Named(identity);
    let oldest = entry.oldest.map(rows::whole_secs);
    let mut statements = vec![
        sql!("SELECT pg_try_advisory_xact_lock(?1)", advisory_key(id_hash)),
        sql!(FIND, id_hash, digest),
        sql!(COLLIDES, id_hash, digest, identity.message_id.is_some()),
        sql!(MEMORY, oldest),
    ];
    statements.extend(claims::read_copies(of_message, destinations));
    let answers = sql::checked(connection, SqlSession::begin, statements)?;
    if first(&answers, 0)? != Some(true) {
        return Err(LedgerError::Contended);
    }
    let known = rows_at(&answers, 1).first();
    let known = known.map(|row| Ok::<_, LedgerError>((row.cell(1)?, row.cell(2)?))).transpose()?;
    let collision = first(&answers, 2)? == Some(true);
    let ledger = rows_at(&answers, 3).first().ok_or_else(rows::no_ledger)?;
    check_config(connection, one, ledger.cell(2)?)?;
    let on_record = claims::on_record(answers.get(4..).unwrap_or_default())?;

    let mut statements = Vec::new();
    let (recorded_at, looks_back): (i64, bool) = match known {
        Some(known) => known,
        None => {
            let now = rows::length(ledger.cell(0)?);
            let (recorded_at, looks_back) =
                (recorded_secs(entry.at, UNIX_EPOCH + now), ledger.cell(1)?);
            statements.push(sql!(
                INSERT,
                id_hash,
                digest,
                identity.message_id.as_deref(),
                text::within(&attempt.sender, INDEXED),
                columns::within(&facts.subject, LONGEST),
                columns::date_secs(facts.date),
                json::in_reply_to(facts).map(|text| text::within(text, INDEXED)),
                columns::within(&facts.references, LONGEST),
                columns::clamped(entry.size_bytes),
                entry.nul_runs,
                json::addresses(&facts.addresses),
                json::parts(&facts.parts),
                looks_back,
                collision,
                recorded_at,
            ));
            statements.extend(entry.raw.map(|raw| sql!(KEEP_RAW, id_hash, digest, raw)));
            let notifies = connection.notifies();
            statements.extend(notifies.then(|| sql!(NOTIFY, id_hash, digest)));
            (recorded_at, looks_back)
        }
    };
    let at = statements.len();
    statements.push(sql!(
        INSERT_ATTEMPT,
        id_hash,
        digest,
        text::within(&attempt.recipient, INDEXED),
        text::within(&attempt.sender, INDEXED),
        text::within(&attempt.queue_id, INDEXED),
        text::within(&attempt.host, INDEXED),
        i64::from(i32::try_from(attempt.pid).unwrap_or(i32::MAX)),
    ));
    let terms = (terms, looks_back);
    let mut claims = claims::claim(on_record, of_message, destinations, attempt, terms);
    statements.append(&mut claims.statements);
    let answers = SqlSession::commit(connection, &statements)?;
    // Taken out by an administrator in this moment.
    let row = rows_at(&answers, at).first().ok_or(LedgerError::Contended)?;
    Ok(Recorded {
        message: MessageKey::new(row.cell(0)?, entry.identity),
        recorded_at: rows::time(recorded_at),
        is_new: known.is_none(),
        collision,
        attempt: row.cell(1)?,
        copies: claims.states(answers.get(at + 1..).unwrap_or_default())?,
    })
}

/// The first delivery puts on record what its configuration shares with all hosts.
fn check_config(
    connection: &mut Connection,
    one: &ToRecord<'_>,
    mut on_record: Option<String>,
) -> Result<(), LedgerError> {
    let Some(ours) = connection.program().config.as_ref() else { return Ok(()) };
    let ours = ours.with(one.entry.fields);
    if on_record.is_none() {
        // Another may have been the first.
        let statements = [shared::share(ours.json(), None), sql!(shared::CONFIG)];
        let answers = SqlSession::go_on(connection, &statements)?;
        on_record = first::<Option<String>, _>(&answers, 1)?.flatten();
    }
    Ok(ours.check(on_record.as_deref())?)
}

/// A receipt, whatever is on record.
pub(super) fn confirm(
    connection: &mut Connection,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    let confirmed = claims::confirm_alone(connection, one, |read| match one.end {
        Some(end) => attempts::ending(read, one.receipt, end),
        None => Vec::new(),
    });
    if confirmed.is_err() {
        connection.rollback_or_lose();
    }
    confirmed
}
