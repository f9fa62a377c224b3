//! The effect of each call of the ledger on rows, in one transaction. Deliveries, verify and late
//! calls share them.

use crate::state::{Call, Claim, Copy, GONE, State, Step, UNNAMED, Unsynced, Verifier, Verify};
use crate::verify::gone;
use crate::{BrokenRule, Protocol};

/// A commit that waits for the disk brings all there that was committed before it.
pub fn sync(state: &mut State) {
    state.copies.iter_mut().for_each(|copy| copy.unsynced = None);
}

/// The result of a confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmed {
    Recorded,
    /// Another receipt is on record.
    Superseded,
    /// No receipt is on record, and none was recorded; only with [`BrokenRule::OwnEpoch`].
    EpochGone,
    /// There is no such row.
    NoRow,
}

impl Protocol {
    /// `Ledger::record` or `Ledger::claim`, for those copies of the process's job whose bits are
    /// set.
    pub fn claim_all(&self, state: &mut State, process: u8, copies: u8, lives: bool) -> Vec<Step> {
        let by = (lives || self.wrong == Some(BrokenRule::LeaseByProcess)).then_some(process);
        let of_bits =
            self.jobs[usize::from(process)].iter().filter(|copy| copies & (1 << **copy) != 0);
        let length = self.lease_of(process);
        of_bits.map(|copy| self.claim(state, *copy, by, length)).collect()
    }

    /// Leases one copy if it is free, or if `by` leased it in a call whose answer was lost.
    pub fn claim(&self, state: &mut State, number: u8, by: Option<u8>, length: u8) -> Step {
        if state.copies[usize::from(number)].row == GONE {
            let row = self.new_row(state, number);
            state.copies[usize::from(number)].row = row;
        }
        let copy = &mut state.copies[usize::from(number)];
        if copy.receipt.is_some() {
            return Step::Placed;
        }
        let early = match self.wrong {
            Some(BrokenRule::LeaseByClaimer) => copy.length.saturating_sub(length),
            _ => 0,
        };
        let live = copy.leased > early && self.layers.lease;
        if live && by.is_some() && copy.holder == by && self.keeps_holders() {
            return Step::Claimed(Claim {
                row: copy.row,
                epoch: copy.epoch,
                in_doubt: copy.prior_doubt,
            });
        }
        if live && !self.join {
            return Step::Busy;
        }
        if !live {
            copy.epoch += 1;
        }
        copy.prior_doubt = copy.in_doubt;
        copy.in_doubt = true;
        copy.leased = length;
        copy.length = if self.long { length } else { 0 };
        copy.holder = by.filter(|_| self.keeps_holders());
        let claim = Claim { row: copy.row, epoch: copy.epoch, in_doubt: copy.prior_doubt };
        match self.wrong {
            Some(BrokenRule::LosesRecords) => copy.unsynced = Some(Unsynced::Row),
            _ => sync(state),
        }
        Step::Claimed(claim)
    }

    /// A process has written a copy whose row is gone, and records it once more: leased and in
    /// doubt; a live lease is joined. Placed by another by now: that lasts, as the record does.
    pub fn record_in_doubt(&self, state: &mut State, number: u8, length: u8) -> Step {
        if !self.layers.again {
            return Step::Failed;
        }
        let row = &mut state.copies[usize::from(number)];
        if row.row != GONE && row.receipt.is_none() && row.leased > 0 {
            (row.prior_doubt, row.leased) = (true, row.leased.max(length));
            sync(state);
            return Step::Busy;
        }
        row.in_doubt |= row.row == GONE;
        if self.wrong != Some(BrokenRule::UndoUnsynced) {
            sync(state);
        }
        self.claim(state, number, None, length)
    }

    /// A random value that no claim has; or the lowest number that no row has.
    fn new_row(&self, state: &State, number: u8) -> u8 {
        let is_used = |row: &u8| state.copies.iter().any(|copy| copy.row == *row);
        match self.wrong {
            Some(BrokenRule::RowsByNumber) => {
                (1..=u8::MAX).find(|row| !is_used(row)).unwrap_or(GONE)
            }
            _ => number + 1,
        }
    }

    /// The copy whose row a claim names.
    pub fn named(&self, state: &State, number: u8, claim: Claim) -> Option<usize> {
        let has_it = |copy: &Copy| copy.row != GONE && copy.row == claim.row;
        match self.wrong {
            Some(BrokenRule::RowsByNumber) => state.copies.iter().position(has_it),
            _ => Some(usize::from(number)).filter(|number| has_it(&state.copies[*number])),
        }
    }

    /// `Ledger::confirm`: the first receipt on record wins, whatever its epoch. Where another one
    /// is on record, a copy that was written (not `found`) leaves a doubt: it may be a second one.
    pub fn confirm(
        &self,
        state: &mut State,
        number: u8,
        claim: Claim,
        receipt: u8,
        found: bool,
        by: Option<u8>,
    ) -> Confirmed {
        let Some(row) = self.named(state, number, claim) else { return Confirmed::NoRow };
        let row = &mut state.copies[row];
        let own_epoch = !self.layers.epoch || claim.epoch == row.epoch;
        match row.receipt {
            None if !own_epoch && self.wrong == Some(BrokenRule::OwnEpoch) => Confirmed::EpochGone,
            None if !own_epoch && self.wrong == Some(BrokenRule::UndoUnrecorded) && !found => {
                Confirmed::EpochGone
            }
            None => {
                let unsynced = self.unsynced_receipt(row);
                (row.receipt, row.since, row.kept) = (Some(receipt), 0, false);
                row.placed_by = by.filter(|_| receipt == UNNAMED);
                match unsynced {
                    Some(unsynced) => row.unsynced = Some(unsynced),
                    None => sync(state),
                }
                Confirmed::Recorded
            }
            Some(UNNAMED) if receipt == UNNAMED => {
                let is_ours = match self.wrong {
                    Some(BrokenRule::UnnamedByEpoch) => own_epoch,
                    _ => by.is_some() && row.placed_by == by,
                };
                if is_ours {
                    return Confirmed::Recorded;
                }
                self.doubt(row, found);
                sync(state);
                Confirmed::Superseded
            }
            Some(other) if other == receipt => Confirmed::Recorded,
            Some(_) => {
                self.doubt(row, found);
                sync(state);
                Confirmed::Superseded
            }
        }
    }

