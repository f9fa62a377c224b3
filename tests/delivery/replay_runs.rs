//! Runs of `onedrop replay`: ended and run again, side by side, with a ledger or a store that is
//! away, of an mbox that is larger than memory.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::pty::{Winsize, openpty};

use crate::support::letters::from_ann;
use crate::support::site::{Files, Held, Site, run};
use crate::support::{TempRoot, is_full, onedrop, onedrop_path, wait_until};

const SOON: Duration = Duration::from_secs(60);
const TO: [&str; 3] = ["replay", "--to", "scuba@mail.axial.net"];
const BEGIN: &str = "From ann@elsewhere.example Mon Jan  5 10:00:00 2015\n";

fn start(config: &Path, arguments: &[&str]) -> Child {
    let mut command = onedrop();
    command.args(TO).arg("--config").arg(config).args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("binary")
}

fn replay(config: &Path, arguments: &[&str]) -> Output {
    start(config, arguments).wait_with_output().expect("end")
}

#[track_caller]
fn told(output: &Output, status: i32) -> String {
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    err
}

/// A Maildir and an mbox with these letters.
fn sources(count: usize) -> (TempRoot, Vec<String>) {
    let (root, mut mbox, mut letters) = (TempRoot::new(), String::new(), Vec::new());
    fs::create_dir_all(root.join("Maildir/cur")).expect("a folder");
    for number in 0..count {
        let letter = from_ann(&format!("in-maildir-{number:03}"));
        root.write(&format!("Maildir/new/17000{number:05}.M1.host"), &letter);
        letters.push(letter);
        let letter = from_ann(&format!("in-mbox-{number:03}"));
        mbox.push_str(&format!("{BEGIN}{letter}\n"));
        letters.push(letter);
    }
    root.write("old.mbox", mbox);
    (root, letters)
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn a_run_that_was_killed_goes_on_and_a_changed_file_is_noticed() {
    const COUNT: usize = 12;
    let (sources, mut letters) = sources(COUNT);
    let site = Site::embedded();
    let config = site.config("etc", "");
    let (maildir, mbox, state) =
        (sources.join("Maildir"), sources.join("old.mbox"), sources.join("state"));
    let [maildir_name, mbox_name, state_name] =
        [&maildir, &mbox, &state].map(|path| path.display().to_string());
    let arguments = ["--state", &state_name, "--mbox", "rd", &maildir_name, &mbox_name];
    // In the midst of the Maildir, and of the mbox.
    for done in [4, COUNT + 4] {
        let mut run = start(&config, &[&["--rate", "20/s"], &arguments[..]].concat());
        assert!(wait_until(SOON, || lines(&state) > done), "not so far");
        run.kill().expect("killed");
        run.wait().expect("end");
    }
    // Its owner has seen one that was done, and one that was not; the first is still known.
    let names = |part: &str| {
        let entries = fs::read_dir(maildir.join(part)).expect("a folder");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        names.sort();
        names
    };
    let seen = names("new").remove(0);
    let name = format!("{}:2,S", seen.file_name().expect("a name").to_string_lossy());
    fs::rename(&seen, maildir.join("cur").join(name)).expect("renamed");
    let before = lines(&state) - 1;
    let err = told(&replay(&config, &arguments), 0);
    assert!(err.contains(&format!("{} messages: ", 2 * COUNT)), "{err}");
    assert!(err.contains(&format!("{before} done by an earlier run")), "{err}");
    site.inbox_has("scuba", &letters);
    let err = told(&replay(&config, &arguments), 0);
    assert_eq!(err, format!("{0} messages: {0} done by an earlier run\n", 2 * COUNT));

    let other = from_ann("another");
    fs::write(&names("new")[0], &other).expect("a file");
    let mut grown = fs::OpenOptions::new().append(true).open(&mbox).expect("the mbox");
    writeln!(grown, "{BEGIN}{}", from_ann("new-in-mbox")).expect("written");
    letters.extend([other, from_ann("new-in-mbox")]);
    let err = told(&replay(&config, &arguments), 0);
    for changed in [names("new")[0].display().to_string(), mbox_name.clone()] {
        let line = format!("{changed}: changed since the state file was written: read again\n");
        assert!(err.contains(&line), "{err}");
    }
    let counts = format!("2 stored, {COUNT} already there, {} done by an earlier run", COUNT - 1);
    assert!(err.ends_with(&format!("{} messages: {counts}\n", 2 * COUNT + 1)), "{err}");
    site.inbox_has("scuba", &letters);

    let output = run(&config, &["replay", "--state", &state_name, &maildir_name]);
    let err = told(&output, 75);
    assert!(err.contains("it is of another replay"), "{err}");
}

#[test]
fn two_runs_side_by_side_leave_one_copy_each() {
    let (sources, letters) = sources(20);
    let site = Site::embedded();
    // Whoever meets another waits for it.
    let patient = "[lock]\nwait_secs = 50\nlease_secs = 180\n[limits]\ndeadline_secs = 100\n";
    let config = site.config("etc", patient);
    site.remember_for_ever();
    let (maildir, mbox) = (sources.join("Maildir"), sources.join("old.mbox"));
    let (maildir, mbox) = (maildir.display().to_string(), mbox.display().to_string());
    let arguments = ["--mbox", "o", "--parallel", "4", &maildir, &mbox];
    let runs: Vec<Child> = (0..2).map(|_| start(&config, &arguments)).collect();
    let mut stored = 0;
    for run in runs {
        let err = told(&run.wait_with_output().expect("end"), 0);
        assert!(err.contains("40 messages: "), "{err}");
        let count = err.split("40 messages: ").nth(1).and_then(|rest| rest.split_once(" stored"));
        stored += count.map_or(0, |(count, _)| count.parse().expect("a number"));
    }
    assert_eq!(stored, 40);
    site.inbox_has("scuba", &letters);
}

/// A message that was replayed, with the copy as a delivery leaves it that was killed `secs` before
/// its lease ends: the site, the configuration, and the file.
fn held_by_a_killed_one(secs: u32, sources: &TempRoot) -> (Site, PathBuf, String) {
    let site = Site::with_servers();
    let config = site.config("etc", "lock.wait_secs = 0\n");
    let file = sources.write("held.eml", from_ann("held")).display().to_string();
    told(&replay(&config, &[&file]), 0);
    site.postgres.psql(&format!(
        "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
             in_doubt = true,
             leased_until = clock_timestamp() + interval '{secs} seconds', owner = 'another'"
    ));
    (site, config, file)
}

/// A killed delivery's lease is waited for, where it does not last long.
#[test]
fn what_a_killed_delivery_had_is_replayed_when_its_lease_is_over() {
    let sources = TempRoot::new();
    let (site, config, file) = held_by_a_killed_one(3, &sources);
    let err = told(&replay(&config, &[&file]), 0);
    assert_eq!(err, "1 message: 1 found\n");
    assert_eq!(site.dovecot.messages("scuba", "INBOX").len(), 1);
}

/// Tries of what another delivery has come no faster than `--rate` says.
#[test]
fn what_is_held_is_tried_again_at_the_rate() {
    let sources = TempRoot::new();
    let (site, config, file) = held_by_a_killed_one(6, &sources);
    let attempts = || site.postgres.psql("SELECT count(*) FROM onedrop_attempt_text");
    assert_eq!(attempts(), "1");
    let begun = Instant::now();
    let err = told(&replay(&config, &["--rate", "15/m", &file]), 0);
    let took = begun.elapsed();
    assert_eq!(err, "1 message: 1 found\n");
    // The first one, and one each four seconds for as long as it took; without the rate two a
    // second.
    let count: u64 = attempts().parse().expect("a number");
    let most = 3 + took.as_secs() / 4;
    assert!((2..=most).contains(&count), "{count} attempts in {took:?}");
}

/// A run that is held up at its second message, with the third read and the fourth not.
struct HeldUp {
    site: Site<Files>,
    sources: TempRoot,
    held: Held,
    run: Child,
}

impl HeldUp {
    fn at(sources: TempRoot, second: &str, arguments: &[&str]) -> HeldUp {
        let site = Site::embedded();
        let patient = "[lock]\nwait_secs = 50\nlease_secs = 180\n[limits]\ndeadline_secs = 100\n";
        let config = site.config("etc", patient);
        site.remember_for_ever();
        let before = sources.write("before.eml", from_ann("before")).display().to_string();
        told(&replay(&config, &[&before]), 0);
        let held = site.hold(second.as_bytes());
        let state = sources.join("state");
        let mut command = onedrop();
        command.args(TO).arg("--config").arg(&config).arg("--state").arg(&state).args(arguments);
        command.current_dir(&*sources).stdin(Stdio::null());
        let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("binary");
        assert!(wait_until(SOON, || lines(&state) > 1), "the first one is not delivered");
        HeldUp { site, sources, held, run }
    }

    fn goes_on(self) -> (Site<Files>, TempRoot, Output) {
        drop(self.held);
        (self.site, self.sources, self.run.wait_with_output().expect("end"))
    }
}

#[test]
fn a_message_that_its_owner_sees_meanwhile_is_delivered_and_met_once() {
    let sources = TempRoot::new();
    let letters = ["a", "b", "c", "d"].map(from_ann);
    for (number, letter) in letters.iter().enumerate() {
        sources.write(&format!("Maildir/new/1700{number}.M1.host"), letter);
    }
    fs::create_dir_all(sources.join("Maildir/cur")).expect("a folder");
    let run = HeldUp::at(sources, &letters[1], &["Maildir"]);
    let maildir = run.sources.join("Maildir");
    fs::rename(maildir.join("new/17003.M1.host"), maildir.join("cur/17003.M1.host:2,S"))
        .expect("renamed");
    let (site, _sources, output) = run.goes_on();
    assert_eq!(told(&output, 0), "4 messages: 4 stored\n");
    site.inbox_has("scuba", letters.into_iter().chain([from_ann("before")]));
}

/// Its writer takes no lock: what was read of it so far stands, and nothing half.
#[test]
fn an_mbox_that_is_written_meanwhile_is_left_there_and_read_by_the_next_run() {
    let sources = TempRoot::new();
    let letters = ["a", "b", "c", "d"].map(from_ann);
    let whole: String = letters.iter().map(|letter| format!("{BEGIN}{letter}\n")).collect();
    let (cut, rest) = whole.split_at(whole.len() - 10);
    let mbox = sources.write("mbox", cut);
    let arguments = ["--mbox", "rd", "mbox"];
    let run = HeldUp::at(sources, &letters[1], &arguments);
    let mut writer = File::options().append(true).open(&mbox).expect("the mbox");
    writeln!(writer, "{rest}{BEGIN}{}", from_ann("e")).expect("written");
    let (site, sources, output) = run.goes_on();
    // The third may be read by then, or not.
    let err = told(&output, 1);
    let stored = (2..=3)
        .find(|stored| err == format!("{} messages: {stored} stored, 1 failed\n", stored + 1));
    let stored = stored.unwrap_or_else(|| panic!("{err}"));
    let why = "failed mbox: changed while it was read: what follows is left, replay it again\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), why);
    site.inbox_has("scuba", letters[..stored].iter().cloned().chain([from_ann("before")]));

    let mut command = onedrop();
    command.args(TO).arg("--config").arg(site.root.join("etc/onedrop.toml")).args(arguments);
    let again = command.args(["--state", "state"]).current_dir(&*sources).output();
    let err = told(&again.expect("binary"), 0);
    assert!(err.contains("mbox: changed since the state file was written: read again\n"), "{err}");
    let counts = format!("5 messages: {} stored, {stored} already there\n", 5 - stored);
    assert!(err.ends_with(&counts), "{err}");
    site.inbox_has("scuba", letters.into_iter().chain(["e", "before"].map(from_ann)));
}

#[test]
fn an_mbox_is_read_when_no_other_program_has_it_locked() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    let whole = format!("{BEGIN}{}\n", from_ann("whole"));
    let (first, rest) = whole.split_at(whole.len() / 2);
    let path = sources.write("mbox", first);
    let lock = File::options().append(true).open(&path).expect("the mbox");
    let mut lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).expect("locked");
    let mut run = start(&config, &["--mbox", "rd", &path.display().to_string()]);
    let mut err = BufReader::new(run.stderr.take().expect("stderr"));
    let mut line = String::new();
    err.read_line(&mut line).expect("a line");
    let waits = format!("{}: waiting: another program has it locked\n", path.display());
    assert_eq!(line, waits);
    lock.write_all(rest.as_bytes()).expect("written");
    drop(lock);
    line.clear();
    err.read_to_string(&mut line).expect("text");
    assert_eq!(line, "1 message: 1 stored\n");
    assert!(run.wait().expect("end").success());
    site.inbox_has("scuba", [from_ann("whole")]);
}

