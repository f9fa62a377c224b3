//! `onedrop replay` from files: what each form of source holds, for whom a message is, what it
//! reports and what it passes by.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::letters::{from_ann, from_lisa};
use crate::support::site::{Files, Site, deliver, run};
use crate::support::{TempRoot, onedrop_path, set_mode};

const SCUBA: [&str; 3] = ["replay", "--to", "scuba@mail.axial.net"];

/// Replays to scuba; these arguments come last.
fn to_scuba(config: &Path, arguments: &[&str]) -> Output {
    run(config, &[&SCUBA, arguments].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// How it ended: the status, what it said of messages, and of all of them.
#[track_caller]
fn ended(output: &Output, status: i32, told: &str) -> String {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{out}{err}");
    assert_eq!(err.lines().next_back(), Some(told), "{out}{err}");
    out
}

fn path(root: &TempRoot, name: &str) -> String {
    root.join(name).display().to_string()
}

/// Every file below, with its size and its last change.
fn listing(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut pending = vec![folder.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let facts = entry.metadata().expect("facts");
            all.push(format!("{} {} {:?}", entry.path().display(), facts.len(), facts.modified()));
            pending.extend(facts.is_dir().then(|| entry.path()));
        }
    }
    all.sort();
    all
}

#[test]
fn each_form_of_source_leaves_one_copy_of_each_message() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let file = sources.write("one.eml", from_ann("file"));
    for name in ["a", "b"] {
        sources.write(&format!("folder/{name}"), from_ann(&format!("folder-{name}")));
    }
    sources.write("folder/.hidden", from_ann("hidden"));
    sources.write("Maildir/new/1.new", from_ann("new"));
    sources.write("Maildir/cur/2.cur:2,RS", from_ann("cur"));
    sources.write("Maildir/tmp/3.tmp", from_ann("tmp"));
    sources.write("Maildir/dovecot-uidlist", "3 V1");
    for part in ["new", "cur", "tmp"] {
        sources
            .write(&format!("Maildir/.Sub.Deep/{part}/4.{part}"), from_ann(&format!("sub-{part}")));
    }
    let begin = "From ann@elsewhere.example Mon Jan  5 10:00:00 2015\n";
    let quoted = format!("{}From here on all is well.\n\nFrom here on, too.\n", from_ann("first"));
    let second = from_ann("second") + ">From me.\n";
    let mbox = format!("{begin}{quoted}\n{begin}{}\n", second.replace(">From", ">>From"));
    sources.write("old.mbox", &mbox);
    sources.write("empty.mbox", "");

    let folder = path(&sources, "folder");
    let (one, maildir) = (file.display().to_string(), path(&sources, "Maildir"));
    let mboxes = [path(&sources, "old.mbox"), path(&sources, "empty.mbox")];
    let plain = [one.as_str(), folder.as_str(), maildir.as_str()];
    let as_mbox = ["--mbox", "rd", mboxes[0].as_str(), mboxes[1].as_str()];

    let mut expected: Vec<String> =
        ["file", "folder-a", "folder-b", "new", "cur"].map(from_ann).into();
    let output = to_scuba(&config, &plain);
    ended(&output, 0, "5 messages: 5 stored");
    let left = format!("{maildir}: --subfolders reads what is left: Maildirs in it (1)\n");
    assert!(text(&output.stderr).contains(&left), "{output:?}");
    site.inbox_has("scuba", &expected);
    let output = to_scuba(&config, &as_mbox);
    ended(&output, 0, "2 messages: 2 stored");
    let empty = format!("{}: no message in it\n", mboxes[1]);
    assert!(text(&output.stderr).contains(&empty), "{output:?}");
    expected.extend([quoted, second]);
    site.inbox_has("scuba", &expected);
    let all = ["--subfolders", maildir.as_str()];
    ended(&to_scuba(&config, &all), 0, "4 messages: 2 stored, 2 already there");
    expected.extend(["sub-new", "sub-cur"].map(from_ann));
    site.inbox_has("scuba", &expected);

    ended(&to_scuba(&config, &plain), 0, "5 messages: 5 already there");
    ended(&to_scuba(&config, &as_mbox), 0, "2 messages: 2 already there");
    // A Maildir's own folders, one by one.
    let parts = [path(&sources, "Maildir/new"), path(&sources, "Maildir/cur")];
    let parts = [parts[0].as_str(), parts[1].as_str()];
    ended(&to_scuba(&config, &parts), 0, "2 messages: 2 already there");
    site.inbox_has("scuba", &expected);
}

