//! `crates/net/src` without servers: lines, URLs, xtext, what this machine is, TLS' authorities,
//! sockets.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::socket::{getsockopt, sockopt};
use onedrop::net::input::{Input, InputLine};
use onedrop::net::postgres_url::PostgresUrl;
use onedrop::net::socket::{Socket, Timed};
use onedrop::net::{is_loopback, tls, xtext};
use onedrop_kit::TempRoot;
use tokio_postgres::config::SslMode;

fn lines(pieces: &[&[u8]], longest: usize) -> Vec<InputLine> {
    let (mut input, mut lines) = (Input::default(), Vec::new());
    for piece in pieces {
        let fill = input.fill(piece.len(), |into| {
            into.copy_from_slice(piece);
            Ok(piece.len())
        });
        assert_eq!(fill.expect("memory"), piece.len());
        lines.extend(std::iter::from_fn(|| input.line(longest)));
    }
    lines
}

#[test]
fn lines_are_the_same_in_any_pieces() {
    let whole = |text: &[u8]| InputLine::Whole(text.to_vec());
    let text = b"a\r\nbc\n\n\r\nd\re\r\r\n12345\n123456\r\n1234567\nf\ng";
    let expected = [
        whole(b"a"),
        whole(b"bc"),
        whole(b""),
        whole(b""),
        whole(b"d\re\r"),
        whole(b"12345"),
        InputLine::TooLong,
        InputLine::TooLong,
        whole(b"f"),
    ];
    for size in 1..=text.len() {
        let pieces: Vec<&[u8]> = text.chunks(size).collect();
        assert_eq!(lines(&pieces, 6), expected, "in pieces of {size}");
    }
}

#[test]
fn an_endless_line_fills_no_memory() {
    let mut input = Input::default();
    assert!(!input.has_begun());
    for _ in 0..10_000 {
        assert_eq!(input.fill(100, |into| Ok(into.len())).expect("memory"), 100);
        assert_eq!(input.line(1000), None);
        assert!(input.rest().len() < 1000, "{}", input.rest().len());
    }
    assert!(input.is_too_long() && input.has_begun());
}

#[test]
fn pieces_and_lines_share_what_was_read() {
    let mut input = Input::default();
    let text = b"5\r\nhello, next\r\n";
    input
        .fill(64, |into| {
            into[..text.len()].copy_from_slice(text);
            Ok(text.len())
        })
        .expect("memory");
    assert_eq!(input.line(100), Some(InputLine::Whole(b"5".to_vec())));
    assert_eq!(&input.rest()[..5], b"hello");
    input.take(7);
    assert_eq!(input.line(100), Some(InputLine::Whole(b"next".to_vec())));
    assert!(!input.has_begun());
}

fn read(url: &str) -> PostgresUrl {
    PostgresUrl::parse(url).unwrap_or_else(|why| panic!("{url}: {why}"))
}

#[test]
fn no_login_is_shown() {
    for (url, shown) in [
        ("postgres://onedrop@db.example.net/onedrop", "postgres://db.example.net/onedrop"),
        ("postgresql://db/onedrop?user=me&sslmode=require", "postgres://db/onedrop"),
        ("postgres://u@h1:5432,h2/db?target_session_attrs=read-write", "postgres://h1:5432,h2/db"),
        ("postgres://u:p?x=y@h/db", "postgres://h/db"),
    ] {
        assert_eq!(read(url).to_string(), shown);
    }
}

#[test]
fn a_password_is_noticed_wherever_it_stands() {
    for url in [
        "postgres://u:secret@h/db",
        "postgres://u:@h/db",
        "postgres://u:a?b@h/db",
        "postgres://u@h/db?password=secret",
        "postgres://u@h/db?application_name=o&p%61ssword=secret",
    ] {
        assert!(read(url).has_password(), "{url}");
    }
    assert!(!read("postgres://u@h/db?application_name=password").has_password());
}

