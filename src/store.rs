//! The store port: where mailboxes live. An adapter appends a copy and says where it now is, looks
//! for a copy whose fate is in doubt or of which there may be more than one, and takes one out
//! again by its receipt. It never decides whether a copy should be written: the ledger and
//! `deliver.rs` do. Adapters: `imap`, `maildir`, `memory`; all run `tests/store_contract`.

use std::ops::RangeInclusive;
use std::time::SystemTime;

use crate::lock_key::Hash;
use crate::message::{self, Identity};

pub mod imap;
pub mod maildir;
pub mod memory;
mod port;
pub use port::{Access, AnyStore, Mailboxes, Need, Slot, Store};
mod utf7;

pub use crate::login::Way;
pub use crate::receipt::Receipt;

/// One copy of a message as it is to stand in a mailbox.
#[derive(Debug, Clone, Copy)]
pub struct Copy<'a> {
    /// Names the copy in all the world (`lock_key::copy_hash`).
    pub key: &'a Hash,
    /// Trace fields that stand before `bytes`, each with its line end: empty where who hands the
    /// message over prepends them.
    pub head: &'a [u8],
    /// The bytes as received; a store that demands CRLF turns bare LF into it and changes nothing
    /// else.
    pub bytes: &'a [u8],
    /// Who the message is; a stored message is this copy if and only if its identity is equal.
    pub identity: &'a Identity,
    /// When the ledger first recorded the message: INTERNALDATE of the copy, the same on every
    /// retry.
    pub recorded_at: SystemTime,
}

impl<'a> Copy<'a> {
    /// The copy as a [`look`](Store::look) seeks it.
    pub fn sought(&self) -> Sought<'a> {
        let least = with_crlf(self.bytes);
        // An earlier try may have had other fields before the same message, if we prepend them:
        // another time, another host.
        let most = if self.head.is_empty() {
            least
        } else {
            least + with_crlf(self.head) + HEADS_DIFFER_BY
        };
        let (header, _) = message::split(self.bytes);
        let ids = message::fields(header).filter(|field| field.is(b"message-id")).count();
        Sought {
            key: self.key,
            identity: self.identity,
            recorded_at: self.recorded_at,
            size_bytes: least..=most,
            has_one_id: ids == 1,
            is_thorough: false,
            on_record: None,
            at_most: 1,
        }
    }
}

/// Trace fields that two tries prepend to one message differ in size by less.
const HEADS_DIFFER_BY: u64 = 1024;

/// The size of `bytes` with CRLF as line ends.
fn with_crlf(bytes: &[u8]) -> u64 {
    let bare = memchr::memchr_iter(b'\n', bytes)
        .filter(|at| *at == 0 || bytes.get(at - 1) != Some(&b'\r'))
        .count();
    (bytes.len() + bare) as u64
}

/// What is known of a copy that may be in a mailbox.
#[derive(Debug, Clone)]
pub struct Sought<'a> {
    /// As in [`Copy`].
    pub key: &'a Hash,
    /// As in [`Copy`].
    pub identity: &'a Identity,
    /// As in [`Copy`].
    pub recorded_at: SystemTime,
    /// How large it is with CRLF as its line ends, but for trace fields.
    pub size_bytes: RangeInclusive<u64>,
    /// The message has one Message-ID field, so that every server searches by the same one.
    pub has_one_id: bool,
    /// Where a search by the Message-ID does not show what is on record, or no copy at all, search
    /// without it too.
    pub is_thorough: bool,
    /// The receipt of a copy that is told whatever the search shows; compared only if that is asked
    /// for by `is_thorough`, or there is another one.
    pub on_record: Option<&'a Receipt>,
    /// How many to find, beside the one on record, before the search may end.
    pub at_most: usize,
}

/// A copy that stands in a mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub receipt: Receipt,
    /// Its date (INTERNALDATE) is `recorded_at`, as an append of ours sets it.
    pub has_our_date: bool,
    /// Marked as deleted by its owner, and not taken out yet.
    pub marked_deleted: bool,
    pub proof: Proof,
}

/// What is known of a message that was found. Only what is on record can be anything but
/// [`Equal`](Proof::Equal).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// It has the sought identity; where the store goes by names, the copy's name.
    Equal,
    /// It has the sought identity and the search does not show it: others may be hidden from it as
    /// well.
    Hidden,
    /// Not compared.
    Assumed,
    /// It is another message.
    Foreign,
}

/// What went wrong in the store, by what it means for the copy: whether it may have been written,
/// and whom it concerns.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Certainly nothing was written: the store is away or in trouble, or it is not known whose
    /// fault it is.
    #[error("store: {0}")]
    NotStored(String),
    /// Certainly nothing was written, for any account: the store does not let us in as `[store]`
    /// says, or has not proven that it writes for the account that we name.
    #[error("store: {0}")]
    Setup(String),
    /// Certainly nothing was written: this mailbox takes no copy of ours. It is not there and must
    /// not be made, or nobody gave us the right to write into it.
    #[error("store: {0}")]
    Refused(String),
    /// Certainly nothing was written: the account is over its quota.
    #[error("store: over quota: {0}")]
    OverQuota(String),
    /// Certainly nothing was written: the store does not take a message of this size.
    #[error("store: message too big: {0}")]
    TooBig(String),
    /// Certainly nothing was written: the store lets nobody write for this account, while it lets
    /// us in for others.
    #[error("store: {0}")]
    NoAccount(String),
    /// The store may have taken the copy; only [`Store::look`] can tell.
    #[error("store: in doubt: {0}")]
    InDoubt(String),
}

impl StoreError {
    /// Whether it is certain that nothing was written.
    pub fn certainly_not_stored(&self) -> bool {
        match self {
            StoreError::NotStored(_)
            | StoreError::Setup(_)
            | StoreError::Refused(_)
            | StoreError::OverQuota(_)
            | StoreError::TooBig(_)
            | StoreError::NoAccount(_) => true,
            StoreError::InDoubt(_) => false,
        }
    }

    /// Whether it is certain that this account or mailbox cannot take the copy; else it is for us
    /// or for the store's administrator to mend, or nobody knows.
    pub fn is_the_accounts(&self) -> bool {
        match self {
            StoreError::Refused(_)
            | StoreError::OverQuota(_)
            | StoreError::TooBig(_)
            | StoreError::NoAccount(_) => true,
            StoreError::NotStored(_) | StoreError::Setup(_) | StoreError::InDoubt(_) => false,
        }
    }
}

/// Whose mailboxes a session shows that was opened for an account; with what proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// The account's.
    Accounts(String),
    /// Those of the user that logged in: the server ignores for whom.
    Users(String),
}
