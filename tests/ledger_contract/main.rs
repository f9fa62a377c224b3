#![cfg(any())]
//! What every ledger promises (`src/ledger.rs`), as one suite that each adapter runs against
//! sessions of one ledger. A new adapter needs a [`Rig`] and a line at the end of this file.

#[path = "../ports/mod.rs"]
mod ports;
#[path = "../support/mod.rs"]
mod support;
mod together;

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use onedrop::directory::{Asked, Destination};
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::postgres::{PostgresLedger, PostgresSettings};
use onedrop::ledger::sqlite::SqliteLedger;
use onedrop::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, Entry, LeaseTerms,
    Ledger, LedgerError, RandomValue, Recorded, SCHEMA_VERSION, Standing, Trace, TraceFilter, Turn,
    Window,
};
use onedrop::lock_key::{self, Hash};
use onedrop::message::{AddressFact, Facts, Identity, Message, PartFact};
use onedrop::store::{Receipt, Way};
use support::pgbouncer::PgBouncer;
use support::postgres::Postgres;

use ports::{JOIN, LEASE, attempt, delivered, inbox, mail, mail_with_body, message, sent, soon};

/// A ledger of its own for one test, with its schema at [`SCHEMA_VERSION`].
trait Rig: Sync {
    /// Another session.
    fn session(&self) -> Box<dyn Ledger>;

    /// Makes all leases run out, as if the ledger's clock had gone on.
    fn expire_leases(&self);

    /// Makes the ledger's clock step, forward or back.
    fn step_clock(&self, secs: i64);

    /// Runs SQL behind the ledger's back; false where there is none to run.
    fn sql(&self, statements: &str) -> bool;

    /// Takes the schema away, so that sessions opened before find nothing; false where that cannot
    /// be.
    fn forget_schema(&self) -> bool {
        self.sql(
            "DROP TABLE onedrop_kept; DROP TABLE onedrop_proof; DROP TABLE onedrop_attempt; DROP TABLE onedrop_copy; DROP TABLE onedrop_part; DROP TABLE onedrop_address;
             DROP TABLE onedrop_message; DROP TABLE onedrop_schema;",
        )
    }

    /// Takes back what the last migration did; false where there is none.
    fn undo_mended(&self) -> bool {
        self.sql(
            "DROP TABLE onedrop_kept; DROP TABLE onedrop_proof;
             ALTER TABLE onedrop_copy DROP COLUMN value; ALTER TABLE onedrop_copy DROP COLUMN lease_value;
             ALTER TABLE onedrop_copy DROP COLUMN lease_ms; ALTER TABLE onedrop_copy DROP COLUMN placed_epoch; ALTER TABLE onedrop_message DROP COLUMN nul_runs;
             DELETE FROM onedrop_schema WHERE version > 4;",
        )
    }

    /// A query that answers `account` for `address` and nothing for others.
    fn account_query(&self, address: &str, account: &str) -> String {
        format!("SELECT '{account}' WHERE $1 = '{address}'")
    }
}

macro_rules! ledger_contract {
    ($adapter:ident, $rig:expr) => {
        mod $adapter {
            use super::*;

            stamp! { $rig;
                a_message_is_recorded_once,
                a_callers_time_counts_only_where_the_ledgers_clock_says_so_too,
                a_message_is_one_whichever_session_asks_first,
                another_content_under_the_same_message_id_is_another_message_and_both_are_marked,
                without_a_message_id_there_is_no_collision,
                any_bytes_can_be_a_message_id,
                the_bytes_are_kept_when_given,
                many_addresses_and_parts_keep_their_order,
                a_record_is_contended_while_another_session_holds_the_messages_lock,
                a_live_lease_is_busy_for_others,
                a_lease_that_ran_out_leaves_a_doubt_and_raises_the_epoch,
                a_released_copy_is_free_with_the_doubt_as_before,
                a_joined_lease_keeps_its_epoch_and_is_in_doubt,
                whoever_was_joined_learns_of_the_doubt_in_its_turn,
                claim_says_the_same_as_record,
                copies_come_back_in_the_order_of_the_destinations,
                one_message_has_one_row_for_each_account_and_mailbox,
                a_turn_excludes_other_sessions_until_it_ends,
                a_turn_ends_with_a_session,
                a_turn_that_is_not_ours_holds_nothing,
                a_confirm_that_fails_ends_the_turn,
                a_new_turn_ends_one_that_was_left_open,
                a_turn_ignores_a_lease_that_only_ran_out,
                receipts_come_back_as_they_were,
                a_receipt_can_be_confirmed_again_after_reopening,
                a_receipt_is_never_replaced,
                the_same_receipt_by_another_counts_as_ours,
                the_first_receipt_wins_whatever_its_epoch,
                a_claim_names_its_row_by_its_value_as_well,
                a_call_made_again_finds_its_own_lease,
                a_lease_is_as_long_as_whoever_took_it_said,
                whoever_confirms_second_leaves_a_doubt,
                a_clock_that_steps_never_makes_a_live_lease_free_without_a_doubt,
                a_lease_ends_though_the_clock_was_set_back,
                a_host_whose_clock_differs_by_an_hour_is_not_believed,
                what_a_sent_did_not_take_is_kept_until_it_is_placed,
                a_copy_without_a_name_is_ours_only_under_our_epoch,
                an_end_is_on_record_only_with_the_receipt,
                a_release_changes_nothing_that_is_not_ours,
                release_takes_several_claims,
                an_attempts_end_is_on_record,
                an_attempt_that_recorded_nothing_is_on_record,
                an_attempt_that_lost_the_race_belongs_to_the_message,
                each_recipient_of_one_run_has_an_attempt_of_its_own,
                an_idle_session_is_used_again,
                a_message_is_found_by_what_an_administrator_knows,
                a_trace_is_newest_first_and_limited,
                a_trace_can_be_filtered,
                a_trace_tells_where_a_copy_stands,
                any_text_can_be_recorded,
                any_text_can_be_asked_for,
                an_administrators_query_names_an_account,
                a_query_is_asked_without_the_detail_and_may_look_at_it,
                a_wrong_query_is_refused_and_the_session_lives_on,
                a_ledger_has_its_schema_once,
                a_ledger_without_a_schema_says_so,
                two_that_migrate_at_once_do_it_once,
                a_schema_from_the_future_is_refused,
                a_ledger_of_version_1_is_refused_until_it_is_migrated,
                copies_to_verify_come_in_pages_by_account,
                a_copy_to_verify_is_told_as_it_stands,
                the_window_holds_what_is_recent_and_what_needs_a_second_look,
                a_copy_is_settled_where_it_is_as_told,
                the_latest_copies_are_those_placed_of_the_newest_rows,
                a_way_that_was_proven_is_on_record_until_it_was_seen_to_be_wrong,
                a_named_lock_excludes_until_it_is_left,
                several_messages_are_recorded_at_once,
                one_that_is_contended_keeps_the_others_from_nothing,
                as_many_as_may_go_together_do,
                each_receipt_has_an_outcome_of_its_own,
                records_and_receipts_go_in_one_call,
                a_message_that_is_taken_out_takes_everything_along,
                of_twenty_that_want_one_copy_one_gets_it,
                twenty_that_take_turns_are_never_two,
            }
        }
    };
}

macro_rules! stamp {
    ($rig:expr; $($fact:ident),* $(,)?) => {
        $(
            #[test]
            fn $fact() {
                suite::$fact(&$rig);
            }
        )*
    };
}

/// A session, and what the tests want of it.
struct Session(Box<dyn Ledger>);

impl Session {
    fn of(rig: &dyn Rig) -> Session {
        Session(rig.session())
    }

    fn try_record(
        &mut self,
        mail: &Message,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        self.try_record_by(mail, &attempt("mx1"), destinations, terms)
    }

    fn try_record_by(
        &mut self,
        mail: &Message,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
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
        self.0.record(&entry, attempt, destinations, terms)
    }

    fn record(&mut self, mail: &Message, destinations: &[Destination]) -> Recorded {
        self.try_record(mail, destinations, LEASE).expect("record")
    }

    fn record_identity(&mut self, identity: &Identity, facts: &Facts) -> Recorded {
        let entry = Entry { identity, facts, size_bytes: 1, raw: None, nul_runs: None, at: None };
        self.0.record(&entry, &attempt("mx1"), &[], LEASE).expect("record")
    }

    /// Records for one destination and expects the claim.
    fn claim(&mut self, mail: &Message, destination: &Destination) -> Claim {
        claimed(&self.record(mail, std::slice::from_ref(destination)).copies[0])
    }

    /// A server may take a moment to see that a client is gone, and to free what it held.
    fn turn_when_free(&mut self, claim: &Claim, key: &Hash) -> Turn {
        let begun = Instant::now();
        loop {
            match self.0.take_turn(claim, key) {
                Err(LedgerError::Contended) if begun.elapsed() < Duration::from_secs(10) => {
                    thread::sleep(Duration::from_millis(5));
                }
                turn => return turn.expect("a turn"),
            }
        }
    }

    fn turn(&mut self, claim: &Claim, key: &Hash) -> Turn {
        self.0.take_turn(claim, key).expect("a turn")
    }

    fn confirm(&mut self, claim: &Claim, receipt: &Receipt) -> Confirmed {
        self.0.confirm(claim, receipt, CopyFacts::default(), None).expect("confirm")
    }

    fn claim_state(&mut self, mail: &Message, destination: &Destination) -> CopyState {
        self.record(mail, std::slice::from_ref(destination)).copies.remove(0)
    }

    fn copies(&mut self, window: &Window<'_>) -> Vec<CopyOnRecord> {
        self.0.copies_to_verify(window, None, 100).expect("copies to verify")
    }

    fn trace(&mut self, wanted: &str) -> Vec<Trace> {
        self.0.trace(&TraceFilter::of(wanted), 10).expect("trace")
    }

    fn trace_one(&mut self, wanted: &str) -> Trace {
        let mut traces = self.trace(wanted);
        assert_eq!(traces.len(), 1, "{wanted:?} names one message: {traces:#?}");
        traces.remove(0)
    }
}

fn claimed(state: &CopyState) -> Claim {
    match state {
        CopyState::Claimed(claim) => *claim,
        other => panic!("expected a claim, got {other:?}"),
    }
}

fn copy_key(mail: &Message, destination: &Destination) -> Hash {
    mail.identity().copy_key(&destination.account, &destination.mailbox)
}

fn uid(uid: u32) -> Receipt {
    Receipt::Uid { validity: 1_700_000_000, uid }
}

const ALL: Window<'_> = Window { since: UNIX_EPOCH, account: None };

const OURS: Turn = Turn::Ours { in_doubt: false };
const OURS_IN_DOUBT: Turn = Turn::Ours { in_doubt: true };

/// Texts that a stranger, an administrator or a broken program may send.
fn hostile_texts() -> Vec<String> {
    vec![
        "o'brien\"; DROP TABLE onedrop_copy; -- {$1} %s \\' \\".to_owned(),
        "Grüße 日本 🦀 \u{FFFD}\u{202E}".to_owned(),
        "line\r\nBcc: everyone\r\n".to_owned(),
        "nul\0inside".to_owned(),
        "\0".to_owned(),
        "\u{1}\u{7f}\u{80}\u{9f}\t".to_owned(),
        "x".repeat(100_000),
        "é".repeat(50_000),
        String::new(),
    ]
}

mod suite {
    use super::*;
    pub use crate::together::*;

    pub fn a_message_is_recorded_once(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let first = session.record(&mail("once"), &[inbox()]);
        assert!(first.is_new && !first.collision);
        let at = first.recorded_at.duration_since(UNIX_EPOCH).expect("after 1970");
        assert_eq!(at.subsec_nanos(), 0, "whole seconds");
        rig.expire_leases();
        // A second recording in another second would show if the time were taken anew.
        let begun = Instant::now();
        while SystemTime::now()
            .duration_since(first.recorded_at)
            .is_ok_and(|age| age < Duration::from_secs(1))
        {
            assert!(begun.elapsed() < Duration::from_secs(5), "the clocks differ");
            thread::sleep(Duration::from_millis(20));
        }
        let second = session.record(&mail("once"), &[inbox()]);
        assert!(!second.is_new && !second.collision);
        assert_eq!((second.message, second.recorded_at), (first.message, first.recorded_at));
        assert_ne!(second.attempt, first.attempt, "each run is an attempt");
        assert_eq!(session.trace_one("once@example.org").attempts.len(), 2);
    }

