//! Foreign text made fit to be shown or stored (`src/text.rs`).

use std::borrow::Cow;

use onedrop::text::{ascii, escaped, of_bytes, one_line, shortened, within, without_controls};

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
