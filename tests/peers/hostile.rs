//! Peers that hang, drip, flood, lie or vanish, at every stage of a delivery: each run ends in 75
//! by its deadline and with bounded memory; and when the peer is well again, tries until 0 leave
//! exactly one copy in each mailbox, also where the copy was stored and only the answer was lost.
//!
//! A proxy stands between the binary and the real Postgres or Dovecot and fails at one chosen
//! point.

use std::io::Write;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::support::dovecot::{Dovecot, certificate};
use crate::support::postgres::Postgres;
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::sample::sample;
use crate::support::site::Site;
use crate::support::trial::{LETTERS, Letter, PATIENT, Run, for_each};
use crate::support::{TempRoot, chown_recursive, set_mode, wait_until};

const DEADLINE_SECS: u64 = 3;
/// A lease that runs out soon after a process that held it must have ended.
const SHORT: &str =
    "[lock]\nwait_secs = 0\nlease_secs = 4\n[limits]\ndeadline_secs = 3\nanswer_secs = 1\n";
/// Cases that mostly wait.
const AT_ONCE: usize = 12;

fn terms() -> String {
    format!("{LETTERS}{SHORT}")
}

/// A configuration whose way to the store goes through `proxy`.
fn by_store_proxy(site: &Site, name: &str, proxy: &Proxy, times: &str) -> PathBuf {
    let store = format!("store.url = \"imap://127.0.0.1:{}\"\n", proxy.port());
    site.config(name, &format!("{store}{LETTERS}{times}"))
}

/// The ledger at this URL, with its password.
fn with_password(url: &str) -> String {
    format!("[ledger]\nurl = \"{url}\"\npassword_file = \"$DIR/ledger.password\"\n")
}

/// A configuration whose way to the ledger goes through `proxy`.
fn by_ledger_proxy(site: &Site, name: &str, proxy: &Proxy) -> PathBuf {
    let (port, database) = (proxy.port(), site.postgres.database());
    let ledger = format!("ledger.url = \"postgres://onedrop@127.0.0.1:{port}/{database}\"\n");
    site.config(name, &format!("{ledger}{}", terms()))
}

fn imap_proxy(site: &Site) -> Proxy {
    Proxy::start(Upstream::Imap(site.dovecot.imap_port()))
}

fn postgres_proxy(site: &Site) -> Proxy {
    let socket = format!(".s.PGSQL.{}", site.postgres.port());
    Proxy::start(Upstream::Postgres(site.postgres.socket_dir().join(socket)))
}

/// What the first try, with the fault, must come to.
#[derive(Clone, Copy, Debug)]
enum First {
    Deferred,
    Delivered,
}
use First::{Deferred, Delivered};

/// How the copy in the INBOX got on record: by whoever stored it, or by a later look.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Origin {
    Stored,
    Found,
}
use Origin::{Found, Stored};

fn with_untagged_no(said: &[u8]) -> Vec<u8> {
    [b"* NO [ALERT] the disk is nearly full\r\n", said].concat()
}

fn with_non_ascii_ok(said: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(said);
    let Some(at) = text.find("] ").filter(|_| text.contains(" OK [APPENDUID ")) else {
        return said.to_vec();
    };
    let at = at + 2;
    [&said[..at], b"gro\xdf und \xf0\x9f\x93\xac abgelegt \xff\xfe\r\n"].concat()
}

