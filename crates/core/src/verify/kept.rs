//! Shared copies (Sent) that could not be placed when their message was delivered, and whose bytes
//! the ledger keeps: placed as a delivery places a copy, by its very code.

use std::sync::Arc;
use std::time::Duration;

use super::difference::{Level, Topic};
use super::{Unverified, Verification};
use crate::deadline::Deadline;
use crate::deliver::{self, CopyEnd, DeliveryRequest, Failure, Left, Means, Placed, Policy};
use crate::envelope::Envelope;
use crate::ledger::{AttemptKey, CopyOnRecord, CopyState, LeaseTerms, LedgerError, Recorded};
use crate::message::Message;
use crate::outcome::{OverQuota, UnknownAccount};
use crate::store::{Store, StoreError};

impl Verification<'_, '_> {
    /// A copy that is kept because of `why`, under no lease. One that stays kept is reported with
    /// `level`.
    pub(super) fn kept(
        &mut self,
        copy: &CopyOnRecord,
        why: &str,
        level: Level,
    ) -> Result<(), Unverified> {
        if !self.task.repair {
            let text = format!("not placed yet, its bytes are kept: {why}");
            self.found(copy, level, Topic::Kept, None, text);
            return Ok(());
        }
        let Some(message) = self.kept_message(copy, Topic::Kept)? else { return Ok(()) };
        let deadline = self.deadline();
        let join = self.store.append_is_idempotent();
        let terms = LeaseTerms { lease: self.task.lease, join, due: false };
        self.may_write()?;
        let state = self.claim_kept(copy, terms)?;
        let end = self.place_kept(copy, &message, state, &deadline);
        if let Some(placed) = self.placed_or_told(copy, (level, Topic::Kept), end, &deadline)? {
            let text = format!("was kept ({why}), is {} as {}", placed.how.name(), placed.receipt);
            self.found(copy, Level::Repaired, Topic::Kept, Some(&placed.receipt), text);
        }
        Ok(())
    }

    /// The time in which a copy is placed, from now on; it begins before its lease.
    pub(super) fn deadline(&self) -> Deadline {
        let (total, answer) = self.task.time;
        Deadline::by(Arc::clone(self.task.clock), total, answer)
    }

    /// The message whose bytes are kept; `None`, and said so, where they are not there or not its.
    pub(super) fn kept_message(
        &mut self,
        copy: &CopyOnRecord,
        topic: Topic,
    ) -> Result<Option<Message>, LedgerError> {
        let Some(bytes) = self.ledger.kept_bytes(copy.message, self.task.ledger_until())? else {
            match copy.kept {
                Some(_) => self.busy(copy, "placed meanwhile"),
                None => {
                    let text = "its bytes are not kept any more: to give it up, set looks_back of \
                                its message in onedrop_message, and delete its row from \
                                onedrop_copy";
                    self.found(copy, Level::Error, topic, None, text);
                }
            }
            return Ok(None);
        };
        let message = copy.identity.message_in(bytes);
        if message.is_none() {
            let text = "the bytes that are kept are another message's: they stay";
            self.found(copy, Level::Error, topic, None, text);
        }
        Ok(message)
    }

    pub(super) fn claim_kept(
        &self,
        copy: &CopyOnRecord,
        terms: LeaseTerms,
    ) -> Result<CopyState, LedgerError> {
        let (wanted, until) = (std::slice::from_ref(&copy.destination), self.task.ledger_until());
        let states = self.ledger.claim(&copy.message_key(), wanted, self.task.by, terms, until)?;
        Ok(states.into_iter().next().unwrap_or(CopyState::Busy))
    }

    /// Whether a copy may be claimed to be written.
    pub(super) fn may_write(&self) -> Result<(), Unverified> {
        (self.task.may_write)(self.task.ledger_until())
            .map_err(|failure| StoreError::Setup(failure.to_string()).into())
    }

    /// Places a copy of which the claim came to `state`.
    pub(super) fn place_kept(
        &self,
        copy: &CopyOnRecord,
        message: &Message,
        state: CopyState,
        deadline: &Deadline,
    ) -> CopyEnd {
        let policy = Policy {
            lease: self.task.lease,
            wait: Duration::ZERO,
            keep_raw: false,
            sent_after: Duration::ZERO,
            over_quota: OverQuota::Defer,
            unknown_account: UnknownAccount::Defer,
            begins_early: false,
            keeps_sessions: true,
            side_by_side: 1,
        };
        let store: &dyn Store = self.store;
        let means = Means {
            policy: &policy,
            ledger: self.ledger,
            store,
            deadline,
            watch: &(),
            look_backs: &(),
        };
        let recorded = Recorded {
            message: copy.message_key(),
            recorded_at: copy.recorded_at,
            is_new: false,
            collision: false,
            attempt: AttemptKey::Row(0), // none: only this run has asked for it
            copies: vec![state],
        };
        let job = DeliveryRequest {
            message,
            envelope: &Envelope::default(),
            own: &[],
            destinations: std::slice::from_ref(&copy.destination),
            heads: &[],
            host: &self.task.by.host,
            started: deadline.now(),
            oldest: None,
            one_ending: false,
        };
        deliver::place(&job, means, self.task.by, &recorded)
    }

    /// The copy, if it is placed; `None`, and said so, if it stays kept, or another has it.
    pub(super) fn placed_or_told(
        &mut self,
        copy: &CopyOnRecord,
        (level, topic): (Level, Topic),
        end: CopyEnd,
        deadline: &Deadline,
    ) -> Result<Option<Placed>, Unverified> {
        match end {
            CopyEnd::Placed(placed) => return Ok(Some(placed)),
            CopyEnd::Left(Left::Kept { why, .. }) => {
                // What takes that long takes as long for the account's next copy.
                if deadline.left() + self.task.time.1 <= self.task.time.0 {
                    self.out_of_reach = Some(copy.destination.account.clone());
                }
                let text = format!("still not placed, its bytes stay kept: {why}");
                self.found(copy, level, topic, None, text);
            }
            CopyEnd::Failed(Failure::Ledger(
                error @ (LedgerError::Unavailable(_)
                | LedgerError::Login(_)
                | LedgerError::Denied(_)
                | LedgerError::Clock(_)
                | LedgerError::Version(_)
                | LedgerError::OtherConfig(_)),
            )) => return Err(error.into()),
            CopyEnd::Left(left @ Left::Due { .. }) => self.busy(copy, left.to_string()),
            CopyEnd::Failed(failure) => self.busy(copy, failure.to_string()),
        }
        Ok(None)
    }
}
