//! What people see on a terminal that no script sees.

use crate::command_line::{Admin, SCUBA};
use crate::support::terminal::{END, on_a_terminal};

const WIDE: u16 = 200;

#[test]
fn lock_list_says_that_none_is_held() {
    let admin = Admin::new();
    for (args, said) in [
        (&["lock", "list"][..], "no lock is held\n"),
        (&["lock", "list", "--stale"], "no lease has run out\n"),
    ] {
        let shown = on_a_terminal(&mut admin.command(args), WIDE, "");
        assert_eq!(shown, (said.to_owned(), Some(0)));
        let ended = admin.run(args);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", ""), "{ended:?}");
    }
    let shown = on_a_terminal(&mut admin.command(&["lock", "list", "--json"]), WIDE, "");
    assert_eq!(shown, ("[]\n".to_owned(), Some(0)));
}

#[test]
fn deliver_says_that_it_waits_for_a_message() {
    let admin = Admin::new();
    let says = "onedrop: waiting for a message on standard input";
    let args = ["deliver", "-f", "lisa@gmail.com", "-d", SCUBA];
    let typed = format!("Message-ID: <typed@x>\n\nby hand\n{END}");
    let (shown, status) = on_a_terminal(&mut admin.command(&args), WIDE, &typed);
    assert!(shown.contains(says) && shown.contains("stored account=scuba "), "{shown}");
    assert_eq!(status, Some(0), "{shown}");
    let ended = admin.run(&args);
    assert!(!ended.err.contains(says) && !ended.out.contains(says), "{ended:?}");
}

/// An old mailbox, of which so much is delivered and so much is left.
#[test]
fn the_bar_of_a_replay_says_how_much_time_is_left() {
    let admin = Admin::new();
    let one = "From lisa Thu Nov 26 10:00:00 2026\nSubject: x\n\nbody\n\n";
    let mbox = admin.site.root.write("old.mbox", one.repeat(40)).display().to_string();
    let args = ["replay", "--mbox", "o", "--to", SCUBA, &mbox];
    let (shown, status) = on_a_terminal(admin.command(&args).env("TERM", "xterm"), WIDE, "");
    assert_eq!(status, Some(0), "{shown}");
    let bar = shown.split('\r').find(|part| part.contains(" left: ")).unwrap_or_default();
    assert!(bar.contains(" %, ") && bar.matches('%').count() == 1, "{bar:?} in {shown:?}");
}
