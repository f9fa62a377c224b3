//! Whether the way into the store leads to the account that we name. An IMAP server may let our
//! user in and ignore for whom it acts; everybody's mail would lie in that user's own mailbox. So
//! before anything is written through a server for the first time the store finds out, and the
//! proof is put on record in the ledger, for all hosts. Without it nothing is written, and the mail
//! waits.
//!
//! Both doors and `verify --repair` call [`WayProof::pass`] before they write; once the proof is on
//! record that costs a process one read by a primary key, and a server one each minute. `check` and
//! the server's start renew it ([`renew`]).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::deliver::Failure;
use crate::ledger::{LedgerError, Proofs};
use crate::store::{Access, MailboxOwner, StoreError};

/// A server that was seen to ignore the account is not asked again for this long.
const PAUSE: Duration = Duration::from_secs(30);
/// A proof that this process knows of is read again after this long: another host's `check` may
/// have taken it off the record, because another server answers by that name now.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// With how many accounts it is tried at most.
const ACCOUNTS: usize = 4;
/// Among how many of the newest copies other accounts are looked for.
const COPIES: u32 = 20;

/// What a process knows of its way into the store.
#[derive(Default)]
pub struct WayProof {
    state: Mutex<State>,
    asked: Condvar,
}

#[derive(Default)]
struct State {
    proven: Option<Instant>,
    is_asking: bool,
    refused: Option<(Instant, String)>,
}

