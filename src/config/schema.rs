//! Every key with its type and what may stand there. One value is judged here, whether it comes
//! from a file or from a variable; what two keys must agree on is in `rules.rs`.
//!
//! A refused value is quoted only where a number, a flag or one of a few words was expected:
//! anything else may be a password in the wrong place.

use ::config::ValueKind;

use super::listen::{self, Listen, SocketMode};
use super::problem::shown_name;
use super::suggest::closest;
use super::url::{LedgerUrl, StoreUrl};
use crate::directory::AccountTemplate;
use crate::login::LoginForm;

/// A key and its type.
#[derive(Debug)]
pub(super) struct Key {
    /// `section.name`
    pub full: &'static str,
    pub kind: Kind,
}

/// What a key takes.
#[derive(Debug)]
pub(super) enum Kind {
    /// A string that the function accepts.
    Text(fn(&str) -> Result<(), String>),
    /// As `Text`, but empty means that it is not set: a path, a query.
    OptionalText(fn(&str) -> Result<(), String>),
    /// true or false
    Flag,
    /// A whole number, both ends included.
    Count { least: u64, most: u64 },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of strings, each as the function keeps it.
    List(fn(&str) -> Result<String, String>),
    /// A table: address = account.
    Accounts,
}

const DAY: u64 = 86_400;
/// An IMAP server may log out a silent client after this long (RFC 9051, section 5.4).
const IMAP_AUTOLOGOUT_SECS: u64 = 1800;
const SECONDS: Kind = Kind::Count { least: 1, most: DAY };

/// All keys, in the order in which `conf/onedrop.toml` shows them.
pub(super) const KEYS: &[Key] = &[
    Key { full: "ledger.url", kind: Kind::Text(ledger_url) },
    Key { full: "ledger.password_file", kind: Kind::OptionalText(anything) },
    Key { full: "ledger.ca_file", kind: Kind::OptionalText(anything) },
    Key { full: "ledger.prepare", kind: Kind::Flag },
    Key { full: "ledger.keep_raw", kind: Kind::Flag },
    Key { full: "store.url", kind: Kind::Text(store_url) },
    Key { full: "store.starttls", kind: Kind::Flag },
    Key { full: "store.user", kind: Kind::Text(no_control_characters) },
    Key { full: "store.login", kind: Kind::Text(login) },
    Key { full: "store.password_file", kind: Kind::OptionalText(anything) },
    Key { full: "store.ca_file", kind: Kind::OptionalText(anything) },
    Key { full: "store.create_mailboxes", kind: Kind::Flag },
    Key { full: "store.over_quota", kind: Kind::Choice(&["defer", "bounce"]) },
    Key { full: "directory.domains", kind: Kind::List(domain) },
    Key { full: "directory.account", kind: Kind::Text(account) },
    Key { full: "directory.recipient_delimiter", kind: Kind::Text(delimiter) },
    Key { full: "directory.accounts", kind: Kind::Accounts },
    Key { full: "directory.query", kind: Kind::OptionalText(query) },
    Key { full: "sent.trust", kind: Kind::Choice(&["never", "authenticated", "header"]) },
    Key { full: "sent.authserv_id", kind: Kind::Text(no_control_characters) },
    Key { full: "sent.mailbox", kind: Kind::Text(mailbox) },
    Key { full: "dedup.by", kind: Kind::Choice(&["content", "message-id"]) },
    Key { full: "lock.wait_secs", kind: Kind::Count { least: 0, most: DAY } },
    Key { full: "lock.lease_secs", kind: SECONDS },
    Key { full: "limits.deadline_secs", kind: SECONDS },
    Key { full: "limits.answer_secs", kind: SECONDS },
    Key { full: "limits.message_bytes", kind: Kind::Count { least: 0, most: i64::MAX as u64 } },
    Key { full: "deliver.via", kind: Kind::OptionalText(socket) },
    Key { full: "lmtp.listen", kind: Kind::List(listen) },
    Key { full: "lmtp.socket_mode", kind: Kind::Text(socket_mode) },
    Key { full: "lmtp.socket_group", kind: Kind::Text(group) },
    Key { full: "lmtp.connections", kind: Kind::Count { least: 1, most: 10_000 } },
    Key { full: "lmtp.when_full", kind: Kind::Choice(&["refuse", "wait"]) },
    Key { full: "lmtp.recipients", kind: Kind::Count { least: 1, most: 100_000 } },
    Key { full: "lmtp.side_by_side", kind: Kind::Count { least: 1, most: 1000 } },
    Key { full: "lmtp.idle_secs", kind: SECONDS },
    Key { full: "lmtp.spool_bytes", kind: Kind::Count { least: 0, most: 1 << 30 } },
    Key { full: "lmtp.spool_dir", kind: Kind::Text(absolute) },
    Key { full: "lmtp.metrics", kind: Kind::OptionalText(address) },
    Key { full: "pool.ledger", kind: Kind::Count { least: 1, most: 1000 } },
    Key { full: "pool.store", kind: Kind::Count { least: 0, most: 10_000 } },
    Key { full: "pool.per_account", kind: Kind::Count { least: 1, most: 1000 } },
    Key { full: "pool.idle_secs", kind: Kind::Count { least: 1, most: IMAP_AUTOLOGOUT_SECS } },
];

