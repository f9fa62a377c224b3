//! Jobs and their runs: compare-and-set, one run of a due time and try, one end.

use onedrop::ledger::{
    JobChange, JobOutcome, JobPause, JobRow, JobRun, JobTrigger, JobsOnRecord, OUTPUT_BYTES,
};

use super::rigs::{PostgresRig, SqliteRig};
use super::support::proxy::{Fault, Stage};
use super::*;

/// The time `millis` after a moment that is no whole second.
fn at(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_800_000_000_123 + millis)
}

fn job(name: &str) -> JobRow {
    JobRow { seen_at: at(2), ..JobRow::new(name, "17 3 * * * UTC".to_owned(), at(5), at(1)) }
}

/// A run that has begun.
fn run(name: &str, due: SystemTime, try_no: u32) -> JobRun {
    let begun = JobRun::new(name, due, JobTrigger::Schedule, at(100));
    JobRun { try_no, epoch: 7, host: "mx1".to_owned(), pid: 42, ..begun }
}

fn ended(run: &JobRun, outcome: JobOutcome, exit: i32) -> JobRun {
    let ended_at = Some(at(200));
    JobRun { outcome: Some(outcome), exit: Some(exit), ended_at, ..run.clone() }
}

fn skip(name: &str, due: SystemTime, outcome: JobOutcome) -> JobRun {
    JobRun { outcome: Some(outcome), ended_at: Some(at(150)), ..run(name, due, 1) }
}

/// A change that changes nothing but the revision.
fn touch(row: &JobRow) -> JobChange<'_> {
    let seen = Some(row.revision).filter(|revision| *revision > 0);
    JobChange { seen, value: RandomValue::default(), row, added: &[], ended: None }
}

impl Host {
    fn changes(&self, change: &JobChange<'_>) -> bool {
        self.0.change_job(change, soon()).expect("an answer")
    }

    fn jobs(&self) -> JobsOnRecord {
        self.0.jobs(soon()).expect("jobs")
    }

    #[track_caller]
    fn job(&self, name: &str) -> JobRow {
        let found = self.jobs().jobs.into_iter().find(|row| row.name == name);
        found.unwrap_or_else(|| panic!("no job {name}"))
    }

    fn runs(&self, name: &str) -> Vec<JobRun> {
        self.0.job_runs(name, 1000, soon()).expect("runs")
    }

    /// Puts a job on record.
    pub fn new_job(&self, name: &str) -> JobRow {
        assert!(self.changes(&touch(&job(name))));
        self.job(name)
    }

    /// A job with a run that has begun.
    fn begun(&self, name: &str) -> (JobRow, JobRun) {
        let (new, run) = (self.new_job(name), run(name, at(5), 1));
        let row = JobRow { open: Some((run.due, 1)), epoch: 7, runs: 1, ..new };
        let added = [run.clone()];
        assert!(self.changes(&JobChange { added: &added, ..touch(&row) }));
        (self.job(name), run)
    }
}

pub fn a_job_comes_back_as_it_was_put_on_record(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    assert_eq!(a.jobs().jobs, []);
    let new = job("verify");
    assert!(a.changes(&touch(&new)));
    assert_eq!(b.job("verify"), JobRow { revision: 1, ..new });
    let full = JobRow {
        name: "verify".to_owned(),
        revision: 1,
        schedule: "every 15m".to_owned(),
        paused: Some(JobPause {
            at: at(11),
            note: "until \"Monday\"\nä'; --".to_owned(),
            until: Some(at(24)),
        }),
        last_paused_at: Some(at(12)),
        resumed_at: Some(at(13)),
        epoch: i64::MAX,
        open: Some((at(14), u32::MAX)),
        next_due: Some(at(15)),
        next_try: u32::MAX,
        retry_at: Some(at(16)),
        first_seen: at(17),
        seen_at: at(18),
        last_start: Some(at(19)),
        last_end: Some(at(20)),
        last_success: Some(at(21)),
        last_success_due: Some(at(22)),
        last_exit: Some(-1),
        last_error: "exit status 75".to_owned(),
        errors: u32::MAX,
        runs: i64::MAX as u64,
        open_host: "mx2".to_owned(),
        unheld_at: Some(at(23)),
        stop_epoch: i64::MAX,
        stop_by: "root on mx3".to_owned(),
        hooks_state: "failing".to_owned(),
    };
    assert!(b.changes(&touch(&full)));
    assert_eq!(a.job("verify"), JobRow { revision: 2, ..full });
    let bare = JobRow { next_due: None, revision: 2, ..job("verify") };
    assert!(b.changes(&touch(&bare)));
    assert_eq!(a.job("verify"), JobRow { revision: 3, ..bare });
}

