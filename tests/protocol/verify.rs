//! What `onedrop verify` finds and repairs, with ledger and store in memory. With real ones:
//! `commands/verify_servers.rs`.

use std::fs;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use onedrop::clock::{Clock, SystemClock};
use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::hook::{Call, Hook};
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::{
    Audit, Claim, Confirmed, CopyFacts, CopyState, Entry, Ledger, Records, Standing, ToConfirm,
    TraceFilter, Window,
};
use onedrop::message::Message;
use onedrop::pool::Connections;
use onedrop::store::maildir::MaildirStore;
use onedrop::store::memory::MemoryStore;
use onedrop::store::{
    Access, AnyStore, Copy, CopySearch, FoundCopy, MailboxOwner, Mailboxes, Need, Proof, Receipt,
    Slot, Store, StoreError, Way,
};
use onedrop::verify::{self, Difference, Level, News, Plan, Tally, Topic};

use crate::ports::{LEASE, attempt, inbox, mail, mail_with_body, message, sent, soon};

const ALL: Window<'_> = Window { since: UNIX_EPOCH, account: None };
const DAY: Duration = Duration::from_secs(24 * 3600);

/// One ledger, one store, and what was told.
struct Site {
    ledger: MemoryLedger,
    store: MemoryStore,
}

struct Verified {
    findings: Vec<Difference>,
    failed: Vec<String>,
    tally: Tally,
}

impl Verified {
    fn topics(&self) -> Vec<(Level, Topic)> {
        self.findings.iter().map(|finding| (finding.level, finding.topic)).collect()
    }
}

impl Site {
    fn new() -> Site {
        Site { ledger: MemoryLedger::default(), store: MemoryStore::default() }
    }

    fn claim(&self, mail: &Message, destination: &Destination) -> (Claim, SystemTime) {
        let facts = mail.facts();
        let size_bytes = mail.own_copy().len() as u64;
        let entry = Entry {
            identity: mail.identity(),
            facts: &facts,
            size_bytes,
            raw: None,
            nul_runs: None,
            at: None,
        };
        let wanted = std::slice::from_ref(destination);
        let recorded =
            self.ledger.record(&entry, &attempt("mx1"), wanted, LEASE, soon()).expect("record");
        match recorded.copies[0] {
            CopyState::Claimed(claim) => (claim, recorded.recorded_at),
            ref other => panic!("{other:?}"),
        }
    }

    fn append(&self, mail: &Message, destination: &Destination, date: SystemTime) -> Receipt {
        let key = mail.identity().copy_key(&destination.account, &destination.mailbox);
        let copy = Copy {
            key: &key,
            head: b"",
            bytes: mail.own_copy(),
            identity: mail.identity(),
            recorded_at: date,
        };
        append(&self.store, destination, copy)
    }

    fn confirm(&self, claim: &Claim, receipt: &Receipt) {
        let one = ToConfirm { claim: *claim, receipt, facts: CopyFacts::default(), end: None };
        assert_eq!(self.ledger.confirm(&one, soon()).expect("confirm"), Confirmed::Recorded);
    }

    /// A copy that was leased `times` and placed; returns its date and its receipt.
    fn placed(
        &self,
        mail: &Message,
        destination: &Destination,
        times: u32,
    ) -> (SystemTime, Receipt) {
        for _ in 1..times {
            self.claim(mail, destination);
            self.ledger.advance(2 * LEASE.lease);
        }
        let (claim, date) = self.claim(mail, destination);
        let receipt = self.append(mail, destination, date);
        self.confirm(&claim, &receipt);
        (date, receipt)
    }

    fn verify(&self, repair: bool) -> Verified {
        self.verify_in(ALL, repair)
    }

    fn verify_in(&self, window: Window<'_>, repair: bool) -> Verified {
        self.verify_with(window, repair, &self.store)
    }

    /// The next such call of the store fails, before it takes effect.
    fn verify_failing(&self, call: &'static str, error: StoreError) -> Verified {
        let failing = Failing(Mutex::new(Some((call, error))));
        self.verify_with(ALL, true, &self.store.with_hook(Arc::new(failing)))
    }

