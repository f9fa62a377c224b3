//! One run: what the command gets, how each ending is reported and put on record.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use onedrop::ledger::{JobOutcome, JobTrigger};

use crate::place::{SOON, ended};
use crate::site::{JobSite, exists, job};
use crate::support::{onedrop_path, wait_until};

#[test]
fn each_ending_is_the_runs_status_and_on_record() {
    use JobOutcome::{Failed, Ok, Timeout};
    let cases = [
        ("zero", "exit 0", "", 0, Ok, Some(0), None),
        ("seven", "exit 7", "", 7, Failed, Some(7), None),
        ("two_hundred", "exit 200", "", 200, Failed, Some(200), None),
        ("killed", "kill -KILL $$", "", 137, Failed, None, Some(9)),
        ("late", "sleep 60", "timeout = \"1s\"", 124, Timeout, None, None),
    ];
    let jobs: String = cases.iter().map(|case| job(case.0, case.1, case.2)).collect();
    let missing = "[jobs.missing]\nevery = \"1h\"\ncommand = [\"no-such-program\"]\n";
    let folder = "[jobs.folder]\nevery = \"1h\"\ncommand = [\"/tmp\"]\n";
    let site = JobSite::new(&format!("{jobs}{missing}{folder}"));
    let host = nix::unistd::gethostname().expect("a name").to_string_lossy().into_owned();
    for (name, _, _, code, outcome, exit, signal) in cases {
        let end = site.run(&[name]);
        assert_eq!(end.code, Some(code), "{name}: {end:?}");
        assert_eq!(end.err.is_empty(), code == 0, "{name}: {end:?}");
        let run = site.only_run(name);
        assert_eq!(run.outcome, Some(outcome), "{run:#?}");
        if outcome != Timeout {
            assert_eq!((run.exit, run.signal), (exit, signal), "{run:#?}");
        }
        assert_eq!((&*run.host, run.try_no, run.trigger), (&*host, 1, JobTrigger::Schedule));
        assert!(run.ended_at.is_some_and(|end| end >= run.started_at), "{run:#?}");
        assert!(!site.is_locked(name), "given back");
    }
    let cases =
        [("missing", 127, "no-such-program: No such file"), ("folder", 126, "/tmp: is a dir")];
    for (name, code, says) in cases {
        let end = site.run(&[name]);
        assert_eq!((end.code, &*end.out), (Some(code), ""), "{end:?}");
        assert!(end.err.contains(says), "{end:?}");
        let run = site.only_run(name);
        assert_eq!((run.outcome, run.exit), (Some(JobOutcome::Failed), Some(code)), "{run:#?}");
        // Perhaps another host has it.
        assert!(run.reason.contains(says) && run.reason.contains(&host), "{run:#?}");
    }
}

#[test]
fn the_command_knows_for_which_time_it_runs() {
    let script = "env | grep ^ONEDROP_JOB | sort >>seen; echo >>seen; umask >mask; cat; tty; \
                  echo \"$ONEDROP_LOCK_TOKEN $ONEDROP_CONFIG $1\" >lock; [ ! -e fail ]";
    let site = JobSite::new(&format!(
        "[jobs.\"a.b\"]\ncommand = [\"sh\", \"-c\", '''{script}''', \"sh\"]\nevery = \"1h\"\n\
         retry = \"1s\"\n"
    ));
    site.touch("fail");
    let mut command = site.jobs(&["run", "a.b", "--", "an argument"]);
    // SAFETY: umask(2) alone runs between fork and exec.
    unsafe {
        command.pre_exec(|| {
            umask(Mode::from_bits_truncate(0o027));
            Ok(())
        })
    };
    let end = ended(&mut command);
    assert_eq!((end.code, &*end.out), (Some(1), "not a tty\n"), "{end:?}");
    assert_eq!(site.place.text("mask").trim(), "0027");
    let config = site.place.config.display();
    assert_eq!(site.place.text("lock"), format!("jobs/a.b#1:1 {config} an argument\n"));
    site.wait_is_over("a.b");
    std::fs::remove_file(site.path("fail")).expect("a file");
    assert_eq!(site.run(&["a.b"]).code, Some(0));
    assert_eq!(site.run(&["a.b", "--force"]).code, Some(0));
    let seen = site.place.text("seen");
    let seen: Vec<&str> = seen.split("\n\n").collect();
    let value = |at: usize, name: &str| {
        let line = seen[at].lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name} in {seen:#?}")).to_owned()
    };
    let all = |name: &str| [0, 1, 2].map(|at| value(at, &format!("ONEDROP_JOB_{name}")));
    assert_eq!(all("NAME"), ["a.b"; 3]);
    assert_eq!(all("TRY"), ["1", "2", "1"]);
    let triggers = all("TRIGGER");
    assert_eq!(triggers[..2], ["schedule", "retry"]);
    let due = all("DUE");
    assert_eq!(due[0], due[1]);
    for due in due {
        let due: jiff::Timestamp = due.parse().expect("RFC 3339");
        assert!(due <= jiff::Timestamp::now() && due.to_string().ends_with('Z'), "{due}");
    }
    let successes = all("LAST_SUCCESS");
    assert_eq!(successes[..2], ["", ""]);
    let success: jiff::Timestamp = successes[2].parse().expect("RFC 3339");
    assert!(success <= jiff::Timestamp::now());
}

