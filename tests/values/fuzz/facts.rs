//! What the ledger records of a message, by another's parser: no panic of its reaches us, and all
//! of it is bounded text.

use onedrop::message::{DedupBy, Facts, Message};

use super::harness::Target;
use super::message::{DICTIONARY, seeds};

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

pub fn check(input: &[u8]) {
    let message = Message::new(input.to_vec(), DedupBy::Content);
    let facts = message.facts();
    assert_eq!(message.facts(), facts);
    let Facts { subject, in_reply_to, references, addresses, parts, date: _ } = facts;
    assert!(addresses.len() <= 1000 && parts.len() <= 200);
    let names = addresses.iter().flat_map(|fact| [fact.name.as_ref(), fact.address.as_ref()]);
    let parts_text = parts
        .iter()
        .flat_map(|part| [Some(&part.path), Some(&part.content_type), part.name.as_ref()]);
    let texts = [subject.as_ref(), in_reply_to.as_ref(), references.as_ref()];
    for text in texts.into_iter().chain(names).chain(parts_text).flatten() {
        assert!(
            text.len() <= 2000 && text == text.trim() && !text.contains(char::is_control),
            "{text:?}"
        );
    }
    for part in &parts {
        assert!(part.size_bytes <= input.len() as u64);
        assert!(
            part.path
                .split('.')
                .all(|number| number.parse::<usize>().is_ok_and(|number| number > 0))
        );
    }
}