    fn verify_with(&self, window: Window<'_>, repair: bool, store: &dyn AnyStore) -> Verified {
        let by = attempt("verifier");
        let time = (Duration::from_secs(60), Duration::from_secs(20));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let plan = Plan { window, repair, lease: LEASE.lease, time, clock: &clock, by: &by };
        let (mut findings, mut failed) = (Vec::new(), Vec::new());
        let mut tell = |news: News<'_>| match news {
            News::Found(finding) => findings.push(finding),
            News::Failed { destination, why } => failed.push(format!("{destination}: {why}")),
            News::Next { .. } => {}
        };
        let tally = verify::verify(&plan, &self.ledger, store, &mut tell).expect("verify");
        Verified { findings, failed, tally }
    }

    fn uids(&self, destination: &Destination) -> Vec<u32> {
        let copies = self.store.copies(&destination.account, &destination.mailbox);
        copies.iter().map(|stored| stored.uid).collect()
    }

    fn standing(&self) -> Standing {
        self.ledger.copies_to_verify(&ALL, None, 1, soon()).expect("copies").remove(0).standing
    }

    fn is_settled(&self) -> bool {
        self.ledger.copies_to_verify(&ALL, None, 1, soon()).expect("copies").remove(0).settled
    }
}

/// Fails one call.
struct Failing(Mutex<Option<(&'static str, StoreError)>>);

impl Hook<StoreError> for Failing {
    fn before(&self, call: &Call<'_>) -> Result<(), StoreError> {
        let mut failing = self.0.lock().expect("no panic");
        match failing.take_if(|(name, _)| *name == call.name) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

fn not_stored() -> StoreError {
    StoreError::NotStored("told to fail".to_owned())
}

fn append(store: &dyn AnyStore, destination: &Destination, copy: Copy<'_>) -> Receipt {
    let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(1));
    let slot = store.reserve(destination, copy, Need::Write, &deadline).expect("a store");
    slot.expect("nobody else").append().expect("append")
}

fn uid(receipt: &Receipt) -> u32 {
    match receipt {
        Receipt::Uid { uid, .. } => *uid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_as_it_should_be_is_not_told() {
    let site = Site::new();
    site.placed(&mail("a"), &inbox(), 1);
    site.placed(&mail("a"), &sent(), 1);
    site.placed(&mail_with_body("a", "other content"), &inbox(), 1);
    for repair in [false, true] {
        let verified = site.verify(repair);
        assert_eq!(verified.findings, []);
        assert_eq!(verified.tally, Tally { copies: 3, ..Tally::default() });
    }
}

#[test]
fn a_copy_that_its_owner_moved_or_deleted_is_told_and_left_alone() {
    let site = Site::new();
    let (_, receipt) = site.placed(&mail("gone"), &inbox(), 1);
    site.store.remove(&inbox(), &receipt, soon()).expect("remove");
    for repair in [false, true] {
        assert_eq!(site.verify(repair).topics(), [(Level::Info, Topic::Moved)]);
        assert!(site.uids(&inbox()).is_empty());
    }
}

#[test]
fn a_copy_moved_away_and_back_is_recorded_under_its_new_name() {
    let site = Site::new();
    let (date, old) = site.placed(&mail("back"), &inbox(), 1);
    site.store.remove(&inbox(), &old, soon()).expect("remove");
    let new = site.append(&mail("back"), &inbox(), date);
    assert_eq!(
        site.verify(true).topics(),
        [(Level::Info, Topic::Moved)],
        "its lease may not be over yet"
    );
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(false).topics(), [(Level::Info, Topic::Moved)]);
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Moved)]);
    assert!(matches!(site.standing(), Standing::Placed { receipt, .. } if receipt == new));
    assert_eq!(site.verify(false).findings, []);
    assert_eq!(site.uids(&inbox()), [uid(&new)]);
}

#[test]
fn of_two_copies_the_one_on_record_stays() {
    for first_is_on_record in [true, false] {
        let site = Site::new();
        site.claim(&mail("two"), &inbox());
        site.ledger.advance(2 * LEASE.lease);
        let (claim, date) = site.claim(&mail("two"), &inbox());
        let receipts =
            [site.append(&mail("two"), &inbox(), date), site.append(&mail("two"), &inbox(), date)];
        let keeper = &receipts[usize::from(!first_is_on_record)];
        site.confirm(&claim, keeper);
        let verified = site.verify(false);
        assert_eq!(verified.topics(), [(Level::Error, Topic::Double)]);
        assert_eq!(verified.findings[0].message_id.as_deref(), Some("<two@example.org>"));
        assert_eq!(site.uids(&inbox()).len(), 2, "without --repair nothing is removed");
        assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Double)]);
        assert_eq!(site.uids(&inbox()), [uid(keeper)]);
        assert_eq!(site.verify(false).findings, []);
    }
}

/// A mail program may save what it sent within the second in which we recorded it.
#[test]
fn an_equal_copy_stays_where_one_delivery_at_most_has_written() {
    let site = Site::new();
    let (date, _) = site.placed(&mail("own"), &inbox(), 1);
    site.append(&mail("own"), &inbox(), date);
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Other)]);
    assert_eq!(site.uids(&inbox()).len(), 2);
}

