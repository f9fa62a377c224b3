//! What an IMAP server says, to the real client on a connection of its own: every line of the input
//! that is a single `%` ends what the server says to one command. Tags are those that the client
//! will use.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::login::LoginForm;
use onedrop::message::{DedupBy, Message};
use onedrop::net::pool::Limits;
use onedrop::store::TrustSearch;
use onedrop::store::imap::{ImapSettings, ImapStore, Tls};
use onedrop::store::{Copy, Receipt, StoreError};
use onedrop::store::{Need, Slot, Store};

use super::harness::Target;

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

const DICTIONARY: &[&[u8]] = &[
    b"\r\n%\r\n",
    b"a1 OK ",
    b"a2 OK ",
    b"a3 OK ",
    b"a4 OK ",
    b"a2 NO [TRYCREATE] ",
    b"a3 NO [OVERQUOTA] ",
    b"a2 BAD ",
    b"* BYE ",
    b"* OK [UIDVALIDITY 7] ",
    b"* SEARCH 1 2 3",
    b"* ESEARCH ",
    b"* 1 FETCH (UID 1 FLAGS () INTERNALDATE \"21-Nov-2026 00:00:00 +0000\" RFC822.SIZE 37 \
      BODY[]<0> {37}\r\n",
    b"[APPENDUID 7 42]",
    b"[CAPABILITY IMAP4rev1 LITERAL+ UIDPLUS MULTIAPPEND APPENDLIMIT=30]",
    b"+ \r\n",
    b"{99999999999}",
    b"{3}\r\n",
    b"((((((((",
    b"\"\\",
    b"\0",
    b"\xff",
];

const LETTER: &[u8] = b"Message-ID: <a@b>\nSubject: s\n\nbody\n";
/// Far above what a session on loopback takes; what hangs shows by it.
const TIME: Duration = Duration::from_millis(400);

fn seeds() -> Vec<Vec<u8>> {
    let login = "* OK [CAPABILITY IMAP4rev1 SASL-IR] ready\r\n%\r\n\
                 a1 OK [CAPABILITY IMAP4rev1 LITERAL+ UIDPLUS] in\r\n%\r\n";
    let sent = "Message-ID: <a@b>\r\nSubject: s\r\n\r\nbody\r\n";
    let look = format!(
        "* FLAGS (\\Seen)\r\n* 1 EXISTS\r\n* OK [UIDVALIDITY 7] fine\r\na2 OK [READ-ONLY] done\r\n\
         %\r\n\
         * SEARCH 1\r\na3 OK done\r\n%\r\n\
         * 1 FETCH (UID 1 FLAGS (\\Seen) INTERNALDATE \"21-Nov-2026 00:00:00 +0000\" RFC822.SIZE \
         {0} BODY[]<0> {{{0}}}\r\n\
         {sent})\r\na4 OK done\r\n%\r\n",
        sent.len()
    );
    [
        format!("{login}a2 OK [APPENDUID 7 42] done\r\n%\r\n"),
        format!(
            "{login}a2 NO [TRYCREATE] none\r\n%\r\na3 OK done\r\n%\r\na4 OK done\r\n%\r\na5 OK \
                 [APPENDUID 7 1] x\r\n%\r\n"
        ),
        "* OK ready\r\n%\r\n* CAPABILITY IMAP4rev1\r\ns2 OK\r\n%\r\n+ \r\n%\r\na1 OK in\r\n%\r\n\
         * CAPABILITY IMAP4rev1\r\na2 OK\r\n%\r\n+ go\r\n%\r\na3 OK done\r\n%\r\n"
            .to_owned(),
        format!("{login}{look}"),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// The server's end: says each part of the input after a command, and then no more.
fn serve(stream: &TcpStream, input: &[u8]) -> std::io::Result<()> {
    let mut commands = BufReader::new(stream);
    let mut stream = stream;
    let mut parts = split(input).into_iter();
    stream.write_all(parts.next().unwrap_or_default())?;
    for part in parts {
        let mut line = Vec::new();
        if commands.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if let Some(size) = literal(&line, b"+}\r\n") {
            std::io::copy(&mut commands.by_ref().take(size + 2), &mut std::io::sink())?;
        }
        stream.write_all(part)?;
        if let (Some(size), true) = (literal(&line, b"}\r\n"), part.starts_with(b"+")) {
            std::io::copy(&mut commands.by_ref().take(size), &mut std::io::sink())?;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    std::io::copy(&mut commands, &mut std::io::sink()).map(drop)
}

/// The parts between lines of a single `%`.
fn split(input: &[u8]) -> Vec<&[u8]> {
    const END: &[u8] = b"\n%\r\n";
    let (mut parts, mut from) = (Vec::new(), 0);
    while let Some(at) = input[from..].windows(END.len()).position(|window| window == END) {
        parts.push(&input[from..=from + at]);
        from += at + END.len();
    }
    parts.push(&input[from..]);
    parts
}

/// The size of the literal that a command announces.
fn literal(line: &[u8], end: &[u8]) -> Option<u64> {
    let inside = line.strip_suffix(end)?;
    let open = inside.iter().rposition(|byte| *byte == b'{')?;
    std::str::from_utf8(&inside[open + 1..]).ok()?.parse().ok()
}

/// Runs `work` with a slot for the letter in a store whose server says `input`; it must have come
/// to its end in time.
fn with<T>(
    input: &[u8],
    need: Need,
    work: impl FnOnce(&mut dyn Slot) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let letter = Message::new(LETTER.to_vec(), DedupBy::Content);
    let copy = Copy {
        key: &[0; 32],
        head: b"",
        bytes: letter.own_copy(),
        identity: letter.identity(),
        recorded_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_219_200),
        looks_back: false,
        handed: None,
        looked: None,
        newer_than: None,
    };
    let inbox = Destination::inbox("doug");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let settings = ImapSettings {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().expect("an address").port(),
        tls: Tls::None,
        ca_file: None,
        user: "mda".to_owned(),
        login: LoginForm::Sasl,
        password: "hunter2".into(),
        create_mailboxes: true,
        trust_search: TrustSearch::Always,
        lock_timeout: Duration::from_secs(5),
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            // The first connection only: another try finds no server.
            if let Ok((stream, _)) = listener.accept() {
                drop(listener);
                let _ = stream.set_read_timeout(Some(4 * TIME));
                let _ = serve(&stream, input);
            }
        });
        let store = ImapStore::new(settings, Limits { used: 1, per_key: 1, kept: 1, idle: TIME });
        let (began, deadline) = (Instant::now(), Deadline::new(TIME, TIME / 4));
        let done = store
            .reserve(&inbox, copy, need, &deadline)
            .and_then(|slot| work(slot.expect("a slot").as_mut()));
        assert!(began.elapsed() < 20 * TIME, "it hung for {:?}", began.elapsed());
        done
    })
}

