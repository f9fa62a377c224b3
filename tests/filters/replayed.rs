//! Old mail that is replayed through users' filters (`onedrop replay` with `store.lmtp`): each
//! message lies where the filter puts it, once and byte for byte, and what the filter sends goes
//! out once, also where runs were killed at the hand-over.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use crate::support::dovecot::Dovecot;
use crate::support::filters::{Filters, Guard};
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::site::Site;
use crate::support::{TempRoot, onedrop, wait_until};

/// A lease that runs out soon after a process that held it must have ended.
const TERMS: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n[lock]\nwait_secs = 0\n";
/// For runs that are killed: the next ones wait for their leases.
const SOON_OVER: &str = "lease_secs = 6\n[limits]\ndeadline_secs = 5\nanswer_secs = 2\n";
const LONG: Duration = Duration::from_secs(60);
const FAR: &str = "far@elsewhere.example";
const SCRIPT: &str = "require [\"fileinto\", \"mailbox\", \"copy\"];\n\
     if header :contains \"subject\" \"rust\" { fileinto :create \"Lists/rust\"; stop; }\n\
     if header :contains \"subject\" \"far\" { redirect :copy \"far@elsewhere.example\"; }\n";
const BEGIN: &[u8] = b"From ann@elsewhere.example Mon Jan  5 10:00:00 2015\n";
/// Where runs are killed, one after the other.
const POINTS: [Stage; 5] = [
    Stage::Before("MAIL"),
    Stage::After("DATA"),
    Stage::MidLiteral,
    Stage::LastBytes,
    Stage::Answer,
];

/// Every third goes to a list, every third is sent on as well.
fn letters() -> Vec<Vec<u8>> {
    let letter = |number: usize| {
        let kind = ["plain", "rust", "far"][number % 3];
        let head = format!(
            "From: ann@elsewhere.example\nTo: scuba@mail.axial.net\n\
             Date: Sun, 22 Nov 2015 12:00:{number:02} +0000\nSubject: {kind} {number}\n\
             Message-ID: <replayed-{number}@x>\n\n"
        );
        let bodies: [&[u8]; 4] = [
            b"From here on all is well.\n\n.\n..\n.hidden\n\n",
            b"Gr\xc3\xbc\xc3\x9fe \xe9\xff in Latin-1\n",
            b"\tindented\n \n\n\ntwo empty lines\n>From me\n",
            b"X-Onedrop-Copy: no field\n",
        ];
        [head.as_bytes(), bodies[number % 4]].concat()
    };
    (0..24).map(letter).collect()
}

/// A Maildir with the first half of them, and an mbox with the second.
fn sources(letters: &[Vec<u8>]) -> TempRoot {
    let root = TempRoot::new();
    let (first, second) = letters.split_at(letters.len() / 2);
    for (number, letter) in first.iter().enumerate() {
        let part = if number % 2 == 0 { "new" } else { "cur" };
        root.write(&format!("Maildir/{part}/17000{number:05}.M1.host"), letter);
    }
    let mut mbox = Vec::new();
    for letter in second {
        mbox.extend_from_slice(BEGIN);
        for line in letter.split_inclusive(|byte| *byte == b'\n') {
            let quotes = line.iter().take_while(|byte| **byte == b'>').count();
            let is_from = line[quotes..].starts_with(b"From ");
            mbox.extend_from_slice(if is_from { b">" } else { b"" });
            mbox.extend_from_slice(line);
        }
        mbox.push(b'\n');
    }
    root.write("old.mbox", mbox);
    root
}

struct Replayed {
    site: Site,
    filters: Filters,
    proxy: Proxy,
    config: PathBuf,
    letters: Vec<Vec<u8>>,
    sources: TempRoot,
}

impl Replayed {
    fn new(times: &str) -> Replayed {
        let filters = Filters::new();
        let dovecot = Dovecot::start_high_performance_with(&filters.conf(Guard::On));
        let site = Site::with(dovecot);
        site.dovecot.make_home("scuba");
        filters.script("scuba", SCRIPT);
        let proxy = Proxy::start(Upstream::Lmtp(site.dovecot.lmtp_port()));
        let store = format!("store.lmtp = \"lmtp://127.0.0.1:{}\"\n", proxy.port());
        let config = site.config("etc", &format!("{store}{TERMS}{times}"));
        let letters = letters();
        Replayed { sources: sources(&letters), site, filters, proxy, config, letters }
    }

