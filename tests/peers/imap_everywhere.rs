//! The look for a handed-over copy in all mailboxes, with a server that renames, hides and forgets
//! while it is asked.

use onedrop::store::TrustSearch;
use onedrop::store::{
    Copy, CopySearch, FoundCopy, HandOff, LookedBack, Mailboxes, Mark, StoreError, Unindexed,
};

use crate::imap_script::{
    CAPABILITIES, LETTER, ScriptedServer, World, copy_of, inbox, letter, soon,
};

const VALUE: &str = "07070707070707070707070707070707";
const OTHER: &str = "08080808080808080808080808080808";
const FIELDS: &str = "BODY[HEADER.FIELDS (X-ONEDROP-COPY X-ONEDROP-TRY)]<0>";
/// What is sought, as it stands in a mailbox, below our fields.
const TEXT: &[u8] = b"Message-ID: <a@b>\r\nSubject: s\r\n\r\nbody\x80\r\n";

/// The copy with [`VALUE`], as a delivery looks for it.
fn look(world: &World, looks_back: bool) -> Result<Vec<FoundCopy>, StoreError> {
    look_since(world, looks_back, None)
}

/// And completes a look back.
fn look_since(
    world: &World,
    looks_back: bool,
    looked: Option<&LookedBack>,
) -> Result<Vec<FoundCopy>, StoreError> {
    let letter = letter(LETTER);
    let handed = HandOff {
        value: [7; 16],
        epoch: 2,
        again: false,
        sender: "",
        recipient: "",
        filter_fields: "x-spam-flag",
    };
    let copy = Copy { handed: Some(handed), looks_back, looked, ..copy_of(&letter) };
    let sought = CopySearch { at_most: 9, unindexed: Unindexed::All, ..copy.sought() };
    world.store.find(&inbox(), &sought, soon())
}

/// Mailbox, UID and try of what was found.
fn places(found: &[FoundCopy]) -> Vec<String> {
    let place = |one: &FoundCopy| {
        let handed = one.handed.as_ref().expect("a handed copy");
        format!("{} {:?} {}", one.to_record(), handed.epoch, one.marked_deleted)
    };
    found.iter().map(place).collect()
}

fn list(server: &mut ScriptedServer, mailboxes: &[&str]) {
    server.expect("LIST \"\" \"*\"");
    for mailbox in mailboxes {
        server.say(format!("* LIST () \"/\" {mailbox}\r\n"));
    }
    server.reply("OK listed");
}

fn examine(server: &mut ScriptedServer, mailbox: &str, count: u32) {
    server.expect(&format!("EXAMINE \"{mailbox}\""));
    server.say(format!("* {count} EXISTS\r\n* OK [UIDVALIDITY 7] fine\r\n"));
    server.reply("OK open");
}

/// EXAMINE and SEARCH, one after the other, with these hits.
fn search(server: &mut ScriptedServer, mailbox: &str, hits: &str) {
    examine(server, mailbox, 9);
    server.expect(&format!("UID SEARCH SINCE 20-Nov-2026 HEADER X-Onedrop-Copy {VALUE}"));
    server.say(format!("* SEARCH {hits}\r\n"));
    server.reply("OK found");
}

fn no_search(server: &mut ScriptedServer, mailbox: &str) {
    server.answer(&format!("EXAMINE \"{mailbox}\""), "NO [NONEXISTENT] gone");
    server.expect(&format!("UID SEARCH SINCE 20-Nov-2026 HEADER X-Onedrop-Copy {VALUE}"));
    server.reply("BAD no mailbox");
    // Asked once more.
    server.answer(&format!("EXAMINE \"{mailbox}\""), "NO [NONEXISTENT] gone");
}

