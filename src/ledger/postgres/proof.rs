//! Proofs about mail servers; see [`Ledger::is_proven`](crate::ledger::Ledger::is_proven).

use postgres::types::Type;

use super::columns::cell;
use super::connection::{Connection, Statement};
use crate::ledger::LedgerError;
use crate::login::Way;

const IS_PROVEN: &str =
    "SELECT count(*) FROM onedrop_proof WHERE server = $1 AND login_user = $2 AND way = $3";
const PUT: &str =
    "INSERT INTO onedrop_proof (server, login_user, way, host) VALUES ($1, $2, $3, $4)
     ON CONFLICT (server, login_user, way) DO UPDATE SET proven_at = clock_timestamp(),
     host = excluded.host";
const TAKE: &str = "DELETE FROM onedrop_proof WHERE server = $1 AND login_user = $2 AND way = $3";

fn of<'a>(sql: &'a str, way: &'a Way) -> Statement<'a> {
    Statement::new(sql)
        .with(&way.server, Type::TEXT)
        .with(&way.login_user, Type::TEXT)
        .with(&way.form, Type::TEXT)
}

pub(super) fn is_proven(connection: &mut Connection, way: &Way) -> Result<bool, LedgerError> {
    let rows = connection.read(&[of(IS_PROVEN, way)])?;
    match rows.first().and_then(|rows| rows.first()) {
        Some(row) => Ok(cell::<i64>(row, 0)? > 0),
        None => Ok(false),
    }
}

pub(super) fn note(
    connection: &mut Connection,
    way: &Way,
    holds: bool,
    host: &str,
) -> Result<(), LedgerError> {
    connection.rollback()?;
    let statement = match holds {
        true => of(PUT, way).with(&host, Type::TEXT),
        false => of(TAKE, way),
    };
    connection.commit(&[statement]).map(drop)
}
