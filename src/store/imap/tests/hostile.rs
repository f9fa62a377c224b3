//! Servers that refuse, hang, hurry, shout or go away: what is certain then, and what is in doubt.

use super::*;

fn is_in_doubt(error: &StoreError) -> bool {
    matches!(error, StoreError::InDoubt(_))
}

/// Appends against `script` and returns the error, which must come in time.
fn refused_append(script: impl FnOnce(&mut Peer) + Send + 'static) -> StoreError {
    let world = World::logged_in(CAPABILITIES, script);
    let start = Instant::now();
    let error = world.append(&inbox()).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(3), "took {:?}", start.elapsed());
    world.end();
    error
}

#[test]
fn a_server_that_goes_away_before_the_last_bytes_has_stored_nothing() {
    let error = refused_append(|peer| {
        peer.append_to("\"INBOX\"", "+");
        peer.say("* BYE shutting down\r\n");
        peer.hang_up();
    });
    // Gone before or after the last bytes went out: the second cannot be told from the outside.
    assert!(is_not_stored(&error) || is_in_doubt(&error), "{error}");
    let world = World::logged_in("IMAP4rev1 SASL-IR", |peer| {
        peer.append_to("\"INBOX\"", "");
        peer.say("* BYE shutting down\r\n");
        peer.hang_up();
    });
    let error = world.append(&inbox()).unwrap_err();
    assert!(is_not_stored(&error) && error.to_string().contains("shutting down"), "{error}");
    world.end();
}

#[test]
fn a_server_that_goes_away_after_the_last_bytes_leaves_doubt() {
    for last_words in ["", "* BYE shutting down\r\n", "a2", "* 4 EXISTS\r\n"] {
        let error = refused_append(move |peer| {
            peer.append();
            peer.last_bytes();
            peer.say(last_words);
            peer.hang_up();
        });
        assert!(is_in_doubt(&error), "{error}");
        assert_eq!(
            error.to_string().contains("shutting down"),
            last_words.contains("shutting down"),
            "{error}"
        );
    }
}

#[test]
fn a_refusal_after_the_last_bytes_is_certain() {
    let error = refused_append(|peer| {
        let tag = peer.append();
        peer.last_bytes();
        peer.say(format!("* BYE and\r\n{tag} NO [OVERQUOTA] voll bis über beide Ohren\r\n"));
    });
    assert!(matches!(&error, StoreError::OverQuota(text) if text.contains("über")), "{error}");
}

#[test]
fn a_server_in_trouble_may_have_stored_what_it_refuses_after_the_last_bytes() {
    for code in ["SERVERBUG", "INUSE", "UNAVAILABLE"] {
        let error = refused_append(move |peer| {
            let tag = peer.append();
            peer.last_bytes();
            peer.say(format!("{tag} NO [{code}] Timeout while waiting for lock\r\n"));
        });
        assert!(is_in_doubt(&error) && error.to_string().contains("waiting for lock"), "{error}");
    }
}

#[test]
fn what_is_no_answer_after_the_last_bytes_leaves_doubt() {
    for answer in ["a99 OK wrong tag", "a2OK", "+ more", "a2 PREAUTH", "\0\0", "a2"] {
        let error = refused_append(move |peer| {
            peer.append();
            peer.last_bytes();
            peer.say(format!("{answer}\r\n"));
            assert!(peer.rest().is_empty());
        });
        assert!(is_in_doubt(&error), "{answer}: {error}");
    }
}

#[test]
fn an_ok_before_the_last_bytes_does_not_count() {
    let world = World::logged_in("IMAP4rev1 SASL-IR", |peer| {
        let tag = peer.append_to("\"INBOX\"", "");
        peer.say(format!("+ go on\r\n{tag} OK [APPENDUID 7 42] already\r\n"));
        peer.bytes(LETTER_SENT.len());
        assert!(peer.rest().is_empty(), "the command was not completed");
    });
    let error = world.append(&inbox()).unwrap_err();
    assert!(is_in_doubt(&error), "{error}");
    world.end();

    let world = World::logged_in("IMAP4rev1 SASL-IR", |peer| {
        let tag = peer.append_to("\"INBOX\"", "");
        peer.say(format!("{tag} OK [APPENDUID 7 42] without the message\r\n"));
        assert!(peer.rest().is_empty());
    });
    let error = world.append(&inbox()).unwrap_err();
    assert!(is_not_stored(&error), "{error}");
    world.end();
}

