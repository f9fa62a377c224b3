//! Messages between wrapper and guardian: frames of four numbers over a socket that only these two
//! have; one kind has text after it. A frame is written at once, so that a process that is stopped
//! leaves none half sent. An order never waits for a guardian that is stopped: where the socket is
//! full, it is not sent.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{self, MsgFlags};

/// Of the longest text: less than a socket takes at once.
const LONGEST: usize = 16 << 10;

/// Names and values for an environment.
pub type Variables = Vec<(OsString, OsString)>;

/// From the wrapper to the guardian. When its socket is closed, the wrapper is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// The ledger is asked for the lock from now on.
    Asks,
    /// For the command's environment, beside what the spec has; before the start.
    Environment(Variables),
    /// The lock is ours: start the command.
    Start { slot: u32, epoch: i64, trust: Duration },
    /// The lease was renewed.
    Trust(Duration),
    /// The command is to get this signal.
    Forward(Signal),
    /// The command is to end: SIGTERM, and SIGKILL after the grace.
    End,
}

/// From the guardian to the wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    Started,
    /// The error's number (errno(3)); negative: the command's folder could not be entered.
    NotStarted(i32),
    /// The command has ended. `survivors`: not all that it started could be ended.
    Ended {
        status: CommandStatus,
        cause: EndCause,
        survivors: bool,
    },
}

/// Why the command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndCause {
    /// By itself, or by a signal that was passed on.
    Itself,
    /// An order to end came while it ran, or the wrapper was gone.
    Order,
    /// Its lease came to its end.
    Trust,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandStatus {
    Exited(i32),
    Killed(i32),
}

type Frame = [i64; 4];

impl Order {
    pub fn send(&self, stream: &UnixStream) -> io::Result<()> {
        let nanos = |trust: &Duration| i64::try_from(trust.as_nanos()).unwrap_or(i64::MAX);
        let (mut frame, mut text) = ([0; 4], Vec::new());
        match self {
            Order::Start { slot, epoch, trust } => {
                frame = [1, (*slot).into(), *epoch, nanos(trust)];
            }
            Order::Trust(trust) => frame[..2].copy_from_slice(&[2, nanos(trust)]),
            Order::Forward(signal) => frame[..2].copy_from_slice(&[3, (*signal as i32).into()]),
            Order::End => frame[0] = 4,
            Order::Asks => frame[0] = 6,
            Order::Environment(variables) => {
                for part in variables.iter().flat_map(|(name, value)| [name, value]) {
                    text.extend_from_slice(part.as_bytes());
                    text.push(0);
                }
                let length = i64::try_from(text.len()).map_err(io::Error::other)?;
                frame[..2].copy_from_slice(&[5, length]);
            }
        }
        send(stream, frame, &text, MsgFlags::MSG_DONTWAIT)
    }

    /// Whether one is there, or the other end is closed.
    pub fn is_there(stream: &UnixStream) -> bool {
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// `None`: the other end is closed.
    pub fn receive(stream: &UnixStream) -> io::Result<Option<Order>> {
        let Some([kind, a, b, c]) = receive(stream)? else { return Ok(None) };
        let trust = |nanos: i64| Duration::from_nanos(nanos.max(0).unsigned_abs());
        let order = match kind {
            1 => u32::try_from(a).ok().map(|slot| Order::Start { slot, epoch: b, trust: trust(c) }),
            2 => Some(Order::Trust(trust(a))),
            3 => number(a).and_then(|a| Signal::try_from(a).ok()).map(Order::Forward),
            4 => Some(Order::End),
            5 => Some(Order::Environment(variables(stream, a)?)),
            6 => Some(Order::Asks),
            _ => None,
        };
        order.map(Some).ok_or_else(unknown)
    }
}

impl Notice {
    pub fn send(self, stream: &UnixStream) -> io::Result<()> {
        send(
            stream,
            match self {
                Notice::Started => [1, 0, 0, 0],
                Notice::NotStarted(errno) => [2, errno.into(), 0, 0],
                Notice::Ended { status, cause, survivors } => {
                    let (kind, number) = match status {
                        CommandStatus::Exited(code) => (3, code),
                        CommandStatus::Killed(signal) => (4, signal),
                    };
                    [kind, number.into(), cause as i64, survivors.into()]
                }
            },
            &[],
            MsgFlags::empty(),
        )
    }

