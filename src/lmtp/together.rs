//! What several deliveries do at the same time and costs less together: while as many are at it as
//! may be, the others wait, and the next of them takes along all that wait. Whoever works for
//! others tells each its own outcome; who waited too long did nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Those who do jobs `J` together, each of which comes to an `R`.
pub struct Group<J, R> {
    /// How many may be at it at the same time. Beside another, one goes for two or more only.
    leaders: usize,
    /// How many are done together at most.
    most: usize,
    /// Whoever has been at it for that long no longer counts: nobody waits for it any more. `None`:
    /// as long as it takes.
    patience: Option<Duration>,
    /// What one has come to that was taken along and told nothing: whoever led it panicked.
    untold: fn() -> R,
    state: Mutex<State<J, R>>,
}

struct State<J, R> {
    /// Since when each of them is at it who is.
    led_since: Vec<Instant>,
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
    pub fn new(
        leaders: usize,
        most: usize,
        patience: Option<Duration>,
        untold: fn() -> R,
    ) -> Group<J, R> {
        let state = Mutex::new(State { led_since: Vec::new(), waiting: VecDeque::new() });
        Group { leaders, most, patience, untold, state }
    }

    /// Whether somebody is at it, or about to be.
    pub fn is_busy(&self) -> bool {
        let state = self.state();
        !state.led_since.is_empty() || !state.waiting.is_empty()
    }

    /// Waits for the turn until `until`; `job` makes what another one needs to do it for us.
    pub fn wait(&self, job: impl FnOnce() -> J, until: Instant) -> Waited<'_, J, R> {
        if let Some(lead) = self.lead(self.state()) {
            return Waited::Leads(lead);
        }
        let mine =
            Arc::new(Waiting { job: job(), thread: thread::current(), told: OnceLock::new() });
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
                let next_counts_no_more =
                    self.who_count(&state, now).filter_map(|since| self.counts_until(since)).min();
                left = next_counts_no_more
                    .map_or(until, |at| at.min(until))
                    .saturating_duration_since(now);
                if self.may_lead(&state, state.waiting.len() - 1) || left.is_zero() {
                    state.waiting.remove(place);
                    return self.lead(state).map_or(Waited::InVain, Waited::Leads);
                }
            }
            drop(state);
            thread::park_timeout(left);
        }
    }

    /// Whether somebody may go ahead, beside whom `others` wait.
    fn may_lead(&self, state: &State<J, R>, others: usize) -> bool {
        let at_it = self.who_count(state, Instant::now()).count();
        at_it == 0 || at_it < self.leaders && others > 0
    }

    /// Those who are at it, and for whom it is worth waiting.
    fn who_count<'s>(
        &'s self,
        state: &'s State<J, R>,
        now: Instant,
    ) -> impl Iterator<Item = Instant> + 's {
        state
            .led_since
            .iter()
            .copied()
            .filter(move |since| self.counts_until(*since).is_none_or(|until| now < until))
    }

    fn counts_until(&self, since: Instant) -> Option<Instant> {
        self.patience.map(|patience| since + patience)
    }

    /// The turn, unless it is others'.
    fn lead(&self, mut state: MutexGuard<'_, State<J, R>>) -> Option<Lead<'_, J, R>> {
        if !self.may_lead(&state, state.waiting.len()) {
            return None;
        }
        let since = Instant::now();
        state.led_since.push(since);
        let along = state.waiting.len().min(self.most.saturating_sub(1));
        let others = state.waiting.drain(..along).collect();
        // There may be room for those who are left.
        if let Some(next) =
            state.waiting.front().filter(|_| self.may_lead(&state, state.waiting.len() - 1))
        {
            next.thread.unpark();
        }
        Some(Lead { group: self, since, others })
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
    since: Instant,
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
        if let Some(own) = state.led_since.iter().position(|since| *since == self.since) {
            state.led_since.swap_remove(own);
        }
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
