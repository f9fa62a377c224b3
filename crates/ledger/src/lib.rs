//! The ledger in SQL: `postgres`, `mariadb` and `sqlite`, each the sessions of one engine that
//! `pooled` shares out. All run the ledger's contract suite. `sql` is what they have alike:
//! statements, and what is asked by them. `rows` reads an engine's rows into the port's values.
//!
//! An engine knows the port (`onedrop_core::ledger`), the network and this; no other.

mod doubts;
mod facts;
mod given_up;
mod handed;
#[cfg(feature = "mariadb")]
pub mod mariadb;
mod pooled;
pub mod postgres;
mod rows;
mod runtime;
mod session;
mod sql;
pub mod sqlite;

use onedrop_core::ledger::claim::TurnState;
pub use pooled::PooledLedger;
use session::{Committed, MOST_TOGETHER, Session, ToRecord};
