//! An open loop: messages that come at a pace of their own, whether those before are answered or
//! not, as they come to a site. A message's time counts from when it was due to its answer, so
//! that a server that stands still is not asked less.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::load::{LOCAL_PARTS, MAILBOXES, NO_PLUGINS, Peer, TUNED_LMTP, Target, short, turns};
use crate::speed::Into;
use crate::support::dovecot::Dovecot;
use crate::support::lmtp::Launch;
use crate::support::lmtp_client::LmtpClient;
use crate::support::postgres::Postgres;
use crate::table::Times;
use crate::world::{Bench, MESSAGE_BYTES, STRANGER, message};

/// More than are ever busy where the server keeps up.
const CONNECTIONS: usize = 40;
const ROUNDS: usize = 3;

pub fn run() {
    paced(Into::Maildirs, 500);
    paced(Into::Imap, 250);
}

fn paced(into: Into, rate: u32) {
    let bench = Bench::new();
    let settings = format!("{LOCAL_PARTS}{TUNED_LMTP}{NO_PLUGINS}");
    let dovecot = Dovecot::start_high_performance_with(&settings);
    let postgres = Postgres::start();
    let (name, store) = match into {
        Into::Maildirs => ("into Dovecot's Maildirs", bench.maildir_store(&dovecot)),
        Into::Imap => ("by IMAP", bench.imap_store(&dovecot)),
    };
    let config = bench.config("paced", &format!("url = \"{}\"", postgres.url_socket()), &store);
    bench.migrate(&config);
    let ours = Launch::of(&config).start();
    let (ours_is, peers_is) = (format!("onedrop lmtp, {name}"), "Dovecot's lmtp, tuned");
    let peers = [
        Peer { name: &ours_is, socket: ours.socket(), tag: "ours" },
        Peer { name: peers_is, socket: dovecot.lmtp_socket(), tag: "peer" },
    ];
    let time = Duration::from_secs(if short() { 5 } else { 15 });
    let count = rate * u32::try_from(time.as_secs()).expect("seconds");
    let mut all = [Vec::new(), Vec::new()];
    // The first round makes mailboxes and does not count.
    for round in 0..=ROUNDS {
        for at in turns(round, peers.len()) {
            nix::unistd::sync();
            let times = send(&peers[at], &dovecot, count, time);
            if round > 0 {
                all[at].push(Times::of(times));
            }
        }
    }
    println!("| {rate} a second, {MAILBOXES} mailboxes | p50 ms | p90 | p99 | of the last's |");
    println!("|---|---:|---:|---:|---:|");
    let median = |rounds: &[Times], share| {
        let each = rounds.iter().map(|times| times.share_ms(share) / 1000.0);
        Times::of(each.map(Duration::from_secs_f64).collect()).median_ms()
    };
    let [_, last] = all.each_ref().map(|rounds| median(rounds, 0.99));
    for (peer, rounds) in peers.iter().zip(&all) {
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| median(rounds, share));
        println!("| {} | {p50:.1} | {p90:.1} | {p99:.1} | {:.2} |", peer.name, p99 / last);
    }
    println!();
}

/// Sends `count` messages in `time`, evenly; what each took.
fn send(peer: &Peer<'_>, dovecot: &Dovecot, count: u32, time: Duration) -> Vec<Duration> {
    let target = Target::Many(peer.tag.to_owned());
    let (accounts, before) = (target.accounts(), target.count(dovecot));
    let messages: Vec<Vec<u8>> = (0..count).map(|_| with_crlf()).collect();
    let (next, times) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let began = Instant::now() + Duration::from_millis(200);
    let work = || {
        let mut client = LmtpClient::welcome(&peer.socket);
        let mut own = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(message) = messages.get(number) else { break };
            let due = began + time.mul_f64(number as f64 / f64::from(count));
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let to = &accounts[number % accounts.len()];
            let envelope =
                format!("MAIL FROM:<{STRANGER}>\r\nRCPT TO:<{to}@mail.axial.net>\r\nDATA\r\n");
            client.send(envelope.as_bytes()).expect("a server");
            let replies = [(); 3].map(|()| client.reply().expect("a reply").code);
            assert_eq!(replies, [250, 250, 354], "{}", peer.name);
            client.send(message).expect("a server");
            assert_eq!(client.reply().expect("a reply").code, 250, "{}", peer.name);
            own.push(due.elapsed());
        }
        times.lock().expect("times").append(&mut own);
    };
    thread::scope(|scope| (0..CONNECTIONS).for_each(|_| drop(scope.spawn(work))));
    let arrived = target.count(dovecot) - before;
    assert_eq!(arrived, messages.len(), "{}: what arrived", peer.name);
    times.into_inner().expect("times")
}

fn with_crlf() -> Vec<u8> {
    let text = String::from_utf8(message(STRANGER, MESSAGE_BYTES)).expect("ASCII");
    format!("{}.\r\n", text.replace('\n', "\r\n")).into_bytes()
}
