//! The hosts, what they share, and Postfix on them: it starts deliveries, and again those that
//! failed. Every call of a port goes through a [`Seat`], which lets time pass and faults happen.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use onedrop::clock::Clock;
use onedrop::deadline::Deadline;
use onedrop::deliver::guard::GuardOnRecord;
use onedrop::deliver::{self, DeliveryRequest, Ending, Means, Policy};
use onedrop::directory::Destination;
use onedrop::envelope::Envelope;
use onedrop::hook::{Call, Hook};
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::{
    AnyLedger, Attempt, Audit, Entry, LeaseTerms, Ledger, LedgerError, Proofs, Window,
};
use onedrop::message::{self, DedupBy, Facts, Message};
use onedrop::outcome::{Outcome, OverQuota, UnknownAccount};
use onedrop::store::memory::{MemoryStore, Stored};
use onedrop::store::{AnyStore, Receipt, StoreError};
use onedrop::verify::{self, Tally};

use crate::chance::Chance;
use crate::plan::{ANSWER, Act, DEADLINE, Fault, Kind, LEASE, Plan, SLACK, Without};
use crate::scheduler::{Pool, ProcessClock, Scheduler, lock};
use crate::service;
use crate::without::{DeliverysLedger, DeliverysStore};

/// So often a message may be deferred before something is wrong.
const TRIES: usize = 40;

/// The message, as it reaches one recipient alone, and as it reaches several.
pub struct Mail {
    pub alone: Vec<Message>,
    pub together: Message,
    pub facts: Facts,
    /// The form that the author's mail program saves: with fields that the sent one has not.
    pub saved: Vec<u8>,
}

pub static MAIL: LazyLock<Mail> = LazyLock::new(|| {
    let body = "Message-ID: <one@example.org>\r\nFrom: lisa@gmail.com\r\n\
                Date: Tue, 14 Nov 2023 22:00:00 +0000\r\nSubject: once\r\n\r\nHello\r\n";
    let message = |text: String| Message::new(text.into_bytes(), DedupBy::Content);
    let alone = (0..3).map(|recipient| message(head(recipient) + body)).collect();
    let together = message(body.to_owned());
    let saved = [b"Bcc: boss@x\r\nContent-Language: en\r\n", together.own_copy()].concat();
    Mail { alone, facts: together.facts(), together, saved }
});

/// What stands before a recipient's own copy.
pub fn head(recipient: usize) -> String {
    format!("Return-Path: <lisa@gmail.com>\r\nDelivered-To: r{recipient}@mail.axial.net\r\n")
}

/// What happens in a run, and what is known of it.
pub struct World {
    pub plan: Plan,
    pub scheduler: Arc<Scheduler>,
    pub ledger: MemoryLedger,
    pub store: MemoryStore,
    pub known: Mutex<Known>,
    pub is_told: bool,
}

#[derive(Default)]
pub struct Known {
    faults: usize,
    tries: usize,
    /// What owners took away, by account.
    pub taken: BTreeMap<String, Vec<Stored>>,
    /// What must not be.
    pub wrong: Vec<String>,
    /// How often what happened.
    pub seen: BTreeMap<&'static str, usize>,
    /// All that happened, as text.
    pub steps: Vec<String>,
}

impl World {
    pub fn new(plan: Plan, pool: &Arc<Pool>, chance: Chance, is_told: bool) -> Arc<World> {
        let scheduler = Scheduler::new(pool, chance);
        let clock = ProcessClock { scheduler: Arc::clone(&scheduler), process: None };
        let known = Known { faults: plan.faults, ..Known::default() };
        Arc::new(World {
            ledger: match plan.kind == Kind::OneHost && plan.without != Some(Without::BootClock) {
                true => MemoryLedger::on_one_host(Arc::new(clock)),
                false => MemoryLedger::by(Arc::new(clock)),
            },
            store: match (plan.maildir, plan.server) {
                (true, _) => MemoryStore::idempotent(),
                (false, Some(filters)) => MemoryStore::handing_over(filters),
                (false, None) => MemoryStore::default(),
            },
            plan,
            scheduler,
            known: Mutex::new(known),
            is_told,
        })
    }

