//! `onedrop settle`: shared copies (Sent) that were left for later. One that is due is written, by
//! a delivery's code, unless the sender's own mail program has left a message with the same first
//! Message-ID in the mailbox; then that one is put on record. For 47 hours after ours was written
//! settle looks again, at growing gaps, and takes ours out where the mail program's has come to
//! stand beside it. One that a delivery could not place is placed as `verify --repair` does.
//! Last come recipients' own copies that a lease has left in doubt: where the ledger has lost a
//! receipt in a crash, no retry of Postfix would find the copy.
//!
//! Relies on the lease: of several runs one settles a copy, and no delivery does. It takes out only
//! what the ledger's receipt names, has our content and our date, and only while the other stands
//! beside it. A crash leaves a lease that runs out (then the look finds what was written), or ours
//! gone and still on record (then the next run puts the other on record).

use std::time::{Duration, SystemTime};

use super::difference::{Level, News, Tally, Topic};
use super::{DAY, Unverified, Verification, VerifyTask, needs_a_look};
use crate::clock;
use crate::ledger::{
    Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, LeaseTerms, LedgerError, OVERDUE,
    Standing, ToConfirm, VerifyLedger, WATCH,
};
use crate::message::{Message, sent_at};
use crate::store::{AnyStore, FoundCopy, Proof, Receipt};

/// Copies that are held in memory.
const PAGE: u32 = 500;

/// Settles what is to be settled, an account after the other; of `task`, the window and the
/// accounts mean nothing here.
///
/// # Errors
/// The ledger cannot be read or written. What the store refuses is reported and counted.
pub fn settle(
    task: &VerifyTask<'_>,
    ledger: &dyn VerifyLedger,
    store: &dyn AnyStore,
    tell: &mut (dyn FnMut(News) + Send),
) -> Result<Tally, LedgerError> {
    ledger.check_program(task.ledger_until())?;
    let mut settling = Verification::new(task, ledger, store, tell);
    // What is due first: what is watched stands in its mailbox already, and may be much.
    for part in [ToSettle::Left, ToSettle::Watched, ToSettle::InDoubt] {
        settling.settle_all(part)?;
    }
    Ok(settling.tally)
}

/// What is settled one after the other.
#[derive(Debug, Clone, Copy)]
enum ToSettle {
    Left,
    Watched,
    InDoubt,
}

/// Shortest gap between two looks at a watched copy.
const SHORTEST_GAP: Duration = Duration::from_secs(10 * 60);
/// Longest gap.
const LONGEST_GAP: Duration = Duration::from_secs(4 * 3600);
/// Age of the copy, since it was placed, at its last look.
const LAST_LOOK: Duration = Duration::from_secs(47 * 3600);

/// How long after a look at a copy that was placed `ago` the next one comes: as long again, within
/// these bounds. `None`: that was the last.
fn next_look(ago: Duration) -> Option<Duration> {
    let left = LAST_LOOK.checked_sub(ago).filter(|left| !left.is_zero())?;
    Some(ago.clamp(SHORTEST_GAP, LONGEST_GAP).min(left))
}

/// The text for a copy that another run took while this one looked.
const MEANWHILE: &str = "settled meanwhile";

impl Verification<'_, '_> {
    fn settle_all(&mut self, part: ToSettle) -> Result<(), LedgerError> {
        let mut last: Option<CopyOnRecord> = None;
        loop {
            let (after, until) = (last.as_ref(), self.task.ledger_until());
            let page = match part {
                ToSettle::Left => self.ledger.copies_to_settle(false, after, PAGE, until)?,
                ToSettle::Watched => self.ledger.copies_to_settle(true, after, PAGE, until)?,
                ToSettle::InDoubt => self.ledger.doubts_to_settle(after, PAGE, until)?,
            };
            for copy in &page {
                let account = copy.destination.account.clone();
                (self.tell)(News::Progress { account, tally: self.tally });
                self.each(copy, Self::settle_one)?;
            }
            match page.into_iter().next_back() {
                Some(copy) => last = Some(copy),
                None => return Ok(()),
            }
        }
    }

