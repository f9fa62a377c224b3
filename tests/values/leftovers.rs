//! What a killed test leaves in the folders for temporary files goes when another one begins.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use onedrop_kit::{TempRoot, clean, wait_until};

#[test]
fn a_folder_goes_when_its_owner_has_ended() {
    let mut owner = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a process");
    let folder = TempRoot::for_database_of(owner.id()).keep();
    fs::create_dir_all(folder.join("data/base")).expect("folders");
    let parent = folder.parent().expect("a folder");
    clean(parent);
    assert!(folder.join("data/base").exists(), "its owner lives");
    owner.kill().expect("killed");
    owner.wait().expect("its end");
    let is_gone = || {
        clean(parent);
        !folder.exists()
    };
    // Others may be removing it as well.
    assert!(wait_until(Duration::from_secs(10), is_gone));
}
