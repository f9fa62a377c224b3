//! Clocks, with real processes and servers: the ledger's clock steps by an hour in the middle of a
//! delivery, a host has other lease times than a server that is delivering, and a sandbox hides
//! which boot it is. A proxy holds the append still meanwhile; the clocks are `wall_clock.c`'s, of
//! the SQL server and of every process of ours.

use std::cell::OnceCell;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::lmtp::Launch;
use crate::support::lmtp_client::Reply;
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::site::{Site, delivered, finish_delivery, run};
use crate::support::{TempRoot, chown_recursive, onedrop, onedrop_path, wait_until};
use crate::wall_clock::WallClock;

const HOUR: i64 = 3600;
const NO_WAIT: &str = "[lock]\nwait_secs = 0\n";
/// A lease that a test waits for.
const SHORT: &str =
    "[lock]\nwait_secs = 0\nlease_secs = 10\n[limits]\ndeadline_secs = 9\nanswer_secs = 2\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Postgres,
    Mariadb,
    Sqlite,
}

use Engine::{Mariadb as OnMariadb, Postgres as OnPostgres, Sqlite as OnSqlite};

const ENGINES: [Engine; 3] = [OnPostgres, OnMariadb, OnSqlite];

struct World {
    site: Site,
    clock: WallClock,
    /// Once it was asked for.
    mariadb: OnceCell<Mariadb>,
}

impl World {
    fn new() -> World {
        let root = TempRoot::new();
        let clock = WallClock::start(&root, "clock");
        let postgres = Postgres::start_by(|command| clock.shown_to(command));
        root.dir_for("db", "root", 0o700);
        let site = Site::of(postgres, Dovecot::start_high_performance(), root);
        World { site, clock, mariadb: OnceCell::new() }
    }

    /// Sets the clock this far ahead of the machine's.
    fn ahead(&self, secs: i64) {
        let (now, by) = (SystemTime::now(), Duration::from_secs(secs.unsigned_abs()));
        self.clock.set(if secs > 0 { now + by } else { now - by });
    }

    fn config(&self, engine: Engine, name: &str, proxy: Option<&Proxy>, more: &str) -> PathBuf {
        let ledger = match engine {
            OnPostgres => String::new(),
            OnMariadb => self.mariadb(),
            OnSqlite => format!("ledger.url = \"sqlite://{}\"\n", self.ledger().display()),
        };
        let store = proxy.map_or(String::new(), |proxy| {
            format!("store.url = \"imap://127.0.0.1:{}\"\n", proxy.port())
        });
        self.site.config(&format!("{engine:?}-{name}"), &format!("{ledger}{store}{more}"))
    }

    /// TOML for a server that has the ledger's schema.
    fn mariadb(&self) -> String {
        let toml = |server: &Mariadb| {
            let url = server.url_socket();
            format!("ledger.url = \"{url}\"\nledger.password_file = \"$DIR/ledger.password\"\n")
        };
        let started = self.mariadb.get_or_init(|| {
            let server = Mariadb::start_by(|command| self.clock.shown_to(command));
            let migrated = run(&self.site.config("mariadb", &toml(&server)), &["migrate"]);
            assert!(migrated.status.success(), "{migrated:?}");
            server.remember_for_ever();
            server
        });
        toml(started)
    }

    fn ledger(&self) -> PathBuf {
        self.site.root.join("db/ledger.db")
    }

    /// One that stops every append at `stage`.
    fn holding(&self, stage: Stage) -> Proxy {
        let proxy = Proxy::start(Upstream::Imap(self.site.dovecot.imap_port()));
        proxy.plan(stage, Fault::Hold);
        proxy
    }

    fn begin(&self, config: &PathBuf, to: &str) -> Child {
        self.begin_by(&mut onedrop(), config, to)
    }

