//! A delivering process is frozen (SIGSTOP by strace(1), right after an exact system call) past its
//! lease, a second one delivers, and the first is thawed: one copy in the end, and the first ends
//! with 75 unless that copy is its own. Without doubt nothing but the lease keeps the second away;
//! in doubt, since a first one was killed, the turn does so too. Postgres and Dovecot are real, and
//! leases run out by themselves.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::place::children;
use crate::support::server::pid_of;
use crate::support::site::{Site, deliver, settle_kept, start_delivery};
use crate::support::{onedrop_path, remove_variables, wait_until};

/// Whoever is thawed after its last check has `answer_secs` to hear the answer and to take its copy
/// out again.
const TIMES: &str =
    "[lock]\nwait_secs = 1\nlease_secs = 6\n[limits]\ndeadline_secs = 5\nanswer_secs = 3\n";
/// The lease, the time after which Postgres frees the locks of a session that went silent in its
/// turn (deadline + 5 s), and room for a busy machine.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(30);

/// Where a delivery is frozen, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freeze {
    /// The record was sent to be committed, no lock is held.
    Recorded,
    /// In doubt only: it has the copy's turn, and with it the lock; nothing was sent to the mail
    /// server.
    InTurn,
    /// Nothing of the append is out; in doubt, the look has found nothing.
    Ready,
    /// The whole literal is out, the last check of the clock is still to come.
    LiteralSent,
    /// Between the last check and the final CRLF: no call is in between, so the one that sends it
    /// is kept from being made.
    Checked,
    /// The final CRLF is out, the OK was not heard.
    LastBytesSent,
}

const WITHOUT_DOUBT: [Freeze; 5] =
    [Freeze::Recorded, Freeze::Ready, Freeze::LiteralSent, Freeze::Checked, Freeze::LastBytesSent];
const IN_DOUBT: [Freeze; 6] = [
    Freeze::Recorded,
    Freeze::InTurn,
    Freeze::Ready,
    Freeze::LiteralSent,
    Freeze::Checked,
    Freeze::LastBytesSent,
];

/// One call in a trace of the first thread.
struct Call {
    name: String,
    line: String,
}

impl Call {
    fn ended(&self) -> bool {
        self.line.contains(") = ")
    }
}

fn calls(trace: &str) -> Vec<Call> {
    let named =
        |line: &str| Some(Call { name: line.split_once('(')?.0.to_owned(), line: line.to_owned() });
    trace.lines().filter(|line| !line.starts_with(['-', '+'])).filter_map(named).collect()
}

fn is_append(call: &Call) -> bool {
    call.name == "sendto" && call.line.contains(" APPEND \\\"INBOX\\\"")
}

fn is_final_crlf(call: &Call) -> bool {
    call.name == "sendto" && call.line.contains(", \"\\r\\n\", 2,")
}

fn is_record(call: &Call) -> bool {
    let is_it = |text: &str| call.line.contains(text);
    call.name == "sendto" && (is_it("onedrop_record(") || is_it("INSERT INTO onedrop_attempt"))
}

/// The message's lock is taken with a look for the message.
fn is_turn(call: &Call) -> bool {
    call.name == "sendto"
        && call.line.contains("pg_try_advisory_xact_lock(")
        && !call.line.contains("FROM onedrop_message")
}

impl Freeze {
    /// The index of the call after which to freeze.
    fn find(self, calls: &[Call]) -> Option<usize> {
        let append = calls.iter().position(is_append)?;
        let crlf = calls.iter().position(is_final_crlf)?;
        match self {
            Freeze::Recorded => calls.iter().rposition(is_record),
            Freeze::InTurn => {
                let after = 1 + calls.iter().position(is_turn)?;
                Some(after + calls[after..].iter().position(|call| call.name == "sendto")?)
            }
            Freeze::Ready => Some(append),
            Freeze::LiteralSent => calls[..crlf].iter().rposition(|call| call.name == "sendto"),
            Freeze::Checked | Freeze::LastBytesSent => Some(crlf),
        }
    }

    /// Frozen before its call is made, not after.
    fn is_kept_from_it(self) -> bool {
        matches!(self, Freeze::InTurn | Freeze::Ready | Freeze::Checked)
    }

