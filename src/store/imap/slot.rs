//! How a copy comes into its mailbox: in the session at hand or another one, into a mailbox that
//! may have to be made, alone or with others. The append of a small copy may begin early, in a
//! session that is idle anyway: all but its last bytes goes out while the ledger is asked. A slot
//! that is dropped with a begun append closes that session, and the server drops what it was sent.

use std::time::{Duration, Instant};

use super::append::{self, AppendError, AppendMessage};
use super::grouped::{self, Appended, EarlyMark};
use super::session::{CommandError, Refusal};
use super::{ImapStore, Taken, mailbox, refused};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::store::Slot;
use crate::store::{Copy, Receipt, StoreError};

/// A server that can be waited for takes a small message at once.
const SOON: Duration = Duration::from_secs(1);

/// A place for one copy. Its session is the one of the look, or of the begun append.
pub struct ImapSlot<'a> {
    store: &'a ImapStore,
    destination: &'a Destination,
    /// As it is in a command.
    mailbox: String,
    copy: Copy<'a>,
    deadline: &'a Deadline,
    session: Option<Taken>,
    early: Option<EarlyAppend<'a>>,
}

/// An append that has begun early.
struct EarlyAppend<'a> {
    append: append::StartedAppend,
    /// As for an idle session: what has waited for long may wait at a host that is gone.
    since: Instant,
    _mark: EarlyMark<'a>,
}

/// A slot to write, which takes what it needs when it does.
///
/// # Errors
/// The mailbox cannot have such a name.
pub fn write<'a>(
    store: &'a ImapStore,
    destination: &'a Destination,
    copy: Copy<'a>,
    deadline: &'a Deadline,
) -> Result<ImapSlot<'a>, StoreError> {
    let mailbox = mailbox(destination)?;
    Ok(ImapSlot { store, destination, mailbox, copy, deadline, session: None, early: None })
}

/// A slot to look, with a session.
///
/// # Errors
/// No session can be had while last bytes may go out.
pub fn look<'a>(
    store: &'a ImapStore,
    destination: &'a Destination,
    copy: Copy<'a>,
    deadline: &'a Deadline,
) -> Result<ImapSlot<'a>, StoreError> {
    let slot = write(store, destination, copy, deadline)?;
    let session = store.take(&destination.account, deadline.last_bytes())?;
    Ok(ImapSlot { session: Some(session), ..slot })
}

/// A slot whose append has begun; `None` where that would have to wait, and where others append to
/// the mailbox.
pub fn begin<'a>(
    store: &'a ImapStore,
    destination: &'a Destination,
    copy: Copy<'a>,
    deadline: &'a Deadline,
) -> Option<ImapSlot<'a>> {
    if !grouped::is_small(&copy) {
        return None;
    }
    let slot = write(store, destination, copy, deadline).ok()?;
    let mark = store.appends.begin(destination)?;
    // The append itself may have more time to wait for this server.
    let until = deadline.last_bytes().min(Instant::now() + SOON);
    let mut session = store.take_idle(&destination.account, until)?;
    let message = AppendMessage::new(&copy, deadline);
    let append = append::begin_early(
        &mut session.session,
        &slot.mailbox,
        destination.shared,
        &message,
        until,
    );
    let early = EarlyAppend { append: append.ok()?, since: Instant::now(), _mark: mark };
    Some(ImapSlot { session: Some(session), early: Some(early), ..slot })
}

impl Slot for ImapSlot<'_> {
    fn look(&mut self, until: Instant) -> Result<Option<Receipt>, StoreError> {
        self.give_up_early(|_| true);
        let sought = self.copy.sought();
        let found = self.store.find_in(self.destination, &sought, &mut self.session, until)?;
        Ok(found.into_iter().next().map(|found| found.receipt))
    }

    fn append(&mut self) -> Result<Receipt, StoreError> {
        let ImapSlot { store, destination, copy, deadline, .. } = *self;
        let idle = store.idle;
        self.give_up_early(|early| early.since.elapsed() >= idle);
        if self.session.is_none()
            && self.early.is_none()
            && grouped::is_small(&copy)
            && store.connector.has_multiappend()
        {
            return store.appends.append(destination, &copy, deadline, |copies| {
                store.append_together(destination, &self.mailbox, copies)
            });
        }
        let early = self.early.take();
        let mut session = self.session.take();
        let started = early.as_ref().map(|early| &early.append);
        let message = [AppendMessage::new(&copy, deadline)];
        store
            .append_messages(destination, &self.mailbox, &message, &mut session, started)
            .map(|receipts| receipts.into_iter().next().unwrap_or(Receipt::Unnamed))
            .map_err(|error| not_appended(destination, error))
    }
}