#[test]
fn an_imap_server_that_fails_at_any_stage_defers_and_then_gets_one_copy() {
    use Fault::{Cut, Drip, Edit, Flood, Freeze, Say, SayAndCut};
    use Stage::{Answer, Append, Greeting, LastBytes, Login, MidLiteral};
    let site = Site::with_servers();
    let cases: &[(Stage, Fault, First, Origin)] = &[
        (Greeting, Freeze, Deferred, Stored),
        (Greeting, Cut, Deferred, Stored),
        (Greeting, Drip, Deferred, Stored),
        (Greeting, Flood(b""), Deferred, Stored),
        (Greeting, Flood(b"* OK "), Deferred, Stored),
        (Greeting, Say(b"* BYE too busy\r\n"), Deferred, Stored),
        (Greeting, Say(b"220 mail.axial.net ESMTP\r\n"), Deferred, Stored),
        (Greeting, Say(b"\xff\xfe\x00\x80\r\n"), Deferred, Stored),
        (Login, Freeze, Deferred, Stored),
        (Login, Cut, Deferred, Stored),
        (Login, Drip, Deferred, Stored),
        (Login, Flood(b"a1 OK "), Deferred, Stored),
        (Login, Say(b"* BYE go away\r\n"), Deferred, Stored),
        (Append, Freeze, Deferred, Stored),
        (Append, Cut, Deferred, Stored),
        (MidLiteral, Freeze, Deferred, Stored),
        (MidLiteral, Cut, Deferred, Stored),
        (MidLiteral, Say(b"* BYE shutting down\r\n"), Deferred, Stored),
        (MidLiteral, SayAndCut(b"* BYE shutting down\r\n"), Deferred, Stored),
        (LastBytes, Freeze, Deferred, Stored),
        (LastBytes, Cut, Deferred, Stored),
        (LastBytes, SayAndCut(b"* BYE shutting down\r\n"), Deferred, Stored),
        (Answer, Freeze, Deferred, Found),
        (Answer, Cut, Deferred, Found),
        (Answer, Drip, Deferred, Found),
        (Answer, Flood(b""), Deferred, Found),
        (Answer, Flood(b"* OK "), Deferred, Found),
        (Answer, Say(b"* NO not today\r\n"), Deferred, Found),
        (Answer, Say(b"* 7 EXISTS\r\nnonsense\r\n"), Deferred, Found),
        (Answer, SayAndCut(b"* BYE shutting down\r\n"), Deferred, Found),
        (Answer, Say(b"* 1 FETCH (BODY[] {4294967295}\r\n"), Deferred, Found),
        (Answer, Edit(with_untagged_no), Delivered, Stored),
        (Answer, Edit(with_non_ascii_ok), Delivered, Stored),
    ];
    let cases: Vec<_> = cases.iter().enumerate().collect();
    for_each(&cases, AT_ONCE, |(number, (stage, fault, first, then))| {
        let proxy = imap_proxy(&site);
        let letter = Letter::new(&format!("imap-{number}"));
        let name = |kind: &str| format!("imap-{number}-{kind}");
        let patient = by_store_proxy(&site, &name("patient"), &proxy, PATIENT);
        proxy.plan(*stage, *fault);
        match first {
            Deferred => {
                let short = by_store_proxy(&site, &name("short"), &proxy, SHORT);
                let end = letter.deliver(&short);
                end.is(75, "4.3.0 ").within(DEADLINE_SECS);
            }
            Delivered => drop(letter.deliver(&patient).is(0, "stored account=to-")),
        };
        assert!(proxy.reached() > 0, "nobody came to the fault");
        proxy.heal();
        letter.deliver_in_the_end(&patient);
        letter.stands_once(&site);
        assert_eq!(
            letter.was_found(&site),
            *then == Found,
            "whether the INBOX's copy was found by a look"
        );
    });
}

/// A message that fills every buffer on the way, and waits for the server's `+`.
#[test]
fn a_large_message_does_not_hang_on_a_server_that_stops_reading() {
    let site = Site::with_servers();
    let body =
        "a line of seventy-two characters and a line end, again and again......\n".repeat(60_000);
    let cases = [(Stage::Append, Stored), (Stage::MidLiteral, Stored), (Stage::Answer, Found)];
    for_each(&cases, cases.len(), |(stage, then)| {
        let proxy = imap_proxy(&site);
        let name = format!("large-{}", format!("{stage:?}").to_lowercase());
        let letter = Letter::with_body(&name, body.as_bytes());
        let config = by_store_proxy(&site, &name, &proxy, SHORT);
        proxy.plan(*stage, Fault::Freeze);
        letter.deliver(&config).is(75, "4.3.0 ").within(DEADLINE_SECS);
        assert!(proxy.reached() > 0, "nobody came to the fault");
        proxy.heal();
        letter.deliver_in_the_end(&config);
        letter.stands_once(&site);
        assert_eq!(
            letter.was_found(&site),
            *then == Found,
            "whether the INBOX's copy was found by a look"
        );
    });
}

