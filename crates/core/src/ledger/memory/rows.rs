//! The rows of a ledger in memory, and what a statement does to them.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, SystemTime};

use super::time::{Time, wall_clock};
use crate::directory::Destination;
use crate::ledger::claim::{self, Change, DueIn, Lease, TurnState, Wanted};
use crate::ledger::doubts::CopyDoubt;
use crate::ledger::port::ToConfirm;
use crate::ledger::{
    Attempt, AttemptEnd, AttemptKey, Claim, Confirmed, CopyFacts, CopyState, Due, Entry, JobRow,
    JobRun, LeaseTerms, LedgerError, LockHolder, LockWaiter, MessageKey, RandomValue, Recorded,
    SharedConfig, is_older_than_memory, recorded_secs, units,
};
use crate::lock_key::Hash;
use crate::lock_name::LockName;
use crate::login::Way;
use crate::message::{Facts, Identity};
use crate::receipt::Receipt;

/// All that is on record, and the locks.
#[derive(Default)]
pub struct Rows {
    pub time: Time,
    /// The locks by their keys, each with its session's number, as long as it is held.
    pub locks: BTreeMap<i64, Weak<u64>>,
    /// How many sessions there have been.
    pub sessions: u64,
    /// By their numbers, as all rows here: a number is never used again.
    pub messages: BTreeMap<i64, MessageRow>,
    pub copies: BTreeMap<i64, CopyRow>,
    /// Copies to be looked at again, however old, by their numbers, each with the earliest time.
    pub unsettled: BTreeMap<i64, Duration>,
    pub attempts: BTreeMap<i64, AttemptRow>,
    /// The highest number of a row that there was.
    last_number: i64,
    /// Since when every message that was recorded is on record; `None`: for ever, which only tests
    /// have.
    pub remembers_since: Option<SystemTime>,
    pub purged_at: Option<SystemTime>,
    pub accounts: BTreeMap<String, String>,
    pub proven: Vec<Way>,
    /// With the version of its program, and when it said so.
    pub hosts: BTreeMap<String, (String, Duration)>,
    /// Slots of named locks.
    pub slots: BTreeMap<(Hash, u32), SlotRow>,
    /// Who waits for one, in the order of their turns, and until when its place lasts.
    pub waiters: Vec<(LockWaiter, Duration)>,
    /// Jobs by name, each with the random value of its last change.
    pub jobs: BTreeMap<String, (JobRow, RandomValue)>,
    pub job_runs: Vec<RunRow>,
    /// What all hosts' configurations have alike.
    pub config: Option<String>,
    /// What a crash of the server undoes ([`ToConfirm::may_be_lost`]), the newest last.
    pub unsynced: Vec<Unsynced>,
}

/// How a copy, and an attempt, were before a receipt that is not on the disk yet.
pub struct Unsynced {
    copy: i64,
    row: CopyRow,
    attempt: Option<AttemptKey>,
}

pub struct MessageRow {
    pub identity: Identity,
    pub facts: Facts,
    pub has_facts: bool,
    pub size_bytes: u64,
    pub raw: Option<(Vec<u8>, Duration)>,
    pub recorded_at: SystemTime,
    /// Its copies may be older than what the ledger remembers.
    pub looks_back: bool,
    /// The shared copy's bytes, and why it could not be placed.
    pub kept: Option<(Vec<u8>, String)>,
    pub kept_at: Duration,
}

#[derive(Clone)]
pub struct CopyRow {
    pub message: i64,
    pub destination: Destination,
    pub value: RandomValue,
    pub epoch: i64,
    pub owner: String,
    pub lease_value: RandomValue,
    pub lease: Duration,
    pub leased_until: Option<Duration>,
    pub in_doubt: bool,
    pub prior_doubt: bool,
    pub looks_back: bool,
    pub receipt: Option<Receipt>,
    pub facts: CopyFacts,
    pub placed_at: Duration,
    /// The epoch of the claim that confirmed; before that, as [`claim::release`] says.
    pub placed_epoch: i64,
    pub settled: bool,
    pub due_at: Option<Duration>,
    pub by_sender: bool,
}

/// A copy on record, as the rules see it.
#[derive(Debug, Clone)]
pub struct MemoryCopy {
    /// The numbers of the message's row and of its own.
    pub message: i64,
    pub copy: i64,
    pub row: claim::Row,
    /// In what time it is to be looked at again.
    pub look_in: Option<Duration>,
    pub facts: CopyFacts,
}

