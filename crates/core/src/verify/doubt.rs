//! Copies in doubt: settled by the look alone, under a lease and the copy's lock.

use std::time::Duration;

use super::difference::{Level, Topic};
use super::{Unverified, Verification, copy_key};
use crate::deliver::guard;
use crate::ledger::{
    Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, LeaseTerms, LedgerError, OpenTurn,
    ToConfirm, Turn,
};
use crate::store::FoundCopy;

impl<'a> Verification<'a, '_> {
    /// A copy that may stand in its mailbox, under no lease, and what was found there.
    pub(super) fn doubt(
        &mut self,
        copy: &CopyOnRecord,
        lease_left_over: bool,
        found: &[FoundCopy],
    ) -> Result<(), Unverified> {
        let (topic, why) = match lease_left_over {
            true => (Topic::Lease, no_end_of(copy)),
            false => (Topic::Doubt, "an earlier delivery may have written it".to_owned()),
        };
        let missing = |seen: &str| {
            format!(
                "{why}; {seen}: its owner may have moved it, or Postfix' next try writes it, if \
                 Postfix still has the message"
            )
        };
        let Some(receipt) = &to_record(found).map(FoundCopy::to_record) else {
            self.found(copy, Level::Error, topic, None, missing("no copy is there"));
            return Ok(());
        };
        if self.may_be_half_done(copy, found)? {
            let text = format!(
                "{why}, a copy is there as {receipt}, and what the owner's filters had still to do \
                 may be missing: the next attempt hands it over again"
            );
            self.found(copy, Level::Info, topic, Some(receipt), text);
            return Ok(());
        }
        if !self.task.repair {
            let text = format!(
                "{why}; a copy is there as {receipt}: --repair, or Postfix' next try, records it"
            );
            self.found(copy, Level::Error, topic, Some(receipt), text);
            return Ok(());
        }
        // Before the turn, which has a session of the ledger already.
        let (key, before) = (copy_key(copy), self.receipt_before(copy, Some(Duration::ZERO)));
        let sought = self.search(copy, &key, None, &before);
        let Some((claim, turn)) = self.claim(copy)? else {
            self.busy(copy, MEANWHILE);
            return Ok(());
        };
        // Looked for again, now that no delivery may write.
        let found = self.store.find(&copy.destination, &sought, self.task.store_until());
        let seen = found.as_ref().ok().and_then(|found| to_record(found));
        let seen = seen.map(|seen| (seen.to_record(), seen.is_wrapped));
        let Some((receipt, wrapped)) = seen else {
            // Nothing was written under the claim: the row is as much in doubt as before.
            drop(turn);
            self.ledger.release(&[claim], self.task.ledger_until())?;
            found?;
            self.found(copy, Level::Error, topic, None, missing("a copy was there and is gone"));
            return Ok(());
        };
        let facts = CopyFacts { found_by_look: true, wrapped, ..CopyFacts::default() };
        let one = ToConfirm { claim, receipt: &receipt, facts, end: None, may_be_lost: false };
        match turn.confirm(&one, self.task.ledger_until())? {
            Confirmed::Recorded => {
                let text = format!("{why}; the copy that is there is on record now: {receipt}");
                self.found(copy, Level::Repaired, topic, Some(&receipt), text);
                // Its second look comes after the lease that was taken just now.
                self.compare(copy, &receipt, Duration::ZERO, &found?)
            }
            Confirmed::Superseded { .. } => {
                self.busy(copy, MEANWHILE);
                Ok(())
            }
        }
    }

    /// What `onedrop settle` does with a copy that a lease has left in doubt: one that is there
    /// goes on record. One that is not is left to Postfix' next try and to `verify`, and so is one
    /// that filters may have changed.
    pub(super) fn settle_doubt(&mut self, copy: &CopyOnRecord) -> Result<(), Unverified> {
        if self.store.hands_over(&copy.destination) {
            return Ok(());
        }
        let found = self.find(copy, None)?;
        match to_record(&found).map(FoundCopy::to_record) {
            None => Ok(()),
            Some(_) if self.task.repair => self.doubt(copy, true, &found),
            Some(receipt) => {
                let text = format!(
                    "{}; a copy is there as {receipt}: it would be recorded",
                    no_end_of(copy)
                );
                self.found(copy, Level::Info, Topic::Lease, Some(&receipt), text);
                Ok(())
            }
        }
    }

    /// See [`guard`].
    fn may_be_half_done(
        &self,
        copy: &CopyOnRecord,
        found: &[FoundCopy],
    ) -> Result<bool, LedgerError> {
        let of_try = found.iter().find_map(FoundCopy::of_try);
        let row = (of_try, copy.epoch, copy.recorded_at);
        let guards = guard::known(self.ledger, self.store, self.task.ledger_until())?;
        Ok(guard::may_be_half_done(&guards, row, self.ledger.time()))
    }

    /// Leases a copy and takes its lock, as a delivery does; `None` when another delivery has it.
    fn claim(&self, copy: &CopyOnRecord) -> Result<Option<OwnTurn<'a>>, LedgerError> {
        let (ledger, until) = (self.ledger, self.task.ledger_until());
        let terms = LeaseTerms { lease: self.task.lease, join: false, due: false };
        let wanted = std::slice::from_ref(&copy.destination);
        let states = ledger.claim(&copy.message_key(), wanted, self.task.by, terms, until)?;
        let Some(CopyState::Claimed(claim)) = states.into_iter().next() else { return Ok(None) };
        match ledger.take_turn(&claim, &copy_key(copy), until) {
            Ok(Turn::Ours { turn, .. }) => Ok(Some((claim, turn))),
            Ok(Turn::Placed(_) | Turn::EpochGone) => Ok(None),
            Err(LedgerError::Contended) => {
                ledger.release(&[claim], until)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// What is known of a lease that ran out without a receipt.
fn no_end_of(copy: &CopyOnRecord) -> String {
    format!("{} never said how its delivery ended, or the ledger has lost that", copy.owner)
}

/// The lease and the lock of a copy that this run may settle.
type OwnTurn<'a> = (Claim, Box<dyn OpenTurn + 'a>);

/// What is reported of a copy that another delivery took while this run looked for it.
const MEANWHILE: &str = "leased or placed meanwhile";

/// Which of the copies found becomes the one on record: the oldest of ours, else what a delivery's
/// look would take: the newest, and where several share a name the one that goes by it.
fn to_record(found: &[FoundCopy]) -> Option<&FoundCopy> {
    let ours = |one: &&FoundCopy| one.has_our_date && !one.marked_deleted;
    let lasting = || found.iter().filter(|one| one.is_lasting());
    lasting().rev().find(ours).or_else(|| lasting().next())
}