    fn begin_by(&self, command: &mut Command, config: &PathBuf, to: &str) -> Child {
        command.arg("deliver").arg("--config").arg(config).args(["-d", &address(to)]);
        self.clock.shown_to(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("binary")
    }

    /// A delivery that has come to where its proxy holds it.
    fn held(&self, config: &PathBuf, to: &str, proxy: &Proxy) -> Child {
        let mut child = self.begin(config, to);
        let message = message(to);
        child.stdin.take().expect("stdin").write_all(message.as_bytes()).expect("the message");
        proxy.wait_reached();
        child
    }

    fn deliver(&self, config: &PathBuf, to: &str) -> Output {
        finish_delivery(self.begin(config, to), message(to).as_bytes())
    }

    fn copies(&self, to: &str) -> usize {
        let copies = self.site.dovecot.messages(to, "INBOX");
        let message = message(to).replace('\n', "\r\n").into_bytes();
        assert!(copies.iter().all(|copy| *copy == message), "{to}: other bytes");
        copies.len()
    }
}

fn address(to: &str) -> String {
    format!("{to}@mail.axial.net")
}

fn message(id: &str) -> String {
    format!("From: doug@mail.axial.net\nSubject: clocks\nMessage-ID: <{id}@x>\n\nbody of {id}\n")
}

#[track_caller]
fn ends(output: &Output, code: i32, start: &str) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), said.starts_with(start)), (Some(code), true), "{output:?}");
}

#[test]
fn a_clock_that_steps_in_mid_delivery_leaves_one_copy_where_both_are_answered() {
    let world = World::new();
    for engine in ENGINES {
        for (stage, steps) in [(Stage::MidLiteral, &[HOUR][..]), (Stage::LastBytes, &[HOUR, -HOUR])]
        {
            for step in steps.iter().copied() {
                let to = format!("{engine:?}{stage:?}{step}").to_lowercase();
                world.ahead(0);
                let proxy = world.holding(stage);
                let first = world.config(engine, "first", Some(&proxy), NO_WAIT);
                let second = world.config(engine, "second", None, NO_WAIT);
                let late = world.held(&first, &to, &proxy);
                world.ahead(step);
                let other = world.deliver(&second, &to);
                proxy.release();
                let late = late.wait_with_output().expect("its end");
                if engine != OnSqlite && step > 0 {
                    // The lease is over by the server's clock. Whoever is second takes its copy out
                    // again.
                    ends(&other, 0, "stored ");
                    ends(&late, 75, "4.3.0 ");
                } else {
                    // No step moves the clock of the boot, and one back ends no lease.
                    ends(&other, 75, "4.3.0 another delivery ");
                    ends(&late, 0, "stored ");
                }
                ends(&world.deliver(&second, &to), 0, "already there ");
                assert_eq!(world.copies(&to), 1, "{to}");
            }
        }
    }
}

#[test]
fn a_delivery_that_dies_after_a_step_of_the_clock_leaves_a_second_copy_to_verify_at_most() {
    let world = World::new();
    for engine in ENGINES {
        let to = format!("{engine:?}").to_lowercase();
        world.ahead(0);
        let proxy = world.holding(Stage::LastBytes);
        let first = world.config(engine, "first", Some(&proxy), SHORT);
        let second = world.config(engine, "second", None, NO_WAIT);
        let mut late = world.held(&first, &to, &proxy);
        world.ahead(HOUR);
        late.kill().expect("kill");
        late.wait().expect("its end");
        let other = world.deliver(&second, &to);
        proxy.release();
        let copies = match engine {
            OnPostgres | OnMariadb => {
                ends(&other, 0, "stored ");
                2
            }
            OnSqlite => {
                ends(&other, 75, "4.3.0 another delivery ");
                1
            }
        };
        let has_landed = wait_until(Duration::from_secs(10), || world.copies(&to) == copies);
        assert!(has_landed, "{to}: {} copies", world.copies(&to));
        // After the lease, of which SQLite's lasts for as long as it should.
        let found = || world.deliver(&second, &to).status.success();
        assert!(wait_until(Duration::from_secs(30), found), "{to}: never delivered");
        world.ahead(2 * HOUR);
        let verified = run(&second, &["verify", "--repair"]);
        assert!(verified.status.success(), "{verified:?}");
        assert_eq!(world.copies(&to), 1, "{to}: {verified:?}");
    }
}

