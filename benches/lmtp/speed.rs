//! Copies a second, beside Dovecot's own LMTP server: few and many connections, one mailbox, ten
//! for each message, and many; ours with its defaults and without `ledger.prepare`. Into Maildirs
//! also with Dovecot's index of the mailboxes brought up to date after the load, on both sides:
//! Dovecot's server writes it while it delivers, ours leaves it to the next reader.

use std::time::Duration;

use crate::load::{self, Clients, LOCAL_PARTS, MAILBOXES, NO_PLUGINS, Peer, TEN, TUNED_LMTP};
use crate::load::{Target, short};
use crate::support::dovecot::Dovecot;
use crate::support::lmtp::Launch;
use crate::support::postgres::Postgres;
use crate::table::Times;
use crate::world::Bench;

/// Connections, and copies in a run of two or three seconds.
const LOADS: [(usize, usize); 3] = [(1, 1400), (4, 2000), (10, 2400)];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Into {
    Maildirs,
    Imap,
}

pub fn maildirs() {
    run(Into::Maildirs);
}

pub fn imap() {
    run(Into::Imap);
}

// One store after the other: Dovecot's imap makes and removes a file for each message, and ext4
// without a journal searches past every inode that was freed in the last minutes, whoever wants a
// new one.
fn run(into: Into) {
    let bench = Bench::new();
    let settings = format!("{LOCAL_PARTS}{TUNED_LMTP}{NO_PLUGINS}");
    let dovecot = Dovecot::start_high_performance_with(&settings);
    let postgres = Postgres::start();
    let ledger = format!("url = \"{}\"", postgres.url_socket());
    let never = format!("{ledger}\nprepare = \"never\"");
    let (name, store) = match into {
        Into::Maildirs => ("Dovecot's Maildirs", bench.maildir_store(&dovecot)),
        Into::Imap => ("IMAP", bench.imap_store(&dovecot)),
    };
    let [plain, prepared] = [("plain", &never), ("prepared", &ledger)].map(|(tag, ledger)| {
        let config = bench.config(tag, ledger, &store);
        bench.migrate(&config);
        Launch::of(&config).start()
    });
    let unprepared = format!("onedrop lmtp, Postgres + {name}, ledger.prepare = never");
    let with_defaults = format!("onedrop lmtp, Postgres + {name}, defaults");
    let peers = [
        Peer { name: &unprepared, socket: plain.socket(), tag: "plain" },
        Peer { name: &with_defaults, socket: prepared.socket(), tag: "prepared" },
        Peer { name: "Dovecot's lmtp, tuned", socket: dovecot.lmtp_socket(), tag: "peer" },
    ];
    loads(&peers, &dovecot, into);
}

/// A ledger in MariaDB beside one in Postgres, both by Unix socket.
pub fn mariadb() {
    beside_postgres(Into::Maildirs);
}

pub fn mariadb_imap() {
    beside_postgres(Into::Imap);
}

fn beside_postgres(into: Into) {
    let bench = Bench::new();
    let dovecot = Dovecot::start_high_performance_with(LOCAL_PARTS);
    let (postgres, mariadb) = (Postgres::start(), bench.mariadb());
    let store = match into {
        Into::Maildirs => bench.maildir_store(&dovecot),
        Into::Imap => bench.imap_store(&dovecot),
    };
    let in_postgres = format!("url = \"{}\"", postgres.url_socket());
    let ledgers = [("mariadb", bench.mariadb_ledger(&mariadb)), ("postgres", in_postgres)];
    let servers = ledgers.map(|(tag, ledger)| {
        let config = bench.config(tag, &ledger, &store);
        bench.migrate(&config);
        mariadb.remember_for_ever();
        Launch::of(&config).start()
    });
    let [one, other] = &servers;
    let peers = [
        Peer { name: "onedrop lmtp, MariaDB", socket: one.socket(), tag: "mariadb" },
        Peer { name: "onedrop lmtp, Postgres", socket: other.socket(), tag: "postgres" },
    ];
    println!("MariaDB is to do at least 0.7 of what Postgres does.\n");
    loads(&peers, &dovecot, into);
}

/// Every load to `peers`; the last one is what the others are compared with.
pub fn loads(peers: &[Peer<'_>], dovecot: &Dovecot, into: Into) {
    // Shorter: three rounds, and connections that are kept alone.
    let rounds = if short() { 3 } else { 5 };
    let last = peers.last().map_or("none", |peer| peer.name);
    let index = if into == Into::Maildirs { " | with the index | of the last" } else { "" };
    println!(
        "| connections | mailboxes | medians of {rounds}, in turn | copies/s | of {last}'s{index} \
         |"
    );
    println!("|---|---:|---|---:|---:|{}", if into == Into::Maildirs { "---:|---:|" } else { "" });
    for kept in [true, false].into_iter().take(if short() { 1 } else { 2 }) {
        for (sessions, copies) in LOADS {
            for mailboxes in [1, TEN, MAILBOXES] {
                let clients = Clients { sessions, kept };
                one_load(peers, dovecot, into, rounds, clients, copies, mailboxes);
            }
        }
    }
}

/// All peers in turn, every other round backwards; the last one is what the others are compared
/// with.
fn one_load(
    peers: &[Peer<'_>],
    dovecot: &Dovecot,
    into: Into,
    rounds: usize,
    clients: Clients,
    copies: usize,
    mailboxes: usize,
) {
    let Clients { sessions, kept } = clients;
    let mut sent = vec![Vec::with_capacity(rounds); peers.len()];
    let mut indexed = sent.clone();
    // The first round makes mailboxes and does not count.
    for round in 0..=rounds {
        for at in load::turns(round, peers.len()) {
            let peer = &peers[at];
            let target = match mailboxes {
                // A mailbox that has grown makes everybody slower.
                TEN => Target::Ten(peer.tag.to_owned()),
                1 => Target::One(format!("{}-{sessions}-{kept}-{round}", peer.tag)),
                _ => Target::Many(peer.tag.to_owned()),
            };
            let warm = if mailboxes == 1 { 2 * sessions } else { MAILBOXES };
            load::send(peer, dovecot, &target, clients, warm);
            if into == Into::Maildirs {
                load::index(dovecot, &target);
            }
            // What the warming left to be written counts for no round.
            nix::unistd::sync();
            if round > 0 {
                let took = load::send(peer, dovecot, &target, clients, copies);
                sent[at].push(took);
                if into == Into::Maildirs {
                    indexed[at].push(took + load::index(dovecot, &target));
                }
            }
        }
    }
    let (sent, indexed) = (rates(sent, copies), rates(indexed, copies));
    for (at, peer) in peers.iter().enumerate() {
        let how = if kept { "kept" } else { "one a message" };
        let of =
            |rates: &[f64]| format!("{:.0} | {:.2}", rates[at], rates[at] / rates[peers.len() - 1]);
        let index =
            if into == Into::Maildirs { format!(" | {}", of(&indexed)) } else { String::new() };
        println!("| {sessions}, {how} | {mailboxes} | {} | {}{index} |", peer.name, of(&sent));
    }
}

/// Copies a second, by the medians.
fn rates(times: Vec<Vec<Duration>>, copies: usize) -> Vec<f64> {
    let rate = |times: Vec<Duration>| match times.is_empty() {
        true => f64::NAN,
        false => copies as f64 * 1000.0 / Times::of(times).median_ms(),
    };
    times.into_iter().map(rate).collect()
}
