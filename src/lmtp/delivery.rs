//! One message for all its recipients: one record, then the copies side by side, each as soon as it
//! can be. A single copy is placed in the connection's own thread, which costs the least; with
//! several it only waits for news and answers. Should that thread hang, the server answers in its
//! place. A copy that ends later than that is on record, and the next try finds it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Zoned;

use super::lent::{LentLedger, LentStore};
use super::server::metrics::Metrics;
use super::service::Service;
use crate::deadline::Deadline;
use crate::deliver::{self, End, Failure, Job, Patience, Phases, Placed, note};
use crate::directory::Destination;
use crate::envelope::Envelope;
use crate::exit::panic_text;
use crate::ledger::{Attempt, Ledger, RandomValue, Recorded};
use crate::message::{Facts, Message, ReceivedClauses, trace_head};
use crate::outcome::{Outcome, OverQuota};

/// A delivery that ends by itself at its deadline gets this long to say so.
const SLACK: Duration = Duration::from_millis(500);

/// A message with its envelope, and what became of it.
pub struct Parcel {
    service: Arc<Service>,
    metrics: Arc<Metrics>,
    message: Message,
    facts: Facts,
    envelope: Envelope,
    /// The accounts of the envelope's recipients, in their order.
    accounts: Vec<String>,
    clauses: ReceivedClauses,
    received: Zoned,
    started: Instant,
    /// The same by the ledger's clock.
    at: SystemTime,
    deadline: Deadline,
    plan: OnceLock<Plan>,
    failed: OnceLock<Outcome>,
}

/// What is known once the message is on record.
struct Plan {
    recorded: Recorded,
    phases: Phases,
    copies: Vec<PlannedCopy>,
}

struct PlannedCopy {
    destination: Destination,
    /// The first recipient whose mailbox it is; none for a shared copy.
    recipient: Option<usize>,
    end: OnceLock<(End, Phases)>,
}

/// How the delivery to one recipient ended, and what it took.
pub struct Ending {
    pub outcome: Outcome,
    pub phases: Phases,
    pub collision: bool,
    /// The recipient's own copy, if it is placed.
    pub own: Option<Placed>,
}

/// What a parcel is made of.
pub struct Contents {
    pub message: Message,
    pub envelope: Envelope,
    pub accounts: Vec<String>,
    pub clauses: ReceivedClauses,
}

impl Parcel {
    pub fn new(service: Arc<Service>, metrics: Arc<Metrics>, contents: Contents) -> Parcel {
        let Contents { message, envelope, accounts, clauses } = contents;
        Parcel {
            facts: message.facts(),
            deadline: service.deadline(),
            started: Instant::now(),
            at: service.ledger_time(),
            received: Zoned::now(),
            plan: OnceLock::new(),
            failed: OnceLock::new(),
            service,
            metrics,
            message,
            envelope,
            accounts,
            clauses,
        }
    }

    pub fn message(&self) -> &Message {
        &self.message
    }

    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The account of a recipient.
    pub fn account(&self, recipient: usize) -> &str {
        &self.accounts[recipient]
    }

    /// When it must have ended.
    pub fn due(&self) -> Instant {
        self.deadline.end() + Duration::from_secs(self.service.config().limits.answer_secs) + SLACK
    }

    pub fn took(&self) -> Duration {
        self.started.elapsed()
    }

    /// How the delivery to a recipient ended; `None` as long as one of its copies has not.
    pub fn ending(&self, recipient: usize) -> Option<Ending> {
        if let Some(outcome) = self.failed.get() {
            return Some(Ending {
                outcome: outcome.clone(),
                phases: Phases::default(),
                collision: false,
                own: None,
            });
        }
        let plan = self.plan.get()?;
        let account = &self.accounts[recipient];
        let (mut ends, mut phases) = (Vec::new(), plan.phases);
        for copy in &plan.copies {
            if copy.destination.shared || copy.destination.account == *account {
                let (end, took) = copy.end.get()?;
                ends.push(end);
                phases += *took;
            }
        }
        let own = ends.first().and_then(|end| end.as_ref().ok().cloned()); // shared copies come after it
        let outcome = deliver::outcome(ends.into_iter(), self.service.policy.over_quota);
        Some(Ending { outcome, phases, collision: plan.recorded.collision, own })
    }

    /// Waits for news until the recipient's ending is known, and no longer than a delivery may
    /// take.
    pub fn wait_for(&self, recipient: usize, news: &Receiver<()>) -> Ending {
        loop {
            if let Some(ending) = self.ending(recipient) {
                return ending;
            }
            // Whoever sent its last bytes just in time may wait that long for the answer.
            let left = self.due().saturating_duration_since(Instant::now());
            if left.is_zero()
                || news.recv_timeout(left).is_err() && self.ending(recipient).is_none()
            {
                return Ending {
                    outcome: self.overdue(),
                    phases: Phases::default(),
                    collision: false,
                    own: None,
                };
            }
        }
    }

