//! `onedrop status`: one screen, is all well, and if not, which command next.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::CommandOutcome;
use super::terminal::{Paint, Screen};
use onedrop_admin::status::{
    self, LedgerFacts, SeenByHost, StatusFigures, StatusFinding, StatusGauges, StatusLevel,
};
use onedrop_core::exit::Verdict;
use onedrop_core::ledger::{LedgerError, of_the_ledger};
use onedrop_core::os::host_name;
use onedrop_core::text::shown;
use onedrop_site::command_line::StatusArgs;
use onedrop_site::service::Site;

/// What the ledger may take.
const LEDGER: Duration = Duration::from_secs(10);
/// What the mail store and Postfix may take, meanwhile.
const HOST: Duration = Duration::from_secs(10);
/// The column of a finding's sentence.
const TEXT: usize = 21;
/// What `--prometheus` makes may be read by all.
const READABLE: u32 = 0o644;

pub(super) fn run(
    args: &StatusArgs,
    site: &Site,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    if let Some(file) = &args.prometheus {
        return write_metrics(file, site);
    }
    let jobs = &site.loaded.config.jobs.jobs;
    let (facts, of_host) = thread::scope(|scope| {
        let host = scope.spawn(|| status::of_this_host(&site.loaded, HOST));
        (facts(site), host.join().unwrap_or_default())
    });
    let mut findings: Vec<StatusFinding> = match &facts {
        Ok(facts) => facts.findings(jobs),
        Err(error) => vec![status::without_ledger(error)],
    };
    if let Some(problem) = site.loaded.job_problems.first() {
        status::unread_jobs(&mut findings, problem);
    }
    // A store that hangs has its own finding by then.
    let is_well = |one: &StatusFinding| one.topic != "store" || one.level == StatusLevel::Ok;
    if facts.is_ok() && of_host.iter().all(is_well) {
        findings.extend(of_root(site));
    }
    findings.extend(of_host);
    let level = status::level(&findings);
    let out = match args.json {
        true => {
            let figures = facts.as_ref().ok().map(|facts| facts.figures(jobs));
            as_json(level, &findings, figures.as_ref())
        }
        false => as_text(level, &findings, screen),
    };
    let verdict = match level {
        StatusLevel::Ok => Verdict::Done,
        StatusLevel::Attention => Verdict::No,
        StatusLevel::Failed => Verdict::Failed,
    };
    Ok(CommandOutcome { out, err: String::new(), verdict })
}

fn facts(site: &Site) -> Result<LedgerFacts, LedgerError> {
    let ledger = site.ledger()?;
    LedgerFacts::read(&*ledger, Instant::now() + LEDGER)
}

/// The folder above all mailboxes, if it is another one than the ledger knows.
fn of_root(site: &Site) -> Option<StatusFinding> {
    let ledger = site.ledger().ok()?;
    let why =
        status::root_is_known(&site.loaded.config, &*ledger, Instant::now() + LEDGER).err()?;
    Some(StatusFinding::attention("store", why, "onedrop check"))
}

fn as_text(level: StatusLevel, findings: &[StatusFinding], screen: Screen) -> String {
    let how = match level {
        StatusLevel::Ok => "all is well",
        StatusLevel::Attention => "something wants attention",
        StatusLevel::Failed => "something could not be told",
    };
    let (version, host) = (env!("CARGO_PKG_VERSION"), host_name());
    let mut out = format!("onedrop {version} on {}: {how}\n", shown(&host));
    for StatusFinding { level, topic, text, command } in findings {
        let paint = match level {
            StatusLevel::Ok => Paint::Good,
            StatusLevel::Attention => Paint::Doubtful,
            StatusLevel::Failed => Paint::Bad,
        };
        let first = format!("{:<9}  ", level.word());
        let (rest, next) = (format!("{topic:<8}  {}", shown(text)), command.as_deref());
        let next = next.map(|command| format!("-> {}", shown(command))).unwrap_or_default();
        let columns = [&first, &rest, &next].map(|part| part.chars().count()).iter().sum::<usize>();
        // A command is there to be copied.
        let is_apart = screen.width.is_some_and(|width| columns + 2 > width);
        match (next.is_empty(), is_apart) {
            (true, _) => out += &screen.line(&first, paint, &rest, TEXT),
            (false, false) => out += &screen.line(&first, paint, &format!("{rest}  {next}"), TEXT),
            (false, true) => {
                out += &screen.line(&first, paint, &rest, TEXT);
                out += &format!("{:TEXT$}{next}\n", "");
            }
        }
    }
    out
}

fn as_json(
    level: StatusLevel,
    findings: &[StatusFinding],
    figures: Option<&StatusFigures>,
) -> String {
    let status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "host": host_name(),
        "level": level,
        "findings": findings,
        "figures": figures,
    });
    format!("{status:#}")
}

/// For node_exporter's textfile collector, where no server serves metrics. A ledger that is away is
/// one of them, and so is a mistake in `[jobs]`.
fn write_metrics(file: &Path, site: &Site) -> Result<CommandOutcome, String> {
    let until = Instant::now() + LEDGER;
    let checked = site.ledger().and_then(|ledger| {
        ledger.check_program(until)?;
        Ok(ledger)
    });
    let ledger_up = checked.is_ok();
    let store_up = {
        let ledger = checked.as_deref().ok();
        status::store_serves(&site.loaded.config, ledger, Instant::now() + HOST).is_ok()
    };
    let facts = checked.and_then(|ledger| LedgerFacts::without_attempts(&*ledger, until));
    let figures = facts.as_ref().ok().map(|facts| facts.figures(&site.loaded.config.jobs.jobs));
    let unrecorded = status::unrecorded_count(&site.loaded.shown_file(), Instant::now() + HOST);
    let jobs_config_ok = site.loaded.job_problems.is_empty();
    let seen = SeenByHost { ledger_up, store_up, jobs_config_ok, unrecorded };
    let text = StatusGauges::textfile(seen, figures.as_ref(), SystemTime::now());
    replace(file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
    let err = facts.err().map(|error| of_the_ledger(error) + "\n").unwrap_or_default();
    Ok(CommandOutcome { out: String::new(), err, verdict: Verdict::Done })
}

/// Whoever reads the file sees the old text or the new one.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let mut new = file.as_os_str().to_owned();
    // The collector reads files that end in `.prom` alone.
    new.push(format!(".{}", std::process::id()));
    let written = fs::write(&new, text)
        .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(READABLE)))
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        // Perhaps it is not there.
        let _ = fs::remove_file(&new);
    }
    written
}
