//! What a ledger forgets, when, and what it says of what it does not remember.

use onedrop::ledger::{
    BatchTerms, ForgetBatch, ForgetWhat, PurgeBatch, PurgeCursor, PurgeWhat, RawMessage,
};

use super::*;

const DAY: Duration = Duration::from_secs(86_400);
const HOUR: i64 = 3600;
const DAYS_35: Duration = Duration::from_secs(35 * 86_400);

impl Host {
    pub fn batch(
        &self,
        what: PurgeWhat,
        older_than: Duration,
        after: Option<PurgeCursor>,
        how: BatchTerms,
    ) -> PurgeBatch {
        let end = soon();
        loop {
            // As whoever purges does: nothing of that batch holds.
            match self.0.purge(what, older_than, after, how, end) {
                Err(LedgerError::Contended) if Instant::now() < end => thread::yield_now(),
                done => return done.expect("purge"),
            }
        }
    }

    /// Takes batches of two to the end: how many are gone, and how many were passed by.
    pub fn purge(&self, what: PurgeWhat, older_than: Duration) -> (u64, u64) {
        let how = BatchTerms { limit: 2, dry_run: false };
        let (mut gone, mut passed_by, mut after) = (0, 0, None);
        loop {
            let batch = self.batch(what, older_than, after, how);
            assert!(batch.next > after || batch.next.is_none(), "it goes on");
            gone += batch.gone;
            passed_by += batch.passed_by;
            after = batch.next;
            if after.is_none() {
                return (gone, passed_by);
            }
        }
    }

    pub fn forget(&self, what: ForgetWhat<'_>, dry_run: bool) -> Vec<(Destination, bool)> {
        let how = BatchTerms { limit: 2, dry_run };
        let (mut copies, mut after) = (Vec::new(), 0);
        loop {
            let batch: ForgetBatch = self.0.forget(what, after, how, soon()).expect("forget");
            copies.extend(
                batch.copies.into_iter().map(|one| (one.destination, one.passed_by.is_some())),
            );
            match batch.next {
                Some(next) => after = next,
                None => return copies,
            }
        }
    }

    /// What record says of a message whose oldest time is this.
    pub fn record_aged(
        &self,
        mail: &Message,
        oldest: Option<SystemTime>,
        destinations: &[Destination],
    ) -> Recorded {
        let facts = mail.facts();
        let entry = Entry { oldest, ..entry(mail.identity(), &facts) };
        self.record_entry(&entry, &attempt("mx1"), destinations, LEASE)
    }

    pub fn place(&self, mail: &Message, destination: &Destination, number: u32) -> Claim {
        let claim = self.claim(mail, destination);
        assert_eq!(self.confirm(&claim, &uid(number)), Confirmed::Recorded);
        claim
    }

    fn raw(&self) -> Vec<RawMessage> {
        let mut found: Vec<RawMessage> = Vec::new();
        loop {
            let after = found.last().map_or(0, |last| last.message);
            match self.0.next_raw(UNIX_EPOCH, after, soon()).expect("raw") {
                Some(message) => found.push(message),
                None => return found,
            }
        }
    }
}

fn looks_back(state: &CopyState) -> (bool, bool) {
    let claim = claimed(state);
    (claim.in_doubt, claim.looks_back)
}

/// The ledger's clock, as of now.
fn now(host: &Host) -> SystemTime {
    host.record(&mail("what time is it"), &[]);
    host.0.time()
}

pub fn a_message_older_than_the_memory_is_claimed_in_doubt_and_looks_back(rig: &dyn Rig) {
    let host = Host::of(rig);
    let born = now(&host) - 10 * DAY;
    rig.remember_since(born);
    let ages = [
        ("day-older", Some(born - DAY), true),
        ("half-hour-younger", Some(born + DAY / 48), true),
        ("two-hours-younger", Some(born + DAY / 12), false),
        ("of-today", Some(born + 10 * DAY), false),
        ("of-tomorrow", Some(born + 11 * DAY), false),
        ("before-1970", Some(UNIX_EPOCH), true),
        ("tells-no-time", None, true),
    ];
    for (name, oldest, is_old) in ages {
        let recorded = host.record_aged(&mail(name), oldest, &[inbox()]);
        let first = claimed(&recorded.copies[0]);
        assert_eq!((first.in_doubt, first.looks_back), (is_old, is_old), "{name}");
        assert_eq!(first.epoch, 1);
        // Another recipient's delivery, whatever time its copy of the message has.
        let other = host.record_aged(&mail(name), Some(born + 10 * DAY), &[sent()]);
        assert_eq!(looks_back(&other.copies[0]), (is_old, is_old), "{name}");
        // Given back, and after a crash.
        host.release(&[first]);
        let again = host.claim_again(recorded.message, &[inbox()], &attempt("mx2"), LEASE);
        assert_eq!(looks_back(&again[0]), (is_old, is_old), "{name}");
        rig.expire_leases();
        let late = host.record_aged(&mail(name), oldest, &[inbox()]);
        assert_eq!(looks_back(&late.copies[0]), (true, is_old), "{name}");
        let copy = host
            .copies(&ALL)
            .into_iter()
            .find(|copy| copy.message == recorded.message.number && copy.destination == inbox());
        assert_eq!(copy.expect("a copy").looks_back, is_old);
    }
}