    /// Lets everything happen that the plan has, until nothing is left to do.
    pub fn run(self: &Arc<Self>) {
        if self.plan.server.is_some_and(|server| server.has_guard) {
            let remembers = Duration::from_secs(6 * 24 * 3600);
            let guard = GuardOnRecord { remembers, since: UNIX_EPOCH };
            let (way, until) = (guard.way("memory".to_owned()), Instant::now());
            self.ledger.note_proof(&way, true, "test", until).expect("a proof");
        }
        if self.plan.begins_in_doubt {
            self.begin_in_doubt();
        }
        if self.plan.server.is_some() {
            self.put_equal_ones();
        }
        for (at, by) in self.plan.steps.clone() {
            self.at(at, move |world| world.step(by));
        }
        if let Some(at) = self.plan.saves {
            self.at(at, |world| world.save());
        }
        for at in self.plan.settles.clone() {
            self.at(at, |world| world.start_settle());
        }
        for (at, mailbox, is_made) in self.plan.makes.clone() {
            self.at(at, move |world| world.make(mailbox, is_made));
        }
        for at in self.plan.restarts.clone() {
            self.at(at, |world| world.restart());
        }
        for at in self.plan.ledger_crashes.clone() {
            self.at(at, |world| world.crash_ledger());
        }
        for (at, mailbox, act) in self.plan.acts.clone() {
            self.at(at, move |world| world.act(mailbox, act));
        }
        for (at, repair) in self.plan.verifies.clone() {
            self.at(at, move |world| world.start_verify(repair));
        }
        for queued in self.plan.queued.clone() {
            self.at(queued.at, move |world| world.start(queued.recipients));
        }
        let panics = self.scheduler.drive();
        lock(&self.known).wrong.extend(panics);
    }

    pub fn at(self: &Arc<Self>, when: Duration, event: impl FnOnce(&Arc<World>) + Send + 'static) {
        let world = Arc::clone(self);
        self.scheduler.at(when, move || event(&world));
    }

    pub fn tell(&self, step: impl FnOnce() -> String) {
        if self.is_told {
            let now = self.scheduler.now().as_secs_f64();
            lock(&self.known).steps.push(format!("{now:10.3} {}", step()));
        }
    }

    pub fn see(&self, what: &'static str) {
        *lock(&self.known).seen.entry(what).or_default() += 1;
    }

    pub fn has_seen(&self, what: &str) -> bool {
        lock(&self.known).seen.contains_key(what)
    }

    pub fn wrong(&self, what: impl Display) {
        self.tell(|| format!("WRONG: {what}"));
        lock(&self.known).wrong.push(what.to_string());
    }

    /// The mailboxes by their numbers: the recipients', and then the author's.
    pub fn destination(&self, number: usize) -> Destination {
        match self.plan.filed.get(number) {
            _ if number >= self.plan.recipients => Destination::sent("lisa", "Sent"),
            Some(mailbox) => {
                Destination { mailbox: (*mailbox).to_owned(), ..Destination::inbox("r0") }
            }
            None => Destination::inbox(&format!("r{number}")),
        }
    }

    /// The recipients' mailboxes, each once.
    fn own(&self, recipients: impl IntoIterator<Item = usize>) -> Vec<(usize, Destination)> {
        let mut own: Vec<(usize, Destination)> = Vec::new();
        for recipient in recipients {
            let one = self.destination(recipient);
            if own.iter().all(|(_, other)| !other.is_same_mailbox(&one)) {
                own.push((recipient, one));
            }
        }
        own
    }

    pub fn destinations(&self) -> Vec<Destination> {
        let own = self.own(0..self.plan.recipients).into_iter().map(|(_, own)| own);
        let inbox = Destination::inbox("r0");
        let falls_back = !self.plan.filed.is_empty() && !self.plan.filed.contains(&"INBOX");
        let sent = self.plan.has_sent.then(|| self.destination(self.plan.recipients));
        own.chain(falls_back.then_some(inbox)).chain(sent).collect()
    }

    /// The owner makes a mailbox, or deletes it.
    fn make(&self, mailbox: &str, is_made: bool) {
        self.tell(|| format!("the owner makes {mailbox}: {is_made}"));
        if is_made {
            return self.store.make_mailbox("r0", mailbox);
        }
        let mut known = lock(&self.known);
        let taken = known.taken.entry("r0".to_owned()).or_default();
        taken.extend(self.store.copies("r0", mailbox));
        self.store.delete_mailbox("r0", mailbox);
    }

    /// The sender's own, and one that a colleague has sent on: equal to what is delivered.
    fn put_equal_ones(&self) {
        let equal = MAIL.together.own_copy();
        let foreign = [b"X-Onedrop-Copy: 00112233445566778899aabbccddeeff\r\n", equal].concat();
        let date = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        for recipient in 0..self.plan.recipients {
            let account = self.destination(recipient).account;
            self.store.save(&account, "Sent", equal, date);
            self.store.save(&account, "Colleagues", &foreign, date);
        }
    }