    /// What a client hears of a delivery that did not end when it was due.
    pub fn overdue(&self) -> Outcome {
        let secs = self.service.config().limits.deadline_secs;
        Failure::Deadline { secs, doing: "delivering".to_owned() }.outcome(OverQuota::Defer)
    }

    fn fail(&self, failure: &Failure) {
        // The first failure is the one that is told.
        let _ = self.failed.set(failure.outcome(self.service.policy.over_quota));
    }

    fn attempt(&self, recipient: usize) -> Attempt {
        Attempt {
            value: RandomValue::default(),
            recipient: self.envelope.recipients[recipient].to_lowercase(),
            sender: self.envelope.sender.clone(),
            queue_id: self.envelope.queue_id.clone(),
            host: self.service.host.clone(),
            pid: std::process::id(),
        }
    }

    fn job<'a>(
        &'a self,
        attempt: &'a Attempt,
        destinations: &'a [Destination],
        head: &'a [u8],
        is_part: bool,
    ) -> Job<'a> {
        let (message, facts, started, at) =
            (&self.message, &self.facts, self.started, Some(self.at));
        Job { message, head, facts, attempt, destinations, started, at, is_part }
    }

    /// What stands before the message in the copy of a recipient.
    fn head(&self, recipient: usize) -> Vec<u8> {
        match self.message.received().first() {
            // It would continue our last field, and be another message. Postfix begins with a field
            // of its own.
            Some(b' ' | b'\t') => Vec::new(),
            _ => {
                let (sender, address) =
                    (&self.envelope.sender, &self.envelope.recipients[recipient]);
                trace_head(sender, address, &self.clauses, &self.received)
            }
        }
    }

    /// The first recipient whose mailbox it is; none for a shared copy.
    fn recipient_of(&self, destination: &Destination) -> Option<usize> {
        self.accounts
            .iter()
            .position(|account| !destination.shared && *account == destination.account)
    }

    /// What is known once the message is on record; nothing when it could not be.
    fn recorded(&self, store: &mut LentStore<'_>) -> Option<&Plan> {
        match self.record(store) {
            Ok(plan) => {
                self.metrics
                    .count_record(plan.recorded.collision && plan.recorded.is_new, &plan.phases);
                Some(self.plan.get_or_init(|| plan))
            }
            Err(failure) => {
                self.fail(&failure);
                None
            }
        }
    }

    /// Records the message.
    fn record(&self, store: &mut LentStore<'_>) -> Result<Plan, Failure> {
        let mut ledger = LentLedger::new(&self.service, self.deadline.end());
        let mut accounts: Vec<String> = Vec::new();
        for account in &self.accounts {
            if !accounts.contains(account) {
                accounts.push(account.clone());
            }
        }
        let routing = &self.service.routing;
        let destinations =
            routing.destinations(&accounts, &self.message, &self.envelope, &mut ledger)?;
        let names: Vec<&str> =
            destinations.iter().map(|destination| destination.account.as_str()).collect();
        self.service.pass_the_gate(&names, self.deadline.last_bytes())?;
        let attempt = self.attempt(0);
        let head = match destinations.as_slice() {
            [only] => self.head(self.recipient_of(only).unwrap_or(0)),
            _ => Vec::new(),
        };
        let job = self.job(&attempt, &destinations, &head, true);
        let mut patience = Patience::new(self.service.policy.wait, &self.deadline);
        let policy = &self.service.policy;
        let recorded =
            deliver::record(&job, policy, &mut ledger, store, &self.deadline, &mut patience);
        let (recorded, phases) =
            recorded.inspect_err(|_| self.metrics.count_no_record(patience.waits()))?;
        if recorded.is_new {
            self.service.learn_the_time(self.at, recorded.recorded_at);
        }
        let copies = destinations.into_iter().map(|destination| PlannedCopy {
            recipient: self.recipient_of(&destination),
            end: OnceLock::new(),
            destination,
        });
        Ok(Plan { recorded, phases, copies: copies.collect() })
    }

    /// Places one copy; says whether the attempt's end is on record with it.
    fn place(&self, plan: &Plan, index: usize, store: &mut LentStore<'_>) -> bool {
        let copy = &plan.copies[index];
        let placed = catch_unwind(AssertUnwindSafe(|| self.place_in(plan, copy, index, store)));
        let (end, phases, end_recorded) = match placed {
            Ok(mut placing) => {
                let end = placing
                    .ends
                    .pop()
                    .unwrap_or_else(|| Err(Failure::Internal("no end".to_owned())));
                (end, placing.phases, placing.end_recorded)
            }
            Err(panic) => (Err(Failure::Internal(panic_text(panic))), Phases::default(), false),
        };
        self.metrics.count_copy(&end, &phases);
        // Only this call ends this copy.
        let _ = copy.end.set((end, phases));
        end_recorded
    }

    fn place_in(
        &self,
        plan: &Plan,
        copy: &PlannedCopy,
        index: usize,
        store: &mut LentStore<'_>,
    ) -> deliver::Placing {
        let recipient = copy.recipient.unwrap_or(0);
        let attempt = self.attempt(recipient);
        let head = self.head(recipient);
        let is_part = plan.copies.len() > 1 || self.accounts.len() > 1;
        let job = self.job(&attempt, std::slice::from_ref(&copy.destination), &head, is_part);
        let recorded =
            Recorded { copies: vec![plan.recorded.copies[index].clone()], ..plan.recorded.clone() };
        let mut patience = Patience::new(self.service.policy.wait, &self.deadline);
        let mut ledger = LentLedger::new(&self.service, self.deadline.end());
        let policy = &self.service.policy;
        deliver::place(&job, policy, &recorded, &mut ledger, store, &self.deadline, &mut patience)
    }

    /// Puts on record how it ended for each recipient.
    fn note_ends(&self) {
        let Some(plan) = self.plan.get() else { return };
        let mut ended = (0..self.accounts.len()).filter_map(|recipient| {
            let end = self
                .job(&self.attempt(recipient), &[], b"", true)
                .attempt_end(&self.ending(recipient)?.outcome);
            Some((self.attempt(recipient), end))
        });
        let mut ledger = LentLedger::new(&self.service, self.due());
        if let Some((_, first)) = ended.next() {
            note(ledger.finish(plan.recorded.attempt, &first));
        }
        let others: Vec<_> = ended.collect();
        if !others.is_empty() {
            note(ledger.note_attempts(self.message.identity(), &others));
        }
    }
}

