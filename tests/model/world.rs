//! The model as the checker sees it: which actions there are in a state, what they lead to, and what must hold.

use stateright::{Model, Property};

use crate::Protocol;
use crate::state::{ANSWER, At, Copy, DEADLINE, Process, State, Stored};
use crate::steps::{Action, Doing};

pub const TRUTH: &str = "never delivered without a copy";
pub const RECEIPT: &str = "a receipt on record names a copy";
pub const ONE_EVER: &str = "never two copies, not for a moment";
pub const ONE_AT_END: &str = "never two copies once all have ended";
pub const SETTLED: &str = "one copy once settled";
pub const DELIVERED: &str = "always delivered in the end";
// That these happen shows that the rest is not true for want of trying.
pub const FOUND: &str = "a look finds a copy";
pub const UNDONE: &str = "a late copy is taken out again";
pub const WAITS: &str = "a process waits for another";
pub const OUTLIVES: &str = "an append outlives its sender";
pub const ZOMBIE: &str = "a process without its session writes";

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let copies = self.jobs.iter().flatten().max().map_or(0, |last| usize::from(*last) + 1);
        let copy = Copy { epoch: u8::from(self.in_doubt), in_doubt: self.in_doubt, ..Copy::default() };
        vec![State {
            copies: vec![copy; copies],
            processes: vec![Process::new(self.tries); self.jobs.len()],
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
            if copy.receipt.is_some() && self.has_second_look(copy) && copy.mailbox.len() > 1 {
                actions.push(Action::Verifies { copy: number });
            }
        }
        if state.calm {
            let running = state.processes.iter().position(Process::is_running);
            let next = running.or_else(|| state.processes.iter().position(|process| process.tries > 0));
            if let Some(index) = next {
                self.doings(state, index as u8, actions);
            }
            return;
        }
        for index in 0..state.processes.len() {
            self.doings(state, index as u8, actions);
        }
        // Also with tries left: from every state in which nobody runs, a try without faults has to deliver.
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
                state.copies[usize::from(copy)].mailbox.iter_mut().for_each(|stored| stored.moved = true);
            }
            // A run compares every copy in its window, settled or not: the note spares only those outside of it.
            Action::Verifies { copy } => {
                let copy = &mut state.copies[usize::from(copy)];
                copy.mailbox.retain(|stored| Some(stored.name) == copy.receipt);
                copy.mailbox.truncate(1);
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
        state.forget(&self.jobs);
        if self.symmetric {
            state.sort_processes();
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        let all = vec![
            Property::always(TRUTH, |protocol: &Protocol, state: &State| {
                let delivered = protocol.jobs.iter().zip(&state.processes).filter(|(_, p)| p.at == At::Delivered);
                delivered.flat_map(|(job, _)| job).all(|copy| !state.copies[usize::from(*copy)].mailbox.is_empty())
            }),
            Property::always(RECEIPT, |_, state: &State| {
                let names = |copy: &Copy, name| copy.mailbox.iter().any(|stored| stored.name == name);
                state.copies.iter().all(|copy| copy.receipt.is_none_or(|name| names(copy, name)))
            }),
            Property::always(ONE_EVER, |_, state: &State| state.copies.iter().all(|copy| copy.mailbox.len() <= 1)),
            Property::always(ONE_AT_END, |_, state: &State| {
                !state.is_quiet() || state.copies.iter().all(|copy| copy.mailbox.len() <= 1)
            }),
            Property::always(SETTLED, |protocol: &Protocol, state: &State| {
                let second_look = |copy: &Copy| copy.mailbox.len() > 1 && protocol.has_second_look(copy);
                let settled = |copy: &Copy| copy.mailbox.len() == 1 || second_look(copy);
                !(state.calm && state.is_quiet() && state.is_delivered()) || state.copies.iter().all(settled)
            }),
            // Every state without a next step must be such a one. The only cycle is a session lost again each time it was
            // opened anew; nobody promises an end of that.
            Property::eventually(DELIVERED, |_, state: &State| state.calm && state.is_delivered()),
            Property::sometimes(FOUND, |_, state: &State| is_at(state, At::Confirm { found: true })),
            Property::sometimes(UNDONE, |_, state: &State| is_at(state, At::Undo)),
            Property::sometimes(WAITS, |_, state: &State| is_at(state, At::Wait)),
            Property::sometimes(OUTLIVES, |_, state: &State| {
                let lone = |copy: &Copy| copy.on_the_way.iter().any(|append| append.sender.is_none());
                state.copies.iter().any(lone)
            }),
            Property::sometimes(ZOMBIE, |_, state: &State| {
                let is_zombie = |p: &Process| p.at == At::Answer && !p.session;
                state.processes.iter().any(is_zombie)
            }),
        ];
        all.into_iter().filter(|property| self.only.is_none_or(|only| only == property.name)).collect()
    }
}

