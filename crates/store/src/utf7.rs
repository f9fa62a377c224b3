//! Mailbox names in modified UTF-7 (RFC 3501 section 5.1.3), as IMAP commands carry them and
//! Maildir++ folders are called on disk.

use base64::Engine;
use base64::alphabet::IMAP_MUTF7;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};

const MAILBOX: GeneralPurpose = GeneralPurpose::new(&IMAP_MUTF7, NO_PAD);

/// `name` in modified UTF-7: printable ASCII but for `&` stands for itself.
pub(super) fn modified_utf7(name: &str) -> String {
    let is_plain = |c: char| matches!(c, ' '..='~');
    let mut encoded = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_plain(c) != is_plain(first)).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        rest = after;
        if is_plain(first) {
            encoded.push_str(&run.replace('&', "&-"));
        } else {
            let wide: Vec<u8> = run.encode_utf16().flat_map(u16::to_be_bytes).collect();
            encoded.push('&');
            MAILBOX.encode_string(wide, &mut encoded);
            encoded.push('-');
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_as_in_the_rfc() {
        assert_eq!(modified_utf7(""), "");
        assert_eq!(modified_utf7("Sent Items"), "Sent Items");
        assert_eq!(modified_utf7("A&B"), "A&-B");
        assert_eq!(modified_utf7("é&ü"), "&AOk-&-&APw-");
        assert_eq!(modified_utf7("~peter/mail/台北/日本語"), "~peter/mail/&U,BTFw-/&ZeVnLIqe-");
    }
}
