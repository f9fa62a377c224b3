//! The LMTP protocol's form (`crates/net/src/lmtp`): what is read from the wire, and what is
//! written.

use onedrop::envelope::Envelope;
use onedrop::net::lmtp::command::{self, LmtpCommand, is_bdat};
use onedrop::net::lmtp::data::{self, DataReader};
use onedrop::net::lmtp::xforward::{Forwarded, SmtpClient};
use onedrop::net::lmtp::{LONGEST_LINE, path, reply, write};
use onedrop::outcome::{Outcome, Status};

/// What `read` makes of MAIL or RCPT: its address, or the digits of the refusal.
fn address_in(line: &str) -> Result<String, &'static str> {
    match command::read(line) {
        Ok(LmtpCommand::Mail { sender: address, .. } | LmtpCommand::Rcpt(address)) => Ok(address),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(&error.reply.line()[..3]),
    }
}

#[test]
fn addresses_are_read_as_pipe_would_hand_them_over() {
    let cases = [
        ("MAIL FROM:<a@b.org>", Ok("a@b.org")),
        ("mail from: <a@b.org> size=5", Ok("a@b.org")),
        ("MAIL FROM:<>", Ok("")),
        ("MAIL FROM:<> BODY=8BITMIME", Ok("")),
        ("MAIL FROM:<postmaster>", Ok("postmaster")),
        ("MAIL FROM:<root@[192.0.2.1]> SIZE=7", Ok("root@[192.0.2.1]")),
        ("MAIL FROM:<\"a SIZE=x> b\"@c.org> SIZE=7", Ok("a SIZE=x> b@c.org")),
        ("MAIL FROM:<\"a\u{1b}\tb\"@c.org>", Ok("a\u{1b}\tb@c.org")),
        ("MAIL FROM:<a\0@c.org>", Err("451")),
        ("MAIL FROM:<a", Err("451")),
        ("MAIL FROM:a@b.org", Err("451")),
        ("MAIL FROM", Err("451")),
        ("MAIL FROM:", Err("451")),
        ("MAIL", Err("451")),
        ("MAIL TO:<a@b.org>", Err("451")),
        ("MAIL FROM:<é@b.org>", Ok("é@b.org")),
        ("MAIL FROM:<é@b.org> SMTPUTF8", Ok("é@b.org")),
        ("MAIL FROM:<a@b.org> BODY=BINARYMIME", Err("451")),
        ("MAIL FROM:<a@b.org> RET=FULL", Err("451")),
        ("MAIL FROM:<a@b.org> FOO=1", Err("451")),
        ("MAIL FROM:<a@b.org> SIZE=x", Err("451")),
        ("MAIL FROM:<a@b.org> SIZE=1\t\u{7}", Err("451")),
        ("MAIL FROM:<a@b.org> BODY=9BIT", Err("451")),
        ("MAIL FROM:<a@b.org> AUTH=a+0Ab", Ok("a@b.org")),
        ("RCPT TO:<scuba+x@mail.axial.net>", Ok("scuba+x@mail.axial.net")),
        ("RCPT TO:<Postmaster>", Ok("Postmaster")),
        ("RCPT TO:<scuba>", Ok("scuba")),
        ("RCPT TO:<>", Err("451")),
        ("RCPT TO:<\"\">", Err("451")),
        ("RCPT TO:<a@b.org> NOTIFY=NEVER", Err("451")),
        ("RCPT TO:<a@b.org> ORCPT=rfc822;a@b.org", Err("451")),
        ("RCPT TO", Err("451")),
        ("RCPT FROM:<a@b.org>", Err("451")),
    ];
    for (line, expected) in cases {
        assert_eq!(address_in(line), expected.map(str::to_owned), "{line}");
    }
}

