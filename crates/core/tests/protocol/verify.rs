//! What `onedrop verify` finds and repairs, with ledger and store in memory. With real ones:
//! `commands/verify_servers.rs`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::deadline::Deadline;
use onedrop_core::directory::Destination;
use onedrop_core::hook::{Call, Hook};
use onedrop_core::ledger::memory::MemoryLedger;
use onedrop_core::ledger::{
    Audit, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, Entry, Ledger, LedgerError,
    Standing, ToConfirm, Window,
};
use onedrop_core::message::Message;
use onedrop_core::store::memory::MemoryStore;
use onedrop_core::store::{AnyStore, Copy, Need, Receipt, Store, StoreError};
use onedrop_core::verify::{self, Difference, Level, News, Tally, Topic, VerifyTask};

use crate::ports::{LEASE, attempt, inbox, mail, mail_with_body, sent, soon};

mod changing;
mod doubles;
mod doubts;
mod handed;
mod kept;

const ALL: Window = Window { since: UNIX_EPOCH, all: true };
const DAY: Duration = Duration::from_secs(24 * 3600);

/// One ledger, one store, and what was reported.
struct Site {
    ledger: MemoryLedger,
    store: MemoryStore,
    /// Of which verify is asked.
    account: Option<&'static str>,
    behind: Option<&'static str>,
    parallel: usize,
}

#[derive(Debug)]
struct Verified {
    findings: Vec<Difference>,
    failed: Vec<String>,
    passed: Vec<String>,
    tally: Tally,
}

impl Verified {
    fn topics(&self) -> Vec<(Level, Topic)> {
        self.findings.iter().map(|finding| (finding.level, finding.topic)).collect()
    }
}

impl Site {
    fn new() -> Site {
        Site::of(MemoryLedger::default(), MemoryStore::default())
    }

