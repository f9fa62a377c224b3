//! The steps against ledgers and stores that misbehave, each in its own way.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::directory::Destination;
use crate::hook::{Call, Hook};
use crate::ledger::memory::MemoryLedger;
use crate::ledger::{
    AnyLedger, Attempt, CopyFacts, CopyState, Entry, LeaseTerms, Ledger, LedgerError,
    SCHEMA_VERSION, ToConfirm,
};
use crate::message::{DedupBy, Message};
use crate::pool::Limits;
use crate::store::memory::MemoryStore;
use crate::store::{AnyStore, Receipt, StoreError};

/// Longer than any of these steps takes unless it hangs.
const AMPLE: Duration = Duration::from_secs(60);

#[test]
fn a_good_set_up_has_no_errors_and_a_line_per_end() {
    let lines = lines(&check(adapters(good), Some("lisa"), AMPLE));
    let expected = "ok      ledger: postgres://db/onedrop, schema version 5\n\
                    ok      lock: two sessions exclude each other\n\
                    ok      store: maildir:///nowhere, account lisa: in memory";
    assert_eq!(lines, expected);
}

#[test]
fn an_exclusion_that_is_not_proven_is_an_error() {
    let unproven: OpenLedger = |_, _| {
        ledger_that(|call| match call {
            "prove_exclusion" => Err(LedgerError::Refused("two hold one lock".to_owned())),
            _ => Ok(()),
        })
    };
    let findings = check(adapters(unproven), Some("lisa"), AMPLE);
    let lock = only(&findings, "lock");
    assert_eq!(lock.severity, Severity::Error);
    let expected = "postgres://db/onedrop: it is not proven that deliveries exclude each other: \
                    two hold one lock";
    assert_eq!(lock.text, expected);
    assert_eq!(only(&findings, "store").severity, Severity::Ok);
}

#[test]
fn another_schema_version_is_an_error_and_the_lock_is_still_tested() {
    fn of_version<const VERSION: i64>(call: &str) -> Result<(), LedgerError> {
        match call {
            "schema_version" => Err(LedgerError::Version { found: VERSION }),
            _ => Ok(()),
        }
    }
    const NEWER: i64 = SCHEMA_VERSION + 1;
    let cases: [(OpenLedger, &str); 2] = [
        (|_, _| ledger_that(of_version::<0>), "has no schema yet"),
        (|_, _| ledger_that(of_version::<NEWER>), "install a newer onedrop"),
    ];
    for (open_ledger, what) in cases {
        let findings = check(adapters(open_ledger), Some("lisa"), AMPLE);
        let schema = only(&findings, "schema");
        assert_eq!(schema.severity, Severity::Error);
        assert!(schema.text.contains(what), "{}", schema.text);
        assert_eq!(only(&findings, "lock").severity, Severity::Ok);
    }
}

#[test]
fn a_ledger_out_of_reach_does_not_keep_the_store_from_being_checked() {
    let gone: OpenLedger = |_, _| Err(LedgerError::Unavailable("no route\nto host".into()));
    let findings = check(adapters(gone), None, AMPLE);
    let ledger = only(&findings, "ledger");
    assert_eq!(ledger.severity, Severity::Error);
    assert_eq!(ledger.text, "postgres://db/onedrop: cannot be reached: no route to host");
    assert_eq!(only(&findings, "store").text, "maildir:///nowhere, account of-lisa: in memory");
}

#[test]
fn an_end_that_hangs_is_left_behind() {
    let stuck: OpenStore = |_, _| Ok(Arc::new(store_that(|_| hang())));
    let opening: OpenLedger = |_, _| hang();
    let answering: OpenLedger = |_, _| ledger_that(|_| hang());
    for open_ledger in [opening, answering] {
        let adapters = Adapters { ledger: open_ledger, store: stuck };
        let findings = check(adapters, Some("lisa"), Duration::from_millis(20));
        assert!(only(&findings, "ledger").text.contains("no answer within 2 s"), "{findings:?}");
        assert!(only(&findings, "store").text.contains("no answer within 2 s"), "{findings:?}");
    }
}

#[test]
fn an_end_that_panics_is_an_error_like_any_other() {
    let findings = check(adapters(|_, _| panic!("boom")), Some("lisa"), AMPLE);
    assert!(only(&findings, "ledger").text.ends_with("internal error: boom"), "{findings:?}");
    assert_eq!(only(&findings, "store").severity, Severity::Ok);
}

#[test]
fn a_store_that_refuses_the_login_is_an_error() {
    fn refusal() -> StoreError {
        StoreError::NotStored("AUTHENTICATIONFAILED".to_owned())
    }
    let opening: OpenStore = |_, _| Err(refusal());
    let checking: OpenStore = |_, _| Ok(Arc::new(store_that(|_| Err(refusal()))));
    for store in [opening, checking] {
        let findings = check(Adapters { store, ..adapters(good) }, Some("lisa"), AMPLE);
        let refused = only(&findings, "store");
        assert_eq!(refused.text, "maildir:///nowhere, account lisa: AUTHENTICATIONFAILED");
        assert_eq!(refused.severity, Severity::Error);
    }
}

