//! Named locks: exclusion, slots, epochs, leases, theft.

use onedrop::ledger::{
    LockClaim, LockHolder, LockRequest, LockRow, LockTheft, LockTry, PLACE_LASTS, RandomValue,
};
use onedrop::lock_name::LockName;

use super::rigs::{MariadbRig, PostgresRig, SqliteRig};
use super::support::proxy::{Fault, Stage};
use super::*;

const TTL: Duration = Duration::from_secs(60);

fn name(text: &str) -> LockName {
    text.parse().expect("a name")
}

fn holder(host: &str) -> LockHolder {
    LockHolder {
        host: host.to_owned(),
        pid: 42,
        command: "/usr/bin/repair".to_owned(),
        note: "nightly".to_owned(),
        slots: 3,
    }
}

impl Host {
    fn try_lock_by(&self, lock: &LockName, slots: &[u32], owner: RandomValue) -> LockTry {
        let request = LockRequest {
            name: lock,
            slots,
            owner,
            lease: TTL,
            holder: &holder("mx1"),
            waiting: None,
        };
        self.0.take_lock(&request, soon()).expect("an answer")
    }

    pub(super) fn try_lock(&self, lock: &LockName, slots: &[u32]) -> LockTry {
        self.try_lock_by(lock, slots, RandomValue::default())
    }

    #[track_caller]
    pub(super) fn lock(&self, lock: &LockName, slots: &[u32]) -> LockClaim {
        match self.try_lock(lock, slots) {
            LockTry::Taken { claim, .. } => claim,
            LockTry::Busy(rows) => panic!("busy: {rows:?}"),
        }
    }

    #[track_caller]
    fn is_busy(&self, lock: &LockName, slots: &[u32]) {
        let answer = self.try_lock(lock, slots);
        assert!(matches!(answer, LockTry::Busy(_)), "{answer:?}");
    }

    fn renews(&self, claim: &LockClaim) -> bool {
        self.0.renew_lock(claim, TTL, soon()).expect("an answer")
    }

    pub(super) fn gives_back(&self, claim: &LockClaim) -> bool {
        self.0.release_lock(claim, soon()).expect("an answer")
    }

    fn rows(&self, lock: &LockName) -> Vec<LockRow> {
        self.0.lock_rows(Some(lock), soon()).expect("rows")
    }

    pub(super) fn steal(&self, lock: &LockName, force: bool, value: RandomValue) -> Option<i64> {
        let theft = LockTheft { name: lock, slot: 1, force, value, note: "by hand" };
        self.0.steal_lock(&theft, soon()).expect("an answer")
    }
}

/// A program that writes leases by SQL may call itself what it likes: the list shows it all the
/// same.
pub fn a_lease_whose_owner_is_no_value_of_ours_is_listed_and_stolen(rig: &dyn Rig) {
    let (host, lock) = (Host::of(rig), name("nightly"));
    host.lock(&lock, &[1]);
    if !rig.sql("UPDATE onedrop_lock_lease SET owner = 'me'") {
        return;
    }
    let all = host.0.lock_rows(None, soon()).expect("rows");
    assert_eq!(all.iter().map(|row| row.holder.host.as_str()).collect::<Vec<_>>(), ["mx1"]);
    host.is_busy(&lock, &[1]);
    assert_eq!(host.steal(&lock, true, RandomValue::default()), Some(2));
    host.lock(&lock, &[1]);
}

/// By hand, or by a restore of a part: no fencing token is given out twice.
pub fn a_slot_whose_lease_was_taken_out_is_claimed_with_the_next_epoch(rig: &dyn Rig) {
    let (host, lock) = (Host::of(rig), name("nightly"));
    let claim = host.lock(&lock, &[1]);
    assert!(host.gives_back(&claim));
    if !rig.sql("DELETE FROM onedrop_lock_lease") {
        return;
    }
    let next = host.lock(&lock, &[1]);
    assert_eq!(next.epoch, claim.epoch + 1);
    host.is_busy(&lock, &[1]);
    assert!(host.renews(&next) && !host.renews(&claim));
}

pub fn a_lock_excludes_others_until_it_is_given_back(rig: &dyn Rig) {
    let (a, b, lock) = (Host::of(rig), Host::of(rig), name("nightly"));
    let claim = a.lock(&lock, &[1]);
    assert_eq!((claim.slot, claim.epoch), (1, 1));
    b.is_busy(&lock, &[1]);
    b.is_busy(&lock, &[1]);
    b.lock(&name("another"), &[1]);
    assert!(a.renews(&claim));
    b.is_busy(&lock, &[1]);
    assert!(a.gives_back(&claim));
    let next = b.lock(&lock, &[1]);
    assert_eq!((next.slot, next.epoch), (1, 2));
    a.is_busy(&lock, &[1]);
}

