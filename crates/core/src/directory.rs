//! Maps addresses to accounts and messages to mailboxes. Values only: if the configuration has a
//! query or a userdb, [`Directory::known`] returns what is to be asked, and the caller asks.

mod domain;
mod mailbox;
mod template;

use std::collections::BTreeMap;
use std::path::PathBuf;

use domain::{ascii_domain, is_international};

pub use domain::is_same_domain;
pub use mailbox::{detail_mailbox, mailbox_name};
pub use template::{AccountTemplate, FolderTemplate};

/// In the place of a mailbox' name: the one that the mail server marks as that for sent mail (RFC
/// 6154). It is what names the copy, whatever the mailbox is called.
pub const SENT_ROLE: &str = "\\Sent";

/// A mailbox of an account, and the kind of copy that belongs into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    pub account: String,
    /// The name of the copy in the ledger: the mailbox' name, and after it the
    /// [variant](crate::message::filter_variant) of the message, if there is one.
    pub mailbox: String,
    /// A copy that several deliveries of one message share (Sent): marked as read, without
    /// per-recipient fields.
    pub shared: bool,
}

impl Destination {
    /// A recipient's own mailbox, if no other is meant.
    pub fn inbox(account: &str) -> Destination {
        Destination { account: account.to_owned(), mailbox: "INBOX".to_owned(), shared: false }
    }

    /// The mailbox of an account's sent messages.
    pub fn sent(account: &str, mailbox: &str) -> Destination {
        // INBOX is INBOX in any case (RFC 3501 section 5.1), and so is a role.
        let is_same = |fixed: &&str| fixed.eq_ignore_ascii_case(mailbox);
        let mailbox = ["INBOX", SENT_ROLE].into_iter().find(is_same).unwrap_or(mailbox);
        Destination { account: account.to_owned(), mailbox: mailbox.to_owned(), shared: true }
    }

    /// Where a recipient's copy goes if the mailbox that was meant for it is not there, or not
    /// open to us; of INBOX and of shared copies there is none.
    pub fn stand_in(&self) -> Option<Destination> {
        let inbox = || Destination::inbox(&self.account).of_variant(self.variant());
        (!self.shared && self.place() != "INBOX").then(inbox)
    }

    /// The mailbox' name, for a store and for people.
    pub fn place(&self) -> &str {
        &self.mailbox[..self.mailbox.len() - self.variant().len()]
    }

    /// `\\` and a number after the name, which holds no `\\` but in front ([`SENT_ROLE`]).
    pub fn variant(&self) -> &str {
        let at = self.mailbox.rfind('\\').filter(|at| *at > 0 && !self.shared);
        &self.mailbox[at.unwrap_or(self.mailbox.len())..]
    }

    /// The same mailbox, for the copy of this variant of the message; empty: of none.
    pub fn of_variant(&self, variant: &str) -> Destination {
        Destination { mailbox: format!("{}{variant}", self.place()), ..self.clone() }
    }

    pub fn is_same_mailbox(&self, other: &Destination) -> bool {
        self.account == other.account && self.mailbox == other.mailbox
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "account={} mailbox={}", self.account, self.place())
    }
}

/// A mailbox that the ledger names, for people: its name, and ` (variant 9f3a)` if a copy there is
/// of a [variant](crate::message::filter_variant) of the message.
pub fn place_and_variant(mailbox: &str) -> (&str, String) {
    let parts = mailbox.rsplit_once('\\').filter(|(place, variant)| {
        let is_number = variant.bytes().all(|byte| byte.is_ascii_hexdigit());
        !place.is_empty() && variant.len() == 16 && is_number
    });
    match parts {
        Some((place, variant)) => (place, format!(" (variant {})", &variant[..4])),
        None => (mailbox, String::new()),
    }
}

/// Whose mailbox an address means.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(from = "HomeKey")]
pub struct Home {
    pub account: String,
    /// `None`: INBOX.
    pub mailbox: Option<String>,
}

impl Home {
    /// An account's INBOX.
    pub fn of(account: impl Into<String>) -> Home {
        Home { account: account.into(), mailbox: None }
    }

    pub fn destination(&self) -> Destination {
        let mailbox = self.mailbox.as_deref().unwrap_or("INBOX").to_owned();
        Destination { account: self.account.clone(), mailbox, shared: false }
    }
}

