//! The administrator's query for an account. It runs in a read-only transaction, as a prepared
//! statement: its parameters never become a part of its text.

use std::time::Instant;

use mysql_async::Value as Param;

use super::MariadbLedger;
use super::connection::MariadbSession;
use super::errors::is_late;
use onedrop_core::directory::{Asked, Home};
use onedrop_core::ledger::{Accounts, LedgerError};

impl Accounts for MariadbLedger {
    fn account_by_query(
        &self,
        query: &str,
        asked: &Asked,
        until: Instant,
    ) -> Result<Option<Home>, LedgerError> {
        let (sql, numbers) = with_marks(query);
        self.call(until, |connection| by_query(connection, &sql, &numbers, asked))
    }
}

fn by_query(
    connection: &mut MariadbSession,
    sql: &str,
    numbers: &[u32],
    asked: &Asked,
) -> Result<Option<Home>, LedgerError> {
    let refused = |text: &str| Err(LedgerError::Refused(format!("the directory's query {text}")));
    let mut params = Vec::new();
    for number in numbers {
        params.push(Param::from(match number {
            1 => &asked.address,
            2 => &asked.given,
            _ => return refused("knows $1 and $2 alone"),
        }));
    }
    if params.is_empty() {
        return refused("does not use $1: in quotes it is a text like any other");
    }
    let (columns, rows) = connection.foreign_query(sql, params).map_err(explained)?;
    if !(1..=2).contains(&columns) {
        return refused("must return one column, the account, or two, the account and a mailbox");
    }
    let mut homes = Vec::new();
    for row in &rows {
        match (text(row.as_ref(0)), text(row.as_ref(1))) {
            (Ok(Some(account)), Ok(mailbox)) => homes.push(Home { account, mailbox }),
            (Ok(None), Ok(_)) => {}
            _ => return refused("must return texts"),
        }
    }
    homes.dedup();
    match homes.len() {
        0 | 1 => Ok(homes.pop()),
        _ => refused("names more than one account"),
    }
}

/// A column's text, if there is one in it.
fn text(value: Option<&Param>) -> Result<Option<String>, ()> {
    let text = match value {
        None | Some(Param::NULL) => return Ok(None),
        Some(Param::Bytes(bytes)) => String::from_utf8(bytes.clone()).map_err(drop)?,
        Some(Param::Int(number)) => number.to_string(),
        Some(Param::UInt(number)) => number.to_string(),
        Some(_) => return Err(()),
    };
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn explained(error: LedgerError) -> LedgerError {
    match error {
        late if is_late(&late) => LedgerError::TookTooLong("directory.query".to_owned()),
        LedgerError::Refused(text) if text.starts_with("1792 ") => {
            LedgerError::Refused(format!("the directory's query must not write: {text}"))
        }
        LedgerError::Refused(text) => {
            LedgerError::Refused(format!("the directory's query: {text}"))
        }
        other => other,
    }
}

/// The query with a question mark for each `$1` and `$2`, and their numbers in that order. Quoted
/// text and comments stay as they are; a question mark of the query's own is left for the server
/// to refuse.
fn with_marks(query: &str) -> (String, Vec<u32>) {
    let query = query.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    let (mut sql, mut numbers) = (String::with_capacity(query.len()), Vec::new());
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '\'' | '"' | '`' => quoted(rest, first),
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '-' if is_comment(rest) => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '$' => {
                let digits = &rest[1..];
                let digits =
                    digits.len() - digits.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                // After a letter it is a part of a name.
                let is_name = sql.ends_with(|c: char| c.is_alphanumeric() || c == '_');
                if digits > 0 && !is_name {
                    numbers.push(rest[1..=digits].parse().unwrap_or(u32::MAX));
                    sql.push('?');
                    rest = &rest[1 + digits..];
                    continue;
                }
                1
            }
            other => other.len_utf8(),
        };
        sql.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    (sql, numbers)
}

/// Two hyphens and a blank or the end (MariaDB, "Comment Syntax").
fn is_comment(text: &str) -> bool {
    let behind = text.strip_prefix("--").map(|behind| behind.chars().next());
    behind.is_some_and(|next| next.is_none_or(|c| c.is_whitespace() || c.is_control()))
}

/// Bytes of the quoted text at the beginning of `text`, with its quotes; doubled quotes are two
/// texts side by side. A backslash escapes, but not in names.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if quote != '`' => is_escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_where_they_are_parameters() {
        for (query, sql, numbers) in [
            ("SELECT a FROM t WHERE b = $1;", "SELECT a FROM t WHERE b = ?", vec![1]),
            ("SELECT $2, $1,$12", "SELECT ?, ?,?", vec![2, 1, 12]),
            ("SELECT '$1', \"$1\", `$1`, $1", "SELECT '$1', \"$1\", `$1`, ?", vec![1]),
            ("SELECT 'it''s $1' = $1", "SELECT 'it''s $1' = ?", vec![1]),
            ("SELECT 'a\\'$1' = $1", "SELECT 'a\\'$1' = ?", vec![1]),
            ("SELECT 1 -- $1\n + $1 # $1", "SELECT 1 -- $1\n + ? # $1", vec![1]),
            ("SELECT 1 --$1", "SELECT 1 --?", vec![1]),
            ("SELECT /* $1 */ $1", "SELECT /* $1 */ ?", vec![1]),
            ("SELECT a$1, $x, 'open $1", "SELECT a$1, $x, 'open $1", vec![]),
            ("", "", vec![]),
        ] {
            assert_eq!(with_marks(query), (sql.to_owned(), numbers), "{query}");
        }
    }
}
