//! `onedrop completions` and `onedrop man`: the generated files of `completions/` and `man/`, as
//! the package has them, for those who have the program alone. A test names a page that is missing.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::{Command, Stdio};

use super::CommandOutcome;
use onedrop_core::text::shown;
use onedrop_site::command_line::{CompletionsArgs, ManArgs, Shell};

macro_rules! pages {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../man/", $name)))),*]
    };
}

/// By the names of their files.
const PAGES: &[(&str, &str)] = pages![
    "onedrop.1",
    "onedrop-check.1",
    "onedrop-completions.1",
    "onedrop-deliver.1",
    "onedrop-forget.1",
    "onedrop-jobs.1",
    "onedrop-jobs-audit.1",
    "onedrop-jobs-check.1",
    "onedrop-jobs-import.1",
    "onedrop-jobs-list.1",
    "onedrop-jobs-mark-done.1",
    "onedrop-jobs-pause.1",
    "onedrop-jobs-reset.1",
    "onedrop-jobs-resume.1",
    "onedrop-jobs-run.1",
    "onedrop-jobs-show.1",
    "onedrop-jobs-stop.1",
    "onedrop-jobs-tick.1",
    "onedrop-lmtp.1",
    "onedrop-lock.1",
    "onedrop-lock-assert.1",
    "onedrop-lock-holder.1",
    "onedrop-lock-list.1",
    "onedrop-lock-release.1",
    "onedrop-lock-steal.1",
    "onedrop-man.1",
    "onedrop-migrate.1",
    "onedrop-purge.1",
    "onedrop-replay.1",
    "onedrop-settle.1",
    "onedrop-status.1",
    "onedrop-trace.1",
    "onedrop-verify.1",
    "onedrop-web.1",
    "onedrop-with-lock.1",
    "onedrop.toml.5",
];

pub(super) fn completions(args: &CompletionsArgs) -> CommandOutcome {
    let text = match args.shell {
        Shell::Bash => include_str!("../../completions/onedrop.bash"),
        Shell::Zsh => include_str!("../../completions/_onedrop"),
        Shell::Fish => include_str!("../../completions/onedrop.fish"),
    };
    CommandOutcome::done(text.to_owned())
}

/// On a terminal man(1) shows the page, if it is there.
pub(super) fn man(args: &ManArgs) -> Result<CommandOutcome, String> {
    let words = args.command.join("-");
    let name = match words.as_str() {
        "" | "onedrop" => "onedrop.1".to_owned(),
        "onedrop.toml" => "onedrop.toml.5".to_owned(),
        words => format!("onedrop-{}.1", words.trim_start_matches("onedrop-")),
    };
    let page = PAGES.iter().find(|(known, _)| *known == name).map(|(_, page)| *page);
    let Some(page) = page else {
        let asked = args.command.join(" ");
        return Err(format!("no page about {}: onedrop --help names all commands", shown(&asked)));
    };
    let is_shown = io::stdout().is_terminal() && show(page).is_ok_and(|ended| ended);
    Ok(CommandOutcome::done(if is_shown { String::new() } else { page.to_owned() }))
}

/// Whether man(1) has shown it.
fn show(page: &str) -> io::Result<bool> {
    let mut child = Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // It may be left before its end.
        let _ = input.write_all(page.as_bytes());
    }
    Ok(child.wait()?.success())
}
