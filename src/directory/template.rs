//! Templates with placeholders in braces: `directory.account` turns an address into an account, and
//! `store.url` turns an account into the folder of its Maildir.
//!
//! Promise: two accounts never share a folder, and two addresses never share an account unless the
//! administrator lists them.

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

#[derive(Clone, Debug, Eq, PartialEq)]
enum Piece {
    Text(String),
    Placeholder(Placeholder),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Placeholder {
    /// `{local}`: the part before the last `@`.
    Local,
    /// `{domain}`: the part after it.
    Domain,
    /// `{address}` in the template of an account, `{account}` in that of a folder.
    Whole,
}

/// Turns an address into an account: text with `{local}`, `{domain}` and `{address}`.
#[derive(Clone, Debug, Eq, PartialEq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct AccountTemplate {
    pieces: Vec<Piece>,
}

/// The folder of an account's Maildir. A path without placeholders is the root of
/// `ROOT/ACCOUNT/Maildir`. A path with placeholders (`{account}`, `{local}`, `{domain}`) is the
/// Maildir itself, as in Dovecot's `mail_location` (`%u`, `%n`, `%d`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FolderTemplate {
    /// The path above the first folder with a placeholder.
    root: PathBuf,
    /// The folders from the first one with a placeholder on.
    folders: Vec<Vec<Piece>>,
    needs_domain: bool,
}

/// Why a template was refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

impl FromStr for AccountTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let pieces = pieces(text, "address")?;
        let is_unfit = |c: char| matches!(c, '/' | '\\') || c.is_control();
        if text.chars().any(is_unfit) {
            return Err(refused("must not hold slashes or control characters"));
        }
        if !pieces.contains(&LOCAL) && !pieces.contains(&WHOLE) {
            return Err(refused("needs {local} or {address}: all users would share one account"));
        }
        Ok(Self { pieces })
    }
}

impl TryFrom<String> for AccountTemplate {
    type Error = TemplateError;

    fn try_from(text: String) -> Result<Self, TemplateError> {
        text.parse()
    }
}

impl Default for AccountTemplate {
    fn default() -> Self {
        Self { pieces: vec![Piece::Placeholder(Placeholder::Local)] }
    }
}

impl std::fmt::Display for AccountTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.pieces.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(text),
            Piece::Placeholder(Placeholder::Local) => f.write_str("{local}"),
            Piece::Placeholder(Placeholder::Domain) => f.write_str("{domain}"),
            Piece::Placeholder(Placeholder::Whole) => f.write_str("{address}"),
        })
    }
}

impl AccountTemplate {
    /// The account of `local@domain`.
    pub fn account(&self, local: &str, domain: &str) -> String {
        filled(&self.pieces, local, domain, &format!("{local}@{domain}"))
    }

    /// Whether a user of domain `one` and a user of domain `other` may have the same account.
    ///
    /// For a domain the template is text, a local part, and text. Two accounts can be equal only if
    /// one of the leading texts begins with the other, and one of the trailing texts ends with the
    /// other.
    pub fn may_share(&self, one: &str, other: &str) -> bool {
        let (front, end) = self.around(one);
        let (other_front, other_end) = self.around(other);
        (front.starts_with(&other_front) || other_front.starts_with(&front))
            && (end.ends_with(&other_end) || other_end.ends_with(&end))
    }

    /// Whether every account is a whole address, `local@domain`.
    pub fn is_address(&self) -> bool {
        self.account("l", "d") == "l@d" && self.account("m", "e") == "m@e"
    }

    /// The text before the first local part and after the last one, for a domain.
    fn around(&self, domain: &str) -> (String, String) {
        // Neither a domain nor a template holds a control character.
        let word = filled(&self.pieces, "\0", domain, &format!("\0@{domain}"));
        let front = word.split('\0').next().unwrap_or_default();
        let end = word.rsplit('\0').next().unwrap_or_default();
        (front.to_owned(), end.to_owned())
    }
}

