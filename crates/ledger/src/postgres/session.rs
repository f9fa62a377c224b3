//! What a delivery asks of Postgres. A turn is a transaction that holds the copy's lock and no row
//! lock while the store works; the receipt and COMMIT end it in one round trip. Without a turn no
//! transaction is open meanwhile. A crash before a commit leaves nothing, a crash after it rows,
//! and leases that run out. If a lock is lost, for example in a fail-over, unique keys still
//! prevent a second row of a message or copy.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::connection::{Connection, Statement};
use super::{fast, migrate, record, schema};
use crate::rows::SqlRow;
use crate::sql::{claims, rows_at};
use crate::{Committed, Session, ToRecord, TurnState};
use onedrop_core::ledger::{Claim, LedgerError, PlannedStep, Program, SchemaVersion, ToConfirm};
use onedrop_core::lock_key::{Hash, name_hash};

const CLOCK: &str = "SELECT extract(epoch FROM clock_timestamp())::float8";

impl Session for Connection {
    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        Connection::renew(self, until)
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        Connection::reopen(self, until)
    }

    fn record_and_confirm(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError> {
        fast::commit(self, records, receipts)
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<TurnState, LedgerError> {
        // Sees what was committed before the lock was taken; no row is locked while the store
        // works.
        let read = [claims::read_claimed(claim, false)];
        let answers = record::begin_locked(self, copy_key, &read)?;
        let turn = claims::turn(claim, rows_at(&answers, 0));
        if !matches!(turn, Ok(TurnState::Ours { .. })) {
            self.rollback_or_lose();
        }
        turn
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.rollback()
    }

    fn hand_on(&mut self, to: &UnixDatagram) -> Result<bool, LedgerError> {
        Connection::hand_on(self, to)
    }

    fn program(&self) -> &Program {
        Connection::program(self)
    }

    fn schema_version(&mut self) -> Result<SchemaVersion, LedgerError> {
        schema::version(self)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        migrate::migrate(self)
    }

    fn planned_migration(&mut self) -> Result<Vec<PlannedStep>, LedgerError> {
        migrate::planned(self)
    }

    fn clock(&mut self) -> Result<Option<SystemTime>, LedgerError> {
        let rows = self.query(Statement::new(CLOCK))?;
        let secs = rows.first().map(|row| row.cell::<f64>(0)).transpose()?;
        Ok(secs.and_then(|secs| UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(secs).ok()?)))
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        record::begin_locked(self, &name_hash(name), &[]).map(drop)
    }
}
