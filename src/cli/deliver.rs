//! `onedrop deliver`: one message from standard input to its recipients, by way of the LMTP server
//! on this host or by itself; with `--via`, by way of the server alone. The store's session is
//! opened while the message is still being read; the watchdog runs from the first moment. Whatever
//! goes wrong, an [`Outcome`] comes back.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::input;
use crate::lmtp::client::{HandOverError, ServerConnection};
use onedrop_core::deadline::{Deadline, TIME_FOR_THE_SERVER};
use onedrop_core::deliver::{Ending, Failure};
use onedrop_core::envelope::Envelope;
use onedrop_core::exit;
use onedrop_core::message::{DedupBy, Message};
use onedrop_core::os::host_name;
use onedrop_core::outcome::Outcome;
use onedrop_site::command_line::DeliverArgs;
use onedrop_site::config::{Config, Opens, shown_file};
use onedrop_site::delivery_log::DeliveryLogRecord;
use onedrop_site::service::{Adapters, Service, Site};

/// What the command line and the environment say of the message.
struct Request {
    envelope: Envelope,
    stated_size: Option<u64>,
    sender_known: bool,
    sender_by_environment: bool,
    /// The recipient is not from the command line.
    by_environment: bool,
    /// The server that is to deliver, whatever the configuration says.
    via: Option<PathBuf>,
}

impl Request {
    fn of(args: DeliverArgs) -> Request {
        let variable =
            |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let mut recipients: Vec<String> = Vec::new();
        for recipient in args.recipients {
            if !recipient.is_empty() && !recipients.contains(&recipient) {
                recipients.push(recipient);
            }
        }
        let by_environment = recipients.is_empty();
        if by_environment {
            recipients.extend(variable("RECIPIENT").filter(|recipient| !recipient.is_empty()));
        }
        let given = args.sender.is_some();
        let sender = args.sender.or_else(|| variable("SENDER"));
        Request {
            sender_known: sender.is_some(),
            sender_by_environment: !given && sender.is_some(),
            by_environment,
            via: args.via,
            envelope: Envelope {
                sender: sender.unwrap_or_default(),
                recipients,
                queue_id: args.queue_id.unwrap_or_default(),
                sasl_username: args.sasl_username.unwrap_or_default(),
            },
            stated_size: args.size,
        }
    }

    /// Reads the message, and what the server that delivered it to us prepended.
    fn read_message(
        &mut self,
        writer: &input::StdinWriter,
        limit: u64,
        by: DedupBy,
    ) -> Result<Message, Failure> {
        let message = input::read(writer, self.stated_size, limit, by)?;
        let envelope = &mut self.envelope;
        if self.by_environment
            && let Some(exact) = message.prepended_address(&[b"delivered-to"])
            && envelope.recipients.iter().all(|recipient| as_local_exports(&exact) == *recipient)
        {
            envelope.recipients = vec![exact];
        }
        let return_path = || message.prepended_address(&[b"return-path"]);
        if !self.sender_known {
            envelope.sender = return_path().unwrap_or_default();
        } else if self.sender_by_environment
            && let Some(exact) = return_path()
            && as_local_exports(&exact) == envelope.sender
        {
            envelope.sender = exact;
        }
        Ok(message)
    }

    /// Leaves all to the server at `socket`: the caller may read no configuration. Without its
    /// answer the mail waits.
    fn hand_over(
        &mut self,
        socket: &Path,
        writer: &input::StdinWriter,
        deadline: &Deadline,
    ) -> Result<DeliveryResult, Failure> {
        let secs = TIME_FOR_THE_SERVER.as_secs();
        let server = ServerConnection::start(socket, &host_name(), deadline, secs)
            .map_err(|why| Failure::Server(format!("the server cannot be reached: {why}")))?;
        let message = self.read_message(writer, 0, DedupBy::default())?;
        match server.hand_over(&message, &self.envelope) {
            Ok(outcomes) => Ok(DeliveryResult::by_server(outcomes, &message)),
            Err(HandOverError::TooLarge(outcome)) => {
                let count = self.envelope.recipients.len();
                Ok(DeliveryResult::by_server(vec![outcome; count], &message))
            }
            Err(HandOverError::NotTaken(why)) => {
                Err(Failure::Server(format!("the server took no message: {why}")))
            }
            Err(HandOverError::Failed(failure)) => Err(failure),
        }
    }
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
            return failure.outcome();
        }
    };
    onedrop_site::telemetry::start();
    let mut request = Request::of(args);
    if let Some(socket) = request.via.take() {
        let deadline = Deadline::new(TIME_FOR_THE_SERVER, Duration::ZERO);
        watchdog.watch(&deadline, TIME_FOR_THE_SERVER.as_secs());
        let result = request.hand_over(&socket, &writer, &deadline);
        let result = result.map_err(|failure| failure.ending());
        return log(result, &request.envelope, started, config);
    }
    let result = match Config::load_despite_jobs(config, Opens::Everything) {
        Ok(loaded) => {
            let limits = &loaded.config.limits;
            let deadline = Deadline::new(
                Duration::from_secs(limits.deadline_secs),
                Duration::from_secs(limits.answer_secs),
            );
            watchdog.watch(&deadline, limits.deadline_secs);
            let request = &mut request;
            DeliverCommand { request, site: Site::new(loaded, adapters), deadline, started }
                .run(&writer)
                .map_err(|failure| failure.ending())
        }
        Err(errors) => Err(Failure::Setup(errors.first_line()).ending()),
    };
    log(result, &request.envelope, started, config)
}

