//! Hooks: called once when a job's state changes, whatever they do themselves.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use onedrop::ledger::JobOutcome;

use crate::place::SOON;
use crate::site::{JobSite, exists, job};
use crate::support::wait_until;

/// A hook that notes what it was called for.
fn noting(key: &str) -> String {
    let line = format!(
        "echo {key} $ONEDROP_JOB_NAME $ONEDROP_JOB_STATE $ONEDROP_JOB_ERRORS $ONEDROP_JOB_ERROR"
    );
    format!("{key} = [\"sh\", \"-c\", '{line} >>called']\n")
}

#[test]
fn they_are_called_once_a_change_and_not_once_a_run() {
    let keys = ["on_failure", "on_success", "on_recovery"].map(noting).concat();
    let site = JobSite::new(&job("j", "exit $(cat status)", &keys));
    let run = |status: &str| {
        std::fs::write(site.path("status"), status).expect("a file");
        let due = |row: &mut onedrop::ledger::JobRow| {
            (row.retry_at, row.next_try) = (None, 1);
            row.next_due = Some(std::time::SystemTime::now());
        };
        if site.row_if_any("j").is_some() {
            site.change("j", due);
        }
        assert_eq!(site.tick().code, Some(i32::from(status != "0")));
    };
    run("0");
    run("0");
    assert_eq!(site.lines("called"), ["on_success j ok 0"]);
    run("3");
    run("4");
    assert_eq!(site.lines("called")[1..], ["on_failure j failing 1 exit status 3"]);
    run("0");
    run("0");
    // They are called at the same time.
    let mut both = site.lines("called").split_off(2);
    both.sort();
    assert_eq!(both, ["on_recovery j ok 0", "on_success j ok 0"]);
    // They have the umask of what ticks, as this test has.
    let mode = |name| std::fs::metadata(site.path(name)).expect("a file").permissions().mode();
    assert_eq!(mode("called"), mode("status"));
}

#[test]
fn one_that_fails_or_hangs_keeps_no_job_from_running() {
    let hangs = "on_success = [\"sh\", \"-c\", \"touch hangs; sleep 600\"]";
    let fails = "on_success = [\"sh\", \"-c\", \"touch fails; exit 1\"]";
    let missing = "on_success = [\"/no/such/program\"]";
    let jobs = [
        job("a", "true", hangs),
        job("b", "true", fails),
        job("c", "true", missing),
        job("d", "true", "depends_on = [\"a\"]"),
    ];
    let site = JobSite::new(&jobs.concat());
    let mut tick = site.started(&["tick"]);
    assert!(exists(&site.path("hangs")));
    let has_run = |name: &str| site.outcomes(name) == [Some(JobOutcome::Ok)];
    let all = || ["a", "b", "c", "d"].into_iter().all(has_run);
    assert!(wait_until(SOON, all));
    assert!(exists(&site.path("fails")));
    // What hangs is killed after 30 s.
    assert!(wait_until(2 * SOON, || tick.child.try_wait().expect("our child").is_some()));
    assert_eq!(tick.code(), Some(0));
}

#[test]
fn one_that_runs_when_the_tick_is_told_to_stop_goes_on_to_its_end() {
    let script = "touch begun; while [ ! -e go ]; do sleep 0.1; done; touch called";
    let hook = format!("on_success = [\"sh\", \"-c\", \"{script}\"]");
    // The hook's time begins when the long one runs.
    let a = "while [ ! -e began ]; do sleep 0.1; done";
    let jobs = [job("a", a, &hook), job("long", "touch began; sleep 600", "")];
    let site = JobSite::new(&jobs.concat());
    let mut tick = site.started(&["tick"]);
    assert!(exists(&site.path("begun")) && exists(&site.path("began")));
    tick.signal(Signal::SIGTERM);
    // The tick has heard of it.
    assert!(wait_until(SOON, || !site.is_running("long")));
    assert!(!site.path("called").exists());
    site.touch("go");
    assert_eq!(tick.code(), Some(1), "a job was ended");
    assert!(site.path("called").exists());
}

/// The URL may hold a secret: it is on no command line.
#[test]
fn a_url_is_asked_with_a_line_of_text() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let url = format!("http://{}/hook/secret", listener.local_addr().expect("an address"));
    let hook = format!("on_failure = [\"{url}\"]");
    let site = JobSite::new(&job("j", "exit 3", &hook));
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let lines = std::fs::read_dir("/proc").expect("proc").flatten();
        let lines = lines.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
        let is_seen = lines.into_iter().any(|line| {
            line.starts_with(b"curl") && String::from_utf8_lossy(&line).contains("secret")
        });
        let mut text = Vec::new();
        let mut bytes = [0; 1024];
        while !String::from_utf8_lossy(&text).contains("exit status 3") {
            let count = stream.read(&mut bytes).expect("a request");
            assert!(count > 0, "{}", String::from_utf8_lossy(&text));
            text.extend_from_slice(&bytes[..count]);
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").expect("an answer");
        (String::from_utf8_lossy(&text).into_owned(), is_seen)
    });
    assert_eq!(site.tick().code, Some(1));
    let (text, is_seen) = asked.join().expect("no panic");
    assert!(text.starts_with("POST /hook/secret HTTP/1.1\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\nj failing: exit status 3"), "{text}");
    assert!(!is_seen, "on a command line");
}
