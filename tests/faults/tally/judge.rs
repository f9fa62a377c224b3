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

/// Reads the journal of `tests/faults/tally/command.py`.
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

#[test]
fn two_in_a_slot_are_seen() {
    let good = "1 1 began\n2 1 fenced\n1 1 work\n1 1 deep\n2 2 began\n1 3 began\n2 2 work\n";
    let tally = Tally { commands: 4, fenced: 1, lines: 7 };
    assert_eq!(judged(good, 2), Ok(tally));
    for (more, why) in [
        ("2 3 twice\n", "it is not free"),
        ("1 1 deep\n", "what an earlier one had started goes on"),
        ("1 3 began\n", "an epoch is given out twice"),
        ("1 2 began\n", "an epoch falls"),
        ("2 1 work\n", "a fenced one works without the fence"),
        ("3 1 began\n", "a slot that is not there"),
        ("1 4", "a line is cut"),
    ] {
        assert!(judged(&format!("{good}{more}"), 2).is_err(), "{why}");
    }
    assert_eq!(fence_held("1 1\n2 5\n1 1\n1 2\n"), Ok(4));
    assert!(fence_held("1 2\n2 5\n1 1\n").is_err());
}