pub fn jobs_come_by_name_with_the_ledgers_clock(rig: &dyn Rig) {
    let host = Host::of(rig);
    for name in ["b", "a_b", "B", "a", "a-b", "a.b"] {
        host.new_job(name);
    }
    let found = host.jobs();
    let names: Vec<_> = found.jobs.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["B", "a", "a-b", "a.b", "a_b", "b"]);
    assert_eq!(found.now.duration_since(UNIX_EPOCH).expect("a time").subsec_nanos() % 1_000_000, 0);
    assert!(host.jobs().now >= found.now);
}

pub fn times_come_back_to_the_millisecond_also_those_far_away(rig: &dyn Rig) {
    let host = Host::of(rig);
    let mut row = host.new_job("far");
    let millis = |millis| UNIX_EPOCH + Duration::from_millis(millis);
    let last = 253_402_300_799_999;
    for far in [0, 1, 999, 1_001, 4_102_444_800_001, last - 998, last - 1, last] {
        row.next_due = Some(millis(far));
        row.last_success_due = Some(millis(far));
        let added = [run("far", millis(far), 1)];
        assert!(host.changes(&JobChange { added: &added, ..touch(&row) }), "{far}");
        row = host.job("far");
        assert_eq!((row.next_due, row.last_success_due), (Some(millis(far)), Some(millis(far))));
        assert_eq!(host.runs("far")[0], added[0], "{far}");
        let done = ended(&added[0], JobOutcome::Ok, 0);
        assert!(host.changes(&JobChange { ended: Some(&done), ..touch(&row) }), "{far}");
        row = host.job("far");
    }
    // Beyond the calendar, and more exact than a ledger is.
    row.next_due = Some(millis(last + 5_000));
    row.retry_at = Some(UNIX_EPOCH - Duration::from_secs(5));
    row.last_start = Some(at(0) + Duration::from_nanos(999_999));
    assert!(host.changes(&touch(&row)));
    let row = host.job("far");
    assert_eq!((row.next_due, row.retry_at), (Some(millis(last)), Some(millis(0))));
    assert_eq!(row.last_start, Some(at(0)));
}

