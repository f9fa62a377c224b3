//! One client of the server: its socket as a [`Peer`], and what becomes of what it says. Recipients
//! are asked for in the directory, a message is delivered, and every outcome is counted and logged
//! here, once.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::connection::{Connection, Handler, Peer, Settings};
use super::delivery::{Contents, MessageDelivery};
use super::log;
use super::protocol::{self, Admit, Transaction};
use super::queue_id;
use crate::deliver::Failure;
use crate::envelope::Envelope;
use crate::message::{Bytes, Message, ReceivedClauses};
use crate::net::socket::Socket;
use crate::outcome::Outcome;
use crate::service::{LOOK_UP, Service};

/// Serves one client to its end.
pub fn serve(socket: Socket, shared: &Arc<Shared>) {
    let socket = Arc::new(socket);
    let service = shared.service();
    let settings = settings(&service);
    let mut client = Client {
        socket: Arc::clone(&socket),
        shared,
        service,
        known: HashMap::new(),
        cannot_ask: None,
    };
    if let Err(error) = Connection::new(OverSocket { socket, shared }, &mut client, settings).run()
    {
        tracing::debug!(%error, "connection ended");
    }
}

fn settings(service: &Service) -> Settings {
    let config = service.config();
    Settings {
        protocol: protocol::Settings {
            host: service.host.clone(),
            recipients: config.lmtp.recipients,
        },
        idle: Duration::from_secs(config.lmtp.idle_secs),
        spool_bytes: config.lmtp.spool_bytes,
        spool_dir: config.lmtp.spool_dir.clone(),
        message_bytes: config.limits.message_bytes,
    }
}

/// A socket, and the time as it is.
struct OverSocket<'a> {
    socket: Arc<Socket>,
    shared: &'a Shared,
}

impl Peer for OverSocket<'_> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn read(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        self.socket.read(into, until)
    }

    fn write_all(&mut self, bytes: &[u8], until: Instant) -> io::Result<()> {
        self.socket.write_all(bytes, until)
    }

    fn wait(&mut self, until: Instant) -> io::Result<()> {
        self.socket.wait(until)
    }

    fn wait_or_stop(&mut self, until: Instant) -> io::Result<bool> {
        self.socket.wait_beside(&self.shared.stopping, until)
    }
}

struct Client<'a> {
    socket: Arc<Socket>,
    shared: &'a Arc<Shared>,
    service: Arc<Service>,
    /// The accounts of the message's recipients.
    known: HashMap<String, String>,
    /// Why the directory could not be asked for one of the message's recipients: the others need
    /// not wait for the same.
    cannot_ask: Option<Outcome>,
}

/// Asks the directory, and remembers the answers for the message. For whom it refuses, this is the
/// delivery's end.
impl Admit for Client<'_> {
    fn admit(&mut self, recipient: &str, transaction: &Transaction) -> Result<(), Outcome> {
        if self.known.contains_key(recipient) {
            return Ok(());
        }
        let account = match &self.cannot_ask {
            Some(outcome) => Err(outcome.clone()),
            None => self.account_of(recipient),
        };
        match account {
            Ok(account) => {
                self.known.insert(recipient.to_owned(), account);
                Ok(())
            }
            Err(outcome) => {
                self.shared.metrics.count_outcome(&outcome);
                log::refused(transaction, recipient, &outcome);
                Err(outcome)
            }
        }
    }
}

impl Handler for Client<'_> {
    fn new_settings(&mut self) -> Option<Settings> {
        self.known.clear();
        self.cannot_ask = None;
        let service = self.shared.service();
        if Arc::ptr_eq(&service, &self.service) {
            return None;
        }
        self.service = service;
        Some(settings(&self.service))
    }

    fn is_draining(&self) -> bool {
        self.shared.is_draining()
    }

    fn deliver(
        &mut self,
        transaction: Transaction,
        message: Result<Bytes, Failure>,
        say: &mut dyn FnMut(&Outcome) -> io::Result<()>,
    ) -> io::Result<()> {
        match message {
            Ok(bytes) => self.deliver_message(transaction, bytes, say),
            Err(failure) => self.reply_to_all(&transaction, &failure, say),
        }
    }
}

impl Client<'_> {
    fn account_of(&mut self, recipient: &str) -> Result<String, Outcome> {
        let over_quota = self.service.policy.over_quota;
        match self.service.account_of(recipient, Instant::now() + LOOK_UP) {
            Ok(Some(account)) => Ok(account),
            Ok(None) => Err(Failure::UnknownRecipient(recipient.to_owned()).outcome(over_quota)),
            Err(failure) => {
                let outcome = failure.outcome(over_quota);
                self.cannot_ask = Some(outcome.clone());
                Err(outcome)
            }
        }
    }

    fn deliver_message(
        &mut self,
        transaction: Transaction,
        bytes: Bytes,
        say: &mut dyn FnMut(&Outcome) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(contents) = self.contents(transaction, bytes) else {
            return Err(io::Error::other("a recipient without an account"));
        };
        let delivery = Arc::new(MessageDelivery::new(
            Arc::clone(&self.service),
            Arc::clone(&self.shared.metrics),
            contents,
        ));
        let (guard, answers) = self.shared.begin(&delivery, &self.socket);
        let news = delivery.begin(guard);
        let mut said = answers.take();
        for recipient in 0..delivery.envelope.recipients.len() {
            let ending = delivery.wait_for(recipient, &news);
            self.shared.metrics.count_outcome(&ending.outcome);
            // A client that is gone gets no reply, but log and metrics still say how it ended.
            if said.is_ok() {
                said = say(&ending.outcome);
            }
            log::ended(&delivery, recipient, &ending);
        }
        said
    }

    fn contents(&self, transaction: Transaction, bytes: Bytes) -> Option<Contents> {
        let service = &self.service;
        let accounts: Vec<Option<String>> =
            transaction.recipients.iter().map(|address| self.known.get(address).cloned()).collect();
        if accounts.iter().any(Option::is_none) {
            return None;
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
        let id = match transaction.queue_id.as_str() {
            "" => format!("{}.{}", std::process::id(), self.shared.delivery_number()),
            queue_id => queue_id.to_owned(),
        };
        let message = Message::new(bytes, service.by);
        let queue_id = Some(transaction.queue_id).filter(|queue_id| !queue_id.is_empty());
        Some(Contents {
            clauses: ReceivedClauses { from, by: service.host.clone(), protocol, id },
            envelope: Envelope {
                sender: transaction.sender,
                recipients: transaction.recipients,
                queue_id: queue_id.or_else(|| queue_id::of(&message)).unwrap_or_default(),
                sasl_username: if self.is_believed() {
                    transaction.sasl_username
                } else {
                    String::new()
                },
            },
            message,
            accounts,
        })
    }

    /// Whether the client's word is taken for who logged in: anybody who may connect could say so,
    /// and write into everybody's Sent.
    fn is_believed(&self) -> bool {
        self.socket.peer_user().is_some_and(|user| self.shared.believed.contains(&user))
    }

    fn reply_to_all(
        &mut self,
        transaction: &Transaction,
        failure: &Failure,
        say: &mut dyn FnMut(&Outcome) -> io::Result<()>,
    ) -> io::Result<()> {
        let outcome = failure.outcome(self.service.policy.over_quota);
        for recipient in &transaction.recipients {
            self.shared.metrics.count_outcome(&outcome);
            log::refused(transaction, recipient, &outcome);
        }
        transaction.recipients.iter().try_for_each(|_| say(&outcome))
    }
}