    /// More copies than may be at any time, or deliveries of the server's own.
    fn has_two(&self, destination: &Destination) -> bool {
        if let Some(filters) = self.plan.server.filter(|_| !destination.shared) {
            return self.store.carried_out(&destination.account) > filters.most();
        }
        let count = |mailbox: &str| self.store.copies("r0", mailbox).len();
        let filed = &self.plan.filed;
        let meant = filed.first().filter(|first| filed.iter().all(|one| one == *first));
        let is_beside = |meant: &&str| *meant != "INBOX" && count(meant) + count("INBOX") > 1;
        self.standing(destination).len() > 1 || meant.is_some_and(is_beside)
    }

    fn step(&self, secs: i64) {
        self.tell(|| format!("the ledger's clock steps by {secs} s"));
        let by = Duration::from_secs(secs.unsigned_abs());
        if secs > 0 { self.ledger.advance(by) } else { self.ledger.set_back(by) }
    }

    /// The ledger's server crashes, and is there again at once.
    fn crash_ledger(&self) {
        let lost = self.ledger.crash();
        self.tell(|| format!("the ledger's server CRASHES, and loses {lost} receipts"));
        if lost > 0 {
            self.see("a receipt is lost");
        }
    }

    /// The host loses its power, with all of its processes. The mail server is another machine.
    fn restart(&self) {
        self.tell(|| "the host RESTARTS".to_owned());
        self.see("a restart");
        self.crash_ledger();
        self.scheduler.crash_all();
        match self.plan.without {
            Some(Without::LeaseAfterRestart) => self.ledger.end_leases(),
            _ => self.ledger.restart(),
        }
    }

    /// Leaves the copies like a delivery that crashed after its record.
    fn begin_in_doubt(&self) {
        let entry = Entry {
            identity: MAIL.together.identity(),
            facts: &MAIL.facts,
            size_bytes: MAIL.together.own_copy().len() as u64,
            raw: None,
            nul_runs: None,
            at: None,
            oldest: None,
            fields: None,
        };
        let terms = LeaseTerms { lease: LEASE, join: false, due: false };
        let (crashed, soon) = (Attempt::default(), self.clock(None).now());
        let recorded = self.ledger.record(&entry, &crashed, &self.destinations(), terms, soon);
        recorded.expect("a record");
        self.ledger.advance(LEASE * 2);
    }

    // Postfix.

    /// A process for some recipients.
    fn start(self: &Arc<Self>, recipients: Vec<usize>) {
        let world = Arc::clone(self);
        self.scheduler.spawn(move |process| {
            let name = format!("delivery {process} to {recipients:?}");
            world.tell(|| format!("{name} begins"));
            let seat = Seat::new(&world, process);
            let mut ended = Ended { world: Arc::clone(&world), name, recipients, endings: None };
            ended.endings = Some(seat.deliver(&ended.recipients));
        });
    }

    /// Those that were not delivered come again, on any host.
    fn ended(self: &Arc<Self>, name: &str, recipients: &[usize], endings: Option<Vec<Ending>>) {
        let mut again = Vec::new();
        for (at, recipient) in recipients.iter().enumerate() {
            let outcome = endings.as_ref().map(|endings| &endings[at].outcome);
            self.tell(|| format!("{name}: {recipient} {outcome:?}"));
            match outcome {
                Some(outcome @ Outcome::Delivered(_)) => {
                    let text = outcome.text();
                    if text.contains("instead_of=") {
                        self.see("a copy goes to INBOX");
                    }
                    if text.contains("found ") {
                        self.see("found by a look");
                    }
                    self.assert_delivered(*recipient);
                    // Postfix may lose what it heard.
                    if self.scheduler.chance().percent(5) {
                        again.push(*recipient);
                    }
                }
                Some(Outcome::PermFail(_, text)) => self.wrong(format!("returned: {text}")),
                Some(Outcome::TempFail(..)) | None => again.push(*recipient),
            }
        }
        if again.is_empty() {
            return;
        }
        let tries = {
            let mut known = lock(&self.known);
            known.tries += 1;
            known.tries
        };
        if tries > TRIES {
            return self.wrong("deferred again and again");
        }
        if self.plan.is_listed {
            // One after the other: what matters is how the first two met.
            let at = self.scheduler.now() + LEASE * 4 * tries as u32;
            return self.at(at, move |world| world.start(again));
        }
        let mut chance = self.scheduler.chance();
        // Its first retry comes after 300 s; an administrator may be impatient.
        let after = match chance.percent(if self.plan.kind == Kind::Frozen { 80 } else { 30 }) {
            true => chance.between(0, 120),
            false => chance.between(300, 900),
        };
        drop(chance);
        let at = self.scheduler.now() + Duration::from_secs(after);
        self.at(at, move |world| world.start(again));
    }

