//! How jobs stand, and what the last runs said.

use askama::Template;

use super::PagesState;
use super::page::{Head, Html, NotShown, StateMark, When};
use onedrop_core::ledger::{JobRow, JobRun, LockRow};
use onedrop_locks::jobs::job_status::{JobStanding, JobState, JobsSeen};

/// Runs of a job that are shown.
const RUNS: u32 = 10;

struct JobPart {
    name: String,
    mark: StateMark,
    schedule: String,
    last: Option<When>,
    next: Option<When>,
    waits_for: String,
    errors: u32,
    last_error: String,
    holder: String,
    runs: Vec<JobRunRow>,
    /// There are more.
    is_cut: bool,
    /// To be pasted.
    command: String,
}

struct JobRunRow {
    due: When,
    try_no: u32,
    started: When,
    ended: Option<When>,
    mark: StateMark,
    host: String,
    said: String,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    head: Head,
    /// What is wrong with the configuration's jobs.
    problem: Option<String>,
    jobs: Vec<JobPart>,
}

pub fn page(site: &PagesState) -> Result<Html, NotShown> {
    let until = site.until();
    let seen = JobsSeen::read(&*site.ledger, until)?;
    let known = site.jobs.known();
    let mut jobs = Vec::new();
    for job in &known.jobs {
        let standing = JobStanding::of(job, &known.jobs, &seen);
        let mut part = part(&job.name, standing.state, standing.row, standing.holder);
        part.schedule = job.schedule.to_string();
        part.next = standing.next.map(When::of);
        part.waits_for = standing.waits_for.join(", ");
        jobs.push(part);
    }
    let others = seen.rows.iter().filter(|row| known.jobs.iter().all(|job| job.name != row.name));
    for row in others {
        let mut part = part(&row.name, JobState::Ghost, Some(row), seen.holders.get(&row.name));
        if known.problem.is_some() {
            // It may well be in the configuration.
            part.mark = StateMark::waits("on record");
            part.command = String::new();
        }
        jobs.push(part);
    }
    for job in &mut jobs {
        let runs = site.ledger.job_runs(&job.name, RUNS + 1, until)?;
        job.is_cut = runs.len() > RUNS as usize;
        job.runs = runs.into_iter().take(RUNS as usize).map(run).collect();
    }
    let problem = known.problem.clone();
    Html::of(&JobsPage { head: site.head("Jobs", "/jobs"), problem, jobs })
}

fn part(name: &str, state: JobState, row: Option<&JobRow>, holder: Option<&LockRow>) -> JobPart {
    let command = match state {
        JobState::Paused => format!("onedrop jobs resume {name}"),
        JobState::Failing | JobState::Crashed | JobState::Overdue => {
            format!("onedrop jobs show {name}")
        }
        JobState::Ghost => "onedrop jobs audit --remove-ghosts".to_owned(),
        JobState::Locked => "onedrop lock list".to_owned(),
        JobState::Disabled | JobState::New | JobState::Running | JobState::Ok => String::new(),
    };
    JobPart {
        name: name.to_owned(),
        mark: mark(state),
        schedule: row.map(|row| row.schedule.clone()).unwrap_or_default(),
        last: row.and_then(|row| row.last_end.or(row.last_start)).map(When::of),
        next: None,
        waits_for: String::new(),
        errors: row.map_or(0, |row| row.errors),
        last_error: row.map(|row| row.last_error.clone()).unwrap_or_default(),
        holder: holder
            .map(|row| format!("{}:{}", row.holder.host, row.holder.pid))
            .unwrap_or_default(),
        runs: Vec::new(),
        is_cut: false,
        command,
    }
}

fn mark(state: JobState) -> StateMark {
    let word = state.as_str();
    match state {
        JobState::Ok | JobState::Running => StateMark::good(word),
        JobState::Failing | JobState::Crashed | JobState::Overdue => StateMark::bad(word),
        JobState::Ghost | JobState::Locked => StateMark::doubt(word),
        JobState::Disabled | JobState::New | JobState::Paused => StateMark::waits(word),
    }
}

fn run(run: JobRun) -> JobRunRow {
    let mark = match run.outcome {
        None => StateMark::waits("no end on record"),
        Some(outcome) => match outcome.as_str() {
            "ok" => StateMark::good("ok"),
            word if word.starts_with("skipped") => StateMark::waits(word),
            word => StateMark::bad(word),
        },
    };
    let said = if run.output.is_empty() { run.reason } else { run.output };
    JobRunRow {
        due: When::of(run.due),
        try_no: run.try_no,
        started: When::of(run.started_at),
        ended: run.ended_at.map(When::of),
        mark,
        host: run.host,
        said,
    }
}
