//! A ledger in memory, for tests: it keeps every promise of the port, and can be told to fail.
//! Clones are sessions of one ledger; its clock stands still until a test moves it. Nothing
//! outlives the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::recorded_secs;
use super::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, Entry, LeaseTerms,
    Ledger, LedgerError, RandomValue, Recorded, SCHEMA_VERSION, Trace, TraceAddress, TraceAttempt,
    TraceCopy, TraceFilter, TracePart, Turn, Window,
};
use crate::directory::{Asked, Destination};
use crate::lock_key::{self, Hash};
use crate::message::{Facts, Identity};
use crate::store::{Receipt, Way};

mod verify;

/// A session with a ledger in memory.
pub struct MemoryLedger {
    shared: Arc<Mutex<Shared>>,
    session: u64,
    holds: Option<i64>,
}

#[derive(Default)]
struct Shared {
    now: Duration,
    sessions: u64,
    locks: HashMap<i64, u64>,
    messages: Vec<MessageRow>,
    copies: Vec<CopyRow>,
    attempts: Vec<AttemptRow>,
    accounts: HashMap<String, String>,
    proven: Vec<Way>,
}

struct MessageRow {
    id_hash: Hash,
    digest: Hash,
    message_id: Option<Vec<u8>>,
    facts: Facts,
    size_bytes: u64,
    raw: Option<Vec<u8>>,
    recorded_at: SystemTime,
    /// The shared copy's bytes, and why it could not be placed.
    kept: Option<(Vec<u8>, String)>,
}

struct CopyRow {
    message: i64,
    destination: Destination,
    value: RandomValue,
    epoch: i64,
    owner: String,
    lease_value: RandomValue,
    lease: Duration,
    leased_until: Option<Duration>,
    in_doubt: bool,
    prior_doubt: bool,
    receipt: Option<Receipt>,
    facts: CopyFacts,
    placed_at: Duration,
    /// The epoch of the claim that confirmed.
    placed_epoch: i64,
    settled: bool,
}

struct AttemptRow {
    /// When it began.
    at: Duration,
    message: Option<i64>,
    id_hash: Hash,
    attempt: Attempt,
    end: Option<AttemptEnd>,
}

impl Default for MemoryLedger {
    fn default() -> Self {
        MemoryLedger::session_of(Arc::default())
    }
}

impl Clone for MemoryLedger {
    fn clone(&self) -> Self {
        MemoryLedger::session_of(self.shared.clone())
    }
}

impl Drop for MemoryLedger {
    /// As with a real server: what a lost session held is free.
    fn drop(&mut self) {
        self.unlock();
    }
}

impl MemoryLedger {
    fn session_of(shared: Arc<Mutex<Shared>>) -> MemoryLedger {
        let session = {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.sessions += 1;
            shared.sessions
        };
        MemoryLedger { shared, session, holds: None }
    }

    /// Moves the ledger's clock.
    pub fn advance(&self, by: Duration) {
        self.shared().now += by;
    }

    /// Sets the ledger's clock back, not beyond its beginning.
    pub fn set_back(&self, by: Duration) {
        let mut shared = self.shared();
        shared.now = shared.now.saturating_sub(by);
    }

    /// Makes `directory.query` answer `account` for `address`.
    pub fn add_account(&self, address: &str, account: &str) {
        self.shared().accounts.insert(address.to_owned(), account.to_owned());
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // A test that panicked elsewhere must not hide this one's result.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&mut self, key: i64) -> Result<(), LedgerError> {
        self.unlock();
        let session = self.session;
        let holder = *self.shared().locks.entry(key).or_insert(session);
        if holder != session {
            return Err(LedgerError::Contended);
        }
        self.holds = Some(key);
        Ok(())
    }

    fn unlock(&mut self) {
        if let Some(key) = self.holds.take() {
            self.shared().locks.remove(&key);
        }
    }
}

/// Whether `part` is in `text`, whatever its case.
fn holds(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}

/// What the ledger's clock stands for.
fn wall_clock(now: Duration) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + now
}

