//! `onedrop lmtp` that writes the very Maildirs which Dovecot serves, beside deliveries of other
//! processes, a mail reader who moves what it sees, and kills: each message stands once in its
//! mailbox.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::dovecot::MAIL_USER;
use crate::support::letters::{self, ANN};
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::lmtp_client::{LmtpClient, Reply};
use crate::support::postfix::{Delivery, Postfix, PostfixSpec};
use crate::support::server::guarded;
use crate::support::site::Site;
use crate::support::trial::LETTERS;
use crate::support::{is_full, onedrop_path, set_mode, wait_until};

const LONG: Duration = Duration::from_secs(240);
/// Whoever waits for another's copy gives up soon, and is tried again.
const SHORT: &str =
    "[lock]\nwait_secs = 3\nlease_secs = 9\n[limits]\ndeadline_secs = 6\nanswer_secs = 2\n";
/// How the server stutters.
const FROZEN_MS: u64 = 40;
const RUNS_MS: u64 = 2;

/// One that writes Dovecot's own Maildirs.
struct MailHost {
    site: Site,
    config: PathBuf,
    /// Where the mail's user may run it.
    program: PathBuf,
}

impl MailHost {
    fn start() -> MailHost {
        let site = Site::with_own_dovecot();
        let store = format!("store.url = \"maildir://{}\"\n", site.dovecot.mail_root().display());
        let config = site.config("etc", &format!("{store}{LETTERS}{SHORT}"));
        let program = site.root.join("onedrop");
        fs::copy(onedrop_path(), &program).expect("a copy of the program");
        set_mode(&program, 0o755);
        MailHost { site, config, program }
    }

    /// One try of a delivery in a process of its own, as the mail's user; whether it succeeded,
    /// else it is deferred.
    fn deliver(&self, account: &str, message: &[u8]) -> bool {
        let mut command = guarded(&self.program, Some(MAIL_USER), Signal::SIGKILL);
        command
            .args(["deliver", "-f", ANN, "-d", &address(account), "--config"])
            .arg(&self.config)
            .current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("setpriv");
        // Smaller than a pipe: this never waits.
        drop(child.stdin.take().expect("stdin").write_all(message));
        let output = child.wait_with_output().expect("end");
        assert!(matches!(output.status.code(), Some(0 | 75)), "{output:?}");
        output.status.success()
    }

    /// Each of the accounts' mailboxes has these messages (numbers of [`message`]), each of them
    /// once, by its files and as Dovecot shows it; no file of a delivery is left beside them, and
    /// the ledger is in doubt of nothing.
    #[track_caller]
    fn each_stands_once(&self, expected: &BTreeMap<String, Vec<usize>>) {
        let mut wrong = Vec::new();
        for (account, numbers) in expected {
            let files = self.files(account);
            if files != numbers.len() {
                wrong.push(format!("{account}: {files} files in place of {}", numbers.len()));
            }
            letters::stand_in(
                &self.site.dovecot,
                account,
                "INBOX",
                numbers.iter().map(|number| message(*number)),
            );
            let litter = names(&self.site.dovecot.maildir(account).join("tmp"));
            assert!(litter.is_empty(), "{account}: {litter:?}");
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        let messages: usize = expected.values().map(Vec::len).sum();
        let ledger = "SELECT count(placed_at) || ' of ' || count(*) || ', in doubt: ' || count(*) \
                      FILTER (WHERE in_doubt) FROM onedrop_copy";
        assert_eq!(
            self.site.postgres.psql(ledger),
            format!("{messages} of {messages}, in doubt: 0")
        );
    }

    fn files(&self, account: &str) -> usize {
        self.site.dovecot.files(account)
    }
}

fn address(account: &str) -> String {
    format!("{account}@mail.axial.net")
}

fn message(number: usize) -> Vec<u8> {
    letters::one_of_many("maildir", number).into_bytes()
}

/// The files in a folder; none if there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect()
}

