//! A keeper beside a ledger in memory that fails on request.

use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use super::asking::{FOLLOWS, pause_after, shuffled};
use super::*;
use crate::lock::NoRecord;
use onedrop_core::hook::{Call, Hook};
use onedrop_core::ledger::memory::MemoryLedger;
use onedrop_core::ledger::{BusyLock, LockRequest, LockTheft, LockTry, LockWaiter};

#[test]
fn every_slot_is_tried_in_any_order() {
    let mut firsts = [false; 5];
    for _ in 0..500 {
        let mut order = shuffled(5);
        firsts[order[0] as usize - 1] = true;
        order.sort_unstable();
        assert_eq!(order, [1, 2, 3, 4, 5]);
    }
    assert_eq!(firsts, [true; 5]);
}

#[test]
fn a_waiter_asks_less_often_the_longer_it_waits_and_when_a_lease_ends() {
    let secs = Duration::from_secs;
    for _ in 0..100 {
        let pauses =
            [secs(0), secs(10), secs(600)].map(|waited| pause_after(waited, false, false, &[]));
        assert!(pauses[0] <= PAUSE.0 && pauses[0] > PAUSE.0 / 2, "{pauses:?}");
        assert!(pauses[1] > PAUSE.0 && pauses[1] < PAUSE.1 && pauses[1] < pauses[2]);
        assert!(pauses[2] <= PAUSE.1, "{pauses:?}");
        let pause = pause_after(secs(600), false, true, &[]);
        assert!(pause > NEXT / 2 && pause <= NEXT, "whose turn is next: {pause:?}");
        assert!(pause_after(secs(1), true, true, &[]) > PAUSE.1, "one that hears");
    }
}