/// The form in the configuration: an account, and perhaps a mailbox.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum HomeKey {
    Account(String),
    Mailbox(String, String),
}

impl From<HomeKey> for Home {
    fn from(key: HomeKey) -> Home {
        match key {
            HomeKey::Account(account) => Home::of(account),
            HomeKey::Mailbox(account, mailbox) => Home { account, mailbox: Some(mailbox) },
        }
    }
}

/// What the detail of an address means (`directory.detail`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    #[default]
    Ignore,
    /// The mailbox of that name, if it is there.
    Mailbox,
}

/// Whose mailbox an address means, as far as the configuration alone says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    Home(Home),
    /// Ask the administrator's query, and then the userdb: those of them that there are.
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
    /// What its detail names, where the query names no mailbox.
    pub mailbox: Option<String>,
}

impl Asked {
    /// For an address without a detail.
    pub fn plain(address: &str) -> Asked {
        Asked { address: address.to_owned(), given: address.to_owned(), mailbox: None }
    }
}

/// Which address belongs to which account.
#[derive(Clone, Debug, PartialEq)]
pub struct Directory {
    /// Domains, in lower case, whose addresses are accounts.
    pub domains: Vec<String>,
    /// Names the account of an address in one of them.
    pub account: AccountTemplate,
    /// Each character of it ends the account's part of an address, as in Postfix; empty: none does.
    pub recipient_delimiter: String,
    pub detail: Detail,
    /// Address in lower case to account and mailbox; asked before `domains`.
    pub accounts: BTreeMap<String, Home>,
    /// SQL that finds the account, and perhaps the mailbox, of the address `$1` (`$2`: with its
    /// detail); with it, an address is not known by its domain alone.
    pub query: Option<String>,
    /// The socket of Dovecot's user database, which knows the accounts of `domains` (without any:
    /// of all) for which the query has no row; with it, an address is not known by its domain
    /// alone.
    pub userdb: Option<PathBuf>,
}

impl Directory {
    /// Looks up `address`, ignoring case: first in `accounts`, as given and then without its
    /// detail, then by query or by template, without the detail. The detail names a mailbox, in the
    /// case that it has, where nothing else does and the address is not listed as given.
    pub fn known(&self, address: &str) -> Known {
        let asked = self.asked(address);
        if let Some(home) = self.listed(&asked.given) {
            return Known::Home(home.clone());
        }
        let (base, domain) = asked.address.rsplit_once('@').unwrap_or_default();
        if let Some(home) = self.listed(&asked.address) {
            let mailbox = home.mailbox.clone().or(asked.mailbox);
            return Known::Home(Home { mailbox, ..home.clone() });
        }
        let is_local = self.domains.iter().any(|ours| ours == domain);
        let asks = self.query.is_some() || self.userdb.is_some();
        // `@domain` is the row of whoever takes all mail of a domain, and no recipient.
        if asks && !base.is_empty() && (is_local || self.domains.is_empty()) {
            return Known::Ask(asked);
        }
        let account = self.account.account(base, domain);
        match is_local && is_local_part(base) && is_account_name(&account) {
            true => Known::Home(Home { account, mailbox: asked.mailbox }),
            false => Known::Nobody,
        }
    }

    /// What `accounts` says of an address in the form of [`asked`](Directory::asked).
    fn listed(&self, address: &str) -> Option<&Home> {
        let listed = self.accounts.get(address);
        let (local, domain) = address.rsplit_once('@')?;
        if listed.is_some() || !is_international(domain) {
            return listed;
        }
        let is_it = |(key, _): &(&String, &Home)| {
            key.rsplit_once('@').is_some_and(|(other_local, other)| {
                other_local == local && is_same_domain(other, domain)
            })
        };
        self.accounts.iter().find(is_it).map(|(_, home)| home)
    }