pub fn any_text_of_a_job_comes_back(rig: &dyn Rig) {
    let host = Host::of(rig);
    let mut texts = hostile_texts();
    texts.extend(["line\nline\r\n\ttab \u{1b}[31m".to_owned(), "日本語 ä \u{10FFFF}".to_owned()]);
    for (n, text) in texts.iter().enumerate() {
        let name = format!("job{n}");
        let new = JobRow { last_error: text.clone(), schedule: text.clone(), ..job(&name) };
        let begun = JobRun { host: text.clone(), ..run(&name, at(5), 1) };
        let done = JobRun {
            output: text.clone(),
            reason: text.clone(),
            ..ended(&begun, JobOutcome::Failed, 1)
        };
        let added = [begun];
        assert!(host.changes(&JobChange { added: &added, ..touch(&new) }), "{text:?}");
        let row = host.job(&name);
        assert!(host.changes(&JobChange { ended: Some(&done), ..touch(&row) }), "{text:?}");
        // The beginning of a text, the end of an output, and no NUL.
        let no_nul = text.replace('\0', "\u{FFFD}");
        let [found] = &host.runs(&name)[..] else { panic!("{:?}", host.runs(&name)) };
        let [row, _] = [host.job(&name), row];
        assert!(!row.last_error.is_empty() || text.is_empty(), "{text:?}");
        for head in [&row.last_error, &row.schedule, &found.host, &found.reason] {
            assert!(no_nul.starts_with(head.as_str()), "{text:?}: {head:?}");
            assert!(head == &no_nul || head.len() > 3000, "{text:?}: {head:?}");
        }
        assert!(no_nul.ends_with(&found.output), "{text:?}: {:?}", found.output);
        let is_whole = found.output == no_nul;
        assert!(is_whole || found.output.len() > OUTPUT_BYTES - 4, "{:?}", found.output);
    }
}

pub fn a_change_holds_only_on_the_revision_that_was_seen(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let first = a.new_job("verify");
    assert!(!b.changes(&touch(&job("verify"))), "it is there already");
    let paused = JobRow { errors: 1, ..first.clone() };
    assert!(a.changes(&touch(&paused)));
    let second = b.job("verify");
    assert_eq!((second.revision, second.errors), (2, 1));
    let late = JobRow { errors: 9, ..first };
    let added = [run("verify", at(5), 1)];
    assert!(!b.changes(&JobChange { added: &added, ..touch(&late) }));
    assert_eq!((b.job("verify"), b.runs("verify")), (second, Vec::new()), "nothing changed");
    let unknown = JobRow { revision: 3, ..job("unknown") };
    assert!(!b.changes(&JobChange { added: &added, ..touch(&unknown) }));
    let zero = JobRow { revision: 0, ..job("zero") };
    assert!(!b.changes(&JobChange { seen: Some(0), ..touch(&zero) }));
    assert_eq!(b.jobs().jobs.len(), 1);
}

pub fn of_twenty_that_change_a_job_at_once_one_does(rig: &dyn Rig) {
    let hosts: Vec<Host> = (0..4).map(|_| Host::of(rig)).collect();
    // The first finds no row; the later ones begin a run of the same due time.
    for round in 0..4u64 {
        let row = hosts[0].jobs().jobs.into_iter().next();
        let began = at_once(20, |n| {
            let row = row.clone().unwrap_or_else(|| job("verify"));
            let row = JobRow { epoch: n as i64 + 1, open: Some((at(round), 1)), ..row };
            let skipped = skip("verify", at(round + 1_000), JobOutcome::SkippedMissed);
            let added = [skipped, JobRun { pid: n as u32, ..run("verify", at(round), 1) }];
            hosts[n % 4].changes(&JobChange { added: &added, ..touch(&row) })
        });
        let winners: Vec<usize> = (0..20).filter(|n| began[*n]).collect();
        let [winner] = winners[..] else { panic!("{winners:?} in round {round}") };
        let row = hosts[1].job("verify");
        assert_eq!((row.revision, row.epoch), (round as i64 + 1, winner as i64 + 1));
        let runs = hosts[1].runs("verify");
        assert_eq!(runs.len(), 2 * (round as usize + 1));
        assert_eq!((runs[0].pid, runs[0].due), (winner as u32, at(round)));
    }
}

pub fn of_twenty_that_end_a_run_at_once_one_does(rig: &dyn Rig) {
    let hosts: Vec<Host> = (0..4).map(|_| Host::of(rig)).collect();
    let (row, run) = hosts[0].begun("verify");
    let ends = at_once(20, |n| {
        let done = ended(&run, JobOutcome::Failed, n as i32);
        let row = JobRow { open: None, last_exit: Some(n as i32), ..row.clone() };
        hosts[n % 4].changes(&JobChange { ended: Some(&done), ..touch(&row) })
    });
    let winners: Vec<usize> = (0..20).filter(|n| ends[*n]).collect();
    let [winner] = winners[..] else { panic!("{winners:?}") };
    let row = hosts[1].job("verify");
    assert_eq!((row.revision, row.open, row.last_exit), (3, None, Some(winner as i32)));
    let done = ended(&run, JobOutcome::Failed, winner as i32);
    assert_eq!(hosts[1].runs("verify"), [done]);
}

