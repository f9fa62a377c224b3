//! One ledger and one store in memory, and deliveries to them: each a process of its own, with a
//! script of what goes wrong in it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use onedrop::clock::{Clock, SystemClock};
use onedrop::deadline::Deadline;
use onedrop::deliver::{
    self, CopyResult, DeliveryRequest, Ending, Failure, How, Means, Phases, Placed, Policy, Watch,
};
use onedrop::directory::Destination;
use onedrop::envelope::Envelope;
use onedrop::hook::{Call, Hook};
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::{
    Audit, Entry, LeaseTerms, Ledger, LedgerError, Recorded, Records, Trace, TraceCopy, TraceFilter,
};
use onedrop::message::Message;
use onedrop::outcome::{Outcome, OverQuota};
use onedrop::store::memory::MemoryStore;
use onedrop::store::{Store, StoreError};

use crate::ports::{LEASE, attempt, soon};

/// The ledger's calls of a delivery that takes a turn at its only copy.
pub const TURN_TAKEN: &[&str] = &["record", "take_turn", "confirm"];
/// Of one that takes none.
pub const NO_TURN: &[&str] = &["record", "confirm"];

/// How a ledger's call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerFault {
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
    pub const ALL: [LedgerFault; 6] = [
        LedgerFault::Refused,
        LedgerFault::Lost,
        LedgerFault::LostAfter,
        LedgerFault::LostForGood,
        LedgerFault::Crash,
        LedgerFault::CrashAfter,
    ];
}

/// How a store's call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
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
    pub const ALL: [StoreFault; 5] = [
        StoreFault::Refused,
        StoreFault::DoneInDoubt,
        StoreFault::LostInDoubt,
        StoreFault::Crash,
        StoreFault::CrashAfter,
    ];
}

type Deed = Box<dyn FnOnce() + Send>;

/// What happens in one delivery: at which calls it fails, and what others do in between.
#[derive(Default)]
pub struct Script {
    state: Mutex<State>,
    called: Condvar,
    ledger: OnceLock<Arc<MemoryLedger>>,
}

