//! Whose Sent mailbox gets a copy: what a From field and Authentication-Results must say.

use onedrop_core::envelope::Envelope;
use onedrop_core::message::{DedupBy, Message};
use onedrop_core::sender::{Author, Trust, author};

const OURS: &str = "mail.axial.net";

fn find(header: &str, sasl: &str, trust: Trust) -> Option<Author> {
    let message = Message::new(format!("{header}\n\nbody\n").into_bytes(), DedupBy::Content);
    let envelope = Envelope { sasl_username: sasl.to_owned(), ..Envelope::default() };
    author(&message, &envelope, trust, OURS)
}

#[test]
fn only_our_own_dmarc_pass_for_the_from_domain_counts() {
    let pass = "mail.axial.net; dmarc=pass (p=none) header.from=gmail.com";
    for (results, counts) in [
        (&[pass][..], true),
        (&["mail.axial.net; dkim=pass header.d=gmail.com", pass], true),
        (
            &["MAIL.axial.net 1;\n\tspf=pass smtp.mailfrom=x@y; dmarc/1 = pass\n \
               header.from=gmail.com"],
            true,
        ),
        (&[], false),
        (&["evil.example; dmarc=pass header.from=gmail.com"], false),
        (&["mail.axial.net.evil.example; dmarc=pass header.from=gmail.com"], false),
        (&["mail.axial.net; dmarc=fail header.from=gmail.com", pass], false),
        (&[pass, "mail.axial.net; dmarc=fail header.from=gmail.com"], false),
        (&[pass, "mail.axial.net; dmarc=pass header.from=evil.example"], false),
        (&[pass, "evil.example; dmarc=fail header.from=gmail.com", pass], true),
        (&["mail.axial.net; dmarc=pass header.from=evil.example"], false),
        (&["mail.axial.net; dmarc=pass"], false),
        (&["mail.axial.net; spf=fail (; dmarc=pass header.from=gmail.com)"], false),
        (&["mail.axial.net; spf=fail reason=\"; dmarc=pass header.from=gmail.com\""], false),
    ] {
        let header: String =
            results.iter().map(|one| format!("Authentication-Results: {one}\n")).collect();
        let author = find(&format!("{header}From: L <L@Gmail.com>"), "", Trust::Authenticated);
        assert_eq!(author.is_some(), counts, "{results:?}");
    }
    let body = format!("From: l@gmail.com\n\nAuthentication-Results: {pass}");
    assert_eq!(find(&body, "", Trust::Authenticated), None);
}

/// Who sent it anew is another.
#[test]
fn a_resent_message_is_not_its_authors() {
    let pass = format!("Authentication-Results: {OURS}; dmarc=pass header.from=gmail.com\n");
    for trust in [Trust::Header, Trust::Authenticated] {
        let resent = |fields: &str| find(&format!("{fields}{pass}From: l@gmail.com"), "", trust);
        assert!(resent("").is_some());
        assert_eq!(resent("Resent-From: bob@example.org\nResent-Date: x\n"), None);
    }
    let header = "Resent-From: l@gmail.com\nFrom: l@gmail.com";
    assert!(find(header, "l", Trust::Authenticated).is_some(), "she may have done it");
}

/// What our own server writes, after its name.
fn believes(results: &str) -> bool {
    let header = format!("Authentication-Results: {OURS}{results}\nFrom: l@gmail.com");
    find(&header, "", Trust::Authenticated).is_some()
}

/// From has a domain in Unicode, and the results in ASCII, or the other way round.
#[test]
fn the_forms_of_an_international_domain_are_one() {
    let of = |from: &str, results: &str| {
        let results = format!("{OURS}; dmarc=pass header.from={results}");
        let header = format!("Authentication-Results: {results}\nFrom: l@{from}");
        find(&header, "", Trust::Authenticated).is_some()
    };
    let (unicode, ascii) = ("b\u{fc}cher.example", "xn--bcher-kva.example");
    assert!(of(unicode, ascii) && of(ascii, unicode) && of(ascii, ascii));
    assert!(!of(unicode, "bucher.example") && !of("bucher.example", ascii));
}

