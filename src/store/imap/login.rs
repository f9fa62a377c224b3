//! From nothing to an authenticated session: connect, greeting, TLS, AUTHENTICATE PLAIN with the
//! configured user as authentication identity and the account as authorization identity, or with a
//! name made of both. With implicit TLS or none this is one round trip after the greeting where the
//! server has SASL-IR. What the server said before TLS is forgotten after STARTTLS, and without the
//! TLS that was asked for no password goes out. The password shows in no error, not even when a
//! server echoes it. Nothing is left behind by a login that fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::ClientConfig;
use secrecy::ExposeSecret;

use super::session::{Capabilities, CommandError, ConnectError, Refusal, Session, guarded};
use super::syntax;
use super::wire::Wire;
use super::witness::{Span, Verdict, Witnesses};
use super::{ImapSettings, Tls};
use crate::login::LoginForm;
use crate::net::tls;

/// What a server may send until we are logged in.
const LOGIN_BYTES: usize = 64 * 1024;

/// Opens sessions; shared with the threads that do it in the background.
pub struct Connector {
    pub settings: ImapSettings,
    /// Reading the system's root certificates takes some milliseconds: once, by the first that
    /// needs them. What could not be read is read again by the next.
    tls: OnceLock<Arc<ClientConfig>>,
    witnesses: Witnesses,
    /// By the capabilities of the last login.
    has_multiappend: AtomicBool,
}

/// Whose mailboxes a login is for.
#[derive(Clone, Copy)]
enum LoginAs<'a> {
    Account(&'a str),
    /// The user that logs in.
    Itself,
}

impl std::fmt::Display for LoginAs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoginAs::Account(account) => write!(f, " for {account}"),
            LoginAs::Itself => f.write_str(" for itself"),
        }
    }
}

/// Why one login came to nothing.
pub enum LoginError {
    /// The server said NO or BAD.
    Refused(Refusal),
    Failed(ConnectError),
}

impl LoginError {
    /// Whether the server denies that this user may log in (RFC 5530), and says nothing else.
    pub fn denies_identity(&self) -> bool {
        const CODES: [&str; 2] = ["AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED"];
        matches!(self, LoginError::Refused(no) if CODES.contains(&no.code.as_str()))
    }

    pub fn why(self) -> String {
        match self {
            LoginError::Refused(no) => no.text,
            LoginError::Failed(no) => no.why(),
        }
    }
}

impl From<String> for LoginError {
    fn from(why: String) -> Self {
        LoginError::Failed(ConnectError::Failed(why))
    }
}

impl LoginError {
    fn map(self, say: impl FnOnce(String) -> String) -> LoginError {
        match self {
            LoginError::Refused(Refusal { code, text }) => {
                LoginError::Refused(Refusal { code, text: say(text) })
            }
            LoginError::Failed(no) => LoginError::Failed(no.map(say)),
        }
    }
}

/// SASL PLAIN (RFC 4616) for the crate.
struct Plain(String);

impl imap::Authenticator for Plain {
    type Response = String;

    fn process(&self, _challenge: &[u8]) -> String {
        self.0.clone()
    }
}

impl Connector {
    pub fn new(settings: ImapSettings) -> Connector {
        Connector {
            settings,
            tls: OnceLock::new(),
            witnesses: Witnesses::default(),
            has_multiappend: AtomicBool::new(false),
        }
    }

    /// A session that acts for `account`.
    ///
    /// # Errors
    /// What stood in the way, with host, user and account, without the password.
    pub fn open(&self, account: &str, until: Instant) -> Result<Session, ConnectError> {
        let (mut session, mut at) = self.log_in(account, until);
        for _ in 0..2 {
            let why = match session {
                Ok(session) => return Ok(session),
                Err(LoginError::Failed(no)) => return Err(no),
                Err(LoginError::Refused(no)) if !CODES_OF_REFUSAL.contains(&no.code.as_str()) => {
                    return Err(ConnectError::Failed(no.text));
                }
                // Whose fault it is shows only beside other logins.
                Err(LoginError::Refused(no)) => no.text,
            };
            match self.judge(account, at, until) {
                Verdict::Accounts(witness) => {
                    return Err(ConnectError::NoAccount(format!(
                        "{why}; but {witness} can log in"
                    )));
                }
                Verdict::Ours(proof) => {
                    let text =
                        format!("{why}; perhaps store.user or its password is wrong: {proof}");
                    return Err(ConnectError::Setup(text));
                }
                Verdict::Unknown(doubt) => {
                    let text =
                        format!("{why}; perhaps store.user or its password is wrong: {doubt}");
                    return Err(ConnectError::Failed(text));
                }
                // Perhaps it was our password that was wrong until a moment ago.
                Verdict::OnlyAfter(_) => (session, at) = self.log_in(account, until),
            }
        }
        session.map_err(|no| match no {
            LoginError::Refused(no) => {
                ConnectError::Failed(format!("{}; others can log in now", no.text))
            }
            LoginError::Failed(no) => no,
        })
    }