#[test]
fn of_two_copies_without_the_one_on_record_the_oldest_stays_and_is_recorded() {
    let site = Site::new();
    let (date, gone) = site.placed(&mail("two"), &inbox(), 2);
    let oldest = site.append(&mail("two"), &inbox(), date);
    site.append(&mail("two"), &inbox(), date);
    site.store.remove(&inbox(), &gone, soon()).expect("remove");
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(
        site.verify(true).topics(),
        [(Level::Info, Topic::Moved), (Level::Repaired, Topic::Double)]
    );
    assert_eq!(site.uids(&inbox()), [uid(&oldest)]);
    // The next look sees that it is alone.
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Moved)]);
    assert!(matches!(site.standing(), Standing::Placed { receipt, .. } if receipt == oldest));
}

#[test]
fn an_equal_message_of_another_date_or_content_stays() {
    let site = Site::new();
    let (date, receipt) = site.placed(&mail("mine"), &inbox(), 1);
    let others = [
        site.append(&mail("mine"), &inbox(), date + Duration::from_secs(1)),
        site.append(&mail("mine"), &inbox(), date - 2 * DAY),
        site.append(&mail_with_body("mine", "other content"), &inbox(), date),
        site.append(&mail("another"), &inbox(), date),
    ];
    let verified = site.verify(true);
    assert_eq!(
        verified.topics(),
        [(Level::Info, Topic::Other)],
        "older than the window, it is not even seen"
    );
    assert_eq!(
        site.uids(&inbox()),
        [&receipt, &others[0], &others[1], &others[2], &others[3]].map(uid)
    );
    // Not even when the copy on record is gone: nothing shows that one of them is ours.
    site.store.remove(&inbox(), &receipt, soon()).expect("remove");
    assert_eq!(
        site.verify(true).topics(),
        [(Level::Info, Topic::Moved), (Level::Info, Topic::Other)]
    );
    assert_eq!(site.uids(&inbox()).len(), 4);
}

#[test]
fn nothing_is_removed_for_a_copy_that_its_owner_has_marked_as_deleted() {
    let site = Site::new();
    let (date, on_record) = site.placed(&mail("marked"), &inbox(), 1);
    let other = site.append(&mail("marked"), &inbox(), date);
    let mark = |wanted: u32| {
        site.store.meddle("doug", "INBOX", |stored| {
            stored.iter_mut().for_each(|one| one.marked_deleted = one.uid == wanted);
        });
    };
    mark(uid(&on_record));
    assert_eq!(
        site.verify(true).topics(),
        [(Level::Info, Topic::Moved)],
        "the other one is all that will be left"
    );
    mark(uid(&other));
    assert_eq!(site.verify(true).findings, [], "the owner is at it");
    assert_eq!(site.uids(&inbox()).len(), 2);
}

#[test]
fn a_doubt_without_a_copy_is_told_and_left_to_the_next_attempt() {
    let site = Site::new();
    let (claim, _) = site.claim(&mail("doubt"), &inbox());
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Busy)], "a delivery is at it");
    site.ledger.advance(2 * LEASE.lease);
    for repair in [false, true] {
        let verified = site.verify(repair);
        assert_eq!(verified.topics(), [(Level::Error, Topic::Lease)]);
        assert!(verified.findings[0].text.contains("mx1:42"), "{:?}", verified.findings);
        assert_eq!(site.standing(), Standing::InDoubt { lease_left_over: true });
    }
    let (again, _) = site.claim(&mail("doubt"), &inbox());
    assert_eq!((again.epoch, again.in_doubt), (claim.epoch + 1, true), "verify took no lease");
    site.ledger.release(&[again], soon()).expect("release");
    assert_eq!(site.verify(false).topics(), [(Level::Error, Topic::Doubt)]);
}

#[test]
fn a_doubt_with_a_copy_is_settled_by_its_receipt() {
    let site = Site::new();
    let (_, date) = site.claim(&mail("doubt"), &inbox());
    let receipt = site.append(&mail("doubt"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(false).topics(), [(Level::Error, Topic::Lease)]);
    assert_eq!(site.standing(), Standing::InDoubt { lease_left_over: true });
    assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Lease)]);
    assert!(
        matches!(site.standing(), Standing::Placed { receipt: recorded, .. } if recorded == receipt)
    );
    assert!(!site.is_settled(), "its own lease is not over yet");
    assert_eq!(site.verify(false).findings, []);
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(false).tally.settled, 1);
    assert!(site.is_settled());
    let trace = site
        .ledger
        .clone()
        .trace(&TraceFilter::of("doubt@example.org"), 1, soon())
        .expect("trace")
        .remove(0);
    assert!(trace.copies[0].found_by_look);
}

