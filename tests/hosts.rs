//! Four hosts: network, host name, mounts and temporary folder are each one's own, and all they share is one Postgres and
//! one Dovecot. 200 messages come in on all of them at once, every recipient on two, and processes are killed at random
//! moments, until everything is delivered. Then every mailbox holds exactly what it should.
//!
//! `ONEDROP_SEED` repeats a run's messages, hosts and kills (not the scheduling); each run prints its seed.

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;

use support::dovecot::Dovecot;
use support::postgres::Postgres;
use support::server::{Server, guarded};
use support::world::{World, run as onedrop_run};
use support::{TempRoot, onedrop_path, run, wait_until};

const HOSTS: usize = 4;
const MESSAGES: usize = 200;
const ACCOUNTS: u64 = 24;
const AT_ONCE_PER_HOST: usize = 4;
/// Of a hundred first and second tries, how many are to be killed, and how late at most: on a busy machine with two cores
/// a delivery takes about this long. One that ends earlier lives.
const KILLS_PER_HUNDRED: u64 = 40;
const LATEST_KILL: Duration = Duration::from_millis(800);
const LIMIT: Duration = Duration::from_secs(150);
const TIMES: &str = "[lock]\nwait_secs = 2\nlease_secs = 6\n[limits]\ndeadline_secs = 5\nanswer_secs = 2\n";

/// Sebastiano Vigna's SplitMix64: enough for choices that can be repeated.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A process that holds a host's namespaces; with its end they go, and the cable with them, also when we are killed.
struct Host {
    holder: Server,
    cable: String,
    /// The servers' address on this host's cable.
    server: String,
    folder: PathBuf,
}

impl Host {
    fn start(root: &TempRoot, n: usize, net: u8) -> Host {
        let folder = root.dir_for(&format!("host{n}"), "root", 0o755);
        let script = format!(
            "set -e; echo mx{n} >/proc/sys/kernel/hostname; mkdir {0}/tmp; mount -t tmpfs tmpfs {0}/tmp; : >{0}/ready; \
             exec sleep 1000",
            folder.display()
        );
        let log = folder.join("log");
        let mut command = guarded("unshare", None, Signal::SIGKILL);
        command.args(["--net", "--uts", "--mount", "sh", "-c", &script]).stdin(Stdio::null());
        command.stdout(fs::File::create(&log).expect("log")).stderr(fs::File::create(&log).expect("log"));
        let mut holder = Server::start("host", command, Signal::SIGKILL, &log);
        holder.wait_ready(|| folder.join("ready").exists());
        let (pid, cable) = (holder.pid().to_string(), format!("od{}h{n}", std::process::id()));
        // RFC 2544's range for benchmarks: in use nowhere else.
        let (server, own) = (format!("198.18.{net}.{}", 4 * n + 1), format!("198.18.{net}.{}", 4 * n + 2));
        let ip = |args: &[&str]| run(Command::new("ip").args(args));
        let inside = |args: &[&str]| run(Command::new("nsenter").args(["-t", &pid, "--net", "ip"]).args(args));
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &pid]);
        let host = Host { holder, cable, server, folder };
        ip(&["addr", "add", &format!("{}/30", host.server), "dev", &host.cable]);
        ip(&["link", "set", &host.cable, "up"]);
        inside(&["link", "set", "lo", "up"]);
        inside(&["addr", "add", &format!("{own}/30"), "dev", "eth0"]);
        inside(&["link", "set", "eth0", "up"]);
        host
    }

    /// Starts a delivery on this host.
    fn deliver(&self, recipient: &str, queue_id: &str, message: &[u8]) -> Child {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.pid().to_string(), "--net", "--uts", "--mount", "--"]).arg(onedrop_path());
        command.args(["deliver", "--config"]).arg(self.folder.join("onedrop.toml"));
        command.args(["-d", recipient, "--queue-id", queue_id]).env("TMPDIR", self.folder.join("tmp"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ONEDROP_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("nsenter");
        // Smaller than a pipe: this never waits.
        drop(child.stdin.take().expect("stdin").write_all(message));
        child
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.cable]).stderr(Stdio::null()).status();
    }
}

