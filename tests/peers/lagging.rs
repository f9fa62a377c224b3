//! A mail server whose SEARCH is answered from an index that lags: it shows nothing that was stored
//! since the server began; and Dovecot, which shows a mailbox whose lock it does not get as it last
//! knew it. A copy that was stored and whose answer was lost must be found there nonetheless.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::dovecot::Dovecot;
use crate::support::letters::{are_these, from_ann};
use crate::support::site::{Files, Site, deliver, delivered, run};
use crate::support::{self, set_mode};

#[derive(Default)]
struct Mailboxes {
    /// By account and mailbox.
    mails: BTreeMap<(String, String), Vec<Stored>>,
    /// The next APPEND is stored, and its connection ends instead of an answer.
    loses_an_answer: bool,
    /// Commands, without their tags.
    heard: Vec<String>,
}

struct Stored {
    date: String,
    bytes: Vec<u8>,
}

#[derive(Clone, Default)]
struct LaggingServer(Arc<Mutex<Mailboxes>>);

impl LaggingServer {
    /// Serves on a port of its own for as long as the test lives.
    fn start() -> (LaggingServer, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = LaggingServer::default();
        let shared = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = shared.clone();
                // A client may hang up whenever it likes.
                thread::spawn(move || server.serve(stream).ok());
            }
        });
        (server, port)
    }

    fn mailboxes(&self) -> MutexGuard<'_, Mailboxes> {
        self.0.lock().expect("the mails")
    }

    /// How many messages have this name.
    fn count(&self, name: &str) -> usize {
        let text = format!("Message-ID: <{name}@x>");
        let mailboxes = self.mailboxes();
        let lines = |mail: &Stored| String::from_utf8_lossy(&mail.bytes).contains(&text);
        mailboxes.mails.values().flatten().filter(|mail| lines(mail)).count()
    }

    /// Commands since the last call.
    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut self.mailboxes().heard)
    }

    fn save(&self, account: &str, mailbox: &str, bytes: &[u8], date: &str) {
        let (date, bytes) = (date.to_owned(), bytes.to_vec());
        let at = (account.to_owned(), mailbox.to_owned());
        self.mailboxes().mails.entry(at).or_default().push(Stored { date, bytes });
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut input = BufReader::new(stream.try_clone()?);
        let can = "IMAP4rev1 SASL-IR LITERAL+ UIDPLUS ID";
        write!(stream, "* OK [CAPABILITY {can}] ready\r\n")?;
        let (mut user, mut opened) = (String::new(), String::new());
        let named = |word: &str| word.trim_matches('"').to_owned();
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            let (tag, command) = line.split_once(' ').unwrap_or((line, ""));
            let words: Vec<&str> = command.split(' ').collect();
            self.mailboxes().heard.push(command.to_owned());
            let mut answer = "OK done".to_owned();
            match words[..] {
                ["AUTHENTICATE", "PLAIN", token] => {
                    let token = STANDARD.decode(token).expect("base64");
                    user = String::from_utf8_lossy(&token).split('\0').next().unwrap_or("").into();
                    answer = format!("OK [CAPABILITY {can}] in");
                }
                ["ID", ..] => write!(stream, "* ID (\"name\" \"Lagging\")\r\n")?,
                ["EXAMINE" | "SELECT", mailbox] => {
                    opened = named(mailbox);
                    let at = (user.clone(), opened.clone());
                    let count = self.mailboxes().mails.get(&at).map_or(0, Vec::len);
                    // Another's is numbered in another way.
                    let validity = if user == "doug" { 7 } else { 8 };
                    write!(stream, "* {count} EXISTS\r\n* OK [UIDVALIDITY {validity}] fine\r\n")?;
                    write!(stream, "* OK [UIDNEXT {}] fine\r\n", count + 1)?;
                }
                ["UID", "SEARCH", ..] => write!(stream, "* SEARCH\r\n")?,
                ["FETCH", range, ..] | ["UID", "FETCH", range, ..] => {
                    let at = (user.clone(), opened.clone());
                    self.fetch(&mut stream, &at, range, command)?;
                }
                ["APPEND", mailbox, ..] => {
                    let (date, size) = command.rsplit_once(" {").expect("a literal");
                    let date = date.split('"').rev().nth(1).unwrap_or_default().to_owned();
                    let size = size.trim_end_matches("+}").parse().expect("LITERAL+");
                    let mut bytes = vec![0; size];
                    input.read_exact(&mut bytes)?;
                    input.read_exact(&mut [0; 2])?;
                    self.save(&user, &named(mailbox), &bytes, &date);
                    let mut mailboxes = self.mailboxes();
                    if std::mem::take(&mut mailboxes.loses_an_answer) {
                        return Ok(());
                    }
                    let validity = if user == "doug" { 7 } else { 8 };
                    let number = mailboxes.mails[&(user.clone(), named(mailbox))].len();
                    answer = format!("OK [APPENDUID {validity} {number}] done");
                }
                ["LOGOUT"] => return Ok(()),
                _ => answer = "BAD what?".to_owned(),
            }
            write!(stream, "{tag} {answer}\r\n")?;
        }
    }

    /// UIDs are numbers from 1 on, without gaps.
    fn fetch(
        &self,
        stream: &mut TcpStream,
        at: &(String, String),
        set: &str,
        items: &str,
    ) -> std::io::Result<()> {
        let number = |text: &str| text.parse::<usize>().expect("a number");
        let numbers = set.split(',').flat_map(|range| {
            let (first, last) = range.split_once(':').unwrap_or((range, range));
            number(first)..=number(last)
        });
        for number in numbers {
            let mailboxes = self.mailboxes();
            let mails = mailboxes.mails.get(at);
            let Some(Stored { date, bytes }) = mails.and_then(|mails| mails.get(number - 1)) else {
                continue;
            };
            let size = bytes.len();
            write!(stream, "* {number} FETCH (UID {number} FLAGS () INTERNALDATE \"{date}\"")?;
            write!(stream, " RFC822.SIZE {size}")?;
            if items.contains("BODY.PEEK[]<0.") {
                write!(stream, " BODY[]<0> {{{size}}}\r\n")?;
                stream.write_all(bytes)?;
            } else if items.contains("HEADER.FIELDS") {
                let text = String::from_utf8_lossy(bytes);
                let id = text.lines().find(|line| line.starts_with("Message-ID:"));
                let id = format!("{}\r\n\r\n", id.unwrap_or_default().trim_end());
                write!(stream, " BODY[HEADER.FIELDS (MESSAGE-ID)]<0> {{{}}}\r\n{id}", id.len())?;
            }
            write!(stream, ")\r\n")?;
        }
        Ok(())
    }
}

