//! A connection to the mail server's LMTP: greeting, LHLO, STARTTLS, and what the server offers.
//! Whatever is not understood makes it unsound; it is closed then and never used again. Before TLS
//! nothing is said but what leads to it, and what was offered before it is forgotten.

use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use super::HandOffSettings;
use onedrop_core::text;
use onedrop_net::input::Input;
use onedrop_net::is_loopback;
use onedrop_net::lmtp::LmtpPlace;
use onedrop_net::lmtp::read::{self, DialogError};
use onedrop_net::lmtp::reply::Reply;
use onedrop_net::socket::{Socket, Timed};
use onedrop_net::tls::{self, Transport};

/// How long a connection that ends may take to say so.
pub(super) const GOODBYE: Duration = Duration::from_millis(50);

/// What the server offers in its answer to LHLO.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    /// What it calls itself.
    pub name: String,
    pub pipelining: bool,
    pub eight_bit: bool,
    pub smtputf8: bool,
    /// Largest message in bytes; 0: the server names none (RFC 1870). `None`: it has no SIZE.
    pub size: Option<u64>,
    pub starttls: bool,
    /// Attributes of XCLIENT that Dovecot knows beside Postfix's.
    pub session: bool,
    pub timeout: bool,
    /// Whether RCPT takes ORCPT, as far as is known: Dovecot takes it and does not say so.
    pub orcpt: bool,
}

/// What Dovecot's greeting says, unless `login_greeting` says otherwise, in lower case.
const DOVECOT: &str = "dovecot";

/// A connection that is ready for a message.
pub struct LmtpSession {
    pub(super) transport: Transport,
    pub(super) input: Input,
    pub(super) offers: Offers,
    pub(super) host: String,
    /// Another command can follow.
    pub(super) sound: bool,
    /// A transaction was begun and given up.
    pub(super) needs_reset: bool,
    pub(super) is_tls: bool,
    greeting: String,
}

impl LmtpSession {
    /// Connects and sends LHLO.
    ///
    /// # Errors
    /// A sentence that says why not.
    pub fn connect(
        settings: &HandOffSettings,
        tls: &OnceLock<Arc<ClientConfig>>,
        until: Instant,
    ) -> Result<LmtpSession, String> {
        let socket = match &settings.place {
            LmtpPlace::Unix(path) => {
                Socket::connect_unix(path, until.saturating_duration_since(Instant::now()))
            }
            LmtpPlace::Tcp { host, port } => Socket::connect_tcp(host, *port, until),
        };
        let socket = socket.map_err(|error| format!("cannot connect: {error}"))?;
        let mut session = LmtpSession {
            transport: Transport::Clear(Timed::new(socket, until)),
            input: Input::default(),
            offers: Offers::default(),
            host: settings.host.clone(),
            sound: true,
            needs_reset: false,
            is_tls: false,
            greeting: String::new(),
        };
        session.greeting = session.expect(220, "the greeting")?.lines.join(" ");
        session.hello()?;
        if let (LmtpPlace::Tcp { host, .. }, true) = (&settings.place, settings.starttls) {
            match session.offers.starttls {
                true => session.start_tls(settings, tls, host)?,
                false if is_loopback(host) => {}
                false => return Err("it offers no STARTTLS (store.starttls)".to_owned()),
            }
        }
        Ok(session)
    }

    fn hello(&mut self) -> Result<(), String> {
        self.send(format!("LHLO {}\r\n", self.host).as_bytes())?;
        let reply = self.expect(250, "LHLO")?;
        self.offers = Offers::of(&reply);
        Ok(())
    }

    fn start_tls(
        &mut self,
        settings: &HandOffSettings,
        tls: &OnceLock<Arc<ClientConfig>>,
        host: &str,
    ) -> Result<(), String> {
        self.send(b"STARTTLS\r\n")?;
        self.expect(220, "STARTTLS")?;
        if !self.input.rest().is_empty() {
            return Err("it sent data in clear before TLS began".to_owned());
        }
        let config = match tls.get() {
            Some(config) => config,
            None => {
                let config = tls::client_config(settings.ca_file.as_deref())?;
                tls.get_or_init(|| Arc::new(config))
            }
        };
        let clear = std::mem::replace(&mut self.transport, Transport::Closed);
        let over = clear.start_tls(Arc::clone(config), host);
        self.transport = over.map_err(|error| format!("TLS: {error}"))?;
        self.is_tls = true;
        self.hello()
    }