/// A /24 of which no address is on this machine yet.
fn free_net() -> u8 {
    let taken = run(Command::new("ip").args(["-4", "-o", "addr"]));
    let first = std::process::id() % 250;
    let nets = (0..250).map(|step| u8::try_from((first + step) % 250).expect("below 250"));
    nets.into_iter().find(|net| !taken.contains(&format!(" 198.18.{net}."))).expect("a free network")
}

/// One Postgres and one Dovecot on loopback and on the hosts' cables, and each host's configuration.
fn servers(hosts: &[Host], root: TempRoot, net: u8) -> World {
    let addresses: Vec<&str> = hosts.iter().map(|host| &*host.server).collect();
    let access = format!("local all all trust\nhost all onedrop 198.18.{net}.0/24 scram-sha-256\n");
    let hba = root.write("pg_hba.conf", access);
    let settings = format!("listen_addresses = '127.0.0.1,{}'\nhba_file = '{}'", addresses.join(","), hba.display());
    let world = World {
        postgres: Postgres::start_with(&settings),
        dovecot: Dovecot::start_high_performance_on(&addresses),
        root,
    };
    let migrated = onedrop_run(&world.config("migrate", "[directory]\ndomains = [\"axial.net\"]\n"), &["migrate"]);
    assert!(migrated.status.success(), "{migrated:?}");
    let more = format!("[directory]\ndomains = [\"axial.net\"]\n[sent]\nauthserv_id = \"axial.net\"\n{TIMES}");
    for (n, host) in hosts.iter().enumerate() {
        let url = world.postgres.url_tcp().replace("127.0.0.1", &host.server);
        let ledger = format!("url = \"{url}?sslmode=disable\"\npassword_file = \"$PASSWORD\"");
        let config = world.config_with(&format!("config{n}"), &ledger, &more);
        let text = fs::read_to_string(config).expect("configuration");
        fs::write(
            host.folder.join("onedrop.toml"),
            text.replace("imap://127.0.0.1:", &format!("imap://{}:", host.server)),
        )
        .expect("configuration");
    }
    world
}

struct Mail {
    author: u64,
    recipients: Vec<u64>,
    bytes: Vec<u8>,
}

fn mails(dice: &mut Dice) -> Vec<Mail> {
    let mail = |n: usize| {
        let author = dice.below(ACCOUNTS);
        let mut recipients: Vec<u64> = Vec::new();
        for _ in 0..=dice.below(5) {
            let recipient = dice.below(ACCOUNTS);
            if !recipients.contains(&recipient) {
                recipients.push(recipient);
            }
        }
        let text = format!(
            "Authentication-Results: axial.net; dmarc=pass header.from=axial.net\nFrom: u{author}@axial.net\nTo: all\n\
             Subject: message {n}\nMessage-ID: <m{n}@axial.net>\n\nNumber {n}.\n"
        );
        Mail { author, recipients, bytes: text.into_bytes() }
    };
    (0..MESSAGES).map(mail).collect()
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
}

/// One try; true when it is delivered.
fn attempt(host: &Host, mail: &Mail, task: &Task, seed: u64, counts: &Mutex<Counts>) -> bool {
    let place = (task.mail as u64) << 32 | task.recipient << 16 | (task.host as u64) << 8 | task.tries;
    let mut dice = Dice(seed ^ Dice(place).next());
    let fate = (task.tries < 2 && dice.below(100) < KILLS_PER_HUNDRED)
        .then(|| Duration::from_micros(dice.below(LATEST_KILL.as_micros() as u64)));
    let mut child = host.deliver(&format!("u{}@axial.net", task.recipient), &format!("Q{}", task.mail), &mail.bytes);
    if let Some(after) = fate
        && !wait_until(after, || !matches!(child.try_wait(), Ok(None)))
    {
        let _ = child.kill();
    }
    let output = child.wait_with_output().expect("end");
    let mut counts = counts.lock().expect("counts");
    counts.tries += 1;
    match output.status.code() {
        Some(0) => return true,
        Some(75) => counts.deferred += 1,
        None if fate.is_some() => counts.killed += 1,
        other => panic!("{other:?}: {output:?}"),
    }
    false
}

