//! A primary whose synchronous standby is gone: each commit waits for it, for good, and stands on
//! the primary alone once somebody cancels the wait.

use onedrop::ledger::Lasting;
use onedrop::ledger::postgres::{PostgresLedger, PostgresSettings};
use secrecy::SecretString;

use super::support::dovecot::certificate;
use super::support::pgbouncer::PgBouncer;
use super::support::postgres::Postgres;
use super::support::{TempRoot, chown_recursive, set_mode, wait_until};
use super::*;

/// A call's time, enough for a request to cancel it; and what a busy machine may add.
const TIME: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(10);

/// A ledger on a primary that waits for a standby that never comes.
struct Alone {
    postgres: Postgres,
    keys: TempRoot,
}

/// A certificate, `cert.pem`, and the lines of postgresql.conf that a server needs for TLS.
pub fn with_tls() -> (TempRoot, String) {
    let keys = TempRoot::new();
    certificate(&keys);
    chown_recursive(&keys, "postgres");
    set_mode(&keys.join("key.pem"), 0o600);
    let at = keys.display();
    let lines =
        format!("ssl = on\nssl_cert_file = '{at}/cert.pem'\nssl_key_file = '{at}/key.pem'\n");
    (keys, lines)
}

impl Alone {
    fn new() -> Alone {
        let (keys, lines) = with_tls();
        let postgres =
            Postgres::start_with(&format!("{lines}synchronous_standby_names = 'gone'\n"));
        let alone = Alone { postgres, keys };
        let local = "&options=-csynchronous_commit%3Dlocal";
        alone.host(&format!("{}{local}", alone.postgres.url_socket())).migrate().expect("migrated");
        alone.postgres.psql(
            "SET synchronous_commit = local;
             UPDATE onedrop_ledger SET remembers_since = '-infinity'",
        );
        alone
    }

    fn host(&self, url: &str) -> Host {
        let settings = PostgresSettings {
            password: Some(SecretString::from(self.postgres.password())),
            ca_file: Some(self.keys.join("cert.pem")),
            ..Postgres::settings(url)
        };
        Host(Arc::new(PostgresLedger::new(settings, limits(20)).expect("a ledger")))
    }

    /// How many sessions of that name wait for the standby.
    fn waiting(&self, name: &str) -> usize {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE wait_event = 'SyncRep' AND application_name = '{name}'"
        );
        self.postgres.psql(&sql).parse().expect("a number")
    }

    /// From now on no commit waits for a standby.
    fn without_standby(&self) {
        self.postgres.psql("ALTER SYSTEM SET synchronous_standby_names = ''");
        self.postgres.psql("SELECT pg_reload_conf()");
        let names = || self.postgres.psql("SHOW synchronous_standby_names");
        assert!(wait_until(SLACK, || names().is_empty()), "{}", names());
    }
}

fn record(host: &Host, mail: &Message, by: &Attempt, time: Duration) -> Result<Claim, LedgerError> {
    let (identity, facts, inbox) = (mail.identity(), mail.facts(), [inbox()]);
    let until = Instant::now() + time;
    let recorded = host.0.record(&entry(identity, &facts), by, &inbox, LEASE, until)?;
    Ok(claimed(&recorded.copies[0]))
}

#[test]
fn a_commit_without_an_answer_is_cancelled_and_whoever_asks_again_waits_as_well() {
    let alone = Alone::new();
    let (direct, bouncer) = (&alone.postgres, PgBouncer::start(&alone.postgres));
    let tls = direct.url_tcp().replace("127.0.0.1", "localhost");
    let ways = [
        ("unix", direct.url_socket()),
        ("tcp", direct.url_tcp()),
        ("tls", format!("{tls}?sslmode=require")),
        ("pgbouncer-unix", bouncer.url()),
        ("pgbouncer-tcp", bouncer.url_tcp()),
    ];
    let asked = at_once(ways.len(), |n| {
        let (name, url) = &ways[n];
        let and = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{and}application_name={name}");
        let (host, mail, by) = (alone.host(&url), mail(name), attempt("mx1"));
        for round in ["first", "again"] {
            let begun = Instant::now();
            let given_up = record(&host, &mail, &by, TIME);
            assert!(
                matches!(&given_up, Err(LedgerError::Unavailable(why))
                    if why.starts_with("no answer within")),
                "{name} {round}: {given_up:?}"
            );
            assert!(begun.elapsed() < TIME + SLACK, "{name} {round}: {:?}", begun.elapsed());
            assert_eq!(host.0.count(), (0, 0), "{name} {round}: it is never used again");
            let is_free = wait_until(SLACK, || alone.waiting(name) == 0);
            assert!(is_free, "{name} {round}: a session waits for the standby");
        }
        (name, host, mail, by)
    });
    // One that had to wait for another's NOTIFY was rolled back.
    let committed = direct.psql("SELECT count(*) FROM onedrop_message");
    assert_ne!(committed, "0", "a commit stands on the primary alone");
    let lasting = |of: &Host| of.0.durability(soon()).expect("what a commit outlives");
    let is_stuck = |said: &Lasting| matches!(said, Lasting::Stuck(why) if why.contains("standby"));
    assert!(lasting(&asked[0].1).iter().any(is_stuck), "{:?}", lasting(&asked[0].1));
    alone.without_standby();
    assert!(
        matches!(&lasting(&asked[0].1)[..], [Lasting::Outlives(what)] if what.contains("crash"))
    );
    for (name, host, mail, by) in asked {
        let claim = record(&host, &mail, &by, SLACK).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!((claim.epoch, claim.in_doubt), (1, false), "{name}: it finds its own");
    }
}

