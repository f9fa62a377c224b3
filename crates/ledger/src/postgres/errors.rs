//! Converts failures to errors of the port. A server's error is passed on as SQLSTATE and message
//! in one line, without its details, which may quote a row.

use postgres::Error;
use postgres::error::SqlState;

use crate::given_up::says_no_answer;
use onedrop_core::ledger::LedgerError;
use onedrop_core::text;

/// Keys of the numbers that sequences give out.
const NUMBERS: [&str; 5] = [
    "onedrop_message_pkey",
    "onedrop_copy_pkey",
    "onedrop_attempt_pkey",
    "onedrop_lock_waiter_pkey",
    "onedrop_job_run_pkey",
];

const USED_NUMBER: &str = "a sequence gives out numbers that its table has, as after a restore of \
    rows alone; set it to the highest one";

pub(super) fn meaning_of(error: &Error) -> LedgerError {
    let Some(db) = error.as_db_error() else { return unavailable(error) };
    let code = db.code();
    // Deadlock, serialization failure, lock not available: another session holds the rows.
    if matches!(code.code(), "40P01" | "40001" | "55P03") {
        return LedgerError::Contended;
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return LedgerError::Denied(text_of(error));
    }
    // A text that began with the SQLSTATE would say that another session has put the row there.
    let is_number = |key: &str| NUMBERS.contains(&key);
    if *code == SqlState::UNIQUE_VIOLATION && db.constraint().is_some_and(is_number) {
        return LedgerError::Refused(format!("{USED_NUMBER}: {}", text_of(error)));
    }
    match is_of_the_session(code.code()) {
        true => unavailable(error),
        false => LedgerError::Refused(text_of(error)),
    }
}

/// Connection, resources, operator intervention, a time-out of idle time or of the transaction, a
/// standby: another session may succeed.
fn is_of_the_session(code: &str) -> bool {
    matches!(code.get(..2), Some("08" | "53" | "57" | "58"))
        || matches!(code, "25P03" | "25P04" | "25006")
}

/// Whether the server knows no prepared statement of this name, or another one: somebody has taken
/// ours away, or another server process answers than the one that prepared it.
pub(super) fn lacks_a_prepared_statement(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(&SqlState::INVALID_SQL_STATEMENT_NAME | &SqlState::DUPLICATE_PSTATEMENT)
    )
}

pub(super) fn unavailable(error: &Error) -> LedgerError {
    LedgerError::Unavailable(text_of(error))
}

/// Whether the server refuses the login: invalid authorization (28000, 28P01), no such database
/// (3D000), or no right to connect to it (42501).
pub(super) fn refuses_login(error: &Error) -> bool {
    error.as_db_error().is_some_and(|db| {
        db.code().code().starts_with("28")
            || [SqlState::INVALID_CATALOG_NAME, SqlState::INSUFFICIENT_PRIVILEGE]
                .contains(db.code())
    })
}

/// Whether an answer did not come in time: by our own clock, or by the `statement_timeout` that we
/// set (57014, query_canceled).
pub(super) fn is_late(error: &LedgerError) -> bool {
    let is_late = |text: &str| text.starts_with("57014") || says_no_answer(text);
    matches!(error, LedgerError::Unavailable(text) if is_late(text))
}

/// SQLSTATE and message, or the chain of causes; one line, bounded.
pub(super) fn text_of(error: &Error) -> String {
    let said = match error.as_db_error() {
        Some(db) => format!("{} {}", db.code().code(), db.message()),
        None => {
            let mut said = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                said = format!("{said}: {cause}");
                source = cause.source();
            }
            said
        }
    };
    text::within(text::without_number(&said), 300).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_ran_out_of_time_says_nothing_of_others() {
        for code in ["25P03", "25P04", "25006", "57014", "57P01", "08006"] {
            assert!(is_of_the_session(code), "{code}");
        }
        for code in ["25001", "42P01", "23505"] {
            assert!(!is_of_the_session(code), "{code}");
        }
    }
}