/// Copies in doubt take a turn, others do not: what is asked of the ledger differs.
const DOUBT_OR_NOT: [bool; 2] = [false, true];

fn letter(site: &Site, name: &str, in_doubt: bool) -> Letter {
    let letter = Letter::new(name);
    if in_doubt {
        letter.leave_in_doubt(site);
    }
    letter
}

/// The answers of a whole delivery are counted first; then the connection is cut at each of them in
/// turn, and some are withheld or spoilt, as are some requests; in a full run all.
#[test]
fn a_postgres_that_fails_at_any_answer_defers_and_then_gets_one_copy() {
    let site = Site::with_servers();
    for in_doubt in DOUBT_OR_NOT {
        let (name, proxy) = (if in_doubt { "pg-doubt" } else { "pg" }, postgres_proxy(&site));
        // The first delivery of all asks more: it puts the configuration on record.
        let first = letter(&site, &format!("{name}-first"), in_doubt);
        first.deliver(&by_ledger_proxy(&site, &format!("{name}-first"), &proxy)).is(0, "stored");
        let proxy = postgres_proxy(&site);
        let count = letter(&site, &format!("{name}-count"), in_doubt);
        count.deliver(&by_ledger_proxy(&site, &format!("{name}-count"), &proxy)).is(0, "stored");
        let answers = proxy.answers();
        // The login, the record and two receipts; in doubt two turns as well.
        let least = if in_doubt { 8 } else { 4 };
        assert!(
            (least..=40).contains(&answers),
            "{answers} answers in a delivery, in doubt: {in_doubt}"
        );
        let mut cases = Vec::new();
        for at in 1..=answers {
            cases.push((Stage::Reply(at), Fault::Freeze));
            cases.push((Stage::Reply(at), Fault::Cut));
            cases.push((Stage::Request(at - 1), Fault::Freeze));
        }
        for at in [1, 2, answers / 2, answers] {
            cases.push((Stage::Reply(at), Fault::Drip));
            cases.push((Stage::Reply(at), Fault::Say(b"Z\x00\x00\x00\x00")));
        }
        let cases = sample(cases, 8, |(_, fault)| matches!(fault, Fault::Cut));
        fail_and_cure(&site, name, &cases, in_doubt);
    }
}

/// An answer whose end never comes is not collected until memory is full.
#[test]
fn a_postgres_that_floods_at_any_answer_defers_and_then_gets_one_copy() {
    let site = Site::with_servers();
    for (in_doubt, answers) in [(false, [1, 2, 3, 4]), (true, [1, 2, 6, 9])] {
        let mut cases = Vec::new();
        for at in answers {
            // No message has this type; its length says 2 GiB.
            cases.push((Stage::Reply(at), Fault::Flood(b"x\x7f\xff\xff\xff")));
            // A row of 1 GiB.
            cases.push((Stage::Reply(at), Fault::Flood(b"D\x40\x00\x00\x00")));
            // A small notice, and a large one.
            cases.push((Stage::Reply(at), Fault::Flood(b"N\x00\x00\x00\x05\x00N\x40\x00\x00\x00")));
        }
        fail_and_cure(&site, if in_doubt { "flood-doubt" } else { "flood" }, &cases, in_doubt);
    }
}

