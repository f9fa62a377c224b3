//! A verification of all accounts: workers side by side take one after the other, and what they
//! find is reported in the order of the accounts. The first error of the ledger ends them all.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::difference::{News, Tally};
use super::in_order::InOrder;
use super::{Verification, VerifyTask};
use crate::ledger::{LedgerError, VerifyLedger};
use crate::store::AnyStore;

/// Accounts that are read from the ledger at a time.
const ACCOUNTS: u32 = 500;

/// Verifies everything in the window, some accounts at a time; what is found is reported in the
/// order of the accounts, and of an account in that of its messages.
///
/// # Errors
/// The ledger cannot be read or written. What the store refuses is reported and counted.
pub fn verify(
    task: &VerifyTask<'_>,
    ledger: &dyn VerifyLedger,
    store: &dyn AnyStore,
    tell: &mut (dyn FnMut(News) + Send),
) -> Result<Tally, LedgerError> {
    ledger.check_program(task.ledger_until())?;
    let accounts = AccountQueue {
        read: task.account.map(str::to_owned).into_iter().collect(),
        taken: 0,
        last: task.behind.map(str::to_owned),
        is_over: task.account.is_some(),
        error: None,
    };
    let told = InOrder::new(tell);
    let run = Run { task, ledger, store, accounts: Mutex::new(accounts), told: &told };
    task.clock.side_by_side(task.parallel, &|| run.work());
    let ended = run.accounts().error.take();
    ended.map_or(Ok(told.tally()), Err)
}

/// What the workers of a verification share.
struct Run<'a, 't> {
    task: &'a VerifyTask<'a>,
    ledger: &'a dyn VerifyLedger,
    store: &'a dyn AnyStore,
    accounts: Mutex<AccountQueue>,
    told: &'a InOrder<'t>,
}

/// The accounts that are still to be verified.
struct AccountQueue {
    /// Read from the ledger, and not taken by a worker yet.
    read: VecDeque<String>,
    /// How many were somebody's.
    taken: usize,
    /// The last that was read.
    last: Option<String>,
    /// There are no more to be read.
    is_over: bool,
    /// Why the run ends early.
    error: Option<LedgerError>,
}

impl Run<'_, '_> {
    fn work(&self) {
        while let Some((number, account)) = self.next() {
            let mut tell = |news| self.told.tell(number, news);
            let mut verification = Verification::new(self.task, self.ledger, self.store, &mut tell);
            let ended = verification.account(&account, |tally| self.told.count(&account, tally));
            match ended {
                Ok(()) => self.told.over(number, &account),
                Err(error) => {
                    let mut accounts = self.accounts();
                    accounts.is_over = true;
                    accounts.read.clear();
                    accounts.error.get_or_insert(error);
                    drop(accounts);
                    self.told.end();
                }
            }
        }
    }

    /// An account for a worker, with its number in their order.
    fn next(&self) -> Option<(usize, String)> {
        let mut accounts = self.accounts();
        if accounts.read.is_empty() && !accounts.is_over {
            let (window, until) = (&self.task.window, self.task.ledger_until());
            let last = accounts.last.as_deref();
            match self.ledger.accounts_to_verify(window, last, ACCOUNTS, until) {
                Ok(more) => {
                    accounts.is_over = more.is_empty();
                    accounts.last = more.last().cloned().or(accounts.last.take());
                    accounts.read = more.into();
                }
                Err(error) => {
                    accounts.is_over = true;
                    accounts.error.get_or_insert(error);
                }
            }
        }
        let account = accounts.read.pop_front()?;
        accounts.taken += 1;
        Some((accounts.taken - 1, account))
    }

    fn accounts(&self) -> MutexGuard<'_, AccountQueue> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
