//! The look backs of a server: [`MOST`] at a time, and one of an account, in the order of their
//! messages' first records, but those that have failed after all others. A delivery waits while its
//! own is done. A few wait for it to begin, and not long; all others end in 75 at once, so most of
//! Postfix' connections are free for other mail. The look is done without them, as one that takes
//! longer than its delivery goes on: the next attempt has what it has come to. All is in memory:
//! after a restart it is looked once more.
//!
//! `onedrop deliver` by itself looks at once: no process would go on looking after one that ends
//! with its mail, and one that waits in turn holds a connection for as long.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use onedrop_core::deliver::{LookBackEnd, LookBackRequest, LookBacks};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::RandomValue;
use onedrop_core::store::{AnyStore, LookBack, LookedBack, Store, StoreError};
use onedrop_core::text;

/// In all, at a time.
const MOST: usize = 2;
/// Deliveries that wait for their look to begin, of the 20 at a time that Postfix starts.
const MOST_PATIENT: usize = 6;
const PATIENCE: Duration = Duration::from_secs(1);
/// What waits, and what is remembered of those that have ended.
const MOST_WAITING: usize = 1000;
const MOST_ENDED: usize = 1000;
/// Bytes of each that are remembered: an account may have thousands of mailboxes, and a sender a
/// long Message-ID.
const MOST_BYTES: usize = 32 << 20;
/// The longest time of a look.
const LONGEST: Duration = Duration::from_secs(1800);

/// The look backs of this server: those that run, wait and have ended.
pub struct LookBackQueue(Arc<LookBackWork>);

struct LookBackWork {
    store: Arc<dyn AnyStore>,
    state: Mutex<LookBackState>,
    /// One has ended, or has begun.
    moved: Condvar,
}

#[derive(Default)]
struct LookBackState {
    waiting: BTreeMap<Place, LookBackJob>,
    running: Vec<LookBackJob>,
    /// Deliveries that wait for theirs to begin.
    patient: usize,
    ended: HashMap<Name, EndedLook>,
}

/// In the queue: those that have failed come last, as they may fail again and again, and take long
/// to do so; when the message was recorded, and its row.
type Place = (bool, SystemTime, i64, Name);
/// The copy, by the value of its row.
type Name = [u8; 16];
type Looked = Result<Option<Arc<LookedBack>>, StoreError>;

#[derive(Clone)]
struct LookBackJob {
    name: Name,
    destination: Destination,
    sought: LookBack,
}

struct EndedLook {
    at: Instant,
    bytes: usize,
    /// `None`: it failed, which was reported.
    looked: Option<Looked>,
}

impl LookBackQueue {
    pub fn new(store: Arc<dyn AnyStore>) -> LookBackQueue {
        let (state, moved) = (Mutex::default(), Condvar::new());
        LookBackQueue(Arc::new(LookBackWork { store, state, moved }))
    }

    /// How many are under way, and how many wait.
    pub fn count(&self) -> (usize, usize) {
        let state = self.0.state();
        (state.running.len(), state.waiting.len())
    }

    /// Has the first that may begin looked for by a thread of its own, if there is room for one.
    fn begin(&self, state: &mut LookBackState) -> Result<(), String> {
        let Some(job) = state.next() else { return Ok(()) };
        let shared = Arc::clone(&self.0);
        let name = job.name;
        let work = move || shared.work(job);
        let spawned = thread::Builder::new().name("look-back".to_owned()).spawn(work);
        spawned.map(drop).map_err(|error| {
            state.running.retain(|job| job.name != name);
            format!("no thread to look with: {error}")
        })
    }
}

impl LookBacks for LookBackQueue {
    fn look_back(&self, request: LookBackRequest<'_>, _store: &dyn Store) -> LookBackEnd {
        let LookBackRequest { destination, row, sought, message, until } = request;
        let name = row.array();
        let mut state = self.0.state();
        if let Some(end) = state.end_of(&name) {
            return end;
        }
        let place = |has_failed| (has_failed, sought.recorded_at(), message, name);
        let waits_last = state.waiting.contains_key(&place(true));
        let place = place(waits_last || state.has_failed(&name));
        if !state.is_running(&name) && !state.waiting.contains_key(&place) {
            let bytes = state.waiting.values().map(|job| job.sought.bytes()).sum::<usize>();
            if state.waiting.len() >= MOST_WAITING || bytes >= MOST_BYTES {
                return LookBackEnd::Later("too many others are looked for first".to_owned());
            }
            let destination = destination.clone();
            state.waiting.insert(place, LookBackJob { name, destination, sought: sought.apart() });
            if let Err(why) = self.begin(&mut state) {
                return LookBackEnd::Later(why);
            }
        }
        if state.patient < MOST_PATIENT {
            let soon = until.min(Instant::now() + PATIENCE);
            state.patient += 1;
            state = self.0.wait_while(state, soon, |state| state.waiting.contains_key(&place));
            state.patient -= 1;
        }
        state = self.0.wait_while(state, until, |state| state.is_running(&name));
        if let Some(end) = state.end_of(&name) {
            return end;
        }
        LookBackEnd::Later(match state.is_running(&name) {
            true => "it takes longer, and goes on".to_owned(),
            false => {
                let before = state.waiting.range(..place).count() + state.running.len();
                format!("{before} others are looked for first")
            }
        })
    }

