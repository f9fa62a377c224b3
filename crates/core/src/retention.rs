//! `onedrop purge` and `onedrop forget`: batch after batch, each a short transaction of the ledger,
//! with a pause as long as it took, so that deliveries get as much of the server as the purge.
//! Both rely on the ledger for what may not be touched yet. A crash between two batches leaves
//! less to do for the next run.

use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::ledger::{
    BatchTerms, ForgetWhat, ForgottenCopy, HOSTS_FOR, LedgerError, PurgeBatch, PurgeWhat,
    Retention, Schema,
};

/// How long a batch may take; it takes some hundredths of a second.
const BATCH_TIME: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Of a batch that meets deliveries of the very same messages.
const TRIES: u32 = 5;
/// Rows in a batch.
const ROWS: u32 = 500;
/// Of rows that hold whole messages.
const LARGE_ROWS: u32 = 50;

/// How old what goes is.
#[derive(Debug, Clone, Copy)]
pub struct Ages {
    pub messages: Duration,
    pub facts: Duration,
    pub raw: Duration,
    /// Of bytes that are kept for a Sent that refused them, however old their message.
    pub kept: Duration,
}

/// What a purge has taken out, or would.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Purged {
    /// With their copies and attempts.
    pub messages: u64,
    /// Old enough, but leased not long ago, or needed for a copy that is not placed.
    pub passed_by: u64,
    /// Messages whose subject, addresses, parts and attempts are erased.
    pub facts: u64,
    /// Messages whose bytes are gone (`ledger.keep_raw`).
    pub raw: u64,
    /// Messages whose bytes are gone, kept for a Sent that did not take them.
    pub kept: u64,
    /// Attempts that recorded no message, or one whose facts were erased before.
    pub attempts: u64,
    /// Hosts that were not seen for [`HOSTS_FOR`].
    pub hosts: u64,
}

/// Purges, and puts on record that it came to its end; with `dry_run` only counts.
///
/// # Errors
/// What the ledger said; what is gone by then is gone.
pub fn purge(
    ages: Ages,
    dry_run: bool,
    ledger: &(impl Retention + Schema + ?Sized),
    clock: &dyn Clock,
) -> Result<Purged, LedgerError> {
    ledger.check_program(clock.now() + BATCH_TIME)?;
    let mut purged = Purged::default();
    for what in PurgeWhat::ALL {
        let older_than = match what {
            // They go with their messages.
            PurgeWhat::Facts if ages.facts >= ages.messages => continue,
            PurgeWhat::Facts => ages.facts,
            PurgeWhat::Raw => ages.raw,
            PurgeWhat::Kept => ages.kept,
            PurgeWhat::Messages => ages.messages,
            PurgeWhat::Attempts => ages.facts.min(ages.messages),
        };
        let is_large = matches!(what, PurgeWhat::Raw | PurgeWhat::Kept);
        let how = BatchTerms { limit: if is_large { LARGE_ROWS } else { ROWS }, dry_run };
        let mut after = None;
        loop {
            let PurgeBatch { gone, passed_by, next } =
                paced(clock, |until| ledger.purge(what, older_than, after, how, until))?;
            match what {
                PurgeWhat::Messages => {
                    purged.messages += gone;
                    purged.passed_by += passed_by;
                }
                PurgeWhat::Facts => purged.facts += gone,
                PurgeWhat::Raw => purged.raw += gone,
                PurgeWhat::Kept => purged.kept += gone,
                PurgeWhat::Attempts => purged.attempts += gone,
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
    }
    purged.hosts = match paced(clock, |until| ledger.forget_hosts(HOSTS_FOR, dry_run, until)) {
        // It matters to no mail.
        Err(error @ LedgerError::Denied(_)) => {
            tracing::warn!(%error, "hosts that are gone stay on record");
            0
        }
        counted => counted?,
    };
    if !dry_run {
        ledger.note_purge(clock.now() + BATCH_TIME)?;
    }
    Ok(purged)
}

/// Forgets, and passes each copy that it comes by to `tell`; with `dry_run` it forgets nothing.
///
/// # Errors
/// What the ledger said; what was passed on by then is forgotten.
pub fn forget(
    what: ForgetWhat<'_>,
    dry_run: bool,
    ledger: &(impl Retention + Schema + ?Sized),
    clock: &dyn Clock,
    tell: &mut dyn FnMut(&ForgottenCopy),
) -> Result<(), LedgerError> {
    ledger.check_program(clock.now() + BATCH_TIME)?;
    let how = BatchTerms { limit: ROWS, dry_run };
    let mut after = 0;
    loop {
        let batch = paced(clock, |until| ledger.forget(what, after, how, until))?;
        batch.copies.iter().for_each(&mut *tell);
        match batch.next {
            Some(next) => after = next,
            None => return Ok(()),
        }
    }
}

/// One batch, and a pause as long as it took; again if another session was in its way.
fn paced<T>(
    clock: &dyn Clock,
    batch: impl Fn(Instant) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    let mut tries = 0;
    loop {
        let began = clock.now();
        let done = batch(began + BATCH_TIME);
        clock.sleep((clock.now() - began).min(LONGEST_PAUSE));
        tries += 1;
        // Nothing of that batch holds, and the delivery that was in its way has gone on.
        if !matches!(done, Err(LedgerError::Contended)) || tries == TRIES {
            return done;
        }
    }
}
