//! Foreign text as a word of a command line that a person pastes into a shell.

use super::without_controls;

/// `text` as one word, quoted where it must be; control characters, which a terminal would take for
/// keys, are left out.
pub fn word(text: &str) -> String {
    let text = without_controls(text);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:/,+".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The same after a command's options: what begins with a dash is none.
pub fn operand(text: &str) -> String {
    let word = word(text);
    match word.trim_start_matches('\'').starts_with('-') {
        true => format!("-- {word}"),
        false => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pasted_is_one_word_and_no_option() {
        for (text, pasted) in [
            ("mx1.example.org", "mx1.example.org"),
            ("<a$b@x>", "'<a$b@x>'"),
            ("it's", "'it'\\''s'"),
            ("a\n;rm\u{1b}[201~ x", "'a;rm[201~ x'"),
            ("-oProxyCommand=x", "-- '-oProxyCommand=x'"),
            ("\u{1}-v", "-- -v"),
            ("", "''"),
        ] {
            assert_eq!(operand(text), pasted);
        }
    }
}
