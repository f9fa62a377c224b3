//! What the targets that read messages share: good messages, words that matter in them, and changes
//! that mean nothing.

use std::path::Path;

use onedrop::message::{Message, fields, split};

/// Messages from the fixtures, and some that hold every field that anybody here reads.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        b"Return-Path: <lisa@gmail.com>\nX-Original-To: doug@x\nDelivered-To: doug@x\n\
          Received: from mx by mda (Onedrop) with LMTP id 4Q\n\tfor <doug@x>; Sun, 22 Nov 2026 \
          10:00:00 +0000\n\
          Received: from relay by mx (Postfix) id A1;\n\tSun, 22 Nov 2026 10:00:00 +0000 (UTC)\n\
          Authentication-Results: mail.axial.net; spf=fail (a;b) smtp.mailfrom=x;\n\tdmarc=pass \
          (p=none) header.from=gmail.com\n\
          From: Lisa <lisa@gmail.com>\nTo: Doug <doug@x>, \"S, c\" <scuba@x>\nSubject: \
          =?utf-8?q?one?=\n two\n\
          Date: Sun, 22 Nov 2026 09:59:59 +0000\nMessage-ID: <a@gmail.com>\n\nbody\n\n"
            .to_vec(),
        b"From lisa@gmail.com  Sun Nov 22 10:00:00 2026\r\nReceived: by x; 22 Nov 26 10:00 EST\r\n\
          Date: 1 Jan 1970 00:00:00 GMT\r\n\
          From: lisa@gmail.com\r\nAutocrypt: addr=lisa@gmail.com; keydata=AA\r\nResent-To: a@b\r\n\
          Bcc: c@d\r\n\
          Content-Type: multipart/mixed; boundary=\"b b\"\r\n\r\n--b b\r\n\r\none\r\n--b b\r\n\
          Content-Type: text/html; name=x\r\n\r\n<p>\r\n--b b--\r\n"
            .to_vec(),
        b"Message-ID:\n <a\0b@x>\nReceived: from ups\nDate: now\nSubject: on\0battery\n\n\
          a\0\0b\r\0\n\0"
            .to_vec(),
        b"Subject: on battery\n\nbody".to_vec(),
    ];
    for folder in ["fixtures/mail", "fixtures/identity"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut paths: Vec<_> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(|entry| entry.expect("entry").path())
            .collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "eml"));
        paths.sort();
        let files = paths.iter().map(|path| std::fs::read(path).expect("fixture"));
        seeds.extend(files.filter(|bytes| bytes.len() < 16 * 1024));
    }
    seeds
}

pub const DICTIONARY: &[&[u8]] = &[
    b"\n",
    b"\r\n",
    b"\r",
    b"\n\n",
    b"\n ",
    b"\r\n\t",
    b"\n \n",
    b" ",
    b"\t",
    b"\0",
    b"\x80",
    b"\xff",
    b"\xc3\xa9",
    b"\x0b",
    b":",
    b";",
    b",",
    b"(",
    b")",
    b"\"",
    b"\\",
    b"<",
    b">",
    b"@",
    b"=?utf-8?b?w6k=?=",
    b"=?utf-8?q?=00=0a=?=",
    b"From ",
    b"From : ",
    b"From: Lisa <lisa@gmail.com>\n",
    b"Message-ID: <c@d>\n",
    b"Message-ID:",
    b"Date: ",
    b"Sun, 22 Nov 2026 10:00:00 +0000",
    b"1 Jan 70 00:00 GMT",
    b"19 Jan 2038 03:14:07 PDT (a \\) b)",
    b"Received: by x (Postfix) id B2; Sun, 22 Nov 2026 11:00:00 -0530\n",
    b"Received: from x by y (Onedrop) with LMTP id 4Q; Sun, 22 Nov 2026 11:00:00 +0000\n",
    b"(Onedrop) with ",
    b"Delivered-To: a@b\n",
    b"Return-Path: <>\n",
    b"X-Original-To: a@b\n",
    b"Resent-Bcc: a@b\n",
    b"Resent-Date: ",
    b"Content-Length: 7\n",
    b"Content-Type: multipart/mixed; boundary=b\n",
    b"Content-Disposition: attachment; filename*0*=utf-8''%41; filename*1=b\n",
    b"\n--b\n",
    b"\n--b--\n",
    b"References: <a@b> <c@d>\n",
    b"To: group: a@b, c@d;, e@f\n",
    b"Authentication-Results: ",
    b"mail.axial.net",
    b"; dmarc=pass",
    b" header.from=gmail.com",
    b"=",
    b"undisclosed-recipients:;",
];

/// In an IMAP server's form: each line ends in CRLF.
pub fn crlf(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 16);
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'\n' && (at == 0 || bytes[at - 1] != b'\r') {
            out.push(b'\r');
        }
        out.push(*byte);
    }
    out
}

/// Each NUL as what an IMAP server makes of it.
pub fn without_nul(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| if *byte == 0 { 0x80 } else { *byte }).collect()
}

/// A line break before each blank in the values of the header's fields.
pub fn folded(bytes: &[u8]) -> Vec<u8> {
    let (header, _) = split(bytes);
    let mut out = Vec::with_capacity(bytes.len() * 2);
    for field in fields(header) {
        let colon = field.raw.iter().position(|byte| *byte == b':').unwrap_or(0);
        for (at, byte) in field.raw.iter().enumerate() {
            if at > colon && matches!(byte, b' ' | b'\t') && field.raw[at - 1] != b'\n' {
                out.extend_from_slice(b"\r\n");
            }
            out.push(*byte);
        }
    }
    out.extend_from_slice(&bytes[header.len()..]);
    out
}

/// Whether fields can be put on top of it: its first line continues nothing, and is no mbox line,
/// which only counts as one at the top.
pub fn takes_fields_on_top(message: &Message) -> bool {
    let own = message.own_copy();
    let has_mbox_line = Message::new(own.to_vec(), message.dedup_by()).own_copy().len() < own.len();
    !own.starts_with(b" ") && !own.starts_with(b"\t") && !has_mbox_line
}
