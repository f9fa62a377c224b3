//! How SQLite goes about what `onedrop verify` and `onedrop settle` ask, and whether an account has
//! a copy: by indexes, however many copies are on record. Without figures of its own (ANALYZE) it
//! makes the same plan for a ledger of any size.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::Connection;

use super::dialect::DIALECT;
use super::{SqliteLedger, dialect};
use crate::sql::{asked, retention, settling, verify};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    Attempt, Entry, FailureFilter, ForgetWhat, LeaseTerms, Ledger, MessagePart, Numbered, Overview,
    Pages, PurgeWhat, Records, Schema, TraceFilter,
};
use onedrop_core::message::{Facts, Identity};
use onedrop_net::pool::Limits;

fn ledger(folder: &std::path::Path) -> Connection {
    let path = folder.join("ledger.db");
    let limits = Limits { used: 1, per_key: 1, kept: 1, idle: Duration::from_secs(60) };
    let until = Instant::now() + Duration::from_secs(60);
    SqliteLedger::new(path.clone(), limits).migrate(until).expect("a ledger");
    Connection::open(path).expect("the ledger")
}

/// The steps of a plan that reads nothing whole but what the query itself makes, and the tables of
/// the few copies that are open.
fn steps_by_indexes(ledger: &Connection, sql: &str) -> Vec<String> {
    let mut explained =
        ledger.prepare(&format!("EXPLAIN QUERY PLAN {}", DIALECT.spell(sql))).expect("SQL");
    let (mut rows, mut steps) = (explained.raw_query(), Vec::<String>::new());
    while let Some(row) = rows.next().expect("a plan") {
        steps.push(row.get(3).expect("a step"));
    }
    let small = [
        "every",
        "recent",
        "open",
        "u",
        "k",
        "onedrop_kept",
        "onedrop_ledger",
        "shown",
        "counted",
        "unrecorded",
        "json_each",
        "search",
        "one",
        "CONSTANT",
        "bounds",
        "kept",
        "late",
        "early",
        "first",
        "older",
        "one",
        "named",
        "queued",
        "queued_once",
        "received",
        "received_once",
        "reached",
        "other",
        "placed",
        "lower",
        "wanted",
        "o",
        "w",
        "l",
        "due",
        "few",
    ];
    for table in steps.iter().filter_map(|step| step.strip_prefix("SCAN ")) {
        let name = table.split(' ').next().unwrap_or_default();
        let is_small = small.iter().any(|one| name == *one || name.starts_with("(subquery-"));
        assert!(is_small, "{table} is read whole: {steps:#?}");
    }
    steps
}

/// Each statement that `asks` runs on a ledger with a message and its attempt, and the steps of its
/// plan.
fn plans_of(asks: impl Fn(&SqliteLedger, Instant)) -> Vec<(String, Vec<String>)> {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = ledger(folder.path());
    plain
        .execute_batch(
            "INSERT INTO onedrop_message (id, id_hash, digest, sender, size_bytes, recorded_at)
                 VALUES (1, zeroblob(32), zeroblob(32), '', 1, unixepoch());
             INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, in_doubt,
                                       prior_doubt, recipient, queue_id, host, pid, began_at)
                 VALUES (1, 'doug', 'INBOX', 0, 1, 0, 0, 'doug@x', 'Q1', 'mx1', 1, unixepoch());
             INSERT INTO onedrop_attempt (message_id, recipient, queue_id, host, pid, started_at)
                 VALUES (1, 'doug@x', 'Q1', 'mx1', 1, unixepoch());",
        )
        .expect("a message");
    let limits = Limits { used: 1, per_key: 1, kept: 1, idle: Duration::from_secs(60) };
    let asked = SqliteLedger::new(folder.path().join("ledger.db"), limits);
    dialect::SENT.take();
    asks(&asked, Instant::now() + Duration::from_secs(60));
    let plan = |sql: String| {
        let steps = steps_by_indexes(&plain, &sql);
        (sql, steps)
    };
    dialect::SENT.take().into_iter().map(plan).collect()
}

#[test]
fn verify_reads_the_window_by_indexes() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = ledger(folder.path());
    for sql in [verify::accounts_of_window(), verify::copies_of_window()] {
        let steps = steps_by_indexes(&ledger, &sql);
        for index in [
            "onedrop_copy_account (account=? AND message_id>?)",
            "onedrop_message_recorded_at (recorded_at>?)",
        ] {
            assert!(steps.iter().any(|step| step.contains(index)), "{index}: {steps:#?}");
        }
        // Nor all copies of an account, to see which of them are open.
        let of_an_account = "SEARCH c USING INDEX onedrop_copy_account (account=?)";
        assert!(!steps.iter().any(|step| step == of_an_account), "{steps:#?}");
    }
}

