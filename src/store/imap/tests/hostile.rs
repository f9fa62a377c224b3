//! Servers that hang, drip or flood: what is certain then, and what is in doubt.

use super::*;

fn is_in_doubt(error: &StoreError) -> bool {
    matches!(error, StoreError::InDoubt(_))
}

/// The text of an error that a call's own time has ended, as nothing else does.
const IN_TIME: &str = "no answer in time";

/// Appends against `script` and returns the error.
fn refused_append(script: impl FnOnce(&mut Peer) + Send + 'static) -> StoreError {
    let world = World::logged_in(CAPABILITIES, script);
    let error = world.append(&inbox()).unwrap_err();
    world.end();
    error
}

#[test]
fn a_silent_server_is_given_up_in_time() {
    let silent_answer = refused_append(|peer| {
        peer.append();
        peer.last_bytes();
        assert!(peer.rest().is_empty());
    });
    assert!(is_in_doubt(&silent_answer) && silent_answer.to_string().ends_with(IN_TIME));
    for tls in [Tls::None, Tls::Implicit, Tls::StartTls] {
        let script = |listener: TcpListener| drop(Peer::accept(&listener).rest());
        let world = World::with(script, |settings| settings.tls = tls);
        let until = Instant::now() + Duration::from_millis(300);
        let error = world.store.check("doug", until).unwrap_err();
        assert!(is_not_stored(&error) && error.to_string().ends_with(IN_TIME), "{tls:?}: {error}");
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
        assert!(deadline.left() > Duration::from_secs(30), "only {:?} left", deadline.left());
        world.end();
    }
}

#[test]
fn a_login_in_the_background_is_not_waited_for_beyond_the_deadline() {
    let world = World::new(|listener| drop(Peer::accept(&listener).rest()));
    world.store.prepare("doug", Instant::now() + Duration::from_secs(8));
    let until = Instant::now() + Duration::from_millis(100);
    let error = world.store.check("doug", until).unwrap_err();
    assert!(is_not_stored(&error) && error.to_string().ends_with("not logged in in time"));
    assert!(world.is_served(), "the login itself goes on");
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
    assert!(is_in_doubt(&error) && error.to_string().ends_with(IN_TIME), "{error}");
    // A TLS record of 16 KB, a byte at a time.
    let script = |listener: TcpListener| {
        let mut peer = Peer::accept(&listener);
        peer.say(b"\x16\x03\x03\x40\x00");
        drip(&mut peer, "x");
    };
    let world = World::with(script, |settings| settings.tls = Tls::Implicit);
    let until = Instant::now() + Duration::from_millis(300);
    let error = world.store.check("doug", until).unwrap_err();
    assert!(error.to_string().ends_with(IN_TIME), "{error}");
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
