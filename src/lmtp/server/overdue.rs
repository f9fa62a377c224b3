//! The deliveries that run, and look-ups of recipients, and those that should have ended. Each is a
//! thread; one that hangs past all its time-outs (a disk, a network file system) keeps its thread
//! and its sessions until what it hangs in lets it go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onedrop_core::envelope::Envelope;

/// A connection's own thread gets this long past the due time to answer.
pub const GRACE: Duration = Duration::from_secs(2);
/// What has not ended this long past its due time is overdue.
pub const OVERDUE: Duration = Duration::from_secs(10);

/// Watches what is running, and what hangs.
#[derive(Default)]
pub struct OverdueWatch {
    next: AtomicU64,
    under_way: Mutex<HashMap<u64, Watched>>,
}

struct Watched {
    due: Instant,
    queue_id: String,
    recipients: String,
    is_logged: bool,
    /// Answers the client in place of a thread that hangs.
    answer: Option<Box<dyn FnOnce() + Send>>,
}

impl OverdueWatch {
    /// What begins here must have ended when it is `due`; `answer` is called if its thread says
    /// nothing then. Returns its number.
    pub fn begin(
        &self,
        due: Instant,
        envelope: &Envelope,
        answer: impl FnOnce() + Send + 'static,
    ) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let delivery = Watched {
            due,
            queue_id: envelope.queue_id.clone(),
            recipients: envelope.recipients.join(" "),
            is_logged: false,
            answer: Some(Box::new(answer)),
        };
        self.under_way().insert(number, delivery);
        number
    }

    pub fn end(&self, number: u64) {
        self.under_way().remove(&number);
    }

    pub fn count(&self) -> usize {
        self.under_way().len()
    }

    /// When the last of them is due.
    pub fn last_due(&self) -> Option<Instant> {
        self.under_way().values().map(|delivery| delivery.due).max()
    }

    /// Answers for those whose threads should have.
    pub fn answer(&self, now: Instant) {
        let late = |delivery: &mut Watched| {
            let is_late = now.saturating_duration_since(delivery.due) > GRACE;
            if is_late { delivery.answer.take() } else { None }
        };
        let answers: Vec<_> = self.under_way().values_mut().filter_map(late).collect();
        for answer in answers {
            answer();
        }
    }

    /// How many are overdue; each is logged once.
    pub fn overdue(&self, now: Instant) -> usize {
        let (mut under_way, mut count) = (self.under_way(), 0);
        let is_overdue = |one: &&mut Watched| now.saturating_duration_since(one.due) > OVERDUE;
        for Watched { queue_id, recipients, is_logged, .. } in
            under_way.values_mut().filter(is_overdue)
        {
            count += 1;
            if !std::mem::replace(is_logged, true) {
                tracing::error!(
                    queue_id,
                    recipients,
                    "{queue_id}: to=<{recipients}> a delivery hangs, or a look-up before it: it is \
                     overdue, and goes on holding its sessions"
                );
            }
        }
        count
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<u64, Watched>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
