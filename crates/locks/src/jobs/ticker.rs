//! The ticks of a server (`jobs.run_in = "server"`): `onedrop jobs tick` as a child process, each
//! minute, unless the last one still waits for its jobs. It may crash without harm to the server,
//! and is there again a minute later.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::own_program::OwnProgram;

const MINUTE: Duration = Duration::from_secs(60);

/// A thread that ticks while it is wanted.
pub struct Ticker {
    is_wanted: Arc<AtomicBool>,
    /// Set when the server is to end.
    stop: Arc<AtomicBool>,
    waker: UnixStream,
    thread: JoinHandle<()>,
}

impl Ticker {
    /// `stop` is set and `waker` written to when the server is to end; by a signal handler, say.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(program: OwnProgram, stop: Arc<AtomicBool>) -> io::Result<Ticker> {
        let (waker, wakes) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let is_wanted = Arc::new(AtomicBool::new(false));
        let (wanted, stops) = (Arc::clone(&is_wanted), Arc::clone(&stop));
        let work = move || run(&program, &wanted, &stops, &wakes);
        let thread = thread::Builder::new().name("ticker".to_owned()).spawn(work)?;
        Ok(Ticker { is_wanted, stop, waker, thread })
    }

    /// Writing to it makes the thread look at `stop`.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn waker(&self) -> io::Result<UnixStream> {
        self.waker.try_clone()
    }

    /// Says whether it is to tick; what runs goes on.
    pub fn want(&self, is_wanted: bool) {
        self.is_wanted.store(is_wanted, Ordering::SeqCst);
        self.wake();
    }

    /// Ends the jobs that run, and waits for that.
    pub fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
        // It cannot panic.
        let _ = self.thread.join();
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _ = (&self.waker).write(b"w");
    }
}

fn run(program: &OwnProgram, is_wanted: &AtomicBool, stop: &AtomicBool, wakes: &UnixStream) {
    let (mut tick, mut next): (Option<Child>, _) = (None, Instant::now());
    let mut was_wanted = false;
    while !stop.load(Ordering::SeqCst) {
        if let Some(child) = &mut tick {
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => {
                    // 1: a job has failed, which is on record.
                    if !matches!(status.code(), Some(0 | 1)) {
                        tracing::warn!("onedrop jobs tick has ended: {status}");
                    }
                    tick = None;
                }
                Err(error) => {
                    tracing::warn!(%error, "onedrop jobs tick is lost");
                    tick = None;
                }
            }
        }
        let (now, is_wanted) = (Instant::now(), is_wanted.load(Ordering::SeqCst));
        let begins = is_wanted && !was_wanted;
        was_wanted = is_wanted;
        if begins || now >= next {
            next = now + MINUTE;
            if tick.is_none() && is_wanted {
                match program.start(&["jobs", "tick", "--by-server"]) {
                    Ok(child) => tick = Some(child),
                    Err(error) => tracing::warn!(%error, "onedrop jobs tick was not started"),
                }
            }
        }
        let timeout = PollTimeout::try_from(next.saturating_duration_since(now));
        let mut fds = [PollFd::new(wakes.as_fd(), PollFlags::POLLIN)];
        // Woken too early, it looks once more.
        let _ = poll(&mut fds, timeout.unwrap_or(PollTimeout::MAX));
        while matches!((&*wakes).read(&mut [0; 64]), Ok(count) if count > 0) {}
    }
    let Some(mut child) = tick else { return };
    if let Ok(pid) = i32::try_from(child.id()) {
        // It is not reaped yet, so the number is its own.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    let _ = child.wait();
}
