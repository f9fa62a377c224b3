//! `with-lock` under Postfix's pipe(8), which sets MAIL_CONFIG and makes standard input a pipe.
//! With a real Postfix: no message goes back because of a lock.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use crate::place::{End, Held, Place, SOON, end};
use crate::support::postfix::{Postfix, PostfixSpec};
use crate::support::{chown_recursive, onedrop_path, set_mode, wait_until};

fn piped(place: &Place, args: &[&str]) -> End {
    let mut command = place.with_lock(args);
    command.env("MAIL_CONFIG", "/etc/postfix").stdin(Stdio::piped());
    let mut child = command.spawn().expect("binary");
    let mut stdin = child.stdin.take().expect("stdin");
    // One that ended without reading is judged by its status.
    let _ = stdin.write_all(b"Subject: x\n\nbody\n");
    drop(stdin);
    end(child.wait_with_output().expect("its end"))
}

#[test]
fn the_commands_own_status_passes_and_all_else_is_temporary() {
    let place = Place::new();
    let read = piped(&place, &["n", "--", "sh", "-c", "cat >mail; echo stored; exit 67"]);
    assert_eq!((read.code, &*read.out), (Some(67), "stored\n"), "{read:?}");
    assert_eq!(place.text("mail"), "Subject: x\n\nbody\n");
    let _held =
        Held { child: place.with_lock(&["busy", "--", "sleep", "600"]).spawn().expect("binary") };
    assert!(wait_until(SOON, || place.lock(&["holder", "busy"]).code == Some(0)));
    let cases: [(&[&str], &str); 8] = [
        (&["busy", "--", "cat"], "4.3.0 busy is busy: slot 1 by "),
        (&["busy", "--on-busy", "quiet", "--", "cat"], "4.3.0 busy is busy"),
        (&["busy", "--busy-exit", "0", "--", "cat"], "4.3.0 busy is busy"),
        (&["n", "--", "./nowhere"], "4.3.0 ./nowhere: No such file"),
        (&["n", "--", "/tmp"], "4.3.0 /tmp: is a directory"),
        (&["n", "--timeout", "100ms", "--", "sleep", "60"], "4.3.0 the command ran longer"),
        (&["n", "--", "sh", "-c", "kill -TERM $$"], "4.3.0 ended by SIGTERM"),
        (&["n", "--no-such-option", "--", "cat"], "4.3.0 usage: unexpected argument"),
    ];
    for (args, says) in cases {
        let end = piped(&place, args);
        assert_eq!((end.code, &*end.err), (Some(75), ""), "{args:?}: {end:?}");
        assert!(end.out.starts_with(says), "{args:?}: {end:?}");
    }
    let end = piped(&place, &["busy", "--codes", "wrapper", "--", "cat"]);
    assert_eq!(end.code, Some(200), "{end:?}");
    let end = piped(&place, &["n", "--", "true"]);
    assert_eq!((end.code, &*end.out), (Some(0), ""), "{end:?}");
}

/// What a command writes counts only where it ended by itself: Postfix would take the first status
/// that it reads for the delivery's.
#[test]
fn the_output_of_a_command_that_was_ended_is_not_for_postfix() {
    let place = Place::new();
    let wrote = "echo 5.1.1 nobody here; echo 2.0.0 stored >&2;";
    for (args, script, says) in [
        (&["n", "--timeout", "300ms"][..], "sleep 60", "4.3.0 the command ran longer than 0.3 s"),
        (&["n"], "kill -KILL $$", "4.3.0 ended by SIGKILL"),
        (&["n"], "$ONEDROP lock steal n --force </dev/null >/dev/null", "4.3.0 n was lost while"),
    ] {
        let end =
            piped(&place, &[args, &["--", "sh", "-c", &format!("{wrote} {script}")]].concat());
        assert_eq!((end.code, &*end.err), (Some(75), ""), "{script}: {end:?}");
        assert!(end.out.starts_with(says) && end.out.lines().count() == 1, "{script}: {end:?}");
    }
    let script = "echo first >&2; echo second; echo third >&2; exit 67";
    let end = piped(&place, &["n", "--", "sh", "-c", script]);
    assert_eq!((end.code, &*end.out, &*end.err), (Some(67), "first\nsecond\nthird\n", ""));
    // As much as Postfix reads, whatever the command goes on to write.
    let end = piped(&place, &["n", "--", "sh", "-c", "yes 0123456 | head -c 300000; exit 70"]);
    let whole = "0123456\n".repeat(512);
    assert!(end.code == Some(70) && end.out == whole, "{} bytes, {:?}", end.out.len(), end.code);
}

/// Each recipient's command does something else.
const SCRIPT: &str = "#!/bin/sh
cat >/dev/null
case $1 in
    slow@*) echo 5.1.1 nobody here; sleep 60;;
    killed@*) echo 5.1.1 nobody here; kill -TERM $$;;
    refused@*) echo 5.7.1 not for you; exit 77;;
    unknown@*) exit 67;;
    *) echo it is stored;;
esac
";

#[test]
fn postfix_returns_a_message_for_the_commands_own_status_alone() {
    let place = Place::new();
    let script = place.path("command");
    fs::write(&script, SCRIPT).expect("a file");
    set_mode(&script, 0o755);
    let program = place.give_to_nobody();
    // Each command would begin with a warning of the other number of slots, not with its status.
    let other = place.with_lock(&["mail", "--slots", "1", "--", "sleep", "600"]).spawn();
    let _other = Held { child: other.expect("binary") };
    assert!(wait_until(SOON, || place.lock(&["holder", "mail"]).code == Some(0)));
    chown_recursive(&place.site.root, "nobody");
    let postfix = Postfix::start(&PostfixSpec {
        master_cf: format!(
            "onedrop unix - n n - - pipe flags=Rq user=nobody argv={} --config {} with-lock mail \
             --slots 9 --wait 2s --timeout 3s --grace 0 -- {} ${{recipient}}",
            program.display(),
            place.config.display(),
            script.display()
        ),
        ..PostfixSpec::new(onedrop_path())
    });
    let ends = |to: &str, says: &str| {
        let to = format!("{to}@mail.axial.net");
        let id = postfix.send("ann@example.org", &[&to], b"Subject: x\r\n\r\nbody\r\n");
        let told = wait_until(Duration::from_secs(60), || !postfix.attempts(&id).is_empty());
        assert!(told, "{to}: {}", postfix.log());
        let attempt = postfix.attempts(&id).remove(0);
        assert!(attempt.contains(says), "{to}: {attempt}");
    };
    ends("slow", "dsn=4.3.0, status=deferred (the command ran longer than 3 s");
    ends("killed", "dsn=4.3.0, status=deferred (ended by SIGTERM");
    ends("refused", "dsn=5.7.1, status=bounced (not for you");
    ends("unknown", "dsn=5.1.1, status=bounced (user unknown");
    ends("lisa", "dsn=2.0.0, status=sent (delivered via onedrop service (it is stored)");
    // No delivery gets the lock now.
    let slots: Vec<Held> = (0..10)
        .map(|_| {
            let args = ["mail", "--slots", "9", "--on-busy", "quiet", "--", "sleep", "600"];
            Held { child: place.with_lock(&args).spawn().expect("binary") }
        })
        .collect();
    let held = || place.lock(&["list"]).out.lines().count() >= 9;
    assert!(wait_until(SOON, held), "{}", place.lock(&["list"]).out);
    ends("lisa", "dsn=4.3.0, status=deferred (mail is busy: slot ");
    drop(slots);
}