#[test]
fn a_refusal_in_mid_literal_is_heard() {
    let world = World::logged_in("IMAP4rev1 SASL-IR", |peer| {
        let tag = peer.append_to("\"INBOX\"", "");
        peer.say(format!("+ go on\r\n{tag} NO [OVERQUOTA] on second thought\r\n"));
        peer.bytes(LETTER_SENT.len());
        assert!(peer.rest().is_empty(), "the command was not completed");
    });
    let error = world.append(&inbox()).unwrap_err();
    assert!(matches!(error, StoreError::OverQuota(_)), "{error}");
    world.end();
}

#[test]
fn a_silent_server_is_given_up_in_time() {
    let silent_answer = refused_append(|peer| {
        peer.append();
        peer.last_bytes();
        assert!(peer.rest().is_empty());
    });
    assert!(is_in_doubt(&silent_answer), "{silent_answer}");
    for tls in [Tls::None, Tls::Implicit, Tls::StartTls] {
        let script = |listener: TcpListener| drop(Peer::accept(&listener).rest());
        let world = World::with(script, |settings| settings.tls = tls);
        let start = Instant::now();
        let until = start + Duration::from_millis(300);
        assert!(is_not_stored(&world.store.check("doug", until).unwrap_err()));
        assert!(start.elapsed() < Duration::from_secs(1), "{tls:?} took {:?}", start.elapsed());
        world.end();
    }
}

#[test]
fn what_hangs_before_the_last_bytes_leaves_the_time_for_an_answer() {
    let greeted = |listener: TcpListener| drop(Peer::accept(&listener).rest());
    let waits_for_plus = |listener: TcpListener| {
        let mut peer = Peer::accept(&listener);
        peer.log_in("IMAP4rev1 SASL-IR");
        peer.append_to("\"INBOX\"", "");
        peer.rest();
    };
    for script in [greeted as fn(TcpListener), waits_for_plus as fn(TcpListener)] {
        let world = World::new(script);
        let deadline = Deadline::new(Duration::from_secs(60), Duration::from_millis(58_500));
        let error = world.append_within(&inbox(), &deadline).unwrap_err();
        assert!(is_not_stored(&error), "{error}");
        assert!(deadline.left() > Duration::from_secs(53), "only {:?} left", deadline.left());
        world.end();
    }
}

#[test]
fn a_login_in_the_background_is_not_waited_for_beyond_the_deadline() {
    let world = World::new(|listener| drop(Peer::accept(&listener).rest()));
    world.store.prepare("doug", Instant::now() + Duration::from_secs(8));
    let start = Instant::now();
    let error = world.store.check("doug", start + Duration::from_millis(100)).unwrap_err();
    assert!(is_not_stored(&error) && start.elapsed() < Duration::from_secs(4), "{error}");
    world.end();
}