impl Shared {
    /// Claims the copies in their order; a mailbox that is named twice is leased once.
    fn claims(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Vec<CopyState> {
        let mut claim = |(at, destination): (usize, &Destination)| {
            let is_named_before =
                destinations[..at].iter().any(|other| other.is_same_mailbox(destination));
            self.claim(message, destination, owner, is_named_before, terms)
        };
        destinations.iter().enumerate().map(&mut claim).collect()
    }

    fn claim(
        &mut self,
        message: i64,
        destination: &Destination,
        owner: &Attempt,
        is_named_before: bool,
        terms: LeaseTerms,
    ) -> CopyState {
        let (now, until) = (self.now, self.now + terms.lease);
        let lease_value = owner.value;
        let owner = format!("{}:{}", owner.host, owner.pid);
        let found = self.copies.iter_mut().enumerate().find(|(_, row)| {
            row.message == message
                && row.destination.account == destination.account
                && row.destination.mailbox == destination.mailbox
        });
        let Some((index, row)) = found else {
            let value = RandomValue::default();
            self.copies.push(CopyRow {
                message,
                destination: destination.clone(),
                value,
                epoch: 1,
                owner,
                lease_value,
                lease: terms.lease,
                leased_until: Some(until),
                in_doubt: true,
                prior_doubt: false,
                receipt: None,
                facts: CopyFacts::default(),
                placed_at: Duration::ZERO,
                placed_epoch: 0,
                settled: false,
            });
            return CopyState::Claimed(Claim {
                copy: self.copies.len() as i64,
                value,
                epoch: 1,
                in_doubt: false,
            });
        };
        if let Some(receipt) = &row.receipt {
            return CopyState::Placed(receipt.clone());
        }
        let is_own = row.lease_value == lease_value && !is_named_before;
        if row.leased_until.is_some_and(|until| until > now) {
            if !terms.join && !is_own {
                return CopyState::Busy;
            }
            row.prior_doubt |= !is_own;
            row.lease = row.lease.max(terms.lease);
        } else {
            row.epoch += 1;
            row.prior_doubt = row.in_doubt;
            row.lease = terms.lease;
        }
        row.destination.shared |= destination.shared;
        row.lease_value = lease_value;
        row.in_doubt = true;
        row.owner = owner;
        row.leased_until = row.leased_until.max(Some(until));
        let (copy, value) = (index as i64 + 1, row.value);
        CopyState::Claimed(Claim { copy, value, epoch: row.epoch, in_doubt: row.prior_doubt })
    }

    fn copy(&mut self, id: i64, value: RandomValue) -> Result<&mut CopyRow, LedgerError> {
        usize::try_from(id - 1)
            .ok()
            .and_then(|index| self.copies.get_mut(index))
            .filter(|row| row.value == value)
            .ok_or_else(|| LedgerError::Broken(format!("no copy {id}")))
    }

    fn message(&mut self, id: i64) -> Result<&mut MessageRow, LedgerError> {
        let row = usize::try_from(id - 1).ok().and_then(|index| self.messages.get_mut(index));
        row.ok_or_else(|| LedgerError::Broken(format!("no message {id}")))
    }

    /// Whether another message with the same Message-ID and other content is on record.
    fn collides(&self, one: &MessageRow) -> bool {
        let is_other =
            |other: &MessageRow| other.id_hash == one.id_hash && other.digest != one.digest;
        one.message_id.is_some() && self.messages.iter().any(is_other)
    }

    fn finish(&mut self, attempt: i64, end: &AttemptEnd) {
        if let Some(row) =
            usize::try_from(attempt - 1).ok().and_then(|index| self.attempts.get_mut(index))
        {
            row.end = Some(end.clone());
        }
    }
}

impl Ledger for MemoryLedger {
    fn record(
        &mut self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        let identity = entry.identity;
        self.lock(lock_key::advisory_key(&identity.id_hash))?;
        let mut guard = self.shared();
        let shared = &mut *guard;
        let known = shared
            .messages
            .iter()
            .position(|row| row.id_hash == identity.id_hash && row.digest == identity.digest);
        let message = known.unwrap_or_else(|| {
            shared.messages.push(MessageRow {
                id_hash: identity.id_hash,
                digest: identity.digest,
                message_id: identity.message_id.clone(),
                facts: entry.facts.clone(),
                size_bytes: entry.size_bytes,
                raw: entry.raw.map(<[u8]>::to_vec),
                recorded_at: SystemTime::UNIX_EPOCH
                    + Duration::from_secs(recorded_secs(entry.at, wall_clock(shared.now))),
                kept: None,
            });
            shared.messages.len() - 1
        });
        let id = message as i64 + 1;
        let at = shared.now;
        let row = AttemptRow {
            at,
            message: Some(id),
            id_hash: identity.id_hash,
            attempt: attempt.clone(),
            end: None,
        };
        shared.attempts.push(row);
        let copies = shared.claims(id, destinations, attempt, terms);
        let recorded = Recorded {
            message: id,
            recorded_at: shared.messages[message].recorded_at,
            is_new: known.is_none(),
            collision: shared.collides(&shared.messages[message]),
            attempt: shared.attempts.len() as i64,
            copies,
        };
        drop(guard);
        self.unlock();
        Ok(recorded)
    }