/// What happens after a call of this name, once for each.
type Trouble = (&'static str, fn(&MemoryLedger) -> Result<(), LedgerError>);

struct Troubles {
    ledger: MemoryLedger,
    left: Mutex<Vec<Trouble>>,
}

impl Hook<LedgerError> for Troubles {
    fn after(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        let trouble = {
            let mut left = self.left.lock().unwrap();
            let at = left.iter().position(|(name, _)| *name == call.name);
            at.map(|at| left.remove(at))
        };
        trouble.map_or(Ok(()), |(_, happens)| happens(&self.ledger))
    }
}

fn answer_lost(_: &MemoryLedger) -> Result<(), LedgerError> {
    Err(LedgerError::Unavailable("the answer was lost".to_owned()))
}

fn another_claims_and_the_answer_is_lost(ledger: &MemoryLedger) -> Result<(), LedgerError> {
    let wish = wish();
    let request = LockRequest {
        name: &wish.name,
        slots: &[1],
        owner: wish.owner,
        lease: wish.terms.ttl,
        holder: &wish.holder,
        waiting: None,
    };
    let taken = ledger.take_lock(&request, Instant::now()).unwrap();
    assert!(matches!(taken, LockTry::Taken { .. }), "{taken:?}");
    answer_lost(ledger)
}

fn wish() -> LockWish {
    LockWish {
        name: "n".parse().unwrap(),
        slots: 1,
        terms: LockTerms::new(Duration::from_secs(6), Duration::ZERO).unwrap(),
        wait: Duration::ZERO,
        owner: RandomValue::default(),
        holder: LockHolder::default(),
        line: None,
    }
}

/// A keeper over a ledger in which `troubles` happen, and a handle without them.
fn keeper(troubles: &[Trouble]) -> (Keeper, MemoryLedger) {
    let ledger = MemoryLedger::default();
    let hook = Troubles { ledger: ledger.clone(), left: Mutex::new(troubles.to_vec()) };
    let troubled = Arc::new(ledger.with_hook(Arc::new(hook)));
    let (guardian, _) = UnixStream::pair().unwrap();
    (Keeper::start(troubled, wish(), Box::new(NoRecord), guardian).unwrap(), ledger)
}

fn next(keeper: &mut Keeper) -> LockNews {
    let timer = BootTimer::new().unwrap();
    let late = since_boot().unwrap() + Duration::from_secs(60);
    loop {
        let rung = timer.wait([keeper.bell().expect("there may be news")], Some(late)).unwrap();
        assert_eq!(rung, [true], "no news");
        // A bell may be rung for the end alone, which is kept, a moment before it is closed.
        if let Some(news) = keeper.news().into_iter().next() {
            return news;
        }
    }
}

fn stop(gives_back: bool) -> Stop {
    let command = CommandEnd { ending: LockEnding::Exited(0), output: String::new() };
    Stop { command, gives_back }
}

fn held(ledger: &MemoryLedger) -> usize {
    ledger.lock_rows(None, Instant::now()).unwrap().len()
}

#[test]
fn a_claim_without_an_answer_is_made_once_more_and_finds_its_own() {
    let (mut keeper, ledger) = keeper(&[("take_lock", answer_lost)]);
    let news = next(&mut keeper);
    assert!(matches!(&news, LockNews::Taken { claim, .. } if claim.epoch == 1), "{news:?}");
    assert_eq!(keeper.stop(stop(true), Duration::ZERO).unwrap().was_ours, Some(true));
    assert_eq!(held(&ledger), 0);
}

#[test]
fn a_claim_that_never_had_an_answer_is_given_back() {
    let (mut keeper, ledger) = keeper(&[("take_lock", answer_lost), ("take_lock", answer_lost)]);
    let news = next(&mut keeper);
    assert!(matches!(news, LockNews::Failed(LedgerError::Unavailable(_))), "{news:?}");
    while keeper.bell().is_some() {
        next(&mut keeper);
    }
    assert_eq!(held(&ledger), 0, "nobody would hold it");
}

/// Gives it back: whatever it took is seen only later.
fn answer_lost_before_it_took_effect(ledger: &MemoryLedger) -> Result<(), LedgerError> {
    for LockRow { name, slot, epoch, owner, .. } in ledger.lock_rows(None, Instant::now())? {
        ledger.release_lock(&LockClaim { name, slot, epoch, owner }, Instant::now())?;
    }
    answer_lost(ledger)
}

#[test]
fn a_claim_that_takes_effect_after_a_later_one_has_read_is_given_back() {
    for is_busy in [false, true] {
        let (ledger, late, wish) = (MemoryLedger::default(), MemoryLedger::default(), wish());
        let takes = |ledger: &MemoryLedger, slot: u32, owner: RandomValue| {
            let LockWish { name, terms, holder, .. } = &wish;
            let (slots, lease) = ([slot], terms.ttl);
            let request = LockRequest { name, slots: &slots, owner, lease, holder, waiting: None };
            let taken = ledger.take_lock(&request, Instant::now()).unwrap();
            assert!(matches!(taken, LockTry::Taken { .. }), "{taken:?}");
        };
        // The first claim's slot, which the second claim does not see.
        takes(&late, 2, wish.owner);
        let mut happens: fn(&MemoryLedger) -> _ = answer_lost_before_it_took_effect;
        if is_busy {
            takes(&ledger, 1, RandomValue::default());
            happens = answer_lost;
        }
        let left = Mutex::new(vec![("take_lock", happens)]);
        let hook = Troubles { ledger: ledger.clone(), left };
        let ((listens, _), (_, word)) = (channel(), channel());
        let troubled = Announcing {
            ledger: ledger.with_hook(Arc::new(hook)),
            late: late.clone(),
            listens,
            word: Mutex::new(word),
            in_the_way: AtomicU32::new(0),
        };
        let (guardian, _) = UnixStream::pair().unwrap();
        let mut keeper =
            Keeper::start(Arc::new(troubled), wish.clone(), Box::new(NoRecord), guardian).unwrap();
        match next(&mut keeper) {
            LockNews::Taken { claim, .. } if !is_busy => assert_eq!(claim.slot, 1),
            LockNews::Busy(_) if is_busy => {}
            news => panic!("{news:?}"),
        }
        let closing = keeper.stop(stop(true), Duration::ZERO).unwrap();
        assert_eq!(closing.was_ours, Some(true).filter(|_| !is_busy));
        assert_eq!(closing.is_unclear, is_busy, "the guardian looks once more");
        assert_eq!((held(&ledger), held(&late)), (usize::from(is_busy), 0));
    }
}

#[test]
fn one_that_does_not_wait_asks_again_where_others_were_in_its_way() {
    for (times, is_taken) in [(3, true), (100, false)] {
        let ((listens, _), (_, word)) = (channel(), channel());
        let crowded = Announcing {
            ledger: MemoryLedger::default(),
            late: MemoryLedger::default(),
            listens,
            word: Mutex::new(word),
            in_the_way: AtomicU32::new(times),
        };
        let (guardian, _) = UnixStream::pair().unwrap();
        let mut keeper =
            Keeper::start(Arc::new(crowded), wish(), Box::new(NoRecord), guardian).unwrap();
        let news = next(&mut keeper);
        assert_eq!(matches!(news, LockNews::Taken { .. }), is_taken, "{news:?}");
        let closing = keeper.stop(stop(true), Duration::ZERO).unwrap();
        assert_eq!(closing.was_ours, Some(true).filter(|_| is_taken));
        assert!(!closing.is_unclear);
    }
}

#[test]
fn a_second_release_that_finds_another_holder_proves_nothing() {
    let lost = ("release_lock", another_claims_and_the_answer_is_lost as fn(&_) -> _);
    let (mut keeper, ledger) = keeper(&[lost]);
    assert!(matches!(next(&mut keeper), LockNews::Taken { .. }));
    assert_eq!(keeper.stop(stop(true), Duration::ZERO).unwrap().was_ours, None);
    assert_eq!(held(&ledger), 1, "the other's");
}

#[test]
fn a_release_without_an_answer_is_made_again() {
    let (mut keeper, _) = keeper(&[("release_lock", answer_lost)]);
    assert!(matches!(next(&mut keeper), LockNews::Taken { .. }));
    assert_eq!(keeper.stop(stop(true), Duration::ZERO).unwrap().was_ours, Some(true));
}

#[test]
fn a_lock_that_something_may_still_use_is_not_given_back() {
    let (mut keeper, ledger) = keeper(&[]);
    assert!(matches!(next(&mut keeper), LockNews::Taken { .. }));
    assert_eq!(keeper.stop(stop(false), Duration::ZERO).unwrap().was_ours, None);
    assert_eq!(held(&ledger), 1);
}

#[test]
fn a_keeper_that_is_gone_is_told_once() {
    for (call, told) in [("take_lock", 0), ("renew_lock", 1)] {
        let (mut keeper, _) = keeper(&[(call, |_| panic!("as a test wants"))]);
        for _ in 0..told {
            assert!(matches!(next(&mut keeper), LockNews::Taken { .. }));
        }
        let news = next(&mut keeper);
        assert!(matches!(news, LockNews::Gone), "{call}: {news:?}");
        assert!(keeper.bell().is_none() && keeper.news().is_empty(), "{call}");
        assert!(keeper.stop(stop(true), Duration::ZERO).is_none());
    }
}

/// Says after each claim how many places the ledger's line has, and `None` once one follows the
/// line of its host.
struct Places {
    ledger: MemoryLedger,
    tell: Sender<Option<usize>>,
}

impl Hook<LedgerError> for Places {
    fn after(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        let places = match call.name {
            "take_lock" => Some(self.ledger.lock_waiters(None, Instant::now())?.len()),
            "prepare_to_take" => None,
            _ => return Ok(()),
        };
        let _ = self.tell.send(places);
        Ok(())
    }
}

#[test]
fn one_that_follows_its_own_line_has_no_place_in_the_ledgers_and_is_woken() {
    let (ledger, wish) = (MemoryLedger::default(), wish());
    let line = Line::of(&format!("follows {}", std::process::id()), &wish.name, 1);
    let start = || {
        let (tell, places) = channel();
        let hook = Places { ledger: ledger.clone(), tell };
        let (line, owner) = (Some(line.clone()), RandomValue::default());
        let wish = LockWish { line, owner, wait: Duration::from_secs(60), ..wish.clone() };
        let hooked = Arc::new(ledger.with_hook(Arc::new(hook)));
        let (guardian, _) = UnixStream::pair().unwrap();
        (Keeper::start(hooked, wish, Box::new(NoRecord), guardian).unwrap(), places)
    };
    // One that is not of the line.
    let LockWish { name, owner, holder, .. } = &wish;
    let lease = Duration::from_secs(60);
    let request = LockRequest { name, slots: &[1], owner: *owner, lease, holder, waiting: None };
    let other_takes = || match ledger.take_lock(&request, Instant::now()).unwrap() {
        LockTry::Taken { claim, .. } => claim,
        LockTry::Busy(rows) => panic!("{rows:?}"),
    };
    let gives_back = |claim| ledger.release_lock(&claim, Instant::now()).unwrap();

    let claim = other_takes();
    let (mut first, places_of_first) = start();
    assert_eq!(places_of_first.recv(), Ok(Some(1)), "nothing will wake it");
    let (mut second, places_of_second) = start();
    while line.join().unwrap().others().0 < 2 {
        thread::yield_now();
    }
    gives_back(claim);
    let began = Instant::now();
    assert!(matches!(next(&mut first), LockNews::Taken { .. }));
    assert_eq!(places_of_second.recv(), Ok(None), "it follows the first");

    let value = RandomValue::default();
    let theft = LockTheft { name, slot: 1, force: true, value, note: "" };
    ledger.steal_lock(&theft, Instant::now()).unwrap();
    let claim = other_takes();
    first.stop(stop(true), Duration::ZERO).unwrap();
    let places = places_of_second.recv();
    assert!(places == Ok(Some(0)) || began.elapsed() >= FOLLOWS, "the first was to wake it");
    assert!(places_of_second.iter().any(|places| places == Some(1)), "nothing will wake it");
    gives_back(claim);
    assert!(matches!(next(&mut second), LockNews::Taken { .. }));
    second.stop(stop(true), Duration::ZERO).unwrap();
}

#[test]
fn of_several_slots_another_may_be_free_and_none_follows() {
    let (ledger, wish) = (MemoryLedger::default(), wish());
    let line = Line::of(&format!("slots {}", std::process::id()), &wish.name, 2);
    let start = || {
        let (tell, places) = channel();
        let hook = Places { ledger: ledger.clone(), tell };
        let (line, owner) = (Some(line.clone()), RandomValue::default());
        let (slots, wait) = (2, Duration::from_secs(60));
        let wish = LockWish { line, owner, slots, wait, ..wish.clone() };
        let hooked = Arc::new(ledger.with_hook(Arc::new(hook)));
        let (guardian, _) = UnixStream::pair().unwrap();
        (Keeper::start(hooked, wish, Box::new(NoRecord), guardian).unwrap(), places)
    };
    let stays = line.join().unwrap();
    let all = [start(), start()];
    while stays.others().1 < 2 {
        thread::yield_now();
    }
    drop(stays);
    for (mut keeper, places) in all {
        assert!(matches!(next(&mut keeper), LockNews::Taken { .. }));
        assert_eq!(places.recv(), Ok(Some(0)), "it has asked");
        keeper.stop(stop(true), Duration::ZERO).unwrap();
    }
}

/// What a waiter was sent and does not use is read all the same: else nothing more could be sent.
#[test]
fn a_waiters_letterbox_is_emptied() {
    let (ledger, wish) = (MemoryLedger::default(), wish());
    let line = Line::of(&format!("letters {}", std::process::id()), &wish.name, 1);
    let first = line.join().unwrap();
    first.beat();
    let (guardian, _) = UnixStream::pair().unwrap();
    let (own, wait) = (Some(line.clone()), Duration::from_secs(60));
    let waits = LockWish { line: own, wait, ..wish };
    let mut keeper = Keeper::start(Arc::new(ledger), waits, Box::new(NoRecord), guardian).unwrap();
    while first.others().1 < 1 {
        thread::yield_now();
    }
    let letterbox = line.next_letterbox().unwrap();
    letterbox.set_nonblocking(true).unwrap();
    while letterbox.send(b"s").is_ok() {}
    let until = Instant::now() + Duration::from_secs(60);
    while letterbox.send(b"s").is_err() {
        assert!(Instant::now() < until, "nobody reads it");
        first.beat();
        thread::sleep(AGAIN);
    }
    drop(first);
    assert!(matches!(next(&mut keeper), LockNews::Taken { .. }));
    keeper.stop(stop(true), Duration::ZERO).unwrap();
}

/// A ledger that says that a lock was given back when a test says so, and never of itself. Claims
/// in `late` are not seen by other claims.
struct Announcing {
    ledger: MemoryLedger,
    late: MemoryLedger,
    listens: Sender<()>,
    word: Mutex<Receiver<()>>,
    /// How often another is in the way of a claim, and takes nothing.
    in_the_way: AtomicU32,
}

impl Locks for Announcing {
    fn wait_for_release(&self, _: &LockName, _: &[BorrowedFd<'_>], _: Instant) -> bool {
        let _ = self.listens.send(());
        self.word.lock().unwrap().recv().is_ok()
    }

    fn take_lock(&self, request: &LockRequest<'_>, until: Instant) -> Result<LockTry, LedgerError> {
        let less = |left: u32| left.checked_sub(1);
        match self.in_the_way.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Ok(LockTry::Busy(BusyLock { held: Vec::new(), before: 0 })),
            Err(_) => self.ledger.take_lock(request, until),
        }
    }

    fn renew_lock(
        &self,
        claim: &LockClaim,
        lease: Duration,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        self.ledger.renew_lock(claim, lease, until)
    }

    fn release_lock(&self, claim: &LockClaim, until: Instant) -> Result<bool, LedgerError> {
        Ok(self.ledger.release_lock(claim, until)? || self.late.release_lock(claim, until)?)
    }

    fn stop_waiting(
        &self,
        name: &LockName,
        owner: RandomValue,
        until: Instant,
    ) -> Result<(), LedgerError> {
        self.ledger.stop_waiting(name, owner, until)
    }

    fn lock_waiters(
        &self,
        name: Option<&LockName>,
        until: Instant,
    ) -> Result<Vec<LockWaiter>, LedgerError> {
        self.ledger.lock_waiters(name, until)
    }

    fn lock_rows(
        &self,
        name: Option<&LockName>,
        until: Instant,
    ) -> Result<Vec<LockRow>, LedgerError> {
        let mut rows = self.ledger.lock_rows(name, until)?;
        rows.extend(self.late.lock_rows(name, until)?);
        Ok(rows)
    }

    fn steal_lock(
        &self,
        theft: &LockTheft<'_>,
        until: Instant,
    ) -> Result<Option<i64>, LedgerError> {
        self.ledger.steal_lock(theft, until)
    }
}

#[test]
fn a_waiter_asks_again_on_the_ledgers_word() {
    let ledger = MemoryLedger::default();
    let ((listens, listened), (says, word)) = (channel(), channel());
    let (late, word) = (MemoryLedger::default(), Mutex::new(word));
    let in_the_way = AtomicU32::new(0);
    let announcing = Announcing { ledger: ledger.clone(), late, listens, word, in_the_way };
    let wish = wish();
    let LockWish { name, holder, .. } = &wish;
    let (owner, lease) = (RandomValue::default(), Duration::from_secs(60));
    let request = LockRequest { name, slots: &[1], owner, lease, holder, waiting: None };
    let LockTry::Taken { claim, .. } = ledger.take_lock(&request, Instant::now()).unwrap() else {
        panic!("it is free");
    };
    let (guardian, _) = UnixStream::pair().unwrap();
    let waits = LockWish { wait: Duration::from_secs(60), ..wish.clone() };
    let mut keeper =
        Keeper::start(Arc::new(announcing), waits, Box::new(NoRecord), guardian).unwrap();
    listened.recv().unwrap();
    assert!(ledger.release_lock(&claim, Instant::now()).unwrap());
    assert!(keeper.news().is_empty(), "it waits for the word");
    says.send(()).unwrap();
    assert!(matches!(next(&mut keeper), LockNews::Taken { .. }));
    keeper.stop(stop(true), Duration::ZERO).unwrap();
}
