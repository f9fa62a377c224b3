//! A mail server whose SEARCH is answered from an index that lags: it shows nothing that was stored
//! since the server began. A copy that was stored and whose answer was lost must be found there
//! nonetheless.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::letters::from_ann;
use crate::support::set_mode;
use crate::support::site::{Site, deliver};

/// Of the only account that has one.
#[derive(Default)]
struct Inbox {
    mails: Vec<Stored>,
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
struct LaggingServer(Arc<Mutex<Inbox>>);

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

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().expect("the mails")
    }

    fn count(&self, name: &str) -> usize {
        let text = format!("Message-ID: <{name}@x>");
        let inbox = self.inbox();
        let lines = |mail: &Stored| String::from_utf8_lossy(&mail.bytes).contains(&text);
        inbox.mails.iter().filter(|mail| lines(mail)).count()
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut input = BufReader::new(stream.try_clone()?);
        let can = "IMAP4rev1 SASL-IR LITERAL+ UIDPLUS ID";
        write!(stream, "* OK [CAPABILITY {can}] ready\r\n")?;
        let mut user = String::new();
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            let (tag, command) = line.split_once(' ').unwrap_or((line, ""));
            let words: Vec<&str> = command.split(' ').collect();
            self.inbox().heard.push(command.to_owned());
            let mut answer = "OK done".to_owned();
            match words[..] {
                ["AUTHENTICATE", "PLAIN", token] => {
                    let token = STANDARD.decode(token).expect("base64");
                    user = String::from_utf8_lossy(&token).split('\0').next().unwrap_or("").into();
                    answer = format!("OK [CAPABILITY {can}] in");
                }
                ["ID", ..] => write!(stream, "* ID (\"name\" \"Lagging\")\r\n")?,
                ["EXAMINE" | "SELECT", _] => {
                    // Another's is empty, and numbered in another way.
                    let count = if user == "doug" { self.inbox().mails.len() } else { 0 };
                    let validity = if user == "doug" { 7 } else { 8 };
                    write!(stream, "* {count} EXISTS\r\n* OK [UIDVALIDITY {validity}] fine\r\n")?;
                    write!(stream, "* OK [UIDNEXT {}] fine\r\n", count + 1)?;
                }
                ["UID", "SEARCH", ..] => write!(stream, "* SEARCH\r\n")?,
                ["FETCH", range, ..] | ["UID", "FETCH", range, ..] => {
                    self.fetch(&mut stream, range, command)?;
                }
                ["APPEND", ..] => {
                    let (date, size) = command.rsplit_once(" {").expect("a literal");
                    let date = date.split('"').rev().nth(1).unwrap_or_default().to_owned();
                    let size = size.trim_end_matches("+}").parse().expect("LITERAL+");
                    let mut bytes = vec![0; size];
                    input.read_exact(&mut bytes)?;
                    input.read_exact(&mut [0; 2])?;
                    let mut inbox = self.inbox();
                    inbox.mails.push(Stored { date, bytes });
                    if std::mem::take(&mut inbox.loses_an_answer) {
                        return Ok(());
                    }
                    answer = format!("OK [APPENDUID 7 {}] done", inbox.mails.len());
                }
                ["LOGOUT"] => return Ok(()),
                _ => answer = "BAD what?".to_owned(),
            }
            write!(stream, "{tag} {answer}\r\n")?;
        }
    }

    /// UIDs are numbers from 1 on, without gaps.
    fn fetch(&self, stream: &mut TcpStream, range: &str, items: &str) -> std::io::Result<()> {
        let (first, last) = range.split_once(':').unwrap_or((range, range));
        let [first, last] = [first, last].map(|number| number.parse::<usize>().expect("a number"));
        for number in first..=last {
            let inbox = self.inbox();
            let Some(Stored { date, bytes }) = inbox.mails.get(number - 1) else { continue };
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

#[test]
fn a_search_that_lags_makes_no_second_copy_unless_it_is_trusted() {
    for (trust, copies) in [("auto", 1), ("never", 1), ("always", 2)] {
        let (server, port) = LaggingServer::start();
        let site = Site::embedded();
        site.remember_for_ever();
        let config = site.config(
            "etc",
            &format!(
                "[store]\nurl = \"imap://127.0.0.1:{port}\"\ntrust_search = \"{trust}\"\n\
                 password_file = \"$DIR/store.password\"\n[lock]\nwait_secs = 0\n"
            ),
        );
        let password = config.with_file_name("store.password");
        fs::write(&password, "secret").expect("a password");
        set_mode(&password, 0o600);
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
        server.inbox().loses_an_answer = true;
        let lost = deliver("lost");
        assert_eq!((lost.0, server.count("lost")), (Some(75), 1), "{lost:?}");
        let expired = "UPDATE onedrop_copy SET leased_until = leased_until - 1e6";
        site.sqlite().execute(expired, []).expect("a lease that ran out");
        server.inbox().heard.clear();
        let again = deliver("lost");
        assert_eq!((again.0, server.count("lost")), (Some(0), copies), "{trust}: {again:?}");
        let heard = server.inbox().heard.clone();
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
