//! Every key with its default and what it takes. One value is judged here, whether it comes from a
//! file or from a variable; what two keys must agree on is in `rules.rs`.
//!
//! A refused value is quoted only where a number, a flag or one of a few words was expected:
//! anything else may be a password in the wrong place.

use std::ops::RangeInclusive;
use std::str::FromStr;

use ::config::ValueKind;

use self::Kind::{Accounts, Choice, Count, Flag, List, OptionalText, Text};
use super::listen::{self, Listen, SocketMode};
use super::problem::{ensure, no_control_characters, shown_name};
use super::suggest::closest;
use super::url::{self, LedgerUrl, StoreUrl};
use onedrop_core::directory::{AccountTemplate, SENT_ROLE, mailbox_name};
use onedrop_core::duration;
use onedrop_core::login::LoginForm;
use onedrop_locks::schedule;

/// A key, what holds where it is not set, and what it takes.
#[derive(Debug)]
pub(super) struct Key {
    /// `section.name`; of jobs `jobs.NAME.name`, the same for all
    pub full: &'static str,
    /// The value as an environment variable would have it.
    pub default: &'static str,
    pub kind: Kind,
}

/// What a key takes.
#[derive(Debug)]
pub(super) enum Kind {
    /// A string that the function accepts.
    Text(fn(&str) -> Result<(), String>),
    /// Like `Text`, but empty means that it is not set: a path, a query.
    OptionalText(fn(&str) -> Result<(), String>),
    /// true or false
    Flag,
    /// A whole number.
    Count(RangeInclusive<u64>),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of strings, each as the function keeps it.
    List(fn(&str) -> Result<String, String>),
    /// A table: address = account, or a table of account and mailbox.
    Accounts,
}

const DAY: u64 = 86_400;
/// A hundred years.
const MOST_DAYS: u64 = 36_500;
/// An IMAP server may log out a silent client after this long (RFC 9051, section 5.4).
const IMAP_AUTOLOGOUT_SECS: u64 = 1800;