const PASSWORD: &str = "secret";

/// A site whose mail is on such a server.
fn site(port: u16, more: &str, trust: &str) -> (Site<Files>, PathBuf) {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config(
        "etc",
        &format!(
            "[directory]\ndomains = [\"mail.axial.net\"]\n[lock]\nwait_secs = 0\n{more}\
             [store]\nurl = \"imap://127.0.0.1:{port}\"\ntrust_search = \"{trust}\"\n\
             password_file = \"$DIR/store.password\"\n"
        ),
    );
    let password = config.with_file_name("store.password");
    fs::write(&password, PASSWORD).expect("a password");
    set_mode(&password, 0o600);
    (site, config)
}

/// What a command of ours says.
fn says(config: &Path, args: &[&str]) -> String {
    let output = run(config, args);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn in_the_past(site: &Site<Files>, days: u32) {
    let ago = days * 86_400;
    let sql = format!("UPDATE onedrop_copy SET placed_at = placed_at - {ago}");
    site.sqlite().execute(&sql, []).expect("an earlier time");
}

/// The mail program's own copy stands in Sent when the copy that Onedrop would write is due.
#[test]
fn settle_sees_the_mail_programs_own_copy_that_a_search_does_not_show() {
    for (trusted, copies) in [("auto", 1), ("always", 2)] {
        let (server, port) = LaggingServer::start();
        let more = "[sent]\ntrust = \"authenticated\"\nauthserv_id = \"mail.axial.net\"\n\
                    after = \"1ms\"\n";
        let (site, config) = site(port, more, trusted);
        let date = support::run(Command::new("date").arg("-R"));
        let letter = |name: &str| {
            format!(
                "From: doug@mail.axial.net\nTo: scuba@mail.axial.net\nDate: {date}\
                 Message-ID: <{name}@x>\nSubject: s\n\nthis is {name}\n"
            )
        };
        let send = |name: &str| {
            let args = ["-d", "scuba@mail.axial.net", "--sasl-username", "doug"];
            delivered(&config, &args, letter(name).as_bytes());
        };
        for earlier in ["one", "two"] {
            send(earlier);
        }
        let said = says(&config, &["settle"]);
        assert_eq!((server.count("one"), server.count("two")), (2, 2), "{said}");
        in_the_past(&site, 30);
        send("sent");
        let own = format!("Bcc: boss@x\r\n{}", letter("sent").replace('\n', "\r\n"));
        server.save("doug", "Sent", own.as_bytes(), "23-Nov-2026 07:00:00 +0000");
        server.heard();
        let said = says(&config, &["settle"]);
        let in_sent = server.count("sent") - 1;
        assert_eq!(in_sent, copies, "{trusted}: {said}");
        assert_eq!(said.contains("is the mail program's own"), copies == 1, "{trusted}: {said}");
        // What is below the receipts on record is not read.
        let heard = server.heard();
        let read = heard.iter().filter(|command| command.contains("BODY.PEEK[]"));
        let read: Vec<&str> = read.filter_map(|command| command.split(' ').nth(2)).collect();
        let expected: &[&str] = if copies == 1 { &["3"] } else { &[] };
        assert!(read.iter().all(|uid| expected.contains(uid)), "{trusted}: {heard:?}");
    }
}

/// A second copy, of a delivery that was late, and one whose answer was lost.
#[test]
fn verify_sees_copies_that_a_search_does_not_show() {
    for (trusted, sees) in [("auto", true), ("always", false)] {
        let (server, port) = LaggingServer::start();
        let (site, config) = site(port, "", trusted);
        let to = ["-d", "doug@mail.axial.net"];
        delivered(&config, &to, from_ann("earlier").as_bytes());
        in_the_past(&site, 1);
        delivered(&config, &to, from_ann("twice").as_bytes());
        let Stored { date, bytes } = {
            let mailboxes = server.mailboxes();
            let inbox = &mailboxes.mails[&("doug".to_owned(), "INBOX".to_owned())];
            Stored { date: inbox[1].date.clone(), bytes: inbox[1].bytes.clone() }
        };
        server.save("doug", "INBOX", &bytes, &date);
        let again =
            "UPDATE onedrop_copy SET epoch = 2, leased_until = NULL WHERE receipt LIKE '%/2'";
        assert_eq!(site.sqlite().execute(again, []).expect("a second lease"), 1);
        server.mailboxes().loses_an_answer = true;
        assert_eq!(deliver(&config, &to, from_ann("lost").as_bytes()).status.code(), Some(75));
        let expired = "UPDATE onedrop_copy SET leased_until = leased_until - 1e6";
        site.sqlite().execute(expired, []).expect("a lease that ran out");
        let said = says(&config, &["verify"]);
        assert_eq!(said.contains("uid=3 is one too many"), sees, "{trusted}: {said}");
        assert_eq!(said.contains("a copy is there as uid=4"), sees, "{trusted}: {said}");
        assert_eq!(said.contains("may hide another copy"), !sees, "{trusted}: {said}");
        assert_eq!(said.contains("no copy is there"), !sees, "{trusted}: {said}");
    }
}

#[test]
fn a_search_that_lags_makes_no_second_copy_unless_it_is_trusted() {
    for (trust, copies) in [("auto", 1), ("never", 1), ("always", 2)] {
        let (server, port) = LaggingServer::start();
        let (site, config) = site(port, "", trust);
        let deliver = |name: &str| {
            let output =
                deliver(&config, &["-d", "doug@mail.axial.net"], from_ann(name).as_bytes());
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        for earlier in ["one", "two", "three"] {
            let delivered = deliver(earlier);
            assert_eq!(delivered.0, Some(0), "{delivered:?}");
        }
        let ago = "UPDATE onedrop_copy SET placed_at = placed_at - 3600";
        site.sqlite().execute(ago, []).expect("an earlier time");
        server.mailboxes().loses_an_answer = true;
        let lost = deliver("lost");
        assert_eq!((lost.0, server.count("lost")), (Some(75), 1), "{lost:?}");
        let expired = "UPDATE onedrop_copy SET leased_until = leased_until - 1e6";
        site.sqlite().execute(expired, []).expect("a lease that ran out");
        server.heard();
        let again = deliver("lost");
        assert_eq!((again.0, server.count("lost")), (Some(0), copies), "{trust}: {again:?}");
        let heard = server.heard();
        // What is below the receipts on record is not read.
        let opened: Vec<&String> =
            heard.iter().filter(|command| command.contains("BODY.PEEK[]")).collect();
        let expected = usize::from(copies == 1);
        assert!(opened.len() == expected, "{trust}: {heard:?}");
        assert!(opened.iter().all(|command| command.starts_with("UID FETCH 4 ")), "{heard:?}");
        assert_eq!(heard.iter().any(|command| command == "ID NIL"), trust == "auto");
        assert_eq!(deliver("lost").0, Some(0));
        assert_eq!(server.count("lost"), copies, "it is on record");
    }
}

/// Dovecot waits two seconds for the lock, and then says OK.
#[test]
fn a_copy_in_a_mailbox_whose_lock_is_held_is_not_written_again() {
    const TO: [&str; 2] = ["-d", "scuba@mail.axial.net"];
    let site = Site::with(Dovecot::start_that_waits_for_locks(2));
    let config = site.config("etc", "store.lock_timeout_secs = 2\n");
    let (seen, stored) = (from_ann("seen"), from_ann("stored"));
    for mail in [&seen, &stored] {
        delivered(&config, &TO, mail.as_bytes());
    }
    let lock = site.dovecot.hide("scuba", "is stored");
    site.postgres.psql(
        "DELETE FROM onedrop_message WHERE subject = 'stored';
         UPDATE onedrop_ledger SET remembers_since = now()",
    );

    // An append does not get the lock either, and defers as well; but that may come free before it.
    let end = deliver(&config, &TO, stored.as_bytes());
    let said = String::from_utf8_lossy(&end.stdout);
    assert_eq!(end.status.code(), Some(75), "{said}");
    assert!(said.contains("each opening of the mailbox took 0.9 s or more"), "{said}");
    drop(lock);
    let said = delivered(&config, &TO, stored.as_bytes());
    assert!(!said.starts_with("stored "), "{said}");
    are_these("once", &site.dovecot.messages("scuba", "INBOX"), [seen, stored]);
}
