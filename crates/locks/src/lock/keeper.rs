//! The thread that talks with the ledger: takes the lock, renews it every third of its time, and
//! every 30 s at least, gives it back, and keeps the run's record between. The wrapper's other
//! thread never waits for the ledger. Of those that wait on a host the first alone asks
//! ([`line`](super::line)), at once when one of the host gives the lock back, or when the ledger
//! says that another did, if it says such a thing, and else every 20 ms: later less often, every
//! 250 ms at last, unless its turn is next and no other of its host has the lock. Where the ledger
//! cannot be asked, it asks less often still, and says so once. It waits by the boot clock: a
//! machine that wakes up renews at once.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::boot_timer::BootTimer;
use super::line::Line;
use super::record::{Begun, CommandEnd, EndRecord, RunRecord, Variables};
use super::{LockTerms, since_boot};
use onedrop_core::exit::LockEnding;
use onedrop_core::ledger::{LedgerError, LockClaim, LockHolder, LockRow, Locks, RandomValue};
use onedrop_core::lock_name::LockName;

mod asking;

/// Shortest and longest pause of a waiter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// Longest pause of the waiter whose turn is next, of all hosts.
const NEXT: Duration = Duration::from_millis(20);
/// One that has waited for less does not ask for the ledger's word, which takes two calls.
const LISTENS_AFTER: Duration = Duration::from_secs(2);
/// Longest pause of a waiter that listens: a word may be lost.
const LISTENING: Duration = Duration::from_millis(500);
/// What it may take to ask for the word.
const BEGINS_TO_LISTEN: Duration = Duration::from_secs(2);
/// Before a call that failed is made again.
pub(super) const AGAIN: Duration = Duration::from_millis(200);
/// Longest pause where the ledger cannot be asked.
const TROUBLE_PAUSE: Duration = Duration::from_secs(5);
/// How often it is asked whether an administrator wants the command to end, however long a lease.
pub const ASKED_FOR_THE_END: Duration = Duration::from_secs(10);
/// One call of the ledger, at most.
const CALL: Duration = Duration::from_secs(10);
/// What giving back may take; the lease ends by itself as well.
pub(super) const RELEASE: Duration = Duration::from_secs(5);
/// The same for a claim that had no answer, and the time that a waiter has for all when it is to
/// end.
pub(super) const LEAVE: Duration = Duration::from_secs(1);
/// Within this time after its lock has run out, a process has its command's end on its host's disk:
/// a call of the ledger that hangs may keep it from that.
pub const END_KEPT_WITHIN: Duration = CALL.saturating_add(RELEASE);

/// The lock that is wanted.
#[derive(Debug, Clone)]
pub struct LockWish {
    pub name: LockName,
    /// How many may hold it at a time.
    pub slots: u32,
    pub terms: LockTerms,
    /// How long to wait for it; zero: not at all.
    pub wait: Duration,
    pub owner: RandomValue,
    pub holder: LockHolder,
    /// Where those of this host wait.
    pub line: Option<Line>,
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
    /// An administrator wants the command to end.
    Stop(String),
    /// Claimed by another, or stolen.
    Lost,
    /// Not in time; these have it.
    Busy(Vec<LockRow>),
    /// Not in time; how many of this host wait for it still, and came before.
    InLine(u32),
    /// The ledger cannot be asked, and is asked again.
    Waits(LedgerError),
    Failed(LedgerError),
    /// The end.
    Released(Closing),
    /// The thread is no more, whatever it said before: it may have panicked.
    Gone,
}

/// What the keeper gets when the command has ended or will not run.
#[derive(Debug)]
pub(super) struct Stop {
    pub command: CommandEnd,
    /// Not where something of the command may live on: its lease runs out.
    pub gives_back: bool,
}

/// What is known when all is over.
#[derive(Debug)]
pub(super) struct Closing {
    /// Whether the lock was still ours when it was given back; `None`: that is not known.
    pub was_ours: Option<bool>,
    pub recorded: Result<EndRecord, LedgerError>,
    /// A claim, or the giving back, had no answer: the ledger may do it later.
    pub is_unclear: bool,
}

impl Closing {
    /// Of a lock that was given back before the command began.
    fn given_back(was_ours: Option<bool>) -> Closing {
        Closing { was_ours, recorded: Ok(EndRecord::NoRecord), is_unclear: was_ours.is_none() }
    }
}

