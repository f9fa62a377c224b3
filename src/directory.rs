//! Maps addresses to accounts and messages to mailboxes. Values only: if the configuration has a
//! query, [`Directory::known`] returns its parameters and the caller runs it.

mod template;

use std::collections::BTreeMap;

pub use template::{AccountTemplate, FolderTemplate, TemplateError};

/// A mailbox of an account, and the kind of copy that belongs into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    pub account: String,
    pub mailbox: String,
    /// A copy that several deliveries of one message share (Sent): marked as read, without
    /// per-recipient fields.
    pub shared: bool,
}

impl Destination {
    /// A recipient's own mailbox.
    pub fn inbox(account: &str) -> Destination {
        Destination { account: account.to_owned(), mailbox: "INBOX".to_owned(), shared: false }
    }

    /// The mailbox of an account's sent messages.
    pub fn sent(account: &str, mailbox: &str) -> Destination {
        // INBOX is INBOX in any case (RFC 3501 section 5.1).
        let mailbox = if mailbox.eq_ignore_ascii_case("INBOX") { "INBOX" } else { mailbox };
        Destination { account: account.to_owned(), mailbox: mailbox.to_owned(), shared: true }
    }

    pub fn is_same_mailbox(&self, other: &Destination) -> bool {
        self.account == other.account && self.mailbox == other.mailbox
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "account={} mailbox={}", self.account, self.mailbox)
    }
}

/// The account of an address, as far as the configuration alone can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    Account(String),
    /// Ask the administrator's query.
    Ask(Asked),
    Nobody,
}

/// The parameters of the administrator's query, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The address without its detail: `$1`.
    pub address: String,
    /// The address as given: `$2`.
    pub given: String,
}

impl Asked {
    /// For an address without a detail.
    pub fn plain(address: &str) -> Asked {
        Asked { address: address.to_owned(), given: address.to_owned() }
    }
}

/// The configured addresses (`[directory]`).
#[derive(Debug, Clone, Default)]
pub struct Directory {
    pub domains: Vec<String>,
    /// The account of an address in one of the domains.
    pub account: AccountTemplate,
    pub recipient_delimiter: String,
    pub accounts: BTreeMap<String, String>,
    /// Whether a query is configured; then an address is not known by its domain alone.
    pub asks: bool,
}

impl Directory {
    /// Looks up `address`, ignoring case: first in `accounts`, as given and then without its
    /// detail, then by query or by template, without the detail.
    pub fn known(&self, address: &str) -> Known {
        let address = address.trim().trim_start_matches('<').trim_end_matches('>').to_lowercase();
        let (local, domain) = match address.rsplit_once('@') {
            Some((local, domain)) => (local, domain),
            // local(8) may pass a bare user name; it belongs to the first domain.
            None => (address.as_str(), self.domains.first().map_or("", String::as_str)),
        };
        let base = self.without_detail(local);
        let asked =
            Asked { address: format!("{base}@{domain}"), given: format!("{local}@{domain}") };
        for form in [&asked.given, &asked.address] {
            if let Some((_, account)) =
                self.accounts.iter().find(|(key, _)| key.to_lowercase() == *form)
            {
                return Known::Account(account.clone());
            }
        }
        let is_local = self.domains.iter().any(|ours| ours.eq_ignore_ascii_case(domain));
        if self.asks && (is_local || self.domains.is_empty()) {
            return Known::Ask(asked);
        }
        let account = self.account.account(base, domain);
        match is_local && !base.is_empty() && is_account_name(&account) {
            true => Known::Account(account),
            false => Known::Nobody,
        }
    }

    fn without_detail<'a>(&self, local: &'a str) -> &'a str {
        // As in Postfix: the first of these characters that is not at the start.
        local
            .char_indices()
            .skip(1)
            .find(|(_, c)| self.recipient_delimiter.contains(*c))
            .map_or(local, |(at, _)| &local[..at])
    }
}

/// Whether `name` can be an account. It becomes the name of a folder and an IMAP identity, so it
/// has 1 to 255 bytes (NAME_MAX; RFC 5321 section 4.5.3.1.3 allows addresses of 254), no slash or
/// control character, and no dot at the start.
pub fn is_account_name(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && !name.starts_with('.')
        && !name.chars().any(|c| c == '/' || c == '\\' || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        Directory {
            domains: vec!["Mail.Axial.net".into()],
            account: AccountTemplate::default(),
            recipient_delimiter: "+-".into(),
            accounts: [("Lisa@gmail.com".to_owned(), "lisa".to_owned())].into(),
            asks: false,
        }
    }

    #[test]
    fn addresses_lead_to_accounts() {
        let cases = [
            ("scuba@mail.axial.net", Known::Account("scuba".into())),
            ("Scuba+Detail@MAIL.axial.net", Known::Account("scuba".into())),
            ("scuba-lists@mail.axial.net", Known::Account("scuba".into())),
            ("+x@mail.axial.net", Known::Account("+x".into())),
            ("<lisa+a@gmail.com>", Known::Account("lisa".into())),
            ("doug", Known::Account("doug".into())),
            ("doug@elsewhere.example", Known::Nobody),
            ("../etc@mail.axial.net", Known::Nobody),
            ("a/b@mail.axial.net", Known::Nobody),
            ("@mail.axial.net", Known::Nobody),
            ("", Known::Nobody),
        ];
        for (address, known) in cases {
            assert_eq!(directory().known(address), known, "{address}");
        }
    }

    #[test]
    fn with_a_query_the_users_of_a_domain_come_from_the_query_alone() {
        let directory = Directory { asks: true, ..directory() };
        let asked = Asked {
            address: "scuba@mail.axial.net".to_owned(),
            given: "scuba+x@mail.axial.net".to_owned(),
        };
        assert_eq!(directory.known("Scuba+x@mail.axial.net"), Known::Ask(asked));
        assert_eq!(directory.known("lisa@gmail.com"), Known::Account("lisa".into()));
        assert_eq!(directory.known("x@elsewhere.example"), Known::Nobody);
    }

    #[test]
    fn with_a_template_of_addresses_every_domain_has_accounts_of_its_own() {
        let domains = vec!["a.example".to_owned(), "b.example".to_owned()];
        let account = "{address}".parse().expect("a template");
        let directory = Directory { domains, account, ..directory() };
        let long = format!("{}@a.example", "x".repeat(245));
        for (address, known) in [
            ("info@a.example", Known::Account("info@a.example".into())),
            ("Info+x@B.example", Known::Account("info@b.example".into())),
            ("lisa+a@gmail.com", Known::Account("lisa".into())),
            ("doug", Known::Account("doug@a.example".into())),
            (&long, Known::Account(long.clone())),
            (&format!("x{long}"), Known::Nobody),
            ("info@c.example", Known::Nobody),
            ("../etc@a.example", Known::Nobody),
            (".ssh@a.example", Known::Nobody),
            ("@a.example", Known::Nobody),
        ] {
            assert_eq!(directory.known(address), known, "{address}");
        }
    }

    #[test]
    fn an_account_is_looked_up_with_its_detail_first() {
        let accounts = ["lisa+boss@gmail.com", "lisa@gmail.com"]
            .map(|key| (key.to_owned(), key[4..5].to_owned()));
        let directory =
            Directory { accounts: accounts.into(), asks: true, domains: vec![], ..directory() };
        assert_eq!(directory.known("lisa+boss@gmail.com"), Known::Account("+".into()));
        assert_eq!(directory.known("lisa+x@gmail.com"), Known::Account("@".into()));
    }
}