fn fail_and_cure(site: &Site, name: &str, cases: &[(Stage, Fault)], in_doubt: bool) {
    let cases: Vec<_> = cases.iter().enumerate().collect();
    for_each(&cases, AT_ONCE, |(number, (stage, fault))| {
        let proxy = postgres_proxy(site);
        let name = format!("{name}-{number}");
        let letter = letter(site, &name, in_doubt);
        let config = by_ledger_proxy(site, &name, &proxy);
        proxy.plan(*stage, *fault);
        let end = letter.deliver(&config);
        let reached = proxy.reached() > 0;
        // Requests that travel together have passed before the first one's answer.
        assert!(reached || matches!(stage, Stage::Request(_)), "nobody came to the fault");
        // A ledger that is lost while a copy is written may be reached again for the receipt.
        let may_recover = !reached || !matches!(fault, Fault::Freeze | Fault::Drip);
        match may_recover && end.status.success() {
            true => end.is(0, "stored"),
            false => end.is(75, "4.3.0 "),
        };
        end.within(DEADLINE_SECS);
        proxy.heal();
        letter.deliver_in_the_end(&config);
        letter.stands_once(site);
    });
}

/// Holds a delivery of a letter at every stage, freezes the real server, and lets them go on
/// against it.
fn freeze_at_each(
    stages: &[Stage],
    letter: impl Fn(&str) -> Letter,
    proxy: impl Fn() -> Proxy,
    config: impl Fn(&str, &Proxy) -> PathBuf,
) -> Frozen {
    let mut held: Vec<_> = stages
        .iter()
        .enumerate()
        .map(|(at, stage)| {
            let (proxy, letter) = (proxy(), letter(&format!("frozen-{at}")));
            let config = config(&format!("frozen-{at}"), &proxy);
            proxy.plan(*stage, Fault::Hold);
            let run = letter.start(&config);
            (proxy, letter, config, run)
        })
        .collect();
    // Where requests travel together no delivery comes to a stage between them: it ends well.
    for (proxy, _, _, run) in &mut held {
        assert!(wait_until(Duration::from_secs(20), || proxy.reached() > 0 || run.has_ended()));
    }
    Frozen(held)
}

struct Frozen(Vec<(Proxy, Letter, PathBuf, Run)>);

impl Frozen {
    fn held(&self) -> usize {
        self.0.iter().filter(|(proxy, ..)| proxy.reached() > 0).count()
    }

    /// To be called while the server is frozen: all that were held end in 75, or without the copy
    /// in Sent.
    fn end(self, deadline_secs: u64) -> Vec<(Proxy, Letter, PathBuf)> {
        for (proxy, ..) in &self.0 {
            proxy.release();
        }
        let ended = self.0.into_iter().map(|(proxy, letter, config, run)| {
            let was_held = proxy.reached() > 0;
            let end = run.end();
            match was_held {
                true if end.status.success() => {
                    end.is(0, "stored").says("mailbox=Sent, kept for later: store: ")
                }
                true => end.is(75, "4.3.0 "),
                false => end.is(0, "stored"),
            };
            end.within(deadline_secs);
            (proxy, letter, config)
        });
        ended.collect()
    }
}

/// Six deliveries must have come to their stage before the first one's deadline.
const UNHURRIED: &str =
    "[lock]\nwait_secs = 0\nlease_secs = 8\n[limits]\ndeadline_secs = 5\nanswer_secs = 1\n";

/// Also with the last bytes in its socket: the APPEND is executed when it goes on, after its client
/// has given up.
#[test]
fn a_dovecot_that_is_stopped_at_any_stage_defers_and_then_has_one_copy() {
    use Stage::{Answer, Append, Greeting, LastBytes, Login, MidLiteral};
    let mut site = Site::with_own_dovecot();
    let stages = [Greeting, Login, Append, MidLiteral, LastBytes, Answer];
    let frozen = freeze_at_each(
        &stages,
        Letter::new,
        || imap_proxy(&site),
        |name, proxy| {
            let store = format!("store.url = \"imap://127.0.0.1:{}\"\n", proxy.port());
            site.config(name, &format!("{store}{LETTERS}{UNHURRIED}"))
        },
    );
    assert_eq!(frozen.held(), stages.len(), "too few were held");
    site.dovecot.pause();
    let ended = frozen.end(5);
    site.dovecot.resume();
    for_each(
        &ended.iter().map(|(_, letter, config)| (letter, config)).collect::<Vec<_>>(),
        6,
        |(letter, config)| {
            letter.deliver_in_the_end(config);
            letter.stands_once(&site);
        },
    );
}

