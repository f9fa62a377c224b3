//! Each kind of filter, with a delivery that dies or loses its connection at each step of the
//! hand-off and is then tried until it succeeds: the copy lies where the filter puts it, once, and
//! what the filter sends goes out once.
//!
//! Without the guard one window remains for filters that leave nothing in a mailbox: the server has
//! carried them out, and its answer is lost.

use std::fmt::{Debug, Formatter};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::support::dovecot::Dovecot;
use crate::support::filters::{Filters, Guard};
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::site::Site;
use crate::support::trial::{End, Run, for_each};
use crate::support::{is_full, onedrop, wait_until};

/// A lease that runs out soon after a process that held it must have ended.
const TERMS: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n\
     [lock]\nwait_secs = 0\nlease_secs = 6\n[limits]\ndeadline_secs = 5\nanswer_secs = 2\n";
const AT_ONCE: usize = 8;
/// A lease, and a busy machine.
const LONGEST_CURE: Duration = Duration::from_secs(40);

/// What a filter does with a message.
struct Story {
    name: &'static str,
    /// The account's own script.
    script: &'static str,
    /// Mailboxes with the copy.
    copies: &'static [&'static str],
    /// To whom a message is sent.
    sent: &'static [&'static str],
    /// What it does where the server's answer is lost and no guard is there.
    unguarded: Unguarded,
}

/// What a filter that runs twice does.
#[derive(Clone, Copy, PartialEq)]
enum Unguarded {
    /// The same: a look finds the copy, or there is nothing to see.
    TheSame,
    /// Pigeonhole itself remembers where it has forwarded a Message-ID, does not do it again, and
    /// keeps the message instead.
    Kept,
    /// It sends again.
    SentAgain,
}
use Unguarded::{Kept, SentAgain, TheSame};

impl Debug for Story {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const SENDER: &str = "ann@elsewhere.example";

const STORIES: [Story; 11] = [
    Story {
        name: "none",
        script: "# nothing\n",
        copies: &["INBOX"],
        sent: &[],
        unguarded: TheSame,
    },
    Story {
        name: "fileinto",
        script: "require [\"fileinto\", \"mailbox\"];\nfileinto :create \"Lists/rust\";\n",
        copies: &["Lists/rust"],
        sent: &[],
        unguarded: TheSame,
    },
    Story {
        name: "vacation",
        script: "require \"vacation\";\nvacation :days 1 \"I am at the sea.\";\n",
        copies: &["INBOX"],
        sent: &[SENDER],
        unguarded: TheSame,
    },
    Story {
        name: "forward",
        script: "redirect \"far@elsewhere.example\";\n",
        copies: &[],
        sent: &["far@elsewhere.example"],
        unguarded: Kept,
    },
    Story {
        name: "copied",
        script: "require \"copy\";\nredirect :copy \"far@elsewhere.example\";\n",
        copies: &["INBOX"],
        sent: &["far@elsewhere.example"],
        unguarded: TheSame,
    },
    Story {
        name: "reject",
        script: "require \"reject\";\nreject \"Not here.\";\n",
        copies: &[],
        sent: &[SENDER],
        unguarded: SentAgain,
    },
    // The address with its detail, which only ORCPT names.
    Story {
        name: "envelope",
        script: "require [\"envelope\", \"fileinto\", \"mailbox\"];\n\
                 if envelope :contains \"to\" \"+detail@mail.axial.net\" {\n  \
                 fileinto :create \"detail\";\n}\n",
        copies: &["detail"],
        sent: &[],
        unguarded: TheSame,
    },
    // The scripts before and after it act on its subject.
    Story {
        name: "around",
        script: "require \"imap4flags\";\naddflag \"mine\";\nkeep;\n",
        copies: &["before", "after", "INBOX"],
        sent: &[],
        unguarded: TheSame,
    },
    Story {
        name: "broken",
        script: "this is no script\n",
        copies: &["INBOX"],
        sent: &[],
        unguarded: TheSame,
    },
    // It fails as it runs: Dovecot keeps the message in INBOX, and the guard remembers nothing.
    Story {
        name: "fails",
        script: "require \"fileinto\";\nfileinto \"Nowhere\";\n",
        copies: &["INBOX"],
        sent: &[],
        unguarded: TheSame,
    },
    Story { name: "discard", script: "discard;\n", copies: &[], sent: &[], unguarded: TheSame },
];

const BEFORE: &str = "require [\"fileinto\", \"mailbox\", \"copy\"];\n\
     if header :contains \"subject\" \"around\" { fileinto :copy :create \"before\"; }\n";
const AFTER: &str = "require [\"fileinto\", \"mailbox\", \"copy\"];\n\
     if header :contains \"subject\" \"around\" { fileinto :copy :create \"after\"; }\n";

/// A way for the first try to fail at a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failing {
    /// Its connection is closed.
    Cut,
    /// It is killed.
    Killed,
}
use Failing::{Cut, Killed};

