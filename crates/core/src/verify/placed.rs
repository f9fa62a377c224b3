//! A copy that is placed: whether it is there and alone. What is too many is taken out, and a
//! second look that saw one copy and no other is put on record.

use std::time::Duration;

use super::difference::{Level, Topic};
use super::{MOST_COPIES, Unverified, Verification, needs_a_look};
use crate::ledger::CopyOnRecord;
use crate::store::{FoundCopy, Naming, Proof, Receipt, StoreError};

/// A copy that no look has seen for this time is taken for deleted by its owner, and not looked for
/// any more.
pub(super) const OUT_OF_SIGHT: Duration = Duration::from_secs(7 * 24 * 3600);

impl Verification<'_, '_> {
    /// A copy that has a receipt: is it there, is it alone?
    pub(super) fn placed(
        &mut self,
        copy: &CopyOnRecord,
        on_record: &Receipt,
        ago: Duration,
        found: &[FoundCopy],
    ) -> Result<(), Unverified> {
        let is_foreign = |one: &FoundCopy| one.proof == Proof::Foreign;
        // What its owner has marked as deleted may be gone at any time: nothing else is removed for
        // it.
        let standing: Vec<&FoundCopy> =
            found.iter().filter(|one| !one.marked_deleted && !is_foreign(one)).collect();
        let mut lasting = standing.iter().copied().filter(|one| one.is_lasting());
        let named = lasting.clone().find(|one| one.receipt == *on_record);
        let keeper = named.or_else(|| lasting.rfind(|one| one.has_our_date));
        if named.is_none() && *on_record != Receipt::UNNAMED {
            self.moved(copy, on_record, found, keeper);
        }
        let mut is_alone = true;
        let is_other =
            |one: &&&FoundCopy| keeper.is_none_or(|keeper| one.receipt != keeper.receipt);
        for one in standing.iter().filter(is_other) {
            let receipt = &one.receipt;
            // Where one delivery at most can have written, an equal copy is its owner's, even with
            // our date: a mail program may save what it sent within the same second.
            match keeper.filter(|_| one.has_our_date && copy.may_be_double) {
                Some(_) if found.iter().any(is_foreign) => {
                    is_alone = false;
                    let text = format!(
                        "{receipt} is one too many; it stays, as {on_record} is another message"
                    );
                    self.found(copy, Level::Error, Topic::Double, Some(receipt), text);
                }
                Some(keeper) => {
                    is_alone = false;
                    self.double(copy, one, keeper);
                }
                None => {
                    let text = format!(
                        "{receipt} is equal and not one of ours: its owner's own copy? It stays"
                    );
                    self.found(copy, Level::Info, Topic::Other, Some(receipt), text);
                }
            }
        }
        let receipt =
            keeper.filter(|_| self.task.repair).map_or(on_record, |keeper| &keeper.receipt);
        let is_over = self.is_all(copy, found) & self.is_seen(copy, keeper, found, ago);
        // That a double is gone the next look has to see: a server says OK to the removal of what
        // somebody unmarked, too.
        if is_alone
            && is_over
            && ago >= copy.lease.max(self.task.lease)
            && (needs_a_look(copy) || receipt != on_record)
        {
            let settled = self.ledger.settle(copy, receipt, self.task.ledger_until())?;
            self.tally.settled += u64::from(settled && needs_a_look(copy));
        }
        Ok(())
    }

    /// A copy that is in INBOX, as its mailbox was not there: of deliveries before that, one may
    /// have written there nevertheless, late. That is reported, and stays: what INBOX has by now is
    /// unknown.
    pub(super) fn elsewhere(
        &mut self,
        copy: &CopyOnRecord,
        on_record: &Receipt,
        ago: Duration,
        found: &[FoundCopy],
    ) -> Result<(), Unverified> {
        let is_ours = |one: &&FoundCopy| one.has_our_date && !one.marked_deleted;
        let ours: Vec<&FoundCopy> = found.iter().filter(is_ours).collect();
        for FoundCopy { receipt, .. } in &ours {
            let text = format!("{receipt} stands beside the copy in INBOX, which it has instead");
            self.found(copy, Level::Error, Topic::Double, Some(receipt), text);
        }
        if ours.is_empty() && ago >= copy.lease.max(self.task.lease) {
            let settled = self.ledger.settle(copy, on_record, self.task.ledger_until())?;
            self.tally.settled += u64::from(settled);
        }
        Ok(())
    }