impl FolderTemplate {
    /// Reads a path.
    ///
    /// # Errors
    /// Two accounts would share a folder, or a placeholder is unknown.
    pub fn parse(path: &Path) -> Result<Self, TemplateError> {
        let mut root = PathBuf::new();
        let mut folders: Vec<Vec<Piece>> = Vec::new();
        for component in path.components() {
            let text = component.as_os_str().to_str();
            let pieces = match (component, text) {
                (Component::Normal(_), Some(text)) => pieces(text, "account")?,
                _ => vec![],
            };
            let placeholders = pieces.iter().filter(|piece| matches!(piece, Piece::Placeholder(_)));
            match placeholders.count() {
                0 if folders.is_empty() => root.push(component),
                0 if matches!(component, Component::ParentDir) => {
                    return Err(refused("must not hold \"..\" after a placeholder"));
                }
                0 | 1 => folders.push(pieces),
                _ => {
                    return Err(refused(
                        "must not hold two placeholders in one folder's name: \
                         two accounts could share a folder",
                    ));
                }
            }
        }
        let has = |one: &Piece| folders.iter().any(|pieces| pieces.contains(one));
        if folders.is_empty() {
            let account = vec![Piece::Placeholder(Placeholder::Whole)];
            let folders = vec![account, vec![Piece::Text("Maildir".to_owned())]];
            return Ok(Self { root, folders, needs_domain: false });
        }
        let tells_apart = has(&WHOLE) || (has(&LOCAL) && has(&DOMAIN));
        if !tells_apart {
            return Err(refused(
                "needs {account}, or {domain} and {local}: two accounts would share a folder",
            ));
        }
        let needs_domain = has(&LOCAL) || has(&DOMAIN);
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
        if !super::is_account_name(account) {
            return None;
        }
        let (local, domain) = match account.rsplit_once('@') {
            Some((local, domain)) => (local, domain),
            None if self.needs_domain => return None,
            None => (account, ""),
        };
        let mut folder = self.root.clone();
        for pieces in &self.folders {
            let is_fit = |piece: &Piece| match piece {
                Piece::Placeholder(Placeholder::Local) => is_folder_name(local),
                Piece::Placeholder(Placeholder::Domain) => is_folder_name(domain),
                Piece::Placeholder(Placeholder::Whole) | Piece::Text(_) => true,
            };
            if !pieces.iter().all(is_fit) {
                return None;
            }
            folder.push(filled(pieces, local, domain, account));
        }
        Some(folder)
    }
}

const LOCAL: Piece = Piece::Placeholder(Placeholder::Local);
const DOMAIN: Piece = Piece::Placeholder(Placeholder::Domain);
const WHOLE: Piece = Piece::Placeholder(Placeholder::Whole);

/// Parses `text`; `whole` is the name of the placeholder for the whole address or account.
fn pieces(text: &str, whole: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let unclosed = || refused("holds a brace without its counterpart");
        let (before, behind) = rest.split_at(at);
        let (name, behind) = behind
            .strip_prefix('{')
            .and_then(|behind| behind.split_once('}'))
            .ok_or_else(unclosed)?;
        let placeholder = match name {
            "local" => Placeholder::Local,
            "domain" => Placeholder::Domain,
            name if name == whole => Placeholder::Whole,
            _ => {
                let known = format!("{{local}}, {{domain}}, {{{whole}}}");
                return Err(TemplateError(format!("has an unknown placeholder (known: {known})")));
            }
        };
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        pieces.push(Piece::Placeholder(placeholder));
        rest = behind;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

fn filled(pieces: &[Piece], local: &str, domain: &str, whole: &str) -> String {
    let texts = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => text,
        Piece::Placeholder(Placeholder::Local) => local,
        Piece::Placeholder(Placeholder::Domain) => domain,
        Piece::Placeholder(Placeholder::Whole) => whole,
    });
    texts.collect()
}

/// Whether a part of an account can name a folder: neither a hidden one nor `..`.
fn is_folder_name(part: &str) -> bool {
    !part.is_empty() && !part.starts_with('.')
}

