//! The protocol (`src/deliver.rs`) with ledger and store in memory: fail at each step, deliver
//! again as Postfix would, and count. Whatever happens, each mailbox has one copy in the end, and
//! nobody said "delivered" without one.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::ports::{JOIN, LEASE, attempt, inbox, mail, mail_with_body, message, sent, soon};
use onedrop::deadline::Deadline;
use onedrop::deliver::{self, Failure, How, Job, Policy, Report};
use onedrop::directory::{Asked, Destination};
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, Entry, LeaseTerms,
    Ledger, LedgerError, RandomValue, Recorded, Trace, TraceCopy, TraceFilter, Turn, Window,
};
use onedrop::lock_key::Hash;
use onedrop::message::{Identity, Message};
use onedrop::outcome::{Outcome, OverQuota, Status};
use onedrop::store::maildir::old::MaildirStore;
use onedrop::store::memory::{self, MemoryStore};
use onedrop::store::{Copy, Found, Receipt, Sought, Store, StoreError, Way, Whose};

/// The ledger's calls of a delivery that takes a turn at its only copy.
const TURN_TAKEN: &[&str] = &["record", "take_turn", "confirm"];

type Hook = Box<dyn FnOnce() + Send>;

/// How a ledger's call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LedgerFault {
    /// The statement fails and the session lives on.
    Refused,
    /// The session is lost before the call.
    Lost,
    /// The session is lost after the call took effect.
    LostAfter,
    /// As `Lost`, and there is no other session to be had.
    LostForGood,
    /// The process ends before the call.
    Crash,
    /// The process ends after the call took effect.
    CrashAfter,
}

impl LedgerFault {
    const ALL: [LedgerFault; 6] = [
        LedgerFault::Refused,
        LedgerFault::Lost,
        LedgerFault::LostAfter,
        LedgerFault::LostForGood,
        LedgerFault::Crash,
        LedgerFault::CrashAfter,
    ];
}

