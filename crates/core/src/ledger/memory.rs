//! A ledger in memory, for tests: it keeps every promise of the port, locks too. Clones share the
//! rows; each stands for another host or process, with a session of its own that can be lost. Its
//! clock stands still until a test moves it, or goes by the one it is given. A [`Hook`] sees every
//! call. Nothing outlives the process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant, SystemTime};

use super::claim::{Change, TurnState};
use super::durability::{Durability, Lasting};
use super::port::{Accounts, Ledger, OpenTurn, Proofs, Schema, ToConfirm, Turn};
use super::units;
use super::{
    Attempt, AttemptEnd, AttemptKey, Claim, Confirmed, CopyState, Due, Entry, FilterFields,
    LeaseTerms, LedgerError, MessageKey, PlannedStep, Program, Recorded, SCHEMA_VERSION,
    SchemaVersion, SharedConfig,
};
use crate::clock::Clock;
use crate::connections::Connections;
use crate::directory::{Asked, Destination, Home};
use crate::hook::{Call, Hook};
use crate::lock_key::{self, Hash};
use crate::login::Way;
use crate::message::Identity;
use crate::receipt::Receipt;

pub use rows::MemoryCopy;
use rows::Rows;

mod jobs;
mod locks;
mod overview;
mod pages;
mod retention;
mod rows;
mod settling;
mod time;
mod trace;
mod verify;

/// A handle on a ledger in memory.
pub struct MemoryLedger {
    rows: Arc<Mutex<Rows>>,
    session: u64,
    hook: Arc<dyn Hook<LedgerError>>,
    /// What the clock said at the last call.
    time: Mutex<Option<SystemTime>>,
    /// The threads that have a turn open; `None`: each may do in one what it likes.
    in_turns: Option<Mutex<Vec<ThreadId>>>,
    config: Option<SharedConfig>,
}

impl Default for MemoryLedger {
    fn default() -> Self {
        MemoryLedger::of(Arc::default(), Arc::new(()))
    }
}

impl Clone for MemoryLedger {
    fn clone(&self) -> Self {
        let config = self.config.clone();
        MemoryLedger { config, ..MemoryLedger::of(Arc::clone(&self.rows), Arc::clone(&self.hook)) }
    }
}

impl MemoryLedger {
    fn of(rows: Arc<Mutex<Rows>>, hook: Arc<dyn Hook<LedgerError>>) -> MemoryLedger {
        let session = {
            let mut rows = locked(&rows);
            rows.sessions += 1;
            rows.sessions
        };
        let (time, in_turns) = (Mutex::default(), None);
        MemoryLedger { rows, session, hook, time, in_turns, config: None }
    }

    /// One whose time is that of `clock`.
    pub fn by(clock: Arc<dyn Clock>) -> MemoryLedger {
        let ledger = MemoryLedger::default();
        let began = clock.now();
        ledger.rows().time.by = Some((clock, began));
        ledger
    }

    /// The same, as in a file: leases count by the boot of the one host, and no step moves them.
    pub fn on_one_host(clock: Arc<dyn Clock>) -> MemoryLedger {
        let ledger = MemoryLedger::by(clock);
        ledger.rows().time.has_boot_clock = true;
        ledger
    }

    /// The host restarts: leases last their own length from here on.
    pub fn restart(&self) {
        let mut rows = self.rows();
        let now = rows.time.of_leases();
        for row in rows.copies.values_mut().filter(|row| row.leased_until.is_some()) {
            row.leased_until = Some(now + row.lease);
        }
    }

    /// The ledger's server crashes: all sessions are lost, and so is what was not on its disk yet.
    /// Returns how many receipts that were.
    pub fn crash(&self) -> usize {
        let mut rows = self.rows();
        rows.locks.clear();
        rows.lose_unsynced()
    }

    /// A standby takes over that has none of the messages.
    pub fn fail_over(&self) {
        self.rows().lose_messages();
    }

