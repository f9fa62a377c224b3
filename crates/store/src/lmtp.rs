//! The store of a site whose users have filters: a recipient's own copy is handed over to the mail
//! server's LMTP, whose delivery runs the owner's Sieve scripts and decides where it lies; all else
//! (Sent, looks, removals) is the IMAP store's, which this one wraps.
//!
//! Relies on what is handed over being stored with the fields that stand before it, and on one
//! final reply (RFC 2033 section 4.2). Up to the data's final dot nothing is handed over; after it
//! `replies` says what is certain. A copy in doubt is looked for in all mailboxes of its account,
//! by the value in its first X-Onedrop-Copy. No name leads to it by which it could be taken out.
//! Deliveries to one account go one at a time in each process, as the server's record of what it
//! has filed (RFC 7352) loses entries otherwise. A crash leaves a copy or none.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustls::ClientConfig;

use onedrop_core::connections::Connections;
use onedrop_core::deadline::Deadline;
use onedrop_core::directory::Destination;
use onedrop_core::message;
use onedrop_core::store::{Access, AnyStore, Copy, CopySearch, FoundCopy, MailboxOwner, Mailboxes};
use onedrop_core::store::{
    HandOff, LookBack, LookedBack, Need, Receipt, Slot, Store, StoreError, StoreTraits, Way,
    WitnessNames,
};
use onedrop_net::lmtp::LmtpPlace;
use onedrop_net::pool::{InUse, Limits, Pool};

use account_turns::{AccountTurn, AccountTurns};
use session::LmtpSession;
use transaction::{HandOffError, HandedMail};

mod account_turns;
mod replies;
mod session;
mod transaction;

/// Where the mail server's LMTP is, and how to speak with it (`store.lmtp`).
#[derive(Debug, Clone)]
pub struct HandOffSettings {
    pub place: LmtpPlace,
    /// By TCP: TLS is used where the server offers STARTTLS, and demanded of one that is not this
    /// machine.
    pub starttls: bool,
    /// Root certificates (PEM) in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// This host's name.
    pub host: String,
}

/// Connections that are kept for the next delivery, at most: each keeps a process of Dovecot's.
const MOST_KEPT: usize = 20;
/// All connections are alike.
const ALL: &str = "";

/// A store that hands copies over by LMTP and finds them by another store.
pub struct LmtpStore {
    inner: Box<dyn AnyStore>,
    settings: HandOffSettings,
    sessions: Arc<Pool<LmtpSession>>,
    turns: AccountTurns,
    /// An account that is not there has to be proven: the mail is given up then.
    asks_twice: AtomicBool,
    /// What TLS needs; what could not be read is read again by the next that needs it.
    tls: OnceLock<Arc<ClientConfig>>,
}

impl LmtpStore {
    /// Hands over to the server that `settings` name what is for a recipient, and leaves the rest
    /// to `inner`; connects to nothing yet.
    pub fn new(settings: HandOffSettings, inner: Box<dyn AnyStore>, limits: Limits) -> LmtpStore {
        let kept = limits.kept.min(MOST_KEPT);
        let limits = Limits { used: usize::MAX, per_key: usize::MAX, kept, ..limits };
        LmtpStore {
            inner,
            settings,
            sessions: Arc::new(Pool::new(limits)),
            turns: AccountTurns::default(),
            asks_twice: AtomicBool::new(false),
            tls: OnceLock::new(),
        }
    }

    /// A connection, and whether it was kept.
    fn session(&self, until: Instant) -> Result<(InUse<LmtpSession>, bool), StoreError> {
        let right = self.sessions.take(ALL, until);
        let right = right.map_err(|error| StoreError::NotStored(format!("lmtp: {error}")))?;
        let was_kept = right.is_at_hand();
        let mut session = right.or_make(|| self.connect(until))?;
        if was_kept && !session.is_there() {
            *session = self.connect(until)?;
            return Ok((session, false));
        }
        Ok((session, was_kept))
    }

    /// That there is no such account, if a login for it is refused as well and one for another is
    /// not: a user database may have lost its users.
    fn proven(&self, account: &str, why: String, until: Instant) -> StoreError {
        match self.inner.check(account, until) {
            Err(StoreError::NoAccount(proof)) => StoreError::NoAccount(format!("{why}; {proof}")),
            Err(error) => StoreError::NotStored(format!("{why}; {error}")),
            Ok(_) => StoreError::NotStored(format!("{why}; but it can log in")),
        }
    }

