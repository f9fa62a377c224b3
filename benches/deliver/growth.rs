//! Whether a full mailbox makes our part of a delivery slower: the same delivery into a mailbox of
//! none, 2,000 and 50,000 messages, with as many on record, beside what the store alone takes for
//! one more: an APPEND by a bare client that logs in likewise, and for a Maildir a file that is
//! written, synced and linked. Where the store's part is ten times ours the difference of the two
//! says little; a delivery to another, small mailbox beside the same ledger shows the ledger's part
//! without it. Postgres by way of PgBouncer, as `conf/` recommends.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use onedrop_core::testing::chance::Chance;

use crate::support::chown_recursive;
use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::Postgres;
use crate::table::{Contender, in_turn, verdict};
use crate::world::{Bench, MESSAGE_BYTES, STRANGER, message};

const SIZES: [u32; 3] = [0, 2_000, 50_000];
/// More than elsewhere: a full mailbox' APPEND varies by more than our part is.
const ROUNDS: usize = 60;

pub fn run() {
    let bench = Bench::new();
    let dovecot = Dovecot::start_high_performance();
    let postgres = Postgres::start();
    let pgbouncer = PgBouncer::start(&postgres);
    let imap = bench.config(
        "pooled",
        &format!("url = \"{}\"", pgbouncer.url()),
        &bench.imap_store(&dovecot),
    );
    let maildir = bench.maildir_config(&dovecot);
    bench.migrate(&imap);
    // The first delivery makes the mailbox and, in a file, the ledger.
    bench.onedrop(&imap, "imap", STRANGER)();
    bench.onedrop(&imap, "small", STRANGER)();
    bench.onedrop(&maildir, "maildir", STRANGER)();
    println!(
        "| in the mailbox | delivery | median ms | bare store | median ms | ours alone, medians | \
         ours alone, least |"
    );
    println!("|---:|---|---:|---|---:|---:|---:|");
    let mut filled = 0;
    for size in SIZES {
        for account in ["imap", "maildir"] {
            fill_maildir(&dovecot.maildir(account), filled, size);
        }
        chown_recursive(&dovecot.mail_root(), MAIL_USER);
        fill_postgres(&postgres, filled, size);
        fill_sqlite(&bench.home.join("ledger.db"), filled, size);
        filled = size;
        // Dovecot writes its index once; a mailbox that people read has one.
        dovecot.doveadm(&["index", "-u", "imap", "INBOX"]);
        assert!(dovecot.count("imap", "INBOX") >= size as usize, "the mailbox is filled");
        // What the filling left to be written would slow down everybody's syncs.
        nix::unistd::sync();
        let mut contenders = [
            Contender::new("Postgres + IMAP", bench.onedrop(&imap, "imap", STRANGER)),
            Contender::new("APPEND", || bare_append(&dovecot, "imap")),
            Contender::new("SQLite + Maildir", bench.onedrop(&maildir, "maildir", STRANGER)),
            Contender::new("file", || bare_file(&dovecot.maildir("maildir"))),
            Contender::new(
                "Postgres + IMAP, small mailbox",
                bench.onedrop(&imap, "small", STRANGER),
            ),
            Contender::new("APPEND", || bare_append(&dovecot, "small")),
        ];
        let times = in_turn(&mut contenders, ROUNDS);
        for (ours, bare) in [(0, 1), (4, 5), (2, 3)] {
            let (name, store) = (&contenders[ours].name, &contenders[bare].name);
            let (ours, bare) = (&times[ours], &times[bare]);
            println!(
                "| {size} | {name} | {:.2} | {store} | {:.2} | {:.2} | {:.2} |",
                ours.median_ms(),
                bare.median_ms(),
                ours.median_ms() - bare.median_ms(),
                ours.least_ms() - bare.least_ms()
            );
        }
    }
}

/// What a new ledger's looks add in its first hour: to a message that may have come before it was
/// made, as all of a switch's backlog, and to one that our Postfix took ten minutes after. Beside
/// it a ledger that remembers all, as later.
pub fn first_hour() {
    const SIZE: u32 = 20_000;
    const ROUNDS: usize = 20;
    let bench = Bench::new();
    let sides = ["later", "backlog", "since"].map(|name| {
        let (dovecot, postgres) = (Dovecot::start_high_performance(), Postgres::start());
        let imap = bench.imap_config(&format!("{name}-imap"), &postgres, &dovecot);
        let ledger = format!("url = \"sqlite://{}\"", bench.home.join(name).display());
        let maildir =
            bench.config(&format!("{name}-maildir"), &ledger, &bench.maildir_store(&dovecot));
        for (config, account) in [(&imap, "imap"), (&maildir, "maildir")] {
            match name {
                "later" => bench.migrate(config),
                "backlog" => bench.migrate_at(config, 86_400),
                _ => bench.migrate_at(config, -600),
            }
            bench.onedrop(config, account, STRANGER)();
            fill_maildir(&dovecot.maildir(account), 0, SIZE);
        }
        chown_recursive(&dovecot.mail_root(), MAIL_USER);
        dovecot.doveadm(&["index", "-u", "imap", "INBOX"]);
        (dovecot, postgres, imap, maildir)
    });
    nix::unistd::sync();
    println!(
        "| into {SIZE} messages | later, median ms | backlog | ratio | come since | ratio |\n\
         |---|---:|---:|---|---:|---|"
    );
    let [later, backlog, since] = &sides;
    for (name, account, configs) in [
        ("Postgres + IMAP", "imap", [&later.2, &backlog.2, &since.2]),
        ("SQLite + Maildir", "maildir", [&later.3, &backlog.3, &since.3]),
    ] {
        let mut contenders = ["later", "backlog", "come since"]
            .into_iter()
            .zip(configs)
            .map(|(side, config)| Contender::new(side, bench.onedrop(config, account, STRANGER)))
            .collect::<Vec<_>>();
        let medians: Vec<f64> =
            in_turn(&mut contenders, ROUNDS).iter().map(|times| times.median_ms()).collect();
        let beside = |at: usize| {
            let ratio = medians[at] / medians[0];
            format!("{:.1} | {ratio:.2}, {}", medians[at], verdict(ratio, Some(1.5)))
        };
        println!("| {name} | {:.1} | {} | {} |", medians[0], beside(1), beside(2));
    }
}

