//! `onedrop deliver`: one message from standard input to its recipients, by way of the LMTP server
//! on this host or by itself. Connections are opened while the message is still being read; the
//! watchdog runs from the first moment. Whatever goes wrong, an [`Outcome`] comes back.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Adapters, DeliverArgs, OpenedLedger, input};
use crate::config::{Config, LedgerUrl, Loaded};
use crate::deadline::Deadline;
use crate::deliver::{self, Failure, Job, Placed, Policy, Report, note};
use crate::delivery_log::DeliveryLogRecord;
use crate::directory::{Destination, Known};
use crate::envelope::Envelope;
use crate::exit;
use crate::ledger::{Attempt, AttemptEnd, Ledger, RandomValue};
use crate::lmtp::client::{Call, Trouble};
use crate::message::Message;
use crate::outcome::{Outcome, OverQuota};
use crate::routing::Routing;
use crate::store::Store;
use crate::way::Gate;

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
        let mut recipients: Vec<String> = Vec::new();
        for recipient in
            args.recipients.into_iter().map(text).filter(|recipient| !recipient.is_empty())
        {
            if !recipients.contains(&recipient) {
                recipients.push(recipient);
            }
        }
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

/// What local(8) makes of an address in the environment: characters that a shell may care about
/// become `_` (local/command.c, `LOCAL_EXP_FILTER`).
fn as_local_exports(address: &str) -> String {
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"!@%-_=+:,./".contains(&byte);
    address.bytes().map(|byte| if harmless(byte) { char::from(byte) } else { '_' }).collect()
}

/// Reading the configuration may hang as well (a disk, a network file system): until it says how
/// long a delivery may take, this long.
const TIME_TO_CONFIGURE: Duration = Duration::from_secs(60);

/// Delivers; never panics on what it was given.
pub(super) fn run(args: DeliverArgs, config: Option<&Path>, adapters: Adapters) -> Outcome {
    let started = Instant::now();
    exit::end_at_signals();
    // Before anything that takes time: whoever is there now must still be there at the end of the
    // message.
    let writer = input::StdinWriter::find();
    let first = Deadline::new(TIME_TO_CONFIGURE, Duration::ZERO);
    let watchdog = match exit::Watchdog::start(&first, TIME_TO_CONFIGURE.as_secs()) {
        Ok(watchdog) => watchdog,
        Err(error) => {
            let failure = Failure::Internal(format!("no thread for the watchdog: {error}"));
            return failure.outcome(OverQuota::Defer);
        }
    };
    crate::telemetry::start();
    let request = Request::from(args);
    let loaded = match Config::load(config) {
        Ok(loaded) => loaded,
        Err(errors) => {
            let failure = Failure::Setup(errors.first_line());
            return Ends::all(&request.envelope, failure.outcome(OverQuota::Defer))
                .told(&request.envelope, started);
        }
    };
    let over_quota = loaded.config.store.over_quota;
    let limits = &loaded.config.limits;
    let deadline = Deadline::new(
        Duration::from_secs(limits.deadline_secs),
        Duration::from_secs(limits.answer_secs),
    );
    watchdog.watch(&deadline, limits.deadline_secs);
    let routing = Routing::new(&loaded.config);
    let mut delivery =
        Delivery { routing, request, loaded: Arc::new(loaded), adapters, deadline, started };
    let ends = delivery.run(&writer);
    let envelope = &delivery.request.envelope;
    ends.unwrap_or_else(|failure| Ends::all(envelope, failure.outcome(over_quota)))
        .told(envelope, started)
}

/// How it ended, for each of the envelope's recipients in their order.
struct Ends {
    each: Vec<End>,
    /// Raw bytes, if the message came so far.
    message_id: Option<Vec<u8>>,
    collision: bool,
    /// A server of ours has delivered, or tried to.
    handed_over: bool,
}

struct End {
    outcome: Outcome,
    account: Option<String>,
    /// The recipient's own copy, if it is placed.
    own: Option<Placed>,
}

impl From<Outcome> for End {
    fn from(outcome: Outcome) -> End {
        End { outcome, account: None, own: None }
    }
}

impl Ends {
    /// The same end for all; there is one also where nobody is known to whom the message was to go.
    fn all(envelope: &Envelope, outcome: Outcome) -> Ends {
        let each =
            (0..envelope.recipients.len().max(1)).map(|_| End::from(outcome.clone())).collect();
        Ends { each, message_id: None, collision: false, handed_over: false }
    }

    /// How the process ends.
    fn outcome(&self, envelope: &Envelope) -> Outcome {
        let recipients = envelope.recipients.iter().map(String::as_str).chain([""]);
        let ends: Vec<_> =
            recipients.zip(self.each.iter().map(|end| end.outcome.clone())).collect();
        Outcome::of_all(&ends)
    }

