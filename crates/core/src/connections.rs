//! What a server asks of an adapter that keeps connections.

/// What a server does with an adapter that it keeps for long. The default bodies are those of an
/// adapter without connections.
pub trait Connections: Send + Sync {
    /// Closes those that were not used for a while.
    fn close_idle(&self) {}

    /// Closes those that are kept, and keeps none from now on.
    fn retire(&self) {}

    /// How many are in use, and how many are kept.
    fn count(&self) -> (usize, usize) {
        (0, 0)
    }
}