#[test]
fn without_being_due_it_says_why_and_force_runs_it_all_the_same() {
    let jobs = [
        job("first", "echo first >>done; exit 3", "schedule = \"0 0 1 1 *\""),
        job("second", "echo second >>done", "depends_on = [\"first\"]"),
    ];
    let site = JobSite::new(&jobs.concat());
    let end = site.run(&["first"]);
    assert_eq!((end.code, &*end.err), (Some(0), ""), "{end:?}");
    assert!(end.out.starts_with("first: "), "{end:?}");
    let end = site.run(&["second"]);
    assert_eq!((end.code, &*end.err), (Some(0), ""), "{end:?}");
    assert!(end.out.contains("first"), "{end:?}");
    assert_eq!(site.lines("done"), [""; 0]);
    assert_eq!(site.run(&["first", "--force"]).code, Some(3));
    assert_eq!(site.run(&["second", "--force"]).code, Some(0));
    assert_eq!(site.lines("done"), ["first", "second"]);
    let end = site.run(&["first", "--force", "--due", "2026-01-01T00:00:00Z"]);
    assert_eq!(end.code, Some(3), "{end:?}");
    let due: Vec<String> = site
        .runs("first")
        .iter()
        .map(|run| jiff::Timestamp::try_from(run.due).expect("a time").to_string())
        .collect();
    assert_eq!(due.last().map(String::as_str), Some("2026-01-01T00:00:00Z"));
}

#[test]
fn force_keeps_the_lock() {
    let script = "echo $$ >>began; while [ ! -e go ]; do sleep 0.1; done";
    let site = JobSite::new(&job("slow", script, ""));
    let mut held = site.started(&["run", "slow"]);
    assert!(exists(&site.path("began")));
    for args in [&["slow"][..], &["slow", "--force"]] {
        let end = site.run(args);
        assert_eq!((end.code, &*end.out), (Some(200), ""), "{end:?}");
        assert!(end.err.contains("jobs/slow is busy: slot 1 by "), "{end:?}");
    }
    // So does any other command.
    let other = site.place.with_lock(&["jobs/slow", "--", "touch", "ran"]).output();
    assert_eq!(other.expect("binary").status.code(), Some(200));
    site.touch("go");
    assert_eq!(held.code(), Some(0));
    assert_eq!(site.lines("began").len(), 1);
    assert_eq!(site.outcomes("slow"), [Some(JobOutcome::Ok)]);
}