/// A handle on the thread.
pub(super) struct Keeper {
    news: Receiver<LockNews>,
    /// Gets a byte with each news.
    bell: UnixStream,
    is_gone: bool,
    stop: Sender<Stop>,
    /// Closed after a word to stop.
    stop_bell: UnixStream,
    /// It has ended by itself.
    closing: Option<Closing>,
}

impl Keeper {
    /// `guardian` hears when the ledger is asked for the lock.
    pub fn start(
        ledger: Arc<dyn Locks>,
        wish: LockWish,
        record: Box<dyn RunRecord>,
        guardian: UnixStream,
    ) -> io::Result<Keeper> {
        let ((tell, news), (stop, stopped)) = (channel(), channel());
        let ((ringing, bell), (stop_bell, stop_rung)) = (UnixStream::pair()?, UnixStream::pair()?);
        bell.set_nonblocking(true)?;
        let timer = BootTimer::new()?;
        let work = Work {
            ledger,
            wish,
            record,
            news: tell,
            bell: ringing,
            stop: stopped,
            stop_rung,
            timer,
            is_unclear: Cell::new(false),
        };
        thread::Builder::new().name("keeper".to_owned()).spawn(move || work.run(guardian))?;
        Ok(Keeper { news, bell, is_gone: false, stop, stop_bell, closing: None })
    }

