//! Decides whose Sent mailbox gets a copy of a message. Anyone can write a From field, so with
//! `sent.trust = "authenticated"` it counts only if our own Authentication-Results (RFC 8601) says
//! dmarc=pass for its domain, or if Postfix names an authenticated SASL user with the same account.
//! Values only: the caller looks the accounts up. Authentication-Results is read by hand: the crate
//! that knows it, mail-auth, only writes it.

use crate::envelope::Envelope;
use crate::message::{Message, from_addresses};

/// When a From field may write into its owner's Sent (`sent.trust`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    #[default]
    Never,
    Authenticated,
    Header,
}

/// The author whose account may get a copy in Sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// In lower case.
    pub address: String,
    /// If this is a login name, it must have the same account as the address.
    pub if_same_account_as: Option<String>,
}

/// The author as far as message and envelope tell; `None` if From does not hold exactly one
/// address, or the address is not trusted.
pub fn author(
    message: &Message,
    envelope: &Envelope,
    trust: Trust,
    authserv_id: &str,
) -> Option<Author> {
    if trust == Trust::Never {
        return None;
    }
    let addresses = from_addresses(message);
    let [address] = addresses.as_slice() else { return None };
    let address = address.clone();
    let (_, domain) = address.rsplit_once('@')?;
    if trust == Trust::Header || dmarc_passed(message, authserv_id, domain) {
        return Some(Author { address, if_same_account_as: None });
    }
    let login = Some(envelope.sasl_username.clone()).filter(|login| !login.is_empty())?;
    Some(Author { address, if_same_account_as: Some(login) })
}

/// Whether the top-most Authentication-Results of `authserv_id` with a DMARC result says pass for
/// `domain`. The border server must remove such fields from incoming mail (RFC 8601 section 5).
fn dmarc_passed(message: &Message, authserv_id: &str, domain: &str) -> bool {
    if authserv_id.is_empty() {
        return false;
    }
    message
        .fields()
        .filter(|field| field.is(b"authentication-results"))
        .find_map(|field| {
            let value = String::from_utf8_lossy(&field.unfolded()).into_owned();
            dmarc_result(&value, authserv_id)
        })
        .is_some_and(|(result, from)| result == "pass" && from.eq_ignore_ascii_case(domain))
}

/// The DMARC result and its header.from, if `authserv_id` wrote the field and it has one.
fn dmarc_result(value: &str, authserv_id: &str) -> Option<(String, String)> {
    let value = without_comments(value);
    let mut clauses = value.split(';');
    let id = clauses.next()?.split_whitespace().next()?;
    if !id.trim_matches('"').eq_ignore_ascii_case(authserv_id) {
        return None;
    }
    clauses.find_map(|clause| {
        let clause = clause.replace(" =", "=").replace("= ", "=");
        let mut words = clause.split_whitespace();
        let (method, result) = words.next()?.split_once('=')?;
        let method = method.split('/').next().unwrap_or(method);
        if !method.eq_ignore_ascii_case("dmarc") {
            return None;
        }
        let from = words
            .filter_map(|word| word.split_once('='))
            .find(|(name, _)| name.eq_ignore_ascii_case("header.from"));
        let from = from.map_or("", |(_, value)| value.trim_matches('"'));
        // Some servers write the whole address.
        let from = from.rsplit_once('@').map_or(from, |(_, domain)| domain);
        Some((result.to_ascii_lowercase(), from.to_owned()))
    })
}

/// `value` with comments (RFC 5322 section 3.2.2, nested) as blanks, and separators in quoted text
/// as underscores.
fn without_comments(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let (mut depth, mut quoted, mut escaped) = (0u32, false, false);
    for c in value.chars() {
        if escaped {
            escaped = false;
            continue;
        }
        match c {
            '\\' if quoted || depth > 0 => escaped = true,
            '"' if depth == 0 => {
                quoted = !quoted;
                out.push(c);
            }
            '(' if !quoted => depth += 1,
            ')' if !quoted && depth > 0 => {
                depth -= 1;
                out.push(' ');
            }
            _ if depth > 0 => {}
            ';' | '=' | ' ' if quoted => out.push('_'),
            _ => out.push(c),
        }
    }
    out
}
