//! A mail server that has no place for one more session of an account is busy, and not broken.

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::imap_proof::Mail;
use crate::support::dovecot::Dovecot;
use crate::support::imap::Imap;
use crate::support::wait_until;

fn message(id: &str) -> Vec<u8> {
    let from = "Return-Path: <lisa@gmail.com>\nFrom: lisa@gmail.com\nDate: Thu, 26 Nov 2026";
    format!("{from} 10:00:00 +0000\nMessage-ID: <{id}@b>\nSubject: s\n\nbody\n").into_bytes()
}

/// A Dovecot that allows an account `sessions` sessions, and a site whose proof is on record: to
/// find that out takes two.
fn site(sessions: usize, more: &str) -> (Dovecot, Mail) {
    let dovecot = Dovecot::start_with(&format!("mail_max_userip_connections = {sessions}\n"));
    let mail = Mail::at(dovecot.imap_port(), more);
    let port = dovecot.imap_port();
    let proof = format!(
        "INSERT INTO onedrop_proof (server, login_user, way, host, proven_at) \
         VALUES ('127.0.0.1:{port}', 'mda', 'sasl', 'h', 1)"
    );
    assert_eq!(mail.execute(&proof), 1);
    (dovecot, mail)
}

fn deliver(mail: &Mail, account: &str, id: &str) -> (i32, String) {
    mail.run(&["deliver", "-d", &format!("{account}@b.example")], &message(id))
}

/// A session that takes a place, once that of a delivery which has ended is free.
fn session(dovecot: &Dovecot) -> Imap {
    let (user, password) = (dovecot.master_user(), dovecot.password());
    let log_in = || Imap::login_as(dovecot.imap_port(), "doug", user, password);
    let mut session = None;
    assert!(wait_until(Duration::from_secs(60), || {
        session = log_in().ok();
        session.is_some()
    }));
    session.expect("a place")
}

/// How often a login was refused for want of a place.
fn refused(dovecot: &Dovecot) -> usize {
    let log = fs::read_to_string(dovecot.config_file().with_file_name("dovecot.log"));
    log.expect("a log").matches("Maximum number of connections").count()
}

#[test]
fn of_many_deliveries_of_one_message_all_end_well_where_few_have_a_session() {
    const TOGETHER: usize = 40;
    let (dovecot, mail) = site(3, "[lock]\nwait_secs = 30\n");
    let barrier = Barrier::new(TOGETHER);
    // Until one at least was refused, readers have all the places.
    let readers: Vec<Imap> = (0..3).map(|_| session(&dovecot)).collect();
    let ends: Vec<(i32, String)> = thread::scope(|scope| {
        let one = || {
            barrier.wait();
            deliver(&mail, "doug", "many")
        };
        let all: Vec<_> = (0..TOGETHER).map(|_| scope.spawn(one)).collect();
        let was_refused = wait_until(Duration::from_secs(25), || refused(&dovecot) > 0);
        for mut reader in readers {
            reader.command("LOGOUT").expect("an answer");
        }
        assert!(was_refused, "there was a place for each");
        all.into_iter().map(|one| one.join().expect("an end")).collect()
    });
    let failed: Vec<_> = ends.iter().filter(|(status, _)| *status != 0).collect();
    assert!(failed.is_empty(), "{} of {TOGETHER}: {failed:#?}", failed.len());
    assert_eq!(dovecot.files("doug"), 1);
    assert_eq!(ends.iter().filter(|(_, said)| said.starts_with("stored ")).count(), 1);
}

#[test]
fn a_delivery_waits_for_a_place_and_one_that_writes_nothing_needs_none() {
    let (dovecot, mail) = site(1, "[lock]\nwait_secs = 30\n");
    let (status, said) = deliver(&mail, "doug", "placed");
    assert!(status == 0 && said.starts_with("stored "), "{said}");
    let mut reader = session(&dovecot);
    let (status, said) = deliver(&mail, "doug", "placed");
    assert!(status == 0 && said.starts_with("already there "), "{said}");
    let before = refused(&dovecot);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| deliver(&mail, "doug", "waits"));
        let minute = Duration::from_secs(60);
        assert!(wait_until(minute, || refused(&dovecot) > before + 1), "nothing was refused");
        reader.command("LOGOUT").expect("an answer");
        let (status, said) = waiting.join().expect("an end");
        assert!(status == 0 && said.starts_with("stored "), "{said}");
    });
    assert_eq!(dovecot.files("doug"), 2);
}

#[test]
fn a_delivery_that_gets_no_place_in_its_time_is_contended_and_keeps_no_lease() {
    let (dovecot, mail) = site(1, "[lock]\nwait_secs = 1\n");
    let reader = session(&dovecot);
    let (status, said) = deliver(&mail, "doug", "late");
    assert!(status == 75 && said.starts_with("4."), "{said}");
    assert!(said.contains("contended: ") && said.contains("[LIMIT] Maximum"), "{said}");
    let traced = mail.run(&["trace", "doug@b.example"], b"");
    assert!(traced.1.contains("contended"), "{traced:?}");
    drop(reader);
    let placed = wait_until(Duration::from_secs(60), || deliver(&mail, "doug", "late").0 == 0);
    assert!(placed, "the place is free");
    assert_eq!(dovecot.files("doug"), 1);
}

/// Sent's copy waits, and then is kept for later: it defers no recipient.
#[test]
fn a_sender_without_a_place_for_a_session_keeps_no_mail_from_a_recipient() {
    let more = "accounts = { \"lisa@gmail.com\" = \"doug\" }\n[sent]\ntrust = \"header\"\n\
                [lock]\nwait_secs = 1\n";
    let (dovecot, mail) = site(1, more);
    let reader = session(&dovecot);
    let (status, said) = deliver(&mail, "boats", "sent");
    assert!(status == 0 && said.starts_with("stored account=boats"), "{said}");
    drop(reader);
    let settled = wait_until(Duration::from_secs(60), || {
        mail.run(&["settle"], b"");
        fs::read_dir(dovecot.maildir("doug").join(".Sent/cur")).is_ok_and(|all| all.count() == 1)
    });
    assert!(settled, "the copy was kept");
}