#[test]
fn blanks_and_comments_may_stand_around_each_sign() {
    for blank in ["", " ", "  ", "\t", "\n\t", "(a)", " (a \\) (b) \"c\" ) \t", "\n ()\n "] {
        for results in [
            "_;_dmarc_=_pass _header.from_=_gmail.com_",
            " 1_;_spf=fail smtp.mailfrom=a=b@c_;_dmarc_/_1_=_pass reason_=_\"a;b\" header_._from_=_\
             gmail.com_;_arc=none",
            ";dmarc=pass policy.x=\"header.from=\" header.from_=_\"gmail.com\"",
            ";dmarc=PASS Header.From_=_l@Gmail.com",
        ] {
            let results = results.replace('_', blank);
            assert!(believes(&results), "{results:?}");
        }
    }
    assert!(believes("; arc=pass (i=1 dmarc=pass fromdomain=a); dmarc=pass header.from=gmail.com"));
}

#[test]
fn a_field_that_a_sender_has_broken_open_is_no_pass() {
    let case = include_str!("../../../../fixtures/mail/results-broken-open.eml");
    let (header, _) = case.split_once("\n\n").expect("a body");
    assert_eq!(find(header, "", Trust::Authenticated), None);
    let pass = "dmarc=pass header.from=gmail.com";
    for results in [
        // Nothing else speaks of DMARC: an address with quotes ends the comment.
        format!("; spf=pass (of \"a); {pass}; x=y(b\"@evil.example) smtp.mailfrom=\"a); x=(b\"@e"),
        format!("; spf=pass (of \"a\\\"); {pass}; x=y(\\\"b\"@evil.example)"),
        // Comments or quotes that do not close, or close twice.
        format!("; {pass}; spf=pass (of a(b@evil.example)"),
        format!("; spf=pass (of a)@evil.example); {pass}"),
        format!("; {pass}; spf=pass smtp.mailfrom=\"a"),
        format!("; {pass}; spf=pass smtp.mailfrom=a\\@b"),
        format!("; {pass}; spf=pass (\\"),
        // Two results.
        format!("; {pass}; dmarc=fail header.from=gmail.com"),
        format!("; dmarc=fail header.from=gmail.com; {pass}"),
        format!("; {pass}; dmarc=pass header.from=evil.example"),
        format!("; {pass}; dmarc/1 = none"),
        format!("; {pass}; dmarc="),
        format!("; {pass} header.from=evil.example"),
        // The true one as a part of a comment, or of a quoted text.
        format!("; spf=pass (a); {pass}; x=y(b@evil); dmarc=fail header.from=a; dkim=fail (c)"),
        format!("; {pass}; x=\"; DMARC = fail header.from=a; y=\""),
    ] {
        assert!(!believes(&results), "{results}");
    }
}

#[test]
fn a_login_counts_for_its_own_account_only() {
    let author = find("From: doug@mail.axial.net", "doug", Trust::Authenticated);
    let expected = Author {
        address: "doug@mail.axial.net".to_owned(),
        if_same_account_as: Some("doug".to_owned()),
    };
    assert_eq!(author, Some(expected));
}

#[test]
fn from_must_hold_exactly_one_address() {
    for header in [
        "From: a@x, b@x",
        "From: a@x\nFrom: b@x",
        "Subject: none",
        "From: nobody",
        "From: undisclosed:;",
    ] {
        assert_eq!(find(header, "a", Trust::Header), None, "{header}");
    }
    assert!(find("From: a@x", "", Trust::Header).is_some());
    assert!(find("From: =?utf-8?q?A?=\n\t <a.b+c@x>", "", Trust::Header).is_some());
    for odd in [
        "From: <a@gma\til.com>",
        "From: <@x>",
        "From: <a@>",
        "From: a b@gma il.com",
        "From: <=?utf-8?q?a=40x?=>",
    ] {
        assert_eq!(find(odd, "", Trust::Header), None, "{odd}");
    }
    assert_eq!(find("From: a@x", "a", Trust::Never), None);
}
