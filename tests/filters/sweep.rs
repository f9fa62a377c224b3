//! Dovecot's delivery is killed at each call by which it writes, syncs, renames, links or sends,
//! between the final dot and its answer, over sixteen kinds of users' scripts and one with three
//! actions; then the message is tried until it is delivered. Nothing that the script does is
//! missing, and nothing stands twice once `verify` has looked, but what is documented. Beside it
//! the same Dovecot alone, to which the message is sent again: it loses nothing either.
//!
//! With `ONEDROP_FULL=1` each call of each script; otherwise some of them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::again::{Filtering, SENDER};
use crate::guard::{copy_is, with};
use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::filters::{Filters, Guard};
use crate::support::lmtp_client::{LmtpClient, Reply};
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::site::Site;
use crate::support::trial::for_each;
use crate::support::{TempRoot, is_full, wait_until};

/// What the script does with a message.
struct Kind {
    name: &'static str,
    script: &'static str,
    copies: &'static [&'static str],
    sent: &'static [&'static str],
    /// A look finds nothing of it by our fields: what Dovecot has not noted is filed again, and
    /// stays.
    is_blind: bool,
    /// How many of its calls are tried where not all are.
    some: usize,
}

const fn kind(name: &'static str, script: &'static str, copies: &'static [&'static str]) -> Kind {
    Kind { name, script, copies, sent: &[], is_blind: false, some: 1 }
}

const FAR: &[&str] = &["far@elsewhere.example"];

const KINDS: [Kind; 17] = [
    kind("keep", "keep;\n", &["INBOX"]),
    kind("fileinto", "require [\"fileinto\", \"mailbox\"];\nfileinto :create \"One\";\n", &["One"]),
    Kind {
        some: 3,
        ..kind(
            "both",
            "require [\"fileinto\", \"mailbox\"];\nfileinto :create \"One\";\nkeep;\n",
            &["One", "INBOX"],
        )
    },
    Kind {
        some: 3,
        ..kind(
            "two",
            "require [\"copy\", \"fileinto\", \"mailbox\"];\nfileinto :copy :create \"One\";\n\
             fileinto :copy :create \"Two\";\n",
            &["One", "Two", "INBOX"],
        )
    },
    kind("discard", "discard;\n", &[]),
    Kind { sent: FAR, ..kind("redirect", "redirect \"far@elsewhere.example\";\n", &[]) },
    Kind {
        sent: FAR,
        ..kind(
            "copied",
            "require \"copy\";\nredirect :copy \"far@elsewhere.example\";\n",
            &["INBOX"],
        )
    },
    Kind {
        sent: &[SENDER],
        ..kind(
            "vacation",
            "require \"vacation\";\nvacation :days 1 :addresses \"@NAME@@mail.axial.net\" \
             \"At sea.\";\n",
            &["INBOX"],
        )
    },
    Kind { sent: &[SENDER], ..kind("reject", "require \"reject\";\nreject \"Not here.\";\n", &[]) },
    kind("duplicate", "require \"duplicate\";\nif duplicate { discard; }\n", &["INBOX"]),
    kind("editheader", "require \"editheader\";\naddheader \"X-Mine\" \"yes\";\n", &["INBOX"]),
    Kind {
        is_blind: true,
        ..kind("strips", "require \"editheader\";\ndeleteheader \"X-Onedrop-Copy\";\n", &["INBOX"])
    },
    kind("flags", "require \"imap4flags\";\naddflag \"mine\";\nkeep;\n", &["INBOX"]),
    kind(
        "spamtest",
        "require [\"spamtest\", \"relational\", \"comparator-i;ascii-numeric\", \"fileinto\", \
         \"mailbox\"];\nif spamtest :value \"ge\" :comparator \"i;ascii-numeric\" \"5\" {\n  \
         fileinto :create \"One\";\n}\n",
        &["One"],
    ),
    kind("include", "require \"include\";\ninclude :global \"common\";\n", &["One"]),
    kind("fails", "require \"fileinto\";\nfileinto \"Nowhere\";\n", &["INBOX"]),
    Kind {
        sent: FAR,
        some: 4,
        ..kind(
            "three",
            "require [\"copy\", \"fileinto\", \"mailbox\"];\nfileinto :copy :create \"One\";\n\
             redirect :copy \"far@elsewhere.example\";\nkeep;\n",
            &["One", "INBOX"],
        )
    },
];

/// The calls at which it is killed.
const CALLS: &str = "write,pwrite64,writev,fsync,fdatasync,rename,link,sendto";
/// The n-th of these calls.
type Point = (String, usize);

const MAILBOXES: [&str; 3] = ["INBOX", "One", "Two"];
/// Trials side by side, each with servers of its own.
const LANES: usize = 4;

/// A Dovecot with all extensions, and what `include` needs.
struct Lane {
    all: Filtering,
    _global: TempRoot,
}

