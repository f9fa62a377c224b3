//! A ledger over the sessions of one engine: it keeps some for the next call, opens them again, and
//! commits together what deliveries put on record at the same time ([`commits`]).
//!
//! A session is taken for each call and goes back after it, so that a delivery holds none while it
//! does something else; only a turn keeps its own. A session that had trouble is closed. A kept
//! connection may have died unseen: the first call in it is made once more, in a new one. Should
//! the dead one have done it, and only the answer be lost, the second call finds what the first one
//! did. A file does not die ([`Traits::is_a_file`]).

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::handed::{self, HandedSession};
use crate::sql::{SqlSession, asked, attempts, claims, kept, shared};
use crate::{Committed, Session, ToRecord, TurnState, rows};
use commits::Commits;
use onedrop_core::connections::Connections;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    Attempt, AttemptEnd, AttemptKey, Claim, Confirmed, CopyState, Due, Entry, FilterFields,
    LeaseTerms, Ledger, LedgerError, MessageKey, OpenTurn, PlannedStep, Recorded, Schema,
    SchemaVersion, ToConfirm, Turn,
};
use onedrop_core::lock_key::Hash;
use onedrop_core::message::Identity;
use onedrop_core::receipt::Receipt;
use onedrop_net::pool::{InUse, Limits, Pool};

mod commits;

/// Opens a session, or goes on with one of another process, whose calls return before the time
/// given.
pub type Open<S> =
    Arc<dyn Fn(Option<HandedSession>, Instant) -> Result<S, LedgerError> + Send + Sync>;

/// What an engine is like.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    /// How many transactions with several records and receipts each there are at a time at most;
    /// `None`: they cost no less than each in its own.
    pub commits_together: Option<usize>,
    /// A session is a file, no connection that may die: no call in it is
    /// made a second time, and after an error it is opened anew before it is closed. Were it closed
    /// first, the next one to open the file would take a commit that could not be synced for one
    /// that is on the disk.
    pub is_a_file: bool,
}

/// A [`Ledger`] over pooled sessions of one engine.
pub struct PooledLedger<S: Session> {
    open: Open<S>,
    most: usize,
    sessions: Arc<Pool<S>>,
    is_a_file: bool,
    commits: Option<Commits>,
    /// By how many seconds the ledger's clock is ahead of ours, by its last word.
    ahead: AtomicI64,
    /// What was read last. Should it be another by now, the record that rests on it is refused.
    fields: Mutex<Option<FilterFields>>,
}

