//! The line that begins a message in an mbox: `From `, an address of whatever form, and a date.

/// How it begins.
pub const FROM: &[u8] = b"From ";
/// It is shorter.
pub const NO_FROM_LINE: usize = 1000;

/// Whether the line is `From ` and, after an address of whatever form, a date: `Thu Jan  1 00:00:00
/// 1970` with a time zone before or after the year or none, or as in a Date field, `Thu, 1 Jan 1970
/// 00:00:00`. The year may have two digits, as mutt takes it. `line` has its line feed, unless the
/// file ends there. Where lines end in CR alone, the file is one line.
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

/// Whether a line begins a header field.
pub fn is_field(line: &[u8]) -> bool {
    let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
    name.len() < line.len() && !name.is_empty() && name.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
