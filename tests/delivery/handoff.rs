//! Recipients' own copies go to a real Dovecot's LMTP (`store.lmtp`); in doubt they are looked for
//! wherever its filters, or their owners, have put them.

use std::path::{Path, PathBuf};

use crate::support::letters::from_lisa;
use crate::support::lmtp_peer::{Act, LmtpPeer};
use crate::support::site::{STORY, Site, deliver, run};

const TO: [&str; 4] = ["-f", "lisa@gmail.com", "-d", "doug+jazz@mail.axial.net"];

/// A site that hands over to `socket`.
fn config(site: &Site, name: &str, socket: &Path, more: &str) -> PathBuf {
    site.config(name, &format!("{STORY}[store]\nlmtp = \"unix:{}\"\n{more}", socket.display()))
}

/// Delivers Lisa's letter to Doug; returns the exit status and what Postfix hears.
fn to_doug(config: &Path, id: &str) -> (Option<i32>, String) {
    let output = deliver(config, &TO, &from_lisa(id));
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The row of Doug's copy: epoch, whether it is placed, and its receipt.
fn row(site: &Site) -> String {
    site.postgres.psql(
        "SELECT epoch || ' ' || (placed_at IS NOT NULL) || ' ' || \
         coalesce(receipt_kind || ':' || receipt, '-') FROM \
         onedrop_copy WHERE account = 'doug'",
    )
}

fn value(site: &Site) -> String {
    site.postgres.psql("SELECT encode(value, 'hex') FROM onedrop_copy WHERE account = 'doug'")
}

/// The lease of whoever died has run out.
fn end_leases(site: &Site) {
    site.postgres.psql(
        "UPDATE onedrop_copy SET leased_until = clock_timestamp() - interval '1 second' WHERE \
         placed_at IS NULL",
    );
}

/// A stand-in before Dovecot's LMTP.
fn peer(site: &Site) -> LmtpPeer {
    let peer = LmtpPeer::start(&site.root.join("peer"));
    peer.pass_on_to(&site.dovecot.lmtp_socket());
    peer
}

#[test]
fn the_recipients_copy_is_handed_over_and_sent_is_written_by_imap() {
    let site = Site::with_own_dovecot();
    let config = config(&site, "etc", &site.dovecot.lmtp_socket(), "");
    let sent = from_lisa("handed");
    let (status, said) = to_doug(&config, "handed");
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("handed over account=doug lmtp="), "{said}");

    // Byte for byte, but for the fields that the server and we put before it.
    let [copy] = &site.dovecot.messages("doug", "INBOX")[..] else { panic!("one copy") };
    let text = String::from_utf8_lossy(copy);
    let ours = format!("X-Onedrop-Copy: {}\r\nX-Onedrop-Try: 1\r\n", value(&site));
    let (trace, message) = text.split_once(&ours).expect(&text);
    assert!(trace.starts_with("Return-Path: <lisa@gmail.com>\r\nDelivered-To: doug\r\n"), "{text}");
    let body = String::from_utf8_lossy(&sent).replace('\n', "\r\n");
    let begins = body.find("Received:").or_else(|| body.find("From:")).unwrap_or(0);
    assert_eq!(message, &body[begins..], "{body}");

    let [in_sent] = &site.dovecot.messages("lisa", "Sent")[..] else { panic!("one in Sent") };
    assert!(!String::from_utf8_lossy(in_sent).contains("X-Onedrop"), "shared copies are as before");
    assert!(row(&site).starts_with("1 true lmtp:"), "{}", row(&site));
    // Once more: it is on record, and the server is not asked.
    let (status, said) = to_doug(&config, "handed");
    assert!(status == Some(0) && said.contains("already there account=doug lmtp="), "{said}");
    assert_eq!(site.dovecot.count("doug", "INBOX"), 1);
    let trace = run(&config, &["trace", "doug"]);
    let trace = String::from_utf8_lossy(&trace.stdout).into_owned();
    assert!(trace.contains("handed over account=doug lmtp="), "{trace}");
}

