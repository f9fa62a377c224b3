//! The steps against ledgers and stores that misbehave, each in its own way.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::*;
use crate::cli::OpenLedger;
use crate::deadline::Deadline;
use crate::directory::{Asked, Destination};
use crate::ledger::memory::MemoryLedger;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, Entry, LeaseTerms,
    Ledger, LedgerError, Recorded, SCHEMA_VERSION, Trace, TraceFilter, Turn, Window,
};
use crate::lock_key::Hash;
use crate::message::Identity;
use crate::store::memory::MemoryStore;
use crate::store::{Copy, Found, Receipt, Sought, Store, StoreError, Way, Whose};

/// Longer than any of these steps takes unless it hangs.
const AMPLE: Duration = Duration::from_secs(60);

#[test]
fn a_good_set_up_has_no_errors_and_a_line_per_end() {
    let told = told(&check(adapters(|_, _| fake(|_| {})), Some("lisa"), AMPLE));
    let expected = "ok      ledger: postgres://db/onedrop, schema version 5\n\
                    ok      lock: two sessions exclude each other\n\
                    ok      store: maildir:///nowhere, account lisa: in memory";
    assert_eq!(told, expected);
}

#[test]
fn sessions_of_different_servers_are_an_error() {
    let findings =
        check(adapters(|_, _| Ok(Box::new(MemoryLedger::default()))), Some("lisa"), AMPLE);
    let lock = only(&findings, "lock");
    assert_eq!(lock.level, Level::Error);
    assert!(lock.text.contains("deliveries would not exclude each other"), "{}", lock.text);
    assert_eq!(only(&findings, "store").level, Level::Ok);
}

#[test]
fn a_lock_that_is_never_given_back_is_an_error() {
    let findings = check(adapters(|_, _| fake(|ledger| ledger.keeps = true)), Some("lisa"), AMPLE);
    let lock = only(&findings, "lock");
    assert_eq!(lock.level, Level::Error);
    assert!(
        lock.text.ends_with("a lock that was given back cannot be taken: contended"),
        "{}",
        lock.text
    );
}

#[test]
fn a_lock_that_cannot_be_tried_is_an_error() {
    let findings =
        check(adapters(|_, _| fake(|ledger| ledger.refuses = true)), Some("lisa"), AMPLE);
    let lock = only(&findings, "lock");
    assert_eq!(lock.level, Level::Error);
    assert!(
        lock.text.contains("cannot take a lock that nobody holds: not allowed"),
        "{}",
        lock.text
    );
}

#[test]
fn another_schema_version_is_an_error_and_the_lock_is_still_tested() {
    let cases: [(Adapters, &str); 2] = [
        (adapters(|_, _| fake(|ledger| ledger.version = 0)), "has no schema yet"),
        (adapters(|_, _| fake(|ledger| ledger.version += 1)), "install a newer onedrop"),
    ];
    for (adapters, what) in cases {
        let findings = check(adapters, Some("lisa"), AMPLE);
        let schema = only(&findings, "schema");
        assert_eq!(schema.level, Level::Error);
        assert!(schema.text.contains(what), "{}", schema.text);
        assert_eq!(only(&findings, "lock").level, Level::Ok);
    }
}

#[test]
fn a_ledger_out_of_reach_does_not_keep_the_store_from_being_checked() {
    let findings = check(
        adapters(|_, _| Err(LedgerError::Unavailable("no route\nto host".into()))),
        None,
        AMPLE,
    );
    let ledger = only(&findings, "ledger");
    assert_eq!(ledger.level, Level::Error);
    assert_eq!(ledger.text, "postgres://db/onedrop: cannot be reached: no route to host");
    assert_eq!(only(&findings, "store").text, "maildir:///nowhere, account of-lisa: in memory");
}

#[test]
fn an_end_that_hangs_is_left_behind() {
    let mut adapters = adapters(|_, _| hang());
    adapters.open_store = |_| Ok(Box::new(|| Box::new(StuckStore)));
    let time = Duration::from_millis(20);
    let findings = check(adapters, Some("lisa"), time);
    assert!(only(&findings, "ledger").text.contains("no answer within 2 s"), "{findings:?}");
    assert!(only(&findings, "store").text.contains("no answer within 2 s"), "{findings:?}");
}

