//! A copy that was handed over to the mail server's own delivery. Its owner's filters decide where
//! it lies, and may file one delivery in several mailboxes. A server that dies in the middle of
//! them leaves the first mailboxes to one try, and the others to the next: so only copies of
//! different tries in the same mailbox are doubles, the first try's stays, and the only copy in a
//! mailbox is never taken out. That it lies nowhere says nothing: a filter may have discarded it or
//! sent it on, and its owner may have deleted it.

use std::time::Duration;

use super::difference::{Level, Topic};
use super::placed::OUT_OF_SIGHT;
use super::{Unverified, Verification, needs_a_look};
use crate::ledger::CopyOnRecord;
use crate::store::{FoundCopy, HandedCopy, Proof, Receipt};

impl Verification<'_, '_> {
    /// A copy whose receipt says that it was handed over: do two tries stand?
    pub(super) fn handed(
        &mut self,
        copy: &CopyOnRecord,
        on_record: &Receipt,
        ago: Duration,
        found: &[FoundCopy],
    ) -> Result<(), Unverified> {
        // A try that was never made proves nothing: a stranger has written it.
        let tries = 1..=copy.epoch;
        let of = |one: &FoundCopy| {
            let HandedCopy { mailbox, epoch } = one.handed.clone()?;
            Some((mailbox, epoch.filter(|epoch| tries.contains(epoch))?))
        };
        let standing = || found.iter().filter(|one| !one.marked_deleted);
        if standing().next().is_none() {
            let text = format!(
                "{on_record} is in no mailbox of its account: a filter or its owner has deleted it \
                 or sent it on"
            );
            self.found(copy, Level::Info, Topic::Moved, Some(on_record), text);
        }
        let ours: Vec<(&FoundCopy, (String, i64))> = standing()
            .filter(|one| one.proof == Proof::Equal)
            .filter_map(|one| Some((one, of(one)?)))
            .collect();
        let mut is_alone = true;
        for (late, (mailbox, epoch)) in &ours {
            // Found are the first tries first.
            let mut beside = ours.iter().filter(|(_, (other, _))| other == mailbox);
            let Some((keeper, _)) = beside.find(|(_, (_, first))| first < epoch) else { continue };
            is_alone = false;
            let until = self.task.store_until();
            let account = &copy.destination.account;
            let removed = self
                .task
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
        let is_seen = !ours.is_empty() || ago >= OUT_OF_SIGHT;
        let is_over = ago >= copy.lease.max(self.task.lease);
        if is_alone && is_seen && is_over && needs_a_look(copy) {
            let settled = self.ledger.settle(copy, on_record, self.task.ledger_until())?;
            self.tally.settled += u64::from(settled);
        }
        Ok(())
    }
}
