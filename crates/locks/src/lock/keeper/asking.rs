//! Asking for the lock: until it is ours, the time to wait is over, or it cannot be had. One that
//! waits asks when it is the first of its host's line. While one of the same line has the lock, and
//! it has one slot, it opens its session and waits for the bell: to look who has the lock, or a
//! place in the ledger's line, costs more than the claim, and is worth it where another host has
//! the lock or waits for it. A claim that had no answer is made once more, and given back if it is
//! not needed.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use super::{
    AGAIN, CALL, LEAVE, LISTENING, LISTENS_AFTER, LockNews, LockWish, NEXT, PAUSE, TROUBLE_PAUSE,
    TakenLock, Work, copy_of, give_back_all_of, may_have_done_it, may_pass,
};
use crate::lock::frames::Order;
use crate::lock::line::{PlaceInLine, drain};
use crate::lock::since_boot;
use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::ledger::{BusyLock, LedgerError, LockRequest, LockRow, LockTry};

/// How often one in the line looks whether the one before it is stopped, and how often when that
/// one has left, and others before it not.
const LOOK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(100));

/// How long the first in the line relies on the bell of the one that holds the lock, which may be
/// dead; after that it asks again and again.
pub const FOLLOWS: Duration = Duration::from_secs(1);
/// How often one that does not wait asks again where others were in its way, and how soon.
const CLASHES: u32 = 10;
const AFTER_CLASH: Duration = Duration::from_millis(5);

/// What is known while the ledger is asked.
#[derive(Default)]
struct LastAnswer {
    /// A claim had no answer: it may have taken a slot, or do so after a later one has read.
    is_unclear: bool,
    /// This claim has a place in the ledger's line.
    waits: bool,
    /// The ledger says when the lock was given back.
    hears: bool,
}

impl Work {
    pub(super) fn take(&self, guardian: UnixStream) -> Option<TakenLock> {
        let began = Instant::now();
        let place = match self.join_line() {
            None => None,
            Some(place) => Some(self.wait_to_be_first(place, began)?),
        };
        // Where the guardian is gone, the other thread hears of it. It ends the command when no
        // thread has its socket.
        let _ = Order::Asks.send(&guardian);
        drop(guardian);
        let mut asked = LastAnswer::default();
        let taken = self.ask(place.as_ref(), began, &mut asked);
        let LockWish { name, owner, line, .. } = &self.wish;
        if asked.is_unclear {
            let kept = taken.as_ref().map(|taken| taken.claim.slot);
            // The command waits for it, or a stop, which has no more than that.
            give_back_all_of(&*self.ledger, line.as_ref(), (name, *owner), kept, LEAVE);
        }
        self.is_unclear.set(taken.is_none() && asked.is_unclear);
        if taken.is_none() && asked.waits {
            // Else its place runs out.
            let _ = self.ledger.stop_waiting(name, *owner, Instant::now() + LEAVE);
        }
        taken
    }

    fn join_line(&self) -> Option<PlaceInLine> {
        let line = self.wish.line.as_ref().filter(|_| !self.wish.wait.is_zero())?;
        let joined = line.join();
        joined.inspect_err(|error| tracing::info!(%error, "this host has no line")).ok()
    }

    /// `None`: the time to wait is over, which is said, or the other thread wants the end.
    fn wait_to_be_first(&self, place: PlaceInLine, began: Instant) -> Option<PlaceInLine> {
        let is_first = |place: &PlaceInLine| place.is_first().unwrap_or(true);
        if is_first(&place) {
            return Some(place);
        }
        let (mut left, mut look) = (bell_of_the_one_before(&place), LOOK.0);
        loop {
            let now = since_boot().unwrap_or_default();
            let rest = self.wish.wait.saturating_sub(began.elapsed());
            let bell = left.as_ref().map(AsFd::as_fd);
            if self.sleep_until_or(Some(now.saturating_add(look.min(rest))), bell).is_some() {
                return None;
            }
            if is_first(&place) {
                return Some(place);
            }
            place.empty_letterbox();
            if rest.is_zero() {
                self.tell(LockNews::InLine(place.others().0));
                return None;
            }
            // It has left, and another before it has not: it was killed while it waited.
            if left.as_ref().is_none_or(is_closed) {
                (left, look) = (None, LOOK.1);
            }
        }
    }

