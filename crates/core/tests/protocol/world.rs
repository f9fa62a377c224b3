//! One ledger and one store in memory, and deliveries to them: each a process of its own, with a
//! script of what goes wrong in it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::deadline::Deadline;
use onedrop_core::deliver::{
    self, DeliveryRequest, Ending, Failure, How, LookBacks, Means, Placed, Policy,
};
use onedrop_core::directory::Destination;
use onedrop_core::envelope::Envelope;
use onedrop_core::ledger::memory::MemoryLedger;
use onedrop_core::ledger::{
    Audit, Entry, LeaseTerms, Ledger, Recorded, Records, SharedConfig, Trace, TraceCopy,
    TraceFilter, Window,
};
use onedrop_core::message::{self, Message};
use onedrop_core::outcome::{Outcome, OverQuota, UnknownAccount};
use onedrop_core::store::memory::{Filters, MemoryStore};
use onedrop_core::store::{Store, StoreError};
use onedrop_core::verify::{self, Difference, News, Tally, VerifyTask};

use crate::ports::{LEASE, attempt, soon};
use crate::script::{LedgerFault, Script, StoreFault, Watched};

/// The ledger's calls of a delivery that takes a turn at its only copy.
pub const TURN_TAKEN: &[&str] = &["record", "take_turn", "confirm"];
/// Of one that looks for a copy where the store does not go by names.
pub const LOOKED_FOR: &[&str] = &["record", "receipt_before", "take_turn", "confirm"];
/// Of one that takes none.
pub const NO_TURN: &[&str] = &["record", "confirm"];

/// A clock that jumps over every sleep.
#[derive(Debug, Default)]
pub struct Impatient(Mutex<Duration>);

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

/// Of a delivery whose pauses take no time.
fn jumping() -> Deadline {
    Deadline::by(Arc::<Impatient>::default(), Duration::from_secs(60), Duration::from_secs(20))
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
    pub unknown_account: UnknownAccount,
    /// Unknown addresses, before those of the destinations' accounts.
    pub strangers: Vec<&'static str>,
    begins_early: bool,
    sent_after: Duration,
    one_ending: bool,
    look_backs: &'static dyn LookBacks,
}

/// The result of `onedrop settle`.
#[derive(Debug)]
pub struct Settled {
    pub findings: Vec<Difference>,
    pub failed: Vec<String>,
    /// `None`: it died, or the ledger failed.
    pub tally: Option<Tally>,
    pub ledger_calls: Vec<&'static str>,
    pub store_calls: Vec<&'static str>,
}

/// How a delivery ended.
pub struct Ended {
    pub outcome: Outcome,
    /// Another message with its Message-ID is on record.
    pub collision: bool,
    destinations: Vec<Destination>,
    pub endings: Vec<Ending>,
    pub placed: Vec<Placed>,
    pub watched: Vec<Watched>,
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

    /// Like an IMAP server to whose own delivery recipients' copies are handed over.
    pub fn handing_over(filters: Filters) -> World {
        World { ledger: MemoryLedger::default(), store: MemoryStore::handing_over(filters) }
    }

