//! How a copy comes into its mailbox: in the session at hand or another one, into a mailbox that
//! may have to be made, alone or with others. The append of a small copy may begin early, in a
//! session that is idle anyway: all but its last bytes goes out while the ledger is asked, which
//! lets 5 to 12 % more messages through on one connection. A slot that is dropped with a begun
//! append closes that session, and the server drops what it was sent.
//!
//! A message with a damaged header, which a server refuses, is appended once more, wrapped
//! ([`message::wrapper`]): or it would be refused for as long as Postfix tries.

use std::time::{Duration, Instant};

use super::append::{self, AppendMessage};
use super::error::ImapError;
use super::grouped::{self, EarlyMark, only};
use super::session::IDLE;
use super::{ImapStore, Taken, check_name, look, names};
use onedrop_core::deadline::Deadline;
use onedrop_core::directory::Destination;
use onedrop_core::message;
use onedrop_core::store::{Copy, FoundCopy, LAST_FIELD, Need, Receipt, Slot, StoreError};

/// A server that can be waited for takes a small message at once.
const SOON: Duration = Duration::from_secs(1);

/// A place for one copy. Its session is the one of the look, or of the begun append.
pub struct ImapSlot<'a> {
    store: &'a ImapStore,
    destination: &'a Destination,
    copy: Copy<'a>,
    deadline: &'a Deadline,
    session: Option<Taken>,
    early: Option<EarlyAppend>,
    found_try: Option<i64>,
    is_wrapped: bool,
}

/// An append that has begun early.
struct EarlyAppend {
    tag: String,
    /// When it began: after a long wait the host may be gone, as with an idle session.
    since: Instant,
    _mark: EarlyMark,
}

/// A slot; `None` where an early append would have to wait, and where others append to the mailbox.
///
/// # Errors
/// The mailbox cannot have such a name, or no session can be had while last bytes may go out.
pub fn reserve<'a>(
    store: &'a ImapStore,
    destination: &'a Destination,
    copy: Copy<'a>,
    need: Need,
    deadline: &'a Deadline,
) -> Result<Option<ImapSlot<'a>>, StoreError> {
    match check_name(destination) {
        Err(_) if need == Need::Early => return Ok(None),
        named => named?,
    }
    let (session, early, found_try, is_wrapped) = (None, None, None, false);
    let mut slot =
        ImapSlot { store, destination, copy, deadline, session, early, found_try, is_wrapped };
    match need {
        Need::Early => return Ok(slot.begin().map(|()| slot)),
        Need::Write => {}
        Need::Look => {
            slot.session = Some(store.take(&destination.account, deadline.last_bytes())?);
        }
    }
    Ok(Some(slot))
}

impl Slot for ImapSlot<'_> {
    fn look(&mut self, until: Instant) -> Result<Option<Receipt>, StoreError> {
        self.give_up_early(|_| true);
        let found = match self.copy.looked.and_then(|looked| looked.found.clone()) {
            Some(found) => Some(found),
            None => {
                let sought = [self.copy.sought()];
                let (to, session) = (self.destination, &mut self.session);
                self.store.find_in(to, &sought, session, until)?.into_iter().flatten().next()
            }
        };
        self.is_wrapped = found.as_ref().is_some_and(|found| found.is_wrapped);
        self.found_try = found.as_ref().and_then(FoundCopy::of_try);
        Ok(found.map(|found| found.to_record()))
    }

    fn found_try(&self) -> Option<i64> {
        self.found_try
    }

    fn append(&mut self) -> Result<Receipt, StoreError> {
        let ImapSlot { store, copy, deadline, .. } = *self;
        self.give_up_early(|early| early.since.elapsed() >= IDLE);
        if message::is_damaged(copy.bytes) {
            return self.append_damaged();
        }
        if self.session.is_none() && grouped::is_small(&copy) && store.connector.has_multiappend() {
            return store.appends.append(self.destination, &copy, deadline, |copies, session| {
                self.append_together(copies, session)
            });
        }
        let (early, mut session) = (self.early.take(), self.session.take());
        let message = [AppendMessage::new(&copy, deadline)];
        let appended = self.append_messages(&message, &mut session, early.as_ref());
        appended.map(only).map_err(|error| self.failed(error))
    }

    fn is_wrapped(&self) -> bool {
        self.is_wrapped
    }
}

