//! Builds of this program beside each other under the same load: a commit and the one before it, or
//! the program with and without a trick. Each has a Postgres and accounts of its own, and the same
//! Dovecot. The last one is what the others are compared with.

use crate::load::{LOCAL_PARTS, NO_PLUGINS, Peer, TUNED_LMTP};
use crate::speed::{Into, loads};
use crate::support::dovecot::Dovecot;
use crate::support::lmtp::Launch;
use crate::support::postgres::Postgres;
use crate::world::builds;

pub fn maildirs() {
    run(Into::Maildirs);
}

pub fn imap() {
    run(Into::Imap);
}

fn run(into: Into) {
    let settings = format!("{LOCAL_PARTS}{TUNED_LMTP}{NO_PLUGINS}");
    let dovecot = Dovecot::start_high_performance_with(&settings);
    let servers: Vec<_> = builds()
        .into_iter()
        .map(|(name, bench)| {
            let postgres = Postgres::start();
            let ledger = format!("url = \"{}\"", postgres.url_socket());
            let store = match into {
                Into::Maildirs => bench.maildir_store(&dovecot),
                Into::Imap => bench.imap_store(&dovecot),
            };
            let config = bench.config("server", &ledger, &store);
            bench.migrate(&config);
            // Where the server is started from, if it is there.
            std::fs::copy(&bench.onedrop, config.with_file_name("onedrop")).expect("a copy");
            (name, Launch::of(&config).start(), postgres, bench)
        })
        .collect();
    if servers.is_empty() {
        println!("ONEDROP_BENCH_BUILDS names none");
        return;
    }
    let peers: Vec<Peer<'_>> = servers
        .iter()
        .map(|(name, lmtp, ..)| Peer { name, socket: lmtp.socket(), tag: name })
        .collect();
    loads(&peers, &dovecot, into);
}
