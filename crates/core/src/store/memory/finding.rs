//! What stands in a mailbox of the store in memory, compared with what is sought.

use super::{DAY, Stored, file_name, receipt};
use crate::store::{CopySearch, FoundCopy, Naming, Proof, Receipt};

/// What is sought, of the messages whose UID is `next` or higher.
pub fn found_by_identity<'a>(
    newest_first: impl Iterator<Item = &'a Stored>,
    next: u32,
    sought: &CopySearch<'_>,
) -> Vec<FoundCopy> {
    let day_before = sought.recorded_at.checked_sub(DAY).filter(|_| !sought.looks_back);
    let mut left = sought.at_most;
    let is_sought = |stored: &&Stored| {
        let is_equal = stored.identity == *sought.identity && Some(stored.date) >= day_before;
        let is_equal = (is_equal || stored.has_same_id(sought)) && left > 0;
        let is_on_record = sought.on_record == Some(&receipt(stored.uid));
        left -= usize::from(is_equal && !is_on_record);
        is_on_record || is_equal
    };
    let newest_first = newest_first.filter(|stored| stored.uid >= next);
    newest_first
        .filter(is_sought)
        .map(|one| one.found(receipt(one.uid), Naming::Alone, sought))
        .collect()
}

/// The files of the copy's name, and last the one that goes by that name. Where there is none for a
/// look, or another is on record, also those of the copy's key that are not of a day before.
pub fn found_by_name<'a>(
    stored: impl Iterator<Item = &'a Stored> + Clone,
    is_look: bool,
    sought: &CopySearch<'_>,
) -> Vec<FoundCopy> {
    let name = file_name(sought.key, sought.recorded_at);
    let seeks_others = match is_look {
        true => !stored.clone().any(|stored| stored.name() == name),
        false => sought.may_have_other_name(&name),
    };
    let is_wanted = |date| {
        sought.looks_back || seeks_others && Some(date) >= sought.recorded_at.checked_sub(DAY)
    };
    let is_ours = |stored: &&Stored| {
        stored.name() == name || stored.key == *sought.key && is_wanted(stored.date)
    };
    let (ours, others): (Vec<_>, Vec<_>) = stored.partition(is_ours);
    let (own, older): (Vec<_>, Vec<_>) = ours.into_iter().partition(|one| one.name() == name);
    let same_id = others.into_iter().filter(|stored| stored.has_same_id(sought));
    let mut same_id: Vec<FoundCopy> = same_id
        .map(|stored| FoundCopy {
            proof: match stored.identity == *sought.identity {
                true => Proof::SameContent,
                false => Proof::SameId,
            },
            ..stored.found(Receipt::name(stored.name()), Naming::Shared, sought)
        })
        .collect();
    let file = |stored: &Stored| Receipt::name(stored.file());
    let mut found: Vec<FoundCopy> =
        own.into_iter().map(|one| one.found(file(one), Naming::Passing, sought)).collect();
    found.sort_by_key(|one| !one.marked_deleted);
    if let Some(keeper) = found.last_mut() {
        keeper.receipt = Receipt::name(name);
        keeper.naming = Naming::Shared;
        keeper.proof = Proof::Equal;
    }
    let older = older.into_iter().map(|one| FoundCopy {
        proof: Proof::Equal,
        ..one.found(Receipt::name(one.name()), Naming::Shared, sought)
    });
    found.splice(..0, same_id.drain(..).chain(older));
    let skip = found.len().saturating_sub(sought.at_most);
    found.split_off(skip)
}
