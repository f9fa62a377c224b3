//! The output of a command that has none of its caller's streams. A job's is read from two pipes,
//! passed on to standard output and error, and its end kept for the record. That of a command which
//! Postfix started is read from one, as pipe(8) does, and its beginning held back.
//!
//! Promise: the command never waits for longer than [`PATIENCE`] for a reader that takes nothing;
//! from then on, what does not fit into [`QUEUE_BYTES`] is left out of what is passed on, and
//! reported, until the reader takes something again. A reader that is gone stops nothing. What is
//! kept is in the order in which it was read. The end of the output is not waited for: when the
//! command has ended, what the pipes hold is read, whoever still has them.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::write;

/// Bytes of the output that are kept: for the record, and as many as Postfix reads (pipe(8)).
const KEPT_BYTES: usize = 4096;
/// Bytes that wait for the reader of our own output.
const QUEUE_BYTES: usize = 1 << 20;
/// Bytes that are read and passed on at a time: what a pipe takes at once.
const CHUNK_BYTES: usize = 4096;
/// Bytes that are still read when the command has ended: a process that has left its descendants
/// may go on writing.
const LAST_BYTES: usize = 1 << 20;
/// How long a reader may take nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pipes, made before the process forks.
pub(super) struct OutputPipes {
    readers: Vec<PipeReader>,
    pub writers: CommandStreams,
}

/// Standard output and error of the command.
pub(super) type CommandStreams = [PipeWriter; 2];

impl OutputPipes {
    /// One for each stream.
    pub fn apart() -> io::Result<OutputPipes> {
        let ((out, out_writer), (err, err_writer)) = (io::pipe()?, io::pipe()?);
        Ok(OutputPipes { readers: vec![out, err], writers: [out_writer, err_writer] })
    }

    /// One for both, so that what comes first is known.
    pub fn together() -> io::Result<OutputPipes> {
        let (both, writer) = io::pipe()?;
        let writers = [writer.try_clone()?, writer];
        Ok(OutputPipes { readers: vec![both], writers })
    }

    /// Reads from now on, on a thread of its own, and passes nothing on.
    pub fn hold_back(self) -> io::Result<HeldOutput> {
        let OutputPipes { readers, writers } = self;
        drop(writers);
        let (stop, stopped) = UnixStream::pair()?;
        let read = move || {
            let mut head = Vec::new();
            read(&readers, &stopped, |_, chunk| {
                let room = KEPT_BYTES - head.len();
                head.extend_from_slice(&chunk[..chunk.len().min(room)]);
            });
            head
        };
        let reader = thread::Builder::new().name("reader".to_owned()).spawn(read)?;
        Ok(HeldOutput { reader, stop })
    }

    /// Reads from now on, on threads of its own. The guarding process has the other ends. With a
    /// label, each line that is passed on begins with it, and is passed on whole.
    pub fn read(self, label: Option<String>) -> io::Result<Output> {
        let OutputPipes { readers, writers } = self;
        drop(writers);
        let queue = Arc::new(OutputQueue::default());
        let (stop, stopped) = UnixStream::pair()?;
        let (taken, given) = (Arc::clone(&queue), Arc::clone(&queue));
        thread::Builder::new().name("passer".to_owned()).spawn(move || taken.pass_on())?;
        let read = move || {
            let mut tail = OutputTail::default();
            let mut labelled = label.map(LabelledLines::new);
            read(&readers, &stopped, |at, chunk| {
                tail.add(&chunk);
                let chunk = match &mut labelled {
                    Some(lines) => lines.whole(at, &chunk),
                    None => chunk,
                };
                given.give(OutputStream::ALL[at], chunk);
            });
            for (stream, rest) in labelled.into_iter().flat_map(LabelledLines::rest) {
                given.give(stream, rest);
            }
            tail
        };
        let reader = thread::Builder::new().name("reader".to_owned()).spawn(read)?;
        Ok(Output { reader, stop, queue })
    }
}

/// Lines that begin with a label, where several commands write to one place.
struct LabelledLines {
    label: Vec<u8>,
    /// Of each stream, the line that is not whole yet.
    begun: [Vec<u8>; 2],
}

impl LabelledLines {
    fn new(label: String) -> LabelledLines {
        LabelledLines { label: format!("{label}: ").into_bytes(), begun: Default::default() }
    }

    /// The lines that `chunk` ends, with the label. One that is longer than a chunk is cut.
    fn whole(&mut self, at: usize, chunk: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            let begun = &mut self.begun[at];
            begun.extend_from_slice(part);
            if begun.ends_with(b"\n") || begun.len() >= CHUNK_BYTES {
                whole.extend_from_slice(&self.label);
                whole.append(begun);
                if !whole.ends_with(b"\n") {
                    whole.push(b'\n');
                }
            }
        }
        whole
    }

    /// What is left, when the command has ended.
    fn rest(self) -> impl Iterator<Item = (OutputStream, Vec<u8>)> {
        let LabelledLines { label, begun } = self;
        let lines = OutputStream::ALL.into_iter().zip(begun).filter(|(_, line)| !line.is_empty());
        lines.map(move |(stream, line)| (stream, [&*label, &*line, b"\n"].concat()))
    }
}

