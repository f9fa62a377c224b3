//! Recipients' own copies go to a real Cyrus' LMTP (`store.lmtp`), one of its own that suppresses
//! no duplicates: Cyrus would go by Message-ID and Date, and drop another text.

use std::path::Path;

use crate::cyrus::Cyrus;
use crate::imap_proof::Mail;
use crate::support::TempRoot;
use crate::support::letters;
use crate::support::lmtp_peer::{Act, LmtpPeer};

fn letter(body: &str) -> Vec<u8> {
    let head = "Return-Path: <ann@a>\nFrom: Ann <ann@a>\nMessage-ID: <cyrus@a>\n\
                Date: Mon, 23 Nov 2026 07:00:00 +0000\nSubject: s\n";
    format!("{head}\n{body}\n").into_bytes()
}

/// A site that hands over to `socket`.
fn site(cyrus: &Cyrus, socket: &Path) -> Mail {
    Mail::with(cyrus.port(), &format!("lmtp = \"unix:{}\"\n", socket.display()), "")
}

fn deliver(mail: &Mail, body: &str) -> (i32, String) {
    mail.run(&["deliver", "-f", "ann@a", "-d", "lisa@b.example"], &letter(body))
}

#[test]
fn a_copy_is_handed_over_once_and_another_text_with_its_message_id_as_well() {
    let cyrus = Cyrus::start(&["lisa"]);
    let mail = site(&cyrus, &cyrus.lmtp_socket());
    for body in ["one", "two"] {
        let first = deliver(&mail, body);
        assert!(first.0 == 0 && first.1.contains("handed over account=lisa lmtp="), "{first:?}");
        let again = deliver(&mail, body);
        assert!(again.0 == 0 && again.1.contains("already there account=lisa"), "{again:?}");
    }
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
        let peer = LmtpPeer::start(&folder.join("peer"));
        peer.pass_on_to(&cyrus.lmtp_socket());
        let mail = site(&cyrus, peer.socket());
        // Cyrus knows no ORCPT.
        peer.plan("RCPT", Act::say("501 5.5.4 Unrecognized parameters"));
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
    let cyrus = Cyrus::start(&["lisa"]);
    let mail = site(&cyrus, &cyrus.lmtp_socket());
    let letters = [("a", "no colon\n\nbody"), ("b", "To: x\n\nbo\0dy")].map(|(id, odd)| {
        // Cyrus adds a Date where there is none.
        let date = "Date: Mon, 23 Nov 2026 07:00:00 +0000";
        format!("Return-Path: <ann@a>\nMessage-ID: <{id}@odd>\n{date}\n{odd}\n")
    });
    let args = ["deliver", "-f", "ann@a", "-d", "lisa@b.example"];
    for letter in &letters {
        let first = mail.run(&args, letter.as_bytes());
        assert!(first.0 == 0 && first.1.contains("handed over account=lisa"), "{first:?}");
    }
    let [attached, other] = &cyrus.messages("lisa", "INBOX")[..] else { panic!("two") };
    let text = String::from_utf8_lossy(attached);
    let (_, ours) = text.split_once("X-Onedrop-Copy: ").expect(&text);
    for part in ["Message-ID: <a@odd>\r\n", "message/rfc822", "\r\nno colon\r\n\r\nbody\r\n"] {
        assert!(ours.contains(part), "{part}\n{text}");
    }
    let shown = String::from_utf8_lossy(other);
    assert!(other.ends_with(b"To: x\r\n\r\nbo\x80dy\r\n"), "{shown}");
    let is_attached = || {
        let traced = mail.run(&["trace", "a@odd"], b"");
        assert!(traced.1.contains("attached to a message of ours"), "{}", traced.1);
    };
    is_attached();
    // So is what a look finds after a crash before the receipt.
    let crashed = "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                   wrapped = 0, in_doubt = 1, leased_until = 1";
    assert_eq!(mail.execute(crashed), 2);
    let again = mail.run(&args, letters[0].as_bytes());
    assert!(again.0 == 0 && again.1.contains("found account=lisa"), "{again:?}");
    is_attached();
    // And what a look finds by its content, where the value is another now.
    let forgotten = mail.run(&["forget", "a@odd"], b"");
    assert_eq!(forgotten.0, 0, "{forgotten:?}");
    let again = mail.run(&args, letters[0].as_bytes());
    assert!(again.0 == 0 && again.1.contains("found account=lisa"), "{again:?}");
    is_attached();
    assert_eq!(cyrus.messages("lisa", "INBOX").len(), 2);
    let verified = mail.run(&["verify", "--all"], b"");
    assert!(verified.1.contains("b@odd") && !verified.1.contains("a@odd"), "{verified:?}");
}

