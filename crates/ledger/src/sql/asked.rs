//! What a delivery asks of what is on record, and nothing is written.

use std::time::Duration;

use super::{Sql, SqlSession, first, sql, values};
use crate::rows::{self, INDEXED};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::LedgerError;
use onedrop_core::message::Identity;
use onedrop_core::receipt::Receipt;
use onedrop_core::text;

pub(crate) const COPY_AT: &str = "
SELECT 1 FROM onedrop_message m {then} onedrop_copy c ON c.message_id = m.id
WHERE {hashed(m.id_hash, ?1)} AND {digested(m.digest, ?2)} AND c.account = ?3 AND c.mailbox = ?4";

/// Of an account. Those that it was refused come last: the first rows read decide.
pub(crate) const A_PLACED_ONE: &str = "
SELECT 1 FROM onedrop_copy WHERE account = ?1 AND placed_at IS NOT NULL
ORDER BY account, message_id LIMIT 1";

/// Of a recipient: by an attempt that ended in its copy's row, or by the text of one that
/// delivered, which names the accounts of its copies.
pub(crate) const REACHED: &str = "
SELECT * FROM (
    SELECT account FROM onedrop_copy
    WHERE {folded(recipient)} = {fold(?1, ?2)} AND attempt_ms IS NOT NULL AND NOT shared
      AND placed_at IS NOT NULL LIMIT 1) one
UNION ALL
SELECT * FROM (
    SELECT account FROM (
        SELECT (SELECT c.account FROM onedrop_copy c
                WHERE c.message_id = a.message_id AND NOT c.shared AND c.placed_at IS NOT NULL
                  AND {tells(a.detail, c.account)}
                LIMIT 1) AS account
        FROM onedrop_attempt a
        WHERE {folded(a.recipient)} = {fold(?1, ?2)} AND a.message_id IS NOT NULL
          AND a.outcome = 'delivered') reached
    WHERE account IS NOT NULL LIMIT 1) other";

/// How many of an account's copies are looked through at most for a receipt that was there before.
const LOOKED_THROUGH: u32 = 1000;

/// Of the kind ?4, there before message ?1, in the account ?2 and the mailbox ?3; the account's
/// copies come by their index. A copy that was settled since may have a later receipt.
pub(crate) fn receipt_before_sql(earlier: Duration) -> String {
    let secs = earlier.saturating_add(rows::THERE_BEFORE).as_secs();
    format!(
        "SELECT receipt_kind, receipt FROM (
             SELECT mailbox, receipt_kind, receipt, placed_at, settled_at, message_id
             FROM onedrop_copy
             WHERE account = ?2 AND message_id < ?1
             ORDER BY message_id DESC LIMIT {LOOKED_THROUGH}) recent
         WHERE mailbox = ?3 AND receipt_kind = ?4 AND settled_at IS NULL
           AND placed_at < (SELECT {{less(m.recorded_at, {secs})}}
                            FROM onedrop_message m WHERE m.id = ?1)
         ORDER BY placed_at DESC, message_id DESC LIMIT 1"
    )
}

/// [`Ledger::has_copy`](onedrop_core::ledger::Ledger::has_copy).
pub(crate) fn has_copy<S: SqlSession>(
    session: &mut S,
    identity: &Identity,
    destination: &Destination,
) -> Result<bool, LedgerError> {
    let Destination { account, mailbox, .. } = destination;
    let query = sql!(COPY_AT, &identity.id_hash, &identity.digest, account, mailbox);
    Ok(!session.rows(&query)?.is_empty())
}

/// [`Ledger::has_placed_copy`](onedrop_core::ledger::Ledger::has_placed_copy).
pub(crate) fn has_placed_copy<S: SqlSession>(
    session: &mut S,
    account: &str,
) -> Result<bool, LedgerError> {
    Ok(!session.rows(&sql!(A_PLACED_ONE, account))?.is_empty())
}

/// [`Ledger::account_reached`](onedrop_core::ledger::Ledger::account_reached).
pub(crate) fn account_reached<S: SqlSession>(
    session: &mut S,
    addresses: &[&str],
) -> Result<Option<String>, LedgerError> {
    let of_one = |address: &&str| {
        let lower = address.to_lowercase();
        let recorded = |name: &str| text::within(name, INDEXED).into_owned();
        sql!(REACHED, recorded(address), recorded(&lower))
    };
    let queries: Vec<Sql<'_>> = addresses.iter().map(of_one).collect();
    for answer in session.read(&queries)? {
        if let Some(account) = first(&[answer], 0)? {
            return Ok(Some(account));
        }
    }
    Ok(None)
}

/// [`Ledger::receipt_before`](onedrop_core::ledger::Ledger::receipt_before).
pub(crate) fn receipt_before<S: SqlSession>(
    session: &mut S,
    message: i64,
    (destination, kind): (&Destination, &str),
    earlier: Duration,
) -> Result<Option<Receipt>, LedgerError> {
    let Destination { account, mailbox, .. } = destination;
    let values = values![message, account, mailbox, kind];
    let query = Sql { text: receipt_before_sql(earlier).into(), values };
    session.rows(&query)?.first().map(|row| rows::receipt(row, 0)).transpose()
}
