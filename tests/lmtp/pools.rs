//! Small pools under `onedrop lmtp`: messages for one recipient and for several, all with one
//! account among them, wait for each other and never for ever; and a client that never pauses does
//! not keep a stopping server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::letters::{self, ANN, from_ann};
use crate::support::lmtp_client::Reply;
use crate::support::site::{STORY, Site};
use crate::support::trial::LETTERS;

const MESSAGES: usize = 12;

#[test]
fn messages_for_one_and_for_several_share_small_pools() {
    let site = Site::with_servers();
    let small =
        format!("{LETTERS}\n[pool]\nledger = 2\nper_account = 1\n[limits]\ndeadline_secs = 30\n");
    let lmtp = site.server(&small);
    let crowds: [&[&str]; 2] = [
        &["scuba@mail.axial.net"],
        &["scuba@mail.axial.net", "doug@mail.axial.net", "lisa@mail.axial.net"],
    ];
    let clients = 4;
    thread::scope(|scope| {
        for (crowd, recipients) in crowds.iter().enumerate() {
            for client in 0..clients {
                let lmtp = &lmtp;
                scope.spawn(move || {
                    let mut connection = lmtp.client();
                    for number in 0..MESSAGES {
                        let letter = from_ann(&format!("{crowd}.{client}.{number}"));
                        let replies = connection
                            .deliver(ANN, recipients, letter.as_bytes())
                            .expect("replies");
                        assert!(
                            replies.len() == recipients.len() && replies.iter().all(Reply::is_ok),
                            "{replies:?}"
                        );
                    }
                });
            }
        }
    });
    let of_crowd = |crowd: usize| {
        (0..clients).flat_map(move |client| {
            (0..MESSAGES).map(move |n| from_ann(&format!("{crowd}.{client}.{n}")))
        })
    };
    letters::stand_in(&site.dovecot, "scuba", "INBOX", of_crowd(0).chain(of_crowd(1)));
    letters::stand_in(&site.dovecot, "doug", "INBOX", of_crowd(1));
    letters::stand_in(&site.dovecot, "lisa", "INBOX", of_crowd(1));
}

fn shared_letter(number: usize) -> String {
    format!(
        "Authentication-Results: mail.axial.net; dmarc=pass header.from=gmail.com\n\
         From: lisa@gmail.com\nSubject: shared\nMessage-ID: <shared.{number}@x>\n\nthis is \
         {number}\n"
    )
}

fn not_ok(replies: Vec<Reply>) -> Vec<String> {
    replies.into_iter().filter(|reply| !reply.is_ok()).map(|reply| reply.text).collect()
}

/// Each recipient twice and one shared copy, all of it in transactions of its own: a delivery
/// that waits for a copy holds no session that the writer of the copy needs.
#[test]
fn a_delivery_that_waits_for_a_copy_holds_no_session_that_its_writer_needs() {
    let site = Site::with_servers();
    let small =
        format!("{STORY}[pool]\nledger = 4\nper_account = 1\n[limits]\ndeadline_secs = 30\n");
    let lmtp = site.server(&small);
    let (clients, messages) = (8, 6);
    let (barrier, put_off) = (Barrier::new(clients), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for client in 0..clients {
            let (lmtp, barrier, put_off) = (&lmtp, &barrier, &put_off);
            scope.spawn(move || {
                let mut connection = lmtp.client();
                for number in 0..messages {
                    let letter = shared_letter(number);
                    let recipient = format!("r{}@mail.axial.net", client / 2);
                    barrier.wait();
                    let replies =
                        connection.deliver("lisa@gmail.com", &[&recipient], letter.as_bytes());
                    // All go on, or the others would wait at the barrier.
                    let bad = replies.map_or_else(|error| vec![error.to_string()], not_ok);
                    put_off.lock().expect("nobody panics").extend(bad);
                }
            });
        }
    });
    assert_eq!(put_off.into_inner().expect("nobody panicked"), [""; 0]);
    letters::stand_in(&site.dovecot, "lisa", "Sent", (0..messages).map(shared_letter));
    for recipient in 0..clients / 2 {
        letters::stand_in(
            &site.dovecot,
            &format!("r{recipient}"),
            "INBOX",
            (0..messages).map(shared_letter),
        );
    }
}

