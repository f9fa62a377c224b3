//! From nothing to an authenticated session: connect, greeting, TLS, AUTHENTICATE PLAIN with the
//! configured user as authentication identity and the account as authorization identity, or with a
//! name made of both. Where the greeting says what the server can do, and that is SASL-IR, this is
//! one round trip; else the server is asked first. What it said before TLS is forgotten after
//! STARTTLS. No password goes out without the TLS that was asked for, nor to a server that offers
//! other ways to log in and not PLAIN. The password shows in no error, not even when a server
//! echoes it. A login that fails leaves nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::ClientConfig;
use secrecy::ExposeSecret;

use super::error::{ImapError, Meaning, Rejection};
use super::session::{Capabilities, ImapSession, guarded};
use super::syntax;
use super::wire::Wire;
use super::witness::{LoginSpan, LoginVerdict, Witnesses};
use super::{ImapSettings, Tls};
use onedrop_core::login::LoginForm;
use onedrop_core::store::{StoreError, WitnessNames};
use onedrop_net::tls;

/// What a server may send until we are logged in.
const LOGIN_BYTES: usize = 64 * 1024;
/// A look back ends when the server was silent for this time. It may be while it searches: one that
/// has no index reads every header, and a disk that reads 200 of them a second needs 250 s for
/// 50,000 (Dovecot says meanwhile how far it is).
const SILENCE: Duration = Duration::from_secs(300);

