//! The protocol's steps, one function for each, as `src/deliver.rs` and the ledger's port take them; and what others do:
//! time, the mail server, a reader, crashes. Whoever changes a step there changes it here.

use crate::Protocol;
use crate::state::{ANSWER, Append, At, Copy, DEADLINE, LEASE, Process, State, Step, Stored};

/// Something that can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Tick,
    /// The server executes the append that is `append`th on its way.
    Lands {
        copy: u8,
        append: u8,
    },
    /// The sender's connection is gone, and the server with it forgets the append.
    NeverLands {
        copy: u8,
        append: u8,
    },
    /// A reader moves a Maildir's file from `new/` to `cur/`.
    Moves {
        copy: u8,
    },
    /// `onedrop verify`'s second look at a copy that was leased more than once and is on record.
    Verifies {
        copy: u8,
    },
    /// From here on no faults.
    Calm,
    Does(u8, Doing),
}

/// What a process does, or what happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    Begin,
    Record,
    TakeTurn,
    Look,
    Check,
    /// The store fails before the last bytes: certainly not stored.
    NotStored,
    LastBytes,
    SeeOk,
    /// The connection is gone, or the answer does not come in time.
    InDoubt,
    Confirm,
    Reopen,
    /// No ledger to confirm with.
    GiveUp,
    Undo,
    ClaimBusy,
    Crash,
    LoseSession,
}

impl Protocol {
    /// Everything that `index` may do or suffer.
    pub fn doings(&self, state: &State, index: u8, actions: &mut Vec<Action>) {
        let process = &state.processes[usize::from(index)];
        let mut may = |doing| actions.push(Action::Does(index, doing));
        let (faults, noisy) = (self.faults, !state.calm);
        match process.at {
            At::Delivered => return,
            At::Record if process.tries == 0 => return,
            At::Record => {
                let single = self.jobs[usize::from(index)].len() == 1;
                if self.guards()
                    && single
                    && state.copies[usize::from(self.jobs[usize::from(index)][0])].guard.is_none()
                {
                    may(Doing::Begin);
                }
                return may(Doing::Record);
            }
            At::Begun => may(Doing::Record),
            At::TakeTurn => may(Doing::TakeTurn),
            At::Look => may(Doing::Look),
            At::Check => {
                may(Doing::Check);
                if faults.crash && noisy {
                    may(Doing::NotStored);
                }
            }
            At::LastBytes => may(Doing::LastBytes),
            At::Answer => {
                if process.receipt.is_some() {
                    may(Doing::SeeOk);
                }
                if noisy && (faults.crash || process.receipt.is_none() && process.waited >= ANSWER) {
                    may(Doing::InDoubt);
                }
            }
            At::Confirm { .. } if process.session => may(Doing::Confirm),
            At::Confirm { .. } => {
                may(Doing::Reopen);
                if faults.crash {
                    may(Doing::GiveUp);
                }
            }
            At::Undo => may(Doing::Undo),
            At::Wait => may(Doing::ClaimBusy),
        }
        if faults.crash && noisy {
            may(Doing::Crash);
        }
        if faults.lost_session && noisy && process.session && process.at != At::Undo {
            may(Doing::LoseSession);
        }
    }

