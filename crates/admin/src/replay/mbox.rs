//! Splits an mbox into messages, one at a time, whatever its size. By hand: mail-parser's reader
//! cuts a message at any body line that begins with `From `, and knows neither offsets nor limits.
//!
//! A From_ line begins a message only with a date that reads as one, and only at the beginning,
//! after an empty line, or where the header of a message follows: Thunderbird leaves the empty line
//! out. What looks like one otherwise is kept and reported. Content-Length is not believed:
//! programs that rewrite a message forget to correct it. But where it leads beyond a From_ line to
//! exactly the begin of another message, or the end, one of the two is wrong, and neither part is
//! taken for a message. The empty line before a From_ line, or before the end, belongs to the mbox.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};

use super::content_length::content_length;
use super::from_line::{FROM, is_field, is_from_line};
use onedrop_site::command_line::MboxQuoting;

/// Lines are read in pieces of at most this size.
const PIECE: u64 = 64 * 1024;
/// Lines that are kept because they may be From_ lines, and bytes of each.
const MOST_DOUBTFUL: usize = 20;
const DOUBTFUL_BYTES: usize = 100;

/// A header has fewer lines.
const MOST_HEADER_LINES: usize = 1000;
/// One of these is in every message, beside From.
const OF_EVERY_MESSAGE: [&[u8]; 4] = [b"date:", b"message-id:", b"received:", b"return-path:"];

/// A message in an mbox.
#[derive(Debug, PartialEq, Eq)]
pub struct MboxMessage {
    /// Where its From_ line begins.
    pub start: u64,
    /// Where the next one begins, or the mbox ends.
    pub end: u64,
    /// Where it ends by its Content-Length, if it has one.
    pub claimed_end: Option<u64>,
    /// Without the From_ line, and unquoted; `None`: it is larger than may be.
    pub bytes: Option<Vec<u8>>,
}

/// A line that counts as text, and that a program may have meant to begin a message: one that
/// begins with `From ` and has a number, or a header field after it, but no date that reads as one;
/// or a From_ line with no empty line before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoubtfulLine {
    /// Where it begins.
    pub at: u64,
    /// It has a date, and stands right after text and before no header.
    pub is_behind_text: bool,
    /// Its beginning.
    pub text: String,
}

/// Why an mbox cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum MboxError {
    #[error("no mbox: it does not begin with a From_ line (From, an address, a date)")]
    NoMbox,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reads message after message.
pub struct MboxReader<R> {
    input: R,
    quoting: MboxQuoting,
    /// Largest message in bytes; 0: no limit.
    limit: u64,
    /// Of the next byte that is read.
    offset: u64,
    piece: Vec<u8>,
    /// The lines after it that were looked at.
    ahead: VecDeque<Vec<u8>>,
    /// `piece` begins a line.
    is_line: bool,
    /// Where the From_ line begins that was read last.
    opened: Option<u64>,
    /// The first ones, and how many more there were; the caller takes them out when it reports
    /// them.
    pub doubtful: (Vec<DoubtfulLine>, u64),
    /// The line before, if it may be one as well: a header field after it says so.
    before: Option<DoubtfulLine>,
}

/// The message that is being read.
struct MessageBuffer {
    bytes: Vec<u8>,
    limit: u64,
    is_too_large: bool,
}

impl MessageBuffer {
    fn add(&mut self, more: &[u8]) {
        let size = (self.bytes.len() + more.len()) as u64;
        if self.is_too_large || (self.limit > 0 && size > self.limit) {
            self.is_too_large = true;
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(more);
        }
    }
}