/// Delivers, or begins to: a message with one copy is delivered when this returns, in the caller's
/// thread; for one with several, news come when an ending may be known. `guard` lives until all is
/// done.
pub fn begin<G: Send + 'static>(parcel: &Arc<Parcel>, guard: G) -> Receiver<()> {
    let (tell, news) = channel();
    let rest = guarded(parcel, || {
        let mut store = LentStore::new(&parcel.service);
        let plan = parcel.recorded(&mut store)?;
        // Several copies are placed beside the caller, and so is what no client need wait for.
        (plan.copies.len() != 1 || !parcel.place(plan, 0, &mut store)).then_some(plan.copies.len())
    });
    let Some(copies) = rest else { return news };
    let work = Arc::clone(parcel);
    let spawned = thread::Builder::new().name("delivery".to_owned()).spawn(move || {
        let _guard = guard;
        let told = tell.clone();
        guarded(&work, || {
            if copies != 1 {
                place_side_by_side(&work, copies, tell);
            }
            work.note_ends();
            Some(())
        });
        let _ = told.send(());
    });
    match spawned {
        Ok(_) => {}
        Err(error) if copies == 1 => {
            tracing::warn!(%error, "no thread to put on record how a delivery ended")
        }
        Err(error) => {
            parcel.fail(&Failure::Internal(format!("no thread for the delivery: {error}")))
        }
    }
    news
}

/// A panic is a failure of this parcel and nobody else's.
fn guarded<T>(parcel: &Parcel, work: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        parcel.fail(&Failure::Internal(panic_text(panic)));
        None
    })
}

/// Places the copies by some threads, each taking the next one: recipients' own first, shared ones
/// last.
fn place_side_by_side(parcel: &Arc<Parcel>, copies: usize, tell: Sender<()>) {
    let next = Arc::new(AtomicUsize::new(0));
    let most = parcel.service.config().lmtp.side_by_side.min(copies);
    let work = move |parcel: Arc<Parcel>, next: Arc<AtomicUsize>, tell: Sender<()>| {
        let Some(plan) = parcel.plan.get() else { return };
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= copies {
                return;
            }
            parcel.place(plan, index, &mut LentStore::new(&parcel.service));
            let _ = tell.send(());
        }
    };
    let helpers: Vec<_> = (1..most)
        .filter_map(|_| {
            let (parcel, next, tell) = (Arc::clone(parcel), Arc::clone(&next), tell.clone());
            // Fewer threads than wished for do the same work.
            thread::Builder::new()
                .name("placing".to_owned())
                .spawn(move || work(parcel, next, tell))
                .ok()
        })
        .collect();
    work(Arc::clone(parcel), next, tell);
    for helper in helpers {
        // It panics nowhere outside of placing, which is guarded.
        let _ = helper.join();
    }
}
