//! Four hosts: network, host name, mounts and temporary folder are each one's own, and all they
//! share is one Postgres and one Dovecot. Messages come in on all of them at once, every recipient
//! on two, and processes are killed at random moments, until everything is delivered.
//! Then every mailbox holds exactly what it should.
//!
//! `ONEDROP_SEED` repeats a run's messages, hosts and who is killed in which part of its life (not
//! the scheduling); each run prints its seed.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use onedrop_core::testing::chance::Chance;

use crate::host::{Host, free_net, servers};
use crate::support::site::{Site, settle_kept};
use crate::support::{TempRoot, is_full, onedrop_path, wait_until};

const HOSTS: usize = 4;
const ACCOUNTS: u64 = 24;
const AT_ONCE_PER_HOST: usize = 4;
/// Of a hundred first and second tries, how many are to be killed, some time before a delivery of
/// late would have ended. One that is faster lives.
const KILLS_PER_HUNDRED: u64 = 40;
/// How long a delivery takes before one has been timed.
const FIRST_GUESS: Duration = Duration::from_millis(100);
/// What nextest leaves of its five minutes.
const LIMIT: Duration = Duration::from_secs(240);
const SETTINGS: &str = "[directory]\ndomains = [\"axial.net\"]\n[sent]\ntrust = \"authenticated\"\n\
    authserv_id = \"axial.net\"\n[lock]\nwait_secs = 2\nlease_secs = 6\n\
    [limits]\ndeadline_secs = 5\nanswer_secs = 2\n";

/// Of this run: `ONEDROP_SEED`, or another one each time.
pub fn seed() -> u64 {
    let given = std::env::var("ONEDROP_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
            % 1_000_000_007
    })
}

