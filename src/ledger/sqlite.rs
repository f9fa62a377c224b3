//! The ledger in an SQLite file, for one host: nothing to install, created at the first use. It
//! keeps the whole promise of the port; `NOTIFY` has no counterpart. It relies on a local file
//! system, because WAL and locks do not work over NFS.
//!
//! Locks are bytes of a file beside the database (`byte_lock`), so no SQLite transaction is open
//! while the store works. With WAL and synchronous=FULL a commit is durable when it returns, and
//! the names of the files are durable before the first one. Closing keeps the WAL: otherwise each
//! process with one delivery would run a checkpoint.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::config::DbConfig;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};

use super::pooled::Traits;
use super::{
    Attempt, AttemptEnd, Claim, Committed, Confirmed, CopyOnRecord, CopyState, LeaseTerms,
    LedgerError, PooledLedger, Recorded, Session, SessionTurn, ToConfirm, ToRecord, Trace,
    TraceFilter, Window,
};
use crate::byte_lock;
use crate::directory::{Asked, Destination};
use crate::durable;
use crate::lock_key::{self, Hash};
use crate::login::Way;
use crate::message::Identity;
use crate::pool::Limits;
use crate::receipt::Receipt;

mod kept;
mod migrate;
mod proof;
mod rows;
mod trace;
mod verify;

use rows::{
    CopyRow, claim_copies, confirm, copy_row, finish_attempt, insert_attempt, record_locked,
};

/// Frames of the WAL after which a commit copies them into the database. Small, because the first
/// process that opens the database reads the whole WAL.
const CHECKPOINT_PAGES: u32 = 128;

/// The clock of leases: the host's, except in tests of clocks.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// A ledger in a file.
pub type SqliteLedger = PooledLedger<SqliteSession>;

impl SqliteLedger {
    /// A ledger in the file `path`, which is opened, and made if it is not there or empty, by the
    /// first call.
    pub fn new(path: PathBuf, limits: Limits) -> SqliteLedger {
        SqliteLedger::by(path, Arc::new(SystemTime::now), limits)
    }

    /// The same, by another clock.
    pub fn by(path: PathBuf, clock: Clock, limits: Limits) -> SqliteLedger {
        let open = move |until| SqliteSession::open_by(&path, until, Arc::clone(&clock));
        let traits = Traits { opens_slowly: false, commits_together: false, is_a_file: true };
        PooledLedger::over(Arc::new(open), traits, limits)
    }
}

/// A connection to the file, with its locks.
pub struct SqliteSession {
    path: PathBuf,
    clock: Clock,
    connection: Connection,
    locks: File,
    holds: Option<i64>,
    until: Instant,
}

impl From<rusqlite::Error> for LedgerError {
    fn from(error: rusqlite::Error) -> Self {
        // A value of another kind than the column's: no version of this program writes it.
        if let rusqlite::Error::FromSqlConversionFailure(column, _, why) = &error {
            return LedgerError::Broken(format!("column {column} of a row: {why}"));
        }
        if let rusqlite::Error::InvalidColumnType(_, column, kind) = &error {
            return LedgerError::Broken(format!("column {column} holds {kind}"));
        }
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
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                LedgerError::Broken(error.to_string())
            }
            _ => LedgerError::Refused(error.to_string()),
        }
    }
}

impl SqliteSession {
    /// Opens the ledger in the file `path`; a file that is not there yet, or is empty, is made into
    /// one.
    fn open_by(path: &Path, until: Instant, clock: Clock) -> Result<SqliteSession, LedgerError> {
        let mut ledger = SqliteSession::open_as_is(path, until, clock)?;
        if ledger.is_empty()? {
            ledger.migrate()?;
        }
        Ok(ledger)
    }

