//! What a delivery asks of MariaDB. A turn is a transaction that holds a slot and no other row
//! while the store works; the receipt and COMMIT end it. Without a turn no transaction is open
//! meanwhile. A crash before a commit leaves nothing, a crash after it rows, and leases that run
//! out. If a lock is lost, for example in a fail-over, unique keys still prevent a second row of a
//! message or copy.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::connection::{MariadbSession, first, rows_at};
use super::dialect::spelt;
use super::statement::SqlBatch;
use super::{newly, receipts, record, schema};
use crate::sql::claims;
use crate::{Committed, Session, ToRecord, TurnState};
use onedrop_core::ledger::{Claim, LedgerError, PlannedStep, Program, SchemaVersion, ToConfirm};
use onedrop_core::lock_key::{Hash, name_hash};

/// Seconds since 1970 by the server's clock.
const NOW: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 0.000001";

impl Session for MariadbSession {
    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        MariadbSession::renew(self, until)
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        MariadbSession::reopen(self, until)
    }

    fn record_and_confirm(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError> {
        let mut committed = Committed::default();
        for one in records {
            let recorded = match newly::record(self, one) {
                Ok(None) => record::record(self, one),
                Ok(Some(recorded)) => Ok(recorded),
                Err(error) => Err(error),
            };
            if recorded.is_err() {
                self.rollback_or_lose();
            }
            committed.recorded.push(Some(recorded));
        }
        for one in receipts {
            let confirmed = receipts::confirm(self, one);
            if confirmed.is_err() {
                self.rollback_or_lose();
            }
            committed.confirmed.push(Some(confirmed));
        }
        Ok(committed)
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<TurnState, LedgerError> {
        let mut batch = SqlBatch::default();
        record::lock_slot(&mut batch, copy_key);
        // Sees what was committed before the lock was taken; no row is locked while the store
        // works.
        batch.append(spelt(&[claims::read_claimed(claim, false)]));
        let answers = self.begin(batch)?;
        let turn = claims::turn(claim, rows_at(&answers, 1));
        if !matches!(turn, Ok(TurnState::Ours { .. })) {
            self.rollback_or_lose();
        }
        turn
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.rollback()
    }

    fn program(&self) -> &Program {
        MariadbSession::program(self)
    }

    fn schema_version(&mut self) -> Result<SchemaVersion, LedgerError> {
        schema::version(self)
    }

    fn planned_migration(&mut self) -> Result<Vec<PlannedStep>, LedgerError> {
        schema::planned(self)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        schema::migrate(self)
    }

    fn clock(&mut self) -> Result<Option<SystemTime>, LedgerError> {
        let secs = first::<f64>(&self.query(NOW, &[])?)?;
        Ok(secs.and_then(|secs| UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(secs).ok()?)))
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        let mut batch = SqlBatch::default();
        record::lock_slot(&mut batch, &name_hash(name));
        self.begin(batch).map(drop)
    }
}
