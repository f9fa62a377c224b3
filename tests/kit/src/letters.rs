//! Whole mailboxes beside what was sent: every byte of every message, not how many there are. A
//! message that is lost and another that is there twice make the same number.

use std::collections::BTreeMap;

use super::dovecot::Dovecot;
use super::fixture_text;

/// What Postfix and we put before a message.
const TRACE: [&[u8]; 4] = [b"return-path:", b"x-original-to:", b"delivered-to:", b"received:"];

pub const ANN: &str = "ann@elsewhere.example";

/// A message of Ann's. Postfix adds nothing to its header but Received.
pub fn from_ann(name: &str) -> String {
    format!(
        "From: {ANN}\nTo: scuba@mail.axial.net\nDate: Sun, 22 Nov 2026 12:00:00 +0000\n\
         Subject: {name}\nMessage-ID: <{name}@x>\n\nthis is {name}\n"
    )
}

/// The `number`-th of many, with a body of its own.
pub fn one_of_many(test: &str, number: usize) -> String {
    let line = "seventy-two characters and a line end, again and again.....";
    let body = format!("line {number} of {line}\n").repeat(20);
    format!("{}{body}", from_ann(&format!("{test}.{number}")))
}

/// What Lisa wrote to Scuba and Doug, with this in its Message-ID.
pub fn from_lisa(id: &str) -> Vec<u8> {
    fixture_text("fixtures/mail/welcome.eml").replace("CAHk9w0next-meeting", id).into_bytes()
}

/// A message without the trace fields before it, with LF for a line's end.
pub fn letter(copy: &[u8]) -> Vec<u8> {
    let lines: Vec<&[u8]> = copy.split_inclusive(|byte| *byte == b'\n').collect();
    let mut from = 0;
    while let Some(line) = lines.get(from) {
        let is_trace = TRACE
            .iter()
            .any(|name| line.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name)));
        let continues = from > 0 && (line.starts_with(b" ") || line.starts_with(b"\t"));
        if !is_trace && !continues {
            break;
        }
        from += 1;
    }
    with_lf(&lines[from..].concat())
}

fn with_lf(text: &[u8]) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let ended = |line: &[u8]| match line.strip_suffix(b"\r\n") {
        Some(text) => [text, b"\n"].concat(),
        None => line.to_vec(),
    };
    lines.flat_map(ended).collect()
}

/// The copies in `place` are these messages, each as often as it is named, and nothing else.
#[track_caller]
pub fn are_these<E: AsRef<[u8]>>(
    place: &str,
    copies: &[Vec<u8>],
    expected: impl IntoIterator<Item = E>,
) {
    let mut counts: BTreeMap<Vec<u8>, (usize, usize)> = BTreeMap::new();
    for copy in copies {
        counts.entry(letter(copy)).or_default().0 += 1;
    }
    let expected: Vec<Vec<u8>> =
        expected.into_iter().map(|message| with_lf(message.as_ref())).collect();
    for message in &expected {
        counts.entry(letter(message)).or_default().1 += 1;
    }
    let wrong = counts.iter().filter(|(_, (there, sent))| there != sent);
    let shown = |text: &[u8]| text[..text.len().min(300)].escape_ascii().to_string();
    let wrong: Vec<String> = wrong
        .map(|(text, (there, sent))| format!("{there} in place of {sent}: {}", shown(text)))
        .collect();
    assert!(
        wrong.is_empty(),
        "{place}: {} wrong: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(10)]
    );
    // A message's own trace fields are there as well.
    let is_whole =
        |copy: &&Vec<u8>| expected.iter().any(|message| with_lf(copy).ends_with(message));
    let cut: Vec<String> =
        copies.iter().filter(|copy| !is_whole(copy)).map(|copy| shown(copy)).collect();
    assert!(cut.is_empty(), "{place}: {cut:#?}");
}

/// The mailbox holds these messages, by what Dovecot says.
#[track_caller]
pub fn stand_in<E: AsRef<[u8]>>(
    dovecot: &Dovecot,
    account: &str,
    mailbox: &str,
    expected: impl IntoIterator<Item = E>,
) {
    are_these(&format!("{account}/{mailbox}"), &dovecot.messages(account, mailbox), expected);
}

/// What somebody who knows the value of a copy that was handed over may get into mailboxes beside
/// the `real` message: other content, the same elsewhere, and the real one below what is shown.
/// Each with its mailbox.
pub fn forgeries(value: &str, real: &str) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    for number in ["0", "1", "-1", "99", "x", ""] {
        let ours = format!("X-Onedrop-Copy: {value}\nX-Onedrop-Try: {number}\n");
        let forged =
            format!("{ours}From: {ANN}\nSubject: forged\nMessage-ID: <real@x>\n\nthis is forged\n");
        all.extend(["Sent", "INBOX", "Lists"].map(|mailbox| (mailbox, forged.clone())));
        all.extend(["Sent", "Archive"].map(|mailbox| (mailbox, format!("{ours}{real}"))));
        all.push(("INBOX", format!("Subject: shown\n{ours}{real}")));
    }
    all
}