/// The fields of these messages; what is asked for is in `set`.
fn read(server: &mut ScriptedServer, set: &str, messages: &[(u32, &str)]) {
    let names = "BODY.PEEK[HEADER.FIELDS (X-ONEDROP-COPY X-ONEDROP-TRY)]<0.4096>";
    server.expect(&format!("UID FETCH {set} ({names})"));
    for (number, (uid, fields)) in messages.iter().enumerate() {
        server.say(format!(
            "* {} FETCH (UID {uid} {FIELDS} {{{}}}\r\n{fields})\r\n",
            number + 1,
            fields.len()
        ));
    }
    server.reply("OK read");
}

/// All of one message.
fn read_whole(server: &mut ScriptedServer, uid: u32, text: &[u8]) {
    let items = "(FLAGS INTERNALDATE RFC822.SIZE BODY.PEEK[]<0.1048576>)";
    server.expect(&format!("UID FETCH {uid} {items}"));
    let (size, date) = (text.len(), "INTERNALDATE \"21-Nov-2026 00:00:01 +0000\"");
    let head = format!("* 1 FETCH (UID {uid} FLAGS () {date} RFC822.SIZE {size} BODY[]<0> ");
    server.say([format!("{head}{{{size}}}\r\n").as_bytes(), text, b")\r\n"].concat());
    server.reply("OK read");
}

fn fields(values: &[&str], tries: &str) -> String {
    let values: String = values.iter().map(|one| format!("X-Onedrop-Copy: {one}\r\n")).collect();
    format!("{values}{tries}\r\n")
}

#[test]
fn only_the_first_value_counts_and_the_first_try_comes_first() {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        list(&mut server, &["INBOX", "Lists"]);
        search(&mut server, "INBOX", "3 4");
        search(&mut server, "Lists", "5 6");
        examine(&mut server, "INBOX", 9);
        let later = fields(&[VALUE], "X-Onedrop-Try: 2\r\nX-Onedrop-Try: 1\r\n");
        let forged = fields(&[OTHER, VALUE], "X-Onedrop-Try: 1\r\n");
        read(&mut server, "3:4", &[(3, &later), (4, &forged)]);
        read_whole(&mut server, 3, TEXT);
        examine(&mut server, "Lists", 9);
        let longer = fields(&[&format!("{VALUE}00")], "");
        read(&mut server, "5:6", &[(5, &fields(&[VALUE], "X-Onedrop-Try: 1\r\n")), (6, &longer)]);
        read_whole(&mut server, 5, TEXT);
    });
    let found = look(&world, false).expect("a look");
    assert_eq!(places(&found), ["lmtp=Lists/5 Some(1) false", "lmtp=INBOX/3 Some(2) false"]);
    world.end();
}

/// The value leaves the site with what a filter forwards: alone it proves nothing.
#[test]
fn what_has_the_value_and_another_content_is_not_the_copy() {
    let forged = |head: &str| [head.as_bytes(), TEXT].concat();
    let head = format!("X-Onedrop-Copy: {VALUE}\r\nX-Onedrop-Try: 1\r\n");
    let texts = [
        forged(&format!("{head}Subject: another\r\n")),
        // The copy below what is shown of it.
        forged(&format!("Subject: another\r\n{head}")),
        [TEXT, b"more\r\n"].concat(),
    ];
    let is_it = forged(&format!("Received: by us\r\n{head}"));
    for (text, expected) in texts.iter().map(|text| (text, 0)).chain([(&is_it, 1)]) {
        let text = text.clone();
        let world = World::new(move |listener| {
            let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
            list(&mut server, &["INBOX"]);
            search(&mut server, "INBOX", "3");
            examine(&mut server, "INBOX", 9);
            let there = [(3, &*fields(&[VALUE], "X-Onedrop-Try: 1\r\n"))];
            read(&mut server, "3", &there);
            read_whole(&mut server, 3, &text);
            if expected == 0 {
                // It is still there.
                read(&mut server, "3", &there);
            }
        });
        assert_eq!(places(&look(&world, false).expect("a look")).len(), expected);
        world.end();
    }
}