/// Names as Dovecot gives them, with microseconds that look like such: it keeps names in a hash
/// table whose function takes little notice of all but the last digits, and regular ones make an
/// APPEND a hundred times slower than it is.
fn fill_maildir(folder: &Path, from: u32, to: u32) {
    for number in from..to {
        let text = format!(
            "From: {STRANGER}\nSubject: {number}\nMessage-ID: <fill.{number}@bench.example>\n\n\
             small\n"
        );
        let (seconds, size, micros) =
            (1_700_000_000 + 37 * number, text.len(), scattered(number.into()) % 1_000_000);
        let name = format!(
            "{seconds}.M{micros}P{}.mail,S={size},W={}:2,S",
            scattered(micros) % 32_768,
            size + 5
        );
        fs::write(folder.join("cur").join(name), text).expect("a message");
    }
}

/// The same for the same number, and without a pattern.
fn scattered(number: u64) -> u64 {
    Chance::Seeded(number).number()
}

fn fill_postgres(postgres: &Postgres, from: u32, to: u32) {
    if from == to {
        return;
    }
    postgres.psql(&format!(
        "INSERT INTO onedrop_message (id_hash, digest, message_id, sender, subject, size_bytes)
         SELECT sha256(n::text::bytea), sha256(('d' || n)::bytea), ('fill.' || n)::bytea,
                '{STRANGER}', n::text, 100
         FROM generate_series({from}, {to} - 1) n;
         INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, owner, in_doubt,
                                   prior_doubt, placed_at, receipt_kind, receipt, recipient,
                                   queue_id, host, pid, began_at, attempt_ms)
         SELECT id, 'imap', 'INBOX', false, 1, 'fill:1', false, false, now(), 'uid', '1/' || id,
                'imap@mail.axial.net', 'fill', 'fill', 1, now(), 5
         FROM onedrop_message
         WHERE NOT EXISTS (SELECT FROM onedrop_copy c WHERE c.message_id = onedrop_message.id);
         ANALYZE"
    ));
}

fn fill_sqlite(ledger: &Path, from: u32, to: u32) {
    let connection = rusqlite::Connection::open(ledger).expect("a ledger");
    connection
        .execute_batch(&format!(
            "PRAGMA busy_timeout = 10000;
             BEGIN IMMEDIATE;
             CREATE TEMP TABLE n AS
                 WITH RECURSIVE n (n) AS
                     (SELECT {from} UNION ALL SELECT n + 1 FROM n WHERE n + 1 < {to})
                 SELECT n FROM n WHERE n < {to};
             INSERT INTO onedrop_message (id_hash, digest, message_id, sender, subject,
                                          size_bytes, recorded_at)
                 SELECT randomblob(32), randomblob(32), CAST('fill.' || n AS BLOB), '{STRANGER}',
                        n, 100, 0 FROM n;
             INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, owner, in_doubt,
                                       prior_doubt, placed_at, receipt_kind, receipt, recipient,
                                       queue_id, host, pid, began_at, attempt_ms)
                 SELECT id, 'maildir', 'INBOX', 0, 1, 'fill:1', 0, 0, 1, 'name', 'fill',
                        'maildir@mail.axial.net', 'fill', 'fill', 1, 0, 5
                 FROM onedrop_message
                 WHERE NOT EXISTS
                     (SELECT 1 FROM onedrop_copy c WHERE c.message_id = onedrop_message.id);
             DROP TABLE n;
             COMMIT;"
        ))
        .expect("rows");
    drop(connection);
    // The files that closing it made anew are the mail user's again.
    chown_recursive(ledger.parent().expect("a folder"), MAIL_USER);
}

/// Connect, log in, APPEND, LOGOUT, as short as a client can be.
fn bare_append(dovecot: &Dovecot, account: &str) -> Duration {
    let bytes =
        String::from_utf8(message(STRANGER, MESSAGE_BYTES)).expect("ASCII").replace('\n', "\r\n");
    let began = Instant::now();
    let mut imap = dovecot.session(account);
    let answer = imap.append("INBOX", "", bytes.as_bytes()).expect("an answer");
    assert!(answer.is_ok(), "{}", answer.tagged);
    imap.command("LOGOUT").expect("an answer");
    began.elapsed()
}

/// A file as any Maildir writer makes it, with the syncs that make it last.
fn bare_file(folder: &Path) -> Duration {
    let bytes = message(STRANGER, MESSAGE_BYTES);
    let began = Instant::now();
    let name = format!("{}.bare", began_nanos());
    let (tmp, new) = (folder.join("tmp").join(&name), folder.join("new"));
    let mut file = File::create(&tmp).expect("a file");
    file.write_all(&bytes).and_then(|()| file.sync_all()).expect("a file");
    fs::hard_link(&tmp, new.join(&name)).expect("a link");
    File::open(&new).and_then(|folder| folder.sync_all()).expect("a folder");
    fs::remove_file(&tmp).expect("our file");
    began.elapsed()
}

fn began_nanos() -> u128 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos()
}