pub fn the_first_ledger_of_a_site_remembers_all_of_known_age(rig: &dyn Rig) {
    let host = Host::of(rig);
    rig.remember_since(host.0.time());
    assert!(host.0.be_first(soon()).expect("first"));
    assert!(host.0.be_first(soon()).expect("said before"));
    for (name, oldest, is_old) in
        [("queued", Some(UNIX_EPOCH + 1000 * DAY), false), ("tells-no-time", None, true)]
    {
        let recorded = host.record_aged(&mail(name), oldest, &[inbox()]);
        assert_eq!(looks_back(&recorded.copies[0]), (is_old, is_old), "{name}");
    }
    // With messages it knows better.
    let born = now(&host);
    rig.remember_since(born);
    assert!(!host.0.be_first(soon()).expect("an answer"));
    let is = host.0.remembered(soon()).expect("remembered");
    assert_eq!(is.since, Some(born));
}

pub fn a_copy_left_to_settle_of_an_old_message_looks_back(rig: &dyn Rig) {
    let host = Host::of(rig);
    rig.remember_since(now(&host) - DAY);
    let old = host.record_aged(&mail("old"), Some(UNIX_EPOCH), &[inbox()]).message;
    assert!(matches!(host.keep_until_due(old, &sent(), b"1", Duration::ZERO), Due::At(_)));
    assert_eq!(looks_back(&host.claim_due(old, &sent())), (true, true));
}

pub fn a_purge_takes_messages_whole_and_moves_the_memory_on(rig: &dyn Rig) {
    let host = Host::of(rig);
    rig.remember_since(now(&host) - 400 * DAY);
    let names = ["one", "two", "three", "four", "five"];
    for (number, name) in (1..).zip(names) {
        host.place(&mail(name), &inbox(), number);
    }
    rig.pass(36 * 24 * HOUR);
    host.place(&mail("new"), &inbox(), 9);
    let recorded_at = |name: &str| {
        let message = host.trace_one(&format!("{name}@example.org")).message;
        let copies = host.copies(&ALL);
        copies.into_iter().find(|one| one.message == message).expect("a copy").recorded_at
    };
    let first_seen = recorded_at("one");

    let counted =
        host.batch(PurgeWhat::Messages, DAYS_35, None, BatchTerms { limit: 100, dry_run: true });
    assert_eq!(counted, PurgeBatch { gone: 6, passed_by: 0, next: None }, "and `what time is it`");
    assert_eq!(host.trace("one@example.org").len(), 1, "nothing is gone");
    assert_eq!(host.purge(PurgeWhat::Messages, 37 * DAY), (0, 0), "not old enough");
    let sure = host.record_aged(&mail("sure"), Some(first_seen), &[inbox()]);
    assert_eq!(looks_back(&sure.copies[0]), (false, false), "the ledger would know it");

    assert_eq!(host.purge(PurgeWhat::Messages, DAYS_35), (6, 0));
    for name in names {
        assert!(host.trace(&format!("{name}@example.org")).is_empty(), "{name}");
    }
    let left: Vec<_> = host.copies(&ALL).into_iter().map(|copy| copy.message).collect();
    let of = |name: &str| host.trace_one(&format!("{name}@example.org")).message;
    assert_eq!(left, [of("new"), of("sure")]);
    let again = host.record_aged(&mail("one"), Some(first_seen), &[inbox()]);
    assert!(again.is_new, "with all that belonged to it");
    assert_eq!(looks_back(&again.copies[0]), (true, true), "it may stand in its mailbox");
    assert_eq!(host.purge(PurgeWhat::Messages, DAYS_35), (0, 0));
}

