//! A scanner for header blocks that works on raw bytes and copies nothing. It is written by hand
//! because identities depend on it, byte for byte. The block ends at the first empty line, or
//! before the first line that is neither a field nor a continuation; the body starts there. A
//! field's name is printable ASCII up to the colon (RFC 5322 section 2.2; blanks before the colon,
//! section 4.5).

/// One header field with its line ends.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    /// The whole field: name, colon, value, folding and the last line end.
    pub raw: &'a [u8],
    name: &'a [u8],
    value: &'a [u8],
}

impl Field<'_> {
    /// Whether the field is called `name` (given in lower case).
    pub fn is(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    pub fn name_lower(&self) -> Vec<u8> {
        self.name.to_ascii_lowercase()
    }

    /// The value without line ends (LF, CRLF) and without leading and trailing blanks.
    pub fn unfolded(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.value.len());
        for line in self.value.split_inclusive(|byte| *byte == b'\n') {
            let end = line.strip_suffix(b"\n");
            out.extend_from_slice(
                end.map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line)),
            );
        }
        out.trim_ascii().to_vec()
    }

    /// The unfolded value with each run of blanks as one space (RFC 6376 section 3.4.2).
    pub fn relaxed(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.value.len());
        let mut blank = false;
        for &byte in self.value {
            if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                blank = true;
                continue;
            }
            if blank && !out.is_empty() {
                out.push(b' ');
            }
            blank = false;
            out.push(byte);
        }
        out
    }
}

/// Splits a message into its header block and its body, without the empty line between them.
pub fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        let line = line_at(bytes, at);
        if is_blank(line) {
            return (&bytes[..at], &bytes[at + line.len()..]);
        }
        let continues = at > 0 && matches!(line[0], b' ' | b'\t');
        if !continues && colon(line).is_none() {
            break;
        }
        at += line.len();
    }
    (&bytes[..at], &bytes[at..])
}

/// The fields of a header block, top to bottom.
pub fn fields(header: &[u8]) -> impl Iterator<Item = Field<'_>> {
    let mut rest = header;
    std::iter::from_fn(move || {
        let first = line_at(rest, 0);
        let colon = colon(first)?;
        let mut end = first.len();
        while let Some(b' ' | b'\t') = rest.get(end) {
            end += line_at(rest, end).len();
        }
        let (raw, after) = rest.split_at(end);
        rest = after;
        Some(Field { raw, name: raw[..colon].trim_ascii_end(), value: &raw[colon + 1..] })
    })
}

fn line_at(bytes: &[u8], at: usize) -> &[u8] {
    let rest = &bytes[at..];
    memchr::memchr(b'\n', rest).map_or(rest, |end| &rest[..=end])
}

fn is_blank(line: &[u8]) -> bool {
    // The message may be cut between CR and LF.
    matches!(line, b"\n" | b"\r\n" | b"\r" | b"")
}

/// Position of the colon after the field's name; `None` if the line does not begin a field.
fn colon(line: &[u8]) -> Option<usize> {
    let colon = memchr::memchr(b':', line)?;
    let name = line[..colon].trim_ascii_end();
    (!name.is_empty() && name.iter().all(u8::is_ascii_graphic)).then_some(colon)
}
