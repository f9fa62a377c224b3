//! What a door needs to deliver under one configuration: where mail goes, the ledger, the store,
//! the proof that the way into the store is right, the limits. The command makes one for its one
//! message; the server makes one for each configuration that it reads, and a message keeps the one
//! under which it began.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Zoned;

use crate::config::{Config, Loaded};
use crate::routing::Routing;
use crate::site_names::{self, SiteNames};
use onedrop_core::connections::Connections;
use onedrop_core::deadline::Deadline;
use onedrop_core::deliver::{
    self, DeliveryRequest, Ending, Failure, LookBacks, Means, PastMail, Policy, Watch,
};
use onedrop_core::directory::{Destination, Home, Known};
use onedrop_core::envelope::Envelope;
use onedrop_core::ledger::{self, AccountServer, AnyLedger, LedgerError};
use onedrop_core::login_proof::{Unproven, WayProof};
use onedrop_core::message::{self, DedupBy, Message, ReceivedClauses, trace_head};
use onedrop_core::os::host_name;
use onedrop_core::outcome::UnknownAccount;
use onedrop_core::store::{AnyStore, StoreError, WitnessNames};
use onedrop_net::pool::Limits;

mod look_backs;

use look_backs::LookBackQueue;

/// Makes a ledger, which connects to nothing yet.
pub type MakeLedger = fn(&Loaded, Limits) -> Result<Arc<dyn AnyLedger>, LedgerError>;

/// Makes what asks the server at `directory.url`, which connects to nothing yet; `None` where the
/// ledger is asked.
pub type MakeAccounts = fn(&Loaded, Limits) -> Result<Option<Arc<dyn AccountServer>>, LedgerError>;

/// Makes a store, which connects to nothing yet.
pub type MakeStore = fn(&Loaded, Limits) -> Result<Arc<dyn AnyStore>, StoreError>;

/// What `main` has chosen.
#[derive(Clone, Copy)]
pub struct Adapters {
    pub ledger: MakeLedger,
    /// Makes one for questions alone.
    pub reading: MakeLedger,
    pub accounts: MakeAccounts,
    pub store: MakeStore,
}

/// A configuration, with the means to open what it names. Nothing is open yet.
#[derive(Clone)]
pub struct Site {
    pub loaded: Arc<Loaded>,
    adapters: Adapters,
}

impl Site {
    pub fn new(loaded: impl Into<Arc<Loaded>>, adapters: Adapters) -> Site {
        Site { loaded: loaded.into(), adapters }
    }

    /// The same means, under another configuration.
    #[must_use]
    pub fn with(&self, loaded: Loaded) -> Site {
        Site::new(loaded, self.adapters)
    }

    /// The same, with this changed.
    #[must_use]
    pub fn but(mut self, change: impl FnOnce(&mut Loaded)) -> Site {
        change(Arc::make_mut(&mut self.loaded));
        self
    }

    /// The ledger, for a process that does one thing.
    ///
    /// # Errors
    /// What the configuration names cannot be read. A server is not asked yet.
    pub fn ledger(&self) -> Result<Arc<dyn AnyLedger>, LedgerError> {
        self.ledger_within(ONE)
    }

    /// The ledger as [`ledger`](Site::ledger) opens it, with connections within `limits`.
    ///
    /// # Errors
    /// The same.
    pub fn ledger_within(&self, limits: Limits) -> Result<Arc<dyn AnyLedger>, LedgerError> {
        (self.adapters.ledger)(&self.loaded, limits)
    }

    /// The ledger for questions alone.
    ///
    /// # Errors
    /// Those of [`ledger`](Site::ledger).
    pub fn reading(&self, limits: Limits) -> Result<Arc<dyn AnyLedger>, LedgerError> {
        (self.adapters.reading)(&self.loaded, limits)
    }

    /// What asks the server at `directory.url`; `None` where the ledger is asked.
    ///
    /// # Errors
    /// Those of [`ledger`](Site::ledger).
    pub fn accounts(&self, limits: Limits) -> Result<Option<Arc<dyn AccountServer>>, LedgerError> {
        (self.adapters.accounts)(&self.loaded, limits)
    }

    /// The store, for a process that does one thing.
    ///
    /// # Errors
    /// Those of [`ledger`](Site::ledger).
    pub fn store(&self) -> Result<Arc<dyn AnyStore>, StoreError> {
        self.store_within(ONE)
    }

