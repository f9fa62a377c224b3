//! However many threads and signals come to the end of a process at once, it has one: the first
//! one's words, and its exit status.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;
use onedrop::exit::{self, LockCodes, LockEnding, Verdict};
use onedrop::outcome::{Outcome, Status};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

use crate::support::wait_until;

/// Set for the process that ends.
const IS_TO_END: &str = "ONEDROP_TEST_IS_TO_END";
const RUNS: usize = 40;

/// Each kind of ending, with what it writes on standard output and its status.
const ENDINGS: [(&str, i32); 6] = [
    ("stored by main\n", 0),
    ("4.3.0 deadline of the watchdog\n", 75),
    ("5.1.1 nobody of that name\n", 67),
    ("told by a command\n", 1),
    ("4.3.0 the lock is held\n", 75),
    ("4.3.0 ended by SIGTERM\n", 75),
];

fn end_by(number: usize) {
    let text = ENDINGS[number].0.trim_end();
    let after_status = || text.split_once(' ').map_or("", |(_, text)| text).to_owned();
    match number {
        0 => exit::end(&Outcome::delivered(text)),
        1 => exit::end(&Outcome::TempFail(Status::TEMPORARY, after_status())),
        2 => exit::end(&Outcome::PermFail(Status::UNKNOWN_MAILBOX, after_status())),
        3 => exit::end_command(text, "", Verdict::No),
        4 => {
            let codes = LockCodes { mail: true, busy: 200, quiet: false };
            exit::end_with_lock(&LockEnding::Busy(after_status()), codes)
        }
        _ => kill(getpid(), Signal::SIGTERM).expect("our own process"),
    }
}

/// The process that the other test starts.
#[test]
fn a_process_that_ends_in_all_ways_at_once() {
    if std::env::var_os(IS_TO_END).is_none() {
        return;
    }
    exit::end_at_signals();
    let together = Barrier::new(ENDINGS.len());
    thread::scope(|scope| {
        for number in 0..ENDINGS.len() {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                end_by(number);
            });
        }
    });
}

/// A log that panics.
struct BrokenLog;

impl<S: Subscriber> Layer<S> for BrokenLog {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        panic!("the log is broken");
    }
}

/// The process that the next test starts: whoever came first panics, and another one would end.
#[test]
fn a_process_that_panics_at_its_end() {
    if std::env::var_os(IS_TO_END).is_none() {
        return;
    }
    let log = Registry::default().with(BrokenLog);
    let first = || {
        let codes = LockCodes { mail: false, busy: 200, quiet: true };
        exit::end_with_lock(&LockEnding::Busy("held".to_owned()), codes)
    };
    let first = AssertUnwindSafe(|| tracing::subscriber::with_default(log, first));
    assert!(catch_unwind(first).is_err(), "it panicked");
    end_by(0);
}

#[test]
fn a_panic_at_the_end_ends_the_process_and_leaves_nobody_waiting() {
    let mut command = Command::new(std::env::current_exe().expect("our own path"));
    command.args(["one_ending::a_process_that_panics_at_its_end", "--exact"]);
    command.env(IS_TO_END, "yes").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("a process");
    let mut status = None;
    let has_ended = wait_until(Duration::from_secs(20), || {
        status = child.try_wait().expect("our child");
        status.is_some()
    });
    child.kill().expect("our child");
    assert!(has_ended, "it waits for ever");
    assert_eq!(status.and_then(|status| status.code()), Some(75));
}

#[test]
fn who_comes_first_ends_the_process_and_the_others_say_nothing() {
    let mut seen = [0; ENDINGS.len()];
    for _ in 0..RUNS {
        let mut command = Command::new(std::env::current_exe().expect("our own path"));
        command.args(["one_ending::a_process_that_ends_in_all_ways_at_once", "--exact"]);
        command.arg("--nocapture").env(IS_TO_END, "yes").stdin(Stdio::null());
        let output = command.output().expect("a process");
        let said = String::from_utf8_lossy(&output.stdout);
        let are_said: Vec<usize> =
            (0..ENDINGS.len()).filter(|number| said.contains(ENDINGS[*number].0)).collect();
        let [only] = are_said[..] else { panic!("{are_said:?} in {said}") };
        assert_eq!(said.matches(ENDINGS[only].0).count(), 1, "{said}");
        assert_eq!(output.status.code(), Some(ENDINGS[only].1), "{said}");
        seen[only] += 1;
    }
    // By chance; that it is not always the same one is what makes it a race.
    assert!(seen.iter().filter(|count| **count > 0).count() > 1, "{seen:?}");
}