pub fn a_job_has_one_run_of_a_due_time_and_try(rig: &dyn Rig) {
    let host = Host::of(rig);
    let (row, first) = host.begun("verify");
    host.begun("another");
    let again = [skip("verify", at(900), JobOutcome::SkippedLate), first.clone()];
    assert!(!host.changes(&JobChange { added: &again, ..touch(&row) }));
    let done = ended(&first, JobOutcome::Failed, 1);
    let change = JobChange { added: &again, ended: Some(&done), ..touch(&row) };
    assert!(!host.changes(&change), "also as it ends");
    let twice = [run("verify", at(9), 1), run("verify", at(9), 1)];
    assert!(!host.changes(&JobChange { added: &twice, ..touch(&row) }));
    assert_eq!((host.job("verify"), host.runs("verify")), (row.clone(), vec![first.clone()]));
    let new = job("new");
    let twice = [run("new", at(9), 1), run("new", at(9), 1)];
    assert!(!host.changes(&JobChange { added: &twice, ..touch(&new) }));
    assert_eq!(host.jobs().jobs.len(), 2, "not even the job");
    let others = [run("verify", first.due, 2), run("verify", at(6), 1)];
    assert!(host.changes(&JobChange { added: &others, ..touch(&row) }));
    let [second, first_try] = others;
    assert_eq!(host.runs("verify"), [first_try, second, first], "the latest first");
}

pub fn the_last_try_of_a_due_time_is_known(rig: &dyn Rig) {
    let host = Host::of(rig);
    let (row, first) = host.begun("verify");
    host.begun("another");
    let last = |due| host.0.last_try("verify", due, soon()).expect("a number");
    assert_eq!((last(first.due), last(at(6))), (1, 0));
    let more = [run("verify", first.due, 12), run("verify", first.due, 3), run("verify", at(7), 5)];
    assert!(host.changes(&JobChange { added: &more, ..touch(&row) }));
    assert_eq!((last(first.due), last(at(6)), last(at(7))), (12, 0, 5));
    assert_eq!(last(first.due + Duration::from_micros(400)), 12, "to the millisecond");
    assert_eq!(host.0.last_try("unknown", first.due, soon()).expect("a number"), 0);
}

pub fn of_a_job_the_latest_runs_are_kept(rig: &dyn Rig) {
    let host = Host::of(rig);
    let (row, open) = host.begun("verify");
    let (_, other) = host.begun("another");
    let skips: Vec<JobRun> =
        (10..15).map(|n| skip("verify", at(n), JobOutcome::SkippedLate)).collect();
    assert!(host.changes(&JobChange { added: &skips, ..touch(&row) }));
    let prune = |kept, most| host.0.prune_runs_of("verify", kept, most, soon()).expect("a number");
    assert_eq!(prune(5, 100), 0);
    assert_eq!((prune(2, 1), prune(2, 100), prune(2, 100)), (1, 2, 0));
    let left = [skips[4].clone(), skips[3].clone(), open];
    assert_eq!(host.runs("verify"), left, "an open run stays");
    assert_eq!(host.runs("another"), [other]);
}

