//! What makes two messages the same.

use onedrop_core::lock_key::{self, Hash};
use onedrop_core::message::{DedupBy, Identity};

use super::identity;

#[test]
fn trace_fields_line_ends_and_folding_do_not_change_the_identity() {
    let plain = b"Message-ID: <a@b>\nDate: 1 Mar 2026 10:00 GMT\nSubject: one two\n\nbody\n";
    let travelled = b"Return-Path: <x@y>\r\nDelivered-To: doug@b\r\n\
        Received: from a by b;\r\n\tnow\r\nMESSAGE-ID:\r\n <a@b>\r\nX-Spam-Flag: NO\r\n\
        Date: 1 Mar\r\n\t 2026 10:00 GMT\r\nSubject: one\r\n  two \r\n\r\nbody\r\n\r\n\r\n";
    assert_eq!(identity(plain), identity(travelled));
    assert_eq!(identity(plain), identity(plain.trim_ascii_end()));
}

#[test]
fn other_content_by_the_author_makes_another_message() {
    let one = identity(b"Message-ID: <a@b>\nSubject: one\n\nbody\n");
    for other in [
        &b"Message-ID: <a@b>\nSubject: two\n\nbody\n"[..],
        b"Message-ID: <a@b>\nSubject: one\n\nbody \n",
        b"Message-ID: <a@b>\nSubject: one\nCc: lisa@gmail.com\n\nbody\n",
    ] {
        let other = identity(other);
        assert_eq!(one.id_hash, other.id_hash);
        assert_ne!(one, other);
    }
}

/// Written out, so that the code's lists are not compared with themselves.
const WRITTEN_BY_THE_AUTHOR: &str = "From Sender Reply-To To Cc Subject Date Message-ID \
    In-Reply-To References MIME-Version Mail-Followup-To Mail-Reply-To Autocrypt \
    Disposition-Notification-To Return-Receipt-To Content-Type Content-Transfer-Encoding \
    Content-Disposition Content-ID Content-Language Content-Lengths Resent-From Resent-Sender \
    Resent-To Resent-Cc Resent-Date Resent-Message-ID Resent-Reply-To Resent-Bccs";

const ADDED_ON_THE_WAY: &str = "Return-Path Delivered-To X-Original-To Envelope-To Received \
    Received-SPF Authentication-Results DKIM-Signature DomainKey-Signature ARC-Seal \
    ARC-Message-Signature ARC-Authentication-Results X-Spam-Status X-Spam-Flag X-Virus-Scanned \
    X-Mailer X-Message-ID X-Content-Type Errors-To Precedence List-Id List-Post List-Help \
    List-Subscribe List-Unsubscribe List-Unsubscribe-Post List-Archive List-Owner Bcc Resent-Bcc \
    Content-Length Lines Status X-Status X-UID Apparently-To Importance User-Agent";

/// The digests with this line above, between and below the other header lines.
fn digests_with(line: &str) -> [Hash; 3] {
    let [one, two] =
        ["Message-ID: <a@b>\nDate: 1 Mar 2026 10:00 +0000\n", "From: lisa@gmail.com\nSubject: x\n"];
    [[line, one, two], [one, line, two], [one, two, line]]
        .map(|lines| identity(format!("{}\nbody\n", lines.concat())).digest)
}

#[test]
fn each_field_of_the_authors_counts() {
    for name in WRITTEN_BY_THE_AUTHOR.split(' ') {
        let digests =
            ["", "one@x", "two@x"].map(|value| digests_with(&format!("{name}: {value}\n")));
        for other in [digests[1], digests[2], digests_with("")] {
            for (at, digest) in other.iter().enumerate() {
                assert_ne!(digests[0][at], *digest, "{name}");
            }
        }
        assert_ne!(digests[1], digests[2], "{name}");
        // The name's case and blanks before the colon do not matter.
        for name in [name.to_uppercase(), name.to_lowercase(), format!("{name} ")] {
            assert_eq!(digests_with(&format!("{name}: one@x\n")), digests[1], "{name}");
        }
    }
}

#[test]
fn no_field_that_is_added_on_the_way_counts() {
    let plain = digests_with("");
    for name in ADDED_ON_THE_WAY.split(' ') {
        for value in ["", "one@x", "by mx.example (Postfix) id A1; Sun, 1 Mar 2026 10:00:05 +0000"]
        {
            assert_eq!(digests_with(&format!("{name}: {value}\n")), plain, "{name}: {value}");
        }
    }
}

const ID: &str = "Message-ID: <a@b>\n";
const DATE: &str = "Date: Sun, 1 Mar 2026 10:00:00 +0000\n";