pub fn a_purge_passes_by_what_a_delivery_may_still_write(rig: &dyn Rig) {
    let host = Host::of(rig);
    let claim = host.claim(&mail("leased"), &inbox());
    let kept = host.record(&mail("kept"), &[sent()]);
    assert!(host.keep(kept.message, b"bytes", "full"));
    let due = host.record(&mail("due"), &[]).message;
    host.keep_until_due(due, &sent(), b"bytes", Duration::ZERO);
    let free = host.claim(&mail("free"), &inbox());
    host.release(&[free]);
    // Half an hour after the leases; what was given back has no lease.
    rig.pass(HOUR / 2);
    assert_eq!(host.purge(PurgeWhat::Messages, Duration::from_secs(60)), (1, 3));
    assert_eq!(host.confirm(&claim, &uid(1)), Confirmed::Recorded, "late, and in its own row");
    rig.pass(2 * HOUR);
    // What has its receipt may go, and what is kept never, however old.
    assert_eq!(host.purge(PurgeWhat::Messages, Duration::from_secs(60)), (1, 2));
    assert_eq!(host.kept_bytes(kept.message).as_deref(), Some(&b"bytes"[..]));
    let claim = claimed(&host.claim_due(due, &sent()));
    assert_eq!(host.confirm(&claim, &uid(2)), Confirmed::Recorded);
    assert_eq!(host.purge(PurgeWhat::Messages, Duration::from_secs(60)), (1, 1));
}

pub fn bytes_of_a_sent_that_was_never_tried_are_not_purged(rig: &dyn Rig) {
    let host = Host::of(rig);
    let refused = host.record(&mail("refused"), &[sent()]);
    host.keep(refused.message, b"refused", "full");
    host.release(&[claimed(&refused.copies[0])]);
    let due = host.record(&mail("due"), &[]).message;
    host.keep_until_due(due, &sent(), b"due", Duration::ZERO);
    rig.pass(8 * 24 * HOUR);
    assert_eq!(host.purge(PurgeWhat::Kept, 9 * DAY), (0, 0));
    assert_eq!(host.purge(PurgeWhat::Kept, 7 * DAY), (1, 1));
    assert_eq!(host.kept_bytes(refused.message), None);
    assert_eq!(host.kept_bytes(due).as_deref(), Some(&b"due"[..]), "settle has not come to it");
    let claim = claimed(&host.claim_due(due, &sent()));
    host.release(&[claim]);
    assert_eq!(host.purge(PurgeWhat::Kept, 7 * DAY), (1, 0), "it was tried, and refused");
}

pub fn attempts_raw_bytes_and_facts_go_each_in_its_time(rig: &dyn Rig) {
    let host = Host::of(rig);
    let bytes = b"the whole message";
    let record = |name: &str| {
        let (mail, raw) = (mail(name), Some(&bytes[..]));
        let facts = mail.facts();
        let entry = Entry { raw, ..entry(mail.identity(), &facts) };
        let recorded = host.record_entry(&entry, &attempt("mx1"), &[inbox()], LEASE);
        host.confirm(&claimed(&recorded.copies[0]), &uid(1));
        recorded.message
    };
    let old = record("old");
    host.note(&mail("no message of ours"), &[(attempt("mx1"), delivered())]);
    rig.pass(10 * 24 * HOUR);
    let new = record("new");
    host.note(&mail("nor this"), &[(attempt("mx1"), delivered())]);

    assert_eq!(host.purge(PurgeWhat::Raw, 7 * DAY), (1, 0));
    let raw = host.raw();
    assert_eq!(raw.iter().map(|one| one.message).collect::<Vec<_>>(), [new.number]);
    assert_eq!((&*raw[0].sender, &raw[0].bytes[..]), ("lisa@gmail.com", &bytes[..]));
    assert_eq!(raw[0].identity, *mail("new").identity());

    let attempts =
        |name: &str| host.trace(name).iter().map(|one| one.attempts.len()).sum::<usize>();
    assert_eq!(host.purge(PurgeWhat::Attempts, 9 * DAY), (1, 0));
    assert_eq!(attempts("no message of ours@example.org"), 0);
    assert_eq!(attempts("nor this@example.org"), 1);

    assert_eq!(host.purge(PurgeWhat::Facts, 9 * DAY), (1, 0));
    assert_eq!(host.purge(PurgeWhat::Facts, 9 * DAY).0, 0, "once");
    let trace = host.trace_one("old@example.org");
    assert_eq!((trace.message, trace.subject), (old.number, None));
    assert!(trace.addresses.is_empty() && trace.parts.is_empty() && trace.attempts.is_empty());
    assert_eq!(trace.copies.len(), 1, "its key and its copies stay");
    assert_eq!(host.record(&mail("old"), &[inbox()]).copies, [CopyState::Placed(uid(1))]);
    assert_eq!(host.trace_one("new@example.org").subject.as_deref(), Some("new"));
}

