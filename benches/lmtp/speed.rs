//! Messages a second, beside Dovecot's own LMTP server: few and many connections, one and many mailboxes.

use crate::load::{self, Clients, LOCAL_PARTS, MAILBOXES, Peer, Target};
use crate::support::dovecot::Dovecot;
use crate::support::lmtp::Lmtp;
use crate::support::postgres::Postgres;
use crate::table::Times;
use crate::world::Bench;

const ROUNDS: usize = 5;
/// Connections, and messages in a run of two or three seconds.
const LOADS: [(usize, usize); 3] = [(1, 1400), (4, 2000), (10, 2400)];

pub fn run() {
    let bench = Bench::new();
    let dovecot = Dovecot::start_high_performance_with(LOCAL_PARTS);
    let postgres = Postgres::start();
    let ledger = format!("url = \"{}\"\nprepare = true", postgres.url_socket());
    let imap = bench.config("imap", &ledger, &bench.imap_store(&dovecot));
    let maildir = bench.config("maildir", &ledger, &bench.maildir_store(&dovecot));
    bench.migrate(&imap);
    println!("| connections | mailboxes | medians of {ROUNDS}, in turn | messages/s | of Dovecot's | target |");
    println!("|---|---:|---|---:|---:|---|");
    // One after the other: Dovecot's imap makes and removes a file for each message, and ext4 without a journal searches
    // past every inode that was freed in the last minutes, whoever wants a new one.
    for (name, tag, config) in [("Dovecot's Maildirs", "maildir", &maildir), ("IMAP", "imap", &imap)] {
        let ours = Lmtp::start(config);
        let theirs = format!("peer-{tag}");
        let peers = [
            Peer { name: &format!("onedrop lmtp, Postgres + {name}"), socket: ours.socket(), tag },
            Peer { name: "Dovecot's lmtp", socket: dovecot.lmtp_socket(), tag: &theirs },
        ];
        for kept in [true, false] {
            for (sessions, messages) in LOADS {
                for mailboxes in [1, MAILBOXES] {
                    one_load(&peers, &dovecot, Clients { sessions, kept }, messages, mailboxes);
                }
            }
        }
    }
}

/// All peers in turn, every other round backwards; the last one is who the others are compared with.
fn one_load(peers: &[Peer<'_>], dovecot: &Dovecot, clients: Clients, messages: usize, mailboxes: usize) {
    let Clients { sessions, kept } = clients;
    let mut times = vec![Vec::with_capacity(ROUNDS); peers.len()];
    // The first round makes mailboxes and does not count.
    for round in 0..=ROUNDS {
        let mut order: Vec<usize> = (0..peers.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let peer = &peers[at];
            let target = match mailboxes {
                // A mailbox that has grown makes everybody slower.
                1 => Target::One(format!("{}-{sessions}-{kept}-{round}", peer.tag)),
                _ => Target::Many(peer.tag.to_owned()),
            };
            let warm = if mailboxes == 1 { 2 * sessions } else { MAILBOXES };
            load::send(peer, dovecot, &target, clients, warm);
            // What the warming left to be written is nobody's to pay.
            nix::unistd::sync();
            if round > 0 {
                times[at].push(load::send(peer, dovecot, &target, clients, messages));
            }
        }
    }
    let rates: Vec<f64> =
        times.into_iter().map(|times| messages as f64 * 1000.0 / Times::of(times).median_ms()).collect();
    let peer_rate = rates.last().copied().unwrap_or(f64::NAN);
    for (at, (peer, rate)) in peers.iter().zip(&rates).enumerate() {
        let ratio = rate / peer_rate;
        let judged = if at + 1 < peers.len() { verdict(ratio, mailboxes) } else { "none".to_owned() };
        let how = if kept { "kept" } else { "one a message" };
        println!("| {sessions}, {how} | {mailboxes} | {} | {rate:.0} | {ratio:.2} | {judged} |", peer.name);
    }
}

/// At least as fast, and with many mailboxes half as fast again is the aim.
fn verdict(ratio: f64, mailboxes: usize) -> String {
    let target = if ratio >= 1.0 { "at least 1.0: met" } else { "at least 1.0: MISSED" };
    match (mailboxes, ratio >= 1.5) {
        (1, _) => target.to_owned(),
        (_, true) => format!("{target}; aim 1.5: met"),
        (_, false) => format!("{target}; aim 1.5: MISSED"),
    }
}
