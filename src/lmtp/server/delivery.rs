//! One message's delivery in the server: who waits for it, and what became of it for each
//! recipient. A message for one recipient is delivered in the connection's own thread, which costs
//! the least; for several it is delivered beside that thread, which answers for each as soon as it
//! is decided. Should a thread hang, the server answers in its place. A copy that ends later than
//! that is on record, and the next try finds it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Zoned;

use super::metrics::Metrics;
use crate::deadline::Deadline;
use crate::deliver::{CopyResult, Ending, Failure, Phases, Watch};
use crate::envelope::Envelope;
use crate::ledger::Recorded;
use crate::message::{Message, ReceivedClauses};
use crate::outcome::Outcome;
use crate::service::{Mail, Service};
use crate::text;

/// A delivery that ends by itself at its deadline gets this long to say so.
const SLACK: Duration = Duration::from_millis(500);

/// A message with its envelope, and what became of it.
pub struct MessageDelivery {
    service: Arc<Service>,
    metrics: Arc<Metrics>,
    pub message: Message,
    pub envelope: Envelope,
    /// The accounts of the envelope's recipients, in their order.
    pub accounts: Vec<Option<String>>,
    clauses: ReceivedClauses,
    received: Zoned,
    started: Instant,
    deadline: Deadline,
    endings: Vec<OnceLock<Ending>>,
    /// Wakes the thread that answers.
    news: Mutex<Option<Sender<()>>>,
}

/// What a delivery is made of.
pub struct Contents {
    pub message: Message,
    pub envelope: Envelope,
    pub accounts: Vec<Option<String>>,
    pub clauses: ReceivedClauses,
}

impl MessageDelivery {
    pub fn new(
        service: Arc<Service>,
        metrics: Arc<Metrics>,
        contents: Contents,
    ) -> MessageDelivery {
        let Contents { message, envelope, accounts, clauses } = contents;
        MessageDelivery {
            deadline: service.deadline(),
            started: Instant::now(),
            received: Zoned::now(),
            endings: envelope.recipients.iter().map(|_| OnceLock::new()).collect(),
            news: Mutex::default(),
            service,
            metrics,
            message,
            envelope,
            accounts,
            clauses,
        }
    }

    /// When it must have ended.
    pub fn due(&self) -> Instant {
        self.deadline.end() + Duration::from_secs(self.service.config().limits.answer_secs) + SLACK
    }

    pub fn took(&self) -> Duration {
        self.started.elapsed()
    }

    /// Delivers, or begins to: for one recipient all is done when this returns; for several,
    /// something comes from the receiver when an ending may be known. `guard` lives until all is
    /// done.
    pub fn begin<G: Send + 'static>(self: &Arc<Self>, guard: G) -> Receiver<()> {
        let (news, receiver) = channel();
        if self.endings.len() == 1 {
            self.deliver();
            return receiver;
        }
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(news);
        let delivery = Arc::clone(self);
        let work = move || {
            let _guard = guard;
            delivery.deliver();
            // Without it nobody waits for news any more.
            *delivery.news.lock().unwrap_or_else(PoisonError::into_inner) = None;
        };
        if let Err(error) = thread::Builder::new().name("delivery".to_owned()).spawn(work) {
            self.fail(&Failure::Internal(format!("no thread for the delivery: {error}")));
        }
        receiver
    }

    /// A panic is a failure of this message and of no other.
    fn deliver(&self) {
        let mail = Mail {
            message: &self.message,
            envelope: &self.envelope,
            accounts: &self.accounts,
            clauses: Some((&self.clauses, &self.received)),
            started: self.started,
            one_ending: false,
        };
        let deliver = || drop(self.service.deliver(mail, &self.deadline, self));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(deliver)) {
            self.fail(&Failure::Internal(text::of_panic(panic)));
        }
    }

    /// Ends it for all recipients for whom it has not ended.
    fn fail(&self, failure: &Failure) {
        let outcome = failure.outcome(self.service.policy.over_quota);
        for ending in &self.endings {
            let _ = ending.set(Ending::of(outcome.clone()));
        }
    }

    /// Waits until the recipient's ending is known, and no longer than a delivery may take.
    pub fn wait_for(&self, recipient: usize, news: &Receiver<()>) -> Ending {
        loop {
            if let Some(ending) = self.endings[recipient].get() {
                return ending.clone();
            }
            // A delivery that sent its last bytes just in time may wait that long for the answer.
            let left = self.due().saturating_duration_since(Instant::now());
            let is_over = left.is_zero() || news.recv_timeout(left).is_err();
            if is_over && self.endings[recipient].get().is_none() {
                return Ending::of(self.overdue());
            }
        }
    }

    /// What a client hears of a delivery that did not end when it was due.
    pub fn overdue(&self) -> Outcome {
        let secs = self.service.config().limits.deadline_secs;
        let failure = Failure::Deadline { secs, doing: "delivering".to_owned() };
        failure.outcome(self.service.policy.over_quota)
    }
}

impl Watch for MessageDelivery {
    fn recorded(&self, recorded: &Recorded, phases: &Phases) {
        self.metrics.count_record(recorded.collision && recorded.is_new, phases);
    }

    fn not_recorded(&self, waits: u32) {
        self.metrics.count_no_record(waits);
    }

    fn copy_ended(&self, end: &CopyResult, phases: &Phases) {
        self.metrics.count_copy(end, phases);
    }

    fn ended(&self, recipient: usize, ending: &Ending) {
        // The first word counts.
        let _ = self.endings[recipient].set(ending.clone());
        if let Some(news) = &*self.news.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = news.send(());
        }
    }
}
