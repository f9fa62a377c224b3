//! What makes two messages one, through the real binary, Postgres and Dovecot; and what a
//! Message-ID may hold.

use std::path::PathBuf;

use crate::support::site::{Site, delivered, run};

fn site() -> (Site, PathBuf) {
    let site = Site::with_servers();
    let config = site.config("etc", "");
    (site, config)
}

fn to(account: &str) -> [String; 2] {
    ["-d".to_owned(), format!("{account}@mail.axial.net")]
}

fn give(config: &std::path::Path, account: &str, message: &[u8]) -> String {
    let to = to(account);
    delivered(config, &[&to[0], &to[1]], message)
}

#[test]
fn the_same_message_id_with_other_content_is_another_message() {
    let (site, config) = site();
    let one = b"Message-ID: <same@x>\nSubject: one\n\none\n";
    let two = b"Message-ID: <same@x>\nSubject: two\n\ntwo\n";
    for (account, order) in [("scuba", [one, two]), ("doug", [two, one])] {
        for message in order.iter().chain(&order) {
            give(&config, account, *message);
        }
        assert_eq!(site.dovecot.count(account, "INBOX"), 2, "{account}");
    }
    let trace = run(&config, &["trace", "same@x"]);
    let trace = String::from_utf8_lossy(&trace.stdout).into_owned();
    assert_eq!(trace.matches("collision ").count(), 2, "{trace}");
}

#[test]
fn a_second_message_id_field_suppresses_nothing() {
    let (site, config) = site();
    give(&config, "scuba", b"Message-ID: <decoy@x>\nMessage-ID: <victim@x>\n\nbody\n");
    give(&config, "scuba", b"Message-ID: <victim@x>\n\nbody\n");
    assert_eq!(site.dovecot.count("scuba", "INBOX"), 2);
}

#[test]
fn by_message_id_the_second_content_is_not_delivered() {
    let site = Site::with_servers();
    let config = site.config("etc", "[dedup]\nby = \"message-id\"\n");
    give(&config, "scuba", b"Message-ID: <same@x>\n\none\n");
    let said = give(&config, "scuba", b"Message-ID: <same@x>\n\ntwo\n");
    assert!(said.starts_with("already there"), "{said}");
    assert_eq!(site.dovecot.count("scuba", "INBOX"), 1);
    // An id that names nothing.
    for text in ["first", "second"] {
        give(&config, "doug", format!("Message-ID: <>\n\n{text}\n").as_bytes());
    }
    assert_eq!(site.dovecot.count("doug", "INBOX"), 2);
}

#[test]
fn messages_that_are_one() {
    let (site, config) = site();
    let cases: [(&str, &[&[u8]]); 4] = [
        ("no-id", &[b"Subject: none\n\nbody\n", b"Subject: none\n\nbody\n"]),
        (
            "trace",
            &[
                b"Received: from a by b;\n\tone\nMessage-ID: <t@x>\nDate: Sun, 22 Nov 2026 \
                  10:00:00 +0000\n\nbody\n",
                b"Return-Path: <r@x>\nDelivered-To: trace@x\nReceived: from c by d; two\n\
                  X-Spam-Score: 5\nX-Spam-Flag: YES\nList-Id: <l@x>\nMessage-ID: <t@x>\n\
                  Date: Sun, 22 Nov 2026 10:00:00 +0000\n\n\
                  body\n",
            ],
        ),
        (
            "two-ids",
            &[
                b"Message-ID: <first@x>\nMessage-ID: <second@x>\n\n\
                        body\n",
                b"Message-ID: <first@x>\nMessage-ID: <second@x>\n\nbody\n",
            ],
        ),
        (
            "line-ends",
            &[
                b"Message-ID: <l@x>\n\none\n\
                          two\n",
                b"Message-ID: <l@x>\r\n\r\none\r\ntwo\r\n\r\n",
            ],
        ),
    ];
    for (account, messages) in cases {
        for message in messages {
            give(&config, account, message);
        }
        assert_eq!(site.dovecot.count(account, "INBOX"), 1, "{account}");
    }
}

