//! What the replies of an LMTP server mean for the copy (RFC 2033, RFC 5321 section 4.2, RFC 3463).
//!
//! Before the final dot nothing can have been stored, whatever the server says. After it 250 is
//! final, and so are the permanent replies that name a reason for which nothing is stored: the
//! mailbox is full or not there, the message is too big, cannot be stored, or is not wanted. All
//! others are a doubt: a server that has filed a message and then had trouble says 451.

use onedrop_core::outcome::Status;
use onedrop_core::store::StoreError;
use onedrop_core::text;
use onedrop_net::lmtp::reply::Reply;

/// Bytes of a server's words in an error or a receipt.
const LONGEST: usize = 200;

/// A variant of [`StoreError`].
type Meaning = fn(String) -> StoreError;

/// What a reply before the final dot means that is not the expected one. Certainly nothing was
/// stored.
pub fn before_the_dot(reply: &Reply) -> StoreError {
    let (status, said) = (status(reply), said(reply));
    let meaning: Meaning = match (reply.code / 100, status.as_str()) {
        // Dovecot's lmtp_user_concurrency_limit has no status of its own (lmtp-local.c).
        (4, _) if said.to_ascii_lowercase().contains("too many concurrent") => {
            StoreError::Contended
        }
        (4 | 5, "4.2.2" | "5.2.2") => StoreError::OverQuota,
        (4 | 5, "4.2.3" | "5.2.3" | "4.3.4" | "5.3.4") => StoreError::TooBig,
        (5, "5.1.1" | "5.1.6") => StoreError::NoAccount,
        _ => StoreError::NotStored,
    };
    meaning(said)
}

/// What the reply after the final dot means if it is not 250.
pub fn after_the_dot(reply: &Reply) -> StoreError {
    let (status, said) = (status(reply), said(reply));
    let meaning: Meaning = match (reply.code, status.as_str()) {
        (552, "5.2.2") => StoreError::OverQuota,
        (552, "5.2.3" | "5.3.4") => StoreError::TooBig,
        (550, "5.1.1") => StoreError::NoAccount,
        // A filter of the owner's (RFC 5429 section 2.1.1).
        (550, "5.7.1") => StoreError::Rejected,
        // About the message's content (RFC 3463 section 3.7).
        (550 | 554, "5.6.0" | "5.6.1" | "5.6.3") => StoreError::NotStored,
        _ => StoreError::InDoubt,
    };
    meaning(said)
}

/// Whether a reply after the final dot is about the message's content: nothing is stored, and
/// nothing will ever be.
pub fn is_about_the_content(reply: &Reply) -> bool {
    matches!((reply.code, status(reply).as_str()), (550 | 554, "5.6.0" | "5.6.1" | "5.6.3"))
}

/// What a 250 after the final dot calls the delivery: Dovecot and Cyrus say `2.x.y <login> ID
/// Saved`. Any other text may be the same each time: all of it, and the try by its epoch, for two
/// tries leave two copies.
pub fn name_of(reply: &Reply, epoch: i64) -> String {
    let line = reply.lines.first().map(String::as_str).unwrap_or_default();
    let text = line.split_once(' ').filter(|(first, _)| Status::parse(first).is_some());
    let text = text.map_or(line, |(_, text)| text).trim();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match words.as_slice() {
        [recipient, id, "Saved"] if recipient.starts_with('<') => named(id),
        _ => named(&format!("try {epoch}: {text}")),
    }
}

fn named(text: &str) -> String {
    clean(&text::ascii(text))
}

/// The reply as errors show it.
pub fn said(reply: &Reply) -> String {
    clean(&format!("{} {}", reply.code, reply.lines.join(" ")))
}

fn clean(said: &str) -> String {
    text::shortened(said, LONGEST).into_owned()
}

fn status(reply: &Reply) -> String {
    let last = reply.lines.last().map(String::as_str).unwrap_or_default();
    let first = last.split_ascii_whitespace().next().unwrap_or_default();
    Status::parse(first).map(|status| status.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str, epoch: i64) -> String {
        name_of(&Reply { code: 250, lines: vec![text.to_owned()] }, epoch)
    }

    #[test]
    fn two_tries_at_a_server_that_names_nothing_have_two_names() {
        assert_eq!(named("2.0.0 <doug> 4Xyz Saved", 1), "4Xyz");
        assert_eq!(named("2.0.0 <doug> 4Xyz Saved", 2), "4Xyz");
        for text in ["", "2.1.5 Delivery OK", &"long ".repeat(100)] {
            assert_ne!(named(text, 1), named(text, 2), "{text}");
            assert_eq!(named(text, 2), named(text, 2));
        }
    }
}
