//! Delivers what files hold. One thread reads, as many as asked for deliver, and the caller's
//! thread hears how each message ended, keeps the state file, and decides whether to go on: where
//! ledger or store are out of reach, each further message would only fail as well. What another
//! delivery has just now, or a killed one had, is tried again at the end, until its lease is over.

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::envelope;
use super::failures::{FailedForNow, LEFT};
use super::pace::{MessageRate, Pacer};
use super::place::{FileId, MOST_BYTES, SourcePlace};
use super::report::{EndMeaning, FileReport, FileState, ended, told, unreadable};
use super::state::{DoneBefore, DoneMark, ReplayState};
use super::walk::{Walk, WalkStep};
use onedrop_core::deliver::Failure;
use onedrop_core::message::Message;
use onedrop_core::text;
use onedrop_site::command_line::MboxQuoting;
use onedrop_site::delivery_log::DeliveryLogRecord;
use onedrop_site::service::Service;

/// A ledger that is out of reach is tried again after these pauses.
const LEDGER_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// Between two tries of what another delivery has.
const HELD_PAUSE: Duration = Duration::from_millis(500);
/// How many messages that others have are kept for later.
const MOST_HELD: usize = 10_000;
/// A lease ends a little later than its owner's deadline.
const BEHIND_A_LEASE: Duration = Duration::from_secs(5);

/// What to replay.
pub struct FilesToReplay<'a> {
    pub sources: &'a [PathBuf],
    /// The recipients; none: each message says for whom it is.
    pub to: &'a [String],
    pub mbox: Option<MboxQuoting>,
    pub subfolders: bool,
    pub dry_run: bool,
    pub rate: Option<MessageRate>,
    /// How many messages are delivered at a time.
    pub parallel: usize,
    /// The state file, which is no message.
    pub state: Option<FileId>,
    pub done: &'a DoneBefore,
}

/// News of a run.
#[derive(Debug)]
pub enum ReplayNews {
    Ended(FileReport),
    Begins {
        path: PathBuf,
        units: u64,
    },
    At {
        units: u64,
    },
    /// Messages that earlier runs have delivered.
    Done {
        count: u64,
    },
    Changed {
        path: PathBuf,
    },
    /// A sentence; nothing has failed.
    Note(String),
    /// Messages that other deliveries hold, and that are tried again.
    Waits {
        count: usize,
    },
}

/// How a run ended.
#[derive(Debug, Default)]
pub struct ReplayEnd {
    /// Where it ended before its time, and why; what follows is left.
    pub stopped: Option<(String, String)>,
    /// All that it tried failed for now, and messages were left.
    pub is_in_vain: bool,
}

/// A message for a worker.
struct MessageWork {
    place: SourcePlace,
    mark: DoneMark,
    bytes: Vec<u8>,
}

/// What a worker or the reader has to say.
enum WorkerNews {
    News(ReplayNews),
    /// `ends`: no further message is to be tried.
    Delivered {
        report: FileReport,
        place: SourcePlace,
        mark: DoneMark,
        why: EndMeaning,
        ends: bool,
    },
}

/// Replays all there is.
///
/// # Errors
/// The state file cannot be written.
pub fn from_files(
    asked: &FilesToReplay<'_>,
    service: &Service,
    state: Option<ReplayState>,
    tell: &mut dyn FnMut(ReplayNews),
) -> Result<ReplayEnd, String> {
    let stop = AtomicBool::new(false);
    let mut run = ReplayRun { state, held: Vec::new(), end: ReplayEnd::default(), tell };
    let pacer = Mutex::new(Pacer::new(asked.rate));
    let failed = Mutex::new(FailedForNow::new(!asked.to.is_empty()));
    let replayer = Replayer { asked, service, pacer, failed };
    let heard = thread::scope(|scope| {
        let (to_workers, work) = sync_channel::<MessageWork>(0);
        let (news, heard) = sync_channel::<WorkerNews>(asked.parallel * 2);
        let (work, stop) = (Mutex::new(work), &stop);
        // Shared by the workers, and dropped with the last.
        let work = std::sync::Arc::new(work);
        for _ in 0..asked.parallel {
            let (work, news, replayer) = (std::sync::Arc::clone(&work), news.clone(), &replayer);
            scope.spawn(move || replayer.work(&work, &news, stop));
        }
        drop(work);
        let reader = &replayer;
        scope.spawn(move || reader.read(&to_workers, &news, stop));
        let heard = heard.into_iter().try_for_each(|one| run.hear(one));
        stop.store(true, Ordering::SeqCst);
        heard
    });
    heard?;
    run.try_held_again(&replayer)?;
    let ReplayRun { state, end, .. } = run;
    state.map_or(Ok(()), ReplayState::end)?;
    let is_in_vain = replayer.failed().is_in_vain();
    Ok(ReplayEnd { is_in_vain, ..end })
}

/// The caller's side of a run.
struct ReplayRun<'a> {
    state: Option<ReplayState>,
    held: Vec<(SourcePlace, DoneMark, FileReport)>,
    end: ReplayEnd,
    tell: &'a mut dyn FnMut(ReplayNews),
}