    pub fn a_callers_time_counts_only_where_the_ledgers_clock_says_so_too(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let hour = Duration::from_secs(3600);
        for name in ["close", "behind", "ahead"] {
            // The ledger's clock, which need not be ours.
            let clock = session.record(&mail(&format!("clock-{name}")), &[inbox()]).recorded_at;
            let at = match name {
                "close" => clock - Duration::from_secs(1),
                "behind" => clock - hour,
                _ => clock + hour,
            };
            let mail = mail(name);
            let (identity, facts) = (mail.identity(), mail.facts());
            let entry = Entry {
                identity,
                facts: &facts,
                size_bytes: 1,
                raw: None,
                nul_runs: None,
                at: Some(at),
            };
            let recorded = session
                .0
                .record(&entry, &attempt("mx1"), &[inbox()], LEASE)
                .expect("record")
                .recorded_at;
            // A caller's own time is kept, since its files are already called after it; another's
            // clock is not believed. On a busy machine a second may have become more than two.
            let is_the_callers = name == "close" && recorded == at;
            let is_the_ledgers =
                recorded.duration_since(clock).is_ok_and(|later| later < Duration::from_secs(60));
            let may_be_either = name != "close" || recorded > clock;
            assert!(
                is_the_callers || is_the_ledgers && may_be_either,
                "{name}: {recorded:?}, {clock:?}"
            );
        }
    }

    pub fn a_message_is_one_whichever_session_asks_first(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let by_a = a.record(&mail("one"), &[inbox()]);
        let by_b = b.record(&mail("one"), &[sent()]);
        assert_eq!(
            (by_b.message, by_b.recorded_at, by_b.is_new),
            (by_a.message, by_a.recorded_at, false)
        );
        assert!(matches!(
            by_b.copies[0],
            CopyState::Claimed(Claim { epoch: 1, in_doubt: false, .. })
        ));
    }

    pub fn another_content_under_the_same_message_id_is_another_message_and_both_are_marked(
        rig: &dyn Rig,
    ) {
        let mut session = Session::of(rig);
        let first = session.record(&mail_with_body("twice", "one"), &[inbox()]);
        let second = session.record(&mail_with_body("twice", "two"), &[inbox()]);
        assert!(second.is_new && second.collision && !first.collision);
        assert_ne!(first.message, second.message);
        assert!(
            matches!(second.copies[0], CopyState::Claimed(Claim { in_doubt: false, .. })),
            "a copy of its own"
        );
        let again = session.record(&mail_with_body("twice", "one"), &[inbox()]);
        assert!(again.collision && !again.is_new, "the first is marked as well");
        assert_eq!(again.message, first.message);
        let third = session.record(&mail_with_body("twice", "three"), &[]);
        assert!(third.collision);
        let traces = session.trace("<twice@example.org>");
        assert_eq!(traces.len(), 3);
        assert!(traces.iter().all(|trace| trace.collision));
        assert!(!session.record(&mail("alone"), &[]).collision);
    }

    pub fn without_a_message_id_there_is_no_collision(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let (one, two) = (message("Subject: a\n\none"), message("Subject: a\n\ntwo"));
        for mail in [&one, &two, &one] {
            assert!(!session.record(mail, &[]).collision);
        }
        // Equal hashes without a Message-ID cannot come from two contents; if they do, it is no
        // collision of ids.
        let forged = Identity { digest: two.identity().digest, ..one.identity().clone() };
        let recorded = session.record_identity(&forged, &Facts::default());
        assert!(recorded.is_new && !recorded.collision);
    }

    pub fn any_bytes_can_be_a_message_id(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let ids: [&[u8]; 10] = [
            b"<a@b>",
            b"<A@b>",
            b"<a\r\n@b>",
            b"<a'\"@b>",
            b"{a@b} $1 ?1 %s \\",
            b"<a\0@b>",
            b"<a\x80\xff@b>",
            b"<a\xc3\xa9@b>",
            b"\0",
            &[b'x'; 4096],
        ];
        let mut rows = Vec::new();
        for id in ids {
            let hash = lock_key::message_hash(id);
            let identity = Identity { message_id: Some(id.to_vec()), id_hash: hash, digest: hash };
            let recorded = session.record_identity(&identity, &Facts::default());
            assert!(recorded.is_new && !recorded.collision, "{id:?}");
            assert_eq!(
                session.record_identity(&identity, &Facts::default()).message,
                recorded.message
            );
            rows.push(recorded.message);
        }
        for (id, row) in ids.iter().zip(rows) {
            if let Ok(text) = std::str::from_utf8(id) {
                assert_eq!(session.trace_one(text).message, row, "{text:?}");
            }
        }
    }

    pub fn the_bytes_are_kept_when_given(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        for (name, raw) in
            [("kept", Some(&b"bytes \0 \xff"[..])), ("not-kept", None), ("kept-empty", Some(b""))]
        {
            let mail = mail(name);
            let facts = mail.facts();
            let entry = Entry {
                identity: mail.identity(),
                facts: &facts,
                size_bytes: 12,
                raw,
                nul_runs: None,
                at: None,
            };
            session.0.record(&entry, &attempt("mx1"), &[], LEASE).expect("record");
            let trace = session.trace_one(&format!("{name}@example.org"));
            assert_eq!((trace.raw_kept, trace.size_bytes), (raw.is_some(), 12), "{name}");
        }
    }

    pub fn many_addresses_and_parts_keep_their_order(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let address = |n: usize| AddressFact {
            role: if n == 0 { "from" } else { "to" },
            name: n.is_multiple_of(2).then(|| format!("Name {n} 'q\" {{é}}")),
            address: (n % 3 != 2).then(|| format!("a{n}@example.org")),
        };
        let part = |n: usize| PartFact {
            path: format!("1.{n}"),
            content_type: "text/plain".to_owned(),
            name: n.is_multiple_of(2).then(|| format!("f{n}.txt")),
            size_bytes: n as u64 * 1_000_000_000,
        };
        let facts = Facts {
            subject: Some("Many".to_owned()),
            date: Some(-1),
            in_reply_to: Some("<a@b>".to_owned()),
            references: Some("<a@b> <c@d>".to_owned()),
            addresses: (0..1000).map(address).collect(),
            parts: (0..200).map(part).collect(),
        };
        session.record_identity(mail("many").identity(), &facts);
        let trace = session.trace_one("many@example.org");
        assert_eq!(trace.subject.as_deref(), Some("Many"));
        assert_eq!(trace.in_reply_to.as_deref(), Some("<a@b>"));
        assert_eq!(trace.references.as_deref(), Some("<a@b> <c@d>"));
        let addresses = trace
            .addresses
            .iter()
            .map(|one| (one.role.as_str(), one.name.clone(), one.address.clone()));
        assert!(addresses.eq(facts.addresses.iter().map(|one| (
            one.role,
            one.name.clone(),
            one.address.clone()
        ))));
        let parts =
            trace.parts.iter().map(|one| (one.path.clone(), one.name.clone(), one.size_bytes));
        assert!(parts.eq(facts.parts.iter().map(|one| (
            one.path.clone(),
            one.name.clone(),
            one.size_bytes as i64
        ))));
        assert!(trace.parts.iter().all(|part| part.content_type == "text/plain"));
        // Dates that a Date field can name and a calendar hardly.
        for (n, date) in
            [i64::MIN, i64::MAX, -62_167_219_200, 253_402_300_800, 0].into_iter().enumerate()
        {
            let facts = Facts { date: Some(date), ..Facts::default() };
            session.record_identity(mail(&format!("date{n}")).identity(), &facts);
            session.trace_one(&format!("date{n}@example.org"));
        }
    }

    pub fn a_record_is_contended_while_another_session_holds_the_messages_lock(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let wanted = mail("wanted");
        let other = a.claim(&mail("other"), &inbox());
        // A lock is 64 bits of a hash, whatever the hash is of: a turn under the message's hash
        // holds the message's lock.
        assert_eq!(a.turn(&other, &wanted.identity().id_hash), OURS);
        assert!(matches!(b.try_record(&wanted, &[inbox()], LEASE), Err(LedgerError::Contended)));
        assert!(b.trace("wanted@example.org").is_empty(), "nothing was recorded");
        b.record(&mail("third"), &[inbox()]);
        a.0.leave().expect("leave");
        assert!(b.record(&wanted, &[inbox()]).is_new);
    }

    pub fn a_live_lease_is_busy_for_others(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let claim = a.claim(&mail("busy"), &inbox());
        assert_eq!((claim.epoch, claim.in_doubt), (1, false));
        let recorded = b.record(&mail("busy"), &[inbox(), sent()]);
        assert_eq!(recorded.copies[0], CopyState::Busy);
        assert!(matches!(recorded.copies[1], CopyState::Claimed(_)), "another copy is free");
        assert_eq!(
            b.0.claim(recorded.message, &[inbox()], &attempt("mx2"), LEASE).expect("claim"),
            [CopyState::Busy]
        );
        assert_eq!(
            a.turn(&claim, &copy_key(&mail("busy"), &inbox())),
            OURS,
            "asking changed nothing"
        );
    }

    pub fn a_lease_that_ran_out_leaves_a_doubt_and_raises_the_epoch(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("expired");
        let first = a.claim(&mail, &inbox());
        for round in 2..5 {
            rig.expire_leases();
            let claim = b.claim(&mail, &inbox());
            assert_eq!((claim.copy, claim.epoch, claim.in_doubt), (first.copy, round, true));
            assert_eq!(a.turn(&first, &copy_key(&mail, &inbox())), Turn::EpochGone);
        }
    }

    pub fn a_released_copy_is_free_with_the_doubt_as_before(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("released");
        let first = a.claim(&mail, &inbox());
        a.0.release(&[first]).expect("release");
        let second = b.claim(&mail, &inbox());
        assert_eq!((second.epoch, second.in_doubt), (2, false), "nobody may have written");
        rig.expire_leases();
        let third = a.claim(&mail, &inbox());
        assert!(third.in_doubt);
        a.0.release(&[third]).expect("release");
        let fourth = b.claim(&mail, &inbox());
        assert_eq!((fourth.epoch, fourth.in_doubt), (4, true), "the second may have written");
        b.0.release(&[fourth]).expect("release");
        b.0.release(&[fourth]).expect("release");
        assert!(a.claim(&mail, &inbox()).in_doubt);
    }

    pub fn a_joined_lease_keeps_its_epoch_and_is_in_doubt(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("joined");
        let fresh = a.try_record(&mail, &[inbox()], JOIN).expect("record").copies;
        let fresh = claimed(&fresh[0]);
        assert_eq!((fresh.epoch, fresh.in_doubt), (1, false), "nobody to join");
        let joined = b.try_record(&mail, &[inbox()], JOIN).expect("record");
        assert_eq!(joined.copies, [CopyState::Claimed(Claim { in_doubt: true, ..fresh })]);
        let again = b.0.claim(joined.message, &[inbox()], &attempt("mx2"), JOIN).expect("claim");
        assert_eq!(again, [CopyState::Claimed(Claim { in_doubt: true, ..fresh })]);
        // One of them giving up takes nothing from the other, and leaves the doubt.
        a.0.release(&[fresh]).expect("release");
        assert_eq!(b.turn(&claimed(&again[0]), &copy_key(&mail, &inbox())), OURS_IN_DOUBT);
        assert_eq!(
            b.confirm(&claimed(&again[0]), &Receipt::Name("n".to_owned())),
            Confirmed::Recorded
        );
        let placed = a.try_record(&mail, &[inbox()], JOIN).expect("record").copies;
        assert_eq!(placed, [CopyState::Placed(Receipt::Name("n".to_owned()))]);
    }

    pub fn whoever_was_joined_learns_of_the_doubt_in_its_turn(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("joined");
        let key = copy_key(&mail, &inbox());
        let fresh = claimed(&a.try_record(&mail, &[inbox()], JOIN).expect("record").copies[0]);
        let joined = claimed(&b.try_record(&mail, &[inbox()], JOIN).expect("record").copies[0]);
        assert_eq!(b.turn(&joined, &key), OURS_IN_DOUBT);
        // It may write now, and vanish before it can say so.
        drop(b);
        assert!(!fresh.in_doubt);
        assert_eq!(a.turn_when_free(&fresh, &key), OURS_IN_DOUBT);
        a.0.leave().expect("leave");
        // Nor does the doubt go when whoever was not joined gives back what it has.
        a.0.release(&[fresh]).expect("release");
        assert!(
            claimed(&a.try_record(&mail, &[inbox()], JOIN).expect("record").copies[0]).in_doubt
        );
    }

