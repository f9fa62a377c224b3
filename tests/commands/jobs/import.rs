//! `onedrop jobs import`: what it writes is a configuration, and means what the crontab means.

use std::fs;
use std::path::Path;
use std::process::Command;

use onedrop::config::{Config, JobSettings};

use super::*;
use crate::support::TempRoot;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/crontabs");

fn import(crontab: &Path, more: &[&str]) -> Ended {
    let mut command = onedrop();
    command.args(["jobs", "import"]).args(more).arg(crontab).env("TZ", "Europe/London");
    Ended::of(&command.stdin(Stdio::null()).output().expect("binary"))
}

/// Reads them as the configuration's sections.
fn read(sections: &str) -> Vec<JobSettings> {
    let folder = TempRoot::new();
    let file = folder.join("onedrop.toml");
    fs::write(&file, format!("[directory]\ndomains = [\"mail.example\"]\n{sections}")).expect("it");
    let loaded = Config::load_from(Some(&file), std::iter::empty());
    let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}\n{sections}"));
    loaded.config.jobs.jobs
}

/// Name, schedule and the last word of the command.
fn short(jobs: &[JobSettings]) -> Vec<(&str, String, &str)> {
    let last = |job: &JobSettings| job.schedule.to_string().replace(" Europe/London", "");
    let each = jobs.iter().map(|job| (job.name.as_str(), last(job), job.command.last()));
    each.map(|(name, schedule, word)| (name, schedule, word.expect("a word").as_str())).collect()
}

#[test]
fn a_users_crontab_becomes_jobs_and_the_rest_comments() {
    let imported = import(&Path::new(FOLDER).join("root.crontab"), &[]);
    assert_eq!((imported.status, imported.err.as_str()), (Some(1), ""), "{imported:?}");
    let jobs = read(&imported.out);
    let shown = short(&jobs);
    let of = |name: &str| shown.iter().find(|(job, ..)| *job == name).expect(name);
    assert_eq!(of("daily-job").1, "5 0 * * *", "{shown:?}");
    assert_eq!(of("monthly").2, "/usr/local/bin/monthly --day=\"$(date +%d)\"");
    assert_eq!(of("monthly-2").1, "0 * * * *");
    assert_eq!(of("srv").2, "cd /srv && ./poll");
    assert_eq!(of("gr--e").1, "0 4 * * *");
    assert_eq!(of("x").1, "1 1 1 1 1", "a last line without an end");
    assert_eq!(of("o").1, "0 12 */2 * 4");
    let mail = "printf '%s\\n' 'Joe,' '' 'Where are your kids? %' | { mail -s \"It's 10pm\" joe\n}";
    assert_eq!(of("mail").2, mail);
    let monthly = jobs.iter().find(|job| job.name == "monthly").expect("it");
    let path = "PATH=/usr/local/bin:/usr/bin:/bin";
    let env = |job: &JobSettings| {
        job.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
    };
    assert_eq!(monthly.command[..2], ["/bin/bash", "-c"]);
    assert_eq!(env(monthly), [path, "GREETING=it is"]);
    let later = jobs.iter().find(|job| job.name == "monthly-2").expect("it");
    assert_eq!(env(later), ["GREETING=it is", "PATH=/bin"]);
    assert!(jobs.iter().all(|job| job.retry.is_zero()));
    for (line, why) in [
        ("MAILTO=paul", "a job sends no mail"),
        ("@reboot /usr/local/bin/at-start", "NO JOB: no job is due when a host starts"),
        ("61 * * * * broken", "NO JOB: the minute is wrong"),
        ("0 0 31 2 * never", "NO JOB: this date never comes"),
        ("0 0 * * FRI-SUN weekend", "NO JOB: the day of the week is wrong"),
        ("* * * * *", "NO JOB: it has no command"),
        ("@every 5m prometheus", "NO JOB: expected five fields"),
        ("0 3 * * * printf", "NO JOB: it is not UTF-8"),
    ] {
        let mut lines =
            imported.out.lines().skip_while(|said| !said.contains(&format!(": {line}")));
        let said = (lines.next(), lines.next().unwrap_or_default());
        assert!(said.1.starts_with(&format!("# {why}")), "{line}: {said:?}");
    }
    let lines = imported.out.matches("# Line ").count();
    assert_eq!(lines, jobs.len() + 8, "each line once: {}", imported.out);
}