    fn claim(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        let mut shared = self.shared();
        Ok(shared.claims(message, destinations, owner, terms))
    }

    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<Turn, LedgerError> {
        self.lock(lock_key::advisory_key(copy_key))?;
        let turn = self.shared().copy(claim.copy, claim.value).map(|row| match &row.receipt {
            Some(receipt) => Turn::Placed(receipt.clone()),
            None if row.epoch != claim.epoch => Turn::EpochGone,
            None => Turn::Ours { in_doubt: row.prior_doubt },
        });
        if !matches!(turn, Ok(Turn::Ours { .. })) {
            self.unlock();
        }
        turn
    }

    fn confirm(
        &mut self,
        claim: &Claim,
        receipt: &Receipt,
        facts: CopyFacts,
        end: Option<(i64, &AttemptEnd)>,
    ) -> Result<Confirmed, LedgerError> {
        self.unlock();
        let confirmed = {
            let mut shared = self.shared();
            let now = shared.now;
            let row = shared.copy(claim.copy, claim.value)?;
            match &row.receipt {
                // The first one wins, whatever its epoch.
                None => {
                    row.placed_at = now;
                    row.placed_epoch = claim.epoch;
                    row.receipt = Some(receipt.clone());
                    row.leased_until = None;
                    row.in_doubt = false;
                    row.facts = facts;
                    let (message, is_shared) = (row.message, row.destination.shared);
                    if is_shared {
                        shared.message(message)?.kept = None;
                    }
                    Confirmed::Recorded
                }
                // Copies without a name are one only where no other than ours can have been placed.
                Some(by)
                    if by != receipt
                        || *receipt == Receipt::Unnamed && row.placed_epoch != claim.epoch =>
                {
                    let by = by.clone();
                    row.epoch += 1;
                    row.settled = false;
                    Confirmed::Superseded { by }
                }
                Some(_) => Confirmed::Recorded,
            }
        };
        if let (Confirmed::Recorded, Some((attempt, end))) = (&confirmed, end) {
            self.shared().finish(attempt, end);
        }
        Ok(confirmed)
    }

