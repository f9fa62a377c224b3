//! One client of the server: its socket as a [`Peer`], and the work on what it says. Recipients are
//! looked up in the directory, a message is delivered, and every outcome is counted and logged
//! here, once.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use jiff::Zoned;

use super::caller::{self, ClientIdentity};
use super::connection::{ClientConnection, ConnectionSettings, Peer};
use super::delivery::MessageDelivery;
use super::protocol::Transaction;
use super::queue_id;
use super::{ServerState, UnderWay};
use onedrop_core::deliver::{Ending, Failure};
use onedrop_core::directory::{Home, Known};
use onedrop_core::envelope::Envelope;
use onedrop_core::message::{Bytes, Message, ReceivedClauses};
use onedrop_core::outcome::Outcome;
use onedrop_net::lmtp::reply;
use onedrop_net::socket::Socket;
use onedrop_site::delivery_log::DeliveryLogRecord;
use onedrop_site::service::{LOOK_UP, Service};

/// Serves one client to its end.
pub fn serve(socket: Arc<Socket>, caller: ClientIdentity, server: &Arc<ServerState>) {
    let service = server.service();
    let settings = settings(&service, caller);
    let known = HashMap::new();
    let is_believed = socket.peer_user().is_some_and(|user| server.believed.contains(&user));
    let cannot_ask = None;
    let client = SocketClient { socket, caller, is_believed, server, service, known, cannot_ask };
    if let Err(error) = ClientConnection::new(client, settings).run() {
        tracing::info!(%error, "a client's connection failed");
    }
}

fn settings(service: &Service, caller: ClientIdentity) -> ConnectionSettings {
    ConnectionSettings {
        host: service.host.clone(),
        lmtp: service.config().lmtp.clone(),
        message_bytes: service.config().limits.message_bytes,
        // Each is a line in the log.
        counts_refused: caller != ClientIdentity::Believed,
        // A user who may not read the configuration could guess its values from digests.
        help: match caller {
            ClientIdentity::Believed => service.help(),
            ClientIdentity::User(_) | ClientIdentity::Unseen => Arc::default(),
        },
    }
}

struct SocketClient<'a> {
    socket: Arc<Socket>,
    caller: ClientIdentity,
    /// What it says of a user who has logged in counts.
    is_believed: bool,
    server: &'a Arc<ServerState>,
    service: Arc<Service>,
    /// The accounts of the message's recipients, and the mailboxes that are meant.
    known: HashMap<String, Home>,
    /// Why the directory could not be asked for one of the message's recipients: the others need
    /// not wait for the same.
    cannot_ask: Option<Box<Ending>>,
}

impl Peer for SocketClient<'_> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn read(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        self.socket.read(into, until)
    }

    fn write_all(&mut self, bytes: &[u8], until: Instant) -> io::Result<()> {
        self.socket.write_all(bytes, until)
    }

    fn wait(&mut self, until: Instant, heeds_stop: bool) -> io::Result<bool> {
        self.socket.wait(heeds_stop.then(|| self.server.stopping.as_fd()), until)
    }

    fn new_settings(&mut self) -> Option<ConnectionSettings> {
        self.known.clear();
        self.cannot_ask = None;
        let service = self.server.service();
        if Arc::ptr_eq(&service, &self.service) {
            return None;
        }
        self.service = service;
        Some(settings(&self.service, self.caller))
    }

    fn is_draining(&self) -> bool {
        self.server.is_draining()
    }

    /// Asks the directory, and remembers the answers for the message. For a recipient that it
    /// refuses this is the delivery's end.
    fn admit(&mut self, recipient: &str, transaction: &Transaction) -> Result<(), Outcome> {
        if self.known.contains_key(recipient) {
            return Ok(());
        }
        let asks = || !matches!(self.service.routing.known(recipient), Known::Home(_));
        let home = match &self.cannot_ask {
            Some(ending) if asks() => Err(ending.clone()),
            _ => {
                let _guard = self.watch_look_up(recipient, transaction);
                self.home_of(recipient)
            }
        };
        let home = home.map_err(|ending| {
            self.refuse(transaction, recipient, &ending);
            ending.outcome
        })?;
        self.known.insert(recipient.to_owned(), home);
        Ok(())
    }

    fn deliver(
        &mut self,
        transaction: Transaction,
        message: Result<Bytes, Failure>,
    ) -> io::Result<()> {
        match message {
            Ok(bytes) => self.deliver_message(transaction, bytes),
            Err(failure) => {
                let ending = failure.ending();
                for recipient in &transaction.recipients {
                    self.refuse(&transaction, recipient, &ending);
                }
                transaction.recipients.iter().try_for_each(|_| self.reply(&ending.outcome))
            }
        }
    }
}