/// The full name of every key (`store.url`), in the order of `conf/onedrop.toml`.
pub fn known_keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.full)
}

/// The sections, in order.
pub(super) fn sections() -> impl Iterator<Item = &'static str> {
    KEYS.chunk_by(|left, right| left.section() == right.section())
        .filter_map(<[Key]>::first)
        .map(Key::section)
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
        self.full.split_once('.').map_or(self.full, |(_, name)| name)
    }

    /// What the key takes, for "expected ...".
    pub(super) fn expects(&self) -> &'static str {
        match self.kind {
            Kind::Text(_) | Kind::OptionalText(_) | Kind::Choice(_) => "a string",
            Kind::Flag => "true or false",
            Kind::Count { .. } => "an integer",
            Kind::List(_) => "a list of strings",
            Kind::Accounts => "a table (address = account)",
        }
    }

    /// Whether a refused value of this key may be quoted.
    pub(super) fn may_be_quoted(&self) -> bool {
        matches!(self.kind, Kind::Flag | Kind::Count { .. })
    }

    /// The value that a string gives.
    ///
    /// # Errors
    /// Why the string cannot stand there.
    pub(super) fn text_value(&self, text: &str) -> Result<ValueKind, String> {
        match self.kind {
            Kind::OptionalText(_) if text.is_empty() => Ok(ValueKind::Nil),
            Kind::Text(accepts) | Kind::OptionalText(accepts) => {
                accepts(text).map(|()| text.into())
            }
            Kind::Choice(words) if words.contains(&text) => Ok(text.into()),
            Kind::Choice(words) => {
                let near = closest(text, words.iter().copied());
                let hint =
                    near.map(|word| format!("; did you mean \"{word}\"?")).unwrap_or_default();
                Err(format!(
                    "unknown value \"{}\" (one of: {}{hint})",
                    shown_name(text),
                    words.join(", ")
                ))
            }
            Kind::Flag | Kind::Count { .. } | Kind::List(_) | Kind::Accounts => {
                Err(format!("expected {}, found string{}", self.expects(), self.in_quotes(text)))
            }
        }
    }

    /// A string where none is wanted, and whether it only has quotes too many.
    fn in_quotes(&self, text: &str) -> String {
        let bare = match self.kind {
            Kind::Flag => matches!(text, "true" | "false"),
            Kind::Count { .. } => {
                !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
            }
            _ => return String::new(),
        };
        format!(" \"{}\"{}", shown_name(text), if bare { " (leave out the quotes)" } else { "" })
    }

    /// The value that a whole number gives.
    ///
    /// # Errors
    /// Why the number cannot stand there.
    pub(super) fn number_value(&self, digits: &str, radix: u32) -> Result<ValueKind, String> {
        let Kind::Count { least, most } = self.kind else {
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
        if number > most {
            return Err(format!("{prefix}{} is too large (at most {most})", shown_name(digits)));
        }
        if number < least {
            return Err(format!("{number} is too small (at least {least})"));
        }
        Ok(number.into())
    }
}

