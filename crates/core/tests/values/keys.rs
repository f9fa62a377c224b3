//! Hashes and keys of locks.

use onedrop_core::lock_key::{
    Hash, advisory_key, content_hash, copy_hash, hex, message_hash, name_hash,
};

/// The ledger's format; the values were computed with Python's hashlib.
#[test]
fn hashes_are_those_of_the_ledger() {
    let id = message_hash(b"<a@b>");
    let digest: Hash = std::array::from_fn(|at| at as u8);
    for (hash, expected) in [
        (id, "f081948fff7b6f8429c7b8ff53f7de8ff5bb7244bc00b7f29a9bea89bb22f353"),
        (content_hash(&digest), "c7fd597f087edb1d531d03a42b9f26bf21c0db3699abb85aca4c64d11705cd11"),
        (
            copy_hash(&id, &digest, "doug", "INBOX"),
            "ce5453fdeec2b05bbeed40b69f8b472e30602c03a5825c80a2b4a332f6c8efda",
        ),
        (name_hash("nightly"), "b9c91395d4f9aa1b7c00a00274da01a63016ebe2517116ac1c8cb3a287a342d0"),
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
