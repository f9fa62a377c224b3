//! A delivery's steps, one function each, as in `crates/core/src/deliver/` and the ledger's port,
//! and the steps of everything else: time, mail server, reader, crashes. A change of a step there
//! needs the same change here.

use crate::ledger::Confirmed;
use crate::state::{
    ANSWER, Append, At, Call, Copy, DEADLINE, LEASE, LONG_DEADLINE, LONG_LEASE, LookedBack, Mark,
    Process, State, Step, Stored, UNNAMED, Verify,
};
use crate::{BrokenRule, Protocol};

/// Something that can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Tick,
    /// The server executes append number `append` of those in transit.
    Lands {
        copy: u8,
        append: u8,
    },
    /// The sender's connection is lost, and the server drops the append.
    NeverLands {
        copy: u8,
        append: u8,
    },
    /// A reader moves a Maildir's file from `new/` to `cur/`.
    Moves {
        copy: u8,
    },
    /// The ledger executes a call whose caller has lost its session.
    Executes {
        call: u8,
    },
    /// The ledger never executes it.
    Drops {
        call: u8,
    },
    /// The ledger's clock steps past the end of all leases.
    ClockSteps,
    /// It steps back, and leases last longer.
    ClockStepsBack,
    /// The ledger's server crashes, and loses what is not on its disk of the copies whose bits are
    /// set.
    LedgerCrashes {
        lost: u8,
    },
    /// The host of all processes restarts.
    Restart,
    Forgets {
        copy: u8,
    },
    /// A server reads all that is in the mailbox, for copies in doubt; it needs no lease and no
    /// turn.
    LooksBack {
        copy: u8,
    },
    /// The owner acts on the first copy's mailbox.
    Owner(Owner),
    Verify(u8, Verify),
    VerifyDies(u8),
    /// From here on there are no faults.
    Calm,
    Does(u8, Doing),
}

/// By a mail program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Moves a message to another mailbox, or deletes it.
    Takes(u8),
    Marks(u8),
    Unmarks(u8),
    /// EXPUNGE or CLOSE: removes everything marked.
    Expunges,
}

/// A step of a process, or a fault that hits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    Begin,
    Record,
    /// The record of a process that cannot read which boot it is.
    RecordUnread,
    /// The record is sent, and the session is lost before the answer.
    RecordUnanswered,
    /// The mailbox was not read yet: not this time.
    ComesAgain,
    TakeTurn,
    Look,
    Check,
    /// The store fails before the last bytes: certainly not stored.
    NotStored,
    LastBytes,
    SeeOk,
    /// The connection is lost, or the answer does not arrive in time.
    InDoubt,
    Confirm,
    ConfirmUnanswered,
    Reopen,
    /// The ledger is unreachable at the confirm.
    GiveUp,
    Keep,
    Undo,
    Expunge,
    ClaimBusy,
    ClaimBusyUnanswered,
    Crash,
    LoseSession,
}

