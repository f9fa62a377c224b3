//! The path of MAIL or RCPT (RFC 5321 section 4.1.2), read as generously as can be without a doubt
//! about what is meant: whatever address Postfix has must come through, as it does by pipe(8).
//! lmtp(8) writes its own form of an address between angle brackets, the local part in quotes where
//! RFC 821 wants it so (quote_821_local.c in Postfix's sources; not at all with
//! lmtp_quote_rfc821_envelope = no); what is read back is that form, which pipe(8) hands over.

/// Reads the path at the start of `text`: the address as it is meant, without quotes, brackets and
/// source route (empty for `<>`), and what follows the path.
pub fn read(text: &str) -> Option<(String, &str)> {
    let inside = text.trim_ascii_start().strip_prefix('<')?;
    let (mut address, mut is_quoted) = (String::new(), false);
    // Whether the last @ so far, which is where the domain begins, stood within quotes.
    let mut last_at_is_quoted = false;
    let mut chars = inside.char_indices();
    while let Some((at, c)) = chars.next() {
        let c = match c {
            '"' => {
                is_quoted = !is_quoted;
                continue;
            }
            '\\' if is_quoted => chars.next()?.1,
            // Any other bracket is a part of an address that should have been quoted.
            '>' if !is_quoted
                && matches!(inside.as_bytes().get(at + 1), None | Some(b' ' | b'\t')) =>
            {
                let is_whole = !last_at_is_quoted;
                return is_whole.then(|| (without_route(inside, address), &inside[at + 1..]));
            }
            c => c,
        };
        match c {
            '\0' => return None,
            '@' => last_at_is_quoted = is_quoted,
            _ => {}
        }
        address.push(c);
    }
    None
}

/// Without a source route (`@relay,@other:`), which is to be ignored (RFC 5321 appendix C).
fn without_route(inside: &str, address: String) -> String {
    match address.split_once(':') {
        Some((route, rest))
            if inside.starts_with('@') && route.split(',').all(|hop| hop.starts_with('@')) =>
        {
            rest.to_owned()
        }
        _ => address,
    }
}

/// `address` as a path (RFC 5321 section 4.1.2): the local part is quoted where it has to be, as
/// pipe(8) gives it unquoted.
pub fn written(address: &str) -> Option<String> {
    if address.eq_ignore_ascii_case("postmaster") {
        return Some(format!("<{address}>"));
    }
    let (local, domain) = address.rsplit_once('@')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || !c.is_ascii();
    let literal = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
    let is_literal = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let says_domain =
        is_literal.map_or_else(|| domain.chars().all(plain), |inside| inside.chars().all(literal));
    if domain.is_empty() || local.is_empty() || !says_domain {
        return None;
    }
    let atom =
        |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    if local.split('.').all(|word| !word.is_empty() && word.chars().all(atom)) {
        return Some(format!("<{address}>"));
    }
    let quoted = local.replace('\\', "\\\\").replace('"', "\\\"");
    Some(format!("<\"{quoted}\"@{domain}>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_the_address_that_was_meant() {
        let cases = [
            ("<a@b.org>", Some("a@b.org")),
            (" <a@b.org>", Some("a@b.org")),
            ("<>", Some("")),
            ("<\"\">", Some("")),
            ("<postmaster>", Some("postmaster")),
            ("<\"a b\"@c.org>", Some("a b@c.org")),
            ("<\"a..b\"@c.org>", Some("a..b@c.org")),
            ("<\"a\\\"b\\\\\"@c.org>", Some("a\"b\\@c.org")),
            ("<\"a@b\"@c.org>", Some("a@b@c.org")),
            ("<\"a>b<\"@c.org>", Some("a>b<@c.org")),
            ("<\"a> b\"@c.org>", Some("a> b@c.org")),
            ("<\"a\"@c.org>", Some("a@c.org")),
            ("<\"a\".b@c.org>", Some("a.b@c.org")),
            ("<\"a\u{1}\r\"@c.org>", Some("a\u{1}\r@c.org")),
            ("<\"@relay:a\"@b.org>", Some("@relay:a@b.org")),
            // As lmtp(8) says them that quotes nothing.
            ("<a..b@c.org>", Some("a..b@c.org")),
            ("<a b@c.org>", Some("a b@c.org")),
            ("<a>b@c.org>", Some("a>b@c.org")),
            ("<a@b@c.org>", Some("a@b@c.org")),
            ("<a\\b@c.org>", Some("a\\b@c.org")),
            // Not complete, but an address all the same.
            ("<a>", Some("a")),
            ("<@b.org>", Some("@b.org")),
            ("<a@>", Some("a@")),
            ("<root@[192.0.2.1]>", Some("root@[192.0.2.1]")),
            ("<root@[IPv6:2001:db8::1]>", Some("root@[IPv6:2001:db8::1]")),
            ("<root@[a b]>", Some("root@[a b]")),
            ("<@x,@y:a@b.org>", Some("a@b.org")),
            ("<@x,@y:>", Some("")),
            ("<a:b@c.org>", Some("a:b@c.org")),
            // The domain would be a part of the local part.
            ("<\"a@b.org\">", None),
            ("<\"a\"@b.org", None),
            ("<\"a@b.org>", None),
            ("<\"a\\", None),
            ("<a@b.org>SIZE=1", None),
            ("<a\0@b.org>", None),
            ("<\"a\\\0\"@b.org>", None),
            ("a@b.org", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let read = read(text);
            assert_eq!(read.as_ref().map(|(address, _)| address.as_str()), expected, "{text}");
            assert!(read.is_none_or(|(_, rest)| rest.is_empty()), "{text}");
        }
        assert_eq!(read("<\"> \"@b.org> SIZE=1"), Some(("> @b.org".to_owned(), " SIZE=1")));
        let long = format!("{}@b.org", "x".repeat(3000));
        assert_eq!(read(&format!("<{long}>")), Some((long, "")));
    }

    #[test]
    fn an_address_is_said_so_that_it_stays_one_or_not_at_all() {
        let cases = [
            ("scuba+x@mail.axial.net", Some("<scuba+x@mail.axial.net>")),
            ("o'brien@b.org", Some("<o'brien@b.org>")),
            ("a..b@c.org", Some("<\"a..b\"@c.org>")),
            ("a\"b\\@c.org", Some("<\"a\\\"b\\\\\"@c.org>")),
            ("@relay:a@b.org", Some("<\"@relay:a\"@b.org>")),
            ("root@[IPv6:2001:db8::1]", Some("<root@[IPv6:2001:db8::1]>")),
            ("Postmaster", Some("<Postmaster>")),
            ("doug", None),
            ("@b.org", None),
            ("a@", None),
            ("a@b.org> SIZE=1", None),
            ("<a@b.org>", None),
        ];
        for (address, expected) in cases {
            assert_eq!(written(address).as_deref(), expected, "{address}");
        }
    }
}
