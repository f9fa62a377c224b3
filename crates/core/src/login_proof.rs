//! Proves that a login on behalf of an account opens that account's mailboxes. An IMAP server may
//! let our user in and ignore the authorization identity (RFC 4616); everybody's mail would lie in
//! that user's own mailbox. So before anything is written through a server for the first time the
//! store finds out, and the proof is put on record in the ledger, for all hosts. Without it nothing
//! is written, and the mail waits. In a file system the way is right if the folder above all
//! mailboxes is the one that the ledger knows ([`MailRoot`]).
//!
//! Both doors and `verify --repair` call [`WayProof::pass`] before they write; once the proof is on
//! record that costs a process one read by a primary key, and a server one each minute. `check`
//! renews it ([`renew`]), and so does the server's start, whose mail waits: a login that is refused
//! takes a mail server seconds, so that is done without one where a proof is on record.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::{Clock, SystemClock};
use crate::deliver::Failure;
use crate::ledger::{LedgerError, Proofs};
use crate::mail_root::MailRoot;
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
pub struct WayProof {
    state: Mutex<ProofState>,
    asked: Condvar,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct ProofState {
    proven: Option<Instant>,
    /// What was found at the root when the ledger knew it, and when that was.
    root: Option<(MailRoot, Instant)>,
    is_asking: bool,
    refused: Option<(Instant, String)>,
}

impl Default for WayProof {
    fn default() -> WayProof {
        WayProof::by(Arc::new(SystemClock))
    }
}

impl WayProof {
    /// Nothing is known yet; `clock` says how old it is later.
    pub fn by(clock: Arc<dyn Clock>) -> WayProof {
        WayProof { state: Mutex::default(), asked: Condvar::new(), clock }
    }

