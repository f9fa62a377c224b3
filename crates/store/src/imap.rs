//! The store on an IMAP server. Sessions are kept in a pool, by account; a call takes one, and a
//! kept one that turns out to have ended is replaced once (`Taken`), but never under an append
//! whose last bytes may be out. Small copies for one mailbox at the same time go in one command
//! (`grouped`), and an append may begin before the ledger has agreed (`slot`).
//!
//! Relies on APPEND being all or nothing and on UIDPLUS for receipts; without UIDPLUS a copy is
//! [`Receipt::UNNAMED`] and cannot be taken out again. Appending twice leaves two copies: doubt
//! must be settled by a look. A crash leaves at most what an APPEND without its answer leaves, a
//! copy or none; a literal whose final CRLF was not sent is dropped by the server with the
//! connection. Logging in and sending commands is the `imap` crate's part; reading answers is ours.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use secrecy::SecretString;

use onedrop_core::connections::Connections;
use onedrop_core::deadline::Deadline;
use onedrop_core::directory::Destination;
use onedrop_core::login::LoginForm;
use onedrop_core::receipt;
use onedrop_core::store::TrustSearch;
use onedrop_core::store::{Access, Mailboxes, Need, Slot, Store, StoreTraits};
use onedrop_core::store::{
    Copy, CopySearch, FoundCopy, LookBack, LookedBack, MailboxOwner, Receipt, StoreError, Way,
    WitnessNames,
};
use onedrop_net::pool::{InUse, Limits, Pool};

pub use onedrop_net::tls::Tls;

use all_mailboxes::HandedSearch;
use error::ImapError;
use login::Connector;
use session::ImapSession;

mod all_mailboxes;
mod append;
mod candidates;
mod error;
mod fetch;
mod grouped;
mod listing;
mod login;
mod look;
mod names;
mod namespace;
mod proof;
mod removal;
mod search;
mod server;
mod session;
mod slot;
mod syntax;
mod unindexed;
mod wire;
mod witness;

/// Where the mail server is and how to use it (`[store]`).
#[derive(Debug, Clone)]
pub struct ImapSettings {
    /// Name or address; over TLS the certificate must be for it.
    pub host: String,
    pub port: u16,
    pub tls: Tls,
    /// Root certificates (PEM) in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// Authentication identity.
    pub user: String,
    /// How a login names the account.
    pub login: LoginForm,
    pub password: SecretString,
    /// Create and subscribe a missing mailbox.
    pub create_mailboxes: bool,
    /// Whether a look believes SEARCH where it shows nothing.
    pub trust_search: TrustSearch,
    /// How long the server waits for a mailbox's lock at the least, in whole seconds
    /// (`mail_max_lock_timeout` of Dovecot).
    pub lock_timeout: Duration,
}

/// The store on an IMAP server.
pub struct ImapStore {
    connector: Arc<Connector>,
    /// By account.
    sessions: Arc<Pool<ImapSession>>,
    most_per_account: usize,
    /// Logins in the background, by account, whose outcome no call has taken yet.
    logins: Mutex<HashMap<String, BackgroundLogin>>,
    appends: grouped::Appends,
}

/// A login in the background; its session goes into the pool.
struct BackgroundLogin {
    ended: Receiver<Result<(), ImapError>>,
    until: Instant,
    /// Its session is not kept.
    is_unwanted: Arc<AtomicBool>,
}

/// A login in the background with the same deadline gets this much longer, to say why it failed.
const TO_SAY_WHY: Duration = Duration::from_millis(200);

impl ImapStore {
    /// A store on the server that `settings` name, with up to `limits` sessions; connects to
    /// nothing yet.
    pub fn new(settings: ImapSettings, limits: Limits) -> ImapStore {
        ImapStore {
            connector: Arc::new(Connector::new(settings)),
            sessions: Arc::new(Pool::new(limits)),
            most_per_account: limits.per_key,
            logins: Mutex::default(),
            appends: grouped::Appends::default(),
        }
    }

    /// A session for `account`: the one that is being opened, a kept one, or a new one.
    fn take(&self, account: &str, until: Instant) -> Result<Taken, ImapError> {
        self.wait_for_login(account, until)?;
        let right = self.sessions.take(account, until).map_err(|_| {
            let most = self.most_per_account;
            let all = format!("all {most} sessions of account={account} (pool.per_account)");
            ImapError::not_stored(format!("in use by other deliveries: {all}"))
        })?;
        let was_kept = right.is_at_hand();
        let session = right.or_make(|| self.connector.open(account, until))?;
        let mut taken = Taken { session, was_kept };
        if was_kept && !taken.session.is_there(until) {
            taken.replace(self.connector.open(account, until)?);
        }
        Ok(taken)
    }