    fn settle_one(&mut self, copy: &CopyOnRecord) -> Result<(), Unverified> {
        match (&copy.standing, &copy.kept) {
            (Standing::Leased, _) => self.busy(copy, format!("leased by {}", copy.owner)),
            (Standing::Placed { receipt, ago }, _) => {
                // Past WATCH the mail program saves none any more. A copy of ours may come even
                // then, beside its own, and `verify` leaves these to this run.
                if copy.by_sender && (*ago < WATCH || needs_a_look(copy)) {
                    self.late(copy, receipt)?;
                } else if *ago < WATCH {
                    self.watch(copy, receipt)?;
                }
                self.look_again(copy, next_look(*ago))?;
            }
            _ if copy.due.is_some() => self.settle_due(copy)?,
            (_, Some(why)) => self.kept(copy, why, Level::Info)?,
            (Standing::InDoubt { .. }, None) if !copy.destination.shared => {
                self.settle_doubt(copy)?;
            }
            (_, None) => self.busy(copy, MEANWHILE),
        }
        Ok(())
    }

    fn look_again(&self, copy: &CopyOnRecord, after: Option<Duration>) -> Result<(), LedgerError> {
        match self.task.repair {
            true => self.ledger.look_again(copy, after, self.task.ledger_until()),
            false => Ok(()),
        }
    }

    /// What a verification says of a copy that is left to settle: nothing is wrong before it is
    /// due, nor soon after.
    pub(super) fn due(&mut self, copy: &CopyOnRecord) {
        let Some(due) = copy.due else { return };
        let at = clock::utc(due.at);
        if self.ledger.time() >= due.at + OVERDUE {
            let text = format!("due since {at} and not settled: onedrop settle does that");
            self.found(copy, Level::Error, Topic::Due, None, text);
        } else {
            let text = format!("due at {at}, if the mail program saves none");
            self.found(copy, Level::Info, Topic::Due, None, text);
        }
    }

