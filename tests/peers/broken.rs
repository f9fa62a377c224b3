//! Parts that break in mid-run: sessions, servers, disks, mailboxes, quotas. Whatever was tried in
//! vain ends in 75, and tries until 0 leave exactly one copy in each mailbox.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::dovecot::Dovecot;
use crate::support::pgbouncer::PgBouncer;
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::trial::{End, LETTERS, Letter, for_each};
use crate::support::wait_until;
use crate::support::world::World;

/// A lease that runs out soon; a little patience, as by default.
const BRISK: &str =
    "[lock]\nwait_secs = 2\nlease_secs = 6\n[limits]\ndeadline_secs = 5\nanswer_secs = 2\n";
const LONG: Duration = Duration::from_secs(60);

fn terms() -> String {
    format!("{LETTERS}{BRISK}")
}

fn by_store_proxy(world: &World, name: &str, proxy: &Proxy) -> PathBuf {
    let ledger = format!("url = \"{}\"", world.postgres.url_socket());
    let store = format!("url = \"imap://127.0.0.1:{}\"\nstarttls = false", proxy.port());
    world.config_by(name, &ledger, &store, &terms())
}

fn imap_proxy(world: &World) -> Proxy {
    Proxy::start(Upstream::Imap(world.dovecot.imap_port()))
}

/// A delivery is held at `stage` on its way to the store, `meanwhile` something happens, and it
/// goes on.
fn deliver_while(world: &World, letter: &Letter, stage: Stage, meanwhile: impl FnOnce()) -> End {
    let proxy = imap_proxy(world);
    let config = by_store_proxy(world, &letter.recipient(), &proxy);
    proxy.plan(stage, Fault::Hold);
    let run = letter.start(&config);
    proxy.wait_reached();
    meanwhile();
    proxy.release();
    run.end()
}

#[test]
fn a_ledger_session_that_is_terminated_while_the_copy_is_written_costs_nothing() {
    let world = World::start();
    let stages = [("login", Stage::Login), ("append", Stage::Append), ("answer", Stage::Answer)];
    for (in_doubt, (name, stage)) in
        [false, true].into_iter().flat_map(|doubt| stages.map(|stage| (doubt, stage)))
    {
        let name =
            if in_doubt { format!("ended-in-doubt-{name}") } else { format!("ended-{name}") };
        let letter = Letter::new(&name);
        if in_doubt {
            letter.leave_in_doubt(&world);
        }
        let end = deliver_while(&world, &letter, stage, || {
            // The login goes on beside the record: the session is ended between record and place.
            let recorded = format!(
                "SELECT count(*) FROM onedrop_copy WHERE placed_at IS NULL AND epoch = {} AND account IN ('{}', '{}')",
                if in_doubt { 2 } else { 1 },
                letter.recipient(),
                letter.author()
            );
            assert!(
                wait_until(Duration::from_secs(20), || world.postgres.psql(&recorded) == "2"),
                "not recorded"
            );
            let ended = world.postgres.psql(
                "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name = 'onedrop'",
            );
            assert_ne!(ended, "0", "no session of the delivery's");
        });
        // With the copy written, the session is opened again for its receipt. Without a turn it is
        // not missed before; in doubt, without its turn, the delivery may be tried again.
        assert!(matches!(end.status.code(), Some(0 | 75)), "{end:?}");
        if stage != Stage::Login || !in_doubt {
            end.is(0, "stored");
        }
        letter.deliver_in_the_end(&world.config("again", &terms()));
        letter.stands_once(&world);
        assert!(!letter.was_found(&world), "the receipt came on record by its own delivery");
    }
}

/// Workers deliver `letters` until each is there, while `disturb` does its worst.
fn deliver_all_while(
    letters: &[Letter],
    workers: usize,
    config: &Path,
    disturb: impl FnOnce(&AtomicUsize) + Send,
) {
    let delivered = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| disturb(&delivered));
        for_each(letters, workers, |letter| {
            letter.deliver_in_the_end(config);
            delivered.fetch_add(1, Ordering::SeqCst);
        });
    });
}

fn letters(name: &str, count: usize) -> Vec<Letter> {
    (0..count).map(|number| Letter::new(&format!("{name}-{number}"))).collect()
}

fn wait_for(delivered: &AtomicUsize, count: usize) {
    assert!(
        wait_until(LONG, || delivered.load(Ordering::SeqCst) >= count),
        "deliveries stand still"
    );
}

