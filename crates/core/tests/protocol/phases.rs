//! What a delivery says of the time it took: for the log, the metrics and the record of attempts.
//! Each call takes a time of its own here, so that a time in the wrong place shows.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::deadline::Deadline;
use onedrop_core::deliver::Phases;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{CopyState, Ledger, Turn};

use crate::ports::{LEASE, inbox, mail, sent, soon};
use crate::script::{LedgerFault, StoreFault, Watched};
use crate::world::{Before, Delivery, World};

/// It stands still but for steps and sleeps, of which it keeps a list.
#[derive(Debug)]
struct StepClock {
    began: Instant,
    gone: Mutex<Duration>,
    sleeps: Mutex<Vec<Duration>>,
    random: u64,
}

impl StepClock {
    fn new(random: u64) -> Arc<StepClock> {
        let (gone, sleeps) = (Mutex::default(), Mutex::default());
        Arc::new(StepClock { began: Instant::now(), gone, sleeps, random })
    }

    fn step(&self, by: Duration) {
        *self.gone.lock().expect("no panic") += by;
    }

    fn sleeps(&self) -> Vec<Duration> {
        self.sleeps.lock().expect("no panic").clone()
    }
}

impl Clock for StepClock {
    fn now(&self) -> Instant {
        self.began + *self.gone.lock().expect("no panic")
    }

    fn since_boot(&self) -> Option<Duration> {
        None
    }

    fn sleep(&self, time: Duration) {
        self.sleeps.lock().expect("no panic").push(time);
        self.step(time);
    }

    fn random(&self) -> u64 {
        self.random
    }