pub fn a_run_ends_once(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let (row, begun) = a.begun("verify");
    let crashed = JobRun {
        output: "half\n".to_owned(),
        reason: "its process is gone".to_owned(),
        signal: Some(9),
        ..ended(&begun, JobOutcome::Crashed, 137)
    };
    // By somebody who knows nothing of how it began.
    let settling = JobRun {
        trigger: JobTrigger::Manual,
        epoch: 8,
        host: "mx2".to_owned(),
        pid: 1,
        started_at: at(77),
        last_due: at(78),
        occurrences: 5,
        ..crashed.clone()
    };
    // Whoever has the lock next settles it, and begins the next try.
    let next = [JobRun { trigger: JobTrigger::Retry, epoch: 8, ..run("verify", begun.due, 2) }];
    let settled = JobRow { epoch: 8, errors: 1, open: Some((begun.due, 2)), ..row.clone() };
    let change = JobChange { added: &next, ended: Some(&settling), ..touch(&settled) };
    assert!(b.changes(&change));
    let before = (b.job("verify"), b.runs("verify"));
    assert_eq!(before.1, [next[0].clone(), crashed]);
    // The zombie's end, by the row that it has seen.
    let done = ended(&begun, JobOutcome::Ok, 0);
    let seen = JobRow { open: None, ..row };
    let added = [run("verify", at(77), 1)];
    assert!(!a.changes(&JobChange { added: &added, ended: Some(&done), ..touch(&seen) }));
    assert_eq!((b.job("verify"), b.runs("verify")), before);
    let unknown = ended(&run("verify", at(4711), 1), JobOutcome::Ok, 0);
    assert!(!a.changes(&JobChange { ended: Some(&unknown), ..touch(&before.0) }));
    let none = job("none");
    assert!(!a.changes(&JobChange { ended: Some(&unknown), ..touch(&none) }));
    assert_eq!((b.job("verify"), b.runs("verify")), before);
    assert_eq!(b.jobs().jobs.len(), 1, "no job without its run");
    // By the newest its end is put on record in place of the crash, once, and all else stays.
    assert!(a.changes(&JobChange { ended: Some(&done), ..touch(&before.0) }));
    assert_eq!(b.runs("verify"), [next[0].clone(), done]);
    let (newest, failed) = (b.job("verify"), ended(&begun, JobOutcome::Failed, 1));
    assert!(!a.changes(&JobChange { ended: Some(&failed), ..touch(&newest) }));
    assert_eq!(b.job("verify"), newest);
}

pub fn a_skip_has_ended_as_it_is_added(rig: &dyn Rig) {
    let host = Host::of(rig);
    let row = host.new_job("verify");
    let range = JobRun {
        last_due: at(600_000),
        occurrences: 10_000,
        reason: "no host was up".to_owned(),
        ..skip("verify", at(5), JobOutcome::SkippedMissed)
    };
    let skips = [
        range.clone(),
        skip("verify", at(6), JobOutcome::SkippedLate),
        skip("verify", at(7), JobOutcome::SkippedBusy),
        skip("verify", at(8), JobOutcome::SkippedPaused),
        skip("verify", at(9), JobOutcome::SkippedDependency),
        skip("verify", at(10), JobOutcome::SkippedMost),
        skip("verify", at(11), JobOutcome::Marked),
    ];
    assert!(host.changes(&JobChange { added: &skips, ..touch(&row) }));
    let mut latest_first = skips.to_vec();
    latest_first.reverse();
    assert_eq!(host.runs("verify"), latest_first);
    assert_eq!(host.0.job_runs("verify", 2, soon()).expect("runs"), latest_first[..2]);
    assert_eq!(host.0.job_runs("verify", 0, soon()).expect("runs"), []);
    assert_eq!(host.runs("other"), []);
    let row = host.job("verify");
    let change = JobChange { ended: Some(&range), ..touch(&row) };
    assert!(!host.changes(&change), "it has ended");
}

