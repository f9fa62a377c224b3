//! A statement with its values written into it, so that several go to the server in one packet and
//! none has to be prepared first. A value is a number or hexadecimal digits, never quoted text: no
//! `sql_mode` and no character set can give a byte of it another meaning.

use std::fmt::Write;

pub use crate::sql::Value;
use onedrop_core::ledger::time_millis;

/// Writes a value as SQL.
fn write(value: &Value<'_>, sql: &mut String) {
    // Writing to a string does not fail.
    let _ = match value {
        Value::Number(Some(number)) => write!(sql, "{number}"),
        Value::Seconds(Some(secs)) => write!(sql, "{secs:.6}"),
        Value::Flag(Some(flag)) => write!(sql, "{}", u8::from(*flag)),
        Value::Bytes(Some(bytes)) => {
            hex(sql, "x", bytes);
            Ok(())
        }
        Value::Text(Some(text)) => {
            hex(sql, "_utf8mb4 x", text.as_bytes());
            Ok(())
        }
        Value::Time(Some(time)) => {
            let micros = time_millis(*time).saturating_mul(1000);
            write!(sql, "TIMESTAMPADD(MICROSECOND, {micros}, '1970-01-01')")
        }
        _ => write!(sql, "NULL"),
    };
}

fn hex(sql: &mut String, prefix: &str, bytes: &[u8]) {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    sql.reserve(2 * bytes.len() + prefix.len() + 2);
    sql.push_str(prefix);
    sql.push('\'');
    for byte in bytes {
        sql.push(DIGITS[usize::from(byte >> 4)]);
        sql.push(DIGITS[usize::from(byte & 15)]);
    }
    sql.push('\'');
}

/// Statements to be sent in one packet, one after the other.
#[derive(Default)]
pub struct SqlBatch {
    sql: String,
    count: usize,
}

impl SqlBatch {
    /// Adds a statement, in which `?1` stands for the first of `values`.
    pub fn add(&mut self, statement: &str, values: &[Value<'_>]) {
        if self.count > 0 {
            self.sql.push_str(";\n");
        }
        self.count += 1;
        let mut parts = statement.split('?');
        self.sql.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, behind) = part.split_at(digits);
            let value = number.parse::<usize>().ok().and_then(|n| values.get(n.checked_sub(1)?));
            match value {
                Some(value) => write(value, &mut self.sql),
                // As it stands: the server refuses it.
                None => self.sql.extend(["?", number]),
            }
            self.sql.push_str(behind);
        }
    }

    /// The statements of another one after these.
    pub fn append(&mut self, other: SqlBatch) {
        if other.count == 0 {
            return;
        }
        if self.count > 0 {
            self.sql.push_str(";\n");
        }
        self.sql.push_str(&other.sql);
        self.count += other.count;
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn into_sql(self) -> String {
        self.sql
    }

    /// A single statement.
    pub fn of(statement: &str, values: &[Value<'_>]) -> SqlBatch {
        let mut batch = SqlBatch::default();
        batch.add(statement, values);
        batch
    }
}

/// The values of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::sql::Value::from($value)),*] };
}
pub(super) use values;

#[cfg(test)]
mod tests {
    use super::*;

    fn sql(statement: &str, values: &[Value<'_>]) -> String {
        SqlBatch::of(statement, values).into_sql()
    }

    #[test]
    fn values_are_digits_whatever_they_hold() {
        let hostile = "'; DROP TABLE x -- \\ ?1 ß";
        let text = sql("SELECT ?1, ?2", values![hostile, hostile.as_bytes()]);
        assert!(!text.contains(['\\', ';', '?', 'ß']), "{text}");
        assert_eq!(text.matches('\'').count(), 4, "{text}");
        assert_eq!(sql("SELECT ?2, ?1", values![1i64, true]), "SELECT 1, 1");
        assert_eq!(sql("?1", values![None::<&str>]), "NULL");
        assert_eq!(sql("?1", values!["Aß"]), "_utf8mb4 x'41c39f'");
        assert_eq!(sql("?1", values![[0u8, 255].as_slice()]), "x'00ff'");
    }

    #[test]
    fn a_value_that_is_missing_is_left_to_the_server_to_refuse() {
        assert_eq!(sql("SELECT ?3 ? ?0", values![1i64]), "SELECT ?3 ? ?0");
    }

    #[test]
    fn of_twelve_values_each_stands_in_its_place() {
        let many: Vec<Value<'_>> = (1..=12).map(|n: i64| Value::from(n * 100)).collect();
        assert_eq!(sql("?12 ?1 ?2", &many), "1200 100 200");
    }
}
