//! What MariaDB promises besides: servers that may keep no ledger, logins, records in one round
//! trip, commits without an answer, a server that says what it should not.

use onedrop::ledger::{BatchTerms, LockHolder, LockRequest, LockTry, PurgeWhat, RandomValue};
use onedrop::lock_name::LockName;
use onedrop_core::deadline::UNACKNOWLEDGED;

use super::failing::Failing;
use super::handles::{Prepared, calls};
use super::support::directory;
use super::support::mariadb::Mariadb;
use super::support::proxy::{Fault, Stage};
use super::*;

fn ledger(mariadb: &Mariadb, url: &str, password: Option<&str>) -> Host {
    use onedrop::ledger::mariadb::{MariadbLedger, MariadbSettings, MysqlUrl};
    let url = MysqlUrl::parse(url).expect("a URL");
    let settings = MariadbSettings { url, password: password.map(Into::into), ca_file: None };
    let ledger = MariadbLedger::new(settings, limits(2)).expect("a ledger");
    // The server must live as long.
    assert!(mariadb.socket().exists());
    Host(Arc::new(ledger))
}

#[test]
fn a_server_that_may_lose_a_commit_or_takes_none_keeps_no_ledger() {
    let mut mariadb = Mariadb::start_with(&["--log-bin=log", "--sync-binlog=1"]);
    let url = mariadb.url_socket();
    let host = |mariadb: &Mariadb| ledger(mariadb, &url, Some(mariadb.password()));
    let fits = host(&mariadb);
    fits.migrate().expect("migrate");
    fits.record(&mail("first"), &[inbox()]);
    for (set, back, why) in [
        ("innodb_flush_log_at_trx_commit = 2", "innodb_flush_log_at_trx_commit = 1", "is 2"),
        ("innodb_flush_log_at_trx_commit = 0", "innodb_flush_log_at_trx_commit = 1", "is 0"),
        ("sync_binlog = 0", "sync_binlog = 1", "sync_binlog is 0"),
        ("binlog_format = STATEMENT", "binlog_format = MIXED", "STATEMENT"),
    ] {
        mariadb.sql(&format!("SET GLOBAL {set}"));
        let refused = host(&mariadb).0.schema_version(soon());
        let says = |text: &str| text.contains("cannot keep a ledger") && text.contains(why);
        assert!(matches!(&refused, Err(LedgerError::Refused(text)) if says(text)), "{refused:?}");
        let refused = host(&mariadb).try_record(&mail("second"), &[inbox()], LEASE);
        assert!(matches!(&refused, Err(LedgerError::Refused(text)) if says(text)), "{refused:?}");
        mariadb.sql(&format!("SET GLOBAL {back}"));
        assert_eq!(host(&mariadb).schema_version(), SCHEMA_VERSION, "{set}");
    }
    mariadb.sql("SET GLOBAL read_only = 1");
    for refused in [
        host(&mariadb).0.schema_version(soon()).map(drop),
        host(&mariadb).try_record(&mail("second"), &[inbox()], LEASE).map(drop),
    ] {
        assert!(matches!(&refused, Err(LedgerError::Unavailable(_))), "{refused:?}");
    }
    mariadb.sql("SET GLOBAL read_only = 0; ALTER TABLE onedrop_slot ENGINE = MyISAM");
    let refused = host(&mariadb).0.schema_version(soon());
    let says = |text: &str| text.contains("onedrop_slot (MyISAM)");
    assert!(matches!(&refused, Err(LedgerError::Refused(text)) if says(text)), "{refused:?}");
    mariadb.sql("ALTER TABLE onedrop_slot ENGINE = InnoDB; ALTER DATABASE CHARACTER SET latin1");
    let refused = host(&mariadb).0.schema_version(soon());
    let says = |text: &str| text.contains("latin1: ALTER DATABASE `onedrop` CHARACTER SET utf8mb4");
    assert!(matches!(&refused, Err(LedgerError::Refused(text)) if says(text)), "{refused:?}");
    mariadb.sql("ALTER DATABASE CHARACTER SET utf8mb4");
    assert_eq!(host(&mariadb).schema_version(), SCHEMA_VERSION);
    // What was committed is there after a crash of the server.
    mariadb.restart();
    assert!(!host(&mariadb).record(&mail("first"), &[inbox()]).is_new);
}