#[test]
fn what_it_sets_is_told_from_what_it_leaves_open() {
    let url = read("postgres://u@h/db?sslmode=verify-full&keepalives_idle=5");
    assert!(url.sets("sslmode") && url.sets("keepalives_idle") && !url.sets("keepalives"));
    assert_eq!(url.config().get_ssl_mode(), SslMode::Require);
    assert!(!read("postgres://u:a?sslmode=x@h/db").sets("sslmode"));
}

#[test]
fn a_broken_url_is_refused_without_showing_it() {
    for url in [
        "postgres://u@x:sec?ret=x@db/x",
        "mysql://u:secret@db/x",
        "postgres:u:secret@db/x",
        "postgres://u:secret@db:port/x",
        "postgres://u:secret@db/x?sslmode=verify-ca",
        "postgres://u:secret@db/x?secret=1",
        "postgres://u@db/x?sslrootcert=secret",
    ] {
        let why = PostgresUrl::parse(url).err().unwrap_or_default();
        assert!(!why.is_empty() && !why.contains("sec"), "{url}: {why}");
    }
}

#[test]
fn an_option_that_is_not_taken_is_named_with_what_serves_instead() {
    for (options, said) in [
        ("sslmode=verify-full&sslrootcert=/ca", "known: sslrootcert (name the authority's"),
        ("ssl%72ootcert=/ca", "known: sslrootcert (name the authority's certificate in ca_file"),
        ("sslcert=/c", "known: sslcert (there are no client certificates"),
        ("sslpassword=secret", "known: sslpassword (there are no client certificates"),
        ("passfile=/p", "known: passfile (the password is in password_file)"),
        ("ssl=true", "known: ssl (write sslmode=verify-full, or sslmode=disable)"),
        ("ssl-mode=require", "known: ssl-mode (write sslmode)"),
        ("ApplicationName=x", "known: ApplicationName (write application_name)"),
        ("socket=/run/s", "known: socket (write host=/FOLDER for Postgres"),
        ("gssencmode=disable", "known: gssencmode (the login is"),
        ("client_encoding=UTF8", "known: client_encoding (texts are UTF-8 always)"),
        ("currentSchema=mail", "known: currentSchema (for Postgres write options="),
        ("keepalives_count=3", "known: keepalives_count (write keepalives_retries)"),
        ("connection_limit=5", "known: connection_limit (pool.ledger says"),
        // It may be a piece of a password.
        ("hunter2=1", "it has an option that is not known (it takes host, hostaddr,"),
        ("sslmode", "an option lacks its \"=\""),
        ("sslmode=verify-ca", "sslmode must be verify-full or disable"),
        ("sslmode=on", "sslmode must be verify-full or disable"),
        ("connect_timeout=soon", "invalid value for option `connect_timeout`"),
        ("application_name=%ff", "percent-encode"),
    ] {
        let why = PostgresUrl::parse(&format!("postgres://u@db/x?{options}")).err();
        let why = why.unwrap_or_default();
        assert!(why.contains(said) && !why.contains("hunter2"), "{options}: {why}");
    }
    for options in ["application_name=x&keepalives_retries=3", "options=-csearch_path%3Dmail", ""] {
        read(&format!("postgres://u@db/x?{options}"));
    }
}

/// What the server may decide about TLS, whoever is between the hosts decides.
#[test]
fn tls_that_the_server_may_refuse_stays_on_this_host() {
    for here in
        ["u@localhost", "u@127.0.0.1", "u@[::1]", "u@%2Frun%2Fpg", "u@db?hostaddr=127.0.0.1"]
    {
        for mode in ["prefer", "allow"] {
            let more = if here.contains('?') { '&' } else { '?' };
            let url = read(&format!("postgres://{here}{more}sslmode={mode}"));
            assert_eq!(url.config().get_ssl_mode(), SslMode::Prefer, "{here}");
        }
    }
    for there in [
        "u@db.example",
        "u@localhost,db.example",
        "u@10.0.0.1",
        "u@localhost?hostaddr=10.0.0.1",
        "?host=db.example",
    ] {
        let more = if there.contains('?') { '&' } else { '?' };
        for mode in ["prefer", "allow", "pre%66er"] {
            let url = format!("postgres://{there}{more}sslmode={mode}");
            let why = PostgresUrl::parse(&url).err().unwrap_or_default();
            assert!(why.contains("sslmode"), "{url}: {why}");
        }
        for mode in ["verify-full", "require", "disable"] {
            read(&format!("postgres://{there}{more}sslmode={mode}"));
        }
    }
}

