//! The store on an IMAP server. Sessions are kept in a pool, by account; a call takes one, and a
//! kept one that turns out to have ended is replaced once (`Taken`), but never under an append
//! whose last bytes may be out. Small copies for one mailbox at the same time go in one command
//! (`grouped`), and an append may begin before the ledger has agreed (`slot`).
//!
//! Relies on APPEND being all or nothing and on UIDPLUS for receipts; without UIDPLUS a copy is
//! [`Receipt::Unnamed`] and cannot be taken out again. Appending twice leaves two copies: doubt
//! must be settled by a look. A crash leaves at most what an APPEND without its answer leaves, a
//! copy or none; a literal whose final CRLF was not sent is dropped by the server with the
//! connection. Logging in and sending commands is the `imap` crate's part; reading answers is ours.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use secrecy::SecretString;

use crate::deadline::{Deadline, UNACKNOWLEDGED};
use crate::directory::Destination;
use crate::login::LoginForm;
use crate::message::DedupBy;
use crate::pool::{Connections, InUse, Limits, Pool};
use crate::store::{Access, Mailboxes, Need, Slot, Store};
use crate::store::{Copy, CopySearch, FoundCopy, MailboxOwner, Receipt, StoreError, Way};

pub use crate::net::tls::Tls;
pub use login::Connector;
use session::{CommandError, ConnectError, Refusal, Session, SessionError};

mod append;
mod fetch;
mod grouped;
mod login;
mod look;
mod proof;
mod removal;
mod session;
mod slot;
mod syntax;
#[cfg(test)]
mod tests;
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
    /// What makes a stored message the copy that is looked for.
    pub dedup_by: DedupBy,
}

impl ImapSettings {
    fn way(&self) -> Way {
        Way {
            server: format!("{}:{}", self.host, self.port),
            login_user: self.user.clone(),
            form: self.login.to_string(),
        }
    }
}

/// The store on an IMAP server.
pub struct ImapStore {
    connector: Arc<Connector>,
    /// By account.
    sessions: Arc<Pool<Session>>,
    most_per_account: usize,
    /// Logins in the background, by account, whose outcome no call has taken yet.
    logins: Mutex<HashMap<String, BackgroundLogin>>,
    appends: grouped::Appends,
    /// As [`IDLE`] says.
    idle: Duration,
}

/// A login in the background; its session goes into the pool.
struct BackgroundLogin {
    ended: Receiver<Result<(), ConnectError>>,
    until: Instant,
}

/// A session that was idle for this long is asked whether it is still there before anything is done
/// in it: an append whose last bytes went to a host that is gone would be in doubt.
const IDLE: Duration = Duration::from_secs(2);

/// A login in the background with the same deadline gets this much longer, to say why it failed.
const TO_SAY_WHY: Duration = Duration::from_millis(200);

impl ImapStore {
    /// A store on the server that `settings` name, with so many sessions; connects to nothing yet.
    pub fn new(settings: ImapSettings, limits: Limits) -> ImapStore {
        ImapStore {
            connector: Arc::new(Connector::new(settings)),
            sessions: Arc::new(Pool::new(limits)),
            most_per_account: limits.per_key,
            logins: Mutex::default(),
            appends: grouped::Appends::default(),
            idle: IDLE,
        }
    }

    /// A session for `account`: the one that is being opened, a kept one, or a new one.
    fn take(&self, account: &str, until: Instant) -> Result<Taken, ConnectError> {
        self.wait_for_login(account, until)?;
        let right = self.sessions.take(account, until).map_err(|_| {
            let most = self.most_per_account;
            let all = format!("all {most} sessions of account={account} (pool.per_account)");
            ConnectError::Failed(format!("in use by other deliveries: {all}"))
        })?;
        let was_kept = right.is_at_hand();
        let session = right.or_make(|| self.connector.open(account, until))?;
        let mut taken = Taken { session, was_kept };
        if was_kept && !taken.is_there(self.idle, until) {
            taken.replace(self.connector.open(account, until)?);
        }
        Ok(taken)
    }

    /// A kept session for `account`, if one is idle now.
    fn take_idle(&self, account: &str, until: Instant) -> Option<Taken> {
        let right = self.sessions.take(account, Instant::now()).ok()?;
        let session = right.or_make(|| Err(())).ok()?;
        let mut taken = Taken { session, was_kept: true };
        taken.is_there(self.idle, until).then_some(taken)
    }

