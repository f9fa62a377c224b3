//! Reads the message from standard input and refuses one that was cut short. If pipe(8) or local(8)
//! is killed, this process reads half a message up to a clean end of file; if it delivered that,
//! the retry would deliver the whole message as another one. Two guards: the size that Postfix
//! states, and that the writing process is still alive.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _};
use std::thread;
use std::time::Duration;

use nix::unistd::{Pid, getppid};

use onedrop_core::deliver::Failure;
use onedrop_core::exit;
use onedrop_core::message::{DedupBy, Message, ReadError};

/// `PF_EXITING` in include/linux/sched.h: the process is exiting. The kernel sets it before it
/// closes the process's files, so a reader that sees the end of file sees this flag too.
const PF_EXITING: u64 = 0x4;

/// Shells through which local(8) may run a mailbox_command.
const SHELLS: [&str; 5] = ["sh", "dash", "bash", "ksh", "busybox"];
const MOST_SHELLS: usize = 4;

/// Far longer than an exiting process takes between closing its files and giving up its children.
const LAST_OF_EXIT: Duration = Duration::from_millis(20);

/// The process that writes to standard input: the parent, and above a shell (mailbox_command) the
/// shell's parent as well.
pub(super) struct StdinWriter {
    chain: Vec<Pid>,
}

impl StdinWriter {
    /// Must be called before standard input is read.
    pub(super) fn find() -> StdinWriter {
        let mut chain = vec![getppid()];
        while let Some(stat) = chain.last().and_then(|pid| Stat::of(*pid))
            && SHELLS.contains(&stat.name.as_str())
            && chain.len() <= MOST_SHELLS
        {
            chain.push(stat.parent);
        }
        StdinWriter { chain }
    }

    /// Whether all processes found at the start are still alive and not exiting.
    fn lives(&self) -> bool {
        // Another user's /proc may be hidden (hidepid): then only the parent's id counts. The
        // kernel closes an exiting process's files before it gives its children another parent: at
        // the end of the file that id proves nothing yet.
        self.seen_alive().unwrap_or_else(|| {
            thread::sleep(LAST_OF_EXIT);
            self.seen_alive().unwrap_or(true)
        })
    }

    /// `None`: all have the parents that they had, and the state of one is hidden.
    fn seen_alive(&self) -> Option<bool> {
        let mut child_parent = getppid();
        for pid in &self.chain {
            if child_parent != *pid {
                return Some(false);
            }
            let stat = Stat::of(*pid)?;
            if stat.exiting {
                return Some(false);
            }
            child_parent = stat.parent;
        }
        Some(true)
    }
}

/// Fields of /proc/PID/stat (proc(5)).
struct Stat {
    name: String,
    parent: Pid,
    exiting: bool,
}

impl Stat {
    fn of(pid: Pid) -> Option<Stat> {
        // The kernel gives a file of proc(5) that fits in one piece, and no size to read it by.
        let mut text = [0; 1024];
        let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text[..length]);
        let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let (state, parent, flags) = (fields.first()?, fields.get(1)?, fields.get(6)?);
        Some(Stat {
            name: name.to_owned(),
            parent: Pid::from_raw(parent.parse().ok()?),
            exiting: matches!(*state, "Z" | "X") || flags.parse::<u64>().ok()? & PF_EXITING != 0,
        })
    }
}

/// Reads standard input to its end and makes sure that the message is whole.
pub(super) fn read(
    writer: &StdinWriter,
    stated_size: Option<u64>,
    limit: u64,
    by: DedupBy,
) -> Result<Message, Failure> {
    if std::io::stdin().is_terminal() {
        exit::tell("waiting for a message on standard input; Ctrl-D on a line of its own ends it");
    }
    let message =
        Message::read(std::io::stdin().lock(), limit, by).map_err(|error| match error {
            ReadError::TooLarge { limit } => Failure::TooLarge { limit },
            ReadError::Io(error) => Failure::Input(error.to_string()),
        })?;
    if !writer.lives() {
        return Err(Failure::Cut("the process that wrote it has ended".to_owned()));
    }
    if message.own_copy().is_empty() {
        return Err(Failure::Cut("there is no message on standard input".to_owned()));
    }
    if let Some(stated) = stated_size
        && is_cut(&message, stated)
    {
        let got = message.received().len();
        return Err(Failure::Cut(format!(
            "{got} bytes were read, Postfix stated {stated} with its own overhead"
        )));
    }
    Ok(message)
}

/// Bytes by which a whole message may differ from ${size}.
const SIZE_SLACK: u64 = 2048;
/// Postfix's `header_size_limit`: ${size} still counts header fields that a milter has removed.
const LARGEST_HEADER: u64 = 102_400;
/// The longest record in Postfix's queue file (`line_length_limit`).
const LONGEST_RECORD: usize = 2048;

/// Whether the message is shorter than Postfix stated. Postfix ends every message with a line end,
/// and a broken pipe rarely does. With a line end at its end, a message counts as cut only if the
/// difference is larger than a header can be.
fn is_cut(message: &Message, stated: u64) -> bool {
    let ends_in_a_line = message.received().ends_with(b"\n");
    let slack = if ends_in_a_line { SIZE_SLACK + LARGEST_HEADER } else { SIZE_SLACK };
    queue_file_size(message.shared_copy()) + slack < stated
}

/// The ${size} of a whole message: the size of its records in Postfix's queue file
/// (global/record.c), without the fields that pipe(8) prepends. A line without its line end is one
/// record or several; a record has one byte for its type, and one for its length or two from 128
/// bytes on.
fn queue_file_size(message: &[u8]) -> u64 {
    let record = |length: usize| (length + if length < 128 { 2 } else { 3 }) as u64;
    let mut size = 0;
    for line in message.split_inclusive(|byte| *byte == b'\n') {
        let length = line.strip_suffix(b"\n").unwrap_or(line).len();
        // A full record is always followed by another one, possibly empty.
        size += (length / LONGEST_RECORD) as u64 * record(LONGEST_RECORD)
            + record(length % LONGEST_RECORD);
    }
    size
}
