//! How Postgres spells the ledger's SQL, and what its session does with statements.

use postgres::Row;
use postgres::types::Type;

use super::connection::{Connection, Statement, TransactionMode};
use crate::sql::{Answer, Dialect, Sql, SqlSession, Value};
use onedrop_core::ledger::LedgerError;

const DIALECT: Dialect = Dialect(&[
    ("now", "clock_timestamp()"),
    ("secs", "extract(epoch FROM @)::float8"),
    ("whole", "extract(epoch FROM @)::bigint"),
    ("ago", "extract(epoch FROM clock_timestamp() - @)::float8"),
    ("at", "to_timestamp(@)"),
    ("before", "(clock_timestamp() - @ * interval '1 second')"),
    ("since", "(now() - @ * interval '1 second')"),
    ("ahead_ms", "(1000 * extract(epoch FROM @ - clock_timestamp()))::bigint"),
    ("lease_end", "c.leased_until"),
    ("lease_now", "clock_timestamp()"),
    ("copy_of", "CROSS JOIN LATERAL (SELECT * FROM onedrop_copy WHERE id = @ OFFSET 0) c"),
    ("message_of", "CROSS JOIN LATERAL (SELECT * FROM onedrop_message WHERE id = @ OFFSET 0) m"),
    ("ended", "c.attempt_id"),
    ("ended_ms", "c.attempt_ms"),
    ("later", "(clock_timestamp() + @ * interval '1 second')"),
    ("int", "(@)::bigint"),
    ("true", "true"),
    ("false", "false"),
    ("has", "position(lower(@2) IN lower(@)) > 0"),
    ("upsert", "ON CONFLICT (@) DO UPDATE SET"),
    ("new", "excluded.@"),
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

    fn go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        self.go_on_all(&spelt(statements))
    }

    fn commit(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        self.send_and_end(TransactionMode::Write, &spelt(statements))
    }

    fn rollback(&mut self) -> Result<(), LedgerError> {
        Connection::rollback(self)
    }
}

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
        Value::Text(text) => statement.with(text.as_deref(), Type::TEXT),
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