#[test]
fn a_lost_answer_is_settled_by_a_look_wherever_the_copy_was_filed() {
    for filed_in in ["INBOX", "Lists/Jazz"] {
        let site = Site::with_own_dovecot();
        let peer = peer(&site);
        let config = config(&site, "etc", peer.socket(), "");
        peer.plan(".", Act::Cut);
        let (status, said) = to_doug(&config, "lost");
        assert!(status == Some(75) && said.contains("in doubt"), "{said}");
        if filed_in != "INBOX" {
            let mut imap = site.dovecot.session("doug");
            for command in ["CREATE Lists/Jazz", "SELECT INBOX", "MOVE 1 Lists/Jazz"] {
                assert!(imap.command(command).expect(command).is_ok(), "{command}");
            }
        }
        // Still leased: no other delivery may try.
        assert_eq!(to_doug(&config, "lost").0, Some(75));
        end_leases(&site);
        let (status, said) = to_doug(&config, "lost");
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains("found account=doug lmtp="), "{said}");
        assert!(said.contains(filed_in), "{said}");
        assert_eq!(peer.taken().len(), 1, "handed over once");
        let count = |mailbox| site.dovecot.count("doug", mailbox);
        assert_eq!(count("INBOX") + count("Lists/Jazz"), 1);
    }
}

#[test]
fn what_was_not_stored_is_handed_over_again() {
    let site = Site::with_own_dovecot();
    let peer = LmtpPeer::start(&site.root.join("peer"));
    let config = config(&site, "etc", peer.socket(), "");
    peer.plan(".", Act::Cut);
    assert_eq!(to_doug(&config, "again").0, Some(75));
    end_leases(&site);
    peer.pass_on_to(&site.dovecot.lmtp_socket());
    let (status, said) = to_doug(&config, "again");
    assert!(status == Some(0) && said.contains("handed over account=doug"), "{said}");
    let [copy] = &site.dovecot.messages("doug", "INBOX")[..] else { panic!("one copy") };
    assert!(String::from_utf8_lossy(copy).contains("X-Onedrop-Try: 2\r\n"));
}

#[test]
fn the_senders_own_copy_and_a_forged_value_do_not_pass_for_the_recipients() {
    let site = Site::with_own_dovecot();
    let peer = LmtpPeer::start(&site.root.join("peer"));
    let config = config(&site, "etc", peer.socket(), "");
    peer.plan(".", Act::Cut);
    assert_eq!(to_doug(&config, "equal").0, Some(75));
    // An equal message, and one with our value further down.
    let equal = String::from_utf8(from_lisa("equal")).expect("text").replace('\n', "\r\n");
    let other = format!("X-Onedrop-Copy: {}\r\n", "0".repeat(32));
    let forged = format!("{other}X-Onedrop-Copy: {}\r\n{equal}", value(&site));
    let mut imap = site.dovecot.session("doug");
    for message in [&equal, &forged] {
        assert!(imap.append("INBOX", "", message.as_bytes()).expect("APPEND").is_ok());
    }
    end_leases(&site);
    peer.pass_on_to(&site.dovecot.lmtp_socket());
    let (status, said) = to_doug(&config, "equal");
    assert!(status == Some(0) && said.contains("handed over account=doug"), "{said}");
    assert_eq!(site.dovecot.count("doug", "INBOX"), 3);
}

#[test]
fn a_refusal_ends_as_the_same_by_imap_does() {
    let site = Site::with_own_dovecot();
    let peer = peer(&site);
    let config = config(&site, "etc", peer.socket(), "");
    for (n, (answer, status, text)) in [
        ("550 5.1.1 <doug> User doesn't exist: doug", 75, "4."),
        ("552 5.2.2 <doug> Quota exceeded", 75, "4.2.2"),
        ("451 4.3.0 <doug> Too many concurrent deliveries for user", 0, "handed over account=doug"),
    ]
    .into_iter()
    .enumerate()
    {
        peer.plan("RCPT", Act::say(answer));
        let id = format!("refused-{n}");
        let (ended, said) = to_doug(&config, &id);
        assert!(ended == Some(status) && said.contains(text), "{answer}: {said}");
        // Nothing is in doubt, and the next try need not wait.
        let (ended, said) = to_doug(&config, &id);
        assert_eq!(ended, Some(0), "{answer}: {said}");
        assert_eq!(site.dovecot.count("doug", "INBOX"), n + 1);
    }
}

