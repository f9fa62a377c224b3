//! One delivery to an account at a time, in this process. Waiting is bounded; who comes first is
//! not promised to be served first.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The accounts to which a delivery is under way.
#[derive(Default)]
pub struct AccountTurns {
    taken: Mutex<HashSet<String>>,
    freed: Condvar,
}

/// A delivery to an account; over when dropped.
pub struct AccountTurn<'a> {
    turns: &'a AccountTurns,
    account: &'a str,
}

impl AccountTurns {
    /// Waits for the account's turn; `None` if it has not come by `until`.
    pub fn take<'a>(&'a self, account: &'a str, until: Instant) -> Option<AccountTurn<'a>> {
        let mut taken = self.taken();
        while taken.contains(account) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            taken = self.freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        taken.insert(account.to_owned());
        Some(AccountTurn { turns: self, account })
    }

    fn taken(&self) -> MutexGuard<'_, HashSet<String>> {
        // Nothing that can panic is done under this lock.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AccountTurn<'_> {
    fn drop(&mut self) {
        self.turns.taken().remove(self.account);
        // Waiters may want different accounts: each looks for itself.
        self.turns.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_account_has_one_turn_and_others_have_theirs() {
        let turns = AccountTurns::default();
        let doug = turns.take("doug", Instant::now());
        assert!(doug.is_some() && turns.take("lisa", Instant::now()).is_some());
        assert!(turns.take("doug", Instant::now()).is_none());
        std::thread::scope(|scope| {
            let waits = scope
                .spawn(|| turns.take("doug", Instant::now() + Duration::from_secs(60)).is_some());
            drop(doug);
            assert!(waits.join().unwrap());
        });
        assert!(turns.taken().is_empty());
    }
}
