//! The command line: parses argv, runs the command and ends the process. A usage error exits 75,
//! because Postfix returns the mail for most other statuses. A command that delivers nothing must
//! not lose a message that a transport pipes into it by mistake: if Postfix started it (pipe(8) and
//! local(8) set MAIL_CONFIG) and standard input is a pipe, it does nothing and exits 75. Otherwise
//! it never reads standard input.

use std::ffi::OsString;
use std::path::Path;
use std::time::SystemTime;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser as _, ValueEnum as _};
use nix::sys::stat::{Mode, SFlag, fstat, umask};

use onedrop_core::deliver::Failure;
use onedrop_core::exit::{self, Verdict};
use onedrop_core::ledger::{CANNOT_BE_REACHED, REFUSES_OUR_LOGIN};
use onedrop_core::outcome::Outcome;
use onedrop_core::text::{one_line, shortened};
use onedrop_site::command_line::{Cli, CliCommand, ColorWhen, manual, usage_problem};
use onedrop_site::config::{Config, Loaded, Opens, shown_file};
use onedrop_site::delivery_log::DeliveryLogRecord;
use onedrop_site::service::{Adapters, Site};
use onedrop_site::telemetry;

mod check;
mod deliver;
mod findings;
mod forget;
mod input;
mod jobs;
mod lines;
mod lmtp;
mod lock;

mod migrate;
mod pages;
mod purge;
mod replay;
mod resume;
mod settle;
mod status;
mod terminal;
mod trace;
mod verify;
mod web;
mod with_lock;

use terminal::Screen;

pub use migrate::say_that_migrate_waits;

/// Runs the command in `argv` and ends the process.
pub fn run(argv: impl IntoIterator<Item = OsString>, adapters: Adapters) -> ! {
    let argv: Vec<OsString> = argv.into_iter().collect();
    // Mail is private: files are made for their owner alone.
    let umask = umask(Mode::from_bits_truncate(0o077));
    let cli =
        Cli::try_parse_from(&argv).unwrap_or_else(|error| end_without_a_command(error, &argv));
    let config = cli.config.as_deref();
    let screen = Screen::of_stdout(cli.color);
    let read = |opens| load_despite_jobs(config, opens).map(|loaded| Site::new(loaded, adapters));
    let outcome = match cli.command {
        CliCommand::Deliver(args) => exit::end(&deliver::run(args, config, adapters)),
        CliCommand::WithLock(args) => {
            with_lock::run(args, config, adapters, umask, is_fed_by_postfix())
        }
        // Before the command runs: it may take long, and its exit status could return the mail.
        _ if is_fed_by_postfix() => put_off(DELIVERS_NOTHING.to_owned(), config),
        CliCommand::Lmtp(args) => {
            lmtp::run(&args, config, adapters, umask).map(|()| CommandOutcome::done(String::new()))
        }
        CliCommand::Web(args) => {
            web::run(&args, config, adapters).map(|()| CommandOutcome::done(String::new()))
        }
        CliCommand::Migrate(args) => read(migrate::opens(&args))
            .and_then(|site| migrate::run(&args, site, screen))
            .map(CommandOutcome::done),
        CliCommand::Check(args) => Ok(check::run(&args, config, adapters, screen)),
        CliCommand::Trace(args) => {
            read(Opens::Ledger).and_then(|site| trace::run(&args, &site, screen))
        }
        CliCommand::Status(args) => {
            read(Opens::Ledger).and_then(|site| status::run(&args, &site, screen))
        }
        CliCommand::Verify(args) => {
            read(Opens::Mailboxes).and_then(|site| verify::run(&args, &site, screen))
        }
        CliCommand::Jobs(args) => jobs::run(args, config, adapters, umask, screen),
        CliCommand::Settle(args) => {
            read(Opens::Mailboxes).and_then(|site| settle::run(&args, &site, screen))
        }
        CliCommand::Purge(args) => {
            read(Opens::Ledger).and_then(|site| purge::run(&args, &site, screen))
        }
        CliCommand::Forget(args) => {
            read(Opens::Ledger).and_then(|site| forget::run(&args, &site, screen))
        }
        CliCommand::Replay(args) => {
            let opens = if args.from_ledger { Opens::Mailboxes } else { Opens::Everything };
            read(opens).and_then(|site| replay::run(&args, site, screen))
        }
        CliCommand::Lock(args) => {
            read(Opens::Ledger).and_then(|site| lock::run(args, &site, screen))
        }
        CliCommand::Completions(args) => Ok(pages::completions(&args)),
        CliCommand::Man(args) => pages::man(&args),
    };
    let failed = |err| {
        let err = with_next_step(err, config);
        CommandOutcome { out: String::new(), err, verdict: Verdict::Failed }
    };
    let CommandOutcome { out, err, verdict } = outcome.unwrap_or_else(failed);
    exit::end_command(&out, &screen.of_stderr().fitted(&err, 2), verdict)
}

/// How a command that delivers nothing ends.
struct CommandOutcome {
    /// For standard output.
    out: String,
    /// For standard error.
    err: String,
    verdict: Verdict,
}

impl CommandOutcome {
    fn done(out: String) -> CommandOutcome {
        CommandOutcome { out, err: String::new(), verdict: Verdict::Done }
    }
}

/// `3 errors`, `1 error`.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// For what runs jobs.
fn load(config: Option<&Path>) -> Result<Loaded, String> {
    Config::load(config, Opens::Ledger).map_err(|errors| errors.to_string())
}

/// For what runs no jobs.
fn load_despite_jobs(config: Option<&Path>, opens: Opens) -> Result<Loaded, String> {
    Config::load_despite_jobs(config, opens).map_err(|errors| errors.to_string())
}

