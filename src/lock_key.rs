//! Keys of locks: SHA-256 of a domain-separated string, whose first eight bytes, as a signed 64-bit
//! integer, are the key of an SQL server's advisory lock. Rows store the full hash, so a collision
//! of the 64 bits can delay a delivery but never mark a copy as placed. Frozen, like identities.

use sha2::{Digest, Sha256};

/// A full SHA-256 hash.
pub type Hash = [u8; 32];

/// Hash of the raw Message-ID.
pub fn message_hash(message_id: &[u8]) -> Hash {
    hash(b"onedrop/1/message\0", &[message_id])
}

/// Hash of the content digest, for a message without a usable Message-ID.
pub fn content_hash(digest: &Hash) -> Hash {
    hash(b"onedrop/1/content\0", &[digest])
}

/// Hash of a copy: a message in a mailbox of an account.
pub fn copy_hash(id_hash: &Hash, digest: &Hash, account: &str, mailbox: &str) -> Hash {
    hash(b"onedrop/1/copy\0", &[id_hash, digest, account.as_bytes(), b"\0", mailbox.as_bytes()])
}

/// Hash of a named lock (`check` tests mutual exclusion with one).
pub fn name_hash(name: &str) -> Hash {
    hash(b"onedrop/1/name\0", &[name.as_bytes()])
}

/// The 64-bit key of an advisory lock: the first eight bytes of `hash`, big-endian, signed.
pub fn advisory_key(hash: &Hash) -> i64 {
    let mut first = [0u8; 8];
    first.copy_from_slice(&hash[..8]);
    i64::from_be_bytes(first)
}

/// Lower-case hexadecimal, for file names and output.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(domain: &[u8], parts: &[&[u8]]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(domain);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ledger's format; the values were computed with Python's hashlib.
    #[test]
    fn hashes_are_those_of_the_ledger() {
        let id = message_hash(b"<a@b>");
        let digest: Hash = std::array::from_fn(|at| at as u8);
        for (hash, expected) in [
            (id, "f081948fff7b6f8429c7b8ff53f7de8ff5bb7244bc00b7f29a9bea89bb22f353"),
            (
                content_hash(&digest),
                "c7fd597f087edb1d531d03a42b9f26bf21c0db3699abb85aca4c64d11705cd11",
            ),
            (
                copy_hash(&id, &digest, "doug", "INBOX"),
                "ce5453fdeec2b05bbeed40b69f8b472e30602c03a5825c80a2b4a332f6c8efda",
            ),
            (
                name_hash("nightly"),
                "b9c91395d4f9aa1b7c00a00274da01a63016ebe2517116ac1c8cb3a287a342d0",
            ),
        ] {
            assert_eq!(hex(&hash), expected);
        }
        assert_eq!(advisory_key(&id), -1_116_447_886_423_658_620);
    }

    #[test]
    fn keys_of_different_kinds_differ() {
        let id = message_hash(b"<a@b>");
        assert_ne!(id, name_hash("<a@b>"));
        assert_ne!(copy_hash(&id, &id, "a", "bc"), copy_hash(&id, &id, "ab", "c"));
    }

    #[test]
    fn a_key_is_the_big_endian_start_of_its_hash() {
        let mut hash = [0u8; 32];
        hash[..8].copy_from_slice(&(-2i64).to_be_bytes());
        assert_eq!(advisory_key(&hash), -2);
    }
}
