//! The command has ended before another has its lock: whatever is killed or stopped. The times are
//! written by the command, by a grandchild in a session of its own that ignores SIGTERM, and by the
//! next holder.

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::place::{Held, Place, SOON, appears, children, ended, is_alive, nanos_now, state};
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::server::pid_of;
use crate::support::{set_mode, unix_user, wait_until};

const SHORT: [&str; 5] = ["n", "--ttl", "6s", "--grace", "0"];

/// The next holder began after the last sign of the last one; and the epochs say so, too.
#[track_caller]
fn nothing_is_left_for_the_next_holder(place: &Place) {
    let next = place.next_holder("n");
    // What still lives would go on.
    std::thread::sleep(Duration::from_millis(300));
    for beats in ["beats", "deep"] {
        let last = place.last_beat(beats);
        assert!(last > 0 && last < next, "{beats}: {} ms too late", (last - next) / 1_000_000);
    }
}

#[test]
fn a_wrapper_that_is_killed_takes_the_command_along() {
    let place = Place::new();
    let mut held = place.beating(&SHORT);
    held.child.kill().expect("our child");
    held.child.wait().expect("its end");
    let began = nanos_now();
    nothing_is_left_for_the_next_holder(&place);
    // Long before the lease's end, but for the grace, which is none.
    assert!(place.last_beat("deep") < began + 2_000_000_000);
}

/// Far from the end of a lease: half of the default.
const BEFORE_THE_LEASE_ENDS: &str = "30s";

#[test]
fn a_wrapper_that_is_killed_frees_its_lock_when_its_command_is_gone() {
    let (postgres, mariadb) = (Postgres::shared(), Mariadb::shared());
    for ledger in ["", &postgres.toml(), &mariadb.toml()] {
        let place = Place::with(ledger);
        let mut held = place.beating(&["n", "--grace", "1s"]);
        let script = "date +%s%N >next; echo $ONEDROP_LOCK_TOKEN";
        let waiting = place.shell(&["n", "--wait", BEFORE_THE_LEASE_ENDS], script).spawn();
        let mut waiting = Held { child: waiting.expect("binary") };
        assert!(wait_until(SOON, || place.lock(&["list"]).out.contains(" waits for 1/1 ")));
        held.child.kill().expect("our child");
        held.child.wait().expect("its end");
        assert_eq!(waiting.code(), Some(0), "{ledger}");
        let mut token = String::new();
        let mut out = waiting.child.stdout.take().expect("stdout");
        out.read_to_string(&mut token).expect("text");
        assert_eq!(token, "n#1:2\n", "{ledger}");
        let (beats, deep, next) =
            (place.last_beat("beats"), place.last_beat("deep"), place.last_beat("next"));
        assert!(beats.max(deep) < next, "{ledger}: {beats} {deep} {next}");
        assert_eq!((place.last_beat("beats"), place.last_beat("deep")), (beats, deep));
        assert_eq!(place.lock(&["holder", "n"]).code, Some(1), "{ledger}");
    }
}

/// `with-lock` to which this happens when it has the lock, and has not said to its guardian that
/// the command is to start.
fn at_the_order_to_start(place: &Place, args: &[&str], what: &str) -> Command {
    let with_lock = place.shell(args, "echo >ran");
    let mut traced = Command::new("strace");
    // Its first thread, which gives no other order before.
    traced.args(["-qq", "-o", "/dev/null", "-e", &format!("inject=sendto:{what}:when=1")]);
    traced.arg(with_lock.get_program()).args(with_lock.get_args());
    traced.current_dir(&*place.site.root).stdin(Stdio::null());
    traced
}

/// Its machine may have been asleep. The guardian begins nothing so late, and the wrapper would not
/// yet end a command itself.
#[test]
fn a_lock_that_is_lost_before_its_command_begins_is_called_so() {
    let place = Place::new();
    let args = ["n", "--ttl", "12s", "--grace", "2s"];
    let end = ended(&mut at_the_order_to_start(&place, &args, "delay_enter=9800000"));
    let says = "onedrop: n was lost before the command began\n";
    assert_eq!((end.code, &*end.err), (Some(201), says), "{end:?}");
    assert!(!place.path("ran").exists());
    assert_eq!(place.lock(&["holder", "n"]).code, Some(1));
}