/// Records go to the ledger together: one that has to wait there waits alone.
#[test]
fn a_message_whose_row_is_locked_blocks_no_other() {
    let site = Site::with_servers();
    let patient = format!("{STORY}[lock]\nwait_secs = 35\n");
    let lmtp = site.server(&patient);
    let old = b"Message-ID: <old@x>\n\nold\n";
    let is_taken =
        |replies: std::io::Result<Vec<Reply>>| not_ok(replies.expect("replies")).is_empty();
    let old_again = || is_taken(lmtp.client().deliver(ANN, &["doug@mail.axial.net"], old));
    assert!(old_again());
    let mut other =
        postgres::Client::connect(&site.postgres.url_socket(), postgres::NoTls).expect("a session");
    let mut lock = other.transaction().expect("a transaction");
    assert_eq!(lock.execute("SELECT FROM onedrop_message FOR UPDATE", &[]).expect("the row"), 1);
    let clients = 5;
    thread::scope(|scope| {
        // Each meets those that come at its moment.
        let waiting: Vec<_> = (0..4)
            .map(|number| {
                let old_again = &old_again;
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(40 * number));
                    old_again()
                })
            })
            .collect();
        let others: Vec<_> = (0..clients)
            .map(|number| {
                let lmtp = &lmtp;
                scope.spawn(move || {
                    let recipient = format!("r{number}@mail.axial.net");
                    (0..MESSAGES).all(|message| {
                        let letter = from_ann(&format!("{number}.{message}"));
                        let replies = lmtp.client().deliver(ANN, &[&recipient], letter.as_bytes());
                        replies.is_ok_and(|replies| not_ok(replies).is_empty())
                    })
                })
            })
            .collect();
        assert!(others.into_iter().all(|other| other.join().expect("no panic")));
        assert!(waiting.iter().all(|one| !one.is_finished()), "they still wait");
        lock.rollback().expect("rollback");
        assert!(waiting.into_iter().all(|one| one.join().expect("no panic")));
    });
    for number in 0..clients {
        let its_own = (0..MESSAGES).map(|message| from_ann(&format!("{number}.{message}")));
        letters::stand_in(&site.dovecot, &format!("r{number}"), "INBOX", its_own);
    }
    letters::stand_in(&site.dovecot, "doug", "INBOX", [old]);
}

#[test]
fn a_client_that_never_pauses_does_not_keep_a_stopping_server_and_has_all_its_answers() {
    let site = Site::with_servers();
    let mut lmtp = site.server(LETTERS);
    let began = AtomicBool::new(false);
    let mut connection = lmtp.client();
    let delivered = thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut delivered = 0;
            loop {
                // As lmtp(8) sees whether a connection that it kept is good.
                match connection.command("RSET") {
                    Ok(reply) if reply.is_ok() => {}
                    Ok(_) | Err(_) => return delivered,
                }
                let letter = from_ann(&format!("busy.{delivered}"));
                let replies = connection
                    .deliver(ANN, &["scuba@mail.axial.net"], letter.as_bytes())
                    .expect("replies");
                assert!(replies.iter().all(Reply::is_ok), "{replies:?}");
                delivered += 1;
                began.store(delivered > 5, Ordering::SeqCst);
            }
        });
        while !began.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        let ended = lmtp.stop();
        assert!(ended.status.success() && ended.took < Duration::from_secs(20), "{ended:?}");
        client.join().expect("the client")
    });
    let all = (0..delivered).map(|number| from_ann(&format!("busy.{number}")));
    letters::stand_in(&site.dovecot, "scuba", "INBOX", all);
}
