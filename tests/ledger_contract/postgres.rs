//! What Postgres promises besides: other schemas, other programs, calls that share a session.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use onedrop::ledger::{
    BatchTerms, LockClaim, LockHolder, LockRequest, LockTry, PurgeWhat, RandomValue,
};

use super::rigs::NO_FUNCTIONS;
use super::support::wait_until;
use super::*;

/// Another program's session.
fn another_client(rig: &PostgresRig) -> ::postgres::Client {
    let url = rig.postgres.url_socket();
    ::postgres::Client::connect(&url, ::postgres::NoTls).expect("a session")
}

#[test]
fn a_ledger_without_the_functions_is_of_an_older_version_or_says_what_it_lacks() {
    let rig = PostgresRig::shared();
    let host = Host::of(&rig);
    rig.sql(NO_FUNCTIONS);
    let refused = host.try_record(&mail("no function"), &[inbox()], LEASE);
    assert!(
        matches!(&refused, Err(LedgerError::Refused(why)) if why.contains("onedrop_record")),
        "{refused:?}"
    );
    rig.sql("UPDATE onedrop_ledger SET version = 2");
    let refused = host.try_record(&mail("no function"), &[inbox()], LEASE);
    assert!(matches!(refused, Err(LedgerError::Version(seen)) if seen.found == 2), "{refused:?}");
}

/// Rows were restored, and their sequences were not.
#[test]
fn a_number_that_is_given_out_twice_is_named() {
    let rig = PostgresRig::shared();
    let host = Host::of(&rig);
    let first = host.record(&mail("first"), &[inbox()]);
    let is_named = |key: &str, error: Option<LedgerError>| {
        let says = |why: &str| why.contains("sequence") && why.contains(key);
        assert!(matches!(&error, Some(LedgerError::Refused(why)) if says(why)), "{error:?}");
    };
    host.record(&mail("first"), &[inbox()]);
    rig.sql("ALTER SEQUENCE onedrop_attempt_id_seq RESTART");
    let again = host.try_record(&mail("first"), &[inbox()], LEASE);
    is_named("onedrop_attempt_pkey", again.err());
    rig.sql("ALTER SEQUENCE onedrop_copy_id_seq RESTART");
    let claimed = host.0.claim(&first.message, &[sent()], &attempt("mx2"), LEASE, soon());
    is_named("onedrop_copy_pkey", claimed.err());
}

/// Another C library may sort a language's texts in another order than an index has them.
#[test]
fn keys_and_indexes_go_by_bytes() {
    let rig = PostgresRig::shared();
    let by_language = rig.postgres.psql(
        "SELECT DISTINCT i.indexrelid::regclass FROM pg_index i, unnest(i.indcollation) one
             JOIN pg_collation c ON c.oid = one
         WHERE i.indrelid::regclass::text LIKE 'onedrop%' AND c.collname <> 'C'",
    );
    assert_eq!(by_language, "");
}

/// An answer of the server is bounded, by TCP; a message is as long as the site lets it be.
#[test]
fn bytes_longer_than_an_answer_are_read() {
    let rig = PostgresRig::shared();
    let (host, mail) = (Host::of(&rig), mail("long"));
    let bytes: Vec<u8> = (0..17_u32 << 20).map(|at| (at ^ at >> 11) as u8).collect();
    let facts = mail.facts();
    let entry = Entry { raw: Some(&bytes), ..entry(mail.identity(), &facts) };
    let recorded = host.record_entry(&entry, &attempt("mx1"), &[inbox(), sent()], LEASE);
    assert!(host.keep(recorded.message, &bytes, "no right"));
    assert!(host.kept_bytes(recorded.message).is_some_and(|kept| kept == bytes));
    let raw = host.0.next_raw(SystemTime::UNIX_EPOCH, 0, soon()).expect("an answer");
    assert!(raw.is_some_and(|raw| raw.bytes == bytes && raw.copies.len() == 2));
}

