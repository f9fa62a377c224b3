//! The one address in a field that a server prepends: `a@x`, `<a@x>`, `"Ann" <a@x> (at work)`, or a
//! name without a domain. By hand: mail-parser takes the first of a list, and puts `Ann Smith` into
//! an address. What is none, or more than one, has no account: else mail could lie in an account
//! named like the field's text, where no one reads it.

/// The address in `value`, without what people put round it.
pub fn one_address(value: &str) -> Option<&str> {
    let (mut quoted, mut escaped, mut depth) = (false, false, 0_u32);
    let (mut open, mut close) = (None, None);
    // Where the value has something outside of comments: before an angle bracket, and after.
    let (mut first, mut last, mut comments) = (None, 0, 0);
    for (at, c) in value.char_indices() {
        let is_escaped = std::mem::take(&mut escaped);
        match c {
            _ if is_escaped => {}
            '\\' => escaped = quoted || depth > 0,
            '"' if depth == 0 => quoted = !quoted,
            '(' if !quoted => {
                (depth, comments) = (depth + 1, comments + 1);
                continue;
            }
            ')' if !quoted => {
                depth = depth.checked_sub(1)?;
                continue;
            }
            '<' if !quoted && depth == 0 && open.replace(at + 1).is_some() => return None,
            '>' if !quoted && depth == 0 && (open.is_none() || close.replace(at).is_some()) => {
                return None;
            }
            // Several addresses, or a group.
            ',' | ';' if !quoted && depth == 0 => return None,
            _ => {}
        }
        if depth == 0 && !c.is_whitespace() {
            first = first.or(Some(at));
            last = at + c.len_utf8();
        }
    }
    if quoted || depth > 0 {
        return None;
    }
    let address = match (open, close) {
        // Only comments stand after it.
        (Some(open), Some(close)) if last == close + 1 => value.get(open..close)?,
        (None, None) => value.get(first?..last)?,
        _ => return None,
    };
    let address = address.trim();
    // A comment within would be a part of it.
    let is_one = comments == 0 || !address.contains(['(', ')']);
    (is_one && is_plain(address)).then_some(address)
}

/// Whether it has no blank, and one @ at most, outside of quotation marks.
fn is_plain(address: &str) -> bool {
    let (mut quoted, mut escaped, mut ats) = (false, false, 0);
    let blank = address.chars().any(|c| {
        let is_escaped = std::mem::take(&mut escaped);
        match c {
            _ if is_escaped => {}
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            '@' if !quoted => ats += 1,
            _ => {}
        }
        !quoted && c.is_whitespace()
    });
    !address.is_empty() && !blank && ats <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_found_whatever_stands_round_it() {
        for (value, address) in [
            ("scuba@x", "scuba@x"),
            ("scuba", "scuba"),
            (" <scuba@x> ", "scuba@x"),
            ("\"Scuba\" <scuba@x>", "scuba@x"),
            ("Scuba Diver <scuba@x>", "scuba@x"),
            ("\"Diver, <Scuba>\" < scuba@x >", "scuba@x"),
            ("<scuba@x> (it (was) here)", "scuba@x"),
            ("(for) scuba@x (here)", "scuba@x"),
            ("\"a b\"@x", "\"a b\"@x"),
            ("\"a@b\"@x", "\"a@b\"@x"),
            ("scuba@[IPv6:::1]", "scuba@[IPv6:::1]"),
            ("l\u{e9}a@x", "l\u{e9}a@x"),
        ] {
            assert_eq!(one_address(value), Some(address), "{value}");
        }
    }

    #[test]
    fn what_is_none_or_several_is_nobody() {
        for value in [
            "",
            " ",
            "<>",
            "(scuba@x)",
            "scuba@x, doug@x",
            "<scuba@x>, <doug@x>",
            "<scuba@x> <doug@x>",
            "divers: scuba@x;",
            "scuba@x doug@x",
            "mailing list scuba@x",
            "Scuba Diver",
            "scuba@x@y",
            "<scuba@x",
            "scuba@x>",
            "<scuba@x> doug",
            "scuba(here)@x",
            "\"scuba@x",
            "scuba@x (here",
            "scuba@x) (here",
        ] {
            assert_eq!(one_address(value), None, "{value}");
        }
    }
}
