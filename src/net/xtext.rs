//! xtext (RFC 3461 section 4): text in printable ASCII without blanks, every other byte as `+` and
//! two hexadecimal digits. By hand: smtp-proto reads it within a whole command only, one character
//! for each byte, and writes none.

/// `value` as xtext.
pub fn encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'+' && byte != b'=' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("+{byte:02X}")),
        }
    }
    encoded
}

/// What the xtext `value` says; `None` where it is no xtext, or no UTF-8 (RFC 6533 section 3).
/// Characters that should have been encoded stand for themselves.
pub fn decode(value: &str) -> Option<String> {
    let mut parts = value.split('+');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_printable_ascii_is_hexadecimal() {
        for (plain, encoded) in [
            ("", ""),
            ("doug!~", "doug!~"),
            ("a+b=c", "a+2Bb+3Dc"),
            ("do ug\r\n\0\x7f", "do+20ug+0D+0A+00+7F"),
            ("léa", "l+C3+A9a"),
        ] {
            assert_eq!(encode(plain), encoded);
            assert_eq!(decode(encoded).as_deref(), Some(plain));
        }
        assert_eq!(decode("a=b+2b c").as_deref(), Some("a=b+ c"));
    }

    #[test]
    fn what_is_no_xtext_is_refused() {
        for wrong in ["+", "1+", "1+zz", "1+2", "+2é", "+é", "+ff", "a+C3", "++41", "+-1", "++2B"]
        {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