    /// The store as [`store`](Site::store) opens it, with sessions within `limits`.
    ///
    /// # Errors
    /// The same.
    pub fn store_within(&self, limits: Limits) -> Result<Arc<dyn AnyStore>, StoreError> {
        (self.adapters.store)(&self.loaded, limits)
    }
}

/// What a process that does one thing keeps of connections: all, until it ends.
pub const ONE: Limits =
    Limits { used: usize::MAX, per_key: usize::MAX, kept: usize::MAX, idle: Duration::MAX };

/// What the directory gets to answer for one recipient: twice the time in which a connection shows
/// that its server is gone. Postfix waits 300 s for all of a message's (lmtp_rcpt_timeout).
pub const LOOK_UP: Duration = Duration::from_secs(20);

/// How long it may take to renew the proof; deliveries wait for it.
const PROOF: Duration = Duration::from_secs(10);

/// Among how many of the newest copies accounts are looked for that can log in.
const WITNESSES: u32 = 20;

/// What delivers: ledger, store, routing and policy of one configuration.
pub struct Service {
    loaded: Arc<Loaded>,
    pub ledger: Arc<dyn AnyLedger>,
    pub store: Arc<dyn AnyStore>,
    pub routing: Routing,
    /// Before anything is written.
    gate: Arc<WayProof>,
    pub policy: Policy,
    pub by: DedupBy,
    /// This host's name.
    pub host: String,
    help: OnceLock<Arc<[String]>>,
    age: Age,
    /// A server's; others look back at once.
    look_backs: Option<LookBackQueue>,
}

/// How the age of a message is known.
enum Age {
    /// What the site's own Postfix has written, and none of what its sender wrote: else whoever
    /// writes an old Date has a whole mailbox searched.
    OwnPostfix(SiteNames),
    /// It may have been in the mailbox for years, whatever its fields say, and whichever program
    /// stored it.
    Any,
}

/// A message with its envelope, as a door has taken it.
#[derive(Clone, Copy)]
pub struct Mail<'a> {
    pub message: &'a Message,
    pub envelope: &'a Envelope,
    /// The account of each recipient, and the mailbox that is meant; `None`: no account has that
    /// address.
    pub homes: &'a [Option<Home>],
    /// Where our trace fields are to be prepended: how the message came, and when.
    pub clauses: Option<(&'a ReceivedClauses, &'a Zoned)>,
    pub started: Instant,
    /// All recipients share one ending: the process' exit status.
    pub one_ending: bool,
    /// No copy for the author's Sent: whoever hands the message over is not believed.
    pub own_copies_alone: bool,
}

impl Service {
    /// # Errors
    /// A sentence that says what is wrong with the configuration.
    pub fn new(site: &Site) -> Result<Service, Failure> {
        let pool = &site.loaded.config.pool;
        let idle = Duration::from_secs(pool.idle_secs);
        let ledger = Limits { used: pool.ledger, per_key: pool.ledger, kept: pool.ledger, idle };
        let per_key = pool.per_account;
        let store = Limits { used: usize::MAX, per_key, kept: pool.store, idle };
        let service = Service::with(site, ledger, store)?;
        let look_backs = Some(LookBackQueue::new(Arc::clone(&service.store)));
        Ok(Service { look_backs, ..service })
    }

    /// A service like that of [`new`](Service::new), for one message.
    pub fn for_one(site: &Site) -> Result<Service, Failure> {
        let mut service = Service::with(site, ONE, ONE)?;
        // The recipient's own copy first; and the watchdog knows of one append at a time.
        service.policy.side_by_side = 1;
        // A slot that is dropped would cost one message more than it could gain.
        service.policy.begins_early = false;
        service.policy.keeps_sessions = false;
        Ok(service)
    }

    /// A service like that of [`new`](Service::new), for message after message, `at_a_time` at
    /// once.
    ///
    /// # Errors
    /// The same.
    pub fn for_many(site: &Site, at_a_time: usize) -> Result<Service, Failure> {
        let limits = Limits { kept: at_a_time, ..ONE };
        let per_key = site.loaded.config.pool.per_account;
        let service = Service::with(site, limits, Limits { per_key, ..limits })?;
        Ok(Service { age: Age::Any, ..service })
    }