    /// Returns if the way is proven: to this process, on record, or now, by one of `accounts` or of
    /// those with a copy on record. Others wait for whoever asks.
    ///
    /// # Errors
    /// [`StoreError::Setup`]: it leads elsewhere, or that cannot be found out. Also where the
    /// ledger or the server cannot be asked, nothing may be written.
    pub fn pass(
        self: &Arc<Self>,
        accounts: &[&str],
        host: &str,
        ledger: &dyn Proofs,
        store: &dyn Access,
        until: Instant,
    ) -> Result<(), Failure> {
        self.pass_root(ledger, store, until)?;
        let mut state = self.state();
        loop {
            let age = |at: &Instant| self.clock.now().saturating_duration_since(*at);
            if state.proven.is_some_and(|at| age(&at) < READ_AGAIN) {
                return Ok(());
            }
            if let Some((_, why)) = state.refused.as_ref().filter(|(at, _)| age(at) < PAUSE) {
                return Err(StoreError::Setup(why.clone()).into());
            }
            if !state.is_asking {
                break;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "whether the mail server opens the account that Onedrop names was not \
                           known in time";
                return Err(StoreError::NotStored(why.to_owned()).into());
            }
            state = self.asked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        // Before the lock is let go: of those who come now, one asks.
        state.is_asking = true;
        drop(state);
        let asking = ProofGuard(Arc::clone(self));
        let passed = match store.way().map(|way| ledger.is_proven(&way, until)) {
            Some(Ok(false)) => renew(accounts, host, ledger, store, until).map(drop),
            Some(Err(error)) => Err(error.into()),
            Some(Ok(true)) | None => Ok(()),
        };
        asking.end(&passed);
        Ok(passed?)
    }

    /// Returns if the folder above all mailboxes is the one that the ledger knows, or there is
    /// none. The folder is looked at each time: its file system may go at any time.
    ///
    /// # Errors
    /// [`StoreError::Setup`]: it is another one, or none. Also where it or the ledger cannot be
    /// asked, nothing may be written.
    pub fn pass_root(
        &self,
        ledger: &dyn Proofs,
        store: &dyn Access,
        until: Instant,
    ) -> Result<(), Failure> {
        let Some(root) = store.root() else { return Ok(()) };
        let found = MailRoot::find(root).map_err(StoreError::NotStored)?;
        let now = self.clock.now();
        let is_recent = |at: Instant| now.saturating_duration_since(at) < READ_AGAIN;
        if !self.state().root.as_ref().is_some_and(|(is, at)| *is == found && is_recent(*at)) {
            found.is_known(root, ledger, until)?;
            self.state().root = Some((found, now));
        }
        Ok(())
    }

    /// Whether it was seen to have its mark: then what is not below it is not there.
    pub fn root_is_marked(&self) -> bool {
        matches!(self.state().root, Some((MailRoot::Marked(_), _)))
    }

    /// Lets no delivery pass until what is returned has ended.
    pub fn begin(self: &Arc<Self>) -> ProofGuard {
        self.state().is_asking = true;
        ProofGuard(Arc::clone(self))
    }

    fn state(&self) -> MutexGuard<'_, ProofState> {
        // Nothing that can panic is done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody is finding out; over when dropped.
pub struct ProofGuard(Arc<WayProof>);

impl ProofGuard {
    /// Renews the proof, in the process that has begun to; others wait for it. If one is on record
    /// it is enough that two accounts do not have the same INBOX: if the server ignored the
    /// authorization identity, both would have the user's. Else, and where no two such accounts are
    /// known, it is found out as [`renew`] does.
    ///
    /// # Errors
    /// Those of [`renew`].
    pub fn renew(
        self,
        accounts: &[&str],
        host: &str,
        ledger: &dyn Proofs,
        store: &dyn Access,
        until: Instant,
    ) -> Result<Option<String>, Unproven> {
        let renewed = match by_two_accounts(accounts, host, ledger, store, until) {
            Some(proof) => Ok(Some(proof)),
            None => renew(accounts, host, ledger, store, until),
        };
        self.end(&renewed);
        renewed
    }

    /// Ends the wait of the others, with the result.
    fn end<T>(self, passed: &Result<T, Unproven>) {
        let (mut state, now) = (self.0.state(), self.0.clock.now());
        match passed {
            Ok(_) => state.proven = Some(now),
            Err(Unproven::Ignores(why)) => {
                state.proven = None;
                state.refused = Some((now, why.clone()));
            }
            // Another recipient's account may prove more.
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

/// Finds out, by the first of `accounts` or of those with a copy on record that can show it, and
/// records the result; returns the proof as a sentence, or nothing where no server stands between.
///
/// # Errors
/// Those of [`WayProof::pass`]. A proof on record is taken off it only by a server that was seen to
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
    for account in to_ask(accounts, ledger, until)? {
        match store.whose_mailboxes(&account, until) {
            Ok(MailboxOwner::Accounts(proof)) => {
                ledger.note_proof(&way, true, host, until)?;
                return Ok(Some(format!(
                    "{way} opens the mailboxes of the account that Onedrop names: {proof}"
                )));
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

/// Renews a proof that is on record without a login for the user itself; returns it as a sentence.
fn by_two_accounts(
    accounts: &[&str],
    host: &str,
    ledger: &dyn Proofs,
    store: &dyn Access,
    until: Instant,
) -> Option<String> {
    let way = store.way()?;
    if !matches!(ledger.is_proven(&way, until), Ok(true)) {
        return None;
    }
    let known = to_ask(accounts, ledger, until).ok()?;
    let (one, others) = known.split_first()?;
    let other = others.iter().find(|other| store.are_apart(one, other, until).unwrap_or(false))?;
    ledger.note_proof(&way, true, host, until).ok()?;
    Some(format!("{way} heeds for whom we log in: {one} and {other} have different INBOXes"))
}

/// The accounts that can perhaps show it. Half of the tries are for those given, which may be the
/// user's own, say, or closed.
fn to_ask(
    accounts: &[&str],
    ledger: &dyn Proofs,
    until: Instant,
) -> Result<Vec<String>, LedgerError> {
    let known = ledger.latest_copies(COPIES, until)?;
    let known = known.into_iter().map(|(destination, _)| destination.account);
    let given = accounts.iter().take(ACCOUNTS / 2).map(|account| (*account).to_owned());
    let mut asked: Vec<String> = Vec::new();
    for account in given.chain(known) {
        if !asked.contains(&account) {
            asked.push(account);
        }
    }
    asked.truncate(ACCOUNTS);
    Ok(asked)
}
