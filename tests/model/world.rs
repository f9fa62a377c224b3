//! The model for the checker: the actions in a state, their results, and the properties.

use stateright::{Model, Property};

use crate::state::{
    ANSWER, At, Copy, DEADLINE, GONE, LEASE, LONG_DEADLINE, Mark, Process, State, Stored, UNNAMED,
    Unsynced, Verifier, Verify,
};
use crate::steps::{Action, Doing, Owner, unlock};
use crate::verify::{gone, has_more_leases};
use crate::{BrokenRule, ForgottenRows, Protocol, Start};

pub const TRUTH: &str = "never delivered without a copy, or the bytes of a shared one";
pub const RECEIPT: &str = "a receipt on record names a copy";
pub const ONE_EVER: &str = "never two copies, not for a moment";
pub const ONE_AT_END: &str = "never two copies once all have ended";
pub const SETTLED: &str = "one copy, or a second look to come";
pub const KEPT: &str = "one copy stays unless its owner takes it";
pub const LAST: &str = "verify takes out none that is the last to stand";
pub const IN_DOUBT: &str = "a delivered copy has a receipt, or is in doubt";
pub const BYTES: &str = "a shared copy that was left has a receipt, or its bytes";
pub const DELIVERED: &str = "always delivered in the end";
// These must happen, or the other properties would hold only because nothing was tried.
/// A copy came into the mailbox after it was read for a look back.
pub const LOOKED_BACK: &str = "a copy comes after the look back";
pub const FOUND: &str = "a look finds a copy";
pub const UNDONE: &str = "a late copy is taken out again";
pub const WAITS: &str = "a process waits for another";
pub const OUTLIVES: &str = "an append outlives its sender";
pub const ZOMBIE: &str = "a process without its session writes";
pub const AGAIN: &str = "a call is made again";
pub const KEEPS: &str = "the bytes of a shared copy are kept";
pub const FOUND_BY_VERIFY: &str = "verify finds a copy in doubt";
pub const REMOVED: &str = "verify takes a copy out";
pub const PUT_BACK: &str = "verify puts a copy back";
pub const RESTARTED: &str = "the host restarts with an append on its way, or a file in place";
pub const LOST: &str = "the ledger loses a receipt";
pub const UNREAD: &str = "a process cannot read which boot it is";
pub const SETTLES: &str = "verify settles a row";

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let copies = self.jobs.iter().flatten().max().map_or(1, |last| usize::from(*last) + 1);
        let stored = |name| Stored { name, moved: false, mark: None };
        let copy = match self.start {
            Start::Empty => Copy::default(),
            Start::InDoubt { copies } => {
                let mailbox = (1..=copies).map(stored).collect();
                Copy { row: 1, epoch: 1, in_doubt: true, mailbox, ..Copy::default() }
            }
            Start::Placed { copies } => {
                let mailbox = (1..=copies).map(stored).collect();
                Copy {
                    row: 1,
                    receipt: Some(1),
                    epoch: 2,
                    prior_doubt: true,
                    since: LEASE,
                    mailbox,
                    ..Copy::default()
                }
            }
        };
        let mut copies = vec![copy; copies];
        for (number, copy) in copies.iter_mut().enumerate() {
            copy.row = if copy.row == GONE { GONE } else { number as u8 + 1 };
        }
        vec![State {
            copies,
            processes: vec![Process::new(self.tries); self.jobs.len()],
            verifiers: self.verifiers.iter().map(|runs| Verifier::new(*runs)).collect(),
            calls: Vec::new(),
            owner: self.faults.owner,
            forgets: self.faults.forgets,
            boots: self.faults.boots,
            unread: false,
            lost: false,
            calm: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.may_tick(state) {
            actions.push(Action::Tick);
        }
        for (number, copy) in state.copies.iter().enumerate() {
            let number = number as u8;
            for (at, append) in copy.on_the_way.iter().enumerate() {
                actions.push(Action::Lands { copy: number, append: at as u8 });
                if append.sender.is_none() {
                    actions.push(Action::NeverLands { copy: number, append: at as u8 });
                }
            }
            if self.join && copy.mailbox.iter().any(|stored| !stored.moved) {
                actions.push(Action::Moves { copy: number });
            }
            let may_be_older = copy.row != GONE && copy.receipt.is_none() && copy.in_doubt;
            if self.looks_back && copy.looked.is_none() && may_be_older {
                actions.push(Action::LooksBack { copy: number });
            }
        }
        if state.calm {
            let running = state.processes.iter().position(Process::is_running);
            let next =
                running.or_else(|| state.processes.iter().position(|process| process.tries > 0));
            if let Some(index) = next {
                self.doings(state, index as u8, actions);
            }
            return;
        }
        for index in 0..state.processes.len() {
            self.doings(state, index as u8, actions);
        }
        for index in 0..state.verifiers.len() as u8 {
            actions.extend(self.verify_step(state, index).map(|step| Action::Verify(index, step)));
            if self.faults.crash && state.verifiers[usize::from(index)].is_running() {
                actions.push(Action::VerifyDies(index));
            }
        }
        for call in 0..state.calls.len() as u8 {
            actions.extend([Action::Executes { call }, Action::Drops { call }]);
        }
        if self.faults.clock && state.copies.iter().any(|copy| copy.leased > 0) {
            actions.extend([Action::ClockSteps, Action::ClockStepsBack]);
        }
        let unsynced: u8 = (0..)
            .zip(&state.copies)
            .filter(|(_, copy)| copy.unsynced.is_some())
            .map(|(number, _)| 1 << number)
            .sum();
        let lost = (1..=unsynced).filter(|lost| lost & !unsynced == 0);
        actions.extend(lost.map(|lost| Action::LedgerCrashes { lost }));
        if state.boots > 0 {
            actions.push(Action::Restart);
        }
        if state.forgets > 0 {
            let may = |copy: &Copy| match self.faults.forgotten {
                ForgottenRows::Unleased => copy.row != GONE && copy.leased == 0,
                ForgottenRows::Leased => copy.row != GONE && copy.leased > 0,
                ForgottenRows::Any => copy.row != GONE,
            };
            let numbers = (0..state.copies.len()).filter(|number| may(&state.copies[*number]));
            actions.extend(numbers.map(|number| Action::Forgets { copy: number as u8 }));
        }
        // There is an instant between verify's last look at the keeper and the removal.
        let is_instant = self.faults.owner_waits && is_verified(state, Verify::Expunge);
        if state.owner > 0 && !is_instant {
            self.owner(state, actions);
        }
        // Also if tries are left: from every idle state, a try without faults must deliver.
        if state.is_quiet() {
            actions.push(Action::Calm);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Lands { copy, append } => self.lands(&mut state, copy, append),
            Action::NeverLands { copy, append } => {
                state.copies[usize::from(copy)].on_the_way.remove(usize::from(append));
            }
            Action::Moves { copy } => {
                state.copies[usize::from(copy)]
                    .mailbox
                    .iter_mut()
                    .for_each(|stored| stored.moved = true);
            }
            Action::Executes { call } => self.execute(&mut state, call),
            Action::Drops { call } => {
                state.calls.remove(usize::from(call));
            }
            Action::ClockSteps | Action::ClockStepsBack if self.boot_clock => {}
            Action::ClockSteps => state.copies.iter_mut().for_each(|copy| copy.leased = 0),
            Action::ClockStepsBack => {
                let leased = state.copies.iter_mut().filter(|copy| copy.leased > 0);
                leased.for_each(|copy| copy.leased = LEASE);
            }
            Action::LedgerCrashes { lost } => self.crash(&mut state, lost),
            Action::Restart => self.restart(&mut state),
            Action::Forgets { copy } => self.forget(&mut state, copy),
            Action::LooksBack { copy } => self.look_back(&mut state, copy),
            Action::Owner(owner) => {
                state.owner -= 1;
                acts(&mut state.copies[0], owner);
            }
            Action::Verify(index, _) => self.verify(&mut state, index),
            Action::VerifyDies(index) => {
                unlock(&mut state.copies[0], self.jobs.len() as u8 + index);
                gone(&mut state.verifiers[usize::from(index)]);
            }
            Action::Calm => {
                state.calm = true;
                state.copies.iter_mut().for_each(|copy| copy.leased = 0);
                for process in &mut state.processes {
                    process.tries = u8::from(process.at != At::Delivered);
                }
            }
            Action::Does(index, doing) => self.does(&mut state, index, doing),
        }
        state.tidy(&self.jobs);
        if self.symmetric {
            state.sort_processes();
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        let all = vec![
            Property::always(TRUTH, |protocol: &Protocol, state: &State| {
                let delivered = protocol
                    .jobs
                    .iter()
                    .zip(&state.processes)
                    .filter(|(_, p)| p.at == At::Delivered);
                let has_one = |copy: &Copy| !copy.mailbox.is_empty() || copy.taken || copy.kept;
                delivered
                    .flat_map(|(job, _)| job)
                    .all(|copy| has_one(&state.copies[usize::from(*copy)]))
            }),
            Property::always(RECEIPT, |_, state: &State| {
                let names =
                    |copy: &Copy, name| copy.mailbox.iter().any(|stored| stored.name == name);
                let is_true = |copy: &Copy| match copy.receipt {
                    _ if copy.taken => true,
                    None => true,
                    Some(UNNAMED) => !copy.mailbox.is_empty(),
                    Some(name) => names(copy, name),
                };
                state.copies.iter().all(is_true)
            }),
            Property::always(ONE_EVER, |_, state: &State| {
                state.copies.iter().all(|copy| copy.mailbox.len() <= 1)
            }),
            Property::always(ONE_AT_END, |_, state: &State| {
                !state.is_quiet() || state.copies.iter().all(|copy| copy.mailbox.len() <= 1)
            }),
            Property::always(SETTLED, |protocol: &Protocol, state: &State| {
                let second_look =
                    |copy: &Copy| copy.mailbox.len() > 1 && protocol.has_second_look(copy);
                let settled = |copy: &Copy| {
                    copy.mailbox.len() == 1 || copy.taken || copy.kept || second_look(copy)
                };
                !(state.calm && state.is_quiet() && state.is_delivered())
                    || state.copies.iter().all(settled)
            }),
            Property::always(KEPT, |_, state: &State| {
                let stays =
                    |copy: &Copy| copy.mailbox.iter().any(|stored| stored.mark != Some(Mark::Ours));
                let is_kept = |copy: &Copy| copy.receipt.is_none() || copy.taken || stays(copy);
                !state.is_quiet() || state.copies.iter().all(is_kept)
            }),
            Property::always(LAST, |_, state: &State| !state.copies.iter().any(|copy| copy.bared)),
            Property::always(IN_DOUBT, |protocol: &Protocol, state: &State| {
                let delivered = protocol
                    .jobs
                    .iter()
                    .zip(&state.processes)
                    .filter(|(_, p)| p.at == At::Delivered);
                let is_known = |copy: &Copy| copy.receipt.is_some() || copy.in_doubt || copy.kept;
                !protocol.faults.ledger_crash
                    || delivered
                        .flat_map(|(job, _)| job)
                        .all(|copy| is_known(&state.copies[usize::from(*copy)]))
            }),
            Property::always(BYTES, |_, state: &State| {
                state.copies.iter().all(|copy| !copy.left || copy.receipt.is_some() || copy.kept)
            }),
            // Every state without a next step must be one of these. The only cycle is a session
            // that is lost each time it is opened; the protocol does not promise an end of that.
            Property::eventually(DELIVERED, |_, state: &State| state.calm && state.is_delivered()),
            Property::sometimes(FOUND, |_, state: &State| {
                is_at(state, At::Confirm { found: true })
            }),
            Property::sometimes(LOOKED_BACK, |_, state: &State| {
                let is_late = |copy: &Copy| {
                    let above = copy.looked.map(|looked| looked.above);
                    copy.mailbox.iter().any(|stored| above.is_some_and(|above| stored.name > above))
                };
                state.copies.iter().any(is_late)
            }),
            Property::sometimes(UNDONE, |_, state: &State| is_at(state, At::Undo)),
            Property::sometimes(WAITS, |_, state: &State| is_at(state, At::Wait)),
            Property::sometimes(OUTLIVES, |_, state: &State| {
                let lone =
                    |copy: &Copy| copy.on_the_way.iter().any(|append| append.sender.is_none());
                state.copies.iter().any(lone)
            }),
            Property::sometimes(ZOMBIE, |_, state: &State| {
                let is_zombie = |p: &Process| p.at == At::Answer && !p.session;
                state.processes.iter().any(is_zombie)
            }),
            Property::sometimes(AGAIN, |_, state: &State| {
                is_at(state, At::RecordAgain) && !state.calls.is_empty()
            }),
            Property::sometimes(KEEPS, |_, state: &State| {
                state.copies.iter().any(|copy| copy.kept)
            }),
            Property::sometimes(RESTARTED, |protocol: &Protocol, state: &State| {
                let writes = |copy: &Copy| {
                    !copy.on_the_way.is_empty() || protocol.join && !copy.mailbox.is_empty()
                };
                let unrecorded = |copy: &Copy| copy.receipt.is_none() && writes(copy);
                let is_idle = !state.processes.iter().any(Process::is_running);
                state.boots < protocol.faults.boots
                    && is_idle
                    && state.copies.iter().any(unrecorded)
            }),
            Property::sometimes(LOST, |_, state: &State| state.lost),
            Property::sometimes(UNREAD, |_, state: &State| state.unread),
            Property::sometimes(FOUND_BY_VERIFY, |_, state: &State| {
                is_verified(state, Verify::Confirm)
            }),
            Property::sometimes(REMOVED, |_, state: &State| is_verified(state, Verify::Expunge)),
            Property::sometimes(PUT_BACK, |_, state: &State| is_verified(state, Verify::PutBack)),
            Property::sometimes(SETTLES, |_, state: &State| is_verified(state, Verify::Settle)),
        ];
        all.into_iter()
            .filter(|property| self.only.is_none_or(|only| only == property.name))
            .collect()
    }
}

impl Protocol {
    /// Time does not pass before an append that the server must execute now, and before the last
    /// bytes of a process that is no longer frozen.
    fn may_tick(&self, state: &State) -> bool {
        let due =
            state.copies.iter().any(|copy| copy.on_the_way.iter().any(|append| append.within == 0));
        let thawed = |process: &Process| {
            process.at == At::LastBytes && self.freeze.is_some_and(|bound| process.waited >= bound)
        };
        !state.calm && !due && !state.processes.iter().any(thawed)
    }

    /// Whether `onedrop verify` will look again at a placed copy that two processes may have
    /// written.
    fn has_second_look(&self, copy: &Copy) -> bool {
        let is_known = match self.wrong {
            Some(BrokenRule::SecondLookByEpoch) => copy.epoch > 1,
            _ => has_more_leases(copy) || copy.receipt.is_none(),
        };
        is_known && !copy.settled
    }

    fn tick(&self, state: &mut State) {
        for copy in &mut state.copies {
            copy.leased = copy.leased.saturating_sub(1);
            if let Some(Unsynced::Receipt { leased }) = &mut copy.unsynced {
                *leased = leased.saturating_sub(1);
            }
            copy.on_the_way.iter_mut().for_each(|append| append.within -= 1);
            if copy.receipt.is_some() && !self.verifiers.is_empty() {
                copy.since = (copy.since + 1).min(LEASE);
            }
        }
        for process in state.processes.iter_mut().filter(|process| process.is_running()) {
            let most = if self.long { LONG_DEADLINE } else { DEADLINE };
            process.age = (process.age + 1).min(most + 1);
            match process.at {
                At::LastBytes if self.freeze.is_some() => process.waited += 1,
                At::Answer => process.waited = (process.waited + 1).min(ANSWER),
                _ => {}
            }
        }
    }

    /// The host restarts: every process ends. A lease lasts its own length from the boot on, since
    /// nothing says how much of it was left.
    fn restart(&self, state: &mut State) {
        state.boots -= 1;
        for index in 0..state.processes.len() as u8 {
            if state.processes[usize::from(index)].is_running() {
                self.end(state, index, false);
            }
        }
        for copy in state.copies.iter_mut().filter(|copy| copy.receipt.is_none()) {
            copy.leased = match self.wrong {
                Some(BrokenRule::BootEndsLeases) => 0,
                _ if copy.leased > 0 || copy.in_doubt => LEASE,
                _ => 0,
            };
        }
    }

    /// The server executes an append; its sender gets an OK if it is still connected.
    fn lands(&self, state: &mut State, number: u8, append: u8) {
        let name = state.next_name(number, &self.jobs);
        let copy = &mut state.copies[usize::from(number)];
        let append = copy.on_the_way.remove(usize::from(append));
        copy.mailbox.push(Stored { name, moved: false, mark: None });
        if let Some(sender) = append.sender {
            state.processes[usize::from(sender)].receipt =
                Some(if self.uid_plus { name } else { UNNAMED });
        }
    }

    fn owner(&self, state: &State, actions: &mut Vec<Action>) {
        let mailbox = &state.copies[0].mailbox;
        for stored in mailbox {
            let mark = if stored.mark.is_none() {
                Owner::Marks(stored.name)
            } else {
                Owner::Unmarks(stored.name)
            };
            actions.extend([Owner::Takes(stored.name), mark].map(Action::Owner));
        }
        if mailbox.iter().any(|stored| stored.mark.is_some()) {
            actions.push(Action::Owner(Owner::Expunges));
        }
    }
}

fn acts(copy: &mut Copy, owner: Owner) {
    match owner {
        Owner::Takes(name) => {
            copy.mailbox.retain(|stored| stored.name != name);
            copy.taken = true;
        }
        Owner::Marks(name) => copy.mark(name, Some(Mark::Owner)),
        Owner::Unmarks(name) => copy.mark(name, None),
        Owner::Expunges => {
            copy.taken |= copy.mailbox.iter().any(|stored| stored.mark == Some(Mark::Owner));
            copy.mailbox.retain(|stored| stored.mark.is_none());
        }
    }
}

fn is_at(state: &State, at: At) -> bool {
    state.processes.iter().any(|process| process.at == at)
}

fn is_verified(state: &State, at: Verify) -> bool {
    state.verifiers.iter().any(|verifier| verifier.at == at)
}

/// The text of a step, for a counterexample.
pub fn words(action: Action) -> String {
    let name = |index: u8| char::from(b'A' + index);
    match action {
        Action::Tick => "time passes".to_owned(),
        Action::Lands { copy, .. } => format!("server: executes an append of copy {copy}"),
        Action::NeverLands { copy, .. } => format!("server: forgets an append of copy {copy}"),
        Action::Moves { copy } => format!("reader: moves copy {copy}"),
        Action::Executes { .. } => "ledger: executes a late call".to_owned(),
        Action::Drops { .. } => "ledger: drops a late call".to_owned(),
        Action::ClockSteps => "THE LEDGER'S CLOCK STEPS".to_owned(),
        Action::ClockStepsBack => "THE LEDGER'S CLOCK STEPS BACK".to_owned(),
        Action::LedgerCrashes { .. } => "THE LEDGER CRASHES".to_owned(),
        Action::Restart => "THE HOST RESTARTS".to_owned(),
        Action::Forgets { copy } => format!("THE LEDGER FORGETS copy {copy}"),
        Action::LooksBack { copy } => format!("server: looks back for copy {copy}"),
        Action::Owner(owner) => format!("owner: {owner:?}"),
        Action::Verify(index, step) => format!("verify {index}: {step:?}"),
        Action::VerifyDies(index) => format!("verify {index}: CRASHES"),
        Action::Calm => "the faults end".to_owned(),
        Action::Does(index, doing) => {
            let what = match doing {
                Doing::Begin => "begin",
                Doing::Record => "record",
                Doing::RecordUnread => "record, WITHOUT THE BOOT'S ID",
                Doing::RecordUnanswered => "record, UNANSWERED",
                Doing::ComesAgain => "comes again",
                Doing::TakeTurn => "take_turn",
                Doing::Look => "look",
                Doing::Check => "check",
                Doing::NotStored => "not stored",
                Doing::LastBytes => "last bytes",
                Doing::SeeOk => "OK",
                Doing::InDoubt => "in doubt",
                Doing::Confirm => "confirm",
                Doing::ConfirmUnanswered => "confirm, UNANSWERED",
                Doing::Reopen => "reopen",
                Doing::GiveUp => "gives up the confirm",
                Doing::Keep => "keep",
                Doing::Undo => "undo",
                Doing::Expunge => "expunge",
                Doing::ClaimBusy => "claim_busy",
                Doing::ClaimBusyUnanswered => "claim_busy, UNANSWERED",
                Doing::Crash => "CRASHES",
                Doing::LoseSession => "LOSES ITS SESSION",
            };
            format!("{}: {what}", name(index))
        }
    }
}