#[test]
fn a_doubt_with_two_copies_leaves_the_oldest_of_ours() {
    let site = Site::new();
    let (_, date) = site.claim(&mail("doubt"), &inbox());
    let own = site.append(&mail("doubt"), &inbox(), date + Duration::from_secs(1));
    let ours =
        [site.append(&mail("doubt"), &inbox(), date), site.append(&mail("doubt"), &inbox(), date)];
    site.ledger.advance(2 * LEASE.lease);
    let topics = site.verify(true).topics();
    assert_eq!(
        topics,
        [
            (Level::Repaired, Topic::Lease),
            (Level::Repaired, Topic::Double),
            (Level::Info, Topic::Other)
        ]
    );
    assert_eq!(site.uids(&inbox()), [uid(&own), uid(&ours[0])]);
    assert!(matches!(site.standing(), Standing::Placed { receipt, .. } if receipt == ours[0]));
}

#[test]
fn a_doubt_whose_lock_is_held_is_left_to_its_holder() {
    let site = Site::new();
    let (claim, date) = site.claim(&mail("held"), &inbox());
    site.append(&mail("held"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    let zombie = site.ledger.clone();
    let key = mail("held").identity().copy_key("doug", "INBOX");
    let turn = zombie.take_turn(&claim, &key, soon()).expect("a turn");
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Busy)]);
    assert_eq!(
        site.standing(),
        Standing::InDoubt { lease_left_over: false },
        "what verify took it gave back"
    );
    drop(turn);
    assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Doubt)]);
}

#[test]
fn a_copy_leased_twice_gets_its_second_look_after_its_last_lease() {
    let site = Site::new();
    let (date, receipt) = site.placed(&mail("second"), &inbox(), 2);
    let verified = site.verify(false);
    assert_eq!(
        (verified.tally.settled, verified.topics()),
        (0, vec![]),
        "a zombie may still write"
    );
    // The zombie's copy, after the window in which the message was recorded.
    site.append(&mail("second"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    let recent = Window { since: date + DAY, account: None };
    let verified = site.verify_in(recent, false);
    assert_eq!(
        (verified.tally.settled, verified.topics()),
        (0, vec![(Level::Error, Topic::Double)])
    );
    assert!(!site.is_settled());
    let verified = site.verify_in(recent, true);
    assert_eq!(
        (verified.tally.settled, verified.topics()),
        (0, vec![(Level::Repaired, Topic::Double)])
    );
    assert_eq!(site.uids(&inbox()), [uid(&receipt)]);
    let verified = site.verify_in(recent, true);
    assert_eq!(
        (verified.tally.settled, verified.topics()),
        (1, vec![]),
        "a look has seen that it is gone"
    );
    assert_eq!(site.verify_in(recent, true).tally, Tally::default(), "once is enough");
}

#[test]
fn what_cannot_be_removed_is_still_an_error_and_not_settled() {
    let site = Site::new();
    let (date, _) = site.placed(&mail("stuck"), &inbox(), 2);
    site.append(&mail("stuck"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    let failed = site.verify_failing("remove_double", not_stored());
    assert_eq!(failed.topics(), [(Level::Error, Topic::Double)]);
    assert!(!site.is_settled());
    assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Double)]);
    assert!(!site.is_settled(), "a server says OK to the removal of what is not removed, too");
    assert_eq!(site.verify(true).topics(), []);
    assert!(site.is_settled());
}

#[test]
fn a_mailbox_out_of_sight_is_no_second_look_until_a_week_has_passed() {
    let site = Site::new();
    let (date, receipt) = site.placed(&mail("away"), &inbox(), 2);
    let other = site.append(&mail("away"), &inbox(), date);
    for one in [&receipt, &other] {
        site.store.remove(&inbox(), one, soon()).expect("remove");
    }
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Moved)]);
    assert!(!site.is_settled(), "it may be back tomorrow, with both");
    site.ledger.advance(8 * DAY);
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Moved)]);
    assert!(site.is_settled(), "deleted by its owner");
}