/// Opens sessions; shared with the threads that do it in the background.
pub struct Connector {
    pub settings: ImapSettings,
    /// Reading the system's root certificates takes some milliseconds: once, by the first that
    /// needs them. What could not be read is read again by the next.
    tls: OnceLock<Arc<ClientConfig>>,
    witnesses: Witnesses,
    /// The accounts to ask where no login has succeeded by now.
    names: OnceLock<WitnessNames>,
    /// By the capabilities of the last login.
    has_multiappend: AtomicBool,
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
            names: OnceLock::new(),
            has_multiappend: AtomicBool::new(false),
        }
    }

    /// A session that acts for `account`.
    ///
    /// # Errors
    /// What stood in the way, with host, user and account, without the password.
    pub fn open(&self, account: &str, until: Instant) -> Result<ImapSession, ImapError> {
        if let Some(ago) = self.witnesses.was_missed(account) {
            let ImapSettings { host, port, .. } = &self.settings;
            return Err(ImapError::not_stored(format!(
                "{host}:{port} had no account {account} {} s ago, and is not asked again yet",
                ago.as_secs()
            )));
        }
        for _ in 0..3 {
            let (session, at) = self.log_in(account, until);
            let no = match session {
                // Whose fault it is shows only beside other logins.
                Err(ImapError::Refused(no)) if CODES_OF_REFUSAL.contains(&no.code.as_str()) => no,
                session => return session.map_err(certainly_ended),
            };
            let judged = self.witnesses.judge(account, at, until, |witness| {
                let (session, span) = self.log_in(witness, until);
                session.map(|_| span).map_err(ImapError::text)
            });
            let (meaning, proof): (Meaning, _) = match judged {
                LoginVerdict::Accounts(witness) => {
                    let meaning = match CODES_OF_NOBODY.contains(&no.code.as_str()) {
                        true => StoreError::NoAccount,
                        false => StoreError::NotStored,
                    };
                    self.witnesses.miss(account);
                    (meaning, format!("but {witness} can log in"))
                }
                LoginVerdict::Ours(proof) => {
                    (StoreError::Setup, format!("{PERHAPS_OURS}: {proof}"))
                }
                LoginVerdict::Unknown(doubt) => {
                    (StoreError::NotStored, format!("{PERHAPS_OURS}: {doubt}"))
                }
                LoginVerdict::NobodyElse if self.finds_a_witness(account, until) => continue,
                LoginVerdict::NobodyElse => {
                    let doubt = "no other account has logged in by now that could tell";
                    (StoreError::NotStored, format!("{PERHAPS_OURS}: {doubt}"))
                }
                // Perhaps it was our password that was wrong until a moment ago.
                LoginVerdict::OnlyAfter => continue,
            };
            return Err(ImapError::Final(meaning, format!("{}; {proof}", no.text)));
        }
        self.log_in(account, until).0.map_err(|error| match error {
            ImapError::Refused(no) => {
                self.witnesses.miss(account);
                ImapError::not_stored(format!("{}; others can log in now", no.text))
            }
            other => other,
        })
    }

    /// See [`Access::name_witnesses`](onedrop_core::store::Access::name_witnesses).
    pub fn name_witnesses(&self, names: WitnessNames) {
        // Of several the first one.
        let _ = self.names.set(names);
    }

    /// Has another account log in, of those that are named.
    fn finds_a_witness(&self, account: &str, until: Instant) -> bool {
        let Some(names) = self.names.get() else { return false };
        self.witnesses.introduce(account, until, || {
            let mut why = "no other account is known".to_owned();
            let others = names(until).into_iter().filter(|other| other != account);
            for other in others.take(NAMES) {
                match self.log_in(&other, until).0 {
                    Ok(_) => return Ok(()),
                    Err(error) => why = error.text(),
                }
            }
            Err(why)
        })
    }

    /// Whether the server takes several messages in one APPEND (RFC 3502), as far as is known.
    pub fn has_multiappend(&self) -> bool {
        self.has_multiappend.load(Ordering::Relaxed)
    }

    /// A session for a look that has much time: a server that has stalled does not get it all.
    /// It is closed again, as those that are kept are for deliveries.
    pub fn open_apart(&self, account: &str, until: Instant) -> Result<ImapSession, ImapError> {
        let session = self.open(account, until.min(Instant::now() + SILENCE))?;
        session.wire().bound_silence(SILENCE);
        Ok(session)
    }

    /// A session of the user's own, for none of the accounts.
    pub fn open_own(&self, until: Instant) -> Result<ImapSession, ImapError> {
        self.connect_and_log_in(None, until)
    }

    /// Logs in once.
    fn log_in(&self, account: &str, until: Instant) -> (Result<ImapSession, ImapError>, LoginSpan) {
        let began = Instant::now();
        let session = self.connect_and_log_in(Some(account), until);
        let span = LoginSpan { began, ended: Instant::now() };
        if let Ok(session) = &session {
            self.witnesses.logged_in(account, span);
            let has_multiappend = session.capabilities().has("MULTIAPPEND");
            self.has_multiappend.store(has_multiappend, Ordering::Relaxed);
        }
        (session, span)
    }

    /// Logs in for `account`, or for the user itself.
    fn connect_and_log_in(
        &self,
        account: Option<&str>,
        until: Instant,
    ) -> Result<ImapSession, ImapError> {
        let ImapSettings { host, port, user, .. } = &self.settings;
        let wire = Wire::connect(host, *port, until).map_err(|why| {
            ImapError::not_stored(format!("cannot connect to {host}:{port}: {why}"))
        })?;
        wire.begin(until, LOGIN_BYTES);
        let greeted = self.greet(&wire).and_then(|told| match told.is_empty() {
            true => ask_what_it_can(&wire),
            false => Ok(told),
        });
        greeted
            .map_err(|why| ImapError::not_stored(format!("{host}:{port}: {why}")))
            .and_then(|capabilities| {
                let session = self.authenticate(&wire, &capabilities, account, until);
                session.map_err(|error| {
                    let account = account.unwrap_or("itself");
                    let doing = format!("cannot log in to {host}:{port} as {user} for {account}");
                    error.map(|why| format!("{doing}: {why}"))
                })
            })
            .inspect_err(|_| wire.close())
    }

    /// Reads the greeting and sees to TLS. What the server can do is empty when it has not said so,
    /// at least not over TLS.
    fn greet(&self, wire: &Wire) -> Result<Capabilities, String> {
        if self.settings.tls == Tls::Implicit {
            self.start_tls(wire)?;
        }
        let greeting = wire.read_line()?;
        let said = syntax::clean(&greeting);
        let text = String::from_utf8_lossy(&greeting);
        let mut words = text.splitn(3, ' ');
        match (words.next(), words.next().unwrap_or("").to_ascii_uppercase().as_str()) {
            (Some("*"), "OK") => {}
            (Some("*"), "BYE") => return Err(format!("the server turns us away: {said}")),
            // It is not known whose mailboxes a pre-authenticated connection shows, nor whether TLS
            // protects it.
            (Some("*"), "PREAUTH") => {
                return Err("the server's PREAUTH greeting cannot be used: we must log in".into());
            }
            _ => return Err(format!("no IMAP greeting: {said}")),
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
        wire.start_tls(Arc::clone(config), &self.settings.host).map_err(|why| format!("TLS: {why}"))
    }

    fn authenticate(
        &self,
        wire: &Wire,
        capabilities: &Capabilities,
        account: Option<&str>,
        until: Instant,
    ) -> Result<ImapSession, ImapError> {
        let ImapSettings { user, password, login, .. } = &self.settings;
        if let Some(why) = offers_no_plain(capabilities, self.settings.tls) {
            return Err(ImapError::Final(StoreError::Setup, why));
        }
        let password = password.expose_secret();
        let cannot_be_named = |why: String| ImapError::not_stored(why);
        let (identity, name) = match (login, account) {
            (LoginForm::Sasl, account) => (account.unwrap_or(user), user.clone()),
            (LoginForm::Template(template), Some(account)) => {
                ("", template.name(account, user).map_err(cannot_be_named)?)
            }
            (LoginForm::Template(_), None) => ("", user.clone()),
        };
        if [identity, &name, password].iter().any(|part| part.contains('\0')) {
            return Err(cannot_be_named("account, user and password cannot hold NUL".to_owned()));
        }
        let plain = format!("{identity}\0{name}\0{password}");
        let encoded = BASE64.encode(plain.as_bytes());
        let mechanism = match capabilities.has("SASL-IR") {
            true => format!("PLAIN {encoded}"),
            false => "PLAIN".to_owned(),
        };
        let mut client = imap::Client::new(wire.clone());
        client.greeting_read = true;
        let call = || client.authenticate(mechanism, &Plain(plain)).map_err(|(error, _)| error);
        match guarded(call).map_err(ImapError::not_stored)? {
            Ok(session) => {
                let capabilities = capabilities_at_login(wire);
                let lock_timeout = self.settings.lock_timeout;
                let session =
                    ImapSession::new(session, wire.clone(), capabilities, lock_timeout, until);
                session.map_err(certainly_ended)
            }
            Err(imap::Error::Io(error)) => Err(ImapError::not_stored(error.to_string())),
            Err(error) => {
                let no = refused(wire, &error, &[&encoded, password]);
                // That says nothing of the account, nor of the password.
                let closed = matches!(error, imap::Error::ConnectionLost);
                Err(match no {
                    ImapError::Refused(no) if closed && no.text.starts_with("* BYE") => {
                        ImapError::not_stored(no.text)
                    }
                    _ if closed => ImapError::not_stored("the server closed the connection"),
                    no => no,
                })
            }
        }
    }
}

