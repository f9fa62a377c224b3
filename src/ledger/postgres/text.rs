//! Text on its way into the ledger or into an error: command-line arguments, envelope addresses and
//! servers' messages hold what they like, a text column takes no NUL, an index no long value and a
//! log line no line end.

use std::borrow::Cow;

/// The longest text in a column with an index, in bytes; Postgres takes 2704, `lower()` may
/// lengthen a text.
pub(super) const INDEXED: usize = 1000;
/// The longest text in any other column, in bytes.
pub(super) const LONGEST: usize = 4000;

/// `value` without control characters, at most `longest` bytes.
pub(super) fn clean(value: &str, longest: usize) -> Cow<'_, str> {
    let cut = &value[..value.floor_char_boundary(longest)];
    if cut.chars().any(char::is_control) {
        return cut
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect::<String>()
            .into();
    }
    cut.into()
}

/// A raw Message-ID for people.
pub(super) fn of_bytes(value: &[u8]) -> String {
    clean(&String::from_utf8_lossy(value), INDEXED).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_bounded_at_a_character_and_has_no_control_characters() {
        assert_eq!(clean("a\0b\r\nc", 100), "a b  c");
        assert_eq!(clean("aä", 2), "a");
        assert!(matches!(clean("plain", 5), Cow::Borrowed("plain")));
        assert_eq!(of_bytes(b"<a\xff\0@b>"), "<a\u{fffd} @b>");
    }
}