    /// No recipient's delivery succeeds without a copy, or the bytes of a shared one on record.
    fn assert_delivered(&self, recipient: usize) {
        let own = self.destination(recipient);
        let stand_in = own.stand_in();
        let in_inbox = stand_in.is_some_and(|inbox| !self.standing(&inbox).is_empty());
        let is_handed = self.store.carried_out(&own.account) > 0;
        let is_there = is_handed || in_inbox || !self.standing(&own).is_empty();
        if !is_there && self.taken(&own).is_empty() {
            self.wrong(format!("delivered without a copy in {own}"));
        }
        let sent = self.destination(self.plan.recipients);
        if self.plan.has_sent
            && self.standing(&sent).is_empty()
            && self.taken(&sent).is_empty()
            && self.kept().as_deref() != Some(MAIL.together.shared_copy())
        {
            self.wrong(format!("delivered without a copy in {sent}, nor kept"));
        }
    }

    pub fn standing(&self, destination: &Destination) -> Vec<Stored> {
        if let Some(filters) = self.plan.server.filter(|_| !destination.shared) {
            let copies = |mailbox| self.store.copies(&destination.account, mailbox);
            return filters.files_into.map_or(Vec::new(), copies);
        }
        self.store.copies(&destination.account, &destination.mailbox)
    }

    pub fn taken(&self, destination: &Destination) -> Vec<Stored> {
        lock(&self.known).taken.get(&destination.account).cloned().unwrap_or_default()
    }

    pub fn kept(&self) -> Option<Vec<u8>> {
        let (sent, soon) = (self.destination(self.plan.recipients), self.clock(None).now());
        let all = Window { since: UNIX_EPOCH, all: true };
        let rows = self.ledger.copies_to_verify(&all, &sent.account, None, 1, soon).ok()?;
        self.ledger.kept_bytes(rows.first()?.message, soon).ok().flatten()
    }

    pub fn clock(&self, process: Option<usize>) -> Arc<dyn Clock> {
        Arc::new(ProcessClock { scheduler: Arc::clone(&self.scheduler), process })
    }

    // The owner of a mailbox.

    fn act(&self, mailbox: usize, act: Act) {
        let destination = self.destination(mailbox);
        let soon = self.clock(None).now();
        // What is in doubt and gone is written again: the promise is about copies on record, and a
        // receipt is on the ledger's disk within a second.
        self.ledger.sync();
        let on_record = self.ledger.latest_copies(100, soon).unwrap_or_default();
        let is_on_record = |stored: &Stored| {
            !self.plan.kind.is_inside()
                || on_record.iter().any(|(at, receipt)| {
                    at.is_same_mailbox(&destination) && self.is_named(stored, receipt)
                })
        };
        let mut taken = Vec::new();
        let mut what = None;
        self.store.meddle(&destination.account, &destination.mailbox, |mailbox| {
            let Some(at) = mailbox.iter().rposition(|one| act == Act::Reads || is_on_record(one))
            else {
                return;
            };
            what = Some(mailbox[at].uid);
            match act {
                Act::Reads => {
                    mailbox[at].renamed = true;
                    mailbox[at].seen = true;
                }
                Act::Takes => taken.push(mailbox.remove(at)),
                Act::Marks => mailbox[at].marked_deleted = true,
            }
        });
        self.tell(|| format!("the owner of {destination}: {act:?} {what:?}"));
        lock(&self.known).taken.entry(destination.account).or_default().extend(taken);
    }

    /// What is marked is taken out, in the end.
    pub fn expunge(&self) {
        for destination in self.destinations() {
            let mut taken = Vec::new();
            self.store.meddle(&destination.account, &destination.mailbox, |mailbox| {
                taken = mailbox.extract_if(.., |stored| stored.marked_deleted).collect();
            });
            lock(&self.known).taken.entry(destination.account).or_default().extend(taken);
        }
    }

