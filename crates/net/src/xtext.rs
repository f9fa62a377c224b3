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
