//! The pool of sessions that the adapters of stores and ledgers share.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use onedrop::net::pool::{Exhausted, InUse, Limits, Pool};

fn pool(used: usize, per_key: usize, kept: usize) -> Arc<Pool<u32>> {
    Arc::new(Pool::new(Limits { used, per_key, kept, idle: Duration::ZERO }))
}

/// One for `key`: the one that is kept, else `number`.
fn take(pool: &Arc<Pool<u32>>, key: &str, number: u32) -> Result<InUse<u32>, Exhausted> {
    pool.take(key, Instant::now() + Duration::from_millis(20))?.or_make(|| Ok(number))
}

#[test]
fn what_was_used_is_used_again_by_its_key() {
    let pool = pool(9, 9, 9);
    drop(take(&pool, "a", 1).expect("one"));
    assert_eq!(*take(&pool, "b", 2).expect("one"), 2);
    assert_eq!(*take(&pool, "a", 3).expect("one"), 1);
    assert_eq!(pool.count(), (0, 2));
    pool.close_idle();
    assert_eq!(pool.count(), (0, 0));
}

#[test]
fn what_had_trouble_is_not_used_again() {
    let pool = pool(9, 9, 9);
    take(&pool, "a", 1).expect("one").throw_away();
    let panics = || {
        let _in_use = take(&pool, "a", 2).expect("one");
        panic!("told to");
    };
    let user = thread::scope(|scope| scope.spawn(panics).join());
    assert!(user.is_err());
    assert_eq!(pool.count(), (0, 0));
    assert_eq!(*take(&pool, "a", 3).expect("one"), 3);
}

#[test]
fn limits_hold_for_one_key_and_for_all() {
    let pool = pool(2, 1, 1);
    let first = take(&pool, "a", 1).expect("one");
    assert!(take(&pool, "a", 1).is_err(), "one for each key");
    let second = take(&pool, "b", 2).expect("one");
    assert!(take(&pool, "c", 3).is_err(), "two in all");
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| pool.take("c", Instant::now() + Duration::from_secs(20)).is_ok());
        drop(first);
        assert!(waiting.join().expect("an end"), "a free one is a waiter's");
    });
    drop(second);
    assert_eq!(pool.count(), (0, 1), "one is kept");
    pool.retire();
    drop(take(&pool, "a", 3).expect("one"));
    assert_eq!(pool.count(), (0, 0), "none is kept any more");
}
