//! The thread that talks with the ledger: takes the lock, renews it every third of its time, gives
//! it back, and keeps the run's record between. The wrapper's other thread never waits for the
//! ledger. A waiter asks again every 100 to 250 ms; where the ledger cannot be asked, less and less
//! often, and says so once.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::record::{Begun, CommandEnd, EndRecord, RunRecord, Variables};
use super::{LockTerms, since_boot};
use crate::clock::{Clock, SystemClock};
use crate::exit::LockEnding;
use crate::ledger::{
    LedgerError, LockClaim, LockHolder, LockRequest, LockRow, LockTry, Locks, RandomValue,
};
use crate::lock_name::LockName;

/// Longest and shortest pause of a waiter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(80), Duration::from_millis(200));
/// Longest pause where the ledger cannot be asked.
const TROUBLE_PAUSE: Duration = Duration::from_secs(5);
/// One call of the ledger, at most.
const CALL: Duration = Duration::from_secs(10);
/// What giving back may take; the lease ends by itself as well.
const RELEASE: Duration = Duration::from_secs(5);

/// The lock that is wanted.
#[derive(Debug, Clone)]
pub struct LockWish {
    pub name: LockName,
    /// How many may hold it at a time.
    pub slots: u32,
    pub terms: LockTerms,
    /// How long to wait for it; zero: ask once.
    pub wait: Duration,
    pub owner: RandomValue,
    pub holder: LockHolder,
}

/// What the keeper has to say.
#[derive(Debug)]
pub(super) enum LockNews {
    /// Ours, until when it may be trusted, and what the command's environment gets. `others` hold
    /// other slots.
    Taken {
        claim: LockClaim,
        trust: Duration,
        others: Vec<LockRow>,
        variables: Variables,
    },
    /// The command need not run.
    NothingToDo(String),
    /// It cannot run as it is asked for.
    Refused(String),
    Renewed {
        trust: Duration,
    },
    /// Claimed by another, or stolen.
    Lost,
    /// Not in time; these have it.
    Busy(Vec<LockRow>),
    /// The ledger cannot be asked, and is asked again.
    Waits(LedgerError),
    Failed(LedgerError),
    /// The end.
    Released(Closing),
}

/// What is known when all is over.
#[derive(Debug)]
pub(super) struct Closing {
    /// Whether the lock was still ours when it was given back; `None`: that is not known.
    pub was_ours: Option<bool>,
    pub recorded: Result<EndRecord, LedgerError>,
}

impl Closing {
    fn without_a_record(was_ours: Option<bool>) -> Closing {
        Closing { was_ours, recorded: Ok(EndRecord::NoRecord) }
    }
}

/// A handle on the thread.
pub(super) struct Keeper {
    news: Receiver<LockNews>,
    /// Gets a byte with each news.
    bell: UnixStream,
    stop: Sender<CommandEnd>,
    /// It has ended by itself.
    closing: Option<Closing>,
}

impl Keeper {
    pub fn start(
        ledger: Arc<dyn Locks>,
        wish: LockWish,
        record: Box<dyn RunRecord>,
    ) -> std::io::Result<Keeper> {
        let ((tell, news), (stop, stopped)) = (channel(), channel());
        let (ringing, bell) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let work = Work { ledger, wish, record, news: tell, bell: ringing, stop: stopped };
        thread::Builder::new().name("keeper".to_owned()).spawn(move || work.run())?;
        Ok(Keeper { news, bell, stop, closing: None })
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub fn news(&mut self) -> Vec<LockNews> {
        let mut bytes = [0; 64];
        while matches!((&self.bell).read(&mut bytes), Ok(count) if count > 0) {}
        let mut news: Vec<LockNews> = self.news.try_iter().collect();
        if let Some(LockNews::Released(_)) = news.last() {
            let Some(LockNews::Released(closing)) = news.pop() else { return news };
            self.closing = Some(closing);
        }
        news
    }

    /// The command has ended or will not run: puts that on record, where there is one, for which
    /// `patience` is left, and gives the lock back, if it is held. `None`: the ledger hangs.
    pub fn stop(self, command: CommandEnd, patience: Duration) -> Option<Closing> {
        let _ = self.stop.send(command);
        let end = Instant::now() + patience + RELEASE + Duration::from_secs(1);
        loop {
            match self.news.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(LockNews::Released(closing)) => return Some(closing),
                Ok(_) => {}
                Err(_) => return self.closing,
            }
        }
    }
}

