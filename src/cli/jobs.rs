//! `onedrop jobs`: what is on record of jobs, for people and for monitoring systems, and what an
//! administrator changes of it. Asking takes no lock.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::tz::TimeZone;
use jiff::{Timestamp, Unit};
use nix::sys::stat::Mode;

use super::CommandOutcome;
use super::terminal::{Paint, Screen};
use onedrop_core::exit::Verdict;
use onedrop_core::ledger::{JobLedger, of_the_ledger};
use onedrop_core::text;
use onedrop_locks::jobs::job_status::JobState;
use onedrop_site::command_line::{JobsArgs, JobsCommand};
use onedrop_site::config::{JobSettings, closest};
use onedrop_site::service::{Adapters, Site};

mod audit;
mod change;
mod check;
mod import;
mod list;
mod run;
mod show;
mod stop;
mod tick;

pub(super) use check::refuse;

/// What a question may take.
const TIME: Duration = Duration::from_secs(20);

/// `umask` is the caller's.
pub(super) fn run(
    args: JobsArgs,
    config: Option<&Path>,
    adapters: Adapters,
    umask: Mode,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let asking = |ask: &Asking<'_>| {
        let site = Site::new(super::load(config)?, adapters);
        let ledger = open(&site)?;
        ask(&site.loaded.config.jobs.jobs, &*ledger, Instant::now() + TIME)
    };
    match args.command {
        JobsCommand::Check { names, json } => {
            Ok(check::run(&names, json, config, adapters, screen))
        }
        JobsCommand::Run(args) => run::run(args, config, adapters, umask),
        JobsCommand::Tick { by_server } => tick::run(by_server, config, adapters, umask),
        JobsCommand::Import { crontab, system } => import::run(&crontab, system),
        JobsCommand::List { json } => {
            asking(&|jobs, ledger, until| list::run(jobs, ledger, json, until, screen))
        }
        JobsCommand::Show { name, json } => {
            asking(&|jobs, ledger, until| show::run(&name, jobs, ledger, json, until, screen))
        }
        JobsCommand::Pause { name, note, until: end } => asking(&|jobs, ledger, until| {
            change::pause(&name, &note, end.as_deref(), jobs, ledger, until)
        }),
        JobsCommand::Stop { name, note } => {
            asking(&|jobs, ledger, until| stop::run(&name, &note, jobs, ledger, until))
        }
        JobsCommand::Resume { name } => {
            asking(&|jobs, ledger, until| change::resume(&name, jobs, ledger, until))
        }
        JobsCommand::Reset { name } => {
            asking(&|jobs, ledger, until| change::reset(&name, jobs, ledger, until))
        }
        JobsCommand::MarkDone { name, due, at } => asking(&|jobs, ledger, until| {
            change::mark_done(&name, due.as_deref(), at.as_deref(), jobs, ledger, until)
        }),
        JobsCommand::Audit { remove_ghosts, json } => asking(&|jobs, ledger, until| {
            audit::run(jobs, ledger, remove_ghosts, json, until, screen)
        }),
    }
}

/// What is asked of the ledger about the jobs of the configuration.
type Asking<'a> =
    dyn Fn(&[JobSettings], &dyn JobLedger, Instant) -> Result<CommandOutcome, String> + 'a;

/// Whether these words ask for `jobs check`, whatever else is wrong with them.
pub(super) fn is_check(argv: &[OsString]) -> bool {
    let mut words = super::words_of(argv);
    words.next().is_some_and(|word| word == "jobs")
        && words.next().is_some_and(|word| word == "check")
}

fn open(site: &Site) -> Result<Arc<dyn JobLedger>, String> {
    let ledger: Arc<dyn JobLedger> = site.ledger().map_err(of_the_ledger)?;
    Ok(ledger)
}

/// The job of this name in the configuration.
///
/// # Errors
/// There is none, with the one that is probably meant.
fn configured<'a>(name: &str, jobs: &'a [JobSettings]) -> Result<&'a JobSettings, String> {
    jobs.iter().find(|job| job.name == name).ok_or_else(|| {
        let names = || jobs.iter().map(|job| job.name.as_str());
        let hint = match closest(name, names()) {
            Some(known) => format!("did you mean {known}?"),
            None if jobs.is_empty() => "it has no [jobs.NAME] at all".to_owned(),
            None => format!("jobs: {}", names().collect::<Vec<_>>().join(", ")),
        };
        let shown = text::escaped(name);
        let name = text::shortened(&shown, 100);
        format!("no job \"{name}\" in the configuration ({hint})")
    })
}

/// In UTC, for programs.
fn rfc_3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| time.to_string()).unwrap_or_default()
}

/// In a zone, for people: `2026-11-01 03:17:00 +01:00`.
fn local(time: SystemTime, zone: &TimeZone) -> String {
    let time = Timestamp::try_from(time).and_then(|time| time.round(Unit::Second));
    let Ok(time) = time.map(|time| time.to_zoned(zone.clone())) else { return String::new() };
    let zone = if *zone == TimeZone::UTC { "UTC" } else { "%:z" };
    time.strftime(&format!("%F %T {zone}")).to_string()
}

/// The colour of a job's state.
fn paint(state: JobState) -> Paint {
    match state {
        JobState::Ok | JobState::Running => Paint::Good,
        JobState::Disabled | JobState::New | JobState::Locked => Paint::Name,
        JobState::Ghost | JobState::Paused => Paint::Doubtful,
        JobState::Crashed | JobState::Failing | JobState::Overdue => Paint::Bad,
    }
}

fn ended(out: String, is_well: bool) -> CommandOutcome {
    let verdict = if is_well { Verdict::Done } else { Verdict::No };
    CommandOutcome { out, err: String::new(), verdict }
}
