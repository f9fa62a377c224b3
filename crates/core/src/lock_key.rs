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
