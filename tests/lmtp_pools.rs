//! Small pools under `onedrop lmtp`: messages for one recipient and for several, all with one account among them, wait for
//! each other and never for ever; and a client that never pauses does not keep a stopping server.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use support::lmtp::Lmtp;
use support::lmtp_client::Reply;
use support::trial::LETTERS;
use support::world::World;

const ANN: &str = "ann@elsewhere.example";
const MESSAGES: usize = 12;

fn letter(name: &str) -> String {
    format!("From: {ANN}\nSubject: {name}\nMessage-ID: <{name}@x>\n\nbody\n")
}

#[test]
fn messages_for_one_and_for_several_share_small_pools() {
    let world = World::start();
    let small = format!("{LETTERS}\n[pool]\nledger = 2\nper_account = 1\n[limits]\ndeadline_secs = 30\n");
    let lmtp = Lmtp::start(&world.config("etc", &small));
    let crowds: [&[&str]; 2] =
        [&["scuba@mail.axial.net"], &["scuba@mail.axial.net", "doug@mail.axial.net", "lisa@mail.axial.net"]];
    let clients = 4;
    thread::scope(|scope| {
        for (crowd, recipients) in crowds.iter().enumerate() {
            for client in 0..clients {
                let lmtp = &lmtp;
                scope.spawn(move || {
                    let mut connection = lmtp.client();
                    for number in 0..MESSAGES {
                        let letter = letter(&format!("{crowd}.{client}.{number}"));
                        let replies = connection.deliver(ANN, recipients, letter.as_bytes()).expect("replies");
                        assert!(replies.len() == recipients.len() && replies.iter().all(Reply::is_ok), "{replies:?}");
                    }
                });
            }
        }
    });
    assert_eq!(world.dovecot.count("scuba", "INBOX"), 2 * clients * MESSAGES);
    assert_eq!(world.dovecot.count("doug", "INBOX"), clients * MESSAGES);
}

#[test]
fn a_client_that_never_pauses_does_not_keep_a_stopping_server_and_has_all_its_answers() {
    let world = World::start();
    let mut lmtp = Lmtp::start(&world.config("etc", LETTERS));
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
                let letter = letter(&format!("busy.{delivered}"));
                let replies = connection.deliver(ANN, &["scuba@mail.axial.net"], letter.as_bytes()).expect("replies");
                assert!(replies.iter().all(Reply::is_ok), "{replies:?}");
                delivered += 1;
                began.store(delivered > 5, Ordering::SeqCst);
            }
        });
        while !began.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        let ended = lmtp.stop();
        assert!(ended.status.success() && ended.took < Duration::from_secs(5), "{ended:?}");
        client.join().expect("the client")
    });
    assert_eq!(world.dovecot.count("scuba", "INBOX"), delivered);
}