impl ReplayRun<'_> {
    fn hear(&mut self, news: WorkerNews) -> Result<(), String> {
        let (report, place, mark, why, ends) = match news {
            WorkerNews::News(news) => {
                (self.tell)(news);
                return Ok(());
            }
            WorkerNews::Delivered { report, place, mark, why, ends } => {
                (report, place, mark, why, ends)
            }
        };
        match why {
            EndMeaning::Delivered => self.is_done(&mark, report.state)?,
            EndMeaning::Held if self.held.len() < MOST_HELD => {
                self.held.push((place, mark, report));
                return Ok(());
            }
            EndMeaning::OfIts | EndMeaning::Held | EndMeaning::ForNow | EndMeaning::NoLedger => {}
        }
        if ends && self.end.stopped.is_none() {
            self.end.stopped = Some((report.place.clone(), report.text.clone()));
        }
        (self.tell)(ReplayNews::Ended(report));
        Ok(())
    }

    fn is_done(&mut self, mark: &DoneMark, state: FileState) -> Result<(), String> {
        match &mut self.state {
            Some(file) if state != FileState::WouldBeDelivered => file.add(mark),
            _ => Ok(()),
        }
    }

    /// Tries again what others had, until a lease that a killed delivery left is over, and as long
    /// as their rate asks for.
    fn try_held_again(&mut self, replayer: &Replayer<'_>) -> Result<(), String> {
        let mut held = std::mem::take(&mut self.held);
        let lease = replayer.service.policy.lease + BEHIND_A_LEASE;
        let until = Instant::now() + lease + replayer.pacer().time_for(held.len());
        while !held.is_empty() && self.end.stopped.is_none() && Instant::now() < until {
            (self.tell)(ReplayNews::Waits { count: held.len() });
            thread::sleep(HELD_PAUSE);
            let mut still = Vec::new();
            for (place, mark, report) in held {
                if self.end.stopped.is_some() || Instant::now() >= until {
                    still.push((place, mark, report));
                    continue;
                }
                replayer.wait_for_turn(&AtomicBool::new(false));
                let (report, why) = match place.read(replayer.limit(), mark.version()) {
                    Ok(bytes) => replayer.deliver_patiently(&place, bytes),
                    Err(text) => (FileReport { text, ..report }, EndMeaning::OfIts),
                };
                if why == EndMeaning::Held {
                    still.push((place, mark, report));
                    continue;
                }
                let ends = replayer.ends(why, &report);
                self.hear(WorkerNews::Delivered { report, place, mark, why, ends })?;
            }
            held = still;
        }
        held.into_iter().for_each(|(_, _, report)| (self.tell)(ReplayNews::Ended(report)));
        Ok(())
    }
}

/// What reads and delivers.
struct Replayer<'a> {
    asked: &'a FilesToReplay<'a>,
    service: &'a Service,
    pacer: Mutex<Pacer>,
    failed: Mutex<FailedForNow>,
}

