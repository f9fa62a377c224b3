//! One message for all its recipients: one record, then the copies side by side, each as soon as it can be. The
//! connection's thread only waits for news and answers, so that whatever hangs, its client has an answer in time; a copy
//! that ends later than that is on record, and the next try finds it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Zoned;

use super::metrics::Metrics;
use super::service::{LedgerSession, Service, StoreSession};
use crate::deadline::Deadline;
use crate::deliver::{self, End, How, Job, Patience, Phases, Placed, note};
use crate::directory::Destination;
use crate::envelope::Envelope;
use crate::exit::panic_text;
use crate::ledger::{Attempt, CopyState, LedgerError, Recorded};
use crate::message::{Facts, Message, Passage, trace_head};
use crate::outcome::{Failure, Outcome, OverQuota};

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
    passage: Passage,
    received: Zoned,
    started: Instant,
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
    pub passage: Passage,
}

impl Parcel {
    pub fn new(service: Arc<Service>, metrics: Arc<Metrics>, contents: Contents) -> Parcel {
        let Contents { message, envelope, accounts, passage } = contents;
        Parcel {
            facts: message.facts(),
            deadline: service.deadline(),
            started: Instant::now(),
            received: Zoned::now(),
            plan: OnceLock::new(),
            failed: OnceLock::new(),
            service,
            metrics,
            message,
            envelope,
            accounts,
            passage,
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
            return Some(Ending { outcome: outcome.clone(), phases: Phases::default(), collision: false, own: None });
        }
        let plan = self.plan.get()?;
        let account = &self.accounts[recipient];
        let (mut ends, mut phases) = (Vec::new(), plan.phases);
        for copy in &plan.copies {
            if copy.destination.shared || copy.destination.account == *account {
                let (end, took) = copy.end.get()?;
                ends.push((&copy.destination, end));
                phases += *took;
            }
        }
        let own = ends.first().and_then(|(_, end)| end.as_ref().ok().cloned()); // shared copies come after it
        let outcome = deliver::outcome(ends.into_iter(), self.service.policy.over_quota);
        Some(Ending { outcome, phases, collision: plan.recorded.collision, own })
    }

    /// Waits for news until the recipient's ending is known, and no longer than a delivery may take.
    pub fn wait_for(&self, recipient: usize, news: &Receiver<()>) -> Ending {
        loop {
            if let Some(ending) = self.ending(recipient) {
                return ending;
            }
            // Whoever sent its last bytes just in time may wait that long for the answer.
            let left = self.due().saturating_duration_since(Instant::now());
            if left.is_zero() || news.recv_timeout(left).is_err() && self.ending(recipient).is_none() {
                let failure = Failure::Deadline {
                    secs: self.service.config().limits.deadline_secs,
                    doing: "delivering".to_owned(),
                };
                let outcome = Outcome::of(&failure, OverQuota::Defer);
                return Ending { outcome, phases: Phases::default(), collision: false, own: None };
            }
        }
    }

    fn fail(&self, failure: &Failure) {
        // The first failure is the one that is told.
        let _ = self.failed.set(Outcome::of(failure, self.service.policy.over_quota));
    }