    pub fn is_named(&self, stored: &Stored, receipt: &Receipt) -> bool {
        self.store.receipt(stored) == *receipt
    }

    // Verify.

    fn start_verify(self: &Arc<Self>, repair: bool) {
        let world = Arc::clone(self);
        self.scheduler.spawn(move |process| {
            world.tell(|| format!("verify {process} begins, repair: {repair}"));
            let seat = Seat::new(&world, process);
            let (ledger, store) = seat.adapters();
            let tally = world.verify(Some(process), repair, &*ledger, &store);
            world.tell(|| format!("verify {process}: {tally:?}"));
        });
    }

    /// The author's mail program saves its own copy, of which the date is its own, too.
    fn save(&self) {
        let sent = self.destination(self.plan.recipients);
        self.tell(|| format!("the mail program saves its copy in {sent}"));
        self.see("save");
        let date = UNIX_EPOCH + Duration::from_secs(1_700_100_000) + self.scheduler.now();
        self.store.save(&sent.account, &sent.mailbox, &MAIL.saved, date);
    }

    fn start_settle(self: &Arc<Self>) {
        let world = Arc::clone(self);
        self.scheduler.spawn(move |process| {
            world.tell(|| format!("settle {process} begins"));
            let seat = Seat::new(&world, process);
            let (ledger, store) = seat.adapters();
            let tally = world.settle(Some(process), &*ledger, &store);
            world.tell(|| format!("settle {process}: {tally:?}"));
        });
    }

    /// A run of `onedrop settle`.
    pub fn settle(
        &self,
        process: Option<usize>,
        ledger: &dyn AnyLedger,
        store: &dyn AnyStore,
    ) -> Result<Tally, LedgerError> {
        self.audit(process, true, |task, tell| verify::settle(task, ledger, store, tell))
    }

    /// A run over all there is.
    pub fn verify(
        &self,
        process: Option<usize>,
        repair: bool,
        ledger: &dyn AnyLedger,
        store: &dyn AnyStore,
    ) -> Result<Tally, LedgerError> {
        self.audit(process, repair, |task, tell| verify::verify(task, ledger, store, tell))
    }

    fn audit(
        &self,
        process: Option<usize>,
        repair: bool,
        run: impl FnOnce(
            &verify::VerifyTask<'_>,
            &mut (dyn FnMut(verify::News) + Send),
        ) -> Result<Tally, LedgerError>,
    ) -> Result<Tally, LedgerError> {
        let by = Attempt { host: "admin".to_owned(), ..Attempt::default() };
        let task = verify::VerifyTask {
            window: Window { since: UNIX_EPOCH, all: true },
            account: None,
            behind: None,
            parallel: 1,
            repair,
            lease: LEASE,
            time: (DEADLINE, ANSWER),
            clock: &self.clock(process),
            by: &by,
            may_write: &|_| Ok(()),
        };
        run(&task, &mut |news| {
            self.tell(|| match news {
                verify::News::Found(finding) => {
                    format!("audit: {:?} {}", finding.level, finding.text)
                }
                verify::News::Failed { why, .. } => format!("audit: failed: {why}"),
                verify::News::Progress { account, .. } | verify::News::Passed { account } => {
                    format!("audit: {account}")
                }
            });
        })
    }
}

/// Reports to Postfix how a process ended, however it did.
struct Ended {
    world: Arc<World>,
    name: String,
    recipients: Vec<usize>,
    endings: Option<Vec<Ending>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.world.ended(&self.name, &self.recipients, self.endings.take());
    }
}

/// A process and what it calls.
pub struct Seat {
    world: Arc<World>,
    process: usize,
    ledger: OnceLock<Arc<MemoryLedger>>,
    /// How many of its threads are between their check of the clock and their last bytes.
    writing: AtomicUsize,
    /// Until when the ledger is out of its reach.
    away_until: Mutex<Duration>,
}

/// Last bytes that go out, or else with their process.
struct Unsent<'a> {
    store: &'a MemoryStore,
    number: u64,
    is_sent: &'a Cell<bool>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if !self.is_sent.get() {
            self.store.lose(self.number);
        }
    }
}

/// What becomes of a call.
enum Fate {
    GoesOn,
    /// It fails, or its answer is lost.
    Fails,
}

impl Seat {
    fn new(world: &Arc<World>, process: usize) -> Arc<Seat> {
        let (world, writing) = (Arc::clone(world), AtomicUsize::new(0));
        let (ledger, away_until) = (OnceLock::new(), Mutex::default());
        Arc::new(Seat { world, process, ledger, writing, away_until })
    }

