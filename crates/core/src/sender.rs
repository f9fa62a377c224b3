//! Decides whose Sent mailbox gets a copy of a message. Anyone can write a From field, so with
//! `sent.trust = "authenticated"` it counts only if our own Authentication-Results (RFC 8601) says
//! dmarc=pass for its domain, or if Postfix names an authenticated SASL user with the same account.
//! Values only: the caller looks the accounts up.

use crate::directory::is_same_domain;
use crate::envelope::Envelope;
use crate::message::{Message, from_addresses};

use results::Dmarc;

mod results;

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

/// The author according to message and envelope; `None` if From does not hold exactly one address,
/// or the address is not trusted.
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
    // Who sent it anew is in Resent-From (RFC 5322 section 3.6.6): From says nothing of that, and a
    // signature stays whole below the new fields.
    let is_resent = message.fields().any(|field| field.name_lower().starts_with(b"resent-"));
    let is_believed = trust == Trust::Header || dmarc_passed(message, authserv_id, domain);
    if is_believed && !is_resent {
        return Some(Author { address, if_same_account_as: None });
    }
    let login = Some(envelope.sasl_username.clone()).filter(|login| !login.is_empty())?;
    Some(Author { address, if_same_account_as: Some(login) })
}

/// Whether Authentication-Results of `authserv_id` say pass for `domain`, and none of them anything
/// else. The border server must remove such fields from incoming mail (RFC 8601 section 5).
fn dmarc_passed(message: &Message, authserv_id: &str, domain: &str) -> bool {
    if authserv_id.is_empty() {
        return false;
    }
    let fields = message.fields().filter(|field| field.is(b"authentication-results"));
    let said = fields
        .map(|field| results::dmarc(&String::from_utf8_lossy(&field.unfolded()), authserv_id))
        .filter(|said| *said != Dmarc::Silent)
        .reduce(results::agreed);
    matches!(said, Some(Dmarc::Pass { from }) if is_same_domain(&from, domain))
}