/// Starts a delivery on this host.
fn deliver(host: &Host, recipient: &str, queue_id: &str, message: &[u8]) -> Child {
    let mut command = host.command(onedrop_path());
    command.args(["deliver", "--config"]).arg(host.folder.join("onedrop.toml"));
    command.args(["-d", recipient, "--queue-id", queue_id]).env("TMPDIR", host.folder.join("tmp"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("nsenter");
    // Smaller than a pipe: this never waits.
    drop(child.stdin.take().expect("stdin").write_all(message));
    child
}

/// With `ONEDROP_FULL=1` more.
fn messages() -> usize {
    if is_full() { 100 } else { 30 }
}

struct Mail {
    author: u64,
    recipients: Vec<u64>,
    bytes: Vec<u8>,
}

fn mails(chance: &mut Chance) -> Vec<Mail> {
    let mail = |n: usize| {
        let author = chance.between(0, ACCOUNTS);
        let mut recipients: Vec<u64> = Vec::new();
        for _ in 0..=chance.between(0, 5) {
            let recipient = chance.between(0, ACCOUNTS);
            if !recipients.contains(&recipient) {
                recipients.push(recipient);
            }
        }
        let text = format!(
            "Authentication-Results: axial.net; dmarc=pass header.from=axial.net\n\
             From: u{author}@axial.net\nTo: all\nSubject: message {n}\n\
             Message-ID: <m{n}@axial.net>\n\nNumber {n}.\n"
        );
        Mail { author, recipients, bytes: text.into_bytes() }
    };
    (0..messages()).map(mail).collect()
}

/// One recipient of one message on one host, to be tried until delivered.
struct Task {
    mail: usize,
    recipient: u64,
    host: usize,
    tries: u64,
    not_before: Instant,
}

#[derive(Default)]
struct Counts {
    tries: usize,
    killed: usize,
    deferred: usize,
    /// How long the last deliveries took that lived to say so.
    typical: Option<Duration>,
}

impl Counts {
    /// A fast machine's deliveries are killed as early in their lives as a slow one's.
    fn took(&mut self, took: Duration) {
        self.typical = Some(self.typical.map_or(took, |typical| (typical * 7 + took) / 8));
    }
}

/// One try; true when it is delivered.
fn attempt(host: &Host, mail: &Mail, task: &Task, seed: u64, counts: &Mutex<Counts>) -> bool {
    let place =
        (task.mail as u64) << 32 | task.recipient << 16 | (task.host as u64) << 8 | task.tries;
    let mut chance = Chance::Seeded(seed ^ Chance::Seeded(place).number());
    let typical = counts.lock().expect("counts").typical.unwrap_or(FIRST_GUESS);
    let fate = (task.tries < 2 && chance.percent(KILLS_PER_HUNDRED))
        .then(|| typical.mul_f64(chance.between(0, 1000) as f64 / 1000.0));
    let began = Instant::now();
    let mut child = deliver(
        host,
        &format!("u{}@axial.net", task.recipient),
        &format!("Q{}", task.mail),
        &mail.bytes,
    );
    if let Some(after) = fate
        && !wait_until(after, || !matches!(child.try_wait(), Ok(None)))
    {
        let _ = child.kill();
    }
    let output = child.wait_with_output().expect("end");
    let mut counts = counts.lock().expect("counts");
    counts.tries += 1;
    match output.status.code() {
        Some(0) => {
            if fate.is_none() {
                counts.took(began.elapsed());
            }
            return true;
        }
        Some(75) => counts.deferred += 1,
        None if fate.is_some() => counts.killed += 1,
        other => panic!("{other:?}: {output:?}"),
    }
    false
}

/// Works on one host's queue until it is empty.
fn work(
    host: &Host,
    queue: &Mutex<VecDeque<Task>>,
    mails: &[Mail],
    seed: u64,
    counts: &Mutex<Counts>,
    end: Instant,
) {
    loop {
        let next = queue.lock().expect("queue").pop_front();
        let Some(mut task) = next else { return };
        assert!(Instant::now() < end, "not all delivered in time");
        // As Postfix would: later, after all the others.
        std::thread::sleep(task.not_before.saturating_duration_since(Instant::now()));
        if !attempt(host, &mails[task.mail], &task, seed, counts) {
            task.tries += 1;
            task.not_before = Instant::now() + Duration::from_secs(1);
            queue.lock().expect("queue").push_back(task);
        }
    }
}

/// What must be in each mailbox, byte for byte; returns how many copies that is.
fn tally(site: &Site, mails: &[Mail]) -> usize {
    let mut expected: BTreeMap<(u64, &str), Vec<Vec<u8>>> = BTreeMap::new();
    for account in 0..ACCOUNTS {
        expected.insert((account, "INBOX"), Vec::new());
        expected.insert((account, "Sent"), Vec::new());
    }
    for mail in mails {
        // As IMAP servers hold it; without fields for one recipient all copies are the same.
        let copy = String::from_utf8_lossy(&mail.bytes).replace('\n', "\r\n").into_bytes();
        let inboxes = mail.recipients.iter().map(|recipient| (*recipient, "INBOX"));
        for place in inboxes.chain([(mail.author, "Sent")]) {
            expected.entry(place).or_default().push(copy.clone());
        }
    }
    let mut copies = 0;
    for ((account, mailbox), mut wanted) in expected {
        wanted.sort();
        copies += wanted.len();
        let mut there = site.dovecot.messages(&format!("u{account}"), mailbox);
        there.sort();
        let texts = |copies: &[Vec<u8>]| String::from_utf8_lossy(&copies.concat()).into_owned();
        assert!(
            there == wanted,
            "u{account}/{mailbox}: {}\nand not {}",
            texts(&there),
            texts(&wanted)
        );
    }
    copies
}

#[test]
fn four_hosts_with_killed_processes_leave_exactly_the_expected_copies() {
    let began = Instant::now();
    let seed = seed();
    let mut chance = Chance::Seeded(seed);
    let (root, net) = (TempRoot::new(), free_net());
    let hosts: Vec<Host> = (0..HOSTS).map(|n| Host::start(&root, n, net)).collect();
    let site = servers(&hosts, root, net, SETTINGS);
    let mails = mails(&mut chance);
    let mut queues: Vec<VecDeque<Task>> = (0..HOSTS).map(|_| VecDeque::new()).collect();
    for (n, mail) in mails.iter().enumerate() {
        for recipient in &mail.recipients {
            let host = chance.pick(HOSTS);
            let other = (host + 1 + chance.pick(HOSTS - 1)) % HOSTS;
            for host in [host, other] {
                let task =
                    Task { mail: n, recipient: *recipient, host, tries: 0, not_before: began };
                queues[host].push_back(task);
            }
        }
    }
    let deliveries: usize = queues.iter().map(VecDeque::len).sum();
    let queues: Vec<_> = queues.into_iter().map(Mutex::new).collect();
    let counts = Mutex::new(Counts::default());
    let setup = began.elapsed();
    let end = Instant::now() + LIMIT;
    std::thread::scope(|scope| {
        for (host, queue) in hosts.iter().zip(&queues) {
            for _ in 0..AT_ONCE_PER_HOST {
                scope.spawn(|| work(host, queue, &mails, seed, &counts, end));
            }
        }
    });
    let counts = counts.into_inner().expect("counts");
    let sql = |sql: &str| site.postgres.psql(sql);
    let config = site.config("settle", SETTINGS);
    let kept = settle_kept(&config, None, |asked| Some(sql(asked))).expect("settled");
    let copies = tally(&site, &mails);
    let found = sql("SELECT count(*) FROM onedrop_copy WHERE found_by_look");
    let again = sql("SELECT count(*) FROM onedrop_copy WHERE epoch > 1");
    writeln!(
        std::io::stderr(),
        "four hosts: seed {seed}; {} messages, {deliveries} deliveries on {HOSTS} hosts in \
         {} tries ({} killed, {} deferred); {copies} copies, {again} of them leased more than \
         once, {found} found by the look, {kept} for Sent kept and settled; {:.0} s and {:.0} s to \
         set up",
        mails.len(),
        counts.tries,
        counts.killed,
        counts.deferred,
        (began.elapsed() - setup).as_secs_f32(),
        setup.as_secs_f32(),
    )
    .expect("stderr");
    let clean = "SELECT count(*) FILTER (WHERE placed_at IS NOT NULL AND NOT in_doubt \
                 AND leased_until IS NULL), count(*) FROM onedrop_copy";
    assert_eq!(sql(clean), format!("{copies}|{copies}"));
    assert_eq!(sql("SELECT count(*) FROM onedrop_message"), mails.len().to_string());
    assert_eq!(
        sql("SELECT string_agg(DISTINCT host, ' ' ORDER BY host) FROM onedrop_attempt_text"),
        "mx0 mx1 mx2 mx3"
    );
    let delivered = "SELECT count(*) FROM (SELECT DISTINCT message_id, recipient, host \
                     FROM onedrop_attempt_text WHERE outcome = 'delivered') AS told";
    assert_eq!(
        sql(delivered),
        deliveries.to_string(),
        "every recipient was delivered on two hosts"
    );
    assert!(counts.killed > deliveries / 20, "only {} were killed", counts.killed);
    assert_ne!(again, "0", "nobody was killed between record and end");
}
