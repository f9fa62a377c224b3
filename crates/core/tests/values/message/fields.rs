//! Header blocks and their fields.

use onedrop_core::message::{fields, split};

#[test]
fn a_header_block_ends_at_an_empty_line_or_before_a_line_that_is_no_field() {
    for (message, header, body) in [
        ("A: 1\nB: 2\n\nbody", "A: 1\nB: 2\n", "body"),
        ("A: 1\r\n\r\nbody", "A: 1\r\n", "body"),
        ("A: 1\nno field here\n\nbody", "A: 1\n", "no field here\n\nbody"),
        ("\nbody", "", "body"),
        (" A: 1\n\n", "", " A: 1\n\n"),
        ("", "", ""),
        ("A: 1", "A: 1", ""),
        ("A: 1\n\r", "A: 1\n", ""),
    ] {
        assert_eq!(split(message.as_bytes()), (header.as_bytes(), body.as_bytes()), "{message}");
    }
}

#[test]
fn fields_keep_their_bytes_and_fold() {
    // A bare CR is an ordinary byte.
    let all: Vec<_> = fields(b"A : x\r\n y\r\nB:\nC: x\ry\n")
        .map(|field| (field.name_lower(), field.unfolded(), field.relaxed()))
        .collect();
    assert_eq!(
        all,
        [
            (b"a".to_vec(), b"x y".to_vec(), b"x y".to_vec()),
            (b"b".to_vec(), vec![], vec![]),
            (b"c".to_vec(), b"x\ry".to_vec(), b"x y".to_vec()),
        ]
    );
}
