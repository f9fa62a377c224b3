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
        MariadbSession::read(self, spelt(statements))
    }

    fn write(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::write(self, spelt(statements))
    }

    fn begin(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::begin(self, spelt(statements))
    }

    fn go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::go_on(self, spelt(statements))
    }

    fn commit(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Row>>, LedgerError> {
        MariadbSession::commit(self, spelt(statements))
    }

    fn rollback(&mut self) -> Result<(), LedgerError> {
        MariadbSession::rollback(self)
    }
}

fn spelt(statements: &[Sql<'_>]) -> SqlBatch {
    let mut batch = SqlBatch::default();
    for sql in statements {
        batch.add(&DIALECT.spell(&sql.text), &sql.values);
    }
    batch
}