    /// Logs how it ended for each.
    fn told(self, envelope: &Envelope, started: Instant) -> Outcome {
        for (at, end) in self.each.iter().enumerate() {
            let ended = DeliveryLogRecord {
                queue_id: &envelope.queue_id,
                sender: &envelope.sender,
                recipient: envelope.recipients.get(at).map_or("", String::as_str),
                message_id: self.message_id.as_deref(),
                account: end.account.as_deref(),
                own: end.own.as_ref(),
                collision: self.collision,
                took: Some(started.elapsed()),
                phases: None,
                by: if self.handed_over { "handed over: " } else { "" },
            };
            ended.log(&end.outcome);
        }
        self.outcome(envelope)
    }
}

/// This host's name.
pub(crate) fn host_name() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| "?".to_owned(), |name| name.to_string_lossy().into_owned())
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
    fn run(&mut self, writer: &input::StdinWriter) -> Result<Ends, Failure> {
        if self.loaded.config.directory.knows_nobody() {
            return Err(Failure::Setup(
                "the directory knows nobody: set directory.domains, accounts or query".to_owned(),
            ));
        }
        let Some(call) = self.call() else {
            let connections = self.connect()?;
            let message = self.read_message(writer)?;
            return self.deliver(&message, connections);
        };
        let message = self.read_message(writer)?;
        match call.hand_over(&message, &self.request.envelope) {
            Ok(outcomes) => Ok(Ends {
                each: outcomes.into_iter().map(End::from).collect(),
                message_id: message.identity().message_id.clone(),
                collision: false,
                handed_over: true,
            }),
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
        let call = Call::start(
            path,
            &host_name(),
            &self.deadline,
            self.loaded.config.limits.deadline_secs,
        );
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

    /// Delivers to those recipients that have an account. All are told how it ended for them, and
    /// the attempts of all are on record, each with its own end.
    fn deliver(&self, message: &Message, connections: Connections) -> Result<Ends, Failure> {
        let Connections { ledger: opening, mut store } = connections;
        let facts = message.facts();
        let mut ledger = match opening {
            Some(opening) => opening
                .join()
                .map_err(|_| Failure::Internal("opening the ledger panicked".to_owned()))??,
            None => (self.adapters.open_ledger)(&self.loaded, self.deadline.end())?,
        };
        let recipients = &self.request.envelope.recipients;
        let (mut accounts, mut known) = (Vec::new(), Vec::new());
        for recipient in recipients {
            let account = self.routing.account_of(recipient, ledger.as_mut())?;
            if let Some(account) = account.as_ref().filter(|account| !known.contains(*account)) {
                known.push(account.clone());
            }
            accounts.push(account);
        }
        let ends = |each, collision| Ends {
            each,
            message_id: message.identity().message_id.clone(),
            collision,
            handed_over: false,
        };
        let over_quota = self.loaded.config.store.over_quota;
        let unknown = |at: usize| {
            let failure =
                recipients.get(at).cloned().map_or(Failure::NoRecipient, Failure::UnknownRecipient);
            End::from(failure.outcome(over_quota))
        };
        let Some(first) = accounts.iter().position(Option::is_some) else {
            let ends = ends((0..recipients.len().max(1)).map(unknown).collect(), false);
            self.note_attempts(message, &ends, None, ledger.as_mut());
            return Ok(ends);
        };
        let destinations =
            self.routing.destinations(&known, message, &self.request.envelope, ledger.as_mut())?;
        let failed = |failure: &Failure| {
            let each = accounts.iter().enumerate().map(|(at, account)| match account {
                Some(_) => End::from(failure.outcome(over_quota)),
                None => unknown(at),
            });
            ends(each.collect(), false)
        };
        if let Err(failure) = self.pass_the_gate(&destinations, ledger.as_mut(), store.as_mut()) {
            let ends = failed(&failure);
            self.note_attempts(message, &ends, None, ledger.as_mut());
            return Ok(ends);
        }
        let attempt = self.attempt(first);
        let is_part = recipients.len() > 1;
        let (started, at) = (self.started, None);
        let (destinations, attempt, facts) = (&destinations, &attempt, &facts);
        let job = Job { message, head: b"", facts, attempt, destinations, started, at, is_part };
        let policy = Policy::of(&self.loaded.config);
        let report = match deliver::deliver(
            &job,
            &policy,
            ledger.as_mut(),
            store.as_mut(),
            &self.deadline,
        ) {
            Ok(report) => report,
            Err(failure) => {
                let ends = failed(&failure);
                // The attempt of the first is on record, or the ledger is lost.
                if matches!(failure, Failure::Contended(_)) {
                    self.note_attempts(message, &ends, Some(first), ledger.as_mut());
                }
                return Ok(ends);
            }
        };
        let each = accounts.into_iter().enumerate().map(|(at, account)| match account {
            Some(account) => end_of(account, &report, over_quota),
            None => unknown(at),
        });
        let ends = ends(each.collect(), report.recorded.collision);
        if is_part {
            let end = self.attempt_end(&ends, first);
            note(ledger.finish(report.recorded.attempt, &end));
            self.note_attempts(message, &ends, Some(first), ledger.as_mut());
        }
        Ok(ends)
    }

    /// Nothing is written through a server that is not proven to write for the account that we
    /// name.
    fn pass_the_gate(
        &self,
        destinations: &[Destination],
        ledger: &mut dyn Ledger,
        store: &mut dyn Store,
    ) -> Result<(), Failure> {
        let accounts: Vec<&str> =
            destinations.iter().map(|destination| destination.account.as_str()).collect();
        Arc::<Gate>::default().pass(
            &accounts,
            &host_name(),
            ledger,
            store,
            self.deadline.last_bytes(),
        )
    }

    /// A ledger in a file is opened when it is needed: that takes no longer than starting a thread
    /// for it.
    fn begin_to_open_ledger(&self) -> Result<Option<JoinHandle<OpenedLedger>>, Failure> {
        if matches!(self.loaded.config.ledger.engine(), LedgerUrl::Sqlite { .. }) {
            return Ok(None);
        }
        let (open, loaded, until) =
            (self.adapters.open_ledger, Arc::clone(&self.loaded), self.deadline.end());
        thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || open(&loaded, until))
            .map(Some)
            .map_err(|error| Failure::Internal(format!("no thread for the ledger: {error}")))
    }

    fn read_message(&mut self, writer: &input::StdinWriter) -> Result<Message, Failure> {
        let config = &self.loaded.config;
        let message = input::read(
            writer,
            self.request.stated_size,
            config.limits.message_bytes,
            config.dedup.by,
        )?;
        let first = |name: &str| {
            message.first(name).map(|value| String::from_utf8_lossy(&value).into_owned())
        };
        let envelope = &mut self.request.envelope;
        if self.request.by_environment
            && let Some(exact) = first("delivered-to").filter(|recipient| !recipient.is_empty())
            && envelope
                .recipients
                .first()
                .is_none_or(|recipient| as_local_exports(&exact) == *recipient)
        {
            envelope.recipients = vec![exact];
        }
        if !self.request.sender_known {
            let path = first("return-path").unwrap_or_default();
            envelope.sender = path.trim_matches(['<', '>']).to_owned();
        }
        Ok(message)
    }

    /// Puts on record how the attempts ended of all recipients but one, whose attempt is on record
    /// already.
    fn note_attempts(
        &self,
        message: &Message,
        ends: &Ends,
        but: Option<usize>,
        ledger: &mut dyn Ledger,
    ) {
        let others = (0..ends.each.len()).filter(|at| but != Some(*at));
        let others: Vec<_> =
            others.map(|at| (self.attempt(at), self.attempt_end(ends, at))).collect();
        if !others.is_empty() {
            note(ledger.note_attempts(message.identity(), &others));
        }
    }

    /// How the attempt ended for one recipient, and what Postfix was told where that is something
    /// else.
    fn attempt_end(&self, ends: &Ends, at: usize) -> AttemptEnd {
        let (own, all) = (&ends.each[at].outcome, ends.outcome(&self.request.envelope));
        let mut text = own.text().to_owned();
        if (own.name(), own.status()) != (all.name(), all.status()) {
            let count = ends.each.len();
            text.push_str(&format!(
                "; ended in {} {} for all {count} recipients",
                exit::status(&all) as i32,
                all.status()
            ));
        }
        AttemptEnd {
            outcome: own.name(),
            status: own.status().to_string(),
            text,
            duration: self.started.elapsed(),
        }
    }

    fn attempt(&self, at: usize) -> Attempt {
        let envelope = &self.request.envelope;
        Attempt {
            value: RandomValue::default(),
            recipient: envelope
                .recipients
                .get(at)
                .map(|recipient| recipient.to_lowercase())
                .unwrap_or_default(),
            sender: envelope.sender.clone(),
            queue_id: envelope.queue_id.clone(),
            host: host_name(),
            pid: std::process::id(),
        }
    }

    fn log_not_taken(&self, why: &str) {
        let queue_id = self.request.envelope.queue_id.as_str();
        tracing::info!(queue_id, why, "{queue_id}: not handed over, delivering");
    }
}

/// How it ended for the recipients who have an account: its own copy, and those that are shared.
fn end_of(account: String, report: &Report, over_quota: OverQuota) -> End {
    let copies = || report.destinations.iter().zip(&report.ends);
    let of_it =
        copies().filter(|(destination, _)| destination.shared || destination.account == account);
    let outcome = deliver::outcome(of_it.map(|(_, end)| end), over_quota);
    let own =
        copies().find(|(destination, _)| !destination.shared && destination.account == account);
    End {
        outcome,
        own: own.and_then(|(_, end)| end.as_ref().ok().cloned()),
        account: Some(account),
    }
}
