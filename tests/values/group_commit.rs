//! Jobs of several threads done together (`crates/net/src/group_commit.rs`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use onedrop::net::group_commit::{GroupCommit, Waited};

const LATER: Duration = Duration::from_secs(60);

type Numbers = GroupCommit<u32, Option<u32>>;

/// Doubles `number`, and those of its followers by `work`; `None` if the time ran out or the
/// leader gave no result.
fn double(group: &Numbers, number: u32, wait: Duration, work: impl FnOnce(usize)) -> Option<u32> {
    match group.wait(|| number, Instant::now() + wait) {
        Waited::Leads(leader) => {
            work(1 + leader.jobs().count());
            leader.done(leader.jobs().map(|number| Some(2 * number)));
            Some(2 * number)
        }
        Waited::Done(doubled) => doubled,
        Waited::TimedOut => None,
    }
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `then` while a leader works that ends at the word of `then`.
fn while_one_leads(group: &Numbers, then: impl FnOnce(&Sender<()>)) {
    let (go, gone): (Sender<()>, Receiver<()>) = channel();
    thread::scope(|scope| {
        scope.spawn(move || double(group, 1000, LATER, |_| gone.recv().unwrap()));
        until(|| group.count().0 > 0);
        then(&go);
    });
    assert!(group.count() == (0, 0));
}

#[test]
fn all_that_wait_go_together_and_each_gets_its_own_result() {
    let group = Numbers::new(1, 16, None, || None);
    let (turns, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let count = |jobs: usize| {
        turns.fetch_add(1, Ordering::SeqCst);
        most.fetch_max(jobs, Ordering::SeqCst);
    };
    while_one_leads(&group, |go| {
        thread::scope(|scope| {
            for number in 0..40 {
                let (group, count) = (&group, &count);
                scope.spawn(move || {
                    assert_eq!(double(group, number, LATER, count), Some(2 * number));
                });
            }
            until(|| group.count().1 == 40);
            go.send(()).unwrap();
        });
    });
    assert_eq!((turns.into_inner(), most.into_inner()), (40_usize.div_ceil(16), 16));
}

#[test]
fn a_thread_whose_time_runs_out_has_done_nothing() {
    let group = Numbers::new(1, 16, None, || None);
    while_one_leads(&group, |go| {
        assert_eq!(double(&group, 1, Duration::from_millis(20), |_| panic!("led")), None);
        assert_eq!(group.count().1, 0);
        go.send(()).unwrap();
    });
}

#[test]
fn a_leader_that_panics_leaves_its_followers_a_result_and_stops_nobody() {
    let group = Numbers::new(1, 16, None, || None);
    while_one_leads(&group, |go| {
        thread::scope(|scope| {
            let both = [2, 3].map(|number| {
                let group = &group;
                scope.spawn(move || double(group, number, LATER, |_| panic!("told to")))
            });
            until(|| group.count().1 == 2);
            go.send(()).unwrap();
            let ends = both.map(|one| one.join().ok());
            assert!(ends.contains(&None) && ends.contains(&Some(None)), "{ends:?}");
        });
    });
    assert_eq!(double(&group, 4, LATER, |_| {}), Some(8));
}

#[test]
fn nobody_waits_for_a_leader_that_takes_too_long() {
    let group = Numbers::new(1, 16, Some(Duration::from_millis(20)), || None);
    while_one_leads(&group, |go| {
        assert_eq!(double(&group, 1, LATER, |_| {}), Some(2));
        go.send(()).unwrap();
    });
}

#[test]
fn a_second_leader_works_for_two_or_more_only() {
    let group = Numbers::new(2, 16, None, || None);
    while_one_leads(&group, |go| {
        assert_eq!(double(&group, 1, Duration::from_millis(20), |_| panic!("led")), None);
        thread::scope(|scope| {
            for number in [1, 2] {
                let group = &group;
                scope.spawn(move || {
                    assert_eq!(
                        double(group, number, LATER, |jobs| assert_eq!(jobs, 2)),
                        Some(2 * number)
                    );
                });
            }
        });
        go.send(()).unwrap();
    });
}
