//! One message's delivery in the server, and how it ended for each recipient. A message for one
//! recipient is delivered in the connection's own thread, which costs the least; for several it is
//! delivered beside that thread, which answers for each as soon as it is decided. Should a thread
//! hang, the server answers in its place. A copy that ends later than that is on record, and the
//! next try finds it.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Zoned;

use super::metrics::Metrics;
use onedrop_core::deadline::Deadline;
use onedrop_core::deliver::{CopyEnd, Ending, Failure, LookBackEnd, Phases, Watch};
use onedrop_core::directory::Home;
use onedrop_core::envelope::Envelope;
use onedrop_core::ledger::Recorded;
use onedrop_core::message::{Message, ReceivedClauses};
use onedrop_core::text;
use onedrop_site::service::{Mail, Service};

/// A delivery that ends by itself at its deadline gets this long to say so.
const SLACK: Duration = Duration::from_millis(500);

/// A message with its envelope, and what delivers it.
pub struct MessageDelivery {
    pub service: Arc<Service>,
    pub message: Message,
    pub envelope: Envelope,
    /// The accounts of the envelope's recipients, in their order, and the mailboxes that are meant.
    pub homes: Vec<Option<Home>>,
    /// See [`Mail::own_copies_alone`].
    pub own_copies_alone: bool,
    pub clauses: ReceivedClauses,
    pub received: Zoned,
    pub started: Instant,
    pub deadline: Deadline,
    /// The replies are being given, or were.
    pub is_answered: AtomicBool,
}

impl MessageDelivery {
    /// When it must have ended.
    pub fn due(&self) -> Instant {
        self.deadline.end() + Duration::from_secs(self.service.config().limits.answer_secs) + SLACK
    }

    /// The connection's thread gives the replies, or the server when that hangs: from now on they
    /// are the caller's to give. On error the other one gave them, and hung up.
    pub fn claim_replies(&self) -> io::Result<()> {
        match self.is_answered.swap(true, Ordering::SeqCst) {
            false => Ok(()),
            true => Err(io::Error::other("the delivery was answered when it was overdue")),
        }
    }

    /// Delivers, or begins to: for one recipient all is done when this returns. `guard` lives until
    /// all is done.
    pub fn begin<G: Send + 'static>(
        self: &Arc<Self>,
        metrics: &Arc<Metrics>,
        guard: G,
    ) -> ComingEndings {
        let (sender, coming) = channel();
        let watch = CountingWatch { metrics: Arc::clone(metrics), endings: sender.clone() };
        let endings = ComingEndings { coming, early: HashMap::new() };
        if self.envelope.recipients.len() == 1 {
            self.deliver(&watch);
            return endings;
        }
        let delivery = Arc::clone(self);
        let work = move || {
            let _guard = guard;
            delivery.deliver(&watch);
        };
        if let Err(error) = thread::Builder::new().name("delivery".to_owned()).spawn(work) {
            self.fail(&Failure::Internal(format!("no thread for the delivery: {error}")), &sender);
        }
        endings
    }

    /// A panic is a failure of this message and of no other.
    fn deliver(&self, watch: &CountingWatch) {
        let mail = Mail {
            message: &self.message,
            envelope: &self.envelope,
            homes: &self.homes,
            clauses: Some((&self.clauses, &self.received)),
            started: self.started,
            one_ending: false,
            own_copies_alone: self.own_copies_alone,
        };
        let deliver = || drop(self.service.deliver(mail, &self.deadline, watch));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(deliver)) {
            self.fail(&Failure::Internal(text::of_panic(panic)), &watch.endings);
        }
    }

    /// Ends it for all recipients for whom it has not ended: the first ending counts.
    fn fail(&self, failure: &Failure, endings: &Sender<(usize, Ending)>) {
        let ending = failure.ending();
        for recipient in 0..self.envelope.recipients.len() {
            let _ = endings.send((recipient, ending.clone()));
        }
    }

    /// The end of a delivery that did not end when it was due.
    pub fn overdue(&self) -> Ending {
        let secs = self.service.config().limits.deadline_secs;
        let failure = Failure::Deadline { secs, doing: "delivering".to_owned() };
        failure.ending()
    }
}

/// How a delivery ends for each recipient, by its number, as it becomes known.
pub struct ComingEndings {
    coming: Receiver<(usize, Ending)>,
    /// Those of recipients that were not waited for yet.
    early: HashMap<usize, Ending>,
}

impl ComingEndings {
    /// Waits until the recipient's ending is known, and no longer than the delivery may take.
    pub fn wait_for(&mut self, recipient: usize, delivery: &MessageDelivery) -> Ending {
        loop {
            if let Some(ending) = self.early.remove(&recipient) {
                return ending;
            }
            // A delivery that sent its last bytes just in time may wait that long for the answer.
            let left = delivery.due().saturating_duration_since(Instant::now());
            let Ok((number, ending)) = self.coming.recv_timeout(left) else {
                return delivery.overdue();
            };
            self.early.entry(number).or_insert(ending);
        }
    }
}

/// Counts the steps, and passes the endings on.
struct CountingWatch {
    metrics: Arc<Metrics>,
    endings: Sender<(usize, Ending)>,
}

impl Watch for CountingWatch {
    fn recorded(&self, recorded: &Recorded, phases: &Phases) {
        self.metrics.count_record(recorded.collision && recorded.is_new, phases);
    }

    fn not_recorded(&self, waits: u32) {
        self.metrics.contention_waits.inc_by(waits.into());
    }

    fn looked_back(&self, end: &LookBackEnd) {
        self.metrics.count_look_back(end);
    }

    fn copy_ended(&self, end: &CopyEnd, phases: &Phases) {
        self.metrics.count_copy(end, phases);
    }

    fn ended(&self, recipient: usize, ending: &Ending) {
        // The connection's thread may have answered and gone.
        let _ = self.endings.send((recipient, ending.clone()));
    }
}
