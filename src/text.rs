//! Foreign text made fit to be shown or stored. Messages, envelopes, files, command lines and peers
//! hold what they like; a reply, an error, a log record, a terminal or a database column does not
//! take everything.
//!
//! Promise: what comes out is one line. Each control character (Unicode's Cc: NUL, line ends, tab,
//! escape, DEL, U+0080 to U+009F) is one space, bytes that are not UTF-8 are U+FFFD, and a text
//! with a limit is cut before the first character that does not fit. Everything else stays. Only
//! [`escaped`] shows which control character it was, and [`without_controls`] leaves them out. By
//! hand: no crate does this and nothing else.

use std::any::Any;
use std::borrow::Cow;

/// `text` on one line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => text.replace(char::is_control, " ").into(),
        false => text.into(),
    }
}

/// `text` on one line, at most `longest` bytes.
pub fn within(text: &str, longest: usize) -> Cow<'_, str> {
    one_line(&text[..text.floor_char_boundary(longest)])
}

/// `text` on one line, at most `longest` bytes; dots at its end say that it was cut.
pub fn shortened(text: &str, longest: usize) -> Cow<'_, str> {
    const CUT: &str = "...";
    match text.len() <= longest {
        true => one_line(text),
        false => (within(text, longest.saturating_sub(CUT.len())).into_owned() + CUT).into(),
    }
}

/// `text` on one line with an escape in place of each control character (`\n`, `\u{1b}`): what
/// somebody wrote wrongly and has to find.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped
}

/// `text` without control characters: an address in a header field, of which a space would be a
/// part.
pub fn without_controls(text: &str) -> String {
    text.replace(char::is_control, "")
}

/// `bytes`, which should be UTF-8, on one line, at most `longest` bytes.
pub fn of_bytes(bytes: &[u8], longest: usize) -> String {
    within(&String::from_utf8_lossy(bytes), longest).into_owned()
}

/// What a panic said.
pub fn of_panic(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref().cloned()).unwrap_or_else(|| "panic".to_owned())
}

/// `text` on one line in printable ASCII (space to `~`): every other character is `?`, blanks of
/// other scripts are spaces.
pub fn ascii(text: &str) -> String {
    let printable = |c: char| match c {
        ' '..='~' => c,
        c if c.is_control() || c.is_whitespace() => ' ',
        _ => '?',
    };
    text.chars().map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_character_is_a_space_and_all_else_stays() {
        for c in ('\0'..='\u{2fff}').chain(['\u{FFFD}', '😀']) {
            let expected = if c.is_control() { ' ' } else { c };
            assert_eq!(one_line(&format!("a{c}b")), format!("a{expected}b"), "{c:?}");
        }
        assert_eq!(one_line("a\r\n b\x1b[1m\u{9b}c\u{2028}"), "a   b [1m c\u{2028}");
        assert!(matches!(one_line("plain é"), Cow::Borrowed("plain é")));
    }

    #[test]
    fn a_limit_is_in_bytes_and_cuts_no_character() {
        for (text, longest, expected) in [
            ("aä", 3, "aä"),
            ("aä", 2, "a"),
            ("ä", 1, ""),
            ("a\nb\n", 3, "a b"),
            ("", 0, ""),
            ("abc", 0, ""),
        ] {
            assert_eq!(within(text, longest), expected, "{text:?} in {longest}");
        }
        for (text, longest, expected) in [
            ("abcdef", 6, "abcdef"),
            ("abc\ndefg", 7, "abc ..."),
            ("ääää", 7, "ää..."),
            ("abc", 2, "..."),
        ] {
            assert_eq!(shortened(text, longest), expected, "{text:?} in {longest}");
        }
    }

    #[test]
    fn a_control_character_can_be_named_or_left_out() {
        assert_eq!(without_controls("a\r\nb \x1b\u{9b}c\x7f"), "ab c");
        assert_eq!(escaped("a\nb\x1b\u{9b}\\é\""), "a\\nb\\u{1b}\\u{9b}\\é\"");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such() {
        assert_eq!(of_bytes(b"<a\xff\0@b\xc3>", 100), "<a\u{fffd} @b\u{fffd}>");
        assert_eq!(of_bytes(b"a\xff", 3), "a");
    }

    #[test]
    fn ascii_is_printable() {
        assert_eq!(ascii("a\r\n\0\x1b\u{9b}\x7fé\u{2028}\u{a0}~😀"), "a      ?  ~?");
    }
}
