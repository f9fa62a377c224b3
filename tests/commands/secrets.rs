//! Which passwords a command reads: those of what it opens, and no other. If a user may not read
//! one that it needs, it names both.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::support::site::{Site, deliver, run};
use crate::support::{chown_recursive, letters, onedrop, set_mode, unix_user};

/// Passwords of these sections.
const SECRETS: [&str; 3] = ["ledger", "store", "directory"];

/// A configuration with a password in each section, of which those of `open` are open to others,
/// so that reading one is refused.
fn config(site: &Site<crate::support::site::Files>, open: &[&str]) -> PathBuf {
    let more = "[ledger]\npassword_file = \"$DIR/ledger.password\"\n\
                [store]\nurl = \"imap://127.0.0.1:1\"\npassword_file = \"$DIR/store.password\"\n\
                [directory]\ndomains = [\"mail.axial.net\"]\n\
                password_file = \"$DIR/directory.password\"\n[limits]\ndeadline_secs = 5\n\
                answer_secs = 2\n[lock]\nwait_secs = 1\n\
                [jobs.mine]\nevery = \"1h\"\ncommand = [\"true\"]\n";
    let config = site.config(&format!("without-{}", open.join("-")), more);
    for name in SECRETS {
        let file = config.with_file_name(format!("{name}.password"));
        fs::write(&file, "s3cret").expect("a file");
        set_mode(&file, if open.contains(&name) { 0o644 } else { 0o600 });
    }
    config
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn refuses(output: &Output, name: &str) -> bool {
    let told = told(output);
    told.contains(&format!("{name}.password_file: ")) && told.contains("is open to group or others")
}

#[test]
fn a_command_reads_the_passwords_of_what_it_opens() {
    let site = Site::embedded();
    // Which of the three are read.
    let commands: [(&[&str], &[&str]); 21] = [
        (&["migrate"], &["ledger"]),
        (&["trace", "scuba"], &["ledger"]),
        (&["status"], &["ledger"]),
        (&["purge"], &["ledger"]),
        (&["forget", "--since", "1h"], &["ledger"]),
        (&["lock", "list"], &["ledger"]),
        (&["lock", "holder", "n"], &["ledger"]),
        (&["with-lock", "n", "--", "true"], &["ledger"]),
        (&["jobs", "list"], &["ledger"]),
        (&["jobs", "show", "mine"], &["ledger"]),
        (&["jobs", "tick"], &["ledger"]),
        (&["jobs", "run", "mine", "--force"], &["ledger"]),
        (&["jobs", "check"], &["ledger"]),
        (&["jobs", "pause", "mine"], &["ledger"]),
        (&["jobs", "audit"], &["ledger"]),
        (&["verify"], &["ledger", "store"]),
        (&["settle"], &["ledger", "store"]),
        (&["replay", "--from-ledger"], &["ledger", "store"]),
        (&["replay", "--to", "scuba@mail.axial.net", "--dry-run", "/nowhere"], &SECRETS),
        (&["check"], &SECRETS),
        (&["lmtp", "--listen", "127.0.0.1:0"], &SECRETS),
    ];
    for name in SECRETS {
        let config = config(&site, &[name]);
        let letter = letters::from_ann(name);
        let delivered = deliver(&config, &["-d", "scuba@mail.axial.net"], letter.as_bytes());
        assert!(refuses(&delivered, name), "deliver, {name}: {}", told(&delivered));
        assert_eq!(delivered.status.code(), Some(75));
        for (command, reads) in &commands {
            // It would serve until a signal ends it.
            if command[0] == "lmtp" && !reads.contains(&name) {
                continue;
            }
            let output = ended(&config, command);
            let is_refused = refuses(&output, name);
            assert_eq!(is_refused, reads.contains(&name), "{command:?}, {name}: {}", told(&output));
        }
    }
    // All that is asked of the ledger alone is done without the others.
    let config = config(&site, &["store", "directory"]);
    for (command, reads) in commands {
        if reads.len() == 1 {
            let output = ended(&config, command);
            // 1: nothing found, or something wants attention.
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1)), "{command:?}: {code:?} {}", told(&output));
        }
    }
}

/// Without input. `with-lock` takes options before its two dashes.
fn ended(config: &Path, command: &[&str]) -> Output {
    if command[0] != "with-lock" {
        return run(config, command);
    }
    let mut wrapper = onedrop();
    wrapper.arg("with-lock").arg("--config").arg(config).args(&command[1..]);
    wrapper.stdin(Stdio::null()).output().expect("onedrop")
}

#[test]
fn who_may_not_read_a_password_is_named() {
    let site = Site::embedded();
    let config = config(&site, &[]);
    // All of it is this user's, but for one password.
    chown_recursive(&site.root, "nobody");
    set_mode(&site.root, 0o755);
    let file = config.with_file_name("store.password");
    std::os::unix::fs::chown(&file, Some(0), Some(0)).expect("chown");
    let nobody = unix_user("nobody");
    let as_nobody = |command: &[&str]| {
        let mut onedrop = onedrop();
        onedrop.args(command).arg("--config").arg(&config).stdin(Stdio::null());
        onedrop.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw()).output().expect("onedrop")
    };
    let migrated = as_nobody(&["migrate"]);
    assert!(migrated.status.success(), "{}", told(&migrated));
    let verified = as_nobody(&["verify"]);
    let says =
        format!("store.password_file: {}: permission denied to the user nobody", file.display());
    assert!(told(&verified).contains(&says), "{}", told(&verified));
    assert_eq!(verified.status.code(), Some(75));
}