    /// Waits until no other delivery to the account is under way here.
    fn account_turn<'a>(
        &'a self,
        destination: &'a Destination,
        deadline: &Deadline,
    ) -> Result<AccountTurn<'a>, StoreError> {
        let account = &destination.account;
        self.turns.take(account, deadline.last_bytes()).ok_or_else(|| {
            StoreError::NotStored(format!("other deliveries to account={account} take too long"))
        })
    }

    fn connect(&self, until: Instant) -> Result<LmtpSession, StoreError> {
        let session = LmtpSession::connect(&self.settings, &self.tls, until);
        session.map_err(|why| StoreError::NotStored(format!("{}: {why}", self.settings.place)))
    }

    /// Hands the mail over, in a kept connection or a new one. A kept one may end in the very
    /// moment in which it is used: if that was before the final dot, a new one is tried.
    fn hand_over(
        &self,
        mail: &HandedMail<'_>,
        deadline: &Deadline,
    ) -> Result<Result<String, HandOffError>, StoreError> {
        let until = deadline.last_bytes();
        let (mut session, was_kept) = self.session(until)?;
        let mut result = session.hand_over(mail, deadline);
        let is_lost = matches!(result, Err(HandOffError::Lost(_)));
        if is_lost && was_kept && Instant::now() < until {
            *session = self.connect(until)?;
            result = session.hand_over(mail, deadline);
        }
        if !session.is_sound() {
            session.throw_away();
        }
        Ok(result)
    }
}

impl Store for LmtpStore {
    fn traits(&self) -> StoreTraits {
        let HandOffSettings { place, host, .. } = &self.settings;
        let server = match place.is_on_this_host() {
            true => format!("{place} at {host}"),
            false => place.to_string(),
        };
        StoreTraits { hands_over_to: Some(server), ..self.inner.traits() }
    }

    /// A connection to the LMTP server is made at once, and one for mailboxes is seldom needed.
    fn prepare(&self, _account: &str, _until: Instant) {}

    fn let_go(&self, account: &str) {
        self.inner.let_go(account);
    }

    fn reserve<'a>(
        &'a self,
        destination: &'a Destination,
        copy: Copy<'a>,
        need: Need,
        deadline: &'a Deadline,
    ) -> Result<Option<Box<dyn Slot + 'a>>, StoreError> {
        let Some(handed) = copy.handed else {
            return self.inner.reserve(destination, copy, need, deadline);
        };
        let (look, turn) = match need {
            Need::Early => return Ok(None),
            Need::Write => (None, None),
            Need::Look => {
                // A server for mailboxes that is slow to log in must keep no other mail from the
                // account; and the ledger's turn, which comes after the slot, is not held while
                // another delivery to the account takes its time.
                let look = self.inner.reserve(destination, copy, Need::Look, deadline)?;
                (look, Some(self.account_turn(destination, deadline)?))
            }
        };
        Ok(Some(Box::new(LmtpSlot {
            store: self,
            destination,
            copy,
            handed,
            deadline,
            look,
            turn,
            found: None,
            found_try: None,
            is_wrapped: false,
        })))
    }

    fn look_back(
        &self,
        destination: &Destination,
        sought: &LookBack,
        until: Instant,
    ) -> Result<Option<LookedBack>, StoreError> {
        self.inner.look_back(destination, sought, until)
    }

    fn remove(
        &self,
        destination: &Destination,
        receipt: &Receipt,
        sought: Option<&CopySearch<'_>>,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.inner.remove(destination, receipt, sought, until)
    }
}

impl Mailboxes for LmtpStore {
    fn find_all(
        &self,
        destination: &Destination,
        sought: &[CopySearch<'_>],
        until: Instant,
    ) -> Result<Vec<Vec<FoundCopy>>, StoreError> {
        self.inner.find_all(destination, sought, until)
    }

    fn remove_double(
        &self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.inner.remove_double(destination, double, keeper, until)
    }

    fn remove_handed_double(
        &self,
        account: &str,
        double: &FoundCopy,
        keeper: &FoundCopy,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.inner.remove_handed_double(account, double, keeper, until)
    }
}

impl Access for LmtpStore {
    fn way(&self) -> Option<Way> {
        self.inner.way()
    }

    fn root(&self) -> Option<&Path> {
        self.inner.root()
    }

    fn missing_place(&self, account: &str) -> Result<Option<PathBuf>, StoreError> {
        self.inner.missing_place(account)
    }

    fn whose_mailboxes(&self, account: &str, until: Instant) -> Result<MailboxOwner, StoreError> {
        self.inner.whose_mailboxes(account, until)
    }

    fn are_apart(&self, one: &str, other: &str, until: Instant) -> Result<bool, StoreError> {
        self.inner.are_apart(one, other, until)
    }

    fn name_witnesses(&self, names: WitnessNames) {
        self.asks_twice.store(true, Ordering::Relaxed);
        self.inner.name_witnesses(names);
    }

    fn has_mailbox(&self, destination: &Destination, until: Instant) -> Result<bool, StoreError> {
        self.inner.has_mailbox(destination, until)
    }

    fn trace_of_ours(&self, account: &str, until: Instant) -> Result<Option<String>, StoreError> {
        self.inner.trace_of_ours(account, until)
    }

