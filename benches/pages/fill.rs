//! Rows into tables, as fast as each engine takes them: COPY, LOAD DATA, or a prepared statement.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use rusqlite::types::Value;

use crate::rows::{Cell, Row};
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::set_mode;

/// A place for the rows of one ledger.
pub enum Sink<'a> {
    /// And a folder that its server can read.
    Postgres(&'a Postgres, &'a Path),
    Mariadb(&'a Mariadb, &'a Path),
    Sqlite(rusqlite::Connection),
}

impl Sink<'_> {
    /// Rows may leave out columns, which are null then, but the first has all of them.
    pub fn fill(&mut self, table: &str, rows: &[Row]) {
        let Some(first) = rows.first() else { return };
        let columns: Vec<&str> = first.iter().map(|(name, _)| *name).collect();
        match self {
            Sink::Postgres(postgres, folder) => {
                let file = write(folder, &columns, rows, postgres_text);
                let columns = columns.join(", ");
                postgres.psql(&format!("COPY {table} ({columns}) FROM '{file}'"));
            }
            Sink::Mariadb(mariadb, folder) => {
                let file = write(folder, &columns, rows, mariadb_text);
                mariadb.sql(&load_data(table, &file, first));
            }
            Sink::Sqlite(ledger) => insert(ledger, table, &columns, rows),
        }
    }
}

fn cell<'a>(row: &'a Row, column: &str) -> &'a Cell {
    row.iter().find(|(name, _)| *name == column).map_or(&Cell::Null, |(_, cell)| cell)
}

/// Lines with tabs, which both servers read; returns the file's path.
fn write(folder: &Path, columns: &[&str], rows: &[Row], text: fn(&mut String, &Cell)) -> String {
    let path = folder.join("rows");
    let mut file = BufWriter::new(File::create(&path).expect("a file"));
    set_mode(&path, 0o644);
    let mut line = String::new();
    for row in rows {
        line.clear();
        for (at, column) in columns.iter().enumerate() {
            if at > 0 {
                line.push('\t');
            }
            text(&mut line, cell(row, column));
        }
        line.push('\n');
        file.write_all(line.as_bytes()).expect("a line");
    }
    file.flush().expect("the rest");
    path.display().to_string()
}

fn postgres_text(line: &mut String, cell: &Cell) {
    match cell {
        Cell::Bytes(bytes) => {
            line.push_str("\\\\x");
            hex(line, bytes);
        }
        Cell::Time(secs) => write!(line, "{}+00", time(*secs)).expect("text"),
        other => plain(line, other),
    }
}

fn mariadb_text(line: &mut String, cell: &Cell) {
    match cell {
        Cell::Bytes(bytes) => hex(line, bytes),
        Cell::Time(secs) => line.push_str(&time(*secs)),
        other => plain(line, other),
    }
}

fn plain(line: &mut String, cell: &Cell) {
    match cell {
        Cell::Number(number) => write!(line, "{number}").expect("text"),
        Cell::Flag(flag) => line.push(if *flag { '1' } else { '0' }),
        Cell::Text(text) => line.push_str(text),
        Cell::Null | Cell::Bytes(_) | Cell::Time(_) => line.push_str("\\N"),
    }
}

fn hex(line: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(line, "{byte:02x}").expect("text");
    }
}

fn time(secs: f64) -> String {
    let time = chrono::DateTime::from_timestamp_micros((secs * 1e6) as i64).expect("a time");
    time.format("%Y-%m-%d %H:%M:%S%.6f").to_string()
}

/// Bytes come as hexadecimal digits.
fn load_data(table: &str, file: &str, first: &Row) -> String {
    let (mut columns, mut set) = (Vec::new(), Vec::new());
    for (name, _) in first {
        let is_bytes = ["id_hash", "digest", "message_id_bytes", "value", "lease_value"]
            .contains(name)
            || ["account", "mailbox"].contains(name)
            || table == "onedrop_host" && *name == "host"
            || table == "onedrop_message" && *name == "message_id";
        if is_bytes {
            columns.push(format!("@{name}"));
            set.push(format!("{name} = UNHEX(@{name})"));
        } else {
            columns.push((*name).to_owned());
        }
    }
    let set = if set.is_empty() { String::new() } else { format!("SET {}", set.join(", ")) };
    format!(
        "SET unique_checks = 0, foreign_key_checks = 0;
         LOAD DATA INFILE '{file}' INTO TABLE {table} CHARACTER SET utf8mb4 ({}) {set}",
        columns.join(", ")
    )
}

fn insert(ledger: &mut rusqlite::Connection, table: &str, columns: &[&str], rows: &[Row]) {
    let of = |cell: &Cell| match cell {
        Cell::Null => Value::Null,
        Cell::Number(number) => Value::Integer(*number),
        Cell::Flag(flag) => Value::Integer(i64::from(*flag)),
        Cell::Text(text) => Value::Text(text.clone()),
        Cell::Bytes(bytes) => Value::Blob(bytes.clone()),
        // As the program writes them: whole seconds of messages, others with fractions.
        Cell::Time(secs) if secs.fract() == 0.0 => Value::Integer(*secs as i64),
        Cell::Time(secs) => Value::Real(*secs),
    };
    let marks = vec!["?"; columns.len()].join(", ");
    let sql = format!("INSERT INTO {table} ({}) VALUES ({marks})", columns.join(", "));
    let transaction = ledger.transaction().expect("a transaction");
    {
        let mut statement = transaction.prepare(&sql).expect("a statement");
        for row in rows {
            let cells = columns.iter().map(|column| of(cell(row, column)));
            statement.execute(rusqlite::params_from_iter(cells)).expect("a row");
        }
    }
    transaction.commit().expect("a commit");
}
