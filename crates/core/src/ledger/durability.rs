//! What a commit of the ledger outlives, as `onedrop check` says it.

use std::time::Instant;

use super::LedgerError;

/// What a commit outlives.
pub trait Durability: Send + Sync {
    /// What the ledger's settings and its state say of that, a sentence each.
    fn durability(&self, until: Instant) -> Result<Vec<Lasting>, LedgerError>;
}

/// How long a commit lasts, as a sentence for an administrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lasting {
    /// What a commit outlives.
    Outlives(String),
    /// What may undo a commit: copies may stand twice after that.
    MayBeLost(String),
    /// What keeps commits without an answer, now.
    Stuck(String),
}
