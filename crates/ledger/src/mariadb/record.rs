//! Messages with their facts. The record of a new message is one round trip (`newly`). Any other is
//! two more: one takes the message's lock, reads what is on record and locks the copies; the other
//! writes everything and commits.

use std::time::UNIX_EPOCH;

use super::attempts::{self, INDEXED, LONGEST};
use super::connection::{MariadbSession, Seen, first, rows_at};
use super::dialect::spelt;
use super::kept::put_pieces;
use super::schema;
use super::statement::{SqlBatch, values};
use crate::facts as json;
use crate::rows::{self, SqlRow};
use crate::session::ToRecord;
use crate::sql::claims::{self, OfMessage};
use crate::sql::{contended_if_duplicate, shared};
use onedrop_core::ledger::{LedgerError, MessageKey, Recorded, SharedConfig, recorded_secs};
use onedrop_core::lock_key::Hash;
use onedrop_core::text;

/// Locks a slot without waiting (error 1205 where another session holds it).
pub(super) fn lock_slot(batch: &mut SqlBatch, hash: &Hash) {
    let slot = i64::from(u16::from_be_bytes([hash[0], hash[1]]));
    batch.add("SELECT n FROM onedrop_slot WHERE n = ?1 FOR UPDATE NOWAIT", values![slot]);
}

/// Seconds since 1970 by the server's clock.
pub(super) const NOW: &str =
    "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 0.000001";

const FIND: &str = "
SELECT id, TIMESTAMPDIFF(SECOND, '1970-01-01', recorded_at), looks_back FROM onedrop_message
WHERE id_hash = ?1 AND digest = ?2 LOCK IN SHARE MODE";

/// The message's row, once it is known or inserted.
pub(super) const MESSAGE: &str = "@onedrop_message";

/// [`Ledger::record`](onedrop_core::ledger::Ledger::record), whatever is on record; in the open
/// transaction, if one is open.
pub(super) fn record(
    connection: &mut MariadbSession,
    one: &ToRecord<'_>,
) -> Result<Recorded, LedgerError> {
    let ToRecord { entry, attempt, destinations, terms } = *one;
    let identity = entry.identity;
    let mut batch = SqlBatch::default();
    lock_slot(&mut batch, &identity.id_hash);
    batch.add(FIND, values![&identity.id_hash, &identity.digest]);
    batch.add(
        "SELECT ?3 AND EXISTS (
             SELECT 1 FROM onedrop_message WHERE id_hash = ?1 AND digest <> ?2)",
        values![&identity.id_hash, &identity.digest, identity.message_id.is_some()],
    );
    batch.add(NOW, &[]);
    // After the message was looked for: a purge that took it out has moved the time on with it.
    batch.add(
        "SELECT COALESCE(TIMESTAMPADD(SECOND, ?1, '1970-01-01'), '1970-01-01')
             < remembers_since + INTERVAL 1 HOUR FROM onedrop_ledger",
        values![entry.oldest.map(rows::whole_secs)],
    );
    batch.add("SELECT config, version, oldest_program FROM onedrop_ledger", &[]);
    batch.append(spelt(&claims::read_copies(OfMessage::Named(identity), destinations)));
    let answers = schema::checked(connection, MariadbSession::begin_or_go_on, batch)?;
    let known = match rows_at(&answers, 1).first() {
        Some(row) => Some((row.cell::<i64>(0)?, row.cell::<i64>(1)?, row.cell::<bool>(2)?)),
        None => None,
    };
    let collision = first(rows_at(&answers, 2))? == Some(true);
    let now: f64 = first(rows_at(&answers, 3))?.unwrap_or(0.0);
    let looks_back = match known {
        Some((.., looks_back)) => looks_back,
        None => first(rows_at(&answers, 4))?.unwrap_or(true),
    };
    let ledger = rows_at(&answers, 5).first();
    let mut on_record = ledger.map(|row| row.cell::<Option<String>>(0)).transpose()?.flatten();
    if let Some(config) = connection.program().config.clone() {
        on_record = check_config(connection, &config.with(entry.fields), on_record)?;
    }
    let seen = match ledger {
        Some(row) => Some(Seen { version: (row.cell(1)?, row.cell(2)?), config: on_record }),
        None => None,
    };
    let on_record = claims::on_record(answers.get(6..).unwrap_or_default())?;

    let mut batch = SqlBatch::default();
    let recorded_at = match known {
        Some((message, recorded_at, _)) => {
            batch.add("SET @onedrop_message = ?1", values![message]);
            recorded_at
        }
        None => {
            let now = UNIX_EPOCH + rows::length(now);
            let recorded_at = recorded_secs(entry.at, now);
            let (collision, at) = (i64::from(collision).to_string(), recorded_at.to_string());
            insert_message(&mut batch, one, (&collision, &at, ""), looks_back);
            batch.add("SET @onedrop_message = LAST_INSERT_ID()", &[]);
            recorded_at
        }
    };
    let mut raw = entry.raw.filter(|_| known.is_none());
    if let Some(bytes) = raw.take() {
        // The message goes first, and its bytes by themselves.
        let statements = std::mem::take(&mut batch);
        connection.go_on(statements).map_err(contended_if_duplicate::<MariadbSession>)?;
        let sql = "INSERT INTO onedrop_raw (message_id, position, bytes, kept_at)
                   VALUES (COALESCE(?1, @onedrop_message), ?2, ?3, UTC_TIMESTAMP())";
        put_pieces(connection, sql, None, bytes)?;
    }
    attempts::insert(&mut batch, MESSAGE, attempt);
    batch.add("SELECT @onedrop_message, LAST_INSERT_ID()", &[]);
    let at = batch.count() - 1;
    let (of_message, terms) = (OfMessage::Sql(MESSAGE), (terms, looks_back));
    let claims = claims::claim(on_record, of_message, destinations, attempt, terms);
    batch.append(spelt(&claims.statements));
    let answers = connection.commit(batch).map_err(contended_if_duplicate::<MariadbSession>)?;
    connection.saw(seen);
    let missing = || LedgerError::Broken("a record without an answer".to_owned());
    let row = rows_at(&answers, at).first().ok_or_else(missing)?;
    Ok(Recorded {
        message: MessageKey::new(row.cell(0)?, identity),
        recorded_at: rows::time(recorded_at),
        is_new: known.is_none(),
        collision,
        attempt: row.cell(1)?,
        copies: claims.states(answers.get(at + 1..).unwrap_or_default())?,
    })
}

