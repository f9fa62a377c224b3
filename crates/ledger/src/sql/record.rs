//! Messages, on the general path of every engine: whatever is on record. One round trip begins a
//! transaction under the message's lock, which is taken the engine's way, reads what is on record
//! and locks the copies; another writes everything and commits. What is new comes this way where a
//! fast one (`postgres/fast.rs`, `mariadb/newly.rs`) left it; a file has no other.
//!
//! A crash before the commit leaves nothing. One after it leaves leases, which run out. After an
//! error the transaction may be open: the caller ends it.

use std::borrow::Cow;
use std::time::UNIX_EPOCH;

use super::attempts::OfMessage;
use super::claims::{self, Claiming};
use super::{
    Answer, Sql, SqlSession, attempts, contended_if_duplicate, first, fitting, rows_at, shared,
    sql, values,
};
use crate::rows::{self, INDEXED, LONGEST, SqlRow};
use crate::{ToRecord, facts as json};
use onedrop_core::ledger::{AttemptKey, LedgerError, MessageKey, Recorded, recorded_secs};
use onedrop_core::message::Facts;
use onedrop_core::text;

/// Waits for a purge that takes the message out; from here on none does.
const FIND: &str = "
SELECT {int(id)}, {whole(recorded_at)}, looks_back, sender FROM onedrop_message
WHERE {hashed(id_hash, ?1)} AND {digested(digest, ?2)} {stay}";

/// After the message was looked for: a purge that took it out has moved the memory on with it.
const LEDGER: &str = "
SELECT {int(version)}, {int(oldest_program)}, config, {secs({now})},
       COALESCE(?4, 0) < {secs(remembers_since)} + 3600,
       ?3 AND EXISTS (SELECT 1 FROM onedrop_message
                      WHERE {hashed(id_hash, ?1)} AND digest <> ?2)
FROM onedrop_ledger";

/// How many of the statements that a record begins with are of the message. If the first of them
/// finds no row, the message is new, and those of its copies may be left out.
pub(crate) const OF_MESSAGE: usize = 2;