#[test]
fn what_is_no_message_is_told_and_passed_by() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "limits.message_bytes = 4000\n");
    let secret = sources.write("real", from_ann("secret"));
    symlink(&secret, sources.join("secret")).expect("a link");
    sources.write("Maildir/new/1.good", from_ann("good"));
    sources.write("Maildir/cur/2.large", from_ann("large") + &"x".repeat(4000));
    sources.write("Maildir/cur/3.empty", "");
    sources.write("Maildir/cur/4.line", "From ann Mon Jan  5 10:00:00 2015\n");
    sources.write("Maildir/cur/9.nul", from_ann("nul") + "\0\n");
    let cur = sources.join("Maildir/cur");
    symlink(&secret, cur.join("5.link")).expect("a link");
    mkfifo(&cur.join("6.fifo"), Mode::S_IRWXU).expect("a FIFO");
    fs::create_dir(cur.join("7.folder")).expect("a folder");
    let socket = UnixListener::bind(cur.join("8.socket")).expect("a socket");
    symlink(&cur, sources.join("Maildir/.Linked")).expect("a link");
    let begin = "From ann@elsewhere.example Mon Jan  5 10:00:00 2015\n";
    let two = format!("{begin}{}\n{begin}{}", from_ann("in-mbox"), from_ann("second"));
    let large = format!("{begin}{}{}\n", from_ann("too-large"), "x\n".repeat(3000));
    sources.write("two.mbox", format!("{large}\n{two}"));
    mkfifo(&sources.join("fifo"), Mode::S_IRWXU).expect("a FIFO");

    let names = ["Maildir", "two.mbox", "fifo", "missing", "Maildir/tmp", "secret"];
    fs::create_dir(sources.join("Maildir/tmp")).expect("a folder");
    let named: Vec<String> = names.iter().map(|name| path(&sources, name)).collect();
    let mut arguments: Vec<&str> = named.iter().map(String::as_str).collect();
    let output = to_scuba(&config, &[&["--subfolders"], &arguments[..]].concat());
    let out = ended(&output, 1, "15 messages: 4 stored, 11 failed");
    let root = sources.display();
    let too_large = "message is larger than limits.message_bytes = 4000";
    let expected = [
        format!("Maildir/cur/2.large: {too_large}"),
        "Maildir/cur/3.empty: there is nothing in it".to_owned(),
        "Maildir/cur/5.link: a symbolic link, which is not followed".to_owned(),
        "Maildir/cur/6.fifo: a FIFO".to_owned(),
        "Maildir/cur/7.folder: a folder".to_owned(),
        "Maildir/cur/8.socket: a socket".to_owned(),
        "Maildir/.Linked: a symbolic link, which is not followed".to_owned(),
        "two.mbox: an mbox: say how it is quoted, --mbox rd or --mbox o".to_owned(),
        "fifo: a FIFO".to_owned(),
        "missing: No such file or directory (os error 2)".to_owned(),
        "Maildir/tmp: what is in a Maildir's tmp may not be whole".to_owned(),
    ];
    let mut lines: Vec<String> = out.lines().map(str::to_owned).collect();
    let mut wanted: Vec<String> =
        expected.iter().map(|line| format!("failed {root}/{line}")).collect();
    lines.sort();
    wanted.sort();
    assert_eq!(lines, wanted);
    // A link that an administrator names is followed; a From_ line alone is a message.
    let line = "From ann Mon Jan  5 10:00:00 2015\n".to_owned();
    site.inbox_has("scuba", [from_ann("good"), line, from_ann("nul") + "\0\n", from_ann("secret")]);

    arguments = vec!["--mbox", "o", &named[1], &named[5]];
    let out = ended(&to_scuba(&config, &arguments), 1, "4 messages: 2 stored, 2 failed");
    let no_mbox = "no mbox: it does not begin with a From_ line (From, an address, a date)";
    let wanted =
        format!("failed {root}/two.mbox at byte 0: {too_large}\nfailed {root}/secret: {no_mbox}\n");
    assert_eq!(out, wanted);
    drop(socket);
}