impl Lane {
    fn new(guard: Guard) -> Lane {
        let (filters, global) = (Filters::new(), TempRoot::new());
        global.dir_for("scripts", MAIL_USER, 0o755);
        global.write(
            "scripts/common.sieve",
            "require [\"fileinto\", \"mailbox\"];\nfileinto :create \"One\";\n",
        );
        let conf = format!(
            "{}plugin {{\n  sieve_extensions = +editheader +spamtest\n  \
             sieve_global = {}/scripts\n  sieve_spamtest_status_type = score\n  \
             sieve_spamtest_status_header = X-Spam-Score\n  \
             sieve_spamtest_max_value = 10\n}}\n",
            filters.conf(guard),
            global.display(),
        );
        let site = Site::with(Dovecot::start_high_performance_with(&conf));
        Lane { all: Filtering { site, filters }, _global: global }
    }

    /// The message, on its way to an account of its own.
    fn passage<'a>(&'a self, kind: &'a Kind, name: &str) -> Passage<'a> {
        let all = &self.all;
        all.site.dovecot.make_home(name);
        let proxy = Proxy::start(Upstream::Lmtp(all.site.dovecot.lmtp_port()));
        // Something is to be noted for the account.
        let mut client = LmtpClient::welcome(&all.site.dovecot.lmtp_socket());
        let earlier = with(&copy_is(1), &format!("{name}-earlier"));
        let taken = client.deliver(SENDER, &[name], &earlier).expect("an answer");
        assert!(taken.iter().all(Reply::is_ok), "{taken:?}");
        client.quit();
        all.filters.script(name, &kind.script.replace("@NAME@", name));
        all.prove(proxy.port());
        Passage { all, kind, name: name.to_owned(), proxy }
    }
}

struct Passage<'a> {
    all: &'a Filtering,
    kind: &'a Kind,
    /// The account, which the Message-ID is made of.
    name: String,
    proxy: Proxy,
}

/// Who sends the message, and sends it again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Onedrop,
    /// A sender that does not look, to a Dovecot without the guard.
    Itself,
}

impl Passage<'_> {
    fn message(&self) -> String {
        let name = &self.name;
        format!(
            "From: {SENDER}\nTo: {name}@mail.axial.net\nX-Spam-Score: 7\n\
             Date: Thu, 26 Nov 2026 12:00:00 +0000\nSubject: {name}\nMessage-ID: <{name}@x>\n\n\
             this is {name}\n"
        )
    }

    /// Whether it is delivered.
    fn send(&self, by: By) -> bool {
        match by {
            By::Onedrop => {
                let config = self.all.config(self.proxy.port());
                let end = Filtering::deliver(&config, &self.name, &self.message());
                if !end.status.success() {
                    end.is(75, "4.");
                }
                end.status.success()
            }
            By::Itself => {
                let time = Duration::from_secs(30);
                let mut client = LmtpClient::tcp(self.proxy.port(), time).expect("a connection");
                let sent = client
                    .command("LHLO here")
                    .and_then(|_| client.deliver(SENDER, &[&self.name], self.message()));
                sent.is_ok_and(|replies| replies.iter().all(Reply::is_ok))
            }
        }
    }

    /// Sends it, with strace at Dovecot's process from the dot on. Returns whether it was
    /// delivered, and the calls that strace saw.
    fn send_watched(&self, by: By, kill: Option<&Point>) -> (bool, Vec<String>) {
        self.proxy.plan(Stage::LastBytes, Fault::Hold);
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| self.send(by));
            self.proxy.wait_reached();
            let mut strace = Command::new("strace");
            strace.args(["-e", &format!("trace={CALLS}")]);
            if let Some((call, number)) = kill {
                strace.args(["-e", &format!("inject={call}:signal=SIGKILL:when={number}")]);
            }
            strace.args(["-p", &self.lmtp_pid()]).stderr(Stdio::piped());
            let mut strace = strace.spawn().expect("strace");
            let mut lines = BufReader::new(strace.stderr.take().expect("a pipe")).lines();
            let attached = lines.next().expect("a line").expect("text");
            assert!(attached.contains("attached"), "{attached}");
            self.proxy.release();
            let sent = sent.join().expect("a thread");
            let pid = nix::unistd::Pid::from_raw(strace.id() as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
            let calls = lines.map_while(Result::ok).collect();
            let _ = strace.wait();
            (sent, calls)
        })
    }

    /// Does what Dovecot does after some minutes with a lock that does not say whose it is.
    fn break_locks(&self) {
        let mut folders = vec![self.all.site.dovecot.maildir(&self.name)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                match path.is_dir() {
                    true => folders.push(path),
                    // Of an index' log that is made anew: .newlock.
                    false if name.to_string_lossy().ends_with("lock") => {
                        let _ = fs::remove_file(path);
                    }
                    false => {}
                }
            }
        }
    }

    /// Of the connection that was made last.
    fn lmtp_pid(&self) -> String {
        let log = self.all.site.dovecot.log();
        let line = log.lines().rfind(|line| line.contains("): Info: Connect from"));
        let line = line.and_then(|line| line.split_once("lmtp(")).expect("a connection");
        line.1.split(')').next().expect("a number").to_owned()
    }

    fn is_done(&self, by: By, most: usize) -> Result<(), String> {
        is_done(self.all, self.kind, &self.name, (by, most))
    }
}

