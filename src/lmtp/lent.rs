//! A delivery's ledger and store, out of the pools: a session is taken for each call and given back
//! after it, so that nobody keeps one from others while it waits for something else; only a turn
//! keeps both, the store's first. Records and receipts go to the ledger with those of others
//! (`calls`). What had trouble is thrown away. The first call in a kept session that turns out to
//! be dead is made again in a new one; should the dead one have done it and only the answer be
//! lost, a record or a claim finds its own lease.

use std::time::Instant;

use super::mailboxes::{Begun, SMALL};
use super::service::{LedgerSession, Service, StoreSession};
use crate::deadline::Deadline;
use crate::directory::{Asked, Destination};
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, Entry, LeaseTerms,
    Ledger, LedgerError, Recorded, ToConfirm, ToRecord, Together, Trace, TraceFilter, Turn, Window,
};
use crate::lock_key::Hash;
use crate::message::Identity;
use crate::store::{Copy, Found, Receipt, Sought, Store, StoreError, Way, Whose};

/// See the module. Calls return before `until`.
pub struct LentLedger<'a> {
    service: &'a Service,
    until: Instant,
    /// In a turn.
    held: Option<LedgerSession>,
}

impl<'a> LentLedger<'a> {
    pub fn new(service: &'a Service, until: Instant) -> LentLedger<'a> {
        LentLedger { service, until, held: None }
    }

    fn call<T>(
        &mut self,
        work: impl FnMut(&mut dyn Ledger) -> Result<T, LedgerError>,
    ) -> Result<(T, LedgerSession), LedgerError> {
        self.call_until(self.until, work)
    }

    fn call_until<T>(
        &mut self,
        until: Instant,
        mut work: impl FnMut(&mut dyn Ledger) -> Result<T, LedgerError>,
    ) -> Result<(T, LedgerSession), LedgerError> {
        let (mut session, was_kept) = match self.held.take() {
            Some(session) => (session, false),
            None => self.service.ledger(until)?,
        };
        let mut result = work(session.as_mut());
        if was_kept && matches!(result, Err(LedgerError::Unavailable(_))) && Instant::now() < until
        {
            result = session.reopen(until).and_then(|()| work(session.as_mut()));
        }
        match result {
            Ok(value) => Ok((value, session)),
            Err(error) => {
                if !matches!(error, LedgerError::Contended) {
                    session.throw_away();
                }
                Err(error)
            }
        }
    }

    /// A call for ourselves and others.
    fn made(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
        until: Instant,
    ) -> Result<Together, LedgerError> {
        self.call_until(until, |ledger| ledger.together(records, receipts)).map(|(made, _)| made)
    }

    fn once<T>(
        &mut self,
        work: impl FnMut(&mut dyn Ledger) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        self.call(work).map(|(value, _)| value)
    }
}

impl Ledger for LentLedger<'_> {
    fn record(
        &mut self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        let (service, until) = (self.service, self.until);
        let one = ToRecord { entry: *entry, attempt, destinations, terms };
        let together = service
            .calls
            .record(one, until, |records, receipts, until| self.made(records, receipts, until));
        together.unwrap_or_else(|| {
            self.once(|ledger| ledger.record(entry, attempt, destinations, terms))
        })
    }

