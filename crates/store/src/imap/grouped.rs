//! Small appends to one mailbox at the same time. A mail server lets one in at a time and syncs for
//! each, so those that come while one is under way go together, in one command (MULTIAPPEND, RFC
//! 3502): 16 deliveries to one mailbox wait for two syncs instead of 16. With 4 connections 70 %
//! more messages go into it in a second, with 10 twice as many. What is refused in company the
//! leading thread tries one by one, its own copy first, and the others as long as it may append
//! itself. A copy whose turn does not come in time is certainly not stored; one whose leader panics
//! is in doubt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use onedrop_core::deadline::Deadline;
use onedrop_core::directory::Destination;
use onedrop_core::lock_key::Hash;
use onedrop_core::message::Identity;
use onedrop_core::store::{Copy, Receipt, StoreError};
use onedrop_net::group_commit::{GroupCommit, Waited};

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

/// The appends that are under way, by account, mailbox, and whether they are of shared copies: one
/// command is for copies with the same flags, and with the same mailbox in place of a missing one.
#[derive(Default)]
pub struct Appends(Mutex<HashMap<(String, String, bool), Weak<MailboxAppends>>>);

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

    /// Has `copy` appended to `destination`: by `append`, with those that wait, or by another
    /// thread's. `append` stores all that it is given or none, leaves its session at hand, and
    /// returns the receipts in the same order.
    ///
    /// # Errors
    /// Those of `append` for this copy, or its turn did not come while last bytes may go out.
    pub fn append<S>(
        &self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
        mut append: impl FnMut(
            &[(Copy<'_>, &Deadline)],
            &mut Option<S>,
        ) -> Result<Vec<Receipt>, StoreError>,
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
        // Given back before the next one leads, which needs a session.
        let mut session = None;
        let appended = append(&copies, &mut session);
        match appended {
            Ok(receipts) => {
                let mut receipts = receipts.into_iter().map(Ok);
                let own = receipts.next().unwrap_or_else(abandoned);
                leader.done(receipts);
                own
            }
            Err(StoreError::InDoubt(why)) => {
                leader.done(leader.jobs().map(|_| Err(StoreError::InDoubt(why.clone()))));
                Err(StoreError::InDoubt(why))
            }
            Err(error) if leader.is_alone() => Err(error),
            // None was stored, perhaps because of one of them: each by itself.
            Err(_) => {
                let mut alone = |one: &[(Copy<'_>, &Deadline)]| append(one, &mut session).map(only);
                let own = alone(&copies[..1]);
                // Each has its result as soon as it is known.
                leader.done(copies[1..].chunks(1).map(|one| {
                    if deadline.now() < deadline.last_bytes() {
                        return alone(one);
                    }
                    let why = "the append that it went along with took too long";
                    Err(StoreError::NotStored(format!("{destination}: {why}")))
                }));
                own
            }
        }
    }

    /// What all appends to `destination` share; forgotten some time after the last of them.
    fn mailbox(&self, destination: &Destination) -> Arc<MailboxAppends> {
        // Nothing that can panic is done under this lock.
        let mut mailboxes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Destination { account, shared, .. } = destination;
        let key = (account.clone(), destination.place().to_owned(), *shared);
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

/// The receipt of the only message.
pub fn only(mut receipts: Vec<Receipt>) -> Receipt {
    receipts.pop().unwrap_or(Receipt::UNNAMED)
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
            deadline: deadline.of_this_thread(),
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
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    use std::thread;
    use std::time::{Duration, Instant};

    use onedrop_core::clock::Clock;
    use onedrop_core::message::{DedupBy, Message};

    use super::*;

    const TOTAL: Duration = Duration::from_secs(60);
    const ANSWER: Duration = Duration::from_secs(20);

    /// A clock that can be put an hour forward.
    #[derive(Debug, Default)]
    struct ForwardClock(AtomicBool);

    impl Clock for ForwardClock {
        fn now(&self) -> Instant {
            let hours = u64::from(self.0.load(Ordering::SeqCst));
            Instant::now() + Duration::from_secs(hours * 3600)
        }

        fn since_boot(&self) -> Option<Duration> {
            None
        }

        fn sleep(&self, time: Duration) {
            thread::sleep(time);
        }

        fn random(&self) -> u64 {
            0
        }

        fn side_by_side(&self, _: usize, work: &(dyn Fn() + Sync)) {
            work();
        }
    }

    fn until(is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < TOTAL, "it does not come to that");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn letter() -> Message {
        Message::new(b"Subject: s\r\n\r\nbody\r\n".to_vec(), DedupBy::Content)
    }

    fn copy_of<'a>(letter: &'a Message, key: &'a Hash) -> Copy<'a> {
        Copy {
            key,
            head: b"",
            bytes: letter.own_copy(),
            identity: letter.identity(),
            recorded_at: SystemTime::UNIX_EPOCH,
            looks_back: false,
            looked: None,
            newer_than: None,
            handed: None,
        }
    }

    fn stored(uid: u32) -> Result<Vec<Receipt>, StoreError> {
        Ok(vec![Receipt::uid(7, uid)])
    }

    #[test]
    fn a_leader_whose_time_is_over_tries_no_others_alone() {
        let (appends, doug) = (Appends::default(), Destination::inbox("doug"));
        let (letter, key) = (letter(), Hash::default());
        let copy = copy_of(&letter, &key);
        let clock = Arc::<ForwardClock>::default();
        let (deadline, ample) =
            (Deadline::by(clock.clone(), TOTAL, ANSWER), Deadline::new(TOTAL, ANSWER));
        let (go, has_ended) = (Barrier::new(2), AtomicBool::new(false));
        let calls = AtomicU32::new(0);
        // By whichever of the four leads.
        let append = |copies: &[(Copy<'_>, &Deadline)], _: &mut Option<()>| {
            let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
            assert_eq!(copies.len(), if call == 1 { 4 } else { 1 });
            match call {
                1 => return Err(StoreError::OverQuota("one is too many".to_owned())),
                // The first of the others has its result by now.
                4 => {
                    until(|| has_ended.load(Ordering::SeqCst));
                    clock.0.store(true, Ordering::SeqCst);
                }
                _ => {}
            }
            stored(40 + call)
        };
        thread::scope(|scope| {
            // While it appends, the others wait.
            let before = scope.spawn(|| {
                appends.append(&doug, &copy, &ample, |_, _: &mut Option<()>| {
                    go.wait();
                    stored(41)
                })
            });
            let count = || appends.mailbox(&doug).group.count();
            until(|| count() == (1, 0));
            let waiting = [(); 4].map(|()| {
                scope.spawn(|| {
                    let ended = appends.append(&doug, &copy, &deadline, append);
                    has_ended.store(true, Ordering::SeqCst);
                    ended
                })
            });
            until(|| count() == (1, 4));
            go.wait();
            assert_eq!(before.join().unwrap().unwrap(), Receipt::uid(7, 41));
            let ended = waiting.map(|one| one.join().unwrap());
            let (stored, others): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
            let mut stored: Vec<String> =
                stored.into_iter().map(|receipt| receipt.unwrap().to_string()).collect();
            stored.sort();
            assert_eq!(stored, [42, 43, 44].map(|uid| Receipt::uid(7, uid).to_string()));
            assert!(matches!(others[..], [Err(StoreError::NotStored(_))]), "{others:?}");
        });
    }

    #[test]
    fn copies_with_other_flags_do_not_go_along() {
        let appends = Appends::default();
        let own = Destination { shared: false, ..Destination::sent("doug", "Archive") };
        let of_own = appends.mailbox(&own);
        let of_sent = appends.mailbox(&Destination::sent("doug", "Archive"));
        assert!(!Arc::ptr_eq(&of_own, &of_sent));
        assert!(Arc::ptr_eq(&of_own, &appends.mailbox(&own)));
    }

    /// Its thread ends its delivery, and so what the watchdog waits for.
    #[test]
    fn what_another_appends_is_noted_for_the_thread_whose_copy_it_is() {
        let (letter, key) = (letter(), Hash::default());
        let deadline = Deadline::new(TOTAL, ANSWER);
        let owned = OwnedCopy::of(&copy_of(&letter, &key), &deadline);
        thread::scope(|scope| {
            scope.spawn(|| owned.deadline.pass_point_of_no_return().unwrap());
        });
        assert!(deadline.is_answering());
        deadline.answered();
        assert!(!deadline.is_answering());
    }

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