#[test]
fn an_end_that_panics_is_an_error_like_any_other() {
    let findings = check(adapters(|_, _| panic!("boom")), Some("lisa"), AMPLE);
    assert!(only(&findings, "ledger").text.ends_with("internal error: boom"), "{findings:?}");
    assert_eq!(only(&findings, "store").level, Level::Ok);
}

#[test]
fn a_store_that_refuses_the_login_is_an_error() {
    let mut adapters = adapters(|_, _| fake(|_| {}));
    adapters.open_store = |_| Err(StoreError::NotStored("AUTHENTICATIONFAILED".to_owned()));
    let store = check(adapters, Some("lisa"), AMPLE);
    assert_eq!(
        only(&store, "store").text,
        "maildir:///nowhere, account lisa: AUTHENTICATIONFAILED"
    );
    assert_eq!(only(&store, "store").level, Level::Error);
}

#[test]
fn an_account_is_asked_for_when_the_directory_names_none() {
    let loaded = Arc::new(loaded("domains = [\"a.example\"]"));
    let findings = store::findings(&loaded, None, adapters(|_, _| fake(|_| {})), AMPLE);
    assert_eq!(findings[0].level, Level::Untested);
    assert!(
        findings[0].text.contains("nothing was tested")
            && findings[0].text.ends_with("pass --account NAME")
    );
    let on_record: OpenLedger =
        |_, _| fake(|fake| fake.placed = vec![Receipt::Name("1.onedrop".to_owned())]);
    let findings = store::findings(&loaded, None, adapters(on_record), AMPLE);
    assert_eq!(
        findings[0].text, "maildir:///nowhere, account lisa: in memory",
        "the account of a copy on record"
    );
    let findings = store::findings(&loaded, Some("../x"), adapters(|_, _| fake(|_| {})), AMPLE);
    assert_eq!(findings[0].level, Level::Error);
}

/// The configuration is one for Maildirs.
#[test]
fn a_copy_that_was_written_another_way_is_told() {
    fn name() -> Receipt {
        Receipt::Name("1.onedrop".to_owned())
    }
    let other: OpenLedger =
        |_, _| fake(|fake| fake.placed = vec![name(), Receipt::Uid { validity: 7, uid: 42 }]);
    let findings = check(adapters(other), None, AMPLE);
    let [_, other] =
        findings.iter().filter(|finding| finding.topic == "ledger").collect::<Vec<_>>()[..]
    else {
        panic!("{findings:?}")
    };
    assert_eq!(other.level, Level::Warning);
    assert!(other.text.contains("account=lisa mailbox=INBOX was written by IMAP"), "{other:?}");
    only(&check(adapters(|_, _| fake(|fake| fake.placed = vec![name()])), None, AMPLE), "ledger");
}

fn check(adapters: Adapters, account: Option<&str>, time: Duration) -> Vec<Finding> {
    let loaded = loaded("accounts = { \"lisa@gmail.com\" = \"of-lisa\" }");
    let mut findings = of_configuration(Ok(loaded), account, adapters, time);
    assert_eq!(findings.remove(0).topic, "configuration");
    findings
}

/// A configuration whose ledger is never reached but by a test's own adapter.
fn loaded(directory: &str) -> Loaded {
    let folder = tempfile::tempdir().expect("a folder");
    let file: PathBuf = folder.path().join("onedrop.toml");
    let text = format!(
        "[ledger]\nurl = \"postgres://me@db/onedrop\"\n[store]\nurl = \"maildir:///nowhere\"\n\
         [directory]\n{directory}\n"
    );
    std::fs::write(&file, text).expect("a file");
    Config::load_from(Some(&file), std::iter::empty()).expect("a good configuration")
}

fn adapters(open_ledger: OpenLedger) -> Adapters {
    Adapters { open_ledger, open_store: |_| Ok(Box::new(|| Box::<MemoryStore>::default())) }
}

fn only<'a>(findings: &'a [Finding], topic: &str) -> &'a Finding {
    let of_topic: Vec<_> = findings.iter().filter(|finding| finding.topic == topic).collect();
    assert_eq!(of_topic.len(), 1, "{topic} in {findings:?}");
    of_topic[0]
}

