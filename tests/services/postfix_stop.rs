//! `postfix reload`, `postfix stop` and a killed pipe(8) or lmtp(8) amid a delivery: whatever
//! Postfix does to its processes, the message is there once after the next try, and nothing is
//! returned.
//!
//! A delivery is held still by a lock on the mailbox, which Dovecot waits for: its last bytes are
//! on the way then, or its answer. A pipe(8) that dies in the middle of a message leaves a cut one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::dovecot::Dovecot;
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::postfix::{Delivery, Postfix, PostfixSpec};
use crate::support::site::Site;
use crate::support::{onedrop_path, wait_until};

const LONG: Duration = Duration::from_secs(120);
const DIRECTORY: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n[lock]\nlease_secs = 25\n\
     [limits]\ndeadline_secs = 12\nanswer_secs = 6\n";
/// A transport whose process died is tried again at once.
const MAIN_CF: &str = "transport_retry_time = 1s\n";

#[derive(Debug, Clone, Copy)]
enum Door {
    Pipe,
    Lmtp,
}

/// Postfix would add one, of its own, to a message without.
const DATE: &str = "Sun, 22 Nov 2026 10:00:00 +0000";

/// What is done to Postfix while the delivery is held.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Reload,
    /// `postfix stop`, and `postfix start` after the delivery's process has ended.
    Stop,
    /// SIGKILL to the pipe(8) or lmtp(8) that has the message.
    KillClient,
}

/// A site, its server and its Postfix.
struct MailHost {
    postfix: Postfix,
    /// Dropped after Postfix.
    _server: Option<Lmtp>,
    site: Site,
}

impl MailHost {
    fn new(door: Door, program: &Path) -> MailHost {
        let site = Site::with(Dovecot::start_that_waits_for_locks(0));
        let config = site.config("etc", DIRECTORY);
        let server = matches!(door, Door::Lmtp).then(|| Launch::of(&config).start());
        let delivery = match &server {
            Some(server) => Delivery::Lmtp(format!("unix:{}", server.socket().display())),
            None => Delivery::Pipe,
        };
        let spec = PostfixSpec {
            config: Some(config),
            delivery,
            retry_secs: Some(2),
            ..PostfixSpec::new(program)
        };
        let postfix = Postfix::start(&PostfixSpec { main_cf: MAIN_CF.to_owned(), ..spec });
        MailHost { postfix, _server: server, site }
    }

    fn send(&self, id: &str) -> Vec<u8> {
        let message = letter(id, "body\n");
        self.postfix.send("lisa@gmail.com", &["scuba@mail.axial.net"], &message);
        message
    }

    /// Everything has arrived: these messages, byte for byte below their trace fields, each once.
    #[track_caller]
    fn has_exactly(&self, messages: &[Vec<u8>]) {
        assert!(self.postfix.wait_until_queue_empty(LONG), "{}", self.postfix.log());
        let log = self.postfix.log();
        assert!(!log.contains("status=bounced"), "{log}");
        let mut found = self.site.dovecot.messages("scuba", "INBOX");
        for message in messages {
            let text = String::from_utf8_lossy(message).replace('\n', "\r\n");
            let count = found.len();
            found.retain(|mail| !mail.ends_with(text.as_bytes()));
            assert_eq!(count - found.len(), 1, "{} of {}\n{log}", count - found.len(), &text[..80]);
        }
        assert!(found.is_empty(), "{} more\n{log}", found.len());
        let copies = self
            .site
            .postgres
            .psql("SELECT count(placed_at) || ' of ' || count(*) FROM onedrop_copy");
        assert_eq!(copies, format!("{0} of {0}", messages.len()));
    }
}

fn letter(id: &str, body: &str) -> Vec<u8> {
    format!(
        "From: Lisa <lisa@gmail.com>\nTo: scuba@mail.axial.net\nSubject: {id}\nMessage-ID: \
             <{id}@x>\nDate: {DATE}\n\n{body}"
    )
    .into_bytes()
}

/// The daemon of Postfix's that runs this program below its master, if there is one.
fn client(host: &MailHost, name: &str) -> Option<Pid> {
    let is_client = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
    };
    host.postfix.daemons().into_iter().find(is_client).map(|pid| Pid::from_raw(pid.cast_signed()))
}

