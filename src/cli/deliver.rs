//! `onedrop deliver`: one message from standard input to its recipients, by way of the LMTP server on this host or by
//! itself. Connections are opened while the message is still being read; the watchdog runs from the first moment. Whatever
//! goes wrong, an [`Outcome`] comes back.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Adapters, DeliverArgs, OpenedLedger, input};
use crate::config::{Config, LedgerUrl, Loaded};
use crate::deadline::Deadline;
use crate::deliver::{self, Job, Policy, Report};
use crate::directory::Known;
use crate::envelope::Envelope;
use crate::exit;
use crate::ledger::{Attempt, AttemptEnd, Ledger};
use crate::message::Message;
use crate::outcome::{Failure, Outcome, OverQuota};
use crate::routing::Routing;
use crate::store::Store;

mod via;
mod wire;

use via::{Call, Trouble};

/// What the command line said.
pub(super) struct Request {
    envelope: Envelope,
    stated_size: Option<u64>,
    sender_known: bool,
    /// The recipient is not from the command line.
    by_environment: bool,
}

impl From<DeliverArgs> for Request {
    fn from(args: DeliverArgs) -> Request {
        let mut recipients: Vec<String> = args.recipients.into_iter().map(text).collect();
        recipients.retain(|recipient| !recipient.is_empty());
        let by_environment = recipients.is_empty();
        if by_environment {
            recipients.extend(variable("RECIPIENT").filter(|recipient| !recipient.is_empty()));
        }
        let sender = args.sender.map(text).or_else(|| variable("SENDER"));
        Request {
            sender_known: sender.is_some(),
            by_environment,
            envelope: Envelope {
                sender: sender.unwrap_or_default(),
                recipients,
                queue_id: text(args.queue_id),
                sasl_username: text(args.sasl_username),
            },
            stated_size: args.size,
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(text)
}

/// What is not UTF-8 (an envelope may hold any bytes) is no reason to let mail wait.
fn text(value: OsString) -> String {
    String::from_utf8_lossy(&value.into_vec()).into_owned()
}

/// What local(8) makes of an address in the environment: characters that a shell may care about become `_`
/// (local/command.c, `LOCAL_EXP_FILTER`).
fn as_local_exports(address: &str) -> String {
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"!@%-_=+:,./".contains(&byte);
    address.bytes().map(|byte| if harmless(byte) { char::from(byte) } else { '_' }).collect()
}

/// Reading the configuration may hang as well (a disk, a network file system): until it says how long a delivery may
/// take, this long.
const TIME_TO_CONFIGURE: Duration = Duration::from_secs(60);

/// Delivers; never panics on what it was given.
pub(super) fn run(args: DeliverArgs, config: Option<&Path>, adapters: Adapters) -> Outcome {
    let started = Instant::now();
    // Before anything that takes time: whoever is there now must still be there at the end of the message.
    let feeder = input::Feeder::find();
    let first = Deadline::new(TIME_TO_CONFIGURE, Duration::ZERO);
    let watchdog = match exit::Watchdog::start(&first, TIME_TO_CONFIGURE.as_secs()) {
        Ok(watchdog) => watchdog,
        Err(error) => {
            let failure = Failure::Internal(format!("no thread for the watchdog: {error}"));
            return Outcome::of(&failure, OverQuota::Defer);
        }
    };
    crate::telemetry::start();
    let loaded = match Config::load(config) {
        Ok(loaded) => loaded,
        Err(errors) => return Outcome::of(&Failure::Setup(errors.first_line()), OverQuota::Defer),
    };
    let over_quota = loaded.config.store.over_quota;
    let limits = &loaded.config.limits;
    let deadline = Deadline::new(Duration::from_secs(limits.deadline_secs), Duration::from_secs(limits.answer_secs));
    watchdog.watch(&deadline, limits.deadline_secs);
    let routing = Routing::new(&loaded.config);
    let (request, loaded) = (Request::from(args), Arc::new(loaded));
    let mut delivery = Delivery { routing, request, loaded, adapters, deadline, started };
    delivery.run(&feeder).unwrap_or_else(|failure| {
        tracing::warn!(queue_id = delivery.request.envelope.queue_id, %failure, "not delivered");
        Outcome::of(&failure, over_quota)
    })
}

/// This host's name.
pub(super) fn host_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "?".to_owned(), |name| name.to_string_lossy().into_owned())
}

