//! The store on an IMAP server as the delivery uses it that is not yet moved to the port's handles.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::deadline::{Deadline, UNACKNOWLEDGED};
use crate::directory::Destination;
use crate::store::{Copy, Found, Receipt, Sought, Store, StoreError, Way, Whose};

use super::append::AppendMessage;
use super::session::{CommandError, NoSession, Session};
use super::slot::not_appended;
use super::{Connector, ImapSettings, facts, failed, look, mailbox, proof, removal};
use appends::Ahead;

mod appends;

/// The store on an IMAP server.
pub struct ImapStore {
    connector: Arc<Connector>,
    sessions: HashMap<String, Slot>,
    /// As [`IDLE`] says.
    idle: Duration,
    /// The session of the last work had been used before.
    was_used: bool,
    /// In whose session an append has begun.
    ahead: Option<Ahead>,
}

enum Slot {
    Opening(Receiver<Result<Session, NoSession>>),
    /// And since when nobody used it.
    Open(Box<Session>, Instant),
}

/// A session that was idle for this long is asked whether it is still there before anything is done
/// in it: an append whose last bytes went to a host that is gone would be in doubt.
const IDLE: Duration = Duration::from_secs(2);

/// A login in the background that has the same time gets this much more to say what it waited for.
const TO_SAY_WHY: Duration = Duration::from_millis(200);

impl ImapStore {
    /// A store on the server that `settings` name; connects to nothing yet.
    pub fn new(settings: ImapSettings) -> ImapStore {
        ImapStore::through(Arc::new(Connector::new(settings)))
    }

    /// As `new`, sharing with others what it takes to log in.
    pub fn through(connector: Arc<Connector>) -> ImapStore {
        ImapStore { connector, sessions: HashMap::new(), idle: IDLE, was_used: false, ahead: None }
    }

    /// Runs `work` with the account's session, and keeps the session if it is still good.
    fn with_session<T, E>(
        &mut self,
        account: &str,
        until: Instant,
        work: impl FnOnce(&mut Session, &ImapSettings) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<NoSession>,
    {
        let mut session = self.session(account, until)?;
        let result = work(&mut session, &self.connector.settings);
        if session.is_open() {
            self.sessions.insert(account.to_owned(), Slot::Open(session, Instant::now()));
        }
        result
    }

    /// The account's session: the one at hand, the one being opened, or a new one.
    fn session(&mut self, account: &str, until: Instant) -> Result<Box<Session>, NoSession> {
        self.was_used = false;
        let mut is_used = false;
        if let Some(ahead) = self.ahead.take() {
            // It waits for the end of a command that will not come.
            self.sessions.remove(&ahead.destination.account);
        }
        let at_hand = match self.sessions.remove(account) {
            Some(Slot::Open(mut session, since)) => {
                is_used = true;
                let soon = until.min(Instant::now() + UNACKNOWLEDGED);
                (since.elapsed() < self.idle || session.answers(soon)).then_some(session)
            }
            Some(Slot::Opening(opening)) => {
                let told = until + TO_SAY_WHY;
                match opening.recv_timeout(told.saturating_duration_since(Instant::now())) {
                    Ok(opened) => Some(Box::new(opened?)),
                    Err(RecvTimeoutError::Timeout) => {
                        self.sessions.insert(account.to_owned(), Slot::Opening(opening));
                        let ImapSettings { host, port, .. } = &self.connector.settings;
                        return Err(NoSession::Failed(format!(
                            "{host}:{port}: not logged in in time"
                        )));
                    }
                    Err(RecvTimeoutError::Disconnected) => None,
                }
            }
            None => None,
        };
        if let Some(mut session) = at_hand
            && session.is_alive(until)
        {
            self.was_used = is_used;
            return Ok(session);
        }
        self.connector.open(account, until).map(Box::new)
    }
}

impl Store for ImapStore {
    fn append_is_idempotent(&self) -> bool {
        false
    }

    fn prepare(&mut self, account: &str, until: Instant) {
        if self.sessions.contains_key(account) {
            return;
        }
        let (opened, opening) = channel();
        let (connector, name) = (Arc::clone(&self.connector), account.to_owned());
        let spawned = thread::Builder::new().name("imap-login".to_owned()).spawn(move || {
            let _ = opened.send(connector.open(&name, until));
        });
        // Without a thread the first use opens the session itself.
        if spawned.is_ok() {
            self.sessions.insert(account.to_owned(), Slot::Opening(opening));
        }
    }

