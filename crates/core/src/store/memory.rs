//! A store in memory, for tests: it keeps every promise of the port and behaves like an IMAP server
//! (each append is a copy, named by its UID, and may take effect after its sender gave up) or like
//! Maildirs (a copy's file is named after its key, and reserved copies are locked). Clones share
//! the mailboxes; each stands for another host or process. A [`Hook`] sees every call. Nothing
//! outlives the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::port::{Mailboxes, Need, Slot, Store, StoreTraits};
use super::{
    Copy, CopySearch, FoundCopy, LookBack, LookedBack, Mark, Naming, Proof, Receipt, StoreError,
};
use crate::connections::Connections;
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::hook::{Call, Hook};
use crate::lock_key::{self, Hash};
use crate::message::{DedupBy, Identity};
use crate::receipt;

use finding::{found_by_identity, found_by_name};
pub use handed::Filters;
use handed::OurFields;

mod access;
mod finding;
mod handed;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// One stored copy.
#[derive(Debug, Clone)]
pub struct Stored {
    pub uid: u32,
    pub key: Hash,
    pub bytes: Vec<u8>,
    pub seen: bool,
    pub date: SystemTime,
    pub marked_deleted: bool,
    /// Like a Maildir: a reader has renamed its file.
    pub renamed: bool,
    identity: Identity,
}

impl Stored {
    /// Like a Maildir: the file's name, but for what a reader adds to it.
    fn name(&self) -> String {
        file_name(&self.key, self.date)
    }

    /// Like a Maildir: folder and file.
    fn file(&self) -> String {
        match (self.renamed, self.seen) {
            (true, _) => format!("cur/{}:2,RS{}", self.name(), self.uid),
            (false, true) => format!("cur/{}:2,S", self.name()),
            (false, false) => format!("new/{}", self.name()),
        }
    }

    fn has_same_id(&self, sought: &CopySearch<'_>) -> bool {
        sought.by_id && sought.identity.has_same_id(&self.bytes)
    }

    fn found(&self, receipt: Receipt, naming: Naming, sought: &CopySearch<'_>) -> FoundCopy {
        let is_equal = self.identity == *sought.identity;
        FoundCopy {
            receipt,
            naming,
            has_our_date: self.date == sought.recorded_at,
            marked_deleted: self.marked_deleted,
            handed: None,
            is_wrapped: false,
            proof: match is_equal {
                true if !sought.by_id || self.date == sought.recorded_at => Proof::Equal,
                true if self.has_same_id(sought) => Proof::SameContent,
                true => Proof::Equal,
                false if self.has_same_id(sought) => Proof::SameId,
                false => Proof::Foreign,
            },
        }
    }
}

fn file_name(key: &Hash, date: SystemTime) -> String {
    let secs = date.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{secs}.{}", lock_key::hex(&key[..8]))
}

/// A handle on mailboxes in memory.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
    idempotent: bool,
    /// It says by which UID it stored a copy, and takes out one by its UID (RFC 4315, UIDPLUS).
    has_uidplus: bool,
    /// Of a server's own delivery, to which recipients' copies are handed over.
    filters: Option<Filters>,
    hook: Arc<dyn Hook<StoreError>>,
}

/// An append, and whether it makes its mailbox if that is not there.
struct PendingAppend {
    place: Place,
    makes: bool,
    stored: Stored,
    handed: Option<OurFields>,
}

/// Account and mailbox.
type Place = (String, String);

#[derive(Default)]
struct Shared {
    mailboxes: BTreeMap<Place, Vec<Stored>>,
    /// The copies that are reserved.
    locked: BTreeSet<Hash>,
    next_uid: u32,
    /// Appends whose last bytes are out and that have not taken effect.
    under_way: BTreeMap<u64, PendingAppend>,
    /// Those that have, and whose senders do not know yet; `None`: the mailbox was gone.
    done: BTreeMap<u64, Option<Receipt>>,
    next_append: u64,
    /// The values that the server has carried out a delivery for, by account.
    carried_out: BTreeMap<String, Vec<[u8; 16]>>,
    /// The accounts in the middle of whose delivery the server has died.
    died_for: BTreeSet<String>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let (shared, hook) = (Arc::default(), Arc::new(()));
        MemoryStore { shared, idempotent: false, has_uidplus: true, filters: None, hook }
    }
}

