//! A model of those that wait for a lock, checked exhaustively: the ledger's line, the lines of two
//! hosts in which the first alone asks, and sessions of programs that ask for themselves, some of
//! which do not wait. That no two hold a slot is `locks`' affair: here a claim is granted at once,
//! but by what was read before. It shares no code with `src/`.
//!
//! Time goes on when all that run have done what is theirs: one that may ask has asked, and one
//! whose work is over has given back. All come again and again, without an end. What counts is one
//! of them that waits, always the first process: how long, and how often a slot went to another
//! that came later and left none for it.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::explored::{breaks, holds};
use crate::full;

/// How long one works at most, a place and a lease last, and one that is stopped is waited for.
const WORK: u8 = 1;
const PLACE: u8 = 2;
const LEASE: u8 = 3;
const SILENCE: u8 = 2;

/// A rule that is broken, to see that the model would find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// A slot that is free goes to the next that asks.
    NoLine,
    /// All that wait count, also those that came later.
    LaterOnesCount,
    /// One takes any slot if others are free for those before it, not the lowest.
    AnyFreeSlotsAreLeft,
    /// One that waits has its place once.
    PlaceIsNotKept,
    PlacesDoNotEnd,
    LeasesDoNotEnd,
    /// One that does not wait asks for a free slot alone.
    PassersByAsk,
    /// One of a host that is stopped keeps its turn, if it was not yet the first.
    FirstAloneIsPassedOver,
    StoppedKeepTheirTurn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In the line of this host.
    Host(usize),
    /// Has a place of its own.
    Session,
    /// Does not wait.
    PassesBy,
}

#[derive(Debug, Clone)]
struct Line {
    /// How each comes, and of how many slots it wants one.
    processes: Vec<(Way, u8)>,
    slots: u8,
    /// How many may be killed or stopped.
    faults: u8,
    /// The longest that the first may wait, and how often it may be passed.
    longest: u8,
    passes: u8,
    broken: Option<Broken>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// Who has each slot, and how long still.
    slots: Vec<Option<(usize, u8)>>,
    /// Who waits, in the order of their turns, and how long each place lasts still.
    places: Vec<(usize, u8)>,
    hosts: Vec<HostLine>,
    processes: Vec<Process>,
    faults: u8,
    waited: u8,
    passed: u8,
    /// The first has had a slot.
    was_served: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct HostLine {
    line: Vec<usize>,
    /// The place of the last one that asked: those before it are passed over.
    first: usize,
    /// It has not left; else the next one is at its place.
    is_there: bool,
    /// How long ago it asked.
    silent: u8,
}

impl HostLine {
    fn place_of(&self, n: usize) -> Option<usize> {
        self.line.iter().position(|one| *one == n)
    }

