//! A Maildir belongs to others too: they clear files away and rename them at any moment. And its
//! file system may have no files without names. Deliveries are stopped at an exact call by
//! strace(1) while that happens.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onedrop::lock_key::advisory_key;
use onedrop::message::{Bytes, DedupBy, Message};

use super::{DELIVER, FROM_ELSEWHERE, Fresh, MESSAGE, Traced, entries};
use crate::support::place::children;
use crate::support::server::pid_of;
use crate::support::site::{deliver, delivered, lock_byte};
use crate::support::{maildir_copies, onedrop_path, wait_until};

const INBOX: &str = "mail/here/scuba/Maildir";
const PATIENCE: Duration = Duration::from_secs(20);

impl Fresh {
    /// A configuration without a wait for others.
    fn strict(&self) -> PathBuf {
        let settings = Fresh::settings(&self.root);
        self.site.config("strict", &format!("{settings}[lock]\nwait_secs = 0\n"))
    }

    fn inbox(&self) -> Vec<Vec<u8>> {
        maildir_copies(&self.root.join("mail/here"), "scuba", "")
    }
}

/// A delivery that stands still right after a call on `path`.
struct Frozen {
    strace: Child,
    pid: Pid,
}

impl Frozen {
    /// After the `n`-th call of that name, which a signal may cut short.
    fn at(
        site: &Fresh,
        config: &Path,
        path: &Path,
        (call, n): (&str, usize),
        message: &[u8],
    ) -> Frozen {
        let log = site.root.join("frozen");
        let mut command = Command::new("strace");
        command.args(["-f", "-P"]).arg(path).args(["-e", &format!("trace={call}"), "-o"]).arg(&log);
        command.args(["-e", &format!("inject={call}:signal=SIGSTOP:when={n}")]);
        command.arg(onedrop_path()).args(DELIVER).arg("--config").arg(config);
        command.stdin(File::open(site.root.write("frozen-message", message)).expect("message"));
        let mut strace =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("strace");
        let read = || fs::read_to_string(&log).unwrap_or_default();
        let stopped = wait_until(PATIENCE, || {
            read().contains("--- stopped by SIGSTOP ---") || !matches!(strace.try_wait(), Ok(None))
        });
        assert!(stopped, "never stopped: {}", read());
        let child = children(pid_of(&strace)).first().copied();
        let pid = child.unwrap_or_else(|| panic!("never stopped: {}", read()));
        Frozen { strace, pid }
    }

    /// Lets it go on; returns its status, and what it said.
    fn thaw(mut self) -> (Option<i32>, String) {
        kill(self.pid, Signal::SIGCONT).expect("thaw");
        let ended = wait_until(PATIENCE, || !matches!(self.strace.try_wait(), Ok(None)));
        assert!(ended, "it hangs");
        let mut said = String::new();
        std::io::Read::read_to_string(self.strace.stdout.as_mut().expect("stdout"), &mut said)
            .expect("stdout");
        (self.strace.wait().expect("end").code(), said)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // After a failed assertion. It is our grandchild, and alive while strace is.
        if matches!(self.strace.try_wait(), Ok(None)) {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = self.strace.wait();
        }
    }
}

/// It has opened the lock file, somebody clears that away, and another locks the same copy in a new
/// one.
#[test]
fn a_lock_in_a_file_that_was_cleared_away_keeps_nobody_out_and_is_not_believed() {
    let site = Fresh::new();
    site.deliver(MESSAGE, 2);
    let lock = site.root.join(INBOX).join("onedrop.lock");
    let strict = site.strict();
    let frozen = Frozen::at(&site, &strict, &lock, ("openat", 1), FROM_ELSEWHERE);
    fs::remove_file(&lock).expect("the lock file");
    let other = OpenOptions::new().write(true).create_new(true).open(&lock).expect("a new one");
    let message = Message::new(Bytes::Memory(FROM_ELSEWHERE.to_vec()), DedupBy::Content);
    let key = advisory_key(&message.identity().copy_key("scuba", "INBOX"));
    lock_byte(&other, key);
    let (status, said) = frozen.thaw();
    assert_eq!(status, Some(75), "{said}");
    assert!(said.contains("another delivery of this message holds the copy"), "{said}");
    assert_eq!(site.inbox(), [MESSAGE]);
    drop(other);
    delivered(&strict, &DELIVER[1..], FROM_ELSEWHERE);
    let mut inbox = site.inbox();
    inbox.sort();
    assert_eq!(inbox, [MESSAGE, FROM_ELSEWHERE]);
}