/// A domain as it is kept.
///
/// # Errors
/// Why it is none.
pub(super) fn domain(text: &str) -> Result<String, String> {
    let shown = shown_name(text);
    if text.is_empty() {
        return Err("holds an empty domain".to_owned());
    }
    if let Some((_, behind)) = text.rsplit_once('@') {
        return Err(format!(
            "\"{shown}\" is an address (did you mean \"{}\"?)",
            shown_name(behind)
        ));
    }
    let out_of_place =
        |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '/' | ',');
    if text.chars().any(out_of_place)
        || text.starts_with('.')
        || text.ends_with('.')
        || text.len() > 253
    {
        return Err(format!("\"{shown}\" is not a domain"));
    }
    Ok(text.to_lowercase())
}

fn listen(text: &str) -> Result<String, String> {
    text.parse::<Listen>()
        .map(|place| place.to_string())
        .map_err(|why| format!("\"{}\": {why}", shown_name(text)))
}

fn address(text: &str) -> Result<(), String> {
    listen::address(text).map(drop)
}

fn socket(text: &str) -> Result<(), String> {
    if text.starts_with("unix:") {
        return Err("leave out \"unix:\"".to_owned());
    }
    listen::socket_path(text).map(drop)
}

fn socket_mode(text: &str) -> Result<(), String> {
    text.parse::<SocketMode>().map(drop).map_err(|why| why.to_string())
}

fn group(text: &str) -> Result<(), String> {
    if text.chars().any(|c| c == ':' || c.is_whitespace() || c.is_control()) {
        return Err("expected the name of a group, without \":\" or blanks".to_owned());
    }
    Ok(())
}

fn absolute(text: &str) -> Result<(), String> {
    if !text.starts_with('/') {
        return Err("expected an absolute path".to_owned());
    }
    no_control_characters(text)
}

fn ledger_url(text: &str) -> Result<(), String> {
    text.parse::<LedgerUrl>().map(drop).map_err(|error| error.to_string())
}

fn store_url(text: &str) -> Result<(), String> {
    text.parse::<StoreUrl>().map(drop).map_err(|error| error.to_string())
}

fn login(text: &str) -> Result<(), String> {
    LoginForm::parse(text).map(drop)
}

fn anything(_: &str) -> Result<(), String> {
    Ok(())
}

fn no_control_characters(text: &str) -> Result<(), String> {
    if text.chars().any(char::is_control) {
        return Err("must not hold control characters".to_owned());
    }
    Ok(())
}

fn mailbox(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("needs the name of a mailbox".to_owned());
    }
    no_control_characters(text)
}

fn delimiter(text: &str) -> Result<(), String> {
    if text.chars().any(|c| c == '@' || c.is_whitespace() || c.is_control()) {
        return Err("must not hold \"@\", blanks or control characters".to_owned());
    }
    Ok(())
}

fn account(text: &str) -> Result<(), String> {
    text.parse::<AccountTemplate>().map(drop).map_err(|error| error.to_string())
}

fn query(text: &str) -> Result<(), String> {
    if !text.contains("$1") && !text.contains("$2") {
        return Err(
            "does not use $1, the address: it would find the same account for everybody".to_owned()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    /// serde names the fields it knows when it meets one it does not know.
    fn fields_of(section: &str) -> Vec<String> {
        let text =
            if section.is_empty() { "zzz = 1".to_owned() } else { format!("[{section}]\nzzz = 1") };
        let error =
            toml::from_str::<Config>(&text).expect_err("an unknown key is refused").to_string();
        let listed = error.split("expected ").nth(1).unwrap_or_default();
        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_schema_and_the_structs_have_the_same_keys() {
        assert_eq!(fields_of(""), sections().collect::<Vec<_>>());
        for section in sections() {
            let keys: Vec<_> =
                KEYS.iter().filter(|key| key.section() == section).map(Key::name).collect();
            assert_eq!(fields_of(section), keys, "in [{section}]");
        }
    }

    #[test]
    fn the_schema_and_the_enums_have_the_same_words() {
        for key in KEYS {
            let Kind::Choice(words) = key.kind else { continue };
            let text = format!("[{}]\n{} = \"zzz\"", key.section(), key.name());
            let error = toml::from_str::<Config>(&text)
                .expect_err("an unknown word is refused")
                .to_string();
            let listed = error.split("expected ").nth(1).unwrap_or_default();
            let known: Vec<_> = listed.split('`').skip(1).step_by(2).collect();
            assert_eq!(known, words, "of {}", key.full);
        }
    }
}
