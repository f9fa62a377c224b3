//! The record of a message that is new, in one round trip: the message's lock, the message, the
//! attempt, the leased copies, COMMIT.
//!
//! The statements are the same as in the two steps of [`super::record`], but what those decide in
//! between is decided by the server: that the message is not on record (a locking read), that it
//! is not older than what the ledger remembers, and that schema and configuration are those that
//! this session has found to fit before. Where one of them does not hold, the message has no time
//! (NULL), and its column takes none: the server stops there with nothing written, and the locks
//! stay for the two steps. Whatever else it refuses is undone before them.

use super::connection::{MariadbSession, Seen, rows_at};
use super::dialect::spelt;
use super::errors::{NO_NULL, is_refused_with};
use super::record::lock_slot;
use super::statement::{SqlBatch, values};
use crate::rows::{self, SqlRow};
use crate::session::ToRecord;
use crate::sql::attempts::OfMessage;
use crate::sql::claims::{self, Claiming};
use crate::sql::{attempts, record};
use onedrop_core::ledger::{CLOCKS_DIFFER_BY, LedgerError, MessageKey, Recorded};

/// After the message was looked for: a purge that took it out has moved `remembers_since` on with
/// it. ?7 is the time to put on record, where this server's clock says the same.
const DECIDE: &str = "
SELECT MAX(IF(@onedrop_known = 0 AND version = ?4 AND oldest_program = ?5
          AND CAST(config AS BINARY) <=> ?6
          AND COALESCE(TIMESTAMPADD(SECOND, ?3, '1970-01-01'), '1970-01-01')
              >= remembers_since + INTERVAL 1 HOUR
          AND COALESCE(ABS(?7 - {now}) <= ?8, TRUE),
          COALESCE(?7, {now}), NULL)),
       ?9 AND EXISTS (SELECT 1 FROM onedrop_message WHERE id_hash = ?1 AND digest <> ?2)
INTO @onedrop_at, @onedrop_collision
FROM onedrop_ledger";

const NOW: &str = "TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())";

/// Records the message if it is new and nothing else has to be looked at.
///
/// # Returns
/// `None`: nothing is written, and the transaction may be open for [`super::record`].
pub(super) fn record(
    connection: &mut MariadbSession,
    one: &ToRecord<'_>,
) -> Result<Option<Recorded>, LedgerError> {
    let ToRecord { entry, attempt, destinations, terms } = *one;
    connection.rollback()?;
    let Some(Seen { version, config }) = connection.seen().cloned() else { return Ok(None) };
    // Bytes go in packets of their own.
    if entry.raw.is_some() || destinations.is_empty() || claims::name_one_twice(destinations) {
        return Ok(None);
    }
    // The two steps say what it does not fit.
    let ours = connection.program().config.as_ref().map(|ours| ours.with(entry.fields));
    if ours.is_some_and(|ours| ours.check(config.as_deref()).is_err()) {
        return Ok(None);
    }
    let identity = entry.identity;
    let mut batch = SqlBatch::default();
    lock_slot(&mut batch, &identity.id_hash);
    batch.add(
        "SELECT COUNT(recorded_at) INTO @onedrop_known FROM onedrop_message
         WHERE id_hash = ?1 AND digest = ?2 LOCK IN SHARE MODE",
        values![&identity.id_hash, &identity.digest],
    );
    batch.add(
        &DECIDE.replace("{now}", NOW),
        values![
            &identity.id_hash,
            &identity.digest,
            entry.oldest.map(rows::whole_secs),
            version.0,
            version.1,
            config.as_deref().map(str::as_bytes),
            entry.at.map(rows::whole_secs),
            rows::millis(CLOCKS_DIFFER_BY) / 1000,
            identity.message_id.is_some(),
        ],
    );
    let answer = "(@onedrop_message := id), collision, @onedrop_at";
    let of_message = OfMessage::Sql("@onedrop_message");
    let message = record::insert(one, false, ["@onedrop_collision", "@onedrop_at", answer]);
    batch.append(spelt(&[message]));
    let records = attempts::lives_in_copy(true, destinations);
    if !records {
        batch.append(spelt(&[attempts::insert(of_message, attempt, None)]));
    }
    let claiming = Claiming { terms, looks_back: false, records };
    let claims = claims::claim(Vec::new(), of_message, destinations, attempt, claiming);
    batch.append(spelt(&claims.statements));
    let answers = match connection.write_as_far_as_it_goes(batch) {
        // The two steps find out why, and go on if they may.
        Err(error) if is_refused_with(&error, NO_NULL) => return Ok(None),
        Err(LedgerError::Refused(_)) => {
            connection.rollback()?;
            return Ok(None);
        }
        answers => answers?,
    };
    let missing = || LedgerError::Broken("a record without an answer".to_owned());
    let message = rows_at(&answers, 3).first().ok_or_else(missing)?;
    let (_, attempt) = record::attempt_of(rows_at(&answers, 4), records)?;
    Ok(Some(Recorded {
        message: MessageKey::new(message.cell(0)?, one.entry.identity),
        recorded_at: rows::time(message.cell(2)?),
        is_new: true,
        collision: message.cell(1)?,
        attempt,
        copies: claims.states(answers.get(4 + usize::from(!records)..).unwrap_or_default())?,
    }))
}