    fn leave(&mut self, n: usize) {
        let Some(at) = self.place_of(n) else { return };
        self.line.remove(at);
        self.is_there &= at != self.first;
        self.first -= usize::from(at < self.first);
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Process {
    does: Does,
    is_stopped: bool,
    has_asked: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Does {
    #[default]
    Nothing,
    Waits,
    /// It may have these slots, a bit for each, by what it has read.
    HasRead(u8),
    Works {
        slot: u8,
        left: u8,
    },
    IsDead,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Tick,
    Begin(usize),
    Read(usize),
    /// The slot, or none that it may have.
    Claim(usize, Option<u8>),
    GiveBack(usize),
    Kill(usize),
    Stop(usize),
    Go(usize),
}

impl Line {
    fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    fn host(&self, n: usize) -> Option<usize> {
        match self.processes[n].0 {
            Way::Host(host) => Some(host),
            Way::Session | Way::PassesBy => None,
        }
    }

    /// Whether it asks for itself, and those of its host.
    fn is_first(&self, state: &State, n: usize) -> bool {
        let Some(host) = self.host(n) else { return true };
        let host = &state.hosts[host];
        // Those that were passed over go on before the others' turns.
        let before = host.place_of(n).expect("it waits").saturating_sub(host.first);
        let may_pass = match self.broken {
            Some(Broken::StoppedKeepTheirTurn) => false,
            Some(Broken::FirstAloneIsPassedOver) => before == 1 && host.is_there,
            _ => true,
        };
        before == 0 || may_pass && usize::from(host.silent) > usize::from(SILENCE) * before
    }

    /// A bit for each slot that it may have.
    fn allowed(&self, state: &State, n: usize) -> u8 {
        let (way, wants) = self.processes[n];
        let free = |slots: u8| (0..slots).filter(|slot| state.slots[usize::from(*slot)].is_none());
        let mut before: Vec<u8> = Vec::new();
        for (of, _) in &state.places {
            if *of == n && !self.is(Broken::LaterOnesCount) {
                break;
            }
            if *of != n {
                before.push(self.processes[*of].1);
            }
        }
        if self.is(Broken::NoLine) || self.is(Broken::PassersByAsk) && way == Way::PassesBy {
            before.clear();
        }
        let is_for_it = |slot: &u8| {
            let would_take_it = before.iter().filter(|others| *others > slot).count();
            match self.broken {
                Some(Broken::AnyFreeSlotsAreLeft) => would_take_it < free(wants).count(),
                _ => would_take_it == 0 || before.len() <= free(*slot).count(),
            }
        };
        free(wants).filter(is_for_it).fold(0, |mask, slot| mask | 1 << slot)
    }

    /// What it does not get, it waits for.
    fn keep_place(&self, state: &mut State, n: usize) {
        if self.processes[n].0 == Way::PassesBy {
            state.processes[n].does = Does::Nothing;
            return;
        }
        state.processes[n].does = Does::Waits;
        match state.places.iter_mut().find(|(of, _)| *of == n) {
            Some(_) if self.is(Broken::PlaceIsNotKept) => {}
            Some((_, left)) => *left = PLACE,
            None => state.places.push((n, PLACE)),
        }
    }

    fn take(&self, state: &mut State, n: usize, slot: u8) {
        let place = |state: &State, of: usize| state.places.iter().position(|one| one.0 == of);
        let came_later = place(state, n).is_none_or(|own| place(state, 0) < Some(own));
        state.slots[usize::from(slot)] = Some((n, LEASE));
        state.processes[n].does = Does::Works { slot, left: WORK };
        state.places.retain(|(of, _)| *of != n);
        if let Some(host) = self.host(n) {
            state.hosts[host].leave(n);
        }
        if n == 0 {
            (state.waited, state.passed, state.was_served) = (0, 0, true);
        } else if let Some(before) = place(state, 0)
            && came_later
        {
            let wants = self.processes[0].1;
            let free = (0..wants).filter(|slot| state.slots[usize::from(*slot)].is_none()).count();
            if slot < wants && free <= before {
                state.passed = (state.passed + 1).min(self.passes + 1);
            }
        }
    }

    fn must_act(&self, state: &State, n: usize) -> bool {
        let process = &state.processes[n];
        !process.is_stopped
            && match process.does {
                Does::Nothing | Does::IsDead => false,
                Does::Waits => !process.has_asked && self.is_first(state, n),
                Does::HasRead(_) => true,
                Does::Works { left, .. } => left == 0,
            }
    }

    fn tick(&self, state: &mut State) {
        for slot in &mut state.slots {
            *slot = match *slot {
                Some((of, left)) if left > 1 => Some((of, left - 1)),
                Some(held) if self.is(Broken::LeasesDoNotEnd) => Some(held),
                _ => None,
            };
        }
        for place in &mut state.places {
            place.1 -= 1;
            if self.is(Broken::PlacesDoNotEnd) {
                place.1 = place.1.max(1);
            }
        }
        state.places.retain(|(_, left)| *left > 0);
        for host in &mut state.hosts {
            let most = SILENCE * host.line.len() as u8 + 1;
            host.silent = (host.silent + 1).min(most);
        }
        for process in &mut state.processes {
            process.has_asked = false;
            if let Does::Works { left, .. } = &mut process.does {
                *left = left.saturating_sub(1);
            }
        }
        if matches!(state.processes[0].does, Does::Waits) {
            state.waited = (state.waited + 1).min(self.longest + 1);
        }
    }
}

impl Model for Line {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let hosts = (0..self.processes.len()).filter_map(|n| self.host(n));
        vec![State {
            slots: vec![None; usize::from(self.slots)],
            places: Vec::new(),
            hosts: vec![HostLine::default(); hosts.collect::<BTreeSet<_>>().len()],
            processes: vec![Process::default(); self.processes.len()],
            faults: 0,
            waited: 0,
            passed: 0,
            was_served: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if !(0..self.processes.len()).any(|n| self.must_act(state, n)) {
            steps.push(Step::Tick);
        }
        for (n, process) in state.processes.iter().enumerate() {
            if process.is_stopped {
                steps.push(Step::Go(n));
                continue;
            }
            match process.does {
                Does::Nothing => steps.push(Step::Begin(n)),
                Does::Waits if !process.has_asked && self.is_first(state, n) => {
                    steps.push(Step::Read(n));
                }
                Does::HasRead(0) => steps.push(Step::Claim(n, None)),
                Does::HasRead(slots) => {
                    let slots = (0..self.slots).filter(|slot| slots & 1 << slot != 0);
                    steps.extend(slots.map(|slot| Step::Claim(n, Some(slot))));
                }
                Does::Works { .. } => steps.push(Step::GiveBack(n)),
                Does::Waits | Does::IsDead => {}
            }
            let may_fail = n > 0 && state.faults < self.faults;
            if may_fail && !matches!(process.does, Does::Nothing | Does::IsDead) {
                steps.extend([Step::Kill(n), Step::Stop(n)]);
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Begin(n) => {
                state.processes[n].does = Does::Waits;
                if let Some(host) = self.host(n) {
                    let host = &mut state.hosts[host];
                    // None of them could have asked.
                    if host.line.is_empty() {
                        *host = HostLine::default();
                    }
                    host.line.push(n);
                }
            }
            Step::Read(n) => {
                state.processes[n].does = Does::HasRead(self.allowed(&state, n));
                state.processes[n].has_asked = true;
                if let Some(host) = self.host(n) {
                    let host = &mut state.hosts[host];
                    host.first = host.place_of(n).expect("it waits");
                    (host.is_there, host.silent) = (true, 0);
                }
            }
            Step::Claim(n, slot) => match slot {
                Some(slot) if state.slots[usize::from(slot)].is_none() => {
                    self.take(&mut state, n, slot);
                }
                Some(slot) => {
                    // The next one that it may have.
                    let Does::HasRead(slots) = &mut state.processes[n].does else { return None };
                    *slots &= !(1 << slot);
                }
                None => self.keep_place(&mut state, n),
            },
            Step::GiveBack(n) => {
                let Does::Works { slot, .. } = state.processes[n].does else { return None };
                let slot = &mut state.slots[usize::from(slot)];
                if slot.is_some_and(|(of, _)| of == n) {
                    *slot = None;
                }
                state.processes[n].does = Does::Nothing;
            }
            Step::Kill(n) => {
                state.faults += 1;
                state.processes[n].does = Does::IsDead;
                if let Some(host) = self.host(n) {
                    state.hosts[host].leave(n);
                }
            }
            Step::Stop(n) => {
                state.faults += 1;
                state.processes[n].is_stopped = true;
            }
            Step::Go(n) => state.processes[n].is_stopped = false,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always("one that waits has its turn", |model, state| {
                state.waited <= model.longest
            }),
            Property::<Self>::always("one that waits is not passed for ever", |model, state| {
                state.passed <= model.passes
            }),
            Property::<Self>::sometimes("one that has waited is served", |_, state| {
                state.was_served && state.waited > 0
            }),
        ]
    }
}

use Way::{Host, PassesBy, Session};

fn line(processes: &[(Way, u8)], faults: u8, longest: u8, passes: u8) -> Line {
    let slots = processes.iter().map(|(_, wants)| *wants).max().unwrap_or(1);
    Line { processes: processes.to_vec(), slots, faults, longest, passes, broken: None }
}

#[test]
fn none_that_waits_is_passed_for_ever() {
    // Each other may have read before there was a place that waits.
    let three = [(Session, 1); 3];
    let host = [(Host(0), 1), (Host(0), 1), (Session, 1)];
    let hosts = [(Host(0), 1), (Host(0), 1), (Host(1), 1), (Host(1), 1)];
    let mut models = vec![
        line(&three, 0, 6, 2),
        // One that is killed or stopped costs its lease or its place.
        line(&three, 1, 7, 2),
        line(&[(Session, 1), (Host(0), 1), (PassesBy, 1)], 0, 5, 2),
        line(&host, 1, 17, 3),
        line(&hosts, 0, 9, 3),
        line(&[(Session, 2); 3], 0, 4, 1),
        line(&[(Session, 1), (Session, 2), (Session, 2)], 0, 4, 2),
        line(&[(Session, 2), (Session, 1), (Session, 2)], 0, 4, 1),
    ];
    if full() {
        models.push(line(&[(Session, 1); 4], 1, 9, 3));
        models.push(line(&[(Host(0), 1); 3], 1, 24, 3));
        models.push(line(&[(Session, 2); 4], 0, 7, 3));
    }
    for model in models {
        holds(&model);
    }
}

#[test]
fn each_rule_of_the_line_is_needed() {
    let (turn, passed) = ("one that waits has its turn", "one that waits is not passed for ever");
    let (one, two) = ([(Session, 1); 3], [(Session, 2); 3]);
    let host = [(Host(0), 1); 3];
    for (rule, processes, faults, property) in [
        (Broken::NoLine, one, 0, passed),
        (Broken::LaterOnesCount, one, 0, turn),
        (Broken::AnyFreeSlotsAreLeft, two, 0, passed),
        (Broken::PlaceIsNotKept, one, 0, turn),
        (Broken::PlacesDoNotEnd, one, 1, turn),
        (Broken::LeasesDoNotEnd, one, 1, turn),
        (Broken::PassersByAsk, [(Session, 1), (Session, 1), (PassesBy, 1)], 0, passed),
        (Broken::FirstAloneIsPassedOver, host, 1, turn),
        (Broken::StoppedKeepTheirTurn, host, 1, turn),
    ] {
        breaks(&Line { broken: Some(rule), ..line(&processes, faults, 30, 9) }, property);
    }
}