    fn with(site: &Site, ledger: Limits, store: Limits) -> Result<Service, Failure> {
        let loaded = Arc::clone(&site.loaded);
        let config = &loaded.config;
        if config.directory.knows_nobody() {
            let text =
                "the directory knows nobody: set directory.domains, accounts, query or userdb";
            return Err(Failure::Setup(text.to_owned()));
        }
        let accounts = site.accounts(ledger).map_err(Failure::Directory)?;
        let routing = Routing::new(config, accounts);
        let (ledger, store) = (site.ledger_within(ledger)?, site.store_within(store)?);
        if config.directory.unknown_account == UnknownAccount::Reject {
            store.name_witnesses(witnesses(&loaded, &ledger));
        }
        let host = host_name();
        let names = site_names::of(config, &host);
        Ok(Service {
            help: OnceLock::new(),
            ledger,
            store,
            routing,
            gate: Arc::default(),
            policy: config.policy(),
            by: config.dedup.by,
            host,
            age: Age::OwnPostfix(names),
            look_backs: None,
            loaded,
        })
    }

    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// What a server answers to HELP: digests of the values that it has read.
    pub fn help(&self) -> Arc<[String]> {
        let line = |(key, digest): (String, String)| format!("configuration {key} {digest}");
        let lines = || self.loaded.digests().into_iter().map(line).collect();
        Arc::clone(self.help.get_or_init(lines))
    }

    /// The configuration's file, by its whole path.
    pub fn config_file(&self) -> String {
        self.loaded.shown_file()
    }

    /// Begins to open what delivering to these recipients will need of the store: by IMAP, a
    /// delivery takes 7 % less time.
    pub fn prepare(&self, recipients: &[String], deadline: &Deadline) {
        for recipient in recipients {
            if let Known::Home(home) = self.routing.known(recipient) {
                self.store.prepare(&home.account, deadline.last_bytes());
            }
        }
    }

    /// The account of a recipient, and the mailbox that is meant; `None` when no account has the
    /// address.
    ///
    /// # Errors
    /// It cannot be found out now.
    pub fn account_of(&self, address: &str, until: Instant) -> Result<Option<Home>, Failure> {
        let home = self.routing.account_of(address, self.ledger.as_ref(), until)?;
        let Some(Home { account, .. }) = &home else { return Ok(None) };
        match self.missing_place(account)? {
            Some(place) => self.no_such_account(account, &place, until).map(|()| None),
            None => Ok(home),
        }
    }

    /// The folder that an account lacks which nothing but its domain names: mail for a mistyped
    /// address must not make one.
    fn missing_place(&self, account: &str) -> Result<Option<PathBuf>, StoreError> {
        match self.loaded.config.directory.names(account) {
            true => Ok(None),
            false => self.store.missing_place(account),
        }
    }

    /// What `directory.unknown_account` makes of it.
    ///
    /// # Errors
    /// It is deferred: because the configuration says so, because the account had mail, or because
    /// its folder may be on a file system that is not mounted.
    fn no_such_account(&self, account: &str, place: &Path, until: Instant) -> Result<(), Failure> {
        let (ledger, store) = (&*self.ledger, &*self.store);
        self.gate.pass_root(ledger, store, until)?;
        let why = format!(
            "nothing but its domain names it, and {} is not there; if it is an account, make that \
             folder",
            place.display()
        );
        PastMail { ledger, why: &why, until }.none_for(account)?;
        // Looked at once more: the root may have been mounted after the first look.
        let is_certain =
            || Ok(self.gate.root_is_marked() && self.missing_place(account)?.is_some());
        match self.policy.refuses_unknown(is_certain)? {
            true => Ok(()),
            false => Err(StoreError::NoAccount(format!("no account={account}: {why}")).into()),
        }
    }

    /// Delivers to those recipients that have an account. Returns an ending for each recipient; the
    /// attempts of all are on record, each with its own end.
    pub fn deliver(&self, mail: Mail<'_>, deadline: &Deadline, watch: &dyn Watch) -> Vec<Ending> {
        let (policy, ledger, store) = (&self.policy, &*self.ledger, &*self.store);
        let look_backs = match &self.look_backs {
            Some(queue) => queue as &dyn LookBacks,
            None => &(),
        };
        let means = Means { policy, ledger, store, deadline, watch, look_backs };
        let own = self.routing.own(mail.homes, mail.message);
        let request = DeliveryRequest {
            message: mail.message,
            envelope: mail.envelope,
            own: &own,
            destinations: &[],
            heads: &[],
            host: &self.host,
            started: mail.started,
            oldest: self.oldest(mail.message, &mail.envelope.queue_id),
            one_ending: mail.one_ending,
        };
        let destinations = match own.iter().any(Option::is_some) {
            true => self.destinations(mail, &own, deadline),
            false => Err(Failure::NoRecipient),
        };
        match destinations {
            Ok(destinations) => {
                let heads: Vec<Vec<u8>> =
                    destinations.iter().map(|one| head(mail, &own, one)).collect();
                let (destinations, heads) = (&destinations, &heads);
                deliver::deliver(&DeliveryRequest { destinations, heads, ..request }, means)
            }
            Err(failure) => deliver::fail(&request, &failure, means),
        }
    }

