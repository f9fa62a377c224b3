//! The command's output: passed on, its end kept, and no reader of it holds the command up.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use crate::place::timed;
use crate::site::{JobSite, exists, job};

#[test]
fn it_is_passed_on_and_its_last_4_kib_are_kept() {
    // 8,890 lines, and the last one without an end.
    let jobs = [
        job("long", "seq 1111 9999; printf end; sleep 0.3; seq 5 >&2; exit 3", ""),
        job("bytes", r"printf 'a\377b\000c\303'; printf '\342\202' >&2", ""),
        job("huge", "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last", ""),
        job("silent", "true", ""),
    ];
    let site = JobSite::new(&jobs.concat());
    let end = site.run(&["long"]);
    let all: String = (1111..=9999).map(|n| format!("{n}\n")).collect();
    assert_eq!((end.code, &*end.out), (Some(3), &*format!("{all}end")));
    assert!(end.err.starts_with("1\n2\n3\n4\n5\nonedrop: long failed"), "{}", end.err);
    let kept = site.only_run("long").output;
    assert!(kept.len() == 4096 && kept.ends_with("1\n2\n3\n4\n5\n"), "{} bytes", kept.len());
    let (out, _) = kept.split_at(4096 - 10);
    assert!(format!("{all}end").ends_with(out), "as it came");

    let output = site.jobs(&["run", "bytes"]).output().expect("binary");
    assert_eq!(output.stdout, b"a\xffb\0c\xc3", "as they are");
    assert_eq!(output.stderr, b"\xe2\x82");
    let kept = site.only_run("bytes").output;
    assert!(kept.starts_with("a\u{fffd}b\u{fffd}c\u{fffd}"), "{kept:?}");

    let end = site.run(&["huge"]);
    assert_eq!((end.code, end.out.len()), (Some(0), 20_000_006), "all of it, to one who reads");
    let kept = site.only_run("huge").output;
    assert_eq!(kept, format!("{}\nlast\n", "x".repeat(4090)));
    assert_eq!(site.run(&["silent"]).code, Some(0));
    assert_eq!(site.only_run("silent").output, "");
}

#[test]
fn a_reader_that_is_gone_or_takes_nothing_keeps_no_job_from_going_on() {
    let script = "seq 1 1000000; sleep 0.3; echo to-stderr >&2; sleep 0.3; echo last";
    let site = JobSite::new(&format!("{}{}", job("gone", script, ""), job("full", script, "")));
    let (reader, writer) = nix::unistd::pipe().expect("a pipe");
    drop(reader);
    let mut command = site.jobs(&["run", "gone"]);
    let output = command.stdout(Stdio::from(writer)).output().expect("binary");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stderr, b"to-stderr\n", "the other one is there");
    assert!(site.only_run("gone").output.ends_with("\n1000000\nto-stderr\nlast\n"));

    // The reader neither reads nor has closed it.
    let (reader, writer): (OwnedFd, OwnedFd) = nix::unistd::pipe().expect("a pipe");
    let mut command = site.jobs(&["run", "full"]);
    let error = writer.try_clone().expect("a descriptor");
    command.stdout(Stdio::from(writer)).stderr(Stdio::from(error));
    let mut child = command.spawn().expect("binary");
    drop(command);
    let (status, took) = timed(|| child.wait().expect("its end"));
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(site.only_run("full").output.ends_with("\n1000000\nto-stderr\nlast\n"));
    let mut begin = [0; 8];
    File::from(reader).read_exact(&mut begin).expect("what fits into a pipe");
    assert_eq!(&begin, b"1\n2\n3\n4\n");
}

/// A reader that comes back sees how much it has missed.
#[test]
fn what_nobody_has_read_is_told() {
    let script = "seq 1 300000; touch written; while [ ! -e go ]; do sleep 0.1; done; echo more";
    let site = JobSite::new(&job("gap", script, ""));
    let mut child = site.jobs(&["run", "gap"]).spawn().expect("binary");
    assert!(exists(&site.path("written")));
    let mut out = child.stdout.take().expect("stdout");
    let reads = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    // What waits is read before more comes.
    std::thread::sleep(Duration::from_secs(1));
    site.touch("go");
    let output = child.wait_with_output().expect("its end");
    let text = reads.join().expect("no panic").expect("text");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let left_out: usize = told
        .trim()
        .strip_prefix("onedrop: nobody has read ")
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{told}"));
    let all: usize = (1..=300_000).map(|n: u32| n.to_string().len() + 1).sum::<usize>() + 5;
    assert_eq!(text.len() + left_out, all);
    assert!(text.starts_with("1\n2\n") && text.ends_with("more\n"), "{} bytes", text.len());
}

/// What the command leaves running ends with it, and the run does not wait for its end of the pipe.
#[test]
fn a_background_process_that_keeps_the_pipe_does_not_keep_the_run() {
    let script = "(trap '' TERM HUP; while :; do echo on; sleep 0.1; done) & echo done";
    let site = JobSite::new(&job("leaves", script, ""));
    let (end, took) = timed(|| site.run(&["leaves"]));
    assert_eq!(end.code, Some(0), "{end:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(end.out.contains("done\n"), "{end:?}");
    assert!(site.only_run("leaves").output.contains("done\n"));
}

/// A run that is started by hand has input, and the command none.
#[test]
fn input_is_not_the_commands() {
    let site = JobSite::new(&job("reads", "wc -c", ""));
    let mut child = site.jobs(&["run", "reads"]).stdin(Stdio::piped()).spawn().expect("binary");
    let mut input = child.stdin.take().expect("stdin");
    let _ = input.write_all(b"for somebody else");
    let output = child.wait_with_output().expect("its end");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{output:?}");
}

/// Several write to one place: each line of a tick says whose it is.
#[test]
fn in_a_tick_each_line_names_its_job() {
    let slow = "printf 'half '; sleep 0.2; echo line; echo error >&2; sleep 60";
    let jobs = [
        job("first", slow, "timeout = \"1s\"\nretry = \"1h\""),
        job("second", "printf 'no end'", ""),
        "[jobs.third]\nevery = \"1h\"\ncommand = [\"no-such-program\"]\n".to_owned(),
    ];
    let site = JobSite::new(&jobs.concat());
    let end = site.tick();
    assert_eq!(end.code, Some(1), "{end:?}");
    let mut out: Vec<&str> = end.out.lines().collect();
    out.sort_unstable();
    assert_eq!(out, ["first: half line", "second: no end"]);
    let mut err: Vec<&str> = end.err.lines().collect();
    err.sort_unstable();
    let says = [
        "first: error",
        "onedrop: first: the command ran longer than 1 s and was ended",
        "onedrop: third: no-such-program: No such file or directory",
    ];
    assert_eq!(err, says);
    // What is kept is what the command wrote.
    assert_eq!(site.only_run("second").output, "no end");
}
