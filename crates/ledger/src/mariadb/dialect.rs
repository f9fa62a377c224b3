//! How MariaDB spells the ledger's SQL, and what its session does with statements.

use mysql_async::Row;

use super::connection::{MariadbSession, Seen, first};
use super::statement::{SqlBatch, values};
use super::{errors, kept};
use crate::sql::{Answer, Dialect, Kept, Sql, SqlSession};
use onedrop_core::ledger::LedgerError;
use onedrop_core::message::Identity;

pub(super) const DIALECT: Dialect = Dialect(&[
    ("now", "UTC_TIMESTAMP(6)"),
    ("secs", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', @) * 0.000001"),
    ("whole", "TIMESTAMPDIFF(SECOND, '1970-01-01', @)"),
    ("minute", "TIMESTAMPDIFF(MINUTE, '1970-01-01', @)"),
    ("fence", ""),
    (
        "received",
        "SELECT DISTINCT message_id FROM onedrop_attempt
         WHERE recipient = @2 AND message_id IS NOT NULL AND message_id < @3
         ORDER BY message_id DESC LIMIT @4",
    ),
    ("ago", "TIMESTAMPDIFF(MICROSECOND, @, UTC_TIMESTAMP(6)) * 0.000001"),
    ("at", "TIMESTAMPADD(MICROSECOND, 1000000 * @, '1970-01-01')"),
    ("before", "TIMESTAMPADD(MICROSECOND, -1000000 * @, UTC_TIMESTAMP(6))"),
    ("less", "@1 - INTERVAL @2 SECOND"),
    ("since", "TIMESTAMPADD(MICROSECOND, -1000000 * @, UTC_TIMESTAMP(6))"),
    ("ahead_ms", "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), @) DIV 1000"),
    ("message_of", "STRAIGHT_JOIN onedrop_message m ON m.id = @"),
    ("tells", "LOCATE(CONCAT('account=', CONVERT(@2 USING utf8mb4), ' '), @1) > 0"),
    ("attempt_of", "STRAIGHT_JOIN onedrop_attempt a ON a.id = @"),
    ("by_hash", ""),
    ("bytes", "x'@'"),
    ("folded", "@"),
    ("given", "@2"),
    ("fold", "@2"),
    (
        "from_has",
        "EXISTS (SELECT 1 FROM onedrop_address one
                 WHERE one.message_id = @1.id AND one.role = 'from'
                   AND LOCATE(LOWER(@2), LOWER(one.address)) > 0)",
    ),
    ("iso", "DATE_FORMAT(@, '%Y-%m-%dT%H:%i:%sZ')"),
    ("iso_ms", "DATE_FORMAT(@, '%Y-%m-%dT%H:%i:%sZ')"),
    ("lease_time", "c.leased_until"),
    ("soon", "recorded_at + INTERVAL 5 SECOND"),
    ("later", "TIMESTAMPADD(MICROSECOND, 1000000 * @, UTC_TIMESTAMP(6))"),
    ("int", "@"),
    ("millis", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', @) DIV 1000"),
    ("has", "LOCATE(LOWER(@2), LOWER(@)) > 0"),
    ("upsert", "ON DUPLICATE KEY UPDATE"),
    ("new", "VALUES(@)"),
    ("same", "@ <=> @2"),
    ("hashed", "@ = @2"),
    ("digested", "@ = @2"),
    ("locked", "FOR UPDATE"),
    ("locked_at_once", "FOR UPDATE NOWAIT"),
    ("locked_or_left", "FOR UPDATE SKIP LOCKED"),
    ("locked_but_key", "FOR UPDATE"),
    ("lease_left", "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), @leased_until) * 0.000001"),
    ("lock_left", "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), @lease_until) * 0.000001"),
    ("lock_lasts", "lease_until = TIMESTAMPADD(MICROSECOND, 1000000 * @, UTC_TIMESTAMP(6))"),
    ("with_copies", "STRAIGHT_JOIN onedrop_copy c ON @"),
    // To the last copy of each account (Using index for group-by): nothing brings the server to
    // begin each account's part of the index in the middle.
    (
        "accounts",
        "SELECT account FROM onedrop_copy WHERE account > @
         GROUP BY account HAVING MAX(message_id) >= @3 ORDER BY account",
    ),
    ("then", "STRAIGHT_JOIN"),
    (
        "old_raw",
        "SELECT 0, r.message_id FROM onedrop_raw r
         WHERE r.position = 0 AND r.message_id > @2
           AND r.kept_at < TIMESTAMPADD(MICROSECOND, 1000000 * @, '1970-01-01')
         ORDER BY r.message_id",
    ),
    ("stay", "LOCK IN SHARE MODE"),
    ("copy_key", "FORCE INDEX (onedrop_copy_key)"),
    ("set_lease", "leased_until = TIMESTAMPADD(MICROSECOND, @, UTC_TIMESTAMP(6))"),
    ("no_lease", "leased_until = NULL"),
    ("lease_columns", "leased_until"),
    ("lease_values", "TIMESTAMPADD(MICROSECOND, @, UTC_TIMESTAMP(6))"),
    ("nobody", "''"),
]);

impl SqlSession for MariadbSession {
    type Row = Row;

    fn dialect() -> &'static Dialect {
        &DIALECT
    }

    fn read(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::read(self, spelt(statements)).map(|answers| own(answers, statements))
    }

    fn write(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::write(self, spelt(statements)).map(|answers| own(answers, statements))
    }

    fn begin(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::begin(self, spelt(statements))
    }

    fn begin_or_go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::begin_or_go_on(self, spelt(statements))
    }

    fn go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::go_on(self, spelt(statements))
    }

    fn commit(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::commit(self, spelt(statements)).map(|answers| own(answers, statements))
    }

    fn rollback(&mut self) -> Result<(), LedgerError> {
        MariadbSession::rollback(self)
    }

    fn revive(&mut self) -> Result<(), LedgerError> {
        MariadbSession::revive(self)
    }

    fn is_duplicate(error: &LedgerError) -> bool {
        errors::is_duplicate(error)
    }

    fn put_kept(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<(), LedgerError> {
        kept::put_kept(self, message, bytes, why)
    }

    fn put_raw<'a>(
        &mut self,
        statements: &mut Vec<Sql<'a>>,
        _message: &'a Identity,
        bytes: &'a [u8],
    ) -> Result<(), LedgerError> {
        kept::put_raw(self, spelt(&std::mem::take(statements)), bytes)
    }

    fn saw(&mut self, version: (i64, i64), config: Option<String>) {
        MariadbSession::saw(self, Seen { version, config });
    }

    fn bytes_of(&mut self, message: i64, kept: Kept) -> Result<Option<Vec<u8>>, LedgerError> {
        let (whole, pieces) = match kept {
            Kept::ForCopies => (
                "SELECT 1 FROM onedrop_kept WHERE message_id = ?1",
                "SELECT bytes FROM onedrop_kept_bytes WHERE message_id = ?1 AND position = ?2",
            ),
            Kept::Raw => (
                "SELECT 1 FROM onedrop_raw WHERE message_id = ?1 AND position = 0",
                "SELECT bytes FROM onedrop_raw WHERE message_id = ?1 AND position = ?2",
            ),
        };
        let mut bytes = Vec::new();
        for position in 0i64.. {
            match first::<Vec<u8>>(&self.query(pieces, values![message, position])?)? {
                Some(piece) => bytes.extend(piece),
                None => break,
            }
        }
        // All pieces go at once: where something is there still, it was read whole.
        Ok(first::<i64>(&self.query(whole, values![message])?)?.map(|_| bytes))
    }
}

/// Without the answer to COMMIT.
fn own(mut answers: Vec<Answer<Row>>, statements: &[Sql<'_>]) -> Vec<Answer<Row>> {
    answers.truncate(statements.len());
    answers
}

pub(super) fn spelt(statements: &[Sql<'_>]) -> SqlBatch {
    let mut batch = SqlBatch::default();
    for sql in statements {
        batch.add(&DIALECT.spell(&sql.text), &sql.values);
    }
    batch
}
