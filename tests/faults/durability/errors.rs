//! A disk that fails: EIO and ENOSPC for each call of a delivery that makes, writes, syncs or links
//! something in the ledger or the store. Then it says 75, or has delivered nevertheless and has all
//! of it on disk; delivered again, there is one copy in each mailbox, byte for byte.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onedrop::text;

use super::{DELIVER, FROM_ELSEWHERE, Fresh, MESSAGE, Traced};
use crate::sample::sample;
use crate::support::site::deliver;
use crate::support::{is_full, wait_until};

/// The calls that may fail so.
const FAILING: [&str; 15] = [
    "openat",
    "mkdir",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "ftruncate",
    "fallocate",
    "utimensat",
    "fsync",
    "fdatasync",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
];
const AT_ONCE: usize = 6;
/// Of opens, of new folders, and of writes into the database and its WAL, which are many and alike.
const SAMPLE: usize = 16;

/// What is delivered, and what was before.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Into a ledger and Maildirs that are made for it, with a copy in Sent.
    New,
    /// One copy, into what has been in use for long.
    OneCopy,
    /// An earlier delivery could not say that it had written the recipient's copy, and did not
    /// write that in Sent.
    InDoubt,
}

#[derive(Debug, Clone)]
struct Point {
    kind: Kind,
    call: String,
    /// Counted per thread, as strace does.
    n: usize,
    error: &'static str,
    /// What the call was for, for the report.
    on: String,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {} at {} {} on {}", self.kind, self.error, self.call, self.n, self.on)
    }
}

impl Kind {
    fn message(self) -> &'static [u8] {
        match self {
            Kind::New | Kind::InDoubt => MESSAGE,
            Kind::OneCopy => FROM_ELSEWHERE,
        }
    }

    fn site(self) -> Fresh {
        let site = match self {
            Kind::New => Fresh::new(),
            Kind::OneCopy | Kind::InDoubt => Fresh::in_use(),
        };
        if let Kind::InDoubt = self {
            let ledger = rusqlite::Connection::open(site.root.join("ledger/here/ledger.db"))
                .expect("ledger");
            let forget = "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, \
                          receipt = NULL, in_doubt = 1, leased_until = 1";
            assert_eq!(ledger.execute(forget, []).expect("update"), 2);
            fs::remove_dir_all(site.root.join("mail/here/lisa")).expect("Sent");
        }
        site
    }

    /// The copies by account and folder, that are to be there in the end.
    fn expected(self) -> Vec<(&'static str, &'static str, Vec<&'static [u8]>)> {
        let sent = ("lisa", ".Sent", vec![MESSAGE]);
        match self {
            Kind::New | Kind::InDoubt => vec![("scuba", "", vec![MESSAGE]), sent],
            Kind::OneCopy => vec![("scuba", "", vec![FROM_ELSEWHERE, MESSAGE]), sent],
        }
    }
}

/// Every point of one kind.
fn points(kind: Kind) -> Vec<Point> {
    let site = kind.site();
    let run = Traced::well(&site.root, &site.config, &DELIVER, Some(kind.message()));
    let mut counts: HashMap<(u32, &str), usize> = HashMap::new();
    let mut points = Vec::new();
    for call in &run.calls {
        let n = counts.entry((call.thread, &call.name)).or_default();
        *n += 1;
        let is_ours = |path: &str| {
            ["ledger", "mail"].iter().any(|sub| Path::new(path).starts_with(site.root.join(sub)))
        };
        let on = if is_ours(call.on()) { call.on() } else { call.quoted(0) };
        // A link from an open file has the mailbox second.
        let is_point = is_ours(on) || is_ours(call.quoted(1));
        if FAILING.contains(&&*call.name) && call.worked() && is_point {
            for error in ["EIO", "ENOSPC"] {
                points.push(Point {
                    kind,
                    call: call.name.clone(),
                    n: *n,
                    error,
                    on: on.to_owned(),
                });
            }
        }
    }
    points
}

