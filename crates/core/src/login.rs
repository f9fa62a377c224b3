//! How a login names the account whose mailboxes it wants (`store.login`): as SASL's authorization
//! identity, or in the name that it logs in with, for servers that split a name at a separator
//! (Dovecot's `auth_master_user_separator`, Stalwart's `account%master`); and the way in by it, of
//! which it is on record that it was proven. Values only.

/// How the name for a login is made of account and user.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum LoginForm {
    /// SASL PLAIN (RFC 4616): the account is the authorization identity.
    Sasl,
    /// The name to log in with, made of account and user.
    Template(Template),
}

/// A template with `{account}` and `{user}` once each, and a separator between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    separator: String,
}

const ACCOUNT: &str = "{account}";
const USER: &str = "{user}";

impl TryFrom<String> for LoginForm {
    /// Why it is neither, for an administrator.
    type Error = String;

    /// Reads `sasl` or a template.
    fn try_from(text: String) -> Result<LoginForm, String> {
        if text == "sasl" {
            return Ok(LoginForm::Sasl);
        }
        let form = "\"sasl\" or a template with {account} and {user}, such as \"{account}*{user}\"";
        let (Some(account), Some(user)) = (text.find(ACCOUNT), text.find(USER)) else {
            let missing = if text.contains(ACCOUNT) { USER } else { ACCOUNT };
            return Err(format!("{missing} is missing: it must be {form}"));
        };
        if text.matches(ACCOUNT).count() > 1 || text.matches(USER).count() > 1 {
            let why = "may stand there once each: it must be";
            return Err(format!("{ACCOUNT} and {USER} {why} {form}"));
        }
        let separator = match account < user {
            true => &text[account + ACCOUNT.len()..user],
            false => &text[user + USER.len()..account],
        };
        let others = text.replace(ACCOUNT, "").replace(USER, "");
        if others.contains(['{', '}']) {
            return Err(format!("it has other braces than those of {ACCOUNT} and {USER}"));
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err("it has a blank or a control character".to_owned());
        }
        if separator.is_empty() || separator.chars().any(char::is_alphanumeric) {
            return Err(format!(
                "between {ACCOUNT} and {USER} there must be a separator, without letters and \
                 digits, such as *"
            ));
        }
        let separator = separator.to_owned();
        Ok(LoginForm::Template(Template { text, separator }))
    }
}

/// Writes it as the configuration has it.
impl std::fmt::Display for LoginForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoginForm::Sasl => f.write_str("sasl"),
            LoginForm::Template(template) => f.write_str(&template.text),
        }
    }
}

impl Template {
    /// The name with which `user` logs in for `account`.
    ///
    /// # Errors
    /// One of them has a character of the separator: the server could split the name elsewhere.
    pub fn name(&self, account: &str, user: &str) -> Result<String, String> {
        for (what, name) in [("account", account), ("store.user", user)] {
            if let Some(character) = name.chars().find(|c| self.separator.contains(*c)) {
                return Err(format!(
                    "{what} {name:?} has a {character:?}, which separates account and user in \
                     store.login = \"{}\"",
                    self.text
                ));
            }
        }
        let (before, after) = self.text.split_once(ACCOUNT).unwrap_or_default();
        // Each part by itself: what an account is called must not be taken for a placeholder.
        Ok(format!("{}{account}{}", before.replace(USER, user), after.replace(USER, user)))
    }
}

/// A server and a way of logging in to it for accounts. What was proven of it holds for all hosts
/// that use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Name or address and port.
    pub server: String,
    /// Who authenticates.
    pub login_user: String,
    /// `store.login`.
    pub form: String,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the mail server at {} (user {}, login \"{}\")",
            self.server, self.login_user, self.form
        )
    }
}
