//! How [`ImapStore`] appends: in the session at hand or a new one, into a mailbox that may have to
//! be made, with a second try where the first one certainly stored nothing because a kept session
//! had ended; and the appends that are begun before it is decided whether they are to take effect.

use std::time::{Duration, Instant, SystemTime};

use super::append::{self, AppendTrouble, Begun, Part};
use super::login::NoSession;
use super::session::{Refusal, Trouble};
use super::{ImapStore, Slot, refused};
use crate::directory::Destination;
use crate::lock_key::Hash;
use crate::store::{Receipt, StoreError};

/// A server that can be waited for takes a small message at once.
const SOON: Duration = Duration::from_secs(1);

/// An append that has begun, and what it is of.
pub(super) struct Ahead {
    pub destination: Destination,
    key: Hash,
    recorded_at: SystemTime,
    size: usize,
    begun: Begun,
    /// As for an idle session: what has waited for long may wait at a host that is gone.
    since: Instant,
}

impl Ahead {
    fn is_of(&self, destination: &Destination, parts: &[Part<'_>]) -> bool {
        let [part] = parts else { return false };
        let same_copy = (self.key, self.recorded_at, self.size)
            == (*part.copy.key, part.copy.recorded_at, part.size);
        same_copy && self.destination == *destination
    }
}

impl ImapStore {
    /// Begins the append of a small message, if there was a session at hand: without one there is
    /// nothing to gain.
    pub(super) fn begin_part(&mut self, destination: &Destination, mailbox: &str, part: &Part<'_>) {
        if !matches!(self.sessions.get(&destination.account), Some(Slot::Open(..))) {
            return;
        }
        // It is a favour to whoever appends later, who may have more time to wait for this server.
        let until = part.deadline.last_bytes().min(Instant::now() + SOON);
        let begun = self.with_session(&destination.account, until, |session, _| {
            append::begin_ahead(session, mailbox, destination.shared, part, until)
        });
        self.ahead = begun.ok().map(|begun| Ahead {
            destination: destination.clone(),
            key: *part.copy.key,
            recorded_at: part.copy.recorded_at,
            size: part.size,
            begun,
            since: Instant::now(),
        });
    }

    /// Appends `parts` in one command; creates the mailbox if that is missing.
    pub(super) fn append_parts(
        &mut self,
        destination: &Destination,
        mailbox: &str,
        parts: &[Part<'_>],
    ) -> Result<Vec<Receipt>, AppendTrouble> {
        let until = append::until(parts);
        let idle = self.idle;
        let mut first = match self
            .ahead
            .take_if(|ahead| ahead.since.elapsed() < idle && ahead.is_of(destination, parts))
        {
            Some(ahead) => self.append_rest(&ahead, parts),
            None => self.append_once(destination, mailbox, parts, until),
        };
        // A session that was kept may end in that very moment: with a new one it is as if there had
        // been none.
        if self.was_used
            && matches!(first, Err(AppendTrouble::NotStored(_)))
            && Instant::now() < until
        {
            first = self.append_once(destination, mailbox, parts, until);
        }
        let Err(AppendTrouble::Refused(refusal)) = first else { return first };
        if !matches!(refusal.code.as_str(), "TRYCREATE" | "NONEXISTENT") {
            return Err(AppendTrouble::Refused(refusal));
        }
        if !self.door.settings.create_mailboxes {
            let text =
                format!("it does not exist and store.create_mailboxes is off: {}", refusal.text);
            return Err(AppendTrouble::NoMailbox(text));
        }
        self.create(destination, mailbox, until)?;
        self.append_once(destination, mailbox, parts, until)
    }

    /// The end of an append that has begun, in its session.
    fn append_rest(
        &mut self,
        ahead: &Ahead,
        parts: &[Part<'_>],
    ) -> Result<Vec<Receipt>, AppendTrouble> {
        let account = &ahead.destination.account;
        let Some(Slot::Open(mut session, _)) = self.sessions.remove(account) else {
            return Err(AppendTrouble::NotStored("the session was lost".to_owned()));
        };
        self.was_used = true;
        let appended = append::complete(&mut session, &ahead.begun, parts);
        if session.is_open() {
            self.sessions.insert(account.clone(), Slot::Open(session, Instant::now()));
        }
        appended
    }

    fn append_once(
        &mut self,
        destination: &Destination,
        mailbox: &str,
        parts: &[Part<'_>],
        until: Instant,
    ) -> Result<Vec<Receipt>, AppendTrouble> {
        self.with_session(&destination.account, until, |session, _| {
            if parts.len() > 1 && !append::take_together(session.capabilities(), parts) {
                return Err(AppendTrouble::NotStored("not taken in one command".to_owned()));
            }
            append::append(session, mailbox, destination.shared, parts)
        })
    }

    /// Creates and subscribes a mailbox. That somebody else was quicker is fine; not subscribed, it
    /// still holds mail.
    fn create(
        &mut self,
        destination: &Destination,
        mailbox: &str,
        until: Instant,
    ) -> Result<(), AppendTrouble> {
        self.with_session(&destination.account, until, |session, _| {
            match session.run(&format!("CREATE {mailbox}"), until) {
                Ok(_) => {}
                Err(Trouble::Refused(refusal)) if refusal.code == "ALREADYEXISTS" => {}
                Err(Trouble::Refused(Refusal { code, text })) => {
                    return Err(AppendTrouble::Refused(Refusal {
                        code,
                        text: format!("creating it: {text}"),
                    }));
                }
                Err(Trouble::Broken(why)) => {
                    return Err(AppendTrouble::NotStored(format!("creating it: {why}")));
                }
            }
            match session.run(&format!("SUBSCRIBE {mailbox}"), until) {
                Ok(_) | Err(Trouble::Refused(_)) => Ok(()),
                Err(Trouble::Broken(why)) => {
                    Err(AppendTrouble::NotStored(format!("subscribing to it: {why}")))
                }
            }
        })
    }
}

pub(super) fn not_appended(destination: &Destination, trouble: AppendTrouble) -> StoreError {
    let doing = format!("appending to {destination}");
    match trouble {
        AppendTrouble::Refused(refusal) => refused(&doing, refusal),
        AppendTrouble::NotStored(why) => StoreError::NotStored(format!("{doing}: {why}")),
        AppendTrouble::NoMailbox(why) => StoreError::Refused(format!("{doing}: {why}")),
        AppendTrouble::NoSession(no) => no.map(|why| format!("{doing}: {why}")).into(),
        AppendTrouble::TooBig { size, limit } => StoreError::TooBig(format!(
            "{doing}: {size} bytes, the server's APPENDLIMIT is {limit}"
        )),
        AppendTrouble::InDoubt(why) => StoreError::InDoubt(format!("{doing}: {why}")),
    }
}

impl From<NoSession> for AppendTrouble {
    fn from(no: NoSession) -> Self {
        match no {
            // As any trouble with a connection: a kept session may end, and with a new one it is as
            // if there had been none.
            NoSession::Failed(why) => AppendTrouble::NotStored(why),
            no => AppendTrouble::NoSession(no),
        }
    }
}