#[test]
fn a_mailbox_that_cannot_be_read_is_a_failure_and_the_next_account_goes_on() {
    let site = Site::new();
    for name in ["a", "b"] {
        site.placed(&mail(name), &inbox(), 2);
    }
    site.claim(&mail("a"), &sent());
    site.ledger.advance(2 * LEASE.lease);
    let (claim, date) = site.claim(&mail("a"), &sent());
    site.append(&mail("a"), &sent(), date);
    let receipt = site.append(&mail("a"), &sent(), date);
    site.confirm(&claim, &receipt);
    site.ledger.advance(2 * LEASE.lease);
    let verified = site.verify_failing("find", not_stored());
    assert_eq!(verified.failed.len(), 1, "once an account: {:?}", verified.failed);
    assert_eq!((verified.tally.failed, verified.tally.copies, verified.tally.settled), (2, 1, 0));
    assert_eq!(verified.topics(), [(Level::Repaired, Topic::Double)]);
}

/// A store whose mailboxes change under the verifier's hands: `after` is called with the number of
/// each look and may alter what it found.
struct Meddled<F> {
    inner: MemoryStore,
    after: Mutex<(u32, F)>,
}

/// What a verification is given of a mailbox by a [`Meddled`] store.
trait After: FnMut(u32, &CopySearch<'_>, &mut Vec<FoundCopy>) -> Result<(), StoreError> + Send {}

impl<F: FnMut(u32, &CopySearch<'_>, &mut Vec<FoundCopy>) -> Result<(), StoreError> + Send> After
    for F
{
}

impl<F: After> Store for Meddled<F> {
    fn append_is_idempotent(&self) -> bool {
        false
    }

    fn prepare(&self, _: &str, _: Instant) {}

    fn reserve<'a>(
        &'a self,
        _: &'a Destination,
        _: Copy<'a>,
        _: Need,
        _: &'a Deadline,
    ) -> Result<Option<Box<dyn Slot + 'a>>, StoreError> {
        panic!("verify writes no copy")
    }

    fn remove(&self, _: &Destination, _: &Receipt, _: Instant) -> Result<(), StoreError> {
        panic!("verify removes nothing without its keeper")
    }
}

impl<F: After> Mailboxes for Meddled<F> {
    fn find(
        &self,
        at: &Destination,
        sought: &CopySearch<'_>,
        until: Instant,
    ) -> Result<Vec<FoundCopy>, StoreError> {
        let (looks, after) = &mut *self.after.lock().expect("no panic");
        *looks += 1;
        let mut found = self.inner.find(at, sought, until)?;
        after(*looks, sought, &mut found).map(|()| found)
    }

    fn remove_double(
        &self,
        at: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.inner.remove_double(at, double, keeper, until)
    }
}

impl<F: After> Access for Meddled<F> {
    fn way(&self) -> Option<Way> {
        None
    }

    fn whose_mailboxes(&self, _: &str, _: Instant) -> Result<MailboxOwner, StoreError> {
        panic!("no server stands between")
    }

    fn check(&self, _: &str, _: Instant) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }
}

impl<F: After> Connections for Meddled<F> {
    fn close_idle(&self) {}

    fn retire(&self) {}

    fn count(&self) -> (usize, usize) {
        (0, 0)
    }
}

fn meddled<F>(store: &MemoryStore, after: F) -> Meddled<F>
where
    F: FnMut(u32, &CopySearch<'_>, &mut Vec<FoundCopy>) -> Result<(), StoreError> + Send,
{
    Meddled { inner: store.clone(), after: Mutex::new((0, after)) }
}

#[test]
fn a_look_that_fails_under_our_lease_gives_it_back() {
    let site = Site::new();
    let (_, date) = site.claim(&mail("doubt"), &inbox());
    site.append(&mail("doubt"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    let fails_second = |look: u32, _: &CopySearch<'_>, _: &mut Vec<FoundCopy>| match look {
        2 => Err(StoreError::NotStored("told to fail".to_owned())),
        _ => Ok(()),
    };
    let tally = site.verify_with(ALL, true, &meddled(&site.store, fails_second)).tally;
    assert_eq!((tally.failed, tally.errors, tally.repaired), (1, 0, 0));
    assert_eq!(
        site.standing(),
        Standing::InDoubt { lease_left_over: false },
        "free for the next attempt at once"
    );
}

/// Two copies of ours, the second of them on record; their UIDs.
fn two_copies(site: &Site, name: &str) -> [u32; 2] {
    site.claim(&mail(name), &inbox());
    site.ledger.advance(2 * LEASE.lease);
    let (claim, date) = site.claim(&mail(name), &inbox());
    let receipts =
        [site.append(&mail(name), &inbox(), date), site.append(&mail(name), &inbox(), date)];
    site.confirm(&claim, &receipts[1]);
    site.ledger.advance(2 * LEASE.lease);
    receipts.each_ref().map(uid)
}

/// As after a mailbox was put back to an older state, without a new UIDVALIDITY.
#[test]
fn nothing_is_removed_for_a_uid_that_names_another_message() {
    let site = Site::new();
    let [_, on_record] = two_copies(&site, "restored");
    let date = site.store.copies("doug", "INBOX")[0].date;
    let other = site.append(&mail("another"), &inbox(), date);
    site.append(&mail("restored"), &inbox(), date);
    site.store.meddle("doug", "INBOX", |stored| {
        let at = |wanted: u32| stored.iter().position(|one| one.uid == wanted).expect("a copy");
        let (copy, another) = (at(on_record), at(uid(&other)));
        stored[copy].uid = 77;
        stored[another].uid = on_record;
    });
    let verified = site.verify(true);
    let expected =
        [(Level::Info, Topic::Moved), (Level::Error, Topic::Double), (Level::Error, Topic::Double)];
    assert_eq!(verified.topics(), expected, "{:?}", verified.findings);
    assert!(verified.findings[0].text.contains("another message"), "{:?}", verified.findings);
    assert_eq!((site.uids(&inbox()).len(), site.is_settled()), (4, false));
    // Once one is left, that is the copy.
    site.store
        .meddle("doug", "INBOX", |stored| stored.retain(|one| [77, on_record].contains(&one.uid)));
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Moved)]);
    assert!(matches!(site.standing(), Standing::Placed { receipt, .. } if uid(&receipt) == 77));
    assert_eq!((site.verify(true).topics(), site.uids(&inbox()).len()), (vec![], 2));
}

