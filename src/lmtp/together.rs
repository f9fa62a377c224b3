//! Deliveries to one mailbox at the same time. A mail server lets one in at a time and syncs for each, so while one
//! delivery appends the others wait, and the next of them takes along all that wait, in one command where the server has
//! one for that. Whoever appends for others tells each its own outcome; who waited too long for its turn wrote nothing.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::lock_key::Hash;
use crate::message::Identity;
use crate::store::{Copy, Receipt, StoreError};

/// How many messages go together at most.
const MOST: usize = 16;
/// Larger ones go alone, in bytes: their transfer costs more than the sync.
pub const SMALL: usize = 64 * 1024;

type Appended = Result<Receipt, StoreError>;

/// The mailboxes that somebody is appending to, by account and mailbox.
#[derive(Default)]
pub struct Mailboxes(Mutex<HashMap<(String, String), Arc<Queue>>>);

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Somebody is appending.
    is_led: bool,
    waiting: Vec<Arc<Waiting>>,
}

/// A copy that somebody else may append.
struct Waiting {
    key: Hash,
    head: Vec<u8>,
    bytes: Vec<u8>,
    identity: Identity,
    recorded_at: SystemTime,
    deadline: Deadline,
    appended: OnceLock<Mutex<Option<Appended>>>,
}

impl Mailboxes {
    /// Has `copy` appended to `destination` by `append`, perhaps with others, or by somebody else's. Waits for its turn
    /// until `until`.
    ///
    /// # Errors
    /// What `append` says of this copy, or that its turn did not come.
    pub fn append(
        &self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
        until: Instant,
        append: impl FnOnce(&[(Copy<'_>, &Deadline)]) -> Vec<Appended>,
    ) -> Appended {
        let key = (destination.account.clone(), destination.mailbox.clone());
        let queue = Arc::clone(unpoisoned(&self.0).entry(key.clone()).or_default());
        let appended = queue.append(copy, deadline, until, append).unwrap_or_else(|| {
            let why = format!("the appends to {destination} before this one take too long");
            Err(StoreError::NotStored(why))
        });
        let mut all = unpoisoned(&self.0);
        drop(queue);
        // Nobody else has it, and nobody can get it while the map is locked.
        if all.get(&key).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            all.remove(&key);
        }
        appended
    }
}

impl Queue {
    /// `None`: its turn did not come.
    fn append(
        &self,
        copy: &Copy<'_>,
        deadline: &Deadline,
        until: Instant,
        append: impl FnOnce(&[(Copy<'_>, &Deadline)]) -> Vec<Appended>,
    ) -> Option<Appended> {
        let mut state = unpoisoned(&self.state);
        if state.is_led {
            let mine = Arc::new(Waiting::of(copy, deadline));
            state.waiting.push(Arc::clone(&mine));
            loop {
                if let Some(appended) = mine.taken() {
                    return Some(appended);
                }
                let place = state.waiting.iter().position(|one| Arc::ptr_eq(one, &mine));
                if let (false, Some(place)) = (state.is_led, place) {
                    state.waiting.remove(place);
                    break;
                }
                let left = until.saturating_duration_since(Instant::now());
                if let (true, Some(place)) = (left.is_zero(), place) {
                    state.waiting.remove(place);
                    return None;
                }
                // Whoever has taken it along tells the outcome, and waits for no answer for ever.
                let left = if place.is_some() { left } else { Duration::from_secs(1) };
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        state.is_led = true;
        let most = state.waiting.len().min(MOST - 1);
        let others: Vec<Arc<Waiting>> = state.waiting.drain(..most).collect();
        drop(state);
        let lead = Lead { queue: self, others };
        let mut copies = vec![(*copy, deadline)];
        copies.extend(lead.others.iter().map(|one| (one.copy(), &one.deadline)));
        let mut appended = append(&copies).into_iter();
        let own = appended.next().unwrap_or_else(|| Err(untold()));
        for (one, appended) in lead.others.iter().zip(appended) {
            one.tell(appended);
        }
        Some(own)
    }
}

/// The right to append. However it ends, who was taken along has an outcome and the next one may go on.
struct Lead<'a> {
    queue: &'a Queue,
    others: Vec<Arc<Waiting>>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        for one in &self.others {
            one.tell(Err(untold()));
        }
        unpoisoned(&self.queue.state).is_led = false;
        self.queue.changed.notify_all();
    }
}

fn untold() -> StoreError {
    StoreError::InDoubt("whoever appended it did not tell the outcome".to_owned())
}

impl Waiting {
    fn of(copy: &Copy<'_>, deadline: &Deadline) -> Waiting {
        Waiting {
            key: *copy.key,
            head: copy.head.to_vec(),
            bytes: copy.bytes.to_vec(),
            identity: copy.identity.clone(),
            recorded_at: copy.recorded_at,
            deadline: deadline.clone(),
            appended: OnceLock::new(),
        }
    }

    fn copy(&self) -> Copy<'_> {
        let Waiting { key, head, bytes, identity, recorded_at, .. } = self;
        Copy { key, head, bytes, identity, recorded_at: *recorded_at }
    }

    /// The first word counts.
    fn tell(&self, appended: Appended) {
        let _ = self.appended.set(Mutex::new(Some(appended)));
    }

    fn taken(&self) -> Option<Appended> {
        unpoisoned(self.appended.get()?).take()
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic is done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
