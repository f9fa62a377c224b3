//! What several deliveries do at the same time and costs less together: while one is at it the others wait, and the next
//! of them takes along all that wait. Whoever works for others tells each its own outcome; who waited too long did nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Those who do jobs `J` together, each of which comes to an `R`.
pub struct Group<J, R> {
    /// How many are done together at most.
    most: usize,
    /// Nobody waits any longer for one that has been at it for that long; `None`: as long as it takes.
    patience: Option<Duration>,
    /// What one has come to that was taken along and told nothing: whoever led it panicked.
    untold: fn() -> R,
    state: Mutex<State<J, R>>,
}

struct State<J, R> {
    /// Since when somebody is at it.
    led_since: Option<Instant>,
    waiting: VecDeque<Arc<Waiting<J, R>>>,
}

/// A job that somebody else may do.
pub struct Waiting<J, R> {
    pub job: J,
    thread: Thread,
    told: OnceLock<Mutex<Option<R>>>,
}

/// What came of waiting for the turn.
pub enum Waited<'a, J, R> {
    /// It came.
    Leads(Lead<'a, J, R>),
    /// Somebody else's came.
    Told(R),
    InVain,
}

impl<J, R> Group<J, R> {
    pub fn new(most: usize, patience: Option<Duration>, untold: fn() -> R) -> Group<J, R> {
        let state = Mutex::new(State { led_since: None, waiting: VecDeque::new() });
        Group { most, patience, untold, state }
    }

    /// Whether somebody is at it, or about to be.
    pub fn is_busy(&self) -> bool {
        let state = self.state();
        state.led_since.is_some() || !state.waiting.is_empty()
    }

    /// Waits for the turn until `until`, or until whoever is at it takes too long; `job` makes what another one needs to do it
    /// for us.
    pub fn wait(&self, job: impl FnOnce() -> J, until: Instant) -> Waited<'_, J, R> {
        if let Some(lead) = self.lead(self.state()) {
            return Waited::Leads(lead);
        }
        let mine = Arc::new(Waiting { job: job(), thread: thread::current(), told: OnceLock::new() });
        self.state().waiting.push_back(Arc::clone(&mine));
        loop {
            if let Some(told) = mine.taken() {
                return Waited::Told(told);
            }
            let mut state = self.state();
            // Whoever has taken it along tells the outcome, and waits for no answer for ever.
            let mut left = Duration::from_secs(1);
            if let Some(place) = state.waiting.iter().position(|one| Arc::ptr_eq(one, &mine)) {
                let now = Instant::now();
                let too_long = state.led_since.zip(self.patience).map(|(since, patience)| since + patience);
                left = too_long.map_or(until, |at| at.min(until)).saturating_duration_since(now);
                if state.led_since.is_none() || left.is_zero() {
                    state.waiting.remove(place);
                    return self.lead(state).map_or(Waited::InVain, Waited::Leads);
                }
            }
            drop(state);
            thread::park_timeout(left);
        }
    }

    /// The turn, unless somebody has it.
    fn lead(&self, mut state: MutexGuard<'_, State<J, R>>) -> Option<Lead<'_, J, R>> {
        if state.led_since.is_some() {
            return None;
        }
        state.led_since = Some(Instant::now());
        let along = state.waiting.len().min(self.most.saturating_sub(1));
        Some(Lead { group: self, others: state.waiting.drain(..along).collect() })
    }

    fn state(&self) -> MutexGuard<'_, State<J, R>> {
        unpoisoned(&self.state)
    }

    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }
}

/// The turn. However it ends, who was taken along has an outcome and the next one may go on.
pub struct Lead<'a, J, R> {
    group: &'a Group<J, R>,
    others: Vec<Arc<Waiting<J, R>>>,
}

impl<J, R> Lead<'_, J, R> {
    pub fn is_alone(&self) -> bool {
        self.others.is_empty()
    }

    /// The jobs of those who are taken along.
    pub fn others(&self) -> impl Iterator<Item = &J> {
        self.others.iter().map(|one| &one.job)
    }

    /// Tells them what they came to, in their order.
    pub fn tell(&self, told: impl Iterator<Item = R>) {
        for (one, told) in self.others.iter().zip(told) {
            one.tell(told);
        }
    }
}

impl<J, R> Drop for Lead<'_, J, R> {
    fn drop(&mut self) {
        for one in &self.others {
            one.tell((self.group.untold)());
        }
        let mut state = self.group.state();
        state.led_since = None;
        if let Some(next) = state.waiting.front() {
            next.thread.unpark();
        }
    }
}

impl<J, R> Waiting<J, R> {
    /// The first word counts.
    fn tell(&self, told: R) {
        if self.told.set(Mutex::new(Some(told))).is_ok() {
            self.thread.unpark();
        }
    }

    fn taken(&self) -> Option<R> {
        unpoisoned(self.told.get()?).take()
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic is done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