/// Lets one call fail, delivers again, and judges. Returns how the first one ended.
fn fail_and_deliver_again(point: &Point) -> Result<i32, String> {
    let site = point.kind.site();
    let old = site.old();
    let inject = format!("inject={}:error={}:when={}", point.call, point.error, point.n);
    let message = point.kind.message();
    let run = Traced::run(&site.root, &site.config, &DELIVER, Some(message), &[&inject]);
    let said = String::from_utf8_lossy(&run.output.stdout).into_owned();
    let code = run.output.status.code();
    let ((Some(code @ 0), true) | (Some(code @ 75), false)) = (code, !said.starts_with("4."))
    else {
        return Err(format!("ended in {:?}: {said}", run.output.status));
    };
    if !run.calls.iter().any(crate::strace::Call::was_injected) {
        return Err("nothing failed".to_owned());
    }
    site.judge(&run, &old);
    let mut last = String::new();
    let delivered = wait_until(Duration::from_secs(20), || {
        let again = deliver(&site.config, &DELIVER[1..], message);
        last = format!("{again:?}");
        assert!(matches!(again.status.code(), Some(0 | 75)), "{last}");
        again.status.success()
    });
    if !delivered {
        return Err(format!("not delivered again: {last}; the first said {said}"));
    }
    for (account, mailbox, mut expected) in point.kind.expected() {
        let mut copies =
            crate::support::maildir_copies(&site.root.join("mail/here"), account, mailbox);
        copies.sort();
        expected.sort_unstable();
        if copies != expected {
            return Err(format!(
                "{account}/{mailbox}: {} copies; the first said {said}",
                copies.len()
            ));
        }
        let tmp =
            site.root.join("mail/here").join(account).join("Maildir").join(mailbox).join("tmp");
        if fs::read_dir(tmp).is_ok_and(|mut files| files.next().is_some()) {
            return Err(format!("{account}/{mailbox}: litter under tmp/"));
        }
    }
    Ok(code)
}

#[test]
fn whatever_the_disk_refuses_the_next_try_leaves_one_copy() {
    let began = Instant::now();
    let all: Vec<Point> =
        [Kind::New, Kind::OneCopy, Kind::InDoubt].into_iter().flat_map(points).collect();
    let count = all.len();
    let is_one_of_many = |point: &Point| ["mkdir", "openat", "pwrite64"].contains(&&*point.call);
    let points = sample(all, SAMPLE, |point| !is_one_of_many(point));
    let (next, ended, failures) =
        (AtomicUsize::new(0), Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let judged = std::panic::catch_unwind(|| fail_and_deliver_again(point));
                    let judged = judged.unwrap_or_else(|why| Err(text::of_panic(why)));
                    match judged {
                        Ok(code) => {
                            let key = (point.call.clone(), point.error, code);
                            *ended.lock().expect("ends").entry(key).or_insert(0_usize) += 1;
                        }
                        Err(why) => {
                            failures.lock().expect("failures").push(format!("{point}: {why}"))
                        }
                    }
                }
            });
        }
    });
    let (ended, failures) =
        (ended.into_inner().expect("ends"), failures.into_inner().expect("failures"));
    let mut by_call = String::new();
    for ((call, error, code), count) in &ended {
        write!(by_call, "; {call} {error}: {count} ended in {code}").expect("text");
    }
    writeln!(
        std::io::stderr(),
        "a failing disk: {} of {count} points{by_call}; {:.0} s",
        points.len(),
        began.elapsed().as_secs_f32()
    )
    .expect("stderr");
    assert!(
        failures.is_empty(),
        "{} of {} points:\n{}",
        failures.len(),
        points.len(),
        failures.join("\n")
    );
    // Each row of what is promised was met.
    for (call, error) in [
        ("fsync", "EIO"),
        ("fsync", "ENOSPC"),
        ("linkat", "EIO"),
        ("linkat", "ENOSPC"),
        ("pwrite64", "EIO"),
    ] {
        // Of the many writes a sample may have only those after which the message stands.
        let is_sampled = call == "pwrite64" && !is_full();
        assert!(
            is_sampled || ended.contains_key(&(call.to_owned(), error, 75)),
            "no {error} of {call} ended in 75"
        );
    }
}
