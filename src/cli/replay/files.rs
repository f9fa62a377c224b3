//! `onedrop replay SOURCE...`: a line for each message that could not be delivered, as it ends, on
//! standard output; progress on standard error, as a bar on a terminal, else a line every ten
//! seconds.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::cli::lines::Lines;
use crate::cli::terminal::{Paint, Screen};
use crate::cli::{CommandOutcome, counted};
use onedrop_admin::replay::files::{FilesToReplay, ReplayEnd, ReplayNews, from_files};
use onedrop_admin::replay::pace::MessageRate;
use onedrop_admin::replay::place::FileId;
use onedrop_admin::replay::report::{FileReport, FileState};
use onedrop_admin::replay::state::{DoneBefore, ReplayState, StatePurpose};
use onedrop_core::exit::Verdict;
use onedrop_core::ledger::of_the_ledger;
use onedrop_core::lock_key;
use onedrop_core::sender::Trust;
use onedrop_core::text::shown;
use onedrop_site::command_line::ReplayArgs;
use onedrop_site::config::Loaded;
use onedrop_site::service::{Service, Site};

/// Between two lines of progress.
const PAUSE: Duration = Duration::from_secs(10);
/// How long it may take to see whether the ledger is there.
const LEDGER_TIME: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct FileLine<'a> {
    place: &'a str,
    message_id: Option<String>,
    recipients: &'a [String],
    /// In a word: would be delivered, stored, found, already there, failed.
    state: &'static str,
    text: &'a str,
}

/// How many ended how.
#[derive(Default)]
struct ReplayCounts {
    would: u64,
    stored: u64,
    found: u64,
    there: u64,
    failed: u64,
    done: u64,
}

pub(super) fn run(args: &ReplayArgs, site: Site, screen: Screen) -> Result<CommandOutcome, String> {
    onedrop_site::telemetry::start();
    let rate = args.rate.as_deref().map(str::parse::<MessageRate>).transpose();
    let rate = rate.map_err(|error| format!("--rate: {error}"))?;
    // Files may hold forged Authentication-Results: no border has removed them.
    let site = site.but(|loaded| loaded.config.sent.trust = Trust::Never);
    let loaded = Arc::clone(&site.loaded);
    let parallel = usize::from(args.parallel);
    let service = Service::for_many(&site, parallel);
    let service = service.map_err(|failure| failure.to_string())?;
    if !args.dry_run {
        let checked = service.ledger.check_program(Instant::now() + LEDGER_TIME);
        checked.map_err(of_the_ledger)?;
    }
    let (to, mbox, site) = (args.to.clone(), args.mbox, site_in_state(&loaded));
    let purpose = StatePurpose { onedrop_replay: 1, to, mbox, site };
    let (state, done) = match args.state.as_deref() {
        None => (None, DoneBefore::default()),
        Some(path) if args.dry_run => (None, ReplayState::read(path, &purpose)?),
        Some(path) => {
            let (state, done) = ReplayState::open(path, &purpose)?;
            (Some(state), done)
        }
    };
    let state_file = args.state.as_deref().and_then(|path| fs::metadata(path).ok());
    let asked = FilesToReplay {
        sources: &args.sources,
        to: &args.to,
        mbox: args.mbox,
        subfolders: args.subfolders,
        dry_run: args.dry_run,
        rate,
        parallel,
        state: state_file.as_ref().map(FileId::of),
        done: &done,
    };
    let printer = Mutex::new(ReplayPrinter::new(args.json, screen));
    let ended = thread::scope(|scope| {
        // Its end is the run's.
        let (_runs, is_over) = sync_channel::<()>(0);
        scope.spawn(|| tell_progress(&printer, is_over));
        from_files(&asked, &service, state, &mut |news| of_all(&printer).print(news))
    });
    let (counts, written) = printer.into_inner().unwrap_or_else(PoisonError::into_inner).end();
    let errors = screen.of_stderr();
    let mut err = counts.told(errors);
    let is_empty = counts.all() == 0;
    let stopped = match ended {
        Ok(ReplayEnd { stopped: Some((place, why)), .. }) => {
            Some(format!("stopped at {place}: {why}"))
        }
        Ok(ReplayEnd { is_in_vain: true, .. }) => Some("none could be delivered".to_owned()),
        Ok(_) => None,
        Err(why) => Some(format!("stopped: {why}")),
    };
    let verdict = match &stopped {
        Some(_) => Verdict::Failed,
        None if counts.failed > 0 || is_empty => Verdict::No,
        None => Verdict::Done,
    };
    if let Some(why) = stopped {
        let why = errors.painted(&shown(&why), Paint::Bad);
        err.push_str(&format!("\n{why}\nthe rest is left: run it again when that is mended"));
    }
    if let Err(error) = written {
        return Err(format!("{err}\nstandard output: {error}"));
    }
    Ok(CommandOutcome { out: String::new(), err, verdict })
}

fn of_all(printer: &Mutex<ReplayPrinter>) -> MutexGuard<'_, ReplayPrinter> {
    printer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints how far the run is, whether there is news or not, until it is over.
fn tell_progress(printer: &Mutex<ReplayPrinter>, is_over: Receiver<()>) {
    while is_over.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
        of_all(printer).tell_progress();
    }
}

/// Names ledger and store: what was delivered there is not delivered elsewhere.
fn site_in_state(loaded: &Loaded) -> String {
    let config = &loaded.config;
    let text = format!("{:?}\0{:?}", config.ledger.url, config.store.url);
    lock_key::hex(&Sha256::digest(text))[..32].to_owned()
}

