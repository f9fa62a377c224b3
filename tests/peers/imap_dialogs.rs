//! What the IMAP store says and what it makes of the answers, as dialogs in `fixtures/imap`;
//! `FORMAT.md` there says how they are written.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::escapes::unescaped;
use crate::imap_script::{
    DATE, LETTER, LOGIN, ScriptedServer, copy_of, deadline, inbox, letter, listen, overslept, soon,
};
use crate::support::imap::over_imap;
use onedrop::connections::Connections;
use onedrop::directory::Destination;
use onedrop::store::TrustSearch;
use onedrop::store::imap::{ImapStore, Tls};
use onedrop::store::{Access, Mailboxes, Need, Store};
use onedrop::store::{Copy, CopySearch, FoundCopy, Receipt, StoreError};

struct Dialog {
    name: String,
    letter: Vec<u8>,
    tls: Tls,
    create_mailboxes: bool,
    trust_search: TrustSearch,
    lock_timeout: Option<Duration>,
    newer_than: Option<Receipt>,
    looks_back: bool,
    /// What is said, in order.
    script: Vec<(String, String)>,
    /// What the store is asked, and what must come of it.
    asked: Vec<(String, String)>,
}

/// The dialogs in `text`, each with the values it is to be run with in place.
fn parse(text: &str) -> Vec<Dialog> {
    let mut dialogs = Vec::new();
    for part in text.split("\n= ").skip(1) {
        let (name, rest) = part.split_once('\n').expect("a name");
        let lines: Vec<(&str, &str)> = rest
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| match line.strip_prefix("? ") {
                Some(asked) => ("?", asked),
                None => line.split_once(':').unwrap_or_else(|| panic!("{name}: {line}")),
            })
            .map(|(word, rest)| (word, rest.strip_prefix(' ').unwrap_or(rest)))
            .collect();
        let with: Vec<&str> =
            lines.iter().filter(|(word, _)| *word == "with").map(|(_, values)| *values).collect();
        for values in if with.is_empty() { vec![""] } else { with } {
            let replaced = |text: &str| {
                values.split(" | ").zip(1..).fold(text.to_owned(), |text, (value, number)| {
                    text.replace(&format!("%{number}"), value)
                })
            };
            let mut dialog = Dialog {
                name: format!("{name} {values}"),
                letter: LETTER.to_vec(),
                tls: Tls::None,
                create_mailboxes: true,
                trust_search: TrustSearch::Always,
                lock_timeout: None,
                newer_than: None,
                looks_back: false,
                script: Vec::new(),
                asked: Vec::new(),
            };
            for (word, rest) in &lines {
                let rest = replaced(rest);
                match (*word, rest.as_str()) {
                    ("with", _) => {}
                    ("letter", text) => dialog.letter = unescaped(text),
                    ("tls", "starttls") => dialog.tls = Tls::StartTls,
                    ("trust", "auto") => dialog.trust_search = TrustSearch::Auto,
                    ("trust", "never") => dialog.trust_search = TrustSearch::Never,
                    ("lock_timeout", secs) => {
                        let secs = secs.parse().expect("seconds");
                        dialog.lock_timeout = Some(Duration::from_secs(secs));
                    }
                    ("looks", "back") => dialog.looks_back = true,
                    ("newer_than", uid) => {
                        let uid = uid.parse().expect("a UID");
                        dialog.newer_than = Some(Receipt::uid(7, uid));
                    }
                    ("without", "create_mailboxes") => dialog.create_mailboxes = false,
                    ("?", asked) => {
                        let (asked, expected) = asked.split_once(" -> ").expect("an outcome");
                        dialog.asked.push((asked.to_owned(), expected.to_owned()));
                    }
                    (word, _) => dialog.script.push((word.to_owned(), rest)),
                }
            }
            dialogs.push(dialog);
        }
    }
    dialogs
}

