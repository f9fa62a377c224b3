//! Where mailboxes live. The ports are in `port`; here is what they speak of: the copy that is to
//! stand in a mailbox, what is sought and what is found, and what can go wrong, by what it means
//! for the copy. Adapters: `imap`, `maildir`, `memory`, which run `tests/store_contract`, and
//! `lmtp` over one of them (`tests/filters`, `tests/peers`).

use std::ops::RangeInclusive;
use std::time::{Instant, SystemTime};

use crate::lock_key::Hash;
use crate::message::{self, Identity, SoughtVariant};
use crate::text;

mod look_back;
#[cfg(any(test, feature = "memory"))]
pub mod memory;
mod port;
mod trust_search;

pub use crate::login::Way;
pub use crate::receipt::Receipt;
pub use look_back::{LookBack, LookedBack, Mark};
pub use port::{Access, AnyStore, Mailboxes, Need, Slot, Store, StoreTraits};
pub use trust_search::TrustSearch;

/// One copy of a message as it is to stand in a mailbox.
#[derive(Debug, Clone, Copy)]
pub struct Copy<'a> {
    /// Names the copy in all the world (`lock_key::copy_hash`).
    pub key: &'a Hash,
    /// Trace fields that stand before `bytes`, each with its line end: empty where Postfix has
    /// prepended them to the message.
    pub head: &'a [u8],
    /// The bytes as received; a store that demands CRLF turns bare LF into it and changes nothing
    /// else.
    pub bytes: &'a [u8],
    /// The message's identity; a stored message is this copy if and only if its own is equal.
    pub identity: &'a Identity,
    /// When the ledger first recorded the message: the copy's date in the mailbox, the same on
    /// every retry.
    pub recorded_at: SystemTime,
    /// It may have been written before `recorded_at`, whenever: the ledger does not remember.
    pub looks_back: bool,
    /// Of one that looks back: what was looked at by now. Its [look](Slot::look) completes it.
    pub looked: Option<&'a LookedBack>,
    /// A receipt of the same mailbox that was on record before anybody leased this copy, which came
    /// into the mailbox after that one, if it did. `None`: none is known.
    pub newer_than: Option<&'a Receipt>,
    /// Of a copy that the store [hands over](Store::hands_over).
    pub handed: Option<HandOff<'a>>,
}

/// The last of our fields before a message that is handed over, in lower case.
pub const LAST_FIELD: &str = "x-onedrop-try";

/// What a store that hands a copy over to the mail server's own delivery says there, beside the
/// account's name.
#[derive(Debug, Clone, Copy)]
pub struct HandOff<'a> {
    /// The random value of the copy's row, by which it is found wherever it lies.
    pub value: [u8; 16],
    /// Of the claim: distinguishes the tries to deliver one copy.
    pub epoch: i64,
    /// A copy of an earlier try stands already: the guard drops this one where it cannot know
    /// whether that is all.
    pub again: bool,
    /// The envelope's.
    pub sender: &'a str,
    /// The address in the envelope.
    pub recipient: &'a str,
    /// The fields by which filters distinguish this copy from others of its content (names in lower
    /// case, between blanks); of one that looks back.
    pub filter_fields: &'a str,
}