    fn attempt(&self, recipient: usize) -> Attempt {
        Attempt {
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
        let (message, facts, started) = (&self.message, &self.facts, self.started);
        Job { message, head, facts, attempt, destinations, started, is_part }
    }

    /// Records the message. The session is at hand for the first copy.
    fn record(&self) -> Result<(Plan, LedgerSession), Failure> {
        let (mut ledger, was_used) = self.service.ledger(self.deadline.end())?;
        let mut accounts: Vec<String> = Vec::new();
        for account in &self.accounts {
            if !accounts.contains(account) {
                accounts.push(account.clone());
            }
        }
        let routing = &self.service.routing;
        let destinations = routing.destinations(&accounts, &self.message, &self.envelope, ledger.as_mut())?;
        let attempt = self.attempt(0);
        let job = self.job(&attempt, &destinations, b"", true);
        let mut patience = Patience::new(self.service.policy.wait, &self.deadline);
        let mut recorded = self.record_in(&job, &mut ledger, &mut patience);
        // A kept session may be dead without a sign of it; nothing was begun in it.
        if was_used && matches!(recorded, Err(Failure::Ledger(LedgerError::Unavailable(_)))) {
            ledger.reopen(self.deadline.end())?;
            recorded = self.record_in(&job, &mut ledger, &mut patience);
        }
        let (recorded, phases) = recorded?;
        let copies = destinations.into_iter().map(|destination| PlannedCopy {
            recipient: self.accounts.iter().position(|account| !destination.shared && *account == destination.account),
            end: OnceLock::new(),
            destination,
        });
        Ok((Plan { recorded, phases, copies: copies.collect() }, ledger))
    }

    fn record_in(
        &self,
        job: &Job<'_>,
        ledger: &mut LedgerSession,
        patience: &mut Patience<'_>,
    ) -> Result<(Recorded, Phases), Failure> {
        let policy = &self.service.policy;
        let recorded = deliver::record(job, policy, self.service.joins, ledger.as_mut(), patience);
        if recorded.as_ref().is_err_and(|failure| !matches!(failure, Failure::Contended(_))) {
            ledger.throw_away();
        }
        recorded
    }

    /// Places one copy; says whether the attempt's end is on record with it.
    fn place(&self, plan: &Plan, index: usize, session: Option<LedgerSession>) -> bool {
        let copy = &plan.copies[index];
        let placed = catch_unwind(AssertUnwindSafe(|| self.place_in(plan, copy, index, session)));
        let placed = placed.unwrap_or_else(|panic| Err(Failure::Internal(panic_text(panic))));
        let (end, phases, end_recorded) = match placed {
            Ok(mut placing) => {
                let end = placing.ends.pop().unwrap_or_else(|| Err(Failure::Internal("no end".to_owned())));
                (end, placing.phases, placing.end_recorded)
            }
            Err(failure) => (Err(failure), Phases::default(), false),
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
        session: Option<LedgerSession>,
    ) -> Result<deliver::Placing, Failure> {
        let (mut store, mut ledger, store_was_used) = self.sessions(copy, session).inspect_err(|_| {
            // Nothing was begun: the next try need not wait for the lease.
            self.release(plan, index);
        })?;
        let recipient = copy.recipient.unwrap_or(0);
        let attempt = self.attempt(recipient);
        let (sender, address) = (&self.envelope.sender, &self.envelope.recipients[recipient]);
        let head = match self.message.received().first() {
            // It would continue our last field, and be another message. Postfix begins with a field of its own.
            Some(b' ' | b'\t') => Vec::new(),
            _ => trace_head(sender, address, &self.passage, &self.received),
        };
        let is_part = plan.copies.len() > 1 || self.accounts.len() > 1;
        let job = self.job(&attempt, std::slice::from_ref(&copy.destination), &head, is_part);
        let recorded = Recorded { copies: vec![plan.recorded.copies[index].clone()], ..plan.recorded.clone() };
        let mut patience = Patience::new(self.service.policy.wait, &self.deadline);
        let policy = &self.service.policy;
        let placing =
            deliver::place(&job, policy, &recorded, ledger.as_mut(), store.as_mut(), &self.deadline, &mut patience);
        match placing.ends.first() {
            Some(Ok(Placed { how: How::Stored | How::Found, .. })) => {}
            // A login that was begun and not waited for may have failed, which is not the next message's matter.
            Some(Ok(_) | Err(Failure::Contended(_))) if !store_was_used => store.throw_away(),
            Some(Ok(_) | Err(Failure::Contended(_))) => {}
            Some(Err(Failure::Store(_))) => store.throw_away(),
            Some(Err(_)) | None => ledger.throw_away(),
        }
        Ok(placing)
    }

    /// A store's and a ledger's session for one copy, and whether the store's was used before. First the store's, always:
    /// whoever waited for it with a ledger session in hand would keep that from those who have a store.
    fn sessions(
        &self,
        copy: &PlannedCopy,
        at_hand: Option<LedgerSession>,
    ) -> Result<(StoreSession, LedgerSession, bool), Failure> {
        let (account, service) = (&copy.destination.account, &self.service);
        // Later than that no last bytes may go out.
        let until = self.deadline.end() - Duration::from_secs(service.config().limits.answer_secs);
        if let Some(ledger) = at_hand {
            if let Ok((store, was_used)) = service.store(account, Instant::now(), self.deadline.end()) {
                return Ok((store, ledger, was_used));
            }
            drop(ledger);
        }
        let (store, was_used) = service.store(account, until, self.deadline.end())?;
        let (mut ledger, _) = service.ledger(until)?;
        ledger.renew(self.deadline.end())?;
        Ok((store, ledger, was_used))
    }

    /// Gives back the lease of a copy that was not begun.
    fn release(&self, plan: &Plan, index: usize) {
        if let CopyState::Claimed(claim) = &plan.recorded.copies[index]
            && let Ok((mut ledger, _)) = self.service.ledger(self.due())
        {
            note(ledger.release(std::slice::from_ref(claim)));
        }
    }

    /// Puts on record how it ended for each recipient.
    fn note_ends(&self, plan: &Plan) {
        let mut ended = (0..self.accounts.len()).filter_map(|recipient| {
            let end = self.job(&self.attempt(recipient), &[], b"", true).attempt_end(&self.ending(recipient)?.outcome);
            Some((self.attempt(recipient), end))
        });
        let Ok((mut ledger, _)) = self.service.ledger(self.due()) else { return };
        if let Some((_, first)) = ended.next() {
            note(ledger.finish(plan.recorded.attempt, &first));
        }
        let others: Vec<_> = ended.collect();
        if !others.is_empty() {
            note(ledger.note_attempts(self.message.identity(), &others));
        }
    }
}

/// Begins a delivery; news come when an ending may be known. `guard` lives until all is done.
pub fn begin<G: Send + 'static>(parcel: &Arc<Parcel>, guard: G) -> Receiver<()> {
    let (tell, news) = channel();
    let work = Arc::clone(parcel);
    let spawned = thread::Builder::new().name("delivery".to_owned()).spawn(move || {
        let _guard = guard;
        let told = tell.clone();
        let ran = catch_unwind(AssertUnwindSafe(|| run(&work, tell)));
        if let Err(panic) = ran {
            work.fail(&Failure::Internal(panic_text(panic)));
            let _ = told.send(());
        }
    });
    if let Err(error) = spawned {
        parcel.fail(&Failure::Internal(format!("no thread for the delivery: {error}")));
    }
    news
}

fn run(parcel: &Arc<Parcel>, tell: Sender<()>) {
    // Who no longer listens has its answer already.
    let (plan, ledger) = match parcel.record() {
        Ok(recorded) => recorded,
        Err(failure) => {
            parcel.fail(&failure);
            let _ = tell.send(());
            return;
        }
    };
    parcel.metrics.count_record(plan.recorded.collision && plan.recorded.is_new, &plan.phases);
    let plan = parcel.plan.get_or_init(|| plan);
    let copies = plan.copies.len();
    if copies == 1 {
        let end_recorded = parcel.place(plan, 0, Some(ledger));
        let _ = tell.send(());
        if !end_recorded {
            parcel.note_ends(plan);
        }
        return;
    }
    drop(ledger);
    place_side_by_side(parcel, copies, tell);
    parcel.note_ends(plan);
}

/// Places the copies by some threads, each taking the next one: recipients' own first, shared ones last.
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
            parcel.place(plan, index, None);
            let _ = tell.send(());
        }
    };
    let helpers: Vec<_> = (1..most)
        .filter_map(|_| {
            let (parcel, next, tell) = (Arc::clone(parcel), Arc::clone(&next), tell.clone());
            // Fewer threads than wished for do the same work.
            thread::Builder::new().name("placing".to_owned()).spawn(move || work(parcel, next, tell)).ok()
        })
        .collect();
    work(Arc::clone(parcel), next, tell);
    for helper in helpers {
        // It panics nowhere outside of placing, which is guarded.
        let _ = helper.join();
    }
}