#[test]
fn a_wrapper_that_is_killed_before_its_command_frees_its_lock() {
    let (postgres, mariadb) = (Postgres::shared(), Mariadb::shared());
    for ledger in ["", &postgres.toml(), &mariadb.toml()] {
        let place = Place::with(ledger);
        let status = at_the_order_to_start(&place, &["n"], "signal=SIGKILL").status();
        let status = status.expect("strace");
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{ledger}");
        let free = || place.lock(&["holder", "n"]).code == Some(1);
        assert!(wait_until(SOON, free), "{ledger}: {}", place.lock(&["list"]).out);
        let next = ended(&mut place.shell(&["n"], "echo $ONEDROP_LOCK_TOKEN"));
        assert_eq!(next.out, "n#1:2\n", "{ledger}: it was not claimed");
        assert!(!place.path("ran").exists(), "{ledger}");
    }
}

#[test]
fn a_wrapper_that_is_killed_after_its_command_frees_its_lock() {
    let (postgres, mariadb) = (Postgres::shared(), Mariadb::shared());
    for ledger in ["", &postgres.toml(), &mariadb.toml()] {
        let place = Place::with(ledger);
        let script = "echo begun >begun; while [ ! -e go ]; do sleep 0.1; done";
        let mut held = Held { child: place.shell(&["n"], script).spawn().expect("binary") };
        appears(&place.path("begun"));
        let guardian = held.guardian();
        let command = children(guardian)[0];
        held.signal(Signal::SIGSTOP);
        fs::write(place.path("go"), "").expect("a file");
        // Its guardian has waited for it, and has said so.
        assert!(wait_until(SOON, || state(command).is_none()), "{ledger}");
        assert_eq!(place.lock(&["holder", "n"]).code, Some(0), "{ledger}");
        held.child.kill().expect("our child");
        held.child.wait().expect("its end");
        let free = || place.lock(&["holder", "n"]).code == Some(1);
        assert!(wait_until(SOON, free), "{ledger}: {}", place.lock(&["list"]).out);
    }
}

/// What is stopped stays so when its parent is killed, for this process becomes its parent. Where
/// none of its session did, the kernel would let it go on (setpgid(2), orphaned process groups).
fn adopt_orphans() {
    set_child_subreaper(true).expect("prctl");
}

#[test]
fn a_guardian_gives_back_no_lock_but_that_of_its_wrapper() {
    adopt_orphans();
    let place = Place::new();
    let mut held = place.beating(&["n", "--grace", "0"]);
    let guardian = held.guardian();
    kill(guardian, Signal::SIGSTOP).expect("its child");
    held.child.kill().expect("our child");
    held.child.wait().expect("its end");
    let stolen = place.lock(&["steal", "n", "--force"]);
    assert_eq!(stolen.code, Some(0), "{stolen:?}");
    let script = "echo $ONEDROP_LOCK_TOKEN >token; read line";
    let mut next = place.shell(&["n"], script);
    let next = Held { child: next.stdin(Stdio::piped()).spawn().expect("binary") };
    let token = appears(&place.path("token"));
    kill(guardian, Signal::SIGCONT).expect("a child of its");
    assert!(wait_until(SOON, || !is_alive(guardian)), "the guardian lives");
    assert_eq!(place.lock(&["assert", token.trim()]).code, Some(0), "{token}");
    drop(next);
}

#[test]
fn a_wrapper_that_is_stopped_loses_its_command_before_the_lease_ends() {
    let place = Place::new();
    let mut held = place.beating(&SHORT);
    held.signal(Signal::SIGSTOP);
    nothing_is_left_for_the_next_holder(&place);
    held.signal(Signal::SIGCONT);
    assert_eq!(held.code(), Some(201));
}

#[test]
fn a_guardian_that_is_killed_takes_the_command_along() {
    let place = Place::new();
    let mut held = place.beating(&SHORT);
    kill(held.guardian(), Signal::SIGKILL).expect("its child");
    assert_eq!(held.code(), Some(137));
    nothing_is_left_for_the_next_holder(&place);
}

