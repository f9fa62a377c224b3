//! Who an address belongs to, and which mailboxes a message belongs in. Values only: a site's SQL query for accounts is
//! run by the caller through the ledger, between [`Directory::known`] and the answer.

use std::collections::BTreeMap;

/// A mailbox of an account, and how a copy in it is marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    pub account: String,
    pub mailbox: String,
    /// A copy that several deliveries of one message share (Sent): marked as read, without per-recipient fields.
    pub shared: bool,
}

impl Destination {
    /// A recipient's own mailbox.
    pub fn inbox(account: &str) -> Destination {
        Destination { account: account.to_owned(), mailbox: "INBOX".to_owned(), shared: false }
    }

    /// The mailbox for what an account has sent.
    pub fn sent(account: &str, mailbox: &str) -> Destination {
        // INBOX is INBOX in any case (RFC 3501 section 5.1).
        let mailbox = if mailbox.eq_ignore_ascii_case("INBOX") { "INBOX" } else { mailbox };
        Destination { account: account.to_owned(), mailbox: mailbox.to_owned(), shared: true }
    }

    /// Whether both lead to one mailbox.
    pub fn is_same_mailbox(&self, other: &Destination) -> bool {
        self.account == other.account && self.mailbox == other.mailbox
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "account={} mailbox={}", self.account, self.mailbox)
    }
}

/// Where an address leads, as far as the configuration alone can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    Account(String),
    /// Ask the ledger's database for one of these addresses, in this order.
    Ask(Vec<String>),
    Nobody,
}

/// The configured addresses (`[directory]`).
#[derive(Debug, Clone, Default)]
pub struct Directory {
    pub domains: Vec<String>,
    pub recipient_delimiter: String,
    pub accounts: BTreeMap<String, String>,
    /// Whether a query is configured; then a domain alone makes no address known.
    pub asks: bool,
}

impl Directory {
    /// Where `address` leads. Case does not matter; the address is tried as it is, then without its +detail.
    pub fn known(&self, address: &str) -> Known {
        let address = address.trim().trim_start_matches('<').trim_end_matches('>').to_lowercase();
        let (local, domain) = match address.rsplit_once('@') {
            Some((local, domain)) => (local, domain),
            // local(8) may hand over a bare user name: it belongs to the first domain.
            None => (address.as_str(), self.domains.first().map_or("", String::as_str)),
        };
        let base = self.without_detail(local);
        let mut forms = vec![format!("{local}@{domain}")];
        if base != local {
            forms.push(format!("{base}@{domain}"));
        }
        for form in &forms {
            if let Some((_, account)) = self.accounts.iter().find(|(key, _)| key.to_lowercase() == *form) {
                return Known::Account(account.clone());
            }
        }
        let is_local = self.domains.iter().any(|ours| ours.eq_ignore_ascii_case(domain));
        if self.asks && (is_local || self.domains.is_empty()) {
            return Known::Ask(forms);
        }
        if is_local && is_account_name(base) {
            return Known::Account(base.to_owned());
        }
        Known::Nobody
    }

    fn without_detail<'a>(&self, local: &'a str) -> &'a str {
        // As in Postfix: any one of the characters, at its first place, not at the start.
        local
            .char_indices()
            .skip(1)
            .find(|(_, c)| self.recipient_delimiter.contains(*c))
            .map_or(local, |(at, _)| &local[..at])
    }
}

/// Whether `name` can own mailboxes: it becomes a folder's name and an IMAP identity, so it has no slash, no control
/// character, does not start with a dot, and has 1 to 128 bytes.
pub fn is_account_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && !name.starts_with('.')
        && !name.chars().any(|c| c == '/' || c == '\\' || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        Directory {
            domains: vec!["Mail.Axial.net".into()],
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
    fn with_a_query_only_the_query_knows_a_domains_users() {
        let directory = Directory { asks: true, ..directory() };
        let forms = vec!["scuba+x@mail.axial.net".to_owned(), "scuba@mail.axial.net".to_owned()];
        assert_eq!(directory.known("Scuba+x@mail.axial.net"), Known::Ask(forms));
        assert_eq!(directory.known("lisa@gmail.com"), Known::Account("lisa".into()));
        assert_eq!(directory.known("x@elsewhere.example"), Known::Nobody);
    }
}