#[test]
fn the_message_says_for_whom_it_is_above_its_first_received_field() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let received = "Received: from far by near; Sun, 22 Nov 2026 12:00:00 +0000\n";
    let forged = format!("{received}Delivered-To: boss@mail.axial.net\n");
    let mut wanted = Vec::new();
    for (name, head) in [
        ("a", "Return-Path: <ann@x>\nDelivered-To: doug@mail.axial.net\n"),
        ("b", "X-Original-To: info@x\nDelivered-To: doug@mail.axial.net\n"),
        ("c", "X-Original-To: doug@mail.axial.net\n"),
    ] {
        let message = format!("{head}{forged}{}", from_ann(name));
        sources.write(&format!("folder/{name}"), &message);
        wanted.push(message);
    }
    sources.write("folder/d", format!("{forged}{}", from_ann("d")));
    let elsewhere = format!("Delivered-To: x@elsewhere.example\n{received}{}", from_ann("e"));
    sources.write("folder/e", elsewhere);
    // A draft, which no server has received.
    sources.write("folder/f", format!("Delivered-To: boss@mail.axial.net\n{}", from_ann("f")));
    let folder = path(&sources, "folder");
    let out = run(&config, &["replay", &folder]);
    let out = ended(&out, 1, "6 messages: 3 stored, 3 failed");
    let why = [
        "d: no recipient: no Delivered-To",
        "e: 5.1.1 unknown recipient x@elsewhere.example",
        "f: no recipient: no Delivered-To",
    ];
    assert!(why.iter().all(|why| out.contains(&format!("failed {folder}/{why}"))), "{out}");
    site.inbox_has("doug", &wanted);
    assert!(site.inbox("boss").is_empty());
    let senders = site.ledger("SELECT DISTINCT sender FROM onedrop_message ORDER BY 1");
    assert_eq!(senders, ["", "ann@x"]);

    // For several, whatever it says.
    let both = ["--to", "max@mail.axial.net", "--to", "zoe@mail.axial.net", folder.as_str()];
    let out = run(&config, &[&["replay"], &both[..]].concat());
    ended(&out, 0, "6 messages: 6 stored");
    assert_eq!((site.inbox("max").len(), site.inbox("zoe").len()), (6, 6));
}