impl WayProof {
    /// Returns if the way is proven: to this process, on record, or now, by one of `accounts` or of
    /// those with a copy on record. Others wait for whoever asks.
    ///
    /// # Errors
    /// [`StoreError::Setup`]: it leads elsewhere, or nobody can tell. Also where the ledger or the
    /// server cannot be asked, nothing may be written.
    pub fn pass(
        self: &Arc<Self>,
        accounts: &[&str],
        host: &str,
        ledger: &dyn Proofs,
        store: &dyn Access,
        until: Instant,
    ) -> Result<(), Failure> {
        let mut state = self.state();
        loop {
            if state.proven.is_some_and(|at| at.elapsed() < READ_AGAIN) {
                return Ok(());
            }
            if let Some((_, why)) = state.refused.as_ref().filter(|(at, _)| at.elapsed() < PAUSE) {
                return Err(StoreError::Setup(why.clone()).into());
            }
            if !state.is_asking {
                break;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "whether the mail server heeds for whom we log in was not known in time";
                return Err(StoreError::NotStored(why.to_owned()).into());
            }
            state = self.asked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        // Before the lock is let go: of those who come now, one asks.
        state.is_asking = true;
        drop(state);
        let asking = ProofGuard(Arc::clone(self));
        let passed = find_out(accounts, host, ledger, store, until);
        asking.end(&passed);
        Ok(passed?)
    }

    /// Lets nobody pass until what is returned has ended.
    pub fn begin(self: &Arc<Self>) -> ProofGuard {
        self.state().is_asking = true;
        ProofGuard(Arc::clone(self))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic is done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody is finding out; over when dropped.
pub struct ProofGuard(Arc<WayProof>);

impl ProofGuard {
    /// With what came of it.
    pub fn end<T>(self, passed: &Result<T, Unproven>) {
        let mut state = self.0.state();
        match passed {
            Ok(_) => state.proven = Some(Instant::now()),
            Err(Unproven::Ignores(why)) => {
                state.proven = None;
                state.refused = Some((Instant::now(), why.clone()));
            }
            // Another recipient's account may tell more.
            Err(Unproven::Unknown(_)) => {}
        }
    }
}

impl Drop for ProofGuard {
    fn drop(&mut self) {
        self.0.state().is_asking = false;
        self.0.asked.notify_all();
    }
}

/// Why a way may not be used.
#[derive(Debug)]
pub enum Unproven {
    /// It leads to the mailboxes of the user that logs in.
    Ignores(String),
    Unknown(Failure),
}

impl From<Unproven> for Failure {
    fn from(unproven: Unproven) -> Failure {
        match unproven {
            Unproven::Ignores(why) => StoreError::Setup(why).into(),
            Unproven::Unknown(failure) => failure,
        }
    }
}

impl From<LedgerError> for Unproven {
    fn from(error: LedgerError) -> Unproven {
        Unproven::Unknown(error.into())
    }
}

fn find_out(
    accounts: &[&str],
    host: &str,
    ledger: &dyn Proofs,
    store: &dyn Access,
    until: Instant,
) -> Result<(), Unproven> {
    match store.way() {
        Some(way) if !ledger.is_proven(&way, until)? => {
            renew(accounts, host, ledger, store, until).map(drop)
        }
        _ => Ok(()),
    }
}

/// The accounts given, and others that have a copy on record: where the first are the user's own,
/// say, or closed.
fn accounts_to_ask(
    accounts: &[&str],
    ledger: &dyn Proofs,
    until: Instant,
) -> Result<Vec<String>, LedgerError> {
    let mut asked: Vec<String> = Vec::new();
    let known = ledger.latest_copies(COPIES, until)?;
    // Half of the tries for each kind.
    let given = accounts.iter().take(ACCOUNTS / 2).map(|account| (*account).to_owned());
    for account in given.chain(known.into_iter().map(|(destination, _)| destination.account)) {
        if !asked.contains(&account) {
            asked.push(account);
        }
    }
    asked.truncate(ACCOUNTS);
    Ok(asked)
}

/// Finds out, by the first of `accounts` or of those with a copy on record with which it can be
/// told, and puts on record what came of it; returns the proof in words, or nothing where no server
/// stands between.
///
/// # Errors
/// As for [`WayProof::pass`]. A proof on record is taken off it only by a server that was seen to
/// ignore the account.
pub fn renew(
    accounts: &[&str],
    host: &str,
    ledger: &dyn Proofs,
    store: &dyn Access,
    until: Instant,
) -> Result<Option<String>, Unproven> {
    let Some(way) = store.way() else { return Ok(None) };
    let mut failure = None;
    for account in accounts_to_ask(accounts, ledger, until)? {
        match store.whose_mailboxes(&account, until) {
            Ok(MailboxOwner::Accounts(proof)) => {
                ledger.note_proof(&way, true, host, until)?;
                return Ok(Some(format!("{way} heeds for whom we log in: {proof}")));
            }
            Ok(MailboxOwner::Users(proof)) => {
                ledger.note_proof(&way, false, host, until)?;
                let user = &way.login_user;
                return Err(Unproven::Ignores(format!(
                    "{way} lets {user} log in, but ignores for whom: mail would land in {user}'s \
                     own mailbox ({proof}); see store.login"
                )));
            }
            // The first is about the recipient.
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    let why = match failure {
        Some(StoreError::Setup(why)) => why,
        Some(other) => return Err(Unproven::Unknown(other.into())),
        None => "no account is known that could tell".to_owned(),
    };
    let text = format!("{way}: nothing proves for whom it lets {} act: {why}", way.login_user);
    Err(Unproven::Unknown(StoreError::Setup(text).into()))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::ledger::memory::MemoryLedger;
    use crate::store::memory::{MemoryStore, Server};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn pass(
        gate: &Arc<WayProof>,
        accounts: &[&str],
        ledger: &MemoryLedger,
        store: &MemoryStore,
    ) -> Result<(), Failure> {
        gate.pass(accounts, "host", ledger, store, soon())
    }

    fn why(refused: Result<(), Failure>) -> String {
        match refused {
            Err(Failure::Store(StoreError::Setup(why))) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_proof_is_made_once_for_all() {
        let (ledger, store) = (MemoryLedger::default(), MemoryStore::on(Server::HeedsAccounts));
        let gate = Arc::<WayProof>::default();
        let together = Barrier::new(10);
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    together.wait();
                    pass(&gate, &["lisa"], &ledger, &store).unwrap();
                });
            }
        });
        pass(&Arc::<WayProof>::default(), &["doug"], &ledger, &store).unwrap();
        assert_eq!(store.asked_whose(), ["lisa"], "the second process finds it on record");
    }

    #[test]
    fn a_proof_that_was_taken_off_the_record_is_noticed_by_a_running_process() {
        let (ledger, heeds) = (MemoryLedger::default(), MemoryStore::on(Server::HeedsAccounts));
        let gate = Arc::<WayProof>::default();
        pass(&gate, &["lisa"], &ledger, &heeds).unwrap();
        // Another host's check has found another server by that name.
        let ignores = MemoryStore::on(Server::IgnoresAccounts);
        renew(&["lisa"], "other", &ledger, &ignores, soon()).unwrap_err();
        pass(&gate, &["lisa"], &ledger, &ignores).unwrap();
        gate.state().proven = Instant::now().checked_sub(READ_AGAIN);
        assert!(why(pass(&gate, &["lisa"], &ledger, &ignores)).contains("ignores for whom"));
    }

    #[test]
    fn where_no_server_stands_between_nobody_is_asked() {
        let (ledger, store) = (MemoryLedger::default(), MemoryStore::default());
        pass(&Arc::<WayProof>::default(), &["lisa"], &ledger, &store).unwrap();
        assert!(store.asked_whose().is_empty());
    }

    #[test]
    fn a_server_that_ignores_the_account_is_not_passed() {
        let ledger = MemoryLedger::default();
        let heeds = MemoryStore::on(Server::HeedsAccounts);
        pass(&Arc::<WayProof>::default(), &["lisa"], &ledger, &heeds).unwrap();
        // As `check` finds when another server has taken its place.
        let ignores = MemoryStore::on(Server::IgnoresAccounts);
        let seen = renew(&["lisa"], "host", &ledger, &ignores, soon());
        assert!(
            why(seen.map(drop).map_err(Failure::from))
                .contains("ignores for whom: mail would land in mda's own mailbox")
        );
        let gate = Arc::<WayProof>::default();
        assert!(why(pass(&gate, &["lisa"], &ledger, &ignores)).contains("ignores for whom"));
        assert!(why(pass(&gate, &["lisa"], &ledger, &ignores)).contains("ignores for whom"));
        assert_eq!(ignores.asked_whose().len(), 2, "it is not asked again at once");
    }

    #[test]
    fn what_cannot_be_told_takes_no_proof_off_the_record() {
        let (ledger, silent) = (MemoryLedger::default(), MemoryStore::on(Server::TellsNothing));
        assert!(
            why(pass(&Arc::<WayProof>::default(), &["lisa"], &ledger, &silent))
                .contains("nothing proves")
        );
        let heeds = MemoryStore::on(Server::HeedsAccounts);
        pass(&Arc::<WayProof>::default(), &["lisa"], &ledger, &heeds).unwrap();
        let seen = renew(&["lisa"], "host", &ledger, &silent, soon());
        assert!(why(seen.map(drop).map_err(Failure::from)).contains("nothing proves"));
        pass(&Arc::<WayProof>::default(), &["lisa"], &ledger, &silent).unwrap();
    }

    #[test]
    fn the_users_own_account_is_judged_by_another() {
        let (ledger, store) = (MemoryLedger::default(), MemoryStore::on(Server::HeedsAccounts));
        let gate = Arc::<WayProof>::default();
        assert!(why(pass(&gate, &["mda"], &ledger, &store)).contains("mda is the user itself"));
        pass(&gate, &["mda", "lisa"], &ledger, &store).unwrap();
        assert_eq!(store.asked_whose(), ["mda", "mda", "lisa"]);
    }
}