impl SocketClient<'_> {
    /// Has the look-up of a recipient watched, until the guard is dropped.
    fn watch_look_up(&self, recipient: &str, transaction: &Transaction) -> UnderWay {
        // The address of a user who calls is looked up as well.
        let time = match self.caller {
            ClientIdentity::Believed => LOOK_UP,
            ClientIdentity::User(_) | ClientIdentity::Unseen => 2 * LOOK_UP,
        };
        let (queue_id, recipients) = (transaction.queue_id.clone(), vec![recipient.to_owned()]);
        let envelope = Envelope { queue_id, recipients, ..Envelope::default() };
        self.server.begin_look_up(Instant::now() + time, &envelope)
    }

    /// The recipient's account, if the caller may deliver to it.
    fn home_of(&mut self, recipient: &str) -> Result<Home, Box<Ending>> {
        // Temporary, also where the address does not exist: to Postfix it is this user's, so that
        // is a fault of the set-up; and what others have no user needs to hear.
        let refused = |why: String| Box::new(Failure::Setup(why).ending());
        let deferred = |ending: Box<Ending>| match ending.outcome {
            Outcome::PermFail(_, why) => refused(why),
            Outcome::Delivered(_) | Outcome::TempFail(..) => ending,
        };
        let user = match self.caller {
            ClientIdentity::Believed => return self.account_of(recipient),
            ClientIdentity::Unseen => {
                let why = "this server cannot see whose process calls: its service needs \
                           PrivateUsers=no";
                return Err(refused(why.to_owned()));
            }
            ClientIdentity::User(user) => user,
        };
        let name = caller::name_of(user).map_err(refused)?;
        let directory = &self.service.config().directory;
        let Some(address) = directory.address_of_user(&name) else {
            let why = "has a detail, a domain or capital letters, and may mean another's account";
            return Err(refused(format!("user {name}: the name {why}")));
        };
        // local(8) has made sure that such a recipient is this user, in whatever domain.
        let asked = directory.local_part_of_user(recipient, &name).unwrap_or(recipient).to_owned();
        let own = self.account_of(&address).map_err(deferred)?;
        let its = self.account_of(&asked).map_err(deferred)?;
        match its.account == own.account {
            true => Ok(its),
            false => Err(refused(format!(
                "user {name} may deliver to its own account alone, and {recipient} is not its own"
            ))),
        }
    }

    fn account_of(&mut self, recipient: &str) -> Result<Home, Box<Ending>> {
        match self.service.account_of(recipient, Instant::now() + LOOK_UP) {
            Ok(Some(home)) => Ok(home),
            Ok(None) => Err(Failure::UnknownRecipient(recipient.to_owned()).ending().into()),
            Err(failure) => {
                let ending = Box::new(failure.ending());
                self.server.metrics.count_failure(&failure);
                if !failure.is_of_one_recipient() {
                    self.cannot_ask = Some(ending.clone());
                }
                Err(ending)
            }
        }
    }

    /// A recipient is refused before there is a delivery.
    fn refuse(&self, transaction: &Transaction, recipient: &str, ending: &Ending) {
        self.server.metrics.count_ending(ending);
        let (Transaction { queue_id, sender, .. }, reason) = (transaction, ending.reason);
        let file = self.service.config_file();
        // What a user has tried is nothing that an administrator must mend: `status` is not to want
        // attention for it.
        let is_put_off = matches!(ending.outcome, Outcome::TempFail(..))
            && self.caller == ClientIdentity::Believed;
        let unrecorded = is_put_off.then_some(&*file);
        let record = DeliveryLogRecord { queue_id, sender, recipient, reason, ..<_>::default() };
        DeliveryLogRecord { unrecorded, ..record }.log(&ending.outcome);
    }

    fn reply(&self, outcome: &Outcome) -> io::Result<()> {
        let idle = Duration::from_secs(self.service.config().lmtp.idle_secs);
        self.socket.write_all(&reply(outcome), Instant::now() + idle)
    }

    fn deliver_message(&self, transaction: Transaction, bytes: Bytes) -> io::Result<()> {
        let delivery = Arc::new(self.delivery(transaction, bytes)?);
        let guard = self.server.begin(&delivery, &self.socket);
        let mut endings = delivery.begin(&self.server.metrics, guard);
        let mut replied = delivery.claim_replies();
        for (number, recipient) in delivery.envelope.recipients.iter().enumerate() {
            let ending = endings.wait_for(number, &delivery);
            self.server.metrics.count_ending(&ending);
            // A client that is gone gets no reply, but log and metrics still say how it ended.
            if replied.is_ok() {
                replied = self.reply(&ending.outcome);
            }
            let account = delivery.homes[number].as_ref().map(|home| home.account.as_str());
            log_ending(&delivery, recipient, account, &ending);
        }
        replied
    }

    fn delivery(&self, transaction: Transaction, bytes: Bytes) -> io::Result<MessageDelivery> {
        let service = &self.service;
        let homes: Vec<Option<Home>> =
            transaction.recipients.iter().map(|address| self.known.get(address).cloned()).collect();
        if homes.contains(&None) {
            return Err(io::Error::other("a recipient without an account"));
        }
        let protocol = if transaction.smtputf8 { "UTF8LMTP" } else { "LMTP" };
        let client = &transaction.client;
        let from = match (client.helo.as_str(), client.addr.as_str()) {
            ("", "") => transaction.lhlo.clone(),
            (helo, "") => helo.to_owned(),
            (helo, addr) => {
                let name = if client.name.is_empty() { "unknown" } else { &client.name };
                format!("{} ({name} [{addr}])", if helo.is_empty() { name } else { helo })
            }
        };
        let message = Message::new(bytes, service.by);
        let forwarded = Some(transaction.queue_id).filter(|queue_id| !queue_id.is_empty());
        let id = forwarded
            .clone()
            .unwrap_or_else(|| format!("{}.{}", std::process::id(), self.server.delivery_number()));
        // Any client could name a user who logged in, and so write into every account's Sent.
        // Nor is what such a message says of itself, as Authentication-Results.
        let own_copies_alone = self.caller != ClientIdentity::Believed;
        Ok(MessageDelivery {
            envelope: Envelope {
                sender: transaction.sender,
                recipients: transaction.recipients,
                queue_id: forwarded.or_else(|| queue_id::of(&message)).unwrap_or_default(),
                sasl_username: Some(transaction.sasl_username)
                    .filter(|_| self.is_believed)
                    .unwrap_or_default(),
            },
            clauses: ReceivedClauses { from, by: service.host.clone(), protocol, id },
            message,
            homes,
            own_copies_alone,
            received: Zoned::now(),
            started: Instant::now(),
            deadline: service.deadline(),
            service: Arc::clone(service),
            is_answered: AtomicBool::new(false),
        })
    }
}

/// Logs how it ended for one recipient. The text names account, mailbox and uid of each copy, the
/// fields those of the recipient's own.
fn log_ending(delivery: &MessageDelivery, recipient: &str, account: Option<&str>, ending: &Ending) {
    let envelope = &delivery.envelope;
    let file = delivery.service.config_file();
    let ended = DeliveryLogRecord {
        queue_id: &envelope.queue_id,
        sender: &envelope.sender,
        recipient,
        message_id: delivery.message.identity().message_id.as_deref(),
        account,
        own: ending.own.as_ref(),
        collision: ending.collision,
        took: Some(delivery.started.elapsed()),
        phases: Some(&ending.phases),
        reason: ending.reason,
        unrecorded: ending.unrecorded.then_some(&*file),
        by: "",
    };
    ended.log(&ending.outcome);
}