    /// A copy that is due, under no lease.
    fn settle_due(&mut self, copy: &CopyOnRecord) -> Result<(), Unverified> {
        let Some(message) = self.kept_message(copy, Topic::Due)? else { return Ok(()) };
        let since = since(&message, copy);
        if !self.task.repair {
            let found = self.find_by_id(copy, None, since)?;
            let in_doubt = matches!(copy.standing, Standing::InDoubt { .. });
            let text = match (oldest_ours(in_doubt, &found), self.senders(copy, &found)?) {
                (Some(ours), _) => format!("was in doubt, is there as {}", ours.receipt),
                (None, Some(theirs)) => format!("is the mail program's own, {}", theirs.receipt),
                (None, None) => "is not there: it would be written".to_owned(),
            };
            self.found(copy, Level::Info, Topic::Due, None, text);
            return Ok(());
        }
        self.may_write()?;
        let terms = LeaseTerms { lease: self.task.lease, join: false, due: true };
        let CopyState::Claimed(claim) = self.claim_kept(copy, terms)? else {
            self.busy(copy, MEANWHILE);
            return Ok(());
        };
        let is_settled = match self.settle_by_look(copy, &claim, since) {
            Ok(is_settled) => is_settled,
            Err(error) => {
                // Nothing was written under the claim.
                self.ledger.release(&[claim], self.task.ledger_until())?;
                return Err(error);
            }
        };
        if is_settled {
            return Ok(self.look_again(copy, next_look(Duration::ZERO))?);
        }
        // The look may have taken longer than the lease. One that has run out comes back in doubt,
        // and one that lives lasts longer than the time that the copy has from here on.
        let deadline = self.deadline();
        let state = self.claim_kept(copy, terms)?;
        let end = self.place_kept(copy, &message, state, &deadline);
        let said = (Level::Info, Topic::Due);
        if let Some(placed) = self.placed_or_told(copy, said, end, &deadline)? {
            let text = format!("{} as {}", placed.how.name(), placed.receipt);
            self.found(copy, Level::Settled, Topic::Due, Some(&placed.receipt), text);
            self.look_again(copy, next_look(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Puts on record what stands in the mailbox: ours, if an earlier run may have written it, or
    /// else the mail program's own. False where there is neither.
    fn settle_by_look(
        &mut self,
        copy: &CopyOnRecord,
        claim: &Claim,
        since: Option<SystemTime>,
    ) -> Result<bool, Unverified> {
        let found = self.find_by_id(copy, None, since)?;
        if let Some(FoundCopy { receipt, .. }) = oldest_ours(claim.in_doubt, &found) {
            let facts = CopyFacts { found_by_look: true, ..CopyFacts::default() };
            let one = ToConfirm { claim: *claim, receipt, facts, end: None, may_be_lost: false };
            match self.ledger.confirm(&one, self.task.ledger_until())? {
                Confirmed::Recorded => {
                    let text = format!("was in doubt, is recorded as {receipt}");
                    self.found(copy, Level::Settled, Topic::Due, Some(receipt), text);
                }
                Confirmed::Superseded { .. } => self.busy(copy, MEANWHILE),
            }
            return Ok(true);
        }
        let Some(FoundCopy { receipt, .. }) = self.senders(copy, &found)? else {
            return Ok(false);
        };
        if self.ledger.leave_to_sender(claim, None, receipt, self.task.ledger_until())? {
            let text = format!("is the mail program's own, {receipt}");
            self.found(copy, Level::Settled, Topic::Due, Some(receipt), text);
        } else {
            self.busy(copy, MEANWHILE);
        }
        Ok(true)
    }

    /// Looks whether the mail program's own copy has come to stand beside ours, and takes ours out.
    fn watch(&mut self, copy: &CopyOnRecord, on_record: &Receipt) -> Result<(), Unverified> {
        let found = self.find_by_id(copy, Some(on_record), day_before(copy))?;
        let ours = found.iter().find(|one| one.receipt == *on_record);
        let others: Vec<FoundCopy> = found
            .iter()
            .filter(|one| one.receipt != *on_record && !one.marked_deleted)
            .filter(|one| ours.is_some() || !is_moved(one))
            .cloned()
            .collect();
        if ours.is_none() && *on_record != Receipt::UNNAMED {
            let is_ours = |one: &&FoundCopy| is_moved(one) && !one.marked_deleted;
            let moved: Vec<&FoundCopy> = found.iter().filter(is_ours).collect();
            match moved[..] {
                [] => {}
                [one] => return self.follow(copy, on_record, &one.receipt),
                // It is not known which; `verify` takes out what is too many.
                _ => return Ok(()),
            }
        }
        let Some(theirs) = self.senders(copy, &others)? else { return Ok(()) };
        let theirs = theirs.receipt.clone();
        let stays = |why: &str| format!("{on_record} stands beside {theirs}, and stays: {why}");
        match ours {
            None if *on_record == Receipt::UNNAMED => {
                let text = stays("the server named neither (no UIDPLUS)");
                self.found(copy, Level::Error, Topic::Double, None, text);
            }
            // Its owner, or a run that died before it could say so.
            None => {}
            Some(ours) if !is_as_ours(ours) => {
                let text = stays("it is not as Onedrop wrote it");
                self.found(copy, Level::Info, Topic::Double, Some(on_record), text);
                return Ok(());
            }
            Some(_) if copy.found_by_look && others.iter().any(is_as_ours) => {
                let text = stays("the two are equal, and which one is Onedrop's is not known");
                self.found(copy, Level::Error, Topic::Double, Some(on_record), text);
                return Ok(());
            }
            Some(_) if !self.task.repair => {
                let text = format!("{on_record} would be taken out, {theirs} stands beside it");
                self.found(copy, Level::Info, Topic::Double, Some(on_record), text);
            }
            Some(ours) => {
                let (place, until) = (&copy.destination, self.task.store_until());
                let removed = match ours.marked_deleted {
                    // By its owner, or by a run that died.
                    true => self.store.remove(place, on_record, None, until),
                    false => self.store.remove_double(place, on_record, &theirs, until),
                };
                if let Err(error) = removed {
                    let again = self.find_by_id(copy, Some(on_record), day_before(copy))?;
                    let is_ours = |one: &&FoundCopy| one.receipt == *on_record;
                    if again.iter().find(is_ours).is_none_or(|one| one.marked_deleted) {
                        self.busy(copy, MEANWHILE);
                    } else {
                        let text = stays(&error.to_string());
                        self.found(copy, Level::Error, Topic::Double, Some(on_record), text);
                    }
                    return Ok(());
                }
            }
        }
        if !self.task.repair {
            return Ok(());
        }
        let row = claim_of(copy);
        let until = self.task.ledger_until();
        if !self.ledger.leave_to_sender(&row, Some(on_record), &theirs, until)? {
            self.busy(copy, MEANWHILE);
        } else if *on_record != Receipt::UNNAMED {
            let text = format!("{on_record} is gone, the mail program's own stands as {theirs}");
            self.found(copy, Level::Settled, Topic::Double, Some(&theirs), text);
        }
        Ok(())
    }

    /// Ours has another name now: its owner moved it away and back, or the mailbox was made anew.
    /// It stays watched by that name.
    fn follow(
        &mut self,
        copy: &CopyOnRecord,
        on_record: &Receipt,
        moved: &Receipt,
    ) -> Result<(), Unverified> {
        if self.task.repair && !self.ledger.settle(copy, moved, self.task.ledger_until())? {
            self.busy(copy, MEANWHILE);
            return Ok(());
        }
        let text = format!("{on_record} is there as {moved}");
        self.found(copy, Level::Info, Topic::Moved, Some(moved), text);
        Ok(())
    }

    /// Takes out a copy of ours that took effect late, beside the mail program's own.
    fn late(&mut self, copy: &CopyOnRecord, theirs: &Receipt) -> Result<(), Unverified> {
        let found = self.find_by_id(copy, Some(theirs), day_before(copy))?;
        let stands = |one: &FoundCopy| one.receipt == *theirs && !one.marked_deleted;
        let is_late =
            |one: &&FoundCopy| one.receipt != *theirs && is_as_ours(one) && !one.marked_deleted;
        if !found.iter().any(stands) {
            return Ok(());
        }
        for FoundCopy { receipt, .. } in found.iter().filter(is_late) {
            let (place, until) = (&copy.destination, self.task.store_until());
            let removed =
                self.task.repair.then(|| self.store.remove_double(place, receipt, theirs, until));
            let (level, text) = match removed {
                None => (Level::Info, "would be taken out".to_owned()),
                Some(Ok(())) => (Level::Settled, "came late and is taken out".to_owned()),
                Some(Err(error)) => (Level::Error, format!("cannot be taken out: {error}")),
            };
            let text = format!("{receipt} beside the mail program's own, {theirs}: {text}");
            self.found(copy, level, Topic::Double, Some(receipt), text);
        }
        Ok(())
    }

    /// The mail program's own copy among those found, not marked as deleted. Where Sent may have a
    /// copy of another message with this Message-ID, only what is equal is this one's.
    fn senders<'f>(
        &self,
        copy: &CopyOnRecord,
        found: &'f [FoundCopy],
    ) -> Result<Option<&'f FoundCopy>, LedgerError> {
        let mut standing =
            found.iter().filter(|one| one.is_lasting() && !one.marked_deleted).peekable();
        let needs_equal = standing.peek().is_some()
            && self.ledger.has_namesake(copy, self.task.ledger_until())?;
        let is_equal = |one: &FoundCopy| matches!(one.proof, Proof::Equal | Proof::SameContent);
        Ok(standing.find(|one| !needs_equal || is_equal(one)))
    }
}

/// From when on the mail program may have saved its copy, of a message that may have waited in a
/// queue since: a day before the earliest of its Date and of its oldest Received, and at the latest
/// a day before it was recorded. `None`: whenever, as they cannot be read.
fn since(message: &Message, copy: &CopyOnRecord) -> Option<SystemTime> {
    sent_at(message)?.min(copy.recorded_at).checked_sub(DAY)
}

/// Since when a copy may have come to stand beside one that was looked for.
fn day_before(copy: &CopyOnRecord) -> Option<SystemTime> {
    copy.recorded_at.checked_sub(DAY)
}

/// The oldest, of those as Onedrop writes them, which an earlier run may have written: found are
/// the newest first.
fn oldest_ours(in_doubt: bool, found: &[FoundCopy]) -> Option<&FoundCopy> {
    found.iter().rev().find(|one| in_doubt && is_as_ours(one))
}

/// Whether it is as Onedrop writes it, in content and date.
fn is_as_ours(one: &FoundCopy) -> bool {
    one.has_our_date && matches!(one.proof, Proof::Equal | Proof::Hidden)
}

/// Our content and date, by whatever name.
fn is_moved(one: &FoundCopy) -> bool {
    is_as_ours(one) || one.has_our_date && one.proof == Proof::SameContent
}

/// What names a row as it was read.
fn claim_of(copy: &CopyOnRecord) -> Claim {
    Claim {
        copy: copy.copy,
        value: copy.value,
        epoch: copy.epoch,
        in_doubt: false,
        looks_back: copy.looks_back,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_at_growing_gaps_and_end() {
        let (mut ago, mut gaps) = (Duration::ZERO, Vec::new());
        while let Some(gap) = next_look(ago) {
            gaps.push(gap.as_secs() / 60);
            ago += gap;
        }
        let expected = [10, 10, 20, 40, 80, 160, 240, 240, 240, 240, 240, 240, 240, 240, 240, 240];
        assert_eq!(gaps[..16], expected);
        assert_eq!((gaps.len(), ago), (17, LAST_LOOK));
        assert_eq!(next_look(WATCH), None);
    }
}
