//! What a delivery asks of MariaDB. A turn is a transaction that holds a slot and no other row
//! while the store works; the receipt and COMMIT end it. Without a turn no transaction is open
//! meanwhile. A crash before a commit leaves nothing, a crash after it rows, and leases that run
//! out. If a lock is lost, for example in a fail-over, unique keys still prevent a second row of a
//! message or copy.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::connection::{MariadbSession, first, rows_at};
use super::dialect::spelt;
use super::statement::{SqlBatch, values};
use super::{attempts, newly, receipts, record, schema};
use crate::sql::{claims, kept};
use crate::{Committed, Session, ToRecord, TurnState};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    Attempt, AttemptEnd, Claim, CopyState, Due, LeaseTerms, LedgerError, MessageKey, PlannedStep,
    Program, SchemaVersion, ToConfirm,
};
use onedrop_core::lock_key::{Hash, name_hash};
use onedrop_core::message::Identity;
use onedrop_core::receipt::Receipt;

impl Session for MariadbSession {
    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        MariadbSession::renew(self, until)
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        MariadbSession::reopen(self, until)
    }

    fn commit(
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

    fn claim(
        &mut self,
        message: &MessageKey,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        let claimed = claims::claim_again(self, message, destinations, owner, terms);
        if claimed.is_err() {
            self.rollback_or_lose();
        }
        claimed
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

    fn keep(&mut self, message: &MessageKey, bytes: &[u8], why: &str) -> Result<bool, LedgerError> {
        let result = kept::keep(self, message, bytes, why);
        if result.is_err() {
            self.rollback_or_lose();
        }
        result
    }

    fn kept(&mut self, message: &MessageKey) -> Result<Option<String>, LedgerError> {
        kept::kept(self, message)
    }

    fn has_copy(
        &mut self,
        identity: &Identity,
        destination: &Destination,
    ) -> Result<bool, LedgerError> {
        let Destination { account, mailbox, .. } = destination;
        let sql = "SELECT 1 FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id
                   WHERE m.id_hash = ?1 AND m.digest = ?2 AND c.account = ?3 AND c.mailbox = ?4";
        let (id, digest) = (&identity.id_hash, &identity.digest);
        let values = values![id, digest, account.as_bytes(), mailbox.as_bytes()];
        Ok(!self.query(sql, values)?.is_empty())
    }

    fn has_placed_copy(&mut self, account: &str) -> Result<bool, LedgerError> {
        // Those that it was refused come last: the first rows read decide.
        let sql = "SELECT 1 FROM onedrop_copy WHERE account = ?1 AND placed_at IS NOT NULL
                   ORDER BY account, message_id LIMIT 1";
        Ok(!self.query(sql, values![account.as_bytes()])?.is_empty())
    }

    fn account_reached(&mut self, addresses: &[&str]) -> Result<Option<String>, LedgerError> {
        attempts::reached(self, addresses)
    }

    fn receipt_before(
        &mut self,
        message: i64,
        place: (&Destination, &str),
        earlier: Duration,
    ) -> Result<Option<Receipt>, LedgerError> {
        receipts::before(self, message, place, earlier)
    }

    fn keep_until_due(
        &mut self,
        message: &MessageKey,
        destination: &Destination,
        kept: (&[u8], &str),
        after: Duration,
    ) -> Result<Due, LedgerError> {
        let due = kept::keep_until_due(self, message, destination, kept, after);
        if due.is_err() {
            self.rollback_or_lose();
        }
        due
    }

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError> {
        match claims.is_empty() {
            true => Ok(()),
            false => claims::give_back(self, claims),
        }
    }

    fn finish(
        &mut self,
        identity: &Identity,
        recorded: Option<(i64, &AttemptEnd)>,
        others: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        record::finish(self, identity, recorded, others)
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

    fn shared_config(&mut self) -> Result<Option<String>, LedgerError> {
        schema::shared_config(self)
    }

    fn share_config(&mut self, json: &str, read: Option<&str>) -> Result<(), LedgerError> {
        let mut batch = SqlBatch::default();
        schema::share(&mut batch, json, read);
        self.write(batch).map(drop)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        schema::migrate(self)
    }

    fn clock(&mut self) -> Result<Option<SystemTime>, LedgerError> {
        let secs = first::<f64>(&self.query(record::NOW, &[])?)?;
        Ok(secs.and_then(|secs| UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(secs).ok()?)))
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        let mut batch = SqlBatch::default();
        record::lock_slot(&mut batch, &name_hash(name));
        self.begin(batch).map(drop)
    }
}
