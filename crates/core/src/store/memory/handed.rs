//! The mail server's own delivery, in memory: filters that file a copy, send it on or take our
//! fields out, the guard that remembers what was carried out, one delivery to an account at a time,
//! and the look in all mailboxes by the value of a copy's row and its
//! content.

use super::{MemoryStore, PendingAppend, Place, Shared, Stored, receipt};
use crate::lock_key::hex;
use crate::message::{self, fields};
use crate::store::{
    CopySearch, FoundCopy, HandOff, HandedCopy, LAST_FIELD, Naming, Proof, Receipt, StoreError,
};

/// What the server's delivery does with what is handed over to it.
#[derive(Debug, Clone, Copy)]
pub struct Filters {
    /// Where the copy is filed; `None`: it is sent on, discarded, or filed where no look comes.
    pub files_into: Option<&'static str>,
    /// And where, after that.
    pub then_into: Option<&'static str>,
    /// The server dies in between, at the first delivery to each account.
    pub dies: bool,
    /// Our fields are taken out.
    pub strips: bool,
    /// The server drops what it has carried out before.
    pub has_guard: bool,
}

impl Filters {
    /// Whether a look finds what was carried out.
    pub fn is_found(&self) -> bool {
        self.files_into.is_some() && !self.strips
    }

    /// How often a copy may be carried out, after one fault.
    pub fn most(&self) -> usize {
        if self.has_guard || self.is_found() { 1 } else { 2 }
    }
}

/// What stands before a copy that is handed over.
pub struct OurFields {
    value: [u8; 16],
    text: String,
}

impl OurFields {
    pub fn new(handed: &HandOff<'_>) -> OurFields {
        let (value, epoch) = (handed.value, handed.epoch);
        let text = format!("X-Onedrop-Copy: {}\r\nX-Onedrop-Try: {epoch}\r\n", hex(&value));
        OurFields { value, text }
    }
}

/// The values of the first two of our fields, as they stand there.
fn marks(stored: &Stored) -> (Option<Vec<u8>>, Option<i64>) {
    let (header, _) = message::split(&stored.bytes);
    let first = |name: &[u8]| fields(header).find(|field| field.is(name));
    let number = |text: Vec<u8>| String::from_utf8(text).ok()?.trim().parse().ok();
    let value = first(b"x-onedrop-copy").map(|field| field.unfolded());
    (value, first(b"x-onedrop-try").and_then(|field| number(field.unfolded())))
}

impl MemoryStore {
    /// Like an IMAP server to whose own delivery recipients' copies are handed over.
    pub fn handing_over(filters: Filters) -> MemoryStore {
        MemoryStore { filters: Some(filters), ..MemoryStore::default() }
    }

    /// How often the server has carried out a delivery to the account.
    pub fn carried_out(&self, account: &str) -> usize {
        self.shared().carried_out.get(account).map_or(0, Vec::len)
    }

    /// Lets the server lose an append whose sender is gone.
    pub fn lose(&self, number: u64) {
        self.shared().under_way.remove(&number);
    }
}

impl Shared {
    /// Whether the server has a delivery to the account under way.
    pub(super) fn is_delivering(&self, account: &str) -> bool {
        let is_its = |one: &PendingAppend| one.handed.is_some() && one.place.0 == account;
        self.under_way.values().any(is_its)
    }

    /// Carries a delivery out; returns what the server calls it, unless it dies.
    pub(super) fn carry_out(
        &mut self,
        filters: Filters,
        account: String,
        stored: Stored,
        ours: OurFields,
    ) -> Option<Receipt> {
        let done = self.carried_out.entry(account.clone()).or_default();
        if filters.has_guard && done.contains(&ours.value) {
            return Some(Receipt::handed("dropped"));
        }
        let dies = filters.dies && self.died_for.insert(account.clone());
        if !dies {
            done.push(ours.value);
        }
        let name = Receipt::handed(format!("delivery {}", done.len()));
        let bytes = match filters.strips {
            true => stored.bytes.clone(),
            false => [ours.text.as_bytes(), &stored.bytes].concat(),
        };
        let then_into = filters.then_into.filter(|_| !dies);
        for mailbox in filters.files_into.into_iter().chain(then_into) {
            self.next_uid += 1;
            let stored = Stored { uid: self.next_uid, bytes: bytes.clone(), ..stored.clone() };
            self.mailboxes.entry((account.clone(), mailbox.to_owned())).or_default().push(stored);
        }
        (!dies).then_some(name)
    }

    /// The equal copies with that value, in whatever mailbox of the account but Sent, the first
    /// tries first; for a look back also those with any value, or in INBOX.
    pub(super) fn found_anywhere(
        &self,
        account: &str,
        value: [u8; 16],
        sought: &CopySearch<'_>,
    ) -> Vec<FoundCopy> {
        let (value, next) = (hex(&value), self.next_since(sought));
        let mut found = Vec::new();
        let is_its = |place: &&Place| place.0 == account && place.1 != "Sent";
        for place in self.mailboxes.keys().filter(is_its) {
            for stored in self.mailboxes[place].iter().filter(|stored| stored.uid >= next) {
                let (first, epoch) = marks(stored);
                let has_value = first.as_deref() == Some(value.as_bytes());
                let is_its_variant = || {
                    let bytes = message::handed(&stored.bytes, LAST_FIELD);
                    sought.variant.as_ref().is_none_or(|variant| variant.is_that_of(bytes))
                };
                let is_any = sought.looks_back
                    && (first.is_some() || place.1 == "INBOX")
                    && is_its_variant();
                if stored.identity == *sought.identity && (has_value || is_any) {
                    let epoch = epoch.filter(|_| has_value);
                    let handed = Some(HandedCopy { mailbox: place.1.clone(), epoch });
                    let copy = stored.found(receipt(stored.uid), Naming::Alone, sought);
                    found.push(FoundCopy { handed, proof: Proof::Equal, ..copy });
                }
            }
        }
        found.sort_by_key(|one| one.of_try().unwrap_or(i64::MAX));
        found
    }

    /// Takes out the later of two tries, if the other one stands.
    pub(super) fn remove_handed(
        &mut self,
        account: &str,
        double: &FoundCopy,
        keeper: &FoundCopy,
    ) -> Result<(), StoreError> {
        let place_of = |one: &FoundCopy| {
            let mailbox = one.handed.as_ref().map(|handed| handed.mailbox.clone());
            (account.to_owned(), mailbox.unwrap_or_default())
        };
        if place_of(double) != place_of(keeper) || double.receipt == keeper.receipt {
            let why = "the two do not stand side by side";
            return Err(StoreError::NotStored(why.to_owned()));
        }
        let mailbox = self.mailboxes.entry(place_of(double)).or_default();
        let stays =
            |stored: &Stored| receipt(stored.uid) == keeper.receipt && !stored.marked_deleted;
        if !mailbox.iter().any(stays) {
            return Err(StoreError::NotStored("what is to stay is gone".to_owned()));
        }
        mailbox.retain(|stored| receipt(stored.uid) != double.receipt);
        Ok(())
    }
}
