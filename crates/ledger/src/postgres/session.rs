//! What a delivery asks of Postgres. A turn is a transaction that holds the copy's lock and no row
//! lock while the store works; the receipt and COMMIT end it in one round trip. Without a turn no
//! transaction is open meanwhile. A crash before a commit leaves nothing, a crash after it rows,
//! and leases that run out. If a lock is lost, for example in a fail-over, unique keys still
//! prevent a second row of a message or copy.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postgres::types::Type;

use super::columns;
use super::connection::{Connection, Statement};
use super::{fast, migrate, schema};
use crate::rows::{self, SqlRow};
use crate::sql::{SqlSession, claims, first, kept, rows_at, sql};
use crate::{Committed, Session, ToRecord, TurnState};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    Attempt, AttemptEnd, Claim, CopyState, Due, LeaseTerms, LedgerError, MessageKey, PlannedStep,
    Program, SchemaVersion, ToConfirm,
};
use onedrop_core::lock_key::{Hash, advisory_key, name_hash};
use onedrop_core::message::Identity;
use onedrop_core::receipt::Receipt;
use onedrop_core::text;

const CLOCK: &str = "SELECT extract(epoch FROM clock_timestamp())::float8";

/// Of recipients $1. The text of an attempt that delivered names the accounts of its copies.
const REACHED: &str = "
SELECT account FROM (
    SELECT (SELECT c.account FROM onedrop_copy c
            WHERE c.message_id = a.message_id AND NOT c.shared AND c.placed_at IS NOT NULL
              AND (c.attempt_id = a.id OR a.outcome = 'delivered'
                   AND position('account=' || c.account || ' ' IN a.detail) > 0)
            LIMIT 1) AS account
    FROM onedrop_attempt a
    WHERE lower(a.recipient) COLLATE \"C\"
          = ANY (ARRAY(SELECT lower(one) FROM unnest($1::text[]) one))
      AND a.message_id IS NOT NULL AND coalesce(a.outcome, 'delivered') = 'delivered'
) reached WHERE account IS NOT NULL LIMIT 1";

const FINISH: &str = "
UPDATE onedrop_attempt SET duration_ms = least($2, 2147483647), outcome = $3, status = $4,
       detail = $5, reason = $6
WHERE id = $1 AND message_id = (SELECT id FROM onedrop_message WHERE id_hash = $7 AND digest = $8)";

const INSERT_ENDED_ATTEMPT: &str = "
WITH known AS (
    SELECT id, sender FROM onedrop_message WHERE id_hash = $1 AND digest = $2 FOR KEY SHARE
)
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid,
                             started_at, duration_ms, outcome, status, detail,
                             reason)
SELECT k.id, CASE WHEN k.id IS NULL THEN $1 END, $3, nullif($4, k.sender), $5, $6, $7,
       clock_timestamp() - $8 * interval '1 millisecond', least($8, 2147483647), $9, $10, $11, $12
FROM (SELECT) one LEFT JOIN known k ON true";

