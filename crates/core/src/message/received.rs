//! The top-most Received: who wrote it, and when. A message that Postfix hands over has Postfix'
//! own there: whatever its sender wrote stands below it. The field that this program prepends is
//! none of these, as it is no part of what was handed over.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Message;
use super::fields::Field;
use super::identity::received_at;

/// When the server took the message that wrote its top-most Received, if its name (`by`) `is_own`.
/// `None` too where the field is missing, or has no time that can be read.
pub fn taken_at(message: &Message, is_own: impl Fn(&str) -> bool) -> Option<SystemTime> {
    let field = message.fields().find(|field| field.is(b"received"))?;
    by(&field).filter(|name| is_own(name))?;
    let secs = u64::try_from(received_at(&field)?).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(secs))
}

/// The name after `by`, in lower case. Before it stands nothing but `from` with a name, which may
/// be any word of its client's, and comments.
fn by(received: &Field<'_>) -> Option<String> {
    let value = received.unfolded().to_ascii_lowercase();
    let mut words = words(&value).into_iter();
    let mut first = words.next()?;
    if first == b"from" {
        words.next()?;
        first = words.next()?;
    }
    let name = words.next().filter(|_| first == b"by")?;
    std::str::from_utf8(name).ok().map(str::to_owned)
}

/// The words up to the semicolon, without comments (RFC 5322 section 3.2.2: they nest, a backslash
/// quotes).
fn words(value: &[u8]) -> Vec<&[u8]> {
    let (mut words, mut depth, mut start) = (Vec::new(), 0usize, None);
    let mut at = 0;
    while let Some(byte) = value.get(at) {
        let is_word = depth == 0 && !matches!(byte, b' ' | b'\t' | b'(' | b';');
        if let (false, Some(begun)) = (is_word, start) {
            words.push(&value[begun..at]);
        }
        start = is_word.then(|| start.unwrap_or(at));
        match byte {
            b'\\' if depth > 0 => at += 1,
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b';' if depth == 0 => break,
            _ => {}
        }
        at += 1;
    }
    words
}
