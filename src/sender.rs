//! Whose Sent mailbox a message belongs in. A From field is text that anyone can write, so with
//! `sent.trust = "authenticated"` it counts only if our own Authentication-Results (RFC 8601) says
//! dmarc=pass for its domain, or if Postfix names an authenticated SASL user who owns the same
//! account. Values only; whose account an address is, the caller resolves.

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

/// Whose Sent a message may belong in: the account of `address`, under one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// In lower case.
    pub address: String,
    /// With a login name: only if it leads to the same account as the address.
    pub if_same_account_as: Option<String>,
}

/// The author whose Sent gets a copy, as far as the message and its envelope tell; none when From
/// has not exactly one address, or nothing vouches for it.
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

/// Whether the top-most Authentication-Results of `authserv_id` that speaks of DMARC says pass for
/// `domain`. The border server must remove such fields from mail that comes in with them (RFC 8601
/// section 5).
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

/// The DMARC result and its header.from, if the field is `authserv_id`'s and has one.
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
        // Some write the whole address.
        let from = from.rsplit_once('@').map_or(from, |(_, domain)| domain);
        Some((result.to_ascii_lowercase(), from.to_owned()))
    })
}

/// Comments (RFC 5322 section 3.2.2, nested) as a blank; what is quoted stays, with its separators
/// made harmless.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::DedupBy;

    const OURS: &str = "mail.axial.net";

    fn find(header: &str, sasl: &str, trust: Trust) -> Option<Author> {
        let message = Message::new(format!("{header}\n\nbody\n").into_bytes(), DedupBy::Content);
        let envelope = Envelope { sasl_username: sasl.to_owned(), ..Envelope::default() };
        author(&message, &envelope, trust, OURS)
    }

    fn trusts(results: &str) -> bool {
        find(&format!("{results}\nFrom: Lisa <Lisa@Gmail.com>"), "", Trust::Authenticated).is_some()
    }

    #[test]
    fn only_our_own_topmost_dmarc_pass_for_the_from_domain_counts() {
        let pass =
            "Authentication-Results: mail.axial.net; dmarc=pass (p=none) header.from=gmail.com";
        assert!(trusts(pass));
        assert!(trusts(&format!(
            "Authentication-Results: mail.axial.net; dkim=pass header.d=gmail.com\n{pass}"
        )));
        assert!(trusts(
            "Authentication-Results: MAIL.axial.net 1;\n\tspf=pass smtp.mailfrom=x@y; dmarc/1 = pass\n header.from=gmail.com"
        ));
        assert!(!trusts(""));
        assert!(!trusts("Authentication-Results: evil.example; dmarc=pass header.from=gmail.com"));
        assert!(!trusts(&format!(
            "Authentication-Results: mail.axial.net; dmarc=fail header.from=gmail.com\n{pass}"
        )));
        assert!(!trusts(
            "Authentication-Results: mail.axial.net; dmarc=pass header.from=evil.example"
        ));
        assert!(!trusts("Authentication-Results: mail.axial.net; dmarc=pass"));
        assert!(!trusts(
            "Authentication-Results: mail.axial.net; spf=fail (; dmarc=pass header.from=gmail.com)"
        ));
        assert!(!trusts(
            "Authentication-Results: mail.axial.net; spf=fail reason=\"; dmarc=pass header.from=gmail.com\""
        ));
        assert!(!trusts(
            "Authentication-Results: mail.axial.net.evil.example; dmarc=pass header.from=gmail.com"
        ));
        assert!(!trusts(
            "X: y\n\nAuthentication-Results: mail.axial.net; dmarc=pass header.from=gmail.com"
        ));
    }

    #[test]
    fn a_login_vouches_for_its_own_account_only() {
        let author = find("From: doug@mail.axial.net", "doug", Trust::Authenticated);
        let expected = Author {
            address: "doug@mail.axial.net".to_owned(),
            if_same_account_as: Some("doug".to_owned()),
        };
        assert_eq!(author, Some(expected));
    }

    #[test]
    fn two_authors_are_none() {
        for header in [
            "From: a@x, b@x",
            "From: a@x\nFrom: b@x",
            "Subject: none",
            "From: nobody",
            "From: undisclosed:;",
        ] {
            assert_eq!(find(header, "a", Trust::Header), None, "{header}");
        }
        assert!(find("From: a@x", "", Trust::Header).is_some());
        assert!(find("From: =?utf-8?q?A?=\n\t <a.b+c@x>", "", Trust::Header).is_some());
        for odd in [
            "From: <a@gma\til.com>",
            "From: <@x>",
            "From: <a@>",
            "From: a b@gma il.com",
            "From: <=?utf-8?q?a=40x?=>",
        ] {
            assert_eq!(find(odd, "", Trust::Header), None, "{odd}");
        }
        assert_eq!(find("From: a@x", "a", Trust::Never), None);
    }
}