/// A purge of facts that waits for a message says nothing of those that grew old meanwhile.
#[test]
fn facts_that_grow_old_during_a_purge_go_with_the_next_one() {
    let rig = PostgresRig::shared();
    let host = Host::of(&rig);
    for name in ["old", "young"] {
        host.record(&mail(name), &[inbox()]);
    }
    let age = |name: &str, secs: u32| {
        rig.sql(&format!(
            "UPDATE onedrop_message SET recorded_at = now() - {secs} * interval '1 second'
             WHERE subject = '{name}'"
        ))
    };
    age("old", 3600);
    age("young", 94);
    let mut another = another_client(&rig);
    let mut holds = another.transaction().expect("a transaction");
    holds
        .execute("SELECT FROM onedrop_message ORDER BY id LIMIT 1 FOR UPDATE", &[])
        .expect("its row");
    let (how, age) = (BatchTerms { limit: 100, dry_run: false }, Duration::from_secs(100));
    let purge = || host.0.purge(PurgeWhat::Facts, age, None, how, soon()).expect("a purge");
    thread::scope(|scope| {
        let first = scope.spawn(purge);
        let is_old = "SELECT count(*) = 2 FROM onedrop_message
                      WHERE recorded_at < clock_timestamp() - interval '101 seconds'";
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity
                     WHERE datname = current_database() AND wait_event_type = 'Lock'";
        for condition in [waits, is_old] {
            let holds = || rig.postgres.psql(condition) == "t";
            assert!(wait_until(Duration::from_secs(60), holds), "{condition}");
        }
        holds.rollback().expect("given back");
        assert_eq!(first.join().expect("no panic").gone, 1);
    });
    assert_eq!(purge().gone, 1);
    assert_eq!(purge().gone, 0);
}

/// Whether one session of the database waits for a lock.
fn waits(rig: &PostgresRig) -> bool {
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    rig.postgres.psql(waiting) == "1"
}

#[test]
fn only_an_attempt_that_says_more_than_its_receipt_gets_a_row() {
    let rig = PostgresRig::shared();
    let host = Host::of(&rig);
    for (name, receipt, text, rows) in [
        ("stored", uid(1), "stored account=doug mailbox=INBOX uid=1", "0"),
        ("handed", Receipt::handed("q1"), "handed over account=doug lmtp=q1", "0"),
        ("found", uid(2), "found account=doug mailbox=INBOX uid=2", "1"),
    ] {
        let recorded = host.record(&mail(name), &[inbox()]);
        let end = AttemptEnd { text: text.to_owned(), ..delivered() };
        let end = Some((recorded.attempt, &end));
        let claim = claimed(&recorded.copies[0]);
        let confirmed = host.confirm_with(&claim, &receipt, CopyFacts::default(), end);
        assert_eq!(confirmed, Confirmed::Recorded);
        assert_eq!(rig.postgres.psql("SELECT count(*) FROM onedrop_attempt"), rows, "{name}");
        let told = "SELECT detail FROM onedrop_attempt_text ORDER BY started_at DESC LIMIT 1";
        assert_eq!(rig.postgres.psql(told), text);
    }
}

/// An attempt that says more than the receipt takes the general path: the turn lasts until both are
/// on record.
#[test]
fn a_turn_is_kept_until_its_receipt_is_on_record_whatever_the_attempt_says() {
    let rig = PostgresRig::shared();
    let (host, other, mail) = (Host::of(&rig), Host::of(&rig), mail("found"));
    let recorded = host.record(&mail, &[inbox()]);
    let (claim, key) = (claimed(&recorded.copies[0]), copy_key(&mail, &inbox()));
    let receipt = uid(1);
    let end = AttemptEnd { text: format!("found {} {receipt}", inbox()), ..delivered() };
    let (facts, end) = (CopyFacts::default(), Some((recorded.attempt, &end)));
    let one = ToConfirm { claim, receipt: &receipt, facts, end, may_be_lost: false };
    let mut blocker = another_client(&rig);
    let mut holds = blocker.transaction().expect("a transaction");
    let both = Barrier::new(2);
    thread::scope(|scope| {
        let confirming = scope.spawn(|| {
            let turn = host.turn(&claim, &key);
            assert_eq!(turn, OURS);
            both.wait();
            both.wait();
            turn.try_confirm_of(&one, soon())
        });
        both.wait();
        holds.execute("SELECT FROM onedrop_copy FOR UPDATE", &[]).expect("its row");
        both.wait();
        assert!(wait_until(Duration::from_secs(10), || waits(&rig)), "it waits for the row");
        assert!(matches!(other.try_turn(&claim, &key), Err(LedgerError::Contended)));
        holds.rollback().expect("the end of it");
        let confirmed = confirming.join().expect("no panic").expect("confirm");
        assert_eq!(confirmed, Confirmed::Recorded);
    });
    let turn = other.turn_when_free(&claim, &key);
    assert_eq!(turn, TurnState::Placed(receipt.clone()));
}