/// A line that may begin a message is never joined to the one before without a word.
#[test]
fn lines_of_an_mbox_that_may_begin_a_message_are_told() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let old = "From ann@elsewhere.example Mon Jan  2 03:04:05 95\n";
    let doubtful = "From ann@elsewhere.example 2 Jan 1995 03:04:05";
    let second = format!("{}\n{doubtful}\n{}", from_ann("second"), from_ann("third"));
    let mbox = format!("{old}{}\n{old}{second}\nFrom now on.\n\n", from_ann("first"));
    let at = mbox.find(doubtful).expect("the line");
    let many = format!("{old}{}{}", from_ann("many"), "\nFrom 1 on\n".repeat(30));
    sources.write("old.mbox", &mbox);
    sources.write("many.mbox", &many);
    let names = [path(&sources, "old.mbox"), path(&sources, "many.mbox")];
    let output = to_scuba(&config, &["--mbox", "rd", &names[0], &names[1]]);
    ended(&output, 0, "3 messages: 3 stored");
    let told = text(&output.stderr);
    let told: Vec<&str> = told.lines().collect();
    let first =
        format!("{} at byte {at}: no date that can be read, so it is text: {doubtful}", names[0]);
    assert_eq!(told[0], first);
    assert!(told[1..21].iter().all(|line| line.ends_with("so it is text: From 1 on")), "{told:?}");
    assert_eq!(told[21..], [format!("{}: and 10 more of such lines", names[1]).as_str(), told[22]]);
    let many = format!("{}{}", from_ann("many"), "\nFrom 1 on\n".repeat(30));
    let mut wanted = vec![from_ann("first"), second + "\nFrom now on.\n", many];
    site.inbox_has("scuba", wanted.clone());

    // What is no whole header is text.
    let joined = format!("{}{old}To: you\n\nall\n", from_ann("joined"));
    sources.write("joined.mbox", format!("{old}{joined}"));
    let name = path(&sources, "joined.mbox");
    let output = to_scuba(&config, &["--mbox", "rd", &name]);
    ended(&output, 0, "1 message: 1 stored");
    let (at, line) = (old.len() + from_ann("joined").len(), old.trim_end());
    let why =
        "looks like the begin of a message, but no empty line stands before it, so it is text";
    let first = format!("{name} at byte {at}: {why}: {line}");
    assert_eq!(text(&output.stderr).lines().next(), Some(first.as_str()));
    wanted.push(joined);
    site.inbox_has("scuba", wanted.clone());

    // As Thunderbird writes it.
    let behind = ["1", "2", "3"].map(|id| from_ann(&format!("behind-{id}")));
    sources
        .write("behind.mbox", format!("{old}{}{old}{}\n{old}{}", behind[0], behind[1], behind[2]));
    let output = to_scuba(&config, &["--mbox", "rd", &path(&sources, "behind.mbox")]);
    ended(&output, 0, "3 messages: 3 stored");
    assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    wanted.extend(behind);
    site.inbox_has("scuba", wanted);
}

/// An editor's byte order mark would make the first field none, and a name beside the address of
/// Delivered-To would become an account.
#[test]
fn what_is_no_message_and_what_is_no_address_end_in_no_account() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let received = "Received: from far by near; Mon, 5 Jan 2015 10:00:00 +0000\n";
    let to =
        |address: &str, id: &str| format!("Delivered-To: {address}\n{received}{}", from_ann(id));
    let named = to("\"Scuba\" <scuba@mail.axial.net> (at work)", "named");
    let folder = sources.write("in/1-named", &named);
    sources.write("in/2-several", to("scuba@mail.axial.net, doug@mail.axial.net", "several"));
    sources.write("in/3-words", to("Scuba Diver", "words"));
    sources.write("in/4-bom", format!("\u{feff}{}", to("scuba@mail.axial.net", "bom")));
    let utf_16: Vec<u8> =
        to("scuba@mail.axial.net", "utf-16").encode_utf16().flat_map(u16::to_le_bytes).collect();
    sources.write("in/5-utf-16", [&b"\xff\xfe"[..], &utf_16].concat());
    let folder = folder.parent().expect("a folder").display().to_string();
    let out = run(&config, &["replay", &folder]);
    let out = ended(&out, 1, "5 messages: 1 stored, 4 failed");
    for why in [
        "2-several: no recipient: no Delivered-To",
        "3-words: no recipient: no Delivered-To",
        "4-bom: no message: it begins with a byte order mark",
        "5-utf-16: no message: it is in UTF-16",
    ] {
        assert!(out.contains(&format!("failed {folder}/{why}")), "{why}: {out}");
    }
    site.inbox_has("scuba", vec![named]);
    assert_eq!(site.ledger("SELECT DISTINCT account FROM onedrop_copy"), ["scuba"]);
}