    /// Ledger and store as this process sees them.
    fn adapters(self: &Arc<Self>) -> (Arc<MemoryLedger>, MemoryStore) {
        let ledger = self.world.ledger.with_hook(Arc::clone(self) as Arc<dyn Hook<LedgerError>>);
        // A clone would be a session of its own.
        let ledger = Arc::clone(self.ledger.get_or_init(|| Arc::new(ledger)));
        let store = self.world.store.with_hook(Arc::clone(self) as Arc<dyn Hook<StoreError>>);
        (ledger, store)
    }

    /// The delivery itself.
    fn deliver(self: &Arc<Self>, recipients: &[usize]) -> Vec<Ending> {
        let (world, plan) = (&self.world, &self.world.plan);
        let (ledger, store) = self.adapters();
        let meant = world.own(recipients.iter().copied());
        let mut destinations: Vec<Destination> =
            meant.iter().map(|(_, destination)| destination.clone()).collect();
        if plan.has_sent {
            destinations.push(world.destination(plan.recipients));
        }
        let is_alone = recipients.len() == 1;
        let heads: Vec<Vec<u8>> = match is_alone {
            true => Vec::new(),
            false => meant.iter().map(|(recipient, _)| head(*recipient).into_bytes()).collect(),
        };
        let envelope = Envelope {
            sender: "lisa@gmail.com".to_owned(),
            recipients: recipients.iter().map(|to| format!("r{to}@mail.axial.net")).collect(),
            ..Envelope::default()
        };
        let own: Vec<Option<Destination>> =
            recipients.iter().map(|to| Some(world.destination(*to))).collect();
        let without = plan.without;
        let total = match without {
            Some(Without::ClockCheck) => Duration::from_secs(1_000_000),
            _ => DEADLINE,
        };
        let deadline = Deadline::by(world.clock(Some(self.process)), total, ANSWER);
        let message = if is_alone { &MAIL.alone[recipients[0]] } else { &MAIL.together };
        if plan.has_door {
            return service::deliver(plan, message, &envelope, ledger, store, &deadline);
        }
        let request = DeliveryRequest {
            message,
            envelope: &envelope,
            own: &own,
            destinations: &destinations,
            heads: &heads,
            host: &format!("mx{}", self.process as u64 % plan.hosts),
            started: deadline.now(),
            oldest: message::sent_at(message),
            one_ending: is_alone,
        };
        let policy = Policy {
            lease: if without == Some(Without::Lease) { Duration::ZERO } else { LEASE },
            wait: plan.wait,
            keep_raw: false,
            sent_after: plan.sent_after,
            over_quota: OverQuota::Defer,
            unknown_account: UnknownAccount::Reject,
            side_by_side: if is_alone { 1 } else { 3 },
            begins_early: plan.begins_early,
            keeps_sessions: true,
        };
        let means = Means {
            policy: &policy,
            ledger: &DeliverysLedger {
                without,
                calls_again: plan.calls_again,
                ledger,
                all: world.ledger.clone(),
            },
            store: &DeliverysStore { without, store },
            deadline: &deadline,
            watch: &(),
            look_backs: &(),
        };
        deliver::deliver(&request, means)
    }

    fn tell(&self, call: &Call<'_>, what: impl Display) {
        let mailbox = || call.destination.map_or(String::new(), |to| format!(" {to}"));
        self.world.tell(|| format!("  {}: {}{} {what}", self.process, call.name, mailbox()));
    }

    /// One of these faults, if it is time for one. There are more around an append.
    fn fault(&self, call: &Call<'_>, of: &[Fault]) -> Option<Fault> {
        let plan = &self.world.plan;
        let often = if call.name == "append" { plan.often * 3 } else { plan.often };
        let may: Vec<Fault> = of.iter().copied().filter(|one| plan.kinds.contains(one)).collect();
        let mut known = lock(&self.world.known);
        let mut chance = self.world.scheduler.chance();
        if known.faults == 0 || may.is_empty() {
            return None;
        }
        let fault = match plan.is_listed {
            true => may.get(chance.pick(may.len() + 1)).copied(),
            false => chance.percent(often).then(|| may[chance.pick(may.len())]),
        };
        known.faults -= usize::from(fault.is_some());
        fault
    }

    /// A call takes a moment.
    fn pause(&self) {
        let micros = self.world.scheduler.chance().between(0, self.world.plan.latency);
        self.world.scheduler.pause(Duration::from_micros(micros));
    }