    fn find(
        &mut self,
        destination: &Destination,
        sought: &Sought<'_>,
        until: Instant,
    ) -> Result<Vec<Found>, StoreError> {
        let mailbox = mailbox(destination)?;
        self.with_session(&destination.account, until, |session, settings| {
            look::find(session, &mailbox, sought, settings.dedup_by, until)
                .map_err(|error| failed(&format!("looking in {destination}"), error))
        })
    }

    fn append(
        &mut self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        let mailbox = mailbox(destination)?;
        let part = [AppendMessage::new(copy, deadline)];
        let appended = self.append_parts(destination, &mailbox, &part);
        let receipts = appended.map_err(|error| not_appended(destination, error))?;
        Ok(receipts.into_iter().next().unwrap_or(Receipt::Unnamed))
    }

    fn appends_together(&self) -> bool {
        let has = |slot: &Slot| matches!(slot, Slot::Open(session, _) if session.capabilities().has("MULTIAPPEND"));
        self.sessions.values().any(has)
    }

    fn begin_append(&mut self, destination: &Destination, copy: &Copy<'_>, deadline: &Deadline) {
        if let Ok(mailbox) = mailbox(destination) {
            self.begin_part(destination, &mailbox, &AppendMessage::new(copy, deadline));
        }
    }

    fn append_all(
        &mut self,
        destination: &Destination,
        copies: &[(Copy<'_>, &Deadline)],
    ) -> Vec<Result<Receipt, StoreError>> {
        if let [(copy, deadline)] = copies {
            return vec![self.append(destination, copy, deadline)];
        }
        let parts: Vec<AppendMessage<'_>> =
            copies.iter().map(|(copy, deadline)| AppendMessage::new(copy, deadline)).collect();
        let together = mailbox(destination).and_then(|mailbox| {
            let appended = self.append_parts(destination, &mailbox, &parts);
            appended.map_err(|error| not_appended(destination, error))
        });
        match together {
            Ok(receipts) => receipts.into_iter().map(Ok).collect(),
            Err(StoreError::InDoubt(why)) => {
                copies.iter().map(|_| Err(StoreError::InDoubt(why.clone()))).collect()
            }
            // None was stored, perhaps because of one of them: each by itself.
            Err(_) => copies
                .iter()
                .map(|(copy, deadline)| self.append(destination, copy, deadline))
                .collect(),
        }
    }

    fn remove(
        &mut self,
        destination: &Destination,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        let Receipt::Uid { validity, uid } = *receipt else {
            return Err(StoreError::NotStored(format!(
                "no UID to take the copy out of {destination} by"
            )));
        };
        self.take_out(destination, uid, until, |session, mailbox| {
            removal::remove(session, mailbox, validity, uid, until)
        })
    }

    fn remove_double(
        &mut self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        let (Receipt::Uid { validity, uid }, Receipt::Uid { validity: same, uid: keeper }) =
            (double, keeper)
        else {
            return Err(StoreError::NotStored(format!(
                "no UIDs to tell two copies in {destination} apart by"
            )));
        };
        if validity != same || uid == keeper {
            return Err(StoreError::NotStored(format!(
                "uid {uid} and uid {keeper} do not stand side by side"
            )));
        }
        self.take_out(destination, *uid, until, |session, mailbox| {
            removal::remove_double(session, mailbox, *validity, *uid, *keeper, until)
        })
    }

    fn way(&self) -> Option<Way> {
        Some(self.connector.settings.way())
    }

    fn whose_mailboxes(&mut self, account: &str, until: Instant) -> Result<Whose, StoreError> {
        proof::whose_mailboxes(&self.connector, account, until)
    }

    fn check(&mut self, account: &str, until: Instant) -> Result<Vec<String>, StoreError> {
        self.with_session(account, until, |session, settings| {
            let inbox = look::open(session, "EXAMINE", "\"INBOX\"", until)
                .map_err(|error| failed(&format!("opening INBOX of {account}"), error))?;
            Ok(facts(session, settings, account, inbox))
        })
    }
}

impl ImapStore {
    /// Takes out message `uid` the way that `work` does, if the server can take out one alone.
    fn take_out(
        &mut self,
        destination: &Destination,
        uid: u32,
        until: Instant,
        work: impl FnOnce(&mut Session, &str) -> Result<(), CommandError>,
    ) -> Result<(), StoreError> {
        let mailbox = mailbox(destination)?;
        self.with_session(&destination.account, until, |session, _| {
            if !session.capabilities().has("UIDPLUS") {
                let why = format!(
                    "cannot take uid {uid} out of {destination}: the server has no UIDPLUS"
                );
                return Err(StoreError::NotStored(why));
            }
            work(session, &mailbox)
                .map_err(|error| failed(&format!("taking uid {uid} out of {destination}"), error))
        })
    }
}