    /// All that is on record comes to be on the disk.
    pub fn sync(&self) {
        self.rows().unsynced.clear();
    }

    /// Makes every lease run out.
    pub fn end_leases(&self) {
        let mut rows = self.rows();
        let now = rows.time.of_leases();
        rows.copies.values_mut().for_each(|row| row.leased_until = row.leased_until.min(Some(now)));
    }

    /// Another handle, whose calls go through `hook`. One panics that a thread makes beside its own
    /// turn: there it has a session already, and where as many threads wait for a second one as
    /// there are sessions, all wait for each other.
    pub fn with_hook(&self, hook: Arc<dyn Hook<LedgerError>>) -> MemoryLedger {
        let (config, in_turns) = (self.config.clone(), Some(Mutex::default()));
        MemoryLedger { config, in_turns, ..MemoryLedger::of(Arc::clone(&self.rows), hook) }
    }

    /// Another handle, of a host whose configuration says this.
    pub fn of_host(&self, config: SharedConfig) -> MemoryLedger {
        MemoryLedger { config: Some(config), ..self.clone() }
    }

    /// The bytes that are kept are lost, or an administrator has deleted them.
    pub fn give_up_kept(&self) {
        self.rows().messages.values_mut().for_each(|message| message.kept = None);
    }

    /// Puts a message on record that has no copies: its number, what names it, and whether its
    /// copies look back.
    pub fn put_message(&self, (number, identity, looks_back): (i64, &Identity, bool)) {
        self.rows().put_message(number, identity, looks_back);
    }

    /// Puts a copy of a message on record as it is after this change.
    pub fn put_copy(&self, copy: i64, message: i64, to: &Destination, change: Change) {
        self.rows().put_copy(copy, message, to, change);
    }

    /// All copies on record.
    pub fn copies(&self) -> Vec<MemoryCopy> {
        self.rows().ruled()
    }

    /// What was recorded before `at` is forgotten, as far as the ledger knows: it began then.
    pub fn remembers_since(&self, at: SystemTime) {
        self.rows().remembers_since = Some(at);
    }

    /// Moves the ledger's clock.
    pub fn advance(&self, by: Duration) {
        self.rows().time.ahead += by;
    }

    /// Lets the time for the next look at each copy come.
    pub fn let_looks_come(&self) {
        let mut rows = self.rows();
        let now = rows.time.now();
        rows.unsettled.values_mut().for_each(|at| *at = now.min(*at));
    }

    /// Sets the ledger's clock back, not beyond its beginning.
    pub fn set_back(&self, by: Duration) {
        self.rows().time.set_back(by);
    }

    /// Ends this handle's session, as a server does with one that fell silent: the locks it held
    /// are free, and a turn that is open comes to nothing. The next call begins another one.
    pub fn lose_session(&self) {
        let is_ours = |lock: Arc<u64>| *lock == self.session;
        self.rows().locks.retain(|_, lock| !lock.upgrade().is_some_and(is_ours));
    }

    /// Makes `directory.query` answer `account` for `address`.
    pub fn add_account(&self, address: &str, account: &str) {
        self.rows().accounts.insert(address.to_owned(), account.to_owned());
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        locked(&self.rows)
    }

    /// Takes a lock without waiting.
    fn lock(&self, key: i64) -> Result<HeldLock, LedgerError> {
        let mut rows = self.rows();
        if rows.locks.get(&key).is_some_and(|lock| lock.strong_count() > 0) {
            return Err(LedgerError::Contended);
        }
        let lock = Arc::new(self.session);
        rows.locks.insert(key, Arc::downgrade(&lock));
        Ok(HeldLock { key, lock })
    }