    /// See [`Entry::oldest`](onedrop_core::ledger::Entry::oldest).
    fn oldest(&self, message: &Message, queue_id: &str) -> Option<SystemTime> {
        match &self.age {
            Age::Any => None,
            Age::OwnPostfix(names) => {
                let at = message::taken_at(message, queue_id, |by| names.has(by))?;
                ledger::taken_by_us(at, self.ledger.time())
            }
        }
    }

    /// Delivers to the envelope's addresses. Each recipient gets an ending, and all together one,
    /// as of a process.
    ///
    /// # Errors
    /// The recipients cannot be found out, for any of them.
    pub fn deliver_to(
        &self,
        message: &Message,
        envelope: &Envelope,
        started: Instant,
        deadline: &Deadline,
    ) -> Result<Vec<Ending>, Failure> {
        let until = deadline.end();
        // What is about one recipient alone keeps no mail from the others.
        let (mut homes, mut failed) = (Vec::new(), Vec::new());
        for (at, recipient) in envelope.recipients.iter().enumerate() {
            match self.account_of(recipient, until) {
                Ok(home) => homes.push(home),
                Err(failure) if failure.is_of_one_recipient() => {
                    failed.push((at, failure.ending()));
                }
                Err(failure) => {
                    let ending = failure.ending();
                    let all = 0..envelope.recipients.len();
                    let all: Vec<_> = all.map(|at| (at, ending.clone())).collect();
                    if !failure.is_unrecorded() {
                        self.note_unrouted(message, envelope, &all, started, deadline);
                    }
                    return Err(failure);
                }
            }
        }
        let mut at = 0..;
        let mut known = envelope.clone();
        known.recipients.retain(|_| {
            let at = at.next();
            !failed.iter().any(|(failed, _)| Some(*failed) == at)
        });
        let homes = homes.as_slice();
        let mail = Mail {
            message,
            envelope: &known,
            homes,
            clauses: None,
            started,
            one_ending: true,
            own_copies_alone: false,
        };
        let mut each = match homes {
            [] => Vec::new(),
            _ => self.deliver(mail, deadline, &()),
        };
        if !failed.is_empty() {
            self.note_unrouted(message, envelope, &failed, started, deadline);
        }
        for (at, ending) in failed {
            each.insert(at, ending);
        }
        Ok(each)
    }

    fn note_unrouted(
        &self,
        message: &Message,
        envelope: &Envelope,
        ended: &[(usize, Ending)],
        started: Instant,
        deadline: &Deadline,
    ) {
        let (took, ledger) = (deadline.now() - started, &*self.ledger);
        let until = deadline.end();
        deliver::note_unrouted(message, envelope, &self.host, ended, took, ledger, until);
    }

    /// Where a delivery to the envelope's addresses would place copies, a line each. Nothing is
    /// written.
    ///
    /// # Errors
    /// An address has no account, or that cannot be found out.
    pub fn places(
        &self,
        message: &Message,
        envelope: &Envelope,
        until: Instant,
    ) -> Result<String, Failure> {
        let mut homes = Vec::new();
        for recipient in &envelope.recipients {
            let home = match self.routing.known(recipient) {
                Known::Nobody => None,
                Known::Home(_) | Known::Ask(_) => self.account_of(recipient, until)?,
            };
            homes.push(Some(home.ok_or_else(|| Failure::UnknownRecipient(recipient.clone()))?));
        }
        let own = self.routing.own(&homes, message);
        let ledger = &*self.ledger;
        let all = self.routing.destinations(&own, message, envelope, ledger, until)?;
        Ok(all.iter().map(Destination::to_string).collect::<Vec<_>>().join("; "))
    }

