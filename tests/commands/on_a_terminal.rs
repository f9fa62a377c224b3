//! What people see on a terminal that no script sees.

use crate::command_line::{Admin, SCUBA};
use crate::support::terminal::{END, on_a_terminal};

const WIDE: u16 = 200;

const JOBS: &str = "[jobs.house-report]\nschedule = \"0 3 * * *\"\n\
    command = [\"true\"]\n[jobs.clean]\nevery = \"1h\"\ncommand = [\"true\"]\n";

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

/// An old mailbox, of which a part is delivered and the rest is left.
#[test]
fn the_bar_of_a_replay_says_how_much_time_is_left() {
    let admin = Admin::new();
    let one = "From lisa Thu Nov 26 10:00:00 2026\nSubject: x\n\nbody\n\n";
    let mbox = admin.site.root.write("old.mbox", one.repeat(40)).display().to_string();
    let args = ["replay", "--mbox", "o", "--to", SCUBA, &mbox];
    let (shown, status) = on_a_terminal(admin.command(&args).env("TERM", "xterm"), WIDE, "");
    assert_eq!(status, Some(0), "{shown}");
    let bars: Vec<&str> = shown.split('\r').filter(|part| part.contains(" left: ")).collect();
    assert!(!bars.is_empty(), "{shown:?}");
    for bar in bars {
        assert!(bar.contains(" %, ") && bar.matches('%').count() == 1, "{bar:?} in {shown:?}");
    }
}

/// Lines without what sets colours (ECMA-48).
fn plain(shown: &str) -> String {
    let mut parts = shown.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    plain.extend(parts.filter_map(|part| part.split_once('m')).map(|(_, text)| text));
    plain
}

fn is_within(shown: &str, width: usize) -> bool {
    // A word is not cut: paths are there to be copied.
    shown.lines().all(|line| {
        line.chars().count() <= width || line.split_whitespace().any(|word| word.len() + 21 > width)
    })
}

#[test]
fn lines_fit_the_terminal_and_have_colours_there_alone() {
    let admin = Admin::with(JOBS);
    let shown = |width: u16, args: &[&str], set: &[(&str, &str)]| {
        let mut command = admin.command(args);
        let set = set.iter().copied();
        command.env("TERM", "xterm").env_remove("NO_COLOR").envs(set);
        on_a_terminal(&mut command, width, "").0
    };
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let onedrop = crate::support::onedrop_path().display().to_string();
    let held = ["with-lock", "billing-run-of-this-month", "--", &onedrop, "lock", "list"];
    let asked = |words: &'static str| words.split(' ').collect::<Vec<_>>();
    for args in [
        &asked("status"),
        &asked("trace scuba"),
        &asked("check"),
        &asked("--help"),
        &asked("verify --help"),
        &asked("jobs list"),
        &asked("jobs show house-report"),
        &asked("jobs check"),
        &asked("jobs audit"),
        &held[..],
        &asked("purge --dry-run"),
        &asked("forget --dry-run --account scuba"),
    ] {
        let ended = admin.run(args);
        let whole = format!("{}{}", ended.out, ended.err);
        assert!(!whole.contains('\u{1b}'), "{whole}");
        for width in [60, 80, 132] {
            let colored = shown(width, args, &[]);
            assert!(colored.contains('\u{1b}'), "{args:?}: {colored:?}");
            let shown = shown(width, args, &[("NO_COLOR", "1")]);
            assert!(is_within(&shown, width.into()), "{width} columns: {shown}");
            // Of a lock, each run is another holder.
            let seconds = |text: &str| text.replace(char::is_numeric, "");
            assert_eq!(seconds(&plain(&colored)), seconds(&shown), "{args:?}");
            if !args.contains(&"--help") && args[0] != "check" {
                assert_eq!(seconds(&words(&shown)), seconds(&words(&whole)), "{args:?}");
            }
        }
        for no in [&[("NO_COLOR", "1")][..], &[("TERM", "dumb")]] {
            assert!(!shown(WIDE, args, no).contains('\u{1b}'), "{no:?}");
        }
        let never = [args, &["--color", "never"]].concat();
        assert!(!shown(WIDE, &never, &[]).contains('\u{1b}'), "{never:?}");
        let always = [args, &["--color=always"]].concat();
        assert!(admin.run(&always).out.contains('\u{1b}'), "{always:?}");
    }
    // What a program reads has none.
    for args in [
        "status --json",
        "check --json",
        "jobs list --json",
        "jobs check --json",
        "lock list --json",
        "purge --json",
        "forget --dry-run --account scuba --json",
    ] {
        assert!(!shown(WIDE, &asked(args), &[]).contains('\u{1b}'), "{args:?}");
    }
}

#[test]
fn a_replays_lines_and_summary_fit_the_terminal_and_have_its_colours() {
    let admin = Admin::new();
    let mail = admin.site.root.write("old.eml", "Subject: old\n\nold\n").display().to_string();
    let shown = |no_color: &str| {
        let args = ["replay", "--dry-run", "--to", SCUBA, &mail, "/nowhere"];
        let mut command = admin.command(&args);
        command.env("TERM", "xterm").env("NO_COLOR", no_color);
        on_a_terminal(&mut command, 40, "").0
    };
    let colored = shown("");
    for part in [
        "\u{1b}[31mfailed\u{1b}[0m /nowhere: ",
        "\u{1b}[32mwould be delivered\u{1b}[0m\n  /tmp/",
        "2 messages: \u{1b}[32m1 would be delivered\u{1b}[0m, ",
        "\u{1b}[31m1\n  failed\u{1b}[0m\n",
    ] {
        assert!(colored.contains(part), "{part:?} in {colored:?}");
    }
    let plain = shown("1");
    // The bar has escapes of its own.
    assert!(!plain.contains("\u{1b}[3") && !plain.contains("\u{1b}[0m"), "{plain:?}");
    assert!(plain.ends_with("2 messages: 1 would be delivered, 1\n  failed\n"), "{plain:?}");
}