/// The record sees the time since when the ledger remembers as it was before the purge, but finds
/// by the unique key that the message is gone.
#[test]
fn a_message_that_is_purged_while_it_is_recorded_is_claimed_in_doubt() {
    const DAY: Duration = Duration::from_secs(86_400);
    let rig = &PostgresRig::shared();
    let host = Host::of(rig);
    let (purged, facts) = (mail("purged"), Facts::default());
    // It has been in a queue for long; a purge takes out what is older than 35 days.
    let oldest = Some(SystemTime::now() - 40 * DAY);
    let entry = Entry { oldest, ..entry(purged.identity(), &facts) };
    host.record_entry(&entry, &attempt("mx1"), &[inbox()], LEASE);
    rig.expire_leases();
    rig.sql("UPDATE onedrop_message SET recorded_at = recorded_at - interval '40 days'");
    let mut purger = another_client(rig);
    let mut purge = purger.transaction().expect("a transaction");
    purge
        .batch_execute(
            "DELETE FROM onedrop_message;
             UPDATE onedrop_ledger SET remembers_since = now() - interval '35 days'",
        )
        .expect("a purge before its commit");
    let again = thread::scope(|scope| {
        let recording = scope.spawn(|| {
            let other = Host::of(rig);
            other.record_entry(&entry, &attempt("mx2"), &[inbox()], LEASE)
        });
        assert!(wait_until(Duration::from_secs(10), || waits(rig)), "it waits for the purge");
        purge.commit().expect("the end of the purge");
        recording.join().expect("no panic")
    });
    assert!(again.is_new);
    let claim = claimed(&again.copies[0]);
    assert_eq!((claim.in_doubt, claim.looks_back), (true, true));
}

/// The slot was seen to be free, and its lease is another's before ours is written.
#[test]
fn a_lease_that_another_took_in_between_is_its_own() {
    let rig = PostgresRig::shared();
    let (host, lock) = (Host::of(&rig), "lock".parse().expect("a name"));
    let claim = host.lock(&lock, &[1]);
    assert!(host.gives_back(&claim));
    let mut other = another_client(&rig);
    let mut taking = other.transaction().expect("a transaction");
    taking
        .execute(
            "UPDATE onedrop_lock_lease SET epoch = epoch + 1,
                 lease_until = clock_timestamp() + interval '1 hour'",
            &[],
        )
        .expect("another's lease before its commit");
    let answer = thread::scope(|scope| {
        let trying = scope.spawn(|| host.try_lock(&lock, &[1]));
        assert!(wait_until(Duration::from_secs(10), || waits(&rig)), "it waits for the lease");
        taking.commit().expect("another's lease");
        trying.join().expect("no panic")
    });
    assert!(matches!(answer, LockTry::Busy(_)), "{answer:?}");
}

/// A purge locks a message, then deletes its attempts: a delivery whose attempts end must not hold
/// one of them while it waits for the message.
#[test]
fn the_end_of_attempts_and_a_purge_of_their_message_do_not_wait_for_each_other() {
    let rig = PostgresRig::shared();
    let (host, mail) = (Host::of(&rig), mail("both"));
    let recorded = host.record(&mail, &[inbox()]);
    let mut purger = another_client(&rig);
    let mut purge = purger.transaction().expect("a transaction");
    purge.execute("SELECT FROM onedrop_message FOR UPDATE", &[]).expect("its row");
    thread::scope(|scope| {
        let ending = scope.spawn(|| {
            let (end, others) = (delivered(), [(attempt("mx2"), delivered())]);
            let by = attempt("mx1");
            let own = Some((recorded.attempt, &by, &end));
            host.0.finish(mail.identity(), own, &others, soon())
        });
        assert!(wait_until(Duration::from_secs(10), || waits(&rig)), "it waits for the purge");
        purge.execute("DELETE FROM onedrop_message", &[]).expect("with its attempts");
        purge.commit().expect("the end of the purge");
        ending.join().expect("no panic").expect("the end of the attempts");
    });
    assert_eq!(rig.postgres.psql("SELECT count(*) FROM onedrop_attempt"), "1", "the other's");
}

/// Alone it takes the rest along only with CASCADE, because of foreign keys.
#[test]
fn messages_that_are_truncated_take_everything_along() {
    for truncate in [
        "TRUNCATE onedrop_message CASCADE",
        "TRUNCATE onedrop_message, onedrop_copy, onedrop_unsettled, onedrop_attempt, onedrop_kept",
    ] {
        let rig = PostgresRig::shared();
        let host = Host::of(&rig);
        host.record(&mail("first"), &[inbox()]);
        rig.sql(truncate);
        let rows =
            "SELECT (SELECT count(*) FROM onedrop_address) + (SELECT count(*) FROM onedrop_part)
                    + (SELECT count(*) FROM onedrop_copy) + (SELECT count(*) FROM onedrop_attempt)";
        assert_eq!(rig.postgres.psql(rows), "0", "{truncate}");
        assert!(host.record(&mail("first"), &[inbox()]).is_new);
    }
}