/// A handle on the threads.
pub(super) struct Output {
    reader: JoinHandle<OutputTail>,
    /// Closed when the command has ended.
    stop: UnixStream,
    queue: Arc<OutputQueue>,
}

impl Output {
    /// The command has ended: the end of its output, at most 4 KiB of UTF-8 without NUL.
    pub fn end(self) -> (String, PassingOn) {
        drop(self.stop);
        // It cannot panic.
        let tail = self.reader.join().unwrap_or_default();
        (tail.text(), PassingOn(self.queue))
    }
}

/// A handle on the thread that holds the output back.
pub(super) struct HeldOutput {
    reader: JoinHandle<Vec<u8>>,
    /// Closed when the command has ended.
    stop: UnixStream,
}

impl HeldOutput {
    /// The command has ended: the first 4096 bytes of its output.
    pub fn end(self) -> Vec<u8> {
        drop(self.stop);
        // It cannot panic.
        self.reader.join().unwrap_or_default()
    }
}

/// What is still to be passed on.
pub(super) struct PassingOn(Arc<OutputQueue>);

impl PassingOn {
    /// Waits for a reader that takes what is left; returns how many bytes none has taken.
    pub fn finish(self) -> usize {
        let mut waiting = self.0.lock();
        while !waiting.chunks.is_empty() || waiting.is_passing {
            let (next, has_stopped) = self.0.wait(waiting);
            waiting = next;
            if has_stopped {
                break;
            }
        }
        waiting.left_out + waiting.bytes
    }
}