/// All that the script does is done, `most` times at most; or what is not so.
fn is_done(
    all: &Filtering,
    kind: &Kind,
    name: &str,
    (by, most): (By, usize),
) -> Result<(), String> {
    let least = MAILBOXES.map(|mailbox| usize::from(kind.copies.contains(&mailbox)));
    let mut counts = all.counts(name, MAILBOXES);
    // Beside the earlier one.
    counts[0] -= 1;
    // Without the guard Pigeonhole sends nothing on twice, and keeps it instead.
    if by == By::Itself && kind.copies.is_empty() && kind.sent == FAR {
        counts[0] = counts[0].saturating_sub(1);
    }
    let is_right =
        counts.iter().zip(least).all(|(count, least)| (least..=least * most).contains(count));
    if !is_right {
        let wanted = format!("{least:?}, {most} at most");
        return Err(format!("{name}: {MAILBOXES:?} have {counts:?} copies, not {wanted}"));
    }
    for address in kind.sent {
        let id = format!("<{name}@x>");
        let sent = all.filters.sent_to(address);
        let count = sent.iter().filter(|one| one.message.contains(&id)).count();
        if !(1..=2).contains(&count) {
            return Err(format!("{name}: {count} messages to {address}"));
        }
    }
    Ok(())
}

/// The points at which this kind is killed, of all that there are.
fn points(calls: &[String], kind: &Kind) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for line in calls {
        let Some((call, _)) = line.split_once('(') else { continue };
        let number = points.iter().filter(|(other, _)| other == call).count() + 1;
        points.push((call.to_owned(), number));
    }
    if !is_full() {
        let (all, some) = (points.len(), kind.some);
        let is_some = |at: usize| (0..some).any(|n| at == (2 * n + 1) * all / (2 * some));
        let mut at = 0..;
        points.retain(|_| at.next().is_some_and(is_some));
    }
    points
}

fn killed_at_each_call(guard: Guard, by: By) {
    let lanes: Vec<Vec<&Kind>> =
        (0..LANES).map(|lane| KINDS.iter().skip(lane).step_by(LANES).collect()).collect();
    let work: Vec<usize> = (0..LANES).collect();
    // Of all points, whichever of them is wrong.
    let (count, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let judge = |ended: Result<(), String>| {
        wrong.lock().expect("the wrong ones").extend(ended.err());
    };
    for_each(&work, LANES, |number| {
        let lane = Lane::new(guard);
        for kind in &lanes[*number] {
            let passage = lane.passage(kind, &format!("{}-all", kind.name));
            let (sent, calls) = passage.send_watched(by, None);
            assert!(sent, "{}", kind.name);
            judge(passage.is_done(by, 1));
            let points = points(&calls, kind);
            assert!(!points.is_empty(), "{}: {calls:?}", kind.name);
            let mut names = Vec::new();
            for point in &points {
                let name = format!("{}-{}{}", kind.name, point.0, point.1);
                count.fetch_add(1, Ordering::Relaxed);
                let passage = lane.passage(kind, &name);
                passage.send_watched(by, Some(point));
                passage.proxy.heal();
                passage.break_locks();
                let is_delivered = wait_until(Duration::from_secs(40), || {
                    lane.all.site.end_leases();
                    passage.send(by)
                });
                match is_delivered {
                    true => judge(passage.is_done(by, 2)),
                    false => judge(Err(format!("{name}: not delivered"))),
                }
                names.push(name);
            }
            if by == By::Onedrop {
                lane.all.verify(&lane.all.config(lane.all.site.dovecot.lmtp_port()));
                for name in names {
                    let most = if kind.is_blind { 2 } else { 1 };
                    judge(is_done(&lane.all, kind, &name, (by, most)));
                }
            }
        }
    });
    let (count, wrong) = (count.into_inner(), wrong.into_inner().expect("the wrong ones"));
    assert!(wrong.is_empty(), "of {count} points:\n{}", wrong.join("\n"));
    println!("killed at {count} points");
}

#[test]
fn a_delivery_that_dies_at_any_call_comes_to_its_end() {
    killed_at_each_call(Guard::On, By::Onedrop);
}

/// What Onedrop is compared with.
#[test]
fn a_dovecot_alone_that_dies_at_any_call_loses_nothing() {
    killed_at_each_call(Guard::Off, By::Itself);
}
