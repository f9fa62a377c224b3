//! Templates with placeholders in braces: `directory.account` turns an address into an account, and
//! `store.url` turns an account into the folder of its Maildir.
//!
//! Promise: two accounts never share a folder, and two addresses never share an account unless the
//! administrator lists them.

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

const LOCAL: &str = "{local}";
const DOMAIN: &str = "{domain}";

/// Turns an address into an account: text with `{local}` (before the last `@`), `{domain}` (after
/// it) and `{address}`.
#[derive(Clone, Debug, Eq, PartialEq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct AccountTemplate(String);

/// The folder of an account's Maildir. A path without placeholders is the root of
/// `ROOT/ACCOUNT/Maildir`. A path with placeholders (`{account}`, `{local}`, `{domain}`) is the
/// Maildir itself, as in Dovecot's `mail_location` (`%u`, `%n`, `%d`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FolderTemplate {
    /// The path above the first folder with a placeholder.
    root: PathBuf,
    /// The folders from the first one with a placeholder on.
    folders: Vec<String>,
    needs_domain: bool,
}

impl FromStr for AccountTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        check_placeholders(text, "address")?;
        if text.contains(|c: char| matches!(c, '/' | '\\') || c.is_control()) {
            return Err("must not hold slashes or control characters".to_owned());
        }
        if !text.contains(LOCAL) && !text.contains("{address}") {
            let why = "needs {local} or {address}: all users would share one account";
            return Err(why.to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for AccountTemplate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::fmt::Display for AccountTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl AccountTemplate {
    /// The account of `local@domain`.
    pub fn account(&self, local: &str, domain: &str) -> String {
        filled(&self.0, local, domain, &format!("{local}@{domain}"))
    }

    /// Whether a user of domain `one` and a user of domain `other` may have the same account.
    ///
    /// For a domain the template is text, a local part, and text. Two accounts can be equal only if
    /// one of the leading texts begins with the other, and one of the trailing texts ends with the
    /// other.
    pub fn may_share(&self, one: &str, other: &str) -> bool {
        // Neither a domain nor a template holds a control character.
        let around = |domain| {
            let account = self.account("\0", domain);
            let mut texts = account.split('\0').map(str::to_owned);
            (texts.next().unwrap_or_default(), texts.next_back().unwrap_or_default())
        };
        let ((front, end), (other_front, other_end)) = (around(one), around(other));
        (front.starts_with(&other_front) || other_front.starts_with(&front))
            && (end.ends_with(&other_end) || other_end.ends_with(&end))
    }

    /// Whether every account is a whole address, `local@domain`.
    pub fn is_address(&self) -> bool {
        self.account("l", "d") == "l@d" && self.account("m", "e") == "m@e"
    }
}

impl FolderTemplate {
    /// Reads a path.
    ///
    /// # Errors
    /// Two accounts would share a folder, or a placeholder is unknown.
    pub fn parse(path: &Path) -> Result<Self, String> {
        let mut root = PathBuf::new();
        let mut folders: Vec<String> = Vec::new();
        for component in path.components() {
            let text = component.as_os_str().to_str().unwrap_or_default();
            check_placeholders(text, "account")?;
            match text.matches('{').count() {
                0 if folders.is_empty() => root.push(component),
                0 if component == Component::ParentDir => {
                    return Err("must not hold \"..\" after a placeholder".to_owned());
                }
                0 | 1 => folders.push(text.to_owned()),
                _ => {
                    let why = "must not hold two placeholders in one folder's name: \
                               two accounts could share a folder";
                    return Err(why.to_owned());
                }
            }
        }
        if folders.is_empty() {
            folders = vec!["{account}".to_owned(), "Maildir".to_owned()];
        }
        let has = |name: &str| folders.iter().any(|folder| folder.contains(name));
        let tells_apart = has("{account}") || (has(LOCAL) && has(DOMAIN));
        if !tells_apart {
            let why = "needs {account}, or {domain} and {local}: two accounts would share a folder";
            return Err(why.to_owned());
        }
        let needs_domain = has(LOCAL) || has(DOMAIN);
        Ok(Self { root, folders, needs_domain })
    }

    /// The folder above all Maildirs.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether an account needs a domain to have a folder.
    pub fn needs_domain(&self) -> bool {
        self.needs_domain
    }

    /// The folder of an account's Maildir; `None` if the account's name does not give one.
    pub fn folder(&self, account: &str) -> Option<PathBuf> {
        self.filled(account, self.folders.len())
    }

    /// The first folder on the way there that is this account's alone: whoever makes it makes the
    /// account.
    pub fn place(&self, account: &str) -> Option<PathBuf> {
        let tells = |folders: &[String]| {
            let has = |name: &str| folders.iter().any(|folder| folder.contains(name));
            has("{account}") || (has(LOCAL) && has(DOMAIN))
        };
        let folders = (1..=self.folders.len()).find(|count| tells(&self.folders[..*count]));
        self.filled(account, folders?)
    }

    /// The path with the first `folders` folders below the root.
    fn filled(&self, account: &str, folders: usize) -> Option<PathBuf> {
        if !super::is_account_name(account) {
            return None;
        }
        let (local, domain) = match account.rsplit_once('@') {
            Some((local, domain)) => (local, domain),
            None if self.needs_domain => return None,
            None => (account, ""),
        };
        let mut path = self.root.clone();
        for folder in &self.folders[..folders] {
            // A part of an account must name neither a hidden folder nor `..`.
            let fits = |name: &str, part: &str| {
                !folder.contains(name) || !(part.is_empty() || part.starts_with('.'))
            };
            if !fits(LOCAL, local) || !fits(DOMAIN, domain) {
                return None;
            }
            path.push(filled(folder, local, domain, account));
        }
        Some(path)
    }
}

/// Refuses braces around anything but `local`, `domain` and `whole`.
fn check_placeholders(text: &str, whole: &str) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let behind = rest[at..].strip_prefix('{').and_then(|behind| behind.split_once('}'));
        let (name, behind) = behind.ok_or("holds a brace without its counterpart")?;
        if !["local", "domain", whole].contains(&name) {
            let known = format!("{LOCAL}, {DOMAIN}, {{{whole}}}");
            return Err(format!("has an unknown placeholder (known: {known})"));
        }
        rest = behind;
    }
    Ok(())
}

/// A checked template with its placeholders filled in.
fn filled(template: &str, local: &str, domain: &str, whole: &str) -> String {
    // Text and names take turns between the braces.
    let parts = template.split(['{', '}']).zip([false, true].into_iter().cycle());
    let texts = parts.map(|part| match part {
        (text, false) => text,
        ("local", true) => local,
        ("domain", true) => domain,
        (_, true) => whole,
    });
    texts.collect()
}