/// The first answer was lost; meanwhile others may have changed the row.
pub fn a_change_made_again_finds_its_own(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let new = job("verify");
    let created = touch(&new);
    assert!(a.changes(&created) && a.changes(&created));
    assert_eq!(a.job("verify").revision, 1);

    let (row, begun) = (a.job("verify"), [run("verify", at(5), 1)]);
    let begin = JobChange { added: &begun, ..touch(&row) };
    assert!(a.changes(&begin) && a.changes(&begin));
    let others = b.job("verify");
    assert_eq!((others.revision, b.runs("verify")), (2, begun.to_vec()));
    assert!(b.changes(&touch(&JobRow { seen_at: at(50), ..others })));
    assert!(a.changes(&begin), "the run tells");
    assert_eq!((b.job("verify").revision, b.job("verify").seen_at), (3, at(50)));

    let (row, done) = (a.job("verify"), ended(&begun[0], JobOutcome::Ok, 0));
    let end = JobChange { ended: Some(&done), ..touch(&row) };
    assert!(a.changes(&end));
    assert!(b.changes(&touch(&b.job("verify"))));
    assert!(a.changes(&end), "the run tells");
    assert_eq!((b.job("verify").revision, b.runs("verify")), (5, vec![done.clone()]));
    // Another's end of the same run is no repetition.
    let row = b.job("verify");
    assert!(!b.changes(&JobChange { ended: Some(&done), ..touch(&row) }));
}

pub fn a_job_is_removed_with_its_runs(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let (row, _) = a.begun("ghost");
    let (_, other) = a.begun("other");
    let removes = |host: &Host, seen| host.0.remove_job("ghost", seen, soon()).expect("an answer");
    assert!(!removes(&b, row.revision - 1) && !removes(&b, row.revision + 1));
    assert_eq!((b.job("ghost"), b.runs("ghost").len()), (row.clone(), 1));
    assert!(removes(&b, row.revision));
    assert!(removes(&b, row.revision), "made again, it is gone");
    assert_eq!(a.runs("ghost"), []);
    assert_eq!(a.jobs().jobs.len(), 1);
    assert_eq!(a.runs("other"), [other]);
    assert!(!a.changes(&touch(&row)), "a change of before finds nothing");
    assert_eq!(a.begun("ghost").0.revision, 2, "as new");
}

/// No run without its job, whoever is first.
pub fn a_job_that_is_removed_while_it_is_changed_is_either(rig: &dyn Rig) {
    let hosts: Vec<Host> = (0..4).map(|_| Host::of(rig)).collect();
    for round in 0..8 {
        let name = format!("ghost{round}");
        let row = hosts[0].new_job(&name);
        let done = at_once(4, |n| match n {
            0 | 1 => hosts[n].0.remove_job(&name, row.revision, soon()).expect("an answer"),
            _ => {
                let added = [run(&name, at(5), 1)];
                hosts[n].changes(&JobChange { added: &added, ..touch(&row) })
            }
        });
        let is_there = hosts[0].jobs().jobs.iter().any(|row| row.name == name);
        let changed = usize::from(done[2]) + usize::from(done[3]);
        assert_eq!((is_there, changed), (!done[0], usize::from(is_there)), "{done:?}");
        assert_eq!(hosts[0].runs(&name).len(), changed);
    }
}

pub fn only_runs_that_ended_long_ago_are_pruned(rig: &dyn Rig) {
    let host = Host::of(rig);
    let now = host.jobs().now;
    let days = |days: u64| now - Duration::from_secs(days * 86_400);
    let row = host.new_job("verify");
    let aged = |n: u64| JobRun {
        started_at: days(n),
        ended_at: Some(days(n)),
        ..skip("verify", at(n), JobOutcome::Ok)
    };
    let open = JobRun { started_at: days(400), ..run("verify", at(1000), 1) };
    let added = [aged(91), aged(200), aged(89), open.clone(), aged(95), aged(1)];
    assert!(host.changes(&JobChange { added: &added, ..touch(&row) }));
    let prune = |age: Duration, most| host.0.prune_job_runs(age, most, soon()).expect("a number");
    let ninety = Duration::from_secs(90 * 86_400);
    assert_eq!(prune(Duration::MAX, 100), 0);
    assert_eq!(prune(ninety, 0), 0);
    assert_eq!(prune(ninety, 2), 2);
    let left: Vec<_> = host.runs("verify").iter().map(|run| run.due).collect();
    assert_eq!(left, [1, 1000, 89, 91].map(at), "the oldest went first");
    assert_eq!((prune(ninety, 100), prune(ninety, 100)), (1, 0));
    assert_eq!(prune(Duration::ZERO, 100), 2);
    assert_eq!(host.runs("verify"), [open]);
}

