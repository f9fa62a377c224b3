//! The ledger in an SQLite file, for one host: nothing to install, made by `migrate`. It keeps the
//! whole promise of the port; `NOTIFY` has no counterpart. It relies on a local file system,
//! because WAL and locks do not work over NFS.
//!
//! Locks are bytes of a file beside the database (`byte_lock`), so no SQLite transaction is open
//! while the store works. With WAL and synchronous=FULL a commit is durable when it returns (but
//! the giving back of a named lock), and the names of the files are durable before the first one.
//! Closing keeps the WAL: otherwise each process with one delivery would run a checkpoint.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Params, Row, Transaction, TransactionBehavior};

use crate::pooled::Traits;
use crate::rows::{Cell, SqlRow};
use crate::sql::{Sql, SqlSession, claims, record, rows_at};
use crate::{Committed, PooledLedger, Session, ToRecord, TurnState, rows};
use onedrop_core::ledger::{
    Claim, Confirmed, LedgerError, PlannedStep, Program, Recorded, SchemaVersion, ToConfirm, claim,
};
use onedrop_core::lock_key::{self, Hash};
use onedrop_core::os::byte_lock;
use onedrop_core::os::owner;
use onedrop_net::pool::Limits;

mod account;
mod clock;
mod dialect;
mod durability;
mod file;
mod migrate;
#[cfg(test)]
mod plans;
mod reading;
mod schema;
#[cfg(test)]
mod together;

pub use account::SqliteAccounts;
use clock::HostClocks;
pub use clock::{BootTime, Clocks};
use dialect::SpeltSql;
use file::{beside, turn_to_wal};

/// Frames of the WAL after which a commit copies them into the database. Small, because the first
/// process that opens the database reads the whole WAL.
const CHECKPOINT_PAGES: u32 = 128;

/// Statements that a session keeps prepared: more than a delivery needs.
const KEPT_STATEMENTS: usize = 50;

/// A ledger in a file.
pub type SqliteLedger = PooledLedger<SqliteSession>;

impl SqliteLedger {
    /// A ledger in the file `path`, which is opened, and made if it is not there or empty, by the
    /// first call.
    pub fn new(path: PathBuf, limits: Limits) -> SqliteLedger {
        SqliteLedger::of(path, Program { makes: true, ..Program::default() }, limits)
    }

    /// The same, for this program, which may make none.
    pub fn of(path: PathBuf, program: Program, limits: Limits) -> SqliteLedger {
        SqliteLedger::over_file(path, Arc::new(HostClocks::default()), program, limits)
    }

    /// Does what [`new`](SqliteLedger::new) does, by other clocks.
    pub fn by(path: PathBuf, clocks: Arc<dyn Clocks>, limits: Limits) -> SqliteLedger {
        let program = Program { makes: true, ..Program::default() };
        SqliteLedger::over_file(path, clocks, program, limits)
    }

    fn over_file(
        path: PathBuf,
        clocks: Arc<dyn Clocks>,
        program: Program,
        limits: Limits,
    ) -> SqliteLedger {
        let program = Arc::new(program);
        let open = move |_, until| {
            SqliteSession::open_by(&path, until, Arc::clone(&clocks), Arc::clone(&program))
        };
        // It has one writer at a time.
        let traits = Traits { commits_together: Some(1), is_a_file: true };
        PooledLedger::over(Arc::new(open), traits, limits)
    }
}

/// A connection to the file, with its locks.
pub struct SqliteSession {
    path: PathBuf,
    /// The device and the inode of the file.
    file: (u64, u64),
    clocks: Arc<dyn Clocks>,
    program: Arc<Program>,
    connection: Connection,
    /// The statements that were run, by how they are written for all engines.
    spelt: HashMap<String, Arc<SpeltSql>>,
    locks: File,
    /// The keys of the locks that it holds.
    holds: Vec<i64>,
    until: Instant,
    /// A transaction for several is open: each of them has a savepoint in it for a transaction.
    is_shared: bool,
    /// Commits wait for the disk. Where that was not set again the session is of no use.
    waits: bool,
    /// Of a session for questions alone: when the statement that runs has to end.
    ends: Option<reading::EndOfQuestion>,
}

