//! A synchronous standby that stops while mail comes in: each commit waits for it, so deliveries
//! are deferred, and none leaves a session that eats up `max_connections`. Once it is back all is
//! delivered, and the standby knows it when the primary is lost.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::retried::{PLACED, Retried, TERMS, all_placed, all_stand_once};
use crate::support::dovecot::Dovecot;
use crate::support::postgres::Postgres;
use crate::support::site::{Site, settle_kept, settle_lost};
use crate::support::{TempRoot, is_full};

const AT_ONCE: usize = 10;
const KILLED: usize = 3;

struct Run {
    messages: usize,
    /// How long the standby is gone.
    gone: Duration,
}

#[test]
fn a_standby_that_is_gone_costs_time_and_neither_mail_nor_connections() {
    let run = match is_full() {
        // Ten minutes of a deadline that is ten times as long.
        true => Run { messages: 500, gone: Duration::from_secs(60) },
        // Long enough for more deliveries than there are connections.
        false => Run { messages: 20, gone: Duration::from_secs(12) },
    };
    let primary = Postgres::start_with("max_connections = 30");
    let mut site = Site::of(primary, Dovecot::start_high_performance(), TempRoot::new());
    let config = site.config("etc", TERMS);
    let mut standby = site.postgres.standby();
    let retried = Retried::new("standby", run.messages, Duration::from_secs(220) + 8 * run.gone);
    let mut most = 0;
    let primary = &site.postgres;
    retried.run(&config, AT_ONCE, || {
        retried.wait_for(0.2);
        standby.pause();
        let before = retried.delivered.load(Ordering::SeqCst);
        let end = Instant::now() + run.gone;
        thread::sleep(Duration::from_secs(1));
        retried.to_kill.store(KILLED, Ordering::SeqCst);
        while Instant::now() < end {
            most = most.max(count(primary, "backend_type = 'client backend'"));
            thread::sleep(Duration::from_millis(200));
        }
        let during = retried.delivered.load(Ordering::SeqCst) - before;
        assert!(during <= AT_ONCE, "{during} delivered without the standby");
        // Those of killed processes wait on, and the others no longer than their deadline of 6 s.
        let left = "wait_event = 'SyncRep' AND query_start < now() - interval '8 s'";
        let left = count(primary, left);
        assert!(left <= KILLED + 2, "{left} sessions left; {}", retried.told());
        standby.resume();
    });
    writeln!(std::io::stderr(), "at most {most} connections; {}", retried.told()).expect("stderr");
    assert!(most <= AT_ONCE + KILLED + AT_ONCE / 2, "{most} connections");
    for full in ["too many clients", "connection slots are reserved"] {
        assert!(!primary.whole_log().contains(full), "{full}");
    }
    let ledger = |sql: &str| Some(site.postgres.psql(sql));
    let kept = settle_kept(&config, None, ledger).expect("settled");
    writeln!(std::io::stderr(), "{kept} of Sent were kept and settled").expect("stderr");
    all_stand_once(&site, std::slice::from_ref(&retried));
    let ledger = format!("ledger.url = \"{}\"\n{TERMS}", standby.url_socket());
    let config = site.config("standby", &ledger);
    site.postgres.stop_immediate();
    standby.promote();
    settle_lost(&config, |sql| standby.psql(sql));
    assert_eq!(standby.psql(PLACED), all_placed(std::slice::from_ref(&retried)));
}

/// How many of the server's sessions are so, but for the one that asks.
fn count(primary: &Postgres, so: &str) -> usize {
    let sql =
        format!("SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {so}");
    primary.psql(&sql).parse().expect("a number")
}
