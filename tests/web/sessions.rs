//! The sessions that the pages keep with the ledger.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use onedrop::config::Config;
use onedrop::ledger::postgres::PostgresLedger;
use onedrop::ledger::{AnyLedger, Numbered, Program};
use onedrop::net::pool::Limits;
use onedrop::web::{self, AT_A_TIME, ConfiguredJobs, PagesState as Pages};

use crate::support::postgres::Postgres;
use crate::support::site::{Site, run};
use crate::support::wait_until;
use crate::wire::LONG;

#[test]
fn those_that_nobody_uses_are_closed() {
    let (site, postgres) = (Site::embedded(), Postgres::shared());
    assert!(run(&site.config("owner", &postgres.toml()), &["migrate"]).status.success());
    let settings = Postgres::settings(&postgres.url_socket());
    let idle = Duration::from_millis(200);
    let limits = Limits { used: AT_A_TIME, per_key: AT_A_TIME, kept: AT_A_TIME, idle };
    let program = Program { reads: true, ..Program::default() };
    let ledger = PostgresLedger::of(settings, program, limits).expect("a ledger");
    let ledger: Arc<dyn AnyLedger> = Arc::new(ledger);
    let open = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'onedrop'
                   AND datname = current_database()";
        postgres.psql(sql).parse::<usize>().expect("a number")
    };
    // As many pages as may ask at a time: each has a session.
    let by = format!("host={} port={}", postgres.socket_dir().display(), postgres.port());
    let by = format!("{by} user=postgres dbname={}", postgres.database());
    let mut holder = postgres::Client::connect(&by, postgres::NoTls).expect("a session");
    let mut ask_at_once = || {
        let mut held = holder.transaction().expect("a transaction");
        held.batch_execute("LOCK TABLE onedrop_message").expect("a lock");
        let until = Instant::now() + LONG;
        thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| ledger.last_row(Numbered::Message, until));
            }
            assert!(wait_until(LONG, || open() == AT_A_TIME));
            held.commit().expect("an end");
        });
        // A question that has waited for too long leaves none.
        ledger.count() == (0, AT_A_TIME)
    };
    assert!((0..5).any(|_| ask_at_once()), "{:?}", ledger.count());
    let pages = Arc::new(Pages::new(&Config::default(), ledger.clone(), None, "mx1".to_owned()));
    web::keep_counting(&pages, idle / 20, || Ok(ConfiguredJobs::default())).expect("a thread");
    // Counting itself goes on in one.
    assert!(wait_until(LONG, || ledger.count().1 <= 1 && open() <= 1), "{:?}", ledger.count());
}