    /// Opens the file and its WAL, and makes their names durable.
    fn open_as_is(path: &Path, until: Instant, clock: Clock) -> Result<SqliteSession, LedgerError> {
        let at = |error: std::io::Error, path: &Path| {
            LedgerError::Unavailable(format!("{}: {error}", path.display()))
        };
        if let Some(folder) =
            path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        {
            std::fs::create_dir_all(folder).map_err(|error| at(error, folder))?;
        }
        let lock_path = beside(path, "-locks");
        let locks = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|error| at(error, &lock_path))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|error| LedgerError::Unavailable(format!("{}: {error}", path.display())))?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.busy_timeout(until.saturating_duration_since(Instant::now()))?;
        turn_to_wal(&connection, until)?;
        connection.execute_batch(&format!(
            "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
             PRAGMA foreign_keys = ON;"
        ))?;
        let ledger =
            SqliteSession { path: path.to_owned(), clock, connection, locks, holds: None, until };
        // Opens the WAL; while it is open, no process deletes it.
        ledger.is_empty()?;
        ledger.make_names_durable().map_err(|error| at(error, path))?;
        Ok(ledger)
    }

    /// Syncs the folder and those above it, unless a process has done so since the WAL was created.
    /// SQLite would sync the folder in every process; .cargo/config.toml builds it without that.
    /// The lock file records for which WAL this was done; if a crash loses the record, it is done
    /// again.
    fn make_names_durable(&self) -> std::io::Result<()> {
        let made = identity_of(&beside(&self.path, "-wal"));
        let mut done = FileIdentity::default();
        if made.is_some() && self.locks.read_exact_at(&mut done, 0).is_ok() && made == Some(done) {
            return Ok(());
        }
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        durable::sync_way_to(folder.unwrap_or(Path::new(".")))?;
        if let Some(made) = made {
            // If this fails, the next process syncs again.
            let _ = self.locks.write_all_at(&made, 0);
        }
        Ok(())
    }

    fn is_empty(&self) -> Result<bool, LedgerError> {
        let tables: i64 =
            self.connection
                .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        Ok(tables == 0)
    }

    /// Tries to take the lock at `key`.
    fn lock(&mut self, key: i64) -> Result<(), LedgerError> {
        self.unlock()?;
        match byte_lock::try_lock(&self.locks, key) {
            Ok(true) => {
                self.holds = Some(key);
                Ok(())
            }
            Ok(false) => Err(LedgerError::Contended),
            Err(error) => Err(LedgerError::Unavailable(format!("lock file: {error}"))),
        }
    }

    fn unlock(&mut self) -> Result<(), LedgerError> {
        let Some(key) = self.holds.take() else { return Ok(()) };
        byte_lock::unlock(&self.locks, key)
            .map_err(|error| LedgerError::Unavailable(format!("lock file: {error}")))
    }

    /// A transaction that holds the write lock, and the time at which it got it.
    fn begin(&mut self) -> Result<(Transaction<'_>, f64), LedgerError> {
        let SqliteSession { connection, clock, until, .. } = self;
        connection.busy_timeout(until.saturating_duration_since(Instant::now()))?;
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        Ok((tx, secs(clock())))
    }
}

/// The name of a file beside the ledger's.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Inode and time of birth.
type FileIdentity = [u8; 24];

/// The identity of the file at `path`; `None` if the file system does not record births.
fn identity_of(path: &Path) -> Option<FileIdentity> {
    let file = path.metadata().ok()?;
    let born = file.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let mut identity = FileIdentity::default();
    identity[..8].copy_from_slice(&file.ino().to_le_bytes());
    identity[8..].copy_from_slice(&born.as_nanos().to_le_bytes());
    Some(identity)
}

