//! What passes through: streams, status, environment, signals.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::place::{Held, Place, SOON, appears, children, ended, is_alive, is_stopped, timed};
use crate::support::{onedrop_path, wait_until};

#[test]
fn streams_and_status_are_the_commands() {
    let place = Place::new();
    let mut command = place.shell(&["n"], "cat; echo oops >&2; exit 7");
    let mut child = command.stdin(Stdio::piped()).spawn().expect("binary");
    let text = "x".repeat(200_000);
    let mut stdin = child.stdin.take().expect("stdin");
    let given = text.clone();
    let feed = std::thread::spawn(move || stdin.write_all(given.as_bytes()));
    let output = child.wait_with_output().expect("its end");
    feed.join().expect("no panic").expect("all was read");
    assert_eq!(output.status.code(), Some(7));
    assert!(output.stdout == text.as_bytes(), "{} bytes", output.stdout.len());
    assert_eq!(output.stderr, b"oops\n");
    for code in [0, 1, 75, 124, 125, 200, 201, 255] {
        let ended = ended(&mut place.shell(&["n"], &format!("exit {code}")));
        assert_eq!((ended.code, &*ended.out, &*ended.err), (Some(code), "", ""));
    }
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("ABRT", 134), ("34", 162)] {
        for more in ["", "sleep 600 >/dev/null 2>&1 & "] {
            let ended = ended(&mut place.shell(&["n"], &format!("{more}kill -{signal} $$")));
            assert_eq!(ended.code, Some(code), "{more}{signal}: {ended:?}");
        }
    }
}

/// A writer hears that its reader is gone, and a reader that its writer is, while the command goes
/// on.
#[test]
fn only_the_command_holds_the_callers_streams() {
    let place = Place::new();
    let script = "echo all; exec <&- >&- 2>&-; touch closed; while [ ! -e go ]; do sleep 0.1; done";
    let mut command = place.shell(&["n"], script);
    let mut held = Held { child: command.stdin(Stdio::piped()).spawn().expect("binary") };
    assert!(wait_until(SOON, || place.path("closed").exists()));
    let mut stdout = held.child.stdout.take().expect("stdout");
    let (told, read) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stdout.read_to_string(&mut text);
        told.send(text)
    });
    assert_eq!(read.recv_timeout(SOON).as_deref(), Ok("all\n"), "somebody may still write");
    let mut stdin = held.child.stdin.take().expect("stdin");
    let refused = wait_until(SOON, || stdin.write_all(&[b'x'; 100_000]).is_err());
    assert!(refused, "somebody still reads");
    fs::write(place.path("go"), "").expect("a file");
    assert_eq!(held.code(), Some(0));
}

#[test]
fn the_command_knows_its_lock_and_is_otherwise_as_if_it_ran_alone() {
    let place = Place::new();
    let script = "env | grep ^ONEDROP_LOCK | sort; umask; \
                  ls /proc/self/fd | tr '\\n' ' '; echo; $ONEDROP lock assert";
    let args = ["a b", "--slots", "3", "--ttl", "90s", "--note", "why"];
    let ended = ended(&mut place.shell(&args, script));
    assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{ended:?}");
    let lines: Vec<&str> = ended.out.lines().collect();
    let value = |name: &str| {
        let found =
            lines.iter().find_map(|line| line.strip_prefix(&format!("ONEDROP_LOCK_{name}=")));
        (*found.unwrap_or_else(|| panic!("{name}: {lines:?}"))).to_owned()
    };
    let slot: u32 = value("SLOT").parse().expect("a number");
    assert!((1..=3).contains(&slot));
    assert_eq!(
        (value("NAME"), value("SLOTS"), value("TTL_SECS")),
        ("a b".into(), "3".into(), "90".into())
    );
    assert_eq!(value("EPOCH"), "1");
    assert_eq!(value("TOKEN"), format!("a b#{slot}:1"));
    assert!(value("OWNER").len() == 32, "{}", value("OWNER"));
    // Bash, which runs the tests, may give them a umask of its own.
    let mask = std::process::Command::new("sh").args(["-c", "umask"]).output().expect("sh").stdout;
    assert_eq!(lines[7], String::from_utf8_lossy(&mask).trim());
    // What this test has inherited itself, the command has as well.
    let alone = std::process::Command::new("sh").args(["-c", "ls /proc/self/fd"]).output();
    let alone = String::from_utf8_lossy(&alone.expect("sh").stdout).replace('\n', " ");
    assert_eq!(lines[8].trim(), alone.trim(), "{lines:?}");
    assert!(lines[9].parse::<u64>().is_ok_and(|left| left > 60 && left <= 90), "{lines:?}");
}