/// A look at a large `cur/` is stopped in the middle, and a reader renames the copy from the part
/// that is still to be listed to the part that was.
#[test]
fn a_copy_that_is_renamed_while_its_folder_is_listed_is_found() {
    let site = Fresh::new();
    site.deliver(FROM_ELSEWHERE, 1);
    let cur = site.root.join(INBOX).join("cur");
    let [copy] = &entries(&site.root.join(INBOX).join("new"))[..] else { panic!("one copy") };
    let name = copy.file_name().expect("a name").to_string_lossy().into_owned();
    for n in 0..3000 {
        File::create(cur.join(format!("1700000000.another-letter-{n:05}.host:2,S")))
            .expect("a letter");
    }
    // Which of the names that a reader may give it stand early in a listing, and which late.
    let listing = |name: &str| {
        let path = cur.join(name);
        fs::hard_link(copy, &path).expect("a name to try");
        let at = entries(&cur).iter().position(|entry| *entry == path);
        fs::remove_file(&path).expect("a name to try");
        at.expect("it is listed")
    };
    let keywords: Vec<String> =
        ('a'..='z').flat_map(|one| ('a'..='d').map(move |two| format!("{one}{two}"))).collect();
    let names: Vec<String> =
        keywords.iter().map(|keywords| format!("{name}:2,S{keywords}")).collect();
    let early = names.iter().find(|name| listing(name) < 300);
    let late = names.iter().find(|name| listing(name) > 2500);
    // A file system that lists a renamed file last, and never leaves one out.
    let (Some(early), Some(late)) = (early, late) else {
        return eprintln!("no name stands early here: nothing to miss");
    };
    fs::rename(copy, cur.join(late)).expect("a reader");
    let ledger =
        rusqlite::Connection::open(site.root.join("ledger/here/ledger.db")).expect("ledger");
    let forget = "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL, \
                  in_doubt = 1, leased_until = NULL";
    assert_eq!(ledger.execute(forget, []).expect("update"), 1);
    drop(ledger);
    let frozen = Frozen::at(&site, &site.config, &cur, ("getdents64", 2), FROM_ELSEWHERE);
    fs::rename(cur.join(late), cur.join(early)).expect("a reader");
    let (status, said) = frozen.thaw();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.starts_with("found "), "{said}");
    let written = [entries(&cur), entries(&site.root.join(INBOX).join("new"))].concat();
    let ours: Vec<_> =
        written.iter().filter(|path| path.to_string_lossy().contains(&name)).collect();
    assert_eq!(ours, [&cur.join(early)]);
}

/// On NFS and older file systems a file needs a name under `tmp/` before it has one in the mailbox.
#[test]
fn without_unnamed_files_nothing_under_tmp_counts_as_a_copy() {
    let new_site = || {
        let site = Fresh::new();
        site.deliver(MESSAGE, 2);
        site
    };
    let site = new_site();
    let plain = Traced::well(&site.root, &site.config, &DELIVER, Some(FROM_ELSEWHERE));
    let first = plain.calls.first().expect("a call").thread;
    let opened: Vec<_> =
        plain.calls.iter().filter(|call| call.name == "openat" && call.thread == first).collect();
    let at =
        opened.iter().position(|call| call.args.contains("O_TMPFILE")).expect("an unnamed file")
            + 1;
    let refuse = format!("inject=openat:error=EOPNOTSUPP:when={at}");

    let site = new_site();
    let old = site.old();
    let run = Traced::run(&site.root, &site.config, &DELIVER, Some(FROM_ELSEWHERE), &[&refuse]);
    assert!(run.output.status.success(), "{:?}", run.output);
    let [link] = run.links()[..] else { panic!("{:?}", run.links()) };
    assert!(link.quoted(0).contains("/Maildir/tmp/"), "{link:?}");
    site.judge(&run, &old);
    let tmp = |site: &Fresh| entries(&site.root.join(INBOX).join("tmp"));
    assert!(tmp(&site).is_empty(), "{:?}", tmp(&site));
    let both = |site: &Fresh| {
        let mut inbox = site.inbox();
        inbox.sort();
        inbox == [MESSAGE, FROM_ELSEWHERE]
    };
    assert!(both(&site));

    // Killed at each call from the named file on.
    let begins = run.calls.iter().position(|call| call.was_injected()).expect("the refusal");
    let mut counts: HashMap<(u32, &str), usize> = HashMap::new();
    let (mut killed, mut left_under_tmp) = (0, 0);
    for (n, call) in run.calls.iter().enumerate() {
        let count = counts.entry((call.thread, &call.name)).or_default();
        *count += 1;
        let is_of_the_mailbox = call.args.contains(INBOX);
        let is_worth_it = matches!(
            &*call.name,
            "write" | "utimensat" | "fsync" | "linkat" | "unlink" | "exit_group"
        );
        if n < begins
            || !is_worth_it
            || !(is_of_the_mailbox || call.name == "fsync" || call.name == "exit_group")
        {
            continue;
        }
        let site = new_site();
        let die = format!("inject={}:signal=SIGKILL:when={count}", call.name);
        let dead =
            Traced::run(&site.root, &site.config, &DELIVER, Some(FROM_ELSEWHERE), &[&refuse, &die]);
        killed += usize::from(dead.output.status.signal() == Some(9));
        // A copy is there whole, or not at all.
        let inbox = site.inbox();
        let is_whole = |copy: &Vec<u8>| [FROM_ELSEWHERE, MESSAGE].contains(&copy.as_slice());
        assert!(inbox.iter().all(is_whole), "{call:?}: {inbox:?}");
        left_under_tmp += tmp(&site).len();
        assert!(tmp(&site).len() <= 1, "{call:?}: {:?}", tmp(&site));
        let again = deliver(&site.config, &DELIVER[1..], FROM_ELSEWHERE);
        assert!(again.status.success(), "{call:?}: {again:?}");
        assert!(both(&site), "{call:?}: {:?}", site.inbox());
    }
    eprintln!(
        "killed at {killed} calls without unnamed files, {left_under_tmp} files were left under \
         tmp/"
    );
    assert!(killed >= 6 && left_under_tmp > 0, "{killed} killed, {left_under_tmp} left under tmp/");
}