pub fn several_prune_at_once_and_each_run_counts_once(rig: &dyn Rig) {
    let hosts: Vec<Host> = (0..4).map(|_| Host::of(rig)).collect();
    let row = hosts[0].new_job("verify");
    let ended_at = Some(hosts[0].jobs().now - Duration::from_secs(86_400));
    let old = |n| JobRun { ended_at, ..skip("verify", at(n), JobOutcome::Ok) };
    let added: Vec<JobRun> = (0..40).map(old).collect();
    assert!(hosts[0].changes(&JobChange { added: &added, ..touch(&row) }));
    let hour = Duration::from_secs(3600);
    let pruned = at_once(8, |n| hosts[n % 4].0.prune_job_runs(hour, 10, soon()).expect("a number"));
    let left = hosts[0].runs("verify").len() as u64;
    assert_eq!(pruned.iter().sum::<u64>() + left, 40, "{pruned:?}");
    assert_eq!(hosts[0].0.prune_job_runs(hour, 100, soon()).expect("a number"), left);
}

pub fn jobs_of_another_schema_are_refused(rig: &dyn Rig) {
    let host = Host::of(rig);
    let row = host.new_job("early");
    if !rig.sql("UPDATE onedrop_ledger SET version = 99") {
        return;
    }
    let refused = |found: i64| {
        let is_refused = |answer: Result<(), LedgerError>| {
            let is_refused =
                matches!(answer, Err(LedgerError::Version(seen)) if seen.found == found);
            assert!(is_refused, "{answer:?}");
        };
        let new = job("new");
        let added = [run("early", at(5), 1)];
        is_refused(host.0.jobs(soon()).map(drop));
        is_refused(host.0.change_job(&touch(&new), soon()).map(drop));
        let change = JobChange { added: &added, ..touch(&row) };
        is_refused(host.0.change_job(&change, soon()).map(drop));
        is_refused(host.0.job_runs("early", 10, soon()).map(drop));
        is_refused(host.0.last_try("early", at(5), soon()).map(drop));
        is_refused(host.0.remove_job("early", 1, soon()).map(drop));
        is_refused(host.0.prune_job_runs(Duration::ZERO, 10, soon()).map(drop));
    };
    refused(99);
    assert!(rig.sql(&format!("UPDATE onedrop_ledger SET version = {SCHEMA_VERSION}")));
    assert_eq!((host.jobs().jobs, host.runs("early")), (vec![row.clone()], Vec::new()));
    assert!(rig.sql(
        "DROP TABLE onedrop_job_run; DROP TABLE onedrop_job;
         UPDATE onedrop_ledger SET version = 6;"
    ));
    refused(6);
}

pub fn what_no_program_writes_is_said_so(rig: &dyn Rig) {
    let host = Host::of(rig);
    host.begun("verify");
    if !rig.sql("UPDATE onedrop_job_run SET outcome = 'perhaps'") {
        return;
    }
    let answer = host.0.job_runs("verify", 10, soon());
    let is_told = matches!(&answer, Err(LedgerError::Broken(why)) if why.contains("\"perhaps\""));
    assert!(is_told, "{answer:?}");
    rig.sql("UPDATE onedrop_job_run SET outcome = NULL, pid = -1");
    let answer = host.0.job_runs("verify", 10, soon());
    assert!(matches!(&answer, Err(LedgerError::Broken(why)) if why.contains("-1")), "{answer:?}");
    rig.sql("UPDATE onedrop_job SET errors = 5000000000");
    let answer = host.0.jobs(soon());
    let is_told = matches!(&answer, Err(LedgerError::Broken(why)) if why.contains("5000000000"));
    assert!(is_told, "{answer:?}");
}