    fn of(ledger: MemoryLedger, store: MemoryStore) -> Site {
        Site { ledger, store, account: None, behind: None, parallel: 1 }
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
            oldest: None,
            fields: None,
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
            looks_back: false,
            handed: None,
            looked: None,
            newer_than: None,
        };
        append(&self.store, destination, copy)
    }

    fn confirm(&self, claim: &Claim, receipt: &Receipt) {
        let one = ToConfirm {
            claim: *claim,
            receipt,
            facts: CopyFacts::default(),
            end: None,
            may_be_lost: false,
        };
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

    fn verify_in(&self, window: Window, repair: bool) -> Verified {
        self.verify_with(window, repair, &self.store)
    }

    /// The next such call of the store fails, before it takes effect.
    fn verify_failing(&self, call: &'static str, error: StoreError) -> Verified {
        let failing = Failing(Mutex::new(Some((call, error))));
        self.verify_with(ALL, true, &self.store.with_hook(Arc::new(failing)))
    }

    fn verify_with(&self, window: Window, repair: bool, store: &dyn AnyStore) -> Verified {
        self.try_verify(window, repair, &self.ledger, store).expect("verify")
    }

    fn try_verify(
        &self,
        window: Window,
        repair: bool,
        ledger: &MemoryLedger,
        store: &dyn AnyStore,
    ) -> Result<Verified, LedgerError> {
        let by = attempt("verifier");
        let time = (Duration::from_secs(60), Duration::from_secs(20));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let task = VerifyTask {
            window,
            account: self.account,
            behind: self.behind,
            parallel: self.parallel,
            repair,
            lease: LEASE.lease,
            time,
            clock: &clock,
            by: &by,
            may_write: &|_| Ok(()),
        };
        let (mut findings, mut failed, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        let mut tell = |news: News| match news {
            News::Found(finding) => findings.push(finding),
            News::Failed { destination, why } => failed.push(format!("{destination}: {why}")),
            News::Progress { .. } => {}
            News::Passed { account } => passed.push(account),
        };
        let tally = verify::verify(&task, ledger, store, &mut tell)?;
        Ok(Verified { findings, failed, passed, tally })
    }

    fn uids(&self, destination: &Destination) -> Vec<u32> {
        let copies = self.store.copies(&destination.account, &destination.mailbox);
        copies.iter().map(|stored| stored.uid).collect()
    }

    /// The first row.
    fn row(&self) -> CopyOnRecord {
        self.rows().remove(0)
    }

    /// All rows.
    fn rows(&self) -> Vec<CopyOnRecord> {
        let accounts = self.ledger.accounts_to_verify(&ALL, None, 1000, soon()).expect("accounts");
        let of = |account: &String| {
            self.ledger.copies_to_verify(&ALL, account, None, 1000, soon()).expect("copies")
        };
        let mut rows: Vec<CopyOnRecord> = accounts.iter().flat_map(of).collect();
        rows.sort_by_key(|row| row.copy);
        rows
    }

    fn standing(&self) -> Standing {
        self.row().standing
    }

    fn receipt(&self) -> Option<Receipt> {
        match self.standing() {
            Standing::Placed { receipt, .. } => Some(receipt),
            _ => None,
        }
    }

    fn is_settled(&self) -> bool {
        self.row().settled
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
    let (_, uid) = receipt.as_uid().unwrap_or_else(|| panic!("{receipt:?}"));
    uid
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
    site.store.remove(&inbox(), &receipt, None, soon()).expect("remove");
    for repair in [false, true] {
        let verified = site.verify(repair);
        assert_eq!(verified.topics(), [(Level::Info, Topic::Moved)]);
        assert!(verified.findings[0].text.contains("moved or deleted by its owner"));
        assert!(site.uids(&inbox()).is_empty());
    }
}

#[test]
fn a_copy_moved_away_and_back_is_recorded_under_its_new_name() {
    let site = Site::new();
    let (date, old) = site.placed(&mail("back"), &inbox(), 1);
    site.store.remove(&inbox(), &old, None, soon()).expect("remove");
    let new = site.append(&mail("back"), &inbox(), date);
    let verified = site.verify(true);
    assert_eq!(verified.topics(), [(Level::Info, Topic::Moved)], "its lease may not be over yet");
    let there = format!("the copy is there as {new}");
    assert!(verified.findings[0].text.contains(&there), "{:?}", verified.findings);
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(false).topics(), [(Level::Info, Topic::Moved)]);
    let verified = site.verify(true);
    assert_eq!(verified.topics(), [(Level::Info, Topic::Moved)]);
    assert_eq!(verified.tally.settled, 0, "it needed no second look");
    assert_eq!(site.receipt().as_ref(), Some(&new));
    assert_eq!(site.verify(false).findings, []);
    assert_eq!(site.uids(&inbox()), [uid(&new)]);
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

#[test]
fn an_account_is_verified_alone_and_many_pages_are_read() {
    let site = Site::new();
    for n in 0..1100 {
        let (claim, _) =
            site.claim(&mail(&format!("n{n}")), &Destination::inbox(["a", "b", "c"][n % 3]));
        site.confirm(&claim, &Receipt::uid(1, 999_999));
    }
    let verified = site.verify(false);
    assert_eq!((verified.tally.copies, verified.tally.infos), (1100, 1100));
    let accounts: Vec<_> =
        verified.findings.iter().map(|finding| finding.account.as_str()).collect();
    assert!(accounts.is_sorted(), "an account after the other");
    let site = Site { account: Some("b"), ..site };
    assert_eq!(site.verify(false).tally.copies, 367);
}

#[test]
fn a_copy_that_one_lease_placed_is_looked_for_only_where_all_are() {
    let site = Site::new();
    let (_, clean) = site.placed(&mail("clean"), &inbox(), 1);
    let (_, doubtful) = site.placed(&mail("twice"), &inbox(), 2);
    for receipt in [&clean, &doubtful] {
        site.store.remove(&inbox(), receipt, None, soon()).expect("remove");
    }
    let verified = site.verify_in(Window { all: false, ..ALL }, false);
    assert_eq!((verified.tally.copies, verified.topics()), (1, vec![(Level::Info, Topic::Moved)]));
    assert_eq!(verified.findings[0].message_id.as_deref(), Some("<twice@example.org>"));
    let verified = site.verify(false);
    assert_eq!((verified.tally.copies, verified.findings.len()), (2, 2));
}

/// Counts the looks, and holds up those into the mailboxes of the first account until accounts
/// after it are over.
struct Watched {
    looks: Mutex<Vec<String>>,
    looked: Condvar,
    waits: bool,
}

impl Hook<StoreError> for Watched {
    fn before(&self, call: &Call<'_>) -> Result<(), StoreError> {
        let account = call.destination.expect("a mailbox").account.clone();
        let mut looks = self.looks.lock().expect("no panic");
        let is_first = account == "a00";
        looks.push(account);
        self.looked.notify_all();
        while is_first && self.waits && looks.len() < 9 {
            let wait = self.looked.wait_timeout(looks, Duration::from_secs(20));
            let (next, waited) = wait.expect("no panic");
            assert!(!waited.timed_out(), "nobody goes on: {next:?}");
            looks = next;
        }
        Ok(())
    }
}

#[test]
fn accounts_are_verified_side_by_side_and_told_in_their_order() {
    let mut site = Site::new();
    let accounts: Vec<String> = (0..12).map(|n| format!("a{n:02}")).collect();
    for (n, account) in accounts.iter().cycle().take(60).enumerate() {
        let at = [Destination::inbox(account), Destination::sent(account, "Sent")];
        let (claim, _) = site.claim(&mail(&format!("m{n}")), &at[n / 12 % 2]);
        site.confirm(&claim, &Receipt::uid(1, 999_999));
    }
    let alone = site.verify(false);
    assert_eq!(alone.findings.len(), 60);
    site.parallel = 3;
    let watched =
        |waits| Arc::new(Watched { looks: Mutex::default(), looked: Condvar::new(), waits });
    let hook = watched(true);
    let together = site.verify_with(ALL, false, &site.store.with_hook(hook.clone()));
    assert_eq!(together.findings, alone.findings, "in the same order");
    assert_eq!(together.tally, alone.tally);
    let passed: Vec<&str> = together.passed.iter().map(String::as_str).collect();
    assert_eq!(passed, accounts, "each once what was found of it is told");
    let looks = hook.looks.lock().expect("no panic").len();
    assert_eq!(looks, 24, "one look into each mailbox");
    // Where an earlier run stood.
    site.behind = Some("a08");
    let hook = watched(false);
    let rest = site.verify_with(ALL, false, &site.store.with_hook(hook.clone()));
    assert_eq!(rest.passed, accounts[9..]);
    assert_eq!(rest.findings, alone.findings[45..]);
}

#[test]
fn a_ledger_that_fails_ends_all_workers() {
    let mut site = Site::new();
    for n in 0..40 {
        let at = Destination::inbox(&format!("a{n:02}"));
        let (claim, _) = site.claim(&mail(&format!("m{n}")), &at);
        site.confirm(&claim, &Receipt::uid(1, 999_999));
    }
    site.parallel = 4;
    let calls = AtomicUsize::new(0);
    let ledger = site.ledger.with_hook(Arc::new(FailingFrom { nth: 9, calls }));
    let error = site.try_verify(ALL, false, &ledger, &site.store).expect_err("an error");
    assert!(matches!(error, LedgerError::Unavailable(_)), "{error:?}");
}

/// From the nth call on the ledger is away.
struct FailingFrom {
    nth: usize,
    calls: AtomicUsize,
}

impl Hook<LedgerError> for FailingFrom {
    fn before(&self, _: &Call<'_>) -> Result<(), LedgerError> {
        match self.calls.fetch_add(1, Ordering::SeqCst) < self.nth {
            true => Ok(()),
            false => Err(LedgerError::Unavailable("told to fail".to_owned())),
        }
    }
}