struct Work {
    ledger: Arc<dyn Locks>,
    wish: LockWish,
    record: Box<dyn RunRecord>,
    news: Sender<LockNews>,
    bell: UnixStream,
    stop: Receiver<CommandEnd>,
}

/// A lock that was taken.
struct TakenLock {
    claim: LockClaim,
    others: Vec<LockRow>,
    /// When it was asked for, by both clocks: its time is counted from then.
    asked: Instant,
    asked_since_boot: Duration,
}

impl Work {
    fn run(mut self) {
        let closing = match self.take() {
            Some(taken) => self.hold(taken),
            None => Closing::without_a_record(None),
        };
        self.tell(LockNews::Released(closing));
    }

    fn hold(&mut self, taken: TakenLock) -> Closing {
        let ttl = self.wish.terms.ttl;
        let begun = self.begin(&taken.claim, taken.asked + ttl / 3);
        let TakenLock { claim, others, asked, asked_since_boot } = taken;
        let variables = match begun {
            Ok(Begun::Run(variables)) => variables,
            Ok(Begun::NothingToDo(why)) => {
                self.tell(LockNews::NothingToDo(why));
                return Closing::without_a_record(self.release(&claim));
            }
            Ok(Begun::Refused(why)) => {
                self.tell(LockNews::Refused(why));
                return Closing::without_a_record(self.release(&claim));
            }
            Err(error) => {
                self.tell(LockNews::Failed(error));
                return Closing::without_a_record(self.release(&claim));
            }
        };
        let mut trust = asked_since_boot + ttl;
        self.tell(LockNews::Taken { claim: claim.clone(), trust, others, variables });
        let (end, is_lost) = self.keep(&claim, asked, &mut trust);
        let recorded = self.end(&claim, &end, trust);
        let was_ours = if is_lost { Some(false) } else { self.release(&claim) };
        Closing { was_ours, recorded }
    }

    fn tell(&self, news: LockNews) {
        // The other thread is there as long as the process.
        let _ = self.news.send(news);
        let _ = (&self.bell).write_all(b"!");
    }

    /// Sleeps, unless the other thread wants the end.
    fn sleep(&self, pause: Duration) -> Option<CommandEnd> {
        match self.stop.recv_timeout(pause) {
            Ok(end) => Some(end),
            Err(RecvTimeoutError::Timeout) => None,
            // It is there as long as the process.
            Err(RecvTimeoutError::Disconnected) => Some(CommandEnd {
                ending: LockEnding::Failed("the wrapper is gone".to_owned()),
                output: String::new(),
            }),
        }
    }