/// What the account sends goes to the mailbox for that by another way, with the fields that its
/// sender wrote.
#[test]
fn the_mailbox_of_what_is_sent_is_not_searched() {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        list(&mut server, &["Sent", "INBOX"]);
        search(&mut server, "INBOX", "");
    });
    assert_eq!(places(&look(&world, false).expect("a look")), [""; 0]);
    world.end();
    let marked = format!("{CAPABILITIES} SPECIAL-USE LIST-EXTENDED");
    let world = World::new(move |listener| {
        let mut server = ScriptedServer::logged_in(&listener, &marked);
        server.expect("LIST \"\" \"*\" RETURN (SPECIAL-USE)");
        server.say("* LIST (\\Sent) \"/\" Outgoing\r\n* LIST () \"/\" INBOX\r\n");
        server.say("* LIST () \"/\" Sent\r\n");
        server.reply("OK listed");
        search(&mut server, "INBOX", "");
        search(&mut server, "Sent", "");
    });
    assert_eq!(places(&look(&world, false).expect("a look")), [""; 0]);
    world.end();
}

/// What is taken out there is gone from where it lies, and may be the only copy in that mailbox.
#[test]
fn a_mailbox_that_shows_what_lies_in_others_is_not_searched() {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        server.expect("LIST \"\" \"*\"");
        server.say("* LIST (\\All) \"/\" virtual/All\r\n* LIST () \"/\" INBOX\r\n");
        server.say("* LIST (\\FLAGGED) \"/\" Starred\r\n* LIST (\\Important) \"/\" Work\r\n");
        server.reply("OK listed");
        search(&mut server, "INBOX", "");
        search(&mut server, "Work", "");
    });
    assert_eq!(places(&look(&world, false).expect("a look")), [""; 0]);
    world.end();
}

/// The server has failed over to one that lacks what came last, or the mailbox was restored.
#[test]
fn a_mailbox_that_is_as_before_its_mark_is_searched_whole() {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        list(&mut server, &["INBOX"]);
        let examine_below = |server: &mut ScriptedServer| {
            server.expect("EXAMINE \"INBOX\"");
            server.say("* 1 EXISTS\r\n* OK [UIDVALIDITY 7] fine\r\n* OK [UIDNEXT 4] next\r\n");
            server.reply("OK open");
        };
        let search = |server: &mut ScriptedServer, criteria: &str, hits: &str| {
            examine_below(server);
            server.answer(&format!("UID SEARCH UID 12:* {criteria}"), "OK nothing");
            examine_below(server);
            server.expect(&format!("UID SEARCH {criteria}"));
            server.say(format!("* SEARCH {hits}\r\n"));
            server.reply("OK found");
        };
        search(&mut server, &format!("HEADER X-Onedrop-Copy {VALUE}"), "3");
        examine_below(&mut server);
        read(&mut server, "3", &[(3, &fields(&[VALUE], "X-Onedrop-Try: 1\r\n"))]);
        read_whole(&mut server, 3, TEXT);
        search(&mut server, "HEADER Message-ID \"<a@b>\"", "");
    });
    let marks = [("\"INBOX\"".to_owned(), Mark { validity: 7, next: 12 })].into();
    let looked = LookedBack { found: None, marks };
    let found = look_since(&world, true, Some(&looked)).expect("a look");
    assert_eq!(places(&found), ["lmtp=INBOX/3 Some(1) false"]);
    world.end();
}