#[test]
fn a_signal_ends_the_command_and_all_that_it_started() {
    let script = "trap '' TERM HUP
        beat() { while :; do date +%s%N >>$1; sleep 0.1; done; }
        setsid sh -c 'while :; do date +%s%N >>deep; sleep 0.1; done' &
        beat beats";
    let site = JobSite::new(&job("deaf", script, ""));
    for (signal, number) in [(Signal::SIGTERM, 1), (Signal::SIGHUP, 2)] {
        let mut held = site.started(&["run", "deaf", "--force"]);
        assert!(exists(&site.path("deep")) && exists(&site.path("beats")));
        held.signal(signal);
        assert_eq!(held.code(), Some(137));
        let beats = ["beats", "deep"].map(|name| site.place.last_beat(name));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(beats, ["beats", "deep"].map(|name| site.place.last_beat(name)), "it goes on");
        let runs = site.runs("deaf");
        assert_eq!(runs.len(), number);
        assert_eq!(runs[number - 1].signal, Some(9), "{runs:#?}");
        assert!(!site.is_locked("deaf"));
        for name in ["beats", "deep"] {
            fs::remove_file(site.path(name)).expect("a file");
        }
    }
    // A command that ends well when it is asked to has done its work.
    site.set_jobs(&job("deaf", "trap 'exit 0' TERM; touch began; while :; do sleep 0.1; done", ""));
    let mut held = site.started(&["run", "deaf", "--force"]);
    assert!(exists(&site.path("began")));
    held.signal(Signal::SIGTERM);
    assert_eq!(held.code(), Some(0));
    assert_eq!(site.outcomes("deaf").last(), Some(&Some(JobOutcome::Ok)));
}

/// Cron and systemd have such keys for each of theirs.
#[test]
fn the_command_runs_where_and_as_its_keys_say() {
    let script = "env >env; pwd >place; id -u >user; id -G >groups; umask >mask; nice >nice; \
                  echo $PPID >parent; touch began; sleep 600";
    let keys = "user = \"nobody\"\numask = \"0137\"\nnice = 7\ngrace = \"1s\"\nttl = \"30s\"\n\
                env = [\"LANG=xx\", \"EMPTY=\", \"HOME=/tmp/=\", \"ONEDROP_JOB_NAME=other\"]\n";
    let site = JobSite::new("");
    let folder = site.path("in");
    fs::create_dir(&folder).expect("a folder");
    let anyone = fs::Permissions::from_mode(0o777);
    fs::set_permissions(&folder, anyone.clone()).expect("a mode");
    fs::set_permissions(&*site.place.site.root, anyone).expect("a mode");
    let cwd = format!("{keys}cwd = \"{}\"", folder.display());
    let missing = "every = \"1h\"\ncwd = \"/no/such/folder\"\ncommand = [\"true\"]";
    let unknown = "every = \"1h\"\nuser = \"no-such-user\"\ncommand = [\"true\"]";
    // Root may enter it, and the user may not.
    let of_root = site.path("closed");
    fs::create_dir(&of_root).expect("a folder");
    fs::set_permissions(&of_root, fs::Permissions::from_mode(0o700)).expect("a mode");
    let closed = format!(
        "every = \"1h\"\nuser = \"nobody\"\ncwd = \"{}\"\ncommand = [\"true\"]",
        of_root.display()
    );
    site.set_jobs(&format!(
        "{}[jobs.missing]\n{missing}\n[jobs.unknown]\n{unknown}\n[jobs.closed]\n{closed}\n",
        job("other", script, &cwd)
    ));
    let mut run = site.started(&["run", "other"]);
    assert!(exists(&folder.join("began")));
    let text = |name: &str| fs::read_to_string(folder.join(name)).expect("a file");
    let said = ["place", "mask", "nice"].map(|name| text(name).trim().to_owned());
    let place = folder.canonicalize().expect("a folder").display().to_string();
    // To what the test itself has.
    let ours = Command::new("nice").output().expect("nice").stdout;
    let ours: i32 = String::from_utf8_lossy(&ours).trim().parse().expect("a number");
    assert_eq!(said, [&*place, "0137", &(ours + 7).min(19).to_string()]);
    let nobody = nix::unistd::User::from_name("nobody").expect("users").expect("nobody");
    let ids = ["user", "groups"].map(|name| text(name).trim().to_owned());
    assert_eq!(ids, [nobody.uid.to_string(), nobody.gid.to_string()]);
    let env = text("env");
    for line in ["LANG=xx", "EMPTY=", "HOME=/tmp/=", "USER=nobody", "ONEDROP_LOCK_TTL_SECS=30"] {
        assert!(env.lines().any(|one| one == line), "{line}: {env}");
    }
    assert!(env.contains("ONEDROP_JOB_NAME=other\n"), "{env}");
    // The change of the user has not taken from the kernel that the command ends with its guardian.
    let guardian = run.guardian();
    let command = crate::place::children(guardian).remove(0);
    nix::sys::signal::kill(guardian, Signal::SIGKILL).expect("a process of ours");
    assert_eq!(run.code(), Some(137));
    assert!(nix::sys::signal::kill(command, None).is_err(), "it is gone");
    for (name, code, says) in [
        ("missing", 126, "/no/such/folder: no such folder"),
        ("closed", 126, "closed: Permission denied"),
        ("unknown", 125, "user no-such-user: there is none on this host"),
    ] {
        let end = site.run(&[name]);
        assert_eq!(end.code, Some(code), "{end:?}");
        assert!(end.err.contains(says), "{end:?}");
    }
}

