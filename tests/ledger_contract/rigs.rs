//! The ledgers that run the suite.

use std::path::PathBuf;

use nix::time::{ClockId, clock_gettime};
use onedrop::ledger::mariadb::{MariadbLedger, MariadbSettings, MysqlUrl};
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::postgres::{PostgresLedger, PostgresSettings, Prepare};
use onedrop::ledger::sqlite::{BootTime, Clocks, SqliteLedger};

use super::support::TempRoot;
use super::support::mariadb::{Mariadb, OpenTransaction};
use super::support::pgbouncer::PgBouncer;
use super::support::postgres::Postgres;
use super::support::proxy::{Proxy, Upstream};
use super::*;

#[derive(Default)]
pub struct MemoryRig {
    ledger: MemoryLedger,
    handles: Mutex<Vec<Arc<MemoryLedger>>>,
}

impl MemoryRig {
    pub fn ledger(&self) -> &MemoryLedger {
        &self.ledger
    }
}

impl Rig for MemoryRig {
    fn ledger(&self) -> Arc<dyn AnyLedger> {
        let handle = Arc::new(self.ledger.clone());
        self.handles.lock().expect("the handles").push(Arc::clone(&handle));
        handle
    }

    fn ledger_of(&self, config: Option<SharedConfig>) -> Arc<dyn AnyLedger> {
        Arc::new(config.map_or_else(|| self.ledger.clone(), |one| self.ledger.of_host(one)))
    }

    fn ledger_with(&self, _limits: Limits) -> Option<Arc<dyn AnyLedger>> {
        None
    }

    fn expire_leases(&self) {
        self.ledger.advance(2 * LEASE.lease);
    }

    fn step_clock(&self, secs: i64) {
        let by = Duration::from_secs(secs.unsigned_abs());
        if secs > 0 { self.ledger.advance(by) } else { self.ledger.set_back(by) }
    }

    fn lose_sessions(&self) -> bool {
        for handle in self.handles.lock().expect("the handles").iter() {
            handle.lose_session();
        }
        true
    }

    fn sql(&self, _statements: &str) -> bool {
        false
    }

    fn remember_since(&self, at: SystemTime) {
        self.ledger.remembers_since(at);
    }

    fn account_query(&self, address: &str, account: &str) -> String {
        self.ledger.add_account(address, account);
        String::new()
    }
}

pub struct SqliteRig {
    folder: TempRoot,
    clocks: Arc<SteppedClocks>,
}

/// The host's clocks, moved.
#[derive(Default)]
pub struct SteppedClocks {
    /// By how much they are before the host's own.
    wall_secs: AtomicI64,
    boot_secs: AtomicI64,
    /// What the boot is called; `None`: it cannot be read.
    boot: Mutex<Option<&'static str>>,
}

impl SteppedClocks {
    /// From now on the host has been up for `secs`, in a boot of that name.
    pub fn boot(&self, id: &'static str, secs: f64) {
        let now = self.boot_id(Some(id)).expect("a boot").secs;
        self.boot_secs.fetch_add((secs - now).round() as i64, Ordering::SeqCst);
    }

    pub fn boot_id(&self, id: Option<&'static str>) -> Result<BootTime, LedgerError> {
        *self.boot.lock().expect("the boot") = id;
        Clocks::boot(self)
    }
}

impl Clocks for SteppedClocks {
    fn wall(&self) -> SystemTime {
        let secs = self.wall_secs.load(Ordering::SeqCst);
        let by = Duration::from_secs(secs.unsigned_abs());
        if secs > 0 { SystemTime::now() + by } else { SystemTime::now() - by }
    }

    fn boot(&self) -> Result<BootTime, LedgerError> {
        let id = *self.boot.lock().expect("the boot");
        let id = id.ok_or_else(|| LedgerError::Clock("no boot id".to_owned()))?;
        let since = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock");
        let ahead = self.boot_secs.load(Ordering::SeqCst) as f64;
        Ok(BootTime { secs: Duration::from(since).as_secs_f64() + ahead, id: id.to_owned() })
    }
}

impl SqliteRig {
    pub fn new() -> SqliteRig {
        let folder = TempRoot::new();
        let rig = SqliteRig { folder, clocks: Arc::default() };
        rig.clocks.boot("first", 100_000.0);
        assert_eq!(Host::of(&rig).schema_version(), SCHEMA_VERSION, "made at the first use");
        rig.sql("UPDATE onedrop_ledger SET remembers_since = -1e15");
        rig
    }