/// A role that may delete messages need not be allowed to delete what belongs to them; and it gets
/// no more rights by that.
#[test]
fn messages_are_taken_out_by_a_role_that_may_take_out_messages() {
    let rig = PostgresRig::shared();
    let host = Host::of(&rig);
    host.record(&mail("first"), &[inbox()]);
    let cleaner = onedrop_kit::shared::unique_name();
    rig.sql(&format!(
        "CREATE ROLE {cleaner}; GRANT SELECT, DELETE ON onedrop_message TO {cleaner};
         SET ROLE {cleaner}; DELETE FROM onedrop_message; RESET ROLE;",
    ));
    assert_eq!(rig.postgres.psql("SELECT count(*) FROM onedrop_address"), "0");
    rig.sql(&format!(
        "SET ROLE {cleaner};
         CREATE TEMP TABLE own (id bigint);
         DO $$ BEGIN
             CREATE TRIGGER own AFTER DELETE ON own REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
                 EXECUTE FUNCTION onedrop_message_gone();
             RAISE EXCEPTION 'a trigger with its owner''s rights';
         EXCEPTION WHEN insufficient_privilege THEN NULL; END $$;",
    ));
}

/// A server whose own transactions see the past: a row re-read under a lock would be that of before
/// the lock.
#[test]
fn a_server_whose_default_is_another_isolation_level_works_the_same() {
    let rig = PostgresRig::shared_by_default();
    let isolation = "default_transaction_isolation = 'repeatable read'";
    rig.sql(&format!("ALTER DATABASE {} SET {isolation}", rig.postgres.database()));
    let host = Host::of(&rig);
    let first = host.record(&mail("isolated"), &[inbox()]);
    assert!(first.is_new);
    let again = Host::of(&rig).record(&mail("isolated"), &[inbox()]);
    assert_eq!((again.message, again.copies.as_slice()), (first.message, &[CopyState::Busy][..]));
    company::messages_recorded_at_once_are_each_what_they_would_be_alone(&rig);
}

/// Of calls that share a transaction, one that has to wait for a row's lock fails all of them
/// before long; then it waits alone.
#[test]
fn a_call_that_has_to_wait_for_a_lock_waits_alone() {
    const MANY: usize = 8;
    const STEP: Duration = Duration::from_millis(10);
    let rig = PostgresRig::shared();
    rig.slow_commits();
    let host = Host::of(&rig);
    let mut other = another_client(&rig);
    for round in 0..10 {
        let claim = host.claim(&mail(&format!("locked{round}")), &inbox());
        let mut lock = other.transaction().expect("a transaction");
        lock.execute("SELECT FROM onedrop_copy WHERE id = $1 FOR UPDATE", &[&claim.copy])
            .expect("the row");
        let (done, ended) = channel();
        let took: Vec<Duration> = thread::scope(|scope| {
            for n in 0..MANY {
                let (host, done) = (&host, done.clone());
                scope.spawn(move || {
                    let began = Instant::now();
                    // The server says that a group failed a moment before it frees the locks of it.
                    let is_done = loop {
                        let result = if n == 3 {
                            let (receipt, facts) = (&uid(1), CopyFacts::default());
                            let one =
                                ToConfirm { claim, receipt, facts, end: None, may_be_lost: false };
                            host.0.confirm(&one, soon()).map(|one| one == Confirmed::Recorded)
                        } else {
                            let one = mail(&format!("m{round}-{n}"));
                            host.try_record(&one, &[inbox()], LEASE).map(|one| one.is_new)
                        };
                        match result {
                            Err(LedgerError::Contended) => thread::sleep(STEP),
                            result => break result.expect("an answer"),
                        }
                    };
                    done.send((n, began.elapsed(), is_done)).expect("the test waits");
                });
            }
            let others = ended.iter().take(MANY - 1).map(|(n, took, is_done)| {
                assert!(n != 3 && is_done, "{n} in {took:?}");
                assert!(took < Duration::from_secs(20), "and not until its time is over");
                took
            });
            let took = others.collect();
            assert!(ended.try_recv().is_err(), "the one that is locked waits on");
            lock.rollback().expect("rollback");
            let (n, _, is_done) = ended.recv().expect("the last one");
            assert_eq!((n, is_done), (3, true));
            took
        });
        // Alone none of the others has to wait that long.
        if took.iter().any(|took| *took >= Duration::from_secs(2)) {
            return;
        }
    }
    panic!("the locked one never went with others");
}

