//! Whatever address Postfix has, both doors take it for the same: the process that pipe(8) starts,
//! which gets it as it is, and the LMTP server, which gets it as lmtp(8) quotes it. The addresses
//! are in `fixtures/addresses.txt`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::time::Duration;

use onedrop::text;

use crate::escapes::unescaped;
use crate::support::lmtp_client::{LmtpClient, dot_stuffed};
use crate::support::postfix::{Delivery, Postfix, PostfixSpec};
use crate::support::site::{Files, Site};
use crate::support::{fixture_text, letters, onedrop, onedrop_path, unix_user};

const ANN: &[u8] = b"ann@elsewhere.example";
const SCUBA: &[u8] = b"scuba@mail.axial.net";

struct Address {
    bytes: Vec<u8>,
    /// `None`: no account has it.
    account: Option<String>,
}

fn addresses() -> Vec<Address> {
    let read = |line: &str| {
        let (account, address) = line.split_once('\t').unwrap_or_else(|| panic!("{line}"));
        let account = String::from_utf8(unescaped(account)).expect("a name");
        Address {
            bytes: unescaped(address),
            account: Some(account).filter(|account| account != "-"),
        }
    };
    fixture_text("fixtures/addresses.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(read)
        .collect()
}

/// Like lmtp(8) (quote_821_local.c in Postfix's sources): the local part in quotes if it is no
/// dot-string.
fn quoted(address: &[u8]) -> Vec<u8> {
    let at = address.iter().rposition(|byte| *byte == b'@').unwrap_or(address.len());
    let (local, domain) = address.split_at(at);
    let special = |byte: &u8| byte.is_ascii_control() || b" <>()[]\\,;:@\"".contains(byte);
    let is_dot_string =
        !local.split(|byte| *byte == b'.').any(<[u8]>::is_empty) && !local.iter().any(special);
    if is_dot_string {
        return address.to_vec();
    }
    let escape =
        |byte: &u8| if b"\r\n\"\\".contains(byte) { vec![b'\\', *byte] } else { vec![*byte] };
    let escaped: Vec<u8> = local.iter().flat_map(escape).collect();
    [b"\"", &escaped[..], b"\"", domain].concat()
}

/// How a delivery ended, as both doors say it.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Delivered,
    Unknown,
    Later,
}

