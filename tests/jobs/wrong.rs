//! Wrong input: a sentence that names it, nothing run.

use std::os::unix::process::CommandExt as _;

use crate::place::{end as end_of, ended};
use crate::site::{JobSite, job};
use crate::support::site::{delivered, run};
use crate::support::{TempRoot, onedrop, unix_user};

#[test]
fn wrong_words_are_told_and_run_nothing() {
    let site = JobSite::new(&format!(
        "{}{}",
        job("nightly", "touch ran", "schedule = \"17 3 * * *\""),
        job("off", "touch ran", "enabled = false")
    ));
    let cases: [(&[&str], i32, &str); 8] = [
        (&["run", "nihgtly"], 125, "no job \"nihgtly\" in the configuration (did you mean nightly"),
        (&["run", "x\ny"], 125, "no job \"x\\ny\""),
        (&["run", ""], 125, "no job \"\""),
        (&["run"], 75, "<NAME>"),
        (&["run", "nightly", "--due", "2026-01-01T03:17:00Z"], 75, "--force"),
        (&["run", "nightly", "--force", "--due", "soon"], 125, "--due soon: expected a time"),
        (
            &["run", "nightly", "--force", "--due", "2026-01-01T03:18:00Z"],
            125,
            "no time of its schedule; the nearest are 2026-01-01T03:17:00Z and",
        ),
        (&["tick", "nightly"], 75, "unexpected argument 'nightly'"),
    ];
    for (args, code, says) in cases {
        let end = ended(&mut site.jobs(args));
        assert_eq!((end.code, &*end.out), (Some(code), ""), "{args:?}: {end:?}");
        assert!(end.err.contains(says), "{args:?}: {end:?}");
    }
    let end = site.run(&["off"]);
    assert_eq!((end.code, &*end.err), (Some(0), ""), "{end:?}");
    assert_eq!(end.out, "off: disabled in the configuration\n");
    let end = site.run(&["off", "--force"]);
    assert_eq!((end.code, &*end.out), (Some(125), ""), "{end:?}");
    assert_eq!(end.err, "onedrop: off: disabled in the configuration\n");
    assert!(!site.path("ran").exists() && site.runs("nightly").is_empty());
}

#[test]
fn a_ledger_of_another_schema_or_a_wrong_configuration_runs_nothing() {
    let site = JobSite::new(&job("j", "touch ran", ""));
    let sql = "UPDATE onedrop_ledger SET version = 99";
    site.place.site.sqlite().execute(sql, []).expect("SQL");
    let end = site.run(&["j"]);
    assert_eq!(end.code, Some(125), "{end:?}");
    assert!(end.err.contains("has schema version 99"), "{end:?}");
    let end = site.tick();
    assert_eq!(end.code, Some(75), "{end:?}");
    assert!(end.err.contains("has schema version 99"), "{end:?}");
    site.set_jobs("[jobs.j]\ncommand = [\"true\"]\nevery = \"1h\"\ntimout = \"5m\"\n");
    for (args, code) in [(&["run", "j"][..], 125), (&["tick"], 75)] {
        let end = ended(&mut site.jobs(args));
        assert_eq!(end.code, Some(code), "{end:?}");
        assert!(end.err.contains("jobs.j.timout"), "{end:?}");
    }
    let mut command = onedrop();
    command.args(["--config", "/nowhere.toml", "jobs", "tick"]);
    let end = ended(&mut command);
    assert_eq!(end.code, Some(75), "{end:?}");
    assert!(end.err.contains("/nowhere.toml"), "{end:?}");
    assert!(!site.path("ran").exists());
}