pub fn as_many_hold_a_lock_as_it_has_slots(rig: &dyn Rig) {
    let (a, b, lock) = (Host::of(rig), Host::of(rig), name("mailer"));
    let first = a.lock(&lock, &[2, 3, 1]);
    let second = b.lock(&lock, &[2, 3, 1]);
    let third = b.lock(&lock, &[2, 3, 1]);
    assert_eq!([first.slot, second.slot, third.slot], [2, 3, 1], "in the order asked for");
    a.is_busy(&lock, &[3, 2, 1]);
    assert!(b.gives_back(&second));
    match a.try_lock(&lock, &[1, 2, 3]) {
        LockTry::Taken { claim, others } => {
            assert_eq!((claim.slot, claim.epoch), (3, 2));
            assert_eq!(others.iter().map(|row| row.slot).collect::<Vec<_>>(), [1, 2]);
        }
        busy => panic!("{busy:?}"),
    }
}

pub fn of_twenty_that_want_three_slots_no_two_get_one(rig: &dyn Rig) {
    let hosts: Vec<Host> = (0..4).map(|_| Host::of(rig)).collect();
    // Only the first claims of a name race with the making of its rows.
    for round in 0..5 {
        let lock = name(&format!("rush {round}"));
        let taken = at_once(20, |n| match hosts[n % 4].try_lock(&lock, &[1, 2, 3]) {
            LockTry::Taken { claim, .. } => Some(claim.slot),
            LockTry::Busy(_) => None,
        });
        let mut taken: Vec<u32> = taken.into_iter().flatten().collect();
        taken.sort_unstable();
        // A slot that another is claiming right now is busy, so that less than all may be taken.
        assert!(!taken.is_empty() && taken.windows(2).all(|pair| pair[0] < pair[1]), "{taken:?}");
        let held: Vec<u32> = hosts[0].rows(&lock).iter().map(|row| row.slot).collect();
        assert_eq!(held, taken, "a lease that its owner was not told of");
        for slot in [1, 2, 3] {
            match taken.contains(&slot) {
                true => hosts[1].is_busy(&lock, &[slot]),
                false => drop(hosts[1].lock(&lock, &[slot])),
            }
        }
    }
}

/// Two claims have seen that a slot has no rows; the other has made them and has its lease before
/// this one comes to the rows. `other` (SQL) has each new row of a lease be the other's.
fn a_lease_that_another_got_meanwhile_stays_its_own(rig: &dyn Rig, other: &str) {
    let (host, lock) = (Host::of(rig), name("raced for"));
    assert!(rig.sql(other));
    host.is_busy(&lock, &[1]);
    assert!(rig.sql("UPDATE onedrop_lock_lease SET lease_until = NULL"));
    assert_eq!(host.lock(&lock, &[1]).epoch, 1);
}

#[test]
fn a_lease_that_another_got_meanwhile_stays_its_own_on_postgres() {
    let other = "ALTER TABLE onedrop_lock_lease ALTER lease_until SET DEFAULT '2100-01-01',
                     ALTER owner SET DEFAULT 'another claim''s.'";
    a_lease_that_another_got_meanwhile_stays_its_own(&PostgresRig::shared(), other);
}

#[test]
fn a_lease_that_another_got_meanwhile_stays_its_own_on_mariadb() {
    let other = "ALTER TABLE onedrop_lock_lease ALTER lease_until SET DEFAULT '2100-01-01',
                     ALTER owner SET DEFAULT 'another claim''s.'";
    a_lease_that_another_got_meanwhile_stays_its_own(&MariadbRig::shared(), other);
}

#[test]
fn a_lease_that_another_got_meanwhile_stays_its_own_on_sqlite() {
    let other = "CREATE TRIGGER another AFTER INSERT ON onedrop_lock_lease BEGIN
                     UPDATE onedrop_lock_lease SET lease_until = 1e9, boot_id = 'first',
                         owner = CAST('another claim''s.' AS BLOB)
                     WHERE name_hash = NEW.name_hash AND slot = NEW.slot;
                 END";
    a_lease_that_another_got_meanwhile_stays_its_own(&SqliteRig::new(), other);
}

/// A claim that waits, of a host.
fn waits(host: &Host, lock: &LockName, slots: &[u32], owner: RandomValue) -> LockTry {
    let most = slots.iter().copied().max().unwrap_or(1);
    let holder = LockHolder { slots: most, ..holder("mx1") };
    let request =
        LockRequest { name: lock, slots, owner, lease: TTL, holder: &holder, waiting: Some(7) };
    host.0.take_lock(&request, soon()).expect("an answer")
}

