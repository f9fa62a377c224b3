//! The store on an IMAP server: one session per account, kept for the life of the store, opened in
//! the background by [`Store::prepare`]. Relies on APPEND being all or nothing and on UIDPLUS for
//! receipts; without UIDPLUS a copy is [`Receipt::Unnamed`] and cannot be taken out again.
//! Appending twice leaves two copies: doubt must be settled by a look. A crash leaves at most what
//! an APPEND without its answer leaves, a copy or none; a literal whose final CRLF was not sent is
//! dropped by the server with the connection.
//!
//! `socket` and `wire` bound the connection, `login` opens sessions, `witness` says whose fault a
//! refused one is, `proof` whose mailboxes they show, `session` runs commands, `append`, `look` and
//! `removal` do the work, `syntax` and `fetch` know how IMAP writes things. Logging in and sending
//! commands is the `imap` crate's part, over our wire; reading answers is ours.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use secrecy::SecretString;

use crate::deadline::{Deadline, UNACKNOWLEDGED};
use crate::directory::Destination;
use crate::login::LoginForm;
use crate::message::DedupBy;
use crate::store::{Copy, Found, Receipt, Sought, Store, StoreError, Way, Whose};

use append::Part;
use appends::{Ahead, not_appended};
pub use login::Door;
use login::NoSession;
use session::{Refusal, Session, Trouble};

mod append;
mod appends;
mod fetch;
mod login;
mod look;
mod proof;
mod removal;
mod session;
mod socket;
mod syntax;
#[cfg(test)]
mod tests;
mod wire;
mod witness;

/// How the connection is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// From the first byte (imaps).
    Implicit,
    /// After STARTTLS; never goes on without.
    StartTls,
    /// Not at all: for loopback and trusted networks.
    None,
}

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
    door: Arc<Door>,
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
        ImapStore::through(Arc::new(Door::new(settings)))
    }

    /// As `new`, sharing with others what it takes to log in.
    pub fn through(door: Arc<Door>) -> ImapStore {
        ImapStore { door, sessions: HashMap::new(), idle: IDLE, was_used: false, ahead: None }
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
        let result = work(&mut session, &self.door.settings);
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
                        let ImapSettings { host, port, .. } = &self.door.settings;
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
        self.door.open(account, until).map(Box::new)
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
        let (door, name) = (Arc::clone(&self.door), account.to_owned());
        let spawned = thread::Builder::new().name("imap-login".to_owned()).spawn(move || {
            let _ = opened.send(door.open(&name, until));
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
                .map_err(|trouble| failed(&format!("looking in {destination}"), trouble))
        })
    }

    fn append(
        &mut self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        let mailbox = mailbox(destination)?;
        let part = [Part::new(copy, deadline)];
        let appended = self.append_parts(destination, &mailbox, &part);
        let receipts = appended.map_err(|trouble| not_appended(destination, trouble))?;
        Ok(receipts.into_iter().next().unwrap_or(Receipt::Unnamed))
    }

    fn appends_together(&self) -> bool {
        let has = |slot: &Slot| matches!(slot, Slot::Open(session, _) if session.capabilities().has("MULTIAPPEND"));
        self.sessions.values().any(has)
    }

    fn begin_append(&mut self, destination: &Destination, copy: &Copy<'_>, deadline: &Deadline) {
        if let Ok(mailbox) = mailbox(destination) {
            self.begin_part(destination, &mailbox, &Part::new(copy, deadline));
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
        let parts: Vec<Part<'_>> =
            copies.iter().map(|(copy, deadline)| Part::new(copy, deadline)).collect();
        let together = mailbox(destination).and_then(|mailbox| {
            let appended = self.append_parts(destination, &mailbox, &parts);
            appended.map_err(|trouble| not_appended(destination, trouble))
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
        Some(self.door.settings.way())
    }

    fn whose_mailboxes(&mut self, account: &str, until: Instant) -> Result<Whose, StoreError> {
        proof::whose_mailboxes(&self.door, account, until)
    }

    fn check(&mut self, account: &str, until: Instant) -> Result<Vec<String>, StoreError> {
        self.with_session(account, until, |session, settings| {
            let inbox = look::open(session, "EXAMINE", "\"INBOX\"", until)
                .map_err(|trouble| failed(&format!("opening INBOX of {account}"), trouble))?;
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
        work: impl FnOnce(&mut Session, &str) -> Result<(), Trouble>,
    ) -> Result<(), StoreError> {
        let mailbox = mailbox(destination)?;
        self.with_session(&destination.account, until, |session, _| {
            if !session.capabilities().has("UIDPLUS") {
                let why = format!(
                    "cannot take uid {uid} out of {destination}: the server has no UIDPLUS"
                );
                return Err(StoreError::NotStored(why));
            }
            work(session, &mailbox).map_err(|trouble| {
                failed(&format!("taking uid {uid} out of {destination}"), trouble)
            })
        })
    }
}

impl From<NoSession> for StoreError {
    fn from(no: NoSession) -> Self {
        match no {
            NoSession::NoAccount(why) => StoreError::NoAccount(why),
            NoSession::Setup(why) => StoreError::Setup(why),
            NoSession::Failed(why) => StoreError::NotStored(why),
        }
    }
}

fn mailbox(destination: &Destination) -> Result<String, StoreError> {
    syntax::mailbox(&destination.mailbox).ok_or_else(|| {
        StoreError::Refused(format!("{:?} cannot name a mailbox", destination.mailbox))
    })
}

fn failed(doing: &str, trouble: Trouble) -> StoreError {
    StoreError::NotStored(format!("{doing}: {}", why(trouble)))
}

fn why(trouble: Trouble) -> String {
    let (Trouble::Refused(Refusal { text: why, .. }) | Trouble::Broken(why)) = trouble;
    why
}

/// What a NO or BAD to APPEND, or to the CREATE before it, means by its response code (RFC 3501
/// section 7.1, RFC 5530, RFC 7889, RFC 9208). Without a code nobody knows whom it concerns.
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