#[test]
fn a_postgres_that_crashes_twice_in_mid_run_loses_and_doubles_nothing() {
    let world = World::start();
    let config = world.config("crash", &terms());
    let World { mut postgres, dovecot, root } = world;
    let letters = letters("crash", 60);
    deliver_all_while(&letters, 4, &config, |delivered| {
        for at in [15, 35] {
            wait_for(delivered, at);
            postgres.stop_immediate();
            postgres.restart();
        }
    });
    let world = World { postgres, dovecot, root };
    for letter in &letters {
        letter.stands_once(&world);
    }
}

#[test]
fn a_pgbouncer_that_is_restarted_in_mid_run_loses_and_doubles_nothing() {
    let world = World::start();
    let mut pooler = PgBouncer::start(&world.postgres);
    let config = world.config_with("pooled", &format!("url = \"{}\"", pooler.url()), &terms());
    let letters = letters("pooled", 60);
    deliver_all_while(&letters, 4, &config, |delivered| {
        for at in [15, 35] {
            wait_for(delivered, at);
            pooler.restart();
        }
    });
    for letter in &letters {
        letter.stands_once(&world);
    }
}

/// What the primary has confirmed, the standby has: its commits wait for it.
#[test]
fn a_failover_to_a_synchronous_standby_loses_and_doubles_nothing() {
    const MESSAGES: usize = 500;
    let mut world = World::start();
    let standby = world.postgres.standby();
    let both = format!(
        "url = \"postgres://onedrop@127.0.0.1:{},127.0.0.1:{}/onedrop\"\npassword_file = \"$PASSWORD\"",
        world.postgres.port(),
        standby.port()
    );
    let config = world.config_with("failover", &both, &terms());
    // Ten messages to each of fifty recipients, all by one author.
    let letters: Vec<Letter> = (0..MESSAGES)
        .map(|number| Letter::between("author", &format!("r{}", number % 50), number))
        .collect();
    let World { postgres, dovecot, root } = world;
    let mut primary = postgres;
    deliver_all_while(&letters, 8, &config, |delivered| {
        wait_for(delivered, MESSAGES / 3);
        primary.stop_immediate();
        standby.promote();
    });
    world = World { postgres: standby, dovecot, root };
    let subjects = |account: &str, mailbox: &str| {
        let mut found: Vec<String> = world
            .dovecot
            .messages(account, mailbox)
            .iter()
            .map(|mail| {
                let text = String::from_utf8_lossy(mail).into_owned();
                text.split_once("Subject: ")
                    .and_then(|(_, rest)| rest.split_once("\r\n"))
                    .expect("a subject")
                    .0
                    .to_owned()
            })
            .collect();
        found.sort();
        found
    };
    let expected = |wanted: &dyn Fn(&usize) -> bool| {
        let mut all: Vec<String> =
            (0..MESSAGES).filter(wanted).map(|number| format!("number {number}")).collect();
        all.sort();
        all
    };
    for recipient in 0..50 {
        assert_eq!(
            subjects(&format!("r{recipient}"), "INBOX"),
            expected(&|number| number % 50 == recipient)
        );
    }
    assert_eq!(subjects("author", "Sent"), expected(&|_| true));
    let open = world.postgres.psql("SELECT count(*) FROM onedrop_copy WHERE placed_at IS NULL");
    let all = world.postgres.psql("SELECT count(*) FROM onedrop_copy");
    assert_eq!((open.as_str(), all.as_str()), ("0", "1000"));
}

/// The write-ahead log on a disk of its own, full: Postgres gives up, and comes back when there is
/// room again.
#[test]
fn a_full_disk_under_postgres_defers_and_then_gets_one_copy() {
    let mut world = World::start();
    // Messages that the ledger keeps, of a size that fills the log's current file soon.
    let ledger = format!("url = \"{}\"\nkeep_raw = true", world.postgres.url_socket());
    let config = world.config_with("full", &ledger, &terms());
    world.postgres.stop_immediate();
    let disk = world.postgres.move_wal_to_small_disk("128m");
    world.postgres.restart();
    let before = Letter::new("before");
    before.deliver_in_the_end(&config).is(0, "stored");
    disk.fill();
    let letters: Vec<Letter> = (1..=8)
        .map(|number| {
            Letter::with_body(&format!("full-{number}"), &incompressible(3_000_000, number))
        })
        .collect();
    let ends: Vec<End> = letters.iter().map(|letter| letter.deliver(&config)).collect();
    for end in ends.iter().filter(|end| !end.status.success()) {
        end.is(75, "4.3.0 ");
    }
    assert!(
        ends.iter().any(|end| !end.status.success()),
        "nothing was refused on a full disk: {ends:?}"
    );
    assert!(world.postgres.log().contains("No space left on device"), "{}", world.postgres.log());
    disk.make_room();
    world.postgres.restart();
    for letter in [&before].into_iter().chain(&letters) {
        letter.deliver_in_the_end(&config);
        letter.stands_once(&world);
    }
}

