//! How SQLite spells the ledger's SQL, and what a session on its file does with statements. Times
//! are the session's clocks', which a test can move: `:now` is a value that follows a statement's
//! own, and so are `:boot`, the seconds since the host's boot, and `:boot_id`, by which leases
//! count.

#[cfg(test)]
use std::cell::RefCell;

use std::sync::Arc;
use std::time::Instant;

use rusqlite::Row;
use rusqlite::types::{ToSql, ToSqlOutput, Value as OwnedCell, ValueRef};

use super::clock::lease_end;
use super::{Classified, KEPT_STATEMENTS, SqliteSession, first};
use crate::rows::{self, Cell, SqlRow};
use crate::sql::{ACCOUNTS, Answer, Dialect, Kept, Sql, SqlSession, Value};
use onedrop_core::ledger::{LedgerError, time_millis};

pub(super) const DIALECT: Dialect = Dialect(&[
    ("now", ":now"),
    ("secs", "@"),
    ("whole", "CAST(@ AS INTEGER)"),
    ("minute", "CAST(@ / 60 AS INTEGER)"),
    ("fence", ""),
    (
        "received",
        "SELECT DISTINCT message_id FROM onedrop_attempt
         WHERE recipient = @2 AND message_id IS NOT NULL AND message_id < @3
         ORDER BY message_id DESC LIMIT @4",
    ),
    ("ago", "(:now - @)"),
    ("at", "@"),
    ("before", "(:now - @)"),
    ("less", "@1 - @2"),
    ("since", "(:now - @)"),
    ("ahead_ms", "NULL"),
    ("message_of", "CROSS JOIN onedrop_message m ON m.id = @"),
    ("tells", "instr(@1, 'account=' || @2 || ' ') > 0"),
    ("attempt_of", "CROSS JOIN onedrop_attempt a ON a.id = @"),
    ("by_hash", "INDEXED BY onedrop_attempt_id_hash"),
    ("bytes", "x'@'"),
    ("folded", "@"),
    ("given", "@2"),
    ("fold", "@2"),
    (
        "from_has",
        "EXISTS (SELECT 1 FROM json_each(@1.addresses) one
                 WHERE one.value->>0 = 'from' AND instr(lower(one.value->>1), lower(@2)) > 0)",
    ),
    ("iso", "strftime('%Y-%m-%dT%H:%M:%SZ', @, 'unixepoch')"),
    ("iso_ms", "strftime('%Y-%m-%dT%H:%M:%SZ', @, 'unixepoch')"),
    (
        "lease_time",
        concat!(
            "(:now - :boot + ",
            lease_end!("c.leased_until", "c.lease_boot", "c.lease_ms", ":boot", ":boot_id"),
            ")"
        ),
    ),
    ("soon", "recorded_at + 5"),
    ("later", "(:now + @)"),
    ("int", "@"),
    ("millis", "CAST(round(@ * 1000) AS INTEGER)"),
    ("has", "instr(lower(@), lower(@2)) > 0"),
    ("upsert", "ON CONFLICT (@) DO UPDATE SET"),
    ("new", "excluded.@"),
    ("same", "@ IS @2"),
    ("hashed", "(substr(@, 1, 8) = substr(@2, 1, 8) AND @ = @2)"),
    ("digested", "(substr(@, 1, 16) = substr(@2, 1, 16) AND @ = @2)"),
    ("locked", ""),
    ("locked_at_once", ""),
    ("locked_or_left", ""),
    ("locked_but_key", ""),
    (
        "lease_left",
        concat!(
            "(",
            lease_end!("@leased_until", "@lease_boot", "@lease_ms", ":boot", ":boot_id"),
            " - :boot)"
        ),
    ),
    (
        "lock_left",
        concat!(
            "(",
            lease_end!("@lease_until", "@boot_id", "@lease_ms", ":boot", ":boot_id"),
            " - :boot)"
        ),
    ),
    ("lock_lasts", "lease_until = :boot + @, boot_id = :boot_id"),
    // CROSS JOIN keeps SQLite from reading all copies.
    ("with_copies", "CROSS JOIN onedrop_copy c ON @"),
    ("accounts", ACCOUNTS),
    ("then", "CROSS JOIN"),
    (
        "old_raw",
        "SELECT 0, m.id FROM onedrop_message m
         WHERE m.id IN (SELECT message_id FROM onedrop_raw) AND m.recorded_at < @ AND m.id > @2
         ORDER BY m.id",
    ),
    ("stay", ""),
    ("copy_key", "INDEXED BY sqlite_autoindex_onedrop_copy_1"),
    ("set_lease", "leased_until = :boot + @ / 1e6, lease_boot = :boot_id"),
    ("no_lease", "leased_until = NULL, lease_boot = NULL"),
    ("lease_columns", "leased_until, lease_boot"),
    ("lease_values", ":boot + @ / 1e6, :boot_id"),
    ("nobody", "NULL"),
]);

/// A statement in SQLite's words.
pub(super) struct SpeltSql {
    text: String,
    /// How many values it was given.
    values: usize,
    /// The times that follow them.
    times: Vec<&'static str>,
}

