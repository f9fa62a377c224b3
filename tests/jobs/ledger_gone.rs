//! The ledger cannot be reached: nothing starts, and nothing that has ended is forgotten: the host
//! keeps it, and puts it on record before it starts anything else.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use onedrop::jobs::KeptEnds;
use onedrop::ledger::{JobOutcome, JobRun};

use crate::place::{SOON, ended};
use crate::site::{JobSite, exists, job};
use crate::support::wait_until;

/// The user of that name in Debian.
const NOBODY: u32 = 65534;

const WAITS: &str = "touch began; while [ ! -e go ]; do sleep 0.1; done; touch ended; exit 4";

#[test]
fn without_it_nothing_starts() {
    let mut site = JobSite::with_own_postgres(&job("j", "touch ran", ""));
    site.postgres().stop_immediate();
    let end = site.run(&["j"]);
    assert_eq!((end.code, &*end.out), (Some(125), ""), "{end:?}");
    assert!(end.err.starts_with("onedrop: j: ledger: cannot be reached"), "{end:?}");
    let end = site.tick();
    assert_eq!((end.code, &*end.out), (Some(75), ""), "{end:?}");
    assert!(end.err.contains("ledger: cannot be reached"), "{end:?}");
    assert!(!site.path("ran").exists());
    site.postgres().restart();
    assert_eq!(site.tick().code, Some(0));
    assert_eq!(site.outcomes("j"), [Some(JobOutcome::Ok)]);
}

#[test]
fn an_outage_while_the_command_runs_costs_nothing() {
    let mut site = JobSite::with_own_postgres(&job("j", WAITS, ""));
    let mut run = site.started(&["run", "j"]);
    assert!(exists(&site.path("began")));
    site.postgres().stop_immediate();
    std::thread::sleep(Duration::from_secs(2));
    site.postgres().restart();
    site.touch("go");
    assert_eq!(run.code(), Some(4));
    let run = site.only_run("j");
    assert_eq!((run.outcome, run.exit), (Some(JobOutcome::Failed), Some(4)));
    assert!(!site.is_locked("j"));
}

/// The result waits for the ledger, also where that hangs and does not refuse.
#[test]
fn an_end_that_the_ledger_cannot_take_is_told_again() {
    for hangs in [false, true] {
        let mut site = JobSite::with_own_postgres(&job("j", WAITS, ""));
        let mut run = site.started(&["run", "j"]);
        assert!(exists(&site.path("began")));
        match hangs {
            true => site.postgres().pause(),
            false => site.postgres().stop_immediate(),
        }
        site.touch("go");
        assert!(exists(&site.path("ended")));
        std::thread::sleep(Duration::from_secs(3));
        assert!(run.child.try_wait().expect("our child").is_none(), "it waits for the ledger");
        match hangs {
            true => site.postgres().resume(),
            false => site.postgres().restart(),
        }
        assert_eq!(run.code(), Some(4), "hangs: {hangs}");
        let run = site.only_run("j");
        assert_eq!((run.outcome, run.exit), (Some(JobOutcome::Failed), Some(4)));
        assert!(!site.is_locked("j"));
    }
}

/// A monitoring system gives its plugins 10 s, also where the ledger hangs after the login.
#[test]
fn a_check_ends_in_time_where_a_table_is_locked() {
    let mut site = JobSite::with_postgres(&job("j", "true", ""));
    assert_eq!(site.tick().code, Some(0));
    let mut check = site.jobs(&["check"]);
    let postgres = &*site.postgres();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            postgres.psql("BEGIN; LOCK TABLE onedrop_job; SELECT pg_sleep(15); COMMIT");
        });
        let locks = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock'
                     AND relation = 'onedrop_job'::regclass
                     AND database IN
                         (SELECT oid FROM pg_database WHERE datname = current_database())";
        assert!(wait_until(SOON, || postgres.psql(locks).trim() == "1"));
        let end = ended(&mut check);
        assert_eq!((end.code, &*end.err), (Some(3), ""), "{end:?}");
        assert!(end.out.starts_with("JOBS UNKNOWN: ledger: "), "{end:?}");
    });
    assert_eq!(ended(&mut check).code, Some(0));
}

