//! A model of named locks, checked exhaustively: claims over several slots, renewals, releases that
//! are made again, and theft, with requests and answers that are lost or come late, crashes of a
//! wrapper, with its guardian or without, and commands whose both watchers are stopped. Programs
//! that take the lock by SQL are among them: none ends those, and one that does not renew its lease
//! goes on after it.
//! It shares no code with `src/`.
//!
//! Time is the ledger's clock; a holder's own clock goes as fast. As long as one of a command's two
//! watchers runs, time does not reach the trust instant before the command has ended: that is what
//! the watchers are for.

use stateright::{Model, Property};

use crate::explored::{breaks, holds};
use crate::full;

const TTL: u8 = 3;

/// A rule that is broken, to see that the model would find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// Trust is counted from the answer.
    TrustFromAnswer,
    /// No guardian ends the command when its lease ends.
    NoWatch,
    /// A claim keeps the epoch.
    SameEpoch,
    /// A release asks only for the slot.
    ReleasesAnybodys,
    /// The guardian gives the lock of a wrapper that has crashed back before it has ended the
    /// command.
    GivesBackTooSoon,
    /// A release that is made again is believed to have found what the first one left.
    BelievesSecondRelease,
    /// A program writes what is fenced without a look at the lock.
    NoFence,
}

