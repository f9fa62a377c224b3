//! The tour, word by word: its blocks run one after the other in one shell, with nothing of the
//! environment set, and say what the page shows, each ending among it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::page::Page;
use crate::shown::{is_as_shown, said_and_shown};
use crate::support::postfix::{STOCK_MASTER_CF, stopped};
use crate::support::{TempRoot, onedrop_path};

/// The only thing that is not done: to build what the tests have built.
const CARGO: &str = "#!/bin/sh
[ \"$*\" = build ]
";

#[test]
fn the_tour_shows_what_happens() {
    let root = TempRoot::new();
    for folder in ["conf", "fixtures"] {
        symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), root.join(folder))
            .expect("a link");
    }
    let cargo = root.write("bin/cargo", CARGO);
    fs::set_permissions(cargo, Permissions::from_mode(0o755)).expect("a mode");
    // As on most hosts.
    let postfix = stopped(&root, "", STOCK_MASTER_CF);
    fs::create_dir_all(root.join("target/debug")).expect("a folder");
    symlink(onedrop_path(), root.join("target/debug/onedrop")).expect("a link");

    let pages = ["docs/tour.md", "docs/tour-more.md"].map(Page::read);
    let blocks: Vec<_> = pages.iter().flat_map(said_and_shown).collect();
    // A mark after each block, and an end where one fails.
    let script: String =
        blocks.iter().map(|block| format!("{}echo '--- end of block'\n", block.commands)).collect();
    let output = Command::new("sh")
        .args(["-e", "-c", &format!("exec 2>&1\n{script}")])
        .env_clear()
        .env("PATH", format!("{}/bin:{}:/usr/bin:/bin", root.display(), postfix.display()))
        .current_dir(&*root)
        .output()
        .expect("sh");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}\n{said}", output.status);
    let all: Vec<&str> = said.split("--- end of block\n").collect();
    assert_eq!(all.len(), blocks.len() + 1, "{said}");
    for (block, said) in blocks.iter().zip(all) {
        let shown = block.shown.as_deref().unwrap_or("...\n");
        assert!(is_as_shown(said, shown), "{}\nshown:\n{shown}\nsaid:\n{said}", block.commands);
    }
    // Each way in which a delivery and a doubt can end, whatever the killed ones left.
    for ending in [
        "stored account=doug ",
        "already there account=doug ",
        "found account=doug ",
        "4.3.0 store: ",
        "exit 75",
        "error    doubt: ",
        "repaired doubt: ",
    ] {
        let is_shown = |text: &str| text.lines().any(|line| line.starts_with(ending));
        assert!(is_shown(&said), "no line begins with {ending:?}:\n{said}");
        assert!(
            blocks.iter().any(|block| block.shown.as_deref().is_some_and(is_shown)),
            "{ending}"
        );
    }
    assert!(!root.join("demo").exists(), "it is left as it was");
}