    /// Runs `work` in the session at hand, else in one that is taken, and leaves the session at
    /// hand. A kept session may end in the very moment in which it is used: if that is all that
    /// happened, `work` runs once more in a new one.
    fn run<T, E: SessionError>(
        &self,
        account: &str,
        at_hand: &mut Option<Taken>,
        until: Instant,
        mut work: impl FnMut(&mut Session) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut taken = match at_hand.take() {
            Some(taken) => taken,
            None => self.take(account, until).map_err(CommandError::ConnectError)?,
        };
        let mut result = work(&mut taken.session);
        let is_lost = matches!(&result, Err(error) if error.is_lost_session());
        if is_lost && taken.was_kept && !taken.session.is_open() && Instant::now() < until {
            taken.replace(self.connector.open(account, until).map_err(CommandError::ConnectError)?);
            result = work(&mut taken.session);
        }
        *at_hand = taken.session.is_sound().then_some(taken);
        result
    }

    /// Waits for the login in the background, if there is one. Its error is reported once.
    fn wait_for_login(&self, account: &str, until: Instant) -> Result<(), ConnectError> {
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
                Err(ConnectError::Failed(format!("{host}:{port}: not logged in in time")))
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
        sought: &CopySearch<'_>,
        at_hand: &mut Option<Taken>,
        until: Instant,
    ) -> Result<Vec<FoundCopy>, StoreError> {
        let mailbox = mailbox(destination)?;
        let by = self.connector.settings.dedup_by;
        let found = self.run(&destination.account, at_hand, until, |session| {
            look::find(session, &mailbox, sought, by, until)
        });
        found.map_err(|error| failed(&format!("looking in {destination}"), error))
    }

    /// Takes out message `uid` the way that `work` does, if the server can take out one alone.
    fn take_out(
        &self,
        destination: &Destination,
        uid: u32,
        until: Instant,
        mut work: impl FnMut(&mut Session, &str) -> Result<(), CommandError>,
    ) -> Result<(), StoreError> {
        let mailbox = mailbox(destination)?;
        let done = self.run(&destination.account, &mut None, until, |session| {
            if !session.capabilities().has("UIDPLUS") {
                return Err(look::refused("the server has no UIDPLUS".to_owned()));
            }
            work(session, &mailbox)
        });
        done.map_err(|error| failed(&format!("taking uid {uid} out of {destination}"), error))
    }
}

impl Store for ImapStore {
    fn append_is_idempotent(&self) -> bool {
        false
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
        let spawned = thread::Builder::new().name("imap-login".to_owned()).spawn(move || {
            let opened = right.or_make(|| connector.open(&name, until));
            let _ = tell.send(opened.map(drop));
        });
        // Without a thread the first call opens the session itself.
        if spawned.is_ok() {
            logins.insert(account.to_owned(), BackgroundLogin { ended, until });
        }
    }

    fn reserve<'a>(
        &'a self,
        destination: &'a Destination,
        copy: Copy<'a>,
        need: Need,
        deadline: &'a Deadline,
    ) -> Result<Option<Box<dyn Slot + 'a>>, StoreError> {
        let slot = match need {
            Need::Early => slot::begin(self, destination, copy, deadline),
            Need::Write => Some(slot::write(self, destination, copy, deadline)?),
            Need::Look => Some(slot::look(self, destination, copy, deadline)?),
        };
        Ok(slot.map(|slot| Box::new(slot) as Box<dyn Slot + 'a>))
    }

    fn remove(
        &self,
        destination: &Destination,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        let Receipt::Uid { validity, uid } = *receipt else {
            let why = format!("no UID to take the copy out of {destination} by");
            return Err(StoreError::NotStored(why));
        };
        self.take_out(destination, uid, until, |session, mailbox| {
            removal::remove(session, mailbox, validity, uid, until)
        })
    }
}

impl Mailboxes for ImapStore {
    fn find(
        &self,
        destination: &Destination,
        sought: &CopySearch<'_>,
        until: Instant,
    ) -> Result<Vec<FoundCopy>, StoreError> {
        self.find_in(destination, sought, &mut None, until)
    }

    fn remove_double(
        &self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        let (Receipt::Uid { validity, uid }, Receipt::Uid { validity: same, uid: keeper }) =
            (double, keeper)
        else {
            let why = format!("no UIDs to tell two copies in {destination} apart by");
            return Err(StoreError::NotStored(why));
        };
        if validity != same || uid == keeper {
            let why = format!("uid {uid} and uid {keeper} do not stand side by side");
            return Err(StoreError::NotStored(why));
        }
        self.take_out(destination, *uid, until, |session, mailbox| {
            removal::remove_double(session, mailbox, *validity, *uid, *keeper, until)
        })
    }
}