    pub fn clocks(&self) -> &SteppedClocks {
        &self.clocks
    }

    pub fn now(&self) -> BootTime {
        Clocks::boot(&*self.clocks).expect("a boot")
    }

    fn path(&self) -> PathBuf {
        self.folder.join("ledger.db")
    }

    pub fn of_program(&self, program: Program) -> Arc<dyn AnyLedger> {
        let program = Program { makes: true, ..program };
        Arc::new(SqliteLedger::of(self.path(), program, limits(20)))
    }

    pub fn connection(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.path()).expect("the database");
        connection.busy_timeout(Duration::from_secs(60)).expect("a time-out");
        connection
    }
}

impl Rig for SqliteRig {
    fn ledger(&self) -> Arc<dyn AnyLedger> {
        self.ledger_with(limits(20)).expect("a ledger")
    }

    fn ledger_of(&self, config: Option<SharedConfig>) -> Arc<dyn AnyLedger> {
        self.of_program(Program { config, ..Program::default() })
    }

    fn ledger_with(&self, limits: Limits) -> Option<Arc<dyn AnyLedger>> {
        let clocks = Arc::clone(&self.clocks);
        Some(Arc::new(SqliteLedger::by(self.path(), clocks, limits)))
    }

    fn step_clock(&self, secs: i64) {
        self.clocks.wall_secs.fetch_add(secs, Ordering::SeqCst);
    }

    fn pass(&self, secs: i64) {
        self.step_clock(secs);
        self.clocks.boot_secs.fetch_add(secs, Ordering::SeqCst);
    }

    fn steps_move_leases(&self) -> bool {
        false
    }

    fn expire_leases(&self) {
        self.sql("UPDATE onedrop_copy SET leased_until = leased_until - 1e6");
    }

    fn expire_locks(&self) {
        for table in ["onedrop_lock_lease", "onedrop_lock_waiter"] {
            self.sql(&format!("UPDATE {table} SET lease_until = lease_until - 1e9"));
        }
    }

    fn lose_sessions(&self) -> bool {
        false
    }

    fn sql(&self, statements: &str) -> bool {
        self.connection().execute_batch(statements).expect("SQL");
        true
    }
}

pub const NO_FUNCTIONS: &str = "DO $$ DECLARE f regprocedure; BEGIN
    FOR f IN SELECT oid FROM pg_proc WHERE proname LIKE 'onedrop%'
    LOOP EXECUTE 'DROP ROUTINE ' || f || ' CASCADE'; END LOOP; END $$;";

/// Directly, or through a pooler that hands each transaction to another server connection.
pub struct PostgresRig {
    bouncer: Option<PgBouncer>,
    pub postgres: Postgres,
    prepare: Prepare,
}

impl PostgresRig {
    /// In the run's server. What is called once more in a connection is prepared, as a test calls
    /// few things three times; through the pooler nothing is.
    pub fn shared() -> PostgresRig {
        PostgresRig { bouncer: None, postgres: Postgres::shared(), prepare: Prepare::Always }
    }

    /// The same with what is prepared by default: below statements that are prepared no schema
    /// changes.
    pub fn shared_by_default() -> PostgresRig {
        PostgresRig { prepare: Prepare::Auto, ..PostgresRig::shared() }
    }

    /// In a server of its own, whose roles, settings and views are this test's alone.
    pub fn own() -> PostgresRig {
        PostgresRig::with("")
    }

    /// With further lines for postgresql.conf.
    pub fn with(settings: &str) -> PostgresRig {
        let postgres = Postgres::start_with(settings);
        PostgresRig { bouncer: None, postgres, prepare: Prepare::Auto }.migrated()
    }

    pub fn pooled() -> PostgresRig {
        let postgres = Postgres::shared();
        let bouncer = Some(PgBouncer::shared(&postgres));
        PostgresRig { bouncer, postgres, prepare: Prepare::Auto }
    }

    fn migrated(self) -> PostgresRig {
        Host::of(&self).migrate().expect("migrate");
        self.postgres.remember_for_ever();
        self
    }

    pub fn url(&self) -> String {
        self.bouncer.as_ref().map_or_else(|| self.postgres.url_socket(), PgBouncer::url)
    }

    fn ledger_at(&self, url: String, limits: Limits) -> Arc<dyn AnyLedger> {
        self.ledger_for(url, Program::default(), limits)
    }