/// [`Ledger::record`](onedrop_core::ledger::Ledger::record), whatever is on record. `begin` does
/// what [`SqlSession::begin`] does, under the message's lock.
pub(crate) fn record<S: SqlSession>(
    session: &mut S,
    one: &ToRecord<'_>,
    begin: impl FnOnce(&mut S, &[Sql<'_>]) -> Result<Vec<Answer<S::Row>>, LedgerError>,
) -> Result<Recorded, LedgerError> {
    let ToRecord { entry, attempt, destinations, terms } = *one;
    let identity = entry.identity;
    let (id_hash, digest) = (&identity.id_hash, &identity.digest);
    let oldest = entry.oldest.map(rows::whole_secs);
    let mut statements = vec![
        sql!(FIND, id_hash, digest),
        sql!(LEDGER, id_hash, digest, identity.message_id.is_some(), oldest),
    ];
    statements.extend(claims::read_copies(OfMessage::Named(identity), destinations));
    let answers = begin(session, &statements);
    let answers = fitting(session, answers, 1)?;
    let known = rows_at(&answers, 0).first();
    let ledger = rows_at(&answers, 1).first().ok_or_else(rows::no_ledger)?;
    let version = (ledger.cell(0)?, ledger.cell(1)?);
    let config = check_config(session, one, ledger.cell(2)?)?;
    let now = UNIX_EPOCH + rows::length(ledger.cell(3)?);
    let collision: bool = ledger.cell(5)?;
    let on_record = claims::on_record(answers.get(OF_MESSAGE..).unwrap_or_default())?;

    let mut statements = Vec::new();
    let (of_message, recorded_at, looks_back) = match known {
        Some(row) => (OfMessage::Number(row.cell(0)?), row.cell(1)?, row.cell(2)?),
        None => {
            let (recorded_at, looks_back) = (recorded_secs(entry.at, now), ledger.cell(4)?);
            let mut message = insert(one, looks_back, ["?14", "?15", "{int(id)}"]);
            message.values.extend(values![collision, recorded_at]);
            statements.push(message);
            if let Some(raw) = entry.raw {
                let put = session.put_raw(&mut statements, identity, raw);
                put.map_err(contended_if_duplicate::<S>)?;
            }
            statements.extend(session.announce(identity));
            (OfMessage::Named(identity), recorded_at, looks_back)
        }
    };
    let first_sender = known.map(|row| row.cell::<String>(3)).transpose()?;
    let at = statements.len();
    let records = attempts::lives_in_copy(known.is_none(), destinations);
    if !records {
        statements.push(attempts::insert(of_message, attempt, first_sender.as_deref()));
    }
    let claiming = Claiming { terms, looks_back, records };
    let mut claims = claims::claim(on_record, of_message, destinations, attempt, claiming);
    statements.append(&mut claims.statements);
    let answers = SqlSession::commit(session, &statements);
    let answers = answers.map_err(contended_if_duplicate::<S>)?;
    session.saw(version, config);
    let (message, attempt) = attempt_of(rows_at(&answers, at), records)?;
    Ok(Recorded {
        message: MessageKey::new(message, identity),
        recorded_at: rows::time(recorded_at),
        is_new: known.is_none(),
        collision,
        attempt,
        copies: claims.states(answers.get(at + usize::from(!records)..).unwrap_or_default())?,
    })
}

/// The message's number, and where the attempt is on record: the answer to its row's insert, or to
/// that of the copy with which it `records` the message.
pub(crate) fn attempt_of<R: SqlRow>(
    rows: &[R],
    records: bool,
) -> Result<(i64, AttemptKey), LedgerError> {
    let missing = || LedgerError::Broken("a record without an answer".to_owned());
    let row = rows.first().ok_or_else(missing)?;
    let key = if records { AttemptKey::Copy } else { AttemptKey::Row };
    Ok((row.cell(1)?, key(row.cell(0)?)))
}

/// The first delivery puts on record what its configuration shares with all hosts. What is on
/// record then.
fn check_config<S: SqlSession>(
    session: &mut S,
    one: &ToRecord<'_>,
    mut on_record: Option<String>,
) -> Result<Option<String>, LedgerError> {
    let Some(ours) = session.program().config.as_ref() else { return Ok(on_record) };
    let ours = ours.with(one.entry.fields);
    if on_record.is_none() {
        // Another may have been the first.
        let read = format!("{} {{stay}}", shared::CONFIG);
        let answers = session.go_on(&[shared::share(ours.json(), None), sql!(read)])?;
        on_record = first::<Option<String>, _>(&answers, 1)?.flatten();
    }
    ours.check(on_record.as_deref())?;
    Ok(on_record)
}

/// Inserts the message: 13 values. In SQL: whether it collides, the time to put on record in
/// seconds since 1970, and what the statement answers.
pub(crate) fn insert<'a>(
    one: &ToRecord<'a>,
    looks_back: bool,
    [collision, recorded_at, answer]: [&str; 3],
) -> Sql<'a> {
    let ToRecord { entry, attempt, .. } = *one;
    let (identity, facts) = (entry.identity, entry.facts);
    let text = format!(
        "INSERT INTO onedrop_message (id_hash, digest, message_id, sender, subject, date,
             in_reply_to, reference_ids, size_bytes, nul_runs, addresses, parts, looks_back,
             collision, recorded_at)
         VALUES (?1, ?2, ?3, ?4, ?5, {{at(?6)}}, ?7, ?8, ?9, ?10, ?11, ?12, ?13, {collision},
                 {{at({recorded_at})}})
         RETURNING {answer}"
    );
    sql!(
        text,
        &identity.id_hash,
        &identity.digest,
        identity.message_id.as_deref(),
        text::within(&attempt.sender, INDEXED),
        within(&facts.subject, LONGEST),
        date(facts),
        json::in_reply_to(facts).map(|text| text::within(text, INDEXED)),
        within(&facts.references, LONGEST),
        i64::try_from(entry.size_bytes).unwrap_or(i64::MAX),
        entry.nul_runs,
        json::addresses(&facts.addresses),
        json::parts(&facts.parts),
        looks_back,
    )
}

pub(crate) fn within(value: &Option<String>, longest: usize) -> Option<Cow<'_, str>> {
    value.as_deref().map(|value| text::within(value, longest))
}

/// The Date field, if its year is 1000 to 9999, as every engine's column has it.
pub(crate) fn date(facts: &Facts) -> Option<i64> {
    facts.date.filter(|date| (-30_610_224_000..=253_402_300_799).contains(date))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_that_no_calendar_shows_is_left_out() {
        let of = |date| super::date(&Facts { date: Some(date), ..Facts::default() });
        assert_eq!(of(0), Some(0));
        assert_eq!((of(i64::MAX), of(i64::MIN)), (None, None));
    }
}
