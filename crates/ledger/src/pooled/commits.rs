//! Records and receipts of deliveries at the same time in one transaction: one commit for all, and
//! with 10 connections 12 to 28 % more messages a second. A delivery that would wait for too long,
//! or whose call failed in company, goes alone.

use std::iter;
use std::time::{Duration, Instant, SystemTime};

use crate::{Committed, MOST_TOGETHER, ToRecord};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    Attempt, AttemptEnd, AttemptKey, Claim, Confirmed, CopyFacts, Entry, FilterFields, LeaseTerms,
    LedgerError, Recorded, ToConfirm,
};
use onedrop_core::lock_key::Hash;
use onedrop_core::message::{Facts, Identity};
use onedrop_core::receipt::Receipt;
use onedrop_net::group_commit::{GroupCommit, Waited};

/// A call that takes longer than that is waited for no more: its session may hang.
const PATIENCE: Duration = Duration::from_millis(250);
/// A call for several takes no longer than that; then each goes alone.
const IN_COMPANY: Duration = Duration::from_secs(10);
/// A delivery that has less time left than that goes alone at once.
const LEAST: Duration = Duration::from_secs(20);

/// Makes one call for several; it ends by the time given.
pub type Call<'a> =
    dyn Fn(&[ToRecord<'_>], &[ToConfirm<'_>], Instant) -> Result<Committed, LedgerError> + 'a;

/// The calls of deliveries that wait for a common commit.
pub struct Commits(GroupCommit<QueuedCall, Option<CallResult>>);

/// What one has come to.
enum CallResult {
    Recorded(Result<Recorded, LedgerError>),
    Confirmed(Result<Confirmed, LedgerError>),
}

impl Commits {
    /// With at most this many calls at the same time.
    pub fn at_once(calls: usize) -> Commits {
        Commits::with(calls, PATIENCE)
    }

    fn with(at_once: usize, patience: Duration) -> Commits {
        Commits(GroupCommit::new(at_once, MOST_TOGETHER, Some(patience), || None))
    }

    /// Has `one` recorded by `call`, perhaps with others, or by another delivery's; every call must
    /// end by the time it is given, which is before `until`. `None`: to be done alone.
    pub fn record(
        &self,
        one: ToRecord<'_>,
        until: Instant,
        call: &Call<'_>,
    ) -> Option<Result<Recorded, LedgerError>> {
        // Bytes that are kept travel by themselves.
        if one.entry.raw.is_some() {
            return None;
        }
        Some(match self.join(|| QueuedCall::record(&one), until, call)? {
            Ok(CallResult::Recorded(outcome)) => outcome,
            Ok(CallResult::Confirmed(_)) => return None,
            Err(error) => Err(error),
        })
    }

    /// Does what [`record`](Commits::record) does, for a receipt.
    pub fn confirm(
        &self,
        one: ToConfirm<'_>,
        until: Instant,
        call: &Call<'_>,
    ) -> Option<Result<Confirmed, LedgerError>> {
        Some(match self.join(|| QueuedCall::confirm(&one), until, call)? {
            Ok(CallResult::Confirmed(outcome)) => outcome,
            Ok(CallResult::Recorded(_)) => return None,
            Err(error) => Err(error),
        })
    }

