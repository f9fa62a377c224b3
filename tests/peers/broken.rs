//! Parts that break in mid-run: sessions, servers, disks, mailboxes, quotas. Whatever was tried in
//! vain ends in 75, and tries until 0 leave exactly one copy in each mailbox.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use onedrop_core::testing::chance::Chance;

use crate::support::dovecot::Dovecot;
use crate::support::pgbouncer::PgBouncer;
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::site::{Site, settle_lost};
use crate::support::trial::{End, LETTERS, Letter, for_each};
use crate::support::{is_full, wait_until};

/// A lease that runs out soon; a little patience, as by default.
const BRISK: &str =
    "[lock]\nwait_secs = 2\nlease_secs = 6\n[limits]\ndeadline_secs = 5\nanswer_secs = 2\n";
const LONG: Duration = Duration::from_secs(60);

fn terms() -> String {
    format!("{LETTERS}{BRISK}")
}

fn by_store_proxy(site: &Site, name: &str, proxy: &Proxy) -> PathBuf {
    let store = format!("store.url = \"imap://127.0.0.1:{}\"\n", proxy.port());
    site.config(name, &format!("{store}{}", terms()))
}

fn imap_proxy(site: &Site) -> Proxy {
    Proxy::start(Upstream::Imap(site.dovecot.imap_port()))
}

/// A delivery is held at `stage` on its way to the store, `meanwhile` something happens, and it
/// goes on.
fn deliver_while(site: &Site, letter: &Letter, stage: Stage, meanwhile: impl FnOnce()) -> End {
    let proxy = imap_proxy(site);
    let config = by_store_proxy(site, &letter.recipient(), &proxy);
    proxy.plan(stage, Fault::Hold);
    let run = letter.start(&config);
    proxy.wait_reached();
    meanwhile();
    proxy.release();
    run.end()
}