    pub fn claim_says_the_same_as_record(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("claim");
        let recorded = a.record(&mail, &[inbox()]);
        let mut claim = |terms| {
            b.0.claim(recorded.message, &[inbox(), sent()], &attempt("mx2"), terms).expect("claim")
        };
        let states = claim(LEASE);
        assert_eq!(states[0], CopyState::Busy);
        assert_eq!(
            (claimed(&states[1]).epoch, claimed(&states[1]).in_doubt),
            (1, false),
            "a new row"
        );
        rig.expire_leases();
        let states = claim(LEASE);
        assert_eq!((claimed(&states[0]).epoch, claimed(&states[0]).in_doubt), (2, true));
        let ours = claimed(&states[0]);
        b.turn(&ours, &copy_key(&mail, &inbox()));
        b.confirm(&ours, &uid(9));
        let states =
            b.0.claim(recorded.message, &[sent(), inbox()], &attempt("mx2"), LEASE).expect("claim");
        assert_eq!(states, [CopyState::Busy, CopyState::Placed(uid(9))]);
        assert!(
            b.0.claim(recorded.message, &[], &attempt("mx2"), LEASE).expect("claim").is_empty()
        );
    }

    pub fn copies_come_back_in_the_order_of_the_destinations(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let names = ["zoe", "adam", "mia", "ben", "o'brien \"x\"", "grüße"];
        let destinations: Vec<_> = names.into_iter().map(Destination::inbox).collect();
        let first: Vec<i64> = session
            .record(&mail("order"), &destinations)
            .copies
            .iter()
            .map(|state| claimed(state).copy)
            .collect();
        rig.expire_leases();
        let reversed: Vec<_> = destinations.iter().rev().cloned().collect();
        let mut second: Vec<i64> = session
            .record(&mail("order"), &reversed)
            .copies
            .iter()
            .map(|state| claimed(state).copy)
            .collect();
        second.reverse();
        assert_eq!(first, second);
        // The same one twice: one of the two waits for the other.
        let twice = session.record(&mail("twice"), &[inbox(), inbox()]).copies;
        assert!(matches!(twice[..], [CopyState::Claimed(_), CopyState::Busy]), "{twice:?}");
    }

