//! One connection with its private runtime, which runs only while a call waits. A session begins
//! with settings of ours, and with a look at those of the server that no session may change: what
//! they say decides whether this server may keep a ledger.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, Row};
use tokio::time::timeout_at;

use super::errors::{ACCESS_DENIED, meaning_of, text_of};
use super::target::MariadbTarget;
use crate::given_up::no_answer_text;
use crate::rows::SqlRow;
use crate::runtime::PrivateRuntime;
use onedrop_core::ledger::LedgerError;
use onedrop_core::text;

/// What a session is like, and what the server is like, in one round trip. The time zone is for
/// those who look at rows with functions of local time; READ COMMITTED lets every statement see
/// what was committed before it. See [`unfit`]; MySQL does not know the last one, nor does one that
/// was built without Galera.
const BEGIN: &str = "
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET NAMES utf8mb4, autocommit = 1, time_zone = '+00:00', foreign_key_checks = 1, unique_checks = 1,
    group_concat_max_len = 1048576, completion_type = 'NO_CHAIN',
    sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION';
SELECT VERSION();
SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@binlog_format,
       @@innodb_read_only;
SELECT @@wsrep_on";

/// ER_UNKNOWN_SYSTEM_VARIABLE.
const UNKNOWN_VARIABLE: u16 = 1193;

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
        let only_reads = target.program.reads;
        let connecting = async {
            let mut conn = logged_in(opts).await?;
            let server = begin(&mut conn).await?;
            if only_reads {
                conn.query_drop("SET SESSION TRANSACTION READ ONLY").await?;
            }
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
        let Some(version) = server.first() else {
            return Err(LedgerError::Refused("the server does not say what it is".to_owned()));
        };
        let version: String = version.cell(0)?;
        let (settings, wsrep) = match &server[1..] {
            [settings, wsrep @ ..] if !wsrep.is_empty() || version.contains("MariaDB") => {
                (settings, wsrep.first())
            }
            _ => {
                let version = text::within(&version, 60);
                return Err(LedgerError::Refused(format!("this is {version}, not MariaDB")));
            }
        };
        // What is only asked may be a replica, a node of a cluster, or lose commits.
        let why = match target.only_accounts || only_reads {
            false => unfit(&version, settings, wsrep)?,
            true => None,
        };
        match why {
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

    /// Asks the server, in another session, to end what it still does in this one, and waits at
    /// most until then. A COMMIT that waits for a semi-synchronous replica, or for a lock that a
    /// backup has, ends by nothing else: not by `max_statement_time`, nor by the end of its
    /// connection, and it keeps its place among `max_connections`. InnoDB ends no commit half way:
    /// one that waits for a replica ends as a success of which no client hears, and one that
    /// waits for a lock is rolled back. A disk that hangs is waited for whoever asks. This session
    /// must not be used again; its number belongs to it until it is closed.
    pub fn cancel(&self, target: &MariadbTarget, until: Instant) {
        let Some(id) = self.conn.as_ref().map(Conn::id) else { return };
        let opts = target.opts.clone();
        let asking = async {
            let mut other = logged_in(opts).await?;
            other.query_drop(format!("KILL QUERY {id}")).await?;
            other.disconnect().await
        };
        // A server that cannot be reached has nothing to cancel, or we cannot help it.
        let _ = guarded(|| self.runtime.block_on(async { timeout_at(until.into(), asking).await }));
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

/// Tries three times where the login is refused: `mysql_common` (0.37.3) takes a NUL off the end of
/// the random bytes that a login by ed25519 signs, and one of 256 is refused with the right key.
async fn logged_in(opts: Opts) -> Result<Conn, Error> {
    for _ in 0..2 {
        match Conn::new(opts.clone()).await {
            Err(Error::Server(said)) if said.code == ACCESS_DENIED => {}
            done => return done,
        }
    }
    Conn::new(opts).await
}

/// Begins the session: a row with the server's version, and unless it is of another make one with
/// its settings and, if it can be a node of a Galera cluster, one that says whether it is.
async fn begin(conn: &mut Conn) -> Result<Vec<Row>, Error> {
    let mut result = conn.query_iter(BEGIN).await?;
    let mut rows: Vec<Row> = Vec::new();
    while !result.is_empty() {
        match result.next().await {
            // No server says more, and one that does is not listened to.
            Ok(Some(_)) if rows.len() == 3 => return Ok(Vec::new()),
            Ok(Some(row)) => rows.push(row),
            Ok(None) => {}
            Err(Error::Server(_)) if rows.len() == 1 => return Ok(rows),
            Err(error) => return Err(error),
        }
    }
    // An error of a statement after the first is the driver's until its result is dropped, and
    // else that of the next command.
    match result.drop_result().await {
        Err(Error::Server(said)) if said.code == UNKNOWN_VARIABLE && !rows.is_empty() => Ok(rows),
        dropped => dropped.map(|()| rows),
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
        LedgerError::Denied(_) => LedgerError::Denied(text),
        LedgerError::Refused(_) => LedgerError::Refused(text),
        _ => LedgerError::Unavailable(text),
    }
}

/// Why this server must keep no ledger; `None` if it may.
fn unfit(version: &str, row: &Row, wsrep: Option<&Row>) -> Result<Option<String>, LedgerError> {
    let (flush, has_log, sync): (i64, bool, i64) = (row.cell(0)?, row.cell(1)?, row.cell(2)?);
    let (format, is_read_only): (String, bool) = (row.cell(3)?, row.cell(4)?);
    let is_galera = wsrep.map(|row| row.cell(0)).transpose()?.unwrap_or(false);
    let why = if is_too_old(version) {
        format!("MariaDB {} is older than 10.6", text::within(version, 60))
    } else if is_galera {
        "it is a node of a Galera cluster (wsrep_on): it may answer OK to a commit that was rolled \
         back, and grants locks for itself alone"
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