#[test]
fn the_parameters_of_mail_are_read() {
    for (parameters, name, utf8) in [
        ("SIZE=1000 BODY=8BITMIME SMTPUTF8 AUTH=l+C3+A9a+2Bx", "léa+x", true),
        ("AUTH=<>", "", false),
        // A name with control characters is no login's.
        ("AUTH=a+0Ab", "", false),
    ] {
        let line = format!("MAIL FROM:<a@b.org> {parameters}");
        let sender = "a@b.org".to_owned();
        let expected = LmtpCommand::Mail { sender, auth: name.to_owned(), smtputf8: utf8 };
        assert_eq!(command::read(&line), Ok(expected), "{line}");
    }
}

#[test]
fn a_peer_may_call_itself_what_it_likes() {
    for name in ["mx", "mail_host", "[192.0.2.1]", "two words", &"x".repeat(2000)] {
        assert_eq!(command::read(&format!("LHLO {name}")), Ok(LmtpCommand::Lhlo(name)));
    }
    assert!(command::read("LHLO").is_err() && command::read("LHLO ").is_err());
}

#[test]
fn a_chunk_has_an_exact_size() {
    for (line, bytes, last) in [
        ("bdat 5 last", 5, true),
        ("BDAT 0", 0, false),
        ("BDAT 18446744073709551615", u64::MAX, false),
    ] {
        assert_eq!(command::read(line), Ok(LmtpCommand::Bdat { bytes, last }), "{line}");
    }
    let wrong = ["", " x", " +5", " -1", " 5 FIRST", " 5 LAST x", " 184467440737095516155"];
    for wrong in wrong.map(|arguments| format!("BDAT{arguments}")) {
        assert!(command::read(&wrong).is_err() && is_bdat(wrong.as_bytes()), "{wrong}");
    }
}

/// Input after DATA, the message, how many bytes of the input were the data's.
const DATA: [(&[u8], &[u8], Option<usize>); 22] = [
    (b".\r\n", b"", Some(3)),
    (b"\r\n.\r\n", b"\n", Some(5)),
    (b"a\r\n.\r\nQUIT\r\n", b"a\n", Some(6)),
    (b"..\r\n.\r\n", b".\n", Some(7)),
    (b"a\r\n..b\r\n.\r\n", b"a\n.b\n", Some(11)),
    (b"a\r\n.b\r\n.\r\n", b"a\nb\n", Some(10)),
    (b"a\r\n...\r\n.\r\n", b"a\n..\n", Some(11)),
    (b"a\n.\nb\r\n.\r\n", b"a\n.\nb\n", Some(10)),
    (b"a\n.\r\nb\r\n.\r\n", b"a\n.\nb\n", Some(11)),
    (b"a\r.\rb\r\n.\r\n", b"a\r.\rb\n", Some(10)),
    (b"a\r\n.\nb\r\n.\r\n", b"a\n\nb\n", Some(11)),
    (b"a\r\n.\rb\r\n.\r\n", b"a\n\rb\n", Some(11)),
    (b"a\r\n.\r\r\n.\r\n", b"a\n\r\n", Some(10)),
    (b"a\r\r\n.\r\n", b"a\r\n", Some(7)),
    (b"a\n\r\n.\r\n", b"a\n\n", Some(7)),
    (b"a\n\r.\r\nb\r\n.\r\n", b"a\n\r.\nb\n", Some(12)),
    (b"\0\x80\xff\r\n.\r\n", b"\0\x80\xff\n", Some(8)),
    (b"a\r\n.\r", b"a\n", None),
    (b"a\r\n.", b"a\n", None),
    (b"a\r", b"a", None),
    (b"a.\r\n", b"a.\n", None),
    (b"", b"", None),
];

#[test]
fn only_crlf_dot_crlf_ends_the_data_however_it_is_cut() {
    for (input, message, end) in DATA {
        for cut in 0..=input.len() {
            let (mut reader, mut read) = (DataReader::with_dots(), Vec::new());
            let first = reader.feed(&input[..cut], &mut read);
            let second = match first {
                Some(_) => first,
                None => reader.feed(&input[cut..], &mut read).map(|taken| cut + taken),
            };
            let case = format!("{:?} cut at {cut}", input.escape_ascii().to_string());
            assert_eq!(second, end, "{case}");
            assert_eq!(
                read.escape_ascii().to_string(),
                message.escape_ascii().to_string(),
                "{case}"
            );
        }
    }
}

