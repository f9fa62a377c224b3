//! One run of the binary, measured: how it ended, what it said, how long it lived and how much
//! memory it took at most. And a message with the two copies it must leave, however often its
//! delivery is tried.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::site::Site;
use super::{onedrop, wait_until};

/// No process of ours may live longer, whatever happens to it: a [`PATIENT`] one has 40 s.
const LONGEST_LIFE: Duration = Duration::from_secs(60);
/// What a slow host adds to a deadline, at most.
const SLOW_HOST: Duration = Duration::from_secs(15);
/// How long a message may need to be delivered once its peers are well again: a lease, and a busy
/// machine.
const LONGEST_CURE: Duration = Duration::from_secs(40);

/// The password that the rig gives to stores.
pub const SECRET: &str = "store-secret";

/// How a run ended.
#[derive(Debug)]
pub struct End {
    pub status: ExitStatus,
    pub out: String,
    pub took: Duration,
    pub peak_kib: u64,
}

impl End {
    #[track_caller]
    pub fn is(&self, status: i32, out: &str) -> &End {
        assert_eq!(self.status.code(), Some(status), "{self:?}");
        assert!(self.out.starts_with(out), "does not start with {out:?}: {self:?}");
        assert!(self.out.lines().count() <= 1 || status == 0, "more than one line: {self:?}");
        assert!(!self.out.contains(SECRET), "a password shows: {self:?}");
        self
    }

    #[track_caller]
    pub fn says(&self, text: &str) -> &End {
        assert!(self.out.contains(text), "does not say {text:?}: {self:?}");
        self
    }

    /// Ended by its deadline, with what a slow host adds, and not by any other time: those that
    /// come next are 20 s by default for a store's answer, 60 s for a delivery, and a server's own.
    #[track_caller]
    pub fn within(&self, deadline_secs: u64) -> &End {
        let latest = Duration::from_secs(deadline_secs) + SLOW_HOST;
        assert!(self.took < latest, "later than its deadline: {self:?}");
        assert!(self.peak_kib < 60 * 1024, "too much memory: {self:?}");
        self
    }
}

/// A started run, with standard output and error in one pipe, as Postfix has it.
pub struct Run {
    child: Child,
    started: Instant,
    /// What it said, and when it ended, whenever the test comes to ask.
    told: JoinHandle<(Vec<u8>, Instant)>,
}

impl Run {
    pub fn start(mut command: Command) -> Run {
        let (mut reader, writer) = std::io::pipe().expect("pipe");
        command.stdin(Stdio::piped()).stdout(writer.try_clone().expect("pipe")).stderr(writer);
        let started = Instant::now();
        let child = command.spawn().expect("binary");
        // Its ends of the pipe would keep it open.
        drop(command);
        let told = thread::spawn(move || {
            let mut out = Vec::new();
            reader.read_to_end(&mut out).expect("output");
            (out, Instant::now())
        });
        Run { child, started, told }
    }

    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("stdin")
    }

    /// Writes the message in the background: a process that does not read it all blocks no test.
    pub fn feed(&mut self, message: Vec<u8>) {
        let mut stdin = self.stdin();
        // A delivery that ended early is judged by its status.
        thread::spawn(move || drop(stdin.write_all(&message)));
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("wait for our child").is_some()
    }

    /// Ends it by SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait for our child");
    }

    /// Waits for the end; a run that does not end by itself is killed, and shows it.
    pub fn end(mut self) -> End {
        let (mut status, mut peak_kib) = (None, 0);
        let in_time = wait_until(LONGEST_LIFE, || {
            peak_kib = peak_kib.max(high_water_kib(self.child.id()));
            status = self.child.try_wait().expect("wait for our child");
            status.is_some()
        });
        if !in_time {
            self.child.kill().expect("kill");
        }
        let status = status.unwrap_or_else(|| self.child.wait().expect("wait for our child"));
        let (out, ended) = self.told.join().expect("output");
        let (out, took) = (String::from_utf8_lossy(&out).into_owned(), ended - self.started);
        End { status, out, took, peak_kib }
    }
}

/// The most memory a process ever had resident (proc(5)); 0 once it has ended. What wait4(2)
/// reports afterwards begins with the size of the process that forked.
fn high_water_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// A message from one account here to another: one copy belongs into the INBOX of `to-NAME`, one
/// into `by-NAME`'s Sent.
#[derive(Debug)]
pub struct Letter {
    name: String,
    author: String,
    recipient: String,
    bytes: Vec<u8>,
}

/// Times of a delivery that a busy machine lets come to its end: whether a copy was stored or found
/// hangs on nothing else then.
pub const PATIENT: &str =
    "[lock]\nwait_secs = 0\nlease_secs = 50\n[limits]\ndeadline_secs = 40\nanswer_secs = 20\n";

/// Accounts for [`Letter`]s.
pub const LETTERS: &str =
    "[directory]\ndomains = [\"mail.axial.net\"]\n[sent]\ntrust = \"header\"\n";