#[test]
fn a_ledger_that_goes_away_ends_the_run_and_the_next_does_the_rest() {
    const COUNT: usize = 15;
    let (sources, letters) = sources(COUNT);
    let mut site = Site::with_own_postgres();
    let config = site.config("etc", "");
    let (maildir, state) = (sources.join("Maildir"), sources.join("state"));
    let (maildir, state_name) = (maildir.display().to_string(), state.display().to_string());
    let arguments = ["--rate", "10/s", "--state", &state_name, &maildir];
    let run = start(&config, &arguments);
    assert!(wait_until(SOON, || lines(&state) > 2), "not so far");
    site.postgres.stop_immediate();
    let output = run.wait_with_output().expect("end");
    let err = told(&output, 75);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(out.matches("failed ").count(), 1, "no more than one fails: {out}");
    assert!(out.contains(": 4.3.0 ledger: cannot be reached"), "{out}");
    assert!(err.contains(&format!("\nstopped at {maildir}/new/")), "{err}");
    assert!(err.ends_with("\nthe rest is left: run it again when that is mended\n"), "{err}");
    // From the beginning, too.
    let err = told(&replay(&config, &arguments), 75);
    assert!(err.starts_with("ledger: cannot be reached"), "{err}");
    site.postgres.restart();
    let err = told(&replay(&config, &arguments), 0);
    assert!(err.contains(&format!("{COUNT} messages: ")), "{err}");
    let copies = site.dovecot.messages("scuba", "INBOX");
    let mut copies: Vec<String> =
        copies.iter().map(|copy| String::from_utf8_lossy(copy).replace("\r\n", "\n")).collect();
    let mut wanted: Vec<String> =
        letters.into_iter().filter(|letter| letter.contains("in-maildir")).collect();
    copies.sort();
    wanted.sort();
    assert_eq!(copies, wanted);
}

