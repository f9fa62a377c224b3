//! Waits for descriptors and for an instant of the boot clock. poll(2) counts its own time-out by a
//! clock that stands still while the machine sleeps; a timer of CLOCK_BOOTTIME fires when it wakes
//! up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

pub(super) struct BootTimer(TimerFd);

impl BootTimer {
    pub fn new() -> io::Result<BootTimer> {
        Ok(BootTimer(TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?))
    }

    /// It can be read from `at` on.
    pub fn set(&self, at: Option<Duration>) -> io::Result<()> {
        match at {
            // Zero would disarm it.
            Some(at) => self.0.set(
                Expiration::OneShot(TimeSpec::from_duration(at.max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )?,
            None => self.0.unset()?,
        }
        Ok(())
    }

    /// Returns when one of `fds` can be read or is closed, or at `at` (time since the boot), and
    /// which of them can be.
    pub fn wait<const N: usize>(
        &self,
        fds: [BorrowedFd<'_>; N],
        at: Option<Duration>,
    ) -> io::Result<[bool; N]> {
        self.set(at)?;
        let mut all: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        all.push(PollFd::new(self.0.as_fd(), PollFlags::POLLIN));
        match poll(&mut all, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = [false; N];
        for (ready, fd) in ready.iter_mut().zip(&all) {
            *ready = fd.revents().is_some_and(|events| !events.is_empty());
        }
        Ok(ready)
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::lock::since_boot;

    #[test]
    fn it_waits_for_an_instant_or_a_byte() {
        let timer = BootTimer::new().unwrap();
        let (mut a, b) = UnixStream::pair().unwrap();
        let at = since_boot().unwrap() + Duration::from_millis(20);
        assert_eq!(timer.wait([b.as_fd()], Some(at)).unwrap(), [false]);
        assert!(since_boot().unwrap() >= at);
        assert_eq!(timer.wait([b.as_fd()], Some(Duration::ZERO)).unwrap(), [false], "long past");
        a.write_all(b"x").unwrap();
        assert_eq!(timer.wait([b.as_fd()], None).unwrap(), [true]);
    }
}
