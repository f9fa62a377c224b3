//! How Postgres spells the ledger's SQL, and what its session does with statements.

use std::os::fd::BorrowedFd;

use postgres::Row;
use postgres::types::Type;

use super::connection::{Connection, Statement, TransactionMode};
use crate::rows::SqlRow;
use crate::sql::{ACCOUNTS, Answer, Dialect, Kept, Sql, SqlSession, Value, sql};
use onedrop_core::ledger::LedgerError;
use onedrop_core::message::Identity;

pub(super) const DIALECT: Dialect = Dialect(&[
    ("now", "clock_timestamp()"),
    ("secs", "extract(epoch FROM @)::float8"),
    ("whole", "extract(epoch FROM @)::bigint"),
    ("minute", "floor(extract(epoch FROM @) / 60)::bigint"),
    ("fence", "OFFSET 0"),
    (
        "received",
        "WITH RECURSIVE got (message_id) AS (
             SELECT max(message_id) FROM onedrop_attempt
             WHERE lower(recipient) COLLATE \"C\" = lower(@2) AND message_id IS NOT NULL
               AND message_id < @3
             UNION ALL
             SELECT (SELECT max(message_id) FROM onedrop_attempt
                     WHERE lower(recipient) COLLATE \"C\" = lower(@2) AND message_id IS NOT NULL
                       AND message_id < got.message_id)
             FROM got WHERE got.message_id IS NOT NULL)
         SELECT message_id FROM got WHERE message_id IS NOT NULL LIMIT @4",
    ),
    ("ago", "extract(epoch FROM clock_timestamp() - @)::float8"),
    ("at", "to_timestamp(@)"),
    ("before", "(clock_timestamp() - @ * interval '1 second')"),
    ("less", "@1 - interval '@2 seconds'"),
    ("since", "(now() - @ * interval '1 second')"),
    ("ahead_ms", "(1000 * extract(epoch FROM @ - clock_timestamp()))::bigint"),
    ("message_of", "CROSS JOIN LATERAL (SELECT * FROM onedrop_message WHERE id = @ OFFSET 0) m"),
    ("tells", "position('account=' || @2 || ' ' IN @1) > 0"),
    ("attempt_of", "CROSS JOIN LATERAL (SELECT * FROM onedrop_attempt WHERE id = @ OFFSET 0) a"),
    ("by_hash", ""),
    ("bytes", r"'\x@'::bytea"),
    ("folded", r#"lower(@) COLLATE "C""#),
    ("given", "@1"),
    ("fold", "lower(@2)"),
    (
        "from_has",
        "EXISTS (SELECT FROM json_array_elements(@1.addresses::json) one
                 WHERE one->>0 = 'from' AND position(lower(@2) IN lower(one->>1)) > 0)",
    ),
    ("iso", r#"to_char(@ AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"#),
    ("iso_ms", r#"to_char(@ AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"#),
    ("lease_time", "c.leased_until"),
    ("soon", "recorded_at + interval '5 seconds'"),
    ("later", "(clock_timestamp() + @ * interval '1 second')"),
    ("int", "(@)::bigint"),
    ("millis", "(extract(epoch FROM @) * 1000)::bigint"),
    ("has", "position(lower(@2) IN lower(@)) > 0"),
    ("upsert", "ON CONFLICT (@) DO UPDATE SET"),
    ("new", "excluded.@"),
    ("same", "@ IS NOT DISTINCT FROM @2"),
    ("hashed", "(substring(@ FOR 8) = substring(@2 FOR 8) AND @ = @2)"),
    ("digested", "(substring(@ FOR 16) = substring(@2 FOR 16) AND @ = @2)"),
    ("locked", "FOR UPDATE OF @"),
    ("locked_at_once", "FOR UPDATE OF @ NOWAIT"),
    ("locked_or_left", "FOR UPDATE OF @ SKIP LOCKED"),
    ("locked_but_key", "FOR NO KEY UPDATE OF @"),
    ("lease_left", "extract(epoch FROM @leased_until - clock_timestamp())::float8"),
    ("lock_left", "extract(epoch FROM @lease_until - clock_timestamp())::float8"),
    ("lock_lasts", "lease_until = clock_timestamp() + @ * interval '1 second'"),
    // OFFSET keeps the server from joining all copies where it does not know how few rows there are
    // to join them to.
    ("with_copies", "CROSS JOIN LATERAL (SELECT * FROM onedrop_copy c WHERE @ OFFSET 0) c"),
    // A subquery with a LIMIT is asked for each account; EXISTS may become a join of whole tables.
    ("accounts", ACCOUNTS),
    ("then", "JOIN"),
    (
        "old_raw",
        "SELECT 0::bigint, m.id FROM onedrop_message m
         WHERE m.id IN (SELECT r.message_id FROM onedrop_raw r)
           AND m.recorded_at < to_timestamp(@) AND m.id > @2
         ORDER BY m.id",
    ),
    ("stay", "FOR KEY SHARE"),
    ("copy_key", ""),
    ("set_lease", "leased_until = clock_timestamp() + @ * interval '1 microsecond'"),
    ("no_lease", "leased_until = NULL"),
    ("lease_columns", "leased_until"),
    ("lease_values", "clock_timestamp() + @ * interval '1 microsecond'"),
    ("nobody", "NULL"),
]);

impl SqlSession for Connection {
    type Row = Row;

    fn dialect() -> &'static Dialect {
        &DIALECT
    }

    fn read(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        Connection::rollback(self)?;
        self.send_and_end(TransactionMode::Read, &spelt(statements))
    }

    fn write(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        Connection::rollback(self)?;
        self.send_and_end(TransactionMode::Write, &spelt(statements))
    }

    fn begin(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        self.begin_all(&spelt(statements))
    }

    fn begin_or_go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        match self.is_in_transaction() {
            true => SqlSession::go_on(self, statements),
            false => SqlSession::begin(self, statements),
        }
    }

    fn go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        self.go_on_all(&spelt(statements))
    }

    fn commit(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        self.send_and_end(TransactionMode::Write, &spelt(statements))
    }

    fn rollback(&mut self) -> Result<(), LedgerError> {
        Connection::rollback(self)
    }

    fn change_unsynced(&mut self, statement: &Sql<'_>) -> Result<u64, LedgerError> {
        // The commit waits for no disk and no standby; but for those of others that notify, where a
        // lock is given back for which somebody waits.
        let unsynced = Statement::new("SET LOCAL synchronous_commit = off");
        Connection::rollback(self)?;
        let all = [unsynced, self::statement(statement)];
        let answers = self.send_and_end(TransactionMode::Write, &all)?;
        Ok(answers.last().map_or(0, |answer| answer.count))
    }

    fn revive(&mut self) -> Result<(), LedgerError> {
        Connection::revive(self)
    }

    fn wait_for_word(
        &mut self,
        channel: &str,
        others: &[BorrowedFd<'_>],
    ) -> Result<bool, LedgerError> {
        self.listen(channel, others)
    }

    fn announce<'a>(&self, message: &'a Identity) -> Option<Sql<'a>> {
        let text = "SELECT pg_notify('onedrop_message', id::text) FROM onedrop_message
                    WHERE {hashed(id_hash, ?1)} AND {digested(digest, ?2)}";
        self.notifies().then(|| sql!(text, &message.id_hash, &message.digest))
    }

    fn is_duplicate(error: &LedgerError) -> bool {
        // unique_violation
        matches!(error, LedgerError::Refused(why) if why.starts_with("23505"))
    }

    fn bytes_of(&mut self, message: i64, kept: Kept) -> Result<Option<Vec<u8>>, LedgerError> {
        let table = match kept {
            Kept::ForCopies => "onedrop_kept",
            Kept::Raw => "onedrop_raw",
        };
        let sql = format!(
            "SELECT substring(bytes FROM $2 FOR {PIECE_BYTES}) FROM {table} WHERE message_id = $1"
        );
        let mut bytes: Vec<u8> = Vec::new();
        loop {
            let from = i32::try_from(bytes.len() + 1).unwrap_or(i32::MAX);
            let piece = Statement::new(&*sql).with(message, Type::INT8).with(from, Type::INT4);
            let rows = self.query(piece)?;
            let Some(row) = rows.first() else { return Ok(None) };
            let piece: Vec<u8> = row.cell(0)?;
            let is_last = piece.len() < PIECE_BYTES;
            bytes.extend(piece);
            if is_last {
                return Ok(Some(bytes));
            }
        }
    }
}