    /// The rows, as long as the lock is held.
    fn rows_under(&self, held: &HeldLock) -> Result<MutexGuard<'_, Rows>, LedgerError> {
        let (rows, ours) = (self.rows(), Arc::downgrade(&held.lock));
        match rows.locks.get(&held.key).is_some_and(|lock| lock.ptr_eq(&ours)) {
            true => Ok(rows),
            false => Err(LedgerError::Unavailable("the session was lost".to_owned())),
        }
    }

    fn in_turns(&self) -> Option<MutexGuard<'_, Vec<ThreadId>>> {
        let in_turns = self.in_turns.as_ref()?;
        Some(in_turns.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One statement, with the hook around it.
    fn call<T>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let is_in_turn = |all: MutexGuard<'_, Vec<_>>| all.contains(&thread::current().id());
        assert!(!self.in_turns().is_some_and(is_in_turn), "{name} beside its own turn");
        let call = Call { name, destination: None };
        self.hook.before(&call)?;
        let result = work();
        // A commit brings to the disk what was committed before it.
        if name != "confirm" && !READS.contains(&name) {
            self.rows().unsynced.clear();
        }
        *self.time.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(self.rows().time.wall_clock());
        self.hook.after(&call)?;
        result
    }
}

/// The calls of deliveries, `verify` and `settle` that change nothing.
const READS: [&str; 15] = [
    "take_turn",
    "kept",
    "filter_fields",
    "has_copy",
    "has_placed_copy",
    "account_reached",
    "receipt_before",
    "check_program",
    "accounts_to_verify",
    "copies_to_verify",
    "copies_to_settle",
    "doubts_to_settle",
    "has_namesake",
    "proven_forms",
    "kept_bytes",
];

/// A lock that is held until this is dropped, or the session lost.
struct HeldLock {
    key: i64,
    lock: Arc<u64>,
}

