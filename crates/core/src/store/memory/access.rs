//! The way into a store in memory: nothing stands between.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{MemoryStore, place};
use crate::directory::Destination;
use crate::store::{Access, MailboxOwner, StoreError, Way, WitnessNames};

impl Access for MemoryStore {
    fn way(&self) -> Option<Way> {
        None
    }

    fn root(&self) -> Option<&Path> {
        None
    }

    fn missing_place(&self, _account: &str) -> Result<Option<PathBuf>, StoreError> {
        Ok(None)
    }

    fn whose_mailboxes(&self, _account: &str, _until: Instant) -> Result<MailboxOwner, StoreError> {
        self.call("whose_mailboxes", None, |_| {
            Ok(MailboxOwner::Accounts("no server stands between".to_owned()))
        })
    }

    fn are_apart(&self, _: &str, _: &str, _: Instant) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn name_witnesses(&self, _: WitnessNames) {}

    fn has_mailbox(&self, destination: &Destination, _: Instant) -> Result<bool, StoreError> {
        let place = place(destination);
        self.call("has_mailbox", Some(destination), |shared| {
            Ok(shared.mailboxes.contains_key(&place))
        })
    }

    fn check(&self, _account: &str, _until: Instant) -> Result<Vec<String>, StoreError> {
        self.call("check", None, |_| Ok(vec!["in memory".to_owned()]))
    }
}
