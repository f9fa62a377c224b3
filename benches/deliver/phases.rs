//! Where the time of one delivery goes. The steps of a delivery are taken one after the other in
//! this process (a real one overlaps reading, connecting and logging in); starting and ending a
//! process are measured beside them. strace counts system calls and syncs, in runs of their own.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Uid, setegid, seteuid};

use onedrop::config::{Config, LedgerUrl, Opens};
use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::ledger::sqlite::SqliteLedger;
use onedrop::ledger::{
    AnyLedger, Attempt, AttemptEnd, CopyFacts, CopyState, Entry, LeaseTerms, ToConfirm, Turn,
};
use onedrop::message::{DedupBy, Message};
use onedrop::outcome::Reason;
use onedrop::service::ONE;
use onedrop::store::imap::{ImapSettings, ImapStore, Tls};
use onedrop::store::maildir::MaildirStore;
use onedrop::store::{AnyStore, Copy, Need};

use crate::process::{deliver, program};
use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::postgres::Postgres;
use crate::support::unix_user;
use crate::table::{ROUNDS, Times, ms};
use crate::world::{Bench, MESSAGE_BYTES, STRANGER, lda_command, message};

pub fn run() {
    let bench = Bench::new();
    let dovecot = Dovecot::start_high_performance();
    let postgres = Postgres::start();
    let (maildir, imap) =
        (bench.maildir_config(&dovecot), bench.imap_config("socket", &postgres, &dovecot));
    bench.migrate(&imap);
    processes(&bench);
    for (title, config) in [("SQLite + Maildir", &maildir), ("Postgres + IMAP", &imap)] {
        // The first delivery makes the mailbox.
        bench.onedrop(config, "phases", STRANGER)();
        steps(title, config, &dovecot, &postgres);
    }
    println!("\n| one delivery | system calls | fsync, fdatasync |\n|---|---:|---:|");
    count("onedrop, SQLite + Maildir", bench.deliver_command(&maildir, "phases"), &bench);
    count(
        "onedrop, Postgres + IMAP (without the servers)",
        bench.deliver_command(&imap, "phases"),
        &bench,
    );
    count("dovecot-lda (with doveconf)", lda_command(&dovecot.config_file(), "lda"), &bench);
}

/// What any process costs here, and one of ours that does nothing.
fn processes(bench: &Bench) {
    let time = |name: &str, args: &[&str]| {
        let path = if name.is_empty() { bench.onedrop.clone() } else { name.into() };
        Times::of((0..ROUNDS).map(|_| deliver(&mut program(&path, args), b"")).collect())
    };
    println!("| a process from start to end | median ms | least ms |\n|---|---:|---:|");
    for (name, times) in
        [("/bin/true", time("/bin/true", &[])), ("onedrop --version", time("", &["--version"]))]
    {
        println!("| {name} | {:.2} | {:.2} |", times.median_ms(), times.least_ms());
    }
}

/// Names and times of the steps of one delivery.
struct Watch {
    began: Instant,
    steps: Vec<(&'static str, Duration)>,
}

impl Watch {
    fn passed<T>(&mut self, step: &'static str, value: T) -> T {
        let now = Instant::now();
        self.steps.push((step, now - self.began));
        self.began = Instant::now();
        value
    }
}

fn steps(title: &str, config: &Path, dovecot: &Dovecot, postgres: &Postgres) {
    // Root writes into no mailbox of another's.
    let user = unix_user(MAIL_USER);
    setegid(user.gid).and_then(|()| seteuid(user.uid)).expect("the mail user");
    let runs: Vec<Watch> = (0..ROUNDS).map(|_| one(config, dovecot, postgres)).collect();
    seteuid(Uid::from_raw(0)).and_then(|()| setegid(Gid::from_raw(0))).expect("root again");
    println!("\n| {title}: a step | median ms | least ms |\n|---|---:|---:|");
    let mut sum = 0.0;
    for at in 0..runs[0].steps.len() {
        let times = Times::of(runs.iter().map(|run| run.steps[at].1).collect());
        sum += times.median_ms();
        println!(
            "| {} | {:.2} | {:.2} |",
            runs[0].steps[at].0,
            times.median_ms(),
            times.least_ms()
        );
    }
    println!("| all, one after the other | {sum:.2} | |");
}

fn one(config: &Path, dovecot: &Dovecot, postgres: &Postgres) -> Watch {
    let bytes = message(STRANGER, MESSAGE_BYTES);
    let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(20));
    let account = "phases";
    let mut watch = Watch { began: Instant::now(), steps: Vec::new() };