/// Longer than the lock lasts: the run gives up, and the next tick of its host has its end.
#[test]
fn an_end_that_the_ledger_was_away_for_is_told_by_the_next_tick() {
    let well = "touch well; while [ ! -e go ]; do sleep 0.1; done; echo done";
    let keys = "ttl = \"20s\"\ngrace = \"1s\"";
    let mut site =
        JobSite::with_own_postgres(&format!("{}{}", job("j", WAITS, keys), job("k", well, keys)));
    let [j, k] = ["j", "k"].map(|name| site.jobs(&["run", name]).spawn().expect("binary"));
    assert!(exists(&site.path("began")) && exists(&site.path("well")));
    site.postgres().stop_immediate();
    site.touch("go");
    for (child, status) in [(j, 4), (k, 0)] {
        let end = crate::place::end(child.wait_with_output().expect("its end"));
        assert_eq!(end.code, Some(201), "{end:?}");
        let says = format!("(exit status {status}) is not on record yet");
        assert!(end.err.contains(&says), "{end:?}");
    }
    assert!(site.has_ends());
    assert_eq!(site.tick().code, Some(75));
    site.postgres().restart();
    site.expire_locks();
    assert_eq!(site.tick().code, Some(0));
    let (failed, well) = (site.only_run("j"), site.only_run("k"));
    assert_eq!((failed.outcome, failed.exit), (Some(JobOutcome::Failed), Some(4)));
    assert_eq!((well.outcome, &*well.output), (Some(JobOutcome::Ok), "done\n"));
    assert!(well.ended_at.is_some_and(|end| end >= well.started_at), "{well:?}");
    let (failed, well) = (site.row("j"), site.row("k"));
    assert_eq!((failed.errors, failed.next_try, well.errors, well.next_try), (1, 2, 0, 1));
    assert!(!site.has_ends(), "it is told once");
}

/// The host of a run may be cut off for longer than the ledger was away.
#[test]
fn another_host_waits_for_the_end_of_a_run_before_it_calls_it_crashed() {
    let script = "echo $ONEDROP_JOB_TRY >>began; [ -e two ] || sleep 600; \
                  while [ ! -e go ]; do sleep 0.1; done; exit 3";
    let site = JobSite::new(&job("j", script, "retry = \"5m\""));
    let mut gone = site.started(&["run", "j"]);
    assert!(exists(&site.path("began")));
    gone.signal(Signal::SIGKILL);
    let _ = gone.code();
    site.expire_locks();
    site.change("j", |row| row.open_host = "elsewhere".to_owned());
    for args in [&["tick"][..], &["tick"], &["run", "j"]] {
        let end = ended(&mut site.jobs(args));
        assert_eq!(end.code, Some(0), "{end:?}");
        assert_eq!(site.outcomes("j"), [None], "after {args:?}");
    }
    // The ledger was away again, and no host has ticked.
    site.change("j", |row| {
        let away = Duration::from_secs(150);
        row.seen_at -= away;
        row.unheld_at = row.unheld_at.map(|at| at - away);
    });
    for args in [&["run", "j"][..], &["tick"]] {
        assert_eq!(ended(&mut site.jobs(args)).code, Some(0));
        assert_eq!(site.outcomes("j"), [None], "after {args:?}");
    }
    site.found_free_earlier("j", 91);
    assert_eq!(site.tick().code, Some(0));
    assert_eq!(site.outcomes("j"), [Some(JobOutcome::Crashed)]);
    // The next try runs when the first one's host is back.
    site.touch("two");
    site.wait_is_over("j");
    let mut second = site.started(&["run", "j"]);
    assert!(wait_until(SOON, || site.lines("began").len() == 2));
    let first = site.runs("j").remove(0);
    let ended_at = first.ended_at.map(|end| end - Duration::from_secs(120));
    let outcome = Some(JobOutcome::Ok);
    let end = JobRun { outcome, exit: Some(0), ended_at, output: "x".to_owned(), ..first.clone() };
    site.ends().keep(&JobRun { reason: String::new(), ..end }).expect("a file");
    // One of another run, as of another ledger, stays.
    site.ends().keep(&JobRun { try_no: 9, ..first.clone() }).expect("a file");
    assert_eq!(site.tick().code, Some(0));
    let told = site.runs("j").remove(0);
    assert_eq!((told.outcome, told.exit, &*told.output), (outcome, Some(0), "x"));
    assert_eq!((told.ended_at, &*told.reason), (ended_at, "ended 0, after it was taken"));
    assert!(site.has_ends());
    let row = site.row("j");
    assert_eq!((row.errors, row.open), (0, Some((first.due, 2))), "{row:?}");
    // That try is the last one, however it ends.
    site.touch("go");
    assert_eq!(second.code(), Some(3));
    let row = site.row("j");
    assert_eq!((row.errors, row.next_try, row.retry_at), (0, 1, None), "{row:?}");
    assert!(row.next_due > Some(first.due), "{row:?}");
    assert_eq!(site.tick().code, Some(0));
    assert_eq!(site.outcomes("j"), [outcome, Some(JobOutcome::Failed)]);
}