impl Drop for SqliteSession {
    fn drop(&mut self) {
        // Closing the file alone would not do (`byte_lock`). An error leaves that.
        let _ = self.unlock();
    }
}

/// What SQLite answers, as the ledger's errors.
trait Classified<T> {
    fn classified(self) -> Result<T, LedgerError>;
}

impl<T> Classified<T> for rusqlite::Result<T> {
    fn classified(self) -> Result<T, LedgerError> {
        self.map_err(classify)
    }
}

fn classify(error: rusqlite::Error) -> LedgerError {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::CannotOpen
            | ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::FileLockingProtocolFailed,
        ) => LedgerError::Unavailable(error.to_string()),
        Some(ErrorCode::OperationInterrupted) => LedgerError::TookTooLong("a question".to_owned()),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            LedgerError::Broken(error.to_string())
        }
        _ => LedgerError::Refused(error.to_string()),
    }
}

impl SqliteSession {
    /// Opens the ledger in the file `path`; where the program makes ledgers, a file that is not
    /// there yet, or is empty, is made into one.
    fn open_by(
        path: &Path,
        until: Instant,
        clocks: Arc<dyn Clocks>,
        program: Arc<Program>,
    ) -> Result<SqliteSession, LedgerError> {
        let makes = program.makes;
        let (mut ledger, is_empty) = SqliteSession::open_as_is(path, until, clocks, program)?;
        if makes && is_empty {
            ledger.migrate()?;
        }
        Ok(ledger)
    }

