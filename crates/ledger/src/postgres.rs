//! The ledger in Postgres: the reference, shared by many hosts.
//!
//! Promise: the port's, with transaction-level advisory locks and rows that are re-read after the
//! lock. It works through PgBouncer in transaction pooling: no session state outside a transaction,
//! and prepared statements only where no pooler is in between.
//!
//! Relies on READ COMMITTED (a statement sees what was committed before it began), the server's
//! clock for leases, and `synchronous_commit`, which each writing transaction switches on (but the
//! giving back of a named lock). After a crash no transaction and no lock is left once the server
//! has seen the connection close or `idle_in_transaction_session_timeout` has passed; committed
//! leases run out.

use std::sync::Arc;

use crate::PooledLedger;
use crate::pooled::Traits;
use onedrop_core::ledger::{LedgerError, Program};
use onedrop_net::pool::Limits;

mod account;
mod cancel;
mod columns;
mod connection;
mod dialect;
mod durability;
mod errors;
mod fast;
mod link;
mod metered;
mod migrate;
mod own_socket;
mod record;
mod schema;
mod session;
mod target;

pub use target::PostgresSettings;

use connection::Connection;
pub use onedrop_net::postgres_url::{PostgresUrl, Prepare};
use target::Target;

/// A ledger in Postgres.
pub type PostgresLedger = PooledLedger<Connection>;

impl PostgresLedger {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// The URL makes no sense, or what it names cannot be read; never with the URL or the password
    /// in it.
    pub fn new(settings: PostgresSettings, limits: Limits) -> Result<PostgresLedger, LedgerError> {
        PostgresLedger::of(settings, Program::default(), limits)
    }

    /// The same, for this program.
    pub fn of(
        settings: PostgresSettings,
        program: Program,
        limits: Limits,
    ) -> Result<PostgresLedger, LedgerError> {
        let target = Arc::new(Target::new(settings, program)?);
        let open =
            Arc::new(move |handed, until| Connection::open(Arc::clone(&target), handed, until));
        // The server can work on one while it writes the other to disk.
        let traits = Traits { commits_together: Some(2), is_a_file: false };
        Ok(PooledLedger::over(open, traits, limits))
    }
}
