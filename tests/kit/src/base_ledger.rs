//! A ledger as the base version left it, with mail: what its migration makes, then the rows of
//! `fixtures/base-ledger`. Among them is the digest of that migration as it was released: a program
//! with another text refuses the ledger.

use postgres::{Client, NoTls};
use rusqlite::Connection;

use super::fixture_text;
use super::mariadb::Mariadb;
use super::postgres::Postgres;

/// Makes it in the test's database, which is empty.
pub fn load_into_postgres(server: &Postgres) {
    let session = Client::connect(&server.url_socket(), NoTls);
    let loaded = session.and_then(|mut session| session.batch_execute(&text("postgres")));
    loaded.unwrap_or_else(|error| panic!("the base ledger: {error:?}"));
}

/// Makes it in an empty database of the test's user.
pub fn load_into_mariadb(server: &Mariadb, database: &str) {
    server.sql_of_user(database, &text("mariadb"));
}

/// Makes it in a new file.
pub fn load_into_sqlite(ledger: &Connection) {
    let sql = format!("BEGIN;\n{}COMMIT", text("sqlite"));
    ledger.execute_batch(&sql).expect("the base ledger");
}

fn text(engine: &str) -> String {
    let schema = format!("crates/ledger/src/migrations/{engine}/0010_base.sql");
    let rows = format!("fixtures/base-ledger/{engine}.sql");
    fixture_text(schema) + &fixture_text(rows)
}
