//! Copies in doubt: settled by the look alone, under a lease and the copy's lock.

use std::time::Duration;

use super::difference::{Level, Topic};
use super::{Unverified, Verification, copy_key};
use crate::ledger::{
    Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, LeaseTerms, LedgerError, OpenTurn,
    ToConfirm, Turn,
};
use crate::store::FoundCopy;

impl<'a> Verification<'a, '_> {
    /// A copy that may stand in its mailbox, under no lease.
    pub(super) fn doubt(
        &mut self,
        copy: &CopyOnRecord,
        lease_left_over: bool,
    ) -> Result<(), Unverified> {
        let topic = if lease_left_over { Topic::Lease } else { Topic::Doubt };
        let why = if lease_left_over {
            format!("in doubt since the lease of {} ran out", copy.owner)
        } else {
            "in doubt since a lease before the last one".to_owned()
        };
        let found = self.find(copy, None)?;
        let Some(seen) = to_record(&found) else {
            let text = format!(
                "{why}, no copy found: the next attempt to deliver it writes one, unless Postfix \
                 has returned it"
            );
            self.found(copy, Level::Error, topic, None, text);
            return Ok(());
        };
        if !self.plan.repair {
            let text = format!(
                "{why}, a copy is there as {}: repair, or the next attempt, records it",
                seen.receipt
            );
            self.found(copy, Level::Error, topic, Some(&seen.receipt), text);
            return Ok(());
        }
        let Some(ours) = self.claim(copy)? else {
            self.found(
                copy,
                Level::Info,
                Topic::Busy,
                None,
                "leased or placed meanwhile".to_owned(),
            );
            return Ok(());
        };
        // Looked for again, now that nobody else may write.
        let found = match self.find(copy, None) {
            Ok(found) => found,
            Err(error) => {
                self.give_back(ours)?;
                return Err(error.into());
            }
        };
        let Some(seen) = to_record(&found) else {
            self.give_back(ours)?;
            let text = format!(
                "{why}, a copy was there and is gone: the next attempt to deliver it writes one, \
                 unless Postfix has returned it"
            );
            self.found(copy, Level::Error, topic, None, text);
            return Ok(());
        };
        let facts = CopyFacts { nul_replaced: false, found_by_look: true };
        let (claim, turn) = ours;
        let one = ToConfirm { claim, receipt: &seen.receipt, facts, end: None };
        match turn.confirm(&one, self.plan.ledger_until())? {
            Confirmed::Recorded => {
                let text = format!("was {why}, is recorded as {}", seen.receipt);
                self.found(copy, Level::Repaired, topic, Some(&seen.receipt), text);
                let receipt = seen.receipt.clone();
                // Its second look comes after the lease that was taken just now.
                self.placed(copy, &receipt, Duration::ZERO, &found)
            }
            Confirmed::Superseded { .. } => {
                self.found(
                    copy,
                    Level::Info,
                    Topic::Busy,
                    None,
                    "leased or placed meanwhile".to_owned(),
                );
                Ok(())
            }
        }
    }

    /// Leases a copy and takes its lock, as a delivery does; `None` when another delivery has it.
    fn claim(&self, copy: &CopyOnRecord) -> Result<Option<Ours<'a>>, LedgerError> {
        let (ledger, until) = (self.ledger, self.plan.ledger_until());
        let terms = LeaseTerms { lease: self.plan.lease, join: false };
        let wanted = std::slice::from_ref(&copy.destination);
        let states = ledger.claim(copy.message, wanted, self.plan.by, terms, until)?;
        let Some(CopyState::Claimed(claim)) = states.into_iter().next() else { return Ok(None) };
        match ledger.take_turn(&claim, &copy_key(copy), until) {
            Ok(Turn::Ours { turn, .. }) => Ok(Some((claim, turn))),
            Ok(Turn::Placed(_) | Turn::EpochGone) => Ok(None),
            Err(LedgerError::Contended) => {
                ledger.release(std::slice::from_ref(&claim), until)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Nothing was written under the claim: the row is as much in doubt as before.
    fn give_back(&self, (claim, turn): Ours<'_>) -> Result<(), LedgerError> {
        drop(turn);
        self.ledger.release(std::slice::from_ref(&claim), self.plan.ledger_until())
    }
}

/// A copy that is ours to settle.
type Ours<'a> = (Claim, Box<dyn OpenTurn + 'a>);

/// Which of the copies found becomes the one on record: the oldest of ours, else what a delivery's
/// look would take: the newest, and where several share a name the one that goes by it.
fn to_record(found: &[FoundCopy]) -> Option<&FoundCopy> {
    let ours = |one: &&FoundCopy| one.has_our_date && !one.marked_deleted;
    let lasting = || found.iter().filter(|one| one.receipt.is_lasting());
    lasting().rev().find(ours).or_else(|| lasting().next())
}