    /// `None`: the other end is closed.
    pub fn receive(stream: &UnixStream) -> io::Result<Option<Notice>> {
        let Some([kind, a, b, c]) = receive(stream)? else { return Ok(None) };
        let causes = [EndCause::Itself, EndCause::Order, EndCause::Trust];
        let cause = causes.into_iter().find(|cause| *cause as i64 == b).ok_or_else(unknown)?;
        let ended = |status| Notice::Ended { status, cause, survivors: c != 0 };
        let notice = match (kind, number(a)) {
            (1, _) => Some(Notice::Started),
            (2, Some(errno)) => Some(Notice::NotStarted(errno)),
            (3, Some(code)) => Some(ended(CommandStatus::Exited(code))),
            (4, Some(signal)) => Some(ended(CommandStatus::Killed(signal))),
            _ => None,
        };
        notice.map(Some).ok_or_else(unknown)
    }
}

fn number(a: i64) -> Option<i32> {
    i32::try_from(a).ok()
}

fn unknown() -> io::Error {
    io::Error::other("a frame of an unknown kind")
}

fn send(stream: &UnixStream, frame: Frame, text: &[u8], flags: MsgFlags) -> io::Result<()> {
    if text.len() > LONGEST {
        return Err(io::Error::other("a frame that is too long"));
    }
    let mut bytes: Vec<u8> = frame.iter().flat_map(|number| number.to_ne_bytes()).collect();
    bytes.extend_from_slice(text);
    let sent = socket::send(stream.as_raw_fd(), &bytes, flags | MsgFlags::MSG_NOSIGNAL)?;
    match sent == bytes.len() {
        true => Ok(()),
        // A socket takes a message that is this short whole, or not.
        false => Err(io::Error::other("a frame was cut")),
    }
}

fn variables(mut stream: &UnixStream, length: i64) -> io::Result<Variables> {
    let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST);
    let mut text = vec![0; length.ok_or_else(unknown)?];
    stream.read_exact(&mut text)?;
    let mut parts = text.split(|byte| *byte == 0).map(|part| OsString::from_vec(part.to_vec()));
    let mut found = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        found.push((name, value));
    }
    Ok(found)
}

fn receive(mut stream: &UnixStream) -> io::Result<Option<Frame>> {
    let mut bytes = [0; size_of::<Frame>()];
    match stream.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    let mut frame = Frame::default();
    for (number, place) in frame.iter_mut().zip(bytes.chunks(8)) {
        *number = i64::from_ne_bytes(place.try_into().map_err(|_| unknown())?);
    }
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        let (a, b) = UnixStream::pair().unwrap();
        let trust = Duration::from_nanos(1_234_567_890_123);
        let variables = [("A", "x"), ("B", ""), ("C", "a=b c")];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let orders = [
            Order::Environment(variables.to_vec()),
            Order::Environment(Vec::new()),
            Order::Start { slot: u32::MAX, epoch: i64::MAX, trust },
            Order::Trust(trust),
            Order::Forward(Signal::SIGWINCH),
            Order::End,
            Order::Asks,
        ];
        let statuses = [CommandStatus::Exited(255), CommandStatus::Killed(9)];
        let causes = [EndCause::Itself, EndCause::Order, EndCause::Trust];
        let ends = statuses.map(|status| {
            causes.map(|cause| Notice::Ended { status, cause, survivors: cause == EndCause::Order })
        });
        let ends = ends.into_iter().flatten();
        let notices = [Notice::Started, Notice::NotStarted(-2)].into_iter().chain(ends);
        for order in orders {
            order.send(&a).unwrap();
            assert_eq!(Order::receive(&b).unwrap(), Some(order));
        }
        for notice in notices {
            notice.send(&b).unwrap();
            assert_eq!(Notice::receive(&a).unwrap(), Some(notice));
        }
        assert!(!Order::is_there(&b));
        send(&a, [9, 0, 0, 0], &[], MsgFlags::empty()).unwrap();
        assert!(Order::is_there(&b));
        assert!(Order::receive(&b).is_err());
        drop(a);
        assert!(Order::is_there(&b));
        assert_eq!(Order::receive(&b).unwrap(), None);
    }

    #[test]
    fn an_order_does_not_wait_and_none_is_cut() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut sent = 0;
        while Order::Forward(Signal::SIGWINCH).send(&a).is_ok() {
            sent += 1;
        }
        for _ in 0..sent {
            assert_eq!(Order::receive(&b).unwrap(), Some(Order::Forward(Signal::SIGWINCH)));
        }
        assert!(sent > 0 && !Order::is_there(&b));
    }
}
