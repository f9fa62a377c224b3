//! Foreign text made fit to be shown or stored (`crates/core/src/text.rs`).

use std::borrow::Cow;

use onedrop_core::text::{
    ascii, escaped, of_bytes, one_line, quoted, shortened, shown, shown_lines, shown_output,
    within, without_controls,
};

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

/// Unicode's characters that turn text round (Bidi_Control), and its line ends.
const TURNS: [char; 14] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}',
    '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}', '\u{2028}', '\u{2029}',
];

#[test]
fn what_hides_or_turns_round_other_text_is_shown_as_an_escape() {
    for c in ('\0'..='\u{2fff}').chain(['\u{FFFD}', '😀']) {
        let expected = match c {
            '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' => "a b".to_owned(),
            c if c.is_control() || TURNS.contains(&c) => format!("a\\u{:04x}b", u32::from(c)),
            c => format!("a{c}b"),
        };
        assert_eq!(shown(&format!("a{c}b")), expected, "{c:?}");
    }
    assert_eq!(shown("a\r\n b\x1b[1m\u{9b}c\u{202e}"), "a   b\\u001b[1m\\u009bc\\u202e");
    assert!(matches!(shown("plain é"), Cow::Borrowed("plain é")));
    let lines = "a\tb\n\x1b[1m\r\u{202e}\u{2028}c";
    assert_eq!(shown_lines(lines), "a\tb\n\\u001b[1m\\u000d\\u202e\\u2028c");
    assert_eq!(shown_output(lines), "a\tb\n\x1b[1m\\u000d\\u202e\\u2028c");
    // In JSON it is the same text.
    let json = serde_json::to_string(lines).expect("a text");
    assert_eq!(serde_json::from_str::<String>(&shown_output(&json)).expect("the same"), lines);
}

#[test]
fn a_value_cannot_be_taken_for_the_words_beside_it() {
    for (text, expected) in [
        ("", ""),
        ("<a=b@x>", "<a=b@x>"),
        ("léa@x", "léa@x"),
        ("<a@x> delivered 2.0.0", "\"<a@x> delivered 2.0.0\""),
        ("a\nb", "\"a b\""),
        ("a\u{a0}b\u{3000}c", "\"a\u{a0}b\u{3000}c\""),
        ("a\u{202e}b", "\"a\\\\u202eb\""),
        ("\"a b\"@x", "\"\\\"a b\\\"@x\""),
        ("a\\", "\"a\\\\\""),
    ] {
        assert_eq!(quoted(text), expected, "{text:?}");
    }
}
