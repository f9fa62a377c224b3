//! Ledgers whose growth is measured. Nothing cleans up meanwhile: what goes by itself is what a
//! delivery leaves no trace of.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onedrop::ledger::AnyLedger;
use onedrop::ledger::sqlite::SqliteLedger;
use onedrop::net::pool::Limits;

use crate::TempRoot;
use crate::postgres::Postgres;

fn limits() -> Limits {
    Limits { used: 1, per_key: 1, kept: 1, idle: Duration::from_secs(600) }
}

pub struct MeasuredPostgres(Postgres);

/// Since the server's start.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Of all tables, with their indexes.
    pub bytes: u64,
    /// Write-ahead log, which has no page images here.
    pub wal: u64,
    pub updates: u64,
    pub hot: u64,
    #[allow(dead_code, reason = "the benchmark's part")]
    pub cpu: Duration,
}

impl MeasuredPostgres {
    /// With the schema; `settings`: further lines for postgresql.conf.
    pub fn start(settings: &str) -> MeasuredPostgres {
        let settings = format!("full_page_writes = off\nautovacuum = off\n{settings}");
        let postgres = Postgres::start_with(&settings);
        let measured = MeasuredPostgres(postgres);
        measured.ledger().migrate(Instant::now() + Duration::from_secs(60)).expect("migrate");
        // An old ledger: mail of today is not older than what it remembers.
        measured.0.remember_for_ever();
        measured
    }

    pub fn ledger(&self) -> Arc<dyn AnyLedger> {
        Arc::new(self.0.ledger(limits()))
    }

    pub fn figures(&self) -> Figures {
        let number = |sql: &str| self.0.psql(sql).parse().expect("a number");
        // A server's process reports what it has counted once it is idle for a while, or ends.
        let updates = "SELECT pg_stat_force_next_flush();
                       SELECT coalesce(sum(n_tup_upd), 0) FROM pg_stat_user_tables";
        let counted = |sql: &str| {
            self.0.psql(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
                 WHERE usename = 'onedrop'",
            );
            number(sql.rsplit(';').next().expect("a statement"))
        };
        Figures {
            cpu: self.0.cpu(),
            updates: counted(updates),
            hot: number("SELECT coalesce(sum(n_tup_hot_upd), 0) FROM pg_stat_user_tables"),
            bytes: number(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class
                 WHERE relkind = 'r' AND relname LIKE 'onedrop%'",
            ),
            wal: number("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"),
        }
    }

    /// Each table and index that has much in it, with its bytes a message.
    pub fn relations(&self, messages: u64) -> String {
        self.0.psql(&format!(
            "SELECT relname, pg_relation_size(oid) / {messages} FROM pg_class
             WHERE relkind IN ('r', 'i') AND relname LIKE 'onedrop%'
               AND pg_relation_size(oid) > {messages} ORDER BY 2 DESC"
        ))
    }
}

pub struct MeasuredSqlite(TempRoot);

impl MeasuredSqlite {
    /// With the schema, in a folder of its own below this one.
    pub fn below(folder: &Path) -> MeasuredSqlite {
        let own = TempRoot::below(folder, std::process::id()).expect("a folder");
        let measured = MeasuredSqlite(own);
        measured.ledger().migrate(Instant::now() + Duration::from_secs(60)).expect("migrate");
        let database = rusqlite::Connection::open(measured.path()).expect("a database");
        let old = "UPDATE onedrop_ledger SET remembers_since = -1e9";
        assert_eq!(database.execute(old, []).expect("an update"), 1);
        measured
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.join("ledger.db")
    }

    pub fn ledger(&self) -> Arc<dyn AnyLedger> {
        Arc::new(SqliteLedger::new(self.path(), limits()))
    }

    /// Of the file, once what is in the WAL is in it.
    pub fn bytes(&self) -> u64 {
        let database = rusqlite::Connection::open(self.path()).expect("a database");
        database
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .expect("a checkpoint");
        self.path().metadata().expect("a file").len()
    }
}

/// Processor time of this process.
#[allow(dead_code, reason = "the benchmark's part")]
pub fn own_cpu() -> Duration {
    let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    nix::time::clock_gettime(clock).expect("a clock").into()
}
