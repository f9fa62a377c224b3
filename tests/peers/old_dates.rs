//! Mail of an old date, for a ledger that may have forgotten it, into a mailbox with many others of
//! its size: it is looked for among all of them, by its Message-ID or without one.

use crate::cyrus::Cyrus;
use crate::imap_proof::Mail;
use crate::support::dovecot_24::Dovecot24;
use crate::support::imap::Imap;
use crate::support::letters;

const OTHERS: usize = 120;

fn old(id: &str, number: usize) -> String {
    let other = letters::one_of_many("old", number);
    let (_, body) = other.split_once("\n\n").expect("a body");
    format!(
        "From: ann@elsewhere.example\nTo: lisa@b.example\nDate: Mon, 01 Jan 2001 00:00:00 +0000\n\
         Subject: old {number}\n{id}\n{body}"
    )
}

/// The server at this port, with a session of Lisa's.
fn an_old_one_stands_once(port: u16, mut session: Imap) {
    for number in 0..OTHERS {
        let other = old("", number).replace('\n', "\r\n");
        let saved = session.append("INBOX", "\"01-Jan-2001 00:00:00 +0000\"", other.as_bytes());
        assert!(saved.expect("an answer").is_ok());
    }
    // Its ledger is new, and remembers nothing of what is older.
    let mail = Mail::at(port, "");
    let deliver = |message: &str, said: &str| {
        let args = ["deliver", "-f", "ann@elsewhere.example", "-d", "lisa@b.example"];
        let (status, told) = mail.run(&args, message.as_bytes());
        assert!(status == 0 && told.starts_with(said), "{told}");
    };
    let ids = ["", "Message-ID: <old@x>\n"];
    for (at, id) in ids.into_iter().enumerate() {
        let new = old(id, OTHERS + at);
        deliver(&new, "stored account=lisa");
        deliver(&new, "already there account=lisa");
        let forgotten = mail.run(&["forget", "--since", "1h"], b"");
        assert_eq!(forgotten.0, 0, "{forgotten:?}");
        deliver(&new, "found account=lisa");
    }
    // One of those that were there before there was a ledger.
    deliver(&old("", OTHERS / 2), "found account=lisa");
    let stands = session.fetch_all("INBOX", "UID RFC822.SIZE");
    assert_eq!(stands.len(), OTHERS + ids.len());
}

#[test]
fn in_a_dovecot_24() {
    let dovecot = Dovecot24::start(&["lisa", "doug"], "");
    let session = Imap::login_as(dovecot.imap_port(), "lisa", "mda", dovecot.password());
    an_old_one_stands_once(dovecot.imap_port(), session.expect("a login"));
}

#[test]
fn in_a_cyrus() {
    let cyrus = Cyrus::start(&["lisa"]);
    an_old_one_stands_once(cyrus.port(), cyrus.session("lisa"));
}
