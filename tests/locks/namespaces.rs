//! Namespaces in which numbers of processes, or clocks, are others than outside.

use std::process::{Command, Stdio};

use crate::place::{Held, Place, SOON, ended};
use crate::support::{onedrop_path, wait_until};

/// `onedrop with-lock n ARGS` in new namespaces.
fn within(place: &Place, namespaces: &[&str], args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(namespaces).arg(onedrop_path()).arg("--config").arg(&place.config);
    command.args(["with-lock", "n"]).args(args).current_dir(&*place.site.root);
    command.env_remove("MAIL_CONFIG").stdin(Stdio::null());
    command
}

#[test]
fn a_pid_namespace_that_sees_another_proc_is_refused() {
    let place = Place::new();
    let namespace = ["--pid", "--fork", "--kill-child"];
    let end = ended(&mut within(&place, &namespace, &["--", "touch", "ran"]));
    assert_eq!(end.code, Some(125), "{end:?}");
    assert!(end.err.contains("/proc is that of another PID namespace"), "{end:?}");
    assert!(!place.path("ran").exists());
    let own = [&namespace[..], &["--mount-proc"]].concat();
    let end = ended(&mut within(&place, &own, &["--", "touch", "ran"]));
    assert!(end.code == Some(0) && place.path("ran").exists(), "{end:?}");
}

/// The asker's clock is ahead of the holder's, or the other way round.
#[test]
fn a_lock_in_a_file_excludes_others_whatever_the_time_namespace() {
    let place = Place::new();
    let moved = ["--time", "--boottime", "1000000"];
    let holding = ["--", "sh", "-c", "touch held; read line"];
    let mut inside = within(&place, &moved, &holding);
    let mut outside = place.with_lock(&[&["n"], &holding[..]].concat());
    let asks_inside = || ended(&mut within(&place, &moved, &["--", "true"])).code;
    let asks_outside = || ended(&mut place.with_lock(&["n", "--", "true"])).code;
    for holder in [&mut outside, &mut inside] {
        let mut held = Held { child: holder.stdin(Stdio::piped()).spawn().expect("binary") };
        assert!(wait_until(SOON, || place.path("held").exists()));
        assert_eq!((asks_inside(), asks_outside()), (Some(200), Some(200)));
        drop(held.child.stdin.take());
        held.code();
        assert_eq!((asks_inside(), asks_outside()), (Some(0), Some(0)));
        std::fs::remove_file(place.path("held")).expect("a file");
    }
}