pub fn attempts_at_a_message_whose_facts_are_erased_go_at_their_own_age(rig: &dyn Rig) {
    let host = Host::of(rig);
    host.place(&mail("tried"), &inbox(), 1);
    rig.pass(5 * 24 * HOUR);
    host.record(&mail("tried"), &[inbox()]);
    rig.pass(3 * 24 * HOUR);
    host.place(&mail("new"), &inbox(), 2);
    let attempts = |name: &str| host.trace_one(&format!("{name}@example.org")).attempts.len();
    assert_eq!(attempts("tried"), 2);
    // The first is eight days old, and the second three.
    assert_eq!(host.purge(PurgeWhat::Facts, 7 * DAY), (1, 0));
    assert_eq!(host.purge(PurgeWhat::Attempts, 7 * DAY), (0, 0));
    assert_eq!(attempts("tried"), 1);
    rig.pass(5 * 24 * HOUR);
    assert_eq!(host.purge(PurgeWhat::Attempts, 7 * DAY), (1, 0));
    assert_eq!((attempts("tried"), attempts("new")), (0, 1));
}

pub fn a_claim_whose_row_was_purged_confirms_nothing(rig: &dyn Rig) {
    let host = Host::of(rig);
    let key = copy_key(&mail("late"), &inbox());
    let late = host.claim(&mail("late"), &inbox());
    let message = host.record(&mail("late"), &[]).message;
    rig.pass(36 * 24 * HOUR);
    assert_eq!(host.purge(PurgeWhat::Messages, DAYS_35), (1, 0));
    let other = host.claim(&mail("other"), &inbox());
    assert!(matches!(host.try_turn(&late, &key), Err(LedgerError::Forgotten)));
    let receipt = uid(1);
    let facts = CopyFacts::default();
    let one = ToConfirm { claim: late, receipt: &receipt, facts, end: None, may_be_lost: false };
    assert!(matches!(host.0.confirm(&one, soon()), Err(LedgerError::Forgotten)));
    host.release(&[late]);
    let claim = host.0.claim(&message, &[inbox()], &attempt("mx1"), LEASE, soon());
    assert!(matches!(claim, Err(LedgerError::Forgotten)), "{claim:?}");
    let kept = host.0.keep_until_due(&message, &sent(), (b"1", "why"), DAY, soon());
    assert!(matches!(kept, Err(LedgerError::Forgotten)), "{kept:?}");
    assert_eq!(host.copies(&ALL).len(), 1, "no row without its message");
    assert_eq!(host.confirm(&other, &uid(2)), Confirmed::Recorded, "it is as it was");
}

/// A server that lost its last commits in a fail-over gives their numbers out again.
pub fn a_number_that_is_another_messages_names_none(rig: &dyn Rig) {
    let host = Host::of(rig);
    let other = host.record(&mail("other"), &[sent()]);
    assert!(host.keep(other.message, b"the other's", "no right"));
    let lost = MessageKey::new(other.message.number, mail("lost").identity());
    let claim = host.0.claim(&lost, &[inbox()], &attempt("mx1"), LEASE, soon());
    assert!(matches!(claim, Err(LedgerError::Forgotten)), "{claim:?}");
    let kept = host.0.keep(&lost, b"the lost one's", "why", soon());
    assert!(matches!(kept, Err(LedgerError::Forgotten)), "{kept:?}");
    let due = host.0.keep_until_due(&lost, &sent(), (b"1", "why"), DAY, soon());
    assert!(matches!(due, Err(LedgerError::Forgotten)), "{due:?}");
    host.finish(&mail("lost"), other.attempt, &AttemptEnd { outcome: "tempfail", ..delivered() });
    assert_eq!(host.trace_one("other@example.org").attempts[0].outcome, None);
    // Nor is it another process's of that message, or of one process for another recipient.
    let lisas = Attempt { recipient: "lisa@gmail.com".to_owned(), ..attempt("mx1") };
    for by in [Attempt { pid: 43, ..attempt("mx1") }, lisas] {
        let late = delivered();
        let own = Some((other.attempt, &by, &late));
        host.0.finish(mail("other").identity(), own, &[], soon()).expect("finish");
        assert_eq!(host.trace_one("other@example.org").attempts[0].outcome, None);
    }
    // Nor is it that of an attempt that recorded none.
    host.note(&mail("nothing"), &[(attempt("mx1"), delivered())]);
    let noted = match other.attempt {
        AttemptKey::Row(number) => number + 1,
        AttemptKey::Copy(_) => 1,
    };
    host.finish(&mail("other"), AttemptKey::Row(noted), &delivered());
    assert_eq!(host.kept(lost), None);
    assert_eq!(host.kept(other.message).as_deref(), Some("no right"));
    assert_eq!(host.kept_bytes(other.message).as_deref(), Some(&b"the other's"[..]));
    assert_eq!(host.copies(&ALL).len(), 1);
}

