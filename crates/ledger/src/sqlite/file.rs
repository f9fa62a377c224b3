//! The ledger's file and those beside it: in WAL mode, and under names that are durable.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode};

use super::SqliteSession;
use onedrop_core::ledger::LedgerError;
use onedrop_core::os::durable;

impl SqliteSession {
    /// Syncs the folder and those above it, unless a process has done so since the WAL was created.
    /// SQLite would sync the folder in every process; .cargo/config.toml builds it without that.
    /// The lock file records for which WAL this was done; if a crash loses the record, it is done
    /// again.
    pub(super) fn make_names_durable(&self) -> std::io::Result<()> {
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
}

/// The name of a file beside the ledger's.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// What sets the file at `path` apart from another one of its name, as long as one is open.
pub fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    path.metadata().map(|file| (file.dev(), file.ino()))
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
pub fn turn_to_wal(connection: &Connection, until: Instant) -> Result<(), LedgerError> {
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
            Err(error) => return Err(super::classify(error)),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::HostClocks;
    use super::*;
    use onedrop_core::ledger::Program;

    #[test]
    fn the_names_of_a_new_wal_are_made_durable_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let noted = || std::fs::read(beside(&path, "-locks")).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let open = || {
            let makes = Program { makes: true, ..Program::default() };
            SqliteSession::open_by(&path, until, Arc::new(HostClocks::default()), makes.into())
                .unwrap()
        };
        drop(open());
        let first = identity_of(&beside(&path, "-wal"));
        assert!(first.is_none_or(|made| noted() == made));
        // Like an administrator's sqlite3 that closes the database last.
        std::fs::remove_file(beside(&path, "-wal")).unwrap();
        drop(open());
        let second = identity_of(&beside(&path, "-wal"));
        assert!(second != first && second.is_none_or(|made| noted() == made));
    }

    #[test]
    fn locks_end_with_their_session_where_a_program_is_being_started_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let open = || {
            let makes = Program { makes: true, ..Program::default() };
            let clocks = Arc::new(HostClocks::default());
            SqliteSession::open_by(&folder.path().join("ledger.db"), until, clocks, makes.into())
                .unwrap()
        };
        let (mut one, mut other) = (open(), open());
        one.lock(7).unwrap();
        assert!(matches!(other.lock(7), Err(LedgerError::Contended)));
        // What the new process has of it until it runs the program.
        let _theirs = one.locks.try_clone().unwrap();
        drop(one);
        other.lock(7).unwrap();
    }
}
