//! The ledger in Postgres: the reference, shared by many hosts. It promises what [`Ledger`] says,
//! with transaction-level advisory locks and rows re-read after them, and works through PgBouncer
//! in transaction pooling: no session state outside a transaction, and statements prepared only
//! where `ledger.prepare` says so. The steps of a delivery are functions of the schema
//! (`migrations/postgres/`). It relies on READ COMMITTED (every statement sees what was committed
//! before it began), on the server's clock for leases, and on `synchronous_commit` not being off,
//! which each writing transaction sees to. A crash at any point leaves no transaction and no lock,
//! once the server has seen the connection close or `idle_in_transaction_session_timeout` has
//! passed; committed leases run out by themselves.
//!
//! `session` bounds every wait on a connection (`link`), `metered` what may come in, `target` reads
//! the URL and sets up TLS, `record` and `place` ask what a delivery needs in its order, several
//! deliveries `together`; `trace`, `verify`, `schema` and `account` what everything else does;
//! `columns` and `text` turn values into columns.

use std::time::Instant;

use super::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, Entry, LeaseTerms,
    Ledger, LedgerError, Recorded, ToConfirm, ToRecord, Together, Trace, TraceFilter, Turn, Window,
};
use crate::directory::{Asked, Destination};
use crate::lock_key::Hash;
use crate::message::Identity;
use crate::store::{Receipt, Way};

mod account;
mod columns;
mod errors;
mod kept;
mod link;
mod metered;
mod place;
mod proof;
mod record;
mod schema;
mod session;
mod target;
mod together;
mod trace;
mod verify;

use session::Session;
pub use target::PostgresSettings;
use target::Target;

/// A session with a ledger in Postgres.
pub struct PostgresLedger {
    session: Session,
}

impl PostgresLedger {
    /// Connects, and looks at nothing yet. Calls on the ledger return before `until`.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`], also for a URL that makes no sense; never with the URL or the
    /// password in it.
    pub fn open(settings: PostgresSettings, until: Instant) -> Result<PostgresLedger, LedgerError> {
        Ok(PostgresLedger { session: Session::open(Target::new(settings)?, until)? })
    }
}

impl Ledger for PostgresLedger {
    fn record(
        &mut self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        together::only(
            self.together(&[ToRecord { entry: *entry, attempt, destinations, terms }], &[])?
                .recorded,
        )
    }

    fn works_together(&self) -> bool {
        true
    }

    fn together(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Together, LedgerError> {
        together::together(&mut self.session, records, receipts)
    }

    fn claim(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        record::claim(&mut self.session, message, destinations, owner, terms)
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<Turn, LedgerError> {
        place::take_turn(&mut self.session, claim, copy_key)
    }

    fn confirm(
        &mut self,
        claim: &Claim,
        receipt: &Receipt,
        facts: CopyFacts,
        end: Option<(i64, &AttemptEnd)>,
    ) -> Result<Confirmed, LedgerError> {
        together::only(
            self.together(&[], &[ToConfirm { claim: *claim, receipt, facts, end }])?.confirmed,
        )
    }

    fn keep(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<bool, LedgerError> {
        kept::keep(&mut self.session, message, bytes, why)
    }

    fn kept(&mut self, message: i64) -> Result<Option<String>, LedgerError> {
        kept::kept(&mut self.session, message)
    }

    fn kept_bytes(&mut self, message: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        kept::bytes(&mut self.session, message)
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.session.rollback()
    }

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError> {
        place::release(&mut self.session, claims)
    }

    fn finish(&mut self, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
        record::finish(&mut self.session, attempt, end)
    }

    fn note_attempts(
        &mut self,
        identity: &Identity,
        ended: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        record::note_attempts(&mut self.session, identity, ended)
    }

    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.session.renew(until)
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.session.reopen(until)
    }

    fn account_by_query(
        &mut self,
        query: &str,
        asked: &Asked,
    ) -> Result<Option<String>, LedgerError> {
        account::by_query(&mut self.session, query, asked)
    }

    fn trace(&mut self, filter: &TraceFilter<'_>, limit: u32) -> Result<Vec<Trace>, LedgerError> {
        trace::trace(&mut self.session, filter, limit)
    }

    fn copies_to_verify(
        &mut self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        verify::copies(&mut self.session, window, after, limit)
    }

    fn latest_copies(&mut self, limit: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        verify::latest(&mut self.session, limit)
    }

    fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError> {
        verify::settle(&mut self.session, copy, receipt)
    }

    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError> {
        proof::is_proven(&mut self.session, way)
    }

    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError> {
        proof::note(&mut self.session, way, holds, host)
    }

    fn schema_version(&mut self) -> Result<i64, LedgerError> {
        schema::version(&mut self.session)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        schema::migrate(&mut self.session)
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        place::try_lock(&mut self.session, name)
    }
}