impl<'a> Copy<'a> {
    /// The copy as a [look](Slot::look) seeks it.
    pub fn sought(&self) -> CopySearch<'a> {
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
        CopySearch {
            key: self.key,
            identity: self.identity,
            recorded_at: self.recorded_at,
            looks_back: self.looks_back,
            looked: self.looked,
            handed: self.handed.map(|handed| handed.value),
            variant: self
                .handed
                .filter(|_| self.looks_back)
                .map(|handed| SoughtVariant::of(self.bytes, handed.filter_fields)),
            size_bytes: least..=most,
            has_several_ids: ids > 1,
            needs_proof: false,
            on_record: None,
            by_id: false,
            since: None,
            at_most: 1,
            unindexed: match self.newer_than {
                Some(receipt) if !self.looks_back => Unindexed::After(receipt),
                _ => Unindexed::All,
            },
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
pub struct CopySearch<'a> {
    /// See [`Copy`].
    pub key: &'a Hash,
    /// See [`Copy`].
    pub identity: &'a Identity,
    /// See [`Copy`].
    pub recorded_at: SystemTime,
    /// See [`Copy`]: copies of any date are found.
    pub looks_back: bool,
    /// See [`Copy`]: what came since is searched.
    pub looked: Option<&'a LookedBack>,
    /// It was handed over, if at all: what counts is the value that it has in its header, in
    /// whatever mailbox of the account's own it lies. For one that looks back, whose value may have
    /// been another then, also an equal one that was handed over with any value, and an equal one
    /// in the mailbox itself.
    pub handed: Option<[u8; 16]>,
    /// Of one that looks back and was handed over: an equal one with another value counts if it is
    /// the same to filters. Else a forgery that a filter has filed as spam were the copy.
    pub variant: Option<SoughtVariant>,
    /// How large it is with CRLF as its line ends, but for trace fields.
    pub size_bytes: RangeInclusive<u64>,
    /// The message has several Message-ID fields, as far as is known; programs differ in which of
    /// them they heed.
    pub has_several_ids: bool,
    /// The answer must not rest on another program's index of messages: the copy on record is
    /// compared even where it seems to be the only one, and where an index does not show it, or no
    /// copy at all, all messages of the size are compared.
    pub needs_proof: bool,
    /// The receipt of the copy on record, which is found whatever it is now. It is compared if
    /// another copy is found, or if `needs_proof` says so.
    pub on_record: Option<&'a Receipt>,
    /// A message with the same first Message-ID counts as well, whatever else it holds, whenever it
    /// came and whoever wrote it: a mail program's own copy of what was sent.
    pub by_id: bool,
    /// With `by_id`: what came into the mailbox before then need not be found; `None`: whenever.
    pub since: Option<SystemTime>,
    /// How many copies to find, beside the one on record.
    pub at_most: usize,
    /// What to compare where nothing is found, or all is sought (`needs_proof`, `by_id`), and
    /// another program's index may not show all that is there.
    pub unindexed: Unindexed<'a>,
}

impl CopySearch<'_> {
    /// In a store that goes by names: whether the copy may have another one than `name`, which its
    /// time of recording gives it. A look has found it so, or would: no copy is on record. A
    /// receipt that is no name, of another kind of store, does not say so: of those there may be
    /// many.
    pub fn may_have_other_name(&self, name: &str) -> bool {
        !self.by_id
            && self.on_record.is_none_or(|receipt| receipt.as_name().is_some_and(|is| is != name))
    }
}

/// Messages that a store's own search may not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unindexed<'a> {
    /// None are compared: the search is believed.
    Nothing,
    /// Those that came into the mailbox after the one of this receipt.
    After(&'a Receipt),
    All,
}

/// A copy that stands in a mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundCopy {
    pub receipt: Receipt,
    pub naming: Naming,
    /// Its date is `recorded_at`, as an append of ours sets it.
    pub has_our_date: bool,
    /// Marked as deleted by its owner, and not taken out yet.
    pub marked_deleted: bool,
    /// See [`Slot::is_wrapped`].
    pub is_wrapped: bool,
    pub proof: Proof,
    /// Of one that was found by [`CopySearch::handed`].
    pub handed: Option<HandedCopy>,
}

/// How a receipt names the copy that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// It names no other copy, for good.
    Alone,
    /// It lasts, and may be that of another copy as well.
    Shared,
    /// It names no other copy, until this one is read or moved: it goes on no record.
    Passing,
}

/// Where a copy lies that was handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedCopy {
    /// The name as its server writes it.
    pub mailbox: String,
    /// Of the try that wrote it, where it has the sought value and says so.
    pub epoch: Option<i64>,
}

impl FoundCopy {
    /// Whether its receipt may go on record.
    pub fn is_lasting(&self) -> bool {
        self.naming != Naming::Passing
    }

    /// See [`HandedCopy`].
    pub fn of_try(&self) -> Option<i64> {
        self.handed.as_ref()?.epoch
    }