    pub fn one_message_has_one_row_for_each_account_and_mailbox(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let destinations = [
            Destination::inbox("a"),
            Destination::inbox("A"),
            Destination::sent("a", "Sent"),
            Destination::sent("a", "sent"),
            Destination::sent("a", "Sent "),
            Destination::sent("aS", "ent"),
        ];
        let mut rows: Vec<i64> = session
            .record(&mail("rows"), &destinations)
            .copies
            .iter()
            .map(|state| claimed(state).copy)
            .collect();
        rows.extend(
            session
                .record(&mail("other"), &destinations)
                .copies
                .iter()
                .map(|state| claimed(state).copy),
        );
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), 2 * destinations.len());
    }

    pub fn a_turn_excludes_other_sessions_until_it_ends(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("turn");
        let key = copy_key(&mail, &inbox());
        let other_key = copy_key(&mail, &sent());
        let copies = a.record(&mail, &[inbox(), sent()]).copies;
        let (claim, other) = (claimed(&copies[0]), claimed(&copies[1]));
        assert_eq!(a.turn(&claim, &key), OURS);
        assert!(matches!(b.0.take_turn(&claim, &key), Err(LedgerError::Contended)));
        assert_eq!(
            b.turn(&other, &other_key),
            OURS,
            "another copy's turn, by a session that just failed"
        );
        b.0.leave().expect("leave");
        a.0.leave().expect("leave");
        a.0.leave().expect("leave, with nothing to leave");
        assert_eq!(b.turn(&claim, &key), OURS, "free after leave");
        assert_eq!(b.confirm(&claim, &uid(1)), Confirmed::Recorded);
        assert_eq!(a.turn(&claim, &key), Turn::Placed(uid(1)), "free after confirm");
        // And after a confirm that came to nothing.
        assert_eq!(a.turn(&other, &other_key), OURS);
        assert_eq!(a.confirm(&claim, &uid(2)), Confirmed::Superseded { by: uid(1) });
        assert_eq!(b.turn(&other, &other_key), OURS);
    }

    pub fn a_turn_ends_with_a_session(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("session");
        let key = copy_key(&mail, &inbox());
        let claim = a.claim(&mail, &inbox());
        assert_eq!(a.turn(&claim, &key), OURS);
        a.0.reopen(soon()).expect("reopen");
        assert_eq!(b.turn_when_free(&claim, &key), OURS, "free after reopen");
        drop(b);
        assert_eq!(a.turn_when_free(&claim, &key), OURS, "free after the session is dropped");
    }

    pub fn a_turn_that_is_not_ours_holds_nothing(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("not-ours");
        let key = copy_key(&mail, &inbox());
        let stale = a.claim(&mail, &inbox());
        rig.expire_leases();
        let live = b.claim(&mail, &inbox());
        assert_eq!(a.turn(&stale, &key), Turn::EpochGone);
        assert_eq!(b.turn(&live, &key), OURS_IN_DOUBT);
        assert_eq!(b.confirm(&live, &uid(4)), Confirmed::Recorded);
        assert_eq!(
            a.turn(&stale, &key),
            Turn::Placed(uid(4)),
            "placed counts more than a lost epoch"
        );
        assert_eq!(b.turn(&live, &key), Turn::Placed(uid(4)));
        // Nor does a turn on a row that does not exist.
        let nowhere = Claim { copy: i64::MAX, ..live };
        assert!(matches!(a.0.take_turn(&nowhere, &key), Err(LedgerError::Broken(_))));
        assert_eq!(b.turn(&live, &key), Turn::Placed(uid(4)));
    }

    pub fn a_confirm_that_fails_ends_the_turn(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("failed-confirm");
        let key = copy_key(&mail, &inbox());
        let claim = a.claim(&mail, &inbox());
        assert_eq!(a.turn(&claim, &key), OURS);
        let nowhere = Claim { copy: i64::MAX, ..claim };
        assert!(a.0.confirm(&nowhere, &uid(1), CopyFacts::default(), None).is_err());
        assert_eq!(b.turn(&claim, &key), OURS);
    }

    pub fn a_new_turn_ends_one_that_was_left_open(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("open");
        let copies = a.record(&mail, &[inbox(), sent()]).copies;
        let (first, second) = (claimed(&copies[0]), claimed(&copies[1]));
        assert_eq!(a.turn(&first, &copy_key(&mail, &inbox())), OURS);
        assert_eq!(a.turn(&second, &copy_key(&mail, &sent())), OURS);
        assert_eq!(b.turn(&first, &copy_key(&mail, &inbox())), OURS);
        b.0.leave().expect("leave");
        a.0.release(&[second]).expect("release");
        assert_eq!(b.turn(&second, &copy_key(&mail, &sent())), OURS, "release ends a turn as well");
    }

    pub fn a_turn_ignores_a_lease_that_only_ran_out(rig: &dyn Rig) {
        // The clock is the caller's to check; what counts here is whether another has claimed the
        // copy since.
        let mut session = Session::of(rig);
        let mail = mail("ran-out");
        let claim = session.claim(&mail, &inbox());
        rig.expire_leases();
        assert_eq!(session.turn(&claim, &copy_key(&mail, &inbox())), OURS);
        assert_eq!(session.confirm(&claim, &uid(3)), Confirmed::Recorded);
    }

    pub fn receipts_come_back_as_they_were(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let receipts = [
            Receipt::Uid { validity: 1, uid: 1 },
            Receipt::Uid { validity: u32::MAX, uid: u32::MAX },
            Receipt::Name("1700000000.0123456789abcdef01234567.onedrop".to_owned()),
            Receipt::Name("it's \"é\" {x} \\ 日本".to_owned()),
            Receipt::Unnamed,
        ];
        for (n, receipt) in receipts.into_iter().enumerate() {
            let mail = mail(&format!("receipt{n}"));
            let key = copy_key(&mail, &inbox());
            let claim = a.claim(&mail, &inbox());
            assert_eq!(a.turn(&claim, &key), OURS);
            assert_eq!(a.confirm(&claim, &receipt), Confirmed::Recorded);
            assert_eq!(b.record(&mail, &[inbox()]).copies, [CopyState::Placed(receipt.clone())]);
            assert_eq!(b.turn(&claim, &key), Turn::Placed(receipt.clone()));
            let copy = &b.trace_one(&format!("receipt{n}@example.org")).copies[0];
            assert_eq!(
                (copy.receipt.as_deref(), copy.state.as_str()),
                (Some(receipt.to_string().as_str()), "placed")
            );
        }
    }

    pub fn a_receipt_can_be_confirmed_again_after_reopening(rig: &dyn Rig) {
        // As when the answer to a commit was lost: it may or may not have happened.
        let mut session = Session::of(rig);
        for (n, receipt) in
            [uid(5), Receipt::Name("n".to_owned()), Receipt::Unnamed].into_iter().enumerate()
        {
            for happened in [false, true] {
                let mail = mail(&format!("again{n}{happened}"));
                let recorded = session.record(&mail, &[inbox()]);
                let claim = claimed(&recorded.copies[0]);
                assert_eq!(session.turn(&claim, &copy_key(&mail, &inbox())), OURS);
                if happened {
                    assert_eq!(session.confirm(&claim, &receipt), Confirmed::Recorded);
                }
                session.0.reopen(soon()).expect("reopen");
                let end = delivered();
                let again = session.0.confirm(
                    &claim,
                    &receipt,
                    CopyFacts::default(),
                    Some((recorded.attempt, &end)),
                );
                assert_eq!(again.expect("confirm"), Confirmed::Recorded, "{receipt:?} {happened}");
                assert_eq!(
                    session.record(&mail, &[inbox()]).copies,
                    [CopyState::Placed(receipt.clone())]
                );
                let trace = session.trace_one(&format!("again{n}{happened}@example.org"));
                assert_eq!(trace.attempts[0].outcome.as_deref(), Some("delivered"));
            }
        }
    }

    pub fn a_receipt_is_never_replaced(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let mail = mail("replaced");
        let claim = session.claim(&mail, &inbox());
        assert_eq!(session.confirm(&claim, &uid(6)), Confirmed::Recorded);
        for other in [uid(7), Receipt::Name("6".to_owned()), Receipt::Unnamed] {
            assert_eq!(session.confirm(&claim, &other), Confirmed::Superseded { by: uid(6) });
        }
        rig.expire_leases();
        assert_eq!(session.record(&mail, &[inbox()]).copies, [CopyState::Placed(uid(6))]);
    }

    pub fn the_same_receipt_by_another_counts_as_ours(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("same");
        let late = a.record(&mail, &[inbox()]);
        let late_claim = claimed(&late.copies[0]);
        rig.expire_leases();
        let finder = b.claim(&mail, &inbox());
        let facts = CopyFacts { found_by_look: true, nul_replaced: true };
        assert_eq!(
            b.0.confirm(&finder, &uid(8), facts, None).expect("confirm"),
            Confirmed::Recorded
        );
        let end = delivered();
        let confirmed =
            a.0.confirm(&late_claim, &uid(8), CopyFacts::default(), Some((late.attempt, &end)));
        assert_eq!(confirmed.expect("confirm"), Confirmed::Recorded);
        let trace = a.trace_one("same@example.org");
        assert_eq!(trace.attempts[0].outcome.as_deref(), Some("delivered"));
        assert!(trace.copies[0].found_by_look && trace.copies[0].nul_replaced, "as first recorded");
    }

    pub fn the_first_receipt_wins_whatever_its_epoch(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        for (name, late_is_first) in [("late", true), ("later", false)] {
            let mail = mail(name);
            let key = copy_key(&mail, &inbox());
            let late = a.claim(&mail, &inbox());
            assert_eq!(a.turn(&late, &key), OURS);
            rig.expire_leases();
            let claim = b.claim(&mail, &inbox());
            a.0.leave().expect("leave");
            assert_eq!(b.turn(&claim, &key), OURS_IN_DOUBT);
            let (first, second) = if late_is_first { (&late, &claim) } else { (&claim, &late) };
            let (by_first, by_second) =
                if late_is_first { (&mut a, &mut b) } else { (&mut b, &mut a) };
            assert_eq!(by_first.confirm(first, &uid(10)), Confirmed::Recorded, "{name}");
            assert_eq!(
                by_second.confirm(second, &uid(11)),
                Confirmed::Superseded { by: uid(10) },
                "{name}"
            );
            assert_eq!(by_first.confirm(first, &uid(10)), Confirmed::Recorded, "{name}, again");
            assert_eq!(b.record(&mail, &[inbox()]).copies, [CopyState::Placed(uid(10))], "{name}");
            let copy =
                b.copies(&ALL).into_iter().find(|copy| copy.copy == claim.copy).expect("the copy");
            assert!(copy.may_be_double && !copy.settled, "{name}: two may have written");
        }
    }

    pub fn a_claim_names_its_row_by_its_value_as_well(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let (mail, key) = (mail("number"), copy_key(&mail("number"), &inbox()));
        let claim = a.claim(&mail, &inbox());
        // As if the row had gone and another message's had its number now.
        let other = Claim { value: RandomValue::default(), ..claim };
        assert!(matches!(b.0.take_turn(&other, &key), Err(LedgerError::Broken(_))));
        assert!(matches!(
            b.0.confirm(&other, &uid(1), CopyFacts::default(), None),
            Err(LedgerError::Broken(_))
        ));
        let _ = b.0.release(&[other]);
        assert_eq!(b.record(&mail, &[inbox()]).copies, [CopyState::Busy], "nothing was given back");
        assert_eq!(a.confirm(&claim, &uid(2)), Confirmed::Recorded);
        let copy = b.copies(&ALL).remove(0);
        assert!(!copy.may_be_double);
        let elsewhere = CopyOnRecord { value: RandomValue::default(), ..copy };
        assert!(!matches!(b.0.settle(&elsewhere, &uid(3)), Ok(true)));
        assert_eq!(b.record(&mail, &[inbox()]).copies, [CopyState::Placed(uid(2))]);
    }

    pub fn a_call_made_again_finds_its_own_lease(rig: &dyn Rig) {
        // As when the answer to its commit was lost.
        let mail = mail("made-again");
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let us = attempt("mx1");
        let record = |session: &mut Session, by: &Attempt| {
            session.try_record_by(&mail, by, &[inbox(), sent()], LEASE).expect("record")
        };
        let first = record(&mut a, &us);
        let second = record(&mut b, &us);
        assert_eq!(second.copies, first.copies, "the same claims, without a doubt");
        assert_eq!(
            b.0.claim(first.message, &[inbox()], &us, LEASE).expect("claim"),
            first.copies[..1]
        );
        // The same host and process id are another attempt's.
        let others = Attempt { value: RandomValue::default(), ..us.clone() };
        assert_eq!(record(&mut a, &others).copies, [CopyState::Busy, CopyState::Busy]);
        // Once it has run out, or was given back, it is taken anew.
        rig.expire_leases();
        let late = claimed(&record(&mut a, &us).copies[0]);
        assert_eq!((late.epoch, late.in_doubt), (2, true));
        assert_eq!(claimed(&record(&mut b, &us).copies[0]), late, "the doubt stays");
        a.0.release(&[late]).expect("release");
        let again = claimed(&record(&mut b, &us).copies[0]);
        assert_eq!((again.epoch, again.in_doubt), (3, true));
        assert_eq!(b.confirm(&again, &uid(1)), Confirmed::Recorded);
        assert_eq!(record(&mut a, &us).copies[0], CopyState::Placed(uid(1)));
    }

    pub fn a_lease_is_as_long_as_whoever_took_it_said(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("length");
        let long = LeaseTerms { lease: Duration::from_secs(150), join: false };
        let short = LeaseTerms { lease: Duration::from_secs(5), join: false };
        assert!(matches!(
            a.try_record(&mail, &[inbox()], long).expect("record").copies[0],
            CopyState::Claimed(_)
        ));
        assert_eq!(
            b.try_record(&mail, &[inbox()], short).expect("record").copies,
            [CopyState::Busy]
        );
        assert_eq!(b.copies(&ALL)[0].lease, long.lease);
        let join = LeaseTerms { join: true, ..short };
        assert!(matches!(
            b.try_record(&mail, &[inbox()], join).expect("record").copies[0],
            CopyState::Claimed(_)
        ));
        assert_eq!(b.copies(&ALL)[0].lease, long.lease, "joined");
        rig.expire_leases();
        assert!(matches!(
            b.try_record(&mail, &[inbox()], short).expect("record").copies[0],
            CopyState::Claimed(_)
        ));
        assert_eq!(b.copies(&ALL)[0].lease, short.lease, "its own");
    }

    pub fn a_clock_that_steps_never_makes_a_live_lease_free_without_a_doubt(rig: &dyn Rig) {
        // A day for clocks to be set back in.
        rig.step_clock(86_400);
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        for (step_secs, late_is_first) in
            [-7200, -3600, -60, -1, 1, 60, 3600, 7200].into_iter().zip([true, false].repeat(4))
        {
            let mail = mail(&format!("step{step_secs}"));
            let late = a.claim(&mail, &inbox());
            rig.step_clock(step_secs);
            let receipts = match b.claim_state(&mail, &inbox()) {
                CopyState::Busy => {
                    assert_eq!(a.confirm(&late, &uid(1)), Confirmed::Recorded);
                    [uid(1), uid(1)]
                }
                CopyState::Claimed(claim) => {
                    assert!(
                        claim.in_doubt && claim.epoch == 2,
                        "{step_secs} s: {claim:?}: it looks before it writes"
                    );
                    let (first, second) =
                        if late_is_first { (&late, &claim) } else { (&claim, &late) };
                    assert_eq!(a.confirm(first, &uid(1)), Confirmed::Recorded, "{step_secs} s");
                    assert_eq!(
                        b.confirm(second, &uid(2)),
                        Confirmed::Superseded { by: uid(1) },
                        "{step_secs} s"
                    );
                    [uid(1), uid(2)]
                }
                placed => panic!("{placed:?}"),
            };
            assert_eq!(
                b.claim_state(&mail, &inbox()),
                CopyState::Placed(receipts[0].clone()),
                "{step_secs} s"
            );
            rig.step_clock(-step_secs);
        }
    }

    pub fn a_lease_ends_though_the_clock_was_set_back(rig: &dyn Rig) {
        rig.step_clock(86_400);
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let late = a.claim(&mail("back"), &inbox());
        rig.step_clock(-3600);
        // However the ledger takes that: with time it comes free, and is looked for.
        rig.step_clock(3600 + 2 * LEASE.lease.as_secs() as i64);
        let claim = b.claim(&mail("back"), &inbox());
        assert_eq!((claim.copy, claim.in_doubt), (late.copy, true));
    }

    pub fn a_host_whose_clock_differs_by_an_hour_is_not_believed(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let by_ledger = session.record(&mail("by the ledger"), &[]).recorded_at;
        for (n, differs) in [-3600i64, -5, 0, 5, 3600].into_iter().enumerate() {
            let mail = mail(&format!("host{n}"));
            let facts = mail.facts();
            let by = Duration::from_secs(differs.unsigned_abs());
            let at = Some(if differs > 0 { by_ledger + by } else { by_ledger - by });
            let identity = mail.identity();
            let entry =
                Entry { identity, facts: &facts, size_bytes: 1, raw: None, nul_runs: None, at };
            let recorded =
                session.0.record(&entry, &attempt("mx1"), &[inbox()], LEASE).expect("record");
            let off = recorded
                .recorded_at
                .max(by_ledger)
                .duration_since(recorded.recorded_at.min(by_ledger));
            assert!(off.expect("a time") < Duration::from_secs(60), "{differs} s: {recorded:?}");
            // Nor does its lease end sooner or later for that.
            assert_eq!(
                Session::of(rig).claim_state(&mail, &inbox()),
                CopyState::Busy,
                "{differs} s"
            );
        }
    }

    pub fn whoever_confirms_second_leaves_a_doubt(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        for receipts in [[uid(1), uid(2)], [Receipt::Unnamed, Receipt::Unnamed]] {
            let mail = mail(&format!("doubt{}", receipts[0]));
            let late = a.claim(&mail, &inbox());
            rig.expire_leases();
            let claim = b.claim(&mail, &inbox());
            // The one whose lease is over is first.
            assert_eq!(a.confirm(&late, &receipts[0]), Confirmed::Recorded);
            assert_eq!(a.confirm(&late, &receipts[0]), Confirmed::Recorded, "its answer was lost");
            let told = |session: &mut Session| {
                session
                    .copies(&ALL)
                    .into_iter()
                    .find(|copy| copy.copy == late.copy)
                    .expect("the copy")
            };
            let read_before = told(&mut a);
            assert!(a.0.settle(&read_before, &receipts[0]).expect("settle"));
            assert!(told(&mut a).settled);
            // Two copies without a name may be two copies, under its own epoch as well.
            assert_eq!(
                b.confirm(&claim, &receipts[1]),
                Confirmed::Superseded { by: receipts[0].clone() }
            );
            let doubted = told(&mut a);
            assert!(doubted.may_be_double && !doubted.settled, "{doubted:?}");
            assert!(
                !a.0.settle(&read_before, &receipts[0]).expect("settle"),
                "a look of before the doubt"
            );
            assert!(!told(&mut a).settled);
            assert!(a.0.settle(&doubted, &receipts[0]).expect("settle"));
            assert!(told(&mut a).settled);
            assert_eq!(a.confirm(&late, &receipts[0]), Confirmed::Recorded);
            assert!(told(&mut a).settled, "a repeated confirm is no doubt");
        }
    }

    pub fn what_a_sent_did_not_take_is_kept_until_it_is_placed(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("kept");
        let recorded = a.record(&mail, &[inbox(), sent()]);
        let [own, shared] = [0, 1].map(|at: usize| claimed(&recorded.copies[at]));
        let bytes = [&b"a\0b\xff"[..], &b"x".repeat(100_000)].concat();
        assert_eq!(b.0.kept(recorded.message).expect("kept"), None);
        assert_eq!(b.0.kept_bytes(recorded.message).expect("bytes"), None);
        let keep = |session: &mut Session, bytes: &[u8], why: &str| {
            session.0.keep(recorded.message, bytes, why).expect("keep")
        };
        assert!(keep(&mut a, &bytes, "over quota: nul\0 \u{1}é"));
        assert!(keep(&mut a, b"others", "no right"));
        a.0.release(&[shared]).expect("release");
        assert_eq!(a.confirm(&own, &uid(1)), Confirmed::Recorded);
        assert_eq!(b.0.kept(recorded.message).expect("kept").as_deref(), Some("no right"));
        assert_eq!(b.0.kept_bytes(recorded.message).expect("bytes"), Some(bytes));
        let future =
            Window { since: SystemTime::now() + Duration::from_secs(86_400), account: None };
        let told = b.copies(&future);
        assert_eq!(told.len(), 1, "told whatever the window: {told:#?}");
        assert_eq!((told[0].copy, told[0].kept.as_deref()), (shared.copy, Some("no right")));
        let trace = b.trace_one("kept@example.org");
        let kept: Vec<_> =
            trace.copies.iter().map(|copy| (copy.account.as_str(), copy.kept.as_deref())).collect();
        assert_eq!(kept, [("doug", None), ("lisa", Some("no right"))]);
        let again = claimed(&b.claim_state(&mail, &sent()));
        assert!(!again.in_doubt);
        assert_eq!(b.confirm(&again, &uid(7)), Confirmed::Recorded);
        assert_eq!(a.0.kept(recorded.message).expect("kept"), None);
        assert_eq!(a.0.kept_bytes(recorded.message).expect("bytes"), None);
        assert_eq!(a.trace_one("kept@example.org").copies[1].kept, None);
        assert!(!keep(&mut a, b"too late", "no right"), "it is placed");
        // An INBOX may be somebody's own mailbox in one delivery and their Sent in the next.
        let both = b.record(&message("Message-ID: <both@x>\n\nx\n"), &[Destination::inbox("lisa")]);
        b.0.release(&[claimed(&both.copies[0])]).expect("release");
        assert!(!b.0.keep(both.message, b"x", "no").expect("keep"), "nobody shares it");
        b.record(&message("Message-ID: <both@x>\n\nx\n"), &[Destination::sent("lisa", "INBOX")]);
        assert!(b.0.keep(both.message, b"x", "no").expect("keep"));
        assert_eq!(b.0.kept(recorded.message).expect("kept"), None);
    }

    pub fn a_copy_without_a_name_is_ours_only_under_our_epoch(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("unnamed");
        let late = a.claim(&mail, &inbox());
        rig.expire_leases();
        let claim = b.claim(&mail, &inbox());
        assert_eq!(b.confirm(&claim, &Receipt::Unnamed), Confirmed::Recorded);
        assert_eq!(b.confirm(&claim, &Receipt::Unnamed), Confirmed::Recorded);
        // Two copies without a name may be two copies.
        let other = Confirmed::Superseded { by: Receipt::Unnamed };
        assert_eq!(a.confirm(&late, &Receipt::Unnamed), other);
        assert_eq!(a.confirm(&late, &uid(1)), other);
    }

    pub fn an_end_is_on_record_only_with_the_receipt(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("end");
        let late = a.record(&mail, &[inbox()]);
        let late_claim = claimed(&late.copies[0]);
        rig.expire_leases();
        let recorded = b.record(&mail, &[inbox()]);
        let end = delivered();
        let claim = claimed(&recorded.copies[0]);
        let facts = CopyFacts { found_by_look: false, nul_replaced: true };
        let confirmed = b.0.confirm(&claim, &uid(2), facts, Some((recorded.attempt, &end)));
        assert_eq!(confirmed.expect("confirm"), Confirmed::Recorded);
        let late =
            a.0.confirm(&late_claim, &uid(1), CopyFacts::default(), Some((late.attempt, &end)));
        assert_eq!(late.expect("confirm"), Confirmed::Superseded { by: uid(2) });
        let trace = a.trace_one("end@example.org");
        assert_eq!(trace.attempts[0].outcome, None);
        let ended = &trace.attempts[1];
        assert_eq!(
            (ended.outcome.as_deref(), ended.status.as_deref()),
            (Some("delivered"), Some("2.0.0"))
        );
        assert_eq!((ended.duration_ms, ended.text.as_deref()), (Some(7), Some(end.text.as_str())));
        assert!(trace.copies[0].nul_replaced && !trace.copies[0].found_by_look);
    }

    pub fn a_release_changes_nothing_that_is_not_ours(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("not-released");
        let stale = a.claim(&mail, &inbox());
        rig.expire_leases();
        let live = b.claim(&mail, &inbox());
        a.0.release(&[stale]).expect("release");
        assert_eq!(
            a.record(&mail, &[inbox()]).copies,
            [CopyState::Busy],
            "claimed by another since"
        );
        assert_eq!(b.confirm(&live, &uid(1)), Confirmed::Recorded);
        b.0.release(&[live]).expect("release");
        assert_eq!(
            a.record(&mail, &[inbox()]).copies,
            [CopyState::Placed(uid(1))],
            "placed is placed"
        );
        a.0.release(&[]).expect("release of nothing");
    }

    pub fn release_takes_several_claims(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let mail = mail("several");
        let destinations = [inbox(), sent(), Destination::inbox("zoe")];
        let claims: Vec<Claim> =
            a.record(&mail, &destinations).copies.iter().map(claimed).collect();
        a.0.release(&claims[..2]).expect("release");
        let states = b.record(&mail, &destinations).copies;
        assert!(
            matches!(states[..], [CopyState::Claimed(_), CopyState::Claimed(_), CopyState::Busy]),
            "{states:?}"
        );
    }

    pub fn an_attempts_end_is_on_record(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let recorded = session.record(&mail("ended"), &[inbox()]);
        let open = session.trace_one("ended@example.org").attempts.remove(0);
        assert_eq!(
            (open.outcome, open.status, open.text, open.duration_ms),
            (None, None, None, None)
        );
        assert_eq!((open.sender.as_str(), open.queue_id.as_str()), ("lisa@gmail.com", "4Xyz12"));
        assert_eq!(
            (open.recipient.as_str(), open.host.as_str(), open.pid),
            ("doug@mail.axial.net", "mx1", 42)
        );
        for text in hostile_texts() {
            let end =
                AttemptEnd { outcome: "tempfail", status: "4.3.0".to_owned(), text, ..delivered() };
            session.0.finish(recorded.attempt, &end).expect("finish");
        }
        let ended = session.trace_one("ended@example.org").attempts.remove(0);
        assert_eq!(
            (ended.outcome.as_deref(), ended.status.as_deref()),
            (Some("tempfail"), Some("4.3.0"))
        );
        assert_eq!((ended.duration_ms, ended.pid), (Some(7), 42));
    }

    pub fn an_attempt_that_recorded_nothing_is_on_record(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let end = AttemptEnd { outcome: "tempfail", status: "4.3.0".to_owned(), ..delivered() };
        session
            .0
            .note_attempts(mail("unrecorded").identity(), &[(attempt("mx1"), end)])
            .expect("finish");
        for wanted in
            ["unrecorded@example.org", "<unrecorded@example.org>", "4Xyz12", "doug@mail.axial.net"]
        {
            let trace = session.trace_one(wanted);
            assert!(trace.copies.is_empty());
            assert_eq!(trace.attempts.len(), 1, "{wanted}");
            assert_eq!(trace.attempts[0].outcome.as_deref(), Some("tempfail"), "{wanted}");
        }
        assert!(session.trace("other@example.org").is_empty());
        assert!(
            session.record(&mail("unrecorded"), &[inbox()]).is_new,
            "it is no record of the message"
        );
        let attempts: usize =
            session.trace("unrecorded@example.org").iter().map(|trace| trace.attempts.len()).sum();
        assert_eq!(attempts, 2);
    }

    pub fn each_recipient_of_one_run_has_an_attempt_of_its_own(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        session.record(&mail("crowd"), &[inbox()]);
        let to =
            |name: &str| Attempt { recipient: format!("{name}@mail.axial.net"), ..attempt("mx1") };
        let full = AttemptEnd { outcome: "tempfail", status: "4.2.2".to_owned(), ..delivered() };
        let ended = [(to("Anna"), delivered()), (to("bert"), full)];
        session.0.note_attempts(mail("crowd").identity(), &ended).expect("a note");
        for (name, outcome) in [("anna", "delivered"), ("bert", "tempfail")] {
            let trace = session.trace_one(&format!("{name}@mail.axial.net"));
            let own = trace
                .attempts
                .iter()
                .find(|attempt| attempt.recipient.to_lowercase().starts_with(name))
                .expect("an attempt");
            assert_eq!((own.outcome.as_deref(), trace.attempts.len()), (Some(outcome), 3));
        }
        session.0.note_attempts(mail("crowd").identity(), &[]).expect("nothing to note");
    }

    pub fn an_idle_session_is_used_again(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        session.record(&mail("first"), &[inbox()]);
        session.0.renew(soon()).expect("renewed");
        assert!(session.record(&mail("second"), &[inbox()]).is_new);
    }

    pub fn an_attempt_that_lost_the_race_belongs_to_the_message(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        session.record(&mail("raced"), &[inbox()]);
        let late = Attempt { queue_id: "LATE".to_owned(), pid: 43, ..attempt("mx2") };
        session
            .0
            .note_attempts(mail("raced").identity(), &[(late.clone(), delivered())])
            .expect("finish");
        assert_eq!(session.trace_one("LATE").attempts.len(), 2);
        assert_eq!(session.trace_one("raced@example.org").copies.len(), 1);
    }

    pub fn a_message_is_found_by_what_an_administrator_knows(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let by = Attempt {
            recipient: "Doug+List@Mail.Axial.NET".to_owned(),
            queue_id: "Q1".to_owned(),
            ..attempt("mx1")
        };
        session
            .try_record_by(&mail("found"), &by, &[Destination::inbox("dougs-account")], LEASE)
            .expect("record");
        let other =
            Attempt { recipient: "zoe@x".to_owned(), queue_id: String::new(), ..attempt("mx1") };
        session
            .try_record_by(&mail("other"), &other, &[Destination::inbox("zoe")], LEASE)
            .expect("record");
        let knows = [
            "<found@example.org>",
            "found@example.org",
            "Q1",
            "doug+list@mail.axial.net",
            "DOUG+LIST@MAIL.AXIAL.NET",
            "Doug+List@Mail.Axial.NET",
            "dougs-account",
        ];
        for wanted in knows {
            assert_eq!(session.trace_one(wanted).subject.as_deref(), Some("found"), "{wanted}");
        }
        for wanted in
            ["", "<>", "FOUND@example.org", "q", "%", "_oug", "doug+list", "mail.axial.net", "*"]
        {
            assert!(session.trace(wanted).is_empty(), "{wanted:?}");
        }
        assert_eq!(session.trace_one("ZOE@X").subject.as_deref(), Some("other"));
        // Several attempts at one message are one message.
        session.try_record_by(&mail("found"), &by, &[], LEASE).expect("record");
        assert_eq!(session.trace_one("Q1").attempts.len(), 2);
    }

    pub fn a_trace_is_newest_first_and_limited(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        for n in 0..5 {
            session.record(&mail(&format!("n{n}")), &[inbox()]);
        }
        let subjects = |limit, session: &mut Session| -> Vec<_> {
            let traces = session.0.trace(&TraceFilter::of("4Xyz12"), limit).expect("trace");
            traces.into_iter().filter_map(|trace| trace.subject).collect()
        };
        assert_eq!(subjects(10, &mut session), ["n4", "n3", "n2", "n1", "n0"]);
        assert_eq!(subjects(2, &mut session), ["n4", "n3"]);
        assert!(subjects(0, &mut session).is_empty());
    }

    pub fn a_trace_can_be_filtered(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let end = |outcome| AttemptEnd { outcome, ..delivered() };
        let lost = Attempt {
            sender: "zoe@lost.example".to_owned(),
            queue_id: "Q2".to_owned(),
            ..attempt("mx2")
        };
        for (name, by) in [("unrecorded", &lost), ("done", &lost)] {
            session
                .0
                .note_attempts(mail(name).identity(), &[(by.clone(), end("tempfail"))])
                .expect("a note");
        }
        let mut record = |name: &str, from: &str, sender: &str, outcomes: &[&'static str]| {
            let mail = mail(name);
            let address = |role, address: &str| AddressFact {
                role,
                name: None,
                address: Some(address.to_owned()),
            };
            let facts = Facts {
                subject: Some(format!("About {name}")),
                addresses: vec![address("from", from), address("to", "lisa@gmail.com")],
                ..Facts::default()
            };
            let by =
                Attempt { sender: sender.to_owned(), queue_id: "Q1".to_owned(), ..attempt("mx1") };
            let entry = Entry {
                identity: mail.identity(),
                facts: &facts,
                size_bytes: 1,
                raw: None,
                nul_runs: None,
                at: None,
            };
            let mut at = None;
            for outcome in outcomes {
                let recorded = session.0.record(&entry, &by, &[inbox()], LEASE).expect("record");
                at.get_or_insert(recorded.recorded_at);
                let claim = claimed(&recorded.copies[0]);
                match *outcome {
                    "delivered" => {
                        assert_eq!(session.confirm(&claim, &uid(1)), Confirmed::Recorded)
                    }
                    _ => session.0.release(&[claim]).expect("release"),
                }
                session.0.finish(recorded.attempt, &end(outcome)).expect("finish");
            }
            at.expect("a record")
        };
        record("done", "Zoe@Example.org", "bounces@list.example", &["delivered"]);
        record("undone", "doug@mail.axial.net", "", &["tempfail"]);
        let at = record(
            "done later",
            "%@mail.axial.net",
            "zoe@example.org",
            &["tempfail", "permfail", "delivered"],
        );
        let all = TraceFilter::default();
        let second = Duration::from_secs(1);
        let cases: [(TraceFilter<'_>, &[&str]); 14] = [
            (all, &["done later", "undone", "done", "(none)"]),
            (
                TraceFilter { since: Some(at - 60 * second), ..all },
                &["done later", "undone", "done", "(none)"],
            ),
            (TraceFilter { since: Some(at + 3600 * second), ..all }, &[]),
            (TraceFilter { since: Some(at + 3600 * second), ..TraceFilter::of("Q1") }, &[]),
            (TraceFilter { failed: true, ..all }, &["undone", "(none)"]),
            (TraceFilter { failed: true, ..TraceFilter::of("Q1") }, &["undone"]),
            (TraceFilter { subject: Some("LATER"), ..all }, &["done later"]),
            (
                TraceFilter { subject: Some("about "), ..TraceFilter::of("Q1") },
                &["done later", "undone", "done"],
            ),
            (TraceFilter { subject: Some("%"), ..all }, &[]),
            (TraceFilter { sender: Some("zoe@EXAMPLE"), ..all }, &["done later", "done"]),
            (TraceFilter { sender: Some("lisa@gmail.com"), ..all }, &[]),
            (TraceFilter { sender: Some("zoe@lost"), ..all }, &["(none)"]),
            (TraceFilter { sender: Some("%"), ..all }, &["done later"]),
            (
                TraceFilter {
                    sender: Some("zoe"),
                    subject: Some("done"),
                    failed: true,
                    ..TraceFilter::of("Q1")
                },
                &[],
            ),
        ];
        for (filter, expected) in cases {
            let traces = session.0.trace(&filter, 10).expect("trace");
            let mut subjects: Vec<_> =
                traces.iter().map(|trace| trace.subject.as_deref().unwrap_or("(none)")).collect();
            // When it was begun counts for one that is not recorded.
            subjects.sort_by_key(|subject| *subject == "(none)");
            let subjects: Vec<&str> = subjects
                .into_iter()
                .map(|subject| subject.strip_prefix("About ").unwrap_or(subject))
                .collect();
            assert_eq!(subjects, expected, "{filter:?}");
            if let Some(done) =
                traces.iter().find(|trace| trace.subject.as_deref() == Some("About done"))
            {
                assert_eq!(
                    done.attempts.len(),
                    2,
                    "{filter:?}: those that recorded nothing are shown with it"
                );
            }
        }
        let two = session.0.trace(&all, 2).expect("trace");
        assert_eq!(two.len(), 2);
    }

    pub fn a_trace_tells_where_a_copy_stands(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let mail = mail("stands");
        let state =
            |session: &mut Session| session.trace_one("stands@example.org").copies.remove(0);
        let claim = session.claim(&mail, &inbox());
        let leased = state(&mut session);
        assert_eq!(
            (leased.state.as_str(), leased.epoch, leased.owner.as_str()),
            ("leased", 1, "mx1:42")
        );
        assert_eq!(
            (leased.account.as_str(), leased.mailbox.as_str(), leased.receipt),
            ("doug", "INBOX", None)
        );
        session.0.release(&[claim]).expect("release");
        assert_eq!(state(&mut session).state, "free");
        let claim = session.claim(&mail, &inbox());
        rig.expire_leases();
        assert_eq!(state(&mut session).state, "in doubt");
        assert_eq!(session.confirm(&claim, &uid(77)), Confirmed::Recorded);
        let placed = state(&mut session);
        assert_eq!(
            (placed.state.as_str(), placed.epoch, placed.receipt.as_deref()),
            ("placed", 2, Some("uid=77"))
        );
    }

    pub fn any_text_can_be_recorded(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        for (n, text) in hostile_texts().into_iter().enumerate() {
            let name = format!("hostile{n}");
            let facts = Facts {
                subject: Some(text.clone()),
                in_reply_to: Some(text.clone()),
                references: Some(text.clone()),
                addresses: vec![AddressFact {
                    role: "from",
                    name: Some(text.clone()),
                    address: Some(text.clone()),
                }],
                parts: vec![PartFact {
                    path: "1".to_owned(),
                    content_type: text.clone(),
                    name: Some(text.clone()),
                    size_bytes: 1,
                }],
                ..Facts::default()
            };
            let by = Attempt {
                value: RandomValue::default(),
                recipient: text.clone(),
                sender: text.clone(),
                queue_id: text.clone(),
                host: text.clone(),
                pid: u32::MAX,
            };
            let mail = mail(&name);
            let entry = Entry {
                identity: mail.identity(),
                facts: &facts,
                size_bytes: 1,
                raw: None,
                nul_runs: None,
                at: None,
            };
            let context = format!("{:.40?}", text);
            let recorded = session.0.record(&entry, &by, &[inbox()], LEASE).expect(&context);
            session.0.claim(recorded.message, &[sent()], &by, LEASE).expect(&context);
            session.0.note_attempts(mail.identity(), &[(by.clone(), delivered())]).expect(&context);
            let trace = session.trace_one(&format!("{name}@example.org"));
            assert_eq!((trace.attempts.len(), trace.copies.len()), (2, 2), "{context}");
            assert_eq!(session.record(&mail, &[]).message, recorded.message, "{context}");
            if text.len() < 1000 && !text.contains(char::is_control) {
                assert_eq!(trace.subject.as_deref().unwrap_or_default(), text);
                assert_eq!(trace.attempts[0].sender, text);
                assert_eq!(trace.addresses[0].name.as_deref().unwrap_or_default(), text);
            }
        }
    }

    pub fn any_text_can_be_asked_for(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        session.record(&mail("asked"), &[inbox()]);
        for text in hostile_texts() {
            assert!(session.trace(&text).is_empty(), "{text:.40?}");
        }
        let odd = "o'brien\"{$1}\\@Grüße.example";
        let by = Attempt { recipient: odd.to_owned(), queue_id: odd.to_owned(), ..attempt("mx1") };
        session
            .try_record_by(&mail("odd"), &by, &[Destination::inbox("it's \"{$1}\\")], LEASE)
            .expect("record");
        for wanted in [odd, &odd.to_ascii_uppercase(), "it's \"{$1}\\"] {
            assert_eq!(session.trace_one(wanted).subject.as_deref(), Some("odd"), "{wanted}");
        }
    }

    pub fn an_administrators_query_names_an_account(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let query = rig.account_query("doug@example.org", "doug");
        let mut ask = |address: &str| {
            session.0.account_by_query(&query, &Asked::plain(address)).expect("an answer")
        };
        assert_eq!(ask("doug@example.org").as_deref(), Some("doug"));
        for address in [
            "zoe@example.org",
            "",
            "' OR 1=1 --",
            "doug@example.org\0",
            "{$1}",
            &"x".repeat(100_000),
        ] {
            assert_eq!(ask(address), None, "{address:.40?}");
        }
    }

    pub fn a_query_is_asked_without_the_detail_and_may_look_at_it(rig: &dyn Rig) {
        if !rig.sql("SELECT 1") {
            return;
        }
        let mut session = Session::of(rig);
        let asked =
            Asked { address: "doug@a.example".to_owned(), given: "doug+x@a.example".to_owned() };
        for (query, account) in [
            ("SELECT $1", Some("doug@a.example")),
            ("SELECT $2", Some("doug+x@a.example")),
            // In any order, as often as they like.
            ("SELECT $2 || ' ' || $1", Some("doug+x@a.example doug@a.example")),
            ("SELECT $1 || $1 || '$2'", Some("doug@a.exampledoug@a.example$2")),
            ("SELECT 'detail' WHERE $2 LIKE '%+x@%' AND $1 = 'doug@a.example'", Some("detail")),
            ("SELECT 'detail' WHERE $1 LIKE '%+x@%'", None),
        ] {
            let answer = session.0.account_by_query(query, &asked).expect(query);
            assert_eq!(answer.as_deref(), account, "{query}");
        }
        let answer = session.0.account_by_query("SELECT $1 || $3", &asked);
        assert!(matches!(answer, Err(LedgerError::Refused(_))), "{answer:?}");
    }

    pub fn a_wrong_query_is_refused_and_the_session_lives_on(rig: &dyn Rig) {
        if !rig.sql("SELECT 1") {
            return;
        }
        let mut session = Session::of(rig);
        let wrong = [
            "SELEKT 1",
            "SELECT account FROM no_such_table WHERE address = $1",
            "SELECT 'a', 'b' WHERE $1 = 'x'",
            "DELETE FROM onedrop_copy WHERE account = $1",
            "UPDATE onedrop_copy SET account = 'x' WHERE account = $1 RETURNING account",
            "",
        ];
        let claim = session.claim(&mail("query"), &inbox());
        for query in wrong {
            let answer = session.0.account_by_query(query, &Asked::plain("x"));
            assert!(matches!(answer, Err(LedgerError::Refused(_))), "{query:?}: {answer:?}");
            assert_eq!(
                session.turn(&claim, &copy_key(&mail("query"), &inbox())),
                OURS,
                "{query:?}"
            );
            session.0.leave().expect("leave");
        }
        for nobody in
            ["SELECT NULL WHERE $1 = 'x'", "SELECT '' WHERE $1 = 'x'", "SELECT 'a' WHERE $1 = 'y'"]
        {
            assert_eq!(
                session.0.account_by_query(nobody, &Asked::plain("x")).expect("an answer"),
                None,
                "{nobody}"
            );
        }
    }

    pub fn a_ledger_has_its_schema_once(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        session.record(&mail("kept"), &[inbox()]);
        assert_eq!(session.0.schema_version().expect("a version"), SCHEMA_VERSION);
        for _ in 0..2 {
            assert!(session.0.migrate().expect("migrate").is_empty());
        }
        assert_eq!(session.0.schema_version().expect("a version"), SCHEMA_VERSION);
        session.trace_one("kept@example.org");
    }

    pub fn a_message_that_is_taken_out_takes_everything_along(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let first = session.record(&mail("first"), &[inbox(), sent()]);
        session.record(&mail("second"), &[inbox()]);
        let left = |rows: u32| {
            ["address", "part", "copy", "attempt"].map(|table| {
                format!(
                    "CREATE TABLE left_{table}_{rows} (n INTEGER CHECK (n = {rows}));
                     INSERT INTO left_{table}_{rows} SELECT count(*) FROM onedrop_{table}
                     WHERE message_id = {};",
                    first.message
                )
            })
        };
        if !rig.sql(&left(1)[..2].concat()) {
            return;
        }
        rig.sql(&format!("DELETE FROM onedrop_message WHERE id = {}", first.message));
        rig.sql(&left(0).concat());
        assert!(session.trace("first@example.org").is_empty());
        let kept = session.trace_one("second@example.org");
        assert_eq!(
            (kept.addresses.len(), kept.parts.len(), kept.copies.len(), kept.attempts.len()),
            (1, 1, 1, 1)
        );
        let again = session.record(&mail("first"), &[inbox()]);
        assert!(again.is_new && again.message != first.message, "it counts as never seen");
    }

    pub fn a_ledger_without_a_schema_says_so(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        if !rig.forget_schema() {
            return;
        }
        assert_eq!(session.0.schema_version().expect("a version"), 0);
        let refused = session.try_record(&mail("early"), &[inbox()], LEASE);
        assert!(matches!(refused, Err(LedgerError::Version { found: 0 })), "{refused:?}");
        assert_eq!(session.0.migrate().expect("migrate").len() as i64, SCHEMA_VERSION);
        assert_eq!(session.0.schema_version().expect("a version"), SCHEMA_VERSION);
        assert!(session.record(&mail("early"), &[inbox()]).is_new);
    }

    pub fn two_that_migrate_at_once_do_it_once(rig: &dyn Rig) {
        let sessions: Vec<Session> = (0..4).map(|_| Session::of(rig)).collect();
        if !rig.forget_schema() {
            return;
        }
        let (barrier, applied) = (Barrier::new(sessions.len()), AtomicU32::new(0));
        thread::scope(|scope| {
            for mut session in sessions {
                let (barrier, applied) = (&barrier, &applied);
                scope.spawn(move || {
                    barrier.wait();
                    let names = session.0.migrate().expect("migrate");
                    applied.fetch_add(names.len() as u32, Ordering::SeqCst);
                    assert_eq!(session.0.schema_version().expect("a version"), SCHEMA_VERSION);
                });
            }
        });
        assert_eq!(i64::from(applied.into_inner()), SCHEMA_VERSION);
    }

    pub fn a_schema_from_the_future_is_refused(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        if !rig.sql("UPDATE onedrop_schema SET version = 99 WHERE version = (SELECT max(version) FROM onedrop_schema)")
        {
            return;
        }
        assert_eq!(session.0.schema_version().expect("a version"), 99);
        let refused = session.try_record(&mail("early"), &[inbox()], LEASE);
        assert!(matches!(refused, Err(LedgerError::Version { found: 99 })), "{refused:?}");
        assert!(matches!(session.0.migrate(), Err(LedgerError::Version { found: 99 })));
        assert!(rig.sql(&format!(
            "UPDATE onedrop_schema SET version = {SCHEMA_VERSION} WHERE version = 99"
        )));
        assert!(
            session.record(&mail("early"), &[inbox()]).is_new,
            "the refusal left nothing locked"
        );
    }

    pub fn a_ledger_of_version_1_is_refused_until_it_is_migrated(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let before = session.record(&mail("before"), &[inbox()]);
        let undone = rig.undo_mended()
            && rig.sql(
                "DROP INDEX onedrop_copy_unsettled; ALTER TABLE onedrop_copy DROP COLUMN settled_at;
             DROP INDEX IF EXISTS onedrop_message_recorded_at; DELETE FROM onedrop_schema WHERE version > 1;",
            );
        if !undone {
            return;
        }
        assert_eq!(session.0.schema_version().expect("a version"), 1);
        let refused = session.try_record(&mail("refused"), &[inbox()], LEASE);
        assert!(matches!(refused, Err(LedgerError::Version { found: 1 })), "{refused:?}");
        assert_eq!(
            session.0.migrate().expect("migrate"),
            ["0002_settled", "0003_functions", "0004_lighter", "0005_mended"]
        );
        assert!(session.record(&mail("refused"), &[inbox()]).is_new);
        let again = session.record(&mail("before"), &[inbox()]);
        assert_eq!(again.message, before.message, "nothing was lost");
        assert_eq!(again.copies, [CopyState::Busy], "a lease that lives goes on living");
        assert_eq!(session.copies(&ALL).len(), 2);
    }

    pub fn copies_to_verify_come_in_pages_by_account(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        assert_eq!(session.copies(&ALL), []);
        for (n, account) in ["zoe", "doug", "é", "doug", "lisa", "zoe", "doug"].iter().enumerate()
        {
            session.record(&mail(&format!("page{n}")), &[Destination::inbox(account)]);
        }
        let all = session.copies(&ALL);
        assert_eq!(all.len(), 7);
        let mut accounts: Vec<&str> =
            all.iter().map(|copy| copy.destination.account.as_str()).collect();
        assert!(all.windows(2).all(|two| accounts_differ(two) || two[0].copy < two[1].copy));
        accounts.dedup();
        assert_eq!(accounts.len(), 4, "each account's copies follow each other: {accounts:?}");
        for limit in [1, 2, 3, 6, 7, 8] {
            let (mut paged, mut last) = (Vec::new(), None);
            loop {
                let page = session.0.copies_to_verify(&ALL, last.as_ref(), limit).expect("a page");
                assert!(page.len() <= limit as usize);
                let Some(end) = page.last() else { break };
                last = Some(end.clone());
                paged.extend(page);
            }
            assert_eq!(paged, all, "{limit} a page");
        }
        let of_doug = session.copies(&Window { account: Some("doug"), ..ALL });
        assert_eq!(of_doug.len(), 3);
        assert!(of_doug.iter().all(|copy| copy.destination.account == "doug"));
        for nobody in ["DOUG", "", "d\0", "' OR '1'='1"] {
            assert_eq!(session.copies(&Window { account: Some(nobody), ..ALL }), [], "{nobody:?}");
        }
    }

    pub fn the_latest_copies_are_those_placed_of_the_newest_rows(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        assert_eq!(session.0.latest_copies(10).expect("the latest"), []);
        let receipts = [uid(1), Receipt::Name("2.onedrop".to_owned()), Receipt::Unnamed];
        let all = ["zoe", "doug", "lisa", "never"].map(Destination::inbox);
        for (number, destination) in all.iter().enumerate() {
            let claim = session.claim(&mail(&format!("latest{number}")), destination);
            if let Some(receipt) = receipts.get(number) {
                session.confirm(&claim, receipt);
            }
        }
        let mut expected: Vec<_> = all.into_iter().zip(receipts).collect();
        expected.reverse();
        assert_eq!(session.0.latest_copies(10).expect("the latest"), expected);
        assert_eq!(session.0.latest_copies(2).expect("the latest"), expected[..2]);
    }

    pub fn a_way_that_was_proven_is_on_record_until_it_was_seen_to_be_wrong(rig: &dyn Rig) {
        let (mut session, mut other) = (Session::of(rig), Session::of(rig));
        let way = |server: &str, login_user: &str, form: &str| Way {
            server: server.to_owned(),
            login_user: login_user.to_owned(),
            form: form.to_owned(),
        };
        let ours = way("imap.example.net:993", "mda", "sasl");
        let others = [
            way("imap.example.net:143", "mda", "sasl"),
            way("imap.example.net:993", "MDA", "sasl"),
            way("imap.example.net:993", "mda", "{account}*{user}"),
        ];
        assert!(!session.0.is_proven(&ours).expect("an answer"));
        // Renewed as often as somebody looks.
        for host in ["a", "b"] {
            session.0.note_proof(&ours, true, host).expect("a record");
        }
        assert!(other.0.is_proven(&ours).expect("an answer"));
        for other_way in &others {
            assert!(!other.0.is_proven(other_way).expect("an answer"), "{other_way}");
            other.0.note_proof(other_way, false, "a").expect("nothing to take off");
        }
        assert!(session.0.is_proven(&ours).expect("an answer"));
        other.0.note_proof(&ours, false, "c").expect("taken off the record");
        assert!(!session.0.is_proven(&ours).expect("an answer"));
    }

    fn accounts_differ(two: &[CopyOnRecord]) -> bool {
        two[0].destination.account != two[1].destination.account
    }

    pub fn a_copy_to_verify_is_told_as_it_stands(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let mail = message("From: lisa@gmail.com\r\nSubject: no id\r\n\r\nHello\r\n");
        let to = |name: &str| Destination::inbox(name);
        let all = ["doubt", "free", "given-back", "leased", "placed"].map(to);
        let recorded = session.record(&mail, &all[..3]);
        session.0.release(&[claimed(&recorded.copies[1])]).expect("release");
        rig.expire_leases();
        let again = session.record(&mail, &all[2..]);
        session.0.release(&[claimed(&again.copies[0])]).expect("release");
        let claim = claimed(&again.copies[2]);
        assert_eq!(session.confirm(&claim, &uid(7)), Confirmed::Recorded);
        let told = session.copies(&ALL);
        assert_eq!(told.len(), 5);
        for (copy, destination) in told.iter().zip(&all) {
            assert_eq!(copy.destination, *destination);
            assert_eq!((copy.message, &copy.identity), (recorded.message, mail.identity()));
            assert_eq!(copy.identity.message_id, None);
            assert_eq!(
                (copy.recorded_at, copy.size_bytes),
                (recorded.recorded_at, mail.own_copy().len() as u64)
            );
            assert_eq!((copy.owner.as_str(), copy.settled), ("mx1:42", false));
        }
        assert_eq!(told.iter().map(|copy| copy.epoch).collect::<Vec<_>>(), [1, 1, 2, 1, 1]);
        assert_eq!(told[0].standing, Standing::InDoubt { lease_left_over: true });
        assert_eq!(told[1].standing, Standing::Free);
        assert_eq!(told[2].standing, Standing::InDoubt { lease_left_over: false });
        assert_eq!(told[3].standing, Standing::Leased);
        let Standing::Placed { receipt, ago } = &told[4].standing else { panic!("{:?}", told[4]) };
        assert!(*receipt == uid(7) && *ago < Duration::from_secs(60), "{ago:?}");
        assert_eq!(told[4].copy, claim.copy);
        let mail = ports::mail("id");
        session.record(&mail, &[to("zoe")]);
        let told = session.copies(&Window { account: Some("zoe"), ..ALL });
        assert_eq!(told[0].identity.message_id, mail.identity().message_id);
    }

    pub fn the_window_holds_what_is_recent_and_what_needs_a_second_look(rig: &dyn Rig) {
        let mut session = Session::of(rig);
        let recorded = session.record(&mail("window"), &[inbox(), sent()]);
        session.confirm(&claimed(&recorded.copies[0]), &uid(1));
        let window = |since: SystemTime| Window { since, account: None };
        let (at, second) = (recorded.recorded_at, Duration::from_secs(1));
        assert_eq!(session.copies(&window(at)).len(), 2);
        // The lease of the other one ends later.
        let later = session.copies(&window(at + second));
        assert_eq!(later.iter().map(|copy| &copy.destination).collect::<Vec<_>>(), [&sent()]);
        rig.expire_leases();
        let again = session.record(&mail("window"), &[sent()]);
        session.confirm(&claimed(&again.copies[0]), &uid(2));
        let far = window(at + Duration::from_secs(1_000_000_000));
        let needs_a_look = session.copies(&far);
        assert_eq!(
            needs_a_look.iter().map(|copy| &copy.destination).collect::<Vec<_>>(),
            [&sent()]
        );
        assert!(session.0.settle(&needs_a_look[0], &uid(2)).expect("settle"));
        assert_eq!(session.copies(&far), []);
        let both = session.copies(&ALL);
        assert_eq!(both.iter().map(|copy| copy.settled).collect::<Vec<_>>(), [false, true]);
    }

    pub fn a_copy_is_settled_where_it_is_as_told(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        let receipts = [
            uid(1),
            uid(2),
            Receipt::Name("n:2,S".to_owned()),
            Receipt::Unnamed,
            Receipt::Uid { validity: 2, uid: 2 },
        ];
        let claim = a.claim(&mail("settled"), &inbox());
        let leased = a.copies(&ALL).remove(0);
        assert!(!a.0.settle(&leased, &uid(9)).expect("settle"), "not placed");
        a.confirm(&claim, &receipts[0]);
        assert!(!a.0.settle(&leased, &uid(9)).expect("settle"), "not as told");
        for two in receipts.windows(2) {
            let told = a.copies(&ALL).remove(0);
            let same = b.copies(&ALL).remove(0);
            assert!(
                matches!(&told.standing, Standing::Placed { receipt, .. } if *receipt == two[0]),
                "{told:?}"
            );
            assert!(b.0.settle(&same, &two[0]).expect("settle"), "with the same receipt");
            assert!(a.0.settle(&told, &two[1]).expect("settle"));
            assert!(
                !b.0.settle(&same, &uid(9)).expect("settle"),
                "another receipt is on record by now"
            );
        }
        let state = b.claim_state(&mail("settled"), &inbox());
        assert_eq!(
            state,
            CopyState::Placed(receipts[4].clone()),
            "a delivery sees the new receipt"
        );
    }

    pub fn a_named_lock_excludes_until_it_is_left(rig: &dyn Rig) {
        let (mut a, mut b) = (Session::of(rig), Session::of(rig));
        a.0.try_lock("check").expect("the lock");
        assert!(matches!(b.0.try_lock("check"), Err(LedgerError::Contended)));
        b.0.try_lock("other \0 'é").expect("another lock");
        b.0.leave().expect("leave");
        a.0.leave().expect("leave");
        b.0.try_lock("check").expect("the lock");
        assert!(matches!(a.0.try_lock("check"), Err(LedgerError::Contended)));
        b.0.reopen(soon()).expect("reopen");
        let begun = Instant::now();
        while let Err(error) = a.0.try_lock("check") {
            assert!(
                matches!(error, LedgerError::Contended)
                    && begun.elapsed() < Duration::from_secs(10),
                "{error}"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn of_twenty_that_want_one_copy_one_gets_it(rig: &dyn Rig) {
        const MANY: usize = 20;
        let (barrier, states) = (Barrier::new(MANY), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for n in 0..MANY {
                let (barrier, states) = (&barrier, &states);
                scope.spawn(move || {
                    let mut session = Session::of(rig);
                    let own = Destination::inbox(&format!("account{n}"));
                    barrier.wait();
                    let begun = Instant::now();
                    let recorded = loop {
                        match session.try_record(&mail("crowd"), &[sent(), own.clone()], LEASE) {
                            Err(LedgerError::Contended)
                                if begun.elapsed() < Duration::from_secs(60) =>
                            {
                                thread::sleep(Duration::from_millis(1));
                            }
                            result => break result.expect("record"),
                        }
                    };
                    states.lock().expect("states").push(recorded);
                });
            }
        });
        let states = states.into_inner().expect("states");
        let first = &states[0];
        assert!(
            states.iter().all(|s| (s.message, s.recorded_at) == (first.message, first.recorded_at))
        );
        assert_eq!(states.iter().filter(|s| s.is_new).count(), 1);
        assert!(
            states
                .iter()
                .all(|s| matches!(s.copies[1], CopyState::Claimed(Claim { in_doubt: false, .. })))
        );
        let winners: Vec<_> = states.iter().filter(|s| s.copies[0] != CopyState::Busy).collect();
        assert_eq!(winners.len(), 1);
        assert_eq!(claimed(&winners[0].copies[0]).epoch, 1);
    }

    pub fn twenty_that_take_turns_are_never_two(rig: &dyn Rig) {
        const MANY: usize = 20;
        let mail = mail("turns");
        let key = copy_key(&mail, &inbox());
        let claim = Session::of(rig).claim(&mail, &inbox());
        let (barrier, inside, turns) = (Barrier::new(MANY), AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..MANY {
                scope.spawn(|| {
                    let mut session = Session::of(rig);
                    barrier.wait();
                    let begun = Instant::now();
                    loop {
                        match session.0.take_turn(&claim, &key) {
                            Ok(turn) => {
                                assert_eq!(turn, OURS);
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                                thread::yield_now();
                                inside.fetch_sub(1, Ordering::SeqCst);
                                turns.fetch_add(1, Ordering::SeqCst);
                                return session.0.leave().expect("leave");
                            }
                            Err(LedgerError::Contended) => {
                                assert!(
                                    begun.elapsed() < Duration::from_secs(60),
                                    "never its turn"
                                );
                                thread::sleep(Duration::from_millis(1));
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        assert_eq!(turns.into_inner() as usize, MANY);
    }
}

#[derive(Default)]
struct MemoryRig(MemoryLedger);

impl Rig for MemoryRig {
    fn session(&self) -> Box<dyn Ledger> {
        Box::new(self.0.clone())
    }

    fn expire_leases(&self) {
        self.0.advance(2 * LEASE.lease);
    }

    fn step_clock(&self, secs: i64) {
        let by = Duration::from_secs(secs.unsigned_abs());
        if secs > 0 { self.0.advance(by) } else { self.0.set_back(by) }
    }

    fn sql(&self, _statements: &str) -> bool {
        false
    }

    fn account_query(&self, address: &str, account: &str) -> String {
        self.0.add_account(address, account);
        String::new()
    }
}

struct SqliteRig {
    folder: tempfile::TempDir,
    /// By how much its clock goes before the host's.
    clock_secs: Arc<AtomicI64>,
}

impl SqliteRig {
    fn new() -> SqliteRig {
        let rig = SqliteRig {
            folder: tempfile::tempdir().expect("a folder"),
            clock_secs: Arc::default(),
        };
        drop(rig.session());
        rig
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("ledger.db")
    }

    fn connection(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.path()).expect("the database");
        connection.busy_timeout(Duration::from_secs(60)).expect("a time-out");
        connection
    }
}

impl Rig for SqliteRig {
    fn session(&self) -> Box<dyn Ledger> {
        let ahead = Arc::clone(&self.clock_secs);
        let clock = move || {
            let secs = ahead.load(Ordering::SeqCst);
            let by = Duration::from_secs(secs.unsigned_abs());
            if secs > 0 { SystemTime::now() + by } else { SystemTime::now() - by }
        };
        Box::new(SqliteLedger::open_by(&self.path(), soon(), Arc::new(clock)).expect("a session"))
    }

    fn step_clock(&self, secs: i64) {
        self.clock_secs.fetch_add(secs, Ordering::SeqCst);
    }

    fn expire_leases(&self) {
        self.sql("UPDATE onedrop_copy SET leased_until = leased_until - 1e6");
    }

    fn sql(&self, statements: &str) -> bool {
        self.connection().execute_batch(statements).expect("SQL");
        true
    }
}

const NO_FUNCTIONS: &str = "DO $$ DECLARE f regprocedure; BEGIN
    FOR f IN SELECT oid FROM pg_proc WHERE proname LIKE 'onedrop%'
    LOOP EXECUTE 'DROP FUNCTION ' || f || ' CASCADE'; END LOOP; END $$;";

/// Directly, or through a pooler that hands each transaction to another server connection.
struct PostgresRig {
    bouncer: Option<PgBouncer>,
    postgres: Postgres,
    prepare: bool,
}

impl PostgresRig {
    fn direct(prepare: bool) -> PostgresRig {
        let rig = PostgresRig { bouncer: None, postgres: Postgres::start(), prepare };
        rig.session().migrate().expect("migrate");
        rig
    }

    fn pooled() -> PostgresRig {
        let postgres = Postgres::start();
        let rig =
            PostgresRig { bouncer: Some(PgBouncer::start(&postgres)), postgres, prepare: false };
        rig.session().migrate().expect("migrate");
        rig
    }
}

impl Rig for PostgresRig {
    fn session(&self) -> Box<dyn Ledger> {
        let url = self.bouncer.as_ref().map_or_else(|| self.postgres.url_socket(), PgBouncer::url);
        let settings =
            PostgresSettings { url, password: None, ca_file: None, prepare: self.prepare };
        Box::new(PostgresLedger::open(settings, soon()).expect("a session"))
    }

    fn expire_leases(&self) {
        self.sql("UPDATE onedrop_copy SET leased_until = leased_until - interval '100 days'");
    }

    /// The server's clock cannot be set here: what is on record is moved against it, which is the
    /// same.
    fn step_clock(&self, secs: i64) {
        self.sql(&format!(
            "UPDATE onedrop_copy SET leased_until = leased_until - {secs} * interval '1 second',
                                     placed_at = placed_at - {secs} * interval '1 second'"
        ));
    }

    fn undo_mended(&self) -> bool {
        // Migrations before the last one make theirs anew.
        self.sql(NO_FUNCTIONS)
            && self.sql(
                "DROP TABLE onedrop_kept, onedrop_proof;
                 ALTER TABLE onedrop_copy DROP COLUMN value, DROP COLUMN lease_value, DROP COLUMN lease_ms, DROP COLUMN placed_epoch;
                 ALTER TABLE onedrop_message DROP COLUMN nul_runs; DELETE FROM onedrop_schema WHERE version > 2;",
            )
    }

    fn sql(&self, statements: &str) -> bool {
        self.postgres.psql(statements);
        true
    }
}

ledger_contract!(memory, MemoryRig::default());
ledger_contract!(sqlite, SqliteRig::new());
ledger_contract!(postgres, PostgresRig::direct(false));
ledger_contract!(postgres_with_prepared_statements, PostgresRig::direct(true));
ledger_contract!(postgres_through_pgbouncer, PostgresRig::pooled());

#[test]
fn postgres_without_the_functions_is_of_an_older_version_or_says_what_it_lacks() {
    let rig = PostgresRig::direct(false);
    let mut session = Session::of(&rig);
    rig.sql(NO_FUNCTIONS);
    let refused = session.try_record(&mail("no function"), &[inbox()], LEASE);
    assert!(
        matches!(&refused, Err(LedgerError::Refused(why)) if why.contains("onedrop_record")),
        "{refused:?}"
    );
    rig.undo_mended();
    let refused = session.try_record(&mail("no function"), &[inbox()], LEASE);
    assert!(matches!(refused, Err(LedgerError::Version { found: 2 })), "{refused:?}");
    assert_eq!(
        session.0.migrate().expect("migrate"),
        ["0003_functions", "0004_lighter", "0005_mended"]
    );
    assert!(session.record(&mail("no function"), &[inbox()]).is_new);
}

/// Alone it takes the rest along only with CASCADE, because of foreign keys.
#[test]
fn postgres_messages_that_are_truncated_take_everything_along() {
    for truncate in [
        "TRUNCATE onedrop_message CASCADE",
        "TRUNCATE onedrop_message, onedrop_copy, onedrop_attempt, onedrop_address, onedrop_part, onedrop_kept",
    ] {
        let rig = PostgresRig::direct(false);
        let mut session = Session::of(&rig);
        session.record(&mail("first"), &[inbox()]);
        rig.sql(truncate);
        let rows =
            "SELECT (SELECT count(*) FROM onedrop_address) + (SELECT count(*) FROM onedrop_part)
                    + (SELECT count(*) FROM onedrop_copy) + (SELECT count(*) FROM onedrop_attempt)";
        assert_eq!(rig.postgres.psql(rows), "0", "{truncate}");
        assert!(session.record(&mail("first"), &[inbox()]).is_new);
    }
}

/// Whoever may delete messages need not be allowed to delete what belongs to them; and nobody gets
/// more rights by that.
#[test]
fn postgres_messages_are_taken_out_by_who_may_take_out_messages() {
    let rig = PostgresRig::direct(false);
    let mut session = Session::of(&rig);
    session.record(&mail("first"), &[inbox()]);
    rig.sql(
        "CREATE ROLE cleaner; GRANT SELECT, DELETE ON onedrop_message TO cleaner; SET ROLE cleaner;
         DELETE FROM onedrop_message; RESET ROLE;",
    );
    assert_eq!(rig.postgres.psql("SELECT count(*) FROM onedrop_address"), "0");
    rig.sql(
        "SET ROLE cleaner;
         CREATE TEMP TABLE own (id bigint);
         DO $$ BEGIN
             CREATE TRIGGER own AFTER DELETE ON own REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
                 EXECUTE FUNCTION onedrop_message_gone();
             RAISE EXCEPTION 'a trigger with its owner''s rights';
         EXCEPTION WHEN insufficient_privilege THEN NULL; END $$;",
    );
}

/// A program that reads for long, a dump say, keeps nobody but the migration waiting.
#[test]
fn postgres_deliveries_get_on_while_a_migration_waits_for_a_reader() {
    let rig = PostgresRig::direct(false);
    let mut session = Session::of(&rig);
    rig.undo_mended();
    let mut reader = ::postgres::Client::connect(&rig.postgres.url_socket(), ::postgres::NoTls)
        .expect("a session");
    let mut transaction = reader.transaction().expect("a transaction");
    transaction.query("SELECT count(*) FROM onedrop_message", &[]).expect("rows");
    std::thread::scope(|scope| {
        let migrated = scope.spawn(|| Session::of(&rig).0.migrate());
        let waits =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%LOCK TABLE onedrop_message%'
                     AND pid <> pg_backend_pid()";
        while rig.postgres.psql(waits) == "0" && !migrated.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        // As a delivery's statement, which stands in line behind the migration's at most for a
        // moment.
        for _ in 0..5 {
            rig.sql(
                "SET statement_timeout = '5s'; UPDATE onedrop_message SET subject = '' WHERE false",
            );
        }
        assert!(!migrated.is_finished());
        transaction.commit().expect("the reader's end");
        assert_eq!(
            migrated.join().expect("no panic").expect("migrated"),
            ["0003_functions", "0004_lighter", "0005_mended"]
        );
    });
    assert!(session.record(&mail("after"), &[inbox()]).is_new);
}

/// A server whose own transactions see the past: a row re-read under a lock would be that of before
/// the lock.
#[test]
fn postgres_whose_default_is_another_isolation_level_works_the_same() {
    let rig = PostgresRig::direct(false);
    rig.sql("ALTER DATABASE onedrop SET default_transaction_isolation = 'repeatable read'");
    let mut session = Session::of(&rig);
    let first = session.record(&mail("isolated"), &[inbox()]);
    assert!(first.is_new);
    let again = Session::of(&rig).record(&mail("isolated"), &[inbox()]);
    assert_eq!((again.message, again.copies.as_slice()), (first.message, &[CopyState::Busy][..]));
    suite::several_messages_are_recorded_at_once(&rig);
}

/// Whoever has to wait for a lock waits alone.
#[test]
fn postgres_a_locked_row_keeps_those_in_company_only_briefly() {
    let rig = PostgresRig::direct(false);
    let mut session = Session::of(&rig);
    let claim = session.claim(&mail("locked"), &inbox());
    let mut other = ::postgres::Client::connect(&rig.postgres.url_socket(), ::postgres::NoTls)
        .expect("a session");
    let mut lock = other.transaction().expect("a transaction");
    lock.execute("SELECT FROM onedrop_copy WHERE id = $1 FOR UPDATE", &[&claim.copy])
        .expect("the row");
    let began = Instant::now();
    let refused = suite::record_names(&mut session, &["before", "locked", "after"]);
    assert!(matches!(refused, Err(LedgerError::Contended)), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "and not until the session's end");
    assert!(session.trace("before@example.org").is_empty(), "all are on record or none is");
    assert!(session.record(&mail("before"), &[inbox()]).is_new, "the session goes on");
    lock.rollback().expect("rollback");
    assert!(matches!(
        suite::record_names(&mut session, &["locked", "after"]).as_deref(),
        Ok([Ok(_), Ok(_)])
    ));
}

#[test]
fn sqlite_a_file_that_many_open_at_once_becomes_a_ledger() {
    const MANY: usize = 20;
    // Each round is one chance to meet in the moment in which the file is turned to WAL.
    for _ in 0..10 {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/ledger.db");
        let barrier = Barrier::new(MANY);
        thread::scope(|scope| {
            for n in 0..MANY {
                let (barrier, path) = (&barrier, &path);
                scope.spawn(move || {
                    barrier.wait();
                    let mut session =
                        Session(Box::new(SqliteLedger::open(path, soon()).expect("a session")));
                    assert!(session.record(&mail(&format!("many{n}")), &[inbox()]).is_new);
                });
            }
        });
    }
}

#[test]
fn sqlite_a_writer_that_never_ends_makes_the_ledger_unavailable_and_leaves_no_lock() {
    let rig = SqliteRig::new();
    let mail = mail("blocked");
    let key = copy_key(&mail, &inbox());
    let claim = Session::of(&rig).claim(&mail, &inbox());
    let mut hurried = SqliteLedger::open(&rig.path(), Instant::now() + Duration::from_millis(20))
        .expect("a session");
    let mut writer = rig.connection();
    let held = writer
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .expect("the write lock");
    assert_eq!(
        hurried.take_turn(&claim, &key).expect("a turn"),
        OURS,
        "reading waits for no writer"
    );
    let confirmed = hurried.confirm(&claim, &uid(1), CopyFacts::default(), None);
    assert!(matches!(confirmed, Err(LedgerError::Unavailable(_))), "{confirmed:?}");
    let facts = mail.facts();
    let entry = Entry {
        identity: mail.identity(),
        facts: &facts,
        size_bytes: 1,
        raw: None,
        nul_runs: None,
        at: None,
    };
    let recorded = hurried.record(&entry, &attempt("mx1"), &[inbox()], LEASE);
    assert!(matches!(recorded, Err(LedgerError::Unavailable(_))), "{recorded:?}");
    drop(held);
    let mut other = Session::of(&rig);
    assert_eq!(
        other.record(&mail, &[inbox()]).copies,
        [CopyState::Busy],
        "the message's lock is free"
    );
    assert_eq!(other.turn(&claim, &key), OURS, "the copy's lock is free");
    other.0.leave().expect("leave");
    hurried.reopen(soon()).expect("reopen");
    let confirmed = hurried.confirm(&claim, &uid(1), CopyFacts::default(), None);
    assert_eq!(confirmed.expect("confirm"), Confirmed::Recorded);
}
