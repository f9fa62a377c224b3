//! `onedrop with-lock NAME --hold`: for programs that take a lock in their midst.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Stdio};

use nix::sys::signal::{Signal, kill};

use crate::place::{Held, Place, SOON, children, ended};
use crate::support::wait_until;

fn holding(place: &Place, args: &[&str]) -> (Held, BufReader<ChildStdout>) {
    let mut command = place.with_lock(&[&["n", "--hold"], args].concat());
    let mut child = command.stdin(Stdio::piped()).spawn().expect("binary");
    let out = BufReader::new(child.stdout.take().expect("stdout"));
    (Held { child }, out)
}

fn line(out: &mut impl BufRead) -> String {
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    line
}

#[test]
fn a_lock_is_held_while_standard_input_is_open() {
    let place = Place::new();
    let (mut held, mut out) = holding(&place, &[]);
    let said = line(&mut out);
    let words: Vec<&str> = said.split_whitespace().collect();
    assert!(words[0] == "held" && words[1] == "n#1:1" && words[2].len() == 32, "{said:?}");
    assert_eq!(place.lock(&["assert", words[1]]).code, Some(0));
    let list = place.lock(&["list"]).out;
    assert!(list.contains(&format!(":{} --hold since ", held.child.id())), "{list}");
    // One that waits says nothing before.
    let (mut next, mut next_out) = holding(&place, &["--wait", "60s"]);
    assert!(wait_until(SOON, || place.lock(&["list"]).out.contains(" waits for 1/1 ")));
    drop(held.child.stdin.take());
    assert_eq!((held.code(), line(&mut out)), (Some(0), String::new()));
    assert!(line(&mut next_out).starts_with("held n#1:2 "));
    // The program that holds the pipe is killed.
    drop(next.child.stdin.take());
    assert_eq!(next.code(), Some(0));
    let end = ended(&mut place.with_lock(&["n", "--hold"]));
    assert!(end.code == Some(0) && end.out.starts_with("held n#1:3 "), "{end:?}");
}

#[test]
fn a_lock_that_is_lost_is_said_before_it_is_another_s() {
    let place = Place::new();
    let (mut held, mut out) = holding(&place, &["--ttl", "10s", "--grace", "1s"]);
    assert!(line(&mut out).starts_with("held n#1:1 "));
    assert_eq!(place.lock(&["steal", "n", "--force"]).code, Some(0));
    assert_eq!(line(&mut out), "lost\n");
    assert_eq!(held.code(), Some(201));
    // Also where the process that renews it is killed, or is to end. It is free as soon as whoever
    // had it has closed its pipe, long before its lease has run out.
    for (epoch, signal) in [(3, Signal::SIGKILL), (4, Signal::SIGTERM), (5, Signal::SIGINT)] {
        let (mut held, mut out) =
            holding(&place, &["--wait", "30s", "--ttl", "3m", "--grace", "25s"]);
        assert!(line(&mut out).starts_with(&format!("held n#1:{epoch} ")));
        held.signal(signal);
        assert_eq!(line(&mut out), "lost\n");
        let end = ended(&mut place.with_lock(&["n", "--hold"]));
        assert_eq!(end.code, Some(200), "{signal}: {end:?}");
        drop(held.child.stdin.take());
        assert_eq!(line(&mut out), "");
    }
}

/// None goes on: its turn is over as soon as it has come.
#[test]
fn a_caller_that_died_while_it_waited_keeps_nobody_waiting() {
    let place = Place::new();
    let (mut held, mut out) = holding(&place, &["--ttl", "3m"]);
    assert!(line(&mut out).starts_with("held n#1:1 "));
    let (mut next, next_out) = holding(&place, &["--ttl", "3m", "--wait", "60s"]);
    assert!(wait_until(SOON, || place.lock(&["list"]).out.contains(" waits for 1/1 ")));
    drop((next.child.stdin.take(), next_out));
    drop(held.child.stdin.take());
    assert_eq!((held.code(), next.code()), (Some(0), Some(0)));
    let end = ended(&mut place.with_lock(&["n", "--hold"]));
    assert!(end.out.starts_with("held n#1:3 "), "{end:?}");
}

/// What has it by the pipe is no child of ours: it may go on without a look at the pipe.
#[test]
fn a_lock_whose_holder_may_go_on_lasts_until_its_lease_ends() {
    let place = Place::new();
    for (epoch, depth) in [(1, 0), (3, 1), (5, 2)] {
        let args = ["--ttl", "12s", "--grace", "0", "--wait", "60s"];
        let (held, mut out) = holding(&place, &args);
        assert!(line(&mut out).starts_with(&format!("held n#1:{epoch} ")));
        // The wrapper, the guardian, what holds the pipe.
        let process = (0..depth).try_fold(held.pid(), |pid, _| children(pid).first().copied());
        kill(process.expect("a process"), Signal::SIGKILL).expect("killed");
        let mut rest = String::new();
        out.read_to_string(&mut rest).expect("the end");
        let end = ended(&mut place.with_lock(&["n", "--hold"]));
        assert_eq!(end.code, Some(200), "{depth}: {rest:?} {end:?}");
        // And then it is free.
        let (mut next, mut out) = holding(&place, &["--wait", "60s"]);
        assert!(line(&mut out).starts_with(&format!("held n#1:{} ", epoch + 1)));
        drop(next.child.stdin.take());
        assert_eq!(next.code(), Some(0));
    }
}

#[test]
fn a_lock_that_is_not_had_is_told_by_the_status() {
    let place = Place::new();
    let (_held, mut out) = holding(&place, &[]);
    line(&mut out);
    let end = ended(&mut place.with_lock(&["n", "--hold"]));
    assert_eq!((end.code, &*end.out), (Some(200), ""), "{end:?}");
    let end = ended(&mut place.with_lock(&["n", "--hold", "--", "true"]));
    assert_eq!(end.code, Some(125), "{end:?}");
    assert_eq!(ended(&mut place.with_lock(&["n"])).code, Some(125));
}