#[test]
fn after_the_end_nothing_more_is_taken() {
    let (mut reader, mut read) = (DataReader::with_dots(), Vec::new());
    assert_eq!(reader.feed(b".\r\n", &mut read), Some(3));
    assert_eq!(reader.feed(b"QUIT\r\n", &mut read), Some(0));
    assert!(read.is_empty());
}

#[test]
fn chunks_are_one_message_however_they_are_cut() {
    let cases: [(&[u8], &[u8]); 8] = [
        (b"a\r\nb\r\n", b"a\nb\n"),
        (b"\r\n.\r\n..", b"\n.\n.."),
        (b"a\rb\nc\n\rd", b"a\rb\nc\n\rd"),
        (b"\r\r\n", b"\r\n"),
        (b"a\r", b"a\r"),
        (b"\r", b"\r"),
        (b"\n\r\n", b"\n\n"),
        (b"", b""),
    ];
    for (input, message) in cases {
        for cut in 0..=input.len() {
            let (mut reader, mut read) = (DataReader::of_chunks(), Vec::new());
            reader.feed(&input[..cut], &mut read);
            reader.feed(&input[cut..], &mut read);
            reader.end(&mut read);
            assert_eq!(read, message, "{:?} cut at {cut}", input.escape_ascii().to_string());
        }
    }
}