#[test]
fn whether_an_account_has_a_copy_is_told_by_its_part_of_an_index() {
    let folder = tempfile::tempdir().expect("a folder");
    let steps = steps_by_indexes(&ledger(folder.path()), asked::A_PLACED_ONE);
    assert_eq!(steps, ["SEARCH onedrop_copy USING INDEX onedrop_copy_account (account=?)"]);
}

#[test]
fn a_copy_of_a_message_is_found_by_the_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let steps = steps_by_indexes(&ledger(folder.path()), asked::COPY_AT);
    assert!(steps[0].starts_with("SEARCH m USING INDEX onedrop_message_key"), "{steps:#?}");
    assert!(steps[1].contains("(message_id=? AND account=? AND mailbox=?)"), "{steps:#?}");
}

#[test]
fn what_has_reached_an_address_is_told_by_its_part_of_an_index() {
    let folder = tempfile::tempdir().expect("a folder");
    let steps = steps_by_indexes(&ledger(folder.path()), asked::REACHED);
    for index in [
        "SEARCH a USING INDEX onedrop_attempt_by_recipient (recipient=? AND message_id>?)",
        "SEARCH onedrop_copy USING INDEX onedrop_copy_recipient (recipient=?)",
    ] {
        assert!(steps.iter().any(|step| step == index), "{index}: {steps:#?}");
    }
}

#[test]
fn a_receipt_before_is_found_by_the_accounts_index() {
    let folder = tempfile::tempdir().expect("a folder");
    let steps =
        steps_by_indexes(&ledger(folder.path()), &asked::receipt_before_sql(Duration::ZERO));
    let index = "onedrop_copy_account (account=? AND message_id<?)";
    assert!(steps.iter().any(|step| step.contains(index)), "{steps:#?}");
    let sorted = steps.iter().filter(|step| step.contains("TEMP B-TREE")).count();
    assert_eq!(sorted, 1, "only what was found: {steps:#?}");
}

#[test]
fn a_record_finds_its_message_and_its_copies_by_indexes() {
    let facts = Facts::default();
    let identity = Identity { message_id: None, id_hash: [1; 32], digest: [2; 32] };
    let entry = Entry {
        identity: &identity,
        facts: &facts,
        size_bytes: 1,
        raw: Some(b"x"),
        nul_runs: None,
        at: None,
        oldest: None,
        fields: None,
    };
    let terms = LeaseTerms { lease: Duration::from_secs(90), join: false, due: false };
    let mailbox = |account: &str| Destination {
        account: account.to_owned(),
        mailbox: "INBOX".to_owned(),
        shared: false,
    };
    let plans = plans_of(|ledger, until| {
        for accounts in [["doug", "lisa"], ["doug", "anna"]] {
            let (by, to) = (Attempt::default(), accounts.map(mailbox));
            ledger.record(&entry, &by, &to, terms, until).expect("a record");
        }
    });
    for index in ["USING INDEX onedrop_message_key", "(message_id=? AND account=? AND mailbox=?)"] {
        let has_it = |(_, steps): &(String, Vec<String>)| steps.concat().contains(index);
        assert!(plans.iter().any(has_it), "{index}: {plans:#?}");
    }
}

#[test]
fn a_trace_reads_messages_and_attempts_by_indexes() {
    let with = |filter: TraceFilter<'_>| {
        plans_of(|ledger, until| drop(ledger.trace(&filter, 50, until).expect("a trace")))
    };
    let name = TraceFilter::of("doug@x");
    let failed = TraceFilter { failed: true, sender: Some("x"), ..name };
    let late = TraceFilter { since: Some(UNIX_EPOCH), ..TraceFilter::default() };
    for plans in [with(name), with(failed), with(late)] {
        assert_eq!(plans.len(), 3);
        let steps = plans.iter().flat_map(|(_, steps)| steps);
        let steps: Vec<&str> = steps.map(String::as_str).collect();
        for index in [
            "SEARCH onedrop_attempt USING COVERING INDEX onedrop_attempt_message (message_id=?)",
            "SEARCH a USING INTEGER PRIMARY KEY (rowid=?)",
        ] {
            assert!(steps.contains(&index), "{index}: {steps:#?}");
        }
    }
    // Of one message: not through all that recorded none.
    let plans = plans_of(|ledger, until| drop(ledger.story(1, until).expect("a story")));
    let index = "USING INDEX onedrop_attempt_id_hash (id_hash=?)";
    let is_by_hash = |steps: &Vec<String>| steps.iter().any(|step| step.contains(index));
    assert!(plans.iter().any(|(_, steps)| is_by_hash(steps)), "{plans:#?}");
}

