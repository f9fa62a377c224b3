//! The exit table: every ending, for people and for Postfix.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::place::{Held, Place, SOON, ended, timed};
use crate::support::postgres::Postgres;
use crate::support::{onedrop, wait_until};

/// A lock that is held as long as what comes back.
fn holding(place: &Place, name: &str) -> Held {
    let child = place.with_lock(&[name, "--note", "nightly", "--", "sleep", "600"]).spawn();
    let held = Held { child: child.expect("binary") };
    assert!(wait_until(SOON, || place.lock(&["holder", name]).code == Some(0)));
    held
}

/// What is said on standard output under Postfix, and on standard error else.
#[track_caller]
fn ends(place: &Place, args: &[&str], code: i32, says: &str) {
    let end = ended(&mut place.with_lock(args));
    assert_eq!((end.code, &*end.out), (Some(code), ""), "{args:?}: {end:?}");
    assert!(end.err.starts_with("onedrop: ") && end.err.contains(says), "{args:?}: {}", end.err);
    assert_eq!(end.err.lines().count(), 1, "{}", end.err);
    let end = ended(&mut place.with_lock(&[&["--codes", "mail"], args].concat()));
    assert_eq!((end.code, &*end.err), (Some(75), ""), "{args:?}: {end:?}");
    assert!(end.out.starts_with("4.3.0 ") && end.out.contains(says), "{args:?}: {}", end.out);
}

#[test]
fn a_lock_that_is_held_is_200_or_what_the_caller_says() {
    let place = Place::new();
    let _held = holding(&place, "n");
    ends(&place, &["n", "--", "touch", "ran"], 200, "n is busy: slot 1 by ");
    ends(&place, &["n", "--busy-exit", "9", "--", "touch", "ran"], 9, "(sleep, nightly), ");
    ends(&place, &["n", "--wait", "400ms", "--", "touch", "ran"], 200, "n is busy");
    let (_, took) = timed(|| ended(&mut place.with_lock(&["n", "--wait", "1s", "--", "true"])));
    assert!(took >= Duration::from_secs(1), "{took:?}");
    for (args, code) in [(&[][..], 0), (&["--busy-exit", "3"][..], 3)] {
        let args = [&["n", "--on-busy", "quiet"], args, &["--", "touch", "ran"]].concat();
        let end = ended(&mut place.with_lock(&args));
        assert_eq!((end.code, &*end.out, &*end.err), (Some(code), "", ""));
        // Nothing was done with the mail: it must come again.
        let end = ended(&mut place.with_lock(&[&["--codes", "mail"], &args[..]].concat()));
        assert_eq!((end.code, &end.out[..6]), (Some(75), "4.3.0 "), "{end:?}");
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn a_lock_that_is_held_by_nobody_to_be_named_is_busy_all_the_same() {
    let postgres = Postgres::shared();
    let place = Place::with(&postgres.toml());
    assert_eq!(ended(&mut place.with_lock(&["n", "--", "true"])).code, Some(0));
    let mut other =
        ::postgres::Client::connect(&postgres.url_socket(), ::postgres::NoTls).expect("a session");
    let mut transaction = other.transaction().expect("a transaction");
    transaction.execute("SELECT FROM onedrop_lock FOR SHARE", &[]).expect("as an assertion does");
    let says = "n is busy: others wait for it, another is claiming it, or a transaction has \
                asserted it";
    ends(&place, &["n", "--", "touch", "ran"], 200, says);
    assert!(!place.path("ran").exists());
}

#[test]
fn a_command_that_runs_too_long_is_124() {
    let place = Place::new();
    ends(&place, &["n", "--timeout", "300ms", "--", "sleep", "60"], 124, "ran longer than 0.3 s");
    let deaf = ["n", "--timeout", "200ms", "--grace", "300ms", "--", "sh", "-c"];
    let (end, took) = timed(|| {
        ended(
            &mut place
                .with_lock(&[&deaf[..], &["trap '' TERM; while :; do sleep 1; done"]].concat()),
        )
    });
    assert_eq!(end.code, Some(124), "{end:?}");
    assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(20), "{took:?}");
    let end = ended(&mut place.with_lock(&["n", "--timeout", "20s", "--", "sh", "-c", "exit 4"]));
    assert_eq!(end.code, Some(4), "in time");
    let end = ended(&mut place.with_lock(&["n", "--timeout", "0", "--", "sleep", "0.3"]));
    assert_eq!(end.code, Some(0), "none: {end:?}");
    // It ended in time, and what it had started did not.
    let script = "(trap '' TERM; sleep 60) & sleep 1; exit 0";
    let end = ended(&mut place.shell(&["n", "--timeout", "8s", "--grace", "12s"], script));
    assert_eq!((end.code, &*end.err), (Some(0), ""), "{end:?}");
}

#[test]
fn what_keeps_the_command_from_running_is_125_to_127() {
    let place = Place::new();
    let script = place.path("script");
    fs::write(&script, "#!/bin/sh\ntouch ran\n").expect("a file");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o644)).expect("a mode");
    let touch = ["--", "touch", "ran"];
    let long = "n".repeat(201);
    let cases: [(&[&str], i32, &str); 12] = [
        (&["n", "--", "./nowhere"], 127, "./nowhere: No such file"),
        (&["n", "--", "no-such-program"], 127, "no-such-program: No such file"),
        (&["n", "--", "/tmp"], 126, "/tmp: is a directory"),
        (&["n", "--", "./script"], 126, "./script: Permission denied"),
        (&["n", "--ttl", "20s"], 125, "--ttl 20 s is too short for --grace 5 s: a third of it"),
        (&["n", "--ttl", "8d"], 125, "--ttl 691200 s is more than 7 days"),
        (&["n", "--ttl", "soon"], 125, "invalid value 'soon' for '--ttl <TIME>': expected a time"),
        (&["", "--slots", "2"], 125, "the name of a lock is empty"),
        (&["a\nb"], 125, "the name of a lock holds a control character"),
        (&[&long], 125, "the name of a lock has 201 bytes, more than 200"),
        (&["n", "--slots", "0"], 125, "0 is not in 1..=1000"),
        (&["n", "--bsuy-exit", "1"], 125, "a similar argument exists: '--busy-exit'"),
    ];
    for (args, code, says) in cases {
        let args = if args.contains(&"--") { args.to_vec() } else { [args, &touch].concat() };
        ends(&place, &args, code, says);
    }
    ends(&place, &["n"], 125, "required arguments were not provided");
    let end = ended(&mut place.with_lock(&[&"n".repeat(10_000), "--", "touch", "ran"]));
    assert!(end.err.len() < 400 && end.err.contains("has 10000 bytes"), "{end:?}");
    assert!(!place.path("ran").exists());
    assert_eq!(place.lock(&["holder", "n"]).code, Some(1), "nothing is left held");
}