    fn keep(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<bool, LedgerError> {
        let mut shared = self.shared();
        let is_it = |copy: &CopyRow| {
            copy.message == message && copy.destination.shared && copy.receipt.is_none()
        };
        if !shared.copies.iter().any(is_it) {
            return Ok(false);
        }
        let kept = &mut shared.message(message)?.kept;
        let bytes = kept.take().map_or_else(|| bytes.to_vec(), |(bytes, _)| bytes);
        *kept = Some((bytes, why.to_owned()));
        Ok(true)
    }

    fn kept(&mut self, message: i64) -> Result<Option<String>, LedgerError> {
        Ok(self.shared().message(message)?.kept.as_ref().map(|(_, why)| why.clone()))
    }

    fn kept_bytes(&mut self, message: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        Ok(self.shared().message(message)?.kept.as_ref().map(|(bytes, _)| bytes.clone()))
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        self.unlock();
        Ok(())
    }

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError> {
        self.unlock();
        let mut shared = self.shared();
        for claim in claims {
            let row = shared.copy(claim.copy, claim.value)?;
            if row.epoch == claim.epoch && row.receipt.is_none() {
                row.leased_until = None;
                row.in_doubt = row.prior_doubt;
            }
        }
        Ok(())
    }

    fn finish(&mut self, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
        self.shared().finish(attempt, end);
        Ok(())
    }

    fn note_attempts(
        &mut self,
        identity: &Identity,
        ended: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError> {
        let mut shared = self.shared();
        let message = shared
            .messages
            .iter()
            .position(|row| row.id_hash == identity.id_hash && row.digest == identity.digest);
        let at = shared.now;
        shared.attempts.extend(ended.iter().map(|(attempt, end)| AttemptRow {
            at,
            message: message.map(|index| index as i64 + 1),
            id_hash: identity.id_hash,
            attempt: attempt.clone(),
            end: Some(end.clone()),
        }));
        Ok(())
    }

    fn renew(&mut self, _until: Instant) -> Result<(), LedgerError> {
        Ok(())
    }

    fn reopen(&mut self, _until: Instant) -> Result<(), LedgerError> {
        self.unlock();
        Ok(())
    }

    fn account_by_query(
        &mut self,
        _query: &str,
        asked: &Asked,
    ) -> Result<Option<String>, LedgerError> {
        Ok(self.shared().accounts.get(&asked.address).cloned())
    }

    fn trace(&mut self, filter: &TraceFilter<'_>, limit: u32) -> Result<Vec<Trace>, LedgerError> {
        if filter.name == Some("") {
            return Ok(Vec::new());
        }
        let shared = self.shared();
        let hashes = filter.name.map(super::wanted_hashes).unwrap_or_default();
        let lower = filter.name.map(str::to_lowercase);
        let names = |row: &AttemptRow| {
            filter.name.is_some_and(|name| row.attempt.queue_id == name)
                || lower
                    .as_ref()
                    .is_some_and(|lower| row.attempt.recipient.to_lowercase() == *lower)
        };
        let is_recorded =
            |row: &AttemptRow| shared.messages.iter().any(|message| message.id_hash == row.id_hash);
        let wants = |row: &&AttemptRow| {
            let is_named = match filter.name {
                Some(_) => hashes.contains(&row.id_hash) || names(row),
                None => !is_recorded(row),
            };
            let sender = filter.sender.is_none_or(|sender| holds(&row.attempt.sender, sender));
            let since = filter.since.is_none_or(|since| wall_clock(row.at) >= since);
            is_named
                && sender
                && since
                && filter.subject.is_none()
                && (!filter.failed || !is_recorded(row))
        };
        let unrecorded: Vec<&AttemptRow> =
            shared.attempts.iter().filter(|row| row.message.is_none()).collect();
        let mut found: Vec<Hash> = Vec::new();
        let mut traces = Vec::new();
        for (id, row) in
            shared.messages.iter().enumerate().rev().map(|(index, row)| (index as i64 + 1, row))
        {
            let of = || shared.attempts.iter().filter(move |row| row.message == Some(id));
            let copies = || shared.copies.iter().filter(move |copy| copy.message == id);
            let wants_account = |copy: &CopyRow| {
                [filter.name, lower.as_deref()].contains(&Some(copy.destination.account.as_str()))
            };
            let is_named = filter.name.is_none()
                || hashes.contains(&row.id_hash)
                || of().any(names)
                || copies().any(wants_account);
            let is_done =
                |row: &AttemptRow| row.end.as_ref().is_some_and(|end| end.outcome == "delivered");
            let recipient = |row: &AttemptRow| row.attempt.recipient.to_lowercase();
            let is_last = |at: usize, one: &AttemptRow| {
                !of().skip(at + 1).any(|later| recipient(later) == recipient(one) && is_done(later))
            };
            let failed = || {
                copies().any(|copy| copy.receipt.is_none())
                    || of().enumerate().any(|(at, one)| !is_done(one) && is_last(at, one))
            };
            let from = || {
                row.facts
                    .addresses
                    .iter()
                    .filter(|one| one.role == "from")
                    .filter_map(|one| one.address.as_ref())
            };
            let is_by = |sender: &str| {
                of().next().is_some_and(|first| holds(&first.attempt.sender, sender))
                    || from().any(|one| holds(one, sender))
            };
            if !is_named
                || filter.since.is_some_and(|since| row.recorded_at < since)
                || filter.sender.is_some_and(|sender| !is_by(sender))
                || filter.subject.is_some_and(|text| {
                    !holds(row.facts.subject.as_deref().unwrap_or_default(), text)
                })
                || filter.failed && !failed()
            {
                continue;
            }
            let is_first = !found.contains(&row.id_hash);
            found.push(row.id_hash);
            let at_it =
                unrecorded.iter().copied().filter(|one| is_first && one.id_hash == row.id_hash);
            traces.push(Trace {
                copies: copies().map(|copy| copy.trace(shared.now, row)).collect(),
                collision: shared.collides(row),
                attempts: of().chain(at_it).map(AttemptRow::trace).collect(),
                ..row.trace(id)
            });
        }
        // Attempts at messages that are not on record.
        let mut others: Vec<&AttemptRow> = unrecorded.into_iter().filter(wants).collect();
        others.retain(|row| !found.contains(&row.id_hash));
        while let Some(id_hash) = others.first().map(|row| row.id_hash) {
            let (one, rest): (Vec<_>, _) =
                others.into_iter().partition(|row| row.id_hash == id_hash);
            others = rest;
            traces.push(Trace {
                attempts: one.into_iter().map(AttemptRow::trace).collect(),
                ..Trace::default()
            });
        }
        traces.truncate(limit as usize);
        Ok(traces)
    }

    fn copies_to_verify(
        &mut self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        Ok(self.shared().copies_to_verify(window, after, limit))
    }

    fn latest_copies(&mut self, limit: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        Ok(self.shared().latest_copies(limit))
    }

    fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError> {
        self.shared().settle(copy, receipt)
    }

    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError> {
        Ok(self.shared().proven.contains(way))
    }

    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError> {
        let mut shared = self.shared();
        shared.proven.retain(|other| other != way);
        if holds {
            shared.proven.push(way.clone());
        }
        let _ = host;
        Ok(())
    }

    fn schema_version(&mut self) -> Result<i64, LedgerError> {
        Ok(SCHEMA_VERSION)
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        Ok(Vec::new())
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        self.lock(lock_key::advisory_key(&lock_key::name_hash(name)))
    }
}

impl MessageRow {
    /// Why `copy` could not be placed, if it is the shared one whose bytes are kept.
    fn kept_of(&self, copy: &CopyRow) -> Option<&str> {
        let (_, why) =
            self.kept.as_ref().filter(|_| copy.destination.shared && copy.receipt.is_none())?;
        Some(why)
    }

    fn trace(&self, id: i64) -> Trace {
        Trace {
            message: id,
            message_id: self
                .message_id
                .as_deref()
                .map(|id| String::from_utf8_lossy(id).into_owned()),
            digest: lock_key::hex(&self.digest),
            subject: self.facts.subject.clone(),
            size_bytes: self.size_bytes as i64,
            in_reply_to: self.facts.in_reply_to.clone(),
            references: self.facts.references.clone(),
            raw_kept: self.raw.is_some(),
            addresses: self.facts.addresses.iter().map(TraceAddress::from).collect(),
            parts: self.facts.parts.iter().map(TracePart::from).collect(),
            ..Trace::default()
        }
    }
}

impl CopyRow {
    fn trace(&self, now: Duration, message: &MessageRow) -> TraceCopy {
        let leased = self.leased_until.is_some_and(|until| until > now);
        TraceCopy {
            account: self.destination.account.clone(),
            mailbox: self.destination.mailbox.clone(),
            state: super::copy_state(self.receipt.is_some(), leased, self.in_doubt).to_owned(),
            receipt: self.receipt.as_ref().map(ToString::to_string),
            epoch: self.epoch,
            owner: self.owner.clone(),
            nul_replaced: self.facts.nul_replaced,
            found_by_look: self.facts.found_by_look,
            kept: message.kept_of(self).map(str::to_owned),
            ..TraceCopy::default()
        }
    }
}

impl AttemptRow {
    fn trace(&self) -> TraceAttempt {
        TraceAttempt {
            recipient: self.attempt.recipient.clone(),
            sender: self.attempt.sender.clone(),
            queue_id: self.attempt.queue_id.clone(),
            host: self.attempt.host.clone(),
            pid: i64::from(self.attempt.pid),
            duration_ms: self.end.as_ref().map(|end| end.duration.as_millis() as i64),
            outcome: self.end.as_ref().map(|end| end.outcome.to_owned()),
            status: self.end.as_ref().map(|end| end.status.clone()),
            text: self.end.as_ref().map(|end| end.text.clone()),
            ..TraceAttempt::default()
        }
    }
}