/// What a sender has written into a body becomes no message of its own, for whoever it names.
#[test]
fn an_mbox_that_goes_by_lengths_is_told_and_not_cut() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let begin = "From ann@elsewhere.example Mon Jan  5 10:00:00 2015\n";
    let (to_doug, to_boss) =
        ("Delivered-To: doug@mail.axial.net\n", "Delivered-To: boss@mail.axial.net\n");
    let received = "Received: from far by near; Mon, 5 Jan 2015 10:00:00 +0000\n";
    let body = format!("text\n\n{begin}{to_boss}{received}{}", from_ann("forged"));
    let length = format!("Content-Length: {}\n", body.len());
    let mut mbox = String::new();
    let wanted = ["first", "last"].map(|name| format!("{to_doug}{received}{}", from_ann(name)));
    mbox.push_str(&format!("{begin}{}\n", wanted[0]));
    let at = mbox.len();
    mbox.push_str(&format!("{begin}{to_doug}{received}Subject: cut\n{length}\n{body}\n"));
    mbox.push_str(&format!("{begin}{}", wanted[1]));
    let name = sources.write("lengths.mbox", &mbox).display().to_string();
    let out = run(&config, &["replay", "--mbox", "rd", &name]);
    let out = ended(&out, 1, "4 messages: 2 stored, 2 failed");
    let why = "may be a part of a message: by a Content-Length a message goes on beyond a line \
               that looks like the begin of another; replay a copy that is quoted";
    let part = at + mbox[at + 1..].find(begin).expect("the line") + 1;
    let lines = [at, part].map(|at| format!("failed {name} at byte {at}: {why}\n"));
    assert_eq!(out, lines.concat());
    site.inbox_has("doug", wanted);
    assert!(site.inbox("boss").is_empty());
}

#[test]
fn what_a_mail_program_keeps_in_a_form_of_its_own_is_told() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    fs::create_dir_all(sources.join("Maildir/cur")).expect("a folder");
    fs::write(sources.join("Maildir/cur/1:2,S"), b"\x1f\x8b\x08\0\0\0\0\0\0\x03").expect("a file");
    sources.write("Maildir/cur/2:2,S", from_ann("plain"));
    sources.write("3.emlx", format!("1234      \n{}", from_ann("apple")));
    let (maildir, emlx) = (path(&sources, "Maildir"), path(&sources, "3.emlx"));
    let out = ended(&to_scuba(&config, &[&maildir, &emlx]), 1, "3 messages: 1 stored, 2 failed");
    let packed = "packed by gzip, as Dovecot's mail_compress does";
    let lines = [
        format!("failed {maildir}/cur/1:2,S: {packed}\n"),
        format!("failed {emlx}: an .emlx file of Apple Mail\n"),
    ];
    assert_eq!(out, lines.concat());
    site.inbox_has("scuba", [from_ann("plain")]);
}

/// Two messages of one Maildir may have one name; what is done of one says nothing of the other.
#[test]
fn a_name_in_new_and_in_cur_is_two_messages() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let names = ["Maildir/new/1", "Maildir/cur/1:2,S"];
    for (name, of) in names.iter().zip(["aa", "bb"]) {
        let file = sources.write(name, from_ann(of));
        let file = fs::File::options().append(true).open(file).expect("a file");
        file.set_modified(std::time::UNIX_EPOCH).expect("a date");
    }
    let (maildir, state) = (path(&sources, "Maildir"), path(&sources, "state"));
    // A run that was killed after the first.
    let (new, cur) = (path(&sources, names[0]), sources.join(names[1]));
    let aside = sources.join("aside");
    fs::rename(&cur, &aside).expect("renamed");
    ended(&to_scuba(&config, &["--state", &state, &maildir]), 0, "1 message: 1 stored");
    fs::rename(&aside, &cur).expect("renamed");
    assert!(Path::new(&new).exists());
    let output = to_scuba(&config, &["--state", &state, &maildir]);
    ended(&output, 0, "2 messages: 1 stored, 1 done by an earlier run");
    site.inbox_has("scuba", ["aa", "bb"].map(from_ann));
}

