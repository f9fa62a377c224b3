//! The time a delivery has. One deadline bounds everything; its last part is kept for the store's
//! answer to an append (the point of no return: an append takes effect with its last bytes). A
//! watchdog thread (`exit.rs`) ends the process with a temporary failure when the deadline has
//! passed, whatever hangs; whoever has sent the last bytes of an append may wait for the answer,
//! however late it is by then, and the watchdog reads that here. It goes by the clock that it is
//! given.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    answering: Arc<AtomicBool>,
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
            clock,
        }
    }

    /// One that passed while the machine was suspended, which the other clock does not show.
    #[cfg(test)]
    pub fn overslept(total: Duration, answer: Duration) -> Deadline {
        let deadline = Deadline::new(total, answer);
        Deadline { end_awake: deadline.clock.since_boot(), ..deadline }
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
        self.answering.store(true, Ordering::SeqCst);
        let awake = self.end_awake.zip(self.clock.since_boot());
        let slept = awake.is_some_and(|(end, now)| now + self.answer > end);
        if slept || self.now() + self.answer > self.end {
            self.answering.store(false, Ordering::SeqCst);
            return Err(TooLate);
        }
        Ok(())
    }

    /// How long to wait for an answer to last bytes sent just now, however late that is.
    pub fn answer_until(&self) -> Instant {
        self.now() + self.answer
    }

    /// To be called when the answer is known and recorded, or given up.
    pub fn answered(&self) {
        self.answering.store(false, Ordering::SeqCst);
    }

    /// Whether last bytes are out and their outcome is not recorded yet.
    pub fn is_answering(&self) -> bool {
        self.answering.load(Ordering::SeqCst)
    }
}