#[test]
fn what_is_no_printable_ascii_is_hexadecimal() {
    for (plain, encoded) in [
        ("", ""),
        ("doug!~", "doug!~"),
        ("a+b=c", "a+2Bb+3Dc"),
        ("do ug\r\n\0\x7f", "do+20ug+0D+0A+00+7F"),
        ("léa", "l+C3+A9a"),
    ] {
        assert_eq!(xtext::encode(plain), encoded);
        assert_eq!(xtext::decode(encoded).as_deref(), Some(plain));
    }
    assert_eq!(xtext::decode("a=b+2b c").as_deref(), Some("a=b+ c"));
}

#[test]
fn what_is_no_xtext_is_refused() {
    for wrong in ["+", "1+", "1+zz", "1+2", "+2é", "+é", "+ff", "a+C3", "++41", "+-1", "++2B"] {
        assert_eq!(xtext::decode(wrong), None, "{wrong}");
    }
}

#[test]
fn what_stays_on_this_machine_and_what_may_not() {
    for here in [
        "127.0.0.1",
        "127.255.255.254",
        "::1",
        "[::1]",
        "0:0:0:0:0:0:0:1",
        "::ffff:127.0.0.1",
        "[::ffff:127.9.9.9]",
        "::ffff:7f00:1",
        "localhost",
        "LocalHost",
        "localhost.",
        "/var/run/postgresql",
    ] {
        assert!(is_loopback(here), "{here}");
    }
    for elsewhere in [
        "",
        ".",
        "128.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "::",
        "::2",
        "fe80::1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "localhost..",
        "db.localhost",
        "localhost.example",
        "127.0.0.1.example",
        "127.1",
        "var/run/postgresql",
    ] {
        assert!(!is_loopback(elsewhere), "{elsewhere}");
    }
}

/// Of an authority, valid for a hundred years.
const CERTIFICATE: &str = include_str!("../../fixtures/tls/authority.pem");
/// The same form, and no certificate in it.
const RUBBISH: &str = "-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n";

#[test]
fn without_an_authority_there_is_no_tls() {
    let folder = TempRoot::new();
    let file = folder.join("ca.pem");
    let why = |text: Option<&str>| {
        if let Some(text) = text {
            fs::write(&file, text).expect("a file");
        }
        tls::client_config(Some(&file)).err()
    };
    let at = |what: &str| Some(format!("CA file {}: {what}", file.display()));
    assert!(why(None).is_some_and(|why| why.contains("ca.pem")));
    assert_eq!(why(Some("")), at("no certificate that can be used"));
    assert_eq!(why(Some(RUBBISH)), at("no certificate that can be used"));
    let half = &CERTIFICATE[..100];
    assert!(why(Some(half)).is_some_and(|why| why.starts_with("CA file ")));
    assert_eq!(why(Some(CERTIFICATE)), None);
    assert_eq!(why(Some(&[RUBBISH, CERTIFICATE].concat())), None);
}

const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(30);

fn pair() -> (Socket, UnixStream) {
    let (ours, peer) = UnixStream::pair().expect("a pair");
    (ours.into(), peer)
}

fn kind<T>(result: io::Result<T>) -> Option<io::ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn a_host_that_is_gone_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let socket = Socket::connect_tcp("127.0.0.1", port, Instant::now() + LONG).unwrap();
    assert_eq!(getsockopt(&socket, sockopt::TcpUserTimeout), Ok(10_000));
    assert_eq!(getsockopt(&socket, sockopt::KeepAlive), Ok(true));
    assert_eq!(getsockopt(&socket, sockopt::TcpKeepIdle), Ok(10));
    assert_eq!(getsockopt(&socket, sockopt::TcpKeepInterval), Ok(10));
}