/// `div_precision_increment` is a setting of the server, by which a quotient of times is rounded.
#[test]
fn a_lock_of_less_than_a_second_excludes_others_however_quotients_are_rounded() {
    let mariadb = Mariadb::start_with(&["--div-precision-increment=0"]);
    let host = ledger(&mariadb, &mariadb.url_socket(), Some(mariadb.password()));
    host.migrate().expect("migrate");
    let holder = LockHolder::default();
    let take = |name: &LockName| {
        let request = LockRequest {
            name,
            slots: &[1],
            owner: RandomValue::default(),
            lease: Duration::from_millis(450),
            holder: &holder,
            waiting: None,
        };
        host.0.take_lock(&request, soon()).expect("an answer")
    };
    // On a busy machine a lease may be over before it is asked for.
    let is_kept = (0..20).any(|n| {
        let name = format!("short{n}").parse().expect("a name");
        matches!((take(&name), take(&name)), (LockTry::Taken { .. }, LockTry::Busy(_)))
    });
    assert!(is_kept);
}

#[test]
fn a_login_is_by_password_by_key_or_by_the_systems_user() {
    let mariadb = Mariadb::start();
    let me = nix::unistd::User::from_uid(nix::unistd::geteuid()).expect("users").expect("us").name;
    mariadb.sql(&format!(
        "INSTALL SONAME 'auth_ed25519';
         CREATE USER keyed@'%' IDENTIFIED VIA ed25519 USING PASSWORD('a key');
         GRANT ALL ON onedrop.* TO keyed@'%';
         CREATE OR REPLACE USER {me}@localhost IDENTIFIED VIA unix_socket;
         GRANT ALL ON *.* TO {me}@localhost WITH GRANT OPTION"
    ));
    let socket = mariadb.url_socket();
    let of = |user: &str, url: &str| url.replace("//onedrop@", &format!("//{user}@"));
    ledger(&mariadb, &socket, Some(mariadb.password())).migrate().expect("migrate");
    for (url, password) in [
        (mariadb.url_tcp(), Some(mariadb.password())),
        (of("keyed", &mariadb.url_tcp()), Some("a key")),
        (of("keyed", &socket), Some("a key")),
        (of(&me, &socket), None),
    ] {
        assert_eq!(ledger(&mariadb, &url, password).schema_version(), SCHEMA_VERSION, "{url}");
    }
    // Whatever random bytes the server has signed: those that end in NUL, one of 256, are, too.
    let keyed = of("keyed", &socket);
    for at in 0..1500 {
        let version = ledger(&mariadb, &keyed, Some("a key")).0.schema_version(soon());
        assert!(version.is_ok(), "login {at}: {version:?}");
    }
    for (url, password) in [
        (mariadb.url_tcp(), Some("another password")),
        (socket.clone(), None),
        (of("keyed", &mariadb.url_tcp()), Some("another key")),
        (of("nobody", &socket), Some("a key")),
        (of(&me, &mariadb.url_tcp()), Some("a key")),
        (socket.replace("/onedrop?", "/another?"), Some(mariadb.password())),
    ] {
        let refused = ledger(&mariadb, &url, password).0.schema_version(soon());
        let hides = |text: &str| !text.contains("another password") && !text.contains("key'");
        assert!(matches!(&refused, Err(LedgerError::Login(text)) if hides(text)), "{refused:?}");
    }
}

