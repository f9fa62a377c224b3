//! What the journal of a lock's commands shows: in each slot one at a time, and epochs that only
//! grow. Nothing here looks at a clock: the lines' order is the order of time.

use std::collections::{BTreeMap, BTreeSet};

/// A run's figures.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Commands that held the lock.
    pub commands: usize,
    /// Of these, how many may have gone on after their lease, under the fence alone.
    pub fenced: usize,
    pub lines: usize,
}

/// Reads the journal, whose lines are `SLOT EPOCH WHAT`.
///
/// # Errors
/// More were at work under the lock than it has slots, or an epoch was given out twice.
pub fn judged(journal: &str, slots: u32) -> Result<Tally, String> {
    let (mut tally, mut newest) = (Tally::default(), BTreeMap::new());
    let mut fenced = BTreeSet::new();
    for (at, line) in journal.lines().enumerate() {
        let unread = || format!("line {}: {line}", at + 1);
        let words: Vec<&str> = line.split(' ').collect();
        let [slot, epoch, what] = words[..] else { return Err(unread()) };
        let slot: u32 = slot.parse().map_err(|_| unread())?;
        let epoch: u64 = epoch.parse().map_err(|_| unread())?;
        if !(1..=slots).contains(&slot) {
            return Err(format!("{}: of {slots} slots", unread()));
        }
        let last = newest.get(&slot).copied().unwrap_or(0);
        tally.lines += 1;
        match what {
            "began" | "fenced" if epoch > last => {
                newest.insert(slot, epoch);
                tally.commands += 1;
                if what == "fenced" {
                    tally.fenced += 1;
                    fenced.insert((slot, epoch));
                }
            }
            "work" | "deep" if epoch == last && !fenced.contains(&(slot, epoch)) => {}
            _ => {
                return Err(format!("{}: two in slot {slot}, epoch {last} came before", unread()));
            }
        }
    }
    Ok(tally)
}

/// The fenced writes, `SLOT EPOCH` in the order of their commits: none comes after a later epoch's.
pub fn fence_held(writes: &str) -> Result<usize, String> {
    let mut newest = BTreeMap::new();
    for line in writes.lines() {
        let unread = || format!("no write: {line}");
        let (slot, epoch) = line.split_once(' ').ok_or_else(unread)?;
        let epoch: u64 = epoch.parse().map_err(|_| unread())?;
        let last = newest.insert(slot, epoch).unwrap_or(0);
        if epoch < last {
            return Err(format!("slot {slot}: {epoch} wrote after {last}"));
        }
    }
    Ok(writes.lines().count())
}