/// crontab takes each line as well, and its user for the first word of a command.
#[test]
fn what_debian_ships_becomes_jobs() {
    let file = Path::new(FOLDER).join("debian.crontab");
    let imported = import(&file, &["--system"]);
    assert_eq!((imported.status, imported.err.as_str()), (Some(0), ""), "{imported:?}");
    let jobs = read(&imported.out);
    let names: Vec<_> = short(&jobs).into_iter().map(|(name, ..)| name).collect();
    let expected = [
        "anacron",
        "anacron-2",
        "anacron-3",
        "certbot",
        "checkarray",
        "debian-sa1",
        "e2scrub_all_cron",
        "e2scrub_all",
        "run-parts",
        "sessionclean",
        "update-sh",
    ];
    assert_eq!(names.len(), expected.len(), "{names:?}");
    let said = Command::new("crontab").arg("-n").arg(&file).output().expect("crontab of cron");
    assert!(said.status.success(), "{said:?}");
    let of_others = |job: &&JobSettings| job.user.as_deref() != Some("root");
    let of_others: Vec<_> = jobs.iter().filter(of_others).map(|job| job.user.as_deref()).collect();
    assert_eq!(of_others, [Some("www-data")]);
    let month = jobs.iter().find(|job| job.schedule.to_string() == "52 6 1 * * Europe/London");
    let script = "test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.monthly; }";
    assert_eq!(month.expect("it").command, ["/bin/sh", "-c", script]);
}

/// The input of a command as cron gives it.
#[test]
fn a_command_gets_its_input() {
    let folder = TempRoot::new();
    let file = folder.join("crontab");
    let line = r"* * * * * cat; printf '\%s\n' 'a\\b' # last%one's%two\%x\\y%";
    fs::write(&file, format!("{line}\n* * * * * cat; echo no more%\n")).expect("a file");
    let jobs = read(&import(&file, &[]).out);
    let said = |job: &JobSettings| {
        let (program, args) = job.command.split_first().expect("a shell");
        let said = Command::new(program).args(args).stdin(Stdio::null()).output().expect("sh");
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    assert_eq!(said(&jobs[0]), "one's\ntwo%x\\\\y\na\\b\n");
    assert_eq!(said(&jobs[1]), "no more\n", "an empty input");
}

/// A section of one of their names would be laid over it.
#[test]
fn no_line_becomes_one_of_onedrops_own_jobs() {
    let conf = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/conf/onedrop.toml"));
    let conf = conf.expect("it is shipped");
    let names = conf.lines().filter_map(|line| line.strip_prefix("[jobs.")?.strip_suffix(']'));
    let own: Vec<&str> = names.collect();
    assert!(own.contains(&"purge"), "{own:?}");
    let folder = TempRoot::new();
    let file = folder.join("crontab");
    let lines: String = own.iter().map(|name| format!("@daily /usr/local/bin/{name}\n")).collect();
    fs::write(&file, lines).expect("a file");
    let jobs = read(&import(&file, &[]).out);
    let mut names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
    names.sort();
    let mut expected: Vec<String> = own.iter().map(|name| format!("{name}-2")).collect();
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn a_crontab_that_is_not_there_is_an_error() {
    let missing = import(Path::new("/nonexistent/crontab"), &[]);
    assert_eq!(missing.status, Some(75));
    assert!(missing.err.contains("/nonexistent/crontab: No such file"), "{missing:?}");
}

/// A configuration refuses a command without a program.
#[test]
fn an_empty_shell_is_a_comment() {
    let folder = TempRoot::new();
    let file = folder.join("crontab");
    let lines = "SHELL=/bin/bash\n@hourly a\nSHELL=\n@hourly b\nSHELL = \"\"\n@hourly c\n";
    fs::write(&file, lines).expect("a file");
    let imported = import(&file, &[]);
    assert_eq!((imported.status, imported.err.as_str()), (Some(0), ""), "{imported:?}");
    let jobs = read(&imported.out);
    let shells: Vec<_> = jobs.iter().map(|job| job.command[0].as_str()).collect();
    assert_eq!(shells, ["/bin/bash", "/bin/sh", "/bin/sh"]);
    for said in ["# Line 3: SHELL=\n# there is no such shell", "# Line 5: SHELL = \"\"\n# there"] {
        assert!(imported.out.contains(said), "{imported:?}");
    }
}