impl ImapSlot<'_> {
    /// Gives up the begun append, with its session, which waits for the end of the command.
    fn give_up_early(&mut self, is_over: impl FnOnce(&mut EarlyAppend<'_>) -> bool) {
        if self.early.take_if(is_over).is_some() {
            self.session = None;
        }
    }
}

impl ImapStore {
    /// Appends `copies` of different messages to one mailbox. Each comes to what it would have come
    /// to alone.
    fn append_together(
        &self,
        destination: &Destination,
        mailbox: &str,
        copies: &[(Copy<'_>, &Deadline)],
    ) -> Vec<Appended> {
        let messages: Vec<AppendMessage<'_>> =
            copies.iter().map(|(copy, deadline)| AppendMessage::new(copy, deadline)).collect();
        let mut session = None;
        let mut append = |messages: &[AppendMessage<'_>]| {
            self.append_messages(destination, mailbox, messages, &mut session, None)
                .map_err(|error| not_appended(destination, error))
        };
        match append(&messages) {
            Ok(receipts) => receipts.into_iter().map(Ok).collect(),
            Err(StoreError::InDoubt(why)) => {
                copies.iter().map(|_| Err(StoreError::InDoubt(why.clone()))).collect()
            }
            Err(error) if copies.len() == 1 => vec![Err(error)],
            // None was stored, perhaps because of one of them: each by itself.
            Err(_) => messages
                .chunks(1)
                .map(|one| Ok(append(one)?.pop().unwrap_or(Receipt::Unnamed)))
                .collect(),
        }
    }

    /// Appends `messages` in one command, or ends the one that has `started` in the session at
    /// hand; creates the mailbox if it is missing.
    fn append_messages(
        &self,
        destination: &Destination,
        mailbox: &str,
        messages: &[AppendMessage<'_>],
        session: &mut Option<Taken>,
        mut started: Option<&append::StartedAppend>,
    ) -> Result<Vec<Receipt>, AppendError> {
        let until = append::until(messages);
        let account = &destination.account;
        let mut append = |session: &mut Option<Taken>| {
            self.run(account, session, until, |session| match started.take() {
                Some(started) => append::complete(session, started, messages),
                None => append::append(session, mailbox, destination.shared, messages),
            })
        };
        let refusal = match append(session) {
            Err(AppendError::Refused(refusal))
                if ["TRYCREATE", "NONEXISTENT"].contains(&refusal.code.as_str()) =>
            {
                refusal
            }
            appended => return appended,
        };
        if !self.connector.settings.create_mailboxes {
            let text =
                format!("it does not exist and store.create_mailboxes is off: {}", refusal.text);
            return Err(AppendError::NoMailbox(text));
        }
        self.create(account, mailbox, session, until)?;
        append(session)
    }

    /// Creates and subscribes a mailbox. That another was faster is fine; not subscribed, it still
    /// holds mail.
    fn create(
        &self,
        account: &str,
        mailbox: &str,
        session: &mut Option<Taken>,
        until: Instant,
    ) -> Result<(), AppendError> {
        self.run(account, session, until, |session| {
            let doing = |doing: &str, error: CommandError| match error {
                CommandError::Refused(Refusal { code, text }) => {
                    AppendError::Refused(Refusal { code, text: format!("{doing}: {text}") })
                }
                CommandError::Lost(why) => AppendError::NotStored(format!("{doing}: {why}")),
                no @ CommandError::ConnectError(_) => no.into(),
            };
            match session.run(&format!("CREATE {mailbox}"), until) {
                Err(CommandError::Refused(refusal)) if refusal.code == "ALREADYEXISTS" => {}
                created => drop(created.map_err(|error| doing("creating it", error))?),
            }
            match session.run(&format!("SUBSCRIBE {mailbox}"), until) {
                Ok(_) | Err(CommandError::Refused(_)) => Ok(()),
                Err(error) => Err(doing("subscribing to it", error)),
            }
        })
    }
}

pub fn not_appended(destination: &Destination, error: AppendError) -> StoreError {
    let doing = format!("appending to {destination}");
    match error {
        AppendError::Refused(refusal) => refused(&doing, refusal),
        AppendError::NotStored(why) | AppendError::TooLate(why) => {
            StoreError::NotStored(format!("{doing}: {why}"))
        }
        AppendError::NoMailbox(why) => StoreError::Refused(format!("{doing}: {why}")),
        AppendError::ConnectError(no) => no.map(|why| format!("{doing}: {why}")).into(),
        AppendError::TooBig { size, limit } => StoreError::TooBig(format!(
            "{doing}: {size} bytes, the server's APPENDLIMIT is {limit}"
        )),
        AppendError::InDoubt(why) => StoreError::InDoubt(format!("{doing}: {why}")),
    }
}