    /// Whether the server takes several messages in one APPEND (RFC 3502), as far as is known.
    pub fn has_multiappend(&self) -> bool {
        self.has_multiappend.load(Ordering::Relaxed)
    }

    /// A session of the user's own, for none of the accounts.
    pub fn open_own(&self, until: Instant) -> Result<Session, LoginError> {
        self.connect_and_log_in(LoginAs::Itself, until)
    }

    /// What others' logins say about a refusal of `account`.
    fn judge(&self, account: &str, refused: Span, until: Instant) -> Verdict {
        self.witnesses.judge(account, refused, until, |witness| {
            let (session, span) = self.log_in(witness, until);
            session.map(|_| span).map_err(LoginError::why)
        })
    }

    /// Logs in once.
    fn log_in(&self, account: &str, until: Instant) -> (Result<Session, LoginError>, Span) {
        let began = Instant::now();
        let session = self.connect_and_log_in(LoginAs::Account(account), until);
        let span = Span { began, ended: Instant::now() };
        if let Ok(session) = &session {
            self.witnesses.logged_in(account, span);
            let has_multiappend = session.capabilities().has("MULTIAPPEND");
            self.has_multiappend.store(has_multiappend, Ordering::Relaxed);
        }
        (session, span)
    }

    fn connect_and_log_in(&self, who: LoginAs<'_>, until: Instant) -> Result<Session, LoginError> {
        let ImapSettings { host, port, user, .. } = &self.settings;
        let wire = Wire::connect(host, *port, until)
            .map_err(|error| format!("cannot connect to {host}:{port}: {error}"))?;
        wire.begin(until, LOGIN_BYTES);
        self.greet(&wire)
            .map_err(|why| LoginError::from(format!("{host}:{port}: {why}")))
            .and_then(|capabilities| {
                self.authenticate(&wire, &capabilities, who, until).map_err(|no| {
                    no.map(|why| format!("cannot log in to {host}:{port} as {user}{who}: {why}"))
                })
            })
            .inspect_err(|_| wire.close())
    }

    /// Reads the greeting and sees to TLS. What the server can do is empty when it has not said so
    /// (over TLS).
    fn greet(&self, wire: &Wire) -> Result<Capabilities, String> {
        if self.settings.tls == Tls::Implicit {
            self.start_tls(wire)?;
        }
        let greeting = line(wire)?;
        let text = String::from_utf8_lossy(&greeting).into_owned();
        let mut words = text.splitn(3, ' ');
        match (words.next(), words.next().unwrap_or("").to_ascii_uppercase().as_str()) {
            (Some("*"), "OK") => {}
            (Some("*"), "BYE") => {
                return Err(format!("the server turns us away: {}", syntax::clean(&greeting)));
            }
            // It is not known whose mailboxes a pre-authenticated connection shows, nor whether TLS
            // protects it.
            (Some("*"), "PREAUTH") => {
                return Err("the server's PREAUTH greeting cannot be used: we must log in".into());
            }
            _ => return Err(format!("no IMAP greeting: {}", syntax::clean(&greeting))),
        }
        if self.settings.tls == Tls::StartTls {
            ask_for_tls(wire)?;
            self.start_tls(wire)?;
            return Ok(Capabilities::default());
        }
        Ok(capability_code(words.next().unwrap_or("")))
    }

    fn start_tls(&self, wire: &Wire) -> Result<(), String> {
        let config = match self.tls.get() {
            Some(config) => config,
            None => {
                let config = tls::client_config(self.settings.ca_file.as_deref())?;
                self.tls.get_or_init(|| Arc::new(config))
            }
        };
        wire.start_tls(Arc::clone(config), &self.settings.host)
            .map_err(|error| format!("TLS: {error}"))
    }

