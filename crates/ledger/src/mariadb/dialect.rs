//! How MariaDB spells the ledger's SQL, and what its session does with statements.

use mysql_async::Row;

use super::connection::MariadbSession;
use super::statement::SqlBatch;
use crate::sql::{Answer, Dialect, Sql, SqlSession};
use onedrop_core::ledger::LedgerError;

const DIALECT: Dialect = Dialect(&[
    ("now", "UTC_TIMESTAMP(6)"),
    ("secs", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', @) / 1000000"),
    ("whole", "TIMESTAMPDIFF(SECOND, '1970-01-01', @)"),
    ("ago", "TIMESTAMPDIFF(MICROSECOND, @, UTC_TIMESTAMP(6)) / 1000000"),
    ("at", "TIMESTAMPADD(MICROSECOND, 1000000 * @, '1970-01-01')"),
    ("before", "TIMESTAMPADD(MICROSECOND, -1000000 * @, UTC_TIMESTAMP(6))"),
    ("since", "TIMESTAMPADD(MICROSECOND, -1000000 * @, UTC_TIMESTAMP(6))"),
    ("ahead_ms", "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), @) DIV 1000"),
    ("lease_end", "c.leased_until"),
    ("lease_now", "UTC_TIMESTAMP(6)"),
    ("copy_of", "STRAIGHT_JOIN onedrop_copy c ON c.id = @"),
    ("message_of", "STRAIGHT_JOIN onedrop_message m ON m.id = @"),
    ("ended", "NULL"),
    ("ended_ms", "NULL"),
    ("later", "TIMESTAMPADD(MICROSECOND, 1000000 * @, UTC_TIMESTAMP(6))"),
    ("int", "@"),
    ("true", "TRUE"),
    ("false", "FALSE"),
    ("has", "LOCATE(LOWER(@2), LOWER(@)) > 0"),
    ("upsert", "ON DUPLICATE KEY UPDATE"),
    ("new", "VALUES(@)"),
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

    fn go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::go_on(self, spelt(statements))
    }

    fn commit(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::commit(self, spelt(statements)).map(|answers| own(answers, statements))
    }

    fn rollback(&mut self) -> Result<(), LedgerError> {
        MariadbSession::rollback(self)
    }
}

/// Without the answer to COMMIT.
fn own(mut answers: Vec<Answer<Row>>, statements: &[Sql<'_>]) -> Vec<Answer<Row>> {
    answers.truncate(statements.len());
    answers
}

fn spelt(statements: &[Sql<'_>]) -> SqlBatch {
    let mut batch = SqlBatch::default();
    for sql in statements {
        batch.add(&DIALECT.spell(&sql.text), &sql.values);
    }
    batch
}
