//! Whose fault a refused login is. A server says the same of an account that is closed and of a
//! password of ours that was changed (RFC 5530, AUTHENTICATIONFAILED), and taking one for the other
//! would give up mail that can be placed. So it is the account's only if another account logged in
//! shortly before the refusal and logs in again after it, each time in a new session: kept ones
//! outlive a password. All else is ours to mend.
//!
//! One login answers for all refusals before it, one is under way at a time, and after one that
//! failed there is none for [`PAUSE`], so that a wrong password does not become a storm of logins.
//! An account that was found not to be there is not asked for again for a short while ([`MISS`]):
//! a server may let all logins from an address wait after one that failed. What is remembered is
//! no answer, and the copy waits. Nothing of this outlives the process.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A login that was as long ago says nothing about the time of a refusal.
const RECENT: Duration = Duration::from_secs(10);
/// After a witness that was refused as well, no other login is tried for this long.
const PAUSE: Duration = Duration::from_secs(5);

/// An account that is not there is asked for again after this long: before Postfix comes again
/// (minimal_backoff_time, 300 s), and no sooner than servers forget that it was not there.
const MISS: Duration = Duration::from_secs(60);
/// How many misses are remembered; the oldest go first.
const MISSES: usize = 1000;

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
    /// Accounts that are not there, and since when that is known.
    misses: HashMap<String, Instant>,
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
    /// No other account has logged in by now.
    NobodyElse,
    /// Unknown, for this reason.
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
        state.misses.remove(account);
    }

    /// Remembers that `account` was found not to be there.
    pub fn miss(&self, account: &str) {
        let mut state = self.state();
        if state.misses.len() >= MISSES {
            state.misses.retain(|_, at| at.elapsed() < MISS);
            let oldest = state.misses.iter().min_by_key(|(_, at)| **at);
            let oldest = oldest.map(|(account, _)| account.clone());
            if let Some(oldest) = oldest.filter(|_| state.misses.len() >= MISSES) {
                state.misses.remove(&oldest);
            }
        }
        state.misses.insert(account.to_owned(), Instant::now());
    }

    /// How long ago `account` was found not to be there, if that is remembered.
    pub fn was_missed(&self, account: &str) -> Option<Duration> {
        let state = self.state();
        state.misses.get(account).map(Instant::elapsed).filter(|ago| *ago < MISS)
    }

    /// Whether another account than this has logged in, or does so now by `log_in`, which tries
    /// those that are named. Others wait for whoever tries, until `until`.
    pub fn introduce(
        &self,
        account: &str,
        until: Instant,
        log_in: impl FnOnce() -> Result<(), String>,
    ) -> bool {
        let mut state = self.state();
        loop {
            let is_there = state.good.iter().any(|(other, _)| other != account);
            let left = until.saturating_duration_since(Instant::now());
            let has_failed = state.failed.as_ref().is_some_and(|(at, _)| at.elapsed() < PAUSE);
            if is_there || has_failed || left.is_zero() {
                return is_there;
            }
            if !state.is_asking {
                break;
            }
            state = self.asked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_asking = true;
        drop(state);
        let _asking = LoginGuard(self);
        let tried = log_in();
        if let Err(why) = &tried {
            self.state().failed = Some((Instant::now(), why.clone()));
        }
        tried.is_ok()
    }

    /// Judges that `account` was refused in `refused`; asks another one by `log_in` if no login has
    /// succeeded since. Returns before `until`, as far as `log_in` does.
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
                return LoginVerdict::NobodyElse;
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
            assert_eq!(judged, LoginVerdict::NobodyElse, "{why}");
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
    fn of_many_that_know_nobody_one_tries_and_none_for_a_while_if_that_failed() {
        let (witnesses, tried) = (Witnesses::default(), AtomicUsize::new(0));
        let soon = Instant::now() + Duration::from_secs(10);
        let all = |succeeds: bool| {
            let together = std::sync::Barrier::new(20);
            thread::scope(|scope| {
                let each = |number: usize| {
                    let (witnesses, tried, together) = (&witnesses, &tried, &together);
                    move || {
                        together.wait();
                        witnesses.introduce(&format!("a{number}"), soon, || {
                            tried.fetch_add(1, Ordering::SeqCst);
                            thread::sleep(Duration::from_millis(20));
                            if succeeds {
                                witnesses.logged_in("lisa", now());
                            }
                            if succeeds { Ok(()) } else { Err("NO".to_owned()) }
                        })
                    }
                };
                let all: Vec<_> = (0..20).map(|number| scope.spawn(each(number))).collect();
                all.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
            })
        };
        assert_eq!(all(false), [false; 20]);
        assert_eq!(tried.load(Ordering::SeqCst), 1);
        witnesses.state().failed = None;
        assert_eq!(all(true), [true; 20]);
        assert_eq!(tried.load(Ordering::SeqCst), 2);
        assert!(!witnesses.introduce("lisa", Instant::now(), || panic!("it is too late")));
    }

    #[test]
    fn a_miss_is_remembered_until_it_logs_in_and_only_so_many_are() {
        let witnesses = Witnesses::default();
        assert_eq!(witnesses.was_missed("ghost"), None);
        witnesses.miss("ghost");
        assert!(witnesses.was_missed("ghost").is_some());
        assert_eq!(witnesses.was_missed("doug"), None);
        witnesses.logged_in("ghost", now());
        assert_eq!(witnesses.was_missed("ghost"), None);
        let long_ago = Instant::now().checked_sub(MISS).expect("a machine up for a minute");
        witnesses.state().misses.insert("old".to_owned(), long_ago);
        assert_eq!(witnesses.was_missed("old"), None);
        for number in 0..2 * MISSES {
            witnesses.miss(&format!("a{number}"));
        }
        assert_eq!(witnesses.state().misses.len(), MISSES);
        let last = format!("a{}", 2 * MISSES - 1);
        assert!(witnesses.was_missed(&last).is_some() && witnesses.was_missed("a0").is_none());
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