/// By IMAP they look alike: the server has 0x80 in both. In a Maildir the one with NULs has holes
/// where the text of the other has its quotes.
#[test]
fn a_copy_with_nul_for_0x80_keeps_no_other_out_of_a_maildir() {
    let site = Site::embedded();
    let more = "[directory]\ndomains = [\"mail.axial.net\"]\n\
                [[file]]\nheader = \"X-To\"\nis = \"gone\"\nmailbox = \"Gone\"\n";
    let url = format!("store.url = \"maildir://{}/m\"\n", site.root.display());
    let config = site.config("etc", &(url + more));
    for (account, field) in [("scuba", ""), ("doug", "X-To: gone\n")] {
        let real = format!("{field}Message-ID: <quotes-{account}@x>\n\n\u{201c}yes\u{201d}\n")
            .into_bytes();
        let forged: Vec<u8> =
            real.iter().map(|byte| if *byte == 0x80 { 0 } else { *byte }).collect();
        assert_ne!(real, forged);
        for said in ["stored ", "already there "] {
            for message in [&forged, &real] {
                let told = give(&config, account, message);
                assert!(told.starts_with(said), "{told}");
                assert!(told.contains(&format!("account={account} mailbox=INBOX ")), "{told}");
                assert!(account != "doug" || told.trim_end().ends_with(" instead_of=Gone"));
            }
        }
        let folder = site.root.join("m").join(account).join("Maildir/new");
        let files = std::fs::read_dir(folder).expect("a Maildir");
        let mut copies: Vec<Vec<u8>> = files
            .map(|file| std::fs::read(file.expect("a file").path()).expect("a copy"))
            .collect();
        copies.sort();
        assert_eq!(copies, [forged, real]);
    }
    let said = |args: &[&str]| {
        let output = run(&config, args);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        said
    };
    said(&["verify", "--since", "2d"]);
    // For people by a few digits, for programs as the ledger has it.
    let trace = said(&["trace", "<quotes-doug@x>"]);
    for copy in
        ["mailbox=Gone: ", "mailbox=Gone (variant ", "mailbox=INBOX: ", "mailbox=INBOX (variant "]
    {
        assert!(trace.contains(copy), "{copy}: {trace}");
    }
    assert!(trace.contains("instead=INBOX\n") && !trace.contains('\\'), "{trace}");
    let trace = said(&["trace", "--json", "<quotes-doug@x>"]);
    assert!(trace.contains(r#""mailbox": "INBOX\\"#), "{trace}");
}

/// With every receipt forgotten the look has to find the copies, and sends what it may of the
/// Message-ID to the server.
#[test]
fn a_hostile_message_id_reaches_the_imap_server_as_nothing_but_data() {
    // Whose log has nothing of others.
    let site = Site::with_own_dovecot();
    let config = site.config("etc", "");
    let ids: [&[u8]; 10] = [
        b"<plain@x>",
        b"<fold\r\n ed@x>",
        b"<a@x>\r\n\tA9 DELETE INBOX",
        b"<quote\"d@x>",
        b"<back\\slash@x>",
        b"<{17}@x>",
        b"<{17+}\r\n @x>",
        b"<caf\xc3\xa9-\xff@x>",
        b"=?utf-8?q?=3Cencoded=40x=3E?=",
        b"<nul\0@x>",
    ];
    let messages: Vec<Vec<u8>> = ids
        .iter()
        .map(|id| [b"Subject: hostile\nMessage-ID: ", *id, b"\n\nbody\n"].concat())
        .collect();
    for message in &messages {
        give(&config, "scuba", message);
    }
    assert_eq!(site.dovecot.count("scuba", "INBOX"), ids.len());
    site.forget_receipts("true");
    for (id, message) in ids.iter().zip(&messages) {
        let said = give(&config, "scuba", message);
        assert!(said.starts_with("found account=scuba"), "{}: {said}", String::from_utf8_lossy(id));
    }
    assert_eq!(site.dovecot.count("scuba", "INBOX"), ids.len());
    let log = site.dovecot.log();
    assert!(!log.contains("BAD") && !log.contains("Error"), "{log}");
}

#[test]
fn where_nul_bytes_stood_is_kept_in_the_ledger_and_the_message_is_not() {
    let (site, config) = site();
    let message = b"Message-ID: <nul@x>\n\na\0b\n";
    give(&config, "scuba", message);
    assert_eq!(site.dovecot.messages("scuba", "INBOX"), [b"Message-ID: <nul@x>\r\n\r\na\x80b\r\n"]);
    // Version 1, no flags; one NUL after 22 bytes.
    let places = site.postgres.psql(
        "SELECT NOT EXISTS (SELECT FROM onedrop_raw), encode(nul_runs, 'hex') FROM onedrop_message",
    );
    assert_eq!(places, "t|01001601");
    assert_eq!(site.postgres.psql("SELECT nul_replaced FROM onedrop_copy"), "t");
    let trace = run(&config, &["trace", "nul@x"]);
    assert!(
        String::from_utf8_lossy(&trace.stdout).contains("NUL bytes stored as 0x80"),
        "{trace:?}"
    );
    // Another message that only looks the same in the mailbox is the same there.
    site.forget_receipts("true");
    assert!(give(&config, "scuba", message).starts_with("found "));
}

/// Only where `ledger.notify` says so: such commits wait for each other.
#[test]
fn a_new_message_is_announced_where_that_is_wanted() {
    let (site, silent) = site();
    let loud = site.config("loud", "ledger.notify = true");
    let mut client =
        postgres::Client::connect(&site.postgres.url_socket(), postgres::NoTls).expect("connect");
    client.batch_execute("LISTEN onedrop_message").expect("listen");
    give(&silent, "scuba", b"Message-ID: <silent@x>\n\nbody\n");
    for account in ["scuba", "doug"] {
        give(&loud, account, b"Message-ID: <new@x>\n\nbody\n");
    }
    // What comes in their order ends with ours.
    site.postgres.psql("NOTIFY onedrop_message, 'the end'");
    let mut announced = Vec::new();
    let mut notifications = client.notifications();
    let mut arrived = notifications.timeout_iter(std::time::Duration::from_secs(20));
    while let Ok(Some(notification)) =
        postgres::fallible_iterator::FallibleIterator::next(&mut arrived)
    {
        announced.push(notification.payload().to_owned());
        if announced.last().is_some_and(|last| last == "the end") {
            break;
        }
    }
    let new = "SELECT id FROM onedrop_message WHERE message_id = '<new@x>'";
    assert_eq!(announced, [site.postgres.psql(new), "the end".to_owned()]);
}

#[test]
fn the_date_of_a_copy_is_that_of_the_first_recording() {
    let (site, config) = site();
    let message = b"Message-ID: <new@x>\n\nbody\n";
    give(&config, "scuba", message);
    site.postgres.psql("UPDATE onedrop_message SET recorded_at = '2026-03-01 12:34:56+00'");
    give(&config, "otto", message);
    let mut session = site.dovecot.session("otto");
    session.command("EXAMINE INBOX").expect("examine");
    let answer = session.command("FETCH 1 INTERNALDATE").expect("fetch");
    let text: String = answer.untagged.iter().map(|line| line.text.as_str()).collect();
    assert!(text.contains("01-Mar-2026 12:34:56 +0000"), "{text}");
}

/// local(8) prepends a line, which a message follows; whatever else begins with `From ` is the
/// message itself.
#[test]
fn a_message_that_begins_like_an_mbox_is_delivered_as_it_is() {
    let site = Site::embedded();
    let config = site.config("etc", "");
    let own: [&[u8]; 6] = [
        b"From here",
        b"From here\n",
        b"From here\r\n",
        b"From here\rMessage-ID: <cr@x>\r\rbody\r",
        b"From here\rMessage-ID: <cr-lf@x>\r\rbody\nmore\n",
        b"From : lisa@gmail.com\n\nbody\n",
    ];
    for (n, message) in own.into_iter().enumerate() {
        let account = format!("own{n}");
        assert!(give(&config, &account, message).starts_with("stored "));
        assert!(give(&config, &account, message).starts_with("already there "));
        assert_eq!(site.inbox(&account), [message], "{}", message.escape_ascii());
    }
    for (n, line) in ["From lisa@gmail.com  Sun Nov 22 10:00:00 2026\n", "From lisa@gmail.com\r\n"]
        .iter()
        .enumerate()
    {
        let account = format!("mbox{n}");
        let message = format!("Message-ID: <mbox{n}@x>\n\nbody\n");
        give(&config, &account, format!("{line}{message}").as_bytes());
        assert_eq!(site.inbox(&account), [message.as_bytes()]);
    }
}

/// A machine that says the same each time it has something to say: with a constant Message-ID and
/// no Date, or the other way round, or a clock that was never set.
#[test]
fn each_alarm_arrives_though_it_reads_like_the_last_one() {
    let site = Site::embedded();
    let config = site.config("etc", "");
    for (n, constant) in [
        "Subject: on battery\n",
        "Message-ID: <alarm@ups>\n",
        "Date: Sun, 22 Nov 2026 10:00:00 +0000\n",
        "Message-ID: <alarm@ups>\nDate: Thu, 01 Jan 1970 00:00:07 +0000\n",
        "Message-ID: <alarm@ups>\nDate: Wed, 01 Jan 2098 00:00:07 +0000\n",
    ]
    .into_iter()
    .enumerate()
    {
        let account = format!("alarm{n}");
        let came_in = |id: &str| {
            format!(
                "Received: from ups by mx (Postfix)\n\tid {id}; Sun, 22 Nov 2026 10:00:05 +0000\n\
                 {constant}\non battery\n"
            )
        };
        let [first, second] = ["A1", "B2"].map(came_in);
        for (message, said) in
            [(&first, "stored "), (&second, "stored "), (&first, "already "), (&second, "already ")]
        {
            assert!(
                give(&config, &account, message.as_bytes()).starts_with(said),
                "{constant}{said}"
            );
        }
        // Sent in again on this host: its own Received is on top, and the message is the one that
        // is there.
        let again =
            format!("Received: by mx (Postfix) id C3; Sun, 22 Nov 2026 11:00:00 +0000\n{first}");
        assert!(give(&config, &account, again.as_bytes()).starts_with("already "), "{constant}");
        let mut copies = site.inbox(&account);
        copies.sort_unstable();
        assert_eq!(copies, [first.as_bytes(), second.as_bytes()], "{constant}");
    }
}