    pub fn does(&self, state: &mut State, index: u8, doing: Doing) {
        let me = usize::from(index);
        let job = &self.jobs[me];
        match doing {
            Doing::Begin => {
                state.copies[usize::from(job[0])].guard = Some(index);
                state.processes[me].at = At::Begun;
                return;
            }
            Doing::Record => return self.record(state, index),
            _ => {}
        }
        let process = &mut state.processes[me];
        let place = usize::from(process.place);
        let copy = &mut state.copies[usize::from(job[place])];
        let Step::Claimed { epoch, .. } = process.steps[place] else {
            return match doing {
                Doing::ClaimBusy => self.claim_busy(state, index),
                Doing::Crash => end(state, index, job, false),
                _ => lose_session(state, index),
            };
        };
        let ours = !self.layers.epoch || epoch == copy.epoch;
        match doing {
            Doing::Begin | Doing::Record => {}
            Doing::TakeTurn => self.take_turn(state, index),
            Doing::Look => {
                // The newest, as `Store::look` of the adapters.
                process.receipt = copy.mailbox.last().map(|stored| stored.name);
                process.at = if process.receipt.is_some() { At::Confirm { found: true } } else { At::Check };
            }
            Doing::Check if self.layers.check && process.age > DEADLINE => self.give_back(state, index),
            Doing::NotStored => self.give_back(state, index),
            Doing::Check => {
                process.at = At::LastBytes;
                process.waited = 0;
            }
            Doing::LastBytes => {
                process.at = At::Answer;
                process.waited = 0;
                if self.join {
                    process.receipt = Some(link(copy));
                } else {
                    copy.on_the_way.push(Append { sender: Some(index), within: self.lag });
                }
            }
            Doing::SeeOk => process.at = At::Confirm { found: false },
            Doing::InDoubt => {
                // The lease stays until it has run out, and then the look decides.
                hang_up(copy, index);
                self.end_step(state, index, Step::Failed);
            }
            Doing::Confirm => {
                unlock(copy, index);
                let mine = process.receipt;
                let found = process.at == At::Confirm { found: true };
                if copy.receipt == mine || copy.receipt.is_none() && (ours || self.first_receipt_counts) {
                    copy.receipt = mine;
                    self.end_step(state, index, Step::Placed);
                } else if copy.receipt.is_some() && !found && self.layers.undo && !self.join {
                    process.at = At::Undo;
                } else {
                    self.end_step(state, index, Step::Failed);
                }
            }
            Doing::Reopen => process.session = true,
            Doing::GiveUp => self.end_step(state, index, Step::Failed),
            Doing::Undo => {
                let mine = process.receipt;
                copy.mailbox.retain(|stored| Some(stored.name) != mine);
                self.end_step(state, index, Step::Failed);
            }
            Doing::ClaimBusy => self.claim_busy(state, index),
            Doing::Crash => end(state, index, job, false),
            Doing::LoseSession => lose_session(state, index),
        }
    }

    /// One transaction: a lease on every copy of the job that is free.
    fn record(&self, state: &mut State, index: u8) {
        let me = usize::from(index);
        let process = &mut state.processes[me];
        process.tries -= 1;
        process.patience = 1;
        if !process.session {
            return end(state, index, &self.jobs[me], false);
        }
        for (place, copy) in self.jobs[me].iter().enumerate() {
            process.steps[place] = self.claim(&mut state.copies[usize::from(*copy)]);
        }
        self.next_place(state, index, 0);
    }

    /// `Ledger::claim` for one copy.
    fn claim(&self, copy: &mut Copy) -> Step {
        if copy.receipt.is_some() {
            return Step::Placed;
        }
        let live = copy.leased > 0 && self.layers.lease;
        if live && !self.join {
            return Step::Busy;
        }
        if !live {
            copy.epoch += 1;
        }
        copy.prior_doubt = copy.in_doubt;
        copy.in_doubt = true;
        copy.leased = LEASE;
        Step::Claimed { epoch: copy.epoch, in_doubt: copy.prior_doubt }
    }

    /// Whether copies have locks in the store.
    fn guards(&self) -> bool {
        self.join && self.layers.guard
    }

    /// `Store::hold` and `Ledger::take_turn`: the copy's locks, and the row re-read under them.
    fn take_turn(&self, state: &mut State, index: u8) {
        let me = usize::from(index);
        let process = &mut state.processes[me];
        let place = usize::from(process.place);
        let copy = &mut state.copies[usize::from(self.jobs[me][place])];
        let Step::Claimed { epoch, in_doubt } = process.steps[place] else { return };
        if self.guards() && copy.guard.is_some_and(|holder| holder != index) {
            return self.next_place(state, index, place + 1);
        }
        copy.guard = self.guards().then_some(index);
        if !process.session {
            return self.give_back(state, index);
        }
        if self.layers.lock && copy.lock.is_some() {
            unguard(copy, index);
            return self.next_place(state, index, place + 1);
        }
        if copy.receipt.is_some() {
            return self.end_step(state, index, Step::Placed);
        }
        if self.layers.epoch && epoch != copy.epoch {
            return self.end_step(state, index, Step::Busy);
        }
        if self.layers.lock {
            copy.lock = Some(index);
        }
        process.at = if (in_doubt || copy.prior_doubt) && self.layers.look { At::Look } else { At::Check };
    }

    /// Certainly nothing was written: `Ledger::release`, if there is a session to do it with.
    fn give_back(&self, state: &mut State, index: u8) {
        let me = usize::from(index);
        let place = usize::from(state.processes[me].place);
        let copy = &mut state.copies[usize::from(self.jobs[me][place])];
        if state.processes[me].session {
            release(copy, state.processes[me].steps[place], self.layers.epoch);
        }
        self.end_step(state, index, Step::Failed);
    }