/// A test that panicked elsewhere must not hide this one's result.
fn locked(rows: &Mutex<Rows>) -> MutexGuard<'_, Rows> {
    rows.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger for MemoryLedger {
    fn time(&self) -> SystemTime {
        let time = *self.time.lock().unwrap_or_else(PoisonError::into_inner);
        let time = time.unwrap_or_else(|| self.rows().time.wall_clock());
        units::time(units::whole_secs(time))
    }

    fn record(
        &self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
        _until: Instant,
    ) -> Result<Recorded, LedgerError> {
        self.call("record", || {
            let held = self.lock(lock_key::advisory_key(&entry.identity.id_hash))?;
            self.hook.within(&Call { name: "record", destination: None })?;
            let mut rows = self.rows_under(&held)?;
            let config = self.config.as_ref().map(|config| config.with(entry.fields));
            rows.share_first(config.as_ref())?;
            rows.record(entry, attempt, destinations, terms)
        })
    }

    fn claim(
        &self,
        message: &MessageKey,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
        _until: Instant,
    ) -> Result<Vec<CopyState>, LedgerError> {
        self.call("claim", || self.rows().claims(message, destinations, owner, terms))
    }

    fn take_turn<'a>(
        &'a self,
        claim: &Claim,
        copy_key: &Hash,
        _until: Instant,
    ) -> Result<Turn<'a>, LedgerError> {
        self.call("take_turn", || {
            let held = self.lock(lock_key::advisory_key(copy_key))?;
            Ok(match self.rows().turn(claim)? {
                TurnState::Placed(receipt) => Turn::Placed(receipt),
                TurnState::EpochGone => Turn::EpochGone,
                TurnState::Ours { in_doubt } => {
                    Turn::Ours { in_doubt, turn: Box::new(MemoryTurn::begin(self, held)) }
                }
            })
        })
    }

    fn confirm(&self, receipt: &ToConfirm<'_>, _until: Instant) -> Result<Confirmed, LedgerError> {
        self.call("confirm", || self.rows().confirm(receipt))
    }

    fn release(&self, claims: &[Claim], _until: Instant) -> Result<(), LedgerError> {
        self.call("release", || {
            self.rows().release(claims);
            Ok(())
        })
    }

    fn keep(
        &self,
        message: &MessageKey,
        bytes: &[u8],
        why: &str,
        _until: Instant,
    ) -> Result<bool, LedgerError> {
        self.call("keep", || self.rows().keep(message, bytes, why))
    }

    fn kept(&self, message: &MessageKey, _until: Instant) -> Result<Option<String>, LedgerError> {
        self.call("kept", || {
            let mut rows = self.rows();
            let kept = rows.named(message).ok().and_then(|row| row.kept.as_ref());
            Ok(kept.map(|(_, why)| why.clone()))
        })
    }

    fn filter_fields(&self, _anew: bool, _until: Instant) -> Result<FilterFields, LedgerError> {
        self.call("filter_fields", || {
            let Some(config) = &self.config else { return Ok(FilterFields::default()) };
            Ok(config.filter_fields(self.rows().config.as_deref())?)
        })
    }

    fn has_copy(
        &self,
        identity: &Identity,
        destination: &Destination,
        _until: Instant,
    ) -> Result<bool, LedgerError> {
        self.call("has_copy", || {
            let rows = self.rows();
            let message = rows.known(identity);
            let mut copies = rows.copies.values();
            Ok(message.is_some_and(|message| {
                copies.any(|row| row.message == message && row.destination == *destination)
            }))
        })
    }

    fn has_placed_copy(&self, account: &str, _until: Instant) -> Result<bool, LedgerError> {
        self.call("has_placed_copy", || {
            let rows = self.rows();
            let mut placed = rows.copies.values().filter(|row| row.receipt.is_some());
            Ok(placed.any(|row| row.destination.account == account))
        })
    }

    fn account_reached(
        &self,
        addresses: &[&str],
        _until: Instant,
    ) -> Result<Option<String>, LedgerError> {
        self.call("account_reached", || Ok(self.rows().account_reached(addresses)))
    }

    fn keep_until_due(
        &self,
        message: &MessageKey,
        destination: &Destination,
        kept: (&[u8], &str),
        after: Duration,
        _until: Instant,
    ) -> Result<Due, LedgerError> {
        self.call("keep_until_due", || {
            self.rows().keep_until_due(message, destination, kept, after)
        })
    }

    fn receipt_before(
        &self,
        message: i64,
        place: (&Destination, &str),
        earlier: Duration,
        _until: Instant,
    ) -> Result<Option<Receipt>, LedgerError> {
        self.call("receipt_before", || self.rows().receipt_before(message, place, earlier))
    }

    fn finish(
        &self,
        identity: &Identity,
        recorded: Option<(AttemptKey, &Attempt, &AttemptEnd)>,
        others: &[(Attempt, AttemptEnd)],
        _until: Instant,
    ) -> Result<(), LedgerError> {
        self.call("finish", || {
            let mut rows = self.rows();
            let message = rows.known(identity);
            if let Some((attempt, by, end)) = recorded
                && let Some(row) = rows.attempt(attempt)
                && message.is_some_and(|message| row.message == Some(message))
                && (&row.attempt.host, row.attempt.pid) == (&by.host, by.pid)
                && row.attempt.recipient == by.recipient
            {
                row.end = Some(end.clone());
            }
            rows.note(identity, others);
            Ok(())
        })
    }
}

/// The turn at a copy, with its lock.
struct MemoryTurn<'a> {
    ledger: &'a MemoryLedger,
    held: HeldLock,
    thread: ThreadId,
}

impl<'a> MemoryTurn<'a> {
    fn begin(ledger: &'a MemoryLedger, held: HeldLock) -> MemoryTurn<'a> {
        let thread = thread::current().id();
        ledger.in_turns().into_iter().for_each(|mut all| all.push(thread));
        MemoryTurn { ledger, held, thread }
    }

    fn end(&self) {
        let mut all = self.ledger.in_turns();
        all.iter_mut().for_each(|all| all.retain(|thread| *thread != self.thread));
    }
}

impl Drop for MemoryTurn<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl OpenTurn for MemoryTurn<'_> {
    fn confirm(
        self: Box<Self>,
        receipt: &ToConfirm<'_>,
        _until: Instant,
    ) -> Result<Confirmed, LedgerError> {
        self.end();
        self.ledger.call("confirm", || self.ledger.rows_under(&self.held)?.confirm(receipt))
    }
}

