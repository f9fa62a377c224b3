//! Group commit: work that several threads want at the same time and that costs less done together.
//! While as many leaders work as may, the others wait; the next of them becomes a leader and takes
//! along all that wait, its followers. A leader gives each follower the result of its own job; a
//! leader that panics leaves its followers the result that the group was made with. A thread whose
//! time runs out while it waits has done nothing, and its job is not done. Nothing outlives the
//! process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Threads that do jobs `J` together, each with a result `R`.
pub struct GroupCommit<J, R> {
    /// How many leaders may work at the same time. A second leader starts only if it has a
    /// follower.
    leaders: usize,
    /// How many jobs, the leader's own included, are done together at most.
    most: usize,
    /// No follower waits for a leader that has worked for longer than this. `None`: for as long as
    /// it takes.
    patience: Option<Duration>,
    /// The result of a follower whose leader gave it none, because it panicked.
    abandoned: fn() -> R,
    state: Mutex<GroupState<J, R>>,
}

struct GroupState<J, R> {
    /// Until when each of the working leaders is waited for.
    working: Vec<Option<Instant>>,
    waiting: VecDeque<Arc<Follower<J, R>>>,
}

/// A waiting thread, whose job a leader may do.
struct Follower<J, R> {
    job: J,
    thread: Thread,
    result: OnceLock<Mutex<Option<R>>>,
}

/// How waiting ended.
pub enum Waited<'a, J, R> {
    /// The caller leads: it does its own job and those of its followers.
    Leads(Leader<'a, J, R>),
    /// A leader has done the job.
    Done(R),
    /// Nothing was done.
    TimedOut,
}

impl<J, R> GroupCommit<J, R> {
    pub fn new(
        leaders: usize,
        most: usize,
        patience: Option<Duration>,
        abandoned: fn() -> R,
    ) -> GroupCommit<J, R> {
        let state = Mutex::new(GroupState { working: Vec::new(), waiting: VecDeque::new() });
        GroupCommit { leaders, most, patience, abandoned, state }
    }

    /// How many leaders work, and how many threads wait.
    pub fn count(&self) -> (usize, usize) {
        let state = unpoisoned(&self.state);
        (state.working.len(), state.waiting.len())
    }

    /// Waits until the caller may lead, until a leader has done its job, or until `until`. `job` is
    /// called only if the caller has to wait: it makes what a leader needs to do the job.
    pub fn wait(&self, job: impl FnOnce() -> J, until: Instant) -> Waited<'_, J, R> {
        if let Some(leader) = self.lead(unpoisoned(&self.state)) {
            return Waited::Leads(leader);
        }
        let (thread, result) = (thread::current(), OnceLock::new());
        let mine = Arc::new(Follower { job: job(), thread, result });
        unpoisoned(&self.state).waiting.push_back(Arc::clone(&mine));
        loop {
            if let Some(result) = mine.take_result() {
                return Waited::Done(result);
            }
            let mut state = unpoisoned(&self.state);
            // A leader that has taken the job along gives its result: no leader waits for ever.
            let mut left = Duration::from_secs(1);
            if let Some(place) = state.waiting.iter().position(|one| Arc::ptr_eq(one, &mine)) {
                let next_given_up = state.awaited().flatten().min();
                left = next_given_up
                    .map_or(until, |at| at.min(until))
                    .saturating_duration_since(Instant::now());
                if self.may_lead(&state, state.waiting.len() - 1) || left.is_zero() {
                    state.waiting.remove(place);
                    return self.lead(state).map_or(Waited::TimedOut, Waited::Leads);
                }
            }
            drop(state);
            thread::park_timeout(left);
        }
    }

    /// Whether one more leader may work, with this many `others` to follow it.
    fn may_lead(&self, state: &GroupState<J, R>, others: usize) -> bool {
        let working = state.awaited().count();
        working == 0 || working < self.leaders && others > 0
    }

    /// Makes the caller a leader, if it may be one.
    fn lead(&self, mut state: MutexGuard<'_, GroupState<J, R>>) -> Option<Leader<'_, J, R>> {
        if !self.may_lead(&state, state.waiting.len()) {
            return None;
        }
        let awaited_until = self.patience.map(|patience| Instant::now() + patience);
        state.working.push(awaited_until);
        let along = state.waiting.len().min(self.most.saturating_sub(1));
        let followers = state.waiting.drain(..along).collect();
        // There may be room for another leader among those that are left.
        if !state.waiting.is_empty() && self.may_lead(&state, state.waiting.len() - 1) {
            state.waiting[0].thread.unpark();
        }
        Some(Leader { group: self, awaited_until, followers })
    }
}

impl<J, R> GroupState<J, R> {
    /// Those working leaders that are waited for still, and until when.
    fn awaited(&self) -> impl Iterator<Item = Option<Instant>> {
        let now = Instant::now();
        self.working.iter().copied().filter(move |until| until.is_none_or(|until| now < until))
    }
}

/// The right to do one's own job and those of the followers. When it is dropped, each follower has
/// a result, and the next leader may work.
pub struct Leader<'a, J, R> {
    group: &'a GroupCommit<J, R>,
    awaited_until: Option<Instant>,
    followers: Vec<Arc<Follower<J, R>>>,
}

impl<J, R> Leader<'_, J, R> {
    pub fn is_alone(&self) -> bool {
        self.followers.is_empty()
    }

    /// The followers' jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &J> {
        self.followers.iter().map(|one| &one.job)
    }

    /// Gives the followers their results, in the order of their jobs.
    pub fn done(&self, results: impl IntoIterator<Item = R>) {
        for (one, result) in self.followers.iter().zip(results) {
            one.done(result);
        }
    }
}

impl<J, R> Drop for Leader<'_, J, R> {
    fn drop(&mut self) {
        for one in &self.followers {
            one.done((self.group.abandoned)());
        }
        let mut state = unpoisoned(&self.group.state);
        if let Some(own) = state.working.iter().position(|until| *until == self.awaited_until) {
            state.working.swap_remove(own);
        }
        if let Some(next) = state.waiting.front() {
            next.thread.unpark();
        }
    }
}

impl<J, R> Follower<J, R> {
    /// The first result counts.
    fn done(&self, result: R) {
        if self.result.set(Mutex::new(Some(result))).is_ok() {
            self.thread.unpark();
        }
    }

    fn take_result(&self) -> Option<R> {
        unpoisoned(self.result.get()?).take()
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic is done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