/// Its owner may have put links there.
#[test]
fn root_follows_no_link_in_a_folder_of_ends_and_leaves_them_to_its_owner() {
    let site = JobSite::new(&job("j", "true", ""));
    assert_eq!(site.tick().code, Some(0));
    let (run, folder, victim) = (site.only_run("j"), site.path("state"), site.path("victim"));
    fs::remove_dir(&folder).expect("it is empty");
    chown(folder.parent().expect("a folder"), Some(NOBODY), Some(NOBODY)).expect("chown");
    site.ends().keep(&run).expect("a file");
    let owner = |path: &Path| fs::symlink_metadata(path).map(|file| (file.uid(), file.is_file()));
    assert_eq!(owner(&folder).expect("a folder"), (NOBODY, false));
    let files = || fs::read_dir(&folder).expect("a folder").map(|file| file.expect("one").path());
    let kept = files().next().expect("the end");
    assert_eq!(owner(&kept).expect("a file"), (NOBODY, true));
    fs::write(&victim, "others'").expect("a file");
    for name in [kept.clone(), kept.with_extension("new")] {
        let _ = fs::remove_file(&name);
        symlink(&victim, &name).expect("a link");
    }
    site.ends().keep(&run).expect("a file");
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "others'");
    assert_eq!((files().count(), owner(&kept).expect("a file")), (1, (NOBODY, true)));
    fs::rename(&folder, site.path("elsewhere")).expect("moved");
    symlink(site.path("elsewhere"), &folder).expect("a link");
    site.ends().keep(&run).expect_err("the folder is a link");
}

/// Its owner may have put anything there, and a link in its place.
#[test]
fn root_removes_ends_alone_and_none_through_a_link() {
    let site = JobSite::new(&job("j", "true", ""));
    assert_eq!(site.tick().code, Some(0));
    let (run, folder, elsewhere) = (site.only_run("j"), site.path("state"), site.path("elsewhere"));
    site.ends().keep(&run).expect("a file");
    for name in ["half.new", "shadow"] {
        fs::write(folder.join(name), "").expect("a file");
    }
    fs::create_dir(folder.join("folder.end")).expect("a folder");
    symlink("shadow", folder.join("link.end")).expect("a link");
    let names = |folder: &Path| {
        let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("one"));
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let all = names(&folder);
    fs::rename(&folder, &elsewhere).expect("moved");
    symlink(&elsewhere, &folder).expect("a link");
    for ends in [site.ends(), KeptEnds::new(&folder.join(""))] {
        ends.forget(&run);
        ends.forget_old(Duration::ZERO);
        assert_eq!(names(&elsewhere), all, "{ends:?}");
    }
    // Its end is on record: without the link it would be removed.
    assert_eq!(site.tick().code, Some(0));
    assert_eq!(names(&elsewhere), all);
    fs::remove_file(&folder).expect("the link");
    fs::rename(&elsewhere, &folder).expect("moved back");
    site.ends().forget_old(Duration::ZERO);
    assert_eq!(names(&folder), ["folder.end", "link.end", "shadow"]);
}

/// Else a crash to come would be called one at once.
#[test]
fn a_lock_that_is_held_again_was_not_found_free() {
    let site = JobSite::new(&job("j", "touch began; sleep 600", ""));
    let mut run = site.started(&["run", "j"]);
    assert!(exists(&site.path("began")));
    site.change("j", |row| row.unheld_at = Some(row.seen_at - Duration::from_secs(3600)));
    assert_eq!(site.tick().code, Some(0));
    assert_eq!(site.row("j").unheld_at, None);
    assert_eq!(site.outcomes("j"), [None]);
    run.signal(Signal::SIGTERM);
    let _ = run.code();
}

/// How it ended may be kept there.
#[test]
fn a_host_that_cannot_read_its_ends_waits_before_it_calls_a_run_crashed() {
    let site = JobSite::new(&job("j", "touch began; sleep 600", ""));
    let mut gone = site.started(&["run", "j"]);
    assert!(exists(&site.path("began")));
    gone.signal(Signal::SIGKILL);
    let _ = gone.code();
    site.expire_locks();
    let folder = site.path("state");
    let waits = |why: &str| {
        for args in [&["tick"][..], &["run", "j"]] {
            let end = ended(&mut site.jobs(args));
            assert_eq!(end.code, Some(0), "{why}: {end:?}");
            assert_eq!(site.outcomes("j"), [None], "{why}: after {args:?}");
            assert!(site.row("j").unheld_at.is_some(), "{why}: after {args:?}");
        }
    };
    fs::write(&folder, "").expect("a file");
    waits("no folder");
    fs::remove_file(&folder).expect("a file");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("j.end"), "{").expect("a file");
    waits("not whole");
    let year = Duration::from_secs(365 * 86_400);
    site.change("j", |row| row.unheld_at = row.unheld_at.map(|at| at + year));
    waits("found by a clock that was a year ahead");
    site.found_free_earlier("j", 91);
    assert_eq!(site.tick().code, Some(0));
    assert_eq!(site.outcomes("j"), [Some(JobOutcome::Crashed)]);
}
