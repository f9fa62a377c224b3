//! A recipient's copy whose mailbox is not there, or not open to us, goes to the account's INBOX.
//! Its own row says so for good, by the receipt [`Receipt::Elsewhere`], before INBOX is claimed:
//! the first receipt wins, so no delivery that comes later, or was late, leaves a copy in the
//! mailbox that was meant. In INBOX the row is that of all who mean INBOX: one copy, by the rules
//! of any other. Changes here need the same change in `tests/model/elsewhere.rs`.

use std::sync::OnceLock;

use super::place::{Placing, StandIn, Step};
use super::{CopyResult, Phases, Placed};
use crate::directory::Destination;
use crate::ledger::{
    Claim, Confirmed, CopyFacts, CopyState, LedgerError, OpenTurn, ToConfirm, Turn,
};
use crate::lock_key::Hash;
use crate::store::{Receipt, StoreError};

impl Placing<'_> {
    /// What a copy comes to that the store did not take: it goes elsewhere, or is not placed. That
    /// it goes elsewhere is put on record in its turn, while the epoch is ours: a delivery that was
    /// frozen meanwhile must not send it to INBOX beside one that has found the mailbox by now.
    pub(super) fn not_written(
        &self,
        index: usize,
        claim: &Claim,
        error: StoreError,
        mut turn: Option<Box<dyn OpenTurn + '_>>,
    ) -> Step {
        let meant = self.destination(index);
        let (StoreError::Refused(why), Some(other)) = (&error, meant.stand_in()) else {
            drop(turn);
            return self.failed(index, claim, error.into());
        };
        let (instead, facts) = (Receipt::Elsewhere(other.mailbox), CopyFacts::default());
        let one = ToConfirm { claim: *claim, receipt: &instead, facts, end: None };
        let decided = self.insisting(|until| {
            let open = match turn.take() {
                Some(open) => open,
                None => match self.means.ledger.take_turn(claim, self.key(index), until) {
                    Ok(Turn::Ours { turn, .. }) => turn,
                    Ok(Turn::Placed(receipt)) => return Ok(CopyState::Placed(receipt)),
                    Ok(Turn::EpochGone) => return Ok(CopyState::Busy),
                    // Another delivery's turn: that is waited for as everywhere.
                    Err(LedgerError::Contended) => return Ok(CopyState::Claimed(*claim)),
                    Err(error) => return Err(error),
                },
            };
            Ok(CopyState::Placed(match open.confirm(&one, until)? {
                Confirmed::Recorded => instead.clone(),
                Confirmed::Superseded { by } => by,
            }))
        });
        match decided {
            Ok(state) => {
                if matches!(state, CopyState::Placed(Receipt::Elsewhere(_))) {
                    tracing::warn!(%why, "no copy in {meant}: it goes to INBOX");
                }
                Step::Now(state)
            }
            Err(LedgerError::Contended) => Step::Now(CopyState::Claimed(*claim)),
            Err(error) => self.failed(index, claim, error.into()),
        }
    }

    /// A copy belongs into another mailbox of its account, as its row says. `None`: this delivery
    /// has that copy already, and it ends as that one does.
    pub(super) fn go_on_in(&self, index: usize, mailbox: &str) -> Option<Step> {
        let Destination { account, .. } = &self.job.destinations[index];
        let other =
            Destination { account: account.clone(), mailbox: mailbox.to_owned(), shared: false };
        let same = |one: &Destination| one.is_same_mailbox(&other);
        if self.stand_ins[index].get().is_some() || same(&self.job.destinations[index]) {
            let error = LedgerError::Broken(format!("{other} is elsewhere, again"));
            return Some(Step::Ended(Err(error.into())));
        }
        if let Some(at) = self.job.destinations.iter().position(same) {
            let _ = self.stand_ins[index].set(StandIn::Other(at));
            let meant = &self.job.destinations[index];
            self.end_recipients(|own| own.as_ref().is_some_and(|own| own.is_same_mailbox(meant)));
            return None;
        }
        let key = self.job.message.identity().copy_key(&other.account, &other.mailbox);
        let _ = self.stand_ins[index].set(StandIn::Apart(other, key));
        self.claim_busy(&[index]).pop()
    }

    /// Where the copy goes.
    pub(super) fn destination(&self, index: usize) -> &Destination {
        match self.stand_ins[index].get() {
            Some(StandIn::Apart(other, _)) => other,
            Some(StandIn::Other(at)) => &self.job.destinations[*at],
            None => &self.job.destinations[index],
        }
    }

    pub(super) fn key(&self, index: usize) -> &Hash {
        match self.stand_ins[index].get() {
            Some(StandIn::Apart(_, key)) => key,
            Some(StandIn::Other(at)) => &self.keys[*at],
            None => &self.keys[index],
        }
    }

    /// How the copy ended, or the one that stands in for it.
    pub(super) fn ended(&self, index: usize) -> Option<&(CopyResult, Phases)> {
        match self.stand_ins[index].get() {
            Some(StandIn::Other(at)) => self.ends[*at].get(),
            Some(StandIn::Apart(..)) | None => self.ends[index].get(),
        }
    }

    /// The copies that another one of this delivery stands in for.
    pub(super) fn stood_in_by(&self, other: usize) -> Vec<usize> {
        let is_it =
            |one: &OnceLock<StandIn>| matches!(one.get(), Some(StandIn::Other(at)) if *at == other);
        (0..self.stand_ins.len()).filter(|index| is_it(&self.stand_ins[*index])).collect()
    }

    /// What is placed for the copy, which may have been meant for another mailbox.
    pub(super) fn as_meant(&self, index: usize, placed: &Placed) -> Placed {
        let meant = self.job.destinations[index].place();
        let instead_of = self.stand_ins[index].get().map(|_| meant.to_owned());
        Placed { instead_of, ..placed.clone() }
    }
}