/// Reads the pipes until they are closed and the command has ended.
fn read(pipes: &[PipeReader], stopped: &UnixStream, mut take: impl FnMut(usize, Vec<u8>)) {
    let mut open = vec![true; pipes.len()];
    let mut left: Option<usize> = None;
    loop {
        // What is not polled has the last descriptor in its place.
        let nobody = stopped.as_fd();
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        fds.extend(
            pipes.iter().zip(&open).map(|(pipe, open)| if *open { pipe.as_fd() } else { nobody }),
        );
        fds.push(nobody);
        let timeout = if left.is_some() { PollTimeout::ZERO } else { PollTimeout::NONE };
        let Ok(ready) = readable(&fds, timeout) else { return };
        let mut read_bytes = 0;
        for (at, mut pipe) in pipes.iter().enumerate() {
            if !(open[at] && ready[at]) {
                continue;
            }
            let mut chunk = vec![0; CHUNK_BYTES];
            match pipe.read(&mut chunk) {
                Ok(0) => open[at] = false,
                Ok(count) => {
                    chunk.truncate(count);
                    take(at, chunk);
                    read_bytes += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => open[at] = false,
            }
        }
        if ready[pipes.len()] {
            let bytes = left.unwrap_or(LAST_BYTES).saturating_sub(read_bytes);
            left = Some(bytes);
            if read_bytes == 0 || bytes == 0 {
                return;
            }
        }
    }
}

fn readable(fds: &[BorrowedFd<'_>], timeout: PollTimeout) -> Result<Vec<bool>, Errno> {
    let mut all: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    loop {
        match poll(&mut all, timeout) {
            Ok(_) => return Ok(all.iter().map(is_ready).collect()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Where a chunk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputStream {
    Out,
    Err,
}

impl OutputStream {
    const ALL: [OutputStream; 2] = [OutputStream::Out, OutputStream::Err];

    /// Writes all of it, or as much as anybody takes.
    fn write_all(self, mut bytes: &[u8]) -> Result<(), Errno> {
        let (out, err) = (io::stdout(), io::stderr());
        // Not through Rust's buffers: a thread that hangs in write(2) would hold their locks.
        let fd = match self {
            OutputStream::Out => out.as_fd(),
            OutputStream::Err => err.as_fd(),
        };
        while !bytes.is_empty() {
            match write(fd, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::EINTR) => {}
                // The caller has made it so.
                Err(Errno::EAGAIN) => {
                    poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)], PollTimeout::NONE)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// What waits for the reader of our own output.
#[derive(Default)]
struct OutputQueue {
    waiting: Mutex<QueuedOutput>,
    changed: Condvar,
}

#[derive(Default)]
struct QueuedOutput {
    chunks: VecDeque<(OutputStream, Vec<u8>)>,
    /// Of all chunks.
    bytes: usize,
    is_passing: bool,
    /// How many chunks were passed on.
    passed: u64,
    /// The reader took nothing for a while.
    is_stuck: bool,
    /// Bytes that found no room since the last report of that.
    left_out: usize,
}

impl OutputQueue {
    fn lock(&self) -> MutexGuard<'_, QueuedOutput> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something was passed on; true: nothing was, for too long.
    fn wait<'a>(
        &self,
        waiting: MutexGuard<'a, QueuedOutput>,
    ) -> (MutexGuard<'a, QueuedOutput>, bool) {
        let before = waiting.passed;
        let is_same = |waiting: &mut QueuedOutput| waiting.passed == before;
        let woken = self.changed.wait_timeout_while(waiting, PATIENCE, is_same);
        let (mut waiting, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
        waiting.is_stuck |= timeout.timed_out();
        (waiting, timeout.timed_out())
    }

    fn give(&self, stream: OutputStream, chunk: Vec<u8>) {
        if chunk.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        while waiting.bytes + chunk.len() > QUEUE_BYTES {
            if waiting.is_stuck {
                waiting.left_out += chunk.len();
                return;
            }
            waiting = self.wait(waiting).0;
        }
        if waiting.left_out > 0 {
            let left_out = std::mem::take(&mut waiting.left_out);
            let told = format!("\nonedrop: nobody has read {left_out} bytes of output here\n");
            waiting.push(OutputStream::Err, told.into_bytes());
        }
        waiting.push(stream, chunk);
        self.changed.notify_all();
    }

    /// The work of the other thread, as long as the process lives.
    fn pass_on(&self) {
        let mut is_gone = [false; 2];
        loop {
            let waiting = self.lock();
            let is_empty = |waiting: &mut QueuedOutput| waiting.chunks.is_empty();
            let mut waiting =
                self.changed.wait_while(waiting, is_empty).unwrap_or_else(PoisonError::into_inner);
            let Some((stream, chunk)) = waiting.chunks.pop_front() else { continue };
            waiting.is_passing = true;
            drop(waiting);
            let is_gone = &mut is_gone[stream as usize];
            *is_gone = *is_gone || stream.write_all(&chunk).is_err();
            let mut waiting = self.lock();
            waiting.is_passing = false;
            waiting.is_stuck = false;
            waiting.bytes -= chunk.len();
            waiting.passed += 1;
            self.changed.notify_all();
        }
    }
}

impl QueuedOutput {
    fn push(&mut self, stream: OutputStream, chunk: Vec<u8>) {
        self.bytes += chunk.len();
        self.chunks.push_back((stream, chunk));
    }
}

/// The last bytes of the output.
#[derive(Default)]
struct OutputTail(VecDeque<u8>);

impl OutputTail {
    fn add(&mut self, chunk: &[u8]) {
        self.0.extend(chunk);
        // Three more: the first character may be cut.
        let surplus = self.0.len().saturating_sub(KEPT_BYTES + 3);
        self.0.drain(..surplus);
    }

    fn text(mut self) -> String {
        let text = String::from_utf8_lossy(self.0.make_contiguous()).replace('\0', "\u{fffd}");
        // What a cut has left of the first character is longer as text: it goes as well.
        let from = text.ceil_char_boundary(text.len().saturating_sub(KEPT_BYTES));
        text[from..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(chunks: &[&[u8]]) -> String {
        let mut tail = OutputTail::default();
        for chunk in chunks {
            tail.add(chunk);
        }
        tail.text()
    }

    #[test]
    fn a_line_is_labelled_and_passed_on_whole() {
        let mut lines = LabelledLines::new("a".to_owned());
        assert_eq!(lines.whole(0, b"one\ntw"), b"a: one\n");
        assert_eq!(lines.whole(1, b"error\n\n"), b"a: error\na: \n");
        assert_eq!(lines.whole(0, b"o\nthree"), b"a: two\n");
        let long = "x".repeat(CHUNK_BYTES);
        assert_eq!(lines.whole(1, long.as_bytes()), format!("a: {long}\n").as_bytes());
        let rest: Vec<_> = lines.rest().collect();
        assert_eq!(rest, [(OutputStream::Out, b"a: three\n".to_vec())]);
    }

    #[test]
    fn the_last_4_kib_are_kept_as_text() {
        assert_eq!(kept(&[]), "");
        assert_eq!(kept(&[b"a\n", b"b\n"]), "a\nb\n");
        assert_eq!(kept(&[b"a\xffb\0c\xc3"]), "a\u{fffd}b\u{fffd}c\u{fffd}");
        let exact = "x".repeat(KEPT_BYTES);
        assert_eq!(kept(&[exact.as_bytes()]), exact);
        assert_eq!(kept(&[b"before", exact.as_bytes()]), exact);
        // A character that is cut in two is left out.
        for before in ["", "a", "ab", "abc", "abcd"] {
            let text = format!("{before}{}", "\u{1f600}".repeat(KEPT_BYTES));
            let kept = kept(&[text.as_bytes()]);
            assert!(text.ends_with(&kept) && kept.len() == KEPT_BYTES, "{} bytes", kept.len());
            let text = format!("{text}{before}");
            let kept = self::kept(&[text.as_bytes()]);
            assert!(text.ends_with(&kept) && kept.len() > KEPT_BYTES - 4, "{} bytes", kept.len());
        }
        // Each byte becomes a character of three.
        let kept = kept(&[&[0xff; 10_000]]);
        assert_eq!(kept, "\u{fffd}".repeat(KEPT_BYTES / 3));
    }
}