#[test]
fn an_account_is_asked_for_when_the_directory_names_none() {
    let loaded = Arc::new(loaded("domains = [\"a.example\"]"));
    let findings = store::findings(&loaded, None, adapters(good), AMPLE);
    assert_eq!(findings[0].severity, Severity::Untested);
    assert!(
        findings[0].text.contains("nothing was tested")
            && findings[0].text.ends_with("pass --account NAME")
    );
    let on_record: OpenLedger = |_, _| placed(&[Receipt::Name("1.onedrop".to_owned())]);
    let findings = store::findings(&loaded, None, adapters(on_record), AMPLE);
    assert_eq!(
        findings[0].text, "maildir:///nowhere, account lisa: in memory",
        "the account of a copy on record"
    );
    let findings = store::findings(&loaded, Some("../x"), adapters(good), AMPLE);
    assert_eq!(findings[0].severity, Severity::Error);
}

/// The configuration is one for Maildirs.
#[test]
fn a_copy_that_was_written_another_way_is_reported() {
    fn name() -> Receipt {
        Receipt::Name("1.onedrop".to_owned())
    }
    let other: OpenLedger = |_, _| placed(&[name(), Receipt::Uid { validity: 7, uid: 42 }]);
    let findings = check(adapters(other), None, AMPLE);
    let [_, other] =
        findings.iter().filter(|finding| finding.topic == "ledger").collect::<Vec<_>>()[..]
    else {
        panic!("{findings:?}")
    };
    assert_eq!(other.severity, Severity::Warning);
    assert!(other.text.contains("account=lisa mailbox=INBOX was written by IMAP"), "{other:?}");
    only(&check(adapters(|_, _| placed(&[name()])), None, AMPLE), "ledger");
}

type OpenLedger = fn(&Loaded, Limits) -> Result<Arc<dyn AnyLedger>, LedgerError>;
type OpenStore = fn(&Loaded, Limits) -> Result<Arc<dyn AnyStore>, StoreError>;

fn adapters(ledger: OpenLedger) -> Adapters {
    Adapters { ledger, store: |_, _| Ok(Arc::new(MemoryStore::default())) }
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

fn only<'a>(findings: &'a [Finding], topic: &str) -> &'a Finding {
    let of_topic: Vec<_> = findings.iter().filter(|finding| finding.topic == topic).collect();
    assert_eq!(of_topic.len(), 1, "{topic} in {findings:?}");
    of_topic[0]
}

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(Finding::line).collect::<Vec<_>>().join("\n")
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// What a call, by its name, comes to before it does anything.
struct Before<E>(fn(&str) -> Result<(), E>);

impl<E> Hook<E> for Before<E> {
    fn before(&self, call: &Call<'_>) -> Result<(), E> {
        (self.0)(call.name)
    }
}

fn good(_: &Loaded, _: Limits) -> Result<Arc<dyn AnyLedger>, LedgerError> {
    Ok(Arc::new(MemoryLedger::default()))
}

fn ledger_that(
    before: fn(&str) -> Result<(), LedgerError>,
) -> Result<Arc<dyn AnyLedger>, LedgerError> {
    Ok(Arc::new(MemoryLedger::default().with_hook(Arc::new(Before(before)))))
}

fn store_that(before: fn(&str) -> Result<(), StoreError>) -> MemoryStore {
    MemoryStore::default().with_hook(Arc::new(Before(before)))
}

/// A ledger with copies in an INBOX on record, of which these are the receipts.
fn placed(receipts: &[Receipt]) -> Result<Arc<dyn AnyLedger>, LedgerError> {
    let (ledger, until) = (MemoryLedger::default(), Instant::now() + AMPLE);
    let terms = LeaseTerms { lease: AMPLE, join: false };
    for (n, receipt) in receipts.iter().enumerate() {
        let text = format!("Message-ID: <{n}@x>\n\nhi\n");
        let message = Message::new(text.into_bytes(), DedupBy::Content);
        let (identity, facts) = (message.identity(), message.facts());
        let entry =
            Entry { identity, facts: &facts, size_bytes: 1, raw: None, nul_runs: None, at: None };
        let inbox = [Destination::inbox("lisa")];
        let recorded = ledger.record(&entry, &Attempt::default(), &inbox, terms, until)?;
        let [CopyState::Claimed(claim)] = recorded.copies[..] else { panic!("{recorded:?}") };
        let one = ToConfirm { claim, receipt, facts: CopyFacts::default(), end: None };
        ledger.confirm(&one, until)?;
    }
    Ok(Arc::new(ledger))
}