/// Whether an alarm with these fields is two messages if it arrives twice. Each time the first
/// server and a relay prepend a Received.
fn is_new_each_time(fields: &str) -> bool {
    let alarm = |id: &str, minute: u8| {
        let received = format!(
            "Received: from relay by mx id {id}2; Sun, 1 Mar 2026 10:{minute:02}:30 +0000\n\
             Received: from ups by relay id {id};\n\tSun, 1 Mar 2026 10:{minute:02}:00 +0000\n"
        );
        identity(format!("{received}Subject: on battery\n{fields}\nbody\n"))
    };
    assert_eq!(alarm("A", 0), alarm("A", 0));
    alarm("A", 0) != alarm("B", 5)
}

#[test]
fn an_alarm_without_a_usable_id_or_date_is_new_each_time_it_arrives() {
    assert!(!is_new_each_time(&[ID, DATE].concat()));
    for without in ["", ID, DATE] {
        assert!(is_new_each_time(without), "{without}");
    }
    let longest = format!("Message-ID: {}\n", "x".repeat(4096));
    assert!(!is_new_each_time(&[&longest, DATE].concat()));
    let longer = format!("Message-ID: {}\n", "x".repeat(4097));
    for id in ["Message-ID:\n", "Message-ID: \n\t \n", "Message-ID:\nMessage-ID: <a@b>\n", &longer]
    {
        assert!(is_new_each_time(&[id, DATE].concat()), "{id}");
    }
    for date in ["", " ", "now", "Sun Mar  1 10:00:00 2026", "Sun, 1 Mar 2026 10:00:00"] {
        assert!(is_new_each_time(&format!("{ID}Date: {date}\n{DATE}")), "{date}");
    }
}

#[test]
fn the_date_of_a_wrong_clock_does_not_count() {
    for (date, says_nothing) in [
        ("1 Jan 1970 00:00:00 +0000", true),
        // What chips begin with when their battery was flat.
        ("1 Jan 2000 00:00:12 +0000", true),
        ("1 Jan 2018 00:00:00 +0000", true),
        ("22 Feb 2026 09:59:59 +0000", true),
        ("22 Feb 2026 10:05:00 +0000", false),
        ("3 Mar 2026 10:00:00 +0000", false),
        ("3 Mar 2026 10:05:01 +0000", true),
        ("3 Mar 2026 05:05:01 EST", true),
        ("19 Jan 2038 03:14:07 +0000", true),
    ] {
        assert_eq!(is_new_each_time(&format!("{ID}Date: {date}\n")), says_nothing, "{date}");
    }
    // The limits are exact to the second.
    let with = |date: &str, received: &str| {
        identity(format!("Received: by x; {received}\n{ID}Date: {date}\n\nbody\n"))
    };
    let without = |date: &str| identity(format!("{ID}Date: {date}\n\nbody\n"));
    for (date, received, counts) in [
        ("3 Mar 2026 10:00:00 +0000", "1 Mar 2026 10:00:00 +0000", false),
        ("3 Mar 2026 10:00:01 +0000", "1 Mar 2026 10:00:00 +0000", true),
        ("3 Mar 2026 10:00:01 +0000", "1 Mar 2026 10:00:01 +0000 (a comment)", false),
        ("22 Feb 2026 10:00:00 +0000", "1 Mar 2026 10:00:00 +0000", false),
        ("22 Feb 2026 09:59:59 +0000", "1 Mar 2026 10:00:00 +0000", true),
        ("31 Dec 1989 23:59:59 +0000", "1 Jan 1990 10:00:00 +0000", true),
        ("1 Jan 1990 00:00:00 +0000", "1 Jan 1990 10:00:00 +0000", false),
        ("31 Dec 1989 23:00:00 -0100", "1 Jan 1990 10:00:00 +0000", false),
        ("1 Jan 1990 00:59:59 +0100", "1 Jan 1990 10:00:00 +0000", true),
        // Without a readable date in the Received no Date is too early or too late.
        ("3 Mar 2006 10:00:00 +0000", "some day", false),
        ("3 Mar 2036 10:00:00 +0000", "some day", false),
        ("3 Mar 2036 10:00:00 +0000", "", false),
    ] {
        assert_eq!(with(date, received) != without(date), counts, "{date}, {received}");
    }
}

#[test]
fn the_date_of_a_received_follows_its_last_semicolon() {
    let late = format!("{ID}Date: 3 Mar 2036 10:00:00 +0000\n");
    let counts = |received: &str| {
        identity(format!("Received: {received}\n{late}\n")) != identity(format!("{late}\n"))
    };
    assert!(counts("by x (a; b); 1 Mar 2026 10:00:00 +0000"));
    assert!(counts("; 1 Mar 2026 10:00:00 +0000"));
    assert!(!counts("by x 1 Mar 2026 10:00:00 +0000"));
    assert!(!counts("by x; 1 Mar 2026 10:00:00 +0000; y"));
}

