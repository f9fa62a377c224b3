//! Mailboxes that change, or show something else, while they are compared.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use onedrop_core::connections::Connections;
use onedrop_core::deadline::Deadline;
use onedrop_core::directory::Destination;
use onedrop_core::hook::{Call, Hook};
use onedrop_core::ledger::memory::MemoryLedger;
use onedrop_core::ledger::{BatchTerms, Ledger, LedgerError, PurgeWhat, Retention, Standing};
use onedrop_core::store::memory::MemoryStore;
use onedrop_core::store::{
    Access, Copy, CopySearch, FoundCopy, LookBack, LookedBack, MailboxOwner, Mailboxes, Naming,
    Need, Proof, Receipt, Slot, Store, StoreError, StoreTraits, Unindexed, Way, WitnessNames,
};
use onedrop_core::verify::{Level, Topic};

use super::{ALL, DAY, Site, not_stored, two_copies, uid};
use crate::ports::{LEASE, inbox, mail, sent, soon};

/// A store whose mailboxes change under the verifier's hands: `after` is called with the number of
/// each look and may alter what it found.
struct ChangingStore<F> {
    inner: MemoryStore,
    after: Mutex<(u32, F)>,
}

/// What a verification is given of a mailbox by a [`ChangingStore`] store.
trait After: FnMut(u32, &CopySearch<'_>, &mut Vec<FoundCopy>) -> Result<(), StoreError> + Send {}

impl<F: FnMut(u32, &CopySearch<'_>, &mut Vec<FoundCopy>) -> Result<(), StoreError> + Send> After
    for F
{
}

impl<F: After> Store for ChangingStore<F> {
    fn traits(&self) -> StoreTraits {
        StoreTraits { append_is_idempotent: false, ..self.inner.traits() }
    }

    fn prepare(&self, _: &str, _: Instant) {}

    fn let_go(&self, _: &str) {}

    fn reserve<'a>(
        &'a self,
        _: &'a Destination,
        _: Copy<'a>,
        _: Need,
        _: &'a Deadline,
    ) -> Result<Option<Box<dyn Slot + 'a>>, StoreError> {
        panic!("verify writes no copy")
    }

    fn look_back(
        &self,
        _: &Destination,
        _: &LookBack,
        _: Instant,
    ) -> Result<Option<LookedBack>, StoreError> {
        panic!("verify finds copies, and places none here")
    }

    fn remove(
        &self,
        _: &Destination,
        _: &Receipt,
        _: Option<&CopySearch<'_>>,
        _: Instant,
    ) -> Result<(), StoreError> {
        panic!("verify removes nothing without its keeper")
    }
}