    /// Opens the file and its WAL, and makes their names durable; says whether nothing is in it.
    fn open_as_is(
        path: &Path,
        until: Instant,
        clocks: Arc<dyn Clocks>,
        program: Arc<Program>,
    ) -> Result<(SqliteSession, bool), LedgerError> {
        if program.reads {
            return Ok((SqliteSession::open_to_read(path, until, clocks, program)?, false));
        }
        let at = |error: std::io::Error, path: &Path| {
            LedgerError::Unavailable(format!("{}: {error}", path.display()))
        };
        if !program.makes {
            std::fs::metadata(path).map_err(|error| match error.kind() {
                ErrorKind::NotFound => LedgerError::Unavailable(is_gone(path)),
                _ => at(error, path),
            })?;
        } else if let Some(folder) =
            path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        {
            std::fs::create_dir_all(folder).map_err(|error| at(error, folder))?;
        }
        let lock_path = beside(path, "-locks");
        if let Some(why) = owner::keeps_root_out(path)
            && (!lock_path.exists() || !path.exists())
        {
            let text = format!("{} is not there: {why}", path.display());
            return Err(LedgerError::Unavailable(text));
        }
        let locks = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|error| at(error, &lock_path))?;
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, program.makes);
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|error| LedgerError::Unavailable(format!("{}: {error}", path.display())))?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).classified()?;
        connection.set_prepared_statement_cache_capacity(KEPT_STATEMENTS);
        connection.busy_timeout(until.saturating_duration_since(Instant::now())).classified()?;
        turn_to_wal(&connection, until)?;
        connection
            .execute_batch(&format!(
                "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
             PRAGMA foreign_keys = ON;"
            ))
            .classified()?;
        let ledger = SqliteSession {
            path: path.to_owned(),
            file: file::identity(path).map_err(|error| at(error, path))?,
            clocks,
            program,
            connection,
            spelt: HashMap::new(),
            locks,
            holds: Vec::new(),
            until,
            is_shared: false,
            waits: true,
            ends: None,
        };
        // Opens the WAL; while it is open, no process deletes it.
        let is_empty = ledger.is_empty()?;
        ledger.make_names_durable().map_err(|error| at(error, path))?;
        Ok((ledger, is_empty))
    }

    fn is_empty(&self) -> Result<bool, LedgerError> {
        let table: Option<i64> =
            first(&self.connection, "SELECT 1 FROM sqlite_schema LIMIT 1", [])?;
        Ok(table.is_none())
    }

    /// Tries to take the lock at `key`, in place of what it holds.
    fn lock(&mut self, key: i64) -> Result<(), LedgerError> {
        self.unlock()?;
        self.lock_also(key)
    }

    fn lock_also(&mut self, key: i64) -> Result<(), LedgerError> {
        match byte_lock::try_lock(&self.locks, key) {
            Ok(true) => {
                self.holds.push(key);
                Ok(())
            }
            Ok(false) => Err(LedgerError::Contended),
            Err(error) => Err(LedgerError::Unavailable(format!("lock file: {error}"))),
        }
    }

    fn unlock(&mut self) -> Result<(), LedgerError> {
        for key in std::mem::take(&mut self.holds) {
            byte_lock::unlock(&self.locks, key)
                .map_err(|error| LedgerError::Unavailable(format!("lock file: {error}")))?;
        }
        Ok(())
    }

    /// Does `work` in a transaction that holds the write lock; it is given the time, by the wall
    /// clock, at which the transaction got it.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>, f64) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let SqliteSession { connection, clocks, until, .. } = self;
        connection.busy_timeout(until.saturating_duration_since(Instant::now())).classified()?;
        let tx =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).classified()?;
        let now = rows::secs(clocks.wall());
        let value = work(&tx, now)?;
        tx.commit().classified()?;
        Ok(value)
    }

    /// Records a message under its lock, which is held until the commit is seen.
    fn record(&mut self, one: &ToRecord<'_>) -> Result<Recorded, LedgerError> {
        self.lock_also(lock_key::advisory_key(&one.entry.identity.id_hash))?;
        let begin = |session: &mut SqliteSession, statements: &[Sql<'_>]| {
            let (of_message, of_copies) = statements.split_at(record::OF_MESSAGE);
            let mut answers = SqlSession::begin(session, of_message)?;
            if !rows_at(&answers, 0).is_empty() {
                answers.extend(session.go_on(of_copies)?);
            }
            Ok(answers)
        };
        self.or_roll_back(|session| record::record(session, one, begin))
    }

    /// All in one transaction, which waits for the disk once. What fails there has done nothing,
    /// and goes alone.
    fn together(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError> {
        self.begin_to_write()?;
        self.is_shared = true;
        let recorded = records.iter().map(|one| alone_unless_done(self.record(one))).collect();
        let confirm = |one: &ToConfirm<'_>| {
            let confirm = |session: &mut SqliteSession| claims::confirm_alone(session, one);
            alone_unless_done(self.or_roll_back(confirm))
        };
        let confirmed = receipts.iter().map(confirm).collect();
        self.is_shared = false;
        // After an error of the disk there is no transaction any more.
        let committed = self.connection.execute_batch("COMMIT").classified();
        committed.inspect_err(|_| drop(self.roll_back()))?;
        Ok(Committed { recorded, confirmed })
    }

    /// Puts a receipt on record; whether its commit waits for the disk is the row's matter.
    fn confirm(&mut self, one: &ToConfirm<'_>) -> Result<Confirmed, LedgerError> {
        if one.may_be_lost {
            let confirm = |session: &mut SqliteSession| {
                let read = claims::begin_with(session, &one.claim)?;
                let may_be_lost = |read: &claims::ReadCopy| {
                    read.row.value == one.claim.value && claim::may_be_lost(&read.row)
                };
                if read.as_ref().is_some_and(may_be_lost) {
                    return claims::confirm_read(session, one, read).map(Some);
                }
                session.rollback()?;
                Ok(None)
            };
            if let Some(confirmed) = self.unsynced(|session| session.or_roll_back(confirm))? {
                return Ok(confirmed);
            }
        }
        self.or_roll_back(|session| claims::confirm_alone(session, one))
    }

    /// Does `work`, whose commits wait for no disk; the next one that waits brings them there.
    fn unsynced<T>(
        &mut self,
        work: impl FnOnce(&mut SqliteSession) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        // Until it is seen to wait again: a session that stayed like this would lose records.
        self.waits = false;
        self.connection.execute_batch("PRAGMA synchronous = NORMAL").classified()?;
        let done = work(self);
        self.connection.execute_batch("PRAGMA synchronous = FULL").classified()?;
        self.waits = true;
        done
    }
}

