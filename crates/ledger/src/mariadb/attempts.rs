//! How attempts ended: statements for a transaction.

use super::statement::{SqlBatch, Value};
use crate::rows::{self, LONGEST};
use onedrop_core::ledger::{AttemptEnd, PLAIN_STATUS};
use onedrop_core::outcome::Reason;
use onedrop_core::receipt::Receipt;
use onedrop_core::text;

/// Puts an attempt's end on record, where @onedrop_placed says that its receipt is. Where all that
/// is to be said is that it stored the copy with this number at this receipt, the copy's row says
/// it. A row that is gone is no error.
pub(super) fn end(
    batch: &mut SqlBatch,
    attempt: i64,
    ended: &AttemptEnd,
    (copy, receipt): (i64, &Receipt),
) {
    let is_plain = ended.outcome == "delivered" && ended.status == PLAIN_STATUS;
    let place = place_of(&ended.text, receipt).filter(|_| is_plain);
    let copy = place.map(|_| copy);
    let [duration, outcome, status, text, reason] = of_end(ended);
    // Assignments see those before them.
    batch.add(
        "UPDATE onedrop_attempt SET duration_ms = ?2, outcome = ?3,
             copy_id = (SELECT c.id FROM onedrop_copy c WHERE c.id = ?6
                        AND CONCAT('account=', c.account, ' mailbox=', c.mailbox) = ?7),
             status = IF(copy_id IS NULL, ?4, NULL), detail = IF(copy_id IS NULL, ?5, NULL),
             reason = IF(copy_id IS NULL, ?8, NULL)
         WHERE id = ?1 AND @onedrop_placed = 1",
        &[
            Value::from(attempt),
            duration,
            outcome,
            status,
            text,
            Value::from(copy),
            Value::from(place.map(str::as_bytes)),
            reason,
        ],
    );
}

/// The destination in a text of [`stored_text`](onedrop_core::ledger::stored_text) for this
/// receipt.
fn place_of<'a>(text: &'a str, receipt: &Receipt) -> Option<&'a str> {
    text.strip_prefix("stored ")?.strip_suffix(&receipt.to_string())?.strip_suffix(' ')
}

fn of_end(ended: &AttemptEnd) -> [Value<'_>; 5] {
    [
        Value::from(rows::millis(ended.duration)),
        Value::from(ended.outcome),
        Value::from(text::within(&ended.status, LONGEST)),
        Value::from(text::within(&ended.text, LONGEST)),
        Value::from(ended.reason.map(Reason::word)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use onedrop_core::directory::Destination;
    use onedrop_core::ledger::stored_text;

    #[test]
    fn the_place_is_what_a_stored_text_says_between_its_words() {
        let mailbox = "INBOX uid=4 ".to_owned();
        let place = Destination { account: "a b".to_owned(), mailbox, shared: false };
        let (four, five) = (Receipt::name("4"), Receipt::name("5"));
        let text = stored_text(&place, &four);
        assert_eq!(place_of(&text, &four), Some("account=a b mailbox=INBOX uid=4 "));
        assert_eq!(place_of(&text, &five), None);
        assert_eq!(place_of("found account=a mailbox=b name=4", &four), None);
    }
}