#[test]
fn a_double_stays_when_its_keeper_goes_before_the_removal() {
    for is_marked in [true, false] {
        let site = Site::new();
        let [double, keeper] = two_copies(&site, "late");
        let owner = site.store.clone();
        let store = meddled(&site.store, move |_, _, _| {
            owner.meddle("doug", "INBOX", |stored| match is_marked {
                true => stored.iter_mut().for_each(|one| one.marked_deleted = one.uid == keeper),
                false => stored.retain(|one| one.uid != keeper),
            });
            Ok(())
        });
        assert_eq!(site.verify_with(ALL, true, &store).topics(), [(Level::Error, Topic::Double)]);
        assert!(site.uids(&inbox()).contains(&double) && !site.is_settled());
    }
}

#[test]
fn a_search_that_hides_what_is_on_record_settles_nothing() {
    let site = Site::new();
    site.placed(&mail("blind"), &inbox(), 2);
    site.ledger.advance(2 * LEASE.lease);
    let blind = |_: u32, _: &CopySearch<'_>, found: &mut Vec<FoundCopy>| {
        found[0].proof = Proof::Hidden;
        Ok(())
    };
    let verified = site.verify_with(ALL, true, &meddled(&site.store, blind));
    assert_eq!(
        (verified.topics(), verified.tally.settled),
        (vec![(Level::Error, Topic::Double)], 0)
    );
    assert!(verified.findings[0].text.contains("does not show"), "{:?}", verified.findings);
    assert!(!site.is_settled());
    assert_eq!((site.verify(true).topics(), site.is_settled()), (vec![], true));
}