impl MemoryStore {
    /// Like Maildirs: the append is idempotent.
    pub fn idempotent() -> MemoryStore {
        MemoryStore { idempotent: true, ..MemoryStore::default() }
    }

    /// Like an IMAP server that does not name what it stores.
    pub fn without_uidplus() -> MemoryStore {
        MemoryStore { has_uidplus: false, ..MemoryStore::default() }
    }

    /// Another handle, whose calls go through `hook`.
    pub fn with_hook(&self, hook: Arc<dyn Hook<StoreError>>) -> MemoryStore {
        MemoryStore { hook, ..self.clone() }
    }

    /// The copies in `account/mailbox`, oldest first.
    pub fn copies(&self, account: &str, mailbox: &str) -> Vec<Stored> {
        let place = (account.to_owned(), mailbox.to_owned());
        self.shared().mailboxes.get(&place).cloned().unwrap_or_default()
    }

    /// Lets the owner make a mailbox.
    pub fn make_mailbox(&self, account: &str, mailbox: &str) {
        self.meddle(account, mailbox, |_| ());
    }

    /// Lets the owner take a mailbox away, with what is in it.
    pub fn delete_mailbox(&self, account: &str, mailbox: &str) {
        self.shared().mailboxes.remove(&(account.to_owned(), mailbox.to_owned()));
    }

    /// Lets the owner of a mailbox have their way with what is in it, oldest first.
    pub fn meddle(&self, account: &str, mailbox: &str, with: impl FnOnce(&mut Vec<Stored>)) {
        with(self.shared().mailboxes.entry((account.to_owned(), mailbox.to_owned())).or_default());
    }

    /// Lets the owner's mail program save a message.
    pub fn save(&self, account: &str, mailbox: &str, bytes: &[u8], date: SystemTime) {
        let mut shared = self.shared();
        shared.next_uid += 1;
        let uid = shared.next_uid;
        let stored = Stored {
            uid,
            key: lock_key::name_hash(&format!("saved {uid}")),
            bytes: bytes.to_vec(),
            seen: true,
            date,
            marked_deleted: false,
            renamed: false,
            identity: Identity::of(bytes, DedupBy::Content),
        };
        let place = (account.to_owned(), mailbox.to_owned());
        shared.mailboxes.entry(place).or_default().push(stored);
    }

    /// The appends whose last bytes are out and that have not taken effect, by their numbers, which
    /// rise.
    pub fn under_way(&self) -> Vec<u64> {
        self.shared().under_way.keys().copied().collect()
    }

    /// Lets such an append take effect, if it has not.
    pub fn take_effect(&self, number: u64) {
        let mut shared = self.shared();
        if let Some(PendingAppend { place, makes, stored, handed }) =
            shared.under_way.remove(&number)
        {
            if let (Some(filters), Some(ours)) = (self.filters, handed) {
                let receipt = shared.carry_out(filters, place.0, stored, ours);
                if let Some(receipt) = receipt {
                    shared.done.insert(number, Some(receipt));
                }
                return;
            }
            if !makes && !shared.mailboxes.contains_key(&place) {
                shared.done.insert(number, None);
                return;
            }
            shared.next_uid += 1;
            let stored = Stored { uid: shared.next_uid, ..stored };
            shared.done.insert(number, Some(self.receipt(&stored)));
            let mailbox = shared.mailboxes.entry(place).or_default();
            if !self.idempotent || mailbox.iter().all(|there| there.file() != stored.file()) {
                mailbox.push(stored);
            }
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // A panic in a test's append must not poison the mailboxes that the test then counts.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(
        &self,
        name: &'static str,
        destination: Option<&Destination>,
        work: impl FnOnce(&mut Shared) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let call = Call { name, destination };
        self.hook.before(&call)?;
        let result = work(&mut self.shared());
        self.hook.after(&call)?;
        result
    }

    /// What names a stored copy.
    pub fn receipt(&self, stored: &Stored) -> Receipt {
        match self.idempotent {
            true => Receipt::name(stored.name()),
            false => receipt(stored.uid),
        }
    }

    /// What names it and no other one.
    fn exact(&self, stored: &Stored) -> Receipt {
        match self.idempotent {
            true => Receipt::name(stored.file()),
            false => receipt(stored.uid),
        }
    }

    /// Does what [`Mailboxes::find_all`] does.
    fn seek(
        &self,
        name: &'static str,
        destination: &Destination,
        sought: &[CopySearch<'_>],
    ) -> Result<Vec<Vec<FoundCopy>>, StoreError> {
        self.call(name, Some(destination), |shared| {
            let stored = || shared.mailboxes.get(&place(destination)).into_iter().flatten();
            let found = |sought: &CopySearch<'_>| match (self.idempotent, sought.handed) {
                (_, Some(value)) if self.filters.is_some() => {
                    shared.found_anywhere(&destination.account, value, sought)
                }
                (true, _) => found_by_name(stored(), name == "look", sought),
                (false, _) => found_by_identity(stored().rev(), shared.next_since(sought), sought),
            };
            Ok(sought.iter().map(found).collect())
        })
    }
}

impl Shared {
    /// The lowest UID of what came since a look back.
    fn next_since(&self, sought: &CopySearch<'_>) -> u32 {
        let next_uid = Some(self.next_uid + 1);
        sought.looked.and_then(|looked| looked.next_in("", 0, next_uid)).unwrap_or(0)
    }

