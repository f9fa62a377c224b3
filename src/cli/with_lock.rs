//! `onedrop with-lock`: runs a command while it holds a named lock. Standard input, standard output
//! and the exit status are the command's. Postfix may start it (pipe(8)): then every ending but the
//! command's own status is temporary.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use nix::sys::stat::Mode;

use onedrop_core::exit::{self, BUSY, LockCodes, LockEnding};
use onedrop_core::ledger::{LockHolder, Locks, RandomValue, of_the_ledger};
use onedrop_core::os::host_name;
use onedrop_core::text;
use onedrop_locks::lock::{
    self, CommandPlace, CommandSpec, Company, Line, LockTerms, LockWish, NoRecord, Wrapping,
};
use onedrop_site::command_line::{Codes, OnBusy, WithLockArgs};
use onedrop_site::config::Opens;
use onedrop_site::service::{Adapters, Site};
use onedrop_site::telemetry;

/// Bytes of a note or a program's name on record.
const LONGEST: usize = 200;

/// What runs with `--hold`; it ends with 0 once the caller has closed its pipe. It reads in the
/// background, so that SIGTERM interrupts its wait: then the caller hears that, and has the grace
/// to close it. A terminal's signals reach the wrapper as well, which ends it. That nothing reads
/// what it says ends no lock: a caller that is gone has closed its pipe, too. What reads ignores
/// SIGTERM from its start; the shell may have its status where the wait was interrupted.
const HOLD: [&str; 3] = [
    "/bin/sh",
    "-c",
    "trap '' INT HUP QUIT PIPE TERM
     exec 3<&0
     cat <&3 >/dev/null &
     trap 'echo lost 2>/dev/null' TERM
     echo \"held $ONEDROP_LOCK_TOKEN $ONEDROP_LOCK_OWNER\" 2>/dev/null
     while wait $!; status=$?; [ $status -gt 128 ] && kill -0 $! 2>/dev/null; do :; done
     [ $status -le 128 ] || { wait $!; again=$?; [ $again = 127 ] || status=$again; }
     exit $status",
];

/// Runs the command and ends the process. `umask` is the caller's.
pub(super) fn run(
    args: WithLockArgs,
    config: Option<&Path>,
    adapters: Adapters,
    umask: Mode,
    is_fed_by_postfix: bool,
) -> ! {
    let quiet = args.on_busy == OnBusy::Quiet;
    let codes = LockCodes {
        mail: args.codes == Codes::Mail || args.codes == Codes::Auto && is_fed_by_postfix,
        busy: args.busy_exit.unwrap_or(if quiet { 0 } else { BUSY }),
        quiet,
    };
    exit::log_panics();
    let work = AssertUnwindSafe(|| run_under_lock(args, config, adapters, umask, codes.mail));
    let ending = catch_unwind(work)
        .unwrap_or_else(|payload| Err(format!("internal error: {}", text::of_panic(payload))));
    exit::end_with_lock(&ending.unwrap_or_else(LockEnding::Failed), codes)
}

/// Ends the process after a command line that is not understood.
pub(super) fn refuse(text: &str, argv: &[OsString], is_fed_by_postfix: bool) -> ! {
    let own = argv.iter().map(|word| word.as_os_str()).take_while(|word| *word != "--");
    let own: Vec<&OsStr> = own.collect();
    let asks_for_mail = own.windows(2).any(|pair| pair == ["--codes", "mail"])
        || own.iter().any(|word| *word == "--codes=mail");
    let codes = LockCodes { mail: is_fed_by_postfix || asks_for_mail, busy: BUSY, quiet: false };
    exit::end_with_lock(&LockEnding::Failed(text.to_owned()), codes)
}

fn run_under_lock(
    args: WithLockArgs,
    config: Option<&Path>,
    adapters: Adapters,
    umask: Mode,
    is_for_mail: bool,
) -> Result<LockEnding, String> {
    let terms = LockTerms::new(args.ttl, args.grace)?;
    let site = Site::new(super::load_despite_jobs(config, Opens::Ledger)?, adapters);
    let ledger = site.ledger().map_err(of_the_ledger)?;
    telemetry::start();
    let command = match args.hold {
        true => HOLD.map(OsString::from).into(),
        false => args.command,
    };
    let mut command = command.into_iter();
    let program = command.next().unwrap_or_default();
    let owner = RandomValue::default();
    let shown = |text: &str| text::shortened(text, LONGEST).into_owned();
    let holder = LockHolder {
        host: host_name(),
        pid: std::process::id(),
        // Not its arguments: they may hold a password.
        command: match args.hold {
            true => "--hold".to_owned(),
            false => shown(&program.to_string_lossy()),
        },
        note: shown(&args.note),
        slots: args.slots,
    };
    let variables = match config.map(std::path::absolute) {
        Some(Ok(path)) => vec![("ONEDROP_CONFIG".into(), path.into())],
        _ => Vec::new(),
    };
    let spec = CommandSpec {
        program,
        args: command.collect(),
        variables,
        company: match args.foreground || has_terminal() {
            true => Company::CallersGroup,
            false => Company::OwnGroup,
        },
        umask,
        place: CommandPlace::default(),
        is_hold: args.hold,
        name: args.name.clone(),
        slots: args.slots,
        owner,
        terms,
    };
    let (name, slots, wait) = (args.name, args.slots, args.wait);
    let line = Some(Line::of(&format!("{:?}", site.loaded.config.ledger.url), &name, slots));
    let wish = LockWish { name, slots, terms, wait, owner, holder, line };
    let timeout = args.timeout.filter(|timeout| !timeout.is_zero());
    // Postfix would take it for the command's.
    let say = if is_for_mail { |text: &str| tracing::warn!("{text}") } else { exit::tell };
    let wrapping = Wrapping { wish, spec, timeout, is_for_mail, label: None, say };
    let locks: Arc<dyn Locks> = ledger;
    Ok(lock::run(&wrapping, locks, Box::new(NoRecord)))
}

/// Whether a terminal may stop and end this process and its command together.
fn has_terminal() -> bool {
    std::io::stdin().is_terminal() || File::open("/dev/tty").is_ok()
}
