//! `run_in = "server"`: `onedrop lmtp` ticks by a child of its own.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onedrop::ledger::JobOutcome;

use crate::place::{Held, SOON, timed};
use crate::site::{JobSite, exists, job};
use crate::support::wait_until;

/// Longer than a minute, between two ticks of a server.
const TICKS: Duration = Duration::from_secs(90);

fn server(site: &JobSite) -> Held {
    let mut command = crate::support::onedrop();
    command.arg("--config").arg(&site.place.config).arg("lmtp").arg("--listen");
    command.arg(format!("unix:{}", site.path("lmtp.sock").display()));
    let server = Held { child: site.prepared(command).spawn().expect("binary") };
    // Its greeting says that it listens to signals as well.
    let greets = || {
        let Ok(mut client) = UnixStream::connect(site.path("lmtp.sock")) else { return false };
        let mut greeting = [0; 4];
        client.read_exact(&mut greeting).is_ok() && &greeting == b"220 "
    };
    assert!(wait_until(SOON, greets));
    server
}

fn ticks(server: &Held) -> Vec<Pid> {
    let is_tick = |pid: &Pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.ends_with("jobs\0tick\0--by-server\0")
    };
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("threads");
    let children = threads.flat_map(|thread| {
        let path = thread.expect("a thread").path().join("children");
        let pids = fs::read_to_string(path).unwrap_or_default();
        let pids = pids.split_whitespace().map(|pid| Pid::from_raw(pid.parse().expect("a pid")));
        pids.collect::<Vec<_>>()
    });
    children.filter(is_tick).collect()
}

fn keys(run_in: &str, script: &str) -> String {
    format!("[jobs]\nrun_in = \"{run_in}\"\n{}", job("j", script, "retry = \"1s\""))
}

#[test]
fn the_servers_tick_runs_a_job_and_ends_it_when_the_server_drains() {
    let site = JobSite::new(&keys("server", "touch began; sleep 600"));
    let mut server = server(&site);
    assert!(exists(&site.path("began")));
    assert_eq!(ticks(&server).len(), 1);
    server.signal(Signal::SIGTERM);
    let (code, took) = timed(|| server.code());
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(20), "{took:?}");
    let run = site.only_run("j");
    assert_eq!((run.outcome, run.signal), (Some(JobOutcome::Failed), Some(15)), "{run:#?}");
    assert!(!site.is_locked("j"));
}

/// A tick that waits for its jobs reads the configuration again.
#[test]
fn a_tick_of_a_server_that_is_to_tick_no_more_starts_nothing() {
    let long = job("long", "touch began; while [ ! -e go ]; do sleep 0.1; done", "");
    let jobs = |run_in: &str, more: &str| format!("[jobs]\nrun_in = \"{run_in}\"\n{long}{more}");
    let site = JobSite::new(&jobs("server", ""));
    let mut server = server(&site);
    assert!(exists(&site.path("began")));
    site.set_jobs(&jobs("timer", &job("new", "touch new", "")));
    server.signal(Signal::SIGHUP);
    site.touch("go");
    assert!(wait_until(SOON, || ticks(&server).is_empty()));
    assert_eq!(site.outcomes("long"), [Some(JobOutcome::Ok)], "it went on to its end");
    assert!(!site.path("new").exists());
    server.signal(Signal::SIGTERM);
    assert_eq!(server.code(), Some(0));
}

/// It is there again within a minute, and while it waits for a job there is no second one.
#[test]
fn a_tick_that_crashes_comes_again_and_a_reload_turns_ticks_on_and_off() {
    let wait = "while [ ! -e go ]; do sleep 0.1; done";
    let site = JobSite::new(&keys("timer", "touch ran"));
    let mut server = server(&site);
    assert_eq!(ticks(&server), []);
    site.set_jobs(&keys("server", &format!("touch began; {wait}")));
    server.signal(Signal::SIGHUP);
    assert!(wait_until(TICKS, || site.path("began").exists()));
    let [first] = ticks(&server)[..] else { panic!("{:?}", ticks(&server)) };
    kill(first, Signal::SIGKILL).expect("its child");
    let mut second = Vec::new();
    let is_another = wait_until(TICKS, || {
        let found = ticks(&server);
        assert!(found.len() < 2, "two at once");
        second = found;
        !second.is_empty() && second != [first]
    });
    assert!(is_another, "none came again");
    assert!(site.is_running("j"), "it is left alone");
    site.touch("go");
    assert!(wait_until(SOON, || !site.is_running("j")));
    site.set_jobs(&keys("timer", "touch ran"));
    server.signal(Signal::SIGHUP);
    assert!(wait_until(TICKS, || ticks(&server).is_empty()));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.code(), Some(0));
    assert!(!site.path("ran").exists());
}