/// A slot of a named lock, as long as the ledger lives.
pub struct SlotRow {
    pub name: LockName,
    pub epoch: i64,
    pub owner: RandomValue,
    pub holder: LockHolder,
    pub acquired_at: Duration,
    pub lease: Duration,
    /// `None`: given back or stolen.
    pub until: Option<Duration>,
}

/// A run of a job, with the random values of the changes that added and ended it.
pub struct RunRow {
    pub run: JobRun,
    pub added_by: RandomValue,
    pub ended_by: Option<RandomValue>,
}

pub struct AttemptRow {
    /// When it began.
    pub at: Duration,
    pub message: Option<i64>,
    pub id_hash: Hash,
    pub attempt: Attempt,
    pub end: Option<AttemptEnd>,
}

impl Rows {
    /// Puts it on record where nothing is; then compares.
    pub fn share_first(&mut self, config: Option<&SharedConfig>) -> Result<(), LedgerError> {
        let Some(config) = config else { return Ok(()) };
        let on_record = self.config.get_or_insert_with(|| config.json().to_owned());
        Ok(config.check(Some(on_record))?)
    }

    /// Does what [`share_first`](Rows::share_first) does, in any case with `replace`; and adds keys
    /// that are not on record.
    pub fn share(
        &mut self,
        config: Option<&SharedConfig>,
        replace: bool,
    ) -> Result<(), LedgerError> {
        let Some(ours) = config else { return Ok(()) };
        let now = self.time.wall_clock();
        if let Some(theirs) = self.config.as_deref().filter(|_| replace) {
            self.config = Some(ours.replacing(theirs, now));
        }
        self.share_first(config)?;
        let completed = self.config.as_deref().map(|on_record| ours.completed(on_record, now));
        self.config = completed.transpose()?.flatten().or(self.config.take());
        Ok(())
    }

    pub fn record(
        &mut self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        let (identity, at) = (entry.identity, self.time.now());
        let known = self.known(identity);
        let message = known.unwrap_or_else(|| {
            let row = MessageRow {
                identity: identity.clone(),
                facts: entry.facts.clone(),
                has_facts: true,
                size_bytes: entry.size_bytes,
                raw: entry.raw.map(|bytes| (bytes.to_vec(), at)),
                recorded_at: units::time(recorded_secs(entry.at, self.time.wall_clock())),
                looks_back: is_older_than_memory(entry.oldest, self.remembers_since),
                kept: None,
                kept_at: at,
            };
            let message = self.next_number();
            self.messages.insert(message, row);
            message
        });
        let row = AttemptRow {
            at,
            message: Some(message),
            id_hash: identity.id_hash,
            attempt: attempt.clone(),
            end: None,
        };
        let number = self.next_number();
        self.attempts.insert(number, row);
        let key = MessageKey::new(message, identity);
        let copies = self.claims(&key, destinations, attempt, terms)?;
        let row = self.message(message)?;
        let (recorded_at, row) = (row.recorded_at, &self.messages[&message]);
        Ok(Recorded {
            message: key,
            recorded_at,
            is_new: known.is_none(),
            collision: self.collides(row),
            attempt: AttemptKey::Row(number),
            copies,
        })
    }

    fn next_number(&mut self) -> i64 {
        self.last_number += 1;
        self.last_number
    }

    /// The number of the message's row.
    pub fn known(&self, identity: &Identity) -> Option<i64> {
        let is_it = |Identity { id_hash, digest, .. }: &Identity| {
            *id_hash == identity.id_hash && *digest == identity.digest
        };
        self.messages.iter().find(|(_, row)| is_it(&row.identity)).map(|(number, _)| *number)
    }