#[test]
fn a_postgres_that_is_stopped_at_any_request_defers_and_then_gets_one_copy() {
    for (in_doubt, requests, least) in [(false, 6, 4), (true, 20, 6)] {
        let mut site = Site::with_own_postgres();
        let stages: Vec<Stage> = (0..requests).map(Stage::Request).collect();
        let frozen = freeze_at_each(
            &stages,
            |name| letter(&site, name, in_doubt),
            || postgres_proxy(&site),
            |name, proxy| {
                let ledger = format!(
                    "ledger.url = \"postgres://onedrop@127.0.0.1:{}/onedrop\"\n",
                    proxy.port()
                );
                site.config(name, &format!("{ledger}{LETTERS}{UNHURRIED}"))
            },
        );
        assert!(
            frozen.held() >= least,
            "too few were held: {}, in doubt: {in_doubt}",
            frozen.held()
        );
        site.postgres.pause();
        let ended = frozen.end(5);
        site.postgres.resume();
        for (proxy, ..) in &ended {
            proxy.heal();
        }
        let letters: Vec<_> = ended.iter().map(|(_, letter, config)| (letter, config)).collect();
        for_each(&letters, 6, |(letter, config)| {
            letter.deliver_in_the_end(config);
            letter.stands_once(&site);
        });
    }
}

/// Dovecot waits for a mailbox's lock in the middle of an APPEND, by default for longer than a
/// lease; when the lock comes free, a look may go through before that append does. With a wait
/// shorter than our answer's, as in the shipped file, it says NO, and nothing is left over that
/// comes to its end after another try.
#[test]
fn mailboxes_that_are_locked_for_longer_than_a_lease_get_one_copy() {
    let site = Site::with(Dovecot::start_that_waits_for_locks(1));
    let limits =
        "[lock]\nwait_secs = 0\nlease_secs = 6\n[limits]\ndeadline_secs = 5\nanswer_secs = 3\n";
    let store = "store.lock_timeout_secs = 2\n";
    let config = site.config("locked", &format!("{store}{LETTERS}{limits}"));
    let letters: Vec<Letter> =
        (0..8).map(|number| Letter::new(&format!("locked-{number}"))).collect();
    for letter in &letters {
        Letter::between("ann", &letter.recipient(), 1).deliver_in_the_end(&config);
    }
    let locks: Vec<_> =
        letters.iter().map(|letter| site.dovecot.lock_mailbox(&letter.recipient())).collect();
    let try_all = || letters.iter().map(|letter| letter.start(&config)).collect::<Vec<_>>();
    let first: Vec<_> = try_all().into_iter().map(Run::end).collect();
    for end in &first {
        end.is(75, "4.").within(5);
    }
    assert!(
        first.iter().any(|end| end.out.contains("waiting for lock")),
        "no append came to the lock: {first:?}"
    );
    let live = "SELECT count(*) FROM onedrop_copy WHERE leased_until > clock_timestamp()";
    // What waits for the lock stands in tmp/.
    let at_the_lock = || {
        letters.iter().any(|letter| {
            let tmp = site.dovecot.maildir(&letter.recipient()).join("tmp");
            std::fs::read_dir(tmp).is_ok_and(|mut files| files.next().is_some())
        })
    };
    // On a busy host none may come to the lock in its time: then all are tried again.
    let again = (0..10).find_map(|_| {
        let ran_out = wait_until(Duration::from_secs(30), || site.postgres.psql(live) == "0");
        assert!(ran_out, "{} leases live on", site.postgres.psql(live));
        let runs = try_all();
        if wait_until(Duration::from_secs(8), at_the_lock) {
            return Some(runs);
        }
        runs.into_iter().for_each(|run| drop(run.end()));
        None
    });
    let again = again.expect("an append that comes to the lock");
    drop(locks);
    again.into_iter().for_each(|run| drop(run.end()));
    for letter in &letters {
        letter.deliver_in_the_end(&config);
    }
    // Whatever Dovecot may have left to do, it does now.
    thread::sleep(Duration::from_secs(2));
    let copies: Vec<_> = letters
        .iter()
        .map(|letter| site.dovecot.uids(&letter.recipient(), "INBOX").len())
        .collect();
    assert_eq!(copies, [2; 8], "with the one that made the mailbox");
}