fn by_pipe(site: &Site<Files>, sender: &[u8], recipient: &[u8], message: &[u8]) -> End {
    let mut command = onedrop();
    command.arg("deliver").arg("--config").arg(site.config("pipe", ""));
    command.args([
        OsStr::new("-f"),
        OsStr::from_bytes(sender),
        OsStr::new("-d"),
        OsStr::from_bytes(recipient),
    ]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("binary");
    // A delivery that ended early is judged by its status.
    drop(child.stdin.take().expect("stdin").write_all(message));
    match child.wait_with_output().expect("end").status.code() {
        Some(0) => End::Delivered,
        Some(67) => End::Unknown,
        Some(75) => End::Later,
        other => panic!("{other:?}"),
    }
}

/// Sends it like lmtp(8): MAIL, RCPT and DATA at once.
fn by_lmtp(client: &mut LmtpClient, sender: &[u8], recipient: &[u8], message: &[u8]) -> End {
    let (sender, recipient) = (quoted(sender), quoted(recipient));
    let words =
        [b"MAIL FROM:<", &sender[..], b">\r\nRCPT TO:<", &recipient, b">\r\nDATA\r\n"].concat();
    client.send(&words).expect("a server");
    let [mail, rcpt, data] = [(); 3].map(|()| client.reply().expect("a reply"));
    let decides = if mail.is_ok() { &rcpt } else { &mail };
    let said = if decides.is_ok() {
        assert_eq!(data.code, 354);
        client.send(&[&dot_stuffed(message)[..], b".\r\n"].concat()).expect("a server");
        client.reply().expect("a reply").to_string()
    } else {
        client.send(b"RSET\r\n").expect("a server");
        client.reply().expect("a reply");
        decides.to_string()
    };
    match &said[..9] {
        "250 2.0.0" => End::Delivered,
        "550 5.1.1" => End::Unknown,
        _ if said.starts_with('4') => End::Later,
        _ => panic!("{said}"),
    }
}

fn letter(name: &str) -> Vec<u8> {
    let fields = "From: ann@elsewhere.example\nTo: scuba@mail.axial.net\nDate: Sun, 22 Nov 2026 \
                  12:00:00 +0000\n";
    format!("{fields}Subject: {name}\nMessage-ID: <{name}@x>\n\nthis is {name}\n").into_bytes()
}

/// What lies in all mailboxes: of each account, the messages without what was put before them.
fn mailboxes(site: &Site<Files>) -> BTreeMap<String, Vec<String>> {
    let accounts = std::fs::read_dir(site.root.join("mail")).expect("mailboxes");
    let names =
        accounts.map(|entry| entry.expect("entry").file_name().into_string().expect("a name"));
    let message = |copy: Vec<u8>| {
        let text = String::from_utf8_lossy(&copy).into_owned();
        text[text.find("From: ann@").expect("a message")..].to_owned()
    };
    names
        .map(|account| {
            let mut messages: Vec<String> = site.inbox(&account).into_iter().map(message).collect();
            messages.sort();
            (account, messages)
        })
        .collect()
}

#[test]
fn a_recipient_is_the_same_account_by_both_doors() {
    let site = Site::embedded();
    let _server = site.server("");
    let mut client = LmtpClient::welcome(&site.socket());
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (number, address) in addresses().iter().enumerate() {
        let (pipes, lmtps) = (letter(&format!("p{number}")), letter(&format!("l{number}")));
        let ends = [
            by_pipe(&site, ANN, &address.bytes, &pipes),
            by_lmtp(&mut client, ANN, &address.bytes, &lmtps),
        ];
        let end = || if address.account.is_some() { End::Delivered } else { End::Unknown };
        assert_eq!(ends, [end(), end()], "{}", address.bytes.escape_ascii());
        if let Some(account) = &address.account {
            let texts = [pipes, lmtps].map(|message| String::from_utf8(message).expect("text"));
            expected.entry(account.clone()).or_default().extend(texts);
        }
    }
    for messages in expected.values_mut() {
        messages.sort();
    }
    assert_eq!(mailboxes(&site), expected);
}

#[test]
fn a_sender_is_the_same_on_record_by_both_doors_and_whole_in_return_path() {
    let site = Site::embedded();
    let _server = site.server("");
    let mut client = LmtpClient::welcome(&site.socket());
    for (number, address) in addresses().iter().enumerate() {
        let shown = address.bytes.escape_ascii().to_string();
        let (pipes, lmtps) = (letter(&format!("p{number}")), letter(&format!("l{number}")));
        assert_eq!(by_pipe(&site, &address.bytes, SCUBA, &pipes), End::Delivered, "{shown}");
        assert_eq!(by_lmtp(&mut client, &address.bytes, SCUBA, &lmtps), End::Delivered, "{shown}");
        let sender = String::from_utf8_lossy(&address.bytes);
        // On one line, and no longer than an index takes.
        let sender = text::within(&sender, 1000);
        let senders = site.ledger(
            "SELECT coalesce(a.sender, m.sender) FROM onedrop_attempt_text a
             JOIN onedrop_message m ON m.id = a.message_id ORDER BY a.started_at",
        );
        assert_eq!(senders[2 * number..], [&sender[..], &sender], "{shown}");
        // Control characters might end the field.
        let path = String::from_utf8_lossy(&quoted(&address.bytes)).replace("\\\r", "");
        let path: String = path.chars().filter(|c| !c.is_control()).collect();
        let copies = site.inbox("scuba");
        let copy = copies
            .iter()
            .find(|copy| copy.ends_with(format!("this is l{number}\n").as_bytes()))
            .expect("a copy");
        let copy = String::from_utf8_lossy(copy);
        assert!(copy.starts_with(&format!("Return-Path: <{path}>\n")), "{shown}: {copy}");
    }
}

/// What a real Postfix makes of odd addresses, by pipe(8) and by lmtp(8): the same mailboxes, and
/// the same Return-Path.
#[test]
fn a_real_postfix_says_both_doors_the_same() {
    let site = Site::embedded();
    site.give_to(unix_user("nobody").uid.as_raw());
    let _server = site.server("");
    let config = site.config("pipe", "");
    let by_lmtp = Delivery::Lmtp(format!("unix:{}", site.socket().display()));
    let by_pipe = PostfixSpec { config: Some(config), ..PostfixSpec::new(onedrop_path()) };
    let doors = [by_pipe, PostfixSpec { delivery: by_lmtp, ..PostfixSpec::new(onedrop_path()) }];
    let postfixes = doors.map(|spec| Postfix::start(&spec));
    let long = format!("SRS0=hash=TT=example.com=lisa+{}@forwarder.example", "y".repeat(400));
    let senders = [
        &long,
        "\"a b\"@x.example",
        "\"a..b\"@x.example",
        "\".a\"@x.example",
        "\"a\\\"b\\\\\"@x.example",
        "a.b@x.example",
    ];
    let long = format!("scuba+{}@mail.axial.net", "z".repeat(400));
    let recipients = [
        (&long[..], "scuba"),
        ("\"scuba diver\"@mail.axial.net", "scuba diver"),
        ("\"scuba..diver\"@mail.axial.net", "scuba..diver"),
        ("\"scuba.\"@mail.axial.net", "scuba."),
        ("\"scuba\\\"diver\"@mail.axial.net", "scuba\"diver"),
        ("\"(a,b;c:d)[e]\"@mail.axial.net", "(a,b;c:d)[e]"),
    ];
    for (number, ((recipient, _), sender)) in recipients.iter().zip(senders).enumerate() {
        for (door, postfix) in ["p", "l"].iter().zip(&postfixes) {
            postfix.send(sender, &[recipient], &letter(&format!("{door}{number}")));
        }
    }
    for postfix in &postfixes {
        assert!(postfix.wait_until_queue_empty(Duration::from_secs(240)), "{}", postfix.log());
        assert_eq!(postfix.sent(), recipients.len(), "{}", postfix.log());
    }
    for (number, (recipient, account)) in recipients.iter().enumerate() {
        let copies = site.inbox(account);
        letters::are_these(
            recipient,
            &copies,
            ["p", "l"].map(|door| letter(&format!("{door}{number}"))),
        );
        let first_line = |copy: &Vec<u8>| {
            String::from_utf8_lossy(copy.split(|byte| *byte == b'\n').next().unwrap()).into_owned()
        };
        let paths: Vec<String> = copies.iter().map(first_line).collect();
        assert!(paths[0].starts_with("Return-Path: <") && paths[0] == paths[1], "{paths:?}");
    }
}