pub fn a_forgotten_copy_is_free_in_doubt_and_nobodys(rig: &dyn Rig) {
    let host = Host::of(rig);
    let before = host.place(&mail("back"), &inbox(), 1);
    host.place(&mail("back"), &sent(), 2);
    host.place(&mail("other"), &inbox(), 3);
    let id = ForgetWhat::Message("back@example.org");
    let both = [(inbox(), false), (sent(), false)];
    assert_eq!(host.forget(id, true), both);
    let placed = [CopyState::Placed(uid(1)), CopyState::Placed(uid(2))];
    assert_eq!(host.record(&mail("back"), &[inbox(), sent()]).copies, placed, "only told");
    assert_eq!(host.forget(id, false), both);
    let claim = claimed(&host.record(&mail("back"), &[inbox()]).copies[0]);
    assert_eq!((claim.in_doubt, claim.looks_back), (true, true));
    assert_eq!(claim.copy, before.copy);
    assert_ne!(claim.value, before.value);
    assert_eq!(host.record(&mail("other"), &[inbox()]).copies, [CopyState::Placed(uid(3))]);

    // A delivery of before comes late: it confirms nothing, and leaves a doubt.
    let (receipt, facts) = (uid(4), CopyFacts::default());
    let late = ToConfirm { claim: before, receipt: &receipt, facts, end: None, may_be_lost: false };
    assert_eq!(host.confirm(&claim, &uid(5)), Confirmed::Recorded);
    let copy = |host: &Host| {
        let copies = host.copies(&ALL);
        copies.into_iter().find(|one| one.copy == before.copy).expect("the copy")
    };
    let was = copy(&host);
    // Who has read it before it was forgotten changes nothing, and hears so.
    let gone = CopyOnRecord { value: before.value, ..was.clone() };
    assert!(!host.settle(&gone, &uid(5)) && !host.leave_to_sender(&before, None, &uid(6)));
    host.look_again(&gone, None);
    assert!(host.settle(&was, &uid(5)));
    assert!(copy(&host).settled);
    assert!(matches!(host.0.confirm(&late, soon()), Err(LedgerError::Forgotten)));
    let is = copy(&host);
    assert!(!is.settled && is.may_be_double && is.epoch > was.epoch, "{is:?}");
    assert_eq!(host.however_old(), [before.copy], "its row is not of the window");
    assert_eq!(host.record(&mail("back"), &[inbox()]).copies, [CopyState::Placed(uid(5))]);
}

pub fn an_account_has_a_placed_copy_from_its_first_receipt_on_until_it_is_forgotten(rig: &dyn Rig) {
    let host = Host::of(rig);
    assert!(!host.has_placed_copy("doug"), "an empty ledger");
    let both = [inbox(), Destination::inbox("zoe")];
    let claim = claimed(&host.record(&mail("first"), &both).copies[0]);
    assert!(!host.has_placed_copy("doug"), "leased");
    assert_eq!(host.confirm(&claim, &uid(7)), Confirmed::Recorded);
    // One that waits hides none that is placed.
    host.record(&mail("second"), &both);
    for (account, is_placed) in [
        ("doug", true),
        ("zoe", false),
        ("DOUG", false),
        ("dou", false),
        ("", false),
        ("d\0", false),
    ] {
        assert_eq!(host.has_placed_copy(account), is_placed, "{account:?}");
    }
    let shared = host.claim(&mail("third"), &sent());
    assert_eq!(host.confirm(&shared, &Receipt::UNNAMED), Confirmed::Recorded);
    assert!(host.has_placed_copy("lisa"), "a shared one, without a name");
    host.forget(ForgetWhat::Account("doug"), false);
    // Zoe's, of the same messages, stand as they did.
    assert!(!host.has_placed_copy("doug"), "forgotten");
    assert!(host.has_placed_copy("lisa"));
}