/// It reads a long line in pieces, each as a line, and one may be a dot: what follows would be
/// commands, and another message past Postfix.
#[test]
fn no_line_of_a_message_ends_it() {
    let cyrus = Cyrus::start(&["lisa", "doug"]);
    let mail = site(&cyrus, &cyrus.lmtp_socket());
    let forged = "MAIL FROM:<>\nRCPT TO:<doug>\nDATA\nSubject: forged\n\nforged";
    let long = format!("{}.\n{forged}", "x".repeat(8189));
    for body in [long, format!("one\r.\n{forged}")] {
        // Else Cyrus has the one before.
        let text = String::from_utf8(letter(&body)).expect("text");
        let text = text.replace("<cyrus@a>", &format!("<{}@a>", body.len()));
        let args = ["deliver", "-f", "ann@a", "-d", "lisa@b.example"];
        let end = mail.run(&args, text.as_bytes());
        assert!(end.0 == 0 && end.1.contains("handed over account=lisa lmtp=INBOX/"), "{end:?}");
        let stands = cyrus.messages("lisa", "INBOX").pop().expect("a message");
        assert!(
            stands.starts_with(b"Return-Path: <ann@a>\r\nDelivered-To: lisa\r\nX-Onedrop-Copy: ")
        );
        assert!(stands.ends_with(b"\r\nforged\r\n"), "{}", String::from_utf8_lossy(&stands));
        assert!(cyrus.messages("doug", "INBOX").is_empty());
        let again = mail.run(&args, text.as_bytes());
        assert!(again.0 == 0 && again.1.contains("already there account=lisa"), "{again:?}");
    }
    let verified = mail.run(&["verify", "--all"], b"");
    assert_eq!(verified.0, 0, "{verified:?}");
}

#[test]
fn what_cyrus_adds_to_a_message_hides_no_copy() {
    let cyrus = Cyrus::start(&["lisa"]);
    let mail = site(&cyrus, &cyrus.lmtp_socket());
    let (id, date) = ("Message-ID: <added@a>\n", "Date: Mon, 23 Nov 2026 07:00:00 +0000\n");
    let heads = [
        id.to_owned(),
        date.to_owned(),
        String::new(),
        format!("Message-ID:\n{date}"),
        // By IMAP, and there attached.
        format!("no field\n{date}X: one\rtwo\n"),
    ];
    let args = ["deliver", "-f", "ann@a", "-d", "lisa@b.example"];
    let crashed = "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                   wrapped = 0, in_doubt = 1, leased_until = 1";
    for (count, head) in (1..).zip(&heads) {
        let text =
            format!("Return-Path: <ann@a>\nFrom: Ann <ann@a>\n{head}Subject: {count}\n\nx\n");
        let first = mail.run(&args, text.as_bytes());
        assert!(first.0 == 0 && first.1.contains("handed over account=lisa"), "{head:?} {first:?}");
        mail.execute(crashed);
        let again = mail.run(&args, text.as_bytes());
        assert!(again.0 == 0 && again.1.contains("found account=lisa"), "{head:?} {again:?}");
        assert_eq!(cyrus.messages("lisa", "INBOX").len(), count, "{head:?}");
    }
}

/// It knows the copy's value, and writes it into other mail: nothing goes for that, and nothing is
/// taken for the copy.
#[test]
fn what_a_stranger_writes_takes_no_mail_out() {
    let (cyrus, folder) = (Cyrus::start(&["lisa"]), TempRoot::new());
    let peer = LmtpPeer::start(&folder.join("peer"));
    peer.pass_on_to(&cyrus.lmtp_socket());
    let mail = site(&cyrus, peer.socket());
    let real = letters::from_ann("real");
    let args = ["deliver", "-f", letters::ANN, "-d", "lisa@b.example"];
    // It was deferred once, so a forged one may be of an earlier try.
    peer.plan("RCPT", Act::say("451 4.3.0 not now"));
    let refused = mail.run(&args, real.as_bytes());
    assert!(refused.0 == 75, "{refused:?}");
    // Cyrus knows no ORCPT.
    peer.plan("RCPT", Act::say("501 5.5.4 Unrecognized parameters"));
    let first = mail.run(&args, real.as_bytes());
    assert!(first.0 == 0 && first.1.contains("handed over account=lisa"), "{first:?}");
    let stands = String::from_utf8_lossy(&cyrus.messages("lisa", "INBOX")[0]).into_owned();
    let (_, value) = stands.split_once("X-Onedrop-Copy: ").expect(&stands);
    let value = value.lines().next().expect("a value");
    assert!(stands.contains("X-Onedrop-Try: 2\r\n"), "{stands}");
    mail.execute(
        "INSERT OR REPLACE INTO onedrop_unsettled (copy_id, look_at) SELECT id, 0 FROM \
         onedrop_copy",
    );
    let mut session = cyrus.session("lisa");
    let name = |mailbox: &str| match mailbox {
        "INBOX" => mailbox.to_owned(),
        other => format!("INBOX.{other}"),
    };
    for (mailbox, message) in letters::forgeries(value, &real) {
        let _ = session.command(&format!("CREATE {}", name(mailbox)));
        let saved = session.append(&name(mailbox), "", message.replace('\n', "\r\n").as_bytes());
        assert!(saved.expect("an answer").is_ok(), "{mailbox}");
    }
    let mailboxes = ["INBOX", "Sent", "Lists", "Archive"];
    let counts = || mailboxes.map(|mailbox| cyrus.messages("lisa", &name(mailbox)).len());
    let before = counts();
    for _ in 0..2 {
        let args = ["verify", "--since", "48h", "--all", "--repair", "--json"];
        let verified = mail.run(&args, b"");
        assert_eq!((verified.0, counts()), (0, before), "{verified:?}");
    }
    assert_eq!(cyrus.messages("lisa", "INBOX")[0], stands.into_bytes());
}