/// After `migrate` the program's user needs no more than to read and write rows.
#[test]
fn rights_on_rows_are_enough_to_deliver() {
    let (rig, user) = (MariadbRig::shared(), support::shared::unique_name());
    let database = rig.mariadb.database();
    rig.sql(&format!(
        "CREATE USER {user}@'%' IDENTIFIED BY 'rows';
         GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {user}@'%'"
    ));
    let (theirs, own) = (format!("//{database}@"), format!("//{user}@"));
    let url = rig.mariadb.url_socket().replace(&theirs, &own);
    let host = ledger(&rig.mariadb, &url, Some("rows"));
    let claim = host.claim(&mail("rows"), &inbox());
    assert_eq!(host.confirm(&claim, &uid(1)), Confirmed::Recorded);
    host.trace_one("rows@example.org");
    assert_eq!(host.schema_version(), SCHEMA_VERSION);
    host.0.prove_exclusion("rows", soon()).expect("a proof");
    let prepared = Prepared::by(&host, "prepared");
    for (name, call) in calls(&prepared) {
        // Nothing is left to migrate, and that is all that it finds out.
        let result = call(&*host.0, soon());
        let may_fail = name == "migrate";
        assert!(result.is_ok() || may_fail, "{name}: {result:?}");
    }
    rig.sql(&format!("DROP USER {user}@'%'"));
}

/// The tables that guides to a mail server make, as `docs/addresses.md` has them asked.
#[test]
fn a_query_asks_the_tables_of_other_programs_on_the_same_server() {
    let rig = MariadbRig::own();
    rig.sql(directory::TABLES);
    let host = Host::of(&rig);
    let mut known = Vec::new();
    for (program, database) in
        [("ISPmail", "mailserver"), ("PostfixAdmin", "postfix"), ("mailcow", "mailcow")]
    {
        rig.sql(&format!("GRANT SELECT ON {database}.* TO onedrop@'%'"));
        let query = directory::query(program, "MariaDB");
        let query = query.replace("FROM ", &format!("FROM {database}."));
        for address in ["doug@a.example", "inner@a.example", "gone@a.example", "' OR '' = '"] {
            let account = host.account(&query, &Asked::plain(address)).expect(&query);
            assert!(account.as_deref().is_none_or(|account| account == address), "{query}");
            known.extend(account.map(|account| format!("{program} {account}")));
        }
        let other = host.account(&query, &Asked::plain("doug@b.example")).expect(&query);
        assert_eq!(other, None, "{query}");
    }
    assert_eq!(
        known,
        [
            "ISPmail doug@a.example",
            "PostfixAdmin doug@a.example",
            "mailcow doug@a.example",
            "mailcow inner@a.example",
        ]
    );
    let of_doug = |query| host.account(query, &Asked::plain("doug@a.example"));
    let refused = of_doug("DELETE FROM postfix.mailbox");
    assert!(matches!(refused, Err(LedgerError::Refused(_))), "{refused:?}");
    let refused = of_doug("DELETE FROM postfix.mailbox WHERE username = $1");
    assert!(matches!(refused, Err(LedgerError::Denied(_))), "{refused:?}");
    assert_eq!(rig.mariadb.sql("SELECT COUNT(*) FROM postfix.mailbox"), "2");
}