impl Access for ImapStore {
    fn way(&self) -> Option<Way> {
        Some(self.connector.settings.way())
    }

    fn whose_mailboxes(&self, account: &str, until: Instant) -> Result<MailboxOwner, StoreError> {
        proof::whose_mailboxes(&self.connector, account, until)
    }

    fn check(&self, account: &str, until: Instant) -> Result<Vec<String>, StoreError> {
        let settings = &self.connector.settings;
        let checked = self.run(account, &mut None, until, |session| {
            let inbox = look::open(session, "EXAMINE", "\"INBOX\"", until)?;
            Ok(facts(session, settings, account, inbox))
        });
        checked.map_err(|error| failed(&format!("opening INBOX of {account}"), error))
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
    session: InUse<Session>,
    /// It was idle in the pool, and may have ended there.
    was_kept: bool,
}

impl Taken {
    /// Whether a kept session is still there, asked of the server after a while.
    fn is_there(&mut self, idle: Duration, until: Instant) -> bool {
        let soon = until.min(Instant::now() + UNACKNOWLEDGED);
        (self.session.idle() < idle || self.session.answers(soon)) && self.session.is_alive(until)
    }

    fn replace(&mut self, session: Session) {
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

impl From<ConnectError> for StoreError {
    fn from(no: ConnectError) -> Self {
        match no {
            ConnectError::NoAccount(why) => StoreError::NoAccount(why),
            ConnectError::Setup(why) => StoreError::Setup(why),
            ConnectError::Failed(why) => StoreError::NotStored(why),
        }
    }
}

fn mailbox(destination: &Destination) -> Result<String, StoreError> {
    syntax::mailbox(&destination.mailbox).ok_or_else(|| {
        StoreError::Refused(format!("{:?} cannot name a mailbox", destination.mailbox))
    })
}

fn failed(doing: &str, error: CommandError) -> StoreError {
    match error {
        CommandError::ConnectError(no) => no.into(),
        CommandError::Refused(Refusal { text: why, .. }) | CommandError::Lost(why) => {
            StoreError::NotStored(format!("{doing}: {why}"))
        }
    }
}

/// What a NO or BAD to APPEND, or to the CREATE before it, means by its response code (RFC 3501
/// section 7.1, RFC 5530, RFC 7889, RFC 9208). Without a code it is not known whom it concerns.
fn refused(doing: &str, refusal: Refusal) -> StoreError {
    let text = format!("{doing}: {}", refusal.text);
    match refusal.code.as_str() {
        "OVERQUOTA" => StoreError::OverQuota(text),
        "TOOBIG" | "LIMIT" => StoreError::TooBig(text),
        "NOPERM" | "CANNOT" | "NONEXISTENT" | "TRYCREATE" => StoreError::Refused(text),
        _ => StoreError::NotStored(text),
    }
}

fn facts(
    session: &Session,
    settings: &ImapSettings,
    account: &str,
    inbox: Option<u32>,
) -> Vec<String> {
    let ImapSettings { host, port, user, tls, .. } = settings;
    let capabilities = session.capabilities();
    let protection = match tls {
        Tls::Implicit => "TLS",
        Tls::StartTls => "STARTTLS",
        Tls::None => "no TLS",
    };
    let mut facts =
        vec![format!("imap: logged in to {host}:{port} ({protection}) as {user} for {account}")];
    facts.push(match inbox {
        Some(validity) => format!("imap: INBOX can be opened, uidvalidity={validity}"),
        None => "imap: INBOX does not exist yet".to_owned(),
    });
    facts.push(match capabilities.has("UIDPLUS") {
        true => "imap: UIDPLUS: yes, copies have receipts".to_owned(),
        false => "imap: UIDPLUS: no, a copy cannot be named nor taken out again".to_owned(),
    });
    facts.push(match (capabilities.has("LITERAL+"), capabilities.has("LITERAL-")) {
        (true, _) => "imap: LITERAL+: yes".to_owned(),
        (false, true) => {
            "imap: LITERAL-: yes, messages over 4096 bytes cost one more round trip".to_owned()
        }
        (false, false) => "imap: LITERAL+: no, each message costs one more round trip".to_owned(),
    });
    facts.push(match capabilities.append_limit() {
        Some(limit) => format!("imap: APPENDLIMIT: {limit} bytes"),
        None => "imap: APPENDLIMIT: none told".to_owned(),
    });
    facts
}