impl<S: Session + 'static> PooledLedger<S> {
    pub fn over(open: Open<S>, traits: Traits, limits: Limits) -> PooledLedger<S> {
        PooledLedger {
            open,
            most: limits.used,
            sessions: Arc::new(Pool::new(limits)),
            is_a_file: traits.is_a_file,
            commits: traits.commits_together.map(Commits::at_once),
            ahead: AtomicI64::new(0),
            fields: Mutex::default(),
        }
    }

    fn fields(&self) -> MutexGuard<'_, Option<FilterFields>> {
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session, and whether it was kept from an earlier use.
    fn session(&self, until: Instant) -> Result<(InUse<S>, bool), LedgerError> {
        let right = self
            .sessions
            .take("", until)
            .map_err(|_| LedgerError::Busy(format!("all {} sessions (pool.ledger)", self.most)))?;
        let was_kept = right.is_at_hand();
        let mut session = right.or_make(|| (self.open)(None, until))?;
        if was_kept && let Err(error) = session.renew(until) {
            session.throw_away();
            return Err(error);
        }
        Ok((session, was_kept))
    }

    /// Makes a call, in a kept session or a new one.
    pub fn call<T>(
        &self,
        until: Instant,
        mut work: impl FnMut(&mut S) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        self.call_and_hold(until, true, &mut work).map(|(value, _)| value)
    }

    /// The same, but never a second time: the second answer would not show what the first call has
    /// done. After [`LedgerError::Unavailable`] it is not known.
    pub fn call_once<T>(
        &self,
        until: Instant,
        mut work: impl FnMut(&mut S) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        self.call_and_hold(until, false, &mut work).map(|(value, _)| value)
    }

    fn call_and_hold<T>(
        &self,
        until: Instant,
        may_repeat: bool,
        work: &mut dyn FnMut(&mut S) -> Result<T, LedgerError>,
    ) -> Result<(T, InUse<S>), LedgerError> {
        let (mut session, was_kept) = self.session(until)?;
        let mut result = work(&mut session);
        let is_lost = matches!(result, Err(LedgerError::Unavailable(_)));
        let repeats = may_repeat && was_kept && !self.is_a_file;
        if repeats && is_lost && Instant::now() < until {
            result = session.reopen(until).and_then(|()| work(&mut session));
        }
        match result {
            Ok(value) => Ok((value, session)),
            Err(error) => {
                if !matches!(error, LedgerError::Contended) {
                    give_up(&mut session, self.is_a_file, until);
                }
                Err(error)
            }
        }
    }

    /// [`Locks::hand_session_on`](onedrop_core::ledger::Locks::hand_session_on).
    pub fn hand_session_on(&self, to: &UnixDatagram, until: Instant) {
        let Ok(right) = self.sessions.take("", Instant::now()) else { return };
        if right.is_at_hand()
            && let Ok(mut session) = right.or_make(|| (self.open)(None, until))
        {
            match session.renew(until).and_then(|()| session.hand_on(to)) {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => tracing::debug!(%error, "the session was not handed on"),
            }
            session.throw_away();
        }
    }

    /// [`Locks::take_session_over`](onedrop_core::ledger::Locks::take_session_over).
    pub fn take_session_over(&self, from: &UnixDatagram, until: Instant) {
        // Those that are not needed are closed.
        while let Some(handed) = handed::receive(from) {
            let right = self.sessions.take("", Instant::now());
            let taken = right.map(|right| right.or_make(|| (self.open)(Some(handed), until)));
            if let Ok(Err(error)) = taken {
                tracing::debug!(%error, "the session was not taken over");
            }
        }
    }

    /// What a new message's time on record says of the ledger's clock.
    fn learn_the_time(&self, at: Option<SystemTime>, recorded: &Recorded) {
        if recorded.is_new && at != Some(recorded.recorded_at) {
            let now = rows::whole_secs(SystemTime::now());
            let ahead = rows::whole_secs(recorded.recorded_at).saturating_sub(now);
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }
}