/// Says `text` byte by byte until nobody listens any more.
fn drip(peer: &mut Peer, text: &str) {
    for byte in text.bytes().cycle() {
        if peer.stream.write_all(&[byte]).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_drip_does_not_stretch_the_deadline() {
    let error = refused_append(|peer| {
        peer.append();
        peer.last_bytes();
        drip(peer, "* OK patience\r\n");
    });
    assert!(is_in_doubt(&error), "{error}");
    // A TLS record of 16 KB, a byte at a time.
    let script = |listener: TcpListener| {
        let mut peer = Peer::accept(&listener);
        peer.say(b"\x16\x03\x03\x40\x00");
        drip(&mut peer, "x");
    };
    let world = World::with(script, |settings| settings.tls = Tls::Implicit);
    let start = Instant::now();
    assert!(world.store.check("doug", start + Duration::from_millis(300)).is_err());
    assert!(start.elapsed() < Duration::from_secs(1), "took {:?}", start.elapsed());
    world.end();
}

#[test]
fn a_flood_is_cut_off() {
    for flood in
        ["x".repeat(64 * 1024), "* OK x\r\n".repeat(1024), "* 1 FETCH {9999999999}\r\n".to_owned()]
    {
        let error = refused_append(move |peer| {
            peer.append();
            peer.last_bytes();
            while peer.stream.write_all(flood.as_bytes()).is_ok() {}
        });
        assert!(
            is_in_doubt(&error) && error.to_string().contains("more than it should"),
            "{error}"
        );
    }
    let world = World::new(|listener| {
        let mut peer = Peer::accept(&listener);
        while peer.stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let error = world.append(&inbox()).unwrap_err();
    assert!(is_not_stored(&error) && error.to_string().contains("more than it should"), "{error}");
    world.end();
}

#[test]
fn a_greeting_that_is_none_of_ours_is_refused_without_a_password() {
    for greeting in [
        "* PREAUTH welcome back\r\n",
        "* BYE too many\r\n",
        "220 mail ESMTP\r\n",
        "* OKAY\r\n",
        "\r\n",
    ] {
        let world = World::new(move |listener| {
            let mut peer = Peer::accept(&listener);
            peer.say(greeting);
            assert!(peer.rest().is_empty());
        });
        assert!(is_not_stored(&world.append(&inbox()).unwrap_err()));
        world.end();
    }
}

#[test]
fn a_refused_login_names_everything_but_the_password() {
    let answers = [
        "NO [AUTHENTICATIONFAILED] Anmeldung für Doug fehlgeschlagen",
        "BAD unknown command PLAIN ZG91ZwBtZGEAc2VjcmV0",
        "NO wrong password: secret",
    ];
    for answer in answers {
        let world = World::new(move |listener| {
            let mut peer = Peer::accept(&listener);
            peer.say("* OK [CAPABILITY IMAP4rev1 SASL-IR] ready\r\n");
            peer.answer("AUTHENTICATE PLAIN ZG91ZwBtZGEAc2VjcmV0", answer);
            assert!(peer.rest().is_empty());
        });
        let error = world.append(&inbox()).unwrap_err().to_string();
        for word in ["mda", "doug", "127.0.0.1", &answer[..10]] {
            assert!(error.contains(word), "{error}");
        }
        for secret in ["secret", "ZG91ZwBtZGEAc2VjcmV0"] {
            assert!(!error.contains(secret), "{error}");
        }
        world.end();
    }
    assert!(!format!("{:?}", settings(1)).contains("secret"));
}

#[test]
fn without_the_tls_that_was_asked_for_nothing_goes_on() {
    for answer in
        ["NO not now\r\n", "BAD what\r\n", "OK go on\r\n* OK [CAPABILITY IMAP4rev1] injected\r\n"]
    {
        let script = move |listener: TcpListener| {
            let mut peer = Peer::accept(&listener);
            peer.say("* OK [CAPABILITY IMAP4rev1 SASL-IR] ready\r\n");
            assert_eq!(peer.line(), "s1 STARTTLS");
            peer.say(format!("s1 {answer}"));
            assert!(peer.rest().is_empty());
        };
        let world = World::with(script, |settings| settings.tls = Tls::StartTls);
        assert!(is_not_stored(&world.append(&inbox()).unwrap_err()));
        world.end();
    }
}

#[test]
fn a_mailbox_name_cannot_carry_a_command() {
    let world = World::logged_in(CAPABILITIES, |peer| {
        let tag = peer.append_to("\"a\\\" b\\\\ {3+}\" (\\Seen)", "+");
        peer.bytes(LETTER_SENT.len() + 2);
        peer.say(format!("{tag} OK\r\n"));
    });
    for mailbox in ["a\r\na9 DELETE INBOX", "a\0b", "", "a\nb"] {
        let refused = world.append(&Destination::sent("doug", mailbox));
        assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    }
    world.append(&Destination::sent("doug", "a\" b\\ {3+}")).unwrap();
    world.end();
}
