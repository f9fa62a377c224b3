//! A mail server's LMTP (`store.lmtp`) that hangs, drips, floods, lies or vanishes, at every step
//! of the hand-off: each run ends in 75 by its deadline and with bounded memory, or delivered; and
//! when the server is well again, tries until 0 leave exactly one copy in each mailbox.
//!
//! A proxy stands between the binary and the real Dovecot, which has no guard: the look alone finds
//! what was stored.

use std::path::PathBuf;

use crate::support::dovecot::Dovecot;
use crate::support::filters::{Filters, Guard};
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::sample::sample;
use crate::support::site::Site;
use crate::support::trial::{LETTERS, Letter, PATIENT, for_each};

const DEADLINE_SECS: u64 = 3;
/// A lease that runs out soon after a process that held it must have ended.
const SHORT: &str =
    "[lock]\nwait_secs = 0\nlease_secs = 4\n[limits]\ndeadline_secs = 3\nanswer_secs = 1\n";
/// Cases that mostly wait.
const AT_ONCE: usize = 12;

/// For megabytes.
const LARGE_SECS: u64 = 8;
const LARGE: &str =
    "[lock]\nwait_secs = 0\nlease_secs = 12\n[limits]\ndeadline_secs = 8\nanswer_secs = 3\n";

fn by_proxy(site: &Site, name: &str, proxy: &Proxy, terms: &str) -> PathBuf {
    let store = format!("store.lmtp = \"lmtp://127.0.0.1:{}\"\n", proxy.port());
    site.config(name, &format!("{store}{LETTERS}{terms}"))
}

/// What the first try, with the fault, must come to.
#[derive(Clone, Copy, Debug)]
enum First {
    Deferred,
    Delivered,
}
use First::{Deferred, Delivered};

/// How the copy in the INBOX got on record: as handed over, or by a later look.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Origin {
    Handed,
    Found,
}
use Origin::{Found, Handed};

/// Like a server that has two recipients.
fn said_twice(said: &[u8]) -> Vec<u8> {
    [said, said].concat()
}

fn on_many_lines(_said: &[u8]) -> Vec<u8> {
    [b"250-2.0.0 one\r\n".repeat(20), b"250 2.0.0 and the last\r\n".to_vec()].concat()
}

fn with_odd_bytes(_said: &[u8]) -> Vec<u8> {
    b"250 2.0.0 gro\xdf und \xf0\x9f\x93\xac abgelegt \xff\xfe\x00\r\n".to_vec()
}

fn with_a_bare_code(_said: &[u8]) -> Vec<u8> {
    b"250\r\n".to_vec()
}

fn without_extensions(_said: &[u8]) -> Vec<u8> {
    b"250 elsewhere.example\r\n".to_vec()
}

