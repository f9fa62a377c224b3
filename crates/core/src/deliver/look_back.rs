//! Looking for a copy among all that is in a big mailbox may take longer than a delivery has, and
//! whoever waits for it keeps others waiting. So it is done outside of the copy's turn, and whoever
//! calls decides where: a process that delivers one message does it at once, a server few at a
//! time, in an order, and beyond the end of the delivery that asked first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::place::{Placing, Step, in_look};
use super::{Failure, Means, Phases};
use crate::directory::Destination;
use crate::ledger::{Claim, LedgerError, RandomValue};
use crate::store::{Copy, LookBack, LookedBack, Receipt, Store, StoreError};

/// What is to be looked back for.
pub struct LookBackRequest<'a> {
    pub destination: &'a Destination,
    /// The copy's row: one that was forgotten meanwhile has another.
    pub row: RandomValue,
    pub sought: LookBack,
    /// The message's row: of those that were recorded in the same second, the first goes first.
    pub message: i64,
    /// The delivery has so much time.
    pub until: Instant,
}

/// What came of it.
#[derive(Debug)]
pub enum LookBackEnd {
    /// `None`: the look in the turn does it all.
    Looked(Option<Arc<LookedBack>>),
    /// Not by now, and why: others come first, or it goes on. A later attempt gets what it has come
    /// to.
    Later(String),
    Failed(StoreError),
}

/// Where looking back is done.
pub trait LookBacks: Sync {
    fn look_back(&self, request: LookBackRequest<'_>, store: &dyn Store) -> LookBackEnd;

    /// The copy of this row is placed: what was seen for it is not asked for again.
    fn is_placed(&self, _row: RandomValue) {}
}

/// At once, in the caller's thread.
impl LookBacks for () {
    fn look_back(&self, request: LookBackRequest<'_>, store: &dyn Store) -> LookBackEnd {
        match store.look_back(request.destination, &request.sought, request.until) {
            Ok(looked) => LookBackEnd::Looked(looked.map(Arc::new)),
            Err(error) => LookBackEnd::Failed(error),
        }
    }
}

impl Placing<'_> {
    /// A receipt of the mailbox from before the message came. Of use for a look in one mailbox that
    /// numbers what comes.
    pub(super) fn receipt_before(
        &self,
        index: usize,
        claim: &Claim,
        is_handed: bool,
    ) -> Option<Receipt> {
        let Means { ledger, store, deadline, .. } = self.means;
        let is_numbered = !is_handed && !store.append_is_idempotent();
        if !claim.in_doubt || claim.looks_back || !is_numbered {
            return None;
        }
        let (message, destination) = (self.recorded.message, self.destination(index));
        let before = ledger.receipt_before(message, destination, Duration::ZERO, deadline.end());
        // Without it the look reads more; a ledger that is away shows at the turn.
        before.unwrap_or_else(|error| {
            tracing::warn!(%error, "no receipt before the copy is known");
            None
        })
    }

    /// Which fields tell the copy from others of its content, where it may be found as one that
    /// was handed over for another row.
    pub(super) fn filter_fields(
        &self,
        claim: &Claim,
        is_handed: bool,
    ) -> Result<String, LedgerError> {
        let Means { ledger, deadline, .. } = self.means;
        match claim.looks_back && claim.in_doubt && is_handed {
            true => Ok(ledger.filter_fields(false, deadline.end())?.list),
            false => Ok(String::new()),
        }
    }

    /// What may be older than its row is looked for first, with no turn and nothing else that
    /// others need; the look in the turn has what came since. Step `looks back` of the model.
    pub(super) fn look_back(
        &self,
        index: usize,
        claim: &Claim,
        copy: &Copy<'_>,
        phases: &mut Phases,
    ) -> Result<Option<Arc<LookedBack>>, Box<Step>> {
        let Means { store, deadline, watch, look_backs, .. } = self.means;
        if !claim.looks_back || !claim.in_doubt || store.append_is_idempotent() {
            return Ok(None);
        }
        let destination = self.destination(index);
        let (sought, message) = (LookBack::of(copy), self.recorded.message);
        let until = deadline.look_until();
        let row = claim.value;
        let request = LookBackRequest { destination, row, sought, message, until };
        let end = self.means.timed(&mut phases.append, || look_backs.look_back(request, store));
        watch.looked_back(&end);
        let step = match end {
            LookBackEnd::Looked(looked) => return Ok(looked),
            // The server has no place for another session.
            LookBackEnd::Failed(StoreError::Contended(why)) => Step::Refused(*claim, why),
            LookBackEnd::Failed(error) => {
                self.not_written(index, claim, in_look(error, destination), None)
            }
            // No recipient's mail waits for a copy in Sent.
            LookBackEnd::Later(why) if destination.shared => {
                let why = format!("looking for an earlier copy: {why}");
                self.not_written(index, claim, StoreError::NotStored(why), None)
            }
            LookBackEnd::Later(why) => self.failed(index, claim, Failure::LooksBack(why)),
        };
        Err(Box::new(step))
    }
}