fn told(findings: &[Finding]) -> String {
    findings.iter().map(Finding::told).collect::<Vec<_>>().join("\n")
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// Locks of all fakes: one server.
static LOCKS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A session that knows locks and its version, and misbehaves as told.
struct Fake {
    version: i64,
    keeps: bool,
    refuses: bool,
    holds: Option<String>,
    placed: Vec<Receipt>,
}

fn fake(change: fn(&mut Fake)) -> Result<Box<dyn Ledger>, LedgerError> {
    let mut fake = Fake {
        version: SCHEMA_VERSION,
        keeps: false,
        refuses: false,
        holds: None,
        placed: Vec::new(),
    };
    change(&mut fake);
    Ok(Box::new(fake))
}

const UNUSED: &str = "check calls nothing else: it changes nothing";

impl Ledger for Fake {
    fn record(
        &mut self,
        _: &Entry<'_>,
        _: &Attempt,
        _: &[Destination],
        _: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn claim(
        &mut self,
        _: i64,
        _: &[Destination],
        _: &Attempt,
        _: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn take_turn(&mut self, _: &Claim, _: &Hash) -> Result<Turn, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn confirm(
        &mut self,
        _: &Claim,
        _: &Receipt,
        _: CopyFacts,
        _: Option<(i64, &AttemptEnd)>,
    ) -> Result<Confirmed, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn keep(&mut self, _: i64, _: &[u8], _: &str) -> Result<bool, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn kept(&mut self, _: i64) -> Result<Option<String>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn kept_bytes(&mut self, _: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        if let Some(name) = self.holds.take_if(|_| !self.keeps) {
            LOCKS.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        }
        Ok(())
    }

    fn release(&mut self, _: &[Claim]) -> Result<(), LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn finish(&mut self, _: i64, _: &AttemptEnd) -> Result<(), LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn note_attempts(
        &mut self,
        _: &Identity,
        _: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn renew(&mut self, _: Instant) -> Result<(), LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn reopen(&mut self, _: Instant) -> Result<(), LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn account_by_query(&mut self, _: &str, _: &Asked) -> Result<Option<String>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn trace(&mut self, _: &TraceFilter<'_>, _: u32) -> Result<Vec<Trace>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn copies_to_verify(
        &mut self,
        _: &Window<'_>,
        _: Option<&CopyOnRecord>,
        _: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn latest_copies(&mut self, _: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        Ok(self
            .placed
            .iter()
            .map(|receipt| (Destination::inbox("lisa"), receipt.clone()))
            .collect())
    }

    fn settle(&mut self, _: &CopyOnRecord, _: &Receipt) -> Result<bool, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError> {
        let _ = way;
        Ok(false)
    }

    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError> {
        let _ = (way, holds, host);
        Ok(())
    }

    fn schema_version(&mut self) -> Result<i64, LedgerError> {
        Ok(self.version)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        if self.refuses {
            return Err(LedgerError::Refused("not allowed".to_owned()));
        }
        if !LOCKS.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned()) {
            return Err(LedgerError::Contended);
        }
        self.holds = Some(name.to_owned());
        Ok(())
    }
}

/// A store that never answers.
struct StuckStore;

impl Store for StuckStore {
    fn append_is_idempotent(&self) -> bool {
        unimplemented!("{UNUSED}")
    }

    fn prepare(&mut self, _: &str, _: Instant) {
        unimplemented!("{UNUSED}")
    }

    fn find(
        &mut self,
        _: &Destination,
        _: &Sought<'_>,
        _: Instant,
    ) -> Result<Vec<Found>, StoreError> {
        unimplemented!("{UNUSED}")
    }

    fn append(
        &mut self,
        _: &Destination,
        _: &Copy<'_>,
        _: &Deadline,
    ) -> Result<Receipt, StoreError> {
        unimplemented!("{UNUSED}")
    }

    fn remove(&mut self, _: &Destination, _: &Receipt, _: Instant) -> Result<(), StoreError> {
        unimplemented!("{UNUSED}")
    }

    fn remove_double(
        &mut self,
        _: &Destination,
        _: &Receipt,
        _: &Receipt,
        _: Instant,
    ) -> Result<(), StoreError> {
        unimplemented!("{UNUSED}")
    }

    fn way(&self) -> Option<Way> {
        None
    }

    fn whose_mailboxes(&mut self, _: &str, _: Instant) -> Result<Whose, StoreError> {
        Ok(Whose::Accounts("no server stands between".to_owned()))
    }

    fn check(&mut self, _: &str, _: Instant) -> Result<Vec<String>, StoreError> {
        hang()
    }
}