    /// Asks until it has the lock, or need not ask any more.
    fn ask(
        &self,
        place: Option<&PlaceInLine>,
        began: Instant,
        known: &mut LastAnswer,
    ) -> Option<TakenLock> {
        let LockWish { name, slots, terms, wait, owner, holder, .. } = &self.wish;
        let (mut trouble, mut is_last, mut clashes) = (None, false, 0);
        let (patience, first_asked) = (terms.ttl / 3, Instant::now());
        let bell = place.and_then(|place| place.bell().ok());
        let left = wait.saturating_sub(began.elapsed());
        // Whether an answer has said that the schema is one for this program.
        let mut is_known = match (place, &bell) {
            (Some(place), Some(bell)) => self.follow(place, bell, left)?,
            _ => false,
        };
        loop {
            self.comes_first(place);
            let order = shuffled(*slots);
            // What rang before the ledger is asked is answered by asking it.
            let was_given_back = bell.as_ref().is_some_and(drain) && is_known;
            let request = LockRequest {
                name,
                slots: &order,
                owner: *owner,
                lease: terms.ttl,
                holder,
                // One that follows has no place until it finds that another host has the lock.
                waiting: (!wait.is_zero() && (known.waits || !was_given_back))
                    .then(|| place.map_or(0, |place| place.others().1)),
            };
            let (asked, asked_since_boot) = (Instant::now(), since_boot());
            let until = asked + patience.min(CALL);
            let answer = match was_given_back {
                true => self.ledger.take_free_lock(&request, until),
                false => self.ledger.take_lock(&request, until),
            };
            is_known |= answer.is_ok();
            known.is_unclear |= match &answer {
                Ok(LockTry::Busy(_)) => false,
                Ok(LockTry::Taken { .. }) => asked_since_boot.is_err(),
                Err(error) => may_have_done_it(error),
            };
            known.waits |= request.waiting.is_some();
            let (last, pause) = match (answer, asked_since_boot) {
                (Ok(LockTry::Busy(busy)), _)
                    if wait.is_zero()
                        && is_a_clash(&busy, &order)
                        && clashes < CLASHES
                        && first_asked.elapsed() < CALL =>
                {
                    clashes += 1;
                    let pause = AFTER_CLASH + Duration::from_millis(u64::from(process::id() % 8));
                    match self.sleep_until(Some(since_boot().unwrap_or_default() + pause)) {
                        Some(_) => return None,
                        None => continue,
                    }
                }
                (Ok(LockTry::Taken { claim, others }), Ok(asked_since_boot)) => {
                    if let Some(place) = place {
                        place.has_taken(*owner);
                    }
                    return Some(TakenLock { claim, others, asked, asked_since_boot });
                }
                (Ok(LockTry::Busy(busy)), _) => {
                    trouble = None;
                    let pause = match request.waiting {
                        // It gets its place.
                        None => Duration::ZERO,
                        Some(_) => {
                            // The end of another's place, or of a transaction, is not said.
                            let hears = known.hears && busy.held.len() >= order.len();
                            // The bell is rung when one of its host gives the lock back.
                            let is_next =
                                busy.before == 0 && !place.is_some_and(|place| self.follows(place));
                            pause_after(first_asked.elapsed(), hears, is_next, &busy.held)
                        }
                    };
                    (LockNews::Busy(busy.held), pause)
                }
                (Err(error), _) if may_pass(&error) => {
                    let pause =
                        trouble.map_or(AGAIN, |pause: Duration| (pause * 2).min(TROUBLE_PAUSE));
                    if trouble.replace(pause).is_none() && !wait.is_zero() {
                        self.tell(LockNews::Waits(copy_of(&error)));
                    }
                    (LockNews::Failed(error), pause)
                }
                (Err(error), _) => {
                    self.tell(LockNews::Failed(error));
                    return None;
                }
                (Ok(LockTry::Taken { .. }), Err(error)) => {
                    self.tell(LockNews::Failed(LedgerError::Unavailable(error.to_string())));
                    return None;
                }
            };
            let left = wait.saturating_sub(began.elapsed());
            // A claim without an answer is made once more: with the same owner, it finds its own.
            if left.is_zero() && (is_last || !known.is_unclear) {
                self.tell(last);
                return None;
            }
            is_last = left.is_zero();
            let pause = if is_last { AGAIN } else { pause.min(left) };
            let at = since_boot().unwrap_or_default().saturating_add(pause);
            // While the ledger cannot be asked, a bell means nothing.
            let bell = bell.as_ref().filter(|_| trouble.is_none()).map(AsFd::as_fd);
            let listens = known.waits && first_asked.elapsed() >= LISTENS_AFTER;
            let stop = match trouble.is_none() && listens {
                true => {
                    let (stop, hears) = self.sleep_until_released(at, bell);
                    known.hears = hears;
                    stop
                }
                false => self.sleep_until_or(Some(at), bell),
            };
            if stop.is_some() {
                return None;
            }
        }
    }