/// Does `work`, and meanwhile something else again and again; returns the sum of what that said.
fn beside(mut again: impl FnMut() -> usize + Send, work: impl FnOnce()) -> usize {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut sum = 0;
            while !is_over.load(Ordering::SeqCst) {
                sum += again();
                thread::yield_now();
            }
            sum
        });
        // What has failed must not be hidden by what goes on for ever.
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::SeqCst);
        let sum = other.join().expect("it ends well");
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sum
    })
}

/// Does `work` while a mail reader takes what is new in these mailboxes, and marks it as read, as
/// fast as it can. Returns how many it has read.
fn while_read(maildirs: &[PathBuf], work: impl FnOnce()) -> usize {
    beside(|| maildirs.iter().map(|maildir| read_all(maildir)).sum(), work)
}

/// Does `work` while the server is frozen most of the time, long enough for a process to deliver
/// meanwhile.
fn while_it_stutters(lmtp: &mut Lmtp, work: impl FnOnce()) -> usize {
    let freeze = || {
        lmtp.pause();
        thread::sleep(Duration::from_millis(FROZEN_MS));
        lmtp.resume();
        thread::sleep(Duration::from_millis(RUNS_MS));
        1
    };
    beside(freeze, work)
}

/// A second file of one name gets other flags, or it would take the place of the first and the test
/// would see one.
fn read_all(maildir: &Path) -> usize {
    let moved = |name: &String| {
        let as_flagged = |flags: &str| maildir.join("cur").join(format!("{name}:2,{flags}"));
        let to = ["S", "RS", "FRS"].map(as_flagged).into_iter().find(|path| !path.exists());
        fs::rename(maildir.join("new").join(name), to.expect("not so many of them")).is_ok()
    };
    names(&maildir.join("new")).iter().filter(|name| moved(name)).count()
}

#[test]
fn kills_under_load_lose_nothing_and_leave_nothing_twice() {
    let (messages, step) = if is_full() { (600, 25) } else { (200, 10) };
    const SENDERS: usize = 8;
    const ACCOUNTS: usize = 20;
    let host = MailHost::start();
    let mut lmtp = Launch::of(&host.config).with_sockets_of_the_rig().start();
    let delivery = Delivery::Lmtp(format!("unix:{}", lmtp.socket().display()));
    let postfix = Postfix::start(&PostfixSpec {
        delivery,
        retry_secs: Some(1),
        ..PostfixSpec::new(onedrop_path())
    });
    let account = |number: usize| format!("u{}", number % ACCOUNTS);
    let maildirs: Vec<PathBuf> =
        (0..ACCOUNTS).map(|number| host.site.dovecot.maildir(&account(number))).collect();
    let next = AtomicUsize::new(0);
    let read = while_read(&maildirs, || {
        thread::scope(|scope| {
            for _ in 0..SENDERS {
                scope.spawn(|| {
                    while let Some(number) =
                        Some(next.fetch_add(1, Ordering::SeqCst)).filter(|n| *n < messages)
                    {
                        postfix.send(ANN, &[&address(&account(number))], &message(number));
                    }
                });
            }
            for at in (step..messages).step_by(step) {
                assert!(
                    wait_until(LONG, || postfix.sent() >= at),
                    "{} of {at}\n{}",
                    postfix.sent(),
                    lmtp.log()
                );
                lmtp.kill();
                lmtp.start_again();
            }
        });
        postfix.flush();
        assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    });
    let deferred = postfix.log().matches(" status=deferred ").count();
    let found = host.site.postgres.psql("SELECT count(*) FROM onedrop_copy WHERE found_by_look");
    println!(
        "{messages} messages: {deferred} attempts deferred, {found} copies found, {read} moved by \
         a reader"
    );
    assert!(read > 0, "nobody has read anything");
    let mut expected: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for number in 0..messages {
        expected.entry(account(number)).or_default().push(number);
    }
    host.each_stands_once(&expected);
}

