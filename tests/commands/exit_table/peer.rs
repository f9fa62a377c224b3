//! Peers that misbehave on purpose, on loopback: each answers every connection in its way until the
//! test ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// How a peer behaves.
#[derive(Clone, Copy)]
pub enum Peer {
    /// Accepts and says nothing.
    Silent,
    /// Accepts and closes at once.
    Closes,
    /// An IMAP server that refuses the login.
    WrongPassword,
    /// An IMAP server that takes the login and answers an APPEND with this after its literal (no
    /// answer when empty).
    Append(&'static str),
    /// An IMAP server that lets no login act for the account whose SASL response begins like this.
    NoAccount(&'static str),
    /// An IMAP server where this mailbox is over its quota.
    FullFor(&'static str),
    /// An IMAP server that closes in the middle of the literal.
    ClosesInLiteral,
    /// An IMAP server that sends one endless line as its greeting.
    Endless,
}

/// Starts the peer; it lives as long as the test process.
pub fn start(peer: Peer) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("port");
    let port = listener.local_addr().expect("address").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                // A delivery that goes away in mid-sentence is part of the game.
                let _ = serve(peer, &stream);
                if matches!(peer, Peer::Silent | Peer::Append("")) {
                    thread::park();
                }
            });
        }
    });
    port
}

fn serve(peer: Peer, mut stream: &TcpStream) -> std::io::Result<()> {
    match peer {
        Peer::Silent | Peer::Closes => return Ok(()),
        Peer::Endless => loop {
            stream.write_all(&[b'x'; 65536])?;
        },
        Peer::WrongPassword
        | Peer::NoAccount(_)
        | Peer::FullFor(_)
        | Peer::Append(_)
        | Peer::ClosesInLiteral => {}
    }
    stream
        .write_all(b"* OK [CAPABILITY IMAP4rev1 SASL-IR AUTH=PLAIN LITERAL+ UIDPLUS] ready\r\n")?;
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let tag = line.split(' ').next().unwrap_or("*").to_owned();
        let upper = line.to_uppercase();
        if upper.contains(" AUTHENTICATE ") {
            if line.split_whitespace().count() < 4 {
                stream.write_all(b"+ \r\n")?;
                line.clear();
                input.read_line(&mut line)?;
            }
            let reply = match peer {
                // Nor is the user an account of its own: base64 of mda, NUL, mda.
                _ if line.contains(" bWRhAG1kY") => {
                    "NO [AUTHENTICATIONFAILED] Authentication failed."
                }
                Peer::NoAccount(start) if !line.contains(&format!(" {start}")) => "OK Logged in",
                Peer::WrongPassword | Peer::NoAccount(_) => {
                    "NO [AUTHENTICATIONFAILED] Authentication failed."
                }
                _ => "OK [CAPABILITY IMAP4rev1 LITERAL+ UIDPLUS] Logged in",
            };
            write!(stream, "{tag} {reply}\r\n")?;
        } else if upper.contains(" APPEND ") {
            let size: usize = line
                .rsplit('{')
                .next()
                .unwrap_or("")
                .trim_end_matches(['}', '+', '\r', '\n'])
                .parse()
                .unwrap_or(0);
            if peer_closes(peer) {
                return Ok(());
            }
            let mut literal = vec![0; size + 2];
            input.read_exact(&mut literal)?;
            match peer {
                Peer::Append("") => return Ok(()),
                Peer::Append(reply) => write!(stream, "{tag} {reply}\r\n")?,
                Peer::FullFor(mailbox) if line.contains(mailbox) => {
                    write!(stream, "{tag} NO [OVERQUOTA] full\r\n")?;
                }
                Peer::NoAccount(_) | Peer::FullFor(_) => {
                    write!(stream, "{tag} OK [APPENDUID 1 7] done\r\n")?
                }
                _ => {}
            }
        } else if upper.contains(" CAPABILITY") {
            write!(stream, "* CAPABILITY IMAP4rev1 LITERAL+ UIDPLUS\r\n{tag} OK done\r\n")?;
        } else {
            write!(stream, "{tag} OK done\r\n")?;
        }
        line.clear();
    }
    Ok(())
}

fn peer_closes(peer: Peer) -> bool {
    matches!(peer, Peer::ClosesInLiteral)
}
