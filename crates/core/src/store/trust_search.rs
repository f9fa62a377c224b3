//! Whether a mail server's SEARCH is trusted to show every message that is there
//! (`store.trust_search`).

/// Whether SEARCH of a server is trusted to show all that is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrustSearch {
    /// Where the server says that it is one that searches the mailbox itself.
    #[default]
    Auto,
    Always,
    Never,
}