/// Whatever a server says, an append and a look end in time, without the password in an error; a
/// copy counts as stored or as found only where the server said so.
pub fn check(input: &[u8]) {
    let says = |text: &str| {
        input.windows(text.len()).any(|window| window.eq_ignore_ascii_case(text.as_bytes()))
    };
    let tells = |error: StoreError| {
        let text = error.to_string();
        assert!(!text.contains("hunter2") && !text.chars().any(char::is_control), "{text:?}");
    };

    match with(input, Need::Write, |slot| slot.append()) {
        Ok(receipt) if receipt == Receipt::UNNAMED => assert!(says(" OK")),
        Ok(receipt) => {
            let (validity, uid) = receipt.as_uid().unwrap_or_else(|| panic!("{receipt:?}"));
            assert!(validity > 0 && uid > 0 && says(&format!("APPENDUID {validity} {uid}")));
        }
        Err(error) => tells(error),
    }
    match with(input, Need::Look, |slot| slot.look(Instant::now() + TIME)) {
        Ok(Some(receipt)) => {
            assert!(matches!(receipt.as_uid(), Some((1.., 1..))), "{receipt:?}");
            assert!(says("<a@b>") && says("SEARCH"), "what is not there is not found");
        }
        Ok(None) => {}
        Err(error) => tells(error),
    }
}

#[test]
fn good_answers_reach_the_end() {
    let [plain, made, waits, look] = <[Vec<u8>; 4]>::try_from(seeds()).expect("four");
    for (input, receipt) in
        [(plain, Receipt::uid(7, 42)), (made, Receipt::uid(7, 1)), (waits, Receipt::UNNAMED)]
    {
        let stored = with(&input, Need::Write, |slot| slot.append());
        assert!(matches!(&stored, Ok(is) if *is == receipt), "{stored:?}");
    }
    let seen = with(&look, Need::Look, |slot| slot.look(Instant::now() + TIME));
    assert!(matches!(&seen, Ok(Some(is)) if *is == Receipt::uid(7, 1)), "{seen:?}");
}
