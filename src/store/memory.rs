//! A store in memory, for tests: it keeps every promise of the port, behaves like an IMAP server or
//! like a Maildir, and can be told to fail at any call. Clones share the mailboxes. Nothing
//! outlives the process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::{Copy, Found, Proof, Receipt, Sought, Store, StoreError, Way, Whose};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::lock_key::Hash;
use crate::message::Identity;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What a [`MemoryStore`] does instead of its work, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The next look fails.
    Look,
    /// The next append fails before anything is written.
    NotStored,
    /// The next append is written and its answer lost.
    StoredInDoubt,
    /// The next append is not written and its answer lost.
    LostInDoubt,
    /// The next append panics before anything is written.
    Panic,
    /// The account is over its quota at the next append.
    OverQuota,
    /// The mailbox takes no copy at the next append.
    Refused,
    /// Nobody may write for the account at the next append.
    NoAccount,
    /// The store does not let us in at the next append.
    Setup,
    /// The next removal fails.
    Remove,
}

/// One stored copy.
#[derive(Debug, Clone)]
pub struct Stored {
    pub uid: u32,
    pub key: Hash,
    pub bytes: Vec<u8>,
    pub seen: bool,
    pub date: SystemTime,
    pub marked_deleted: bool,
    identity: Identity,
}

/// Mailboxes in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
    idempotent: bool,
    server: Option<Server>,
}

/// A server that a store in memory is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// Sessions show the mailboxes of the account that is named.
    HeedsAccounts,
    /// Sessions show those of the user that logs in.
    IgnoresAccounts,
    /// It does not let anybody find out.
    TellsNothing,
}

#[derive(Debug, Default)]
struct Shared {
    mailboxes: BTreeMap<(String, String), Vec<Stored>>,
    next_uid: u32,
    faults: VecDeque<Fault>,
    asked_whose: Vec<String>,
}

impl MemoryStore {
    /// Like a Maildir: the append is idempotent.
    pub fn idempotent() -> MemoryStore {
        MemoryStore { idempotent: true, ..MemoryStore::default() }
    }

    /// On a server, whose user is `mda`.
    pub fn on(server: Server) -> MemoryStore {
        MemoryStore { server: Some(server), ..MemoryStore::default() }
    }

    /// Makes the next call that `fault` concerns fail.
    pub fn fail(&self, fault: Fault) {
        self.shared().faults.push_back(fault);
    }

    /// The copies in `account/mailbox`, oldest first.
    pub fn copies(&self, account: &str, mailbox: &str) -> Vec<Stored> {
        self.shared()
            .mailboxes
            .get(&(account.to_owned(), mailbox.to_owned()))
            .cloned()
            .unwrap_or_default()
    }

    /// Lets the owner of a mailbox have their way with what is in it, oldest first.
    pub fn meddle(&self, account: &str, mailbox: &str, with: impl FnOnce(&mut Vec<Stored>)) {
        with(self.shared().mailboxes.entry((account.to_owned(), mailbox.to_owned())).or_default());
    }

    /// For which accounts it was asked whose mailboxes a session shows.
    pub fn asked_whose(&self) -> Vec<String> {
        self.shared().asked_whose.clone()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // A panic in a test's append must not poison the mailboxes that the test then counts.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Whether the next fault is one of `wanted`; it is then used up.
    fn fault(&mut self, wanted: &[Fault]) -> Option<Fault> {
        let fault = *self.faults.front().filter(|fault| wanted.contains(fault))?;
        self.faults.pop_front();
        Some(fault)
    }
}

fn place(destination: &Destination) -> (String, String) {
    (destination.account.clone(), destination.mailbox.clone())
}

fn receipt(uid: u32) -> Receipt {
    Receipt::Uid { validity: 1, uid }
}

impl Store for MemoryStore {
    fn append_is_idempotent(&self) -> bool {
        self.idempotent
    }

    fn prepare(&mut self, _account: &str, _until: Instant) {}

    fn find(
        &mut self,
        destination: &Destination,
        sought: &Sought<'_>,
        _until: Instant,
    ) -> Result<Vec<Found>, StoreError> {
        let mut shared = self.shared();
        if shared.fault(&[Fault::Look]).is_some() {
            return Err(StoreError::NotStored("told to fail".to_owned()));
        }
        let day_before = sought.recorded_at.checked_sub(DAY);
        let mut left = sought.at_most;
        let is_sought = |stored: &&Stored| {
            let is_equal =
                stored.identity == *sought.identity && Some(stored.date) >= day_before && left > 0;
            let is_on_record = sought.on_record == Some(&receipt(stored.uid));
            left -= usize::from(is_equal && !is_on_record);
            is_on_record || is_equal
        };
        let found = |stored: &Stored| Found {
            receipt: receipt(stored.uid),
            has_our_date: stored.date == sought.recorded_at,
            marked_deleted: stored.marked_deleted,
            proof: if stored.identity == *sought.identity { Proof::Equal } else { Proof::Foreign },
        };
        let stored = shared.mailboxes.get(&place(destination)).into_iter().flatten();
        Ok(stored.rev().filter(is_sought).map(found).collect())
    }

