//! Reads the date of a Date or Received field for a message's identity: RFC 5322 section 3.3 with
//! the obsolete forms of section 4.3 (named zones, years of two and three digits, comments and
//! blanks between all parts). Anything else is not a date.
//!
//! Written by hand because the result is part of the ledger's frozen format: whether a date can be
//! read decides what counts for the identity, and a crate may become more or less tolerant with its
//! next version. Dates for display come from `facts.rs`.

use jiff::civil::{Date, date};

/// Seconds since 1970-01-01 00:00 UTC, `None` if `value` is not one date-time as a whole.
pub(super) fn seconds(value: &[u8]) -> Option<i64> {
    let mut scanner = Scanner { rest: value };
    scanner.skip_blanks_and_comments()?;
    if scanner.rest.first()?.is_ascii_alphabetic() {
        position(&DAYS, scanner.letters()?)?;
        scanner.symbol(b',')?;
    }
    let day = scanner.number(1, 2)?;
    let month = position(&MONTHS, scanner.letters()?)?;
    let year = scanner.year()?;
    let hour = scanner.number(2, 2)?;
    scanner.symbol(b':')?;
    let minute = scanner.number(2, 2)?;
    let second = match scanner.rest.first() {
        Some(b':') => {
            scanner.symbol(b':')?;
            scanner.number(2, 2)?
        }
        _ => 0,
    };
    let ahead_of_utc = scanner.zone()?;
    if hour > 23 || minute > 59 || second > 60 || !scanner.rest.is_empty() {
        return None;
    }
    // At most four, two and two digits.
    let day = Date::new(year as i16, month as i8 + 1, day as i8).ok()?;
    let midnight = day.duration_since(date(1970, 1, 1)).as_secs();
    Some(midnight + hour * 3600 + minute * 60 + second - ahead_of_utc)
}

const DAYS: [&[u8]; 7] = [b"mon", b"tue", b"wed", b"thu", b"fri", b"sat", b"sun"];
const MONTHS: [&[u8]; 12] = [
    b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec",
];

fn position(names: &[&[u8]], name: &[u8]) -> Option<usize> {
    names.iter().position(|known| name.eq_ignore_ascii_case(known))
}

/// Each step consumes one part and the blanks and comments after it.
struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    /// `None` if a comment does not end (RFC 5322 section 3.2.2: comments nest, a backslash
    /// quotes).
    fn skip_blanks_and_comments(&mut self) -> Option<()> {
        let mut depth = 0usize;
        while let [first, rest @ ..] = self.rest {
            let mut after = rest;
            match first {
                b'(' => depth += 1,
                b')' if depth > 0 => depth -= 1,
                b'\\' if depth > 0 => after = rest.get(1..)?,
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if depth > 0 => {}
                _ => break,
            }
            self.rest = after;
        }
        (depth == 0).then_some(())
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.skip_blanks_and_comments()?;
        Some(taken)
    }

    fn letters(&mut self) -> Option<&'a [u8]> {
        self.take(self.rest.iter().take_while(|byte| byte.is_ascii_alphabetic()).count())
    }

    fn symbol(&mut self, symbol: u8) -> Option<()> {
        self.rest.starts_with(&[symbol]).then(|| self.take(1))?.map(|_| ())
    }

    /// A number of `least` to `most` digits, not followed by another digit.
    fn number(&mut self, least: usize, most: usize) -> Option<i64> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits < least || digits > most {
            return None;
        }
        Some(
            self.take(digits)?
                .iter()
                .fold(0, |number, digit| number * 10 + i64::from(digit - b'0')),
        )
    }

    /// Section 4.3: two digits below 50 count from 2000, other two and three digits from 1900.
    fn year(&mut self) -> Option<i64> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let year = self.number(2, 4)?;
        Some(match (digits, year) {
            (2, 0..=49) => year + 2000,
            (2 | 3, _) => year + 1900,
            _ => year,
        })
    }

    /// Seconds by which the zone is ahead of UTC. Military letters and names that section 4.3 does
    /// not list count as UTC.
    fn zone(&mut self) -> Option<i64> {
        let sign = match self.rest.first()? {
            b'+' => 1,
            b'-' => -1,
            _ => {
                let name = self.letters()?.to_ascii_lowercase();
                return Some(match name.as_slice() {
                    b"edt" => -4 * 3600,
                    b"est" | b"cdt" => -5 * 3600,
                    b"cst" | b"mdt" => -6 * 3600,
                    b"mst" | b"pdt" => -7 * 3600,
                    b"pst" => -8 * 3600,
                    _ => 0,
                });
            }
        };
        // Without `take`: no blanks may follow the sign.
        self.rest = &self.rest[1..];
        let offset = self.number(4, 4)?;
        (offset % 100 < 60).then_some(sign * (offset / 100 * 3600 + offset % 100 * 60))
    }
}
