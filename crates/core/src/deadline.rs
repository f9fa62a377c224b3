//! The time a delivery has. One deadline bounds everything; its last part is kept for the store's
//! answer to an append (the point of no return: an append takes effect with its last bytes). A
//! watchdog thread (`exit.rs`) ends the process with a temporary failure when the deadline has
//! passed, whatever hangs; whoever has sent the last bytes of an append may wait for the answer,
//! however late it is by then, and the watchdog reads that here. The copies of a delivery share its
//! deadline, and each is placed by one thread: a thread takes back its own note alone. It goes by
//! the clock that it is given.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::clock::{Clock, SystemClock};

/// How long a peer may leave unacknowledged what it was sent over TCP, or take in nothing of what
/// waits to be sent (TCP_USER_TIMEOUT in tcp(7)): then its host is gone, or a firewall has
/// forgotten the connection, and a new one gets the rest of the time.
pub const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// How long a process waits for the server that has no configuration, and so does not know the
/// server's deadline: more than the usual one with the time for the store's answer (80 s), and well
/// below Postfix's limit (command_time_limit, 1000 s).
pub const TIME_FOR_THE_SERVER: Duration = Duration::from_secs(300);
/// After this long without a word a peer is asked for a sign of life, and again in the same
/// intervals (SO_KEEPALIVE).
pub const KEEPALIVE: Duration = Duration::from_secs(10);

/// When a delivery must have ended, and how much of that is kept for the store's answer.
#[derive(Debug, Clone)]
pub struct Deadline {
    end: Instant,
    /// The end by the clock that goes on while the machine is suspended, as the lease does.
    /// [`Instant`] stands still then.
    end_awake: Option<Duration>,
    answer: Duration,
    /// The threads for whose copies last bytes are out.
    answering: Arc<Mutex<HashSet<ThreadId>>>,
    /// The thread whose copy this is about; `None`: the one that calls.
    thread: Option<ThreadId>,
    clock: Arc<dyn Clock>,
}

/// The last bytes of an append may no longer be sent: too little time is left for the answer.
#[derive(Debug, thiserror::Error)]
#[error("too little time left to append and wait for the answer")]
pub struct TooLate;

impl Deadline {
    /// A deadline `total` from now, by the system's clock, whose last `answer` is kept for the
    /// store's answer.
    pub fn new(total: Duration, answer: Duration) -> Deadline {
        Deadline::by(Arc::new(SystemClock), total, answer)
    }

    /// A deadline like that of [`new`](Deadline::new), by another clock.
    pub fn by(clock: Arc<dyn Clock>, total: Duration, answer: Duration) -> Deadline {
        Deadline {
            end: clock.now() + total,
            end_awake: clock.since_boot().map(|now| now + total),
            answer,
            answering: Arc::default(),
            thread: None,
            clock,
        }
    }

    /// One that passed while the machine was suspended, which the other clock does not show.
    #[cfg(test)]
    pub fn overslept(total: Duration, answer: Duration) -> Deadline {
        let deadline = Deadline::new(total, answer);
        Deadline { end_awake: deadline.clock.since_boot(), ..deadline }
    }

    /// The same for another thread, which appends this one's copy for it.
    pub fn of_this_thread(&self) -> Deadline {
        Deadline { thread: Some(thread::current().id()), ..self.clone() }
    }

    /// What time it is by this deadline's clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Whose time this is.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Nothing of this delivery runs past this, except waiting for an answer to last bytes that
    /// were sent in time.
    pub fn end(&self) -> Instant {
        self.end
    }

    /// Time left; zero when the deadline has passed.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(self.now())
    }

    /// Until when it may be decided to send last bytes. What only leads up to them is given up
    /// here: then there is still time to give the lease back and to say what hung.
    pub fn last_bytes(&self) -> Instant {
        self.end.checked_sub(self.answer).unwrap_or_else(|| self.now())
    }

    /// Until when may be looked for a copy: one that is found needs no append, only its record.
    pub fn look_until(&self) -> Instant {
        self.last_bytes() + self.answer / 2
    }

    /// To be called right before the last bytes of an append; after them the caller waits for the
    /// answer until [`answer_until`](Deadline::answer_until).
    ///
    /// # Errors
    /// [`TooLate`] in the final `answer` of the deadline: the last bytes must not be sent.
    pub fn pass_point_of_no_return(&self) -> Result<(), TooLate> {
        // First the note to the watchdog, then the look at the clock: a process frozen in between
        // and thawed past its deadline is stopped here, one frozen after the look still gets its
        // time to hear the answer.
        self.answering().insert(self.thread());
        let awake = self.end_awake.zip(self.clock.since_boot());
        let slept = awake.is_some_and(|(end, now)| now + self.answer > end);
        if slept || self.now() + self.answer > self.end {
            self.answered();
            return Err(TooLate);
        }
        Ok(())
    }

    /// How long to wait for an answer to last bytes sent just now, however late that is.
    pub fn answer_until(&self) -> Instant {
        self.now() + self.answer
    }

    /// To be called when the answer is known and recorded, or given up, by the thread whose copy it
    /// is; of one for which no last bytes are out it changes nothing.
    pub fn answered(&self) {
        self.answering().remove(&self.thread());
    }

    /// Whether last bytes of any copy are out and their outcome is not recorded yet.
    pub fn is_answering(&self) -> bool {
        !self.answering().is_empty()
    }

    fn answering(&self) -> MutexGuard<'_, HashSet<ThreadId>> {
        // Nothing that can panic is done under this lock.
        self.answering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(&self) -> ThreadId {
        self.thread.unwrap_or_else(|| thread::current().id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ample() -> Deadline {
        Deadline::new(Duration::from_secs(60), Duration::from_secs(20))
    }

    #[test]
    fn a_copy_that_ends_leaves_the_answer_to_another_to_be_waited_for() {
        let deadline = ample();
        deadline.pass_point_of_no_return().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                deadline.pass_point_of_no_return().unwrap();
                deadline.answered();
            });
            // Its last bytes were never sent.
            scope.spawn(|| deadline.answered());
        });
        assert!(deadline.is_answering());
        deadline.answered();
        assert!(!deadline.is_answering());
    }

    #[test]
    fn what_another_thread_sends_is_waited_for_by_the_one_whose_copy_it_is() {
        let deadline = ample();
        let lent = deadline.of_this_thread();
        thread::scope(|scope| {
            scope.spawn(|| lent.pass_point_of_no_return().unwrap());
        });
        assert!(deadline.is_answering());
        deadline.answered();
        assert!(!deadline.is_answering());
    }
}
