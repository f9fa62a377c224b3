//! What all connections share under one configuration: where mail goes, the pools, the limits. A
//! new configuration makes a new one; whoever is in the middle of a message keeps the old one until
//! it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::calls::Calls;
use super::lent::LentLedger;
use super::mailboxes::Mailboxes;
use super::server::metrics::Sessions;
use crate::cli::{Adapters, StoreMaker};
use crate::config::{Config, Loaded};
use crate::deadline::Deadline;
use crate::deliver::Failure;
use crate::deliver::Policy;
use crate::directory::Known;
use crate::ledger::{Ledger, LedgerError};
use crate::message::DedupBy;
use crate::pool::{InUse, Limits, Pool};
use crate::routing::Routing;
use crate::store::{Store, StoreError};
use crate::way::{self, Gate, Unproven};

/// A ledger session out of the pool.
pub type LedgerSession = InUse<Box<dyn Ledger>>;

/// A store's session out of the pool.
pub type StoreSession = InUse<Box<dyn Store>>;

/// What the directory gets to answer for one recipient: twice the time in which a session shows
/// that its server is gone. Postfix waits 300 s for all of a message's (lmtp_rcpt_timeout).
const LOOK_UP: Duration = Duration::from_secs(20);

/// How long it may take to renew the proof that the way into the store is right; deliveries wait
/// for it.
const PROOF: Duration = Duration::from_secs(10);

/// See the module.
pub struct Service {
    loaded: Arc<Loaded>,
    adapters: Adapters,
    make_store: StoreMaker,
    ledgers: Arc<Pool<Box<dyn Ledger>>>,
    stores: Arc<Pool<Box<dyn Store>>>,
    /// By how many seconds the ledger's clock is ahead of ours, by its last word.
    clock_ahead: AtomicI64,
    /// Who appends where.
    pub mailboxes: Mailboxes,
    /// Who asks the ledger for what others ask for at the same time.
    pub calls: Calls,
    /// Whether an append may be repeated, which leases then join.
    pub joins: bool,
    pub routing: Routing,
    /// Before anything is written.
    gate: Arc<Gate>,
    pub policy: Policy,
    pub by: DedupBy,
    pub host: String,
    /// Names deliveries in Received fields and logs.
    next_delivery: AtomicU64,
}

impl Service {
    /// # Errors
    /// What is wrong with the configuration, in words.
    pub fn new(loaded: Arc<Loaded>, adapters: Adapters, host: String) -> Result<Service, String> {
        let config = &loaded.config;
        if config.directory.knows_nobody() {
            return Err(
                "the directory knows nobody: set directory.domains, accounts or query".to_owned()
            );
        }
        let make_store = (adapters.open_store)(&loaded).map_err(|error| error.to_string())?;
        let pool = &config.pool;
        let idle = Duration::from_secs(pool.idle_secs);
        let ledgers = Limits { used: pool.ledger, per_key: pool.ledger, kept: pool.ledger, idle };
        let stores = Limits { used: usize::MAX, per_key: pool.per_account, kept: pool.store, idle };
        Ok(Service {
            clock_ahead: AtomicI64::new(0),
            mailboxes: Mailboxes::default(),
            calls: Calls::default(),
            joins: make_store().append_is_idempotent(),
            routing: Routing::new(config),
            gate: Arc::default(),
            policy: Policy::of(config),
            by: config.dedup.by,
            ledgers: Arc::new(Pool::new(ledgers)),
            stores: Arc::new(Pool::new(stores)),
            next_delivery: AtomicU64::new(1),
            make_store,
            adapters,
            host,
            loaded,
        })
    }

    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// A ledger session whose calls end by `until`, and whether it was kept from an earlier use.
    ///
    /// # Errors
    /// None came free, or none can be opened.
    pub fn ledger(&self, until: Instant) -> Result<(LedgerSession, bool), LedgerError> {
        let right = self.ledgers.take("", until).map_err(|_| {
            LedgerError::Busy(format!("all {} sessions (pool.ledger)", self.config().pool.ledger))
        })?;
        let was_kept = right.is_at_hand();
        let mut session = right.or_make(|| (self.adapters.open_ledger)(&self.loaded, until))?;
        if was_kept && let Err(error) = session.renew(until) {
            session.throw_away();
            return Err(error);
        }
        self.calls.learn(session.works_together());
        Ok((session, was_kept))
    }