#[derive(Default)]
struct State {
    ledger_calls: Vec<&'static str>,
    /// What reads or writes a mailbox.
    store_calls: Vec<&'static str>,
    /// What begins or reserves.
    reserved: Vec<&'static str>,
    appended: Vec<Destination>,
    ledger_fault: Option<(usize, LedgerFault)>,
    store_fault: Option<(usize, StoreFault)>,
    reserve_fault: Option<(usize, StoreFault)>,
    errors: Vec<(&'static str, StoreError)>,
    /// Before which call, the how many-th of its name, somebody does what.
    before: Vec<(&'static str, usize, Deed)>,
    after: Vec<(&'static str, Deed)>,
    placed: Vec<Placed>,
    is_dead: bool,
    is_lost_for_good: bool,
}

impl State {
    fn count(&self, name: &str) -> usize {
        let all = [&self.ledger_calls, &self.store_calls, &self.reserved];
        all.into_iter().flatten().filter(|call| **call == name).count()
    }
}

impl Script {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process ends here; what it calls later comes to nothing.
    fn die(&self, name: &str) -> ! {
        self.state().is_dead = true;
        resume_unwind(Box::new(format!("told to crash at {name}")))
    }

    /// Whether the process lives; it unwinds on and on where it does not.
    fn lives(&self, name: &str) -> bool {
        let is_dead = self.state().is_dead;
        if is_dead && !thread::panicking() {
            self.die(name);
        }
        !is_dead
    }

    /// What others do before this call.
    fn others_before(&self, name: &'static str) {
        self.called.notify_all();
        let deed = {
            let mut state = self.state();
            let count = state.count(name);
            let at = state.before.iter().position(|(call, nth, _)| (*call, *nth) == (name, count));
            at.map(|at| state.before.remove(at))
        };
        if let Some((_, _, deed)) = deed {
            deed();
        }
    }

    fn others_after(&self, name: &'static str) {
        let deed = {
            let mut state = self.state();
            let at = state.after.iter().position(|(call, _)| *call == name);
            at.map(|at| state.after.remove(at))
        };
        if let Some((_, deed)) = deed {
            deed();
        }
    }

    fn lose_session(&self) -> LedgerError {
        self.ledger.get().expect("a handle").lose_session();
        LedgerError::Unavailable("told to fail".to_owned())
    }

    fn ledger_fault(&self) -> Option<LedgerFault> {
        let state = self.state();
        state.ledger_fault.filter(|(at, _)| at + 1 == state.ledger_calls.len()).map(|(_, f)| f)
    }

    fn store_fault(&self, call: &Call<'_>) -> Option<StoreFault> {
        let state = self.state();
        let (fault, calls) = match call.name {
            "begin" | "reserve" => (state.reserve_fault, &state.reserved),
            _ => (state.store_fault, &state.store_calls),
        };
        fault.filter(|(at, _)| at + 1 == calls.len()).map(|(_, fault)| fault)
    }

    /// Waits until `what` was called so often, by another thread.
    pub fn wait_for(&self, what: &str, times: usize) {
        let begun = Instant::now();
        let mut state = self.state();
        while state.count(what) < times {
            assert!(begun.elapsed() < Duration::from_secs(30), "no {what:?} {times} times");
            let waited = self.called.wait_timeout(state, Duration::from_secs(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Hook<LedgerError> for Script {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        if !self.lives(call.name) || self.state().is_lost_for_good {
            return Err(LedgerError::Unavailable("told to fail".to_owned()));
        }
        self.state().ledger_calls.push(call.name);
        self.others_before(call.name);
        match self.ledger_fault() {
            Some(LedgerFault::Refused) => Err(LedgerError::Refused("told to fail".to_owned())),
            Some(LedgerFault::Lost) => Err(self.lose_session()),
            Some(LedgerFault::LostForGood) => {
                self.state().is_lost_for_good = true;
                Err(self.lose_session())
            }
            Some(LedgerFault::Crash) => self.die(call.name),
            None | Some(LedgerFault::LostAfter | LedgerFault::CrashAfter) => Ok(()),
        }
    }

    fn after(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        self.others_after(call.name);
        match self.ledger_fault() {
            Some(LedgerFault::LostAfter) => Err(self.lose_session()),
            Some(LedgerFault::CrashAfter) => self.die(call.name),
            _ => Ok(()),
        }
    }
}

impl Hook<StoreError> for Script {
    fn before(&self, call: &Call<'_>) -> Result<(), StoreError> {
        let not_stored = || StoreError::NotStored("told to fail".to_owned());
        if !self.lives(call.name) {
            return Err(not_stored());
        }
        match call.name {
            "begin" | "reserve" => self.state().reserved.push(call.name),
            name => self.state().store_calls.push(name),
        }
        if let Some(destination) = call.destination.filter(|_| call.name == "append") {
            self.state().appended.push(destination.clone());
        }
        self.others_before(call.name);
        let mut state = self.state();
        if let Some(at) = state.errors.iter().position(|(name, _)| *name == call.name) {
            return Err(state.errors.remove(at).1);
        }
        drop(state);
        match self.store_fault(call) {
            Some(StoreFault::Refused) => Err(not_stored()),
            Some(StoreFault::LostInDoubt) if call.name != "append" => {
                Err(StoreError::InDoubt("told to fail".to_owned()))
            }
            Some(StoreFault::Crash) => self.die(call.name),
            _ => Ok(()),
        }
    }

    fn within(&self, call: &Call<'_>) -> Result<(), StoreError> {
        match self.store_fault(call) {
            Some(StoreFault::LostInDoubt) => Err(StoreError::InDoubt("told to fail".to_owned())),
            _ => Ok(()),
        }
    }

    fn after(&self, call: &Call<'_>) -> Result<(), StoreError> {
        let fault = self.store_fault(call);
        if fault == Some(StoreFault::CrashAfter) {
            self.die(call.name);
        }
        self.others_after(call.name);
        match fault {
            Some(StoreFault::DoneInDoubt) => Err(StoreError::InDoubt("told to fail".to_owned())),
            _ => Ok(()),
        }
    }
}

impl Watch for Script {
    fn recorded(&self, _: &Recorded, _: &Phases) {}

    fn not_recorded(&self, _: u32) {}

    fn copy_ended(&self, end: &CopyResult, _: &Phases) {
        self.state().placed.extend(end.as_ref().ok().cloned());
    }

    fn ended(&self, _: usize, _: &Ending) {}
}

/// A clock that jumps over every sleep.
#[derive(Debug, Default)]
struct Impatient(Mutex<Duration>);

impl Clock for Impatient {
    fn now(&self) -> Instant {
        Instant::now() + *self.0.lock().expect("no panic")
    }

    fn since_boot(&self) -> Option<Duration> {
        None
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().expect("no panic") += time;
    }

    fn random(&self) -> u64 {
        0
    }

    fn side_by_side(&self, threads: usize, work: &(dyn Fn() + Sync)) {
        SystemClock.side_by_side(threads, work);
    }
}

/// One ledger and one store.
#[derive(Clone)]
pub struct World {
    pub ledger: MemoryLedger,
    pub store: MemoryStore,
}

/// A delivery that is yet to be run: a process of its own.
pub struct Delivery {
    pub script: Arc<Script>,
    ledger: Arc<MemoryLedger>,
    store: MemoryStore,
    pub wait: Duration,
    pub deadline: Deadline,
    pub over_quota: OverQuota,
    begins_early: bool,
}

/// What became of a delivery.
pub struct Ended {
    pub outcome: Outcome,
    /// Another message with its Message-ID is on record.
    pub collision: bool,
    destinations: Vec<Destination>,
    pub placed: Vec<Placed>,
    pub ledger_calls: Vec<&'static str>,
    pub store_calls: Vec<&'static str>,
    pub reserved: Vec<&'static str>,
    pub appended: Vec<Destination>,
}

impl Ended {
    pub fn is_delivered(&self) -> bool {
        matches!(self.outcome, Outcome::Delivered(_))
    }

    pub fn expect_delivered(self) -> Ended {
        assert!(self.is_delivered(), "{:?}", self.outcome);
        self
    }

    pub fn expect_temp_fail(self) -> Ended {
        assert!(matches!(self.outcome, Outcome::TempFail(..)), "{:?}", self.outcome);
        self
    }

    /// How each copy was placed, in the destinations' order.
    pub fn hows(&self) -> Vec<How> {
        let how = |destination: &Destination| {
            let is_it = |one: &&Placed| one.destination == *destination;
            self.placed.iter().find(is_it).expect("placed").how
        };
        self.destinations.iter().map(how).collect()
    }
}

impl World {
    pub fn like_imap() -> World {
        World { ledger: MemoryLedger::default(), store: MemoryStore::default() }
    }

    pub fn like_maildir() -> World {
        World { ledger: MemoryLedger::default(), store: MemoryStore::idempotent() }
    }

    pub fn without_uidplus() -> World {
        World { ledger: MemoryLedger::default(), store: MemoryStore::without_uidplus() }
    }

    pub fn both() -> [World; 2] {
        [World::like_imap(), World::like_maildir()]
    }

    pub fn delivery(&self) -> Delivery {
        let script = Arc::<Script>::default();
        let ledger = Arc::new(self.ledger.with_hook(Arc::clone(&script) as _));
        let _ = script.ledger.set(Arc::clone(&ledger));
        Delivery {
            store: self.store.with_hook(Arc::clone(&script) as _),
            script,
            ledger,
            wait: Duration::ZERO,
            deadline: Deadline::new(Duration::from_secs(60), Duration::from_secs(20)),
            over_quota: OverQuota::Defer,
            begins_early: false,
        }
    }

    pub fn deliver(&self, mail: &Message, destinations: &[Destination]) -> Ended {
        self.delivery().run(mail, destinations)
    }

    pub fn expire_leases(&self) {
        self.ledger.advance(2 * LEASE.lease);
    }

    /// The ledger's calls of a delivery of one copy that is not in doubt: no turn where a lease is
    /// nobody else's.
    pub fn calls(&self) -> &'static [&'static str] {
        if self.store.append_is_idempotent() { TURN_TAKEN } else { NO_TURN }
    }

    /// Which of them is the last one.
    pub fn confirm_at(&self) -> usize {
        self.calls().len() - 1
    }

    pub fn count(&self, destination: &Destination) -> usize {
        self.store.copies(&destination.account, &destination.mailbox).len()
    }

    pub fn copies(&self, mail: &Message) -> Vec<TraceCopy> {
        self.trace(mail).copies
    }

    pub fn traces(&self, mail: &Message) -> Vec<Trace> {
        let id = mail.identity().message_id.clone().expect("a Message-ID");
        let id = String::from_utf8(id).expect("text");
        self.ledger.trace(&TraceFilter::of(&id), 10, soon()).expect("trace")
    }

    pub fn trace(&self, mail: &Message) -> Trace {
        self.traces(mail).remove(0)
    }

    /// What another delivery records.
    pub fn record(
        &self,
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
        self.ledger.record(&entry, &attempt("mx2"), destinations, terms, soon()).expect("record")
    }

    /// One copy at most anywhere; exactly one, on record as placed, where somebody said so; or, of
    /// a shared copy, its bytes.
    pub fn assert_honest(
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
                let is_said = ended.is_delivered();
                assert!(!is_said, "{context}: delivered without a record of {destination}");
                continue;
            };
            if copy.kept.is_some() {
                assert!(destination.shared && copy.state != "placed", "{context}: {copy:?}");
                let id = self.trace(mail).message;
                let bytes = self.ledger.kept_bytes(id, soon()).expect("bytes").expect("kept");
                assert_eq!(bytes, mail.shared_copy(), "{context}: the bytes of {destination}");
            } else {
                let count = self.count(destination);
                assert_eq!(count, 1, "{context}: delivered without a copy in {destination}");
                assert_eq!(copy.state, "placed", "{context}");
            }
        }
        let is_temp_fail = matches!(ended.outcome, Outcome::TempFail(..));
        assert!(ended.is_delivered() || is_temp_fail, "{context}: {:?}", ended.outcome);
    }

    /// Delivers again as Postfix would: at once (another recipient, an impatient administrator),
    /// and after a while.
    pub fn assert_mends(&self, mail: &Message, destinations: &[Destination], context: &str) {
        let at_once = self.deliver(mail, destinations);
        self.assert_honest(&at_once, mail, destinations, &format!("{context}, again at once"));
        self.expire_leases();
        let later = self.deliver(mail, destinations);
        assert!(later.is_delivered(), "{context}, again later: {:?}", later.outcome);
        self.assert_honest(&later, mail, destinations, &format!("{context}, again later"));
        let is_kept = self.copies(mail).iter().any(|copy| copy.kept.is_some());
        assert!(!is_kept, "{context}: placed by now");
    }
}

impl Delivery {
    pub fn failing_ledger(self, at: usize, fault: LedgerFault) -> Delivery {
        self.script.state().ledger_fault = Some((at, fault));
        // One without a ledger asks for it until its time is over.
        let clock = Arc::<Impatient>::default();
        match fault {
            LedgerFault::LostForGood => Delivery {
                deadline: Deadline::by(clock, Duration::from_secs(60), Duration::from_secs(20)),
                ..self
            },
            _ => self,
        }
    }

    /// At a call that reads or writes a mailbox.
    pub fn failing_store(self, at: usize, fault: StoreFault) -> Delivery {
        self.script.state().store_fault = Some((at, fault));
        self
    }

    pub fn failing_reserve(self, at: usize, fault: StoreFault) -> Delivery {
        self.script.state().reserve_fault = Some((at, fault));
        self
    }

    /// The first such call of the store ends so, before it takes effect.
    pub fn refusing(self, call: &'static str, error: StoreError) -> Delivery {
        self.script.state().errors.push((call, error));
        self
    }

    pub fn waiting(self, wait: Duration) -> Delivery {
        Delivery { wait, ..self }
    }

    /// The store begins before the record.
    pub fn early(self) -> Delivery {
        Delivery { begins_early: true, ..self }
    }

    /// Before the first call of that name.
    pub fn before(self, call: &'static str, deed: impl FnOnce() + Send + 'static) -> Delivery {
        self.before_nth(call, 1, deed)
    }

    pub fn before_nth(
        self,
        call: &'static str,
        nth: usize,
        deed: impl FnOnce() + Send + 'static,
    ) -> Delivery {
        self.script.state().before.push((call, nth, Box::new(deed)));
        self
    }

    pub fn after(self, call: &'static str, deed: impl FnOnce() + Send + 'static) -> Delivery {
        self.script.state().after.push((call, Box::new(deed)));
        self
    }

    /// Takes the session's locks away while it does not look, as a server does with one that fell
    /// silent.
    pub fn lose_locks(&self) -> impl FnOnce() + Send + use<> {
        let ledger = Arc::clone(&self.ledger);
        move || ledger.lose_session()
    }

    pub fn run(self, mail: &Message, destinations: &[Destination]) -> Ended {
        let facts = mail.facts();
        let mut accounts: Vec<Option<String>> = destinations
            .iter()
            .filter(|destination| !destination.shared)
            .map(|destination| Some(destination.account.clone()))
            .collect();
        accounts.dedup();
        if accounts.is_empty() {
            accounts.push(Some("doug".to_owned()));
        }
        let envelope = Envelope {
            sender: "lisa@gmail.com".to_owned(),
            recipients: accounts.iter().flatten().map(|to| format!("{to}@x")).collect(),
            ..Envelope::default()
        };
        let job = DeliveryRequest {
            message: mail,
            facts: &facts,
            envelope: &envelope,
            accounts: &accounts,
            destinations,
            heads: &[],
            host: "mx1",
            started: self.deadline.now(),
            one_ending: true,
        };
        let over_quota = self.over_quota;
        let policy = Policy {
            lease: LEASE.lease,
            wait: self.wait,
            keep_raw: false,
            over_quota,
            begins_early: self.begins_early,
            side_by_side: 1,
        };
        let means = Means {
            policy: &policy,
            ledger: &*self.ledger,
            store: &self.store,
            deadline: &self.deadline,
            watch: &*self.script,
        };
        let endings = catch_unwind(AssertUnwindSafe(|| deliver::deliver(&job, means)));
        let endings = endings.ok().filter(|_| !self.script.state().is_dead).unwrap_or_else(|| {
            let crashed = Failure::Internal("told to crash".to_owned());
            vec![Ending::of(crashed.outcome(over_quota))]
        });
        let collision = endings[0].collision;
        let outcome = endings.into_iter().map(|ending| ending.outcome).reduce(Outcome::worst);
        let mut state = self.script.state();
        Ended {
            outcome: outcome.expect("an ending"),
            collision,
            destinations: destinations.to_vec(),
            placed: std::mem::take(&mut state.placed),
            ledger_calls: state.ledger_calls.clone(),
            store_calls: state.store_calls.clone(),
            reserved: state.reserved.clone(),
            appended: state.appended.clone(),
        }
    }
}

/// What an earlier, crashed delivery left of the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    Nothing,
    LeasesRanOut,
    CopyWithoutReceipt,
}

impl Before {
    pub const ALL: [Before; 3] =
        [Before::Nothing, Before::LeasesRanOut, Before::CopyWithoutReceipt];

    pub fn set_up(self, world: &World, mail: &Message, destinations: &[Destination]) {
        let crashing = match self {
            Before::Nothing => return,
            Before::LeasesRanOut => world.delivery().failing_ledger(0, LedgerFault::CrashAfter),
            Before::CopyWithoutReceipt => world.delivery().failing_store(0, StoreFault::CrashAfter),
        };
        crashing.run(mail, destinations).expect_temp_fail();
        world.expire_leases();
    }
}