/// What is noted, and after how many half minutes it is to be looked at.
#[test]
fn copies_that_need_another_look_are_noted() {
    let rig = MariadbRig::shared();
    let host = Host::of(&rig);
    let noted = |copy: i64| {
        rig.mariadb.sql(&format!(
            "SELECT ROUND(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), look_at) / 30)
             FROM onedrop_unsettled WHERE copy_id = {copy}"
        ))
    };
    let lease = (LEASE.lease.as_secs_f64() / 30.0).round().to_string();
    let plain = host.claim(&mail("plain"), &inbox());
    host.confirm(&plain, &uid(1));
    assert_eq!(noted(plain.copy), "", "one clean lease wrote it");
    let first = host.claim(&mail("twice"), &inbox());
    assert_eq!(noted(first.copy), "");
    rig.expire_leases();
    let second = host.claim(&mail("twice"), &inbox());
    assert_eq!((second.epoch, noted(first.copy)), (2, lease.clone()));
    rig.remember_since(SystemTime::now() + Duration::from_secs(7200));
    let old = host.claim(&mail("old"), &inbox());
    assert_eq!((old.in_doubt, noted(old.copy)), (true, lease.clone()));
    let again =
        host.claim_again(host.record(&mail("old"), &[]).message, &[sent()], &attempt("mx1"), LEASE);
    assert_eq!(noted(claimed(&again[0]).copy), lease, "a new copy of an old message");
    let due = host.record(&mail("due"), &[]).message;
    host.keep_until_due(due, &sent(), b"x", Duration::from_secs(600));
    let due = format!("SELECT id FROM onedrop_copy WHERE message_id = {}", due.number);
    let due = rig.mariadb.sql(&due);
    assert_eq!(noted(due.parse().expect("a number")), "20");
    // Another receipt than the one on record.
    assert!(matches!(host.confirm(&plain, &uid(2)), Confirmed::Superseded { .. }));
    assert_eq!(noted(plain.copy), "0");
    // The receipt of a lease before the copy was forgotten.
    rig.sql("UPDATE onedrop_ledger SET remembers_since = '0001-01-01'");
    let late = host.claim(&mail("late"), &inbox());
    rig.expire_leases();
    let how = onedrop::ledger::BatchTerms { limit: 10, dry_run: false };
    let what = onedrop::ledger::ForgetWhat::Message("late@example.org");
    assert_eq!(host.0.forget(what, 0, how, soon()).expect("forget").copies.len(), 1);
    assert_eq!(noted(late.copy), "");
    let forgotten = host.0.confirm(
        &onedrop::ledger::ToConfirm {
            claim: late,
            receipt: &uid(3),
            facts: CopyFacts::default(),
            end: None,
            may_be_lost: false,
        },
        soon(),
    );
    assert!(matches!(forgotten, Err(LedgerError::Forgotten)), "{forgotten:?}");
    assert_eq!(noted(late.copy), "0");
}

/// A record in one round trip decides what the two steps decide, each time anew.
#[test]
fn a_session_that_has_recorded_before_sees_what_has_changed_since() {
    let rig = MariadbRig::own();
    let host = Host(rig.ledger_with(Limits { used: 1, ..limits(1) }).expect("a ledger"));
    host.record(&mail("warms"), &[inbox()]);
    let begun = || {
        rig.mariadb
            .sql(
                "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status
         WHERE variable_name = 'COM_SELECT'",
            )
            .parse::<u64>()
            .expect("a number")
    };
    let (before, between) = (begun(), begun());
    let (mail_of_now, facts) = (mail("new"), Facts::default());
    let entry = Entry { oldest: Some(SystemTime::now()), ..entry(mail_of_now.identity(), &facts) };
    let new = host.record_entry(&entry, &attempt("mx1"), &[inbox(), sent()], LEASE);
    // The lock, the message, the decision; the two steps take more.
    assert_eq!(begun() - between - (between - before), 3);
    let claims: Vec<Claim> = new.copies.iter().map(claimed).collect();
    assert!(new.is_new && claims.iter().all(|claim| (claim.epoch, claim.in_doubt) == (1, false)));
    let again = host.record(&mail("new"), &[inbox(), sent()]);
    assert_eq!((again.message, again.is_new), (new.message, false));
    assert_eq!(again.copies, [CopyState::Busy, CopyState::Busy]);
    for claim in &claims {
        assert_eq!(host.confirm(claim, &uid(claim.copy as u32)), Confirmed::Recorded);
    }
    let placed = "SELECT GROUP_CONCAT(account, '/', mailbox, '/',
                                      SUBSTRING_INDEX(receipt, '/', -1) = id ORDER BY id)
                  FROM onedrop_copy WHERE placed_at IS NOT NULL";
    assert_eq!(rig.mariadb.sql(placed), "doug/INBOX/1,lisa/Sent/1");
    rig.remember_since(SystemTime::now());
    let old = host.claim(&mail("old"), &inbox());
    assert!(old.in_doubt && old.looks_back, "the ledger has forgotten since");
}