/// What the ledger does not know of a message must not narrow the search where a second look
/// depends on it.
#[test]
fn a_second_look_and_a_doubt_are_thorough() {
    let site = Site::new();
    site.placed(&mail("once"), &inbox(), 1);
    site.placed(&mail("twice"), &inbox(), 2);
    site.claim(&mail("doubt"), &inbox());
    site.ledger.advance(2 * LEASE.lease);
    for expected in [[false, true, true], [false, false, true]] {
        let (asks, asked) = channel();
        let store = meddled(&site.store, move |_, sought, _| {
            asks.send(sought.needs_proof).expect("a listener");
            Ok(())
        });
        site.verify_with(ALL, true, &store);
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn of_more_copies_than_a_run_deals_with_the_one_on_record_stays() {
    let site = Site::new();
    let (date, on_record) = site.placed(&mail("many"), &inbox(), 2);
    for _ in 0..105 {
        site.append(&mail("many"), &inbox(), date);
    }
    site.ledger.advance(2 * LEASE.lease);
    let verified = site.verify(true);
    assert_eq!(
        (verified.tally.repaired, verified.tally.errors, verified.tally.settled),
        (100, 1, 0)
    );
    assert_eq!((site.uids(&inbox()).len(), site.is_settled()), (6, false));
    assert_eq!(site.verify(true).tally.repaired, 5);
    assert_eq!(site.verify(true).tally.settled, 1);
    assert_eq!((site.uids(&inbox()), site.is_settled()), (vec![uid(&on_record)], true));
}

#[test]
fn a_double_by_the_name_that_it_shares_stays() {
    let site = Site::new();
    two_copies(&site, "shared");
    // A store that breaks its promise must not cost a copy.
    let by_name = |_: u32, _: &CopySearch<'_>, found: &mut Vec<FoundCopy>| {
        let names = ["name", "other"];
        found
            .iter_mut()
            .zip(names)
            .for_each(|(one, name)| one.receipt = Receipt::Name(name.to_owned()));
        Ok(())
    };
    let verified = site.verify_with(ALL, true, &meddled(&site.store, by_name));
    let refused = verified
        .findings
        .iter()
        .find(|one| one.receipt.as_deref() == Some("name=name"))
        .expect("a finding");
    assert!(
        refused.level == Level::Error && refused.text.contains("copy that stays"),
        "{refused:?}"
    );
    assert_eq!(site.uids(&inbox()).len(), 2);
}

#[test]
fn a_name_that_a_reader_will_change_is_not_put_on_record() {
    let named = |_: u32, _: &CopySearch<'_>, found: &mut Vec<FoundCopy>| {
        found.iter_mut().for_each(|one| one.receipt = Receipt::Name("cur/name:2,S".to_owned()));
        Ok(())
    };
    let site = Site::new();
    let (_, receipt) = site.placed(&mail("placed"), &inbox(), 2);
    site.ledger.advance(2 * LEASE.lease);
    site.verify_with(ALL, true, &meddled(&site.store, named));
    assert!(
        matches!(site.standing(), Standing::Placed { receipt: recorded, .. } if recorded == receipt)
    );
    for years in [0, 1] {
        let site = Site::new();
        let (_, date) = site.claim(&mail("doubt"), &inbox());
        site.append(&mail("doubt"), &inbox(), date + years * 365 * DAY);
        site.ledger.advance(2 * LEASE.lease);
        site.verify_with(ALL, true, &meddled(&site.store, named));
        assert!(matches!(site.standing(), Standing::InDoubt { .. }), "{:?}", site.standing());
    }
}

/// The owner has thrown the first away when a late delivery links the second.
#[test]
fn of_two_files_with_one_name_the_one_on_record_is_never_named_by_folder() {
    for (flags, later_secs, left) in [("ST", 0, 2), ("S", 0, 1), ("S", 1, 2)] {
        let root = tempfile::tempdir().expect("a folder");
        let site = Site::new();
        site.claim(&mail("twin"), &inbox());
        site.ledger.advance(2 * LEASE.lease);
        let (claim, date) = site.claim(&mail("twin"), &inbox());
        let key = mail("twin").identity().copy_key("doug", "INBOX");
        let message = mail("twin");
        let copy = Copy {
            key: &key,
            head: b"",
            bytes: message.own_copy(),
            identity: message.identity(),
            recorded_at: date,
        };
        let store = MaildirStore::new(root.path(), true);
        let receipt = append(&store, &inbox(), copy);
        site.confirm(&claim, &receipt);
        site.ledger.advance(2 * LEASE.lease);
        let Receipt::Name(name) = &receipt else { panic!("{receipt:?}") };
        let folder = root.path().join("doug/Maildir");
        let read = folder.join(format!("cur/{name}:2,{flags}"));
        fs::rename(folder.join("new").join(name), &read).expect("a rename");
        let changed = date + Duration::from_secs(later_secs);
        fs::File::options()
            .append(true)
            .open(&read)
            .and_then(|file| file.set_modified(changed))
            .expect("a date");
        append(&store, &inbox(), copy);
        for _ in 0..2 {
            site.verify_with(ALL, true, &store);
            assert!(
                matches!(site.standing(), Standing::Placed { receipt: recorded, .. } if recorded == receipt)
            );
        }
        let files = |sub: &str| fs::read_dir(folder.join(sub)).expect("a folder").count();
        assert_eq!(files("new") + files("cur"), left, "{flags} {later_secs}");
        assert!(files("new") == 1 || read.exists(), "the one that stays");
        // What its owner has marked as deleted may be unmarked.
        assert_eq!(
            site.is_settled(),
            !(flags.contains('T') && later_secs == 0),
            "{flags} {later_secs}"
        );
    }
}