/// Plays the server.
fn serve(listener: &TcpListener, dialog: &Dialog, go: &Sender<()>) {
    let is_login = |word: &str| word == "can" || word == "again";
    let mut server = ScriptedServer::accept(listener);
    for (number, (word, rest)) in dialog.script.iter().enumerate() {
        if is_login(word) && number > 0 {
            server = ScriptedServer::accept(listener);
        }
        match word.as_str() {
            word if is_login(word) => server.log_in(rest),
            "C" => server.expect(rest),
            "c" => assert_eq!(server.line(), *rest),
            "A" => {
                let (mailbox, size) = rest.rsplit_once(' ').expect("a size");
                server.expect(&format!("APPEND {mailbox} {DATE} {{{size}}}"));
            }
            "L" => server.expect_bytes(&over_imap(&dialog.letter)),
            "S" => server.say(format!("{}\r\n", rest.replace('$', &server.tag))),
            "s" => server.say(unescaped(&rest.replace('$', &server.tag))),
            "m" | "M" => {
                let (uid, text) = rest.split_once(' ').expect("a UID");
                let bytes = unescaped(text);
                let size = bytes.len();
                let head =
                    format!("* 1 FETCH (UID {uid} RFC822.SIZE {size} BODY[]<0> {{{size}}}\r\n");
                server.say([head.as_bytes(), &bytes, b")\r\n"].concat());
                if word == "M" {
                    server.reply("OK done");
                }
            }
            "T" => thread::sleep(Duration::from_millis(rest.parse().expect("a number"))),
            "W" => server.expect_silence(),
            "X" => server.hang_up(),
            "Z" => server.expect_end(),
            "G" => go.send(()).expect("the store is asked"),
            _ => panic!("{word}: {rest}"),
        }
    }
}

/// Asks the store; returns the answer in a dialog's words.
fn ask(
    store: &ImapStore,
    dialog: &Dialog,
    asked: &str,
    go: &Receiver<()>,
) -> Result<String, StoreError> {
    let letter = letter(&dialog.letter);
    let copy = copy_of(&letter);
    let inbox = inbox();
    let done = || "done".to_owned();
    let words: Vec<&str> = asked.split(' ').collect();
    match words[..] {
        ["append", ref mailbox @ ..] => {
            let name = String::from_utf8(unescaped(&mailbox.join(" "))).expect("a name");
            let sent = Destination::sent("doug", &name);
            slot(store, dialog, if name.is_empty() { &inbox } else { &sent }, "write append", go)
        }
        ["file", name] => {
            let own = Destination { mailbox: name.to_owned(), ..inbox };
            slot(store, dialog, &own, "write append", go)
        }
        ["look"] => slot(store, dialog, &inbox, "look look", go),
        ["slot", ..] => slot(store, dialog, &inbox, &words[1..].join(" "), go),
        ["find", ref how @ ..] => {
            let receipt = Receipt::uid(7, 4);
            let needs_proof = how == ["proven"];
            let on_record = Some(&receipt);
            let sought = CopySearch { needs_proof, on_record, at_most: 3, ..copy.sought() };
            let found = |one: &FoundCopy| {
                let FoundCopy { receipt, proof, has_our_date, marked_deleted, .. } = one;
                let date = if *has_our_date { " dated" } else { "" };
                let deleted = if *marked_deleted { " deleted" } else { "" };
                format!("{} {proof:?}{date}{deleted}", named(receipt))
            };
            let all: Vec<String> = store.find(&inbox, &sought, soon())?.iter().map(found).collect();
            Ok(if all.is_empty() { "nothing".to_owned() } else { all.join(", ") })
        }
        ["remove", which] => store.remove(&inbox, &receipt(which), None, soon()).map(|()| done()),
        ["double", which, keeper] => {
            store.remove_double(&inbox, &receipt(which), &receipt(keeper), soon()).map(|()| done())
        }
        ["check"] => store.check("doug", soon()).map(|facts| facts.join("; ")),
        ["prepare", millis] => {
            let millis = Duration::from_millis(millis.parse().expect("a number"));
            store.prepare("doug", Instant::now() + millis);
            Ok(done())
        }
        ["count"] => Ok(format!("{:?}", store.count())),
        ["wait", millis] => {
            thread::sleep(Duration::from_millis(millis.parse().expect("a number")));
            Ok(done())
        }
        ["go"] => {
            go.recv().expect("the script says when");
            Ok(done())
        }
        _ => panic!("{asked}"),
    }
}

/// One whose mailbox may take long to open has time for that.
fn look_until(dialog: &Dialog) -> Instant {
    match dialog.lock_timeout {
        Some(_) => Instant::now() + Duration::from_secs(15),
        None => soon(),
    }
}

