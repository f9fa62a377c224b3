//! XFORWARD: what Postfix says about a client, of which much is the client's own words.

use super::harness::Target;
use super::lmtp_session::script::{Directory, Event, settings, transcript};

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

const DICTIONARY: &[&[u8]] = &[
    b"NAME=",
    b" ADDR=192.0.2.1",
    b" addr=IPv6:2001:db8::1",
    b" PORT=25",
    b" PROTO=ESMTP",
    b" HELO=mx",
    b" SOURCE=REMOTE",
    b" IDENT=4Q",
    b"[UNAVAILABLE]",
    b"+2B",
    b"+3D",
    b"+0D+0A",
    b"+C3+A9",
    b"+FF",
    b"+",
    b"+2",
    b"=",
    b"<>()\\\";@",
    b" ",
    b"\t",
    b"\xc3\xa9",
    b"\xff",
    b"\0",
];

fn seeds() -> Vec<Vec<u8>> {
    let seeds: [&[u8]; 4] = [
        b"NAME=spike.porcupine.org ADDR=168.100.189.2 PORT=4711",
        b"PROTO=ESMTP HELO=spike.porcupine.org IDENT=4dDgX61Kz9z1bC SOURCE=REMOTE",
        b"ADDR=[UNAVAILABLE] NAME=[UNAVAILABLE]",
        b"ADDR=IPv6:2001:db8::1 NAME=a+2Bb+0D+0A+28x+29",
    ];
    seeds.map(<[u8]>::to_vec).to_vec()
}

/// The longest value that is taken.
const LONGEST: usize = 255;

pub fn check(input: &[u8]) {
    as_arguments(input);
    as_a_value(input);
}

/// Whatever follows the verb: it is taken or refused, no word of it is passed on that could mean
/// something in a header field or in a log, and the message that follows comes through.
fn as_arguments(input: &[u8]) {
    let line: Vec<u8> = input.iter().copied().filter(|byte| *byte != b'\n').take(8000).collect();
    let (replies, envelope) = said(&line);
    assert!(
        ["250 2.0.0", "501 5.5.4", "500 5.5.2", "451 4.5.2"].contains(&&replies[0][..9]),
        "{}",
        replies[0]
    );
    for (name, value) in envelope.split(' ').skip(2).filter_map(|word| word.split_once('=')) {
        let is_harmless = value.chars().all(|c| c.is_ascii_graphic() && !"<>()\\\";@".contains(c));
        assert!(is_harmless && value.len() <= LONGEST, "{name}={value}");
        assert!(replies[0].starts_with("250 ") || name == "lhlo", "{name} of a refused command");
    }
    // Without an address there is no client.
    assert!(envelope.contains(" addr=") || !envelope.contains(" helo="), "{envelope}");
}

/// A value of any bytes as Postfix says it (xtext, RFC 3461 section 4): passed on as it is, but for
/// what is not harmless.
fn as_a_value(input: &[u8]) {
    let bytes = &input[..input.len().min(LONGEST / 3)];
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'+' && *byte != b'=';
    let xtext: String =
        bytes
            .iter()
            .map(|byte| {
                if is_plain(byte) { char::from(*byte).to_string() } else { format!("+{byte:02X}") }
            })
            .collect();
    if xtext.is_empty() {
        return;
    }
    let (replies, envelope) =
        said(format!(" ADDR=192.0.2.1 HELO={xtext} IDENT={xtext}").as_bytes());
    assert!(replies[0].starts_with("250 2.0.0"), "{}", replies[0]);
    // What is no UTF-8 is passed on as it came.
    let decoded = String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| xtext.clone());
    let special = |c: char| !c.is_ascii_graphic() || "<>()\\\";@".contains(c);
    let expected: String = decoded.chars().map(|c| if special(c) { '?' } else { c }).collect();
    let expected =
        if expected.eq_ignore_ascii_case("[UNAVAILABLE]") { String::new() } else { expected };
    let heard = |name: &str| {
        envelope.split(' ').find_map(|word| word.strip_prefix(name)).unwrap_or_default().to_owned()
    };
    assert_eq!((heard("helo="), heard("id=")), (expected.clone(), expected), "{xtext}");
}

/// The replies to XFORWARD with these arguments, and to a message that follows; and that message's
/// envelope.
fn said(arguments: &[u8]) -> (Vec<String>, String) {
    let rest = b"\r\nMAIL FROM:<>\r\nRCPT TO:<scuba@mail.axial.net>\r\nDATA\r\n.\r\n";
    let words = [b"LHLO mx\r\nXFORWARD ", arguments, rest].concat();
    let directory =
        Directory { known: vec!["scuba@mail.axial.net".to_owned()], ..Directory::default() };
    let told = transcript(settings("mx", 0, 0), directory, [Event::Says(words)].into_iter());
    let replies = told
        .iter()
        .filter_map(|line| line.strip_prefix("S: "))
        .filter(|line| line.as_bytes()[3] == b' ');
    // Not the greeting, nor the reply to LHLO.
    let replies: Vec<String> = replies.skip(2).map(str::to_owned).collect();
    assert!(
        replies.len() == 5 && replies[1..].iter().all(|reply| !reply.starts_with('5')),
        "{told:?}"
    );
    let envelope = told.iter().find_map(|line| line.strip_prefix("E: ")).expect("a message");
    (replies, envelope.to_owned())
}