/// Whatever the server refuses after the message's row leaves nothing of it.
#[test]
fn a_record_that_is_refused_half_way_is_made_anew() {
    let rig = MariadbRig::shared();
    let host = Host(rig.ledger_with(Limits { used: 1, ..limits(1) }).expect("a ledger"));
    host.record(&mail("warms"), &[inbox()]);
    rig.mariadb.sql(
        "SET sql_mode = 'STRICT_ALL_TABLES';
         CREATE TRIGGER refuses_once BEFORE INSERT ON onedrop_copy FOR EACH ROW SET NEW.owner =
             IF((@tries := COALESCE(@tries, 0) + 1) = 1, REPEAT('x', 5000), NEW.owner)",
    );
    let new = record_now(&host, "refused").expect("a record");
    assert!(new.is_new, "nothing was left of the first try");
    let stands = "SELECT CONCAT((SELECT COUNT(*) FROM onedrop_message), ' ',
                      (SELECT COUNT(*) FROM onedrop_attempt_text), ' ',
                      (SELECT COUNT(*) FROM onedrop_copy))";
    assert_eq!(rig.mariadb.sql(stands), "2 2 2");
    let claim = claimed(&new.copies[0]);
    assert_eq!((claim.epoch, claim.in_doubt), (1, false));
}

/// A message of now, as nearly all are.
fn record_now(host: &Host, name: &str) -> Result<Recorded, LedgerError> {
    let (mail_of_now, facts) = (mail(name), Facts::default());
    let entry = Entry { oldest: Some(SystemTime::now()), ..entry(mail_of_now.identity(), &facts) };
    host.0.record(&entry, &attempt("mx1"), &[inbox()], LEASE, soon())
}

/// In one round trip as in two: what was written is found, what was not is written.
#[test]
fn a_new_message_whose_record_has_no_answer_is_recorded_once() {
    // What the server counts is asked.
    let failing = Failing::on(MariadbRig::own());
    let server = &failing.rig.mariadb;
    let warm = |name: &str| {
        let host = failing.through();
        host.record(&mail(&format!("warms-{name}")), &[inbox()]);
        let before = failing.proxy.answers();
        record_now(&host, &format!("before-{name}")).expect("a record");
        assert_eq!(failing.proxy.answers() - before, 1, "one round trip");
        host
    };
    let before = failing.proxy.answers();
    warm("nothing");
    let requests = failing.proxy.answers() - before;
    for (name, stage) in
        [("answer", Stage::Reply(requests + 1)), ("request", Stage::Request(requests))]
    {
        failing.proxy.plan(stage, Fault::Cut);
        let (host, reached) = (warm(name), failing.proxy.reached());
        // The session that was cut may hold the message's lock for a moment still.
        let mut recorded = record_now(&host, name);
        while matches!(recorded, Err(LedgerError::Contended)) {
            recorded = record_now(&host, name);
        }
        let recorded = recorded.expect("a record");
        assert_eq!(failing.proxy.reached() - reached, 1, "{name}");
        failing.proxy.heal();
        let claim = claimed(&recorded.copies[0]);
        assert_eq!((claim.epoch, claim.in_doubt), (1, false), "{name}");
        let copies = "SELECT COUNT(*) FROM onedrop_copy WHERE message_id";
        assert_eq!(server.sql(&format!("{copies} = {}", recorded.message.number)), "1", "{name}");
        assert_eq!(host.confirm(&claim, &uid(7)), Confirmed::Recorded);
    }
    let prepared = "SELECT variable_value FROM information_schema.global_status
                    WHERE variable_name = 'PREPARED_STMT_COUNT'";
    assert_eq!(server.sql(prepared), "0");
}

/// A host that is gone without a word costs what a lost packet costs, not all the time.
#[test]
fn a_kept_session_that_falls_silent_is_left_for_a_new_one() {
    let failing = Failing::on(MariadbRig::shared());
    let before = failing.proxy.answers();
    failing.through().record(&mail("counts"), &[inbox()]);
    let requests = failing.proxy.answers() - before;
    failing.proxy.plan(Stage::Request(requests), Fault::Freeze);
    let host = failing.through();
    host.record(&mail("before"), &[inbox()]);
    failing.proxy.plan(Stage::Request(usize::MAX), Fault::Freeze);
    // One that was idle for less is not asked whether it is there.
    thread::sleep(Duration::from_millis(1100));
    let began = Instant::now();
    record_now(&host, "after").expect("in a new session");
    assert_eq!(failing.proxy.reached(), 1);
    assert!(began.elapsed() < 2 * UNACKNOWLEDGED, "{:?}", began.elapsed());
}