    fn side_by_side(&self, threads: usize, work: &(dyn Fn() + Sync)) {
        SystemClock.side_by_side(threads, work);
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// It waits by its own clock.
fn patient(mut delivery: Delivery, wait: Duration) -> Delivery {
    delivery.wait = wait;
    delivery
}

/// A delivery by `clock`, whose calls take the times in `taking`: the how many-th of a name.
fn timed(
    world: &World,
    clock: &Arc<StepClock>,
    taking: &[(&'static str, usize, Duration)],
) -> Delivery {
    let mut delivery = world.delivery();
    delivery.deadline =
        Deadline::by(Arc::clone(clock) as _, Duration::from_secs(60), Duration::from_secs(20));
    for &(call, nth, time) in taking {
        let clock = Arc::clone(clock);
        delivery = delivery.before_nth(call, nth, move || clock.step(time));
    }
    delivery
}

const EACH: [(&str, usize, Duration); 6] = [
    ("record", 1, ms(1)),
    ("reserve", 1, ms(2)),
    ("take_turn", 1, ms(4)),
    ("look", 1, ms(8)),
    ("append", 1, ms(16)),
    ("confirm", 1, ms(32)),
];

#[test]
fn each_phase_is_the_time_of_its_calls() {
    let none = Phases::default();
    let cases = [
        (World::like_imap(), Before::Nothing, Phases { append: ms(18), ..none }),
        (World::like_imap(), Before::LeasesRanOut, Phases { lock: ms(4), append: ms(26), ..none }),
        (World::like_maildir(), Before::Nothing, Phases { lock: ms(4), append: ms(18), ..none }),
    ];
    for (world, before, copy) in cases {
        before.set_up(&world, &mail("m"), &[inbox()]);
        let ended = timed(&world, &StepClock::new(0), &EACH).run(&mail("m"), &[inbox()]);
        let ended = ended.expect_delivered();
        let record = Phases { record: ms(1), ..none };
        let copy = Phases { commit: ms(32), ..copy };
        let all = Phases { record: ms(1), ..copy };
        let watched = [Watched::Recorded(record), Watched::Copy(copy), Watched::Ended(0, all)];
        assert_eq!(ended.watched, watched, "{before:?}");
        assert_eq!(ended.endings[0].phases, all, "{before:?}");
    }
}

#[test]
fn a_recipient_has_the_times_of_its_own_copies_and_of_the_shared_one() {
    let (world, zoe) = (World::like_imap(), Destination::inbox("zoe"));
    let taking = [
        ("record", 1, ms(1)),
        ("append", 1, ms(2)),
        ("append", 2, ms(4)),
        ("append", 3, ms(8)),
        ("confirm", 3, ms(16)),
    ];
    let delivery = timed(&world, &StepClock::new(0), &taking);
    let ended = delivery.run(&mail("m"), &[inbox(), zoe, sent()]).expect_delivered();
    let phases = |append, commit| Phases { record: ms(1), append, commit, ..Phases::default() };
    let all: Vec<_> = ended.endings.iter().map(|ending| ending.phases).collect();
    assert_eq!(all, [phases(ms(10), ms(16)), phases(ms(12), ms(16))]);
}

#[test]
fn waiting_for_the_messages_lock_counts_as_locking() {
    let world = World::like_imap();
    let recorded = world.record(&mail("other"), &[inbox()], LEASE);
    let CopyState::Claimed(claim) = recorded.copies[0] else { panic!("a claim") };
    // A turn under the message's hash holds the message's lock.
    let holder = Arc::new(world.ledger.clone());
    let turn = holder.take_turn(&claim, &mail("m").identity().id_hash, soon()).expect("a turn");
    assert!(matches!(turn, Turn::Ours { .. }));

    // In vain: all patience is slept away, a little more each time.
    let clock = StepClock::new(0);
    let delivery = patient(timed(&world, &clock, &[]), ms(6));
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_temp_fail();
    assert_eq!(clock.sleeps(), [ms(2), ms(3), ms(1)]);
    assert_eq!(ended.watched[0], Watched::NotRecorded(3));

    // And not in vain.
    let clock = StepClock::new(0);
    let delivery = patient(timed(&world, &clock, &[("record", 1, ms(8))]), ms(60));
    let its = Arc::clone(&holder);
    let delivery = delivery.before_nth("record", 2, move || its.lose_session());
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    let phases = Phases { lock: ms(10), waits: 1, ..Phases::default() };
    assert_eq!(ended.watched[0], Watched::Recorded(phases), "{:?}", ended.ledger_calls);
    drop(turn);
}

#[test]
fn waiting_for_another_delivery_counts_as_locking() {
    let world = World::like_imap();
    world.record(&mail("m"), &[inbox()], LEASE);
    let clock = StepClock::new(0);
    let delivery = patient(timed(&world, &clock, &[("claim", 1, ms(8))]), ms(5));
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_temp_fail();
    let phases = Phases { lock: ms(5), waits: 2, ..Phases::default() };
    assert_eq!(ended.watched[1], Watched::Copy(phases), "{:?}", ended.ledger_calls);
}

/// Another delivery failed at it, and its lease is left over.
#[test]
fn a_shared_copy_whose_bytes_are_kept_is_not_waited_for() {
    let (world, both) = (World::like_imap(), [inbox(), sent()]);
    let first = world.delivery().failing_store(1, StoreFault::LostInDoubt);
    first.run(&mail("m"), &both).expect_delivered();
    let clock = StepClock::new(0);
    let next = patient(timed(&world, &clock, &[]), Duration::from_secs(30));
    next.run(&mail("m"), &both).expect_delivered();
    assert!(clock.sleeps().is_empty(), "{:?}", clock.sleeps());
}

#[test]
fn phases_add_up() {
    let one = |n| Phases {
        lock: ms(n),
        record: ms(10 * n),
        append: ms(100 * n),
        commit: ms(1000 * n),
        waits: n as u32,
    };
    let mut sum = one(2);
    sum += one(3);
    assert_eq!(sum, one(5));
}

/// Waits grow by half up to a tenth of a second, and chance spreads them: from half to one and a
/// half times as long.
#[test]
fn waits_grow_and_are_spread() {
    let sleeps = |random| {
        let world = World::like_imap();
        world.record(&mail("m"), &[inbox()], LEASE);
        let clock = StepClock::new(random);
        let delivery = patient(timed(&world, &clock, &[]), Duration::from_secs(1));
        delivery.run(&mail("m"), &[inbox()]).expect_temp_fail();
        clock.sleeps()
    };
    let micros = |sleeps: &[Duration]| sleeps.iter().map(Duration::as_micros).collect::<Vec<_>>();
    let short = sleeps(0);
    assert_eq!(
        micros(&short[..11]),
        [2000, 3000, 4500, 6750, 10_125, 15_187, 22_781, 34_171, 50_000, 50_000, 50_000]
    );
    assert_eq!(micros(&sleeps(512)[..4]), [4000, 6000, 9000, 13_500]);
    assert_eq!(micros(&sleeps(1023 + 1024)[..2]), [5996, 8994]);
    assert_eq!(short.iter().sum::<Duration>(), Duration::from_secs(1), "and no more than allowed");
}

/// Its process ends then, and could not cancel a call that it began later.
#[test]
fn a_delivery_without_a_ledger_asks_for_it_until_its_deadline_and_no_longer() {
    for world in World::both() {
        let clock = StepClock::new(0);
        let at = world.confirm_at();
        let mut lost = world.delivery().failing_ledger(at, LedgerFault::LostForGood);
        let minute = Duration::from_secs(60);
        lost.deadline = Deadline::by(Arc::clone(&clock) as _, minute, Duration::from_secs(20));
        let ended = lost.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(ended.appended, [inbox()]);
        let slept: Duration = clock.sleeps().iter().sum();
        let longest = minute + Duration::from_secs(1);
        assert!((minute..longest).contains(&slept), "{slept:?}");
    }
}
