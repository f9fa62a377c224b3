//! Whether what a look found of a copy that was handed over is all of it. The mail server may have
//! died in the middle of the owner's filters: then the copy stands where they filed it first, and
//! what they had still to do (INBOX, a forward) never comes. Only the guard of `store.lmtp`
//! (`conf/dovecot/onedrop-guard.sieve`) knows: it notes a delivery at its end, so what is handed
//! over again is dropped if it had ended, and carried out if it had not.
//!
//! So it is handed over again only where the guard would know it: an earlier try of this very row
//! wrote what was found; it is on record that the guard is in force, and was when the row came on
//! record; and the row is younger than what the guard remembers. Otherwise what was found is the
//! end.

use std::cmp::Reverse;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::ledger::{Ledger, LedgerError, Proofs, Schema};
use crate::login::Way;
use crate::store::Store;

/// Clocks differ, and a delivery takes its time.
const MARGIN: Duration = Duration::from_secs(24 * 3600);
/// The same, for what happened at one time.
const CLOCKS: Duration = Duration::from_secs(60);

/// What is on record of the guard at a server, among the ways into the store: what was read there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardOnRecord {
    /// For how long it has the mail server remember a delivery.
    pub remembers: Duration,
    /// Since when it is known to. What was handed over earlier was perhaps noted for a shorter
    /// time, or not at all.
    pub since: SystemTime,
}

impl GuardOnRecord {
    /// The record about the server to which copies are handed over.
    pub fn way(self, server: String) -> Way {
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let form = format!("guard, {} s since {since}", self.remembers.as_secs());
        Way { server, login_user: String::new(), form }
    }

    fn parse(form: &str) -> Option<GuardOnRecord> {
        let (remembers, since) = form.strip_prefix("guard, ")?.split_once(" s since ")?;
        let secs = |text: &str| text.parse().ok().map(Duration::from_secs);
        let since = UNIX_EPOCH.checked_add(secs(since)?)?;
        Some(GuardOnRecord { remembers: secs(remembers)?, since })
    }

    /// Whether it has noted the deliveries of a row that came on record then, and knows them still.
    fn knows(self, recorded_at: SystemTime, now: SystemTime) -> bool {
        // Each of its tries came later.
        let age = now.duration_since(recorded_at).unwrap_or_default();
        let is_later = recorded_at.duration_since(self.since).is_ok_and(|after| after >= CLOCKS);
        is_later && age + MARGIN < self.remembers
    }
}

/// Puts on record that the guard at `server` is in force and how long it remembers, or (`None`)
/// that it is not in force.
///
/// # Errors
/// Those of the ledger.
pub fn note(
    ledger: &(impl Ledger + Schema + ?Sized),
    server: &str,
    remembers: Option<Duration>,
    host: &str,
    until: Instant,
) -> Result<(), LedgerError> {
    let known = on_record(ledger, server, until)?;
    // Rows are dated by the ledger's clock; `time` of a process that has recorded nothing is its
    // host's.
    let since = ledger.clock(until)?.unwrap_or_else(|| ledger.time());
    let seen = remembers.map(|remembers| GuardOnRecord { remembers, since });
    let now = seen.map(|seen| with(&known, seen)).unwrap_or_default();
    let note = |one: &GuardOnRecord, holds| {
        ledger.note_proof(&one.way(server.to_owned()), holds, host, until)
    };
    // Before others are taken off: a delivery may read them meanwhile.
    now.iter().try_for_each(|one| note(one, true))?;
    known.iter().filter(|one| !now.contains(one)).try_for_each(|one| note(one, false))
}

/// What holds once a guard is `seen` whose memory is perhaps another than that of those that are
/// `known`: since each of them, at least the shorter of the two.
fn with(known: &[GuardOnRecord], seen: GuardOnRecord) -> Vec<GuardOnRecord> {
    let at_least = |one: &GuardOnRecord| one.remembers.min(seen.remembers);
    let earlier = known.iter().map(|one| GuardOnRecord { remembers: at_least(one), ..*one });
    let mut all: Vec<GuardOnRecord> = earlier.chain([seen]).collect();
    // The longest memory first, and of the same the one that is known for longer.
    all.sort_by_key(|one| (Reverse(one.remembers), one.since));
    let mut kept: Vec<GuardOnRecord> = Vec::new();
    for one in all {
        if kept.iter().all(|longer| one.since < longer.since) {
            kept.push(one);
        }
    }
    kept
}

