//! Shared copies (Sent) that could not be placed when their message was delivered, and whose bytes
//! the ledger keeps: placed as a delivery places a copy, by its very code.

use std::sync::Arc;
use std::time::Duration;

use super::difference::{Level, Topic};
use super::{Unverified, Verification};
use crate::deadline::Deadline;
use crate::deliver::{self, DeliveryRequest, Failure, Means, Policy};
use crate::envelope::Envelope;
use crate::ledger::{CopyOnRecord, Ledger, LedgerError, Recorded};
use crate::message::{DedupBy, Message};
use crate::outcome::OverQuota;
use crate::store::Store;

impl Verification<'_, '_> {
    /// A copy that is kept because of `why`, under no lease.
    pub(super) fn kept(&mut self, copy: &CopyOnRecord, why: &str) -> Result<(), Unverified> {
        if !self.plan.repair {
            let text = format!("not placed yet, its bytes are kept: {why}");
            self.found(copy, Level::Error, Topic::Kept, None, text);
            return Ok(());
        }
        let Some(bytes) = self.ledger.kept_bytes(copy.message, self.plan.ledger_until())? else {
            self.busy(copy, "placed meanwhile");
            return Ok(());
        };
        // dedup.by may have been another when it came in.
        let kinds =
            [DedupBy::Content, DedupBy::MessageId].map(|by| Message::new(bytes.clone(), by));
        let Some(message) = kinds.into_iter().find(|message| *message.identity() == copy.identity)
        else {
            let text = "the bytes that are kept are another message's: they stay";
            self.found(copy, Level::Error, Topic::Kept, None, text);
            return Ok(());
        };
        let destinations = [copy.destination.clone()];
        let policy = Policy {
            lease: self.plan.lease,
            wait: Duration::ZERO,
            keep_raw: false,
            over_quota: OverQuota::Defer,
            begins_early: false,
            side_by_side: 1,
        };
        let (total, answer) = self.plan.time;
        let deadline = Deadline::by(Arc::clone(self.plan.clock), total, answer);
        let (ledger, store): (&dyn Ledger, &dyn Store) = (self.ledger, self.store);
        let means = Means { policy: &policy, ledger, store, deadline: &deadline, watch: &() };
        let (by, until) = (self.plan.by, self.plan.ledger_until());
        let recorded = Recorded {
            message: copy.message,
            recorded_at: copy.recorded_at,
            is_new: false,
            collision: false,
            attempt: 0, // none: nobody but this run has asked for it
            copies: ledger.claim(copy.message, &destinations, by, means.terms(), until)?,
        };
        let job = DeliveryRequest {
            message: &message,
            envelope: &Envelope::default(),
            accounts: &[],
            destinations: &destinations,
            heads: &[],
            host: &by.host,
            started: deadline.now(),
            one_ending: false,
        };
        match deliver::place(&job, means, by, &recorded) {
            Ok(placed) => {
                let text =
                    format!("was kept ({why}), is {} as {}", placed.how.name(), placed.receipt);
                self.found(copy, Level::Repaired, Topic::Kept, Some(&placed.receipt), text);
            }
            Err(Failure::KeptForLater { why, .. }) => {
                // What takes that long takes as long for the account's next copy.
                if deadline.now() - job.started >= answer {
                    self.out_of_reach = Some(copy.destination.account.clone());
                }
                let text = format!("still not placed, its bytes stay kept: {why}");
                self.found(copy, Level::Error, Topic::Kept, None, text);
            }
            Err(Failure::Ledger(
                error @ (LedgerError::Unavailable(_)
                | LedgerError::Login(_)
                | LedgerError::Version { .. }),
            )) => return Err(error.into()),
            Err(failure) => self.busy(copy, failure.to_string()),
        }
        Ok(())
    }
}