/// Codes of a NO to AUTHENTICATE (RFC 5530) that say something about the account or about our
/// password, and not that a part of the server is away.
const CODES_OF_REFUSAL: [&str; 5] =
    ["AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED", "EXPIRED", "NOPERM", "NONEXISTENT"];

/// Those of them that a server has for an account that is not there. The others are for one that
/// is closed, or has expired.
const CODES_OF_NOBODY: [&str; 3] = ["AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED", "NONEXISTENT"];

/// How many accounts are tried where no other login has succeeded by now.
const NAMES: usize = 3;

const PERHAPS_OURS: &str = "perhaps store.user or its password is wrong";

/// There is no session, and another one would not be had.
fn certainly_ended(error: ImapError) -> ImapError {
    match error {
        ImapError::Final(..) => error,
        // It is busy, and not broken.
        ImapError::Refused(no) if no.has_no_place() => {
            ImapError::Final(StoreError::Contended, no.text)
        }
        other => ImapError::not_stored(other.text()),
    }
}

/// STARTTLS by hand: the crate would keep what it has read ahead.
fn ask_for_tls(wire: &Wire) -> Result<(), String> {
    let (answer, _) = ask(wire, "s1", "STARTTLS")?;
    match is_ok(&answer) {
        true => Ok(()),
        false => Err(format!("no STARTTLS: {}", syntax::clean(&answer))),
    }
}

/// What the server can do; empty when it does not say so.
fn ask_what_it_can(wire: &Wire) -> Result<Capabilities, String> {
    let (answer, before) = ask(wire, "s2", "CAPABILITY")?;
    let lists = before.iter().filter_map(|line| capability_line(line));
    Ok(match is_ok(&answer) {
        true => Capabilities::parse(&lists.collect::<Vec<_>>().join(" ")),
        false => Capabilities::default(),
    })
}