const STEPS: [Stage; 12] = [
    Stage::Greeting,
    Stage::Before("LHLO"),
    Stage::After("LHLO"),
    Stage::Before("MAIL"),
    Stage::After("MAIL"),
    Stage::Before("RCPT"),
    Stage::After("RCPT"),
    Stage::Before("DATA"),
    Stage::After("DATA"),
    Stage::MidLiteral,
    Stage::LastBytes,
    Stage::Answer,
];

/// One message through one filter, to an account of its own.
struct Passage<'a> {
    site: &'a Site,
    filters: &'a Filters,
    story: &'a Story,
    /// The account, which the file names and Message-ID are made of.
    name: String,
}

impl Passage<'_> {
    fn new<'a>(site: &'a Site, filters: &'a Filters, story: &'a Story, n: usize) -> Passage<'a> {
        let name = format!("{}-{n}", story.name);
        site.dovecot.make_home(&name);
        filters.script(&name, story.script);
        Passage { site, filters, story, name }
    }

    fn address(&self) -> String {
        format!("{}+detail@mail.axial.net", self.name)
    }

    fn message(&self) -> String {
        let (name, to) = (&self.name, self.address());
        format!(
            "From: {SENDER}\nTo: {to}\nDate: Sun, 22 Nov 2026 12:00:00 +0000\n\
             Subject: {name}\nMessage-ID: <{name}@x>\n\nthis is {name}\n"
        )
    }

    fn config(&self, port: u16) -> PathBuf {
        let store = format!("store.lmtp = \"lmtp://127.0.0.1:{port}\"\n");
        self.site.config(&self.name, &format!("{store}{TERMS}"))
    }

    /// What `onedrop check` puts on record.
    fn prove_guard(&self, port: u16) {
        self.site.note_the_guard(&format!("lmtp://127.0.0.1:{port}"));
    }

    fn start(&self, config: &std::path::Path) -> Run {
        let mut command = onedrop();
        command.args(["deliver", "-f", SENDER, "-d", &self.address(), "--config"]).arg(config);
        command.current_dir("/");
        let mut run = Run::start(command);
        run.feed(self.message().into_bytes());
        run
    }

    /// Tries until 0, as Postfix would.
    #[track_caller]
    fn deliver_in_the_end(&self, config: &std::path::Path) -> End {
        let mut last = None;
        let delivered = wait_until(LONGEST_CURE, || {
            let end = self.start(config).end();
            let is_over = end.status.success();
            if !is_over {
                end.is(75, "4.");
                thread::sleep(Duration::from_millis(600));
            }
            last = Some(end);
            is_over
        });
        assert!(delivered, "{}: not delivered: {last:?}", self.name);
        last.expect("it was tried")
    }

    /// It has gone through its filter once, or twice in the way that the story says.
    #[track_caller]
    fn went_through(&self, unguarded: Unguarded) {
        let name = &self.name;
        let copies = if unguarded == Kept { &["INBOX"] } else { self.story.copies };
        let sent = if unguarded == SentAgain { 2 } else { 1 };
        let mut mailboxes = vec!["INBOX", "Lists/rust", "detail", "before", "after"];
        mailboxes.retain(|mailbox| !copies.contains(mailbox));
        for mailbox in mailboxes {
            assert_eq!(self.site.dovecot.count(name, mailbox), 0, "{name}: {mailbox}");
        }
        for mailbox in copies {
            let copies = self.site.dovecot.messages(name, mailbox);
            assert_eq!(copies.len(), 1, "{name}: {mailbox}");
            let copy = String::from_utf8_lossy(&copies[0]).replace("\r\n", "\n");
            let (head, letter) = copy.split_at(copy.find("From: ").expect("its first field"));
            assert_eq!(letter, self.message(), "{name}: {mailbox}");
            assert!(head.starts_with("Return-Path: <ann@elsewhere.example>\n"), "{head}");
            assert!(head.contains(&format!("Delivered-To: {}\n", self.address())), "{head}");
            assert_eq!(head.matches("X-Onedrop-Copy: ").count(), 1, "{head}");
        }
        for address in self.story.sent {
            let all = self.filters.sent_to(address);
            let ours = all.iter().filter(|one| one.message.contains(&format!("<{name}@x>")));
            assert_eq!(ours.count(), sent, "{name}: what {address} got");
        }
        let placed = self.site.postgres.psql(&format!(
            "SELECT count(placed_at) || ' of ' || count(*) FROM onedrop_copy WHERE account = \
             '{name}'"
        ));
        assert_eq!(placed, "1 of 1", "{name}");
    }
}