/// By eight connections and by processes of their own, all at once, while a reader moves it as soon
/// as it is there and the server is frozen at any moment.
#[test]
fn one_message_by_many_ways_at_once_stands_once() {
    const MESSAGES: usize = 30;
    const CONNECTIONS: usize = 8;
    const PROCESSES: usize = 3;
    let host = MailHost::start();
    let mut lmtp = Launch::of(&host.config).start();
    let account = |number: usize| format!("u{number}");
    let maildirs: Vec<PathBuf> =
        (0..MESSAGES).map(|number| host.site.dovecot.maildir(&account(number))).collect();
    let mut clients: Vec<LmtpClient> = (0..CONNECTIONS).map(|_| lmtp.client()).collect();
    let round = |number: usize, clients: &mut [LmtpClient]| {
        let (to, mail) = (&address(&account(number)), &message(number));
        let barrier = &Barrier::new(CONNECTIONS + PROCESSES);
        thread::scope(|scope| {
            for client in clients {
                scope.spawn(|| {
                    barrier.wait();
                    until_delivered(|| {
                        is_ok(&client.deliver(ANN, &[to], mail).expect("a reply")[0])
                    });
                });
            }
            for _ in 0..PROCESSES {
                scope.spawn(|| {
                    barrier.wait();
                    until_delivered(|| host.deliver(&account(number), mail));
                });
            }
        });
    };
    let mut frozen = 0;
    let read = while_read(&maildirs, || {
        frozen = while_it_stutters(&mut lmtp, || {
            (0..MESSAGES).for_each(|number| round(number, &mut clients))
        });
    });
    println!("{MESSAGES} messages: {frozen} times frozen, {read} copies moved by a reader");
    assert!(read > 0, "nobody has read anything");
    host.each_stands_once(&(0..MESSAGES).map(|number| (account(number), vec![number])).collect());
}

/// Tries as Postfix would.
fn until_delivered(attempt: impl FnMut() -> bool) {
    assert!(wait_until(LONG, attempt), "not delivered");
}

/// Whether it was delivered, else it is deferred.
fn is_ok(reply: &Reply) -> bool {
    assert!(reply.is_ok() || reply.code / 100 == 4, "{reply}");
    reply.is_ok()
}

#[test]
fn a_message_that_is_placed_is_not_written_again() {
    let host = MailHost::start();
    let lmtp = Launch::of(&host.config).start();
    let mut client = lmtp.client();
    let mut deliver =
        || client.deliver(ANN, &[&address("doug")], message(1)).expect("a reply").remove(0);
    let first = deliver();
    assert!(
        first.is_ok() && first.text.contains("stored account=doug mailbox=INBOX name="),
        "{first}"
    );
    let name = first
        .text
        .split_once("name=")
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .expect("a name");
    let maildir = host.site.dovecot.maildir("doug");
    assert_eq!(names(&maildir.join("new")), [name]);
    for is_read in [false, true] {
        if is_read {
            assert_eq!(read_all(&maildir), 1);
        }
        let again = deliver();
        assert!(
            again.is_ok()
                && again
                    .text
                    .contains(&format!("already there account=doug mailbox=INBOX name={name}")),
            "{again}"
        );
        assert!(host.deliver("doug", &message(1)));
        assert_eq!(host.files("doug"), 1, "read: {is_read}");
        assert!(names(&maildir.join("tmp")).is_empty(), "read: {is_read}");
    }
    host.each_stands_once(&BTreeMap::from([("doug".to_owned(), vec![1])]));
    // Dovecot has one mailbox, and no other from the file of the locks.
    assert!(maildir.join("onedrop.lock").is_file());
    assert_eq!(host.site.dovecot.doveadm(&["mailbox", "list", "-u", "doug"]).trim(), "INBOX");
}
