//! Sessions kept between deliveries: at most so many in use at a time, for one key and in all, and
//! at most so many kept. What a user had trouble with is thrown away; what nobody used for a while
//! is closed. Waiting is bounded, first come is not promised to be first served. By hand: r2d2
//! knows no keys, and has threads of its own.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a server does with an adapter that it keeps for long. The default bodies are those of an
/// adapter without connections.
pub trait Connections: Send + Sync {
    /// Closes those that nobody has used for a while.
    fn close_idle(&self) {}

    /// Closes those that are kept, and keeps none from now on.
    fn retire(&self) {}

    /// How many are in use, and how many are kept.
    fn count(&self) -> (usize, usize) {
        (0, 0)
    }
}

/// How many, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// In use at a time.
    pub used: usize,
    /// In use at a time for one key.
    pub per_key: usize,
    /// Kept for the next user.
    pub kept: usize,
    /// Unused ones are closed after this.
    pub idle: Duration,
}

/// A pool of `T`, each for one key (an account; or one key for all).
pub struct Pool<T> {
    limits: Limits,
    state: Mutex<State<T>>,
    freed: Condvar,
}

struct State<T> {
    /// The one used last is at the end.
    idle: Vec<Idle<T>>,
    used: usize,
    by_key: HashMap<String, usize>,
    /// Nothing is kept any more.
    retired: bool,
}

struct Idle<T> {
    key: String,
    since: Instant,
    item: T,
}

/// All that may be in use are, and none came free in time.
#[derive(Debug, thiserror::Error)]
#[error("none free in time")]
pub struct Exhausted;

impl<T> Pool<T> {
    pub fn new(limits: Limits) -> Pool<T> {
        let state = State { idle: Vec::new(), used: 0, by_key: HashMap::new(), retired: false };
        Pool { limits, state: Mutex::new(state), freed: Condvar::new() }
    }

    /// Takes the right to use one for `key`, and a kept one if there is any; waits until `until`.
    ///
    /// # Errors
    /// See [`Exhausted`].
    pub fn take(self: &Arc<Self>, key: &str, until: Instant) -> Result<Pooled<T>, Exhausted> {
        let mut state = self.state();
        while state.used >= self.limits.used
            || state.by_key.get(key).copied().unwrap_or(0) >= self.limits.per_key
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Exhausted);
            }
            state = self.freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.used += 1;
        *state.by_key.entry(key.to_owned()).or_insert(0) += 1;
        let at = state.idle.iter().rposition(|idle| idle.key == key);
        let item = at.map(|at| state.idle.remove(at).item);
        Ok(Pooled { pool: Arc::clone(self), key: key.to_owned(), item })
    }

    /// Closes what nobody has used for too long.
    pub fn close_idle(&self) {
        let now = Instant::now();
        let mut state = self.state();
        let stale = state
            .idle
            .iter()
            .take_while(|idle| now.duration_since(idle.since) >= self.limits.idle)
            .count();
        let closed: Vec<Idle<T>> = state.idle.drain(..stale).collect();
        // Closing may take a while, and others want the lock.
        drop(state);
        drop(closed);
    }

    /// Closes all that are kept, and keeps none from now on.
    pub fn retire(&self) {
        let mut state = self.state();
        state.retired = true;
        let closed = std::mem::take(&mut state.idle);
        drop(state);
        drop(closed);
    }

    /// How many are in use, and how many are kept.
    pub fn count(&self) -> (usize, usize) {
        let state = self.state();
        (state.used, state.idle.len())
    }

    fn give_back(&self, key: String, item: Option<T>) {
        let mut state = self.state();
        state.used -= 1;
        if let Some(count) = state.by_key.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                state.by_key.remove(&key);
            }
        }
        let mut surplus = None;
        match item {
            Some(item) if self.limits.kept > 0 && !state.retired => {
                if state.idle.len() >= self.limits.kept {
                    surplus = Some(state.idle.remove(0).item);
                }
                state.idle.push(Idle { key, since: Instant::now(), item });
            }
            item => surplus = item,
        }
        drop(state);
        // Waiters may want different keys: each looks for itself.
        self.freed.notify_all();
        drop(surplus);
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Nothing that can panic is done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to use one, and the one, once there is one. Goes back to the pool when dropped.
pub struct Pooled<T> {
    pool: Arc<Pool<T>>,
    key: String,
    item: Option<T>,
}

