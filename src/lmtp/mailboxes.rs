//! Deliveries to one mailbox at the same time. A mail server lets one in at a time and syncs for
//! each, so those that come meanwhile go together, in one command where the server has one for
//! that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use super::together::{Group, Waited};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::lock_key::Hash;
use crate::message::Identity;
use crate::store::{Copy, Receipt, StoreError};

/// How many messages go together at most.
const MOST: usize = 16;
/// Larger ones go alone, in bytes: their transfer costs more than the sync.
pub const SMALL: usize = 64 * 1024;

type Appended = Result<Receipt, StoreError>;

/// The mailboxes that somebody is appending to, by account and mailbox.
#[derive(Default)]
pub struct Mailboxes {
    all: Mutex<HashMap<(String, String), Held>>,
    /// The store was seen to take several messages in one command.
    together: AtomicBool,
}

/// A mailbox, and how many have a place at it.
#[derive(Default)]
struct Held {
    places: usize,
    mailbox: Arc<Mailbox>,
}

struct Mailbox {
    appends: Group<Owned, Appended>,
    /// Somebody has begun an append.
    has_begun: AtomicBool,
}

/// A copy that somebody else may append.
struct Owned {
    key: Hash,
    head: Vec<u8>,
    bytes: Vec<u8>,
    identity: Identity,
    recorded_at: SystemTime,
    deadline: Deadline,
}

impl Mailboxes {
    /// Whether going together is worth the waiting.
    pub fn go_together(&self) -> bool {
        self.together.load(Ordering::Relaxed)
    }

    /// What a session with the store knows of that.
    pub fn learn(&self, together: bool) {
        if together {
            self.together.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that somebody begins an append to `destination` that may come to its end later; nobody
    /// waits for that. `None` where others are at it: then it is better to go together.
    pub fn begin(&self, destination: &Destination) -> Option<Begun<'_>> {
        let place = self.place(destination);
        if place.mailbox.appends.is_busy() || place.mailbox.has_begun.swap(true, Ordering::Relaxed)
        {
            return None;
        }
        Some(Begun(place))
    }

    /// Has `copy` appended to `destination` by `append`, perhaps with others, or by somebody
    /// else's. Waits for its turn until `until`.
    ///
    /// # Errors
    /// What `append` says of this copy, or that its turn did not come.
    pub fn append(
        &self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
        until: Instant,
        append: impl FnOnce(&[(Copy<'_>, &Deadline)]) -> Vec<Appended>,
    ) -> Appended {
        let place = self.place(destination);
        let lead = match place.mailbox.appends.wait(|| Owned::of(copy, deadline), until) {
            Waited::Leads(lead) => lead,
            Waited::Told(appended) => return appended,
            Waited::InVain => {
                let why = format!("the appends to {destination} before this one take too long");
                return Err(StoreError::NotStored(why));
            }
        };
        let mut copies = vec![(*copy, deadline)];
        copies.extend(lead.others().map(|one| (one.copy(), &one.deadline)));
        let mut appended = append(&copies).into_iter();
        let own = appended.next().unwrap_or_else(untold);
        lead.tell(appended);
        own
    }

    fn place(&self, destination: &Destination) -> Place<'_> {
        let key = (destination.account.clone(), destination.mailbox.clone());
        let mut all = self.all();
        let held = all.entry(key.clone()).or_default();
        held.places += 1;
        Place { mailboxes: self, key, mailbox: Arc::clone(&held.mailbox) }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Held>> {
        // Nothing that can panic is done under this lock.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Mailbox {
    fn default() -> Mailbox {
        Mailbox { appends: Group::new(1, MOST, None, untold), has_begun: AtomicBool::new(false) }
    }
}

fn untold() -> Appended {
    Err(StoreError::InDoubt("whoever appended it did not tell the outcome".to_owned()))
}

/// A place at a mailbox; nothing is kept of it when the last one leaves.
struct Place<'a> {
    mailboxes: &'a Mailboxes,
    key: (String, String),
    mailbox: Arc<Mailbox>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut all = self.mailboxes.all();
        let left = all.get_mut(&self.key).map(|held| {
            held.places -= 1;
            held.places
        });
        if left == Some(0) {
            all.remove(&self.key);
        }
    }
}

/// An append that was begun; over when dropped.
pub struct Begun<'a>(Place<'a>);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.mailbox.has_begun.store(false, Ordering::Relaxed);
    }
}

impl Owned {
    fn of(copy: &Copy<'_>, deadline: &Deadline) -> Owned {
        Owned {
            key: *copy.key,
            head: copy.head.to_vec(),
            bytes: copy.bytes.to_vec(),
            identity: copy.identity.clone(),
            recorded_at: copy.recorded_at,
            deadline: deadline.clone(),
        }
    }

    fn copy(&self) -> Copy<'_> {
        let Owned { key, head, bytes, identity, recorded_at, .. } = self;
        Copy { key, head, bytes, identity, recorded_at: *recorded_at }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::message::{DedupBy, Message};

    fn letter(number: u32) -> Message {
        Message::new(format!("Message-ID: <{number}@x>\n\n").into_bytes(), DedupBy::Content)
    }