impl Session for Connection {
    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        Connection::renew(self, until)
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        Connection::reopen(self, until)
    }

    fn commit(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError> {
        fast::commit(self, records, receipts)
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
        let lock = sql!("SELECT pg_try_advisory_xact_lock(?1)", advisory_key(copy_key));
        // Sees what was committed before the lock was taken; no row is locked while the store
        // works.
        let answers = SqlSession::begin(self, &[lock, claims::read_claimed(claim, false)])?;
        let turn = match first(&answers, 0)? {
            Some(true) => claims::turn(claim, rows_at(&answers, 1)),
            _ => Err(LedgerError::Contended),
        };
        if !matches!(turn, Ok(TurnState::Ours { .. })) {
            self.rollback_or_lose();
        }
        turn
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.rollback()
    }

    fn keep(&mut self, message: &MessageKey, bytes: &[u8], why: &str) -> Result<bool, LedgerError> {
        kept::keep(self, message, bytes, why).inspect_err(|_| self.rollback_or_lose())
    }

    fn kept(&mut self, message: &MessageKey) -> Result<Option<String>, LedgerError> {
        kept::kept(self, message)
    }

    fn has_copy(
        &mut self,
        identity: &Identity,
        destination: &Destination,
    ) -> Result<bool, LedgerError> {
        let sql = "SELECT 1 FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id
                   WHERE m.id_hash = $1 AND m.digest = $2 AND c.account = $3 AND c.mailbox = $4";
        let statement = Statement::new(sql)
            .with(identity.id_hash.as_slice(), Type::BYTEA)
            .with(identity.digest.as_slice(), Type::BYTEA)
            .with(destination.account.as_str(), Type::TEXT)
            .with(destination.mailbox.as_str(), Type::TEXT);
        Ok(!self.query(statement)?.is_empty())
    }

    fn has_placed_copy(&mut self, account: &str) -> Result<bool, LedgerError> {
        // Those that it was refused come last: the first rows read decide.
        let sql = "SELECT 1 FROM onedrop_copy WHERE account = $1 AND placed_at IS NOT NULL
                   ORDER BY account, message_id LIMIT 1";
        if account.contains('\0') {
            return Ok(false); // text in Postgres cannot hold it
        }
        Ok(!self.query(Statement::new(sql).with(account, Type::TEXT))?.is_empty())
    }

    fn account_reached(&mut self, addresses: &[&str]) -> Result<Option<String>, LedgerError> {
        let recipients: Vec<_> =
            addresses.iter().map(|one| text::within(one, columns::INDEXED)).collect();
        let rows = self.query(Statement::new(REACHED).with(recipients, Type::TEXT_ARRAY))?;
        rows.first().map(|row| row.cell(0)).transpose()
    }

    fn receipt_before(
        &mut self,
        message: i64,
        (destination, kind): (&Destination, &str),
        earlier: Duration,
    ) -> Result<Option<Receipt>, LedgerError> {
        let secs = rows::secs_before(earlier);
        let then = format!("m.recorded_at - interval '{secs} seconds'");
        let sql = rows::receipt_before_sql(&then).replace('?', "$");
        let statement = Statement::new(sql)
            .with(message, Type::INT8)
            .with(destination.account.as_str(), Type::TEXT)
            .with(destination.mailbox.as_str(), Type::TEXT)
            .with(kind, Type::TEXT);
        self.query(statement)?.first().map(|row| rows::receipt(row, 0)).transpose()
    }

    fn keep_until_due(
        &mut self,
        message: &MessageKey,
        destination: &Destination,
        kept: (&[u8], &str),
        after: Duration,
    ) -> Result<Due, LedgerError> {
        kept::keep_until_due(self, message, destination, kept, after)
            .inspect_err(|_| self.rollback_or_lose())
    }

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError> {
        claims::give_back(self, claims)
    }

    fn finish(
        &mut self,
        identity: &Identity,
        recorded: Option<(i64, &AttemptEnd)>,
        others: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        let own = recorded.map(|(attempt, end)| {
            columns::end(Statement::new(FINISH).with(attempt, Type::INT8), Some(end))
                .with(identity.id_hash.as_slice(), Type::BYTEA)
                .with(identity.digest.as_slice(), Type::BYTEA)
        });
        let others = others.iter().map(|(attempt, end)| {
            let statement = Statement::new(INSERT_ENDED_ATTEMPT)
                .with(identity.id_hash.as_slice(), Type::BYTEA)
                .with(identity.digest.as_slice(), Type::BYTEA);
            columns::end(columns::by(statement, attempt), Some(end))
        });
        // The message's row first, as a purge locks it: neither waits for the other crosswise.
        self.write(&others.chain(own).collect::<Vec<_>>()).map(drop)
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

    fn shared_config(&mut self) -> Result<Option<String>, LedgerError> {
        schema::shared_config(self)
    }

    fn share_config(&mut self, json: &str, read: Option<&str>) -> Result<(), LedgerError> {
        schema::share_config(self, json, read)
    }

    fn clock(&mut self) -> Result<Option<SystemTime>, LedgerError> {
        let rows = self.query(Statement::new(CLOCK))?;
        let secs = rows.first().map(|row| row.cell::<f64>(0)).transpose()?;
        Ok(secs.and_then(|secs| UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(secs).ok()?)))
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        let statement = Statement::new("SELECT pg_try_advisory_xact_lock($1)")
            .with(advisory_key(&name_hash(name)), Type::INT8);
        if self.begin(&statement)?.first().map(|row| row.cell(0)).transpose()? == Some(true) {
            return Ok(());
        }
        self.rollback_or_lose();
        Err(LedgerError::Contended)
    }
}
