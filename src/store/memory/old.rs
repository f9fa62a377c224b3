//! The port of before, until nobody uses it.

use std::time::Instant;

use super::{MemoryStore, Shared};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::store::port::{self, Access, Mailboxes};
use crate::store::{Copy, Found, Receipt, Sought, Store, StoreError, Way, Whose};

/// What a [`MemoryStore`] does instead of its work, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The next look fails.
    Look,
    /// The next append fails before anything is written.
    NotStored,
    /// The account is over its quota at the next append.
    OverQuota,
    /// The mailbox takes no copy at the next append.
    Refused,
    /// Nobody may write for the account at the next append.
    NoAccount,
    /// The store does not let us in at the next append.
    Setup,
    /// The next removal fails.
    Remove,
}

impl MemoryStore {
    /// Makes the next call that `fault` concerns fail.
    pub fn fail(&self, fault: Fault) {
        self.shared().faults.push_back(fault);
    }

    fn fault(&self, wanted: &[Fault]) -> Result<(), StoreError> {
        match self.shared().fault(wanted) {
            None => Ok(()),
            Some(Fault::OverQuota) => Err(StoreError::OverQuota("told to fail".to_owned())),
            Some(Fault::Refused) => Err(StoreError::Refused("told to fail".to_owned())),
            Some(Fault::NoAccount) => Err(StoreError::NoAccount("told to fail".to_owned())),
            Some(Fault::Setup) => Err(StoreError::Setup("told to fail".to_owned())),
            Some(Fault::NotStored | Fault::Look | Fault::Remove) => {
                Err(StoreError::NotStored("told to fail".to_owned()))
            }
        }
    }
}

impl Shared {
    /// Whether the next fault is one of `wanted`; it is then used up.
    fn fault(&mut self, wanted: &[Fault]) -> Option<Fault> {
        let fault = *self.faults.front().filter(|fault| wanted.contains(fault))?;
        self.faults.pop_front();
        Some(fault)
    }
}

impl Store for MemoryStore {
    fn append_is_idempotent(&self) -> bool {
        self.idempotent
    }

    fn prepare(&mut self, _account: &str, _until: Instant) {}

    fn find(
        &mut self,
        destination: &Destination,
        sought: &Sought<'_>,
        until: Instant,
    ) -> Result<Vec<Found>, StoreError> {
        self.fault(&[Fault::Look])?;
        Mailboxes::find(self, destination, sought, until)
    }

    fn append(
        &mut self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        let refusals = [Fault::OverQuota, Fault::Refused, Fault::NoAccount, Fault::Setup];
        self.fault(&[&refusals[..], &[Fault::NotStored]].concat())?;
        self.write(destination, copy, deadline)
    }

    fn remove(
        &mut self,
        destination: &Destination,
        wanted: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.fault(&[Fault::Remove])?;
        port::Store::remove(self, destination, wanted, until)
    }

    fn remove_double(
        &mut self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.fault(&[Fault::Remove])?;
        Mailboxes::remove_double(self, destination, double, keeper, until)
    }

    fn way(&self) -> Option<Way> {
        Access::way(self)
    }

    fn whose_mailboxes(&mut self, account: &str, until: Instant) -> Result<Whose, StoreError> {
        Access::whose_mailboxes(self, account, until)
    }

    fn check(&mut self, account: &str, until: Instant) -> Result<Vec<String>, StoreError> {
        Access::check(self, account, until)
    }
}
