//! A sender's copy that is left to the mail program first (`sent.after`), by a real submission
//! through Postfix, in a real Dovecot and Postgres, and in Maildirs with SQLite: whoever writes it,
//! and whenever, one stands in Sent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::support::dovecot::Dovecot;
use crate::support::onedrop_path;
use crate::support::postfix::{Postfix, PostfixSpec};
use crate::support::site::{STORY, Site, delivered, run};

const LONG: Duration = Duration::from_secs(120);
const DOUG: &str = "doug@mail.axial.net";
const TO: [&str; 2] = ["scuba@mail.axial.net", "lisa@gmail.com"];

/// The configuration with this time as `sent.after`.
fn after(time: &str) -> String {
    STORY.replace("[sent]\n", &format!("[sent]\nafter = \"{time}\"\n"))
}

fn letter(name: &str) -> Vec<u8> {
    format!(
        "From: Doug <{DOUG}>\nTo: scuba@mail.axial.net\nSubject: {name}\n\
         Date: Sun, 22 Nov 2026 12:00:00 +0000\nMessage-ID: <{name}@x>\n\nthis is {name}\n"
    )
    .into_bytes()
}

/// The letter as Doug's mail program saves it: whom else it went to is in it, and a field that
/// counts as content.
fn as_saved(name: &str) -> Vec<u8> {
    let text = String::from_utf8(letter(name)).expect("text");
    format!("Bcc: boss@mail.axial.net\nContent-Language: en\n{text}").replace('\n', "\r\n").into()
}

fn save(dovecot: &Dovecot, name: &str) {
    let mut doug = dovecot.session("doug");
    drop(doug.command("CREATE Sent"));
    let answer = doug.append("Sent", "(\\Seen)", &as_saved(name)).expect("append");
    assert!(answer.is_ok(), "{answer:?}");
}