/// Lines of hexadecimal digits that repeat nowhere.
fn incompressible(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut text = Vec::with_capacity(size + 17);
    while text.len() < size {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend_from_slice(format!("{:016x}\n", state ^ (state >> 29)).as_bytes());
    }
    text
}

#[test]
fn a_mailbox_that_goes_between_look_and_append_is_made_again() {
    let world = World::start();
    let plain = world.config("plain", &terms());
    let no_sent =
        world.config("no-sent", &terms().replace("trust = \"header\"", "trust = \"never\""));
    for (name, command) in [("renamed", "rename"), ("deleted", "delete")] {
        let letter = Letter::new(name);
        // The INBOX has its copy: what follows is about Sent alone, which is there and has nothing
        // in it.
        letter.deliver(&no_sent).is(0, "stored");
        let author = letter.author();
        world.dovecot.doveadm(&["mailbox", "create", "-u", &author, "Sent"]);
        // A first try that nobody knows the end of, so that the second one looks before it appends.
        let proxy = imap_proxy(&world);
        proxy.plan(Stage::LastBytes, Fault::Cut);
        letter
            .deliver(&by_store_proxy(&world, &format!("{name}-cut"), &proxy))
            .is(0, "already there")
            .says("kept for later");
        let proxy = imap_proxy(&world);
        let config = by_store_proxy(&world, &format!("{name}-held"), &proxy);
        proxy.plan(Stage::Append, Fault::Hold);
        let mut run = letter.start(&config);
        while !wait_until(Duration::from_millis(200), || proxy.reached() > 0) {
            // The lease of the first try is not over.
            if run.has_ended() {
                run.end().is(0, "already there").says("kept for later");
                run = letter.start(&config);
            }
        }
        let mut args = vec!["mailbox", command, "-u", &author, "Sent"];
        if command == "rename" {
            args.push("Old");
        }
        world.dovecot.doveadm(&args);
        proxy.release();
        // Dovecot may say that the mailbox is not there, or that it is at its wits' end, which is a
        // doubt: then the next delivery places it.
        let end = run.end();
        if !end.out.contains("account=by-") || end.out.contains("kept for later") {
            end.is(0, "already there").says("appending to ");
            letter.deliver_in_the_end(&plain);
        }
        letter.stands_once(&world);
        letter.deliver(&plain).is(0, "already there");
    }
}

#[test]
fn a_mailbox_over_its_quota_defers_or_bounces_by_configuration() {
    let quota = "mail_plugins = quota\nprotocol imap {\n  mail_plugins = quota imap_quota\n}\nplugin {\n  \
                 quota = count:User quota\n  quota_rule = *:messages=1\n  quota_vsizes = yes\n}\n";
    let world = World::with(Dovecot::start_with(quota));
    let defer = world.config("defer", &terms());
    let bounce = format!(
        "starttls = false\nover_quota = \"bounce\"\nurl = \"imap://127.0.0.1:{}\"",
        world.dovecot.imap_port()
    );
    let ledger = format!("url = \"{}\"", world.postgres.url_socket());
    let bounce = world.config_by("bounce", &ledger, &bounce, &terms());
    let (first, second) = (Letter::between("a", "full", 1), Letter::between("b", "full", 2));
    first.deliver(&defer).is(0, "stored");
    second.deliver(&defer).is(75, "4.2.2 store: over quota");
    second.deliver(&bounce).is(69, "5.2.2 store: over quota");
    assert_eq!(world.dovecot.count("full", "INBOX"), 1);
    // Room again: nothing of the refused tries stands in the way.
    world.dovecot.doveadm(&["expunge", "-u", "full", "mailbox", "INBOX", "all"]);
    second.deliver(&defer).is(0, "stored");
    assert_eq!(world.dovecot.count("full", "INBOX"), 1);
    assert_eq!(world.dovecot.count("b", "Sent"), 1);
}

#[test]
fn a_message_that_the_server_finds_too_big_defers_and_leaves_nothing() {
    let size = "mail_plugins = quota\nplugin {\n  quota_max_mail_size = 10k\n}\n";
    let world = World::with(Dovecot::start_with(size));
    let config = world.config("size", &terms());
    let big = Letter::with_body("big", "a line of text\n".repeat(2000).as_bytes());
    big.deliver(&config).is(75, "4.2.3 store: message too big");
    assert_eq!(world.dovecot.count(&big.recipient(), "INBOX"), 0);
    let small = Letter::new("small");
    small.deliver(&config).is(0, "stored");
    small.stands_once(&world);
}
