//! Whole deliveries beside dovecot-lda and maildrop.

use crate::support::dovecot::Dovecot;
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::Postgres;
use crate::table::{Contender, Line, ROUNDS, compare};
use crate::world::{
    Bench, CONFIG_BY_SOCKET, LISA, STRANGER, builds as named_builds, config_socket, lda, maildrop,
};

const LDA: &str = "dovecot-lda";
const LDA_BY_SOCKET: &str = "dovecot-lda, settings by socket";

/// SQLite and Maildir: one host, no server of ours.
pub fn maildir() {
    let bench = Bench::new();
    let dovecot = Dovecot::start_with(CONFIG_BY_SOCKET);
    let config = bench.maildir_config(&dovecot);
    let mut contenders = [
        Contender::new("onedrop, SQLite + Maildir", bench.onedrop(&config, "scuba", STRANGER)),
        Contender::new("the same with a copy in Sent", bench.onedrop(&config, "doug", LISA)),
        Contender::new(LDA, lda(dovecot.config_file(), "lda")),
        Contender::new(LDA_BY_SOCKET, lda(config_socket(&dovecot), "lda2")),
        Contender::new("maildrop", maildrop(&bench, &dovecot)),
    ];
    let lines = [
        Line { ours: 0, peer: 2, target: Some(0.4) },
        Line { ours: 0, peer: 3, target: None },
        Line { ours: 0, peer: 4, target: None },
        Line { ours: 1, peer: 2, target: None },
    ];
    compare(&mut contenders, ROUNDS, &lines);
}

/// Postgres and IMAP: the set-up for many hosts.
pub fn imap() {
    let bench = Bench::new();
    let postgres = Postgres::start();
    let pgbouncer = PgBouncer::start(&postgres);
    let dovecot = Dovecot::start_high_performance();
    let plain = Dovecot::start_with(CONFIG_BY_SOCKET);
    let store = bench.imap_store(&dovecot);
    let password = bench.private("ledger.password", postgres.password()).display().to_string();
    let with_password = |url: &str| format!("url = \"{url}\"\npassword_file = \"{password}\"");
    let socket = bench.imap_config("socket", &postgres, &dovecot);
    let tcp = bench.config("tcp", &with_password(&postgres.url_tcp()), &store);
    let pooled = bench.config("pooled", &format!("url = \"{}\"", pgbouncer.url()), &store);
    let pooled_tcp = bench.config("pooled-tcp", &with_password(&pgbouncer.url_tcp()), &store);
    let default_mode = bench.imap_config("default-mode", &postgres, &plain);
    bench.migrate(&socket);
    let mut contenders = [
        Contender::new(
            "onedrop, Postgres (socket) + IMAP",
            bench.onedrop(&socket, "scuba", STRANGER),
        ),
        Contender::new("the same with a copy in Sent", bench.onedrop(&socket, "doug", LISA)),
        Contender::new("Postgres by TCP and SCRAM", bench.onedrop(&tcp, "scuba", STRANGER)),
        Contender::new(
            "PgBouncer (socket, as in conf/) + IMAP",
            bench.onedrop(&pooled, "scuba", STRANGER),
        ),
        Contender::new("PgBouncer by TCP and SCRAM", bench.onedrop(&pooled_tcp, "scuba", STRANGER)),
        Contender::new(
            "Dovecot's default processes",
            bench.onedrop(&default_mode, "scuba", STRANGER),
        ),
        Contender::new(LDA, lda(dovecot.config_file(), "lda")),
        Contender::new(LDA_BY_SOCKET, lda(config_socket(&plain), "lda2")),
    ];
    let against_lda = |ours, target| Line { ours, peer: 6, target };
    let lines = [
        against_lda(0, Some(1.0)),
        Line { ours: 0, peer: 7, target: None },
        against_lda(1, None),
        against_lda(2, None),
        against_lda(3, Some(1.0)),
        against_lda(4, None),
        against_lda(5, None),
    ];
    compare(&mut contenders, ROUNDS, &lines);
}

/// A ledger in MariaDB beside one in Postgres, each by its Unix socket; a commit is on the disk of
/// both when it returns.
pub fn mariadb() {
    let bench = Bench::new();
    let dovecot = Dovecot::start_high_performance();
    // All hosts of a ledger write to one store: a ledger for each of the two.
    let postgres = [Postgres::start(), Postgres::start()];
    let mariadb = [bench.mariadb(), bench.mariadb()];
    let stores = [("Maildir", bench.maildir_store(&dovecot)), ("IMAP", bench.imap_store(&dovecot))];
    let mut configs = Vec::new();
    for (at, (name, store)) in stores.iter().enumerate() {
        let in_postgres = format!("url = \"{}\"", postgres[at].url_socket());
        let in_mariadb = bench.mariadb_ledger(&mariadb[at]);
        for (engine, ledger) in [("MariaDB", in_mariadb), ("Postgres", in_postgres)] {
            let config = bench.config(&format!("{engine}-{name}"), &ledger, store);
            bench.migrate(&config);
            let account = format!("{engine}-{name}").to_lowercase();
            configs.push((format!("onedrop, {engine} (socket) + {name}"), config, account));
        }
        mariadb[at].remember_for_ever();
    }
    let mut contenders: Vec<Contender<'_>> = configs
        .iter()
        .map(|(name, config, account)| {
            Contender::new(name.clone(), bench.onedrop(config, account, STRANGER))
        })
        .collect();
    let lines = [
        Line { ours: 0, peer: 1, target: Some(1.3) },
        Line { ours: 2, peer: 3, target: Some(1.3) },
    ];
    compare(&mut contenders, ROUNDS, &lines);
}

/// Builds of this program beside each other, each with a ledger and accounts of its own; the last
/// one is what the others are compared with.
pub fn builds() {
    let dovecot = Dovecot::start_high_performance();
    let builds: Vec<_> = named_builds()
        .into_iter()
        .map(|(name, bench)| {
            let postgres = Postgres::start();
            let servers = bench.imap_config("servers", &postgres, &dovecot);
            bench.migrate(&servers);
            let embedded = bench.maildir_config(&dovecot);
            (name, bench, postgres, embedded, servers)
        })
        .collect();
    if builds.is_empty() {
        println!("ONEDROP_BENCH_BUILDS names none");
        return;
    }
    for by_servers in [false, true] {
        let mut contenders: Vec<Contender<'_>> = builds
            .iter()
            .map(|(name, bench, _, embedded, servers)| match by_servers {
                false => {
                    let deliver = bench.onedrop(embedded, name, STRANGER);
                    Contender::new(format!("{name}, SQLite + Maildir"), deliver)
                }
                true => {
                    let deliver = bench.onedrop(servers, name, STRANGER);
                    Contender::new(format!("{name}, Postgres + IMAP"), deliver)
                }
            })
            .collect();
        let last = builds.len().saturating_sub(1);
        let line = |ours| Line { ours, peer: last, target: None };
        let lines: Vec<Line> = (0..last).map(line).collect();
        compare(&mut contenders, 5 * ROUNDS, &lines);
        println!();
    }
}
