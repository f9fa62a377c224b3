//! Variants of a message: one identity, and yet not the same to what takes the copy. Where the
//! owner's filters run, fields that steer them count, and where NUL can be stored, NUL is not 0x80.
//! If they did not, whoever knows a message could send it first with `X-Spam-Flag: YES`, or with
//! NULs in it, and the real one would be "already there". A variant is a part of the name that the
//! ledger has for a copy, and so frozen like an identity; it never touches the message's.

use sha2::{Digest, Sha256};

use super::identity::digest_with_nul;
use super::{DedupBy, Message, split};
use crate::lock_key::hex;

/// Bytes of a hash that name a variant.
const BYTES: usize = 8;

/// How this message differs for filters that heed `fields` (names in lower case, between blanks):
/// empty, or `\\` and a number. What counts of a field is what filters decide by, without scores
/// and hosts ([`reduced`]); a field that says no counts as one that is missing.
pub fn filter_variant(message: &Message, fields: &str) -> String {
    variant_of(message.own_copy(), fields)
}

fn variant_of(bytes: &[u8], fields: &str) -> String {
    let mut said: Vec<Vec<u8>> = Vec::new();
    for field in super::fields(split(bytes).0) {
        let name = field.name_lower();
        if fields.split(' ').any(|one| one.as_bytes() == name)
            && let Some(value) = reduced(&name, &field.unfolded())
        {
            said.push([&name[..], b":", &value, b"\r\n"].concat());
        }
    }
    said.sort();
    said.dedup();
    match said.is_empty() {
        true => String::new(),
        false => named(b"onedrop/1/fields\0", &said.concat()),
    }
}

/// A [`filter_variant`] that is sought among copies of one content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SoughtVariant {
    fields: String,
    variant: String,
}

impl SoughtVariant {
    /// That of the copy with these bytes.
    pub fn of(bytes: &[u8], fields: &str) -> SoughtVariant {
        SoughtVariant::named(variant_of(bytes, fields), fields)
    }

    /// The one that has this name in the ledger.
    pub fn named(variant: impl Into<String>, fields: &str) -> SoughtVariant {
        SoughtVariant { fields: fields.to_owned(), variant: variant.into() }
    }

    /// Of what stands in a mailbox, without what was put before the message.
    pub fn is_that_of(&self, bytes: &[u8]) -> bool {
        variant_of(bytes, &self.fields) == self.variant
    }
}

/// How this message differs where NUL can be stored: empty, or `\\` and a number.
pub fn nul_variant(message: &Message) -> String {
    let digest = match message.dedup_by() {
        DedupBy::Content => digest_with_nul(message.own_copy()),
        DedupBy::MessageId => None,
    };
    digest.map_or_else(String::new, |digest| named(b"onedrop/1/nul\0", &digest))
}

fn named(domain: &[u8], bytes: &[u8]) -> String {
    let hash: [u8; 32] = Sha256::new().chain_update(domain).chain_update(bytes).finalize().into();
    format!("\\{}", hex(&hash[..BYTES]))
}

/// What stands between `<` and `>` (the name of a list); else all of it where an encoded word (RFC
/// 2047), which filters decode, may say anything; else `yes` where that stands anywhere but in the
/// name of a Bayes test; else the first word of a field in X-, and all of another, its blanks as
/// one each. In lower case; `None`: it says no, or nothing.
fn reduced(name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let value = value.to_ascii_lowercase();
    let bracket = |one: u8| move |byte: &u8| *byte == one;
    let open = value.iter().rposition(bracket(b'<'));
    if let Some(open) = open
        && let Some(close) = value[open..].iter().position(bracket(b'>'))
    {
        return Some(value[open + 1..open + close].trim_ascii().to_vec());
    }
    if memchr::memmem::find(&value, b"=?").is_some() {
        return Some(value);
    }
    if says_yes(name, &value) {
        return Some(b"yes".to_vec());
    }
    // Scores stand after the first word of fields such as X-Spam-Status; in others what a filter
    // looks for may.
    let said = match name.starts_with(b"x-") {
        true => {
            let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b';');
            value.split(ends).next().unwrap_or_default().to_vec()
        }
        false => {
            let words = value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            words.collect::<Vec<_>>().join(&b' ')
        }
    };
    (!matches!(&said[..], b"" | b"no" | b"false" | b"0")).then_some(said)
}

/// A filter that looks for `yes` finds it in any word. No filter does so in X-Spam-Status, where
/// `BAYES_00` stands in mail that is none.
fn says_yes(name: &[u8], value: &[u8]) -> bool {
    let is_test = |at: usize| {
        let (before, after) = (&value[..at], &value[at + b"yes".len()..]);
        name == b"x-spam-status" && before.ends_with(b"ba") && after.starts_with(b"_")
    };
    memchr::memmem::find_iter(value, b"yes").any(|at| !is_test(at))
}