struct Delivery {
    request: Request,
    loaded: Arc<Loaded>,
    adapters: Adapters,
    routing: Routing,
    deadline: Deadline,
    started: Instant,
}

/// What a delivery works with, opened or about to be.
struct Connections {
    /// `None`: it is opened when it is needed.
    ledger: Option<JoinHandle<OpenedLedger>>,
    store: Box<dyn Store>,
}

impl Delivery {
    fn run(&mut self, feeder: &input::Feeder) -> Result<Outcome, Failure> {
        if self.loaded.config.directory.knows_nobody() {
            return Err(Failure::Setup(
                "the directory knows nobody: set directory.domains, accounts or query".to_owned(),
            ));
        }
        let Some(call) = self.call() else {
            let connections = self.connect()?;
            let message = self.read_message(feeder)?;
            return self.deliver(&message, connections);
        };
        let message = self.read_message(feeder)?;
        match call.hand_over(&message, &self.request.envelope) {
            Ok(outcome) => {
                self.log_handed_over(&outcome);
                Ok(outcome)
            }
            Err(Trouble::Failed(failure)) => Err(failure),
            Err(Trouble::NotTaken(why)) => {
                self.log_not_taken(&why);
                let connections = self.connect()?;
                self.deliver(&message, connections)
            }
        }
    }

    /// Calls the server that is to take the message, if there is one.
    fn call(&self) -> Option<Call> {
        let path = self.loaded.config.deliver.via.as_ref()?;
        let call = Call::start(path, &host_name(), &self.deadline, self.loaded.config.limits.deadline_secs);
        call.inspect_err(|why| self.log_not_taken(why)).ok()
    }

    /// Begins to open what a delivery of our own needs.
    fn connect(&self) -> Result<Connections, Failure> {
        let ledger = self.begin_to_open_ledger()?;
        let mut store = (self.adapters.open_store)(&self.loaded)?();
        for recipient in &self.request.envelope.recipients {
            if let Known::Account(account) = self.routing.known(recipient) {
                store.prepare(&account, self.deadline.last_bytes());
            }
        }
        Ok(Connections { ledger, store })
    }

    fn deliver(&self, message: &Message, connections: Connections) -> Result<Outcome, Failure> {
        let Connections { ledger: opening, mut store } = connections;
        let facts = message.facts();
        let mut ledger = match opening {
            Some(opening) => {
                opening.join().map_err(|_| Failure::Internal("opening the ledger panicked".to_owned()))??
            }
            None => (self.adapters.open_ledger)(&self.loaded, self.deadline.end())?,
        };
        let (recipients, unknown) = self.accounts(ledger.as_mut())?;
        let unknown = (!unknown.is_empty()).then(|| Failure::UnknownRecipient(unknown.join(", ")));
        if recipients.is_empty() {
            let failure = unknown.unwrap_or(Failure::NoRecipient);
            self.note_refusal(message, &failure, ledger.as_mut());
            return Err(failure);
        }
        let destinations = self.routing.destinations(&recipients, message, &self.request.envelope, ledger.as_mut())?;
        let attempt = self.attempt();
        let job = Job {
            message,
            head: b"",
            facts: &facts,
            attempt: &attempt,
            destinations: &destinations,
            started: self.started,
            at: None,
            is_part: false,
        };
        let outcome = self.place(&job, ledger.as_mut(), store.as_mut())?;
        // With several recipients in one run the known ones have their mail before the others are refused.
        Ok(match unknown {
            Some(failure) => outcome.worst(Outcome::of(&failure, self.loaded.config.store.over_quota)),
            None => outcome,
        })
    }

    fn place(&self, job: &Job<'_>, ledger: &mut dyn Ledger, store: &mut dyn Store) -> Result<Outcome, Failure> {
        let policy = Policy::of(&self.loaded.config);
        let report = deliver::deliver(job, &policy, ledger, store, &self.deadline)?;
        let outcome = report.outcome(policy.over_quota);
        self.log(job, &report, &outcome);
        Ok(outcome)
    }