    /// An address in the forms in which it may be known. Its domain is as `domains` has it, else in
    /// ASCII.
    pub fn asked(&self, address: &str) -> Asked {
        let written = address.trim().trim_start_matches('<').trim_end_matches('>');
        let address = written.to_lowercase();
        let (local, domain) = match address.rsplit_once('@') {
            Some((local, domain)) => (local, domain),
            // local(8) may pass a bare user name; it belongs to the first domain.
            None => (address.as_str(), self.domains.first().map_or("", String::as_str)),
        };
        let ours = self.domains.iter().find(|ours| is_same_domain(ours, domain));
        let domain = ours.cloned().unwrap_or_else(|| ascii_domain(domain));
        let (base, _) = self.parts(local);
        let mailbox = self.mailbox_of_detail(written);
        Asked { address: format!("{base}@{domain}"), given: format!("{local}@{domain}"), mailbox }
    }

    /// Whether anything but a domain says that there is such an account.
    pub fn names(&self, account: &str) -> bool {
        self.query.is_some()
            || self.userdb.is_some()
            || self.accounts.values().any(|home| home.account == account)
    }

    /// The address that a user of this host has in the first domain; `None` where the name could
    /// mean somebody else's: with a detail, with a domain, or in other than lower case.
    pub fn address_of_user(&self, name: &str) -> Option<String> {
        let domain = self.domains.first().map_or("", String::as_str);
        let address = format!("{name}@{domain}");
        (!name.contains('@') && self.asked(name).address == address).then_some(address)
    }

    /// What of an address a user of this host is called by: its local part, in the case that it
    /// has, if that is `name` and perhaps a detail.
    pub fn local_part_of_user<'a>(&self, address: &'a str, name: &str) -> Option<&'a str> {
        let (local, _) = address.rsplit_once('@')?;
        let (base, _) = self.parts(local);
        base.eq_ignore_ascii_case(name).then_some(local)
    }

    /// Under which name the userdb may know an address; `None`: under none.
    pub fn name_in_userdb(&self, asked: &Asked) -> Option<String> {
        let (base, domain) = asked.address.rsplit_once('@')?;
        let name = match domain {
            "" => base.to_owned(),
            _ => self.account.account(base, domain),
        };
        (is_local_part(base) && is_account_name(&name)).then_some(name)
    }

    /// Whether no address can have an account, because nothing here names one: a broken
    /// configuration (temporary), not an unknown recipient. An emptied file must not send all mail
    /// back.
    pub fn knows_nobody(&self) -> bool {
        self.domains.is_empty()
            && self.accounts.is_empty()
            && self.query.is_none()
            && self.userdb.is_none()
    }

    /// The mailbox that the detail of `address` names, if details do.
    fn mailbox_of_detail(&self, address: &str) -> Option<String> {
        let local = address.rsplit_once('@').map_or(address, |(local, _)| local);
        let (_, detail) = self.parts(local);
        match self.detail {
            Detail::Mailbox => detail.and_then(detail_mailbox),
            Detail::Ignore => None,
        }
    }

    /// A local part without its detail, and the detail.
    fn parts<'a>(&self, local: &'a str) -> (&'a str, Option<&'a str>) {
        // As in Postfix: the first of these characters that is not at the start.
        local
            .char_indices()
            .skip(1)
            .find(|(_, c)| self.recipient_delimiter.contains(*c))
            .map_or((local, None), |(at, c)| (&local[..at], Some(&local[at + c.len_utf8()..])))
    }
}

/// Whether it can name an account of its domain. Quoted, a local part may have an `@`; servers that
/// take accounts for addresses would take what follows it for the domain.
fn is_local_part(local: &str) -> bool {
    !local.is_empty() && !local.contains('@')
}

/// Whether `name` can be an account. It becomes the name of a folder and an IMAP identity, so it
/// has 1 to 255 bytes (NAME_MAX; RFC 5321 section 4.5.3.1.3 allows addresses of 254), no slash or
/// control character, and no dot at the start.
pub fn is_account_name(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && !name.starts_with('.')
        && !name.chars().any(|c| c == '/' || c == '\\' || c.is_control())
}

/// Why it is not known whether Dovecot's user database has a user.
#[derive(Debug, thiserror::Error)]
pub enum UserdbError {
    /// No server answers there, or not in time.
    #[error("{0}")]
    Away(String),
    /// The socket cannot be used as it is set up.
    #[error("{0}")]
    Setup(String),
    /// It answers, and does not know about this user now.
    #[error("{0}")]
    NotNow(String),
}
