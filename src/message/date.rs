//! Reads the date of a Date or Received field for a message's identity: RFC 5322 section 3.3 with
//! the obsolete forms of section 4.3 (named zones, years of two and three digits, comments and
//! blanks between all parts). Anything else is not a date.
//!
//! Written by hand because the result is part of the ledger's frozen format: whether a date can be
//! read decides what counts for the identity, and a crate may become more or less tolerant with its
//! next version. Dates for display come from `facts.rs`.

const SECONDS_A_DAY: i64 = 86_400;

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
    let is_valid =
        (1..=days_in(year, month)).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    if !is_valid || !scanner.rest.is_empty() {
        return None;
    }
    let days = days_since_1970(year, month, day);
    Some(days * SECONDS_A_DAY + hour * 3600 + minute * 60 + second - ahead_of_utc)
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

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// `month` from 0.
fn days_in(year: i64, month: usize) -> i64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

fn days_since_1970(year: i64, month: usize, day: i64) -> i64 {
    // Days before a year in the proleptic Gregorian calendar, counted from the year 1.
    let before = |year: i64| {
        let full = year - 1;
        full * 365 + full.div_euclid(4) - full.div_euclid(100) + full.div_euclid(400)
    };
    let in_year: i64 = (0..month).map(|month| days_in(year, month)).sum();
    before(year) - before(1970) + in_year + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<i64> {
        seconds(text.as_bytes())
    }

    /// The numbers are from `date -u -d ... +%s`.
    #[test]
    fn dates_are_seconds_since_1970_in_utc() {
        for (text, expected) in [
            ("Sun, 22 Nov 2026 10:20:30 +0000", 1_795_342_830),
            ("22 Nov 2026 10:20 +0000", 1_795_342_800),
            ("sun, 22 NOV 2026 10:20:30 +0130", 1_795_337_430),
            ("Sun, 22 Nov 2026 10:20:30 -0830", 1_795_373_430),
            ("1 Jan 1970 00:00:00 GMT", 0),
            ("31 Dec 1969 23:59:59 GMT", -1),
            ("31 Dec 1989 23:59:60 +0000", 631_152_000),
            ("29 Feb 2000 12:00:00 UT", 951_825_600),
            ("1 Mar 2000 00:00:00 UT", 951_868_800),
            ("29 Feb 2024 00:00:00 Z", 1_709_164_800),
            ("28 Feb 1900 00:00:00 Z", -2_203_977_600),
            ("1 Jan 0001 00:00:00 Z", -62_135_596_800),
            ("1 Jan 0000 00:00:00 Z", -62_167_219_200),
            ("31 Dec 9999 23:59:59 Z", 253_402_300_799),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
        for (month, expected) in MONTHS.iter().zip(
            [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334]
                .map(|days| days * SECONDS_A_DAY),
        ) {
            let month = String::from_utf8_lossy(month);
            assert_eq!(read(&format!("1 {month} 1970 00:00 GMT")), Some(expected), "{month}");
        }
        for day in DAYS {
            assert_eq!(
                read(&format!("{}, 1 Jan 1970 00:00 GMT", String::from_utf8_lossy(day))),
                Some(0)
            );
        }
    }

    #[test]
    fn obsolete_years_and_zones_are_read() {
        for (year, expected) in [
            ("00", "2000"),
            ("49", "2049"),
            ("50", "1950"),
            ("99", "1999"),
            ("000", "1900"),
            ("049", "1949"),
            ("126", "2026"),
            ("999", "2899"),
        ] {
            let date = |year| read(&format!("1 Mar {year} 10:00:00 +0000"));
            assert!(date(year).is_some());
            assert_eq!(date(year), date(expected), "{year}");
        }
        for (zone, expected) in [
            ("ut", "+0000"),
            ("GMT", "+0000"),
            ("EST", "-0500"),
            ("EDT", "-0400"),
            ("cst", "-0600"),
            ("CDT", "-0500"),
            ("MST", "-0700"),
            ("MDT", "-0600"),
            ("PST", "-0800"),
            ("pdt", "-0700"),
            ("A", "-0000"),
            ("CET", "+0000"),
            ("+9959", "+9959"),
        ] {
            let date = |zone| read(&format!("1 Mar 2026 10:00:00 {zone}"));
            assert!(date(zone).is_some());
            assert_eq!(date(zone), date(expected), "{zone}");
        }
    }

    #[test]
    fn comments_and_folding_are_allowed_between_all_parts() {
        let plain = read("Sun, 22 Nov 2026 10:20:30 +0000");
        for text in [
            " (a) Sun (b) , (c) 22 (d) Nov (e) 2026 (f) 10 (g) : (h) 20 (i) : (j) 30 (k) +0000 () ",
            "Sun,\r\n\t22 Nov\n 2026 10:20:30(nested (\\) \\( ;) twice)+0000",
            "22Nov2026 10:20:30+0000()",
        ] {
            assert_eq!(read(text), plain, "{text}");
        }
    }

    #[test]
    fn any_other_syntax_is_not_a_date() {
        for text in [
            "",
            " ",
            "now",
            "Sun,",
            "Sun 22 Nov 2026 10:20:30 +0000",
            "Son, 22 Nov 2026 10:20:30 +0000",
            "Sunday, 22 Nov 2026 10:20:30 +0000",
            "Sun Nov 22 10:20:30 2026",
            "2026-11-22T10:20:30Z",
            "Sun, 22 November 2026 10:20:30 +0000",
            "Sun, 22-Nov-2026 10:20:30 +0000",
            "Sun, 022 Nov 2026 10:20:30 +0000",
            "Sun, Nov 2026 10:20:30 +0000",
            "Sun, 0 Nov 2026 10:20:30 +0000",
            "Sun, 31 Nov 2026 10:20:30 +0000",
            "Sun, 32 Dec 2026 10:20:30 +0000",
            "29 Feb 1900 10:20:30 +0000",
            "29 Feb 2026 10:20:30 +0000",
            "30 Feb 2024 10:20:30 +0000",
            "31 Apr 2026 10:20:30 +0000",
            "31 Jun 2026 10:20:30 +0000",
            "31 Sep 2026 10:20:30 +0000",
            "Sun, 22 Nov 6 10:20:30 +0000",
            "Sun, 22 Nov 12026 10:20:30 +0000",
            "Sun, 22 Nov 2026 24:20:30 +0000",
            "Sun, 22 Nov 2026 9:20:30 +0000",
            "Sun, 22 Nov 2026 10:60:30 +0000",
            "Sun, 22 Nov 2026 10:20:61 +0000",
            "Sun, 22 Nov 2026 10:20:3 +0000",
            "Sun, 22 Nov 2026 10:20:30:00 +0000",
            "Sun, 22 Nov 2026 10.20.30 +0000",
            "Sun, 22 Nov 2026 10 +0000",
            "Sun, 22 Nov 2026 10:20:30",
            "Sun, 22 Nov 2026 10:20:30 +000",
            "Sun, 22 Nov 2026 10:20:30 +00000",
            "Sun, 22 Nov 2026 10:20:30 +0060",
            "Sun, 22 Nov 2026 10:20:30 + 0000",
            "Sun, 22 Nov 2026 10:20:30 0000",
            "Sun, 22 Nov 2026 10:20:30 +0000 UTC",
            "Sun, 22 Nov 2026 10:20:30 GMT+1",
            "Sun, 22 Nov 2026 10:20:30 +0000 (open",
            "Sun, 22 Nov 2026 10:20:30 +0000 (open\\",
            "Sun, 22 Nov 2026 10:20:30 +0000 (open\\)",
            "Sun, 22 Nov 2026 10:20:30 +0000)",
            "Sun, 22 Nov 2026 10:20:30 +0000 \\",
            "\\Sun, 22 Nov 2026 10:20:30 +0000",
            "\\xSun, 22 Nov 2026 10:20:30 +0000",
            "Sun, 22 Nov 2026 10:20:30 +0000 \\x",
            "Sun, 22\u{c} Nov 2026 10:20:30 +0000",
            "Sun, 22 Nov 2026 10:20:30 +0000\0",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