/// One broken mailbox keeps no other from its messages.
#[test]
fn a_mailbox_that_is_broken_does_not_stop_an_archive() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let received = "Received: from far by near; Mon, 5 Jan 2015 10:00:00 +0000\n";
    let message = |account: &str, name: &str| {
        format!("Delivered-To: {account}@mail.axial.net\n{received}{}", from_ann(name))
    };
    for number in 10..22 {
        sources.write(&format!("folder/a{number}"), message("doug", &format!("doug{number}")));
    }
    let good: Vec<String> = (0..3).map(|number| message("zoe", &format!("zoe{number}"))).collect();
    for (number, text) in good.iter().enumerate() {
        sources.write(&format!("folder/b{number}"), text);
    }
    let broken = site.root.join("mail/doug");
    fs::create_dir_all(&broken).expect("a folder");
    fs::write(broken.join("Maildir"), "a backup").expect("a file");
    let folder = path(&sources, "folder");
    let out = run(&config, &["replay", &folder]);
    let out = ended(&out, 1, "15 messages: 3 stored, 12 failed");
    let left = "left: the ten messages before it that were tried for this mailbox failed";
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[..10].iter().all(|line| line.contains("Maildir: Not a directory")), "{out}");
    assert!(lines[10..].iter().all(|line| line.ends_with(left)), "{out}");
    site.inbox_has("zoe", &good);

    // Where nothing at all is delivered, it may be the store.
    for number in 0..3 {
        fs::remove_file(sources.join(format!("folder/b{number}"))).expect("removed");
    }
    let out = run(&config, &["replay", &folder]);
    let told = text(&out.stderr);
    assert_eq!(out.status.code(), Some(75), "{told}");
    let end = "12 messages: 12 failed\nnone could be delivered\n\
               the rest is left: run it again when that is mended\n";
    assert!(told.ends_with(end), "{told}");
}

#[test]
fn a_servers_own_data_at_the_beginning_of_an_mbox_are_left_out() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let begin = "From ann@elsewhere.example Mon Jan  5 10:00:00 2015\n";
    let internal = "From: Mail System Internal Data <MAILER-DAEMON@x>\n\
        Subject: DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA\nX-IMAP: 1 2\n\ntext\n";
    let mbox = |letters: &[&str]| -> String {
        letters.iter().map(|letter| format!("{begin}{letter}\n")).collect()
    };
    sources.write("folder/a", mbox(&[internal, &from_ann("first"), internal]));
    sources.write("folder/b.lock", mbox(&[&from_ann("second")]));
    let folder = path(&sources, "folder");
    let output = to_scuba(&config, &["--mbox", "rd", &folder]);
    // Only at the beginning; and a name alone is no lock.
    ended(&output, 0, "3 messages: 3 stored");
    let note = format!("{folder}/a at byte 0: a mail server's own data, left out");
    assert_eq!(text(&output.stderr).lines().next(), Some(note.as_str()));
    let wanted = [from_ann("first"), internal.to_owned(), from_ann("second")];
    site.inbox_has("scuba", wanted);
}

/// A first line that may be meant to begin an mbox: nothing goes through as one message silently.
#[test]
fn a_file_that_begins_with_from_and_no_date_is_refused() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let begin = "From ann@elsewhere.example Mon Jan  5 10:00:00 2015\n";
    let obsolete = from_ann("obsolete").replacen("From:", "From :", 1);
    assert!(obsolete.starts_with("From : "), "{obsolete}");
    sources.write("folder/a", format!("{begin}{}", from_ann("one")));
    sources.write("folder/b", format!("From ann@elsewhere.example\n{}", from_ann("dateless")));
    sources.write("folder/c", format!("{begin}{0}\n{begin}{0}", "x\n\n").replace('\n', "\r"));
    sources.write("folder/d.eml", format!("From ann@elsewhere.example\n{}", from_ann("eml")));
    sources.write("folder/e", &obsolete);
    let folder = path(&sources, "folder");
    let out = ended(&to_scuba(&config, &[&folder]), 1, "5 messages: 3 stored, 2 failed");
    let why = "begins with From, as an mbox does, but that line has no date that can be read: \
               correct it in a copy (an mbox needs --mbox as well), or take it out";
    let wanted = ["b", "c"].map(|name| format!("failed {folder}/{name}: {why}\n"));
    assert_eq!(out, wanted.concat());
    // As in what pipe(8) gives, the line is none of the message's.
    site.inbox_has("scuba", [from_ann("one"), from_ann("eml"), obsolete]);
}

