//! One client: lines and bytes from its socket to the protocol, and the replies back. Every wait is bounded: a line, once
//! begun, must end in the idle time, and data must come at a rate that gets it done. Replies go out when the client has
//! nothing more to say for now, and each recipient's as soon as it is decided.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::data::{ChunkReader, DotReader};
use super::delivery::{self, Contents, Parcel};
use super::input::{Input, Pace};
use super::log;
use super::metrics::Metrics;
use super::protocol::{Admission, Admit, LONGEST_LINE, Next, Protocol, Settings, Transaction, reply};
use super::queue_id;
use super::server::Shared;
use super::service::Service;
use super::spool::{NoMessage, Spool};
use super::stream::Stream;
use crate::envelope::Envelope;
use crate::message::{Bytes, Message, Passage};
use crate::outcome::{Failure, Outcome};

const SHUTTING_DOWN: &str = "421 4.3.2 Shutting down, try again";
/// How long a client may still begin a message when the server stops.
const LAST_WORD: Duration = Duration::from_millis(250);
/// Replies that are kept back while the client sends ahead.
const MOST_REPLIES: usize = 64 * 1024;

/// Serves one client to its end.
pub fn serve(stream: Stream, shared: &Arc<Shared>) {
    let service = shared.service();
    let mut connection = Connection {
        idle: Duration::from_secs(service.config().lmtp.idle_secs),
        protocol: Protocol::new(settings(&service)),
        accounts: Accounts { service, metrics: Arc::clone(&shared.metrics), known: HashMap::new(), cannot_ask: None },
        input: Input::new(stream),
        out: Vec::new(),
        chunks: None,
        has_just_delivered: false,
        shared,
    };
    if let Err(error) = connection.run() {
        tracing::debug!(%error, "connection ended");
    }
}

fn settings(service: &Service) -> Settings {
    Settings { host: service.host.clone(), recipients: service.config().lmtp.recipients }
}

struct Connection<'a> {
    shared: &'a Arc<Shared>,
    protocol: Protocol,
    accounts: Accounts,
    input: Input,
    out: Vec<u8>,
    chunks: Option<(ChunkReader, Spool)>,
    idle: Duration,
    /// Nothing was said since the last message.
    has_just_delivered: bool,
}

/// Asks the directory, and remembers the answers for the message. For whom it refuses, this is the delivery's end.
struct Accounts {
    service: Arc<Service>,
    metrics: Arc<Metrics>,
    known: HashMap<String, String>,
    /// Why it could not be asked for one of the message's recipients: the others need not wait for the same.
    cannot_ask: Option<Outcome>,
}

impl Admit for Accounts {
    fn admit(&mut self, address: &str) -> Admission {
        if self.known.contains_key(address) {
            return Admission::Known;
        }
        if let Some(outcome) = &self.cannot_ask {
            self.metrics.count_outcome(outcome);
            return Admission::TryLater(outcome.text().to_owned());
        }
        match self.service.account_of(address) {
            Ok(Some(account)) => {
                self.known.insert(address.to_owned(), account);
                Admission::Known
            }
            Ok(None) => {
                tracing::info!(recipient = address, "unknown recipient");
                let failure = Failure::UnknownRecipient(address.to_owned());
                self.metrics.count_outcome(&Outcome::of(&failure, self.service.policy.over_quota));
                Admission::Unknown
            }
            Err(failure) => {
                tracing::warn!(recipient = address, %failure, "recipient not looked up");
                let outcome = Outcome::of(&failure, self.service.policy.over_quota);
                self.metrics.count_outcome(&outcome);
                self.cannot_ask = Some(outcome);
                Admission::TryLater(failure.to_string())
            }
        }
    }
}

/// What a line came to.
enum Line {
    Whole(Vec<u8>),
    TooLong,
    End,
}

