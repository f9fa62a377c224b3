//! The port of before, until nobody uses it.

use std::time::Instant;

use super::{MemoryLedger, Reread};
use crate::directory::{Asked, Destination};
use crate::ledger::port::{self, Accounts, Audit, Proofs, Records, Schema};
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, Entry, LeaseTerms,
    Ledger, LedgerError, Recorded, Trace, TraceFilter, Turn, Window,
};
use crate::lock_key::{self, Hash};
use crate::message::Identity;
use crate::store::{Receipt, Way};

/// No call looks at it.
fn far() -> Instant {
    Instant::now()
}

impl Ledger for MemoryLedger {
    fn record(
        &mut self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        self.held = None;
        port::Ledger::record(self, entry, attempt, destinations, terms, far())
    }

    fn claim(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        port::Ledger::claim(self, message, destinations, owner, terms, far())
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<Turn, LedgerError> {
        self.held = None;
        let (held, reread) = self.turn(claim, copy_key)?;
        Ok(match reread {
            Reread::Ours { in_doubt } => {
                self.held = Some(held);
                Turn::Ours { in_doubt }
            }
            Reread::Placed(receipt) => Turn::Placed(receipt),
            Reread::EpochGone => Turn::EpochGone,
        })
    }

    fn confirm(
        &mut self,
        claim: &Claim,
        receipt: &Receipt,
        facts: CopyFacts,
        end: Option<(i64, &AttemptEnd)>,
    ) -> Result<Confirmed, LedgerError> {
        let one = port::ToConfirm { claim: *claim, receipt, facts, end };
        self.held = None;
        port::Ledger::confirm(self, &one, far())
    }

    fn keep(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<bool, LedgerError> {
        port::Ledger::keep(self, message, bytes, why, far())
    }

    fn kept(&mut self, message: i64) -> Result<Option<String>, LedgerError> {
        port::Ledger::kept(self, message, far())
    }

    fn kept_bytes(&mut self, message: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        Audit::kept_bytes(self, message, far())
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.held = None;
        Ok(())
    }

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError> {
        self.held = None;
        port::Ledger::release(self, claims, far())
    }

    fn finish(&mut self, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
        self.rows().end(attempt, end);
        Ok(())
    }

    fn note_attempts(
        &mut self,
        identity: &Identity,
        ended: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        port::Ledger::finish(self, identity, None, ended, far())
    }

    fn renew(&mut self, _until: Instant) -> Result<(), LedgerError> {
        Ok(())
    }

    fn reopen(&mut self, _until: Instant) -> Result<(), LedgerError> {
        self.held = None;
        self.lose_session();
        Ok(())
    }

    fn account_by_query(
        &mut self,
        query: &str,
        asked: &Asked,
    ) -> Result<Option<String>, LedgerError> {
        Accounts::account_by_query(self, query, asked, far())
    }

    fn trace(&mut self, filter: &TraceFilter<'_>, limit: u32) -> Result<Vec<Trace>, LedgerError> {
        Records::trace(self, filter, limit, far())
    }

    fn copies_to_verify(
        &mut self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        Audit::copies_to_verify(self, window, after, limit, far())
    }

    fn latest_copies(&mut self, limit: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        Proofs::latest_copies(self, limit, far())
    }

    fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError> {
        Audit::settle(self, copy, receipt, far())
    }

    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError> {
        Proofs::is_proven(self, way, far())
    }

    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError> {
        Proofs::note_proof(self, way, holds, host, far())
    }

    fn schema_version(&mut self) -> Result<i64, LedgerError> {
        Schema::schema_version(self, far())
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        Schema::migrate(self, far())
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        self.held = None;
        self.held = Some(self.lock(lock_key::advisory_key(&lock_key::name_hash(name)))?);
        Ok(())
    }
}