/// The same session's next record is of the configuration that counts by then.
#[test]
fn a_session_that_has_recorded_before_sees_another_configuration() {
    let rig = MariadbRig::shared();
    let config = |by: &str| SharedConfig::new([("dedup.by", by.to_owned())]);
    let of = |by: &str| Host(rig.ledger_of(Some(config(by))));
    let (old, new) = (of("content"), of("message-id"));
    old.record(&mail("warms"), &[inbox()]);
    record_now(&old, "before").expect("a record");
    new.0.share_config(true, soon()).expect("it is for all now");
    let refused = record_now(&old, "after");
    assert!(matches!(refused, Err(LedgerError::OtherConfig(_))), "{refused:?}");
    assert_eq!(rig.mariadb.sql("SELECT COUNT(*) FROM onedrop_message"), "2");
    record_now(&new, "sees what counts").expect("a record");
    rig.mariadb.sql("UPDATE onedrop_ledger SET version = 99, oldest_program = 99");
    let refused = record_now(&new, "later");
    assert!(matches!(refused, Err(LedgerError::Version(_))), "{refused:?}");
    assert_eq!(rig.mariadb.sql("SELECT COUNT(*) FROM onedrop_message"), "3");
}

#[test]
fn the_message_that_is_answered_stands_in_the_view() {
    let rig = MariadbRig::shared();
    let host = Host::of(&rig);
    let of = |name: &str, answered: Option<&str>, references: Option<&str>| {
        let [in_reply_to, references] = [answered, references].map(|id| id.map(str::to_owned));
        let facts = Facts { in_reply_to, references, ..Facts::default() };
        let message = host.record_identity(mail(name).identity(), &facts).message.number;
        rig.mariadb.sql(&format!(
            "SELECT COALESCE(in_reply_to, 'none') FROM onedrop_message_text WHERE id = {message}"
        ))
    };
    assert_eq!(of("last", Some("<b@x>"), Some("<a@x> <b@x>")), "<b@x>");
    assert_eq!(of("only", Some("<a@x>"), Some("<a@x>")), "<a@x>");
    assert_eq!(of("other", Some("<a@x>"), Some("<a@x> <b@x>")), "<a@x>");
    assert_eq!(of("bare", Some("<a@x>"), None), "<a@x>");
    assert_eq!(of("none", None, Some("<a@x>")), "none");
}

#[test]
fn tables_have_the_row_format_that_long_keys_need_whatever_the_servers_default() {
    let mariadb = Mariadb::start_with(&["--innodb-default-row-format=compact"]);
    let host = ledger(&mariadb, &mariadb.url_socket(), Some(mariadb.password()));
    host.migrate().expect("migrate");
    let others = "SELECT COUNT(*) FROM information_schema.tables
                  WHERE table_schema = 'onedrop' AND engine = 'InnoDB' AND row_format <> 'Dynamic'";
    assert_eq!(mariadb.sql(others), "0");
}