    /// Whether the connection can still be used, as far as can be seen: a server has nothing to say
    /// unasked but that it leaves.
    pub fn is_there(&mut self) -> bool {
        self.sound && self.is_silent()
    }

    /// Whether the server has said nothing that is not read, nor gone.
    pub(super) fn is_silent(&mut self) -> bool {
        let waits = self.transport.socket().map(|timed| timed.socket.peek_now());
        self.input.rest().is_empty()
            && matches!(waits, Ok(Err(error)) if error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Whether it is a Dovecot by what it says: XCLIENT's attributes, which it offers to trusted
    /// networks, or its greeting.
    pub(super) fn is_dovecot(&self) -> bool {
        self.offers.session || self.greeting.to_ascii_lowercase().contains(DOVECOT)
    }

    /// Whether another message can follow.
    pub fn is_sound(&self) -> bool {
        self.sound
    }

    /// Facts about the server for an administrator, one a line.
    pub fn facts(&self, place: &LmtpPlace) -> Vec<String> {
        let Offers { name, session, timeout, size, .. } = &self.offers;
        let tls = match (self.is_tls, place) {
            (true, _) => "TLS",
            (false, LmtpPlace::Unix(_)) => "a Unix socket",
            (false, LmtpPlace::Tcp { .. }) => "no TLS",
        };
        let xclient = match *session && *timeout {
            true => "yes: our ids stand in the server's log, and it does not outwait us",
            false => {
                "no: our ids do not stand in the server's log (Dovecot: login_trusted_networks, \
                 by TCP only)"
            }
        };
        let size = size.filter(|size| *size > 0);
        let size = size.map_or("none told".to_owned(), |size| format!("{size} bytes"));
        vec![
            format!("lmtp: connected to {place} ({tls}), {name}"),
            format!("lmtp: XCLIENT SESSION and TIMEOUT: {xclient}"),
            format!("lmtp: largest message: {size}"),
        ]
    }

    /// Until when reads and writes wait.
    pub(super) fn wait_until(&mut self, until: Instant) {
        if let Ok(timed) = self.transport.socket() {
            timed.until = until;
        }
    }

    pub(super) fn reply(&mut self) -> Result<Reply, DialogError> {
        read::reply(&mut self.input, &mut self.transport)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sent = self.transport.write_all(bytes).and_then(|()| self.transport.flush());
        sent.map_err(|error| error.to_string())
    }

    /// A reply on the way to the first message.
    fn expect(&mut self, code: u16, to: &str) -> Result<Reply, String> {
        match self.reply() {
            Ok(reply) if reply.code == code => Ok(reply),
            Ok(reply) => Err(format!("{to}: {}", super::replies::said(&reply))),
            Err(error) => Err(format!("{to}: {}", in_words(&error))),
        }
    }
}

/// What broke a dialog.
pub fn in_words(error: &DialogError) -> String {
    match error {
        DialogError::Lost(error) => error.to_string(),
        DialogError::Late => "no answer in time".to_owned(),
        DialogError::NotUnderstood(said) => {
            format!("not understood: {}", text::shortened(said, 200))
        }
    }
}

impl Offers {
    fn of(hello: &Reply) -> Offers {
        let mut offers = Offers { orcpt: true, ..Offers::default() };
        let mut lines = hello.lines.iter();
        let name = lines.next().map(String::as_str).unwrap_or_default();
        offers.name = text::shortened(name, 200).into_owned();
        for line in lines {
            let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
            match keyword.trim().to_ascii_uppercase().as_str() {
                "PIPELINING" => offers.pipelining = true,
                "8BITMIME" => offers.eight_bit = true,
                "SMTPUTF8" => offers.smtputf8 = true,
                "STARTTLS" => offers.starttls = true,
                "SIZE" => offers.size = Some(rest.trim().parse().unwrap_or(0)),
                "XCLIENT" => {
                    let attributes = rest.to_ascii_uppercase();
                    let mut attributes = attributes.split_ascii_whitespace();
                    offers.timeout = attributes.clone().any(|one| one == "TIMEOUT");
                    offers.session = attributes.any(|one| one == "SESSION");
                }
                _ => {}
            }
        }
        offers
    }
}

/// Says QUIT, and does not wait for the answer; in the middle of a message it says nothing.
impl Drop for LmtpSession {
    fn drop(&mut self) {
        if self.sound {
            self.wait_until(Instant::now() + GOODBYE);
            let _ = self.send(b"QUIT\r\n");
        }
    }
}