/// Ends in 0, and says this many things.
#[track_caller]
fn settles(config: &Path, things: usize) -> String {
    let output = run(config, &["settle"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(told.lines().count(), things, "{}", said(&output));
    told
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// What `name` is in Doug's Sent: those saved by the mail program and those written by Onedrop.
fn standing(sent: &[Vec<u8>], name: &str) -> (usize, usize) {
    let is_of = |text: &str| text.contains(&format!("Message-ID: <{name}@x>"));
    let texts = sent.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let (theirs, ours): (Vec<String>, Vec<String>) =
        texts.filter(|text| is_of(text)).partition(|text| text.starts_with("Bcc:"));
    (theirs.len(), ours.len())
}

/// All that is due is due now, and the time for the next look has come.
fn make_due(site: &Site) {
    site.postgres.psql(
        "UPDATE onedrop_copy SET due_at = clock_timestamp() WHERE due_at IS NOT NULL;
         UPDATE onedrop_unsettled SET look_at = clock_timestamp()",
    );
}

#[test]
fn by_a_real_submission_the_sender_has_one_copy_whoever_writes_it() {
    let site = Site::with_servers();
    let config = site.config("etc", &after("10m"));
    let postfix = Postfix::start(&PostfixSpec {
        config: Some(config.clone()),
        ..PostfixSpec::new(onedrop_path())
    });
    let sent = || site.dovecot.messages("doug", "Sent");
    save(&site.dovecot, "before");
    for name in ["before", "after", "never"] {
        postfix.send_authenticated("doug", DOUG, &TO, &letter(name));
    }
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    let log = postfix.log();
    assert!(log.contains("; due account=doug mailbox=Sent at=20"), "{log}");
    assert!(!log.contains("status=deferred"), "{log}");
    assert_eq!(site.dovecot.count("scuba", "INBOX"), 3);
    assert_eq!(sent().len(), 1, "the mail program's own, and nothing of ours yet");
    let trace = said(&run(&config, &["trace", "never@x"]));
    assert!(trace.contains("due at 20") && trace.contains("may save its own"), "{trace}");
    assert_eq!(run(&config, &["trace", "--failed"]).status.code(), Some(1), "nothing is wrong");
    let verified = run(&config, &["verify", "--repair"]);
    assert_eq!(verified.status.code(), Some(0), "{}", said(&verified));
    settles(&config, 0);
    assert_eq!(sent().len(), 1, "it is not due yet");

    make_due(&site);
    let dry = run(&config, &["settle", "--dry-run", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&dry.stdout).expect("JSON");
    assert_eq!(found.as_array().map(Vec::len), Some(3), "{found}");
    assert_eq!((dry.status.code(), sent().len()), (Some(0), 1), "{}", said(&dry));
    let told = settles(&config, 3);
    assert_eq!(told.matches("settled  due: account=doug mailbox=Sent").count(), 3, "{told}");
    assert_eq!(told.matches("is the mail program's own").count(), 1, "{told}");
    let has = |name: &str| standing(&sent(), name);
    assert_eq!((has("before"), has("after"), has("never")), ((1, 0), (0, 1), (0, 1)));
    settles(&config, 0);
    save(&site.dovecot, "after");
    assert_eq!(has("after"), (1, 1), "for a while there are two");
    make_due(&site);
    let told = settles(&config, 1);
    assert!(told.starts_with("settled  double: "), "{told}");
    assert_eq!((has("before"), has("after"), has("never")), ((1, 0), (1, 0), (0, 1)));
    settles(&config, 0);
    // Ours is whole, as it was submitted, marked as read, and names no recipient.
    let all = sent();
    let ours = all.iter().find(|copy| !copy.starts_with(b"Bcc:")).expect("ours");
    let text = String::from_utf8_lossy(ours);
    let whole = String::from_utf8(letter("never")).expect("text").replace('\n', "\r\n");
    assert!(text.ends_with(&whole) && !text.contains("Delivered-To"), "{text}");
    assert!(site.dovecot.flags("doug", "Sent").iter().all(|flags| flags == &["\\Seen"]));
    let trace = said(&run(&config, &["trace", "after@x"]));
    assert!(trace.contains("left to the mail program's own copy"), "{trace}");
    // One by a command of its own.
    let later = ["-d", "otto@mail.axial.net", "--sasl-username", "doug"];
    let said_of = delivered(&config, &later, &letter("late"));
    assert!(said_of.contains("due account=doug mailbox=Sent at="), "{said_of}");
    assert_eq!(site.postgres.psql("SELECT count(*) FROM onedrop_kept"), "1");
    make_due(&site);
    settles(&config, 1);
    let verified = run(&config, &["verify", "--repair"]);
    assert_eq!(verified.status.code(), Some(0), "{}", said(&verified));
    assert_eq!(sent().len(), 4);
    assert_eq!(site.postgres.psql("SELECT count(*) FROM onedrop_kept"), "0");
}

#[test]
fn in_maildirs_the_sender_has_one_copy_whoever_writes_it() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("etc", &after("1ms"));
    let folder = site.root.join("mail/doug/Maildir/.Sent");
    let sent = || site.copies("doug", ".Sent");
    let save = |name: &str| {
        let text = String::from_utf8(as_saved(name)).expect("text").replace("\r\n", "\n");
        let file = format!("cur/1700000000.M1P2.{name},S={}:2,S", text.len());
        for sub in ["tmp", "new", "cur"] {
            fs::create_dir_all(folder.join(sub)).expect("folders");
        }
        fs::write(folder.join(file), text).expect("a file");
    };
    save("before");
    let deliver = |name: &str, to: &str| {
        delivered(&config, &["-d", to, "--sasl-username", "doug"], &letter(name))
    };
    for name in ["before", "after", "never"] {
        deliver(name, TO[0]);
    }
    thread::sleep(Duration::from_millis(10));
    assert_eq!(sent().len(), 1);
    settles(&config, 3);
    let has = |name: &str| standing(&sent(), name);
    assert_eq!((has("before"), has("after"), has("never")), ((1, 0), (0, 1), (0, 1)));
    save("after");
    let look = "UPDATE onedrop_unsettled SET look_at = 0";
    assert_eq!(site.sqlite().execute(look, []).expect("an earlier look"), 2);
    let told = settles(&config, 1);
    assert!(told.starts_with("settled  double: "), "{told}");
    assert_eq!((has("before"), has("after"), has("never")), ((1, 0), (1, 0), (0, 1)));
    for name in ["before", "after", "never"] {
        let told = deliver(name, "otto@mail.axial.net");
        assert!(told.contains("already there account=doug mailbox=Sent"), "{told}");
    }
    assert_eq!(sent().len(), 3);
    settles(&config, 0);
    let verified = run(&config, &["verify", "--repair"]);
    assert_eq!(verified.status.code(), Some(0), "{}", said(&verified));
    assert_eq!(sent().len(), 3);
}

/// It waited in a queue over a weekend: the program saved its copy long before it was recorded.
#[test]
fn what_the_mail_program_saved_days_before_counts() {
    let site = Site::embedded();
    let config = site.config("etc", &after("1ms"));
    let folder = site.root.join("mail/doug/Maildir/.Sent");
    for sub in ["tmp", "new", "cur"] {
        fs::create_dir_all(folder.join(sub)).expect("folders");
    }
    let dates = [("read", "Date: Fri, 3 Jan 2020 12:00:00 +0000"), ("not", "X-Date: none")];
    for (name, date) in dates {
        let of = |text: Vec<u8>| {
            let text = String::from_utf8(text).expect("text").replace("\r\n", "\n");
            text.replace("Date: Sun, 22 Nov 2026 12:00:00 +0000", date)
        };
        fs::write(folder.join(format!("cur/1.M1P2.{name}:2,S")), of(as_saved(name))).expect("file");
        delivered(&config, &["-d", TO[0], "--sasl-username", "doug"], of(letter(name)).as_bytes());
    }
    let later = "UPDATE onedrop_message SET recorded_at = recorded_at + 180000";
    assert_eq!(site.sqlite().execute(later, []).expect("a later record"), 2);
    thread::sleep(Duration::from_millis(10));
    let told = settles(&config, 2);
    assert_eq!(told.matches("is the mail program's own").count(), 2, "{told}");
    assert_eq!(site.copies("doug", ".Sent").len(), 2);
}

/// Runs all of these at the same moment.
fn at_once(work: &[&(dyn Fn() + Sync)]) {
    let barrier = Barrier::new(work.len());
    thread::scope(|scope| {
        for one in work {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                one();
            });
        }
    });
}

#[test]
fn two_that_settle_at_once_beside_deliveries_and_repairs_leave_one_copy() {
    let site = Site::with_servers();
    let configs: Vec<PathBuf> =
        ["mx1", "mx2"].iter().map(|host| site.config(host, &after("10m"))).collect();
    let sasl = |to: &'static str| ["-d", to, "--sasl-username", "doug"];
    let names: Vec<String> = (0..8).map(|n| format!("race{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        if n % 2 == 0 {
            save(&site.dovecot, name);
        }
        delivered(&configs[0], &sasl(TO[0]), &letter(name));
    }
    make_due(&site);
    let settle = |config: &Path| {
        let output = run(config, &["settle"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    };
    let deliver_all = || {
        for name in &names {
            delivered(&configs[1], &sasl("otto@mail.axial.net"), &letter(name));
        }
    };
    let repair = || {
        let output = run(&configs[1], &["verify", "--repair"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    };
    let (one, two) = (|| settle(&configs[0]), || settle(&configs[1]));
    at_once(&[&one, &two, &deliver_all, &repair]);
    let sent = || site.dovecot.messages("doug", "Sent");
    for (n, name) in names.iter().enumerate() {
        let expected = if n % 2 == 0 { (1, 0) } else { (0, 1) };
        assert_eq!(standing(&sent(), name), expected, "{name}");
    }
    // The mail program saves the others late, and two runs take ours out at once.
    for name in names.iter().skip(1).step_by(2) {
        save(&site.dovecot, name);
    }
    make_due(&site);
    at_once(&[&one, &two, &deliver_all, &repair]);
    for config in &configs {
        make_due(&site);
        settle(config);
    }
    for name in &names {
        assert_eq!(standing(&sent(), name), (1, 0), "{name}");
    }
    assert_eq!(site.dovecot.count("doug", "Sent"), names.len());
    let left = site.postgres.psql(
        "SELECT count(*) FROM onedrop_copy WHERE shared AND (placed_at IS NULL OR NOT by_sender)",
    );
    assert_eq!(left, "0");
}

#[test]
fn among_thousands_the_server_searches_and_little_is_fetched() {
    let site = Site::with_servers();
    let config = site.config("etc", &after("10m"));
    let folder = site.dovecot.maildir("doug").join(".Sent");
    save(&site.dovecot, "one");
    for n in 0..3000 {
        let text = String::from_utf8(letter(&format!("old{n}"))).expect("text");
        fs::write(folder.join(format!("cur/{}.M{n}.old:2,S", 1_700_000_000 + n)), text)
            .expect("mail");
    }
    let sasl = ["-d", TO[0], "--sasl-username", "doug"];
    delivered(&config, &sasl, &letter("one"));
    delivered(&config, &sasl, &letter("two"));
    make_due(&site);
    settles(&config, 2);
    let sent = site.dovecot.messages("doug", "Sent");
    assert_eq!((standing(&sent, "one"), standing(&sent, "two")), ((1, 0), (0, 1)));
    assert_eq!(sent.len(), 3002);
}

#[test]
fn a_setting_that_changes_leaves_what_is_due_and_a_ledger_of_before_says_so() {
    let site = Site::with_servers();
    let (later, now) = (site.config("later", &after("10m")), site.config("now", &after("0s")));
    let sasl = |to: &'static str| ["-d", to, "--sasl-username", "doug"];
    delivered(&later, &sasl(TO[0]), &letter("due"));
    let told = delivered(&now, &sasl("otto@mail.axial.net"), &letter("due"));
    assert!(told.contains("no copy yet in account=doug mailbox=Sent, kept for later"), "{told}");
    let told = delivered(&now, &sasl(TO[0]), &letter("now"));
    assert!(told.contains("stored account=doug mailbox=Sent"), "{told}");
    assert_eq!(site.dovecot.count("doug", "Sent"), 1);
    make_due(&site);
    settles(&now, 1);
    assert_eq!(site.dovecot.count("doug", "Sent"), 2);
    // A copy that nothing settles.
    delivered(&later, &sasl(TO[0]), &letter("forgotten"));
    site.postgres.psql(
        "UPDATE onedrop_copy SET due_at = clock_timestamp() - interval '2 hours'
         WHERE placed_at IS NULL; UPDATE onedrop_unsettled SET look_at = clock_timestamp()",
    );
    let verified = run(&later, &["verify", "--repair"]);
    assert_eq!(verified.status.code(), Some(1), "{}", said(&verified));
    assert!(said(&verified).contains("and not settled: onedrop settle does that"), "{verified:?}");
    assert_eq!(run(&later, &["trace", "--failed"]).status.code(), Some(0));
    settles(&later, 1);
    site.postgres.psql("UPDATE onedrop_ledger SET version = 99");
    let refused = run(&later, &["settle"]);
    assert_eq!(refused.status.code(), Some(75), "{}", said(&refused));
    assert!(said(&refused).contains("schema version 99"), "{refused:?}");
}