    pub fn ledger_for(&self, url: String, program: Program, limits: Limits) -> Arc<dyn AnyLedger> {
        let settings = PostgresSettings { prepare: self.prepare, ..Postgres::settings(&url) };
        Arc::new(PostgresLedger::of(settings, program, limits).expect("a ledger"))
    }

    /// A proxy between the server and those that come [`through`](PostgresRig::through) it.
    pub fn proxy(&self) -> Proxy {
        let socket = format!(".s.PGSQL.{}", self.postgres.port());
        Proxy::start(Upstream::Postgres(self.postgres.socket_dir().join(socket)))
    }

    /// A handle of another role, which can log in.
    pub fn of_role(&self, role: &str) -> Host {
        let url = self.postgres.url_socket().replace("onedrop@/", &format!("{role}@/"));
        Host(self.ledger_at(url, limits(20)))
    }

    pub fn through(&self, proxy: &Proxy) -> Host {
        let port = proxy.port();
        let database = self.postgres.database();
        let url = format!("postgres://onedrop@127.0.0.1:{port}/{database}?sslmode=disable");
        Host(self.ledger_at(url, limits(20)))
    }
}

impl Rig for PostgresRig {
    fn ledger(&self) -> Arc<dyn AnyLedger> {
        self.ledger_with(limits(20)).expect("a ledger")
    }

    fn ledger_with(&self, limits: Limits) -> Option<Arc<dyn AnyLedger>> {
        Some(self.ledger_at(self.url(), limits))
    }

    fn ledger_of(&self, config: Option<SharedConfig>) -> Arc<dyn AnyLedger> {
        let program = Program { config, ..Program::default() };
        self.ledger_for(self.url(), program, limits(20))
    }

    fn expire_leases(&self) {
        self.sql("UPDATE onedrop_copy SET leased_until = leased_until - interval '100 days'");
    }

    fn expire_locks(&self) {
        for table in ["onedrop_lock_lease", "onedrop_lock_waiter"] {
            self.sql(&format!(
                "UPDATE {table} SET lease_until = lease_until - interval '100 days'"
            ));
        }
    }

    /// The server's clock cannot be set here: what is on record is moved against it, which is the
    /// same.
    fn step_clock(&self, secs: i64) {
        let by = format!("{secs} * interval '1 second'");
        self.sql(&format!(
            "UPDATE onedrop_copy
             SET leased_until = leased_until - {by}, placed_at = placed_at - {by},
                 due_at = due_at - {by}, began_at = began_at - {by};
             UPDATE onedrop_message SET recorded_at = recorded_at - {by};
             UPDATE onedrop_attempt SET started_at = started_at - {by};
             UPDATE onedrop_host SET seen_at = seen_at - {by};
             UPDATE onedrop_kept SET kept_at = kept_at - {by}"
        ));
    }

    fn lose_sessions(&self) -> bool {
        self.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
    }

    fn slow_commits(&self) {
        let database = self.postgres.database();
        for setting in ["commit_siblings = 0", "commit_delay = 100000"] {
            self.sql(&format!("ALTER DATABASE {database} SET {setting}"));
        }
    }

    fn shared_transactions(&self) -> Option<bool> {
        let rows = "SELECT (SELECT count(*) > count(DISTINCT xmin::text) FROM onedrop_message)
                        OR count(DISTINCT message_id) > count(DISTINCT xmin::text)
                    FROM onedrop_copy";
        Some(self.postgres.psql(rows) == "t")
    }

    fn sql(&self, statements: &str) -> bool {
        self.postgres.psql(statements);
        true
    }
}

pub struct MariadbRig {
    pub mariadb: Mariadb,
}

impl MariadbRig {
    pub fn shared() -> MariadbRig {
        MariadbRig { mariadb: Mariadb::shared() }
    }

    /// In a server of its own, whose users and settings are this test's alone.
    pub fn own() -> MariadbRig {
        MariadbRig::with(&[])
    }

    /// `settings`: further options of mariadbd.
    pub fn with(settings: &[&str]) -> MariadbRig {
        let rig = MariadbRig { mariadb: Mariadb::start_with(settings) };
        Host::of(&rig).migrate().expect("migrate");
        rig.sql("UPDATE onedrop_ledger SET remembers_since = '0001-01-01'");
        rig
    }

    /// Another program's transaction that has run `sql`; open until it is dropped.
    pub fn open_transaction(&self, sql: &str) -> OpenTransaction {
        self.mariadb.begin(sql)
    }