#[test]
fn other_lease_times_beside_a_server_steal_nothing() {
    let world = World::new();
    // The server makes the ledger in a file, as its user.
    chown_recursive(&world.site.root.join("db"), MAIL_USER);
    for engine in ENGINES {
        let to = format!("{engine:?}").to_lowercase();
        let proxy = world.holding(Stage::LastBytes);
        let long = "[lock]\nlease_secs = 300\n";
        let config = world.config(engine, "server", Some(&proxy), long);
        let server = Launch::of(&config).start();
        let mut client = server.client();
        let told = thread::scope(|scope| {
            let deliver = || client.deliver("doug@mail.axial.net", &[&address(&to)], message(&to));
            let server = scope.spawn(deliver);
            proxy.wait_reached();
            // More than its own lease later, by the ledger's clock and by that of the boot.
            world.ahead(100);
            let other = world.config(engine, "other", None, NO_WAIT);
            let later = ["--time", "--fork", "--boottime", "100"];
            let other = finish_delivery(
                world.begin_by(
                    Command::new("unshare").args(later).arg(onedrop_path()),
                    &other,
                    &to,
                ),
                message(&to).as_bytes(),
            );
            ends(&other, 75, "4.3.0 another delivery ");
            proxy.release();
            server.join().expect("no panic").expect("replies")
        });
        assert!(told.iter().all(Reply::is_ok), "{told:?}");
        let other = world.config(engine, "other", None, NO_WAIT);
        ends(&world.deliver(&other, &to), 0, "already there ");
        assert_eq!(world.site.dovecot.count(&to, "INBOX"), 1);
    }
}

#[test]
fn check_tells_of_a_servers_clock_that_differs() {
    let world = World::new();
    for (engine, ahead, way) in [
        (OnPostgres, HOUR, " s ahead of this host's: "),
        (OnPostgres, -HOUR, " s behind this host's: "),
        (OnPostgres, 0, ""),
        (OnMariadb, HOUR, " s ahead of this host's: "),
    ] {
        let config = world.config(engine, "check", None, "");
        world.ahead(ahead);
        let said = run(&config, &["check", "--account", "scuba"]);
        let said = String::from_utf8(said.stdout).expect("text");
        let start = "warning clock: the ledger's clock is ";
        let told = said.lines().find_map(|line| line.strip_prefix(start));
        let secs: Option<i64> = told.and_then(|told| told.split_once(way)?.0.parse().ok());
        // A busy server takes its time to answer.
        let is_right = match ahead {
            0 => told.is_none(),
            _ => secs.is_some_and(|secs| (HOUR - 60..=HOUR).contains(&secs)),
        };
        assert!(is_right, "{engine:?} {ahead}: {said}");
    }
}

/// What is started so cannot read which boot it is.
fn in_the_dark(args: &[&str]) -> Command {
    let script = "mount --bind /dev/null /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.arg(onedrop_path()).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_boot_id_that_cannot_be_read_is_told_and_leases_nothing() {
    const WHY: &str = "cannot tell which leases live: /proc/sys/kernel/random/boot_id, the id of \
                       the boot, cannot be read: \"\" is no boot's id";
    let site = Site::embedded();
    let config = site.config("etc", "");
    let path = config.to_str().expect("text");
    // Another process may have leased it: that must not pass for a lease of another boot.
    let (args, mail) = (["-d", "scuba@mail.axial.net"], message("dark"));
    let deliver = ["deliver", "--config", path, args[0], args[1]];
    let child = in_the_dark(&deliver).spawn().expect("unshare");
    ends(&finish_delivery(child, mail.as_bytes()), 75, &format!("4.3.5 ledger: {WHY}"));
    assert_eq!(site.ledger("SELECT count(*) || '' FROM onedrop_message"), ["0"]);
    let checked = in_the_dark(&["check", "--config", path]).output().expect("unshare");
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(75), "{said}");
    assert!(said.lines().any(|line| line.starts_with(&format!("error   clock: {WHY}"))), "{said}");
    let with_lock = ["with-lock", "--config", path, "n", "--", "true"];
    let locked = in_the_dark(&with_lock).output().expect("unshare");
    assert_eq!(locked.status.code(), Some(125), "{locked:?}");
    delivered(&config, &args, mail.as_bytes());
    site.inbox_has("scuba", [mail]);
}