/// Switches to WAL. SQLite does not use its busy time-out here: if several processes open a new
/// file at once, all but one get an error immediately.
fn turn_to_wal(connection: &Connection, until: Instant) -> Result<(), LedgerError> {
    loop {
        match ask_for_wal(connection) {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < until =>
            {
                thread::sleep(Duration::from_millis(2));
            }
            Ok(mode) if mode == "wal" => return Ok(()),
            // Processes cannot share memory, as on most network file systems.
            Ok(mode) => {
                return Err(LedgerError::Unavailable(format!(
                    "no WAL on this file system (only {mode})"
                )));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Requests WAL; returns the mode. SQLite returns the row before it has written the change, so the
/// statement must be run to its end to see a failure.
fn ask_for_wal(connection: &Connection) -> rusqlite::Result<String> {
    let mut statement = connection.prepare("PRAGMA journal_mode = WAL")?;
    let mut rows = statement.query([])?;
    let mode = rows.next()?.map_or(Ok(String::new()), |row| row.get(0))?;
    while rows.next()?.is_some() {}
    Ok(mode)
}

/// As the tables hold times.
fn secs(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Session for SqliteSession {
    fn record(&mut self, one: &ToRecord<'_>) -> Result<Recorded, LedgerError> {
        self.lock(lock_key::advisory_key(&one.entry.identity.id_hash))?;
        let recorded = record_locked(self, one);
        // After the commit: the next holder of the lock must see these rows.
        self.unlock()?;
        recorded
    }

    fn claim(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        let (tx, now) = self.begin()?;
        let states = claim_copies(&tx, now, message, destinations, owner, terms)?;
        tx.commit()?;
        Ok(states)
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<SessionTurn, LedgerError> {
        self.lock(lock_key::advisory_key(copy_key))?;
        let turn = copy_row(&self.connection, claim).map(|row| match row {
            CopyRow { receipt: Some(receipt), .. } => SessionTurn::Placed(receipt),
            CopyRow { epoch, .. } if epoch != claim.epoch => SessionTurn::EpochGone,
            CopyRow { prior_doubt, .. } => SessionTurn::Ours { in_doubt: prior_doubt },
        });
        if !matches!(turn, Ok(SessionTurn::Ours { .. })) {
            self.unlock()?;
        }
        turn
    }

    fn commit(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError> {
        let recorded = records.iter().map(|one| self.record(one)).collect();
        let confirmed = receipts.iter().map(|one| self.confirm(one)).collect();
        Ok(Committed { recorded, confirmed })
    }

    fn confirm(&mut self, one: &ToConfirm<'_>) -> Result<Confirmed, LedgerError> {
        let confirmed = confirm(self, one);
        // After the commit, and also after a failure, or others would wait for nothing.
        self.unlock()?;
        confirmed
    }

    fn keep(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<bool, LedgerError> {
        let (tx, now) = self.begin()?;
        let is_kept = kept::keep(&tx, now, message, bytes, why)?;
        tx.commit()?;
        Ok(is_kept)
    }

    fn kept(&mut self, message: i64) -> Result<Option<String>, LedgerError> {
        kept::kept(&self.connection, message)
    }

    fn kept_bytes(&mut self, message: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        kept::bytes(&self.connection, message)
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.unlock()
    }

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError> {
        self.unlock()?;
        let (tx, _) = self.begin()?;
        for claim in claims {
            tx.execute(
                "UPDATE onedrop_copy SET leased_until = NULL, in_doubt = prior_doubt
                 WHERE id = ?1 AND value = ?2 AND epoch = ?3 AND placed_at IS NULL",
                params![claim.copy, claim.value.bytes(), claim.epoch],
            )?;
        }
        Ok(tx.commit()?)
    }

    fn finish(&mut self, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
        let (tx, _) = self.begin()?;
        finish_attempt(&tx, attempt, end)?;
        Ok(tx.commit()?)
    }

    fn note_attempts(
        &mut self,
        identity: &Identity,
        ended: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        let (tx, now) = self.begin()?;
        let message = tx
            .query_row(
                "SELECT id FROM onedrop_message WHERE id_hash = ?1 AND digest = ?2",
                params![identity.id_hash, identity.digest],
                |row| row.get(0),
            )
            .optional()?;
        for (attempt, end) in ended {
            let id = insert_attempt(&tx, now, message, identity, attempt)?;
            finish_attempt(&tx, id, end)?;
        }
        Ok(tx.commit()?)
    }

    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.until = until;
        Ok(self.connection.busy_timeout(until.saturating_duration_since(Instant::now()))?)
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        let path = self.path.clone();
        *self = SqliteSession::open_as_is(&path, until, Arc::clone(&self.clock))?;
        Ok(())
    }

    fn account_by_query(
        &mut self,
        query: &str,
        asked: &Asked,
    ) -> Result<Option<String>, LedgerError> {
        let mut statement = self.connection.prepare(query)?;
        // SQLite numbers $NAMEs by appearance, so each is bound by its name.
        let mut parameters = vec![("$1", &asked.address), ("$2", &asked.given)];
        parameters.retain(|(name, _)| matches!(statement.parameter_index(name), Ok(Some(_))));
        let has_others = statement.parameter_count() > parameters.len();
        if !statement.readonly() || statement.column_count() != 1 || has_others {
            let text = "directory.query must be a SELECT of one column with $1 and $2 only";
            return Err(LedgerError::Refused(text.to_owned()));
        }
        let parameters: Vec<_> = parameters
            .into_iter()
            .map(|(name, value)| (name, value as &dyn rusqlite::ToSql))
            .collect();
        let account: Option<Option<String>> =
            statement.query_row(parameters.as_slice(), |row| row.get(0)).optional()?;
        Ok(account.flatten().filter(|account| !account.is_empty()))
    }

    fn trace(&mut self, filter: &TraceFilter<'_>, limit: u32) -> Result<Vec<Trace>, LedgerError> {
        trace::trace(&self.connection, filter, limit)
    }

    fn copies_to_verify(
        &mut self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        verify::copies(&self.connection, secs((self.clock)()), window, after, limit)
    }

    fn latest_copies(&mut self, limit: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        verify::latest(&self.connection, limit)
    }

    fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError> {
        let (tx, now) = self.begin()?;
        let settled = verify::settle(&tx, now, copy, receipt)?;
        tx.commit()?;
        Ok(settled)
    }

    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError> {
        proof::is_proven(&self.connection, way)
    }

    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError> {
        let (tx, _) = self.begin()?;
        proof::note(&tx, way, holds, host)?;
        Ok(tx.commit()?)
    }

    fn schema_version(&mut self) -> Result<i64, LedgerError> {
        schema_version(&self.connection)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        let (tx, now) = self.begin()?;
        migrate::migrate(tx, now)
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        self.lock(lock_key::advisory_key(&lock_key::name_hash(name)))
    }
}

fn schema_version(connection: &Connection) -> Result<i64, LedgerError> {
    match connection.query_row("SELECT max(version) FROM onedrop_schema", [], |row| {
        row.get::<_, Option<i64>>(0)
    }) {
        Ok(version) => Ok(version.unwrap_or(0)),
        Err(error) if error.to_string().contains("no such table") => Ok(0),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_new_wal_are_made_durable_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let noted = || std::fs::read(beside(&path, "-locks")).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let open = || SqliteSession::open_by(&path, until, Arc::new(SystemTime::now)).unwrap();
        drop(open());
        let first = identity_of(&beside(&path, "-wal"));
        assert!(first.is_none_or(|made| noted() == made));
        // Like an administrator's sqlite3 that closes the database last.
        std::fs::remove_file(beside(&path, "-wal")).unwrap();
        drop(open());
        let second = identity_of(&beside(&path, "-wal"));
        assert!(second != first && second.is_none_or(|made| noted() == made));
    }
}
