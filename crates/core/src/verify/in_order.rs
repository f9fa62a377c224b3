//! Reports what the accounts' workers find in the order of the accounts: of the account whose turn
//! it is at once, of later ones when their turn has come. A worker that is far ahead waits, so that
//! memory stays bounded; the one whose turn it is never waits.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::difference::{News, Tally};

/// Differences that may wait for their turn.
const MOST_WAITING: usize = 5_000;

/// The queue in which workers' news wait for their account's turn.
pub struct InOrder<'t> {
    state: Mutex<OrderState<'t>>,
    moved: Condvar,
}

struct OrderState<'t> {
    /// The number of the account whose turn it is.
    turn: usize,
    /// By the accounts' numbers.
    later: BTreeMap<usize, Later>,
    /// News in all of `later`.
    waiting: usize,
    tally: Tally,
    is_ended: bool,
    tell: &'t mut (dyn FnMut(News) + Send),
}

#[derive(Default)]
struct Later {
    news: Vec<News>,
    /// The account, once it is over.
    over: Option<String>,
}

impl<'t> InOrder<'t> {
    /// The first account's number is 0.
    pub fn new(tell: &'t mut (dyn FnMut(News) + Send)) -> InOrder<'t> {
        let (later, tally) = (BTreeMap::new(), Tally::default());
        let state = OrderState { turn: 0, later, waiting: 0, tally, is_ended: false, tell };
        InOrder { state: Mutex::new(state), moved: Condvar::new() }
    }

    /// Reports `news` of account `number`.
    pub fn tell(&self, number: usize, news: News) {
        let mut state = self.state();
        while state.turn != number && state.waiting >= MOST_WAITING && !state.is_ended {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.turn == number {
            (state.tell)(news);
        } else {
            state.waiting += 1;
            state.later.entry(number).or_default().news.push(news);
        }
    }

    /// Adds to what is counted, and reports how far the run has come, out of turn.
    pub fn count(&self, account: &str, tally: Tally) {
        let mut state = self.state();
        state.tally += tally;
        let tally = state.tally;
        (state.tell)(News::Progress { account: account.to_owned(), tally });
    }

    /// All of account `number` has been reported here.
    pub fn over(&self, number: usize, account: &str) {
        let mut state = self.state();
        state.later.entry(number).or_default().over = Some(account.to_owned());
        let OrderState { turn, later, waiting, tell, .. } = &mut *state;
        while let Some(mut first) = later.first_entry().filter(|first| first.key() == turn) {
            let news = std::mem::take(&mut first.get_mut().news);
            *waiting -= news.len();
            news.into_iter().for_each(&mut *tell);
            let Some(account) = first.get_mut().over.take() else { break };
            first.remove();
            tell(News::Passed { account });
            *turn += 1;
        }
        drop(state);
        self.moved.notify_all();
    }

    /// The run ends early: no worker is to wait for a turn that may never come.
    pub fn end(&self) {
        self.state().is_ended = true;
        self.moved.notify_all();
    }

    pub fn tally(&self) -> Tally {
        self.state().tally
    }

    fn state(&self) -> MutexGuard<'_, OrderState<'t>> {
        // A caller's `tell` that panicked left its own state, not ours.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InOrder<'_> {
    /// A run that ended early leaves news of accounts whose turn never came: what was done there is
    /// reported all the same.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let left = std::mem::take(&mut state.later).into_values();
        left.flat_map(|one| one.news).for_each(&mut *state.tell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(account: &str) -> News {
        News::Progress { account: account.to_owned(), tally: Tally::default() }
    }

    /// A wait here never ends.
    #[test]
    fn who_has_the_turn_never_waits_and_no_one_does_once_the_run_ends() {
        let mut told = Vec::new();
        let mut tell = |news| {
            if let News::Progress { account, .. } | News::Passed { account } = news {
                told.push(account);
            }
        };
        let order = InOrder::new(&mut tell);
        for number in [1, 3] {
            (0..MOST_WAITING).for_each(|_| order.tell(number, progress("late")));
            order.tell(number - 1, progress("first"));
            order.over(number, "late");
            order.over(number - 1, "first");
        }
        (0..MOST_WAITING).for_each(|_| order.tell(5, progress("late")));
        order.end();
        order.tell(6, progress("last"));
        drop(order);
        // With those of the accounts whose turn never came.
        assert_eq!(told.iter().filter(|one| *one == "late").count(), 3 * MOST_WAITING + 2);
        assert_eq!(told[..2], ["first", "first"]);
        assert_eq!(told.last().map(String::as_str), Some("last"));
    }
}
