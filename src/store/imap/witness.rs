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
pub struct LoginSpan {
    pub began: Instant,
    pub ended: Instant,
}

/// The accounts that have logged in lately.
#[derive(Default)]
pub struct Witnesses {
    state: Mutex<WitnessState>,
    asked: Condvar,
}

#[derive(Default)]
struct WitnessState {
    /// The last two accounts, the latest first: one is another than the one that is refused.
    good: Vec<(String, LoginSpan)>,
    is_asking: bool,
    failed: Option<(Instant, String)>,
}

/// What the others' logins say about a refusal.
#[derive(Debug, PartialEq, Eq)]
pub enum LoginVerdict {
    /// This account logged in before and after it.
    Accounts(String),
    /// Another account has logged in after it; whether it could before is not known.
    OnlyAfter,
    /// It is ours, by this proof: an account that logged in before cannot either.
    Ours(String),
    /// It cannot be told, for this reason.
    Unknown(&'static str),
}

impl Witnesses {
    /// Notes that `account` has logged in.
    pub fn logged_in(&self, account: &str, span: LoginSpan) {
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
        refused: LoginSpan,
        until: Instant,
        log_in: impl FnOnce(&str) -> Result<LoginSpan, String>,
    ) -> LoginVerdict {
        let mut state = self.state();
        loop {
            let Some((witness, last)) =
                state.good.iter().find(|(other, _)| other != account).cloned()
            else {
                return LoginVerdict::Unknown(
                    "no other account has logged in by now that could tell",
                );
            };
            if last.began >= refused.ended {
                // Which of its logins came before this one is not kept.
                return LoginVerdict::OnlyAfter;
            }
            if let Some((_, why)) = state.failed.as_ref().filter(|(at, _)| at.elapsed() < PAUSE) {
                return LoginVerdict::Ours(why.clone());
            }
            if !state.is_asking {
                state.is_asking = true;
                drop(state);
                return self.ask(&witness, last, refused, log_in);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return LoginVerdict::Unknown("whether others can log in was not known in time");
            }
            state = self.asked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ask(
        &self,
        witness: &str,
        last: LoginSpan,
        refused: LoginSpan,
        log_in: impl FnOnce(&str) -> Result<LoginSpan, String>,
    ) -> LoginVerdict {
        // Given back also should the login panic.
        let _asking = LoginGuard(self);
        match log_in(witness) {
            Ok(span) => {
                self.logged_in(witness, span);
                let was_good = last.ended <= refused.began && refused.began - last.ended < RECENT;
                match was_good {
                    true => LoginVerdict::Accounts(witness.to_owned()),
                    false => LoginVerdict::OnlyAfter,
                }
            }
            Err(why) => {
                let why = format!("{witness}, which has logged in before, cannot either: {why}");
                self.state().failed = Some((Instant::now(), why.clone()));
                LoginVerdict::Ours(why)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, WitnessState> {
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

    fn now() -> LoginSpan {
        LoginSpan { began: Instant::now(), ended: Instant::now() }
    }

    /// Judges that `account` is refused in `refused`; the witness may log in, or why not.
    fn judge(
        witnesses: &Witnesses,
        account: &str,
        refused: LoginSpan,
        log_in: impl FnOnce(&str) -> Result<LoginSpan, String>,
    ) -> LoginVerdict {
        witnesses.judge(account, refused, Instant::now() + Duration::from_secs(10), log_in)
    }

    fn nobody(_: &str) -> Result<LoginSpan, String> {
        panic!("nobody is to be asked")
    }

    #[test]
    fn an_account_is_judged_by_another_before_and_after() {
        let witnesses = Witnesses::default();
        for why in ["nobody is known", "not by itself"] {
            let judged = judge(&witnesses, "doug", now(), nobody);
            assert!(matches!(judged, LoginVerdict::Unknown(_)), "{why}");
            witnesses.logged_in("doug", now());
        }
        let long_ago = Instant::now().checked_sub(RECENT).expect("a machine up for seconds");
        witnesses.logged_in("lisa", LoginSpan { began: long_ago, ended: long_ago });
        // That says nothing of the time before the refusal.
        let judged = judge(&witnesses, "doug", now(), |_| Ok(now()));
        assert_eq!(judged, LoginVerdict::OnlyAfter);
        let refused = now();
        let judged = judge(&witnesses, "doug", refused, |witness| {
            assert_eq!(witness, "lisa");
            Ok(now())
        });
        assert_eq!(judged, LoginVerdict::Accounts("lisa".to_owned()));
        // Another refusal at that time needs no login more, but also has none before it.
        assert_eq!(judge(&witnesses, "scuba", refused, nobody), LoginVerdict::OnlyAfter);
        let judged = judge(&witnesses, "lisa", now(), |_| Ok(now()));
        assert_eq!(judged, LoginVerdict::Accounts("doug".to_owned()));
    }

    #[test]
    fn many_refusals_are_one_question_also_after_one_that_panicked() {
        let (witnesses, asked) = (Witnesses::default(), AtomicUsize::new(0));
        witnesses.logged_in("lisa", now());
        thread::scope(|scope| {
            let asking = scope.spawn(|| judge(&witnesses, "doug", now(), |_| panic!("told to")));
            assert!(asking.join().is_err());
        });
        let together = std::sync::Barrier::new(20);
        thread::scope(|scope| {
            for number in 0..20 {
                let (witnesses, asked, together) = (&witnesses, &asked, &together);
                scope.spawn(move || {
                    let refused = now();
                    together.wait();
                    let verdict = judge(witnesses, &format!("a{number}"), refused, |_| {
                        asked.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(Duration::from_millis(20));
                        Err("NO".to_owned())
                    });
                    assert!(matches!(verdict, LoginVerdict::Ours(why) if why.contains("lisa")));
                });
            }
        });
        assert_eq!(asked.into_inner(), 1);
        witnesses.logged_in("lisa", now());
        assert!(witnesses.state().failed.is_none(), "a login that came right ends the pause");
    }
}