/// Maildirs below others, in folders that are none, with hidden names, with one part of two.
#[test]
fn no_folder_below_is_passed_by_silently() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let wanted = [
        "Maildir/cur/1",
        "Maildir/Archive/2020/new/2",
        "Maildir/.Half/cur/3",
        "home/plain",
        "home/.Sent/new/4",
        "home/Archive/2021/cur/5",
        "home/.hidden/deep/cur/6",
    ];
    for name in wanted {
        sources.write(name, from_ann(&name.replace('/', "-")));
    }
    for name in ["Maildir/dovecot-uidlist", "Maildir/Archive/sieve", "home/.hidden/cache"] {
        sources.write(name, "no message");
    }
    sources.write("elsewhere/cur/7", from_ann("elsewhere"));
    for link in ["Maildir/Archive/Linked", "Maildir/new", "home/.Linked"] {
        symlink(sources.join("elsewhere"), sources.join(link)).expect("a link");
    }
    symlink(sources.join("home/plain"), sources.join("Maildir/.dovecot.sieve")).expect("a link");
    for closed in ["Maildir/.Closed", "home/.Closed", "home/Half/cur"] {
        fs::create_dir_all(sources.join(closed)).expect("a folder");
        set_mode(&sources.join(closed), 0o000);
    }
    let (maildir, home) = (path(&sources, "Maildir"), path(&sources, "home"));
    // Root as well may read only what its modes let it.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-dac_override,-dac_read_search"]).arg(onedrop_path());
    command.args(SCUBA).arg("--config").arg(&config).args(["--subfolders", &maildir, &home]);
    let out = ended(&command.output().expect("setpriv"), 1, "13 messages: 7 stored, 6 failed");
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    let root = sources.display();
    let (link, closed) =
        ("a symbolic link, which is not followed", "Permission denied (os error 13)");
    let told = [
        ("Maildir/.Closed", closed),
        ("Maildir/Archive/Linked", link),
        ("Maildir/new", link),
        ("home/.Closed", closed),
        ("home/.Linked", link),
        ("home/Half/cur", closed),
    ];
    assert_eq!(lines, told.map(|(name, why)| format!("failed {root}/{name}: {why}")));
    site.inbox_has("scuba", wanted.map(|name| from_ann(&name.replace('/', "-"))));
}

#[test]
fn a_run_that_finds_no_message_says_so() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    fs::create_dir(sources.join("empty")).expect("a folder");
    sources.write("Maildir/.Sub/cur/1", from_ann("below"));
    fs::create_dir(sources.join("Maildir/new")).expect("a folder");
    let (empty, maildir) = (path(&sources, "empty"), path(&sources, "Maildir"));
    let output = to_scuba(&config, &[&empty, &maildir]);
    ended(&output, 1, "0 messages");
    let told = format!(
        "{empty}: no message in it\n{maildir}: --subfolders reads what is left: Maildirs in it \
         (1)\n{maildir}: no message in it\n0 messages\n"
    );
    assert_eq!(text(&output.stderr), told);
}

#[test]
fn a_state_file_among_the_messages_is_none() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    sources.write("folder/one", from_ann("one"));
    let folder = path(&sources, "folder");
    let (state, by_another_name) = (path(&sources, "folder/state"), path(&sources, "linked"));
    symlink(&state, &by_another_name).expect("a link");
    ended(&to_scuba(&config, &["--state", &state, &folder]), 0, "1 message: 1 stored");
    let arguments = ["--state", by_another_name.as_str(), folder.as_str()];
    let done = "1 message: 1 done by an earlier run";
    ended(&to_scuba(&config, &arguments), 0, done);
    ended(&to_scuba(&config, &[&["--dry-run"], &arguments[..]].concat()), 0, done);
    site.inbox_has("scuba", [from_ann("one")]);
}

