//! Messages of Lisa's to Scuba and Doug, each recipient's delivery a process of its own as pipe(8)
//! starts them, tried again until it is delivered. Into mailboxes that take whatever they are
//! given: a copy too many would stand there.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::letters;
use crate::support::site::{Site, finish_delivery, start_delivery};

/// One in six of what is shipped, where a minute is the deadline.
pub const TERMS: &str = "[lock]\nwait_secs = 1\nlease_secs = 10\n\
    [limits]\ndeadline_secs = 6\nanswer_secs = 3\n";
const RECIPIENTS: [&str; 2] = ["scuba", "doug"];
/// The time to the next try; Postfix takes longer.
const AGAIN: Duration = Duration::from_secs(1);

pub struct Retried {
    /// In their Message-IDs.
    name: String,
    messages: usize,
    queue: Mutex<VecDeque<Task>>,
    pub delivered: AtomicUsize,
    deferred: AtomicUsize,
    /// What deliveries said that were deferred.
    said: Mutex<Vec<String>>,
    /// How many are to be killed, each while it waits for the ledger.
    pub to_kill: AtomicUsize,
    pub killed: AtomicUsize,
    /// The troublemaker has found something wrong.
    is_over: AtomicBool,
    end: Instant,
}

struct Task {
    message: usize,
    recipient: &'static str,
    not_before: Instant,
}

impl Retried {
    /// All `messages` are to be delivered within `limit`.
    pub fn new(name: &str, messages: usize, limit: Duration) -> Retried {
        let now = Instant::now();
        let task =
            |n: usize| Task { message: n / 2, recipient: RECIPIENTS[n % 2], not_before: now };
        Retried {
            name: name.to_owned(),
            messages,
            queue: Mutex::new((0..2 * messages).map(task).collect()),
            delivered: AtomicUsize::new(0),
            deferred: AtomicUsize::new(0),
            said: Mutex::default(),
            to_kill: AtomicUsize::new(0),
            killed: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            end: now + limit,
        }
    }

    pub fn deliveries(&self) -> usize {
        2 * self.messages
    }

    /// Delivers all, `at_once` at a time, while `trouble` does its worst.
    pub fn run(&self, config: &Path, at_once: usize, trouble: impl FnOnce()) {
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| self.work(config));
            }
            let judged = catch_unwind(AssertUnwindSafe(trouble));
            self.is_over.store(judged.is_err(), Ordering::SeqCst);
            judged.unwrap_or_else(|panic| resume_unwind(panic));
        });
    }

    /// Waits until this part of all is delivered.
    pub fn wait_for(&self, part: f64) {
        let wanted = (self.deliveries() as f64 * part) as usize;
        while self.delivered.load(Ordering::SeqCst) < wanted {
            assert!(Instant::now() < self.end, "{}", self.told());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// How many came of it, and some of what was said.
    pub fn told(&self) -> String {
        let mut said = self.said.lock().expect("said").clone();
        said.sort();
        said.dedup_by(|one, other| one.get(..60) == other.get(..60));
        said.truncate(12);
        format!(
            "{} of {} delivered, {} deferred, {} killed: {said:#?}",
            self.delivered.load(Ordering::SeqCst),
            self.deliveries(),
            self.deferred.load(Ordering::SeqCst),
            self.killed.load(Ordering::SeqCst),
        )
    }

    fn work(&self, config: &Path) {
        while !self.is_over.load(Ordering::SeqCst) {
            let Some(mut task) = self.queue.lock().expect("queue").pop_front() else {
                // Others may put theirs back.
                if self.delivered.load(Ordering::SeqCst) == self.deliveries() {
                    return;
                }
                assert!(Instant::now() < self.end, "{}", self.told());
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            assert!(Instant::now() < self.end, "{}", self.told());
            thread::sleep(task.not_before.saturating_duration_since(Instant::now()));
            if !self.is_delivered(config, &task) {
                task.not_before = Instant::now() + AGAIN;
                self.queue.lock().expect("queue").push_back(task);
            }
        }
    }

    fn is_delivered(&self, config: &Path, task: &Task) -> bool {
        let to = format!("{}@mail.axial.net", task.recipient);
        let args = ["-d", &to, "-f", "lisa@gmail.com"];
        let child = start_delivery(config, &args);
        let output = match self.is_to_be_killed() {
            false => finish_delivery(child, &self.message(task.message)),
            true => killed(child, &self.message(task.message)),
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => {
                self.delivered.fetch_add(1, Ordering::SeqCst);
                return true;
            }
            Some(75) => {
                self.deferred.fetch_add(1, Ordering::SeqCst);
                self.said.lock().expect("said").push(said);
            }
            None => {
                self.killed.fetch_add(1, Ordering::SeqCst);
            }
            other => panic!("{other:?}: {said}"),
        }
        false
    }

    fn message(&self, number: usize) -> Vec<u8> {
        letters::from_lisa(&format!("{}-{number}", self.name))
    }

    fn is_to_be_killed(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.to_kill.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }
}

/// Kills a delivery that has had a second for the way to its commit.
fn killed(mut child: Child, message: &[u8]) -> std::process::Output {
    use std::io::Write as _;
    drop(child.stdin.take().expect("stdin").write_all(message));
    thread::sleep(Duration::from_millis(1500));
    drop(child.kill());
    child.wait_with_output().expect("end")
}

/// Each message of all these stands in both INBOXes and in Lisa's Sent, once, and nothing else.
#[track_caller]
pub fn all_stand_once(site: &Site, rounds: &[Retried]) {
    for (account, mailbox) in [("scuba", "INBOX"), ("doug", "INBOX"), ("lisa", "Sent")] {
        let expected = rounds.iter().flat_map(|one| (0..one.messages).map(|n| one.message(n)));
        letters::stand_in(&site.dovecot, account, mailbox, expected);
    }
}

/// How many copies are placed, of how many.
pub const PLACED: &str = "SELECT count(placed_at) || ' of ' || count(*) FROM onedrop_copy";

/// What [`PLACED`] answers when all of these are delivered.
pub fn all_placed(rounds: &[Retried]) -> String {
    let copies: usize = rounds.iter().map(|one| 3 * one.messages).sum();
    format!("{copies} of {copies}")
}
