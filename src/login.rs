//! How a login names the account whose mailboxes it wants (`store.login`): as SASL's authorization
//! identity, or in the name that it logs in with, for servers that split a name at a separator
//! (Dovecot's `auth_master_user_separator`, Stalwart's `account%master`); and the way in by it, of
//! which it is on record that it was proven. Values only.

/// See the module.
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

impl LoginForm {
    /// Reads `sasl` or a template.
    ///
    /// # Errors
    /// Why it is neither, for an administrator.
    pub fn parse(text: &str) -> Result<LoginForm, String> {
        if text == "sasl" {
            return Ok(LoginForm::Sasl);
        }
        let form = "\"sasl\" or a template with {account} and {user}, such as \"{account}*{user}\"";
        let (Some(account), Some(user)) = (text.find(ACCOUNT), text.find(USER)) else {
            let missing = if text.contains(ACCOUNT) { USER } else { ACCOUNT };
            return Err(format!("{missing} is missing: it must be {form}"));
        };
        if text.matches(ACCOUNT).count() > 1 || text.matches(USER).count() > 1 {
            return Err(format!(
                "{ACCOUNT} and {USER} may stand there once each: it must be {form}"
            ));
        }
        let between = match account < user {
            true => account + ACCOUNT.len()..user,
            false => user + USER.len()..account,
        };
        let separator = text[between].to_owned();
        let others = text.replacen(ACCOUNT, "", 1).replacen(USER, "", 1);
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
        Ok(LoginForm::Template(Template { text: text.to_owned(), separator }))
    }
}

impl TryFrom<String> for LoginForm {
    type Error = String;

    fn try_from(text: String) -> Result<LoginForm, String> {
        LoginForm::parse(&text)
    }
}

/// As it is written in the configuration.
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
    /// One of them has a character of the separator: nobody knows where the server would split the
    /// name.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn name(template: &str, account: &str, user: &str) -> Result<String, String> {
        match LoginForm::parse(template)? {
            LoginForm::Sasl => Err("sasl".to_owned()),
            LoginForm::Template(template) => template.name(account, user),
        }
    }

    #[test]
    fn a_name_is_made_of_account_and_user() {
        for (template, expected) in [
            ("{account}*{user}", "lisa*mda"),
            ("{account}%{user}", "lisa%mda"),
            ("{user}/{account}", "mda/lisa"),
            ("{account}@@{user}@mail.axial.net", "lisa@@mda@mail.axial.net"),
        ] {
            assert_eq!(name(template, "lisa", "mda").as_deref(), Ok(expected));
            assert_eq!(LoginForm::parse(template).unwrap().to_string(), template);
        }
        assert_eq!(
            name("{account}*{user}", "{user}", "{account}").as_deref(),
            Ok("{user}*{account}")
        );
        assert_eq!(LoginForm::parse("sasl"), Ok(LoginForm::Sasl));
    }

    #[test]
    fn what_would_be_split_elsewhere_is_refused() {
        for (account, user) in [("li*sa", "mda"), ("lisa*", "mda"), ("*", "mda"), ("lisa", "m*da")]
        {
            let refused = name("{account}*{user}", account, user).unwrap_err();
            assert!(refused.contains("store.login") && refused.contains('*'), "{refused}");
        }
        assert!(name("{account}@@{user}", "lisa@", "mda").is_err(), "half a separator");
        assert_eq!(name("{account}%{user}", "li*sa", "mda").as_deref(), Ok("li*sa%mda"));
    }

    #[test]
    fn a_template_that_cannot_work_says_why() {
        for (text, why) in [
            ("", "{account} is missing"),
            ("SASL", "{account} is missing"),
            ("plain", "{account} is missing"),
            ("{user}", "{account} is missing"),
            ("{account}", "{user} is missing"),
            ("{account}*{user}*{account}", "once each"),
            ("{account}*{user}{user}", "once each"),
            ("{account}{user}", "separator"),
            ("{account}at{user}", "separator"),
            ("{account}*{user}@{domain}", "braces"),
            ("{account} {user}", "blank"),
            ("{account}*{user}\r\n", "blank"),
        ] {
            let refused = LoginForm::parse(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