impl Connection<'_> {
    fn run(&mut self) -> io::Result<()> {
        self.out.extend_from_slice(self.protocol.greeting().as_bytes());
        loop {
            if self.protocol.is_idle() {
                self.forget_the_last_message();
            }
            let line = match self.line() {
                Err(error) if is_timeout(&error) => {
                    return self.say_goodbye("421 4.4.2 Idle for too long");
                }
                line => line?,
            };
            // lmtp(8) says RSET to see whether a kept connection is good, and takes another when it is not.
            if self.has_just_delivered && self.shared.is_draining() {
                return self.say_goodbye(SHUTTING_DOWN);
            }
            if self.protocol.is_idle() {
                self.heed_the_configuration();
            }
            let next = match line {
                Line::End if self.shared.is_draining() => return self.say_goodbye(SHUTTING_DOWN),
                Line::End => return self.flush(),
                Line::TooLong => self.protocol.line_too_long(&mut self.out),
                Line::Whole(line) => self.protocol.line(&line, Instant::now(), &mut self.accounts, &mut self.out),
            };
            self.has_just_delivered = false;
            match next {
                Next::Command => {}
                Next::Data => self.data()?,
                Next::Chunk { bytes, first, last } => {
                    if first {
                        self.chunks = None;
                    }
                    self.chunk(bytes, last)?;
                }
                Next::Discard { bytes } => {
                    let mut nowhere = Spool::new(self.accounts.service.spool_folder(), u64::MAX, 0);
                    self.read_exactly(bytes, |_, _| {}, &mut nowhere)?;
                    self.protocol.chunk_read(&mut self.out);
                }
                Next::Close => return self.flush(),
            }
        }
    }

    fn forget_the_last_message(&mut self) {
        self.chunks = None;
        self.accounts.known.clear();
        self.accounts.cannot_ask = None;
    }

    /// Between two messages a new configuration counts; it may have come while the client said nothing.
    fn heed_the_configuration(&mut self) {
        let service = self.shared.service();
        if !Arc::ptr_eq(&service, &self.accounts.service) {
            self.protocol.set(settings(&service));
            self.idle = Duration::from_secs(service.config().lmtp.idle_secs);
            self.accounts.service = service;
        }
    }

    /// The next line, without its line end. Replies go out before anything is waited for.
    fn line(&mut self) -> io::Result<Line> {
        let mut until = Instant::now() + self.idle;
        let mut too_long = false;
        loop {
            let rest = self.input.rest();
            if let Some(at) = memchr::memchr(b'\n', rest) {
                let line = rest[..at].strip_suffix(b"\r").unwrap_or(&rest[..at]).to_vec();
                self.input.take(at + 1);
                return Ok(if too_long || line.len() > LONGEST_LINE { Line::TooLong } else { Line::Whole(line) });
            }
            if rest.len() > LONGEST_LINE {
                too_long = true;
                self.input.take(self.input.rest().len());
            }
            self.flush()?;
            if self.input.rest().is_empty() && !too_long && self.protocol.is_idle() {
                if self.is_told_to_go(until)? {
                    return Ok(Line::End);
                }
                // The line begins now.
                until = Instant::now() + self.idle;
            }
            if self.input.fill(until)? == 0 {
                return Ok(Line::End);
            }
        }
    }

    /// Waits between two messages: until the client says something, or the server stops. A client that has spoken since
    /// its last message may be about to begin another (lmtp(8) says RSET to see whether a kept connection is good, and then
    /// takes no second look): it gets the time to. One that has not goes at once, or under load it would never go.
    fn is_told_to_go(&self, until: Instant) -> io::Result<bool> {
        let left = until.saturating_duration_since(Instant::now());
        let stream = &self.input.stream;
        if self.has_just_delivered && self.shared.is_draining() {
            return Ok(stream.wait(Duration::ZERO).is_err());
        }
        let stopped = !stream.wait_beside(&self.shared.stopping, left)?;
        Ok(stopped && (self.has_just_delivered || stream.wait(LAST_WORD).is_err()))
    }

    fn data(&mut self) -> io::Result<()> {
        self.flush()?;
        let mut spool = self.spool();
        let mut reader = DotReader::new();
        let pace = Pace::new(self.idle);
        let mut read = 0;
        loop {
            let rest = self.input.rest();
            let taken = reader.feed(rest, spool.memory());
            let used = taken.unwrap_or(rest.len());
            self.input.take(used);
            read += used as u64;
            spool.settle();
            if taken.is_some() {
                return self.message(spool);
            }
            if self.input.fill(pace.until(read))? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn chunk(&mut self, bytes: u64, last: bool) -> io::Result<()> {
        let (mut reader, mut spool) = match self.chunks.take() {
            Some(chunks) => chunks,
            None => (ChunkReader::new(), self.spool()),
        };
        self.read_exactly(bytes, |piece, spool| reader.feed(piece, spool.memory()), &mut spool)?;
        if last {
            reader.end(spool.memory());
            spool.settle();
            return self.message(spool);
        }
        self.protocol.chunk_read(&mut self.out);
        self.chunks = Some((reader, spool));
        Ok(())
    }

    fn read_exactly(
        &mut self,
        bytes: u64,
        mut take: impl FnMut(&[u8], &mut Spool),
        spool: &mut Spool,
    ) -> io::Result<()> {
        let pace = Pace::new(self.idle);
        let mut left = bytes;
        while left > 0 {
            if self.input.rest().is_empty() {
                self.flush()?;
                if self.input.fill(pace.until(bytes - left))? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            let rest = self.input.rest();
            let piece = &rest[..rest.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            let taken = piece.len();
            take(piece, spool);
            self.input.take(taken);
            left -= taken as u64;
            spool.settle();
        }
        Ok(())
    }

    fn spool(&self) -> Spool {
        let config = self.accounts.service.config();
        Spool::new(&config.lmtp.spool_dir, config.lmtp.spool_bytes, config.limits.message_bytes)
    }

    /// Delivers, and replies for each recipient in order, as soon as it is decided.
    fn message(&mut self, spool: Spool) -> io::Result<()> {
        let transaction = self.protocol.take();
        self.has_just_delivered = true;
        let bytes = match spool.finish() {
            Ok(bytes) => bytes,
            Err(NoMessage::TooLarge { limit }) => return self.reply_to_all(&transaction, &Failure::TooLarge { limit }),
            Err(NoMessage::Spool(error)) => {
                return self.reply_to_all(&transaction, &Failure::Input(format!("spool: {error}")));
            }
        };
        let Some(contents) = self.contents(transaction, bytes) else {
            return Err(io::Error::other("a recipient without an account"));
        };
        let service = Arc::clone(&self.accounts.service);
        let parcel = Arc::new(Parcel::new(service, Arc::clone(&self.shared.metrics), contents));
        // Should the server answer in our place, nothing must stand before that.
        self.flush()?;
        let (flight, answers) = self.shared.flight(&parcel, &self.input.stream);
        let news = delivery::begin(&parcel, flight);
        let mut told = answers.take();
        for recipient in 0..parcel.envelope().recipients.len() {
            let ending = parcel.wait_for(recipient, &news);
            // A client that is gone gets no reply, but log and metrics still say how it ended.
            if told.is_ok() {
                self.out.extend_from_slice(&reply(&ending.outcome));
                told = self.flush();
            }
            self.shared.metrics.count_outcome(&ending.outcome);
            log::ended(&parcel, recipient, &ending);
        }
        told
    }

    fn contents(&self, transaction: Transaction, bytes: Bytes) -> Option<Contents> {
        let service = &self.accounts.service;
        let accounts = transaction.recipients.iter().map(|address| self.accounts.known.get(address).cloned());
        let accounts = accounts.collect::<Option<Vec<String>>>()?;
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
            "" => format!("{}.{}", std::process::id(), service.delivery_number()),
            queue_id => queue_id.to_owned(),
        };
        let message = Message::new(bytes, service.by);
        let queue_id = Some(transaction.queue_id).filter(|queue_id| !queue_id.is_empty());
        Some(Contents {
            passage: Passage { from, by: service.host.clone(), protocol, id },
            envelope: Envelope {
                sender: transaction.sender,
                recipients: transaction.recipients,
                queue_id: queue_id.or_else(|| queue_id::of(&message)).unwrap_or_default(),
                // Who may use a socket of this host's is believed, as pipe(8)'s user is; by TCP anybody might say so.
                sasl_username: match *self.input.stream {
                    Stream::Unix(_) => transaction.sasl_username,
                    Stream::Tcp(_) => String::new(),
                },
            },
            message,
            accounts,
        })
    }

    fn reply_to_all(&mut self, transaction: &Transaction, failure: &Failure) -> io::Result<()> {
        let outcome = Outcome::of(failure, self.accounts.service.policy.over_quota);
        for recipient in &transaction.recipients {
            self.out.extend_from_slice(&reply(&outcome));
            self.shared.metrics.count_outcome(&outcome);
            tracing::warn!(queue_id = transaction.queue_id, recipient, %failure, "not delivered");
        }
        self.flush()
    }

    fn say_goodbye(&mut self, text: &str) -> io::Result<()> {
        self.out.extend_from_slice(format!("{text}\r\n").as_bytes());
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let written = self.input.stream.write_all(&self.out, Instant::now() + self.idle);
        self.out.clear();
        // What a client that sends ahead without end made of it is not kept.
        self.out.shrink_to(MOST_REPLIES);
        written
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}