    /// The receipt to put on record: of a copy that was handed over, one that says where it lay.
    pub fn to_record(&self) -> Receipt {
        match &self.handed {
            Some(at) => FoundCopy::handed_in(&at.mailbox, &self.receipt),
            None => self.receipt.clone(),
        }
    }

    /// The same of one that has this receipt in this mailbox.
    pub fn handed_in(mailbox: &str, receipt: &Receipt) -> Receipt {
        let mailbox = text::of_bytes(mailbox.as_bytes(), LONGEST_MAILBOX);
        Receipt::handed(format!("{mailbox}/{}", receipt.shown()))
    }
}

/// Bytes of a mailbox's name in a receipt.
const LONGEST_MAILBOX: usize = 200;

/// What is known of a message that was found. Only what is on record can be anything but
/// [`Equal`](Proof::Equal); but see [`CopySearch::by_id`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// It has the sought identity; where the store goes by names, the copy's name.
    Equal,
    /// It has the sought identity, and only its receipt led to it: other copies may be hidden as
    /// well.
    Hidden,
    /// It has the sought identity ([`CopySearch::by_id`]), and is not as ours: it has another date,
    /// or another name.
    SameContent,
    /// It has the sought first Message-ID ([`CopySearch::by_id`]), and another content.
    SameId,
    /// Not compared.
    Assumed,
    /// It is another message.
    Foreign,
}

/// What went wrong in the store, by what it means for the copy and whom it concerns. But for
/// [`InDoubt`](StoreError::InDoubt) certainly nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store is away or in trouble, or it is not known whose fault it is.
    #[error("store: {0}")]
    NotStored(String),
    /// For any account: the store does not let us in as `[store]` says, or has not proven that it
    /// writes for the account that we name.
    #[error("store: {0}")]
    Setup(String),
    /// This mailbox takes no copy of ours: it is not there and is not to be made, or cannot be
    /// called so, or we have no right to write into it.
    #[error("store: {0}")]
    Refused(String),
    /// The account is over its quota.
    #[error("store: over quota: {0}")]
    OverQuota(String),
    /// The store does not take a message of this size.
    #[error("store: message too big: {0}")]
    TooBig(String),
    /// The store lets us write for others and says that this account is not there. It was asked
    /// for this copy, and said so between two fresh logins for another account.
    #[error("store: {0}")]
    NoAccount(String),
    /// The store has no place for one more session of this account, or has another delivery to it
    /// under way and takes one at a time.
    #[error("store: contended: {0}")]
    Contended(String),
    /// The account's owner does not want this message.
    #[error("store: {0}")]
    Rejected(String),
    /// The store may have taken the copy; only a [look](Slot::look) can find out.
    #[error("store: in doubt: {0}")]
    InDoubt(String),
}

impl StoreError {
    /// The same with another text, made of its own.
    pub fn map(self, say: impl FnOnce(String) -> String) -> StoreError {
        match self {
            StoreError::NotStored(why) => StoreError::NotStored(say(why)),
            StoreError::Setup(why) => StoreError::Setup(say(why)),
            StoreError::Refused(why) => StoreError::Refused(say(why)),
            StoreError::OverQuota(why) => StoreError::OverQuota(say(why)),
            StoreError::TooBig(why) => StoreError::TooBig(say(why)),
            StoreError::NoAccount(why) => StoreError::NoAccount(say(why)),
            StoreError::Contended(why) => StoreError::Contended(say(why)),
            StoreError::Rejected(why) => StoreError::Rejected(say(why)),
            StoreError::InDoubt(why) => StoreError::InDoubt(say(why)),
        }
    }

    /// Whether it is certain that nothing was written.
    pub fn certainly_not_stored(&self) -> bool {
        !matches!(self, StoreError::InDoubt(_))
    }
}

/// Names accounts that have had mail, other than one whose login was refused: whether they can log
/// in shows whose fault that is. It returns before the time it is given.
pub type WitnessNames = Box<dyn Fn(Instant) -> Vec<String> + Send + Sync>;

/// Whose mailboxes a session shows that was opened for an account; with what proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailboxOwner {
    /// The account's.
    Accounts(String),
    /// Those of the user that logged in: the server ignores for whom.
    Users(String),
}
