//! On a terminal: job control of a shell, and keys.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use nix::pty::openpty;

use crate::place::{Place, SOON};
use crate::support::{onedrop_path, wait_until};

/// An interactive shell on a terminal of its own.
struct Terminal {
    keys: File,
    shown: Arc<Mutex<String>>,
    shell: std::process::Child,
}

impl Terminal {
    fn new(place: &Place) -> Terminal {
        let pty = openpty(None, None).expect("a terminal");
        let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        // A session of its own, whose terminal is standard input.
        let shell = Command::new("setsid")
            .args(["--ctty", "bash", "--norc", "--noprofile", "-i"])
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .env("PS1", "$ ")
            .env("ONEDROP_CONFIG", &place.config)
            .env("ONEDROP", onedrop_path())
            .current_dir(&*place.site.root)
            .spawn()
            .expect("setsid");
        let keys = File::from(pty.master);
        let (mut screen, shown) = (keys.try_clone().expect("a descriptor"), Arc::default());
        let seen: Arc<Mutex<String>> = Arc::clone(&shown);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = screen.read(&mut bytes) {
                seen.lock().expect("text").push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Terminal { keys, shown, shell }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("keys");
    }

    /// At the prompt: before it the shell sets the terminal, and the kernel may lose what is typed
    /// meanwhile.
    #[track_caller]
    fn runs(&mut self, command: &str) {
        self.ends_with("$ ");
        self.types(&format!("{command}\n"));
    }

    #[track_caller]
    fn ends_with(&self, text: &str) {
        self.becomes("ends not with", text, |shown| shown.ends_with(text));
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        self.becomes("has not", text, |shown| shown.contains(text));
    }

    #[track_caller]
    fn becomes(&self, wrong: &str, text: &str, is_right: impl Fn(&str) -> bool) {
        let shown = || self.shown.lock().expect("text").clone();
        assert!(wait_until(SOON, || is_right(&shown())), "{wrong} {text:?}:\n{}", shown());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn a_command_on_a_terminal_reads_keys_and_is_stopped_and_interrupted_with_its_caller() {
    let place = Place::new();
    let mut terminal = Terminal::new(&place);
    terminal.runs("$ONEDROP with-lock n -- sh -c 'read line; echo got-$line; exit 4'");
    assert!(wait_until(SOON, || place.lock(&["holder", "n"]).code == Some(0)));
    terminal.types("keys\n");
    terminal.shows("got-keys");
    terminal.runs("echo status-$?");
    terminal.shows("status-4");

    // One interrupt, not two.
    terminal.runs(
        "$ONEDROP with-lock n -- bash -c 'trap \"echo in\"\"terrupted\" INT; \
         echo rea\"dy\"; for i in 1 2 3 4 5 6; do sleep 0.5; done; echo done-here'",
    );
    terminal.shows("ready");
    terminal.types("\x03");
    terminal.shows("interrupted");
    terminal.shows("\ndone-here");
    let shown = terminal.shown.lock().expect("text").clone();
    assert_eq!(shown.matches("interrupted").count(), 1, "{shown}");

    terminal.runs(
        "$ONEDROP with-lock n -- sh -c 'echo $$ >pid; echo be''gan; read line; echo last-$line'",
    );
    terminal.shows("began");
    terminal.types("\x1a");
    terminal.shows("Stopped");
    // The shell waits for the wrapper alone: a command that has not come to its stop yet would
    // still read the first key.
    let pid = std::fs::read_to_string(place.path("pid")).expect("a number");
    let stat = format!("/proc/{}/stat", pid.trim());
    let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
    assert!(wait_until(SOON, is_stopped), "the command runs on");
    terminal.runs("echo at-the-pro''mpt");
    terminal.shows("at-the-prompt");
    terminal.runs("fg");
    // The shell names what it continues.
    terminal.ends_with("last-$line'\r\n");
    terminal.types("word\n");
    terminal.shows("last-word");
    assert!(wait_until(SOON, || place.lock(&["holder", "n"]).code == Some(1)));
}