    /// Whether there can be no copy of ours beside those found; reports why not.
    fn is_all(&mut self, copy: &CopyOnRecord, found: &[FoundCopy]) -> bool {
        let hidden = found.iter().find(|one| one.proof == Proof::Hidden && needs_a_look(copy));
        let text = match hidden {
            _ if found.len() >= MOST_COPIES && copy.may_be_double => {
                format!("there may be more than these {} copies: verify it again", found.len())
            }
            Some(FoundCopy { receipt, .. }) => format!(
                "the server's search does not show {receipt}, which is there: it may hide another \
                 copy"
            ),
            None => return true,
        };
        self.found(copy, Level::Error, Topic::Double, None, text);
        false
    }

    /// Whether the look saw a copy of ours and none that may come back. Where it saw none its owner
    /// has most likely deleted it; but the mailbox may be out of sight today (not mounted, renamed,
    /// being restored) and come back with two.
    fn is_seen(
        &mut self,
        copy: &CopyOnRecord,
        keeper: Option<&FoundCopy>,
        found: &[FoundCopy],
        ago: Duration,
    ) -> bool {
        let may_return =
            |one: &&FoundCopy| one.marked_deleted && one.has_our_date && copy.may_be_double;
        let is_seen = keeper.is_some() && !found.iter().any(|one| may_return(&one));
        if keeper.is_some() {
            for FoundCopy { receipt, .. } in found.iter().filter(may_return) {
                let text = format!("{receipt} is marked as deleted beside the one that stays");
                self.found(copy, Level::Info, Topic::Double, Some(receipt), text);
            }
        }
        is_seen || ago >= OUT_OF_SIGHT
    }

    fn moved(
        &mut self,
        copy: &CopyOnRecord,
        on_record: &Receipt,
        found: &[FoundCopy],
        keeper: Option<&FoundCopy>,
    ) {
        let text = match keeper {
            _ if found.iter().any(|one| one.proof == Proof::Foreign) => {
                format!("{on_record} is another message by now: was the mailbox restored?")
            }
            _ if found.iter().any(|one| one.receipt == *on_record && one.marked_deleted) => {
                format!("{on_record} is marked as deleted by its owner")
            }
            Some(FoundCopy { receipt, .. }) => {
                format!("{on_record} is not in the mailbox, the copy is there as {receipt}")
            }
            None => format!("{on_record} is not in the mailbox: moved or deleted by its owner"),
        };
        self.found(copy, Level::Info, Topic::Moved, Some(on_record), text);
    }

    /// A copy of ours that is too many.
    fn double(&mut self, copy: &CopyOnRecord, one: &FoundCopy, keeper: &FoundCopy) {
        let receipt = &one.receipt;
        let until = self.task.store_until();
        let removed = self.task.repair.then(|| match one.naming {
            Naming::Shared => {
                let why = "its name may be that of the copy that stays";
                Err(StoreError::NotStored(why.to_owned()))
            }
            Naming::Alone | Naming::Passing => {
                self.store.remove_double(&copy.destination, receipt, &keeper.receipt, until)
            }
        });
        let (level, text) = match removed {
            None => (Level::Error, "is one too many".to_owned()),
            Some(Ok(())) => (Level::Repaired, "was one too many and is taken out".to_owned()),
            Some(Err(error)) => {
                (Level::Error, format!("is one too many and cannot be taken out: {error}"))
            }
        };
        self.found(copy, level, Topic::Double, Some(receipt), format!("{receipt} {text}"));
    }
}