#[test]
fn the_user_that_ticks_has_its_variables_as_well_where_the_job_names_it() {
    let me = nix::unistd::User::from_uid(nix::unistd::geteuid()).expect("users").expect("us");
    let site = JobSite::new(&job("j", "env >env", &format!("user = \"{}\"", me.name)));
    let mut run = site.jobs(&["run", "j"]);
    run.env("HOME", "/nowhere").env("SHELL", "/nowhere").env_remove("USER").env_remove("LOGNAME");
    let end = ended(&mut run);
    assert_eq!(end.code, Some(0), "{end:?}");
    let env = site.place.text("env");
    let (name, home, shell) = (&me.name, me.dir.display(), me.shell.display());
    for line in [
        format!("USER={name}"),
        format!("LOGNAME={name}"),
        format!("HOME={home}"),
        format!("SHELL={shell}"),
    ] {
        assert!(env.lines().any(|one| one == line), "{line}: {env}");
    }
}

#[test]
fn the_last_try_and_a_final_status_are_followed_by_none() {
    let keys = "retry = \"1s\"\ntries = 2\nfinal_status = \"64-66, 9\"\nkeep = 2";
    let jobs = [job("j", "exit $(cat status)", keys), job("k", "exit 65", keys)];
    let site = JobSite::new(&jobs.concat());
    fs::write(site.path("status"), "3").expect("a file");
    assert_eq!(site.run(&["j"]).code, Some(3));
    let row = site.row("j");
    assert_eq!((row.next_try, row.retry_at.is_some()), (2, true), "{row:?}");
    site.wait_is_over("j");
    let end = site.run(&["j"]);
    assert!(end.code == Some(3) && !end.err.contains("tried again"), "{end:?}");
    assert_eq!(site.run(&["k"]).code, Some(65));
    for (name, errors) in [("j", 2), ("k", 1)] {
        let row = site.row(name);
        assert_eq!((row.next_try, row.retry_at, row.errors), (1, None, errors), "{row:?}");
        assert!(row.next_due > row.last_start, "{row:?}");
    }
    // Of its runs that have ended, a tick keeps the newest two as it begins one.
    for _ in 0..3 {
        assert_eq!(site.run(&["j", "--force"]).code, Some(3));
    }
    let before = site.runs("j");
    site.change("j", |row| row.next_due = Some(std::time::SystemTime::now()));
    assert_eq!(site.tick().code, Some(1));
    let after = site.runs("j");
    assert_eq!((after.len(), &after[..2]), (3, &before[3..]));
    assert_eq!(site.runs("k").len(), 1);
}

/// An installation that is not in PATH works with the jobs that we ship.
#[test]
fn a_jobs_onedrop_is_this_program() {
    let site =
        JobSite::new("[jobs.version]\nevery = \"1h\"\ncommand = [\"onedrop\", \"--version\"]\n");
    let mut command = Command::new(onedrop_path());
    command.arg("--config").arg(&site.place.config).args(["jobs", "run", "version"]);
    let end = ended(site.prepared(command).env("PATH", "/usr/bin:/bin"));
    assert_eq!((end.code, &*end.err), (Some(0), ""), "{end:?}");
    assert!(end.out.starts_with("onedrop "), "{end:?}");
}