/// All keys, in the order in which `conf/onedrop.toml` shows them.
pub(super) const KEYS: &[Key] = &[
    key("ledger.url", "sqlite:///var/lib/onedrop/ledger.db", Text(parses::<LedgerUrl>)),
    key("ledger.password_file", "", OptionalText(anything)),
    key("ledger.ca_file", "", OptionalText(anything)),
    key("ledger.prepare", "auto", Choice(&["auto", "always", "never"])),
    key("ledger.notify", "false", Flag),
    key("ledger.keep_raw", "false", Flag),
    key("retention.days", "35", Count(1..=MOST_DAYS)),
    key("retention.facts_days", "35", Count(1..=MOST_DAYS)),
    key("retention.raw_days", "7", Count(1..=MOST_DAYS)),
    key("store.url", "maildir:///var/lib/onedrop/mail", Text(parses::<StoreUrl>)),
    key("store.lmtp", "", OptionalText(lmtp)),
    key("store.starttls", "true", Flag),
    key("store.user", "mda", Text(no_control_characters)),
    key("store.login", "sasl", Text(login)),
    key("store.password_file", "", OptionalText(anything)),
    key("store.ca_file", "", OptionalText(anything)),
    key("store.create_mailboxes", "true", Flag),
    key("store.trust_search", "auto", Choice(&["auto", "always", "never"])),
    key("store.lock_timeout_secs", "5", Count(2..=120)),
    key("store.over_quota", "defer", Choice(&["defer", "bounce"])),
    key("directory.domains", "", List(domain)),
    key("directory.account", "{local}", Text(parses::<AccountTemplate>)),
    key("directory.recipient_delimiter", "+", Text(delimiter)),
    key("directory.detail", "ignore", Choice(&["ignore", "mailbox"])),
    key("directory.accounts", "", Accounts),
    key("directory.query", "", OptionalText(query)),
    key("directory.url", "", OptionalText(parses::<LedgerUrl>)),
    key("directory.userdb", "", OptionalText(userdb)),
    key("directory.unknown_account", "defer", Choice(&["defer", "reject"])),
    key("directory.password_file", "", OptionalText(anything)),
    key("directory.ca_file", "", OptionalText(anything)),
    key("sent.trust", "never", Choice(&["never", "authenticated", "header"])),
    key("sent.authserv_id", "", Text(no_control_characters)),
    key("sent.after", "0s", Text(after)),
    key("sent.mailbox", "Sent", Text(mailbox)),
    key("dedup.by", "content", Choice(&["content", "message-id"])),
    key("dedup.received_by", "", List(host)),
    key(
        "dedup.filter_fields",
        "auto-submitted, list-id, precedence, x-spam, x-spam-flag, x-spam-status",
        List(field_name),
    ),
    key("lock.wait_secs", "5", Count(0..=DAY)),
    key("lock.lease_secs", "90", Count(1..=DAY)),
    key("limits.deadline_secs", "60", Count(1..=DAY)),
    key("limits.answer_secs", "20", Count(1..=DAY)),
    key("limits.message_bytes", "0", Count(0..=i64::MAX as u64)),
    key("deliver.via", "", OptionalText(socket)),
    key("deliver.trial", "false", Flag),
    key("lmtp.listen", "", List(listen)),
    key("lmtp.users", "", OptionalText(socket)),
    key("lmtp.socket_mode", "0660", Text(parses::<SocketMode>)),
    key("lmtp.socket_group", "", Text(group)),
    key("lmtp.connections", "100", Count(1..=10_000)),
    key("lmtp.when_full", "refuse", Choice(&["refuse", "wait"])),
    key("lmtp.recipients", "1000", Count(1..=100_000)),
    key("lmtp.side_by_side", "10", Count(1..=1000)),
    key("lmtp.idle_secs", "300", Count(1..=DAY)),
    key("lmtp.spool_bytes", "1048576", Count(0..=1 << 30)),
    key("lmtp.spool_dir", "/var/tmp", Text(absolute)),
    key("lmtp.metrics", "", OptionalText(address)),
    key("web.listen", "", OptionalText(parses::<Listen>)),
    key("web.hosts", "", List(host)),
    key("web.show_subjects", "false", Flag),
    key("web.password_file", "", OptionalText(anything)),
    key("web.ledger_url", "", OptionalText(parses::<LedgerUrl>)),
    key("web.ledger_password_file", "", OptionalText(anything)),
    key("pool.ledger", "10", Count(1..=1000)),
    key("pool.store", "256", Count(0..=10_000)),
    key("pool.per_account", "4", Count(1..=1000)),
    key("pool.idle_secs", "60", Count(1..=IMAP_AUTOLOGOUT_SECS)),
    key("jobs.run_in", "timer", Choice(&["timer", "server"])),
    key("jobs.timezone", "UTC", Text(time_zone)),
    key("jobs.concurrency", "10", Count(1..=1000)),
    key("jobs.keep_runs_days", "90", Count(1..=3650)),
    key("jobs.state_dir", "/var/lib/onedrop/jobs", Text(absolute)),
    key("jobs.settle_secs", "90", Count(0..=DAY)),
];

pub(super) const fn key(full: &'static str, default: &'static str, kind: Kind) -> Key {
    Key { full, default, kind }
}

/// The full name of every key (`store.url`), in the order of `conf/onedrop.toml`.
pub fn known_keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.full)
}

/// The sections, in order.
pub(super) fn sections() -> impl Iterator<Item = &'static str> {
    KEYS.chunk_by(|left, right| left.section() == right.section()).map(|keys| keys[0].section())
}

/// The key of a section, by its exact name.
pub(super) fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section() == section && key.name() == name)
}

