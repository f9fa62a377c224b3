//! The mail server's own delivery, in memory: filters that file a copy, send it on or take our
//! fields out, the guard that remembers what was carried out, one delivery to an account at a time,
//! and the look in all mailboxes by the value of a copy's row.

use super::{MemoryStore, PendingAppend, Place, Shared, Stored, receipt};
use crate::lock_key::hex;
use crate::message::{self, fields};
use crate::store::{CopySearch, FoundCopy, HandOff, HandedCopy, Proof, Receipt, StoreError};

/// What the server's delivery does with what is handed over to it.
#[derive(Debug, Clone, Copy)]
pub struct Filters {
    /// Where the copy is filed; `None`: it is sent on, discarded, or filed where no look comes.
    pub files_into: Option<&'static str>,
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

    /// Carries a delivery out; returns what the server calls it.
    pub(super) fn carry_out(
        &mut self,
        filters: Filters,
        account: String,
        stored: Stored,
        ours: OurFields,
    ) -> Receipt {
        let done = self.carried_out.entry(account.clone()).or_default();
        if filters.has_guard && done.contains(&ours.value) {
            return Receipt::Handed("dropped".to_owned());
        }
        done.push(ours.value);
        let name = Receipt::Handed(format!("delivery {}", done.len()));
        let Some(mailbox) = filters.files_into else { return name };
        self.next_uid += 1;
        let bytes = match filters.strips {
            true => stored.bytes,
            false => [ours.text.as_bytes(), &stored.bytes].concat(),
        };
        let stored = Stored { uid: self.next_uid, bytes, ..stored };
        self.mailboxes.entry((account, mailbox.to_owned())).or_default().push(stored);
        name
    }

    /// The copies with that value, in whatever mailbox of the account, the first tries first; for a
    /// look back also equal ones with any value, or in INBOX.
    pub(super) fn found_anywhere(
        &self,
        account: &str,
        value: [u8; 16],
        sought: &CopySearch<'_>,
    ) -> Vec<FoundCopy> {
        let value = hex(&value);
        let mut found = Vec::new();
        let is_its = |place: &&Place| place.0 == account;
        for place in self.mailboxes.keys().filter(is_its) {
            for stored in &self.mailboxes[place] {
                let (first, epoch) = marks(stored);
                let is_equal = stored.identity == *sought.identity && sought.looks_back;
                let is_it = first.as_deref() == Some(value.as_bytes())
                    || is_equal && (first.is_some() || place.1 == "INBOX");
                if is_it {
                    let handed = Some(HandedCopy { mailbox: place.1.clone(), epoch });
                    let copy = stored.found(receipt(stored.uid), sought);
                    found.push(FoundCopy { handed, proof: Proof::Equal, ..copy });
                }
            }
        }
        let epoch = |one: &FoundCopy| one.handed.as_ref().and_then(|handed| handed.epoch);
        found.sort_by_key(|one| epoch(one).unwrap_or(i64::MAX));
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
        let stands = |mailbox: Option<&Vec<Stored>>, one: &FoundCopy| {
            let is_it = |stored: &Stored| receipt(stored.uid) == one.receipt;
            mailbox.is_some_and(|mailbox| mailbox.iter().any(is_it))
        };
        if !stands(self.mailboxes.get(&place_of(keeper)), keeper) {
            return Err(StoreError::NotStored("what is to stay is gone".to_owned()));
        }
        let mailbox = self.mailboxes.entry(place_of(double)).or_default();
        mailbox.retain(|stored| receipt(stored.uid) != double.receipt);
        Ok(())
    }
}