#[test]
fn an_lmtp_server_that_fails_at_any_step_defers_and_then_gets_one_copy() {
    use Fault::{Cut, Drip, Edit, Flood, Freeze, Say, SayAndCut};
    use Stage::{After, Answer, Before, Greeting, LastBytes, MidLiteral};
    /// All that a whole dialog says, before any of it was asked.
    const AHEAD: &[u8] = b"250 2.1.0 OK\r\n250 2.1.5 OK\r\n354 go\r\n250 2.0.0 <x> a Saved\r\n";
    let filters = Filters::new();
    let site = Site::with(Dovecot::start_high_performance_with(&filters.conf(Guard::Off)));
    let cases: &[(Stage, Fault, First, Origin)] = &[
        (Greeting, Freeze, Deferred, Handed),
        (Greeting, Cut, Deferred, Handed),
        (Greeting, Drip, Deferred, Handed),
        (Greeting, Flood(b""), Deferred, Handed),
        (Greeting, Flood(b"220-"), Deferred, Handed),
        (Greeting, Say(b"421 4.3.2 too busy\r\n"), Deferred, Handed),
        (Greeting, Say(b"554 5.0.0 go away\r\n"), Deferred, Handed),
        (Greeting, Say(b"* OK IMAP4rev1 ready\r\n"), Deferred, Handed),
        (Greeting, Say(b"\xff\xfe\x00\x80\r\n"), Deferred, Handed),
        (Before("LHLO"), Freeze, Deferred, Handed),
        (After("LHLO"), Freeze, Deferred, Handed),
        (After("LHLO"), Cut, Deferred, Handed),
        (After("LHLO"), Drip, Deferred, Handed),
        (After("LHLO"), Flood(b"250-"), Deferred, Handed),
        (After("LHLO"), Say(b"500 5.5.1 what?\r\n"), Deferred, Handed),
        (After("LHLO"), Say(b"250 one\r\n250 two\r\n250 three\r\n250 four\r\n"), Deferred, Handed),
        (After("LHLO"), Edit(without_extensions), Delivered, Handed),
        (After("MAIL"), Freeze, Deferred, Handed),
        (After("MAIL"), Cut, Deferred, Handed),
        (After("MAIL"), Drip, Deferred, Handed),
        (After("MAIL"), Say(b"451 4.3.0 later\r\n"), Deferred, Handed),
        (After("MAIL"), Say(b"550 5.7.1 not from you\r\n"), Deferred, Handed),
        (After("MAIL"), Say(AHEAD), Deferred, Handed),
        (After("RCPT"), Freeze, Deferred, Handed),
        (After("RCPT"), Cut, Deferred, Handed),
        (After("RCPT"), Flood(b"250 "), Deferred, Handed),
        (After("RCPT"), Say(b"451 4.3.0 Too many concurrent deliveries\r\n"), Deferred, Handed),
        (After("RCPT"), Say(b"421 4.3.2 shutting down\r\n"), Deferred, Handed),
        (After("RCPT"), Say(b"250 2.1.5 OK\r\n250 2.1.5 OK\r\n"), Deferred, Handed),
        (After("DATA"), Freeze, Deferred, Handed),
        (After("DATA"), Cut, Deferred, Handed),
        (After("DATA"), Drip, Deferred, Handed),
        (After("DATA"), Say(b"250 2.0.0 <x> a Saved\r\n"), Deferred, Handed),
        (After("DATA"), Say(b"451 4.3.0 later\r\n"), Deferred, Handed),
        // Its answer comes before the message.
        (After("DATA"), Say(b"354 go\r\n250 2.0.0 <x> a Saved\r\n"), Deferred, Handed),
        (MidLiteral, Freeze, Deferred, Handed),
        (MidLiteral, Cut, Deferred, Handed),
        (MidLiteral, SayAndCut(b"421 4.3.2 shutting down\r\n"), Deferred, Handed),
        (LastBytes, Freeze, Deferred, Handed),
        (LastBytes, Cut, Deferred, Handed),
        (LastBytes, SayAndCut(b"421 4.3.2 shutting down\r\n"), Deferred, Handed),
        (Answer, Freeze, Deferred, Found),
        (Answer, Cut, Deferred, Found),
        (Answer, Drip, Deferred, Found),
        (Answer, Flood(b""), Deferred, Found),
        (Answer, Flood(b"250-"), Deferred, Found),
        (Answer, Flood(b"250 "), Deferred, Found),
        (Answer, Say(b"451 4.2.0 lock timed out\r\n"), Deferred, Found),
        (Answer, Say(b"452 4.2.2 mailbox is full\r\n"), Deferred, Found),
        (Answer, Say(b"550 5.0.0 no\r\n"), Deferred, Found),
        (Answer, Say(b"554 5.3.0 no\r\n"), Deferred, Found),
        (Answer, Say(b"354 more?\r\n"), Deferred, Found),
        (Answer, Say(b"220 a greeting\r\n"), Deferred, Found),
        (Answer, Say(b"nonsense\r\n"), Deferred, Found),
        (Answer, Say(b"25\r\n"), Deferred, Found),
        (Answer, Say(b"2500 ok\r\n"), Deferred, Found),
        (Answer, SayAndCut(b"421 4.3.2 shutting down\r\n"), Deferred, Found),
        (Answer, SayAndCut(b"250-2.0.0 Sav"), Deferred, Found),
        (Answer, Edit(said_twice), Delivered, Handed),
        (Answer, Edit(on_many_lines), Delivered, Handed),
        (Answer, Edit(with_odd_bytes), Delivered, Handed),
        (Answer, Edit(with_a_bare_code), Delivered, Handed),
    ];
    // What is said might be believed.
    let says_something = |(_, case): &(_, &(Stage, Fault, _, _))| {
        matches!(case.0, Answer) || matches!(case.1, Say(_) | SayAndCut(_) | Edit(_))
    };
    let cases = sample(cases.iter().enumerate().collect(), 10, says_something);
    for_each(&cases, AT_ONCE, |(number, (stage, fault, first, then))| {
        let proxy = Proxy::start(Upstream::Lmtp(site.dovecot.lmtp_port()));
        let name = format!("lmtp-{number}");
        let letter = Letter::new(&name);
        let patient = by_proxy(&site, &format!("{name}-patient"), &proxy, PATIENT);
        proxy.plan(*stage, *fault);
        match first {
            Deferred => {
                let end = letter.deliver(&by_proxy(&site, &name, &proxy, SHORT));
                end.is(75, "4.").within(DEADLINE_SECS);
            }
            Delivered => drop(letter.deliver(&patient).is(0, "handed over account=to-")),
        };
        assert!(proxy.reached() > 0, "nobody came to the fault");
        proxy.heal();
        letter.deliver_in_the_end(&patient);
        is_there_once(&letter, &site);
        assert_eq!(
            letter.was_found(&site),
            *then == Found,
            "whether a look found the INBOX's copy"
        );
    });
}

