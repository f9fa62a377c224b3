//! What `onedrop status` finds in the ledger, for the front page. It costs more than a page may, so
//! it is read now and then and kept in this process; the page says of when it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::{ConfiguredJobs, PagesState};
use crate::status::{LedgerFacts, StatusFinding, unread_jobs, unrecorded_finding, without_ledger};

/// What is newer is shown as it is.
const FRESH: Duration = Duration::from_secs(10);
/// What is older is not shown at all.
const STALE: Duration = Duration::from_secs(150);
/// What reading may take.
const TIME: Duration = Duration::from_secs(5);

/// The findings that were read last.
#[derive(Default)]
pub struct KeptFindings {
    kept: Mutex<Option<ReadFindings>>,
    is_read: AtomicBool,
}

/// Findings and when they were read.
#[derive(Clone)]
pub struct ReadFindings {
    pub findings: Vec<StatusFinding>,
    pub at: SystemTime,
    read: Instant,
}

/// The newest that are kept. Where they are a little old, the next page has newer ones; where they
/// are too old, they are read now.
pub fn of(site: &Arc<PagesState>) -> ReadFindings {
    let kept = site.findings.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(kept) = kept.filter(|kept| kept.read.elapsed() < STALE) else { return read(site) };
    if kept.read.elapsed() >= FRESH && !site.findings.is_read.swap(true, Ordering::AcqRel) {
        let of_thread = Arc::clone(site);
        let again = move || {
            read(&of_thread);
            of_thread.findings.is_read.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("findings".to_owned()).spawn(again).is_err() {
            site.findings.is_read.store(false, Ordering::Release);
        }
    }
    kept
}

/// What there is to say of the facts; of jobs whose sections are wrong, that alone.
fn judged(facts: &LedgerFacts, known: &ConfiguredJobs) -> Vec<StatusFinding> {
    let mut findings = facts.findings(&known.jobs);
    if let Some(problem) = &known.problem {
        unread_jobs(&mut findings, problem);
    }
    findings
}

/// Reads them and keeps them.
pub fn read(site: &PagesState) -> ReadFindings {
    let facts = LedgerFacts::read(&*site.ledger, Instant::now() + TIME);
    let mut findings = match facts {
        Ok(facts) => judged(&facts, &site.jobs.known()),
        Err(error) => vec![without_ledger(&error)],
    };
    let file = site.config_file.as_deref();
    findings.extend(file.and_then(|file| unrecorded_finding(file, Instant::now() + TIME)));
    let now = ReadFindings { findings, at: SystemTime::now(), read: Instant::now() };
    *site.findings.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(now.clone());
    now
}
