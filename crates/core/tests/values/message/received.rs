//! How old a message is that Postfix hands over.

use std::time::{Duration, UNIX_EPOCH};

use onedrop_core::message::{self, DedupBy, Message, OUR_RECEIVED};

/// The seconds since 1970 of a header, on a site whose host is `mx.site.example`.
fn taken_at(header: &str) -> Option<u64> {
    taken_as("", header)
}

/// The same where Postfix says the queue id.
fn taken_as(queue_id: &str, header: &str) -> Option<u64> {
    let message = Message::new(format!("{header}\n\nHello.\n").into_bytes(), DedupBy::Content);
    let at = message::taken_at(&message, queue_id, |by| by == "mx.site.example")?;
    Some(at.duration_since(UNIX_EPOCH).expect("after 1970").as_secs())
}

const AT: u64 = 1_764_158_400;
const TIME: &str = "Wed, 26 Nov 2025 12:00:00 +0000";

#[test]
fn the_top_most_received_counts_if_a_host_of_ours_wrote_it() {
    let told = |clauses: &str| taken_at(&format!("Received: {clauses}; {TIME}"));
    for clauses in [
        "by mx.site.example (Postfix, from userid 0)\n\tid 4Q",
        "from by (unknown [192.0.2.1])\n\tby MX.site.example (Postfix) with ESMTP\n\tfor <a@b>",
        "from x (by evil.example \\) (nested) [192.0.2.1]) by mx.site.example",
    ] {
        assert_eq!(told(clauses), Some(AT), "{clauses}");
    }
    for clauses in [
        "from mx.site.example (x) by evil.example (by mx.site.example)",
        "from x with ESMTP by mx.site.example",
        "from x by mx.site.example.evil.example",
        "by (mx.site.example)",
        "from by",
        "",
    ] {
        assert_eq!(told(clauses), None, "{clauses}");
    }
}

#[test]
fn what_a_sender_wrote_tells_nothing() {
    let ours = format!("Received: from x by mx.site.example; {TIME}");
    let old = "Mon, 1 Jan 2001 00:00:00 +0000";
    let senders = format!("Received: by mx.site.example; {old}\nDate: {old}");
    let added = "Return-Path: <>\nDelivered-To: a@b\nX-Spam-Flag: NO";
    assert_eq!(taken_at(&format!("{added}\n{ours}\n{senders}")), Some(AT));
    // Nothing of ours: neither is the sender's word taken for it that it is young.
    assert_eq!(taken_at(&format!("Received: by y.example; {TIME}\n{ours}")), None);
    assert_eq!(taken_at(&format!("Date: {TIME}")), None);
    assert_eq!(taken_at("Received: by mx.site.example"), None);
    assert_eq!(taken_at("Received: by mx.site.example; no date"), None);
}

#[test]
fn a_field_without_the_queue_id_that_postfix_says_tells_nothing() {
    let by = |host: &str, id: &str, time: &str| {
        format!(
            "Received: from x (y [192.0.2.1])\n\tby {host} (Postfix) with ESMTP id {id}; {time}"
        )
    };
    let ours = by("mx.site.example", "4Own", TIME);
    assert_eq!(taken_as("4Own", &ours), Some(AT));
    for forged in ["4Other", "4own", "4Own1", "(4Own)", "x; id 4Own"] {
        assert_eq!(taken_as("4Own", &by("mx.site.example", forged, TIME)), None, "{forged}");
    }
    assert_eq!(taken_as("4Own", &by("y.example", "4Own", TIME)), None);
    let named = "Received: from id by mx.site.example (id 4Own)";
    assert_eq!(taken_as("4Own", &format!("{named}; {TIME}")), None);
    // A content filter brought it back: the queue id is that of the first time.
    let back = by("mx.site.example", "4Back", "Wed, 26 Nov 2025 13:00:00 +0000");
    let filter = by("filter.example", "x", "Wed, 26 Nov 2025 12:30:00 +0000");
    let chain = format!("{back}\n{filter}\n{ours}");
    assert_eq!(taken_as("4Own", &chain), Some(AT));
    assert_eq!(taken_as("4Back", &chain), Some(AT + 3600));
}

#[test]
fn a_time_ahead_of_the_ledgers_tells_nothing() {
    let now = UNIX_EPOCH + Duration::from_secs(AT);
    let taken = |secs| onedrop_core::ledger::taken_by_us(now + Duration::from_secs(secs), now);
    assert!(taken(0).is_some() && taken(2).is_some());
    assert_eq!(taken(3), None);
}

#[test]
fn a_message_is_as_old_as_the_earlier_of_its_date_and_of_its_oldest_received_but_ours() {
    let (at, before) = (AT, "Wed, 26 Nov 2025 11:00:00 +0000");
    let later = "Wed, 26 Nov 2025 13:00:00 +0000";
    let ours = format!("Received: by a {OUR_RECEIVED}LMTP id 1; {before}");
    for (header, expected) in [
        (format!("Date: {TIME}"), Some(at)),
        (format!("Date: {later}\nReceived: by a; {later}\nReceived: by b; {TIME}"), Some(at)),
        (format!("Date: {TIME}\nReceived: by a; {before}\nReceived: by b; {later}"), Some(at)),
        (format!("Received: by a; {later}\n{ours}\nDate: {TIME}"), Some(at)),
        (
            format!("Received: by a; {TIME}\nReceived: by b; {before}\nDate: {TIME}"),
            Some(at - 3600),
        ),
        (format!("Date: {TIME}\nReceived: by a, without a time"), Some(at)),
        (format!("Received: by a; {TIME}"), None),
        (format!("Received: by a; {TIME}\nDate: no date"), None),
        ("Date: Mon, 1 Jan 1990 00:00:00 +0000".to_owned(), Some(631_152_000)),
        ("Date: Sun, 31 Dec 1989 23:59:59 +0000".to_owned(), None),
    ] {
        let message = Message::new(format!("{header}\n\nHi\n").into_bytes(), DedupBy::Content);
        let sent_at = message::sent_at(&message);
        assert_eq!(
            sent_at,
            expected.map(|secs| UNIX_EPOCH + Duration::from_secs(secs)),
            "{header}"
        );
    }
}