#[test]
fn the_shipped_verify_job_runs_on_a_host_without_mail() {
    let shipped = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/conf/onedrop.toml"));
    let shipped: toml::Table = shipped.expect("conf").parse().expect("TOML");
    let mut jobs = toml::Table::new();
    jobs.insert("jobs".to_owned(), shipped["jobs"].clone());
    let site = JobSite::new(&jobs.to_string());
    let end = site.run(&["verify", "--force"]);
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(site.outcomes("verify"), [Some(JobOutcome::Ok)]);
}

/// A run reads every ten seconds at most whether it is to stop. A host that goes down, or a crash,
/// may end it before.
#[test]
fn a_run_that_was_to_stop_and_ended_otherwise_is_not_tried_again() {
    let keys = "ttl = \"1h\"\nretry = \"1s\"";
    let site = JobSite::new(&job("j", "touch began; exec sleep 600", keys));
    let mut run = site.started(&["tick"]);
    assert!(exists(&site.path("began")));
    site.change("j", |row| row.stop_epoch = row.epoch);
    run.signal(Signal::SIGTERM);
    let _ = run.code();
    let row = site.row("j");
    assert_eq!((row.errors, row.next_try, row.retry_at, row.stop_epoch), (0, 1, None, 0));
    assert!(row.next_due > row.last_start, "{row:?}");
}

/// A mark in the ledger, which the run reads, wherever it is: it says how it ended, and is not
/// tried again.
#[test]
fn a_run_that_is_stopped_says_so_and_is_not_tried_again() {
    let keys = "ttl = \"1h\"\ngrace = \"0s\"\nretry = \"1s\"";
    let script = "trap 'echo term; exit 3' TERM; touch began; while :; do sleep 0.1; done";
    let site = JobSite::new(&job("j", script, keys));
    let end = ended(&mut site.jobs(&["stop", "j"]));
    assert_eq!((end.code, &*end.err), (Some(1), "j does not run\n"), "{end:?}");
    let mut run = site.started(&["tick"]);
    assert!(exists(&site.path("began")));
    let end = ended(&mut site.jobs(&["stop", "j", "--note", "disk full"]));
    assert_eq!((end.code, &*end.out), (Some(0), "j is stopped\n"), "{end:?}");
    assert_eq!(run.code(), Some(0), "no failure of the tick");
    let stopped = site.only_run("j");
    assert_eq!(stopped.outcome, Some(JobOutcome::Stopped), "{stopped:#?}");
    assert!(stopped.reason.starts_with("the command was stopped by "), "{stopped:#?}");
    assert!(stopped.reason.ends_with(": disk full"), "{stopped:#?}");
    let row = site.row("j");
    assert_eq!((row.errors, row.next_try, row.retry_at, row.stop_epoch), (0, 1, None, 0));
    assert!(row.next_due > row.last_start, "{row:?}");
    assert!(!site.is_locked("j"));
    // Its section may have been taken out, so that it does not start again.
    site.set_jobs(&job("j", script, keys));
    assert!(fs::remove_file(site.path("began")).is_ok());
    let mut run = site.started(&["run", "j", "--force"]);
    assert!(exists(&site.path("began")));
    site.set_jobs(&job("other", "true", ""));
    let end = ended(&mut site.jobs(&["stop", "j"]));
    assert_eq!((end.code, &*end.out), (Some(0), "j is stopped\n"), "{end:?}");
    run.code();
    let end = ended(&mut site.jobs(&["stop", "i"]));
    assert!(end.code == Some(75) && end.err.contains("no job \"i\""), "{end:?}");
    // The mark is for that run alone.
    site.set_jobs(&job("j", "true", keys));
    assert_eq!(site.run(&["j", "--force"]).code, Some(0));
}

/// However long its lock lasts: its host may be gone.
#[test]
fn a_stop_that_the_run_does_not_hear_of_gives_up_within_a_minute() {
    let site = JobSite::new(&job("j", "touch began; sleep 600", "ttl = \"1h\"\ngrace = \"0s\""));
    let run = site.started(&["run", "j"]);
    assert!(exists(&site.path("began")));
    run.signal(Signal::SIGSTOP);
    let mut stop = site.started(&["stop", "j"]);
    assert!(wait_until(2 * SOON, || stop.child.try_wait().expect("our child").is_some()));
    assert_eq!(stop.code(), Some(75));
    assert!(site.is_running("j"));
}
