//! `onedrop deliver` that hands its message to a running `onedrop lmtp`, beside dovecot-lda: whole processes.

use crate::support::dovecot::Dovecot;
use crate::support::lmtp::Lmtp;
use crate::support::postgres::Postgres;
use crate::table::{Contender, Line, ROUNDS, compare};
use crate::world::{Bench, LISA, STRANGER, lda};

pub fn run() {
    let bench = Bench::new();
    let dovecot = Dovecot::start_high_performance();
    let postgres = Postgres::start();
    let direct = bench.imap_config("socket", &postgres, &dovecot);
    bench.migrate(&direct);
    let store = bench.imap_store(&dovecot);
    let ledger = format!("url = \"{}\"", postgres.url_socket());
    let lmtp = Lmtp::start(&bench.config("lmtp", &format!("{ledger}\nprepare = true"), &store));
    let via = bench.config("via", &ledger, &format!("{store}\n[deliver]\nvia = \"{}\"", lmtp.socket().display()));
    let mut contenders = [
        Contender::new("onedrop deliver, via onedrop lmtp", bench.onedrop(&via, "scuba", STRANGER)),
        Contender::new("the same with a copy in Sent", bench.onedrop(&via, "doug", LISA)),
        Contender::new("onedrop deliver, Postgres + IMAP by itself", bench.onedrop(&direct, "otto", STRANGER)),
        Contender::new("dovecot-lda", lda(dovecot.config_file(), "lda")),
    ];
    let lines = [
        Line { ours: 0, peer: 3, target: Some(0.5) },
        Line { ours: 1, peer: 3, target: None },
        Line { ours: 0, peer: 2, target: None },
    ];
    compare(&mut contenders, ROUNDS, &lines);
}