impl SpeltSql {
    fn of(sql: &Sql<'_>) -> Result<SpeltSql, LedgerError> {
        let (mut text, values) = (DIALECT.spell(&sql.text).into_owned(), sql.values.len());
        if last_place(&text) > values {
            // SQLite would take NULL for it.
            let text = format!("a statement with {values} values lacks one: {text}");
            return Err(LedgerError::Refused(text));
        }
        let mut times = Vec::new();
        for name in [":now", ":boot_id", ":boot"] {
            if text.contains(name) {
                times.push(name);
                text = text.replace(name, &format!("?{}", values + times.len()));
            }
        }
        Ok(SpeltSql { text, values, times })
    }
}

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
    pub fn or_roll_back<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let result = work(self);
        if result.is_err() {
            // If this fails too, the next transaction begins with it, or the session is closed.
            let _ = self.roll_back();
        }
        result
    }

    pub fn roll_back(&mut self) -> Result<(), LedgerError> {
        match (self.connection.is_autocommit(), self.is_shared) {
            (true, _) => Ok(()),
            (false, true) => {
                self.connection.execute_batch("ROLLBACK TO one; RELEASE one").classified()
            }
            (false, false) => self.connection.execute_batch("ROLLBACK").classified(),
        }
    }

    fn all(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        let now = rows::secs(self.clocks.wall());
        statements.iter().map(|sql| self.run(sql, now)).collect()
    }

    /// In SQLite's words, which are kept as long as statements are.
    fn spelt(&mut self, sql: &Sql<'_>) -> Result<Arc<SpeltSql>, LedgerError> {
        let known = self.spelt.get(&*sql.text);
        if let Some(spelt) = known.filter(|spelt| spelt.values == sql.values.len()) {
            return Ok(Arc::clone(spelt));
        }
        if self.spelt.len() >= KEPT_STATEMENTS {
            self.spelt.clear();
        }
        let spelt = Arc::new(SpeltSql::of(sql)?);
        self.spelt.insert(sql.text.clone().into_owned(), Arc::clone(&spelt));
        Ok(spelt)
    }

    fn run(&mut self, sql: &Sql<'_>, now: f64) -> Result<Answer<SqliteRow>, LedgerError> {
        let spelt = self.spelt(sql)?;
        let SpeltSql { text, times, .. } = &*spelt;
        #[cfg(test)]
        SENT.with_borrow_mut(|sent| sent.push(text.clone()));
        let mut statement = self.connection.prepare_cached(text).classified()?;
        // A value that no fragment uses is none of the statement's.
        let count = statement.parameter_count();
        for (at, value) in (1..=count).zip(&sql.values) {
            statement.raw_bind_parameter(at, value).classified()?;
        }
        for (at, name) in (sql.values.len() + 1..).zip(times) {
            let time: Value<'_> = match *name {
                ":now" => now.into(),
                ":boot_id" => self.clocks.boot()?.id.into(),
                _ => self.clocks.boot()?.secs.into(),
            };
            statement.raw_bind_parameter(at, time).classified()?;
        }
        let is_query = statement.readonly();
        let columns = statement.column_count();
        let (mut rows, mut all) = (statement.raw_query(), Vec::new());
        while let Some(row) = rows.next().classified()? {
            all.push(owned(row, columns)?);
        }
        // Without what goes along by a foreign key.
        let count = if is_query { 0 } else { self.connection.changes() };
        Ok(Answer { rows: all, count })
    }

    /// Waits for the file's write lock.
    pub fn begin_to_write(&mut self) -> Result<(), LedgerError> {
        if self.is_shared {
            return match self.connection.is_autocommit() {
                false => self.connection.execute_batch("SAVEPOINT one").classified(),
                // An error of the disk ends it for all. A savepoint alone would be another.
                true => Err(LedgerError::Unavailable("the transaction has ended".to_owned())),
            };
        }
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
            let end = if session.is_shared { "RELEASE one" } else { "COMMIT" };
            session.connection.execute_batch(end).classified()?;
            Ok(answers)
        })
    }

    fn rollback(&mut self) -> Result<(), LedgerError> {
        self.roll_back()
    }

    fn change_unsynced(&mut self, statement: &Sql<'_>) -> Result<u64, LedgerError> {
        self.unsynced(|session| session.change(statement))
    }

    fn revive(&mut self) -> Result<(), LedgerError> {
        // A file does not die.
        Ok(())
    }

    fn is_duplicate(error: &LedgerError) -> bool {
        matches!(error, LedgerError::Refused(why) if why.starts_with("UNIQUE constraint failed"))
    }

    fn bytes_of(&mut self, message: i64, kept: Kept) -> Result<Option<Vec<u8>>, LedgerError> {
        let sql = match kept {
            Kept::ForCopies => "SELECT bytes FROM onedrop_kept WHERE message_id = ?1",
            Kept::Raw => "SELECT bytes FROM onedrop_raw WHERE message_id = ?1",
        };
        first(&self.connection, sql, [message])
    }
}

#[cfg(test)]
thread_local! {
    /// Every statement that this thread sent.
    pub static SENT: RefCell<Vec<String>> = RefCell::default();
}

/// The highest number after a question mark.
fn last_place(sql: &str) -> usize {
    let number = |part: &str| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..end].parse().unwrap_or(0)
    };
    sql.split('?').skip(1).map(number).max().unwrap_or(0)
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
            Value::Time(time) => time.map(|time| ValueRef::Real(time_millis(time) as f64 / 1000.0)),
        };
        Ok(ToSqlOutput::Borrowed(cell.unwrap_or(ValueRef::Null)))
    }
}