#[test]
fn a_mailbox_that_takes_nothing_ends_the_run_and_recipients_that_nobody_knows_do_not() {
    let (sources, letters) = sources(15);
    let site: Site<Files> = Site::embedded();
    let config = site.config("etc", "");
    site.block("scuba");
    let (maildir, mbox) = (sources.join("Maildir"), sources.join("old.mbox"));
    let (maildir, mbox) = (maildir.display().to_string(), mbox.display().to_string());
    let arguments = ["--mbox", "rd", &mbox, &maildir];
    let output = replay(&config, &arguments);
    let err = told(&output, 75);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(out.lines().count(), 10, "{out}");
    assert!(err.starts_with("10 messages: 10 failed\nstopped at "), "{err}");
    fs::remove_file(site.root.join("mail/scuba/Maildir")).expect("a file");
    told(&replay(&config, &arguments), 0);
    site.inbox_has("scuba", &letters);

    let output = run(&config, &["replay", "--to", "x@elsewhere.example", &maildir]);
    assert_eq!(told(&output, 1), "15 messages: 15 failed\n");
}

/// A run in a folder that gets no more than a gigabyte.
fn with_little_memory(config: &Path, folder: &Path, arguments: &[&str]) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v 1000000; exec \"$@\"", "sh"]).arg(onedrop_path());
    shell.args(TO).arg("--config").arg(config).args(arguments);
    shell.current_dir(folder).output().expect("sh")
}