    fn check(&self, account: &str, until: Instant) -> Result<Vec<String>, StoreError> {
        let mut facts = self.inner.check(account, until)?;
        let mut session = self.connect(until)?;
        let probed = session.probe(account, until).map_err(|error| error.of(&self.settings.place));
        facts.extend(session.facts(&self.settings.place));
        probed?;
        facts.push(format!("lmtp: takes mail for {account}"));
        Ok(facts)
    }
}

impl Connections for LmtpStore {
    fn close_idle(&self) {
        self.inner.close_idle();
        self.sessions.close_idle();
    }

    fn retire(&self) {
        self.inner.retire();
        self.sessions.retire();
    }

    fn count(&self) -> (usize, usize) {
        let ((used, kept), (more, idle)) = (self.inner.count(), self.sessions.count());
        (used + more, kept + idle)
    }
}

/// A place for one copy that is to be handed over.
struct LmtpSlot<'a> {
    store: &'a LmtpStore,
    destination: &'a Destination,
    copy: Copy<'a>,
    handed: HandOff<'a>,
    deadline: &'a Deadline,
    /// The IMAP store's, for the look.
    look: Option<Box<dyn Slot + 'a>>,
    /// Of one in doubt.
    turn: Option<AccountTurn<'a>>,
    /// What the look has found.
    found: Option<Receipt>,
    found_try: Option<i64>,
    is_wrapped: bool,
}

impl LmtpSlot<'_> {
    /// An IMAP literal has a length: what is in it ends nothing. No filter runs, and no guard drops
    /// a second copy.
    fn append_by_imap(&mut self, mail: &HandedMail<'_>) -> Result<Receipt, StoreError> {
        if let Some(found) = self.found.take() {
            return Ok(found);
        }
        let LmtpSlot { store, destination, copy, deadline, .. } = *self;
        let head = [mail.stored_fields().as_bytes(), copy.head].concat();
        let copy = Copy { head: &head, ..copy };
        let slot = store.inner.reserve(destination, copy, Need::Write, deadline)?;
        let busy = || StoreError::NotStored("its mailboxes are in use".to_owned());
        let mut slot = slot.ok_or_else(busy)?;
        let receipt = slot.append()?;
        self.is_wrapped = slot.is_wrapped();
        // As another's look would find it: a receipt that differs would have it taken out.
        Ok(FoundCopy::handed_in("INBOX", &receipt))
    }
}

impl Slot for LmtpSlot<'_> {
    fn look(&mut self, until: Instant) -> Result<Option<Receipt>, StoreError> {
        let LmtpSlot { store, destination, copy, deadline, .. } = *self;
        if self.look.is_none() {
            self.look = store.inner.reserve(destination, copy, Need::Look, deadline)?;
        }
        match &mut self.look {
            Some(slot) => {
                self.found = slot.look(until)?;
                self.is_wrapped = slot.is_wrapped();
                self.found_try = slot.found_try();
                Ok(self.found.clone())
            }
            None => Err(StoreError::NotStored("its mailboxes are in use".to_owned())),
        }
    }

    fn found_try(&self) -> Option<i64> {
        self.found_try
    }

    fn append(&mut self) -> Result<Receipt, StoreError> {
        let LmtpSlot { store, destination, copy, deadline, .. } = *self;
        let handed = HandOff { again: self.found_try.is_some(), ..self.handed };
        // Its session is for others.
        self.look = None;
        let account = &destination.account;
        let mail = HandedMail::new(account, [copy.head, copy.bytes], &handed)?;
        // The turn ends with this call: others need not wait until the result is on record.
        let _turn = match self.turn.take() {
            Some(turn) => turn,
            None => store.account_turn(destination, deadline)?,
        };
        let mut answer = store.hand_over(&mail, deadline)?;
        if matches!(answer, Err(HandOffError::Content(_))) && message::is_damaged(copy.bytes) {
            deadline.answered();
            // As into a mailbox: or it would be refused for as long as Postfix tries.
            let whole = [copy.head, copy.bytes].concat();
            let head = [message::wrapper(&whole), copy.head.to_vec()].concat();
            let mail = HandedMail::new(account, [&head, copy.bytes], &handed)?;
            answer = store.hand_over(&mail, deadline)?;
            self.is_wrapped |= answer.is_ok();
        }
        if matches!(answer, Err(HandOffError::Unsafe)) {
            return self.append_by_imap(&mail);
        }
        let answer = answer.map_err(|error| error.of(&store.settings.place));
        match answer {
            Err(StoreError::NoAccount(why)) if store.asks_twice.load(Ordering::Relaxed) => {
                Err(store.proven(account, why, deadline.last_bytes()))
            }
            handed => handed.map(Receipt::handed),
        }
    }

    fn is_wrapped(&self) -> bool {
        self.is_wrapped
    }
}