/// `None`, where it has to be done alone.
fn alone_unless_done<T>(outcome: Result<T, LedgerError>) -> Option<Result<T, LedgerError>> {
    Some(outcome).filter(|one| matches!(one, Ok(_) | Err(LedgerError::Contended)))
}

/// Only `migrate` makes a ledger: records would be made under a mount point.
fn is_gone(path: &Path) -> String {
    format!(
        "{} is not there: if its file system is not mounted, mount it; a new ledger is made by \
         \"onedrop migrate\"",
        path.display()
    )
}

/// The first column of a query's first row.
fn first<T: Cell>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
) -> Result<Option<T>, LedgerError> {
    Ok(read(connection, sql, params, |row| row.cell(0))?.into_iter().next())
}

/// All rows of a query.
fn read<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    mut read_row: impl FnMut(&Row<'_>) -> Result<T, LedgerError>,
) -> Result<Vec<T>, LedgerError> {
    let mut statement = connection.prepare_cached(sql).classified()?;
    let (mut rows, mut all) = (statement.query(params).classified()?, Vec::new());
    while let Some(row) = rows.next().classified()? {
        all.push(read_row(row)?);
    }
    Ok(all)
}

impl Session for SqliteSession {
    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.until = until;
        // What is committed to a file that has lost its name is lost.
        if !self.waits || !file::identity(&self.path).is_ok_and(|file| file == self.file) {
            return self.reopen(until);
        }
        if self.ends.is_some() {
            return self.limit_question(until);
        }
        self.connection.busy_timeout(until.saturating_duration_since(Instant::now())).classified()
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        let path = self.path.clone();
        let (clocks, program) = (Arc::clone(&self.clocks), Arc::clone(&self.program));
        *self = SqliteSession::open_as_is(&path, until, clocks, program)?.0;
        Ok(())
    }

    fn record_and_confirm(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError> {
        // Only a receipt alone may be that of the turn.
        if !records.is_empty() {
            self.unlock()?;
        }
        // A receipt waits for no disk, if none of a record goes with it.
        if !records.is_empty() && records.len() + receipts.len() > 1 {
            let committed = self.together(records, receipts);
            self.unlock()?;
            return committed;
        }
        let record = |one: &ToRecord<'_>| {
            let recorded = self.record(one);
            // After the commit: the next holder of the lock must see these rows.
            self.unlock()?;
            recorded
        };
        let recorded = records.iter().map(record).map(Some).collect();
        let mut confirmed = Vec::with_capacity(receipts.len());
        for one in receipts {
            let outcome = self.confirm(one);
            // After the commit, and also after a failure, or others would wait for nothing.
            self.unlock()?;
            let outcome = match receipts.len() {
                1 => Some(outcome),
                _ => alone_unless_done(outcome),
            };
            if outcome.is_none() {
                // The file is opened anew for those that go alone.
                self.waits = false;
                break;
            }
            confirmed.push(outcome);
        }
        confirmed.resize_with(receipts.len(), || None);
        Ok(Committed { recorded, confirmed })
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<TurnState, LedgerError> {
        self.lock(lock_key::advisory_key(copy_key))?;
        let read = self.rows(&claims::read_claimed(claim, false));
        let turn = read.and_then(|rows| claims::turn(claim, &rows));
        if !matches!(turn, Ok(TurnState::Ours { .. })) {
            self.unlock()?;
        }
        turn
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.unlock()
    }

    fn program(&self) -> &Program {
        &self.program
    }

    fn schema_version(&mut self) -> Result<SchemaVersion, LedgerError> {
        schema::version(&self.connection, &self.program)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        migrate::migrate(self)
    }

    fn planned_migration(&mut self) -> Result<Vec<PlannedStep>, LedgerError> {
        migrate::planned(self)
    }

    fn clock(&mut self) -> Result<Option<SystemTime>, LedgerError> {
        self.clocks.boot().map(|_| None)
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        self.lock(lock_key::advisory_key(&lock_key::name_hash(name)))
    }
}