impl<R: BufRead> MboxReader<R> {
    /// `input` stands at `offset`, at the beginning or at a From_ line.
    pub fn new(input: R, offset: u64, quoting: MboxQuoting, limit: u64) -> MboxReader<R> {
        let (piece, doubtful, before) = (Vec::new(), (Vec::new(), 0), None);
        MboxReader {
            input,
            quoting,
            limit,
            offset,
            piece,
            ahead: VecDeque::new(),
            is_line: true,
            opened: None,
            doubtful,
            before,
        }
    }

    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// It is no mbox, or cannot be read.
    pub fn next_message(&mut self) -> Result<Option<MboxMessage>, MboxError> {
        let Some(start) = self.open()? else { return Ok(None) };
        let mut message =
            MessageBuffer { bytes: Vec::new(), limit: self.limit, is_too_large: false };
        let (mut length, mut body) = (None, None);
        // An empty line that may belong to the mbox.
        let mut held: Vec<u8> = Vec::new();
        loop {
            let at = self.offset;
            let is_line = self.is_line;
            if !self.read_piece()? {
                break;
            }
            if let Some(before) = self.before.take().filter(|_| is_line && is_field(&self.piece)) {
                self.keep(before);
            }
            let is_empty = is_line && matches!(self.piece.as_slice(), b"\n" | b"\r\n");
            let is_first = message.bytes.is_empty() && !message.is_too_large;
            let is_behind_empty = !held.is_empty() || is_first;
            if is_line && self.piece.starts_with(FROM) {
                match (is_from_line(&self.piece), is_behind_empty) {
                    (true, true) => {
                        self.opened = Some(at);
                        break;
                    }
                    (true, false) if self.header_follows()? => {
                        self.opened = Some(at);
                        break;
                    }
                    (true, false) | (false, true) => self.doubt(at, !is_behind_empty),
                    (false, false) => {}
                }
            }
            if is_line && body.is_none() {
                length = length.or_else(|| content_length(&self.piece));
                body = is_empty.then_some(self.offset);
            }
            message.add(&held);
            held.clear();
            if is_empty {
                held.extend_from_slice(&self.piece);
            } else {
                let quote = usize::from(is_line && is_quoted(&self.piece, self.quoting));
                message.add(&self.piece[quote..]);
            }
        }
        let end = self.opened.unwrap_or(self.offset);
        let bytes = (!message.is_too_large).then_some(message.bytes);
        let claimed_end =
            body.zip(length).and_then(|(body, length): (u64, u64)| body.checked_add(length));
        Ok(Some(MboxMessage { start, end, claimed_end, bytes }))
    }

    /// Keeps the line at `at`, if it has a number, as a date has; or else a header field after it.
    fn doubt(&mut self, at: u64, is_behind_text: bool) {
        let line = self.piece.trim_ascii_end();
        let text = String::from_utf8_lossy(&line[..line.len().min(DOUBTFUL_BYTES)]).into_owned();
        let doubtful = DoubtfulLine { at, is_behind_text, text };
        match self.piece.iter().any(u8::is_ascii_digit) {
            true => self.keep(doubtful),
            false => self.before = Some(doubtful),
        }
    }

    fn keep(&mut self, line: DoubtfulLine) {
        let (first, more) = &mut self.doubtful;
        match first.len() < MOST_DOUBTFUL {
            true => first.push(line),
            false => *more += 1,
        }
    }

    /// Where the next message's From_ line begins, which is read.
    fn open(&mut self) -> Result<Option<u64>, MboxError> {
        loop {
            if let Some(start) = self.opened.take() {
                return Ok(Some(start));
            }
            let (at, is_line) = (self.offset, self.is_line);
            match self.read_piece()? {
                false => return Ok(None),
                true if is_line && is_from_line(&self.piece) => self.opened = Some(at),
                true if is_line && self.piece.trim_ascii().is_empty() => {}
                true => return Err(MboxError::NoMbox),
            }
        }
    }

    /// Reads a line, or a piece of one; false at the end.
    fn read_piece(&mut self) -> io::Result<bool> {
        match self.ahead.pop_front() {
            Some(piece) => self.piece = piece,
            None => {
                self.piece.clear();
                (&mut self.input).take(PIECE).read_until(b'\n', &mut self.piece)?;
            }
        }
        self.offset += self.piece.len() as u64;
        self.is_line = self.piece.ends_with(b"\n");
        Ok(!self.piece.is_empty())
    }

    /// Whether the lines after this one are fields up to an empty line, and among them one of the
    /// author and one that mail programs or servers give every message.
    fn header_follows(&mut self) -> io::Result<bool> {
        let (mut has_author, mut has_more) = (false, false);
        for at in 0..MOST_HEADER_LINES {
            if at == self.ahead.len() {
                let mut line = Vec::new();
                (&mut self.input).take(PIECE).read_until(b'\n', &mut line)?;
                self.ahead.push_back(line);
            }
            let line = &self.ahead[at];
            let is_called = |name: &&[u8]| {
                let begin = line.split_at_checked(name.len()).map(|(begin, _)| begin);
                begin.is_some_and(|begin| begin.eq_ignore_ascii_case(name))
            };
            match line.first() {
                // An empty line, or the end.
                None | Some(b'\r' | b'\n') => return Ok(has_author && has_more),
                Some(b' ' | b'\t') if at > 0 => {}
                _ if !is_field(line) => return Ok(false),
                _ => {
                    has_author |= is_called(&&b"from:"[..]);
                    has_more |= OF_EVERY_MESSAGE.iter().any(is_called);
                }
            }
        }
        Ok(false)
    }
}

