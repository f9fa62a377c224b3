//! Group commit: work that several threads want at the same time and that costs less done together.
//! While as many leaders work as may, the others wait; the next of them becomes a leader and takes
//! along all that wait, its followers. A leader gives each follower the result of its own job; a
//! leader that panics leaves its followers the result that the group was made with. A thread whose
//! time runs out while it waits has done nothing, and nobody does its job. Nothing outlives the
//! process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Threads that do jobs `J` together, each with a result `R`.
pub struct GroupCommit<J, R> {
    /// How many leaders may work at the same time. Beside another, one works for two or more only.
    leaders: usize,
    /// How many jobs, the leader's own included, are done together at most.
    most: usize,
    /// Nobody waits for a leader that has worked for longer than this. `None`: for as long as it
    /// takes.
    patience: Option<Duration>,
    /// The result of a follower whose leader gave it none, because it panicked.
    abandoned: fn() -> R,
    state: Mutex<State<J, R>>,
}

struct State<J, R> {
    /// When each of the working leaders began.
    began: Vec<Instant>,
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
        let state = Mutex::new(State { began: Vec::new(), waiting: VecDeque::new() });
        GroupCommit { leaders, most, patience, abandoned, state }
    }

    /// Whether somebody works or waits.
    pub fn is_busy(&self) -> bool {
        let state = self.state();
        !state.began.is_empty() || !state.waiting.is_empty()
    }

    /// Waits until the caller may lead, until a leader has done its job, or until `until`. `job` is
    /// called only if the caller has to wait: it makes what a leader needs to do the job.
    pub fn wait(&self, job: impl FnOnce() -> J, until: Instant) -> Waited<'_, J, R> {
        if let Some(leader) = self.lead(self.state()) {
            return Waited::Leads(leader);
        }
        let mine =
            Arc::new(Follower { job: job(), thread: thread::current(), result: OnceLock::new() });
        self.state().waiting.push_back(Arc::clone(&mine));
        loop {
            if let Some(result) = mine.take_result() {
                return Waited::Done(result);
            }
            let mut state = self.state();
            // A leader that has taken the job along gives its result: no leader waits for ever.
            let mut left = Duration::from_secs(1);
            if let Some(place) = state.waiting.iter().position(|one| Arc::ptr_eq(one, &mine)) {
                let now = Instant::now();
                let next_given_up =
                    self.awaited(&state, now).filter_map(|began| self.awaited_until(began)).min();
                left =
                    next_given_up.map_or(until, |at| at.min(until)).saturating_duration_since(now);
                if self.may_lead(&state, state.waiting.len() - 1) || left.is_zero() {
                    state.waiting.remove(place);
                    return self.lead(state).map_or(Waited::TimedOut, Waited::Leads);
                }
            }
            drop(state);
            thread::park_timeout(left);
        }
    }

    /// Whether one more may lead, whom `others` would follow.
    fn may_lead(&self, state: &State<J, R>, others: usize) -> bool {
        let working = self.awaited(state, Instant::now()).count();
        working == 0 || working < self.leaders && others > 0
    }

    /// When those leaders began that are worth waiting for.
    fn awaited<'s>(
        &'s self,
        state: &'s State<J, R>,
        now: Instant,
    ) -> impl Iterator<Item = Instant> + 's {
        let is_awaited =
            move |began: &Instant| self.awaited_until(*began).is_none_or(|until| now < until);
        state.began.iter().copied().filter(is_awaited)
    }

    fn awaited_until(&self, began: Instant) -> Option<Instant> {
        self.patience.map(|patience| began + patience)
    }

    /// Makes the caller a leader, if it may be one.
    fn lead(&self, mut state: MutexGuard<'_, State<J, R>>) -> Option<Leader<'_, J, R>> {
        if !self.may_lead(&state, state.waiting.len()) {
            return None;
        }
        let began = Instant::now();
        state.began.push(began);
        let along = state.waiting.len().min(self.most.saturating_sub(1));
        let followers = state.waiting.drain(..along).collect();
        // There may be room for another leader among those that are left.
        if let Some(next) =
            state.waiting.front().filter(|_| self.may_lead(&state, state.waiting.len() - 1))
        {
            next.thread.unpark();
        }
        Some(Leader { group: self, began, followers })
    }

    fn state(&self) -> MutexGuard<'_, State<J, R>> {
        unpoisoned(&self.state)
    }

    /// How many wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }
}