impl Key {
    pub(super) fn section(&self) -> &'static str {
        self.full.split_once('.').map_or(self.full, |(section, _)| section)
    }

    pub(super) fn name(&self) -> &'static str {
        self.full.rsplit_once('.').map_or(self.full, |(_, name)| name)
    }

    /// What the key takes, for "expected ...".
    pub(super) fn expects(&self) -> &'static str {
        match self.kind {
            Text(_) | OptionalText(_) | Choice(_) => "a string",
            Flag => "true or false",
            Count(_) => "an integer",
            List(_) => "a list of strings",
            Accounts => "a table (address = account)",
        }
    }

    /// Whether a refused value of this key may be quoted.
    pub(super) fn may_be_quoted(&self) -> bool {
        matches!(self.kind, Flag | Count(_))
    }

    /// What holds where the key is not set.
    pub(super) fn default_value(&self) -> Result<ValueKind, String> {
        match self.kind {
            Accounts => Ok(ValueKind::Table(::config::Map::new())),
            _ => self.untyped_value(self.default),
        }
    }

    /// The value of a text without a type, as a variable holds it: it is read by the key's kind.
    ///
    /// # Errors
    /// Why the key does not take it.
    pub(super) fn untyped_value(&self, text: &str) -> Result<ValueKind, String> {
        let unexpected =
            || Err(format!("expected {}, found \"{}\"", self.expects(), shown_name(text)));
        match self.kind {
            Flag if text.eq_ignore_ascii_case("true") => Ok(true.into()),
            Flag if text.eq_ignore_ascii_case("false") => Ok(false.into()),
            Flag => unexpected(),
            Count(_) if !is_number(text.strip_prefix('-').unwrap_or(text)) => unexpected(),
            Count(_) => self.number_value(text, 10),
            List(keeps) => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Ok(items.map(keeps).collect::<Result<Vec<_>, _>>()?.into())
            }
            Accounts => Err("cannot be set from the environment (use a file in conf.d)".to_owned()),
            Text(_) | OptionalText(_) | Choice(_) => self.text_value(text),
        }
    }

    /// The value that a string gives.
    ///
    /// # Errors
    /// Why the key does not take it.
    pub(super) fn text_value(&self, text: &str) -> Result<ValueKind, String> {
        match self.kind {
            OptionalText(_) if text.is_empty() => Ok(ValueKind::Nil),
            Text(accepts) | OptionalText(accepts) => accepts(text).map(|()| text.into()),
            Choice(words) if words.contains(&text) => Ok(text.into()),
            Choice(words) => {
                let near = closest(text, words.iter().copied());
                let hint = near.map(|word| format!("; did you mean \"{word}\"?"));
                Err(format!(
                    "unknown value \"{}\" (one of: {}{})",
                    shown_name(text),
                    words.join(", "),
                    hint.unwrap_or_default()
                ))
            }
            Flag | Count(_) => {
                let has_quotes_too_many = match self.kind {
                    Flag => matches!(text, "true" | "false"),
                    _ => is_number(text),
                };
                let hint = if has_quotes_too_many { " (leave out the quotes)" } else { "" };
                let shown = shown_name(text);
                Err(format!("expected {}, found string \"{shown}\"{hint}", self.expects()))
            }
            List(_) | Accounts => Err(format!("expected {}, found string", self.expects())),
        }
    }

    /// The value that a whole number gives.
    ///
    /// # Errors
    /// Why the key does not take it.
    pub(super) fn number_value(&self, digits: &str, radix: u32) -> Result<ValueKind, String> {
        let Count(range) = &self.kind else {
            return Err(format!("expected {}, found integer", self.expects()));
        };
        if digits.starts_with('-') {
            return Err(format!("{} must not be negative", shown_name(digits)));
        }
        let prefix = match radix {
            2 => "0b",
            8 => "0o",
            16 => "0x",
            _ => "",
        };
        // The only possible error is too many digits.
        let number = u64::from_str_radix(digits, radix).unwrap_or(u64::MAX);
        if number > *range.end() {
            let (shown, most) = (shown_name(digits), range.end());
            return Err(format!("{prefix}{shown} is too large (at most {most})"));
        }
        if number < *range.start() {
            return Err(format!("{number} is too small (at least {})", range.start()));
        }
        Ok(number.into())
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A domain as it is kept.
fn domain(text: &str) -> Result<String, String> {
    let shown = shown_name(text);
    ensure(!text.is_empty(), "holds an empty domain")?;
    if let Some((_, domain)) = text.rsplit_once('@') {
        let domain = shown_name(domain);
        return Err(format!("\"{shown}\" is an address (did you mean \"{domain}\"?)"));
    }
    let is_unfit = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '/' | ',');
    let has_outer_dot = text.starts_with('.') || text.ends_with('.');
    if text.chars().any(is_unfit) || has_outer_dot || text.len() > 253 {
        return Err(format!("\"{shown}\" is not a domain"));
    }
    Ok(text.to_lowercase())
}