    fn claim(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        self.once(|ledger| ledger.claim(message, destinations, owner, terms))
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<Turn, LedgerError> {
        let (turn, session) = self.call(|ledger| ledger.take_turn(claim, copy_key))?;
        if matches!(turn, Turn::Ours { .. }) {
            self.held = Some(session);
        }
        Ok(turn)
    }

    fn confirm(
        &mut self,
        claim: &Claim,
        receipt: &Receipt,
        facts: CopyFacts,
        end: Option<(i64, &AttemptEnd)>,
    ) -> Result<Confirmed, LedgerError> {
        let (service, until) = (self.service, self.until);
        let together = match self.held {
            // The turn's own session ends it.
            Some(_) => None,
            None => {
                let one = ToConfirm { claim: *claim, receipt, facts, end };
                service.calls.confirm(one, until, |records, receipts, until| {
                    self.made(records, receipts, until)
                })
            }
        };
        together.unwrap_or_else(|| self.once(|ledger| ledger.confirm(claim, receipt, facts, end)))
    }

    fn keep(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<bool, LedgerError> {
        self.once(|ledger| ledger.keep(message, bytes, why))
    }

    fn kept(&mut self, message: i64) -> Result<Option<String>, LedgerError> {
        self.once(|ledger| ledger.kept(message))
    }

    fn kept_bytes(&mut self, message: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        self.once(|ledger| ledger.kept_bytes(message))
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        match self.held {
            Some(_) => self.once(|ledger| ledger.leave()),
            None => Ok(()),
        }
    }

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError> {
        self.once(|ledger| ledger.release(claims))
    }

    fn finish(&mut self, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
        self.once(|ledger| ledger.finish(attempt, end))
    }

    fn note_attempts(
        &mut self,
        identity: &Identity,
        ended: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        self.once(|ledger| ledger.note_attempts(identity, ended))
    }

    fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.until = until;
        Ok(())
    }

    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.until = until;
        self.held = None;
        Ok(())
    }

    fn account_by_query(
        &mut self,
        query: &str,
        asked: &Asked,
    ) -> Result<Option<String>, LedgerError> {
        self.once(|ledger| ledger.account_by_query(query, asked))
    }

    fn trace(&mut self, filter: &TraceFilter<'_>, limit: u32) -> Result<Vec<Trace>, LedgerError> {
        self.once(|ledger| ledger.trace(filter, limit))
    }

    fn copies_to_verify(
        &mut self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        self.once(|ledger| ledger.copies_to_verify(window, after, limit))
    }

    fn latest_copies(&mut self, limit: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        self.once(|ledger| ledger.latest_copies(limit))
    }

    fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError> {
        self.once(|ledger| ledger.settle(copy, receipt))
    }

    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError> {
        self.once(|ledger| ledger.is_proven(way))
    }

    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError> {
        self.once(|ledger| ledger.note_proof(way, holds, host))
    }

    fn schema_version(&mut self) -> Result<i64, LedgerError> {
        self.once(|ledger| ledger.schema_version())
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        self.once(|ledger| ledger.migrate())
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        let ((), session) = self.call(|ledger| ledger.try_lock(name))?;
        self.held = Some(session);
        Ok(())
    }
}

/// See the module.
pub struct LentStore<'a> {
    service: &'a Service,
    /// The session in which an append to that mailbox has begun.
    ahead: Option<(Destination, StoreSession, Begun<'a>)>,
    /// A store that has begun an append and holds the copy's lock since: one of its own, for there
    /// is no session in it that others could want.
    own: Option<Box<dyn Store>>,
    /// A session kept for a turn.
    held: Option<StoreSession>,
}

