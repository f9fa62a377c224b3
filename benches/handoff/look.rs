//! A look for a copy in doubt in all mailboxes of its account: a session, the list of mailboxes, a
//! search in each, and the fields of what was found. The copy lies in the last one, or nowhere.

use std::time::{Duration, Instant, SystemTime};

use onedrop::directory::Destination;
use onedrop::login::LoginForm;
use onedrop::message::{DedupBy, Message};
use onedrop::net::pool::Limits;
use onedrop::store::TrustSearch;
use onedrop::store::imap::{ImapSettings, ImapStore, Tls};
use onedrop::store::{Copy, HandOff, Mailboxes, Unindexed};

use crate::load::short;
use crate::support::dovecot::Dovecot;
use crate::table::Times;
use crate::world::{STRANGER, message};

const MAILBOXES: [usize; 3] = [20, 200, 2000];
/// In each mailbox.
const MESSAGES: usize = 5;
const VALUE: [u8; 16] = [0xab; 16];

pub fn run() {
    let dovecot = Dovecot::start_high_performance();
    let rounds = if short() { 5 } else { 15 };
    println!(
        "| mailboxes, {MESSAGES} messages each | found, median ms of {rounds} | found nowhere | \
         without SEARCH | first look of all |\n|---:|---:|---:|---:|---:|"
    );
    for mailboxes in MAILBOXES {
        let account = format!("look{mailboxes}");
        fill(&dovecot, &account, mailboxes);
        let store = |trust| store(&dovecot, trust);
        let first = look(&store(TrustSearch::Auto), &account, VALUE, 1);
        let cells = [
            (TrustSearch::Auto, VALUE, 1),
            (TrustSearch::Auto, [0xcd; 16], 0),
            (TrustSearch::Never, VALUE, 1),
        ];
        let cells = cells.map(|(trust, value, count)| {
            // A new session each time, as a delivery after a failure has none.
            let looks = (0..rounds).map(|_| look(&store(trust), &account, value, count));
            format!("{:.0}", Times::of(looks.collect()).median_ms())
        });
        println!("| {mailboxes} | {} | {:.0} |", cells.join(" | "), crate::table::ms(first));
    }
}

/// Makes the mailboxes and their messages; one in the last has our field.
fn fill(dovecot: &Dovecot, account: &str, mailboxes: usize) {
    let mut imap = dovecot.session(account);
    // INBOX is one of them.
    for number in 1..mailboxes {
        let name = format!("Folder/{number:04}");
        assert!(imap.command(&format!("CREATE {name}")).expect("CREATE").is_ok(), "{name}");
        for _ in 0..MESSAGES {
            let text = message(STRANGER, 4096);
            assert!(imap.append(&name, "", &text).expect("APPEND").is_ok(), "{name}");
        }
    }
    let fields = format!("X-Onedrop-Copy: {}\r\nX-Onedrop-Try: 1\r\n", "ab".repeat(16));
    let copy = [fields.into_bytes(), message(STRANGER, 4096)].concat();
    let last = format!("Folder/{:04}", mailboxes - 1);
    assert!(imap.append(&last, "", &copy).expect("APPEND").is_ok());
    imap.command("LOGOUT").expect("LOGOUT");
}

fn store(dovecot: &Dovecot, trust_search: TrustSearch) -> ImapStore {
    let settings = ImapSettings {
        host: "127.0.0.1".to_owned(),
        port: dovecot.imap_port(),
        tls: Tls::None,
        ca_file: None,
        user: dovecot.master_user().to_owned(),
        login: LoginForm::Sasl,
        password: dovecot.password().into(),
        create_mailboxes: true,
        trust_search,
        lock_timeout: Duration::from_secs(5),
    };
    let idle = Duration::from_secs(60);
    ImapStore::new(settings, Limits { used: usize::MAX, per_key: 4, kept: 8, idle })
}

/// How long a look for `count` copies takes.
fn look(store: &ImapStore, account: &str, value: [u8; 16], count: usize) -> Duration {
    let letter = Message::new(message(STRANGER, 4096), DedupBy::Content);
    let copy = Copy {
        key: &[0; 32],
        head: b"",
        bytes: letter.own_copy(),
        identity: letter.identity(),
        recorded_at: SystemTime::now(),
        looks_back: false,
        looked: None,
        newer_than: None,
        handed: Some(HandOff {
            value,
            epoch: 2,
            again: false,
            sender: STRANGER,
            recipient: account,
            filter_fields: "",
        }),
    };
    let mut sought = copy.sought();
    sought.unindexed = Unindexed::All;
    let began = Instant::now();
    let found = store.find(&Destination::inbox(account), &sought, began + Duration::from_secs(60));
    let took = began.elapsed();
    assert_eq!(found.expect("a look").len(), count, "{account}");
    took
}