pub fn a_free_slot_goes_to_the_claim_that_has_waited_longest(rig: &dyn Rig) {
    let (a, b, lock) = (Host::of(rig), Host::of(rig), name("in order"));
    let held = a.lock(&lock, &[1]);
    let [first, second] = [RandomValue::default(), RandomValue::default()];
    for (owner, host, before) in [(first, &a, 0), (second, &b, 1), (first, &a, 0)] {
        let busy = waits(host, &lock, &[1], owner);
        assert!(matches!(&busy, LockTry::Busy(busy) if busy.before == before), "{busy:?}");
    }
    let line = b.0.lock_waiters(Some(&lock), soon()).expect("waiters");
    assert_eq!(line.iter().map(|one| one.owner).collect::<Vec<_>>(), [first, second]);
    assert_eq!((line[0].holder.host.as_str(), line[0].others), ("mx1", 7));
    assert!(line[0].left <= PLACE_LASTS && line[0].left > Duration::ZERO, "{line:?}");
    assert_eq!(b.0.lock_waiters(None, soon()).expect("waiters").len(), 2);
    assert!(a.gives_back(&held));
    b.is_busy(&lock, &[1]);
    assert!(matches!(waits(&b, &lock, &[1], second), LockTry::Busy(_)), "the first comes first");
    let LockTry::Taken { claim, .. } = waits(&a, &lock, &[1], first) else { panic!("busy") };
    assert_eq!(claim.epoch, held.epoch + 1);
    let line = b.0.lock_waiters(None, soon()).expect("waiters");
    assert_eq!(line.iter().map(|one| one.owner).collect::<Vec<_>>(), [second], "it has its turn");
    assert!(a.gives_back(&claim));
    a.is_busy(&lock, &[1]);
    b.0.stop_waiting(&lock, second, soon()).expect("an answer");
    assert_eq!(a.lock(&lock, &[1]).epoch, claim.epoch + 1);
}

pub fn the_lowest_free_slots_are_left_to_those_that_wait(rig: &dyn Rig) {
    let (host, lock, waiter) = (Host::of(rig), name("lowest"), RandomValue::default());
    let all = [1, 2, 3].map(|slot| host.lock(&lock, &[slot]));
    assert!(matches!(waits(&host, &lock, &[1, 2, 3], waiter), LockTry::Busy(_)));
    assert!(all[1..].iter().all(|claim| host.gives_back(claim)));
    host.is_busy(&lock, &[2]);
    assert_eq!(host.lock(&lock, &[2, 3]).slot, 3);
    host.is_busy(&lock, &[2, 3]);
    let taken = waits(&host, &lock, &[1, 2, 3], waiter);
    assert!(matches!(taken, LockTry::Taken { claim, .. } if claim.slot == 2));
}

/// Of three slots these are held. Claims wait that want one of the first 1 or 3; another wants one
/// of the first 1 to 3, and gets this one.
type Left = (&'static [u32], &'static [u32], u32, Option<u32>);

const LEFT: [Left; 11] = [
    (&[1], &[], 3, Some(2)),
    (&[], &[1], 1, None),
    (&[], &[1], 3, Some(2)),
    (&[1], &[1], 3, Some(2)),
    (&[1], &[3], 3, Some(3)),
    (&[2], &[1], 2, None),
    (&[2], &[1], 3, Some(3)),
    (&[1, 2], &[3], 3, None),
    (&[1], &[3, 3], 3, None),
    (&[], &[3, 3], 3, Some(3)),
    (&[], &[3, 3, 3], 3, None),
];

#[track_caller]
fn slots_are_left_to_those_that_wait(
    rig: &dyn Rig,
    claim: impl Fn(&Host, &LockName, u32) -> Option<u32>,
) {
    let host = Host::of(rig);
    for (at, (held, waiting, wants, gets)) in LEFT.iter().enumerate() {
        let lock = name(&format!("left {at}"));
        let all = [1, 2, 3].map(|slot| host.lock(&lock, &[slot]));
        for wants in *waiting {
            let slots: Vec<u32> = (1..=*wants).collect();
            let waits = waits(&host, &lock, &slots, RandomValue::default());
            assert!(matches!(waits, LockTry::Busy(_)), "{waits:?}");
        }
        for claim in all.iter().filter(|claim| !held.contains(&claim.slot)) {
            assert!(host.gives_back(claim));
        }
        assert_eq!(claim(&host, &lock, *wants), *gets, "{held:?} {waiting:?} {wants}");
    }
}

