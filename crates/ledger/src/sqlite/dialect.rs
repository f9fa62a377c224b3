//! How SQLite spells the ledger's SQL, and what a session on its file does with statements. Times
//! are the session's clocks', which a test can move: `:now` is a value that follows a statement's
//! own, and so are `:boot`, the seconds since the host's boot, and `:boot_id`, by which leases
//! count.

use rusqlite::types::{ToSql, ToSqlOutput, Value as OwnedCell, ValueRef};
use rusqlite::{Connection, Row};
use std::time::Instant;

use super::{Classified, Clocks, SqliteSession};
use crate::rows::{self, Cell, SqlRow};
use crate::sql::{Answer, Dialect, Sql, SqlSession, Value};
use onedrop_core::ledger::LedgerError;

const DIALECT: Dialect = Dialect(&[
    ("now", ":now"),
    ("secs", "@"),
    ("whole", "CAST(@ AS INTEGER)"),
    ("ago", "(:now - @)"),
    ("at", "@"),
    ("before", "(:now - @)"),
    ("later", "(:now + @)"),
    ("int", "@"),
    ("true", "1"),
    ("false", "0"),
    ("has", "instr(lower(@), lower(@2)) > 0"),
    ("upsert", "ON CONFLICT (@) DO UPDATE SET"),
    ("new", "excluded.@"),
]);

/// A row that outlives its statement.
#[derive(Debug)]
pub struct SqliteRow(Vec<OwnedCell>);

impl SqlRow for SqliteRow {
    fn cell<T: Cell>(&self, at: usize) -> Result<T, LedgerError> {
        let broken =
            |why: &dyn std::fmt::Display| LedgerError::Broken(format!("column {at}: {why}"));
        let cell = self.0.get(at).ok_or_else(|| broken(&"no such column"))?;
        T::column_result(ValueRef::from(cell)).map_err(|error| broken(&error))
    }
}

impl SqliteSession {
    /// Runs `work`, and rolls back if it fails.
    fn or_roll_back<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let result = work(self);
        if result.is_err() {
            self.roll_back()?;
        }
        result
    }

    fn roll_back(&mut self) -> Result<(), LedgerError> {
        match self.connection.is_autocommit() {
            true => Ok(()),
            false => self.connection.execute_batch("ROLLBACK").classified(),
        }
    }

    fn all(&self, statements: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        let now = rows::secs(self.clocks.wall());
        statements.iter().map(|sql| run(&self.connection, sql, now, &*self.clocks)).collect()
    }

    /// Waits for the file's write lock.
    fn begin_to_write(&mut self) -> Result<(), LedgerError> {
        self.roll_back()?;
        let left = self.until.saturating_duration_since(Instant::now());
        self.connection.busy_timeout(left).classified()?;
        self.connection.execute_batch("BEGIN IMMEDIATE").classified()
    }
}

impl SqlSession for SqliteSession {
    type Row = SqliteRow;

    fn dialect() -> &'static Dialect {
        &DIALECT
    }

    fn read(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        self.roll_back()?;
        if statements.len() == 1 {
            return self.all(statements);
        }
        self.connection.execute_batch("BEGIN").classified()?;
        let answers = self.or_roll_back(|session| session.all(statements))?;
        self.roll_back()?;
        Ok(answers)
    }

    fn write(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        self.begin_to_write()?;
        SqlSession::commit(self, statements)
    }

    fn begin(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        self.begin_to_write()?;
        SqlSession::go_on(self, statements)
    }

    fn go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        self.or_roll_back(|session| session.all(statements))
    }

    fn commit(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        self.or_roll_back(|session| {
            let answers = session.all(statements)?;
            session.connection.execute_batch("COMMIT").classified()?;
            Ok(answers)
        })
    }

    fn rollback(&mut self) -> Result<(), LedgerError> {
        self.roll_back()
    }
}

fn run(
    connection: &Connection,
    sql: &Sql<'_>,
    now: f64,
    clocks: &dyn Clocks,
) -> Result<Answer<SqliteRow>, LedgerError> {
    let mut text = DIALECT.spell(&sql.text).into_owned();
    let mut values = sql.values.clone();
    let (has_now, has_boot) = (text.contains(":now"), text.contains(":boot"));
    let mut stands_for = |name: &str, value: Value<'static>| {
        values.push(value);
        text = text.replace(name, &format!("?{}", values.len()));
    };
    if has_now {
        stands_for(":now", now.into());
    }
    if has_boot {
        let boot = clocks.boot()?;
        stands_for(":boot_id", boot.id.into());
        stands_for(":boot", boot.secs.into());
    }
    let mut statement = connection.prepare_cached(&text).classified()?;
    for (at, value) in (1..).zip(&values) {
        statement.raw_bind_parameter(at, value).classified()?;
    }
    let before = connection.total_changes();
    let columns = statement.column_count();
    let (mut rows, mut all) = (statement.raw_query(), Vec::new());
    while let Some(row) = rows.next().classified()? {
        all.push(owned(row, columns)?);
    }
    let count = connection.total_changes().saturating_sub(before);
    Ok(Answer { rows: all, count })
}

fn owned(row: &Row<'_>, columns: usize) -> Result<SqliteRow, LedgerError> {
    (0..columns).map(|at| row.get(at)).collect::<rusqlite::Result<_>>().map(SqliteRow).classified()
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let cell = match self {
            Value::Number(number) => number.map(ValueRef::Integer),
            Value::Seconds(secs) => secs.map(ValueRef::Real),
            Value::Flag(flag) => flag.map(|flag| ValueRef::Integer(flag.into())),
            Value::Bytes(bytes) => bytes.as_deref().map(ValueRef::Blob),
            Value::Text(text) => text.as_deref().map(|text| ValueRef::Text(text.as_bytes())),
            Value::Time(time) => time.map(|time| ValueRef::Real(rows::secs(time))),
        };
        Ok(ToSqlOutput::Borrowed(cell.unwrap_or(ValueRef::Null)))
    }
}