/// Blocked, ignored: what the caller has, the command has.
#[test]
fn the_command_has_its_callers_signals() {
    let place = Place::new();
    let shows = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    for change in ["", "trap '' HUP PIPE XFSZ; ", "ulimit -f 1000; trap '' USR1; "] {
        let script = format!("{change}exec {}", shows.map(|word| format!("'{word}'")).join(" "));
        let mut shell = std::process::Command::new("sh");
        let output = shell.args(["-c", &script]).output().expect("sh");
        let with_lock = format!(
            "{change}exec $ONEDROP --config {} with-lock n -- '{}'",
            place.config.display(),
            shows.join("' '")
        );
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &with_lock]).env("ONEDROP", onedrop_path());
        let ended = ended(&mut shell);
        // What Rust's runtime and we ignore for ourselves is as by default for the command.
        let ignored = |text: &str| {
            let line = text.lines().nth(1).and_then(|line| line.split_whitespace().nth(1));
            let bits = u64::from_str_radix(line.unwrap_or_default(), 16).expect("bits");
            bits & !(1 << (Signal::SIGPIPE as i32 - 1)) & !(1 << (Signal::SIGXFSZ as i32 - 1))
        };
        let alone = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(ended.out.lines().next(), alone.lines().next(), "{change}{ended:?}");
        assert_eq!(ignored(&ended.out), ignored(&alone), "{change}{ended:?}");
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn signals_reach_the_command_and_its_children() {
    let place = Place::new();
    let names = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"];
    let traps: String = names.iter().map(|name| format!("trap 'echo {name}' {name}\n")).collect();
    let script = format!("{traps}echo ready\nwhile [ ! -e go ]; do sleep 0.1; done; exit 9");
    let mut command = place.with_lock(&["n", "--", "bash", "-c", &script]);
    let mut held = Held { child: command.spawn().expect("binary") };
    let mut lines = BufReader::new(held.child.stdout.take().expect("stdout")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!(next(), "ready");
    for name in names {
        let signal: Signal = format!("SIG{name}").parse().expect("a signal");
        held.signal(signal);
        assert_eq!(next(), name);
    }
    fs::write(place.path("go"), "").expect("a file");
    assert_eq!(held.code(), Some(9));

    // The guardian sends none of these by itself, whatever is left.
    let script = "trap : USR1
                  bash -c 'trap \"echo heard >>heard\" USR1; echo $$ >pid
                           while :; do sleep 0.1; done'";
    let mut held = Held { child: place.shell(&["n"], script).spawn().expect("binary") };
    let child = appears(&place.path("pid"));
    held.signal(Signal::SIGUSR1);
    assert_eq!(appears(&place.path("heard")), "heard\n");
    held.signal(Signal::SIGTERM);
    assert_eq!(held.code(), Some(143));
    let child = Pid::from_raw(child.trim().parse().expect("a pid"));
    assert!(!is_alive(child), "its child is gone");
}

/// nohup(1) relies on it: what the caller ignores ends no waiter.
#[test]
fn a_signal_that_the_caller_ignores_is_ignored() {
    let place = Place::new();
    let script = "touch began; while [ ! -e go ]; do sleep 0.1; done";
    let mut first = Held { child: place.shell(&["n"], script).spawn().expect("binary") };
    assert!(wait_until(SOON, || place.path("began").exists()));
    let ignoring = format!(
        "trap '' HUP INT; exec $ONEDROP --config {} with-lock n --wait forever -- \
         sh -c 'kill -HUP $$; echo ran; exit 4'",
        place.config.display()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &ignoring]).env("ONEDROP", onedrop_path()).stdout(Stdio::piped());
    let mut waiting = Held { child: shell.spawn().expect("sh") };
    // By its own threads it is Onedrop, and has seen what is ignored.
    let is_waiting = || children(waiting.pid()).len() == 1;
    assert!(wait_until(SOON, is_waiting));
    for signal in [Signal::SIGHUP, Signal::SIGINT] {
        waiting.signal(signal);
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(waiting.child.try_wait().expect("our child").is_none(), "it was ended");
    fs::write(place.path("go"), "").expect("a file");
    assert_eq!((first.code(), waiting.code()), (Some(0), Some(4)));
}

#[test]
fn a_command_that_is_stopped_goes_on_with_its_caller() {
    let place = Place::new();
    let script = "while [ ! -e go ]; do date +%s%N >>beats; sleep 0.1; done; exit 3";
    let mut held = Held { child: place.shell(&["n"], script).spawn().expect("binary") };
    assert!(wait_until(SOON, || place.last_beat("beats") > 0));
    held.signal(Signal::SIGTSTP);
    let command = children(held.guardian())[0];
    for (pid, whose) in [(held.pid(), "as its caller must see it"), (command, "the command")] {
        assert!(wait_until(SOON, || is_stopped(pid)), "{pid} runs: {whose}");
    }
    let last = place.last_beat("beats");
    held.signal(Signal::SIGCONT);
    assert!(wait_until(SOON, || place.last_beat("beats") > last));
    fs::write(place.path("go"), "").expect("a file");
    assert_eq!(held.code(), Some(3));
}

/// What the command leaves running has ended when the lock is free.
#[test]
fn what_is_left_in_the_background_ends_with_the_command() {
    let place = Place::new();
    let script = "(trap '' TERM; while :; do date +%s%N >>beats; sleep 0.1; done) >/dev/null 2>&1 &
                  while [ ! -s beats ]; do sleep 0.1; done; exit 5";
    let (end, took) = timed(|| ended(&mut place.shell(&["n", "--grace", "500ms"], script)));
    assert_eq!(end.code, Some(5), "{end:?}");
    assert!(took.as_millis() >= 500, "it got its grace: {took:?}");
    assert!(place.last_beat("beats") < place.next_holder("n"));
}

#[test]
fn a_waiter_starts_when_the_lock_is_given_back() {
    let place = Place::new();
    let script = "while [ ! -e go ]; do sleep 0.1; done; date +%s%N";
    let first = place.shell(&["n"], script).spawn().expect("binary");
    assert!(wait_until(SOON, || place.lock(&["holder", "n"]).code == Some(0)));
    let wait = ["n", "--wait", "forever", "--", "date", "+%s%N"];
    let second = place.with_lock(&wait).spawn().expect("binary");
    std::thread::sleep(std::time::Duration::from_millis(300));
    fs::write(place.path("go"), "").expect("a file");
    let [first, second] = [first, second].map(|child| {
        let end = crate::place::end(child.wait_with_output().expect("its end"));
        assert_eq!((end.code, &*end.err), (Some(0), ""), "{end:?}");
        end.out.trim().parse::<u128>().expect("a time")
    });
    assert!(second > first, "{first} {second}");
    let path = onedrop_path();
    assert!(
        second - first < 5_000_000_000,
        "{} ms ({})",
        (second - first) / 1_000_000,
        path.display()
    );
}