impl ImapSlot<'_> {
    /// Begins the append in an idle session.
    fn begin(&mut self) -> Option<()> {
        // What the server calls another mailbox may have to be asked for.
        let mailbox = self.destination.place();
        let is_odd = message::is_damaged(self.copy.bytes);
        if !grouped::is_small(&self.copy) || mailbox != "INBOX" || is_odd {
            return None;
        }
        let mark = self.store.appends.begin(self.destination)?;
        // The append itself may have more time to wait for this server.
        let until = self.deadline.last_bytes().min(Instant::now() + SOON);
        let mut taken = self.store.take_idle(&self.destination.account, until)?;
        let message = AppendMessage::new(&self.copy, self.deadline);
        let seen = self.destination.shared;
        let mailbox = names::in_command(&mut taken.session, mailbox, until).ok()?;
        let begun = append::begin_early(&mut taken.session, &mailbox, seen, &message, until);
        let tag = begun.ok()?;
        self.session = Some(taken);
        self.early = Some(EarlyAppend { tag, since: Instant::now(), _mark: mark });
        Some(())
    }

    /// Gives up the begun append, with its session, which waits for the end of the command.
    fn give_up_early(&mut self, is_over: impl FnOnce(&mut EarlyAppend) -> bool) {
        if self.early.take_if(is_over).is_some() {
            self.session = None;
        }
    }

    /// Appends the copy as it came, and where the server refuses that, wrapped.
    fn append_damaged(&mut self) -> Result<Receipt, StoreError> {
        let (copy, mut session) = (self.copy, self.session.take());
        let message = [AppendMessage::new(&copy, self.deadline)];
        let refused = match self.append_messages(&message, &mut session, None) {
            Err(ImapError::Refused(no)) if no.may_concern_the_message() => ImapError::Refused(no),
            appended => return appended.map(only).map_err(|error| self.failed(error)),
        };
        // A mark of the copy stays outside: a look searches for it.
        let inside = message::handed(copy.head, LAST_FIELD);
        let mark = &copy.head[..copy.head.len() - inside.len()];
        let wrapper = message::wrapper(&[inside, copy.bytes].concat());
        let head = [mark, &wrapper, inside].concat();
        let copy = Copy { head: &head, ..copy };
        let message = [AppendMessage::new(&copy, self.deadline)];
        match self.append_messages(&message, &mut session, None) {
            Ok(receipts) => {
                self.is_wrapped = true;
                Ok(only(receipts))
            }
            // It was not about the header then.
            Err(ImapError::Refused(_)) => Err(self.failed(refused)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// What an error means for the copy.
    fn failed(&self, error: ImapError) -> StoreError {
        error.while_appending(&format!("appending to {}", self.destination))
    }

    /// Appends `copies` of different messages to the mailbox, in one command.
    fn append_together(
        &self,
        copies: &[(Copy<'_>, &Deadline)],
        session: &mut Option<Taken>,
    ) -> Result<Vec<Receipt>, StoreError> {
        let messages: Vec<AppendMessage<'_>> =
            copies.iter().map(|(copy, deadline)| AppendMessage::new(copy, deadline)).collect();
        self.append_messages(&messages, session, None).map_err(|error| self.failed(error))
    }

    /// Appends `messages` in one command, or ends the one that has begun early in the session at
    /// hand; creates the mailbox if it is missing.
    fn append_messages(
        &self,
        messages: &[AppendMessage<'_>],
        session: &mut Option<Taken>,
        mut early: Option<&EarlyAppend>,
    ) -> Result<Vec<Receipt>, ImapError> {
        let ImapSlot { store, destination, .. } = self;
        let (account, until) = (&destination.account, append::until(messages));
        let mut append = |session: &mut Option<Taken>| {
            store.run(account, session, until, |session| match early.take() {
                Some(early) => append::complete(session, &early.tag, messages),
                None => {
                    let mailbox = names::in_command(session, destination.place(), until)?;
                    append::append(session, &mailbox, destination.shared, messages)
                }
            })
        };
        match append(session) {
            Err(ImapError::Refused(no)) if no.is_missing_mailbox() => {
                self.create(session, until, no.text).and_then(|()| append(session))
            }
            // What this says is not clear, and INBOX is the better place for a copy than a queue.
            Err(ImapError::Refused(no)) if no.code.is_empty() && self.is_not_to_be_made() => {
                let exists = store.run(account, session, until, |session| {
                    let mailbox = names::in_command(session, destination.place(), until)?;
                    look::exists(session, &mailbox, until)
                });
                match exists {
                    Ok(false) => Err(ImapError::Final(StoreError::Refused, no.text)),
                    Ok(true) | Err(_) => Err(ImapError::Refused(no)),
                }
            }
            appended => appended,
        }
    }

    /// Whether another mailbox has the copy where this one is missing.
    fn is_not_to_be_made(&self) -> bool {
        self.destination.stand_in().is_some()
    }

    /// Creates and subscribes the mailbox, which is missing, as `missing` says. That another was
    /// faster is fine; not subscribed, it still holds mail.
    fn create(
        &self,
        session: &mut Option<Taken>,
        until: Instant,
        missing: String,
    ) -> Result<(), ImapError> {
        if self.is_not_to_be_made() {
            return Err(ImapError::Final(StoreError::Refused, missing));
        }
        if !self.store.connector.settings.create_mailboxes {
            let why = format!("it does not exist and store.create_mailboxes is off: {missing}");
            return Err(ImapError::Final(StoreError::Refused, why));
        }
        self.store.run(&self.destination.account, session, until, |session| {
            let mailbox = names::in_command(session, self.destination.place(), until)?;
            match session.run(&format!("CREATE {mailbox}"), until) {
                // Cyrus says so without a code.
                Err(ImapError::Refused(no))
                    if no.code == "ALREADYEXISTS" || no.text == "NO Mailbox already exists" => {}
                // To an APPEND that may be about its size.
                Err(ImapError::Refused(no)) if no.code == "LIMIT" => {
                    return Err(ImapError::not_stored(format!("creating it: {}", no.text)));
                }
                Err(error) => return Err(error.map(|why| format!("creating it: {why}"))),
                Ok(_) => {}
            }
            match session.run(&format!("SUBSCRIBE {mailbox}"), until) {
                Ok(_) | Err(ImapError::Refused(_)) => Ok(()),
                Err(error) => Err(error.map(|why| format!("subscribing to it: {why}"))),
            }
        })
    }
}