#[test]
fn an_account_is_verified_alone_and_many_pages_are_read() {
    let site = Site::new();
    for n in 0..1100 {
        let (claim, _) =
            site.claim(&mail(&format!("n{n}")), &Destination::inbox(["a", "b", "c"][n % 3]));
        site.confirm(&claim, &Receipt::Uid { validity: 1, uid: 999_999 });
    }
    let verified = site.verify(false);
    assert_eq!((verified.tally.copies, verified.tally.infos), (1100, 1100));
    let accounts: Vec<_> =
        verified.findings.iter().map(|finding| finding.account.as_str()).collect();
    assert!(accounts.is_sorted(), "an account after the other");
    let window = Window { account: Some("b"), ..ALL };
    assert_eq!(site.verify_in(window, false).tally.copies, 367);
}

/// A Sent that could not take its copy, whose lease was given back or (`in_doubt`) is left over.
fn kept(site: &Site, mail: &Message, in_doubt: bool) -> SystemTime {
    let (claim, date) = site.claim(mail, &sent());
    let row = site.ledger.copies_to_verify(&ALL, None, 10, soon()).expect("copies");
    let row = row.iter().find(|row| row.copy == claim.copy).expect("the copy");
    site.ledger.keep(row.message, mail.shared_copy(), "store: no right", soon()).expect("keep");
    if !in_doubt {
        site.ledger.release(&[claim], soon()).expect("release");
    }
    date
}

#[test]
fn a_kept_copy_is_told_and_placed_by_repair_byte_for_byte() {
    let bytes = b"Return-Path: <l@g>\r\nDelivered-To: doug@x\r\nMessage-ID: <kept@x>\r\nSubject: s\r\n\r\na\0b\r\n";
    let mail = message(bytes.to_vec());
    for in_doubt in [false, true] {
        let site = Site::new();
        let date = kept(&site, &mail, in_doubt);
        site.ledger.advance(2 * LEASE.lease);
        let told = site.verify(false);
        assert_eq!(told.topics(), [(Level::Error, Topic::Kept)]);
        assert!(told.findings[0].text.contains("store: no right"), "{:?}", told.findings);
        assert!(site.uids(&sent()).is_empty());
        // Long after the window has passed.
        let late = Window { since: SystemTime::now() + 365 * DAY, account: None };
        let repaired = site.verify_in(late, true);
        assert_eq!(repaired.topics(), [(Level::Repaired, Topic::Kept)]);
        assert!(repaired.findings[0].text.contains("is stored as uid="), "{:?}", repaired.findings);
        let stored = site.store.copies("lisa", "Sent");
        assert_eq!(stored.len(), 1);
        assert_eq!(
            (stored[0].bytes.as_slice(), stored[0].date, stored[0].seen),
            (mail.shared_copy(), date, true)
        );
        assert!(matches!(site.standing(), Standing::Placed { .. }));
        site.ledger.advance(2 * LEASE.lease);
        assert!(site.verify(true).topics().iter().all(|(_, topic)| *topic != Topic::Kept));
        assert_eq!(site.uids(&sent()).len(), 1);
    }
}

#[test]
fn a_kept_copy_that_was_written_after_all_is_found() {
    let site = Site::new();
    let date = kept(&site, &mail("m"), true);
    let receipt = site.append(&mail("m"), &sent(), date);
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Busy)], "its lease lives");
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Kept)]);
    assert_eq!(site.uids(&sent()), [uid(&receipt)]);
}

#[test]
fn a_kept_copy_that_is_refused_again_stays_kept() {
    let faults: [fn(String) -> StoreError; 5] = [
        StoreError::Refused,
        StoreError::OverQuota,
        StoreError::NoAccount,
        StoreError::Setup,
        StoreError::NotStored,
    ];
    for fault in faults.map(|fault| fault("told to fail".to_owned())) {
        let site = Site::new();
        kept(&site, &mail("m"), false);
        let why = fault.to_string();
        let refused = site.verify_failing("append", fault);
        assert_eq!(refused.topics(), [(Level::Error, Topic::Kept)], "{why}");
        assert!(site.uids(&sent()).is_empty());
        assert_eq!(
            site.verify(true).topics(),
            [(Level::Repaired, Topic::Kept)],
            "{why}: once it can"
        );
        assert_eq!(site.uids(&sent()).len(), 1);
    }
}

#[test]
fn kept_bytes_of_another_identity_are_placed_nowhere() {
    let site = Site::new();
    let (claim, _) = site.claim(&mail("m"), &sent());
    let row = site.ledger.copies_to_verify(&ALL, None, 1, soon()).expect("copies").remove(0);
    site.ledger
        .keep(row.message, b"Message-ID: <other@x>\r\n\r\nx\r\n", "no", soon())
        .expect("keep");
    site.ledger.release(&[claim], soon()).expect("release");
    assert_eq!(site.verify(true).topics(), [(Level::Error, Topic::Kept)]);
    assert!(site.uids(&sent()).is_empty());
}
