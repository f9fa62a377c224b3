//! `onedrop check` against ledgers and stores that misbehave, each in its own way.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onedrop::check::{self, Finding};
use onedrop::command_line::CheckArgs;
use onedrop::config::Loaded;
use onedrop::directory::Destination;
use onedrop::hook::{Call, Hook};
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::{
    AnyLedger, Attempt, CopyFacts, CopyState, Entry, LeaseTerms, Ledger, LedgerError,
    SCHEMA_VERSION, SchemaVersion, ToConfirm,
};
use onedrop::message::{DedupBy, Message};
use onedrop::net::pool::Limits;
use onedrop::service::{Adapters, MakeLedger, MakeStore};
use onedrop::store::memory::MemoryStore;
use onedrop::store::{Receipt, StoreError};

use crate::support::site::Site;

/// Longer than any of these steps takes unless it hangs.
const AMPLE: Duration = Duration::from_secs(60);

const ACCOUNT: &str = "accounts = { \"lisa@gmail.com\" = \"of-lisa\" }";
const LEDGER: &str = "ok      ledger: postgres://db/onedrop, schema version 11\n";
const LOCK: &str = "ok      lock: two sessions exclude each other\n";
const STORE: &str = "ok      store: maildir:///nowhere, account lisa: in memory\n";

/// Each ledger with the lines about it; the store is tested all the same.
#[test]
fn each_fault_of_a_ledger_is_one_error_beside_what_works() {
    fn version<const FOUND: i64>(call: &str) -> Result<(), LedgerError> {
        match call {
            "schema_version" => {
                Err(LedgerError::Version(SchemaVersion::bare(FOUND, SCHEMA_VERSION)))
            }
            _ => Ok(()),
        }
    }
    fn unproven(call: &str) -> Result<(), LedgerError> {
        match call {
            "prove_exclusion" => Err(LedgerError::Refused("two hold one lock".to_owned())),
            _ => Ok(()),
        }
    }
    const NEWER: i64 = SCHEMA_VERSION + 1;
    let cases: [(MakeLedger, &[&str]); 6] = [
        (good, &[LEDGER, LOCK]),
        (
            |_, _| ledger_that(unproven),
            &[
                LEDGER,
                "error   lock: postgres://db/onedrop: it is not proven that deliveries exclude \
                 each other: two hold one lock\n",
            ],
        ),
        (
            |_, _| ledger_that(version::<0>),
            &["error   schema: postgres://db/onedrop has no schema yet", LOCK],
        ),
        (
            |_, _| ledger_that(version::<NEWER>),
            &["error   schema: postgres://db/onedrop has schema version 12", LOCK],
        ),
        (
            |_, _| Err(LedgerError::Unavailable("no route\nto host".into())),
            &["error   ledger: postgres://db/onedrop: cannot be reached: no route to host\n"],
        ),
        (
            |_, _| panic!("boom"),
            &["error   ledger: postgres://db/onedrop: cannot be reached: internal error: boom\n"],
        ),
    ];
    for (ledger, expected) in cases {
        let lines = lines(&check(adapters(ledger), Some("lisa"), ACCOUNT, AMPLE));
        let lines: Vec<_> = lines.split_inclusive('\n').collect();
        assert_eq!(lines.len(), expected.len() + 1, "{expected:?} in {lines:?}");
        for (line, expected) in lines.iter().zip(expected.iter().chain([&STORE])) {
            assert!(line.starts_with(expected), "{expected:?} is not {line:?}");
        }
    }
}

#[test]
fn an_end_that_hangs_is_left_behind() {
    let store: MakeStore = |_, _| Ok(Arc::new(store_that(|_| hang())));
    let opening: MakeLedger = |_, _| hang();
    let answering: MakeLedger = |_, _| ledger_that(|_| hang());
    for ledger in [opening, answering] {
        let adapters = Adapters { ledger, store, ..adapters(ledger) };
        let lines = lines(&check(adapters, Some("lisa"), ACCOUNT, Duration::from_secs(1)));
        assert_eq!(
            lines,
            "error   ledger: postgres://db/onedrop: cannot be reached: no answer within 2 s\n\
             error   store: maildir:///nowhere, account lisa: no answer within 2 s\n"
        );
    }
}