/// A host may lack that time zone.
#[test]
fn a_mistake_in_jobs_keeps_no_mail_from_being_delivered() {
    let schedule = "command = [\"true\"]\nschedule = \"17 3 * * *\"";
    let unread = "jobs.x: has schedule and every";
    for (jobs, says) in [
        (format!("[jobs.x]\n{schedule}\nevery = \"1h\"\n"), unread),
        (format!("[jobs]\ntimezone = \"Mars/Olympus\"\n[jobs.x]\n{schedule}\n"), "jobs.timezone"),
        (format!("[jobs.x]\n{schedule}\ntimezone = \"Mars/Olympus\"\n"), "jobs.x.timezone"),
        (format!("[jobs]\nrun_inn = \"server\"\n[jobs.x]\n{schedule}\n"), "jobs.run_inn"),
    ] {
        let site = JobSite::new("");
        site.set_jobs(&jobs);
        let config = &site.place.config;
        let message = b"From: a@example.com\r\nMessage-ID: <1@example.com>\r\n\r\nhello\r\n";
        delivered(config, &["-d", "lisa@gmail.com"], message);
        site.place.site.inbox_has("lisa", [message]);
        let end = ended(&mut site.place.with_lock(&["n", "--", "echo", "ran"]));
        assert_eq!((end.code, &*end.out), (Some(0), "ran\n"), "{end:?}");
        for (end, code) in [
            (end_of(run(config, &["check"])), 75),
            (site.tick(), 75),
            (site.run(&["x"]), 125),
            (ended(&mut site.jobs(&["check"])), 3),
            (ended(&mut site.jobs(&["list"])), 75),
        ] {
            assert_eq!(end.code, Some(code), "{end:?}");
            assert!(format!("{}{}", end.out, end.err).contains(says), "{end:?}");
        }
    }
}

/// There is nothing to do, and no ledger is asked.
#[test]
fn without_jobs_a_tick_has_nothing_to_do() {
    let site = JobSite::new("");
    std::fs::remove_file(site.path("ledger.db")).expect("the ledger");
    let end = site.tick();
    assert_eq!((end.code, &*end.out, &*end.err), (Some(0), "", ""));
    assert!(!site.path("ledger.db").exists());
}

/// Another host may have it all, so it is a warning.
#[test]
fn check_warns_of_what_this_host_lacks_for_its_jobs() {
    let tools = TempRoot::new();
    std::os::unix::fs::symlink("/bin/true", tools.join("tool")).expect("a link");
    let path = tools.display();
    let site = JobSite::new(&format!(
        "[jobs.a]\nevery = \"1h\"\ncommand = [\"no-such-program\"]\n\
         [jobs.b]\nevery = \"30s\"\ncommand = [\"true\"]\ncwd = \"/no/such/folder\"\n\
         user = \"no-such-user\"\non_failure = [\"/no/such/hook\"]\n\
         [jobs.c]\nevery = \"1h\"\ncommand = [\"tool\"]\nenv = [\"PATH={path}\"]\n"
    ));
    let check = run(&site.place.config, &["check"]);
    let out = String::from_utf8_lossy(&check.stdout);
    let lines: Vec<_> =
        out.lines().filter_map(|line| line.strip_prefix("warning jobs: ")).collect();
    let says = [
        "a: there is no program no-such-program on this host",
        "b: cwd: there is no folder /no/such/folder",
        "b: user: there is no no-such-user on this host",
        "b: a hook of it needs /no/such/hook, which this host does not have",
    ];
    assert_eq!(lines, says, "{out}");
    assert!(out.contains("jobs.b.every: less than a minute"), "{out}");
    // A user that a crontab named, where not root ticks.
    let of_root = JobSite::new("[jobs.a]\nevery = \"1h\"\ncommand = [\"true\"]\nuser = \"root\"\n");
    let mut check = std::process::Command::new(of_root.place.give_to_nobody());
    let nobody = unix_user("nobody");
    check.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw()).current_dir(&*of_root.place.site.root);
    let check = ended(check.arg("--config").arg(&of_root.place.config).arg("check"));
    assert!(
        check.out.contains("warning jobs: a: user: only root can run it as root\n"),
        "{check:?}"
    );
    // What a job has done is shown as long as it is on record.
    assert_eq!(site.run(&["c"]).code, Some(0));
    site.set_jobs("");
    let ghost = ended(&mut site.jobs(&["show", "c"]));
    assert_eq!(ghost.code, Some(0), "{ghost:?}");
    assert!(ghost.out.contains("c: ghost") && ghost.out.contains("schedule"), "{ghost:?}");
}