#[test]
fn a_guardian_that_is_stopped_is_replaced_by_the_wrapper() {
    let place = Place::new();
    let mut held = place.beating(&SHORT);
    let guardian = held.guardian();
    let command = children(guardian)[0];
    kill(guardian, Signal::SIGSTOP).expect("its child");
    // Renewed by the wrapper, the lease lasts; then the wrapper gets SIGTERM, which the guardian
    // does not hear.
    held.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_alive(command), "it ignores SIGTERM, and its guardian is stopped");
    let stolen = place.lock(&["steal", "n", "--force"]);
    assert_eq!(stolen.code, Some(0), "{stolen:?}");
    assert_eq!(held.code(), Some(201));
    let gone = wait_until(SOON, || kill(command, None).is_err());
    assert!(gone, "the command lives");
}

/// The wrapper's messages fill its socket.
#[test]
fn a_guardian_that_is_stopped_keeps_nobody_waiting() {
    let place = Place::new();
    let mut held = place.beating(&SHORT);
    let guardian = held.guardian();
    let command = children(guardian)[0];
    kill(guardian, Signal::SIGSTOP).expect("its child");
    // More than a socket holds. One that follows too soon is the same signal.
    for _ in 0..600 {
        held.signal(Signal::SIGWINCH);
        std::thread::sleep(Duration::from_millis(2));
    }
    let stolen = place.lock(&["steal", "n", "--force"]);
    assert_eq!(stolen.code, Some(0), "{stolen:?}");
    assert_eq!(held.code(), Some(201));
    assert!(wait_until(SOON, || !is_alive(command)), "the command lives");
}

#[test]
fn a_guardian_that_is_stopped_while_the_command_ends_is_woken() {
    let place = Place::new();
    let script = "sleep 600 & echo began >began; read line; exit 6";
    let mut command = place.shell(&SHORT, script);
    let mut held = Held { child: command.stdin(Stdio::piped()).spawn().expect("binary") };
    appears(&place.path("began"));
    kill(held.guardian(), Signal::SIGSTOP).expect("its child");
    drop(held.child.stdin.take());
    assert_eq!(held.code(), Some(6));
    assert_eq!(place.lock(&["holder", "n"]).code, Some(1));
}

/// The renewals that it has not heard yet come after the first one.
#[test]
fn a_guardian_that_goes_on_late_finds_its_lease_renewed() {
    let place = Place::new();
    let script = "while [ ! -e go ]; do date +%s%N >>beats; sleep 0.1; done; exit 6";
    let args = [&SHORT[..], &["--", "sh", "-c", script]].concat();
    let mut held = Held { child: place.with_lock(&args).spawn().expect("binary") };
    assert!(wait_until(SOON, || place.last_beat("beats") > 0));
    let guardian = held.guardian();
    kill(guardian, Signal::SIGSTOP).expect("its child");
    std::thread::sleep(Duration::from_secs(9));
    kill(guardian, Signal::SIGCONT).expect("its child");
    std::thread::sleep(Duration::from_secs(1));
    let last = place.last_beat("beats");
    assert!(wait_until(SOON, || place.last_beat("beats") > last), "the command was ended");
    fs::write(place.path("go"), "").expect("a file");
    assert_eq!(held.code(), Some(6));
}

/// Whether the process of this number has become root's.
fn is_root(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
    status.contains("Uid:\t0\t")
}