    fn join(
        &self,
        job: impl Fn() -> QueuedCall,
        until: Instant,
        call: &Call<'_>,
    ) -> Option<Result<CallResult, LedgerError>> {
        if until.saturating_duration_since(Instant::now()) <= LEAST {
            return None;
        }
        let leader = match self.0.wait(&job, until) {
            Waited::Done(outcome) => return outcome.map(Ok),
            Waited::TimedOut => return None,
            Waited::Leads(leader) => leader,
        };
        let mine = job();
        // In the order of their keys: two groups that write the same rows wait for each other in
        // one direction.
        let mut all: Vec<(usize, &QueuedCall)> =
            iter::once(&mine).chain(leader.jobs()).enumerate().collect();
        all.sort_by_key(|(_, job)| job.key());
        let records: Vec<_> = all.iter().filter_map(|(_, job)| job.to_record()).collect();
        let receipts: Vec<_> = all.iter().filter_map(|(_, job)| job.to_confirm()).collect();
        let in_company = if leader.is_alone() { until } else { Instant::now() + IN_COMPANY };
        let Committed { recorded, confirmed } =
            match call(&records, &receipts, until.min(in_company)) {
                Err(error) if leader.is_alone() => return Some(Err(error)),
                // It says nothing of any one of them: one may have kept the others from it, or the
                // session been dead.
                committed => committed.unwrap_or_default(),
            };
        let (mut recorded, mut confirmed) = (recorded.into_iter(), confirmed.into_iter());
        let mut outcomes: Vec<(usize, Option<CallResult>)> = all
            .iter()
            .map(|(at, job)| match job {
                QueuedCall::Record(_) => (*at, recorded.next().flatten().map(CallResult::Recorded)),
                QueuedCall::Confirm { .. } => {
                    (*at, confirmed.next().flatten().map(CallResult::Confirmed))
                }
            })
            .collect();
        outcomes.sort_by_key(|(at, _)| *at);
        let mut outcomes = outcomes.into_iter().map(|(_, outcome)| outcome);
        let own = outcomes.next().flatten();
        leader.done(outcomes);
        own.map(Ok)
    }
}

/// What another thread needs to make a call for us.
enum QueuedCall {
    Record(Box<QueuedRecord>),
    Confirm {
        claim: Claim,
        receipt: Receipt,
        facts: CopyFacts,
        end: Option<(AttemptKey, AttemptEnd)>,
        may_be_lost: bool,
    },
}

struct QueuedRecord {
    identity: Identity,
    facts: Facts,
    size_bytes: u64,
    nul_runs: Option<Vec<u8>>,
    at: Option<SystemTime>,
    oldest: Option<SystemTime>,
    fields: Option<FilterFields>,
    attempt: Attempt,
    destinations: Vec<Destination>,
    terms: LeaseTerms,
}

impl QueuedCall {
    fn record(one: &ToRecord<'_>) -> QueuedCall {
        QueuedCall::Record(Box::new(QueuedRecord {
            identity: one.entry.identity.clone(),
            facts: one.entry.facts.clone(),
            size_bytes: one.entry.size_bytes,
            nul_runs: one.entry.nul_runs.map(<[u8]>::to_vec),
            at: one.entry.at,
            oldest: one.entry.oldest,
            fields: one.entry.fields.cloned(),
            attempt: one.attempt.clone(),
            destinations: one.destinations.to_vec(),
            terms: one.terms,
        }))
    }

    fn confirm(one: &ToConfirm<'_>) -> QueuedCall {
        let end = one.end.map(|(attempt, end)| (attempt, end.clone()));
        QueuedCall::Confirm {
            claim: one.claim,
            receipt: one.receipt.clone(),
            facts: one.facts,
            end,
            may_be_lost: one.may_be_lost,
        }
    }

    /// What names its row: a message's identity, or a copy's number.
    fn key(&self) -> (Option<(Hash, Hash)>, Option<i64>) {
        match self {
            QueuedCall::Record(one) => (Some((one.identity.id_hash, one.identity.digest)), None),
            QueuedCall::Confirm { claim, .. } => (None, Some(claim.copy)),
        }
    }

    fn to_record(&self) -> Option<ToRecord<'_>> {
        let QueuedCall::Record(one) = self else { return None };
        let QueuedRecord { identity, facts, size_bytes, at, attempt, destinations, terms, .. } =
            &**one;
        let entry = Entry {
            identity,
            facts,
            size_bytes: *size_bytes,
            raw: None,
            nul_runs: one.nul_runs.as_deref(),
            at: *at,
            oldest: one.oldest,
            fields: one.fields.as_ref(),
        };
        Some(ToRecord { entry, attempt, destinations, terms: *terms })
    }

    fn to_confirm(&self) -> Option<ToConfirm<'_>> {
        let QueuedCall::Confirm { claim, receipt, facts, end, may_be_lost } = self else {
            return None;
        };
        let end = end.as_ref().map(|(attempt, end)| (*attempt, end));
        Some(ToConfirm { claim: *claim, receipt, facts: *facts, end, may_be_lost: *may_be_lost })
    }
}

#[cfg(test)]
mod tests;
