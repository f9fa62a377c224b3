//! Converts failures to errors of the port. A server's error is passed on as number and message in
//! one line; the numbers are those of MariaDB's "Error Codes".

use mysql_async::{DriverError, Error, IoError, ServerError};

use crate::given_up::says_no_answer;
use onedrop_core::ledger::LedgerError;
use onedrop_core::text;

/// A login is refused.
pub(super) const ACCESS_DENIED: u16 = 1045;
/// No such table.
pub(super) const NO_TABLE: u16 = 1146;
/// A row with this key is there.
const DUPLICATE: u16 = 1062;
/// A column takes no NULL.
pub(super) const NO_NULL: u16 = 1048;
/// Took longer than `max_statement_time`.
const TOO_LATE: u16 = 1969;

pub(super) fn meaning_of(error: &Error) -> LedgerError {
    let Error::Server(said) = error else { return unavailable(error) };
    match said.code {
        // Lock wait time-out (NOWAIT too), deadlock: another session holds the rows; or has changed
        // them since the transaction began (innodb_snapshot_isolation, on by default from 11.6.2).
        1020 | 1205 | 1213 => LedgerError::Contended,
        // Access denied: login, database; no such database; an account that is locked or expired.
        1044 | ACCESS_DENIED | 1049 | 1130 | 1698 | 1820 | 1862 | 4151 => {
            LedgerError::Login(text_of(error))
        }
        // Table, column, a privilege of the server, routine; the text names the account.
        1142 | 1143 | 1227 | 1370 => LedgerError::Denied(text_of(error)),
        code if is_of_the_session(code) => unavailable(error),
        _ => LedgerError::Refused(text_of(error)),
    }
}

/// Connection, resources, shutdown, disk, a server that is read only, a kill, a statement that took
/// too long: another session may succeed.
fn is_of_the_session(code: u16) -> bool {
    matches!(
        code,
        1021 | 1023
            | 1026
            | 1030
            | 1037
            | 1038
            | 1040
            | 1041
            | 1043
            | 1047
            | 1053
            | 1080
            | 1114
            | 1129
            | 1135
            | 1152..=1161 | 1184 | 1203 | 1226 | 1290 | 1317 | 1836 | 1927 | 3169
    ) || code == TOO_LATE
}

pub(super) fn unavailable(error: &Error) -> LedgerError {
    LedgerError::Unavailable(text_of(error))
}

/// Whether an answer did not come in time: by our own clock, or by the server's
/// `max_statement_time`, which we set.
pub(super) fn is_late(error: &LedgerError) -> bool {
    let is_late = |text: &str| text.starts_with(&TOO_LATE.to_string()) || says_no_answer(text);
    matches!(error, LedgerError::Unavailable(text) if is_late(text))
}

/// Whether a row with this key was there already.
pub(super) fn is_duplicate(error: &LedgerError) -> bool {
    is_refused_with(error, DUPLICATE)
}

/// Whether the server refused a statement with this error.
pub(super) fn is_refused_with(error: &LedgerError, code: u16) -> bool {
    let is_it =
        |text: &str| text.split(' ').next().and_then(|word| word.parse().ok()) == Some(code);
    matches!(error, LedgerError::Refused(text) if is_it(text))
}

fn is_tls(error: &std::io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

/// Number and message, or the chain of causes; one line, bounded.
pub(super) fn text_of(error: &Error) -> String {
    let said = match error {
        Error::Server(ServerError { code, message, .. }) => format!("{code} {message}"),
        // These would be quoted twice.
        Error::Io(IoError::Io(error)) if is_tls(error) => format!("TLS: {error}"),
        Error::Io(IoError::Io(error)) => error.to_string(),
        Error::Io(IoError::Tls(error)) => format!("TLS: {error}"),
        Error::Driver(DriverError::NoClientSslFlagFromServer) => {
            "the server offers no TLS, and the URL asks for it (sslmode)".to_owned()
        }
        Error::Driver(error) => error.to_string(),
        other => other.to_string(),
    };
    text::within(text::without_number(&said), 300).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_another_session_holds_or_has_changed_are_contended() {
        for (code, is_contended) in [(1205, true), (1213, true), (1020, true), (1146, false)] {
            let (message, state) = (String::new(), "HY000".to_owned());
            let meant = meaning_of(&Error::Server(ServerError { code, message, state }));
            assert_eq!(matches!(meant, LedgerError::Contended), is_contended, "{code}: {meant:?}");
        }
    }
}