    /// Where the message belongs, if it may be written there: nothing is written through a server
    /// that is not proven to write for the account that we name.
    fn destinations(
        &self,
        mail: Mail<'_>,
        own: &[Option<Destination>],
        deadline: &Deadline,
    ) -> Result<Vec<Destination>, Failure> {
        let (message, envelope, until) = (mail.message, mail.envelope, deadline.end());
        let (ledger, store) = (&*self.ledger, &*self.store);
        let mut destinations = match mail.own_copies_alone {
            true => Routing::mailboxes(own),
            false => self.routing.destinations(own, message, envelope, ledger, until)?,
        };
        // A failed look-up of the author keeps no mail from a recipient.
        destinations
            .retain(|one| !one.shared || !matches!(self.missing_place(&one.account), Ok(Some(_))));
        let mut names: Vec<&str> = destinations.iter().map(|one| one.account.as_str()).collect();
        names.dedup();
        self.gate.pass(&names, &self.host, ledger, store, deadline.last_bytes())?;
        Ok(destinations)
    }

    /// Renews the proof that the way into the store is right, when a configuration begins to serve.
    /// It is done in a thread of its own, for a mail server may take its time; deliveries wait for
    /// it. What it comes to goes to the log.
    pub fn begin_to_renew_the_proof(self: &Arc<Self>) {
        if self.store.way().is_none() {
            return;
        }
        let (asking, service) = (self.gate.begin(), Arc::clone(self));
        let renew = move || {
            let until = Instant::now() + PROOF;
            let directory = &service.config().directory;
            let homes = directory.accounts.values();
            let accounts: Vec<&str> = homes.map(|home| home.account.as_str()).collect();
            let (ledger, store) = (&*service.ledger, &*service.store);
            match asking.renew(&accounts, &service.host, ledger, store, until) {
                Ok(proof) => tracing::info!("store: {}", proof.unwrap_or_default()),
                Err(Unproven::Ignores(why)) => {
                    tracing::error!("store: {why}; until that is mended all mail is deferred")
                }
                Err(Unproven::Unknown(failure)) => {
                    tracing::warn!("{failure}; without a proof on record nothing is written")
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("proof".to_owned()).spawn(renew) {
            tracing::warn!(%error, "no thread to find out for whom the mail server lets us act");
        }
    }

    /// The time that a delivery beginning now has.
    pub fn deadline(&self) -> Deadline {
        let limits = &self.loaded.config.limits;
        let (total, answer) = (limits.deadline_secs, limits.answer_secs);
        Deadline::new(Duration::from_secs(total), Duration::from_secs(answer))
    }

    /// How many look backs are under way, and how many wait.
    pub fn look_backs(&self) -> (usize, usize) {
        self.look_backs.as_ref().map_or((0, 0), LookBackQueue::count)
    }

    /// What is kept open for the next message.
    pub fn connections(&self) -> Vec<(&'static str, &dyn Connections)> {
        let directory: Option<&dyn Connections> = self.routing.server().map(|one| one as _);
        let both: [(_, &dyn Connections); 2] = [("ledger", &*self.ledger), ("store", &*self.store)];
        both.into_iter().chain(directory.map(|one| ("directory", one))).collect()
    }
}

/// Accounts with copies on record, and those that the configuration names.
fn witnesses(loaded: &Arc<Loaded>, ledger: &Arc<dyn AnyLedger>) -> WitnessNames {
    let (loaded, ledger) = (Arc::clone(loaded), Arc::clone(ledger));
    Box::new(move |until| {
        // The delivery that asks may have the ledger's last session; those named here will do.
        let until = until.min(Instant::now() + Duration::from_secs(1));
        let copies = ledger.latest_copies(WITNESSES, until).unwrap_or_else(|error| {
            tracing::warn!(%error, "who else could log in is not known");
            Vec::new()
        });
        let with_copies = copies.into_iter().map(|(destination, _)| destination.account);
        let mut names: Vec<String> = Vec::new();
        let homes = loaded.config.directory.accounts.values();
        for name in with_copies.chain(homes.map(|home| home.account.clone())) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    })
}

/// What stands before the message in a copy.
fn head(mail: Mail<'_>, own: &[Option<Destination>], destination: &Destination) -> Vec<u8> {
    let Some((clauses, received)) = mail.clauses else { return Vec::new() };
    let is_its = |one: &Option<Destination>| {
        one.as_ref().is_some_and(|one| one.is_same_mailbox(destination))
    };
    match mail.message.received().first() {
        _ if destination.shared => Vec::new(),
        // It would continue our last field, and be another message. Postfix begins with a field of
        // its own.
        Some(b' ' | b'\t') => Vec::new(),
        _ => {
            let first = own.iter().position(is_its).unwrap_or(0);
            let (sender, address) = (&mail.envelope.sender, &mail.envelope.recipients[first]);
            trace_head(sender, address, clauses, received)
        }
    }
}