/// Its owner has renamed it after it was listed.
#[test]
fn of_a_mailbox_that_vanishes_the_new_name_is_searched() {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        list(&mut server, &["INBOX", "Old", "Ghost"]);
        search(&mut server, "INBOX", "");
        server.answer("EXAMINE \"Old\"", "NO [NONEXISTENT] gone");
        server.expect(&format!("UID SEARCH SINCE 20-Nov-2026 HEADER X-Onedrop-Copy {VALUE}"));
        server.reply("BAD no mailbox");
        server.answer("EXAMINE \"Ghost\"", "NO [NONEXISTENT] gone");
        server.expect(&format!("UID SEARCH SINCE 20-Nov-2026 HEADER X-Onedrop-Copy {VALUE}"));
        server.reply("BAD no mailbox");
        // Each asked once more.
        server.answer("EXAMINE \"Old\"", "NO [NONEXISTENT] gone");
        server.answer("EXAMINE \"Ghost\"", "NO [NONEXISTENT] gone");
        list(&mut server, &["INBOX", "New", "Ghost"]);
        search(&mut server, "New", "5");
        examine(&mut server, "New", 9);
        read(&mut server, "5", &[(5, &fields(&[VALUE], "X-Onedrop-Try: 1\r\n"))]);
        read_whole(&mut server, 5, TEXT);
    });
    assert_eq!(places(&look(&world, false).expect("a look")), ["lmtp=New/5 Some(1) false"]);
    world.end();
}

/// One that is listed and cannot be opened for want of being there does not hold up mail.
#[test]
fn a_mailbox_that_is_listed_and_is_not_there_has_nothing() {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        list(&mut server, &["Ghost"]);
        no_search(&mut server, "Ghost");
        list(&mut server, &["Ghost"]);
    });
    assert_eq!(places(&look(&world, false).expect("a look")), [""; 0]);
    world.end();
}

/// Filters file them apart: one that came first, marked as spam, is not the copy that is sought.
#[test]
fn what_is_equal_and_another_to_filters_is_not_the_copy() {
    let handed = |fields: &str| {
        let ours = format!("X-Onedrop-Copy: {OTHER}\r\nX-Onedrop-Try: 1\r\n");
        [ours.as_bytes(), fields.as_bytes(), TEXT].concat()
    };
    let (forged, real) = (handed("X-Spam-Flag: YES\r\n"), handed("X-Spam-Flag: NO\r\n"));
    let world = World::new(move |listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        list(&mut server, &["Spam"]);
        examine(&mut server, "Spam", 9);
        server.answer(&format!("UID SEARCH HEADER X-Onedrop-Copy {VALUE}"), "OK nothing");
        for _ in 0..2 {
            examine(&mut server, "Spam", 9);
            server.expect("UID SEARCH HEADER Message-ID \"<a@b>\"");
            server.say("* SEARCH 3 4\r\n");
            server.reply("OK found");
        }
        read_whole(&mut server, 4, &forged);
        read_whole(&mut server, 3, &real);
        read(&mut server, "3", &[(3, &fields(&[OTHER], "X-Onedrop-Try: 1\r\n"))]);
    });
    assert_eq!(places(&look(&world, true).expect("a look")), ["lmtp=Spam/3 None false"]);
    world.end();
}

/// Between the search and the reading: it lies somewhere else by now, as far as anyone knows.
#[test]
fn what_was_found_and_is_gone_before_it_was_read_fails_the_look() {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        list(&mut server, &["INBOX"]);
        search(&mut server, "INBOX", "3");
        examine(&mut server, "INBOX", 9);
        read(&mut server, "3", &[]);
    });
    let error = look(&world, false).expect_err("it may be anywhere");
    assert!(error.to_string().contains("was in INBOX and is gone"), "{error}");
    world.end();
}