/// The resolver's configuration is replaced for that one process, in a mount namespace that ends
/// with it. A store that is not found is given up while there is time to give the leases back, so
/// the next try is not kept waiting.
#[test]
fn a_name_server_that_does_not_answer_defers() {
    let site = Site::with_servers();
    let id = std::process::id();
    let address = format!("127.{}.{}.{}", 64 + (id >> 16) % 64, (id >> 8) % 256, id % 254 + 1);
    let name_server =
        UdpSocket::bind((address.as_str(), 53)).expect("port 53 of a loopback address of our own");
    let resolver = format!("nameserver {address}\noptions timeout:20 attempts:3\n");
    let resolver = site.root.write("resolv.conf", resolver);
    let cases = [
        ("store", "imap://store.example.org"),
        ("ledger", "postgres://onedrop@ledger.example.org/onedrop?sslmode=disable"),
    ];
    let limits =
        "[lock]\nwait_secs = 0\nlease_secs = 60\n[limits]\ndeadline_secs = 20\nanswer_secs = 17\n";
    let terms = format!("{LETTERS}{limits}");
    for_each(&cases, 2, |(name, far)| {
        let letter = Letter::new(&format!("name-{name}"));
        let config = site.config(name, &format!("{name}.url = \"{far}\"\n{terms}"));
        let mut command = Command::new("unshare");
        let bind =
            "mount --bind \"$1\" \"$(readlink -f /etc/resolv.conf)\" && shift && exec \"$@\"";
        command.args(["--mount", "sh", "-c", bind, "sh"]).arg(&resolver);
        let inner = letter.command(&config);
        command.arg(inner.get_program()).args(inner.get_args()).current_dir("/");
        let mut run = Run::start(command);
        run.feed(letter.bytes().to_vec());
        run.end().is(75, "4.3.0 ").within(20);
        // The name has an address now.
        let config = site.config(name, &terms);
        letter.deliver(&config).is(0, "stored");
        letter.stands_once(&site);
    });
    name_server.set_nonblocking(true).expect("socket");
    let mut asked = Vec::new();
    let mut question = [0; 512];
    while let Ok(count) = name_server.recv(&mut question) {
        asked.push(String::from_utf8_lossy(&question[..count]).into_owned());
    }
    for name in ["store", "ledger"] {
        assert!(
            asked.iter().any(|question| question.contains(name)),
            "{name} was not looked up: {asked:?}"
        );
    }
}