pub fn the_lowest_free_slots_are_left_in_each_case(rig: &dyn Rig) {
    slots_are_left_to_those_that_wait(rig, |host, lock, wants| {
        let slots: Vec<u32> = (1..=wants).collect();
        match host.try_lock(lock, &slots) {
            LockTry::Taken { claim, .. } => Some(claim.slot),
            LockTry::Busy(_) => None,
        }
    });
}

#[test]
fn the_procedure_leaves_the_lowest_free_slots_on_postgres() {
    let rig = PostgresRig::shared();
    slots_are_left_to_those_that_wait(&rig, |_, lock, wants| {
        let said = rig.postgres.psql(&format!("CALL onedrop_lock('{lock}', 60, 0, {wants})"));
        let slot = said.split('|').nth(1).expect("owner, slot and epoch");
        (!slot.is_empty()).then(|| slot.parse().expect("a slot"))
    });
}

#[test]
fn the_procedure_leaves_the_lowest_free_slots_on_mariadb() {
    let rig = MariadbRig::shared();
    slots_are_left_to_those_that_wait(&rig, |_, lock, wants| {
        let said = rig.mariadb.sql(&format!("CALL onedrop_lock('{lock}', 60, 0, {wants})"));
        let slot = said.split('\t').nth(1).expect("owner, slot and epoch");
        (slot != "NULL").then(|| slot.parse().expect("a slot"))
    });
}

pub fn a_lock_that_was_given_back_is_claimed_at_once(rig: &dyn Rig) {
    let (a, b, lock) = (Host::of(rig), Host::of(rig), name("given back"));
    let claims = |host: &Host, owner| {
        let (lease, holder) = (TTL, holder("mx2"));
        let request =
            LockRequest { name: &lock, slots: &[1], owner, lease, holder: &holder, waiting: None };
        host.0.take_free_lock(&request, soon()).expect("an answer")
    };
    let held = a.lock(&lock, &[1]);
    let busy = claims(&b, RandomValue::default());
    assert!(matches!(&busy, LockTry::Busy(busy) if busy.held[0].owner == held.owner), "{busy:?}");
    assert!(a.gives_back(&held));
    let owner = RandomValue::default();
    let LockTry::Taken { claim, others } = claims(&b, owner) else { panic!("busy") };
    assert_eq!((claim.slot, claim.epoch, claim.owner, others), (1, 2, owner, Vec::new()));
    assert_eq!(b.rows(&lock)[0].holder, holder("mx2"));
    // Made again, it finds its own.
    assert!(matches!(claims(&b, owner), LockTry::Taken { claim: again, .. } if again == claim));
    a.is_busy(&lock, &[1]);
    let waiter = RandomValue::default();
    assert!(matches!(waits(&a, &lock, &[1], waiter), LockTry::Busy(_)));
    assert!(b.gives_back(&claim));
    let busy = claims(&b, RandomValue::default());
    assert!(matches!(busy, LockTry::Busy(_)), "another waits: {busy:?}");
    let taken = claims(&b, waiter);
    assert!(matches!(taken, LockTry::Taken { claim, .. } if claim.epoch == 3));
    // The first claim of a name makes its rows.
    let lock = name("new");
    let request = LockRequest {
        name: &lock,
        slots: &[1],
        owner,
        lease: TTL,
        holder: &holder("mx2"),
        waiting: None,
    };
    let taken = a.0.take_free_lock(&request, soon()).expect("an answer");
    assert!(matches!(taken, LockTry::Taken { claim, .. } if claim.epoch == 1));
}

pub fn one_that_waits_for_another_slot_or_is_gone_keeps_nobody_waiting(rig: &dyn Rig) {
    let (host, lock) = (Host::of(rig), name("others"));
    host.lock(&lock, &[1]);
    let waiter = RandomValue::default();
    assert!(matches!(waits(&host, &lock, &[1], waiter), LockTry::Busy(_)));
    let second = host.lock(&lock, &[1, 2]);
    assert_eq!(second.slot, 2, "the one before wants slot 1 alone");
    assert!(host.gives_back(&second));
    let other = RandomValue::default();
    assert!(matches!(waits(&host, &lock, &[1], other), LockTry::Busy(_)));
    assert_eq!(host.0.lock_waiters(Some(&lock), soon()).expect("waiters").len(), 2);
    rig.expire_locks();
    assert_eq!(host.0.lock_waiters(Some(&lock), soon()).expect("waiters"), []);
    host.lock(&lock, &[1]);
    // A place that has run out is another one, the last in the line.
    assert!(matches!(waits(&host, &lock, &[1], other), LockTry::Busy(_)));
    assert!(matches!(waits(&host, &lock, &[1], waiter), LockTry::Busy(_)));
    let line = host.0.lock_waiters(Some(&lock), soon()).expect("waiters");
    assert_eq!(line.iter().map(|one| one.owner).collect::<Vec<_>>(), [other, waiter]);
}