#[test]
fn a_page_of_a_recipient_reads_that_page_alone() {
    let plans = plans_of(|ledger, until| {
        ledger.messages_named("doug@x", i64::MAX, 51, until).expect("messages");
    });
    let [(_, steps)] = plans.as_slice() else { panic!("{plans:#?}") };
    for index in [
        "SEARCH onedrop_attempt USING COVERING INDEX onedrop_attempt_by_recipient (recipient=? AND \
         message_id>? AND message_id<?)",
        "SEARCH onedrop_copy USING COVERING INDEX onedrop_copy_account (account=? AND \
         message_id<?)",
        "SEARCH onedrop_copy USING COVERING INDEX onedrop_copy_recipient (recipient=? AND \
         message_id<?)",
        "SEARCH onedrop_attempt USING INDEX onedrop_attempt_queue_id (queue_id=?)",
        "SEARCH onedrop_copy USING INDEX onedrop_copy_queue_id (queue_id=?)",
    ] {
        assert!(steps.iter().any(|step| step == index), "{index}: {steps:#?}");
    }
    // What belongs to a name comes in the order of the index; sorted is what a page has.
    let of_many: Vec<usize> = (0..steps.len())
        .filter(|at| {
            steps[*at].contains("COVERING INDEX onedrop_") && steps[*at].contains("message_id<?")
        })
        .collect();
    assert_eq!(of_many.len(), 4, "{steps:#?}");
    assert!(of_many.iter().all(|at| steps[at + 1].starts_with("SCAN ")), "{steps:#?}");
}

#[test]
fn pages_read_by_row_numbers_and_indexes() {
    let any = FailureFilter::default();
    let plans = plans_of(|ledger, until| {
        for part in [MessagePart::Sender("x"), MessagePart::Subject("x")] {
            ledger.messages_with(part, &(1..9), 50, until).expect("messages");
        }
        for filter in [any, FailureFilter { name: Some("x"), unrecorded: true, ..any }] {
            ledger.failures(&filter, &(1..9), 50, until).expect("failures");
        }
        let times = UNIX_EPOCH..SystemTime::now();
        ledger.activity(&(1..9), &times, until).expect("activity");
        ledger.unplaced_copies(&(1..9), 50, until).expect("copies");
        ledger.unsettled_copies(0, 50, until).expect("copies");
        for of in [Numbered::Message, Numbered::Attempt] {
            ledger.row_from(of, 1, until).expect("a row");
        }
    });
    assert_eq!(plans.len(), 9);
    for (sql, steps) in plans {
        assert!(steps.iter().any(|step| step.starts_with("SEARCH ")), "{sql}: {steps:#?}");
    }
}

#[test]
fn settle_reads_what_is_open_by_indexes() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = ledger(folder.path());
    for watched in [false, true] {
        steps_by_indexes(&ledger, &settling::copies_to_settle(watched));
    }
    steps_by_indexes(&ledger, &settling::doubts_to_settle());
}

#[test]
fn purge_and_forget_read_what_they_take_out_by_indexes() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = ledger(folder.path());
    for (what, index) in [
        (PurgeWhat::Messages, "onedrop_message_recorded_at (recorded_at>? AND recorded_at<?)"),
        (PurgeWhat::Facts, "onedrop_message_recorded_at (recorded_at>? AND recorded_at<?)"),
        (PurgeWhat::Attempts, "SEARCH a USING INTEGER PRIMARY KEY (rowid=?)"),
        (PurgeWhat::Attempts, "onedrop_attempt_unrecorded (message_id=? AND started_at<?)"),
        (PurgeWhat::Attempts, "onedrop_attempt_message (message_id<?)"),
        (PurgeWhat::Raw, "SEARCH m USING INTEGER PRIMARY KEY (rowid"),
        (PurgeWhat::Kept, "SEARCH k USING INTEGER PRIMARY KEY (rowid>?)"),
    ] {
        let steps = steps_by_indexes(&ledger, retention::old(what));
        assert!(steps.iter().any(|step| step.contains(index)), "{what:?}: {steps:#?}");
    }
    let steps = steps_by_indexes(&ledger, &retention::to_forget(ForgetWhat::Message("")));
    let index = "onedrop_message_key";
    assert!(steps.iter().any(|step| step.contains(index)), "{steps:#?}");
}

#[test]
fn status_reads_its_hour_and_its_window_by_row_numbers() {
    let hour = Duration::from_secs(3600);
    let plans = plans_of(|ledger, until| {
        ledger.recent_attempts(hour, until).expect("attempts");
        ledger.open_copies(hour, hour, until).expect("copies");
    });
    assert!(plans.len() > 5, "{plans:#?}");
    for (sql, steps) in plans {
        assert!(steps.iter().any(|step| step.starts_with("SEARCH ")), "{sql}: {steps:#?}");
    }
}
