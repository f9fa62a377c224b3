//! Three nodes that Patroni looks after, with `synchronous_mode_strict`: in a switchover, where the
//! primary is killed, and where it is cut off from all but its clients, no mail is lost and none
//! stands twice.
//!
//! Only with `ONEDROP_FULL=1` (`tests/run --full`, which installs Patroni and etcd): it takes
//! minutes.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::retried::{PLACED, Retried, TERMS, all_placed, all_stand_once};
use crate::support::bench::cases::messages;
use crate::support::dovecot::Dovecot;
use crate::support::patroni::Cluster;
use crate::support::postgres::Postgres;
use crate::support::site::{Site, run, settle_kept, settle_lost};
use crate::support::{TempRoot, is_full};

/// For a trial, `$ONEDROP_MESSAGES` may say fewer.
const MESSAGES: usize = 500;
const AT_ONCE: usize = 8;
const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn a_fail_over_of_patroni_loses_no_mail_and_leaves_none_twice() {
    if !is_full() {
        return;
    }
    let mut cluster = Cluster::start();
    let site = Site::of(Postgres::start(), Dovecot::start_high_performance(), TempRoot::new());
    let ledger = format!("[ledger]\nurl = \"{}\"\n", cluster.url());
    let config = site.config("of-the-cluster", &format!("{ledger}{TERMS}"));
    let migrated = run(&config, &["migrate"]);
    assert!(migrated.status.success(), "{migrated:?}");
    let leader = cluster.leader();
    let proof = site.postgres.psql("SELECT server FROM onedrop_proof");
    cluster.psql(
        leader,
        "onedrop",
        &format!(
            "INSERT INTO onedrop_proof (server, login_user, way, host)
             VALUES ('{proof}', '{}', 'sasl', 'test')",
            site.dovecot.master_user()
        ),
    );
    let mut rounds = Vec::new();
    for fault in ["switchover", "killed", "cut off"] {
        let (began, before) = (Instant::now(), cluster.leader());
        let retried = Retried::new(&fault.replace(' ', "-"), messages(MESSAGES), LIMIT);
        let cluster = &mut cluster;
        retried.run(&config, AT_ONCE, || {
            retried.wait_for(0.2);
            match fault {
                "switchover" => cluster.switch_over(),
                "killed" => cluster.kill(before),
                _ => cluster.cut(before, true),
            }
            retried.wait_for(0.8);
            match fault {
                "switchover" => {}
                "killed" => cluster.start_again(before),
                _ => cluster.cut(before, false),
            }
        });
        let took = began.elapsed().as_secs();
        writeln!(std::io::stderr(), "{fault}: {took} s; {}", retried.told()).expect("stderr");
        cluster.wait_until_whole();
        assert_ne!(cluster.leader(), before, "{fault}: another one leads");
        rounds.push(retried);
        let ledger = |sql: &str| Some(cluster.psql(cluster.leader(), "onedrop", sql));
        let kept = settle_kept(&config, None, ledger).expect("settled");
        writeln!(std::io::stderr(), "{kept} of Sent were kept and settled").expect("stderr");
        settle_lost(&config, |sql| cluster.psql(cluster.leader(), "onedrop", sql));
        all_stand_once(&site, &rounds);
        assert_eq!(cluster.psql(cluster.leader(), "onedrop", PLACED), all_placed(&rounds));
    }
}