impl<T> Pooled<T> {
    /// Whether one is at hand, so that none need be made.
    pub fn is_at_hand(&self) -> bool {
        self.item.is_some()
    }

    /// The one at hand, else what `make` makes.
    ///
    /// # Errors
    /// What `make` says.
    pub fn or_make<E>(mut self, make: impl FnOnce() -> Result<T, E>) -> Result<InUse<T>, E> {
        let item = match self.item.take() {
            Some(item) => item,
            None => make()?,
        };
        Ok(InUse { right: self, item: Some(item), sound: true })
    }
}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.key), self.item.take());
    }
}

/// One in use.
pub struct InUse<T> {
    right: Pooled<T>,
    /// `None` only while it is dropped.
    item: Option<T>,
    sound: bool,
}

impl<T> InUse<T> {
    /// It had trouble: not for the next user.
    pub fn throw_away(&mut self) {
        self.sound = false;
    }
}

impl<T> Deref for InUse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.item.as_ref().unwrap_or_else(|| unreachable!("taken by drop only"))
    }
}

impl<T> DerefMut for InUse<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.item.as_mut().unwrap_or_else(|| unreachable!("taken by drop only"))
    }
}

impl<T> Drop for InUse<T> {
    fn drop(&mut self) {
        // Whoever panicked with it may have left it in mid-sentence.
        if self.sound && !std::thread::panicking() {
            self.right.item = self.item.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn pool(used: usize, per_key: usize, kept: usize) -> Arc<Pool<u32>> {
        Arc::new(Pool::new(Limits { used, per_key, kept, idle: Duration::ZERO }))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn make(number: u32) -> impl FnOnce() -> Result<u32, Exhausted> {
        move || Ok(number)
    }

    #[test]
    fn what_was_used_is_used_again_by_its_key() {
        let pool = pool(9, 9, 9);
        drop(pool.take("a", soon()).unwrap().or_make(make(1)).unwrap());
        assert_eq!(*pool.take("b", soon()).unwrap().or_make(make(2)).unwrap(), 2);
        assert_eq!(*pool.take("a", soon()).unwrap().or_make(make(3)).unwrap(), 1);
        assert_eq!(pool.count(), (0, 2));
        pool.close_idle();
        assert_eq!(pool.count(), (0, 0));
    }

    #[test]
    fn what_had_trouble_is_not_used_again() {
        let pool = pool(9, 9, 9);
        pool.take("a", soon()).unwrap().or_make(make(1)).unwrap().throw_away();
        let user = Arc::clone(&pool);
        let _ = thread::spawn(move || {
            let _in_use = user.take("a", soon()).unwrap().or_make(make(2)).unwrap();
            panic!("told to");
        })
        .join();
        assert!(pool.take("a", soon()).unwrap().or_make(|| Err::<u32, _>(Exhausted)).is_err());
        assert_eq!(pool.count(), (0, 0));
    }

    #[test]
    fn limits_hold_for_one_key_and_for_all() {
        let pool = pool(2, 1, 1);
        let first = pool.take("a", soon()).unwrap().or_make(make(1)).unwrap();
        assert!(pool.take("a", soon()).is_err(), "one for each key");
        let second = pool.take("b", soon()).unwrap().or_make(make(2)).unwrap();
        assert!(pool.take("c", soon()).is_err(), "two in all");
        let waiter = Arc::clone(&pool);
        let waiting = thread::spawn(move || {
            waiter.take("c", Instant::now() + Duration::from_secs(20)).is_ok()
        });
        drop(first);
        assert!(waiting.join().unwrap(), "a free one is a waiter's");
        drop(second);
        assert_eq!(pool.count(), (0, 1), "one is kept");
        pool.retire();
        drop(pool.take("a", soon()).unwrap().or_make(make(3)).unwrap());
        assert_eq!(pool.count(), (0, 0), "none is kept any more");
    }
}
