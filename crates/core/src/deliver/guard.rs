//! Whether what a look found of a copy that was handed over is all of it. The mail server may have
//! died in the middle of the owner's filters: then the copy stands where they filed it first, and
//! what they had still to do (INBOX, a forward) never comes. Only the guard of `store.lmtp`
//! (`conf/dovecot/onedrop-guard.sieve`) knows: it notes a delivery at its end, so what is handed
//! over again is dropped if it had ended, and carried out if it had not.
//!
//! So it is handed over again only where the guard would know it: an earlier try of this very row
//! wrote what was found, it is on record that the guard is in force, and the row is younger than
//! what the guard remembers. Otherwise what was found is the end.

use std::time::{Duration, Instant, SystemTime};

use crate::ledger::{Ledger, LedgerError};
use crate::login::Way;
use crate::store::Store;

/// For how long the guard has the mail server remember what it has delivered, as it is shipped:
/// longer than Postfix tries.
pub const REMEMBERED: Duration = Duration::from_secs(7 * DAY.as_secs());
/// Clocks differ, and a delivery takes its time.
const MARGIN: Duration = DAY;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The record that the guard is in force at the server to which copies are handed over
/// ([`Store::hands_over_to`]): it was read there, how long it remembers, and that it knows the
/// accounts for which it notes nothing.
pub fn way(server: String) -> Way {
    let form = format!("guard, {} s", REMEMBERED.as_secs());
    Way { server, login_user: String::new(), form }
}

/// Whether what a look found, which the try `found` wrote (`None`: none of this row's), may be the
/// beginning of a delivery, of a row that is at its try `epoch`.
///
/// # Errors
/// The ledger cannot say whether the guard is in force.
pub fn may_be_half_done(
    ledger: &dyn Ledger,
    store: &dyn Store,
    (found, epoch, recorded_at): (Option<i64>, i64, SystemTime),
    until: Instant,
) -> Result<bool, LedgerError> {
    let is_ours = found.is_some_and(|found| (1..=epoch).contains(&found));
    // Each of its tries came later.
    let age = ledger.time().duration_since(recorded_at).unwrap_or_default();
    match store.hands_over_to() {
        Some(server) if is_ours && age < REMEMBERED - MARGIN => {
            ledger.is_proven(&way(server), until)
        }
        _ => Ok(false),
    }
}