    fn append(
        &mut self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        let mut shared = self.shared();
        let refusals = [Fault::OverQuota, Fault::Refused, Fault::NoAccount, Fault::Setup];
        let appends = [Fault::NotStored, Fault::StoredInDoubt, Fault::LostInDoubt, Fault::Panic];
        let fault = shared.fault(&[&appends[..], &refusals].concat());
        let told = || "told to fail".to_owned();
        match fault {
            Some(Fault::NotStored) => return Err(StoreError::NotStored(told())),
            Some(Fault::OverQuota) => return Err(StoreError::OverQuota(told())),
            Some(Fault::Refused) => return Err(StoreError::Refused(told())),
            Some(Fault::NoAccount) => return Err(StoreError::NoAccount(told())),
            Some(Fault::Setup) => return Err(StoreError::Setup(told())),
            Some(Fault::Panic) => panic!("told to panic"),
            _ => {}
        }
        deadline
            .pass_point_of_no_return()
            .map_err(|error| StoreError::NotStored(error.to_string()))?;
        if fault == Some(Fault::LostInDoubt) {
            return Err(StoreError::InDoubt("told to lose the answer".to_owned()));
        }
        shared.next_uid += 1;
        let uid = shared.next_uid;
        let idempotent = self.idempotent;
        let mailbox = shared.mailboxes.entry(place(destination)).or_default();
        if let Some(there) = mailbox.iter().find(|stored| idempotent && stored.key == *copy.key) {
            return Ok(receipt(there.uid));
        }
        mailbox.push(Stored {
            uid,
            key: *copy.key,
            bytes: [copy.head, copy.bytes].concat(),
            seen: destination.shared,
            date: copy.recorded_at,
            marked_deleted: false,
            identity: copy.identity.clone(),
        });
        if fault == Some(Fault::StoredInDoubt) {
            return Err(StoreError::InDoubt("told to lose the answer".to_owned()));
        }
        Ok(receipt(uid))
    }

    fn remove(
        &mut self,
        destination: &Destination,
        wanted: &Receipt,
        _until: Instant,
    ) -> Result<(), StoreError> {
        let mut shared = self.shared();
        if shared.fault(&[Fault::Remove]).is_some() {
            return Err(StoreError::NotStored("told to fail".to_owned()));
        }
        if !matches!(wanted, Receipt::Uid { .. }) {
            return Err(StoreError::NotStored(format!("receipt {wanted} names no message")));
        }
        if let Some(mailbox) = shared.mailboxes.get_mut(&place(destination)) {
            mailbox.retain(|stored| receipt(stored.uid) != *wanted);
        }
        Ok(())
    }

    fn remove_double(
        &mut self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        let copies = self.copies(&destination.account, &destination.mailbox);
        let stands = |wanted: &Receipt| {
            copies.iter().any(|one| receipt(one.uid) == *wanted && !one.marked_deleted)
        };
        if double == keeper || !stands(double) || !stands(keeper) {
            return Err(StoreError::NotStored(format!(
                "{double} and {keeper} do not stand side by side"
            )));
        }
        self.remove(destination, double, until)
    }

    fn way(&self) -> Option<Way> {
        let way =
            || Way { server: "memory:143".into(), login_user: "mda".into(), form: "sasl".into() };
        self.server.map(|_| way())
    }

    fn whose_mailboxes(&mut self, account: &str, _until: Instant) -> Result<Whose, StoreError> {
        self.shared().asked_whose.push(account.to_owned());
        match self.server {
            _ if account == "mda" => Err(StoreError::Setup("mda is the user itself".to_owned())),
            Some(Server::TellsNothing) => Err(StoreError::Setup("told to tell nothing".to_owned())),
            Some(Server::IgnoresAccounts) => Ok(Whose::Users(format!("asked for {account}"))),
            Some(Server::HeedsAccounts) | None => {
                Ok(Whose::Accounts(format!("asked for {account}")))
            }
        }
    }

    fn check(&mut self, _account: &str, _until: Instant) -> Result<Vec<String>, StoreError> {
        Ok(vec!["in memory".to_owned()])
    }
}