/// What names nothing is the same in every message of a broken mailer: by Message-ID alone the
/// second one would be lost.
#[test]
fn an_id_that_names_nothing_is_none() {
    let by_id = |id: &str, text: &str| {
        let bytes = format!("Message-ID: {id}\nSubject: {text}\n\nbody\n");
        Identity::of(bytes.as_bytes(), DedupBy::MessageId)
    };
    for id in [
        "",
        "<>",
        "< >",
        "<\t>",
        "<@>",
        "<@localhost>",
        "@",
        "()",
        "(a)",
        "(a (b) \\) c)",
        "(a) <>",
        "(a) (b)\n\t<@c>",
        "<..@x>",
        "<\"\"@x>",
        "\"<>\"",
        "<-@x>",
    ] {
        assert_eq!(by_id(id, "one").message_id, None, "{id}");
        assert_ne!(by_id(id, "one"), by_id(id, "two"), "{id}");
    }
    for id in [
        "<a@x>",
        "a",
        "1",
        "<a>",
        "(a) <b@x>",
        "<(a)@x>",
        "(a@x",
        "((a) b@x",
        "(a\\",
        ")(a) <@x>",
        "\\a (b) <@x>",
        "<\u{20ac}@x>",
        "<\"a\"@>",
        "<$a@x>",
    ] {
        assert_eq!(by_id(id, "one").message_id.as_deref(), Some(id.as_bytes()));
        assert_eq!(by_id(id, "one"), by_id(id, "two"), "{id}");
    }
}

/// Copies for two recipients, a retry and a forwarded copy have the same oldest Received.
#[test]
fn only_the_oldest_received_that_is_not_ours_counts() {
    let first = "Received: from ups by mx\n\tid A1; Sun, 1 Mar 2026 10:00:00 +0000\n";
    let alarm = |above: &str| identity(format!("{above}{first}Subject: on battery\n\nbody\n"));
    let ours = "Received: from mx by mda (Onedrop) with LMTP id 4Q\n\tfor <a@b>; now\n";
    for above in [
        "Received: from mx by other id B2; Sun, 1 Mar 2026 10:00:02 +0000\n",
        "Delivered-To: doug@x\nReceived: by other; x\nReceived: by third; y\n",
        ours,
    ] {
        assert_eq!(alarm(above), alarm(""), "{above}");
    }
    let plain = identity(b"Subject: on battery\n\nbody\n");
    assert_ne!(alarm(""), plain);
    let below = |below: &str| identity(format!("{first}Subject: on battery\n{below}\nbody\n"));
    assert_ne!(below("Received: by older; x\n"), alarm(""));
    assert_eq!(below(ours), alarm(""));
    // Our own field never counts, however it is folded.
    for ours in [ours, "Received: from mx by mda (Onedrop)\n\twith LMTP id 4Q; now\n"] {
        assert_eq!(identity(format!("{ours}Subject: on battery\n\nbody\n")), plain);
    }
}

#[test]
fn content_that_mail_programs_show_differently_is_different() {
    for (one, other, are_one) in [
        ("Message-ID: <a@b>\n\nbody", "Resent-Message-ID: <c@d>\nMessage-ID: <a@b>\n\nbody", false),
        ("A: b\nno field\n\nrest", "A: b\n\nno field\n\nrest", false),
        ("Content-Type: x; b=\"a  b\"\n\n", "Content-Type: x; b=\"a b\"\n\n", false),
        ("Content-Type: x;\n b=c\n\n", "Content-Type: x;\r\n b=c\r\n\r\n", true),
        ("Subject: x\n", "Subject: x\r\n\r\n", true),
    ] {
        assert_eq!(identity(one) == identity(other), are_one, "{one:?} {other:?}");
    }
    // NUL counts as the byte that IMAP servers store.
    assert_eq!(identity(b"Subject: x\n\na\0b\n"), identity(b"Subject: x\n\na\x80b\n"));
    assert_eq!(identity(b"Message-ID: <a\0b>\n\n"), identity(b"Message-ID: <a\x80b>\n\n"));
}

#[test]
fn the_first_message_id_field_counts_and_case_matters() {
    let two = identity(b"Message-ID: <A@b>\nMessage-ID: <c@d>\n\n");
    assert_eq!(two.message_id.as_deref(), Some(&b"<A@b>"[..]));
    assert_ne!(two.id_hash, identity(b"Message-ID: <a@b>\n\n").id_hash);
}

#[test]
fn without_a_message_id_the_content_names_the_message() {
    for none in [
        &b"Subject: x\n\nbody"[..],
        b"Message-ID:\nSubject: x\n\nbody",
        b"Message-ID: \n \nSubject: x\n\nbody",
    ] {
        let identity = identity(none);
        assert_eq!(identity.message_id, None);
        assert_eq!(identity.id_hash, lock_key::content_hash(&identity.digest));
    }
}

#[test]
fn by_message_id_content_does_not_matter() {
    let one = Identity::of(b"Message-ID: <a@b>\n\none", DedupBy::MessageId);
    assert_eq!(one, Identity::of(b"Message-ID: <a@b>\n\ntwo", DedupBy::MessageId));
    assert_ne!(
        Identity::of(b"Subject: a\n\n", DedupBy::MessageId),
        Identity::of(b"Subject: b\n\n", DedupBy::MessageId)
    );
}