    fn is_placed(&self, row: RandomValue) {
        self.0.state().ended.remove(&row.array());
    }
}

/// After a reload no delivery asks here any more, and those that wait are not looked for beside the
/// new configuration's.
impl Drop for LookBackQueue {
    fn drop(&mut self) {
        self.0.state().waiting.clear();
    }
}

impl LookBackWork {
    /// Looks for one after the other, until there is none left that may be looked for now.
    fn work(&self, first: LookBackJob) {
        let mut next = Some(first);
        while let Some(job) = next {
            let until = Instant::now() + LONGEST;
            let look = || self.store.look_back(&job.destination, &job.sought, until);
            let looked = catch_unwind(AssertUnwindSafe(look)).unwrap_or_else(|panic| {
                Err(StoreError::NotStored(format!("internal error: {}", text::of_panic(panic))))
            });
            let mut state = self.state();
            state.ends(&job, looked.map(|looked| looked.map(Arc::new)));
            next = state.next();
            drop(state);
            self.moved.notify_all();
        }
    }

    fn wait_while<'a>(
        &'a self,
        mut state: MutexGuard<'a, LookBackState>,
        until: Instant,
        condition: impl Fn(&LookBackState) -> bool,
    ) -> MutexGuard<'a, LookBackState> {
        while condition(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.moved.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    fn state(&self) -> MutexGuard<'_, LookBackState> {
        // Nothing that can panic is done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LookBackState {
    fn is_running(&self, name: &Name) -> bool {
        self.running.iter().any(|job| job.name == *name)
    }

    /// Begins the first whose account has none under way, if there is room for it.
    fn next(&mut self) -> Option<LookBackJob> {
        let is_free = |job: &LookBackJob| {
            let account = &job.destination.account;
            self.running.iter().all(|other| other.destination.account != *account)
        };
        if self.running.len() >= MOST {
            return None;
        }
        let place = self.waiting.iter().find(|(_, job)| is_free(job)).map(|(place, _)| *place)?;
        let job = self.waiting.remove(&place)?;
        self.running.push(job.clone());
        Some(job)
    }

    fn ends(&mut self, job: &LookBackJob, looked: Looked) {
        let name = job.name;
        self.running.retain(|other| other.name != name);
        let bytes = looked.as_ref().ok().and_then(Option::as_ref).map_or(0, |one| one.bytes());
        self.ended.remove(&name);
        while self.ended.len() >= MOST_ENDED
            || self.ended.values().map(|one| one.bytes).sum::<usize>() + bytes > MOST_BYTES
        {
            let oldest = self.ended.iter().min_by_key(|(_, one)| one.at).map(|(name, _)| *name);
            let Some(oldest) = oldest else { break };
            self.ended.remove(&oldest);
        }
        self.ended.insert(name, EndedLook { at: Instant::now(), bytes, looked: Some(looked) });
    }

    fn has_failed(&self, name: &Name) -> bool {
        self.ended.get(name).is_some_and(|one| one.looked.is_none())
    }

    /// What a look has come to. An error is returned once: the next attempt looks again.
    fn end_of(&mut self, name: &Name) -> Option<LookBackEnd> {
        let looked = &mut self.ended.get_mut(name)?.looked;
        match looked {
            Some(Ok(looked)) => Some(LookBackEnd::Looked(looked.clone())),
            _ => looked.take()?.err().map(LookBackEnd::Failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::UNIX_EPOCH;

    use super::*;
    use onedrop_core::hook::{Call, Hook};
    use onedrop_core::message::{DedupBy, Message};
    use onedrop_core::store::memory::MemoryStore;
    use onedrop_core::store::{Copy, Mark};

    const SOON: Duration = Duration::from_secs(30);

    fn sought(destination: &Destination) -> LookBack {
        let message = Message::new(b"Message-ID: <a@b>\n\nbody\n".to_vec(), DedupBy::Content);
        let identity = message.identity();
        let key = identity.copy_key(&destination.account, "INBOX");
        LookBack::of(&Copy {
            key: &key,
            head: b"",
            bytes: message.own_copy(),
            identity,
            recorded_at: UNIX_EPOCH,
            looks_back: true,
            looked: None,
            newer_than: None,
            handed: None,
        })
    }

    fn look_back(
        queue: &LookBackQueue,
        account: &str,
        (row, message): (RandomValue, i64),
        time: Duration,
    ) -> LookBackEnd {
        let destination = &Destination::inbox(account);
        let (sought, until) = (sought(destination), Instant::now() + time);
        let request = LookBackRequest { destination, row, sought, message, until };
        queue.look_back(request, &MemoryStore::default())
    }

    #[test]
    fn what_was_found_for_a_row_that_is_forgotten_is_not_there_for_another() {
        let store = MemoryStore::default();
        store.save("lisa", "INBOX", b"Message-ID: <a@b>\n\nbody\n", UNIX_EPOCH);
        let queue = LookBackQueue::new(Arc::new(store.clone()));
        let found = |row| match look_back(&queue, "lisa", (row, 1), SOON) {
            LookBackEnd::Looked(Some(looked)) => looked.found.is_some(),
            end => panic!("{end:?}"),
        };
        let row = RandomValue::default();
        assert!(found(row));
        store.meddle("lisa", "INBOX", Vec::clear);
        assert!(found(row), "a later attempt has what the first one has come to");
        assert!(!found(RandomValue::default()), "its owner has deleted it since");
    }

    /// Says that a look has begun, and lets it end with what it is sent.
    struct HeldLook(Mutex<(Sender<()>, Receiver<Told>)>);

    type Told = Result<(), StoreError>;

    impl Hook<StoreError> for HeldLook {
        fn before(&self, _call: &Call<'_>) -> Result<(), StoreError> {
            let held = self.0.lock().expect("one at a time");
            let _ = held.0.send(());
            held.1.recv().unwrap_or(Ok(()))
        }
    }

    fn later(queue: &LookBackQueue, row: (RandomValue, i64)) {
        let end = look_back(queue, "lisa", row, Duration::ZERO);
        assert!(matches!(end, LookBackEnd::Later(_)), "{end:?}");
    }

    #[test]
    fn two_are_looked_for_at_a_time_one_of_an_account_and_no_delivery_waits_for_its_turn() {
        let ((begins, _begun), (_end, ends)) = (channel(), channel());
        let store = MemoryStore::default();
        let store = store.with_hook(Arc::new(HeldLook(Mutex::new((begins, ends)))));
        let queue = Arc::new(LookBackQueue::new(Arc::new(store)));
        for (account, message) in [("lisa", 1), ("lisa", 2), ("doug", 3), ("scuba", 4)] {
            let row = (RandomValue::default(), message);
            let end = look_back(&queue, account, row, Duration::ZERO);
            assert!(matches!(end, LookBackEnd::Later(_)), "{end:?}");
        }
        assert_eq!(queue.count(), (2, 2));
        // It has the time, and ends while both are held.
        let ((told, ended), of_delivery) = (channel(), Arc::clone(&queue));
        thread::spawn(move || {
            let row = (RandomValue::default(), 5);
            told.send(look_back(&of_delivery, "lisa", row, SOON * 100))
        });
        let end = ended.recv_timeout(SOON).expect("an end");
        assert!(matches!(end, LookBackEnd::Later(_)), "{end:?}");
        assert_eq!(queue.count(), (2, 3));
    }

    #[test]
    fn one_that_has_failed_is_looked_for_after_all_others() {
        let ((begins, begun), (end, ends)) = (channel(), channel());
        let store = MemoryStore::default();
        let store = store.with_hook(Arc::new(HeldLook(Mutex::new((begins, ends)))));
        let queue = LookBackQueue::new(Arc::new(store));
        let [first, second, third] = [1, 2, 3].map(|message| (RandomValue::default(), message));
        let is_under_way = |(row, _): (RandomValue, i64)| {
            begun.recv_timeout(SOON).expect("one begins");
            queue.0.state().is_running(&row.array())
        };
        later(&queue, first);
        later(&queue, second);
        assert!(is_under_way(first));
        end.send(Err(StoreError::NotStored("stalled".to_owned()))).expect("the first");
        assert!(is_under_way(second));
        let failed = look_back(&queue, "lisa", first, Duration::ZERO);
        assert!(matches!(failed, LookBackEnd::Failed(_)), "{failed:?}");
        later(&queue, first);
        later(&queue, third);
        later(&queue, first);
        assert_eq!(queue.count(), (1, 2));
        for next in [third, first] {
            end.send(Ok(())).expect("one is under way");
            assert!(is_under_way(next));
        }
    }

    #[test]
    fn what_looks_have_come_to_has_a_bound_in_bytes() {
        let mut state = LookBackState::default();
        for name in 0..10 {
            let destination = Destination::inbox("lisa");
            let sought = sought(&destination);
            let job = LookBackJob { name: [name; 16], destination, sought };
            let mark = Mark { validity: 1, next: 1 };
            let marks = [("x".repeat(MOST_BYTES / 4), mark)].into();
            state.ends(&job, Ok(Some(Arc::new(LookedBack { found: None, marks }))));
            assert!(state.end_of(&[name; 16]).is_some(), "the newest");
        }
        assert_eq!(state.ended.len(), 3);
    }

    #[test]
    fn nothing_more_is_looked_for_where_nobody_asks_any_more() {
        let ((begins, begun), (end, ends)) = (channel(), channel());
        let store = MemoryStore::default();
        let store = store.with_hook(Arc::new(HeldLook(Mutex::new((begins, ends)))));
        let queue = LookBackQueue::new(Arc::new(store));
        later(&queue, (RandomValue::default(), 1));
        begun.recv_timeout(SOON).expect("the first begins");
        later(&queue, (RandomValue::default(), 1));
        assert_eq!(queue.count(), (1, 1));
        drop(queue);
        end.send(Ok(())).expect("the first is under way");
        // Its thread is over, and with it the store.
        assert_eq!(begun.recv_timeout(SOON), Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }
}
