//! A look by size in a mailbox where very many messages have about the sought size. With
//! ONEDROP_CANDIDATES the number is another, and what each look took is printed.

use std::fs;
use std::time::Instant;

use super::*;
use crate::support::dovecot::MAIL_USER;

#[test]
fn one_is_found_among_very_many_of_its_size() {
    let asked = std::env::var("ONEDROP_CANDIDATES").ok();
    let count: usize = asked.as_ref().map_or(1500, |count| count.parse().expect("a number"));
    let rig = ImapRig::new();
    let store = rig.store();
    // Each third has no Message-ID; each third one that cannot be searched for; of each hundred ten
    // do not fit a first piece.
    let letter = |n: usize| {
        let id = match n % 3 {
            0 => String::new(),
            1 => format!("Message-ID: <a b{n}@c>\r\n"),
            _ => format!("Message-ID: <ab{n}@c>\r\n"),
        };
        let body = "x".repeat(if n.is_multiple_of(10) { 9000 } else { 4000 });
        format!("{id}Subject: alarm {n:07}\r\nDate: Sun, 22 Nov 2026 10:00:00 +0000\r\n\r\n{body}")
    };
    let folder = rig.maildir("doug").join("cur");
    for sub in ["cur", "new", "tmp"] {
        fs::create_dir_all(folder.with_file_name(sub)).expect("a folder");
    }
    for n in 0..count {
        let (bytes, secs) = (letter(n), 1_700_000_000 + n);
        let size = bytes.len();
        let name = format!("{secs}.M{n}P1.x,S={size},W={size}:2,S");
        fs::write(folder.join(name), bytes).expect("a message");
    }
    let owner = format!("{MAIL_USER}:");
    let owned = rig.maildir("doug").parent().expect("a home").to_owned();
    let run = std::process::Command::new("chown").arg("-R").arg(owner).arg(owned).status();
    assert!(run.expect("chown").success());
    for (n, what) in [(0, "none"), (1, "unsearchable"), (10, "unsearchable, large"), (30, "large")]
    {
        let began = Instant::now();
        let found = patient_look_back(store.as_ref(), &message(letter(n)));
        let found_uid = found.as_ref().and_then(Receipt::as_uid);
        let Some((_, uid)) = found_uid else { panic!("{what}: {found:?}") };
        assert_eq!(uid as usize, n + 1, "{what}");
        if asked.is_some() {
            println!("{count}, id {what}: found in {:?}", began.elapsed());
        }
    }
    let began = Instant::now();
    assert_eq!(patient_look_back(store.as_ref(), &message(letter(3 * count))), None);
    if asked.is_some() {
        println!("{count}: not found in {:?}", began.elapsed());
    }
}

/// One that takes as long as it takes.
fn patient_look_back(store: &dyn AnyStore, mail: &Message) -> Option<Receipt> {
    let until = Instant::now() + Duration::from_secs(600);
    let reservation = (Need::Look, recorded_at(), &ample());
    let found = try_reserve_back(store, &inbox(), mail, (true, None), reservation, |slot| {
        slot.expect("a slot").look(until)
    });
    found.expect("reserve").expect("look")
}

/// However much of a message there is, it is not taken for another one.
#[test]
fn the_beginning_of_a_message_never_speaks_against_it() {
    let mails: Vec<Message> = odd_messages().into_iter().map(message).collect();
    for (n, mail) in mails.iter().enumerate() {
        let bytes = mail.own_copy();
        for end in (0..bytes.len().min(6000)).chain([bytes.len()]) {
            let start = &bytes[..end];
            assert!(mail.identity().may_begin_with(start), "{n}: {:.200}", start.escape_ascii());
        }
    }
    let other = |text: &str| !mails[1].identity().may_begin_with(text.as_bytes());
    for shown in ["Message-ID: <x@y>\r\nS", "A: 1\r\n\r\n", "no field\r\n", "MESSAGE-id:\n\n"] {
        assert!(other(shown), "{shown}");
    }
    for open in ["Message-ID: <x@y>\r\n", "A: 1\r\n", "A: 1\r\n\r", "Message-ID", ""] {
        assert!(!other(open), "{open}");
    }
}