#[test]
fn a_transaction_of_a_commands_own_can_assert_its_lock() {
    let rig = MariadbRig::shared();
    let host = Host::of(&rig);
    let name: onedrop::lock_name::LockName = "nightly".parse().expect("a name");
    let request = onedrop::ledger::LockRequest {
        name: &name,
        slots: &[1],
        owner: RandomValue::default(),
        lease: Duration::from_secs(60),
        holder: &onedrop::ledger::LockHolder::default(),
        waiting: None,
    };
    let taken = host.0.take_lock(&request, soon()).expect("an answer");
    let onedrop::ledger::LockTry::Taken { claim, .. } = taken else { panic!("{taken:?}") };
    let owner = lock_key::hex(claim.owner.bytes());
    let tell = |call: &str| {
        let sql = format!(
            "CREATE OR REPLACE PROCEDURE tell() BEGIN
                 DECLARE EXIT HANDLER FOR SQLSTATE '45000' SELECT 'not held';
                 {call}; SELECT 'held';
             END"
        );
        rig.mariadb.sql(&sql);
        rig.mariadb.sql("CALL tell()")
    };
    for (call, says) in [
        ("CALL onedrop_assert_lock('nightly', 1, 1, NULL)".to_owned(), "held"),
        (format!("CALL onedrop_assert_lock('nightly', 1, 1, '{owner}')"), "held"),
        ("CALL onedrop_assert_lock('nightly', 1, 2, NULL)".to_owned(), "not held"),
        ("CALL onedrop_assert_lock('nightly', 2, 1, NULL)".to_owned(), "not held"),
        ("CALL onedrop_assert_lock('Nightly', 1, 1, NULL)".to_owned(), "not held"),
        ("CALL onedrop_assert_lock('nightly', 1, 1, '00')".to_owned(), "not held"),
    ] {
        assert_eq!(tell(&call), says, "{call}");
    }
    rig.expire_locks();
    assert_eq!(tell("CALL onedrop_assert_lock('nightly', 1, 1, NULL)"), "not held");
    assert!(host.0.renew_lock(&claim, Duration::from_secs(60), soon()).expect("renewed"));
    // While a transaction that has asserted it is open, it is renewed, and no other takes it.
    let asserted = rig.open_transaction("CALL onedrop_assert_lock('nightly', 1, 1, NULL)");
    assert!(host.0.renew_lock(&claim, Duration::from_secs(60), soon()).expect("renewed"));
    rig.expire_locks();
    let other = onedrop::ledger::LockRequest { owner: RandomValue::default(), ..request };
    let busy = host.0.take_lock(&other, soon()).expect("an answer");
    assert!(matches!(busy, onedrop::ledger::LockTry::Busy(_)), "{busy:?}");
    drop(asserted);
    // The server rolls back once it has noticed that its client is gone.
    let is_taken = || {
        let taken = host.0.take_lock(&other, soon()).expect("an answer");
        matches!(taken, onedrop::ledger::LockTry::Taken { .. })
    };
    assert!(support::wait_until(Duration::from_secs(30), is_taken));
}

/// InnoDB says anew who waits only after 0.1 s without a question (the manual on INNODB_TRX).
pub const UNSEEN: Duration = Duration::from_millis(150);

/// A purge of facts that waits for a message says nothing of those that grew old meanwhile.
#[test]
fn facts_that_grow_old_during_a_purge_go_with_the_next_one() {
    let rig = MariadbRig::own();
    let host = Host::of(&rig);
    for (name, secs) in [("old", 3600), ("young", 94)] {
        host.record(&mail(name), &[inbox()]);
        rig.sql(&format!(
            "UPDATE onedrop_message SET recorded_at = UTC_TIMESTAMP() - INTERVAL {secs} SECOND
             WHERE subject = '{name}'"
        ));
    }
    let holds =
        rig.open_transaction("SELECT id FROM onedrop_message ORDER BY id LIMIT 1 FOR UPDATE");
    let (how, age) = (BatchTerms { limit: 100, dry_run: false }, Duration::from_secs(100));
    let purge = || host.0.purge(PurgeWhat::Facts, age, None, how, soon()).expect("a purge");
    thread::scope(|scope| {
        let first = scope.spawn(purge);
        let is_old = "SELECT COUNT(*) = 2 FROM onedrop_message
                      WHERE recorded_at < UTC_TIMESTAMP(6) - INTERVAL 101 SECOND";
        let waits = "SELECT COUNT(*) > 0 FROM information_schema.innodb_trx
                     WHERE trx_state = 'LOCK WAIT'";
        for condition in [waits, is_old] {
            let holds = || {
                thread::sleep(UNSEEN);
                rig.mariadb.sql(condition) == "1"
            };
            assert!(support::wait_until(Duration::from_secs(60), holds), "{condition}");
        }
        drop(holds);
        assert_eq!(first.join().expect("no panic").gone, 1);
    });
    assert_eq!(purge().gone, 1);
    assert_eq!(purge().gone, 0);
}