/// A filtering Dovecot beside a ledger.
fn filtering(guard: Guard) -> (Site, Filters) {
    let filters = Filters::new();
    filters.before(BEFORE);
    filters.after(AFTER);
    let site = Site::with(Dovecot::start_high_performance_with(&filters.conf(guard)));
    (site, filters)
}

#[test]
fn each_filter_does_its_work() {
    let (site, filters) = filtering(Guard::On);
    for_each(&STORIES, AT_ONCE, |story| {
        let passage = Passage::new(&site, &filters, story, 0);
        let config = passage.config(site.dovecot.lmtp_port());
        passage.deliver_in_the_end(&config).is(0, "");
        passage.went_through(TheSame);
        // A delivery of what is delivered changes nothing.
        passage.deliver_in_the_end(&config).is(0, "already there ");
        passage.went_through(TheSame);
    });
    assert!(filters.script_log("broken-0").contains("error"), "{}", filters.script_log("broken-0"));
    assert_eq!(site.dovecot.flags("around-0", "INBOX"), [["mine"]]);
}

/// Every filter with a lost answer and a death before it, and, with the guard, each step with some
/// filter; with `ONEDROP_FULL=1` each step with each filter.
fn cases(guard: Guard) -> Vec<(usize, &'static Story, Stage, Failing)> {
    let is_full = is_full();
    let mut cases = Vec::new();
    for (at, story) in STORIES.iter().enumerate() {
        for (number, stage) in STEPS.iter().enumerate() {
            for failing in [Cut, Killed] {
                let turn = number + usize::from(failing == Killed) * STEPS.len();
                let is_its_turn = guard == Guard::On && turn % STORIES.len() == at;
                if is_full || *stage == Stage::Answer || is_its_turn {
                    cases.push((cases.len() + 1, story, *stage, failing));
                }
            }
        }
    }
    cases
}

fn fail_at_each_step(guard: Guard) {
    let (site, filters) = filtering(guard);
    for_each(&cases(guard), AT_ONCE, |(n, story, stage, failing)| {
        let passage = Passage::new(&site, &filters, story, *n);
        let proxy = Proxy::start(Upstream::Lmtp(site.dovecot.lmtp_port()));
        let config = passage.config(proxy.port());
        if guard == Guard::On {
            // What is found is handed over again, and dropped: something is noted by then.
            passage.prove_guard(proxy.port());
        }
        let (stage, fault) = (*stage, if *failing == Cut { Fault::Cut } else { Fault::Hold });
        proxy.plan(stage, fault);
        // On a busy machine a deadline may come first.
        let has_come = wait_until(LONGEST_CURE, || {
            let mut run = passage.start(&config);
            let held = wait_until(LONGEST_CURE, || {
                run.has_ended() || (*failing == Killed && proxy.reached() > 0)
            });
            assert!(held, "it neither ends nor comes to the fault");
            match *failing == Killed && proxy.reached() > 0 {
                true => run.kill(),
                false => drop(run.end().is(75, "4.")),
            }
            proxy.reached() > 0
        });
        assert!(has_come, "nobody came to the fault");
        proxy.heal();
        passage.deliver_in_the_end(&config).is(0, "");
        let was_filtered_twice = guard == Guard::Off && stage == Stage::Answer;
        passage.went_through(if was_filtered_twice { story.unguarded } else { TheSame });
    });
}

#[test]
fn a_failure_at_any_step_leaves_one_copy_and_one_answer() {
    fail_at_each_step(Guard::On);
}

#[test]
fn without_the_guard_a_failure_at_any_step_leaves_one_copy() {
    fail_at_each_step(Guard::Off);
}