fn struck(door: Door, blow: Blow) {
    let mut host = MailHost::new(door, onedrop_path());
    let mut messages = vec![host.send("first")];
    host.has_exactly(&messages);

    let lock = host.site.dovecot.lock_mailbox("scuba");
    messages.push(host.send("held"));
    let leased = "SELECT count(*) FROM onedrop_copy WHERE placed_at IS NULL";
    // Dovecot says nothing of a lock that it waits for; a copy on record without a receipt does.
    assert!(wait_until(LONG, || host.site.postgres.psql(leased) == "1"), "{}", host.postfix.log());
    match blow {
        Blow::Reload => host.postfix.postfix("reload"),
        Blow::Stop => host.postfix.postfix("stop"),
        Blow::KillClient => {
            let name = match door {
                Door::Pipe => "pipe",
                Door::Lmtp => "lmtp",
            };
            kill(client(&host, name).expect("a client of ours"), Signal::SIGKILL).expect("kill");
        }
    }
    // Dovecot still waits for the lock: whatever has happened, it happened amid the delivery.
    assert_eq!(host.site.postgres.psql(leased), "1", "{}", host.postfix.log());
    drop(lock);
    if let Blow::Stop = blow {
        host.postfix.start_again();
    }
    messages.push(host.send("next"));
    host.postfix.flush();
    host.has_exactly(&messages);
}

#[test]
fn a_reload_amid_a_delivery_by_pipe_leaves_one_copy() {
    struck(Door::Pipe, Blow::Reload);
}

#[test]
fn a_stop_amid_a_delivery_by_pipe_leaves_one_copy() {
    struck(Door::Pipe, Blow::Stop);
}

#[test]
fn a_killed_pipe_amid_a_delivery_leaves_one_copy() {
    struck(Door::Pipe, Blow::KillClient);
}

#[test]
fn a_reload_amid_a_delivery_by_lmtp_leaves_one_copy() {
    struck(Door::Lmtp, Blow::Reload);
}

#[test]
fn a_stop_amid_a_delivery_by_lmtp_leaves_one_copy() {
    struck(Door::Lmtp, Blow::Stop);
}

#[test]
fn a_killed_lmtp_client_amid_a_delivery_leaves_one_copy() {
    struck(Door::Lmtp, Blow::KillClient);
}

/// A program that does not read its message while the file `hold` is there.
fn held_program(folder: &Path) -> (PathBuf, PathBuf) {
    let (program, hold) = (folder.join("held-onedrop"), folder.join("hold"));
    let real = folder.join("real-onedrop");
    fs::copy(onedrop_path(), &real).expect("a copy of the program");
    let script = format!(
        "#!/bin/sh\nwhile [ -e {} ]; do sleep 0.05; done\nexec {} \"$@\"\n",
        hold.display(),
        real.display()
    );
    fs::write(&program, script).expect("a script");
    for path in [&program, &real] {
        crate::support::set_mode(path, 0o755);
    }
    (program, hold)
}

#[test]
fn a_message_that_a_dying_pipe_has_cut_is_delivered_whole_by_the_next_try() {
    let folder = crate::support::TempRoot::new();
    let (program, hold) = held_program(&folder);
    let host = MailHost::new(Door::Pipe, &program);
    fs::write(&hold, "").expect("a file");
    // Much more than a pipe holds (64 KiB): whenever pipe(8) dies now, it dies before the message's
    // end.
    let long = letter("cut", &"a line of the body\n".repeat(50_000));
    host.postfix.send("lisa@gmail.com", &["scuba@mail.axial.net"], &long);
    assert!(wait_until(LONG, || !host.postfix.deliveries().is_empty()), "{}", host.postfix.log());
    let (delivery, pipe) = (host.postfix.deliveries()[0], client(&host, "pipe").expect("pipe(8)"));
    kill(pipe, Signal::SIGKILL).expect("kill");
    fs::remove_file(&hold).expect("let go");
    // What it had of the message is not delivered; the whole is, once.
    let is_gone = || !Path::new(&format!("/proc/{delivery}")).exists();
    assert!(wait_until(LONG, is_gone), "the cut delivery does not end");
    host.postfix.flush();
    host.has_exactly(&[long]);
    let attempts = host.site.postgres.psql("SELECT count(*) FROM onedrop_attempt_text");
    assert_eq!(attempts, "1", "the cut message was not recorded");
}