#[test]
fn a_ledger_that_is_not_there_or_of_another_schema_is_125() {
    let place = Place::with("");
    let sqlite = place.site.sqlite();
    sqlite.execute("UPDATE onedrop_ledger SET version = 99", []).expect("SQL");
    ends(&place, &["n", "--", "touch", "ran"], 125, "ledger: has schema version 99");
    let nowhere = [("url", "postgres://onedrop@127.0.0.1:9/onedrop")];
    for (key, value) in nowhere {
        let variable = format!("ONEDROP__LEDGER__{}", key.to_uppercase());
        let end = ended(place.with_lock(&["n", "--", "touch", "ran"]).env(&variable, value));
        assert_eq!(end.code, Some(125), "{end:?}");
        assert!(end.err.contains("ledger: cannot be reached"), "{end:?}");
    }
    let mut command = onedrop();
    command.args(["--config", "/nowhere.toml", "with-lock", "n", "--", "touch", "ran"]);
    let end = ended(&mut command);
    assert_eq!(end.code, Some(125), "{end:?}");
    assert!(end.err.contains("/nowhere.toml"), "{end:?}");
    assert!(!place.path("ran").exists());
}

#[test]
fn a_lock_that_was_stolen_ends_its_command_with_201() {
    let place = Place::new();
    let args = ["n", "--ttl", "6s", "--grace", "0", "--", "sh", "-c", "sleep 600; touch ran"];
    let end = std::thread::scope(|scope| {
        let running = scope.spawn(|| ended(&mut place.with_lock(&args)));
        assert!(wait_until(SOON, || place.lock(&["holder", "n"]).code == Some(0)));
        let refused = place.lock(&["steal", "n"]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains("--force steals it all the same"), "{refused:?}");
        let stolen = place.lock(&["steal", "n", "--force", "--note", "hangs"]);
        assert_eq!(stolen.code, Some(0), "{stolen:?}");
        running.join().expect("no panic")
    });
    assert_eq!(end.code, Some(201), "{end:?}");
    assert!(end.err.contains("n was lost while the command ran; the command was ended"), "{end:?}");
    assert!(!place.path("ran").exists());
}

/// The command ended by itself, before the wrapper knew of the loss.
#[test]
fn a_lock_that_was_stolen_unnoticed_is_201_at_the_end() {
    let place = Place::new();
    let script = "$ONEDROP lock steal n --force >/dev/null && exit 0";
    let end = ended(&mut place.shell(&["n"], script));
    assert_eq!(end.code, Some(201), "{end:?}");
    assert!(end.err.contains("n was lost while the command ran"), "{end:?}");
}

/// It hears them by a descriptor, and so has them blocked (proc_pid_status(5), `SigBlk`).
fn hears_signals(of: &Held) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", of.child.id()));
    let status = status.unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    blocked.is_some_and(|mask| mask & (1 << (Signal::SIGTERM as i32 - 1)) != 0)
}

#[test]
fn a_waiter_ends_at_once_by_a_signal() {
    let place = Place::new();
    let _held = holding(&place, "n");
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let wait = ["n", "--wait", "forever", "--", "touch", "ran"];
        let mut waiting = Held { child: place.with_lock(&wait).spawn().expect("binary") };
        assert!(wait_until(SOON, || hears_signals(&waiting)));
        waiting.signal(signal);
        let (ended, took) = timed(|| waiting.code());
        assert_eq!(ended, Some(code));
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    assert!(!place.path("ran").exists());
}
