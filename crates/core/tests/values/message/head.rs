//! The fields that final delivery prepends.

use jiff::Zoned;
use onedrop_core::message::{ReceivedClauses, trace_head};

use super::identity;

fn head(sender: &str, recipient: &str) -> String {
    let received = ReceivedClauses {
        from: "mx (x [1.2.3.4])".into(),
        by: "mda".into(),
        protocol: "LMTP",
        id: "4Q".into(),
    };
    let now = "2026-11-21T12:00:00+01:00[+01:00]".parse::<Zoned>().expect("a time");
    String::from_utf8(trace_head(sender, recipient, &received, &now)).expect("UTF-8")
}

#[test]
fn the_head_is_three_fields_whatever_the_envelope_holds() {
    let expected = "Return-Path: <>\nDelivered-To: doug@b\n\
        Received: from mx (x [1.2.3.4])\n\tby mda (Onedrop) with LMTP id 4Q\n\t\
        for <doug@b>; Sat, 21 Nov 2026 12:00:00 +0100\n";
    assert_eq!(head("", "doug@b"), expected);
    assert_eq!(head("a\r\nBcc: x", "doug@b\n\n").matches('\n').count(), 5);
}

#[test]
fn a_local_part_is_quoted_where_necessary() {
    for (address, expected) in [
        ("", ""),
        ("a.b+c@d.org", "a.b+c@d.org"),
        ("a b@c.org", "\"a b\"@c.org"),
        ("a..b@c.org", "\"a..b\"@c.org"),
        ("a@b@c.org", "\"a@b\"@c.org"),
        ("a\"\\@c.org", "\"a\\\"\\\\\"@c.org"),
        ("a>b<@c.org", "\"a>b<\"@c.org"),
        ("a@[192.0.2.1]", "a@[192.0.2.1]"),
    ] {
        let head = head(address, "doug@b");
        assert!(head.starts_with(&format!("Return-Path: <{expected}>\n")), "{head}");
    }
}

#[test]
fn an_address_is_never_cut_but_in_a_comment() {
    let long = format!("{}@d.org", "x".repeat(2000));
    let head = head(&long, &long);
    let whole = format!("Return-Path: <{long}>\nDelivered-To: {long}\nReceived: ");
    assert!(head.starts_with(&whole), "{head}");
    assert!(head.contains(&format!("\tfor <{}>; ", "x".repeat(255))), "{head}");
}

#[test]
fn the_prepended_fields_change_no_identity_even_without_a_message_id() {
    for message in [
        "Message-ID: <a@b>\n\nbody\n",
        "Received: from a by b; now\nSubject: disk full\n\nx\n",
        "\nx\n",
    ] {
        let delivered = head("lisa@gmail.com", "doug@b") + message;
        assert_eq!(identity(delivered), identity(message));
    }
}