    /// The same ledger and store, from a host whose configuration shares this with all others.
    pub fn of_host<const N: usize>(&self, shared: [(&str, &str); N]) -> World {
        let shared = SharedConfig::new(shared.map(|(key, value)| (key, value.to_owned())));
        World { ledger: self.ledger.of_host(shared), store: self.store.clone() }
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
            deadline: jumping(),
            over_quota: OverQuota::Defer,
            unknown_account: UnknownAccount::Defer,
            strangers: Vec::new(),
            begins_early: false,
            sent_after: Duration::ZERO,
            one_ending: true,
            look_backs: &(),
        }
    }

    pub fn deliver(&self, mail: &Message, destinations: &[Destination]) -> Ended {
        self.delivery().run(mail, destinations)
    }

    pub fn expire_leases(&self) {
        self.ledger.advance(2 * LEASE.lease);
    }

    /// The ledger's calls of a delivery of one copy that is not in doubt: no turn where no
    /// other can join a lease.
    pub fn calls(&self) -> &'static [&'static str] {
        if self.store.append_is_idempotent() { TURN_TAKEN } else { NO_TURN }
    }

    /// The same, of a delivery in doubt.
    pub fn calls_in_doubt(&self) -> &'static [&'static str] {
        if self.store.append_is_idempotent() { TURN_TAKEN } else { LOOKED_FOR }
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
            oldest: None,
            fields: None,
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
        match fault {
            // One without a ledger asks for it until its time is over, also where it waits.
            LedgerFault::LostForGood => Delivery { deadline: jumping(), ..self },
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
        // Whoever it waits for goes by this clock.
        let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(20));
        Delivery { wait, deadline, ..self }
    }

    /// Each recipient has an ending of its own.
    pub fn by_recipient(self) -> Delivery {
        Delivery { one_ending: false, ..self }
    }

    pub fn looking_back_in(self, look_backs: &'static dyn LookBacks) -> Delivery {
        Delivery { look_backs, ..self }
    }

    /// The shared copy is left to `onedrop settle` for that time.
    pub fn leaving_sent(self, sent_after: Duration) -> Delivery {
        Delivery { sent_after, ..self }
    }

    /// Runs `onedrop settle` in place of a delivery.
    pub fn settle(self) -> Settled {
        self.settle_as(true)
    }

    /// Whenever the last look at what is watched was, the next one comes now.
    pub fn settle_as(self, repair: bool) -> Settled {
        self.ledger.let_looks_come();
        self.settle_by_schedule(repair)
    }

    pub fn settle_by_schedule(self, repair: bool) -> Settled {
        self.settle_where(repair, &|_| Ok(()))
    }

    /// Where copies may be written as this says.
    pub fn settle_where(
        self,
        repair: bool,
        may_write: &(dyn Fn(Instant) -> Result<(), Failure> + Sync),
    ) -> Settled {
        let by = attempt("settler");
        let clock = Arc::clone(self.deadline.clock());
        let task = VerifyTask {
            window: Window { since: UNIX_EPOCH, all: true },
            account: None,
            behind: None,
            parallel: 1,
            repair,
            lease: LEASE.lease,
            time: (Duration::from_secs(60), Duration::from_secs(20)),
            clock: &clock,
            by: &by,
            may_write,
        };
        let (mut findings, mut failed) = (Vec::new(), Vec::new());
        let mut tell = |news: News| match news {
            News::Found(finding) => findings.push(finding),
            News::Failed { destination, why } => failed.push(format!("{destination}: {why}")),
            News::Progress { .. } | News::Passed { .. } => {}
        };
        let run = || verify::settle(&task, &*self.ledger, &self.store, &mut tell);
        let tally = catch_unwind(AssertUnwindSafe(run)).ok().and_then(Result::ok);
        let tally = tally.filter(|_| !self.script.state().is_dead);
        let state = self.script.state();
        Settled {
            findings,
            failed,
            tally,
            ledger_calls: state.ledger_calls.clone(),
            store_calls: state.store_calls.clone(),
        }
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
        let mut own: Vec<Option<Destination>> = destinations
            .iter()
            .filter(|destination| !destination.shared)
            .map(|destination| Some(destination.clone()))
            .collect();
        if own.is_empty() {
            own.push(Some(Destination::inbox("doug")));
        }
        own.splice(0..0, self.strangers.iter().map(|_| None));
        let known = own.iter().flatten().map(|to| match to.mailbox.as_str() {
            "INBOX" => format!("{}@x", to.account),
            mailbox => format!("{}+{mailbox}@x", to.account),
        });
        let envelope = Envelope {
            sender: "lisa@gmail.com".to_owned(),
            recipients: self.strangers.iter().map(ToString::to_string).chain(known).collect(),
            queue_id: "4Xyz12".to_owned(),
            ..Envelope::default()
        };
        let job = DeliveryRequest {
            message: mail,
            envelope: &envelope,
            own: &own,
            destinations,
            heads: &[],
            host: "mx1",
            started: self.deadline.now(),
            oldest: message::sent_at(mail),
            one_ending: self.one_ending,
        };
        let policy = Policy {
            lease: LEASE.lease,
            wait: self.wait,
            sent_after: self.sent_after,
            keep_raw: false,
            over_quota: self.over_quota,
            unknown_account: self.unknown_account,
            begins_early: self.begins_early,
            keeps_sessions: false,
            side_by_side: 1,
        };
        let means = Means {
            policy: &policy,
            ledger: &*self.ledger,
            store: &self.store,
            deadline: &self.deadline,
            watch: &*self.script,
            look_backs: self.look_backs,
        };
        let endings = catch_unwind(AssertUnwindSafe(|| deliver::deliver(&job, means)));
        let endings = endings.ok().filter(|_| !self.script.state().is_dead).unwrap_or_else(|| {
            let crashed = Failure::Internal("told to crash".to_owned());
            vec![Ending::of(crashed.outcome())]
        });
        let collision = endings[0].collision;
        let outcome = Outcome::worst(endings.iter().map(|ending| ending.outcome.clone()));
        let mut state = self.script.state();
        Ended {
            outcome,
            collision,
            destinations: destinations.to_vec(),
            endings,
            placed: std::mem::take(&mut state.placed),
            watched: std::mem::take(&mut state.watched),
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