    /// What a crash undoes of the receipt that a row is given now: only where no second process has
    /// had the right to write the copy, and nothing goes with the receipt.
    fn unsynced_receipt(&self, row: &Copy) -> Option<Unsynced> {
        let is_first = row.epoch == 1 && !row.prior_doubt;
        let may_be_lost = match self.wrong {
            Some(BrokenRule::LosesRecords) => return row.unsynced,
            Some(BrokenRule::LosesAnyReceipt | BrokenRule::LosesKept) => true,
            _ => is_first && !self.shared,
        };
        let leased = row.leased;
        (self.faults.ledger_crash && may_be_lost).then_some(Unsynced::Receipt { leased })
    }

    /// The ledger's server crashes: of the copies whose bits are set, what is not on its disk is
    /// lost, and with it every session. What is not lost comes to be on the disk.
    pub fn crash(&self, state: &mut State, lost: u8) {
        for number in 0..state.copies.len() as u8 {
            let copy = &mut state.copies[usize::from(number)];
            copy.lock = None;
            match copy.unsynced.take().filter(|_| lost & 1 << number != 0) {
                None => {}
                Some(Unsynced::Receipt { leased }) => {
                    (copy.receipt, copy.placed_by, copy.since) = (None, None, 0);
                    (copy.leased, copy.in_doubt, copy.settled) = (leased, true, false);
                }
                Some(Unsynced::Row) => {
                    let (mailbox, on_the_way) = (copy.mailbox.clone(), copy.on_the_way.clone());
                    let (guard, taken, bared) = (copy.guard, copy.taken, copy.bared);
                    *copy = Copy { guard, mailbox, on_the_way, taken, bared, ..Copy::default() };
                    let claims = state.claims(number, &self.jobs);
                    claims.into_iter().for_each(|claim| claim.row = GONE);
                }
            }
        }
        state.lost = true;
        for process in state.processes.iter_mut().filter(|process| process.is_running()) {
            process.session = false;
        }
        // A removal that has begun goes on: it asks the ledger nothing.
        let asks = |verifier: &&mut Verifier| {
            use Verify::{Claim, Confirm, FindAgain, TakeTurn};
            matches!(verifier.at, Claim | TakeTurn | FindAgain | Confirm)
        };
        state.verifiers.iter_mut().filter(asks).for_each(gone);
    }

    /// Requests a second look. It also changes the row, so that a look that has begun does not
    /// settle it.
    pub fn doubt(&self, row: &mut Copy, found: bool) {
        if self.layers.doubt && !found {
            (row.prior_doubt, row.settled) = (true, false);
            row.epoch += u8::from(self.wrong != Some(BrokenRule::DoubtKeepsEpoch));
        }
    }

    /// `Ledger::release` for one copy: free again, as much in doubt as before the claim.
    pub fn release(&self, state: &mut State, number: u8, claim: Claim) {
        let Some(row) = self.named(state, number, claim) else { return };
        let row = &mut state.copies[row];
        if row.receipt.is_none() && (!self.layers.epoch || claim.epoch == row.epoch) {
            (row.leased, row.holder) = (0, None);
            row.in_doubt = row.prior_doubt;
            sync(state);
        }
    }

    /// `onedrop purge` or `forget`, or a ledger restored from a backup: deletes the row. Claims
    /// keep its value, which no other row gets. The next record of the copy is in doubt, because
    /// the ledger knows since when it remembers.
    pub fn forget(&self, state: &mut State, number: u8) {
        state.forgets -= 1;
        sync(state);
        if self.wrong != Some(BrokenRule::RowsByNumber) {
            state.claims(number, &self.jobs).into_iter().for_each(|claim| claim.row = GONE);
        }
        let copy = &mut state.copies[usize::from(number)];
        *copy = Copy {
            in_doubt: self.layers.memory,
            lock: copy.lock,
            guard: copy.guard,
            mailbox: std::mem::take(&mut copy.mailbox),
            on_the_way: std::mem::take(&mut copy.on_the_way),
            taken: copy.taken,
            bared: copy.bared,
            ..Copy::default()
        };
    }

    /// The ledger executes a call whose caller has lost its session.
    pub fn execute(&self, state: &mut State, call: u8) {
        match state.calls.remove(usize::from(call)) {
            Call::Claim { process, copies, lives } => {
                self.claim_all(state, process, copies, lives);
            }
            Call::Confirm { process, lives, copy, claim, receipt, found } => {
                self.confirm(state, copy, claim, receipt, found, lives.then_some(process));
            }
        }
    }

    /// `Ledger::keep`: in a transaction of its own, if the copy is not placed.
    pub fn keep(&self, state: &mut State, number: u8) {
        let row = &mut state.copies[usize::from(number)];
        row.kept = row.receipt.is_none();
        sync(state);
    }

    /// Whether leases know their attempt. It adds states, and matters only if calls are repeated.
    fn keeps_holders(&self) -> bool {
        self.faults.lost_answers > 0
    }
}