    /// The last bytes of an append go out.
    fn send(&mut self, destination: &Destination, copy: &Copy<'_>) -> u64 {
        let stored = Stored {
            uid: 0, // given when it takes effect
            key: *copy.key,
            bytes: [copy.head, copy.bytes].concat(),
            seen: destination.shared,
            date: copy.recorded_at,
            marked_deleted: false,
            renamed: false,
            identity: copy.identity.clone(),
        };
        let handed = copy.handed.as_ref().map(OurFields::new);
        self.next_append += 1;
        let (place, makes) = (place(destination), destination.stand_in().is_none());
        self.under_way.insert(self.next_append, PendingAppend { place, makes, stored, handed });
        self.next_append
    }
}

fn place(destination: &Destination) -> Place {
    (destination.account.clone(), destination.place().to_owned())
}

fn receipt(uid: u32) -> Receipt {
    Receipt::uid(1, uid)
}

impl Store for MemoryStore {
    fn traits(&self) -> StoreTraits {
        StoreTraits {
            append_is_idempotent: self.idempotent,
            numbered_by: (!self.idempotent).then_some(receipt::UID),
            keeps_nul: self.idempotent,
            hands_over_to: self.filters.map(|_| "memory".to_owned()),
        }
    }

    fn prepare(&self, _account: &str, _until: Instant) {}

    fn let_go(&self, _account: &str) {}

    fn reserve<'a>(
        &'a self,
        destination: &'a Destination,
        copy: Copy<'a>,
        need: Need,
        deadline: &'a Deadline,
    ) -> Result<Option<Box<dyn Slot + 'a>>, StoreError> {
        let name = if need == Need::Early { "begin" } else { "reserve" };
        self.call(name, Some(destination), |shared| {
            let is_free = !self.idempotent || shared.locked.insert(*copy.key);
            let slot = || MemorySlot { store: self, destination, copy, deadline, found_try: None };
            Ok(is_free.then(|| Box::new(slot()) as Box<dyn Slot>))
        })
    }

    fn look_back(
        &self,
        destination: &Destination,
        sought: &LookBack,
        _until: Instant,
    ) -> Result<Option<LookedBack>, StoreError> {
        if self.idempotent {
            return Ok(None);
        }
        let mark = Mark { validity: 0, next: self.shared().next_uid + 1 };
        let found = self.seek("look_back", destination, &[sought.sought()])?;
        let found = found.into_iter().flatten().next();
        // All mailboxes number their messages together.
        Ok(Some(LookedBack { found, marks: [(String::new(), mark)].into() }))
    }

    fn remove(
        &self,
        destination: &Destination,
        wanted: &Receipt,
        sought: Option<&CopySearch<'_>>,
        _until: Instant,
    ) -> Result<(), StoreError> {
        self.call("remove", Some(destination), |shared| {
            if *wanted == Receipt::UNNAMED || !self.has_uidplus {
                return Err(StoreError::NotStored(format!("receipt {wanted} names no message")));
            }
            let mailbox = shared.mailboxes.entry(place(destination)).or_default();
            let is_it = |one: &Stored| [self.receipt(one), self.exact(one)].contains(wanted);
            let is_another = |one: &Stored| sought.is_some_and(|it| one.identity != *it.identity);
            if mailbox.iter().any(|one| is_it(one) && is_another(one)) {
                return Err(StoreError::NotStored(format!("{wanted} is another message now")));
            }
            mailbox.retain(|one| !is_it(one));
            Ok(())
        })
    }
}