    /// A store for one account; waits for one until `until`.
    ///
    /// # Errors
    /// None came free.
    pub fn store(&self, account: &str, until: Instant) -> Result<StoreSession, StoreError> {
        let right = self.stores.take(account, until).map_err(|_| {
            let most = self.config().pool.per_account;
            let why = format!("all {most} sessions of account={account} (pool.per_account)");
            StoreError::NotStored(format!("in use by other deliveries: {why}"))
        })?;
        right.or_make(|| Ok(self.own_store()))
    }

    /// Returns if the way into the store is proven to lead to the accounts that we name; `accounts`
    /// are some.
    ///
    /// # Errors
    /// Nothing may be written.
    pub fn pass_the_gate(&self, accounts: &[&str], until: Instant) -> Result<(), Failure> {
        let mut ledger = LentLedger::new(self, until);
        self.gate.pass(accounts, &self.host, &mut ledger, self.own_store().as_mut(), until)
    }

    /// Renews that proof in the background; deliveries wait for it.
    pub fn begin_to_renew_the_proof(&self) {
        let mut store = self.own_store();
        if store.way().is_none() {
            return;
        }
        let asking = self.gate.begin();
        let (loaded, open, host) =
            (Arc::clone(&self.loaded), self.adapters.open_ledger, self.host.clone());
        let renew = move || {
            let until = Instant::now() + PROOF;
            let accounts: Vec<&str> =
                loaded.config.directory.accounts.values().map(String::as_str).collect();
            let renewed = open(&loaded, until).map_err(Unproven::from).and_then(|mut ledger| {
                way::renew(&accounts, &host, ledger.as_mut(), store.as_mut(), until)
            });
            asking.end(&renewed);
            match renewed {
                Ok(proof) => tracing::info!("store: {}", proof.unwrap_or_default()),
                Err(Unproven::Ignores(why)) => {
                    tracing::error!("store: {why}; until that is mended all mail is deferred")
                }
                Err(Unproven::Unknown(failure)) => {
                    tracing::warn!("{failure}; without a proof on record nothing is written")
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("proof".to_owned()).spawn(renew) {
            tracing::warn!(%error, "no thread to find out for whom the mail server lets us act");
        }
    }

    /// A store that counts with nobody: for one without sessions.
    pub fn own_store(&self) -> Box<dyn Store> {
        (self.make_store)()
    }

    /// What the ledger's clock says, in whole seconds, as far as we know.
    pub fn ledger_time(&self) -> SystemTime {
        let secs = our_secs().saturating_add(self.clock_ahead.load(Ordering::Relaxed));
        SystemTime::UNIX_EPOCH + Duration::from_secs(secs.max(0).unsigned_abs())
    }

    /// The ledger has just said `told` where we took its time for `guessed`.
    pub fn learn_the_time(&self, guessed: SystemTime, told: SystemTime) {
        if told != guessed {
            self.clock_ahead.store(secs(told).saturating_sub(our_secs()), Ordering::Relaxed);
        }
    }

    /// The account of a recipient; `None` when nobody has the address.
    ///
    /// # Errors
    /// The query cannot be asked now.
    pub fn account_of(&self, address: &str) -> Result<Option<String>, Failure> {
        match self.routing.known(address) {
            Known::Account(account) => Ok(Some(account)),
            Known::Nobody => Ok(None),
            Known::Ask(_) => self
                .routing
                .account_of(address, &mut LentLedger::new(self, Instant::now() + LOOK_UP)),
        }
    }

    /// The time that a delivery beginning now has.
    pub fn deadline(&self) -> Deadline {
        let limits = &self.loaded.config.limits;
        Deadline::new(
            Duration::from_secs(limits.deadline_secs),
            Duration::from_secs(limits.answer_secs),
        )
    }

    pub fn delivery_number(&self) -> u64 {
        self.next_delivery.fetch_add(1, Ordering::Relaxed)
    }

    /// Closes what nobody has used for a while.
    pub fn close_idle(&self) {
        self.ledgers.close_idle();
        self.stores.close_idle();
    }

    /// Closes everything that is kept, and keeps nothing any more: another service has taken over.
    pub fn retire(&self) {
        self.ledgers.retire();
        self.stores.retire();
    }

    /// The sessions there are now, in use and kept.
    pub fn sessions(&self) -> Vec<Sessions> {
        let counts = [("ledger", self.ledgers.count()), ("store", self.stores.count())];
        let both = counts.into_iter().flat_map(|(pool, (used, idle))| {
            [("used", used), ("idle", idle)].map(|(state, count)| Sessions { pool, state, count })
        });
        both.collect()
    }
}

fn our_secs() -> i64 {
    secs(SystemTime::now())
}

fn secs(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_secs()).ok())
        .unwrap_or(0)
}