/// Has the server carry out a command before the crate talks to it; returns the rest of the tagged
/// line, and the lines before it.
fn ask(wire: &Wire, tag: &str, command: &str) -> Result<(Vec<u8>, Vec<String>), String> {
    wire.put(format!("{tag} {command}\r\n").as_bytes())?;
    wire.send()?;
    let mut before = Vec::new();
    loop {
        let line = wire.read_line()?;
        if line.starts_with(b"* ") {
            before.push(String::from_utf8_lossy(&line).into_owned());
            continue;
        }
        let rest = line.strip_prefix(tag.as_bytes()).and_then(|rest| rest.strip_prefix(b" "));
        let rest = rest.map(<[u8]>::to_vec);
        return Ok((rest.ok_or_else(|| super::session::out_of_step(&line))?, before));
    }
}

fn is_ok(answer: &[u8]) -> bool {
    answer.trim_ascii_end().eq_ignore_ascii_case(b"OK")
        || answer.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"OK "))
}

/// Mechanisms (RFC 7628, and Google's own) that want a token and no password.
const TOKENS: [&str; 2] = ["XOAUTH2", "OAUTHBEARER"];

/// Why the password is not sent: the server says how it lets in, and PLAIN is not among that. One
/// that names no way at all may take PLAIN nevertheless.
fn offers_no_plain(capabilities: &Capabilities, tls: Tls) -> Option<String> {
    let mechanisms: Vec<&str> = capabilities.mechanisms().collect();
    if mechanisms.contains(&"PLAIN") {
        return None;
    }
    if mechanisms.is_empty() {
        let advice = if tls == Tls::None { " without TLS (see store.starttls)" } else { "" };
        let is_closed = capabilities.has("LOGINDISABLED");
        return is_closed.then(|| format!("the server takes no password (LOGINDISABLED){advice}"));
    }
    let only = syntax::clean(mechanisms.join(", ").as_bytes());
    Some(match mechanisms.iter().all(|one| TOKENS.contains(one)) {
        true => format!("the server offers only {only}: logging in by a token is not supported"),
        false => format!("the server offers only {only}, and Onedrop logs in by PLAIN"),
    })
}

fn capability_code(text: &str) -> Capabilities {
    match syntax::response_code(text) {
        Some((name, list)) if name == "CAPABILITY" => Capabilities::parse(&list),
        _ => Capabilities::default(),
    }
}

/// The list in an untagged CAPABILITY.
fn capability_line(line: &str) -> Option<&str> {
    let (word, list) = line.strip_prefix("* ")?.trim_end().split_once(' ')?;
    word.eq_ignore_ascii_case("CAPABILITY").then_some(list)
}

/// Capabilities that came with the OK to AUTHENTICATE: in its code, or in an untagged line before
/// it.
fn capabilities_at_login(wire: &Wire) -> Capabilities {
    let lines = wire.tapped().into_iter().rev();
    let mut told = lines.map(|line| {
        let (tag, rest) = line.trim_end().split_once(' ').unwrap_or_default();
        match tag {
            "*" => Capabilities::parse(capability_line(&line).unwrap_or_default()),
            _ => capability_code(rest.split_once(' ').unwrap_or_default().1),
        }
    });
    told.find(|capabilities| !capabilities.is_empty()).unwrap_or_default()
}

/// The server's last line without its tag, and without anything secret it may have echoed; what the
/// crate says where there is none.
fn refused(wire: &Wire, error: &imap::Error, secrets: &[&str]) -> ImapError {
    let said = wire.tapped().pop().map(|mut line| {
        for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
            line = line.replace(*secret, "***");
        }
        let line = syntax::clean(line.as_bytes());
        match line.split_once(' ') {
            Some((tag, rest)) if tag != "*" => rest.to_owned(),
            _ => line,
        }
    });
    let text = said.unwrap_or_else(|| error.to_string());
    let code = text.split_once(' ').and_then(|(_, text)| syntax::response_code(text));
    ImapError::Refused(Rejection { code: code.map(|(name, _)| name).unwrap_or_default(), text })
}