/// A ledger that is away: where it is named, and what comes next.
fn with_next_step(err: String, config: Option<&Path>) -> String {
    let is_away = [CANNOT_BE_REACHED, REFUSES_OUR_LOGIN]
        .iter()
        .any(|why| err.starts_with(&format!("ledger: {why}")));
    match load_despite_jobs(config, Opens::Ledger) {
        Ok(loaded) if is_away => {
            let place = loaded.ledger_set_in;
            format!("{err}\nledger.url: {place}; what is wrong with it: onedrop check")
        }
        _ => err,
    }
}

/// The time that `--since` names.
fn since(text: &str) -> Result<SystemTime, String> {
    since_by(text, SystemTime::now())
}

/// The same, by another clock than this host's.
fn since_by(text: &str, now: SystemTime) -> Result<SystemTime, String> {
    onedrop_core::verify::since(text, now).ok_or_else(|| {
        let text = one_line(text);
        format!("--since {text}: neither a duration (24h, 7d) nor a date (2026-11-01)")
    })
}

/// For a transport that calls another command than `deliver`.
const DELIVERS_NOTHING: &str = "this command delivers nothing, and Postfix gave it a message: \
    MAIL_CONFIG is set and standard input is a pipe; transports call `onedrop deliver` \
    (a script: use </dev/null)";

/// Bytes of a value that a refusal quotes.
const LONGEST_QUOTED: usize = 200;

/// Ends the process if the command line asks for help or is wrong. Postfix, and every caller of
/// `deliver`, gets one line with the status and the error; an administrator gets clap's whole text
/// on standard error.
fn end_without_a_command(mut error: clap::Error, argv: &[OsString]) -> ! {
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && value.len() > LONGEST_QUOTED
    {
        let value = shortened(value, LONGEST_QUOTED).into_owned();
        error.insert(ContextKind::InvalidValue, ContextValue::String(value));
    }
    let error = &error;
    let asks = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let color = value_of(argv, "--color").and_then(|said| ColorWhen::from_str(said, false).ok());
    let screen = Screen::of_stdout(color.unwrap_or(ColorWhen::Auto));
    let config = value_of(argv, "--config").map(Path::new);
    let shown = |error: &clap::Error| match screen.has_colors() {
        true => error.render().ansi().to_string(),
        false => error.to_string(),
    };
    let text = match error.kind() {
        // Examples and endings belong to the long help alone. Only for a terminal it is wrapped.
        ErrorKind::DisplayHelp => manual()
            .term_width(screen.width.unwrap_or(0))
            .try_get_matches_from(argv)
            .map_or_else(|with_manual| shown(&with_manual), |_| shown(error)),
        _ if asks => shown(error),
        _ => error.to_string(),
    };
    match (asks, is_fed_by_postfix()) {
        (true, true) => put_off(DELIVERS_NOTHING.to_owned(), config),
        (true, false) => exit::end_command(&text, "", Verdict::Done),
        (false, by_postfix) if words_of(argv).next().is_some_and(|word| word == "with-lock") => {
            let text = format!("usage: {}", usage_problem(error));
            logged(text.clone(), config);
            with_lock::refuse(&text, argv, by_postfix)
        }
        (false, false) if jobs::is_check(argv) => {
            let json = argv.iter().any(|word| word == "--json");
            let CommandOutcome { out, err, verdict } =
                jobs::refuse(&usage_problem(error), json, screen);
            exit::end_command(&out, &err, verdict)
        }
        (false, by_postfix) if by_postfix || argv.iter().any(|word| word == "deliver") => {
            put_off(format!("usage: {}", usage_problem(error)), config)
        }
        (false, _) => exit::end_command("", &text, Verdict::Failed),
    }
}

/// What an option such as `--color` says, where the command line asks for help or is wrong.
fn value_of<'a>(argv: &'a [OsString], option: &str) -> Option<&'a str> {
    // What comes after it is a wrapped command's own.
    let end = argv.iter().position(|word| word == "--").unwrap_or(argv.len());
    let argv = &argv[..end];
    let said = argv.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].to_str());
    let joined = argv.iter().map(|one| one.to_str()?.strip_prefix(option)?.strip_prefix('='));
    said.chain(joined).flatten().last()
}

/// The command's name, and what follows it but options, wherever `--config` stands.
fn words_of(argv: &[OsString]) -> impl Iterator<Item = &OsString> {
    let mut words = argv.iter().skip(1);
    std::iter::from_fn(move || {
        loop {
            let word = words.next()?;
            if word == "--config" || word == "--color" {
                words.next();
            } else if !word.as_encoded_bytes().starts_with(b"-") {
                return Some(word);
            }
        }
    })
}

/// Ends a delivery that its command line cannot be read for. No ledger has it on record: of mail
/// that Postfix brings, the host's log has it, under the configuration that would have been read.
fn put_off(text: String, config: Option<&Path>) -> ! {
    exit::end(&logged(text, config))
}

fn logged(text: String, config: Option<&Path>) -> Outcome {
    let outcome = Failure::Setup(text).outcome();
    if is_fed_by_postfix() {
        telemetry::start();
        let file = shown_file(config);
        DeliveryLogRecord { unrecorded: Some(&file), ..<_>::default() }.log(&outcome);
    }
    outcome
}

/// Whether Postfix started this process and standard input is a pipe: then the pipe holds a
/// message.
fn is_fed_by_postfix() -> bool {
    let kind =
        fstat(std::io::stdin()).map(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT);
    std::env::var_os("MAIL_CONFIG").is_some()
        && matches!(kind, Ok(SFlag::S_IFIFO | SFlag::S_IFSOCK))
}
