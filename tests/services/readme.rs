//! What a new user does first: the README's commands, word by word.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::page::Page;
use crate::set_up::README_SET_UP;
use crate::shown::{ShownBlock, is_as_shown, said_and_shown};
use crate::support::postfix::{STOCK_MASTER_CF, stopped};
use crate::support::{TempRoot, onedrop_path};

const TRIAL: &str = "Try it";

/// The commands of the trial, with what README shows below them. All others in README are those of
/// its set-up, which `set_up.rs` runs.
fn trial() -> Vec<ShownBlock> {
    let blocks = said_and_shown(&Page::read("README.md"));
    let (trial, others): (Vec<_>, Vec<_>) =
        blocks.into_iter().partition(|block| block.section == TRIAL);
    assert!(others.iter().all(|block| block.section == README_SET_UP));
    trial
}

/// Runs a command as in a checkout, with the program that the tests have built, on a host whose
/// Postfix is installed, does not run, and knows nothing of it.
fn run(command: &str, checkout: &Path) -> Output {
    assert!(command.starts_with("cargo run -- "), "{command}");
    let command = command.replace("cargo run --", &onedrop_path().display().to_string());
    let mut shell = Command::new("sh");
    let bin = stopped(checkout, "", STOCK_MASTER_CF);
    let path = format!("{}:/usr/bin:/bin", bin.display());
    shell.args(["-c", &command]).env_clear().env("PATH", path).current_dir(checkout);
    shell.output().expect("sh")
}

#[test]
fn the_trial_delivers_once_and_shows_what_it_did() {
    let root = TempRoot::new();
    for folder in ["conf", "fixtures"] {
        let link = std::os::unix::fs::symlink(
            Path::new(env!("CARGO_MANIFEST_DIR")).join(folder),
            root.join(folder),
        );
        link.expect("a link");
    }
    let trial = trial();
    let [deliver, look] = &trial[..] else { panic!("{} commands", trial.len()) };
    let first = run(&deliver.commands, &root);
    let said = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(first.status.success(), "{first:?}");
    for copy in ["scuba mailbox=INBOX", "doug mailbox=INBOX", "lisa mailbox=Sent"] {
        assert!(said.contains(&format!("stored account={copy} ")), "{said}");
    }
    shows(deliver, &said);
    let again = run(&deliver.commands, &root);
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(
        again.status.success() && said.matches("already there account=").count() == 3,
        "{said}"
    );

    let files =
        |path: &str| fs::read_dir(root.join("demo/mail").join(path)).expect("a folder").count();
    assert_eq!(
        [files("scuba/Maildir/new"), files("doug/Maildir/new"), files("lisa/Maildir/.Sent/cur")],
        [1, 1, 1]
    );

    let output = run(&look.commands, &root);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    shows(look, &told);
    let host = nix::unistd::gethostname().expect("a name").to_string_lossy().into_owned();
    for fact in [
        "subject     Our next meeting \u{2013} Tuesday?",
        "in-reply-to <first-meeting@mail.axial.net>",
        "references  <first-meeting@mail.axial.net>",
        "from        Lisa <lisa@gmail.com>",
        "to          Doug <doug@mail.axial.net>",
        "part        1 text/plain ",
        "part        2 text/csv \"agenda.csv\" 48 bytes",
        &format!(" {host} pid "),
        ": delivered 2.0.0 in ",
    ] {
        assert!(told.contains(fact), "{fact:?} is not in\n{told}");
    }
    assert_eq!(told.matches("\ncopy ").count(), 3, "{told}");
    assert_eq!(told.matches("\nattempt ").count(), 4, "one for each recipient and run: {told}");
}

#[track_caller]
fn shows(block: &ShownBlock, said: &str) {
    let shown = block.shown.as_deref().expect("README shows what it says");
    assert!(is_as_shown(said, shown), "shown:\n{shown}\nsaid:\n{said}");
}