    /// Whether a trace that ends at the freeze ends where it should: a turn was taken only in
    /// doubt.
    fn is_met_by(self, calls: &[Call], in_doubt: bool) -> bool {
        let appended = calls.iter().any(is_append);
        let turn = calls.iter().position(is_turn);
        let last = calls.last().map_or("", |call| &*call.name);
        let here = match self {
            Freeze::Recorded => return calls.last().is_some_and(is_record),
            Freeze::InTurn => turn.is_some_and(|turn| {
                let mut sent = calls[turn + 1..].iter().filter(|call| call.name == "sendto");
                sent.next().is_some_and(|call| !call.ended())
            }),
            Freeze::Ready => calls.last().is_some_and(|call| is_append(call) && !call.ended()),
            Freeze::LiteralSent => appended && last == "sendto" && !calls.iter().any(is_final_crlf),
            Freeze::Checked => {
                calls.last().is_some_and(|call| is_final_crlf(call) && !call.ended())
            }
            Freeze::LastBytesSent => {
                calls.last().is_some_and(|call| is_final_crlf(call) && call.ended())
            }
        };
        here && turn.is_some() == in_doubt
    }
}

/// Large enough for its literal to go out by itself.
fn message(id: &str) -> String {
    let body = "body\n".repeat(20_000);
    format!(
        "Authentication-Results: mail.axial.net; dmarc=pass header.from=mail.axial.net\nFrom: \
         from-{id}@mail.axial.net\n\
         To: to-{id}@mail.axial.net\nSubject: zombie\nMessage-ID: <{id}@x>\n\n{body}"
    )
}

struct Zombie {
    strace: Child,
    pid: Pid,
}

impl Drop for Zombie {
    fn drop(&mut self) {
        // After a failed assertion it may still be frozen. It is our grandchild, and alive while
        // strace is.
        if matches!(self.strace.try_wait(), Ok(None)) {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = self.strace.wait();
        }
    }
}

