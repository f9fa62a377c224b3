//! `onedrop verify --repair` for the first copy, step by step as in `crates/core/src/verify.rs` and
//! `Store::remove_double`. It reads the row, finds the copies, records one of them if the row is in
//! doubt (under a lease and the copy's lock), removes the doubles, and settles the row after a look
//! that found one copy and came after the last lease. A removal has two phases: it marks the
//! double, and expunges it only if the keeper is still there; otherwise it removes the mark.

use crate::ledger::{Confirmed, sync};
use crate::state::{Claim, Copy, GONE, LEASE, Mark, State, Step, UNNAMED, Verifier, Verify};
use crate::steps::unlock;
use crate::{BrokenRule, Protocol};

impl Protocol {
    /// The next step of a verifier, if it has one.
    pub fn verify_step(&self, state: &State, index: u8) -> Option<Verify> {
        let verifier = &state.verifiers[usize::from(index)];
        (verifier.is_running() || verifier.runs > 0).then_some(verifier.at)
    }

    pub fn verify(&self, state: &mut State, index: u8) {
        let me = usize::from(index);
        // Its number as a holder of locks.
        let number = self.jobs.len() as u8 + index;
        let (copy, verifier) = (&mut state.copies[0], &mut state.verifiers[me]);
        let claim = verifier.claim;
        match verifier.at {
            Verify::Read => {
                verifier.runs -= 1;
                verifier.claim = Claim { row: copy.row, epoch: copy.epoch, in_doubt: false };
                verifier.receipt = copy.receipt;
                verifier.may_be_double = has_more_leases(copy) || copy.receipt.is_none();
                verifier.needs_a_look = verifier.may_be_double && !copy.settled;
                verifier.is_old = copy.since >= LEASE;
                let in_doubt = copy.receipt.is_none() && copy.leased == 0 && copy.in_doubt;
                let is_there = copy.row != GONE && (copy.receipt.is_some() || in_doubt);
                if is_there {
                    verifier.at = Verify::Find;
                }
            }
            Verify::Find => match verifier.receipt {
                Some(on_record) => self.compare(copy, verifier, on_record),
                None if copy.mailbox.is_empty() => gone(verifier),
                None if self.wrong == Some(BrokenRule::RemoveUnrecorded) => {
                    self.compare(copy, verifier, to_record(copy));
                }
                None => verifier.at = Verify::Claim,
            },
            Verify::Claim if copy.row == GONE => gone(verifier),
            Verify::Claim => match self.claim(state, 0, None, LEASE) {
                Step::Claimed(claim) => {
                    state.verifiers[me].claim = claim;
                    state.verifiers[me].at = Verify::TakeTurn;
                }
                _ => gone(verifier_of(state, me)),
            },
            Verify::TakeTurn => {
                if copy.lock.is_some() {
                    self.release(state, 0, claim);
                    gone(verifier_of(state, me));
                } else if copy.row != claim.row
                    || copy.receipt.is_some()
                    || copy.epoch != claim.epoch
                {
                    gone(verifier);
                } else {
                    copy.lock = Some(number);
                    verifier.at = Verify::FindAgain;
                }
            }
            Verify::FindAgain if copy.mailbox.is_empty() => {
                unlock(copy, number);
                self.release(state, 0, claim);
                gone(verifier_of(state, me));
            }
            Verify::FindAgain => {
                let receipt = to_record(copy);
                verifier.is_old = false;
                self.compare(copy, verifier, receipt);
                verifier.receipt = Some(receipt);
                verifier.at = Verify::Confirm;
            }
            Verify::Confirm => {
                unlock(copy, number);
                let receipt = verifier.receipt.unwrap_or(UNNAMED);
                let confirmed = self.confirm(state, 0, claim, receipt, true, None);
                let verifier = verifier_of(state, me);
                match confirmed {
                    Confirmed::Recorded if !verifier.doubles.is_empty() => {
                        verifier.at = Verify::Stands
                    }
                    _ => gone(verifier),
                }
            }
            Verify::Stands | Verify::Mark | Verify::Keeper | Verify::Expunge | Verify::PutBack => {
                self.remove_double(copy, verifier);
            }
            Verify::Settle => {
                let as_read = copy.row == claim.row
                    && copy.epoch == claim.epoch
                    && copy.receipt == verifier.receipt;
                if as_read {
                    copy.settled = true;
                    copy.receipt = verifier.keeper.or(copy.receipt);
                    sync(state);
                }
                gone(verifier_of(state, me));
            }
        }
    }

