//! Calls that were given up. Another one that has to end no later is not begun: in the moments that
//! are left it would have no answer either, and it could not be cancelled in time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The last one: when it had to end, and how long it waited for an answer.
#[derive(Default)]
pub struct GivenUp(Mutex<Option<(Instant, Duration)>>);

impl GivenUp {
    /// Whether a call that ends by `until` is worth its beginning.
    ///
    /// # Errors
    /// How long the one that was given up has waited; zero where no time is left.
    pub fn may_begin(&self, until: Instant) -> Result<(), Duration> {
        if until <= Instant::now() {
            return Err(Duration::ZERO);
        }
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match last.filter(|(late, _)| until <= *late) {
            Some((_, waited)) => Err(waited),
            None => Ok(()),
        }
    }

    /// A call that had to end by `until` was given up.
    pub fn note(&self, until: Instant, waited: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((until, waited));
    }
}

/// The part of a call's time that is kept to cancel it.
pub fn for_cancelling(left: Duration) -> Duration {
    (left / 2).min(Duration::from_secs(1))
}