    /// Appends letter `number` by `append`.
    fn append(
        mailboxes: &Mailboxes,
        number: u32,
        wait: Duration,
        append: impl FnOnce(&[(Copy<'_>, &Deadline)]) -> Vec<Appended>,
    ) -> Appended {
        let letter = letter(number);
        let copy = Copy {
            key: &[0; 32],
            head: b"",
            bytes: letter.own_copy(),
            identity: letter.identity(),
            recorded_at: SystemTime::UNIX_EPOCH,
        };
        let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(20));
        mailboxes.append(
            &Destination::inbox("doug"),
            &copy,
            &deadline,
            Instant::now() + wait,
            append,
        )
    }

    /// Each letter's number as its UID, as a store that looks at what it gets would say.
    fn by_number(copies: &[(Copy<'_>, &Deadline)]) -> Vec<Appended> {
        let uid = |bytes: &[u8]| {
            let digits: Vec<u8> = bytes.iter().copied().filter(u8::is_ascii_digit).collect();
            String::from_utf8(digits).unwrap().parse().unwrap()
        };
        copies
            .iter()
            .map(|(copy, _)| Ok(Receipt::Uid { validity: 1, uid: uid(copy.bytes) }))
            .collect()
    }

    fn is_stored(appended: &Appended, number: u32) -> bool {
        matches!(appended, Ok(Receipt::Uid { uid, .. }) if *uid == number)
    }

    fn until_waiting(mailboxes: &Mailboxes, count: usize) {
        let waiting = || -> usize {
            mailboxes.all().values().map(|held| held.mailbox.appends.waiting()).sum()
        };
        while waiting() != count {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_waits_goes_together_and_each_hears_of_its_own() {
        let mailboxes = Mailboxes::default();
        let (calls, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (go, gone) = channel::<()>();
        let count = |copies: &[(Copy<'_>, &Deadline)]| {
            calls.fetch_add(1, Ordering::SeqCst);
            most.fetch_max(copies.len(), Ordering::SeqCst);
            by_number(copies)
        };
        let many = 40;
        thread::scope(|scope| {
            let (mailboxes, count) = (&mailboxes, &count);
            scope.spawn(move || {
                let first = append(mailboxes, 1000, Duration::from_secs(60), |copies| {
                    gone.recv().unwrap();
                    count(copies)
                });
                assert!(is_stored(&first, 1000), "{first:?}");
            });
            while !mailboxes.all().values().any(|held| held.mailbox.appends.is_busy()) {
                thread::sleep(Duration::from_millis(1));
            }
            for number in 1..=many {
                scope.spawn(move || {
                    let stored = append(mailboxes, number, Duration::from_secs(60), count);
                    assert!(is_stored(&stored, number), "{number}: {stored:?}");
                });
            }
            until_waiting(mailboxes, many as usize);
            go.send(()).unwrap();
        });
        assert_eq!(most.into_inner(), MOST);
        assert_eq!(calls.into_inner(), 1 + (many as usize).div_ceil(MOST));
        assert!(mailboxes.all().is_empty(), "nothing is kept");
    }

    #[test]
    fn whose_turn_does_not_come_has_written_nothing() {
        let mailboxes = Mailboxes::default();
        let (go, gone) = channel::<()>();
        thread::scope(|scope| {
            let mailboxes = &mailboxes;
            scope.spawn(move || {
                append(mailboxes, 1, Duration::from_secs(60), |copies| {
                    gone.recv().unwrap();
                    assert_eq!(copies.len(), 1);
                    by_number(copies)
                })
            });
            while !mailboxes.all().values().any(|held| held.mailbox.appends.is_busy()) {
                thread::sleep(Duration::from_millis(1));
            }
            let late = append(mailboxes, 2, Duration::from_millis(50), |_| panic!("appended"));
            assert!(
                matches!(&late, Err(StoreError::NotStored(why)) if why.contains("account=doug")),
                "{late:?}"
            );
            until_waiting(mailboxes, 0);
            go.send(()).unwrap();
        });
    }

    #[test]
    fn a_panic_leaves_those_taken_along_in_doubt_and_stops_nobody() {
        let mailboxes = Mailboxes::default();
        let (go, gone) = channel::<()>();
        thread::scope(|scope| {
            let mailboxes = &mailboxes;
            let first = scope.spawn(move || {
                append(mailboxes, 1, Duration::from_secs(60), |copies| {
                    gone.recv().unwrap();
                    by_number(copies)
                })
            });
            while !mailboxes.all().values().any(|held| held.mailbox.appends.is_busy()) {
                thread::sleep(Duration::from_millis(1));
            }
            let both: Vec<_> = [2, 3]
                .map(|number| {
                    scope.spawn(move || {
                        append(mailboxes, number, Duration::from_secs(60), |_| panic!("told to"))
                    })
                })
                .into();
            until_waiting(mailboxes, 2);
            go.send(()).unwrap();
            assert!(is_stored(&first.join().unwrap(), 1));
            let ends: Vec<_> = both.into_iter().map(thread::ScopedJoinHandle::join).collect();
            assert_eq!(ends.iter().filter(|end| end.is_err()).count(), 1, "who led");
            assert_eq!(
                ends.iter().filter(|end| matches!(end, Ok(Err(StoreError::InDoubt(_))))).count(),
                1
            );
            assert!(is_stored(&append(mailboxes, 4, Duration::from_secs(60), by_number), 4));
        });
    }
}