/// sudo(8) makes such a process: root's, which its caller may not signal.
#[test]
fn what_cannot_be_ended_keeps_its_lock_and_is_named() {
    let place = Place::new();
    let (program, as_root) = (place.give_to_nobody(), place.path("as-root"));
    fs::copy("/usr/bin/setpriv", &as_root).expect("setpriv");
    set_mode(&as_root, 0o4755);
    let nobody = unix_user("nobody");
    let script = |pid: &str| {
        format!(
            "./as-root --reuid=0 --regid=0 --clear-groups sleep 600 >/dev/null 2>&1 &
             echo $! >{pid}; wait"
        )
    };
    let as_nobody = |name: &str, timeout: &str, script: &str| {
        let mut command = Command::new(&program);
        command.arg("--config").arg(&place.config).args(["with-lock", name, "--grace", "0"]);
        command.args(["--timeout", timeout, "--", "sh", "-c", script]);
        command.current_dir(&*place.site.root);
        command.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw()).stdin(Stdio::null());
        command
    };
    let mut orphan = as_nobody("orphan", "10m", &script("orphan-pid"));
    let mut orphan = Held { child: orphan.spawn().expect("binary") };
    appears(&place.path("orphan-pid"));
    let guardian = orphan.guardian();
    // Before that it could be ended.
    assert!(wait_until(SOON, || is_root(&place.text("orphan-pid"))));
    orphan.child.kill().expect("our child");
    orphan.child.wait().expect("its end");
    let end = ended(&mut as_nobody("other", "1s", "sleep 600"));
    assert_eq!(end.code, Some(124), "{end:?}");
    let end = ended(&mut as_nobody("n", "1s", &script("pid")));
    let pid = appears(&place.path("pid")).trim().to_owned();
    let process = Pid::from_raw(pid.parse().expect("a pid"));
    assert_eq!(end.code, Some(201), "{end:?}");
    let says =
        format!("onedrop: n: the processes {pid} could not be ended and may go on; the lock");
    assert!(end.err.starts_with(&says) && end.err.lines().count() == 1, "{end:?}");
    assert!(is_alive(process), "it was to live");
    assert_eq!(place.lock(&["holder", "n"]).code, Some(0), "its lease lasts");
    kill(process, Signal::SIGKILL).expect("a process of the test's");
    // The same where a wrapper was killed.
    assert!(wait_until(SOON, || !is_alive(guardian)), "its guardian goes on");
    assert_eq!(place.lock(&["holder", "orphan"]).code, Some(0), "its lease lasts");
    let pid = place.text("orphan-pid");
    let process = Pid::from_raw(pid.trim().parse().expect("a pid"));
    assert!(is_alive(process), "it was to live");
    kill(process, Signal::SIGKILL).expect("a process of the test's");
}

/// A list of children shows there what else is seen by root alone (hidepid in proc(5)).
#[test]
fn what_proc_hides_is_ended_or_keeps_its_lock() {
    let place = Place::new();
    let (program, nobody) = (place.give_to_nobody(), unix_user("nobody"));
    for (name, original) in [("as-root", "/usr/bin/setpriv"), ("sets-uid-sleep", "/usr/bin/sleep")]
    {
        fs::copy(original, place.path(name)).expect(original);
        set_mode(&place.path(name), 0o4755);
    }
    let hides = "mount -t proc -o hidepid=2 proc /proc && exec setpriv \"$@\"";
    // What it starts is signalled when its shell has ended.
    let ended_with_its_shell = |starts: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", hides, "sh", "--clear-groups"]);
        command.arg(format!("--reuid={}", nobody.uid)).arg(format!("--regid={}", nobody.gid));
        command.arg(&program).arg("--config").arg(&place.config);
        command.args(["with-lock", "n", "--grace", "0", "--", "sh", "-c"]);
        command.arg(format!("{starts} 600 >/dev/null 2>&1 & echo $! >pid; wait"));
        command.current_dir(&*place.site.root).env_remove("MAIL_CONFIG");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut held = Held { child: command.spawn().expect("unshare") };
        let pid = appears(&place.path("pid")).trim().to_owned();
        let name = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        assert!(wait_until(SOON, || name().ends_with("sleep\n")), "{}", name());
        held.signal(Signal::SIGTERM);
        let (code, mut says) = (held.code(), String::new());
        let mut err = held.child.stderr.take().expect("stderr");
        err.read_to_string(&mut says).expect("text");
        fs::remove_file(place.path("pid")).expect("a file");
        (code, says, Pid::from_raw(pid.parse().expect("a pid")))
    };
    // Its real user is still the caller.
    let (code, says, process) = ended_with_its_shell("./sets-uid-sleep");
    assert_eq!((code, is_alive(process)), (Some(143), false), "{says}");
    assert_eq!(place.lock(&["holder", "n"]).code, Some(1), "it was given back");
    let as_root = "./as-root --reuid=0 --regid=0 --clear-groups sleep";
    let (code, says, process) = ended_with_its_shell(as_root);
    assert_eq!((code, is_alive(process)), (Some(201), true), "{says}");
    let text = format!("onedrop: n: the processes {process} could not be ended and may go on;");
    assert!(says.starts_with(&text), "{says}");
    assert_eq!(place.lock(&["holder", "n"]).code, Some(0), "its lease lasts");
    kill(process, Signal::SIGKILL).expect("a process of the test's");
}