/// Each answer of a change in turn is lost; the second call is made by the handle itself.
#[test]
fn a_change_whose_answer_is_lost_on_the_way_is_made_once() {
    let rig = PostgresRig::shared();
    let proxy = rig.proxy();
    let direct = Host::of(&rig);
    let (mut row, mut open) = direct.begun("verify");
    let used = || {
        let host = rig.through(&proxy);
        host.jobs();
        host
    };
    drop(used());
    let answers = proxy.answers();
    let mut lost = 0;
    for answer in 1..=12 {
        let done = ended(&open, JobOutcome::Ok, 0);
        let next = [run("verify", at(1000 + answer), 1)];
        let change = JobChange { added: &next, ended: Some(&done), ..touch(&row) };
        proxy.plan(Stage::Reply(answers + answer as usize), Fault::Cut);
        let host = used();
        let before = proxy.reached();
        proxy.plan(Stage::Request(usize::MAX), Fault::Cut);
        assert!(host.changes(&change), "answer {answer}");
        lost += proxy.reached() - before;
        let revision = row.revision + 1;
        (row, open) = (direct.job("verify"), next[0].clone());
        assert_eq!(row.revision, revision, "answer {answer}");
        let runs = direct.runs("verify");
        assert_eq!(&runs[..2], [open.clone(), done], "answer {answer}");
        assert_eq!(runs.len(), answer as usize + 1);
    }
    assert!(lost >= 5, "{lost} answers were lost");
}

/// The migration says so.
#[test]
fn a_role_that_may_read_and_write_the_tables_may_do_all() {
    let rig = PostgresRig::shared();
    let narrow = onedrop_kit::shared::unique_name();
    rig.sql(&format!(
        "CREATE ROLE {narrow} LOGIN;
         GRANT SELECT, INSERT, UPDATE, DELETE ON onedrop_job, onedrop_job_run TO {narrow};
         GRANT SELECT ON onedrop_ledger TO {narrow}",
    ));
    let host = rig.of_role(&narrow);
    let (row, begun) = host.begun("verify");
    let done = ended(&begun, JobOutcome::Ok, 0);
    assert!(host.changes(&JobChange { ended: Some(&done), ..touch(&row) }));
    assert_eq!(host.0.prune_job_runs(Duration::ZERO, 10, soon()).expect("a number"), 0);
    assert_eq!(host.runs("verify"), [done]);
    assert!(host.0.remove_job("verify", row.revision + 1, soon()).expect("an answer"));
    rig.sql(&format!("REVOKE UPDATE ON onedrop_job FROM {narrow}"));
    let refused = host.0.change_job(&touch(&job("new")), soon());
    assert!(matches!(&refused, Err(LedgerError::Denied(why)) if why.contains("onedrop_job")));
}

#[test]
fn people_can_read_the_tables_of_a_file() {
    let rig = SqliteRig::new();
    let host = Host::of(&rig);
    let (row, begun) = host.begun("verify");
    let done = ended(&begun, JobOutcome::Failed, 75);
    assert!(host.changes(&JobChange { ended: Some(&done), ..touch(&row) }));
    let sql = "SELECT printf('%s %s %.3f %d', job, outcome, due_at, exit_status)
               FROM onedrop_job_run WHERE ended_at IS NOT NULL";
    let said: String = rig.connection().query_row(sql, [], |row| row.get(0)).expect("a row");
    assert_eq!(said, "verify failed 1800000000.128 75");
}
