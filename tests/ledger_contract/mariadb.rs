//! What MariaDB promises besides: servers that may keep no ledger, logins, connections that die, a
//! server that hangs.

use std::path::PathBuf;

use super::handles::{Prepared, calls};
use super::support::mariadb::Mariadb;
use super::support::proxy::{Fault, Proxy, Stage};
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
    mariadb.sql("ALTER TABLE onedrop_slot ENGINE = InnoDB");
    // What was committed is there after a crash of the server.
    mariadb.restart();
    assert!(!host(&mariadb).record(&mail("first"), &[inbox()]).is_new);
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

/// The name in the certificate is that of the server, and the password goes to no other.
#[test]
fn a_server_whose_certificate_nobody_vouches_for_gets_no_password() {
    let keys = support::TempRoot::new();
    support::dovecot::certificate(&keys);
    support::chown_recursive(&keys, "mysql");
    let (certificate, key) = (keys.join("cert.pem"), keys.join("key.pem"));
    let mariadb = Mariadb::start_with(&[
        &format!("--ssl-cert={}", certificate.display()),
        &format!("--ssl-key={}", key.display()),
        "--require-secure-transport=1",
        "--bind-address=127.0.0.1,127.0.0.2",
    ]);
    let url = mariadb.url_tcp();
    let verified = format!("{}?sslmode=verify-full", url.replace("127.0.0.1", "localhost"));
    let of = |url: &str, ca_file: Option<PathBuf>| {
        use onedrop::ledger::mariadb::{MariadbLedger, MariadbSettings, MysqlUrl};
        let url = MysqlUrl::parse(url).expect("a URL");
        let settings = MariadbSettings { url, password: Some(mariadb.password().into()), ca_file };
        MariadbLedger::new(settings, limits(2)).map(|ledger| Host(Arc::new(ledger)))
    };
    let trusted = of(&verified, Some(certificate.clone())).expect("a ledger");
    trusted.migrate().expect("migrate");
    trusted.record(&mail("tls"), &[inbox()]);
    let is_refused = |url: &str, ca_file: Option<PathBuf>| {
        let refused = of(url, ca_file).and_then(|host| host.0.schema_version(soon()));
        matches!(refused, Err(LedgerError::Unavailable(text)) if text.contains("certificate"))
    };
    assert!(is_refused(&verified, None), "a certificate that nobody vouches for");
    let other_name = verified.replace("localhost", "127.0.0.2");
    assert!(is_refused(&other_name, Some(certificate.clone())), "another server's certificate");
    // In clear text the server itself takes nobody.
    let clear = of(&url, None).expect("a ledger").0.schema_version(soon());
    assert!(clear.is_err(), "{clear:?}");
    // One that has no TLS, where TLS was asked for.
    let bare = Mariadb::start();
    let bare = verified.replace(&mariadb.port().to_string(), &bare.port().to_string());
    let refused = of(&bare, Some(certificate)).expect("a ledger").0.schema_version(soon());
    assert!(matches!(refused, Err(LedgerError::Unavailable(_))), "{refused:?}");
}

/// After `migrate` the program's user needs no more than to read and write rows.
#[test]
fn rights_on_rows_are_enough_to_deliver() {
    let rig = MariadbRig::new();
    rig.sql(
        "CREATE USER plain@'%' IDENTIFIED BY 'rows';
         GRANT SELECT, INSERT, UPDATE, DELETE ON onedrop.* TO plain@'%'",
    );
    let url = rig.mariadb.url_socket().replace("//onedrop@", "//plain@");
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
}

/// The tables that guides to a mail server make.
#[test]
fn a_query_asks_the_tables_of_other_programs_on_the_same_server() {
    let rig = MariadbRig::new();
    rig.sql(
        "CREATE DATABASE mailserver; CREATE DATABASE postfix; CREATE DATABASE mailcow;
         CREATE TABLE mailserver.virtual_users (id INT AUTO_INCREMENT PRIMARY KEY,
             domain_id INT NOT NULL, email VARCHAR(100) NOT NULL UNIQUE, password VARCHAR(150));
         INSERT INTO mailserver.virtual_users (domain_id, email) VALUES (1, 'doug@a.example');
         CREATE TABLE postfix.mailbox (username VARCHAR(255) NOT NULL PRIMARY KEY,
             password VARCHAR(255), active TINYINT(1) NOT NULL DEFAULT 1);
         INSERT INTO postfix.mailbox VALUES ('doug@a.example', '', 1), ('gone@a.example', '', 0);
         CREATE TABLE mailcow.mailbox (username VARCHAR(255) NOT NULL PRIMARY KEY,
             active TINYINT(1) NOT NULL DEFAULT 1);
         INSERT INTO mailcow.mailbox
             VALUES ('doug@a.example', 1), ('inner@a.example', 2), ('gone@a.example', 0);
         GRANT SELECT ON mailserver.virtual_users TO onedrop@'%';
         GRANT SELECT ON postfix.mailbox TO onedrop@'%';
         GRANT SELECT ON mailcow.mailbox TO onedrop@'%'",
    );
    let page = include_str!("../../docs/mariadb.md");
    let host = Host::of(&rig);
    let mut known = Vec::new();
    for line in page.lines().filter(|line| line.contains("`SELECT ")) {
        let query = line.split('`').nth(1).expect("a query");
        for address in ["doug@a.example", "inner@a.example", "gone@a.example", "' OR '' = '"] {
            let account = host.account(query, &Asked::plain(address)).expect(query);
            assert!(account.as_deref().is_none_or(|account| account == address), "{line}");
            known.extend(account.map(|account| (line[2..9].trim().to_owned(), account)));
        }
        let upper = host.account(query, &Asked::plain("doug@b.example")).expect(query);
        assert_eq!(upper, None, "{line}");
    }
    let known: Vec<_> = known.iter().map(|(of, account)| (of.as_str(), account.as_str())).collect();
    assert_eq!(
        known,
        [
            ("ISPmail", "doug@a.example"),
            ("Postfix", "doug@a.example"),
            ("mailcow", "doug@a.example"),
            ("mailcow", "inner@a.example"),
        ]
    );
    let refused = host.account("DELETE FROM postfix.mailbox", &Asked::plain("doug@a.example"));
    assert!(matches!(refused, Err(LedgerError::Refused(_) | LedgerError::Login(_))), "{refused:?}");
    assert_eq!(rig.mariadb.sql("SELECT COUNT(*) FROM postfix.mailbox"), "2");
}