#[test]
fn a_command_that_is_killed_leaves_the_lock_free() {
    let place = Place::new();
    let mut held = place.beating(&SHORT);
    kill(children(held.guardian())[0], Signal::SIGKILL).expect("the command");
    assert_eq!(held.code(), Some(137));
    nothing_is_left_for_the_next_holder(&place);
}

/// The kernel does it: both watchers are gone, and the lock has its time.
#[test]
fn the_command_itself_dies_when_both_of_its_watchers_are_killed() {
    adopt_orphans();
    let place = Place::new();
    let script = "while :; do date +%s%N >>beats; sleep 0.1; done";
    let mut held = Held { child: place.shell(&["n"], script).spawn().expect("binary") };
    assert!(wait_until(SOON, || place.last_beat("beats") > 0));
    let guardian = held.guardian();
    let command = children(guardian)[0];
    kill(guardian, Signal::SIGSTOP).expect("its child");
    held.child.kill().expect("our child");
    held.child.wait().expect("its end");
    kill(guardian, Signal::SIGKILL).expect("its child");
    assert!(wait_until(SOON, || !is_alive(command)), "the command lives");
    assert_eq!(place.lock(&["holder", "n"]).code, Some(0), "its lease lasts");
}

/// Outside of the promise, and what fencing is for: the ledger refuses the late one.
#[test]
fn when_all_are_stopped_the_next_holder_has_a_higher_epoch_and_the_late_one_is_refused() {
    let place = Place::new();
    let script = "echo $ONEDROP_LOCK_TOKEN >token; while :; do sleep 0.1; done";
    let args = [&SHORT[..], &["--", "sh", "-c", script]].concat();
    let mut held = Held { child: place.with_lock(&args).spawn().expect("binary") };
    let token = crate::place::appears(&place.path("token"));
    let guardian = held.guardian();
    kill(guardian, Signal::SIGSTOP).expect("its child");
    held.signal(Signal::SIGSTOP);
    let next = ["n", "--wait", "60s", "--", "sh", "-c", "echo $ONEDROP_LOCK_TOKEN"];
    let end = ended(&mut place.with_lock(&next));
    assert_eq!((token.trim(), end.out.trim()), ("n#1:1", "n#1:2"), "{end:?}");
    let late = place.lock(&["assert", token.trim()]);
    assert_eq!(late.code, Some(201), "{late:?}");
    kill(guardian, Signal::SIGCONT).expect("its child");
    held.signal(Signal::SIGCONT);
    assert_eq!(held.code(), Some(201));
}

#[test]
fn a_time_out_counts_though_the_guardian_is_stopped() {
    let place = Place::new();
    let held = place.beating(&[&SHORT[..], &["--timeout", "4s"]].concat());
    kill(held.guardian(), Signal::SIGSTOP).expect("its child");
    let mut held = held;
    assert_eq!(held.code(), Some(124));
    nothing_is_left_for_the_next_holder(&place);
}

/// A lease is renewed for as long as the command runs.
#[test]
fn a_command_may_run_for_longer_than_the_ttl() {
    let place = Place::new();
    let script = "sleep 8; $ONEDROP lock assert --min 2s >/dev/null && exit 6";
    let args = [&SHORT[..], &["--", "sh", "-c", script]].concat();
    let end = ended(&mut place.with_lock(&args));
    assert_eq!(end.code, Some(6), "{end:?}");
    assert_eq!(place.lock(&["holder", "n"]).code, Some(1));
}

/// Another's process is not taken for ours.
#[test]
fn nothing_else_is_ended() {
    let place = Place::new();
    let mut other = Command::new("sleep").arg("600").spawn().expect("sleep");
    let mut held = place.beating(&SHORT);
    held.child.kill().expect("our child");
    held.child.wait().expect("its end");
    place.next_holder("n");
    assert!(kill(pid_of(&other), None).is_ok() && other.try_wait().expect("our child").is_none());
    other.kill().expect("our child");
    other.wait().expect("its end");
}