/// Its place among the server's connections is free again, and what it did is found.
#[test]
fn a_commit_without_an_answer_is_cancelled() {
    let rig = MariadbRig::with(&["--log-bin=log", "--sync-binlog=1"]);
    let hosts: Vec<Host> = (0..4).map(|_| Host::of(&rig)).collect();
    for (n, host) in hosts.iter().enumerate() {
        host.record(&mail(&format!("before-{n}")), &[inbox()]);
    }
    // Every commit waits for a replica, and there is none.
    rig.mariadb.sql(
        "SET GLOBAL rpl_semi_sync_master_timeout = 600000;
         SET GLOBAL rpl_semi_sync_master_enabled = 1",
    );
    at_once(hosts.len(), |n| {
        let by = mail(&format!("waits-{n}"));
        let (identity, facts) = (by.identity(), Facts::default());
        let until = Instant::now() + Duration::from_secs(2);
        let recorded =
            hosts[n].0.record(&entry(identity, &facts), &attempt("mx1"), &[inbox()], LEASE, until);
        assert!(matches!(&recorded, Err(LedgerError::Unavailable(_))), "{recorded:?}");
        assert!(Instant::now() < until + Duration::from_secs(5));
    });
    let left = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'onedrop'";
    let none = || rig.mariadb.sql(left) == "0";
    assert!(
        support::wait_until(Duration::from_secs(10), none),
        "{}",
        rig.mariadb.sql("SHOW PROCESSLIST")
    );
    rig.mariadb.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0");
    for (n, host) in hosts.iter().enumerate() {
        assert!(!host.record(&mail(&format!("waits-{n}")), &[inbox()]).is_new);
    }
}

/// What a server that is none, or means harm, says in place of its greeting.
#[test]
fn a_server_that_says_what_it_should_not_costs_no_more_than_an_error() {
    let failing = Failing::on(MariadbRig::shared());
    let greetings: [Fault; 8] = [
        Fault::SayAndCut(b""),
        Fault::SayAndCut(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Fault::SayAndCut(b"\xff\xff\xff\x00\x0a"),
        Fault::SayAndCut(b"\x01\x00\x00\x00\x0a"),
        Fault::SayAndCut(b"\x00\x00\x00\x00"),
        // Error 1040, too many connections.
        Fault::SayAndCut(b"\x0b\x00\x00\x00\xff\x10\x04too many"),
        Fault::Flood(b"\xff\xff\xff\x00\x0a"),
        Fault::Edit(|said| said.iter().map(|byte| byte ^ 0x55).collect()),
    ];
    let (_, record) = calls(&failing.prepared).swap_remove(0);
    for (n, fault) in greetings.into_iter().enumerate() {
        failing.proxy.plan(Stage::Greeting, fault);
        let host = failing.through();
        let result = record(&*host.0, Instant::now() + Duration::from_secs(2));
        assert!(matches!(result, Err(LedgerError::Unavailable(_))), "{n}: {result:?}");
        failing.proxy.heal();
    }
    // In place of an answer.
    for fault in [
        Fault::SayAndCut(b"\x00\x00\x00\x01"),
        Fault::SayAndCut(b"\x01\x00\x00\x01\xfb"),
        // The server wants a file of ours.
        Fault::Say(b"\x0c\x00\x00\x01\xfb/etc/passwd"),
        Fault::SayAndCut(b"\x09\x00\x00\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff"),
        Fault::Flood(b"\xff\xff\xff\x01\x01"),
        Fault::Edit(|said| said.iter().map(|byte| byte ^ 0x11).collect()),
    ] {
        failing.proxy.plan(Stage::Reply(2), fault);
        let host = failing.through();
        let result = record(&*host.0, Instant::now() + Duration::from_secs(2));
        assert!(result.is_err(), "{fault:?}: {result:?}");
        failing.proxy.heal();
        // The server frees the message's lock once it has seen the connection end.
        let goes_on = || record(&*failing.through().0, soon()).is_ok();
        assert!(support::wait_until(Duration::from_secs(20), goes_on), "{fault:?}");
    }
}