pub fn epochs_only_grow(rig: &dyn Rig) {
    let (host, lock) = (Host::of(rig), name("epochs"));
    let mut last = 0;
    for round in 0..6 {
        let claim = host.lock(&lock, &[1]);
        assert_eq!(claim.epoch, last + 1, "round {round}");
        last = claim.epoch;
        match round % 3 {
            0 => assert!(host.gives_back(&claim)),
            1 => rig.expire_locks(),
            _ => {
                last = host.steal(&lock, true, RandomValue::default()).expect("an epoch");
                assert_eq!(last, claim.epoch + 1);
            }
        }
    }
}

pub fn a_lease_that_ran_out_is_lost_once_another_has_it(rig: &dyn Rig) {
    let (a, b, lock) = (Host::of(rig), Host::of(rig), name("frozen"));
    let zombie = a.lock(&lock, &[1]);
    rig.expire_locks();
    let [row] = &b.rows(&lock)[..] else { panic!("{:?}", b.rows(&lock)) };
    assert_eq!((row.left, row.epoch), (None, zombie.epoch), "shown, and free");
    let claim = b.lock(&lock, &[1]);
    assert!(claim.epoch > zombie.epoch);
    assert!(!a.renews(&zombie) && !a.gives_back(&zombie));
    assert!(b.renews(&claim), "the zombie changed nothing");
    a.is_busy(&lock, &[1]);
    assert!(b.gives_back(&claim));
    assert!(!a.renews(&zombie) && !a.gives_back(&zombie));
}

pub fn a_lease_that_ran_out_lasts_again_while_nobody_else_has_it(rig: &dyn Rig) {
    let (a, b, lock) = (Host::of(rig), Host::of(rig), name("slow"));
    let claim = a.lock(&lock, &[1]);
    rig.expire_locks();
    assert!(a.renews(&claim));
    b.is_busy(&lock, &[1]);
    assert!(a.gives_back(&claim));
    assert!(!a.renews(&claim), "it was given back");
    assert_eq!(b.lock(&lock, &[1]).epoch, claim.epoch + 1);
}

pub fn a_claim_made_again_finds_its_own(rig: &dyn Rig) {
    let (a, b, lock) = (Host::of(rig), Host::of(rig), name("lost answer"));
    let other = b.lock(&lock, &[1]);
    let owner = RandomValue::default();
    let LockTry::Taken { claim, .. } = a.try_lock_by(&lock, &[1, 2], owner) else { panic!("busy") };
    assert_eq!(claim.slot, 2);
    // A slot comes free that is before its own.
    assert!(b.gives_back(&other));
    for _ in 0..2 {
        match a.try_lock_by(&lock, &[1, 2], owner) {
            LockTry::Taken { claim: again, .. } => assert_eq!(again, claim),
            busy => panic!("{busy:?}"),
        }
    }
    assert_eq!(a.rows(&lock).len(), 1, "it has one slot");
    rig.expire_locks();
    match a.try_lock_by(&lock, &[1, 2], owner) {
        LockTry::Taken { claim: again, .. } => assert_eq!(again, claim),
        busy => panic!("{busy:?}"),
    }
    b.is_busy(&lock, &[2]);
}

pub fn a_lock_given_back_twice_was_ours(rig: &dyn Rig) {
    let (host, lock) = (Host::of(rig), name("twice"));
    let claim = host.lock(&lock, &[1]);
    assert!(host.gives_back(&claim) && host.gives_back(&claim));
    let next = host.lock(&lock, &[1]);
    assert!(!host.gives_back(&claim), "another has it");
    assert!(host.renews(&next));
}

/// Each answer in turn is lost. Had the handle called again, a claim that came meanwhile would have
/// made it say that the lock was lost.
#[test]
fn a_release_whose_answer_is_lost_is_told_and_not_made_again() {
    let rig = PostgresRig::shared();
    let (proxy, direct, lock) = (rig.proxy(), Host::of(&rig), name("lost answer"));
    let used = || {
        let host = rig.through(&proxy);
        host.rows(&lock);
        host
    };
    drop(used());
    let answers = proxy.answers();
    let mut lost = 0;
    for answer in 1..=4 {
        let claim = direct.lock(&lock, &[1]);
        proxy.plan(Stage::Reply(answers + answer), Fault::Cut);
        let host = used();
        let before = proxy.reached();
        proxy.plan(Stage::Request(usize::MAX), Fault::Cut);
        let released = host.0.release_lock(&claim, soon());
        if proxy.reached() == before {
            assert!(matches!(released, Ok(true)), "answer {answer}: {released:?}");
            continue;
        }
        assert!(matches!(released, Err(LedgerError::Unavailable(_))), "{answer}: {released:?}");
        lost += 1;
        assert!(host.gives_back(&claim), "answer {answer}: in a new session");
    }
    assert!(lost > 0, "no answer was lost");
}

