//! Looking for a copy among all that is in a big mailbox may take longer than a delivery has, and
//! whoever waits for it keeps others waiting. So it is done outside of the copy's turn, and whoever
//! calls decides where: a process that delivers one message does it at once, a server few at a
//! time, in an order, and beyond the end of the delivery that asked first.

use std::sync::Arc;
use std::time::Instant;

use crate::directory::Destination;
use crate::ledger::RandomValue;
use crate::store::{LookBack, LookedBack, Store, StoreError};

/// What is to be looked back for.
pub struct LookBackRequest<'a> {
    pub destination: &'a Destination,
    /// The copy's row: one that was forgotten meanwhile has another.
    pub row: RandomValue,
    pub sought: LookBack,
    /// The message's row: of those that were recorded in the same second, the first goes first.
    pub message: i64,
    /// When the delivery has to end.
    pub until: Instant,
}

/// How a look back ended.
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