    fn crash(&self, call: &Call<'_>, when: &str) {
        self.tell(call, format_args!("CRASHES {when}"));
        self.world.see("a crash");
        self.world.scheduler.crash(self.process);
        self.world.scheduler.go_on_or_unwind(self.process);
    }

    /// At most for `most`, of a thread that is about to write.
    fn freeze(&self, call: &Call<'_>, fault: Fault, most: Option<Duration>) {
        let longest = most.unwrap_or(Duration::MAX);
        let secs = {
            let mut chance = self.world.scheduler.chance();
            match self.world.plan.is_listed {
                true => longest.min(LEASE * 2).as_secs(),
                false => {
                    let most = [20, 100, 400][chance.pick(3)].min(longest.as_secs());
                    chance.between(0, most + 1)
                }
            }
        };
        let time = Duration::from_secs(secs);
        self.tell(call, format_args!("{fault:?} for {secs} s"));
        // The others freeze with it, but for one that is about to write: that has a bound.
        if self.writing.load(Ordering::Relaxed) == usize::from(most.is_some()) {
            self.world.scheduler.freeze(self.process, time, fault == Fault::Suspend);
        }
        self.world.scheduler.pause(time);
    }

    fn lose_session(&self, call: &Call<'_>) {
        self.tell(call, "the session is lost");
        if let Some(ledger) = self.ledger.get() {
            ledger.lose_session();
        }
    }

    /// Whether the process still lives; unwinds where it does not and may.
    fn lives(&self) -> bool {
        self.world.scheduler.go_on_or_unwind(self.process)
    }

    fn before(&self, call: &Call<'_>) -> Fate {
        if !self.lives() {
            return Fate::Fails;
        }
        self.pause();
        let is_ledgers = call.destination.is_none();
        if is_ledgers && self.world.scheduler.now() < *lock(&self.away_until) {
            return Fate::Fails;
        }
        let of = [
            Fault::Crash,
            Fault::LostSession,
            Fault::Fails,
            Fault::Freeze,
            Fault::Suspend,
            Fault::Outage,
        ];
        match self.fault(call, if is_ledgers { &of } else { &of[..5] }) {
            Some(Fault::Crash) => {
                self.crash(call, "before");
                return Fate::Fails;
            }
            Some(Fault::Fails) => {
                self.tell(call, "FAILS");
                return Fate::Fails;
            }
            Some(Fault::Outage) => {
                let secs = self.world.scheduler.chance().between(100, 200);
                self.tell(call, format_args!("the ledger is out of reach for {secs} s"));
                self.world.see("an outage");
                self.lose_session(call);
                *lock(&self.away_until) = self.world.scheduler.now() + Duration::from_secs(secs);
                return Fate::Fails;
            }
            Some(Fault::LostSession) => self.lose_session(call),
            Some(fault) => self.freeze(call, fault, None),
            None => {}
        }
        self.tell(call, "");
        self.world.see(call.name);
        Fate::GoesOn
    }

    fn after(&self, call: &Call<'_>) -> Fate {
        match self.fault(call, &[Fault::Crash, Fault::LostAnswer]) {
            Some(Fault::Crash) => {
                self.crash(call, "after");
                Fate::Fails
            }
            Some(_) => {
                self.tell(call, "the answer is LOST");
                Fate::Fails
            }
            None => Fate::GoesOn,
        }
    }