    /// The copy at hand is done with in this round.
    fn end_step(&self, state: &mut State, index: u8, step: Step) {
        let me = usize::from(index);
        let place = usize::from(state.processes[me].place);
        unlock(&mut state.copies[usize::from(self.jobs[me][place])], index);
        unguard(&mut state.copies[usize::from(self.jobs[me][place])], index);
        state.processes[me].steps[place] = step;
        self.next_place(state, index, place + 1);
    }

    /// On to the next claimed copy from `from` on; after the last one waits, or ends.
    fn next_place(&self, state: &mut State, index: u8, from: usize) {
        let job = &self.jobs[usize::from(index)];
        let process = &mut state.processes[usize::from(index)];
        (process.receipt, process.waited) = (None, 0);
        let steps = &process.steps[..job.len()];
        let next = (from..job.len()).find(|place| matches!(steps[*place], Step::Claimed { .. }));
        if let Some(next) = next {
            let is_ours = state.copies[usize::from(job[next])].guard == Some(index);
            (process.at, process.place) = (self.begins_with(steps[next], is_ours), next as u8);
        } else if steps.iter().all(|step| *step == Step::Placed) {
            end(state, index, job, true);
        } else if process.patience > 0 && steps.iter().any(|step| !matches!(step, Step::Placed | Step::Failed)) {
            (process.at, process.place) = (At::Wait, 0);
        } else {
            if process.session {
                for (copy, step) in job.iter().zip(process.steps) {
                    release(&mut state.copies[usize::from(*copy)], step, self.layers.epoch);
                }
            }
            end(state, index, job, false);
        }
    }

    /// A lease without doubt that nobody may join is a turn already, and so is one of a copy that `is_ours` in the store.
    fn begins_with(&self, claimed: Step, is_ours: bool) -> At {
        match claimed {
            Step::Claimed { in_doubt: false, .. } if !self.join || is_ours => At::Check,
            _ => At::TakeTurn,
        }
    }

    /// After the wait: claims the busy copies again, then goes at every claimed one.
    fn claim_busy(&self, state: &mut State, index: u8) {
        let me = usize::from(index);
        let process = &mut state.processes[me];
        process.patience -= 1;
        for (step, copy) in process.steps.iter_mut().zip(&self.jobs[me]) {
            if *step == Step::Busy {
                *step = if process.session { self.claim(&mut state.copies[usize::from(*copy)]) } else { Step::Failed };
            }
        }
        self.next_place(state, index, 0);
    }
}

/// The Maildir's append: one name, which `link` refuses to give twice while the file is in `new/`.
fn link(copy: &mut Copy) -> u8 {
    if copy.mailbox.iter().all(|stored| stored.moved) {
        copy.mailbox.push(Stored { name: 1, moved: false });
    }
    1
}

/// `Ledger::release` for one copy: free again, as much in doubt as before the claim.
fn release(copy: &mut Copy, step: Step, by_epoch: bool) {
    if let Step::Claimed { epoch, .. } = step
        && copy.receipt.is_none()
        && (!by_epoch || epoch == copy.epoch)
    {
        copy.leased = 0;
        copy.in_doubt = copy.prior_doubt;
    }
}

fn unlock(copy: &mut Copy, index: u8) {
    if copy.lock == Some(index) {
        copy.lock = None;
    }
}

fn unguard(copy: &mut Copy, index: u8) {
    if copy.guard == Some(index) {
        copy.guard = None;
    }
}

fn hang_up(copy: &mut Copy, index: u8) {
    for append in &mut copy.on_the_way {
        if append.sender == Some(index) {
            append.sender = None;
        }
    }
}

fn lose_session(state: &mut State, index: u8) {
    state.processes[usize::from(index)].session = false;
    state.copies.iter_mut().for_each(|copy| unlock(copy, index));
}

/// The process is gone, and with it its sessions and locks, its connection to the store and all it knew.
fn end(state: &mut State, index: u8, job: &[u8], delivered: bool) {
    for copy in job {
        let copy = &mut state.copies[usize::from(*copy)];
        unlock(copy, index);
        unguard(copy, index);
        hang_up(copy, index);
    }
    let process = &mut state.processes[usize::from(index)];
    *process = Process { at: if delivered { At::Delivered } else { At::Record }, ..Process::new(process.tries) };
}