    fn take(&self) -> Option<TakenLock> {
        let LockWish { name, slots, terms, wait, owner, holder } = &self.wish;
        let (began, mut trouble) = (Instant::now(), None);
        let patience = terms.ttl / 3;
        loop {
            let order = shuffled(*slots);
            let request =
                LockRequest { name, slots: &order, owner: *owner, lease: terms.ttl, holder };
            let (asked, asked_since_boot) = (Instant::now(), since_boot());
            let answer = self.ledger.take_lock(&request, asked + patience.min(CALL));
            let (last, pause) = match (answer, asked_since_boot) {
                (Ok(LockTry::Taken { claim, others }), Ok(asked_since_boot)) => {
                    return Some(TakenLock { claim, others, asked, asked_since_boot });
                }
                (Ok(LockTry::Busy(others)), _) => {
                    trouble = None;
                    (LockNews::Busy(others), jittered())
                }
                (Err(error), _) if may_pass(&error) => {
                    let pause =
                        trouble.map_or(PAUSE.1, |pause: Duration| (pause * 2).min(TROUBLE_PAUSE));
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
            if left.is_zero() {
                self.tell(last);
                return None;
            }
            if self.sleep(pause.min(left)).is_some() {
                return None;
            }
        }
    }

    /// Puts the beginning on record, while the lease need not be renewed.
    fn begin(&mut self, claim: &LockClaim, until: Instant) -> Result<Begun, LedgerError> {
        loop {
            let began = self.record.begin(claim, until);
            match began {
                Err(error) if may_pass(&error) && Instant::now() + PAUSE.1 < until => {
                    tracing::warn!(%error, lock = %claim.name, "the run is not on record yet");
                    thread::sleep(PAUSE.1);
                }
                other => return other,
            }
        }
    }

    /// Renews until the command has ended; returns how that was, and whether the lock was lost.
    fn keep(&self, claim: &LockClaim, taken: Instant, trust: &mut Duration) -> (CommandEnd, bool) {
        let ttl = self.wish.terms.ttl;
        let call = (ttl / 6).min(CALL);
        let (mut due, mut is_lost) = (taken + ttl / 3, false);
        loop {
            let pause = match is_lost {
                true => Duration::MAX,
                false => due.saturating_duration_since(Instant::now()),
            };
            if let Some(end) = self.sleep(pause) {
                return (end, is_lost);
            }
            let (asked, asked_since_boot) = (Instant::now(), since_boot());
            match (self.ledger.renew_lock(claim, ttl, asked + call), asked_since_boot) {
                (Ok(true), Ok(since_boot)) => {
                    *trust = since_boot + ttl;
                    self.tell(LockNews::Renewed { trust: *trust });
                    due = asked + ttl / 3;
                }
                (Ok(false), _) => {
                    self.tell(LockNews::Lost);
                    is_lost = true;
                }
                (Err(error), _) => {
                    tracing::warn!(%error, lock = %claim.name, "the lock was not renewed");
                    due = Instant::now() + (ttl / 24).min(Duration::from_secs(1));
                }
                (Ok(true), Err(_)) => due = Instant::now() + ttl / 24,
            }
        }
    }

    /// Puts the end on record, trying until the lease ends.
    fn end(
        &mut self,
        claim: &LockClaim,
        end: &CommandEnd,
        trust: Duration,
    ) -> Result<EndRecord, LedgerError> {
        loop {
            let left = since_boot().map_or(Duration::ZERO, |now| trust.saturating_sub(now));
            let until = Instant::now() + left.clamp(RELEASE, CALL);
            match self.record.end(claim, end, until) {
                Err(error) if may_pass(&error) && left > PAUSE.1 => {
                    tracing::warn!(%error, lock = %claim.name, "the end is not on record yet");
                    thread::sleep(PAUSE.1);
                }
                other => return other,
            }
        }
    }

    /// Gives the lock back; returns whether it was ours, if that is known.
    fn release(&self, claim: &LockClaim) -> Option<bool> {
        let released = self.ledger.release_lock(claim, Instant::now() + RELEASE);
        if let Err(error) = &released {
            tracing::warn!(%error, lock = %claim.name, "the lock was not given back");
        }
        released.ok()
    }
}

/// Trying again soon may help.
fn may_pass(error: &LedgerError) -> bool {
    match error {
        LedgerError::Contended
        | LedgerError::Unavailable(_)
        | LedgerError::Busy(_)
        | LedgerError::TookTooLong(_) => true,
        LedgerError::Version { .. }
        | LedgerError::Login(_)
        | LedgerError::Refused(_)
        | LedgerError::Broken(_) => false,
    }
}

fn copy_of(error: &LedgerError) -> LedgerError {
    LedgerError::Unavailable(error.to_string())
}

fn jittered() -> Duration {
    let spread = (PAUSE.1 - PAUSE.0).as_micros() as u64;
    PAUSE.0 + Duration::from_micros(SystemClock.random() % spread)
}

/// The slots in random order: where several come at once, each tries another one first.
fn shuffled(slots: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (1..=slots).collect();
    for at in (1..all.len()).rev() {
        let other = SystemClock.random() % (at as u64 + 1);
        all.swap(at, other as usize);
    }
    all
}

/// Who has a lock, in words.
pub fn described(rows: &[LockRow]) -> String {
    let one = |row: &LockRow| {
        let LockHolder { host, pid, command, note, .. } = &row.holder;
        let left = match row.left {
            Some(left) => format!("{} s left", left.as_secs()),
            None => "run out".to_owned(),
        };
        let note = if note.is_empty() { String::new() } else { format!(", {note}") };
        format!("slot {} by {host} pid {pid} ({command}{note}), {left}", row.slot)
    };
    rows.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!((0..500).all(|_| (PAUSE.0..PAUSE.1).contains(&jittered())));
    }
}
