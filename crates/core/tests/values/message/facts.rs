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

/// Each of them makes the parser read on to the end of its field: minutes for a message of 10 MB.
#[test]
fn encoded_words_that_never_end_are_not_read_on_for_each_of_them() {
    let words = "=?aa?q?z ".repeat(11_000);
    let long = format!("Subject: {words}\nTo: {words}\nFrom: ann@a.org\n\n");
    let facts = message(long.as_bytes()).facts();
    assert_eq!((facts.subject, facts.addresses.len()), (None, 1));
    let part = format!("--b\nContent-Type: text/html; name=\"{}\"\n\nx\n", &words[..63_000]);
    let first = "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/css\n\nx\n";
    let found = leaves([first, &part.repeat(150)].concat().as_bytes());
    assert_eq!(
        (found.len(), found[0].1.as_str(), found[9].1.as_str()),
        (151, "text/css", "text/plain")
    );
    let few = message(b"Subject: =?utf-8?q?caf=C3=A9?= =?utf-8?q?_au?=\n\n").facts();
    assert_eq!(few.subject.as_deref(), Some("café au"));
}

/// Of multiparts without a part of their own there may be any number.
#[test]
fn empty_multiparts_end() {
    let inner = b"--b\nContent-Type: multipart/mixed; boundary=c\n\nx\n";
    let message =
        [&b"Content-Type: multipart/mixed; boundary=b\n\n"[..], &inner.repeat(2000)].concat();
    let last = [&message[..], b"--b\n\nlast\n"].concat();
    assert_eq!(leaves(&last), []);
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