    /// A proxy between the server and those that come [`through`](MariadbRig::through) it.
    pub fn proxy(&self) -> Proxy {
        Proxy::start(Upstream::Mariadb(self.mariadb.socket()))
    }

    pub fn through(&self, proxy: &Proxy) -> Host {
        let url = format!("mysql://{0}@127.0.0.1:{1}/{0}", self.mariadb.database(), proxy.port());
        Host(self.ledger_at(&url, limits(20)))
    }

    pub fn ledger_at(&self, url: &str, limits: Limits) -> Arc<dyn AnyLedger> {
        self.ledger_for(url, Program::default(), limits)
    }

    pub fn of_program(&self, program: Program) -> Arc<dyn AnyLedger> {
        self.ledger_for(&self.mariadb.url_socket(), program, limits(20))
    }

    fn ledger_for(&self, url: &str, program: Program, limits: Limits) -> Arc<dyn AnyLedger> {
        let url = MysqlUrl::parse(url).expect("a URL");
        let password = Some(self.mariadb.password().into());
        let settings = MariadbSettings { url, password, ca_file: None };
        Arc::new(MariadbLedger::of(settings, program, limits).expect("a ledger"))
    }
}

impl Rig for MariadbRig {
    fn ledger(&self) -> Arc<dyn AnyLedger> {
        self.ledger_with(limits(20)).expect("a ledger")
    }

    fn ledger_with(&self, limits: Limits) -> Option<Arc<dyn AnyLedger>> {
        Some(self.ledger_at(&self.mariadb.url_socket(), limits))
    }

    fn ledger_of(&self, config: Option<SharedConfig>) -> Arc<dyn AnyLedger> {
        self.of_program(Program { config, ..Program::default() })
    }

    fn expire_leases(&self) {
        self.sql("UPDATE onedrop_copy SET leased_until = leased_until - INTERVAL 100 DAY");
    }

    fn expire_locks(&self) {
        for table in ["onedrop_lock_lease", "onedrop_lock_waiter"] {
            self.sql(&format!("UPDATE {table} SET lease_until = lease_until - INTERVAL 100 DAY"));
        }
    }

    /// Like on Postgres: moves what is on record against the server's clock.
    fn step_clock(&self, secs: i64) {
        let by = format!("INTERVAL {secs} SECOND");
        self.sql(&format!(
            "UPDATE onedrop_copy
             SET leased_until = leased_until - {by}, placed_at = placed_at - {by},
                 due_at = due_at - {by}, began_at = began_at - {by};
             UPDATE onedrop_message SET recorded_at = recorded_at - {by};
             UPDATE onedrop_attempt SET started_at = started_at - {by};
             UPDATE onedrop_raw SET kept_at = kept_at - {by};
             UPDATE onedrop_host SET seen_at = seen_at - {by};
             UPDATE onedrop_kept SET kept_at = kept_at - {by}"
        ));
    }

    fn remember_since(&self, at: SystemTime) {
        let secs = at.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let at = format!("TIMESTAMPADD(SECOND, {secs}, '1970-01-01')");
        self.sql(&format!("UPDATE onedrop_ledger SET remembers_since = {at}"));
    }

    fn lose_sessions(&self) -> bool {
        self.sql(&format!("KILL HARD USER {}", self.mariadb.database()))
    }

    fn joined(&self, texts: &[&str]) -> String {
        format!("CONCAT({})", texts.join(", "))
    }

    fn forget_schema(&self) -> bool {
        self.sql(
            "DROP TABLE onedrop_job_run, onedrop_job, onedrop_lock_waiter, onedrop_lock_lease,
                 onedrop_lock, onedrop_slot, onedrop_kept_bytes, onedrop_kept, onedrop_proof,
                 onedrop_attempt, onedrop_unsettled, onedrop_copy, onedrop_raw, onedrop_message,
                 onedrop_ledger, onedrop_schema;
             DROP TABLE onedrop_host;
             DROP VIEW onedrop_message_text, onedrop_address, onedrop_part;
             DROP PROCEDURE onedrop_assert_lock; DROP PROCEDURE onedrop_lock;
             DROP PROCEDURE onedrop_renew; DROP PROCEDURE onedrop_unlock;
             DROP PROCEDURE onedrop_lock_holder",
        )
    }

    fn sql(&self, statements: &str) -> bool {
        self.mariadb.sql(statements);
        true
    }
}