/// An administrator does that, or a request of another's, by way of a pooler. A warning says so,
/// whatever the role is shown by default.
#[test]
fn a_commit_that_was_told_not_to_wait_counts_as_unknown() {
    let alone = Alone::new();
    let url = format!("{}&options=-cclient_min_messages%3Derror", alone.postgres.url_socket());
    let (host, mail, by) = (alone.host(&url), mail("told"), attempt("mx1"));
    // A new message is recorded by the fast way, a known one by the general path.
    for round in ["new", "known"] {
        let recorded = thread::scope(|scope| {
            let recorded = scope.spawn(|| record(&host, &mail, &by, SLACK * 10));
            let waits = wait_until(SLACK, || alone.waiting("onedrop") == 1);
            assert!(waits, "{round}: it waits for the standby");
            alone.postgres.psql(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
            );
            recorded.join().expect("no panic")
        });
        assert!(
            matches!(&recorded, Err(LedgerError::Unavailable(why)) if why.contains("standby")),
            "{round}: {recorded:?}"
        );
        assert_eq!(host.0.count(), (0, 0), "{round}: it is never used again");
    }
}

/// A pooler gives the server connection of one to the next: a request for the one that comes late
/// must not meet the other's statement.
#[test]
fn by_way_of_a_pooler_a_request_to_cancel_meets_no_other_session() {
    const ROUNDS: usize = 4;
    let alone = Alone::new();
    alone.without_standby();
    let bouncer = PgBouncer::start(&alone.postgres);
    let mut locker = ::postgres::Client::connect(&alone.postgres.url_socket(), ::postgres::NoTls)
        .expect("a session");
    let (host, stuck) = (alone.host(&bouncer.url()), mail("stuck"));
    let claim = record(&host, &stuck, &attempt("mx1"), TIME).expect("recorded");
    let mut lock = locker.transaction().expect("a transaction");
    lock.execute("SELECT FROM onedrop_copy WHERE id = $1 FOR UPDATE", &[&claim.copy])
        .expect("the row");
    thread::scope(|scope| {
        let given_up = scope.spawn(|| {
            for _ in 0..ROUNDS {
                // PgBouncer 1.18 ends if it answers a request to cancel when we have stopped
                // waiting.
                let time = Duration::from_secs(1);
                let late = record(&host, &stuck, &attempt("mx2"), time);
                assert!(late.is_err(), "{late:?}");
            }
        });
        let mut others = 0;
        while !given_up.is_finished() {
            let asked = host.0.has_placed_copy("doug", soon());
            assert!(asked.is_ok(), "{asked:?}");
            others += 1;
        }
        assert!(others > ROUNDS);
    });
}

/// Neither a turn that is left when its time is over nor a call that has hardly any time left sends
/// a request to cancel for whose answer it has no time: PgBouncer 1.18 would end.
#[test]
fn what_is_over_time_is_closed_and_the_pooler_outlives_it() {
    const ROUNDS: u64 = 3;
    let alone = Alone::new();
    alone.without_standby();
    let mut bouncer = PgBouncer::start(&alone.postgres);
    let host = alone.host(&bouncer.url());
    for round in 0..ROUNDS {
        let mail = mail(&format!("round-{round}"));
        let claim = record(&host, &mail, &attempt("mx1"), SLACK).expect("recorded");
        let until = Instant::now() + TIME / 3;
        let turn = host.0.take_turn(&claim, &copy_key(&mail, &inbox()), until).expect("a turn");
        assert!(matches!(turn, Turn::Ours { .. }), "the copy is free");
        thread::sleep(until.saturating_duration_since(Instant::now()));
        drop(turn);
        for millis in 0..60 {
            let late = record(&host, &mail, &attempt("mx2"), Duration::from_millis(millis));
            assert!(matches!(late, Err(LedgerError::Unavailable(_))), "{millis}: {late:?}");
        }
    }
    let held = || alone.postgres.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'");
    assert!(wait_until(SLACK, || held() == "0"), "a turn's lock is held");
    assert!(!bouncer.has_ended(), "{}", bouncer.log());
}