    let loaded = Config::load(Some(config), Opens::Everything)
        .map_err(|errors| errors.to_string())
        .expect("our configuration");
    let loaded = watch.passed("configuration", loaded);
    let message = Message::new(bytes, DedupBy::Content);
    let facts = message.facts();
    watch.passed("message: identity, digest, facts", ());
    let is_sqlite = matches!(loaded.config.ledger.url, LedgerUrl::Sqlite { .. });
    let ledger: Arc<dyn AnyLedger> = match loaded.config.ledger.url.clone() {
        LedgerUrl::Sqlite { path } => Arc::new(SqliteLedger::new(path, ONE)),
        LedgerUrl::Postgres { .. } => Arc::new(postgres.ledger(ONE)),
        LedgerUrl::Mysql { .. } => unreachable!("no bench of phases has this ledger"),
    };
    ledger.schema_version(deadline.end()).expect("a ledger");
    watch.passed("ledger: open (and the version)", ());
    let store: Arc<dyn AnyStore> = match is_sqlite {
        true => Arc::new(MaildirStore::new(dovecot.mail_root(), true).in_trial(true)),
        false => Arc::new(imap_store(dovecot)),
    };
    store.prepare(account, deadline.end());
    if !is_sqlite {
        // Waits for the login.
        store.check(account, deadline.end()).expect("a session");
    }
    watch.passed("store: connect, log in (and EXAMINE)", ());

    let attempt = Attempt {
        value: onedrop::ledger::RandomValue::default(),
        recipient: account.to_owned(),
        host: "bench".to_owned(),
        pid: std::process::id(),
        ..Attempt::default()
    };
    let inbox = Destination::inbox(account);
    let entry = Entry {
        identity: message.identity(),
        facts: &facts,
        size_bytes: MESSAGE_BYTES as u64,
        raw: None,
        nul_runs: None,
        at: None,
        oldest: None,
        fields: None,
    };
    let terms = LeaseTerms { lease: Duration::from_secs(90), join: is_sqlite, due: false };
    let until = deadline.end();
    let inboxes = std::slice::from_ref(&inbox);
    let recorded = ledger.record(&entry, &attempt, inboxes, terms, until).expect("a record");
    let recorded = watch.passed("ledger: record", recorded);
    let Some(CopyState::Claimed(claim)) = recorded.copies.first() else {
        panic!("{:?}", recorded.copies)
    };
    let key = message.identity().copy_key(&inbox.account, &inbox.mailbox);
    let turn = ledger.take_turn(claim, &key, until).expect("a turn");
    let Turn::Ours { turn, .. } = watch.passed("ledger: take_turn", turn) else { panic!("taken") };
    let copy = Copy {
        key: &key,
        head: b"",
        bytes: message.own_copy(),
        identity: message.identity(),
        recorded_at: recorded.recorded_at,
        looks_back: false,
        handed: None,
        looked: None,
        newer_than: None,
    };
    let slot = store.reserve(&inbox, copy, Need::Write, &deadline).expect("a slot");
    let mut slot = slot.expect("nobody else has it");
    let receipt = slot.append().expect("a copy");
    deadline.answered();
    let receipt = watch.passed("store: append", receipt);
    let end = AttemptEnd {
        outcome: "delivered",
        reason: Some(Reason::Delivered),
        status: "2.0.0".to_owned(),
        text: receipt.to_string(),
        duration: Duration::from_millis(1),
    };
    let end = Some((recorded.attempt, &end));
    let one = ToConfirm {
        claim: *claim,
        receipt: &receipt,
        facts: CopyFacts::default(),
        end,
        may_be_lost: false,
    };
    turn.confirm(&one, until).expect("a receipt on record");
    drop(slot);
    watch.passed("ledger: confirm", ());
    drop(ledger);
    watch.passed("ledger: close", ());
    drop(store);
    watch.passed("store: close", ());
    watch
}

fn imap_store(dovecot: &Dovecot) -> ImapStore {
    let settings = ImapSettings {
        host: "127.0.0.1".to_owned(),
        port: dovecot.imap_port(),
        tls: Tls::None,
        ca_file: None,
        login: onedrop::login::LoginForm::Sasl,
        user: dovecot.master_user().to_owned(),
        password: dovecot.password().to_owned().into(),
        create_mailboxes: true,
        trust_search: onedrop::store::TrustSearch::Auto,
        lock_timeout: Duration::from_secs(5),
    };
    ImapStore::new(settings, ONE)
}

/// System calls of `command` and all that it starts, and how many of them wait for the disk.
fn count(name: &str, command: Command, bench: &Bench) {
    let out = bench.private("strace.out", "");
    let mut strace =
        program("/usr/bin/strace", &["-f", "-qq", "-o", &out.display().to_string(), "--"]);
    strace.arg(command.get_program()).args(command.get_args());
    let took = deliver(&mut strace, &message(STRANGER, MESSAGE_BYTES));
    let text = fs::read_to_string(&out).expect("what strace saw");
    let calls =
        text.lines().filter(|line| !line.contains(" resumed>") && !line.contains("+++")).count();
    let syncs = text
        .lines()
        .filter(|line| line.contains(" fsync(") || line.contains(" fdatasync("))
        .count();
    assert!(calls > 0, "strace saw nothing in {:.0} ms", ms(took));
    println!("| {name} | {calls} | {syncs} |");
}