/// A session that goes wrong once, or lets a test do something in between.
struct TestLedger {
    /// Shared with whoever takes the session's locks away.
    inner: Arc<Mutex<MemoryLedger>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    fault: Option<(usize, LedgerFault)>,
    hook: Option<(&'static str, Hook)>,
    lost: bool,
    lost_for_good: bool,
}

impl TestLedger {
    fn call<T>(
        &mut self,
        name: &'static str,
        call: impl FnOnce(&mut MemoryLedger) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let unavailable = || Err(LedgerError::Unavailable("told to fail".to_owned()));
        if self.lost && name != "reopen" {
            return unavailable();
        }
        let number = note_call(&self.calls, name);
        if let Some((_, hook)) = self.hook.take_if(|(at, _)| *at == name) {
            hook();
        }
        let fault = self.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        match fault {
            None => call(&mut unpoisoned(&self.inner)),
            Some(LedgerFault::Refused) => {
                unpoisoned(&self.inner).leave()?;
                Err(LedgerError::Refused("told to fail".to_owned()))
            }
            Some(LedgerFault::Crash) => panic!("told to crash before {name}"),
            Some(LedgerFault::CrashAfter) => {
                let _ = call(&mut unpoisoned(&self.inner));
                panic!("told to crash after {name}")
            }
            Some(
                lost @ (LedgerFault::Lost | LedgerFault::LostAfter | LedgerFault::LostForGood),
            ) => {
                if lost == LedgerFault::LostAfter {
                    let _ = call(&mut unpoisoned(&self.inner));
                }
                unpoisoned(&self.inner).reopen(soon())?;
                self.lost = true;
                self.lost_for_good = lost == LedgerFault::LostForGood;
                unavailable()
            }
        }
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note_call(calls: &Mutex<Vec<&'static str>>, name: &'static str) -> usize {
    let mut calls = unpoisoned(calls);
    calls.push(name);
    calls.len() - 1
}

impl Ledger for TestLedger {
    fn record(
        &mut self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        self.call("record", |inner| inner.record(entry, attempt, destinations, terms))
    }

    fn claim(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        self.call("claim", |inner| inner.claim(message, destinations, owner, terms))
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<Turn, LedgerError> {
        self.call("take_turn", |inner| inner.take_turn(claim, copy_key))
    }

    fn confirm(
        &mut self,
        claim: &Claim,
        receipt: &Receipt,
        facts: CopyFacts,
        end: Option<(i64, &AttemptEnd)>,
    ) -> Result<Confirmed, LedgerError> {
        self.call("confirm", |inner| inner.confirm(claim, receipt, facts, end))
    }

    fn keep(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<bool, LedgerError> {
        self.call("keep", |inner| inner.keep(message, bytes, why))
    }

    fn kept(&mut self, message: i64) -> Result<Option<String>, LedgerError> {
        self.call("kept", |inner| inner.kept(message))
    }

    fn kept_bytes(&mut self, message: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        self.call("kept_bytes", |inner| inner.kept_bytes(message))
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.call("leave", Ledger::leave)
    }

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError> {
        self.call("release", |inner| inner.release(claims))
    }

    fn finish(&mut self, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
        self.call("finish", |inner| inner.finish(attempt, end))
    }

    fn note_attempts(
        &mut self,
        identity: &Identity,
        ended: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        self.call("note_attempts", |inner| inner.note_attempts(identity, ended))
    }

    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.call("renew", |inner| inner.renew(until))
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        if self.lost_for_good {
            return Err(LedgerError::Unavailable("told to fail".to_owned()));
        }
        self.call("reopen", |inner| inner.reopen(until))?;
        self.lost = false;
        Ok(())
    }

    fn account_by_query(
        &mut self,
        query: &str,
        asked: &Asked,
    ) -> Result<Option<String>, LedgerError> {
        self.call("account_by_query", |inner| inner.account_by_query(query, asked))
    }

    fn trace(&mut self, filter: &TraceFilter<'_>, limit: u32) -> Result<Vec<Trace>, LedgerError> {
        self.call("trace", |inner| inner.trace(filter, limit))
    }

    fn copies_to_verify(
        &mut self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        self.call("copies_to_verify", |inner| inner.copies_to_verify(window, after, limit))
    }

    fn latest_copies(&mut self, limit: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        self.call("latest_copies", |inner| inner.latest_copies(limit))
    }

    fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError> {
        self.call("settle", |inner| inner.settle(copy, receipt))
    }

    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError> {
        self.call("is_proven", |inner| inner.is_proven(way))
    }

    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError> {
        self.call("note_proof", |inner| inner.note_proof(way, holds, host))
    }

    fn schema_version(&mut self) -> Result<i64, LedgerError> {
        self.call("schema_version", Ledger::schema_version)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        self.call("migrate", Ledger::migrate)
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        self.call("try_lock", |inner| inner.try_lock(name))
    }
}

/// How a store's call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreFault {
    /// Certainly nothing happens.
    Refused,
    /// It happens and the answer is lost.
    DoneInDoubt,
    /// It does not happen, and nobody can tell.
    LostInDoubt,
    /// The process ends before the call.
    Crash,
    /// The process ends after the call took effect.
    CrashAfter,
}

impl StoreFault {
    const ALL: [StoreFault; 5] = [
        StoreFault::Refused,
        StoreFault::DoneInDoubt,
        StoreFault::LostInDoubt,
        StoreFault::Crash,
        StoreFault::CrashAfter,
    ];
}

/// A store that goes wrong once, or lets a test do something in between.
struct TestStore {
    inner: Box<dyn Store>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    /// What was appended, in its order.
    appended: Arc<Mutex<Vec<Destination>>>,
    fault: Option<(usize, StoreFault)>,
    before: Option<(&'static str, Hook)>,
    after: Option<(&'static str, Hook)>,
    /// As an IMAP server without UIDPLUS.
    unnamed: bool,
    /// What a turn needs does not come free.
    holds_nothing: bool,
    /// What was begun, held and let go.
    held: Arc<Mutex<Vec<&'static str>>>,
    /// The locks of its copies, if they have any: the keys of those that somebody has, and the one
    /// that we have.
    locks: Option<Locks>,
    locked: Option<Hash>,
}

type Locks = Arc<Mutex<HashSet<Hash>>>;

impl TestStore {
    fn lock(&mut self, key: &Hash) -> bool {
        if self.locks.is_none() || self.locked == Some(*key) {
            return true;
        }
        self.unlock();
        let is_free = self.locks.as_ref().is_some_and(|locks| unpoisoned(locks).insert(*key));
        self.locked = is_free.then_some(*key);
        is_free
    }

    fn unlock(&mut self) {
        if let (Some(locks), Some(key)) = (&self.locks, self.locked.take()) {
            unpoisoned(locks).remove(&key);
        }
    }

    fn call<T>(
        &mut self,
        name: &'static str,
        call: impl FnOnce(&mut dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let number = note_call(&self.calls, name);
        if let Some((_, hook)) = self.before.take_if(|(at, _)| *at == name) {
            hook();
        }
        let fault = self.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        let result = match fault {
            None => call(self.inner.as_mut()),
            Some(StoreFault::Refused) => Err(StoreError::NotStored("told to fail".to_owned())),
            Some(StoreFault::LostInDoubt) => Err(StoreError::InDoubt("told to fail".to_owned())),
            Some(StoreFault::DoneInDoubt) => {
                call(self.inner.as_mut())?;
                Err(StoreError::InDoubt("told to fail".to_owned()))
            }
            Some(StoreFault::Crash) => panic!("told to crash before {name}"),
            Some(StoreFault::CrashAfter) => {
                let _ = call(self.inner.as_mut());
                panic!("told to crash after {name}")
            }
        };
        if let Some((_, hook)) = self.after.take_if(|(at, _)| *at == name) {
            hook();
        }
        result
    }
}

impl Drop for TestStore {
    /// As with a process that ends, however it does.
    fn drop(&mut self) {
        self.unlock();
    }
}

impl Store for TestStore {
    fn append_is_idempotent(&self) -> bool {
        self.inner.append_is_idempotent()
    }

    fn prepare(&mut self, account: &str, until: Instant) {
        self.inner.prepare(account, until);
    }

    fn begin_append(&mut self, _: &Destination, copy: &Copy<'_>, _: &Deadline) {
        unpoisoned(&self.held).push("begin");
        self.lock(copy.key);
    }

    fn holds(&self, key: &Hash) -> bool {
        self.locked == Some(*key)
    }

    fn hold(&mut self, _: &Destination, key: &Hash, _: &Deadline) -> Result<bool, StoreError> {
        unpoisoned(&self.held).push("hold");
        match self.holds_nothing {
            true => Err(StoreError::NotStored("nothing came free".to_owned())),
            false => Ok(self.lock(key)),
        }
    }

    fn let_go(&mut self) {
        unpoisoned(&self.held).push("let go");
        self.unlock();
    }

    fn find(
        &mut self,
        destination: &Destination,
        sought: &Sought<'_>,
        until: Instant,
    ) -> Result<Vec<Found>, StoreError> {
        let mut found = self.call("look", |inner| inner.find(destination, sought, until))?;
        found
            .iter_mut()
            .filter(|_| self.unnamed)
            .for_each(|found| found.receipt = Receipt::Unnamed);
        Ok(found)
    }

    fn append(
        &mut self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        unpoisoned(&self.appended).push(destination.clone());
        let receipt = self.call("append", |inner| inner.append(destination, copy, deadline))?;
        Ok(if self.unnamed { Receipt::Unnamed } else { receipt })
    }

    fn remove(
        &mut self,
        destination: &Destination,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.call("remove", |inner| {
            if *receipt == Receipt::Unnamed {
                return Err(StoreError::NotStored("no receipt".to_owned()));
            }
            inner.remove(destination, receipt, until)
        })
    }

    fn remove_double(
        &mut self,
        _destination: &Destination,
        _double: &Receipt,
        _keeper: &Receipt,
        _until: Instant,
    ) -> Result<(), StoreError> {
        panic!("a delivery takes out what it wrote itself and nothing else")
    }

    fn way(&self) -> Option<Way> {
        self.inner.way()
    }

    fn whose_mailboxes(&mut self, account: &str, until: Instant) -> Result<Whose, StoreError> {
        self.inner.whose_mailboxes(account, until)
    }

    fn check(&mut self, account: &str, until: Instant) -> Result<Vec<String>, StoreError> {
        self.inner.check(account, until)
    }
}

/// One ledger and one store, and deliveries to them.
#[derive(Clone)]
struct World {
    ledger: MemoryLedger,
    store: MemoryStore,
}

/// A delivery that is yet to be run: a process of its own.
struct Delivery {
    ledger: TestLedger,
    store: TestStore,
    wait: Duration,
    deadline: Deadline,
    over_quota: OverQuota,
    /// When the message was received, if that is told: then a single copy's append begins before
    /// the record.
    at: Option<SystemTime>,
}

/// What became of a delivery.
struct Ended {
    outcome: Outcome,
    report: Option<Report>,
    ledger_calls: Vec<&'static str>,
    store_calls: Vec<&'static str>,
    appended: Vec<Destination>,
    held: Vec<&'static str>,
}

impl Ended {
    fn is_delivered(&self) -> bool {
        matches!(self.outcome, Outcome::Delivered(_))
    }

    fn is_temp_fail(&self) -> bool {
        matches!(self.outcome, Outcome::TempFail(..))
    }

    fn expect_delivered(self) -> Ended {
        assert!(self.is_delivered(), "{:?}", self.outcome);
        self
    }

    fn expect_temp_fail(self) -> Ended {
        assert!(self.is_temp_fail(), "{:?}", self.outcome);
        self
    }

    fn hows(&self) -> Vec<How> {
        let report = self.report.as_ref().expect("a report");
        report.ends.iter().map(|end| end.as_ref().expect("placed").how).collect()
    }
}

impl World {
    fn like_imap() -> World {
        World { ledger: MemoryLedger::default(), store: MemoryStore::default() }
    }

    fn like_maildir() -> World {
        World { ledger: MemoryLedger::default(), store: MemoryStore::idempotent() }
    }

    fn both() -> [World; 2] {
        [World::like_imap(), World::like_maildir()]
    }

    fn delivery(&self) -> Delivery {
        self.delivery_to(Box::new(self.store.clone()))
    }

    fn delivery_to(&self, store: Box<dyn Store>) -> Delivery {
        Delivery {
            ledger: TestLedger {
                inner: Arc::new(Mutex::new(self.ledger.clone())),
                calls: Arc::default(),
                fault: None,
                hook: None,
                lost: false,
                lost_for_good: false,
            },
            store: TestStore {
                inner: store,
                calls: Arc::default(),
                appended: Arc::default(),
                fault: None,
                before: None,
                after: None,
                unnamed: false,
                holds_nothing: false,
                held: Arc::default(),
                locks: None,
                locked: None,
            },
            wait: Duration::ZERO,
            deadline: Deadline::new(Duration::from_secs(60), Duration::from_secs(20)),
            over_quota: OverQuota::Defer,
            at: None,
        }
    }

    fn deliver(&self, mail: &Message, destinations: &[Destination]) -> Ended {
        self.delivery().run(mail, destinations)
    }

    fn expire_leases(&self) {
        self.ledger.advance(2 * LEASE.lease);
    }

    /// The ledger's calls of a delivery of one copy that is not in doubt: no turn where a lease is
    /// nobody else's.
    fn calls(&self) -> &'static [&'static str] {
        match self.store.append_is_idempotent() {
            true => TURN_TAKEN,
            false => &["record", "confirm"],
        }
    }

    /// Which of them is the last one.
    fn confirm_at(&self) -> usize {
        self.calls().len() - 1
    }

    fn count(&self, destination: &Destination) -> usize {
        self.store.copies(&destination.account, &destination.mailbox).len()
    }

    fn copies(&self, mail: &Message) -> Vec<TraceCopy> {
        self.trace(mail).copies
    }

    fn trace(&self, mail: &Message) -> Trace {
        let id = String::from_utf8(mail.identity().message_id.clone().expect("a Message-ID"))
            .expect("text");
        self.ledger.clone().trace(&TraceFilter::of(&id), 10).expect("trace").remove(0)
    }

    /// One copy at most anywhere; exactly one, on record as placed, where somebody said so; or, of
    /// a shared copy, its bytes.
    fn assert_honest(
        &self,
        ended: &Ended,
        mail: &Message,
        destinations: &[Destination],
        context: &str,
    ) {
        let copies = if ended.is_delivered() { self.copies(mail) } else { Vec::new() };
        for destination in destinations {
            assert!(self.count(destination) <= 1, "{context}: two copies in {destination}");
            let is_it = |copy: &&TraceCopy| {
                copy.account == destination.account && copy.mailbox == destination.mailbox
            };
            let Some(copy) = copies.iter().find(is_it) else {
                assert!(
                    !ended.is_delivered(),
                    "{context}: delivered without a record of {destination}"
                );
                continue;
            };
            if copy.kept.is_some() {
                assert!(destination.shared && copy.state != "placed", "{context}: {copy:?}");
                let id = self.trace(mail).message;
                let bytes = self.ledger.clone().kept_bytes(id).expect("bytes").expect("kept");
                assert_eq!(bytes, mail.shared_copy(), "{context}: the bytes of {destination}");
            } else {
                assert_eq!(
                    self.count(destination),
                    1,
                    "{context}: delivered without a copy in {destination}"
                );
                assert_eq!(copy.state, "placed", "{context}");
            }
        }
        assert!(ended.is_delivered() || ended.is_temp_fail(), "{context}: {:?}", ended.outcome);
    }

    /// Delivers again as Postfix would: at once (another recipient, an impatient administrator),
    /// and after a while.
    fn assert_mends(&self, mail: &Message, destinations: &[Destination], context: &str) {
        let at_once = self.deliver(mail, destinations);
        self.assert_honest(&at_once, mail, destinations, &format!("{context}, again at once"));
        self.expire_leases();
        let later = self.deliver(mail, destinations);
        assert!(later.is_delivered(), "{context}, again later: {:?}", later.outcome);
        self.assert_honest(&later, mail, destinations, &format!("{context}, again later"));
        assert!(
            self.copies(mail).iter().all(|copy| copy.kept.is_none()),
            "{context}: placed by now"
        );
    }
}

impl Delivery {
    fn failing_ledger(mut self, at: usize, fault: LedgerFault) -> Delivery {
        self.ledger.fault = Some((at, fault));
        self
    }

    fn failing_store(mut self, at: usize, fault: StoreFault) -> Delivery {
        self.store.fault = Some((at, fault));
        self
    }

    fn waiting(mut self, wait: Duration) -> Delivery {
        self.wait = wait;
        self
    }

    fn before_store(
        mut self,
        call: &'static str,
        hook: impl FnOnce() + Send + 'static,
    ) -> Delivery {
        self.store.before = Some((call, Box::new(hook)));
        self
    }

    fn after_store(mut self, call: &'static str, hook: impl FnOnce() + Send + 'static) -> Delivery {
        self.store.after = Some((call, Box::new(hook)));
        self
    }

    fn before_ledger(
        mut self,
        call: &'static str,
        hook: impl FnOnce() + Send + 'static,
    ) -> Delivery {
        self.ledger.hook = Some((call, Box::new(hook)));
        self
    }

    fn unnamed(mut self) -> Delivery {
        self.store.unnamed = true;
        self
    }

    fn holding_nothing(mut self) -> Delivery {
        self.store.holds_nothing = true;
        self
    }

    /// With a store whose copies have these locks, and a message of which is told when it was
    /// received.
    fn with_locks(mut self, locks: &Locks) -> Delivery {
        self.store.locks = Some(Arc::clone(locks));
        self.at = Some(SystemTime::now());
        self
    }

    /// Takes the session's locks away while it does not look, as a server does with one that fell
    /// silent.
    fn lose_locks(&self) -> impl FnOnce() + Send + use<> {
        let inner = Arc::clone(&self.ledger.inner);
        move || unpoisoned(&inner).reopen(soon()).expect("reopen")
    }

    fn run(mut self, mail: &Message, destinations: &[Destination]) -> Ended {
        let facts = mail.facts();
        let attempt = attempt("mx1");
        let job = Job {
            message: mail,
            head: b"",
            facts: &facts,
            attempt: &attempt,
            destinations,
            started: Instant::now(),
            at: self.at,
            is_part: false,
        };
        let over_quota = self.over_quota;
        let policy = Policy { lease: LEASE.lease, wait: self.wait, keep_raw: false, over_quota };
        let result = catch_unwind(AssertUnwindSafe(|| {
            deliver::deliver(&job, &policy, &mut self.ledger, &mut self.store, &self.deadline)
        }));
        let result = result.unwrap_or_else(|_| Err(Failure::Internal("panic".to_owned())));
        let (outcome, report) = match result {
            Ok(report) => (report.outcome(over_quota), Some(report)),
            Err(failure) => (failure.outcome(over_quota), None),
        };
        Ended {
            outcome,
            report,
            ledger_calls: unpoisoned(&self.ledger.calls).clone(),
            store_calls: unpoisoned(&self.store.calls).clone(),
            appended: unpoisoned(&self.store.appended).clone(),
            held: unpoisoned(&self.store.held).clone(),
        }
    }
}

/// What an earlier, crashed delivery left of the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    LeasesRanOut,
    CopyWithoutReceipt,
}

impl Before {
    const ALL: [Before; 3] = [Before::Nothing, Before::LeasesRanOut, Before::CopyWithoutReceipt];

    fn set_up(self, world: &World, mail: &Message, destinations: &[Destination]) {
        match self {
            Before::Nothing => return,
            Before::LeasesRanOut => {
                world.delivery().failing_ledger(0, LedgerFault::CrashAfter).run(mail, destinations)
            }
            Before::CopyWithoutReceipt => {
                world.delivery().failing_store(0, StoreFault::CrashAfter).run(mail, destinations)
            }
        }
        .expect_temp_fail();
        world.expire_leases();
    }
}

// The crash table of deliver.rs, row by row.

#[test]
fn crash_after_reading_the_message_leaves_nothing() {
    for world in World::both() {
        let crashed =
            world.delivery().failing_ledger(0, LedgerFault::Crash).run(&mail("m"), &[inbox()]);
        assert!(crashed.expect_temp_fail().store_calls.is_empty());
        assert!(
            world
                .ledger
                .clone()
                .trace(&TraceFilter::of("m@example.org"), 1)
                .expect("trace")
                .is_empty()
        );
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!((again.hows(), again.store_calls), (vec![How::Stored], vec!["append"]));
    }
}

#[test]
fn crash_after_record_leaves_leases_that_run_out_in_doubt() {
    for world in World::both() {
        let destinations = [inbox(), sent()];
        world
            .delivery()
            .failing_ledger(0, LedgerFault::CrashAfter)
            .run(&mail("m"), &destinations)
            .expect_temp_fail();
        assert!(world.copies(&mail("m")).iter().all(|copy| copy.state == "leased"));
        assert_eq!((world.count(&inbox()), world.count(&sent())), (0, 0));
        if !world.store.append_is_idempotent() {
            let early = world.deliver(&mail("m"), &destinations).expect_temp_fail();
            assert!(early.store_calls.is_empty(), "a live lease keeps others from the mailbox");
            world.expire_leases();
            assert!(world.copies(&mail("m")).iter().all(|copy| copy.state == "in doubt"));
        }
        let again = world.deliver(&mail("m"), &destinations).expect_delivered();
        assert_eq!(again.hows(), [How::Stored, How::Stored]);
        assert_eq!(again.store_calls, ["look", "append", "look", "append"]);
    }
}

#[test]
fn crash_in_append_before_its_last_bytes_leaves_no_copy() {
    for world in World::both() {
        world
            .delivery()
            .failing_store(0, StoreFault::Crash)
            .run(&mail("m"), &[inbox()])
            .expect_temp_fail();
        assert_eq!(world.count(&inbox()), 0);
        world.expire_leases();
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!((again.hows(), again.store_calls), (vec![How::Stored], vec!["look", "append"]));
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn crash_in_append_after_its_last_bytes_leaves_a_copy_or_none() {
    for world in World::both() {
        for (fault, how) in [(StoreFault::CrashAfter, How::Found), (StoreFault::Crash, How::Stored)]
        {
            let mail = mail(&format!("{how:?}"));
            let destination = Destination::inbox(&format!("{how:?}"));
            let destinations = [destination.clone()];
            world.delivery().failing_store(0, fault).run(&mail, &destinations).expect_temp_fail();
            world.expire_leases();
            assert_eq!(world.deliver(&mail, &destinations).expect_delivered().hows(), [how]);
            assert_eq!(world.count(&destination), 1);
        }
    }
}

#[test]
fn crash_after_the_ok_leaves_a_copy_that_the_look_finds() {
    for world in World::both() {
        let crashing = world.delivery().failing_ledger(world.confirm_at(), LedgerFault::Crash);
        assert_eq!(
            crashing.run(&mail("m"), &[inbox()]).expect_temp_fail().ledger_calls,
            world.calls()
        );
        assert_eq!(
            (world.count(&inbox()), world.copies(&mail("m"))[0].state.as_str()),
            (1, "leased")
        );
        world.expire_leases();
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!((again.hows(), again.store_calls), (vec![How::Found], vec!["look"]));
        assert!(world.copies(&mail("m"))[0].found_by_look);
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn crash_after_confirm_leaves_a_placed_copy_and_nobody_touches_the_mailbox() {
    for world in World::both() {
        let crashing = world.delivery().failing_ledger(world.confirm_at(), LedgerFault::CrashAfter);
        assert_eq!(
            crashing.run(&mail("m"), &[inbox()]).expect_temp_fail().ledger_calls,
            world.calls()
        );
        assert_eq!(
            (world.count(&inbox()), world.copies(&mail("m"))[0].state.as_str()),
            (1, "placed")
        );
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(again.hows(), [How::AlreadyThere]);
        assert!(again.store_calls.is_empty());
        assert_eq!(world.count(&inbox()), 1);
    }
}

// Everything fails once, wherever it can.

/// More calls than any delivery of these tests makes.
const MOST_CALLS: usize = 40;

/// Runs `one` for call 0, 1, 2, … until a delivery had no such call.
fn at_each_call(mut one: impl FnMut(usize) -> bool) {
    let fired = (0..MOST_CALLS).take_while(|at| one(*at)).count();
    assert!((1..MOST_CALLS).contains(&fired), "{fired} calls failed");
}

#[test]
fn a_ledger_that_fails_once_costs_a_retry_at_most() {
    let destinations = [inbox(), sent()];
    for before in Before::ALL {
        for fault in LedgerFault::ALL {
            for which in 0..2 {
                at_each_call(|at| {
                    let world = World::both()[which].clone();
                    before.set_up(&world, &mail("m"), &destinations);
                    let mut delivery = world.delivery().failing_ledger(at, fault);
                    if fault == LedgerFault::LostForGood {
                        // It asks for another session until its time is over.
                        delivery.deadline =
                            Deadline::new(Duration::from_millis(200), Duration::from_millis(50));
                    }
                    let ended = delivery.run(&mail("m"), &destinations);
                    let context = format!(
                        "{before:?}, {fault:?} at {:?}, store {which}",
                        ended.ledger_calls.get(at)
                    );
                    world.assert_honest(&ended, &mail("m"), &destinations, &context);
                    world.assert_mends(&mail("m"), &destinations, &context);
                    ended.ledger_calls.len() > at
                });
            }
        }
    }
}

#[test]
fn a_store_that_fails_once_costs_a_retry_at_most() {
    let destinations = [inbox(), sent()];
    for before in Before::ALL {
        for fault in StoreFault::ALL {
            for which in 0..2 {
                at_each_call(|at| {
                    let world = World::both()[which].clone();
                    before.set_up(&world, &mail("m"), &destinations);
                    let ended =
                        world.delivery().failing_store(at, fault).run(&mail("m"), &destinations);
                    let context = format!(
                        "{before:?}, {fault:?} at {:?}, store {which}",
                        ended.store_calls.get(at)
                    );
                    world.assert_honest(&ended, &mail("m"), &destinations, &context);
                    world.assert_mends(&mail("m"), &destinations, &context);
                    ended.store_calls.len() > at
                });
            }
        }
    }
}

#[test]
fn two_failures_in_a_row_cost_two_retries_at_most() {
    let ledger_faults = [LedgerFault::Refused, LedgerFault::Crash, LedgerFault::CrashAfter];
    let faulty = |world: &World, at: usize| {
        let (ledgers, stores) = (ledger_faults.len() * 6, StoreFault::ALL.len() * 3);
        match at {
            _ if at < ledgers => {
                Some(world.delivery().failing_ledger(at / 3, ledger_faults[at % 3]))
            }
            _ if at < ledgers + stores => Some(
                world
                    .delivery()
                    .failing_store((at - ledgers) / 5, StoreFault::ALL[(at - ledgers) % 5]),
            ),
            _ => None,
        }
    };
    for which in 0..2 {
        for first in 0.. {
            if faulty(&World::like_imap(), first).is_none() {
                break;
            }
            for second in 0.. {
                let world = World::both()[which].clone();
                let Some(delivery) = faulty(&world, second) else { break };
                let context = format!("{first} then {second}, store {which}");
                let ended = faulty(&world, first).expect("checked").run(&mail("m"), &[inbox()]);
                world.assert_honest(&ended, &mail("m"), &[inbox()], &context);
                if first % 2 == second % 2 {
                    world.expire_leases();
                }
                let ended = delivery.run(&mail("m"), &[inbox()]);
                world.assert_honest(&ended, &mail("m"), &[inbox()], &context);
                world.assert_mends(&mail("m"), &[inbox()], &context);
            }
        }
    }
}

// What a failure leaves for the next attempt.

#[test]
fn a_copy_that_certainly_was_not_stored_needs_neither_waiting_nor_a_look() {
    for world in World::both() {
        let refused =
            world.delivery().failing_store(0, StoreFault::Refused).run(&mail("m"), &[inbox()]);
        refused.expect_temp_fail();
        assert_eq!(world.copies(&mail("m"))[0].state, "free");
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(again.store_calls, ["append"]);
    }
}

#[test]
fn a_look_that_failed_gives_the_lease_back_and_keeps_the_doubt() {
    let world = World::like_imap();
    Before::CopyWithoutReceipt.set_up(&world, &mail("m"), &[inbox()]);
    let failed =
        world.delivery().failing_store(0, StoreFault::LostInDoubt).run(&mail("m"), &[inbox()]);
    assert_eq!(failed.expect_temp_fail().store_calls, ["look"], "no append without a look");
    assert_eq!(world.copies(&mail("m"))[0].state, "in doubt");
    let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(again.hows(), [How::Found], "no waiting for a lease");
}

#[test]
fn a_copy_in_doubt_waits_for_its_lease_and_is_looked_for() {
    let cases: [(Before, usize, &[&str]); 2] = [
        (Before::Nothing, 0, &["record", "leave", "finish"]),
        (Before::LeasesRanOut, 1, &["record", "take_turn", "leave", "finish"]),
    ];
    for (fault, how) in
        [(StoreFault::DoneInDoubt, How::Found), (StoreFault::LostInDoubt, How::Stored)]
    {
        for (before, append, calls) in cases {
            let world = World::like_imap();
            before.set_up(&world, &mail("m"), &[inbox()]);
            let ended = world
                .delivery()
                .failing_store(append, fault)
                .run(&mail("m"), &[inbox()])
                .expect_temp_fail();
            assert_eq!(ended.ledger_calls, calls, "a lock is let go, the lease is not");
            assert_eq!(world.copies(&mail("m"))[0].state, "leased");
            let early = world.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
            assert!(early.store_calls.is_empty());
            world.expire_leases();
            assert_eq!(world.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(), [how]);
            assert_eq!(world.count(&inbox()), 1);
        }
    }
}

#[test]
fn where_appends_are_idempotent_doubt_needs_no_waiting() {
    for fault in [
        StoreFault::DoneInDoubt,
        StoreFault::LostInDoubt,
        StoreFault::Crash,
        StoreFault::CrashAfter,
    ] {
        let world = World::like_maildir();
        world.delivery().failing_store(0, fault).run(&mail("m"), &[inbox()]).expect_temp_fail();
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(again.store_calls[0], "look", "{fault:?}");
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn one_copy_that_fails_keeps_no_other_from_its_mailbox() {
    let destinations = [sent(), Destination::inbox("doug"), Destination::inbox("zoe")];
    for fault in [StoreFault::Refused, StoreFault::DoneInDoubt, StoreFault::LostInDoubt] {
        for world in World::both() {
            let ended = world
                .delivery()
                .failing_store(0, fault)
                .run(&mail("m"), &destinations)
                .expect_temp_fail();
            assert_eq!(
                ended.appended,
                [inbox(), Destination::inbox("zoe"), sent()],
                "own mailboxes first"
            );
            let ends = &ended.report.as_ref().expect("a report").ends;
            assert_eq!(ends.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
            assert_eq!(world.trace(&mail("m")).attempts[0].outcome.as_deref(), Some("tempfail"));
            world.assert_mends(&mail("m"), &destinations, &format!("{fault:?}"));
        }
    }
}

#[test]
fn a_quota_is_the_policys_to_judge_and_the_lease_is_given_back() {
    let mail = mail("m");
    for (policy, status) in [(OverQuota::Defer, "4.2.2"), (OverQuota::Bounce, "5.2.2")] {
        for world in World::both() {
            world.store.fail(memory::Fault::OverQuota);
            let mut delivery = world.delivery();
            delivery.over_quota = policy;
            let ended = delivery.run(&mail, &[inbox()]);
            assert_eq!(ended.outcome.status().to_string(), status);
            assert_eq!(matches!(ended.outcome, Outcome::PermFail(..)), policy == OverQuota::Bounce);
            assert_eq!(world.copies(&mail)[0].state, "free");
            assert_eq!(world.trace(&mail).attempts[0].status.as_deref(), Some(status));
            assert_eq!(world.deliver(&mail, &[inbox()]).expect_delivered().store_calls, ["append"]);
        }
    }
}

#[test]
fn without_time_left_nothing_is_written_and_the_lease_is_given_back() {
    for world in World::both() {
        let mut delivery = world.delivery();
        delivery.deadline = Deadline::new(Duration::from_secs(10), Duration::from_secs(11));
        delivery.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(
            (world.count(&inbox()), world.copies(&mail("m"))[0].state.as_str()),
            (0, "free")
        );
    }
}

#[test]
fn a_ledger_lost_at_the_confirm_is_connected_again() {
    for (before, world) in [Before::Nothing, Before::LeasesRanOut]
        .into_iter()
        .flat_map(|b| World::both().map(|w| (b, w)))
    {
        for fault in [LedgerFault::Lost, LedgerFault::LostAfter] {
            let mail = mail(&format!("{fault:?}"));
            let destination = Destination::inbox(&format!("{fault:?}"));
            let destinations = std::slice::from_ref(&destination);
            before.set_up(&world, &mail, destinations);
            let calls = if before == Before::Nothing { world.calls() } else { TURN_TAKEN };
            let ended =
                world.delivery().failing_ledger(calls.len() - 1, fault).run(&mail, destinations);
            let ended = ended.expect_delivered();
            assert_eq!(ended.ledger_calls, [calls, &["reopen", "confirm"]].concat());
            assert_eq!((ended.hows(), world.count(&destination)), (vec![How::Stored], 1));
            assert_eq!(
                world.trace(&mail).attempts.last().expect("an attempt").outcome.as_deref(),
                Some("delivered")
            );
        }
    }
}

#[test]
fn whoever_asks_the_watchdog_learns_when_an_answer_is_awaited() {
    let world = World::like_imap();
    let delivery = world.delivery();
    let deadline = delivery.deadline.clone();
    let (seen, noted) = (Arc::new(AtomicBool::new(false)), deadline.clone());
    let delivery = delivery.before_ledger("confirm", {
        let seen = Arc::clone(&seen);
        move || seen.store(noted.is_answering(), Ordering::SeqCst)
    });
    delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    assert!(seen.load(Ordering::SeqCst), "until the receipt is on record");
    assert!(!deadline.is_answering());
    let delivery = world.delivery().failing_store(0, StoreFault::LostInDoubt);
    let deadline = delivery.deadline.clone();
    delivery.run(&mail("n"), &[inbox()]).expect_temp_fail();
    assert!(!deadline.is_answering());
}

// Others at the same time.

#[test]
fn a_busy_copy_is_waited_for_and_seen_placed() {
    let world = World::like_imap();
    let (at_work, go_on) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    thread::scope(|scope| {
        let (world_of_first, begun, wait_for) = (world.clone(), at_work.0, go_on.1);
        scope.spawn(move || {
            let delivery = world_of_first.delivery().before_store("append", move || {
                begun.send(()).expect("a listener");
                wait_for.recv().expect("a word");
            });
            assert_eq!(
                delivery.run(&mail("m"), &[inbox()]).expect_delivered().hows(),
                [How::Stored]
            );
        });
        at_work.1.recv().expect("the first at work");
        let strict = world.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(strict.ledger_calls, ["record", "finish"], "without patience one try");
        assert!(strict.outcome.text().contains("another delivery"), "{:?}", strict.outcome);
        // The first goes on when the second has found the copy busy more than once.
        let delivery = world.delivery().waiting(Duration::from_secs(30));
        let (calls, go_on) = (Arc::clone(&delivery.ledger.calls), go_on.0);
        scope.spawn(move || {
            let begun = Instant::now();
            while unpoisoned(&calls).len() < 3 && begun.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(1));
            }
            go_on.send(()).expect("a listener");
        });
        let waited = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(waited.hows(), [How::AlreadyThere]);
        assert!(waited.store_calls.is_empty());
    });
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_message_that_another_records_right_now_is_waited_for_or_deferred() {
    let world = World::like_imap();
    let mut other = world.ledger.clone();
    let recorded = record(&mut other, &mail("other"), &[inbox()], LEASE);
    let CopyState::Claimed(claim) = recorded.copies[0] else { panic!("a claim") };
    // A turn under the message's hash holds the message's lock.
    other.take_turn(&claim, &mail("m").identity().id_hash).expect("a turn");
    let ended = world.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
    assert_eq!(ended.ledger_calls, ["record", "note_attempts"]);
    assert_eq!(world.trace(&mail("m")).attempts[0].outcome.as_deref(), Some("tempfail"));
    let other = Mutex::new(other);
    let delivery =
        world.delivery().waiting(Duration::from_secs(30)).before_ledger("record", move || {
            // Its first try fails; then the lock is given up by a thread that saw it fail.
            thread::spawn(move || unpoisoned(&other).leave());
        });
    assert_eq!(delivery.run(&mail("m"), &[inbox()]).expect_delivered().hows(), [How::Stored]);
}

fn record(
    ledger: &mut MemoryLedger,
    mail: &Message,
    destinations: &[Destination],
    terms: LeaseTerms,
) -> Recorded {
    let facts = mail.facts();
    let entry = Entry {
        identity: mail.identity(),
        facts: &facts,
        size_bytes: 1,
        raw: None,
        nul_runs: None,
        at: None,
    };
    ledger.record(&entry, &attempt("mx2"), destinations, terms).expect("record")
}

#[test]
fn ten_recipients_at_once_share_one_sent_copy() {
    for world in World::both() {
        let barrier = Barrier::new(10);
        thread::scope(|scope| {
            for n in 0..10 {
                let (barrier, world) = (&barrier, world.clone());
                scope.spawn(move || {
                    let body = "Message-ID: <ten@example.org>\nFrom: lisa@gmail.com\n\nHello\n";
                    let mail = message(format!(
                        "Return-Path: <lisa@gmail.com>\nDelivered-To: r{n}@x\n{body}"
                    ));
                    let own = Destination::inbox(&format!("r{n}"));
                    barrier.wait();
                    world
                        .delivery()
                        .waiting(Duration::from_secs(40))
                        .run(&mail, &[own, sent()])
                        .expect_delivered();
                });
            }
        });
        let copies = world.store.copies("lisa", "Sent");
        assert_eq!(copies.len(), 1);
        assert!(copies[0].bytes.starts_with(b"Message-ID: <ten"), "names no single recipient");
        for n in 0..10 {
            let own = world.store.copies(&format!("r{n}"), "INBOX");
            assert_eq!(own.len(), 1);
            assert!(own[0].bytes.starts_with(b"Return-Path"), "the recipient's own has all of it");
        }
        assert!(world.trace(&mail("ten")).copies.iter().all(|copy| copy.state == "placed"));
    }
}

#[test]
fn the_same_copy_by_ten_at_once_is_one() {
    for world in World::both() {
        let barrier = Barrier::new(10);
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    barrier.wait();
                    let delivery = world.delivery().waiting(Duration::from_secs(40));
                    delivery.run(&mail("m"), &[inbox()]).expect_delivered();
                });
            }
        });
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn two_at_once_leave_one_copy_without_a_turn() {
    let world = World::like_imap();
    let (writing, barrier) = (Arc::new(AtomicUsize::new(0)), Barrier::new(2));
    let deliveries = [(); 2].map(|()| world.delivery().waiting(Duration::from_secs(40)));
    let calls = [0, 1].map(|n: usize| Arc::clone(&deliveries[n].ledger.calls));
    let mut hows = thread::scope(|scope| {
        let (mut others_calls, barrier) = (calls.into_iter().rev(), &barrier);
        let running = deliveries.map(|delivery| {
            let (others_calls, writing) =
                (others_calls.next().expect("one each"), Arc::clone(&writing));
            // Whoever writes does so when the other has found the copy busy, or writes as well.
            let delivery = delivery.before_store("append", move || {
                writing.fetch_add(1, Ordering::SeqCst);
                let begun = Instant::now();
                let is_alone =
                    || unpoisoned(&others_calls).len() < 2 && writing.load(Ordering::SeqCst) < 2;
                while is_alone() && begun.elapsed() < Duration::from_secs(20) {
                    thread::sleep(Duration::from_millis(1));
                }
            });
            scope.spawn(move || {
                barrier.wait();
                let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
                assert!(!ended.ledger_calls.contains(&"take_turn"), "{:?}", ended.ledger_calls);
                ended.hows()[0]
            })
        });
        running.map(|delivery| delivery.join().expect("delivered"))
    });
    hows.sort_by_key(|how| *how != How::Stored);
    assert_eq!((hows, world.count(&inbox())), ([How::Stored, How::AlreadyThere], 1));
}

#[test]
fn a_destination_named_twice_gets_one_copy() {
    for world in World::both() {
        let twice = [inbox(), inbox()];
        world
            .delivery()
            .waiting(Duration::from_secs(10))
            .run(&mail("m"), &twice)
            .expect_delivered();
        assert_eq!(world.count(&inbox()), 1);
        world.deliver(&mail("n"), &twice);
        world.deliver(&mail("n"), &twice).expect_delivered();
        assert_eq!(world.count(&inbox()), 2);
    }
}

#[test]
fn messages_that_collide_are_both_delivered() {
    for world in World::both() {
        for body in ["one", "two", "one", "two"] {
            let ended = world.deliver(&mail_with_body("m", body), &[inbox()]).expect_delivered();
            assert_eq!(
                ended.report.expect("a report").recorded.collision,
                world.count(&inbox()) == 2
            );
        }
        assert_eq!(world.count(&inbox()), 2);
    }
}

// A delivery that was frozen, or cut off from its ledger, while it talks to the store.

/// A process that is frozen in `call` of the store, and all its locks and leases gone when it goes
/// on.
fn frozen_before(
    world: &World,
    call: &'static str,
    meanwhile: impl FnOnce() + Send + 'static,
) -> Delivery {
    let (delivery, ledger) = (world.delivery(), world.ledger.clone());
    let lose_locks = delivery.lose_locks();
    delivery.before_store(call, move || {
        lose_locks();
        ledger.advance(2 * LEASE.lease);
        meanwhile();
    })
}

#[test]
fn a_late_copy_is_taken_out_again_by_whoever_wrote_it() {
    let cases: [(Before, &[&str]); 2] = [
        (Before::Nothing, &["append", "remove"]),
        (Before::LeasesRanOut, &["look", "append", "remove"]),
    ];
    for (before, calls) in cases {
        let world = World::like_imap();
        before.set_up(&world, &mail("m"), &[inbox()]);
        let (delivery, other) = (world.delivery(), world.clone());
        // Without a turn it is enough that the ledger's clock alone has gone on.
        let lose_locks = (before != Before::Nothing).then(|| delivery.lose_locks());
        let frozen = delivery.before_store("append", move || {
            lose_locks.into_iter().for_each(|lose_locks| lose_locks());
            other.expire_leases();
            other.deliver(&mail("m"), &[inbox()]).expect_delivered();
        });
        let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(ended.store_calls, calls);
        assert_eq!(world.count(&inbox()), 1);
        let kept = world.store.copies("doug", "INBOX")[0].uid;
        assert_eq!(
            world.copies(&mail("m"))[0].receipt,
            Some(format!("uid={kept}")),
            "the one on record"
        );
        let frozen = &world.trace(&mail("m")).attempts[usize::from(before != Before::Nothing)];
        assert_eq!(frozen.outcome.as_deref(), Some("tempfail"));
        assert_eq!(
            world.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(),
            [How::AlreadyThere]
        );
    }
}

#[test]
fn a_late_copy_that_cannot_be_taken_out_is_told() {
    for unnamed in [false, true] {
        let world = World::like_imap();
        let other = world.clone();
        let mut frozen = frozen_before(&world, "append", move || {
            let mut delivery = other.delivery();
            delivery.store.unnamed = unnamed;
            delivery.run(&mail("m"), &[inbox()]).expect_delivered();
        });
        if unnamed {
            frozen = frozen.unnamed();
        } else {
            world.store.fail(memory::Fault::Remove);
        }
        let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert!(ended.outcome.text().contains("may stand"), "{:?}", ended.outcome);
        let attempt = &world.trace(&mail("m")).attempts[0];
        assert!(
            attempt.text.as_deref().is_some_and(|text| text.contains("may stand")),
            "on record: {attempt:?}"
        );
        assert_eq!(world.count(&inbox()), 2);
        world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(world.count(&inbox()), 2, "settled by verify, not by a delivery");
    }
}

#[test]
fn a_late_receipt_wins_while_no_other_is_on_record() {
    // Whoever claimed it since may be about to find and record this very copy: taking it out would
    // lose the message.
    let world = World::like_imap();
    let mut other = world.ledger.clone();
    let frozen = frozen_before(&world, "append", move || {
        assert!(matches!(
            record(&mut other, &mail("m"), &[inbox()], LEASE).copies[0],
            CopyState::Claimed(_)
        ));
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.store_calls, ["append"]);
    assert_eq!(world.count(&inbox()), 1);
    assert_eq!(
        world.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(),
        [How::AlreadyThere]
    );
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_copy_found_by_the_look_is_never_taken_out() {
    let world = World::like_imap();
    Before::CopyWithoutReceipt.set_up(&world, &mail("m"), &[inbox()]);
    let found = world.store.copies("doug", "INBOX")[0].uid;
    let (delivery, other) = (world.delivery(), world.clone());
    let lose_locks = delivery.lose_locks();
    let frozen = delivery.after_store("look", move || {
        lose_locks();
        other.expire_leases();
        // Another has a copy of its own on record, whatever brought it there.
        let mut ledger = other.ledger.clone();
        let CopyState::Claimed(claim) =
            record(&mut ledger, &mail("m"), &[inbox()], LEASE).copies[0]
        else {
            panic!("a claim")
        };
        let receipt = Receipt::Uid { validity: 1, uid: 77 };
        ledger.confirm(&claim, &receipt, CopyFacts::default(), None).expect("confirm");
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
    assert_eq!(ended.store_calls, ["look"]);
    assert_eq!(world.store.copies("doug", "INBOX")[0].uid, found);
}

#[test]
fn a_copy_that_two_found_is_delivered_by_both() {
    let world = World::like_imap();
    Before::CopyWithoutReceipt.set_up(&world, &mail("m"), &[inbox()]);
    let (delivery, other) = (world.delivery(), world.clone());
    let lose_locks = delivery.lose_locks();
    let frozen = delivery.after_store("look", move || {
        lose_locks();
        other.expire_leases();
        assert_eq!(other.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(), [How::Found]);
    });
    frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_copy_that_another_found_before_its_writer_could_confirm_is_delivered_by_both() {
    let world = World::like_imap();
    let (delivery, other) = (world.delivery(), world.clone());
    let lose_locks = delivery.lose_locks();
    let frozen = delivery.after_store("append", move || {
        lose_locks();
        other.expire_leases();
        assert_eq!(other.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(), [How::Found]);
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.store_calls, ["append"], "nothing is taken out");
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn where_appends_are_idempotent_a_late_copy_is_the_same_copy() {
    let world = World::like_maildir();
    let other = world.clone();
    let frozen = frozen_before(&world, "append", move || {
        other.deliver(&mail("m"), &[inbox()]).expect_delivered();
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.store_calls, ["append"]);
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn where_appends_are_idempotent_nothing_is_taken_out() {
    // Both names may be of the one file there is.
    let world = World::like_maildir();
    let mut other = world.ledger.clone();
    let frozen = frozen_before(&world, "append", move || {
        let CopyState::Claimed(claim) = record(&mut other, &mail("m"), &[inbox()], JOIN).copies[0]
        else {
            panic!("a claim")
        };
        let receipt = Receipt::Name("another".to_owned());
        other.confirm(&claim, &receipt, CopyFacts::default(), None).expect("confirm");
    });
    assert_eq!(frozen.run(&mail("m"), &[inbox()]).expect_temp_fail().store_calls, ["append"]);
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_turn_is_taken_in_doubt_or_where_leases_are_joined() {
    for (which, before) in (0..2).flat_map(|which| Before::ALL.map(|before| (which, before))) {
        let world = World::both()[which].clone();
        before.set_up(&world, &mail("m"), &[inbox()]);
        // From a session of its own: does the delivery hold the copy's lock while it writes or
        // looks?
        let (mut other, held) = (world.ledger.clone(), Arc::new(AtomicBool::new(false)));
        let (key, seen) = (mail("m").identity().copy_key("doug", "INBOX"), Arc::clone(&held));
        let call = if before == Before::CopyWithoutReceipt { "look" } else { "append" };
        let delivery = world.delivery().before_store(call, move || {
            let claim = Claim { copy: 1, value: RandomValue::default(), epoch: 1, in_doubt: false };
            let contended = matches!(other.take_turn(&claim, &key), Err(LedgerError::Contended));
            seen.store(contended, Ordering::SeqCst);
        });
        let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
        let takes_turn = before != Before::Nothing || world.store.append_is_idempotent();
        let calls: &[&str] = if takes_turn { TURN_TAKEN } else { &["record", "confirm"] };
        assert_eq!(ended.ledger_calls, calls, "{before:?}, store {which}");
        assert_eq!(held.load(Ordering::SeqCst), takes_turn, "{before:?}, store {which}");
        assert_eq!(world.count(&inbox()), 1);
    }
}

/// Whoever waited for the store in the turn would keep the ledger from everybody.
#[test]
fn what_the_store_needs_is_held_before_the_turn_and_let_go_while_waiting() {
    let mail = mail("m");
    let world = World::like_imap();
    Before::CopyWithoutReceipt.set_up(&world, &mail, &[inbox()]);
    let ended = world.delivery().holding_nothing().run(&mail, &[inbox()]).expect_temp_fail();
    assert_eq!(ended.ledger_calls, ["record", "release", "finish"], "no turn");
    assert_eq!(world.copies(&mail)[0].state, "in doubt", "as before");
    assert_eq!(world.deliver(&mail, &[inbox()]).expect_delivered().hows(), [How::Found]);

    // Busy first, and in doubt when it is free.
    let world = World::like_imap();
    record(&mut world.ledger.clone(), &mail, &[inbox()], LEASE);
    let late = world.clone();
    let delivery = world.delivery().waiting(Duration::from_secs(30)).holding_nothing();
    let held = Arc::clone(&delivery.store.held);
    let ended =
        delivery.before_ledger("claim", move || late.expire_leases()).run(&mail, &[inbox()]);
    assert_eq!(ended.expect_temp_fail().ledger_calls, ["record", "claim", "release", "finish"]);
    assert_eq!(*unpoisoned(&held), ["let go", "hold", "let go"]);
    assert_eq!(world.deliver(&mail, &[inbox()]).expect_delivered().hows(), [How::Stored]);
}

#[test]
fn a_copy_whose_lock_is_held_since_before_the_record_takes_no_turn() {
    let (world, locks) = (World::like_maildir(), Locks::default());
    let is_locked = || {
        let (locks, key) = (Arc::clone(&locks), inbox_key());
        move || {
            assert!(unpoisoned(&locks).contains(&key), "nobody else may look for it and append it")
        }
    };
    let delivery = world.delivery().with_locks(&locks).before_store("append", is_locked());
    let ended = delivery
        .before_ledger("confirm", is_locked())
        .run(&mail("m"), &[inbox()])
        .expect_delivered();
    assert_eq!(
        (ended.ledger_calls, ended.store_calls),
        (vec!["record", "confirm"], vec!["append"])
    );
    assert_eq!(ended.held, ["begin"]);
    assert_eq!((world.count(&inbox()), unpoisoned(&locks).len()), (1, 0));

    // In doubt it takes one all the same, with the lock that it has.
    let world = World::like_maildir();
    Before::CopyWithoutReceipt.set_up(&world, &mail("m"), &[inbox()]);
    let delivery = world.delivery().with_locks(&locks).before_store("look", is_locked());
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!((ended.hows(), ended.ledger_calls), (vec![How::Found], TURN_TAKEN.to_vec()));

    // Of several copies none begins ahead.
    let ended =
        world.delivery().with_locks(&locks).run(&mail("n"), &[inbox(), sent()]).expect_delivered();
    assert_eq!(ended.ledger_calls, ["record", "take_turn", "confirm", "take_turn", "confirm"]);
    assert_eq!(ended.held, ["hold", "hold"]);
}

#[test]
fn a_copy_whose_lock_was_not_to_be_had_before_the_record_takes_a_turn() {
    let (world, locks) = (World::like_maildir(), Locks::default());
    // Another has it when the append begins, and not any more when the message is on record.
    unpoisoned(&locks).insert(inbox_key());
    let others = Arc::clone(&locks);
    let delivery = world.delivery().with_locks(&locks).before_ledger("record", move || {
        unpoisoned(&others).remove(&inbox_key());
    });
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!((ended.ledger_calls, ended.held), (TURN_TAKEN.to_vec(), vec!["begin", "hold"]));
    assert_eq!(world.count(&inbox()), 1);

    // Or it was let go, to wait for the message's lock.
    let (world, message_lock) = (World::like_maildir(), mail("m").identity().id_hash);
    let mut other = world.ledger.clone();
    let CopyState::Claimed(claim) = record(&mut other, &mail("other"), &[inbox()], JOIN).copies[0]
    else {
        panic!("a claim")
    };
    other.take_turn(&claim, &message_lock).expect("a turn");
    let delivery = world.delivery().with_locks(&locks).waiting(Duration::from_secs(60));
    let held = Arc::clone(&delivery.store.held);
    let waiting = thread::spawn(move || {
        wait_for("let go", &held);
        other.leave().expect("no lock any more");
    });
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    waiting.join().expect("it let go");
    assert!(ended.ledger_calls.ends_with(TURN_TAKEN), "{:?}", ended.ledger_calls);
    assert_eq!((ended.held.first(), ended.held.last()), (Some(&"begin"), Some(&"hold")));
    assert_eq!((world.count(&inbox()), unpoisoned(&locks).len()), (1, 0));
}

#[test]
fn whoever_gets_no_lock_of_a_copy_writes_nothing_and_gives_back_its_claim() {
    let (world, locks) = (World::like_maildir(), Locks::default());
    // The lock of another copy may be the same byte.
    unpoisoned(&locks).insert(inbox_key());
    let ended = world.delivery().with_locks(&locks).run(&mail("m"), &[inbox()]).expect_temp_fail();
    assert!(ended.outcome.text().contains("another delivery"), "{:?}", ended.outcome);
    assert_eq!(ended.ledger_calls, ["record", "release", "finish"]);
    assert_eq!(
        (ended.store_calls, ended.held),
        (vec![], vec!["begin", "hold", "let go", "let go"])
    );
    assert_eq!((world.copies(&mail("m"))[0].state.as_str(), world.count(&inbox())), ("free", 0));
    unpoisoned(&locks).clear();

    // While another is about to write: whoever comes then has joined its lease, and spoils nothing.
    let (other, others) = (world.clone(), Arc::clone(&locks));
    let first = world.delivery().with_locks(&locks).before_store("append", move || {
        let ended =
            other.delivery().with_locks(&others).run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(
            (ended.ledger_calls, ended.store_calls),
            (vec!["record", "release", "finish"], vec![])
        );
        assert_eq!(other.copies(&mail("m"))[0].state, "in doubt", "somebody has written or will");
    });
    assert_eq!(
        first.run(&mail("m"), &[inbox()]).expect_delivered().ledger_calls,
        ["record", "confirm"]
    );
    assert_eq!((world.copies(&mail("m"))[0].state.as_str(), world.count(&inbox())), ("placed", 1));
}

#[test]
fn whoever_gets_no_lock_of_a_copy_waits_and_sees_it_placed() {
    let (world, locks, (tell, told)) = (World::like_maildir(), Locks::default(), mpsc::channel());
    let second = world.delivery().with_locks(&locks).waiting(Duration::from_secs(60));
    let held = Arc::clone(&second.store.held);
    let first = world.delivery().with_locks(&locks).before_store("append", move || {
        thread::spawn(move || tell.send(second.run(&mail("m"), &[inbox()])).expect("a listener"));
        wait_for("let go", &held);
    });
    assert_eq!(first.run(&mail("m"), &[inbox()]).expect_delivered().hows(), [How::Stored]);
    let ended = told.recv().expect("an end").expect_delivered();
    assert_eq!((ended.hows(), ended.store_calls), (vec![How::AlreadyThere], vec![]));
    assert_eq!(ended.ledger_calls, ["record", "take_turn", "finish"], "no turn without the lock");
    // Where no turn came of it, and before each wait.
    assert!(
        ended.held.starts_with(&["begin", "hold", "let go", "let go", "hold"]),
        "{:?}",
        ended.held
    );
    let waits_with_it = ended.held.windows(2).any(|two| two == ["hold", "hold"]);
    assert!(!waits_with_it, "it is let go before each wait: {:?}", ended.held);
    assert_eq!((world.count(&inbox()), unpoisoned(&locks).len()), (1, 0));
}

/// The key of the copy of `mail("m")` in doug's INBOX.
fn inbox_key() -> Hash {
    mail("m").identity().copy_key("doug", "INBOX")
}

/// Waits until this was done, by another thread.
fn wait_for(what: &'static str, done: &Mutex<Vec<&'static str>>) {
    let begun = Instant::now();
    while !unpoisoned(done).contains(&what) {
        assert!(begun.elapsed() < Duration::from_secs(30), "no {what:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_claim_that_is_gone_before_the_turn_writes_nothing() {
    let cases = [
        (Before::LeasesRanOut, World::like_imap as fn() -> World, LEASE),
        (Before::Nothing, World::like_maildir, JOIN),
        (Before::LeasesRanOut, World::like_maildir, JOIN),
    ];
    for (wait, (before, world, terms)) in [Duration::ZERO, Duration::from_secs(10)]
        .into_iter()
        .flat_map(|wait| cases.map(|case| (wait, case)))
    {
        let world = world();
        before.set_up(&world, &mail("m"), &[inbox()]);
        let other = world.clone();
        let frozen = world.delivery().waiting(wait).before_ledger("take_turn", move || {
            other.expire_leases();
            other.deliver(&mail("m"), &[inbox()]).expect_delivered();
        });
        let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
        assert!(ended.store_calls.is_empty());
        assert_eq!(ended.hows(), [How::AlreadyThere]);
        // Claimed and not placed yet: busy, until it is placed or the patience is at its end.
        before.set_up(&world, &mail("n"), &[inbox()]);
        let mut other = world.ledger.clone();
        let frozen = world.delivery().before_ledger("take_turn", move || {
            other.advance(2 * LEASE.lease);
            record(&mut other, &mail("n"), &[inbox()], terms);
        });
        let ended = frozen.run(&mail("n"), &[inbox()]).expect_temp_fail();
        assert!(ended.store_calls.is_empty());
        assert_eq!(world.count(&inbox()), 1);
    }
}

/// What others did with a copy while its first delivery was frozen past the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    Leased,
    Placed,
}

#[test]
fn without_a_turn_the_deadline_stops_whoever_was_frozen_before_its_last_check() {
    for meanwhile in [Meanwhile::Nothing, Meanwhile::Leased, Meanwhile::Placed] {
        let world = World::like_imap();
        let (mut delivery, other) = (world.delivery(), world.clone());
        delivery.deadline = Deadline::new(Duration::from_millis(200), Duration::from_millis(100));
        let deadline = delivery.deadline.clone();
        let frozen = delivery.before_store("append", move || {
            while !deadline.left().is_zero() {
                thread::sleep(deadline.left());
            }
            other.expire_leases();
            match meanwhile {
                Meanwhile::Nothing => {}
                Meanwhile::Leased => {
                    drop(record(&mut other.ledger.clone(), &mail("m"), &[inbox()], LEASE))
                }
                Meanwhile::Placed => drop(other.deliver(&mail("m"), &[inbox()]).expect_delivered()),
            }
        });
        let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert!(ended.outcome.text().contains("too little time left"), "{:?}", ended.outcome);
        assert_eq!(ended.ledger_calls, ["record", "leave", "release", "finish"], "{meanwhile:?}");
        let (state, count) = match meanwhile {
            Meanwhile::Nothing => ("free", 0),
            Meanwhile::Leased => ("leased", 0),
            Meanwhile::Placed => ("placed", 1),
        };
        assert_eq!(
            (world.copies(&mail("m"))[0].state.as_str(), world.count(&inbox())),
            (state, count)
        );
        world.assert_mends(&mail("m"), &[inbox()], &format!("{meanwhile:?}"));
    }
}

#[test]
fn a_turn_keeps_others_away_from_whoever_was_frozen_past_its_lease() {
    let world = World::like_imap();
    Before::LeasesRanOut.set_up(&world, &mail("m"), &[inbox()]);
    let other = world.clone();
    let frozen = world.delivery().before_store("append", move || {
        other.expire_leases();
        let kept_away = other.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
        assert!(kept_away.store_calls.is_empty());
        assert!(kept_away.ledger_calls.contains(&"take_turn"), "{:?}", kept_away.ledger_calls);
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.store_calls, ["look", "append"], "nothing is taken out");
    assert_eq!(
        world.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(),
        [How::AlreadyThere]
    );
    assert_eq!(world.count(&inbox()), 1);
}

// A sender's own copy, which no recipient asked for.

/// The store's call for Sent, which comes after the one for the recipient's own mailbox.
const SENT: usize = 1;

#[test]
fn a_sent_that_cannot_take_its_copy_defers_no_recipient_and_its_bytes_are_kept() {
    for (fault, in_mailbox) in
        [(StoreFault::Refused, 0), (StoreFault::DoneInDoubt, 1), (StoreFault::LostInDoubt, 0)]
    {
        for world in World::both() {
            let both = [inbox(), sent()];
            let first = world
                .delivery()
                .failing_store(SENT, fault)
                .run(&mail("m"), &both)
                .expect_delivered();
            assert_eq!((world.count(&inbox()), world.count(&sent())), (1, in_mailbox), "{fault:?}");
            let text = first.outcome.text();
            assert!(
                text.contains("no copy yet in account=lisa mailbox=Sent, kept for later: store: "),
                "{text}"
            );
            let trace = world.trace(&mail("m"));
            assert_eq!(trace.attempts[0].outcome.as_deref(), Some("delivered"), "{fault:?}");
            assert_eq!(
                trace.attempts[0].text.as_deref(),
                Some(text),
                "what Postfix heard is on record"
            );
            assert!(
                trace.copies[1].kept.as_deref().is_some_and(|why| why.contains("told to fail")),
                "{trace:?}"
            );
            // The next recipient comes at once, while the lease of the copy in doubt may be left
            // over.
            let zoe = Destination::inbox("zoe");
            let next = world.deliver(&mail("m"), &[zoe.clone(), sent()]).expect_delivered();
            world.assert_honest(&next, &mail("m"), &[zoe, sent()], &format!("{fault:?}, the next"));
            world.assert_mends(&mail("m"), &both, &format!("{fault:?}"));
        }
    }
}

#[test]
fn a_sent_whose_bytes_cannot_be_kept_defers() {
    let both = [inbox(), sent()];
    for fault in LedgerFault::ALL {
        let world = World::like_imap();
        let mut delivery = world.delivery().failing_store(SENT, StoreFault::Refused);
        let calls = delivery.ledger.calls.clone();
        let probe = world.clone();
        // Which of the ledger's calls keeps the bytes: in a world of its own, as it counts.
        let keep = {
            let other = World::like_imap();
            let ended =
                other.delivery().failing_store(SENT, StoreFault::Refused).run(&mail("m"), &both);
            ended.ledger_calls.iter().position(|call| *call == "keep").expect("kept")
        };
        delivery = delivery.failing_ledger(keep, fault);
        let ended = delivery.run(&mail("m"), &both);
        assert!(unpoisoned(&calls).contains(&"keep"));
        // A session that is lost is opened again, as for a receipt.
        let is_kept = matches!(fault, LedgerFault::Lost | LedgerFault::LostAfter);
        assert_eq!(ended.is_delivered(), is_kept, "{fault:?}: {:?}", ended.outcome);
        assert_eq!((probe.count(&inbox()), probe.count(&sent())), (1, 0));
        world.assert_mends(&mail("m"), &both, &format!("{fault:?}"));
    }
}

#[test]
fn a_sent_that_another_delivery_holds_is_waited_for_and_defers() {
    let world = World::like_imap();
    let mut other = world.ledger.clone();
    assert!(matches!(
        record(&mut other, &mail("m"), &[sent()], LEASE).copies[0],
        CopyState::Claimed(_)
    ));
    let ended = world.delivery().run(&mail("m"), &[inbox(), sent()]).expect_temp_fail();
    assert!(ended.outcome.text().contains("another delivery"), "{:?}", ended.outcome);
    assert_eq!((world.count(&inbox()), world.count(&sent())), (1, 0));
    world.assert_mends(&mail("m"), &[inbox(), sent()], "contended");
}

#[test]
fn a_recipients_own_copy_is_never_kept_instead_of_delivered() {
    let world = World::like_imap();
    let ended = world
        .delivery()
        .failing_store(0, StoreFault::Refused)
        .run(&mail("m"), &[inbox(), sent()])
        .expect_temp_fail();
    assert!(!ended.ledger_calls.contains(&"keep"), "{:?}", ended.ledger_calls);
    assert_eq!((world.count(&inbox()), world.count(&sent())), (0, 1));
}

#[test]
fn whoever_holds_only_the_copys_lock_delays_and_suppresses_nothing() {
    // Two hashes may begin with the same 64 bits, and a frozen process may hold a lock past its
    // lease.
    for (before, world) in
        [(Before::LeasesRanOut, World::like_imap()), (Before::Nothing, World::like_maildir())]
    {
        let destinations = [inbox(), sent()];
        before.set_up(&world, &mail("m"), &destinations);
        let mut other = world.ledger.clone();
        hold_lock(&mut other);
        let ended = world.deliver(&mail("m"), &destinations).expect_temp_fail();
        assert_eq!(ended.appended, [sent()]);
        let state = if before == Before::Nothing { "free" } else { "in doubt" };
        assert_eq!(world.copies(&mail("m"))[0].state, state, "given back: nothing was written");
        drop(other);
        let ended = world.deliver(&mail("m"), &destinations).expect_delivered();
        assert_eq!(ended.hows(), [How::Stored, How::AlreadyThere]);
    }
    // And who needs no lock does not even wait.
    let world = World::like_imap();
    let mut other = world.ledger.clone();
    hold_lock(&mut other);
    let ended = world.deliver(&mail("m"), &[inbox(), sent()]).expect_delivered();
    assert_eq!(ended.hows(), [How::Stored, How::Stored]);
}

/// Takes the lock on the copy of `mail("m")` in doug's INBOX, and nothing else of it.
fn hold_lock(ledger: &mut MemoryLedger) {
    let recorded = record(ledger, &mail("other"), &[inbox()], LEASE);
    let CopyState::Claimed(claim) = recorded.copies[0] else { panic!("a claim") };
    ledger.take_turn(&claim, &mail("m").identity().copy_key("doug", "INBOX")).expect("a turn");
}

#[test]
fn a_copy_that_somebody_who_joined_wrote_is_looked_for_by_whoever_was_joined() {
    // A file that a reader has moved and marked does not stop a second link of its first name: only
    // the look tells.
    let folder = tempfile::tempdir().expect("a folder");
    let (world, root) = (World::like_maildir(), folder.path().to_owned());
    let maildir = || -> Box<dyn Store> { Box::new(MaildirStore::new(&root, true)) };
    let (other, other_store, inbox_folder) = (world.clone(), maildir(), root.join("doug/Maildir"));
    let first = world.delivery_to(maildir()).before_ledger("take_turn", {
        let inbox_folder = inbox_folder.clone();
        move || {
            // It joins, writes, and is gone before it can say so; and the reader is quick.
            let joined = other.delivery_to(other_store).failing_ledger(2, LedgerFault::Crash);
            assert_eq!(
                joined.run(&mail("m"), &[inbox()]).expect_temp_fail().store_calls,
                ["look", "append"]
            );
            for entry in std::fs::read_dir(inbox_folder.join("new")).expect("new") {
                let entry = entry.expect("an entry");
                let read = format!("{}:2,RS", entry.file_name().to_string_lossy());
                std::fs::rename(entry.path(), inbox_folder.join("cur").join(read))
                    .expect("a rename");
            }
        }
    });
    let ended = first.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.hows(), [How::Found]);
    let count = |sub: &str| std::fs::read_dir(inbox_folder.join(sub)).expect("a folder").count();
    assert_eq!((count("new"), count("cur")), (0, 1));
}

#[test]
fn a_live_lease_is_joined_only_where_appends_are_idempotent() {
    for world in World::both() {
        let mut other = world.ledger.clone();
        record(&mut other, &mail("m"), &[inbox()], JOIN);
        let ended = world.deliver(&mail("m"), &[inbox()]);
        assert_eq!(ended.is_delivered(), world.store.append_is_idempotent());
    }
}

// What is on record.

#[test]
fn the_ledger_tells_how_each_attempt_ended() {
    for world in World::both() {
        world
            .delivery()
            .failing_store(0, StoreFault::Refused)
            .run(&mail("m"), &[inbox()])
            .expect_temp_fail();
        world.deliver(&mail("m"), &[inbox(), sent()]).expect_delivered();
        world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        let trace = world.trace(&mail("m"));
        let ends: Vec<_> =
            trace.attempts.iter().map(|attempt| attempt.outcome.as_deref()).collect();
        assert_eq!(ends, [Some("tempfail"), Some("delivered"), Some("delivered")]);
        let texts: Vec<&str> =
            trace.attempts.iter().filter_map(|attempt| attempt.text.as_deref()).collect();
        assert!(texts[0].contains("told to fail"), "{texts:?}");
        assert!(
            texts[1].contains("stored account=doug") && texts[1].contains("account=lisa"),
            "{texts:?}"
        );
        assert!(texts[2].contains("already there"), "{texts:?}");
    }
}

#[test]
fn the_end_on_record_is_the_end_that_postfix_hears() {
    for world in World::both() {
        let ended = world.deliver(&mail("m"), &[inbox(), sent()]).expect_delivered();
        let attempt = &world.trace(&mail("m")).attempts[0];
        assert_eq!(attempt.text.as_deref(), Some(ended.outcome.text()));
        assert_eq!(attempt.status.as_deref(), Some(Status::OK.to_string().as_str()));
        let calls: &[&str] = match world.store.append_is_idempotent() {
            true => &["record", "take_turn", "confirm", "take_turn", "confirm"],
            false => &["record", "confirm", "confirm"],
        };
        assert_eq!(ended.ledger_calls, calls, "no call for it alone");
    }
}

#[test]
fn a_copy_with_nul_bytes_says_so_and_the_message_is_not_kept_for_it() {
    let world = World::like_imap();
    let nul = mail_with_body("nul", "a\0b");
    world.deliver(&nul, &[inbox()]).expect_delivered();
    world.deliver(&mail("none"), &[inbox()]).expect_delivered();
    let trace = world.trace(&nul);
    assert!(!trace.raw_kept && trace.copies[0].nul_replaced);
    let trace = world.trace(&mail("none"));
    assert!(!trace.raw_kept && !trace.copies[0].nul_replaced);
}

#[test]
fn a_message_for_nobody_is_recorded_and_delivered() {
    let world = World::like_imap();
    world.deliver(&mail("m"), &[]).expect_delivered();
    assert!(world.trace(&mail("m")).copies.is_empty());
}