    /// Claims the copies in their order; a mailbox that is named twice is leased once.
    pub fn claims(
        &mut self,
        message: &MessageKey,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError> {
        self.named(message)?;
        let message = message.number;
        let mut claim = |(at, destination): (usize, &Destination)| {
            let again = destinations[..at].iter().any(|other| other.is_same_mailbox(destination));
            self.claim(message, destination, owner, again, terms)
        };
        Ok(destinations.iter().enumerate().map(&mut claim).collect())
    }

    fn claim(
        &mut self,
        message: i64,
        destination: &Destination,
        owner: &Attempt,
        again: bool,
        terms: LeaseTerms,
    ) -> CopyState {
        let (copy, _) = self.copy_of(message, destination);
        let Some(row) = self.rules(copy) else { return CopyState::Busy };
        let wanted = Wanted { by: owner.value, again, shared: destination.shared, terms };
        let (found, change) = claim::claim(&row, &wanted);
        let row = change.as_ref().map_or(&row, |change| &change.row);
        let state = found.state(row.claim(copy));
        if let Some(change) = change
            && let Some(row) = self.write(copy, change)
        {
            row.owner = format!("{}:{}", owner.host, owner.pid);
        }
        state
    }

    /// What the rules ask of a copy's row.
    pub fn rules(&self, copy: i64) -> Option<claim::Row> {
        let row = self.copies.get(&copy)?;
        let (now, leases) = (self.time.now(), self.time.of_leases());
        let lease = row.leased_until.map(|until| Lease {
            by: Some(row.lease_value),
            length: row.lease,
            left: until.saturating_sub(leases),
        });
        Some(claim::Row {
            value: row.value,
            epoch: row.epoch,
            shared: row.destination.shared,
            lease,
            in_doubt: row.in_doubt,
            prior_doubt: row.prior_doubt,
            looks_back: row.looks_back,
            receipt: row.receipt.clone(),
            placed_epoch: row.placed_epoch,
            settled: row.settled,
            due_in: row.due_at.map(|at| at.saturating_sub(now)),
            kept: self.messages.get(&row.message).is_some_and(|message| message.kept.is_some()),
        })
    }

    pub fn lose_messages(&mut self) {
        (self.messages, self.copies, self.attempts) = Default::default();
        (self.locks, self.unsettled, self.unsynced) = Default::default();
    }

    pub fn put_message(&mut self, number: i64, identity: &Identity, looks_back: bool) {
        let row = MessageRow {
            identity: identity.clone(),
            facts: Facts::default(),
            has_facts: true,
            size_bytes: 1,
            raw: None,
            recorded_at: self.time.wall_clock(),
            looks_back,
            kept: None,
            kept_at: self.time.now(),
        };
        self.messages.insert(number, row);
    }

    pub fn put_copy(&mut self, copy: i64, message: i64, to: &Destination, change: Change) {
        if let Some(message) = self.messages.get_mut(&message).filter(|_| change.row.kept) {
            message.kept = Some((Vec::new(), String::new()));
        }
        self.copies.insert(copy, CopyRow::new(message, to, false));
        self.write(copy, change);
    }

    pub fn ruled(&self) -> Vec<MemoryCopy> {
        let now = self.time.now();
        let ruled = |(copy, one): (&i64, &CopyRow)| {
            let look_in = self.unsettled.get(copy).map(|at| at.saturating_sub(now));
            let (message, copy, facts) = (one.message, *copy, one.facts);
            Some(MemoryCopy { message, copy, row: self.rules(copy)?, look_in, facts })
        };
        self.copies.iter().filter_map(ruled).collect()
    }

    /// Writes what the rules say, but for bytes that are kept.
    pub fn write(&mut self, copy: i64, change: Change) -> Option<&mut CopyRow> {
        let (now, leases) = (self.time.now(), self.time.of_leases());
        if let Some(after) = change.look_after {
            self.look_again(copy, now + after);
        }
        let (row, next) = (self.copies.get_mut(&copy)?, change.row);
        row.value = next.value;
        row.epoch = next.epoch;
        row.destination.shared = next.shared;
        row.leased_until = next.lease.map(|lease| leases + lease.left);
        if let Some(lease) = next.lease {
            row.lease = lease.length;
            row.lease_value = lease.by.unwrap_or_default();
        }
        row.in_doubt = next.in_doubt;
        row.prior_doubt = next.prior_doubt;
        row.looks_back = next.looks_back;
        row.receipt = next.receipt;
        row.placed_epoch = next.placed_epoch;
        row.settled = next.settled;
        row.due_at = next.due_in.map(|after| row.due_at.unwrap_or(now + after));
        Some(row)
    }

    /// The copy's row, which is made if it is not there, and its number.
    fn copy_of(&mut self, message: i64, destination: &Destination) -> (i64, &mut CopyRow) {
        let is_it =
            |row: &CopyRow| row.message == message && row.destination.is_same_mailbox(destination);
        let known = self.copies.iter().find(|(_, row)| is_it(row)).map(|(number, _)| *number);
        let number = known.unwrap_or_else(|| self.next_number());
        let looks_back = self.messages.get(&message).is_some_and(|row| row.looks_back);
        let row = self.copies.entry(number);
        (number, row.or_insert_with(|| CopyRow::new(message, destination, looks_back)))
    }

    /// The row that a claim names.
    ///
    /// # Errors
    /// [`LedgerError::Forgotten`].
    pub fn copy(&mut self, id: i64, value: RandomValue) -> Result<&mut CopyRow, LedgerError> {
        let row = self.copies.get_mut(&id).filter(|row| row.value == value);
        row.ok_or(LedgerError::Forgotten)
    }

    /// # Errors
    /// [`LedgerError::Forgotten`].
    pub fn message(&mut self, id: i64) -> Result<&mut MessageRow, LedgerError> {
        self.messages.get_mut(&id).ok_or(LedgerError::Forgotten)
    }

    /// The row of the message that the key names.
    pub fn named(&mut self, key: &MessageKey) -> Result<&mut MessageRow, LedgerError> {
        let row = self.message(key.number)?;
        match MessageKey::new(key.number, &row.identity) == *key {
            true => Ok(row),
            false => Err(LedgerError::Forgotten),
        }
    }

    /// Whether another message with the same Message-ID and other content is on record.
    pub fn collides(&self, one: &MessageRow) -> bool {
        let Identity { message_id, id_hash, digest } = &one.identity;
        let mut others = self.messages.values().map(|other| &other.identity);
        message_id.is_some()
            && others.any(|other| other.id_hash == *id_hash && other.digest != *digest)
    }

    pub fn turn(&self, claim: &Claim) -> Result<TurnState, LedgerError> {
        claim::turn(self.rules(claim.copy).as_ref(), claim)
    }

    pub fn confirm(&mut self, one: &ToConfirm<'_>) -> Result<Confirmed, LedgerError> {
        let ToConfirm { claim, receipt, facts, end, may_be_lost } = *one;
        let now = self.time.now();
        let row = self.rules(claim.copy);
        let (confirmed, change) = claim::confirm(row.as_ref(), &claim, receipt);
        let may_be_lost =
            may_be_lost && confirmed.is_ok() && row.is_some_and(|row| claim::may_be_lost(&row));
        match self.copies.get(&claim.copy).filter(|_| may_be_lost) {
            Some(row) => self.unsynced.push(Unsynced {
                copy: claim.copy,
                row: row.clone(),
                attempt: end.map(|(attempt, _)| attempt),
            }),
            // A commit brings to the disk what was committed before it.
            None if change.is_some() => self.unsynced.clear(),
            None => {}
        }
        if let Some(change) = change {
            let frees_kept = change.frees_kept;
            if let Some(row) = self.write(claim.copy, change)
                && confirmed.as_ref().is_ok_and(|confirmed| *confirmed == Confirmed::Recorded)
            {
                row.placed_at = now;
                row.owner.clear();
                row.facts = facts;
                let message = row.message;
                if frees_kept {
                    self.forget_kept(message)?;
                }
            }
        }
        if let (Ok(Confirmed::Recorded), Some((attempt, end))) = (&confirmed, end) {
            self.end(attempt, end);
        }
        confirmed
    }

    /// The server crashes: what was not on its disk is undone.
    pub fn lose_unsynced(&mut self) -> usize {
        let lost = self.unsynced.len();
        while let Some(Unsynced { copy, row, attempt }) = self.unsynced.pop() {
            self.copies.insert(copy, row);
            if let Some(row) = attempt.and_then(|attempt| self.attempt(attempt)) {
                row.end = None;
            }
        }
        lost
    }

    /// Notes that the copy has to be looked at again at that time, or before where that is on
    /// record.
    fn look_again(&mut self, copy: i64, at: Duration) {
        let known = self.unsettled.entry(copy).or_insert(at);
        *known = at.min(*known);
    }

    /// What is kept of a message goes once its last shared copy is placed.
    pub fn forget_kept(&mut self, message: i64) -> Result<(), LedgerError> {
        if !self.has_unplaced_shared(message) {
            self.message(message)?.kept = None;
        }
        Ok(())
    }

    pub fn has_unplaced_shared(&self, message: i64) -> bool {
        let mut copies = self.copies.iter().filter(|(_, copy)| copy.message == message);
        copies.any(|(number, _)| self.rules(*number).is_some_and(|row| row.wants_bytes()))
    }

    pub fn release(&mut self, claims: &[Claim]) {
        for claim in claims {
            if let Some(change) = claim::release(self.rules(claim.copy).as_ref(), claim) {
                self.write(claim.copy, change);
            }
        }
    }

    pub fn keep(
        &mut self,
        message: &MessageKey,
        bytes: &[u8],
        why: &str,
    ) -> Result<bool, LedgerError> {
        self.named(message)?;
        if !self.has_unplaced_shared(message.number) {
            return Ok(false);
        }
        let now = self.time.now();
        let row = self.named(message)?;
        let (bytes, at) = match row.kept.take() {
            Some((bytes, _)) => (bytes, row.kept_at),
            None => (bytes.to_vec(), now),
        };
        row.kept = Some((bytes, why.to_owned()));
        row.kept_at = at;
        Ok(true)
    }

    pub fn keep_until_due(
        &mut self,
        message: &MessageKey,
        destination: &Destination,
        kept: (&[u8], &str),
        after: Duration,
    ) -> Result<Due, LedgerError> {
        self.named(message)?;
        let message = message.number;
        let (copy, _) = self.copy_of(message, destination);
        let row = self.rules(copy).ok_or(LedgerError::Forgotten)?;
        let (due, change) = claim::keep_until_due(&row, after);
        if let DueIn::Placed(receipt) = due {
            return Ok(Due::Placed(receipt));
        }
        if let Some(change) = change {
            self.write(copy, change);
            let (now, (bytes, why)) = (self.time.now(), kept);
            let row = self.message(message)?;
            if row.kept.is_none() {
                row.kept = Some((bytes.to_vec(), why.to_owned()));
                row.kept_at = now;
            }
        }
        let at = self.copies.get(&copy).and_then(|row| row.due_at).unwrap_or_default();
        Ok(Due::At(units::time(units::whole_secs(wall_clock(at)))))
    }

    /// Puts an attempt's end on record.
    pub fn end(&mut self, attempt: AttemptKey, end: &AttemptEnd) {
        if let Some(row) = self.attempt(attempt) {
            row.end = Some(end.clone());
        }
    }

    /// Every attempt has a row of its own here.
    pub fn attempt(&mut self, key: AttemptKey) -> Option<&mut AttemptRow> {
        let AttemptKey::Row(number) = key else { return None };
        self.attempts.get_mut(&number)
    }

    /// Puts attempts on record that [`Rows::record`] did not.
    pub fn note(&mut self, identity: &Identity, ended: &[(Attempt, AttemptEnd)]) {
        let (at, message) = (self.time.now(), self.known(identity));
        for (attempt, end) in ended {
            let (id_hash, end) = (identity.id_hash, Some(end.clone()));
            let row = AttemptRow { at, message, id_hash, attempt: attempt.clone(), end };
            let number = self.next_number();
            self.attempts.insert(number, row);
        }
    }
}

impl CopyRow {
    /// What the rules about doubts ask of it.
    pub fn doubt(&self) -> CopyDoubt {
        CopyDoubt {
            in_doubt: self.in_doubt,
            prior_doubt: self.prior_doubt,
            looks_back: self.looks_back,
            has_lease: self.leased_until.is_some(),
            placed_epoch: self.placed_epoch,
            epoch: self.epoch,
            is_placed: self.receipt.is_some(),
            is_settled: self.settled,
        }
    }

    fn new(message: i64, destination: &Destination, looks_back: bool) -> CopyRow {
        let claim::Row { value, epoch, in_doubt, prior_doubt, placed_epoch, .. } =
            claim::Row::new(looks_back);
        CopyRow {
            message,
            destination: destination.clone(),
            value,
            epoch,
            owner: String::new(),
            lease_value: RandomValue::default(),
            lease: Duration::ZERO,
            leased_until: None,
            in_doubt,
            prior_doubt,
            looks_back,
            receipt: None,
            facts: CopyFacts::default(),
            placed_at: Duration::ZERO,
            placed_epoch,
            settled: false,
            due_at: None,
            by_sender: false,
        }
    }
}

impl MessageRow {
    /// Why `copy` could not be placed, if it is the shared one whose bytes are kept.
    pub fn kept_of(&self, copy: &CopyRow) -> Option<&str> {
        let (_, why) =
            self.kept.as_ref().filter(|_| copy.destination.shared && copy.receipt.is_none())?;
        Some(why)
    }
}
