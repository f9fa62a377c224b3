//! What a server, a store or a person has said, in the reply that passes it on.

use onedrop::net::lmtp::reply;
use onedrop::outcome::{Outcome, Status};

use super::harness::Target;

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

const DICTIONARY: &[&[u8]] = &[
    b"\r\n",
    b"\n250 2.0.0 stored\r\n",
    b"\0",
    b"\xff",
    b"\xc2\x9b",
    b"\xe2\x80\xa8",
    b"4.3.0 ",
    b"-",
    b"\x1b[31m",
];

fn seeds() -> Vec<Vec<u8>> {
    let seeds = [
        "stored account=scuba mailbox=INBOX uid=42",
        "unknown recipient nobody@mail.axial.net",
        "\u{fc}ber",
        "",
    ];
    seeds.map(|seed| seed.as_bytes().to_vec()).to_vec()
}

/// A reply is one harmless line, and of its outcome's class.
pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input).into_owned();
    for outcome in [
        Outcome::delivered(text.clone()),
        Outcome::TempFail(Status::TEMPORARY, text.clone()),
        Outcome::TempFail(Status::MAILBOX_FULL, text.clone()),
        Outcome::PermFail(Status::UNKNOWN_MAILBOX, text.clone()),
        Outcome::PermFail(Status::TOO_BIG, text),
    ] {
        let line = reply(&outcome);
        let (text, end) = line.split_at(line.len() - 2);
        assert!(
            line.len() <= 512
                && end == b"\r\n"
                && text.iter().all(|byte| (b' '..=b'~').contains(byte))
        );
        let status = outcome.status().to_string();
        assert!(
            text[0] == status.as_bytes()[0]
                && text[3] == b' '
                && text[4..].starts_with(status.as_bytes())
        );
        // Whoever reads it back hears the same outcome.
        let code = String::from_utf8_lossy(&text[..3]).parse().expect("a code");
        let heard = Outcome::of_reply(code, &String::from_utf8_lossy(&text[4..]));
        assert_eq!((heard.name(), heard.status()), (outcome.name(), outcome.status()));
    }
}