/// Like [`Letter::stands_once`], where the server has not said which UID it is.
#[track_caller]
fn is_there_once(letter: &Letter, site: &Site) {
    for (account, mailbox) in [(letter.recipient(), "INBOX"), (letter.author(), "Sent")] {
        assert_eq!(site.dovecot.count(&account, mailbox), 1, "copies in {account}/{mailbox}");
        let placed = site.postgres.psql(&format!(
            "SELECT count(placed_at) || ' of ' || count(*) FROM onedrop_copy WHERE account = \
             '{account}' AND mailbox = '{mailbox}'"
        ));
        assert_eq!(placed, "1 of 1", "on record of {account}/{mailbox}");
    }
}

/// A message that fills every buffer on the way.
#[test]
fn a_large_message_does_not_hang_on_an_lmtp_server_that_stops_reading() {
    let filters = Filters::new();
    let site = Site::with(Dovecot::start_high_performance_with(&filters.conf(Guard::Off)));
    let body =
        "a line of seventy-two characters and a line end, again and again......\n".repeat(60_000);
    let early: &[u8] = b"250 2.0.0 <x> a Saved\r\n";
    let cases = [
        (Stage::Before("DATA"), Fault::Freeze),
        (Stage::MidLiteral, Fault::Freeze),
        // An answer while the message is still on its way.
        (Stage::MidLiteral, Fault::Say(early)),
        (Stage::Answer, Fault::Freeze),
    ];
    let cases: Vec<_> = cases.iter().enumerate().collect();
    for_each(&cases, cases.len(), |(number, (stage, fault))| {
        let proxy = Proxy::start(Upstream::Lmtp(site.dovecot.lmtp_port()));
        let name = format!("large-{number}");
        let letter = Letter::with_body(&name, body.as_bytes());
        let config = by_proxy(&site, &name, &proxy, LARGE);
        proxy.plan(*stage, *fault);
        let end = letter.deliver(&config);
        end.is(75, "4.").within(LARGE_SECS);
        assert!(proxy.reached() > 0, "nobody came to the fault: {end:?}");
        proxy.heal();
        letter.deliver_in_the_end(&config);
        is_there_once(&letter, &site);
    });
}