/// What `check` warns of: Dovecot ends an account's name at its own delimiter.
#[test]
fn a_copy_for_an_account_with_dovecots_delimiter_goes_to_another() {
    let site = Site::with_own_dovecot();
    let more = "[directory]\nrecipient_delimiter = \"\"\n";
    let story = STORY.replace("[directory]\n", more);
    let lmtp = format!("[store]\nlmtp = \"unix:{}\"\n", site.dovecot.lmtp_socket().display());
    let (status, said) = to_doug(&site.config("etc", &format!("{story}{lmtp}")), "cut");
    assert!(status == Some(0) && said.contains("handed over account=doug+jazz lmtp="), "{said}");
    assert_eq!((site.dovecot.count("doug", "INBOX"), site.dovecot.files("doug+jazz")), (1, 0));
}

/// It is not another delivery of this message that is waited for, and the server says why.
#[test]
fn a_server_that_is_busy_with_the_account_has_the_last_word() {
    let site = Site::with_own_dovecot();
    let peer = peer(&site);
    let config = config(&site, "etc", peer.socket(), "[lock]\nwait_secs = 0\n");
    let busy = "451 4.3.0 <doug> Too many concurrent deliveries for user";
    peer.plan("RCPT", Act::say(busy));
    let (status, said) = to_doug(&config, "busy");
    assert!(status == Some(75) && said.starts_with("4.3.0 store: contended: "), "{said}");
    assert!(said.contains(busy) && said.contains(&site.root.display().to_string()), "{said}");
    let trace = run(&config, &["trace", "doug"]);
    let trace = String::from_utf8_lossy(&trace.stdout).into_owned();
    assert!(trace.contains(busy), "{trace}");
    // Its lease is given back.
    let (status, said) = to_doug(&config, "busy");
    assert_eq!(status, Some(0), "{said}");
}