pub fn forget_passes_by_what_a_delivery_may_still_write(rig: &dyn Rig) {
    let host = Host::of(rig);
    let claim = host.claim(&mail("leased"), &inbox());
    let key = copy_key(&mail("leased"), &inbox());
    let all = [ForgetWhat::Message("leased@example.org"), ForgetWhat::Account("doug")];
    // While the lease lives, and half an hour after its end.
    for _ in 0..2 {
        for what in all {
            assert_eq!(host.forget(what, false), [(inbox(), true)], "{what:?}");
        }
        rig.pass(HOUR / 2 + 2 * LEASE.lease.as_secs() as i64);
    }
    assert_eq!(host.turn(&claim, &key), OURS, "its row is as it was");
    rig.pass(HOUR);
    assert_eq!(host.forget(all[0], true), [(inbox(), false)], "an hour later it is held for gone");
    assert_eq!(host.forget(all[1], false), [(inbox(), false)]);
    assert!(matches!(host.try_turn(&claim, &key), Err(LedgerError::Forgotten)));
}

pub fn a_copy_that_is_forgotten_before_settle_writes_it_stays_due(rig: &dyn Rig) {
    let host = Host::of(rig);
    let message = host.record(&mail("due"), &[]).message;
    let at = host.keep_until_due(message, &sent(), b"due", Duration::ZERO);
    let id = ForgetWhat::Message("due@example.org");
    assert_eq!(host.forget(id, false), [(sent(), false)]);
    // A delivery that finds it leaves it to settle, which looks for the mail program's own first.
    assert_eq!(host.keep_until_due(message, &sent(), b"due", DAY), at);
    let claim = claimed(&host.claim_due(message, &sent()));
    assert!(claim.in_doubt && claim.looks_back);
    assert_eq!(host.confirm(&claim, &uid(1)), Confirmed::Recorded);
    // Once it is placed, what is forgotten is a copy like any other.
    assert_eq!(host.forget(id, false), [(sent(), false)]);
    let again = host.record(&mail("due"), &[sent()]);
    assert_eq!(looks_back(&again.copies[0]), (true, true));
}

pub fn what_an_attempt_said_stays_when_its_copy_is_forgotten(rig: &dyn Rig) {
    let host = Host::of(rig);
    let place = |number: u32| {
        let recorded = host.record(&mail("said"), &[inbox()]);
        let claim = claimed(&recorded.copies[0]);
        let text = format!("stored account=doug mailbox=INBOX uid={number}");
        let end = (recorded.attempt, &AttemptEnd { text, ..delivered() });
        let facts = CopyFacts::default();
        let confirmed = host.confirm_with(&claim, &uid(number), facts, Some(end));
        assert_eq!(confirmed, Confirmed::Recorded);
    };
    let said = |number: u32| {
        let text = format!("stored account=doug mailbox=INBOX uid={number}");
        (Some("delivered".to_owned()), Some("2.0.0".to_owned()), Some(text), Some(7))
    };
    let ends = || -> Vec<_> {
        let attempts = host.trace_one("said@example.org").attempts.into_iter();
        attempts.map(|one| (one.outcome, one.status, one.text, one.duration_ms)).collect()
    };
    place(1);
    assert_eq!(ends(), [said(1)]);
    let failed = TraceFilter { failed: true, ..TraceFilter::of("said@example.org") };
    assert!(host.traces(&failed, 10).is_empty());
    host.forget(ForgetWhat::Message("said@example.org"), false);
    assert_eq!(ends(), [said(1)]);
    place(2);
    assert_eq!(ends(), [said(1), said(2)]);
}

pub fn a_forgotten_copy_says_whether_its_bytes_are_on_record(rig: &dyn Rig) {
    let host = Host::of(rig);
    for (name, raw) in [("with", Some(b"x".as_slice())), ("without", None)] {
        let (mail, facts) = (mail(name), mail(name).facts());
        let entry = Entry { raw, ..entry(mail.identity(), &facts) };
        let recorded = host.record_entry(&entry, &attempt("mx1"), &[inbox()], LEASE);
        let claim = claimed(&recorded.copies[0]);
        assert_eq!(host.confirm(&claim, &uid(1)), Confirmed::Recorded);
        let what = format!("{name}@example.org");
        let how = BatchTerms { limit: 9, dry_run: true };
        let told = host.0.forget(ForgetWhat::Message(&what), 0, how, soon()).expect("an answer");
        let has_raw: Vec<_> = told.copies.iter().map(|one| one.has_raw).collect();
        assert_eq!(has_raw, [raw.is_some()], "{name}");
    }
}