    /// A kept session for `account`, if one is idle now.
    fn take_idle(&self, account: &str, until: Instant) -> Option<Taken> {
        let right = self.sessions.take(account, Instant::now()).ok()?;
        let session = right.or_make(|| Err(())).ok()?;
        let mut taken = Taken { session, was_kept: true };
        taken.session.is_there(until).then_some(taken)
    }

    /// Runs `work` in the session at hand, else in one that is taken, and leaves the session at
    /// hand. A kept session may end in the very moment in which it is used: if that is all that
    /// happened, `work` runs once more in a new one.
    fn run<T>(
        &self,
        account: &str,
        at_hand: &mut Option<Taken>,
        until: Instant,
        mut work: impl FnMut(&mut ImapSession) -> Result<T, ImapError>,
    ) -> Result<T, ImapError> {
        let mut taken = match at_hand.take() {
            Some(taken) => taken,
            None => self.take(account, until)?,
        };
        let mut result = work(&mut taken.session);
        let is_lost = matches!(result, Err(ImapError::Lost(_)));
        if is_lost && taken.was_kept && Instant::now() < until {
            taken.replace(self.connector.open(account, until)?);
            result = work(&mut taken.session);
        }
        taken.session.unselect(until);
        *at_hand = taken.session.is_sound().then_some(taken);
        result
    }