/// A place for one copy.
struct MemorySlot<'a> {
    store: &'a MemoryStore,
    destination: &'a Destination,
    copy: Copy<'a>,
    deadline: &'a Deadline,
    found_try: Option<i64>,
}

impl Drop for MemorySlot<'_> {
    fn drop(&mut self) {
        self.store.shared().locked.remove(self.copy.key);
    }
}

impl Slot for MemorySlot<'_> {
    fn look(&mut self, _until: Instant) -> Result<Option<Receipt>, StoreError> {
        let found = match self.copy.looked.and_then(|looked| looked.found.clone()) {
            Some(found) => Some(found),
            None => {
                let found = self.store.seek("look", self.destination, &[self.copy.sought()])?;
                found.into_iter().flatten().next()
            }
        };
        self.found_try = found.as_ref().and_then(FoundCopy::of_try);
        Ok(found.map(|found| found.to_record()))
    }

    fn found_try(&self) -> Option<i64> {
        self.found_try
    }

    fn append(&mut self) -> Result<Receipt, StoreError> {
        let MemorySlot { store, destination, copy, deadline, .. } = self;
        let call = Call { name: "append", destination: Some(*destination) };
        store.hook.before(&call)?;
        let is_there = store.shared().mailboxes.contains_key(&place(destination));
        if !is_there && destination.stand_in().is_some() {
            return Err(StoreError::Refused(format!("{destination} is not there")));
        }
        if copy.handed.is_some() && store.shared().is_delivering(&destination.account) {
            return Err(StoreError::Contended(format!("another delivery to {destination}")));
        }
        let in_time = deadline.pass_point_of_no_return();
        in_time.map_err(|error| StoreError::NotStored(error.to_string()))?;
        let number = store.shared().send(destination, copy);
        if let Err(error) = store.hook.within(&call) {
            if !matches!(error, StoreError::InDoubt(_)) {
                store.shared().under_way.remove(&number);
            }
            return Err(error);
        }
        store.take_effect(number);
        let receipt = store.shared().done.remove(&number);
        store.hook.after(&call)?;
        match receipt {
            Some(None) if store.idempotent => {
                Err(StoreError::NotStored(format!("{destination} is gone")))
            }
            Some(None) => Err(StoreError::Refused(format!("{destination} is gone"))),
            Some(Some(_)) if !store.has_uidplus => Ok(Receipt::UNNAMED),
            Some(Some(receipt)) => Ok(receipt),
            None => Err(StoreError::InDoubt("its sender gave it up".to_owned())),
        }
    }
}

impl Mailboxes for MemoryStore {
    fn find_all(
        &self,
        destination: &Destination,
        sought: &[CopySearch<'_>],
        _until: Instant,
    ) -> Result<Vec<Vec<FoundCopy>>, StoreError> {
        self.seek("find", destination, sought)
    }

    fn remove_double(
        &self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        _until: Instant,
    ) -> Result<(), StoreError> {
        self.call("remove_double", Some(destination), |shared| {
            if !self.has_uidplus {
                return Err(StoreError::NotStored(format!("{double} names no message")));
            }
            let mailbox = shared.mailboxes.entry(place(destination)).or_default();
            let is_double = |one: &Stored| {
                [self.exact(one), self.receipt(one)].contains(double) && !one.marked_deleted
            };
            let is_keeper = |one: &Stored| {
                !is_double(one) && self.receipt(one) == *keeper && !one.marked_deleted
            };
            if !(mailbox.iter().any(is_double) && mailbox.iter().any(is_keeper)) {
                let text = format!("{double} and {keeper} do not stand side by side");
                return Err(StoreError::NotStored(text));
            }
            mailbox.retain(|one| !is_double(one));
            Ok(())
        })
    }

    fn remove_handed_double(
        &self,
        account: &str,
        double: &FoundCopy,
        keeper: &FoundCopy,
        _until: Instant,
    ) -> Result<(), StoreError> {
        self.call("remove_double", None, |shared| shared.remove_handed(account, double, keeper))
    }
}

impl Connections for MemoryStore {}