#[test]
fn a_store_that_refuses_the_login_is_an_error() {
    fn refusal() -> StoreError {
        StoreError::NotStored("AUTHENTICATIONFAILED".to_owned())
    }
    let opening: MakeStore = |_, _| Err(refusal());
    let checking: MakeStore = |_, _| Ok(Arc::new(store_that(|_| Err(refusal()))));
    for store in [opening, checking] {
        let findings = check(Adapters { store, ..adapters(good) }, Some("lisa"), ACCOUNT, AMPLE);
        let expected =
            "error   store: maildir:///nowhere, account lisa: AUTHENTICATIONFAILED\n".to_owned();
        assert_eq!(lines(&findings), [LEDGER, LOCK, &expected].concat());
    }
}

#[test]
fn the_account_is_named_or_the_directorys_or_one_on_record() {
    let on_record: MakeLedger = |_, _| placed(&[Receipt::name("1.onedrop")]);
    let domains = "domains = [\"a.example\"]";
    let cases: [(MakeLedger, Option<&str>, &str, &str); 5] = [
        (good, Some("lisa"), ACCOUNT, "ok      store: maildir:///nowhere, account lisa: in memory"),
        (good, None, ACCOUNT, "ok      store: maildir:///nowhere, account of-lisa: in memory"),
        (on_record, None, domains, "ok      store: maildir:///nowhere, account lisa: in memory"),
        (good, None, domains, "untested store: maildir:///nowhere: nothing was tested: "),
        (good, Some("../x"), ACCOUNT, "error   store: maildir:///nowhere: \"../x\" cannot be an "),
    ];
    for (ledger, account, directory, expected) in cases {
        let lines = lines(&check(adapters(ledger), account, directory, AMPLE));
        assert!(lines.lines().any(|line| line.starts_with(expected)), "{expected:?} in {lines}");
        assert_eq!(lines.matches(" store: ").count(), 1, "{lines}");
    }
}

/// The configuration is one for Maildirs.
#[test]
fn a_copy_that_was_written_another_way_is_reported() {
    fn name() -> Receipt {
        Receipt::name("1.onedrop")
    }
    let other: MakeLedger = |_, _| placed(&[name(), Receipt::uid(7, 42)]);
    let same: MakeLedger = |_, _| placed(&[name()]);
    let text = "warning ledger: the copy account=lisa mailbox=INBOX was written by IMAP, and ";
    for (ledger, count) in [(other, 1), (same, 0)] {
        let lines = lines(&check(adapters(ledger), None, ACCOUNT, AMPLE));
        assert_eq!(lines.matches(text).count(), count, "{lines}");
    }
}

fn adapters(ledger: MakeLedger) -> Adapters {
    Adapters {
        ledger,
        reading: ledger,
        accounts: |_, _| Ok(None),
        store: |_, _| Ok(Arc::new(MemoryStore::default())),
    }
}

/// The findings about both ends; they are never reached except by a test's own adapter.
fn check(
    adapters: Adapters,
    account: Option<&str>,
    directory: &str,
    time: Duration,
) -> Vec<Finding> {
    let site = Site::embedded();
    let config = site.config(
        "etc",
        &format!(
            "[ledger]\nurl = \"postgres://me@db/onedrop\"\n[store]\nurl = \
             \"maildir:///nowhere\"\n[directory]\n{directory}\n"
        ),
    );
    let postfix = Some(PathBuf::from("/nonexistent"));
    let args = CheckArgs { account: account.map(str::to_owned), postfix, ..CheckArgs::default() };
    let mut findings = check::run(&args, Some(&config), adapters, time);
    findings.retain(|one| ["ledger", "lock", "schema", "store"].contains(&one.topic));
    findings
}

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(|finding| finding.line() + "\n").collect()
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// The result of a call, by its name, before it does anything.
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
    let terms = LeaseTerms { lease: AMPLE, join: false, due: false };
    for (n, receipt) in receipts.iter().enumerate() {
        let text = format!("Message-ID: <{n}@x>\n\nhi\n");
        let message = Message::new(text.into_bytes(), DedupBy::Content);
        let (identity, facts) = (message.identity(), message.facts());
        let entry = Entry {
            identity,
            facts: &facts,
            size_bytes: 1,
            raw: None,
            nul_runs: None,
            at: None,
            oldest: None,
            fields: None,
        };
        let inbox = [Destination::inbox("lisa")];
        let recorded = ledger.record(&entry, &Attempt::default(), &inbox, terms, until)?;
        let [CopyState::Claimed(claim)] = recorded.copies[..] else { panic!("{recorded:?}") };
        let one = ToConfirm {
            claim,
            receipt,
            facts: CopyFacts::default(),
            end: None,
            may_be_lost: false,
        };
        ledger.confirm(&one, until)?;
    }
    Ok(Arc::new(ledger))
}