pub fn a_lock_is_stolen_after_its_lease_or_by_force(rig: &dyn Rig) {
    let (a, b, lock) = (Host::of(rig), Host::of(rig), name("hung"));
    assert_eq!(b.steal(&lock, true, RandomValue::default()), None, "nobody has ever had it");
    let claim = a.lock(&lock, &[1]);
    assert_eq!(b.steal(&lock, false, RandomValue::default()), None, "its lease lasts");
    assert!(a.renews(&claim));
    let value = RandomValue::default();
    assert_eq!(b.steal(&lock, true, value), Some(claim.epoch + 1));
    assert_eq!(b.steal(&lock, true, value), Some(claim.epoch + 1), "made again, it finds its own");
    assert!(!a.renews(&claim) && !a.gives_back(&claim));
    assert_eq!(b.steal(&lock, true, RandomValue::default()), None, "it is free");
    let next = a.lock(&lock, &[1]);
    assert_eq!(next.epoch, claim.epoch + 2);
    rig.expire_locks();
    assert_eq!(b.steal(&lock, false, RandomValue::default()), Some(next.epoch + 1));
    assert!(!a.renews(&next), "nobody else has it, but it was stolen");
}

pub fn asking_takes_no_lock_and_tells_who_has_it(rig: &dyn Rig) {
    let (a, b, lock) = (Host::of(rig), Host::of(rig), name("asked for"));
    assert_eq!(a.rows(&lock), []);
    let claim = a.lock(&lock, &[2]);
    b.lock(&name("another"), &[1]);
    for _ in 0..2 {
        let [row] = &b.rows(&lock)[..] else { panic!("{:?}", b.rows(&lock)) };
        assert_eq!((&row.name, row.slot, row.epoch), (&lock, 2, claim.epoch));
        assert_eq!((row.owner, &row.holder, row.lease), (claim.owner, &holder("mx1"), TTL));
        let left = row.left.expect("it lasts");
        assert!(left <= TTL && left > TTL / 2, "{left:?}");
    }
    let all = b.0.lock_rows(None, soon()).expect("rows");
    let all: Vec<_> = all.iter().map(|row| (row.name.as_str(), row.slot)).collect();
    assert_eq!(all, [("another", 1), ("asked for", 2)]);
    assert!(a.gives_back(&claim));
    assert_eq!(b.rows(&lock), []);
    b.lock(&lock, &[2]);
}

pub fn names_are_taken_as_they_are(rig: &dyn Rig) {
    let host = Host::of(rig);
    let names = ["a", "A", "ä", "a ä", "a\u{308}", "x'; DROP TABLE onedrop_lock; --", "a#1:2"];
    let claims: Vec<_> = names.iter().map(|text| host.lock(&name(text), &[1])).collect();
    for (text, claim) in names.iter().zip(&claims) {
        assert_eq!(claim.epoch, 1, "{text}");
        let [row] = &host.rows(&name(text))[..] else { panic!("{text}") };
        assert_eq!(row.name.as_str(), *text);
    }
    let longest = "ü".repeat(100);
    assert_eq!(host.lock(&name(&longest), &[1]).name.as_str(), longest);
}

pub fn locks_of_another_schema_are_refused(rig: &dyn Rig) {
    let (host, lock) = (Host::of(rig), name("early"));
    if !rig.sql("UPDATE onedrop_ledger SET version = 99") {
        return;
    }
    let request = LockRequest {
        name: &lock,
        slots: &[1],
        owner: RandomValue::default(),
        lease: TTL,
        holder: &holder("mx1"),
        waiting: None,
    };
    let refused = |found: i64| {
        let answer = host.0.take_lock(&request, soon());
        let is_refused = matches!(answer, Err(LedgerError::Version(seen)) if seen.found == found);
        assert!(is_refused, "{answer:?}");
        let answer = host.0.lock_rows(None, soon());
        let is_refused = matches!(answer, Err(LedgerError::Version(seen)) if seen.found == found);
        assert!(is_refused, "{answer:?}");
    };
    refused(99);
    assert!(rig.sql(
        "DROP TABLE onedrop_job_run; DROP TABLE onedrop_job;
         DROP VIEW IF EXISTS onedrop_assert_lock; DROP TABLE onedrop_lock_lease;
             DROP TABLE onedrop_lock_waiter;
         DROP TABLE onedrop_lock; UPDATE onedrop_ledger SET version = 5;"
    ));
    refused(5);
}

