//! Which dates are read. A Date counts if it can be read and is from seven days before the oldest
//! Received to two days after it; else that Received counts for the identity. So each reading
//! shows, to the second.

use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};

use super::identity;

const PLAIN: &str = "Sun, 22 Nov 2026 10:20:30 +0000";

/// Whether the Date is read and not too late for the Received.
fn counts(date: &str, received: &str) -> bool {
    let [one, other] = ["one", "other"].map(|by| {
        let header = format!("Received: by {by}; {received}\nMessage-ID: <a@b>\nDate: {date}\n");
        identity(header + "\nbody\n")
    });
    one == other
}

fn plain(seconds: i64) -> String {
    let time = Timestamp::from_second(seconds).expect("a time");
    rfc2822::DateTimePrinter::new().timestamp_to_string(&time).expect("a date")
}

fn seconds(plain: &str) -> i64 {
    rfc2822::parse(plain).expect(plain).timestamp().as_second()
}

/// `text` is the time that `plain` is.
fn assert_same(text: &str, plain_text: &str) {
    let latest = seconds(plain_text) + SignedDuration::from_hours(48).as_secs();
    assert!(counts(&plain(latest), text), "{text} is before {plain_text}, or no date");
    assert!(!counts(&plain(latest + 1), text), "{text} is after {plain_text}");
}

#[test]
fn a_date_is_a_time_in_utc() {
    for (text, same) in [
        (PLAIN, PLAIN),
        ("22 Nov 2026 10:20 +0000", "Sun, 22 Nov 2026 10:20:00 +0000"),
        ("sun, 22 NOV 2026 10:20:30 +0130", "Sun, 22 Nov 2026 08:50:30 +0000"),
        ("Sun, 22 Nov 2026 10:20:30 -0830", "Sun, 22 Nov 2026 18:50:30 +0000"),
        ("31 Dec 2025 23:59:60 +0000", "1 Jan 2026 00:00:00 +0000"),
        ("29 Feb 2000 12:00:00 UT", "29 Feb 2000 12:00:00 +0000"),
        ("1 Mar 2000 00:00:00 UT", "1 Mar 2000 00:00:00 +0000"),
        ("29 Feb 2024 00:00:00 Z", "29 Feb 2024 00:00:00 +0000"),
        ("31 Dec 9998 23:59:59 Z", "31 Dec 9998 23:59:59 +0000"),
    ] {
        assert_same(text, same);
    }
    let months = "jan feb mar apr may jun jul aug sep oct nov dec";
    for (month, days) in
        months.split(' ').zip([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334])
    {
        let first = seconds("1 Jan 2001 00:00:00 +0000");
        assert_same(&format!("1 {month} 2001 00:00 GMT"), &plain(first + days * 86_400));
    }
    for day in ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"] {
        assert_same(&format!("{day}, 22 Nov 2026 10:20:30 GMT"), PLAIN);
    }
    // Earlier than any Date that counts: they are read, and that is all that shows.
    for early in [
        "1 Jan 1970 00:00:00 GMT",
        "31 Dec 1969 23:59:59 GMT",
        "28 Feb 1900 00:00:00 Z",
        "1 Jan 0001 00:00:00 Z",
        "1 Jan 0000 00:00:00 Z",
    ] {
        assert!(!counts(PLAIN, early), "{early}");
    }
    // And later than any.
    assert!(!counts(PLAIN, "31 Dec 9999 23:59:59 Z"));
}

#[test]
fn obsolete_years_and_zones_are_read() {
    for (year, expected) in
        [("00", "2000"), ("49", "2049"), ("99", "1999"), ("126", "2026"), ("999", "2899")]
    {
        let plain = format!("1 Mar {expected} 10:00:00 +0000");
        assert_same(&format!("1 Mar {year} 10:00:00 +0000"), &plain);
    }
    for early in ["50", "000", "049"] {
        assert!(!counts(PLAIN, &format!("1 Mar {early} 10:00:00 +0000")), "{early}");
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
        ("A", "+0000"),
        ("CET", "+0000"),
        ("+2359", "+2359"),
    ] {
        let plain = format!("1 Mar 2026 10:00:00 {expected}");
        assert_same(&format!("1 Mar 2026 10:00:00 {zone}"), &plain);
    }
    // An offset of more hours than a day has: 1 Mar 2026 10:00 is 100 hours later than that.
    assert_same("1 Mar 2026 10:00:00 +9959", "25 Feb 2026 06:01:00 +0000");
}

#[test]
fn comments_and_folding_are_allowed_between_all_parts() {
    for text in [
        " (a) Sun (b) , (c) 22 (d) Nov (e) 2026 (f) 10 (g) : (h) 20 (i) : (j) 30 (k) +0000 () ",
        "Sun,\r\n\t22 Nov\n 2026 10:20:30(nested (\\) \\( :) twice)+0000",
        "22Nov2026 10:20:30+0000()",
    ] {
        assert_same(text, PLAIN);
    }
    // A semicolon would end the Received's clauses.
    assert!(counts("Sun, 22 Nov 2026 (a; b) 10:20:30 +0000", PLAIN));
}

#[test]
fn any_other_syntax_is_not_a_date() {
    assert!(counts(PLAIN, PLAIN));
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
        assert!(!counts(text, PLAIN), "{text}");
        assert!(counts("1 Jan 9000 00:00 GMT", text), "{text} in a Received");
    }
}