    /// Waits for the login in the background, if there is one. Its error is reported once.
    fn wait_for_login(&self, account: &str, until: Instant) -> Result<(), ImapError> {
        let Some(login) = self.logins().remove(account) else { return Ok(()) };
        let now = Instant::now();
        if login.until + TO_SAY_WHY < now {
            // Its outcome then says nothing about now.
            return Ok(());
        }
        match login.ended.recv_timeout((until + TO_SAY_WHY).saturating_duration_since(now)) {
            Ok(ended) => ended,
            Err(RecvTimeoutError::Timeout) => {
                self.logins().insert(account.to_owned(), login);
                let ImapSettings { host, port, .. } = &self.connector.settings;
                Err(ImapError::not_stored(format!("{host}:{port}: not logged in in time")))
            }
            // Without it the session is opened here.
            Err(RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    fn logins(&self) -> MutexGuard<'_, HashMap<String, BackgroundLogin>> {
        // Nothing that can panic is done under this lock.
        self.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds what is sought, in the session at hand if there is one.
    fn find_in(
        &self,
        destination: &Destination,
        sought: &[CopySearch<'_>],
        at_hand: &mut Option<Taken>,
        until: Instant,
    ) -> Result<Vec<Vec<FoundCopy>>, StoreError> {
        check_name(destination)?;
        let trust = self.connector.settings.trust_search;
        let (mut here, mut handed) = (Vec::new(), Vec::new());
        for one in sought {
            match one.handed {
                Some(value) => handed.push(HandedSearch { sought: one, value }),
                None => here.push(one.clone()),
            }
        }
        let mut found = Vec::new();
        if !here.is_empty() {
            let found_here = self.run(&destination.account, at_hand, until, |session| {
                let mailbox = names::in_command(session, destination.place(), until)?;
                look::find_all(session, &mailbox, &here, trust, until)
            });
            let doing = || format!("looking in {destination}");
            found = found_here.map_err(|error| error.while_doing(&doing()))?;
        }
        if handed.is_empty() {
            return Ok(found);
        }
        let everywhere = self.run(&destination.account, at_hand, until, |session| {
            all_mailboxes::find_all(session, &handed, trust, until)
        });
        let doing = || format!("looking in all mailboxes of account={}", destination.account);
        let everywhere = everywhere.map_err(|error| error.while_doing(&doing()))?;
        // In their order.
        let (mut here, mut everywhere) = (found.into_iter(), everywhere.into_iter());
        let next = |one: &CopySearch<'_>| match one.handed {
            Some(_) => everywhere.next(),
            None => here.next(),
        };
        Ok(sought.iter().map(next).map(Option::unwrap_or_default).collect())
    }

    /// Takes out message `uid` the way that `work` does, if the server can take out one alone.
    fn take_out(
        &self,
        destination: &Destination,
        uid: u32,
        until: Instant,
        mut work: impl FnMut(&mut ImapSession, &str) -> Result<(), ImapError>,
    ) -> Result<(), StoreError> {
        check_name(destination)?;
        let done = self.run(&destination.account, &mut None, until, |session| {
            if !session.capabilities().has("UIDPLUS") {
                return Err(ImapError::refused("the server has no UIDPLUS"));
            }
            let mailbox = names::in_command(session, destination.place(), until)?;
            work(session, &mailbox)
        });
        done.map_err(|error| error.while_doing(&format!("taking uid {uid} out of {destination}")))
    }
}

impl Store for ImapStore {
    fn traits(&self) -> StoreTraits {
        StoreTraits { numbered_by: Some(receipt::UID), ..StoreTraits::default() }
    }

    fn prepare(&self, account: &str, until: Instant) {
        let mut logins = self.logins();
        logins.retain(|_, login| Instant::now() < login.until);
        if logins.contains_key(account) {
            return;
        }
        let Ok(right) = self.sessions.take(account, Instant::now()) else { return };
        if right.is_at_hand() {
            return;
        }
        let (tell, ended) = channel();
        let (connector, name) = (Arc::clone(&self.connector), account.to_owned());
        let is_unwanted = Arc::<AtomicBool>::default();
        let let_go = Arc::clone(&is_unwanted);
        let spawned = thread::Builder::new().name("imap-login".to_owned()).spawn(move || {
            let mut opened = right.or_make(|| connector.open(&name, until));
            if let (Ok(session), true) = (&mut opened, let_go.load(Ordering::Relaxed)) {
                session.throw_away();
            }
            let _ = tell.send(opened.map(drop));
        });
        // Without a thread the first call opens the session itself.
        if spawned.is_ok() {
            logins.insert(account.to_owned(), BackgroundLogin { ended, until, is_unwanted });
        }
    }

    fn let_go(&self, account: &str) {
        // One that has just logged in is closed when the caller has waited once more.
        if let Some(login) = self.logins().remove(account) {
            login.is_unwanted.store(true, Ordering::Relaxed);
        }
        self.sessions.close(account);
    }

    fn reserve<'a>(
        &'a self,
        destination: &'a Destination,
        copy: Copy<'a>,
        need: Need,
        deadline: &'a Deadline,
    ) -> Result<Option<Box<dyn Slot + 'a>>, StoreError> {
        let slot = slot::reserve(self, destination, copy, need, deadline)?;
        Ok(slot.map(|slot| Box::new(slot) as Box<dyn Slot + 'a>))
    }

    fn look_back(
        &self,
        destination: &Destination,
        sought: &LookBack,
        until: Instant,
    ) -> Result<Option<LookedBack>, StoreError> {
        check_name(destination)?;
        let (account, copy) = (&destination.account, sought.sought());
        let trust = self.connector.settings.trust_search;
        let look =
            |s: &mut ImapSession| all_mailboxes::look_back(s, destination, &copy, trust, until);
        let looked = match sought.is_apart() {
            true => self.connector.open_apart(account, until).and_then(|mut one| look(&mut one)),
            false => self.run(account, &mut None, until, look),
        };
        let doing = format!("looking back in {destination}");
        looked.map(Some).map_err(|error| error.while_doing(&doing))
    }

    fn remove(
        &self,
        destination: &Destination,
        receipt: &Receipt,
        sought: Option<&CopySearch<'_>>,
        until: Instant,
    ) -> Result<(), StoreError> {
        let Some((validity, uid)) = receipt.as_uid() else {
            let why = format!("no UID to take the copy out of {destination} by");
            return Err(StoreError::NotStored(why));
        };
        self.take_out(destination, uid, until, |session, mailbox| {
            removal::remove(session, mailbox, validity, uid, sought, until)
        })
    }
}

impl Mailboxes for ImapStore {
    fn find_all(
        &self,
        destination: &Destination,
        sought: &[CopySearch<'_>],
        until: Instant,
    ) -> Result<Vec<Vec<FoundCopy>>, StoreError> {
        self.find_in(destination, sought, &mut None, until)
    }

    fn remove_double(
        &self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        let Some(((validity, uid), (same, keeper))) = double.as_uid().zip(keeper.as_uid()) else {
            let why = format!("no UIDs to tell two copies in {destination} apart by");
            return Err(StoreError::NotStored(why));
        };
        if validity != same || uid == keeper {
            let why = format!("uid {uid} and uid {keeper} do not stand side by side");
            return Err(StoreError::NotStored(why));
        }
        self.take_out(destination, uid, until, |session, mailbox| {
            removal::remove_double(session, mailbox, validity, uid, keeper, until)
        })
    }

    fn remove_handed_double(
        &self,
        account: &str,
        double: &FoundCopy,
        keeper: &FoundCopy,
        until: Instant,
    ) -> Result<(), StoreError> {
        let [double, keeper] = [double, keeper].map(removal::Place::of);
        let (Some(double), Some(keeper)) = (double, keeper) else {
            let why = "no UIDs to tell two copies apart by".to_owned();
            return Err(StoreError::NotStored(why));
        };
        let done = self.run(account, &mut None, until, |session| {
            if !session.capabilities().has("UIDPLUS") {
                return Err(ImapError::refused("the server has no UIDPLUS"));
            }
            removal::remove_handed_double(session, &double, &keeper, until)
        });
        let doing = format!("taking uid {} out of {} of {account}", double.uid, double.mailbox);
        done.map_err(|error| error.while_doing(&doing))
    }
}

impl Access for ImapStore {
    fn way(&self) -> Option<Way> {
        let ImapSettings { host, port, user, login, .. } = &self.connector.settings;
        let server = format!("{host}:{port}");
        Some(Way { server, login_user: user.clone(), form: login.to_string() })
    }

    fn root(&self) -> Option<&Path> {
        None
    }

    fn missing_place(&self, _account: &str) -> Result<Option<PathBuf>, StoreError> {
        Ok(None)
    }

    fn whose_mailboxes(&self, account: &str, until: Instant) -> Result<MailboxOwner, StoreError> {
        proof::whose_mailboxes(&self.connector, account, until)
    }

    fn are_apart(&self, one: &str, other: &str, until: Instant) -> Result<bool, StoreError> {
        proof::are_apart(&self.connector, one, other, until)
    }

    fn name_witnesses(&self, names: WitnessNames) {
        self.connector.name_witnesses(names);
    }

    fn has_mailbox(&self, destination: &Destination, until: Instant) -> Result<bool, StoreError> {
        let opened = self.run(&destination.account, &mut None, until, |session| {
            let mailbox = names::in_command(session, destination.place(), until)?;
            look::open(session, "EXAMINE", &mailbox, until)
        });
        let opened = opened.map_err(|error| error.while_doing(&format!("opening {destination}")));
        Ok(opened?.is_some())
    }

    fn trace_of_ours(&self, account: &str, until: Instant) -> Result<Option<String>, StoreError> {
        let found =
            self.run(account, &mut None, until, |session| look::find_trace_of_ours(session, until));
        let found =
            found.map_err(|error| error.while_doing(&format!("searching INBOX of {account}")))?;
        Ok(found
            .map(|uid| format!("uid {uid} in INBOX of account={account} has fields of Onedrop's")))
    }

    fn check(&self, account: &str, until: Instant) -> Result<Vec<String>, StoreError> {
        let settings = &self.connector.settings;
        let checked = self.run(account, &mut None, until, |session| {
            let inbox = look::open(session, "EXAMINE", "\"INBOX\"", until)?;
            let mut told = server::facts(session, settings, account, inbox);
            told.extend(server::told(session, until)?);
            told.extend(names::facts(session, until)?);
            Ok(told)
        });
        checked.map_err(|error| error.while_doing(&format!("opening INBOX of {account}")))
    }
}

impl Connections for ImapStore {
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

/// A session taken from the pool. It goes back when dropped, if the next user can have it.
struct Taken {
    session: InUse<ImapSession>,
    /// It was idle in the pool, and may have ended there.
    was_kept: bool,
}

impl Taken {
    fn replace(&mut self, session: ImapSession) {
        *self.session = session;
        self.was_kept = false;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.session.is_sound() {
            self.session.throw_away();
        }
    }
}

/// Whether any server could have a mailbox of that name.
fn check_name(destination: &Destination) -> Result<(), StoreError> {
    let named = syntax::mailbox(destination.place());
    named.map(drop).ok_or_else(|| {
        StoreError::Refused(format!("{:?} cannot name a mailbox", destination.place()))
    })
}