    fn authenticate(
        &self,
        wire: &Wire,
        capabilities: &Capabilities,
        who: LoginAs<'_>,
        until: Instant,
    ) -> Result<Session, LoginError> {
        let ImapSettings { user, password, login, .. } = &self.settings;
        let password = password.expose_secret();
        let no_account = |why: String| LoginError::Failed(ConnectError::NoAccount(why));
        let (identity, name) = match (login, who) {
            (LoginForm::Sasl, LoginAs::Account(account)) => (account, user.clone()),
            (LoginForm::Sasl, LoginAs::Itself) => (user.as_str(), user.clone()),
            (LoginForm::Template(template), LoginAs::Account(account)) => {
                ("", template.name(account, user).map_err(no_account)?)
            }
            (LoginForm::Template(_), LoginAs::Itself) => ("", user.clone()),
        };
        if [identity, &name, password].iter().any(|part| part.contains('\0')) {
            return Err(no_account("account, user and password cannot hold NUL".to_owned()));
        }
        let plain = format!("{identity}\0{name}\0{password}");
        let encoded = BASE64.encode(plain.as_bytes());
        let mechanism = match capabilities.has("SASL-IR") {
            true => format!("PLAIN {encoded}"),
            false => "PLAIN".to_owned(),
        };
        let mut client = imap::Client::new(wire.clone());
        client.greeting_read = true;
        match guarded(|| client.authenticate(mechanism, &Plain(plain)).map_err(|(error, _)| error))?
        {
            Ok(session) => {
                let capabilities = capabilities_at_login(wire);
                Session::new(session, wire.clone(), capabilities, until).map_err(
                    |error| match error {
                        CommandError::ConnectError(no) => LoginError::Failed(no),
                        CommandError::Refused(Refusal { text: why, .. })
                        | CommandError::Lost(why) => LoginError::from(why),
                    },
                )
            }
            Err(imap::Error::Io(error)) => Err(LoginError::from(error.to_string())),
            Err(error) => {
                let said = what_was_said(wire, &error, &[&encoded, password]);
                Err(refused(said))
            }
        }
    }
}

/// Codes of a NO to AUTHENTICATE (RFC 5530) that say something about the account or about our
/// password, and not that a part of the server is away.
const CODES_OF_REFUSAL: [&str; 5] =
    ["AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED", "EXPIRED", "NOPERM", "NONEXISTENT"];

fn refused(said: String) -> LoginError {
    let code = said.split_once(' ').and_then(|(_, text)| syntax::response_code(text));
    LoginError::Refused(Refusal {
        code: code.map(|(name, _)| name).unwrap_or_default(),
        text: said,
    })
}

/// STARTTLS by hand: the crate would keep what it has read ahead.
fn ask_for_tls(wire: &Wire) -> Result<(), String> {
    wire.put(b"s1 STARTTLS\r\n").and_then(|()| wire.send()).map_err(|error| error.to_string())?;
    loop {
        let answer = line(wire)?;
        if answer.starts_with(b"* ") {
            continue;
        }
        let is_ok = answer.get(..6).is_some_and(|start| start.eq_ignore_ascii_case(b"s1 OK "));
        return match is_ok || answer.eq_ignore_ascii_case(b"s1 OK") {
            true => Ok(()),
            false => Err(format!("no STARTTLS: {}", syntax::clean(&answer))),
        };
    }
}

fn line(wire: &Wire) -> Result<Vec<u8>, String> {
    wire.read_line().map_err(|error| error.to_string())
}

fn capability_code(text: &str) -> Capabilities {
    match syntax::response_code(text) {
        Some((name, list)) if name == "CAPABILITY" => Capabilities::parse(&list),
        _ => Capabilities::default(),
    }
}

/// Capabilities that came with the OK to AUTHENTICATE: in its code, or in an untagged line before
/// it.
fn capabilities_at_login(wire: &Wire) -> Capabilities {
    for line in wire.tapped().iter().rev() {
        let line = String::from_utf8_lossy(line);
        let (tag, rest) = line.trim_end().split_once(' ').unwrap_or_default();
        let (word, rest) = rest.split_once(' ').unwrap_or_default();
        let capabilities = match tag {
            "*" if word.eq_ignore_ascii_case("CAPABILITY") => Capabilities::parse(rest),
            "*" => Capabilities::default(),
            _ => capability_code(rest),
        };
        if !capabilities.is_empty() {
            return capabilities;
        }
    }
    Capabilities::default()
}

/// The server's last line without its tag, and without anything secret it may have echoed.
fn what_was_said(wire: &Wire, error: &imap::Error, secrets: &[&str]) -> String {
    let Some(last) = wire.tapped().pop() else { return error.to_string() };
    let mut text = String::from_utf8_lossy(&last).into_owned();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        text = text.replace(*secret, "***");
    }
    let text = syntax::clean(text.as_bytes());
    match text.split_once(' ') {
        Some((tag, rest)) if tag != "*" => rest.to_owned(),
        _ => text,
    }
}