fn on_record(
    ledger: &(impl Proofs + ?Sized),
    server: &str,
    until: Instant,
) -> Result<Vec<GuardOnRecord>, LedgerError> {
    let forms = ledger.proven_forms(server, "", until)?;
    Ok(forms.iter().filter_map(|form| GuardOnRecord::parse(form)).collect())
}

/// What is on record of the guard at the server to which copies are handed over; nothing where the
/// store hands none over.
///
/// # Errors
/// Those of the ledger.
pub fn known(
    ledger: &(impl Proofs + ?Sized),
    store: &(impl Store + ?Sized),
    until: Instant,
) -> Result<Vec<GuardOnRecord>, LedgerError> {
    let server = store.traits().hands_over_to;
    server.map_or(Ok(Vec::new()), |server| on_record(ledger, &server, until))
}

/// Whether what a look found, which the try `found` wrote (`None`: none of this row's), may be the
/// beginning of a delivery, of a row that is at its try `epoch`; given what is `known` of the
/// guard.
pub fn may_be_half_done(
    known: &[GuardOnRecord],
    (found, epoch, recorded_at): (Option<i64>, i64, SystemTime),
    now: SystemTime,
) -> bool {
    let is_ours = found.is_some_and(|found| (1..=epoch).contains(&found));
    is_ours && known.iter().any(|guard| guard.knows(recorded_at, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn a_guard_knows_what_came_after_it_and_is_younger_than_its_memory() {
        let since = UNIX_EPOCH + 20_000 * DAY;
        let guard = GuardOnRecord { remembers: 6 * DAY, since };
        let knows =
            |after: Duration, age: Duration| guard.knows(since + after, since + after + age);
        assert!(knows(CLOCKS, Duration::ZERO) && knows(DAY, 5 * DAY - Duration::from_secs(1)));
        assert!(!knows(DAY, 5 * DAY), "it may have forgotten that");
        assert!(!knows(CLOCKS - Duration::from_secs(1), Duration::ZERO), "that was before it");
        assert!(!guard.knows(since - DAY, since), "that was before it");
        let short = GuardOnRecord { remembers: DAY, since };
        assert!(!short.knows(since + DAY, since + DAY), "shorter than what clocks may differ by");
    }

    #[test]
    fn a_memory_that_changes_is_no_longer_for_what_came_before() {
        let at = |days: u32, remembers: u32| GuardOnRecord {
            remembers: remembers * DAY,
            since: UNIX_EPOCH + days * DAY,
        };
        assert_eq!(with(&[], at(5, 7)), [at(5, 7)]);
        assert_eq!(with(&[at(1, 7)], at(5, 7)), [at(1, 7)], "it has not changed");
        assert_eq!(with(&[at(5, 7)], at(5, 3)), [at(5, 3)], "once");
        assert_eq!(
            with(&[at(1, 7)], at(5, 3)),
            [at(1, 3)],
            "what came before was noted for longer"
        );
        let grown = with(&[at(1, 3)], at(5, 7));
        assert_eq!(grown, [at(5, 7), at(1, 3)], "what came before was noted for three days");
        assert_eq!(with(&grown, at(6, 7)), grown);
        assert_eq!(with(&grown, at(6, 2)), [at(1, 2)]);
        // Of what came on record on the third day three days are known to be remembered, not seven.
        let known = |on: u32, age: u32| {
            let (recorded_at, now) = (UNIX_EPOCH + on * DAY, UNIX_EPOCH + (on + age) * DAY);
            grown.iter().any(|guard| guard.knows(recorded_at, now))
        };
        assert!(known(3, 1) && !known(3, 3) && known(6, 5) && !known(6, 6) && !known(0, 1));
    }

    #[test]
    fn what_is_on_record_is_read_as_it_was_written() {
        let guard = GuardOnRecord { remembers: 6 * DAY, since: UNIX_EPOCH + 20_000 * DAY };
        let way = guard.way("lmtp://mail:24".to_owned());
        assert_eq!(way.form, "guard, 518400 s since 1728000000");
        assert_eq!(GuardOnRecord::parse(&way.form), Some(guard));
        for other in ["sasl", "guard, 604800 s", "guard,  s since 1", "guard, 1 s since x"] {
            assert_eq!(GuardOnRecord::parse(other), None, "{other}");
        }
    }
}