impl Replayer<'_> {
    /// What is read of a message at most.
    fn limit(&self) -> u64 {
        match self.service.config().limits.message_bytes {
            0 => MOST_BYTES,
            limit => limit,
        }
    }

    fn pacer(&self) -> MutexGuard<'_, Pacer> {
        self.pacer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the next message may be delivered, or the run is to stop.
    fn wait_for_turn(&self, stop: &AtomicBool) {
        let pause = self.pacer().pause(Instant::now());
        sleep_unless(stop, pause);
    }

    /// Reads all sources; ends early when no thread takes messages any more.
    fn read(
        &self,
        workers: &SyncSender<MessageWork>,
        news: &SyncSender<WorkerNews>,
        stop: &AtomicBool,
    ) {
        let met = Cell::new(false);
        let mut visit = |step: WalkStep| {
            if stop.load(Ordering::SeqCst) {
                return ControlFlow::Break(());
            }
            use WalkStep::{Done, Message, Unreadable};
            if matches!(step, Message { .. } | Unreadable { .. } | Done { .. }) {
                met.set(true);
            }
            let told = match step {
                WalkStep::Message { place, mark, bytes } => {
                    self.wait_for_turn(stop);
                    workers.send(MessageWork { place, mark, bytes }).is_ok()
                }
                step => news.send(WorkerNews::News(of_step(step))).is_ok(),
            };
            if told { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let mut walk = Walk {
            mbox: self.asked.mbox,
            subfolders: self.asked.subfolders,
            limit: self.limit(),
            state: self.asked.state,
            done: self.asked.done,
            moved: HashSet::new(),
            visit: &mut visit,
        };
        let _ = self.asked.sources.iter().try_for_each(|source| {
            met.set(false);
            walk.source(source)?;
            if met.get() {
                return ControlFlow::Continue(());
            }
            (walk.visit)(WalkStep::Note(format!("{}: no message in it", source.display())))
        });
    }

    /// Delivers until there is no more.
    fn work(
        &self,
        work: &Mutex<Receiver<MessageWork>>,
        news: &SyncSender<WorkerNews>,
        stop: &AtomicBool,
    ) {
        loop {
            let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(MessageWork { place, mark, bytes }) = next else { return };
            // It was read before the others failed.
            if stop.load(Ordering::SeqCst) {
                return;
            }
            let (report, why) = self.deliver_patiently(&place, bytes);
            let ends = self.ends(why, &report);
            if ends {
                stop.store(true, Ordering::SeqCst);
            }
            if news.send(WorkerNews::Delivered { report, place, mark, why, ends }).is_err() {
                return;
            }
        }
    }

    fn failed(&self) -> MutexGuard<'_, FailedForNow> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether further messages would only fail as well.
    fn ends(&self, why: EndMeaning, report: &FileReport) -> bool {
        self.failed().ends(why, &report.recipients, &report.account)
    }

    /// A ledger may be away for a moment.
    fn deliver_patiently(&self, place: &SourcePlace, bytes: Vec<u8>) -> (FileReport, EndMeaning) {
        let message = Message::new(bytes, self.service.by);
        for pause in LEDGER_PAUSES {
            let (report, why) = self.deliver(place, &message);
            if why != EndMeaning::NoLedger {
                return (report, why);
            }
            thread::sleep(pause);
        }
        self.deliver(place, &message)
    }

    fn deliver(&self, place: &SourcePlace, message: &Message) -> (FileReport, EndMeaning) {
        let envelope = envelope::of(message, self.asked.to);
        let report = FileReport {
            place: place.to_string(),
            message_id: message.identity().message_id.clone(),
            recipients: envelope.recipients.clone(),
            account: envelope.recipients.join(" "),
            state: FileState::Failed,
            text: String::new(),
        };
        if message.own_copy().is_empty() {
            return (
                FileReport { text: "there is nothing in it".to_owned(), ..report },
                EndMeaning::OfIts,
            );
        }
        if envelope.recipients.is_empty() {
            return (FileReport { text: NO_RECIPIENT.to_owned(), ..report }, EndMeaning::OfIts);
        }
        if self.failed().is_left(&envelope.recipients) {
            return (FileReport { text: LEFT.to_owned(), ..report }, EndMeaning::OfIts);
        }
        let deadline = self.service.deadline();
        if self.asked.dry_run {
            return match self.service.places(message, &envelope, deadline.end()) {
                Ok(places) => {
                    let state = FileState::WouldBeDelivered;
                    (FileReport { state, text: places, ..report }, EndMeaning::Delivered)
                }
                Err(failure) => {
                    let ending = failure.ending();
                    let text = told(&ending.outcome);
                    (FileReport { text, ..report }, EndMeaning::of(&ending))
                }
            };
        }
        let started = Instant::now();
        let deliver = || self.service.deliver_to(message, &envelope, started, &deadline);
        // A panic is a failure of this message and of no other.
        let delivered = catch_unwind(AssertUnwindSafe(deliver))
            .unwrap_or_else(|panic| Err(Failure::Internal(text::of_panic(panic))));
        let endings =
            delivered.unwrap_or_else(|failure| vec![failure.ending(); envelope.recipients.len()]);
        for (recipient, ending) in envelope.recipients.iter().zip(&endings) {
            let record = DeliveryLogRecord {
                sender: &envelope.sender,
                recipient,
                message_id: report.message_id.as_deref(),
                account: ending.account.as_deref(),
                own: ending.own.as_ref(),
                collision: ending.collision,
                took: Some(started.elapsed()),
                phases: Some(&ending.phases),
                reason: ending.reason,
                by: "replayed: ",
                ..DeliveryLogRecord::default()
            };
            record.log(&ending.outcome);
        }
        ended(report, &envelope.recipients, &endings)
    }
}

/// Sleeps, and no longer than until it is to stop.
fn sleep_unless(stop: &AtomicBool, pause: Duration) {
    let until = Instant::now() + pause;
    while !stop.load(Ordering::SeqCst) && Instant::now() < until {
        thread::sleep(HELD_PAUSE.min(until.saturating_duration_since(Instant::now())));
    }
}

const NO_RECIPIENT: &str = "no recipient: no Delivered-To and no X-Original-To above its first \
                            Received field; say for whom it is, --to";

fn of_step(step: WalkStep) -> ReplayNews {
    match step {
        WalkStep::Begins { path, units } => ReplayNews::Begins { path, units },
        WalkStep::At { units } => ReplayNews::At { units },
        WalkStep::Done { count } => ReplayNews::Done { count },
        WalkStep::Changed { path } => ReplayNews::Changed { path },
        WalkStep::Note(text) => ReplayNews::Note(text),
        WalkStep::Unreadable { place, why } => ReplayNews::Ended(unreadable(place, why)),
        WalkStep::Message { place, .. } => {
            ReplayNews::Ended(unreadable(place.to_string(), String::new()))
        }
    }
}
