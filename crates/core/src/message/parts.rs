//! The MIME structure of a message, read from its boundaries (RFC 2046 section 5.1) in one pass
//! that decodes no body and is bounded in parts and depth. An attached message (message/rfc822)
//! counts as one part. Written by hand because `mail-parser` copies and decodes every part.

use mail_parser::{HeaderName, HeaderValue, MessageParser, MimeHeaders};

use super::fields;
use crate::text;

const MOST_PARTS: usize = 200;
/// With those that have parts of their own.
const MOST_VISITED: usize = 2 * MOST_PARTS;
/// Fields by which `mail-parser` would read more bytes than this are not parsed: some tenths of a
/// second.
pub(super) const MOST_READ: usize = 100_000_000;
const DEEPEST: usize = 20;
/// Values are cut to this many bytes.
const LONGEST_TEXT: usize = 2000;

/// One leaf of the MIME tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartFact {
    /// Part number as in IMAP (RFC 3501 section 6.4.5): `1`, `2.1`.
    pub path: String,
    /// In lower case; `text/plain` if the part has none.
    pub content_type: String,
    /// The file name, if any.
    pub name: Option<String>,
    /// Bytes of the body as transferred (not decoded).
    pub size_bytes: u64,
}

struct PartHeader {
    content_type: String,
    name: Option<String>,
    boundary: Option<Vec<u8>>,
}

/// The leaves of the message in `bytes`, in order.
pub(super) fn scan(bytes: &[u8]) -> Vec<PartFact> {
    let mut scan = Scan { found: Vec::new(), visited: 0, left: MOST_READ };
    scan.descend(bytes, "", 0);
    scan.found
}

struct Scan {
    found: Vec<PartFact>,
    visited: usize,
    /// See [`parsable`].
    left: usize,
}

/// A text of the message, trimmed and of at most [`LONGEST_TEXT`] bytes.
pub(super) fn clean(text: &str) -> String {
    text::within(text, LONGEST_TEXT).trim().to_owned()
}

/// The fields of these `names`, as far as what `mail-parser` reads for them stays below `left`. For
/// an encoded word that never ends it reads the field to its end, and begins anew after the word's
/// beginning; each parameter is compared with all before it.
pub(super) fn parsable(header: &[u8], names: &[&[u8]], left: &mut usize) -> Vec<u8> {
    let mut parsable = Vec::new();
    for field in fields::fields(header).filter(|field| names.iter().any(|name| field.is(name))) {
        let words = memchr::memmem::find_iter(field.raw, b"=?").count();
        let parameters = memchr::memchr_iter(b';', field.raw).count();
        let reads = field.raw.len().saturating_mul(1 + words + parameters);
        if let Some(rest) = left.checked_sub(reads) {
            *left = rest;
            parsable.extend_from_slice(field.raw);
        }
    }
    parsable
}

impl Scan {
    fn descend(&mut self, bytes: &[u8], path: &str, depth: usize) {
        self.visited += 1;
        let (header, body) = fields::split(bytes);
        let PartHeader { content_type, name, boundary } = self.part_header(header);
        match boundary {
            Some(boundary) if depth < DEEPEST => {
                for (part, number) in children(body, &boundary).zip(1..) {
                    let dot = if path.is_empty() { "" } else { "." };
                    self.descend(part, &format!("{path}{dot}{number}"), depth + 1);
                    if self.found.len() >= MOST_PARTS || self.visited >= MOST_VISITED {
                        return;
                    }
                }
            }
            _ => {
                let path = if path.is_empty() { "1" } else { path }.to_owned();
                let size_bytes = body.len() as u64;
                self.found.push(PartFact { path, content_type, name, size_bytes });
            }
        }
    }

    fn part_header(&mut self, header: &[u8]) -> PartHeader {
        let mut part =
            PartHeader { content_type: "text/plain".to_owned(), name: None, boundary: None };
        let names: [&[u8]; 2] = [b"content-type", b"content-disposition"];
        let header = parsable(header, &names, &mut self.left);
        let parser = MessageParser::new()
            .header_content_type(HeaderName::ContentType)
            .header_content_type(HeaderName::ContentDisposition)
            .default_header_ignore();
        let Some(parsed) = parser.parse_headers(&header) else { return part };
        if let Some(HeaderValue::ContentType(content)) = parsed.header(HeaderName::ContentType) {
            let subtype = content.subtype().unwrap_or("*");
            part.content_type = clean(&format!("{}/{subtype}", content.ctype()).to_lowercase());
            if content.ctype().eq_ignore_ascii_case("multipart") {
                part.boundary = content
                    .attribute("boundary")
                    .filter(|b| !b.is_empty())
                    .map(|b| b.as_bytes().to_vec());
            }
        }
        part.name = parsed.attachment_name().map(clean).filter(|name| !name.is_empty());
        part
    }
}

/// The parts between the delimiter lines of `boundary`.
fn children<'a>(body: &'a [u8], boundary: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    let delimiter = [&b"--"[..], boundary].concat();
    let mut next = delimiter_line(body, 0, &delimiter);
    std::iter::from_fn(move || {
        let line = next?;
        if line.closes {
            return None;
        }
        next = delimiter_line(body, line.end, &delimiter);
        let end = next.map_or(body.len(), |next| next.start);
        Some(trim_line_end(&body[line.end.min(end)..end]))
    })
}

#[derive(Clone, Copy)]
struct DelimiterLine {
    start: usize,
    /// After its line end.
    end: usize,
    closes: bool,
}

fn delimiter_line(body: &[u8], from: usize, delimiter: &[u8]) -> Option<DelimiterLine> {
    let finder = memchr::memmem::Finder::new(delimiter);
    let mut at = from;
    while let Some(found) = finder.find(&body[at..]) {
        let start = at + found;
        let after = start + delimiter.len();
        at = after;
        // Before the search for the line's end: a line may hold the boundary any number of times.
        if start > 0 && body[start - 1] != b'\n' {
            continue;
        }
        let line_end =
            memchr::memchr(b'\n', &body[after..]).map_or(body.len(), |end| after + end + 1);
        let rest = body[after..line_end].trim_ascii_end();
        if rest.is_empty() || rest.starts_with(b"--") {
            return Some(DelimiterLine { start, end: line_end, closes: !rest.is_empty() });
        }
    }
    None
}

/// The line end before a delimiter belongs to the delimiter.
fn trim_line_end(part: &[u8]) -> &[u8] {
    let part = part.strip_suffix(b"\n").unwrap_or(part);
    part.strip_suffix(b"\r").unwrap_or(part)
}