impl Accounts for MemoryLedger {
    fn account_by_query(
        &self,
        _query: &str,
        asked: &Asked,
        _until: Instant,
    ) -> Result<Option<Home>, LedgerError> {
        self.call("account_by_query", || {
            Ok(self.rows().accounts.get(&asked.address).cloned().map(Home::of))
        })
    }
}

impl Durability for MemoryLedger {
    fn durability(&self, _until: Instant) -> Result<Vec<Lasting>, LedgerError> {
        let lasting = Lasting::MayBeLost("in memory: it is gone with its process".to_owned());
        self.call("durability", || Ok(vec![lasting]))
    }
}

impl Proofs for MemoryLedger {
    fn is_proven(&self, way: &Way, _until: Instant) -> Result<bool, LedgerError> {
        self.call("is_proven", || Ok(self.rows().proven.contains(way)))
    }

    fn proven_forms(
        &self,
        server: &str,
        login_user: &str,
        _until: Instant,
    ) -> Result<Vec<String>, LedgerError> {
        self.call("proven_forms", || {
            let rows = self.rows();
            let is_its = |way: &&Way| way.server == server && way.login_user == login_user;
            Ok(rows.proven.iter().filter(is_its).map(|way| way.form.clone()).collect())
        })
    }

    fn note_proof(
        &self,
        way: &Way,
        holds: bool,
        _host: &str,
        _until: Instant,
    ) -> Result<(), LedgerError> {
        self.call("note_proof", || {
            let mut rows = self.rows();
            rows.proven.retain(|other| other != way);
            if holds {
                rows.proven.push(way.clone());
            }
            Ok(())
        })
    }

    fn latest_copies(
        &self,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        self.call("latest_copies", || {
            let rows = self.rows();
            let newest = rows.copies.values().rev();
            let placed =
                newest.filter_map(|row| Some((row.destination.clone(), row.receipt.clone()?)));
            Ok(placed.take(limit as usize).collect())
        })
    }
}

impl Schema for MemoryLedger {
    fn schema_version(&self, _until: Instant) -> Result<SchemaVersion, LedgerError> {
        self.call("schema_version", || Ok(Program::default().sees(SCHEMA_VERSION, SCHEMA_VERSION)))
    }

    fn check_program(&self, _until: Instant) -> Result<(), LedgerError> {
        self.call("check_program", || match &self.config {
            Some(config) => Ok(config.check(self.rows().config.as_deref())?),
            None => Ok(()),
        })
    }

    fn migrate(&self, _until: Instant) -> Result<Vec<String>, LedgerError> {
        self.call("migrate", || Ok(Vec::new()))
    }

    fn clock(&self, _until: Instant) -> Result<Option<SystemTime>, LedgerError> {
        self.call("clock", || Ok(Some(self.rows().time.wall_clock())))
    }

    fn planned_migration(&self, _until: Instant) -> Result<Vec<PlannedStep>, LedgerError> {
        self.call("planned_migration", || Ok(Vec::new()))
    }

    fn share_config(&self, replace: bool, _until: Instant) -> Result<(), LedgerError> {
        self.call("share_config", || self.rows().share(self.config.as_ref(), replace))
    }

    fn prove_exclusion(&self, name: &str, _until: Instant) -> Result<(), String> {
        let proof = self.call("prove_exclusion", || {
            let key = lock_key::advisory_key(&lock_key::name_hash(name));
            let _held = self.lock(key)?;
            Ok(matches!(self.lock(key), Err(LedgerError::Contended)))
        });
        match proof {
            Ok(true) => Ok(()),
            Ok(false) => Err("two sessions hold one lock at the same time".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Connections for MemoryLedger {}