#[test]
fn a_ledger_session_that_is_terminated_while_the_copy_is_written_costs_nothing() {
    let site = Site::with_servers();
    let stages = [("login", Stage::Login), ("append", Stage::Append), ("answer", Stage::Answer)];
    for (in_doubt, (name, stage)) in
        [false, true].into_iter().flat_map(|doubt| stages.map(|stage| (doubt, stage)))
    {
        let name =
            if in_doubt { format!("ended-in-doubt-{name}") } else { format!("ended-{name}") };
        let letter = Letter::new(&name);
        if in_doubt {
            letter.leave_in_doubt(&site);
        }
        let end = deliver_while(&site, &letter, stage, || {
            // The login goes on beside the record: the session is ended between record and place.
            let recorded = format!(
                "SELECT count(*) FROM onedrop_copy WHERE placed_at IS NULL AND epoch = {} AND \
                 account IN ('{}', '{}')",
                if in_doubt { 2 } else { 1 },
                letter.recipient(),
                letter.author()
            );
            assert!(
                wait_until(Duration::from_secs(20), || site.postgres.psql(&recorded) == "2"),
                "not recorded"
            );
            let ended = site.postgres.psql(
                "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE \
                 application_name = 'onedrop' AND datname = current_database()",
            );
            assert_ne!(ended, "0", "no session of the delivery's");
        });
        // With the copy written, the session is opened again for its receipt. Without a turn it is
        // not missed before; in doubt, without its turn, the delivery may be tried again.
        assert!(matches!(end.status.code(), Some(0 | 75)), "{end:?}");
        if stage != Stage::Login || !in_doubt {
            end.is(0, "stored");
        }
        letter.deliver_in_the_end(&site.config("again", &terms()));
        letter.stands_once(&site);
        assert!(!letter.was_found(&site), "the receipt came on record by its own delivery");
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
    let mut site = Site::with_own_postgres();
    let config = site.config("crash", &terms());
    let letters = letters("crash", 60);
    deliver_all_while(&letters, 4, &config, |delivered| {
        for at in [15, 35] {
            wait_for(delivered, at);
            site.postgres.stop_immediate();
            site.postgres.restart();
        }
    });
    settle_lost(&config, |sql| site.postgres.psql(sql));
    for letter in &letters {
        letter.stands_once(&site);
    }
}

#[test]
fn a_pgbouncer_that_is_restarted_in_mid_run_loses_and_doubles_nothing() {
    let site = Site::with_servers();
    let mut pooler = PgBouncer::start(&site.postgres);
    let config = site.config("pooled", &format!("ledger.url = \"{}\"\n{}", pooler.url(), terms()));
    let letters = letters("pooled", 60);
    deliver_all_while(&letters, 4, &config, |delivered| {
        for at in [15, 35] {
            wait_for(delivered, at);
            pooler.restart();
        }
    });
    for letter in &letters {
        letter.stands_once(&site);
    }
}

/// What the primary has confirmed, the standby has: its commits wait for it, but for a receipt
/// whose loss a look makes good.
#[test]
fn a_failover_to_a_synchronous_standby_loses_and_doubles_nothing() {
    let messages = if is_full() { 500 } else { 120 };
    let mut site = Site::with_own_postgres();
    let standby = site.postgres.standby();
    let both = format!(
        "[ledger]\nurl = \"postgres://onedrop@127.0.0.1:{},127.0.0.1:{}/onedrop\"\n\
         password_file = \"$DIR/ledger.password\"\n",
        site.postgres.port(),
        standby.port()
    );
    let config = site.config("failover", &format!("{both}{}", terms()));
    // Several messages to each of fifty recipients, all by one author.
    let letters: Vec<Letter> = (0..messages)
        .map(|number| Letter::between("author", &format!("r{}", number % 50), number))
        .collect();
    let mut primary = std::mem::replace(&mut site.postgres, standby);
    deliver_all_while(&letters, 8, &config, |delivered| {
        wait_for(delivered, messages / 3);
        primary.stop_immediate();
        site.postgres.promote();
    });
    settle_lost(&config, |sql| site.postgres.psql(sql));
    let subjects = |account: &str, mailbox: &str| {
        let mut found: Vec<String> = site
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
            (0..messages).filter(wanted).map(|number| format!("number {number}")).collect();
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
    let open = site.postgres.psql("SELECT count(*) FROM onedrop_copy WHERE placed_at IS NULL");
    let all = site.postgres.psql("SELECT count(*) FROM onedrop_copy");
    assert_eq!((open.as_str(), all), ("0", (2 * messages).to_string()));
}

/// The write-ahead log on a disk of its own, full: Postgres gives up, and comes back when there is
/// room again.
#[test]
fn a_full_disk_under_postgres_defers_and_then_gets_one_copy() {
    let mut site = Site::with_own_postgres();
    // Messages that the ledger keeps, of a size that fills the log's current file soon.
    let config = site.config("full", &format!("ledger.keep_raw = true\n{}", terms()));
    site.postgres.stop_immediate();
    let disk = site.postgres.move_wal_to_small_disk("128m");
    site.postgres.restart();
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
    assert!(site.postgres.log().contains("No space left on device"), "{}", site.postgres.log());
    disk.make_room();
    site.postgres.restart();
    // On a busy machine so large a message takes seconds.
    let times = "[lock]\nwait_secs = 20\nlease_secs = 60\n[limits]\ndeadline_secs = 45\n";
    let patient = site.config("patient", &format!("ledger.keep_raw = true\n{LETTERS}{times}"));
    for letter in [&before].into_iter().chain(&letters) {
        letter.deliver_in_the_end(&patient);
        letter.stands_once(&site);
    }
}

/// Lines of hexadecimal digits that repeat nowhere.
fn incompressible(size: usize, seed: u64) -> Vec<u8> {
    let mut chance = Chance::Seeded(seed);
    let mut text = Vec::with_capacity(size + 17);
    while text.len() < size {
        text.extend_from_slice(format!("{:016x}\n", chance.number()).as_bytes());
    }
    text
}

#[test]
fn a_mailbox_that_goes_between_look_and_append_is_made_again() {
    let site = Site::with_servers();
    let plain = site.config("plain", &terms());
    let no_sent =
        site.config("no-sent", &terms().replace("trust = \"header\"", "trust = \"never\""));
    for (name, command) in [("renamed", "RENAME Sent Old"), ("deleted", "DELETE Sent")] {
        let letter = Letter::new(name);
        // The INBOX has its copy: what follows is about Sent alone, which is there and has nothing
        // in it.
        letter.deliver(&no_sent).is(0, "stored");
        let by_its_owner = |command: &str| {
            let answer = site.dovecot.session(&letter.author()).command(command).expect("answer");
            assert!(answer.is_ok(), "{command}: {}", answer.tagged);
        };
        by_its_owner("CREATE Sent");
        // A first try whose end is not known, so that the second one looks before it appends.
        let proxy = imap_proxy(&site);
        proxy.plan(Stage::LastBytes, Fault::Cut);
        letter
            .deliver(&by_store_proxy(&site, &format!("{name}-cut"), &proxy))
            .is(0, "already there")
            .says("kept for later");
        let proxy = imap_proxy(&site);
        let config = by_store_proxy(&site, &format!("{name}-held"), &proxy);
        proxy.plan(Stage::Append, Fault::Hold);
        let mut run = letter.start(&config);
        while !wait_until(Duration::from_millis(200), || proxy.reached() > 0) {
            // The lease of the first try is not over.
            if run.has_ended() {
                run.end().is(0, "already there").says("kept for later");
                run = letter.start(&config);
            }
        }
        by_its_owner(command);
        proxy.release();
        // Dovecot may say that the mailbox is not there, or that it is at its wits' end, which is a
        // doubt: then the next delivery places it.
        let end = run.end();
        if !end.out.contains("account=by-") || end.out.contains("kept for later") {
            end.is(0, "already there").says("appending to ");
            letter.deliver_in_the_end(&plain);
        }
        letter.stands_once(&site);
        letter.deliver(&plain).is(0, "already there");
    }
}

#[test]
fn a_mailbox_over_its_quota_defers_or_bounces_by_configuration() {
    let quota = "mail_plugins = quota\nprotocol imap {\n  mail_plugins = quota imap_quota\n}\n\
                 plugin {\n  quota = count:User quota\n  quota_rule = *:messages=1\n  quota_vsizes \
                 = yes\n}\n";
    let site = Site::with(Dovecot::start_with(quota));
    let defer = site.config("defer", &terms());
    let bounce = format!("store.over_quota = \"bounce\"\n{}", terms());
    let bounce = site.config("bounce", &bounce);
    let (first, second) = (Letter::between("a", "full", 1), Letter::between("b", "full", 2));
    first.deliver(&defer).is(0, "stored");
    second.deliver(&defer).is(75, "4.2.2 store: over quota");
    second.deliver(&bounce).is(69, "5.2.2 store: over quota");
    assert_eq!(site.dovecot.count("full", "INBOX"), 1);
    // Room again: nothing of the refused tries stands in the way.
    site.dovecot.empty("full");
    second.deliver(&defer).is(0, "stored");
    assert_eq!(site.dovecot.count("full", "INBOX"), 1);
    assert_eq!(site.dovecot.count("b", "Sent"), 1);
}

#[test]
fn a_message_that_the_server_finds_too_big_defers_and_leaves_nothing() {
    let size = "mail_plugins = quota\nplugin {\n  quota_max_mail_size = 10k\n}\n";
    let site = Site::with(Dovecot::start_with(size));
    let config = site.config("size", &terms());
    let big = Letter::with_body("big", "a line of text\n".repeat(2000).as_bytes());
    big.deliver(&config).is(75, "4.2.3 store: message too big");
    assert_eq!(site.dovecot.count(&big.recipient(), "INBOX"), 0);
    let small = Letter::new("small");
    small.deliver(&config).is(0, "stored");
    small.stands_once(&site);
}