#[test]
fn a_transaction_of_a_commands_own_can_assert_its_lock() {
    let rig = MariadbRig::new();
    let host = Host::of(&rig);
    let name: onedrop::lock_name::LockName = "nightly".parse().expect("a name");
    let request = onedrop::ledger::LockRequest {
        name: &name,
        slots: &[1],
        owner: RandomValue::default(),
        lease: Duration::from_secs(60),
        holder: &onedrop::ledger::LockHolder::default(),
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
        let delimited = format!("DELIMITER //\n{sql}//\nDELIMITER ;\nCALL tell()");
        rig.mariadb.sql(&delimited)
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
    // While a transaction that has asserted it is open, it is renewed, and nobody takes it.
    let asserted = rig.open_transaction("CALL onedrop_assert_lock('nightly', 1, 1, NULL)");
    assert!(host.0.renew_lock(&claim, Duration::from_secs(60), soon()).expect("renewed"));
    rig.expire_locks();
    let other = onedrop::ledger::LockRequest { owner: RandomValue::default(), ..request };
    let busy = host.0.take_lock(&other, soon()).expect("an answer");
    assert!(matches!(busy, onedrop::ledger::LockTry::Busy(_)), "{busy:?}");
    drop(asserted);
    let taken = host.0.take_lock(&other, soon()).expect("an answer");
    assert!(matches!(taken, onedrop::ledger::LockTry::Taken { .. }), "{taken:?}");
}

/// A ledger through a proxy that fails connections at a stage of theirs.
struct Failing {
    // Declared first: its connections end before the server does.
    proxy: Proxy,
    rig: MariadbRig,
    prepared: Arc<Prepared>,
    /// How many requests a handle has made that was used once.
    requests: usize,
}

impl Failing {
    fn new() -> Failing {
        let rig = MariadbRig::new();
        let proxy = rig.proxy();
        let prepared = Prepared::by(&Host::of(&rig), "failing");
        Failing::used(&rig, &proxy);
        let requests = proxy.answers();
        Failing { proxy, rig, prepared, requests }
    }

    /// A handle with a connection that is kept.
    fn used(rig: &MariadbRig, proxy: &Proxy) -> Host {
        let host = rig.through(proxy);
        assert_eq!(host.kept(0), None);
        assert_eq!(host.0.count(), (0, 1));
        host
    }

    /// A handle whose one connection is kept and fails later; those that it opens then do not.
    fn kept(&self, stage: Stage, fault: Fault) -> Host {
        self.proxy.plan(stage, fault);
        let host = Failing::used(&self.rig, &self.proxy);
        self.proxy.plan(Stage::Request(usize::MAX), Fault::Cut);
        host
    }
}

#[test]
fn a_kept_connection_that_dies_at_a_call_costs_no_error() {
    let failing = Failing::new();
    for (name, call) in calls(&failing.prepared) {
        let host = failing.kept(Stage::Request(failing.requests), Fault::Cut);
        let result = call(&*host.0, soon());
        assert!(result.is_ok(), "{name}: {result:?}");
        assert_eq!(host.0.count(), (0, 1), "{name}");
    }
    assert!(failing.proxy.reached() > 0);
}

#[test]
fn a_call_in_a_new_connection_is_made_once() {
    let failing = Failing::new();
    // Two requests begin a session.
    for (name, call) in calls(&failing.prepared) {
        let before = failing.proxy.reached();
        failing.proxy.plan(Stage::Request(2), Fault::Cut);
        let host = failing.rig.through(&failing.proxy);
        let result = call(&*host.0, soon());
        // This one asks whether its session lives, and opens another.
        let expected = if name == "release_lock" { 2 } else { 1 };
        assert!(matches!(result, Err(LedgerError::Unavailable(_))), "{name}: {result:?}");
        assert_eq!(failing.proxy.reached() - before, expected, "{name}");
        assert_eq!(host.0.count(), (0, 0), "{name}: what failed is not kept");
    }
}

#[test]
fn a_call_whose_answer_is_lost_finds_what_it_did() {
    let failing = Failing::new();
    let own = &failing.prepared;
    for (name, call) in calls(own) {
        if !["record", "claim", "confirm", "release", "keep", "finish"].contains(&name) {
            continue;
        }
        // The second is that to COMMIT.
        for answer in 1..=2 {
            let stage = Stage::Reply(failing.requests + answer);
            let host = failing.kept(stage, Fault::Cut);
            let result = call(&*host.0, soon());
            assert!(result.is_ok(), "{name}, answer {answer}: {result:?}");
            let copies = [inbox(), sent()].map(|one| {
                let state = host.claim_again(own.recorded.message, &[one], &own.by, LEASE);
                state.into_iter().next().expect("a state")
            });
            let is_placed = matches!(name, "confirm" | "release" | "keep" | "finish");
            match is_placed {
                true => assert_eq!(copies[0], CopyState::Placed(uid(1)), "{name} {answer}"),
                false => assert_eq!(copies[0], CopyState::Claimed(own.own), "{name} {answer}"),
            }
            let shared = claimed(&copies[1]);
            assert!(!shared.in_doubt, "{name} {answer}: {shared:?}");
        }
    }
    assert!(failing.proxy.reached() >= 6, "each call lost an answer");
}

#[test]
fn each_call_returns_in_time_from_a_server_that_hangs() {
    const TIME: Duration = Duration::from_millis(400);
    const SLACK: Duration = Duration::from_secs(5);
    let failing = Failing::new();
    let calls = calls(&failing.prepared);
    let in_time = |name: &str, host: &Host, call: &handles::Call| {
        let began = Instant::now();
        let result = call(&*host.0, began + TIME);
        assert!(matches!(result, Err(LedgerError::Unavailable(_))), "{name}: {result:?}");
        assert!(began.elapsed() < TIME + SLACK, "{name}: {:?}", began.elapsed());
    };
    // When it is asked to let us in; at the first call; at a call in a connection that was kept.
    let stages = [Stage::Greeting, Stage::Request(2), Stage::Request(failing.requests)];
    for (at, stage) in stages.into_iter().enumerate() {
        let hosts: Vec<Host> = calls
            .iter()
            .map(|_| match at {
                2 => failing.kept(stage, Fault::Freeze),
                _ => failing.rig.through(&failing.proxy),
            })
            .collect();
        if at < 2 {
            failing.proxy.plan(stage, Fault::Freeze);
        }
        at_once(calls.len(), |n| {
            let (name, call) = &calls[n];
            // It opens connections of its own, which do not fail here.
            if *name != "prove_exclusion" || at < 2 {
                in_time(name, &hosts[n], call);
            }
        });
    }
}

#[test]
fn a_turn_is_over_in_time_when_the_server_hangs() {
    const TIME: Duration = Duration::from_secs(1);
    let failing = Failing::new();
    let (own, key) = (failing.prepared.own, copy_key(&failing.prepared.mail, &inbox()));
    for confirms in [true, false] {
        // Two requests begin the session, one the turn.
        failing.proxy.plan(Stage::Request(3), Fault::Freeze);
        let host = failing.rig.through(&failing.proxy);
        let turn = host.0.take_turn(&own, &key, Instant::now() + TIME).expect("a turn");
        let (turn, began) = (Taken::from(turn), Instant::now());
        assert_eq!(turn, OURS);
        match confirms {
            true => {
                let confirmed = turn.try_confirm_until(&own, &uid(1), began + TIME);
                assert!(matches!(confirmed, Err(LedgerError::Unavailable(_))), "{confirmed:?}");
            }
            false => drop(turn),
        }
        assert!(began.elapsed() < 5 * TIME, "{:?}", began.elapsed());
        failing.proxy.heal();
        let other = Host::of(&failing.rig);
        assert_eq!(other.turn_when_free(&own, &key), OURS, "its session ended with it");
    }
}

/// What a server that is none, or means harm, says in place of its greeting.
#[test]
fn a_server_that_says_what_it_should_not_costs_no_more_than_an_error() {
    let failing = Failing::new();
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
        let host = failing.rig.through(&failing.proxy);
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
        failing.proxy.plan(Stage::Reply(3), fault);
        let host = failing.rig.through(&failing.proxy);
        let result = record(&*host.0, Instant::now() + Duration::from_secs(2));
        assert!(result.is_err(), "{fault:?}: {result:?}");
        failing.proxy.heal();
        // The server frees the message's lock once it has seen the connection end.
        let goes_on = || record(&*failing.rig.through(&failing.proxy).0, soon()).is_ok();
        assert!(support::wait_until(Duration::from_secs(20), goes_on), "{fault:?}");
    }
}
