//! The ledger's file for questions alone: opened read only, never made, and no statement takes
//! longer than [`QUESTION`]. Deliveries write beside it: with WAL a reader keeps no writer waiting.
//! SQLite's readers write to -shm, and make it where no delivery has the file open. Without the
//! right to do that they would succeed now and fail then, so they are refused with a sentence.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nix::unistd::{AccessFlags, access};
use rusqlite::{Connection, OpenFlags};

use super::Classified;
use super::file::{beside, identity};
use super::{Clocks, SqliteSession};
use onedrop_core::ledger::QUESTION;
use onedrop_core::ledger::{LedgerError, Program};

/// Steps of SQLite's machine between two looks at the clock: less than a millisecond.
const STEPS: i32 = 10_000;

/// When the statement that runs has to end.
pub type EndOfQuestion = Arc<Mutex<Instant>>;

impl SqliteSession {
    pub(super) fn open_to_read(
        path: &Path,
        until: Instant,
        clocks: Arc<dyn Clocks>,
        program: Arc<Program>,
    ) -> Result<SqliteSession, LedgerError> {
        let at = |error: &dyn std::fmt::Display| {
            LedgerError::Unavailable(format!("{}: {error}", path.display()))
        };
        // Only SQLite opens the file: who closes it again takes the locks of every session of
        // this process with it.
        access(path, AccessFlags::R_OK).map_err(|error| at(&error.desc()))?;
        let shared = beside(path, "-shm");
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let written = match shared.exists() {
            true => &shared,
            false => folder.unwrap_or(Path::new(".")),
        };
        access(written, AccessFlags::W_OK).map_err(|error| {
            let shown = written.display();
            at(&format!("{shown} cannot be written, which SQLite needs to read: {}", error.desc()))
        })?;
        // Nothing is locked here: where a lock's file would be, there is nothing.
        let locks = File::open("/dev/null").map_err(|error| at(&error))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection =
            Connection::open_with_flags(path, flags).map_err(|error| at(&error))?;
        connection.execute_batch("PRAGMA query_only = ON").classified()?;
        let ends: EndOfQuestion = Arc::new(Mutex::new(until));
        let told = Arc::clone(&ends);
        let is_over =
            move || *told.lock().unwrap_or_else(PoisonError::into_inner) <= Instant::now();
        connection.progress_handler(STEPS, Some(is_over)).classified()?;
        let ends = Some(ends);
        let mut session = SqliteSession {
            path: path.to_owned(),
            file: identity(path).map_err(|error| at(&error))?,
            clocks,
            program,
            connection,
            spelt: HashMap::new(),
            locks,
            holds: Vec::new(),
            is_shared: false,
            until,
            waits: true,
            ends,
        };
        session.limit_question(until)?;
        Ok(session)
    }

    /// The next statements end by then, and soon.
    pub(super) fn limit_question(&mut self, until: Instant) -> Result<(), LedgerError> {
        let Some(ends) = &self.ends else { return Ok(()) };
        let end = until.min(Instant::now() + QUESTION);
        *ends.lock().unwrap_or_else(PoisonError::into_inner) = end;
        self.connection.busy_timeout(end.saturating_duration_since(Instant::now())).classified()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HostClocks, first};
    use super::*;

    /// The host may be busy: nothing is wrong with what was asked.
    #[test]
    fn a_question_that_takes_too_long_ends_as_such() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let (clocks, program) = (Arc::<HostClocks>::default(), Arc::<Program>::default());
        let until = Instant::now() + QUESTION;
        let mut session =
            SqliteSession::open_to_read(file.path(), until, clocks, program).expect("a session");
        session.limit_question(Instant::now()).expect("a limit");
        let counts = "WITH RECURSIVE n(i) AS (
                SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
            SELECT max(i) FROM n";
        let answer = first::<i64>(&session.connection, counts, []);
        assert!(matches!(answer, Err(LedgerError::TookTooLong(_))), "{answer:?}");
    }
}
