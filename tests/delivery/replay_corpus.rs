//! The corpus, replayed as a folder of messages, as mboxes and as a Maildir: one copy each, byte
//! for byte.

use std::collections::HashSet;
use std::fs;

use crate::corpus::{identity, input, own_copy};
use crate::support::TempRoot;
use crate::support::corpus::corpus;
use crate::support::letters::from_ann;
use crate::support::site::{Site, run};

const DIRECTORY: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n[sent]\ntrust = \"never\"\n";

/// What must stand in a mailbox: the first of those that are one message.
fn wanted(messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut seen = HashSet::new();
    let is_first = |message: &&Vec<u8>| seen.insert(identity(message));
    let mut wanted: Vec<Vec<u8>> =
        messages.iter().filter(is_first).map(|message| own_copy(message).to_vec()).collect();
    wanted.sort();
    wanted
}

fn lines(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    message.split_inclusive(|byte| *byte == b'\n')
}

/// An mbox as programs write it.
fn mbox(messages: &[Vec<u8>], is_quoted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut mbox = Vec::new();
    for message in messages {
        mbox.extend_from_slice(b"From ann@elsewhere.example Mon Jan  5 10:00:00 2015\n");
        for line in lines(message) {
            let quote: &[u8] = if is_quoted(line) { b">" } else { b"" };
            mbox.extend_from_slice(quote);
            mbox.extend_from_slice(line);
        }
        mbox.push(b'\n');
    }
    mbox
}

fn is_from(line: &[u8]) -> bool {
    line.starts_with(b"From ")
}

fn unquoted(line: &[u8]) -> &[u8] {
    match line {
        [b'>', rest @ ..] if is_from(rest) => rest,
        line => line,
    }
}

#[test]
fn every_message_of_the_corpus_is_replayed_from_each_form() {
    let Some(files) = corpus() else { return };
    let mut messages: Vec<Vec<u8>> = files.iter().map(|file| input(file)).collect();
    messages.push((from_ann("quotes") + ">From a\n>>From b\n\nFrom c\n").into_bytes());
    let messages = messages;
    // In an mbox each line has an end.
    let ended = |message: &Vec<u8>| {
        let end: &[u8] = if message.ends_with(b"\n") { b"" } else { b"\n" };
        [message, end].concat()
    };
    let ended: Vec<Vec<u8>> = messages.iter().map(ended).collect();
    let (remembering, looking) = (Site::embedded(), Site::embedded());
    remembering.remember_for_ever();
    let sources = TempRoot::new();
    for (number, message) in messages.iter().enumerate() {
        sources.write(&format!("folder/{number:04}.eml"), message);
        let part = if number % 3 == 0 { "cur" } else { "new" };
        sources.write(&format!("Maildir/{part}/17000{number:04}.M1P2.host:2,S"), message);
    }
    fs::create_dir_all(sources.join("Maildir/tmp")).expect("a folder");
    let rd = mbox(&ended, |line| is_from(&line[line.iter().take_while(|b| **b == b'>').count()..]));
    sources.write("rd.mbox", rd);
    sources.write("o.mbox", mbox(&ended, is_from));
    // A line loses a quote of its own as well: it looks the same.
    let less = |message: &Vec<u8>| lines(message).map(unquoted).collect::<Vec<_>>().concat();
    let by_o: Vec<Vec<u8>> = ended.iter().map(less).collect();
    assert!(by_o != ended, "a message has such lines");
    let (of_new, of_cur): (Vec<_>, Vec<_>) =
        messages.iter().cloned().enumerate().partition(|(number, _)| number % 3 != 0);
    let of_maildir: Vec<Vec<u8>> = of_new.into_iter().chain(of_cur).map(|(_, one)| one).collect();
    // A new ledger looks in the mailbox first, for what is older than it.
    for (site, account, arguments, expected) in [
        (&remembering, "folder", vec!["folder"], &messages),
        (&looking, "maildir", vec!["Maildir"], &of_maildir),
        (&remembering, "rd", vec!["--mbox", "rd", "rd.mbox"], &ended),
        (&remembering, "o", vec!["--mbox", "o", "o.mbox"], &by_o),
    ] {
        let config = site.config("etc", DIRECTORY);
        let (to, wanted) = (format!("{account}@mail.axial.net"), wanted(expected));
        let (source, options) = arguments.split_last().expect("a source");
        let source = sources.join(source).display().to_string();
        let arguments = [&["replay", "--to", &to][..], options, &[source.as_str()]].concat();
        for told in ["stored", "already there"] {
            let output = run(&config, &arguments);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{account}: {output:?}");
            assert!(said.contains(&format!("{} messages: ", messages.len())), "{account}: {said}");
            assert!(said.contains(told), "{account}: {said}");
            let mut stored = site.inbox(account);
            stored.sort();
            assert_eq!(stored.len(), wanted.len(), "{account}: {said}");
            assert!(stored == wanted, "{account}: not as they came");
        }
    }
}
