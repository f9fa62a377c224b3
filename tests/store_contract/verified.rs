//! `verify` with a ledger in memory, where only real Maildirs show what it does.

use std::fs;
use std::sync::Arc;

use onedrop::clock::{Clock, SystemClock};
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::{
    Audit as _, Claim, CopyFacts, CopyState, Entry, Ledger as _, Standing, ToConfirm, Window,
};
use onedrop::store::Store as _;
use onedrop::store::maildir::MaildirStore;
use onedrop::verify::{self, VerifyTask};
use onedrop_core::testing::ports::{LEASE, attempt, inbox, mail, soon};

use super::*;
use crate::support::TempRoot;

const ALL: Window = Window { since: SystemTime::UNIX_EPOCH, all: true };

fn claimed(ledger: &MemoryLedger) -> (Claim, SystemTime) {
    let (message, wanted) = (mail("twin"), [inbox()]);
    let facts = message.facts();
    let entry = Entry {
        identity: message.identity(),
        facts: &facts,
        size_bytes: message.own_copy().len() as u64,
        raw: None,
        nul_runs: None,
        at: None,
        oldest: None,
        fields: None,
    };
    let recorded = ledger.record(&entry, &attempt("mx1"), &wanted, LEASE, soon()).expect("record");
    match recorded.copies[0] {
        CopyState::Claimed(claim) => (claim, recorded.recorded_at),
        ref other => panic!("{other:?}"),
    }
}

fn append(store: &MaildirStore, copy: Copy<'_>) -> Receipt {
    let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(1));
    let destination = inbox();
    let slot = store.reserve(&destination, copy, Need::Write, &deadline).expect("a store");
    slot.expect("nobody else").append().expect("append")
}

fn repaired(ledger: &MemoryLedger, store: &MaildirStore) {
    let (by, clock): (_, Arc<dyn Clock>) = (attempt("verifier"), Arc::new(SystemClock));
    let task = VerifyTask {
        window: ALL,
        account: None,
        behind: None,
        parallel: 1,
        repair: true,
        lease: LEASE.lease,
        time: (Duration::from_secs(60), Duration::from_secs(20)),
        clock: &clock,
        by: &by,
        may_write: &|_| Ok(()),
    };
    verify::verify(&task, ledger, store, &mut |_| ()).expect("verify");
}

/// The owner has thrown the first away when a late delivery links the second.
#[test]
fn of_two_files_with_one_name_the_one_on_record_is_never_named_by_folder() {
    for (flags, later_secs, left) in [("ST", 0, 2), ("S", 0, 1), ("S", 1, 2)] {
        let root = TempRoot::new();
        let ledger = MemoryLedger::default();
        claimed(&ledger);
        ledger.advance(2 * LEASE.lease);
        let (claim, date) = claimed(&ledger);
        let key = mail("twin").identity().copy_key("doug", "INBOX");
        let message = mail("twin");
        let copy = Copy {
            key: &key,
            head: b"",
            bytes: message.own_copy(),
            identity: message.identity(),
            recorded_at: date,
            looks_back: false,
            handed: None,
            looked: None,
            newer_than: None,
        };
        let store = MaildirStore::new(&*root, true);
        let receipt = append(&store, copy);
        let one = ToConfirm {
            claim,
            receipt: &receipt,
            facts: CopyFacts::default(),
            end: None,
            may_be_lost: false,
        };
        ledger.confirm(&one, soon()).expect("confirm");
        ledger.advance(2 * LEASE.lease);
        let name = receipt.as_name().expect("a name");
        let folder = root.join("doug/Maildir");
        let read = folder.join(format!("cur/{name}:2,{flags}"));
        fs::rename(folder.join("new").join(name), &read).expect("a rename");
        let changed = date + Duration::from_secs(later_secs);
        fs::File::options()
            .append(true)
            .open(&read)
            .and_then(|file| file.set_modified(changed))
            .expect("a date");
        append(&store, copy);
        let row =
            || ledger.copies_to_verify(&ALL, "doug", None, 9, soon()).expect("rows").remove(0);
        for _ in 0..2 {
            repaired(&ledger, &store);
            let Standing::Placed { receipt: known, .. } = row().standing else { panic!() };
            assert_eq!(known, receipt);
        }
        let files = |sub: &str| fs::read_dir(folder.join(sub)).expect("a folder").count();
        assert_eq!(files("new") + files("cur"), left, "{flags} {later_secs}");
        assert!(files("new") == 1 || read.exists(), "the one that stays");
        // What its owner has marked as deleted may be unmarked.
        assert_eq!(
            row().settled,
            !(flags.contains('T') && later_secs == 0),
            "{flags} {later_secs}"
        );
    }
}