impl<S: SqlSession + 'static> Ledger for PooledLedger<S> {
    fn time(&self) -> SystemTime {
        let ahead = self.ahead.load(Ordering::Relaxed);
        rows::time(rows::whole_secs(SystemTime::now()).saturating_add(ahead))
    }

    fn record(
        &self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
        until: Instant,
    ) -> Result<Recorded, LedgerError> {
        let one = ToRecord { entry: *entry, attempt, destinations, terms };
        let alone =
            || self.call(until, |session| only(session.record_and_confirm(&[one], &[])?.recorded));
        let recorded = match &self.commits {
            Some(commits) => commits.record(one, until, &self.commit()).unwrap_or_else(alone),
            None => alone(),
        }?;
        self.learn_the_time(entry.at, &recorded);
        Ok(recorded)
    }

    fn claim(
        &self,
        message: &MessageKey,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
        until: Instant,
    ) -> Result<Vec<CopyState>, LedgerError> {
        self.call(until, |session| {
            claims::claim_again(session, message, destinations, owner, terms)
        })
    }

    fn take_turn<'a>(
        &'a self,
        claim: &Claim,
        copy_key: &Hash,
        until: Instant,
    ) -> Result<Turn<'a>, LedgerError> {
        let mut work = |session: &mut S| session.take_turn(claim, copy_key);
        let (turn, session) = self.call_and_hold(until, true, &mut work)?;
        Ok(match turn {
            TurnState::Ours { in_doubt } => Turn::Ours {
                in_doubt,
                turn: Box::new(PooledTurn { session, is_a_file: self.is_a_file }),
            },
            TurnState::Placed(receipt) => Turn::Placed(receipt),
            TurnState::EpochGone => Turn::EpochGone,
        })
    }

    fn confirm(&self, receipt: &ToConfirm<'_>, until: Instant) -> Result<Confirmed, LedgerError> {
        let alone = || {
            self.call(until, |session| {
                only(session.record_and_confirm(&[], &[*receipt])?.confirmed)
            })
        };
        match &self.commits {
            Some(commits) => commits.confirm(*receipt, until, &self.commit()).unwrap_or_else(alone),
            None => alone(),
        }
    }

    fn release(&self, claims: &[Claim], until: Instant) -> Result<(), LedgerError> {
        self.call(until, |session| claims::give_back(session, claims))
    }

    fn keep(
        &self,
        message: &MessageKey,
        bytes: &[u8],
        why: &str,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        self.call(until, |session| kept::keep(session, message, bytes, why))
    }

    fn kept(&self, message: &MessageKey, until: Instant) -> Result<Option<String>, LedgerError> {
        self.call(until, |session| kept::kept(session, message))
    }

    fn filter_fields(&self, anew: bool, until: Instant) -> Result<FilterFields, LedgerError> {
        if let Some(known) = self.fields().clone().filter(|_| !anew) {
            return Ok(known);
        }
        let read = self.call(until, |session| {
            let Some(config) = session.program().config.clone() else {
                return Ok(FilterFields::default());
            };
            Ok(config.filter_fields(shared::config(session)?.as_deref())?)
        })?;
        *self.fields() = Some(read.clone());
        Ok(read)
    }

    fn has_copy(
        &self,
        identity: &Identity,
        destination: &Destination,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        self.call(until, |session| asked::has_copy(session, identity, destination))
    }

    fn has_placed_copy(&self, account: &str, until: Instant) -> Result<bool, LedgerError> {
        self.call(until, |session| asked::has_placed_copy(session, account))
    }

    fn account_reached(
        &self,
        addresses: &[&str],
        until: Instant,
    ) -> Result<Option<String>, LedgerError> {
        self.call(until, |session| asked::account_reached(session, addresses))
    }

    fn keep_until_due(
        &self,
        message: &MessageKey,
        destination: &Destination,
        kept: (&[u8], &str),
        after: Duration,
        until: Instant,
    ) -> Result<Due, LedgerError> {
        self.call(until, |session| kept::keep_until_due(session, message, destination, kept, after))
    }

    fn receipt_before(
        &self,
        message: i64,
        place: (&Destination, &str),
        earlier: Duration,
        until: Instant,
    ) -> Result<Option<Receipt>, LedgerError> {
        self.call(until, |session| asked::receipt_before(session, message, place, earlier))
    }

    fn finish(
        &self,
        identity: &Identity,
        recorded: Option<(AttemptKey, &Attempt, &AttemptEnd)>,
        others: &[(Attempt, AttemptEnd)],
        until: Instant,
    ) -> Result<(), LedgerError> {
        self.call(until, |session| attempts::finish(session, identity, recorded, others))
    }
}

impl<S: Session + 'static> PooledLedger<S> {
    /// Makes one call for several deliveries.
    fn commit(
        &self,
    ) -> impl Fn(&[ToRecord<'_>], &[ToConfirm<'_>], Instant) -> Result<Committed, LedgerError> {
        |records, receipts, until| {
            self.call(until, |session| session.record_and_confirm(records, receipts))
        }
    }
}

/// How often what all hosts share is read anew, where others write it as well.
const MOST_SHARING: u32 = 20;

/// [`Schema::check_program`].
fn check_program<S: SqlSession>(session: &mut S) -> Result<(), LedgerError> {
    session.schema_version()?.check()?;
    let Some(config) = session.program().config.clone() else { return Ok(()) };
    Ok(config.check(shared::config(session)?.as_deref())?)
}

/// A session is not used after an error; a file is opened anew before it is closed.
fn give_up<S: Session>(session: &mut InUse<S>, is_a_file: bool, until: Instant) {
    if !is_a_file || session.reopen(until).is_err() {
        session.throw_away();
    }
}

/// A turn, in the session that holds its lock.
struct PooledTurn<S: Session> {
    session: InUse<S>,
    is_a_file: bool,
}

