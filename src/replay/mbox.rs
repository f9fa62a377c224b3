//! Splits an mbox into messages, one at a time, whatever its size. By hand: mail-parser's reader
//! cuts a message at any body line that begins with `From `, and knows neither offsets nor limits.
//!
//! A From_ line begins a message only at the beginning or behind an empty line, and only with a
//! date that reads as one; what looks like one otherwise is kept to be told. Content-Length is not
//! believed: programs that rewrite a message forget to correct it. The empty line before a From_
//! line, or before the end, belongs to the mbox.

use std::io::{self, BufRead, Read};

use crate::command_line::MboxQuoting;

/// Lines are read in pieces of at most this size.
const PIECE: u64 = 64 * 1024;
/// A From_ line is shorter.
const NO_FROM_LINE: usize = 1000;
const FROM: &[u8] = b"From ";
/// So many lines are kept that may be From_ lines, and so many bytes of each.
const MOST_DOUBTFUL: usize = 20;
const DOUBTFUL_BYTES: usize = 100;

/// A message in an mbox.
#[derive(Debug, PartialEq, Eq)]
pub struct MboxMessage {
    /// Where its From_ line begins.
    pub start: u64,
    /// Where the next one begins, or the mbox ends.
    pub end: u64,
    /// Without the From_ line, and unquoted; `None`: it is larger than may be.
    pub bytes: Option<Vec<u8>>,
}

