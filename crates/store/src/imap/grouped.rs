//! Small appends to one mailbox at the same time. A mail server lets one in at a time and syncs for
//! each, so those that come while one is under way go together, in one command (MULTIAPPEND, RFC
//! 3502): 16 deliveries to one mailbox wait for two syncs instead of 16. With 4 connections 70 %
//! more messages go into it in a second, with 10 twice as many. A copy whose turn does not come in
//! time is certainly not stored; one whose leader panics is in doubt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use onedrop_core::deadline::Deadline;
use onedrop_core::directory::Destination;
use onedrop_core::group_commit::{GroupCommit, Waited};
use onedrop_core::lock_key::Hash;
use onedrop_core::message::Identity;
use onedrop_core::store::{Copy, Receipt, StoreError};

/// How many messages go in one command at most.
const MOST: usize = 16;
/// Larger ones go alone, in bytes: their transfer costs more than the sync.
const SMALL: usize = 64 * 1024;

/// The result of one append.
pub type Appended = Result<Receipt, StoreError>;

/// Whether `copy` is so small that it goes together with others.
pub fn is_small(copy: &Copy<'_>) -> bool {
    copy.head.len() + copy.bytes.len() <= SMALL
}

/// The appends that are under way, by account and mailbox.
#[derive(Default)]
pub struct Appends(Mutex<HashMap<(String, String), Weak<MailboxAppends>>>);

struct MailboxAppends {
    group: GroupCommit<OwnedCopy, Appended>,
    /// An append has begun early.
    has_begun: AtomicBool,
}

/// A copy that another thread may append.
struct OwnedCopy {
    key: Hash,
    head: Vec<u8>,
    bytes: Vec<u8>,
    identity: Identity,
    recorded_at: SystemTime,
    looks_back: bool,
    deadline: Deadline,
}

impl Appends {
    /// Notes that an append to `destination` begins early; others do not wait for it. `None` where
    /// other appends are under way: then it is better to go with them.
    pub fn begin(&self, destination: &Destination) -> Option<EarlyMark> {
        let mailbox = self.mailbox(destination);
        let is_first =
            mailbox.group.count() == (0, 0) && !mailbox.has_begun.swap(true, Ordering::Relaxed);
        is_first.then(|| EarlyMark(mailbox))
    }

    /// Has `copy` appended to `destination`: by `append`, with those that wait (it gets this one
    /// first and returns their results in the same order), or by another thread's.
    ///
    /// # Errors
    /// Those of `append` for this copy, or its turn did not come while last bytes may go out.
    pub fn append(
        &self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
        append: impl FnOnce(&[(Copy<'_>, &Deadline)]) -> Vec<Appended>,
    ) -> Appended {
        let mailbox = self.mailbox(destination);
        let owned = || OwnedCopy::of(copy, deadline);
        let leader = match mailbox.group.wait(owned, deadline.last_bytes()) {
            Waited::Leads(leader) => leader,
            Waited::Done(appended) => return appended,
            Waited::TimedOut => {
                let why = format!("the appends to {destination} before this one take too long");
                return Err(StoreError::NotStored(why));
            }
        };
        let mut copies = vec![(*copy, deadline)];
        copies.extend(leader.jobs().map(|one| (one.copy(), &one.deadline)));
        let mut appended = append(&copies).into_iter();
        let own = appended.next().unwrap_or_else(abandoned);
        leader.done(appended);
        own
    }

    /// What all appends to `destination` share; forgotten some time after the last of them.
    fn mailbox(&self, destination: &Destination) -> Arc<MailboxAppends> {
        // Nothing that can panic is done under this lock.
        let mut mailboxes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (destination.account.clone(), destination.place().to_owned());
        if let Some(mailbox) = mailboxes.get(&key).and_then(Weak::upgrade) {
            return mailbox;
        }
        mailboxes.retain(|_, mailbox| mailbox.strong_count() > 0);
        let mailbox = Arc::<MailboxAppends>::default();
        mailboxes.insert(key, Arc::downgrade(&mailbox));
        mailbox
    }
}

impl Default for MailboxAppends {
    fn default() -> MailboxAppends {
        let group = GroupCommit::new(1, MOST, None, abandoned);
        MailboxAppends { group, has_begun: AtomicBool::new(false) }
    }
}

fn abandoned() -> Appended {
    Err(StoreError::InDoubt("the thread that appended it did not say what came of it".to_owned()))
}

/// An append that has begun early; over when dropped.
pub struct EarlyMark(Arc<MailboxAppends>);

impl Drop for EarlyMark {
    fn drop(&mut self) {
        self.0.has_begun.store(false, Ordering::Relaxed);
    }
}

impl OwnedCopy {
    fn of(copy: &Copy<'_>, deadline: &Deadline) -> OwnedCopy {
        OwnedCopy {
            key: *copy.key,
            head: copy.head.to_vec(),
            bytes: copy.bytes.to_vec(),
            identity: copy.identity.clone(),
            recorded_at: copy.recorded_at,
            looks_back: copy.looks_back,
            deadline: deadline.clone(),
        }
    }

    fn copy(&self) -> Copy<'_> {
        Copy {
            key: &self.key,
            head: &self.head,
            bytes: &self.bytes,
            identity: &self.identity,
            recorded_at: self.recorded_at,
            looks_back: self.looks_back,
            // It is appended, and not looked for.
            looked: None,
            newer_than: None,
            // APPEND never hands a copy over.
            handed: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_is_known_as_long_as_it_is_used() {
        let (appends, doug) = (Appends::default(), Destination::inbox("doug"));
        let used = appends.mailbox(&doug);
        drop(appends.mailbox(&Destination::inbox("lisa")));
        drop(appends.mailbox(&Destination::inbox("zoe")));
        assert!(Arc::ptr_eq(&used, &appends.mailbox(&doug)));
        assert_eq!(appends.0.lock().unwrap().len(), 2, "of those that nobody uses the last");
        let early = appends.begin(&doug);
        assert!(early.is_some() && appends.begin(&doug).is_none());
        drop(early);
        assert!(appends.begin(&doug).is_some());
    }
}
