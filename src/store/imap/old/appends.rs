//! How [`ImapStore`] appends: in the session at hand or a new one, into a mailbox that may have to
//! be made, with a second try where the first one certainly stored nothing because a kept session
//! had ended; and the appends that are begun before it is decided whether they are to take effect.

use std::time::{Duration, Instant, SystemTime};

use super::{ImapStore, Slot};
use crate::directory::Destination;
use crate::lock_key::Hash;
use crate::store::Receipt;
use crate::store::imap::append::{self, AppendError, AppendMessage, Begun};
use crate::store::imap::session::{CommandError, NoSession, Refusal};

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
    fn is_of(&self, destination: &Destination, parts: &[AppendMessage<'_>]) -> bool {
        let [part] = parts else { return false };
        let same_copy = (self.key, self.recorded_at, self.size)
            == (*part.copy.key, part.copy.recorded_at, part.size);
        same_copy && self.destination == *destination
    }
}

impl ImapStore {
    /// Begins the append of a small message, if there was a session at hand: without one there is
    /// nothing to gain.
    pub(super) fn begin_part(
        &mut self,
        destination: &Destination,
        mailbox: &str,
        part: &AppendMessage<'_>,
    ) {
        if !matches!(self.sessions.get(&destination.account), Some(Slot::Open(..))) {
            return;
        }
        // It is a favour to whoever appends later, who may have more time to wait for this server.
        let until = part.deadline.last_bytes().min(Instant::now() + SOON);
        let begun = self.with_session(&destination.account, until, |session, _| {
            append::begin_early(session, mailbox, destination.shared, part, until)
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
        parts: &[AppendMessage<'_>],
    ) -> Result<Vec<Receipt>, AppendError> {
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
            && matches!(first, Err(AppendError::NotStored(_)))
            && Instant::now() < until
        {
            first = self.append_once(destination, mailbox, parts, until);
        }
        let Err(AppendError::Refused(refusal)) = first else { return first };
        if !matches!(refusal.code.as_str(), "TRYCREATE" | "NONEXISTENT") {
            return Err(AppendError::Refused(refusal));
        }
        if !self.connector.settings.create_mailboxes {
            let text =
                format!("it does not exist and store.create_mailboxes is off: {}", refusal.text);
            return Err(AppendError::NoMailbox(text));
        }
        self.create(destination, mailbox, until)?;
        self.append_once(destination, mailbox, parts, until)
    }

    /// The end of an append that has begun, in its session.
    fn append_rest(
        &mut self,
        ahead: &Ahead,
        parts: &[AppendMessage<'_>],
    ) -> Result<Vec<Receipt>, AppendError> {
        let account = &ahead.destination.account;
        let Some(Slot::Open(mut session, _)) = self.sessions.remove(account) else {
            return Err(AppendError::NotStored("the session was lost".to_owned()));
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
        parts: &[AppendMessage<'_>],
        until: Instant,
    ) -> Result<Vec<Receipt>, AppendError> {
        self.with_session(&destination.account, until, |session, _| {
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
    ) -> Result<(), AppendError> {
        self.with_session(&destination.account, until, |session, _| {
            match session.run(&format!("CREATE {mailbox}"), until) {
                Ok(_) => {}
                Err(CommandError::Refused(refusal)) if refusal.code == "ALREADYEXISTS" => {}
                Err(CommandError::Refused(Refusal { code, text })) => {
                    return Err(AppendError::Refused(Refusal {
                        code,
                        text: format!("creating it: {text}"),
                    }));
                }
                Err(CommandError::NoSession(no)) => return Err(no.into()),
                Err(CommandError::Lost(why)) => {
                    return Err(AppendError::NotStored(format!("creating it: {why}")));
                }
            }
            match session.run(&format!("SUBSCRIBE {mailbox}"), until) {
                Ok(_) | Err(CommandError::Refused(_)) => Ok(()),
                Err(CommandError::NoSession(no)) => Err(no.into()),
                Err(CommandError::Lost(why)) => {
                    Err(AppendError::NotStored(format!("subscribing to it: {why}")))
                }
            }
        })
    }
}

impl From<NoSession> for AppendError {
    fn from(no: NoSession) -> Self {
        match no {
            // As any trouble with a connection: a kept session may end, and with a new one it is as
            // if there had been none.
            NoSession::Failed(why) => AppendError::NotStored(why),
            no => AppendError::NoSession(no),
        }
    }
}