#[test]
fn neither_silence_nor_a_drip_outlasts_the_deadline() {
    let (ours, mut peer) = pair();
    let mut ours = Timed::new(ours, Instant::now() + SOON);
    let began = Instant::now();
    assert_eq!(kind(ours.read(&mut [0; 8])), Some(io::ErrorKind::TimedOut));
    assert!(began.elapsed() >= SOON);
    ours.until = Instant::now() + 4 * SOON;
    let dripping = thread::spawn(move || {
        while peer.write_all(b"x").is_ok() {
            thread::sleep(SOON / 10);
        }
    });
    let ended = ours.read_to_end(&mut Vec::new());
    assert_eq!(kind(ended), Some(io::ErrorKind::TimedOut));
    drop(ours);
    dripping.join().expect("the drip ends with its reader");
}

#[test]
fn nothing_is_written_once_the_deadline_has_passed() {
    let (ours, mut peer) = pair();
    let past = Instant::now();
    assert_eq!(kind(ours.write_all(b"late", past)), Some(io::ErrorKind::TimedOut));
    assert_eq!(kind(Timed::new(ours, past).write(b"late")), Some(io::ErrorKind::TimedOut));
    let mut came = Vec::new();
    peer.read_to_end(&mut came).expect("the end");
    assert_eq!(came, b"");
}

#[test]
fn a_peer_that_does_not_read_is_not_waited_for_without_end() {
    let (ours, peer) = pair();
    let flood = vec![b'x'; 16 << 20];
    let written = ours.write_all(&flood, Instant::now() + SOON);
    assert_eq!(kind(written), Some(io::ErrorKind::TimedOut));
    assert_eq!(kind(ours.write_now(b"x")), Some(io::ErrorKind::WouldBlock));
    drop(peer);
    assert_eq!(kind(ours.write_now(b"x")), Some(io::ErrorKind::BrokenPipe));
}

#[test]
fn what_is_there_is_read_however_late_and_nothing_is_waited_for() {
    let (ours, mut peer) = pair();
    let past = Instant::now();
    assert_eq!(kind(ours.wait(None, past)), Some(io::ErrorKind::TimedOut));
    assert_eq!(kind(ours.read_now(&mut [0; 8])), Some(io::ErrorKind::WouldBlock));
    peer.write_all(b"here").expect("room");
    ours.wait(None, past).expect("it is there");
    let mut into = [0; 8];
    assert_eq!(ours.read(&mut into, past).expect("it is there"), 4);
    assert_eq!(&into[..4], b"here");
    drop(peer);
    assert_eq!(ours.read(&mut into, past).expect("the end"), 0);
}

#[test]
fn a_wait_ends_with_either_of_two() {
    let (ours, mut peer) = pair();
    let (other, stop) = UnixStream::pair().expect("a pair");
    let soon = || Instant::now() + SOON;
    assert_eq!(kind(ours.wait(Some(other.as_fd()), soon())), Some(io::ErrorKind::TimedOut));
    drop(stop);
    assert!(!ours.wait(Some(other.as_fd()), soon()).expect("the other ended"));
    peer.write_all(b"x").expect("room");
    assert!(ours.wait(Some(other.as_fd()), soon()).expect("there is something"));
}

#[test]
fn the_user_at_the_other_end_is_known_by_a_unix_socket_alone() {
    let folder = TempRoot::new();
    let path = folder.join("socket");
    let _listener = UnixListener::bind(&path).expect("a socket");
    let ours = Socket::connect_unix(&path, LONG).expect("it listens");
    assert_eq!(ours.peer_user(), Some(nix::unistd::geteuid()));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let ours = Socket::connect_tcp("[127.0.0.1]", port, Instant::now() + LONG);
    assert_eq!(ours.expect("it listens").peer_user(), None);
}

#[test]
fn a_server_that_accepts_nobody_is_not_waited_for_without_end() {
    let folder = TempRoot::new();
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(1).expect("one"))
        .expect("a queue");
    let mut waiting = Vec::new();
    let failure = loop {
        match Socket::connect_unix(&path, SOON) {
            Ok(socket) => waiting.push(socket),
            Err(error) => break error,
        }
        assert!(waiting.len() < 10, "the queue has room for one or two");
    };
    assert_eq!(failure.kind(), io::ErrorKind::WouldBlock);
}