#[test]
fn what_would_be_delivered_is_said_and_nothing_is_written() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let file = sources.write("lisa.eml", from_lisa("dry"));
    sources.write("state", "");
    let (file, state) = (file.display().to_string(), path(&sources, "none"));
    let before = (listing(&site.root), listing(&sources));
    let dry = ["--dry-run", "--to", "nobody@elsewhere.example", "--state", &state, &file];
    let out = run(&config, &[&["replay"], &dry[..]].concat());
    let out = ended(&out, 1, "1 message: 1 failed");
    assert_eq!(out, format!("failed {file}: 5.1.1 unknown recipient nobody@elsewhere.example\n"));
    assert_eq!((listing(&site.root), listing(&sources)), before);
    let out = ended(&to_scuba(&config, &dry[3..]), 0, "1 message: 1 stored");
    assert_eq!(out, "", "that was no dry run");
    let other = sources.write("other.eml", from_ann("other")).display().to_string();
    let all = || (listing(&site.root.join("mail")), listing(&sources), rows(&site));
    let before = all();
    let out = to_scuba(&config, &["--dry-run", "--state", &state, &file, &other]);
    let out = ended(&out, 0, "2 messages: 1 would be delivered, 1 done by an earlier run");
    assert_eq!(out, format!("would be delivered {other}: account=scuba mailbox=INBOX\n"));
    assert_eq!(all(), before);
}

/// Every row of the ledger.
fn rows(site: &Site<Files>) -> Vec<String> {
    let (ledger, mut all) = (site.sqlite(), Vec::new());
    for table in site.ledger("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1") {
        let mut query = ledger.prepare(&format!("SELECT * FROM {table}")).expect("a query");
        let columns = query.column_count();
        let mut rows = query.query([]).expect("rows");
        while let Some(row) = rows.next().expect("a row") {
            let values = (0..columns).map(|at| format!("{:?}", row.get_ref(at).expect("a value")));
            all.push(format!("{table} {}", values.collect::<Vec<_>>().join(" ")));
        }
    }
    assert!(all.iter().any(|row| row.starts_with("onedrop_copy ")), "{all:?}");
    all
}

/// Anybody can have written an Authentication-Results into a file: only a delivery believes it.
#[test]
fn a_replayed_message_is_never_copied_into_a_sent() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    for trust in ["authenticated", "header"] {
        let config = site.config(trust, &format!("sent.trust = \"{trust}\"\n"));
        let file = sources.write(&format!("{trust}.eml"), from_lisa(trust)).display().to_string();
        for state in ["stored", "already there"] {
            let out = to_scuba(&config, &["--json", &file]);
            let out = ended(&out, 0, &format!("1 message: 1 {state}"));
            let lines: serde_json::Value = serde_json::from_str(&out).expect("JSON");
            assert_eq!(lines.as_array().map(Vec::len), Some(1));
            let line = &lines[0];
            assert_eq!((&line["state"], &line["place"]), (&state.into(), &file.clone().into()));
            assert_eq!(line["recipients"][0], "scuba@mail.axial.net");
            let text = line["text"].as_str().expect("text");
            assert!(text.contains("account=scuba") && !text.contains("lisa"), "{text}");
        }
        assert!(!site.root.join("mail/lisa").exists());
    }
    assert_eq!(site.inbox("scuba").len(), 2);
    let delivered = deliver(
        &site.config("authenticated", ""),
        &["-f", "lisa@gmail.com", "-d", "scuba@mail.axial.net"],
        &from_lisa("delivered"),
    );
    assert!(delivered.status.success(), "{delivered:?}");
    assert_eq!(site.copies("lisa", ".Sent").len(), 1, "a delivery believes the same field");
}