/// The same of one that is equal, in a look for what an earlier row of the ledger may have named.
#[test]
fn what_is_equal_and_is_gone_before_its_value_was_read_fails_the_look() {
    for is_gone in [true, false] {
        let world = World::new(move |listener| {
            let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
            list(&mut server, &["INBOX"]);
            examine(&mut server, "INBOX", 9);
            server.answer(&format!("UID SEARCH HEADER X-Onedrop-Copy {VALUE}"), "OK nothing");
            for _ in 0..2 {
                examine(&mut server, "INBOX", 9);
                server.expect("UID SEARCH HEADER Message-ID \"<a@b>\"");
                server.say("* SEARCH 3\r\n");
                server.reply("OK found");
            }
            read_whole(&mut server, 3, TEXT);
            let fields = fields(&[OTHER], "X-Onedrop-Try: 1\r\n");
            let there = [(3, &*fields)];
            read(&mut server, "3", if is_gone { &[] } else { &there });
        });
        match look(&world, true) {
            Ok(found) => assert_eq!((places(&found).len(), is_gone), (1, false)),
            Err(error) => {
                assert!(
                    is_gone && error.to_string().contains("was in INBOX and is gone"),
                    "{error}"
                );
            }
        }
        world.end();
    }
}

#[test]
fn a_mailbox_that_cannot_be_opened_or_searched_fails_the_look() {
    for (examined, searched) in
        [("NO [NOPERM] no", "BAD no mailbox"), ("OK open", "NO [SERVERBUG] index is broken")]
    {
        let world = World::new(move |listener| {
            let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
            list(&mut server, &["INBOX"]);
            server.expect("EXAMINE \"INBOX\"");
            server.say("* 9 EXISTS\r\n* OK [UIDVALIDITY 7] fine\r\n");
            server.reply(examined);
            server.expect(&format!("UID SEARCH SINCE 20-Nov-2026 HEADER X-Onedrop-Copy {VALUE}"));
            server.reply(searched);
            if examined != "OK open" {
                server.answer("EXAMINE \"INBOX\"", examined);
            }
        });
        let error = look(&world, false).expect_err(examined);
        assert!(error.to_string().contains("INBOX"), "{error}");
        world.end();
    }
}

/// A server whose search shows nothing new: all that came since is read.
#[test]
fn where_search_is_not_trusted_what_came_since_is_read() {
    let script = |listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        list(&mut server, &["INBOX", "Lists"]);
        examine(&mut server, "INBOX", 0);
        examine(&mut server, "Lists", 2);
        server.expect("FETCH 1:2 (UID INTERNALDATE)");
        server.say("* 1 FETCH (UID 4 INTERNALDATE \"01-Oct-2026 00:00:00 +0000\")\r\n");
        server.say("* 2 FETCH (UID 5 INTERNALDATE \"21-Nov-2026 00:00:01 +0000\")\r\n");
        server.reply("OK read");
        examine(&mut server, "Lists", 2);
        read(&mut server, "5", &[(5, &fields(&[VALUE], "X-Onedrop-Try: 1\r\n"))]);
        read_whole(&mut server, 5, TEXT);
    };
    let world = World::with(script, |settings| settings.trust_search = TrustSearch::Never);
    assert_eq!(places(&look(&world, false).expect("a look")), ["lmtp=Lists/5 Some(1) false"]);
    world.end();
}

#[test]
fn where_search_is_not_trusted_a_look_back_reads_what_is_old() {
    let script = |listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        list(&mut server, &["Lists"]);
        examine(&mut server, "Lists", 1);
        server.expect("FETCH 1:1 (UID INTERNALDATE)");
        server.say("* 1 FETCH (UID 4 INTERNALDATE \"01-Feb-2026 00:00:00 +0000\")\r\n");
        server.reply("OK read");
        examine(&mut server, "Lists", 1);
        read(&mut server, "4", &[(4, &fields(&[VALUE], "X-Onedrop-Try: 1\r\n"))]);
        read_whole(&mut server, 4, TEXT);
        // And what is equal, whatever value it has.
        examine(&mut server, "Lists", 0);
        server.answer("UID SEARCH HEADER Message-ID \"<a@b>\"", "OK nothing");
        examine(&mut server, "Lists", 0);
    };
    let world = World::with(script, |settings| settings.trust_search = TrustSearch::Never);
    assert_eq!(places(&look(&world, true).expect("a look")), ["lmtp=Lists/4 Some(1) false"]);
    world.end();
}