/// Bytes of a message that are asked for at a time: an answer is bounded, a message is not.
const PIECE_BYTES: usize = 4 * 1024 * 1024;

fn spelt<'a>(statements: &'a [Sql<'_>]) -> Vec<Statement<'a>> {
    statements.iter().map(statement).collect()
}

fn statement<'a>(sql: &'a Sql<'_>) -> Statement<'a> {
    let text = with_dollars(&DIALECT.spell(&sql.text));
    sql.values.iter().fold(Statement::new(text), |statement, value| match value {
        Value::Number(number) => statement.with(*number, Type::INT8),
        Value::Seconds(secs) => statement.with(*secs, Type::FLOAT8),
        Value::Flag(flag) => statement.with(*flag, Type::BOOL),
        Value::Bytes(bytes) => statement.with(bytes.as_deref(), Type::BYTEA),
        // Text in Postgres cannot hold NUL.
        Value::Text(text) => {
            statement.with(text.as_deref().map(|text| text.replace('\0', "\u{FFFD}")), Type::TEXT)
        }
        Value::Time(time) => statement.with(*time, Type::TIMESTAMPTZ),
    })
}

/// `?1` as `$1`. A question mark that no digit follows stands in a text.
fn with_dollars(sql: &str) -> String {
    let is_place = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    let mut parts = sql.split('?');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push(if is_place(part) { '$' } else { '?' });
        text.push_str(part);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_for_a_value_becomes_a_dollar() {
        assert_eq!(with_dollars("?12, 'uid=?', ?1"), "$12, 'uid=?', $1");
    }
}