/// A hole of more than it may have, between two messages; in a full run of more than 4 GiB.
#[test]
fn an_mbox_larger_than_memory_is_read_message_by_message() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "limits.message_bytes = 1000000\n");
    let path = sources.write("large.mbox", format!("{BEGIN}{}\n{BEGIN}", from_ann("first")));
    let mut file = File::options().append(true).open(&path).expect("the mbox");
    let hole = file.metadata().expect("facts").len();
    let gibibytes = if is_full() { 4 } else { 1 };
    file.set_len(hole + (gibibytes << 30) + 5).expect("a hole");
    file.seek(SeekFrom::End(0)).expect("the end");
    writeln!(file, "\n\n{BEGIN}{}", from_ann("last")).expect("written");
    let (name, state) = (path.display().to_string(), sources.join("state"));
    let state = state.display().to_string();
    let limited =
        || with_little_memory(&config, &sources, &["--mbox", "rd", "--state", &state, &name]);
    let err = told(&limited(), 1);
    assert!(err.ends_with("3 messages: 2 stored, 1 failed\n"), "{err}");
    site.inbox_has("scuba", [from_ann("first"), from_ann("last")]);
    let noted = fs::read_to_string(sources.join("state")).expect("a state");
    assert_eq!(noted.lines().count(), 3, "{noted}");
    // What comes after the hole is known by its offset.
    let output = limited();
    let err = told(&output, 1);
    assert!(err.ends_with("3 messages: 2 done by an earlier run, 1 failed\n"), "{err}");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let at = hole - BEGIN.len() as u64;
    assert!(out.starts_with(&format!("failed {name} at byte {at}: message is larger")), "{out}");
}