    fn start(&self, more: &[&str]) -> Child {
        let mut command = onedrop();
        command.args(["replay", "--to", "scuba@mail.axial.net", "--mbox", "rd", "--config"]);
        command.arg(&self.config).args(more);
        command.args(["Maildir", "old.mbox"]).current_dir(&*self.sources).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("binary")
    }

    #[track_caller]
    fn replay(&self, more: &[&str], told: &str) {
        let output: Output = self.start(more).wait_with_output().expect("end");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(err.lines().next_back(), Some(told), "{err}");
    }

    /// Everything is where it belongs, once.
    #[track_caller]
    fn has_come(&self) {
        for (mailbox, is_rust) in [("INBOX", false), ("Lists/rust", true)] {
            let copies = self.site.dovecot.messages("scuba", mailbox);
            let mut copies: Vec<Vec<u8>> = copies.iter().map(|copy| without_trace(copy)).collect();
            let of_it = |letter: &&Vec<u8>| {
                String::from_utf8_lossy(letter).contains("\nSubject: rust") == is_rust
            };
            let mut wanted: Vec<Vec<u8>> = self.letters.iter().filter(of_it).cloned().collect();
            copies.sort();
            wanted.sort();
            assert_eq!(copies.len(), wanted.len(), "{mailbox}");
            assert!(copies == wanted, "{mailbox}: not byte for byte");
        }
        let mut sent: Vec<String> =
            self.filters.sent_to(FAR).into_iter().map(|sent| id(sent.message.as_bytes())).collect();
        let mut wanted: Vec<String> =
            self.letters.iter().skip(2).step_by(3).map(|letter| id(letter)).collect();
        sent.sort();
        wanted.sort();
        assert_eq!(sent, wanted, "sent on, each once");
    }
}

fn id(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    let line = text.lines().find(|line| line.starts_with("Message-ID: "));
    line.expect("a Message-ID").to_owned()
}

/// A copy without what the server and we put before it, with LF as its line ends.
fn without_trace(copy: &[u8]) -> Vec<u8> {
    let start = copy.windows(6).position(|bytes| bytes == b"From: ").expect("its first field");
    let head = String::from_utf8_lossy(&copy[..start]);
    assert!(head.starts_with("Return-Path: <"), "{head}");
    assert_eq!(head.matches("X-Onedrop-Copy: ").count(), 1, "{head}");
    let lines = copy[start..].split_inclusive(|byte| *byte == b'\n');
    let ended = |line: &[u8]| match line.strip_suffix(b"\r\n") {
        Some(text) => [text, b"\n"].concat(),
        None => line.to_vec(),
    };
    lines.flat_map(ended).collect()
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn what_is_replayed_twice_goes_through_the_filter_once() {
    let rig = Replayed::new("");
    rig.replay(&["--parallel", "3"], "24 messages: 24 stored");
    rig.has_come();
    rig.replay(&[], "24 messages: 24 already there");
    rig.has_come();
}

#[test]
fn runs_that_are_killed_at_the_hand_over_leave_one_copy_each() {
    let rig = Replayed::new(SOON_OVER);
    let state = rig.sources.join("state");
    let with_state = ["--state", state.to_str().expect("a path")];
    let mut run = rig.start(&["--rate", "2/s", with_state[0], with_state[1]]);
    assert!(wait_until(LONG, || lines(&state) > 4), "not so far");
    run.kill().expect("killed");
    run.wait().expect("end");
    for stage in POINTS {
        let reached = rig.proxy.reached();
        rig.proxy.plan(stage, Fault::Hold);
        let mut run = rig.start(&with_state);
        let is_there = wait_until(LONG, || rig.proxy.reached() > reached);
        run.kill().expect("killed");
        run.wait().expect("end");
        assert!(is_there, "{stage:?}: nobody came to the fault");
        rig.proxy.heal();
    }
    let before = lines(&state) - 1;
    assert!((4..24).contains(&before), "{before} were done");
    let output = rig.start(&with_state).wait_with_output().expect("end");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(err.contains("24 messages: "), "{err}");
    // The one whose answer was lost, at least, is in its mailbox.
    assert!(err.contains(" found"), "{err}");
    assert!(err.contains(&format!("{before} done by an earlier run")), "{err}");
    rig.has_come();
    rig.replay(&with_state, "24 messages: 24 done by an earlier run");
    rig.replay(&[], "24 messages: 24 already there");
    rig.has_come();
}
