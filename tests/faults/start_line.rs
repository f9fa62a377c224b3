//! Deliveries that begin at one moment: each has read its whole message and waits for the end of
//! its standard input, which comes to all of them together.

use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::support::{onedrop, wait_until};

/// How long processes that start all at once may take to read what they are fed.
const ALL_FED: Duration = Duration::from_secs(60);

/// Deliveries that wait for the end of their messages.
#[derive(Default)]
pub struct StartLine(Vec<Waiting>);

struct Waiting {
    child: Child,
    /// Ends the message when it is closed.
    end: PipeWriter,
    /// The same pipe's other end: shows what was not read yet.
    rest: PipeReader,
}

impl StartLine {
    /// Starts a delivery and feeds it all but the end of its standard input. A message is smaller
    /// than a pipe.
    pub fn add(&mut self, config: &Path, args: &[&str], message: &[u8]) {
        let (rest, mut end) = std::io::pipe().expect("pipe");
        let mut command = onedrop();
        command.arg("deliver").arg("--config").arg(config).args(args);
        command.current_dir(config.parent().expect("folder"));
        command
            .stdin(rest.try_clone().expect("pipe"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().expect("binary");
        assert!(message.len() < 60_000, "more than a pipe holds would wait for its reader here");
        end.write_all(message).expect("message");
        self.0.push(Waiting { child, end, rest });
    }

    /// Waits until all have read what they were fed, ends all their messages at once, and waits for
    /// all.
    pub fn go(self) -> Vec<Output> {
        self.go_beside(Vec::new).0
    }

    /// The same with other processes, which start at that moment.
    pub fn go_beside(self, start: impl FnOnce() -> Vec<Child>) -> (Vec<Output>, Vec<Output>) {
        for waiting in &self.0 {
            assert!(
                wait_until(ALL_FED, || waiting.has_read_all()),
                "a delivery does not read its message"
            );
        }
        let (children, ends): (Vec<Child>, Vec<PipeWriter>) =
            self.0.into_iter().map(|waiting| (waiting.child, waiting.end)).unzip();
        let beside = start();
        drop(ends);
        let ended = |children: Vec<Child>| {
            children.into_iter().map(|child| child.wait_with_output().expect("end")).collect()
        };
        (ended(children), ended(beside))
    }
}

impl Waiting {
    fn has_read_all(&self) -> bool {
        let mut rest = [PollFd::new(self.rest.as_fd(), PollFlags::POLLIN)];
        poll(&mut rest, PollTimeout::ZERO).expect("poll") == 0
    }
}