pub fn what_was_placed_since_a_time_is_forgotten(rig: &dyn Rig) {
    let host = Host::of(rig);
    for n in 1..=3 {
        host.place(&mail(&format!("before{n}")), &inbox(), n);
    }
    rig.pass(24 * HOUR);
    for n in 4..=6 {
        host.place(&mail(&format!("after{n}")), &inbox(), n);
    }
    let leased = host.claim(&mail("leased"), &inbox());
    let restored = now(&host) - DAY / 2;
    assert_eq!(host.forget(ForgetWhat::Since(restored), false).len(), 3);
    for n in 1..=3 {
        let state = host.record(&mail(&format!("before{n}")), &[inbox()]).copies;
        assert_eq!(state, [CopyState::Placed(uid(n))]);
        let state = host.record(&mail(&format!("after{}", n + 3)), &[inbox()]).copies;
        assert_eq!(looks_back(&state[0]), (true, true));
    }
    assert_eq!(host.confirm(&leased, &uid(7)), Confirmed::Recorded);
    let again = host.forget(ForgetWhat::Message("<leased@example.org>"), false);
    assert_eq!(again, [(inbox(), false)]);
    let _ = host.claim(&mail("leased"), &inbox());
    let live = host.forget(ForgetWhat::Message("leased@example.org"), false);
    assert_eq!(live, [(inbox(), true)], "its holder may still write");
}

/// Its copy belongs to the row of that place, which is forgotten: with both there would be two.
pub fn what_stands_elsewhere_is_forgotten_there_alone(rig: &dyn Rig) {
    let host = Host::of(rig);
    let lists = Destination { mailbox: "lists".to_owned(), ..inbox() };
    let lists = std::slice::from_ref(&lists);
    let recorded = host.record(&mail("filed"), lists);
    let elsewhere = Receipt::elsewhere("INBOX");
    assert_eq!(host.confirm(&claimed(&recorded.copies[0]), &elsewhere), Confirmed::Recorded);
    host.place(&mail("filed"), &inbox(), 1);
    let since = now(&host) - DAY;
    for what in [ForgetWhat::Since(since), ForgetWhat::Message("filed@example.org")] {
        assert_eq!(host.forget(what, false), [(inbox(), false)], "{what:?}");
        let again = host.record(&mail("filed"), lists).copies;
        assert_eq!(again, [CopyState::Placed(elsewhere.clone())], "{what:?}");
        host.place(&mail("filed"), &inbox(), 1);
    }
    let all = host.forget(ForgetWhat::Account("doug"), true);
    assert_eq!(all.len(), 2, "{all:?}");
}

pub fn what_anothers_sent_still_needs_is_passed_by_until_it_is_settled(rig: &dyn Rig) {
    let host = Host::of(rig);
    let doug = ForgetWhat::Account("doug");
    let (due, passed, gone) = (mail("due"), vec![(inbox(), true)], vec![(inbox(), false)]);
    host.place(&due, &inbox(), 1);
    let message = host.record(&due, &[]).message;
    host.keep_until_due(message, &sent(), b"x", Duration::ZERO);
    let id = || host.trace_one("due@example.org").message_id;
    for dry_run in [true, false] {
        assert_eq!(host.forget(doug, dry_run), passed, "due");
        assert_eq!(id().as_deref(), Some("<due@example.org>"));
    }
    // It is placed, and its mailbox is watched for the sender's own copy.
    let claim = claimed(&host.claim_due(message, &sent()));
    assert_eq!(host.confirm(&claim, &uid(2)), Confirmed::Recorded);
    let watched = host.watched();
    assert_eq!(watched.len(), 1);
    assert_eq!(host.forget(doug, false), passed, "watched");
    host.look_again(&watched[0], None);
    // To let it in again by name or by time needs no Message-ID.
    let how = BatchTerms { limit: 9, dry_run: true };
    let named = host.0.forget(ForgetWhat::Message("due@example.org"), 0, how, soon());
    assert!(named.expect("an answer").copies.iter().all(|one| one.passed_by.is_none()));
    assert_eq!(host.forget(doug, false), gone, "settled");
    assert_eq!(host.trace("due@example.org")[0].message_id, None);
    // What the account's own Sent waits for goes with the account.
    let own = mail("own");
    host.place(&own, &inbox(), 3);
    let message = host.record(&own, &[]).message;
    let of_doug = Destination::sent("doug", "Sent");
    host.keep_until_due(message, &of_doug, b"x", Duration::ZERO);
    assert_eq!(host.forget(doug, false), [(inbox(), false), (of_doug, false)]);
    assert_eq!(host.kept(message), None);
}

