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
    let ledger = format!("url = \"{}\"", postgres.url_socket());
    let server = |name: &str, store: &str| {
        let lmtp = Lmtp::start(&bench.config(name, &format!("{ledger}\nprepare = true"), store));
        let via = format!("{store}\n[deliver]\nvia = \"{}\"", lmtp.socket().display());
        (bench.config(&format!("via-{name}"), &ledger, &via), lmtp)
    };
    let (imap, _imap_server) = server("imap", &bench.imap_store(&dovecot));
    let (maildir, _maildir_server) = server("maildir", &bench.maildir_store(&dovecot));
    let mut contenders = [
        Contender::new("onedrop deliver, via onedrop lmtp, IMAP", bench.onedrop(&imap, "scuba", STRANGER)),
        Contender::new(
            "onedrop deliver, via onedrop lmtp, Dovecot's Maildirs",
            bench.onedrop(&maildir, "zoe", STRANGER),
        ),
        Contender::new("by IMAP with a copy in Sent", bench.onedrop(&imap, "doug", LISA)),
        Contender::new("onedrop deliver, Postgres + IMAP by itself", bench.onedrop(&direct, "otto", STRANGER)),
        Contender::new("dovecot-lda", lda(dovecot.config_file(), "lda")),
    ];
    let lines = [
        Line { ours: 0, peer: 4, target: Some(0.5) },
        Line { ours: 1, peer: 4, target: Some(0.5) },
        Line { ours: 2, peer: 4, target: None },
        Line { ours: 0, peer: 3, target: None },
    ];
    compare(&mut contenders, ROUNDS, &lines);
}