/// Also while nothing happens.
#[test]
fn progress_is_a_line_every_ten_seconds_where_there_is_no_terminal() {
    let (sources, _) = sources(2);
    let site = Site::embedded();
    let config = site.config("etc", "");
    let maildir = sources.join("Maildir").display().to_string();
    let mut run = start(&config, &["--rate", "2/m", &maildir]);
    // What comes before it depends on how fast the first message is.
    let awaited = format!("1 message, 0/s, 50 % of {maildir}/new");
    let mut before = Vec::new();
    let lines = BufReader::new(run.stderr.take().expect("stderr")).lines();
    let is_told = lines.map_while(Result::ok).any(|line| {
        before.push(line);
        before.last() == Some(&awaited)
    });
    run.kill().expect("killed");
    run.wait().expect("end");
    assert!(is_told, "{before:?}");
}

/// Where no limit is configured, memory is one all the same.
#[test]
fn a_file_that_is_no_message_does_not_take_all_memory() {
    let (site, sources) = (Site::embedded(), TempRoot::new());
    let config = site.config("etc", "");
    sources.write("folder/small.eml", from_ann("small"));
    let disk = sources.write("folder/disk.img", "");
    File::options().write(true).open(disk).and_then(|file| file.set_len(8 << 30)).expect("a hole");
    let mbox = sources.write("mbox", format!("{BEGIN}Subject: large\n\n"));
    File::options()
        .write(true)
        .open(mbox)
        .and_then(|file| file.set_len(300 << 20))
        .expect("a hole");
    let mut mbox = File::options().append(true).open(sources.join("mbox")).expect("the mbox");
    writeln!(mbox, "\n\n{BEGIN}{}", from_ann("in-mbox")).expect("written");
    let limited = |arguments: &[&str]| with_little_memory(&config, &sources, arguments);
    let why = "larger than 268435456 bytes: no message, or limits.message_bytes must say that \
               messages may be so large\n";
    // A run of more than ten seconds says how far it is.
    let ends = |output: &Output| {
        let told = told(output, 1);
        assert!(told.ends_with("2 messages: 1 stored, 1 failed\n"), "{told}");
    };
    let output = limited(&["folder"]);
    ends(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("failed folder/disk.img: {why}"));
    let output = limited(&["--mbox", "rd", "mbox"]);
    ends(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("failed mbox at byte 0: {why}"));
    site.inbox_has("scuba", ["small", "in-mbox"].map(from_ann));
}

#[test]
fn progress_is_a_bar_on_a_terminal() {
    let (sources, _) = sources(6);
    let site = Site::embedded();
    let config = site.config("etc", "");
    let mbox = sources.join("old.mbox").display().to_string();
    let width = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&width, None).expect("a terminal");
    let mut command = onedrop();
    command.args(TO).args(["--rate", "4/s", "--mbox", "rd", &mbox]).arg("--config").arg(&config);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let run = command.stderr(Stdio::from(pty.slave)).spawn().expect("binary");
    // Only the run has the terminal open.
    drop(command);
    let (mut screen, mut shown) = (File::from(pty.master), Vec::new());
    let mut bytes = [0; 4096];
    // The end of a terminal is an error.
    while let Ok(count @ 1..) = screen.read(&mut bytes) {
        shown.extend_from_slice(&bytes[..count]);
    }
    let output = run.wait_with_output().expect("end");
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?} {shown}");
    assert!(shown.contains("\u{2588}") || shown.contains('#'), "no bar: {shown}");
    // The line ends where the terminal does.
    let folder = sources.display().to_string();
    assert!(shown.contains(" left: ") && shown.contains(&folder), "{shown}");
    let end = "6 messages: \u{1b}[32m6 stored\u{1b}[0m";
    assert!(shown.trim_end().ends_with(end), "{shown}");
}