/// The first delivery puts on record what its configuration shares with all hosts.
fn check_config(
    connection: &mut MariadbSession,
    config: &SharedConfig,
    mut on_record: Option<String>,
) -> Result<Option<String>, LedgerError> {
    if on_record.is_none() {
        let mut batch = spelt(&[shared::share(config.json(), None)]);
        batch.add(&format!("{} LOCK IN SHARE MODE", shared::CONFIG), &[]);
        let answers = connection.go_on(batch)?;
        on_record = first::<Option<String>>(rows_at(&answers, 1))?.flatten();
    }
    config.check(on_record.as_deref())?;
    Ok(on_record)
}

/// The collision, the time in seconds since 1970, and what the statement answers are SQL.
pub(super) fn insert_message(
    batch: &mut SqlBatch,
    one: &ToRecord<'_>,
    (collision, recorded_at, returning): (&str, &str, &str),
    looks_back: bool,
) {
    let ToRecord { entry, attempt, .. } = *one;
    let (identity, facts) = (entry.identity, entry.facts);
    let within = |text: &Option<String>, longest| {
        text.as_deref().map(|text| text::within(text, longest).into_owned())
    };
    let size_bytes = i64::try_from(entry.size_bytes).unwrap_or(i64::MAX);
    batch.add(
        &format!(
            "INSERT INTO onedrop_message (id_hash, digest, message_id, sender, subject, date,
                 in_reply_to, reference_ids, size_bytes, nul_runs, addresses, parts, looks_back,
                 collision, recorded_at)
             VALUES (?1, ?2, ?3, ?4, ?5, TIMESTAMPADD(SECOND, ?6, '1970-01-01'), ?7, ?8, ?9, ?10,
                     ?11, ?12, ?13, {collision}, TIMESTAMPADD(SECOND, {recorded_at}, '1970-01-01'))
             {returning}"
        ),
        values![
            &identity.id_hash,
            &identity.digest,
            identity.message_id.as_deref(),
            text::within(&attempt.sender, INDEXED),
            within(&facts.subject, LONGEST),
            facts.date.filter(|date| is_of_a_calendar(*date)),
            json::in_reply_to(facts).map(|text| text::within(text, INDEXED)),
            within(&facts.references, LONGEST),
            size_bytes,
            entry.nul_runs,
            json::addresses(&facts.addresses),
            json::parts(&facts.parts),
            looks_back,
        ],
    );
}

/// Whether the year is 1000 to 9999, as DATETIME has it.
fn is_of_a_calendar(date: i64) -> bool {
    (-30_610_224_000..=253_402_300_799).contains(&date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_that_no_column_holds_is_left_out() {
        assert!(is_of_a_calendar(0));
        assert!(!is_of_a_calendar(i64::MAX) && !is_of_a_calendar(i64::MIN));
    }
}
