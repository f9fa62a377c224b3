//! The deliveries that are under way, and those of them that should have ended. Each is a thread;
//! one that hangs past all its time-outs (a disk, a network file system) keeps its thread and its
//! sessions until what it hangs in lets it go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::envelope::Envelope;

/// A connection's own thread gets this long past the due time to answer.
const GRACE: Duration = Duration::from_secs(2);
/// A delivery that has not ended this long past its due time is overdue.
pub const OVERDUE: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Default)]
pub struct OverdueWatch {
    next: AtomicU64,
    under_way: Mutex<HashMap<u64, Watched>>,
}

struct Watched {
    due: Instant,
    queue_id: String,
    recipients: String,
    is_told: bool,
    /// Answers the client in place of a thread that hangs.
    answer: Option<Box<dyn FnOnce() + Send>>,
}

impl Watched {
    fn is_overdue(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.due) > OVERDUE
    }
}

impl OverdueWatch {
    /// A delivery begins that must have ended when it is `due`; `answer` is called if its thread
    /// says nothing then.
    ///
    /// # Returns
    /// Its number.
    pub fn begin(
        &self,
        due: Instant,
        envelope: &Envelope,
        answer: Box<dyn FnOnce() + Send>,
    ) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let recipients = envelope.recipients.join(" ");
        let delivery = Watched {
            due,
            queue_id: envelope.queue_id.clone(),
            recipients,
            is_told: false,
            answer: Some(answer),
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
        let mut under_way = self.under_way();
        let late = under_way
            .values_mut()
            .filter(|delivery| now.saturating_duration_since(delivery.due) > GRACE);
        let answers: Vec<_> = late.filter_map(|delivery| delivery.answer.take()).collect();
        drop(under_way);
        for answer in answers {
            answer();
        }
    }

    /// How many are overdue; the log is told of each once.
    pub fn overdue(&self, now: Instant) -> usize {
        let mut under_way = self.under_way();
        let mut count = 0;
        for delivery in under_way.values_mut().filter(|delivery| delivery.is_overdue(now)) {
            count += 1;
            if !std::mem::replace(&mut delivery.is_told, true) {
                let Watched { queue_id, recipients, .. } = delivery;
                tracing::error!(
                    queue_id,
                    recipients,
                    "{queue_id}: to=<{recipients}> a delivery hangs: it is overdue, and goes on \
                     holding its sessions"
                );
            }
        }
        count
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<u64, Watched>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_delivery_is_overdue_some_time_after_it_was_due_and_until_its_end() {
        let (watch, due, second) =
            (OverdueWatch::default(), Instant::now(), Duration::from_secs(1));
        let first = watch.begin(due, &Envelope::default(), Box::new(|| {}));
        watch.begin(due + second, &Envelope::default(), Box::new(|| {}));
        assert_eq!((watch.count(), watch.last_due()), (2, Some(due + second)));
        assert_eq!(watch.overdue(due + OVERDUE), 0);
        assert_eq!(watch.overdue(due + OVERDUE + second), 1);
        assert_eq!(watch.overdue(due + OVERDUE + 2 * second), 2);
        watch.end(first);
        assert_eq!((watch.count(), watch.overdue(due + OVERDUE + 2 * second)), (1, 1));
    }

    #[test]
    fn a_thread_that_says_nothing_is_spoken_for_once() {
        let (watch, due, said) =
            (OverdueWatch::default(), Instant::now(), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&said);
        let answer = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        watch.begin(due, &Envelope::default(), Box::new(answer));
        watch.answer(due + GRACE);
        assert_eq!(said.load(Ordering::SeqCst), 0);
        for _ in 0..2 {
            watch.answer(due + GRACE + Duration::from_secs(1));
            assert_eq!(said.load(Ordering::SeqCst), 1);
        }
    }
}
