//! The parts of a message, as the ledger records them.

use super::message;

fn leaves(bytes: &[u8]) -> Vec<(String, String, Option<String>, u64)> {
    let parts = message(bytes).facts().parts.into_iter();
    parts.map(|part| (part.path, part.content_type, part.name, part.size_bytes)).collect()
}

#[test]
fn leaves_are_found_in_nested_multiparts() {
    let message = b"Content-Type: multipart/mixed; boundary=\"a\"\n\npreamble\n\
        --a\nContent-Type: multipart/alternative; boundary=b\n\n--b\n\nplain\n\
        --b\nContent-Type: TEXT/html\n\n<p>\n--b--\n\
        --a\nContent-Type: application/pdf; name=\"x.pdf\"\n\
        Content-Disposition: attachment; filename=\"y.pdf\"\n\n0123456789\n--a--\nepilogue\n";
    assert_eq!(
        leaves(message),
        [
            ("1.1".to_owned(), "text/plain".to_owned(), None, 5),
            ("1.2".to_owned(), "text/html".to_owned(), None, 3),
            ("2".to_owned(), "application/pdf".to_owned(), Some("y.pdf".to_owned()), 10)
        ]
    );
}

/// A search for the line's end at each boundary would take hours.
#[test]
fn a_line_full_of_boundaries_is_read_once() {
    let mut message = b"Content-Type: multipart/mixed; boundary=b\n\nx".to_vec();
    message.extend_from_slice(&b"--b".repeat(7_000_000));
    assert_eq!(leaves(&message), []);
}

#[test]
fn a_plain_message_is_one_part_and_endless_nesting_ends() {
    assert_eq!(leaves(b"Subject: x\n\nbody")[0].0, "1");
    let nested =
        |n| format!("Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n").into_bytes();
    let deep: Vec<u8> = (0..2000).flat_map(nested).collect();
    let found = leaves(&deep);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0.split('.').count(), 20, "{}", found[0].0);
    let wide = b"Content-Type: multipart/mixed; boundary=b\n\n".to_vec();
    let wide = [wide, b"--b\n\nx\n".repeat(300)].concat();
    assert_eq!(leaves(&wide).len(), 200);
}