    /// A ledger in a file is opened when it is needed: that takes no longer than starting a thread for it.
    fn begin_to_open_ledger(&self) -> Result<Option<JoinHandle<OpenedLedger>>, Failure> {
        if matches!(self.loaded.config.ledger.engine(), LedgerUrl::Sqlite { .. }) {
            return Ok(None);
        }
        let (open, loaded, until) = (self.adapters.open_ledger, Arc::clone(&self.loaded), self.deadline.end());
        thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || open(&loaded, until))
            .map(Some)
            .map_err(|error| Failure::Internal(format!("no thread for the ledger: {error}")))
    }

    fn read_message(&mut self, feeder: &input::Feeder) -> Result<Message, Failure> {
        let config = &self.loaded.config;
        let message = input::read(feeder, self.request.stated_size, config.limits.message_bytes, config.dedup.by)?;
        let first = |name: &str| message.first(name).map(|value| String::from_utf8_lossy(&value).into_owned());
        let envelope = &mut self.request.envelope;
        if self.request.by_environment
            && let Some(exact) = first("delivered-to").filter(|recipient| !recipient.is_empty())
            && envelope.recipients.first().is_none_or(|recipient| as_local_exports(&exact) == *recipient)
        {
            envelope.recipients = vec![exact];
        }
        if !self.request.sender_known {
            let path = first("return-path").unwrap_or_default();
            envelope.sender = path.trim_matches(['<', '>']).to_owned();
        }
        Ok(message)
    }

    /// The recipients' accounts, and the recipients that nobody knows.
    fn accounts(&self, ledger: &mut dyn Ledger) -> Result<(Vec<String>, Vec<String>), Failure> {
        let (mut accounts, mut unknown) = (Vec::new(), Vec::new());
        for recipient in &self.request.envelope.recipients {
            match self.routing.account_of(recipient, ledger)? {
                Some(account) if accounts.contains(&account) => {}
                Some(account) => accounts.push(account),
                None => unknown.push(recipient.clone()),
            }
        }
        Ok((accounts, unknown))
    }

    /// Puts an attempt on record that came to nothing before the message could be.
    fn note_refusal(&self, message: &Message, failure: &Failure, ledger: &mut dyn Ledger) {
        let outcome = Outcome::of(failure, OverQuota::Defer);
        let end = AttemptEnd {
            outcome: outcome.name(),
            status: outcome.status().to_string(),
            text: outcome.text().to_owned(),
            duration: self.started.elapsed(),
        };
        if let Err(error) = ledger.note_attempts(message.identity(), &[(self.attempt(), end)]) {
            tracing::warn!(%error, "ledger bookkeeping failed");
        }
    }

    fn attempt(&self) -> Attempt {
        let envelope = &self.request.envelope;
        Attempt {
            recipient: envelope.recipients.join(" ").to_lowercase(),
            sender: envelope.sender.clone(),
            queue_id: envelope.queue_id.clone(),
            host: host_name(),
            pid: std::process::id(),
        }
    }

    fn log(&self, job: &Job<'_>, report: &Report, outcome: &Outcome) {
        let identity = job.message.identity();
        let message_id = identity.message_id.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        // Of the recipient's own copy, which is the first; with several recipients the text alone names each.
        let mut recipients =
            report.destinations.iter().zip(&report.ends).filter(|(destination, _)| !destination.shared);
        let own = recipients.next().filter(|_| recipients.next().is_none()).and_then(|(_, end)| end.as_ref().ok());
        let (_, uid, file) = own.map(|own| own.receipt.columns()).unwrap_or_default();
        tracing::info!(
            message_id = %message_id.escape_debug(),
            queue_id = job.attempt.queue_id,
            recipient = job.attempt.recipient,
            sender = job.attempt.sender,
            mailbox = own.map(|own| own.destination.mailbox.as_str()),
            uid,
            file,
            how = own.map(|own| own.how.name()),
            outcome = outcome.name(),
            status = %outcome.status(),
            collision = report.recorded.collision,
            milliseconds = self.started.elapsed().as_millis() as u64,
            "{}",
            outcome.text()
        );
    }

    fn log_handed_over(&self, outcome: &Outcome) {
        let envelope = &self.request.envelope;
        tracing::info!(
            queue_id = envelope.queue_id,
            recipient = envelope.recipients.join(" "),
            sender = envelope.sender,
            outcome = outcome.name(),
            status = %outcome.status(),
            milliseconds = self.started.elapsed().as_millis() as u64,
            "handed over: {}",
            outcome.text()
        );
    }

    fn log_not_taken(&self, why: &str) {
        tracing::info!(queue_id = self.request.envelope.queue_id, why, "not handed over, delivering");
    }
}