impl Letter {
    /// `name`: letters, digits and hyphens.
    pub fn new(name: &str) -> Letter {
        Letter::with_body(name, b"body\n")
    }

    pub fn with_body(name: &str, body: &[u8]) -> Letter {
        Letter::of(&format!("by-{name}"), &format!("to-{name}"), name, name, body)
    }

    /// The `number`-th message of a test; says so in its subject.
    pub fn between(author: &str, recipient: &str, number: usize) -> Letter {
        Letter::of(
            author,
            recipient,
            &format!("n-{number}-"),
            &format!("number {number}"),
            b"body\n",
        )
    }

    fn of(author: &str, recipient: &str, name: &str, subject: &str, body: &[u8]) -> Letter {
        let head = format!(
            "From: {author}@mail.axial.net\nTo: {recipient}@mail.axial.net\nSubject: {subject}\n\
             Message-ID: <{name}@x>\n\n"
        );
        Letter {
            name: name.to_owned(),
            author: author.to_owned(),
            recipient: recipient.to_owned(),
            bytes: [head.as_bytes(), body].concat(),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn recipient(&self) -> String {
        self.recipient.clone()
    }

    pub fn author(&self) -> String {
        self.author.clone()
    }

    pub fn command(&self, config: &Path) -> Command {
        let mut command = onedrop();
        let to = format!("{}@mail.axial.net", self.recipient());
        command.args(["deliver", "-f", "x@y", "-d", &to, "--config"]).arg(config).current_dir("/");
        command
    }

    pub fn start(&self, config: &Path) -> Run {
        let mut run = Run::start(self.command(config));
        run.feed(self.bytes.clone());
        run
    }

    pub fn deliver(&self, config: &Path) -> End {
        self.start(config).end()
    }

    /// Tries until all of it is placed, as Postfix would, and the next recipient's delivery;
    /// nothing but 75, or a Sent that is kept for later, may come before.
    #[track_caller]
    pub fn deliver_in_the_end(&self, config: &Path) -> End {
        let mut last = None;
        let delivered = wait_until(LONGEST_CURE, || {
            let end = self.deliver(config);
            let is_over = end.status.success() && !end.out.contains("kept for later");
            if !is_over {
                if !end.status.success() {
                    end.is(75, "4.");
                }
                // A lease ends after seconds.
                thread::sleep(Duration::from_millis(600));
            }
            last = Some(end);
            is_over
        });
        assert!(delivered, "{}: not delivered: {last:?}", self.name);
        last.expect("it was tried")
    }

    /// One copy in each of its two mailboxes, and the ledger's receipts are theirs.
    #[track_caller]
    pub fn stands_once(&self, site: &Site) {
        for (account, mailbox) in [(self.recipient(), "INBOX"), (self.author(), "Sent")] {
            let uids = site.dovecot.uids(&account, mailbox);
            assert_eq!(uids.len(), 1, "copies in {account}/{mailbox}");
            let receipts = site.postgres.psql(&format!(
                "SELECT split_part(receipt, '/', 2) FROM onedrop_copy c \
                 JOIN onedrop_message m ON m.id = c.message_id \
                 WHERE account = '{account}' AND mailbox = '{mailbox}' AND placed_at IS NOT NULL \
                 AND m.message_id LIKE '%{}@x%'",
                self.name
            ));
            assert_eq!(
                receipts,
                uids[0].to_string(),
                "the ledger's receipt of {account}/{mailbox}"
            );
        }
    }
}

impl Letter {
    /// Makes it look as if an earlier delivery had died between its record and the append, and its
    /// lease had run out.
    pub fn leave_in_doubt(&self, site: &Site) {
        let nobody = format!("store.url = \"imap://127.0.0.1:1\"\n{LETTERS}");
        let config = site.config(&format!("{}-in-doubt", self.name), &nobody);
        self.deliver(&config).is(75, "4.3.0 ");
        site.forget_receipts(&format!("account IN ('{}', '{}')", self.recipient(), self.author()));
    }

    /// Whether the copy in the INBOX came on record by a look.
    pub fn was_found(&self, site: &Site) -> bool {
        site.postgres.psql(&format!(
            "SELECT found_by_look FROM onedrop_copy WHERE account = '{}'",
            self.recipient()
        )) == "t"
    }
}

/// Runs `work` for every item, `at_once` of them at a time; a panic is reported with its item,
/// after all are done.
pub fn for_each<T: Sync + std::fmt::Debug>(items: &[T], at_once: usize, work: impl Fn(&T) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failed = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(item) =
                    items.get(next.fetch_add(1, std::sync::atomic::Ordering::SeqCst))
                {
                    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(item)))
                        .is_err()
                    {
                        failed.lock().expect("no panic holds it").push(format!("{item:?}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic held it");
    assert!(failed.is_empty(), "failed: {failed:#?}");
}
