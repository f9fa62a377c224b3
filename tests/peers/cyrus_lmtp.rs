//! Recipients' own copies go to a real Cyrus' LMTP (`store.lmtp`), one of its own that suppresses
//! no duplicates: Cyrus would tell them by Message-ID and Date, and drop another text.

use crate::cyrus::Cyrus;
use crate::imap_proof::Mail;
use crate::support::TempRoot;
use crate::support::lmtp_peer::{Act, LmtpPeer};

fn letter(body: &str) -> Vec<u8> {
    let head = "Return-Path: <ann@a>\nFrom: Ann <ann@a>\nMessage-ID: <cyrus@a>\n\
                Date: Mon, 23 Nov 2026 07:00:00 +0000\nSubject: s\n";
    format!("{head}\n{body}\n").into_bytes()
}

/// A site that hands over to Cyrus by way of a stand-in.
fn site(cyrus: &Cyrus, folder: &TempRoot) -> (LmtpPeer, Mail) {
    let peer = LmtpPeer::start(&folder.join("peer"));
    peer.pass_on_to(&cyrus.lmtp_socket());
    for _ in 0..8 {
        // Cyrus knows neither XCLIENT nor ORCPT.
        let offers = "250-peer\r\n250-8BITMIME\r\n250-PIPELINING\r\n250 ENHANCEDSTATUSCODES\r\n";
        peer.plan("LHLO", Act::Say(offers.to_owned()));
    }
    let lmtp = format!("lmtp = \"unix:{}\"\n", peer.socket().display());
    let mail = Mail::with(cyrus.port(), &lmtp, "");
    (peer, mail)
}

fn deliver(mail: &Mail, body: &str) -> (i32, String) {
    mail.run(&["deliver", "-f", "ann@a", "-d", "lisa@b.example"], &letter(body))
}

#[test]
fn a_copy_is_handed_over_once_and_another_text_with_its_message_id_as_well() {
    let (cyrus, folder) = (Cyrus::start(&["lisa"]), TempRoot::new());
    let (peer, mail) = site(&cyrus, &folder);
    for body in ["one", "two"] {
        let first = deliver(&mail, body);
        assert!(first.0 == 0 && first.1.contains("handed over account=lisa lmtp="), "{first:?}");
        let again = deliver(&mail, body);
        assert!(again.0 == 0 && again.1.contains("already there account=lisa"), "{again:?}");
    }
    assert_eq!(peer.taken().len(), 2);
    let stands = cyrus.messages("lisa", "INBOX");
    assert_eq!(stands.len(), 2, "Cyrus takes them for one only where it suppresses duplicates");
    for (stands, body) in stands.iter().zip(["one", "two"]) {
        let text = String::from_utf8_lossy(stands);
        assert!(text.starts_with("Return-Path: <ann@a>\r\n"), "{text}");
        let (_, ours) = text.split_once("X-Onedrop-Copy: ").expect(&text);
        assert!(ours.ends_with(&format!("Subject: s\r\n\r\n{body}\r\n")), "{text}");
    }
}

#[test]
fn a_lost_answer_of_cyrus_is_settled_by_a_look_wherever_the_copy_was_filed() {
    for filed_in in ["INBOX", "INBOX.Jazz"] {
        let (cyrus, folder) = (Cyrus::start(&["lisa"]), TempRoot::new());
        let (peer, mail) = site(&cyrus, &folder);
        peer.plan(".", Act::Cut);
        let lost = deliver(&mail, "lost");
        assert!(lost.0 == 75 && lost.1.contains("in doubt"), "{lost:?}");
        if filed_in != "INBOX" {
            let mut session = cyrus.session("lisa");
            let (create, file) = (format!("CREATE {filed_in}"), format!("MOVE 1 {filed_in}"));
            for command in [&*create, "SELECT INBOX", &*file] {
                let answer = session.command(command).expect(command);
                assert!(answer.is_ok(), "{command}: {}", answer.tagged);
            }
        }
        mail.expire_leases();
        let found = deliver(&mail, "lost");
        assert!(found.0 == 0 && found.1.contains("found account=lisa lmtp="), "{found:?}");
        assert_eq!(peer.taken().len(), 1, "handed over once");
        assert_eq!(cyrus.messages("lisa", filed_in).len(), 1);
    }
}

#[test]
fn what_cyrus_refuses_by_lmtp_is_handed_over_attached() {
    let (cyrus, folder) = (Cyrus::start(&["lisa"]), TempRoot::new());
    let (peer, mail) = site(&cyrus, &folder);
    for (id, odd) in [("a", "no colon\n\nbody"), ("b", "To: x\n\nbo\0dy")] {
        let letter = format!("Return-Path: <ann@a>\nMessage-ID: <{id}@odd>\n{odd}\n");
        let args = ["deliver", "-f", "ann@a", "-d", "lisa@b.example"];
        let first = mail.run(&args, letter.as_bytes());
        assert!(first.0 == 0 && first.1.contains("handed over account=lisa"), "{first:?}");
    }
    assert_eq!(peer.taken().len(), 3, "one of them a second time, attached");
    let [attached, other] = &cyrus.messages("lisa", "INBOX")[..] else { panic!("two") };
    let text = String::from_utf8_lossy(attached);
    let (_, ours) = text.split_once("X-Onedrop-Copy: ").expect(&text);
    for part in ["Message-ID: <a@odd>\r\n", "message/rfc822", "\r\nno colon\r\n\r\nbody\r\n"] {
        assert!(ours.contains(part), "{part}\n{text}");
    }
    assert!(other.ends_with(b"To: x\r\n\r\nbo\x80dy\r\n"));
    let traced = mail.run(&["trace", "a@odd"], b"");
    assert!(traced.1.contains("attached to a message of ours"), "{}", traced.1);
}
