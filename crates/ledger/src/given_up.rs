//! Calls that were given up. Another one that has to end no later is not begun: in the moments that
//! are left it would have no answer either, and it could not be cancelled in time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onedrop_core::ledger::LedgerError;

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

/// How an error begins that says how long an answer was waited for.
const NO_ANSWER: &str = "no answer within ";
/// What it says if that was no time, or as good as none.
const NO_TIME: &str = "too little time was left to wait for an answer";
/// The shortest wait that has a tenth of a second.
const SHORTEST: Duration = Duration::from_millis(50);

pub fn no_answer(after: Duration) -> LedgerError {
    LedgerError::Unavailable(no_answer_text(after))
}

/// That no answer came in the time that there was.
pub fn no_answer_text(waited: Duration) -> String {
    match waited < SHORTEST {
        true => NO_TIME.to_owned(),
        false => format!("{NO_ANSWER}{:.1} s", waited.as_secs_f64()),
    }
}

/// Whether a text says that.
pub fn says_no_answer(text: &str) -> bool {
    text.starts_with(NO_ANSWER) || text.starts_with(NO_TIME)
}

/// The part of a call's time that is kept to cancel it.
pub fn for_cancelling(left: Duration) -> Duration {
    (left / 2).min(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_had_no_time_was_not_waited_for() {
        for (millis, text) in [
            (0, "too little time was left to wait for an answer"),
            (49, "too little time was left to wait for an answer"),
            (50, "no answer within 0.1 s"),
            (2900, "no answer within 2.9 s"),
        ] {
            assert_eq!(no_answer_text(Duration::from_millis(millis)), text);
            assert!(says_no_answer(text) && !says_no_answer("closed"), "{text}");
        }
    }
}