fn refused(text: &str) -> TemplateError {
    TemplateError(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(template: &str) -> Result<AccountTemplate, String> {
        template.parse().map_err(|error: TemplateError| error.to_string())
    }

    fn folder(path: &str, account: &str) -> Option<String> {
        let template = FolderTemplate::parse(Path::new(path)).expect(path);
        template.folder(account).map(|folder| folder.display().to_string())
    }

    #[test]
    fn an_account_follows_its_template() {
        for (template, expected) in [
            ("{local}", "scuba"),
            ("{address}", "scuba@a.example"),
            ("{local}@{domain}", "scuba@a.example"),
            ("{domain}.{local}", "a.example.scuba"),
            ("u-{local}", "u-scuba"),
        ] {
            let read = account(template).expect(template);
            assert_eq!(read.account("scuba", "a.example"), expected);
            assert_eq!(read.to_string(), template);
        }
    }

    #[test]
    fn a_template_for_one_account_or_with_slashes_is_refused() {
        for (template, why) in [
            ("", "needs {local}"),
            ("vmail", "needs {local}"),
            ("{domain}", "needs {local}"),
            ("{user}", "unknown placeholder (known: {local}, {domain}, {address})"),
            ("{account}", "unknown placeholder"),
            ("{local", "brace"),
            ("local}", "brace"),
            ("{{local}}", "unknown placeholder"),
            ("{domain}/{local}", "slashes"),
            ("{local}\n", "control"),
        ] {
            let error = account(template).expect_err(template);
            assert!(error.contains(why), "{template}: {error}");
        }
    }

    #[test]
    fn templates_that_let_two_users_share_an_account_are_recognized() {
        for (template, one, other, shares) in [
            ("{local}", "a.example", "b.example", true),
            ("u-{local}", "a.example", "b.example", true),
            ("{address}", "a.example", "b.example", false),
            // x.a@example and x@a.example
            ("{local}.{domain}", "example", "a.example", true),
            ("{local}.{domain}", "a.example", "b.example", false),
            ("{local}@{domain}", "example", "a.example", false),
            // org.x@a.example and x@a.example.org
            ("{domain}.{local}", "a.example", "a.example.org", true),
            ("{domain}.{local}", "a.example", "b.example", false),
            ("{domain}@{local}", "a.example", "a.example.org", false),
            ("{domain}.{local}.{domain}", "a.example", "b.example", false),
        ] {
            let read = account(template).expect(template);
            assert_eq!(read.may_share(one, other), shares, "{template} {one} {other}");
            assert_eq!(read.may_share(other, one), shares, "{template} {other} {one}");
        }
        let read = account("{local}.{domain}").expect("a template");
        assert_eq!(read.account("x.a", "example"), read.account("x", "a.example"));
    }

    #[test]
    fn only_a_whole_address_is_an_address() {
        for (template, is_address) in [
            ("{address}", true),
            ("{local}@{domain}", true),
            ("{local}", false),
            ("{domain}@{local}", false),
        ] {
            assert_eq!(account(template).expect(template).is_address(), is_address, "{template}");
        }
    }

    #[test]
    fn an_account_has_one_folder() {
        for (path, name, expected) in [
            ("/srv/mail", "scuba", Some("/srv/mail/scuba/Maildir")),
            ("/srv/mail", "scuba@a.example", Some("/srv/mail/scuba@a.example/Maildir")),
            ("demo/mail", "scuba", Some("demo/mail/scuba/Maildir")),
            ("/srv/{account}", "scuba", Some("/srv/scuba")),
            ("/srv/mail/{domain}/{local}", "scuba@a.example", Some("/srv/mail/a.example/scuba")),
            (
                "/srv/{domain}/u-{local}/Maildir",
                "scuba@a.example",
                Some("/srv/a.example/u-scuba/Maildir"),
            ),
            // The last @ separates: a domain cannot hold one.
            ("/srv/mail/{domain}/{local}", "\"a@b\"@c", Some("/srv/mail/c/\"a@b\"")),
            ("/srv/mail/{domain}/{local}", "scuba", None),
            ("/srv/mail/{domain}/{local}", "@a.example", None),
            ("/srv/mail/{domain}/{local}", "scuba@", None),
            ("/srv/mail/{domain}/{local}", "scuba@..", None),
            ("/srv/mail/{domain}/{local}", "scuba@.a", None),
            ("/srv/mail/{domain}/{local}", "../x@a.example", None),
            ("/srv/mail/{domain}/{local}", "..@a.example", None),
            ("/srv/mail/{domain}/{local}", "a/../b@a.example", None),
            ("/srv/mail", "..", None),
            ("/srv/mail", ".ssh", None),
            ("/srv/mail", "a/b", None),
        ] {
            assert_eq!(folder(path, name).as_deref(), expected, "{path} {name}");
        }
    }

    #[test]
    fn a_path_that_lets_two_accounts_share_a_folder_is_refused() {
        for (path, why) in [
            ("/srv/{domain}", "needs {account}, or {domain} and {local}"),
            ("/srv/{local}", "needs {account}, or {domain} and {local}"),
            ("/srv/{local}.{domain}", "two placeholders in one folder's name"),
            ("/srv/{account}{account}", "two placeholders in one folder's name"),
            ("/srv/{address}", "unknown placeholder (known: {local}, {domain}, {account})"),
            ("/srv/{user}", "unknown placeholder"),
            ("/srv/{account}/../x", "\"..\" after a placeholder"),
            ("/srv/{account", "brace"),
        ] {
            let error = FolderTemplate::parse(Path::new(path)).expect_err(path).to_string();
            assert!(error.contains(why), "{path}: {error}");
        }
    }
}
