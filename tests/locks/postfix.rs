//! As Postfix's pipe(8) starts it: MAIL_CONFIG is set and standard input is a pipe.

use std::io::Write;
use std::process::Stdio;

use crate::place::{End, Held, Place, SOON, end};
use crate::support::wait_until;

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
