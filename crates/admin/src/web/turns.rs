//! Limits the pages that ask the ledger at a time, in the order in which they came. While many
//! wait, a page's slot pauses after use. A client that was served and asks again at once is the
//! last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a page waits for its turn.
const TURN: Duration = Duration::from_secs(2);

/// While many pages wait, a slot pauses after each page for 95 times its query time: four slots use
/// at most 4 % of a processor.
const PAUSE: u32 = 95;

/// While this many wait or fewer, no slot pauses: a browser with a few pages, or a few people.
const FEW: u32 = 8;

/// No rest is longer than this for each that waits beyond those: sixteen who ask at once get their
/// turn in time, and of a hundred most get 503.
const PAUSE_FOR_ONE: Duration = Duration::from_millis(250);

/// And never longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How soon a turn that rests sees how many wait.
const LOOK_UP: Duration = Duration::from_millis(20);

/// How many may ask at a time, and who waits for that.
pub struct Turns {
    /// Gives places in the order in which they are asked for.
    free: Arc<Semaphore>,
    waiting: AtomicU32,
    rests: bool,
}

/// The right to ask; its end is another's beginning.
pub struct PageTurn {
    turns: Arc<Turns>,
    _permit: OwnedSemaphorePermit,
}

impl Turns {
    pub fn new(most: usize) -> Turns {
        Turns { free: Arc::new(Semaphore::new(most)), waiting: AtomicU32::new(0), rests: true }
    }

    /// Without rests, for what costs little however many ask.
    pub fn without_rests(most: usize) -> Turns {
        Turns { rests: false, ..Turns::new(most) }
    }

    /// How many wait for a turn.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How long a slot pauses after questions that took `took`, with those that wait now.
    fn pause(&self, took: Duration) -> Duration {
        if !self.rests {
            return Duration::ZERO;
        }
        let beyond = self.waiting().saturating_sub(FEW);
        (took * PAUSE).min(PAUSE_FOR_ONE * beyond).min(LONGEST_PAUSE)
    }

    /// When it comes; or why not.
    pub async fn turn(self: &Arc<Turns>) -> Result<PageTurn, &'static str> {
        let permit = Arc::clone(&self.free).acquire_owned();
        let _waits = Waits::among(&self.waiting);
        match tokio::time::timeout(TURN, permit).await {
            Ok(Ok(permit)) => Ok(PageTurn { turns: Arc::clone(self), _permit: permit }),
            _ => Err("too many pages are asked for at once"),
        }
    }
}

impl PageTurn {
    /// Whether enough wait that the slot pauses after questions that took `took`.
    pub fn must_rest(&self, took: Duration) -> bool {
        !self.turns.pause(took).is_zero()
    }

    /// Pauses after questions that took `took`; ends when only a few wait any more.
    pub async fn rest(self, took: Duration) {
        let began = Instant::now();
        loop {
            let left = self.turns.pause(took).saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(left.min(LOOK_UP)).await;
        }
    }
}

/// One of those that wait, until dropped.
struct Waits<'a>(&'a AtomicU32);

impl Waits<'_> {
    fn among(waiting: &AtomicU32) -> Waits<'_> {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_rest_grows_with_those_that_wait_beyond_a_few() {
        for (waiting, took_ms, pause_ms) in [
            (0, 1000, 0),
            (8, 1000, 0),
            (9, 1000, 250),
            (12, 1000, 1000),
            // The questions took no longer.
            (12, 1, 95),
            (60, 1, 95),
            (60, 1000, 5000),
        ] {
            let turns = Turns::new(1);
            turns.waiting.store(waiting, Ordering::Relaxed);
            let pause = turns.pause(Duration::from_millis(took_ms));
            assert_eq!(pause, Duration::from_millis(pause_ms), "{waiting} wait, {took_ms} ms");
        }
    }

    #[test]
    fn a_turn_that_rests_ends_as_soon_as_only_a_few_wait() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let turns = Arc::new(Turns::new(1));
            let turn = turns.turn().await.expect("a turn");
            let mut waiting: Vec<_> = (0..100).map(|_| Waits::among(&turns.waiting)).collect();
            // After questions that took for ever it rests for as long as a turn can.
            let mut rest = pin!(turn.rest(Duration::from_secs(3600)));
            assert!(timeout(Duration::ZERO, &mut rest).await.is_err(), "it does not rest");
            assert_eq!(turns.free.available_permits(), 0);
            waiting.truncate(FEW as usize);
            // Whatever comes first of the two is seen first, however late this looks.
            let ended = timeout(LONGEST_PAUSE / 2, &mut rest).await;
            assert!(ended.is_ok(), "it rests though only a few wait");
            assert_eq!(turns.free.available_permits(), 1);
        });
    }

    #[test]
    fn a_turn_goes_to_the_one_that_has_waited_longest() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let turns = Arc::new(Turns::new(1));
            let served = turns.turn().await.expect("a turn");
            let mut newcomer = pin!(turns.turn());
            assert!(timeout(Duration::ZERO, &mut newcomer).await.is_err());
            drop(served);
            // The one that was served asks again, before the newcomer has looked.
            let mut again = pin!(turns.turn());
            assert!(timeout(Duration::ZERO, &mut again).await.is_err(), "it has come first");
            assert!(newcomer.await.is_ok());
        });
    }
}