impl<'a> LentStore<'a> {
    pub fn new(service: &'a Service) -> LentStore<'a> {
        LentStore { service, ahead: None, own: None, held: None }
    }

    /// Where many messages for one mailbox are better off together than each by itself.
    fn together(&self, copy: &Copy<'_>) -> bool {
        !self.service.joins && copy.head.len() + copy.bytes.len() <= SMALL
    }

    /// What has begun will not come to its end.
    fn take_back(&mut self) {
        if let Some((_, mut session, _begun)) = self.ahead.take() {
            session.throw_away();
        }
    }

    fn once<T>(
        &mut self,
        destination: &Destination,
        until: Instant,
        work: impl FnOnce(&mut dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.take_back();
        let was_held = self.held.is_some();
        let mut store = match self.held.take() {
            Some(store) => store,
            None => self.service.store(&destination.account, until)?,
        };
        let result = work(store.as_mut());
        self.service.mailboxes.learn(store.appends_together());
        match result {
            Err(_) => store.throw_away(),
            Ok(_) if was_held => self.held = Some(store),
            Ok(_) => {}
        }
        result
    }
}

/// With one session, none of whose calls goes beyond the deadlines.
fn append_now(
    service: &Service,
    destination: &Destination,
    copies: &[(Copy<'_>, &Deadline)],
) -> Vec<Result<Receipt, StoreError>> {
    let until =
        copies.iter().map(|(_, deadline)| deadline.last_bytes()).min().unwrap_or_else(Instant::now);
    let mut store = match service.store(&destination.account, until) {
        Ok(store) => store,
        Err(error) => {
            let why = error.to_string();
            return copies.iter().map(|_| Err(StoreError::NotStored(why.clone()))).collect();
        }
    };
    let appended = store.append_all(destination, copies);
    if appended.iter().any(Result::is_err) {
        store.throw_away();
    }
    appended
}

impl Drop for LentStore<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Store for LentStore<'_> {
    fn append_is_idempotent(&self) -> bool {
        self.service.joins
    }

    fn prepare(&mut self, _: &str, _: Instant) {}

    fn find(
        &mut self,
        destination: &Destination,
        sought: &Sought<'_>,
        until: Instant,
    ) -> Result<Vec<Found>, StoreError> {
        self.once(destination, until, |store| store.find(destination, sought, until))
    }

    fn begin_append(&mut self, destination: &Destination, copy: &Copy<'_>, deadline: &Deadline) {
        if self.service.joins {
            let mut own = self.service.own_store();
            own.begin_append(destination, copy, deadline);
            self.own = Some(own);
            return;
        }
        // Only what need not be waited for.
        if self.together(copy)
            && let Some(begun) = self.service.mailboxes.begin(destination)
            && let Ok(mut session) = self.service.store(&destination.account, Instant::now())
        {
            session.begin_append(destination, copy, deadline);
            self.ahead = Some((destination.clone(), session, begun));
        }
    }

    fn holds(&self, key: &Hash) -> bool {
        self.own.as_ref().is_some_and(|own| own.holds(key))
    }

    fn hold(
        &mut self,
        destination: &Destination,
        key: &Hash,
        deadline: &Deadline,
    ) -> Result<bool, StoreError> {
        self.let_go();
        let mut store = self.service.store(&destination.account, deadline.last_bytes())?;
        let is_held = store.hold(destination, key, deadline)?;
        self.held = is_held.then_some(store);
        Ok(is_held)
    }

    fn let_go(&mut self) {
        self.take_back();
        self.own = None;
        if let Some(mut held) = self.held.take() {
            held.let_go();
        }
    }

    fn append(
        &mut self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        if let Some(own) = self.own.as_mut().filter(|own| own.holds(copy.key)) {
            return own.append(destination, copy, deadline);
        }
        if let Some((_, mut session, _begun)) =
            self.ahead.take_if(|(begun_to, ..)| begun_to == destination)
        {
            let appended = session.append(destination, copy, deadline);
            if appended.is_err() {
                session.throw_away();
            }
            return appended;
        }
        // Later than that no last bytes may go out.
        let until = deadline.last_bytes();
        if self.held.is_some() || !self.together(copy) || !self.service.mailboxes.go_together() {
            return self
                .once(destination, until, |store| store.append(destination, copy, deadline));
        }
        self.take_back();
        let append =
            |copies: &[(Copy<'_>, &Deadline)]| append_now(self.service, destination, copies);
        self.service.mailboxes.append(destination, copy, deadline, until, append)
    }

    fn remove(
        &mut self,
        destination: &Destination,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.once(destination, until, |store| store.remove(destination, receipt, until))
    }

    fn remove_double(
        &mut self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.once(destination, until, |store| {
            store.remove_double(destination, double, keeper, until)
        })
    }

    fn way(&self) -> Option<Way> {
        self.service.own_store().way()
    }

    fn whose_mailboxes(&mut self, account: &str, until: Instant) -> Result<Whose, StoreError> {
        // Its sessions are its own: kept ones prove nothing.
        self.service.own_store().whose_mailboxes(account, until)
    }

    fn check(&mut self, account: &str, until: Instant) -> Result<Vec<String>, StoreError> {
        let mut store = self.service.store(account, until)?;
        store.check(account, until)
    }
}