fn listen(text: &str) -> Result<String, String> {
    let place = text.parse::<Listen>();
    place.map(|place| place.to_string()).map_err(|why| format!("\"{}\": {why}", shown_name(text)))
}

/// A name by which browsers ask for the pages, as it is compared.
fn field_name(text: &str) -> Result<String, String> {
    let is_of_a_name = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b':' | b',');
    let fits = !text.is_empty() && text.bytes().all(is_of_a_name);
    ensure(fits, "expected names of header fields, without a colon")?;
    Ok(text.to_ascii_lowercase())
}

fn host(text: &str) -> Result<String, String> {
    ensure(!text.contains(':'), "expected names of hosts, without a port")?;
    domain(text)
}

fn address(text: &str) -> Result<(), String> {
    listen::address(text).map(drop)
}

fn socket(text: &str) -> Result<(), String> {
    ensure(!text.starts_with("unix:"), "leave out \"unix:\"")?;
    listen::socket_path(text).map(drop)
}

fn userdb(text: &str) -> Result<(), String> {
    let why = "expected \"unix:\" and the path of Dovecot's socket, as in \
               unix:/run/dovecot/auth-userdb";
    listen::socket_path(text.strip_prefix("unix:").ok_or(why)?).map(drop).map_err(|_| why.into())
}

fn group(text: &str) -> Result<(), String> {
    let is_unfit = |c: char| c == ':' || c.is_whitespace() || c.is_control();
    ensure(!text.contains(is_unfit), "expected the name of a group, without \":\" or blanks")
}

pub(super) fn absolute(text: &str) -> Result<(), String> {
    ensure(text.starts_with('/'), "expected an absolute path")?;
    no_control_characters(text)
}

fn login(text: &str) -> Result<(), String> {
    LoginForm::try_from(text.to_owned()).map(drop)
}

fn anything(_: &str) -> Result<(), String> {
    Ok(())
}

fn after(text: &str) -> Result<(), String> {
    let time = duration::parse(text)?;
    ensure(time.as_secs() <= 7 * DAY, "is longer than 7 days")
}

fn mailbox(text: &str) -> Result<(), String> {
    ensure(!text.is_empty(), "needs the name of a mailbox")?;
    let is_role = text.starts_with('\\');
    let why = "names no role: only \"\\\\Sent\" is one";
    ensure(!is_role || text.eq_ignore_ascii_case(SENT_ROLE), why)?;
    no_control_characters(text)
}

/// The mailbox of a recipient, as it is kept.
pub(super) fn own_mailbox(text: &str) -> Result<String, String> {
    mailbox_name(text).ok_or_else(|| format!("\"{}\" {NO_MAILBOX}", shown_name(text)))
}

const NO_MAILBOX: &str = "cannot name a mailbox (1 to 200 bytes, \"/\" between levels, no \"..\", \
    no \"*\", \"%\", \"\\\" or control characters)";

fn delimiter(text: &str) -> Result<(), String> {
    let is_unfit = |c: char| c == '@' || c.is_whitespace() || c.is_control();
    ensure(!text.contains(is_unfit), "must not hold \"@\", blanks or control characters")
}

fn query(text: &str) -> Result<(), String> {
    let uses_address = text.contains("$1") || text.contains("$2");
    let why = "does not use $1, the address: it would find the same account for everybody";
    ensure(uses_address, why)
}

pub(super) fn time_zone(text: &str) -> Result<(), String> {
    schedule::zone(text).map(drop).map_err(|why| {
        let names = schedule::zone_names();
        match closest(text, names.iter().map(String::as_str)) {
            Some(name) => format!("{why} (did you mean \"{name}\"?)"),
            None => format!("{why} (a name such as \"Europe/London\"; Debian: tzdata has them)"),
        }
    })
}

fn lmtp(text: &str) -> Result<(), String> {
    url::lmtp_place(text).map(drop)
}

fn parses<T: FromStr<Err = String>>(text: &str) -> Result<(), String> {
    text.parse::<T>().map(drop)
}