    /// The result of a look: the keeper and the doubles.
    fn compare(&self, copy: &Copy, verifier: &mut Verifier, on_record: u8) {
        let standing =
            || copy.mailbox.iter().filter(|stored| stored.mark.is_none()).map(|stored| stored.name);
        let named = standing().find(|name| *name == on_record);
        verifier.keeper = named.or_else(|| standing().next());
        let doubles =
            standing().filter(|name| verifier.may_be_double && Some(*name) != verifier.keeper);
        verifier.doubles = doubles.collect();
        // If the look finds nothing, the mailbox may be unavailable; after a week this counts as
        // deleted.
        let is_marked = copy.mailbox.iter().any(|stored| stored.mark.is_some());
        verifier.is_seen = verifier.keeper.is_some() && !is_marked || self.after_a_week;
        let has_new_name = verifier.keeper.is_some_and(|keeper| keeper != on_record);
        if !verifier.doubles.is_empty() {
            verifier.at = Verify::Stands;
        } else if verifier.is_seen && verifier.is_old && (verifier.needs_a_look || has_new_name) {
            verifier.at = Verify::Settle;
        } else {
            gone(verifier);
        }
    }

    /// `Store::remove_double`, for the first of the doubles.
    fn remove_double(&self, copy: &mut Copy, verifier: &mut Verifier) {
        let Some(double) = verifier.doubles.first().copied() else { return gone(verifier) };
        let keeper = verifier.keeper.unwrap_or(UNNAMED);
        let looks_first = self.wrong == Some(BrokenRule::LookThenMark);
        verifier.at = match verifier.at {
            Verify::Stands if !self.uid_plus || !copy.stands(double) => {
                return next_double(verifier);
            }
            Verify::Stands if looks_first => Verify::Keeper,
            Verify::Stands => Verify::Mark,
            Verify::Mark => {
                copy.mark(double, Some(Mark::Ours));
                if looks_first || !self.layers.keeper { Verify::Expunge } else { Verify::Keeper }
            }
            Verify::Keeper if !copy.stands(keeper) => {
                if looks_first {
                    return next_double(verifier);
                }
                Verify::PutBack
            }
            Verify::Keeper if looks_first => Verify::Mark,
            Verify::Keeper => Verify::Expunge,
            Verify::Expunge => {
                let stood = copy.mailbox.len();
                copy.expunge(double);
                // A copy that another verifier has marked is left to that one.
                let stands = copy.mailbox.iter().any(|stored| stored.mark != Some(Mark::Owner));
                copy.bared |= copy.mailbox.len() < stood && !stands;
                return next_double(verifier);
            }
            Verify::PutBack => {
                if self.layers.put_back {
                    copy.mark(double, None);
                }
                return next_double(verifier);
            }
            other => other,
        };
    }
}

/// A copy that was leased more than once, or left a doubt.
pub fn has_more_leases(copy: &Copy) -> bool {
    copy.epoch > 1 || copy.prior_doubt
}

/// The oldest copy that the owner has not marked, else the newest.
fn to_record(copy: &Copy) -> u8 {
    let oldest = copy.mailbox.iter().find(|stored| stored.mark.is_none());
    oldest.or(copy.mailbox.last()).map_or(UNNAMED, |stored| stored.name)
}

fn next_double(verifier: &mut Verifier) {
    verifier.doubles.remove(0);
    match verifier.doubles.is_empty() {
        true => gone(verifier),
        false => verifier.at = Verify::Stands,
    }
}

fn verifier_of(state: &mut State, index: usize) -> &mut Verifier {
    &mut state.verifiers[index]
}

/// The run ends.
pub fn gone(verifier: &mut Verifier) {
    *verifier = Verifier::new(verifier.runs);
}