    /// Readable when there is news; `None`: there will be no more.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd()).filter(|_| !self.is_gone)
    }

    pub fn news(&mut self) -> Vec<LockNews> {
        let mut bytes = [0; 64];
        let is_closed = loop {
            match (&self.bell).read(&mut bytes) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
        };
        let mut news: Vec<LockNews> = self.news.try_iter().collect();
        if let Some(LockNews::Released(_)) = news.last() {
            let Some(LockNews::Released(closing)) = news.pop() else { return news };
            self.closing = Some(closing);
        }
        if is_closed && !self.is_gone {
            self.is_gone = true;
            news.push(LockNews::Gone);
        }
        news
    }

    /// The command has ended or will not run: puts that on record, where there is one, for which
    /// `patience` is left, and gives the lock back, if it is held. `None`: the ledger hangs.
    pub fn stop(self, stop: Stop, patience: Duration) -> Option<Closing> {
        let end = Instant::now() + patience + RELEASE + LEAVE;
        self.stop_until(stop, end)
    }

    /// The same of a waiter that has not got the lock.
    pub fn leave(self, stop: Stop) -> Option<Closing> {
        self.stop_until(stop, Instant::now() + LEAVE)
    }

    fn stop_until(self, stop: Stop, end: Instant) -> Option<Closing> {
        let Keeper { news, stop: tell, stop_bell, closing, .. } = self;
        let _ = tell.send(stop);
        drop(stop_bell);
        loop {
            match news.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(LockNews::Released(closing)) => return Some(closing),
                Ok(_) => {}
                Err(_) => return closing,
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
    stop: Receiver<Stop>,
    stop_rung: UnixStream,
    timer: BootTimer,
    /// A claim that took no lock, as far as is known, had no answer.
    is_unclear: Cell<bool>,
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
    fn run(mut self, guardian: UnixStream) {
        let closing = match self.take(guardian) {
            Some(taken) => self.hold(taken),
            None => Closing { is_unclear: self.is_unclear.get(), ..Closing::given_back(None) },
        };
        self.tell(LockNews::Released(closing));
    }

    fn hold(&mut self, taken: TakenLock) -> Closing {
        let ttl = self.wish.terms.ttl;
        if self.is_told_to_stop().is_some() {
            return Closing::given_back(self.release(&taken.claim));
        }
        let begun = self.begin(&taken.claim, taken.asked + ttl / 3);
        let TakenLock { claim, others, asked_since_boot, .. } = taken;
        let variables = match begun {
            Ok(Begun::Run(variables)) => variables,
            Ok(Begun::NothingToDo(why)) => {
                self.tell(LockNews::NothingToDo(why));
                return Closing::given_back(self.release(&claim));
            }
            Ok(Begun::Refused(why)) => {
                self.tell(LockNews::Refused(why));
                return Closing::given_back(self.release(&claim));
            }
            Err(error) => {
                self.tell(LockNews::Failed(error));
                return Closing::given_back(self.release(&claim));
            }
        };
        let mut trust = asked_since_boot + ttl;
        self.tell(LockNews::Taken { claim: claim.clone(), trust, others, variables });
        let (stop, is_lost) = self.keep(&claim, &mut trust);
        let recorded = self.end(&claim, &stop.command, trust);
        let was_ours = match is_lost {
            true => Some(false),
            false if stop.gives_back => self.release(&claim),
            false => None,
        };
        let is_unclear = was_ours.is_none() && stop.gives_back;
        Closing { was_ours, recorded, is_unclear }
    }

    fn tell(&self, news: LockNews) {
        // The other thread is there as long as the process.
        let _ = self.news.send(news);
        let _ = (&self.bell).write_all(b"!");
    }

    fn is_told_to_stop(&self) -> Option<Stop> {
        match self.stop.try_recv() {
            Ok(stop) => Some(stop),
            Err(TryRecvError::Empty) => None,
            // It is there as long as the process.
            Err(TryRecvError::Disconnected) => {
                let ending = LockEnding::Failed("the wrapper is gone".to_owned());
                let command = CommandEnd { ending, output: String::new() };
                Some(Stop { command, gives_back: true })
            }
        }
    }

    /// Sleeps to `at` (time since the boot; `None`: for ever), or less, unless the other thread
    /// wants the end.
    fn sleep_until(&self, at: Option<Duration>) -> Option<Stop> {
        self.sleep_until_or(at, None)
    }

    /// The same, or until `bell` can be read.
    fn sleep_until_or(&self, at: Option<Duration>, bell: Option<BorrowedFd<'_>>) -> Option<Stop> {
        let stop = self.stop_rung.as_fd();
        if self.timer.wait([stop, bell.unwrap_or(stop)], at).is_err() {
            thread::sleep(PAUSE.0);
        }
        self.is_told_to_stop()
    }

    /// The same, or until the ledger says that the lock was given back; and whether it says such a
    /// thing.
    fn sleep_until_released(
        &self,
        at: Duration,
        bell: Option<BorrowedFd<'_>>,
    ) -> (Option<Stop>, bool) {
        let stop = self.stop_rung.as_fd();
        let until = Instant::now() + BEGINS_TO_LISTEN;
        let others: Vec<_> = [stop, self.timer.as_fd()].into_iter().chain(bell).collect();
        let hears = self.timer.set(Some(at)).is_ok()
            && self.ledger.wait_for_release(&self.wish.name, &others, until);
        match hears {
            true => (self.is_told_to_stop(), true),
            false => (self.sleep_until_or(Some(at), bell), false),
        }
    }

    /// Puts the beginning on record, while enough of the lease is left for the command's end.
    fn begin(&mut self, claim: &LockClaim, until: Instant) -> Result<Begun, LedgerError> {
        loop {
            let began = self.record.begin(claim, until);
            match began {
                Err(error) if may_pass(&error) && Instant::now() + AGAIN < until => {
                    tracing::warn!(%error, lock = %claim.name, "the run is not on record yet");
                    thread::sleep(AGAIN);
                }
                other => return other,
            }
        }
    }

    /// Renews until the command has ended; returns how that was, and whether the lock was lost.
    fn keep(&self, claim: &LockClaim, trust: &mut Duration) -> (Stop, bool) {
        let terms = self.wish.terms;
        let LockTerms { ttl, .. } = terms;
        let call = (ttl / 6).min(CALL);
        let (mut due, mut is_lost) = (terms.renewed_at(*trust), false);
        let (pause, mut is_stopped) = ((ttl / 3).min(ASKED_FOR_THE_END), false);
        let mut end_due = since_boot().unwrap_or_default() + pause;
        loop {
            let next = if is_stopped { due } else { due.min(end_due) };
            if let Some(stop) = self.sleep_until(Some(next).filter(|_| !is_lost)) {
                return (stop, is_lost);
            }
            let (asked, asked_since_boot) = (Instant::now(), since_boot().unwrap_or_default());
            if is_lost || asked_since_boot < next {
                continue;
            }
            if asked_since_boot >= due {
                match self.ledger.renew_lock(claim, ttl, asked + call) {
                    Ok(true) => {
                        *trust = asked_since_boot + ttl;
                        self.tell(LockNews::Renewed { trust: *trust });
                        due = terms.renewed_at(*trust);
                    }
                    Ok(false) => {
                        self.tell(LockNews::Lost);
                        is_lost = true;
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(%error, lock = %claim.name, "the lock was not renewed");
                        let now = since_boot().unwrap_or_default();
                        let left = terms.ends_at(*trust).saturating_sub(now);
                        due = now + (left / 24).clamp(AGAIN, TROUBLE_PAUSE);
                        continue;
                    }
                }
            }
            if is_stopped {
                continue;
            }
            end_due = asked_since_boot + pause;
            if let Some(by) = self.record.stop_wanted(claim, asked + call) {
                self.tell(LockNews::Stop(by));
                is_stopped = true;
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
                Err(error) if may_pass(&error) && left > AGAIN => {
                    tracing::warn!(%error, lock = %claim.name, "the end is not on record yet");
                    thread::sleep(AGAIN);
                }
                other => return other,
            }
        }
    }

    fn release(&self, claim: &LockClaim) -> Option<bool> {
        let line = self.wish.line.as_ref();
        let was_ours = give_back(&*self.ledger, line, claim, RELEASE);
        // A ledger that does not answer has no session to give.
        if was_ours.is_some()
            && let Some(letterbox) = line.and_then(Line::next_letterbox)
        {
            self.ledger.hand_session_on(&letterbox, Instant::now() + LEAVE);
        }
        was_ours
    }
}

/// Gives back what a claim of `owner` has taken that had no answer, or whose answer was not used:
/// else the lock would be held without a holder until its lease ends. Returns whether it had taken
/// the lock. `kept` is the slot of a later claim, which had an answer.
pub(super) fn give_back_all_of(
    ledger: &dyn Locks,
    line: Option<&Line>,
    (name, owner): (&LockName, RandomValue),
    kept: Option<u32>,
    time: Duration,
) -> bool {
    let end = Instant::now() + time;
    let mut own = ledger.lock_rows(Some(name), end).unwrap_or_default();
    own.retain(|row| row.owner == owner && Some(row.slot) != kept);
    for LockRow { name, slot, epoch, owner, .. } in &own {
        let claim = LockClaim { name: name.clone(), slot: *slot, epoch: *epoch, owner: *owner };
        let left = end.saturating_duration_since(Instant::now());
        let was_ours = give_back(ledger, line, &claim, left);
        tracing::info!(?was_ours, "a claim that had no answer was given back");
    }
    !own.is_empty()
}

/// Gives a lock back, trying for `time`; those of this host that wait for it then ask at once.
/// Returns whether it was still held under this claim, if that is known.
pub(super) fn give_back(
    ledger: &dyn Locks,
    line: Option<&Line>,
    claim: &LockClaim,
    time: Duration,
) -> Option<bool> {
    let end = Instant::now() + time;
    let mut is_unclear = false;
    let was_ours = loop {
        match ledger.release_lock(claim, end) {
            Ok(true) => break Some(true),
            // An earlier call may have given it back, and another have claimed it since.
            Ok(false) => break Some(false).filter(|_| !is_unclear),
            Err(error) => {
                tracing::warn!(%error, lock = %claim.name, "the lock was not given back");
                is_unclear |= may_have_done_it(&error);
                if !may_pass(&error) || Instant::now() + AGAIN >= end {
                    break None;
                }
                thread::sleep(AGAIN);
            }
        }
    };
    if let Some(line) = line {
        line.ring(claim.owner);
    }
    was_ours
}

/// The call may have taken effect all the same.
fn may_have_done_it(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Unavailable(_) | LedgerError::TookTooLong(_))
}

/// Trying again soon may help.
pub fn may_pass(error: &LedgerError) -> bool {
    match error {
        LedgerError::Contended
        | LedgerError::Unavailable(_)
        | LedgerError::Busy(_)
        | LedgerError::TookTooLong(_) => true,
        LedgerError::Version(_)
        | LedgerError::OtherConfig(_)
        | LedgerError::Login(_)
        | LedgerError::Denied(_)
        | LedgerError::Clock(_)
        | LedgerError::Refused(_)
        | LedgerError::Forgotten
        | LedgerError::Broken(_) => false,
    }
}

fn copy_of(error: &LedgerError) -> LedgerError {
    LedgerError::Unavailable(error.to_string())
}

/// A phrase that names who has a lock.
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
mod tests;
