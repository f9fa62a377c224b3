//! `onedrop replay --from-ledger`: what the ledger keeps whole (`ledger.keep_raw`) is delivered
//! again to each copy that is on record and neither placed nor due, by a delivery's own code:
//! lease, look, append, receipt. So it writes no second copy, however often it runs, and beside
//! deliveries. With `sent.after` what is for Sent becomes due. It ends where each further copy
//! would only fail as well.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::failures::FailedForNow;
use super::report::EndMeaning;
use onedrop_core::clock::Clock;
use onedrop_core::deadline::Deadline;
use onedrop_core::deliver::{self, CopyEnd, DeliveryRequest, Failure, Left, Means, Policy};
use onedrop_core::directory::Destination;
use onedrop_core::envelope::Envelope;
use onedrop_core::ledger::{
    Attempt, AttemptKey, CopyState, LeaseTerms, LedgerError, MessageKey, RandomValue, RawMessage,
    Recorded, ReplayLedger,
};
use onedrop_core::message::Message;
use onedrop_core::receipt::Receipt;
use onedrop_core::store::Store;

/// How long a call to the ledger may take.
const LEDGER_TIME: Duration = Duration::from_secs(60);

/// How to replay.
pub struct ReplayTask<'a> {
    /// Messages that were recorded since then.
    pub since: SystemTime,
    pub dry_run: bool,
    pub policy: &'a Policy,
    /// How long the placing of a copy may take, and the part of that kept for the store's answer.
    pub time: (Duration, Duration),
    pub clock: &'a Arc<dyn Clock>,
    /// Who takes leases.
    pub by: &'a Attempt,
    /// Whether copies may be written, asked before each: the folder above all mailboxes may go at
    /// any time.
    pub may_write: &'a dyn Fn(Instant) -> Result<(), Failure>,
}

/// A copy, and its end.
pub struct Replayed<'a> {
    pub message: &'a RawMessage,
    pub destination: &'a Destination,
    pub end: ReplayedEnd,
}

/// How the replay of a copy ended.
pub enum ReplayedEnd {
    WouldBeDelivered,
    Tried(CopyEnd),
    /// It is due, or is now, and for `settle` alone: that looks first for the mail program's own.
    Due,
    /// Ten that were tried for its account before have failed.
    Left,
}

/// Replays all there is, and passes the end of each copy to `tell`. Returns why the run ended
/// before that; or that all it tried failed for now.
///
/// # Errors
/// The ledger cannot be read, or takes nothing from this host. A copy's own failure is its end.
pub fn from_ledger(
    task: &ReplayTask<'_>,
    ledger: &dyn ReplayLedger,
    store: &dyn Store,
    tell: &mut dyn FnMut(&Replayed<'_>),
) -> Result<Option<&'static str>, LedgerError> {
    ledger.check_program(task.clock.now() + LEDGER_TIME)?;
    let (mut after, mut failed) = (0, FailedForNow::new(false));
    while let Some(raw) = ledger.next_raw(task.since, after, task.clock.now() + LEDGER_TIME)? {
        after = raw.message;
        for (destination, _) in raw.copies.iter().filter(|one| is_to_be_placed(one, &raw)) {
            let account = std::slice::from_ref(&destination.account);
            let end = match task.dry_run {
                true => ReplayedEnd::WouldBeDelivered,
                false if failed.is_left(account) => ReplayedEnd::Left,
                false => match place(task, ledger, store, &raw, destination).transpose() {
                    Some(end) => ReplayedEnd::Tried(end.unwrap_or_else(CopyEnd::Failed)),
                    None => ReplayedEnd::Due,
                },
            };
            let why = match &end {
                ReplayedEnd::Tried(CopyEnd::Placed(_) | CopyEnd::Left(_)) => EndMeaning::Delivered,
                ReplayedEnd::Tried(CopyEnd::Failed(failure)) => EndMeaning::of(&failure.ending()),
                ReplayedEnd::WouldBeDelivered | ReplayedEnd::Left | ReplayedEnd::Due => {
                    EndMeaning::OfIts
                }
            };
            tell(&Replayed { message: &raw, destination, end });
            if failed.ends(why, account, &destination.account) {
                return Ok(Some(match why {
                    EndMeaning::NoLedger => "the ledger is out of reach",
                    _ => "ten copies in a row fail for now",
                }));
            }
        }
    }
    Ok(failed.is_in_vain().then_some("none could be delivered"))
}

/// Whether a copy is not placed, or is to stand elsewhere and is not on record there: its delivery
/// ended before it came that far.
fn is_to_be_placed((one, receipt): &(Destination, Option<Receipt>), raw: &RawMessage) -> bool {
    let Some(receipt) = receipt else { return true };
    receipt.mailbox_instead().is_some_and(|mailbox| {
        let is_there =
            |other: &Destination| other.account == one.account && other.mailbox == mailbox;
        !raw.copies.iter().any(|(other, _)| is_there(other))
    })
}

/// `None`: it is due, and left to `settle`.
fn place(
    task: &ReplayTask<'_>,
    ledger: &dyn ReplayLedger,
    store: &dyn Store,
    raw: &RawMessage,
    destination: &Destination,
) -> Result<Option<CopyEnd>, Failure> {
    let message = message(raw)?;
    let (total, answer) = task.time;
    let deadline = Deadline::by(Arc::clone(task.clock), total, answer);
    (task.may_write)(deadline.end())?;
    let by = Attempt { value: RandomValue::default(), ..task.by.clone() };
    let job = DeliveryRequest {
        message: &message,
        envelope: &Envelope { sender: raw.sender.clone(), ..Envelope::default() },
        own: &[],
        destinations: std::slice::from_ref(destination),
        heads: &[],
        host: &by.host,
        started: deadline.now(),
        oldest: None,
        one_ending: false,
    };
    let terms =
        LeaseTerms { lease: task.policy.lease, join: store.append_is_idempotent(), due: false };
    let key = MessageKey::new(raw.message, &raw.identity);
    let copies = match job.claimed(task.policy) {
        [] => Vec::new(),
        claimed => ledger.claim(&key, claimed, &by, terms, deadline.end())?,
    };
    if copies == [CopyState::Busy] {
        if destination.shared && ledger.kept(&key, deadline.end())?.is_some() {
            return Ok(None);
        }
        return Err(Failure::Contended(format!("the copy {destination}")));
    }
    let recorded = Recorded {
        message: key,
        recorded_at: raw.recorded_at,
        is_new: false,
        collision: false,
        attempt: AttemptKey::Row(0), // none: only this run has asked for it
        copies,
    };
    let means = Means {
        policy: task.policy,
        ledger,
        store,
        deadline: &deadline,
        watch: &(),
        look_backs: &(),
    };
    Ok(match deliver::place(&job, means, &by, &recorded) {
        CopyEnd::Left(Left::Due { .. }) => None,
        end => Some(end),
    })
}

/// The message as it is to stand in mailboxes. Where several have a copy, the bytes on record are
/// those that came for one of them: then without what names a single recipient.
fn message(raw: &RawMessage) -> Result<Message, Failure> {
    let message = raw.identity.message_in(raw.bytes.clone());
    let message = message
        .ok_or_else(|| Failure::Setup("the bytes on record are another message's".to_owned()))?;
    let owners = raw.copies.iter().filter(|(one, _)| !one.shared).count();
    if owners <= 1 {
        return Ok(message);
    }
    let shared = Message::new(message.shared_copy().to_vec(), message.dedup_by());
    debug_assert_eq!(shared.identity(), message.identity());
    Ok(shared)
}