#[test]
fn the_server_reads_what_was_written() {
    let cases: [(&[u8], &[u8]); 8] = [
        (b"A: b\n\n.\n..\n.x\ny\n", b"A: b\n\n.\n..\n.x\ny\n"),
        (b"a\r\n.\r\nb\r\n", b"a\n.\nb\n"),
        (b"a\rb\r\r\n\0\x80\xff\n", b"a\rb\r\n\0\x80\xff\n"),
        (b"a\r.\r\n", b"a\r.\n"),
        (b"no end", b"no end\n"),
        (b"cr\r", b"cr\r\n"),
        (b".", b".\n"),
        (b"", b""),
    ];
    for (message, expected) in cases {
        let (mut wire, mut read) = (Vec::new(), Vec::new());
        data::write(&[message], &mut wire).expect("memory");
        assert_eq!(
            DataReader::with_dots().feed(&wire, &mut read),
            Some(wire.len()),
            "{}",
            message.escape_ascii()
        );
        assert_eq!(read.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }
}

#[test]
fn long_messages_are_written_in_blocks() {
    let message = b"a line of the message\n".repeat(10_000);
    let (mut wire, mut read) = (Vec::new(), Vec::new());
    data::write(&[&message[..22], &message[22..]], &mut wire).expect("memory");
    assert_eq!(DataReader::with_dots().feed(&wire, &mut read), Some(wire.len()));
    assert!(read == message);
}

#[test]
fn a_path_is_read_as_the_address_that_was_meant() {
    let cases = [
        ("<a@b.org>", Some("a@b.org")),
        (" <a@b.org>", Some("a@b.org")),
        ("<>", Some("")),
        ("<\"\">", Some("")),
        ("<postmaster>", Some("postmaster")),
        ("<\"a b\"@c.org>", Some("a b@c.org")),
        ("<\"a..b\"@c.org>", Some("a..b@c.org")),
        ("<\"a\\\"b\\\\\"@c.org>", Some("a\"b\\@c.org")),
        ("<\"a@b\"@c.org>", Some("a@b@c.org")),
        ("<\"a>b<\"@c.org>", Some("a>b<@c.org")),
        ("<\"a> b\"@c.org>", Some("a> b@c.org")),
        ("<\"a\"@c.org>", Some("a@c.org")),
        ("<\"a\".b@c.org>", Some("a.b@c.org")),
        ("<\"a\u{1}\r\"@c.org>", Some("a\u{1}\r@c.org")),
        ("<\"@relay:a\"@b.org>", Some("@relay:a@b.org")),
        // As lmtp(8) says them that quotes nothing.
        ("<a..b@c.org>", Some("a..b@c.org")),
        ("<a b@c.org>", Some("a b@c.org")),
        ("<a>b@c.org>", Some("a>b@c.org")),
        ("<a@b@c.org>", Some("a@b@c.org")),
        ("<a\\b@c.org>", Some("a\\b@c.org")),
        // Not complete, but an address all the same.
        ("<a>", Some("a")),
        ("<@b.org>", Some("@b.org")),
        ("<a@>", Some("a@")),
        ("<root@[192.0.2.1]>", Some("root@[192.0.2.1]")),
        ("<root@[IPv6:2001:db8::1]>", Some("root@[IPv6:2001:db8::1]")),
        ("<root@[a b]>", Some("root@[a b]")),
        ("<@x,@y:a@b.org>", Some("a@b.org")),
        ("<@x,@y:>", Some("")),
        ("<a:b@c.org>", Some("a:b@c.org")),
        // The domain would be a part of the local part.
        ("<\"a@b.org\">", None),
        ("<\"a\"@b.org", None),
        ("<\"a@b.org>", None),
        ("<\"a\\", None),
        ("<a@b.org>SIZE=1", None),
        ("<a\0@b.org>", None),
        ("<\"a\\\0\"@b.org>", None),
        ("a@b.org", None),
        ("", None),
    ];
    for (text, expected) in cases {
        let read = path::read(text);
        assert_eq!(read.as_ref().map(|(address, _)| address.as_str()), expected, "{text}");
        assert!(read.is_none_or(|(_, rest)| rest.is_empty()), "{text}");
    }
    assert_eq!(path::read("<\"> \"@b.org> SIZE=1"), Some(("> @b.org".to_owned(), " SIZE=1")));
    let long = format!("{}@b.org", "x".repeat(3000));
    assert_eq!(path::read(&format!("<{long}>")), Some((long, "")));
}

#[test]
fn an_address_is_said_so_that_it_stays_one_or_not_at_all() {
    let cases = [
        ("scuba+x@mail.axial.net", Some("<scuba+x@mail.axial.net>")),
        ("o'brien@b.org", Some("<o'brien@b.org>")),
        ("a..b@c.org", Some("<\"a..b\"@c.org>")),
        ("a\"b\\@c.org", Some("<\"a\\\"b\\\\\"@c.org>")),
        ("@relay:a@b.org", Some("<\"@relay:a\"@b.org>")),
        ("root@[IPv6:2001:db8::1]", Some("<root@[IPv6:2001:db8::1]>")),
        ("Postmaster", Some("<Postmaster>")),
        ("doug", None),
        ("@b.org", None),
        ("a@", None),
        ("a@b.org> SIZE=1", None),
        ("<a@b.org>", None),
    ];
    for (address, expected) in cases {
        assert_eq!(path::written(address).as_deref(), expected, "{address}");
    }
}

#[test]
fn an_envelope_becomes_commands() {
    let envelope = Envelope {
        sender: "lé+sa@gmail.com".into(),
        queue_id: "4Q=".into(),
        sasl_username: "do ug+x@b".into(),
        ..Envelope::default()
    };
    let said = write::commands(&envelope, &["doug@b.org", "a b@c.org"], &[b"X: y\n", b"\n\xe9\n"])
        .expect("commands");
    let expected = "XFORWARD IDENT=4Q+3D\r\nMAIL FROM:<lé+sa@gmail.com> SIZE=8 BODY=8BITMIME \
                    SMTPUTF8 AUTH=do+20ug+2Bx@b\r\n\
                    RCPT TO:<doug@b.org>\r\nRCPT TO:<\"a b\"@c.org>\r\nDATA\r\n";
    assert_eq!(String::from_utf8_lossy(&said), expected);
    let bounce =
        write::commands(&Envelope::default(), &["doug@b.org"], &[b"\n"]).expect("commands");
    assert_eq!(
        String::from_utf8_lossy(&bounce),
        "MAIL FROM:<> SIZE=1\r\nRCPT TO:<doug@b.org>\r\nDATA\r\n"
    );
}

#[test]
fn what_does_not_fit_on_a_line_is_not_said() {
    let newline = Envelope { sender: "a\r\nRSET@b.org".into(), ..Envelope::default() };
    assert!(write::commands(&newline, &["doug@b.org"], &[]).is_none());
    let long = format!("{}@b.org", "x".repeat(LONGEST_LINE));
    assert!(write::commands(&Envelope::default(), &[&long], &[]).is_none());
}

#[test]
fn each_outcome_has_its_digits() {
    let cases = [
        (Outcome::delivered("stored"), "250 2.0.0 stored\r\n"),
        (Outcome::TempFail(Status::TEMPORARY, "later".into()), "451 4.3.0 later\r\n"),
        (Outcome::TempFail(Status::MAILBOX_FULL, "full".into()), "452 4.2.2 full\r\n"),
        (Outcome::PermFail(Status::UNKNOWN_MAILBOX, "nobody".into()), "550 5.1.1 nobody\r\n"),
        (Outcome::PermFail(Status::TOO_BIG, "too big".into()), "552 5.3.4 too big\r\n"),
    ];
    for (outcome, expected) in cases {
        assert_eq!(String::from_utf8_lossy(&reply(&outcome)), expected);
    }
}

#[test]
fn a_text_can_neither_end_the_line_nor_outgrow_it() {
    let text = Outcome::delivered("a\r\n250 2.0.0 b\0\x1b\u{9b}é\u{2028}");
    assert_eq!(reply(&text), b"250 2.0.0 a  250 2.0.0 b   ? \r\n");
    let long = reply(&Outcome::delivered("é".repeat(2000)));
    assert_eq!(long.len(), reply::LONGEST);
    assert!(long.ends_with(b"?\r\n"));
}

#[test]
fn a_wrong_word_changes_nothing() {
    let mut forwarded = Forwarded::default();
    forwarded.take(&["ADDR=192.0.2.1", "IDENT=A1"]).unwrap();
    for wrong in ["FOO=1", "NAME", "NAME=", "PORT=x", "SOURCE=moon"] {
        assert!(forwarded.take(&["IDENT=B2", wrong]).is_err(), "{wrong}");
    }
    let long = format!("PROTO={}", "p".repeat(65));
    assert!(forwarded.take(&["IDENT=B2", &long]).is_err());
    let long = format!("NAME={}", "n".repeat(256));
    assert!(forwarded.take(&["IDENT=B2", &long]).is_err());
    assert!(forwarded.take(&[]).is_err());
    assert_eq!(forwarded.queue_id, "A1");
}

#[test]
fn values_are_decoded_and_made_harmless() {
    let mut forwarded = Forwarded::default();
    forwarded.take(&["name=a+2Bb+0D+0A+28x+29", "ADDR=IPv6:2001:db8::1", "HELO=1+zz"]).unwrap();
    let client = forwarded.client();
    assert_eq!(client.name, "a+b???x?");
    assert_eq!(client.addr, "IPv6:2001:db8::1");
    assert_eq!(client.helo, "1+zz");
}

#[test]
fn without_an_address_the_message_is_a_local_one() {
    let mut forwarded = Forwarded::default();
    forwarded.take(&["NAME=localhost", "ADDR=[Unavailable]", "IDENT=C3"]).unwrap();
    assert_eq!(forwarded.client(), SmtpClient::default());
    assert_eq!(forwarded.queue_id, "C3");
}