impl Protocol {
    /// All possible next events of process `index`.
    pub fn doings(&self, state: &State, index: u8, actions: &mut Vec<Action>) {
        let process = &state.processes[usize::from(index)];
        let mut may = |doing| actions.push(Action::Does(index, doing));
        let (faults, noisy) = (self.faults, !state.calm);
        let may_lose_answer =
            noisy && process.session && state.calls.len() < usize::from(faults.lost_answers);
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
                if may_lose_answer {
                    may(Doing::RecordUnanswered);
                }
                if faults.unread && noisy {
                    may(Doing::RecordUnread);
                }
                return may(Doing::Record);
            }
            At::Begun => {
                may(Doing::Record);
                if may_lose_answer {
                    may(Doing::RecordUnanswered);
                }
            }
            At::RecordAgain => may(Doing::Record),
            At::TakeTurn if self.is_to_be_read(state, index) => {
                if noisy {
                    may(Doing::ComesAgain);
                }
            }
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
                if noisy && (faults.crash || process.receipt.is_none() && process.waited >= ANSWER)
                {
                    may(Doing::InDoubt);
                }
            }
            At::Confirm { .. } if process.session => {
                may(Doing::Confirm);
                if may_lose_answer {
                    may(Doing::ConfirmUnanswered);
                }
            }
            At::Confirm { .. } => {
                may(Doing::Reopen);
                if faults.crash {
                    may(Doing::GiveUp);
                }
            }
            At::Keep { .. } => may(Doing::Keep),
            At::Undo => may(Doing::Undo),
            At::Expunge => may(Doing::Expunge),
            At::Wait => {
                may(Doing::ClaimBusy);
                if may_lose_answer {
                    may(Doing::ClaimBusyUnanswered);
                }
            }
            At::WaitAgain => may(Doing::ClaimBusy),
        }
        if faults.crash && noisy {
            may(Doing::Crash);
        }
        let needs_session = !matches!(process.at, At::Undo | At::Expunge);
        if faults.lost_session && noisy && process.session && needs_session {
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
            Doing::RecordUnread => {
                state.unread = true;
                if self.wrong == Some(BrokenRule::UnreadIsAnotherBoot) {
                    job.iter().for_each(|copy| state.copies[usize::from(*copy)].leased = 0);
                    return self.record(state, index);
                }
                state.processes[me].tries -= 1;
                return self.end(state, index, false);
            }
            Doing::RecordUnanswered => {
                state.processes[me].tries -= 1;
                state.processes[me].at = At::RecordAgain;
                let copies = job.iter().map(|copy| 1 << copy).sum();
                state.calls.push(Call::Claim { process: index, copies, lives: true });
                return lose_session(state, index);
            }
            Doing::ClaimBusy => return self.claim_busy(state, index),
            Doing::ClaimBusyUnanswered => {
                state.processes[me].at = At::WaitAgain;
                let copies = self.busy(state, index);
                state.calls.push(Call::Claim { process: index, copies, lives: true });
                return lose_session(state, index);
            }
            Doing::Crash => return self.end(state, index, false),
            Doing::LoseSession => return lose_session(state, index),
            _ => {}
        }
        let process = &mut state.processes[me];
        let place = usize::from(process.place);
        let number = job[place];
        let copy = &mut state.copies[usize::from(number)];
        let Step::Claimed(claim) = process.steps[place] else { return };
        let mine = process.receipt.unwrap_or(UNNAMED);
        let found = process.at == At::Confirm { found: true };
        match doing {
            Doing::TakeTurn => self.take_turn(state, index),
            Doing::ComesAgain => self.give_back(state, index),
            Doing::Look => {
                // The newest, as `Store::look` of the adapters; of one that looks back, among what
                // came since.
                let looked = copy.looked.filter(|_| self.looks_back);
                let is_new = |stored: &&Stored| match looked {
                    Some(looked) => {
                        stored.name > looked.above
                            && self.wrong != Some(BrokenRule::LookBackIsEnough)
                    }
                    None => true,
                };
                let newest = copy.mailbox.iter().rfind(is_new).map(|stored| stored.name);
                process.receipt = newest.or(looked.and_then(|looked| looked.found));
                process.at =
                    if process.receipt.is_some() { At::Confirm { found: true } } else { At::Check };
            }
            Doing::Check if self.layers.check && process.age > self.deadline_of(index) => {
                self.not_stored(state, index)
            }
            Doing::NotStored => self.not_stored(state, index),
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
                // The lease is kept until it runs out, then a look decides.
                hang_up(copy, index);
                match self.shared {
                    true => self.fails(state, index, true),
                    false => self.end_step(state, index, Step::Failed),
                }
            }
            Doing::Keep => {
                let in_doubt = process.at == At::Keep { in_doubt: true };
                let kept = if process.session { Step::Kept } else { Step::Failed };
                if kept == Step::Kept {
                    self.keep(state, number);
                    // A copy that may have been written beside the one on record.
                    let row = self.named(state, number, claim).map(|row| &mut state.copies[row]);
                    if let Some(row) = row.filter(|row| in_doubt && row.receipt.is_some()) {
                        self.doubt(row, false);
                    }
                }
                if !in_doubt {
                    self.release_claim(state, index);
                }
                self.end_step(state, index, kept);
            }
            Doing::Confirm => {
                unlock(copy, index);
                let confirmed = self.confirm(state, number, claim, mine, found, Some(index));
                let has_name = mine != UNNAMED && !self.join;
                match confirmed {
                    Confirmed::Recorded => self.end_step(state, index, Step::Placed),
                    Confirmed::Superseded if !found && has_name && self.layers.undo => {
                        state.processes[me].at = At::Undo;
                    }
                    Confirmed::EpochGone
                        if has_name && self.wrong == Some(BrokenRule::UndoUnrecorded) =>
                    {
                        state.processes[me].at = At::Undo;
                    }
                    Confirmed::NoRow => {
                        let again = self.record_in_doubt(state, number, self.lease_of(index));
                        let is_other = state.copies[usize::from(number)].receipt != Some(mine);
                        let may_undo = !found && has_name && self.layers.undo;
                        if again == Step::Placed && is_other && may_undo {
                            state.processes[me].at = At::Undo;
                        } else {
                            self.end_step(state, index, Step::Failed);
                        }
                    }
                    _ => self.end_step(state, index, Step::Failed),
                }
            }
            Doing::ConfirmUnanswered => {
                let (process, copy) = (index, number);
                let call =
                    Call::Confirm { process, lives: true, copy, claim, receipt: mine, found };
                state.calls.push(call);
                lose_session(state, index);
            }
            Doing::Reopen => process.session = true,
            Doing::GiveUp => self.end_step(state, index, Step::Failed),
            Doing::Undo => {
                copy.mark(mine, Some(Mark::Ours));
                process.at = At::Expunge;
            }
            Doing::Expunge => {
                copy.expunge(mine);
                self.end_step(state, index, Step::Failed);
            }
            _ => {}
        }
    }

    /// Whether the copy that a process places looks back, and its mailbox was not read yet.
    fn is_to_be_read(&self, state: &State, index: u8) -> bool {
        let process = &state.processes[usize::from(index)];
        let place = usize::from(process.place);
        let copy = &state.copies[usize::from(self.jobs[usize::from(index)][place])];
        let is_in_doubt = matches!(process.steps[place], Step::Claimed(claim) if claim.in_doubt);
        self.looks_back && is_in_doubt && copy.looked.is_none()
    }

    /// Reads the mailbox of a copy that is not placed.
    pub fn look_back(&self, state: &mut State, number: u8) {
        let above = state.next_name(number, &self.jobs) - 1;
        let copy = &mut state.copies[usize::from(number)];
        let found = copy.mailbox.last().map(|stored| stored.name);
        copy.looked = Some(LookedBack { above, found });
    }

    /// One transaction: leases every free copy of the job. If the answer was lost, the call is
    /// repeated in a new session.
    fn record(&self, state: &mut State, index: u8) {
        let process = &mut state.processes[usize::from(index)];
        if process.at == At::RecordAgain {
            process.session = true;
        } else {
            process.tries -= 1;
        }
        process.patience = 1;
        if !process.session {
            return self.end(state, index, false);
        }
        let copies = self.jobs[usize::from(index)].iter().map(|copy| 1 << copy).sum();
        let steps = self.claim_all(state, index, copies, true);
        state.processes[usize::from(index)].steps[..steps.len()].copy_from_slice(&steps);
        self.next_place(state, index, 0);
    }

    /// How long the lease of a process lasts.
    pub fn lease_of(&self, process: u8) -> u8 {
        if self.long && process == 0 { LONG_LEASE } else { LEASE }
    }

    /// How long a process may send last bytes.
    pub fn deadline_of(&self, process: u8) -> u8 {
        if self.long && process == 0 { LONG_DEADLINE } else { DEADLINE }
    }

    /// Whether copies have locks in the store.
    fn guards(&self) -> bool {
        self.join && self.layers.guard
    }

    /// `Store::hold` and `Ledger::take_turn`: the copy's locks, and the row re-read under them.
    fn take_turn(&self, state: &mut State, index: u8) {
        let me = usize::from(index);
        let place = usize::from(state.processes[me].place);
        let number = self.jobs[me][place];
        let Step::Claimed(claim) = state.processes[me].steps[place] else { return };
        let copy = &mut state.copies[usize::from(number)];
        if self.guards() && copy.guard.is_some_and(|holder| holder != index) {
            return self.next_place(state, index, place + 1);
        }
        copy.guard = self.guards().then_some(index);
        if !state.processes[me].session {
            return self.give_back(state, index);
        }
        if self.layers.lock && copy.lock.is_some() {
            unguard(copy, index);
            return self.next_place(state, index, place + 1);
        }
        let Some(row) = self.named(state, number, claim) else {
            return self.end_step(state, index, Step::Failed);
        };
        let row = &state.copies[row];
        if row.receipt.is_some() {
            return self.end_step(state, index, Step::Placed);
        }
        if self.layers.epoch && claim.epoch != row.epoch {
            return self.end_step(state, index, Step::Busy);
        }
        let looks = (claim.in_doubt || row.prior_doubt) && self.layers.look;
        if self.layers.lock {
            state.copies[usize::from(number)].lock = Some(index);
        }
        state.processes[me].at = if looks { At::Look } else { At::Check };
    }

    /// Certainly nothing was written: `Ledger::release`, if there is a session.
    fn give_back(&self, state: &mut State, index: u8) {
        self.release_claim(state, index);
        self.end_step(state, index, Step::Failed);
    }

    fn release_claim(&self, state: &mut State, index: u8) {
        let me = usize::from(index);
        let place = usize::from(state.processes[me].place);
        if let (true, Step::Claimed(claim)) =
            (state.processes[me].session, state.processes[me].steps[place])
        {
            self.release(state, self.jobs[me][place], claim);
        }
    }

    /// The store has certainly not stored the copy.
    fn not_stored(&self, state: &mut State, index: u8) {
        match self.shared {
            true => self.fails(state, index, false),
            false => self.give_back(state, index),
        }
    }

    /// A shared copy that is not placed: the ledger keeps its bytes before the lease is released.
    fn fails(&self, state: &mut State, index: u8, in_doubt: bool) {
        match self.wrong {
            Some(BrokenRule::DeliveredUnkept) => {
                if !in_doubt {
                    self.release_claim(state, index);
                }
                self.end_step(state, index, Step::Kept);
            }
            _ => state.processes[usize::from(index)].at = At::Keep { in_doubt },
        }
    }

    /// A process does not wait for a shared copy that another one has leased if its bytes are kept.
    fn leave_what_is_kept(&self, state: &mut State, index: u8) {
        let me = usize::from(index);
        for (place, copy) in self.jobs[me].iter().enumerate() {
            let step = state.processes[me].steps[place];
            let is_open = matches!(step, Step::Busy | Step::Claimed(_));
            if self.shared
                && state.processes[me].session
                && is_open
                && state.copies[usize::from(*copy)].kept
            {
                if let Step::Claimed(claim) = step {
                    self.release(state, *copy, claim);
                }
                state.processes[me].steps[place] = Step::Kept;
            }
        }
    }

    /// The current copy is finished in this round.
    fn end_step(&self, state: &mut State, index: u8, step: Step) {
        let me = usize::from(index);
        let place = usize::from(state.processes[me].place);
        unlock(&mut state.copies[usize::from(self.jobs[me][place])], index);
        unguard(&mut state.copies[usize::from(self.jobs[me][place])], index);
        state.processes[me].steps[place] = step;
        self.next_place(state, index, place + 1);
    }

    /// Continues with the next claimed copy from `from` on; after the last one, waits or ends.
    fn next_place(&self, state: &mut State, index: u8, from: usize) {
        let job = &self.jobs[usize::from(index)];
        let process = &mut state.processes[usize::from(index)];
        (process.receipt, process.waited) = (None, 0);
        let steps = &process.steps[..job.len()];
        let next = (from..job.len()).find(|place| matches!(steps[*place], Step::Claimed(_)));
        if let Some(next) = next {
            let is_ours = state.copies[usize::from(job[next])].guard == Some(index);
            (process.at, process.place) = (self.begins_with(steps[next], is_ours), next as u8);
            return;
        }
        self.leave_what_is_kept(state, index);
        let process = &mut state.processes[usize::from(index)];
        let steps = &process.steps[..job.len()];
        if steps.iter().all(|step| matches!(step, Step::Placed | Step::Kept)) {
            let kept = job.iter().zip(process.steps).filter(|(_, step)| *step == Step::Kept);
            for (copy, _) in kept.filter(|_| self.faults.ledger_crash) {
                state.copies[usize::from(*copy)].left = true;
            }
            self.end(state, index, true);
        } else if process.patience > 0
            && steps.iter().any(|step| matches!(step, Step::Busy | Step::Claimed(_)))
        {
            (process.at, process.place) = (At::Wait, 0);
        } else {
            let (session, steps) = (process.session, process.steps);
            for (copy, step) in job.iter().zip(steps) {
                if let (true, Step::Claimed(claim)) = (session, step) {
                    self.release(state, *copy, claim);
                }
            }
            self.end(state, index, false);
        }
    }

    /// A lease needs no turn if it is not in doubt and cannot be joined, or if the copy `is_ours`
    /// in the store.
    fn begins_with(&self, claimed: Step, is_ours: bool) -> At {
        match claimed {
            Step::Claimed(claim) if !claim.in_doubt && (!self.join || is_ours) => At::Check,
            _ => At::TakeTurn,
        }
    }

    /// The busy copies of a process, as bits.
    fn busy(&self, state: &State, index: u8) -> u8 {
        let (job, steps) =
            (&self.jobs[usize::from(index)], state.processes[usize::from(index)].steps);
        job.iter()
            .zip(steps)
            .filter(|(_, step)| *step == Step::Busy)
            .map(|(copy, _)| 1 << copy)
            .sum()
    }

    /// After the wait: claims the busy copies again, then places every claimed one.
    fn claim_busy(&self, state: &mut State, index: u8) {
        let me = usize::from(index);
        let process = &mut state.processes[me];
        process.patience -= 1;
        if process.at == At::WaitAgain {
            process.session = true;
        }
        let session = process.session;
        let copies = self.busy(state, index);
        let claimed = if session { self.claim_all(state, index, copies, true) } else { Vec::new() };
        let mut claimed = claimed.into_iter();
        for step in state.processes[me].steps[..self.jobs[me].len()]
            .iter_mut()
            .filter(|step| **step == Step::Busy)
        {
            *step = claimed.next().unwrap_or(Step::Failed);
        }
        self.next_place(state, index, 0);
    }

    /// The process dies with its sessions, locks, connection to the store and memory.
    pub fn end(&self, state: &mut State, index: u8, delivered: bool) {
        for copy in &self.jobs[usize::from(index)] {
            let copy = &mut state.copies[usize::from(*copy)];
            unlock(copy, index);
            unguard(copy, index);
            hang_up(copy, index);
            copy.placed_by = copy.placed_by.filter(|by| *by != index);
            let is_forgotten =
                copy.holder == Some(index) && self.wrong != Some(BrokenRule::LeaseByProcess);
            copy.holder = copy.holder.filter(|_| !is_forgotten);
        }
        for call in &mut state.calls {
            match call {
                Call::Claim { process, lives, .. } | Call::Confirm { process, lives, .. } => {
                    *lives &= *process != index;
                }
            }
        }
        let process = &mut state.processes[usize::from(index)];
        *process = Process {
            at: if delivered { At::Delivered } else { At::Record },
            ..Process::new(process.tries)
        };
    }
}

/// The Maildir's append: one name, which `link` refuses a second time while the file is in `new/`.
fn link(copy: &mut Copy) -> u8 {
    if copy.mailbox.iter().all(|stored| stored.moved) {
        copy.mailbox.push(Stored { name: 1, moved: false, mark: None });
    }
    1
}

pub fn unlock(copy: &mut Copy, index: u8) {
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