    /// The last bytes of an append.
    fn last_bytes(&self, call: &Call<'_>) -> Fate {
        let (world, scheduler) = (&self.world, &self.world.scheduler);
        let is_shared = call.destination.is_some_and(|destination| destination.shared);
        let slack = match world.plan.maildir {
            // The process itself does it, and the lock is its own: it may be frozen for ever.
            true => Duration::MAX,
            // No guard drops a late one of these.
            false if world.plan.server.is_some() && is_shared => SLACK,
            false => world.plan.slack,
        };
        let began = scheduler.now();
        // Of those that are on their way, the one that was sent just now; later there may be
        // others.
        let Some(number) = world.store.under_way().last().copied() else { return Fate::GoesOn };
        let is_sent = Cell::new(world.plan.maildir);
        let _unsent = Unsent { store: &world.store, number, is_sent: &is_sent };
        self.writing.fetch_add(1, Ordering::Relaxed);
        let of = [Fault::Crash, Fault::Freeze, Fault::Suspend, Fault::LostSession];
        // A session may be lost, and its process frozen then.
        while let Some(fault) = self.fault(call, &of) {
            let left = slack.saturating_sub(scheduler.now() - began);
            match fault {
                Fault::Crash => {
                    // Its last bytes may have gone out, and the server then goes on without it.
                    if !is_sent.replace(true) {
                        self.send(call, number, left, true);
                    }
                    self.crash(call, "in the midst");
                    return Fate::Fails;
                }
                Fault::LostSession => self.lose_session(call),
                fault => self.freeze(call, fault, Some(left)),
            }
        }
        self.writing.fetch_sub(1, Ordering::Relaxed);
        if world.plan.maildir {
            return Fate::GoesOn;
        }
        let frozen = scheduler.now() - began;
        let fault = self.fault(call, &[Fault::LateAppend]);
        is_sent.set(true);
        let Some(lag) = self.send(call, number, slack.saturating_sub(frozen), fault.is_some())
        else {
            // The connection is gone with the append.
            self.tell(call, "the server is gone");
            return Fate::Fails;
        };
        scheduler.pause(lag.min(ANSWER));
        if !self.lives() {
            return Fate::Fails;
        }
        match lag > ANSWER {
            true => {
                self.tell(call, "no answer in time");
                Fate::Fails
            }
            false => Fate::GoesOn,
        }
    }

    /// The server has the append, and executes it some time, or never.
    fn send(
        &self,
        call: &Call<'_>,
        number: u64,
        most: Duration,
        is_late: bool,
    ) -> Option<Duration> {
        let (lag, never) = {
            let mut chance = self.world.scheduler.chance();
            let is_listed = self.world.plan.is_listed;
            let most = if is_late { most.as_micros() as u64 } else { self.world.plan.latency };
            match is_listed && is_late {
                true => (most, chance.pick(2) == 1),
                false => (chance.between(0, most + 1), is_late && chance.percent(30)),
            }
        };
        if never {
            self.world.store.lose(number);
            return None;
        }
        let lag = Duration::from_micros(lag).min(most);
        if is_late {
            self.tell(call, format_args!("the server will take {lag:?}"));
        }
        let process = self.process;
        let destination = call.destination.cloned();
        let is_saved = self.world.plan.saves.is_some()
            && destination.as_ref().is_some_and(|destination| destination.shared);
        self.world.at(self.world.scheduler.now() + lag, move |world| {
            if world.scheduler.is_dead(process) {
                world.see("an append outlives its sender");
            }
            world.tell(|| format!("  the server executes the append of {process}"));
            let carried_out =
                || destination.as_ref().map(|one| world.store.carried_out(&one.account));
            let before = carried_out().filter(|times| *times > 0);
            world.store.take_effect(number);
            if before.is_some() && before == carried_out() {
                world.see("the guard drops a copy");
            }
            if destination.is_some_and(|one| world.has_two(&one)) {
                world.see("two copies at a time");
                if world.plan.kind.is_inside() && !is_saved {
                    world.wrong("two copies at a time");
                }
            }
        });
        Some(lag)
    }
}

fn unavailable() -> LedgerError {
    LedgerError::Unavailable("lost".to_owned())
}

impl Hook<LedgerError> for Seat {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        match Seat::before(self, call) {
            Fate::GoesOn => Ok(()),
            Fate::Fails => Err(unavailable()),
        }
    }

    fn within(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        let is_slow = self.world.scheduler.chance().percent(30);
        if is_slow { Hook::<LedgerError>::before(self, call) } else { Ok(()) }
    }

    fn after(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        match Seat::after(self, call) {
            Fate::GoesOn => Ok(()),
            Fate::Fails => Err(unavailable()),
        }
    }
}

impl Hook<StoreError> for Seat {
    fn before(&self, call: &Call<'_>) -> Result<(), StoreError> {
        match Seat::before(self, call) {
            Fate::GoesOn => Ok(()),
            Fate::Fails => Err(StoreError::NotStored("out of reach".to_owned())),
        }
    }

    fn within(&self, call: &Call<'_>) -> Result<(), StoreError> {
        match self.last_bytes(call) {
            Fate::GoesOn => Ok(()),
            Fate::Fails => Err(StoreError::InDoubt("no answer".to_owned())),
        }
    }

    fn after(&self, call: &Call<'_>) -> Result<(), StoreError> {
        match Seat::after(self, call) {
            Fate::GoesOn => Ok(()),
            Fate::Fails => Err(StoreError::InDoubt("no answer".to_owned())),
        }
    }
}