/// A line that counts as text, and that a program may have meant to begin a message: one that
/// begins with `From ` and has a number, but no date that reads as one; or a From_ line with no
/// empty line before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoubtfulLine {
    /// Where it begins.
    pub at: u64,
    /// It has a date, and stands right behind text.
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
    /// Messages have at most so many bytes, unless it is 0.
    limit: u64,
    /// Of the next byte that is read.
    offset: u64,
    piece: Vec<u8>,
    /// `piece` begins a line.
    is_line: bool,
    /// Where the From_ line begins that was read last.
    opened: Option<u64>,
    /// The first ones, and how many more there were; whoever tells them takes them out.
    pub doubtful: (Vec<DoubtfulLine>, u64),
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
        let (piece, doubtful) = (Vec::new(), (Vec::new(), 0));
        MboxReader { input, quoting, limit, offset, piece, is_line: true, opened: None, doubtful }
    }

    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// It is no mbox, or cannot be read.
    pub fn next_message(&mut self) -> Result<Option<MboxMessage>, MboxError> {
        let Some(start) = self.open()? else { return Ok(None) };
        let mut message =
            MessageBuffer { bytes: Vec::new(), limit: self.limit, is_too_large: false };
        // An empty line that may belong to the mbox.
        let mut held: Vec<u8> = Vec::new();
        loop {
            let at = self.offset;
            let is_line = self.is_line;
            if !self.read_piece()? {
                break;
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
                    (true, false) | (false, true) => self.doubt(at, !is_behind_empty),
                    (false, false) => {}
                }
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
        Ok(Some(MboxMessage { start, end, bytes }))
    }

    /// Keeps the line at `at`, unless it cannot have a date.
    fn doubt(&mut self, at: u64, is_behind_text: bool) {
        let (first, more) = &mut self.doubtful;
        match self.piece.iter().any(u8::is_ascii_digit) {
            true if first.len() < MOST_DOUBTFUL => {
                let line = self.piece.trim_ascii_end();
                let line = &line[..line.len().min(DOUBTFUL_BYTES)];
                let text = String::from_utf8_lossy(line).into_owned();
                first.push(DoubtfulLine { at, is_behind_text, text });
            }
            true => *more += 1,
            false => {}
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
        self.piece.clear();
        let count = (&mut self.input).take(PIECE).read_until(b'\n', &mut self.piece)?;
        self.offset += count as u64;
        self.is_line = self.piece.ends_with(b"\n");
        Ok(count > 0)
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

/// Whether the line is `From ` and, behind an address of whatever form, a date:
/// `Thu Jan  1 00:00:00 1970` with a time zone before or behind the year or none, or as in a Date
/// field, `Thu, 1 Jan 1970 00:00:00`. The year may have two digits, as mutt takes it. `line` has
/// its line feed, unless the file ends there. Where lines end in CR alone, the file is one line.
pub fn is_from_line(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(FROM) else { return false };
    let rest = rest.trim_ascii_end();
    if line.len() >= NO_FROM_LINE || rest.contains(&b'\r') {
        return false;
    }
    let Ok(rest) = std::str::from_utf8(rest) else { return has_date_at_end(rest) };
    has_date(rest)
}

/// The address may hold any bytes.
fn has_date_at_end(rest: &[u8]) -> bool {
    let ascii: String =
        rest.iter().map(|byte| if byte.is_ascii() { char::from(*byte) } else { '?' }).collect();
    has_date(ascii.trim_ascii_end())
}

fn has_date(text: &str) -> bool {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let is_weekday = |word: &str| WEEKDAYS.contains(&word.trim_end_matches(','));
    (0..words.len()).any(|at| is_weekday(words[at]) && is_date(&words[at + 1..]))
}

const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// What follows the weekday.
fn is_date(words: &[&str]) -> bool {
    match words {
        [month, day, time, rest @ ..] if MONTHS.contains(month) => {
            let year = rest.iter().take(3).position(|word| is_year(word));
            let zones = year.map(|year| &rest[..year]);
            is_day(day) && is_time(time) && zones.is_some_and(|zones| zones.iter().all(is_zone))
        }
        [day, month, year, time, ..] => {
            is_day(day) && MONTHS.contains(month) && is_year(year) && is_time(time)
        }
        _ => false,
    }
}

fn number(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let is_number = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn is_day(word: &str) -> bool {
    number(word, 1..=2).is_some_and(|day| (1..=31).contains(&day))
}

fn is_year(word: &str) -> bool {
    number(word, 2..=2).is_some() || number(word, 4..=4).is_some_and(|year| year >= 1900)
}

/// `12:00`, `12:00:00`
fn is_time(word: &str) -> bool {
    let mut parts = word.split(':').map(|part| number(part, 1..=2));
    let is_below = |part: Option<Option<u32>>, end| part.flatten().is_some_and(|part| part < end);
    let (hour, minute, second) = (parts.next(), parts.next(), parts.next());
    let is_second = second.is_none() || is_below(second, 61);
    is_below(hour, 24) && is_below(minute, 60) && is_second && parts.next().is_none()
}

/// `+0100`, `EST`, `(CET)`
fn is_zone(word: &&str) -> bool {
    let is_offset = word.strip_prefix(['+', '-']).is_some_and(|rest| number(rest, 4..=4).is_some());
    let name = word.trim_start_matches('(').trim_end_matches(')');
    let is_name = (1..=5).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphabetic());
    is_offset || is_name
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_line_with_a_date_begins_a_message() {
        for line in [
            "From ann@x.example Mon Jan  5 10:00:00 2015",
            "From - Tue Apr 05 12:34:56 2022",
            "From MAILER-DAEMON Fri Jul  8 12:08 2011",
            "From 1586@xxx Tue Nov 03 14:12:33 +0000 2015",
            "From ann Thu Jan  1 00:00:00 EST 1998",
            "From ann Thu Jan  1 00:00:00 1998 -0500",
            "From ann at x.example  Thu Jan  1 00:00:00 2015",
            "From ann Thu Jan  1 00:00:00 1998 remote from far",
            "From \"ann smith\"@x.example Thu, 1 Jan 2015 00:00:00 +0000",
            "From Thu Jan  1 00:00:00 2015",
            "From a@b Mon Jan  2 03:04:05 95",
            "From a@b Mon Jan  2 03:04 PST 95",
            "From a@b Wed, 6 Dec 92 05:53:22 remote from far",
        ] {
            for end in ["", "\n", "\r\n"] {
                assert!(is_from_line(format!("{line}{end}").as_bytes()), "{line}");
            }
        }
        assert!(is_from_line(b"From \xff\xfe@x Thu Jan  1 00:00:00 2015\n"));
        for line in [
            "From here on all is well",
            "From Monday to Friday",
            "From Mon Jan to Tue",
            "From ann Mon Jan 32 10:00:00 2015",
            "From ann Mon Jan  5 24:00:00 2015",
            "From ann Mon Jan  5 10:60:00 2015",
            "From ann Mon Jan  5 10:00:00",
            "From ann Mon Jan  5 10:00:00 100",
            "From ann Mon Jan  5 10:00:00 1899",
            "From ann Mon Jan  5 10:00:00 perhaps maybe 2015 it was",
            "From ann Mon Jab  5 10:00:00 2015",
            "from ann Mon Jan  5 10:00:00 2015",
            ">From ann Mon Jan  5 10:00:00 2015",
            " From ann Mon Jan  5 10:00:00 2015",
            "From: ann Mon Jan  5 10:00:00 2015",
        ] {
            assert!(!is_from_line(line.as_bytes()), "{line}");
        }
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
