//! Several calls of one function in one statement, and so in one transaction: one round trip, one commit. The functions are
//! volatile: each call sees what was committed before it began, and what the calls before it did.

use std::sync::OnceLock;

use postgres::Row;

use super::columns::cell;
use super::session::Session;
use crate::ledger::{LedgerError, TOGETHER};

/// In company nobody waits for longer than that for a lock of others, in milliseconds; alone one may.
const IN_COMPANY_MS: i64 = 500;

/// A function that returns rows, and how many parameters it has.
pub(super) struct Calls {
    function: &'static str,
    parameters: usize,
    texts: OnceLock<Vec<String>>,
}

impl Calls {
    pub const fn new(function: &'static str, parameters: usize) -> Calls {
        Calls { function, parameters, texts: OnceLock::new() }
    }

    /// `count` calls; the rows of each begin with its number, from 0.
    pub fn sql(&'static self, count: usize) -> Result<&'static str, LedgerError> {
        let texts = self.texts.get_or_init(|| (1..=TOGETHER).map(|count| self.text(count)).collect());
        let text = count.checked_sub(1).and_then(|at| texts.get(at));
        text.map(String::as_str).ok_or_else(|| LedgerError::Broken(format!("{count} calls in one, {TOGETHER} at most")))
    }

    fn text(&self, count: usize) -> String {
        let call = |number: usize| {
            let parameters = (1..=self.parameters).map(|one| format!("${}", number * self.parameters + one));
            let parameters = parameters.collect::<Vec<_>>().join(", ");
            format!("SELECT {number}, f.* FROM {}({parameters}) f", self.function)
        };
        (0..count).map(call).collect::<Vec<_>>().join(" UNION ALL ")
    }

    /// The rows of each of `count` calls.
    pub fn answers<'r>(&self, rows: &'r [Row], count: usize) -> Result<Vec<&'r [Row]>, LedgerError> {
        let mut answers: Vec<&[Row]> = vec![&[]; count];
        let mut rest = rows;
        while let Some(row) = rest.first() {
            let number = |row: &Row| cell::<i32>(row, 0).ok().and_then(|number| usize::try_from(number).ok());
            let own = number(row);
            let many = rest.iter().take_while(|row| number(row) == own).count();
            let (rows, others) = rest.split_at(many);
            let answer = own.and_then(|own| answers.get_mut(own));
            *answer.ok_or_else(|| LedgerError::Broken(format!("{}: an answer to no call", self.function)))? = rows;
            rest = others;
        }
        Ok(answers)
    }
}

/// How long the server may wait for a lock, of others, for one of `count` calls.
pub(super) fn patience_ms(session: &Session, count: usize) -> i64 {
    match count {
        1 => session.patience_ms(),
        _ => session.patience_ms().min(IN_COMPANY_MS),
    }
}

/// What came of the only one.
pub(super) fn only<T>(all: Vec<Result<T, LedgerError>>) -> Result<T, LedgerError> {
    let missing = || Err(LedgerError::Broken("a call without an answer".to_owned()));
    all.into_iter().next().unwrap_or_else(missing)
}
