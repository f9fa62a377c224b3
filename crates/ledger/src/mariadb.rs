//! The ledger in MariaDB 10.6 or newer, shared by many hosts.
//!
//! Promise: the port's. Locks are rows of a table with 65,536 slots, locked without waiting: they
//! end with the transaction, and so with the session, as advisory locks do on Postgres. GET_LOCK
//! outlives a commit, and Galera grants it on each node for itself.
//!
//! Relies on READ COMMITTED, which each session sets, and on locking reads for what decides; on
//! the server's clock for leases; on one server that takes writes and keeps a commit through a
//! crash: each session asks for that when it begins, and refuses the rest. After a crash no
//! transaction and no lock is left once the server has seen the connection close or
//! `idle_transaction_timeout` has passed; committed leases run out.

use std::sync::Arc;

use crate::PooledLedger;
use crate::pooled::Traits;
use onedrop_core::ledger::{LedgerError, Program};
use onedrop_net::pool::Limits;

mod account;
mod connection;
mod dialect;
mod durability;
mod errors;
mod kept;
mod link;
mod newly;
mod receipts;
mod record;
mod schema;
mod session;
mod statement;
mod target;

pub use target::MariadbSettings;

use connection::MariadbSession;
pub use onedrop_net::mysql_url::MysqlUrl;
use target::MariadbTarget;

/// A ledger in MariaDB.
pub type MariadbLedger = PooledLedger<MariadbSession>;

impl MariadbLedger {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// What the settings name cannot be read; never with the URL or the password in it.
    pub fn new(settings: MariadbSettings, limits: Limits) -> Result<MariadbLedger, LedgerError> {
        MariadbLedger::of(settings, Program::default(), limits)
    }

    /// The same, for this program.
    pub fn of(
        settings: MariadbSettings,
        program: Program,
        limits: Limits,
    ) -> Result<MariadbLedger, LedgerError> {
        Ok(MariadbLedger::to(MariadbTarget::new(settings, program)?, limits))
    }

    /// A server that has accounts to ask for and keeps no ledger: nothing else may be asked of it.
    ///
    /// # Errors
    /// What [`new`](MariadbLedger::new) fails with.
    pub fn for_accounts(
        settings: MariadbSettings,
        limits: Limits,
    ) -> Result<MariadbLedger, LedgerError> {
        let target = MariadbTarget::new(settings, Program::default())?;
        Ok(MariadbLedger::to(MariadbTarget { only_accounts: true, ..target }, limits))
    }

    fn to(target: MariadbTarget, limits: Limits) -> MariadbLedger {
        let target = Arc::new(target);
        let open = Arc::new(move |_, until| MariadbSession::open(Arc::clone(&target), until));
        // The server itself brings commits at the same time together.
        let traits = Traits { commits_together: None, is_a_file: false };
        PooledLedger::over(open, traits, limits)
    }
}
