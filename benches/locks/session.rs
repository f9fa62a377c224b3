//! Claims and releases, one after the other, in one session with Postgres.

use std::time::{Duration, Instant};

use onedrop::ledger::{LockHolder, LockRequest, LockTry, Locks, RandomValue};
use onedrop::service::ONE;

use crate::place::Place;

const TARGET: f64 = 500.0;
const LONG: Duration = Duration::from_secs(3);

pub fn run() {
    let place = Place::new();
    place.print_probes();
    let ledger = place.postgres.ledger(ONE);
    let (name, holder) = ("n".parse().expect("a name"), LockHolder::default());
    let pair = || {
        let owner = RandomValue::default();
        let lease = Duration::from_secs(60);
        let request =
            LockRequest { name: &name, slots: &[1], owner, lease, holder: &holder, waiting: None };
        let until = Instant::now() + lease;
        let LockTry::Taken { claim, .. } = ledger.take_lock(&request, until).expect("a ledger")
        else {
            panic!("nobody else has it")
        };
        assert!(ledger.release_lock(&claim, until).expect("a ledger"));
    };
    (0..50).for_each(|_| pair());
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < LONG {
        pair();
        count += 1;
    }
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    let met = if rate >= TARGET { "met" } else { "MISSED" };
    println!("claims and releases, each of both, a second: {rate:.0} (at least {TARGET}: {met})");
}