/// Whether the line has a `>` that was put there so that it would not begin a message.
fn is_quoted(line: &[u8], quoting: MboxQuoting) -> bool {
    let quotes = line.iter().take_while(|byte| **byte == b'>').count();
    let fits = match quoting {
        MboxQuoting::Rd => quotes >= 1,
        MboxQuoting::O => quotes == 1,
    };
    fits && line[quotes..].starts_with(FROM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::content_length::end_of_unquoted;
    use crate::replay::from_line::NO_FROM_LINE;

    const A: &str = "From ann@x.example Mon Jan  5 10:00:00 2015\n";
    const B: &str = "From bob@x.example  Tue Jan  6 10:00:00 2015\n";

    fn split(text: &[u8], quoting: MboxQuoting, limit: u64) -> Vec<MboxMessage> {
        let mut reader = MboxReader::new(text, 0, quoting, limit);
        let mut all = Vec::new();
        while let Some(message) = reader.next_message().expect("an mbox") {
            all.push(message);
        }
        all
    }

    fn texts(text: &str) -> Vec<String> {
        let all = split(text.as_bytes(), MboxQuoting::Rd, 0);
        let text = |one: MboxMessage| String::from_utf8(one.bytes.expect("small")).expect("text");
        all.into_iter().map(text).collect()
    }

    #[test]
    fn only_a_line_behind_an_empty_one_begins_a_message() {
        let text = format!(
            "{A}Subject: a\nContent-Length: 3\n\nFrom here on all is well.\n\nFrom here on, too.\n\
             {B}still the first\n\n\n{B}Subject: b\n\nbody\n"
        );
        let first = format!(
            "Subject: a\nContent-Length: 3\n\nFrom here on all is well.\n\nFrom here on, too.\n\
             {B}still the first\n\n"
        );
        assert_eq!(texts(&text), [first, "Subject: b\n\nbody\n".to_owned()]);
    }

    #[test]
    fn a_line_that_may_begin_a_message_is_kept_to_be_told() {
        let (first, second) = ("From bob@x.example 5 Jan 2015 10:00", "From 3 to 5 we are open.");
        let text = format!(
            "{A}Subject: a\n\nFrom here on all is well.\n\n{first}\nFrom 1 to 2\n\n{second}\r\n\n\
             >From 1 quoted\n\n{B}\nx\n\nFrom {}\n",
            "9".repeat(70_000)
        );
        let mut reader = MboxReader::new(text.as_bytes(), 0, MboxQuoting::Rd, 0);
        let at = |line: &str| text.find(line).expect("the line") as u64;
        let doubtful = |line: &str| {
            let text = line.to_owned();
            DoubtfulLine { at: at(line), is_behind_text: false, text }
        };
        reader.next_message().expect("an mbox");
        let kept = std::mem::take(&mut reader.doubtful);
        assert_eq!(kept, (vec![doubtful(first), doubtful(second)], 0));
        reader.next_message().expect("an mbox");
        assert_eq!(reader.doubtful.0[0].text.len(), DOUBTFUL_BYTES);

        let text = format!("{A}{}", "\nFrom 1\n".repeat(MOST_DOUBTFUL + 7));
        let mut reader = MboxReader::new(text.as_bytes(), 0, MboxQuoting::Rd, 0);
        reader.next_message().expect("an mbox");
        assert_eq!((reader.doubtful.0.len(), reader.doubtful.1), (MOST_DOUBTFUL, 7));
    }

    #[test]
    fn a_line_without_a_date_before_a_header_is_kept_to_be_told() {
        let text = format!("{A}Subject: a\n\nx\n\nFrom bob@x\nSubject: b\n\nFrom there\nto here\n");
        let mut reader = MboxReader::new(text.as_bytes(), 0, MboxQuoting::Rd, 0);
        reader.next_message().expect("an mbox");
        let (at, line) = (text.find("From bob").expect("the line") as u64, "From bob@x".to_owned());
        let doubtful = DoubtfulLine { at, is_behind_text: false, text: line };
        assert_eq!(reader.doubtful, (vec![doubtful], 0));
    }

    #[test]
    fn a_length_that_leads_beyond_a_from_line_to_another_message_is_of_an_mbox_without_quotes() {
        let file = |text: &str| {
            let mut file = tempfile::tempfile().expect("a file");
            io::Write::write_all(&mut file, text.as_bytes()).expect("written");
            file
        };
        let body = format!("x\n\n{B}Delivered-To: boss@x\n\ny\n");
        let end_of = |length: usize, behind: &str| {
            let first = format!("{A}Subject: a\ncontent-LENGTH: {length}\n\n");
            let text = format!("{first}{body}{behind}");
            let mut all = split(text.as_bytes(), MboxQuoting::Rd, 0);
            let one = all.remove(0);
            let size = text.len() as u64;
            let found = end_of_unquoted(&file(&text), one.end, one.claimed_end, size);
            found.expect("read").map(|end| text[usize::try_from(end).expect("an end")..].to_owned())
        };
        let length = body.len();
        let next = format!("{A}Subject: c\n\nz\n");
        for behind in [String::new(), next.clone()] {
            assert_eq!(end_of(length, &format!("\n{behind}")), Some(behind.clone()));
            assert_eq!(end_of(length, &behind), Some(behind));
        }
        // It counts nothing else, too much, or was not corrected.
        for wrong in [0, 1, 3, length - 1, length + 2, length + 1_000_000, usize::MAX] {
            assert_eq!(end_of(wrong, &format!("\n{next}")), None, "{wrong}");
        }
    }

    /// Thunderbird writes both: with an empty line and without one.
    #[test]
    fn a_line_with_a_date_and_a_header_begins_a_message_right_behind_text() {
        let header = |id: &str| {
            format!("X-Mozilla-Status: 0001\nFrom: ann@x\nReferences: <a@x>\n\t<b@x>\nDate: {id}\n")
        };
        let messages = ["1", "2", "3", "4"].map(|id| format!("{}\nbody\n--0--\n", header(id)));
        let [one, two, three, four] = &messages;
        let text = format!("{A}{one}{B}{two}\n{A}{three}{B}{four}");
        assert_eq!(texts(&text), messages);
        assert_eq!(
            texts(&text.replace('\n', "\r\n")),
            messages.clone().map(|m| m.replace('\n', "\r\n"))
        );
        let all = split(text.as_bytes(), MboxQuoting::Rd, 0);
        let starts = all.iter().map(|one| usize::try_from(one.start).expect("small"));
        assert!(starts.clone().all(|at| text[at..].starts_with("From ")), "{starts:?}");
        // A header without a body, and a file that ends within it.
        let ends = format!("{A}Subject: a\n\nx\n{B}{}", header("5"));
        assert_eq!(texts(&ends), ["Subject: a\n\nx\n".to_owned(), header("5")]);
        // What follows is text: it may be quoted in a mail.
        for text in [
            "To: ann\nSubject: b\n\nx\n".to_owned(),
            "Note: the door is open\nFrom: ann\nDate: today\nall day\n".to_owned(),
            format!("From: ann@x\n{}", "X: y\n".repeat(MOST_HEADER_LINES)),
        ] {
            let whole = format!("{A}Subject: a\n\nx\n{B}{text}");
            assert_eq!(texts(&whole), [whole.split_once('\n').expect("lines").1]);
        }
    }

    #[test]
    fn a_line_with_a_date_right_behind_text_is_kept_to_be_told() {
        let text = format!("{A}Subject: a\n\nx\n{B}y\nFrom 1 to 2\n\n{B}z\n");
        let mut reader = MboxReader::new(text.as_bytes(), 0, MboxQuoting::Rd, 0);
        let message = reader.next_message().expect("an mbox").expect("a message");
        let whole = format!("Subject: a\n\nx\n{B}y\nFrom 1 to 2\n");
        assert_eq!(message.bytes, Some(whole.into_bytes()));
        let at = text.find(B).expect("the line") as u64;
        let line = DoubtfulLine { at, is_behind_text: true, text: B.trim_end().to_owned() };
        assert_eq!(reader.doubtful, (vec![line], 0));
    }

    #[test]
    fn a_line_without_a_line_feed_or_without_an_end_begins_none() {
        let cr = format!("{A}Subject: a\n\nx\n\n{B}Subject: b\n\ny\n").replace('\n', "\r");
        let of_length = |length: usize| {
            let (name, date) = ("n".repeat(length - 30), " Mon Jan  5 10:00:00 2015\n");
            let line = format!("From {name}{date}");
            assert_eq!(line.len(), length + 1);
            line
        };
        assert!(is_from_line(of_length(NO_FROM_LINE - 2).as_bytes()));
        let long = [of_length(NO_FROM_LINE - 1), of_length(PIECE as usize + 100)];
        for text in [cr.clone(), cr.repeat(2000), long[0].clone(), long[1].clone()] {
            let ended = MboxReader::new(text.as_bytes(), 0, MboxQuoting::Rd, 0).next_message();
            assert!(matches!(ended, Err(MboxError::NoMbox)), "{} bytes", text.len());
        }
        assert_eq!(texts(A.trim_end()), [""]);
    }

    #[test]
    fn the_end_needs_no_empty_line_and_the_beginning_may_have_some() {
        let two = ["Subject: a\n\nx\n".to_owned(), "Subject: b\n\ny".to_owned()];
        assert_eq!(texts(&format!("\n\n{A}{}\n{B}{}", two[0], two[1])), two);
        assert_eq!(texts(&format!("{A}Subject: a\n\nx\n\n")), ["Subject: a\n\nx\n"]);
        assert_eq!(texts(&format!("{A}{B}\n{B}")), ["", "", ""]);
        assert_eq!(texts(""), Vec::<String>::new());
        assert_eq!(texts("\n"), Vec::<String>::new());
    }

    #[test]
    fn quotes_are_taken_off_as_they_were_put_on() {
        let text = format!("{A}Subject: a\n\n>From x\n>>From y\n> From z\n>Fromage\nx >From w\n");
        let body = |quoting| {
            let mut all = split(text.as_bytes(), quoting, 0);
            String::from_utf8(all.remove(0).bytes.expect("small")).expect("text")
        };
        let rd = "Subject: a\n\nFrom x\n>From y\n> From z\n>Fromage\nx >From w\n";
        let o = "Subject: a\n\nFrom x\n>>From y\n> From z\n>Fromage\nx >From w\n";
        assert_eq!((body(MboxQuoting::Rd).as_str(), body(MboxQuoting::O).as_str()), (rd, o));
    }

    #[test]
    fn line_ends_and_nul_stay() {
        let text =
            format!("{A}Subject: a\n\nx\0y\n\n{B}Subject: b\n\nFrom x\n").replace('\n', "\r\n");
        assert_eq!(texts(&text), ["Subject: a\r\n\r\nx\0y\r\n", "Subject: b\r\n\r\nFrom x\r\n"]);
    }

    #[test]
    fn offsets_lead_to_a_message_again() {
        let text = format!("{A}Subject: a\n\nx\n\n{B}Subject: b\n\ny\n\n{A}Subject: c\n\nz\n");
        let all = split(text.as_bytes(), MboxQuoting::Rd, 0);
        assert_eq!(all.len(), 3);
        assert_eq!((all[0].start, all[2].end), (0, text.len() as u64));
        for (before, one) in all.iter().zip(&all[1..]) {
            assert_eq!(before.end, one.start);
            let rest = &text.as_bytes()[one.start as usize..];
            let mut reader = MboxReader::new(rest, one.start, MboxQuoting::Rd, 0);
            assert_eq!(reader.next_message().expect("an mbox").as_ref(), Some(one));
        }
    }

    #[test]
    fn what_is_too_large_is_passed_by_and_the_next_is_whole() {
        let long = "y".repeat(300_000);
        let text = format!("{A}Subject: a\n\n{long}\n\n{B}Subject: b\n\nz\n");
        let all = split(text.as_bytes(), MboxQuoting::Rd, 100);
        let bytes: Vec<_> = all.iter().map(|one| one.bytes.as_deref()).collect();
        assert_eq!(bytes, [None, Some(&b"Subject: b\n\nz\n"[..])]);
        let whole = split(text.as_bytes(), MboxQuoting::Rd, 0);
        assert_eq!(whole[0].bytes.as_ref().map(Vec::len), Some(300_000 + 13));
        // A piece of a line begins none.
        let text = format!("{A}Subject: a\n\n{}From x\n", "y".repeat(PIECE as usize));
        assert_eq!(texts(&text).len(), 1);
    }

    #[test]
    fn what_is_no_mbox_is_said() {
        for text in ["Subject: a\n\nx\n", "From here\n\n", "\nx\n", "\0\n"] {
            let ended = MboxReader::new(text.as_bytes(), 0, MboxQuoting::O, 0).next_message();
            assert!(matches!(ended, Err(MboxError::NoMbox)), "{text:?}");
        }
    }
}