/// Works on one host's queue until it is empty.
fn work(host: &Host, queue: &Mutex<VecDeque<Task>>, mails: &[Mail], seed: u64, counts: &Mutex<Counts>, end: Instant) {
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

/// The Message-IDs in a mailbox, sorted, each as often as it is there.
fn message_ids(dovecot: &Dovecot, account: &str, mailbox: &str) -> Vec<String> {
    let id = |message: &Vec<u8>| {
        let text = String::from_utf8_lossy(message).into_owned();
        text.lines().find_map(|line| line.strip_prefix("Message-ID: ").map(str::to_owned)).unwrap_or(text)
    };
    let mut ids: Vec<String> = dovecot.messages(account, mailbox).iter().map(id).collect();
    ids.sort();
    ids
}

fn tally(world: &World, mails: &[Mail]) -> usize {
    let mut expected: BTreeMap<(u64, &str), Vec<String>> = BTreeMap::new();
    for account in 0..ACCOUNTS {
        expected.insert((account, "INBOX"), Vec::new());
        expected.insert((account, "Sent"), Vec::new());
    }
    for (n, mail) in mails.iter().enumerate() {
        let inboxes = mail.recipients.iter().map(|recipient| (*recipient, "INBOX"));
        for place in inboxes.chain([(mail.author, "Sent")]) {
            expected.entry(place).or_default().push(format!("<m{n}@axial.net>"));
        }
    }
    let mut copies = 0;
    for ((account, mailbox), mut ids) in expected {
        ids.sort();
        copies += ids.len();
        assert_eq!(message_ids(&world.dovecot, &format!("u{account}"), mailbox), ids, "u{account}/{mailbox}");
    }
    copies
}

#[test]
fn four_hosts_with_killed_processes_leave_exactly_the_expected_copies() {
    let began = Instant::now();
    let seed = std::env::var("ONEDROP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64 % 1_000_000_007
    });
    let mut dice = Dice(seed);
    let (root, net) = (TempRoot::new(), free_net());
    let hosts: Vec<Host> = (0..HOSTS).map(|n| Host::start(&root, n, net)).collect();
    let world = servers(&hosts, root, net);
    let mails = mails(&mut dice);
    let mut queues: Vec<VecDeque<Task>> = (0..HOSTS).map(|_| VecDeque::new()).collect();
    for (n, mail) in mails.iter().enumerate() {
        for recipient in &mail.recipients {
            let host = dice.below(HOSTS as u64) as usize;
            let other = (host + 1 + dice.below(HOSTS as u64 - 1) as usize) % HOSTS;
            for host in [host, other] {
                let task = Task { mail: n, recipient: *recipient, host, tries: 0, not_before: began };
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
    let copies = tally(&world, &mails);
    let sql = |sql: &str| world.postgres.psql(sql);
    let found = sql("SELECT count(*) FROM onedrop_copy WHERE found_by_look");
    let again = sql("SELECT count(*) FROM onedrop_copy WHERE epoch > 1");
    writeln!(
        std::io::stderr(),
        "four hosts: seed {seed}; {MESSAGES} messages, {deliveries} deliveries on {HOSTS} hosts in {} tries ({} killed, {} \
         deferred); {copies} copies, {again} of them leased more than once, {found} found by the look; {:.0} s and {:.0} s \
         to set up",
        counts.tries,
        counts.killed,
        counts.deferred,
        (began.elapsed() - setup).as_secs_f32(),
        setup.as_secs_f32(),
    )
    .expect("stderr");
    let clean = "SELECT count(*) FILTER (WHERE placed_at IS NOT NULL AND NOT in_doubt AND leased_until IS NULL), count(*) \
                 FROM onedrop_copy";
    assert_eq!(sql(clean), format!("{copies}|{copies}"));
    assert_eq!(sql("SELECT count(*) FROM onedrop_message"), MESSAGES.to_string());
    assert_eq!(sql("SELECT string_agg(DISTINCT host, ' ' ORDER BY host) FROM onedrop_attempt"), "mx0 mx1 mx2 mx3");
    let delivered = "SELECT count(*) FROM (SELECT DISTINCT message_id, recipient, host FROM onedrop_attempt \
                     WHERE outcome = 'delivered') AS told";
    assert_eq!(sql(delivered), deliveries.to_string(), "every recipient was delivered on two hosts");
    assert!(counts.killed > deliveries / 20, "only {} were killed", counts.killed);
    assert_ne!(again, "0", "nobody was killed between record and end");
}
