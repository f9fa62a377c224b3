//! A copy that was handed over to the mail server's own delivery. Its owner's filters decide where
//! it lies, and may file one delivery in several mailboxes: only copies of different tries are
//! doubles, and the first try's stay. That it lies nowhere says nothing: a filter may have
//! discarded it or sent it on, and its owner may have deleted it.

use std::time::Duration;

use super::difference::{Level, Topic};
use super::placed::OUT_OF_SIGHT;
use super::{Unverified, Verification, needs_a_look};
use crate::ledger::CopyOnRecord;
use crate::store::{FoundCopy, Receipt};

impl Verification<'_, '_> {
    /// A copy whose receipt says that it was handed over: do two tries stand?
    pub(super) fn handed(
        &mut self,
        copy: &CopyOnRecord,
        on_record: &Receipt,
        ago: Duration,
        found: &[FoundCopy],
    ) -> Result<(), Unverified> {
        let epoch = |one: &FoundCopy| one.handed.as_ref().and_then(|handed| handed.epoch);
        let standing = || found.iter().filter(|one| !one.marked_deleted);
        // Found are the first tries first.
        let keeper = standing().find(|one| epoch(one).is_some());
        if standing().next().is_none() {
            let text = format!(
                "{on_record} is in no mailbox of its account: a filter or its owner has deleted it \
                 or sent it on"
            );
            self.found(copy, Level::Info, Topic::Moved, Some(on_record), text);
        }
        let is_late = |one: &&FoundCopy| keeper.is_some_and(|keeper| epoch(one) > epoch(keeper));
        let mut is_alone = true;
        for late in standing().filter(is_late) {
            is_alone = false;
            let Some(keeper) = keeper else { continue };
            let until = self.plan.store_until();
            let account = &copy.destination.account;
            let removed = self
                .plan
                .repair
                .then(|| self.store.remove_handed_double(account, late, keeper, until));
            let (level, text) = match removed {
                None => (Level::Error, "is a later try's, and one too many".to_owned()),
                Some(Ok(())) => (
                    Level::Repaired,
                    "was a later try's, one too many, and is taken out".to_owned(),
                ),
                Some(Err(error)) => {
                    (Level::Error, format!("is a later try's and cannot be taken out: {error}"))
                }
            };
            let receipt = late.to_record();
            self.found(copy, level, Topic::Double, Some(&receipt), format!("{receipt} {text}"));
        }
        let is_seen = keeper.is_some() || ago >= OUT_OF_SIGHT;
        let is_over = ago >= copy.lease.max(self.plan.lease);
        if is_alone && is_seen && is_over && needs_a_look(copy) {
            let settled = self.ledger.settle(copy, on_record, self.plan.ledger_until())?;
            self.tally.settled += u64::from(settled);
        }
        Ok(())
    }
}