#[test]
fn a_message_that_drips_or_never_ends_is_not_delivered() {
    let site = Site::with_servers();
    let letter = Letter::new("drip");
    let config = site.config("drip", &terms());
    let mut run = Run::start(letter.command(&config));
    let mut stdin = run.stdin();
    let bytes = letter.bytes().to_vec();
    let dripping = thread::spawn(move || {
        // Until its reader is gone; one byte in 100 ms, for 60 s at most.
        for byte in bytes.iter().cycle().take(600) {
            if stdin.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    run.end().is(75, "4.3.0 deadline of 3 s passed").within(DEADLINE_SECS);
    dripping.join().expect("the writer ends with its reader");
    letter.deliver_in_the_end(&config).is(0, "stored");
    letter.stands_once(&site);

    // All of it is read, in vain, and not kept beyond the configured limit.
    let letter = Letter::new("endless");
    let limited = terms().replace("[limits]", "[limits]\nmessage_bytes = 1000000");
    let config = site.config("endless", &limited);
    let mut run = Run::start(letter.command(&config));
    let mut stdin = run.stdin();
    let flooding = thread::spawn(move || while stdin.write_all(&[b'x'; 65536]).is_ok() {});
    run.end().is(75, "4.3.0 deadline of 3 s passed").within(DEADLINE_SECS);
    flooding.join().expect("the writer ends with its reader");
    assert_eq!(site.dovecot.count(&letter.recipient(), "INBOX"), 0);
}

#[test]
fn a_wrong_password_defers_and_shows_nowhere() {
    let site = Site::with_servers();
    let store = site.config("store", &terms());
    let tcp = with_password(&site.postgres.url_tcp());
    let ledger = site.config("ledger", &format!("{tcp}{}", terms()));
    // What is certainly ours to mend is 4.3.5; a mail server may mean the account, as long as no
    // other one has logged in.
    for (name, config, file, status) in
        [("store", store, "password", "4.3.0 "), ("ledger", ledger, "ledger.password", "4.3.5 ")]
    {
        let letter = Letter::new(&format!("password-{name}"));
        let file = config.with_file_name(file);
        let right = std::fs::read(&file).expect("password");
        std::fs::write(&file, "mistyped-secret\n").expect("password");
        let end = letter.deliver(&config);
        end.is(75, status).says(name).within(DEADLINE_SECS);
        assert!(!end.out.contains("mistyped"), "{end:?}");
        std::fs::write(&file, right).expect("password");
        letter.deliver_in_the_end(&config).is(0, "stored");
        letter.stands_once(&site);
    }
}

#[test]
fn a_server_whose_certificate_nobody_vouches_for_gets_no_mail() {
    let site = Site::with_servers();
    let trusted = format!("\nca_file = \"{}\"", site.dovecot.ca_file().display());
    // Another authority, with the very same name.
    let other = TempRoot::new();
    certificate(&other);
    let wrong = format!("\nca_file = \"{}\"", other.join("cert.pem").display());
    let implicit = format!("url = \"imaps://localhost:{}\"", site.dovecot.imaps_port());
    let started =
        format!("url = \"imap://localhost:{}\"\nstarttls = true", site.dovecot.imap_port());
    for (name, store) in [("implicit", implicit), ("starttls", started)] {
        let letter = Letter::new(&format!("tls-{name}"));
        for (kind, authority) in [("system", ""), ("wrong", &wrong)] {
            let more = format!("[store]\n{store}{authority}\n{}", terms());
            let config = site.config(&format!("{name}-{kind}"), &more);
            letter.deliver(&config).is(75, "4.3.0 ").says("TLS").within(DEADLINE_SECS);
        }
        let more = format!("[store]\n{store}{trusted}\n{}", terms());
        let config = site.config(&format!("{name}-trusted"), &more);
        letter.deliver_in_the_end(&config).is(0, "stored");
        letter.stands_once(&site);
    }
}

#[test]
fn a_ledger_whose_certificate_nobody_vouches_for_gets_no_password() {
    let keys = TempRoot::new();
    certificate(&keys);
    chown_recursive(&keys, "postgres");
    set_mode(&keys.join("key.pem"), 0o600);
    let at = keys.display();
    let with_tls =
        format!("ssl = on\nssl_cert_file = '{at}/cert.pem'\nssl_key_file = '{at}/key.pem'\n");
    let site = Site::of(Postgres::start_with(&with_tls), Dovecot::shared(), TempRoot::new());
    let letter = Letter::new("tls");
    let url = site.postgres.url_tcp().replace("127.0.0.1", "localhost");
    let url = with_password(&format!("{url}?sslmode=require"));
    let config = site.config("untrusted", &format!("{url}{}", terms()));
    letter.deliver(&config).is(75, "4.3.0 ledger: ").says("certificate").within(DEADLINE_SECS);
    let trusted = format!("{url}ca_file = \"{at}/cert.pem\"\n{}", terms());
    let trusted = site.config("trusted", &trusted);
    letter.deliver_in_the_end(&trusted).is(0, "stored");
    letter.stands_once(&site);
    // And one that has no TLS, where TLS was asked for.
    let bare = Postgres::shared();
    let url = url.replace(&site.postgres.port().to_string(), &bare.port().to_string());
    let config = site.config("bare", &format!("{url}{}", terms()));
    letter.deliver(&config).is(75, "4.3.0 ledger: ").says("TLS").within(DEADLINE_SECS);
}
