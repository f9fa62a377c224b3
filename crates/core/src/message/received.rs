//! The Received that our own Postfix wrote, and when. A message that Postfix hands over has it at
//! the top, and whatever its sender wrote stands below it. A site may remove its own, though
//! (header_checks), and then the sender's is the top-most, with the name and the time that the
//! sender likes. So where Postfix says the queue id, the field must have it: no sender knows it
//! beforehand. The field that this program prepends is none of these, as it is no part of what was
//! handed over.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Message;
use super::fields::Field;
use super::identity::received_at;

/// When the server took the message that wrote its top-most Received with that queue id, if its
/// name (`by`) `is_own`. Below it may be the server's of whom a content filter got the message: a
/// queue id that a filter passes on (XFORWARD) is of the first of ours. Without a queue id the
/// top-most Received counts. `None` too where the field is missing, or has no time that can be
/// read.
pub fn taken_at(
    message: &Message,
    queue_id: &str,
    is_own: impl Fn(&str) -> bool,
) -> Option<SystemTime> {
    let mut received = message.fields().filter(|field| field.is(b"received"));
    let has_id = |field: &Field<'_>| Clauses::of(field).is_some_and(|one| one.has_id(queue_id));
    let field = if queue_id.is_empty() { received.next() } else { received.find(has_id) }?;
    Clauses::of(&field).filter(|clauses| is_own(&clauses.by))?;
    let secs = u64::try_from(received_at(&field)?).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(secs))
}

/// What a Received says before its date.
struct Clauses {
    /// The name after `by`, in lower case.
    by: String,
    /// The words after that name.
    others: Vec<Vec<u8>>,
}

impl Clauses {
    /// Before `by` stands nothing but `from` with a name, which may be any word of its client's,
    /// and comments.
    fn of(received: &Field<'_>) -> Option<Clauses> {
        let value = received.unfolded();
        let mut words = words(&value).into_iter();
        let mut first = words.next()?;
        if first.eq_ignore_ascii_case(b"from") {
            words.next()?;
            first = words.next()?;
        }
        let name = words.next().filter(|_| first.eq_ignore_ascii_case(b"by"))?;
        let by = std::str::from_utf8(name).ok()?.to_lowercase();
        Some(Clauses { by, others: words.map(<[u8]>::to_vec).collect() })
    }

    fn has_id(&self, queue_id: &str) -> bool {
        let named = |two: &[Vec<u8>]| {
            two[0].eq_ignore_ascii_case(b"id") && two[1].as_slice() == queue_id.as_bytes()
        };
        self.others.windows(2).any(named)
    }
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
