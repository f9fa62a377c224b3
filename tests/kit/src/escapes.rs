//! Bytes as text in fixtures: `\r`, `\n`, `\t`, `\0`, `\\`, `\xHH`, and `\{a*5}` for `aaaaa`.

/// The bytes that `text` stands for.
///
/// # Panics
/// An escape is none of these.
pub fn unescaped(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        let length = match escape.as_bytes()[0] {
            b'r' => push(&mut out, b"\r", 1),
            b'n' => push(&mut out, b"\n", 1),
            b't' => push(&mut out, b"\t", 1),
            b'0' => push(&mut out, b"\0", 1),
            b'\\' => push(&mut out, b"\\", 1),
            b'x' => push(&mut out, &[u8::from_str_radix(&escape[1..3], 16).unwrap()], 3),
            b'{' => {
                let end = escape.find('}').unwrap();
                let (part, times) = escape[1..end].split_once('*').unwrap();
                push(&mut out, part.repeat(times.parse().unwrap()).as_bytes(), end + 1)
            }
            _ => panic!("{text}"),
        };
        rest = &escape[length..];
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

fn push(out: &mut Vec<u8>, bytes: &[u8], length: usize) -> usize {
    out.extend_from_slice(bytes);
    length
}