impl<F: After> Mailboxes for ChangingStore<F> {
    fn find_all(
        &self,
        at: &Destination,
        sought: &[CopySearch<'_>],
        until: Instant,
    ) -> Result<Vec<Vec<FoundCopy>>, StoreError> {
        let (looks, after) = &mut *self.after.lock().expect("no panic");
        let look = |sought| {
            *looks += 1;
            let mut found = self.inner.find(at, sought, until)?;
            after(*looks, sought, &mut found).map(|()| found)
        };
        sought.iter().map(look).collect()
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

    fn remove_handed_double(
        &self,
        account: &str,
        double: &FoundCopy,
        keeper: &FoundCopy,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.inner.remove_handed_double(account, double, keeper, until)
    }
}

impl<F: After> Access for ChangingStore<F> {
    fn way(&self) -> Option<Way> {
        None
    }

    fn root(&self) -> Option<&Path> {
        None
    }

    fn missing_place(&self, _: &str) -> Result<Option<PathBuf>, StoreError> {
        Ok(None)
    }

    fn whose_mailboxes(&self, _: &str, _: Instant) -> Result<MailboxOwner, StoreError> {
        panic!("no server stands between")
    }

    fn are_apart(&self, _: &str, _: &str, _: Instant) -> Result<bool, StoreError> {
        panic!("no server stands between")
    }

    fn name_witnesses(&self, _: WitnessNames) {}

    fn has_mailbox(&self, destination: &Destination, until: Instant) -> Result<bool, StoreError> {
        self.inner.has_mailbox(destination, until)
    }

    fn check(&self, _: &str, _: Instant) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }
}

impl<F: After> Connections for ChangingStore<F> {}

fn changing<F>(store: &MemoryStore, after: F) -> ChangingStore<F>
where
    F: FnMut(u32, &CopySearch<'_>, &mut Vec<FoundCopy>) -> Result<(), StoreError> + Send,
{
    ChangingStore { inner: store.clone(), after: Mutex::new((0, after)) }
}

#[test]
fn a_look_that_fails_under_our_lease_gives_it_back() {
    let site = Site::new();
    let (_, date) = site.claim(&mail("doubt"), &inbox());
    site.append(&mail("doubt"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    let fails_second = |look: u32, _: &CopySearch<'_>, _: &mut Vec<FoundCopy>| match look {
        2 => Err(not_stored()),
        _ => Ok(()),
    };
    let tally = site.verify_with(ALL, true, &changing(&site.store, fails_second)).tally;
    assert_eq!((tally.failed, tally.errors, tally.repaired), (1, 0, 0));
    assert_eq!(
        site.standing(),
        Standing::InDoubt { lease_left_over: false },
        "free for the next attempt at once"
    );
}

#[test]
fn a_purge_that_takes_a_copy_out_while_it_is_looked_for_does_not_end_the_run() {
    // What the run does about the first copy: a doubt, and the bytes of a Sent.
    for kept in [false, true] {
        let site = Site::new();
        let place = if kept { sent() } else { inbox() };
        let (claim, date) = site.claim(&mail("old"), &place);
        match kept {
            true => {
                let message = site.row().message_key();
                let kept = site.ledger.keep(&message, mail("old").shared_copy(), "full", soon());
                assert!(kept.expect("kept"));
                site.ledger.release(&[claim], soon()).expect("released");
            }
            false => drop(site.append(&mail("old"), &place, date)),
        }
        site.ledger.advance(36 * DAY);
        site.placed(&mail("other"), &Destination::inbox("zoe"), 2);
        site.ledger.advance(2 * LEASE.lease);
        let ledger = site.ledger.clone();
        let ledger = ledger.with_hook(Arc::new(PurgesBeforeClaims(ledger.clone())));
        let verified = site.try_verify(ALL, true, &ledger, &site.store).expect("to its end");
        assert_eq!(site.rows().len(), 1, "the old one is purged");
        let told: Vec<&str> = verified.findings.iter().map(|one| one.text.as_str()).collect();
        assert_eq!(told, ["purged or forgotten meanwhile"], "{verified:?}");
        assert_eq!((verified.tally.copies, verified.tally.settled), (2, 1), "and Zoe's is settled");
    }
}

#[test]
fn a_row_that_another_session_holds_does_not_end_the_run() {
    let site = Site::new();
    for account in ["doug", "zoe"] {
        let (_, date) = site.claim(&mail(account), &Destination::inbox(account));
        site.append(&mail(account), &Destination::inbox(account), date);
    }
    site.ledger.advance(2 * LEASE.lease);
    let ledger = site.ledger.with_hook(Arc::new(HeldOnce::default()));
    let verified = site.try_verify(ALL, true, &ledger, &site.store).expect("to its end");
    let told: Vec<&str> = verified.findings.iter().map(|one| one.account.as_str()).collect();
    assert_eq!(told, ["doug", "zoe"], "{verified:?}");
    let expected = [(Level::Info, Topic::Busy), (Level::Repaired, Topic::Lease)];
    let counted = (verified.topics(), verified.tally.copies, verified.tally.busy);
    assert_eq!(counted, (expected.to_vec(), 2, 1), "{verified:?}");
}

/// The first claim meets a session that holds the row.
#[derive(Default)]
struct HeldOnce(AtomicBool);

impl Hook<LedgerError> for HeldOnce {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        match call.name == "claim" && !self.0.swap(true, Ordering::SeqCst) {
            true => Err(LedgerError::Contended),
            false => Ok(()),
        }
    }
}

struct PurgesBeforeClaims(MemoryLedger);

impl Hook<LedgerError> for PurgesBeforeClaims {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        if call.name == "claim" {
            let how = BatchTerms { limit: 100, dry_run: false };
            for what in [PurgeWhat::Kept, PurgeWhat::Messages] {
                self.0.purge(what, 35 * DAY, None, how, soon())?;
            }
        }
        Ok(())
    }
}

/// A mailbox that was put back to an older state, without a new UIDVALIDITY, has such.
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
    assert_eq!(site.receipt().as_ref().map(uid), Some(77));
    assert_eq!((site.verify(true).topics(), site.uids(&inbox()).len()), (vec![], 2));
}