fn log(
    result: Result<DeliveryResult, Ending>,
    to: &Envelope,
    started: Instant,
    config: Option<&Path>,
) -> Outcome {
    let result = result.unwrap_or_else(|ending| DeliveryResult::all(to, &ending));
    result.log(to, started, &shown_file(config))
}

/// How it ended, for each of the envelope's recipients in their order.
struct DeliveryResult {
    each: Vec<Ending>,
    /// Raw bytes, if the message came so far.
    message_id: Option<Vec<u8>>,
    /// A server of ours has delivered, or tried to.
    handed_over: bool,
}

impl DeliveryResult {
    /// The same end for all recipients; there is one also where none is known.
    fn all(envelope: &Envelope, ending: &Ending) -> DeliveryResult {
        let count = envelope.recipients.len().max(1);
        let each = vec![ending.clone(); count];
        DeliveryResult { each, message_id: None, handed_over: false }
    }

    /// What the server said for each recipient.
    fn by_server(outcomes: Vec<Outcome>, message: &Message) -> DeliveryResult {
        DeliveryResult {
            each: outcomes.into_iter().map(Ending::of).collect(),
            message_id: message.identity().message_id.clone(),
            handed_over: true,
        }
    }

    /// Logs how it ended for each; returns how the process ends.
    fn log(self, envelope: &Envelope, started: Instant, config_file: &str) -> Outcome {
        let recipient = |at| envelope.recipients.get(at).map_or("", String::as_str);
        for (at, end) in self.each.iter().enumerate() {
            let record = DeliveryLogRecord {
                queue_id: &envelope.queue_id,
                sender: &envelope.sender,
                recipient: recipient(at),
                message_id: self.message_id.as_deref(),
                account: end.account.as_deref(),
                own: end.own.as_ref(),
                collision: end.collision,
                took: Some(started.elapsed()),
                phases: (!self.handed_over).then_some(&end.phases),
                reason: end.reason,
                unrecorded: end.unrecorded.then_some(config_file),
                by: if self.handed_over { "handed over: " } else { "" },
            };
            record.log(&end.outcome);
        }
        let ends = self.each.into_iter().enumerate().map(|(at, end)| (recipient(at), end.outcome));
        Outcome::of_all(&ends.collect::<Vec<_>>())
    }
}

struct DeliverCommand<'a> {
    request: &'a mut Request,
    site: Site,
    deadline: Deadline,
    started: Instant,
}

impl DeliverCommand<'_> {
    fn run(&mut self, writer: &input::StdinWriter) -> Result<DeliveryResult, Failure> {
        let Some(server) = self.connect() else {
            // It is opened while the message is still being read.
            let service = self.prepare()?;
            let message = self.read_message(writer)?;
            return self.deliver(&message, &service);
        };
        let message = self.read_message(writer)?;
        match server.hand_over(&message, &self.request.envelope) {
            Ok(outcomes) => return Ok(DeliveryResult::by_server(outcomes, &message)),
            Err(HandOverError::Failed(failure)) => return Err(failure),
            Err(HandOverError::NotTaken(why)) => self.log_not_taken(&why),
            // Our own limit decides, which may be another one.
            Err(HandOverError::TooLarge(_)) => self.log_not_taken("too large for the server"),
        }
        self.deliver(&message, &self.prepare()?)
    }

    /// Connects to the server that is to take the message, if there is one.
    fn connect(&self) -> Option<ServerConnection> {
        let config = &self.site.loaded.config;
        let path = config.deliver.via.as_ref().filter(|_| !config.directory.knows_nobody())?;
        let secs = config.limits.deadline_secs;
        let server = ServerConnection::start(path, &host_name(), &self.deadline, secs);
        server.inspect_err(|why| self.log_not_taken(why)).ok()
    }

    /// Begins to open what a delivery of our own needs.
    fn prepare(&self) -> Result<Service, Failure> {
        let service = Service::for_one(&self.site)?;
        service.prepare(&self.request.envelope.recipients, &self.deadline);
        Ok(service)
    }

    /// Delivers to those recipients that have an account. Each recipient gets an ending.
    fn deliver(&self, message: &Message, service: &Service) -> Result<DeliveryResult, Failure> {
        let mut envelope = self.request.envelope.clone();
        if envelope.recipients.is_empty() {
            envelope.recipients.push(String::new());
        }
        let each = service.deliver_to(message, &envelope, self.started, &self.deadline)?;
        let message_id = message.identity().message_id.clone();
        Ok(DeliveryResult { each, message_id, handed_over: false })
    }

    fn read_message(&mut self, writer: &input::StdinWriter) -> Result<Message, Failure> {
        let config = &self.site.loaded.config;
        self.request.read_message(writer, config.limits.message_bytes, config.dedup.by)
    }

    fn log_not_taken(&self, why: &str) {
        let queue_id = self.request.envelope.queue_id.as_str();
        tracing::info!(queue_id, why, "{queue_id}: not handed over, delivering");
    }
}