    /// It is the first in its line, and has the session that was sent to it. One may come late: it
    /// was sent as this one became the first.
    fn comes_first(&self, place: Option<&PlaceInLine>) {
        let Some(place) = place else { return };
        place.beat();
        if let Some(letterbox) = place.letterbox() {
            self.ledger.take_session_over(letterbox, Instant::now() + LEAVE);
        }
    }

    /// Whether one of the same line has the lock, and rings when it gives it back. Of several slots
    /// another may be free.
    fn follows(&self, place: &PlaceInLine) -> bool {
        self.wish.slots == 1 && place.is_taken()
    }

    /// While one of the same line has the lock: gets ready, and waits for the bell. Returns whether
    /// it is ready; `None`: the other thread wants the end.
    fn follow(&self, place: &PlaceInLine, bell: &File, left: Duration) -> Option<bool> {
        self.comes_first(Some(place));
        // After the bell was put up: one that gives the lock back takes its name away and rings.
        if !self.follows(place) {
            return Some(false);
        }
        let until = Instant::now() + (self.wish.terms.ttl / 3).min(CALL);
        if self.ledger.prepare_to_take(until).is_err() {
            return Some(false);
        }
        let at = since_boot().unwrap_or_default() + FOLLOWS.min(left);
        match self.sleep_until_or(Some(at), Some(bell.as_fd())) {
            Some(_) => None,
            None => Some(true),
        }
    }
}

/// How long one that has waited for this long waits until it asks again; not past the end of a
/// lease.
pub fn pause_after(waited: Duration, hears: bool, is_next: bool, held: &[LockRow]) -> Duration {
    let longest = if is_next { NEXT } else { PAUSE.1 };
    let pause = if hears { LISTENING } else { (waited / 100).clamp(PAUSE.0, longest) };
    // Not all at the same time.
    let jitter = Duration::from_micros(SystemClock.random() % (pause.as_micros() as u64 / 4));
    let next_end = held.iter().filter_map(|row| row.left).min().unwrap_or(Duration::MAX);
    (pause - jitter).min(next_end.saturating_add(Duration::from_millis(1)))
}

/// Not all of `slots` are held, and none waits for them: others were in the way of the claim, and
/// may have taken nothing.
fn is_a_clash(busy: &BusyLock, slots: &[u32]) -> bool {
    let held = busy.held.iter().filter(|row| slots.contains(&row.slot)).count();
    busy.before == 0 && held < slots.len()
}

/// Closed when the one before has left the line.
fn bell_of_the_one_before(place: &PlaceInLine) -> Option<UnixStream> {
    let (ours, theirs) = UnixStream::pair().ok()?;
    let before = place.one_before().ok()?;
    let waits = move || {
        let _ = before.wait();
        drop(theirs);
    };
    // Where it waits in vain it ends with the process.
    thread::Builder::new().name("line".to_owned()).spawn(waits).ok()?;
    ours.set_nonblocking(true).ok()?;
    Some(ours)
}

fn is_closed(bell: &UnixStream) -> bool {
    matches!((&mut &*bell).read(&mut [0]), Ok(0))
}

/// The slots in random order: where several come at once, each tries another one first.
pub fn shuffled(slots: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (1..=slots).collect();
    for at in (1..all.len()).rev() {
        let other = SystemClock.random() % (at as u64 + 1);
        all.swap(at, other as usize);
    }
    all
}