/// Two tries of one copy stand, as after a server that executed a hand-off later than the bounds.
#[test]
fn verify_takes_out_the_later_try_and_nothing_of_the_first() {
    let site = Site::with_own_dovecot();
    let config = config(&site, "etc", &site.dovecot.lmtp_socket(), "");
    assert_eq!(to_doug(&config, "tries").0, Some(0));
    let [copy] = &site.dovecot.messages("doug", "INBOX")[..] else { panic!("one copy") };
    let text = String::from_utf8_lossy(copy).into_owned();
    let mut imap = site.dovecot.session("doug");
    for mailbox in ["Lists", "Late", "Copies"] {
        assert!(imap.command(&format!("CREATE {mailbox}")).expect("CREATE").is_ok());
    }
    // A filter's second copy of the same try, a later try beside the first and where nothing else
    // stands, and an equal message of Doug's own.
    let late = text.replace("X-Onedrop-Try: 1\r\n", "X-Onedrop-Try: 2\r\n");
    let own = &text[text.find("From:").expect("From")..];
    for (mailbox, message) in
        [("Lists", text.as_str()), ("INBOX", &late), ("Late", &late), ("Copies", own)]
    {
        assert!(imap.append(mailbox, "", message.as_bytes()).expect("APPEND").is_ok());
    }
    let ages = "placed_at = placed_at - interval '1 hour', epoch = 2, settled_at = NULL";
    site.postgres.psql(&format!("UPDATE onedrop_copy SET {ages} WHERE account = 'doug'"));
    site.postgres.psql(
        "INSERT INTO onedrop_unsettled SELECT id, clock_timestamp() - interval '1 minute' FROM \
         onedrop_copy WHERE account = 'doug' ON CONFLICT DO NOTHING",
    );
    let verify = |args: &[&str]| {
        let output = run(&config, &[&["verify", "--account", "doug"], args].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let count = |mailbox| site.dovecot.count("doug", mailbox);
    let counts = || ["INBOX", "Lists", "Late", "Copies"].map(count);
    let (status, said) = verify(&[]);
    assert!(status == Some(1) && said.contains("lmtp=INBOX/2 is a later try's"), "{said}");
    assert_eq!(counts(), [2, 1, 1, 1]);
    let (_, said) = verify(&["--repair"]);
    assert!(said.contains("lmtp=INBOX/2 was a later try's"), "{said}");
    assert_eq!(counts(), [1, 1, 1, 1], "the only copy in a mailbox stays: {said}");
    let (status, said) = verify(&["--repair"]);
    assert!(status == Some(0) && !said.contains("later try"), "{said}");
    // That it lies nowhere is no fault.
    for mailbox in ["INBOX", "Lists", "Late"] {
        for command in [&format!("SELECT {mailbox}"), "STORE 1 +FLAGS (\\Deleted)", "EXPUNGE"] {
            assert!(imap.command(command).expect(command).is_ok(), "{command}");
        }
    }
    site.postgres.psql("UPDATE onedrop_copy SET settled_at = NULL WHERE account = 'doug'");
    let (status, said) = verify(&["--repair"]);
    assert_eq!(status, Some(0), "{said}");
}

/// A record that was forgotten has a new value: what was handed over under the old one is found as
/// an equal message that was handed over, and Doug's own equal one in another mailbox is not.
#[test]
fn a_forgotten_copy_is_found_where_it_was_filed() {
    let site = Site::with_own_dovecot();
    let config = config(&site, "etc", &site.dovecot.lmtp_socket(), "");
    assert_eq!(to_doug(&config, "forgotten").0, Some(0));
    let mut imap = site.dovecot.session("doug");
    for command in ["CREATE Lists", "CREATE Own", "SELECT INBOX", "MOVE 1 Lists"] {
        assert!(imap.command(command).expect(command).is_ok(), "{command}");
    }
    let forget = || {
        let forgotten = run(&config, &["forget", "<forgotten@mail.gmail.com>"]);
        assert!(forgotten.status.success(), "{forgotten:?}");
    };
    forget();
    let (status, said) = to_doug(&config, "forgotten");
    assert!(status == Some(0) && said.contains("found account=doug lmtp=Lists/1"), "{said}");
    // Without it, one of his own does not count.
    let [copy] = &site.dovecot.messages("doug", "Lists")[..] else { panic!("one copy") };
    let own = String::from_utf8_lossy(copy).into_owned();
    let own = &own[own.find("From:").expect("From")..];
    assert!(imap.append("Own", "", own.as_bytes()).expect("APPEND").is_ok());
    for command in ["SELECT Lists", "STORE 1 +FLAGS (\\Deleted)", "EXPUNGE"] {
        assert!(imap.command(command).expect(command).is_ok(), "{command}");
    }
    forget();
    let (status, said) = to_doug(&config, "forgotten");
    assert!(status == Some(0) && said.contains("handed over account=doug"), "{said}");
    assert_eq!(site.dovecot.count("doug", "INBOX"), 1);
}

#[test]
fn a_look_goes_over_two_hundred_mailboxes_and_one_that_cannot_be_opened_fails_it() {
    let site = Site::with_own_dovecot();
    let peer = peer(&site);
    let config = config(&site, "etc", peer.socket(), "");
    peer.plan(".", Act::Cut);
    assert_eq!(to_doug(&config, "many").0, Some(75));
    let mut imap = site.dovecot.session("doug");
    for number in 0..200 {
        assert!(imap.command(&format!("CREATE Folder/{number}")).expect("CREATE").is_ok());
    }
    for command in ["SELECT INBOX", "MOVE 1 Folder/199"] {
        assert!(imap.command(command).expect(command).is_ok(), "{command}");
    }
    end_leases(&site);
    let closed = site.dovecot.maildir("doug").join(".Folder.7");
    crate::support::set_mode(&closed, 0);
    let (status, said) = to_doug(&config, "many");
    assert!(status == Some(75) && said.contains("Folder/7"), "{said}");
    crate::support::set_mode(&closed, 0o700);
    let began = std::time::Instant::now();
    let (status, said) = to_doug(&config, "many");
    eprintln!("a delivery with a look in 201 mailboxes: {:?}", began.elapsed());
    assert!(status == Some(0) && said.contains("found account=doug lmtp=Folder/199/1"), "{said}");
    assert_eq!(peer.taken().len(), 1);
}