impl ReplayCounts {
    fn add(&mut self, state: FileState) {
        *match state {
            FileState::WouldBeDelivered => &mut self.would,
            FileState::Stored => &mut self.stored,
            FileState::Found => &mut self.found,
            FileState::AlreadyThere => &mut self.there,
            FileState::Failed => &mut self.failed,
        } += 1;
    }

    fn all(&self) -> u64 {
        self.would + self.stored + self.found + self.there + self.failed + self.done
    }

    fn told(&self, screen: Screen) -> String {
        let counts = [
            (self.would, "would be delivered", Paint::Good),
            (self.stored, "stored", Paint::Good),
            (self.found, "found", Paint::Good),
            (self.there, "already there", Paint::Good),
            (self.done, "done by an earlier run", Paint::Good),
            (self.failed, "failed", Paint::Bad),
        ];
        let told = counts.iter().filter(|(count, ..)| *count > 0);
        let told =
            told.map(|(count, what, paint)| screen.painted(&format!("{count} {what}"), *paint));
        let told: Vec<String> = told.collect();
        let separator = if told.is_empty() { "" } else { ": " };
        format!("{}{separator}{}", counted(self.all(), "message"), told.join(", "))
    }
}

/// Prints the result of each message, and how far the run is.
struct ReplayPrinter {
    screen: Screen,
    lines: Lines,
    counts: ReplayCounts,
    is_terminal: bool,
    began: Instant,
    source: PathBuf,
    units: (u64, u64),
    /// Messages that other deliveries hold now.
    waits: usize,
}

impl ReplayPrinter {
    fn new(json: bool, screen: Screen) -> ReplayPrinter {
        // The default target is standard error, and hidden where that is no terminal.
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{bar:24} {percent:>3} %, {eta} left: {wide_msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        ReplayPrinter {
            screen,
            lines: Lines::new(json, bar),
            counts: ReplayCounts::default(),
            is_terminal: io::stderr().is_terminal(),
            began: Instant::now(),
            source: PathBuf::new(),
            units: (0, 0),
            waits: 0,
        }
    }

    fn print(&mut self, news: ReplayNews) {
        match news {
            ReplayNews::Begins { path, units } => {
                self.lines.bar.set_length(units);
                self.lines.bar.set_position(0);
                self.lines.bar.reset_eta();
                (self.source, self.units) = (path, (0, units));
            }
            ReplayNews::At { units } => {
                self.lines.bar.set_position(units);
                self.units.0 = units;
            }
            ReplayNews::Ended(report) => self.ended(&report),
            ReplayNews::Done { count } => self.counts.done += count,
            ReplayNews::Changed { path } => {
                let line = format!(
                    "{}: changed since the state file was written: read again",
                    path.display()
                );
                self.say(&line);
            }
            ReplayNews::Note(text) => self.say(&text),
            ReplayNews::Waits { count } => self.waits = count,
        }
        if self.is_terminal {
            self.lines.bar.set_message(self.progress());
        }
    }

    fn tell_progress(&self) {
        match self.is_terminal {
            true => self.lines.bar.set_message(self.progress()),
            false => self.say(&self.progress()),
        }
    }

    /// `1200 messages (3 failed), 57/s, 43 % of old.mbox`
    fn progress(&self) -> String {
        let count = self.counts.all();
        let failed = match self.counts.failed {
            0 => String::new(),
            failed => format!(" ({failed} failed)"),
        };
        let secs = self.began.elapsed().as_secs().max(1);
        let rate = (count - self.counts.done) / secs;
        let percent = self.units.0 * 100 / self.units.1.max(1);
        let at = match self.waits {
            0 if self.source.as_os_str().is_empty() => String::new(),
            // The bar has it.
            0 if self.is_terminal => format!(", {}", self.source.display()),
            0 => format!(", {percent} % of {}", self.source.display()),
            waits => format!(", waiting for {waits} that other deliveries hold"),
        };
        format!("{}{failed}, {rate}/s{at}", counted(count, "message"))
    }

    fn say(&self, line: &str) {
        // Standard error's own errors cannot be reported anywhere.
        self.lines.bar.suspend(|| drop(writeln!(io::stderr(), "{}", shown(line))));
    }

    fn ended(&mut self, report: &FileReport) {
        self.counts.add(report.state);
        self.lines.print(&line(report), || text(report, self.screen));
    }

    /// The counts of the run, and whether all could be printed.
    fn end(self) -> (ReplayCounts, io::Result<()>) {
        (self.counts, self.lines.end())
    }
}

/// For people, who can do something about these alone.
fn text(report: &FileReport, screen: Screen) -> String {
    let paint = match report.state {
        FileState::Failed => Paint::Bad,
        FileState::WouldBeDelivered => Paint::Good,
        FileState::Stored | FileState::Found | FileState::AlreadyThere => return String::new(),
    };
    let state = screen.painted(report.state.name(), paint);
    let rest = format!("{}: {}", report.place, report.text);
    screen.fitted(&format!("{state} {}\n", shown(&rest)), 2)
}

fn line(report: &FileReport) -> FileLine<'_> {
    let id = report.message_id.as_deref();
    FileLine {
        place: &report.place,
        message_id: id.map(|id| String::from_utf8_lossy(id).into_owned()),
        recipients: &report.recipients,
        state: report.state.name(),
        text: &report.text,
    }
}
