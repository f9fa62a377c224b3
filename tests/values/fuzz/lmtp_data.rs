//! What may follow DATA, or stand in the chunks of BDAT, beside the simplest readers there are.

use onedrop::net::lmtp::data::DataReader;

use super::harness::Target;

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

const DICTIONARY: &[&[u8]] = &[
    b"\r\n",
    b"\r",
    b"\n",
    b".",
    b"..",
    b"\r\n.\r\n",
    b"\r\n..",
    b"\n.\n",
    b"\r.\r",
    b"\r\n.\n",
    b"\n.\r\n",
    b"\0",
    b"\xff",
    b"QUIT\r\n",
];

fn seeds() -> Vec<Vec<u8>> {
    let seeds: [&[u8]; 4] = [
        b"Subject: x\r\n\r\nbody\r\n.\r\nQUIT\r\n",
        b"..\r\n.dot\r\n...\r\n.\r\n",
        b"a\r\n.\rb\r\n.\nc\n.\n\r\n.\r\n",
        b"a\r\n\r\n.",
    ];
    seeds.map(<[u8]>::to_vec).to_vec()
}

/// Both readers agree with the simplest ones there are, however `input` is cut; what was read,
/// encoded again, is what came; and as a message `input` comes back from the wire as it went.
pub fn check(input: &[u8]) {
    let (message, end) = simplest(input);
    for parts in [vec![input], input.chunks(1).collect(), cut(input)] {
        let (read, taken) = dots(parts);
        assert_eq!((shown(&read), taken), (shown(&message), end));
    }
    assert!(message.len() <= input.len());
    if let Some(end) = end {
        let wire = [&dot_stuffed(&message)[..], b".\r\n"].concat();
        assert!(
            !is_canonical(&input[..end - 3]) || wire == input[..end],
            "{} was {}",
            shown(&wire),
            shown(&input[..end])
        );
    }
    let message = [input, b"\n"].concat();
    let wire = [&dot_stuffed(&message)[..], b".\r\nQUIT\r\n"].concat();
    assert_eq!(dots(vec![&wire]), (message, Some(wire.len() - 6)));
    chunks(input);
}

fn chunks(input: &[u8]) {
    let message = lines(input).join(&b'\n');
    for parts in [vec![input], input.chunks(1).collect(), cut(input)] {
        let (mut reader, mut read) = (DataReader::of_chunks(), Vec::new());
        for part in parts {
            reader.feed(part, &mut read);
        }
        reader.end(&mut read);
        assert_eq!(shown(&read), shown(&message));
    }
    let is_bare = |at: usize| input[at] == b'\n' && (at == 0 || input[at - 1] != b'\r');
    if !(0..input.len()).any(is_bare) {
        assert_eq!(
            shown(&message.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(&b"\r\n"[..])),
            shown(input)
        );
    }
}

/// What follows DATA: the message, and how much of the input was the data's, if its end came.
fn dots(parts: Vec<&[u8]>) -> (Vec<u8>, Option<usize>) {
    let (mut reader, mut read, mut taken) = (DataReader::with_dots(), Vec::new(), 0);
    for part in parts {
        match reader.feed(part, &mut read) {
            None => taken += part.len(),
            Some(bytes) => return (read, Some(taken + bytes)),
        }
    }
    (read, None)
}

/// The data up to CRLF `.` CRLF, line by line: without the dot that starts one, with LF at its end;
/// and its length. Where the end does not come, what may yet become a line's end or a first dot is
/// not in it.
pub fn simplest(input: &[u8]) -> (Vec<u8>, Option<usize>) {
    // The data stands after the CRLF of DATA.
    let data = [b"\r\n", input].concat();
    let end = data.windows(5).position(|bytes| bytes == b"\r\n.\r\n");
    let mut message = Vec::new();
    let whole = &data[..end.unwrap_or(data.len())];
    for line in &lines(whole)[1..] {
        message.extend_from_slice(line.strip_prefix(b".").unwrap_or(line));
        message.push(b'\n');
    }
    if end.is_none() {
        // The last line has no end yet.
        message.pop();
        if data.ends_with(b"\r") {
            message.pop();
        }
    }
    (message, end.map(|end| end + 5 - 2))
}

fn lines(data: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut start = 0;
    for at in 0..data.len() {
        if data[at..].starts_with(b"\r\n") {
            lines.push(&data[start..at]);
            start = at + 2;
        }
    }
    lines.push(&data[start..]);
    lines
}

/// RFC 5321 section 4.5.2, for a message whose lines end in LF.
fn dot_stuffed(message: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    for line in message.split_inclusive(|byte| *byte == b'\n') {
        wire.extend_from_slice(if line.starts_with(b".") { b"." } else { b"" });
        wire.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        wire.extend_from_slice(b"\r\n");
    }
    wire
}

/// Whether the data is as a good client sends it: each LF after a CR, each first dot doubled.
fn is_canonical(data: &[u8]) -> bool {
    let good = |line: &&[u8]| {
        !line.contains(&b'\n') && (!line.starts_with(b".") || line.starts_with(b".."))
    };
    lines(data).iter().all(good)
}

/// `input` in pieces of lengths that it says itself.
pub fn cut(input: &[u8]) -> Vec<&[u8]> {
    let mut rest = input;
    let mut parts = Vec::new();
    while let Some(first) = rest.first() {
        let length = [1, 2, 3, 7, 60][usize::from(*first) % 5];
        let (part, more) = rest.split_at(length.min(rest.len()));
        parts.push(part);
        rest = more;
    }
    parts
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