#[test]
fn a_double_stays_when_its_keeper_goes_before_the_removal() {
    for is_marked in [true, false] {
        let site = Site::new();
        let [double, keeper] = two_copies(&site, "late");
        let owner = site.store.clone();
        let store = changing(&site.store, move |_, _, _| {
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
    let verified = site.verify_with(ALL, true, &changing(&site.store, blind));
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
        let store = changing(&site.store, move |_, sought, _| {
            asks.send(sought.needs_proof).expect("a listener");
            Ok(())
        });
        site.verify_with(ALL, true, &store);
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), expected);
    }
}

/// A copy of it may be older than any receipt that the ledger knows.
#[test]
fn what_is_older_than_the_ledgers_memory_is_sought_in_all_of_its_mailbox() {
    for is_older in [false, true] {
        let site = Site::new();
        site.placed(&mail("earlier"), &inbox(), 1);
        site.ledger.advance(DAY);
        if is_older {
            site.ledger.remembers_since(site.ledger.time());
        }
        site.claim(&mail("doubt"), &inbox());
        site.ledger.advance(2 * LEASE.lease);
        let (asks, asked) = channel();
        let store = changing(&site.store, move |_, sought, _| {
            let is_all = sought.unindexed == Unindexed::All;
            asks.send((sought.looks_back, is_all)).expect("a listener");
            Ok(())
        });
        site.verify_with(ALL, false, &store);
        let asked: Vec<_> = asked.try_iter().collect();
        assert_eq!(asked, [(false, false), (is_older, is_older)]);
    }
}

#[test]
fn a_double_by_the_name_that_it_shares_stays() {
    let site = Site::new();
    two_copies(&site, "shared");
    // A store that breaks its promise must not cost a copy.
    let by_name = |_: u32, _: &CopySearch<'_>, found: &mut Vec<FoundCopy>| {
        let names = ["name", "other"];
        for (one, name) in found.iter_mut().zip(names) {
            (one.receipt, one.naming) = (Receipt::name(name), Naming::Shared);
        }
        Ok(())
    };
    let verified = site.verify_with(ALL, true, &changing(&site.store, by_name));
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
        for one in found {
            (one.receipt, one.naming) = (Receipt::name("cur/name:2,S"), Naming::Passing);
        }
        Ok(())
    };
    let site = Site::new();
    let (_, receipt) = site.placed(&mail("placed"), &inbox(), 2);
    site.ledger.advance(2 * LEASE.lease);
    site.verify_with(ALL, true, &changing(&site.store, named));
    assert_eq!(site.receipt().as_ref(), Some(&receipt));
    for years in [0, 1] {
        let site = Site::new();
        let (_, date) = site.claim(&mail("doubt"), &inbox());
        site.append(&mail("doubt"), &inbox(), date + years * 365 * DAY);
        site.ledger.advance(2 * LEASE.lease);
        site.verify_with(ALL, true, &changing(&site.store, named));
        assert!(matches!(site.standing(), Standing::InDoubt { .. }), "{:?}", site.standing());
    }
}