impl Protocol {
    /// Time waits for what has to happen before it passes: an append that the server will not keep longer, last bytes
    /// of a process that is not frozen any longer.
    fn may_tick(&self, state: &State) -> bool {
        let due = state.copies.iter().any(|copy| copy.on_the_way.iter().any(|append| append.within == 0));
        let thawed =
            |process: &Process| process.at == At::LastBytes && self.freeze.is_some_and(|bound| process.waited >= bound);
        !state.calm && !due && !state.processes.iter().any(thawed)
    }

    /// Whether `onedrop verify` looks at a placed copy again: more than one process may have written it.
    fn has_second_look(&self, copy: &Copy) -> bool {
        copy.epoch > 1 || copy.prior_doubt && !self.second_look_by_epoch
    }

    fn tick(&self, state: &mut State) {
        for copy in &mut state.copies {
            copy.leased = copy.leased.saturating_sub(1);
            copy.on_the_way.iter_mut().for_each(|append| append.within -= 1);
        }
        for process in state.processes.iter_mut().filter(|process| process.is_running()) {
            process.age = (process.age + 1).min(DEADLINE + 1);
            match process.at {
                At::LastBytes if self.freeze.is_some() => process.waited += 1,
                At::Answer => process.waited = (process.waited + 1).min(ANSWER),
                _ => {}
            }
        }
    }

    /// The server executes an append; its sender, if it still listens, has an OK to read.
    fn lands(&self, state: &mut State, number: u8, append: u8) {
        let others = state.processes.iter().filter_map(|process| process.receipt).collect::<Vec<u8>>();
        let copy = &mut state.copies[usize::from(number)];
        let append = copy.on_the_way.remove(usize::from(append));
        let name = copy.next_name(others.into_iter());
        copy.mailbox.push(Stored { name, moved: false });
        if let Some(sender) = append.sender {
            state.processes[usize::from(sender)].receipt = Some(name);
        }
    }
}

fn is_at(state: &State, at: At) -> bool {
    state.processes.iter().any(|process| process.at == at)
}

/// A step in words, for a counterexample.
pub fn words(action: Action) -> String {
    match action {
        Action::Tick => "time passes".to_owned(),
        Action::Lands { copy, .. } => format!("server: executes an append of copy {copy}"),
        Action::NeverLands { copy, .. } => format!("server: forgets an append of copy {copy}"),
        Action::Moves { copy } => format!("reader: moves copy {copy}"),
        Action::Verifies { copy } => format!("verify: settles copy {copy}"),
        Action::Calm => "the faults end".to_owned(),
        Action::Does(index, doing) => {
            let name = char::from(b'A' + index);
            let what = match doing {
                Doing::Begin => "begin",
                Doing::Record => "record",
                Doing::TakeTurn => "take_turn",
                Doing::Look => "look",
                Doing::Check => "check",
                Doing::NotStored => "not stored",
                Doing::LastBytes => "last bytes",
                Doing::SeeOk => "OK",
                Doing::InDoubt => "in doubt",
                Doing::Confirm => "confirm",
                Doing::Reopen => "reopen",
                Doing::GiveUp => "gives up the confirm",
                Doing::Undo => "undo",
                Doing::ClaimBusy => "claim_busy",
                Doing::Crash => "CRASHES",
                Doing::LoseSession => "LOSES ITS SESSION",
            };
            format!("{name}: {what}")
        }
    }
}
