//! Foreign text made fit to be shown or stored. Messages, envelopes, files, command lines and peers
//! hold what they like; a reply, an error, a log record, a terminal or a database column does not
//! take everything.
//!
//! Promise: what comes out is one line. Each control character (Unicode's Cc: NUL, line ends, tab,
//! escape, DEL, U+0080 to U+009F) is one space, bytes that are not UTF-8 are U+FFFD, and a text
//! with a limit is cut before the first character that does not fit. Everything else stays. That is
//! for what is stored or sent. What people read goes through [`shown`], which leaves nothing in it
//! that hides or turns round what stands beside it, and where words of ours follow, through
//! [`quoted`]. By hand: no crate does this and nothing else.

use std::any::Any;
use std::borrow::Cow;

pub mod shell;

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

/// `text` on one line, for people: blanks of all kinds that end or move a line are spaces, and each
/// other control character, and each that changes the direction of text or ends a line elsewhere
/// (U+202E, U+2028), is an escape such as `\u202e`, which JSON reads as that character.
pub fn shown(text: &str) -> Cow<'_, str> {
    match text.contains(is_blank) {
        true => with_escapes_but(&text.replace(is_blank, " "), &[]).into_owned().into(),
        false => with_escapes_but(text, &[]),
    }
}

/// Like [`shown`], of a text whose line ends and tabs stay.
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    with_escapes_but(text, &['\n', '\t'])
}

/// Like [`shown`], of a command's output: its own line ends, tabs and colours stay.
pub fn shown_output(text: &str) -> Cow<'_, str> {
    with_escapes_but(text, &['\n', '\t', '\u{1b}'])
}

/// Like [`shown`], and in quotation marks unless it is one word without any: no word beside it can
/// be taken for a part of it, and no part of it for a word beside it.
pub fn quoted(text: &str) -> Cow<'_, str> {
    let is_word = |text: &str| !text.contains(|c: char| c.is_whitespace() || "\"\\".contains(c));
    match shown(text) {
        shown if is_word(&shown) => shown,
        shown => format!("\"{}\"", shown.replace('\\', "\\\\").replace('"', "\\\"")).into(),
    }
}

/// A tab or the end of a line.
fn is_blank(c: char) -> bool {
    matches!(c, '\t'..='\r')
}

/// Whether it is no character that is seen, but one that changes how others are.
fn is_hidden(c: char) -> bool {
    let turns = |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}');
    c.is_control() || turns(c) || matches!(c, '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}')
}

fn with_escapes_but<'a>(text: &'a str, stays: &[char]) -> Cow<'a, str> {
    let must_go = |c| is_hidden(c) && !stays.contains(&c);
    if !text.contains(must_go) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match must_go(c) {
            true => escaped += &format!("\\u{:04x}", u32::from(c)),
            false => escaped.push(c),
        }
    }
    escaped.into()
}

/// `text` on one line with an escape in place of each control character (`\n`, `\u{1b}`): what an
/// administrator wrote wrongly and has to find.
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

/// What the system says of an error, without its number at the end.
pub fn without_number(text: &str) -> &str {
    text.split(" (os error").next().unwrap_or_default()
}

/// `line` within `width` columns: what does not fit goes on below `indent` columns. It is wrapped
/// at blanks; a word that is too wide for a line stands alone in one, to be copied as a whole.
/// Colours have no width.
pub fn fitted(line: &str, indent: usize, width: usize) -> String {
    let mut fitted = String::with_capacity(line.len());
    let mut used = 0;
    // Of words: those at the beginning are columns, whose blanks stay.
    let mut has_words = false;
    for word in line.split_inclusive(' ') {
        let word_columns = columns(word.trim_end_matches(' '));
        if word_columns > 0 && used + word_columns > width && has_words {
            fitted.truncate(fitted.trim_end_matches(' ').len());
            fitted.push('\n');
            fitted.extend(std::iter::repeat_n(' ', indent));
            used = indent;
        }
        fitted.push_str(word);
        used += columns(word);
        has_words = has_words || used > indent;
    }
    fitted
}

/// How many columns `text` has, without what sets colours in it (ECMA-48: an escape to its `m`).
pub fn columns(text: &str) -> usize {
    let mut is_color = false;
    text.chars()
        .filter(|c| {
            let was_color = is_color;
            is_color = *c == '\u{1b}' || is_color && *c != 'm';
            !is_color && !was_color
        })
        .count()
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