/// Starts a delivery under strace, of whose first thread alone the calls are counted.
fn trace(site: &Site, config: &Path, id: &str, inject: Option<&str>) -> Child {
    let mut command = Command::new("strace");
    command
        .args(["-s", "1000", "-e", "trace=sendto,recvfrom,poll", "-o"])
        .arg(site.root.join(format!("{id}.trace")));
    if let Some(inject) = inject {
        command.args(["-e", &format!("inject={inject}")]);
    }
    command
        .arg(onedrop_path())
        .args(["deliver", "--config"])
        .arg(config)
        .args(["-d", &format!("to-{id}@mail.axial.net")]);
    remove_variables(&mut command);
    command.stdin(File::open(site.root.write(id, message(id))).expect("message"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("strace")
}

/// Leaves copies in doubt: deliveries of `ids` that are killed between their record and the mail
/// server's greeting, which never comes, and whose leases have run out.
fn leave_in_doubt(site: &Site, ids: &[String]) {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("its number").port();
    let more = format!("store.url = \"imap://127.0.0.1:{port}\"\n{TIMES}");
    let row = |id: &str, what: &str| {
        site.postgres.psql(&format!(
            "SELECT DISTINCT {what} FROM onedrop_copy WHERE account IN ('to-{id}', 'from-{id}')"
        ))
    };
    for id in ids {
        let config = site.config(&format!("{id}-killed"), &more);
        let mut child = start_delivery(&config, &["-d", &format!("to-{id}@mail.axial.net")]);
        child.stdin.take().expect("stdin").write_all(message(id).as_bytes()).expect("the message");
        assert!(
            wait_until(Duration::from_secs(10), || row(id, "epoch") == "1"),
            "{id}: not recorded"
        );
        child.kill().expect("kill");
        child.wait().expect("end");
    }
    for id in ids {
        let doubt = || {
            row(id, "placed_at IS NULL AND in_doubt AND leased_until < clock_timestamp()") == "t"
        };
        assert!(wait_until(Duration::from_secs(20), doubt), "{id}: not in doubt");
    }
}

/// A delivery that stands still at `freeze`. The scheduling may move the counts: then once more,
/// under another name.
fn frozen(
    site: &Site,
    config: &Path,
    name: &str,
    freeze: Freeze,
    in_doubt: bool,
) -> (String, Zombie) {
    for attempt in 0..5 {
        let id = format!("{name}{attempt}");
        let recording = format!("{id}rec");
        if in_doubt {
            leave_in_doubt(site, &[id.clone(), recording.clone()]);
        }
        let output = trace(site, config, &recording, None).wait_with_output().expect("end");
        assert!(output.status.success(), "recording: {output:?}");
        let read = |id: &str| {
            fs::read_to_string(site.root.join(format!("{id}.trace"))).unwrap_or_default()
        };
        let recorded = calls(&read(&recording));
        let at = freeze
            .find(&recorded)
            .unwrap_or_else(|| panic!("no {freeze:?} in\n{}", read(&recording)));
        let name = &recorded[at].name;
        let n = recorded[..=at].iter().filter(|call| call.name == *name).count();
        let how = match freeze.is_kept_from_it() {
            // Far longer than the test takes.
            true => "delay_enter=600000000",
            false => "signal=SIGSTOP",
        };
        let mut strace = trace(site, config, &id, Some(&format!("{name}:{how}:when={n}")));
        let stopped = || match freeze.is_kept_from_it() {
            true => freeze.is_met_by(&calls(&read(&id)), in_doubt),
            false => read(&id).contains("--- stopped by SIGSTOP ---"),
        };
        let up = wait_until(Duration::from_secs(10), || {
            stopped() || !matches!(strace.try_wait(), Ok(None))
        });
        let pid = children(pid_of(&strace)).first().copied();
        let Some(pid) = pid.filter(|_| up && stopped()) else {
            let _ = strace.wait();
            continue;
        };
        let zombie = Zombie { strace, pid };
        if freeze.is_kept_from_it() {
            // Its other threads as well.
            kill(zombie.pid, Signal::SIGSTOP).expect("freeze");
        }
        if freeze.is_met_by(&calls(&read(&id)), in_doubt) {
            return (id, zombie);
        }
    }
    panic!("never frozen at {freeze:?}");
}

/// Freezes one, lets another take over, thaws the first; returns what the first said in the end.
fn take_over(site: &Site, freeze: Freeze, in_doubt: bool) -> String {
    let name =
        format!("{}{}", if in_doubt { "doubt-" } else { "" }, format!("{freeze:?}").to_lowercase());
    let first = site.config(&format!("{name}-first"), TIMES);
    let second = site.config(&format!("{name}-second"), TIMES);
    let (id, mut zombie) = frozen(site, &first, &name, freeze, in_doubt);
    let row =
        format!("SELECT placed_at IS NULL, epoch FROM onedrop_copy WHERE account = 'to-{id}'");
    let epoch = if in_doubt { "t|2" } else { "t|1" };
    assert!(
        wait_until(Duration::from_secs(5), || site.postgres.psql(&row) == epoch),
        "{name}: not recorded"
    );
    let lease = site
        .postgres
        .psql(&format!("SELECT leased_until FROM onedrop_copy WHERE account = 'to-{id}'"));

    let began = Instant::now();
    let mut tries = Vec::new();
    let done = wait_until(TAKE_OVER_LIMIT, || {
        let output =
            deliver(&second, &["-d", &format!("to-{id}@mail.axial.net")], message(&id).as_bytes());
        assert!(matches!(output.status.code(), Some(0 | 75)), "{output:?}");
        tries.push(String::from_utf8_lossy(&output.stdout).into_owned());
        output.status.success()
    });
    assert!(done, "{name}: nobody could take over: {tries:?}");
    let took_over = began.elapsed();
    // Only a copy whose last bytes are out may be there before the first is thawed.
    let how =
        if freeze == Freeze::LastBytesSent { "found account=to-" } else { "stored account=to-" };
    let said = tries.last().map_or("", String::as_str);
    // The lease of the copy in Sent may end a moment after the other one: the try before placed
    // that one, and had no time left for this.
    let placed_before = said.starts_with("already there account=to-")
        && tries.iter().rev().nth(1).is_some_and(|before| before.contains("account=from-"));
    assert!(said.starts_with(how) || placed_before, "{name}: {tries:?}");
    // By the ledger's clock, which is the leases'.
    let late = format!("SELECT placed_at > '{lease}' FROM onedrop_copy WHERE account = 'to-{id}'");
    assert_eq!(site.postgres.psql(&late), "t", "{name}: before the lease had run out");
    let copy = message(&id).replace('\n', "\r\n").into_bytes();
    let is_one_copy =
        |account: &str, mailbox: &str| site.dovecot.messages(account, mailbox) == [copy.as_slice()];
    assert!(is_one_copy(&format!("to-{id}"), "INBOX"), "{name}, before the thaw");

    assert!(matches!(zombie.strace.try_wait(), Ok(None)), "{name}: it was not frozen");
    if freeze.is_kept_from_it() {
        // Without its tracer it makes the call that it was kept from.
        zombie.strace.kill().expect("thaw");
        zombie.strace.wait().expect("strace's end");
    }
    kill(zombie.pid, Signal::SIGCONT).expect("thaw");
    let thawed = Instant::now();
    assert!(
        wait_until(Duration::from_secs(10), || !matches!(zombie.strace.try_wait(), Ok(None))),
        "{name} hangs"
    );
    let ended = thawed.elapsed();
    let mut late = String::new();
    std::io::Read::read_to_string(zombie.strace.stdout.as_mut().expect("stdout"), &mut late)
        .expect("stdout");
    eprintln!(
        "{name}: taken over after {took_over:.1?} ({} tries), thawed one ended in \
         {ended:.1?}: {late}",
        tries.len()
    );
    let status = zombie.strace.wait().expect("end");
    // The second found the first's own copy: one copy, on record, which both may call delivered.
    // The first has no time left to write the Sent copy, and learns that it is placed as well.
    let is_delivered = freeze == Freeze::LastBytesSent;
    let (code, start) = if is_delivered { (0, "stored account=to-") } else { (75, "4.3.0 ") };
    if !freeze.is_kept_from_it() {
        assert_eq!(status.code(), Some(code), "{name}: {late}");
    }
    assert!(late.starts_with(start), "{name}: {late}");

    let ledger = |sql: &str| Some(site.postgres.psql(sql));
    let kept = settle_kept(&second, Some(&format!("from-{id}")), ledger).expect("a copy in Sent");
    eprintln!("{name}: {kept} for Sent kept");
    for (account, mailbox) in [(format!("to-{id}"), "INBOX"), (format!("from-{id}"), "Sent")] {
        let uids = site.dovecot.uids(&account, mailbox);
        let row = site.postgres.psql(&format!(
            "SELECT split_part(receipt, '/', 2), in_doubt, leased_until IS NULL, \
                    placed_at IS NOT NULL FROM onedrop_copy \
             WHERE account = '{account}' AND mailbox = '{mailbox}'"
        ));
        let state =
            format!("{name}: {account}/{mailbox}: {uids:?}; ledger {row}; the first said {late}");
        assert_eq!(uids.len(), 1, "{state}");
        assert!(is_one_copy(&account, mailbox), "other bytes: {state}");
        assert_eq!(row, format!("{}|f|t|t", uids[0]), "{name}: {account}/{mailbox}");
    }
    late
}

/// All at once: it is the leases that take the time.
fn take_over_at_each(freezes: &[Freeze], in_doubt: bool) {
    let site = Site::with_servers();
    // The first delivery of all makes other calls: it puts the configuration on record.
    let first = site.config("first", TIMES);
    let end = deliver(&first, &["-d", "to-first@mail.axial.net"], message("first").as_bytes());
    assert!(end.status.success(), "{end:?}");
    let late: Vec<(Freeze, String)> = std::thread::scope(|scope| {
        let site = &site;
        let begin = |freeze: &Freeze| {
            let freeze = *freeze;
            (freeze, scope.spawn(move || take_over(site, freeze, in_doubt)))
        };
        let runs: Vec<_> = freezes.iter().map(begin).collect();
        runs.into_iter()
            .map(|(freeze, run)| (freeze, run.join().expect("the take-over holds")))
            .collect()
    });
    for (freeze, late) in late {
        // Frozen after its last check it writes late, sees that it was overtaken, and takes its
        // copy out again.
        let took_out = late.contains("its own late one was taken out again");
        assert_eq!(took_out, freeze == Freeze::Checked, "{freeze:?}: {late}");
    }
}

#[test]
fn a_delivery_frozen_past_its_lease_leaves_one_copy() {
    take_over_at_each(&WITHOUT_DOUBT, false);
}

#[test]
fn a_delivery_in_doubt_frozen_past_its_lease_leaves_one_copy() {
    take_over_at_each(&IN_DOUBT, true);
}
