//! Mailbox names in modified UTF-7 (RFC 3501 section 5.1.3), as IMAP commands carry them and
//! Maildir++ folders are called on disk; and the base64 that it shares with SASL.

/// The alphabet of RFC 4648 section 4.
pub(super) const BASE64: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// As base64, with a comma in the slash's place.
const BASE64_MAILBOX: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+,";

/// `name` in modified UTF-7: printable ASCII but for `&` stands for itself.
pub(super) fn modified_utf7(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    let mut wide: Vec<u8> = Vec::new();
    for c in name.chars() {
        if matches!(c, ' '..='~') {
            shift_out(&mut wide, &mut encoded);
            encoded.push(c);
            if c == '&' {
                encoded.push('-');
            }
        } else {
            wide.extend(c.encode_utf16(&mut [0; 2]).iter().flat_map(|unit| unit.to_be_bytes()));
        }
    }
    shift_out(&mut wide, &mut encoded);
    encoded
}

fn shift_out(wide: &mut Vec<u8>, encoded: &mut String) {
    if !wide.is_empty() {
        encoded.push('&');
        encoded.push_str(&encode(wide, BASE64_MAILBOX));
        encoded.push('-');
        wide.clear();
    }
}

pub(super) fn encode(bytes: &[u8], alphabet: &[u8; 64]) -> String {
    let mut encoded = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            encoded.push(char::from(alphabet[(bits >> (18 - 6 * digit) & 63) as usize]));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_as_in_the_rfc() {
        assert_eq!(modified_utf7("Sent Items"), "Sent Items");
        assert_eq!(modified_utf7("A&B"), "A&-B");
        assert_eq!(modified_utf7("~peter/mail/台北/日本語"), "~peter/mail/&U,BTFw-/&ZeVnLIqe-");
    }
}