/// Reserves a slot (`early`, `write` or `look`, with a deadline that passes `late`) and does in it
/// what the other words say.
fn slot(
    store: &ImapStore,
    dialog: &Dialog,
    destination: &Destination,
    words: &str,
    go: &Receiver<()>,
) -> Result<String, StoreError> {
    let letter = letter(&dialog.letter);
    let mut words = words.split(' ').peekable();
    let need = match words.next() {
        Some("early") => Need::Early,
        Some("write") => Need::Write,
        _ => Need::Look,
    };
    let is_late = words.next_if_eq(&"late").is_some();
    let deadline = if is_late { overslept() } else { deadline() };
    let (newer_than, looks_back) = (dialog.newer_than.as_ref(), dialog.looks_back);
    let copy = Copy { newer_than, looks_back, ..copy_of(&letter) };
    let reserved = store.reserve(destination, copy, need, &deadline)?;
    let Some(mut slot) = reserved else { return Ok("none".to_owned()) };
    let mut results = Vec::new();
    for word in words {
        results.push(match word {
            "append" => {
                let appended = slot.append();
                match &appended {
                    Ok(_) => assert!(deadline.is_answering(), "its receipt is not on record"),
                    Err(StoreError::InDoubt(_)) => {}
                    Err(_) => assert!(!deadline.is_answering(), "nothing is left to wait for"),
                }
                named(&appended?)
            }
            "look" => slot.look(look_until(dialog))?.as_ref().map_or("nothing".to_owned(), named),
            "go" => {
                go.recv().expect("the script says when");
                continue;
            }
            _ => panic!("{word}"),
        });
    }
    Ok(if results.is_empty() { "dropped".to_owned() } else { results.join(", ") })
}

fn receipt(text: &str) -> Receipt {
    match text.split_once('/') {
        Some((validity, uid)) => {
            Receipt::uid(validity.parse().expect("a number"), uid.parse().expect("a number"))
        }
        None if text == "Unnamed" => Receipt::UNNAMED,
        None => Receipt::name(text),
    }
}

fn named(receipt: &Receipt) -> String {
    match receipt.as_uid() {
        Some((validity, uid)) => format!("{validity}/{uid}"),
        None if *receipt == Receipt::UNNAMED => "Unnamed".to_owned(),
        None => format!("{receipt:?}"),
    }
}

/// Plays one dialog; the script must come to its end, and so must the store, in time.
fn play(dialog: &Dialog) {
    let (listener, store) = listen(1, |settings| {
        settings.tls = dialog.tls;
        settings.create_mailboxes = dialog.create_mailboxes;
        settings.trust_search = dialog.trust_search;
        settings.lock_timeout = dialog.lock_timeout.unwrap_or(settings.lock_timeout);
    });
    let (go, gone) = channel();
    thread::scope(|scope| {
        let script = scope.spawn(move || serve(&listener, dialog, &go));
        for (asked, expected) in &dialog.asked {
            let began = Instant::now();
            let came = ask(&store, dialog, asked, &gone).map_err(|error| {
                let text = error.to_string();
                assert!(!["secret", LOGIN].iter().any(|secret| text.contains(secret)), "{text}");
                assert!(text.len() < 500 && !text.chars().any(char::is_control), "{text:?}");
                let kind = format!("{error:?}");
                format!("{} {text}", kind.split('(').next().unwrap_or_default())
            });
            let fits = match &came {
                Ok(came) if asked != "check" => came == expected,
                Ok(text) | Err(text) => {
                    let (kind, parts) = expected.split_once(' ').unwrap_or((expected, ""));
                    text.split(' ').next() == Some(kind)
                        && parts.split(" ... ").all(|part| text.contains(part))
                }
            };
            assert!(fits, "{}: {asked} -> {expected}\nbut {came:?}", dialog.name);
            assert!(began.elapsed() < Duration::from_secs(20), "{}: {asked}", dialog.name);
        }
        drop(store);
        assert!(script.join().is_ok(), "{}: the server heard something else", dialog.name);
    });
}

fn play_all(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/imap").join(file);
    let text = fs::read_to_string(path).expect("a file of dialogs");
    let dialogs = parse(&text);
    assert!(!dialogs.is_empty());
    dialogs.iter().for_each(play);
}

#[test]
fn appends() {
    play_all("appends.dialog");
}

#[test]
fn logins() {
    play_all("logins.dialog");
}

#[test]
fn early_appends() {
    play_all("early.dialog");
}

#[test]
fn refusals() {
    play_all("refusals.dialog");
}

#[test]
fn hostile_servers() {
    play_all("hostile.dialog");
}

#[test]
fn looks() {
    play_all("looks.dialog");
}

#[test]
fn names() {
    play_all("names.dialog");
}

#[test]
fn unindexed() {
    play_all("unindexed.dialog");
}

#[test]
fn removals() {
    play_all("removals.dialog");
}

#[test]
fn sessions() {
    play_all("sessions.dialog");
}