/// A session of the superuser's, who may be any role.
fn session(rig: &PostgresRig) -> ::postgres::Client {
    let url = rig.postgres.url_socket().replace("onedrop@/", "postgres@/");
    ::postgres::Client::connect(&url, ::postgres::NoTls).expect("a session")
}

/// What the server says to these statements: SQLSTATE and message of an error.
fn answer(session: &mut ::postgres::Client, sql: &str) -> Result<(), String> {
    session.batch_execute(sql).map_err(|error| match error.as_db_error() {
        Some(error) => format!("{} {}", error.code().code(), error.message()),
        None => error.to_string(),
    })
}

/// In the form of `ONEDROP_LOCK_OWNER`.
fn owner_text(owner: &RandomValue) -> String {
    owner.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Transactions that assert the lock, in sessions of their own: by epoch and owner, and by epoch.
fn asserted(rig: &PostgresRig, claim: &LockClaim) -> Result<(), String> {
    let LockClaim { name, slot, epoch, owner } = claim;
    let own = format!(", '{}'", owner_text(owner));
    let assert = |owner: &str| {
        let sql = format!("SELECT onedrop_assert_lock('{name}', {slot}, {epoch}{owner})");
        answer(&mut session(rig), &sql)
    };
    let by_epoch = assert("");
    assert_eq!(assert(&own), by_epoch);
    assert_eq!(assert(&own.to_uppercase()), by_epoch);
    by_epoch
}

#[test]
fn a_transaction_without_the_lock_fails_on_postgres() {
    let rig = PostgresRig::shared();
    let (host, lock) = (Host::of(&rig), name("import ä"));
    let claim = host.lock(&lock, &[1]);
    assert_eq!(asserted(&rig, &claim), Ok(()));
    let of_another_epoch = LockClaim { epoch: claim.epoch + 1, ..claim.clone() };
    let refused = |claim: &LockClaim| {
        let why = asserted(&rig, claim).expect_err("an error");
        assert!(why.contains("OD002") && why.contains("import ä"), "{why}");
    };
    refused(&of_another_epoch);
    rig.expire_locks();
    refused(&claim);
    assert!(host.renews(&claim));
    assert_eq!(asserted(&rig, &claim), Ok(()));
    assert!(host.gives_back(&claim));
    refused(&claim);
    let next = host.lock(&lock, &[1]);
    refused(&claim);
    assert_eq!(asserted(&rig, &next), Ok(()));
    host.steal(&lock, true, RandomValue::default()).expect("an epoch");
    refused(&next);
}

/// The ledger was restored, or a fail-over has lost a commit: an epoch is given out twice.
#[test]
fn another_holder_of_the_same_epoch_is_refused_by_its_owner() {
    let rig = PostgresRig::shared();
    let (host, lock) = (Host::of(&rig), name("import"));
    let lost = host.lock(&lock, &[1]);
    rig.sql(
        "UPDATE onedrop_lock_lease SET epoch = 0, lease_until = NULL;
         UPDATE onedrop_lock SET epoch = 0",
    );
    let claim = host.lock(&lock, &[1]);
    assert_eq!((claim.epoch, claim.owner == lost.owner), (lost.epoch, false));
    assert!(!host.renews(&lost) && !host.gives_back(&lost));
    let by = |owner: &str| {
        let sql = format!("SELECT onedrop_assert_lock('import', 1, {}, {owner})", claim.epoch);
        answer(&mut session(&rig), &sql)
    };
    for wrong in [owner_text(&lost.owner), String::new(), "x".to_owned()] {
        let why = by(&format!("'{wrong}'")).expect_err("an error");
        assert!(why.contains("OD002"), "{wrong}: {why}");
    }
    assert_eq!(by(&format!("'{}'", owner_text(&claim.owner))), Ok(()));
    assert_eq!(by("NULL"), Ok(()));
}

/// The transaction is older than the loss: no other holder may begin before it has ended.
#[test]
fn a_transaction_that_has_asserted_the_lock_keeps_others_out_on_postgres() {
    let rig = PostgresRig::shared();
    let (host, lock) = (Host::of(&rig), name("import"));
    let claim = host.lock(&lock, &[1]);
    let begin = format!("BEGIN; SELECT onedrop_assert_lock('import', 1, {});", claim.epoch);
    let mut transaction = session(&rig);
    assert_eq!(answer(&mut transaction, &begin), Ok(()));
    assert!(host.renews(&claim), "a renewal does not wait for it");
    rig.expire_locks();
    host.is_busy(&lock, &[1]);
    let theft =
        LockTheft { name: &lock, slot: 1, force: true, value: RandomValue::default(), note: "" };
    let stolen = host.0.steal_lock(&theft, soon());
    assert!(matches!(stolen, Err(LedgerError::Contended)), "{stolen:?}");
    assert_eq!(answer(&mut transaction, "COMMIT"), Ok(()));
    assert_eq!(host.lock(&lock, &[1]).epoch, claim.epoch + 1);
}

/// An assertion keeps the slot from others: not every role may make one. One that may sees what the
/// schema's owner means by the tables.
#[test]
fn a_role_asserts_a_lock_once_it_was_granted_that_and_is_not_deceived() {
    let rig = PostgresRig::shared();
    let (host, lock) = (Host::of(&rig), name("import"));
    let claim = host.lock(&lock, &[1]);
    let worker = onedrop_kit::shared::unique_name();
    rig.sql(&format!("CREATE ROLE {worker}"));
    let as_worker = |more: &str, epoch: i64| {
        let sql = format!(
            "SET ROLE {worker}; {more} BEGIN; SELECT onedrop_assert_lock('import', 1, {epoch}); \
             COMMIT"
        );
        answer(&mut session(&rig), &sql)
    };
    let why = as_worker("", claim.epoch).expect_err("an error");
    assert!(why.contains("permission denied for function onedrop_assert_lock"), "{why}");
    rig.sql(&format!("GRANT EXECUTE ON FUNCTION onedrop_assert_lock TO {worker}"));
    assert_eq!(as_worker("", claim.epoch), Ok(()));
    let own_table = "CREATE TEMP TABLE onedrop_lock (name_hash bytea, slot int, epoch bigint);";
    let why = as_worker(own_table, claim.epoch + 1).expect_err("an error");
    assert!(why.contains("OD002"), "{why}");
    assert_eq!(as_worker(own_table, claim.epoch), Ok(()));
    let why = answer(&mut session(&rig), &format!("SET ROLE {worker}; SELECT * FROM onedrop_lock"));
    let why = why.expect_err("an error");
    assert!(why.contains("permission denied"), "{why}");
}

#[test]
fn a_transaction_without_the_lock_fails_on_sqlite() {
    let rig = SqliteRig::new();
    let (host, lock) = (Host::of(&rig), name("import"));
    let claim = host.lock(&lock, &[1]);
    let connection = rig.connection();
    let insert_by = |epoch: i64, owner: Option<&str>| {
        let sql = "INSERT INTO onedrop_assert_lock (name, slot, epoch, owner)
                   VALUES ('import', 1, ?1, ?2)";
        connection.execute(sql, (epoch, owner)).map(drop).map_err(|error| error.to_string())
    };
    let insert = |epoch: i64| insert_by(epoch, None);
    assert_eq!(insert(claim.epoch), Ok(()));
    let (owner, another) = (owner_text(&claim.owner), owner_text(&RandomValue::default()));
    assert_eq!(insert_by(claim.epoch, Some(&owner)), Ok(()));
    let of_another = insert_by(claim.epoch, Some(&another));
    assert_eq!(of_another, Err("the lock is not held".to_owned()));
    assert_eq!(insert(claim.epoch + 1), Err("the lock is not held".to_owned()));
    connection.execute_batch("BEGIN").expect("a transaction");
    assert_eq!(insert(claim.epoch), Ok(()));
    // Until its end no other session writes.
    let early = Instant::now() + Duration::from_millis(200);
    let claimed = host.0.renew_lock(&claim, TTL, early);
    assert!(matches!(claimed, Err(LedgerError::Unavailable(_))), "{claimed:?}");
    connection.execute_batch("COMMIT").expect("a commit");
    assert!(host.gives_back(&claim));
    assert_eq!(insert(claim.epoch), Err("the lock is not held".to_owned()));
}

#[test]
fn a_lease_in_a_file_counts_by_the_boot_clock() {
    let rig = SqliteRig::new();
    let (host, lock) = (Host::of(&rig), name("clock"));
    let claim = host.lock(&lock, &[1]);
    for secs in [7200, -14_400] {
        rig.step_clock(secs);
        host.is_busy(&lock, &[1]);
        assert!(host.renews(&claim), "{secs} s");
    }
    // It may be of this boot, seen from elsewhere in a container: its time counts.
    rig.sql("UPDATE onedrop_lock_lease SET boot_id = 'another'");
    host.is_busy(&lock, &[1]);
    assert!(host.renews(&claim));
    // Of another boot it lasts its own length from the boot on.
    rig.sql("UPDATE onedrop_lock_lease SET boot_id = 'another', lease_ms = 1e12");
    host.is_busy(&lock, &[1]);
    rig.sql("UPDATE onedrop_lock_lease SET lease_ms = 1000");
    assert_eq!(host.lock(&lock, &[1]).epoch, claim.epoch + 1);
}