#[derive(Debug, Clone)]
struct Locks {
    processes: usize,
    /// The first of them are programs that take the lock by SQL.
    programs: usize,
    runs: u8,
    slots: usize,
    until: u8,
    /// Sessions that are lost, processes that crash and slots that are stolen, each at most.
    faults: u8,
    /// Both watchers of a command may be stopped, and a lease that lasts may be stolen: then two
    /// may work, and only fencing helps.
    outside: bool,
    broken: Option<Broken>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    time: u8,
    slots: Vec<Slot>,
    processes: Vec<Process>,
    lost: u8,
    crashed: u8,
    stolen: u8,
    /// An epoch was given out that was not higher than all before it.
    epoch_fell: bool,
    /// The fenced store took a write of an epoch after one of a higher epoch.
    write_fell: bool,
    /// A holder heard that it had lost the lock that it had given back.
    lost_falsely: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Slot {
    epoch: u8,
    owner: Option<Owner>,
    until: Option<u8>,
    highest_given: u8,
    highest_written: u8,
}

/// The random value of a run.
type Owner = (usize, u8);

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Process {
    run: u8,
    call: Option<Call>,
    answer: Option<(Call, Answer)>,
    /// A request whose process waits for it no more; the ledger may still execute it.
    late: Option<Call>,
    work: Option<Work>,
    /// A release of this run has taken effect.
    gave_back: bool,
    /// Both watchers; the command runs.
    is_stopped: bool,
    /// The wrapper has crashed, and its guardian has not ended yet.
    is_orphan: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Call {
    what: What,
    slot: usize,
    epoch: u8,
    owner: Owner,
    asked_at: u8,
    /// How many slots this claim has found held.
    tried: u8,
    /// An earlier one has had no answer.
    is_second: bool,
}

impl Call {
    fn new(what: What, slot: usize, epoch: u8, owner: Owner, asked_at: u8) -> Call {
        Call { what, slot, epoch, owner, asked_at, tried: 0, is_second: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Claim,
    Renew,
    Release,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Taken { slot: usize, epoch: u8 },
    Yes,
    No,
}

/// A command that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Work {
    slot: usize,
    epoch: u8,
    trust: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Tick,
    Claim(usize, usize),
    Renew(usize),
    /// The command has ended; its lock is given back.
    Release(usize),
    /// The watchers end the command.
    End(usize),
    Write(usize),
    Execute(usize),
    ExecuteLate(usize),
    Hear(usize),
    /// The request or its answer is lost with the session.
    Lose(usize),
    /// Of the wrapper and its guardian.
    Crash(usize),
    /// Of the wrapper alone.
    Orphan(usize),
    /// The guardian has ended the command, and gives the lock back.
    GiveBack(usize),
    Stop(usize),
    Go(usize),
    Steal(usize),
}

impl State {
    /// States that differ in nothing else are one.
    fn forget_what_no_step_asks(&mut self) {
        for process in &mut self.processes {
            // When a request was sent counts for its process alone, and not once that is long ago.
            if let Some(late) = &mut process.late {
                late.asked_at = 0;
            }
            let waits =
                process.call.iter_mut().chain(process.answer.iter_mut().map(|(call, _)| call));
            for call in waits {
                if call.asked_at + TTL <= self.time + 1 {
                    call.asked_at = 0;
                }
            }
        }
        for slot in &mut self.slots {
            // A lease that has run out has run out.
            slot.until = slot.until.map(|until| if until <= self.time { 0 } else { until });
        }
    }
}

impl Locks {
    /// Whether a wrapper may crash alone; elsewhere that is only another of many ways to the same.
    fn may_orphan(&self) -> bool {
        let has_commands = self.programs < self.processes;
        self.faults > 0 && self.slots == 1 && !self.outside && has_commands
    }

    fn must_end(&self, n: usize, process: &Process, time: u8) -> bool {
        let is_watched = n >= self.programs;
        let is_due = process.work.is_some_and(|work| time + 1 >= work.trust);
        is_due && is_watched && !process.is_stopped && self.broken != Some(Broken::NoWatch)
    }

    /// Whether two commands run in one slot, or two whose leases last as they believe. A program
    /// counts that long.
    fn two_in(&self, state: &State, trusting: bool) -> bool {
        let works = state.processes.iter().enumerate().filter_map(|(n, process)| {
            let lasts_anyhow = n >= self.programs && !trusting;
            process.work.filter(|work| lasts_anyhow || state.time < work.trust)
        });
        let mut slots: Vec<_> = works.map(|work| work.slot).collect();
        slots.sort_unstable();
        slots.windows(2).any(|pair| pair[0] == pair[1])
    }

    fn execute(&self, state: &mut State, call: Call) -> Answer {
        let time = state.time;
        let is_its = |slot: &&mut Slot| slot.owner == Some(call.owner) && slot.until.is_some();
        if call.what == What::Claim
            && let Some((at, own)) =
                state.slots.iter_mut().enumerate().find(|(_, slot)| is_its(slot))
        {
            own.until = Some(time + TTL);
            return Answer::Taken { slot: at, epoch: own.epoch };
        }
        let slot = &mut state.slots[call.slot];
        let is_own = slot.owner == Some(call.owner) && slot.epoch == call.epoch;
        match call.what {
            What::Claim if slot.until.is_some_and(|until| until > time) => Answer::No,
            What::Claim => {
                slot.epoch += u8::from(self.broken != Some(Broken::SameEpoch));
                slot.owner = Some(call.owner);
                slot.until = Some(time + TTL);
                state.epoch_fell |= slot.epoch <= slot.highest_given;
                slot.highest_given = slot.highest_given.max(slot.epoch);
                Answer::Taken { slot: call.slot, epoch: slot.epoch }
            }
            What::Renew if is_own => {
                let lasts = slot.until.is_some();
                slot.until = slot.until.map(|_| time + TTL);
                if lasts { Answer::Yes } else { Answer::No }
            }
            What::Release if is_own || self.broken == Some(Broken::ReleasesAnybodys) => {
                slot.until = None;
                let process = &mut state.processes[call.owner.0];
                process.gave_back |= process.run == call.owner.1;
                Answer::Yes
            }
            What::Renew | What::Release => Answer::No,
        }
    }
}

impl Model for Locks {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            time: 0,
            slots: vec![Slot::default(); self.slots],
            processes: vec![Process::default(); self.processes],
            lost: 0,
            crashed: 0,
            stolen: 0,
            epoch_fell: false,
            write_fell: false,
            lost_falsely: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let nobody_must_end =
            !(0..).zip(&state.processes).any(|(n, process)| self.must_end(n, process, state.time));
        if state.time < self.until && nobody_must_end {
            steps.push(Step::Tick);
        }
        for (n, process) in state.processes.iter().enumerate() {
            if process.late.is_some() {
                steps.push(Step::ExecuteLate(n));
            }
            if process.call.is_some() {
                steps.push(Step::Execute(n));
            }
            if process.work.is_some() {
                steps.push(Step::Write(n));
            }
            if process.is_stopped {
                steps.push(Step::Go(n));
                continue;
            }
            let is_busy = process.work.is_some() || process.call.is_some();
            if is_busy && state.crashed < self.faults {
                steps.push(Step::Crash(n));
            }
            if process.is_orphan {
                if process.work.is_some() && process.call.is_none() {
                    steps.push(Step::GiveBack(n));
                }
                if process.answer.is_some() {
                    steps.push(Step::Hear(n));
                }
                continue;
            }
            let is_watched = n >= self.programs && self.may_orphan();
            if process.work.is_some() && state.crashed < self.faults && is_watched {
                steps.push(Step::Orphan(n));
            }
            if self.must_end(n, process, state.time) {
                steps.push(Step::End(n));
            }
            if process.call.is_some() || process.answer.is_some() {
                if state.lost < self.faults {
                    steps.push(Step::Lose(n));
                }
                if process.answer.is_some() {
                    steps.push(Step::Hear(n));
                }
            } else if let Some(work) = process.work {
                if work.trust < state.time + TTL {
                    steps.push(Step::Renew(n));
                }
                steps.push(Step::Release(n));
            } else if process.run < self.runs {
                steps.extend((0..self.slots).map(|slot| Step::Claim(n, slot)));
            }
            if process.work.is_some() && self.outside {
                steps.push(Step::Stop(n));
            }
        }
        let may_be_stolen = |slot: &Slot| {
            slot.until.is_some_and(|until| until <= state.time || self.outside)
                && state.stolen < self.faults
        };
        let slots = state.slots.iter().enumerate().filter(|(_, slot)| may_be_stolen(slot));
        steps.extend(slots.map(|(n, _)| Step::Steal(n)));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        let time = state.time;
        match step {
            Step::Tick => state.time += 1,
            Step::Claim(n, slot) => {
                let process = &mut state.processes[n];
                process.run += 1;
                process.gave_back = false;
                let owner = (n, process.run);
                process.call = Some(Call::new(What::Claim, slot, 0, owner, time));
            }
            Step::Renew(n) | Step::Release(n) => {
                let process = &mut state.processes[n];
                let Work { slot, epoch, .. } = process.work?;
                let owner = (n, process.run);
                let what = match step {
                    Step::Renew(_) => What::Renew,
                    _ => What::Release,
                };
                process.call = Some(Call::new(what, slot, epoch, owner, time));
                if what == What::Release {
                    process.work = None;
                }
            }
            Step::End(n) => {
                let process = &mut state.processes[n];
                process.work = None;
                process.late = process.call.take().or(process.late);
                process.answer = None;
            }
            Step::Write(n) => {
                let Work { slot, epoch, .. } = state.processes[n].work?;
                let slot = &mut state.slots[slot];
                // onedrop_assert_lock, in one transaction with the write.
                let is_held = slot.epoch == epoch && slot.until.is_some_and(|until| until > time);
                if !is_held && self.broken != Some(Broken::NoFence) {
                    return None;
                }
                state.write_fell |= epoch < slot.highest_written;
                slot.highest_written = slot.highest_written.max(epoch);
            }
            Step::Execute(n) => {
                let call = state.processes[n].call.take()?;
                let answer = self.execute(&mut state, call);
                state.processes[n].answer = Some((call, answer));
            }
            Step::ExecuteLate(n) => {
                let call = state.processes[n].late.take()?;
                self.execute(&mut state, call);
            }
            Step::Hear(n) => {
                let (call, answer) = state.processes[n].answer.take()?;
                let process = &mut state.processes[n];
                if std::mem::take(&mut process.is_orphan) {
                    process.work = None;
                    return Some(state);
                }
                let from = match self.broken {
                    Some(Broken::TrustFromAnswer) => time,
                    _ => call.asked_at,
                };
                let trust = from + TTL;
                match (call.what, answer) {
                    (What::Claim, Answer::Taken { slot, epoch }) if time + 1 < trust => {
                        process.work = Some(Work { slot, epoch, trust });
                    }
                    // The next slot; trust counts from when the first was asked for.
                    (What::Claim, Answer::No) if usize::from(call.tried) + 1 < self.slots => {
                        let slot = (call.slot + 1) % self.slots;
                        process.call = Some(Call { slot, tried: call.tried + 1, ..call });
                    }
                    (What::Release, Answer::No) => {
                        let is_believed =
                            !call.is_second || self.broken == Some(Broken::BelievesSecondRelease);
                        state.lost_falsely |= is_believed && process.gave_back;
                    }
                    (What::Renew, Answer::Yes) => {
                        let work = process.work.as_mut()?;
                        work.trust = work.trust.max(trust);
                    }
                    (What::Renew, _) => process.work = None,
                    _ => {}
                }
            }
            Step::Lose(n) => {
                let process = &mut state.processes[n];
                let lost = process.call.take();
                let call = lost.or(process.answer.take().map(|(call, _)| call))?;
                process.late = lost.or(process.late);
                state.lost += 1;
                // A claim is made again with the same value, a renewal by its own step. A program's
                // claim has its value from the answer.
                let has_value = call.what != What::Claim || n >= self.programs;
                if call.what != What::Renew && has_value {
                    process.call = Some(Call { asked_at: time, is_second: true, ..call });
                }
            }
            Step::Crash(n) => {
                let process = &mut state.processes[n];
                process.late = process.call.take().or(process.late);
                (process.work, process.answer) = (None, None);
                process.is_orphan = false;
                state.crashed += 1;
            }
            Step::Orphan(n) => {
                let process = &mut state.processes[n];
                // A renewal that the ledger may still execute, also after the lock is given back.
                process.late = process.call.take().or(process.late);
                process.answer = None;
                process.is_orphan = true;
                state.crashed += 1;
            }
            Step::GiveBack(n) => {
                let process = &mut state.processes[n];
                let Work { slot, epoch, .. } = process.work?;
                let owner = (n, process.run);
                process.call = Some(Call::new(What::Release, slot, epoch, owner, time));
                if self.broken != Some(Broken::GivesBackTooSoon) {
                    process.work = None;
                }
            }
            Step::Stop(n) => state.processes[n].is_stopped = true,
            Step::Go(n) => state.processes[n].is_stopped = false,
            Step::Steal(n) => {
                let slot = &mut state.slots[n];
                slot.epoch += 1;
                (slot.owner, slot.until) = (None, None);
                state.stolen += 1;
            }
        }
        state.forget_what_no_step_asks();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always("epochs only grow", |_, state| !state.epoch_fell),
            Property::<Self>::always("writes are in the order of epochs", |_, state| {
                !state.write_fell
            }),
            Property::<Self>::always("what was given back is not told as lost", |_, state| {
                !state.lost_falsely
            }),
            Property::<Self>::sometimes("a lease that ran out is claimed", |_, state| {
                state.time > TTL
                    && state.processes.iter().filter(|process| process.run > 0).count() > 1
                    && state.slots.iter().any(|slot| slot.epoch > 1)
            }),
            Property::<Self>::sometimes("a command runs for longer than a lease", |_, state| {
                let is_long = |work: Work| work.trust > TTL + 2 && work.epoch == 1;
                state.processes.iter().filter_map(|process| process.work).any(is_long)
            }),
        ];
        if self.may_orphan() {
            let in_time = |_: &Self, state: &State| {
                let gave_back = |process: &Process| process.is_orphan && process.gave_back;
                state.time < TTL && state.processes.iter().any(gave_back)
            };
            let name = "the lock of a wrapper that crashed is given back";
            properties.push(Property::<Self>::sometimes(name, in_time));
        }
        if self.outside {
            properties.push(Property::<Self>::sometimes("two work", |model, state| {
                model.two_in(state, false)
            }));
        } else {
            let exclusive = |model: &Self, state: &State| !model.two_in(state, false);
            properties.push(Property::<Self>::always("one works in a slot", exclusive));
            let trusting = |model: &Self, state: &State| !model.two_in(state, true);
            properties.push(Property::<Self>::always("one trusts a slot", trusting));
        }
        properties
    }
}

const SMALL: Locks = Locks {
    processes: 2,
    programs: 0,
    runs: 1,
    slots: 1,
    until: 5,
    faults: 1,
    outside: false,
    broken: None,
};

#[test]
fn no_two_commands_run_in_a_slot() {
    let mut models = vec![
        Locks { runs: 2, faults: 0, ..SMALL },
        SMALL,
        Locks { slots: 2, until: 4, ..SMALL },
        Locks { processes: 3, until: 4, faults: 0, ..SMALL },
    ];
    if full() {
        models.push(Locks { runs: 2, ..SMALL });
        models.push(Locks { faults: 2, until: 6, ..SMALL });
    }
    for model in models {
        holds(&model);
    }
}

#[test]
fn programs_and_commands_share_a_lock() {
    let mut models = vec![Locks { programs: 1, ..SMALL }, Locks { programs: 2, until: 4, ..SMALL }];
    if full() {
        models.push(Locks { programs: 2, ..SMALL });
        models.push(Locks { programs: 1, slots: 2, until: 4, ..SMALL });
        models.push(Locks { programs: 1, runs: 2, ..SMALL });
        models.push(Locks { programs: 2, processes: 3, until: 4, faults: 0, ..SMALL });
    }
    for model in models {
        holds(&model);
    }
}

#[test]
fn what_is_stopped_as_a_whole_is_refused_by_its_epoch() {
    holds(&Locks { outside: true, until: 4, ..SMALL });
}

#[test]
fn each_rule_of_locks_is_needed() {
    for (rule, property) in [
        (Broken::TrustFromAnswer, "one trusts a slot"),
        (Broken::NoWatch, "one works in a slot"),
        (Broken::SameEpoch, "epochs only grow"),
        (Broken::ReleasesAnybodys, "one works in a slot"),
        (Broken::GivesBackTooSoon, "one works in a slot"),
        (Broken::BelievesSecondRelease, "what was given back is not told as lost"),
    ] {
        // A release that comes late needs a third claim, and less time.
        let (runs, until) = if rule == Broken::ReleasesAnybodys { (2, 3) } else { (1, 5) };
        breaks(&Locks { broken: Some(rule), runs, until, ..SMALL }, property);
    }
    let rule = Some(Broken::NoFence);
    breaks(&Locks { programs: 1, broken: rule, ..SMALL }, "writes are in the order of epochs");
}
