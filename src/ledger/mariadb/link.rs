//! One connection with its private runtime, which runs only while a call waits. A session begins
//! with settings of ours, and with a look at those of the server that no session may change: what
//! they say decides whether this server may keep a ledger.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row};
use tokio::time::timeout_at;

use super::errors::{meaning_of, no_answer_text, text_of};
use super::target::MariadbTarget;
use crate::ledger::LedgerError;
use crate::ledger::rows::SqlRow;
use crate::net::runtime::PrivateRuntime;
use crate::text;

/// What a session is like. The time zone is for those who look at rows with functions of local
/// time; READ COMMITTED lets every statement see what was committed before it.
const SETTINGS: &str = "
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET NAMES utf8mb4, autocommit = 1, time_zone = '+00:00', foreign_key_checks = 1, unique_checks = 1,
    group_concat_max_len = 1048576, completion_type = 'NO_CHAIN',
    sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'";

/// Read as one row, see [`unfit`].
const SERVER: &str = "
SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@binlog_format,
       @@wsrep_on, @@innodb_read_only";

/// Seconds to say goodbye.
const GOODBYE: Duration = Duration::from_millis(100);

/// A connection and its runtime.
pub(super) struct MariadbLink {
    conn: Option<Conn>,
    runtime: PrivateRuntime,
}

impl MariadbLink {
    pub fn to(target: &MariadbTarget, until: Instant) -> Result<MariadbLink, LedgerError> {
        let runtime = PrivateRuntime::new().map_err(|error| {
            LedgerError::Unavailable(format!("cannot wait for a socket: {error}"))
        })?;
        let mut link = MariadbLink { conn: None, runtime };
        let began = Instant::now();
        let opts = target.opts.clone();
        let connecting = async {
            let mut conn = Conn::new(opts).await?;
            conn.query_drop(SETTINGS).await?;
            let server: Option<Row> = conn.query_first(SERVER).await?;
            Ok::<_, Error>((conn, server))
        };
        let connected = guarded(|| {
            link.runtime.block_on(async { timeout_at(until.into(), connecting).await })
        })?;
        let (conn, server) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return Err(named(target, meaning_of(&error), &text_of(&error))),
            Err(_) => {
                let text = no_answer_text(began.elapsed());
                return Err(LedgerError::Unavailable(format!("{}: {text}", target.name)));
            }
        };
        link.conn = Some(conn);
        let server =
            server.ok_or_else(|| LedgerError::Broken("a server without settings".to_owned()))?;
        match unfit(&server)? {
            Some(why) => Err(LedgerError::Refused(why)),
            None => Ok(link),
        }
    }

    /// Does `work`; the connection must be dropped after an error that is not the server's own.
    ///
    /// # Errors
    /// `None`: it took longer than until then, or the driver could not read what the server says.
    pub fn run<T>(
        &mut self,
        until: Instant,
        work: impl AsyncFnOnce(&mut Conn) -> Result<T, Error>,
    ) -> Result<Option<Result<T, Error>>, LedgerError> {
        let MariadbLink { conn: Some(conn), runtime } = self else { return Ok(None) };
        let done =
            guarded(|| runtime.block_on(async { timeout_at(until.into(), work(conn)).await }))?;
        Ok(done.ok())
    }

    pub fn say_goodbye(mut self) {
        if let Some(conn) = self.conn.take() {
            let until = Instant::now() + GOODBYE;
            let _ = guarded(|| {
                self.runtime.block_on(async { timeout_at(until.into(), conn.disconnect()).await })
            });
        }
    }
}

/// What a hostile or broken server can make the driver panic with is a failure as any other.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, LedgerError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let why = text::of_panic(panic);
        LedgerError::Unavailable(format!("the driver cannot read what the server says: {why}"))
    })
}

fn named(target: &MariadbTarget, meaning: LedgerError, text: &str) -> LedgerError {
    let text = format!("{}: {text}", target.name);
    match meaning {
        LedgerError::Login(_) => LedgerError::Login(text),
        LedgerError::Refused(_) => LedgerError::Refused(text),
        _ => LedgerError::Unavailable(text),
    }
}

/// Why this server must keep no ledger; `None` if it may.
fn unfit(row: &Row) -> Result<Option<String>, LedgerError> {
    let version: String = row.cell(0)?;
    let (flush, has_log, sync): (i64, bool, i64) = (row.cell(1)?, row.cell(2)?, row.cell(3)?);
    let format: String = row.cell(4)?;
    let (is_galera, is_read_only): (bool, bool) = (row.cell(5)?, row.cell(6)?);
    let why = if !version.contains("MariaDB") {
        format!("this is {}, not MariaDB", text::within(&version, 60))
    } else if is_too_old(&version) {
        format!("MariaDB {} is older than 10.6", text::within(&version, 60))
    } else if is_galera {
        "it is a node of a Galera cluster (wsrep_on), whose nodes grant locks each for itself"
            .to_owned()
    } else if is_read_only {
        "it is read only (innodb_read_only)".to_owned()
    } else if ![1, 3].contains(&flush) {
        format!(
            "a crash may lose a commit: innodb_flush_log_at_trx_commit is {flush} (set it to 1)"
        )
    } else if has_log && sync != 1 {
        format!("a crash may lose a commit: log_bin is on and sync_binlog is {sync} (set it to 1)")
    } else if has_log && format == "STATEMENT" {
        "binlog_format is STATEMENT, with which READ COMMITTED cannot write (set it to MIXED or \
         ROW)"
            .to_owned()
    } else {
        return Ok(None);
    };
    Ok(Some(format!("this server cannot keep a ledger: {why}")))
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (major, minor) < (10, 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        for (version, old) in [
            ("10.11.19-MariaDB-0+deb12u1", false),
            ("10.6.0-MariaDB", false),
            ("11.4.2-MariaDB", false),
            ("10.5.29-MariaDB", true),
            ("5.5.5-MariaDB", true),
            ("?-MariaDB", true),
        ] {
            assert_eq!(is_too_old(version), old, "{version}");
        }
    }
}