impl<S: Session> OpenTurn for PooledTurn<S> {
    fn confirm(
        mut self: Box<Self>,
        receipt: &ToConfirm<'_>,
        until: Instant,
    ) -> Result<Confirmed, LedgerError> {
        let session = &mut self.session;
        session
            .renew(until)
            .and_then(|()| only(session.record_and_confirm(&[], &[*receipt])?.confirmed))
            .inspect_err(|_| give_up(&mut self.session, self.is_a_file, until))
    }
}

impl<S: Session> Drop for PooledTurn<S> {
    fn drop(&mut self) {
        // After a confirm there is no turn to leave any more.
        if self.session.leave().is_err() {
            self.session.throw_away();
        }
    }
}

impl<S: SqlSession + 'static> Schema for PooledLedger<S> {
    fn schema_version(&self, until: Instant) -> Result<SchemaVersion, LedgerError> {
        self.call(until, Session::schema_version)
    }

    fn check_program(&self, until: Instant) -> Result<(), LedgerError> {
        self.call(until, check_program)
    }

    fn migrate(&self, until: Instant) -> Result<Vec<String>, LedgerError> {
        self.call(until, Session::migrate)
    }

    fn clock(&self, until: Instant) -> Result<Option<SystemTime>, LedgerError> {
        self.call(until, Session::clock)
    }

    fn planned_migration(&self, until: Instant) -> Result<Vec<PlannedStep>, LedgerError> {
        self.call(until, Session::planned_migration)
    }

    fn share_config(&self, replace: bool, until: Instant) -> Result<(), LedgerError> {
        self.call(until, |session| {
            let Some(config) = session.program().config.clone() else { return Ok(()) };
            // Another host may write between our reading and writing.
            for _ in 0..MOST_SHARING {
                let (on_record, now) = (shared::config(session)?, SystemTime::now());
                let wanted = match on_record.as_deref() {
                    None => Some(config.json().to_owned()),
                    Some(theirs) if replace => Some(config.replacing(theirs, now)),
                    Some(theirs) => {
                        config.check(Some(theirs))?;
                        config.completed(theirs, now)?
                    }
                };
                if let Some(wanted) = wanted.as_deref().filter(|_| wanted != on_record) {
                    session.change(&shared::share(wanted, on_record.as_deref()))?;
                    if shared::config(session)?.as_deref() != Some(wanted) {
                        continue;
                    }
                }
                return check_program(session);
            }
            Err(LedgerError::Contended)
        })
    }

    fn prove_exclusion(&self, name: &str, until: Instant) -> Result<(), String> {
        let open = || (self.open)(None, until);
        let mut first = open().map_err(|error| error.to_string())?;
        let mut second = open().map_err(|error| format!("no second session: {error}"))?;
        first
            .try_lock(name)
            .map_err(|error| format!("a session cannot take a lock that nobody holds: {error}"))?;
        match second.try_lock(name) {
            Err(LedgerError::Contended) => {}
            Ok(()) => {
                return Err(
                    "two sessions hold one lock at the same time, so deliveries would not \
                     exclude each other (does ledger.url lead to different servers, as behind a \
                     balancer?)"
                        .to_owned(),
                );
            }
            Err(error) => {
                return Err(format!("a session cannot try a lock that another holds: {error}"));
            }
        }
        let not_back = |error| format!("a session cannot give its lock back: {error}");
        first.leave().map_err(not_back)?;
        second
            .try_lock(name)
            .map_err(|error| format!("a lock that was given back cannot be taken: {error}"))?;
        second.leave().map_err(not_back)
    }
}

impl<S: Session + 'static> Connections for PooledLedger<S> {
    fn close_idle(&self) {
        self.sessions.close_idle();
    }

    fn retire(&self) {
        self.sessions.retire();
    }

    fn count(&self) -> (usize, usize) {
        self.sessions.count()
    }
}

/// The outcome of the only one.
fn only<T>(outcomes: Vec<Option<Result<T, LedgerError>>>) -> Result<T, LedgerError> {
    let missing = || Err(LedgerError::Broken("a call without an answer".to_owned()));
    outcomes.into_iter().next().flatten().unwrap_or_else(missing)
}

#[cfg(test)]
mod tests;
