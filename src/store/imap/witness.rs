//! Whose fault a refused login is. A server says the same of an account that is closed and of a
//! password of ours that was changed (RFC 5530, AUTHENTICATIONFAILED), and taking one for the other
//! would give up mail that can be placed. So it is the account's only if another account logged in
//! shortly before the refusal and logs in again after it, each time in a new session: kept ones
//! outlive a password. All else is ours to mend.
//!
//! One login answers for all refusals before it, one is under way at a time, and after one that
//! failed there is none for [`PAUSE`], so that a wrong password does not become a storm of logins.
//! Nothing of this outlives the process.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A login that was as long ago says nothing about the time of a refusal.
const RECENT: Duration = Duration::from_secs(10);
/// After a witness that was refused as well, no other login is tried for this long.
const PAUSE: Duration = Duration::from_secs(5);

/// When a login began and when it had ended.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub began: Instant,
    pub ended: Instant,
}

/// The accounts that have logged in lately.
#[derive(Default)]
pub struct Witnesses {
    state: Mutex<State>,
    asked: Condvar,
}

#[derive(Default)]
struct State {
    /// The last two accounts, the latest first: one is another than the one that is refused.
    good: Vec<(String, Span)>,
    is_asking: bool,
    failed: Option<(Instant, String)>,
}

/// What the others' logins say about a refusal.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This account logged in before and after it.
    Accounts(String),
    /// This account has logged in after it; whether it could before is not known.
    OnlyAfter(String),
    /// It is ours, by this proof: an account that logged in before cannot either.
    Ours(String),
    /// It cannot be told, for this reason.
    Unknown(&'static str),
}

impl Witnesses {
    /// Notes that `account` has logged in.
    pub fn logged_in(&self, account: &str, span: Span) {
        let mut state = self.state();
        state.good.retain(|(other, _)| other != account);
        state.good.insert(0, (account.to_owned(), span));
        state.good.truncate(2);
        state.failed = None;
    }

    /// Judges that `account` was refused in `refused`; asks another one by `log_in` if nobody has
    /// logged in since. Returns before `until`, as far as `log_in` does.
    pub fn judge(
        &self,
        account: &str,
        refused: Span,
        until: Instant,
        log_in: impl FnOnce(&str) -> Result<Span, String>,
    ) -> Verdict {
        let mut state = self.state();
        loop {
            let Some((witness, last)) =
                state.good.iter().find(|(other, _)| other != account).cloned()
            else {
                return Verdict::Unknown("no other account has logged in by now that could tell");
            };
            if last.began >= refused.ended {
                // Which of its logins came before this one is not kept.
                return Verdict::OnlyAfter(witness);
            }
            if let Some((_, why)) = state.failed.as_ref().filter(|(at, _)| at.elapsed() < PAUSE) {
                return Verdict::Ours(why.clone());
            }
            if !state.is_asking {
                state.is_asking = true;
                drop(state);
                return self.ask(&witness, last, refused, log_in);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Verdict::Unknown("whether others can log in was not known in time");
            }
            state = self.asked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ask(
        &self,
        witness: &str,
        last: Span,
        refused: Span,
        log_in: impl FnOnce(&str) -> Result<Span, String>,
    ) -> Verdict {
        // Given back also should the login panic.
        let _asking = LoginGuard(self);
        match log_in(witness) {
            Ok(span) => {
                self.logged_in(witness, span);
                let was_good = last.ended <= refused.began && refused.began - last.ended < RECENT;
                match was_good {
                    true => Verdict::Accounts(witness.to_owned()),
                    false => Verdict::OnlyAfter(witness.to_owned()),
                }
            }
            Err(why) => {
                let why = format!("{witness}, which has logged in before, cannot either: {why}");
                self.state().failed = Some((Instant::now(), why.clone()));
                Verdict::Ours(why)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic is done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct LoginGuard<'a>(&'a Witnesses);

impl Drop for LoginGuard<'_> {
    fn drop(&mut self) {
        self.0.state().is_asking = false;
        self.0.asked.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    fn now() -> Span {
        Span { began: Instant::now(), ended: Instant::now() }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn nobody(_: &str) -> Result<Span, String> {
        panic!("nobody is to be asked")
    }

    #[test]
    fn an_account_is_judged_by_another_before_and_after() {
        let witnesses = Witnesses::default();
        assert!(
            matches!(witnesses.judge("doug", now(), soon(), nobody), Verdict::Unknown(_)),
            "nobody is known"
        );
        witnesses.logged_in("doug", now());
        assert!(
            matches!(witnesses.judge("doug", now(), soon(), nobody), Verdict::Unknown(_)),
            "not by itself"
        );
        witnesses.logged_in("lisa", now());
        let refused = now();
        let judged = witnesses.judge("doug", refused, soon(), |witness| {
            assert_eq!(witness, "lisa");
            Ok(now())
        });
        assert_eq!(judged, Verdict::Accounts("lisa".to_owned()));
        // Another refusal at that time needs no login more, but also has none before it.
        assert_eq!(
            witnesses.judge("scuba", refused, soon(), nobody),
            Verdict::OnlyAfter("lisa".to_owned())
        );
        assert_eq!(
            witnesses.judge("lisa", now(), soon(), |_| Ok(now())),
            Verdict::Accounts("doug".to_owned())
        );
    }

    #[test]
    fn a_login_of_long_ago_says_nothing_of_the_time_before() {
        let witnesses = Witnesses::default();
        let Some(long_ago) = Instant::now().checked_sub(RECENT) else { return };
        witnesses.logged_in("lisa", Span { began: long_ago, ended: long_ago });
        assert_eq!(
            witnesses.judge("doug", now(), soon(), |_| Ok(now())),
            Verdict::OnlyAfter("lisa".to_owned())
        );
    }

    #[test]
    fn many_refusals_are_one_question() {
        let (witnesses, asked) = (Witnesses::default(), AtomicUsize::new(0));
        witnesses.logged_in("lisa", now());
        let together = std::sync::Barrier::new(20);
        thread::scope(|scope| {
            for number in 0..20 {
                let (witnesses, asked, together) = (&witnesses, &asked, &together);
                scope.spawn(move || {
                    let refused = now();
                    together.wait();
                    let verdict = witnesses.judge(&format!("a{number}"), refused, soon(), |_| {
                        asked.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(Duration::from_millis(20));
                        Err("NO".to_owned())
                    });
                    assert!(matches!(verdict, Verdict::Ours(why) if why.contains("lisa")));
                });
            }
        });
        assert_eq!(asked.into_inner(), 1);
        witnesses.logged_in("lisa", now());
        assert!(witnesses.state().failed.is_none(), "a login that came right ends the pause");
    }

    #[test]
    fn one_that_panics_keeps_nobody_waiting() {
        let witnesses = Witnesses::default();
        witnesses.logged_in("lisa", now());
        let panicked = thread::scope(|scope| {
            scope
                .spawn(|| witnesses.judge("doug", now(), soon(), |_| panic!("told to")))
                .join()
                .is_err()
        });
        assert!(panicked && !witnesses.state().is_asking);
    }
}
