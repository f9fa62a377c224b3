//! The ledger in Postgres: the reference, shared by many hosts.
//!
//! Promise: the port's, with transaction-level advisory locks and rows that are re-read after the
//! lock. It works through PgBouncer in transaction pooling: no session state outside a transaction,
//! and prepared statements only if `ledger.prepare` is set. The steps of a delivery are functions
//! of the schema (`migrations/postgres/`).
//!
//! Relies on READ COMMITTED (a statement sees what was committed before it began), the server's
//! clock for leases, and `synchronous_commit`, which each writing transaction switches on. After a
//! crash no transaction and no lock is left once the server has seen the connection close or
//! `idle_in_transaction_session_timeout` has passed; committed leases run out.

use std::sync::Arc;
use std::time::Instant;

use super::pooled::Traits;
use super::{
    Attempt, AttemptEnd, Claim, Committed, Confirmed, CopyOnRecord, CopyState, LeaseTerms,
    LedgerError, PooledLedger, Recorded, Session, SessionTurn, ToConfirm, ToRecord, Trace,
    TraceFilter, Window,
};
use crate::directory::{Asked, Destination};
use crate::lock_key::Hash;
use crate::login::Way;
use crate::message::Identity;
use crate::pool::Limits;
use crate::receipt::Receipt;

mod account;
mod columns;
pub mod connection;
mod errors;
mod kept;
mod link;
mod metered;
mod place;
mod proof;
mod record;
mod schema;
mod target;
mod together;
mod trace;
mod verify;

pub use connection::Connection;
pub use target::PostgresSettings;

pub use crate::net::postgres_url::PostgresUrl;
use target::Target;

/// A ledger in Postgres.
pub type PostgresLedger = PooledLedger<Connection>;

impl PostgresLedger {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// The URL makes no sense, or what it names cannot be read; never with the URL or the password
    /// in it.
    pub fn new(settings: PostgresSettings, limits: Limits) -> Result<PostgresLedger, LedgerError> {
        let target = Arc::new(Target::new(settings)?);
        let open = Arc::new(move |until| Connection::open(Arc::clone(&target), until));
        let traits = Traits { opens_slowly: true, commits_together: true, is_a_file: false };
        Ok(PooledLedger::over(open, traits, limits))
    }
}

impl Session for Connection {
    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        Connection::renew(self, until)
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        Connection::reopen(self, until)
    }

    fn record(&mut self, one: &ToRecord<'_>) -> Result<Recorded, LedgerError> {
        together::only(together::commit(self, &[*one], &[])?.recorded)
    }

    fn confirm(&mut self, one: &ToConfirm<'_>) -> Result<Confirmed, LedgerError> {
        together::only(together::commit(self, &[], &[*one])?.confirmed)
    }

    fn commit(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError> {
        together::commit(self, records, receipts)
    }

    fn claim(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        record::claim(self, message, destinations, owner, terms)
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<SessionTurn, LedgerError> {
        place::take_turn(self, claim, copy_key)
    }

    fn keep(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<bool, LedgerError> {
        kept::keep(self, message, bytes, why)
    }

    fn kept(&mut self, message: i64) -> Result<Option<String>, LedgerError> {
        kept::kept(self, message)
    }

    fn kept_bytes(&mut self, message: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        kept::bytes(self, message)
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.rollback()
    }

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError> {
        place::release(self, claims)
    }

    fn finish(&mut self, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
        record::finish(self, attempt, end)
    }

    fn note_attempts(
        &mut self,
        identity: &Identity,
        ended: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        record::note_attempts(self, identity, ended)
    }

    fn account_by_query(
        &mut self,
        query: &str,
        asked: &Asked,
    ) -> Result<Option<String>, LedgerError> {
        account::by_query(self, query, asked)
    }

    fn trace(&mut self, filter: &TraceFilter<'_>, limit: u32) -> Result<Vec<Trace>, LedgerError> {
        trace::trace(self, filter, limit)
    }

    fn copies_to_verify(
        &mut self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        verify::copies(self, window, after, limit)
    }

    fn latest_copies(&mut self, limit: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        verify::latest(self, limit)
    }

    fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError> {
        verify::settle(self, copy, receipt)
    }

    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError> {
        proof::is_proven(self, way)
    }

    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError> {
        proof::note(self, way, holds, host)
    }

    fn schema_version(&mut self) -> Result<i64, LedgerError> {
        schema::version(self)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        schema::migrate(self)
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        place::try_lock(self, name)
    }
}