pub fn an_account_is_erased_but_for_hashes_and_times(rig: &dyn Rig) {
    let host = Host::of(rig);
    let (doug, zoe) = (inbox(), Destination::inbox("zoe"));
    host.place(&mail("both"), &doug, 1);
    host.place(&mail("both"), &zoe, 2);
    host.place(&mail("hers"), &zoe, 3);
    host.claim(&mail("leased"), &doug);
    host.place(&mail("hers first"), &zoe, 4);
    host.place(&mail("hers first"), &doug, 5);
    let told = [(doug.clone(), false), (doug.clone(), true), (doug.clone(), false)];
    assert_eq!(host.forget(ForgetWhat::Account("doug"), true), told);
    assert_eq!(host.forget(ForgetWhat::Account("doug"), false), told);
    for name in ["both@example.org", "hers first@example.org"] {
        assert!(host.trace(name).iter().all(|trace| {
            trace.subject.is_none()
                && trace.message_id.is_none()
                && trace.addresses.is_empty()
                && trace.attempts.is_empty()
                && trace.copies.iter().all(|copy| copy.account == "zoe")
        }));
    }
    assert_eq!(host.trace_one("hers@example.org").subject.as_deref(), Some("hers"));
    // It comes again: his copy may stand in his mailbox, hers is on record.
    let again = host.record(&mail("both"), &[doug, zoe]);
    assert!(!again.is_new);
    assert_eq!(looks_back(&again.copies[0]), (true, true));
    assert_eq!(again.copies[1], CopyState::Placed(uid(2)));
}

pub fn a_purge_beside_records_of_the_same_messages_loses_no_doubt(rig: &dyn Rig) {
    let host = Host::of(rig);
    rig.remember_since(now(&host) - 400 * DAY);
    let names: Vec<String> = (0..12).map(|n| format!("race{n}")).collect();
    for (number, name) in (1..).zip(&names) {
        host.place(&mail(name), &inbox(), number);
    }
    rig.pass(36 * 24 * HOUR);
    let old = host.copies(&ALL)[0].recorded_at;
    // Four that record each message, and two that purge.
    let came = at_once(6, |n| {
        let host = Host::of(rig);
        if n >= 4 {
            host.purge(PurgeWhat::Messages, DAYS_35);
            return Vec::new();
        }
        let record = |name: &String| {
            let (mail, facts) = (mail(name), mail(name).facts());
            let entry = Entry { oldest: Some(old), ..entry(mail.identity(), &facts) };
            loop {
                let destinations = &[inbox()];
                let recorded = host.0.record(&entry, &attempt("mx1"), destinations, LEASE, soon());
                match recorded {
                    Ok(recorded) => return recorded.copies[0].clone(),
                    Err(LedgerError::Contended) => thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        };
        names.iter().rev().map(record).collect()
    });
    for (n, name) in names.iter().rev().enumerate() {
        let number = names.iter().position(|one| one == name).expect("a name") as u32 + 1;
        for states in came.iter().filter(|states| !states.is_empty()) {
            match &states[n] {
                CopyState::Placed(receipt) => assert_eq!(*receipt, uid(number)),
                CopyState::Claimed(claim) => {
                    assert!(claim.in_doubt && claim.looks_back, "{name}: {claim:?}");
                }
                CopyState::Busy => {}
            }
        }
    }
    let copies = host.copies(&ALL);
    let messages: Vec<i64> = copies.iter().map(|copy| copy.message).collect();
    let traced =
        host.traces(&TraceFilter { since: Some(UNIX_EPOCH), ..TraceFilter::default() }, 100);
    assert!(messages.iter().all(|one| traced.iter().any(|trace| trace.message == *one)));
}

pub fn the_end_of_a_purge_is_on_record(rig: &dyn Rig) {
    let host = Host::of(rig);
    let born = now(&host) - 10 * DAY;
    rig.remember_since(born);
    let is = host.0.remembered(soon()).expect("remembered");
    assert_eq!((is.since, is.purged_ago), (Some(born), None));
    assert!(is.since_ago > 9 * DAY && is.since_ago < 11 * DAY, "{is:?}");
    host.0.note_purge(soon()).expect("noted");
    let is = host.0.remembered(soon()).expect("remembered");
    assert!(is.purged_ago.is_some_and(|ago| ago < DAY), "{is:?}");
}