/// The right to do one's own job and those of the followers. When it is dropped, each follower has
/// a result, and the next leader may work.
pub struct Leader<'a, J, R> {
    group: &'a GroupCommit<J, R>,
    began: Instant,
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
        let mut state = self.group.state();
        if let Some(own) = state.began.iter().position(|began| *began == self.began) {
            state.began.swap_remove(own);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const LATER: Duration = Duration::from_secs(60);

    type Numbers = GroupCommit<u32, Option<u32>>;

    /// Doubles `number`, and those of its followers by `work`; `None` if the time ran out or the
    /// leader gave no result.
    fn double(
        group: &Numbers,
        number: u32,
        wait: Duration,
        work: impl FnOnce(usize),
    ) -> Option<u32> {
        match group.wait(|| number, Instant::now() + wait) {
            Waited::Leads(leader) => {
                work(1 + leader.jobs().count());
                leader.done(leader.jobs().map(|number| Some(2 * number)));
                Some(2 * number)
            }
            Waited::Done(doubled) => doubled,
            Waited::TimedOut => None,
        }
    }

    fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs `then` while a leader works that ends when it is told to.
    fn while_one_leads(group: &Numbers, then: impl FnOnce(&Sender<()>)) {
        let (go, gone): (Sender<()>, Receiver<()>) = channel();
        thread::scope(|scope| {
            scope.spawn(move || double(group, 1000, LATER, |_| gone.recv().unwrap()));
            until(|| group.is_busy());
            then(&go);
        });
        assert!(!group.is_busy());
    }

    #[test]
    fn all_that_wait_go_together_and_each_gets_its_own_result() {
        let group = Numbers::new(1, 16, None, || None);
        let (turns, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let count = |jobs: usize| {
            turns.fetch_add(1, Ordering::SeqCst);
            most.fetch_max(jobs, Ordering::SeqCst);
        };
        while_one_leads(&group, |go| {
            thread::scope(|scope| {
                for number in 0..40 {
                    let (group, count) = (&group, &count);
                    scope.spawn(move || {
                        assert_eq!(double(group, number, LATER, count), Some(2 * number));
                    });
                }
                until(|| group.waiting() == 40);
                go.send(()).unwrap();
            });
        });
        assert_eq!((turns.into_inner(), most.into_inner()), (40_usize.div_ceil(16), 16));
    }

    #[test]
    fn a_thread_whose_time_runs_out_has_done_nothing() {
        let group = Numbers::new(1, 16, None, || None);
        while_one_leads(&group, |go| {
            assert_eq!(double(&group, 1, Duration::from_millis(20), |_| panic!("led")), None);
            assert_eq!(group.waiting(), 0);
            go.send(()).unwrap();
        });
    }

    #[test]
    fn a_leader_that_panics_leaves_its_followers_a_result_and_stops_nobody() {
        let group = Numbers::new(1, 16, None, || None);
        while_one_leads(&group, |go| {
            thread::scope(|scope| {
                let both = [2, 3].map(|number| {
                    let group = &group;
                    scope.spawn(move || double(group, number, LATER, |_| panic!("told to")))
                });
                until(|| group.waiting() == 2);
                go.send(()).unwrap();
                let ends = both.map(|one| one.join().ok());
                assert!(ends.contains(&None) && ends.contains(&Some(None)), "{ends:?}");
            });
        });
        assert_eq!(double(&group, 4, LATER, |_| {}), Some(8));
    }

    #[test]
    fn nobody_waits_for_a_leader_that_takes_too_long() {
        let group = Numbers::new(1, 16, Some(Duration::from_millis(20)), || None);
        while_one_leads(&group, |go| {
            assert_eq!(double(&group, 1, LATER, |_| {}), Some(2));
            go.send(()).unwrap();
        });
    }

    #[test]
    fn a_second_leader_works_for_two_or_more_only() {
        let group = Numbers::new(2, 16, None, || None);
        while_one_leads(&group, |go| {
            assert_eq!(double(&group, 1, Duration::from_millis(20), |_| panic!("led")), None);
            thread::scope(|scope| {
                for number in [1, 2] {
                    let group = &group;
                    scope.spawn(move || {
                        assert_eq!(
                            double(group, number, LATER, |jobs| assert_eq!(jobs, 2)),
                            Some(2 * number)
                        );
                    });
                }
            });
            go.send(()).unwrap();
        });
    }
}