#[test]
fn calls_whose_shared_session_is_lost_are_each_made_again() {
    const MANY: usize = 12;
    let rig = PostgresRig::shared();
    let host = Host::of(&rig);
    let mails: Vec<Message> = (0..MANY).map(|n| mail(&format!("m{n}"))).collect();
    // Connections that are kept, so that calls alone are made again as well.
    at_once(MANY, |_| host.has_placed_copy("doug"));
    let (_, kept) = host.0.count();
    let mut other = another_client(&rig);
    let mut lock = other.transaction().expect("a transaction");
    lock.execute("LOCK TABLE onedrop_message IN EXCLUSIVE MODE", &[]).expect("the table");
    let waiting = || {
        let waits = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND wait_event_type = 'Lock'";
        rig.postgres.psql(waits).parse::<usize>().expect("a number")
    };
    let recorded = thread::scope(|scope| {
        let recorded =
            scope.spawn(|| at_once(MANY, |n| host.try_record(&mails[n], &[inbox()], LEASE)));
        assert!(wait_until(Duration::from_secs(20), || waiting() >= 2.min(kept)));
        rig.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        );
        lock.rollback().expect("rollback");
        recorded.join().expect("no panic")
    });
    for (n, mut recorded) in recorded.into_iter().enumerate() {
        // A backend that ends says so before it has given up its locks: a call that is made again
        // at once may find the lock of its first try, and has recorded nothing.
        while matches!(recorded, Err(LedgerError::Contended)) {
            recorded = host.try_record(&mails[n], &[inbox()], LEASE);
        }
        let recorded = recorded.unwrap_or_else(|error| panic!("{n}: {error}"));
        assert!(matches!(recorded.copies[..], [CopyState::Claimed(claim)] if claim.epoch == 1));
        let trace = host.trace_one(&format!("m{n}@example.org"));
        assert_eq!(trace.message, recorded.message.number);
    }
}

/// Whether a waiter of this ledger hears of the end of a lock that another session holds: then,
/// and not before.
fn hears_of_an_end(rig: &PostgresRig, ends: impl FnOnce(&Host, &LockClaim)) -> bool {
    let (holder, waiter, lock) = (Host::of(rig), Host::of(rig), "nightly".parse().expect("a name"));
    let claim = holder.lock(&lock, &[1]);
    let request = LockRequest {
        name: &lock,
        slots: &[1],
        owner: RandomValue::default(),
        lease: LEASE.lease,
        holder: &LockHolder::default(),
        waiting: Some(0),
    };
    let asks = || waiter.0.take_lock(&request, soon()).expect("an answer");
    assert!(matches!(asks(), LockTry::Busy(_)));
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let waits = || waiter.0.wait_for_release(&lock, &[ours.as_fd()], soon());
    if !waits() {
        return false;
    }
    thread::scope(|scope| {
        let (say, heard) = std::sync::mpsc::channel();
        scope.spawn(move || say.send(waits()));
        let early = heard.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "it heard something, and nothing was said");
        ends(&holder, &claim);
        let word = heard.recv_timeout(Duration::from_secs(60));
        // One that waits for ever would keep the test from its end.
        drop(theirs);
        assert_eq!(word, Ok(true));
    });
    assert!(matches!(asks(), LockTry::Taken { .. }));
    true
}

#[test]
fn a_waiter_hears_that_a_lock_was_given_back_or_stolen_where_it_can() {
    let gives_back = |host: &Host, claim: &LockClaim| assert!(host.gives_back(claim));
    let is_robbed = |host: &Host, claim: &LockClaim| {
        let value = RandomValue::default();
        assert!(host.steal(&claim.name, true, value).is_some());
    };
    assert!(hears_of_an_end(&PostgresRig::shared(), gives_back));
    assert!(hears_of_an_end(&PostgresRig::shared(), is_robbed));
    assert!(!hears_of_an_end(&PostgresRig::pooled(), gives_back));
    let older = PostgresRig::shared();
    older.sql("DROP FUNCTION onedrop_lock_free CASCADE");
    assert!(!hears_of_an_end(&older, gives_back), "of version 10");
}
